"""Waits on record: before each attempt, what an item waited for and how long."""

from __future__ import annotations

import itertools

import pytest

import outlast
from outlast.kernel.clock import roll_for
from outlast.testing import run as trial
from outlast.testing import virtual_time

STEADY = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0, on_errors=("transient", "unclear"))


class Refused(Exception):
    """A service that wants a pause."""

    def __init__(self, retry_after=None):
        super().__init__("too many requests")
        self.status_code = 429
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


def waits(result, seq=0):
    """What the item waited for before each of its attempts, in seconds."""
    return [
        {why: took / 1e6 for why, took in (row.waits or {}).items()}
        for row in result._store().attempts(result._number, seq)
    ]


def made(fn, *, sync, **options):
    if sync:
        return outlast.stage(**options)(fn)

    async def work(item):
        return fn(item)

    work.__name__ = fn.__name__
    return outlast.stage(**options)(work)


both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


def failing(times, error):
    """A stage's function that fails so often."""
    left = itertools.count(1)

    def work(item):
        if next(left) <= times:
            raise error()
        return item

    return work


@both
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError, [{}, {"retry": 1.0}, {"retry": 2.0}]),
        (lambda: Refused(7), [{}, {"retry_after": 8.0}, {"retry_after": 9.0}]),
    ],
    ids=["backoff", "hint"],
)
def test_a_retry_says_whether_it_was_backoff_or_the_services_own_wish(sync, error, expected):
    """The wait before each attempt is on record with its reason (S3-22)."""
    result = trial(outlast.Pipeline("p", made(failing(2, error), sync=sync, retry=STEADY)), ["a"])
    assert result.status == "completed"
    assert waits(result) == expected


def test_an_unwanted_result_is_a_reason():
    """retry_if wants another result."""
    answers = iter([None, 1])

    @outlast.stage(guard=outlast.Guard("g", retry=STEADY, retry_if=lambda result: result is None))
    async def work(_):
        return next(answers)

    assert waits(trial(outlast.Pipeline("p", work), ["a"])) == [{}, {"result": 1.0}]


@both
def test_snoozes_add_up(sync):
    """A snooze makes no row; the attempt that follows has them all. One of no time lasts for a second."""
    left = iter([60, 4, 0])

    def work(item):
        for seconds in left:
            raise outlast.Snooze(seconds)
        return item

    assert waits(trial(outlast.Pipeline("p", made(work, sync=sync)), ["a"])) == [{"snooze": 65.0}]


@both
def test_the_turn_at_a_limit_is_named(sync):
    """Who waits in line says at which limit."""
    limit = outlast.Limit("vendor", rates={"calls": outlast.Rate(1, per=10)})
    stage = made(lambda item: item, sync=sync, guard=outlast.Guard("g", retry=STEADY, limit=limit), concurrency=4)
    result = trial(outlast.Pipeline("p", stage), range(3))
    assert [waits(result, seq) for seq in range(3)] == [[{}], [{"limit vendor": 10.0}], [{"limit vendor": 20.0}]]


def test_a_refusal_behind_a_limit_is_a_pause_that_the_service_asked_for():
    """Both for the item that was refused, and for one that stood in line meanwhile."""
    limit = outlast.Limit("vendor", concurrency=1)
    work = failing(1, lambda: Refused(30))
    stage = made(work, sync=False, guard=outlast.Guard("g", retry=STEADY, limit=limit), concurrency=2)
    result = trial(outlast.Pipeline("p", stage), range(2))
    refused, other = waits(result, 0), waits(result, 1)
    assert refused[1]["throttled vendor"] >= 30
    assert other == [{"throttled vendor": pytest.approx(30)}]


def test_an_open_circuit_and_an_empty_budget_are_named():
    """Each wait keeps its own reason: the backoff, then the circuit; the backoff, then the budget."""
    breaker = outlast.CircuitBreaker("svc", failure_threshold=1, reset_timeout=60)
    guard = outlast.Guard("g", retry=STEADY, breaker=breaker, on_open="wait")
    result = trial(outlast.Pipeline("p", made(failing(1, ConnectionResetError), sync=False, guard=guard)), ["a"])
    assert waits(result) == [{}, {"retry": 1.0, "breaker svc": pytest.approx(59.0)}]

    budget = outlast.RetryBudget("b", ratio=0.1, reserve=1)
    seen = set()

    @outlast.stage(guard=outlast.Guard("g2", retry=STEADY, retry_budget=budget), concurrency=4)
    async def work(item):
        if item not in seen:
            seen.add(item)
            raise ConnectionResetError("once") if item < 4 else outlast.Snooze(5)  # what they deposit comes later
        return item

    result = trial(outlast.Pipeline("p", work), range(200))
    reasons = [waits(result, seq)[1] for seq in range(4)]
    assert all(found["retry"] == 1.0 for found in reasons)
    assert sum("retry_budget b" in found for found in reasons) == 3


