"""
An HTTP(S) server on loopback that misbehaves on request.

The path says how; the query says how much:

======================================  ==============================================================
``/ok?body=text``                       200 with that body (``ok`` when none is given)
``/status/503?retry_after=7``           that status, with a ``Retry-After`` header when one is asked for
``/flaky?key=k&fail=2&status=503``      the first ``fail`` requests with that key fail, the others are 200
``/close``                              hangs up without a word
``/reset``                              resets the connection without a word
``/garbage``                            answers something that is not HTTP
``/cut?then=close``                     announces 1000 bytes, sends 10, then ``close``, ``reset`` or ``hang``
``/hang``                               says nothing until the server stops
``/loop``                               redirects to itself
======================================  ==============================================================

Nothing here waits for time to pass: a request that hangs is let go when the server stops.

    with MisbehavingServer() as server:
        urllib.request.urlopen(server.url + "/status/503?retry_after=7")
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import override
else:

    def override(method):  # typing has it from Python 3.12 on
        return method


ANNOUNCED, SENT = 1000, b"0123456789"


class MisbehavingServer:
    """
    Serves from its own threads between ``with`` and its end; one thread a connection.

    With ``tls=True`` it shows a certificate that no client trusts, made for this server alone.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self._scheme = "https" if tls else "http"
        self._http = _Threads(("127.0.0.1", 0), _Handler)
        if tls:
            # The handshake belongs to the connection's own thread: a client that balks must not stop the others.
            self._http.socket = _untrusted_context().wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="http")

    @property
    def port(self) -> int:
        """The port the kernel chose."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def seen(self) -> list[str]:
        """``GET /path?query`` of every request so far, in order of arrival."""
        with self._http.lock:
            return list(self._http.seen)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Hang up on everybody, let go of what hangs, and wait for every thread to end."""
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()
        if self._http.defects:
            raise self._http.defects[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Threads(ThreadingHTTPServer):
    daemon_threads = False  # server_close() then waits for them
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.seen: list[str] = []
        self.asked: Counter[str] = Counter()
        self.connections: set[socket.socket] = set()
        self.defects: list[BaseException] = []

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.connections.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self.lock:
            self.connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        self.stopping.set()
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):  # the client was faster
                    # The plain socket's method: the TLS one would tear the session out of its thread's hands.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # OSError: the client went away, as it may
            self.defects.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, and must not wait for each other
    server: _Threads

    def do_GET(self) -> None:
        self._drain()
        parts = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.server.lock:
            self.server.seen.append(f"{self.command} {self.path}")
        _, name, *rest = parts.path.split("/")
        behaviour: Callable[..., None] | None = getattr(self, f"_do_{name}", None)
        if behaviour is None:
            self._answer(404, f"no behaviour is called {name!r}")
        else:
            behaviour(*rest)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the standard library's names

    def _do_ok(self) -> None:
        self._answer(200, self.query.get("body", "ok"))

    def _do_status(self, status: str) -> None:
        self._answer(int(status), self.query.get("body", "as asked"), retry_after=self.query.get("retry_after"))

    def _do_flaky(self) -> None:
        key = self.query.get("key", "")
        with self.server.lock:
            self.server.asked[key] += 1
            asked = self.server.asked[key]
        failing = asked <= int(self.query.get("fail", "1"))
        status = int(self.query.get("status", "503")) if failing else 200
        self._answer(status, f"request {asked}", retry_after=self.query.get("retry_after") if failing else None)

    def _do_close(self) -> None:
        self.close_connection = True

    def _do_reset(self) -> None:
        self._reset()

    def _do_garbage(self) -> None:
        self.wfile.write(b"this is not HTTP\r\n\r\n")
        self.close_connection = True

    def _do_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(ANNOUNCED))
        self.end_headers()
        self.wfile.write(SENT)
        self.close_connection = True
        then = self.query.get("then", "close")
        if then == "reset":
            self._reset()
        elif then == "hang":
            self.server.stopping.wait()

    def _do_hang(self) -> None:
        self.close_connection = True
        self.server.stopping.wait()

    def _do_loop(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, status: int, body: str, *, retry_after: str | None = None) -> None:
        content = b"" if status in (204, 304) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    def _reset(self) -> None:
        # Lingering for zero seconds turns the close into a reset. The streams hold the socket open: close them too.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()

    def _drain(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))

    @override
    def log_message(self, *_: object) -> None:
        pass


def _untrusted_context() -> ssl.SSLContext:
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context
