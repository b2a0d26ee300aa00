"""Blocking code in a process of its own: on time it is dead, with all that it has started, and nothing leaks."""

from __future__ import annotations

import functools
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import hostile
import outlast
from outlast import ConfigurationError, Guard, PermanentFailure, RetryPolicy, TemporaryFailure
from outlast.isolation import processes
from outlast.isolation.processes import ProcessAttempt
from outlast.kernel.clock import Clock, Dice, Ids, World, here
from outlast.testing import Faults, capture_events, disabled, inject, virtual_time

QUICK = RetryPolicy(initial_delay=0, jitter=0)
SECOND = 1.0  # within which everything must be dead


def guard(**options) -> Guard:
    return Guard("work", **{"retry": QUICK, "timeout": 20, "isolation": "process"} | options)


class Watch:
    """The reading end of a FIFO that hostile bodies hold open, and the processes that have told their number there."""

    def __init__(self, path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._end, select.POLLIN)
        self._told = b""
        self.processes: list[int] = []  # as pidfds

    def see(self, count: int) -> None:
        """Wait until so many processes have settled."""
        until = time.monotonic() + 20
        while self._told.count(b"\n") < count:
            assert time.monotonic() < until, self._told
            if self._poll.poll(1000):
                self._told += self._read()
        self.processes = [os.pidfd_open(int(number)) for number in self._told.split()]

    def _read(self) -> bytes:
        try:
            return os.read(self._end, 4096)
        except BlockingIOError:
            return b""

    def all_dead(self) -> bool:
        """Whether by now, or within a second, every process that held the FIFO is dead, and each that was seen."""
        until = time.monotonic() + SECOND
        for one in self.processes:
            dead = select.poll()
            dead.register(one, select.POLLIN)
            if not dead.poll(max(0, (until - time.monotonic()) * 1000)):
                return False
        while time.monotonic() < until:
            events = self._poll.poll(max(0, (until - time.monotonic()) * 1000))
            if events and not self._read() and events[0][1] & select.POLLHUP:
                return True
        return False

    def close(self) -> None:
        for end in (self._end, *self.processes):
            os.close(end)


@pytest.fixture
def watch(tmp_path):
    watching = Watch(tmp_path / "fifo")
    yield watching
    watching.close()


@contextmanager
def world(clock: Clock):
    token = here.set(World(clock, Dice(), Ids()))
    try:
        yield
    finally:
        here.reset(token)


class Striking(Clock):
    """Real time, in which the limit strikes as soon as all processes of the attempt have settled."""

    def __init__(self, watch: Watch, count: int, error: BaseException | None = None) -> None:
        super().__init__()
        self._watch, self._count, self._error = watch, count, error
        self.struck = 0.0

    def wait_event(self, event, seconds):
        self._watch.see(self._count)
        self.struck = time.monotonic()
        if self._error is not None:
            raise self._error
        return False


HOSTILE = {
    hostile.block_in_c: 1,
    hostile.hold_the_gil: 1,
    hostile.ignore_every_signal: 1,
    hostile.stop_itself: 1,
    hostile.be_many_threads: 1,
    hostile.have_children: 4,
    hostile.have_a_program: 2,
    hostile.have_a_daemon: 2,
    hostile.have_daemons_of_daemons: 3,
    hostile.have_many_generations: 21,
    hostile.be_a_moving_target: 1,
}


# --- dead on time ---


@pytest.mark.parametrize(("body", "count"), HOSTILE.items(), ids=[body.__name__ for body in HOSTILE])
def test_everything_is_dead_when_the_caller_returns(watch, body, count):
    """D-9, semantics 38, 41: within a second of the limit, children and grandchildren too, wherever they went."""
    clock = Striking(watch, count)
    with world(clock), pytest.raises(outlast.AttemptTimeoutError, match="20 s"):
        guard(retry=None).call(body, watch.path)
    assert time.monotonic() - clock.struck < SECOND
    assert watch.all_dead()


