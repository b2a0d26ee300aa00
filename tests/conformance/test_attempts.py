"""Attempts and budgets: what counts as one, who may spend them, and who owns an error that has used them up."""

from __future__ import annotations

import asyncio
import itertools
import socket

import pytest

from conformance.adapter import statement
from conformance.bodies import Story, caught, failing, in_threads, settled, trip
from conformance.cases import cases

# -- counting


@statement(31, needs=["clock"])
def test_one_attempt_is_one_call_and_no_wait(subject, way, mode):
    """semantics 31: `attempts=1` calls once and waits for nothing."""
    story = failing()
    with subject.time() as clock:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, attempts=1, waits=(5.0,)))
    assert (error, story.calls, clock.sleeps) == (story.raised[0], 1, [])


@statement(31, needs=["events", "history"])
def test_every_count_includes_the_first_call(subject, way, mode):
    """semantics 31: calls, what the body is told, events and history all count the same attempts from 1."""
    numbers = []

    def body():
        numbers.append(subject.attempt())
        raise ConnectionResetError

    with subject.events() as events:
        error = mode.catch(subject.protect(mode.body(body), way=way, attempts=4))
    assert numbers == [1, 2, 3, 4]
    assert [(subject.kind(event), event.attempt) for event in events] == [
        ("retry", 1),
        ("retry", 2),
        ("retry", 3),
        ("gave_up", 4),
    ]
    assert {event.max_attempts for event in events} == {4}
    assert subject.history(error) == (0.0, 0.0, 0.0, None)


@statement(31, needs=["policy"])
@cases("attempts", [0, -1, 1.5, "3", True])
def test_a_number_of_attempts_that_makes_no_sense_is_refused(subject, attempts):
    """semantics 31: less than one call is no call; the message says what came."""
    with pytest.raises(subject.misconfigured, match=repr(attempts)):
        subject.policy(attempts=attempts)


# -- tiers


@statement(32, needs=["tiers", "reasons"])
def test_one_counter_serves_all_tiers(subject, way, mode):
    """semantics 32: an attempt lost to one tier is an attempt lost to every other."""
    story = Story(*(subject.of_tier(tier) for tier in ("database", "network", "database")))
    error = mode.catch(
        subject.protect(mode.body(story.fn), way=way, attempts=None, tiers={"database": 5, "network": 1})
    )
    assert (error, story.calls, subject.reason(error)) == (story.raised[1], 2, "tier_exhausted")


@statement(32, needs=["tiers", "reasons"])
def test_no_order_of_tiers_gets_more_than_its_limits(subject):
    """semantics 32: in every order of failures, each retry is within its tier's limit and all are within the attempts."""
    limits, most = {"database": 3, "network": 1, "http_500_502_504": 2}, 4
    for order in itertools.product(limits, repeat=5):
        story = Story(*(subject.of_tier(tier) for tier in order))
        error = caught(subject.protect(story.fn, attempts=most, tiers=limits))
        ends = next(i for i, tier in enumerate(order, 1) if i >= most or i > limits[tier])
        assert (story.calls, error) == (ends, story.raised[-1])
        assert subject.reason(error) == ("exhausted" if ends >= most else "tier_exhausted")


@statement(32, needs=["tiers", "reasons"])
def test_a_tier_without_a_limit_has_no_retries(subject, way, mode):
    """semantics 32: with limits given, what they do not list is called once."""
    story = failing(subject.of_tier("network"))
    error = mode.catch(subject.protect(mode.body(story.fn), way=way, tiers={"database": 5}))
    assert (story.calls, subject.reason(error)) == (1, "tier_exhausted")


# -- budgets


@statement(33, needs=["budget", "clock", "async"])
@pytest.mark.parametrize(("ratio", "reserve"), [(0.2, 10), (0.2, 0), (1.0, 3)])
def test_a_storm_of_coroutines_stays_within_the_budget(subject, ratio, reserve):
    """semantics 33: N calls that all fail cause at most ratio * N + reserve retries, although all of them wait at the same time."""
    calls, count = [], 200

    async def body():
        calls.append("call")
        raise ConnectionResetError

    async def main():
        protected = subject.protect(body, attempts=5, waits=(1.0,), budget=subject.budget(ratio=ratio, reserve=reserve))
        return await asyncio.gather(*(protected() for _ in range(count)), return_exceptions=True)

    with subject.time():
        errors = asyncio.run(main())
    assert {type(error) for error in errors} == {ConnectionResetError}
    assert len(calls) - count <= ratio * count + reserve


