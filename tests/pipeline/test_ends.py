"""How runs end: what returns, what raises, what signals do, and that nothing goes on after a stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import queue
import signal
import sys
import threading
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import pytest

import outlast
from captured import captured
from outlast.kernel.clock import stopping
from outlast.pipeline.plan import Tuning
from outlast.testing import virtual_time

ONCE = outlast.RetryPolicy(max_attempts=1)
SENT = 4


def killing(number):
    """A stage that is under way when a signal comes, and ends well."""

    @outlast.stage(concurrency=1)
    def work(item):
        if item == SENT:
            os.kill(os.getpid(), number)
            if signal.getsignal(number) is not signal.SIG_IGN:
                assert stopping.get().wait(20)  # its handler runs in the main thread meanwhile
        return item

    return work


def run(pipeline, **options):
    return pipeline.run(iter(range(10**9)), run_key="k", sink=lambda _: None, **options)


def in_a_loop(pipeline, **options):
    async def cell():
        return run(pipeline, **options)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        return loop.run_until_complete(cell())  # as in a notebook: the loop has no handler of its own


def stream(pipeline, **options):
    return [result.value for result in pipeline.stream(iter(range(10**9)), **options)]


def stream_in_a_loop(pipeline, **options):
    async def cell():
        return stream(pipeline, **options)

    with asyncio.Runner() as runner:
        return runner.get_loop().run_until_complete(cell())


@pytest.fixture
def handlers():
    """The handlers of a program as it starts; they are as they were afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# --- signals ---


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("door", [run, in_a_loop, stream, stream_in_a_loop])
def test_a_signal_winds_down_and_then_does_what_it_always_does(sqlite_app, handlers, door, check):
    """D-21, user B3: KeyboardInterrupt or SystemExit(143) with the result and the way on, also with check=False; the handlers are as before."""
    for number, kind in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        before = signal.getsignal(number)
        with pytest.raises(kind) as ended:
            door(outlast.Pipeline(f"p{number}", killing(number), app=sqlite_app), check=check)
        result = outlast.result_of(ended.value)
        assert (result.status, result.counts.succeeded) == ("interrupted", SENT + 1)  # what was under way has ended
        assert ended.value.args == ((143,) if kind is SystemExit else ())
        assert f"goes on when it is run again with run_key={result.run_key!r}" in ended.value.__notes__[0]
        assert sqlite_app.store.run(result.id).status == "interrupted"
        assert signal.getsignal(number) is before


@pytest.mark.parametrize("door", [run, in_a_loop, stream, stream_in_a_loop])
def test_a_handler_of_the_programs_own_is_called_after_winding_down(sqlite_app, handlers, door):
    """D-21: it decides; if it returns, the run was interrupted, and says so unless check is False."""
    told = []

    def handler(number, _):
        told.append((number, sqlite_app.store.runs(limit=1)[0].status))

    signal.signal(signal.SIGTERM, handler)
    with pytest.raises(outlast.RunInterrupted) as ended:
        door(outlast.Pipeline("p", killing(signal.SIGTERM), app=sqlite_app))
    assert ended.value.result.status == "interrupted"
    assert told == [(signal.SIGTERM, "interrupted")]
    door(outlast.Pipeline("q", killing(signal.SIGTERM), app=sqlite_app), check=False)
    assert told == 2 * [(signal.SIGTERM, "interrupted")]

    def refuse(number, _):
        raise LookupError(number)

    signal.signal(signal.SIGTERM, refuse)
    with pytest.raises(LookupError) as refused:
        door(outlast.Pipeline("r", killing(signal.SIGTERM), app=sqlite_app), check=False)
    assert outlast.result_of(refused.value).status == "interrupted"