def test_the_caller_returns_on_time_in_real_time():
    """D-9, semantics 41, 42: also from a thread that is not the main one, and whatever the code is blocked in."""
    limited = guard(retry=None, timeout=0.2)
    guard().call(abs, 1)  # a child is there

    def took():
        began = time.monotonic()
        with pytest.raises(outlast.AttemptTimeoutError, match=r"0\.2 s"):
            limited.call(time.sleep, hostile.FOR_EVER)
        return time.monotonic() - began

    with ThreadPoolExecutor(1) as pool:
        assert 0.2 <= pool.submit(took).result() < 0.2 + SECOND


def test_the_next_attempt_starts_after_a_timeout():
    """D-9, semantics 38: nothing of the first runs any more, so nothing overlaps; the second has a child of its own."""

    class StrikingOnce(Clock):
        waits = 0

        def wait_event(self, event, seconds):
            self.waits += 1
            return self.waits > 1 and event.wait(20)

    with world(StrikingOnce()), capture_events() as events:
        attempt, process = guard(timeout=5).call(hostile.hang_first)
    assert (attempt, process != os.getpid()) == (2, True)
    assert [event.name for event in events] == ["attempt_timeout", "step_retry_attempt", "step_success"]


def test_virtual_timeouts_kill():
    """D-9, semantics 77: they strike once nothing has moved for a moment, and the waits between attempts take no time."""
    with virtual_time() as clock, pytest.raises(outlast.AttemptTimeoutError) as caught:
        guard(timeout=5, retry=RetryPolicy(max_attempts=2, jitter=0)).call(time.sleep, hostile.FOR_EVER)
    assert (clock.now, clock.sleeps) == (11, [1])
    assert outlast.stop_reason(caught.value) == "exhausted"


def test_a_total_timeout_kills_too():
    """D-7, D-9, semantics 19: the attempt is bounded by what is left in all."""
    with virtual_time() as clock, pytest.raises(outlast.TotalTimeoutError) as caught:
        guard(timeout=None, total_timeout=7).call(time.sleep, hostile.FOR_EVER)
    assert clock.now == 7
    assert outlast.stop_reason(caught.value) == "total_timeout"


def test_an_outer_deadline_kills_too():
    """semantics 19, 21: nested deadlines take the minimum."""
    inner = functools.partial(guard(retry=None, timeout=30).call, time.sleep, hostile.FOR_EVER)
    with virtual_time() as clock, pytest.raises(TimeoutError):
        Guard("outer", retry=None, total_timeout=3).call(inner)
    assert clock.now == pytest.approx(3)


