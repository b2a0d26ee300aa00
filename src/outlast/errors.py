"""
Every exception Outlast raises of its own.

    Exception
    └── OutlastError
        ├── ConfigurationError (ValueError)     a setting is wrong; lists every `Problem`
        ├── TemporaryFailure                    raise it to say: worth another attempt
        ├── PermanentFailure                    raise it to say: do not try again
        │   └── ResultLost                      a job has succeeded, and its result could not be stored
        ├── AttemptTimeoutError (TimeoutError)  one attempt took longer than ``timeout``
        ├── TotalTimeoutError (TimeoutError)    ``total_timeout`` ran out inside an attempt
        ├── CircuitBreakerOpenError             the circuit is open: nothing was called
        ├── LimitExceededError                  no place at a limit in time: nothing was called
        ├── LeaseLost                           somebody else works on this now: nothing was written
        ├── JobFailed                           the result of a job that failed or was cancelled was asked for
        ├── JobNotFound (LookupError)           there is no such job in the store
        ├── ResultTimeoutError (TimeoutError)   a job has not ended in the time its result was waited for
        └── RunFailed                           a run over items ended as failed; carries its result
            ├── RunIncomplete                   a run ended as a partial success
            ├── FailureBudgetExceeded           too large a share of the items failed
            ├── FlowFailed                      the same of a declared pipeline
            │   └── FlowIncomplete              a step of a declared pipeline lost rows
            └── RunInterrupted                  a run was interrupted, paused or cancelled before its end
                └── FlowInterrupted             the same of a declared pipeline

`RunFailed` and those below it carry the result of a run, so they live in `outlast.pipeline.errors`, those of flows in
`outlast.flow.results`; those of jobs are in `outlast.jobs.handle`.

What a protected call raises is, wherever one exists, the last attempt's own exception and none of these.
"""

from __future__ import annotations

from contextvars import ContextVar

from outlast.kernel.value import Value, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Any, Literal, TypeAlias

    from outlast.kernel.aliases import Seconds

    Path: TypeAlias = tuple[str | int, ...]


class OutlastError(Exception):
    """The base of all errors that Outlast raises of its own."""

    # Exceptions with keyword arguments do not survive pickle by themselves: it calls cls(*args). Fields, notes and
    # history all live in __dict__, so carrying that over restores everything.
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[OutlastError], args: tuple[Any, ...], fields: dict[str, Any]) -> OutlastError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


_SENTENCES = {
    "value": "expected {where} to be {expected}, got: {got}.",
    "whole": "expected {expected}, got: {got}.",
    "name": "expected {where} to be {expected}, got: {got}.",
    "key": "expected a known key{inside}, got: {got}.",
    "argument": "expected no argument {got}.",
    "text": "{before}{expected}",
    "line": "{before}expected {expected}, got {got}",
}


class Problem(Value):
    """
    One mistake in somebody's settings, as a value; ``str`` makes the sentence.

    `path` is where it stands, as in ``("stages", 2, "retry", "max_attempts")``; `expected` and `got` are in words, and
    never hold a payload; `way_out` is a sentence of its own, or nothing. `place` is file, line and column, where
    settings come from a file. `kind` is the form of the sentence: of a value, of a key or an argument that nothing
    knows, of the name of a key that is free to choose, a text that is a sentence already (`expected`), or a line about a file.
    """

    __slots__ = ("expected", "got", "kind", "path", "place", "way_out")
    path: Path
    expected: str
    got: str
    way_out: str
    place: str
    kind: Literal["value", "key", "name", "argument", "text", "line"]

    def __init__(
        self,
        path: Path = (),
        expected: str = "",
        got: str = "",
        way_out: str = "",
        place: str = "",
        kind: Literal["value", "key", "name", "argument", "text", "line"] = "value",
    ) -> None:
        put(self, "path", path)
        put(self, "expected", expected)
        put(self, "got", got)
        put(self, "way_out", way_out.strip())
        put(self, "place", place)
        put(self, "kind", kind)

    @property
    def where(self) -> str:
        """The path in words: ``stages[2].retry.max_attempts``."""
        parts = (f"[{part!r}]" if isinstance(part, Item | int) else f".{part}" for part in self.path)
        return "".join(parts).removeprefix(".")

    def within(self, *path: str | int) -> Problem:
        """The same problem of a block that stands inside another one, under this path."""
        return self.replace(path=(*path, *self.path))

    def __str__(self) -> str:
        where, inside = self.where, self.replace(path=self.path[:-1]).where if self.path else ""
        kind = "whole" if self.kind == "value" and not where else self.kind
        sentence = _SENTENCES[kind].format(
            where=where,
            inside=f" in {inside}" if inside else "",
            before=f"{where}: " if where else "",
            expected=self.expected,
            got=self.got,
        )
        between = "; " if kind == "line" else " "
        return f"{f'{self.place}: ' if self.place else ''}{sentence}{between + self.way_out if self.way_out else ''}"


class Item(str):
    """A part of a path that Python code writes in brackets: ``retry_limits['database']``."""

    __slots__ = ()


class ConfigurationError(OutlastError, ValueError):
    """
    A setting is wrong. `problems` has one full sentence for each mistake: where, what was expected, what came.
    `details` has the same as values.
    """

    problems: Sequence[str]
    details: Sequence[Problem]

    def __init__(self, problems: Sequence[str | Problem] | str) -> None:
        found = (problems,) if isinstance(problems, str) else problems
        self.details = tuple(
            _masked(Problem(expected=one, kind="text") if isinstance(one, str) else one) for one in found
        )
        self.problems = tuple(str(problem) for problem in self.details)
        count = len(self.problems)
        text = self.problems[0] if count == 1 else f"{count} problems:\n" + "\n".join(f"  - {p}" for p in self.problems)
        super().__init__(text)


