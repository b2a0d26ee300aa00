"""What a verdict must say for each error class (C-07, D-3), written down a second time so that the rules can be wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import outlast

if TYPE_CHECKING:
    from collections.abc import Callable


class Meaning(NamedTuple):
    category: str
    tier: str
    fatal: bool = False


MEANING = {
    "network_error": Meaning("transient", "network"),
    "connection_refused": Meaning("transient", "network"),
    "connection_reset": Meaning("transient", "network"),
    "dns_error": Meaning("transient", "network"),
    "timeout": Meaning("transient", "network"),
    "database_error": Meaning("transient", "database"),
    "database_connection": Meaning("transient", "database"),
    "rate_limited": Meaning("transient", "http_429_503"),
    "unavailable": Meaning("transient", "http_429_503"),
    "server_error": Meaning("transient", "http_500_502_504"),
    "server_error_other": Meaning("unclear", "http_5xx_other"),
    "temporary_failure": Meaning("transient", "unknown"),
    "resource_exhausted": Meaning("unclear", "resource"),
    "unknown": Meaning("unclear", "unknown"),
    "worker_lost": Meaning("transient", "worker"),
    "client_error": Meaning("permanent", "http_4xx"),
    "auth_error": Meaning("permanent", "auth", fatal=True),
    "quota_exhausted": Meaning("permanent", "auth", fatal=True),
    "permission_denied": Meaning("permanent", "auth"),
    "tls_verify": Meaning("permanent", "auth"),
    "data_error": Meaning("permanent", "data"),
    "syntax_error": Meaning("permanent", "data"),
    "validation_error": Meaning("permanent", "data"),
    "invalid_output": Meaning("permanent", "data"),
    "missing_input": Meaning("permanent", "data"),
    "code_error": Meaning("permanent", "code"),
    "missing_dependency": Meaning("permanent", "code", fatal=True),
    "cancelled": Meaning("permanent", "code"),
}


def raised_by(action: Callable[[], object]) -> Exception:
    """The exception that the action raises: it must raise one."""
    try:
        result = action()
    except Exception as error:  # noqa: BLE001 - any library's
        return error
    raise AssertionError(f"expected the call to fail, got: {result!r}")


def check(
    error: BaseException, error_class: str, *, retry_after: float | None = None, status: int | None = None
) -> None:
    """The verdict on this error is this class, with the class's category, tier and fatality, and these facts."""
    verdict = outlast.classify(error)
    meaning = MEANING[error_class]
    got = (verdict.error_class, verdict.category, verdict.tier, verdict.fatal, verdict.status)
    assert got == (error_class, meaning.category, meaning.tier, meaning.fatal, status), story(error)
    if retry_after is None:
        assert verdict.retry_after is None
    else:
        assert verdict.retry_after is not None
        assert math.isclose(verdict.retry_after, retry_after)
    assert verdict.why  # a sentence for people


def story(error: BaseException) -> str:
    """The chain of the error, for the reader of a failed test."""
    lines = []
    link: BaseException | None = error
    while link is not None:
        lines.append(f"{type(link).__module__}.{type(link).__qualname__}: {link} {link.args!r}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n  from ".join(lines)
