"""
Retries by tier, and rows that are cleansed before they are given up: the design of seed document 002, with its own names,
numbers and messages.

A database has five retries, a network three, a service that asks for patience three, one that stumbles two, and an error in
the data none. Then ten rows go through a pipeline whose month column people typed by hand: what can be read is put right
with a warning, what cannot is a line in a CSV file. Nothing waits in earnest: the time of this program is virtual. Run it:
``python examples/designs/tiers.py``.
"""

from __future__ import annotations

import csv
import logging
import os
import sqlite3
import tempfile
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import outlast
from outlast.compat import Pipeline, PipelineConfig, canonical, execute_with_tiered_retry, is_retryable_error
from outlast.rows import number, required, year_month
from outlast.testing import capture_events, virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
# The document's names of what is logged, by ours.
LOGGED = {
    canonical(name): name
    for name in ("step.error.retrying", "step.error.retry_exhausted", "step.error.permanent", "step.success")
}


def pool_exhausted(folder: Path, locked: int) -> Callable[[], str]:
    """A call to a real database, which another connection keeps locked for the first few of them."""
    path = folder / "annuity.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("create table if not exists plans (code text)")
    holder.execute("begin immediate")
    calls = 0

    def write() -> str:
        nonlocal calls
        calls += 1
        if calls > locked and holder.in_transaction:
            holder.execute("rollback")
        with sqlite3.connect(path, timeout=0) as connection:
            connection.execute("insert into plans values ('P-1')")
        connection.close()
        return f"written by call {calls}"

    write.close = holder.close
    return write


def failing(*errors: Exception) -> Callable[[], str]:
    """A call that runs into each of these, one after the other, and then succeeds."""
    left = list(errors)
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        if left:
            raise left.pop(0)
        return f"answered by call {calls}"

    return call


def http(status: int) -> HTTPError:
    return HTTPError("https://api.example/plans", status, "refused", Message(), None)


def attempted(said: str, func: Callable[[], Any], base: float = 1.0) -> tuple[str, list[float]]:
    """Call it with the tiers' retries, and say what came of it, after which waits."""
    with virtual_time() as time, capture_events() as events:
        try:
            came = execute_with_tiered_retry(func, LIMITS, base)
        except Exception as error:  # noqa: BLE001 - the last one, as it is
            came = f"gave up: {type(error).__name__}"
    print(f"{said}: {came}, after waits of {sum(time.sleeps):g} s {time.sleeps}")
    for event in events:
        if event.name in LOGGED:
            print(f"  {logged(event)}")
    return came, time.sleeps


def logged(event: Any) -> str:
    """An event as the document logs it: every number is one of its own fields."""
    name = LOGGED[event.name]
    fields: dict[str, Any] = {"tier": event.tier}
    if name == "step.error.permanent":
        fields["retries"] = event.retries_used
    elif name == "step.error.retrying":
        fields |= {"attempt": event.attempt, "max_retries": event.max_retries, "delay": f"{event.next_delay}s"}
    elif name == "step.error.retry_exhausted":
        fields |= {"attempts": event.attempt, "max_retries": event.max_retries}
    else:
        fields |= {"attempt": event.attempt, "total_retries": event.total_retries}
    return " ".join([name, *(f"{key}={value}" for key, value in fields.items())])


def worked_examples(folder: Path) -> None:
    write = pool_exhausted(folder, locked=3)
    attempted("Connection pool (database)", write)
    write.close()
    attempted("Network timeout (network)", failing(TimeoutError("no answer"), TimeoutError("no answer")))
    attempted("Invalid data (data)", failing(ValueError("Field 'scale': Must be non-negative")))
    attempted("Rate limit (http_429_503), base 2", failing(*[http(429)] * 3), base=2.0)
    attempted("Server error (http_500_502_504)", failing(*[http(502)] * 3))
    attempted("An error nobody knows (unknown)", failing(RuntimeError("what is this?")))


def classified() -> None:
    """Whether it is worth a retry, and its tier."""
    for error, status in [
        (ConnectionResetError(), None),
        (BrokenPipeError(), None),
        (http(503), None),
        (RuntimeError(), 504),
        (KeyError("plan_code"), None),
        (RuntimeError(), None),
    ]:
        retryable, tier = is_retryable_error(error, http_status=status)
        said = type(error).__name__ + (f" with status {status}" if status else "")
        print(f"  {said}: {'retryable' if retryable else 'not retryable'}, {tier}")


ROWS = [
    {"plan_code": "P-1", "report_date": "202501", "scale": 10.5},
    {"plan_code": "P-2", "report_date": "2025-01-15", "scale": 3},
    {"plan_code": "P-3", "report_date": "2025年01月", "scale": 7},
    {"plan_code": "P-4", "report_date": "202502", "scale": 0},
    {"plan_code": "P-5", "report_date": "soon", "scale": 1},
    {"plan_code": "P-6", "report_date": "202503", "scale": -100.5},
    {"plan_code": "", "report_date": "202503", "scale": 2},
    {"plan_code": "P-8", "report_date": 202504, "scale": 4},
    {"plan_code": "P-9", "report_date": "2025/05", "scale": 5},
    {"plan_code": "P-10", "report_date": "202505", "scale": 6},
]


class Load(outlast.RowTransformStep):
    """Puts a row into the annuity database; the first three connections fail."""

    def __init__(self) -> None:
        self.connect = failing(*[ConnectionResetError("hung up")] * 3)
        self.connects = 0

    def apply(self, row: dict, context: Any) -> outlast.StepResult:  # noqa: ARG002 - as every step has it
        self.connects += 1
        self.connect()
        return outlast.StepResult(row)


def cleansing(folder: Path) -> None:
    load = Load()
    config = PipelineConfig(
        name="annuity",
        steps=[year_month("report_date"), number("scale", low=0), required("plan_code", example="P-1"), load],
        retry_limits=LIMITS,
        retry_backoff_base=1.0,
        stop_on_error=False,
    )
    with virtual_time(), capture_events() as events:
        result = Pipeline(config).execute(ROWS)
    waits = [event.next_delay for event in events if event.name == "step_retry_attempt"]
    print(
        f"  {len(result.output_data)} rows came through, {len(result.error_rows)} did not; every row: {result.success}"
    )
    print(f"  the first row took {load.connects - len(result.output_data) + 1} connects, with waits of {waits} s")
    print(f"  months: {' '.join(row['report_date'] for row in result.output_data)}")
    for warning in result.warnings:
        print(f"  warning: {warning}")
    file = folder / "errors.csv"
    result.run.write_errors(file)
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")  # spreadsheets know by it that this is UTF-8
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for line in csv.DictReader(lines):
            print(f"  errors.csv, row {line['row_index']}: {line['message']}")


def main() -> None:
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["OUTLAST_STORE"] = f"sqlite:///{folder / 'outlast.db'}"
        worked_examples(folder)
        print("What is worth a retry")
        classified()
        print("Ten rows, typed by people")
        cleansing(folder)


if __name__ == "__main__":
    main()
