"""`map` and `amap`: one function over many items, whatever happens to some of them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import urllib.request
from collections import Counter

import pytest

import outlast
from outlast.testing import capture_events, virtual_time
from servers.http import MisbehavingServer


def half(number):
    if number % 2:
        raise ValueError(f"odd {number}")
    return number // 2


async def ahalf(number):
    return half(number)


def drive(kind, fn, items, **options):
    if kind == "map":
        return outlast.map(fn, items, **options)

    async def work(item):
        return fn(item)

    return asyncio.run(outlast.amap(work, items, **options))


both = pytest.mark.parametrize("kind", ["map", "amap"])


@both
def test_failures_are_collected_beside_results_in_the_order_of_the_items(kind):
    """S4-25, S4-29: every unit is processed, whatever happens to the others."""
    result = drive(kind, half, range(5))
    assert (result.status, result.total) == ("partial", 5)
    assert result.succeeded == [(0, 0), (2, 1), (4, 2)]
    assert [(item, str(error)) for item, error in result.failed] == [(1, "odd 1"), (3, "odd 3")]
    assert result.values() == [0, 1, 2]
    assert result.elapsed >= 0


@both
def test_items_are_worked_on_at_the_same_time(kind):
    """S4-25: each of four waits until all four are under way, which one after the other would never be."""
    if kind == "map":
        together = threading.Barrier(4, timeout=60)
        result = outlast.map(lambda _: together.wait() >= 0, range(4), concurrency=4)
    else:

        async def meeting():
            under_way, all_there = [], asyncio.Event()

            async def meet(item):
                under_way.append(item)
                if len(under_way) == 4:
                    all_there.set()
                await asyncio.wait_for(all_there.wait(), 60)
                return True

            return await outlast.amap(meet, range(4), concurrency=4)

        result = asyncio.run(meeting())
    assert (result.status, result.values()) == ("success", [True] * 4)


@both
def test_servers_that_really_fail_leave_a_partial_result(kind):
    """S4-29: refused, reset, hung up on and cut off by a server, beside what it has answered."""

    def fetch(path):
        with urllib.request.urlopen(server.url + path, timeout=60) as answer:
            return answer.read()

    with MisbehavingServer() as server:
        result = drive(kind, fetch, ["/ok", "/status/503", "/reset", "/close", "/cut?then=close", "/ok?body=last"])
    assert (result.status, result.succeeded) == ("partial", [("/ok", b"ok"), ("/ok?body=last", b"last")])
    assert [(path, outlast.classify(error).error_class) for path, error in result.failed] == [
        ("/status/503", "unavailable"),
        ("/reset", "connection_reset"),
        ("/close", "connection_reset"),
        ("/cut?then=close", "connection_reset"),
    ]


@both
@pytest.mark.parametrize(
    ("items", "status"), [([0, 2], "success"), ([1, 3], "failure"), ([0, 1], "partial"), ([], "success")]
)
def test_status_is_strict_and_nothing_to_do_is_a_success(kind, items, status):
    """S4-26: all, none or some; an empty list is no partial result."""
    assert drive(kind, half, items).status == status


@both
def test_each_item_is_told(kind):
    """S4-27: item_failed with the error, item_succeeded otherwise; older names find them."""
    with capture_events() as events:
        drive(kind, half, ["x", 2])
    assert sorted((event.name, event.item_id) for event in events) == [("item_failed", "x"), ("item_succeeded", "2")]
    failed = next(event for event in events if event.name == "item_failed")
    assert (failed.error_type, failed.level) == ("TypeError", "error")
    canonical = outlast.observe.events.canonical
    assert canonical("repo_processing_failed") == "item_failed"
    assert canonical("repo_processing_success") == "item_succeeded"


@both
def test_a_guard_protects_each_call(kind):
    """Retries of one item do not disturb the others, in virtual time too (S4-25)."""
    tried = []

    def flaky(item):
        tried.append(item)
        if tried.count(item) < 3:
            raise ConnectionResetError("again")
        return item

    with virtual_time() as time:
        result = drive(kind, flaky, range(4), guard=outlast.Guard(retry=outlast.RetryPolicy(jitter=0)))
    assert (result.values(), len(tried)) == ([0, 1, 2, 3], 12)
    assert sorted(time.sleeps) == [1.0] * 4 + [2.0] * 4


@both
def test_a_failed_item_is_one_line_in_the_log(kind, caplog):
    """D-27: retries are warnings, and the end of an item is one error, whether the guard, a decorator or neither has tried again."""

    @outlast.retry(jitter=0, max_attempts=2)
    def decorated(item):
        raise ConnectionResetError("again")

    def plain(item):
        raise ConnectionResetError("again")

    guard = outlast.Guard(retry=outlast.RetryPolicy(jitter=0, max_attempts=2))
    told = []
    for work, options in ((plain, {"guard": guard}), (decorated, {}), (plain, {})):
        caplog.clear()
        with virtual_time(), caplog.at_level("WARNING", logger="outlast"):
            drive(kind, work, ["a", "b"], **options)
        told.append(Counter(record.levelname for record in caplog.records))
    assert told == [{"WARNING": 2, "ERROR": 2}, {"WARNING": 2, "ERROR": 2}, {"ERROR": 2}]


@both
def test_concurrency_is_a_bound_and_items_are_read_as_they_are_needed(kind):
    """Memory stays bounded: no more is read than can be worked on."""
    lock, now, most, ahead = threading.Lock(), [0], [0], []
    done = []

    def source():
        for number in range(50):
            ahead.append(number - len(done))
            yield number

    def work(item):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1
            done.append(item)
        return item

    assert drive(kind, work, source(), concurrency=3).total == 50
    assert most[0] <= 3
    assert max(ahead) <= 4


@both
def test_context_variables_are_the_callers_and_do_not_leak(kind):
    """Each item sees what the caller has set, and nothing of another item."""
    variable = contextvars.ContextVar("variable", default=None)
    seen = []

    def work(item):
        seen.append(variable.get())
        variable.set(item)

    variable.set("caller's")
    drive(kind, work, range(5), concurrency=1)
    assert seen == ["caller's"] * 5


@both
def test_control_flow_is_not_collected(kind):
    """Ctrl-C ends it."""

    def work(item):
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        drive(kind, work, [1])


def test_the_wrong_kind_of_function_is_named():
    """A coroutine function goes to amap, a function to map; concurrency is at least 1."""
    with pytest.raises(outlast.ConfigurationError, match="amap"):
        outlast.map(ahalf, [1])
    with pytest.raises(outlast.ConfigurationError, match=r"Use outlast\.map"):
        asyncio.run(outlast.amap(half, [1]))
    with pytest.raises(outlast.ConfigurationError, match="concurrency"):
        outlast.map(half, [1], concurrency=0)


@both
@pytest.mark.parametrize("guarded", [False, True])
def test_skipped_and_degraded_items_are_what_they_are_in_a_run(kind, guarded):
    """A Skip is no failure, costs no attempt and says nothing to a breaker; what is degraded is its value, and says why."""
    breaker = outlast.CircuitBreaker("mapped", failure_threshold=1)
    policy = outlast.RetryPolicy(initial_delay=0, on_errors=["all"])
    guard = outlast.Guard("mapped", retry=policy, breaker=breaker) if guarded else None
    calls = []

    def work(number):
        calls.append(number)
        if number == 1:
            raise outlast.Skip("not wanted")
        return outlast.Degraded(20, "from the cache") if number == 2 else number

    with capture_events() as events:
        result = drive(kind, work, [1, 2, 3], guard=guard)
    assert (result.status, result.total, result.values(), result.failed, calls) == (
        "success",
        3,
        [20, 3],
        [],
        [1, 2, 3],
    )
    assert (result.skipped, result.degraded) == ([(1, "not wanted")], [(2, "from the cache")])
    assert sorted(event.item_id for event in events if event.name == "item_succeeded") == ["2", "3"]
    assert (breaker.state, breaker.failure_count) == ("closed", 0)
    assert "1 skipped" in repr(result)
    assert "1 skipped" in result._repr_html_()
