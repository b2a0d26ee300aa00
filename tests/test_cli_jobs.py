"""Durable jobs from a shell, as an operator uses them: what is printed, what comes next, and the exit code."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields, replace
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import uuid4

import pytest
from rich.cells import cell_len

from job_rows import end, finished, worker
from outlast import App
from outlast.cli.arguments import _Wrong, typed
from outlast.cli.jobs import _FIGURES
from outlast.cli.output import print_full_rows
from outlast.kernel.wording import process_of
from outlast.observe.figures import JobFigures
from outlast.store import open_store
from outlast.store.codec import Codec
from outlast.store.steps import NewArtifact, NewStep
from outlast.work.leases import myself, this_user
from shells import Shell
from stores import letter as dead_letter
from stores import sql
from tables import table

JOBS = """
from dataclasses import dataclass
from datetime import date

import outlast

app = outlast.App("shop")


@dataclass
class Order:
    id: int
    name: str = ""


@app.job
def process_report(file_id: str, pages: int = 3, dry: bool = False, day: date | None = None, password: str = "") -> dict:
    return {"file": file_id, "pages": pages, "token": "hunter2hunter2"}


@app.job(queue="mail")
async def send(order: Order, tags: list[str] = ()) -> None:
    raise ConnectionResetError("reset by peer")


