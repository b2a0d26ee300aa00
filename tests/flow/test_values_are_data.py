"""A value that a reference brings is data: it never chooses another address, object, file, table, key or header (D-40)."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import pathlib
import re
import typing
from decimal import Decimal

import numpy as np
import pydantic
import pytest

import outlast
from components.steps.answers import Answers
from outlast.flow.outputs import keep
from outlast.spec.compile import compile_text
from outlast.store.codec import Codec
from tables import table

HEAD = "name: wipe\nsteps:\n"


def sent(server):
    """The requests that a server was sent."""
    return [f"{one.method} {one.path}" for one in server.asked]


@pytest.fixture
def flow(project, sqlite_app):
    """Runs a step for each of these rows, and tells how each ended."""

    def run(step, rows, *, keys="key: n"):
        numbered = [{"n": number, **row} for number, row in enumerate(rows)]
        (project.root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbered))
        loaded = project.load(
            f"{HEAD}  - {{id: read, component: files.reader, config: {{path: rows.jsonl}}}}\n"
            f'  - id: end\n    for_each: {{items: "${{steps.read.outputs.rows}}", {keys}, concurrency: 1}}\n{step}'
        )
        result = loaded.run(app=sqlite_app, check=False)
        letters = sqlite_app.dead_letters.find(status="open")
        return result, {letter.payload["n"]: letter.error for letter in letters if letter.kind == "item"}

    return run


VALUES = {
    "41": "41",
    "42#": "42%23",
    "43?x=": "43%3Fx%3D",
    "46/orders/7?": "46%2Forders%2F7%3F",
    "47%23": "47%2523",
    "48;a=b": "48%3Ba%3Db",
    "50 51": "50%2051",
    "%2e%2e": "%252e%252e",
    "ö": "%C3%B6",
    7: "7",
    "": None,
    ".": None,
    "..": None,
    "44/../45": None,
    "a\\..\\b": None,
    "a/./b": None,
    "a/": "a%2F",
    None: None,
}


def test_a_value_in_the_path_of_an_address_is_one_segment(flow, project):
    """Whatever signs it has, the request goes to the resource of its row, or no request is made and the row has failed."""
    with Answers() as server:
        (project.root / "connections.yaml").write_text(
            f"connections: {{http: {{crm: {{base_url: '{server.url}/v1', allow_private: true}}}}}}\n"
        )
        step = '    component: http.caller\n    config: {connection: "@http.crm", url: "/customers/${item.id}/sessions", method: DELETE}\n'
        _, refused = flow(step, [{"id": value} for value in VALUES])
    assert sent(server) == [f"DELETE /v1/customers/{one}/sessions" for one in VALUES.values() if one is not None]
    assert {*refused} == {number for number, one in enumerate(VALUES.values()) if one is None}
    assert all("expected " in message for message in refused.values())


def test_a_value_in_the_query_of_an_address_stays_in_its_place(flow, project):
    """Behind the question mark a value is one value, and may be empty."""
    with Answers() as server:
        (project.root / "connections.yaml").write_text(
            f"connections: {{http: {{crm: {{base_url: '{server.url}', allow_private: true}}}}}}\n"
        )
        step = '    component: http.caller\n    config: {connection: "@http.crm", url: "/x?a=${item.a}&b=${item.b}"}\n'
        _, refused = flow(step, [{"a": "1&b=2#", "b": ".."}, {"a": "", "b": "x=y?"}])
    assert (sent(server), refused) == (["GET /x?a=1%26b%3D2%23&b=..", "GET /x?a=&b=x%3Dy%3F"], {})


def test_an_address_that_is_a_value_stays_with_the_connection(flow, project):
    """All of the url may be one reference: an address of the connection's host and port, or a path behind its base."""
    with Answers() as server, Answers() as other:
        (project.root / "connections.yaml").write_text(
            f"connections: {{http: {{crm: {{base_url: '{server.url}/v1', token: '${{CRM}}', allow_private: true}}}}}}\n"
        )
        step = '    component: http.caller\n    config: {connection: "@http.crm", url: "${item.next}"}\n'
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CRM", "a-token-of-the-crm")
            _, refused = flow(
                step,
                [
                    {"next": f"{server.url}/v1/page?after=7"},
                    {"next": "/page"},
                    {"next": f"{other.url}/v1/page"},
                    {"next": f"https://127.0.0.1:{server.port}/v1/page"},
                    {"next": f"{server.url}/v1/page#2"},
                    {"next": f"http://ann@127.0.0.1:{server.port}/v1/page"},
                    {"next": "//127.0.0.1/x"},
                ],
            )
    assert (sent(server), sent(other)) == (["GET /v1/page?after=7", "GET /v1/page"], [])
    assert {*refused} == {2, 3, 4, 5, 6}
    assert "address of the host and port of the connection" in refused[2]


