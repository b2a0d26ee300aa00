"""Steps that lose rows: how their flow ends, what a job does with it, and what a resume does next."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
from outlast.flow.record import result_of_record
from outlast.pipeline.lease import let_go, take

FUNCTIONS = """
from pathlib import Path
import outlast

HERE = Path(__file__).parent
BREAKER = outlast.CircuitBreaker("prices", failure_threshold=2, reset_timeout=0.01)

def note(word):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{word}\\n")

def book():
    note("book")
    return {"number": 7}

def unbook(number):
    note("unbook")

def away(row):
    raise ConnectionRefusedError("the service is away")

guarded = outlast.stage(guard=outlast.Guard("away", breaker=BREAKER, retry=None))(away)

@outlast.stage(concurrency=1)
def costs(row):
    outlast.current().spend(cents=10)
    return row

prices = outlast.Pipeline("prices", guarded)
spends = outlast.Pipeline("spends", costs, spend_limit={"cents": 20})
"""
BOOK = """
name: shop
steps:
  - id: book
    component: python
    config: {call: "MODULE:book"}
    idempotent: true
    compensate: {component: python, config: {call: "MODULE:unbook", args: {number: "${steps.book.outputs.number}"}}}
"""
ROWS = "[{id: 1}, {id: 2}, {id: 3}, {id: 4}, {id: 5}, {id: 6}, {id: 7}, {id: 8}]"


def notes(project):
    path = project.root / "notes"
    return Counter(path.read_text().split()) if path.exists() else Counter()


# -- outages ---------------------------------------------------------------------------------------------------------------

EACH = f"""
  - id: ask
    component: python
    for_each: {{items: {ROWS}, key: id}}
    config: {{call: "MODULE:away"}}
    retry: {{max_attempts: 2, initial_delay_ms: 100}}
    idempotent: true
"""
OUTAGES = {
    "rows": (EACH, "connection_refused"),
    "rows behind a breaker": (
        EACH + "    circuit_breaker: {failure_threshold: 5, reset_timeout_ms: 1000}\n",
        "circuit_open",
    ),
    "a pipeline behind a breaker": (
        f"""
  - id: ask
    component: pipeline
    config: {{target: "MODULE:prices", input: {ROWS}}}
    retry: {{max_attempts: 1}}
    idempotent: true
""",
        "circuit_open",
    ),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_costs_every_attempt_of_the_job_with_a_breaker_and_without(sqlite_app, project, outage):
    """D-42: a breaker that stays open says nothing about the rows: nothing is compensated before the last attempt."""
    step, error_class = OUTAGES[outage]
    project.functions(FUNCTIONS)
    handle = project.load(BOOK + step).enqueue(app=sqlite_app, run_key="k")
    outlast.testing.work(sqlite_app)
    ends = [(one.error_class, one.stop_reason) for one in handle.history()]
    assert ends == [(error_class, None)] * 3 + [(error_class, "exhausted")]
    assert (handle.status, notes(project)) == ("failed", {"book": 1, "unbook": 1})


def test_every_attempt_of_a_step_counts_all_of_its_items(project, sqlite_app):
    """D-42: an attempt that stops while it replays dead letters reports the whole step, as the first one did."""
    project.functions(FUNCTIONS)
    step, _ = OUTAGES["a pipeline behind a breaker"]
    more = "{max_attempts: 3, initial_delay_ms: 10, on_errors: [transient, circuit_open]}"
    flow = project.load(BOOK + step.replace("{max_attempts: 1}", more))
    with outlast.testing.virtual_time():
        result = flow.run(app=sqlite_app, run_key="k", check=False)
    first = re.search(
        r"0 of 8 items succeeded, \d became dead letters, \d are pending", result["ask"].attempts[0].error
    )
    assert [first[0] in one.error for one in result["ask"].attempts] == [True] * 3
    (letter,) = [one for one in sqlite_app.dead_letters.find() if one.kind == "step"]
    assert first[0] in letter.error


def test_rows_behind_an_isolated_breaker_wait_for_its_release(sqlite_app, project):
    """D-42: somebody isolated the breaker, so no row failed: the job goes on after the release."""
    project.functions(FUNCTIONS)
    step, _ = OUTAGES["a pipeline behind a breaker"]
    flow = project.load(BOOK + step)
    flow.run(app=sqlite_app, run_key="other", check=False)  # imports the module
    project.namespace().BREAKER.isolate("maintenance")
    handle = flow.enqueue(app=sqlite_app, run_key="k")
    sqlite_app.work(until_idle=True)
    assert ([one.error_class for one in handle.history()], handle.status) == (["circuit_open"], "queued")


def test_a_spend_limit_that_is_reached_is_no_outage(sqlite_app, project):
    """D-42: the next attempt of the job has spent as much, so there is none."""
    project.functions(FUNCTIONS)
    step = OUTAGES["a pipeline behind a breaker"][0].replace("prices", "spends")
    handle = project.load(BOOK + step).enqueue(app=sqlite_app, run_key="k")
    outlast.testing.work(sqlite_app)
    (attempt,) = handle.history()
    assert (handle.status, attempt.error_class, attempt.stop_reason) == ("failed", "permanent_failure", "permanent")
    assert "spend limit" in attempt.error


OF_A_CLASS = """
import outlast

def book():
    return {"number": 7}

def unbook(number):
    pass

def ask(row=None):
    raise outlast.TemporaryFailure("busy", error_class="CLASS")
