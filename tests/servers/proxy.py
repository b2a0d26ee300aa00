"""
A TCP proxy on loopback whose connections can be cut, and that can hold an answer back.

    with Proxy(postgres.socket) as proxy:
        connection = psycopg.connect(host="127.0.0.1", port=proxy.port, ...)
        proxy.cut()                 # the client's next read says: connection reset by peer
        proxy.hold_back(b"said", b"COMMIT")   # who says "said" gets no answer with "COMMIT" in it, until the next cut
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Self


class Proxy:
    """Carries bytes between its clients and ``target``: a unix socket's path, or host and port."""

    def __init__(self, target: str | tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._held = _Held()
        self._thread = threading.Thread(target=self._accept, name="proxy")

    @property
    def port(self) -> int:
        """The port it listens at; the kernel's choice unless one was given."""
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """Reset every connection there is; new ones are welcome. Done when this returns."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.cut()
        self._held.clear()

    def hold_back(self, said: bytes, answer: bytes) -> None:
        """
        Once a client has said this, hold back the first thing with this answer in it, and all that follows, on its
        connection. Until `cut`, which loses it.
        """
        self._held.said, self._held.answer = said, answer

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more clients and cut those that are there."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone would not
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
            try:
                target = _connect(self._target)
            except OSError:  # it is being restarted
                client.close()
                continue
            pair = _Pair(client, target, self._held)
            with self._lock:  # a pair that carries bytes can be cut: its client must not be ahead of us
                self._pairs.append(pair)
                pair.start()


class _Held:
    """What is held back."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.said = self.answer = b""


class _Pair:
    """One client, its connection to the target, and the two threads that carry bytes between them."""

    def __init__(self, client: socket.socket, target: socket.socket, held: _Held) -> None:
        self._client, self._target = client, target
        self._held = held
        self._said = False
        self._cutting = False
        self._threads = [
            threading.Thread(target=self._carry, args=ends, name="proxy-pair")
            for ends in ((client, target), (target, client))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        self._cutting = True
        # Wake both threads without a word to the client, so that the first it hears is the reset.
        _shutdown(self._client, socket.SHUT_RD)
        _shutdown(self._target, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.close()
        self._target.close()

    def _lose(self) -> None:
        """Keep to itself what the target says, until the connection is cut."""
        while not self._cutting and self._target.recv(65536):
            pass

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                if self._held.said and source is self._client:
                    self._said = self._said or self._held.said in chunk
                elif self._said and self._held.answer and self._held.answer in chunk:
                    self._lose()
                    return
                sink.sendall(chunk)
        except OSError:
            pass  # one end is gone; the other will hear of it
        if not self._cutting:
            _shutdown(sink, socket.SHUT_WR)


def _connect(target: str | tuple[str, int]) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(target)
    return connection


def _shutdown(end: socket.socket, how: int) -> None:
    with suppress(OSError):  # it was gone already
        end.shutdown(how)
