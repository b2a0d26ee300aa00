"""Where errors go: what a manifest says is what the policy decides, of every error class, status and builtin exception."""

from __future__ import annotations

import builtins
import errno
import json
import socket
import sqlite3

import httpx
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from outlast.components.registry import find_component as find
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.policy import RetryPolicy
from outlast.spec import plan
from outlast.spec.compile import compile_text
from outlast.spec.rules import check
from outlast.verdicts import CATEGORIES, ERROR_CLASSES, TIERS, classify, surely_undone
from tables import table

BUILTIN = [
    one
    for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, Exception) and not issubclass(one, ExceptionGroup)
]
SYMBOLS = {"ECONNRESET": "ConnectionResetError", "ENOENT": "FileNotFoundError", "ETIMEDOUT": "TimeoutError"}
ENTRIES = st.lists(
    st.sampled_from([*CATEGORIES, *sorted(set(ERROR_CLASSES) - {"circuit_open"}), *sorted(TIERS)])
    | st.integers(400, 599)
    | st.sampled_from(["4xx", "5xx", 429, 503, 500, 505, 404])
    | st.sampled_from([one.__name__ for one in BUILTIN])
    | st.sampled_from(["OSError", "ConnectionError", "TimeoutError", "LookupError", "builtins.ValueError", *SYMBOLS])
    | st.sampled_from(
        ["httpx.HTTPError", "httpx.TransportError", "httpx.ConnectTimeout", "sqlite3.Error", "socket.gaierror"]
    ),
    max_size=4,
    unique_by=str,
)


class Answered(Exception):
    """What a service has answered with."""

    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.status_code = status


class Odd(Exception):
    """Of which no rule knows."""


class Refused(KeyError):
    """Of a library: a builtin exception by its type, and of another class than those are."""

    status_code = 503
    retry_after = 1.0


def of_class(name: str) -> Exception | None:
    """An error of this class and of its category; None where no exception says so by itself."""
    category = ERROR_CLASSES[name].category
    if category == "unclear":
        return {"unknown": Odd("what is it"), "server_error_other": Answered(599)}.get(name)
    return (TemporaryFailure if category == "transient" else PermanentFailure)("no", error_class=name)


def errors():
    yield from filter(None, map(of_class, sorted(set(ERROR_CLASSES) - {"circuit_open"})))
    yield from map(Answered, range(400, 600))
    yield from (one.__new__(one) for one in BUILTIN)
    yield OSError(errno.ECONNRESET, "gone")
    # Of packages, under names that stand for errors of many classes; some prove that nothing was done.
    request = httpx.Request("GET", "https://shop.example/")
    yield from (
        httpx.HTTPStatusError("no", request=request, response=httpx.Response(one)) for one in (404, 429, 500, 503)
    )
    yield from (
        one("no") for one in (httpx.ConnectTimeout, httpx.ReadTimeout, httpx.ReadError, httpx.UnsupportedProtocol)
    )
    yield from (
        sqlite3.OperationalError("locked"),
        sqlite3.IntegrityError("twice"),
        socket.gaierror(-2, "who"),
        Refused(),
    )


ERRORS = [(one, classify(one)) for one in errors()]


def test_every_class_has_an_error():
    """So that none is left out below (S0-08)."""
    assert {verdict.error_class for _, verdict in ERRORS} == set(ERROR_CLASSES) - {"circuit_open"}
    assert {verdict.status for _, verdict in ERRORS} >= set(range(400, 600))


def routed(said, error: Exception, verdict, *, once: bool) -> bool:
    """What a manifest says of an error, read as the reference says: skipped, never, listed, its class."""
    names = {name for one in type(error).__mro__ for name in (one.__name__, f"{one.__module__}.{one.__name__}")}
    undone = surely_undone(error, verdict)

    def has(key: str) -> bool:
        return any(
            entry.removeprefix("builtins.") in names
            or SYMBOLS.get(entry) in names
            or (verdict.status is not None and entry in (str(verdict.status), f"{verdict.status // 100}xx"))
            for entry in said.get(key, ())
        )

    if has("skipped") or verdict.error_class in said.get("never", ()):
        return False
    if has("listed"):
        return undone or not once
    if undone and verdict.error_class in said.get("if_undone", ()):
        return True
    goes = said[verdict.category]
    return goes == "retry" if isinstance(goes, str) else verdict.error_class in goes["retry"]


