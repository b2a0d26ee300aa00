"""
Error → Verdict: what kind of failure is this, and is it worth another attempt?

Facts come first, the policy afterwards. The facts, in the order in which they are believed:

    1. the caller's own word: TemporaryFailure, PermanentFailure, `register`
    2. a code that the error's own library or protocol gives: MySQL, AWS, Azure, gRPC, MongoDB, model APIs; SQLAlchemy's original
    3. an HTTP status of 400 and more on the exception or its response; `code` is one only where there was an answer
    4. a SQLSTATE, an errno, a SQLite result code
    5. the type, along its MRO, by dotted name; nothing is imported for it
    6. what it was caused by: __cause__, unsuppressed __context__, a wrapped exception; it decides about unknown errors
       and sharpens what wraps (`requests.ConnectionError` caused by a refused connection is `connection_refused`)

Messages are never searched. A group of exceptions is as bad as its worst leaf.
"""

from __future__ import annotations

import errno as errno_names
import sys
from contextvars import ContextVar

from outlast.errors import CircuitBreakerOpenError, ConfigurationError, PermanentFailure, TemporaryFailure, nearest
from outlast.kernel import raised
from outlast.kernel.clock import here
from outlast.kernel.log import logger
from outlast.kernel.value import Value, put
from outlast.verdicts.rules import (
    CARRIERS,
    CATEGORIES,
    CODE_IS_STATUS,
    CODES,
    ERRNOS,
    ERROR_CLASSES,
    NOT_A_STATUS,
    NOT_AN_ERRNO,
    PUBLIC,
    SAME,
    SHARPER,
    SQLITE_CODES,
    SQLSTATES,
    STATUSES,
    TIERS,
    TYPES,
    UNDONE,
    UNDONE_STATES,
    UNDONE_TYPES,
    WRAPPERS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from outlast.kernel.aliases import Category

__all__ = [
    "CATEGORIES",
    "ERROR_CLASSES",
    "TIERS",
    "Alike",
    "Verdict",
    "as_listed",
    "canonical_name",
    "class_by_name",
    "classify",
    "give_verdict",
    "has_begun",
    "is_looked_at",
    "lineage",
    "mark_begun",
    "names_of",
    "plans",
    "refusal",
    "register",
    "resolve",
    "surely_undone",
]


class Verdict(Value):
    """What an error is. `why` names the fact that decided; `fatal` means that no other item can succeed either."""

    __slots__ = ("category", "error_class", "fatal", "retry_after", "status", "tier", "why")
    category: Category
    error_class: str
    tier: str
    retry_after: float | None
    why: str
    fatal: bool
    status: int | None

    def __init__(
        self,
        *,
        category: Category,
        error_class: str,
        tier: str,
        why: str,
        retry_after: float | None = None,
        fatal: bool = False,
        status: int | None = None,
    ) -> None:
        put(self, "category", category)
        put(self, "error_class", error_class)
        put(self, "tier", tier)
        put(self, "why", why)
        put(self, "retry_after", retry_after)
        put(self, "fatal", fatal)
        put(self, "status", status)


def classify(error: BaseException | int | str, /) -> Verdict:
    """
    The verdict on an exception, an HTTP status, or a name: of an exception type (dotted) or of an error class.

    >>> classify(503).error_class, classify(ConnectionResetError()).tier, classify("requests.Timeout").category
    ('unavailable', 'network', 'transient')
    """
    if isinstance(error, BaseException):
        plan = plans.get(type(error)) or _plan(type(error))
        # The common case in one look: nothing on the instance could change what the type says.
        if (
            plan.plain
            and error.__context__ is None
            and error.__cause__ is None
            and not error.__dict__
            and (
                not plan.has_errno or error.errno is None  # type: ignore[attr-defined]
            )
            and not (plan.wraps and any(isinstance(value, BaseException) for value in error.args))
        ):
            return plan.verdict
        return _of_exception(error, set(), 0)
    if isinstance(error, int) and not isinstance(error, bool):
        return _of_status(error)
    return _of_name(str(error))


def refusal(error: BaseException | None, verdict: Verdict | None = None) -> float | None:
    """
    The seconds after which the service wants to be asked again, if the error says that it was asked too often; else
    None.
    """
    if not isinstance(error, Exception):
        return None
    verdict = verdict or classify(error)
    if (
        verdict.error_class == "rate_limited"
        or verdict.status == _OVERLOADED
        or (verdict.error_class == "unavailable" and verdict.retry_after is not None)
    ):
        return verdict.retry_after or 0.0
    return None


def surely_undone(error: Exception, verdict: Verdict) -> bool:
    """
    Whether it is certain that the failed call had no effect: it was never sent, or refused, or rolled back.

    Anything else may have been done although it failed: a connection that was lost, a timeout, an error of the server, and
    whatever the call did before this error, if that is marked.
    """
    if has_begun(error):
        return False
    # What merely happened before (an implicit context) may have been handled, and something else sent since; only
    # libraries' wrappers are known to mean it.
    meant = raised.cause(error) is not None or _dotted(type(error)) in WRAPPERS or _CAUSED_BY not in verdict.why
    # That a 529 is heeded does not prove that it was sent before anything was done.
    refused = verdict.error_class != "server_error_other" and refusal(error, verdict) is not None
    if meant and (verdict.error_class in UNDONE or refused):
        return True
    link: BaseException | None = error
    for _ in range(_DEPTH):
        if link is None:
            return False
        state = (
            _attribute(link, "sqlstate")
            or _attribute(link, "pgcode")
            or _attribute(_attribute(link, "orig"), "sqlstate")
        )
        if str(state) in UNDONE_STATES or not UNDONE_TYPES.isdisjoint(names_of(type(link))):
            return True
        link = raised.cause(link) or (raised.context(link) if _dotted(type(link)) in WRAPPERS else None)
    return False


def give_verdict(error: BaseException, verdict: Verdict) -> None:
    """Say what an exception is that stands for many others: neither its type nor its cause can tell."""
    raised.fields(error)[_GIVEN] = verdict


def as_listed(error_class: str, *, category: Category | None = None) -> Verdict:
    """
    The verdict on an error of which only this is stored: its class, and its category if that is known. A name that is no
    error class is the word of a TemporaryFailure or a PermanentFailure.
    """
    known = ERROR_CLASSES.get(error_class)
    return Verdict(
        category=category or ("transient" if known is None else known.category),
        error_class=error_class,
        tier=known.tier if known else "unknown",
        why=f"it is recorded as {error_class}",
        fatal=known.fatal if known else False,
    )


def mark_begun(error: BaseException) -> None:
    """Say on an error that the call has done something before: what the error proves holds for its last part only."""
    raised.fields(error)[_BEGUN] = True


def has_begun(error: BaseException) -> bool:
    link: BaseException | None = error
    for _ in range(_DEPTH):
        if link is None:
            return False
        if raised.fields(link).get(_BEGUN) is True:
            return True
        link = raised.cause(link) or raised.context(link)
    return False


def register(error: type[Exception] | str, /, error_class: str) -> None:
    """
    Add a rule of your own: this exception type (or dotted name), and whatever derives from it, is of this error class.

    It holds for the whole process and is believed before an HTTP status or a code found on the exception.
    """
    if error_class not in ERROR_CLASSES:
        known = nearest(error_class, tuple(ERROR_CLASSES))
        raise ConfigurationError(f"expected error_class to be the name of an error class, got: {error_class!r}.{known}")
    if isinstance(error, type):
        if not issubclass(error, Exception):
            message = f"expected error to be a subclass of Exception, got: {error.__name__}. Control flow is never classified."
            raise ConfigurationError(message)
        error = _dotted(error)
    _own[SAME.get(error, error)] = error_class
    plans.clear()


def lineage(error_class: str) -> tuple[str, ...]:
    """The error class and its parents."""
    known = ERROR_CLASSES.get(error_class)
    return (error_class, *known.parents) if known else (error_class,)


# -- exceptions ----------------------------------------------------------------------------------------------------------

_OVERLOADED = 529  # what services of models say instead of 429 when all of them together are too many
LONGEST_HINT = 31_536_000.0  # seconds, a year: beyond any policy's ceiling
_DEPTH = 12  # how far a chain is followed; real ones have five links
_CAUSED_BY = "was caused by"
_BEGUN = "outlast_begun"  # on an error: something was done before it
_GIVEN = "__outlast_verdict__"
_own: dict[str, str] = {}
plans: dict[type[BaseException], _Plan] = {}


class _Plan:
    """What the type alone tells, worked out once for each type."""

    __slots__ = (
        "carries",
        "category",
        "code_counts",
        "has_errno",
        "names",
        "own",
        "plain",
        "rule",
        "simple",
        "status_counts",
        "verdict",
        "wraps",
    )

    def __init__(self, cls: type[BaseException]) -> None:
        lines = [_dotted(base) for base in cls.__mro__]
        self.names = frozenset(name for line in lines for name in (line, _public(line)))
        self.own = next((_own[name] for name in lines for name in (name, _public(name)) if name in _own), None)
        self.rule = next((name for name in lines if name in TYPES), None)
        self.has_errno = issubclass(cls, OSError) and not NOT_AN_ERRNO.intersection(lines)
        self.status_counts = not NOT_A_STATUS.intersection(lines)
        self.code_counts = bool(CODE_IS_STATUS.intersection(lines))
        attributes = (
            "status",
            "status_code",
            "code",
            "response",
            "sqlstate",
            "pgcode",
            "sqlite_errorcode",
            "retry_after",
            "exceptions",
        )
        self.carries = next((CARRIERS[name] for name in lines if name in CARRIERS), None)
        # One that has its own idea of what it carries is asked with care.
        self.plain = (
            self.carries is None and raised.ordinary(cls) and not any(hasattr(cls, name) for name in attributes)
        )
        self.wraps = self.rule is None or self.rule in WRAPPERS
        name = _short(cls)
        if self.own:
            self.verdict = _verdict(self.own, f"{name} is registered as {self.own}")
        elif self.rule and TYPES[self.rule] != "unknown":
            rule = _public(self.rule)
            self.verdict = _verdict(TYPES[self.rule], f"{name} is {_a(rule)}" if name != rule else f"it is {_a(name)}")
        else:
            self.verdict = _verdict("unknown", f"no rule knows {name}")
        # Nothing about an instance has to be looked at but its chain, its attributes and its errno.
        self.category = self.verdict.category
        self.simple = self.plain and not self.wraps and not issubclass(cls, BaseExceptionGroup)


def _plan(cls: type[BaseException]) -> _Plan:
    if len(plans) > 4096:  # types made at run time must not pile up
        plans.clear()
    plan = plans[cls] = _Plan(cls)
    return plan


def _of_exception(error: BaseException, seen: set[int], depth: int) -> Verdict:
    seen.add(id(error))
    plan = plans.get(type(error)) or _plan(type(error))
    if isinstance(error, BaseExceptionGroup):
        return _of_group(error, seen, depth)
    verdict = (
        _own_word(error, plan)
        or (_by_carried(error, plan.carries, seen, depth) if plan.carries else None)
        or _by_status(error, plan)
        or _by_code(error, plan)
        or plan.verdict
    )
    if verdict.error_class == "unknown" or (plan.rule in WRAPPERS and verdict is plan.verdict):
        return _sharpened(verdict, error, seen, depth)
    return verdict


def _own_word(error: BaseException, plan: _Plan) -> Verdict | None:
    if plan.own:
        return _verdict(plan.own, plan.verdict.why, retry_after=_hint(error, _attribute(error, "response")))
    if isinstance(given := raised.fields(error).get(_GIVEN), Verdict):
        return given
    if isinstance(error, TemporaryFailure):
        return _marked(error, "transient", error.error_class or "temporary_failure", _hint(error, None))
    if isinstance(error, PermanentFailure):
        return _marked(error, "permanent", error.error_class or "permanent_failure", None)
    if isinstance(error, CircuitBreakerOpenError):
        # Until when it is isolated by hand nobody knows: as long as may be said.
        wait = _attribute(error, "retry_after")
        return plan.verdict.replace(retry_after=min(max(0.0, wait), LONGEST_HINT)) if isinstance(wait, float) else None
    return None


def _marked(error: BaseException, category: Category, error_class: str, retry_after: float | None) -> Verdict:
    known = ERROR_CLASSES.get(error_class)
    return Verdict(
        category=category,
        error_class=error_class,
        tier=known.tier if known else "unknown",
        why=f"{_short(type(error))} says so",
        retry_after=retry_after,
        fatal=known.fatal if known else False,
    )


def _by_carried(error: BaseException, family: str, seen: set[int], depth: int) -> Verdict | None:
    """What the codes of the error's own library say; None where it carries none that is known."""
    if family == "original":
        original = _attribute(error, "orig")
        if not isinstance(original, BaseException) or id(original) in seen or depth >= _DEPTH:
            return None
        deeper = _of_exception(original, seen, depth + 1)
        if deeper.error_class == "unknown":
            return None
        return deeper.replace(why=f"{_short(type(error))} carries: {deeper.why}")
    table = CODES[family]
    for code in _READERS[family](error):
        error_class = table.get(str(code)) if isinstance(code, (int, str)) else None
        if error_class:
            response = _attribute(error, "response")
            status, headers = _attribute(error, "status_code"), None
            if isinstance(response, dict):  # botocore's, which is data
                metadata = _item(response, "ResponseMetadata")
                status, headers = _item(metadata, "HTTPStatusCode"), _item(metadata, "HTTPHeaders")
            return _verdict(
                error_class,
                f"{family} code {code}",
                status=status if isinstance(status, int) and 400 <= status <= 599 else None,
                retry_after=_asked(headers) if headers is not None else _hint(error, response),
            )
    return None


def _mysql_codes(error: BaseException) -> tuple[object, ...]:
    return raised.args(error)[:1]


def _aws_codes(error: BaseException) -> tuple[object, ...]:
    return (_item(_item(_attribute(error, "response"), "Error"), "Code"),)


def _azure_codes(error: BaseException) -> tuple[object, ...]:
    # Storage clients take the code over, as text or as an enumeration; an answer without a body has it in a header
    # only.
    own = _attribute(error, "error_code")
    header = _header(_attribute(_attribute(error, "response"), "headers"), "x-ms-error-code")
    return (_attribute(own, "value") or own, _attribute(_attribute(error, "error"), "code"), header)


def _model_codes(error: BaseException) -> tuple[object, ...]:
    body = _attribute(error, "body")
    inner = _item(body, "error")  # one client passes the whole answer, another what is in it
    return (_attribute(error, "code"), _item(inner, "code"), _attribute(error, "type"), _item(inner, "type"))


def _grpc_codes(error: BaseException) -> tuple[object, ...]:
    # Google's errors carry the gRPC error as their response, if gRPC it was.
    for holder in (error, _attribute(error, "response")):
        code = _attribute(holder, "code")
        if callable(code) and isinstance(holder, BaseException):
            try:
                return (_attribute(code(), "name"),)
            except Exception:  # noqa: BLE001 - somebody else's code
                return ()
    return ()


def _mongo_codes(error: BaseException) -> tuple[object, ...]:
    labels = _attribute(error, "_error_labels")
    return (_attribute(error, "code"), *(labels if isinstance(labels, set) else ()))


_READERS: dict[str, Callable[[BaseException], tuple[object, ...]]] = {
    "MySQL": _mysql_codes,
    "AWS": _aws_codes,
    "Azure": _azure_codes,
    "model API": _model_codes,
    "gRPC": _grpc_codes,
    "MongoDB": _mongo_codes,
}


def _item(holder: object, key: str) -> Any:
    return holder.get(key) if isinstance(holder, dict) else None


def _by_status(error: BaseException, plan: _Plan) -> Verdict | None:
    cause = raised.cause(error)
    if not plan.status_counts or NOT_A_STATUS.intersection(names_of(type(cause)) if cause else ()):
        return None
    response = _attribute(error, "response")
    if isinstance(response, dict):  # botocore's, which is data
        metadata = _item(response, "ResponseMetadata")
        status = _item(metadata, "HTTPStatusCode")
        if isinstance(status, int) and 400 <= status <= 599:
            return _of_status(status, _asked(_item(metadata, "HTTPHeaders")))
    # An integer `code` may be anything: an exit code, a constant of the library. A status it is where there was an
    # answer to have one.
    answered = plan.code_counts or response is not None or _attribute(error, "headers") is not None
    own = ("status_code", "status", "code") if answered else ("status_code", "status")
    for holder, names in ((error, own), (response, ("status_code", "status"))):
        for name in names if holder is not None else ():
            status = _attribute(holder, name)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
                return _of_status(int(status), _hint(error, response))
    return None


def _by_code(error: BaseException, plan: _Plan) -> Verdict | None:
    state = _attribute(error, "sqlstate") or _attribute(error, "pgcode")
    if state == "08P01" and _fatal(error):
        return _verdict("database_connection", "SQLSTATE 08P01, which ended the connection")
    by_state = _of_sqlstate(state)
    if by_state is not None:
        return by_state
    sqlite = _attribute(error, "sqlite_errorcode")
    if isinstance(sqlite, int) and sqlite & 0xFF in SQLITE_CODES:
        return _verdict(SQLITE_CODES[sqlite & 0xFF], f"SQLite code {sqlite}")
    if plan.has_errno:
        number = _attribute(error, "errno")
        symbol = errno_names.errorcode.get(number, "") if isinstance(number, int) else ""
        if symbol in ERRNOS:
            return _verdict(ERRNOS[symbol], f"errno {symbol}")
    return None


def _fatal(error: BaseException) -> bool:
    """Whether the other side of a PostgreSQL connection has ended it with this error; psycopg, psycopg2, asyncpg."""
    severity = _attribute(_attribute(error, "diag"), "severity") or _attribute(error, "severity")
    return isinstance(severity, str) and severity == "FATAL"


def _of_sqlstate(sqlstate: object) -> Verdict | None:
    if not isinstance(sqlstate, str) or len(sqlstate) != 5 or sqlstate == "HY000":  # HY000: any error, says MySQL
        return None
    for prefix in (sqlstate, sqlstate[:2]):
        if prefix in SQLSTATES:
            return _verdict(SQLSTATES[prefix], f"SQLSTATE {sqlstate}")
    return _verdict("unknown", f"no rule knows SQLSTATE {sqlstate}")


def _sharpened(verdict: Verdict, error: BaseException, seen: set[int], depth: int) -> Verdict:
    """What the error was caused by, where that says more."""
    if depth >= _DEPTH:
        return verdict
    for cause in _causes(error):
        if id(cause) in seen:
            continue
        deeper = _of_exception(cause, seen, depth + 1)
        wanted = deeper.error_class != "unknown" if verdict.error_class == "unknown" else deeper.error_class in SHARPER
        if wanted and deeper.error_class != "cancelled":
            return deeper.replace(why=f"{_short(type(error))} {_CAUSED_BY}: {deeper.why}")
    return verdict


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause, context = raised.cause(error), raised.context(error)
    if cause is not None:
        yield cause
    elif context is not None and not raised.suppressed(error):
        yield context
    # Several clients put the real error into an attribute or the arguments and cut the chain.
    for value in (_attribute(error, "reason"), _attribute(error, "inner_exception"), *raised.args(error)[:3]):
        if isinstance(value, BaseException):
            yield value


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was caused by, nearest first; bounded, and each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < _DEPTH:
        link = waiting.pop(0)
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += _causes(link)


def _of_group(group: BaseExceptionGroup[Any], seen: set[int], depth: int) -> Verdict:
    if depth >= _DEPTH:
        return _verdict("unknown", "the groups are nested too deeply")
    leaves = [_of_exception(leaf, seen, depth + 1) for leaf in group.exceptions if id(leaf) not in seen]
    if not leaves:
        return _verdict("unknown", "the group holds itself")
    worst = max(leaves, key=lambda leaf: CATEGORIES.index(leaf.category))
    hints = [leaf.retry_after for leaf in leaves if leaf.retry_after is not None]
    return worst.replace(
        why=f"a group of {len(group.exceptions)}; the worst: {worst.why}",
        retry_after=max(hints, default=None),
        fatal=any(leaf.fatal for leaf in leaves),
    )


def _attribute(holder: object, name: str) -> Any:
    # A property of somebody else's exception may raise whatever it likes.
    try:
        return getattr(holder, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - see above
        return None


# -- names and statuses --------------------------------------------------------------------------------------------------


def _of_status(status: int, retry_after: float | None = None) -> Verdict:
    if not 100 <= status <= 599:
        raise ConfigurationError(f"expected an HTTP status from 100 to 599, got: {status}.")
    if status < 400:
        return _verdict("unknown", f"HTTP status {status} is not an error", status=status)
    error_class = STATUSES.get(status) or ("client_error" if status < 500 else "server_error_other")
    return _verdict(error_class, f"HTTP status {status}", status=status, retry_after=retry_after)


def _of_name(name: str) -> Verdict:
    if name in ERROR_CLASSES:
        return _verdict(name, f"{name} is an error class")
    if name.isdecimal():
        return _of_status(int(name))
    cls = resolve(name)
    if cls is not None:  # a type may stand for one SQLSTATE
        return _of_sqlstate(getattr(cls, "sqlstate", None)) or (plans.get(cls) or _plan(cls)).verdict
    canonical = _canonical(name)
    if canonical in TYPES:
        return _verdict(TYPES[canonical], f"it is {_a(name)}")
    if canonical in _own:
        return _verdict(_own[canonical], f"{name} is registered as {_own[canonical]}")
    if "." not in name:
        known = nearest(name, (*ERROR_CLASSES, *(_public(rule) for rule in TYPES if "." not in _public(rule))))
        raise ConfigurationError(
            f"expected an error class, an HTTP status or a dotted name such as requests.Timeout, got: {name!r}.{known}"
        )
    return _verdict("unknown", f"no rule knows {name}")


def _verdict(error_class: str, why: str, *, status: int | None = None, retry_after: float | None = None) -> Verdict:
    known = ERROR_CLASSES[error_class]
    return Verdict(
        category=known.category,
        error_class=error_class,
        tier=known.tier,
        why=why,
        retry_after=retry_after,
        fatal=known.fatal,
        status=status,
    )


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _public(dotted: str) -> str:
    for private, public in PUBLIC.items():
        if dotted.startswith(private):
            return public + dotted[len(private) :]
    return dotted


def _short(cls: type) -> str:
    return _public(_dotted(cls))


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _canonical(name: str) -> str:
    if name in SAME:
        return SAME[name]
    if "." not in name:
        return f"builtins.{name}" if f"builtins.{name}" in TYPES else f"outlast.errors.{name}"
    for private, public in PUBLIC.items():
        if public and name.startswith(public) and f"{private}{name[len(public) :]}" in TYPES:
            return f"{private}{name[len(public) :]}"
    return name


def canonical_name(name: str) -> str | type[Exception]:
    """What a name of an exception stands for: its class, or the name that the rules have for it."""
    return resolve(name) or _canonical(name)


def class_by_name(name: str) -> str | None:
    """
    The error class of an exception with this name, as the rules alone have it: the same in every process, whatever is
    loaded or registered there. None if no rule knows it.

    >>> class_by_name("TimeoutError"), class_by_name("requests.Timeout"), class_by_name("shop.Closed")
    ('timeout', 'timeout', None)
    """
    canonical = _canonical(name)
    if canonical in TYPES or name.upper() in ERRNOS:
        return TYPES.get(canonical) or ERRNOS[name.upper()]
    found = None if "." in (bare := name.removeprefix("builtins.")) else resolve(bare)
    kinds = () if found is None else (_dotted(one) for one in found.__mro__)
    return next((TYPES[one] for one in kinds if one in TYPES), None)


def names_of(cls: type[BaseException]) -> frozenset[str]:
    """Every dotted name, canonical and public, that an exception of this type answers to."""
    return (plans.get(cls) or _plan(cls)).names


class Alike:
    """
    Within, a name stands for the same in every process: only builtin exceptions and those of Outlast are looked at, not
    what else is loaded. For what must not depend on that, such as a manifest.
    """

    def __enter__(self) -> None:
        self._token = _alike.set(True)

    def __exit__(self, *_: object) -> None:
        _alike.reset(self._token)


_alike: ContextVar[bool] = ContextVar("outlast_names_alike", default=False)
_EVERYWHERE = frozenset(("", "builtins", "outlast", "outlast.errors"))


def is_looked_at(module: str) -> bool:
    """Whether a module that is loaded may tell what a name stands for; the builtins have no name here."""
    return not _alike.get() or module in _EVERYWHERE


def resolve(name: str) -> type[Exception] | None:
    """
    The exception class behind a dotted or builtin name, if its module is already loaded; `Alike` says which ones count.
    Imports nothing.
    """
    name = SAME.get(name, name)
    module, _, attribute = name.rpartition(".")
    if not is_looked_at(module):
        return None
    loaded = sys.modules.get(module or "builtins")
    if loaded is None and not module:
        return None
    found = _attribute(loaded, attribute)
    if found is None and not module:
        found = _attribute(sys.modules.get("outlast.errors"), attribute)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


# -- Retry-After ---------------------------------------------------------------------------------------------------------


def _hint(error: BaseException, response: object) -> float | None:
    """The wait the other side asked for, in seconds, never negative; None if it did not ask or made no sense."""
    own = _attribute(error, "retry_after")
    if own is not None:
        return _parsed(own)
    for holder in (response, error):
        headers = _attribute(holder, "headers")
        if any(_header(headers, name) is not None for name, _ in _HEADERS):
            return _asked(headers)
    return None


_HEADERS = (("retry-after-ms", 1000.0), ("Retry-After", 1.0), ("retry-after", 1.0))


def _asked(headers: object) -> float | None:
    for name, unit in _HEADERS:
        value = _header(headers, name)
        if value is not None:
            seconds = _parsed(value)
            return seconds / unit if seconds is not None else None
    return None


def _header(headers: object, name: str) -> object:
    try:
        return headers.get(name)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - headers can be anything
        return None


def _parsed(value: object) -> float | None:
    total_seconds = getattr(value, "total_seconds", None)
    if total_seconds is not None:
        return min(max(0.0, float(total_seconds())), LONGEST_HINT)
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    try:
        seconds = float(text.strip())
    except ValueError:
        return _until(text)
    # "nan" and "inf" parse and mean nothing; digits beyond all floats mean long.
    if seconds != seconds or (seconds in _INFINITE and "n" in text.lower()):  # noqa: PLR0124 - not a number
        return _garbage()
    return min(max(0.0, seconds), LONGEST_HINT)


_INFINITE = (float("inf"), float("-inf"))


def _until(text: str) -> float | None:
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError):
        return _garbage()
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return min(max(0.0, (at - here.get().clock.now()).total_seconds()), LONGEST_HINT)


def _garbage() -> float | None:
    logger().warning("ignored a Retry-After that is neither a number of seconds nor a date")
    return None
