"""Jobs that do what no job should, to workers as people start them: `outlast worker`, its exit code, and its successor."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from labor import wait_until
from shells import Shell

JOBS = """
import asyncio, ctypes, os, resource, signal, sys, threading

import outlast

app = outlast.App("shop")
NOW = outlast.RetryPolicy(max_attempts=5, initial_delay=0, jitter=0)
job = app.job(retry=NOW)


def own(fn):
    return app.job(retry=NOW.replace(max_attempts=2), isolation="process")(fn)


@job
async def quick(n: int) -> int:
    return n


@job
def leaves() -> None:
    os._exit(7)


@job
def exits() -> None:
    sys.exit(3)


@job
async def exits_too() -> None:
    raise SystemExit(3)


@job
async def interrupts() -> None:
    raise KeyboardInterrupt


@job
def starts() -> str:
    "A thread of its own that exits is nobody's end but its own."
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()
    return "done"


@job
def forks() -> str:
    child = os.fork()
    if child:
        return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return "child"


@job
async def forks_too() -> str:
    child = os.fork()
    if child:
        return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    raise ValueError("child")


@own
def eats() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return len(bytearray(1 << 34))


@own
def is_killed() -> None:
    "As by a system that has no memory left."
    os.kill(os.getpid(), signal.SIGKILL)


@job
async def blocks() -> str:
    threading.Event().wait(1.5)
    return "done"


place = outlast.Guard(retry=None, limit=outlast.Limit("one at a time", concurrency=1, shared=True))


@app.job(queue="narrow", retry=NOW, guard=place)
def keeps_a_place(n: int) -> int:
    "Ends its process the first time, with the only place of its limit and of its queue."
    if n == 0 and outlast.current().attempt == 1:
        os._exit(7)
    return n


@job
def grips(fifo: str) -> str:
    "Holds the lock of the interpreter until somebody writes, the first time."
    if outlast.current().attempt == 1:
        file = os.open(fifo, os.O_RDWR)
        print("gripping", flush=True)
        ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)
    return f"by {os.getpid()}"