@statement(33, needs=["budget"])
def test_a_storm_of_threads_stays_within_the_budget(subject):
    """semantics 33: no retry is granted twice by a race."""
    story = failing()
    protected = subject.protect(story.fn, attempts=50, budget=subject.budget(ratio=0.2, reserve=10))
    in_threads(16, lambda _: [caught(protected) for _ in range(5)])
    assert len(story.raised) == 16 * 5 + 10


@statement(33, needs=["budget", "result_retry"])
def test_retries_of_results_are_paid_from_the_budget_too(subject, mode):
    """semantics 33: a bad result that is tried again is load like any other retry."""
    story, budget = Story(value="busy"), subject.budget(ratio=0.0, reserve=3)
    protected = subject.protect(mode.body(story.fn), attempts=5, budget=budget, again_if=lambda result: True)
    assert [mode.run(protected) for _ in range(4)] == ["busy"] * 4
    assert story.calls == 4 + 3


@statement(34, needs=["budget", "reasons"])
def test_an_empty_budget_ends_the_call_with_its_own_error(subject, way, mode):
    """semantics 34: what is raised is the last attempt's error, and the reason is the budget."""
    story = failing()
    error = mode.catch(
        subject.protect(mode.body(story.fn), way=way, attempts=5, budget=subject.budget(ratio=0.2, reserve=1))
    )
    assert (error, story.calls, subject.reason(error)) == (story.raised[-1], 2, "retry_budget")


@statement(34, needs=["budget"])
def test_one_budget_serves_many_policies_and_threads(subject):
    """semantics 34: whoever spends it, it is spent."""
    story, budget = failing(), subject.budget(ratio=0.0, reserve=20)
    policies = [subject.protect(story.fn, attempts=attempts, budget=budget) for attempts in range(2, 10)]
    in_threads(8, lambda number: [caught(policies[number]) for _ in range(10)])
    assert len(story.raised) == 80 + 20


@statement(34, needs=["budget"])
def test_first_successes_deposit_and_retries_do_not(subject, mode):
    """semantics 34: five calls that succeed at once pay for one retry; a success that needed a retry pays for none."""
    budget = subject.budget(ratio=0.2, reserve=1)

    def retries():
        """How many retries the budget grants now; they are spent."""
        story = failing()
        mode.catch(subject.protect(mode.body(story.fn), attempts=100, budget=budget))
        return story.calls - 1

    good = subject.protect(mode.body(Story().fn), budget=budget)
    assert retries() == 1
    for _ in range(4):
        mode.run(good)
    assert retries() == 0
    mode.run(good)
    assert retries() == 1
    for _ in range(5):
        mode.run(good)
    recovering = subject.protect(mode.body(Story(ConnectionResetError).fn), budget=budget)
    assert mode.run(recovering) == "done"  # paid with the deposits of the five
    assert retries() == 0


@statement(34, needs=["budget", "result_retry"])
def test_a_bad_result_is_no_success_that_deposits(subject, mode):
    """semantics 34: a first attempt whose result is to be tried again has not succeeded."""
    budget = subject.budget(ratio=1.0, reserve=0)
    bad = subject.protect(mode.body(Story(value="busy").fn), attempts=1, budget=budget, again_if=lambda result: True)
    for _ in range(5):
        assert mode.run(bad) == "busy"
    story = failing()
    mode.catch(subject.protect(mode.body(story.fn), budget=budget))
    assert story.calls == 1


# -- nested retries


def nested(subject, mode, story, way, *, inner, outer):
    """A protected function that calls a protected function."""
    inside = subject.protect(mode.body(story.fn), way=way, **inner)
    if mode.asynchronous:

        async def call():
            return await inside()
    else:

        def call():
            return inside()

    return subject.protect(call, way=way, **outer)


