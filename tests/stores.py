"""What tests of the store say again and again: rows, batches, everything that is in it, and a connection that fails on request."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from itertools import count
from pathlib import Path

import psycopg

from outlast.store import open_store
from outlast.store.records import AttemptRow, Changes, DeadLetterRow, ItemRow, StageMark

START = 1_800_000_000_000_000  # microseconds: in January 2027
STAGES = (StageMark("parse"), StageMark("label", "2", checkpoint=True))
TABLES = tuple(
    f"outlast_{name}"
    for name in (
        "runs shards progress items attempts checkpoints dead_letters replays events states leases jobs job_attempts queues schedules "
        "workers steps artifacts idempotency unique_keys flow_steps step_attempts"
    ).split()
)
_numbers = count(1)


@functools.cache
def _blank() -> bytes:
    """A new store of SQLite with nothing in it, as a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "blank.db")
        open_store(str(path)).close()
        return path.read_bytes()


def prepared(path: Path) -> str:
    """
    The address of a new store of SQLite with nothing in it. It is a copy, with an identity of its own: to make one, step by
    step, takes longer than most tests do.
    """
    path.write_bytes(_blank())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update outlast_store set id = lower(hex(randomblob(32)))")
    return str(path)


def started(store, run_key="today", *, pipeline="reviews", owner="first", ttl=600.0):
    """A run and the lease on its only shard."""
    run = store.open_run(pipeline, run_key, STAGES)
    lease = store.take_run(run.number, 0, owner, ttl)
    assert lease is not None
    return run, lease


def address_of(store, *, name=None):
    """Where a store is; with a name, that of another database of the same server."""
    database = store._database
    if database.name == "sqlite":
        return f"sqlite:///{database.path}"
    known = database._settings
    port = f"&port={known['port']}" if "port" in known else ""
    return f"postgresql://{known['user']}:@/{name or known['dbname']}?host={known['host']}{port}"


def left_running(store):
    """Leave all runs of a store as a process does that is killed in the middle of them."""
    with store._database.writing() as tx:
        tx.execute("update outlast_runs set status = 'running', finished = null")
        tx.execute("update outlast_progress set sink_mark = replace(sink_mark, ' whole', '')")


def item(seq, status="succeeded", **fields):
    given = {
        "key": f"key-{seq}",
        "stage": 1,
        "attempts": 2,
        "degraded": False,
        "reason": None,
        "warnings": (),
        "spent": {},
        "output": None,
        "started_us": START + seq,
        "took_us": 10,
    }
    return ItemRow(seq=seq, status=status, **(given | fields))


def attempt(seq, stage=0, number=1, *, pass_=1, outcome="success", **fields):
    return AttemptRow(seq, stage, pass_, number, outcome, START + seq, 5, **fields)


def letter(number=None, **fields):
    number = next(_numbers) if number is None else number
    given = {
        "id": f"{number:032x}",
        "run": None,
        "seq": number,
        "pipeline": "reviews",
        "stage": "label",
        "item_key": f"key-{number}",
        "payload": b'{"v":1,"d":1}',
        "error": "the service answered 503",
        "error_type": "VendorError",
        "error_class": "server_error",
        "tier": "http_500_502_504",
        "fingerprint": "f" * 16,
        "attempts": 3,
        "first_failed_us": START + number,
        "last_attempt_us": START + number + 1,
        "created_us": START + number + 2,
    }
    return DeadLetterRow(**(given | fields))


def changes(*seqs, pass_=1, **fields):
    """Items that succeeded, each with an attempt at both stages."""
    given = {
        "items": [item(seq) for seq in seqs],
        "attempts": [attempt(seq, stage, pass_=pass_) for seq in seqs for stage in (0, 1)],
        "read": max(seqs, default=-1) + 1,
    }
    return Changes(**(given | fields))


def sql(store, statement, *parameters):
    """Rows of a statement of the test's own."""
    with store._database.writing() as tx:
        done = tx.execute(statement, *parameters)
        return [tuple(row) for row in done.fetchall()] if statement.startswith("select") else done.rowcount


def contents(store):
    """Every row there is."""
    return {table: sorted(map(repr, sql(store, f"select * from {table}"))) for table in TABLES}


def counts(store, run):
    """The run's counters, and the same counted from its rows; they must agree."""
    kept = store.run(run.id).counts
    rows = dict(sql(store, "select status, count(*) from outlast_items where run = ? group by status", run.number))
    degraded = [item for item in store.items(run.number, limit=100_000) if item.degraded]
    recount = tuple(rows.get(status, 0) for status in ("succeeded", "skipped", "dlq", "failed"))
    return (kept.succeeded, kept.skipped, kept.dlq, kept.failed, kept.degraded), (*recount, len(degraded))


class Brittle:
    """A connection that fails at its n-th statement from now, before it is done or after."""

    def __init__(self, connection, plan):
        self._connection = connection
        self._plan = plan

    def execute(self, statement, *parameters, **how):
        return self._plan.around(lambda: self._connection.execute(statement, *parameters, **how))

    def cursor(self):
        self._plan.around(lambda: None)
        return self._connection.cursor()

    def __getattr__(self, name):
        return getattr(self._connection, name)


class Plan:
    """When to fail: ``at`` counts statements from 1; None never."""

    def __init__(self, store, monkeypatch):
        database = store._database
        self._error = sqlite3.OperationalError if database.name == "sqlite" else psycopg.OperationalError
        self.at = None
        self.after = False
        self.seen = 0
        connect = database.connect
        monkeypatch.setattr(database, "connect", lambda **given: Brittle(connect(**given), self))
        database._disconnect()

    def fail(self, at, *, after=False):
        self.at, self.after, self.seen = at, after, 0

    def around(self, statement):
        self.seen += 1
        if self.seen == self.at and not self.after:
            raise self._error("planted")
        done = statement()
        if self.seen == self.at:
            del done  # SQLite cannot commit while somebody holds the rows of a statement, and an error holds its frames
            raise self._error("planted")
        return done
