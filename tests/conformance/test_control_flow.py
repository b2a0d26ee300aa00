"""Control flow and exceptions: what is never caught, what is raised in the end, and what must not get in its way."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest
import trio
import trio.testing

from conformance.adapter import statement
from conformance.bodies import Story, caught, failing, in_threads, settled, trip
from conformance.cases import cases

CONTROL_FLOW = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
PREDICATES = {
    "a type": {"on": (Exception,)},
    "a tuple": {"on": (ConnectionError, OSError, ValueError)},
    "everything": {"on": "everything"},
    "a predicate": {"on": lambda error: True},
    "a negation": {"on": "everything", "never": (ValueError,)},
    "the library's own": {},
}
each_predicate = cases("predicate", PREDICATES.values(), ids=PREDICATES)


# -- never caught


@statement(1)
@each_predicate
def test_control_flow_passes_after_one_attempt(subject, way, mode, predicate):
    """semantics 1: whatever the policy matches, an interruption raised by the body ends the call and is raised as it is."""
    for interruption in CONTROL_FLOW:
        story = failing(interruption)
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, **predicate))
        assert (story.calls, story.raised) == (1, [error])


@statement(1, needs=["thread_timeout"])
@each_predicate
def test_control_flow_passes_from_a_thread_of_an_attempt(subject, predicate):
    """semantics 1: also where the attempt runs in a thread of its own."""
    for interruption in CONTROL_FLOW:
        story = failing(interruption)
        error = caught(subject.protect(story.fn, timeout=60, thread=True, **predicate))
        assert (story.calls, story.raised) == (1, [error])


@statement(1)
@each_predicate
def test_a_group_with_control_flow_in_it_passes_after_one_attempt(subject, way, mode, predicate):
    """semantics 1: an interruption inside of a group of exceptions is still one."""
    group = BaseExceptionGroup("both", [ConnectionResetError(), KeyboardInterrupt()])
    story = failing(group)
    error = mode.catch(subject.protect(mode.body(story.fn), way=way, **predicate))
    assert (story.calls, error) == (1, group)


@statement(2, needs=["async"])
@each_predicate
def test_a_caller_that_gives_up_gets_its_timeout(subject, way, predicate):
    """semantics 2: `wait_for` around a retried coroutine that takes longer raises TimeoutError, and nothing is tried again."""
    calls = []

    async def body():
        calls.append("begun")
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, over.set)
        await over.wait()
        return "too late"

    async def main():
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(subject.protect(body, way=way, **predicate)(), 0.02)
        return time.monotonic() - began

    assert asyncio.run(main()) >= 0.02
    assert calls == ["begun"]


def in_a_cancel_scope(subject, body, *, seconds, **options):
    """Whether a cancel scope of so many seconds around the protected call ended cancelled, and when, on a clock that jumps."""

    async def main():
        began = trio.current_time()
        with trio.move_on_after(seconds) as scope:
            await subject.protect(body, **options)()
        return scope.cancelled_caught, round(trio.current_time() - began, 6)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@statement(3, needs=["trio"])
@each_predicate
def test_a_cancel_scope_ends_a_running_attempt(subject, way, predicate):
    """semantics 3: whatever the policy matches, trio's cancellation ends the call on time and nothing is tried again."""
    calls = []

    async def body():
        calls.append("begun")
        await trio.sleep_forever()

    assert in_a_cancel_scope(subject, body, seconds=5, way=way, attempts=3, **predicate) == (True, 5.0)
    assert calls == ["begun"]


@statement(3, needs=["trio"])
@each_predicate
def test_a_cancel_scope_ends_a_wait(subject, way, predicate):
    """semantics 3: cancelled between attempts, a call ends on time and starts no further one."""
    story = failing()

    async def body():
        story()

    options = {"way": way, "attempts": 3, "waits": (60.0, 60.0), **predicate}
    assert in_a_cancel_scope(subject, body, seconds=5, **options) == (True, 5.0)
    assert story.calls == 1


@statement(3, needs=["trio"])
@each_predicate
def test_a_cancellation_passes_untouched(subject, way, predicate):
    """semantics 3: what leaves the call is the very object that left the body: nothing has caught it and been cancelled again."""
    story = []

    async def body():
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            story.append(cancelled)
            raise

    async def main():
        with trio.move_on_after(5) as scope:
            try:
                await subject.protect(body, way=way, attempts=3, **predicate)()
            except trio.Cancelled as cancelled:
                story.append(cancelled)
                raise
        return scope.cancelled_caught

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(set(map(id, story))) == 1


