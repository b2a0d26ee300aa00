"""Steps that lose rows: how their flow ends, what a job does with it, and what a resume does next."""

from __future__ import annotations

from collections import Counter

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
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


def test_a_job_is_retried_for_open_rows_that_failed_transiently(losses, app):
    """D-38: most rows are bad, one is away: the job uses its attempts, each runs the open rows, and nothing is undone."""
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