"""


@pytest.mark.parametrize("error_class", ["validation_error", "resource_exhausted", "connection_refused"])
@pytest.mark.parametrize("rate", [0, 0.5])
@pytest.mark.parametrize("what", ["", "for_each: {items: [1, 2, 3], min_partial_rate: RATE}"])
def test_a_temporary_failure_costs_a_job_its_attempts_whatever_its_class_is(
    project, sqlite_app, what, rate, error_class
):
    """D-42: the class is a name only. Rows, and a flow that is read from the store, are what the plain step is."""
    project.functions(OF_A_CLASS.replace("CLASS", error_class))
    lines = [
        "id: ask",
        "component: python",
        'config: {call: "MODULE:ask"}',
        "idempotent: true",
        *([what.replace("RATE", str(rate))] if what else []),
    ]
    flow = project.load(BOOK + "  - " + "\n    ".join(lines) + "\n")
    job = flow.enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
        last = "incomplete" if what and not rate else "exhausted"
        ends = [(one.error_class, one.stop_reason) for one in job.history()]
        assert ends == [(error_class, None)] * 3 + [(error_class, last)]
    with pytest.raises(outlast.FlowFailed) as failed:
        as_it_is_stored(sqlite_app, flow).raise_for_status()
    assert (outlast.classify(failed.value).category, outlast.classify(failed.value).error_class) == (
        "transient",
        error_class,
    )


def as_it_is_stored(app, flow, key="k"):
    """The result of a run, by another process than the one that ran it."""
    return result_of_record(app.store, app.codec, app.store.find_run("shop", key), flow.manifest)


# -- rows that are lost ------------------------------------------------------------------------------------------------------

LOSSES = """
import threading
from pathlib import Path
import outlast

HERE = Path(__file__).parent

def note(word):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{word}\\n")

def book():
    note("book")
    return {"number": 7}

def unbook(number):
    note("unbook")

def one(id, other=0):
    note(f"one-{id}")
    if (HERE / f"bad {id}").exists():
        raise ValueError("unknown id")
    if (HERE / f"away {id}").exists():
        raise ConnectionRefusedError("the service is away")
    if (HERE / f"skip {id}").exists():
        raise outlast.Skip("a duplicate")
    if (HERE / f"lost {id}").exists():
        raise ConnectionResetError("the answer is lost")
    return {"made": 10 * id}

def undo(id):
    note(f"undo-{id}")

def undo_all():
    note("undo-all")

def last(rows):
    note("last")
    return {"made": [row["outputs"].get("made") for row in rows], "keys": [row["key"] for row in rows]}

def beside():
    note("beside")

def away_once():
    if not (HERE / "tried").exists():
        (HERE / "tried").touch()
        raise ConnectionRefusedError("the service is away")

def fails_later():
    while "one-5" not in (HERE / "notes").read_text():
        threading.Event().wait(0.01)
    raise ValueError("no")
"""
EACH_OF = """
  - id: each
    component: python
    needs: [book]
    for_each: {items: [1, 2, 3, 4, 5], concurrency: 1BOUNDS}
    config: {call: "MODULE:one", args: {id: "${item}"}}
"""
AFTER = """
  - id: last
    component: python
    needs: [each]
    config: {call: "MODULE:last", args: {rows: "${steps.each.outputs.rows}"}}
