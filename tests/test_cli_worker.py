"""`outlast worker` as a person, a script and an init system use it: what it shows, what it leaves, and its exit code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

import forked
from labor import wait_until
from outlast.display.worker import WorkerNow, lines, picture
from servers.proxy import Proxy
from shells import Shell
from tables import table
from terminal import Terminal

JOBS = """
import asyncio
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
    """Exit code 0: idle. Failed jobs are the jobs' business; what is due later is left, and when is said."""
    shell = everywhere
    doubled = enqueue(shell, "double --arg n=21")
    sent = enqueue(shell, "send --arg to=ann")
    enqueue(shell, "double --arg n=1 --delay 1h")
    done = shell("worker jobs.py:app --until-idle")
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert said[:2] == ["1 succeeded   1 failed   0 requeued", "Idle: nothing is due."]
    assert re.fullmatch(r"1 job is due later, the first at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", said[2])
    first, *_, problems, groups = done.stderr.splitlines()
    assert first == "Worker of shop: block, double, late, read, send, wait; every queue; 64 at a time. Ctrl-C ends it."
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
    assert [letter["status"] for letter in shell.json("dlq list --status all")] == ["resolved"]


def test_a_worker_serves_the_queues_that_it_was_given(shell):
    """A number behind a queue bounds it; what stays behind is told."""
    enqueue(shell, "double --arg n=1")
    enqueue(shell, "double --arg n=2 --queue press")
    shell("jobs pause press")
    assert shell.json("worker jobs.py:app --until-idle --queue mail=2 --queue slow --concurrency 4")["succeeded"] == 0
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
        (
            "jobs.py:other",
            [
                "expected jobs.py:other to have jobs, got: none. Import the modules that make them with @app.job where the app is made."
            ],
        ),
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


# --- signals ---


def begun(shell, line, kind):
    """A worker whose only job has begun."""
    id_ = enqueue(shell, kind)
    process = shell.start(f"worker jobs.py:app {line}")
    assert process.stdout.readline() == {"read": "reading\n", "wait": "waiting\n", "block": "blocking\n"}[kind]
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_code_that_goes_on_after_the_drain_is_cut_off(shell, number, code):
    """The exit code says that it was."""
    process, id_ = begun(shell, "--drain 0", "block")
    process.send_signal(number)
    done = left(process)
    assert (done.returncode, done.out.splitlines()[-1]) == (
        code,
        "1 job was cut off: its code had not ended. Another worker does it again.",
    )
    assert shell.json(f"jobs show {id_}")["status"] == "queued"


def test_a_second_signal_does_not_wait_for_the_drain(shell):
    """Which of two that come together is heard first is not said."""
    process, _ = begun(shell, "--drain 1000s", "block")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert left(process).returncode in {130, 143}


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
    proxy = Proxy(database.socket).start()
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


def test_without_a_terminal_it_is_one_line():
    """For a journal."""
    (line,) = lines(BUSY)
    assert line == (
        "worker of shop\ufffd[2J: 3 of 64 processing, 1,204 succeeded, 2 failed, 5 requeued, 2 waiting, 17 queued, "
        "4 due later, the next in 12 s, paused: mail, ending: waits for 6 jobs, 1 slot taken by code that was given up and does not end"
    )
