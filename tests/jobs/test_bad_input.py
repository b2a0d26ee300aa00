"""What is wrong from the start: a store that cannot be reached, and one whose tables are of another version."""

from __future__ import annotations

import psycopg
import pytest

import outlast
from outlast.store import StoreRefused, StoreUnavailable, bring_up_to_date, database, open_store
from outlast.testing import FaultProxy


def test_a_store_that_cannot_be_reached_is_named_and_nothing_is_enqueued(postgres):
    """Whichever way it is enqueued; when the store is back, there is nothing of it."""
    with FaultProxy(postgres.socket) as proxy:
        port = proxy.port
    app = outlast.App("unreachable", store=f"postgresql://postgres@127.0.0.1:{port}/{postgres.name}")

    @app.job
    def send(n: int) -> None: ...

    for enqueue in (lambda: send.enqueue(1), lambda: send.enqueue_many([{"n": 1}, {"n": 2}])):
        with pytest.raises(StoreUnavailable, match=r"the store '\w+' on 127\.0\.0\.1 failed: .*refused"):
            enqueue()
    with FaultProxy(postgres.socket, port=port):
        assert list(app.jobs.find()) == []
        assert send.enqueue(3).status == "queued"
        assert app.work(until_idle=True).succeeded == 1
    app.store.close()


def test_a_store_without_the_newest_tables_is_refused_with_the_way_out(postgres_server, monkeypatch):
    """By a role that may not make them, for who enqueues and who works; the owner runs one command, and both go on."""
    server = postgres_server.database("unmigrated")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("drop role if exists clerk")
        connection.execute("create role clerk login")
    newest = database._scripts
    with monkeypatch.context() as patched:
        patched.setattr(database, "_scripts", lambda name: newest(name)[:-1])
        open_store(server.dsn).close()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("grant select, insert, update, delete on all tables in schema public to clerk")
        connection.execute("grant usage on all sequences in schema public to clerk")
    app = outlast.App("unmigrated", store=server.dsn.replace("//postgres:", "//clerk:"))

    @app.job
    def send(n: int) -> int:
        return n

    for do in (lambda: send.enqueue(1), lambda: app.work(until_idle=True)):
        with pytest.raises(StoreRefused, match=r"Run `outlast migrate --store URL` once, as the user who owns"):
            do()
    bring_up_to_date(server.dsn)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("grant select, insert, update, delete on all tables in schema public to clerk")
        connection.execute("grant usage on all sequences in schema public to clerk")
    handle = send.enqueue(2)
    assert app.work(until_idle=True).succeeded == 1
    assert handle.result() == 2
    app.store.close()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("drop owned by clerk")
        connection.execute("drop role clerk")
