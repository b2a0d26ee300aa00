"""Batch stages: a function over a list of items, where each item still has its own fate."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import dataclass
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given

import outlast
from outlast.kernel.clock import here
from outlast.pipeline.engine.batches import portions
from outlast.pipeline.engine.runner import Runner
from outlast.testing import Faults, capture_events, virtual_time
from outlast.testing import run as trial
from tables import table

ONCE = outlast.RetryPolicy(max_attempts=1)
THRICE = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0, on_errors=("transient", "unclear"))
both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def made(fn, *, sync, **options):
    """The function as a batch stage, in a thread or in the loop."""
    if sync:
        return outlast.stage(**options)(fn)

    async def work(items):
        return fn(items)

    work.__name__ = fn.__name__
    return outlast.stage(**options)(work)


def pipeline(*stages, **options):
    return outlast.Pipeline("p", *stages, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0, **options)


def rows_of(result, seq):
    rows = result._store().attempts(result._number, seq)
    return [(row.stage, row.number, row.outcome, row.error_type, row.delay_us) for row in rows]


@both
def test_a_batch_stage_gets_lists_and_each_item_goes_on_by_itself(sync):
    """Full lists as long as items come, the rest at the end, each output to its own item, each attempt on record (S3-01)."""
    sizes = []

    def double(items):
        assert isinstance(items, list)
        sizes.append(len(items))
        return [2 * item for item in items]

    def add(item):
        return item + 1

    result = trial(pipeline(made(double, sync=sync, batch=8, concurrency=2), made(add, sync=sync)), range(100))
    assert list(result.outputs()) == [2 * item + 1 for item in range(100)]
    assert sorted(sizes) == [4] + [8] * 12
    assert rows_of(result, 99) == [(0, 1, "success", None, None), (1, 1, "success", None, None)]
    assert [item.attempts for item in result.items()] == [2] * 100


@both
def test_a_batch_that_cannot_be_filled_goes_after_a_moment(sync):
    """Nobody waits for ever for items that do not come: neither at the end, nor behind a slow source."""
    sizes = []
    seen = asyncio.Event()

    def take(items):
        sizes.append(len(items))
        loop.call_soon_threadsafe(seen.set)
        return items

    async def source():
        yield 1
        yield 2
        await seen.wait()  # nothing more comes before these two are through
        yield 3

    async def main():
        nonlocal loop
        loop = asyncio.get_running_loop()
        return await pipeline(made(take, sync=sync, batch=64)).arun(source())

    loop = None
    assert asyncio.run(main()).counts.succeeded == 3
    assert sizes == [2, 1]


@both
def test_in_virtual_time_a_batch_lingers_fifty_milliseconds_and_no_longer(sync):
    """Deterministic: with a source that has ended nothing is waited for; behind a stage that waits, fifty milliseconds."""
    sizes = []

    def slow(item):
        if item == 0 and outlast.current().attempt == 1:
            raise ConnectionResetError
        return item

    def take(items):
        sizes.append(sorted(items))
        return items

    first = outlast.stage(retry=THRICE)(slow)
    with virtual_time() as time:
        pipeline(made(take, sync=sync, batch=4)).run(range(3))
        assert (sizes, time.now) == ([[0, 1, 2]], 0.0)
        pipeline(first, made(take, sync=sync, batch=4)).run(range(3))
        assert (sizes[1:], time.now) == ([[1, 2], [0]], 1.0)


@both
def test_one_place_in_the_list_speaks_for_one_item_alone(sync):
    """An exception, Skip, Snooze or Degraded in the list concerns its own item; the failed one is tried again on its own account (S3-05) (S3-01)."""
    calls = []

    def work(items):
        calls.append([*items])
        answers = {
            "late": outlast.Snooze(30) if len(calls) == 1 else "late!",
            "flaky": ConnectionResetError("gone") if outlast.current().attempt < 3 else "flaky!",
            "bad": ValueError("never"),
            "empty": outlast.Skip("nothing in it"),
            "poor": outlast.Degraded("poor!", "so so"),
        }
        return [answers.get(item, f"{item}!") for item in items]

    names = ["fine", "late", "flaky", "bad", "empty", "poor"]
    result = trial(pipeline(made(work, sync=sync, batch=6, retry=THRICE)), names)
    assert calls == [names, ["flaky"], ["flaky"], ["late"]]
    assert [(item.status, item.attempts, item.error) for item in result.items()] == [
        ("succeeded", 1, None),
        ("succeeded", 1, None),
        ("succeeded", 3, None),
        ("dlq", 1, "work: ValueError: never"),
        ("skipped", 1, "nothing in it"),
        ("succeeded", 1, None),
    ]
    assert result.counts.degraded == 1
    assert list(result.outputs()) == ["fine!", "late!", "flaky!", "poor!"]
    assert rows_of(result, 2) == [
        (0, 1, "retrying", "ConnectionResetError", 1_000_000),
        (0, 2, "retrying", "ConnectionResetError", 2_000_000),
        (0, 3, "success", None, None),
    ]


@both
def test_items_that_failed_alike_come_back_together(sync):
    """One roll for all items of a call: with jitter, too, they are due at the same moment, and go in one call again."""
    calls = []

    def work(items):
        calls.append(len(items))
        return [ConnectionResetError("busy") if len(calls) == 1 and item % 2 else item for item in items]

    jittered = outlast.RetryPolicy(max_attempts=2, initial_delay=1.0, jitter="full")
    trial(pipeline(made(work, sync=sync, batch=16, retry=jittered)), range(16))
    assert calls == [16, 8]


@both
def test_one_exception_object_in_several_places_is_each_items_own_failure(sync):
    """The mark that the flow leaves on an error for one item does not make it another item's exhausted retry."""
    gone = ConnectionResetError("gone")

    def work(items):
        return [gone for _ in items]

    result = trial(pipeline(made(work, sync=sync, batch=3, retry=THRICE)), range(3))
    assert [(item.status, item.attempts) for item in result.items()] == [("dlq", 3)] * 3