"""


class Losses:
    """A project whose rows are bad, away or lost as files say."""

    def __init__(self, project):
        self.project = project
        project.functions(LOSSES)

    def load(self, *more, bounds="", each=EACH_OF, after=AFTER):
        return self.project.load(BOOK + each.replace("BOUNDS", bounds) + "".join(more) + after)

    def on(self, *names):
        for name in names:
            (self.project.root / name).touch()

    def off(self, *names):
        for name in names:
            (self.project.root / name).unlink()

    @property
    def notes(self):
        return notes(self.project)


@pytest.fixture
def losses(project):
    return Losses(project)


def statuses(result):
    return {step.id: step.status for step in result.steps}


def test_a_step_that_lost_rows_is_partial_and_a_resume_runs_only_the_open_rows(losses, app):
    """D-38: dependents wait, nothing is compensated, and the rows that succeeded are not called again."""
    losses.on("bad 2", "bad 4")
    flow = losses.load()
    with pytest.raises(outlast.FlowIncomplete) as caught:
        flow.run(run_key="k", app=app)
    result = caught.value.result
    assert isinstance(caught.value, outlast.FlowFailed)
    assert (result.status, result.reason, result.compensation, result.dead_letters) == (
        "partial_success",
        "incomplete",
        "none",
        2,
    )
    assert statuses(result) == {"book": "succeeded", "each": "partial_success", "last": "skipped"}
    assert (result["each"].stop_reason, [one.outcome for one in result["each"].attempts]) == ("incomplete", ["failed"])
    assert app.store.run(result.id).status == "partial_success"
    ends = [row for row in app.store.events(result.id) if row.name == "run_finished"]
    assert [(row.data["status"], row.data["outcome"], row.data["failed"]) for row in ends] == [
        ("partial_success", "partial", 1)
    ]
    again = flow.run(run_key="k", app=app, dry_run=True)
    assert "of each only 2 open rows" in again.why
    assert losses.notes == {"book": 1, **{f"one-{n}": 1 for n in range(1, 6)}}
    losses.off("bad 2")
    assert flow.run(run_key="k", app=app, check=False).status == "partial_success"
    losses.off("bad 4")
    done = flow.run(run_key="k", app=app)
    assert (done.status, done["last"].outputs["made"]) == ("completed", [10, 20, 30, 40, 50])
    assert losses.notes == {"book": 1, "one-1": 1, "one-2": 2, "one-3": 1, "one-4": 3, "one-5": 1, "last": 1}
    assert [letter.status for letter in app.dead_letters.find(status=None)].count("open") == 0
    assert flow.run(run_key="k", app=app).status == "completed"
    assert losses.notes["last"] == 1


def test_rows_that_are_not_called_again_are_not_reported_again(losses, sqlite_app):
    """D-38: `item_succeeded` is reported by the round that called the row."""
    losses.on("bad 2")
    flow = losses.load(after="")
    for expected in (["1", "3", "4", "5"], [], ["2"]):
        with outlast.testing.capture_events() as events:
            if expected == ["2"]:
                losses.off("bad 2")
            flow.run(run_key="k", app=sqlite_app, check=False)
        assert [one.item_id for one in events if one.name == "item_succeeded"] == expected


def test_rows_that_are_not_called_again_take_no_call_of_a_limit(losses, sqlite_app):
    """D-38: a resume with one open row makes one call, and waits for no other."""
    losses.on("bad 2")
    flow = losses.load(each=EACH_OF + "    limit: {rates: {calls: 1/10s}}\n", after="")
    with outlast.testing.virtual_time() as time:
        flow.run(run_key="k", app=sqlite_app, check=False)
        before = time.now
        assert before >= 40
        losses.off("bad 2")
        assert flow.run(run_key="k", app=sqlite_app).status == "completed"
        assert time.now - before <= 10


@pytest.mark.parametrize(
    ("bounds", "bad", "expected"),
    [
        ("", 1, "partial_success"),
        ("", 3, "failed"),
        (", min_success_rate: 0.8", 1, "completed"),
        (", min_success_rate: 0.81", 1, "partial_success"),
        (", min_partial_rate: 0.4", 3, "partial_success"),
        (", min_partial_rate: 0.41", 3, "failed"),
        (", min_success_rate: 0.2, min_partial_rate: 0", 5, "partial_success"),
        (", min_success_rate: 0.2", 4, "completed"),
    ],
)
def test_bounds_of_rows_decide_at_equality(losses, sqlite_app, bounds, bad, expected):
    """D-38: from `min_success_rate` on dependents start, from `min_partial_rate` on nothing is compensated."""
    losses.on(*(f"bad {n}" for n in range(1, bad + 1)))
    result = losses.load(bounds=bounds).run(run_key="k", app=sqlite_app, check=False)
    assert result.status == expected
    assert (losses.notes["last"], losses.notes["unbook"]) == (expected == "completed", expected == "failed")
    assert result.dead_letters == (0 if expected == "failed" else bad)


@pytest.mark.parametrize(
    ("bounds", "bad", "expected"),
    [
        ("", ("bad 3",), "partial_success"),
        ("", ("bad 3", "bad 4"), "failed"),
        (", min_partial_rate: 0.3", ("bad 3", "bad 4"), "partial_success"),
        (", min_success_rate: 0.6", ("bad 3",), "completed"),
        ("", (), "completed"),
    ],
)
def test_rows_that_were_skipped_count_for_no_bound(losses, sqlite_app, bounds, bad, expected):
    """Two of five rows are skipped, so the bounds are shares of the other three."""
    losses.on("skip 1", "skip 2", *bad)
    result = losses.load(bounds=bounds).run(run_key="k", app=sqlite_app, check=False)
    assert result.status == expected
    assert (losses.notes["last"], losses.notes["unbook"]) == (expected == "completed", expected == "failed")


def test_dead_letters_of_every_round_are_counted(losses, sqlite_app):
    """D-38: a second round that loses rows tells of its own letters, as does who reads it from the store."""
    losses.on("bad 2", "bad 4")
    flow = losses.load()
    flow.run(run_key="k", app=sqlite_app, check=False)
    losses.off("bad 4")
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result.dead_letters) == ("partial_success", 1)
    assert as_it_is_stored(sqlite_app, flow).dead_letters == 1


def test_bounds_that_are_changed_hold_for_a_resume(losses, sqlite_app):
    """D-38: they are policy and no other work, so the rows that succeeded stay."""
    losses.on("bad 2")
    assert losses.load().run(run_key="k", app=sqlite_app, check=False).status == "partial_success"
    assert losses.load(bounds=", min_success_rate: 0.8").run(run_key="k", app=sqlite_app).status == "completed"
    assert (losses.notes["one-1"], losses.notes["one-2"]) == (1, 2)


def test_steps_that_do_not_need_lost_rows_run(losses, sqlite_app):
    """D-38: only dependents wait."""
    losses.on("bad 2")
    beside = '  - {id: first, component: python, needs: [], config: {call: "MODULE:beside"}}\n'
    more = '  - {id: second, component: python, needs: [first], config: {call: "MODULE:beside"}}\n'
    result = losses.load(beside, more).run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, losses.notes["beside"], losses.notes["last"]) == ("partial_success", 2, 0)


def test_a_step_that_fails_beside_lost_rows_compensates_all(losses, sqlite_app):
    """C-21: one that failed for good decides."""
    losses.on("bad 2")
    fails = '  - {id: fails, component: python, needs: [book], config: {call: "MODULE:fails_later"}}\n'
    undo = '    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}\n'
    result = losses.load(fails, each=EACH_OF + undo).run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result.reason, result.compensation) == ("failed", "step_failed", "completed")
    assert (losses.notes["unbook"], losses.notes["undo-1"], losses.notes["undo-2"]) == (1, 1, 0)


@pytest.mark.parametrize("how", ["each row", "once"])
def test_lost_rows_are_undone_only_when_the_flow_is_given_up(losses, sqlite_app, how):
    """D-38: a resume keeps what was done, and a cancel with compensation undoes all of it."""
    losses.on("bad 2")
    undo = {
        "each row": '    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}\n',
        "once": '    compensate: {component: python, when: started, config: {call: "MODULE:undo_all"}}\n',
    }[how]
    flow = losses.load(each=EACH_OF + undo)
    for _ in range(2):
        assert flow.run(run_key="k", app=sqlite_app, check=False).status == "partial_success"
    assert losses.notes == {"book": 1, "one-1": 1, "one-2": 2, "one-3": 1, "one-4": 1, "one-5": 1}
    cancelled = given_up(flow, sqlite_app)
    assert (cancelled.status, cancelled.compensation) == ("cancelled", "completed")
    undone = {"undo-all": 1} if how == "once" else {f"undo-{n}": 1 for n in (1, 3, 4, 5)}
    assert {name: many for name, many in losses.notes.items() if "undo" in name} == undone
    assert losses.notes["unbook"] == 1


def given_up(flow, app, key="k"):
    """What `outlast cancel --compensate` does with a run."""
    from outlast.flow.prepared import planned
    from outlast.flow.runner import FlowRun
    from outlast.pipeline.drivers import blocking

    plan = planned(flow.manifest, app, run_key=key, root=flow._root, connections=None, undo_only=True)
    return blocking(FlowRun(plan))


def test_rows_without_dead_letters_are_run_again(losses, sqlite_app):
    """D-38: `dead_letter: false` leaves no letter, and the row is open all the same."""
    losses.on("bad 2")
    flow = losses.load(each=EACH_OF + "    dead_letter: false\n")
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result.dead_letters) == ("partial_success", 0)
    losses.off("bad 2")
    assert flow.run(run_key="k", app=sqlite_app).status == "completed"
    assert (losses.notes["one-1"], losses.notes["one-2"]) == (1, 2)


def test_the_outputs_of_a_step_name_rows_without_dead_letters(losses, sqlite_app):
    """D-38: enough rows succeeded, one failed and has no letter: its outcome is partial all the same."""
    losses.on("bad 2")
    flow = losses.load(each=EACH_OF + "    dead_letter: false\n", bounds=", min_success_rate: 0.5")
    result = flow.run(run_key="k", app=sqlite_app)
    assert (result.status, result["each"].outputs["outcome"]) == ("completed", "partial_success")
    losses.off("bad 2")
    assert flow.run(run_key="other", app=sqlite_app)["each"].outputs["outcome"] == "completed"


def test_an_outage_in_the_middle_leaves_the_rows_that_never_began_open(losses, sqlite_app):
    """D-38, D-42: the breaker stayed open after three of five rows, and a resume runs the other two."""
    losses.on("away 4", "away 5")
    breaker = "    circuit_breaker: {failure_threshold: 1, reset_timeout_ms: 100}\n    idempotent: true\n"
    flow = losses.load(each=EACH_OF + breaker)
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, losses.notes["unbook"]) == ("partial_success", 0)
    losses.off("away 4", "away 5")
    assert flow.run(run_key="k", app=sqlite_app).status == "completed"
    assert (losses.notes["one-1"], losses.notes["one-3"], losses.notes["last"]) == (1, 1, 1)


STOPPED = """
import outlast

