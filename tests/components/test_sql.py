"""Queries as sources and tables as sinks, on real databases: SQLite, PostgreSQL, MariaDB."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import sqlite3
import threading
import uuid
from dataclasses import dataclass
from decimal import Decimal
from uuid import uuid4

import psycopg
import pymysql
import pytest
import sqlalchemy

import outlast
from captured import captured
from outlast.components import open_source
from outlast.components.sql import said
from outlast.components.tables import STAGE, TableSink
from outlast.pipeline.plan import Tuning
from outlast.store import Store, StoreRefused
from outlast.testing import FaultProxy, virtual_time
from outlast.work.writer import BatchLimits


@outlast.stage
async def same(item):
    return item


def pipeline(app, stage=same, **options):
    given = {"failure_budget": 1.0, "min_success_rate": 0.0, "min_partial_rate": 0.0}
    return outlast.Pipeline("p", stage, app=app, **(given | options))


class Database:
    """One of the three, with a name of its own for what a test makes in it."""

    def __init__(self, kind, address, connect):
        self.kind = kind
        self.address = address  # what users give
        self.connect = connect
        self.table = f"t_{uuid4().hex[:12]}"

    def sql(self, statement, *values):
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement.replace("?", "?" if self.kind == "sqlite" else "%s"), values)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows

    def make(self, columns):
        self.sql(f"create table {self.table} ({columns})")
        return self

    def fill(self, count):
        self.make("id integer primary key, text varchar(40)")
        connection = self.connect()
        mark = "?" if self.kind == "sqlite" else "%s"
        connection.cursor().executemany(
            f"insert into {self.table} values ({mark}, {mark})", [(n, f"ü{n}") for n in range(count)]
        )
        connection.commit()
        connection.close()
        return self

    def rows(self, columns="*"):
        return self.sql(f"select {columns} from {self.table} order by 1")

    def staged(self):
        return self.sql(f"select count(*) from {STAGE}")[0][0]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database(request, tmp_path):
    if request.param == "sqlite":
        path = tmp_path / "data.db"
        sqlite3.connect(path).close()
        return Database("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path))
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres").dsn
        return Database("postgres", dsn, lambda: psycopg.connect(dsn))
    port = request.getfixturevalue("mariadb").port
    plain = {"host": "127.0.0.1", "port": port, "user": "root", "charset": "utf8mb4"}
    with pymysql.connect(**plain) as connection:
        connection.cursor().execute("create database if not exists shop character set utf8mb4")

    def connect():
        return pymysql.connect(**plain, database="shop")

    return Database("mariadb", connect, connect)


def read(query):
    async def main():
        return [item async for item in open_source(query)]

    return asyncio.run(main())


# --- queries ---


def test_a_query_is_a_source_of_dicts(app, database):
    """Rows in chunks, with parameters in the driver's style, and a resume that does nothing again (S3-39)."""
    database.fill(2500)
    mark = "?" if database.kind == "sqlite" else "%s"
    query = outlast.Query(
        database.address, f"select id, text from {database.table} where id >= {mark} order by id", 5, chunk=100
    )
    seen = []

    @outlast.stage
    async def count(row):
        seen.append(row["id"])
        return row

    result = pipeline(app, count).run(query, run_key="k", ordered=True)
    assert list(result.outputs()) == [{"id": n, "text": f"ü{n}"} for n in range(5, 2500)]
    database.sql(f"insert into {database.table} values (2500, 'new')")
    again = pipeline(app, count).run(query, run_key="k")
    assert (again.counts.total, again.counts.succeeded, len(seen)) == (2496, 2496, 2496)


def test_named_parameters_are_a_mapping(database):
    """The driver's own style, whichever it has."""
    database.fill(10)
    mark = ":low" if database.kind == "sqlite" else "%(low)s"
    query = outlast.Query(
        database.address, f"select id from {database.table} where id >= {mark} order by id", {"low": 8}
    )
    assert read(query) == [{"id": 8}, {"id": 9}]


