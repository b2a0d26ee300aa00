"""
Seed 001, point by point, with a worker on each database: the chain of a processing job, its schedule, which errors are
tried again and which are final, the states, several workers, requeueing, figures, and policies that change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import urllib.error
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from urllib.parse import quote
from uuid import uuid4

import botocore.exceptions
import botocore.session
import httpx
import jsonschema
import psycopg
import pydantic
import pytest
import requests
from botocore.config import Config

import outlast
from labor import Beside, outcomes, wait_until
from outlast.testing import capture_events, work
from servers.http import MisbehavingServer
from servers.s3 import S3

BANDS = [(24, 36), (96, 144), (384, 576)]


@pytest.fixture(scope="module")
def s3():
    with S3() as server:
        yield server


@pytest.fixture(scope="module")
def model():
    """Answers with the text that it is asked for, or fails as it is asked to."""
    with MisbehavingServer() as server:
        yield server


def bucket_of(s3):
    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=s3.url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


class Report(pydantic.BaseModel):
    title: str
    pages: int


def normalised(raw: str) -> dict:
    """What models wrap around their JSON is taken off first."""
    return json.loads(raw.strip().removeprefix("```json").removesuffix("```").strip())


# --- the chain ---


def processing(app, s3, model):
    """Object store read, model call, schema check, object store write, update of a table beside the jobs."""
    bucket = bucket_of(s3)

    def connect():
        return sqlite3.connect(app.store_file) if app.store_file else psycopg.connect(app.store_url)

    table = f"reports_{uuid4().hex}"
    made = connect()
    made.execute(f"create table {table} (file text primary key, status text)")
    made.commit()
    made.close()

    @app.job
    def process(file: str, answers: list[str]) -> int:
        source = bucket.get_object(Bucket="bucket", Key=file)["Body"].read().decode()
        for asked in answers:
            with urllib.request.urlopen(f"{model.url}/{asked}") as answer:
                raw = answer.read().decode()
        try:
            report = Report.model_validate(normalised(raw))
        except ValueError:
            outlast.current().keep("raw", raw)
            raise outlast.PermanentFailure("the answer is no report", error_class="invalid_output") from None
        bucket.put_object(Bucket="bucket", Key=f"{file}.report", Body=f"{report.title} of {source}".encode())
        own = connect()
        own.execute(f"insert into {table} values ('{file}', 'done')")
        own.commit()
        own.close()
        return report.pages

    def statuses():
        own = connect()
        try:
            return dict(own.execute(f"select file, status from {table}").fetchall())
        finally:
            own.close()

    return process, bucket, statuses


def answer(text: str) -> list[str]:
    return [f"ok?body={quote(text)}"]


def test_a_worker_does_the_whole_chain(app, s3, model):
    """S1-01: against a real object store, a server that fails once, a schema, and a table in the store's own database."""
    process, bucket, statuses = processing(app, s3, model)
    file = f"f-{uuid4().hex}"
    bucket.put_object(Bucket="bucket", Key=file, Body=b"the source")
    body = quote('```json\n{"title": "Summary", "pages": 3}\n```')
    job = process.enqueue(file, [f"flaky?key={file}&fail=1&status=503", f"ok?body={body}"])
    work(app)
    assert (outcomes(job), job.history()[0].error_class) == (["failed", "succeeded"], "unavailable")
    assert job.result() == 3
    assert bucket.get_object(Bucket="bucket", Key=f"{file}.report")["Body"].read() == b"Summary of the source"
    assert statuses() == {file: "done"}


def test_output_that_breaks_the_schema_is_final(app, s3, model):
    """S1-11, S1-17, S1-23, U-11: one attempt, failed, nothing of it was written, and what the model said is kept."""
    process, bucket, statuses = processing(app, s3, model)
    file = f"f-{uuid4().hex}"
    bucket.put_object(Bucket="bucket", Key=file, Body=b"the source")
    job = process.enqueue(file, answer('{"title": "Summary", "pages": "many"}'))
    work(app)
    (attempt,) = job.history()
    assert (job.status, attempt.error_class, attempt.stop_reason) == ("failed", "invalid_output", "permanent")
    assert statuses() == {}
    (kept,) = app.store.artifacts(int(job.id))
    assert (kept.name, kept.attempt) == ("raw", 1)


