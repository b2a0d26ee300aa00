"""
An HTTP server on loopback that writes what it is asked down, headers and body, and answers by its path.

    with Answers({"/a": (200, {"content-type": "application/json"}, b"{}")}) as server:
        ...
        server.asked[0].headers["authorization"]
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answers:
    """Status, headers and body by path; whatever else is asked for is a 200 with the text ok."""

    def __init__(self, answers: dict[str, tuple[int, dict[str, str], bytes]] | None = None, *, certificate: Any = None):
        self.asked: list[Asked] = []
        self.answers = answers or {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = False
        self._http.ours = self  # type: ignore[attr-defined]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.ours.asked.append(Asked(self.command, self.path, headers, body))
        status, more, content = self.server.ours.answers.get(self.path.partition("?")[0], (200, {}, b"ok"))
        self.send_response_only(status)
        for name, value in {"content-length": str(len(content)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # who does not want all of it hangs up
                self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815 - the standard library's names

    def log_message(self, *_: object) -> None:
        pass


class Dripping:
    """Takes a connection and sends one byte, or piece, after the other, for as long as somebody reads."""

    def __init__(
        self, headers: bytes = b"Content-Length: 1000000\r\n", piece: bytes = b"x", pause: float = 0.02
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._headers, self._piece, self._pause = headers, piece, pause
        self.sent = 0  # bytes of the body
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, suppress(OSError):
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\n" + self._headers + b"\r\n")
            while not self._over.wait(self._pause):
                client.sendall(self._piece)
                self.sent += len(self._piece)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


class Slow:
    """
    Takes connections. On each it reads the headers of a request, says `begin`, and then one `piece` after the other, for as
    long as somebody reads. If it says nothing, it takes the body, slowly.
    """

    def __init__(self, begin: bytes = b"", piece: bytes = b"x") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._begin, self._piece = begin, piece
        self.taken: list[int] = []  # bytes of each request, once its connection has ended
        self._threads = [threading.Thread(target=self._serve)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._over.is_set():
                client.close()
                return
            self._threads.append(threading.Thread(target=self._talk, args=(client,)))
            self._threads[-1].start()

    def _talk(self, client: socket.socket) -> None:
        taken = 0
        with client, suppress(OSError):
            taken = len(client.recv(65536))
            if self._begin:
                client.sendall(self._begin)
            while not self._over.wait(0.02):
                if self._begin:
                    client.sendall(self._piece)
                elif piece := client.recv(65536):
                    taken += len(piece)
                else:
                    break
        self.taken.append(taken)

    def wait(self) -> None:
        """Until the connections that there are have ended."""
        for thread in self._threads[1:]:
            thread.join()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        socket.create_connection(self._listener.getsockname()).close()
        for thread in self._threads:
            thread.join()
        self._listener.close()
