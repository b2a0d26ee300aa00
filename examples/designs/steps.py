"""
A declared pipeline whose steps say for themselves how they outlast failure: the design of seed document 000, with its five
blocks as they stand there, in `steps.yaml` beside this file.

A shop that hangs up is asked again, with waits that are known before anything runs. A step that fails for good has what was
done before it undone. Work that was done is not done again, neither when the run goes on nor in another run for the same
batch. A service that fails five times in a row is left alone for a minute. The shop is a small server on this machine; the
time is virtual. Run it: ``python examples/designs/steps.py``.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import outlast
from outlast.testing import capture_events, virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILE = Path(__file__).with_name("steps.yaml")
MOVIES = [{"id": 1, "title": "Arrival"}, {"id": 2, "title": "Alien"}]
TOLD = {
    "step_retry_attempt": "{0.step_id}: attempt {0.attempt} failed ({0.error_class}), next in {0.next_delay_ms} ms",
    "step_retry_exhausted": "{0.step_id}: attempt {0.attempt} failed ({0.error_class}), the last one",
    "step_error_permanent": "{0.step_id}: failed ({0.error_class}), not tried again",
    "compensation_triggered": "undoing {0.step_id}",
    "compensation_completed": "undone",
    "idempotency_hit": "{0.step_id}: not executed, its key is known",
    "circuit_breaker_open": "the circuit opens after {0.failure_count} failures",
    "circuit_breaker_half_open": "the circuit is half open: probes may pass",
    "circuit_breaker_closed": "the circuit is closed",
    "call_rejected": "{0.step_id}: turned away, nobody was called",
}


# --- what the steps call: functions of the project ---


def labelled(row: dict) -> dict:
    """A row with a label; as long as the labels are missing, no row can have one."""
    labels = Path(os.environ["DESIGNS_FOLDER"]) / "labels.json"
    if not labels.exists():
        raise ValueError("no labels are known")
    return row | {"label": json.loads(labels.read_text())[row["title"]]}


# --- the shop ---


class Shop(BaseHTTPRequestHandler):
    """
    GET /movies, POST /tables/movies and POST /notify; it hangs up on the first, and refuses the last, as often as it is told.
    """

    hang_up = 0
    refuse = 0
    table: ClassVar[list[dict]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Shop.asked.append(self.path)
        if Shop.hang_up:
            Shop.hang_up -= 1
            self.close_connection = True  # without a word
            return
        self.answer(200, json.dumps(MOVIES).encode())

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Shop.asked.append(self.path)
        if self.path == "/tables/movies":
            Shop.table.extend(sent)
            self.answer(201, b"{}")
        elif Shop.refuse:
            Shop.refuse -= 1
            self.answer(503, b"{}")
        else:
            self.answer(200, b'{"seen": true}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The story is printed by the program."""


@contextmanager
def shop() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# --- the story ---


def schedule(flow: outlast.Flow) -> None:
    """What the manifest says of the waits, before anything has run."""
    for attempt, wait in enumerate(flow.manifest["extract-data"].schedule, 2):
        print(f"  before attempt {attempt}: {wait.nominal:g} s, {wait.min:g} to {wait.max:g}")


def ran(flow: outlast.Flow, key: str, app: outlast.App, only: str = "") -> None:
    """One run, event by event, and what it came to; `only` says what events are told, by what is in their names."""
    Shop.asked.clear()
    with capture_events() as events:
        result = flow.run(run_key=key, app=app, check=False)
    for event in events:
        if event.name in TOLD and only in event.name:
            print(f"  {event.name}: {TOLD[event.name].format(event)}")
    statuses = result.steps if not only else result.steps[-1:]
    print(f"  {result.status}: {', '.join(f'{step.id} {step.status}' for step in statuses)}")
    print(f"  the shop was asked for {' '.join(Shop.asked) or 'nothing'}")


def story(flow: outlast.Flow, app: outlast.App, folder: Path, advance: Callable[[float], None]) -> None:
    print("Known before anything runs: the waits of extract-data")
    schedule(flow)
    print("Run 1: the shop hangs up three times")
    Shop.hang_up = 3
    ran(flow, "monday", app)
    print("Run 1 goes on: it hangs up twice, and no row can be labelled")
    Shop.hang_up = 2
    ran(flow, "monday", app)
    print("Run 1 goes on, with labels")
    (folder / "labels.json").write_text('{"Arrival": "drama", "Alien": "horror"}')
    ran(flow, "monday", app)
    print("Run 2 for the same batch")
    ran(flow, "tuesday", app)
    print(f"  rows in the table: {Shop.table}")
    print("Run 3: the service to notify is down")
    Shop.refuse = 5
    for time in range(1, 6):
        print(f"  time {time}")
        ran(flow, "wednesday", app, only="circuit")
    print("Run 3 goes on while the circuit is open")
    ran(flow, "wednesday", app, only="call")
    print("Run 3 goes on after 60 seconds, and run 4 follows")
    advance(60)
    ran(flow, "wednesday", app, only="circuit")
    ran(flow, "thursday", app, only="circuit")


def main() -> None:
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as name, shop() as url, virtual_time(seed=0, grace=60) as time:
        os.environ |= {"DESIGNS_SHOP_URL": url, "DESIGNS_FOLDER": name}
        app = outlast.App("osiris", store=f"sqlite:///{Path(name) / 'outlast.db'}")
        story(outlast.Flow.load(FILE), app, Path(name), time.advance)
        app.store.close()


if __name__ == "__main__":
    main()
