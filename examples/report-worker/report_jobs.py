"""
The worker as a durable job: an object is read, a model is asked, its answer is checked, written, and entered into a table.

    outlast worker report_jobs.py

Each part that is done is on record: the next attempt goes on behind it, and the model is not paid twice. What was written is
removed again if the job fails for good. Retries are those of the preset `jobs`, which nothing here has to name: 4 attempts,
30, 120 and 480 s apart. The clients try nothing again by themselves.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import openai
import psycopg
from botocore.config import Config

import outlast
from outlast.components.answers import json_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTENSIONS = (".txt", ".md")
OWNER = re.compile("o-[0-9]+")
SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("report.schema.json").read_text())
TASK = 'Summarise the report. Answer with one JSON object: {"title": a text, "pages": a number}.'

app = outlast.App("reports")


class Services(NamedTuple):
    """What the job asks: opened once in each worker."""

    objects: Any
    model: openai.OpenAI


@contextmanager
def open_services() -> Iterator[Services]:
    patience = float(os.environ.get("MODEL_TIMEOUT", "180"))
    with openai.OpenAI(
        base_url=os.environ["MODEL_URL"], api_key=os.environ["MODEL_KEY"], max_retries=0, timeout=patience
    ) as model:
        yield Services(objects_of(), model)


def objects_of() -> Any:
    return boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=os.environ["S3_URL"],
        aws_access_key_id=os.environ["S3_KEY"],
        aws_secret_access_key=os.environ["S3_SECRET"],
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, max_pool_connections=64),
    )


@app.job(queue="reports")
def process(file: str, services: Services = outlast.use(open_services)) -> str:
    job, target = outlast.current(), f"out/{file}.json"
    text = job.step("read", read, services.objects, file)
    answer = job.step("ask", ask, services.model, text)
    report = json_of(answer, SCHEMA)
    job.compensate(remove, target)  # before it is written: it may be there although the step has failed
    job.step("write", write, services.objects, target, report)
    job.step("update", update, file, target)
    return target


def read(objects: Any, file: str) -> str:
    """The text of a report that is there, has an extension that we know, and metadata that says whose it is."""
    if PurePosixPath(file).suffix not in EXTENSIONS:
        raise unusable(f"expected a report to end in {' or '.join(EXTENSIONS)}, got: another extension")
    try:
        found = objects.get_object(Bucket=os.environ["S3_BUCKET"], Key=f"in/{file}")
    except objects.exceptions.NoSuchKey:
        raise outlast.PermanentFailure("there is no such object", error_class="missing_input") from None
    owner = {name.lower(): value for name, value in found["Metadata"].items()}.get("owner", "none")
    if not OWNER.fullmatch(owner):
        raise unusable(f"expected the metadata of a report to have an owner as {OWNER.pattern}, got: none, or another")
    return found["Body"].read().decode()


def unusable(why: str) -> Exception:
    return outlast.PermanentFailure(why, error_class="validation_error")


def ask(model: openai.OpenAI, text: str) -> str:
    """What the model said, if that is a whole answer."""
    completion = model.chat.completions.create(
        model="reporter-1",
        messages=[{"role": "system", "content": TASK}, {"role": "user", "content": text}],
    )
    return text_of(completion)


def write(objects: Any, key: str, report: dict[str, Any]) -> None:
    objects.put_object(Bucket=os.environ["S3_BUCKET"], Key=key, Body=json.dumps(report).encode())


def remove(key: str) -> None:
    """What undoes `write`; an object that is not there is removed already."""
    objects_of().delete_object(Bucket=os.environ["S3_BUCKET"], Key=key)


def update(file: str, key: str) -> None:
    with psycopg.connect(os.environ["REPORTS_URL"]) as connection:
        connection.execute(
            "insert into reports (file, object) values (%s, %s) on conflict (file) do update set object = excluded.object",
            (file, key),
        )