def test_a_value_in_the_name_of_a_file_does_not_lead_elsewhere(flow, project):
    """It may have folders; no empty part, no dots, and no sign of a pattern."""
    for name in ("a", "b", "[x]", "deep/c"):
        path = project.root / "in" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": name}) + "\n")
    step = '    component: files.reader\n    config: {path: "in/${item.file}.jsonl"}\n'
    result, refused = flow(step, [{"file": name} for name in ("a", "deep/c", "[x]")])
    read = [row["outputs"]["rows"][0]["name"] for row in result["end"].outputs["rows"]]
    assert (read, refused) == (["a", "deep/c", "[x]"], {})
    wrong = ["*", "?", "[ab]", "**/c", "", "../in/a", "./a", "/a", "deep//c", "deep/", "deep\\..\\a"]
    _, refused = flow(step, [{"file": name} for name in wrong])
    assert {*refused} == {*range(len(wrong))}


@table(
    ("config", "said"),
    [
        ('url: "https://${params.word}/x"', "references in the path or the query of url"),
        ('url: "${params.word}/x"', "references in the path or the query of url"),
        ('url: "https://a.example${params.word}"', "references in the path or the query of url"),
        ('url: "https://a.example/${params.nothing}/x"', "a part of the path of url"),
        ('url: "https://a.example/${params.dots}"', "a part of the path of url"),
        ('url: "https://a.example/x#y"', "an address without #"),
        ('url: "https://a.example/${params.word}#y"', "an address without #"),
        ('url: "${params.anchor}"', "an address without #"),
    ],
)
def test_an_address_that_a_value_would_change_is_a_mistake_of_the_file(config, said):
    """What is known when the file is compiled is told there, with its line and column."""
    text = (
        'oml_version: "0.1.0"\nname: f\nparams:\n  word: {type: string, default: "a.example"}\n  nothing: {type: string, default: ""}\n'
        '  dots: {type: string, default: ".."}\n  anchor: {type: string, default: "https://a.example/#x"}\n'
        f"steps:\n  - id: a\n    component: http.caller\n    config: {{{config}}}\n"
    )
    (wrong,) = map(str, compile_text(text, "f.yaml").errors)
    assert re.match(r"f\.yaml:11:\d+: steps\.a\.config\.url: expected ", wrong)
    assert said in wrong


def test_values_that_are_known_beforehand_are_encoded_when_the_file_is_compiled():
    """A parameter in the path of an address is one segment of it in the manifest."""
    text = (
        'oml_version: "0.1.0"\nname: f\nparams:\n  word: {type: string, default: "a/b?c#d"}\n'
        'steps:\n  - {id: a, component: http.caller, config: {url: "https://a.example/${params.word}/x?q=${params.word}"}}\n'
    )
    compiled = compile_text(text, "f.yaml")
    assert [str(one) for one in compiled.errors] == []
    assert compiled.manifest.steps[0].config["url"] == "https://a.example/a%2Fb%3Fc%23d/x?q=a%2Fb%3Fc%23d"


@table(
    ("undo", "filled"),
    [
        ('http.caller, config: {method: DELETE, url: "https://a.example/${path}"}', {"url": "https://a.example/in%2Fa%26b%20%231.jsonl"}),
        ('http.caller, config: {method: DELETE, url: "https://a.example/x?q=${path}"}', {"url": "https://a.example/x?q=in%2Fa%26b%20%231.jsonl"}),
        ('http.caller, config: {method: DELETE, url: "https://a.example/${params.word}"}', {"url": "https://a.example/a%2Fb%3Fc%23d"}),
        ('files.reader, config: {path: "undone/${params.file}"}', {"path": "undone/a[[]1].jsonl"}),
    ],
)  # fmt: skip
def test_values_in_what_compensates_a_step_are_encoded_when_the_file_is_compiled(undo, filled):
    """A key of the step's own config is held to the same as a parameter."""
    text = (
        'oml_version: "0.1.0"\nname: f\nparams:\n  word: {type: string, default: "a/b?c#d"}\n'
        '  file: {type: string, default: "a[1].jsonl"}\nsteps:\n'
        '  - {id: a, component: files.writer, config: {rows: [], path: "in/a&b #1.jsonl"}, '
        f"compensate: {{component: {undo}}}}}\n"
    )
    compiled = compile_text(text, "f.yaml")
    assert [str(one) for one in compiled.errors] == []
    config = compiled.manifest.steps[0].work["compensate"]["config"]
    assert {key: config[key] for key in filled} == filled


# -- idempotency keys ------------------------------------------------------------------------------------------------------


