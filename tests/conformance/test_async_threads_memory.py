"""Async, threads, fork, memory: one policy for everybody, nothing seen that belongs to another call, nothing kept alive."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import pickle
import threading
import weakref
from collections import Counter
from contextlib import suppress

import pytest

from conformance.adapter import statement
from conformance.bodies import PATIENCE, SYNC, Story, caught, ended, failing, in_new_process, in_threads, settled, trip
from conformance.cases import cases

color = contextvars.ContextVar("color", default="none")


# -- many at once


@statement(58, needs=["async", "timeout", "breaker", "budget"])
def test_one_protected_function_serves_many_threads_and_event_loops(subject, way):
    """semantics 58: the same object, used by four event loops at once with every guard in place, is bound to none of them."""
    calls = Counter()

    async def body(loop, number):
        calls[loop, number] += 1
        await asyncio.sleep(0)
        if calls[loop, number] < 3:
            raise ConnectionResetError
        return number

    protected = subject.protect(
        body,
        way=way,
        waits=(0.001,),
        timeout=PATIENCE,
        total_timeout=2 * PATIENCE,
        breaker=subject.breaker(failures=10**6),
        budget=subject.budget(ratio=0.2, reserve=10**6),
    )

    async def main(loop):
        return await asyncio.gather(*(protected(loop, number) for number in range(10)))

    for _ in range(2):  # a second round of new loops finds nothing left of the first
        calls.clear()
        assert in_threads(4, lambda loop: asyncio.run(main(loop))) == [list(range(10))] * 4
        assert set(calls.values()) == {3}


@statement(58)
def test_one_protected_function_serves_many_threads(subject, way):
    """semantics 58: sync calls of many threads do not share attempts."""
    calls = Counter()

    def body(thread, number):
        calls[thread, number] += 1
        if calls[thread, number] < 3:
            raise ConnectionResetError
        return number

    protected = subject.protect(body, way=way)
    results = in_threads(6, lambda thread: [protected(thread, number) for number in range(25)])
    assert results == [list(range(25))] * 6


@statement(59, needs=["history"])
def test_a_call_does_not_see_the_attempts_of_another_thread(subject, way):
    """semantics 59: each error has the history of its own call, although the attempts of all threads interleave."""
    together = threading.Barrier(6)

    def body(thread):
        seen[thread].append((subject.attempt(), subject.last_error()))
        if len(seen[thread]) <= 3:
            together.wait(PATIENCE)
        if len(seen[thread]) > thread + 2:
            raise ValueError(thread)
        raise ConnectionResetError(thread)

    seen = [[] for _ in range(6)]
    protected = subject.protect(body, way=way, attempts=50)
    errors = in_threads(6, lambda thread: caught(protected, thread))
    assert [(type(error), error.args) for error in errors] == [(ValueError, (thread,)) for thread in range(6)]
    assert [len(subject.history(error)) for error in errors] == [thread + 3 for thread in range(6)]
    for thread, story in enumerate(seen):
        assert [attempt for attempt, _ in story] == list(range(1, thread + 4))
        assert {error.args for _, error in story[1:]} == {(thread,)}


@statement(59, needs=["async", "history"])
def test_a_call_does_not_see_the_attempts_of_another_task(subject, way):
    """semantics 59: the same for tasks of one event loop."""

    async def body(task):
        seen[task].append((subject.attempt(), subject.last_error()))
        await settled(3)
        assert subject.attempt() == len(seen[task])
        if len(seen[task]) > task + 2:
            raise ValueError(task)
        raise ConnectionResetError(task)

    async def main():
        protected = subject.protect(body, way=way, attempts=50)
        return await asyncio.gather(*(protected(task) for task in range(6)), return_exceptions=True)

    seen = [[] for _ in range(6)]
    errors = asyncio.run(main())
    assert [(type(error), error.args) for error in errors] == [(ValueError, (task,)) for task in range(6)]
    assert [len(subject.history(error)) for error in errors] == [task + 3 for task in range(6)]
    for task, story in enumerate(seen):
        assert {error.args for _, error in story[1:]} == {(task,)}


@statement(59, needs=["remaining"])
def test_another_thread_is_in_no_call(subject):
    """semantics 59: while one thread is in its second attempt, a thread that calls nothing stands nowhere."""
    inside, looked, story = threading.Event(), threading.Event(), Story(ConnectionResetError)

    def body():
        if story.calls:
            inside.set()
            assert looked.wait(PATIENCE)
        story()

    def work(number):
        if number == 0:
            return subject.protect(body, total_timeout=PATIENCE)()
        assert inside.wait(PATIENCE)
        found = subject.attempt(), subject.last_error(), subject.remaining()
        looked.set()
        return found

    assert in_threads(2, work) == [None, (1, None, None)]


# -- whatever can be awaited


class Client:
    """Everything that gives something to await when it is called; each fails twice and then works."""

    def __init__(self):
        self.calls = 0

    async def method(self, value):
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls < 3:
            raise ConnectionResetError
        return value

    __call__ = method

    @staticmethod
    async def static(client, value):
        return await client.method(value)

    def later(self, value):
        """A sync function that returns a coroutine."""
        return self.method(value)

    def scheduled(self, value):
        """A sync function that returns a task."""
        return asyncio.ensure_future(self.method(value))


AWAITABLES = {
    "async method": lambda client: client.method,
    "object with async __call__": lambda client: client,
    "static method": lambda client: functools.partial(client.static, client),
    "partial of a coroutine function": lambda client: functools.partial(client.method),
    "partial of a partial": lambda client: functools.partial(functools.partial(client.method)),
    "lambda that returns a coroutine": lambda client: lambda value: client.method(value=value),
    "function that returns a coroutine": lambda client: client.later,
    "function that returns a task": lambda client: client.scheduled,
    "partial of a function that returns a coroutine": lambda client: functools.partial(client.later),
}


each_awaitable = cases("make", AWAITABLES.values(), ids=AWAITABLES)


def awaited_inside(subject, make, full):
    client = Client()
    try:
        protected = subject.protect(make(client), way=subject.ways[:2][-full])
    except subject.misconfigured:
        return

    async def main():
        return await protected("done")

    assert asyncio.run(main()) == "done"
    assert client.calls == 3


@statement(60, needs=["async"])
@each_awaitable
@cases("full", [False, True], ids=["alone", "with everything"])
def test_what_must_be_awaited_is_awaited_inside_of_the_retries(subject, make, full):
    """semantics 60: the attempt is what is awaited, not the making of it; what cannot be protected is refused at decoration."""
    awaited_inside(subject, make, full)


@statement(60, needs=["async", "virtual_time"], lanes=False)
@each_awaitable
@cases("full", [False, True], ids=["alone", "with everything"])
def test_what_must_be_awaited_is_awaited_in_virtual_time_too(subject, make, full):
    """semantics 60: a test sees what happens in earnest."""
    with subject.time() as clock:
        awaited_inside(subject, make, full)
    assert clock.sleeps == [0.0, 0.0]


@statement(60, needs=["async"])
def test_a_function_that_fails_before_it_returns_its_coroutine_is_retried_in_both(subject):
    """semantics 60: an attempt may fail while the coroutine is made or while it is awaited; both are attempts of one call."""
    steps = []

    async def finish():
        steps.append("awaited")
        if steps.count("awaited") < 2:
            raise ConnectionResetError
        return "done"

    def begin():
        steps.append("called")
        if steps.count("called") < 2:
            raise ConnectionResetError
        return finish()

    protected = subject.protect(begin, attempts=4)

    async def main():
        return await protected()

    assert asyncio.run(main()) == "done"
    assert steps == ["called", "called", "awaited", "called", "awaited"]


@statement(60, needs=["async", "fallback"])
def test_a_fallback_stands_in_for_what_fails_when_it_is_awaited(subject):
    """semantics 60: a sync function that returns a coroutine has its fallback too."""
    story = failing()

    async def finish():
        story()

    protected = subject.protect(lambda: finish(), fallback=lambda: "instead")  # noqa: PLW0108 - a sync function

    async def main():
        return await protected()

    assert asyncio.run(main()) == "instead"
    assert story.calls == 3


@statement(60, needs=["async", "outcome"])
def test_a_coroutine_that_was_only_made_is_no_good_outcome(subject):
    """semantics 60: asked without awaiting how a call ends, the answer is not that making the coroutine worked."""

    async def finish():
        raise ConnectionResetError

    def begin():
        made.append(finish())
        return made[-1]

    made = []
    try:
        end = subject.end(begin)
    except subject.misconfigured:
        refused = True
    else:
        refused = not end.ok
        made.append(end.value)
    for coroutine in made:
        getattr(coroutine, "close", int)()
    assert refused


@statement(60, needs=["async", "descriptors"])
def test_decorated_methods_are_protected_for_each_object(subject):
    """semantics 60: in a class body, on functions, coroutine functions, static and class methods."""

    class Decorated:
        calls = 0

        def count(self):
            type(self).calls += 1
            if type(self).calls % 3:
                raise ConnectionResetError
            return type(self).calls

        plain = subject.protect(count)

        @functools.partial(subject.protect)
        async def coroutine(self):
            return self.count()

        @functools.partial(subject.protect)
        @classmethod
        def of_class(cls):
            return cls().count()

        @functools.partial(subject.protect)
        @staticmethod
        async def static(value):
            return Decorated().count() + value

    thing = Decorated()
    assert thing.plain() == 3
    assert asyncio.run(thing.coroutine()) == 6
    assert Decorated.of_class() == 9
    assert asyncio.run(thing.static(100)) == 112
    assert inspect.iscoroutinefunction(Decorated.coroutine)


# -- generators


class Items:
    """Generators of three items: the first `failures` of them fail before their first item, and all fail before item `broken`."""

    def __init__(self, mode, *, failures=0, broken=None, count=3):
        self._asynchronous = mode.asynchronous
        self._failures, self._broken, self._count = failures, broken, count
        self.made = self.closed = 0
        self.raised, self.heard = [], []

    @property
    def fn(self):
        """A generator function, or an async one."""

        def items():
            try:
                self._begin()
                for item in range(self._count):
                    self._before(item)
                    try:
                        self.heard.append((yield item))
                    except KeyError as error:
                        self.heard.append(error)
                return "returned"
            finally:
                self.closed += 1

        async def aitems():
            try:
                self._begin()
                for item in range(self._count):
                    await asyncio.sleep(0)
                    self._before(item)
                    try:
                        self.heard.append((yield item))
                    except KeyError as error:
                        self.heard.append(error)
            finally:
                self.closed += 1

        return aitems if self._asynchronous else items

    def _begin(self):
        self.made += 1
        if self.made <= self._failures:
            self._fail()

    def _before(self, item):
        if item == self._broken:
            self._fail()

    def _fail(self):
        self.raised.append(ConnectionResetError(f"attempt {self.made}"))
        raise self.raised[-1]


class Reader:
    """Who asks a generator for its items, sync or async; `got` has them, and then the error that ended it."""

    def __init__(self, generator):
        self._generator = generator
        self._asynchronous = inspect.isasyncgen(generator)
        self.got = []

    async def _of(self, plain, asynchronous, *args):
        if self._asynchronous:
            return await getattr(self._generator, asynchronous)(*args)
        try:
            return getattr(self._generator, plain)(*args)
        except StopIteration:
            raise StopAsyncIteration from None  # the other cannot leave a coroutine

    async def next(self):
        return await self._of("__next__", "__anext__")

    async def send(self, value):
        return await self._of("send", "asend", value)

    async def throw(self, error):
        return await self._of("throw", "athrow", error)

    async def close(self):
        return await self._of("close", "aclose")

    async def rest(self):
        """Read until there is no more, at most ten items."""
        with suppress(StopAsyncIteration):
            try:
                while len(self.got) < 10:
                    self.got.append(await self.next())
            except ConnectionResetError as error:
                self.got.append(error)
        return self.got


def read(fn):
    """All that a generator function gives."""

    async def main():
        return await Reader(fn()).rest()

    return asyncio.run(main())


@statement(61)
def test_a_generator_is_retried_before_its_first_item_or_refused(subject, mode):
    """semantics 61: what decorates a generator protects it, and what cannot says so at once."""
    items = Items(mode, failures=2)
    try:
        protected = subject.protect(items.fn, attempts=3)
    except subject.misconfigured:
        return
    assert read(protected) == [0, 1, 2]
    assert (items.made, items.closed) == (3, 3)


@statement(61, needs=["streams", "clock"])
def test_a_generator_waits_as_a_call_does(subject, mode):
    """semantics 61: the waits are those of the policy."""
    items = Items(mode, failures=2)
    with subject.time() as clock:
        assert read(subject.protect(items.fn, attempts=3, waits=(1.0, 2.0))) == [0, 1, 2]
    assert clock.sleeps == [1.0, 2.0]


@statement(61, needs=["streams"])
def test_no_item_comes_twice(subject, mode):
    """semantics 61: once an item was handed out nothing is begun again; the generator's own error comes out and says why."""
    items = Items(mode, broken=2)
    *got, error = read(subject.protect(items.fn, attempts=3))
    assert (got, [error], items.made, items.closed) == ([0, 1], items.raised, 1, 1)
    assert subject.reason(error) == "generator_started"