def test_the_rows_are_one_snapshot_and_none_is_held(postgres):
    """Rows that come while it is read are not seen; the server sends chunks, and the transaction may change nothing."""
    table = f"t_{uuid4().hex[:12]}"
    postgres.execute(f"create table {table} as select n as id from generate_series(1, 5000) n")

    async def main():
        source = open_source(outlast.Query(postgres.dsn, f"select id from {table} order by id", chunk=50))
        found = [(await anext(source))["id"]]
        postgres.execute(f"delete from {table} where id > 100", f"insert into {table} values (-1)")
        modes = postgres.execute("select query from pg_stat_activity where state = 'idle in transaction'")
        found += [row["id"] async for row in source]
        return found, modes  # read to its end, it is closed

    found, modes = asyncio.run(main())
    assert found == list(range(1, 5001))
    assert "FETCH" in modes.upper()
    with pytest.raises(outlast.PermanentFailure, match=r"read-only|data-modifying"):
        read(outlast.Query(postgres.dsn, f"with gone as (delete from {table} returning id) select * from gone"))


def test_a_query_whose_order_changes_is_resumed_right(app, database):
    """D-15: without `order by` keys are looked up; nothing is done twice, nothing is left out."""
    database.fill(1500)
    done, stopping = [], [True]

    @outlast.stage
    async def work(row):
        if row["id"] == 700 and stopping:
            raise outlast.PermanentFailure("stop")
        done.append(row["id"])
        return row["id"]

    first = pipeline(app, work).run(
        outlast.Query(database.address, f"select * from {database.table} order by id"),
        run_key="k",
        on_item_error="stop",
        check=False,
    )
    assert first.counts.pending > 0 or not first.counts.source_exhausted
    stopping.clear()
    last = pipeline(app, work).run(
        outlast.Query(database.address, f"select * from {database.table} order by id * 7919 % 1500"), run_key="k"
    )
    assert sorted(done) == [n for n in range(1500) if n != 700]
    assert (last.counts.total, last.counts.succeeded, last.counts.dlq, last.counts.pending) == (1500, 1499, 1, 0)


def test_values_of_a_database_come_as_the_driver_has_them_and_have_stable_keys(app, postgres):
    """D-15: exact numbers, instants, ids, documents, arrays, bytes, addresses: a second reading does nothing again."""
    sql = """select 1.50::numeric as price, '2026-11-15 12:00+01'::timestamptz as at, date '2026-11-15' as day, '\\x00ff'::bytea as raw,
             '00000000-0000-0000-0000-000000000005'::uuid as id, '{"a": [1, null]}'::jsonb as doc, array['x', 'y'] as tags, '::1'::inet as ip,
             'NaN'::float8 as nan, null as nothing, interval '1 day' as took from generate_series(1, 3)"""
    seen = []

    @outlast.stage
    async def work(row):
        seen.append(row)
        return row["price"]

    for _ in range(2):
        result = pipeline(app, work).run(outlast.Query(postgres.dsn, sql), run_key="k")
    assert (len(seen), result.counts.total) == (3, 3)
    row = seen[0]
    assert (row["price"], row["raw"], row["id"], row["doc"], row["tags"]) == (
        Decimal("1.50"),
        b"\x00\xff",
        uuid.UUID(int=5),
        {"a": [1, None]},
        ["x", "y"],
    )
    assert all(not item.key.startswith("@") for item in result.items())


def test_a_lost_connection_is_a_source_error_and_the_run_goes_on_from_there(app, postgres):
    """Cut in the middle of reading: what came before is kept, the message says how to go on, and no password is in it."""
    table = f"t_{uuid4().hex[:12]}"
    postgres.execute(
        f"create table {table} as select n as id, repeat('x', 200) as text from generate_series(1, 20000) n"
    )
    with FaultProxy(postgres.socket) as proxy:
        url = f"postgresql://postgres:hunter2secret@127.0.0.1:{proxy.port}/{postgres.name}"
        query = outlast.Query(url, f"select * from {table} order by id", chunk=200)
        assert "hunter2secret" not in repr(query)

        @outlast.stage
        async def work(row):
            if row["id"] == 3000 and whole is False:
                proxy.cut()
            return row["id"]

        whole = False
        result = pipeline(app, work).run(query, run_key="k", check=False)
        assert (result.status, result.reason) == ("failed", "source_error")
        assert "the query at postgresql://***@127.0.0.1" in result.why
        assert "after " in result.why
        assert "run_key='k' to go on" in result.why
        assert "hunter2secret" not in result.why
        whole = True
        done = pipeline(app, work).run(query, run_key="k")
    assert (done.counts.total, done.counts.succeeded) == (20_000, 20_000)


