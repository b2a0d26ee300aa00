"""
A worker that turns files into reports with a model, as durable jobs: the design of seed document 001, with its own schedule,
states and errors.

Each job reads an object, asks a model, checks the answer against a schema, writes an object and updates a table. What may get
better is tried up to four times, 30, 120 and 480 seconds apart, give or take a fifth; what cannot is `failed` at once.
Between attempts a job is `queued` with a `next_run_at`, and no worker waits for it. The object store and the model are small
servers on this machine; the time is virtual. Run it: ``python examples/designs/jobs.py``.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import tempfile
import threading
import urllib.request
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.error import HTTPError
from urllib.parse import unquote

import outlast
from outlast.testing import capture_events, virtual_time, work

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = '```json\n{"title": "Summary", "pages": 3}\n```'  # as models write it: JSON in a fence
KNOWN = (".pdf", ".txt")


class Services(BaseHTTPRequestHandler):
    """Objects at /objects/KEY, and a model at /model that answers what was planned for a file."""

    objects: ClassVar[dict[str, bytes]] = {}
    plan: ClassVar[dict[str, list[int | str]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        body = self.objects.get(unquote(self.path))
        self.answer(404, b"no such object") if body is None else self.answer(200, body)

    def do_PUT(self) -> None:
        self.objects[unquote(self.path)] = self.body()
        self.answer(201, b"")

    def do_POST(self) -> None:
        file = json.loads(self.body())["file"]
        self.asked.append(file)
        planned = self.plan.get(file, [])
        answer = planned.pop(0) if planned else GOOD
        self.answer(answer, b"") if isinstance(answer, int) else self.answer(200, answer.encode())

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The story is printed by the program."""


@contextmanager
def services() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Services) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def asked(url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    """One request, tried once: the job's policy is the only one that tries again."""
    with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=10) as answer:
        return answer.read()


def found(url: str) -> bytes:
    """An object; that it is not there is final, and has a class of its own."""
    try:
        return asked(url)
    except HTTPError as error:
        if error.code != 404:
            raise
        raise outlast.PermanentFailure("there is no such object", error_class="missing_input") from None


def checked(raw: str) -> dict:
    """The model's answer, without its fence, if it is a report: a title, and a number of pages."""
    try:
        report = json.loads(raw.strip().removeprefix("```json").removesuffix("```"))
    except ValueError:
        raise unusable("the answer is no JSON") from None
    if not isinstance(report, dict) or not isinstance(report.get("title"), str) or type(report.get("pages")) is not int:
        raise unusable("the answer does not fit its schema")
    return report


def unusable(why: str) -> outlast.PermanentFailure:
    return outlast.PermanentFailure(why, error_class="invalid_output")


def processing(app: outlast.App, url: str, table: Path) -> outlast.Job:
    """The job: read, ask, check, write, update."""

    @app.job(queue="reports", retry=outlast.presets.jobs)
    def process_report(file: str) -> int:
        if not file.endswith(KNOWN):
            raise outlast.PermanentFailure(
                f"expected a file that ends in {' or '.join(KNOWN)}", error_class="validation_error"
            )
        source = found(f"{url}/objects/{file}")
        raw = asked(f"{url}/model", "POST", json.dumps({"file": file, "bytes": len(source)}).encode()).decode()
        try:
            report = checked(raw)
        except outlast.PermanentFailure:
            outlast.current().keep("raw", raw)
            raise
        asked(f"{url}/objects/{file}.report", "PUT", json.dumps(report).encode())
        with closing(sqlite3.connect(table)) as own, own:
            own.execute("insert or replace into files values (?, 'ready')", (file,))
        return report["pages"]

    return process_report


PLAN: dict[str, list[int | str]] = {
    "a.pdf": [],
    "b.pdf": [503, 429, 507],
    "c.pdf": [500] * 4,
    "d.pdf": ['{"title": "Summary"}'],
    "e.pdf": ["I am sorry, I cannot do that."],
    "f.pdf": [422],
}


def worked(app: outlast.App) -> dict[tuple[str, int], float]:
    """Do all jobs to their ends; the delay after each attempt that was put back, by job and attempt."""
    with capture_events() as events:
        work(app)
    return {(event.job_id, event.attempt): event.delay for event in events if event.name == "job_requeued"}


def told(file: str, job: outlast.JobHandle, delays: dict[tuple[str, int], float]) -> None:
    """A job's attempts, and how long it was `queued` after each until its `next_run_at`."""
    print(f"{file}: {job.status} after {job.attempts} attempt{'s' * (job.attempts != 1)}")
    for attempt in job.history():
        delay = delays.get((job.id, attempt.number))
        wait = "" if delay is None else f", queued, next run in {delay:.3f} s"
        why = f" ({attempt.error_class})" if attempt.error_class else ""
        print(f"  attempt {attempt.number}: {attempt.outcome}{why}{wait}")


def main() -> None:
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as name, services() as url:
        folder = Path(name)
        table = folder / "files.db"
        with closing(sqlite3.connect(table)) as own, own:
            own.execute("create table files (file text primary key, status text)")
        app = outlast.App("gofunnel", store=f"sqlite:///{folder / 'outlast.db'}")
        process = processing(app, url, table)
        for file in PLAN:
            Services.objects[f"/objects/{file}"] = b"source of " + file.encode()
        Services.plan.update({file: list(answers) for file, answers in PLAN.items()})
        with virtual_time(seed=1):
            story(app, process)
        with closing(sqlite3.connect(table)) as own:
            done = [file for (file,) in own.execute("select file from files where status = 'ready' order by file")]
        print(f"ready in the table: {' '.join(done)}")
        print(f"objects written: {' '.join(sorted(key[9:] for key in Services.objects if key.endswith('.report')))}")
        app.store.close()


def story(app: outlast.App, process: outlast.Job) -> None:
    files = [*PLAN, "gone.pdf", "picture.png"]
    jobs = {}
    for file in files:
        jobs[file] = process.options(unique_key=file).enqueue(file)
        told(file, jobs[file], worked(app))
    again = process.options(unique_key="a.pdf").enqueue("a.pdf")
    print(f"a second job for a.pdf is the first one: {again == jobs['a.pdf']}")
    for file in ("d.pdf", "e.pdf"):
        print(f"kept of {file}: {jobs[file].artifact('raw')}")
    figures(app)
    print("The provider is well again: c.pdf is put back by hand")
    app.jobs.requeue(jobs["c.pdf"].id, reason="the provider is well again")
    print(f"c.pdf: {jobs['c.pdf'].status}")
    told("c.pdf", jobs["c.pdf"], worked(app))
    (change,) = jobs["c.pdf"].changes()
    print(f"  on record: {change.change}, because {change.reason}")
    print(f"the model was asked {len(Services.asked)} times")


def figures(app: outlast.App) -> None:
    """What to monitor."""
    (one,) = app.jobs.figures()
    print(f"of {one.ended} jobs: retry rate {one.retry_rate:.3f}, final failure rate {one.failure_rate:.3f}")
    print(f"  mean time to succeeded about {one.mean_time_to_success / 60:.0f} minutes")
    print(f"  schema failures {one.schema_failure_share:.3f} of those that failed, {one.artifacts} raw outputs kept")


if __name__ == "__main__":
    main()
