"""Sync timeouts: blocking code cannot be stopped, so its caller goes on without it, and nothing else pretends otherwise."""

from __future__ import annotations

import asyncio
import contextvars
import select
import socket
import threading
import time

import pytest

from conformance.adapter import statement
from conformance.bodies import PATIENCE, Story, caught, ended, failing, in_new_process, in_thread, in_threads, trip

color = contextvars.ContextVar("color", default="none")


class Hanging:
    """A body that blocks until it is released; `calls` are those begun, `most` how many ran at the same time."""

    def __init__(self, *, until=lambda call: True, value="late"):
        self._release = threading.Event()
        self._hangs = until
        self._value = value
        self._lock = threading.Lock()
        self._running = 0
        self.calls = self.most = 0
        self.threads = []

    def __call__(self):
        with self._lock:
            self.calls += 1
            self._running += 1
            self.most = max(self.most, self._running)
            self.threads.append(threading.current_thread())
            hangs = self._hangs(self.calls)
        try:
            if hangs:
                assert self._release.wait(PATIENCE)
            return self._value
        finally:
            with self._lock:
                self._running -= 1

    def release(self):
        """Let it go on, and wait until all its threads have ended."""
        self._release.set()
        give_up = time.monotonic() + PATIENCE
        while self._running and time.monotonic() < give_up:
            threading.Event().wait(0.002)
        assert not self._running
        for thread in self.threads:
            ended(thread)


@pytest.fixture
def hanging():
    made = []

    def make(**options):
        made.append(Hanging(**options))
        return made[-1]

    yield make
    for body in made:
        body.release()


# -- no overlap


@statement(38, needs=["thread_timeout", "clock"])
def test_no_attempt_starts_while_one_that_timed_out_still_runs(subject, hanging):
    """semantics 38: the call ends with the timeout, and the reason says that the old attempt is in the way."""
    body = hanging()
    with subject.time() as clock:
        error = caught(subject.protect(body.__call__, attempts=3, waits=(1.0, 1.0), timeout=2.0, thread=True))
    assert (type(error), subject.reason(error)) == (subject.attempt_timed_out, "still_running")
    assert (body.calls, body.most) == (1, 1)
    assert clock.now <= 3.0


@statement(38, needs=["thread_timeout", "virtual_time"])
def test_the_next_attempt_starts_once_the_old_one_has_ended(subject, hanging):
    """semantics 38: an attempt that comes back during the wait is out of the way; its late result is not used."""
    body = hanging(until=lambda call: call == 1, value="result")

    def work():
        result = body()
        return result, body.calls

    def after_the_timeout(event):
        if subject.kind(event) == "retry":
            body.release()

    unsubscribe = subject.subscribe(after_the_timeout)
    try:
        with subject.time() as clock:
            result = subject.protect(work, attempts=3, waits=(1.0, 1.0), timeout=2.0, thread=True)()
    finally:
        unsubscribe()
    assert (result, body.calls, body.most, clock.now) == (("result", 2), 2, 1, 3.0)


# -- the thread


@statement(39, needs=["thread_timeout"])
def test_a_timed_attempt_sees_the_context_of_its_caller(subject):
    """semantics 39: contextvars set by the caller are there in the thread, in every attempt."""
    seen, story = [], Story(ConnectionResetError)

    def body():
        seen.append((color.get(), threading.current_thread().daemon))
        return story()

    def caller():
        color.set("green")
        return subject.protect(body, timeout=PATIENCE, thread=True)()

    assert in_thread(caller) == "done"
    assert seen == [("green", True), ("green", True)]


HANGING = """
import threading
from conformance.adapter import SUBJECTS
from conformance.bodies import caught

begun = threading.Event()

def body():
    begun.set()
    threading.Event().wait()

subject = SUBJECTS[{name!r}]
error = caught(subject.protect(body, attempts=1, timeout=0.05, thread=True))
assert begun.wait(20)
print(isinstance(error, subject.attempt_timed_out))
"""


@statement(39, needs=["thread_timeout"], lanes=False)
def test_an_attempt_that_hangs_for_ever_does_not_keep_the_process(subject):
    """semantics 39: a program ends although a thread that it has given up on never does."""
    assert in_new_process(HANGING.format(name=subject.name)) == ["True"]


# -- too late


@statement(40, needs=["thread_timeout", "virtual_time"])
def test_a_late_result_is_discarded(subject, hanging):
    """semantics 40: who has been told of a timeout is not told anything else afterwards."""
    body = hanging()
    with subject.time(), subject.events() as events:
        error = caught(subject.protect(body.__call__, attempts=1, timeout=2.0, thread=True))
        told = [subject.kind(event) for event in events]
        body.release()
        assert [subject.kind(event) for event in events] == told
    assert isinstance(error, subject.attempt_timed_out)