def test_an_interrupted_caller_leaves_nothing_behind(watch):
    """D-9, semantics 45: Ctrl-C while waiting kills the child and all below it."""
    before = processes.killed()
    with world(Striking(watch, 2, KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        guard().call(hostile.have_a_daemon, watch.path)
    assert watch.all_dead()
    assert processes.killed() == before + 1


def children(process: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def descriptors(process: int | str) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - no order, no paths


def supervisor() -> int:
    guard().call(abs, 1)
    return processes._pool._supervisor.pid


def resources() -> tuple[int, int, list[int], bool]:
    mine, kept = children(os.getpid()), children(supervisor())
    return (
        descriptors("self"),
        threading.active_count(),
        mine,
        len(kept) == len(processes._pool._idle) <= processes.MOST_IDLE,
    )


@pytest.mark.timeout(600)
def test_a_thousand_timeouts_leak_nothing():
    """D-9, semantics 40: no thread, process, zombie or descriptor, here and at the supervisor."""
    limited = guard(retry=None, timeout=0.005)
    at_supervisor = supervisor()

    def time_out(times):
        for _ in range(times):
            with pytest.raises(outlast.AttemptTimeoutError):
                limited.call(time.sleep, hostile.FOR_EVER)

    def work(times):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(time_out, [times // 4] * 4))

    work(40)
    gc.collect()  # what other tests have left may go meanwhile, and must not hide a leak
    before, held, killed = resources(), descriptors(at_supervisor), processes.killed()
    work(1000)
    after = resources()
    assert processes.killed() == killed + 1000
    # A leak is one for each time; a few more or less is the business of others in this process.
    assert [now <= then + 20 for now, then in zip(after[:2], before[:2], strict=True)] == [True, True]
    assert set(after[2]) <= set(before[2])
    assert (before[-1], after[-1]) == (True, True)
    assert descriptors(at_supervisor) <= held + processes.MOST_IDLE


# --- a child that dies ---


@pytest.mark.parametrize(
    ("body", "args", "why"),
    [
        (hostile.exit_at_once, (3,), "ended with exit code 3 before its result"),
        (hostile.exit_at_once, (0,), "ended with exit code 0 before its result"),
        (hostile.kill_itself, (), "was killed by SIGKILL, as the system does when memory runs out"),
        (hostile.abort, (), "was killed by SIGABRT"),
        (hostile.close_everything, (), "ended with exit code 1 before its result"),
    ],
)
def test_a_child_that_dies_is_told_at_once(body, args, why):
    """D-9: never a hang, and the message says how it ended; transient, tier child."""
    with pytest.raises(TemporaryFailure, match=f"the child process of {body.__qualname__} {why}") as caught:
        guard(retry=None, timeout=None).call(body, *args)
    verdict = outlast.classify(caught.value)
    assert (verdict.category, verdict.error_class, verdict.tier) == ("transient", "worker_lost", "worker")


def test_a_child_that_makes_no_sense_is_told_at_once():
    """D-9: whatever a body writes where it should not, nobody waits for the rest."""
    with pytest.raises(TemporaryFailure, match="child process of speak_out_of_turn") as caught:
        guard(retry=None, timeout=None).call(hostile.speak_out_of_turn)
    assert outlast.classify(caught.value).error_class == "worker_lost"
    assert guard().call(hostile.double, 2) == 4


def test_a_crash_is_contained_and_tried_again():
    """D-9: a segmentation fault costs one attempt."""
    with capture_events() as events:
        assert guard().call(hostile.crash_first) == 2
    assert [(event.name, event.tier) for event in events] == [
        ("step_retry_attempt", "worker"),
        ("step_success", "worker"),
    ]
    assert events[0].error_class == "worker_lost"
    assert "SIGSEGV" in events[0].error


def test_what_a_crashed_child_has_left_behind_is_killed(watch):
    """D-9: the caller is told after that."""
    with pytest.raises(TemporaryFailure, match="exit code 1"):
        guard(retry=None).call(hostile.leave_a_daemon_and_crash, watch.path)
    assert watch.all_dead()


def test_an_idle_child_that_died_is_not_used():
    """D-9: whoever killed it; the next call has another one and knows nothing of it."""
    child = guard().call(hostile.process)
    ended = os.pidfd_open(child)
    os.kill(child, signal.SIGKILL)
    assert select.select([ended], [], [], 20)[0]
    os.close(ended)
    assert guard(retry=None).call(hostile.process) != child


def test_calls_outlast_a_killed_supervisor(watch):
    """D-9: its children die with it, the call is told, and the next one starts another supervisor."""
    before = supervisor()

    class Killing(Striking):
        def wait_event(self, event, seconds):
            self._watch.see(1)
            os.kill(before, signal.SIGKILL)
            return event.wait(seconds)

    with world(Killing(watch, 1)), pytest.raises(TemporaryFailure, match="killed together with its supervisor"):
        guard(retry=None).call(hostile.block_in_c, watch.path)
    assert watch.all_dead()
    assert guard(retry=None).call(hostile.double, 4) == 8
    assert supervisor() != before


# --- like a plain call ---


def test_results_come_through():
    """D-9: small and large."""
    assert guard().call(hostile.double, 21) == 42
    large = os.urandom(5_000_000)
    assert guard().call(hostile.double, value=large) == large * 2


def test_errors_come_through():
    """D-9: type, arguments, attributes, notes, causes, and where it was raised."""
    with pytest.raises(RuntimeError) as caught:
        guard(retry=None).call(hostile.fail_with_cause)
    error = caught.value
    assert (error.args, error.extra) == (("third", 3), "kept")
    second = error.__cause__
    assert (type(second), second.args, second.__notes__) == (ValueError, ("second",), ["noted"])
    assert (type(second.__cause__), second.__cause__.args) == (KeyError, ("first",))
    assert error.__context__ is second
    note = error.__notes__[0]
    assert note.startswith("in a child process:\n")
    assert "hostile.py" in note
    assert "fail_with_cause" in note
    assert "supervisor.py" not in note


@pytest.mark.parametrize(
    ("body", "fields"), [(hostile.fail_frozen, {"code": 7}), (hostile.fail_picky, {"values": (1, 2)})]
)
def test_errors_that_pickle_alone_cannot_restore_come_through(body, fields):
    """semantics 11: those that take no attributes, and those that want other arguments than they keep."""
    with pytest.raises((hostile.Frozen, hostile.Picky)) as caught:
        guard(retry=None).call(body)
    assert fields.items() <= vars(caught.value).items()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_control_flow_comes_through(error):
    """semantics 1: what the body raises to end the program ends the call, after one attempt."""
    with capture_events() as events, pytest.raises(error):
        guard().call(hostile.fail, error("bye"))
    assert events == []


def test_a_timeout_of_the_body_is_its_own():
    """D-9: a TimeoutError that the function raises is not mistaken for ours."""
    with capture_events() as events, pytest.raises(TimeoutError, match="from the socket") as caught:
        guard().call(hostile.fail, TimeoutError("from the socket"))
    assert type(caught.value) is TimeoutError
    assert [event.name for event in events] == ["step_retry_attempt", "step_retry_attempt", "step_retry_exhausted"]


def test_an_error_keeps_nothing_alive():
    """semantics 63: neither the exception nor what it holds needs the garbage collector."""

    def caught():
        try:
            guard(retry=None).call(hostile.fail_frozen)
        except hostile.Frozen as error:
            return weakref.ref(error)

    assert caught()() is None


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: hostile.decorated(4), (8,)),
        (lambda: hostile.decorated_thrice(4), (8,)),
        (lambda: hostile.Machine(3).times(4), (12,)),
        (lambda: hostile.Machine.named(4), ("Machine", 4)),
        (lambda: hostile.Machine.alone(4), (4,)),
        (lambda: guard().call(hostile.Machine(3), 4), (12,)),
        (lambda: guard().call(functools.partial(hostile.decorated.__wrapped__, value=4)), (8,)),
        (guard()(functools.partial(hostile.Machine(3), 4)), (12,)),
    ],
)
def test_every_kind_of_callable_runs_undecorated_in_the_child(call, expected):
    """D-9: functions, methods, partials and objects; what is decorated is not protected once more in there."""
    *values, process = call()
    assert tuple(values) == expected
    assert process != os.getpid()


def test_a_decorated_function_keeps_its_nature():
    """D-9: name and text."""
    assert hostile.decorated.__name__ == "decorated"


def test_isolation_needs_no_timeout():
    """D-9: crashes are contained without a limit, too."""
    assert guard(timeout=None).call(hostile.double, 2) == 4


# --- what cannot travel ---


def test_what_no_child_could_import_is_refused_at_decoration():
    """D-9: lambdas and functions inside of functions, with the way out."""

    def local():
        pass

    for fn, why in ((lambda: 0, "is a lambda"), (local, "is made inside of another function")):
        for protect in (guard(), guard().call, guard().outcome):
            with pytest.raises(ConfigurationError, match=why) as caught:
                protect(fn)
            assert 'isolation="thread"' in str(caught.value)


def test_a_decorator_that_hides_the_function_is_told_at_the_first_call():
    """D-9: when the function cannot be found under its name."""
    with pytest.raises(ConfigurationError, match=r"functools\.wraps"):
        hostile.hidden(1)


def test_arguments_that_cannot_be_pickled_are_told():
    """D-9: which one and of which type, not what it holds; no attempt can mend that (S0-41)."""
    secret = {"password": "hunter2", "lock": threading.Lock()}
    with pytest.raises(PermanentFailure, match=r"double .* argument 1 \(a value of type dict\)") as caught:
        guard().call(hostile.double, secret)
    assert "hunter2" not in "".join((str(caught.value), *caught.value.__notes__))
    with pytest.raises(PermanentFailure, match=r"value \(a value of type dict\)"):
        guard().call(hostile.double, value=secret)
    assert outlast.classify(caught.value).category == "permanent"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (hostile.returns_what_cannot_travel, "a value of type dict"),
        (hostile.returns_a_coroutine, "a value of type coroutine"),
        (hostile.fail_locked, "hostile.Locked"),
    ],
)
def test_outcomes_that_cannot_be_pickled_are_told(body, words):
    """D-9: by type, not by content; permanent, and the child is as good as before (S0-41)."""
    with capture_events() as events, pytest.raises(PermanentFailure, match=words) as caught:
        guard().call(body)
    assert "hunter2" not in "".join((str(caught.value), *caught.value.__notes__))
    assert outlast.classify(caught.value).error_class == "code_error"
    assert [event.name for event in events] == ["step_error_permanent"]


