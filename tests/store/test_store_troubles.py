"""What went wrong lately, added up by the database: operations and their retries, what gave up, what stands still; at the borders of its window."""

from __future__ import annotations

from job_rows import SECOND, claimed, end, enqueued, failed, finished, new, worker
from outlast.store.records import StageMark
from outlast.store.troubles import GivenUp, NotUndone, RetryTotal, Step, StepRate, StuckJobs
from stores import START, attempt, changes, item, letter, sql, started

HOUR = 3600 * SECOND
LOCKED = {"error_class": "database_connection", "error_type": "OperationalError", "error": "locked"}
RESET = {"error_class": "connection_reset", "error_type": "ConnectionResetError", "error": "reset"}


def written(store, run_key="today", *, items, retried=(), attempts=(), pipeline="reviews", at=0):
    """A run of so many items; those in `retried` had a database error at their second stage, which is tried again."""
    run, lease = started(store, run_key, pipeline=pipeline)
    rows = [attempt(seq, 1, 1, outcome="retrying", **LOCKED)._replace(started_us=START + at) for seq in retried]
    ended = [item(seq, started_us=START + at) for seq in range(items)]
    store.write(lease, changes(items=ended, attempts=[*rows, *attempts], read=items))
    return run, lease


def test_operations_are_the_items_that_came_to_the_stage(store):
    """S2-26: retries of another tier, of another stage and of another app do not count; an item counts once, however often it was tried again."""
    _, lease = started(store)
    attempts = [attempt(seq, 1, number, outcome="retrying", **LOCKED) for seq in (0, 1) for number in (1, 2)]
    attempts += [attempt(2, 1, 1, outcome="retrying", **RESET), attempt(3, 0, 1, outcome="retrying", **LOCKED)]
    ends = [item(seq) for seq in range(5)]
    ends += [
        item(5, "dlq", stage=0, reason="parse: no"),
        item(6, "skipped", stage=1),
        item(7, "dlq", stage=0, attempts=0, reason="source: cannot be read"),
    ]
    store.write(lease, changes(items=ends, attempts=attempts, read=8))
    at = START + HOUR
    assert store.step_rates("database", HOUR, at_us=at) == [
        StepRate(Step("reviews", "label"), 6, 2, START + 5),  # without item 5, which failed before it
        StepRate(Step("reviews", "parse"), 7, 1, START + 8),  # without item 7, which no stage has seen
    ]
    assert store.step_rates("network", HOUR, at_us=at) == [StepRate(Step("reviews", "label"), 6, 1, START + 7)]
    store.app = "other"
    assert store.step_rates("database", HOUR, at_us=at) == []


def test_what_is_as_old_as_the_window_is_outside_of_it(store):
    """S2-26: to the microsecond, for the retries of items and for their operations; runs that have ended before are not even read."""
    written(store, items=3, retried=[0, 1])
    written(store, "later", items=4, retried=[2], at=100)
    names = Step("reviews", "label")
    # Attempts end 5 microseconds after they start, items 10.
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 4) == [StepRate(names, 7, 3, START + 5)]
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 5) == [StepRate(names, 7, 1, START + 105)]
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 10) == [StepRate(names, 4, 1, START + 105)]
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 105) == []
    sql(store, "update outlast_runs set finished = ?", START + 110)
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 4) == [StepRate(names, 7, 3, START + 5)]
    assert store.step_rates("database", HOUR, at_us=START + HOUR + 110) == []


def test_replays_are_no_operations(store):
    """S2-26: a person asks for a replay, and it begins at the failing stage."""
    written(store, items=3, retried=[0])
    sql(store, "update outlast_runs set kind = 'replay'")
    assert store.step_rates("database", HOUR, at_us=START + HOUR) == []


