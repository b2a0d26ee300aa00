"""
Floors, written by hand: what the database and its driver make of it with nothing around.

    fenced 500   finish the last batch and claim the next in one statement: a token guards each end, a row is kept of each attempt
    bare 500     the same with neither: a state that changes twice

COPY fills it; a notification wakes it for a single job. With SQLite it is two statements in one transaction, and many rows in one INSERT.
"""

import asyncio
import json
import sqlite3
import time

import queues

POSTGRES = queues.database().startswith("postgresql:")
NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
TABLES = [
    """create table jobs (id {id}, queue text not null, kind text not null, state text not null, priority int not null default 0,
        payload text not null, token int not null default 0, worker text, claimed bigint, ended bigint)""",
    "create index ready on jobs (queue, priority desc, id) where state = 'ready'",
    """create table attempts (job bigint not null, number int not null, token int not null, worker text, started bigint,
        took bigint, outcome text not null, primary key (job, number)) {without}""",
    "create table steps (job bigint not null, name text not null, result text, primary key (job, name)) {without}",
]
PICKED = "select id from jobs where queue = 'default' and state = 'ready' order by priority desc, id limit {limit}"
FENCED = f"""
with done as (
    update jobs set state = 'succeeded', ended = {NOW}, worker = null
    from unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[]) as given(job, held, started, took)
    where id = job and token = held and state || '' = 'processing' returning job, held, started, took
), kept as (
    insert into attempts select job, 1, held, 'me', started, took, 'succeeded' from done
), picked as materialized ({PICKED.format(limit="%s")} for update skip locked)
update jobs set state = 'processing', token = token + 1, worker = 'me', claimed = {NOW}
from picked where jobs.id = picked.id returning jobs.id, jobs.token, jobs.payload
"""
BARE = f"""
with done as (update jobs set state = 'succeeded' where id = any(%s)),
picked as materialized ({PICKED.format(limit="%s")} for update skip locked)
update jobs set state = 'processing' from picked where jobs.id = picked.id returning jobs.id, jobs.token, jobs.payload
"""


async def job(number):
    queues.ran(number)


def connect():
    if POSTGRES:
        import psycopg

        return psycopg.connect(queues.database(), autocommit=True)
    connection = sqlite3.connect(queues.database(), isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    return connection


def prepare(connection):
    identity, without = "bigint generated always as identity primary key", ""
    if not POSTGRES:
        identity, without = "integer primary key", "without rowid"
    for table in TABLES:
        connection.execute(table.format(id=identity, without=without))


def fill(_, first, count):
    connection = connect()
    if not first:
        prepare(connection)
    began = time.perf_counter()
    rows = (("default", "job", "ready", json.dumps({"number": number})) for number in range(first, first + count))
    if POSTGRES:
        with connection.cursor().copy("copy jobs (queue, kind, state, payload) from stdin (format binary)") as copy:
            copy.set_types(["text"] * 4)
            for row in rows:
                copy.write_row(row)
    else:
        connection.execute("pragma synchronous = full")
        connection.execute("begin immediate")
        connection.executemany("insert into jobs (queue, kind, state, payload) values (?, ?, ?, ?)", rows)
        connection.execute("commit")
    return time.perf_counter() - began


async def run(rows):
    """The jobs of a batch; what is to be kept of each."""
    ends = []
    for number, token, payload in rows:
        started = time.time_ns() // 1000
        await job(**json.loads(payload))
        ends.append((number, token, started, time.time_ns() // 1000 - started))
    return ends


async def work(variant):
    kind, batch = variant.split()
    connection = connect()
    turn = (turn_postgres if POSTGRES else turn_sqlite)(connection, kind, int(batch))
    queues.go()
    ends = []
    while True:
        ends = await run(turn(ends))
        if not ends:
            await asyncio.sleep(0.01)


def turn_postgres(connection, kind, batch):
    def fenced(ends):
        columns = [list(column) for column in zip(*ends, strict=True)] or [[], [], [], []]
        return connection.execute(FENCED, (*columns, batch)).fetchall()

    def bare(ends):
        return connection.execute(BARE, ([end[0] for end in ends], batch)).fetchall()

    return {"fenced": fenced, "bare": bare}[kind]


def turn_sqlite(connection, kind, batch):
    connection.execute("pragma synchronous = normal")

    def turn(ends):
        now = time.time_ns() // 1000
        connection.execute("begin immediate")
        if kind == "fenced":
            # Without a statement that returns rows it is known by the number of changes alone that every token was right.
            done = connection.executemany(
                "update jobs set state = 'succeeded', ended = ?, worker = null where id = ? and token = ? and state = 'processing'",
                [(now, end[0], end[1]) for end in ends],
            )
            assert not ends or done.rowcount == len(ends)
            connection.executemany("insert into attempts values (?, 1, ?, 'me', ?, ?, 'succeeded')", ends)
        else:
            connection.executemany("update jobs set state = 'succeeded' where id = ?", [end[:1] for end in ends])
        sets = "state = 'processing'" + (
            f", token = token + 1, worker = 'me', claimed = {now}" if kind == "fenced" else ""
        )
        rows = connection.execute(
            f"update jobs set {sets} where id in ({PICKED.format(limit=batch)}) returning id, token, payload"
        ).fetchall()
        connection.execute("commit")
        return rows

    return turn


def listen(_):
    """A worker for single jobs: it sleeps until it is told of one."""
    told = connect()
    told.execute("listen jobs")
    turn = turn_postgres(connect(), "fenced", 1)
    turn([])
    queues.go()
    with asyncio.Runner() as runner:
        for _ in told.notifies():
            while ends := runner.run(run(turn([]))):
                turn(ends)


async def ping(_, first, count):
    connection = connect()

    def enqueue(number):
        connection.execute(
            "with new as (insert into jobs (queue, kind, state, payload) values ('default', 'job', 'ready', %s)) select pg_notify('jobs', '')",
            (json.dumps({"number": number}),),
        )

    await queues.ping(enqueue, range(first, first + count))


def step(_, count):
    """One row for a step, committed, as often as asked."""
    connection = connect()
    prepare(connection)
    if not POSTGRES:
        connection.execute("pragma synchronous = normal")
    mark = "%s" if POSTGRES else "?"
    began = time.perf_counter()
    for number in range(count):
        connection.execute(f"insert into steps values (1, {mark}, {mark})", (f"step {number}", json.dumps(number)))
    return time.perf_counter() - began


queues.main("psycopg" if POSTGRES else None, {"fill": fill, "work": work, "listen": listen, "ping": ping, "step": step})
