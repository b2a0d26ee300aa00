"""The connections file: what is wrong with it, what a step makes of it, what comes from the environment, and who is reached."""

from __future__ import annotations

import json
import os
import socket

import psycopg
import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
from outlast.components.mysql import _mysql
from outlast.components.reaching import failure, is_public, reach_http, reach_postgres, reached
from outlast.spec.compile import compile_text
from outlast.spec.connections import connections_of, load, read
from outlast.spec.rules import check
from servers.http import MisbehavingServer
from tables import table

CONNECTIONS = """\
connections:
  postgres:
    shop:
      default: true
      host: "${SHOP_HOST}"
      port: ${SHOP_PORT}
      database: shop
      user: reader
      password: ${SHOP_PASSWORD}
      schema: sales
    archive: {url: "${ARCHIVE_URL}"}
  http:
    stock: {base_url: "https://${STOCK_HOST}/v1", token: "${STOCK_TOKEN}", allow_private: "${STOCK_PRIVATE}"}
    default: {base_url: "https://api.example.com", headers: {X-Api-Key: "${API_KEY}", Accept: text/plain}}
"""
SET = {
    "SHOP_HOST": "db.example.com",
    "SHOP_PORT": "6543",
    "SHOP_PASSWORD": "hunter2-canary",
    "ARCHIVE_URL": "postgresql://ann:canary@db/old",
    "STOCK_HOST": "stock.example.com",
    "STOCK_TOKEN": "token-canary",
    "STOCK_PRIVATE": "true",
    "API_KEY": "key-canary",
}
HEAD = 'oml_version: "0.1.0"\nname: movies\nsteps:\n  - id: read\n    component: postgres.extractor\n'


def lines(text: str) -> list[str]:
    return [str(one) for one in read(text).mistakes]


def about(config: str, connections: str | None = CONNECTIONS) -> list[str]:
    """What compiling a step with this config says."""
    known = None if connections is None else read(connections)
    text = HEAD + f"    config: {{query: select 1, {config}}}\n"
    found = compile_text(text, "flow.yaml", connections=known, rules=(check,)).mistakes
    return [str(one) for one in found if one.code != "R36"]  # there is no time limit


# --- the file ---


def test_file_without_mistakes_has_its_connections():
    """U-20: families, aliases, the variables that each needs."""
    found = read(CONNECTIONS)
    assert found.mistakes == ()
    assert [one.name for one in found] == ["@postgres.shop", "@postgres.archive", "@http.stock", "@http.default"]
    assert found.find("@postgres.shop").variables == ("SHOP_HOST", "SHOP_PORT", "SHOP_PASSWORD")


OF_SHOP = "connections: {postgres: {shop: {host: db, database: shop, user: ann, "


