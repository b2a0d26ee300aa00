"""`mysql.extractor`, against a real MariaDB."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from contextlib import closing, suppress
from decimal import Decimal
from time import monotonic

import pymysql
import pytest
import trustme

from components.steps.calling import a_context, failure_of, outputs_of
from outlast.components.conformance import check_component
from outlast.components.reaching import failure, reach_mysql
from outlast.components.running import StepContext
from outlast.components.steps.doing.mysql import _TYPES
from outlast.store.codec import Codec
from outlast.testing import FaultProxy
from servers.mariadb import MariaDB
from tables import table

pytestmark = pytest.mark.xdist_group("mariadb")

TYPES = (
    "id int primary key, price decimal(20,4), day date, at datetime(6), seen timestamp(3) null, lasts time(6), year year, bits bit(10), doc json, "
    "raw blob, fixed binary(2), big bigint unsigned, part double, place point, one enum('a','b'), some set('x','y'), name varchar(9) character set latin1, long_name longtext, yes bool"
)


@pytest.fixture(scope="module")
def shop(mariadb):
    """A database with tables, and users who may do less than others."""
    with closing(pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", autocommit=True)) as connection:
        cursor = connection.cursor()
        for statement in (
            "create or replace database steps character set utf8mb4",
            "use steps",
            "set sql_mode = ''",
            "set time_zone = '+05:00'",
            f"create table types ({TYPES})",
            "create table movies (id int primary key, title varchar(20) not null)",
            "insert into movies values (1, 'a'), (2, 'b'), (3, 'c')",
            "create function deletes() returns int modifies sql data begin delete from movies; return 1; end",
            (
                "create function fails(number int) returns int begin"
                " if number = 1213 then signal sqlstate '40001' set mysql_errno = 1213, message_text = 'Deadlock found'; end if;"
                " if number = 1644 then signal sqlstate '45000' set message_text = 'mail hunter2 is taken'; end if;"
                " if number = 1205 then signal sqlstate 'HY000' set mysql_errno = 1205, message_text = 'Lock wait timeout exceeded'; end if;"
                " return 1; end"
            ),
            "create function another_encoding() returns int begin set character_set_results = latin1; return 1; end",
            "create or replace user ann identified by 'hunter2-x'",
            "create or replace user single identified by 'hunter2-x' with max_user_connections 1",
            "grant select on steps.movies to single",
        ):
            cursor.execute(statement)
        yield connection
        cursor.execute("drop database steps")
        cursor.execute("drop user ann, single")


@pytest.fixture
def at_most(monkeypatch):
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


NOWHERE = {"host": "127.0.0.1", "database": "steps", "user": "root", "sslmode": "disable"}


def there(server, **fields):
    return {**NOWHERE, "port": server.port, **fields}


def extract(server, query, parameters=None, **config):
    given = {"connection": "@mysql.shop", "query": query, **config}
    given |= {} if parameters is None else {"parameters": parameters}
    return outputs_of("mysql.extractor", given, a_context(connection=there(server)))["rows"]


def wrong(connection, query, **config):
    given = {"connection": "@mysql.shop", "query": query, **config}
    return failure_of("mysql.extractor", given, a_context(connection=connection))


# --- values ---


def test_values_of_every_type_keep_it_and_can_be_stored(mariadb, shop):
    """Exact numbers, days, instants in UTC, durations that may be negative, bits as a number, bytes as bytes."""
    cursor = shop.cursor()
    cursor.execute(
        "insert into types values (1, 1.5, '2026-01-02', '2026-01-02 03:04:05.000006', '2026-01-02 03:04:05.5', '-838:59:59', 2026, b'1000000001', "
        "'{\"a\": [1]}', x'00ff', 'a', 18446744073709551615, 1.5, point(1, 2), 'b', 'x,y', 'é', 'ü€😀', true)"
    )
    cursor.execute("insert into types (id) values (2)")
    first, second = extract(mariadb, "select * from types where id < 3 order by id", chunk_rows=1)
    assert first == {
        "id": 1,
        "price": Decimal("1.5000"),
        "day": dt.date(2026, 1, 2),
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - as it is kept
        "seen": dt.datetime(2026, 1, 1, 22, 4, 5, 500_000, tzinfo=dt.UTC),  # it was written in +05:00
        "lasts": -dt.timedelta(hours=838, minutes=59, seconds=59),
        "year": 2026,
        "bits": 513,
        "doc": '{"a": [1]}',  # MariaDB keeps documents as texts
        "raw": b"\x00\xff",
        "fixed": b"a\x00",
        "big": 18446744073709551615,
        "part": 1.5,
        "place": b"\x00\x00\x00\x00\x01\x01" + bytes(9) + b"\xf0?" + bytes(7) + b"@",
        "one": "b",
        "some": "x,y",
        "name": "é",
        "long_name": "ü€😀",
        "yes": 1,
    }
    assert second == {**dict.fromkeys(first), "id": 2}
    assert Codec().decode(Codec().encode([first, second])) == [first, second]


def test_a_number_that_the_server_would_round_is_refused_with_the_way_out(mariadb, shop):
    """A FLOAT is sent with six digits: 16777216 would come as 16777200. As a double it is what is kept, to the last bit."""
    cursor = shop.cursor()
    cursor.execute("create or replace table floats (id int, part float, fixed float(9,2))")
    cursor.execute("insert into floats values (1, 16777216, 0.1), (2, 0.1, null)")
    for query in (
        "select * from floats",
        "select part, fixed from floats where id = 0",
        "select max(part) as part, min(fixed) as fixed from floats",
    ):
        assert wrong(there(mariadb), query)[:2] == (
            "validation_error",
            (
                "expected columns that come as they are kept, got of type FLOAT, of which MySQL sends six digits: part, fixed; "
                "write cast(part as double) in query"
            ),
        )
    rows = extract(
        mariadb, "select cast(part as double) as part, cast(0.1 as double) + 0.2e0 as more from floats order by id"
    )
    assert rows == [{"part": 16777216.0, "more": 0.1 + 0.2}, {"part": 0.10000000149011612, "more": 0.1 + 0.2}]


def test_a_day_that_no_calendar_has_comes_as_mysql_writes_it(mariadb, shop):
    """Nothing is made of 0000-00-00 that nobody has written."""
    shop.cursor().execute(
        "insert into types (id, day, at, seen) values (3, '0000-00-00', '2026-02-00 00:00:00', 0), (4, '2026-02-00', null, null)"
    )
    assert extract(mariadb, "select day, at, seen from types where id in (3, 4) order by id") == [
        {"day": "0000-00-00", "at": "2026-02-00 00:00:00.000000", "seen": "0000-00-00 00:00:00.000"},
        {"day": "2026-02-00", "at": None, "seen": None},
    ]


def test_documents_of_mysql_are_documents():
    """MySQL has a type of its own for them, number 245; MariaDB sends none."""
    assert _TYPES[245]('{"a": [1, null]}') == {"a": [1, None]}


def test_a_text_that_is_none_is_an_error_with_a_way_out(mariadb, shop):
    """What is no UTF-8 is not taken for something else."""
    kind, said, _ = wrong(there(mariadb), "select id, _utf8mb4 x'68756e7465723261ff' as name from movies")
    assert (kind, "hunter2" in said) == ("data_error", False)
    kind, said, _ = wrong(there(mariadb), "select another_encoding() as one, 'é' as name")
    assert (kind, "have it as bytes, with cast(... as binary) in query" in said) == ("data_error", True)
    assert extract(mariadb, "select cast(_binary x'ff' as binary) as raw") == [{"raw": b"\xff"}]


def test_parameters_are_values_whatever_signs_they_have(mariadb, shop):
    """By name or in order, a list for IN, and never a part of the query, with every setting of the server."""
    nasty = "\\'; drop table movies; -- %s \x00\n\u2028"
    query = "select %(name)s as name, id in %(ids)s as there, %(at)s as at, %(doc)s as doc, '100%%' as share from movies where id = 3"
    given = {
        "name": nasty,
        "ids": [1, 3],
        "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        "doc": {"a": "'"},
    }
    assert extract(mariadb, query, given) == [
        {"name": nasty, "there": 1, "at": "2026-01-02 02:00:00", "doc": '{"a":"\'"}', "share": "100%"}
    ]
    assert extract(mariadb, "select %s + %s as sum, %s as raw", [1, Decimal("2.5"), b"\x00'"]) == [
        {"sum": Decimal("3.5"), "raw": b"\x00'"}
    ]
    assert extract(mariadb, "select '100%' as share") == [{"share": "100%"}]
    cursor = shop.cursor()
    cursor.execute("set global sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    try:
        assert extract(mariadb, "select %s as name", [nasty]) == [{"name": nasty}]
    finally:
        cursor.execute("set global sql_mode = default")


@table(
    ("query", "parameters", "kind", "said"),
    [
        ("select '%s' as a", ["x"], "validation_error", "query: expected %(name)s and %s of query outside of quotes"),
        ("select 1 -- %(a)s\n as a", {"a": 1}, "validation_error", "query: expected %(name)s and %s of query outside of quotes"),
        ("select `%s` from movies", ["x"], "validation_error", "query: expected %(name)s and %s of query outside of quotes"),
        ("select %(a)s as a", {"b": 1}, "validation_error", "parameters: expected a parameter a, which query has"),
        ("select %s as a", ["hunter2\ud800"], "validation_error", "a text with half a character"),
        ("select %s as a", [object()], "validation_error", "the parameter 1 is no value for MySQL"),
        ("select 1 in %s as a", [[]], "validation_error", "expected the parameter 1 to have values, got: none"),
        ("select 1 as a, 2 as a", [], "validation_error", "got twice: a; use AS"),
        ("select nope from movies", [], "syntax_error", "1054, Unknown column 'nope' in"),
        ("select * from nope", [], "syntax_error", "1146, Table 'steps.nope' doesn't exist"),
        ("select nope(1)", [], "syntax_error", "1305, FUNCTION steps.nope does not exist"),
        ("select 1 from where x = %s", ["hunter2"], "syntax_error", "1064, You have an error in your SQL syntax"),
        ("select deletes() as a", [], "code_error", "1792, Cannot execute statement in a READ ONLY transaction"),
        ("select fails(1213) as a", [], "database_error", "1213, Deadlock found"),
        ("select fails(1644) as a", [], "data_error", "the database says: 1644, raised by a function or a trigger"),
        ("select fails(1205) as a", [], "database_error", "1205, Lock wait timeout exceeded"),
        ("select cast(%s as unsigned) * 18446744073709551615 as a", ["7 hunter2"], "data_error", "1690, BIGINT UNSIGNED value is out of range in '…'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_its_class_and_without_a_value(mariadb, shop, query, parameters, kind, said):
    """S0-27: by the number that the server gives; names of the query are shown, values are not."""
    found, told, error = wrong(there(mariadb), query, parameters=parameters)
    assert (found, said in told, "hunter2" in told + repr(error)) == (kind, True, False)
    assert len(extract(mariadb, "select id from movies")) == 3


@table(
    ("config", "said"),
    [
        ({"max_rows": 2}, "expected at most max_rows (2) rows, got: more"),
        ({"max_bytes": 20}, "expected rows of at most max_bytes (20), got: more"),
        ({"max_rows": 2, "chunk_rows": 1}, "expected at most max_rows (2) rows, got: more"),
    ],
)
def test_more_than_was_allowed_for_is_an_error_and_not_a_part(mariadb, shop, config, said):
    """Bounded by number and by size, however the rows are fetched."""
    kind, told, _ = wrong(there(mariadb), "select id, title from movies", **config)
    assert (kind, told) == ("data_error", f"{said}; raise it, or read less, with LIMIT or WHERE in query")
    assert len(extract(mariadb, "select id, title from movies", max_rows=3, max_bytes=27)) == 3


def test_rows_stay_with_the_server_until_they_are_asked_for(mariadb, shop):
    """Of a hundred million rows only those are sent that fit, and nobody waits for the rest."""
    begin = monotonic()
    assert wrong(there(mariadb), "select seq from seq_1_to_100000000", max_rows=1000)[0] == "data_error"
    assert monotonic() - begin < 20


# --- time ---


def running(shop, word):
    cursor = shop.cursor()
    cursor.execute(
        "select info from information_schema.processlist where command = 'Query' and info like %s", (f"select%{word}%",)
    )
    return [row for row in cursor.fetchall() if "processlist" not in row[0]]


def test_the_server_ends_a_statement_that_takes_too_long(mariadb, shop, at_most):
    """S0-14, S0-16: by the limit of the step, by that of the connection, or by what is left of the attempt; it is gone there, too."""
    slow = "select benchmark(100000000000, md5('x')) as too_slow"
    told = [
        wrong(there(mariadb), slow, statement_timeout_ms=50)[0],
        wrong(there(mariadb, statement_timeout_ms=50), slow)[0],
    ]
    at_most(0.3)
    told.append(wrong(there(mariadb, statement_timeout_ms=60_000), slow)[0])
    while running(shop, "too_slow"):
        pass
    assert told == ["timeout"] * 3


@table(("step", "connection", "limit"), [(70_000, 80_000, 70), (80_000, 70_000, 80), (None, 80_000, 80)])
def test_the_statement_timeout_of_a_step_wins_over_that_of_its_connection(mariadb, shop, step, connection, limit):
    """Both are given: that of the step counts, whichever is shorter."""
    given = {"connection": "@mysql.shop", "query": "select cast(@@max_statement_time as unsigned) as seconds"}
    given |= {} if step is None else {"statement_timeout_ms": step}
    context = a_context(connection=there(mariadb, statement_timeout_ms=connection))
    assert outputs_of("mysql.extractor", given, context)["rows"] == [{"seconds": limit}]


# --- connections ---


def test_who_cannot_be_reached_is_told_apart(mariadb, shop):
    """S0-27: who nobody is, has no right, no database, no place, no TLS; in our words, without host and password."""
    with closing(pymysql.connect(host="127.0.0.1", port=mariadb.port, user="single", password="hunter2-x")):
        full = wrong(there(mariadb, user="single", password="hunter2-x"), "select 1 as a")
    found = [
        wrong(there(mariadb, user="ann", password="hunter2-y"), "select 1 as a"),
        wrong(there(mariadb, user="ann", password="hunter2-x"), "select 1 as a"),
        wrong(there(mariadb, database="nope"), "select 1 as a"),
        wrong(there(mariadb, port=1), "select 1 as a"),
        wrong(there(mariadb, sslmode="require"), "select 1 as a"),
        wrong(there(mariadb, sslmode="verify-full", sslrootcert="/nowhere.pem"), "select 1 as a"),
        full,
        wrong({"url": "mysql://ann:hunter2-x@127.0.0.1:1/shop", "sslmode": "disable"}, "select 1 as a"),
    ]
    assert [(kind, said.removeprefix("no connection to the database: ")) for kind, said, _ in found] == [
        ("auth_error", "the password or the user is wrong"),
        ("permission_denied", "the user may not use this database"),
        ("missing_input", "the server has no such database"),
        ("database_connection", "the host refuses the connection: nothing listens there"),
        ("tls_verify", "the server cannot prove who it is (TLS)"),
        ("tls_verify", "the file of the authority (sslrootcert) cannot be read"),
        ("database_error", "the server takes no more of this user"),
        ("database_connection", "the host refuses the connection: nothing listens there"),
    ]


class Certified(MariaDB):
    """One that proves who it is."""

    def __init__(self):
        super().__init__()
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        mine = self.authority.issue_cert("localhost")
        mine.private_key_pem.write_to_path(str(self.folder / "key.pem"))
        mine.cert_chain_pems[0].write_to_path(str(self.folder / "cert.pem"))

    def command(self):
        return [*super().command(), *(f"--ssl-{name}={self.folder / name}.pem" for name in ("ca", "cert", "key"))]


def test_the_server_proves_who_it_is_as_far_as_the_connection_asks_for_it():
    """S0-27: by default in full: the authority and the name; and a socket needs no proof."""
    with Certified() as server:
        authority = str(server.folder / "ca.pem")
        query = "select variable_value <> '' as tls from information_schema.session_status where variable_name = 'Ssl_cipher'"
        plain = {"port": server.port, "database": "mysql", "user": "root"}
        told = []
        for fields in (
            {"host": "localhost", "sslrootcert": authority},
            {"host": "127.0.0.1", "sslrootcert": authority, "sslmode": "verify-ca"},
            {"host": "127.0.0.1", "sslmode": "require"},
            {"host": str(server.folder / "socket")},
        ):
            config = {"connection": "@mysql.shop", "query": query}
            told.append(
                outputs_of("mysql.extractor", config, a_context(connection={**plain, **fields}))["rows"][0]["tls"]
            )
        reach_mysql({**plain, "host": "localhost", "sslrootcert": authority}, 5)
        refused = [
            wrong({**plain, "host": "127.0.0.1", "sslrootcert": authority}, query)[:2],  # the name is another
            wrong({**plain, "host": "localhost"}, query)[:2],  # nobody knows the authority
        ]
        with pytest.raises(pymysql.Error) as unknown:
            reach_mysql({**plain, "host": "localhost"}, 5)
    assert told == [1, 1, 1, 0]
    assert refused == [("tls_verify", "no connection to the database: the server cannot prove who it is (TLS)")] * 2
    assert failure(unknown.value).kind == "auth"


# --- faults ---


def through(proxy, **fields):
    return there(proxy, **fields)


@table(
    ("fault", "when", "kind"),
    [
        ("reset_before", b"", "database_connection"),
        ("reset_before", b"select id", "database_connection"),
        ("reset_after", b"select id", "database_connection"),
        ("half_close", b"select id", "database_connection"),
        ("garbage", b"select id", "database_connection"),
        ("stall", b"select id", "timeout"),
        ("stall", b"", "timeout"),
    ],
)
def test_faults_on_the_way_are_worth_another_attempt(mariadb, shop, at_most, fault, when, kind):
    """S0-27: whatever the network does, it is known for what it is; nothing of it is taken for rows, and nothing is tried twice."""
    with FaultProxy(("127.0.0.1", mariadb.port)) as proxy:
        proxy.fault(fault, when=when)
        if fault == "stall":
            at_most(0.4)
        found, said, _ = wrong(through(proxy), "select id from movies order by id")
        assert (found, proxy.struck, "127.0.0.1" in said) == (kind, [fault], False)
        at_most(None)
        config = {"connection": "@mysql.shop", "query": "select id from movies order by id"}
        rows = outputs_of("mysql.extractor", config, a_context(connection=through(proxy)))["rows"]
        assert rows == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_greeting_that_comes_byte_by_byte_is_given_up_in_time(at_most):
    """Each wait is short, and all of them together are not: the whole way in is bounded."""
    at_most(0.4)
    over, sent = threading.Event(), []

    def drip(listening):
        client, _ = listening.accept()
        with client, suppress(OSError):
            client.sendall(b"\xff\xff\x00\x00\x0a")  # a greeting of 65 535 bytes
            while not over.wait(0.02):
                client.sendall(b"1")
                sent.append(1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            found = wrong({**NOWHERE, "port": listening.getsockname()[1]}, "select 1")[:2]
        finally:
            over.set()
            thread.join()
    assert found == ("timeout", "no connection to the database: no answer in time")
    assert 0 < len(sent) < 1000


def test_a_connection_that_is_killed_is_worth_another_attempt(mariadb, shop):
    """S0-27: numbers 1927 and 2013."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(wrong(there(mariadb), "select sleep(60) as to_be_killed")))
    thread.start()
    cursor = shop.cursor()
    killed = ()
    while not killed:
        cursor.execute("select id from information_schema.processlist where info like 'select sleep%%to_be_killed%%'")
        killed = cursor.fetchall()
    cursor.execute(f"kill {killed[0][0]}")
    thread.join()
    assert [one[0] for one in ended] == ["database_connection"]


def test_it_is_what_a_step_relies_on(mariadb, shop):
    """The check that authors of components are given."""
    shop.cursor().execute("grant select on steps.* to ann")
    fields = there(mariadb, user="ann", password="hunter2-x")
    config = {"connection": "@mysql.shop", "query": "select id from movies order by id"}
    found = check_component("mysql.extractor", config, connection=fields, failing={**config, "query": "select nope"})
    assert found == {"rows": [{"id": 1}, {"id": 2}, {"id": 3}], "count": 3}
    shop.cursor().execute("revoke select on steps.* from ann")