strange = "no job"
"""
KINDS = {"process_report": 1, "send": 1}


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"jobs.py": JOBS})


@pytest.fixture(params=["sqlite", "postgres"])
def everywhere(request, shell):
    """The shell, on each of the two databases in turn."""
    if request.param == "postgres":
        name = f"jobs_{re.sub('[^a-z]', '_', request.node.originalname)[:50]}"
        shell.env["OUTLAST_STORE"] = request.getfixturevalue("postgres_server").database(name).dsn
    return shell


def store_of(shell):
    return open_store(shell.env.get("OUTLAST_STORE") or f"sqlite:///{shell.folder}/.outlast/outlast.db", app="shop")


def one_failed(shell, line="enqueue jobs.py:process_report --arg file_id=f-1 --arg password=hunter2"):
    """A job that has failed twice; its id, and the beginning of that of its dead letter."""
    id_ = shell.json(line)["id"]
    with store_of(shell) as store:
        lease = worker(store)
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        told = {"error": "no answer", "error_type": "VendorError", "error_class": "server_error"}
        assert finished(store, lease, end(job, "waiting", **told)) == ()
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        kept = dead_letter(
            job.id, seq=None, pipeline=job.kind, stage=job.kind, item_key=str(job.id), kind="job", **told,
            metadata={"queue": job.queue, "version": job.version},
        )  # fmt: skip
        kept = replace(kept, id=uuid4().hex, payload=job.payload)
        assert finished(store, lease, end(job, "failed", letter=kept, stop_reason="exhausted", **told)) == ()
        store.drop_lease(lease)
        letter = store.job(int(id_)).letter
    return id_, letter[:12]


# --- enqueue ---


def test_a_job_is_enqueued_with_arguments_typed_by_its_function(everywhere):
    """What the worker gets is what a caller in Python would have given."""
    shell = everywhere
    done = shell("enqueue jobs.py:process_report --arg file_id=17 --arg pages=4 --arg dry=yes --arg day=2026-11-15")
    assert (done.returncode, done.stdout) == (0, "Enqueued job 1 (process_report) in default.\n")
    assert done.stderr.splitlines() == [
        "Look at it: outlast jobs show 1",
        "No worker is running. Start one: outlast worker jobs.py",
    ]
    shown = shell.json("jobs show 1")
    assert shown["arguments"] == {"file_id": "17", "pages": 4, "dry": True, "day": "2026-11-15"}
    assert (shown["status"], shown["queue"], shown["attempts"], shown["history"]) == ("queued", "default", 0, [])


def test_a_job_is_enqueued_with_everything_that_options_says(shell):
    """The options of a command are those of `Job.options`, and a unique key enqueues nothing twice."""
    line = 'enqueue jobs.py:process_report --json-args \'{"file_id": "f-1"}\' --unique-key f-1 --delay 10m --priority 5 --queue slow'
    first, second = shell.json(line), shell.json(line)
    assert (first["new"], second["new"]) == (True, False)
    assert first["id"] == second["id"]
    shown = shell.json(f"jobs show {first['id']}")
    assert (shown["queue"], shown["priority"], shown["unique_key"]) == ("slow", 5, "f-1")
    assert shown["next_run_at"] > shown["enqueued_at"]
    said = shell(line)
    assert (
        said.stdout
        == f"Job {first['id']} (process_report) has this unique key already: it is queued. Nothing was enqueued.\n"
    )


def test_what_is_wrong_with_a_job_is_said_at_once_and_nothing_is_enqueued(shell):
    """Arguments and options, each with what was expected."""
    done = shell(
        "enqueue jobs.py:process_report --arg pages=x --arg dry=maybe --arg day=2026 --arg nope=1 --arg =3 --arg pages=4 "
        "--arg-json tags=[1 --delay soon --priority 99999999999 --queue ''"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "expected the argument tags to be JSON (Expecting ',' delimiter: line 1 column 3 (char 2)).",
        "expected the argument pages to be an integer, got: 'x'.",
        "expected the argument dry to be true or false, got: 'maybe'.",
        "expected the argument day to be a date such as 2026-11-15 or none, got: '2026'.",
        "expected --arg to be a name and a value, such as file_id=f-1, got: '=3'.",
        "expected the argument pages once, got: twice.",
        "expected no argument 'tags' of process_report. Did you mean 'pages'?",
        "expected no argument 'nope' of process_report. It takes: file_id, pages, dry, day, password.",
        "expected the argument file_id of process_report, got: nothing.",
        "expected --delay to be a duration such as 90s, 10m or 2h, or a number of seconds, got: 'soon'.",
        "expected priority to be an integer from -2147483647 to 2147483647, got: 99999999999.",
        "expected queue to be a name (a string that is not empty), got: ''.",
    ]
    assert shell("jobs list").returncode == 2, "there is not even a store"


@table(
    ("target", "said"),
    [
        (
            "jobs.py",
            "expected jobs.py to say which job, as in jobs.py:process_report. It has the jobs process_report, send.",
        ),
        ("jobs.py:app", "expected jobs.py:app to be a Job, got: an App. It has the jobs process_report, send."),
        ("jobs.py:sent", "expected jobs.py to have 'sent'. Did you mean 'send'? It has the jobs process_report, send."),
        ("no.py:send", "expected no.py to be a Python file, but there is none in"),
    ],
)
def test_a_target_that_is_no_job_is_named(tmp_path, target, said):
    """One sentence, with the nearest right name."""
    done = Shell(tmp_path, {"jobs.py": JOBS})(f"enqueue {target}")
    assert done.returncode == 2
    assert done.stderr.startswith(said), done.stderr


def test_a_class_of_the_function_is_made_of_its_fields(shell):
    """A worker of this function gets an `Order`."""
    assert shell("enqueue jobs.py:send --arg 'order={\"id\": 5}' --arg-json 'tags=[\"a\"]'").returncode == 0
    assert shell.json("jobs show 1")["arguments"] == {"order": {"id": 5, "name": ""}, "tags": ["a"]}
    wrong = shell("enqueue jobs.py:send --arg 'order={\"ids\": 5}'")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("expected the argument order to be the fields of Order as a JSON object (")


class Colour(Enum):
    RED = "r"


@table(
    ("text", "wanted", "value"),
    [
        ("5", int, 5),
        ("5", str, "5"),
        ("5", Any, "5"),
        ("5", int | str, 5),
        ("five", int | str, "five"),
        ("none", int | None, None),
        ("", str | None, ""),
        ("1e3", float, 1000.0),
        ("off", bool, False),
        ("1.10", Decimal, Decimal("1.10")),
        ("2026-11-15", date, date(2026, 11, 15)),
        ("r", Colour, Colour.RED),
        ("RED", Colour, Colour.RED),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ('{"a": [1]}', dict[str, list[int]], {"a": [1]}),
        ("[1]", list, [1]),
    ],
)
def test_a_text_is_what_the_annotation_names(text, wanted, value):
    """The type too: True is no 1."""
    found = typed(text, wanted)
    assert (found, type(found)) == (value, type(value))


@table(
    ("text", "wanted", "expected"),
    [
        ("x", int, "an integer"),
        ("x", int | None, "an integer or none"),
        ("c", Literal["a", "b"], "one of a, b"),
        ("[1", list, "JSON (Expecting ',' delimiter: line 1 column 3 (char 2))"),
        ("{}", Shell, "one that a shell can say: a Shell is enqueued from Python"),
    ],
)
def test_a_text_that_is_not_is_told_what_was_expected(text, wanted, expected):
    """In words that fit behind 'expected the argument n to be'."""
    with pytest.raises(_Wrong, match="^" + re.escape(expected) + "$"):
        typed(text, wanted)


# --- list and show ---


def test_jobs_are_listed_the_newest_first_and_by_what_they_are(everywhere):
    """Filters narrow it down together; arguments are masked unless they are to be seen."""
    shell = everywhere
    failed_id, _ = one_failed(shell)
    sent = shell.json("enqueue jobs.py:send --arg 'order={\"id\": 5}' --delay 1h --unique-key k")["id"]
    listed = shell("jobs list")
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        [sent, "send", "mail", "queued"],
        [failed_id, "process_report", "default", "failed"],
    ]
    assert listed.stderr == f"Why one has failed: outlast jobs show {failed_id}\n"
    for narrowed, expected in (
        ("--queue mail", [sent]),
        ("--kind process_report", [failed_id]),
        ("--status failed", [failed_id]),
        ("--status queued --queue default", []),
        ("--unique-key k", [sent]),
        ("--limit 1", [sent]),
    ):
        assert [job["id"] for job in shell.json(f"jobs list {narrowed}")] == expected, narrowed
    (found,) = shell.json("jobs list --status failed")
    assert found["arguments"] == {"file_id": "f-1", "password": "***"}
    (found,) = shell.json("jobs list --status failed --reveal")
    assert found["arguments"]["password"] == "hunter2"
    assert "No such jobs." in shell("jobs list --kind nothing").stdout
    assert shell("jobs list --status done").returncode == 2


def test_a_job_is_shown_with_every_attempt_and_why_there_was_no_other(everywhere):
    """Done means 7: the attempts, the reason at the end, and the commands that go on from here."""
    shell = everywhere
    id_, letter = one_failed(shell)
    done = shell(f"jobs show {id_}")
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert said[0] == f"job          {id_}  process_report  (failed)"
    assert "error        VendorError (server_error): no answer" in said
    assert "stopped      exhausted" in said
    assert "attempts     2" in said
    assert '  "password": "***"' in said
    first, second = (line.split() for line in said[-2:])
    assert first[:2] == ["1", "failed"]
    assert "due" in first
    assert second[:2] == ["2", "failed"]
    assert "no other: exhausted" in said[-1]
    assert done.stderr.splitlines() == [
        f"Once the cause is gone: outlast jobs requeue {id_}",
        f"To change its arguments first: outlast dlq edit {letter} --payload JSON --reason ...",
    ]
    document = shell.json(f"jobs show {id_}")
    assert [(row["attempt"], row["outcome"], row["stop_reason"]) for row in document["history"]] == [
        (1, "failed", None),
        (2, "failed", "exhausted"),
    ]
    assert document["history"][0]["next_run_at"] is not None
    assert '"hunter2"' in shell(f"jobs show {id_} --reveal").stdout


def test_a_queued_job_says_when_it_runs_and_what_it_waits_for(shell):
    """Not only when: a paused queue and the lack of a worker are told, with the way out."""
    shell("enqueue jobs.py:process_report --arg file_id=f-1 --delay 1h")
    assert shell("jobs pause default").returncode == 0
    done = shell("jobs show 1")
    assert re.search(r"^next run     \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, in (59 min|1 h)", done.stdout, re.MULTILINE)
    assert done.stderr.splitlines() == [
        "Resume it: outlast jobs resume default",
        "Start one: outlast worker TARGET",
        "To end it: outlast jobs cancel 1",
    ]
    assert "waits        The queue default is paused. No worker is running." in done.stdout.splitlines()
    assert shell("jobs resume default").returncode == 0
    assert shell.json("jobs show 1")["waits_for"] == ["No worker is running."]
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    assert re.search(
        r"^next run     .* UTC, due$", shell("jobs show 2").stdout, re.MULTILINE
    )  # not now: nobody takes it
    with store_of(shell) as store:
        worker(store, "db-1/x:4711:y")
        done = shell("jobs show 2").stdout
        assert re.search(r"^next run     .* UTC, now$", done, re.MULTILINE)
        assert not re.search("^waits ", done, re.MULTILINE)


def test_that_values_are_masked_is_said_where_something_is(shell):
    """Else it would be two lines that say nothing."""
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    shell("enqueue jobs.py:process_report --arg file_id=f-1 --arg password=hunter2")
    assert "arguments" in shell("jobs show 1").stdout.splitlines()
    assert "arguments (masked; --reveal shows it as it is)" in shell("jobs show 2").stdout.splitlines()
    assert "arguments" in shell("jobs show 2 --reveal").stdout.splitlines()


def test_a_job_that_runs_is_shown_with_its_worker(shell):
    """And what was asked of it."""
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    with store_of(shell) as store:
        lease = worker(store, "db-1/x:4711:y")
        assert store.turn(lease, [], {"default": 1}, KINDS).claimed
        assert "worker       db-1, process 4711, since 20" in shell("jobs show 1").stdout
        (one,) = shell.json("jobs workers")
        assert (one["process"], one["jobs"], one["alive"]) == ("db-1, process 4711", 1, True)
        cancelled = shell("jobs cancel 1")
        assert cancelled.stdout == "job 1: asked db-1, process 4711 to stop; it hears that within seconds\n"
        assert "wanted       to be cancelled; its worker was asked to" in shell("jobs show 1").stdout
        assert shell("jobs requeue 1").stdout == "job 1: nothing was done: a worker is at it.\n"


@table(
    ("line", "said"),
    [
        ("jobs show 77", "There is no job 77 in this store."),
        ("jobs show x", "expected the id of a job, a number such as 17, got: 'x'."),
        ("jobs requeue 1 x 0", "expected the id of a job, a number such as 17, got: 'x'."),
        (
            "jobs cancel 99999999999999999999",
            "expected the id of a job, a number such as 17, got: '99999999999999999999'.",
        ),
        ("jobs pause ''", "expected the name of a queue, got: an empty one."),
    ],
)
def test_a_job_that_is_none_is_a_mistake(tmp_path, line, said):
    """Exit code 2, and nothing is done to the others."""
    shell = Shell(tmp_path, {"jobs.py": JOBS})
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    done = shell(line)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == said


# --- what operators do ---


def test_jobs_are_requeued_and_cancelled_and_each_says_what_became_of_it(everywhere):
    """The same id, its history goes on; what has succeeded or is not there is said, and the exit code is 1."""
    shell = everywhere
    id_, letter = one_failed(shell)
    queued = shell.json("enqueue jobs.py:process_report --arg file_id=f-2")["id"]
    done = shell(f"jobs requeue {id_} {queued} 77")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"job {id_}: back in the queue",
        f"job {queued}: nothing was done: it is in the queue already.",
        "job 77: nothing was done: there is no such job.",
    ]
    assert done.stderr == "No worker is running. Start one: outlast worker TARGET\n"
    shown = shell.json(f"jobs show {id_}")
    assert (shown["status"], shown["attempts"], shown["attempts_in_all"]) == ("queued", 0, 2)
    assert shell.json(f"dlq show {letter}")["status"] == "replaying"
    done = shell(f"jobs cancel {id_} {queued} {queued}")
    assert (done.returncode, done.stdout) == (0, f"job {id_}: cancelled\njob {queued}: cancelled\n")
    assert shell(f"jobs cancel {id_}").stdout == f"job {id_}: nothing was done: it is cancelled already.\n"
    assert shell.json(f"jobs requeue {queued}") == [{"id": queued, "done": True, "said": "back in the queue"}]


def test_a_reason_is_stored_without_secrets(everywhere):
    """S0-41: of a cancel, a requeue and an undo, from a shell and in Python; what is stored is masked, not only what is shown."""
    shell = everywhere
    id_, _ = one_failed(shell)
    for command in ("requeue", "cancel"):
        done = shell(f"jobs {command} {id_} --reason 'typo in password=hunter2hunter2'")
        assert done.returncode == 0, done.stderr
    with store_of(shell) as store:
        app = App("shop", store=shell.env.get("OUTLAST_STORE") or store._database.path)
        app.jobs.requeue(id_, reason="password=hunter2hunter2")
        app.jobs.cancel(id_, reason="password=hunter2hunter2")
        app.store.close()
        assert sql(store, "update outlast_jobs set state = 'failed' where id = ?", int(id_)) == 1
        given = (int(id_), store.job(int(id_)).token, "c")
        sql(
            store,
            "insert into outlast_compensations (app, job, place, state, closed, call, arguments, fingerprint, attempt, registered, attempts, "
            f"crashes, unknown) values ('shop', ?, 1, 'failed', {'false' if store._database.arrays else 0}, 'x:y', ?, 'f', 1, 1, 0, 0, 0)",
            given[0],
            b"{}",
        )
        done = shell(f"jobs undo {id_} --reason 'password=hunter2hunter2'")
        assert done.returncode == 0, done.stderr
        reasons = [reason for (reason,) in sql(store, "select reason from outlast_job_changes order by id")]
    assert (len(reasons), [reason for reason in reasons if "hunter2" in reason or "***" not in reason]) == (5, [])


def test_what_an_operator_has_done_is_told_without_a_class_of_errors(everywhere):
    """A cancellation is no error of anybody's code."""
    shell = everywhere
    id_ = shell.json("enqueue jobs.py:process_report --arg file_id=f-1")["id"]
    with store_of(shell) as store:
        lease = worker(store)
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        ended = end(job, "cancelled", outcome="failed", error="cancelled by an operator", stop_reason="cancelled")
        assert finished(store, lease, ended) == ()
        store.drop_lease(lease)
    shown = shell(f"jobs show {id_}").stdout
    assert "error        cancelled by an operator\n" in shown
    assert "None" not in shown + shell("jobs list").stdout


