"""Features against features: runs drawn from products of them, each checked for what must hold whatever they are."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import os
import re
import signal
import sqlite3
import tempfile
import threading
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

import outlast
from captured import captured
from outlast import observe
from outlast.isolation import processes
from outlast.sharing import named
from stores import prepared

EXAMPLES = int(os.environ.get("PRODUCTS", "20"))  # for each database; PRODUCTS=400 looks further
RETRY = outlast.RetryPolicy(max_attempts=2, initial_delay=0.001, max_delay=0.002)
FATES = ("fine",) * 6 + ("again", "hopeless", "permanent", "skip", "degraded", "refused", "broken", "exits", "leaks")
FAILING = {"hopeless", "permanent", "exits", "leaks"}


def is_mended(folder: str) -> bool:
    """Whether what failed for good works now. A file says so, because processes must know it too."""
    return Path(folder, "mended").exists()


def fated(item: dict) -> dict | outlast.Degraded:
    """What becomes of an item says the item itself, so that a process of its own can do it too."""
    fate = "fine" if is_mended(item["folder"]) and item["fate"] != "skip" else item["fate"]
    made = {"id": item["id"], "value": -1 if fate == "refused" else item["id"]}
    match fate:
        case "again" if outlast.current().attempt < 2:
            raise ConnectionResetError("once more")
        case "hopeless":
            raise ConnectionResetError("always")
        case "permanent":
            raise ValueError("never")
        case "broken" if not item.get("repaired"):
            raise ValueError("broken")
        case "skip":
            raise outlast.Skip("unwanted")
        case "degraded":
            return outlast.Degraded(made, "so so")
        case "exits":
            raise SystemExit(3)
        case "leaks":
            raise asyncio.CancelledError
    return made


def repaired(item: dict, _: Exception) -> dict:
    return {**item, "repaired": True}


def instead(item: dict) -> dict:
    return {"id": item["id"], "value": 1_000 + item["id"]}


def one(item: dict) -> dict | outlast.Degraded:
    return fated(item)


async def aone(item: dict) -> dict | outlast.Degraded:
    return fated(item)


def placed(item: dict) -> object:
    try:
        return fated(item)
    except Exception as error:  # noqa: BLE001 - it stands for its item
        return error


def many(items: list[dict]) -> list[object]:
    return [placed(item) for item in items]


async def amany(items: list[dict]) -> list[object]:
    return [placed(item) for item in items]


@dataclass(frozen=True)
class Shape:
    """One run: how it is made, what happens to its items, and how its first pass ends."""

    database: str
    fates: tuple[str, ...]
    lane: str  # sync, async, thread, process
    batch: int | None
    limit: bool
    breaker: str  # none, calm, touchy: one that opens at the second failure in a row and closes again
    budget: bool
    hedge: bool
    fallback: bool
    repairs: bool
    checkpoint: bool
    sink: str  # none, jsonl, csv, table, callable
    watched: bool
    audit: str
    on_item_error: str
    end: str  # none, signal, pause, source

    @property
    def is_async(self) -> bool:
        return self.lane == "async"

    def wanted(self, fate: str) -> set[str]:
        """The states that an item of this fate may end in."""
        lost = "failed" if self.on_item_error == "collect" else "dlq"
        if fate == "skip":
            return {"skipped"}
        if fate == "refused":
            return {lost} if self.sink == "table" else {"succeeded"}
        if fate == "broken" and self.repairs and not self.fallback:
            return {"succeeded"}
        if fate in FAILING or fate == "broken":
            return {"succeeded", lost} if self.fallback else {lost}
        return {"succeeded"}


def shapes(database: str) -> st.SearchStrategy[Shape]:
    def possible(shape: Shape) -> bool:
        return not (
            (shape.hedge and (not shape.is_async or shape.batch))
            or (shape.batch and (shape.fallback or {"exits", "leaks"} & set(shape.fates)))
        )

    return st.builds(
        Shape,
        database=st.just(database),
        fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=25).map(tuple),
        lane=st.sampled_from(["sync", "async", "sync", "async", "thread", "process"]),
        batch=st.sampled_from([None, None, 3]),
        limit=st.booleans(),
        breaker=st.sampled_from(["none", "calm", "touchy", "touchy"]),
        budget=st.booleans(),
        hedge=st.booleans(),
        fallback=st.booleans(),
        repairs=st.booleans(),
        checkpoint=st.booleans(),
        sink=st.sampled_from(["none", "jsonl", "csv", "table", "callable"]),
        watched=st.booleans(),
        audit=st.sampled_from(["all", "failures"]),
        on_item_error=st.sampled_from(["dlq", "dlq", "collect", "stop"]),
        end=st.sampled_from(["none", "none", "signal", "pause", "source"]),
    ).filter(possible)


class Play:
    """A run of one shape: its pipeline, its sink, and what is on record of it."""

    def __init__(self, shape: Shape, folder: Path, address: str) -> None:
        self.shape = shape
        self.folder = folder
        self.app = outlast.App(f"tests-{uuid4().hex}", store=address)
        self.limit = outlast.Limit(f"limit-{uuid4().hex}", concurrency=2) if shape.limit else None
        self.breaker = self.circuit()
        self.budget = outlast.RetryBudget(f"budget-{uuid4().hex}", reserve=1_000) if shape.budget else None
        self.called: list[dict] = []
        self.ended: dict[int, tuple] = {}
        self.seen = 0
        self.struck = False  # whether the first pass was ended early
        self.runners = []
        self.pipeline = outlast.Pipeline(
            "p", self.stage(), self.last(), app=self.app, min_success_rate=0.0, min_partial_rate=0.0, failure_budget=1.0
        )
        if shape.sink == "table":
            with closing(sqlite3.connect(folder / "out.db")) as database:
                database.execute("create table out (id integer, value integer check (value >= 0))")
                database.commit()

    def circuit(self) -> outlast.CircuitBreaker | None:
        if self.shape.breaker == "none":
            return None
        touchy = {"failure_threshold": 2, "reset_timeout": 0.005, "half_open_requests": 2, "success_threshold": 1}
        name = f"breaker-{uuid4().hex}"
        return outlast.CircuitBreaker(
            name, **(touchy if self.shape.breaker == "touchy" else {"failure_threshold": 1_000})
        )

    def stage(self) -> outlast.Stage:
        shape = self.shape
        guard = outlast.Guard(
            f"guard-{uuid4().hex}",
            retry=RETRY,
            limit=self.limit,
            breaker=self.breaker,
            retry_budget=self.budget,
            hedge=outlast.Hedge(after=0.001) if shape.hedge else None,
            fallback=instead if shape.fallback else None,
            timeout=20 if shape.lane in {"thread", "process"} else None,
            isolation=shape.lane if shape.lane in {"thread", "process"} else None,
        )
        work = (amany if shape.is_async else many) if shape.batch else (aone if shape.is_async else one)
        return outlast.stage(
            guard=guard,
            concurrency=4,
            batch=shape.batch,
            checkpoint=shape.checkpoint,
            repairs=[repaired] if shape.repairs else [],
        )(work)

    def last(self) -> outlast.Stage:
        """The stage behind it, which ends a pass early."""

        @outlast.stage(concurrency=2)
        async def last(made: dict) -> dict:
            self.seen += not is_mended(str(self.folder))
            if self.struck or self.seen < 3 or is_mended(str(self.folder)):
                return made
            if self.shape.end == "signal":
                self.struck = True
                os.kill(os.getpid(), signal.SIGINT)
            elif self.shape.end == "pause":
                self.struck = True
                self.runners[-1].end("pause")
            return made

        return last

    def source(self):
        for number, fate in enumerate(self.shape.fates):
            if self.shape.end == "source" and number == len(self.shape.fates) // 2 and not self.struck:
                self.struck = True
                raise OSError("the source broke")
            yield {"id": number, "fate": fate, "folder": str(self.folder)}

    def sink(self) -> object:
        match self.shape.sink:
            case "jsonl" | "csv" as kind:
                return str(self.folder / f"out.{kind}")
            case "table":
                return outlast.Table(f"sqlite:///{self.folder}/out.db", "out")
            case "callable":
                return self.called.extend
        return None

    def delivered(self) -> list[int]:
        """The ids in the sink."""
        match self.shape.sink:
            case "jsonl":
                path = self.folder / "out.jsonl"
                return [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []
            case "csv":
                path = self.folder / "out.csv"
                return (
                    [int(row["id"]) for row in csv.DictReader(path.read_text().splitlines())] if path.exists() else []
                )
            case "table":
                with closing(sqlite3.connect(self.folder / "out.db")) as database:
                    return [row[0] for row in database.execute("select id from out")]
        return [made["id"] for made in self.called]

    def run(self) -> tuple[object, BaseException | None]:
        """One pass: its result, and what it raised."""
        options = {"watch": self.watch} if self.shape.watched else {}
        try:
            with captured() as self.runners:
                result = self.pipeline.run(
                    self.source(),
                    run_key="k",
                    item_key="id",
                    sink=self.sink(),
                    audit=self.shape.audit,
                    on_item_error=self.shape.on_item_error,
                    **options,
                )
        except (outlast.RunFailed, KeyboardInterrupt) as error:
            return outlast.result_of(error), error
        return result, None

    def watch(self, view) -> None:
        counts = view.counts
        assert 0 <= counts.finished <= counts.total
        assert all(stage.running >= 0 and stage.queued >= 0 for stage in view.stages)

    def check(self, result, error: BaseException | None) -> None:
        """What holds after every pass."""
        if isinstance(error, KeyboardInterrupt):  # a signal is raised whatever the run came to
            assert result.status in {"interrupted", "completed", "partial_success", "failed"}
        else:
            assert result.status != "interrupted"
            assert (error is None) == (result.status in {"completed", "partial_success"})
        counts, store = result.counts, self.app.store
        assert counts.total == counts.finished + counts.pending
        record = store.find_run("p", "k")
        assert (record.status, record.why) == (result.status, result.why)
        rows = store.items(record.number, limit=1_000)
        by_status = Counter(row.status for row in rows)
        assert (counts.succeeded, counts.skipped, counts.dlq, counts.failed) == tuple(
            by_status[status] for status in ("succeeded", "skipped", "dlq", "failed")
        )
        for row in rows:
            end = (row.status, row.attempts, row.key)
            assert self.ended.setdefault(row.seq, end) == end, "an item that had ended changed"
            fate = self.shape.fates[int(row.key)]
            assert row.status in self.shape.wanted(fate), fate
        succeeded = [int(row.key) for row in rows if row.status == "succeeded"]
        if self.shape.sink == "none":
            assert sorted(made["id"] for made in result.outputs()) == sorted(succeeded)
        elif self.shape.sink == "callable":
            assert set(self.delivered()) >= set(succeeded)
        else:
            assert sorted(self.delivered()) == sorted(succeeded)
        said = re.search(r"([\d,]+) of ([\d,]+) items? succeeded", result.why)
        assert said is None or tuple(int(number.replace(",", "")) for number in said.groups()) == (
            counts.succeeded,
            counts.total,
        )
        letters = [letter for letter in store.letters(limit=1_000) if letter.status == "open"]
        assert len(letters) == counts.dlq
        if self.shape.audit == "all":
            tried = Counter(attempt.seq for attempt in store.attempts(record.number, limit=100_000))
            assert {row.seq: row.attempts for row in rows} == {row.seq: tried[row.seq] for row in rows}
        if self.limit is not None:
            assert (self.limit.under_way, self.limit.waiting) == (0, 0)
        if self.shape.breaker == "calm":
            assert self.breaker.state == "closed"
        # A circuit that stays open ends a pass, and costs no item anything.
        assert result.reason != "breaker_open" or (self.shape.breaker == "touchy" and counts.pending)

    def replay(self, before) -> None:
        """What failed comes home: each letter is resolved, its output is in the sink once, and the run says so."""
        # What a table refused was made by the first stage: the last one would only hand it on again.
        replayed = self.pipeline.reprocess(check=False, from_start=self.shape.sink == "table")
        assert replayed.counts.succeeded == before.counts.dlq, replayed.why
        store = self.app.store
        assert {letter.status for letter in store.letters(limit=1_000)} == {"resolved"}
        record = store.find_run("p", "k")
        rows = store.items(record.number, limit=1_000)
        wanted = sorted(
            number
            for number, fate in enumerate(self.shape.fates)
            if fate != "skip" and not (self.shape.on_item_error == "collect" and self.ended[number][0] == "failed")
        )
        if self.shape.sink == "none":
            assert sorted(made["id"] for made in replayed.outputs()) == sorted(
                int(key) for status, _, key in self.ended.values() if status == "dlq"
            )
        else:
            assert sorted(self.delivered()) == wanted
        assert record.counts.succeeded == len(wanted)
        assert record.counts.dlq == 0
        assert rows


class Held:
    """What a program holds: threads, children, descriptors, the handlers of its signals."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.children = self._children()
        self.handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        self.descriptors = self._descriptors()

    @staticmethod
    def _children() -> set[str]:
        found: set[str] = set()
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # a thread that has just ended
                found.update((task / "children").read_text().split())
        return found

    @staticmethod
    def _descriptors() -> Counter[str]:
        found = Counter[str]()
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the descriptor that reads the folder
                found[re.sub(r"\d+", "N", str(entry.readlink()))] += 1
        return found

    @staticmethod
    def _warm() -> Counter[str]:
        """Those of child processes that are kept for the next attempt."""
        return Counter({"socket:[N]": 2 * len(processes._pool._idle)})

    def check(self) -> None:
        """All of it is back."""
        for thread in set(threading.enumerate()) - self.threads:
            if thread.name.startswith("outlast"):
                thread.join(10)
        left = {thread.name for thread in set(threading.enumerate()) - self.threads}
        assert left == set()
        assert self._children() <= self.children
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == self.handlers
        gc.collect()
        assert self._descriptors() - self.descriptors - self._warm() == Counter()