def test_values_of_a_key_are_told_apart_whatever_signs_they_have(flow, project):
    """D-40: two rows whose values would come to one text, if they were only joined, are two pieces of work."""
    project.functions("calls = []\ndef pay(a): calls.append(a)\n")
    rows = [
        {"a": "x:y", "b": "z"},
        {"a": "x", "b": "y:z"},
        {"a": "x%3Ay", "b": "z"},
        {"a": "x:y", "b": "z"},  # as the first one
        {"a": "x", "b": ":y:z"},
        {"a": "x:", "b": "y:z"},
    ]
    step = '    component: python\n    config: {call: "MODULE:pay", args: {a: "${item.a}"}}\n    idempotency: {key: "pay:${item.a}:${item.b}"}\n'
    _, failed = flow(step, rows)
    assert (len(project.namespace().calls), failed) == (5, {})


@table(
    ("key", "told"),
    [
        ("${params.a}${params.b}", True),
        ("${params.a}0${params.b}", True),
        ("${params.a}-${params.b}", False),
        ("batch${params.a}", False),
    ],
)
def test_references_of_a_key_are_kept_apart_by_a_sign(key, told):
    """R20: without one, two pairs of values would come to one key."""
    text = (
        'oml_version: "0.1.0"\nname: f\nparams: {a: {type: string, default: x}, b: {type: string, default: "y-z"}}\n'
        f'steps:\n  - {{id: a, component: python, config: {{call: "m:f"}}, idempotency: {{key: "{key}"}}}}\n'
    )
    compiled = compile_text(text, "f.yaml")
    assert [(one.code, one.got) for one in compiled.errors] == ([("R20", "two side by side")] if told else [])
    if not told:
        assert compiled.manifest.steps[0].work["idempotency"]["key"] in ("x-y%2Dz", "batchx")


# -- what undoes a step ----------------------------------------------------------------------------------------------------


def test_what_undoes_a_row_is_held_to_the_same(project, sqlite_app):
    """The output that chooses what is deleted is one segment, or nothing is sent and the row stays as it is."""
    project.functions("def make(n): return {'id': ['41', '42#', '..'][n]}\ndef stop(): raise ValueError('no')\n")
    with Answers() as server:
        (project.root / "connections.yaml").write_text(
            f"connections: {{http: {{crm: {{base_url: '{server.url}', allow_private: true}}}}}}\n"
        )
        loaded = project.load(
            f"""{HEAD}  - id: make
    component: python
    for_each: {{items: [{{n: 0}}, {{n: 1}}, {{n: 2}}], key: n, concurrency: 1}}
    config: {{call: "MODULE:make", args: {{n: "${{item.n}}"}}}}
    idempotent: true
    compensate:
      component: http.caller
      config: {{connection: "@http.crm", url: "/orders/${{steps.make.outputs.id}}", method: DELETE}}
  - {{id: stop, component: python, config: {{call: "MODULE:stop"}}}}
"""
        )
        result = loaded.run(app=sqlite_app, check=False)
    assert sorted(sent(server)) == ["DELETE /orders/41", "DELETE /orders/42%23"]
    assert result.compensation == "failed"


# -- secrets ---------------------------------------------------------------------------------------------------------------


def test_outputs_with_a_sensitive_parameter_in_them_are_refused(project, sqlite_app, monkeypatch):
    """D-40: nothing of them is stored, and the error names the output and the parameter, and shows no value."""
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "walnut-bowl-4093")
    project.functions(
        "def deep(token): return {'fine': 1, 'rows': [{'a': {'b': [f'Bearer {token}']}}]}\n"
        "def row(row, token): return deep(token)\n"
        "def name(token): return {'rows': [{token: 1}]}\ndef short(token): return {'a': token[:7]}\n"
    )
    for function, status, each in (
        ("deep", "failed", ""),
        ("name", "failed", ""),
        ("short", "completed", ""),
        ("row", "failed", "    for_each: {items: [1]}\n"),
    ):
        loaded = project.load(
            "name: f\nparams: {token: {type: string, sensitive: true}}\nsteps:\n  - id: a\n    component: python\n"
            f'{each}    config: {{call: "MODULE:{function}", args: {{token: "${{params.token}}"}}}}\n'
        )
        result = loaded.run(app=sqlite_app, check=False)
        assert (function, each, result.status) == (function, each, status)
        if status == "failed":
            assert "output rows of a to have no sensitive parameter in it, got: the value of token" in str(
                result["a"].error
            )
            assert "walnut" not in str(result["a"].error)


@table(("length", "status"), [(7, "completed"), (8, "failed"), (9, "failed")])
def test_a_sensitive_value_of_at_least_eight_characters_is_refused_in_outputs(length, status):
    """Shorter values occur in too many other texts."""
    outputs, value = {"said": f"Bearer {'walnut-bowl'[:length]}."}, "walnut-bowl"[:length]
    if status == "completed":
        assert keep(outputs, Codec(), "a", {"token": value}).data
    else:
        with pytest.raises(outlast.PermanentFailure, match="the value of token"):
            keep(outputs, Codec(), "a", {"token": value})


