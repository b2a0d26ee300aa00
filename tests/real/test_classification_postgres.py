"""Verdicts on what psycopg 2 and 3 really raise, from a real PostgreSQL."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg2
import pytest

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from outlast.testing import FaultProxy
    from servers.postgres import Postgres

# One server serves them all: keep them in one worker when the suite runs in several.
pytestmark = pytest.mark.xdist_group("postgres")


class Session:
    """A connection of either driver, in autocommit, so that the test says where a transaction begins and ends."""

    def __init__(self, driver: ModuleType, *address: str, **options: Any) -> None:
        self.connection = driver.connect(*address, **options)
        self.connection.autocommit = True

    @property
    def backend(self) -> int:
        return int(self.connection.info.backend_pid)

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


@pytest.fixture(params=[psycopg2, psycopg], ids=["psycopg2", "psycopg3"])
def driver(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def open_session(driver: ModuleType, postgres: Postgres) -> Iterator[Any]:
    """Opens sessions on the common server, and closes them at the end."""
    sessions: list[Session] = []

    def opened() -> Session:
        sessions.append(Session(driver, postgres.dsn))
        return sessions[-1]

    yield opened
    for session in sessions:
        session.connection.close()


@pytest.fixture
def accounts(postgres: Postgres) -> Iterator[str]:
    """A table with two rows."""
    postgres.execute(
        "create table accounts (id int primary key, amount int not null)", "insert into accounts values (1, 0), (2, 0)"
    )
    yield "accounts"
    postgres.execute("drop table accounts")


@pytest.fixture
def stranger(postgres: Postgres) -> Iterator[str]:
    """A role without any right."""
    postgres.execute("create role stranger")
    yield "stranger"
    postgres.execute("drop role stranger")


# --- a statement fails ----------------------------------------------------------------------------------------------

STATEMENTS = {
    "syntax error 42601": ("selec 1", "syntax_error"),
    "undefined table 42P01": ("select * from nowhere", "syntax_error"),
    "undefined column 42703": ("select nothing from accounts", "syntax_error"),
    "unique violation 23505": ("insert into accounts values (1, 5)", "data_error"),
    "not null violation 23502": ("insert into accounts values (9, null)", "data_error"),
    "invalid text 22P02": ("select 'many'::int", "data_error"),
    "out of range 22003": ("select 99999999999::int", "data_error"),
    "division by zero 22012": ("select 1 / 0", "data_error"),
    "statement timeout 57014": ("set statement_timeout = '10ms'; select pg_sleep(60)", "timeout"),
}


@table(("statement", "error_class"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_failed_statement_is_classified_by_its_sqlstate(
    open_session, accounts: str, statement: str, error_class: str
) -> None:
    """C-07, D-2, D-3: OperationalError, ProgrammingError and DataError alike."""
    session = open_session()
    check(raised_by(lambda: session.run(statement)), error_class)


RAISED = {
    "08006": "database_connection",
    "28P01": "auth_error",
    "40001": "database_error",
    "42501": "permission_denied",
    "53200": "database_error",
    "53300": "database_error",
    "57P02": "database_connection",
    "57P03": "database_connection",
}


@table(("sqlstate", "error_class"), RAISED.items())
def test_a_sqlstate_that_is_hard_to_provoke_is_raised_by_the_server(
    open_session, sqlstate: str, error_class: str
) -> None:
    """C-07, D-2, D-3: the server itself raises it, so the drivers build the class they always build for it."""
    session = open_session()
    statement = f"do $$ begin raise exception 'on purpose' using errcode = '{sqlstate}'; end $$"
    check(raised_by(lambda: session.run(statement)), error_class)


def test_a_missing_right_is_permission_denied(open_session, accounts: str, stranger: str) -> None:
    """C-07: 42501 is no syntax error, though its class is 42."""
    session = open_session()
    session.run(f"set role {stranger}")
    check(raised_by(lambda: session.run("select * from accounts")), "permission_denied")


# --- two sessions meet ----------------------------------------------------------------------------------------------


@contextmanager
def locked_row(session: Session) -> Iterator[None]:
    session.run("begin", "update accounts set amount = 1 where id = 1")
    try:
        yield
    finally:
        session.run("rollback")


def test_a_lock_timeout_is_database_error(open_session, accounts: str) -> None:
    """C-07: 55P03; somebody else holds the lock and will let go."""
    ours, theirs = open_session(), open_session()
    ours.run("set lock_timeout = '10ms'")
    with locked_row(theirs):
        error = raised_by(lambda: ours.run("update accounts set amount = 2 where id = 1"))
    check(error, "database_error")


def test_a_lock_not_waited_for_is_database_error(open_session, accounts: str) -> None:
    """C-07: 55P03 through nowait."""
    ours, theirs = open_session(), open_session()
    with locked_row(theirs):
        error = raised_by(lambda: ours.run("select * from accounts where id = 1 for update nowait"))
    check(error, "database_error")


def test_a_concurrent_update_under_repeatable_read_is_database_error(open_session, accounts: str) -> None:
    """C-07: 40001 in a statement."""
    ours, theirs = open_session(), open_session()
    ours.run("begin isolation level repeatable read", "select * from accounts")
    theirs.run("update accounts set amount = 1 where id = 1")
    check(raised_by(lambda: ours.run("update accounts set amount = 2 where id = 1")), "database_error")


def test_a_serialization_failure_at_commit_is_database_error(open_session, accounts: str) -> None:
    """C-07: 40001 where nobody looks for it: each transaction reads what the other writes."""
    ours, theirs = open_session(), open_session()
    for session, row in ((ours, 1), (theirs, 2)):
        session.run("begin isolation level serializable", "select sum(amount) from accounts")
        session.run(f"update accounts set amount = amount + 1 where id = {row}")
    theirs.run("commit")
    check(raised_by(lambda: ours.run("commit")), "database_error")


def test_a_deadlock_is_database_error(open_session, accounts: str) -> None:
    """C-07: 40P01; PostgreSQL ends one of the two, the other goes on."""
    errors: list[Exception] = []
    start = threading.Barrier(2)

    def transfer(session: Session, first: int, second: int) -> None:
        session.run("set deadlock_timeout = '10ms'", "begin", f"update accounts set amount = 1 where id = {first}")
        start.wait()
        try:
            session.run(f"update accounts set amount = 1 where id = {second}")
        except Exception as error:  # noqa: BLE001 - one of the two drivers' own
            errors.append(error)
        session.run("rollback")

    orders = ((1, 2), (2, 1))
    threads = [threading.Thread(target=transfer, args=(open_session(), *order)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1
    check(errors[0], "database_error")


# --- the connection fails -------------------------------------------------------------------------------------------


def test_a_refused_connection_is_database_connection(driver: ModuleType, refusing_port: int) -> None:
    """C-07, D-3: libpq gives no SQLSTATE while it connects."""
    check(
        raised_by(lambda: driver.connect(f"host=127.0.0.1 port={refusing_port} user=postgres")), "database_connection"
    )


def test_a_name_that_does_not_resolve_is_database_connection(driver: ModuleType) -> None:
    """C-07, D-3: libpq resolves names itself and says so only in words."""
    check(raised_by(lambda: driver.connect("host=outlast.invalid user=postgres")), "database_connection")


def test_a_backend_ended_by_an_administrator_is_database_connection(open_session, postgres: Postgres) -> None:
    """C-07, D-3: 57P01 in psycopg 3; psycopg 2 only knows that the connection went away."""
    session = open_session()
    postgres.terminate(session.backend)
    check(raised_by(lambda: session.run("select 1")), "database_connection")


def test_a_cut_connection_is_database_connection(driver: ModuleType, postgres: Postgres, proxy: FaultProxy) -> None:
    """C-07, D-3: reset under the driver's feet, and again when the dead connection is used once more."""
    session = Session(driver, f"host=127.0.0.1 port={proxy.port} user=postgres dbname={postgres.name}")
    with closing(session.connection):
        session.run("select 1")
        proxy.cut()
        check(raised_by(lambda: session.run("select 1")), "database_connection")
        check(raised_by(lambda: session.run("select 1")), "database_connection")