@table(
    ("text", "line"),
    [
        ("", "1:1: expected a mapping with the key connections, got nothing; begin with connections:"),
        ("- a", "1:1: expected a mapping with the key connections, got a list; begin with connections:"),
        ("conections: {}", "1:1: conections: expected a known key, got 'conections'; did you mean 'connections'?"),
        ("connections: [a]", "1:14: connections: expected a mapping, got a list; write it as family: {alias: {...}}"),
        (
            "connections: {postgress: {}}",
            "1:15: connections.postgress: expected a family of connections, got 'postgress'; did you mean 'postgres'?",
        ),
        ("connections: {http: x}", "1:21: connections.http: expected a mapping, got x; write it as alias: {...}"),
        (
            "connections: {http: {a b: {base_url: 'http://x'}}}",
            "1:22: connections.http['a b']: expected an alias in letters, digits, - and _, got 'a b'; write a-b",
        ),
        (
            "connections: {http: {shop: }}",
            "1:22: connections.http.shop: expected a mapping, got nothing; write it as shop: {base_url: ...}",
        ),
        (
            OF_SHOP + "portt: 5}}}",
            "1:70: connections.postgres.shop.portt: expected a key that connections of postgres have, got 'portt'; did you mean 'port'?",
        ),
        (
            OF_SHOP + 'port: "5432"}}}',
            "1:76: connections.postgres.shop.port: expected an integer, got '5432'; write it without quotes",
        ),
        (OF_SHOP + "port: 017}}}", '1:76: connections.postgres.shop.port: expected a number or a text, got 017; write 17, or "017" if it is a text'),
        (
            OF_SHOP + "default: yes}}}",
            "1:79: connections.postgres.shop.default: expected true or false, got yes; write true: YAML 1.2 has no other words for it",
        ),
        (
            OF_SHOP + "password: hunter2}}}",
            "1:80: connections.postgres.shop.password: expected no secret in a connections file, got a value that is not shown; put it into an environment variable, and write ${SHOP_PASSWORD}",
        ),
        (
            OF_SHOP + 'password: "a-${B}"}}}',
            "1:80: connections.postgres.shop.password: expected a secret to be the whole of one variable, got a value that is not shown; put all of it into one variable, and write ${SHOP_PASSWORD}",
        ),
        (
            OF_SHOP + 'password: "${B:-hunter2}"}}}',
            "1:80: connections.postgres.shop.password: expected environment variables as ${NAME}, got a value that is not shown; write ${B}: there are no defaults, set the variable",
        ),
        (
            OF_SHOP + 'schema: "${params.x}"}}}',
            "1:78: connections.postgres.shop.schema: expected environment variables as ${NAME}, got '${params.x}'; parameters and outputs stand in the pipeline file only",
        ),
        (
            OF_SHOP + 'schema: "${X"}}}',
            "1:78: connections.postgres.shop.schema: expected environment variables as ${NAME}, got ${ without its }; close it, or write $${ for the sign itself",
        ),
        (
            OF_SHOP + 'url: "${X}"}}}',
            "1:32: connections.postgres.shop: expected url or the parts, got host, database, user, url; leave out database, host, user",
        ),
        (
            "connections: {postgres: {shop: {host: db}}}",
            "1:32: connections.postgres.shop: expected url, or host, database and user, got host; add what is missing",
        ),
        (
            "connections: {http: {a: {base_url: 'https://ann:hunter2@x'}}}",
            "1:36: connections.http.a.base_url: expected no secret in a connections file, got a value that is not shown; leave the login out of it: user and password are keys of their own",
        ),
        (
            "connections: {http: {a: {base_url: 'http://x', headers: {Authorization: 'Bearer abc'}}}}",
            "1:73: connections.http.a.headers['Authorization']: expected no secret in a connections file, got a value that is not shown; put it into an environment variable, and write ${A_HEADERS_AUTHORIZATION}",
        ),
        (
            "connections: {http: {a: {base_url: 'http://x', default: true}, b: {base_url: 'http://y', default: true}}}",
            "1:99: connections.http.b.default: expected one default of a family, got a second one beside a; leave it out",
        ),
    ],
)  # fmt: skip
def test_mistake_in_the_file_has_its_line_and_its_way_out(text, line):
    """U-20: as for pipeline files; no secret is shown."""
    assert lines(text) == [f"connections.yaml:{line}"]


@table(
    ("text", "place"),
    [
        ("connections: {http: {a: {base_url: 'http://x', headers: {Authorization: {of: abc}}}}}", "a.headers['Authorization'].of"),
        (OF_SHOP + "password: {of: abc}}}}", "shop.password.of"),
        (OF_SHOP + "password: {of: {us: [abc]}}}}}", "shop.password.of.us[0]"),
    ],
)  # fmt: skip
def test_all_of_a_mapping_that_is_secret_is_secret(text, place):
    """U-20: what stands in it is refused as a secret, whatever its own key is called."""
    told = lines(text)
    assert any(
        f"{place}: expected no secret in a connections file, got a value that is not shown" in one for one in told
    )
    assert "abc" not in repr((told, [one.fields for one in read(text)]))