def test_a_cause_that_cannot_be_pickled_is_left_out():
    """D-9: the error itself comes through."""
    with pytest.raises(ValueError, match="here") as caught:
        guard(retry=None).call(hostile.fail_in_front_of_a_locked_cause)
    assert caught.value.__cause__ is None


def test_a_system_without_fork_is_told_at_decoration(monkeypatch):
    """D-9: with the way out."""
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigurationError, match='isolation="thread"'):
        guard()(hostile.double)


# --- children ---


def test_children_are_kept_for_the_next_attempt():
    """D-9: one after the other they are the same process; at the same time they are not."""
    first = guard().call(hostile.process)
    assert guard().call(hostile.process) == first
    assert guard().call(abs, -1) == 1


def test_an_attempt_has_its_child_alone(tmp_path):
    """D-9: what one does blocks no other."""
    watches = [Watch(tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:

        def hold(watch):
            with world(Striking(watch, 1)), pytest.raises(outlast.AttemptTimeoutError):
                guard(retry=None).call(hostile.block_in_c, watch.path)

        list(pool.map(hold, watches))
    told = [watch._told for watch in watches]
    assert told[0] != told[1]
    for watch in watches:
        watch.close()


def test_idle_children_are_bounded():
    """D-9: whatever the number of calls at once."""
    processes._pool.close()
    more = processes.MOST_IDLE + 2
    attempts = [ProcessAttempt(abs, (-number,), {}) for number in range(more)]
    assert all(attempt.start() for attempt in attempts)
    assert [attempt.result(here.get().clock, 20) for attempt in attempts] == [*range(more)]
    assert len(processes._pool._idle) == processes.MOST_IDLE


def test_what_a_successful_attempt_leaves_running_ends_with_it(watch):
    """D-9: the result comes through, its daemon is dead, and the child is not used again."""
    child = guard().call(hostile.leave_a_daemon, watch.path)
    assert watch.all_dead()
    assert guard().call(hostile.process) != child


def test_a_child_that_has_ended_is_nothing_left():
    """D-9: then the child goes on."""
    assert guard().call(hostile.leave_a_zombie) == guard().call(hostile.process)


def test_a_copy_of_the_child_says_nothing():
    """D-9: a child that returns from the function as well is no second result."""
    assert guard().call(hostile.come_back_twice) == "once"
    assert guard().call(hostile.double, 2) == 4


def test_a_child_stands_where_the_program_stands(monkeypatch, tmp_path):
    """D-9: environment, folder and import path as they are when the attempt starts; no input, and deaf to Ctrl-C."""
    for value, folder in (("one", tmp_path), ("two", tmp_path.parent)):
        monkeypatch.setenv("HOSTILE", value)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "path", [*sys.path, f"/nowhere/{value}"])
        seen = guard().call(hostile.surroundings)
        assert seen == (value, str(folder), f"/nowhere/{value}", b"", signal.SIG_IGN)
    monkeypatch.delenv("HOSTILE")
    assert guard().call(hostile.surroundings)[0] is None


def test_context_variables_do_not_travel():
    """D-9: a child has those of its own."""
    token = hostile.color.set("blue")
    try:
        assert guard().call(hostile.variable) == "unset"
    finally:
        hostile.color.reset(token)


def test_the_place_in_the_call_travels():
    """D-9, semantics 21, 37: attempt, attempts, time left and idempotency key, the same one in every attempt."""
    with capture_events() as events:
        attempt, most, left, key = guard(total_timeout=60).call(hostile.place_in_call)
    assert (attempt, most, len(key)) == (3, 3, 32)
    assert 0 < left <= 60
    assert [event.attempt for event in events] == [1, 2, 3]
    assert all(key in event.error for event in events[:-1])


def test_a_deadline_travels_to_calls_inside():
    """semantics 19, 21: an inner call cannot extend it."""
    assert 0 < guard(total_timeout=30).call(hostile.remaining_inside) <= 30


def test_a_retry_inside_owns_its_error():
    """D-8, semantics 35: three times two calls are two, across processes too."""
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="inner") as caught:
            guard().call(hostile.retry_inside)
        assert outlast.stop_reason(caught.value) == "nested_exhausted"
        assert [record.number for record in outlast.history(caught.value)] == [1, 2]