def at(number, raised):
    def called(n):
        note(f"row-{n}")
        if n > number and not (HERE / "back").exists():
            raise raised()
        return {"made": n}
    return called

same_failure_away = at(100, lambda: ConnectionRefusedError("away"))
same_failure_bad = at(100, lambda: ValueError("bad"))
fatal_error = at(100, lambda: outlast.PermanentFailure("expired", error_class="auth_error"))
breaker_open = at(100, lambda: ConnectionRefusedError("away"))

def failure_budget_exceeded(n):
    if n % 2:
        raise ValueError(f"bad {n}")
"""
STOPS = """
  - id: each
    component: python
    for_each: {items: "${params.rows}", concurrency: 1, min_partial_rate: RATE}
    config: {call: "MODULE:CALL", args: {n: "${item}"}}
    idempotent: true
"""


def stopped_at(project, call, *, rate, rows=160):
    """A flow of that many rows whose call fails from row 101 on."""
    project.functions(LOSSES + STOPPED)
    step = STOPS.replace("RATE", str(rate)).replace("CALL", call)
    if call == "breaker_open":
        step += "    circuit_breaker: {failure_threshold: 3, reset_timeout_ms: 100}\n"
    text = BOOK.replace("steps:", "params: {rows: {type: list}}\nsteps:") + step
    return project.load(text, params={"rows": [*range(1, rows + 1)]})


# 100 of 160 rows succeed, which is 0.625.
EARLY = ["same_failure_away", "same_failure_bad", "fatal_error", "breaker_open"]


@pytest.mark.parametrize("call", EARLY)
def test_a_step_whose_reading_stops_early_is_judged_by_the_share_of_its_rows(project, sqlite_app, call):
    """D-38: rows that never began are open; at `min_partial_rate` nothing is compensated, and a resume runs the open rows."""
    flow = stopped_at(project, call, rate=0.625)
    with outlast.testing.virtual_time():
        result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result["each"].stop_reason, notes(project)["unbook"]) == ("partial_success", "incomplete", 0)
    assert sum(notes(project)[f"row-{n}"] for n in range(1, 161)) < 160  # the reading did stop
    (project.root / "back").touch()
    with outlast.testing.virtual_time():
        done = flow.run(run_key="k", app=sqlite_app)
    assert (done.status, done["each"].outputs["count"]) == ("completed", 160)
    assert [notes(project)[f"row-{n}"] for n in range(1, 101)] == [1] * 100


@pytest.mark.parametrize("call", EARLY)
def test_a_step_that_stopped_early_below_its_share_has_failed(project, sqlite_app, call):
    """D-38: below `min_partial_rate` what was done is compensated, whatever stopped the reading."""
    flow = stopped_at(project, call, rate=0.63)
    with outlast.testing.virtual_time():
        result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result.reason, notes(project)["unbook"]) == ("failed", "step_failed", 1)


def test_a_failure_budget_stops_only_a_step_that_has_failed(project, sqlite_app):
    """D-38: the budget of failures is what `min_partial_rate` leaves."""
    flow = stopped_at(project, "failure_budget_exceeded", rate=0.51, rows=1001)
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, notes(project)["unbook"]) == ("failed", 1)
    assert "exceeds the budget" in result["each"].error


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("same_failure_away", [("connection_refused", None)] * 3 + [("connection_refused", "incomplete")]),
        ("same_failure_bad", [("data_error", "incomplete")]),
        ("fatal_error", [("auth_error", "incomplete")]),
        ("breaker_open", [("circuit_open", None)] * 3 + [("circuit_open", "incomplete")]),
    ],
)
def test_a_job_is_retried_for_rows_behind_an_outage_and_not_behind_a_fatal_error(project, sqlite_app, call, expected):
    """D-38, D-42: what stopped the reading says whether rows that never began are worth another attempt."""
    job = stopped_at(project, call, rate=0.625).enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    assert [(one.error_class, one.stop_reason) for one in job.history()] == expected
    assert (job.status, notes(project)["unbook"], notes(project)["row-1"]) == ("failed", 0, 1)


PARTS = """
import outlast

