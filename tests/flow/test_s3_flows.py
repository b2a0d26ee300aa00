"""Objects of S3 in a declared pipeline: compiled, run through connections that break, resumed and undone."""

from __future__ import annotations

import importlib
import json

import pytest

from components.steps.answers import Slow
from outlast.report.flows import _masked_outputs
from outlast.report.views import Views
from outlast.testing import FaultProxy
from servers.s3 import S3

LABELS = """\
name: labels
params: {day: {type: string, default: monday}}
steps:
  - id: read
    component: s3.reader
    config: {connection: "@s3.reports", key: "in/${params.day}.jsonl", extensions: [.jsonl]}
    retry: {max_attempts: 3, initial_delay_ms: 1, jitter: 0}
    timeout: {step_ms: 4000}
  - id: write
    component: s3.writer
    config: {connection: "@s3.reports", key: "out/${params.day}.json", body: "${steps.read.outputs.body}", overwrite: false}
    retry: {max_attempts: 3, initial_delay_ms: 1, jitter: 0}
    timeout: {step_ms: 4000}
    compensate:
      component: s3.deleter
      config:
        connection: "@s3.reports"
        key: "${steps.write.outputs.key}"
        etag: "${steps.write.outputs.etag}"
        written: "${steps.write.outputs.written}"
  - id: check
    component: python
    config: {call: "MODULE:check", args: {size: "${steps.write.outputs.size}"}}
"""
CHECK = """\
import pathlib

def check(size):
    if (pathlib.Path(__file__).parent / "broken").exists():
        raise ValueError("not today")
    return {"size": size}
"""


@pytest.fixture(scope="module")
def s3():
    with S3() as server:
        yield server


@pytest.fixture
def proxy(s3):
    with FaultProxy(("127.0.0.1", s3.port)) as running:
        yield running


@pytest.fixture
def flow(project, s3, proxy, monkeypatch):
    """The pipeline, which reaches the store through the proxy."""
    monkeypatch.setenv("OBJECTS_SECRET", s3.secret_key)
    fields = {
        "bucket": "bucket",
        "endpoint_url": f"http://127.0.0.1:{proxy.port}",
        "access_key_id": s3.access_key,
        "secret_access_key": "${OBJECTS_SECRET}",
    }
    (project.root / "connections.yaml").write_text(json.dumps({"connections": {"s3": {"reports": fields}}}))
    project.functions(CHECK)
    return project.load(LABELS)


def story(result):
    """Each step, how it ended, and the class of the error of each attempt."""
    return [(step.id, step.status, [attempt.error_class for attempt in step.attempts]) for step in result.steps]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("reset_before", ["connection_reset", "connection_reset"]),
        ("reset_after", ["connection_reset", "connection_reset"]),
        ("half_close", ["network_error", "network_error"]),
        ("garbage", ["connection_reset", "connection_reset"]),
        ("stall", ["timeout", "timeout"]),
    ],
)
def test_a_flow_outlasts_what_happens_to_its_connections(flow, s3, proxy, sqlite_app, kind, told, project):
    """S1-01, S1-09: one attempt more for each fault, and what is written is written once and whole."""
    s3.put("in/monday.jsonl", b'{"id":1}\n{"id":2}\n')
    proxy.fault(kind, when=b"GET /bucket/in/monday.jsonl")
    proxy.fault(kind, when=b"PUT /bucket/out/")
    text = LABELS.replace("out/${params.day}.json", f"out/{kind}.json")
    result = project.load(text).run(run_key=f"day-{kind}", app=sqlite_app)
    assert result.status == "completed"
    assert story(result) == [
        ("read", "succeeded", [told[0], None]),
        ("write", "succeeded", [told[1], None]),
        ("check", "succeeded", [None]),
    ]
    assert (proxy.struck, s3.get(f"out/{kind}.json")) == ([kind, kind], b'[{"id":1},{"id":2}]')