def test_output_that_is_no_json_is_final_after_it_was_normalised(app, s3, model):
    """S1-12: what can be put into order is no failure; what cannot is one at once."""
    process, bucket, _ = processing(app, s3, model)
    file = f"f-{uuid4().hex}"
    bucket.put_object(Bucket="bucket", Key=file, Body=b"the source")
    wrapped = process.enqueue(file, answer('```json\n{"title": "Summary", "pages": 1}\n```'))
    broken = process.enqueue(file, answer('```json\n{"title": \n```'))
    work(app)
    assert (wrapped.status, broken.status, outcomes(broken)) == ("succeeded", "failed", ["failed"])
    (attempt,) = broken.history()
    assert (attempt.error_class, attempt.stop_reason) == ("invalid_output", "permanent")
    (figures,) = app.jobs.figures()
    assert figures.schema_failure_share == 1


def test_a_missing_object_is_final(app, s3, model):
    """S1-13: input that is not there does not come by waiting."""
    process, _, _ = processing(app, s3, model)
    job = process.enqueue(f"f-{uuid4().hex}", answer("{}"))
    work(app)
    assert (job.status, outcomes(job)) == ("failed", ["failed"])
    assert job.history()[0].stop_reason == "permanent"


# --- what is tried again, and what is final ---


def http_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://model.example")
    return httpx.HTTPStatusError(f"status {status}", request=request, response=httpx.Response(status, request=request))


def requests_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"status {status}", response=response)


def pydantic_error() -> Exception:
    try:
        Report.model_validate({})
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


def json_error() -> Exception:
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return error
    raise AssertionError


AGAIN = {
    "model timeout": lambda: httpx.ReadTimeout("no answer"),
    "no connection": lambda: httpx.ConnectError("refused"),
    "connection reset": lambda: ConnectionResetError("reset"),
    "429": lambda: http_error(429),
    "500": lambda: http_error(500),
    "501": lambda: http_error(501),
    "503": lambda: http_error(503),
    "507": lambda: http_error(507),
    "529": lambda: http_error(529),
    "599": lambda: http_error(599),
    "object store not reached": lambda: botocore.exceptions.EndpointConnectionError(endpoint_url="http://s3.example"),
    "object store timeout": lambda: botocore.exceptions.ReadTimeoutError(endpoint_url="http://s3.example"),
    "database not reached": lambda: psycopg.errors.ConnectionFailure("gone"),
    "database shuts down": lambda: psycopg.errors.AdminShutdown("shutdown"),
    "database busy": lambda: sqlite3.OperationalError("database is locked"),
}
FINAL = {
    "schema by pydantic": pydantic_error,
    "schema by jsonschema": lambda: jsonschema.ValidationError("no title"),
    "no json": json_error,
    "missing file": lambda: FileNotFoundError("no such file"),
    "unsupported extension": lambda: ValueError("unsupported extension .exe"),
    "corrupted metadata": lambda: KeyError("owner"),
    **{
        str(status): (lambda status=status: http_error(status))
        for status in (400, 401, 403, 404, 409, 410, 413, 415, 422)
    },
}


def failing(app):
    @app.job
    def fails(how: str) -> None:
        error = {**AGAIN, **FINAL}[how]()
        raise error

    return fails


def test_errors_that_pass_are_tried_again(app):
    """S1-08, S1-09, S1-15: queued, with the next run in its band, and three attempts left."""
    fails = failing(app)
    jobs = {how: fails.enqueue(how) for how in AGAIN}
    before = datetime.now(UTC)
    result = app.work(until_idle=True)
    assert (result.requeued, result.failed, result.later) == (len(AGAIN), 0, len(AGAIN))
    for how, job in jobs.items():
        assert (how, job.status, job.attempts) == (how, "queued", 1)
        (attempt,) = job.history()
        assert job.next_run_at == attempt.next_run_at
        assert 24 <= (attempt.next_run_at - before).total_seconds() <= 36 + 30, how  # the machine may be busy


