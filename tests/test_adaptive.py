"""Limits that follow what retries came to: the seed's rule as it stands, and one that does not retry more in an outage."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

import outlast
from job_rows import SECOND, claimed, end, enqueued, failed, finished, new, worker
from outlast import AdaptiveLimits, RetryRecord
from outlast.compat import calculate_adaptive_limits
from outlast.store import open_store
from stores import START, attempt, changes, item, prepared, started

HOUR = 3600 * SECOND
LOCKED = {"error_class": "database_connection", "error_type": "OperationalError", "error": "locked"}
RESET = {"error_class": "connection_reset", "error_type": "ConnectionResetError", "error": "reset"}


def test_the_seeds_rule_is_the_seeds():
    """S2-29, C-29: above 90 % the limit is 3, below 70 % it is 7, between them, for other tiers and for 0 it stays."""
    told = {
        (tier, limit, rate): calculate_adaptive_limits(tier=tier, current_limit=limit, success_rate=rate)
        for tier, limit, rate in [
            *(("database", 5, rate) for rate in (0.0, 0.699, 0.70, 0.85, 0.90, 0.901, 1.0)),
            ("database", 0, 0.1),
            ("network", 3, 0.1),
        ]
    }
    assert list(told.values()) == [7, 7, 5, 5, 5, 3, 3, 0, 3]
    with pytest.raises(outlast.ConfigurationError, match="expected success_rate to be a share from 0 to 1, got: 85"):
        calculate_adaptive_limits("database", 5, 85)


def test_a_limit_follows_what_its_retries_came_to():
    """S2-29, C-29: from enough operations, inside its bounds, and never up from 0; pure."""
    rule = AdaptiveLimits()

    def limit(current, *rows, rule=rule):
        return rule.limits({"database": current}, [RetryRecord("database", *row) for row in rows])["database"]

    assert limit(5) == 5
    assert limit(5, (5, 20, 2)) == 6  # one in ten is worth it
    assert limit(5, (5, 20, 1)) == 5  # fewer, but not surely
    assert limit(5, (5, 19, 19)) == 5  # too few to say
    assert limit(7, (7, 100, 90)) == 7
    assert limit(9, (9, 100, 90)) == 9  # a limit that somebody has set above the bounds stays
    assert limit(5, (3, 100, 1)) == 2
    assert limit(5, (1, 100, 0), (2, 100, 0)) == 1
    assert limit(5, (1, 100, 0), rule=AdaptiveLimits(least=3)) == 3
    assert (
        limit(2, (1, 100, 0), rule=AdaptiveLimits(least=3)) == 2
    )  # set below the bounds: neither raised without a reason
    assert limit(3, (1, 100, 0), rule=AdaptiveLimits(least=3)) == 3
    assert limit(2, (2, 100, 90), rule=AdaptiveLimits(least=4)) == 3  # nor in one step
    assert limit(6, (6, 100, 90)) == 7
    assert (
        limit(8, (1, 100, 0), rule=AdaptiveLimits(least=3)) == 3
    )  # from above the bounds it is pulled in as any other
    assert limit(0, (1, 100, 100)) == 0
    assert rule.limits({"network": 3}, [RetryRecord("database", 1, 100, 0)]) == {"network": 3}
    with pytest.raises(outlast.ConfigurationError) as wrong:
        AdaptiveLimits(least=0, worth=2, minimun=3)
    assert len(wrong.value.problems) == 3


def world(rule, succeeds, calls=6000, every=25, remembered=200):
    """A service called over and over; the limit is asked for anew now and then. Attempts, successes, futile retries, changes of direction."""
    dice, limit, memory, seen = Random(7), 5, deque(maxlen=remembered), Counter()
    last = 0
    for number in range(calls):
        chance = succeeds(number / calls)
        story = []
        for _ in range(limit + 1):
            story.append(dice.random() < chance)
            if story[-1]:
                break
        memory.append(story)
        seen["attempts"] += len(story)
        seen["successes"] += story[-1]
        seen["futile"] += 0 if story[-1] else len(story) - 1
        if number % every == every - 1:
            new_limit = rule(limit, memory)
            direction = (new_limit > limit) - (new_limit < limit)
            seen["reversals"] += bool(direction and last and direction != last)
            last, limit = direction or last, new_limit
    return seen


def followed(limit, memory):
    record = [
        RetryRecord("database", r, sum(len(story) > r for story in memory), sum(len(story) == r + 1 and story[-1] for story in memory))
        for r in range(1, limit + 1)
    ]  # fmt: skip
    return AdaptiveLimits().limits({"database": limit}, record)["database"]


def literal(limit, memory):
    return calculate_adaptive_limits("database", limit, sum(story[0] for story in memory) / len(memory))


def test_in_an_outage_it_retries_less_where_the_seeds_rule_retries_more():
    """S2-29: science's worlds with one seed; steady failures do not make it swing, and what succeeds stays within half a point."""
    steady = world(followed, lambda _: 0.7)
    assert steady["reversals"] <= 3
    assert steady["successes"] >= 0.995 * world(literal, lambda _: 0.7)["successes"]

    def outage(at):
        return 0.0 if 1 / 3 <= at < 2 / 3 else 0.98

    ours, seeds = world(followed, outage), world(literal, outage)
    assert seeds["futile"] > 12_000
    assert ours["futile"] <= 0.25 * seeds["futile"]  # one retry for each call is left, to notice the end of it
    assert ours["successes"] >= seeds["successes"] - 0.005 * 6000


