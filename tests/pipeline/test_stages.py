"""Stages: what a function may do with an item, and what protects its attempts."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import attrgetter
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest

import outlast
from outlast.testing import Faults, capture_events, virtual_time
from outlast.testing import run as trial
from tables import table

NOW = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0, on_errors=("transient", "unclear"))


def made(fn, *, sync, **options):
    """The function as a stage, in a thread or in the loop."""
    if sync:
        return outlast.stage(**options)(fn)

    async def work(item):
        return fn(item)

    work.__name__ = fn.__name__
    return outlast.stage(**options)(work)


both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@both
def test_an_item_goes_through_all_stages_in_order(sync):
    """What one stage returns is what the next one gets; outputs come in the order of the source."""

    def first(item):
        return item + 1

    def second(item):
        return item * 10

    result = trial(outlast.Pipeline("p", made(first, sync=sync), made(second, sync=sync)), range(5))
    assert list(result.outputs()) == [10, 20, 30, 40, 50]
    assert result.status == "completed"
    assert result.outcome == "success"


class _Answers:
    """Answers every attribute with something."""

    def __getattr__(self, name):
        return _Answers()

    def __call__(self, item):
        return item


class _WrapsForEver:
    @property
    def __wrapped__(self):
        return _WrapsForEver()

    def __call__(self, item):
        return item


async def _awaited(item):
    return item


@table(
    "fn",
    [
        Mock(return_value=1),
        AsyncMock(return_value=1),
        MagicMock(return_value=1),
        AsyncMock(spec=_awaited, return_value=1),
        create_autospec(_awaited, return_value=1),
        partial(AsyncMock(return_value=1)),
        _Answers(),
        _WrapsForEver(),
        abs,
        int,
    ],
    ids=["mock", "async", "magic", "spec", "autospec", "partial", "answers", "wraps", "builtin", "type"],
)
def test_whatever_can_be_called_is_a_stage(fn):
    """What only looks like a function, as a mock of a coroutine function does, runs as one, and again as the same one."""
    pipeline = outlast.Pipeline("p", outlast.stage(fn))
    result = trial(pipeline, [1])
    assert (result.status, list(result.outputs())) == ("completed", [1])


@both
def test_a_failed_attempt_is_tried_again_and_each_is_on_record(sync):
    """S3-02, S3-04, S3-19, S3-20, S3-22: only the failed stage is repeated; attempts are rows with their error and wait."""
    seen = []

    def first(item):
        seen.append("first")
        return item

    def second(item):
        seen.append("second")
        return item

    pipeline = outlast.Pipeline("p", made(first, sync=sync), made(second, sync=sync, retry=NOW))
    faults = [Faults("second", ConnectionResetError("gone"), TimeoutError("slow"))]
    result = trial(pipeline, ["a"], faults=faults)
    assert seen == ["first", "second"]
    (item,) = result.items()
    assert (item.status, item.attempts) == ("succeeded", 4)
    rows = result._store().attempts(result._number)
    assert [(row.stage, row.number, row.outcome, row.error_type, row.error, row.delay_us) for row in rows] == [
        (0, 1, "success", None, None, None),
        (1, 1, "retrying", "ConnectionResetError", "gone", 1_000_000),
        (1, 2, "retrying", "TimeoutError", "slow", 2_000_000),
        (1, 3, "success", None, None, None),
    ]


@both
def test_one_bad_item_becomes_a_dead_letter_and_stops_nobody(sync):
    """S3-01, S3-03, S3-06, S3-24, S3-25, C-14, C-17: its stage, error and input are kept; it never reaches the next stage or the output."""
    reached = []

    def check(item):
        if item == 3:
            raise ValueError("no threes")
        return item

    def after(item):
        reached.append(item)
        return item

    pipeline = outlast.Pipeline("p", made(check, sync=sync), made(after, sync=sync), min_success_rate=0.5)
    with capture_events() as events:
        result = trial(pipeline, range(5))
    assert sorted(reached) == [0, 1, 2, 4]
    assert list(result.outputs()) == [0, 1, 2, 4]
    assert result.counts == outlast.Counts(total=5, succeeded=4, dlq=1, source_exhausted=True)
    (letter,) = result._store().letters()
    assert (letter.stage, letter.error, letter.error_type, letter.status) == (
        "check",
        "no threes",
        "ValueError",
        "open",
    )
    assert result._decode(letter.payload) == 3
    told = [event for event in events if event.name == "dead_letter_enqueue"]
    assert [(event.item_id, event.pipeline, event.step_id, event.error, event.letter_id) for event in told] == [
        (letter.item_key, "p", "check", "no threes", letter.id)
    ]


@both
def test_each_stage_has_attempts_and_waits_of_its_own(sync):
    """S3-04: what one stage is allowed says nothing of the next; a filter is asked once, a model as often as it was said."""

    def filtered(item):
        if item == "odd":
            raise ConnectionResetError("odd")
        return item

    def ask(item):
        raise ConnectionResetError(item)

    once = made(filtered, sync=sync, retry=outlast.RetryPolicy(max_attempts=1))
    patient = outlast.RetryPolicy(max_attempts=4, backoff="linear", initial_delay=10, jitter=0)
    with virtual_time():
        result = trial(outlast.Pipeline("p", once, made(ask, sync=sync, retry=patient)), ["odd", "even"])
    rows = result._store().attempts(result._number)
    assert [
        (row.seq, row.stage, row.number, row.outcome, row.delay_us) for row in sorted(rows, key=attrgetter("seq"))
    ] == [
        (0, 0, 1, "failed", None),
        (1, 0, 1, "success", None),
        (1, 1, 1, "retrying", 10_000_000),
        (1, 1, 2, "retrying", 20_000_000),
        (1, 1, 3, "retrying", 30_000_000),
        (1, 1, 4, "failed", None),
    ]


def test_a_run_counts_what_became_of_its_items(app):
    """S3-07: total, succeeded, failed and dead letters, of what was read; failed are those that are collected and put aside nowhere."""

    @outlast.stage
    async def check(item):
        if item % 5 == 0:
            raise ValueError("no fives")
        return item

    pipeline = outlast.Pipeline("p", check, app=app, min_success_rate=0.5)
    ended = [pipeline.run(range(20), on_item_error=how) for how in ("dlq", "collect")]
    assert [result.counts for result in ended] == [
        outlast.Counts(total=20, succeeded=16, dlq=4, source_exhausted=True),
        outlast.Counts(total=20, succeeded=16, failed=4, source_exhausted=True),
    ]


@both
def test_an_error_that_is_not_retried_fails_at_once_and_one_attempt_means_one(sync):
    """S3-11, S3-18, S3-21: permanent errors and a policy of one attempt end after one attempt, each with its own reason."""
    calls = []

    def work(item):
        calls.append(item)
        raise (KeyError if item == "bad" else ConnectionResetError)("x")

    refused = trial(outlast.Pipeline("p", made(work, sync=sync)), ["bad"])
    assert calls == ["bad"]
    once = trial(outlast.Pipeline("p", made(work, sync=sync, retry=outlast.RetryPolicy(max_attempts=1))), ["once"])
    assert calls == ["bad", "once"]
    assert [item.stop_reason for result in (refused, once) for item in result.items()] == ["permanent", "exhausted"]


@both
def test_skip_is_no_failure(sync):
    """C-15: a skipped item has its reason and counts neither as success nor as failure."""

    def work(item):
        if item % 2:
            raise outlast.Skip("odd")
        return item

    result = trial(outlast.Pipeline("p", made(work, sync=sync)), range(4))
    assert result.counts == outlast.Counts(total=4, succeeded=2, skipped=2, source_exhausted=True)
    assert (result.status, result.outcome, result.success_rate) == ("completed", "success", 1.0)
    assert {item.error for item in result.items(status="skipped")} == {"odd"}


@both
def test_snooze_comes_back_later_and_costs_no_attempt(sync):
    """An item that is not ready waits off its slot, however often."""
    seen = []

    def work(item):
        seen.append(outlast.current().attempt)
        if len(seen) < 4:
            raise outlast.Snooze(60)
        return item

    stage = made(work, sync=sync, retry=outlast.RetryPolicy(max_attempts=1))
    with virtual_time() as time:
        result = trial(outlast.Pipeline("p", stage), ["a"])
        assert time.now == 0.0  # the run has a time of its own
    assert seen == [1, 1, 1, 1]
    (item,) = result.items()
    assert (item.status, item.attempts) == ("succeeded", 1)


@both
def test_degraded_succeeds_and_says_so(sync):
    """D-13: degraded is part of succeeded, with a warning."""

    def work(item):
        return outlast.Degraded(item, "from the cache") if item else item

    result = trial(outlast.Pipeline("p", made(work, sync=sync)), [0, 1])
    assert result.counts == outlast.Counts(total=2, succeeded=2, degraded=1, source_exhausted=True)
    assert [item.warnings for item in result.items()] == [(), ("degraded at work: from the cache",)]


@both
def test_a_returned_exception_is_a_value(sync):
    """Only what is raised fails; an output that cannot be stored is a failure of the item, not of the run."""

    def work(item):
        return str(ValueError(item)) if item else ValueError("kept")

    result = trial(outlast.Pipeline("p", made(work, sync=sync)), [0, 1])
    assert list(result.outputs()) == ["1"]
    (failed,) = result.items(status="dlq")
    assert failed.error == (
        "work: PermanentFailure: the output of work cannot be stored: expected a value made of JSON values, dates, dataclasses, models and "
        "their like, got: one of type ValueError. Return what can be stored, or do not ask to store it."
    )


@both
def test_repairs_change_the_input_and_are_no_retries(sync):
    """C-18: at most two, in order, without a wait; the outcome is a warning, the dead letter keeps the last input."""
    seen = []

    def work(item):
        seen.append(item)
        if len(item) > 2:
            raise ValueError("too long")
        return item

    def half(item, error):
        return item[: len(item) // 2]

    stage = made(work, sync=sync, repairs=[half, half])
    result = trial(outlast.Pipeline("p", stage), ["12345678", "1234567890123456"])
    assert seen.count("12345678") == 2
    good, bad = result.items()
    assert (good.status, good.value) == ("succeeded", "12")
    assert good.warnings == ("input of work repaired by half after ValueError",) * 2
    assert (bad.status, bad.attempts) == ("dlq", 3)
    (letter,) = result._store().letters()
    assert result._decode(letter.payload) == "1234"
    with pytest.raises(outlast.ConfigurationError, match="at most 2"):
        outlast.stage(repairs=[half] * 3)(work)


@pytest.mark.parametrize("batch", [None, 2])
@both
def test_a_request_that_the_service_refused_is_not_repaired(sync, batch):
    """User B12: no repair after a 400; after an answer of the wrong shape, a 422 and a 413 there is one."""
    repaired = []

    class Refused(Exception):
        def __init__(self, status):
            super().__init__(f"refused with {status}")
            self.status_code = status

    def work(given):
        for item in given if batch else [given]:
            if item == "wrong shape":
                raise ValueError("no JSON")
            if isinstance(item, int):
                raise Refused(item)
        return given

    def repair(item, error):
        repaired.append(item)
        return "good"

    stage = made(work, sync=sync, batch=batch, repairs=[repair])
    result = trial(outlast.Pipeline("p", stage), [400, 413, 422, "wrong shape", "good"])
    assert repaired.sort(key=str) is None
    assert repaired == [413, 422, "wrong shape"]
    assert (result.counts.succeeded, result.counts.dlq) == (4, 1)


@both
def test_a_fallback_answers_when_all_has_failed(sync):
    """The guard's fallback gets the same item; its answer is the output, with a warning."""

    def work(item):
        raise ConnectionResetError("down")

    def cached(item):
        if item == "unknown":
            raise LookupError("not cached")
        return f"cached {item}"

    guard = outlast.Guard(retry=NOW, fallback=cached)
    result = trial(outlast.Pipeline("p", made(work, sync=sync, guard=guard)), ["a", "unknown"])
    good, bad = result.items()
    assert (good.value, good.attempts) == ("cached a", 3)
    assert (bad.status, bad.error) == ("dlq", "work: LookupError: not cached")


