"""Verdicts on what SQLAlchemy really raises: it wraps what its drivers raise, from PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from real.expected import check, raised_by, story
from servers.mariadb import MariaDB
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.testing import FaultProxy
    from servers.postgres import Postgres

# They use the PostgreSQL that others use: one worker for all of them.
pytestmark = pytest.mark.xdist_group("postgres")


def ran(engine: sqlalchemy.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDB]:
    """A MariaDB of these tests' own, because the common one may live in another worker."""
    with MariaDB() as running:
        yield running


@pytest.fixture(params=["postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql", "sqlite"])
def engine(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[sqlalchemy.Engine]:
    """An engine of each driver, with a table of one row."""
    if request.param.startswith("mysql"):
        port = request.getfixturevalue("own_mariadb").port
        url = f"mysql+pymysql://root@127.0.0.1:{port}/"
        prepare = [
            "create or replace database items",
            "create table items.items (id int primary key, amount int not null)",
        ]
        made = sqlalchemy.create_engine(url)
        ran(made, *prepare)
        made.dispose()
        made = sqlalchemy.create_engine(url + "items")
    else:
        url = (
            postgres.dsn.replace("postgresql:", f"{request.param}:", 1) if "postgres" in request.param else "sqlite://"
        )
        made = sqlalchemy.create_engine(url)
        ran(made, "drop table if exists items", "create table items (id int primary key, amount int not null)")
    ran(made, "insert into items values (1, 1)")
    yield made
    made.dispose()


@table(
    ("statement", "error_class"),
    [
        ("selec 1", "syntax_error"),
        ("select * from nowhere", "syntax_error"),
        ("insert into items values (1, 1)", "data_error"),
        ("insert into items values (2, null)", "data_error"),
    ],
)
def test_the_verdict_on_a_wrapped_error_is_that_on_the_original(engine, statement: str, error_class: str) -> None:
    """C-07, C-08: SQLSTATE, MySQL number or SQLite code of the driver's own error, not the wrapper's type."""
    error = raised_by(lambda: ran(engine, statement))
    assert isinstance(error, sqlalchemy.exc.DBAPIError), story(error)
    check(error, error_class)


def test_the_original_decides_even_if_the_chain_was_cut(postgres: Postgres) -> None:
    """C-08: `orig` is read, so `raise ... from None` on the way loses nothing."""
    engine = sqlalchemy.create_engine(postgres.dsn.replace("postgresql:", "postgresql+psycopg:", 1))

    def cut() -> None:
        try:
            ran(engine, "set statement_timeout = '10ms'", "select pg_sleep(60)")
        except sqlalchemy.exc.OperationalError as error:
            error.__cause__ = error.__context__ = None
            raise error from None

    check(raised_by(cut), "timeout")
    engine.dispose()


def test_a_pool_without_a_free_connection_is_database_error(engine) -> None:
    """C-07: sqlalchemy.exc.TimeoutError is about the pool, whatever the database."""
    small = sqlalchemy.create_engine(
        engine.url, poolclass=sqlalchemy.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )
    with small.connect():
        check(raised_by(small.connect), "database_error")
    small.dispose()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql"])
def test_nobody_listening_is_database_connection(driver: str, refusing_port: int) -> None:
    """C-07, D-3: as with the bare driver."""
    engine = sqlalchemy.create_engine(f"{driver}://somebody@127.0.0.1:{refusing_port}/somewhere")
    check(raised_by(engine.connect), "database_connection")


def test_a_lost_connection_is_database_connection(postgres: Postgres, proxy: FaultProxy) -> None:
    """C-07, D-3: the network cuts in between two statements."""
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{postgres.name}")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("select 1"))
        proxy.cut()
        check(raised_by(lambda: connection.execute(sqlalchemy.text("select 1"))), "database_connection")
        connection.invalidate()
    engine.dispose()


def test_a_wrong_use_of_the_library_is_code_error(engine) -> None:
    """D-3: no driver was asked."""
    with engine.connect() as connection:
        connection.close()
        check(raised_by(lambda: connection.execute(sqlalchemy.text("select 1"))), "code_error")


def test_an_unknown_driver_is_missing_dependency() -> None:
    """D-3: fatal, as any module that is not there."""
    check(raised_by(lambda: sqlalchemy.create_engine("nosuch://")), "missing_dependency")


def test_one_row_that_is_not_there_is_data_error(engine) -> None:
    """C-07: NoResultFound and MultipleResultsFound speak about the data."""

    def one() -> Any:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.text("select * from items where id = 7")).one()

    check(raised_by(one), "data_error")


@pytest.mark.parametrize(("statement", "error_class"), [("selec 1", "syntax_error"), ("select 1 / 0", "data_error")])
def test_the_asynchronous_driver_is_looked_through_as_well(
    postgres: Postgres, statement: str, error_class: str
) -> None:
    """C-08: asyncpg's error sits below SQLAlchemy's imitation of a driver."""

    async def run() -> None:
        engine = create_async_engine(postgres.dsn.replace("postgresql:", "postgresql+asyncpg:", 1))
        try:
            async with engine.connect() as connection:
                await connection.execute(sqlalchemy.text(statement))
        finally:
            await engine.dispose()

    check(raised_by(lambda: asyncio.run(run())), error_class)
