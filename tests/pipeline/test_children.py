"""Stages in child processes: CPU work on all cores, hard timeouts, and crashes that concern one item only."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import laborious
import outlast
from outlast.pipeline.home import DEFAULT
from outlast.testing import Faults
from outlast.testing import run as trial

ONCE = outlast.RetryPolicy(max_attempts=1)
TWICE = outlast.RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def pipeline(fn, **options):
    stage = outlast.stage(isolation="process", **options)(fn)
    return outlast.Pipeline("p", stage, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)


def ended(child, seconds=10.0):
    """Whether a process has ended, at the latest after so many seconds."""
    return bool(select.select([child], [], [], seconds)[0])


def test_a_stage_runs_in_child_processes_side_by_side(tmp_path):
    """D-9: two attempts are under way at the same moment, in two processes that are not this one."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    result = pipeline(laborious.meet, concurrency=2).run([(str(meeting), n, 2) for n in range(2)])
    children = {*result.outputs()}
    assert len(children) == 2
    assert os.getpid() not in children


def test_children_are_used_again_for_the_next_items():
    """A child costs something once, not for each item."""
    result = pipeline(laborious.square, concurrency=2).run(range(50))
    assert [value for value, _ in result.outputs()] == [n * n for n in range(50)]
    assert len({child for _, child in result.outputs()}) <= 4


@pytest.mark.parametrize("how", ["segfault", "exit", "killed", "sys.exit"])
def test_a_child_that_dies_concerns_only_its_item(how):
    """S3-38, S3-01: it is a classified failure of that item, tried again as its policy says; the others never notice."""
    result = pipeline(laborious.die, concurrency=2, retry=TWICE).run(["a", how, "b", "c"])
    assert list(result.outputs()) == ["a", "b", "c"]
    (letter,) = result._store().letters()
    assert (letter.error_class, letter.attempts, result._decode(letter.payload)) == ("worker_lost", 2, how)


@pytest.mark.parametrize("how", ["cancelled", "own"])
def test_what_is_no_exception_in_a_child_is_that_items_failure(how):
    """breaker H1: a leaked cancellation, or a class of somebody who wanted not to be caught, ends neither the run nor the program."""
    result = pipeline(laborious.die, concurrency=2, retry=ONCE).run(["a", how, "b", "c"])
    assert list(result.outputs()) == ["a", "b", "c"]
    (letter,) = result._store().letters()
    assert (letter.error_type, result._decode(letter.payload)) == ("RuntimeError", how)


def test_an_item_that_needs_too_much_memory_fails_alone():
    """S3-38: out of memory on one large item; with a bound on its memory it is a MemoryError, and no reason to stop."""
    result = pipeline(laborious.die, concurrency=1, retry=ONCE).run(["a", "memory", "b"])
    assert list(result.outputs()) == ["a", "b"]
    (letter,) = result._store().letters()
    assert (letter.error_type, letter.error_class) == ("MemoryError", outlast.classify(MemoryError()).error_class)


