"""
The other side of process isolation: the supervisor, and the children that it starts.

The supervisor is a small process with one thread, so that it can fork at any time. It starts a child on demand. When a
child ends, nothing of it may be left. A process that loses its parent is inherited by the supervisor. Each inherited
process that the supervisor has not started itself is a leftover: it is killed, and so is what it leaves behind in turn.
Every signal goes to a process that the supervisor has not waited for yet. Its number can therefore not belong to
another process.

A child runs one call after the other. What it is told and what it answers are frames: a letter, a length, a pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from outlast.errors import ConfigurationError, PermanentFailure
from outlast.kernel import raised
from outlast.kernel.frames import ELSEWHERE, frames_of
from outlast.settings.names import attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADER = struct.Struct("!cQ")
PREPARE, CALL = b"p", b"c"  # to a child
READY, RESULT, ERROR = b"y", b"r", b"e"  # from a child; in capitals, if processes that it started still run
STOP = b"k"  # to the supervisor, about one child
REFUSED = 1000  # from the supervisor: no exit code, but why there is no child; the errno is added to it

_PDEATHSIG, _SUBREAPER = 1, 36  # of Linux's prctl
_MOST_LINKS = 16  # of a chain of exceptions
_TICK_MS = 10


class Program(NamedTuple):
    """What the children of a program must know of it."""

    folder: str | None
    path: tuple[str, ...]
    argv: tuple[str, ...]
    environ: dict[str, str]
    main: tuple[str, str] | None  # the file of its main module, and the package that it belongs to


class Reference(NamedTuple):
    """By which name a function is found, and how many layers of decoration lie on it there."""

    module: str
    name: str
    depth: int


# -- the supervisor ----------------------------------------------------------------------------------------------------------------------


def keep(control: socket.socket) -> NoReturn:
    """Be the supervisor until the program at the other end is gone."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = _Supervisor(control)
    supervisor.run()
    supervisor.clear()
    os._exit(0)


class _Supervisor:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, socket.socket] = {}  # that it has started, each with its line to the program
        self._gone: list[tuple[socket.socket, int]] = []  # dead, but perhaps not all that they started
        self._poll = select.poll()
        self._wake, self._ring = socket.socketpair()
        for end in (self._wake, self._ring):
            end.settimeout(0)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGTERM, _nothing)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        prctl(_SUBREAPER, 1)
        self._program = _pidfd(os.getppid())
        for door in (control.fileno(), self._wake.fileno(), self._program):
            if door is not None:
                self._poll.register(door, select.POLLIN)

    def run(self) -> None:
        while True:
            lines = {line.fileno(): pid for pid, line in self._children.items()}
            for door, _ in self._poll.poll(_TICK_MS if self._gone else None):
                if door == self._program:
                    return
                if door == self._wake.fileno():
                    if signal.SIGTERM in self._wake.recv(4096):
                        return
                elif door == self._control.fileno():
                    if not self._start():
                        return
                elif door in lines:  # a demand, or nobody is there any more
                    self._poll.unregister(door)
                    _kill(lines[door])
            self._sweep()

    def _start(self) -> bool:
        asked, ends, _, _ = socket.recv_fds(self._control, 1, 2)
        if len(ends) < 2:  # nobody is there any more, or there is no room for what was sent
            for end in ends:
                os.close(end)
            return bool(asked)
        talk, line = (socket.socket(fileno=end) for end in ends)
        supervisor = os.getpid()
        try:
            child = os.fork()
        except OSError as refused:  # no room for another process
            talk.close()
            self._gone.append((line, REFUSED + (refused.errno or 0)))
            return True
        if child == 0:
            try:
                lines = [line, *self._children.values(), *(gone for gone, _ in self._gone)]
                for ours in (self._control, self._wake, self._ring, *lines):
                    ours.close()
                if self._program is not None:
                    os.close(self._program)
                _settle_in(supervisor)
                _Child(talk).run()
            finally:
                os._exit(1)  # never back into the supervisor's loop
        talk.close()
        self._children[child] = line
        self._poll.register(line.fileno(), select.POLLIN)
        return True

    def _sweep(self) -> None:
        """Wait for the dead, kill what they left behind, and tell when nothing is left."""
        while True:
            self._reap()
            strays = [pid for pid in _below() if pid not in self._children]
            if not strays:
                break
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not self._reap():
                return  # they take a moment to die; a signal tells of it
        while self._gone:
            line, code = self._gone.pop()
            with line, contextlib.suppress(OSError):
                line.send(str(code).encode())

    def _reap(self) -> bool:
        """Wait for the dead; whether there were any."""
        some = False
        while (dead := self._bury()) is not None:
            some = True
            pid, status = dead
            line = self._children.pop(pid, None)
            if line is not None:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(line.fileno())
                self._gone.append((line, os.waitstatus_to_exitcode(status)))
        return some

    def _bury(self) -> tuple[int, int] | None:
        with contextlib.suppress(ChildProcessError):
            if hasattr(os, "waitid"):
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if dead is None:
                    return None
                if dead.si_pid in self._children:
                    _kill(dead.si_pid)  # the rest of its group, while the number is still its own
                return os.waitpid(dead.si_pid, 0)
            pid, status = os.waitpid(-1, os.WNOHANG)
            return (pid, status) if pid else None
        return None

    def clear(self) -> None:
        """The program is gone: so must be all that was started for it."""
        for pid in self._children:
            _kill(pid)
        waiting = select.poll()
        waiting.register(self._wake.fileno(), select.POLLIN)
        while self._children or self._gone:
            self._sweep()
            waiting.poll(_TICK_MS)
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)