def test_what_the_program_ignores_stays_ignored(sqlite_app, handlers):
    """D-21: under nohup and the like a run goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipeline = outlast.Pipeline("p", killing(signal.SIGINT), app=sqlite_app)
    assert pipeline.run(range(10)).status == "completed"
    assert len(list(pipeline.stream(range(10)))) == 10
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("door", [stream, stream_in_a_loop])
def test_a_signal_while_the_taker_of_a_stream_is_busy(sqlite_app, handlers, door):
    """D-21: its code is interrupted at once, the run winds down before anybody hears of it, and the exception knows the run."""

    class Taker:
        def __init__(self, pipeline):
            self.pipeline = pipeline

        def stream(self, source):
            for result in self.pipeline.stream(source):
                if result.value == SENT:
                    signal.raise_signal(number)
                    raise AssertionError("it goes on")
                yield result

    @outlast.stage
    def work(item):
        return item

    for number, kind in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        before = signal.getsignal(number)
        with pytest.raises(kind) as ended:
            door(Taker(outlast.Pipeline(f"p{number}", work, app=sqlite_app)))
        result = outlast.result_of(ended.value)
        record = sqlite_app.store.run(result.id)
        assert (record.status, sqlite_app.store.run_lease(record.number, 0)) == ("interrupted", None)
        assert signal.getsignal(number) is before


def test_streams_that_overlap_give_the_handlers_back(sqlite_app, handlers):
    """In whatever order they end."""

    @outlast.stage
    def work(item):
        return item

    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    first, second = pipeline.stream(range(5)), pipeline.stream(range(5))
    next(first), next(second)
    assert len(list(first)) == len(list(second)) == 4
    third = pipeline.stream(range(5))
    next(third)
    third.close()
    assert len(list(pipeline.stream([1]))) == 1
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_before_anything_was_begun(sqlite_app, handlers, monkeypatch):
    """It ends the program as always; there is no result."""
    from outlast.pipeline import lifecycle

    def opened(*_):
        os.kill(os.getpid(), signal.SIGINT)
        raise InterruptedError("it is over")

    monkeypatch.setattr(lifecycle, "_opened", opened)
    with pytest.raises(KeyboardInterrupt) as ended:
        run(outlast.Pipeline("p", killing(signal.SIGINT), app=sqlite_app))
    assert outlast.result_of(ended.value) is None


def test_arun_leaves_signals_alone_and_lets_a_cancellation_through(sqlite_app, handlers):
    """D-21: the handlers stay as they are; the exception knows the run, also behind `asyncio.timeout`."""
    seen = []

    @outlast.stage
    async def work(item):
        seen.append(signal.getsignal(signal.SIGTERM))
        if item == 1:
            deadline.pop().reschedule(0)
            await asyncio.Event().wait()
        return item

    deadline = []
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)

    async def cut_short(work):
        async with asyncio.timeout(None) as limit:
            deadline.append(limit)
            return await work

    async def taken():
        return [result async for result in pipeline.astream([0, 1])]

    with pytest.raises(TimeoutError) as late:
        asyncio.run(cut_short(pipeline.arun(range(3), run_key="k")))
    assert set(seen) == {signal.SIG_DFL}
    assert outlast.result_of(late.value).status == "interrupted"

    with pytest.raises(TimeoutError) as late:
        asyncio.run(cut_short(taken()))
    assert outlast.result_of(late.value).status == "interrupted"


def test_map_passes_signals_on(handlers):
    """D-21: what runs may end, nothing else is begun, and the signal is the program's."""
    begun = []

    def work(item):
        begun.append(item)
        if item == SENT:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.05)

    with pytest.raises(KeyboardInterrupt):
        outlast.map(work, range(10_000), concurrency=2)
    assert len(begun) < 100


# --- what raises ---


@contextmanager
def ending(asked):
    """A stage whose runs are asked to end in their middle."""

    @outlast.stage(concurrency=1)
    async def work(item):
        if item == SENT:
            runners[-1].end(asked)
        return item

    with captured() as runners:
        yield work


@pytest.mark.parametrize(("asked", "status"), [("pause", "paused"), ("cancel", "cancelled"), ("stop", "interrupted")])
def test_a_run_that_others_end_does_not_return(app, asked, status):
    """D-21, user B3: RunInterrupted with the result and the way on; what follows in the program does not see half of the outputs."""
    with (
        ending(asked) as work,
        pytest.raises(outlast.RunInterrupted, match=f"run k of p {status}: 5 of ") as ended,
    ):
        outlast.Pipeline("p", work, app=app).run(iter(range(10**9)), run_key="k")
    assert ended.value.result is outlast.result_of(ended.value)
    assert ended.value.result.status == status
    (note,) = ended.value.__notes__
    assert ("another run_key" if status == "cancelled" else "run again with run_key='k'") in note
    with ending(asked) as work:
        assert outlast.Pipeline("q", work, app=app).run(iter(range(10**9)), check=False).status == status
    loaded = pickle.loads(pickle.dumps(ended.value))
    assert (type(loaded), loaded.result.status, loaded.__notes__) == (outlast.RunInterrupted, status, [note])


def test_a_sink_that_fails_is_a_failed_run_raised_from_its_cause(app):
    """D-21, user B3: a defect in the program's own sink is not taken for an interruption; a resume goes on."""
    taken, broken = [], [True]

    def sink(outputs):
        if broken:
            raise KeyError("bug in my sink")
        taken.extend(outputs)

    @outlast.stage
    def work(item):
        return item

    pipeline = outlast.Pipeline("p", work, app=app)
    with pytest.raises(outlast.RunFailed, match="bug in my sink") as ended:
        pipeline.run(range(10), run_key="k", sink=sink)
    assert not isinstance(ended.value, outlast.RunInterrupted)
    assert isinstance(ended.value.__cause__, KeyError)
    assert (ended.value.result.status, ended.value.result.reason) == ("failed", "store_error")
    assert app.store.find_run("p", "k").status == "failed"
    broken.clear()
    assert pipeline.run(range(10), run_key="k", sink=sink).counts.succeeded == 10
    assert sorted(taken) == list(range(10))