@outlast.stage(retry=None)
def part(item):
    note(f"part-{item}")
    if (HERE / f"bad {item}").exists():
        raise ValueError("unknown part")
    return item

parts = outlast.Pipeline("parts", part, min_success_rate=0.8, min_partial_rate=0.4)
"""


@pytest.mark.parametrize(
    ("bad", "expected"), [(1, "completed"), (2, "partial_success"), (3, "partial_success"), (4, "failed")]
)
def test_a_pipeline_step_follows_the_rates_of_its_pipeline(project, sqlite_app, bad, expected):
    """D-38: the step's own dead letters are replayed into its run, and what succeeded is not called again."""
    project.functions(LOSSES + PARTS)
    step = '  - {id: parts, component: pipeline, config: {target: "MODULE:parts", input: [1, 2, 3, 4, 5]}}\n'
    flow = project.load(BOOK + step)
    for number in range(1, bad + 1):
        (project.root / f"bad {number}").touch()
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, notes(project)["unbook"]) == (expected, expected == "failed")
    if expected == "partial_success":
        for number in range(1, bad + 1):
            (project.root / f"bad {number}").unlink()
        done = flow.run(run_key="k", app=sqlite_app)
        assert (done.status, sorted(done["parts"].outputs["rows"])) == ("completed", [1, 2, 3, 4, 5])
        assert [notes(project)[f"part-{n}"] for n in range(1, 6)] == [2] * bad + [1] * (5 - bad)


# -- in a queue --------------------------------------------------------------------------------------------------------------


def test_a_job_is_retried_for_one_open_row_although_most_are_bad(losses, sqlite_app):
    """D-38: the largest group of errors is permanent, and the smaller one may pass."""
    losses.on("bad 1", "bad 2", "away 4")
    job = losses.load(bounds=", min_partial_rate: 0.4").enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    ends = [(one.error_class, one.stop_reason) for one in job.history()]
    assert ends == [("connection_refused", None)] * 3 + [("connection_refused", "incomplete")]
    assert (losses.notes["one-4"], losses.notes["unbook"]) == (4, 0)


def test_a_job_is_retried_for_open_rows_that_failed_transiently(losses, app):
    """D-38: one row is bad, one is away: the job uses its attempts, each runs the open rows, and nothing is undone."""
    losses.on("bad 2", "away 4")
    job = losses.load().enqueue(app=app, run_key="k")
    outlast.testing.work(app)
    ends = [(one.error_class, one.stop_reason) for one in job.history()]
    assert ends == [("connection_refused", None)] * 3 + [("connection_refused", "incomplete")]
    assert job.status == "failed"
    assert losses.notes == {"book": 1, "one-1": 1, "one-2": 4, "one-3": 1, "one-4": 4, "one-5": 1}
    assert app.store.find_run("shop", "k").status == "partial_success"
    losses.off("bad 2", "away 4")
    app.jobs.requeue(job.id)
    outlast.testing.work(app)
    assert (job.status, job.result().status) == ("succeeded", "completed")
    assert losses.notes == {"book": 1, "one-1": 1, "one-2": 5, "one-3": 1, "one-4": 5, "one-5": 1, "last": 1}


def test_a_job_whose_open_rows_are_all_bad_ends_at_once(losses, app):
    """D-38: failed as `incomplete` in the first attempt; `resume` continues, and the job then finds it done."""
    losses.on("bad 2")
    flow = losses.load()
    job = flow.enqueue(app=app, run_key="k")
    outlast.testing.work(app)
    assert [(one.error_class, one.stop_reason) for one in job.history()] == [("data_error", "incomplete")]
    assert (job.status, losses.notes["unbook"], losses.notes["last"]) == ("failed", 0, 0)
    losses.off("bad 2")
    assert flow.run(run_key="k", app=app).status == "completed"
    app.jobs.requeue(job.id)
    outlast.testing.work(app)
    assert (job.status, losses.notes["one-2"], losses.notes["last"]) == ("succeeded", 2, 1)


def test_one_step_that_may_recover_brings_the_job_back(losses, sqlite_app):
    """D-38: of two steps that lost rows, the other's bad rows are tried again with it."""
    losses.on("bad 2", "away 11")
    other = EACH_OF.replace("id: each", "id: other").replace("[1, 2, 3, 4, 5]", "[11, 12, 13]").replace("BOUNDS", "")
    job = losses.load(other).enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    assert [one.stop_reason for one in job.history()] == [None, None, None, "incomplete"]
    assert (losses.notes["one-2"], losses.notes["one-11"], losses.notes["one-1"]) == (4, 4, 1)