@both
def test_waiting_for_a_checkpoint_is_a_reason_and_a_first_stage_has_none(sync):
    """The record of a stage is waited for before the next begins."""

    def first(item):
        return item

    def second(item):
        return item

    stages = made(first, sync=sync, checkpoint=True), made(second, sync=sync)
    result = trial(outlast.Pipeline("p", *stages), ["a"])
    rows = result._store().attempts(result._number, 0)
    assert rows[0].waits is None
    assert set(rows[1].waits) == {"checkpoint"}


def test_an_item_that_ends_while_it_waits_has_its_last_wait_on_its_own_row():
    """No attempt follows, and the wait is not lost (S3-22)."""
    limit = outlast.Limit("vendor", rates={"calls": outlast.Rate(1, per=100)}, max_wait=30)

    @outlast.stage(guard=outlast.Guard("g", retry=STEADY, limit=limit), concurrency=4)
    async def work(item):
        return item

    result = trial(outlast.Pipeline("p", work, failure_budget=1.0), range(2))
    store = result._store()
    first, second = store.items(result._number)
    assert (first.status, first.waits) == ("succeeded", None)
    assert second.status == "dlq"
    assert set(second.waits) == {"limit vendor"}
    assert store.attempts(result._number, 1) == []


def test_with_failures_only_on_record_waits_before_successes_go_to_the_item(app):
    """Nothing that was waited for is lost, and no attempt gets another's waits; from its first failure on an item has all its rows."""
    limit = outlast.Limit("vendor", rates={"calls": outlast.Rate(1, per=10)})

    @outlast.stage(guard=outlast.Guard("g", retry=STEADY, limit=limit))
    async def first(item):
        return item

    work = made(failing(1, TimeoutError), sync=False, retry=STEADY)

    @outlast.stage
    async def last(item):
        raise ValueError("no")

    pipeline = outlast.Pipeline(
        "p", first, work, last, app=app, failure_budget=1.0, min_partial_rate=0.0, min_success_rate=0.0
    )
    with virtual_time():
        limit.acquire_nowait()
        result = pipeline.run(["a"], audit="failures")
    (item,) = app.store.items(result._number)
    assert item.waits == {"limit vendor": 10_000_000}
    rows = app.store.attempts(result._number, 0)
    assert [(row.stage, row.outcome, row.waits) for row in rows] == [
        (1, "retrying", None),
        (1, "success", {"retry": 1_000_000}),
        (2, "failed", None),
    ]


def test_waits_come_back_from_both_databases_as_they_were(app):
    """Whatever the names of limits are."""
    name = 'räte "40/s" \u202e'
    limit = outlast.Limit(name, rates={"calls": outlast.Rate(1, per=10)})

    @outlast.stage(guard=outlast.Guard("g", retry=STEADY, limit=limit))
    async def work(item):
        return item

    with virtual_time():
        result = outlast.Pipeline("p", work, app=app).run(range(2))
    assert app.store.attempts(result._number, 1)[0].waits == {f"limit {name}": 10_000_000}


@pytest.mark.parametrize("kind", ["sync", "async", "guarded", "batch"])
def test_the_waits_of_a_run_follow_from_its_id(app, kind):
    """C-06, S0-31, S0-32: run id, stage, item and attempt decide each of them; so a run can be worked out again, and its items still spread."""
    policy = outlast.RetryPolicy(max_attempts=4, initial_delay=1.0, jitter=0.5, on_errors=["all"])
    options = {"guard": outlast.Guard("g", retry=policy, timeout=60 if kind == "guarded" else None)}

    def fetch(item):
        raise TimeoutError(f"no {item}")

    async def fetch_later(item):
        return fetch(item)

    work = fetch_later if kind != "sync" else fetch
    work.__name__ = work.__qualname__ = "fetch"
    stage = outlast.stage(**options | ({"batch": 1} if kind == "batch" else {}))(work)
    with virtual_time():
        result = outlast.Pipeline("p", stage, app=app, failure_budget=1.0, min_success_rate=0.0).run(
            ["a", "b", "c"], item_key=str, check=False
        )
    run = app.store.run(result.id)
    found = {(row.seq, row.number): row.delay_us for row in app.store.attempts(run.number) if row.outcome == "retrying"}
    wanted = {
        (seq, number): round(policy.delay(number, roll_for(result.id, "fetch", key, number)) * 1e6)
        for seq, key in enumerate("abc")
        for number in (1, 2, 3)
    }
    assert found == pytest.approx(wanted, abs=1)
    assert len({delay for (_, number), delay in found.items() if number == 1}) == 3


def test_a_seed_decides_the_ids_of_a_run_and_so_its_waits():
    """C-06, S0-32: two runs with one seed wait alike, another seed is another run."""

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=3, jitter=0.5, on_errors=["all"]))
    async def fetch(item):
        raise TimeoutError(f"no {item}")

    def played(seed):
        pipeline = outlast.Pipeline("p", fetch, failure_budget=1.0, min_success_rate=0.0)
        result = trial(pipeline, ["a", "b"], item_key=str, seed=seed)
        return result.id, [row.delay_us for seq in (0, 1) for row in result._store().attempts(result._number, seq)]

    assert played(7) == played(7)
    assert played(7)[0] != played(8)[0]
    assert played(7)[1] != played(8)[1]
