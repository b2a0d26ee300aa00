"""
Running blocking code in a process of its own, which can be killed.

What is promised: the caller returns on time, and by then nothing of the attempt runs any more, neither its process nor
any that it has started, however it tried to get away. A process that dies is told at once as ``worker_lost``. Children
are kept warm for the next attempt; one that was killed, or that left children behind, is not used again. The supervisor
(`outlast.isolation.supervisor`) starts and ends them.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import weakref
from _thread import allocate_lock
from contextlib import ExitStack
from time import monotonic
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, PermanentFailure, TemporaryFailure
from outlast.isolation import supervisor
from outlast.isolation.supervisor import CALL, ERROR, HEADER, PREPARE, READY, REFUSED, RESULT, STOP, Program, Reference
from outlast.settings.callables import name_of
from outlast.settings.names import attribute

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from outlast.kernel.clock import Clock

MOST_IDLE = max(4, os.cpu_count() or 1)  # children that are kept for the next attempt
_STARTING = 30.0  # seconds for a child to start and to import the function's module
_KILLING = 2.0  # seconds until a child counts as impossible to kill; the supervisor needs a few milliseconds
_LONGEST_POLL = 2**31 - 1  # milliseconds
_CHUNK = 1 << 18
_BOOT = (
    "import json, socket, sys; control = socket.socket(fileno=int(sys.argv.pop())); "
    "length = int.from_bytes(control.recv(4, socket.MSG_WAITALL), 'big'); "
    "sys.path[:] = json.loads(control.recv(length, socket.MSG_WAITALL)); "
    "from outlast.isolation.supervisor import keep; import outlast.calls.drivers, outlast.calls.records; keep(control)"
)


def killed() -> int:
    """Children of this process that were killed because nobody waited for them any more."""
    return _pool.killed


# -- what can run in a child --------------------------------------------------------------------------------------------------------


def check(fn: Callable[..., Any]) -> None:
    """ConfigurationError, if it is plain already now that no child could run the function."""
    if not (hasattr(os, "fork") and sys.executable) or hasattr(sys, "frozen"):
        message = 'expected isolation="thread": a program on this system, or packed like this one, cannot have processes that end for sure.'
        raise ConfigurationError(message)
    while isinstance(fn, functools.partial | MethodType):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    if isinstance(fn, FunctionType):
        if "<" in fn.__qualname__:
            _refuse(fn, "is made inside of another function" if fn.__name__ != "<lambda>" else "is a lambda")
        if fn.__module__ == "__main__" and _main_file() is None:
            _refuse(fn, "is in a main module that is no file")


def _refuse(fn: Callable[..., Any], why: str) -> NoReturn:
    raise ConfigurationError(
        f'expected a function that another process can import for isolation="process", got: {name_of(fn)}, which {why}. '
        'Move it to the top of a module, or use isolation="thread".'
    )


def _reference(fn: Callable[..., Any]) -> Reference | None:
    """By which name a child finds the function; None for an object that travels itself."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and module in sys.modules:
        try:
            found = attribute(sys.modules[module], name)
        except AttributeError:
            found = None
        for depth, layer in enumerate(supervisor.layers(found)):
            if layer is fn:
                return Reference(module, name, depth)
    if isinstance(fn, FunctionType):
        _refuse(fn, f"is not found under this name in {module}, or under a decorator without functools.wraps")
    return None


def _main_file() -> tuple[str, str] | None:
    if supervisor.main_file is not None:  # a child's own child
        return supervisor.main_file
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if not isinstance(path, str) or not os.path.isfile(path):  # noqa: PTH113 - asked for each attempt
        return None
    return os.path.abspath(path), getattr(main, "__package__", None) or ""  # noqa: PTH100 - as above


def _this_program() -> Program:
    try:
        folder = os.getcwd()  # noqa: PTH109 - as above
    except OSError:  # it was removed
        folder = None
    path = tuple(entry for entry in sys.path if isinstance(entry, str))
    return Program(folder, path, tuple(sys.argv), dict(os.environ), _main_file())


# -- children -------------------------------------------------------------------------------------------------------------------------