def test_jobs_that_wait_for_their_retry_are_operations_already(store):
    """S2-26: in an outage nothing ends; a job that failed for good at once required no retry, and one that was released made no attempt."""
    lease = worker(store)
    enqueued(store, *(new() for _ in range(6)), new(kind="sum", version=3))
    jobs = claimed(store, lease, 10)
    at = round(store.now() * SECOND) - 10_000  # when a job ends is the database's word, in SQLite to the millisecond
    finished(
        store,
        lease,
        *(end(job, "waiting", "failed", delay_us=SECOND, started_us=at, **LOCKED) for job in jobs[:2]),
        end(jobs[2], "waiting", "failed", delay_us=SECOND, started_us=at, **RESET),
        failed(jobs[3], started_us=at, **LOCKED),
        end(jobs[4], "succeeded", started_us=at),
        end(jobs[5], "ready", "released", started_us=at),
        end(jobs[6], "succeeded", started_us=at),
    )
    assert store.step_rates("database", HOUR, at_us=at + HOUR) == [StepRate(Step("", "send"), 5, 2, at + 5)]
    assert store.step_rates("database", HOUR, at_us=at + HOUR + 4) == [StepRate(Step("", "send"), 5, 2, at + 5)]
    assert store.step_rates("database", HOUR, at_us=at + HOUR + 5) == []


def put(store, run, step, number, outcome, *, at=START, deed="do", **how):
    row = {"error_class": None, "next_run": None, "stop_reason": None} | how
    sql(
        store,
        "insert into outlast_step_attempts (run, step, deed, number, round, token, started, took, outcome, error_class, next_run, stop_reason) "
        "values (?, ?, ?, ?, 1, 1, ?, 5, ?, ?, ?, ?)",
        *(run.number, step, deed, number, at, outcome, row["error_class"], row["next_run"], row["stop_reason"]),
    )


def test_what_gave_up_is_counted_by_its_attempts(store):
    """S2-27: items, steps and jobs, to the border of the window; not what is permanent, was asked to stop, or is of another tier."""
    _, lease = started(store)
    given = ["exhausted", "tier_exhausted", "total_timeout", "nested_exhausted", "permanent", "shutdown", "cancelled"]
    attempts = [
        attempt(seq, 1, 1, outcome="failed", stop_reason=reason, **RESET) for seq, reason in enumerate(given)
    ] + [attempt(9, 1, 1, outcome="failed", stop_reason="exhausted", **LOCKED)]
    store.write(lease, changes(items=[item(seq, "failed") for seq in range(10)], attempts=attempts, read=10))
    hands = worker(store)
    enqueued(store, new(), new())
    finished(
        store,
        hands,
        *(failed(job, started_us=START, **RESET) for job in claimed(store, hands, 2)),
    )
    sql(store, "update outlast_jobs set state = 'ready'")  # requeued by somebody: it has given up all the same
    found = [
        GivenUp(Step("", "send"), "network", 2, START + 5),
        GivenUp(Step("reviews", "label"), "network", 4, START + 5),
    ]
    assert store.given_up("network", HOUR, at_us=START + HOUR + 4) == found
    assert store.given_up("network", HOUR, at_us=START + HOUR + 6) == [
        GivenUp(Step("reviews", "label"), "network", 2, START + 7)
    ]


def test_jobs_that_nobody_takes_are_stuck(store):
    """U-23: due for longer than that in a queue that is not paused, whichever state they wait in; what is due later or held is not."""
    enqueued(store, new(), new(), new(queue="paused"), new(queue="later", delay=60))
    store.pause_queue("paused")
    sql(store, "update outlast_jobs set due = case when queue = 'later' then ? else ? end", START + HOUR, START)
    newest = "select max(id) from outlast_jobs where queue = 'mail'"
    sql(store, f"update outlast_jobs set due = ?, state = 'waiting' where id = ({newest})", START + 3)
    assert store.stuck_jobs(10, at_us=START + 10) == []
    assert store.stuck_jobs(10, at_us=START + 11) == [StuckJobs("mail", 1, START)]
    assert store.stuck_jobs(10, at_us=START + 14) == [StuckJobs("mail", 2, START)]
    store.resume_queue("paused")
    assert store.stuck_jobs(10, at_us=START + 14) == [StuckJobs("mail", 2, START), StuckJobs("paused", 1, START)]


