"""Verdicts on what sockets, TLS, asyncio, executors and files of the standard library really raise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import queue
import socket
import ssl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import outlast
from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from servers.http import MisbehavingServer

HASTY = 0.05


# --- sockets and TLS ------------------------------------------------------------------------------------------------


def ask(server: MisbehavingServer, path: str, timeout: float = 30.0) -> bytes:
    """Send a request over a plain socket and read one piece of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return connection.recv(100)


def test_a_refused_connection_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: ECONNREFUSED."""
    check(raised_by(lambda: socket.create_connection(("127.0.0.1", refusing_port))), "connection_refused")


def test_a_name_that_does_not_resolve_is_dns_error() -> None:
    """C-07, D-3: the errno of gaierror is not an errno."""
    check(raised_by(lambda: socket.create_connection(("outlast.invalid", 80))), "dns_error")


def test_a_reset_is_connection_reset(server: MisbehavingServer) -> None:
    """C-07, D-3: ECONNRESET."""
    check(raised_by(lambda: ask(server, "/reset")), "connection_reset")


def test_a_broken_pipe_is_connection_reset() -> None:
    """C-07, D-3: EPIPE."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        check(raised_by(lambda: ours.sendall(b"hello")), "connection_reset")


def test_silence_on_a_socket_is_timeout(server: MisbehavingServer) -> None:
    """C-07, C-08: socket.timeout is TimeoutError."""
    check(raised_by(lambda: ask(server, "/hang", HASTY)), "timeout")


def test_an_untrusted_certificate_is_tls_verify(tls_server: MisbehavingServer) -> None:
    """D-3: the class is a ValueError as well, and its errno is OpenSSL's."""

    def shake_hands() -> None:
        with socket.create_connection(("127.0.0.1", tls_server.port)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")

    check(raised_by(shake_hands), "tls_verify")


def test_a_handshake_with_something_else_is_network_error(server: MisbehavingServer) -> None:
    """C-07: SSLError number 1 is not EPERM."""

    def shake_hands() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")

    check(raised_by(shake_hands), "network_error")


# --- files and bytes ------------------------------------------------------------------------------------------------


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    """C-07: ENOENT."""
    check(raised_by((tmp_path / "nothing").read_bytes), "missing_input")


def test_a_full_disk_is_resource_exhausted() -> None:
    """C-07: ENOSPC, from the device that is always full."""

    def write() -> None:
        descriptor = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(descriptor, b"too much")
        finally:
            os.close(descriptor)

    check(raised_by(write), "resource_exhausted")


def test_bytes_that_do_not_decode_are_data_error() -> None:
    """C-08: JSON and Unicode decode errors are ValueErrors."""
    check(raised_by(lambda: json.loads("{")), "data_error")
    check(raised_by(b"\xff".decode), "data_error")


def test_a_module_that_is_not_there_is_fatal() -> None:
    """D-3: no other item can import it either."""
    verdict = outlast.classify(raised_by(lambda: __import__("outlast_has_no_such_module")))
    assert (verdict.category, verdict.error_class, verdict.fatal) == ("permanent", "missing_dependency", True)


# --- asyncio --------------------------------------------------------------------------------------------------------


async def read_too_little() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"half")
    reader.feed_eof()
    await reader.readexactly(100)


async def read_a_line_without_end() -> None:
    reader = asyncio.StreamReader(limit=10)
    reader.feed_data(b"x" * 100)
    await reader.readuntil(b"\n")


async def ask_too_early() -> None:
    asyncio.get_running_loop().create_future().result()


async def wait_for_nothing() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), HASTY)


async def time_out() -> None:
    async with asyncio.timeout(HASTY):
        await asyncio.Event().wait()


async def overfill() -> None:
    full: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
    full.put_nowait(1)
    full.put_nowait(2)


ASYNCIO = [
    (read_too_little, "connection_reset"),
    (read_a_line_without_end, "data_error"),
    (ask_too_early, "code_error"),
    (wait_for_nothing, "timeout"),
    (time_out, "timeout"),
    (overfill, "resource_exhausted"),
]