def story(shape: Shape, address: str) -> None:
    """Run it, go on until nothing more is to be done, mend what failed, replay it; and check after each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        play = Play(shape, folder, address if shape.database == "postgres" else prepared(folder / "store.db"))
        with closing(play.app.store):
            for _ in range(len(shape.fates) + 3):
                result, error = play.run()
                play.check(result, error)
                if result.counts.source_exhausted and not result.counts.pending:
                    break
            assert result.counts.pending == 0
            assert result.counts.total == len(shape.fates)
            (folder / "mended").touch()
            if result.counts.dlq and shape.sink != "callable":
                play.replay(result)


@pytest.mark.timeout(300 + 10 * EXAMPLES)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_what_holds_for_every_product_of_features(database, request, monkeypatch):
    """S3-06, D-13, D-21, D-25, D-30: counts, rows, sink, letters, places, threads, children and descriptors agree after every pass."""
    address = request.getfixturevalue("postgres").dsn if database == "postgres" else ""
    # What reports open circuits to their stores outlives each of these runs by seconds.
    monkeypatch.setattr(named, "report_change", None)
    for place in ("app", "pipeline.home"):
        monkeypatch.setattr(f"outlast.{place}.report_breakers_to", lambda home: None)
    plain = dict.fromkeys(("limit", "budget", "hedge", "fallback", "repairs", "checkpoint", "watched"), False)
    plain |= {"sink": "none", "audit": "all", "on_item_error": "dlq", "end": "none"}
    for lane in ("process", "sync"):  # what is started once and stays
        story(Shape(database, ("fine", "permanent"), lane, None, breaker="none", **plain), address)
    circuits: list[str] = []
    unsubscribe = observe.subscribe(lambda event: circuits.append(event.name))
    # No success may come between the failures, whatever the order of the threads.
    story(Shape(database, ("hopeless", "hopeless"), "sync", None, breaker="touchy", **plain), address)
    unsubscribe()
    assert {"circuit_breaker_open", "circuit_breaker_closed"} <= set(circuits)
    held = Held()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(shape=shapes(database))
    def products(shape: Shape) -> None:
        note(str(shape))
        story(shape, address)
        held.check()

    products()
