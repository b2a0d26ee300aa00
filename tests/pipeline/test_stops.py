"""When a run stops by itself: too many failures, always the same failure, an error that nobody survives, an outage; and when it does not."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

import outlast
from outlast.kernel.clock import here
from outlast.pipeline.record.books import Accounting, Bounds
from outlast.testing import capture_events, virtual_time
from outlast.testing import run as trial


class TooManyRequests(Exception):
    status_code = 429


class Unauthorized(Exception):
    status_code = 401


class Unavailable(Exception):
    status_code = 503


def failing(share, *, error=lambda item: ValueError(f"bad {'abcdefghij'[item % 10]} row"), **options):
    """A pipeline in which this share of the items fails, in ten different ways."""

    @outlast.stage
    async def work(item):
        if item % 100 < share * 100:
            raise error(item)
        return item

    return outlast.Pipeline("p", work, **options)


def test_a_systematic_failure_stops_at_the_first_check():
    """S3-29, S3-30, S3-32, C-16, D-14: cumulative failures over cumulative finished; what is in flight may finish, nothing more is read."""
    read = itertools.count()
    with capture_events() as events:
        result = trial(failing(1.0), read)
    assert (result.status, result.reason) == ("failed", "failure_budget_exceeded")
    counts = result.counts
    assert 1000 <= counts.dlq <= 1000 + 256
    assert counts.total == counts.finished + counts.pending
    assert not counts.source_exhausted
    (told,) = [event for event in events if event.name == "failure_budget_exceeded"]
    assert (told.rate, told.budget, told.processed, told.failed, told.stopped) == (1.0, 0.1, 1000, 1000, True)
    with pytest.raises(outlast.FailureBudgetExceeded, match="Aborting run to prevent resource waste") as caught:
        result.raise_for_status()
    error = caught.value
    assert (error.rate, error.budget, error.processed, error.failed) == (1.0, 0.1, 1000, 1000)
    assert error.result.counts == counts


def test_failures_are_counted_from_the_beginning_and_not_by_interval():
    """S3-31, C-16: 0 %, 15 % and 20 % in three intervals are 11.7 % of all, which is the first check that is over the budget."""

    @outlast.stage(concurrency=1)
    async def work(item):
        if item % 100 < (0, 15, 20, 0)[min(item // 1000, 3)]:
            raise ValueError(f"kind {'abcdefghijklmnopqrst'[item % 20]}")
        return item

    with capture_events() as events:
        result = trial(outlast.Pipeline("p", work), itertools.count())
    (told,) = [event for event in events if event.name == "failure_budget_exceeded"]
    assert (told.processed, told.failed, told.rate) == (3000, 350, pytest.approx(350 / 3000))
    assert (result.status, result.reason) == ("failed", "failure_budget_exceeded")


def test_the_budget_is_strict_and_waits_for_its_interval():
    """C-16, D-14, S3-29: exactly the budget is allowed; a smaller sample than the interval says nothing."""
    assert trial(failing(0.10), range(3000)).reason is None
    assert trial(failing(0.11, failure_check_interval=100), itertools.count()).reason == "failure_budget_exceeded"
    assert trial(failing(0.5), range(900)).status == "partial_success"


def test_a_run_whose_input_is_exhausted_is_not_aborted():
    """C-16, D-14: at the end there is nothing to abort; thresholds decide, unless `final_check` is asked for."""
    result = trial(failing(0.3, failure_check_interval=100), range(100))
    assert (result.status, result.reason) == ("partial_success", None)
    result = trial(failing(0.3, failure_check_interval=100, final_check=True), range(100))
    assert (result.status, result.reason) == ("failed", "failure_budget_exceeded")


def test_fifty_failures_of_one_kind_in_a_row_stop_it_earlier():
    """D-14: one fingerprint, whatever numbers the messages hold."""
    result = trial(failing(1.0, error=lambda item: ValueError(f"no column {item}")), itertools.count())
    assert (result.status, result.reason) == ("failed", "same_failure")
    assert 50 <= result.counts.dlq <= 50 + 256
    assert "no column" in result.why


@pytest.mark.parametrize("how", ["threads", "coroutines", "behind another stage", "batches"])
def test_what_is_read_and_not_begun_is_stopped_too(how, app):
    """D-14, D-30: a source that is read to its end is no reason to go on; what was not begun stays pending, and a resume does it."""
    broken, asked, read = [True], [], threading.Event()

    class Source(list):
        """Tells when it is read to its end: what happens before that is not what this is about."""

        def __iter__(self):
            yield from super().__iter__()
            read.set()

    def refuse(item):
        asked.append(item)
        if broken and (same or item % 2):
            raise ValueError("always" if same else f"kind {'abcdefghijklmnop'[item // 2 % 16]}")
        return item

    def blocking(item: int) -> int:
        assert read.wait(100)
        return refuse(item)

    async def prompt(item: int) -> int:
        while not read.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0)
        return refuse(item)

    async def together(items: list[int]) -> list[int]:
        return [await prompt(item) for item in items]

    @outlast.stage
    async def first(item: int) -> int:
        return item

    stages = {
        "threads": [outlast.stage(blocking, concurrency=1)],
        "coroutines": [outlast.stage(prompt, concurrency=1)],
        "behind another stage": [first, outlast.stage(blocking, concurrency=1)],
        "batches": [outlast.stage(together, batch=1, concurrency=1)],
    }[how]
    stories = []
    for same, name in ((True, "same"), (False, "budget")):
        asked.clear()
        read.clear()
        broken[:] = [True]
        pipeline = outlast.Pipeline(
            name, *stages, app=app, failure_check_interval=20, failure_budget=0.1 if not same else 1.0
        )
        with pytest.raises(outlast.RunFailed) as caught:
            pipeline.run(Source(range(200)), run_key=name)
        stopped = caught.value.result
        counts = stopped.counts
        broken.clear()
        again = pipeline.run(Source(range(200)), run_key=name, check=False)
        stories.append(
            (
                type(caught.value).__name__,
                stopped.reason,
                counts.source_exhausted,
                counts.finished,
                counts.pending,
                again.counts.pending,
                len(asked),
            )
        )
    assert stories == [
        ("RunFailed", "same_failure", True, 50, 150, 0, 200),
        ("FailureBudgetExceeded", "failure_budget_exceeded", True, 20, 180, 0, 200),
    ]


def test_what_has_begun_is_not_given_up_when_nothing_else_is_left(app):
    """D-14: all others have ended and one waits for its next attempt: there is nothing to stop, and the thresholds decide."""
    tried = []

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=20, jitter=0))
    async def work(item):
        if item == 0:
            tried.append(item)
            if len(tried) == 1:
                raise ConnectionResetError("once")
            return item
        raise ValueError("always")

    with capture_events() as events:
        result = trial(outlast.Pipeline("p", work, failure_check_interval=50), range(51))
    told = [event.stopped for event in events if event.name == "failure_budget_exceeded"]
    assert (result.reason, result.counts.succeeded, result.counts.pending, told) == ("low_success_rate", 1, 0, [False])


def test_throttling_without_a_true_failure_does_not_stop_a_run():
    """D-11, D-14: refusals behind a limit are not charged, and who ends by them counts neither way."""
    calls = itertools.count()

    @outlast.stage(guard=outlast.Guard("api", retry=outlast.presets.stage, limit=outlast.Limit("api", concurrency=16)))
    async def work(item):
        if next(calls) % 10 < 3:
            raise TooManyRequests("slow down")
        return item

    result = trial(outlast.Pipeline("p", work, failure_check_interval=100), range(600))
    assert (result.status, result.counts.succeeded) == ("completed", 600)


def test_a_refusal_is_charged_after_a_quarter_of_an_hour():
    """D-11: patience ends; the item then fails like any other, and the attempts before are on record."""

    @outlast.stage(guard=outlast.Guard("api2", retry=outlast.presets.stage, limit=outlast.Limit("api2", concurrency=4)))
    async def work(item):
        raise TooManyRequests("slow down")

    result = trial(outlast.Pipeline("p", work), ["a"])
    (item,) = result.items()
    assert item.status == "dlq"
    rows = result._store().attempts(result._number)
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    waited = sum(row.delay_us or 0 for row in rows) / 1e6
    assert 900 <= waited <= 1300
    books = Accounting(Bounds(failure_check_interval=1))
    assert books.judge("dlq", fingerprint="x", throttled=True) is None
    assert books.processed == 0


@pytest.mark.parametrize("jitter", [0.25, "decorrelated", "full"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_policy_of_milliseconds_asks_a_refusing_service_ever_more_rarely(batch, jitter, caplog):
    """D-11: what is not charged would be asked for ever: each wait has a floor that doubles to 5 s; the log says it every ten seconds."""
    retry = outlast.RetryPolicy(initial_delay=0.001, max_delay=0.002, jitter=jitter)
    calls = []

    async def work(items):
        calls.append(items)
        raise TooManyRequests("slow down")

    guard = outlast.Guard("api3", retry=retry, limit=outlast.Limit("api3"))
    result = trial(outlast.Pipeline("p", outlast.stage(work, guard=guard, batch=batch)), ["a"])
    waits = [row.delay_us / 1e6 for row in result._store().attempts(result._number) if row.delay_us is not None]
    uncharged = waits[:-2]
    floors = [min(0.01 * 2**n, 5.0) for n in range(len(uncharged))]
    assert all(0.74 * floor <= wait <= 1.26 * floor for wait, floor in zip(uncharged, floors, strict=True))
    assert 170 <= len(calls) <= 260
    said = [
        record.message
        for record in caplog.records
        if record.levelname == "WARNING" and "asks for less" in record.message
    ]
    assert 50 <= len(said) <= 91
    assert "more like it before" in said[-1]


def test_waits_after_refusals_grow_to_the_policys_longest():
    """D-11: the policy's own schedule goes on, also where it begins below its ceiling by far; without a ceiling a minute is one."""
    for longest, expected in ((20.0, 20.0), (None, 60.0)):
        retry = outlast.RetryPolicy(initial_delay=0.1, max_delay=longest, jitter=0)

        @outlast.stage(guard=outlast.Guard("api4", retry=retry, limit=outlast.Limit("api4")))
        async def work(item):
            raise TooManyRequests("slow down")

        result = trial(outlast.Pipeline("p", work), ["a"])
        waits = [row.delay_us / 1e6 for row in result._store().attempts(result._number) if row.delay_us is not None]
        assert (waits[:4], max(waits)) == ([0.1, 0.2, 0.4, 0.8], expected)