@statement(3, needs=["trio"])
@each_predicate
def test_a_cancelled_body_may_clean_up(subject, way, predicate):
    """semantics 3: what the body does on its way out happens once, and the cancellation goes on its way."""
    story = []

    async def body():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            story.append("cancelled")
            raise
        finally:
            story.append("cleaned up")

    assert in_a_cancel_scope(subject, body, seconds=5, way=way, attempts=3, **predicate) == (True, 5.0)
    assert story == ["cancelled", "cleaned up"]


@statement(4, needs=["async"])
def test_cancellation_in_a_wait_ends_the_call(subject, way):
    """semantics 4: cancelled between attempts, a call starts no further one, and the failure it waited on is the context."""
    story = failing()

    async def body():
        story()

    async def main():
        task = asyncio.create_task(subject.protect(body, way=way, waits=(3600.0, 3600.0))())
        await settled()
        assert (story.calls, task.done()) == (1, False)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        return cancelled.value

    seen, link = [], asyncio.run(main())
    while link is not None:
        seen.append(link)
        link = link.__context__
    assert story.calls == 1
    assert story.raised[0] in seen


@statement(4)
def test_an_interrupt_in_a_wait_ends_the_call(subject, way, monkeypatch):
    """semantics 4: Ctrl-C while a sync call waits is raised at once, with the last failure as its context."""
    interrupt, story = KeyboardInterrupt(), failing()

    def pressed(seconds):
        raise interrupt

    monkeypatch.setattr(time, "sleep", pressed)
    error = caught(subject.protect(story.fn, way=way, waits=(3600.0, 3600.0)))
    assert (error, story.calls) == (interrupt, 1)
    assert error.__context__ is story.raised[0]


@statement(5)
@cases("kind", [BaseException, *CONTROL_FLOW])
def test_control_flow_cannot_be_asked_for(subject, kind):
    """semantics 5: a policy that wants to retry an interruption is refused when it is made."""
    with pytest.raises(subject.misconfigured, match=kind.__name__):
        subject.policy(on=(ConnectionError, kind))


# -- what is looked into


@statement(6)
@cases("on", [None, (ConnectionError,), lambda error: isinstance(error, ConnectionError)])
def test_a_group_is_retried_if_each_leaf_would_be(subject, way, mode, on):
    """semantics 6: groups are looked into, also nested ones, by types as well as by judgement."""
    inner = ExceptionGroup("inner", [ConnectionResetError()])
    if callable(on):  # a predicate is asked about the group itself or about its leaves; both must do
        inner = ConnectionResetError()
    story = Story(ExceptionGroup("outer", [ConnectionRefusedError(), inner]))
    assert mode.run(subject.protect(mode.body(story.fn), way=way, on=on)) == "done"
    assert story.calls == 2


@statement(6)
@cases("on", [None, (ConnectionError,), (ConnectionError, OSError)])
def test_a_group_with_one_hopeless_leaf_is_not_retried(subject, way, mode, on):
    """semantics 6: one leaf that would not be retried alone decides for the whole group, however deep it is."""
    group = ExceptionGroup("outer", [ConnectionResetError(), ExceptionGroup("inner", [ValueError("hopeless")])])
    story = failing(group)
    assert mode.catch(subject.protect(mode.body(story.fn), way=way, on=on)) is group
    assert story.calls == 1


class Unheard(Exception):
    """Nobody knows this type."""


def chained(error, *, cause=None, context=None, suppressed=False):
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = suppressed
    return error


@statement(7, needs=["classification"])
def test_an_unknown_error_is_known_by_what_caused_it(subject, way, mode):
    """semantics 7: the cause, or the error that was being handled, tells what an unknown wrapper is."""
    by_cause = chained(Unheard(), cause=ConnectionResetError(), suppressed=True)
    by_context = chained(Unheard(), context=chained(Unheard(), context=ConnectionResetError()))
    story = Story(by_cause, by_context)
    assert mode.run(subject.protect(mode.body(story.fn), way=way)) == "done"
    assert story.calls == 3


@statement(7, needs=["classification"])
def test_a_suppressed_context_tells_nothing(subject, way, mode):
    """semantics 7: who raised `from None` did not want the context to be looked at."""
    error = chained(Unheard(), context=ConnectionResetError(), suppressed=True)
    story = failing(error)
    assert mode.catch(subject.protect(mode.body(story.fn), way=way)) is error
    assert story.calls == 1