@both
@table(
    ("answer", "got"),
    [
        (lambda items: items[1:], "a list of 2"),
        (lambda items: [*items, 1], "a list of 4"),
        (lambda items: None, "a value of type NoneType"),
        (lambda items: {"a": 1, "b": 2, "c": 3}, "a value of type dict"),
        (lambda items: "abc", "a value of type str"),
        (iter, "a value of type list_iterator"),
    ],
)
def test_an_answer_that_cannot_be_told_apart_is_a_defect_of_the_code(sync, answer, got):
    """Neither retried nor divided: which output belongs to which item nobody knows."""
    calls = []

    def work(items):
        calls.append(items)
        return answer(items)

    result = trial(pipeline(made(work, sync=sync, batch=3, retry=THRICE)), range(3))
    assert len(calls) == 1
    (error,) = {item.error for item in result.items(status="dlq")}
    assert f"to return a list with one output for each of its 3 items, in their order, got: {got}" in error
    assert {letter.error_class for letter in result._store().letters()} == {"code_error"}


@both
def test_a_batch_that_fails_as_a_whole_waits_and_is_tried_again_as_a_whole(sync):
    """C-10: a fault of the service is no item's: one wait for all, each charged one attempt, the same idempotency key."""
    calls, keys, attempts = [], [], []

    def work(items):
        calls.append([*items])
        keys.append(outlast.current().idempotency_key)
        attempts.append(outlast.current().attempt)
        if len(calls) < 3:
            raise ConnectionResetError("gone")
        return items

    with virtual_time() as time, capture_events() as events:
        result = pipeline(made(work, sync=sync, batch=4, retry=THRICE)).run(range(4))
    assert calls == [[0, 1, 2, 3]] * 3
    assert len(set(keys)) == 1
    assert attempts == [1, 2, 3]
    assert round(time.now, 2) in {3.0, 3.05}  # the first items may wait a moment until the others are read
    for seq in range(4):
        assert rows_of(result, seq) == [
            (0, 1, "retrying", "ConnectionResetError", 1_000_000),
            (0, 2, "retrying", "ConnectionResetError", 2_000_000),
            (0, 3, "success", None, None),
        ]
    told = [event for event in events if event.name == "step_retry_attempt"]
    assert len(told) == 8
    assert len({event.item_id for event in told}) == 4