def test_all_mistakes_are_told_at_once():
    """U-20: five of them, in their order."""
    text = CONNECTIONS.replace("reader", "[]").replace("${SHOP_PASSWORD}", "hunter2").replace("stock:", "st ock:")
    found = lines(text.replace("default: true", "default: 1").replace("  http:", "  htpp:"))
    assert [int(line.split(":")[1]) for line in found] == [4, 8, 9, 12, 13]
    assert "hunter2" not in "".join(found)


def test_every_variable_of_a_text_that_is_none_is_told():
    """U-20: and what stands under a misspelt field is checked as what was meant."""
    found = lines(
        'connections: {http: {a: {base_ur: "https://${params.host}/${steps.a.outputs.b}/${X", allow_privat: 5}}}'
    )
    assert [one.partition(" got ")[2].partition(";")[0] for one in found] == [
        "'base_ur'",
        "'${params.host}'",
        "'${steps.a.outputs.b}'",
        "${ without its }",
        "'allow_privat'",
        "5",
    ]


# --- what steps name ---


@table(
    ("config", "said"),
    [
        ('connection: "@postgres.shop"', None),
        ('connection: "@postgres"', None),
        ('connection: "@postgres.shp"', "expected a connection that connections.yaml has, got '@postgres.shp'; did you mean '@postgres.shop'?"),
        ('connection: "@http.stock"', "expected a connection of the family postgres"),
        ('connection: "postgres.shop"', "expected a connection as @family.alias"),
    ],
)  # fmt: skip
def test_connection_of_a_step_must_be_there(config, said):
    """U-20: known family and alias; without a file nobody can say."""
    found = about(config)
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]
    if said is None or "shp" in config:
        assert about(config, None) == []


def test_family_that_the_file_does_not_have_is_told():
    (found,) = about('connection: "@postgres.shop"', 'connections: {http: {a: {base_url: "http://x"}}}')
    assert (
        "flow.yaml:6:43: steps.read.config.connection: expected a family of connections that connections.yaml has"
        in found
    )


def test_default_is_the_one_that_is_marked_else_the_one_of_that_name():
    """U-20: and where neither is there, all of them are listed."""
    known = read(CONNECTIONS)
    assert known.find("@postgres").name == "@postgres.shop"
    assert known.find("@http").name == "@http.default"
    assert read(CONNECTIONS.replace("stock: {", "stock: {default: true, ")).find("@http").name == "@http.stock"
    (found,) = about('connection: "@postgres"', CONNECTIONS.replace("default: true", "default: false"))
    assert "expected a default connection of the family postgres, got none; mark one with default: true" in found
    assert "@postgres.shop, @postgres.archive" in found


def test_connection_of_a_compensation_is_checked_too():
    text = (
        HEAD
        + "    config: {query: select 1, connection: '@postgres.shop'}\n    compensate:\n      component: http.caller\n"
        "      config: {connection: '@http.stok', url: /x}\n"
    )
    (found,) = compile_text(text, "flow.yaml", connections=read(CONNECTIONS)).mistakes
    assert str(found).startswith("flow.yaml:9:28: steps.read.compensate.config.connection: expected a connection that")


def test_what_a_step_may_change_of_its_connection():
    """U-20: allowed without a word, with a warning, or not at all."""
    assert about('connection: "@postgres.shop", statement_timeout_ms: 5000') == []
    (warning,) = about('connection: "@postgres.shop", schema: other')
    assert (
        "steps.read.config.schema: expected schema from @postgres.shop, which has it, got another in the step"
        in warning
    )
    assert warning.endswith("[R47]")
    assert about('connection: "@postgres.archive", schema: other') == []
    (error,) = about('connection: "@postgres.shop", host: other')
    assert "steps.read.config.host: expected it left out, got a value; it comes from the connection" in error


