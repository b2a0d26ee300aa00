"""Durable jobs as their users' type checkers see them; never run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, assert_type

import outlast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = outlast.App("shop")


class Client: ...


@asynccontextmanager
async def open_client() -> AsyncIterator[Client]:
    yield Client()


@app.job
def tidy(days: int) -> int:
    return days


@app.job(
    queue="reports", retry=outlast.presets.jobs, timeout=180, unique_for=60, version=2, upgrade=lambda given, _: given
)
async def process_report(file_id: str, client: Client = outlast.use(open_client)) -> str:
    return file_id


assert_type(tidy.enqueue(3), outlast.JobHandle[int])
assert_type(tidy.enqueue(days=3).result(), int)
tidy.enqueue("three")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
tidy.enqueue(hours=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
job = process_report.options(unique_key="f-1", delay=3, priority=1, queue="slow", transaction=object()).enqueue(
    file_id="f-1"
)
assert_type(job, outlast.JobHandle[str])
assert_type(job.result(timeout=5), str)
assert_type(job.status, Literal["queued", "processing", "succeeded", "failed", "cancelled"])
assert_type(job.next_run_at, datetime | None)
assert_type(job.history(), Sequence[outlast.AttemptRow])
assert_type(job.compensations(), Sequence[outlast.Compensation])
assert_type(job.compensation, Literal["none", "pending", "completed", "failed"])
assert_type(process_report.enqueue_many({"file_id": f"f-{n}"} for n in range(10)), int)
process_report.options(unique_key=lambda file_id: f"{file_id}")


def free(number: int) -> int:
    return number


async def release(number: int) -> str:
    return f"{number}"


async def main() -> None:
    await outlast.current().compensate(release, 3)
    outlast.current().compensate(free, 3)
    outlast.current().compensate(len, 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await process_report.aenqueue("f-1"), outlast.JobHandle[str])
    assert_type(await job.aresult(), str)
    assert_type(await tidy.aenqueue_many([{"days": 1}]), int)


assert_type(app.jobs.find(status="failed"), Iterator[outlast.JobHandle[Any]])
assert_type(app.jobs.requeue("17").history()[-1].next_run_at, datetime | None)
assert_type(app.jobs.cancel("17"), bool)
assert_type(app.jobs.stats(), Sequence[outlast.QueueStats])
