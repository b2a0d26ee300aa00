"""
What attempts do in child processes: well-behaved, crashing, and determined to stay.

Children import this module. A hostile body opens the FIFO it is given and never closes it, nor do its children: whoever reads the FIFO sees
its end when, and only when, all of them are dead. Each of them writes its process number there before it settles.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import outlast
from outlast import Guard, RetryPolicy

FOR_EVER = 1_000_000
ONCE = RetryPolicy(max_attempts=1)
color = ContextVar("color", default="unset")


# --- that never end ---


def tell(fifo: int) -> None:
    os.write(fifo, f"{os.getpid()}\n".encode())


def opened(path: str) -> int:
    fifo = os.open(path, os.O_WRONLY)
    os.set_inheritable(fifo, True)
    return fifo


def block_in_c(path):
    tell(opened(path))
    time.sleep(FOR_EVER)


def hold_the_gil(path):
    tell(opened(path))
    re.match(r"(a+)+$", "a" * 60 + "b")


def ignore_every_signal(path):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    tell(opened(path))
    time.sleep(FOR_EVER)


def stop_itself(path):
    tell(opened(path))
    os.kill(os.getpid(), signal.SIGSTOP)


def be_many_threads(path):
    fifo = opened(path)
    for _ in range(20):
        threading.Thread(target=time.sleep, args=(FOR_EVER,)).start()
    tell(fifo)
    time.sleep(FOR_EVER)


def have_children(path):
    """Three generations, four processes."""
    fifo = opened(path)
    os.fork()
    os.fork()
    tell(fifo)
    time.sleep(FOR_EVER)


def have_a_program(path):
    fifo = opened(path)
    program = f"import os, time; os.write({fifo}, b'%d\\n' % os.getpid()); time.sleep({FOR_EVER})"
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True, pass_fds=[fifo])
    tell(fifo)
    time.sleep(FOR_EVER)


def have_a_daemon(path):
    """A grandchild in a session of its own, whose parent is gone, and that ignores what can be ignored."""
    fifo = opened(path)
    _daemon(lambda: ignore_every_signal(path))
    tell(fifo)
    time.sleep(FOR_EVER)


def _daemon(work) -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            try:
                work()
            finally:
                os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)


def have_daemons_of_daemons(path):
    fifo = opened(path)

    def deeper():
        _daemon(lambda: block_in_c(path))
        block_in_c(path)

    _daemon(deeper)
    tell(fifo)
    time.sleep(FOR_EVER)


def have_many_generations(path):
    """Each in a session of its own, each the parent of the next: they surface one by one."""
    fifo = opened(path)
    for _ in range(20):
        if os.fork():
            break
        os.setsid()
    tell(fifo)
    time.sleep(FOR_EVER)


def be_a_moving_target(path):
    """Each process makes the next one and ends: there is never one for long."""
    fifo = opened(path)

    def run():
        while os.fork() == 0:
            os.setsid()

    _daemon(run)
    tell(fifo)
    time.sleep(FOR_EVER)


# --- that crash ---


def exit_at_once(code):
    os._exit(code)


def segfault():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def abort():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash_first():
    if outlast.current().attempt == 1:
        segfault()
    return outlast.current().attempt


def leave_a_daemon_and_crash(path):
    opened(path)
    _daemon(lambda: time.sleep(FOR_EVER))
    os._exit(1)


def close_everything():
    os.closerange(3, 1000)
    return "nobody hears this"


def speak_out_of_turn():
    """Write into every socket there is."""
    for end in range(3, 50):
        with contextlib.suppress(OSError):
            os.write(end, b"garbage that is long enough")
    time.sleep(FOR_EVER)


# --- that work ---


def double(value):
    return value * 2


def process():
    return os.getpid()


def hang():
    time.sleep(FOR_EVER)


def keep_something():
    outlast.current().keep("answer", "raw")


def hang_first():
    if outlast.current().attempt == 1:
        time.sleep(FOR_EVER)
    return outlast.current().attempt, os.getpid()


def leave_a_daemon(path):
    opened(path)
    _daemon(lambda: time.sleep(FOR_EVER))
    return os.getpid()


def leave_a_zombie():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return os.getpid()


def come_back_twice():
    os.fork()
    return "once"


def surroundings():
    return os.environ.get("HOSTILE"), str(Path.cwd()), sys.path[-1], os.read(0, 10), signal.getsignal(signal.SIGINT)


def place_in_call():
    current = outlast.current()
    if current.attempt < 3:
        raise outlast.TemporaryFailure(current.idempotency_key)
    return current.attempt, current.max_attempts, current.remaining(), current.idempotency_key


def variable():
    return color.get()


def returns_what_cannot_travel():
    return {"password": "hunter2", "lock": threading.Lock()}


async def _nothing():
    pass


def returns_a_coroutine():
    return _nothing()


# --- that raise ---


class Picky(Exception):
    """Pickle takes it, but cannot restore it: its __init__ wants what it does not pass on."""

    def __init__(self, one, *, two):
        super().__init__("hunter2")
        self.values = one, two


class Locked(Exception):
    """Pickle does not take it."""

    def __init__(self):
        super().__init__("hunter2")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def fail(error):
    raise error


def fail_picky():
    raise Picky(1, two=2)


def fail_frozen():
    raise Frozen(7)


def fail_locked():
    raise Locked


def fail_with_cause():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as second:
        second.add_note("noted")
        error = RuntimeError("third", 3)
        error.extra = "kept"
        raise error from second


def fail_in_front_of_a_locked_cause():
    try:
        fail_locked()
    except Locked as error:
        raise ValueError("here") from error


# --- calls inside of calls ---

protected = Guard("protected", isolation="process", retry=ONCE)


@protected
def decorated(value):
    return value * 2, os.getpid()


def passing(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def hiding(fn):
    def wrapper(value):
        return fn(value)

    return wrapper


@passing
@protected
@passing
def decorated_thrice(value):
    return value * 2, os.getpid()


@hiding
@protected
def hidden(value):
    return value


class Machine:
    def __init__(self, factor):
        self.factor = factor

    @protected
    def times(self, value):
        return value * self.factor, os.getpid()

    @protected
    @classmethod
    def named(cls, value):
        return cls.__name__, value, os.getpid()

    @protected
    @staticmethod
    def alone(value):
        return value, os.getpid()

    def __call__(self, value):
        return value * self.factor, os.getpid()


def retry_inside():
    return Guard("inner", retry=RetryPolicy(max_attempts=2, initial_delay=0)).call(fail, ConnectionResetError("inner"))


def remaining_inside():
    return Guard("inner", total_timeout=1000).call(lambda: outlast.current().remaining())


def isolated_inside():
    return os.getpid(), *decorated(4)


def spend(tokens):
    outlast.current().spend(tokens=tokens)
    outlast.current().warn(f"spent {tokens}")
    return tokens


class Unsendable(Exception):
    """Pickle takes it and does not give it back."""

    def __reduce__(self):
        raise TypeError("stays here")


def spend_and_end(how):
    spend(3)
    if how == "exit":
        sys.exit(3)
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "error":
        raise Unsendable
    return lambda: 1


def send_with_key():
    assert outlast.current().idempotency_key
    outlast.current().warn("sent")
    raise ConnectionResetError


def send_without_key():
    raise ConnectionResetError