def test_a_sink_that_fails_while_the_run_winds_down_is_said(app):
    """What was finished meanwhile is not on record, so that the run has failed, and not just ended."""

    def sink(outputs):
        raise KeyError("bug in my sink")

    with ending("pause") as work:
        result = outlast.Pipeline("p", work, app=app).run(iter(range(10**9)), check=False, sink=sink)
    assert (result.status, result.reason, type(result.error)) == ("failed", "store_error", KeyError)


def test_a_sink_that_cannot_be_finished_is_a_failed_run(app, monkeypatch):
    """All items are on record; a resume finishes it."""
    from outlast.components.sinks import Sink

    def finish(_):
        raise PermissionError("not here")

    @outlast.stage
    def work(item):
        return item

    pipeline = outlast.Pipeline("p", work, app=app)
    with monkeypatch.context() as patch:
        patch.setattr(Sink, "finish", finish)
        with pytest.raises(outlast.RunFailed, match="not here") as ended:
            pipeline.run(range(10), run_key="k", sink=lambda _: None)
    assert (ended.value.result.status, ended.value.result.counts.succeeded) == ("failed", 10)
    assert pipeline.run(range(10), run_key="k", sink=lambda _: None).status == "completed"


def test_a_stream_raises_at_its_end_unless_told_not_to(app):
    """D-21: also `astream`; every result came before that."""

    @outlast.stage(retry=ONCE)
    def work(item):
        raise ValueError(item)

    pipeline = outlast.Pipeline("p", work, app=app)
    taken = []
    with pytest.raises(outlast.RunFailed) as ended:
        taken.extend(pipeline.stream(range(3)))
    assert ended.value.result.counts.dlq == 3
    assert len(list(pipeline.stream(range(3), check=False))) == 3

    async def all_of(**options):
        return [result async for result in pipeline.astream(range(3), **options)]

    with pytest.raises(outlast.RunFailed):
        asyncio.run(all_of())
    assert len(asyncio.run(all_of(check=False))) == 3


def test_only_an_exception_of_a_run_has_a_result():
    """Also when causes form a circle."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert outlast.result_of(one) is None


# --- one item's exit is its own ---


class Odd(BaseException):
    """Of somebody who wanted not to be caught."""


class Unspeakable(Exception):
    def __str__(self):  # noqa: PLE0307 - that is the point
        sys.exit("not even its text can be had")


THROWN = {
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "own": Odd,
    "generator": GeneratorExit,
    "unspeakable": Unspeakable,
    "long": lambda: ValueError("x" * 10_000_000),
}


def throwing(kind, items, **options):
    def act(item):
        if item == 2:
            raise THROWN[kind]()  # noqa: RSE102 - made here
        return item

    if options.pop("asynchronous", False):

        async def work(item):
            await asyncio.sleep(0)
            return [act(one) for one in item] if items else act(item)

    else:

        def work(item):
            return [act(one) for one in item] if items else act(item)

    return outlast.stage(retry=ONCE, **options)(work)


@pytest.mark.parametrize("kind", THROWN)
def test_whatever_a_stage_raises_is_that_items_failure(sqlite_app, kind):
    """breaker H1: in threads, in the loop, in batches, with a thread for each attempt; the others go on, and there is a dead letter."""
    for name, options in {
        "thread": {},
        "loop": {"asynchronous": True},
        "guarded": {"asynchronous": True, "timeout": 20},
        "isolated": {"isolation": "thread", "timeout": 20},
        "batch": {"batch": 3, "concurrency": 1},
        "batch-loop": {"batch": 3, "concurrency": 1, "asynchronous": True},
    }.items():
        pipeline = outlast.Pipeline(
            name, throwing(kind, "batch" in options, **options), app=sqlite_app, failure_budget=1
        )
        result = pipeline.run(range(5), item_key=str, check=False)
        assert (name, result.counts.succeeded, result.counts.dlq) == (name, 4, 1)
        (letter,) = sqlite_app.dead_letters.find(pipeline=name)
        assert (letter.item_key, len(letter.error) < 3000) == ("2", True)
        assert len(list(pipeline.stream(range(5), check=False))) == 5


def test_what_decides_about_an_attempt_may_exit_too(sqlite_app):
    """breaker H1: repairs, predicates and fallbacks are the user's code as well."""

    def leave(*_):
        sys.exit(4)

    def work(item):
        if item == 2:
            raise ValueError("two")
        return item

    async def soon(item):
        return work(item)

    stages = {
        "repair": outlast.stage(repairs=[leave], retry=ONCE)(work),
        "fallback": outlast.stage(guard=outlast.Guard(retry=ONCE, fallback=leave))(work),
        "fallback-loop": outlast.stage(guard=outlast.Guard(retry=ONCE, fallback=leave))(soon),
        "repair-loop": outlast.stage(repairs=[leave], retry=ONCE)(soon),
    }
    for name, stage in stages.items():
        result = outlast.Pipeline(name, stage, app=sqlite_app, failure_budget=1).run(range(5), check=False)
        assert (name, result.counts.succeeded, result.counts.dlq) == (name, 4, 1)