def test_isolation_inside_of_isolation():
    """D-9: a child can have children, which end with its attempt."""
    outer, result, inner = guard().call(hostile.isolated_inside)
    assert result == 8
    assert len({outer, inner, os.getpid()}) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(inner, 0)


def test_a_forked_program_has_children_of_its_own():
    """D-9, semantics 65: a fork of the program starts its own, and the parent's go on."""
    mine = guard().call(hostile.process)
    read, write = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            os.write(write, str(guard().call(hostile.process)).encode())
            processes._pool.close()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(fork, 0)
    theirs = int(os.read(read, 100))
    os.close(read)
    assert theirs != mine
    assert guard().call(hostile.process) == mine


@pytest.mark.parametrize(("body", "count"), [(hostile.block_in_c, 1), (hostile.have_children, 4)])
def test_where_only_groups_can_be_killed(monkeypatch, watch, body, count):
    """D-9: on systems without Linux's help a child and its group die on time, and a crash is told."""
    bare = "import os, sys; del os.waitid, os.pidfd_open; sys.platform = 'darwin'; "
    processes._pool.close()
    with monkeypatch.context() as patched:
        patched.setattr(processes, "_BOOT", bare + processes._BOOT)
        with world(Striking(watch, count)), pytest.raises(outlast.AttemptTimeoutError):
            guard(retry=None).call(body, watch.path)
        assert watch.all_dead()
        with pytest.raises(TemporaryFailure, match="exit code 3"):
            guard(retry=None).call(hostile.exit_at_once, 3)
        assert guard().call(hostile.double, 2) == 4
        processes._pool.close()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"", "was killed together with its supervisor"),
        (b"-64", "was killed by SIGRTMAX"),
        (b"-99", "was killed by signal 99"),
        (b"1011", "could not be started: Resource temporarily unavailable"),
    ],
)
def test_every_ending_has_its_words(told, why):
    """D-9: also those that are hard to come by."""
    assert processes._ending(told) == why


