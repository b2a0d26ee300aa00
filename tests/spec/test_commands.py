"""Commands for pipeline files: what they print, where, and what they exit with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from outlast.cli.commands import command_line
from outlast.components.registry import find_component
from outlast.errors import ConfigurationError
from outlast.policy import RetryPolicy
from outlast.spec import plan
from outlast.spec.compile import compile_text
from outlast.spec.diff import diff
from outlast.spec.manifest import Manifest
from tables import table

FLOW = """\
oml_version: "0.1.0"
name: movies
params:
  batch: {type: string, default: monday}
  token: {type: string, sensitive: true}
steps:
  - id: read
    component: files.reader
    config: {path: "in/${params.batch}.jsonl"}
  - id: label
    component: python
    config: {call: "shop.steps:label", args: {rows: "${steps.read.outputs.rows}"}}
    retry: {max_attempts: 3, initial_delay_ms: 1000, jitter: 0.1, on_errors: [network_error, timeout]}
    timeout: {step_ms: 60000, total_ms: 300000}
    silence: [R52]
    idempotent: true
  - id: check
    component: python
    needs: [read]
    config: {call: "shop.steps:check"}
  - id: end
    component: python
    needs: [label, check]
    config: {call: "shop.steps:end"}
"""


@pytest.fixture
def flow(tmp_path, monkeypatch):
    """A folder with a pipeline file, to which its path is typed as it stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")  # a line is never wrapped, however narrow the terminal
    (tmp_path / "movies.yaml").write_text(FLOW)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "steps.py").write_text(
        "def label(rows): ...\ndef check(): ...\ndef end(): ...\ndef undo(): ...\n"
    )
    return tmp_path


def outlast(*arguments: str):
    return CliRunner().invoke(command_line(arguments), list(arguments))


def changed(folder, old: str, new: str, name: str = "other.yaml") -> str:
    assert old in FLOW
    (folder / name).write_text(FLOW.replace(old, new))
    return name


# --- validate ---