def test_a_slow_query_holds_up_neither_the_work_nor_the_end(app, postgres):
    """While the database thinks, items that were read are worked on; Ctrl-C does not wait for the rest of the rows."""
    sql = "select n, case when n > 1000 then pg_sleep(30) end from generate_series(1, 1001) n"

    @outlast.stage
    async def work(row):
        if row["n"] == 1000:
            runners[0].end("interrupted")
        return row["n"]

    with captured() as runners:
        result = pipeline(app, work).run(outlast.Query(postgres.dsn, sql), check=False)
    assert (result.status, result.counts.succeeded) == ("interrupted", 1000)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("outlast-source") and thread.join(5)
    ]
    assert (
        postgres.execute(
            "select count(*) from pg_stat_activity where query like 'select n, case%' and state = 'active'"
        )
        == "0"
    )


def test_what_is_wrong_with_a_query_is_said(tmp_path, postgres):
    """All mistakes at once; names that come twice; a file that is not there; a table that is not there; a driver that is not installed."""
    with pytest.raises(outlast.ConfigurationError) as wrong:
        outlast.Query("mysql://root:geheim77@db/shop", "", chunk=0)
    assert len(wrong.value.problems) == 3
    assert "lambda: pymysql.connect" in str(wrong.value)
    assert "geheim77" not in str(wrong.value)
    for odd in ("sqlite://x", "sqlite:///", "data.db", 5, None):
        with pytest.raises(outlast.ConfigurationError, match="an address"):
            outlast.Query(odd, "select 1")
    with pytest.raises(outlast.ConfigurationError, match="no such file"):
        read(outlast.Query(f"sqlite:///{tmp_path}/none.db", "select 1"))
    with pytest.raises(outlast.ConfigurationError, match=r"got twice: a. Give them names with AS"):
        read(outlast.Query(postgres.dsn, "select 1 as a, 2 as a"))
    with pytest.raises(outlast.PermanentFailure, match='relation "nowhere" does not exist'):
        read(outlast.Query(postgres.dsn, "select * from nowhere"))
    with pytest.raises(outlast.PermanentFailure, match='unrecognized configuration parameter "…"'):
        read(outlast.Query(postgres.dsn, "select current_setting(%s)", "hunter2"))


def test_a_query_is_a_value(monkeypatch, database):
    """It compares, travels to another process, and takes a secret; an engine's own connections will do."""
    one = outlast.Query("sqlite:///a.db", "select ?", 5)
    assert one == pickle.loads(pickle.dumps(one)) != outlast.Query("sqlite:///a.db", "select ?", 6)
    with pytest.raises(AttributeError):
        one.sql = "drop table students"
    database.fill(3)
    wanted = [{"id": n, "text": f"ü{n}"} for n in range(3)]
    if isinstance(database.address, str):
        monkeypatch.setenv("DATA_URL", database.address)
        assert (
            read(outlast.Query(outlast.Secret.env("DATA_URL"), f"select * from {database.table} order by id")) == wanted
        )
    engine = sqlalchemy.create_engine(
        {"sqlite": "sqlite://", "postgres": "postgresql+psycopg://", "mariadb": "mysql+pymysql://"}[database.kind],
        creator=database.connect,
    )
    assert read(outlast.Query(engine.raw_connection, f"select * from {database.table} order by id")) == wanted
    engine.dispose()


# --- tables ---


@dataclass
class Label:
    id: int
    text: str