@statement(35, needs=["nested", "reasons"])
def test_what_the_inner_retry_gave_up_on_is_not_repeated(subject, way, mode):
    """semantics 35: three times three is three, and the reason says that an inner retry has had its turn."""
    story = failing()
    error = mode.catch(nested(subject, mode, story, way, inner={}, outer={}))
    assert (error, story.calls, subject.reason(error)) == (story.raised[-1], 3, "nested_exhausted")


@statement(35, needs=["nested"])
def test_repeating_what_the_inner_retry_gave_up_on_can_be_asked_for(subject, way, mode):
    """semantics 35: then three times three is nine."""
    story = failing()
    mode.catch(nested(subject, mode, story, way, inner={}, outer={"again": True}))
    assert story.calls == 9


@statement(35, needs=["nested"])
def test_three_layers_are_still_three_calls(subject, way, mode):
    """semantics 35: the mark passes through every layer."""
    story = failing()
    middle = nested(subject, mode, story, way, inner={}, outer={})
    if mode.asynchronous:

        async def call():
            await middle()
    else:

        def call():
            middle()

    error = mode.catch(subject.protect(call, way=way))
    assert (error, story.calls) == (story.raised[-1], 3)


@statement(35, needs=["nested", "reasons"])
@cases("inner", [{"attempts": 1}, {"on": (LookupError,)}])
def test_a_layer_that_did_not_retry_does_not_own_the_error(subject, way, mode, inner):
    """semantics 35: an inner layer with one attempt, or for other errors, leaves the retries to the outer one."""
    story = failing()
    error = mode.catch(nested(subject, mode, story, way, inner=inner, outer={}))
    assert (error, story.calls, subject.reason(error)) == (story.raised[-1], 3, "exhausted")


@statement(35, needs=["nested", "reasons"])
def test_an_error_raised_from_an_exhausted_one_is_owned_too(subject, way, mode):
    """semantics 35: wrapping what the inner retry gave up on does not start it all over."""
    story = failing()
    inside = subject.protect(mode.body(story.fn), way=way)

    def wrap(error):
        raise ConnectionAbortedError from error

    if mode.asynchronous:

        async def call():
            try:
                await inside()
            except ConnectionResetError as error:
                wrap(error)
    else:

        def call():
            try:
                inside()
            except ConnectionResetError as error:
                wrap(error)

    error = mode.catch(subject.protect(call, way=way))
    assert (type(error), story.calls, subject.reason(error)) == (ConnectionAbortedError, 3, "nested_exhausted")


@statement(35, needs=["nested"])
def test_one_exception_object_raised_again_and_again_is_retried_each_time(subject, way, mode):
    """semantics 35: the mark of an earlier call, on an object that is raised anew, says nothing about this one."""
    same = ConnectionResetError("always the same object")
    story = failing(same)
    protected = subject.protect(mode.body(story.fn), way=way)
    assert [mode.catch(protected) for _ in range(3)] == [same] * 3
    assert story.calls == 9


@statement(35, needs=["nested"])
def test_an_inner_retry_that_recovered_leaves_no_mark(subject, way, mode):
    """semantics 35: an error of the outer function itself, after an inner call that succeeded in the end, is retried."""
    calls = []
    inside = subject.protect(mode.body(Story(ConnectionResetError, ConnectionResetError).fn), way=way)

    def fail():
        calls.append("call")
        raise ConnectionAbortedError

    if mode.asynchronous:

        async def call():
            await inside()
            fail()
    else:

        def call():
            inside()
            fail()

    mode.catch(subject.protect(call, way=way))
    assert len(calls) == 3


# -- work that must not be done twice