def test_a_valid_file_is_said_to_be_valid(flow):
    """Nothing on stderr, exit code 0 (S0-29)."""
    done = outlast("validate", "movies.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "movies.yaml: valid, 4 steps.\n", "")


def test_every_mistake_is_one_line_on_stderr(flow):
    """C-24: unknown keys and wrong numbers at once, in the order of the file, each in one line; exit code 2."""
    name = changed(flow, "max_attempts: 3", "max_attempts: 0, initial_dely_ms: 5")
    done = outlast("validate", name)
    lines = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (2, "")
    assert [line.split(": ")[:2] for line in lines] == [
        ["other.yaml:13:27", "steps.label.retry.max_attempts"],
        ["other.yaml:13:30", "steps.label.retry.initial_dely_ms"],
    ]


def test_several_files_are_looked_at_and_one_that_is_missing_is_told(flow):
    """All of them at once, in the order in which they are named."""
    done = outlast("validate", "none.yaml", "movies.yaml")
    assert (done.exit_code, done.stdout) == (2, "movies.yaml: valid, 4 steps.\n")
    assert done.stderr == "none.yaml: expected a pipeline file that can be read, got: No such file or directory\n"


def test_validate_as_json_has_the_mistakes_as_values(flow):
    """For editors and CI."""
    name = changed(flow, "component: files.reader", "component: files.raeder")
    done = outlast("validate", "movies.yaml", name, "--json")
    document = json.loads(done.stdout)
    good, bad = document["files"]
    assert (done.exit_code, document["exit_code"], done.stderr) == (2, 2, "")
    assert good == {"file": "movies.yaml", "valid": True, "mistakes": []}
    (mistake,) = bad["mistakes"]
    assert {key: mistake[key] for key in ("line", "column", "path", "severity")} == {
        "line": 8,
        "column": 16,
        "path": "steps.read.component",
        "severity": "error",
    }
    assert "files.reader" in mistake["way_out"]
    assert mistake["text"].startswith("other.yaml:8:16: steps.read.component: expected ")


def test_parameters_are_left_open_by_validate_and_needed_by_compile(flow):
    """C-26: a file can be checked without the values that it is run with."""
    name = changed(flow, "{type: string, default: monday}", "{type: integer, max: 5}")
    assert outlast("validate", name).exit_code == 0
    assert outlast("compile", name).exit_code == 2
    assert outlast("compile", name, "--param", "batch=3").exit_code == 0
    done = outlast("validate", name, "--param", "batch=9")
    assert done.exit_code == 2
    assert "at most 5" in done.stderr


@table(
    ("arguments", "words"),
    [
        (["--param", "batch"], "expected --param to be a name and a value"),
        (["--param", "batch=1", "--param", "batch=2"], "expected --param batch once, got: twice"),
        (["--param", "bach=1"], "did you mean 'batch'?"),
        (["--profile", "none"], "the profile that was chosen"),
        (["--root", "movies.yaml"], "expected --root to be a folder, got: movies.yaml"),
        (["--root", "x" * 300], "expected --root to be a folder, got: xxx"),
        (["--connections", "none.yaml"], "none.yaml: expected a connections file that can be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(flow, arguments, words):
    """D-26: a name that has no effect is told."""
    done = outlast("validate", "movies.yaml", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_no_secret_is_shown(flow):
    """Neither in a line nor in JSON, where it was typed into the file or onto the command line (S0-42)."""
    secret = "sk-proj-Aa1Bb2Cc3Dd4Ee5Ff6Gg7Hh8"
    name = changed(flow, 'call: "shop.steps:check"', f'call: "shop.steps:check", args: {{api_key: {secret}}}')
    for command in (["validate", name], ["validate", name, "--json"], ["compile", name]):
        done = outlast(*command)
        assert done.exit_code == 2
        assert secret not in done.output
    for command in (
        ["compile", "movies.yaml"],
        ["compile", "movies.yaml", "--json"],
        ["explain", "movies.yaml", "end"],
    ):
        done = outlast(*command, "--param", f"token={secret}")
        assert done.exit_code == 0
        assert secret not in done.output


# --- the project's root ---

READS = """\
oml_version: "0.1.0"
name: orders
steps:
  - id: read
    component: postgres.extractor
    config: {connection: "@postgres.shop", query: select 1}
    timeout: {step_ms: 5000}
"""
SHOP = "connections: {postgres: {%s: {host: db, database: shop, user: reader, password: '${SHOP_PASSWORD}'}}}\n"


@pytest.fixture
def project(flow):
    """Pipeline files in a folder of their own, and connections in the folder above it."""
    (flow / "flows").mkdir()
    (flow / "flows" / "orders.yaml").write_text(READS)
    (flow / "flows" / "connections.yaml").write_text(SHOP % "other")
    (flow / "connections.yaml").write_text(SHOP % "shop")
    return "flows/orders.yaml"


@table("command", [["validate"], ["compile"], ["explain"], ["diff"]])
def test_root_is_the_folder_of_the_file_unless_it_is_said(project, command):
    """U-20: the connections are those of the root, or of the file that is named; for every command that compiles."""
    rest = {"explain": ["read"], "diff": ["movies.yaml"]}.get(command[0], [])
    refused = outlast(*command, project, *rest)
    assert refused.exit_code == 2
    assert "expected a connection that flows/connections.yaml has, got '@postgres.shop'" in refused.stderr
    assert outlast(*command, project, *rest, "--root", ".").exit_code == 0
    assert outlast(*command, project, *rest, "--connections", "connections.yaml").exit_code == 0
    assert outlast(*command, project, *rest, "--root", ".", "--connections", "flows/connections.yaml").exit_code == 2


def test_mistakes_of_one_connections_file_are_told_once(flow, project):
    """Also where several pipeline files share it."""
    (flow / "connections.yaml").write_text("connections: {postgres: {shop: 5}}\n")
    done = outlast("validate", project, "movies.yaml", "--root", ".")
    assert (done.exit_code, done.stderr.count("connections.yaml:1:")) == (2, 1)


def test_options_for_pipeline_files_are_refused_where_there_is_none(flow):
    """D-26: of what is compiled already nothing can be said any more."""
    outlast("compile", "movies.yaml", "--output", "m.json")
    for command in (["explain", "m.json", "label"], ["diff", "m.json", "m.json"]):
        assert outlast(*command).exit_code == 0
        for option in (["--param", "batch=friday"], ["--profile", "p"], ["--root", "."], ["--connections", "c.yaml"]):
            done = outlast(*command, *option)
            assert done.exit_code == 2
            assert f"expected {option[0]} with a pipeline file" in done.stderr
    assert outlast("diff", "m.json", "movies.yaml", "--param", "batch=friday").exit_code == 0


# --- compile ---


def test_compile_prints_the_graph_and_the_schedule(flow, monkeypatch):
    """S0-31: what will happen is there before anything runs."""
    monkeypatch.setenv("COLUMNS", "160")
    done = outlast("compile", "movies.yaml")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.exit_code, done.stderr) == (0, "")
    assert lines[1:3] == ["params: batch = 'monday'", "given when it runs: token"]
    assert lines[4:8] == [
        "┌─╮  read   files.reader",
        "├ │  label  python",
        "│ ├  check  python",
        "▼─╯  end    python",
    ]
    rows = [line.split("  ") for line in lines]
    assert ["label", "python", "3", "1 s, 2 s", "1 min", "5 min", "5 min"] in [
        [cell.strip() for cell in row if cell.strip()][:7] for row in rows
    ]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows[-2:]] == [
        ["label", "2", "1 s", "900 ms", "1.1 s", "1.1 s", "3 min 1.1 s"],
        ["label", "3", "2 s", "1.8 s", "2.2 s", "3.3 s", "5 min"],
    ]


WHOLE = """\
  - id: load
    component: postgres.writer
    config: {connection: "@postgres.shop", table: movies, rows: "${steps.read.outputs.rows}", mode: upsert, key: [id]}
    retry: {preset: database}
    timeout: {step_ms: 60000}
    circuit_breaker: {failure_threshold: 5}
    limit: {rates: {calls: "100/min"}}
    retry_budget: {}
    idempotency: {key: "movies-${params.batch}"}
    compensate: {component: python, config: {call: "shop.steps:undo"}}
"""


@table("width", [40, 80, 100, 10_000])
def test_nothing_of_a_plan_is_cut_however_narrow_the_terminal_is(flow, monkeypatch, width):
    """Cells are wrapped, and where that is not enough, rows become blocks; no column goes (S0-31)."""
    (flow / "whole.yaml").write_text(FLOW + WHOLE)
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (
        ["compile", "whole.yaml"],
        ["explain", "whole.yaml", "load"],
        ["components", "show", "http.caller"],
    ):
        done = outlast(*arguments)
        shown = " ".join(done.stdout.split())
        assert (done.exit_code, "…" in shown) == (0, False)
        assert arguments[0] == "components" or max(map(len, done.stdout.splitlines())) <= width
    plan_ = outlast("compile", "whole.yaml").stdout.split()
    told = (
        "connection_refused connection_reset database_connection database_error dns_error network_error timeout".split()
    )
    assert set(told) <= {word.rstrip(",") for word in plan_}
    assert {"@postgres.shop", "movies-monday,", "python", "10"} <= set(plan_)


def test_the_plan_says_what_else_a_step_has(flow, monkeypatch):
    """Connection, idempotency, circuit, limit, retry budget and what undoes it (S0-31)."""
    (flow / "whole.yaml").write_text(FLOW.replace("token:", "tags: {type: object, default: {a: 1}}\n  token:") + WHOLE)
    monkeypatch.setenv("COLUMNS", "200")
    lines = [" ".join(line.split()) for line in outlast("compile", "whole.yaml").stdout.splitlines()]
    assert lines[1] == """params: batch = 'monday', tags = {"a": 1}"""
    assert "▼ load postgres.writer @postgres.shop" in lines
    assert lines[lines.index("step also holds") + 1 :] == [
        (
            "load A success is remembered for 24 h under the idempotency key movies-monday, and not repeated in that time, unless the run that has"
            " done it is asked to with --from-step or --on-change redo."
        ),
        (
            "load The circuit @postgres.shop opens after 5 failures in a row, for 1 min; while it is open, the step fails at once."
            " Then 2 probes may run at a time."
        ),
        "load The limit @postgres.shop lets through 100 calls in 1 min. An attempt waits for its place as long as it takes.",
        "load The retry budget @postgres.shop lets through 10 retries, and 0.2 more for each success at the first attempt.",
        "load If the run fails after the step has succeeded, python undoes it, in up to 3 attempts.",
    ]


def test_connections_that_nobody_checks_are_told(flow):
    """U-24: where no connections file is found, a file is not said to be valid in silence."""
    (flow / "flows").mkdir()
    (flow / "flows" / "whole.yaml").write_text(FLOW + WHOLE)
    for command in ("validate", "compile"):
        assert outlast(command, "flows/whole.yaml").stderr.splitlines()[-1] == (
            "flows/whole.yaml: connections are not checked, because there is no flows/connections.yaml."
            " Name it with --connections, or its folder with --root"
        )
    document = json.loads(outlast("validate", "flows/whole.yaml", "--json").stdout)
    assert document["files"][0]["note"].startswith("flows/whole.yaml: connections are not checked")
    (flow / "connections.yaml").write_text("connections: {postgres: {shp: {url: '${U}'}}}")
    assert outlast("validate", "flows/whole.yaml").stderr.endswith(
        "For the connections.yaml of this folder: --root .\n"
    )
    done = outlast("validate", "flows/whole.yaml", "--root", ".")
    assert (done.exit_code, "not checked" in done.stderr, "did you mean '@postgres.shp'?" in done.stderr) == (
        2,
        False,
        True,
    )
    assert outlast("validate", "movies.yaml").stderr == ""  # it names no connection


def test_compile_writes_the_manifest_that_json_prints(flow):
    """C-24: the same bytes, which can be read again."""
    printed = outlast("compile", "movies.yaml", "--json").stdout
    done = outlast("compile", "movies.yaml", "--output", "m.json")
    assert (done.exit_code, done.stderr) == (0, "The manifest is in m.json.\n")
    assert (flow / "m.json").read_text().rstrip("\n") == printed.rstrip("\n")
    assert Manifest.from_json(printed)["label"].timing["attempts"] == 3
    assert sorted(path.name for path in flow.iterdir()) == ["m.json", "movies.yaml", "shop"]


def test_compile_never_overwrites_the_pipeline_file(flow):
    """D-26: the source would be gone."""
    done = outlast("compile", "movies.yaml", "--output", "./movies.yaml")
    assert done.exit_code == 2
    assert (flow / "movies.yaml").read_text() == FLOW


def test_compile_writes_nothing_of_a_file_that_is_wrong(flow):
    """S0-29: no manifest, exit code 2."""
    name = changed(flow, "needs: [read]", "needs: [raed]")
    assert outlast("compile", name, "--output", "m.json").exit_code == 2
    assert not (flow / "m.json").exists()


# --- explain ---


def test_explain_lists_the_presets(flow):
    """U-01: each with what it does."""
    rows = json.loads(outlast("explain", "--json").stdout)
    assert [row["name"] for row in rows] == [
        "default", "llm", "database", "step", "jobs", "tiered", "stage", "call",
    ]  # fmt: skip
    assert {row["name"]: row["timing"]["attempts"] for row in rows}["jobs"] == 4


def test_explain_says_what_a_step_does_when_it_fails(flow, monkeypatch):
    """In sentences; the worst case of 3 attempts of a minute, since the service may ask for 2 minutes twice (S0-31)."""
    monkeypatch.setenv("COLUMNS", "200")
    done = outlast("explain", "movies.yaml", "label")
    assert done.exit_code == 0
    for line in (
        "label (python)",
        "Up to 3 attempts. Before the next one it waits 1 s, 2 s (±10 %), never more than 30 s.",
        "An attempt is given up after 1 min.",
        "Worst case: 5 min, the total time limit.",
        "A timed-out attempt is the last one, because its thread cannot be stopped. `isolation: process` stops it.",
        "As a durable job, which tries again after that once no attempt runs any more, it is executed up to 12 times.",
    ):
        assert line in done.stdout.splitlines()
    assert "permanent" in done.stdout


@table(
    ("arguments", "words"),
    [
        (["stepp"], "Did you mean 'step'?"),
        (["moovies.yaml"], "expected a pipeline file or a manifest that can be read, got: no file 'moovies.yaml'."),
        (["moovies"], "expected a preset or a file, got: 'moovies', which is neither."),
        (["movies.yaml", "lable"], "Did you mean 'label'?"),
        (["step", "--param", "a=b"], "expected --param with a file, got: a preset"),
        (["--root", ".", "--profile", "p"], "expected --profile and --root with a file, got: nothing"),
    ],
)
def test_explain_refuses_what_it_does_not_know(flow, arguments, words):
    """With the nearest right name."""
    done = outlast("explain", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_explain_without_a_step_lists_the_steps(flow):
    """Whoever does not know the ids is shown them, each with what happens when it fails."""
    done = outlast("explain", "movies.yaml")
    assert (done.exit_code, done.stderr) == (0, "All about one of them: outlast explain FILE STEP\n")
    rows = {line.split()[0]: " ".join(line.split()) for line in done.stdout.splitlines() if line[:1].strip()}
    assert [*rows][1:] == ["read", "label", "check", "end"]
    assert rows["check"] == "check python One attempt: nothing is retried."
    document = json.loads(outlast("explain", "movies.yaml", "--json").stdout)
    assert [(one["name"], one["timing"]["attempts"]) for one in document][:2] == [("read", 1), ("label", 3)]


def test_tiers_are_no_errors_of_their_own(flow):
    """What a tier stands for is among the errors that are retried (S0-32)."""
    done = outlast("explain", "database", "--json")
    document = json.loads(done.stdout)
    assert "listed" not in document["timing"]["errors"]
    assert {"database_connection", "dns_error", "timeout"} <= set(document["timing"]["errors"]["transient"]["retry"])


@table(
    ("policy", "words"),
    [
        (RetryPolicy(max_attempts=1), "One attempt: nothing is retried."),
        (RetryPolicy(max_attempts=3, jitter="full"), ", or anything down to 0, never more than 30 s."),
        (RetryPolicy(max_attempts=3, jitter={"add": 1.0}), "1 s, 2 s and up to 1 s more, never more than 30 s."),
        (RetryPolicy(max_attempts=4, backoff="fixed", jitter=0), "it waits 1 s each time, never more than 30 s."),
        (RetryPolicy(max_attempts=9, jitter=0), "1 s, 2 s, 4 s, 8 s, ..., 30 s"),
        (RetryPolicy(max_attempts=2, max_retry_after=0), "(Retry-After) is not waited for."),
    ],
)
def test_a_policy_in_words(policy, words):
    """Every kind of backoff and jitter has its words (S0-32)."""
    assert any(words in line for line in plan.sentences(*plan.of_policy(policy), {}))


def test_a_circuit_a_limit_and_a_compensation_are_told(flow):
    """With the numbers that hold, also where the file says nothing (S0-21, S0-26)."""
    blocks = """circuit_breaker: {failure_rate: 0.5, on_open: wait}
    limit: {concurrency: 3, rates: {calls: {amount: 5, per_s: 60}}}
    retry: {max_attempts: 2}
    retry_budget: {}
    idempotency: {key: "${params.batch}", cache_ttl_s: 60}
    compensate: {component: python, config: {call: "shop.steps:undo"}, timeout: {total_ms: 5000}}
    needs: [read]"""
    text = " ".join(
        json.loads(outlast("explain", changed(flow, "needs: [read]", blocks), "check", "--json").stdout)["sentences"]
    )
    assert "opens after 50 % of the last" in text
    assert "while it is open, the step waits" in text
    assert (
        "lets through 3 attempts at a time and 5 calls in 1 min. An attempt waits for its place as long as it takes."
        in text
    )
    assert "A success is remembered for 1 min" in text
    bare = changed(flow, "needs: [read]", "limit: {}\n    needs: [read]", "bare.yaml")
    sentences = json.loads(outlast("explain", bare, "check", "--json").stdout)["sentences"]
    fewer = "The limit movies.check lets through fewer, where a service says that it is too much."
    assert f"{fewer} An attempt waits for its place as long as it takes." in sentences
    assert "python undoes it, in up to 3 attempts, within 5 s." in text


@table(
    ("retry", "waits", "cells"),
    [
        (
            "max_attempts: 4, initial_delay_ms: 500, max_delay_ms: 6000, jitter: decorrelated",
            (
                "it waits at random from 500 ms up to 1.5 s, 4.5 s, 6 s, each up to three times the last one, "
                "never more than 6 s."
            ),
            [("at random", "500 ms", "1.5 s"), ("at random", "500 ms", "4.5 s"), ("at random", "500 ms", "6 s")],
        ),
        (
            "max_attempts: 3, initial_delay: 4, max_delay: 10, jitter: {add: 3}",
            "it waits 4 s, 8 s and up to 3 s more, never more than 10 s: near that, one of the last 3 s below it.",
            [("4 s", "4 s", "7 s"), ("8 s", "7 s", "10 s")],
        ),
    ],
)
def test_waits_are_told_as_they_are_drawn(retry, waits, cells):
    """Nothing is called an average that is none, and the sentence fits the table (S0-31)."""
    manifest = compile_text(FLOW.replace("max_attempts: 3, initial_delay_ms: 1000, jitter: 0.1", retry)).manifest
    assert manifest is not None
    step = manifest["label"]
    assert waits in next(plan.sentences(step.policy, step.timing, step.work))
    assert [row[2:5] for row in plan.schedule_rows("label", step.policy, step.timing)] == cells
    assert all(one.min <= one.nominal <= one.max for one in step.schedule)


# --- diff ---


def manifests(old: str, new: str) -> tuple[Manifest, Manifest]:
    assert old in FLOW
    before, after = (compile_text(text).manifest for text in (FLOW, FLOW.replace(old, new)))
    assert before is not None
    assert after is not None
    return before, after


@table(
    ("old", "new", "part", "lines"),
    [
        ("max_attempts: 3", "max_attempts: 4", "policy", ["retry.max_attempts: 4, was 3"]),
        ("step_ms: 60000", "step_ms: 30000", "policy", ["timeout.step_ms: 30 s, was 1 min"]),
        (
            "[network_error, timeout]",
            "[timeout, rate_limited]",
            "policy",
            ["retry.on_errors: rate_limited added; network_error removed"],
        ),
        ("    idempotent: true\n", "", "policy", ["idempotent: not there any more, was true"]),
        ("shop.steps:label", "shop.steps:mark", "work", ["config.call: shop.steps:mark, was shop.steps:label"]),
        (
            "    idempotent: true\n",
            '    idempotent: true\n    idempotency: {key: "${params.batch}"}\n',
            "work",
            ["idempotency: {cache_ttl_ms 24 h, key monday}, was not there"],
        ),
        (
            "    idempotent: true\n",
            "    idempotent: true\n    description: Adds labels.\n",
            "notes",
            ["description: Adds labels., was not there"],
        ),
    ],
)
def test_what_differs_is_work_or_policy(old, new, part, lines):
    """U-20: one sentence for each difference, under the part that it belongs to."""
    found = diff(*manifests(old, new))
    (step,) = found.steps
    assert (step.id, step.kind) == ("label", "changed")
    assert {change.part for change in step.changes} == {part}
    assert [change.text for change in step.changes] == lines
    assert [one for one in ("work", "policy", "notes") if found.of(one)] == [part]


def test_steps_that_come_and_go_and_parameters_are_told():
    """U-20: by id."""
    text = FLOW.replace("id: check", "id: proof").replace("[label, check]", "[label, proof]")
    before, after = (compile_text(one).manifest for one in (FLOW, text.replace("monday", "friday")))
    assert before is not None
    assert after is not None
    found = diff(before, after)
    assert [(step.id, step.kind) for step in found.steps] == [
        ("check", "removed"), ("read", "changed"), ("proof", "added"), ("end", "changed"),
    ]  # fmt: skip
    assert found.file == ("the parameter batch (default): friday, was monday",)
    assert found.steps[-1].changes[0].text == "needs: proof added; check removed"


def test_a_manifest_is_compared_with_a_pipeline_file(flow):
    """U-20: as people do before they merge: what is deployed, and what is to be."""
    outlast("compile", "movies.yaml", "--output", "m.json")
    name = changed(flow, "max_attempts: 3", "max_attempts: 4")
    (flow / name).write_text((flow / name).read_text().replace("total_ms: 300000", "total_ms: 360000"))
    done = outlast("diff", "m.json", name)
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "The work differs in no step, the policy in 1 step.",
            "label:",
            "  policy: retry.max_attempts: 4, was 3",
            "  policy: timeout.total_ms: 6 min, was 5 min",
            "  so:     worst case 6 min, was 5 min",
        ],
    )
    assert outlast("diff", "m.json", name, "--check").exit_code == 1
    same = outlast("diff", "m.json", "movies.yaml", "--check")
    assert (same.exit_code, same.stdout) == (0, "They are the same: same work, same policy.\n")
    assert json.loads(outlast("diff", "m.json", name, "--json").stdout)["steps"][0]["changes"][0]["after"] == 4


def test_a_manifest_that_was_changed_is_refused(flow):
    """U-20: its fingerprints do not fit."""
    outlast("compile", "movies.yaml", "--output", "m.json")
    (flow / "m.json").write_text((flow / "m.json").read_text().replace("monday", "friday"))
    done = outlast("diff", "m.json", "movies.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith("m.json: ")
    assert "fingerprints do not fit" in done.stderr


# --- a manifest and the parameters that it was compiled with ---


def test_a_file_is_compared_with_the_parameters_of_the_manifest(flow):
    """U-20: what was given for what is deployed need not be typed again; a value that is given wins."""
    text = FLOW.replace("{type: string, default: monday}", "{type: string}")
    (flow / "open.yaml").write_text(text)
    assert outlast("compile", "open.yaml", "--param", "batch=friday", "--output", "m.json").exit_code == 0
    for files in (("m.json", "open.yaml"), ("open.yaml", "m.json")):
        done = outlast("diff", *files, "--check")
        assert (done.exit_code, done.stdout) == (0, "They are the same: same work, same policy.\n")
        words = "Carried over from m.json, where it was given: batch = 'friday'. --param gives another value.\n"
        assert done.stderr == words
    assert json.loads(outlast("diff", "m.json", "open.yaml", "--json").stdout)["carried"] == {"batch": "friday"}
    other = outlast("diff", "m.json", "open.yaml", "--param", "batch=sunday")
    assert "the parameter batch (given): sunday, was friday" in other.stdout
    assert other.stderr == ""


@table(
    ("how", "old", "new", "told"),
    [
        ([], "default: monday", "default: friday", "the parameter batch (default): friday, was monday"),
        (["--profile", "prod"], "batch: all", "batch: half", "the parameter batch (profile prod): half, was all"),
        (
            ["--profile", "prod"],
            "batch: all",
            "other: x",
            "the parameter batch (default, was profile prod): monday, was all",
        ),
    ],
)
def test_a_default_or_a_profile_that_has_changed_is_told(flow, how, old, new, told):
    """U-20: what would run now is not what ran, so that a check in CI must not pass."""
    text = FLOW.replace(
        "steps:", "  other: {type: string, default: y}\nprofiles: {prod: {params: {batch: all}}}\nsteps:", 1
    )
    (flow / "p.yaml").write_text(text)
    (flow / "q.yaml").write_text(text.replace(old, new))
    outlast("compile", "p.yaml", *how, "--output", "m.json")
    assert outlast("diff", "m.json", "p.yaml", "--check").exit_code == 0
    for more in ([], how):
        done = outlast("diff", "m.json", "q.yaml", "--check", *more)
        assert (done.exit_code, done.stderr) == (1, "")
        assert done.stdout.splitlines()[0] == "The work differs in 1 step, the policy in no step."
        assert f"  {told}" in done.stdout.splitlines()


def test_a_value_that_was_given_is_carried_over_whatever_the_default_is_now(flow, monkeypatch):
    """U-20, C-26: by hand or by the environment; what is given now, in either way, wins."""
    (flow / "q.yaml").write_text(FLOW.replace("default: monday", "default: sunday"))
    outlast("compile", "movies.yaml", "--param", "batch=friday", "--output", "m.json")
    assert outlast("diff", "m.json", "q.yaml", "--check").exit_code == 0
    monkeypatch.setenv("OUTLAST_PARAM_BATCH", "friday")
    outlast("compile", "movies.yaml", "--output", "e.json")
    assert json.loads((flow / "e.json").read_text())["params_from"] == {"batch": "environment"}
    assert outlast("diff", "e.json", "m.json", "--check").exit_code == 0  # where it came from changes nothing
    monkeypatch.delenv("OUTLAST_PARAM_BATCH")
    assert outlast("diff", "e.json", "q.yaml", "--check").exit_code == 0
    monkeypatch.setenv("OUTLAST_PARAM_BATCH", "today")
    done = outlast("diff", "m.json", "q.yaml", "--check")
    assert (done.exit_code, done.stderr) == (1, "")
    assert "the parameter batch (environment, was given): today, was friday" in done.stdout


def test_another_profile_than_that_of_the_manifest_is_compared_as_it_would_run(flow):
    """U-20: with its values, where the manifest has defaults."""
    (flow / "p.yaml").write_text(FLOW.replace("steps:", "profiles: {prod: {params: {batch: all}}}\nsteps:", 1))
    outlast("compile", "p.yaml", "--output", "m.json")
    lines = outlast("diff", "m.json", "p.yaml", "--profile", "prod").stdout.splitlines()
    assert lines[:3] == [
        "The work differs in 1 step, the policy in no step.",
        "  the parameter batch (profile prod, was default): all, was monday",
        "  the profile is prod, was none",
    ]


def test_a_manifest_that_does_not_say_where_values_come_from_is_told_of(flow):
    """U-20: nothing is hidden: the file is taken with its own values, and what it has none for is carried over."""
    text = FLOW.replace("steps:", "  day: {type: string}\nsteps:", 1)
    (flow / "p.yaml").write_text(text)
    outlast("compile", "p.yaml", "--param", "day=one", "--param", "batch=friday", "--output", "m.json")
    old = replace(Manifest.from_json((flow / "m.json").read_text()), params_from={})
    assert "params_from" not in old.as_data()
    (flow / "old.json").write_text(old.to_json())
    done = outlast("diff", "old.json", "p.yaml", "--check")
    assert done.exit_code == 1
    assert "the parameter batch (default): monday, was friday" in done.stdout
    first, second = done.stderr.splitlines()
    assert first.startswith("old.json does not say where its parameters come from")
    assert second.startswith("Carried over from old.json, where it was given: day = 'one'.")


def test_a_given_value_that_the_file_takes_no_more_is_told(flow):
    """U-20: it is not carried over, and that is said."""
    outlast("compile", "movies.yaml", "--param", "batch=friday", "--output", "m.json")
    name = changed(flow, "default: monday", "default: monday, enum: [monday]")
    done = outlast("diff", "m.json", name, "--check")
    assert (done.exit_code, "because other.yaml does not take it any more: batch." in done.stderr) == (1, True)


LONG = "select id, amount, currency, day from orders where day = 'x' and region = 'eu' order by id"


@table(
    ("old", "new", "shown"),
    [
        (LONG, f"{LONG} desc", "…region = 'eu' order by id desc, was …region = 'eu' order by id"),
        (LONG, LONG.replace("region =", "region <>"), "<> 'eu' order by id, was "),
        ([LONG, "a"], [f"{LONG} desc", "a"], "id desc added; "),
        ({"q": LONG}, {"q": f"{LONG} desc"}, "order by id desc, was "),
        ("a b", "a  b", '"a  b", was "a b"'),
        (10**20, 10**20 + 1, "100000000000000000001, was 100000000000000000000"),
    ],
)
def test_what_differs_is_shown_wherever_it_stands(old, new, shown):
    """U-20: two texts that differ behind the sixtieth character, or in spaces only, are not told as two equal ones."""
    texts = (json.dumps(one) for one in (old, new))
    before, after = (
        compile_text(FLOW.replace('{call: "shop.steps:check"}', f'{{call: "a:b", args: {{x: {one}}}}}')).manifest
        for one in texts
    )
    assert before is not None
    assert after is not None
    (change,) = diff(before, after).steps[0].changes
    assert shown in change.text
    assert len(change.text) < 180


def test_what_a_diff_says_of_the_file_itself_is_masked():
    """S0-43: a manifest that another program has made may have a credential in its notes or its name."""
    before, _ = manifests("max_attempts: 3", "max_attempts: 4")
    login = "postgres://ann:hunter2-walnut@db.example/shop"
    after = replace(
        before, name=f"movies {login}", notes={"description": f"see {login}", "x-old": {"password": "hunter2-walnut"}}
    )
    for one, other in ((before, after), (after, before)):
        told = diff(one, other).file
        assert len(told) == 3
        assert "hunter2" not in str(told)


def test_attempts_that_lack_time_since_a_change_are_told():
    """U-20: what R03 warns of, where it is new (S0-29)."""
    before, after = manifests("max_attempts: 3", "max_attempts: 5")
    (step,) = diff(before, after).steps
    assert step.consequences == ("attempt 5 may not have its full time before the total is up",)
    assert diff(after, before).steps[0].consequences == ()


def test_needs_in_another_order_are_the_same_work():
    """U-20: all of them must have succeeded before, in whichever order they are named."""
    before, after = manifests("[label, check]", "[check, label]")
    assert diff(before, after).same
    assert before.fingerprint == after.fingerprint


@table(
    ("one", "other"),
    [
        ("on_errors: [timeout, 503]", 'on_errors: ["503", timeout]'),
        ("on_errors: [timeout, 503]", "on_errors: [503, timeout, 503, timeout]"),
        ("on_errors: [KeyError, 5xx]", "on_errors: [5XX, builtins.KeyError]"),
        ("on_errors: [OSError, ECONNRESET]", "on_errors: [econnreset, socket.error, IOError]"),
        ("on_errors: [shop.A, shop.B]", "on_errors: [shop.B, shop.A]"),
        ("on_errors: [timeout, 404]", "retryable_exceptions: [timeout], retryable_http_status_codes: [404]"),
        ("skip_on_errors: [ValueError, 429]", 'skip_on_errors: ["429", builtins.ValueError]'),
        ("retry_limits: {network: 2, database: 1}", "retry_limits: {database: 1, network: 2}"),
    ],
)
def test_lists_of_errors_in_another_order_or_spelling_are_the_same_policy(one, other):
    """U-20: which of them is named first, how often and how means nothing, so no byte of a manifest tells."""
    step = "  - {id: a, component: files.reader, config: {path: a.csv}, retry: {max_attempts: 3, LISTS}}\n"
    head = 'oml_version: "0.1.0"\nname: m\nsteps:\n'
    first, second = (compile_text(head + step.replace("LISTS", lists)).manifest for lists in (one, other))
    assert first is not None
    assert first == second
    assert first.to_json() == second.to_json()
    changed = compile_text(head + step.replace("LISTS", "on_errors: [504]")).manifest
    assert changed.fingerprint != first.fingerprint


def test_parameters_that_a_file_takes_no_more_are_told_as_changes(flow):
    """U-20: one that is gone, and one of another type; a file that is wrong says so as ever."""
    outlast("compile", "movies.yaml", "--output", "m.json")
    for new, words in (("other: {type: string, default: x}", "the parameter batch: not there any more, was monday"),
                       ("batch: {type: integer, default: 3}", "the parameter batch (default): 3, was monday")):  # fmt: skip
        name = changed(flow, "batch: {type: string, default: monday}", new)
        (flow / name).write_text((flow / name).read_text().replace("in/${params.batch}.jsonl", "in/x.jsonl"))
        assert words in outlast("diff", "m.json", name).stdout
    (flow / "broken.yaml").write_text(FLOW.replace("component: files.reader", "component: files.raeder"))
    broken = outlast("diff", "m.json", "broken.yaml")
    assert (broken.exit_code, "did you mean 'files.reader'?" in broken.stderr) == (2, True)


def test_a_file_is_compared_with_the_profile_of_the_manifest(flow):
    """U-20: unless the file has it no more."""
    profiles = "profiles: {prod: {params: {batch: all}}}\nsteps:"
    (flow / "p.yaml").write_text(FLOW.replace("steps:", profiles, 1))
    outlast("compile", "p.yaml", "--profile", "prod", "--output", "m.json")
    assert outlast("diff", "m.json", "p.yaml", "--check").exit_code == 0
    assert "the profile is none, was prod" in outlast("diff", "m.json", "movies.yaml").stdout


def test_a_component_that_cannot_be_loaded_is_told_of_by_schema(flow, monkeypatch):
    """D-26: it is in the schema by its name, and why no more is known of it is said."""

    def find(name):
        if name == "http.caller":
            raise ConfigurationError("the component cannot be loaded: no such module.")
        return find_component(name)

    monkeypatch.setattr("outlast.spec.schema.find_component", find)
    done = outlast("schema")
    assert done.exit_code == 0
    assert "http.caller" in json.loads(done.stdout)["$defs"]["step"]["properties"]["component"]["enum"]
    assert done.stderr == (
        "http.caller is in the schema by its name only: the component cannot be loaded: no such module.\n"
    )
