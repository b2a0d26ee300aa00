"""Models in flows: `llm.caller` in a direct run, over rows and in a job, with what it spends and keeps on record."""

from __future__ import annotations

import importlib
import json
import logging

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli import app as command_line
from outlast.observe.figures import figures_of
from outlast.report.flows import flow_report
from outlast.testing import FaultProxy, capture_events, virtual_time
from servers.model import Fault, ModelServer, Said

# Loading the SDK takes seconds: only the processes that run these tests do it.
pytestmark = pytest.mark.xdist_group("model apis")

SECRET = "sk-hunter2-hunter2-hunter2"
SCHEMA = "{type: object, required: [stars], properties: {stars: {type: integer}}}"
ASK = """\
name: reviews
steps:
  - id: ask
    component: llm.caller
    config:
      connection: "@llm.main"
      prompt: "How many stars?"
      response: json
      schema: SCHEMA
    retry: {max_attempts: 4, initial_delay_ms: 1000, jitter: 0}
    ISOLATION
"""
THEN = """\
  - id: use
    component: python
    config: {call: "MODULE:use", args: {stars: "${steps.ask.outputs.json}"}}
    idempotent: true
"""
FUNCTIONS = """\
broken = [False, True]
def use(stars):
    if broken.pop():
        raise ValueError("not now")
    return {"stars": stars}
"""
ROWS = """\
name: reviews
steps:
  - id: read
    component: files.reader
    config: {path: in.jsonl}
  - id: ask
    component: llm.caller
    for_each: {items: "${steps.read.outputs.rows}", key: id, concurrency: 1}
    config:
      connection: "@llm.main"
      prompt: "How many stars for ${item.text}?"
      response: json
      schema: SCHEMA
      ask_again: true
    retry: {max_attempts: 3, initial_delay_ms: 1000, jitter: 0}
"""


@pytest.fixture
def server():
    with ModelServer(otherwise='{"stars": 5}') as made:
        yield made


@pytest.fixture
def reviews(project, server, monkeypatch):
    """A project with a connection to the model."""
    importlib.import_module("outlast.components.steps.doing.llm")  # which takes a while, and not that of an attempt
    monkeypatch.setenv("MODEL_KEY", SECRET)
    fields = {
        "base_url": server.url,
        "api_key": "${MODEL_KEY}",
        "model": "small",
        "allow_private": True,
        "prices": {"input": 2, "output": 10},
    }
    (project.root / "connections.yaml").write_text(json.dumps({"connections": {"llm": {"main": fields}}}))
    project.functions(FUNCTIONS)
    plain = project.load
    project.load = lambda text, isolation="": plain(text.replace("SCHEMA", SCHEMA).replace("ISOLATION", isolation))
    return project