NEVER_SENT = [ConnectionRefusedError, socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")]
AMBIGUOUS = [TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError]


@statement(36, needs=["idempotency"])
@cases("error", NEVER_SENT, ids=["refused", "name"])
def test_what_was_never_sent_is_tried_again(subject, way, mode, error):
    """semantics 36: nobody can have done what nobody was asked for."""
    story = Story(error, error)
    assert mode.run(subject.protect(mode.body(story.fn), way=way, idempotent=False)) == "done"
    assert story.calls == 3


@statement(36, needs=["idempotency"])
def test_what_was_never_sent_does_not_use_up_the_one_time_it_may_be_sent(subject, way, mode):
    """semantics 36: after two attempts that reached nobody comes the one that may have been heard, and it is the last."""
    story = Story(ConnectionRefusedError, ConnectionRefusedError, ConnectionResetError)
    error = mode.catch(subject.protect(mode.body(story.fn), way=way, attempts=9, idempotent=False))
    assert (error, story.calls, subject.reason(error)) == (story.raised[-1], 3, "ambiguous")


@statement(36, needs=["idempotency", "virtual_time", "breaker"])
def test_an_open_circuit_has_sent_nothing(subject, mode):
    """semantics 36: work that waited for the circuit is done once."""
    breaker, story = subject.breaker(failures=1, open_for=10.0, probes=1, successes=1), Story()
    with subject.time() as clock:
        trip(breaker)
        protected = subject.protect(mode.body(story.fn), breaker=breaker, wait_open=True, idempotent=False)
        assert mode.run(protected) == "done"
    assert (story.calls, clock.now) == (1, 10.0)


@statement(36, needs=["idempotency", "virtual_time", "async", "limit_blocks"])
def test_a_full_limit_has_sent_nothing(subject):
    """semantics 36: work that a limit did not let in is tried again, and done once."""
    limit, story = subject.limit(concurrency=1, max_wait=0.0), Story()

    async def body():
        async with limit:
            return story()

    async def main():
        assert subject.take(limit)
        task = asyncio.create_task(subject.protect(body, waits=(1.0, 1.0), idempotent=False)())
        await settled()
        assert (task.done(), story.calls) == (False, 0)
        subject.give(limit)
        return await task

    with subject.time():
        assert asyncio.run(main()) == "done"
    assert story.calls == 1


@statement(37, needs=["idempotency"])
@cases("error", AMBIGUOUS)
def test_what_may_have_been_done_is_not_repeated(subject, way, mode, error):
    """semantics 37: a lost answer does not mean that nothing happened; the error comes out and says why nothing was tried."""
    story = failing(error)
    raised = mode.catch(subject.protect(mode.body(story.fn), way=way, idempotent=False))
    assert (raised, story.calls, subject.reason(raised)) == (story.raised[0], 1, "ambiguous")


@statement(37, needs=["idempotency"])
@cases("error", AMBIGUOUS)
def test_what_may_be_done_twice_is_repeated(subject, way, mode, error):
    """semantics 37: which is what a policy takes for granted unless it is told otherwise."""
    for options in ({}, {"idempotent": True}):
        story = Story(error, error)
        assert mode.run(subject.protect(mode.body(story.fn), way=way, **options)) == "done"
        assert story.calls == 3


@statement(37, needs=["idempotency", "virtual_time", "async", "timeout"])
def test_an_attempt_that_timed_out_may_have_been_done(subject):
    """semantics 37: a time limit of our own is as ambiguous as anyone's."""
    calls = []

    async def body():
        calls.append("begun")
        await asyncio.Event().wait()

    with subject.time():
        error = caught(lambda: asyncio.run(subject.protect(body, timeout=2.0, idempotent=False)()))
    assert (type(error), len(calls), subject.reason(error)) == (subject.attempt_timed_out, 1, "ambiguous")


@statement(37, needs=["idempotency"])
@cases("error", AMBIGUOUS)
def test_a_key_makes_it_safe_and_is_the_same_for_every_attempt(subject, way, mode, error):
    """semantics 37: who reads the key sends it along, so that the other side can tell; another call has another key."""
    keys = [[], []]

    def body(call):
        keys[call].append(subject.key())
        if len(keys[call]) < 3:
            raise error(f"attempt {len(keys[call])}")
        return "done"

    protected = subject.protect(mode.body(body), way=way, idempotent=False)
    assert [mode.run(protected, call) for call in range(2)] == ["done", "done"]
    assert [len(seen) for seen in keys] == [3, 3]
    assert [len(set(seen)) for seen in keys] == [1, 1]
    assert keys[0][0] != keys[1][0]
