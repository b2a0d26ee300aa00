"""
Verdicts on what pymongo really raises.

No MongoDB server can be had here: its licence keeps it out of the distributions, and no wheel brings one. So these are
the errors that need none: a refused port, a silent one, and what the client finds by itself. What a server would answer
is built by the client's own function for it from documents of the shape that servers send.
"""

from __future__ import annotations

import socket
from typing import Any

import pymongo
import pymongo.errors
from pymongo.helpers_shared import _check_command_response

from real.expected import check, raised_by
from tables import table


def pinged(port: int, **options: Any) -> Any:
    settings = {"serverSelectionTimeoutMS": 20, "connectTimeoutMS": 20, "retryReads": False, **options}
    with pymongo.MongoClient("127.0.0.1", port, **settings) as client:
        return client.admin.command("ping")


def test_nobody_listening_is_database_connection(refusing_port: int) -> None:
    """C-07, D-3: ServerSelectionTimeoutError; no server could be found."""
    check(raised_by(lambda: pinged(refusing_port)), "database_connection")


def test_a_server_that_says_nothing_is_database_connection() -> None:
    """C-07, D-3: it took the connection, and that was all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check(raised_by(lambda: pinged(listener.getsockname()[1])), "database_connection")


def test_a_wrong_setting_is_data_error() -> None:
    """C-07: InvalidURI, InvalidName."""
    check(raised_by(lambda: pymongo.MongoClient("mongodb://")), "data_error")
    with pymongo.MongoClient("127.0.0.1", connect=False) as client:
        check(raised_by(lambda: client["with space"]), "data_error")


def test_a_document_that_cannot_be_stored_is_data_error() -> None:
    """C-07: bson.errors.InvalidDocument, before anything is sent."""
    import bson

    check(raised_by(lambda: bson.encode({"key": object()})), "data_error")


def test_a_closed_client_is_code_error() -> None:
    """D-3: pymongo.errors.InvalidOperation."""
    client = pymongo.MongoClient("127.0.0.1", connect=False)
    client.close()
    check(raised_by(lambda: client.admin.command("ping")), "code_error")


ANSWERS = {
    11000: ("DuplicateKey", "data_error"),
    121: ("DocumentValidationFailure", "validation_error"),
    13: ("Unauthorized", "permission_denied"),
    18: ("AuthenticationFailed", "auth_error"),
    50: ("MaxTimeMSExpired", "timeout"),
    59: ("CommandNotFound", "syntax_error"),
    112: ("WriteConflict", "database_error"),
    91: ("ShutdownInProgress", "database_connection"),
    189: ("PrimarySteppedDown", "database_connection"),
    10107: ("NotWritablePrimary", "database_connection"),
    16500: ("RequestRateTooLarge", "rate_limited"),
    429: ("NoSuchCode", "unknown"),
}


@table(("code", "name", "error_class"), [(code, *rest) for code, rest in ANSWERS.items()])
def test_an_answer_of_the_server_is_classified_by_its_code(code: int, name: str, error_class: str) -> None:
    """C-07, D-2: the client's own exception for such an answer; a MongoDB code is never an HTTP status."""
    answer = {"ok": 0, "code": code, "codeName": name, "errmsg": "as asked"}
    check(raised_by(lambda: _check_command_response(answer, 17)), error_class)


def test_a_label_says_that_a_transaction_may_be_tried_again() -> None:
    """C-07: where no rule knows the code."""
    answer = {"ok": 0, "code": 99999, "errmsg": "as asked", "errorLabels": ["TransientTransactionError"]}
    check(raised_by(lambda: _check_command_response(answer, 17)), "database_error")
