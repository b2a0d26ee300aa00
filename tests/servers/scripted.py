"""
An HTTP server on loopback that gives the answers it was told to give: for clients that expect a shape, not a path.

    with ScriptedServer() as server:
        server.answer(429, {"error": {"code": "insufficient_quota"}}, retry_after="7")
        openai.OpenAI(base_url=server.url, max_retries=0).models.list()
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ScriptedServer:
    """Gives the last answer it was told, whatever the request, until it is told another."""

    def __init__(self) -> None:
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def asked(self) -> list[tuple[str, dict[str, str], bytes]]:
        """The requests so far: method and path, headers by lower-case name, and body."""
        return list(self._http.asked)

    def answer(self, status: int, body: object = "", content_type: str = "application/json", **headers: str) -> None:
        """From now on: this status, this body (as JSON, or as it is if it is text) and these headers (``_`` for ``-``)."""
        content = body if isinstance(body, str) else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._http.script = (status, content.encode(), {"content-type": content_type, **named})

    def hang_up(self) -> None:
        """From now on: no answer, a closed connection."""
        self._http.script = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    script: tuple[int, bytes, dict[str, str]] | None = (200, b"", {})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((f"{self.command} {self.path}", headers, body))
        if self.server.script is None:
            return  # HTTP/1.0: the connection ends with the request
        status, content, headers = self.server.script
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content)), "connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the standard library's names

    def log_message(self, *_: object) -> None:
        pass