def test_a_task_of_a_stage_may_exit_or_be_cancelled(sqlite_app):
    """breaker H1: what such a task does to the event loop and to its own task ends neither; nobody is left pending."""

    async def leave():
        sys.exit(5)

    @outlast.stage(retry=ONCE, concurrency=2)
    async def work(item):
        if item == 2:
            await asyncio.create_task(leave())
        if item == 4:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        if item == 6:
            asyncio.current_task().cancel()  # and it does not wait to feel it
        return item

    for name, door in (("run", lambda pipeline: pipeline.run(range(200), check=False)), ("stream", _streamed)):
        counts = door(outlast.Pipeline(name, work, app=sqlite_app, failure_budget=1)).counts
        assert (counts.total, counts.pending) == (200, 0)
        assert counts.dlq in {2, 3}


def _streamed(pipeline):
    list(pipeline.stream(range(200), check=False))
    record = pipeline.app.store.runs(pipeline=pipeline.name)[0]
    return SimpleNamespace(
        counts=outlast.Counts(
            total=record.counts.total,
            dlq=record.counts.dlq,
            pending=record.counts.total - record.counts.succeeded - record.counts.dlq,
        )
    )


def test_map_takes_an_exit_as_that_items_failure():
    """breaker H1: also in amap, where an item may cancel its own task."""

    def work(item):
        if item == 2:
            sys.exit(3)
        if item == 3:
            raise asyncio.CancelledError
        return item

    async def soon(item):
        if item == 4:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return work(item)

    result = outlast.map(work, range(6), concurrency=2)
    assert [item for item, _ in result.failed] == [2, 3]
    assert "called sys.exit: 3" in str(result.failed[0][1])
    result = asyncio.run(outlast.amap(soon, range(6), concurrency=2))
    assert [item for item, _ in result.failed] == [2, 3, 4]
    assert result.total == 6

    async def cut_short():
        async with asyncio.timeout(None) as limit:

            async def hang(item):
                limit.reschedule(0)
                await asyncio.Event().wait()

            await outlast.amap(hang, range(6), concurrency=2)

    with pytest.raises(TimeoutError):
        asyncio.run(cut_short())


@pytest.mark.parametrize("thrown", [SystemExit, ValueError, asyncio.CancelledError])
def test_neither_a_log_handler_nor_a_hook_ends_a_run(sqlite_app, thrown):
    """breaker, low: whatever they raise, also where a run warns of something itself."""

    class Hostile(logging.Handler):
        def handle(self, record):
            raise thrown

    def hook(event):
        raise thrown

    @contextmanager
    def opened():
        yield 1
        raise ValueError("it cannot be closed")

    @outlast.stage(retry=ONCE)
    def work(item, resource=outlast.use(opened)):
        if item == 2:
            raise ValueError("two")
        return item

    log, handler = logging.getLogger("outlast"), Hostile()
    log.addHandler(handler)
    forget = outlast.observe.subscribe(hook)
    try:
        result = outlast.Pipeline("p", work, app=sqlite_app, failure_budget=1).run(range(5), check=False)
    finally:
        forget()
        log.removeHandler(handler)
    assert (result.counts.succeeded, result.counts.dlq) == (4, 1)


# --- stop means stop ---


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_after_a_stop_no_attempt_begins(sqlite_app, asynchronous, concurrency):
    """D-30, user B16, seeds M4: what overshoots is bounded by what was running, for quick stages too, and for all three ways to stop."""

    def stage(error):
        calls = []

        def work(item):
            calls.append(item)
            if item >= 100:
                raise error
            return item

        async def soon(item):
            return work(item)

        return outlast.stage(concurrency=concurrency, retry=ONCE)(soon if asynchronous else work), calls

    def ended(name, error, expected, **options):
        options = dict(options)
        made, calls = stage(error)
        run_options = {"on_item_error": options.pop("on_item_error", "dlq")}
        pipeline = outlast.Pipeline(name, made, app=sqlite_app, **options)
        result = pipeline.run(range(5000), check=False, **run_options)
        assert result.status == "failed"
        assert (name, result.reason) == (name, expected[0])
        assert expected[1] <= len(calls) <= expected[1] + concurrency - 1, name
        assert result.counts.finished == len(calls)

    ended("stop", ValueError("x"), ("item_error", 101), on_item_error="stop")
    ended("fatal", ModuleNotFoundError("No module named 'x'"), ("fatal_error", 101))
    ended("same", ValueError("x"), ("same_failure", 150))
    ended("budget", ValueError("x"), ("failure_budget_exceeded", 120), failure_check_interval=40, failure_budget=0.1)


