"""Outputs in the order of the source, and fewer rows: both must survive everything that a run survives."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

import pytest

import forked
import outlast
from forked import Forked
from outlast.pipeline.engine.runner import Runner
from outlast.testing import virtual_time

THRICE = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.5)
both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


def made(fn, *, sync, **options):
    async def work(item):
        return fn(item)

    work.__name__ = fn.__name__
    return outlast.stage(**options)(fn if sync else work)


def lenient(name, *stages, **options):
    return outlast.Pipeline(name, *stages, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0, **options)


def numbers(path):
    return [int(line) for line in path.read_text().split()]


class Ending:
    """Ends a run when it is told to."""

    def __init__(self, request):
        self.request = request
        self.runner = None

    def __enter__(self):
        take_in = Runner._take_in

        def watched(runner, chunk):
            self.runner = runner
            take_in(runner, chunk)

        self._patch = patch.object(Runner, "_take_in", watched)
        self._patch.__enter__()
        return self

    def __exit__(self, *problem):
        self._patch.__exit__(*problem)

    def now(self):
        self.runner.loop.call_soon_threadsafe(self.runner.end, self.request)


# -- order ------------------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("seed", range(4))
def test_order_survives_retries_skips_dead_letters_and_pauses(app, tmp_path, sync, seed):
    """What is in the file is at every moment a beginning of what it will be: the source's order, without those that have no output."""
    dice = random.Random(seed)
    fates = [dice.choice(["fine", "fine", "flaky", "skip", "bad", "snooze"]) for _ in range(120)]
    pauses = {dice.randrange(120) for _ in range(3)}
    tried = Counter()

    def work(item):
        tried[item] += 1
        if item in pauses:
            pauses.discard(item)
            ending.now()
        match fates[item]:
            case "flaky" if tried[item] < 3:
                raise ConnectionResetError
            case "skip":
                raise outlast.Skip("no")
            case "bad":
                raise ValueError
            case "snooze" if tried[item] < 2:
                raise outlast.Snooze(dice.randrange(100))
        return item

    job = lenient("p", made(work, sync=sync, retry=THRICE, concurrency=7), app=app)
    out = tmp_path / "out.jsonl"
    wanted = [n for n, fate in enumerate(fates) if fate not in {"skip", "bad"}]
    with virtual_time(), Ending("pause") as ending:
        for _ in range(6):
            result = job.run(range(120), run_key="k", sink=str(out), ordered=True, check=False)
            assert numbers(out) == wanted[: len(numbers(out))]
            if result.status == "completed":
                break
    assert numbers(out) == wanted
    assert (result.counts.total, result.counts.pending) == (120, 0)


@both
def test_a_slow_first_item_holds_no_more_than_the_window(tmp_path, sync, app):
    """What has ended and waits for its turn is in hand: nothing more is read than the window has room for."""
    tried = Counter()

    def work(item):
        tried[item] += 1
        if item == 0 and tried[item] == 1:
            raise outlast.Snooze(1000)
        return item

    def look(runner, chunk):
        take_in(runner, chunk)
        seen.append(runner.phase.in_hand)

    seen, take_in = [], Runner._take_in
    job = outlast.Pipeline("p", made(work, sync=sync, concurrency=4), app=app)
    with virtual_time() as time, patch.object(Runner, "_take_in", look):
        job.run(range(5000), sink=str(tmp_path / "out.jsonl"), ordered=True)
        assert time.now >= 1000
    assert numbers(tmp_path / "out.jsonl") == [*range(5000)]
    assert max(seen) == 256


PROGRAM = """
    import sys
    import outlast

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0.001), concurrency=8)
    def work(item):
        if item % 7 == 0 and outlast.current().attempt < 2:
            raise ConnectionResetError
        if item % 11 == 0:
            raise ValueError
        return item

    @outlast.stage(batch=16, checkpoint=True)
    async def many(items):
        return [outlast.Skip("no") if item % 13 == 0 else item for item in items]

    def source():
        print("reading", flush=True)
        yield from range(int(sys.argv[3]))

    app = outlast.App("a", store=sys.argv[1])
    job = outlast.Pipeline("p", work, many, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    job.run(source(), run_key="k", sink=sys.argv[2], ordered=True)
"""


def test_order_survives_kill_9(tmp_path):
    """C-22: killed again and again, with batches and checkpoints: what counts of the file is always in order, and in the end complete."""
    program, address, sink = tmp_path / "program.py", tmp_path / "s.db", tmp_path / "out.jsonl"
    program.write_text(textwrap.dedent(PROGRAM))
    wanted = [n for n in range(4000) if n % 11 and n % 13]
    dice = random.Random(3)
    command = [sys.executable, program, address, sink, "4000"]
    for _ in range(8):
        with Forked(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "reading\n"
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05 + dice.random() * 0.2)
            process.kill()
        complete = sink.read_text().rpartition("\n")[0].split() if sink.exists() else []
        assert [int(line) for line in complete] == wanted[: len(complete)]
    forked.run(command, check=True)
    assert numbers(sink) == wanted


# -- audit ------------------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("batch", [None, 8], ids=["single", "batch"])
def test_fewer_rows_tell_everything_about_what_went_wrong(app, sync, batch):
    """C-27: from an item's first failure on all its attempts are rows; those that never failed have none; the books are the same."""

    def fate(item):
        if item % 10 == 1 and outlast.current().attempt < 3:
            return ConnectionResetError("gone")
        if item % 10 == 2:
            return ValueError("bad")
        if item % 10 == 3:
            return outlast.Skip("no")
        return item

    def work(item):
        answer = fate(item)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def many(items):
        return [fate(item) for item in items]

    def last(item):
        return item

    retry = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0)
    first = made(work if batch is None else many, sync=sync, batch=batch, retry=retry)
    job = lenient("p", first, made(last, sync=sync), app=app)
    with virtual_time():
        full, small = job.run(range(40), run_key="f"), job.run(range(40), run_key="s", audit="failures")
    assert small.counts == full.counts
    assert [(item.key, item.status, item.error) for item in small.items()] == [
        (item.key, item.status, item.error) for item in full.items()
    ]

    def rows(result):
        return [(row.seq, row.stage, row.number, row.outcome) for row in app.store.attempts(result._number)]

    wrong = {n for n in range(40) if n % 10 in {1, 2}}
    if batch is None:
        assert rows(small) == [row for row in rows(full) if row[0] in wrong]
        assert [item.attempts for item in small.items()] == [item.attempts for item in full.items()]
    assert {row[0] for row in rows(small)} == wrong
    per_item = Counter(row[0] for row in rows(small))
    assert {row.seq: row.attempts for row in app.store.items(small._number) if row.seq in wrong} == dict(per_item)


def test_fewer_rows_stay_fewer_over_a_pause(app):
    """Of what is finished in a later pass, too, only the failures are kept; the numbers of the run are right."""
    tried = Counter()

    @outlast.stage(concurrency=2)
    def work(item):
        tried[item] += 1
        if item == 20 and tried[item] == 1:
            ending.now()
        return item

    job = outlast.Pipeline("p", work, app=app)
    with Ending("pause") as ending:
        assert job.run(range(1000), run_key="k", audit="failures", check=False).status == "paused"
        result = job.run(range(1000), run_key="k", audit="failures")
    assert (result.counts.succeeded, result.counts.total) == (1000, 1000)
    assert app.store.attempts(result._number) == []
