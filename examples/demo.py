"""
A run over a few thousand items survives a misbehaving service and `kill -9`. Run it: ``make demo``.

Reviews are parsed, labelled by an HTTP service on this machine, and stored by another one. The service refuses calls in bursts,
is down for a while, hangs up now and then, and cannot read some of the reviews. The process of the run is killed at half, and the
same command continues. At the end every item is accounted for. What failed is grouped by cause, fixed and replayed.

The store and the report stay in ``.outlast-demo/`` and ``demo-report.html``, so that the printed commands find them.
"""

from __future__ import annotations

import http.client
import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import outlast
from outlast.cli.printing import print_run
from outlast.cli.watch import watching

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = 3_000
FOLDER = Path(".outlast-demo")
STORE = f"sqlite:///{FOLDER}/outlast.db"
REPORT = Path("demo-report.html")
console = Console(highlight=False, soft_wrap=True)


# --- the service ---


class Service(BaseHTTPRequestHandler):
    """POST /label and POST /store. Both misbehave."""

    protocol_version = "HTTP/1.1"
    began = time.monotonic()
    dice = random.Random(7)
    fixed = False
    calls = 0
    stored = 0
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
            self.close_connection = True  # hangs up without an answer
        elif self.path == "/label" and "emoji" in review["text"] and not Service.fixed:
            self.answer(422, f"cannot read review {review['id']}: unknown characters")
        elif self.path == "/label":
            self.answer(200, "good" if len(review["text"]) % 2 else "bad")
        else:
            with Service.lock:
                Service.stored += 1
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
        """The demo prints its own lines."""


class Busy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is expected."""


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


@contextmanager
def open_client() -> Iterator[Client]:
    yield Client(int(os.environ["DEMO_PORT"]))


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


def work() -> None:
    """The process that runs the pipeline: it is killed at half, and started again."""
    pipeline = outlast.Pipeline("reviews", parse, label, store, app=outlast.App("demo", store=STORE))
    with watching("live" if sys.stderr.isatty() else "lines", lambda: ITEMS, of=pipeline) as watch:
        pipeline.run(reviews(ITEMS), run_key="demo", item_key=by_id, sink=FOLDER / "labels.jsonl", watch=watch)


def by_id(row: dict[str, Any]) -> str:
    return str(row["id"])


def main() -> None:
    """Run the demo."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    server = Busy(("127.0.0.1", 0), Service)
    os.environ["DEMO_PORT"] = str(server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        story()
    finally:
        server.shutdown()
        server.server_close()


def started() -> subprocess.Popen[bytes]:
    """The run, in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "work"])


def headline(text: str) -> None:
    console.print(f"\n[bold]{text}[/]\n")


def story() -> None:
    headline(f"1. {ITEMS:,} reviews, and a service that is busy, down, and hangs up. This is the pipeline:")
    for part in (parse.fn, label.fn, store.fn):
        console.print(f"{inspect.getsource(part)}", style="cyan", markup=False)
    console.print('reviews = outlast.Pipeline("reviews", parse, label, store)\n', style="cyan", markup=False)
    Service.began = time.monotonic()
    with started() as first:
        while Service.stored < ITEMS // 2 and first.poll() is None:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    console.print()  # below the display that was cut off
    headline(f"2. kill -9 after {Service.stored:,} reviews were stored. The same command again:")
    with started() as second:
        second.wait()

    app = outlast.App("demo", store=STORE)
    (record,) = app.store.find_runs("demo")
    print_run(record, (), why=record.why)
    lines = len((FOLDER / "labels.jsonl").read_text().splitlines())
    console.print(
        f"\n   {lines:,} reviews are in the output, each once. The service was called {Service.calls:,} times."
    )

    headline("3. What failed waits, grouped by cause:")
    groups = app.dead_letters.groups()
    for group in groups:
        console.print(
            f"   {group.count:>4} \N{MULTIPLICATION SIGN} [bold]{group.stage}[/]  {group.error_class}: {group.message}"
        )
    problem = next(group for group in groups if group.stage == "label")

    headline(f"4. The service is fixed. Replaying its {problem.count} dead letters, 5 first:")
    Service.fixed = True
    pipeline = outlast.Pipeline("reviews", parse, label, store, app=app)
    again = pipeline.app.dead_letters.replay(group=problem.id, canary=5)
    console.print(f"   {again.status}: {again.why}. They continued at the stage that had failed.")

    headline("5. The same command once more:")
    calls = Service.calls
    with started() as third:
        third.wait()
    console.print(f"   The service was called {Service.calls - calls} times: nothing is done twice.")

    headline("6. See it:")
    at = f"--store {STORE}"
    subprocess.run(
        [sys.executable, "-m", "outlast", "runs", "report", "demo", "--html", str(REPORT), *at.split()],
        check=True,
        capture_output=True,
    )
    for what, command in (
        ("Report", str(REPORT)),
        ("Run", f"outlast runs show demo {at}"),
        ("One item", f"outlast runs report demo --item 3 {at}"),
        ("Dead letters", f"outlast dlq groups {at}"),
    ):
        console.print(f"   {what}: {command}", markup=False)
    app.store.close()


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