def test_a_stop_gives_back_what_waits_for_its_next_attempt_or_stage(app):
    """D-30: an item between two attempts or stages begins neither; it is pending, and a resume goes on with it."""
    patient = outlast.RetryPolicy(max_attempts=3, initial_delay=30, jitter=0)
    broken = [True]
    seen = []

    @outlast.stage(retry=patient, concurrency=4)
    async def first(item):
        if item == 0 and broken:
            raise ConnectionResetError("later")
        return item

    @outlast.stage(concurrency=1, retry=ONCE)
    async def second(item):
        seen.append(item)
        if broken:
            raise ValueError("x")
        return item

    pipeline = outlast.Pipeline("p", first, second, app=app)
    with virtual_time():
        result = pipeline.run(range(50), run_key="k", on_item_error="stop", check=False)
        assert (result.reason, len(seen)) == ("item_error", 1)
        assert (result.counts.dlq, result.counts.pending) == (1, result.counts.total - 1)
        broken.clear()
        assert pipeline.run(range(50), run_key="k").counts.succeeded == 49


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_stop_in_the_order_of_the_source(app, sync):
    """D-30: the item that failed is on record when those before it have ended; behind it nothing is begun."""
    began = []
    done = threading.Event()

    def act(item):
        began.append(item)
        if item == 3:
            raise ValueError("three")
        return item

    async def soon(item):
        if item == 1:
            while 3 not in began:  # noqa: ASYNC110 - it has no loop to make an event in
                await asyncio.sleep(0)
        return act(item)

    def work(item):
        if item == 3:
            done.set()
        if item == 1:
            assert done.wait(20)
        return act(item)

    out = []
    stage = outlast.stage(concurrency=2, retry=ONCE)(work if sync else soon)
    result = outlast.Pipeline("p", stage, app=app).run(
        range(1000), ordered=True, on_item_error="stop", sink=out.extend, check=False
    )
    assert (result.reason, out[:3], result.counts.dlq) == ("item_error", [0, 1, 2], 1)
    # Those that the other thread did while the third was on its way to fail, which is up to the machine, and of a thousand a few.
    assert set(out[3:]) <= set(began) - {0, 1, 2, 3}
    assert len(began) <= 30


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_snooze_ends_7_days_after_the_first_one(sqlite_app, sync, batch):
    """D-31, user F16: then the item is a dead letter that says so; every stage has its own 7 days, and others are not held up."""
    tried = Counter()

    def one(item):
        tried[item] += 1
        if item == 0 or (item == 1 and tried[item] < 150):
            raise outlast.Snooze(3600)
        return item

    def listed(item):
        try:
            return one(item)
        except outlast.Snooze as snooze:
            return snooze

    def many(items):
        return [listed(item) for item in items]

    async def soon(item):
        return many(item) if batch else one(item)

    def first(item):
        if item == 0 and not before:
            before.append(item)
            raise outlast.Snooze(6 * 86400)
        return item

    before = []
    stages = outlast.stage(first), outlast.stage(batch=batch)((many if batch else one) if sync else soon)
    with virtual_time() as time:
        result = outlast.Pipeline("p", *stages, app=sqlite_app, failure_budget=1).run(
            range(2), item_key=str, check=False
        )
    assert (result.counts.succeeded, result.counts.dlq) == (1, 1)
    (letter,) = sqlite_app.dead_letters.find()
    assert (letter.item_key, letter.error_class) == ("0", "permanent_failure")
    assert "to come within 7 days of its first Snooze" in letter.error
    assert (tried[0] in {168, 169}, tried[1]) == (True, 150)  # items of a batch wait a moment for each other
    assert 12.9 * 86400 <= time.now < 13 * 86400 + 60


@pytest.mark.parametrize("days_before", [0, 6])
def test_a_snooze_may_end_exactly_seven_days_after_the_first_one(sqlite_app, days_before):
    """D-31: the bound itself is allowed, by one snooze or by two; a second more makes the item a dead letter."""
    day = 86_400
    for more, ended in ((0, (1, 0)), (1, (0, 1))):
        left = iter([*([days_before * day] if days_before else []), (7 - days_before) * day + more])

        def wait(item, left=left):
            for seconds in left:
                raise outlast.Snooze(seconds)
            return item

        with virtual_time():
            pipeline = outlast.Pipeline(f"p{more}", outlast.stage(wait), app=sqlite_app, failure_budget=1)
            counts = pipeline.run(["a"], check=False).counts
        assert (counts.succeeded, counts.dlq) == ended


# --- on record ---