def shell(app, *arguments):
    """What a command prints about the store of this app."""
    done = CliRunner().invoke(
        command_line, [*arguments, "--app", app.name], env={"OUTLAST_STORE": app.store_url, "COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    return done.output


def kept_of(app, run_key="a"):
    """What the attempts at the steps of a run have kept, by name and attempt."""
    number = app.store.find_run("reviews", run_key).number
    return {
        (name, attempt): app.store.kept_data(number, name, attempt).decode()
        for name, attempt, *_ in app.store.kept_of_run(number)
    }


def test_a_model_is_asked_until_it_answers_and_never_again_after_that(app, reviews, server):
    """S1-01, S1-08: Retry-After is heeded, each attempt is one call, and what is done is not paid again on resume."""
    server.script(Fault(429, "rate_limit_exceeded", retry_after="7"), Fault(then="cut"))
    flow = reviews.load(ASK + THEN)
    with virtual_time() as time, pytest.raises(outlast.FlowFailed, match="not now"):
        flow.run(run_key="a", app=app)
    assert (time.now, len(server.asked)) == (8 + 2, 3)
    result = flow.run(run_key="a", app=app)
    assert (result.status, result["use"].outputs["stars"], len(server.asked)) == ("completed", {"stars": 5}, 3)
    outputs = result["ask"].outputs
    assert {name: outputs[name] for name in ("json", "tokens_in", "tokens_out", "cost_usd", "calls")} == {
        "json": {"stars": 5},
        "tokens_in": 10,
        "tokens_out": 5,
        "cost_usd": 7e-05,
        "calls": 1,
    }
    record = app.store.find_run("reviews", "a")
    told = [(row.step, row.outcome, row.error_class, row.spent) for row in app.store.step_attempts(record.number)]
    assert told == [
        ("ask", "failed", "rate_limited", None),
        ("ask", "failed", "connection_reset", None),
        ("ask", "succeeded", None, {"tokens": 15.0, "usd": 7e-05}),
        ("use", "failed", "data_error", None),
        ("use", "succeeded", None, None),
    ]
    assert record.spent == {"tokens": 15.0, "usd": 7e-05}
    assert [one.headers["idempotency-key"] for one in server.asked] == [server.asked[0].headers["idempotency-key"]] * 3


def test_a_call_that_stalls_ends_with_the_time_of_its_step(sqlite_app, reviews, server):
    """S1-08: a timeout is tried again, by the step and by nobody else; the question had arrived, and is asked twice."""
    with FaultProxy(("127.0.0.1", server.port)) as proxy:
        path = reviews.root / "connections.yaml"
        path.write_text(path.read_text().replace(str(server.port), str(proxy.port)))
        proxy.fault("stall", when=b"POST ")
        flow = reviews.load(ASK, "timeout: {step: 2s}")
        result = flow.run(run_key="a", app=sqlite_app, check=False)
    told = [
        (row.error_class, row.stop_reason, row.spent is not None)
        for row in sqlite_app.store.step_attempts(sqlite_app.store.find_run("reviews", "a").number)
    ]
    assert (result.status, told) == ("completed", [("timeout", None, False), (None, None, True)]), result.why
    assert (len(server.asked), proxy.struck) == (2, ["stall"])


def test_output_that_does_not_fit_fails_for_good_and_is_kept_for_people_alone(app, reviews, server, caplog):
    """S1-11, S1-12, S1-23, U-11: one call, paid; the raw answer is an artifact and in no message, event, log or record."""
    raw = '{"stars": "hunter2"}'
    server.script(raw)
    with caplog.at_level(logging.DEBUG), capture_events() as events, pytest.raises(outlast.FlowFailed) as failed:
        reviews.load(ASK).run(run_key="a", app=app)
    assert len(server.asked) == 1
    (attempt,) = app.store.step_attempts(app.store.find_run("reviews", "a").number)
    assert (attempt.error_class, attempt.stop_reason, attempt.spent) == (
        "invalid_output",
        "permanent",
        {"tokens": 15.0, "usd": 7e-05},
    )
    assert kept_of(app) == {("ask answer", 1): raw}
    told = [(one.step_id, one.component, one.artifact, one.size) for one in events if one.name == "step_artifact_kept"]
    assert told == [("ask", "llm.caller", "answer", len(raw))]
    (letter,) = app.dead_letters.find()
    everywhere = [str(failed.value), repr(events), repr(letter), repr(app.store.events()), caplog.text]
    assert [text.count("hunter2") for text in everywhere] == [0] * len(everywhere)


def test_a_shell_shows_what_was_spent_and_kept(sqlite_app, reviews, server):
    """S1-23, U-11: the bill of the run and the names of what it kept; the raw answer only for who asks for it."""
    server.script("five stars, I'd say")
    with pytest.raises(outlast.FlowFailed):
        reviews.load(ASK).run(run_key="a", app=sqlite_app)
    shown = shell(sqlite_app, "runs", "show", "a")
    assert "spent 15 tokens, 7e-05 usd" in shown
    assert "ask answer" in shown
    assert "five stars" not in shown
    facts = json.loads(shell(sqlite_app, "runs", "show", "a", "--json"))
    assert (facts["spent"], [one["name"] for one in facts["artifacts"]]) == (
        {"tokens": 15, "usd": 7e-05},
        ["ask answer"],
    )
    assert facts["steps"][0]["attempts"][0]["spent"] == {"tokens": 15, "usd": 7e-05}
    assert "five stars, I'd say" in shell(sqlite_app, "runs", "artifact", "a", "answer", "--reveal")


def test_rows_are_asked_one_by_one_and_each_is_paid_once(app, reviews, server):
    """S1-11, S1-23: a row that fails for good leaves a letter and its raw answers; the bill is that of all calls."""
    rows = [{"id": number, "text": f"review {number}"} for number in (1, 2, 3)]
    (reviews.root / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def speak(body):
        prompt = body["messages"][0]["content"]
        asked = sum(one.body["messages"][0]["content"] == prompt for one in server.asked)
        if "review 1" in prompt and asked == 1:
            return Fault(503)
        if "review 2" in prompt:
            return Said("hunter2", tokens=(1, 1))
        return '{"stars": 5}'

    server.otherwise = speak
    with virtual_time():
        reviews.load(ROWS).run(run_key="a", app=app, check=False)
    assert sorted(one.body["messages"][0]["content"][-9:-1] for one in server.asked) == [
        "review 1",
        "review 1",
        "review 2",
        "review 2",
        "review 3",
    ]
    assert kept_of(app) == {
        ("ask 2 answer", 1): "hunter2",
        ("ask 2 answer 2", 1): "hunter2",
        ("ask 1 answer", 1): kept_503(),
    }
    (letter,) = app.dead_letters.find()
    assert (letter.item_key, letter.error_class, "hunter2" in letter.error) == ("2", "invalid_output", False)
    spent = flow_report(app.store, app.store.find_run("reviews", "a")).spent
    assert spent == {"tokens": 34.0, "usd": pytest.approx(0.000164)}


def test_a_row_whose_answer_is_lost_is_asked_again_with_its_key(sqlite_app, reviews, server):
    """Also one that must not be done twice, because the service knows the second request by its key."""
    (reviews.root / "in.jsonl").write_text('{"id": 1, "text": "review 1"}\n')
    server.script(Fault(then="cut"))
    with virtual_time():
        result = reviews.load(ROWS + "    idempotent: false\n").run(run_key="a", app=sqlite_app, check=False)
    assert result.status == "completed"
    assert (len(server.asked), len({one.headers["idempotency-key"] for one in server.asked})) == (2, 1)


def kept_503():
    return json.dumps({"error": {"message": "as asked", "type": None, "param": None, "code": None}})


def test_a_job_keeps_the_raw_answer_and_counts_as_a_schema_failure(app, reviews, server):
    """S1-11, S1-12, S1-17, S1-23: failed at once, without a second attempt of the job; the share of schema failures tells it."""
    server.script("no JSON at all")
    handle = reviews.load(ASK).enqueue(app=app, run_key="a")
    with virtual_time():
        worked = outlast.testing.work(app)
    assert (worked.succeeded, worked.failed, worked.requeued, len(server.asked)) == (0, 1, 0, 1)
    (attempt,) = handle.history()
    assert (handle.status, attempt.error_class) == ("failed", "invalid_output")
    assert kept_of(app) == {("ask answer", 1): "no JSON at all"}
    (figures,) = figures_of(app.store.job_tallies(3_600_000_000), queues=False)
    assert (figures.failed, figures.schema_failure_share) == (1, 1.0)


CHECKED = """\
  - id: check
    component: schema.validator
    needs: [ask]
    config: {data: "${steps.ask.outputs.json}", schema: {type: object, required: [sum]}}
"""
INPUT = """\
name: reviews
steps:
  - id: check
    component: schema.validator
    config: {data: {stars: 5}, schema: {type: object, required: [sum]}}
"""


def test_a_validation_after_a_model_counts_as_a_schema_failure_and_one_of_input_does_not(app, reviews, server):
    """S1-23: of a flow in a queue, a step that checks what an earlier `llm.caller` has answered."""
    for key, text in (("output", ASK + CHECKED), ("input", INPUT)):
        reviews.load(text).enqueue(app=app, run_key=key)
        with virtual_time():
            assert outlast.testing.work(app).failed == 1
        (figures,) = figures_of(app.store.job_tallies(3_600_000_000), queues=False, kinds=False)
        assert figures.schema_failure_share == {"output": 1.0, "input": 0.5}[key]


def test_a_process_of_its_own_pays_and_keeps_just_the_same(sqlite_app, reviews, server):
    """U-11: what the child spends and keeps is on record of the attempt."""
    server.script("no JSON at all")
    with pytest.raises(outlast.FlowFailed):
        reviews.load(ASK, "isolation: process").run(run_key="a", app=sqlite_app)
    (attempt,) = sqlite_app.store.step_attempts(sqlite_app.store.find_run("reviews", "a").number)
    assert (attempt.error_class, attempt.spent) == ("invalid_output", {"tokens": 15.0, "usd": 7e-05})
    assert kept_of(sqlite_app) == {("ask answer", 1): "no JSON at all"}
