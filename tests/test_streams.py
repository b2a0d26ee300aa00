"""Protected generators: tried again until their first item, and never after it."""

import asyncio
import inspect

import pytest

import outlast
from outlast import CircuitBreaker, ConfigurationError, Guard, RetryPolicy
from outlast.testing import Faults, capture_events, disabled, inject, virtual_time

POLICY = RetryPolicy(jitter=0)


class Source:
    """Generators that fail a given number of times before their first item, and once after it if asked to."""

    def __init__(self, failures=0, *, fail_after=None):
        self.failures = failures
        self.fail_after = fail_after
        self.made = self.closed = 0
        self.seen = []

    def items(self, count):
        self.made += 1
        try:
            if self.made <= self.failures:
                raise ConnectionResetError(f"attempt {self.made}")
            for item in range(count):
                if item == self.fail_after:
                    raise ConnectionResetError("in the middle")
                try:
                    self.seen.append((yield item))
                except KeyError as error:
                    self.seen.append(type(error))
            return "returned"
        finally:
            self.closed += 1

    async def aitems(self, count):
        self.made += 1
        try:
            if self.made <= self.failures:
                raise ConnectionResetError(f"attempt {self.made}")
            for item in range(count):
                if item == self.fail_after:
                    raise ConnectionResetError("in the middle")
                try:
                    self.seen.append((yield item))
                except KeyError as error:
                    self.seen.append(type(error))
        finally:
            self.closed += 1


async def collect(stream):
    return [item async for item in stream]


def drain(guard, source, *, mode, count=3):
    if mode == "sync":
        return list(guard(source.items)(count))
    return asyncio.run(collect(guard(source.aitems)(count)))


@pytest.fixture(params=["sync", "async"])
def mode(request):
    return request.param


def test_it_is_tried_again_before_the_first_item(mode):
    """semantics 61: every item once, the waits of the policy, and the story told."""
    source = Source(failures=2)
    with virtual_time() as time, capture_events() as events:
        assert drain(Guard("rows", retry=POLICY), source, mode=mode) == [0, 1, 2]
    assert (source.made, source.closed, time.sleeps) == (3, 3, [1, 2])
    assert [(event.name, event.attempt) for event in events] == [
        ("step_retry_attempt", 1),
        ("step_retry_attempt", 2),
        ("step_success", 3),
    ]


def test_it_is_not_tried_again_after_the_first_item(mode):
    """semantics 61: no item comes twice; the exception is the generator's own and says why it was not retried."""
    source = Source(fail_after=2)
    with virtual_time() as time, pytest.raises(ConnectionResetError, match="in the middle") as caught:
        drain(Guard(retry=POLICY), source, mode=mode)
    assert (source.made, time.sleeps) == (1, [])
    assert outlast.stop_reason(caught.value) == "generator_started"
    assert "would hand them out twice" in caught.value.__notes__[-1]


def test_when_no_attempt_is_left_the_last_error_comes_out(mode):
    """semantics 9, semantics 61: as in a call."""
    source = Source(failures=9)
    with virtual_time(), pytest.raises(ConnectionResetError, match="attempt 3") as caught:
        drain(Guard(retry=POLICY), source, mode=mode)
    assert (source.made, len(outlast.history(caught.value)), outlast.stop_reason(caught.value)) == (3, 3, "exhausted")


def test_an_empty_generator_is_a_success(mode):
    """semantics 61: nothing to hand out is no failure."""
    source = Source(failures=1)
    with virtual_time():
        assert drain(Guard(retry=POLICY), source, mode=mode, count=0) == []
    assert source.made == 2


def test_sending_throwing_and_returning_reach_the_inner_generator():
    """semantics 62: as with `yield from`."""
    source = Source(failures=1)

    @outlast.retry(POLICY)
    def items(count):
        return (yield from source.items(count))

    with virtual_time():
        stream = items(3)
        assert next(stream) == 0
        assert stream.send("hello") == 1
        assert stream.throw(KeyError()) == 2
        with pytest.raises(StopIteration) as end:
            next(stream)
    assert end.value.value == "returned"
    assert source.seen == ["hello", KeyError, None]


