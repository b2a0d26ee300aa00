"""
What components that use the network make of connections that break: the same five faults on the wire for each of them.

A component joins with a `Subject`: `check_faults(subject, {fault: the class of its error})` plays every fault twice, once
to see how one attempt ends and what the service has by then, and once under a retry policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import outlast
from components.steps.answers import Answers
from components.steps.calling import a_context, failure_of, outputs_of
from outlast.components.running import StepContext
from outlast.testing import FaultProxy, virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FAULTS = ("reset_before", "reset_after", "stall", "half_close", "garbage")


@dataclass
class Subject:
    """
    A component, where its service is, and how it is reached through a proxy at a port. A fault strikes the request that has
    `when` in it. `seen` says what the service has, or what it was asked, whichever tells whether something was done twice;
    `reset` takes it back. `outputs` are those of an attempt that nothing happens to. `limit` is the time of an attempt.
    """

    component: str
    config: dict[str, Any]
    target: str | tuple[str, int]
    connection: Callable[[int], dict[str, Any]]
    outputs: Any
    when: bytes = b""
    seen: Callable[[], Any] = field(default=lambda: None)
    reset: Callable[[], Any] = field(default=lambda: None)
    limit: float = 1.0


def check_faults(
    subject: Subject, classes: Mapping[str, str], seen: Mapping[str, tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    `classes` has the class of the error of each fault. `seen` has what `subject.seen` says after the attempt that failed,
    and after the two attempts of which the second succeeds.
    """
    monkeypatch.setattr(StepContext, "remaining", lambda _: subject.limit)
    told = {}
    for kind in classes:
        with FaultProxy(subject.target) as proxy:
            context = a_context(connection=subject.connection(proxy.port))
            subject.reset()
            proxy.fault(kind, when=subject.when)
            error_class, message, error = failure_of(subject.component, subject.config, context)
            after_one = subject.seen()
            assert outlast.classify(error).category == "transient", (kind, error_class)
            assert not any(secret in message for secret in ("hunter2", "outlast-secret", "outlast-access")), message
            subject.reset()
            proxy.fault(kind, when=subject.when)
            attempts = []

            def attempt(context=context, attempts=attempts):
                attempts.append(1)
                return outputs_of(subject.component, subject.config, context)

            with virtual_time():
                outputs = outlast.retry(max_attempts=2).call(attempt)
            told[kind] = (error_class, (after_one, subject.seen()), outputs, len(attempts), proxy.struck)
    assert told == {kind: (classes[kind], seen[kind], subject.outputs, 2, [kind, kind]) for kind in classes}


def test_http_caller(monkeypatch):
    """A reset, a stall, half an answer and garbage are errors that pass; each attempt is one request."""
    with Answers({"/a": (200, {"content-type": "text/plain"}, b"thanks")}) as server:
        subject = Subject(
            "http.caller",
            {"connection": "@http.shop", "url": "/a", "method": "POST", "body": "an order"},
            ("127.0.0.1", server.port),
            lambda port: {"base_url": f"http://127.0.0.1:{port}", "allow_private": True, "token": "hunter2-token"},
            {"status": 200, "headers": {"content-type": "text/plain", "content-length": "6"}, "body": "thanks"},
            seen=lambda: len(server.asked),
            reset=server.asked.clear,
        )
        classes = dict.fromkeys(FAULTS, "connection_reset") | {"stall": "timeout"}
        seen = dict.fromkeys(FAULTS, (1, 2)) | {"reset_before": (0, 1)}
        check_faults(subject, classes, seen, monkeypatch)


def through(port):
    return {"host": "127.0.0.1", "port": port, "database": "components", "user": "postgres", "sslmode": "disable"}


CLASSES_OF_POSTGRES = dict.fromkeys(FAULTS, "database_connection") | {"stall": "timeout"}


@pytest.mark.parametrize("when", [b"", b"a_query"])
def test_postgres_extractor(postgres, monkeypatch, when):
    """While it connects and while it asks; all rows or an error."""
    subject = Subject(
        "postgres.extractor",
        {"connection": "@postgres.shop", "query": "select n as a_query from generate_series(1, 3) n"},
        postgres.socket,
        through,
        {"rows": [{"a_query": 1}, {"a_query": 2}, {"a_query": 3}], "count": 3},
        when=when,
    )
    check_faults(subject, CLASSES_OF_POSTGRES, dict.fromkeys(FAULTS, (None, None)), monkeypatch)