def test_jobs_of_a_worker_that_is_gone_are_stuck_when_nobody_brings_them_back(store):
    """U-23, D-16: its lease ran out longer ago than that; while the lease lasts, however long the job takes, it is not."""
    lease = worker(store)
    enqueued(store, new(), new())
    claimed(store, lease, 2)
    sql(store, "update outlast_leases set until = ?", START)
    assert store.stuck_jobs(10, at_us=START + 10) == []
    assert store.stuck_jobs(10, at_us=START + 11) == [StuckJobs("mail", orphaned=2, orphaned_us=START)]
    first = "select min(id) from outlast_jobs"
    sql(store, f"update outlast_jobs set state = 'held', due = ? where id = ({first})", START)  # its time was up before
    assert store.stuck_jobs(10, at_us=START + 11) == [StuckJobs("mail", orphaned=2, orphaned_us=START)]
    sql(store, "delete from outlast_leases")
    sql(store, "update outlast_jobs set claimed = ?", START + 1)
    assert store.stuck_jobs(10, at_us=START + 12) == [StuckJobs("mail", orphaned=2, orphaned_us=START + 1)]


def test_what_could_not_be_undone_stays_until_somebody_has_seen_to_it(store):
    """U-23: dead letters of compensations, open or being replayed."""
    letters = [
        letter(number, kind="compensation", pipeline="trip", status=status)
        for number, status in enumerate(("open", "replaying", "resolved", "archived"))
    ]
    store.add_letters([*letters, letter(9)])
    assert store.not_undone() == [NotUndone("trip", 2, START + 2, START + 2)]
    assert [store.open_letter_beyond(most) for most in (0, 1, 2)] == [START + 2, START + 11, None]


def test_all_retries_on_record_are_added_up_by_step_and_tier(store):
    """S2-25, U-22: retries, successes after them and exhaustions of items, steps and jobs; also of stages whose successes are not on record."""
    _, lease = started(store)
    attempts = [
        *(attempt(seq, 1, 1, outcome="retrying", **LOCKED) for seq in (0, 1)),
        attempt(1, 1, 2, outcome="retrying", **RESET),  # the last failure says the tier
        attempt(2, 0, 1, outcome="retrying", **RESET),
        attempt(2, 0, 2, outcome="failed", stop_reason="exhausted", **RESET),
        attempt(3, 1, 1, outcome="failed", stop_reason="permanent", error_class="data_error"),
    ]
    ends = [item(0), item(1), item(2, "dlq", stage=0), item(3, "dlq", stage=1)]
    store.write(lease, changes(items=ends, attempts=attempts, read=4))
    flow = store.open_run("movies", "a", (StageMark("x"),), kind="flow")
    put(store, flow, "load", 1, "crashed", error_class="worker_lost", next_run=START)
    put(store, flow, "load", 2, "succeeded")
    hands = worker(store)
    enqueued(store, new(), new())
    one, two = claimed(store, hands, 2)
    finished(store, hands, end(one, "ready", "failed", **LOCKED), failed(two, **RESET))
    (again,) = claimed(store, hands)
    finished(store, hands, end(again))
    assert store.retry_totals() == [
        RetryTotal("label", "database", 2, 1, 0),
        RetryTotal("label", "network", 1, 1, 0),
        RetryTotal("load", "worker", 1, 1, 0),
        RetryTotal("parse", "network", 1, 0, 1),
        RetryTotal("send", "database", 1, 1, 0),
        RetryTotal("send", "network", 0, 0, 1),
    ]
    found = store.on_record()
    assert found.items == [("reviews", 4, 2, 0, 2, 0)]
    assert found.jobs == [("send", "mail", "failed", 1), ("send", "mail", "succeeded", 1)]
    assert found.runs == [("movies", "running", 1), ("reviews", "running", 1)]