def _nothing(*_: object) -> None:
    """A signal with a handler wakes the supervisor up."""


def _kill(child: int) -> None:
    """Kill a child that was not waited for yet, and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _below() -> list[int]:
    """The processes whose parent this one is. Elsewhere than on Linux nobody tells."""
    if sys.platform != "linux":
        return []
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as listed:  # noqa: PTH123 - a Path costs more than the reading
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        pass
    found: list[int] = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as facts:  # noqa: PTH123 - as above
                if int(facts.read().rpartition(")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def prctl(option: int, value: int) -> None:
    """Ask Linux for something about this process; elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _pidfd(process: int) -> int | None:
    try:
        return os.pidfd_open(process) if os.getppid() == process else None
    except (AttributeError, OSError):
        return None


# -- a child ------------------------------------------------------------------------------------------------------------------------


def _settle_in(supervisor: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # A group and a session of its own: a call that signals its own group meets nobody else.
    with contextlib.suppress(OSError):
        os.setsid()
    prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before it could be asked for
        os._exit(1)
    prctl(_SUBREAPER, 1)  # what this child starts stays below it for as long as it lives


class _Child:
    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._me = os.getpid()
        self._known: dict[Reference, Callable[..., Any]] = {}

    def run(self) -> NoReturn:
        while True:
            kind, told = _read_frame(self._talk)
            kind, answer = self._prepare(told) if kind == PREPARE else self._call(told)
            if os.getpid() != self._me:  # a copy that the call has made of this process, and that came back from it
                os._exit(0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            if has_children():
                kind = kind.upper()
            self._talk.sendall(HEADER.pack(kind, len(answer)) + answer)
            del told, answer

    def _prepare(self, told: bytearray) -> tuple[bytes, bytes]:
        try:
            reference, program = pickle.loads(told)  # noqa: S301 - from the program that this child belongs to
            if program is not None:
                _move_to(program)
            if reference is not None:
                self._known[reference] = find(reference)
        except Exception as error:  # noqa: BLE001 - told to the caller
            return ERROR, pack_error(error)
        except BaseException as error:  # noqa: BLE001 - it must not end the program that asked
            message = f'expected a module that can be imported, got: {type(error).__name__} from it. Put its work under `if __name__ == "__main__":`.'
            return ERROR, pack_error(ConfigurationError(message))
        return READY, b""

    def _call(self, told: bytearray) -> tuple[bytes, bytes]:
        try:
            reference, fn, args, kwargs, inside = unpack(told)
        except BaseException as error:  # noqa: BLE001 - told to the caller, but not its text: it may hold what was sent
            message = f"the arguments cannot be loaded in a child process: {type(error).__name__}"
            return ERROR, pack_error(PermanentFailure(message, error_class="code_error"))
        fn = fn if reference is None else self._known[reference]
        try:
            result, said = (fn(*args, **kwargs), None) if inside is None else inside(fn, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - told to the caller
            return ERROR, pack_error(error)
        finally:
            del args, kwargs
        try:
            return RESULT, pickle.dumps(result if inside is None else (result, said), pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - whatever pickling raises, and not its text either
            if isinstance(result, CoroutineType):
                result.close()
            message = f"the result cannot leave its child process: a value of type {type(result).__name__} that pickle does not take"
            unsent = PermanentFailure(message, error_class="code_error")
            raised.fields(unsent)[SAID] = said
            return ERROR, pack_error(unsent)


def _read_frame(talk: socket.socket) -> tuple[bytes, bytearray]:
    kind, length = HEADER.unpack(_read(talk, HEADER.size))
    return kind, _read(talk, length)


def _read(talk: socket.socket, length: int) -> bytearray:
    got = bytearray(length)
    rest = memoryview(got)
    while rest:
        count = talk.recv_into(rest)
        if count == 0:  # nobody will ask again
            os._exit(0)
        rest = rest[count:]
    return got


def has_children() -> bool:
    """Whether a child of this process is alive; the dead ones are waited for."""
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


# -- finding functions ---------------------------------------------------------------------------------------------------------------

main_file: tuple[str, str] | None = None  # in a child: the main module of its program
# In a child: that module, as soon as it is being loaded. Not `sys.modules`: whoever imports multiprocessing writes there.
_main: Any = None
loading_main = False


def _move_to(program: Program) -> None:
    global main_file  # noqa: PLW0603 - one program, one main module
    with contextlib.suppress(OSError):
        if program.folder is not None:
            os.chdir(program.folder)
    sys.path[:] = program.path
    sys.argv[:] = program.argv
    for name in set(os.environ) - set(program.environ):
        del os.environ[name]
    os.environ.update(program.environ)
    main_file = program.main


def layers(fn: Any) -> Iterator[Any]:
    """The function, what it decorates, and so on."""
    for _ in range(100):
        yield fn
        inner = getattr(fn, "__func__", None) or getattr(fn, "__wrapped__", None)
        if inner is None:
            return
        fn = inner


def find(reference: Reference) -> Callable[..., Any]:
    """The very function, without the decoration that would protect it once more."""
    try:
        found = attribute(module_of(reference.module), reference.name)
    except AttributeError:
        if reference.module not in {"__main__", "__mp_main__"}:
            raise
        raise ConfigurationError(
            'expected a function that another process can import for isolation="process", got: '
            f'{reference.name}, which is not there when the script is imported. Define it outside of `if __name__ == "__main__":`.'
        ) from None
    for depth, layer in enumerate(layers(found)):
        if depth == reference.depth:
            return layer  # type: ignore[no-any-return]
    message = f"{reference.module}.{reference.name} is decorated otherwise in a child process than in the program"
    raise PermanentFailure(message, error_class="code_error")


def module_of(name: str) -> Any:
    """
    The module of that name; a program's main module is loaded once, under the name that keeps it from starting its
    work.
    """
    if name not in {"__main__", "__mp_main__"}:
        return importlib.import_module(name)
    return _load_main() if _main is None else _main


def _load_main() -> Any:
    global _main, loading_main  # noqa: PLW0603 - there is one main module
    if main_file is None:
        message = "expected a main module that is a file: this program has none that a child process could load."
        raise ConfigurationError(message)
    from types import ModuleType

    path, package = main_file
    main = ModuleType("__mp_main__")
    main.__file__, main.__package__ = path, package
    if package:
        importlib.import_module(package)
    with open(path, "rb") as source:  # noqa: PTH123 - bytes, as the interpreter reads it
        code = compile(source.read(), path, "exec", dont_inherit=True)
    before = {name: sys.modules.get(name) for name in ("__main__", "__mp_main__")}
    # Both names, and before it begins: what the program has pickled says __main__, and `import multiprocessing` gives the
    # second name to what has the first one.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = _main = main
    loading_main = True
    try:
        exec(code, main.__dict__)  # noqa: S102 - the program itself
    except BaseException:
        _main = None
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        raise
    finally:
        loading_main = False
    return main


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in {"__main__", "__mp_main__"} and main_file is not None:
            return attribute(module_of(module), name)
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def unpack(pickled: bytes | bytearray | memoryview) -> Any:
    """What a pickle of the program or of one of its children holds."""
    return _Unpickler(io.BytesIO(pickled)).load()


# -- exceptions that travel ----------------------------------------------------------------------------------------------------------


SAID = "__outlast_said__"  # on an error: what its attempt said, which travels beside it


class _Link(NamedTuple):
    """One exception of a chain: its pickle, or its name if it does not take one."""

    pickled: bytes | None
    by_hand: bool  # its type, arguments and fields were pickled instead
    name: str
    frames: str
    cause: int | None
    context: int | None
    suppressed: bool
    said: Any  # what the attempt has said besides, on the first


def pack_error(error: BaseException) -> bytes:
    """An exception with its causes and the lines it came from, as far as they can be pickled."""
    said = raised.fields(error).pop(SAID, None)
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(chain) < _MOST_LINKS:
        link = waiting.pop(0)
        if link is not None and not any(link is other for other in chain):
            chain.append(link)
            waiting += [raised.cause(link), raised.context(link)]
    places = {id(link): place for place, link in enumerate(chain)}
    return pickle.dumps(
        [
            _Link(
                *_pickled(link),
                f"{type(link).__module__}.{type(link).__qualname__}".removeprefix("builtins."),
                frames_of(link),
                places.get(id(raised.cause(link))),
                places.get(id(raised.context(link))),
                raised.suppressed(link),
                said if link is error else None,
            )
            for link in chain
        ]
    )


def _pickled(error: BaseException) -> tuple[bytes | None, bool]:
    # Many exceptions can be pickled and not restored: those with arguments that their __init__ does not pass on.
    parts = type(error), raised.args(error), raised.fields(error)
    for what, restore in (error, unpack), (parts, _restored):
        try:
            pickled = pickle.dumps(what)
            if type(restore(pickled)) is type(error):
                return pickled, what is parts
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S112 - somebody else's __reduce__ and __init__ may do anything
            continue
    return None, False


def _restored(pickled: bytes) -> BaseException:
    kind, args, fields = unpack(pickled)
    error: BaseException = kind.__new__(kind, *args)
    raised.set_args(error, args)
    raised.fields(error).update(fields)
    return error


def unpack_error(pickled: memoryview) -> BaseException:
    """
    The exception that a child packed; a PermanentFailure in its place, if it could not be packed or cannot be restored.
    """
    links: list[_Link] = pickle.loads(pickled)  # noqa: S301 - from our own child
    errors: list[BaseException | None] = []
    for link in links:
        try:
            restore = _restored if link.by_hand else unpack
            errors.append(None if link.pickled is None else restore(link.pickled))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - somebody else's __init__
            errors.append(None)
    head = errors[0]
    if head is None:
        message = (
            f"the attempt raised {links[0].name}, which cannot leave its child process: pickle does not restore it"
        )
        head = errors[0] = PermanentFailure(message, error_class="code_error")
    for link, error in zip(links, errors, strict=True):
        if error is not None:
            if link.frames:
                raised.fields(error)[ELSEWHERE] = link.frames
            raised.set_cause(error, None if link.cause is None else errors[link.cause])
            raised.set_context(error, None if link.context is None else errors[link.context])
            raised.set_suppressed(error, link.suppressed)
    if links[0].said is not None:
        raised.fields(head)[SAID] = links[0].said
    if links[0].frames:
        raised.add_note(head, f"in a child process:\n{links[0].frames.rstrip()}")
    return head
