"""Verdicts on what PyMySQL really raises, from a real MariaDB."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from outlast.testing import FaultProxy
from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.mariadb import MariaDB

# One server serves them all: keep them in one worker when the suite runs in several.
pytestmark = pytest.mark.xdist_group("mariadb")


class Session:
    """A connection in autocommit, so that the test says where a transaction begins and ends."""

    def __init__(self, port: int, **options: Any) -> None:
        settings = {"user": "root", "autocommit": True, "connect_timeout": 10, **options}
        self.connection = pymysql.connect(host="127.0.0.1", port=port, **settings)

    def run(self, *statements: str) -> Any:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()


@pytest.fixture(scope="session")
def shop(mariadb: MariaDB) -> Iterator[Session]:
    """A database with a table of two rows, a user without any right, and one who may connect only once."""
    session = Session(mariadb.port)
    with closing(session.connection):
        session.run(
            "create or replace database shop",
            "create table shop.accounts (id int primary key, amount int not null check (amount < 1000), name varchar(5)) engine=innodb",
            "insert into shop.accounts values (1, 0, ''), (2, 0, '')",
            "create or replace user stranger identified by 'right'",
            "create or replace user single identified by 'right' with max_user_connections 1",
        )
        yield session
        session.run("drop user stranger, single", "drop database shop")


@pytest.fixture
def open_session(mariadb: MariaDB, shop: Session) -> Iterator[Any]:
    """Opens sessions on the common server, and closes them at the end."""
    sessions: list[Session] = []

    def opened(**options: Any) -> Session:
        sessions.append(Session(mariadb.port, **{"database": "shop", **options}))
        return sessions[-1]

    yield opened
    for session in sessions:
        if session.connection.open:
            session.connection.close()


STATEMENTS = {
    "parse error 1064": ("selec 1", "syntax_error"),
    "unknown table 1146": ("select * from nowhere", "syntax_error"),
    "unknown column 1054": ("select nothing from accounts", "syntax_error"),
    "duplicate key 1062": ("insert into accounts values (1, 5, '')", "data_error"),
    "not null 1048": ("insert into accounts values (9, null, '')", "data_error"),
    "no default 1364": ("insert into accounts (id) values (9)", "data_error"),
    "check constraint 4025": ("insert into accounts values (9, 5000, '')", "data_error"),
    "wrong value 1366": ("insert into accounts values (9, 'many', '')", "data_error"),
    "too long 1406": ("insert into accounts values (9, 1, 'too long a name')", "data_error"),
    "out of range 1264": ("insert into accounts values (99999999999, 1, '')", "data_error"),
    "signal 1644": ("signal sqlstate '45000' set message_text = 'no'", "data_error"),
    "signal 40001": ("signal sqlstate '40001' set message_text = 'again'", "database_error"),
    "statement timeout 1969": ("set statement max_statement_time=0.01 for select sleep(60)", "timeout"),
    "unknown database 1049": ("use nowhere", "missing_input"),
}


@table(("statement", "error_class"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_failed_statement_is_classified_by_its_number_and_its_sqlstate(
    open_session, statement: str, error_class: str
) -> None:
    """C-07, D-2, D-3: the number where MariaDB's SQLSTATE says little, else the SQLSTATE."""
    session = open_session()
    check(raised_by(lambda: session.run(statement)), error_class)


def test_a_lock_that_is_not_given_in_time_is_database_error(open_session) -> None:
    """C-07: number 1205, whose SQLSTATE is HY000, that is: any error."""
    holder, waiter = open_session(), open_session()
    holder.run("begin", "update accounts set amount = 1 where id = 1")
    waiter.run("set innodb_lock_wait_timeout = 0")
    check(raised_by(lambda: waiter.run("update accounts set amount = 2 where id = 1")), "database_error")
    holder.run("rollback")