# --- with the rest ---


def test_disabled_takes_isolation_away():
    """semantics 77: the function runs where its caller runs."""
    with disabled():
        assert guard().call(hostile.process) == os.getpid()


def test_scripted_faults_strike_in_front_of_the_child():
    """semantics 77: and then it runs."""
    with inject(Faults("work", ConnectionResetError(), None)), capture_events() as events:
        assert guard().call(hostile.process) != os.getpid()
    assert [event.name for event in events] == ["step_retry_attempt", "step_success"]


def test_an_outcome_and_a_fallback():
    """D-9: returned instead of raised; the fallback runs in the caller's process."""
    with virtual_time():
        outcome = guard(retry=RetryPolicy(max_attempts=2)).outcome(time.sleep, hostile.FOR_EVER)
        assert (outcome.ok, outcome.reason, len(outcome.attempts)) == (False, "exhausted", 2)
        assert isinstance(outcome.error, outlast.AttemptTimeoutError)
        limited = guard(retry=None, fallback=lambda seconds: os.getpid())
        assert limited.call(time.sleep, hostile.FOR_EVER) == os.getpid()
    assert guard().outcome(hostile.double, 2).value == 4


def test_a_child_that_does_not_get_ready_in_time(monkeypatch):
    """D-9: the total timeout bounds its start, too, and without one a limit of its own does."""
    processes._pool.close()  # one that is warm may be ready in no time
    with pytest.raises(outlast.TotalTimeoutError):
        guard(timeout=None, total_timeout=1e-9).call(hostile.double, 1)
    processes._pool.close()
    monkeypatch.setattr(processes, "_STARTING", 1e-9)
    with pytest.raises(TemporaryFailure, match="was not ready after"):
        guard(retry=None).call(hostile.double, 1)


# --- whole programs ---


def run(tmp_path, text: str, *command: str, **options) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", *(command or ("program.py",))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        **options,
    )