def test_errors_that_stay_are_final_at_once(app):
    """S1-11, S1-12, S1-13, S1-14, S1-17: failed after one execution, with a dead letter each."""
    fails = failing(app)
    jobs = {how: fails.enqueue(how) for how in FINAL}
    result = app.work(until_idle=True)
    assert (result.failed, result.requeued) == (len(FINAL), 0)
    for how, job in jobs.items():
        assert (how, job.status, job.attempts, job.next_run_at) == (how, "failed", 1, None)
        (attempt,) = job.history()
        assert attempt.next_run_at is None
        assert attempt.stop_reason in {"permanent", "not_listed"}, how
    assert {letter.item_key for letter in app.dead_letters.find()} == {job.id for job in jobs.values()}


def test_errors_of_different_clients_have_one_class_on_record(app):
    """S1-18: what a job's attempts say does not depend on the library that was used."""

    @app.job
    def ask(client: str, status: int) -> None:
        raise {"httpx": http_error, "requests": requests_error}[client](status)

    jobs = {
        (client, status): ask.enqueue(client, status)
        for client in ("httpx", "requests")
        for status in (429, 500, 503, 404)
    }
    app.work(until_idle=True)
    classes = {key: job.history()[0].error_class for key, job in jobs.items()}
    for status, expected in ((429, "rate_limited"), (500, "server_error"), (503, "unavailable"), (404, "client_error")):
        assert classes["httpx", status] == classes["requests", status] == expected


# --- the schedule ---


def test_every_job_has_the_schedule_unless_it_says_otherwise(app):
    """S1-02, S1-03, S1-04, S1-05, S1-06, S1-07, S1-16: four attempts, 30, 120 and 480 s apart, each varied by a fifth, then failed."""

    @app.job
    def one(n: int) -> None:
        raise ConnectionResetError(str(n))

    @app.job(queue="other")
    async def another(n: int) -> None:
        raise TimeoutError(str(n))

    jobs = [kind.enqueue(n) for kind in (one, another) for n in range(10)]
    work(app)
    waits = []
    for job in jobs:
        history = job.history()
        assert (job.status, job.attempts, outcomes(job)) == ("failed", 4, ["failed"] * 4)
        assert history[-1].stop_reason == "exhausted"
        for attempt, (least, most) in zip(history, BANDS, strict=False):
            wait = (attempt.next_run_at - attempt.started_at).total_seconds() - attempt.duration
            assert least - 0.5 <= wait <= most + 5  # seconds that pass meanwhile on a busy machine
            waits.append(round(wait, 3))
        assert history[-1].next_run_at is None
    assert len(set(waits)) > len(waits) / 2  # no herd


def test_when_each_attempt_was_and_when_the_next_one_is_can_be_read(app, caplog):
    """S1-19: from the record, from events, and from the log."""

    @app.job
    def flaky() -> str:
        if outlast.current().attempt < 3:
            raise ConnectionResetError("hung up")
        return "done"

    job = flaky.enqueue()
    with capture_events() as events, caplog.at_level(logging.WARNING, "outlast"):
        work(app)
    history = job.history()
    assert [attempt.number for attempt in history] == [1, 2, 3]
    for before, after in pairwise(history):
        assert before.next_run_at <= after.started_at + timedelta(seconds=1)
        assert before.started_at.tzinfo is not None
    told = [event for event in events if event.name == "job_requeued"]
    assert [(event.job_id, event.attempt) for event in told] == [(job.id, 1), (job.id, 2)]
    for event, attempt in zip(told, history, strict=False):
        assert abs((event.next_run_at - attempt.next_run_at).total_seconds()) < 5
    lines = [line.getMessage() for line in caplog.records if f"job {job.id} (flaky)" in line.getMessage()]
    assert [f"again in {event.delay:.3g} s" in line for event, line in zip(told, lines, strict=True)] == [True, True]


