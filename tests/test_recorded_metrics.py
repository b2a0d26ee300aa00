"""`outlast metrics`: what a store has on record, as Prometheus reads it, always as it is now."""

from __future__ import annotations

import json
import sqlite3

import pytest
from prometheus_client.parser import text_string_to_metric_families

import outlast
from job_hands import Hands
from job_rows import end
from outlast.breaker.shared import by_hand
from outlast.observe.exposition import exposition
from outlast.observe.metrics import METRICS, MOST, OTHER, RETRIES, Samples
from outlast.report.metrics import EXPOSED, metrics_text
from outlast.report.views import Views
from outlast.store import open_store
from outlast.testing import virtual_time
from shells import Shell
from stores import letter, prepared

QUICK = outlast.RetryPolicy(max_attempts=3, initial_delay=0.01, jitter=0)


@pytest.fixture(scope="session")
def database(postgres_server):
    """A database for all tests here, each with an app of its own."""
    return postgres_server.database("recorded")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    address = prepared(tmp_path / "outlast.db")
    if request.param == "postgres":
        address = request.getfixturevalue("database").dsn
    made = outlast.App(f"metrics {tmp_path.name}", store=address)
    yield made
    made.store.close()


def read(text):
    """The page as the official parser has it: the value of each series, by name and the values of its labels without the app."""
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "app")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exposed(app):
    return read(metrics_text(app.store, Views(app.store)))


def test_what_is_on_record_is_on_the_page(app):
    """S2-25, S4-23, S1-22, S1-23, U-22: items, jobs, letters, retries by tier and step, breakers and figures of jobs; each exactly."""

    @outlast.stage(guard=outlast.Guard("load", retry=QUICK))
    def load(number: int) -> int:
        if number == 9:
            raise ConnectionResetError("reset")
        if number % 2 and outlast.current().attempt == 1:
            raise TimeoutError("slow")
        return number

    @app.job(retry=QUICK)
    def send(number: int) -> int:
        return number

    with virtual_time():
        outlast.Pipeline("numbers", load, app=app, failure_budget=1.0).run(range(10), check=False)
    for number in range(4):
        send.enqueue(number)
    hands = Hands(app)
    first, second, *rest = hands.take()
    hands.finish(
        end(first, "ready", "failed", error_class="database_error", error_type="OperationalError", error="locked")
    )
    hands.finish(
        end(second, "failed", error_class="invalid_output", error_type="V", error="no", stop_reason="permanent")
    )
    hands.finish(*(end(job) for job in rest))
    hands.succeed()
    app.store.save_state("watched_breaker", "gone", {"state": "open", "failure_count": 5}, expect=0)
    app.store.change_state("breaker", "api", lambda document, now: (by_hand(document, now, "maintenance"), None))
    found = exposed(app)
    mean = found.pop(("outlast_job_success_seconds_mean", "send", "default"))
    assert 0 <= mean < 600
    parts = [
        found.pop((f"outlast_job_{part}_seconds_mean", "send", "default")) for part in ("delay", "backoff", "wait")
    ]
    assert parts[0] == 0
    assert 0 <= parts[1] + parts[2] <= mean + 1e-6
    assert found == {
        ("pipeline_database_retry_rate", "", "send"): 0.25,
        ("pipeline_network_exhausted",): 1,
        ("pipeline_retry_attempts_total", "network", "load"): 4 + 2,
        ("pipeline_retry_success_total", "network", "load"): 4,
        ("pipeline_retry_exhausted_total", "network", "load"): 1,
        ("pipeline_retry_attempts_total", "database", "send"): 1,
        ("pipeline_retry_success_total", "database", "send"): 1,
        ("pipeline_retry_exhausted_total", "database", "send"): 0,
        ("outlast_runs_on_record", "numbers", "partial_success"): 1,
        ("outlast_items_on_record", "numbers", "succeeded"): 9,
        ("outlast_items_on_record", "numbers", "skipped"): 0,
        ("outlast_items_on_record", "numbers", "dlq"): 1,
        ("outlast_items_on_record", "numbers", "failed"): 0,
        ("outlast_items_on_record", "numbers", "pending"): 0,
        ("outlast_jobs_on_record", "send", "default", "succeeded"): 3,
        ("outlast_jobs_on_record", "send", "default", "failed"): 1,
        ("outlast_jobs_undoing", "pending"): 0,
        ("outlast_jobs_undoing", "running"): 0,
        ("outlast_jobs_undoing", "failed"): 0,
        ("outlast_dead_letters", "numbers", "open"): 1,
        ("outlast_dead_letters_open", "numbers"): 1,
        ("outlast_jobs_ended", "send", "default", "succeeded"): 3,
        ("outlast_jobs_ended", "send", "default", "failed"): 1,
        ("outlast_jobs_ended", "send", "default", "cancelled"): 0,
        ("outlast_job_retry_rate", "send", "default"): 0.25,
        ("outlast_job_failure_rate", "send", "default"): 0.25,
        ("outlast_job_schema_failure_share", "send", "default"): 1,
        ("outlast_job_artifacts", "send", "default"): 0,
        ("outlast_job_retry_amplification", "send", "default"): 1.25,
        ("outlast_workers_alive",): 1,
        ("outlast_breaker_state", "api", "closed"): 0,
        ("outlast_breaker_state", "api", "half_open"): 0,
        ("outlast_breaker_state", "api", "open"): 1,
    }