@table(("act", "error_class"), ASYNCIO, ids=lambda value: getattr(value, "__name__", value))
def test_what_asyncio_raises_is_classified(act: Callable[[], Coroutine[None, None, None]], error_class: str) -> None:
    """C-07, C-08: a timeout's cause is a CancelledError, which changes nothing; a partial read is the network's fault."""
    check(raised_by(lambda: asyncio.run(act())), error_class)


def test_a_task_group_is_what_its_leaves_are(refusing_port: int) -> None:
    """Semantics 6: a group of transient errors is transient; one permanent leaf makes it permanent."""

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", refusing_port)

    async def mistake() -> None:
        json.loads("{")

    async def together(*acts: Callable[[], Coroutine[None, None, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for act in acts:
                group.create_task(act())

    check(raised_by(lambda: asyncio.run(together(connect, connect))), "connection_refused")
    check(raised_by(lambda: asyncio.run(together(connect, mistake))), "data_error")


# --- executors and processes ----------------------------------------------------------------------------------------


def test_a_result_that_does_not_come_is_timeout() -> None:
    """C-08: concurrent.futures.TimeoutError is TimeoutError."""
    check(raised_by(lambda: concurrent.futures.Future[int]().result(timeout=HASTY)), "timeout")


def test_a_cancelled_future_is_cancelled() -> None:
    """C-08: concurrent.futures.CancelledError is an ordinary Exception, and not a failure to repeat."""
    future = concurrent.futures.Future[int]()
    future.cancel()
    check(raised_by(future.result), "cancelled")


def test_a_future_that_is_set_twice_is_code_error() -> None:
    """D-3: our own mistake."""
    future = concurrent.futures.Future[int]()
    future.set_result(1)
    check(raised_by(lambda: future.set_result(2)), "code_error")


def test_a_worker_process_that_dies_is_worker_lost() -> None:
    """C-07: BrokenProcessPool."""

    def die() -> None:
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            pool.submit(os._exit, 1).result()

    check(raised_by(die), "worker_lost")


def test_a_command_that_does_not_end_is_timeout() -> None:
    """C-07: subprocess.TimeoutExpired is no TimeoutError."""
    command = [sys.executable, "-c", "input()"]

    def run() -> None:
        theirs, ours = os.pipe()
        try:
            subprocess.run(command, stdin=theirs, timeout=HASTY, check=True)
        finally:
            os.close(theirs)
            os.close(ours)

    check(raised_by(run), "timeout")


def test_a_full_queue_is_resource_exhausted() -> None:
    """C-07: somebody may take something out."""
    full: queue.Queue[int] = queue.Queue(maxsize=1)
    full.put(1)
    check(raised_by(lambda: full.put_nowait(2)), "resource_exhausted")


# --- chains ---------------------------------------------------------------------------------------------------------


def test_a_chain_that_bites_its_tail_still_has_a_verdict(refusing_port: int) -> None:
    """Semantics 7: walked to its end, once."""
    refused = raised_by(lambda: socket.create_connection(("127.0.0.1", refusing_port)))
    wrapper = Exception("wrapped")
    wrapper.__cause__ = refused
    refused.__cause__ = wrapper
    check(wrapper, "connection_refused")


def test_a_context_that_was_hidden_on_purpose_is_not_looked_at(refusing_port: int) -> None:
    """C-08, semantics 7: `from None` says that what was handled has nothing to do with it."""

    def hide() -> None:
        try:
            socket.create_connection(("127.0.0.1", refusing_port))
        except OSError:
            raise Exception("something else") from None

    check(raised_by(hide), "unknown")


def test_a_verdict_does_not_depend_on_the_thread(refusing_port: int) -> None:
    """C-08: the rules are data, read by all."""
    errors: list[Exception] = []

    def fail() -> None:
        errors.append(raised_by(lambda: socket.create_connection(("127.0.0.1", refusing_port))))

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    check(errors[0], "connection_refused")