def test_a_batch_that_kills_its_child_is_divided():
    """One item of a batch is deadly: after the retries the halves tell which, and the others come through."""
    stage = outlast.stage(isolation="process", batch=8, retry=ONCE)(laborious.die_together)
    job = outlast.Pipeline("p", stage, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    result = job.run(["a", "b", "c", "segfault", "d", "e", "f", "g"])
    assert list(result.outputs()) == ["a", "b", "c", "d", "e", "f", "g"]
    (letter,) = result._store().letters()
    assert (letter.error_class, result._decode(letter.payload)) == ("worker_lost", "segfault")


def test_a_timeout_kills_and_the_others_go_on():
    """semantics 33: what hangs is dead when its time is up; nothing is left running, and its slot is free."""
    result = pipeline(laborious.hang, concurrency=1, retry=ONCE, timeout=0.5).run(["a", "hang", "b"])
    assert list(result.outputs()) == ["a", "b"]
    (letter,) = result._store().letters()
    assert letter.error_class == "timeout"


def test_what_the_code_says_in_a_child_is_on_record():
    """It knows its item, run, stage and attempt there; spending and warnings come back, also of an attempt that failed."""
    result = pipeline(laborious.report, retry=TWICE).run(["a", "once"], item_key=str)
    assert list(result.outputs()) == [True, True]
    first, second = result.items()
    assert first.spent == {"tokens": 3.0, "usd": 0.5}
    assert first.warnings == ("report a ('a',) attempt 1",)
    assert second.spent == {"tokens": 6.0, "usd": 1.0}
    assert second.warnings == ("report once ('once',) attempt 1", "report once ('once',) attempt 2")
    assert result.spent == {"tokens": 9.0, "usd": 1.5}


def test_an_attempt_that_was_put_off_in_a_child_has_cost_something(tmp_path):
    """Snooze costs no attempt, and what was spent before it is not forgotten."""
    result = pipeline(laborious.put_off_once, retry=ONCE).run([str(tmp_path / "mark")])
    assert list(result.outputs()) == [1]
    assert result.spent == {"tokens": 6.0}


def test_a_batch_in_a_child_knows_its_items_and_splits_what_it_spends():
    """As in this process."""
    stage = outlast.stage(isolation="process", batch=3)(laborious.report_together)
    result = outlast.Pipeline("p", stage).run(["a", "b", "c"], item_key=str)
    assert {*result.outputs()} == {"report_together ('a', 'b', 'c')"}
    assert [item.spent["tokens"] for item in result.items()] == [2.0, 1.0, 1.0]


def test_what_cannot_be_pickled_is_told():
    """In clear words, without the value: an input before the child is asked, an output after."""
    job = pipeline(laborious.unpicklable)
    result = trial(job, [threading.Lock(), "output", "fine"])
    assert list(result.outputs()) == ["fine"]
    errors = [item.error for item in result.items(status="dlq")]
    assert "cannot be sent to a child process: argument 1 (a value of type lock) cannot be pickled" in errors[0]
    assert "the result cannot leave its child process: a value of type lock that pickle does not take" in errors[1]
    assert {letter.error_class for letter in result._store().letters()} == {"code_error"}


def test_a_function_that_no_child_could_import_is_refused_at_once():
    """Where it is declared, and not at the first item."""

    def inner(item):
        return item

    with pytest.raises(outlast.ConfigurationError, match="made inside of another function"):
        outlast.stage(isolation="process")(inner)

    async def fetch(item):
        return item

    with pytest.raises(outlast.ConfigurationError, match="no isolation for the coroutine function"):
        outlast.stage(isolation="process")(fetch)


def test_resources_of_the_run_do_not_go_to_children():
    """What the run opens lives in its own process: said where the stage is declared, with a way out."""

    @contextmanager
    def open_client():
        yield 1

    def fn(item, client=outlast.use(open_client)):
        return client

    fn.__qualname__ = "fn"
    with pytest.raises(outlast.ConfigurationError, match=r"use\(\) for client.*functools\.cache"):
        outlast.stage(isolation="process")(fn)


def test_scripted_faults_strike_in_front_of_the_child():
    """A script works for a stage in processes as for any other."""
    result = trial(pipeline(laborious.square, retry=TWICE), [3], faults=[Faults("square", TimeoutError(), None)])
    assert [(item.value[0], item.attempts) for item in result.items()] == [(9, 2)]


def test_a_resource_is_opened_in_the_child_by_the_function_itself():
    """The way out that the message names works: once for each child."""
    result = pipeline(laborious.use_client).run([1, 2])
    assert list(result.outputs()) == [True, True]


PROGRAM = """
    import sys
    import laborious
    import outlast

    hang = outlast.stage(isolation="process", concurrency=2)(laborious.hang_and_tell)
    if __name__ == "__main__":
        outlast.Pipeline("p", hang).run([sys.argv[1]] * 2, run_key="k", check=False)
"""


@contextmanager
def program(folder):
    """A run whose two children hang, as its own process in its own group."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    os.mkfifo(folder / "told")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(laborious.__file__).parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "program.py", str(folder / "told")],
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    children = []
    try:
        while len(children) < 2:
            with (folder / "told").open() as told:
                children += [os.pidfd_open(int(number)) for number in told.read().split()]
        yield process, children
    finally:
        process.kill()
        process.wait()
        for child in children:
            os.close(child)


def test_kill_9_of_the_program_leaves_no_child(tmp_path):
    """The children of a run die with it, whatever they do."""
    with program(tmp_path) as (process, children):
        process.kill()
        process.wait()
        assert all(ended(child) for child in children)


def test_ctrl_c_winds_down_and_a_second_one_ends_at_once(tmp_path):
    """C-22: the first waits for what is under way, the second does not; no child is left, and both items are pending."""
    with program(tmp_path) as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        assert not any(ended(child, 0.5) for child in children)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(20)
        assert all(ended(child) for child in children)
    record = DEFAULT.store.find_run("p", "k")
    assert (record.status, record.counts.total, record.counts.succeeded) == ("interrupted", 2, 0)