def test_queues_are_counted_paused_and_resumed(everywhere):
    """What may start, what is due later, and for how long the oldest has waited."""
    shell = everywhere
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    shell("enqueue jobs.py:send --arg 'order={\"id\": 5}' --delay 1h")
    refused = shell("jobs pause mail mial")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "No job was ever in the queue 'mial'. Did you mean 'mail'?",
        "Nothing was paused. To pause it before its first job, add --force.",
    ]
    assert not any(queue["paused"] for queue in shell.json("jobs stats")["queues"])
    done = shell("jobs pause mail mial --force")
    assert (done.returncode, done.stdout) == (0, "Paused mail, mial.\n")
    assert done.stderr.splitlines() == [
        "No job was ever in the queue 'mial'. Did you mean 'mail'?",
        "To go on: outlast jobs resume mail mial",
    ]
    assert shell("jobs resume mial").stdout == "Resumed mial.\n"
    refused = shell("jobs resume mail mial")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "No job was ever in the queue 'mial'. Did you mean 'mail'?",
        "Nothing was resumed.",
    ]
    done = shell("jobs resume default")
    assert (done.returncode, done.stdout) == (0, "default was not paused: nothing was done.\n")
    assert shell("jobs pause default mail").stdout == "Paused default.\nmail is paused already: nothing was done.\n"
    assert shell.json("jobs resume default default") == [{"queue": "default", "paused": False, "changed": True}] * 2
    assert shell.json("jobs resume default") == [{"queue": "default", "paused": False, "changed": False}]
    default, mail = shell.json("jobs stats")["queues"]
    assert default.pop("oldest_wait") > 0
    assert default == {"queue": "default", "queued": 1, "scheduled": 0, "processing": 0, "paused": False, "undo": 0}
    empty = {
        "queue": "mail",
        "queued": 0,
        "scheduled": 1,
        "processing": 0,
        "paused": True,
        "oldest_wait": None,
        "undo": 0,
    }
    assert mail == empty
    shown = shell("jobs stats")
    assert [line.split()[:4] for line in shown.stdout.splitlines()[1:3]] == [
        ["default", "1", "0", "0"],
        ["mail", "0", "1", "0"],
    ]
    assert shown.stdout.splitlines()[3:] == ["", "No job has ended in the last 24 h."]
    assert shown.stderr.splitlines() == [
        "To go on: outlast jobs resume mail",
        "No worker is running. Start one: outlast worker TARGET",
    ]
    assert shell("jobs workers").stdout == "No worker is running. Start one: outlast worker TARGET\n"


