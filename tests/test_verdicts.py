"""What an error is: facts in the order in which they are believed, from tables, without importing anybody's library."""

from __future__ import annotations

import asyncio
import concurrent.futures
import csv
import decimal
import email.utils
import errno
import http.client
import json
import logging
import os
import pickle
import queue
import socket
import sqlite3
import ssl
import struct
import subprocess
import sys
import urllib.error
import zlib
from datetime import UTC, timedelta, timezone
from types import SimpleNamespace

import pytest

import outlast
from outlast import (
    AttemptTimeoutError,
    ConfigurationError,
    PermanentFailure,
    RetryPolicy,
    TemporaryFailure,
    TotalTimeoutError,
    classify,
    register,
    verdicts,
)
from outlast.kernel.clock import here
from outlast.testing import virtual_time
from outlast.verdicts import rules, surely_undone
from tables import table

# Written down a second time, so that the tables can be wrong: error class -> category, tier.
MEANING = {
    "network_error": ("transient", "network"),
    "connection_refused": ("transient", "network"),
    "connection_reset": ("transient", "network"),
    "dns_error": ("transient", "network"),
    "timeout": ("transient", "network"),
    "database_error": ("transient", "database"),
    "database_connection": ("transient", "database"),
    "rate_limited": ("transient", "http_429_503"),
    "unavailable": ("transient", "http_429_503"),
    "server_error": ("transient", "http_500_502_504"),
    "server_error_other": ("unclear", "http_5xx_other"),
    "temporary_failure": ("transient", "unknown"),
    "worker_lost": ("transient", "worker"),
    "idempotency_conflict": ("transient", "worker"),
    "idempotency_mismatch": ("permanent", "data"),
    "circuit_open": ("transient", "circuit"),
    "limit_exceeded": ("transient", "limit"),
    "resource_exhausted": ("unclear", "resource"),
    "unknown": ("unclear", "unknown"),
    "syntax_error": ("permanent", "data"),
    "validation_error": ("permanent", "data"),
    "data_error": ("permanent", "data"),
    "invalid_output": ("permanent", "data"),
    "missing_input": ("permanent", "data"),
    "permanent_failure": ("permanent", "data"),
    "code_error": ("permanent", "code"),
    "missing_dependency": ("permanent", "code"),
    "cancelled": ("permanent", "code"),
    "client_error": ("permanent", "http_4xx"),
    "permission_denied": ("permanent", "auth"),
    "auth_error": ("permanent", "auth"),
    "quota_exhausted": ("permanent", "auth"),
    "tls_verify": ("permanent", "auth"),
}
FATAL = {"auth_error", "quota_exhausted", "missing_dependency"}


def check(error: object, error_class: str) -> None:
    verdict = classify(error)
    meaning = (verdict.category, verdict.tier)
    assert (verdict.error_class, meaning, verdict.fatal) == (error_class, MEANING[error_class], error_class in FATAL)
    assert verdict.why


def library(module: str, name: str, *bases: type[BaseException], **fields: object) -> type[BaseException]:
    """An exception type that claims to come from a library which is not installed."""
    return type(name, bases or (Exception,), {"__module__": module} | fields)


class HttpError(Exception):
    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers={} if headers is None else headers)


class VendorError(Exception):
    """No rule knows it."""


def caused_by(cause: BaseException, error: BaseException | None = None) -> BaseException:
    error = VendorError() if error is None else error
    error.__cause__ = cause
    return error


# --- the tables -------------------------------------------------------------------------------------------------------


def test_error_classes_are_exactly_these():
    """C-07, D-3, S1-18: one taxonomy, each class with its category and tier."""
    assert {name: (known.category, known.tier) for name, known in rules.ERROR_CLASSES.items()} == MEANING
    assert {name for name, known in rules.ERROR_CLASSES.items() if known.fatal} == FATAL


def test_parents():
    """D-3: a name in on_errors covers what is below it."""
    lineages = {name: set(verdicts.lineage(name)) - {name} for name in MEANING}
    assert {name: parents for name, parents in lineages.items() if parents} == {
        "connection_refused": {"network_error"},
        "connection_reset": {"network_error"},
        "dns_error": {"network_error"},
        "database_connection": {"database_error", "network_error"},
    }


@table(
    "table",
    [rules.STATUSES, rules.SQLSTATES, rules.ERRNOS, rules.SQLITE_CODES, rules.TYPES, *rules.CODES.values()],
    ids=["statuses", "sqlstates", "errnos", "sqlite", "types", *rules.CODES],
)
def test_every_rule_names_an_error_class(table):
    """C-08: rules are data, and data can be checked."""
    assert set(table.values()) <= set(MEANING)


def test_every_errno_of_the_rules_exists_here():
    """C-08: a misspelt symbol would never match."""
    assert sorted(symbol for symbol in rules.ERRNOS if not hasattr(errno, symbol)) == []


def test_every_type_of_the_standard_library_in_the_rules_exists():
    """C-08: a dotted name that nothing has would never match."""
    import importlib

    missing = []
    for dotted in (*rules.TYPES, *rules.WRAPPERS, *rules.NOT_AN_ERRNO, *rules.NOT_A_STATUS):
        module, _, name = dotted.rpartition(".")
        if module.split(".")[0] in sys.stdlib_module_names | {"outlast"}:
            found = getattr(importlib.import_module(module), name, None)
            if found is None or f"{found.__module__}.{found.__qualname__}".lstrip("_") != dotted.lstrip("_"):
                missing.append(dotted)
    assert missing == []