@statement(40, needs=["thread_timeout", "clock", "breaker"])
def test_a_late_success_does_not_close_a_circuit(subject, hanging):
    """semantics 40: a probe that timed out has failed, whatever it returns later."""
    breaker, body = subject.breaker(failures=1, open_for=10.0, probes=1, successes=1), hanging()
    with subject.time() as clock:
        trip(breaker)
        clock.advance(10.0)
        error = caught(subject.protect(body.__call__, attempts=1, timeout=2.0, thread=True, breaker=breaker))
        assert isinstance(error, subject.attempt_timed_out)
        assert breaker.state == "open"
        body.release()
        assert breaker.state == "open"
        assert isinstance(caught(breaker.call, Story()), subject.rejected)


@statement(40, needs=["thread_timeout", "clock", "breaker"])
def test_a_late_success_does_not_forgive_failures(subject, hanging):
    """semantics 40: in a closed circuit the timeout is one failure in a row, and the late result does not end the row."""
    breaker, body = subject.breaker(failures=3), hanging()
    with subject.time():
        trip(breaker)
        caught(subject.protect(body.__call__, attempts=1, timeout=2.0, thread=True, breaker=breaker))
        body.release()
        trip(breaker)
    assert breaker.state == "open"


@statement(40, needs=["thread_timeout", "virtual_time"])
def test_abandoned_threads_are_counted_until_they_end(subject, hanging):
    """semantics 40: each call leaves at most one thread behind; the count goes up with it and down when it ends."""
    bodies, before = [hanging() for _ in range(3)], subject.abandoned()
    with subject.time():
        for number, body in enumerate(bodies, 1):
            caught(subject.protect(body.__call__, attempts=5, timeout=2.0, thread=True))
            assert subject.abandoned() - before == number
    for body in bodies:
        body.release()
    assert subject.abandoned() == before


# -- in C


class Blocked:
    """Bodies that block in C, where no line of Python runs that could notice a time limit, until they are released."""

    def __init__(self):
        self._ours, self._theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE)
        self._lock = threading.Lock()
        self._lock.acquire()
        self._left = threading.Event()
        self.thread = None

    def recv(self):
        return self._ours.recv(1)

    def select(self):
        return select.select([self._ours], [], [], PATIENCE)

    def lock(self):
        return self._lock.acquire(timeout=PATIENCE)

    def body(self, how):
        """A body that blocks in this way."""

        def body():
            self.thread = threading.current_thread()
            try:
                return getattr(self, how)()
            finally:
                self._left.set()

        return body

    @property
    def is_blocked(self):
        return self.thread is not None and not self._left.is_set()

    def release(self):
        self._theirs.send(b"x")
        self._lock.release()
        assert self._left.wait(PATIENCE)
        ended(self.thread)
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def blocked():
    bodies = Blocked()
    yield bodies
    bodies.release()


@statement(41, needs=["thread_timeout"])
@pytest.mark.parametrize("how", ["recv", "select", "lock"])
def test_the_caller_of_a_call_that_blocks_in_c_returns_on_time(subject, blocked, how):
    """semantics 41: the caller has its timeout while the call still blocks in the operating system."""
    protected, began = subject.protect(blocked.body(how), attempts=1, timeout=0.2, thread=True), time.monotonic()
    error, took = caught(protected), time.monotonic() - began
    assert (type(error), blocked.is_blocked) == (subject.attempt_timed_out, True)
    assert 0.2 <= took < 5.0


@statement(41, needs=["thread_timeout"])
def test_a_call_that_blocks_in_c_does_not_hold_up_other_calls(subject, blocked):
    """semantics 41: what was left behind blocks alone: the same protection serves the next caller at once."""
    how = blocked.body("recv")
    protected = subject.protect(lambda fn: fn(), attempts=1, timeout=0.2, thread=True)
    assert type(caught(protected, how)) is subject.attempt_timed_out
    assert (protected(lambda: "done"), blocked.is_blocked) == ("done", True)


# -- anywhere


@statement(42, needs=["thread_timeout"])
def test_timeouts_work_outside_of_the_main_thread(subject, hanging):
    """semantics 42: no signal is involved, so any thread may have its calls timed, many at once."""
    bodies = [hanging() for _ in range(4)]

    def work(number):
        good = subject.protect(Story(value=number).fn, timeout=PATIENCE, thread=True)()
        late = caught(subject.protect(bodies[number].__call__, attempts=1, timeout=0.05, thread=True))
        return good, type(late)

    assert in_threads(4, work) == [(number, subject.attempt_timed_out) for number in range(4)]


@statement(42, needs=["timeout", "async", "virtual_time"])
def test_timeouts_of_coroutines_work_outside_of_the_main_thread(subject):
    """semantics 42: the same for an event loop in another thread."""

    async def body():
        await asyncio.Event().wait()

    with subject.time():
        protected = subject.protect(body, attempts=1, timeout=2.0)
        (error,) = in_threads(1, lambda _: asyncio.run(protected()))
    assert isinstance(error, subject.attempt_timed_out)


@statement(42, needs=["thread_timeout"])
def test_errors_of_a_timed_attempt_are_the_callers(subject):
    """semantics 42: what a timed attempt raises arrives in the thread that called, as the same object."""
    story = failing()
    (error,) = in_threads(1, lambda _: subject.protect(story.fn, timeout=PATIENCE, thread=True)())
    assert (error, story.calls) == (story.raised[-1], 3)