def test_an_async_attempt_is_cancelled_on_time_and_tried_again():
    """A timeout is a transient failure of the attempt."""
    runs = []

    @outlast.stage(timeout=5, retry=NOW)
    async def work(item):
        runs.append(item)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return item

    result = trial(outlast.Pipeline("p", work), ["a"])
    assert list(result.outputs()) == ["a"]
    rows = result._store().attempts(result._number)
    assert [(row.outcome, row.error_type) for row in rows] == [("retrying", "AttemptTimeoutError"), ("success", None)]


def test_a_blocking_attempt_is_left_on_time_and_not_overlapped():
    """D-9: in a stage a timeout on blocking code means its thread is left; no next attempt while it still runs."""
    release = threading.Event()

    @outlast.stage(timeout=5, retry=NOW)
    def work(item):
        release.wait(30)
        return item

    try:
        result = trial(outlast.Pipeline("p", work), ["a"])
        (item,) = result.items()
        assert (item.status, item.attempts) == ("dlq", 1)
        assert "AttemptTimeoutError" in item.error
    finally:
        release.set()


@both
def test_current_and_log_records_say_where_the_code_stands(sync, caplog):
    """`current()` has run, item, stage and attempt, also in calls made by the stage; every log record has them too."""
    factory = logging.getLogRecordFactory()
    contexts = []

    @outlast.retry
    def inner():
        return outlast.current()

    def work(item):
        contexts.extend([outlast.current(), inner()])
        logging.getLogger("mine").warning("working")
        outlast.current().spend(tokens=3)
        outlast.current().warn("careful")
        if outlast.current().attempt == 1:
            raise ConnectionResetError("once")
        return outlast.current().idempotency_key

    pipeline = outlast.Pipeline("p", made(work, sync=sync, retry=NOW))
    with caplog.at_level(logging.WARNING):
        result = trial(pipeline, [{"id": 7}])
    (item,) = result.items()
    places = {(context.run_id, context.item_key, context.stage) for context in contexts}
    assert places == {(result.id, item.key, "work")}
    mine = [record for record in caplog.records if record.name == "mine"]
    assert [(r.outlast_run_id, r.outlast_item_key, r.outlast_stage, r.outlast_attempt) for r in mine] == [
        (result.id, item.key, "work", 1),
        (result.id, item.key, "work", 2),
    ]
    assert (item.spent, item.warnings) == ({"tokens": 6.0}, ("careful", "careful"))
    assert result.spent == {"tokens": 6.0}
    assert len(item.value) == 32
    assert logging.getLogRecordFactory() is factory  # records are as they were