PROGRAM = """
import os, sys
from dataclasses import dataclass
import outlast

@dataclass
class Point:
    x: int

class Refused(Exception):
    pass

@outlast.Guard(isolation="process", timeout=20, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0))
def double(point):
    print("working")
    return Point(point.x * 2), os.getpid()

@outlast.Guard(isolation="process", retry=None)
def refuse():
    raise Refused("no")

if __name__ == "__main__":
    point, process = double(Point(4))
    print(point == Point(8), type(point) is Point, process != os.getpid(), flush=True)
    try:
        refuse()
    except Refused as error:
        print("refused", error)
    sys.exit(7)
"""


def test_functions_of_a_script_run_in_children(tmp_path):
    """D-9: decorated ones, with classes of the script as arguments, results and errors; the script does not start anew; it ends cleanly."""
    done = run(tmp_path, PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (7, "working\nTrue True True\nrefused no\n", "")


@pytest.mark.parametrize("first", [True, False], ids=["in the script", "in a call before"])
def test_a_script_that_imports_multiprocessing_is_found_by_every_call(tmp_path, first):
    """That import gives the name of the script in a child to the child's own main module."""
    script = """
    from dataclasses import dataclass
    import early, outlast

    if FIRST:
        import multiprocessing

    @dataclass
    class Point:
        x: int

    here = outlast.Guard(isolation="process", timeout=20, retry=None)

    @here
    def one(point):
        return Point(point.x + 1)

    @here
    def two(point):
        return Point(point.x + 2)

    if __name__ == "__main__":
        if not FIRST:
            here.call(early.load)
        print(one(Point(1)), two(Point(1)))
    """
    (tmp_path / "early.py").write_text("def load():\n    import multiprocessing\n")
    done = run(tmp_path, textwrap.dedent(script).replace("FIRST", str(first)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Point(x=2) Point(x=3)\n", "")


def test_functions_of_a_package_run_as_a_program_run_in_children(tmp_path):
    """D-9: `python -m`, with imports relative to the package."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "names.py").write_text("NAME = 'shop'")
    (tmp_path / "shop" / "__main__.py").write_text("from .names import NAME\n" + PROGRAM)
    done = run(tmp_path, "", "-m", "shop")
    assert (done.returncode, done.stdout, done.stderr) == (7, "working\nTrue True True\nrefused no\n", "")


def test_a_script_that_starts_its_work_when_imported_is_told(tmp_path):
    """D-9: instead of starting itself without end."""
    done = run(tmp_path, PROGRAM.replace('if __name__ == "__main__":', "if True:"))
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-3] + done.stderr


def test_a_script_that_ends_when_imported_does_not_end_its_program(tmp_path):
    """D-9: sys.exit at the top of a script is no result of the function."""
    script = PROGRAM.replace('if __name__ == "__main__":', "if __name__ != '__main__':\n    sys.exit(5)\nelse:")
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "ConfigurationError: expected a module that can be imported, got: SystemExit" in done.stderr


def test_a_function_that_only_the_program_itself_defines_is_refused(tmp_path):
    """Under the guard of the main module no child finds it: that is said in the words of the guide."""
    late = """
    import outlast

    if __name__ == "__main__":
        @outlast.Guard(isolation="process", retry=None)
        def double(n):
            return 2 * n

        double(4)
    """
    done = run(tmp_path, textwrap.dedent(late))
    assert done.returncode == 1
    assert "ConfigurationError: expected a function that another process can import" in done.stderr
    assert 'Define it outside of `if __name__ == "__main__":`.' in done.stderr


def test_a_function_that_was_typed_in_is_refused_at_decoration(tmp_path):
    """D-9: there is no file to find it in."""
    typed = "import outlast\n@outlast.Guard(isolation='process')\ndef f(): pass\n"
    for command, options in (("-c", typed), {}), (("-",), {"input": typed}):
        done = run(tmp_path, "", *command, **options)
        assert done.returncode == 1
        assert "is in a main module that is no file" in done.stderr


def test_a_program_that_is_killed_leaves_no_child(tmp_path, watch):
    """D-9: kill -9 of the program ends supervisor, children and all that those have started."""
    program = """
    import sys
    import hostile
    from outlast import Guard
    from outlast.isolation import processes
    Guard(isolation="process").call(abs, 1)
    print(processes._pool._supervisor.pid, flush=True)
    Guard(isolation="process").call(hostile.have_a_daemon, sys.argv[1])
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    environ = os.environ | {"PYTHONPATH": str(Path(hostile.__file__).parent)}
    command = [sys.executable, "program.py", watch.path]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as running:
        kept = os.pidfd_open(int(running.stdout.readline()))
        watch.see(2)
        running.kill()
        assert watch.all_dead()
        assert select.select([kept], [], [], SECOND)[0]
    os.close(kept)


def test_ctrl_c_ends_the_program_and_its_children(tmp_path, watch):
    """D-9, semantics 45: the program gets KeyboardInterrupt at once, and nothing is left."""
    program = """
    import sys
    import hostile
    from outlast import Guard
    try:
        Guard(isolation="process").call(hostile.have_a_daemon, sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted")
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    environ = os.environ | {"PYTHONPATH": str(Path(hostile.__file__).parent)}
    command = [sys.executable, "-W", "error", "program.py", watch.path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, text=True, start_new_session=True, **pipes) as running:
        watch.see(2)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        out, err = running.communicate(timeout=200)
    assert watch.all_dead()
    assert (running.returncode, out, err) == (0, "interrupted\n", "")


def test_a_program_ends_cleanly_while_an_attempt_runs(tmp_path, watch):
    """D-9, semantics 39: at once, with its own exit code and nothing on its lips."""
    program = """
    import os, sys, threading
    import hostile
    from outlast import Guard
    work = Guard(isolation="process", timeout=1000)
    threading.Thread(target=work.call, args=(hostile.have_a_daemon, sys.argv[1]), daemon=True).start()
    sys.stdin.readline()
    sys.exit(7)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    environ = os.environ | {"PYTHONPATH": str(Path(hostile.__file__).parent)}
    command = [sys.executable, "-W", "error", "program.py", watch.path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, text=True, **pipes) as running:
        watch.see(2)
        out, err = running.communicate("go\n", timeout=200)
    assert watch.all_dead()
    assert (running.returncode, out, err) == (7, "", "")


def test_what_a_child_says_comes_back_with_its_result():
    """D-9, semantics 37: spending, warnings and the use of the idempotency key count as if they had been said here."""
    limit = outlast.Limit("tokens", rates={"tokens": outlast.Rate(60, per=60, burst=100)})
    ledger = guard(limit=limit, cost=lambda _: {"tokens": 10})
    outcome = ledger.outcome(hostile.spend, 7)
    assert outcome.value == 7
    assert outcome.attempts[0].spent == {"tokens": 7.0}
    assert outcome.attempts[0].warnings == ("spent 7",)
    assert limit.acquire_nowait(tokens=93)
    assert not limit.acquire_nowait(tokens=1)


@pytest.mark.parametrize("how", ["exit", "cancelled", "error", "result"])
def test_what_a_child_says_comes_back_however_it_ends(tmp_path, how):
    """Spending and warnings of an attempt that ended oddly are those of its item all the same."""
    app = outlast.App("odd", store=f"sqlite:///{tmp_path / 'odd.db'}")
    stage = outlast.stage(isolation="process", retry=None)(hostile.spend_and_end)
    pipeline = outlast.Pipeline("odd", stage, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    result = pipeline.run([how])
    (item,) = result.items()
    assert (item.status, result.spent, item.spent, list(item.warnings)) == (
        "dlq",
        {"tokens": 3},
        {"tokens": 3},
        ["spent 3"],
    )


def test_an_error_of_a_child_brings_what_it_said():
    """Semantics 37: who sent the key along may be tried again, also from a child; who did not may not."""
    keyed = guard(idempotent=False, retry=RetryPolicy(delays=[0]))
    with pytest.raises(ConnectionResetError) as caught:
        keyed.call(hostile.send_with_key)
    assert outlast.stop_reason(caught.value) == "exhausted"
    assert [record.warnings for record in outlast.history(caught.value)] == [("sent",), ("sent",)]
    with pytest.raises(ConnectionResetError) as caught:
        keyed.call(hostile.send_without_key)
    assert outlast.stop_reason(caught.value) == "ambiguous"
