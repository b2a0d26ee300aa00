"""Whatever happens to items, stages and runs: every item ends in exactly one state, and the books are right at every moment."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import outlast
from outlast.pipeline.engine.runner import Runner
from outlast.pipeline.engine.scheduling import Scheduler
from outlast.testing import virtual_time
from stores import prepared

RETRY = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, on_errors=("transient",))
FATES = ("fine", "fine", "fine", "transient", "permanent", "skip", "snooze", "degraded", "hopeless")
ENDS = {"pause": "paused", "cancel": "cancelled", "source": "failed", "crash": "interrupted"}


class Play:
    """
    What is to happen: a fate for each item and stage, and how each pass is ended early, if it is.

    A stage with a `size` works on so many items at a time. Items without hope either fail in their own place, or all that they are with.
    """

    def __init__(self, fates, stops, sizes, *, sync, whole):
        self.fates = fates
        self.stops = list(stops)
        self.sizes = sizes
        self.sync = sync
        self.whole = whole
        self.tried = Counter()
        self.finals = {}
        self.runner = None

    def stages(self):
        return [self.stage(number) for number in range(len(self.fates[0]) if self.fates else 2)]

    def stage(self, number):
        def work(item):
            outlast.current().spend(tokens=1, usd=0.125)
            return fate(item)

        def fate(item):
            if self.stops and self.stops[0][0] in {"pause", "crash"} and (item, number) == (self.stops[0][1], 0):
                kind, _ = self.stops.pop(0)
                if kind == "crash":
                    raise KeyboardInterrupt
                self.runner.loop.call_soon_threadsafe(self.runner.end, "pause")
            self.tried[item, number] += 1
            tries = self.tried[item, number]
            match self.fates[item][number]:
                case "transient" if tries < 3:
                    raise ConnectionResetError("once more")
                case "permanent":
                    raise ValueError("never")
                case "hopeless":
                    raise ConnectionResetError("always")
                case "skip":
                    raise outlast.Skip("unwanted")
                case "snooze" if tries < 2:
                    raise outlast.Snooze(30)
                case "degraded":
                    return outlast.Degraded(item, "so so")
            return item

        def many(items):
            outlast.current().spend(tokens=len(items), usd=0.3)
            if self.whole:
                for item in items:
                    if self.fates[item][number] in {"permanent", "hopeless"}:
                        fate(item)
            return [place(item) for item in items]

        def place(item):
            try:
                return fate(item)
            except Exception as error:  # noqa: BLE001 - it stands for its item
                return error

        async def awork(item):
            return work(item)

        async def amany(items):
            return many(items)

        size = self.sizes[number]
        chosen = (work if self.sync else awork) if size is None else (many if self.sync else amany)
        chosen.__name__ = f"stage_{number}"
        return outlast.stage(retry=RETRY, concurrency=3, checkpoint=number == 0, batch=size)(chosen)

    def source(self):
        for item in range(len(self.fates)):
            if self.stops and self.stops[0] == ("source", item):
                self.stops.pop(0)
                raise OSError("the source broke")
            yield item

    def wanted(self, item):
        """The states that the item may end in."""
        may = set()
        for fate, size in zip(self.fates[item], self.sizes, strict=False):
            if fate in {"permanent", "hopeless"}:
                return may | {"dlq"}
            if fate == "skip":
                return may | {"skipped"}
            if fate == "transient" and size is not None and self.whole:
                may.add("dlq")  # the failures of others, for all of its batch, may have used up its attempts
        return may | {"succeeded"}


def watched(play):
    """Checks of the books at every step, while a run goes on."""
    recorded, take_in, give_back = Runner._recorded, Runner._take_in, Scheduler.give_back

    def check(runner):
        play.runner = runner
        counts = runner.books.counts()
        assert counts.total == counts.succeeded + counts.skipped + counts.dlq + counts.failed + counts.pending
        assert counts.pending >= 0
        assert 0 <= runner.phase.in_hand <= runner.window

    def after_commit(runner, batch):
        recorded(runner, batch)
        check(runner)
        for item in batch.items:
            assert item.seq not in play.finals, "a finished item changed"
            play.finals[item.seq] = item.status

    def after_reading(runner, chunk):
        play.runner = runner
        take_in(runner, chunk)
        check(runner)

    def after_return(scheduler, item):
        give_back(scheduler, item)
        check(scheduler._control)

    return (
        patch.object(Runner, "_recorded", after_commit),
        patch.object(Runner, "_take_in", after_reading),
        patch.object(Scheduler, "give_back", after_return),
    )


fate = st.sampled_from(FATES)
plays = st.integers(1, 3).flatmap(
    lambda stages: st.lists(st.tuples(*[fate] * stages), max_size=40).flatmap(
        lambda fates: st.tuples(
            st.just(fates),
            st.lists(
                st.tuples(st.sampled_from(["pause", "crash", "source"]), st.integers(0, max(0, len(fates) - 1))),
                max_size=3,
            ),
            st.tuples(*[st.sampled_from([None, None, 1, 3, 16])] * max(2, stages)),
        )
    )
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@settings(max_examples=40)
@given(play=plays, whole=st.booleans(), ordered=st.booleans())
def test_every_item_ends_in_exactly_one_state_whatever_happens(request, database, sync, play, whole, ordered):
    """S3-06, D-13: over random stages, batches, faults, stops and resumes; counts, rows, dead letters, outputs and spending agree."""
    play = Play(*play, sync=sync, whole=whole)
    with tempfile.TemporaryDirectory() as folder, virtual_time():
        store = prepared(Path(folder, "s.db")) if database == "sqlite" else request.getfixturevalue("postgres").dsn
        app = outlast.App(f"tests-{uuid4().hex}", store=store)
        pipeline = outlast.Pipeline(
            "p", *play.stages(), app=app, min_success_rate=0.0, min_partial_rate=0.0, failure_budget=1.0
        )
        one, two, three = watched(play)
        with one, two, three:
            for _ in range(6):
                try:
                    result = pipeline.run(play.source(), run_key="k", check=False, ordered=ordered)
                except KeyboardInterrupt:
                    continue
                counts = result.counts
                assert counts.total == counts.finished + counts.pending
                record = app.store.find_run("p", "k")
                assert (record.status, record.counts.total) == (result.status, counts.total)
                if result.status == "completed":
                    break
                assert result.status in {"paused", "failed"}
        assert result.status == "completed"
        assert counts.pending == 0
        assert counts.source_exhausted
        rows = app.store.items(result._number, limit=1000)
        assert [row.seq for row in rows] == list(range(len(play.fates)))
        assert all(row.status in play.wanted(row.seq) for row in rows)
        ended = Counter(row.status for row in rows)
        assert (counts.succeeded, counts.skipped, counts.dlq) == (
            ended["succeeded"],
            ended["skipped"],
            ended["dlq"],
        )
        assert list(result.outputs()) == [row.seq for row in rows if row.status == "succeeded"]
        letters = app.store.letters(limit=1000)
        assert sorted(letter.seq for letter in letters) == [row.seq for row in rows if row.status == "dlq"]
        attempts = app.store.attempts(result._number, limit=100_000)
        tried = Counter(attempt.seq for attempt in attempts)
        assert {row.seq: row.attempts for row in rows} == dict(tried)
        spent = Counter()
        for attempt in attempts:
            spent[attempt.seq] += (attempt.spent or {}).get("tokens", 0.0)
        assert {row.seq: row.spent.get("tokens", 0.0) for row in rows} == dict(spent)
        assert result.spent.get("tokens", 0.0) == app.store.find_run("p", "k").spent.get("tokens", 0.0) == spent.total()
        money = sum((attempt.spent or {}).get("usd", 0.0) for attempt in attempts)
        assert result.spent.get("usd", 0.0) == pytest.approx(money, rel=1e-12)
        app.store.close()