@pytest.fixture(scope="session")
def database(postgres_server):
    """A database for all tests here: in one of others their letters may have the ids of these."""
    return postgres_server.database("adaptive")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    address = prepared(tmp_path / "outlast.db")
    if request.param == "postgres":
        address = request.getfixturevalue("database").dsn
    made = outlast.App(f"adaptive {tmp_path.name}", store=address)
    yield made
    made.store.close()


def test_what_retries_came_to_is_on_record(app):
    """S2-29, C-29: of items, also where successes are not kept, and of jobs; by the failure that the retry followed, inside of the window."""
    store = app.store
    _, lease = started(store)
    rows = [
        *(attempt(seq, 1, 1, outcome="retrying", **LOCKED) for seq in range(4)),
        attempt(3, 1, 2, outcome="retrying", **RESET),
        attempt(2, 1, 2, outcome="failed", stop_reason="exhausted", **LOCKED),
        attempt(7, 1, 1, outcome="retrying", **LOCKED),  # not over: it says nothing yet
    ]
    ends = [item(0), item(1), item(2, "dlq"), item(3)]
    store.write(lease, changes(items=ends, attempts=rows, read=8))
    at = START + HOUR
    assert store.retry_record("label", HOUR, at_us=at) == [
        RetryRecord("database", 1, 4, 2),
        RetryRecord("network", 2, 1, 1),
    ]
    assert store.retry_record("label", HOUR, at_us=at + 5) == [
        RetryRecord("database", 1, 3, 1),
        RetryRecord("network", 2, 1, 1),
    ]
    assert store.retry_record("parse", HOUR, at_us=at) == []
    hands = worker(store)
    enqueued(store, new(), new(), new())
    for _ in range(2):
        jobs = claimed(store, hands, 3)
        assert (len(jobs), finished(store, hands, *(end(job, "ready", "failed", **LOCKED) for job in jobs))) == (3, ())
    one, two, three = claimed(store, hands, 3)
    assert finished(store, hands, end(one), failed(two, **LOCKED), end(three, "ready", "failed", **LOCKED)) == ()
    assert store.retry_record("send", HOUR) == [RetryRecord("database", 1, 3, 0), RetryRecord("database", 2, 3, 1)]


def test_a_policy_follows_the_record_of_its_step(app):
    """S2-29, C-29: off unless asked for; the policy that comes back is like any other, and a bound of attempts is kept."""
    policy = outlast.presets.tiered
    assert app.adapted(policy, step="label") is policy
    _, lease = started(app.store)
    rows = [attempt(seq, 1, number, outcome="retrying", **LOCKED) for seq in range(100) for number in (1, 2)]
    rows += [attempt(seq, 1, 3, outcome="failed", stop_reason="exhausted", **LOCKED) for seq in range(100)]
    app.store.write(lease, changes(items=[item(seq, "dlq") for seq in range(100)], attempts=rows, read=100))
    found = app.adapted(policy, step="label")
    assert found.retry_limits == {"database": 1, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
    assert (policy.max_attempts, found.max_attempts) == (6, 4)
    assert app.adapted(policy.replace(max_attempts=3), step="label").max_attempts == 3
    assert app.adapted(policy, step="label", limits=AdaptiveLimits(minimum=101)) is policy
    with pytest.raises(outlast.ConfigurationError, match="expected policy to be a RetryPolicy with retry_limits"):
        app.adapted(outlast.RetryPolicy(), step="label")


def test_a_store_of_another_app_says_nothing(tmp_path):
    """C-29: two apps of one store see nothing of each other."""
    with open_store(prepared(tmp_path / "s.db"), app="one") as store:
        enqueued(store, new())
        hands = worker(store)
        finished(store, hands, *(end(job, "ready", "failed", **LOCKED) for job in claimed(store, hands)))
        finished(store, hands, *(end(job) for job in claimed(store, hands)))
        assert store.retry_record("send", HOUR) == [RetryRecord("database", 1, 1, 1)]
        store.app = "other"
        assert store.retry_record("send", HOUR) == []