"""


@pytest.fixture(params=["sqlite", "postgres"])
def shell(request, tmp_path):
    made = Shell(tmp_path, {"jobs.py": JOBS})
    if request.param == "postgres":
        name = f"hostile_{re.sub('[^a-z]', '_', request.node.originalname)[:40]}"
        made.env["OUTLAST_STORE"] = request.getfixturevalue("postgres_server").database(name).dsn
    return made


def enqueue(shell, *lines):
    return {line.partition(" ")[0]: shell.json(f"enqueue jobs.py:{line}")["id"] for line in lines}


def shown(shell, ids):
    return {name: shell.json(f"jobs show {id_}") for name, id_ in ids.items()}


def story(job):
    return [attempt["outcome"] for attempt in job["history"]]


@pytest.mark.timeout(240)
def test_jobs_that_end_their_process_or_try_to(shell):
    """
    D-16: the worker ends with the job's own code, its successor goes on; the third time the job is poison. Those that only
    raise something that ends programs have failed, and the worker goes on. Others are done, with at most two crashes.
    """
    ids = enqueue(shell, "exits", "exits_too", "interrupts", "starts", "leaves")
    others = [shell.json(f"enqueue jobs.py:quick --arg n={n}")["id"] for n in range(3)]
    codes = []
    while not codes or codes[-1] not in {0, 3}:
        codes.append(shell("worker jobs.py:app --until-idle").returncode)
        assert len(codes) < 9, codes
    assert codes == [7, 7, 7, 3]
    jobs = shown(shell, ids)
    assert (jobs["leaves"]["status"], story(jobs["leaves"])) == ("failed", ["crashed"] * 3)
    assert (jobs["leaves"]["error_class"], jobs["leaves"]["stop_reason"]) == ("poison", "poison")
    for name, said in (("exits", "sys.exit: 3"), ("exits_too", "sys.exit: 3"), ("interrupts", "KeyboardInterrupt")):
        assert (jobs[name]["status"], said in jobs[name]["error"]) == ("failed", True), name
    for job in (jobs["starts"], *(shell.json(f"jobs show {id_}") for id_ in others)):
        crashes = job["crashes"]
        assert (job["status"], story(job)) == ("succeeded", ["crashed"] * crashes + ["succeeded"])
        assert (crashes <= 2, job["attempts"]) == (True, crashes + 1)
    assert shell.json("jobs workers") == []


@pytest.mark.timeout(240)
def test_jobs_that_fork_block_the_loop_eat_memory_and_are_killed(shell):
    """One worker deals with all of them, ends with 3, and each is on record once; a child that comes back from a job is no worker."""
    ids = enqueue(shell, "forks", "forks_too", "eats", "is_killed", "blocks", "quick --arg n=1")
    done = shell("worker jobs.py:app --until-idle")
    assert done.returncode == 3, done.stderr
    jobs = shown(shell, ids)
    results = {"forks": "0", "forks_too": "0", "blocks": "done", "quick": 1}
    assert {name: jobs[name]["result"] for name in results} == results
    assert [story(jobs[name]) for name in results] == [["succeeded"]] * len(results)
    assert ("MemoryError" in str(jobs["eats"]["history"]), set(story(jobs["eats"]))) == (True, {"failed"})
    # The child of the job was killed, not the worker: that is an attempt like any other, and two of them are all there are.
    assert (story(jobs["is_killed"]), jobs["is_killed"]["crashes"]) == (["crashed"] * 2, 0)
    assert jobs["is_killed"]["error_class"] == "worker_lost"


@pytest.mark.failure(13)
@pytest.mark.timeout(240)
def test_a_job_that_dies_with_the_only_place_gives_it_back(shell):
    """In a queue of which one runs at a time, under a limit of one that all processes share: its job and those behind it are done."""
    ids = [shell.json(f"enqueue jobs.py:keeps_a_place --arg n={n}")["id"] for n in range(3)]
    codes = [shell("worker jobs.py:app --queue narrow=1 --until-idle").returncode for _ in range(2)]
    jobs = [shell.json(f"jobs show {id_}") for id_ in ids]
    assert (codes, [job["result"] for job in jobs]) == ([7, 0], [0, 1, 2])
    assert [story(job) for job in jobs] == [["crashed", "succeeded"], ["succeeded"], ["succeeded"]]


@pytest.mark.failure(9, 11)
@pytest.mark.timeout(240)
def test_a_job_that_holds_the_interpreter_of_a_worker(shell):
    """
    No thread of its process can beat: others take the worker for dead, with `--fast` after four seconds. Its job runs
    elsewhere, what it says late is refused, it registers again, goes on, and ends with 0.
    """
    fifo = shell.folder / "fifo"
    os.mkfifo(fifo)
    ids = enqueue(shell, f"grips --arg fifo={fifo}")
    first = shell.start("worker jobs.py:app --fast --drain 100s")
    assert first.stdout.readline() == "gripping\n"
    second = shell.start("worker jobs.py:app --fast --drain 100s")
    wait_until(lambda: shown(shell, ids)["grips"]["status"] == "succeeded", "the other one has done it")
    Path(fifo).write_text("x")
    wait_until(lambda: len(shell.json("jobs workers")) == 2, "the first one has registered again")
    second.send_signal(signal.SIGTERM)
    _, told = second.communicate(timeout=200)
    more = enqueue(shell, "quick --arg n=5")
    wait_until(lambda: shown(shell, more)["quick"]["status"] == "succeeded", "the first one goes on")
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=200)
    assert (first.returncode, second.returncode) == (0, 0), (said, told)
    assert "the lease of this worker was taken over: 1 job is lost to it; it registers again" in said
    assert f"the worker {socket.gethostname()}, process {first.pid} is gone: 1 job was taken from it" in told
    (job,) = shown(shell, ids).values()
    assert (story(job), job["crashes"], job["result"]) == (["crashed", "succeeded"], 1, f"by {second.pid}")