def test_the_size_of_the_queue_is_always_what_it_is(app):
    """S4-23, S4-24, U-22: 0 before there was a letter, then as many as are open, and 0 again when all are resolved; never a series of before."""

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def label(number: int) -> int:
        raise ValueError("odd")

    def size():
        return {names[1:]: value for names, value in exposed(app).items() if names[0] == "outlast_dead_letters_open"}

    assert size() == {("",): 0}
    outlast.Pipeline("reviews", label, app=app, failure_budget=1.0).run([1, 2, 3], check=False)
    assert size() == {("reviews",): 3}
    app.dead_letters.archive(pipeline="reviews", reason="known")
    assert size() == {("reviews",): 0}


def test_labels_stay_few_and_any_name_leaves_the_page_readable():
    """U-22: a thousand values of a label, the rest added up as other; quotes, line ends and backslashes are escaped."""
    samples = Samples()
    names = [f"step {number}" for number in range(MOST - 1)] + ['a "b" \\ c\n# d', "one more", "and another"]
    text = exposition((RETRIES,), [samples.one(RETRIES, "network", name, value=1) for name in names])
    found = read(text)
    assert len(found) == MOST + 1
    assert found["pipeline_retry_attempts_total", "network", OTHER] == 2
    assert found["pipeline_retry_attempts_total", "network", 'a "b" \\ c\n# d'] == 1
    assert exposition((RETRIES,), []) == ""


def test_the_two_rates_of_the_seed_are_metrics(app):
    """S2-26, S2-27, D-41: the share of a step that had database retries, and how often steps gave up on network errors in the last hour."""

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0.01, jitter=0))
    def load(number: int) -> int:
        if number < 3 and outlast.current().attempt == 1:
            raise sqlite3.OperationalError("is locked")
        if number == 9:
            raise ConnectionResetError("reset")
        return number

    rate_name = "pipeline_database_retry_rate"

    def rates():
        return {
            names: value
            for names, value in exposed(app).items()
            if names[0] in {rate_name, "pipeline_network_exhausted"}
        }

    assert rates() == {("pipeline_network_exhausted",): 0}
    outlast.Pipeline("numbers", load, app=app, failure_budget=1.0).run(range(10), check=False)
    assert rates() == {(rate_name, "numbers", "load"): 0.3, ("pipeline_network_exhausted",): 1}


def test_a_name_that_a_terminal_obeys_is_spelt_out(tmp_path):
    """U-22: names of imported dead letters may hold control sequences and bidi overrides; two such names stay two."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        for name in ("\x1b[2Jgone\r", "\x9b2Jgone\t", "txt.\u202egpj"):
            store.add_letters([letter(pipeline=name)])
    done = shell(f"metrics --store {address}")
    assert done.returncode == 0
    assert all(sign.isprintable() for sign in done.stdout.replace("\n", ""))
    names = {names[1] for names in read(done.stdout) if names[0] == "outlast_dead_letters_open"}
    assert names == {r"\u001b[2Jgone\r", r"\u009b2Jgone\t", r"txt.\u202egpj"}
    document = shell(f"metrics --json --store {address}").stdout
    assert all(sign.isprintable() for sign in document.replace("\n", ""))


def test_metrics_of_one_name_have_the_same_labels_in_both_places():
    """U-22, S2-25: what the command and a process both say is called alike."""
    kept = {metric.name: metric.labels for metric in METRICS}
    both = [metric for metric in EXPOSED if metric.name in kept]
    assert {metric.name for metric in both} > {
        "pipeline_retry_attempts_total",
        "pipeline_retry_success_total",
        "pipeline_retry_exhausted_total",
        "outlast_dead_letters_open",
        "outlast_breaker_state",
    }
    assert all(kept[metric.name] == metric.labels for metric in both)


def test_the_command_prints_the_page(tmp_path):
    """U-22: as text and as JSON; a store that is not there is a mistake."""
    shell = Shell(tmp_path, {})
    address = prepared(tmp_path / "s.db")
    done = shell(f"metrics --store {address}")
    assert (done.returncode, done.stderr) == (0, "")
    undoing = {("outlast_jobs_undoing", state): 0 for state in ("pending", "running", "failed")}
    empty = {("outlast_dead_letters_open", ""): 0, ("outlast_workers_alive",): 0, ("pipeline_network_exhausted",): 0}
    assert read(done.stdout) == undoing | empty
    assert json.loads(shell(f"metrics --store {address} --json").stdout) == [
        *({"name": name, "labels": {"app": "default", "state": state}, "value": 0} for name, state in undoing),
        {"name": "pipeline_network_exhausted", "labels": {"app": "default"}, "value": 0},
        {"name": "outlast_workers_alive", "labels": {"app": "default"}, "value": 0},
        {"name": "outlast_dead_letters_open", "labels": {"app": "default", "pipeline": ""}, "value": 0},
    ]
    assert shell("metrics --store nowhere.db").returncode == 2