def test_workers_of_this_host_are_told_from_others(everywhere):
    """`--here` lists these alone, and its exit code says whether one of them is alive."""
    shell = everywhere
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    with store_of(shell) as store:
        store.take_lease("worker", "away", "elsewhere/1:17:1", 600.0)
        done = shell("jobs workers --here")
        assert (done.returncode, "elsewhere" in done.stdout) == (1, False)
        assert [one["id"] for one in shell.json("jobs workers")] == ["away"]
        here = store.take_lease("worker", "here", myself(), 600.0)
        assert [one["id"] for one in shell.json("jobs workers --here")] == ["here"]
        assert sorted(one["id"] for one in shell.json("jobs workers")) == ["away", "here"]
        store.drop_lease(here)
        assert shell("jobs workers --here").returncode == 1


# --- their dead letters ---


def test_the_dead_letter_of_a_job_reads_as_one(everywhere):
    """C-14: a job, not an item of a run; how to send it again needs no code."""
    shell = everywhere
    id_, letter = one_failed(shell)
    row = shell("dlq list").stdout.splitlines()[1].split()
    assert row[:4] == [letter, "process_report", "(job)", id_]
    done = shell(f"dlq show {letter}")
    said = done.stdout.splitlines()
    assert f"job          {id_} (process_report), failed in the queue default" in said
    assert said.count("  attempt 1 failed: VendorError: no answer") == 1
    assert "payload, its arguments (masked; --reveal shows it as it is)" in said
    assert not [line for line in said if line.startswith(("run ", "item "))]
    assert done.stderr.splitlines() == [
        f"Send it again: outlast dlq replay {letter}",
        f"Its job: outlast jobs show {id_}",
    ]
    assert [row["attempt"] for row in shell.json(f"dlq show {letter}")["history"]] == [1, 2]


def test_a_job_whose_code_still_runs_is_not_said_to_be_over(everywhere):
    """Past its time, whether an operator cancels it, looks at it or puts it back: nothing of that ends its code."""
    shell = everywhere
    id_ = shell.json("enqueue jobs.py:process_report --arg file_id=f-1")["id"]
    with store_of(shell) as store:
        lease = worker(store, owner="far:17")
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        assert finished(store, lease, end(job, "held", error="too long", error_class="timeout")) == ()
        where = process_of("far:17")
    assert f"job {id_}: cancelled; its code still runs in {where}, past its time" in shell(f"jobs cancel {id_}").stdout
    shown = shell(f"jobs show {id_}").stdout
    assert f"worker       {where}: its code still runs there, although the job has ended\n" in shown
    said = shell(f"jobs requeue {id_}").stdout
    assert f"job {id_}: back in the queue, and begun when its code has ended, which still runs" in said
    with store_of(shell) as store:
        store.release_held(lease, [(job.id, job.token)])
    assert shell(f"jobs cancel {id_}").stdout.splitlines()[-1].endswith(": cancelled")
    assert "still runs" not in shell(f"jobs show {id_}").stdout


def test_a_dead_letter_whose_job_is_not_there_offers_no_replay(shell):
    """Imported from another store: why it cannot be sent again, and a command that does its work all the same."""
    _, letter = one_failed(shell)
    assert shell("dlq export letters").returncode == 0
    assert shell("dlq import letters --store other.db --app shop").returncode == 0
    expected = [
        "It cannot be sent again: its job is not in this store. The letter was imported, or the job is not kept any more.",
        "Enqueue it anew, with its arguments: outlast enqueue FILE:process_report --json-args JSON --store other.db",
    ]
    edit = f"""dlq edit {letter} --payload '{{"file_id": "f-2"}}' --reason typo"""
    for line in (f"dlq show {letter}", edit):
        assert shell(f"{line} --store other.db").stderr.splitlines() == expected
    done = shell("""enqueue jobs.py:process_report --json-args '{"file_id": "f-2"}' --store other.db""")
    assert done.returncode == 0, done.stderr
    # Where its job is, it is offered, and works.
    assert f"Send it again: outlast dlq replay {letter}" in shell(f"dlq show {letter}").stderr
    assert shell(f"dlq replay {letter}").returncode == 0


def test_groups_of_dead_letters_of_jobs_offer_a_replay_that_is_taken(shell):
    """Without the place of code: a worker has that, and a replay of jobs refuses it."""
    one_failed(shell)
    app = App("shop", store=f"sqlite:///{shell.folder}/.outlast/outlast.db")
    groups = app.dead_letters.groups()
    app.store.close()
    command = shlex.join(["dlq", "replay", "--group", groups[0].id, *groups.options])
    assert shell(command).returncode == 0


def test_the_dead_letter_of_a_job_is_edited_replayed_and_put_away(everywhere):
    """Its job gets the new arguments, keeps its id, and goes back into its queue."""
    shell = everywhere
    id_, letter = one_failed(shell)
    done = shell(f'dlq edit {letter} --payload \'{{"file_id": "f-2"}}\' --reason typo')
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            "Whether these arguments fit process_report is checked when a worker runs it: only that has its code.",
            f"Send it again: outlast dlq replay {letter}",
        ],
    )
    done = shell(f"dlq replay {letter}")
    assert (done.returncode, done.stdout) == (0, "1 job requeued.\n")
    assert done.stderr == "No worker is running. Start one: outlast worker TARGET\n"
    shown = shell.json(f"jobs show {id_}")
    assert (shown["status"], shown["arguments"]) == ("queued", {"file_id": "f-2"})
    edited, requeued = shown["changes"]
    assert (edited["change"], edited["reason"], edited["by"]) == ("edited", "typo", requeued["by"])
    assert (requeued["change"], requeued["reason"]) == ("requeued", "its dead letter was replayed")
    told = rf"^edited {{6,7}}\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC by {re.escape(this_user())}: typo$"
    assert re.search(told, shell(f"jobs show {id_}").stdout, re.MULTILINE)
    assert re.search(told, shell(f"dlq show {letter}").stdout, re.MULTILINE)
    assert shell.json("dlq list --status replaying")[0]["item_key"] == id_
    done = shell(f"dlq replay {letter}")
    assert (done.returncode, "is replaying" in done.stderr) == (2, True)
    other, put_away = one_failed(shell, "enqueue jobs.py:process_report --arg file_id=f-9 --priority 9")
    assert shell(f"dlq archive {put_away} --reason 'not wanted'").stdout == "Archived 1.\n"
    assert shell.json(f"jobs show {other}")["status"] == "failed"


