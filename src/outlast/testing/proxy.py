"""
A TCP proxy on loopback that does to a client what networks do: `FaultProxy`. It knows no protocol, so that whatever speaks
over TCP can be tested through it.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
import threading
from contextlib import suppress
from selectors import EVENT_WRITE, DefaultSelector
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

from outlast.settings.checks import Check

if TYPE_CHECKING:
    from collections.abc import Callable

FaultKind: TypeAlias = Literal["reset_before", "reset_after", "stall", "half_close", "garbage"]
_KINDS: tuple[str, ...] = get_args(FaultKind)
# No HTTP, no packet of PostgreSQL or MySQL, no TLS, no reply of Redis; with line breaks, for those who wait for one.
_GARBAGE = bytes(range(256)) * 4
# An answer before the answer: the client is asked to go on with its request.
_INTERIM = re.compile(rb"HTTP/1\.1 1[0-9][0-9] .*?\r\n\r\n", re.DOTALL)
_LOOK = 0.05  # seconds between two looks whether a connection is still wanted
_MOMENT = 2.0  # seconds until a thread that does not end is taken to be stuck in a client that reads nothing


class FaultProxy:
    """
    Carries bytes between its clients and `target`, the path of a unix socket or host and port, and lets faults strike.

    It listens at `port` of 127.0.0.1, the system's choice unless one is given, from the beginning; what comes is served
    between `start` and `stop`, or inside of ``with``. `struck` has the faults that have struck, in order.

    >>> import http.client, http.server, threading
    >>> server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    >>> threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    >>> with FaultProxy(("127.0.0.1", server.server_port)) as proxy:
    ...     proxy.fault("reset_before")
    ...     client = http.client.HTTPConnection("127.0.0.1", proxy.port)
    ...     try:
    ...         client.request("GET", "/")
    ...         client.getresponse()
    ...     except ConnectionResetError:
    ...         client.close()
    ...         proxy.struck
    ['reset_before']
    >>> server.shutdown(), server.server_close()
    (None, None)
    """

    def __init__(self, target: str | tuple[str, int], *, port: int = 0) -> None:
        check = Check()
        if not _is_target(target):
            check.add("target", "the path of a unix socket, or host and port", target)
        if not _is_port(port):
            check.add("port", "an integer from 0 to 65535", port)
        check.raise_if_any()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self._port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._script = _Script()
        self._thread = threading.Thread(target=self._accept, name="outlast-proxy", daemon=True)
        self._stopped = False

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._port

    @property
    def struck(self) -> list[str]:
        """The faults that have struck, in order."""
        return self._script.struck

    def fault(self, kind: FaultKind, *, when: bytes = b"", times: int = 1) -> None:
        """
        Let a fault strike the next `times` requests that have `when` in them; without it, the first bytes that a client
        sends on a connection. Faults that fit the same request strike in the order in which they were named.

        - ``reset_before``: what has `when` in it does not reach the target, and the client is reset
        - ``reset_after``: the target gets the request; when it answers, the answer is lost and the client is reset
        - ``stall``: the target gets the request, and the client gets no answer until `cut` or `stop`
        - ``half_close``: the client gets half of what the target answers first, and then the end of the stream
        - ``garbage``: the client gets bytes that no protocol knows in place of the answer, and then the end of the stream

        The target does what it was asked for in all but the first. What HTTP answers before its answer (100 Continue) is
        handed on: the request is not whole yet.
        """
        check = Check()
        check.choice("kind", kind, _KINDS)
        if not isinstance(when, bytes):
            check.add("when", "bytes", when, "Write them as b'...'.")
        check.integer("times", times, low=1, default=1)
        check.raise_if_any()
        self._script.add(kind, when, times)

    def hold_back(self, said: bytes, answer: bytes) -> None:
        """
        Once a client has said this, hold back the first thing with this answer in it, and all that follows, on its
        connection. Of an answer that comes in pieces, this is the one that makes it whole. Until `cut`, which loses it.
        """
        check = Check()
        for field, value in (("said", said), ("answer", answer)):
            if not isinstance(value, bytes) or not value:
                check.add(field, "bytes, at least one", value)
        check.raise_if_any()
        self._script.held = said, answer

    def cut(self) -> None:
        """Reset every connection there is; new ones are welcome, and faults that have not struck yet still will."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.end(reset=True)
        self._script.held = None

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more clients and cut those that are there. Nothing of it is left when this returns."""
        if self._stopped:
            return
        self._stopped = True
        _shutdown(self._listener, socket.SHUT_RDWR)  # wakes accept(), which close() alone would not
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            pair = _Pair(client, self._target, self._script, self._forget)
            with self._lock:  # a pair that carries bytes can be cut: its client must not be ahead of us
                self._pairs.append(pair)
                pair.start()

    def _forget(self, pair: _Pair) -> None:
        with self._lock, suppress(ValueError):  # it was cut
            self._pairs.remove(pair)


class _Script:
    """The faults that are still to strike, and those that have."""

    def __init__(self) -> None:
        self.struck: list[str] = []
        self.held: tuple[bytes, bytes] | None = None
        self._waiting: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def add(self, kind: str, when: bytes, times: int) -> None:
        with self._lock:
            self._waiting += [(kind, when)] * times

    def strike(self, seen: bytes, *, first: bool) -> str | None:
        """What becomes of a request that has these bytes; `first`: it is the first on its connection."""
        with self._lock:
            for number, (kind, when) in enumerate(self._waiting):
                if when in seen if when else first:
                    del self._waiting[number]
                    self.struck.append(kind)
                    return kind
        return None

    @property
    def longest(self) -> int:
        """How many bytes the longest `when` has."""
        with self._lock:
            return max((len(when) for _, when in self._waiting), default=0)


class _Pair:
    """
    One client, its connection to the target, and the two threads that carry bytes between them. The first of them makes the
    connection: a target that takes nobody holds up no other client, and can be given up.
    """

    def __init__(
        self,
        client: socket.socket,
        address: str | tuple[str, int],
        script: _Script,
        forget: Callable[[_Pair], None],
    ) -> None:
        self._client, self._address = client, address
        self._target: socket.socket
        self._script = script
        self._forget = forget
        self._said = False  # what hold_back waits for
        self._fault: str | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._running = 0
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        with self._lock:
            self._go(self._serve)

    def _go(self, carry: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(carry,), name="outlast-proxy-pair", daemon=True)
        self._running += 1
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        target = _connect(self._address, self._ending)  # OSError if it is being restarted: its client is let go
        with self._lock:
            if self._ending.is_set():
                target.close()
                return
            self._target = target
            self._go(self._carry_answers)  # first: a request may end it at once, and what is ended must have begun
        self._carry_requests()

    def end(self, *, reset: bool) -> None:
        """Close both ends, once; with `reset`, the first that the client hears is that. Done when this returns."""
        with self._lock:
            mine = not self._ending.is_set()
            self._ending.set()
            ends = [self._client, *([self._target] if hasattr(self, "_target") else [])]
        here = threading.current_thread()
        if not mine:
            if here not in self._threads:
                self._ended.wait()
            return
        # Wake both threads without a word to the client.
        for end in ends:
            _shutdown(end, socket.SHUT_RD if end is self._client else socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not here:
                thread.join(_MOMENT)
                # One that waits for a client which reads nothing: the end of the stream is behind what was not read.
                if thread.is_alive():
                    _shutdown(self._client, socket.SHUT_WR)
                    thread.join()
        if reset:
            with suppress(OSError):
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in ends:
            end.close()
        self._ended.set()
        self._forget(self)

    def _run(self, carry: Callable[[], None]) -> None:
        with suppress(OSError):  # one end is gone; the other will hear of it
            carry()
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self.end(reset=False)

    def _carry_requests(self) -> None:
        first, before = True, b""
        with suppress(OSError):
            while chunk := self._client.recv(65536):
                seen = before + chunk  # what is looked for may come in two pieces
                if (held := self._script.held) is not None and held[0] in seen:
                    self._said = True
                longest = max(self._script.longest, 0 if held is None else len(held[0]))
                if self._fault is None and (fault := self._script.strike(seen, first=first)) is not None:
                    seen = b""  # it is this request that was struck, and no later one
                    if fault == "reset_before":
                        self.end(reset=True)
                        return
                    self._fault = fault
                first, before = False, seen[-(longest - 1) :] if longest > 1 else b""
                self._hand_on(chunk)
        if not self._ending.is_set():
            _shutdown(self._target, socket.SHUT_WR)

    def _hand_on(self, chunk: bytes) -> None:
        try:
            self._target.sendall(chunk)
        except OSError:  # the target hung up, of which a client that is stalled hears nothing
            if self._fault != "stall":
                raise

    def _carry_answers(self) -> None:
        before = b""
        with suppress(OSError):
            while answer := self._target.recv(65536):
                if (fault := self._fault) is not None:
                    if (interim := _INTERIM.match(answer)) is not None:
                        self._client.sendall(interim[0])
                        answer = answer[interim.end() :]
                    if answer:
                        self._spoil(fault, answer)
                        return
                    continue
                held = self._script.held
                if self._said and held is not None:
                    seen = before + answer  # what is looked for may come in two pieces
                    if held[1] in seen:
                        self._lose()
                        return
                    before = seen[-(len(held[1]) - 1) :] if len(held[1]) > 1 else b""
                self._client.sendall(answer)
        if self._fault is not None:  # the target hung up: it gave no answer that could be spoilt
            self._spoil(self._fault, b"")
        elif not self._ending.is_set():
            _shutdown(self._client, socket.SHUT_WR)

    def _spoil(self, fault: str, answer: bytes) -> None:
        if fault == "reset_after":
            self.end(reset=True)
            return
        if fault != "stall":
            self._client.sendall(answer[: len(answer) // 2] if fault == "half_close" else _GARBAGE)
            _shutdown(self._client, socket.SHUT_WR)
        self._lose()
        if fault == "stall":
            self._threads[0].join()  # until the client has gone, or the connection is cut

    def _lose(self) -> None:
        """Keep to itself what the target says, until the connection is cut."""
        with suppress(OSError):
            while not self._ending.is_set() and self._target.recv(65536):
                pass


def _is_target(target: object) -> bool:
    if isinstance(target, tuple):
        return len(target) == 2 and isinstance(target[0], str) and bool(target[0]) and _is_port(target[1])
    return isinstance(target, str) and bool(target)


def _is_port(port: object) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= 65535


def _connect(target: str | tuple[str, int], given_up: threading.Event) -> socket.socket:
    """A connection to the target, at the first of its addresses that takes one. OSError if none does, or nobody waits for it any more."""
    if isinstance(target, str):
        return _connected(socket.AF_UNIX, target, given_up)
    failed = OSError("no address")
    for family, _, _, _, address in socket.getaddrinfo(*target, type=socket.SOCK_STREAM):
        try:
            return _connected(family, address, given_up)
        except OSError as error:
            failed = error
    raise failed


def _connected(family: int, address: Any, given_up: threading.Event) -> socket.socket:
    """A call that blocks could not be given up while the target takes nobody: so it is asked again and again."""
    connection = socket.socket(family)
    try:
        connection.settimeout(0)
        code = connection.connect_ex(address)
        while code == errno.EAGAIN and not given_up.wait(_LOOK):  # a unix socket whose queue is full
            code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            with DefaultSelector() as there:
                there.register(connection, EVENT_WRITE)
                while not given_up.is_set() and not there.select(_LOOK):
                    pass
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code or given_up.is_set():
            raise OSError(code, "no connection to the target")
        connection.settimeout(None)
    except OSError:
        connection.close()
        raise
    return connection


def _shutdown(end: socket.socket, how: int) -> None:
    with suppress(OSError):  # it was gone already
        end.shutdown(how)
