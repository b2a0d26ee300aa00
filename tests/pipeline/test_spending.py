"""What a run spends: per attempt, item and run, whatever happens to them; and a limit that ends it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from unittest.mock import patch

import pytest

import outlast
from outlast.pipeline.engine.runner import Runner
from outlast.testing import run as trial
from outlast.testing import virtual_time

THRICE = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0)
both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
sizes = pytest.mark.parametrize("batch", [None, 4], ids=["single", "batch"])


def made(fn, *, sync, batch=None, **options):
    """A function of one item as a stage of any kind; in a batch, an exception stands in its item's place."""

    def place(item):
        try:
            return fn(item)
        except Exception as error:  # noqa: BLE001 - it stands for its item
            return error

    def many(items):
        return [place(item) for item in items]

    async def afn(item):
        return fn(item)

    async def amany(items):
        return many(items)

    chosen = (fn if sync else afn) if batch is None else (many if sync else amany)
    chosen.__name__ = fn.__name__
    return outlast.stage(batch=batch, **options)(chosen)


def pipeline(*stages, **options):
    return outlast.Pipeline("p", *stages, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0, **options)


def levels(result):
    """The tokens on record: of each item by its attempts, of each item, and of the run."""
    store, attempts = result._store(), Counter()
    for row in store.attempts(result._number, limit=10_000):
        attempts[row.seq] += (row.spent or {}).get("tokens", 0.0)
    items = {row.seq: row.spent.get("tokens", 0.0) for row in store.items(result._number, limit=1000)}
    return dict(attempts), items, result.spent.get("tokens", 0.0)


def agree(result, total):
    attempts, items, run = levels(result)
    assert attempts == items
    assert run == sum(items.values()) == total


@both
@sizes
def test_every_attempt_counts_whatever_came_of_it(sync, batch):
    """Retries, unwanted results, skips, snoozes, failures and successes: what they have spent is on record at all three levels."""
    tried = Counter()

    def work(item):
        outlast.current().spend(tokens=4)
        tried[item] += 1
        match item:
            case "flaky" if tried[item] < 3:
                raise ConnectionResetError
            case "bad":
                raise ValueError
            case "skip":
                raise outlast.Skip("no")
            case "snooze" if tried[item] < 2:
                raise outlast.Snooze(5)
            case "unwanted" if tried[item] < 2:
                return None
            case "poor":
                return outlast.Degraded(1, "so so")
        return item

    guard = outlast.Guard("g", retry=THRICE, retry_if=lambda output: output is None)
    names = ["fine", "flaky", "bad", "skip", "snooze", "unwanted", "poor"]
    for protected in ({"guard": guard}, {"retry": THRICE}):
        tried.clear()
        some = names if protected.get("guard") else [name for name in names if name != "unwanted"]
        result = trial(pipeline(made(work, sync=sync, batch=batch, **protected)), some)
        agree(result, 4 * tried.total())


@both
@sizes
def test_a_refused_attempt_that_is_not_charged_counts_once(sync, batch):
    """A 429 behind a limit: the attempt after it has the same number in its call, and its own spending."""

    class Busy(Exception):
        status_code = 429

    tried = Counter()

    def work(item):
        outlast.current().spend(tokens=1)
        tried[item] += 1
        if tried[item] < 4:
            raise Busy
        return item

    guard = outlast.Guard("g", limit=outlast.Limit("l", concurrency=4))
    result = trial(pipeline(made(work, sync=sync, batch=batch, guard=guard)), ["a"])
    agree(result, 4)
    assert [row.spent for row in result._store().attempts(result._number)] == [{"tokens": 1.0}] * 4


@both
@sizes
def test_a_fallback_is_booked_with_the_attempt_that_it_answers_for(sync, batch):
    """It is no attempt of its own, and what it spends is not lost."""

    def work(item):
        outlast.current().spend(tokens=1)
        raise ValueError

    def cheap(item):
        outlast.current().spend(tokens=10)
        return item

    guard = outlast.Guard("g", fallback=cheap)
    result = trial(pipeline(made(work, sync=sync, batch=batch, guard=guard)), ["a"])
    assert result.counts.succeeded == 1
    agree(result, 11)


def test_hedges_count_too():
    """Both executions of an attempt have spent something; the one that lost is part of the attempt."""
    starts = []

    async def work(item):
        starts.append(item)
        outlast.current().spend(tokens=2)
        if len(starts) == 1:
            await asyncio.Event().wait()
        return item

    guard = outlast.Guard("g", hedge=outlast.Hedge(after=1))
    agree(trial(pipeline(outlast.stage(guard=guard)(work)), ["a"]), 4)


