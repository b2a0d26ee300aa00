"""
How `http.caller` and `llm.caller` reach a host: which address is connected to, and until when.

A name is looked up once, every address that it has is checked, and one of those is connected to: what is looked up a
second time may be another host. The name stays what the certificate is checked for and what the header Host says. Every
wait on the socket ends at the deadline, however slowly the other side sends.
"""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from outlast.components.reaching import is_public
from outlast.errors import PermanentFailure
from outlast.kernel.redact import mask

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator

_PATIENCE = 60.0  # seconds for one wait on the socket, where no time limit is nearer
_PIECE = 65_536  # bytes that are sent at a time
_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    httpcore.ConnectionNotAvailable,
)
# What is said of an error, by the name of its type. The library's own words may quote what the other side has sent.
_WORDS = {
    "ConnectTimeout": "no connection in time",
    "ReadTimeout": "no answer in time",
    "WriteTimeout": "the request was not taken in time",
    "PoolTimeout": "no connection in time",
    "ConnectError": "the connection failed",
    "ReadError": "the connection broke before the whole answer was there",
    "WriteError": "the connection broke before the whole request was sent",
    "RemoteProtocolError": "the other side hung up, or what it said is no HTTP",
    "LocalProtocolError": "the request cannot be sent as HTTP",
    "UnsupportedProtocol": "the address is neither http:// nor https://",
}


_ours: ContextVar[bool] = ContextVar("outlast_http_caller", default=False)


def _masked(record: logging.LogRecord) -> bool:
    """The library's own log has the headers of an answer, which may repeat those of the request."""
    if _ours.get():
        record.msg, record.args = mask(record.getMessage()), ()
    return True


for _name in ("connection", "http11"):
    logging.getLogger(f"httpcore.{_name}").addFilter(_masked)


@contextmanager
def as_httpx(where: str) -> Iterator[None]:
    """Errors on the way are those of httpx, in our words: `where` is the host. What the system said is their cause."""
    ours = _ours.set(True)
    try:
        yield
    except _ERRORS as error:
        # The library raises what the system said once more, and then it is no longer the cause.
        name, cause = type(error).__name__, error.__cause__ or error.__context__
    else:
        return
    finally:
        _ours.reset(ours)
    made = getattr(httpx, name, httpx.TransportError)
    raise made(f"{where}: {_WORDS.get(name, 'the call failed')}") from (cause if isinstance(cause, OSError) else None)


class Wire(httpcore.NetworkBackend):
    """
    Connects to public addresses, and to those of the host and port that are `trusted`. `deadline` is the instant,
    by the monotonic clock, at which every wait is over; None if only each wait by itself is bounded, by `patience` seconds.
    """

    def __init__(self, trusted: tuple[str, int] | None, deadline: float | None, patience: float = _PATIENCE) -> None:
        self._trusted = trusted
        self.deadline = deadline
        self._patience = patience
        self._plain = httpcore.SyncBackend()

    def wait(self) -> float:
        """How long the next wait may take, in seconds; never 0, which would stand for not waiting at all."""
        return self._patience if self.deadline is None else min(self._patience, max(0.001, self.deadline - monotonic()))

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and monotonic() >= self.deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline counts
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as unknown:
            raise httpcore.ConnectError(str(type(unknown).__name__)) from unknown
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        if (host, port) != self._trusted and not all(map(is_public, addresses)):
            message = f"expected {host} to be a public address, got: this machine or a private network. A connection with allow_private: true allows its own host and port."
            raise PermanentFailure(message, error_class="permission_denied")
        refused: Exception | None = None
        for address in addresses:
            try:
                stream = self._plain.connect_tcp(
                    address, port, min(_PATIENCE, self.wait()), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                refused = error
            else:
                return _Bounded(stream, self)
        raise refused or httpcore.ConnectError("the name has no address")


class _Bounded(httpcore.NetworkStream):
    """A connection on which every wait ends at the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline counts
        if self._wire.is_over():  # also where there is always something to read
            raise httpcore.ReadTimeout
        return self._stream.read(max_bytes, self._wire.wait())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the deadline counts
        # In pieces: the time is that of one piece, and a slow reader must not stretch it.
        for begin in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[begin : begin + _PIECE], self._wire.wait())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the deadline counts
    ) -> httpcore.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, self._wire.wait()), self._wire)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
