"""Durable jobs from a shell, as an operator uses them: what is printed, what comes next, and the exit code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import uuid4

import pytest

from job_rows import end, finished, worker
from outlast.cli.arguments import _Wrong, typed
from outlast.store import open_store
from shells import Shell
from stores import letter as dead_letter
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
        "The queue default is paused. Resume it: outlast jobs resume default",
        "No worker is running.",
        "To end it: outlast jobs cancel 1",
    ]
    assert shell("jobs resume default").returncode == 0
    assert shell.json("jobs show 1")["waits_for"] == ["No worker is running."]


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
        ("jobs show 77", "There is no job 77. Those there are: outlast jobs list"),
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
    done = shell("jobs pause mail mial")
    assert (done.returncode, done.stdout) == (0, "Paused mail, mial.\n")
    assert done.stderr.splitlines() == [
        "No job was ever in the queue 'mial'. Did you mean 'mail'?",
        "To go on: outlast jobs resume mail mial",
    ]
    assert shell("jobs resume mial").returncode == 0
    default, mail = shell.json("jobs stats")
    assert default.pop("oldest_wait") > 0
    assert default == {"queue": "default", "queued": 1, "scheduled": 0, "processing": 0, "paused": False}
    assert mail == {"queue": "mail", "queued": 0, "scheduled": 1, "processing": 0, "paused": True, "oldest_wait": None}
    shown = shell("jobs stats")
    assert [line.split()[:4] for line in shown.stdout.splitlines()[1:]] == [
        ["default", "1", "0", "0"],
        ["mail", "0", "1", "0"],
    ]
    assert shown.stderr.splitlines() == [
        "To go on: outlast jobs resume mail",
        "No worker is running. Start one: outlast worker TARGET",
    ]
    assert shell("jobs workers").stdout == "No worker is running. Start one: outlast worker TARGET\n"


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
    assert "payload, its arguments (masked; --reveal prints it as it is)" in said
    assert not [line for line in said if line.startswith(("run ", "item "))]
    assert done.stderr.splitlines() == [
        f"Send it again: outlast dlq replay {letter}",
        f"Its job: outlast jobs show {id_}",
    ]
    assert [row["attempt"] for row in shell.json(f"dlq show {letter}")["history"]] == [1, 2]


def test_the_dead_letter_of_a_job_is_edited_replayed_and_put_away(everywhere):
    """Its job gets the new arguments, keeps its id, and goes back into its queue."""
    shell = everywhere
    id_, letter = one_failed(shell)
    done = shell(f'dlq edit {letter} --payload \'{{"file_id": "f-2"}}\' --reason typo')
    assert (done.returncode, done.stderr) == (0, f"Send it again: outlast dlq replay {letter}\n")
    done = shell(f"dlq replay {letter}")
    assert (done.returncode, done.stdout) == (0, "1 job requeued.\n")
    assert done.stderr == "No worker is running. Start one: outlast worker TARGET\n"
    shown = shell.json(f"jobs show {id_}")
    assert (shown["status"], shown["arguments"]) == ("queued", {"file_id": "f-2"})
    assert shell.json("dlq list --status replaying")[0]["item_key"] == id_
    done = shell(f"dlq replay {letter}")
    assert (done.returncode, "is replaying" in done.stderr) == (2, True)
    other, put_away = one_failed(shell, "enqueue jobs.py:process_report --arg file_id=f-9 --priority 9")
    assert shell(f"dlq archive {put_away} --reason 'not wanted'").stdout == "Archived 1.\n"
    assert shell.json(f"jobs show {other}")["status"] == "failed"


def test_documents_are_json_whatever_is_in_them(shell):
    """Every command, with --json: one document on standard output and nothing on standard error but hints."""
    id_, letter = one_failed(shell)
    for line in (
        "jobs list",
        f"jobs show {id_}",
        "jobs stats",
        "jobs workers",
        f"dlq show {letter}",
        f"jobs requeue {id_}",
    ):
        done = shell(f"{line} --json")
        assert (done.returncode, done.stderr) == (0, ""), line
        json.loads(done.stdout)