@statement(7, needs=["classification"])
@cases("links", ["cause", "context", "both"])
def test_a_chain_that_bites_its_tail_ends(subject, way, mode, links):
    """semantics 7: cyclic chains, and very long ones, are followed for a bounded way only."""
    errors = [Unheard(number) for number in range(3)]
    for error, following in zip(errors, [*errors[1:], errors[0]], strict=True):
        if links != "context":
            error.__cause__ = following
        if links != "cause":
            error.__context__ = following
    story = failing(errors[0])
    assert mode.catch(subject.protect(mode.body(story.fn), way=way, on="everything")) is errors[0]
    assert story.calls == 3


@statement(7, needs=["classification"])
def test_a_very_long_chain_is_followed_for_a_bounded_way(subject, way, mode):
    """semantics 7: the length of a chain does not exhaust the stack."""
    link = ConnectionResetError()
    for _ in range(20_000):
        link = chained(Unheard(), context=link)
    story = failing(link)
    assert mode.catch(subject.protect(mode.body(story.fn), way=way)) is link
    assert story.calls == 1
    while link is not None:  # freed link by link: a chain freed at once recurses
        link.__context__, link = None, link.__context__


# -- what is raised


@statement(8)
@cases("kind", [StopIteration, StopAsyncIteration])
@cases("on", [None, "everything"])
def test_the_end_of_an_iteration_arrives_as_from_a_plain_call(subject, way, mode, kind, on):
    """semantics 8: StopIteration raised by the body is neither swallowed nor taken for the end of the attempts."""
    plainly, story = mode.catch(mode.body(failing(kind).fn)), failing(kind)
    error = mode.catch(subject.protect(mode.body(story.fn), way=way, on=on))
    assert type(error) is type(plainly)
    assert story.calls == (3 if on else 1)


@statement(8, needs=["thread_timeout"])
def test_the_end_of_an_iteration_arrives_from_a_thread(subject):
    """semantics 8: also where the attempt runs in a thread of its own."""
    story = failing(StopIteration)
    assert caught(subject.protect(story.fn, timeout=60, thread=True)) is story.raised[0]


@statement(8)
def test_an_iteration_can_be_retried(subject, way):
    """semantics 8: a policy that lists StopIteration gets its retries."""
    story = Story(StopIteration, StopIteration)
    assert subject.protect(story.fn, way=way, on=(StopIteration,))() == "done"
    assert story.calls == 3


@statement(9)
def test_the_last_error_itself_is_raised(subject, way, mode):
    """semantics 9: not a wrapper, not a copy, and not an earlier attempt's error."""
    story = failing()
    error = mode.catch(subject.protect(mode.body(story.fn), way=way))
    assert story.calls == 3
    assert error is story.raised[-1]
    assert type(error) is ConnectionResetError


@statement(9)
@cases("attempts", [1, 3])
def test_cause_and_context_stay_as_they_were(subject, way, mode, attempts):
    """semantics 9: attempts do not chain to each other, and the body's own chain is left alone."""
    cause, context = LookupError("cause"), OSError("context")

    def with_chain():
        try:
            raise context
        except OSError:
            raise ConnectionResetError from cause

    def without():
        raise ConnectionResetError

    error = mode.catch(subject.protect(mode.body(with_chain), way=way, attempts=attempts))
    assert (error.__cause__, error.__context__, context.__context__) == (cause, context, None)
    error = mode.catch(subject.protect(mode.body(without), way=way, attempts=attempts))
    assert (error.__cause__, error.__context__) == (None, None)


@statement(9)
def test_the_context_of_the_caller_is_that_of_a_plain_call(subject, way, mode):
    """semantics 9: called while an error is handled, the call's error has that error as context and nothing else."""
    handled, story = KeyError("handled"), failing()

    def caller():
        try:
            raise handled
        except KeyError:
            plainly = mode.catch(mode.body(failing().fn))
            return plainly, mode.catch(subject.protect(mode.body(story.fn), way=way))

    plainly, error = caller()
    assert (error, plainly.__context__) == (story.raised[-1], handled)
    assert {other.__context__ for other in story.raised} == {handled}
    assert handled.__context__ is None


@statement(9, needs=["breaker"])
def test_the_last_error_is_raised_when_the_circuit_opens_between_attempts(subject, way, mode):
    """semantics 9: an open circuit that ends the retries does not replace or chain to what the last attempt raised."""
    story = failing()
    protected = subject.protect(mode.body(story.fn), way=way, attempts=5, breaker=subject.breaker(failures=2))
    error = mode.catch(protected)
    assert (story.calls, error) == (2, story.raised[-1])
    assert (error.__cause__, error.__context__) == (None, None)