@pytest.mark.parametrize("when", [b"copy ", b"commit\0"])
def test_postgres_writer(postgres, monkeypatch, when):
    """
    All rows or none: a fault before the commit leaves none; one at the commit leaves all if the server has heard of it, and
    the second attempt changes nothing then.
    """
    postgres.execute("drop table if exists struck")
    postgres.execute("create table struck (id int primary key, title text)")
    subject = Subject(
        "postgres.writer",
        {
            "connection": "@postgres.shop",
            "table": "struck",
            "rows": [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}],
            "mode": "upsert",
            "key": ["id"],
        },
        postgres.socket,
        through,
        {"count": 2, "table": "public.struck"},
        when=when,
        seen=lambda: int(postgres.execute("select count(*) from struck")),
        reset=lambda: postgres.execute("delete from struck"),
    )
    heard = 2 if when == b"commit\0" else 0
    seen = dict.fromkeys(FAULTS, (heard, 2)) | {"reset_before": (0, 2)}
    check_faults(subject, CLASSES_OF_POSTGRES, seen, monkeypatch)


def objects(s3):
    return lambda port: {
        "bucket": "bucket",
        "endpoint_url": f"http://127.0.0.1:{port}",
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
    }


CLASSES_OF_S3 = dict.fromkeys(FAULTS, "connection_reset") | {"stall": "timeout"}


@pytest.mark.parametrize("size", [5, 300_000])
def test_s3_reader(s3, monkeypatch, size):
    """S1-09: whether the answer breaks in its headers or in its body, it is never a shorter object."""
    s3.put(f"struck-{size}.txt", b"x" * size)
    connection = objects(s3)
    config = {"connection": "@s3.reports", "key": f"struck-{size}.txt"}
    outputs = outputs_of("s3.reader", config, a_context(connection=connection(s3.port)))
    assert outputs["body"] == "x" * size
    subject = Subject("s3.reader", config, ("127.0.0.1", s3.port), connection, outputs, limit=2.5)
    classes = CLASSES_OF_S3 if size > 5 else CLASSES_OF_S3 | {"half_close": "network_error"}
    check_faults(subject, classes, dict.fromkeys(FAULTS, (None, None)), monkeypatch)


@pytest.mark.parametrize("size", [5, 300_000])
def test_s3_writer(s3, monkeypatch, size):
    """S1-09: the whole object or none, and an answer without its end proves nothing."""
    key, raw = f"written-{size}.txt", b"x" * size
    connection = objects(s3)
    config = {"connection": "@s3.reports", "key": key, "body": raw.decode(), "overwrite": True}
    gone = {"connection": "@s3.reports", "key": key}
    outputs = outputs_of("s3.writer", config, a_context(connection=connection(s3.port)))
    subject = Subject(
        "s3.writer",
        config,
        ("127.0.0.1", s3.port),
        connection,
        outputs,
        seen=lambda: s3.get(key),
        reset=lambda: outputs_of("s3.deleter", gone, a_context(connection=connection(s3.port))),
        limit=2.5,  # all of the attempt, with the making of its client
    )
    seen = dict.fromkeys(FAULTS, (raw, raw)) | {"reset_before": (None, raw)}
    check_faults(subject, CLASSES_OF_S3 | {"half_close": "network_error"}, seen, monkeypatch)


def test_s3_deleter(s3, monkeypatch):
    """Half of the answer of an object's end is enough: its status says that it is gone. The others end as above."""
    key = "deleted.txt"
    subject = Subject(
        "s3.deleter",
        {"connection": "@s3.reports", "key": key},
        ("127.0.0.1", s3.port),
        objects(s3),
        {"bucket": "bucket", "key": key},
        seen=lambda: s3.get(key),
        reset=lambda: s3.put(key, b"x"),
        limit=2.5,
    )
    faults = tuple(kind for kind in FAULTS if kind != "half_close")
    seen = dict.fromkeys(faults, (None, None)) | {"reset_before": (b"x", None)}
    check_faults(subject, {kind: CLASSES_OF_S3[kind] for kind in faults}, seen, monkeypatch)