def _masked(problem: Problem) -> Problem:
    """Without secrets. One that shows only in the whole sentence leaves nothing but that sentence, masked."""
    from outlast.kernel.redact import mask  # an error path; and what people write may hold a secret

    # The place is kept apart: a file may be called as secrets are, and its line must be found all the same.
    said = str(problem.replace(place=""))
    whole = mask(said)
    if whole == said:
        return problem
    # Part by part, where that is enough: whoever reads the values still knows where it stands.
    path = tuple(_masked_part(part) for part in problem.path)
    expected, got, way_out = map(mask, (problem.expected, problem.got, problem.way_out))
    apart = problem.replace(path=path, expected=expected, got=got, way_out=way_out)
    said = str(apart.replace(place=""))
    return apart if mask(said) == said else Problem(expected=whole, place=problem.place, kind="text")


def _masked_part(part: str | int) -> str | int:
    from outlast.kernel.redact import mask

    return part if isinstance(part, int) else type(part)(mask(part))


class TemporaryFailure(OutlastError):
    """Raise it (or a subclass) to say that trying again is worth it; `retry_after` says when, in seconds."""

    def __init__(
        self, message: str = "", *, retry_after: Seconds | None = None, error_class: str | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else as_seconds(retry_after)
        self.error_class = error_class


class PermanentFailure(OutlastError):
    """Raise it (or a subclass) to say that no further attempt can succeed."""

    def __init__(self, message: str = "", *, error_class: str | None = None) -> None:
        super().__init__(message)
        self.error_class = error_class


class AttemptTimeoutError(OutlastError, TimeoutError):
    """One attempt took longer than `timeout`. It is a `timeout`, hence worth another attempt."""


class TotalTimeoutError(OutlastError, TimeoutError):
    """
    `total_timeout` ran out while an attempt was running. Between attempts the last attempt's own error is raised
    instead.
    """


class CircuitBreakerOpenError(OutlastError):
    """The circuit is open, so nothing was called. `retry_after` is the time in seconds until it may be tried."""

    name: str
    opened_at: datetime
    retry_at: datetime
    retry_after: float

    def __init__(self, message: str, *, name: str, opened_at: datetime, retry_at: datetime, retry_after: float) -> None:
        super().__init__(message)
        self.name = name
        self.opened_at = opened_at
        self.retry_at = retry_at
        self.retry_after = retry_after


class LimitExceededError(OutlastError):
    """
    A limit had no place in time, so nothing was called. `retry_after` is when there may be one, if that is known, in
    seconds.
    """

    name: str
    retry_after: float | None

    def __init__(self, message: str, *, name: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.name = name
        self.retry_after = retry_after


class LeaseLost(OutlastError):
    """Another process works on this run, or has taken it over: nothing more is written here."""


def as_seconds(value: Seconds) -> float:
    """Seconds as a float, from a number or a timedelta."""
    return float(value) if isinstance(value, int | float) else value.total_seconds()


_LONGEST = 100  # characters of a name that are compared; no name that is known is longer
# Names of other libraries, and of habit, that look like something else than what is meant.
_MEANT = {
    "threshold": "failure_threshold",
    "fail_max": "failure_threshold",
    "retries": "max_attempts",
    "tries": "max_attempts",
    "attempts": "max_attempts",
    "max_tries": "max_attempts",
    "recovery_timeout": "reset_timeout",
}


_SURELY = 0.75  # how alike a name is to the one that was meant, if it is more than a guess
_EFFORT = 5_000_000  # for all suggestions about one file: well under a second
_left: ContextVar[list[int] | None] = ContextVar("outlast_effort_left", default=None)


class FewSuggestions:
    """
    Within, suggestions take a bounded time, however many names there are: whoever has made a thousand mistakes gets
    suggestions for the first ones.
    """

    def __enter__(self) -> None:
        self._token = _left.set([_EFFORT])

    def __exit__(self, *_: object) -> None:
        _left.reset(self._token)


def nearest(name: str, known: Sequence[str]) -> str:
    """`` Did you mean 'x'?`` when one of the known names is close, otherwise nothing."""
    meant = closest(name, known)
    return f" Did you mean {meant!r}?" if meant else ""


def closest(name: str, known: Sequence[str]) -> str:
    """The known name that may be meant; nothing if none is close."""
    import difflib  # only an error path needs it

    left = _left.get()
    if left is not None:
        effort = 50 + min(len(name), _LONGEST) ** 2  # for one comparison
        known = known[: left[0] // effort]
        left[0] -= effort * len(known)
    if name in _MEANT and _MEANT[name] in known:
        return _MEANT[name]
    if (small := name.lower()) in known:
        return small
    return next(iter(difflib.get_close_matches(name[:_LONGEST], known, n=1, cutoff=0.6)), "")


def is_misspelt(name: str, meant: str) -> bool:
    """
    Whether one name is so close to the other that what stands under it may be read as what was meant: of a name with a
    point, each of its parts.

    >>> is_misspelt("timeuot", "timeout"), is_misspelt("retires", "retry"), is_misspelt("retries", "max_attempts")
    (True, False, False)
    >>> is_misspelt("flies.reader", "files.reader"), is_misspelt("shop.reader", "s3.reader")
    (True, False)
    """
    import difflib  # only an error path needs it

    ours, theirs = name.split("."), meant.split(".")
    pairs = zip(ours, theirs, strict=True) if len(ours) == len(theirs) else [(name, meant)]
    return len(name) <= _LONGEST and all(
        one == other or difflib.SequenceMatcher(None, one, other).ratio() >= _SURELY for one, other in pairs
    )