def test_each_attempt_at_a_store_that_drips_ends_in_its_time(project, flow, sqlite_app):
    """S1-09: so the policy makes all of them; none is left that still runs."""
    text = LABELS.replace("step_ms: 4000", "step_ms: 1500")
    with Slow(b"HTTP/1.1 200 OK\r\nx: ") as server:
        written = (project.root / "connections.yaml").read_text()
        fields = json.loads(written)
        fields["connections"]["s3"]["reports"]["endpoint_url"] = server.url
        (project.root / "connections.yaml").write_text(json.dumps(fields))
        result = project.load(text).run(run_key="dripping", app=sqlite_app, check=False)
    assert (result.status, len(server.taken) <= 3) == ("failed", True)
    assert story(result)[0] == ("read", "failed", ["timeout", "timeout", "timeout"])


def test_what_is_not_there_fails_the_flow_at_once(project, flow, sqlite_app):
    """S1-13, S1-17: a missing object costs one attempt, whatever the policy allows."""
    gone = project.load(LABELS.replace("default: monday", "default: never"))
    result = gone.run(run_key="never", app=sqlite_app, check=False)
    assert (result.status, story(result)[0]) == ("failed", ("read", "failed", ["missing_input"]))


def test_what_was_written_is_undone_and_written_again(project, flow, s3, sqlite_app):
    """C-21, D-17: a later step fails for good, the object goes; the run goes on, and the object is there again."""
    s3.put("in/monday.jsonl", b'{"id":1}\n')
    changed = project.load(LABELS.replace("out/${params.day}.json", "undone/${params.day}.json"))
    (project.root / "broken").touch()
    failed = changed.run(run_key="undone", app=sqlite_app, check=False)
    assert (failed.status, failed["write"].status, s3.get("undone/monday.json")) == ("failed", "compensated", None)
    (project.root / "broken").unlink()
    result = changed.run(run_key="undone", app=sqlite_app)
    assert (result.status, s3.get("undone/monday.json")) == ("completed", b'[{"id":1}]')
    assert len(result["read"].attempts) == 1  # on record: not read again


def test_what_another_run_has_written_is_not_undone(project, flow, s3, sqlite_app):
    """C-21: the same bytes were there already, so this run has written nothing that it could undo."""
    s3.put("in/monday.jsonl", b'{"id":1}\n')
    changed = project.load(LABELS.replace("out/${params.day}.json", "shared/${params.day}.json"))
    changed.run(run_key="first", app=sqlite_app)
    (project.root / "broken").touch()
    second = changed.run(run_key="second", app=sqlite_app, check=False)
    (project.root / "broken").unlink()
    assert (second.status, second["write"].status, s3.get("shared/monday.json")) == (
        "failed",
        "compensated",
        b'[{"id":1}]',
    )


ROUNDS = """\
name: rounds
steps:
  - id: write
    component: s3.writer
    config: {connection: "@s3.reports", key: "KEY", body: "hello", overwrite: false}
    timeout: {step_ms: 4000}
    compensate:
      component: s3.deleter
      config:
        connection: "@s3.reports"
        key: "${steps.write.outputs.key}"
        etag: "${steps.write.outputs.etag}"
        written: "${steps.write.outputs.written}"
  - id: check
    component: python
    depends_on: [write]
    config: {call: "MODULE:check", args: {size: 1}}
"""
EACH = "    for_each: {items: [{id: 1}, {id: 2}], key: id, concurrency: 1}\n"
KEYED = '    idempotency: {key: "${item.id}"}\n'


