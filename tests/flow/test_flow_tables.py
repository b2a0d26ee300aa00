"""The pipeline of ``examples/``: from a real MariaDB to a PostgREST on a real PostgreSQL, with what goes wrong on the way."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pymysql
import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
from outlast.testing import FaultProxy
from servers.mariadb import MariaDB
from servers.postgrest import PostgREST

pytestmark = pytest.mark.xdist_group("mariadb")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "movies.yaml"
KEY = "k3y-of-the-service"


@pytest.fixture(scope="module")
def mariadb():
    with MariaDB() as server:
        with closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)) as connection:
            cursor = connection.cursor()
            cursor.execute("create database shop")
            cursor.execute("create table shop.movies (id int primary key, title text, price decimal(8,2), shown date)")
            cursor.execute(
                "insert into shop.movies values (1, 'a', 1.50, '2026-01-02'), (2, 'b', null, null), (3, 'c', 3, null)"
            )
        yield server


class Shop:
    """The example beside its two services, each behind a proxy on which faults strike."""

    def __init__(self, project, postgres, mysql, rest, server):
        self.project, self.postgres, self.mysql, self.rest, self.server = project, postgres, mysql, rest, server
        (project.root / "connections.yaml").write_text(
            "connections:\n"
            f"  mysql: {{shop: {{host: 127.0.0.1, port: {mysql.port}, database: shop, user: root, sslmode: disable}}}}\n"
            f"  supabase: {{main: {{url: 'http://127.0.0.1:{rest.port}', key: '${{SUPABASE_KEY}}', schema: {server.schemas[0]}, allow_private: true}}}}\n"
        )

    def load(self, more="", **changes):
        """The example as it is, but for its delays and what a test adds."""
        text = EXAMPLE.read_text().partition('oml_version: "0.1.0"\n')[2]
        for old, new in changes.get("replace", {}).items():
            assert old in text
            text = text.replace(old, new)
        return self.project.load(text.replace("initial_delay_ms: 1000", "initial_delay_ms: 1") + more)

    def rows(self):
        schema = self.server.schemas[0]
        return self.postgres.execute(f"select id, title, price, shown, batch from {schema}.movies order by id").split(
            "\n"
        )

    @property
    def asked(self):
        return [one.method for one in self.server.asked]


@pytest.fixture
def shop(project, postgres, mariadb, monkeypatch):
    schema = f"shop_{uuid4().hex}"
    monkeypatch.setenv("SUPABASE_KEY", KEY)
    postgres.execute(
        f"create schema {schema}",
        f"create table {schema}.movies (id int primary key, title text, price numeric, shown date, batch text)",
        f"insert into {schema}.movies values (3, 'was there', null, null, 'older')",
    )
    with (
        PostgREST(postgres.dsn, keys={KEY: None}, schemas=(schema,)) as server,
        FaultProxy(("127.0.0.1", mariadb.port)) as mysql,
        FaultProxy(("127.0.0.1", server.port)) as rest,
    ):
        yield Shop(project, postgres, mysql, rest, server)


def told(result):
    return [(step.id, step.status, [one.outcome for one in step.attempts]) for step in result.steps]


BROUGHT = ["1|a|1.50|2026-01-02|2026-11-16", "2|b|||2026-11-16", "3|was there|||older"]


def test_the_example_runs_and_outlasts_a_network_that_does_not(shop, sqlite_app):
    """S0-07, S0-17, S0-19, S0-35: an answer that is lost on either side costs an attempt and doubles nothing; the same batch is done once."""
    shop.mysql.fault("reset_after", when=b"select * from movies")
    shop.rest.fault("reset_after", when=b"POST ")
    first = shop.load().run(run_key="monday", app=sqlite_app)
    assert (first.status, told(first)) == (
        "completed",
        [
            ("extract-data", "succeeded", ["failed", "succeeded"]),
            ("mark", "succeeded", ["succeeded"]),
            ("write-data", "succeeded", ["failed", "succeeded"]),
        ],
    )
    assert [one.error_class for step in first.steps for one in step.attempts if one.outcome == "failed"] == [
        "database_connection",
        "connection_reset",
    ]
    assert (shop.rows(), shop.asked) == (BROUGHT, ["POST", "POST"])
    second = shop.load().run(run_key="tuesday", app=sqlite_app)
    assert (second["write-data"].status, shop.asked) == ("cached", ["POST", "POST"])


FAILS = '  - {id: publish, component: python, config: {call: "MODULE:publish"}}\n'
PUBLISH = (
    "calls = []\ndef publish():\n    calls.append(1)\n    if len(calls) < 2:\n        raise ValueError('not today')\n"
)


def test_what_a_batch_has_brought_goes_again_if_a_later_step_fails(shop, sqlite_app):
    """S0-21, S0-23: the rows of the batch and no others; the next round brings them again."""
    shop.project.functions(PUBLISH)
    shop.rest.fault("reset_after", when=b"DELETE ")
    with pytest.raises(outlast.FlowFailed) as failed:
        shop.load(FAILS).run(run_key="monday", app=sqlite_app)
    result = outlast.result_of(failed.value)
    assert (result.status, result.compensation, result["write-data"].status) == ("failed", "completed", "compensated")
    assert (shop.rows(), shop.asked) == (["3|was there|||older"], ["POST", "DELETE", "DELETE"])
    again = shop.load(FAILS).run(run_key="monday", app=sqlite_app)
    assert (again.status, shop.rows()) == ("completed", BROUGHT)
    assert shop.asked == ["POST", "DELETE", "DELETE", "POST"]


def test_a_run_that_goes_on_reads_and_writes_nothing_again(shop, sqlite_app):
    """S0-35: steps whose outputs are on record are not repeated, with the types that MySQL gave their values."""
    shop.project.functions(PUBLISH)
    undo = EXAMPLE.read_text().partition("    compensate:\n")[2].partition("    circuit_breaker")[0]
    changes = {f"    compensate:\n{undo}": ""}
    with pytest.raises(outlast.FlowFailed):
        shop.load(FAILS, replace=changes).run(run_key="monday", app=sqlite_app)
    shop.mysql.fault("reset_before", when=b"select")
    done = shop.load(FAILS, replace=changes).run(run_key="monday", app=sqlite_app)
    assert (done.status, shop.asked, shop.mysql.struck, shop.rows()) == ("completed", ["POST"], [], BROUGHT)
    first = done["extract-data"].outputs["rows"][0]
    assert [type(first[name]).__name__ for name in ("id", "title", "price", "shown")] == [
        "int",
        "str",
        "Decimal",
        "date",
    ]


def test_a_mistake_in_the_query_costs_one_attempt(shop, sqlite_app):
    """S0-08, S0-28: what cannot get better is not tried again, and nobody else is asked."""
    with pytest.raises(outlast.FlowFailed) as failed:
        shop.load(replace={"select * from movies": "select nope from movies"}).run(run_key="monday", app=sqlite_app)
    step = outlast.result_of(failed.value)["extract-data"]
    assert ([one.error_class for one in step.attempts], shop.asked) == (["syntax_error"], [])


def test_doctor_says_of_each_connection_what_is_wrong(shop, monkeypatch):
    """U-24: reached, nobody who may come in, no such database, nobody there; in our words, with the fields to look at."""
    monkeypatch.setenv("WRONG_KEY", "canary-key")
    monkeypatch.setenv("WRONG_URL", f"mysql://root:canary-x@127.0.0.1:{shop.mysql.port}/shop")
    mysql = f"host: 127.0.0.1, port: {shop.mysql.port}, user: root"
    service = f"url: 'http://127.0.0.1:{shop.rest.port}'"
    (shop.project.root / "connections.yaml").write_text(
        "connections:\n  mysql:\n"
        f"    shop: {{{mysql}, sslmode: disable, database: shop}}\n"
        f"    empty: {{{mysql}, sslmode: disable, database: canary}}\n"
        "    login: {url: '${WRONG_URL}', sslmode: disable}\n"
        f"    plain: {{{mysql}, sslmode: require, database: shop}}\n"
        "  supabase:\n"
        f"    main: {{{service}, key: '${{SUPABASE_KEY}}', allow_private: true}}\n"
        f"    keyless: {{{service}, key: '${{WRONG_KEY}}', allow_private: true}}\n"
        f"    private: {{{service}, key: '${{WRONG_KEY}}'}}\n"
        "    nobody: {url: 'http://127.0.0.1:1', key: '${WRONG_KEY}', allow_private: true}\n"
    )
    done = CliRunner().invoke(command_line(), ["connections", "doctor", "--root", str(shop.project.root), "--json"])
    assert "canary" not in done.stdout
    found = {one["connection"]: (one["state"], one["kind"], one["why"]) for one in json.loads(done.stdout)}
    assert (done.exit_code, found) == (
        1,
        {
            "@mysql.shop": ("reached", "", ""),
            "@mysql.empty": ("failed", "unknown", "the server has no such database; look at database"),
            "@mysql.login": ("failed", "auth", "the password or the user is wrong; look at url (WRONG_URL)"),
            "@mysql.plain": ("failed", "auth", "the server cannot prove who it is (TLS); look at sslmode"),
            "@supabase.main": ("reached", "", ""),
            "@supabase.keyless": (
                "failed",
                "auth",
                "the service answered with the status 401; look at url, key (WRONG_KEY)",
            ),
            "@supabase.private": (
                "failed",
                "permission",
                "the host is in this machine or a private network; allow_private: true allows that; look at url",
            ),
            "@supabase.nobody": (
                "failed",
                "network",
                "the host refuses the connection: nothing listens there; look at url",
            ),
        },
    )