@both
def test_context_variables_do_not_leak_from_item_to_item(sync):
    """Each attempt sees the context of whoever started the run, and leaves nothing behind."""
    variable = contextvars.ContextVar("variable", default="none")
    seen = []

    def work(item):
        seen.append(variable.get())
        variable.set(item)
        return item

    def after(item):
        seen.append(variable.get())
        return item

    token = variable.set("caller's")
    try:
        trial(outlast.Pipeline("p", made(work, sync=sync, concurrency=1), made(after, sync=sync)), ["a", "b", "c"])
    finally:
        variable.reset(token)
    assert seen == ["caller's"] * 6


def test_resources_are_opened_once_and_closed_after_the_last_item():
    """Sync and async context managers; the newest is closed first; what a test provides is not opened."""
    story = []

    @asynccontextmanager
    async def client():
        story.append("open client")
        yield "client"
        story.append("close client")

    @contextmanager
    def model():
        story.append("open model")
        yield "model"
        story.append("close model")

    @outlast.stage
    async def first(item, c=outlast.use(client)):
        story.append(f"{item} {c}")
        return item

    @outlast.stage
    def second(item, c=outlast.use(client), m=outlast.use(model)):
        story.append(f"{item} {c} {m}")
        return item

    pipeline = outlast.Pipeline("p", first, second)
    trial(pipeline, ["a"])
    assert story == ["open client", "open model", "a client", "a client model", "close model", "close client"]
    story.clear()
    trial(pipeline, ["a"], provide={client: "fake", model: "none"})
    assert story == ["a fake", "a fake none"]
    with pytest.raises(TypeError, match="give it c="):
        first("a")