class _Child:
    """
    A child process, seen from the program: where to talk to it, and the line on which the supervisor tells of its end.
    """

    def __init__(self, talk: socket.socket, line: socket.socket) -> None:
        self.talk = talk
        self.line = line
        self.known: set[Reference | None] = {None}
        self.program: Program | None = None
        self.gone = False  # it, and all that it had started
        self.why = "ended before its result"
        self._poll = select.poll()
        for end in (talk, line):
            self._poll.register(end.fileno(), select.POLLIN)

    def wait(self, until: float | None) -> list[int]:
        """The ends at which something has arrived."""
        left = None if until is None else min(_LONGEST_POLL, max(0, math.ceil((until - monotonic()) * 1000)))
        return [end for end, _ in self._poll.poll(left)]

    def deaf(self) -> None:
        """It has closed its end of the talk: only the supervisor can still tell something."""
        self._poll.unregister(self.talk.fileno())

    def buried(self) -> None:
        """The supervisor tells how it ended, or is gone itself, and then so are its children."""
        try:
            told = self.line.recv(64)
        except OSError:
            told = b""
        self.gone = True
        self.why = _ending(told)

    def end(self) -> None:
        """Kill it with all that it has started, and wait until that is true."""
        if not self.gone:
            try:
                self.line.send(STOP)
                self.line.settimeout(_KILLING)
                self.why = _ending(self.line.recv(64))
                self.gone = True
            except TimeoutError:
                return  # `ended` may still see it
            except OSError:
                self.gone = True
        self.close()

    def stop(self) -> None:
        """
        Kill it, and wait until that is true; for another thread than the one that waits for its answer. That one hears
        of the end: what it polls is neither read nor closed here.
        """
        ready, until = select.poll(), monotonic() + _KILLING
        try:
            self.line.send(STOP)
            ready.register(self.line.fileno(), select.POLLIN)
        except (OSError, ValueError):  # closed
            return
        while not self.gone and not ready.poll(20) and monotonic() < until:
            pass

    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        if not self.gone:
            ready = select.poll()
            ready.register(self.line.fileno(), select.POLLIN)
            if ready.poll(0):
                self.buried()
                self.close()
        return self.gone

    def close(self) -> None:
        """Hang up. If it is still there, the supervisor kills it for that."""
        self.talk.close()
        self.line.close()

    def __del__(self) -> None:
        self.close()


def _ending(told: bytes) -> str:
    if not told:
        return "was killed together with its supervisor"
    code = int(told)
    if code >= REFUSED:
        return f"could not be started: {os.strerror(code - REFUSED)}"
    if code >= 0:
        return f"ended with exit code {code} before its result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")


class _Pool:
    """The supervisor of this process and the children that wait for work."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._idle: list[_Child] = []
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._all: weakref.WeakSet[_Child] = weakref.WeakSet()
        self.killed = 0
        self._locked = False

    def take(self, reference: Reference | None) -> _Child:
        """A child for one attempt: one that knows the function, if there is one, or any, or a new one."""
        with self._lock:
            idle = sorted(self._idle, key=lambda child: reference in child.known)
            while idle:
                child = idle.pop()
                self._idle.remove(child)
                if not child.wait(0):
                    return child
                child.close()  # it has died meanwhile, or says what nobody has asked
            return self._hire()

    def _hire(self) -> _Child:
        with ExitStack() as ends:
            talk, its_talk = (ends.enter_context(end) for end in socket.socketpair())
            line, its_line = (ends.enter_context(end) for end in socket.socketpair())
            its_ends = [its_talk.fileno(), its_line.fileno()]
            try:
                socket.send_fds(self._control or self._start_supervisor(), [b"w"], its_ends)
            except ConnectionError:  # the supervisor was killed
                self._stop_supervisor()
                socket.send_fds(self._start_supervisor(), [b"w"], its_ends)
            child = _Child(talk, line)
            self._all.add(child)
            ends.pop_all()
        its_talk.close()
        its_line.close()
        return child

    def _start_supervisor(self) -> socket.socket:
        control, its_end = socket.socketpair()
        path = json.dumps(sys.path, default=str).encode()
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
        with its_end:
            try:
                self._supervisor = subprocess.Popen(  # noqa: S603 - this very interpreter
                    [sys.executable, *flags, "-c", _BOOT, str(its_end.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[its_end.fileno()],
                    start_new_session=True,  # Ctrl-C is for the program, which ends its children itself
                )
                control.sendall(len(path).to_bytes(4, "big") + path)
            except BaseException:
                control.close()
                raise
        self._control = control
        return control

    def _stop_supervisor(self) -> None:
        control, self._control = self._control, None
        process, self._supervisor = self._supervisor, None
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(_KILLING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def give_back(self, child: _Child) -> None:
        """The attempt is over, and the child may do another one."""
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append(child)
                return
        child.close()

    def count(self) -> None:
        """A child was killed."""
        with self._lock:
            self.killed += 1

    def close(self) -> None:
        """End the supervisor and all children."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()
            self._stop_supervisor()

    def hold(self) -> None:
        """
        A fork is due: none may happen in the middle of a change. Not for ever, if it comes out of such a change itself.
        """
        self._locked = self._lock.acquire(timeout=1)

    def go_on(self) -> None:
        if self._locked:
            self._lock.release()

    def forget(self) -> None:
        """This process is a copy of the one that has the supervisor: nothing of that is its own."""
        for child in tuple(self._all):
            child.gone = True
            child.close()
        if self._control is not None:
            self._control.close()
        if self._supervisor is not None:
            self._supervisor.returncode = 0  # nothing for this process to wait for
        self.__init__()  # type: ignore[misc] # as new