def test_bad_rows_are_not_called_again_while_the_job_waits_for_another_step(losses, sqlite_app):
    """D-38: the queue waits for a step beside them, which is no retry of the job."""
    losses.on("bad 2")
    waits = """
  - id: waits
    component: python
    needs: [book]
    config: {call: "MODULE:away_once"}
    retry: {max_attempts: 2, initial_delay_ms: 100000, max_delay_ms: 100000, jitter: 0}
    idempotent: true
"""
    job = losses.load(waits).enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    assert (job.status, [one.outcome for one in job.history()]) == ("failed", ["snoozed", "failed"])
    assert statuses_of(sqlite_app, "k") == {"each": "partial_success", "waits": "succeeded"}
    assert losses.notes["one-2"] == 1


def statuses_of(app, key):
    """The states of the two steps beside each other, as they are on record."""
    rows = app.store.flow_steps(app.store.find_run("shop", key).number)
    return {row.step: row.state for row in rows if row.deed == "do" and row.step != "book"}


# -- rows whose outcome is unknown ---------------------------------------------------------------------------------------------

ONCE = (
    EACH_OF
    + '    idempotent: false\n    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}\n'
)


def letter_of(app, key):
    (found,) = [letter for letter in app.dead_letters.find() if letter.item_key == key]
    return found


def test_rows_in_doubt_are_settled_by_hand(losses, app):
    """C-20: a row that was done is not called again, one that was not is; until then a resume is refused."""
    losses.on("lost 2", "lost 4")
    flow = losses.load(each=ONCE)
    result = flow.run(run_key="k", app=app, check=False)
    assert (result.status, result["each"].stop_reason) == ("partial_success", "ambiguous")
    for settled in (None, "2"):
        if settled:
            assert (
                app.dead_letters.resolve(letter_of(app, "2").id, done=True, reason="on the statement").status
                == "resolved"
            )
        with pytest.raises(outlast.ConfigurationError, match=rf"{1 if settled else 2} rows? of each in the run 'k'"):
            flow.run(run_key="k", app=app)
    assert app.dead_letters.resolve(letter_of(app, "4").id, done=False).status == "open"
    losses.off("lost 2", "lost 4")
    assert "of each only 1 open row" in flow.run(run_key="k", app=app, dry_run=True).why
    done = flow.run(run_key="k", app=app)
    assert (done.status, done["last"].outputs["made"]) == ("completed", [10, None, 30, 40, 50])
    assert (losses.notes["one-2"], losses.notes["one-4"], losses.notes["one-1"]) == (1, 2, 1)
    assert [*app.dead_letters.find()] == []


def test_a_row_that_was_settled_as_done_stays_so_in_every_round(losses, sqlite_app):
    """C-20: the round after the next does not take it for one that has changed, and calls it no more."""
    losses.on("lost 2", "bad 4")
    flow = losses.load(each=EACH_OF + "    idempotent: false\n")
    flow.run(run_key="k", app=sqlite_app, check=False)
    sqlite_app.dead_letters.resolve(letter_of(sqlite_app, "2").id, done=True)
    losses.off("lost 2")
    for _ in range(2):
        assert flow.run(run_key="k", app=sqlite_app, check=False).status == "partial_success"
    losses.off("bad 4")
    assert flow.run(run_key="k", app=sqlite_app).status == "completed"
    assert (losses.notes["one-2"], losses.notes["one-4"]) == (1, 4)


def test_rows_in_doubt_are_counted_and_settled_on_every_page(losses, sqlite_app, monkeypatch):
    """C-20: with pages of one, the refusal counts each row, and each answer of an operator is heard."""
    monkeypatch.setattr("outlast.flow.record._PAGE", 1)
    losses.on("lost 2", "lost 4")
    flow = losses.load(each=ONCE)
    flow.run(run_key="k", app=sqlite_app, check=False)
    with pytest.raises(outlast.ConfigurationError, match="2 rows of each in the run 'k'"):
        flow.run(run_key="k", app=sqlite_app)
    losses.off("lost 2", "lost 4")
    for key in ("2", "4"):
        sqlite_app.dead_letters.resolve(letter_of(sqlite_app, key).id, done=True)
    assert flow.run(run_key="k", app=sqlite_app).status == "completed"
    assert (losses.notes["one-2"], losses.notes["one-4"]) == (1, 1)


def test_a_dry_run_after_rows_were_undone_promises_all_of_them(losses, sqlite_app):
    """C-21: rows that were done and undone are open as well, so nothing is said of the failed ones alone."""
    losses.on("bad 1", "bad 2", "bad 3")
    undo = '    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}\n'
    flow = losses.load(each=EACH_OF + undo)
    assert flow.run(run_key="k", app=sqlite_app, check=False).compensation == "completed"
    why = flow.run(run_key="k", app=sqlite_app, dry_run=True).why
    assert ("run book, each, last" in why, "open row" in why) == (True, False)


def test_rows_in_doubt_that_were_settled_are_undone_accordingly(losses, sqlite_app):
    """C-21: what was done by hand's word is undone, what was not is left, and nothing of both is unknown."""
    losses.on("lost 2", "lost 4")
    flow = losses.load(each=ONCE)
    flow.run(run_key="k", app=sqlite_app, check=False)
    sqlite_app.dead_letters.resolve(letter_of(sqlite_app, "2").id, done=True)
    sqlite_app.dead_letters.resolve(letter_of(sqlite_app, "4").id, done=False)
    cancelled = given_up(flow, sqlite_app)
    assert (cancelled.status, "nobody knows" in cancelled.why) == ("cancelled", False)
    assert {name for name in losses.notes if "undo" in name} == {"undo-1", "undo-2", "undo-3", "undo-5"}