def test_a_resource_that_cannot_be_opened_fails_the_run_with_its_error():
    """Nothing is read, and what was opened before is closed."""
    story = []

    @contextmanager
    def fine():
        yield story.append("open")
        story.append("close")

    @contextmanager
    def broken():
        raise OSError("no licence")
        yield

    @outlast.stage
    def work(item, a=outlast.use(fine), b=outlast.use(broken)):
        return item

    result = trial(outlast.Pipeline("p", work), ["a"])
    assert (result.status, result.reason, result.counts.total) == ("failed", "resource_error", 0)
    assert "no licence" in result.why
    assert story == ["open", "close"]


def test_a_sync_stage_that_returns_something_to_await_is_told_so():
    """A coroutine that nobody awaits would be a silent loss."""

    async def later():
        return 1

    result = trial(outlast.Pipeline("p", outlast.stage(lambda item: later())), ["a"])
    (item,) = result.items()
    assert (item.status, "async def" in item.error) == ("dlq", True)


def test_a_cancellation_inside_a_stage_concerns_its_item_only():
    """A stage whose own task was cancelled fails like any other; the run goes on."""

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    async def work(item):
        if item == 1:
            raise asyncio.CancelledError
        return item

    result = trial(outlast.Pipeline("p", work), range(3))
    assert list(result.outputs()) == [0, 2]
    assert result.counts.dlq == 1


