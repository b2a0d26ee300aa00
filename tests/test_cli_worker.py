"""`outlast worker` as a person, a script and an init system use it: what it shows, what it leaves, and its exit code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import forked
import outlast
from labor import wait_until
from outlast.cli.worker import _ending, _tell, _Watched
from outlast.display.watch import Lines
from outlast.display.worker import WorkerNow, lines, picture
from outlast.jobs.worker import WorkerView, WorkResult
from outlast.store import open_store
from outlast.testing import FaultProxy
from shells import Shell
from stores import sql
from tables import table
from terminal import Terminal

JOBS = """
import asyncio
import os
import signal
import sys
import threading

import outlast

app = outlast.App("shop")
other = outlast.App("other")


@app.job
def double(n: int) -> int:
    return 2 * n


@app.job(queue="mail", retry=outlast.RetryPolicy(max_attempts=1))
async def send(to: str) -> None:
    raise ValueError(f"no such address: {to}")


@app.job
def read() -> str:
    print("reading", flush=True)
    return sys.stdin.read()


@app.job
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job
async def wait() -> None:
    print("waiting", flush=True)
    await asyncio.Event().wait()


@app.job(timeout=0.2, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=1000, max_delay=None))
def late() -> str:
    return sys.stdin.read()


@app.job
def block() -> None:
    print("blocking", flush=True)
    threading.Event().wait()


@app.job(timeout=0.2, retry=None)
def once() -> None:
    print("once", flush=True)
    threading.Event().wait()