# --- types ------------------------------------------------------------------------------------------------------------


@table(
    ("error", "error_class"),
    [
        (ConnectionError(), "network_error"),
        (ConnectionRefusedError(), "connection_refused"),
        (ConnectionResetError(), "connection_reset"),
        (ConnectionAbortedError(), "connection_reset"),
        (BrokenPipeError(), "connection_reset"),
        (TimeoutError(), "timeout"),
        (AttemptTimeoutError(), "timeout"),
        (TotalTimeoutError(), "timeout"),
        (subprocess.TimeoutExpired("ls", 1), "timeout"),
        (FileNotFoundError(), "missing_input"),
        (NotADirectoryError(), "missing_input"),
        (IsADirectoryError(), "missing_input"),
        (PermissionError(), "permission_denied"),
        (MemoryError(), "resource_exhausted"),
        (BlockingIOError(), "resource_exhausted"),
        (queue.Full(), "resource_exhausted"),
        (asyncio.QueueFull(), "resource_exhausted"),
        (ImportError(), "missing_dependency"),
        (ModuleNotFoundError(), "missing_dependency"),
        (SyntaxError(), "syntax_error"),
        (IndentationError(), "syntax_error"),
        (ValueError(), "data_error"),
        (KeyError(), "data_error"),
        (TypeError(), "data_error"),
        (FileExistsError(), "data_error"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "data_error"),
        (json.JSONDecodeError("x", "y", 0), "data_error"),
        (zlib.error(), "data_error"),
        (struct.error(), "data_error"),
        (csv.Error(), "data_error"),
        (pickle.PickleError(), "data_error"),
        (pickle.UnpicklingError(), "data_error"),
        (decimal.InvalidOperation(), "data_error"),
        (AttributeError(), "code_error"),
        (NameError(), "code_error"),
        (IndexError(), "code_error"),
        (AssertionError(), "code_error"),
        (ZeroDivisionError(), "code_error"),
        (NotImplementedError(), "code_error"),
        (RecursionError(), "code_error"),
        (StopIteration(), "code_error"),
        (asyncio.IncompleteReadError(b"", 5), "connection_reset"),
        (asyncio.InvalidStateError(), "code_error"),
        (asyncio.CancelledError(), "cancelled"),
        (concurrent.futures.CancelledError(), "cancelled"),
        (concurrent.futures.BrokenExecutor(), "worker_lost"),
        (socket.gaierror(-2, "Name or service not known"), "dns_error"),
        (socket.herror(), "dns_error"),
        (ssl.SSLCertVerificationError(1, "bad"), "tls_verify"),
        (ssl.SSLEOFError(8, "eof"), "connection_reset"),
        (ssl.SSLError(1, "handshake"), "network_error"),
        (http.client.RemoteDisconnected(), "connection_reset"),
        (http.client.IncompleteRead(b""), "connection_reset"),
        (http.client.BadStatusLine("x"), "network_error"),
        (http.client.InvalidURL(), "data_error"),
        (urllib.error.URLError("unknown"), "network_error"),
        (sqlite3.IntegrityError(), "data_error"),
        (sqlite3.ProgrammingError(), "code_error"),
        (sqlite3.OperationalError(), "database_error"),
        (ConfigurationError("x"), "data_error"),
        (Exception(), "unknown"),
        (RuntimeError(), "unknown"),
        (OSError(), "unknown"),
        (VendorError(), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_type(error, error_class):
    """S0-27, S2-05, S2-06, C-07, C-08: by type, along the MRO."""
    check(error, error_class)


@table(
    ("base", "error_class"),
    [
        (ConnectionResetError, "connection_reset"),
        (ConnectionError, "network_error"),
        (json.JSONDecodeError, "data_error"),
        (TimeoutError, "timeout"),
        (PermissionError, "permission_denied"),
    ],
)
def test_subclasses_are_what_their_nearest_known_ancestor_is(base, error_class):
    """S4-05, C-08: the most specific ancestor that is listed wins."""
    args = ("x", "y", 0) if base is json.JSONDecodeError else ()
    check(type("Child", (type("Parent", (base,), {}),), {})(*args), error_class)


@table(
    ("module", "name", "error_class"),
    [
        ("requests.exceptions", "Timeout", "timeout"),
        ("requests.exceptions", "ReadTimeout", "timeout"),
        ("requests.exceptions", "ConnectionError", "network_error"),
        ("requests.exceptions", "ChunkedEncodingError", "connection_reset"),
        ("requests.exceptions", "InvalidURL", "data_error"),
        ("urllib3.exceptions", "ReadTimeoutError", "timeout"),
        ("urllib3.exceptions", "MaxRetryError", "network_error"),
        ("urllib3.exceptions", "NameResolutionError", "dns_error"),
        ("httpx", "ConnectError", "network_error"),
        ("httpx", "TimeoutException", "timeout"),
        ("httpx", "RemoteProtocolError", "connection_reset"),
        ("aiohttp.client_exceptions", "ServerDisconnectedError", "connection_reset"),
        ("aiohttp.client_exceptions", "ClientConnectorDNSError", "dns_error"),
        ("aiohttp.client_exceptions", "ClientConnectorCertificateError", "tls_verify"),
        ("psycopg", "OperationalError", "database_connection"),
        ("psycopg", "IntegrityError", "data_error"),
        ("psycopg", "ProgrammingError", "syntax_error"),
        ("psycopg2", "OperationalError", "database_connection"),
        ("psycopg2", "InterfaceError", "database_connection"),
        ("psycopg2", "IntegrityError", "data_error"),
    ],
)
def test_types_of_libraries_are_known_by_name(module, name, error_class):
    """S2-01, S2-02, S2-05, C-08: by module and class name; the library itself is not needed."""
    cls = library(module, name)
    check(cls(), error_class)
    check(type("Subclass", (cls,), {})(), error_class)
    check(f"{module}.{name}", error_class)


@table(
    ("public", "canonical", "error_class"),
    [
        ("requests.Timeout", "requests.exceptions.Timeout", "timeout"),
        ("requests.ConnectionError", "requests.exceptions.ConnectionError", "network_error"),
        ("aiohttp.ServerDisconnectedError", "aiohttp.client_exceptions.ServerDisconnectedError", "connection_reset"),
        ("asyncio.TimeoutError", "builtins.TimeoutError", "timeout"),
        ("concurrent.futures.TimeoutError", "TimeoutError", "timeout"),
        ("socket.timeout", "TimeoutError", "timeout"),
        ("IOError", "OSError", "unknown"),
        ("ssl.CertificateError", "ssl.SSLCertVerificationError", "tls_verify"),
        ("asyncio.IncompleteReadError", "asyncio.exceptions.IncompleteReadError", "connection_reset"),
        ("json.JSONDecodeError", "json.decoder.JSONDecodeError", "data_error"),
        ("csv.Error", "_csv.Error", "data_error"),
        ("outlast.TemporaryFailure", "outlast.errors.TemporaryFailure", "temporary_failure"),
        ("TemporaryFailure", "outlast.errors.TemporaryFailure", "temporary_failure"),
    ],
)
def test_a_public_name_is_the_same_as_the_canonical_one(public, canonical, error_class):
    """S2-02, C-08: a whitelist with requests.Timeout in it is not dead."""
    assert classify(public).error_class == classify(canonical).error_class == error_class


def test_nothing_is_imported_to_recognise_anything():
    """C-08: classifying, matching and registering by name leave sys.modules alone."""
    story = """
import sys
sys.path[:] = PATH
import outlast
from outlast import RetryPolicy, classify, register
Timeout = type("Timeout", (Exception,), {"__module__": "requests.exceptions"})
policy = RetryPolicy(on_errors=["requests.Timeout", "httpx.TransportError", "some.library.Error"])
assert classify("requests.Timeout").error_class == classify(Timeout()).error_class == "timeout"
assert classify("psycopg.errors.DeadlockDetected").error_class == "unknown"
register("some.library.Error", "rate_limited")
assert classify("some.library.Error").error_class == "rate_limited"
assert policy.decide(Timeout(), attempt=1).retry
found = {"requests", "urllib3", "httpx", "httpcore", "aiohttp", "anyio", "psycopg", "psycopg2", "sqlite3", "ssl", "asyncio", "some"}
assert not found & set(sys.modules), found & set(sys.modules)
""".replace("PATH", repr(sys.path))
    done = subprocess.run([sys.executable, "-I", "-c", story], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- errno --------------------------------------------------------------------------------------------------------------


@table(
    ("symbol", "error_class"),
    [
        ("ECONNREFUSED", "connection_refused"),
        ("ECONNRESET", "connection_reset"),
        ("ECONNABORTED", "connection_reset"),
        ("EPIPE", "connection_reset"),
        ("ETIMEDOUT", "timeout"),
        ("EHOSTUNREACH", "network_error"),
        ("ENETUNREACH", "network_error"),
        ("EAGAIN", "resource_exhausted"),
        ("EMFILE", "resource_exhausted"),
        ("ENOSPC", "resource_exhausted"),
        ("EADDRINUSE", "resource_exhausted"),
        ("ENOENT", "missing_input"),
        ("EISDIR", "missing_input"),
        ("EACCES", "permission_denied"),
        ("EPERM", "permission_denied"),
        ("EROFS", "permission_denied"),
        ("EEXIST", "data_error"),
        ("ENAMETOOLONG", "data_error"),
        ("EBADF", "code_error"),
    ],
)
def test_errno(symbol, error_class):
    """C-07: OSError by number, whatever subclass Python makes of it (S3-38)."""
    number = getattr(errno, symbol)
    check(OSError(number, os.strerror(number)), error_class)
    check(type("Vendor", (OSError,), {})(number, "x"), error_class)


def test_an_errno_says_more_than_the_type():
    """D-2: the number is a fact; a generic type is not."""
    check(OSError(errno.ECONNREFUSED, "x"), "connection_refused")
    check(ConnectionError(errno.ETIMEDOUT, "x"), "timeout")
    check(OSError(123456, "no such number"), "unknown")


def test_numbers_that_only_look_like_errnos():
    """D-2: the errno of a resolver error is the resolver's own, that of a TLS error the library's."""
    assert errno.errorcode[errno.ENOENT] == "ENOENT"
    check(socket.gaierror(errno.ENOENT, "x"), "dns_error")
    check(ssl.SSLError(errno.EPERM, "x"), "network_error")


# --- SQLSTATE and SQLite ----------------------------------------------------------------------------------------------------


@table(
    ("sqlstate", "error_class"),
    [
        ("08000", "database_connection"),
        ("08001", "database_connection"),
        ("08006", "database_connection"),
        ("08P01", "code_error"),
        ("0A000", "syntax_error"),
        ("22001", "data_error"),
        ("22P02", "data_error"),
        ("23502", "data_error"),
        ("23505", "data_error"),
        ("25P02", "code_error"),
        ("25P03", "timeout"),
        ("28P01", "auth_error"),
        ("28000", "auth_error"),
        ("3D000", "missing_input"),
        ("40001", "database_error"),
        ("40P01", "database_error"),
        ("40002", "data_error"),
        ("42601", "syntax_error"),
        ("42P01", "syntax_error"),
        ("42501", "permission_denied"),
        ("53000", "database_error"),
        ("53300", "database_error"),
        ("55P03", "database_error"),
        ("57014", "timeout"),
        ("57P01", "database_connection"),
        ("57P02", "database_connection"),
        ("57P03", "database_connection"),
        ("58030", "database_error"),
        ("P0001", "data_error"),
        ("XX000", "unknown"),
        ("99999", "unknown"),
    ],
)
@table("attribute", ["sqlstate", "pgcode"])
def test_sqlstate(sqlstate, error_class, attribute):
    """S1-09, S2-01, C-07, D-3: the whole state first, then its class, on psycopg 3 and 2 alike."""
    check(library("psycopg.errors", "Any", **{attribute: sqlstate})(), error_class)


def test_a_sqlstate_says_more_than_the_type():
    """D-2: an OperationalError with the state of a wrong password is no connection problem."""
    operational = library("psycopg2", "OperationalError")
    assert classify(operational()).error_class == "database_connection"
    check(type("Refused", (operational,), {"pgcode": "28P01"})(), "auth_error")
    check(type("NoState", (operational,), {"pgcode": None})(), "database_connection")


@table(
    ("sqlstate", "undone"),
    [
        ("40000", True),
        ("40001", True),
        ("40002", True),
        ("40P01", True),
        ("40003", False),
        ("40XXX", False),
        ("08007", False),
    ],
)
@table("attribute", ["sqlstate", "pgcode"])
def test_a_transaction_is_undone_where_the_database_says_so(sqlstate, undone, attribute):
    """40003 says that nobody knows whether the statement was done."""
    error = library("psycopg.errors", "Any", **{attribute: sqlstate})()
    assert surely_undone(error, classify(error)) == undone


@table("state", [None, "", "4000", "400011", 40001, b"40001"])
def test_what_is_no_sqlstate_is_ignored(state):
    """D-2: five characters of text, or it says nothing."""
    check(library("psycopg", "OperationalError", sqlstate=state)(), "database_connection")


@table(
    ("code", "error_class"),
    [
        (5, "database_connection"),  # busy
        (6, "database_connection"),  # locked
        (5 | 2 << 8, "database_connection"),  # busy snapshot: the low byte decides
        (1, "syntax_error"),
        (8, "permission_denied"),
        (11, "data_error"),
        (13, "resource_exhausted"),
        (14, "missing_input"),
        (19, "data_error"),
        (19 | 8 << 8, "data_error"),  # unique constraint
        (21, "code_error"),
    ],
)
def test_sqlite_code(code, error_class):
    """D-3: the primary result code; busy and locked are a connection that will come."""
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    check(error, error_class)


# --- statuses -----------------------------------------------------------------------------------------------------------

STATUS_CLASSES = {
    400: "client_error",
    401: "auth_error",
    402: "quota_exhausted",
    403: "permission_denied",
    404: "client_error",
    407: "auth_error",
    408: "client_error",
    409: "client_error",
    418: "client_error",
    422: "client_error",
    429: "rate_limited",
    499: "client_error",
    500: "server_error",
    501: "server_error_other",
    502: "server_error",
    503: "unavailable",
    504: "server_error",
    505: "server_error_other",
    529: "server_error_other",
    599: "server_error_other",
}


@table(("status", "error_class"), STATUS_CLASSES.items())
def test_status(status, error_class):
    """S1-08, S1-14, S2-03, S2-04, S2-08, C-10: as a number, as text, or on the exception."""
    for form in (status, str(status), HttpError(status)):
        check(form, error_class)
        assert classify(form).status == status


@pytest.mark.parametrize("attribute", ["status", "status_code"])
def test_a_status_is_found_where_clients_put_it(attribute):
    """C-08: on the exception as status or status_code, or on its response."""
    check(library("some.client", "ApiError", **{attribute: 503})(), "unavailable")
    response = SimpleNamespace(**{attribute: 503}, headers={})
    check(library("some.client", "ApiError", response=response)(), "unavailable")


def test_a_code_is_a_status_only_where_there_was_an_answer():
    """D-29: with a response or headers beside it, or in a library that is known for it; elsewhere it is any number."""
    check(library("os_brick.exception", "VolumeDeviceNotFound", code=500)(), "unknown")
    check(library("some.tool", "Exit", ConnectionResetError, code=404)(), "connection_reset")
    by_hand = library("some.client", "ApiError")()
    by_hand.code = 503
    check(by_hand, "unknown")
    for beside in ({"headers": {}}, {"response": SimpleNamespace()}):
        check(library("some.client", "ApiError", code=503, **beside)(), "unavailable")
    for module, name in (
        ("google.api_core.exceptions", "GoogleAPICallError"),
        ("tornado.httpclient", "HTTPClientError"),
        ("werkzeug.exceptions", "HTTPException"),
        ("aiohttp.client_exceptions", "ClientResponseError"),
    ):
        known = library(module, name)
        check(type("Unavailable", (known,), {"code": 503, "__module__": "mine"})(), "unavailable")
    check(urllib.error.HTTPError("http://x", 503, "down", None, None), "unavailable")


def test_a_status_says_more_than_the_type_and_the_code():
    """S2-08, C-08, D-2: a 404 wrapped in a generic network error is permanent."""
    check(library("requests.exceptions", "ConnectionError", status_code=404)(), "client_error")
    check(type("E", (TimeoutError,), {"status": 403})(), "permission_denied")
    check(type("E", (Exception,), {"status": 503, "sqlstate": "23505"})(), "unavailable")


@table("status", [True, "503", 503.0, None, 0, 99, 200, 302, 399, 600, 1001, -503])
def test_what_is_no_error_status_is_ignored(status):
    """D-2: an integer from 400 to 599, or it says nothing about the failure."""
    check(library("some.client", "ApiError", ConnectionResetError, status_code=status)(), "connection_reset")


@table("status", [99, 600, 0, -1, 10**9])
def test_asking_about_a_number_that_is_no_status(status):
    """A mistake of the asker, and it says so (S2-08)."""
    with pytest.raises(ConfigurationError, match=rf"expected an HTTP status from 100 to 599, got: {status}"):
        classify(status)


def test_a_status_that_is_no_error():
    """C-10: 200 is nobody's failure."""
    assert (classify(200).error_class, classify(200).status) == ("unknown", 200)
    assert "not an error" in classify(304).why


# --- asking by name -------------------------------------------------------------------------------------------------------


@table("name", MEANING)
def test_an_error_class_can_be_asked_for(name):
    """C-07: what does this word mean?"""
    check(name, name)


def test_a_dotted_name_that_no_rule_knows():
    """C-09: unknown, and why."""
    check("some.library.Error", "unknown")
    assert classify("some.library.Error").why == "no rule knows some.library.Error"


@pytest.mark.parametrize(
    ("name", "meant"), [("timout", "timeout"), ("netwrk_error", "network_error"), ("TimeoutEror", "TimeoutError")]
)
def test_a_name_that_nothing_has(name, meant):
    """The nearest right one is offered (S0-29)."""
    with pytest.raises(ConfigurationError) as caught:
        classify(name)
    (problem,) = caught.value.problems
    assert f"got: {name!r}" in problem
    assert f"Did you mean {meant!r}?" in problem


# --- markers and registrations --------------------------------------------------------------------------------------------


@table(
    ("error", "expected"),
    [
        (TemporaryFailure(), ("temporary_failure", "transient", "unknown", None)),
        (TemporaryFailure(error_class="rate_limited"), ("rate_limited", "transient", "http_429_503", None)),
        (TemporaryFailure(retry_after=7), ("temporary_failure", "transient", "unknown", 7.0)),
        (TemporaryFailure(retry_after=-7), ("temporary_failure", "transient", "unknown", 0.0)),
        (TemporaryFailure(error_class="data_error"), ("data_error", "transient", "data", None)),
        (PermanentFailure(), ("permanent_failure", "permanent", "data", None)),
        (PermanentFailure(error_class="timeout"), ("timeout", "permanent", "network", None)),
        (PermanentFailure(error_class="my_own_word"), ("my_own_word", "permanent", "unknown", None)),
    ],
)
def test_the_callers_own_word(error, expected):
    """C-08, D-2: what the code says about itself is believed first (S4-02)."""
    verdict = classify(error)
    assert (verdict.error_class, verdict.category, verdict.tier, verdict.retry_after) == expected


def test_a_marker_is_believed_before_a_status_and_a_cause():
    """D-2: whoever raises it knows better."""
    check(caused_by(ValueError(), TemporaryFailure()), "temporary_failure")
    check(caused_by(TimeoutError(), PermanentFailure()), "permanent_failure")
    check(type("E", (TemporaryFailure,), {"status_code": 404})(), "temporary_failure")
    check(type("E", (PermanentFailure, TimeoutError), {})(), "permanent_failure")


@pytest.fixture
def registrations():
    """Whatever a test registers is forgotten afterwards."""
    own = dict(verdicts._own)
    yield
    verdicts._own.clear()
    verdicts._own.update(own)
    verdicts.plans.clear()


@pytest.mark.usefixtures("registrations")
class TestRegister:
    def test_a_class_and_what_derives_from_it(self):
        """C-08, U-05: a rule of one's own, for subclasses too."""
        assert classify(VendorError()).error_class == "unknown"
        register(VendorError, "rate_limited")
        check(VendorError(), "rate_limited")
        check(type("Child", (VendorError,), {})(), "rate_limited")
        assert "registered" in classify(VendorError()).why

    def test_a_dotted_name(self):
        """C-08: before the library is loaded, or without it; the public name will do."""
        register("some.library.Error", "auth_error")
        check(library("some.library", "Error")(), "auth_error")
        check("some.library.Error", "auth_error")
        register("requests.Timeout", "data_error")
        check(library("requests.exceptions", "Timeout")(), "data_error")

    def test_it_is_believed_before_a_status_or_a_code(self):
        """D-2: the caller's own word comes first."""
        register(HttpError, "validation_error")
        check(HttpError(503), "validation_error")
        register(OSError, "worker_lost")
        check(OSError(errno.ECONNREFUSED, "x"), "worker_lost")

    def test_it_replaces_a_rule_of_the_house(self):
        """C-08: also what the tables know."""
        register(ValueError, "temporary_failure")
        check(ValueError(), "temporary_failure")
        check(json.JSONDecodeError("x", "y", 0), "temporary_failure")

    def test_the_nearest_registration_wins(self):
        """C-08: most specific first; the last word on one class is the one that counts."""
        register(Exception, "validation_error")
        register(VendorError, "timeout")
        check(type("Child", (VendorError,), {})(), "timeout")
        check(RuntimeError(), "validation_error")
        register(VendorError, "dns_error")
        check(VendorError(), "dns_error")

    def test_it_keeps_the_hint(self):
        """D-6: a registered error may still say when."""
        register(HttpError, "rate_limited")
        assert classify(HttpError(503, {"Retry-After": "7"})).retry_after == 7.0

    def test_policies_obey_it(self):
        """D-1, C-08: decided the same moment."""
        policy = RetryPolicy()
        assert policy.decide(VendorError(), attempt=1).reason == "unclear"
        register(VendorError, "rate_limited")
        assert policy.decide(VendorError(), attempt=1).retry
        register(VendorError, "data_error")
        assert policy.decide(VendorError(), attempt=1).reason == "permanent"

    @table(
        ("error", "error_class", "words"),
        [
            (VendorError, "rate_limitd", ["error_class", "'rate_limitd'", "'rate_limited'"]),
            (VendorError, "", ["error_class", "''"]),
            (KeyboardInterrupt, "timeout", ["Exception", "KeyboardInterrupt"]),
            (asyncio.CancelledError, "timeout", ["Exception", "CancelledError"]),
            (int, "timeout", ["Exception", "int"]),
        ],
    )
    def test_a_wrong_registration(self, error, error_class, words):
        """Says what was expected, what came and the nearest right name, and changes nothing (S0-29)."""
        before = dict(verdicts._own)
        with pytest.raises(ConfigurationError) as caught:
            register(error, error_class)
        (problem,) = caught.value.problems
        assert [word for word in words if word not in problem] == []
        assert verdicts._own == before


# --- causes -------------------------------------------------------------------------------------------------------------


def raised(story) -> Exception:
    try:
        story()
    except Exception as error:  # noqa: BLE001 - whatever the story ends in
        return error
    raise AssertionError("nothing was raised")


def wrap_from() -> None:
    try:
        raise ConnectionResetError
    except ConnectionResetError as error:
        raise VendorError from error


def wrap_implicitly() -> None:
    try:
        raise ConnectionResetError
    except ConnectionResetError:
        raise VendorError  # noqa: B904 - the context is the point


def wrap_and_suppress() -> None:
    try:
        raise ConnectionResetError
    except ConnectionResetError:
        raise VendorError from None


def test_an_unknown_error_is_what_it_was_caused_by():
    """C-08, D-2, S2-16: __cause__ and an unsuppressed __context__ are looked at; a suppressed one is not."""
    check(raised(wrap_from), "connection_reset")
    check(raised(wrap_implicitly), "connection_reset")
    check(raised(wrap_and_suppress), "unknown")
    assert classify(raised(wrap_from)).why.endswith("was caused by: it is a ConnectionResetError")


def test_the_cause_is_asked_before_the_context():
    """D-2: what was said explicitly counts."""
    error = caused_by(TimeoutError())
    error.__context__ = ValueError()
    check(error, "timeout")


def test_a_known_error_is_not_overruled_by_its_cause():
    """D-2: a ValueError raised because of a timeout is a ValueError; a status too stands by itself."""
    check(caused_by(TimeoutError(), ValueError()), "data_error")
    check(caused_by(TimeoutError(), HttpError(404)), "client_error")


def test_a_wrapper_is_sharpened_by_what_it_wraps():
    """C-08: a client's ConnectionError around a refused connection is connection_refused."""
    for module, name in (("requests.exceptions", "ConnectionError"), ("httpx", "ConnectError")):
        check(caused_by(ConnectionRefusedError(), library(module, name)()), "connection_refused")
        check(caused_by(ssl.SSLCertVerificationError(1, "x"), library(module, name)()), "tls_verify")
        check(caused_by(ValueError(), library(module, name)()), "network_error")
    check(urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "x")), "connection_refused")
    check(library("requests.exceptions", "ConnectionError")(TimeoutError()), "timeout")


def test_a_hint_behind_the_error_is_kept():
    """D-6, D-2: the wait that was asked for survives being wrapped."""
    assert classify(caused_by(HttpError(429, {"Retry-After": "9"}))).retry_after == 9.0


def test_cyclic_chains_end():
    """D-2: a chain that bites its tail is walked once."""
    one, two, three = VendorError(1), VendorError(2), VendorError(3)
    one.__cause__, two.__cause__, three.__cause__ = two, three, one
    check(one, "unknown")
    two.__context__ = TimeoutError()
    alone = VendorError()
    alone.__cause__ = alone
    check(alone, "unknown")
    reset = ConnectionResetError()
    wrapped = caused_by(reset)
    reset.__cause__ = wrapped
    check(wrapped, "connection_reset")


def chain(length: int, last: BaseException) -> BaseException:
    error = last
    for _ in range(length):
        error = caused_by(error)
    return error


def test_long_chains_are_walked_as_far_as_real_ones_go():
    """D-2: bounded; ten links are seen, a hundred thousand cost nothing and hurt nobody."""
    check(chain(10, TimeoutError()), "timeout")
    check(chain(100_000, TimeoutError()), "unknown")


def test_exceptions_hidden_in_arguments_may_be_cyclic_too():
    """D-2: every place that is looked at is guarded."""
    error = VendorError()
    error.args = (error, error)
    error.reason = error
    check(error, "unknown")


def test_an_exception_with_hostile_attributes_is_classified_all_the_same():
    """D-2: somebody else's property may raise whatever it likes."""

    class Hostile(ConnectionResetError):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

        @property
        def status_code(self) -> int:
            raise RuntimeError("no")

        @property
        def response(self) -> object:
            raise ValueError("no")

        @property
        def retry_after(self) -> float:
            raise KeyError("no")

    check(Hostile(), "connection_reset")


def test_messages_are_not_searched():
    """C-08: what an error says is for people."""
    check(VendorError("connection timeout 503 rate limit"), "unknown")


# --- groups ---------------------------------------------------------------------------------------------------------------


@table(
    ("leaves", "error_class"),
    [
        ([TimeoutError()], "timeout"),
        ([TimeoutError(), ValueError()], "data_error"),
        ([TimeoutError(), VendorError()], "unknown"),
        ([VendorError(), HttpError(404), TimeoutError()], "client_error"),
        ([ExceptionGroup("inner", [TimeoutError(), ExceptionGroup("deep", [KeyError()])])], "data_error"),
    ],
)
def test_a_group_is_as_bad_as_its_worst_leaf(leaves, error_class):
    """D-2: permanent before unclear before transient."""
    check(ExceptionGroup("several", leaves), error_class)


def test_a_group_keeps_the_longest_hint_and_any_fatality():
    """D-6, D-3: waiting for the longest suffices for all; one fatal leaf is fatal."""
    group = ExceptionGroup("several", [HttpError(429, {"Retry-After": "3"}), HttpError(503, {"Retry-After": "8"})])
    assert classify(group).retry_after == 8.0
    verdict = classify(ExceptionGroup("several", [ValueError(), HttpError(401)]))
    assert (verdict.category, verdict.fatal) == ("permanent", True)


def test_a_deeply_nested_group_ends():
    """D-2: bounded like chains."""
    group = ExceptionGroup("leaf", [TimeoutError()])
    for _ in range(500):
        group = ExceptionGroup("more", [group])
    check(group, "unknown")


def test_a_group_behind_an_error_counts():
    """D-2: a cause may be a group."""
    check(caused_by(ExceptionGroup("several", [TimeoutError(), ConnectionResetError()])), "timeout")


# --- Retry-After ----------------------------------------------------------------------------------------------------------


def hint(value: object, name: str = "Retry-After") -> float | None:
    return classify(HttpError(429, {name: value})).retry_after


@table(
    ("value", "seconds"),
    [
        ("10", 10.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("  7 ", 7.0),
        ("\t7\r\n", 7.0),
        ("+7", 7.0),
        ("-5", 0.0),
        ("-0.1", 0.0),
        (10, 10.0),
        (1.5, 1.5),
        (-3, 0.0),
        (b"10", 10.0),
        (b" 2.5 ", 2.5),
        (timedelta(seconds=90), 90.0),
        (timedelta(seconds=-90), 0.0),
        ("1e2", 100.0),
    ],
)
def test_retry_after_in_seconds(value, seconds):
    """D-6, C-10: integer, float, padded, negative (0), bytes, timedelta."""
    assert hint(value) == seconds


FAR = "Thu, 01 Jan 2099 00:00:00 GMT"


@table("value", ["99999999999", "9" * 400, "1e300", "1e400", 10**30, 1e300, FAR, timedelta.max])
def test_a_huge_retry_after_is_cut_by_the_policy(value):
    """D-6: huge is not garbage: it was asked for, and max_retry_after says how much of it is granted."""
    error = HttpError(429, {"Retry-After": value})
    assert (classify(error).retry_after, RetryPolicy(jitter=0).decide(error, attempt=1).delay) == (31_536_000.0, 121.0)


FORMS = {
    "rfc 1123": lambda at: email.utils.format_datetime(at.astimezone(UTC), usegmt=True),
    "with a zone": lambda at: email.utils.format_datetime(at.astimezone(timezone(timedelta(hours=2)))),
    "west of it": lambda at: email.utils.format_datetime(at.astimezone(timezone(timedelta(hours=-8)))),
    "without a zone": lambda at: at.strftime("%a, %d %b %Y %H:%M:%S"),
    "unknown zone": lambda at: at.strftime("%a, %d %b %Y %H:%M:%S -0000"),
    "rfc 850": lambda at: at.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
    "asctime": lambda at: at.strftime("%a %b %d %H:%M:%S %Y"),
    "padded": lambda at: f"  {email.utils.format_datetime(at.astimezone(UTC), usegmt=True)} ",
    "bytes": lambda at: email.utils.format_datetime(at.astimezone(UTC), usegmt=True).encode(),
}


@table("form", FORMS)
def test_retry_after_as_a_date(form):
    """D-6: with or without a zone (then UTC), on the clock of the world the call stands in (S4-30)."""
    with virtual_time() as time:
        at = here.get().clock.now() + timedelta(seconds=90)
        value = FORMS[form](at)
        assert 89.0 <= hint(value) <= 90.0
        time.advance(60)
        assert 29.0 <= hint(value) <= 30.0
        time.advance(60)
        assert hint(value) == 0.0


@table(
    "value",
    [
        "soon",
        "",
        " ",
        "10 s",
        "nan",
        "inf",
        "-inf",
        "Mon, 99 Foo 2026 99:99:99 GMT",
        b"\xff\xfe",
        True,
        object(),
        ["10"],
    ],
    ids=lambda value: repr(value) if isinstance(value, str | bytes | bool) else type(value).__name__,
)
def test_garbage_is_ignored_with_one_line_in_the_log(value, caplog):
    """D-6: neither seconds nor a date: the backoff alone decides, and somebody can find out why."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "outlast"):
        assert hint(value) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "Retry-After" in record.getMessage()


def test_garbage_never_shows_itself_in_the_log(caplog):
    """D-6: a header is the other side's text (S0-41)."""
    with caplog.at_level(logging.DEBUG, "outlast"):
        hint("password=hunter2")
    assert "hunter2" not in caplog.text


def test_milliseconds():
    """D-6: retry-after-ms says it more precisely, and is asked first."""
    assert hint("1500", "retry-after-ms") == 1.5
    assert classify(HttpError(429, {"retry-after-ms": "250", "Retry-After": "9"})).retry_after == 0.25


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_the_header_is_found_in_its_usual_spellings(name):
    """D-6: also in a plain dict."""
    assert hint("5", name) == 5.0


def test_the_hint_is_found_where_clients_put_it():
    """D-6: on the response, on the exception's own headers, or as its attribute, which counts most."""
    assert classify(library("c", "E", status=429, headers={"Retry-After": "5"})()).retry_after == 5.0
    assert classify(library("c", "E", status=429, retry_after=6)()).retry_after == 6.0
    both = library("c", "E", status=429, retry_after="7", headers={"Retry-After": "5"})
    assert classify(both()).retry_after == 7.0


@table("headers", [None, 5, "Retry-After: 5", [("Retry-After", "5")], object()])
def test_headers_can_be_anything(headers):
    """D-6: what is no mapping is no hint, and no failure."""
    assert classify(library("c", "E", status=429, headers=headers)()).retry_after is None


def test_a_hint_counts_with_every_status_that_is_retried():
    """C-10, D-6: 429 and 503, and any other that sends one."""
    hints = {status: classify(HttpError(status, {"Retry-After": "5"})).retry_after for status in (429, 503, 500, 504)}
    assert hints == {429: 5.0, 503: 5.0, 500: 5.0, 504: 5.0}


# --- the value ------------------------------------------------------------------------------------------------------------


@table(
    ("error", "why"),
    [
        (TimeoutError(), "it is a TimeoutError"),
        (json.JSONDecodeError("x", "y", 0), "json.JSONDecodeError is a ValueError"),
        (OSError(errno.ENOSPC, "x"), "errno ENOSPC"),
        (HttpError(503), "HTTP status 503"),
        (library("psycopg", "Error", sqlstate="40001")(), "SQLSTATE 40001"),
        (TemporaryFailure(), "outlast.TemporaryFailure says so"),
    ],
)
def test_why_names_the_fact_that_decided(error, why):
    """A person reads it in notes and in `outlast classify` (S0-35)."""
    assert classify(error).why == why


def test_a_verdict_is_a_value():
    """Equal, hashable, picklable, frozen (S0-32)."""
    one, two = classify(HttpError(503)), classify(HttpError(503))
    assert one == two == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(two)
    with pytest.raises(AttributeError):
        one.category = "permanent"


def test_classifying_changes_nothing_about_the_error():
    """D-2: asking leaves no trace."""
    error = caused_by(HttpError(503, {"Retry-After": "5"}))
    before = (dict(error.__dict__), error.__cause__, error.__context__, error.__traceback__)
    classify(error)
    assert (dict(error.__dict__), error.__cause__, error.__context__, error.__traceback__) == before


def test_control_flow_has_a_verdict_but_is_never_caught():
    """C-08: one may ask about an interrupt; the answer is not transient."""
    for interruption in (KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError()):
        assert outlast.classify(interruption).category != "transient"


# --- codes of libraries -----------------------------------------------------------------------------------------------


def carrier(name: str, **attributes: object) -> Exception:
    """An error that is called as a library's, which is all that rules go by, with these attributes."""
    module, _, short = name.rpartition(".")
    error = type(short, (Exception,), {"__module__": module})("as asked")
    vars(error).update(attributes)
    return error


class Raising:
    """Attributes and conversions of somebody else may raise whatever they like."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __call__(self) -> object:
        raise RuntimeError("call")


@table("name", [name for name, family in rules.CARRIERS.items() if family != "original"])
@table("junk", [None, 10**30, "no such code", [], {}, object(), Raising()], ids=lambda junk: type(junk).__name__)
def test_a_code_that_makes_no_sense_is_passed_over(name, junk):
    """C-08: whatever stands where a code should be, there is a verdict."""
    error = carrier(name, code=junk, type=junk, body={"error": junk}, response={"Error": {"Code": junk}})
    error.args = (junk,)
    assert outlast.classify(error).error_class == "unknown"


@pytest.mark.parametrize("original", [None, "text", ValueError("wrong")])
def test_an_original_is_believed_if_it_is_an_error(original):
    """C-08: SQLAlchemy's `orig`."""
    error = carrier("sqlalchemy.exc.StatementError", orig=original)
    expected = "data_error" if isinstance(original, ValueError) else "unknown"
    assert outlast.classify(error).error_class == expected


def test_errors_that_are_each_others_original_end():
    """C-08: the walk is bounded and cycle-safe."""
    one, two = (carrier("sqlalchemy.exc.StatementError") for _ in range(2))
    one.orig, two.orig = two, one
    assert outlast.classify(one).error_class == "unknown"


def test_a_code_of_a_library_is_believed_before_the_status():
    """D-2: AWS throttles with a 400."""
    answer = {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}}}
    verdict = outlast.classify(carrier("botocore.exceptions.ClientError", response=answer))
    assert (verdict.error_class, verdict.status, verdict.why) == ("rate_limited", 400, "AWS code ThrottlingException")