def test_outputs_come_back_as_what_the_annotations_say():
    """Dataclasses are stored as JSON and made again."""

    @outlast.stage
    def parse(row: dict) -> Review:
        return Review(row["text"])

    result = trial(outlast.Pipeline("p", parse), [{"text": "good"}])
    assert list(result.outputs()) == [Review("good")]


@dataclass
class Review:
    text: str


def test_mistakes_in_a_stage_are_all_reported_at_once():
    """Every problem with its name."""

    def work(item):
        return item

    with pytest.raises(outlast.ConfigurationError) as caught:
        outlast.stage(concurrency=0, batch=0, retires=3)(work)
    assert len(caught.value.problems) == 3
    with pytest.raises(outlast.ConfigurationError, match="at least one stage"):
        outlast.Pipeline("p")
    stage = outlast.stage(work)
    with pytest.raises(
        outlast.ConfigurationError, match=r"names that differ, got: 'work'\. .*@outlast\.stage\(name=\.\.\.\)"
    ):
        outlast.Pipeline("p", stage, stage)
    for name, said in (("", "a name"), (7, "a name"), ("\ud800", "a name in Unicode")):
        with pytest.raises(outlast.ConfigurationError, match=f"expected name to be {said}"):
            outlast.stage(name=name)(work)
    with pytest.raises(outlast.ConfigurationError, match="names other than that of the source"):
        outlast.Pipeline("p", outlast.stage(name="source")(work))


def test_stages_of_one_factory_have_names(tmp_path):
    """Seeds L8: two stages of one function, one of them in batches, and their dead letters are told apart and replayed."""
    app = outlast.App("named-stages", store=f"sqlite:///{tmp_path}/named.db")
    broken = {"first", "second"}

    def made(name, **options):
        @outlast.stage(name=name, **options)
        def llm_call(item):
            if name in broken and 2 in (item if isinstance(item, list) else [item]):
                raise ValueError(f"{name} fails")
            return item

        return llm_call

    pipeline = outlast.Pipeline("named", made("first"), made("second", batch=2), app=app)
    assert [(stage.name, stage.__name__) for stage in pipeline.stages] == [
        ("first", "llm_call"),
        ("second", "llm_call"),
    ]
    pipeline.run([1, 2], check=False)
    assert [letter.stage for letter in app.dead_letters.find()] == ["first"]
    broken.remove("first")
    assert pipeline.reprocess(stage="first", check=False).counts.dlq == 1
    assert [letter.stage for letter in app.dead_letters.find()] == ["second"]
    broken.clear()
    assert pipeline.reprocess(stage="second").counts.succeeded == 1


@pytest.mark.parametrize("delay", ["a", None, -1, float("nan"), float("inf"), True])
def test_a_snooze_says_what_its_delay_is_to_be(delay):
    """In one sentence with what came, as for any other setting; also a ValueError, as before."""
    with pytest.raises(outlast.ConfigurationError, match="expected the delay of Snooze to be seconds") as caught:
        outlast.Snooze(delay)
    (problem,) = caught.value.problems
    assert f"got: {delay!r}." in problem
    assert [outlast.Snooze(given).delay for given in (0, 60, timedelta(minutes=1))] == [1.0, 60.0, 60.0]