def test_a_connection_cut_while_a_statement_runs_is_database_connection(
    driver: ModuleType, postgres: Postgres, proxy: FaultProxy
) -> None:
    """C-07, D-3: nobody knows whether the statement was done."""
    session = Session(driver, f"host=127.0.0.1 port={proxy.port} user=postgres dbname={postgres.name}")
    with closing(session.connection):
        # The statement waits for a lock that the other session takes first; the cut comes when it is seen waiting.
        with closing(driver.connect(postgres.dsn)) as other, other.cursor() as cursor:
            cursor.execute("select pg_advisory_lock(7)")
            cutter = threading.Thread(target=cut_when_waiting, args=(postgres, session.backend, proxy))
            cutter.start()
            error = raised_by(lambda: session.run("select pg_advisory_lock(7)"))
            cutter.join()
        check(error, "database_connection")


def cut_when_waiting(postgres: Postgres, backend: int, proxy: FaultProxy) -> None:
    waiting = f"select count(*) from pg_stat_activity where pid = {backend} and wait_event_type = 'Lock'"
    for _ in range(1000):  # each look costs a new session, so this is no busy loop
        if postgres.execute(waiting) == "1":
            break
    proxy.cut()


def test_a_closed_connection_is_database_connection(open_session) -> None:
    """C-07, D-3: InterfaceError in psycopg 2, OperationalError in psycopg 3; a new connection would do."""
    session = open_session()
    session.connection.close()
    check(raised_by(lambda: session.run("select 1")), "database_connection")


def test_a_server_that_said_goodbye_is_database_connection(driver: ModuleType, fragile_postgres: Postgres) -> None:
    """S4-29, C-07, D-3: for those who were connected, and for those who come."""
    session = Session(driver, fragile_postgres.dsn)
    fragile_postgres.stop("fast")
    try:
        with closing(session.connection):
            check(raised_by(lambda: session.run("select 1")), "database_connection")
        check(raised_by(lambda: driver.connect(fragile_postgres.dsn)), "database_connection")
    finally:
        fragile_postgres.start()


def test_a_server_that_crashed_is_database_connection(driver: ModuleType, fragile_postgres: Postgres) -> None:
    """S4-29, C-07, D-3: psycopg 2 raises a bare DatabaseError here, without a SQLSTATE."""
    session = Session(driver, fragile_postgres.dsn)
    fragile_postgres.stop("immediate")
    try:
        with closing(session.connection):
            check(raised_by(lambda: session.run("select 1")), "database_connection")
        check(raised_by(lambda: driver.connect(fragile_postgres.dsn)), "database_connection")
    finally:
        fragile_postgres.start()