def test_a_table_is_a_sink(app, database, monkeypatch):
    """D-15: each output is a row, once; dicts with some of the columns, and dataclasses; a resume adds the rest; the stage is empty."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=100)))
    database.make("id integer primary key, text varchar(40)")

    @outlast.stage
    async def label(n):
        return Label(n, f"ü{n}") if n % 2 else {"id": n}

    table = outlast.Table(database.address, database.table)
    pipeline(app, label).run(range(1000), run_key="k", sink=table)
    result = pipeline(app, label).run(range(1500), run_key="k", sink=table)
    assert result.counts.succeeded == 1500
    assert database.rows() == [(n, f"ü{n}" if n % 2 else None) for n in range(1500)]
    assert database.staged() == 0


def test_a_key_updates_what_is_there(app, database):
    """Upsert by one column or by several; within a batch the last one counts; other columns of the row stay."""
    database.make("a integer, b integer, text varchar(40), other integer, primary key (a, b)")
    database.sql(f"insert into {database.table} values (1, 1, 'old', 7)")
    rows = [
        {"a": 1, "b": 1, "text": "new"},
        {"a": 2, "b": 1, "text": "x"},
        {"b": 1, "a": 2, "text": "y"},
        {"a": 1, "b": 1},
    ]
    table = outlast.Table(database.address, database.table, key=["a", "b"])
    pipeline(app).run(rows, sink=table, ordered=True)
    assert database.rows() == [(1, 1, "new", 7), (2, 1, "y", None)]


def test_a_row_that_the_table_refuses_is_a_dead_letter(app, database, monkeypatch):
    """D-15: constraints, types, lengths, doubles: found in the midst of a batch; the others are written, the counts are right, and no value is quoted."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=300)))
    database.make("id integer primary key, text varchar(40) not null, amount integer check (amount < 100)")
    database.sql(f"insert into {database.table} values (5000, 'there', 1)")
    wrong = {
        10: {"id": 10, "text": None},
        11: {"id": 5000, "text": "double"},
        12: {"id": 3, "text": "double within"},
        13: {"id": 13, "text": "x", "amount": 1000},
        500: {"id": "geheimnis", "text": "x"},
        501: {"id": 2**40 if database.kind != "sqlite" else 2**70, "text": "x"},
        502: {"id": 502, "text": "x", "nosuch": 1},
        503: "no row",
    }

    @outlast.stage
    async def label(n):
        return wrong.get(n, {"id": n, "text": f"t{n}"})

    table = outlast.Table(database.address, database.table)
    result = pipeline(app, label).run(range(1000), run_key="k", sink=table, ordered=True)
    assert (result.counts.succeeded, result.counts.dlq, result.counts.pending) == (992, 8, 0)
    assert [row[0] for row in database.rows("id")] == [n for n in range(1000) if n not in wrong] + [5000]
    letters = {letter.payload: letter.error for letter in app.dead_letters.find()}
    assert set(letters) == set(wrong)
    assert "refuses it" in letters[11]
    assert "geheimnis" not in " ".join(letters.values())
    record = app.store.find_run("p", "k")
    assert (record.counts.succeeded, record.counts.dlq) == (992, 8)
    dead = {letter.item_key for letter in app.dead_letters.find()}
    assert {item.status for item in result.items() if item.key in dead} == {"dlq"}
    assert database.staged() == 0


def test_refused_rows_count_for_the_failure_budget(app, database, monkeypatch):
    """D-14: nothing but refusals stops the run, as any other failure would."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=100)))
    database.make("id integer primary key, text varchar(5) not null")
    strict = outlast.Pipeline("p", same, app=app)
    result = strict.run(
        ({"id": n} for n in range(50_000)), sink=outlast.Table(database.address, database.table), check=False
    )
    assert (result.status, result.reason) == ("failed", "same_failure")
    assert result.counts.dlq < 20_000


VALUES = {
    "price": ("numeric(10, 2)", Decimal("1.50")),
    "day": ("date", dt.date(2026, 11, 15)),
    "at": ("timestamp", dt.datetime(2026, 11, 15, 12, 30)),  # noqa: DTZ001 - tables hold such ones
    "doc": ("text", {"ü": [1, None]}),
    "id": ("varchar(40)", uuid.UUID(int=5)),
    "raw": ("blob", b"\x00\xff"),
    "big": ("bigint", 2**62),
    "share": ("double precision", 0.1),
    "yes": ("boolean", True),
    "nul": ("varchar(5)", None),
}


def test_values_arrive_as_they_are_whether_moved_at_once_or_after_a_crash(app, database, monkeypatch):
    """D-15: what is staged comes back the same: exact numbers, dates, documents, ids, bytes."""
    kinds = {
        "blob": "bytea" if database.kind == "postgres" else "blob",
        "text": "jsonb" if database.kind == "postgres" else "text",
    }
    database.make(
        "n integer primary key, " + ", ".join(f"c_{name} {kinds.get(kind, kind)}" for name, (kind, _) in VALUES.items())
    )
    row = {f"c_{name}": value for name, (_, value) in VALUES.items()}
    table = outlast.Table(database.address, database.table)
    settle = TableSink.settle

    def dies(sink):
        raise outlast.PermanentFailure("as if it had died here")

    monkeypatch.setattr(TableSink, "settle", dies)
    died = pipeline(app).run([{"n": 1, **row}], run_key="k", sink=table, check=False)
    assert (died.status, died.reason) == ("failed", "store_error")
    assert database.rows() == []
    assert database.staged() == 1
    monkeypatch.setattr(TableSink, "settle", settle)
    pipeline(app).run([{"n": 1, **row}, {"n": 2, **row}], run_key="k", sink=table)
    first, second = database.rows()
    assert (first[0], second[0]) == (1, 2)
    assert first[1:] == second[1:]
    said_back = dict(zip(row, first[1:], strict=True))
    assert said_back["c_raw"] == b"\x00\xff"
    assert (said_back["c_big"], bool(said_back["c_yes"]), said_back["c_share"]) == (2**62, True, 0.1)
    assert Decimal(str(said_back["c_price"])) == Decimal("1.50")
    assert str(said_back["c_day"]) == "2026-11-15"
    doc = said_back["c_doc"]
    assert (doc if isinstance(doc, dict) else json.loads(doc)) == {"ü": [1, None]}


def test_what_was_staged_and_not_committed_is_thrown_away(app, database, monkeypatch):
    """D-15: the store did not take the batch, so none of it is in the table; the resume writes it once."""
    database.make("id integer primary key")
    table = outlast.Table(database.address, database.table)
    write, writes = Store.write, []

    def refusing(store, lease, batch):
        writes.append(batch)
        if batch.items:
            raise StoreRefused("no")
        write(store, lease, batch)

    monkeypatch.setattr(Store, "write", refusing)
    result = pipeline(app).run([{"id": n} for n in range(100)], run_key="k", sink=table, check=False)
    assert (result.reason, result.counts.succeeded) == ("store_error", 0)
    assert database.rows() == []
    assert database.staged() >= 1
    monkeypatch.setattr(Store, "write", write)
    pipeline(app).run([{"id": n} for n in range(100)], run_key="k", sink=table)
    assert database.rows() == [(n,) for n in range(100)]
    assert database.staged() == 0


def test_a_batch_of_somebody_who_lost_the_run_never_counts(database):
    """D-15: a number that was committed is one lease's own; what another one staged, also later, is thrown away."""
    database.make("id integer primary key")
    table = outlast.Table(database.address, database.table)
    old, new = TableSink(table), TableSink(table)
    old.open(None, run="r", token=1)
    new.open(0, run="r", token=2)  # somebody else took over
    late = old.write([old.encode({"id": 1})], [])  # the old one did not notice
    good = new.write([new.encode({"id": 2})], [])
    assert good > late
    new.close()  # committed in the store, and dead before it was moved
    again = TableSink(table)
    again.open(good, run="r", token=3)
    old.settle()  # wakes up: there is nothing of its own any more
    assert database.rows() == [(2,)]
    again.settle()
    again.finish()
    for sink in (old, again):
        sink.close()
    assert database.rows() == [(2,)]


