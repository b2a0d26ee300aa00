"""`check_component`: what it finds in components that are right, and in those that are not."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field

from components.steps.answers import Answers
from components.steps.calling import a_context, failure_of
from outlast.components.conformance import check_component
from outlast.components.describing import Component
from outlast.components.steps.config import Config, Connection
from outlast.errors import ConfigurationError
from outlast.settings.secret import Secret
from stores import prepared
from tables import table

if TYPE_CHECKING:
    from outlast.components.running import StepContext

SECRET = "t0ken-of-nobody"


class Made(Config):
    """A config of a component of somebody else."""

    n: Annotated[Any, Field(description="a value")] = 1
    connection: Annotated[Connection | None, Field(description="@http.alias")] = None


def component(run, **how):
    given = {"outputs": {"n": "the value"}, "example": {"n": 1}, "config": Made, **how}
    return Component(name="shop.made", summary="Does something.", run=run, **given)


def right(config: Made, context: StepContext):
    return {"n": config.n}


def changes(config: Made, context: StepContext):
    config.n.append(1)
    return {"n": 1}


def tells(config: Made, context: StepContext):
    assert context.connection is not None
    return {"n": context.connection["token"].reveal()}


def logs(config: Made, context: StepContext):
    assert context.connection is not None
    logging.getLogger("shop").debug("with %s", context.connection["token"].reveal())
    return {"n": 1}


def raises(config: Made, context: StepContext):
    assert context.connection is not None
    if config.n == 2:
        raise ValueError(f"no such token: {context.connection['token'].reveal()}")
    return {"n": 1}


def other(config: Made, context: StepContext):
    return {"n": context.attempt}


def odd(config: Made, context: StepContext):
    return {"n": object()}


def lacks(config: Made, context: StepContext):
    return {}


def text(config: Made, context: StepContext):
    return {"n": "1"}


def tells_bytes(config: Made, context: StepContext):
    assert context.connection is not None
    return {"n": [{"raw": context.connection["token"].reveal().encode()}]}


def tells_header(config: Made, context: StepContext):
    assert context.connection is not None
    return {"n": f"sent {context.connection['headers']['X-Key'].reveal()!r}"}


def in_one_process(config: Made, context: StepContext):
    if os.getpid() != int(os.environ["CONFORMING_IN"]):
        raise ValueError("in another process")
    return {"n": 1}


def in_any_process(config: Made, context: StepContext):
    return {"n": os.getpid()}


def no_number(config: Made, context: StepContext):
    return {"n": [float("nan"), {"a": float("nan")}]}


def test_our_own_components_are_what_a_step_relies_on(tmp_path, postgres):
    """The check that authors are given holds for each of ours."""
    (tmp_path / "conforming.py").write_text("def label(row=None): return {'label': 'a'}\n")
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
    postgres.execute("create table if not exists conforming (id int primary key)")
    here = {"root": tmp_path}
    database = {"connection": {"url": postgres.dsn}}
    rows = [{"id": 1}]
    schema = {"type": "object"}
    with Answers({"/no": (500, {}, b"")}) as server:
        web = {"connection": {"base_url": server.url, "token": SECRET, "allow_private": True}}
        found = [
            check_component("python", {"call": "conforming:label"}, failing={"call": "conforming:gone"}, **here),
            check_component("files.reader", {"path": "in.jsonl"}, failing={"path": "gone.jsonl"}, **here),
            check_component("files.writer", {"path": "a.csv", "rows": rows}, failing={"path": "a.csv", "rows": [1]}, **here),
            check_component("data.processor", {"rows": rows, "select": ["id"]}, failing={"rows": rows, "select": ["x"]}),
            check_component("schema.validator", {"data": rows, "schema": schema}, failing={"data": [1], "schema": schema}),
            check_component(
                "http.caller",
                {"connection": "@http.shop", "url": "/"},
                failing={"connection": "@http.shop", "url": "/no"},
                calls=lambda: len(server.asked),
                **web,
            ),
            check_component(
                "postgres.extractor",
                {"connection": "@postgres.shop", "query": "select 1 as n"},
                failing={"connection": "@postgres.shop", "query": "select 1 / 0 as n"},
                **database,
            ),
            check_component(
                "postgres.writer",
                {"connection": "@postgres.shop", "table": "conforming", "rows": rows, "mode": "upsert", "key": ["id"]},
                failing={"connection": "@postgres.shop", "table": "gone", "rows": rows},
                **database,
            ),
            check_component(
                "sql.transform",
                {"tables": {"a": rows}, "query": "select id from a"},
                failing={"tables": {"a": rows}, "query": "select no from a"},
            ),
            check_component("resource.allocator", {"pool": "p", "capacity": 1}, store_url=prepared(tmp_path / "o.db")),
            check_component("resource.deallocator", {"allocation_id": "p:x"}, store_url=prepared(tmp_path / "p.db")),
        ]  # fmt: skip
    assert [sorted(one) for one in found] == [
        ["label"],
        ["count", "rows"],
        ["count", "path"],
        ["count", "dropped", "rows"],
        ["count", "invalid", "valid"],
        ["body", "headers", "status"],
        ["count", "rows"],
        ["count", "table"],
        ["count", "rows"],
        ["allocation_id", "left"],
        ["released"],
    ]


@table(
    ("run", "how", "config", "failing", "said"),
    [
        (right, {}, {"n": 1}, None, ""),
        (None, {}, None, None, "expected a function that does the work"),
        (right, {"example": {}}, {"n": 1}, None, "expected an example, got: none"),
        (right, {}, {"m": 1}, None, "the config: expected a known key, got: 'm'"),
        (changes, {}, {"n": [1]}, None, "expected it to leave its config as it is"),
        (tells, {"connection": "http"}, None, None, "expected no secret of the connection in its outputs"),
        (logs, {"connection": "http"}, None, None, "expected no secret of the connection in its log"),
        (raises, {"connection": "http"}, None, {"n": 2}, "expected no secret of the connection in its message"),
        (other, {"idempotent": True}, None, None, "expected the same outputs the second time, in a process of its own, got others: n"),
        (other, {}, None, None, ""),
        (odd, {}, None, None, "expected the output n to be what a store can keep"),
        (lacks, {}, None, None, "shop.made put out nothing: expected n"),
        (text, {"types": {"n": "integer"}}, None, None, "shop.made put out n as a value of type str: expected an integer"),
        (lambda config, context: {"n": 1}, {}, None, None, "expected run to reach a process of its own"),
        (in_one_process, {}, None, None, "expected it to work with the config in a process of its own, got: ValueError: in another process"),
        (in_one_process, {"idempotent": True}, None, None, "the second time, in a process of its own, got: ValueError: in another process"),
        (in_any_process, {"idempotent": True}, None, None, "the second time, in a process of its own, got others: n"),
        (no_number, {}, None, None, ""),
        (no_number, {"idempotent": True}, None, None, ""),
        (right, {}, None, {"n": 1}, "expected it to fail with the config failing, got: outputs"),
    ],
)  # fmt: skip
def test_what_a_step_cannot_rely_on_is_told(monkeypatch, run, how, config, failing, said):
    """Each thing by itself, in a sentence."""
    monkeypatch.setenv("CONFORMING_IN", str(os.getpid()))
    connection = {"base_url": "https://shop.example", "token": SECRET}
    made = component(run, **how)
    if not said:
        check_component(made, config, connection=connection, failing=failing)
        return
    with pytest.raises(AssertionError) as wrong:
        check_component(made, config, connection=connection, failing=failing)
    assert said in str(wrong.value)
    assert str(wrong.value).startswith("shop.made is not what a step relies on:\n  - ")


@table(
    ("run", "secret"),
    [
        (tells, "line-one\nline-two"),
        (tells, "pa\\ss'wo\"rd"),
        (tells, "pässwörd-é"),
        (tells_bytes, "pässwörd-é"),
        (tells_bytes, SECRET),
        (raises, "line-one\nline-two"),
        (tells_header, SECRET),
        (tells_header, "pa\\ss'wo\"rd-é\n"),
    ],
)
def test_a_secret_is_found_however_it_is_written(monkeypatch, run, secret):
    """With line breaks, quotes and letters of other languages, as bytes, quoted, and where it is deep in the connection."""
    monkeypatch.setenv("CONFORMING_KEY", secret)
    headers = {"X-Key": Secret.env("CONFORMING_KEY")}
    connection = {"base_url": "https://shop.example", "token": secret, "headers": headers}
    if run is tells_header:
        del connection["token"]
    with pytest.raises(
        AssertionError, match=r"expected no secret of the connection in its (outputs|message), got: one"
    ):
        check_component(component(run, connection="http"), {"n": 2}, connection=connection)


def test_calls_that_count_nothing_prove_nothing():
    """Who counts the calls of another server would find no retry; a config that fails before a call is none."""
    with pytest.raises(
        AssertionError, match="expected one call for one attempt, got: 0; calls has to count those of it"
    ):
        check_component(component(right), calls=lambda: 0)
    asked = []

    def asks(config, context):
        if config.n == 2:
            raise ValueError("before it has asked")
        asked.append(1)
        return {"n": 1}

    with pytest.raises(AssertionError) as wrong:  # a function of a function reaches no other process
        check_component(component(asks), failing={"n": 2}, calls=lambda: len(asked))
    assert "call for one attempt" not in str(wrong.value)


def test_a_component_that_tries_again_is_found_by_counting():
    """A server that was asked twice in one attempt has met a retry that nobody decided."""
    asked = []

    def twice(config, context):
        asked.extend([1, 1])
        return {"n": 1}

    with pytest.raises(AssertionError, match="expected one call for one attempt, got: 2"):
        check_component(component(twice), calls=lambda: len(asked))


def test_a_name_that_nobody_knows_is_told():
    """As is a run that is neither a function nor the name of one."""
    with pytest.raises(ConfigurationError, match="expected a component that is known"):
        check_component("shop.gone")
    with pytest.raises(ConfigurationError, match="expected run to be a function, or its name as module:function"):
        component("no name")


@table(
    ("package", "name", "config", "extra"),
    [
        ("httpx", "http.caller", {"url": "https://shop.example/"}, "http"),
        ("openai", "llm.caller", {"connection": "@llm.main", "prompt": "a"}, "llm"),
        ("httpx", "llm.caller", {"connection": "@llm.main", "prompt": "a"}, "llm"),
        ("psycopg", "postgres.extractor", {"connection": "@postgres.shop", "query": "select 1"}, "postgres"),
        ("botocore", "s3.reader", {"connection": "@s3.reports", "key": "a.txt"}, "s3"),
        ("jsonschema", "schema.validator", {"data": [], "schema": {}}, "flows"),
        ("pymysql", "mysql.extractor", {"connection": "@mysql.shop", "query": "select 1"}, "mysql"),
        ("httpx", "supabase.writer", {"connection": "@supabase.main", "table": "movies", "rows": []}, "http"),
        ("httpx", "supabase.deleter", {"connection": "@supabase.main", "table": "movies", "match": {"id": 1}}, "http"),
        ("duckdb", "sql.transform", {"tables": {"a": [{"id": 1}]}, "query": "select 1 as n"}, "duckdb"),
    ],
)
def test_a_package_that_is_not_installed_is_told_with_what_brings_it(package, name, config, extra):
    """A file that names the component can be checked without it; the step that runs it says what to install."""
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, package, None)
        for one in ("http", "llm", "wire", "postgres", "mysql", "s3", "supabase", "sql"):
            without.delitem(sys.modules, f"outlast.components.steps.doing.{one}", raising=False)
        _, said, error = failure_of(name, config, a_context(connection={"url": "postgresql://127.0.0.1:1/x"}))
    assert (type(error), said.endswith(f"which is not installed: pip install 'outlast[{extra}]'.")) == (
        ConfigurationError,
        True,
    )