TOKEN = "walnut-bowl/4093"
PIN = 730214988


@dataclasses.dataclass
class Card:
    """A value that is stored by its fields."""

    word: object


class Grade(enum.Enum):
    """A value that is stored by name and value."""

    BEST = TOKEN


class Model(pydantic.BaseModel):
    """A value that is stored as its own JSON."""

    model_config = pydantic.ConfigDict(extra="allow")
    word: str = ""


class Pair(typing.NamedTuple):
    """A value that is stored by its fields, too."""

    first: object
    second: object


@table(
    "value",
    [
        TOKEN,
        {TOKEN: 1},
        {1: {"deep": [{"b": {TOKEN: None}}]}},
        {TOKEN},
        frozenset({("a", TOKEN)}),
        (1, TOKEN),
        collections.deque([TOKEN]),
        collections.OrderedDict({TOKEN: 1}),
        collections.Counter([TOKEN]),
        pathlib.Path("/a") / TOKEN,
        pathlib.PurePosixPath("a", TOKEN, "b"),
        pathlib.PureWindowsPath("c:/a") / TOKEN,
        TOKEN.encode(),
        bytearray(TOKEN.encode()),
        Card(Card({TOKEN})),
        Grade.BEST,
        Model(word=TOKEN),
        Model(**{TOKEN: 1}),
        Pair(1, TOKEN),
        np.array([["a", TOKEN]]),
        np.array([TOKEN.encode()]),
        np.frombuffer(TOKEN.encode(), "u1"),
        np.array([(1,)], dtype=[(TOKEN, "i4")]),
        np.array([PIN]),
        np.str_(TOKEN),
        np.bytes_(TOKEN.encode()),
        np.int64(PIN),
        PIN,
        float(PIN),
        Decimal(PIN) / 10**4 * 10**4,
        range(PIN),
        {PIN: 1},
        [{"n": number, TOKEN: "x" * 100} for number in range(5000)],
        [{"n": number, "word": TOKEN if number == 4999 else "x" * 100} for number in range(5000)],
        [{"n": {number}, "word": {TOKEN if number == 4999 else "x" * 100}} for number in range(5000)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sensitive_value_is_found_in_outputs_of_every_shape(value):
    """D-40: as a name, in a set, a path, bytes, an array, a model; large tables too."""
    secret = {"token": {"one": [TOKEN]}, "pin": PIN}
    for outputs in ({"said": value}, {"said": [value]}):
        with pytest.raises(
            outlast.PermanentFailure, match=r"the output said of a .* the value of (token|pin)"
        ) as raised:
            keep(outputs, Codec(), "a", secret)
        assert TOKEN not in str(raised.value)


def test_the_name_of_an_output_is_no_sensitive_value():
    """D-40: and the names of the fields of a sensitive object are not secret."""
    with pytest.raises(
        outlast.PermanentFailure, match=r"the name of every output of a .* the value of token"
    ) as raised:
        keep({f"x{TOKEN}": 1}, Codec(), "a", {"token": TOKEN})
    assert TOKEN not in str(raised.value)
    assert keep({"password": "password"}, Codec(), "a", {"login": {"password": "not this one"}}).data


def test_nothing_of_outputs_with_a_sensitive_name_is_stored(project, sqlite_app, monkeypatch):
    """D-40: neither of a step nor of its rows: the database has no trace of it."""
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", TOKEN)
    project.functions(
        "from pathlib import PurePath\n"
        "def name(token): return {token: 1}\ndef some(token): return {'x': {token}}\n"
        "def path(token): return {'x': PurePath('/a') / token}\n"
        "def row_name(row, token): return name(token)\ndef row_some(row, token): return some(token)\n"
        "def row_path(row, token): return path(token)\n"
    )
    for function in ("name", "some", "path", "row_name", "row_some", "row_path"):
        each = "    for_each: {items: [1]}\n" if function.startswith("row") else ""
        loaded = project.load(
            "name: f\nparams: {token: {type: string, sensitive: true}}\nsteps:\n  - id: a\n    component: python\n"
            f'{each}    config: {{call: "MODULE:{function}", args: {{token: "${{params.token}}"}}}}\n'
        )
        result = loaded.run(app=sqlite_app, check=False)
        assert (function, result.status, "the value of token" in str(result["a"].error)) == (function, "failed", True)
    sqlite_app.store.close()
    for file in project.root.rglob("*.db*"):
        assert TOKEN.encode() not in file.read_bytes()