def test_rows_that_somebody_is_moving_at_this_moment_are_not_moved_twice(database):
    """C-22, D-15: who had the run stands still in the midst of it and wakes up while the next one makes it good: each row is there once."""
    database.make("id integer")
    inside, looked = threading.Event(), threading.Event()

    class Slow(TableSink):
        def _remember(self, *given):  # its rows are inserted, and not committed
            inside.set()
            looked.wait(0.5)
            super()._remember(*given)

    class Next(TableSink):
        def _found(self, *given, **how):
            found = super()._found(*given, **how)
            looked.set()
            return found

    table = outlast.Table(database.address, database.table)
    old, new = Slow(table), Next(table)
    old.open(None, run="r", token=1)
    number = old.write([old.encode({"id": 1})], [])
    moving = threading.Thread(target=old.settle)
    moving.start()
    assert inside.wait(30)
    new.open(number, run="r", token=2)
    moving.join()
    for sink in (old, new):
        sink.close()
    assert (database.rows(), database.staged()) == ([(1,)], 0)


def test_settling_twice_moves_once(database):
    """The answer to the commit may be lost: the same batch is settled again."""
    database.make("id integer primary key, n integer")
    sink = TableSink(outlast.Table(database.address, database.table))
    sink.open(None, run="r", token=1)
    rows = [sink.encode({"id": 1, "n": 1})]
    number = sink.write(rows, [])
    assert sink.write(rows, []) == number
    staged = sink._staged
    sink.settle()
    sink._settled, sink._staged = number - 1, staged
    sink.settle()
    assert database.rows() == [(1, 1)]
    assert sink.write([], []) == number
    sink.close()