def test_only_an_open_letter_of_a_row_is_settled(losses, sqlite_app):
    """C-20: a row that was settled stays so, and a letter of a step has another way."""
    losses.on("lost 2")
    losses.load(each=ONCE).run(run_key="k", app=sqlite_app, check=False)
    letter = letter_of(sqlite_app, "2").id
    sqlite_app.dead_letters.resolve(letter, done=True)
    with pytest.raises(outlast.ConfigurationError, match=r"is resolved\. It was settled by hand\."):
        sqlite_app.dead_letters.resolve(letter, done=False)
    losses.on("bad 1", "bad 3", "bad 4", "bad 5")
    losses.load().run(run_key="other", app=sqlite_app, check=False)
    (step,) = [one for one in sqlite_app.dead_letters.find() if one.kind == "step"]
    way = "Once the cause is gone, resume its run, in a shell with outlast resume other"
    with pytest.raises(
        outlast.ConfigurationError, match=f"expected the dead letter of a row of a flow's step, .* {way}"
    ):
        sqlite_app.dead_letters.resolve(step.id, done=True)
    store = f"sqlite:///{sqlite_app.store_file}"
    words = ["dlq", "resolve", step.id, "--as", "done", "--store", store, "--app", sqlite_app.name]
    done = CliRunner().invoke(command_line(words), words)
    assert (done.exit_code, "its run goes on with it: outlast resume other" in done.stderr.replace("\n", " ")) == (
        2,
        True,
    )


def test_rows_are_not_settled_while_their_flow_runs(losses, sqlite_app):
    """C-20: the run in progress would not hear of it."""
    losses.on("lost 2")
    losses.load(each=ONCE).run(run_key="k", app=sqlite_app, check=False)
    store, letter = sqlite_app.store, letter_of(sqlite_app, "2").id
    lease = take(store, store.find_run("shop", "k"))
    try:
        with pytest.raises(outlast.ConfigurationError, match="is running"):
            sqlite_app.dead_letters.resolve(letter, done=True)
    finally:
        let_go(store, lease)
    assert sqlite_app.dead_letters.resolve(letter, done=True).status == "resolved"


def test_work_that_was_changed_runs_for_all_rows(losses, sqlite_app):
    """D-38: rows that were done with another config are undone first; a dry run promises no less."""
    losses.on("bad 2")
    undo = '    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}\n'
    losses.load(each=EACH_OF + undo).run(run_key="k", app=sqlite_app, check=False)
    losses.off("bad 2")
    other = losses.load(
        each=(EACH_OF + undo).replace('args: {id: "${item}"}}\n    comp', 'args: {id: "${item}", other: 1}}\n    comp')
    )
    assert "open row" not in other.run(run_key="k", app=sqlite_app, dry_run=True).why
    assert other.run(run_key="k", app=sqlite_app).status == "completed"
    assert [losses.notes[f"one-{n}"] for n in range(1, 6)] == [2] * 5
    assert [losses.notes[f"undo-{n}"] for n in range(1, 6)] == [1, 0, 1, 1, 1]


def test_rows_in_doubt_beside_a_step_that_was_interrupted_are_not_run_again(losses, sqlite_app):
    """C-20: the pass that continues the flow leaves them as they are."""
    losses.on("lost 2")
    waits = """
  - id: waits
    component: python
    needs: [book]
    config: {call: "MODULE:one", args: {id: 9}}
    retry: {max_attempts: 2, initial_delay_ms: 100000, max_delay_ms: 100000, jitter: 0}
    idempotent: true
"""
    losses.on("away 9")
    job = losses.load(waits, each=ONCE).enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    assert (job.status, losses.notes["one-2"], losses.notes["one-9"]) == ("failed", 1, 8)


# -- idempotency keys ----------------------------------------------------------------------------------------------------------

KEYED = ONCE.replace("    idempotent: false\n", '    idempotency: {key: "row-${item}"}\n')


def test_another_secret_of_keys_is_refused_before_anything_begins(losses, sqlite_app, monkeypatch):
    """C-20: under another secret the keys of rows would be neither found nor released."""
    monkeypatch.setenv("OUTLAST_IDEMPOTENCY_SECRET", "pepper-and-salt")
    losses.on("bad 2")
    flow = losses.load(each=KEYED)
    flow.run(run_key="k", app=sqlite_app, check=False)
    before = losses.notes
    monkeypatch.delenv("OUTLAST_IDEMPOTENCY_SECRET")
    for attempt in (lambda: flow.run(run_key="k", app=sqlite_app), lambda: given_up(flow, sqlite_app)):
        with pytest.raises(outlast.ConfigurationError, match="OUTLAST_IDEMPOTENCY_SECRET") as refused:
            attempt()
        assert "pepper" not in str(refused.value)
    assert (losses.notes, sqlite_app.store.find_run("shop", "k").status) == (before, "partial_success")
    monkeypatch.setenv("OUTLAST_IDEMPOTENCY_SECRET", "pepper-and-salt")
    assert given_up(flow, sqlite_app).compensation == "completed"
    losses.off("bad 2")
    assert flow.run(run_key="other", app=sqlite_app).status == "completed"
    assert losses.notes["one-1"] == 2  # its key was released


def test_keys_of_a_step_that_is_undone_at_once_are_released_without_the_secret(losses, sqlite_app, monkeypatch):
    """C-20: the stored digests are enough."""
    monkeypatch.setenv("OUTLAST_IDEMPOTENCY_SECRET", "pepper-and-salt")
    losses.on("bad 2")
    undo = '    compensate: {component: python, when: started, config: {call: "MODULE:undo_all"}}\n'
    flow = losses.load(each=EACH_OF + '    idempotency: {key: "row-${item}"}\n' + undo)
    flow.run(run_key="k", app=sqlite_app, check=False)
    monkeypatch.delenv("OUTLAST_IDEMPOTENCY_SECRET")
    assert given_up(flow, sqlite_app).compensation == "completed"
    monkeypatch.setenv("OUTLAST_IDEMPOTENCY_SECRET", "pepper-and-salt")
    losses.off("bad 2")
    assert flow.run(run_key="other", app=sqlite_app).status == "completed"
    assert losses.notes["one-1"] == 2