@both
@sizes
def test_sums_are_right_after_a_pause_behind_a_checkpoint(app, sync, batch):
    """What an item has spent before the run was paused is still its own, and the run's: attempts, items and run agree after the resume."""
    stop, tried = [True], Counter()

    def ask(item):
        outlast.current().spend(tokens=10)
        tried["ask"] += 1
        if item == 2 and tried["two"] < 1:
            tried["two"] += 1
            raise ConnectionResetError
        return item

    def rate(item):
        if item == 0 and stop:
            stop.clear()
            raise KeyboardInterrupt
        outlast.current().spend(tokens=1)
        tried["rate"] += 1
        return item

    job = outlast.Pipeline(
        "p", made(ask, sync=sync, batch=batch, checkpoint=True, retry=THRICE), made(rate, sync=sync), app=app
    )
    with virtual_time():
        with pytest.raises(KeyboardInterrupt):
            job.run(range(4), run_key="k")
        result = job.run(range(4), run_key="k")
    agree(result, 10 * tried["ask"] + tried["rate"])
    assert app.store.find_run("p", "k").spent == result.spent


def test_with_fewer_rows_the_sums_of_items_and_run_stay_right(app):
    """audit="failures": over a pause behind a checkpoint, too, where the rows of successes are needed until the item ends."""
    stop, spent, paused = [True], Counter(), threading.Event()

    def spend(item, tokens):
        outlast.current().spend(tokens=tokens)
        spent[item] += tokens

    @outlast.stage(concurrency=1)
    def first(item):
        spend(item, 10)
        return item

    @outlast.stage(checkpoint=True, concurrency=1)
    def second(item):
        spend(item, 5)
        return item

    @outlast.stage(concurrency=1)
    def third(item):
        if item == 3 and stop:
            stop.clear()
            runners[0].loop.call_soon_threadsafe(lambda: (runners[0].end("pause"), paused.set()))
            paused.wait()  # what comes after this item has not begun yet
        spend(item, 1)
        return item

    runners, take_in = [], Runner._take_in

    def watched(runner, chunk):
        runners.append(runner)
        take_in(runner, chunk)

    job = outlast.Pipeline("p", first, second, third, app=app)
    with patch.object(Runner, "_take_in", watched):
        assert job.run(range(6), run_key="k", audit="failures", check=False).status == "paused"
    result = job.run(range(6), run_key="k", audit="failures")
    assert [item.spent["tokens"] for item in result.items()] == [spent[n] for n in range(6)]
    assert result.spent == {"tokens": spent.total()}


@sizes
def test_a_replay_has_books_of_its_own(app, batch):
    """The run keeps what it has spent; the replay's spending is the replay's."""
    broken = [True]

    def work(item):
        outlast.current().spend(tokens=3)
        if item == 1 and broken:
            raise ValueError
        return item

    job = outlast.Pipeline(
        "p",
        made(work, sync=True, batch=batch),
        app=app,
        failure_budget=1.0,
        min_success_rate=0.0,
        min_partial_rate=0.0,
    )
    first = job.run(range(3), run_key="k")
    broken.clear()
    replay = job.reprocess()
    agree(first, 9)
    agree(replay, 3)
    assert app.store.find_run("p", "k").spent == {"tokens": 9.0}


@both
@sizes
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_spend_limit_stops_reading_and_what_is_under_way_ends(app, sync, batch, concurrency):
    """The overshoot is what was under way; status, reason and why say it; with a higher limit the run goes on, with the same one it does not."""
    tried = Counter()

    def work(item):
        outlast.current().spend(usd=1.0)
        tried[item] += 1
        return item

    def job(limit):
        stage = made(work, sync=sync, batch=batch, concurrency=concurrency)
        return outlast.Pipeline("p", stage, app=app, spend_limit={"usd": limit})

    first = job(50).run(range(200), run_key="k", check=False)
    assert (first.status, first.reason) == ("failed", "spend_limit")
    assert "the spend limit of 50 usd is reached" in first.why
    assert "run it again with run_key='k' and a higher limit to go on" in first.why
    assert first.counts.succeeded == first.spent["usd"]
    assert 50 <= first.spent["usd"] <= 50 + 2 * concurrency * (batch or 1)
    again = job(50).run(range(200), run_key="k", check=False)
    assert (again.status, again.reason, again.spent) == ("failed", "spend_limit", first.spent)
    last = job(1000).run(range(200), run_key="k")
    assert last.status == "completed"
    assert last.spent == {"usd": 200.0}
    assert set(tried.values()) == {1}
    done = job(50).run(range(200), run_key="k")
    assert done.status == "completed"


def test_a_limit_on_one_amount_says_nothing_about_another():
    """The first that is used up is named."""

    @outlast.stage(concurrency=1)
    async def work(item):
        outlast.current().spend(usd=0.25, tokens=1)
        return item

    job = outlast.Pipeline("p", work, spend_limit={"tokens": 1000, "usd": 1})
    result = trial(job, itertools.count())
    assert "of 1 usd is reached (1)" in result.why
    assert result.counts.succeeded == 4