def test_stats_say_how_jobs_did(everywhere):
    """S1-22, S1-23: from what is on record, in a table and as a document."""
    shell = everywhere
    one_failed(shell)
    document = shell.json("jobs stats --window 2h")
    assert (document["queues"], document["window"]) == ([], 7200)
    (figures,) = document["figures"]
    means = ("mean_time_to_success", "mean_delay", "mean_backoff", "mean_wait")
    assert [figures.pop(name) for name in means] == [None] * 4
    assert figures == {
        "kind": "process_report", "queue": "default", "succeeded": 0, "failed": 1, "cancelled": 0, "attempts": 2,
        "retry_rate": 1.0, "failure_rate": 1.0, "schema_failure_share": 0.0, "retry_amplification": 2.0, "artifacts": 0,
    }  # fmt: skip
    lines = shell("jobs stats").stdout.splitlines()
    assert lines[:3] == [
        "No queue has jobs that are not over or are to be undone, and none is paused.",
        "",
        "Ended in the last 24 h:",
    ]
    names = [name.replace("\n", " ").replace(" ", "_") for name in _FIGURES]
    assert sorted(names) == sorted(field.name for field in fields(JobFigures) if field.name != "attempts")
    wide = shell("jobs stats", COLUMNS="160").stdout.splitlines()
    shown = [name for name in names if name not in {*means, "artifacts"}]  # which are empty
    assert sorted(" ".join(wide[3:5]).split()) == sorted(" ".join(shown).replace("_", " ").split())
    narrow = shell("jobs stats", COLUMNS="60").stdout.splitlines()
    assert narrow[-2:] == ["    schema failure share 0.0 %", "    retry amplification 2.00"]
    assert wide[5].split() == [
        "process_report",
        "default",
        "0",
        "1",
        "0",
        "100.0",
        "%",
        "100.0",
        "%",
        "0.0",
        "%",
        "2.00",
    ]
    for wrong in ("0", "soon"):
        done = shell(f"jobs stats --window {wrong}")
        assert (done.returncode, "expected --window to be" in done.stderr) == (2, True)


def test_the_window_of_the_figures_is_in_seconds(everywhere):
    """S1-22: a job that ended two minutes ago is in the last hour, and not in the last minute."""
    shell = everywhere
    one_failed(shell)
    with store_of(shell) as store:
        sql(store, "update outlast_jobs set ended = ended - 120000000")
    counted = {
        window: [row["failed"] for row in shell.json(f"jobs stats --window {window}")["figures"]]
        for window in ("1m", "1h", "119", "180")
    }
    assert counted == {"1m": [], "1h": [1], "119": [], "180": [1]}


def test_a_result_that_could_not_be_stored_is_no_text_that_was_returned(shell):
    """Why there is none is told as such, also in JSON."""
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    with store_of(shell) as store:
        lease = worker(store)
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        assert (
            finished(store, lease, end(job, result=Codec().encode({"unstored": "it holds a value of type lock."})))
            == ()
        )
    assert "result       not stored: it holds a value of type lock." in shell("jobs show 1").stdout.splitlines()
    shown = shell.json("jobs show 1")
    assert (shown["result"], shown["result_not_stored"]) == (None, "it holds a value of type lock.")


def test_a_job_is_put_back_from_the_start(everywhere):
    """The steps that it has done are forgotten, and `jobs show` proposes it where there are some."""
    shell = everywhere
    id_, _ = one_failed(shell)
    assert "--from-start" not in shell(f"jobs show {id_}").stderr
    done = shell(f"jobs requeue {id_} --from-start --reason 'mended the row'")
    assert done.stdout == f"job {id_}: back in the queue; all of its steps are done again\n"
    assert [(one["change"], one["reason"]) for one in shell.json(f"jobs show {id_}")["changes"]] == [
        ("forgot steps", "mended the row"),
        ("requeued", "mended the row"),
    ]


def test_documents_are_json_whatever_is_in_them(shell):
    """Every command, with --json: one document on standard output and nothing on standard error but hints."""
    id_, letter = one_failed(shell)
    for line in (
        "jobs list",
        f"jobs show {id_}",
        "jobs stats",
        "jobs workers",
        "jobs schedules",
        f"dlq show {letter}",
        f"jobs requeue {id_}",
    ):
        done = shell(f"{line} --json")
        assert (done.returncode, done.stderr) == (0, ""), line
        json.loads(done.stdout)


def test_a_job_is_found_by_its_number_in_a_store_of_several_apps(shell):
    """Numbers are not used twice in a store; where they are of several apps, the app must be said."""
    (shell.folder / "other.py").write_text("import outlast\napp = outlast.App('other')\n@app.job\ndef other(): ...\n")
    one = shell.json("enqueue jobs.py:process_report --arg file_id=f-1")["id"]
    two = shell.json("enqueue other.py:other")["id"]
    assert [shell.json(f"jobs show {id_}")["kind"] for id_ in (one, two)] == ["process_report", "other"]
    (end,) = [line for line in shell(f"jobs show {two}").stderr.splitlines() if line.startswith("To end it")]
    assert end == f"To end it: outlast jobs cancel {two} --app other"
    assert shell(end.partition("outlast ")[2]).stdout == f"job {two}: cancelled\n"
    assert shell(f"jobs requeue {two}").stdout == f"job {two}: back in the queue\n"
    done = shell("jobs show 77")
    assert (done.returncode, done.stderr) == (2, "There is no job 77 in this store.\n")
    done = shell(f"jobs show {two} --app shop")
    assert (done.returncode, done.stderr) == (2, f"There is no job {two} of the app 'shop': it is one of 'other'.\n")
    done = shell("jobs cancel 77")
    assert (done.returncode, done.stdout) == (1, "job 77: nothing was done: there is no such job.\n")
    for line, about in (
        ("pause default", "a queue of jobs"),
        (f"cancel {one}", "jobs"),
        ("cancel 1 --app shop", "jobs"),
    ):
        done = shell(line)
        command = " ".join(line.split()[:2])
        said = f"This command is about runs. About {about}: outlast jobs {command}"
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, said)
    done = shell(f"jobs cancel {one} {two}")
    assert (done.returncode, "These jobs are of more than one." in done.stderr) == (2, True)
    assert shell("jobs show 99").returncode == 2


