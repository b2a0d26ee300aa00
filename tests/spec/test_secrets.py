"""Secrets that were planted in every place that may have one, and looked for in every place that something comes out of."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli import app as command_line
from outlast.kernel import redact
from outlast.spec.compile import compile_text
from outlast.spec.connections import read
from tables import table

CONNECTIONS = """\
connections:
  postgres:
    shop: {host: db, database: shop, user: reader, password: "${SHOP_PASSWORD}"}
  http:
    stock: {base_url: "https://stock.example.com", token: "${STOCK_TOKEN}"}
"""
FLOW = """\
oml_version: "0.1.0"
name: movies
params:
  token: {type: string, sensitive: true}
  pin: {type: integer, sensitive: true, max: 99}
steps:
  - id: read
    component: postgres.extractor
    config: {connection: "@postgres.shop", query: "select %(t)s", parameters: {t: "${params.token}"}}
    timeout: {step_ms: 60000}
  - id: call
    component: http.caller
    config: {connection: "@http.stock", url: /x, headers: {Authorization: "Bearer ${params.token}"}}
    timeout: {step_ms: 60000}
"""
PLANTED = {
    "SHOP_PASSWORD": "planted-in-a-connection",
    "STOCK_TOKEN": "planted-in-another",
    "OUTLAST_PARAM_TOKEN": "planted-in-the-environment",
    "OUTLAST_PARAM_PIN": "55",
}
COMMANDS = (
    "validate flow.yaml",
    "validate flow.yaml --json",
    "compile flow.yaml",
    "compile flow.yaml --json",
    "compile flow.yaml --output m.json",
    "diff m.json flow.yaml",
    "diff flow.yaml other.yaml",
    "explain flow.yaml read",
    "schema",
    "connections list",
    "connections list --json",
    "components show postgres.extractor --json",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a pipeline and its connections, whose secrets are set; nothing else knows them as secrets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(redact, "_secrets", {})
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "other.yaml").write_text(FLOW.replace("/x", "/y"))
    (tmp_path / "connections.yaml").write_text(CONNECTIONS)
    return tmp_path


def test_no_planted_secret_comes_out_of_a_command_or_a_manifest(folder):
    """U-24: parameters, connections and the environment; manifest, plan, diff, messages and schema (S0-42)."""
    for line in COMMANDS:
        done = CliRunner().invoke(command_line, line.split())
        assert done.exit_code in (0, 1), (line, done.output)
        assert "planted" not in done.output, line
    assert "planted" not in (folder / "m.json").read_text()
    manifest = outlast.Flow.load("flow.yaml", params={"token": "planted-by-hand"}).manifest
    assert "planted" not in manifest.to_json() + repr(manifest) + str(manifest.steps)
    assert list(manifest.open_params) == ["pin", "token"]
    assert manifest["read"].config["parameters"] == {"t": "${params.token}"}
    assert outlast.Flow.load("flow.yaml", params={"token": "another"}).manifest == manifest


@table(
    ("params", "environment"),
    [
        ({"pin": "planted"}, {}),
        ({}, {"OUTLAST_PARAM_PIN": "planted"}),
        ({"pin": 98765}, {}),
        ({"token": ["planted"]}, {}),
    ],
)
def test_value_of_a_secret_parameter_that_does_not_fit_is_not_shown(params, environment):
    """U-24: what is wrong is told, what it is is not."""
    given = {"token": "fine", "pin": 5} | params
    given = {name: value for name, value in given.items() if name != "pin" or not environment}
    told = [str(one) for one in compile_text(FLOW, params=given, environment=environment).mistakes]
    assert told != []
    assert "planted" not in "".join(told)
    assert "98765" not in "".join(told)


@table(
    ("old", "new"),
    [
        ("sensitive: true}", "sensitive: true, default: planted-secret}"),
        ('connection: "@http.stock", url: /x', "url: 'https://ann:planted@x.example/'"),
        ("Bearer ${params.token}", "Bearer planted-secret"),
        ('parameters: {t: "${params.token}"}', "parameters: {t: 1, password: planted-secret}"),
        ("url: /x", "url: /x, password: planted-secret"),
        ("url: /x", "url: /x, token: planted-secret"),
        ("url: /x", "url: /x, json: {api_key: planted-secret}"),
        ("name: movies", "name: movies\nmetadata: {password: planted-secret}"),
        ("name: movies", "name: movies\nx-own: {client_secret: planted-secret}"),
        ("name: movies", "name: movies\nschedule: 'https://ann:planted@x.example/'"),
        ("url: /x", "url: /x, body: '-----BEGIN PRIVATE KEY-----planted'"),
    ],
)  # fmt: skip
def test_secret_in_a_pipeline_file_is_an_error_that_does_not_show_it(old, new):
    """U-24: by the name of its key, because the component says so, or by its shape."""
    text = FLOW.replace(old, new, 1)
    assert text != FLOW
    compiled = compile_text(text, "flow.yaml", connections=read(CONNECTIONS), complete=False)
    assert compiled.manifest is None
    assert "planted" not in "".join(map(str, compiled.mistakes))
    assert any("not shown" in str(one) or "it comes from the connection" in str(one) for one in compiled.mistakes)


def test_a_secret_that_belongs_to_the_connection_is_one_mistake():
    """U-24: that it is in the connection says what to do; that it is a secret adds nothing."""
    text = FLOW.replace("url: /x", "url: /x, password: planted-secret")
    (told,) = map(str, compile_text(text, "flow.yaml", connections=read(CONNECTIONS), complete=False).mistakes)
    assert "steps.call.config.password: expected it left out, got a value; it comes from the connection" in told


def test_key_that_a_component_calls_secret_must_be_a_reference():
    """U-24: also one whose name says nothing."""
    from outlast.components.describing import Component
    from outlast.components.steps.config import Config

    class Model(Config):
        phrase: str

    component = Component("shop.opener", "Opens.", Model, secrets=("phrase",))
    text = 'oml_version: "0.1.0"\nname: a\nparams: {p: {type: string, sensitive: true}}\nsteps:\n  - id: a\n    component: shop.opener\n'
    for phrase, errors in (("open sesame", 1), ('"${params.p}"', 0)):
        whole = f"{text}    config: {{phrase: {phrase}}}\n"
        compiled = compile_text(whole, find=lambda _: component, complete=False)
        assert len(compiled.errors) == errors
        assert "sesame" not in json.dumps([str(one) for one in compiled.mistakes])


HEAD = 'oml_version: "0.1.0"\nname: a\n'
STEP = '- id: a\n  component: python\n  config: {call: "m:f", args: ARGS}\n'
BEFORE = '- id: z\n  component: python\n  config: {call: "m:f"}\n'
SENSITIVE = "params: {s: {type: string, sensitive: true}, p: {type: string, default: planted1X}}\n"


def compiled_with(args: str, more: str = "", head: str = SENSITIVE, **options):
    text = f"{HEAD}{head}steps:\n{BEFORE}{STEP.replace('ARGS', args)}{more}"
    return compile_text(text, "f.yaml", complete=False, **options)


@table(
    ("args", "more"),
    [
        ('{u: "postgresql://ann:planted1X@${steps.z.outputs.h}/db"}', ""),
        ('{password: "planted1X${params.s}"}', ""),
        ('{password: "${params.p}"}', ""),
        ('{x: "ghp_planted1X0123456789abcdef ${params.s}"}', ""),
        ('{password: "planted1X$${"}', ""),
        ("{passwords: [planted1X]}", ""),
        ("{password: {value: planted1X}}", ""),
        ("{env: [{name: DB_PASSWORD, value: planted1X}]}", ""),
        ('{dsn: "host=db password=planted1X"}', ""),
        ('{u: "https://x.example/?access_token=planted1X"}', ""),
        ('{h: "Bearer planted1X"}', ""),
        ('{b: "grant=1&password=planted1X"}', ""),
        ('{"postgresql://ann:planted1X@h/db": 1}', ""),
        ('{b: \'{"password": "planted1X"}\'}', ""),
        ('{b: \'{"password": "planted1X${params.s}"}\'}', ""),
        ('{b: "{\\"api_key\\": \\"planted1X\\"}"}', ""),
        ("{b: 'password: planted1X'}", ""),
        ("{b: \"PASSWORD = 'planted1X'\"}", ""),
        ("{b: 'Authorization: Bearer planted1X'}", ""),
        ("{b: 'psql --password planted1X'}", ""),
        ("{pass: planted1X}", ""),
        ("{DBPASS: planted1X}", ""),
        ("{tokens: [planted1X-planted1X]}", ""),
        ("{tokens: {shop: planted1X-planted1X}}", ""),
        ("{api_keys: {shop: planted1X}}", ""),
        ("{api_keys: [{shop: planted1X}]}", ""),
        ("{env: [{key: DB_PASSWORD, value: planted1X}]}", ""),
        ("{env: [{variable: DB_PASSWORD, value: planted1X}]}", ""),
        ("{env: {variable: DB_PASSWORD, value: 'planted1X${params.s}'}}", ""),
        ("{x: 1}", "  x-password: planted1X\n"),
        ("{x: 1}", "  description: see https://ann:planted1X@h/\n"),
        ("{x: 1}", "  circuit_breaker: {scope: 'postgresql://ann:planted1X@h/db'}\n"),
        ("{x: 1}", "  limit: {name: 'postgresql://ann:planted1X@h/db', concurrency: 1}\n"),
        ("{x: 1}", "  idempotency: {key: 'password=planted1X'}\n"),
        ("{x: 1}", "  inputs: {password: planted1X}\n"),
        ("{x: 1}", "  for_each: {items: [{password: planted1X}]}\n"),
        ("{x: 1}", "  metadata: {passwords: [planted1X]}\n"),
    ],
)
def test_secret_is_seen_wherever_it_stands(args, more):
    """U-24: beside a reference, inside of lists and mappings, in names, keys, addresses and headers."""
    compiled = compiled_with(args, more)
    assert compiled.manifest is None
    assert "planted1X" not in "".join(map(str, compiled.mistakes))
    assert any("expected no secret in a pipeline file" in str(one) for one in compiled.mistakes)


@table(
    "args",
    [
        '{password: "${params.s}", auth: {type: basic, password: "${params.s}"}}',
        '{headers: {Authorization: "Bearer ${params.s}"}, token: "${steps.z.outputs.token}"}',
        '{u: "postgresql://ann:${params.s}@db/shop", dsn: "host=db password=${params.s}"}',
        "{key: [id], primary_key: id, q: 'select * from t where token = :token', max_tokens: 100}",
        '{authorization_endpoint: "https://x.example/authorize", token_ttl: 60, pass: second, bypass: yes-1, compass: NW1}',
        "{auth: {type: basic, user: ann}, keys: {a: id, b: day}, api_keys: {count: 3}, env: [{key: id, value: 5}]}",
        """{b: '{"password": "${params.s}", "grant_type": "password", "token_type": "bearer", "key": "movie_id2"}'}""",
        """{q: "where token = :token and password = %(p)s", b: "select 'token: ' || t", c: "Password: required"}""",
        "{b: 'use --password to log in, or --token TOKEN', stop_tokens: ['<|end|>', END2], c: 'token: string'}",
        "{q: 'update t set token=EXCLUDED.token, password=%(password)s', page: 'https://x.example/?page=2'}",
    ],
)
def test_what_is_no_secret_is_let_through(args):
    """U-24: references to what is sensitive, and words that only sound like it."""
    assert list(map(str, compiled_with(args).errors)) == []


@table(
    ("param", "given"),
    [
        ("{type: string, default: planted1X}", {}),
        ("{type: string}", {"db_password": "planted1X"}),
        ("{type: string, sensitive: true, enum: [planted1X, b]}", {"db_password": "zzz"}),
        ("{type: integer, sensitive: yes, default: planted1X}", {}),
        ("{type: integer, sensitiv: true, default: planted1X}", {}),
        ("planted1X", {}),
    ],
)
def test_parameter_with_the_name_of_a_secret_is_sensitive_and_never_shown(param, given):
    """U-24: or it is refused, whatever else is wrong with it."""
    compiled = compiled_with('{x: "${params.db_password}"}', head=f"params: {{db_password: {param}}}\n", params=given)
    assert compiled.manifest is None
    assert "planted1X" not in "".join(map(str, compiled.mistakes))


@table(
    ("kind", "value"), [("integer", "planted1X"), ("string", "postgresql://ann:planted1X@h/db"), ("list", "planted1X")]
)
def test_value_that_was_given_is_not_shown_and_no_secret(kind, value):
    """U-24: from the command line and from the environment alike."""
    for options in ({"params": {"n": value}}, {"environment": {"OUTLAST_PARAM_N": value}}):
        compiled = compiled_with('{x: "${params.n}"}', head=f"params: {{n: {{type: {kind}}}}}\n", **options)
        assert compiled.manifest is None
        assert "planted1X" not in "".join(map(str, compiled.mistakes))


def test_value_of_a_parameter_in_a_block_is_shown_by_its_reference():
    """U-24: what is wrong is told of what the file says."""
    found = compiled_with("{x: 1}", '  retry: {backoff: "${params.p}"}\n')
    assert "${params.p}" in "".join(map(str, found.errors))
    assert "planted1X" not in "".join(map(str, found.errors))


def test_sentence_with_a_password_is_masked_in_the_manifest():
    """U-24: nobody can be sure of a sentence."""
    manifest = compiled_with("{x: 1}", "  description: 'the password: planted1X'\n", head="").manifest
    assert "planted1X" not in manifest.to_json()
    assert "***" in manifest.to_json()


def test_value_from_the_environment_is_not_shown_when_it_does_not_fit():
    """U-24: whatever the field is called."""
    known = read('connections: {postgres: {a: {host: h, database: d, user: u, port: "${PORT}", password: "${PW}"}}}')
    with pytest.raises(outlast.ConfigurationError) as refused:
        known.resolved("@postgres.a", {"PORT": "planted1X", "PW": "planted1X"})
    assert "planted1X" not in str(refused.value)
    assert "not shown" in str(refused.value)
    assert "planted1X" not in str(read("connections: {postgres: {a: {password: '${planted1X!}'}}}").mistakes)


def test_connection_that_a_parameter_names_is_shown_by_its_reference():
    """U-24: a value that was given is not shown, also if it is no connection."""
    head = "params: {c: {type: string}}\n"
    text = f"{HEAD}{head}steps:\n- id: a\n  component: postgres.extractor\n  config: {{connection: '${{params.c}}', query: q}}\n"
    known = read("connections: {postgres: {a: {host: h, database: d}}}")
    found = compile_text(text, params={"c": "@postgres.planted1X"}, connections=known).errors
    assert "${params.c}" in "".join(map(str, found))
    assert "planted1X" not in "".join(map(str, found))


@table("said", ["'${params.hide}'", "", "null", "'${'", "'$${x}'", "[true]", "yes"])
def test_parameter_of_which_nobody_knows_whether_it_is_a_secret_is_a_mistake(said):
    """U-24: what is not clearly true or false is never taken for false; nothing that was given for it comes out."""
    text = FLOW.replace("type: string, sensitive: true", f"type: string, sensitive: {said}").replace("token", "code")
    text = text.replace("params:\n", "params:\n  hide: {type: boolean, default: true}\n")
    for given in ({"params": {"code": "planted"}}, {"environment": {"OUTLAST_PARAM_CODE": "planted"}}):
        found = compile_text(text, **given)
        assert found.manifest is None
        assert [one.path for one in found.mistakes] == [("params", "code", "sensitive")]
        assert "planted" not in "".join(map(str, found.mistakes))
    clear = compile_text(text.replace(f"sensitive: {said}}}", "sensitive: true}"), params={"code": "planted"})
    assert clear.manifest is not None


@table(
    ("text", "secret"),
    [
        ("https://hooks.slack.com/services/T00000000/B00000000/abcdefghijklm", True),
        ("https://discord.com/api/webhooks/123456/abcdefghijklm", True),
        ("https://shop.webhook.office.com/webhookb2/abc-def@ghi", True),
        ("https://api.telegram.org/bot123456:abcdefghijklm/send", True),
        ("/rates?key=xyzQx7Zk2&day=1", True),
        ("/rates?day=1&key=a1b2c3d4e5f6", True),
        ("https://slack.com/services/T00000000", False),
        ("/rates?key=movie_id&day=1", False),
        ("/rates?key=\0", False),
        ("/rates?monkey=a1b2c3d4e5f6", False),
    ],
)
def test_address_that_is_a_right_by_itself_is_a_secret(text, secret):
    """U-24: whoever has the address of a webhook may send; a parameter `key` of an address is one for a service."""
    assert redact.holds_secret(text) is secret


# --- our own words ---


def _own_texts(path: Path) -> list[str]:
    """The texts of a module that are sentences: what is told, and what describes a field of a model; no docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    bare = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    pieces = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values}
    found = []
    for one in ast.walk(tree):
        if id(one) in bare | pieces:
            continue
        if isinstance(one, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "x" for part in one.values))
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.append(one.value)
    return [one for one in found if " " in one]


def test_no_message_of_ours_is_taken_for_a_secret():
    """What is wrong is told in words that masking leaves alone."""
    home = Path(outlast.__file__).parent
    texts = [
        one
        for room in ("spec", "components", "settings")
        for path in (home / room).rglob("*.py")
        for one in _own_texts(path)
    ]
    assert len(texts) > 500
    assert [one for one in texts if redact.mask(one) != one] == []


def test_mistake_with_a_secret_in_it_keeps_its_place():
    """One line, at its path, whatever of it is masked."""
    problem = outlast.errors.Problem(
        ("retry", "on_errors", 4), "a known error", "'sk-live-0123456789abcdef'", "change it"
    )
    assert outlast.ConfigurationError([problem]).details == (problem.replace(got="'***'"),)