def compiled(retry, idempotent):
    step = {"id": "a", "component": "python", "config": {"call": "a:b"}, "retry": retry}
    step |= {} if idempotent is None else {"idempotent": idempotent}
    found = compile_text(json.dumps({"oml_version": "0.1.0", "name": "n", "steps": [step]}), rules=(check,))
    if found.manifest is None:
        reject()  # what is listed and skipped
    return found


def step_of(retry, idempotent):
    return compiled(retry, idempotent).manifest["a"]


def step_and_codes(retry, idempotent):
    found = compiled(retry, idempotent)
    return found.manifest["a"], {one.code for one in found.mistakes}


@settings(max_examples=150)
@given(
    ENTRIES,
    ENTRIES,
    st.none() | st.dictionaries(st.sampled_from(sorted(TIERS)), st.integers(0, 3), max_size=4),
    st.none() | st.booleans(),
    st.integers(1, 3),
)
def test_errors_go_where_the_policy_sends_them(on, skip, limits, idempotent, attempts):
    """S0-08: by class, by status and by name, with whatever is skipped, limited or not to be done twice."""
    retry = {"max_attempts": attempts, "on_errors": on, "skip_on_errors": skip}
    found = compiled(retry | ({} if limits is None else {"retry_limits": limits}), idempotent)
    step = found.manifest["a"]
    policy = RetryPolicy.from_config(step.policy["retry"])
    said = step.timing["errors"]
    wrong = [
        repr(error)
        for error, verdict in ERRORS
        if routed(said, error, verdict, once=idempotent is False)
        != (policy.decide(error, attempt=1).retry and (idempotent is not False or surely_undone(error, verdict)))
    ]
    assert not wrong, said
    told = {one.code for one in found.mistakes}
    assert "R46" not in told or not any(policy.decide(error, attempt=1).retry for error, _ in ERRORS)


NAMES = {
    "of a package": ("[httpx.HTTPError]", "skip_on_errors: [unknown]"),
    "with limits": ("[httpx.HTTPError]", "retry_limits: {network: 3}"),
    "of the standard library": ("[sqlite3.Error]", "retry_limits: {database: 2}"),
    "of nobody knows what": ("[shop.Closed]", "skip_on_errors: [unclear]"),
    "builtin, and a base class of others": ("[OSError]", "skip_on_errors: [ConnectionError]"),
    "builtin, though skipped by its class": ("[TimeoutError]", "skip_on_errors: [timeout]"),
}


@table("name", NAMES)
def test_what_a_name_may_stand_for_may_be_retried(name):
    """S0-08, D-2: errors of one name are of many classes; only what surely is not retried is said not to be."""
    on, beside = NAMES[name]
    for more in ("", ", idempotent: false"):
        block = f"{{max_attempts: 4, on_errors: {on}, {beside}}}{more}"
        post = f"{{id: a, component: http.caller, config: {{url: 'https://a.example', method: POST}}, retry: {block}}}"
        found = compile_text(f'oml_version: "0.1.0"\nname: n\nsteps:\n  - {post}\n', find=find, rules=(check,))
        timing = found.manifest["a"].timing
        assert timing["errors"]["listed"] == [on.strip("[]")]
        assert on.strip("[]") in plan._retried(timing["errors"])
        codes = {one.code for one in found.mistakes}
        assert "R46" not in codes
        assert ("R18" in codes) == (not more)  # it may come when the work is done


def test_what_surely_is_not_retried_is_said_so():
    """A base class of it is skipped, or every class (S0-08)."""
    for block in (
        {"on_errors": ["shop.Closed", "5xx"], "skip_on_errors": ["Exception"]},
        {"on_errors": ["shop.Closed", 503], "skip_on_errors": ["transient", "unclear", "permanent"]},
        {"on_errors": ["KeyError", 503], "skip_on_errors": ["LookupError", "5xx"]},
    ):
        step, codes = step_and_codes({"max_attempts": 3} | block, None)
        assert "listed" not in step.timing["errors"]
        assert "R46" in codes
        assert plan._retried(step.timing["errors"]).startswith("nothing")