# -- what must not get in its way


def reports(caplog):
    return [record.message for record in caplog.records if "ZeroDivisionError" in record.message]


@statement(10)
def test_a_failing_predicate_does_not_hide_the_error(subject, way, mode, caplog):
    """semantics 10: the body's exception is raised, and the predicate is reported once however often it fails."""

    def predicate(error):
        raise ZeroDivisionError

    story = failing()
    protected = subject.protect(mode.body(story.fn), way=way, on=predicate)
    raised = [mode.catch(protected) for _ in range(5)]
    assert raised == story.raised
    assert len(reports(caplog)) == 1


@statement(10, needs=["events"])
def test_a_failing_hook_changes_nothing(subject, way, mode, caplog):
    """semantics 10: a hook that fails at every event is reported once, and the call goes on as if it were not there."""

    def hook(event):
        raise ZeroDivisionError

    story, good = failing(), Story(ConnectionResetError)
    unsubscribe = subject.subscribe(hook)
    try:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way))
        assert mode.run(subject.protect(mode.body(good.fn), way=way)) == "done"
    finally:
        unsubscribe()
    assert (story.calls, good.calls) == (3, 2)
    assert (error, error.__context__) == (story.raised[-1], None)
    assert len(reports(caplog)) == 1


@statement(10, needs=["events"])
def test_each_failing_hook_is_reported(subject, caplog):
    """semantics 10: a new hook that fails is not taken for an old one that is long gone."""

    def fail_with_a_new_hook():
        def hook(event):
            raise ZeroDivisionError

        unsubscribe = subject.subscribe(hook)
        subject.protect(Story(ConnectionResetError).fn)()
        unsubscribe()

    for _ in range(10):
        fail_with_a_new_hook()
    assert len(reports(caplog)) == 10


@statement(10, needs=["result_retry"])
def test_a_failing_judge_of_results_does_not_destroy_a_result(subject, mode, caplog):
    """semantics 10: the result is returned, and the predicate is reported once."""

    def judge(result):
        raise ZeroDivisionError

    story = Story()
    protected = subject.protect(mode.body(story.fn), again_if=judge)
    assert [mode.run(protected) for _ in range(3)] == ["done"] * 3
    assert (story.calls, len(reports(caplog))) == (3, 1)


@statement(10, needs=["breaker", "events"])
def test_a_failing_listener_of_a_breaker_changes_nothing(subject):
    """semantics 10: the error of the call that tripped the circuit is raised, and the circuit is open."""

    def hook(event):
        raise ZeroDivisionError

    unsubscribe = subject.subscribe(hook)
    try:
        breaker = subject.breaker(failures=1)
        trip(breaker)
    finally:
        unsubscribe()
    assert breaker.state == "open"


class Unreadable(ConnectionResetError):
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


class Touchy(ConnectionResetError):
    @property
    def response(self):
        raise ZeroDivisionError


class OddCode(ConnectionResetError):
    errno: ClassVar = {"neither": "a number"}
    status_code = object()


class OddHash(ConnectionResetError):
    __hash__ = None

    def __eq__(self, other):
        raise ZeroDivisionError


@dataclass(frozen=True)
class Frozen(ConnectionResetError):
    code: int = 7


@statement(10, needs=["events"])
@cases("kind", [Unreadable, Touchy, OddCode, OddHash, Frozen])
def test_an_odd_exception_is_retried_and_raised_like_any_other(subject, way, mode, kind):
    """semantics 10: whatever looking at an exception does, the exception is not replaced by it."""
    errors = [kind() for _ in range(3)]
    story = Story(*errors)
    with subject.events():
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, on=(ConnectionError,)))
    assert story.calls == 3
    assert error is errors[-1]


@statement(11, needs=["errors"])
def test_every_public_error_can_be_pickled_and_copied(subject):
    """semantics 11: type, text and all fields survive."""
    for error in subject.own_errors():
        fields = vars(error)
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert twin is not error
            assert (type(twin), str(twin), twin.args, vars(twin)) == (type(error), str(error), error.args, fields)


@statement(11, needs=["history"])
def test_an_error_keeps_its_story_in_a_pickle(subject, way, mode):
    """semantics 11: what a protected call attached to an exception goes with it to another process."""
    error = mode.catch(subject.protect(mode.body(failing().fn), way=way))
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (subject.history(twin), subject.reason(twin)) == ((0.0, 0.0, None), "exhausted")
        assert (type(twin), twin.args) == (type(error), error.args)