def test_hints_are_commands_that_work_when_they_are_copied(shell):
    """With the store and the app that were named, and those that the store needs."""
    where = "--store sqlite:///elsewhere.db"
    id_ = shell.json(f"enqueue jobs.py:process_report --arg file_id=f-1 {where}")["id"]
    done = shell(f"jobs pause default {where} --app shop")
    (hint,) = done.stderr.splitlines()
    assert hint == f"To go on: outlast jobs resume default {where} --app shop"
    assert shell(hint.partition("outlast ")[2]).returncode == 0
    assert shell(f"jobs stats {where}").stderr == (f"No worker is running. Start one: outlast worker TARGET {where}\n")
    assert shell(f"jobs workers {where} --app shop").stdout == (
        f"No worker is running. Start one: outlast worker TARGET {where}\n"
    )
    shown = shell(f"jobs show {id_} {where} --app shop").stderr.splitlines()
    assert f"To end it: outlast jobs cancel {id_} {where} --app shop" in shown


def test_steps_and_artifacts_of_a_job(everywhere):
    """Names and sizes in `show`; what was kept is printed masked, as it is with --reveal, and written to a file."""
    shell = everywhere
    shell("enqueue jobs.py:process_report --arg file_id=f-1")
    text = 'answer: {"password": "hunter2hunter2"}'
    with store_of(shell) as store:
        lease = worker(store)
        (job,) = store.turn(lease, [], {"default": 1}, KINDS).claimed
        codec = Codec()
        rows = [
            NewStep(job.id, job.token, 1, "ask", "a", "p", codec.encode({"value": 1})),
            NewArtifact(job.id, job.token, 1, "answer", codec.encode(text), len(text), cut=False),
            NewArtifact(job.id, job.token, 1, "image", codec.encode(b"\xff\0"), 2_000_000, cut=True),
        ]
        assert store.put_results(rows, lease) == [True] * 3
    shown = shell("jobs show 1")
    assert re.search(r"^ask +1 ", shown.stdout, re.MULTILINE)
    assert re.search(r"^answer +1 +38 ", shown.stdout, re.MULTILINE)
    assert re.search(r"^image +1 +2,000,000, cut ", shown.stdout, re.MULTILINE)
    assert "hunter2" not in shown.stdout
    assert "What it has kept: outlast jobs artifact 1 image" in shown.stderr
    document = shell.json("jobs show 1")
    assert [(step["name"], step["attempt"]) for step in document["steps"]] == [("ask", 1)]
    assert [(kept["name"], kept["size"], kept["cut"]) for kept in document["artifacts"]] == [
        ("answer", 38, False),
        ("image", 2_000_000, True),
    ]
    assert "hunter2" not in shell("jobs artifact 1 answer").stdout
    assert shell("jobs artifact 1 answer --attempt 1 --reveal").stdout.strip() == text
    refused = shell("jobs artifact 1 image")
    assert (refused.returncode, "Write them to a file with --output" in refused.stderr) == (2, True)
    assert shell("jobs artifact 1 image --output image.bin").stdout == "Wrote 2 bytes to image.bin.\n"
    assert (shell.folder / "image.bin").read_bytes() == b"\xff\0"
    unknown = shell("jobs artifact 1 answr")
    assert (unknown.returncode, "Did you mean 'answer'?" in unknown.stderr) == (2, True)
    assert "in attempt 2" in shell("jobs artifact 1 answer --attempt 2").stderr
    with store_of(shell) as store:
        assert finished(store, lease, end(job, "failed")) == ()
    proposed = "To do its steps again, too: outlast jobs requeue 1 --from-start"
    assert proposed in shell("jobs show 1").stderr.splitlines()


# --- an app that names its own store ---

OWN = """
import outlast

app = outlast.App("shop", store="sqlite:///shop.db")

@app.job
def pay(zeta: str, alpha: int = 1, mid: str = "") -> None:
    outlast.current().keep("answer", "raw text")
    raise outlast.PermanentFailure("refused " * 60)
"""


@pytest.fixture
def own(tmp_path):
    """A program whose app names its own store."""
    return Shell(tmp_path, {"shop.py": OWN})


def hinted(done, beginning):
    """The command of a hint, without the name of the program."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(beginning)]
    return line.partition("outlast ")[2]


def test_hints_name_the_store_that_an_app_names_itself(own):
    """Each is a command that works when it is copied; the worker is loaded with its store, and needs no option."""
    done = own("enqueue shop.py:pay --arg zeta=z")
    assert hinted(done, "Look at it") == "jobs show 1 --store sqlite:///shop.db"
    assert "No worker is running. Start one: outlast worker shop.py" in done.stderr.splitlines()
    assert own(hinted(done, "Look at it")).returncode == 0
    worked = own("worker shop.py --until-idle")
    for beginning in ("Which have failed", "As a few problems"):
        found = own(hinted(worked, beginning))
        assert (found.returncode, "pay" in found.stdout) == (0, True)
    letter = own.json("dlq list --store shop.db")[0]["id"][:12]
    shown = own(f"dlq show {letter} --store shop.db")
    assert "kept         answer, 8 bytes, by attempt 1" in shown.stdout.splitlines()
    assert own(hinted(shown, "What it has kept")).stdout == "raw text\n"


def test_no_option_is_hinted_where_the_command_finds_the_store(own):
    """The environment names the same file, in another spelling."""
    done = own("enqueue shop.py:pay --arg zeta=z", OUTLAST_STORE=str(own.folder / "shop.db"))
    assert hinted(done, "Look at it") == "jobs show 1"
    assert "OUTLAST_STORE" not in done.stderr


@pytest.mark.parametrize("line", ["enqueue shop.py:pay --arg zeta=z", "worker shop.py --until-idle"])
def test_an_environment_that_names_another_store_than_the_app_is_told(own, line):
    """It is not used, and that is no secret."""
    done = own(line, OUTLAST_STORE="postgresql://ann:hunter2@db/shop")
    assert done.returncode == 0
    target = line.split()[1]
    assert (
        f"{target} says itself where its jobs are kept: OUTLAST_STORE, which says otherwise, is not used."
        in done.stderr.splitlines()
    )
    assert "hunter2" not in done.stderr


def test_a_password_is_not_hinted_and_the_way_out_is_told(tmp_path, postgres_server):
    """The command needs it: the person has it."""
    address = re.sub("//([^:@/]*)(:[^@]*)?@", r"//\1:hunter2@", postgres_server.database("jobs_hidden").dsn)
    assert "hunter2" in address
    shell = Shell(tmp_path, {"shop.py": OWN.replace("sqlite:///shop.db", address)})
    done = shell("enqueue shop.py:pay --arg zeta=z")
    assert (done.returncode, "hunter2" in done.stderr) == (0, False), done.stderr
    assert "--store" in hinted(done, "Look at it")
    assert done.stderr.splitlines()[-1] == (
        "The password of the store is not shown: write it instead of ***, or set OUTLAST_STORE to the whole address."
    )


def test_a_store_that_cannot_be_reached_is_told_with_the_way_out(own):
    """The driver's lines become sentences."""
    done = own("jobs list --store postgresql://ann@127.0.0.1:1/shop")
    assert done.returncode == 1
    assert done.stderr.startswith("the store 'shop' on 127.0.0.1 failed: connection failed: ")
    assert done.stderr.endswith(
        "Connection refused. Is the server running on that host and accepting TCP/IP connections? "
        "If it is not the right one: --store or OUTLAST_STORE.\n"
    )