def test_what_must_not_be_done_twice_is_retried_where_the_error_proves_that_it_was_not():
    """The classes of which that may be so are named, and not said to be retried."""
    step, codes = step_and_codes({"on_errors": ["timeout", "connection_refused"]}, idempotent=False)
    errors = step.timing["errors"]
    assert errors["if_undone"] == ["timeout"]
    assert errors["transient"]["retry"] == ["connection_refused"]
    assert "R46" not in codes
    assert plan._retried(errors) == "connection_refused, what surely was not done"
    assert next(plan.error_rows(step.timing))[1] == "what surely was not done, connection_refused"
    assert "if_undone" not in step_of({"on_errors": ["timeout"]}, idempotent=True).timing["errors"]


def test_a_job_tries_again_what_a_name_may_not_cover():
    """D-8: with retry_exhausted: false the most executions are not less because a name is listed, or skipped."""
    covering = {"max_attempts": 3, "retry_exhausted": False, "on_errors": ["transient", "5xx"]}
    assert step_of(covering, None).timing["calls"] == {"run": 3, "job": 3}
    assert step_of(covering | {"skip_on_errors": ["httpx.HTTPError"]}, None).timing["calls"] == {"run": 3, "job": 6}
    assert step_of(covering | {"on_errors": ["shop.Closed"]}, None).timing["calls"] == {"run": 3, "job": 6}


@table(
    ("retry", "rows", "retried"),
    [
        (
            {"on_errors": ["transient", "5xx"], "skip_on_errors": [503]},
            {"transient": ("all others", "503"), "unclear": ("5xx", "all others"), "permanent": ("", "all")},
            "transient, 5xx, but not 503",
        ),
        (
            {"on_errors": [429, "ConnectionError"]},
            {"transient": ("429, ConnectionError", "all others"), "unclear": ("", "all"), "permanent": ("", "all")},
            "429, ConnectionError",
        ),
        (
            {"on_errors": ["5xx"], "skip_on_errors": [503]},
            {"transient": ("5xx", "503, all others"), "unclear": ("5xx", "all others"), "permanent": ("", "all")},
            "5xx, but not 503",
        ),
        (
            {"on_errors": ["timeout", "server_error", 429, "ConnectionError"], "skip_on_errors": [504]},
            {
                "transient": (
                    "429, ConnectionError, other server_error, timeout",
                    (
                        "504, other connection_refused, other connection_reset, database_connection, database_error, "
                        "dns_error, idempotency_conflict, limit_exceeded, other network_error, other rate_limited, "
                        "temporary_failure, unavailable, worker_lost"
                    ),
                ),
                "unclear": ("", "all"),
                "permanent": ("", "all"),
            },
            "server_error, timeout, 429, ConnectionError, but not 504",
        ),
        (
            {"on_errors": ["shop.Closed", "timeout"], "skip_on_errors": ["unclear"]},
            {
                "transient": (
                    "shop.Closed, timeout",
                    (
                        "connection_refused, connection_reset, database_connection, database_error, dns_error, "
                        "idempotency_conflict, limit_exceeded, network_error, rate_limited, server_error, "
                        "temporary_failure, unavailable, worker_lost"
                    ),
                ),
                "unclear": ("", "all"),
                "permanent": ("shop.Closed", "all others"),
            },
            "timeout, shop.Closed",
        ),
        (
            {"on_errors": ["OSError"], "skip_on_errors": ["permanent", "unclear"]},
            {"transient": ("OSError", "all others"), "unclear": ("", "all"), "permanent": ("", "all")},
            "OSError",
        ),
    ],
)
def test_the_table_of_errors_has_what_is_listed_where_it_belongs(retry, rows, retried):
    """A status or a name stands under its category, and what is left of that is called the others (S0-08)."""
    step = step_of(retry, None)
    assert {category: tuple(cells) for category, *cells in plan.error_rows(step.timing)} == rows
    assert plan._retried(step.timing["errors"]) == retried
    told = " ".join(plan.sentences(step.policy, step.timing, step.work))
    assert ("Not retried, whatever else is said: 503." in told) == (503 in retry.get("skip_on_errors", ()))