# -- items without dead letters ----------------------------------------------------------------------------------------------

COLLECTED = """
import outlast

@outlast.stage(retry=None, concurrency=1)
def part(item):
    note(f"part-{item}")
    outlast.current().spend(cents=1)
    if item <= 6 and (HERE / "bad").exists():
        raise ConnectionRefusedError("away")
    if item == 9 and (HERE / "odd").exists():
        raise ValueError("odd")
    return item

parts = outlast.Pipeline("parts", part)
"""
COLLECTS = """
  - id: items
    component: pipeline
    config: {target: "MODULE:parts", input: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], on_item_error: collectOUTPUT}
"""


@pytest.mark.parametrize("output", ["", ", output: out.jsonl"])
def test_items_that_failed_without_a_dead_letter_run_again(project, app, output):
    """D-38: a resume runs the open items of a failed pipeline step into the same run, and into the same file."""
    project.functions(LOSSES + COLLECTED)
    for name in ("bad", "odd"):
        (project.root / name).touch()
    flow = project.load(BOOK + COLLECTS.replace("OUTPUT", output))
    for tried in (1, 2):
        result = flow.run(run_key="k", app=app, check=False)
        assert (result.status, [notes(project)[f"part-{n}"] for n in range(1, 11)]) == (
            "failed",
            [tried] * 6 + [1, 1, tried, 1],
        )
        assert "3 of 10 items succeeded, 7 failed" in result["items"].error
    (project.root / "bad").unlink()
    (project.root / "odd").unlink()
    done = flow.run(run_key="k", app=app)
    assert [notes(project)[f"part-{n}"] for n in range(1, 11)] == [3] * 6 + [1, 1, 3, 1]
    assert (done.status, done["items"].outputs["count"]) == ("completed", 10)
    if output:
        assert sorted(int(line) for line in (project.root / "out.jsonl").read_text().split()) == [*range(1, 11)]
    (record,) = [run for run in app.store.runs() if run.pipeline == "parts"]
    assert (record.counts.succeeded, record.counts.failed, record.counts.pending) == (10, 0, 0)
    assert record.spent == {"cents": 24}  # of all calls


def test_items_of_a_step_that_was_undone_run_again(project, sqlite_app):
    """D-38: what undid the step that failed undid all of its items, those that had succeeded as well."""
    project.functions(LOSSES + COLLECTED)
    (project.root / "bad").touch()
    undo = '    compensate: {component: python, when: started, config: {call: "MODULE:undo_all"}}\n'
    flow = project.load(BOOK + COLLECTS.replace("OUTPUT", "") + undo)
    result = flow.run(run_key="k", app=sqlite_app, check=False)
    assert (result.status, result.compensation, notes(project)["undo-all"]) == ("failed", "completed", 1)
    (project.root / "bad").unlink()
    done = flow.run(run_key="k", app=sqlite_app)
    assert (done.status, done["items"].outputs["count"]) == ("completed", 10)
    assert [notes(project)[f"part-{n}"] for n in range(1, 11)] == [2] * 10


@pytest.mark.parametrize("how", ["retry", "from_step"])
def test_a_retry_of_a_step_that_collects_runs_its_open_items(project, sqlite_app, how):
    """D-38: an attempt of the step, and `from_step`, run what an earlier attempt left open."""
    project.functions(LOSSES + COLLECTED)
    (project.root / "bad").touch()
    retry = "    retry: {max_attempts: 2, initial_delay_ms: 10}\n" if how == "retry" else ""
    flow = project.load("name: shop\nsteps:" + COLLECTS.replace("OUTPUT", "") + retry)
    with outlast.testing.virtual_time():
        flow.run(run_key="k", app=sqlite_app, check=False)
        if how == "from_step":
            flow.run(run_key="k", app=sqlite_app, check=False, from_step="items")
    assert [notes(project)[f"part-{n}"] for n in range(1, 11)] == [2] * 6 + [1] * 4


def test_every_attempt_of_a_job_runs_the_open_items_of_a_step_that_collects(project, sqlite_app):
    """D-38: four attempts call the items that are away four times."""
    project.functions(LOSSES + COLLECTED)
    (project.root / "bad").touch()
    job = project.load(BOOK + COLLECTS.replace("OUTPUT", "")).enqueue(app=sqlite_app, run_key="k")
    with outlast.testing.virtual_time():
        outlast.testing.work(sqlite_app)
    assert [one.error_class for one in job.history()] == ["connection_refused"] * 4
    assert [notes(project)[f"part-{n}"] for n in range(1, 11)] == [4] * 6 + [1] * 4


@pytest.mark.parametrize("ends", ["dlq", "collect"])
def test_every_attempt_of_a_row_that_is_a_pipeline_runs_its_open_items(project, sqlite_app, ends):
    """D-38: a row is tried three times, and so are the items of its pipeline that are away."""
    project.functions(LOSSES + COLLECTED)
    (project.root / "bad").touch()
    each = f"""
  - id: items
    component: pipeline
    for_each: {{items: [{{of: [1, 2, 3, 7]}}]}}
    config: {{target: "MODULE:parts", input: "${{item.of}}", on_item_error: {ends}}}
    retry: {{max_attempts: 3, initial_delay_ms: 10}}
"""
    with outlast.testing.virtual_time():
        project.load("name: shop\nsteps:" + each).run(run_key="k", app=sqlite_app, check=False)
    assert [notes(project)[f"part-{n}"] for n in (1, 2, 3, 7)] == [3, 3, 3, 1]