def test_an_error_that_no_item_survives_stops_at_once():
    """S3-32: bad credentials: nothing more is read, what waits is given back, the run failed."""

    @outlast.stage(concurrency=4)
    async def work(item):
        if item >= 10:
            raise Unauthorized("bad key")
        return item

    result = trial(outlast.Pipeline("p", work), itertools.count())
    assert (result.status, result.reason) == ("failed", "fatal_error")
    assert (result.counts.succeeded, result.counts.dlq) == (10, 1)
    assert "bad key" in result.why


def test_an_open_circuit_is_waited_for_off_the_slot_and_costs_no_attempt():
    """D-10, C-13, S3-34: the outage passes, no item is lost to it, and no rejection counts as a failure."""
    breaker = outlast.CircuitBreaker("svc", failure_threshold=3, reset_timeout=60)
    down = [True] * 4

    @outlast.stage(guard=outlast.Guard("svc", retry=outlast.presets.stage, breaker=breaker), concurrency=4)
    async def work(item):
        if down:
            down.pop()
            raise Unavailable("down")
        return item

    result = trial(outlast.Pipeline("p", work), range(50))
    assert (result.status, result.counts.succeeded) == ("completed", 50)
    rows = [row for row in result._store().attempts(result._number) if row.outcome != "success"]
    assert len(rows) == 4
    assert breaker.state == "closed"