@pytest.mark.parametrize(
    ("code", "way"),
    [(OWN, "shop.py:pay names it."), (OWN.replace("sqlite:///shop.db", ""), "--store or OUTLAST_STORE.")],
)
def test_an_enqueue_into_a_store_that_cannot_be_reached_has_the_way_out(tmp_path, code, way):
    """Which is the app itself, if that names its store."""
    away = "postgresql://ann@127.0.0.1:1/shop"
    code = code.replace("sqlite:///shop.db", away).replace(', store=""', "")
    done = Shell(tmp_path, {"shop.py": code})(
        "enqueue shop.py:pay --arg zeta=z", OUTLAST_STORE="" if away in code else away
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"TCP/IP connections? If it is not the right one: {way}\n")


def test_where_no_store_is_the_folder_and_jobs_are_named(own):
    """A person who enqueues in one folder and looks in another sees why."""
    done = own("jobs show 1")
    assert done.returncode == 2
    first, second, third = done.stderr.splitlines()
    assert first == f"There is no store at sqlite:///.outlast/outlast.db in {own.folder}: nothing has run here yet."
    assert "outlast enqueue" in second
    assert "outlast worker" in second
    assert "--store or OUTLAST_STORE" in third


def test_arguments_are_shown_in_the_order_of_the_function(own):
    """However they were given."""
    own("enqueue shop.py:pay --arg mid=m --arg alpha=2 --arg-json zeta='\"z\"'")
    assert list(own.json("jobs show 1 --store shop.db")["arguments"]) == ["zeta", "alpha", "mid"]


LONG = r"""
import outlast

app = outlast.App("shop")


@app.job(retry=outlast.RetryPolicy(delays=[0]))
def pay(order: str) -> None:
    number = outlast.current().attempt
    raise ConnectionResetError(f"first{number} \x1b[2J\nHTTP Error 422: " + "see https://example.org/errors?a=1 頁 " * 4 + "x" * 60 + f" last{number}")
"""


@pytest.fixture(scope="module")
def long_errors(tmp_path_factory):
    """A job that has failed in two attempts, each with a long message of its own, and its dead letter."""
    shell = Shell(tmp_path_factory.mktemp("long"), {"shop.py": LONG})
    assert shell("enqueue shop.py:pay --arg order=a").returncode == 0
    shell("worker shop.py --until-idle")
    return shell


@table(
    ("line", "told"),
    [
        (
            "jobs show 1",
            "attempt outcome started took then error failed due no other: exhausted first1 last1 first2 last2",
        ),
        ("jobs list", "job kind queue status attempts ended error pay default failed 2 first2 last2"),
        ("dlq list --status all", "id pipeline stage item status attempts last attempt error (job) open first2 last2"),
        ("dlq groups", "count share group stage error class last seen message 100 % first2 last2"),
        ("dlq show LETTER", "attempt 1 failed attempt 2 failed first1 last1 first2 last2"),
    ],
)
def test_nothing_is_cut_or_left_out_in_a_narrow_terminal(long_errors, line, told):
    """Every column is there or beneath its row, every error is whole, and no row is wider than the terminal."""
    line = line.replace("LETTER", long_errors.json("dlq list")[0]["id"])
    piped = long_errors(line).stdout
    whole = piped.split()
    for width in (40, 60, 80, 120):
        said = long_errors(line, COLUMNS=str(width)).stdout
        assert "…" not in said
        assert not set(told.split()) - set(said.split()), width
        assert said.count("x") >= piped.count("x") > 60  # a word that is wider than the terminal is broken, not cut
        assert sum(word.startswith("last") for word in said.split()) == sum(word.startswith("last") for word in whole)
        rows = said[said.index("\n\n") :] if line == "jobs show 1" else "" if line.startswith("dlq show") else said
        assert max(map(cell_len, rows.splitlines()), default=0) <= width


def test_a_row_that_cannot_fit_becomes_a_block(capsys, monkeypatch):
    """A name of a kind may be longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "30")
    print_full_rows(
        ("kind", "retry\nrate", "queue"), [("k" * 40, "1.0 %", "mail"), ("pay", None, "q" * 40)], below=("queue",)
    )
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "k" * 30,
        "k" * 10,
        "    retry rate  1.0 %",
        "    queue       mail",
        "",
        "pay",
        "    queue  " + "q" * 19,
        "           " + "q" * 19,
        "           qq",
    ]


def test_a_pipe_gets_one_line_for_each_row(long_errors):
    """A program may read it line by line: nothing is cut there, either."""
    said = long_errors("jobs show 1").stdout.splitlines()
    heading, first, second = said[said.index("") + 1 :][:3]
    assert heading.split() == ["attempt", "outcome", "started", "took", "then", "error"]
    assert re.search(r"^ +1  failed .* connection_reset: first1 .*last1$", first)
    assert re.search(r"^ +2  failed .* no other: exhausted +connection_reset: first2 .*last2$", second)
    heading, row = long_errors("jobs list").stdout.splitlines()
    assert heading.split() == ["job", "kind", "queue", "status", "attempts", "ended", "error"]
    assert row.endswith("last2")


def test_an_edited_payload_that_does_not_fit_is_told_as_such(own):
    """The name of the error is no internal one, the nearest name is given, and editing again is the first advice."""
    own("enqueue shop.py:pay --arg zeta=z")
    own("worker shop.py --until-idle")
    letter = own.json("dlq list --store shop.db")[0]["id"]
    own(f'dlq edit {letter} --store shop.db --reason typo --payload \'{{"zetta": "z"}}\'')
    own(f"dlq replay {letter} --store shop.db")
    own("worker shop.py --until-idle")
    shown = own.json("jobs show 1 --store shop.db")
    assert (shown["error_type"], shown["error_class"]) == ("JobArgumentsError", "validation_error")
    assert "Did you mean 'zeta'?" in shown["error"]
    assert "If they were edited, edit them again with outlast dlq edit." in shown["error"]


# --- what undoes a job ---

ORDERS = """
from pathlib import Path