def test_mistakes_of_the_connections_file_are_told_with_those_of_the_pipeline(tmp_path):
    """One round is enough to mend both files; the file beside the pipeline is found without being named."""
    (tmp_path / "flow.yaml").write_text(HEAD + "    config: {query: select 1, connection: '@postgres.shp'}\n")
    (tmp_path / "connections.yaml").write_text(CONNECTIONS.replace("${SHOP_PASSWORD}", "hunter2"))
    with pytest.raises(outlast.ConfigurationError) as caught:
        outlast.Flow.load(tmp_path / "flow.yaml")
    assert [problem.partition(": ")[0].rpartition("/")[2] for problem in caught.value.problems] == [
        "connections.yaml:9:17",
        "flow.yaml:6:43",
    ]
    (tmp_path / "good.yaml").write_text(CONNECTIONS.replace("shop:", "shp:"))
    manifest = outlast.Flow.load(tmp_path / "flow.yaml", connections=tmp_path / "good.yaml").manifest
    assert manifest["read"].config["connection"] == "@postgres.shp"
    assert "db.example.com" not in manifest.to_json()
    with pytest.raises(outlast.ConfigurationError, match="expected a connections file that can be read"):
        outlast.Flow.load(tmp_path / "flow.yaml", connections=tmp_path / "nowhere.yaml")
    assert connections_of(tmp_path / "elsewhere" / "flow.yaml") is None


# --- the environment ---


def test_resolved_connection_has_its_values_and_hides_its_secrets(monkeypatch):
    """U-24: numbers and truths are read as the field says; a secret is a Secret, and shows itself nowhere."""
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    known = read(CONNECTIONS)
    shop = known.resolved("@postgres", os.environ)
    assert {key: shop[key] for key in ("host", "port", "schema", "sslmode")} == {
        "host": "db.example.com",
        "port": 6543,
        "schema": "sales",
        "sslmode": "verify-full",
    }
    assert isinstance(shop["password"], outlast.Secret)
    stock, default = known.resolved("@http.stock", os.environ), known.resolved("@http", os.environ)
    assert (stock["base_url"], stock["allow_private"]) == ("https://stock.example.com/v1", True)
    assert isinstance(default["headers"]["X-Api-Key"], outlast.Secret)
    everything = repr([shop, stock, default, known.resolved("@postgres.archive", os.environ)])
    assert "canary" not in everything
    assert (shop["password"].reveal(), stock["token"].reveal()) == ("hunter2-canary", "token-canary")


@table("name", [name for name in SET if name.startswith(("SHOP", "STOCK"))])
def test_variable_that_is_not_set_or_empty_is_named_with_field_and_alias(name):
    """U-20: variable, field and alias; no value of another one."""
    known = read(CONNECTIONS)
    for value, got in ((None, "nothing"), ("", "an empty text")):
        environment = {key: one for key, one in (SET | {name: value}).items() if one is not None}
        alias = "@postgres.shop" if name.startswith("SHOP") else "@http.stock"
        with pytest.raises(outlast.ConfigurationError) as caught:
            known.resolved(alias, environment)
        (line,) = caught.value.problems
        field = {"SHOP_HOST": "host", "SHOP_PORT": "port", "SHOP_PASSWORD": "password", "STOCK_HOST": "base_url"}
        field |= {"STOCK_TOKEN": "token", "STOCK_PRIVATE": "allow_private"}
        assert (
            f"connections.{alias[1:]}.{field[name]}: expected the environment variable {name} to be set, got {got}"
            in line
        )
        assert f"set it: {field[name]} of {alias} needs it" in line
        assert "canary" not in line


def test_value_of_the_environment_that_does_not_fit_is_told_without_secrets():
    """U-24: a port that is none; a secret that does not fit is not shown."""
    with pytest.raises(outlast.ConfigurationError) as caught:
        read(CONNECTIONS).resolved("@postgres.shop", SET | {"SHOP_PORT": "many"})
    (line,) = caught.value.problems
    assert "connections.postgres.shop.port: expected an integer" in line
    assert "canary" not in line


# --- reaching ---


@pytest.fixture(scope="module")
def service():
    with MisbehavingServer() as running:
        yield running


def http(service, path: str, *, private: bool = True) -> dict[str, object]:
    return {"base_url": f"{service.url}{path}", "allow_private": private, "headers": {}}


