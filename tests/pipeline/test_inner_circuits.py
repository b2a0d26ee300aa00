"""A circuit inside of a stage's function is not the stage's: it fails that item's attempt, and stops nobody else."""

from __future__ import annotations

import pytest

import outlast
from outlast import CircuitBreaker, Guard, RetryPolicy
from outlast.testing import run as trial
from outlast.testing import virtual_time

KINDS = pytest.mark.parametrize("kind", ["sync", "async", "sync batch", "async batch"])
RESET = 300.0  # longer than max_retry_after


class Hosts:
    """A guard for each host; one of them is down until it was called so often."""

    def __init__(self, works_after: int | None = None) -> None:
        self.guards = {
            host: Guard(
                f"fetch {host}",
                retry=None,
                breaker=CircuitBreaker(host, failure_threshold=3, reset_timeout=RESET, half_open_requests=1),
            )
            for host in ("down.test", "up.test")
        }
        self.works_after, self.calls = works_after, 0

    def fetch(self, n: int) -> str:
        return self.guards["down.test" if n % 2 == 0 else "up.test"].call(self._get, n)

    def _get(self, n: int) -> str:
        if n % 2:
            return f"page {n}"
        self.calls += 1
        if self.works_after is None or self.calls <= self.works_after:
            raise ConnectionRefusedError("down")
        return f"page {n}"

    def stage(self, kind: str, **options):
        async def aone(n):
            return self.fetch(n)

        def one(n):
            return self.fetch(n)

        def some(items):
            return [self.fetch(n) for n in items]  # the first that is down fails all of them

        async def asome(items):
            return some(items)

        work = {"sync": one, "async": aone, "sync batch": some, "async batch": asome}[kind]
        more = {"batch": 4} if "batch" in kind else {}
        return outlast.stage(concurrency=4, **more, **options)(work)


def rows_of(result):
    return [row for row in result._store().attempts(result._number, limit=10_000) if row.outcome != "success"]


@KINDS
def test_an_inner_circuit_that_stays_open_costs_its_own_items_and_nobody_else(kind):
    """D-22: charged as attempts, dead letters in the end; neither the failure budget nor fifty of a kind stop the run for it."""
    hosts = Hosts()
    pipeline = outlast.Pipeline("scrape", hosts.stage(kind), failure_budget=0.25, failure_check_interval=20)
    result = trial(pipeline, range(200))
    assert result.reason is None
    assert (result.counts.succeeded, result.counts.dlq, result.counts.pending) == (100, 100, 0)
    assert result.counts.source_exhausted
    rejected = [row for row in rows_of(result) if row.error_type == "CircuitBreakerOpenError"]
    assert len(rejected) > 100
    if "batch" not in kind:  # else some calls are made again in halves, at once
        assert {item.attempts for item in result.items() if item.status == "dlq"} == {3}
        # Nobody comes back before the circuit's time, although that is more than max_retry_after.
        assert all(row.delay_us is None or row.delay_us >= 0.9 * RESET * 1e6 for row in rejected[:100])
        waits = [row.waits for row in rows_of(result) if row.waits]
        assert any("breaker down.test" in waited for waited in waits)


@KINDS
def test_items_wait_for_an_inner_circuit_and_then_succeed(kind):
    """D-22: off their slots, for as long as the circuit needs; the other host's items are not held up by it."""
    hosts = Hosts(works_after=3)
    result = trial(outlast.Pipeline("scrape", hosts.stage(kind, retry=RetryPolicy(max_attempts=20))), range(40))
    assert (result.status, result.counts.succeeded) == ("completed", 40)
    assert hosts.guards["down.test"].breaker.state == "closed"


def test_the_stages_own_circuit_still_stops_the_run():
    """D-10, D-22: only the stage's own guard does that, and the reason says which circuit, and why."""
    breaker = CircuitBreaker("svc", failure_threshold=3, reset_timeout=60)

    @outlast.stage(guard=Guard("svc", breaker=breaker), concurrency=4)
    async def work(_):
        raise ConnectionRefusedError("down")

    result = trial(outlast.Pipeline("p", work), range(50))
    assert (result.status, result.reason) == ("failed", "breaker_open")
    assert "circuit breaker svc stayed open after 3 rounds of probes" in result.why

    breaker.isolate("moving to another rack")
    result = trial(outlast.Pipeline("p", work), range(50))
    assert (result.status, result.reason) == ("failed", "breaker_open")
    assert "circuit breaker svc is isolated: moving to another rack" in result.why


def test_the_rounds_of_probes_that_stop_a_run_are_an_option():
    """User B11: an outage of so many rounds ends the run, one round less does not; each of them has its number."""
    ends = {}
    for rounds, up_after in ((1, 99), (2, 99), (3, 99), (7, 99), (7, 6)):
        breaker = CircuitBreaker(f"svc{rounds}", failure_threshold=3, reset_timeout=60, half_open_requests=1)
        calls = []

        @outlast.stage(guard=Guard("svc", retry=RetryPolicy(max_attempts=30), breaker=breaker), concurrency=1)
        async def work(item, calls=calls, up_after=up_after):
            calls.append(item)
            if len(calls) <= 3 + up_after:
                raise ConnectionRefusedError("down")
            return item

        options = {} if rounds == 3 else {"breaker_rounds": rounds}  # three, if nothing is said
        with virtual_time():
            result = outlast.Pipeline("p", work).run(range(50), check=False, **options)
        ends[rounds, up_after] = (result.status, result.reason, len(calls) - 3)
        if rounds in (1, 2):
            assert f"stayed open after {rounds} round{'s' if rounds > 1 else ''} of probes" in result.why
    assert ends == {
        (1, 99): ("failed", "breaker_open", 1),
        (2, 99): ("failed", "breaker_open", 2),
        (3, 99): ("failed", "breaker_open", 3),
        (7, 99): ("failed", "breaker_open", 7),
        (7, 6): ("completed", None, 6 + 50),
    }
    with pytest.raises(
        outlast.ConfigurationError, match="expected breaker_rounds to be an integer of at least 1, got: 0"
    ):
        outlast.Pipeline("p", work).run([1], breaker_rounds=0)


def test_an_inner_circuit_that_is_isolated_is_asked_again_up_to_the_last_attempt():
    """D-22: nobody knows until when; the wait is max_retry_after, and then the item is a dead letter."""
    hosts = Hosts()
    hosts.guards["down.test"].breaker.isolate("moving")
    result = trial(outlast.Pipeline("p", hosts.stage("async")), range(4))
    assert (result.counts.succeeded, result.counts.dlq) == (2, 2)
    delays = [row.delay_us / 1e6 for row in rows_of(result) if row.delay_us is not None]
    assert len(delays) == 4
    assert all(119 < delay < 130 for delay in delays)


def test_a_policy_that_does_not_retry_what_is_transient_does_not_retry_an_inner_circuit():
    """D-1, D-22: it is a transient failure, no more; what the policy says about those is obeyed."""
    hosts = Hosts()
    hosts.guards["down.test"].breaker.isolate("moving")
    for policy in (RetryPolicy(on_errors=["rate_limited"]), RetryPolicy(skip_on_errors=["circuit_open"])):
        result = trial(outlast.Pipeline("p", hosts.stage("async", retry=policy)), range(4))
        assert {item.attempts for item in result.items()} == {1}
        assert (result.counts.succeeded, result.counts.dlq, result.reason) == (2, 2, None)
