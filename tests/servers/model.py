"""
A model API on loopback that answers as the chat completions of OpenAI do, and misbehaves as it is told.

    with ModelServer() as server:
        server.script("a good day", Fault(status=429, retry_after="7"), Said('{"stars": 5}', finish="length"))
        ...
        server.asked[0].body["messages"]

What a script has is said in order, one for each call, and then `otherwise`: a text, a `Said`, a `Fault`, or a function of
the body that was sent, which gives one of these. Nothing here waits for time to pass: a call that hangs is let go when the
server stops.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Said:
    """An answer. `tokens` are those of the prompt and of the answer; None leaves the usage out."""

    text: str | None
    finish: str | None = "stop"
    tokens: tuple[int, int] | None = (10, 5)
    message: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """
    An answer that is none. With a `status` it is an error as the API says it, with `code` and `kind`; with a `body` these
    bytes; with `then` the connection is cut in the middle (``cut``), reset, or nothing comes (``hang``).
    """

    status: int = 200
    code: str | None = None
    kind: str | None = None
    message: str = "as asked"
    retry_after: str | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    unsized: bool = False
    then: Literal["", "cut", "reset", "hang"] = ""


Line: TypeAlias = "str | Said | Fault"
Speaker: TypeAlias = "Line | Callable[[dict[str, Any]], Line]"


@dataclass
class Asked:
    """One call: its path, its headers with names in small letters, and its body as JSON."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The last message of it."""
        return str(self.body["messages"][-1]["content"])


class ModelServer:
    """Serves from its own threads between ``with`` and its end. `asked` has the calls so far; GETs are in `looked`."""

    def __init__(self, *script: Speaker, otherwise: Speaker = "yes") -> None:
        self.asked: list[Asked] = []
        self.looked: list[tuple[str, dict[str, str]]] = []
        self.otherwise = otherwise
        self._script = [*script]
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self._http = _Threads(("127.0.0.1", 0), _Handler)
        self._http.ours = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="model")

    @property
    def port(self) -> int:
        """The port the kernel chose."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The base address of a connection."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def prompts(self) -> list[str]:
        """What was asked so far, in order."""
        return [one.prompt for one in self.asked]

    def script(self, *lines: Speaker) -> None:
        """What is said to the next calls."""
        with self._lock:
            self._script += lines

    def next(self, asked: Asked) -> Said | Fault:
        """What is said to this call."""
        with self._lock:
            self.asked.append(asked)
            line = self._script.pop(0) if self._script else self.otherwise
        found = line(asked.body) if callable(line) else line
        return Said(found) if isinstance(found, str) else found

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Let go of what hangs, and wait for every thread to end."""
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Threads(ThreadingHTTPServer):
    daemon_threads = False  # server_close() then waits for them
    request_queue_size = 128
    ours: ModelServer


class _Handler(BaseHTTPRequestHandler):
    server: _Threads
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.path, headers, json.loads(content))
        line = self.server.ours.next(asked)
        with suppress(OSError):  # who does not want all of it hangs up
            self._say(line, asked)

    def do_GET(self) -> None:
        self.server.ours.looked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        line = self.server.ours.otherwise
        fault = line if isinstance(line, Fault) else Fault(body=b'{"object": "list", "data": []}')
        with suppress(OSError):
            self._say(fault, None)

    def _say(self, line: Said | Fault, asked: Asked | None) -> None:
        if isinstance(line, Said):
            assert asked is not None
            line = Fault(body=json.dumps(completion(line, asked.body)).encode())
        body = line.body
        if body is None:
            said = {"message": line.message, "type": line.kind, "param": None, "code": line.code}
            body = json.dumps({"error": said}).encode()
        if line.then == "reset":
            self._reset()
            return
        if line.then == "hang":
            self.server.ours.stopping.wait()
            return
        self.send_response_only(line.status)
        self.send_header("Content-Type", line.content_type)
        if not line.unsized:
            self.send_header("Content-Length", str(len(body)))
        if line.retry_after is not None:
            self.send_header("Retry-After", line.retry_after)
        for name, value in line.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if line.then == "cut" else body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile = open("/dev/null", "wb")  # noqa: SIM115, PTH123 - what the library flushes at the end
        self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


def completion(said: Said, body: dict[str, Any]) -> dict[str, Any]:
    """An answer as the API writes it."""
    found: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": f"{body.get('model')}-2026",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": said.text, "refusal": None, **said.message},
                "finish_reason": said.finish,
            }
        ],
    }
    if said.tokens is not None:
        asked, answered = said.tokens
        found["usage"] = {
            "prompt_tokens": asked,
            "completion_tokens": answered,
            "total_tokens": asked + answered,
        }
    return found | said.top