def test_five_failures_leave_a_service_alone_for_a_minute():
    """S3-34: the fifth in a row is the last call for 60 s; then one probe after the other, and no item is lost."""
    asked = []

    @outlast.stage(
        guard=outlast.Guard("svc", retry=outlast.presets.stage, breaker=outlast.CircuitBreaker("minute")), concurrency=1
    )
    async def work(item):
        asked.append(here.get().clock.time.now)
        if asked[-1] < 60:
            raise Unavailable("down")
        return item

    with virtual_time(seed=1):
        result = trial(outlast.Pipeline("p", work), range(20))
    assert (result.status, result.counts.succeeded) == ("completed", 20)
    early, late = [at for at in asked if at < 60], [at for at in asked if at >= 60]
    assert (len(early), len(late)) == (5, 20)
    assert late[0] == early[-1] + 60


def test_three_failed_rounds_of_probes_stop_the_run_and_leave_items_pending():
    """D-10: an outage that does not end is said, and costs no further item."""
    breaker = outlast.CircuitBreaker("gone", failure_threshold=5, reset_timeout=60)

    @outlast.stage(guard=outlast.Guard("gone", retry=outlast.presets.stage, breaker=breaker), concurrency=4)
    async def work(item):
        raise Unavailable("down")

    result = trial(outlast.Pipeline("p", work), range(1000))
    assert (result.status, result.reason) == ("failed", "breaker_open")
    assert result.counts.pending > 0
    assert result.counts.dlq + result.counts.failed <= 8
    assert result.counts.total == result.counts.finished + result.counts.pending


@pytest.mark.parametrize("batch", [None, 2])
def test_rounds_that_an_earlier_run_has_waited_for_stop_no_later_one(sqlite_app, batch):
    """D-10: in the same process, with the same breaker; when the service is back, the run goes on behind the first probe."""
    breaker = outlast.CircuitBreaker("back", failure_threshold=2, reset_timeout=10, half_open_requests=1)
    down = True

    async def work(item):
        if down:
            raise Unavailable("down")
        return item

    options = {} if batch is None else {"batch": batch}
    guard = outlast.Guard("back", retry=outlast.presets.stage, breaker=breaker)
    pipeline = outlast.Pipeline("p", outlast.stage(guard=guard, concurrency=4, **options)(work), app=sqlite_app)
    with outlast.testing.virtual_time():
        first = pipeline.run(range(20), run_key="k", check=False)
        down = False
        second = pipeline.run(range(20), run_key="k", check=False)
    assert (first.reason, first.counts.succeeded) == ("breaker_open", 0)
    assert (second.status, second.counts.succeeded, second.counts.pending) == ("completed", 20 - first.counts.dlq, 0)