@both
@pytest.mark.parametrize("size", [2, 7, 64])
def test_one_bad_item_is_found_by_halves_at_once_and_costs_nobody_an_attempt(sync, size):
    """About two calls for each halving, no wait, no charge; the others succeed although they have only one attempt (S3-06)."""
    for bad in {0, size // 2, size - 1}:
        calls = []

        def work(items, bad=bad, calls=calls):
            calls.append(len(items))
            if bad in items:
                raise ValueError("poison")
            return items

        with virtual_time() as time, capture_events() as events:
            result = pipeline(made(work, sync=sync, batch=size, retry=THRICE)).run(range(size), run_key=str(bad))
        assert time.now == 0.0
        assert len(calls) <= 2 * math.ceil(math.log2(size)) + 1
        assert result.counts.dlq == 1
        assert result.counts.succeeded == size - 1
        letter = next(letter for letter in result._store().letters() if letter.run == result.id)
        assert result._decode(letter.payload) == bad
        last = rows_of(result, bad)[-1]
        assert last[2:4] == ("failed", "ValueError")
        numbers = [row[1] for row in rows_of(result, bad)]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert [row[2] for row in rows_of(result, bad)[:-1]] == ["retrying"] * (len(numbers) - 1)
        assert letter.attempts == len(numbers)
        assert not [event for event in events if event.name == "step_retry_attempt"]


@both
def test_a_batch_whose_retries_are_used_up_is_divided_too(sync):
    """One item that kills its worker or times out must not take the others with it; each half has one call."""
    calls = []

    def work(items):
        calls.append(len(items))
        if 5 in items:
            raise ConnectionResetError("the worker died")
        return items

    result = trial(pipeline(made(work, sync=sync, batch=8, retry=THRICE)), range(8))
    assert calls[:3] == [8, 8, 8]
    assert len(calls) == 3 + 2 * 3
    assert [item.status for item in result.items()] == ["succeeded"] * 5 + ["dlq"] + ["succeeded"] * 2


@both
def test_a_service_that_is_down_costs_a_bounded_number_of_calls(sync):
    """At most max_attempts + 2n - 2 calls for n items: fewer than one by one."""
    calls = []

    def work(items):
        calls.append(len(items))
        raise ConnectionRefusedError("down")

    result = trial(pipeline(made(work, sync=sync, batch=16, retry=THRICE)), range(16))
    assert result.counts.dlq == 16
    assert len(calls) == 3 + 2 * 16 - 2


def test_what_may_have_been_done_is_not_done_again_in_halves():
    """With idempotent=False a batch is divided only if the failure surely had no effect."""
    calls = []

    def work(items):
        calls.append(len(items))
        raise ValueError("perhaps it was sent before")

    guard = outlast.Guard("g", retry=THRICE, idempotent=False)
    result = trial(pipeline(outlast.stage(guard=guard, batch=4)(work)), range(4))
    assert calls == [4]
    assert result.counts.dlq == 4


def test_an_error_that_nobody_survives_is_not_divided():
    """A fatal error stops the run at once: halves would meet it too."""
    calls = []

    def work(items):
        calls.append(len(items))
        raise ModuleNotFoundError("no such module")

    result = trial(pipeline(outlast.stage(batch=4, concurrency=1)(work)), range(4))
    assert calls == [4]
    assert result.reason == "fatal_error"


@both
def test_concurrency_counts_batches(sync):
    """Two calls at a time, however many items are in them; while both are under way, the next batch fills up."""
    busy, most, sizes = 0, 0, []
    lock = threading.Lock()
    two = threading.Barrier(2)

    def step(change):
        nonlocal busy, most
        with lock:
            busy += change
            most = max(most, busy)

    def work(items):
        step(1)
        two.wait(10)
        sizes.append(len(items))
        step(-1)
        return items

    async def awork(items):
        step(1)
        await asyncio.sleep(0)
        sizes.append(len(items))
        step(-1)
        return items

    stage = outlast.stage(batch=4, concurrency=2)(work if sync else awork)
    assert pipeline(stage).run(range(32)).counts.succeeded == 32
    assert most == 2
    assert sizes == [4] * 8


@both
def test_a_skip_or_a_snooze_that_is_raised_is_said_of_all(sync):
    """Of the whole list: all wait together, then none is wanted."""
    calls = []

    def work(items):
        calls.append([*items])
        if len(calls) == 1:
            raise outlast.Snooze(60)
        raise outlast.Skip("not today")

    with virtual_time() as time:
        result = pipeline(made(work, sync=sync, batch=4, retry=ONCE)).run(range(4))
    assert calls == [[0, 1, 2, 3]] * 2
    assert time.now == 60
    assert {(item.status, item.error, item.attempts) for item in result.items()} == {("skipped", "not today", 1)}


@both
def test_a_function_may_do_with_its_list_what_it_wants(sync):
    """The list is the function's own: emptied by one attempt, it is whole again for the next."""

    def work(items):
        answers = []
        while items:
            answers.append(items.pop(0))
        if outlast.current().attempt == 1:
            raise ConnectionResetError
        return answers

    result = trial(pipeline(made(work, sync=sync, batch=4, retry=THRICE)), range(4))
    assert list(result.outputs()) == [0, 1, 2, 3]


# -- what protects the call ---------------------------------------------------------------------------------------------------------


@both
def test_limit_and_cost_see_the_call_and_its_list(sync):
    """`cost` gets the list; the limit counts calls; what was spent settles the estimate."""
    asked = []
    limit = outlast.Limit("l", concurrency=1, rates={"tokens": outlast.Rate(10, per=60, burst=10)})

    def cost(items):
        asked.append(len(items))
        return {"tokens": 2 * len(items)}

    def work(items):
        return items

    guard = outlast.Guard("g", limit=limit, cost=cost)
    with virtual_time() as time:
        result = pipeline(made(work, sync=sync, guard=guard, batch=5)).run(range(10))
    assert result.counts.succeeded == 10
    assert asked == [5, 5]
    assert time.now == pytest.approx(60, abs=1)


@both
def test_a_refused_batch_waits_for_the_service_and_is_not_charged(sync):
    """A 429 behind a limit costs no attempt, as for single items; with one attempt only, the batch still comes through."""

    class Busy(Exception):
        status_code = 429

    calls = []

    def work(items):
        calls.append([*items])
        if len(calls) < 4:
            raise Busy("slow down")
        return items

    guard = outlast.Guard("g", retry=ONCE, limit=outlast.Limit("l", concurrency=4))
    result = trial(pipeline(made(work, sync=sync, guard=guard, batch=3)), range(3))
    assert calls == [[0, 1, 2]] * 4
    assert [row[1:3] for row in rows_of(result, 0)] == [
        (1, "retrying"),
        (2, "retrying"),
        (3, "retrying"),
        (4, "success"),
    ]


@both
def test_a_breaker_counts_calls_and_batches_wait_for_it(sync):
    """One failed call is one failure, whatever its size; a batch in which something worked is none; an open circuit is waited for."""
    calls = []

    def work(items):
        calls.append(len(items))
        if len(calls) in {2, 3}:
            raise ConnectionResetError("down")
        return [ConnectionResetError("one") if item == 0 and len(calls) == 1 else item for item in items]

    breaker = outlast.CircuitBreaker("b", failure_threshold=2, reset_timeout=60)
    stage = made(work, sync=sync, guard=outlast.Guard("g", retry=THRICE, breaker=breaker), batch=4, concurrency=1)
    with virtual_time() as time:
        result = pipeline(stage).run(range(8))
    assert result.counts.succeeded == 8
    assert time.now >= 60
    assert breaker.state == "closed"


@both
def test_a_batch_in_which_every_item_failed_is_a_failed_call_for_the_breaker(sync):
    """Returned errors are errors."""

    def work(items):
        return [ConnectionResetError("down") for _ in items]

    breaker = outlast.CircuitBreaker("b", failure_threshold=1, reset_timeout=60)
    stage = made(work, sync=sync, guard=outlast.Guard("g", retry=ONCE, breaker=breaker), batch=4)
    trial(pipeline(stage), range(4))
    assert breaker.state == "open"


def test_a_timeout_is_the_batchs_and_the_slow_item_is_found():
    """The timeout bounds one call; when retries are used up, the halves tell who is slow."""

    async def work(items):
        if 2 in items:
            await asyncio.Event().wait()
        return items

    guard = outlast.Guard("g", retry=ONCE, timeout=5)
    result = trial(pipeline(outlast.stage(guard=guard, batch=4)(work)), range(4))
    assert [item.status for item in result.items()] == ["succeeded", "succeeded", "dlq", "succeeded"]
    (letter,) = result._store().letters()
    assert letter.error_class == "timeout"


def test_the_total_timeout_ends_waits_for_all_of_a_batch():
    """No further attempt fits: then nothing is divided either."""
    calls = []

    async def work(items):
        calls.append(len(items))
        raise ConnectionResetError("down")

    guard = outlast.Guard("g", retry=THRICE, total_timeout=2.5)
    with virtual_time() as time:
        result = pipeline(outlast.stage(guard=guard, batch=4)(work)).run(range(4))
    assert result.counts.dlq == 4
    assert calls == [4, 4]
    assert time.now <= 2.5


def test_the_time_of_one_item_is_not_the_time_of_those_it_goes_with():
    """An item that was tried before goes with new ones; when its time is up in mid-call, it alone has failed."""
    calls = []

    async def work(items):
        calls.append([*items])
        if len(calls) == 1:
            return [ConnectionResetError("once more") for _ in items]
        if "old" in items:
            await asyncio.Event().wait()
        return items

    async def source():
        yield "old"
        await clock.asleep(1.02)  # it gathers for 50 ms, and comes back a second after its failure
        yield "new"

    guard = outlast.Guard(
        "g", retry=outlast.RetryPolicy(max_attempts=5, initial_delay=1.0, jitter=0.0), total_timeout=5
    )
    with virtual_time():
        clock = here.get().clock
        result = pipeline(outlast.stage(guard=guard, batch=4)(work)).run(source())
    assert [sorted(items) for items in calls] == [["old"], ["new", "old"], ["new"]]
    assert [(item.status, item.attempts) for item in result.items()] == [("dlq", 2), ("succeeded", 2)]


def test_a_blocking_batch_that_still_runs_is_not_started_again():
    """semantics 34: the attempt that timed out overlaps with nothing, neither as a whole nor in halves."""
    leave, calls = threading.Event(), []

    def work(items):
        calls.append(len(items))
        leave.wait(10)
        return items

    guard = outlast.Guard("g", retry=THRICE, timeout=1)
    result = trial(pipeline(outlast.stage(guard=guard, batch=4)(work)), range(4))
    leave.set()
    assert calls == [4]
    assert result.counts.dlq == 4


def test_a_slow_batch_is_hedged_as_one_call():
    """The faster execution wins for all of its items, and what both have spent is on record."""
    starts = []

    async def work(items):
        starts.append(len(items))
        outlast.current().spend(tokens=8)
        if len(starts) == 1:
            await asyncio.Event().wait()
        return items

    guard = outlast.Guard("g", hedge=outlast.Hedge(after=1))
    result = trial(pipeline(outlast.stage(guard=guard, batch=4)(work)), range(4))
    assert starts == [4, 4]
    assert result.spent == {"tokens": 16.0}
    assert [item.spent for item in result.items()] == [{"tokens": 4.0}] * 4


@both
def test_a_fallback_answers_with_a_list_for_those_who_failed(sync):
    """It gets those items of a call that are left without hope, together; its places speak for one item each."""
    asked = []

    def work(items):
        return [item if item < 2 else ValueError("no") for item in items]

    def cached(items):
        asked.append([*items])
        return [KeyError("not there") if item == 3 else -item for item in items]

    guard = outlast.Guard("g", fallback=cached)
    result = trial(pipeline(made(work, sync=sync, guard=guard, batch=5)), range(5))
    assert asked == [[2, 3, 4]]
    assert list(result.outputs()) == [0, 1, -2, -4]
    assert [item.key for item in result.items(status="dlq")] == [[*result.items()][3].key]


@both
def test_retry_if_looks_at_each_output(sync):
    """Only the item whose output is not wanted comes again."""
    calls = []

    def work(items):
        calls.append([*items])
        return ["?" if item == 1 and len(calls) < 3 else item for item in items]

    guard = outlast.Guard("g", retry=THRICE, retry_if=lambda output: output == "?")
    result = trial(pipeline(made(work, sync=sync, guard=guard, batch=3)), range(3))
    assert calls == [[0, 1, 2], [1], [1]]
    assert list(result.outputs()) == [0, 1, 2]


@both
def test_a_retry_budget_is_asked_once_for_a_call(sync):
    """Eight items that are tried again together are one retry."""
    calls = []
    budget = outlast.RetryBudget("b", ratio=0.1, reserve=1)

    def work(items):
        calls.append(len(items))
        if len(calls) < 2:
            raise ConnectionResetError("gone")
        return items

    with virtual_time() as time:
        guard = outlast.Guard("g", retry=THRICE, retry_budget=budget)
        result = pipeline(made(work, sync=sync, guard=guard, batch=8)).run(range(8))
    assert result.counts.succeeded == 8
    assert calls == [8, 8]
    assert round(time.now, 2) in {1.0, 1.05}  # as above


@both
def test_faults_strike_a_batch_as_a_whole(sync):
    """A script for a batch stage has one fault for each call."""
    sizes = []

    def work(items):
        sizes.append(len(items))
        return items

    stage = made(work, sync=sync, batch=4, retry=THRICE)
    result = trial(pipeline(stage), range(4), faults=[Faults("work", TimeoutError(), None, None)])
    assert sizes == [4]
    assert [item.attempts for item in result.items()] == [2] * 4


# -- what the code may say ----------------------------------------------------------------------------------------------------------


@both
def test_current_names_all_items_and_what_is_spent_is_split_exactly(sync):
    """item_keys instead of one item_key; whole amounts in whole parts; the sums agree at attempt, item and run."""
    seen = []

    def work(items):
        here = outlast.current()
        seen.append((here.stage, here.item_key, here.item_keys))
        here.spend(tokens=100, usd=0.1)
        here.warn("close to the limit")
        return items

    rows = [{"id": f"k{n}"} for n in range(7)]
    result = pipeline(made(work, sync=sync, batch=7)).run(rows, item_key="id")
    assert seen == [("work", None, tuple(f"k{n}" for n in range(7)))]
    assert result.spent == {"tokens": 100.0, "usd": 0.1}
    assert [item.spent["tokens"] for item in result.items()] == [15.0, 15.0, 14.0, 14.0, 14.0, 14.0, 14.0]
    assert {item.warnings for item in result.items()} == {("close to the limit",)}


@given(st.floats(0, 1e12, allow_subnormal=False) | st.integers(0, 2**53).map(float), st.integers(1, 300))
def test_parts_of_an_amount_add_up_exactly(amount, count):
    """In either order, for whole and for broken amounts."""
    parts = portions(amount, count)
    assert sum(parts) == sum(reversed(parts)) == amount
    assert all(part >= 0 for part in parts)
    if amount.is_integer():
        assert max(parts) - min(parts) <= 1


@both
def test_repairs_change_one_items_input(sync):
    """C-18: the bad item is found, repaired, and goes again; nobody else is touched."""
    calls = []

    def work(items):
        calls.append([*items])
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return items

    def absolute(item, error):
        return abs(item)

    result = trial(pipeline(made(work, sync=sync, batch=4, repairs=[absolute])), [1, 2, -3, 4])
    assert sorted(result.outputs()) == [1, 2, 3, 4]
    assert calls[-1] == [3]
    assert [bool(item.warnings) for item in result.items()] == [False, False, True, False]


# -- the record ----------------------------------------------------------------------------------------------------------------------


@both
def test_a_batch_stage_has_checkpoints_resumes_and_replays_item_by_item(app, sync):
    """D-15: what is on record is not done again, and the dead letter of an item has that item's own input."""
    embedded, broken = [], {3}

    def embed(items):
        embedded.append([*items])
        return [ValueError("bad") if item in broken else item * 10 for item in items]

    def store(item):
        if item == 50 and len(embedded) < 4:
            raise KeyboardInterrupt
        return item

    job = outlast.Pipeline(
        "p",
        made(embed, sync=sync, batch=4, checkpoint=True),
        made(store, sync=sync),
        app=app,
        failure_budget=1.0,
        min_success_rate=0.0,
        min_partial_rate=0.0,
    )
    with pytest.raises(KeyboardInterrupt):
        job.run(range(8), run_key="k")
    embedded += [[], []]
    result = job.run(range(8), run_key="k")
    assert result.counts.succeeded == 7
    again = [item for items in embedded[4:] for item in items]
    assert 5 not in again
    (letter,) = app.store.letters()
    assert result._decode(letter.payload) == 3
    broken.clear()
    replay = job.reprocess()
    assert replay.counts.succeeded == 1
    assert embedded[-1] == [3]
    assert app.store.letters(status="resolved")[0].id == letter.id


@dataclass
class Vector:
    """What an item becomes."""

    values: list[float]


def test_outputs_of_annotated_batches_come_back_from_the_store_as_they_were(app):
    """The classes that a list's annotation names are found again, behind a checkpoint and in a replay."""
    fail = [True]

    @outlast.stage(batch=2, checkpoint=True)
    def embed(items: list[int]) -> list[Vector]:
        return [Vector([float(item)]) for item in items]

    @outlast.stage(batch=2)
    def check(vectors: list[Vector]) -> list[float | Exception]:
        assert all(isinstance(vector, Vector) for vector in vectors)
        return [ValueError("bad") if fail and vector.values == [1.0] else vector.values[0] for vector in vectors]

    job = outlast.Pipeline("p", embed, check, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    assert job.run(range(3)).counts.dlq == 1
    fail.clear()
    assert list(job.reprocess().outputs()) == [1.0]


@both
def test_ordered_outputs_come_in_the_order_of_the_source_through_batches(tmp_path, sync):
    """With retries of single items, halves and skips in between."""

    def work(items):
        if 5 in items and len(items) > 1:
            raise ValueError("divide")
        first = outlast.current().attempt < 2
        return [
            outlast.Skip("three") if item == 3 else ConnectionResetError() if item % 4 == 0 and first else item
            for item in items
        ]

    job = pipeline(made(work, sync=sync, batch=4, retry=THRICE))
    out = tmp_path / "out.jsonl"
    with virtual_time():
        job.run(range(20), sink=str(out), ordered=True)
    assert [int(line) for line in out.read_text().split()] == [n for n in range(20) if n != 3]


@both
def test_a_pause_gives_batches_back_and_a_resume_finishes_them(app, sync):
    """C-22: loose items, waiting batches and running ones are all pending, and none is lost or doubled."""
    calls, runners = [], []

    def work(items):
        calls.append([*items])
        if len(calls) == 2:
            runners[0].loop.call_soon_threadsafe(runners[0].end, "pause")
        if len(calls) < 3:
            raise ConnectionResetError("down")
        return items

    take_in = Runner._take_in

    def watched(runner, chunk):
        runners.append(runner)
        take_in(runner, chunk)

    job = outlast.Pipeline("p", made(work, sync=sync, batch=4, retry=THRICE, concurrency=1), app=app)
    with virtual_time(), patch.object(Runner, "_take_in", watched):
        first = job.run(range(10), run_key="k", check=False)
        assert first.status == "paused"
        assert first.counts.pending + first.counts.succeeded == 10
        assert first.counts.pending >= 8
        result = job.run(range(10), run_key="k")
    assert result.counts.succeeded == 10
    assert list(result.outputs()) == [*range(10)]
    assert [item.attempts for item in result.items()] == [
        len(result._store().attempts(result._number, seq)) for seq in range(10)
    ]


def test_cancelled_places_and_exits_in_a_list(tmp_path):
    """What gather(return_exceptions=True) leaves behind: a cancellation concerns its item, an exit ends the run."""

    async def work(items):
        async def one(item):
            if item == 1:
                raise asyncio.CancelledError
            return item

        return await asyncio.gather(*map(one, items), return_exceptions=True)

    result = trial(pipeline(outlast.stage(batch=3, retry=ONCE)(work)), range(3))
    assert [item.status for item in result.items()] == ["succeeded", "dlq", "succeeded"]

    async def leave(items):
        return [SystemExit(3) for _ in items]

    result = trial(pipeline(outlast.stage(batch=3, retry=ONCE)(leave)), range(3))
    assert [item.error for item in result.items()] == ["leave: RuntimeError: the stage leave called sys.exit: 3"] * 3

    async def interrupt(items):
        return [KeyboardInterrupt() for _ in items]

    with pytest.raises(KeyboardInterrupt):
        trial(pipeline(outlast.stage(batch=3)(interrupt)), range(3))


def test_a_batch_stage_can_be_called_as_it_is():
    """As a test would: without any protection."""

    @outlast.stage(batch=3)
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    assert double([1, 2]) == [2, 4]
    assert double.batch == 3
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(outlast.ConfigurationError, match="batch"):
            outlast.stage(batch=wrong)(lambda items: items)
