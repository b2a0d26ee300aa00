"""What a run tells: its events, with the fields that were agreed, and what of them is on record."""

from __future__ import annotations

import outlast
from outlast.observe import events as told
from outlast.testing import capture_events

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
    assert [event.level for event in events] == ["info", "debug", "warning", "error", "error", "error", "info"]
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