@statement(61, needs=["streams"])
def test_an_error_that_the_reader_throws_in_begins_nothing_again(subject, mode):
    """semantics 61: what the reader throws and the generator does not catch comes back to the reader, and no item twice."""
    items, thrown = Items(mode), ConnectionResetError("of the reader")

    async def main():
        reader = Reader(subject.protect(items.fn, attempts=3)())
        assert await reader.next() == 0
        with pytest.raises(ConnectionResetError) as caught:
            await reader.throw(thrown)
        return caught.value

    assert asyncio.run(main()) is thrown
    assert (items.made, items.closed) == (1, 1)


@statement(61, needs=["streams"])
def test_a_generator_that_never_has_a_first_item_ends_as_a_call_does(subject, mode):
    """semantics 61: when no attempt is left, the last one's own error comes out."""
    items = Items(mode, failures=9)
    (error,) = read(subject.protect(items.fn, attempts=3))
    assert (error is items.raised[-1], items.made, subject.reason(error)) == (True, 3, "exhausted")


@statement(61, needs=["streams"])
def test_a_generator_without_items_is_a_success(subject, mode):
    """semantics 61: nothing to hand out is no failure."""
    items = Items(mode, failures=1, count=0)
    assert read(subject.protect(items.fn, attempts=3)) == []
    assert items.made == 2