def test_sending_and_throwing_reach_the_inner_async_generator():
    """semantics 62: asend and athrow too."""
    source = Source(failures=1)

    async def main():
        with virtual_time():
            stream = Guard(retry=POLICY)(source.aitems)(3)
            assert await anext(stream) == 0
            assert await stream.asend("hello") == 1
            assert await stream.athrow(KeyError()) == 2
            assert await anext(stream, "end") == "end"

    asyncio.run(main())
    assert source.seen == ["hello", KeyError, None]


def test_closing_early_closes_the_inner_one_at_once():
    """semantics 62: not when the garbage collector comes by."""
    source = Source()
    stream = Guard(retry=POLICY)(source.items)(3)
    assert next(stream) == 0
    stream.close()
    assert source.closed == 1

    async def main():
        stream = Guard(retry=POLICY)(source.aitems)(3)
        assert await anext(stream) == 0
        await stream.aclose()

    asyncio.run(main())
    assert source.closed == 2


def test_the_breaker_hears_how_it_ended(mode):
    """D-10: one outcome for each attempt; a stream that is closed early is neither."""
    breaker = CircuitBreaker("streams", failure_threshold=2)
    guard = Guard(retry=POLICY, breaker=breaker)
    with virtual_time():
        assert drain(guard, Source(failures=1), mode=mode) == [0, 1, 2]
        assert breaker.failure_count == 0
        with pytest.raises(ConnectionResetError):
            drain(guard, Source(fail_after=1), mode=mode)
        assert breaker.failure_count == 1
        stream = guard(Source().items)(3)
        next(stream)
        stream.close()
        assert breaker.failure_count == 1


def test_time_limits_bound_an_async_generator():
    """semantics 19: the wait for the first item by timeout, for any item by idle_timeout; only the first is tried again."""

    async def slow_start():
        made.append(1)
        if len(made) < 3:
            await asyncio.Event().wait()
        yield "first"
        await asyncio.Event().wait()

    async def main(guard):
        async for item in guard(slow_start)():
            items.append(item)  # noqa: PERF401 - what came before the failure is to stay

    for options in ({"timeout": 5, "idle_timeout": 9}, {"idle_timeout": 9}):
        made, items = [], []
        with virtual_time(), pytest.raises(outlast.AttemptTimeoutError, match="no item for 9 s") as caught:
            asyncio.run(main(Guard(retry=POLICY, **options)))
        assert (len(made), items, outlast.stop_reason(caught.value)) == (3, ["first"], "generator_started")


def test_what_a_stream_cannot_have_is_refused():
    """semantics 61: at decoration, with the reason."""

    def items():
        yield 1

    async def aitems():
        yield 1

    for guard in (
        Guard(timeout=1, isolation="thread"),
        Guard(retry_if=bool),
        Guard(fallback=print),
        Guard(idle_timeout=1),
    ):
        with pytest.raises(ConfigurationError, match="it is a generator function"):
            guard(items)
    with pytest.raises(ConfigurationError, match="it is an async generator function"):
        Guard(fallback=print)(aitems)
    with pytest.raises(ConfigurationError, match="idle_timeout"):
        Guard(idle_timeout=1)(print)
    with pytest.raises(ConfigurationError, match="generator function"):
        CircuitBreaker("refused")(items)
    with pytest.raises(ConfigurationError, match="generator function"):
        Guard().outcome(items)


def test_a_decorated_generator_looks_like_one():
    """Conventions: name, signature and kind stay."""
    source = Source()
    protected = outlast.retry(source.items)
    assert inspect.isgeneratorfunction(protected)
    assert (protected.__name__, str(inspect.signature(protected))) == ("items", "(count)")


def test_faults_and_disabled_reach_streams(mode):
    """semantics 78: in tests streams behave as calls do."""
    source = Source()
    with virtual_time() as time, inject(Faults("rows", TimeoutError(), None)):
        assert drain(Guard("rows", retry=POLICY), source, mode=mode) == [0, 1, 2]
    assert (source.made, time.sleeps) == (1, [1])
    with disabled(), pytest.raises(ConnectionResetError):
        drain(Guard(retry=POLICY), Source(failures=1), mode=mode)


def test_current_is_known_inside_of_each_step():
    """semantics 21: while the generator runs, and not while its consumer does."""
    seen = []

    @Guard(retry=POLICY, total_timeout=60)
    def items():
        for _ in range(2):
            seen.append(outlast.current().remaining() is not None)
            yield

    for _ in items():
        seen.append(outlast.current().remaining() is not None)  # noqa: PERF401 - the order is the point
    assert seen == [True, False, True, False]
