"""What a run tells: its events, with the fields that were agreed, and what of them is on record."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

import outlast
from outlast import compat
from outlast.observe import events as told
from outlast.testing import capture_events, virtual_time

ONCE = outlast.RetryPolicy(max_attempts=1)


def test_the_list_of_run_events_is_complete():
    """C-23, D-18: the names of what runs, items and dead letters tell."""
    kinds = (told.RunEvent, told.ItemEvent, told.DeadLetterEnqueue, told.DeadLetterReplay)
    assert sorted(name for name, event in told.EVENTS.items() if issubclass(event, kinds)) == [
        "dead_letter_enqueue",
        "dead_letter_replay",
        "failure_budget_exceeded",
        "item_failed",
        "item_succeeded",
        "lease_lost",
        "run_finished",
        "run_paused",
        "run_started",
    ]


def test_a_run_tells_its_story_in_order(app):
    """S3-05, S3-20, S3-25, S4-20, S4-23: retries with run, pipeline and item; failures; dead letters, at the levels that were agreed."""

    @outlast.stage(concurrency=1, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    async def work(item):
        if item == 1:
            raise ConnectionResetError("gone")
        return item

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.5)
    with capture_events() as events:
        result = pipeline.run([0, 1], run_key="k", item_key=str)
    assert [event.name for event in events] == [
        "run_started",
        "item_succeeded",
        "step_retry_attempt",
        "step_retry_exhausted",
        "item_failed",
        "dead_letter_enqueue",
        "run_finished",
    ]
    assert {(event.run_id, event.pipeline) for event in events} == {(result.id, "p")}
    retry = events[2]
    assert (retry.item_id, retry.step_id, retry.attempt, retry.next_delay_ms, retry.error) == (
        "1",
        "work",
        1,
        0,
        "gone",
    )
    assert [event.level for event in events] == ["info", "debug", "warning", "debug", "error", "info", "info"]
    end = events[-1]
    assert (end.status, end.outcome, end.total, end.succeeded, end.dlq, end.why) == (
        "completed",
        "partial",
        2,
        1,
        1,
        "1 of 2 items succeeded, 1 became a dead letter; it is open",
    )
    assert end.why == result.why
    assert all(event.sentence() and event.ts.tzinfo for event in events)
    stored = [row.name for row in app.store.events(result.id)]
    assert stored == ["run_started", "run_finished"]


def test_attempts_answer_the_questions_that_people_ask(app):
    """S3-22, S3-23: how many retries were needed, which errors are common, how often a stage is retried."""
    seen = set()

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))
    async def work(item):
        if item % 2 and item not in seen:
            seen.add(item)
            raise TimeoutError("slow")
        return item

    result = outlast.Pipeline("p", work, app=app).run(range(10))
    rows = app.store.attempts(result._number)
    needed = [max(row.number for row in rows if row.seq == seq) - 1 for seq in range(10)]
    assert needed == [0, 1] * 5
    assert {row.error for row in rows if row.outcome == "retrying"} == {"slow"}
    assert all(row.error is None for row in rows if row.outcome == "success")


def logged(caplog):
    return [(record.levelname, record.event if hasattr(record, "event") else None) for record in caplog.records]


def test_a_failed_item_is_one_line_and_a_failed_run_another(app, caplog):
    """D-27: of each item that failed one error is logged, and of a run that failed one more; details are there for who wants them."""

    @outlast.stage(retry=None)
    async def work(number):
        raise ValueError(f"no {number}")

    pipeline = outlast.Pipeline("p", work, app=app, failure_budget=1.0)
    with caplog.at_level(logging.DEBUG, "outlast"):
        result = pipeline.run([1, 2, 3], check=False)
    assert result.status == "failed"
    lines = Counter(logged(caplog))
    assert {line: count for line, count in lines.items() if line[0] in {"ERROR", "WARNING"}} == {
        ("ERROR", "item_failed"): 3,
        ("ERROR", "run_finished"): 1,
    }
    assert (lines["DEBUG", "step_error_permanent"], lines["INFO", "dead_letter_enqueue"]) == (3, 3)


def test_one_cause_of_many_retries_is_a_few_warnings(app, caplog):
    """D-27: a service that goes away for a moment makes every item say the same: it is said once, and how often; each has its row all the same."""
    failed = set()

    @outlast.stage(retry=outlast.RetryPolicy(initial_delay=1.0, jitter=0.5), concurrency=64)
    async def work(number):
        if number not in failed:
            failed.add(number)
            raise ConnectionResetError(f"lost {number}")
        return number

    with caplog.at_level(logging.DEBUG, "outlast"), virtual_time():
        result = outlast.Pipeline("p", work, app=app).run(range(200))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert warnings[0].startswith("work: attempt 1 of 3 failed with ConnectionResetError")
    assert warnings[1].startswith("199 more like: work: attempt 1 of 3 failed with ConnectionResetError")
    assert Counter(logged(caplog))["DEBUG", "step_retry_attempt"] == 199
    run = app.store.run(result.id)
    assert sum(row.outcome == "retrying" for row in app.store.attempts(run.number, limit=1000)) == 200


def test_the_older_names_log_as_they_did(caplog):
    """D-27: an error that is not retried is an error in their log, although it reaches its caller."""

    def fail():
        raise ValueError("bad")

    with caplog.at_level(logging.DEBUG, "outlast"), pytest.raises(ValueError, match="bad"):
        compat.execute_with_tiered_retry(fail, {"database": 2})
    assert logged(caplog) == [("ERROR", "step_error_permanent")]