@app.job
async def ignore() -> None:
    print("ignoring", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def stay(what: str) -> None:
    print("undoing", flush=True)
    threading.Event().wait()


@app.job(retry=None)
def undone() -> None:
    outlast.current().compensate(stay, "a")
    raise ValueError("no")


@app.job
async def elsewhere() -> None:
    await asyncio.to_thread(lambda: (print("elsewhere", flush=True), threading.Event().wait()))
"""


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"jobs.py": JOBS})


@pytest.fixture(params=["sqlite", "postgres"])
def everywhere(request, shell):
    """The shell, on each of the two databases in turn."""
    if request.param == "postgres":
        name = f"worker_{re.sub('[^a-z]', '_', request.node.originalname)[:40]}"
        shell.env["OUTLAST_STORE"] = request.getfixturevalue("postgres_server").database(name).dsn
    return shell


def enqueue(shell, line):
    return shell.json(f"enqueue jobs.py:{line}")["id"]


# --- until idle ---


def test_a_worker_does_what_is_due_and_says_what_it_came_to(everywhere):
    """Exit code 3: idle, and a job failed. What is due later is left, and when is reported."""
    shell = everywhere
    doubled = enqueue(shell, "double --arg n=21")
    sent = enqueue(shell, "send --arg to=ann")
    enqueue(shell, "double --arg n=1 --delay 1h")
    done = shell("worker jobs.py:app --until-idle")
    assert done.returncode == 3
    said = done.stdout.splitlines()
    assert said[:2] == ["1 succeeded   1 failed   0 requeued", "Idle: nothing is due. 1 job failed permanently."]
    assert re.fullmatch(r"1 job is due later, the first at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", said[2])
    first, *_, problems, groups = done.stderr.splitlines()
    kinds = "block, die, double, elsewhere, ignore, late, once, read, send, undone, wait"
    assert first == f"Worker of shop: {kinds}; every queue; 64 at a time. Ctrl-C ends it."
    assert f"ERROR job {sent} (send) failed after attempt 1 of 1 with ValueError" in done.stderr
    assert problems == "Which have failed: outlast jobs list --status failed"
    assert groups == "As a few problems: outlast dlq groups"
    assert (shell.json(f"jobs show {doubled}")["status"], shell.json(f"jobs show {doubled}")["result"]) == (
        "succeeded",
        42,
    )
    assert (
        shell.json(f"jobs show {sent}")["history"][0]["stop_reason"] == shell.json(f"jobs show {sent}")["stop_reason"]
    )


def test_where_a_job_failed_is_in_the_log_and_in_what_is_shown(everywhere):
    """The place beside the attempts, all of it on demand, with files of this folder by the names that they have here."""
    shell = everywhere
    sent = enqueue(shell, "send --arg to=ann")
    done = shell("worker jobs.py:app --until-idle")
    line = 1 + next(
        n for n, text in enumerate((shell.folder / "jobs.py").read_text().splitlines()) if "ValueError" in text
    )
    (frame,) = [text for text in done.stderr.splitlines() if text.startswith("  File ")]
    assert frame == f'  File "jobs.py", line {line}, in send'
    place = f"raised       jobs.py:{line} in send (attempt 1)"
    shown = shell(f"jobs show {sent}")
    assert place in shown.stdout.splitlines()
    assert "Traceback" not in shown.stdout
    (command,) = [text for text in shown.stderr.splitlines() if text.endswith("--traceback")]
    assert command == f"How it came to that place: outlast jobs show {sent} --traceback"
    whole = shell(f"jobs show {sent} --traceback").stdout
    assert f"\nattempt 1\nTraceback (most recent call last):\n{frame}\n" in whole
    (attempt,) = shell.json(f"jobs show {sent}")["history"]
    assert attempt["place"] == f"{shell.folder}/jobs.py:{line} in send"
    assert attempt["traceback"].splitlines()[1] == f'  File "{shell.folder}/jobs.py", line {line}, in send'
    letter = shell.json(f"jobs show {sent}")["dead_letter"]
    told = shell(f"dlq show {letter}")
    assert place in told.stdout.splitlines()
    assert f"Its job: outlast jobs show {sent} --traceback" in told.stderr.splitlines()
    assert shell.json(f"dlq show {letter}")["history"][0]["traceback"] == attempt["traceback"]
    doubled = enqueue(shell, "double --arg n=21")
    shell("worker jobs.py:app --until-idle")
    assert "No attempt has a traceback on record." in shell(f"jobs show {doubled} --traceback").stderr


def test_a_requeued_job_succeeds_and_its_dead_letter_is_resolved(everywhere):
    """From a failure to its end with the commands that were printed on the way."""
    shell = everywhere
    sent = enqueue(shell, "send --arg to=ann")
    shell("worker jobs.py:app --until-idle")
    source = (shell.folder / "jobs.py").read_text()
    (shell.folder / "jobs.py").write_text(source.replace("    raise ValueError", "    return\n    raise ValueError"))
    (command,) = [line for line in shell(f"jobs show {sent}").stderr.splitlines() if "jobs requeue" in line]
    assert shell(command.partition("outlast ")[2]).returncode == 0
    assert shell.json("worker jobs.py:app --until-idle")["succeeded"] == 1
    assert shell.json(f"jobs show {sent}")["attempts_in_all"] == 2
    (letter,) = shell.json("dlq list --status all")
    assert letter["status"] == "resolved"
    assert "resolved     its job has succeeded" in shell(f"dlq show {letter['id']}").stdout.splitlines()


def test_a_worker_serves_the_queues_that_it_was_given(shell):
    """A number behind a queue bounds it; what stays behind is told."""
    enqueue(shell, "double --arg n=1")
    enqueue(shell, "double --arg n=2 --queue press")
    shell("jobs pause press")
    assert shell.json("worker jobs.py:app --until-idle --queue mail=2 --queue slow --concurrency 4")["succeeded"] == 0
    others = shell("worker jobs.py:app --until-idle --queue mail")
    assert (others.stdout.splitlines()[1:], len(others.stderr.splitlines())) == (["Idle: nothing is due."], 1)
    done = shell("worker jobs.py:app --until-idle --queue default --queue press=1")
    assert done.stdout.splitlines()[0] == "1 succeeded   0 failed   0 requeued"
    assert "queues default, press (1); 64 at a time" in done.stderr
    assert done.stderr.splitlines()[-1] == "1 job waits in queues that are paused: outlast jobs resume press"


def test_jobs_that_the_program_does_not_know_are_left_and_told(shell):
    """A worker of older code fails nothing that newer code could do."""
    enqueue(shell, "double --arg n=1")
    source = (shell.folder / "jobs.py").read_text()
    (shell.folder / "older.py").write_text(source.replace("def double", "def triple"))
    done = shell("worker older.py:app --until-idle")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "0 succeeded   0 failed   0 requeued")
    assert done.stderr.splitlines()[-1] == "1 job is left: of kinds, or of a version, that this program does not know."


def test_a_document_tells_a_program_all_of_it(shell):
    """With --json: nothing else on standard output, and nothing on standard error."""
    enqueue(shell, "double --arg n=1")
    done = shell("worker jobs.py:app --until-idle --json")
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "succeeded": 1,
        "failed": 0,
        "requeued": 0,
        "lost": 0,
        "released": 0,
        "cancelled": 0,
        "cut_off": 0,
        "later": 0,
        "next_run_at": None,
        "signal": None,
        "exit_code": 0,
    }


@table(
    ("line", "said"),
    [
        ("jobs.py", ["expected jobs.py to say which app, as in jobs.py:app. It has the apps app, other."]),
        ("jobs.py:double", ["expected jobs.py:double to be an App, got: a Job. It has the apps app, other."]),
        ("jobs.py:app --app shop", ["expected no --app with jobs.py:app, which says itself what it is called."]),
        (
            "jobs.py:app --queue a --queue a --queue b=x --queue c=9 --concurrency 4 --drain soon",
            [
                "expected --queue a once, got: twice.",
                "expected --queue to be a name, or one with a number behind it as in mail=4, got: 'b=x'.",
                "expected --queue c to have at most --concurrency (4), got: 9. Raise --concurrency, which bounds all of them together.",
                "expected --drain to be a duration such as 20s or 5m, or a number of seconds, got: 'soon'.",
            ],
        ),
        ("jobs.py:app --concurrency 0", ["expected --concurrency to be at least 1, got: 0."]),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path, line, said):
    """Exit code 2, and nothing was begun."""
    done = Shell(tmp_path, {"jobs.py": JOBS})(f"worker {line}")
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (2, "", said)


def test_a_worker_of_an_app_without_jobs_does_pipeline_files(tmp_path):
    """It is told, as it may be that nobody has imported them."""
    done = Shell(tmp_path, {"jobs.py": JOBS})("worker jobs.py:other --until-idle")
    said = done.stderr.splitlines()
    assert (done.returncode, said[0]) == (
        0,
        "jobs.py:other has no jobs of its own. If it should: import the modules that make them with @app.job where the app is made.",
    )
    assert said[1] == "Worker of other: pipeline files only; every queue; 64 at a time. Ctrl-C ends it."


def test_a_worker_may_run_in_a_fork_of_a_process_that_has_loaded_it(shell):
    """Only a copy of a worker's own process is no worker: what a server has loaded before it forks does not matter."""
    ids = [enqueue(shell, f"double --arg n={n}") for n in range(3)]
    program = (
        "import os, outlast.jobs.doors\nfrom jobs import app\n"
        "if os.fork() == 0:\n    print(app.work(until_idle=True).succeeded, flush=True)\n    os._exit(0)\nos.wait()\n"
    )
    done = forked.run([sys.executable, "-c", program], cwd=shell.folder, env=shell.env, timeout=200)
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert [shell.json(f"jobs show {id_}")["status"] for id_ in ids] == ["succeeded"] * 3


# --- metrics ---


def test_a_worker_serves_its_metrics(shell):
    """U-22: at a port of its own choice, on this host only, as long as it runs; with no line in the jobs' module."""
    process, _ = begun(shell, "--metrics-port 0 --no-progress", "read")
    address = re.fullmatch(r"Metrics: (http://127\.0\.0\.1:(\d+)/metrics)\n", process.stderr.readline())
    with urllib.request.urlopen(address[1], timeout=200) as answer:
        page = answer.read().decode()
    assert 'outlast_jobs_processing{app="shop",queue="default"} 1.0' in page
    assert 'outlast_workers_alive{app="shop"} 1.0' in page
    assert 'outlast_jobs_total{kind="read",status="claimed"} 1.0' in page
    taken = shell(f"worker jobs.py:app --until-idle --metrics-port {address[2]}")
    assert (taken.returncode, taken.stdout) == (2, "")
    assert taken.stderr == (
        f"expected --metrics-port {address[2]} to be free at 127.0.0.1, an address of this host, got: Address already in use. "
        "0 takes a port that is free.\n"
    )
    process.send_signal(signal.SIGTERM)
    assert left(process, "text").returncode == 0


def test_metrics_without_their_extra_are_refused(shell):
    """The worker does not begin without what was asked for."""
    (shell.folder / "prometheus_client.py").write_text(
        "raise ModuleNotFoundError('No module', name='prometheus_client')\n"
    )
    done = shell("worker jobs.py:app --until-idle --metrics-port 0", PYTHONPATH=str(shell.folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--metrics-port needs an extra: pip install 'outlast[metrics]'.\n"


def test_progress_is_shown_unless_a_document_was_asked_for(shell):
    """In a file too; the help, the page and the unit for systemd say the same."""
    shown = {
        line: shell(f"worker jobs.py:app --until-idle {line}").stderr.startswith("Worker of shop: ")
        for line in ("", "--progress", "--no-progress", "--json", "--json --progress")
    }
    assert [line for line, told in shown.items() if told] == ["", "--progress"]
    said = " ".join(shell("worker --help", COLUMNS="200").stdout.replace("│", " ").split())
    assert "Default: shown, unless --json is given." in said


# --- signals ---


SAYS = {
    "read": "reading",
    "wait": "waiting",
    "block": "blocking",
    "ignore": "ignoring",
    "elsewhere": "elsewhere",
    "once": "once",
    "undone": "undoing",
}


def begun(shell, line, kind, queue="default"):
    """A worker whose only job has begun."""
    id_ = enqueue(shell, f"{kind} --queue {queue}")
    process = shell.start(f"worker jobs.py:app --queue {queue} {line}")
    assert process.stdout.readline() == f"{SAYS[kind]}\n"
    return process, id_


def left(process, stdin=None):
    out, err = process.communicate(stdin, timeout=200)
    return SimpleNamespace(returncode=process.returncode, out=out, err=err)


def test_after_a_signal_running_jobs_end_and_no_other_begins(shell):
    """Exit code 0: all work is finished."""
    process, id_ = begun(shell, "--drain 100s --concurrency 1", "read")
    behind = enqueue(shell, "double --arg n=1")
    process.send_signal(signal.SIGTERM)
    done = left(process, "text")
    assert (done.returncode, done.out.splitlines()) == (
        0,
        ["1 succeeded   0 failed   0 requeued", "Ended by SIGTERM; all work is finished or given back."],
    )
    assert shell.json(f"jobs show {id_}")["result"] == "text"
    assert shell.json(f"jobs show {behind}")["status"] == "queued"


def test_what_does_not_end_in_time_is_given_back_uncharged(everywhere):
    """Exit code 0, because nothing is lost; the attempt is on record as released."""
    shell = everywhere
    process, id_ = begun(shell, "--drain 0 --json", "wait")
    process.send_signal(signal.SIGINT)
    done = left(process)
    document = json.loads(done.out)
    assert (done.returncode, document["released"], document["signal"]) == (0, 1, "SIGINT"), done.err
    shown = shell.json(f"jobs show {id_}")
    assert (shown["status"], shown["attempts"]) == ("queued", 0)
    assert [row["outcome"] for row in shown["history"]] == ["released"]
    assert shown["error"] is None  # nothing failed
    said = shell(f"jobs show {id_}").stdout.splitlines()
    assert "released     given back by its worker, which is ending; nothing failed, and it counts as no attempt" in said
    assert not [line for line in said if line.startswith("error ")]


def test_a_job_that_is_given_back_keeps_the_error_of_its_last_failure(everywhere):
    """Its worker died, and the next one gave it back: the two are not told as one."""
    shell = everywhere
    process, id_ = begun(shell, "", "wait")
    process.kill()
    left(process)
    process = shell.start("worker jobs.py:app --drain 0")
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    left(process)
    shown = shell.json(f"jobs show {id_}")
    assert (shown["error_type"], shown["error"]) == (
        "WorkerLost",
        "its worker ended or stood still while it ran this job",
    )
    assert [row["outcome"] for row in shown["history"]] == ["crashed", "released"]


def test_a_worker_of_this_machine_that_was_killed_is_not_alive(everywhere):
    """Its lease lasts on; the process is seen to be gone."""
    shell = everywhere
    process, id_ = begun(shell, "", "wait")
    assert shell("jobs workers --here").returncode == 0
    process.kill()
    left(process)
    done = shell("jobs workers --here")
    assert (done.returncode, "no; another worker takes its jobs over" in done.stdout) == (1, True)
    assert done.stderr.startswith("No worker is running. Start one: outlast worker TARGET")
    assert [worker["alive"] for worker in shell.json("jobs workers")] == [False]
    assert "worker       one that is gone" in shell(f"jobs show {id_}").stdout


def test_code_that_goes_on_after_the_drain_is_cut_off(shell):
    """
    The exit code says that it was, and which signal has ended the worker. A second one does not wait for the drain; which
    of two that come together is heard first is not said. All of them at once: each takes the five seconds of a farewell.
    """
    ends = {
        "thread": ("block", "0", [signal.SIGTERM], {143}),
        "signal": ("block", "0", [signal.SIGINT], {130}),
        "task": ("ignore", "0", [signal.SIGTERM], {143}),
        "twice": ("block", "1000s", [signal.SIGTERM, signal.SIGINT], {130, 143}),
    }
    started = {queue: begun(shell, f"--drain {drain}", kind, queue) for queue, (kind, drain, _, _) in ends.items()}
    for queue, (process, _) in started.items():
        for number in ends[queue][2]:
            process.send_signal(number)
    for queue, (process, id_) in started.items():
        done = left(process)
        assert done.returncode in ends[queue][3], queue
        assert done.out.splitlines()[-1] == "1 job was cut off: its code had not ended. Another worker does it again."
        shown = shell.json(f"jobs show {id_}")
        assert (shown["status"], shown["attempts"], shown["history"][0]["outcome"]) == ("queued", 0, "released")


@pytest.mark.parametrize(
    ("cut_off", "ended", "said"),
    [
        (1, {}, "Another worker does it again."),
        (3, {}, "Other workers do them again."),
        (1, {"succeeded": 1}, "It has succeeded with its own transaction before, and is not done again."),
        (1, {"failed": 1}, "It has failed for good before, and is not done again."),
        (1, {"cancelled": 1}, "It was cancelled before, and is not done again."),
        (3, {"succeeded": 1}, "1 has succeeded with its own transaction before; other workers do the rest again."),
        (2, {"failed": 1}, "1 has failed for good before; another worker does the other one again."),
        (2, {"failed": 2}, "2 have failed for good before; none of them is done again."),
        (
            2,
            {"cancelled": 1, "failed": 1},
            "1 has failed for good before, 1 was cancelled before; none of them is done again.",
        ),
    ],
)
def test_a_job_that_has_ended_before_is_not_said_to_be_done_again(capsys, cut_off, ended, said):
    """Its code was cut off all the same; what is on record stands."""
    _tell(WorkResult(cut_off=cut_off), signal.SIGTERM, ended)
    cut = "1 job was cut off: its" if cut_off == 1 else f"{cut_off} jobs were cut off: their"
    assert capsys.readouterr().out.splitlines() == [
        "0 succeeded   0 failed   0 requeued",
        f"{cut} code had not ended. {said}",
    ]


def test_jobs_that_were_cut_off_while_they_were_undone_are_told_apart(capsys):
    """They have failed before, and are still to be undone."""
    _tell(WorkResult(cut_off=3), signal.SIGTERM, {}, undoing=2)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "1 job was cut off: its code had not ended. Another worker does it again.",
        "2 jobs were cut off while they were being undone: what undoes them had not ended. Other workers undo them.",
    ]


def test_a_job_that_has_failed_is_not_said_to_be_done_again_when_its_code_is_cut_off(shell):
    """It has timed out, and nothing ends its thread. Exit code 143: that was cut off all the same."""
    process, id_ = begun(shell, "--drain 0", "once")
    wait_until(lambda: shell.json(f"jobs show {id_}")["status"] == "failed", "its time is up")
    process.send_signal(signal.SIGTERM)
    done = left(process)
    assert (done.returncode, done.out.splitlines()) == (
        143,
        [
            "0 succeeded   1 failed   0 requeued",
            "1 job was cut off: its code had not ended. It has failed for good before, and is not done again.",
        ],
    )


def test_code_that_undoes_a_job_and_is_cut_off_is_told_and_counts_as_a_crash(shell):
    """Exit code 143. The job is not given back while the code runs: who takes it over puts the crash on record first."""
    process, id_ = begun(shell, "--drain 0", "undone")
    process.send_signal(signal.SIGTERM)
    done = left(process)
    assert (done.returncode, done.out.splitlines()) == (
        143,
        [
            "0 succeeded   1 failed   0 requeued",
            "1 job was cut off while it was being undone: what undoes it had not ended. Another worker undoes it.",
        ],
    )
    (before,) = shell.json(f"jobs show {id_}")["compensations"]
    with shell.start("worker jobs.py:app") as process:
        assert process.stdout.readline() == "undoing\n"
        (after,) = shell.json(f"jobs show {id_}")["compensations"]
        process.kill()
    assert (before["crashes"], after["crashes"], after["attempts"]) == (0, 1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_after_the_last_word_change_no_exit_code(shell, number):
    """Again and again while the process ends, in which the interpreter no longer hears them. A real one: it is its end that counts."""
    here = str(Path(outlast.__file__).parent.parent)
    for _ in range(4):
        with shell.start("worker jobs.py:app --progress", PYTHONPATH=here) as process:
            assert process.stderr.readline().startswith("Worker of shop: ")
            process.send_signal(signal.SIGTERM)
            while not (said := process.stdout.readline()).startswith("Ended by"):
                assert said
            while process.poll() is None:
                process.send_signal(number)
        assert process.returncode == 0


def test_a_thread_that_a_job_has_left_behind_does_not_keep_the_worker(shell):
    """The interpreter would wait for it. Exit code 143: the job was cancelled, but its thread was cut off; it is done again, uncharged."""
    process, id_ = begun(shell, "--drain 0", "elsewhere")
    process.send_signal(signal.SIGTERM)
    done = left(process)
    cut = "1 job was cut off: its code had not ended. Another worker does it again."
    assert (done.returncode, done.out.splitlines()[-1]) == (143, cut)
    shown = shell.json(f"jobs show {id_}")
    assert (shown["status"], shown["attempts"], shown["history"][0]["outcome"]) == ("queued", 0, "released")


def test_an_end_that_cannot_be_recorded_is_an_error(shell):
    """Exit code 1, with the sentence why: a store that was deleted does not come back by itself."""
    process, _ = begun(shell, "", "read")
    shutil.rmtree(shell.folder / ".outlast")
    done = left(process, "text")
    assert (done.returncode, done.out) == (1, "")
    assert "was deleted, moved or replaced while it was open" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.fixture
def proxied(shell, postgres_server):
    """A shell whose store is behind a proxy, and that proxy."""
    database = postgres_server.database(f"worker_{shell.folder.name}".lower().replace("-", "_"))
    proxy = FaultProxy(database.socket).start()
    shell.env["OUTLAST_STORE"] = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database.name}"
    yield shell, proxy
    with suppress(OSError):  # the test has stopped it
        proxy.stop()


def test_a_signal_ends_a_worker_whose_store_is_away(proxied):
    """Exit code 1 and the number of jobs that are done again."""
    shell, proxy = proxied
    process, _ = begun(shell, "--drain 0s", "wait")
    proxy.stop()
    process.send_signal(signal.SIGTERM)
    done = left(process)
    assert (done.returncode, done.out) == (1, "")
    assert done.err.splitlines()[-1] == (
        "the end of 1 job is not on record: the worker was asked to stop while the store could not be used. This job will "
        "be run again by another worker."
    )
    assert "Traceback" not in done.err


def test_a_signal_ends_an_idle_worker_whose_store_is_away(proxied):
    """Exit code 0: it has nothing that could be lost."""
    shell, proxy = proxied
    process, _ = begun(shell, "--drain 0s", "read")
    process.stdin.write("text")
    process.stdin.close()
    process.stdin = None
    wait_until(lambda: not shell.json("jobs list --status processing"), "its job is on record")
    proxy.stop()
    process.send_signal(signal.SIGTERM)
    done = left(process)
    assert (done.returncode, done.out.splitlines()) == (
        0,
        ["1 succeeded   0 failed   0 requeued", "Ended by SIGTERM; all work is finished or given back."],
    )
    assert "Traceback" not in done.err


# --- what is seen ---


def test_a_terminal_shows_what_the_worker_does_and_how_it_ends(shell):
    """The line is gone when the worker is, and what it came to stays."""
    enqueue(shell, "read")
    enqueue(shell, "double --arg n=1 --delay 1h")
    command = ["-m", "outlast.cli", *shlex.split("worker jobs.py:app --concurrency 8 --drain 100s")]
    with Terminal(*command, folder=shell.folder, NO_COLOR="1") as terminal:
        terminal.read_until("1 of 8 processing   0 succeeded   0 failed   0 requeued")
        terminal.read_until("0 queued   1 due later, the next in 59 min")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.read_until("ending: waits for 1 job, at most 1 min 4")
        terminal.press("\x04")
        assert terminal.finish() == 0
        shown = [row for row in terminal.screen() if row]
    assert shown[-3:-1] == [
        "1 succeeded   0 failed   0 requeued",
        "Ended by SIGTERM; all work is finished or given back.",
    ]
    assert shown[-1].startswith("1 job is due later, the first at ")
    assert not [row for row in shown if "processing" in row]


def test_a_fast_worker_is_given_up_soon(shell):
    """Its lease lasts 4 seconds instead of 20."""
    process, _ = begun(shell, "--fast --drain 0", "wait")
    (one,) = shell.json("jobs workers")
    process.send_signal(signal.SIGTERM)
    assert (left(process).returncode, one["lease_ttl"], one["jobs"], one["alive"]) == (0, 4.0, 1, True)


def test_a_slot_that_stays_taken_is_seen(shell):
    """The attempt is on record, with why; its code goes on, and the worker says so until it has ended."""
    id_ = enqueue(shell, "late")
    command = ["-m", "outlast.cli", *shlex.split("worker jobs.py:app --until-idle")]
    with Terminal(*command, folder=shell.folder, width=120, NO_COLOR="1") as terminal:
        terminal.read_until("1 slot taken by code that was given up and does not end")
        (attempt,) = shell.json(f"jobs show {id_}")["history"]
        assert (attempt["outcome"], attempt["error"]) == ("timeout", "the attempt took longer than 0.2 s")
        assert shell.json(f"jobs show {id_}")["waits_for"] == [
            "Its time was up and its code still runs: it is not begun again before that has ended."
        ]
        terminal.press("\x04")
        assert terminal.finish() == 0
    assert shell.json(f"jobs show {id_}")["waits_for"] == ["No worker is running."]


BUSY = WorkerNow(
    app="shop\x1b[2J",
    elapsed=75.0,
    concurrency=64,
    processing=3,
    waiting=2,
    stuck=1,
    succeeded=1204,
    failed=2,
    requeued=5,
    queued=17,
    scheduled=4,
    next_in=12.3,
    paused=("mail",),
    ending="ending: waits for 6 jobs",
)


def drawn(now, width, height=24):
    return [row.plain for row in picture(now, width, height).renderables]


def test_the_line_breaks_where_the_terminal_is_narrow_and_what_matters_least_goes():
    """Every part is seen on a wide one, and nothing is cut on a narrow one."""
    assert drawn(BUSY, 200) == [
        "shop\ufffd[2J  1 min 15 s   3 of 64 processing   1,204 succeeded   2 failed   5 requeued   2 waiting",
        "17 queued   4 due later, the next in 12 s   paused: mail",
        "ending: waits for 6 jobs   1 slot taken by code that was given up and does not end",
    ]
    assert all(len(row) <= 60 for row in drawn(BUSY, 60))
    assert len(drawn(BUSY, 60, height=3)) == 2
    assert drawn(WorkerNow(app="shop", elapsed=0.1, concurrency=1), 80) == [
        "shop  1 s   0 of 1 processing   0 succeeded   0 failed   0 requeued"
    ]


def test_what_was_seen_of_the_queues_a_while_ago_is_told_as_old():
    """It need not add up with what has ended since."""
    seen = {"app": "shop", "elapsed": 9.0, "concurrency": 1, "queued": 7518}
    assert drawn(WorkerNow(**seen, seen_ago=3.2), 80)[1] == "7,518 queued 3 s ago   0 due later"
    assert drawn(WorkerNow(**seen, seen_ago=1.0), 80)[1] == "7,518 queued   0 due later"


def test_what_was_taken_since_the_queues_were_seen_is_not_queued():
    """So that the parts of one line add up; what is told with its age is told as it was."""
    seen = {"app": "shop", "elapsed": 9.0, "concurrency": 1, "queued": 7518, "taken": 7500}
    assert drawn(WorkerNow(**seen, seen_ago=1.0), 80)[1] == "18 queued   0 due later"
    assert drawn(WorkerNow(**seen, seen_ago=3.2), 80)[1] == "7,518 queued 3 s ago   0 due later"
    assert drawn(WorkerNow(**seen | {"taken": 9000}), 80)[1] == "0 queued   0 due later"


def test_the_line_of_a_worker_adds_up_between_two_looks_at_its_queues(tmp_path):
    """What it has taken meanwhile counts as taken, whether it runs or has ended; what is put back, or stuck and so queued, does not."""
    app = outlast.App("shop", store=f"sqlite:///{tmp_path}/shop.db")

    @app.job
    def send() -> None: ...

    for _ in range(10):
        send.enqueue()
    counts = {"failed": 1, "cancelled": 1, "requeued": 5, "lost": 0, "released": 1}
    now = {"concurrency": 64, "waiting": 1, "drains_until": None, "cutting": False, "fenced": False}
    views = [
        WorkerView(processing=2, stuck=1, counts=counts | {"succeeded": 3}, **now),
        WorkerView(processing=3, stuck=0, counts=counts | {"succeeded": 6, "requeued": 9}, **now),
        WorkerView(processing=2, stuck=0, counts=counts | {"succeeded": 6, "failed": 3, "cancelled": 5}, **now),
    ]
    worker = SimpleNamespace(view=lambda: views[0], opened=True)
    watched = _Watched(Lines(keep=False, tell=lines), worker, app, {})
    watched.act()
    assert (watched.look().queued, watched.look().taken) == (10, 0)
    views.pop(0)
    assert (watched.look().queued, watched.look().taken) == (10, 4)
    views.pop(0)  # what was cancelled or has failed was taken, too
    assert (watched.look().queued, watched.look().taken) == (10, 9)
    app.store.close()


def test_a_worker_whose_store_was_never_there_has_the_way_out(shell):
    """It waits for the store, and says at once what names it."""
    shell.env["OUTLAST_STORE"] = "postgresql://ann@127.0.0.1:1/shop"
    with shell.start("worker jobs.py:app") as process:
        hint = "The store cannot be reached, and is waited for. If it is not the right one: --store or OUTLAST_STORE.\n"
        assert hint in process.stderr
        process.kill()
        process.communicate(timeout=200)


@pytest.fixture
def silent():
    """A server that takes connections and says nothing; those that have come are counted."""
    came = threading.Semaphore(0)
    kept = []

    def accept():
        while True:
            try:
                kept.append(server.accept()[0])
            except OSError:
                return
            came.release()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        yield SimpleNamespace(port=server.getsockname()[1], came=came)
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_whose_server_does_not_answer(shell, silent, number):
    """While its store is being opened: nothing is in hand, so it ends at once, with 0, and says what has ended it."""
    line = f"worker jobs.py:app --progress --store postgresql://ann@127.0.0.1:{silent.port}/shop"
    with shell.start(line) as process:
        assert silent.came.acquire(timeout=200)
        process.send_signal(number)
        out, err = process.communicate(timeout=200)
    assert (process.returncode, out.splitlines()) == (
        0,
        ["0 succeeded   0 failed   0 requeued", f"Ended by {number.name}; all work is finished or given back."],
    )
    assert [line.partition(":")[0] for line in err.splitlines()] == ["Worker of shop"]


def test_a_signal_ends_a_worker_whose_file_is_locked(shell):
    """As soon as it has said how it is ended: also before it waits for the file."""
    with closing(sqlite3.connect(shell.folder / "shop.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with shell.start("worker jobs.py:app --progress --store shop.db") as process:
            assert process.stderr.readline().startswith("Worker of shop: ")
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=200)
    assert (process.returncode, out.splitlines()[-1]) == (
        0,
        "Ended by SIGTERM; all work is finished or given back.",
    )


@pytest.mark.parametrize("when", ["registering", "idle"])
def test_a_locked_file_does_not_keep_a_worker_that_was_asked_to_end(shell, when):
    """The file is locked until it has ended. Its lease is left to run out, as the log says, and its exit code is 0."""
    shell.json("enqueue jobs.py:double --arg n=1 --delay 1h --store shop.db")  # the file is there
    with closing(sqlite3.connect(shell.folder / "shop.db", isolation_level=None)) as other:
        if when == "registering":
            other.execute("begin immediate")
        with shell.start("worker jobs.py:app --progress --store shop.db") as process:
            assert process.stderr.readline().startswith("Worker of shop: ")
            if when == "idle":
                wait_until(lambda: shell.json("jobs workers --store shop.db"), "a worker runs")
                other.execute("begin immediate")
            process.send_signal(signal.SIGTERM)
            if when == "idle":
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=200)
    assert (process.returncode, out.splitlines()[1].partition(" by ")[0]) == (0, "Ended")
    assert "has been writing to it for 30 s" not in err  # so long nobody has waited
    assert "Traceback" not in err


def test_a_worker_that_waits_for_its_store_says_so(proxied):
    """At once, not when its lease is late."""
    shell, proxy = proxied
    enqueue(shell, "double --arg n=1 --delay 1h")
    with shell.start("worker jobs.py:app --progress") as process:
        wait_until(lambda: shell.json("jobs workers"), "a worker runs")
        proxy.stop()
        said = next(line for line in process.stderr if "the store does not answer" in line)
        assert "the store does not answer: it is waited for" in said
        process.kill()
        process.communicate(timeout=200)


def test_without_a_terminal_it_is_one_line():
    """For a journal."""
    (line,) = lines(BUSY)
    assert line == (
        "worker of shop\ufffd[2J: 3 of 64 processing, 1,204 succeeded, 2 failed, 5 requeued, 2 waiting, 17 queued, "
        "4 due later, the next in 12 s, paused: mail, ending: waits for 6 jobs, 1 slot taken by code that was given up and does not end"
    )


# --- what is said must be so ---


def test_failed_jobs_are_exit_code_3_of_a_worker_that_ends_when_idle(everywhere):
    """3, as with runs; 0 if all jobs succeeded, or an operator cancelled them."""
    shell = everywhere
    enqueue(shell, "double --arg n=1")
    assert shell("worker jobs.py:app --until-idle").returncode == 0
    enqueue(shell, "send --arg to=ann")
    done = shell("worker jobs.py:app --until-idle")
    assert (done.returncode, done.stdout.splitlines()[1]) == (3, "Idle: nothing is due. 1 job failed permanently.")
    enqueue(shell, "send --arg to=bob")
    done = shell("worker jobs.py:app --until-idle --json")
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (3, 3)
    # Those that failed under another worker are not its own.
    assert shell("worker jobs.py:app --until-idle").returncode == 0


@pytest.mark.parametrize(("option", "expected"), [("", 0), (" --strict", 3)])
def test_a_worker_that_a_signal_ends_reports_failed_jobs_with_strict(shell, option, expected):
    """A supervisor that stops a worker wants 0; a script asks for 3."""
    enqueue(shell, "send --arg to=ann")
    with shell.start(f"worker jobs.py:app --no-progress{option}") as process:
        wait_until(lambda: shell.json("jobs show 1")["status"] == "failed", "the job has failed")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert process.returncode == expected


def test_a_job_that_has_killed_its_workers_has_failed_with_the_worker_that_finds_it(everywhere):
    """D-16: its end is on record by a sweep, and counts for the exit code as any other."""
    shell = everywhere
    enqueue(shell, "die")
    assert shell("worker jobs.py:app --until-idle").returncode == -signal.SIGKILL
    with open_store(shell.env.get("OUTLAST_STORE", shell.folder / ".outlast" / "outlast.db"), app="shop") as store:
        sql(store, "update outlast_jobs set crashes = 2")  # so that this was the third time
    done = shell("worker jobs.py:app --until-idle")
    told = done.stdout.splitlines()[:2]
    assert (done.returncode, told) == (
        3,
        ["0 succeeded   1 failed   0 requeued", "Idle: nothing is due. 1 job failed permanently."],
    )


def test_a_queue_that_nobody_knows_is_told_with_the_nearest_one(shell):
    """Declared by a job, or known to the store; the worker serves it all the same."""
    enqueue(shell, "double --arg n=1 --queue archive")
    done = shell("worker jobs.py:app --queue mial --queue archiv --queue mail --until-idle")
    told = [line for line in done.stderr.splitlines() if line.startswith("No job of this app")]
    assert done.returncode == 0
    assert told == [
        "No job of this app is for the queue 'mial', and none is in it. Did you mean 'mail'?",
        "No job of this app is for the queue 'archiv', and none is in it. Did you mean 'archive'?",
    ]


def test_a_worker_in_the_background_says_how_it_is_ended(shell):
    """A shell that runs no jobs control starts it with SIGINT ignored: Ctrl-C would do nothing."""
    program = f"{shlex.quote(sys.executable)} -m outlast.cli worker jobs.py:app --until-idle --progress & echo $!; wait"
    done = subprocess.run(
        ["/bin/sh", "-c", program],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    pid = done.stdout.splitlines()[0]
    assert done.stderr.splitlines()[0].endswith(f"64 at a time. kill {pid} ends it.")


def test_what_a_worker_serves_is_told(everywhere):
    """`jobs show` says why nobody takes a job, and `jobs workers` who serves what."""
    shell = everywhere
    waiting = enqueue(shell, "double --arg n=1 --queue elsewhere")
    strange = enqueue(shell, "double --arg n=2")
    source = (shell.folder / "jobs.py").read_text()
    (shell.folder / "other.py").write_text("import outlast\napp = outlast.App('shop')\n@app.job\ndef other(): ...\n")
    with shell.start("worker other.py:app") as process:
        wait_until(lambda: shell.json("jobs workers"), "a worker runs")
        (one,) = shell.json("jobs workers")
        assert (one["queues"], one["kinds"]) == (None, {"other": 1, "outlast.flow": 1})
        assert shell("jobs workers").stdout.splitlines()[1].split()[-3:] == ["all", "other,", "outlast.flow"]
        assert shell.json(f"jobs show {strange}")["waits_for"] == ["No running worker knows the kind double."]
        with shell.start("worker jobs.py:app --queue mail") as second:
            wait_until(lambda: len(shell.json("jobs workers")) == 2, "two workers run")
            (said,) = shell.json(f"jobs show {waiting}")["waits_for"]
            assert said == "No running worker that knows double serves the queue elsewhere."
            newer = source.replace("@app.job\ndef double", "@app.job(version=2)\ndef double")
            (shell.folder / "jobs.py").write_text(newer)
            latest = enqueue(shell, "double --arg n=3 --queue mail")
            (said,) = shell.json(f"jobs show {latest}")["waits_for"]
            assert said == "Running workers know double only up to version 1, and this job has 2."
            second.send_signal(signal.SIGTERM)
            second.communicate(timeout=200)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert shell.json(f"jobs show {strange}")["waits_for"] == ["No worker is running."]


def test_schedules_are_listed(everywhere):
    """Kind, expression, timezone, ticks; one that no running worker has is told as such, and enqueues nothing."""
    shell = everywhere
    cron = "import outlast\napp = outlast.App('shop')\n@app.job(cron='0 0 29 2 *', timezone='Europe/Berlin')\ndef leap(): ...\n"
    (shell.folder / "cron.py").write_text(cron)
    enqueue(shell, "double --arg n=1")
    assert shell("jobs schedules").stdout == (
        "No schedule is on record: a worker puts those of its jobs there when it begins.\n"
    )
    undeclared = "undeclared: no running worker has a job with this schedule, and nothing is enqueued for it.\n"
    with shell.start("worker cron.py:app") as process:
        wait_until(lambda: shell.json("jobs schedules"), "the schedule is on record")
        (one,) = shell.json("jobs schedules")
        assert (one["kind"], one["cron"], one["timezone"], one["missed"], one["state"]) == (
            *("leap", "0 0 29 2 *", "Europe/Berlin", "once", "active"),
        )
        assert one["next_tick_at"].startswith("2028-02-28T23:00:00")
        assert (one["last_tick_at"], one["last_job"]) == (None, None)
        shown = shell("jobs schedules")
        assert shown.stdout.splitlines()[1].split()[:6] == ["leap", "0", "0", "29", "2", "*"]
        assert shown.stderr == ""
        with open_store(shell.env.get("OUTLAST_STORE", shell.folder / ".outlast" / "outlast.db"), app="shop") as store:
            sql(store, "update outlast_schedules set next = 0")
            assert shell("jobs schedules").stdout.splitlines()[1].split()[-2:] == ["now", "active"]
            sql(store, "update outlast_schedules set seen = seen - 100000000")
        assert shell("jobs schedules").stderr == undeclared  # by other code of the same kind
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert shell("worker cron.py:app --until-idle").returncode == 0
    (one,) = shell.json("jobs schedules")
    assert (one["state"], one["next_tick_at"]) == ("undeclared", None)  # at once: no worker runs any more
    assert shell("jobs schedules").stderr == undeclared


@table(
    ("running", "cutting", "said"),
    [
        (2, False, "ending: waits for 2 jobs, at most 14 s; "),
        (0, False, "ending: waits for the store, at most 14 s; "),
        (2, True, "ending: 2 jobs cancelled, given back when their code has ended, after 5 s at the latest"),
    ],
)
def test_a_worker_says_what_it_waits_for_at_its_end(running, cutting, said):
    """Without jobs it is the store, to which their ends go."""
    view = WorkerView(
        concurrency=8, processing=running, waiting=0, stuck=0, counts={}, drains_until=114.0, cutting=cutting, fenced=False
    )  # fmt: skip
    assert _ending(view, 100.0).startswith(said)