@statement(62, needs=["streams"])
def test_closing_a_generator_closes_the_inner_one_at_once(subject, mode):
    """semantics 62: what it holds is given back before `close` returns, and nothing is tried again."""
    items = Items(mode, failures=1)

    async def main():
        reader = Reader(subject.protect(items.fn, attempts=5)())
        assert await reader.next() == 0
        assert items.closed == 1
        await reader.close()
        return items.closed

    assert asyncio.run(main()) == 2
    assert items.made == 2


@statement(62, needs=["streams"])
def test_what_is_sent_and_thrown_reaches_the_inner_generator(subject, mode):
    """semantics 62: after a retry, too, and an error that it catches is its own business."""
    items, thrown = Items(mode, failures=1), KeyError("of the reader")

    async def main():
        reader = Reader(subject.protect(items.fn, attempts=3, on="everything")())
        assert await reader.next() == 0
        assert await reader.send("hello") == 1
        assert await reader.throw(thrown) == 2
        return await reader.rest()

    assert asyncio.run(main()) == []
    assert (items.heard, items.made) == (["hello", thrown, None], 2)


@statement(62, needs=["streams"])
def test_what_a_generator_returns_arrives(subject):
    """semantics 62: `yield from` a protected generator has the value that the inner one returned."""
    items = Items(SYNC, failures=1)

    def outer():
        return [(yield from subject.protect(items.fn, attempts=3)())]

    generator = outer()
    assert [next(generator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == ["returned"]


# -- memory


class Local:
    """Something that a body holds in a variable."""


class Failure(ConnectionResetError):
    """Unlike a builtin exception it can be watched."""


class Watched:
    """A body that holds something and fails, so often; `alive` says what of its attempts still is."""

    def __init__(self, failures=10**6):
        self._failures = failures
        self.locals, self.errors, self.found = [], [], []

    def __call__(self):
        self.found.append((self.alive(self.locals), self.alive(self.errors[:-1])))
        local = Local()
        self.locals.append(weakref.ref(local))
        if len(self.locals) <= self._failures:
            self._fail(local)
        return "done"

    def _fail(self, local):
        error = Failure(len(self.locals))
        self.errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    @staticmethod
    def alive(references):
        return sum(reference() is not None for reference in references)

    @property
    def left(self):
        """What is alive of all attempts: locals and errors."""
        return self.alive(self.locals), self.alive(self.errors)

    @property
    def fn(self):
        def body():
            return self()

        return body


@statement(63)
@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_failed_call_leaves_nothing_behind(subject, way, mode, attempts):
    """semantics 63: what the body held is freed by reference counting alone as soon as the error is."""
    watched = Watched()
    protected = subject.protect(mode.body(watched.fn), way=way, attempts=attempts)
    left = mode.drop(protected, then=lambda: watched.left)
    assert (len(watched.locals), left) == (attempts, (0, 0))


@statement(63)
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_call_that_recovers_leaves_nothing_behind(subject, way, mode):
    """semantics 63: the same for the attempts that failed before one succeeded."""
    watched = Watched(failures=2)
    protected = subject.protect(mode.body(watched.fn), way=way)
    assert mode.drop(protected, then=lambda: watched.left) == (0, 0)
    assert len(watched.locals) == 3


@statement(63, needs=["events"], lanes=False)
@pytest.mark.usefixtures("no_garbage_collection")
def test_events_and_logs_keep_nothing_alive(subject, way, mode, caplog):
    """semantics 63: what is told about a failure are values; whoever keeps them keeps no frame."""
    watched = Watched()
    with subject.events() as events:
        left = mode.drop(subject.protect(mode.body(watched.fn), way=way), then=lambda: watched.left)
    assert (len(events), left) == (3, (0, 0))
    assert caplog.records


@statement(63, needs=["breaker"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_breaker_keeps_nothing_alive(subject, mode):
    """semantics 63: neither the failures it has counted nor the one that opened it."""
    watched, breaker = Watched(), subject.breaker(failures=2)
    protected = breaker(mode.body(watched.fn))
    for _ in range(3):
        assert mode.drop(protected, then=lambda: watched.left) == (0, 0)
    assert (len(watched.locals), breaker.state) == (2, "open")


@statement(63, needs=["breaker"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_retry_that_an_open_circuit_ended_leaves_nothing_behind(subject, way, mode):
    """semantics 63: the last error is raised by the library itself here, and still nothing of it stays."""
    watched = Watched()
    protected = subject.protect(mode.body(watched.fn), way=way, attempts=5, breaker=subject.breaker(failures=2))
    assert mode.drop(protected, then=lambda: watched.left) == (0, 0)
    assert len(watched.locals) == 2


@statement(63, needs=["fallback"])
@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("works", [True, False])
def test_a_fallback_leaves_nothing_behind(subject, mode, works):
    """semantics 63: whether it works or fails too."""
    watched = Watched()

    def fallback():
        if not works:
            raise LookupError

    protected = subject.protect(mode.body(watched.fn), fallback=mode.body(fallback))
    assert mode.drop(protected, then=lambda: watched.left) == (0, 0)
    assert len(watched.locals) == 3


@statement(63, needs=["outcome"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_an_outcome_that_is_dropped_leaves_nothing_behind(subject):
    """semantics 63: an outcome has the error; without it nothing is left."""
    watched = Watched()
    end = subject.end(watched.fn)
    assert (end.ok, watched.left) == (False, (1, 1))
    del end
    assert watched.left == (0, 0)


@statement(63, needs=["thread_timeout"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_an_attempt_in_a_thread_leaves_nothing_behind(subject):
    """semantics 63: once its thread has ended."""
    watched, threads = Watched(), []

    def body():
        threads.append(threading.current_thread())
        return watched()

    caught(subject.protect(body, timeout=PATIENCE, thread=True))
    while threads:
        ended(threads.pop())
    assert (len(watched.locals), watched.left) == (3, (0, 0))


@statement(63, needs=["timeout", "async", "virtual_time"])
@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("which", ["timeout", "total_timeout"])
def test_an_attempt_that_timed_out_leaves_nothing_behind(subject, way, which):
    """semantics 63: what the cancelled coroutine held is freed with the timeout's error."""
    held = []

    async def body():
        local = Local()
        held.append(weakref.ref(local))
        await asyncio.Event().wait()

    async def main():
        with suppress(TimeoutError):
            await subject.protect(body, way=way, attempts=2, **{which: 1.0})()
        await asyncio.sleep(0)  # a task holds what was thrown into it until it yields
        return Watched.alive(held)

    with subject.time():
        assert asyncio.run(main()) == 0
    assert len(held) == (2 if which == "timeout" else 1)


@statement(64)
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_is_alive_during_an_attempt(subject, way, mode):
    """semantics 64: no local of any earlier attempt, and no error but the last one, which the body may ask for."""
    watched = Watched()
    mode.drop(subject.protect(mode.body(watched.fn), way=way, attempts=5))
    assert watched.found == [(0, 0)] * 5


@statement(64)
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_is_alive_when_errors_have_causes(subject, way, mode):
    """semantics 64: what the causes and contexts of an error held is let go too."""
    watched = Watched()

    def body():
        try:
            watched()
        except Failure as error:
            raise ConnectionAbortedError from error

    mode.drop(subject.protect(mode.body(body), way=way, attempts=5))
    assert [alive for alive, _ in watched.found] == [0] * 5


@statement(64)
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_is_alive_when_cause_and_context_differ(subject, way, mode):
    """semantics 64: an error raised from another one while a third is handled leads to the frames of both."""
    handled, cause = Watched(), Watched()

    def body():
        try:
            cause()
        except Failure as error:
            reason = error
        try:
            handled()
        except Failure:
            try:
                raise ConnectionAbortedError from reason
            finally:
                del reason

    mode.drop(subject.protect(mode.body(body), way=way, attempts=4))
    assert [alive for alive, _ in handled.found] == [0] * 4
    assert [alive for alive, _ in cause.found] == [0] * 4


@statement(64)
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_is_alive_when_errors_come_in_groups(subject, way, mode):
    """semantics 64: each leaf of a group has frames of its own, and they are let go too."""
    watched = Watched()

    def body():
        leaves = []
        for _ in range(2):
            try:
                watched()
            except Failure as error:
                leaves.append(error)
        try:
            raise ExceptionGroup("both", [leaves[0], ExceptionGroup("inner", [leaves[1]])])
        finally:
            del leaves

    mode.drop(subject.protect(mode.body(body), way=way, attempts=4, on="everything"))
    assert [alive for alive, _ in watched.found][::2] == [0] * 4


@statement(64)
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_is_alive_at_the_end_of_a_long_chain(subject, way, mode):
    """semantics 64: however many layers have wrapped the error that holds something."""
    watched = Watched()

    def wrapped(layers):
        try:
            return wrapped(layers - 1) if layers else watched()
        except ConnectionError as error:
            raise ConnectionAbortedError from error

    mode.drop(subject.protect(mode.body(lambda: wrapped(20)), way=way, attempts=4))
    assert [alive for alive, _ in watched.found] == [0] * 4


@statement(64, needs=["result_retry"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_no_earlier_result_is_alive_during_an_attempt(subject, mode):
    """semantics 64: a result that is tried again is let go before the next attempt begins."""
    results, found = [], []

    def body():
        found.append(Watched.alive(results))
        result = Local()
        results.append(weakref.ref(result))
        return result

    mode.drop(subject.protect(mode.body(body), attempts=4, again_if=lambda result: True))
    assert found == [0] * 4


@statement(64, needs=["thread_timeout"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_nothing_of_earlier_attempts_in_threads_is_alive_during_an_attempt(subject):
    """semantics 64: the thread of an attempt has ended before the next attempt looks."""
    watched, threads = Watched(), []

    def body():
        for thread in threads:
            ended(thread)
        threads.append(threading.current_thread())
        return watched()

    caught(subject.protect(body, attempts=4, timeout=PATIENCE, thread=True))
    threads.clear()
    assert watched.found == [(0, 0)] * 4


# -- fork

FORKED = """
import faulthandler, os, sys, threading, _thread
from conformance.adapter import SUBJECTS
from conformance.bodies import Story, caught, failing, trip

subject = SUBJECTS[{name!r}]
LOCKS = (_thread.LockType, type(threading.RLock()))

def locks(thing, depth=4, seen=None):
    # Every lock that the object holds, at any depth.
    seen = set() if seen is None else seen
    if id(thing) in seen or depth == 0 or isinstance(thing, type):
        return []
    seen.add(id(thing))
    if isinstance(thing, LOCKS):
        return [thing]
    slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    inner = [*getattr(thing, "__dict__", {{}}).values(), *(getattr(thing, name, None) for name in slots)]
    return [lock for part in inner for lock in locks(part, depth - 1, seen)]

breaker = subject.breaker(failures=3, open_for=60.0)
budget = subject.budget(ratio=0.2, reserve=5)
protected = subject.protect(failing().fn, attempts=2, breaker=breaker, budget=budget)
good = subject.protect(Story().fn, breaker=breaker, budget=budget)
trip(breaker, 2)
held = [lock for thing in (breaker, budget) for lock in locks(thing)]
print(len(held) > 0)
for lock in held:  # as a thread of the parent might at the moment of the fork
    lock.acquire()
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(5, exit=True)
    assert good() == "done"
    caught(protected)
    trip(breaker, 1)
    assert breaker.state == "open", breaker
    os._exit(0)
for lock in held:
    lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
trip(breaker, 0)
print(breaker.state)
trip(breaker, 1)
print(breaker.state)
"""


@statement(65, needs=["breaker", "budget"], lanes=False)
def test_breakers_and_budgets_work_in_a_forked_child(subject):
    """semantics 65: a lock that was held at the fork does not hang the child, and what the child counts is its own."""
    assert in_new_process(FORKED.format(name=subject.name)) == ["True", "0", "closed", "open"]


FORKED_WITH_THREADS = """
import faulthandler, os, threading
from conformance.adapter import SUBJECTS
from conformance.bodies import Story, caught

subject = SUBJECTS[{name!r}]
release = threading.Event()
caught(subject.protect(lambda: release.wait(20), attempts=1, timeout=0.05, thread=True))
print(subject.abandoned())
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(5, exit=True)
    assert subject.abandoned() == 0, subject.abandoned()
    assert subject.protect(Story(ConnectionResetError).fn, timeout=10, thread=True)() == "done"
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
release.set()
"""


@statement(65, needs=["thread_timeout", "abandoned"], lanes=False)
def test_a_forked_child_does_not_count_threads_that_it_does_not_have(subject):
    """semantics 65: threads of the parent are not there, so none of them is abandoned, and timed attempts work."""
    assert in_new_process(FORKED_WITH_THREADS.format(name=subject.name)) == ["1", "0"]


# -- values


def predicate(error):
    """A predicate that can be pickled."""
    return True


POLICIES = {
    "the default": {},
    "a schedule": {"waits": [1.0, 2.0]},
    "types and a predicate": {"on": (ConnectionError, TimeoutError), "never": (ValueError,)},
    "a predicate": {"on": predicate},
    "tiers": {"attempts": None, "tiers": {"database": 5, "network": 3}},
    "jitter": {"jitter": "decorrelated", "first": 1.0},
}


@statement(66, needs=["policy"])
@cases("options", POLICIES.values(), ids=POLICIES)
def test_policies_are_values(subject, options):
    """semantics 66: equal ones have equal hashes, and pickles and copies are equal."""
    policy, twin, other = subject.policy(**options), subject.policy(**options), subject.policy(attempts=17)
    assert (policy == twin, hash(policy) == hash(twin), policy == other) == (True, True, False)
    assert {policy: "found"}[twin] == "found"
    for copied in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)):
        assert (copied, hash(copied), repr(copied)) == (policy, hash(policy), repr(policy))


@statement(66, needs=["policy"])
def test_policies_cannot_be_changed(subject):
    """semantics 66: neither their fields nor what their fields hold, nor through what they were made from."""
    waits, tiers = [1.0, 2.0], {"database": 5}
    policy = subject.policy(waits=waits, tiers=tiers)
    before = repr(policy)
    fields = [name for name in dir(policy) if not name.startswith("_") and not callable(getattr(policy, name))]
    assert len(fields) > 5
    for field in fields:
        with pytest.raises((AttributeError, TypeError)):
            setattr(policy, field, 7)
        with pytest.raises((AttributeError, TypeError)):
            delattr(policy, field)
        value = getattr(policy, field)
        with pytest.raises((AttributeError, TypeError)):
            value["network"] = 1
        assert not isinstance(value, list | set | bytearray)
    waits.append(3.0)
    tiers["network"] = 3
    assert repr(policy) == before


@statement(66, needs=["breaker"])
def test_breakers_pickle_by_name(subject):
    """semantics 66: in the same process it is the same breaker, with the state it has there."""
    breaker = subject.breaker(failures=1)
    text = pickle.dumps(breaker)
    trip(breaker)
    assert pickle.loads(text) is breaker
    assert copy.deepcopy(breaker) is breaker


OTHER_PROCESS = """
import pickle
from conformance.adapter import SUBJECTS
from conformance.bodies import trip

first, second = pickle.loads({text!r}), pickle.loads({text!r})
print(first is second, first.name, first.state)
trip(first, 2)
print(second.state)
"""


@statement(66, needs=["breaker"], lanes=False)
def test_a_breaker_in_another_process_is_one_of_its_own(subject):
    """semantics 66: same name and settings, its own state, and one object however often it is sent."""
    breaker = subject.breaker(failures=2)
    trip(breaker)
    lines = in_new_process(OTHER_PROCESS.format(text=pickle.dumps(breaker)))
    assert lines == [f"True {breaker.name} closed", "open"]
    assert breaker.state == "closed"


# -- hooks


@statement(67, needs=["events"])
def test_a_hook_is_called_once_for_each_event(subject, way, mode):
    """semantics 67: three attempts of one call are three events, each told once, whatever came before."""
    told = []
    unsubscribe = subject.subscribe(told.append)
    try:
        for _ in range(3):
            told.clear()
            mode.catch(subject.protect(mode.body(failing().fn), way=way))
            assert [(subject.kind(event), event.attempt) for event in told] == [
                ("retry", 1),
                ("retry", 2),
                ("gave_up", 3),
            ]
    finally:
        unsubscribe()
    mode.catch(subject.protect(mode.body(failing().fn), way=way))
    assert len(told) == 3


@statement(67, needs=["events", "nested"])
def test_nested_calls_tell_their_own_events(subject, mode):
    """semantics 67: what the inner call tells is not told again by the outer one."""
    told, story = [], Story(ConnectionResetError, ConnectionResetError, ConnectionResetError)
    inner = subject.protect(mode.body(story.fn), attempts=2)

    async def acall():
        return await inner()

    outer = subject.protect(acall if mode.asynchronous else inner, attempts=2, again=True)
    unsubscribe = subject.subscribe(told.append)
    try:
        assert mode.run(outer) == "done"
    finally:
        unsubscribe()
    kinds = [(subject.kind(event), event.attempt) for event in told]
    assert kinds == [("retry", 1), ("gave_up", 2), ("retry", 1), ("retry", 1), ("recovered", 2), ("recovered", 2)]


@statement(67, needs=["events"])
def test_concurrent_calls_tell_each_event_once(subject):
    """semantics 67: eight threads with fifty calls each."""
    told = []
    unsubscribe = subject.subscribe(told.append)
    try:
        in_threads(8, lambda _: [caught(subject.protect(failing().fn, attempts=3)) for _ in range(50)])
    finally:
        unsubscribe()
    assert Counter((subject.kind(event), event.attempt) for event in told) == {
        ("retry", 1): 400,
        ("retry", 2): 400,
        ("gave_up", 3): 400,
    }
    assert len({event.seq for event in told}) == 1200


# -- context variables


@statement(68, needs=["async"])
def test_each_attempt_sees_the_context_of_the_caller(subject, way):
    """semantics 68: what a failed attempt has set is not there in the next one."""
    seen = []

    async def body():
        seen.append(color.get())
        color.set("of an attempt")
        await asyncio.sleep(0)
        assert color.get() == "of an attempt"
        if len(seen) < 3:
            raise ConnectionResetError

    async def main():
        color.set("of the caller")
        await subject.protect(body, way=way)()

    asyncio.run(main())
    if way == "loop":  # the body is the caller's own code there, nothing can be put between
        assert seen == ["of the caller", "of an attempt", "of an attempt"]
    else:
        assert seen == ["of the caller"] * 3


@statement(68, needs=["async"])
@cases("failures", [0, 1, 2])
def test_what_the_last_attempt_sets_stays_set(subject, way, failures):
    """semantics 68: after a protected call the context is as after a plain await of the attempt that succeeded."""
    story = Story(*[ConnectionResetError] * failures)

    async def body():
        color.set(f"attempt {story.calls + 1}")
        await asyncio.sleep(0)
        story()

    async def main():
        color.set("of the caller")
        await subject.protect(body, way=way)()
        return color.get()

    assert asyncio.run(main()) == f"attempt {failures + 1}"


@statement(68, needs=["async"])
def test_a_later_attempt_runs_in_the_task_of_its_caller(subject, way):
    """semantics 68: tasks, timeouts and cancellation inside of an attempt work as in a plain await."""
    tasks = []

    async def body():
        tasks.append(asyncio.current_task())
        color.set(len(tasks))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            child = group.create_task(settled(1))
        assert child.done()
        if len(tasks) < 3:
            raise ConnectionResetError

    async def main():
        await subject.protect(body, way=way)()
        return asyncio.current_task()

    assert tasks.count(asyncio.run(main())) == 3


# -- the last resort


@statement(72, needs=["fallback"])
@cases("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_a_fallback_is_not_run_for_control_flow(subject, mode, interruption):
    """semantics 72: who interrupts does not want something else instead."""
    ran = []
    protected = subject.protect(mode.body(failing(interruption).fn), fallback=mode.body(lambda: ran.append("fallback")))
    assert isinstance(mode.catch(protected), interruption)
    assert ran == []


@statement(72, needs=["fallback"])
def test_a_fallback_is_run_once_after_the_last_attempt_and_sees_the_error(subject, mode):
    """semantics 72: it gets the call's arguments and can ask for the error that it stands in for."""
    seen, story = [], failing()

    def fallback(*args, **kwargs):
        seen.append((args, kwargs, story.calls, subject.last_error()))
        return "instead"

    protected = subject.protect(mode.body(story.fn), fallback=mode.body(fallback))
    assert mode.run(protected, 1, two=2) == "instead"
    assert seen == [((1,), {"two": 2}, 3, story.raised[-1])]


@statement(72, needs=["fallback"])
def test_a_fallback_stands_in_for_what_is_not_retried_too(subject, mode):
    """semantics 72: a permanent error after one attempt."""
    story = failing(ValueError)
    assert mode.run(subject.protect(mode.body(story.fn), fallback=mode.body(lambda: "instead"))) == "instead"
    assert story.calls == 1


@statement(72, needs=["fallback", "breaker"])
def test_a_fallback_stands_in_for_a_rejection(subject, mode):
    """semantics 72: an open circuit is a failure like any other."""
    breaker = subject.breaker(failures=1)
    trip(breaker)
    protected = subject.protect(mode.body(Story().fn), breaker=breaker, fallback=mode.body(lambda: "instead"))
    assert mode.run(protected) == "instead"


@statement(72, needs=["fallback"])
def test_a_fallback_that_fails_chains_to_the_original(subject, mode):
    """semantics 72: its own error is raised, and the error that it was to stand in for is the context."""
    story, second = failing(), LookupError("nothing instead either")

    def fallback():
        raise second

    error = mode.catch(subject.protect(mode.body(story.fn), fallback=mode.body(fallback)))
    assert error is second
    assert error.__context__ is story.raised[-1]
    assert story.raised[-1].__context__ is None


@statement(72, needs=["fallback"])
def test_a_fallback_is_not_run_for_a_success(subject, mode):
    """semantics 72: nor is it retried when it fails."""
    ran = []

    def fallback():
        ran.append("fallback")
        raise ConnectionResetError

    good = subject.protect(mode.body(Story(ConnectionResetError).fn), fallback=mode.body(fallback))
    assert (mode.run(good), ran) == ("done", [])
    mode.catch(subject.protect(mode.body(failing().fn), fallback=mode.body(fallback)))
    assert ran == ["fallback"]
