"""
Make the stores that are kept here, with the Outlast that is to be remembered:

    git worktree add --detach ../old COMMIT
    PYTHONPATH=$(realpath ../old/src) .venv/bin/python tests/store/old/make.py NAME

writes NAME.db (SQLite), NAME.sql (the same for PostgreSQL) and NAME.jsonl, the sink of their interrupted run; from the version on that has jobs, these
too. The one thing that names this machine is replaced: who had the leases, and where the sink was.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psycopg

import outlast

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
NEVER_COMMITTED = '{"id": 7, "label": "half a li'
FOLDER = "/where/it/was"
PAUSE = 0.01  # seconds between two looks at a store
ELSEWHERE = "gone.example/4026531836:4711:123456:1"


def tell(url, what):
    """One part of the story, in a process of its own: some of them die."""
    import pipelines

    app = outlast.App("shop", store=url)
    rows = pipelines.ROWS
    match what:
        case "completed":
            pipelines.nightly(app, []).run(rows[:3], run_key="first", item_key="id")
        case "letters":  # four open ones at the second stage, each with its stored source
            pipelines.nightly(app, [], bad={4, 5, 6, 7, 8, 9}).run(
                rows[3:10], run_key="second", item_key="id", check=False
            )
            app.dead_letters.archive(ids=[letter_of(app, 4)], reason="not ours")
            replay(app, pipelines.nightly(app, []), 5)
        case "pictures":
            pipelines.pictures(app, [], broken=True).run([1], run_key="one", item_key=str, check=False)
        case "things":
            pipelines.things(app, [], broken=True).run(
                [pipelines.Picture(1)], run_key="one", item_key=lambda _: "a", check=False
            )
        case "replay":  # it dies in the middle, with a letter in its hands
            replay(app, pipelines.nightly(app, [], first=dying_at(6)), 6)
        case "interrupted":
            pipelines.nightly(
                app,
                [],
                bad={2},
                error=ValueError,
                first=dying_at(7, lambda: app.store.find_run("nightly", "third").counts.succeeded == 6),
            ).run(rows, run_key="third", item_key="id", sink="out.jsonl", ordered=True, check=False)
        case "jobs":
            tell_jobs(app)
        case "crash":  # a worker dies with two jobs, one of which was given up before
            kinds = durable(app)
            ids = [int(kinds[kind].options(queue="last").enqueue(n).id) for kind, n in (("stay", 6), ("linger", 7))]
            wanted = ["processing", "held"]
            ready = lambda: [app.store.job(number).state for number in ids] == wanted  # noqa: E731
            threading.Thread(target=die_when, args=(ready,), daemon=True).start()
            app.work(queues=["last"])


def durable(app):
    import durable

    return durable.declare(app, [], broken=True)


def tell_jobs(app):
    """One in every state that a living worker leaves, and a paused queue."""
    kinds = durable(app)
    kinds["send"].options(unique_key="done").enqueue(1)
    kinds["refuse"].enqueue(2)
    kinds["hesitate"].enqueue(3)
    app.jobs.pause("mail")
    kinds["write"].enqueue(4)
    app.work(until_idle=True)
    kinds["send"].options(unique_key="due").enqueue(5)


def die_when(ready):
    """Die as kill -9 does it."""
    while not ready():
        threading.Event().wait(PAUSE)
    os._exit(9)


def dying_at(number, ready=lambda: True):
    """Die at this item as kill -9 does it, once what came before is on record."""

    def first(reached):
        if reached == number:
            if ready():  # asks the store
                os._exit(9)
            raise outlast.Snooze(PAUSE)  # it may be ahead of others, and has the only place

    return first


def replay(app, pipeline, number):  # an app forgets a pipeline that nobody keeps
    assert app.dead_letters.replay(ids=[letter_of(app, number)]).pipeline == pipeline.name


def letter_of(app, number):
    return next(letter.id for letter in app.dead_letters.find(text=f"no label for {number}"))


def story(url, folder):
    parts = ["completed", "letters", "pictures", "things", "replay", "interrupted"]
    parts += ["jobs", "crash"] * hasattr(outlast.App, "job")
    for what in parts:
        done = subprocess.run([sys.executable, __file__, "--tell", url, what], cwd=folder, check=False)
        assert done.returncode == (9 if what in {"replay", "interrupted", "crash"} else 0), what


def neutral(execute, folder):
    """Nothing of this machine; and the leases of the dead are over."""
    execute(f"update outlast_shards set owner = '{ELSEWHERE}', until = 1 where owner <> ''")
    if hasattr(outlast.App, "job"):
        execute(f"update outlast_leases set owner = '{ELSEWHERE}', until = 1 where owner <> ''")
    execute(f"update outlast_runs set sink_at = replace(sink_at, '{folder}', '{FOLDER}')")
    if hasattr(outlast.AttemptRow, "place"):  # where jobs have failed is on record
        execute(f"update outlast_job_attempts set traceback = replace(traceback, '{HERE}', '{FOLDER}')")


def main(name):
    from servers.postgres import Postgres, programs

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        story(url, folder)
        connection = sqlite3.connect(f"{folder}/store.db")
        neutral(connection.execute, folder)
        connection.commit()
        connection.execute("pragma journal_mode = delete")
        connection.execute("vacuum")
        connection.close()
        shutil.copy(f"{folder}/store.db", HERE / f"{name}.db")
        (HERE / f"{name}.jsonl").write_text(Path(folder, "out.jsonl").read_text() + NEVER_COMMITTED)
    with tempfile.TemporaryDirectory() as folder, Postgres() as server:
        story(server.dsn, folder)
        with psycopg.connect(server.dsn) as connection:
            neutral(connection.execute, folder)
        binary = programs() / "pg_dump"
        dump = subprocess.run(
            [binary, "--inserts", "--no-owner", "--no-privileges", server.dsn],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        kept = [
            line
            for line in dump.splitlines()
            if line and not line.startswith(("--", "\\", "SET ", "SELECT pg_catalog.set_config"))
        ]
        (HERE / f"{name}.sql").write_text("\n".join(kept) + "\n")
        assert Path(folder, "out.jsonl").read_text() + NEVER_COMMITTED == (HERE / f"{name}.jsonl").read_text()


if __name__ == "__main__":
    if sys.argv[1] == "--tell":
        tell(sys.argv[2], sys.argv[3])
    else:
        main(Path(sys.argv[1]).name)