@table(
    ("path", "kind"),
    [("/ok", None), ("/nowhere", None), ("/status/401", "auth"), ("/status/403", "permission"), ("/status/500", "unknown")],
)  # fmt: skip
def test_service_is_reached_or_the_kind_of_failure_is_told(path, kind, service):
    assert tried(reach_http, http(service, path)) == kind


def tried(reach, fields, limit: float = 20.0) -> str | None:
    try:
        reached(reach, fields, limit)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return failure(error).kind
    return None


def test_service_in_a_private_network_is_not_asked_unless_it_is_allowed(service):
    """U-24: nothing is sent to an address that the connection does not allow."""
    before = len(service.seen)
    assert tried(reach_http, http(service, "/ok", private=False)) == "permission"
    assert len(service.seen) == before


@table(
    "address",
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 ::1 fe80::1%eth0 fd00::1 ::ffff:127.0.0.1 224.0.0.1".split(),
)
def test_address_of_nobody_else_is_private(address):
    assert not is_public(address)


def test_nobody_answers():
    """Refused is network; a server that takes the connection and says nothing is timeout, after the limit and not later."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        fields = {"base_url": f"http://127.0.0.1:{port}", "allow_private": True}
        database = {"host": "127.0.0.1", "port": port, "database": "a", "user": "b", "sslmode": "disable"}
        assert tried(reach_http, fields) == "network"
        assert tried(reach_postgres, database) == "network"
        taken.listen()
        assert tried(reach_http, fields, 0.05) == "timeout"
        assert tried(reach_postgres, database, 0.05) == "timeout"
    assert tried(reach_http, {"base_url": "http://nowhere.invalid", "allow_private": True}) == "network"


@pytest.fixture(scope="session")
def database(postgres_server):
    server = postgres_server.database("connections")
    server.execute(
        "drop role if exists visitor", "create role visitor login", "revoke connect on database connections from public"
    )
    return server


def test_database_is_reached_or_the_kind_of_failure_is_told(database):
    """A real PostgreSQL: who may log in, who is unknown there, and who may not enter this database."""
    folder = database.socket.rpartition("/")[0]
    fields = {"host": folder, "port": 5432, "database": "connections", "user": "postgres", "sslmode": "verify-full"}
    assert tried(reach_postgres, fields) is None
    assert tried(reach_postgres, fields | {"user": "nobody-at-all"}) == "auth"
    assert tried(reach_postgres, fields | {"user": "visitor"}) == "permission"
    assert tried(reach_postgres, {"url": database.dsn}) is None


# --- the commands ---


def outlast_command(*arguments: str, code: int = 0, **environment: str) -> str:
    done = CliRunner().invoke(command_line(arguments), list(arguments), env=environment)
    assert done.exit_code == code, done.output
    return done.output


def test_connections_are_listed_without_a_value(tmp_path, monkeypatch):
    """U-24: names of fields and variables, and whether each is set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connections.yaml").write_text(CONNECTIONS)
    shown = outlast_command("connections", "list", **SET)
    assert "@postgres.shop" in shown
    assert "SHOP_PASSWORD (set)" in shown
    found = json.loads(outlast_command("connections", "list", "--json", SHOP_PASSWORD="hunter2-canary"))
    assert found[0] == {
        "connection": "@postgres.shop",
        "default": True,
        "fields": ["host", "port", "database", "user", "password", "schema"],
        "variables": {"SHOP_HOST": "not set", "SHOP_PORT": "not set", "SHOP_PASSWORD": "set"},
    }
    for said in (shown, str(found)):
        assert "canary" not in said
        assert "db.example.com" not in said
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "@postgres.shop" in outlast_command("connections", "list", "--root", "..")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("connections: 3")
    done = CliRunner().invoke(command_line(), ["connections", "list", "--connections", "broken.yaml"])
    assert (done.exit_code, "broken.yaml:1:14: connections: expected a mapping" in done.output) == (2, True)