def test_a_new_policy_holds_for_jobs_that_are_on_record(app):
    """S1-24: attempts and delays are the code's; no row is changed when they are."""

    @app.job(name="push", retry=outlast.RetryPolicy(delays=[3600], jitter=0))
    def push() -> None:
        raise ConnectionResetError("down")

    job = push.enqueue()
    app.work(until_idle=True)
    assert (job.status, job.attempts) == ("queued", 1)
    newer = outlast.App(app.name, store=app.store_url)

    @newer.job(name="push", retry=outlast.RetryPolicy(delays=[10, 20, 40], jitter=0))
    def push_again() -> None:
        raise ConnectionResetError("down")

    work(newer)
    history = job.history()
    assert (job.status, job.attempts) == ("failed", 4)
    waits = [
        round((attempt.next_run_at - attempt.started_at).total_seconds() - attempt.duration) for attempt in history[:3]
    ]
    assert waits[1:] == [20, 40]
    newer.store.close()


# --- several workers ---


def test_several_workers_do_each_job_once(app):
    """S1-20, C-22: three workers at one queue; no job is done twice, none is left."""
    ran, lock = Counter(), threading.Lock()

    @app.job
    async def note(n: int) -> None:
        await asyncio.sleep(0)
        with lock:
            ran[n] += 1

    note.enqueue_many([{"n": n} for n in range(300)])
    with Beside(app), Beside(app), Beside(app):
        wait_until(lambda: sum(ran.values()) >= 300, "all jobs have run")
        wait_until(lambda: not app.jobs.stats(), "all ends are on record")
    assert ran == Counter(range(300))
    assert {handle.status for handle in app.jobs.find()} == {"succeeded"}


# --- operators ---


def test_an_operator_requeues_a_failed_job(app):
    """S1-21, U-10: by hand, with fresh attempts; the id stays, and the history goes on."""
    mended = []

    @app.job
    def push() -> str:
        if not mended:
            raise ValueError("the address is wrong")
        return "pushed"

    job = push.enqueue()
    work(app)
    assert (job.status, job.attempts, job.error) == ("failed", 1, "the address is wrong")
    mended.append(True)
    assert app.jobs.requeue(job.id) == job
    assert (job.status, job.attempts, job.error) == ("queued", 0, None)
    work(app)
    assert (job.status, job.result(), outcomes(job)) == ("succeeded", "pushed", ["failed", "succeeded"])
    assert [attempt.number for attempt in job.history()] == [1, 2]
    with pytest.raises(outlast.ConfigurationError, match="got: succeeded"):
        app.jobs.requeue(job.id)


# --- when to look at the policy again ---


def test_the_figures_tell_when_a_policy_should_be_looked_at(app):
    """S1-25: time to success that backoff makes long, and retries that helped nobody, are seen apart."""

    @app.job
    def slow(n: int) -> None:
        if outlast.current().attempt < 3:
            raise ConnectionResetError("not yet")

    @app.job
    def hopeless(n: int) -> None:
        raise ConnectionResetError("never")

    @app.job
    def fine(n: int) -> None: ...

    for kind in (slow, hopeless, fine):
        kind.enqueue_many([{"n": n} for n in range(3)])
    work(app)
    good, bad, waited = app.jobs.figures()
    assert (good.kind, good.retry_rate, good.failure_rate, good.retry_amplification) == ("fine", 0, 0, 1)
    assert (bad.kind, bad.retry_rate, bad.failure_rate, bad.retry_amplification) == ("hopeless", 1, 1, 4)
    assert (waited.kind, waited.retry_rate, waited.failure_rate, waited.retry_amplification) == ("slow", 1, 0, 3)
    assert 24 + 96 <= waited.mean_time_to_success <= 36 + 144 + 60
    assert good.mean_time_to_success < 60


# --- nested retries ---


def test_an_inner_retry_that_gave_up_is_one_attempt_of_the_job(app):
    """C-12, D-8: fast inside, slow outside; calls inside are not attempts of the job, and the product is bounded."""
    calls = []

    @app.job(
        guard=outlast.Guard(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0.1, jitter=0)),
        retry=outlast.RetryPolicy(delays=[60], jitter=0),
    )
    def ask() -> None:
        calls.append(1)
        raise ConnectionResetError("down")

    job = ask.enqueue()
    work(app)
    assert (job.status, job.attempts, len(calls)) == ("failed", 2, 6)
    (figures,) = app.jobs.figures()
    assert figures.retry_amplification == 2
