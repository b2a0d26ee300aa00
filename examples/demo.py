"""
A run over a few thousand items outlasts a misbehaving service. Run it: ``make demo``.

Reviews are parsed, labelled by an HTTP service on this machine, and stored by another one. The service means ill: it asks for patience in bursts,
is down for a while, hangs up now and then, and does not understand some of the reviews. One pipeline takes it all, and at the end every item is
accounted for: what failed for good is a dead letter, grouped by problem, and is sent again once the problem is mended.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import outlast
from outlast.cli.printing import next_steps, print_run
from outlast.cli.watch import watching

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = 3_000
console = Console(highlight=False, soft_wrap=True)


# --- the service ---


class Service(BaseHTTPRequestHandler):
    """POST /label and POST /store, both in a bad mood."""

    protocol_version = "HTTP/1.1"
    began = time.monotonic()
    dice = random.Random(7)
    mended = False
    calls = 0
    lock = threading.Lock()

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Service.lock:
            Service.calls += 1
            roll = Service.dice.random()
        age = time.monotonic() - Service.began
        if 2.0 < age < 3.5:
            self.answer(503, "down for a moment")
        elif self.path == "/label" and 5.0 < age < 5.6:
            self.answer(429, "too many requests", retry_after="1")
        elif roll < 0.01:
            self.close_connection = True  # hangs up without a word
        elif self.path == "/label" and "emoji" in review["text"] and not Service.mended:
            self.answer(422, f"cannot read review {review['id']}: unknown characters")
        elif self.path == "/label":
            self.answer(200, "good" if len(review["text"]) % 2 else "bad")
        else:
            self.answer(200, "stored")

    def answer(self, status: int, text: str, *, retry_after: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The demo tells its own story."""


class Busy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""


class Refused(Exception):
    """What the service said instead of yes: Outlast reads the status and Retry-After from it."""

    def __init__(self, status: int, text: str, headers: Any) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status_code = status
        self.headers = headers


class Client:
    """One connection per thread, opened again when the service has hung up."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._mine = threading.local()

    def post(self, path: str, review: dict[str, Any]) -> str:
        connection = getattr(self._mine, "connection", None) or http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=5
        )
        self._mine.connection = None
        connection.request("POST", path, json.dumps(review))
        answer = connection.getresponse()
        text = answer.read().decode()
        self._mine.connection = connection
        if answer.status != 200:
            raise Refused(answer.status, text, answer.headers)
        return text


# --- the pipeline ---

port = 0


@contextmanager
def open_client() -> Iterator[Client]:
    yield Client(port)


guard = outlast.Guard(
    "service",
    retry=outlast.RetryPolicy(max_attempts=6, initial_delay=0.2, max_delay=2.0),
    breaker=outlast.CircuitBreaker("service", failure_threshold=20, reset_timeout=0.8),
    limit=outlast.Limit("service", concurrency=32),
)


@outlast.stage
def parse(row: dict[str, Any]) -> dict[str, Any]:
    if not row["text"]:
        raise outlast.Skip("empty review")
    return {"id": int(row["id"]), "text": row["text"].strip()}


@outlast.stage(guard=guard, concurrency=32)
def label(review: dict[str, Any], client: Client = outlast.use(open_client)) -> dict[str, Any]:
    return review | {"label": client.post("/label", review)}


@outlast.stage(guard=guard, concurrency=32)
def store(review: dict[str, Any], client: Client = outlast.use(open_client)) -> dict[str, Any]:
    client.post("/store", review)
    return review


def reviews(count: int) -> Iterator[dict[str, Any]]:
    """Reviews as they come: some empty, some with a broken id, some with characters that the service cannot read."""
    for number in range(count):
        text = (
            "" if number % 60 == 7 else f"with emoji {number}" if number % 75 == 3 else f"a fine thing, number {number}"
        )
        yield {"id": f"no. {number}" if number % 300 == 11 else number, "text": text}


def main() -> None:
    """Run the demo."""
    global port  # noqa: PLW0603 - where the service listens is known only now
    server = Busy(("127.0.0.1", 0), Service)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as folder:
        app = outlast.App("demo", store=f"sqlite:///{folder}/outlast.db")
        try:
            story(app, Path(folder))
        finally:
            app.store.close()
            server.shutdown()
            server.server_close()


def story(app: outlast.App, folder: Path) -> None:
    pipeline = outlast.Pipeline("reviews", parse, label, store, app=app)
    console.print(f"[bold]1. {ITEMS:,} reviews, three stages, and a service that is busy, down, and hangs up.[/]\n")
    Service.began = time.monotonic()
    with watching("live" if sys.stderr.isatty() else "lines", lambda: ITEMS, of=pipeline) as watch:
        run = pipeline.run(
            reviews(ITEMS),
            run_key="demo",
            item_key=lambda row: str(row["id"]),
            sink=folder / "labels.jsonl",
            watch=watch,
        )
    show(app, run)
    lines = len((folder / "labels.jsonl").read_text().splitlines())
    console.print(
        f"\n   The service was called {Service.calls:,} times; {lines:,} reviews came through, each of them once.\n"
    )

    console.print(
        "[bold]2. What failed is not lost: it waits, grouped by problem, with what the failing stage was given.[/]\n"
    )
    groups = app.dead_letters.groups()
    for group in groups:
        console.print(
            f"   {group.count:>4} \N{MULTIPLICATION SIGN} [bold]{group.stage}[/]  {group.error_class}: {group.message}"
        )
    problem = next(group for group in groups if group.stage == "label")
    letter = next(app.dead_letters.find(group=problem.id))
    console.print(f"\n   One of them: item {letter.item_key}, {letter.attempts} attempt(s), payload {letter.payload}\n")

    console.print("[bold]3. The service learns to read; its dead letters are sent again, 5 of them first.[/]\n")
    Service.mended = True
    again = app.dead_letters.replay(group=problem.id, canary=5)
    console.print(
        f"   {again.status}: {again.why}. They went on at the stage that had failed; nothing before it was paid again.\n"
    )
    console.print("[bold]4. The same run key does nothing twice.[/]\n")
    calls = Service.calls
    same = pipeline.run(
        reviews(ITEMS), run_key="demo", item_key=lambda row: str(row["id"]), sink=folder / "labels.jsonl"
    )
    console.print(
        f"   {same.status}: {same.counts.succeeded:,} succeeded, and the service was called {Service.calls - calls} times."
    )


def show(app: outlast.App, run: outlast.RunResult[Any]) -> None:
    record = app.store.run(run.id)
    assert record is not None
    print_run(record, run.groups, why=run.why)
    for step in next_steps(record, run.groups, None):
        console.print(f"   {step}", style="dim", markup=False)


if __name__ == "__main__":
    main()