import outlast

app = outlast.App("shop")


def release(number: int) -> None:
    if Path("locked").exists():
        raise PermissionError("the room is locked")


def refund(number: int) -> None:
    pass


def reserve(number: int) -> None:
    outlast.current().compensate(release, number)


@app.job(retry=None)
def order(number: int) -> None:
    outlast.current().step("reserve", reserve, number)
    outlast.current().compensate(refund, number)
    raise ValueError("no money")
"""


def test_a_job_that_a_worker_has_taken_to_undo_is_not_said_to_run(tmp_path):
    """Nothing of it is begun yet: what is on record is that a worker has it."""
    slow = 'print("undoing", flush=True)\n    input()'
    shell = Shell(tmp_path, {"orders.py": ORDERS.replace("    pass", f"    {slow}")})
    shell("enqueue orders.py:order --arg number=3")
    process = shell.start("worker orders.py")
    assert process.stdout.readline() == "undoing\n"
    with open_store(f"sqlite:///{tmp_path}/.outlast/outlast.db", app="shop") as store:
        sql(store, "update outlast_compensations set state = 'registered'")
    shown = shell("jobs show 1").stdout
    process.kill()
    process.communicate(timeout=60)
    assert (": it is with that worker, to be undone\n" in shown, "still runs" in shown) == (True, False)


def test_a_job_whose_worker_was_killed_while_it_undid_it_is_seen_everywhere(tmp_path):
    """U-23, C-21, D-16: nobody is there who could take it over, and every command says so, and what to do."""
    slow = 'print("undoing", flush=True)\n    input()'
    shell = Shell(tmp_path, {"orders.py": ORDERS.replace("    pass", f"    {slow}")})
    shell("enqueue orders.py:order --arg number=3")
    process = shell.start("worker orders.py")
    assert process.stdout.readline() == "undoing\n"
    assert "it is being undone there" in shell("jobs show 1").stdout
    process.kill()
    process.communicate(timeout=60)
    shown = shell("jobs show 1")
    assert (
        "waits        It is to be undone, and its worker is gone: a worker of this app takes it over. No worker is running."
        in (shown.stdout.splitlines())
    )
    assert "Start one: outlast worker TARGET" in shown.stderr.splitlines()
    (row,) = [line for line in shown.stdout.splitlines() if line.lstrip().startswith("orders:refund")]
    assert "begun, its worker is gone" in row
    stats = shell("jobs stats")
    assert [line.split() for line in stats.stdout.splitlines()[:2]] == [
        ["queue", "queued", "scheduled", "processing", "to", "undo", "paused", "oldest", "wait"],
        ["default", "0", "0", "0", "1"],
    ]
    assert "No worker is running. Start one: outlast worker TARGET" in stats.stderr.splitlines()
    workers = shell("jobs workers")
    assert "no; another worker takes its jobs over" in workers.stdout
    assert workers.stderr.splitlines() == ["No worker is running. Start one: outlast worker TARGET"]
    with open_store(f"sqlite:///{tmp_path}/.outlast/outlast.db", app="shop") as store:
        sql(store, "update outlast_leases set until = until - 600000000")
    metrics = shell("metrics").stdout.splitlines()
    assert [line for line in metrics if line.startswith("outlast_jobs_undoing")] == [
        'outlast_jobs_undoing{app="shop",state="pending"} 1',
        'outlast_jobs_undoing{app="shop",state="running"} 0',
        'outlast_jobs_undoing{app="shop",state="failed"} 0',
    ]
    check = shell("alerts check --rule stuck_jobs=1s")
    assert (check.returncode, "1 job waiting to be compensated for more than 1 s" in check.stdout) == (1, True)
    with shell.start("worker orders.py --until-idle") as other:
        other.communicate("\n", timeout=60)
    assert shell.json("jobs show 1")["compensation"] == "completed"
    assert (
        shell("alerts check --rule stuck_jobs=1s --rule compensation_failed=off --rule job_failed=off").returncode == 0
    )


def test_what_undoes_a_job_is_shown_and_tried_again(tmp_path):
    """C-21: by workers of the command line, which know the functions by the names of their modules."""
    shell = Shell(tmp_path, {"orders.py": ORDERS})
    (tmp_path / "locked").touch()
    shell("enqueue orders.py:order --arg number=3")
    shell("worker orders.py --until-idle")
    shown = shell.json("jobs show 1")
    assert (shown["status"], shown["error"], shown["compensation"]) == ("failed", "no money", "failed")
    seen = [
        (one["function"], one["step"], one["status"], one["attempts"], one["error"]) for one in shown["compensations"]
    ]
    assert seen == [
        ("orders:release", "reserve", "failed", 1, "the room is locked"),
        ("orders:refund", None, "completed", 1, None),
    ]
    letter = shown["compensations"][0]["dead_letter"][:12]
    done = shell("jobs show 1")
    rows = [line.split() for line in done.stdout.splitlines() if line.lstrip().startswith("orders:")]
    assert [row[:3] for row in rows] == [["orders:release", "reserve", "failed"], ["orders:refund", "completed", "1"]]
    assert "To undo what still stands: outlast jobs compensate 1" in done.stderr
    assert f"If it was undone by hand: outlast dlq archive {letter} --reason 'undone by hand'" in done.stderr
    assert "jobs requeue" not in done.stderr
    refused = shell("jobs requeue 1")
    assert (refused.returncode, "Try it once more: outlast jobs compensate 1." in refused.stdout) == (1, True)
    about = shell(f"dlq show {letter}")
    assert "undoing      release of order, in the job 1" in about.stdout
    assert "Once the cause is gone, a worker tries it again: outlast jobs compensate 1" in about.stderr
    assert shell(f"dlq replay {letter}").returncode == 2
    (tmp_path / "locked").unlink()
    done = shell("jobs compensate 1 --reason unlocked")
    assert (done.returncode, done.stdout) == (0, "job 1: 1 function to be called, by a worker\n")
    shell("worker orders.py --until-idle")
    assert shell.json("jobs show 1")["compensation"] == "completed"
    again = shell("jobs compensate 1 2")
    assert (again.returncode, again.stdout.splitlines()) == (
        1,
        [
            "job 1: nothing was done: all that it has registered is undone, or it has registered nothing.",
            "job 2: nothing was done: there is no such job.",
        ],
    )
    assert shell("jobs requeue 1").stdout == "job 1: back in the queue\n"