_pool = _Pool()
atexit.register(_pool.close)
os.register_at_fork(before=_pool.hold, after_in_parent=_pool.go_on, after_in_child=_pool.forget)


class _Answer:
    """
    What a child says next; waited for like an event, which is set when all of it has arrived or the child is gone.
    """

    grace = 0.2  # real seconds for a virtual timeout to strike: two processes must get their turn

    def __init__(self, child: _Child) -> None:
        self._child = child
        self._got = bytearray()
        self._length: int | None = None
        self._done = False
        self.kind = b""

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        child = self._child
        until = None if timeout is None else monotonic() + timeout
        while not self._done:
            ready = child.wait(until)
            if not ready:
                return False
            if child.talk.fileno() in ready and not self._read():
                child.deaf()
            elif child.line.fileno() in ready and not self._done and child.talk.fileno() not in ready:
                child.buried()
                self._done = True
        return True

    def _read(self) -> bool:
        """Take what is there; False at its end."""
        try:
            some = self._child.talk.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            some = b""
        self._got += some
        if self._length is None and len(self._got) >= HEADER.size:
            self.kind, self._length = HEADER.unpack_from(self._got)
            # Not from the child's own code: there is no use in waiting for more.
            if self.kind.lower() not in {READY, RESULT, ERROR}:
                self._length = len(self._got)
                self._done = True
        self._done = self._done or (self._length is not None and len(self._got) >= HEADER.size + self._length)
        return bool(some)

    def content(self) -> memoryview:
        return memoryview(self._got)[HEADER.size :]

    @property
    def complete(self) -> bool:
        return self._length is not None and len(self._got) == HEADER.size + self._length


# -- an attempt ----------------------------------------------------------------------------------------------------------------------