@pytest.mark.parametrize("batch", [None, 2])
def test_attempts_that_end_while_a_run_winds_down_are_on_record(app, batch):
    """user B15: one that fails then, and one that is given up; the items are pending, and every call was counted."""
    begun = []

    async def act(item):
        begun.append(item)
        if len(begun) == 2:
            runners[0].end("interrupted")
        if item == 0 or (batch and 0 in item):
            raise TimeoutError("late")
        await asyncio.sleep(0)  # until then it is no task that can be cancelled, and the run waits for it
        runners[0].cancel()
        await asyncio.Event().wait()

    stage = outlast.stage(batch=batch, concurrency=2)(act)
    with captured() as runners:
        result = outlast.Pipeline("p", stage, app=app).run(range(4) if batch else [1, 0], run_key="k", check=False)
    assert (result.status, result.counts.pending) == ("interrupted", 4 if batch else 2)
    record = app.store.find_run("p", "k")
    rows = app.store.attempts(record.number)
    assert sorted(row.error_type for row in rows) == sorted(["InterruptedError", "TimeoutError"] * (batch or 1))
    assert {row.outcome for row in rows} == {"retrying"}


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize(
    ("error", "guard", "ended"),
    [
        (ConnectionResetError, outlast.Guard(retry=outlast.RetryPolicy(delays=[1]), idempotent=False), "ambiguous"),
        (ConnectionResetError, outlast.Guard(retry=None, idempotent=False), "exhausted"),
        (RuntimeError, outlast.Guard(retry=outlast.RetryPolicy(delays=[1]), idempotent=False), "unclear"),
        (ValueError, outlast.Guard(), "permanent"),
        (RuntimeError, outlast.Guard(), None),
        (ConnectionResetError, outlast.Guard(retry=None), None),
        (ConnectionRefusedError, outlast.Guard(idempotent=False), None),
        (ValueError, outlast.Guard(fallback=lambda _: [0, 0]), None),
    ],
    ids=["ambiguous", "no retry", "unclear, once", "permanent", "unclear", "transient", "refused", "fallback"],
)
def test_a_failure_that_would_not_be_retried_ends_the_item_while_a_run_winds_down(app, batch, error, guard, ended):
    """A resume must not repeat work that may have been done; a failure that the signal may have caused says nothing."""
    begun = []

    async def act(item):
        begun.append(item)
        if len(begun) == 1:
            runners[0].end("interrupted")
            raise error("lost")
        return item

    stage = outlast.stage(batch=batch, guard=guard)(act)
    pipeline = outlast.Pipeline("p", stage, app=app)
    with captured() as runners:
        result = pipeline.run([1], run_key="k", check=False)
    reasons = [letter.stop_reason for letter in app.dead_letters.find()]
    assert (reasons, result.counts.pending) == (([ended], 0) if ended else ([], 1))
    pipeline.run([1], run_key="k", check=False)
    assert len(begun) == (1 if ended else 2)


def test_a_fallback_does_not_hide_that_an_item_may_have_been_done(app):
    """It does not run while the run winds down, and the stage is not called again."""
    begun = []

    @outlast.stage(guard=outlast.Guard(retry=None, idempotent=False, fallback=lambda _: 0, fallback_on=["all"]))
    async def act(item):
        begun.append(item)
        runners[0].end("interrupted")
        raise ConnectionResetError("lost")

    pipeline = outlast.Pipeline("p", act, app=app)
    with captured() as runners:
        pipeline.run([1], run_key="k", check=False)
    pipeline.run([1], run_key="k", check=False)
    assert (begun, [letter.stop_reason for letter in app.dead_letters.find()]) == ([1], ["exhausted"])