def test_what_is_wrong_with_a_table_is_said_before_the_first_item(app, database):
    """No such table, no such key, a key that is not unique; and a run may not change its table."""
    seen = []

    @outlast.stage
    async def work(n):
        seen.append(n)
        return {"id": n}

    def run(table, key="k"):
        return pipeline(app, work).run([1], run_key=key, sink=table)

    with pytest.raises(outlast.ConfigurationError, match=f"expected a table {database.table} in .*Make it first"):
        run(outlast.Table(database.address, database.table))
    database.make("id integer, other integer")
    with pytest.raises(outlast.ConfigurationError, match="no column nosuch"):
        run(outlast.Table(database.address, database.table, key="nosuch"))
    with pytest.raises(outlast.ConfigurationError, match="key id to be unique"):
        run(outlast.Table(database.address, database.table, key="id"))
    assert seen == []
    assert run(outlast.Table(database.address, database.table)).counts.succeeded == 1
    with pytest.raises(outlast.ConfigurationError, match="sink of the run 'k' to stay the same, table"):
        run(outlast.Table(database.address, "another"))
    with pytest.raises(outlast.ConfigurationError) as wrong:
        outlast.Table("oracle://x", "", key=["a", "a"])
    assert len(wrong.value.problems) == 3


def test_odd_names_are_only_names(app, database):
    """Quotes, percent signs and blanks in the names of tables and columns change nothing else."""
    quote = "`" if database.kind == "mariadb" else '"'
    name = f'odd "{uuid4().hex[:6]}"; drop table x;-- `%s ?'.replace(".", "")

    def quoted(text):
        return quote + text.replace(quote, 2 * quote) + quote

    column = 'a "b` %s ? c'
    connection = database.connect()
    connection.cursor().execute(f"create table {quoted(name)} ({quoted(column)} integer primary key, v integer)")
    connection.commit()
    for value in (1, 2):
        table = outlast.Table(database.address, name, key=column)
        pipeline(app).run([{column: 5, "v": value}], sink=table)
    cursor = connection.cursor()
    cursor.execute(f"select * from {quoted(name)}")
    assert [tuple(row) for row in cursor.fetchall()] == [(5, 2)]
    connection.close()


def test_a_table_that_cannot_take_a_batch_back_is_refused(app, mariadb):
    """MyISAM has no transactions: a trial would be for real."""
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute("create database if not exists shop character set utf8mb4")
        cursor.execute("create or replace table shop.old (id integer) engine = MyISAM")
    table = outlast.Table(
        lambda: pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", database="shop"), "old"
    )
    with pytest.raises(outlast.ConfigurationError, match="InnoDB, got: MyISAM"):
        pipeline(app).run([{"id": 1}], sink=table)


def test_constraints_that_wait_for_the_end_are_asked_at_once(app, postgres):
    """A deferred foreign key would be violated only when the batch already counts."""
    parent, child = f"a_{uuid4().hex[:8]}", f"b_{uuid4().hex[:8]}"
    postgres.execute(
        f"create table {parent} (id integer primary key)",
        f"insert into {parent} values (1)",
        f"create table {child} (id integer references {parent} deferrable initially deferred, tags text[], doc jsonb)",
    )
    rows = [{"id": 1, "tags": ["a", "ü"], "doc": [1, {"x": None}]}, {"id": 2}]
    result = pipeline(app).run(rows, sink=outlast.Table(postgres.dsn, f"public.{child}"))
    assert (result.counts.succeeded, result.counts.dlq) == (1, 1)
    assert postgres.execute(f"select id, tags[2], doc->1 from {child}") == '1|ü|{"x": null}'


@pytest.mark.parametrize("moment", ["at once", "after a crash", "after a crash behind the move", "the answer was lost"])
def test_a_key_that_somebody_else_takes_is_a_dead_letter(app, database, monkeypatch, moment):
    """D-26: between the commit in the store and the move into the table; the other rows are there, the run ends, and a replay can mend it."""
    database.make("id integer primary key, text varchar(40)")
    table = outlast.Table(database.address, database.table)
    settle, taken = TableSink.settle, []

    def late(sink):
        if not taken:
            taken.append(1)
            database.sql(f"insert into {database.table} values (7, 'of another')")
            if moment == "after a crash":
                raise outlast.PermanentFailure("as if it had died here")
            if moment == "the answer was lost":
                before = sink._settled, sink._staged
                settle(sink)
                sink._settled, sink._staged = before
            if moment == "after a crash behind the move":
                settle(sink)
                raise outlast.PermanentFailure("as if it had died here")
        return settle(sink)

    monkeypatch.setattr(TableSink, "settle", late)
    rows = [{"id": n, "text": f"ü{n}"} for n in range(20)]
    result = pipeline(app).run(rows, run_key="k", sink=table, item_key="id", check=False)
    if "crash" in moment:
        assert (result.status, result.reason) == ("failed", "store_error")
        result = pipeline(app).run(rows, run_key="k", sink=table, item_key="id")
    assert (result.status, result.counts.succeeded, result.counts.dlq) == ("completed", 19, 1), result.why
    assert database.rows() == [(n, "of another" if n == 7 else f"ü{n}") for n in range(20)]
    [letter] = app.dead_letters.find()
    assert (letter.item_key, letter.payload) == ("7", rows[7])
    assert f"the table {database.table} refuses it" in letter.error
    assert (app.store.run(result.id).counts.succeeded, database.staged()) == (19, 0)
    again = pipeline(app).run(rows, run_key="k", sink=table, item_key="id")
    assert (again.counts.succeeded, again.counts.dlq) == (19, 1)


