"""Verdicts on what clients raise when PgBouncer gives up, with a real one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import psycopg2
import pytest

from real.expected import check, raised_by
from servers.pgbouncer import PgBouncer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.postgres import Postgres

# One server serves them all: keep them in one worker when the suite runs in several.
pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def busy(postgres: Postgres) -> Iterator[str]:
    """The address of a pooler whose only connection is taken, and that lets nobody wait for longer than a second."""
    with PgBouncer(postgres, lends=1, patience=1) as pooler:
        address = pooler.dsn(postgres)
        with psycopg.connect(address) as first:
            first.execute("select 1")
            yield address


def by_psycopg(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("select 1")


def by_psycopg2(address: str) -> None:
    connection = psycopg2.connect(address)
    try:
        connection.cursor().execute("select 1")
    finally:
        connection.close()


def by_asyncpg(address: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(address, statement_cache_size=0)
        try:
            await connection.fetch("select 1")
        finally:
            connection.terminate()

    asyncio.run(run())


@pytest.mark.parametrize("client", [by_psycopg, by_psycopg2, by_asyncpg])
def test_a_pooler_that_gives_up_is_worth_another_attempt(busy: str, client: Callable[[str], None]) -> None:
    """C-07, D-2: it says 08P01, as of a client that is wrong, but of one that is not: it ends the connection."""
    check(raised_by(lambda: client(busy)), "database_connection")


def test_a_client_that_is_wrong_stays_wrong(postgres: Postgres) -> None:
    """A server that refuses a message and keeps the connection means the client."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        statement = "do $$ begin raise exception 'on purpose' using errcode = '08P01'; end $$"
        check(raised_by(lambda: connection.execute(statement)), "code_error")
        assert connection.execute("select 1").fetchone() == (1,)