def test_a_signal_does_not_wait_for_a_disk_that_is_full(app, monkeypatch):
    """D-21: a sink that cannot be written to is waited for, but after a signal for no longer than for the attempts under way."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(grace=0.2))
    told = []

    def full(_: list) -> None:
        if not told:
            told.append(os.kill(os.getpid(), signal.SIGTERM))
        raise OSError(errno.ENOSPC, "no space left on device")

    @outlast.stage
    async def same(number: int) -> int:
        return number

    with pytest.raises(SystemExit) as ended:  # within the minute that a test has; the patience for a sink is two
        outlast.Pipeline("p", same, app=app).run(range(3), run_key="k", sink=full)
    assert ended.value.args == (143,)
    assert outlast.result_of(ended.value).counts.succeeded == 0
    assert app.store.find_run("p", "k").status in {"interrupted", "failed"}


# --- a lease is given back on every way out ---


def interrupting():
    """A stage whose two items both raise KeyboardInterrupt, the second one while the run winds down; once `bad` is empty they succeed."""
    bad, together = [True], []

    @outlast.stage(retry=None, concurrency=2)
    async def work(item):
        if not bad:
            return item
        together.append(item)
        if len(together) == 2:
            raise KeyboardInterrupt
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyboardInterrupt

    return work, bad


def interrupted_twice(pipeline, how):
    if how == "run":
        pipeline.run(range(2), run_key="k")
    elif how == "stream":
        list(pipeline.stream(range(2)))
    elif how == "notebook":

        async def cell():
            pipeline.run(range(2), run_key="k")

        asyncio.run(cell())
    else:
        asyncio.run(pipeline.arun(range(2), run_key="k"))


@pytest.mark.parametrize("how", ["run", "stream", "notebook"])
def test_two_interrupts_in_one_pass_leave_no_lease(sqlite_app, handlers, how):
    """D-21, C-27: what is raised knows the result, the run is interrupted and free, and goes on at once."""
    work, bad = interrupting()
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    with pytest.raises(KeyboardInterrupt) as ended:
        interrupted_twice(pipeline, how)
    result = outlast.result_of(ended.value)
    (record,) = sqlite_app.store.runs()
    assert (result.status, result.counts.pending, record.status) == ("interrupted", 2, "interrupted")
    assert sqlite_app.store.run_lease(record.number, 0) is None
    bad.clear()
    again = pipeline.run(range(2), run_key=record.run_key)
    assert (again.status, again.counts.succeeded) == ("completed", 2)


def test_a_loop_that_is_torn_down_around_a_run_gives_the_lease_back(sqlite_app, handlers, on_terms):
    """D-21, C-27: `asyncio.run` gives up at a second interrupt; the same process goes on at once, the store is told by the heart."""
    on_terms(ttl=0.4)
    work, bad = interrupting()
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice(pipeline, "arun")
    hearts = [thread for thread in threading.enumerate() if thread.name == "outlast-heartbeat"]
    for heart in hearts:  # none may be left already
        heart.join(20)
    (record,) = sqlite_app.store.runs()
    left = [heart for heart in hearts if heart.is_alive()]
    assert (left, sqlite_app.store.run_lease(record.number, 0)) == ([], None)
    bad.clear()
    assert pipeline.run(range(2), run_key="k").counts.succeeded == 2


def test_a_run_that_is_torn_down_is_taken_over_by_its_own_process_at_once(sqlite_app, handlers):
    """D-21, C-27: nobody waits for a lease whose loop is closed."""
    work, bad = interrupting()
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice(pipeline, "arun")
    bad.clear()
    assert pipeline.run(range(2), run_key="k").counts.succeeded == 2


def test_a_cancellation_while_a_run_is_opened_gives_the_lease_back(sqlite_app, monkeypatch):
    """D-21, C-27: the thread that opens it is waited for, and what it took is given back."""
    from outlast.pipeline import lifecycle

    work, bad = interrupting()
    bad.clear()
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    real, reached, go_on = lifecycle._opened, threading.Event(), threading.Event()

    def slowly(*what):
        reached.set()
        assert go_on.wait(20)
        return real(*what)

    async def cancelled():
        task = asyncio.create_task(pipeline.arun(range(2), run_key="k"))
        await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await task

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "_opened", slowly)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
    assert sqlite_app.store.runs() == []  # nothing was begun
    assert pipeline.run(range(2), run_key="k").counts.succeeded == 2


def test_cancellations_while_a_run_winds_down_give_the_lease_back(sqlite_app, monkeypatch):
    """D-21, C-27: however often it is cancelled, its end is written and its lease given back."""
    from outlast.pipeline import lifecycle

    work, bad = interrupting()
    bad.clear()
    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    real, reached, go_on = lifecycle._ended, threading.Event(), threading.Event()

    def slowly(*what, **how):
        reached.set()
        assert go_on.wait(20)
        real(*what, **how)

    async def cancelled():
        task = asyncio.create_task(pipeline.arun(range(2), run_key="k"))
        await asyncio.to_thread(reached.wait, 20)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        go_on.set()
        await task

    monkeypatch.setattr(lifecycle, "_ended", slowly)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    (record,) = sqlite_app.store.runs()
    assert (record.status, sqlite_app.store.run_lease(record.number, 0)) == ("completed", None)


class Unusual(BaseException):
    """No Exception, and nobody's control flow."""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("thrown", [asyncio.CancelledError, GeneratorExit, SystemExit, Unusual, StopAsyncIteration])