def test_a_document_column_takes_every_value_that_json_has(app, postgres, caplog):
    """A number, a text, a truth value and a list are documents too; a text is a text. What is refused is a dead letter, and nobody logs beside it."""
    name = f"t_{uuid4().hex[:12]}"
    postgres.execute(f"create table {name} (id integer primary key, doc jsonb, plain json)")
    values = [5, "text", '{"a": 1}', True, [1, None], {"x": Decimal("0.1")}, 0.5, None, float("nan")]
    rows = [{"id": n, "doc": value, "plain": value} for n, value in enumerate(values)]

    @outlast.stage
    async def make(n):
        return rows[n]

    rows += [{"id": 100, "doc": n} for n in range(4)]
    result = pipeline(app, make).run(range(len(rows)), sink=outlast.Table(postgres.dsn, name), check=False)
    assert result.counts.dlq == 4
    assert "NaN and Infinity are no JSON" in {
        letter.error.partition(": ")[2].partition(":")[0] for letter in app.dead_letters.find()
    }
    found = postgres.execute(f"select id, doc, doc is null from {name} where id < 100 order by id").splitlines()
    wanted = ["5", '"text"', r'"{\\"a\\": 1}"'.replace("\\\\", "\\"), "true", "[1, null]", '{"x": "0.1"}', "0.5"]
    assert found == [*(f"{n}|{text}|f" for n, text in enumerate(wanted)), "7||t"]
    assert not [record for record in caplog.records if record.name == "psycopg"]


def test_a_database_that_goes_away_is_waited_for(app, postgres, monkeypatch):
    """Connections of the sink are cut again and again, in every phase of a batch: each row is there once."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=200)))
    name = f"t_{uuid4().hex[:12]}"
    postgres.execute(f"create table {name} (id integer)")
    with FaultProxy(postgres.socket) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}"
        write, settle, count = TableSink.write, TableSink.settle, []

        def cutting(method):
            def call(sink, *args):
                count.append(1)
                if len(count) % 3 == 0:
                    proxy.cut()
                return method(sink, *args)

            return call

        monkeypatch.setattr(TableSink, "write", cutting(write))
        monkeypatch.setattr(TableSink, "settle", cutting(settle))
        with virtual_time():
            result = pipeline(app).run([{"id": n} for n in range(3000)], sink=outlast.Table(url, name))
    assert (result.status, result.counts.succeeded) == ("completed", 3000)
    assert postgres.execute(f"select count(*), count(distinct id) from {name}") == "3000|3000"


def test_a_table_that_vanishes_in_mid_run_ends_the_run_and_fails_no_item(app, database, monkeypatch):
    """It is nobody's row that is wrong; with the table back, the resume writes all of it."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=100)))
    database.make("id integer primary key")

    @outlast.stage
    async def work(n):
        if n == 1500 and not mended:
            database.sql(f"drop table {database.table}")
        return {"id": n}

    mended = []
    table = outlast.Table(database.address, database.table)
    result = pipeline(app, work).run(range(3000), run_key="k", sink=table, check=False)
    assert (result.status, result.reason, result.counts.dlq) == ("failed", "store_error", 0)
    assert database.table in result.why
    mended.append(1)
    kept = result.counts.succeeded
    database.make("id integer primary key")
    last = pipeline(app, work).run(range(3000), run_key="k", sink=table)
    assert last.counts.succeeded == 3000
    assert len(database.rows()) >= 3000 - kept