@statement(11, needs=["errors"])
def test_every_public_error_passes_through_a_context_manager(subject):
    """semantics 11: the standard library sets attributes of exceptions on their way; ours allow it."""

    @contextmanager
    def scope():
        yield

    for error in subject.own_errors():
        with pytest.raises(type(error)) as passed, scope():
            raise error
        assert passed.value is error


@statement(12, needs=["breaker"])
def test_the_call_that_trips_a_breaker_raises_its_own_error(subject, mode):
    """semantics 12: the circuit's error is for the calls that come after."""
    breaker, story = subject.breaker(failures=2), failing()
    protected = breaker(mode.body(story.fn))
    raised = [mode.catch(protected) for _ in range(3)]
    assert raised[:2] == story.raised
    assert isinstance(raised[2], subject.rejected)


@statement(13, needs=["breaker"])
def test_every_rejection_is_a_new_object(subject, mode):
    """semantics 13: a thousand rejections are a thousand exceptions, and none drags a longer traceback than the first."""
    breaker = subject.breaker(failures=1)
    trip(breaker)
    protected = breaker(mode.body(Story().fn))
    rejections, lengths = [], set()

    def keep(rejection):
        rejections.append(rejection)
        length, link = 0, rejection.__traceback__
        while link is not None:
            length, link = length + 1, link.tb_next
        lengths.add(length)

    def reject():
        for _ in range(1000):
            try:
                protected()
            except subject.rejected as rejection:
                keep(rejection)

    async def areject():
        for _ in range(1000):
            try:
                await protected()
            except subject.rejected as rejection:
                keep(rejection)

    mode.run(areject if mode.asynchronous else reject)
    assert len({id(rejection) for rejection in rejections}) == 1000
    assert len(lengths) == 1
    assert {(rejection.__context__, rejection.__cause__) for rejection in rejections} == {(None, None)}


@statement(14, needs=["result_retry"])
def test_a_result_that_never_gets_better_is_returned(subject, mode):
    """semantics 14: when no attempt is left the last result is the result, never None and never an error."""
    results = iter(["busy 1", "busy 2", "busy 3"])
    calls = []

    def body():
        calls.append(next(results))
        return calls[-1]

    protected = subject.protect(mode.body(body), again_if=lambda result: result.startswith("busy"))
    assert mode.run(protected) == "busy 3"
    assert calls == ["busy 1", "busy 2", "busy 3"]


@statement(14, needs=["result_retry", "outcome"])
def test_the_outcome_of_a_result_that_never_gets_better_is_not_ok(subject):
    """semantics 14: the outcome says that it was exhausted and has the last result."""
    end = subject.end(Story(value="busy").fn, again_if=lambda result: True)
    assert end == (False, "busy", None, "exhausted")


@statement(14, needs=["result_retry", "outcome", "clock"])
def test_a_result_that_cannot_be_improved_in_time_is_returned(subject):
    """semantics 14: the same when the total timeout leaves no room for another attempt."""
    story = Story(value="busy")
    with subject.time() as clock:
        end = subject.end(story.fn, again_if=lambda result: True, attempts=9, waits=(2.0,), total_timeout=5.0)
    assert (end, story.calls, clock.sleeps) == ((False, "busy", None, "total_timeout"), 3, [2.0, 2.0])


@statement(14, needs=["result_retry", "breaker"])
def test_a_result_is_returned_when_an_open_circuit_ends_its_retries(subject, mode):
    """semantics 14: nothing has failed, so nothing is raised."""
    breaker, results = subject.breaker(failures=1), []

    def body():
        results.append(f"busy {len(results) + 1}")
        breaker.isolate("maintenance")
        return results[-1]

    assert mode.run(subject.protect(mode.body(body), breaker=breaker, again_if=lambda result: True)) == "busy 1"
    assert results == ["busy 1"]


@statement(14, needs=["result_retry"])
def test_a_good_result_after_bad_ones_is_returned(subject, mode):
    """semantics 14: results and errors draw on the same attempts."""
    steps = iter([ConnectionResetError(), "busy", "fine"])

    def body():
        step = next(steps)
        if isinstance(step, Exception):
            raise step
        return step

    assert mode.run(subject.protect(mode.body(body), again_if=lambda result: result == "busy")) == "fine"


@statement(14, needs=["result_retry"])
def test_results_of_concurrent_calls_do_not_mix(subject):
    """semantics 14: each call gets its own last result."""
    protected = subject.protect(lambda number: number, again_if=lambda result: True)
    assert in_threads(8, protected) == list(range(8))