def test_a_misspelt_family_is_told_once(tmp_path):
    """C-24: it is read as the one that is meant, so that its fields are checked and steps that name it rightly are not told."""
    known = read("connections: {postgresql: {shop: {url: '${U}', schma: 5}}}")
    assert [str(one).partition(": expected")[2].lstrip() for one in known.mistakes] == [
        "a family of connections, got 'postgresql'; did you mean 'postgres'?",
        "a key that connections of postgres have, got 'schma'; did you mean 'schema'?",
        "a text, got 5; change it",
    ]
    assert known.find("@postgres.shop").family == "postgres"
    both = read("connections: {postgresql: {a: {url: '${U}'}}, postgres: {b: {url: '${U}'}}}")
    assert [str(one.name) for one in both] == ["@postgresql.a", "@postgres.b"]


def test_a_connection_without_its_sign_is_shown_with_it(tmp_path):
    (tmp_path / "connections.yaml").write_text("connections: {http: {geo: {base_url: 'https://geo.example'}}}")
    done = CliRunner().invoke(command_line(), ["connections", "doctor", "http.geo", "--root", str(tmp_path)])
    assert (done.exit_code, "write it as @http.geo" in done.output) == (2, True)


def test_doctor_tries_every_connection(tmp_path, service, database):
    """U-24: reached, failed and not set, each with its reason; the secret is in no line."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "connections:\n  postgres:\n    here: {url: '${HERE}'}\n    unset: {host: '${NOT_SET_ANYWHERE}', database: d, user: u, password: '${NEITHER}'}\n  http:\n"
        f"    ok: {{base_url: '{service.url}/ok', token: '${{TOKEN}}', allow_private: true}}\n"
        f"    no: {{base_url: '{service.url}/status/401', user: ann, password: '${{TOKEN}}', allow_private: true}}\n"
    )
    given = {"HERE": database.dsn, "TOKEN": "token-canary"}
    said = outlast_command("connections", "doctor", "--connections", str(path), "--json", code=1, **given)
    assert "canary" not in said
    unset = next(one for one in json.loads(said) if one["state"] == "not set")
    assert unset["why"] == "NOT_SET_ANYWHERE, NEITHER not set"
    assert [line.partition("connections.")[2].partition(",")[0] for line in unset["mistakes"]] == [
        "postgres.unset.host: expected the environment variable NOT_SET_ANYWHERE to be set",
        "postgres.unset.password: expected the environment variable NEITHER to be set",
    ]
    found = {one["connection"]: (one["state"], one["kind"]) for one in json.loads(said)}
    assert found == {
        "@postgres.here": ("reached", ""),
        "@postgres.unset": ("not set", ""),
        "@http.ok": ("reached", ""),
        "@http.no": ("failed", "auth"),
    }
    lines = outlast_command("connections", "doctor", "--connections", str(path), code=1, **given).splitlines()
    assert [line.rpartition("; ")[2] for line in lines if line.startswith(str(path))] == [
        "set it: host of @postgres.unset needs it",
        "set it: password of @postgres.unset needs it",
    ]
    outlast_command("connections", "doctor", "@http.ok", "--connections", str(path), **given)
    refused = CliRunner().invoke(command_line(), ["connections", "doctor", "@http.okk", "--connections", str(path)])
    assert (refused.exit_code, "did you mean '@http.ok'?" in refused.output) == (2, True)


_ENCODED = "in an address @ is %40, : is %3A, / is %2F, ? is %3F, # is %23 and % is %25"


@table(
    ("url", "expected"),
    [
        ("postgresql://bob:p@canary!@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("postgresql://bob:12/canary@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("postgresql://bob:p#canary@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("postgresql://bob:p?canary@db.invalid/shop", "the port of the address to be a number"),
        ("postgresql://bob:p%zcanary@db.invalid/shop", "every % of the address to be percent-encoded"),
        ("postgresql://bob:p@db.invalid/canary#shop", "every # of the address to be percent-encoded"),
        ("canary://bob:p@db.invalid/shop", "an address that begins with postgresql://"),
    ],
)
def test_address_with_a_sign_that_is_not_encoded_is_refused_before_anybody_is_asked(url, expected, tmp_path):
    """U-24, C-24: a driver would take a part of the password for the host; the variable is named, its value is not shown."""
    path = tmp_path / "connections.yaml"
    path.write_text("connections:\n  postgres:\n    shop: {url: '${SHOP_URL}'}\n")
    arguments = ("connections", "doctor", "--root", str(tmp_path))
    shown = outlast_command(*arguments, code=1, SHOP_URL=url)
    found = json.loads(outlast_command(*arguments, "--json", code=1, SHOP_URL=url))
    assert "canary" not in shown + str(found)
    assert [one["state"] for one in found] == ["does not fit"]
    (line,) = found[0]["mistakes"]
    assert f"connections.postgres.shop.url: expected {expected}, got that of SHOP_URL, which is not shown; " in line
    assert line.endswith(_ENCODED) == ("begins" not in expected)


@table(
    "url",
    [
        "postgresql://bob:p%40w%2F%3A%25@db/shop",
        "postgres://bob:a:b@db:5432/shop",
        "postgresql:///shop?host=/run/socket&user=ann@work",
        "postgresql://a:1,b:2/shop",
        "postgresql://[::1]:5432/shop",
        "host=db password='p@%#'",
    ],
)
def test_address_that_the_driver_reads_as_it_is_meant_fits(url):
    known = read("connections: {postgres: {shop: {url: '${U}'}}}")
    assert known.resolved("@postgres.shop", {"U": url}).keys() >= {"url"}


@table(
    ("url", "expected"),
    [
        ("mysql://bob:p@canary!@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("mysql://bob:12/canary@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("mysql://bob:p?canary@db.invalid/shop", "user and password of the address to be percent-encoded"),
        ("mysql://bob:p%zcanary@db.invalid/shop", "every % and # of the address to be percent-encoded"),
        ("mysql://bob:p@db.invalid/canary#shop", "every % and # of the address to be percent-encoded"),
        ("mysql://bob:p@db.invalid:canary/shop", "the address to have a host, and its port to be a number"),
        ("mysql://bob:p@/canary", "the address to have a host, and its port to be a number"),
        ("mysql://db.invalid/canary", "a user in the address"),
        ("mysql://bob:p@db.invalid", "one database in the address"),
        ("mysql://bob:p@db.invalid/canary?ssl=0", "an address without ?"),
        ("postgresql://bob:canary@db.invalid/shop", "an address that begins with mysql://"),
    ],
)
def test_address_of_mysql_that_may_be_read_as_another_is_refused(url, expected):
    """U-24: without its value."""
    known = read("connections: {mysql: {shop: {url: '${U}'}}}")
    with pytest.raises(outlast.ConfigurationError) as refused:
        known.resolved("@mysql.shop", {"U": url})
    (line,) = refused.value.problems
    assert (f"connections.mysql.shop.url: expected {expected}, got that of U" in line, "canary" in line) == (
        True,
        False,
    )


def test_address_of_mysql_leads_where_it_says():
    """Signs that are encoded are part of the name or the password."""
    fits = read("connections: {mysql: {shop: {url: '${U}', sslmode: require}}}")
    url = "mariadb://bo%40b:p%2F%3Aw@db.example:3307/my%20shop"
    assert fits.resolved("@mysql.shop", {"U": url}).keys() >= {"url"}
    assert _mysql({"url": url}) == {
        "host": "db.example",
        "port": 3307,
        "user": "bo@b",
        "password": "p/:w",
        "database": "my shop",
    }


@table(
    ("family", "fields", "expected"),
    [
        ("mysql", "{url: '${U}', host: h}", "expected url or the parts"),
        ("mysql", "{host: h, user: u}", "expected url, or host, database and user"),
        ("supabase", "{url: 'https://x.example'}", "expected the key key"),
        ("supabase", "{url: 'https://x.example', key: hunter2}", "key: expected "),
        (
            "supabase",
            "{url: 'ftp://x.example', key: '${K}'}",
            "expected an address that begins with http:// or https://",
        ),
        ("supabase", "{url: 'https://x.example/?a=1', key: '${K}'}", "expected an address without ? and #"),
        ("supabase", "{url: 'https://u:p@x.example', key: '${K}'}", "expected "),
        ("supabase", "{url: 'https://x.example', key: '${K}', path: '../x'}", "expected a path such as /rest/v1"),
    ],
)
def test_fields_of_mysql_and_supabase_that_do_not_go_together_are_refused(family, fields, expected):
    """U-24: when the file is read."""
    told = "\n".join(lines(f"connections: {{{family}: {{a: {fields}}}}}"))
    assert (expected in told, "hunter2" in told) == (True, False)


def test_doctor_says_why_in_its_own_words(tmp_path):
    """U-24: no word of a driver, which quotes values; the fields to look at, each with its variable."""
    (tmp_path / "connections.yaml").write_text(
        "connections:\n  postgres:\n    a: {url: '${A}'}\n    b: {host: '${B}', database: canary-d, user: canary-u}\n"
        "    c: {host: 127.0.0.1, port: 1, database: canary-d, user: canary-u, sslmode: disable}\n    d: {url: '${D}'}\n"
        "  http:\n    e: {base_url: 'http://${B}/'}\n    f: {base_url: 'http://127.0.0.1:1/${B}'}\n    g: {base_url: '${G}'}\n"
    )
    given = {"A": "postgresql://canary@canary.invalid/x", "B": "canary.invalid", "G": "canary:x"}
    given |= {"D": "postgresql://canary@localhost/x?canary=1"}
    said = outlast_command("connections", "doctor", "--root", str(tmp_path), "--json", code=1, **given)
    assert "canary" not in said
    found = {one["connection"]: (one["state"], one["kind"], one["why"]) for one in json.loads(said)}
    assert found == {
        "@postgres.a": ("failed", "network", "cannot find the host; look at url (A)"),
        "@postgres.b": ("failed", "network", "cannot find the host; look at host (B)"),
        "@postgres.c": (
            "failed",
            "network",
            "the host refuses the connection: nothing listens there; look at host, port",
        ),
        "@postgres.d": ("failed", "unknown", "the address cannot be read; look at url (D)"),
        "@http.e": ("failed", "network", "cannot find the host; look at base_url (B)"),
        "@http.f": (
            "failed",
            "permission",
            "the host is in this machine or a private network; allow_private: true allows that; look at base_url (B)",
        ),
        "@http.g": ("does not fit", "", "a value of the environment does not fit"),
    }


@table(
    ("error", "kind", "why"),
    [
        (psycopg.OperationalError('FATAL: password authentication failed for user "canary"'), "auth", "the password or the user is wrong"),
        (psycopg.OperationalError('FATAL: role "canary" does not exist'), "auth", "the server does not know the user"),
        (psycopg.OperationalError('FATAL: no pg_hba.conf entry for host "canary"'), "auth", "the server lets this user in neither from here nor in this way"),
        (psycopg.OperationalError('FATAL: database "canary" does not exist'), "unknown", "the server has no such database"),
        (psycopg.OperationalError("server certificate for canary does not match host name"), "auth", "the server cannot prove who it is (TLS)"),
        (psycopg.OperationalError("server does not support SSL, but SSL was required"), "auth", "the server cannot prove who it is (TLS)"),
        (psycopg.OperationalError("canary"), "network", "the connection to the database failed"),
        (TimeoutError("canary"), "timeout", "no answer in time"),
        (KeyError("canary"), "unknown", "KeyError, whose words may show a value and are left out"),
    ],
)  # fmt: skip
def test_failure_is_told_without_a_word_of_the_driver(error, kind, why):
    found = failure(error)
    assert (found.kind, found.why) == (kind, why)


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(outlast.ConfigurationError, match="expected a connections file that can be read"):
        load(tmp_path / "nowhere.yaml")