@pytest.mark.parametrize("where", ["generator", "async generator", "item_key", "later item_key", "sink"])
def test_whatever_a_source_a_key_function_or_a_sink_raises_ends_the_run(sqlite_app, where, thrown):
    """It is the run's error, with true counts; the run waited for ever, or the thread that writes was gone in silence."""

    @outlast.stage
    async def work(item):
        return item

    def raising(*_):
        raise thrown

    def source():
        yield from range(5)
        raise thrown

    async def waiting():
        for item in range(5):
            yield item
        raise thrown

    options = {
        "generator": {"source": source()},
        "async generator": {"source": waiting()},
        "item_key": {"item_key": raising},
        "later item_key": {"item_key": lambda item: raising() if item == 3 else str(item)},
        "sink": {"sink": raising},
    }[where]
    source_ = options.pop("source", range(5))
    if where == "item_key":
        with pytest.raises(outlast.ConfigurationError, match=f"got: {thrown.__name__} in the first item") as caught:
            outlast.Pipeline("p", work, app=sqlite_app).run(source_, **options)
        assert isinstance(caught.value.__cause__, thrown)
        return
    result = outlast.Pipeline("p", work, app=sqlite_app).run(source_, run_key="k", check=False, **options)
    kept = sqlite_app.store.find_run("p", "k").counts
    assert kept.succeeded == result.counts.succeeded
    assert kept.total == (0 if where == "sink" else result.counts.total)
    told = (result.status, result.reason, result.counts.succeeded)
    if where == "later item_key":  # one item without a key stops nobody
        assert (told, result.error) == (("completed", None, 5), None)
    elif where == "sink":
        assert (told, type(result.error)) == (("failed", "store_error", 0), thrown)
    else:  # an asynchronous generator may not raise what ends it
        assert told == ("failed", "source_error", 5)
        assert isinstance(result.error, thrown) or isinstance(result.error.__cause__, thrown)


@pytest.mark.timeout(200)
def test_a_run_that_is_cancelled_while_a_resource_opens_is_interrupted(sqlite_app):
    """It was on record as completed, because there were no items."""
    opening = asyncio.Event()

    @asynccontextmanager
    async def client():
        opening.set()
        await asyncio.Event().wait()
        yield

    @outlast.stage
    async def work(item, client=outlast.use(client)):
        return item

    async def main():
        task = asyncio.create_task(outlast.Pipeline("p", work, app=sqlite_app).arun(range(3), run_key="k"))
        await opening.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    run = sqlite_app.store.find_run("p", "k")
    assert (run.status, run.why.split(":")[0], run.counts.total) == ("interrupted", "interrupted", 0)


@pytest.mark.parametrize("thrown", [asyncio.CancelledError, SystemExit, Unusual])
def test_a_resource_that_cannot_be_opened_fails_the_run(sqlite_app, thrown):
    """Whatever it raises; and the source is closed."""
    closed = []

    @contextmanager
    def client():
        raise thrown
        yield

    @outlast.stage
    def work(item, client=outlast.use(client)):
        return item

    def source():
        try:
            yield 1
        finally:
            closed.append(True)

    items = source()
    result = outlast.Pipeline("p", work, app=sqlite_app).run(items, run_key="k", check=False)
    run = sqlite_app.store.find_run("p", "k")
    assert (result.status, result.reason, type(result.error), run.status) == (
        "failed",
        "resource_error",
        thrown,
        "failed",
    )
    assert items.gi_frame is None


@pytest.mark.timeout(200)
@pytest.mark.parametrize("times", [1, 2])
def test_who_does_not_wait_for_a_resource_to_open_need_not(sqlite_app, times):
    """Asked once, the run begins nothing; asked twice, what opens is not waited for."""
    opening, opened, left = threading.Event(), asyncio.Event(), []

    @asynccontextmanager
    async def client():
        opening.set()
        try:
            await opened.wait()
        except asyncio.CancelledError:
            left.append("opening")
            raise
        yield

    @outlast.stage
    async def work(item, client=outlast.use(client)):
        left.append(item)

    async def main():
        pipeline = outlast.Pipeline("p", work, app=sqlite_app)
        task = asyncio.create_task(pipeline.arun(range(3), run_key="k", check=False))
        await asyncio.to_thread(opening.wait, 20)
        assert runners
        runners[0].end("interrupted")
        if times == 2:
            runners[0].cancel()
        else:
            opened.set()
        return await task

    with captured() as runners:
        result = asyncio.run(main())
    assert (result.status, result.counts.total, left) == ("interrupted", 0, ["opening"] * (times - 1))


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("door", "keyed"), [("run", False), ("run", True), ("stream", False)])
def test_a_signal_ends_the_waiting_of_a_source(sqlite_app, handlers, monkeypatch, door, keyed):
    """Ctrl-C while the source stands in a queue: the run is interrupted and goes on later; nobody heard it before the next item came."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(blocked=-1.0))  # at once, for whoever stands in the source
    closed = []

    def source():
        try:
            yield from range(0 if keyed else 5)
            os.kill(os.getpid(), signal.SIGINT)
            yield queue.SimpleQueue().get()
        finally:
            closed.append(True)

    @outlast.stage
    async def work(item):
        return item

    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    options = {"item_key": str} if keyed else {}
    with pytest.raises(KeyboardInterrupt) as ended:
        [*pipeline.stream(source())] if door == "stream" else pipeline.run(source(), **options)
    result = outlast.result_of(ended.value)
    assert (closed, signal.getsignal(signal.SIGINT)) == ([True], signal.default_int_handler)
    if result is not None:  # else nothing was begun
        assert (result.status, result.counts.source_exhausted) == ("interrupted", False)
        assert pipeline.run(range(6), run_key=result.run_key, **options).counts.succeeded == 6