class ProcessAttempt:
    """
    One call in a child process.

    `inside` is called in the child with the function, its arguments and its keywords, and must call it; it travels by
    pickle. It returns a pair: what the function returned, and whatever shall travel along; that pair is the result
    then.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inside: Callable[..., Any] | None = None,
    ) -> None:
        if supervisor.loading_main:
            message = 'expected a main module that only defines things when it is loaded: put the rest under `if __name__ == "__main__":`.'
            raise ConfigurationError(message)
        check(fn)
        self.timed_out = False
        self._unwanted = False
        self._name = name_of(fn)
        self._child: _Child | None = None
        inner: Any = fn
        while isinstance(inner, functools.partial | MethodType):
            if isinstance(inner, functools.partial):
                inner, args, kwargs = inner.func, (*inner.args, *args), {**inner.keywords, **kwargs}
            else:
                inner, args = inner.__func__, (inner.__self__, *args)
        self._reference = _reference(inner)
        sent = inner if self._reference is None else None
        try:
            self._call = pickle.dumps((self._reference, sent, args, kwargs, inside), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - whatever pickling raises; not its text, which may hold the argument
            problem = _unpicklable(sent, args, kwargs) or type(error).__name__
        else:
            return
        message = f"{self._name} cannot be sent to a child process: {problem} cannot be pickled"
        raise PermanentFailure(message, error_class="code_error")

    @property
    def running(self) -> bool:
        """
        Whether something of it still runs. Not after a result, an error or a timeout, unless the system could not kill
        it.
        """
        return self._child is not None and not self._child.ended()

    def abandon(self) -> None:
        """Nobody waits for it any more: it is killed. For another thread than the one that waits."""
        self._unwanted = True
        child = self._child
        if child is not None:
            child.stop()

    def start(self, seconds: float | None = None) -> bool:
        """Have a child that knows the function; False if that took longer, and then there will be none."""
        within = _STARTING if seconds is None else min(_STARTING, seconds)
        until = monotonic() + within
        self._child = child = _pool.take(self._reference)
        try:
            program = _this_program()
            moved = program != child.program
            if self._reference in child.known and not moved:
                return True
            # A few bytes, which any child that lives takes at once: however short the time is, it is the answer that is
            # late.
            self._send(PREPARE, pickle.dumps((self._reference, program if moved else None)), max(within, 1.0))
            answer = _Answer(child)
            if answer.wait(until - monotonic()):
                self._content(answer)
                child.known.add(self._reference)
                child.program = program
                return True
        except BaseException:
            self._drop()
            raise
        self._drop()
        if seconds is not None and seconds <= within:
            return False
        message = (
            f"the child process of {self._name} was not ready after {within:g} s: its module takes too long to import, "
            'or does work that belongs under `if __name__ == "__main__":`'
        )
        raise TemporaryFailure(message, error_class="worker_lost")

    def result(self, clock: Clock, seconds: float | None) -> Any:
        """
        What the call returned or raised; TimeoutError if it has not come back in time, and then all of it has been
        killed.
        """
        if self._child is None and not self.start():
            raise TimeoutError
        child = self._child
        assert child is not None  # noqa: S101 - started
        if self._unwanted:
            self._drop()
            raise TimeoutError
        try:
            self._send(CALL, self._call, max(_STARTING, 1.0))
            answer = _Answer(child)
            in_time = clock.wait_event(answer, seconds)
            if in_time or answer.is_set():
                return self._content(answer)
        except BaseException:  # also an interruption: nobody waits for it any more
            self._drop()
            raise
        finally:
            del self._call
        self._drop()
        self.timed_out = True
        raise TimeoutError

    def _send(self, kind: bytes, message: bytes, seconds: float) -> None:
        child = self._child
        assert child is not None  # noqa: S101 - started
        child.talk.settimeout(seconds)
        try:
            child.talk.sendall(HEADER.pack(kind, len(message)) + message)
        except TimeoutError:
            child.why = "does not listen"
            self._lost(child)
        except OSError:
            pass  # it is dead, and the supervisor tells how

    def _content(self, answer: _Answer) -> Any:
        """What the child has answered; it is free for another attempt then."""
        child = self._child
        assert child is not None  # noqa: S101 - started
        kind = answer.kind.lower()
        if not answer.complete:
            self._lost(child)
        if kind == READY:
            return None
        self._child = None
        if child.gone or answer.kind != kind:  # what the attempt has started ends with it
            child.end()
        else:
            _pool.give_back(child)
        if kind == ERROR:
            error = supervisor.unpack_error(answer.content())
            try:
                raise error
            finally:
                del error  # this frame is in the traceback: holding the exception would be a cycle
        try:
            return supervisor.unpack(answer.content())
        except Exception as error:  # noqa: BLE001 - somebody else's __setstate__; not its text, which may hold the result
            problem = type(error).__name__
        message = f"the result of {self._name} cannot be loaded from its child process: {problem}"
        raise PermanentFailure(message, error_class="code_error")

    def _lost(self, child: _Child) -> NoReturn:
        self._child = None
        why = child.why
        child.end()
        raise TemporaryFailure(f"the child process of {self._name} {why}", error_class="worker_lost")

    def _drop(self) -> None:
        """Nobody waits for it any more."""
        if self._child is not None:
            self._child.end()
            _pool.count()


def _unpicklable(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    for place, value in ("the function", fn), *((f"argument {n}", v) for n, v in enumerate(args, 1)), *kwargs.items():
        try:
            pickle.dumps(value)
        except Exception:  # noqa: BLE001 - somebody else's __reduce__
            return f"{place} (a value of type {type(value).__name__})"
    return None