def test_a_deadlock_is_database_error(open_session) -> None:
    """C-07: number 1213, whoever of the two is chosen."""
    one, two = open_session(), open_session()
    one.run("begin", "update accounts set amount = 1 where id = 1")
    two.run("begin", "update accounts set amount = 2 where id = 2")
    errors: list[Exception] = []

    def cross(session: Session, row: int) -> None:
        try:
            session.run(f"update accounts set amount = 3 where id = {row}")
        except pymysql.Error as error:
            errors.append(error)
        session.run("rollback")

    other = threading.Thread(target=cross, args=(one, 2))
    other.start()
    cross(two, 1)
    other.join()
    assert [error.args[0] for error in errors] == [1213]
    check(errors[0], "database_error")


def test_a_write_to_a_server_that_became_read_only_is_database_error(open_session, shop: Session) -> None:
    """C-07: number 1290, as after a failover: another attempt may find the new primary."""
    shop.run("grant insert on shop.* to stranger", "set global read_only = 1")
    try:
        session = open_session(user="stranger", password="right")
        check(raised_by(lambda: session.run("insert into accounts values (7, 1, '')")), "database_error")
    finally:
        shop.run("set global read_only = 0", "revoke insert on shop.* from stranger")


def test_a_wrong_password_is_auth_error(open_session) -> None:
    """C-07, D-3: number 1045 is fatal: no other item can come in either."""
    check(raised_by(lambda: open_session(user="stranger", password="wrong")), "auth_error")


def test_a_missing_privilege_is_permission_denied(open_session) -> None:
    """C-07: numbers 1044 and 1142, whose SQLSTATE would make them syntax errors."""
    check(raised_by(lambda: open_session(user="stranger", password="right")), "permission_denied")
    session = open_session(user="stranger", password="right", database=None)
    check(raised_by(lambda: session.run("select * from shop.accounts")), "permission_denied")


def test_a_user_with_too_many_connections_gets_database_error(open_session) -> None:
    """C-07: number 1226, whose SQLSTATE would make it a syntax error, passes when somebody leaves."""
    options = {"user": "single", "password": "right", "database": None}
    open_session(**options)
    check(raised_by(lambda: open_session(**options)), "database_error")


def test_a_server_with_too_many_connections_gives_database_connection(open_session, shop: Session) -> None:
    """C-07, D-3: number 1040."""
    shop.run("grant select on shop.* to stranger", "set global max_connections = 10")
    try:
        error = raised_by(lambda: [open_session(user="stranger", password="right") for _ in range(12)])
        assert error.args[0] == 1040
        check(error, "database_connection")
    finally:
        shop.run("set global max_connections = 151", "revoke select on shop.* from stranger")


def test_nobody_listening_is_database_connection(refusing_port: int) -> None:
    """D-3: number 2003."""
    check(raised_by(lambda: Session(refusing_port)), "database_connection")


def test_a_killed_connection_is_database_connection(open_session, shop: Session) -> None:
    """D-3: numbers 2006, 2013 and 1927; and so is the next use of what is left of it."""
    session = open_session()
    shop.run(f"kill {session.connection.thread_id()}")
    check(raised_by(lambda: session.run("select 1")), "database_connection")
    check(raised_by(lambda: session.run("select 1")), "database_connection")


def test_a_reset_connection_is_database_connection(mariadb: MariaDB, shop: Session) -> None:
    """D-3: the network cuts in, number 2013 or 2006."""
    with FaultProxy(("127.0.0.1", mariadb.port)) as proxy:
        session = Session(proxy.port)
        proxy.cut()
        check(raised_by(lambda: session.run("select 1")), "database_connection")
        if session.connection.open:
            session.connection.close()


def test_a_killed_query_is_timeout(open_session, shop: Session) -> None:
    """C-07: number 1317: somebody found that it took too long."""
    holder, waiter = open_session(), open_session()
    holder.run("begin", "update accounts set amount = 1 where id = 1")
    errors: list[Exception] = []

    def wait() -> None:
        errors.append(raised_by(lambda: waiter.run("update accounts set amount = 2 where id = 1")))

    waiting = threading.Thread(target=wait)
    waiting.start()
    number = waiter.connection.thread_id()
    running = f"select count(*) from information_schema.processlist where id = {number} and info like 'update%'"
    while shop.run(running) != ((1,),):
        pass
    shop.run(f"kill query {number}")
    waiting.join()
    holder.run("rollback")
    check(errors[0], "timeout")
