"""Verdicts on what redis-py really raises, from a real Redis."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from outlast.testing import FaultProxy
from real.expected import check, raised_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.redis import Redis

# One server serves them all: keep them in one worker when the suite runs in several.
pytestmark = pytest.mark.xdist_group("redis")


def client(port: int, **options: Any) -> redis.Redis:
    """A client that does not retry by itself."""
    return redis.Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0), **options)


@pytest.fixture
def connected(redis_server: Redis) -> Iterator[redis.Redis]:
    with closing(client(redis_server.port)) as made:
        made.flushall()
        yield made


COMMANDS = {
    "wrong type": (["LPUSH", "text", "1"], "data_error"),
    "not a number": (["INCR", "text"], "data_error"),
    "unknown command": (["NOSUCH"], "data_error"),
    "no such script": (["EVALSHA", "0" * 40, "0"], "missing_input"),
}


@pytest.mark.parametrize(("command", "error_class"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_refused_command_is_permanent(connected: redis.Redis, command: list[str], error_class: str) -> None:
    """C-07: the server understood, and it will not do it."""
    connected.set("text", "no number")
    check(raised_by(lambda: connected.execute_command(*command)), error_class)


def test_a_value_that_cannot_be_sent_is_data_error(connected: redis.Redis) -> None:
    """C-07: found by the client."""
    check(raised_by(lambda: connected.set("key", object())), "data_error")


def test_a_full_memory_is_resource_exhausted(connected: redis.Redis) -> None:
    """C-07: it may have room later, and it may not."""
    connected.config_set("maxmemory", "1")
    try:
        check(raised_by(lambda: connected.set("key", "value")), "resource_exhausted")
    finally:
        connected.config_set("maxmemory", "0")


def test_a_replica_that_may_not_be_written_is_database_error(connected: redis.Redis, refusing_port: int) -> None:
    """C-07: as after a failover; another attempt may find the primary."""
    connected.execute_command("REPLICAOF", "127.0.0.1", refusing_port)
    try:
        check(raised_by(lambda: connected.set("key", "value")), "database_error")
        # And one that must not answer without its primary says so.
        connected.config_set("replica-serve-stale-data", "no")
        check(raised_by(lambda: connected.get("key")), "database_error")
    finally:
        connected.config_set("replica-serve-stale-data", "yes")
        connected.execute_command("REPLICAOF", "NO", "ONE")


def test_a_watched_key_that_changed_is_database_error(connected: redis.Redis) -> None:
    """C-07: somebody was faster; the same again may succeed."""

    def change() -> None:
        with connected.pipeline() as pipe:
            pipe.watch("key")
            connected.set("key", "changed")
            pipe.multi()
            pipe.set("key", "mine")
            pipe.execute()

    check(raised_by(change), "database_error")


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_missing_or_wrong_password_is_auth_error(connected: redis.Redis, redis_server: Redis, password) -> None:
    """C-07, D-3: fatal: no other item can come in either."""
    connected.ping()
    connected.config_set("requirepass", "right")
    try:
        with closing(client(redis_server.port, password=password)) as stranger:
            check(raised_by(stranger.ping), "auth_error")
    finally:
        connected.config_set("requirepass", "")


def test_a_user_without_the_right_is_permission_denied(connected: redis.Redis, redis_server: Redis) -> None:
    """C-07: ACL rules."""
    connected.execute_command("ACL", "SETUSER", "reader", "on", ">right", "~*", "-@all", "+get", "+client")
    with closing(client(redis_server.port, username="reader", password="right")) as reader:
        check(raised_by(lambda: reader.set("key", "value")), "permission_denied")


def test_nobody_listening_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: redis.ConnectionError is sharpened by its cause."""
    with closing(client(refusing_port)) as nobody:
        check(raised_by(nobody.ping), "connection_refused")


def test_a_name_that_does_not_resolve_is_dns_error() -> None:
    """C-07, D-3: .invalid never resolves (RFC 6761)."""
    with closing(redis.Redis(host="outlast.invalid", retry=Retry(NoBackoff(), 0))) as nobody:
        check(raised_by(nobody.ping), "dns_error")


def test_a_cut_connection_is_connection_reset(redis_server: Redis) -> None:
    """C-07, D-3: the network cuts in between two commands."""
    with (
        FaultProxy(("127.0.0.1", redis_server.port)) as proxy,
        closing(client(proxy.port, single_connection_client=True)) as cut,
    ):
        cut.ping()
        proxy.cut()
        check(raised_by(cut.ping), "connection_reset")


def test_an_answer_that_does_not_come_is_timeout(connected: redis.Redis, redis_server: Redis) -> None:
    """C-07: redis.TimeoutError is not the builtin."""
    with closing(client(redis_server.port, socket_timeout=0.02)) as impatient:
        check(raised_by(lambda: impatient.blpop("nothing", timeout=30)), "timeout")


def test_a_pool_without_a_free_connection_is_database_error(redis_server: Redis) -> None:
    """C-07: as with every other pool."""
    with closing(client(redis_server.port, max_connections=1)) as small, small.pipeline() as pipe:
        pipe.watch("key")
        check(raised_by(small.ping), "database_error")


def test_the_asynchronous_client_raises_the_same(refusing_port: int, redis_server: Redis) -> None:
    """C-08: redis.asyncio."""

    async def asked(port: int, *command: str) -> None:
        async with redis.asyncio.Redis(host="127.0.0.1", port=port, retry=None) as made:
            await made.execute_command(*command)

    check(raised_by(lambda: asyncio.run(asked(refusing_port, "PING"))), "connection_refused")
    check(raised_by(lambda: asyncio.run(asked(redis_server.port, "NOSUCH"))), "data_error")