def test_a_batch_that_counts_stays_staged_until_there_is_a_table_for_it(app, database, monkeypatch, on_terms):
    """The table is gone between the trial and the move: that is no row's fault; the run says so, and goes on when the table is back."""
    database.make("id integer primary key")
    settle, away = TableSink.settle, f"{database.table}_away"

    def too_late(sink):
        if sink._staged:
            database.sql(f"alter table {database.table} rename to {away}")
        return settle(sink)

    table = outlast.Table(database.address, database.table)
    monkeypatch.setattr(TableSink, "settle", too_late)
    on_terms(patience=0.0)
    result = pipeline(app).run([{"id": 1}, {"id": 2}], run_key="k", sink=table, check=False)
    assert (result.status, result.reason) == ("failed", "store_error")
    assert f"waits in {STAGE}" in result.why
    monkeypatch.setattr(TableSink, "settle", settle)
    with pytest.raises(outlast.OutlastError, match="expected a table"):
        pipeline(app).run([{"id": 1}, {"id": 2}], run_key="k", sink=table)
    database.sql(f"alter table {away} rename to {database.table}")
    pipeline(app).run([{"id": 1}, {"id": 2}], run_key="k", sink=table)
    assert database.rows() == [(1,), (2,)]


def test_the_store_and_the_table_may_be_one_file(tmp_path):
    """SQLite has one writer at a time: neither waits for the other for ever."""
    path = tmp_path / "all.db"
    app = outlast.App("one", store=str(path))
    app.store.find_run("p", "k")
    connection = sqlite3.connect(path)
    connection.execute("create table labels (id integer primary key)")
    connection.commit()
    connection.close()
    pipeline(app).run([{"id": n} for n in range(500)], sink=outlast.Table(f"sqlite:///{path}", "labels"))
    connection = sqlite3.connect(path)
    assert connection.execute("select count(*) from labels").fetchone() == (500,)
    connection.close()
    app.store.close()


def test_what_mysql_says_has_no_values_in_it():
    """Its messages quote them, and they are the user's data."""
    for said_by_server, shown in (
        ("Duplicate entry 'secret o''clock' for key 'PRIMARY'", "1062, Duplicate entry '…'"),
        (
            "error in your SQL syntax near 'where x = 'secret'' at line 1",
            "1062, error in your SQL syntax near '…' at line 1",
        ),
        ("no end: 'secret", "1062, no end: '…'"),
    ):
        assert said(pymysql.err.IntegrityError(1062, said_by_server)) == shown


PASSES_OVER = {
    "sqlite": ["create trigger over_{t} before insert on {t} when new.id % 3 = 0 begin select raise(ignore); end"],
    "postgres": [
        (
            "create function over_{t}() returns trigger language plpgsql as "
            "$$ begin if mod(new.id, 3) = 0 then return null; end if; return new; end $$"
        ),
        "create trigger over_{t} before insert on {t} for each row execute function over_{t}()",
    ],
}


@pytest.mark.parametrize("database", PASSES_OVER, indirect=True)
@pytest.mark.parametrize("key", [None, "id"])
def test_a_row_that_a_trigger_passes_over_is_a_dead_letter(app, database, key):
    """D-21: nothing is lost in silence."""
    t = database.make("id integer primary key, text text").table
    for statement in PASSES_OVER[database.kind]:
        database.sql(statement.replace("{t}", t))
    rows = [{"id": n, "text": "x"} for n in range(20)]
    result = pipeline(app).run(rows, sink=outlast.Table(database.address, t, key=key), item_key="id", check=False)
    assert [row[0] for row in database.sql(f"select id from {t} order by id")] == [n for n in range(20) if n % 3]
    assert (result.counts.succeeded, result.counts.dlq) == (13, 7)
    assert {letter.error for letter in app.dead_letters.find()} == {
        f"the table {t} refuses it: a trigger or a rule passes the row over without an error"
    }


def test_rows_that_are_there_and_rows_that_a_view_takes_are_no_failures(app, tmp_path):
    """Where the database counts no row and has lost none: a key and nothing else that is there already, and a view whose trigger writes."""
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (id integer primary key)")
        connection.execute("insert into made values (1)")
        connection.execute("create view seen as select id from made")
        connection.execute(
            "create trigger seen_in instead of insert on seen begin insert into made values (new.id); end"
        )
    address = f"sqlite:///{tmp_path}/data.db"
    for name, key, numbers in (("made", "id", range(3)), ("seen", None, range(3, 6))):
        rows = [{"id": n} for n in numbers]
        result = pipeline(app).run(rows, sink=outlast.Table(address, name, key=key), item_key="id")
        assert result.counts.succeeded == 3
    with sqlite3.connect(tmp_path / "data.db") as connection:
        assert [n for (n,) in connection.execute("select id from made")] == list(range(6))
