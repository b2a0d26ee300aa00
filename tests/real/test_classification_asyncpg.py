"""Verdicts on what asyncpg really raises, from a real PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from real.expected import check, raised_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outlast.testing import FaultProxy
    from servers.postgres import Postgres

# One server serves them all: keep them in one worker when the suite runs in several.
pytestmark = pytest.mark.xdist_group("postgres")


def failing(action: Callable[[asyncpg.Connection], Awaitable[Any]], *address: str, **options: Any) -> Exception:
    """What the action raises with a connection of its own."""

    async def run() -> None:
        connection = await asyncpg.connect(*address, **options)
        try:
            await action(connection)
        finally:
            connection.terminate()

    return raised_by(lambda: asyncio.run(run()))


STATEMENTS = {
    "syntax error 42601": ("selec 1", "syntax_error"),
    "undefined table 42P01": ("select * from nowhere", "syntax_error"),
    "unique violation 23505": (
        "create temporary table one (id int primary key); insert into one values (1), (1)",
        "data_error",
    ),
    "division by zero 22012": ("select 1 / 0", "data_error"),
    "statement timeout 57014": ("set statement_timeout = '10ms'; select pg_sleep(60)", "timeout"),
    "serialization failure 40001": (
        "do $$ begin raise exception 'on purpose' using errcode = '40001'; end $$",
        "database_error",
    ),
    "too many connections 53300": (
        "do $$ begin raise exception 'on purpose' using errcode = '53300'; end $$",
        "database_error",
    ),
}


@pytest.mark.parametrize(("statement", "error_class"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_failed_statement_is_classified_by_its_sqlstate(postgres: Postgres, statement: str, error_class: str) -> None:
    """C-07, D-2, D-3: the SQLSTATE that the type stands for."""
    check(failing(lambda connection: connection.execute(statement), postgres.dsn), error_class)


def test_a_value_that_does_not_fit_its_parameter_is_data_error(postgres: Postgres) -> None:
    """C-07: found by the client, before anything is sent."""
    check(failing(lambda connection: connection.fetch("select $1::int", "many"), postgres.dsn), "data_error")


def test_a_client_side_timeout_is_timeout(postgres: Postgres) -> None:
    """C-07: asyncpg lets asyncio's own TimeoutError out."""
    check(failing(lambda connection: connection.execute("select pg_sleep(60)", timeout=0.01), postgres.dsn), "timeout")


def test_a_terminated_backend_is_database_connection(postgres: Postgres) -> None:
    """C-07, D-3: 57P01, and then a connection that is closed."""

    async def wait(connection: asyncpg.Connection) -> None:
        waiting = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
        await asyncio.to_thread(postgres.terminate, connection.get_server_pid())
        try:
            await waiting
        except asyncpg.PostgresError as error:
            check(error, "database_connection")
        await connection.execute("select 1")

    check(failing(wait, postgres.dsn), "database_connection")


def test_a_cut_connection_is_a_lost_connection(proxy: FaultProxy) -> None:
    """C-07, D-3: with asyncpg's word for it, or the operating system's."""

    async def wait(connection: asyncpg.Connection) -> None:
        await connection.execute("select 1")
        await asyncio.to_thread(proxy.cut)
        await connection.execute("select 1")

    options = {"host": "127.0.0.1", "port": proxy.port, "user": "postgres", "database": "postgres", "ssl": False}
    check(failing(wait, **options), "database_connection")


def test_nobody_listening_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: asyncpg lets the operating system's error out."""
    error = failing(lambda _: asyncio.sleep(0), host="127.0.0.1", port=refusing_port, user="somebody", ssl=False)
    check(error, "connection_refused")


def test_a_database_that_is_not_there_is_missing_input(postgres: Postgres) -> None:
    """C-07: 3D000."""
    check(failing(lambda _: asyncio.sleep(0), postgres.dsn, database="nowhere"), "missing_input")


def test_a_wrong_setting_is_data_error() -> None:
    """C-07: the address itself is wrong, and nobody was asked."""
    check(failing(lambda _: asyncio.sleep(0), "nonsense://somewhere"), "data_error")