def test_an_empty_retry_budget_defers():
    """D-12: the retry waits off its slot until deposits allow it; nobody fails for it."""
    budget = outlast.RetryBudget("b", ratio=0.1, reserve=1)
    failed = set()

    @outlast.stage(guard=outlast.Guard("b", retry=outlast.presets.stage, retry_budget=budget), concurrency=4)
    async def work(item):
        if item < 4 and item not in failed:
            failed.add(item)
            raise ConnectionResetError("once")
        return item

    result = trial(outlast.Pipeline("p", work), range(200))
    assert (result.counts.succeeded, result.counts.dlq) == (200, 0)


def test_a_spend_limit_stops_reading():
    """What was spent is added up over items, and the run says what was reached."""

    @outlast.stage(concurrency=1)
    async def work(item):
        outlast.current().spend(usd=1.0)
        return item

    result = trial(outlast.Pipeline("p", work, spend_limit={"usd": 10}), itertools.count())
    assert (result.status, result.reason) == ("failed", "spend_limit")
    assert 10 <= result.spent["usd"] <= 12
    assert "10 usd" in result.why


@pytest.mark.parametrize("how", ["stop", "dlq", "collect"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_fatal_error_is_the_reason_with_every_on_item_error(sqlite_app, how, batched):
    """C-17, S3-32: also with "stop", where a plain error would be the reason."""

    def check(item):
        if item == 5:
            raise outlast.PermanentFailure("no credit left", error_class="quota_exhausted")
        return item

    def check_all(items):
        return [check(item) for item in items]

    work = outlast.stage(batch=1)(check_all) if batched else outlast.stage(check)
    result = outlast.Pipeline("p", work, app=sqlite_app).run(range(10), on_item_error=how, check=False)
    assert (result.status, result.reason) == ("failed", "fatal_error")
    assert "no credit left" in result.why


@pytest.mark.parametrize(("how", "statuses"), [("collect", {"failed"}), ("stop", {"dlq"})])
def test_on_item_error_collects_or_stops(how, statuses, app):
    """C-17: collect keeps errors on items and makes no dead letters; stop reads nothing after the first failure."""

    @outlast.stage(concurrency=1)
    async def work(item):
        if item % 2:
            raise ValueError("odd")
        return item

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.1, min_partial_rate=0.1)
    result = pipeline.run(range(10), on_item_error=how, check=False)
    bad = [item for item in result.items() if item.status != "succeeded"]
    assert {item.status for item in bad} == statuses
    assert {item.error for item in bad} == {"work: ValueError: odd"}
    assert bool(app.store.letters()) is (how == "stop")
    assert (result.reason == "item_error") is (how == "stop")
    if how == "collect":
        assert (result.counts.failed, result.counts.succeeded) == (5, 5)


def test_thresholds_name_the_end():
    """S3-07, S3-08, C-15, D-13: 95 % completed, 50 % partial success, below failed; skipped ones do not count; nothing to do is a success."""

    def ended(succeeded, failed, skipped=0):
        @outlast.stage
        async def work(item):
            if item < failed:
                raise ValueError("x")
            if item < failed + skipped:
                raise outlast.Skip("no")
            return item

        result = trial(outlast.Pipeline("p", work), range(succeeded + failed + skipped))
        return result.status, result.outcome

    assert ended(95, 5) == ("completed", "partial")
    assert ended(94, 6) == ("partial_success", "partial")
    assert ended(20, 20) == ("partial_success", "partial")
    assert ended(19, 21) == ("failed", "partial")
    assert ended(0, 3) == ("failed", "failure")
    assert ended(3, 0, 5) == ("completed", "success")
    assert ended(0, 0) == ("completed", "success")


def test_a_low_success_rate_may_be_asked_for_alone(app):
    """C-15, S3-08: the rate for a partial success follows it down; one that is written and lies above it is refused."""

    @outlast.stage(retry=None)
    async def work(n):
        if n % 2:
            raise ValueError("odd")
        return n

    pipeline = outlast.Pipeline("p", work, app=app, failure_budget=1.0, min_success_rate=0.4)
    assert pipeline.run(range(10)).status == "completed"
    with pytest.raises(
        outlast.ConfigurationError, match=r"expected min_partial_rate to be at most min_success_rate, got: 0\.5"
    ):
        outlast.Pipeline("q", work, app=app, min_success_rate=0.4, min_partial_rate=1 / 2)