@pytest.mark.parametrize(("name", "more", "puts"), [("one", "", 1), ("rows", EACH, 2), ("keyed", EACH + KEYED, 2)])
def test_what_an_earlier_round_has_written_is_undone(project, flow, s3, proxy, sqlite_app, name, more, puts):
    """C-21: the answer of the store was lost and the step had failed; run again it finds its own object, which goes with the undoing."""
    text, keys = ROUNDS.replace("KEY", f"rounds/{name}.txt"), [f"rounds/{name}.txt"]
    if more:
        text = text.replace(f"{name}.txt", f"{name}-${{item.id}}.txt").replace("    timeout:", f"{more}    timeout:", 1)
        keys = [f"rounds/{name}-{row}.txt" for row in (1, 2)]
    for _ in range(puts):
        proxy.fault("reset_after", when=b"PUT /bucket/rounds/")
    rounds = project.load(text)
    first = rounds.run(run_key=name, app=sqlite_app, check=False)
    assert (first.status, first["write"].status, [s3.get(key) for key in keys]) == (
        "failed",
        "failed",
        [b"hello"] * puts,
    )
    (project.root / "broken").touch()
    second = rounds.run(run_key=name, app=sqlite_app, check=False)
    assert (second.status, second["write"].status, [s3.get(key) for key in keys]) == (
        "failed",
        "compensated",
        [None] * puts,
    )


MEANWHILE = """\
meanwhile = []

def check(size):
    if meanwhile:
        meanwhile.pop()()
        raise ValueError("not today")
"""


def test_the_same_bytes_that_another_run_has_written_since_stay(project, flow, s3, sqlite_app, monkeypatch, caplog):
    """C-21: the etag is that of the bytes; whose object it is says what is noted with it, and the undoing fails."""
    project.functions(MEANWHILE)
    text = ROUNDS.replace("KEY", "since.txt").replace("overwrite: false", "metadata: {by: WHO}")
    flows = {who: project.load(text.replace("WHO", who)) for who in ("ann", "bob")}
    results = []
    monkeypatch.syspath_prepend(project.root)
    module = importlib.import_module(project.module)
    module.meanwhile.append(lambda: results.append(flows["bob"].run(run_key="bob", app=sqlite_app)))
    failed = flows["ann"].run(run_key="ann", app=sqlite_app, check=False)
    assert [one.status for one in results] == ["completed"]
    assert (failed.status, failed["write"].status, s3.get("since.txt")) == ("failed", "compensation_failed", b"hello")
    assert "got: the same bytes from another run, which is left alone" in caplog.text


def test_the_secret_of_a_store_is_nowhere(flow, s3, tmp_path, sqlite_app, project):
    """Neither in the manifest nor in the store."""
    s3.put("in/monday.jsonl", b'{"id":1}\n')
    hidden = project.load(LABELS.replace("out/${params.day}.json", "hidden/${params.day}.json"))
    hidden.run(run_key="hidden", app=sqlite_app)
    assert s3.secret_key not in hidden.manifest.to_json()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("outlast.db*"))
    assert (b"hidden/monday.json" in stored, s3.secret_key.encode() in stored) == (True, False)


EACH = """\
name: objects
steps:
  - id: one
    component: s3.writer
    config: {connection: "@s3.reports", key: "shown/one.json", body: {id: 1}, format: json}
  - id: each
    component: s3.writer
    for_each: {items: [{id: 1}, {id: 2}], key: id}
    config: {connection: "@s3.reports", key: "shown/${item.id}.json", body: "${item}", format: json}
  - id: own
    component: python
    config: {call: "MODULE:told"}
"""


def test_where_an_object_was_written_is_shown_and_a_secret_is_not(project, flow, sqlite_app):
    """The key and the checksum of an object are no secrets; what a function calls its key may be one."""
    project.functions("def told():\n    return {'key': 'only-here-4711-and-long', 'sha256': 'ab' * 32}\n")
    result = project.load(EACH).run(run_key="shown", app=sqlite_app)
    views = Views(sqlite_app.store)
    one, each, own = (found["outputs"] for found in views.flows.outputs(views.run("shown")))
    assert (one["key"], one["sha256"]) == ("shown/one.json", result["one"].outputs["sha256"])
    assert [row["outputs"]["key"] for row in each["rows"]] == ["shown/1.json", "shown/2.json"]
    assert all(row["outputs"]["sha256"] != "***" for row in each["rows"])
    assert own == {"key": "***", "sha256": "***"}
    assert _masked_outputs("mine.minter", {"key": "only-here-4711-and-long"}) == {"key": "***"}  # whatever it declares
