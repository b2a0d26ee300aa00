"""
How a store fails.

    OutlastError
    └── StoreError                                  the store could not do it; nothing of it was done
        ├── StoreUnavailable (TemporaryFailure)     lost, locked, full or busy: worth another attempt
        ├── StoreUnanswered                         an enqueue without a unique key was not answered: it may have been done
        └── StoreRefused (PermanentFailure)         no further attempt can succeed

A driver's own exception is never chained to these: its text may contain rows, which are the user's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import OutlastError, PermanentFailure, TemporaryFailure
from outlast.kernel.redact import error_text, mask
from outlast.verdicts import classify

if TYPE_CHECKING:
    from outlast.verdicts import Verdict


class StoreError(OutlastError):
    """The store could not do what it was asked; nothing of it was done, unless it was lost while committing."""


class StoreUnavailable(StoreError, TemporaryFailure):
    """
    The store is lost, locked, full or busy. It is a ``database_error`` or a ``database_connection``, hence worth
    another attempt. `locked`: another transaction keeps it from being written to. `unanswered`: it was asked and did not
    answer, so whether it did what it was asked is unknown.
    """

    def __init__(
        self, message: str, *, error_class: str = "database_error", locked: bool = False, unanswered: bool = False
    ) -> None:
        super().__init__(mask(message), error_class=error_class)
        self.locked = locked
        self.unanswered = unanswered


class StoreUnanswered(StoreError):
    """
    The store did not answer, and to ask it again may do the same a second time. Whether it has done it is unknown, so this is no
    transient error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(mask(message))


class StoreRefused(StoreError, PermanentFailure):
    """
    The store cannot do this: a newer schema, a file that is no database, a row that contradicts what is on record.
    """

    def __init__(self, message: str, *, error_class: str = "permanent_failure") -> None:
        super().__init__(mask(message), error_class=error_class)


def fault(what: str, error: Exception, *, text: str | None = None, way_out: str = "") -> StoreError:
    """The StoreError for a driver's exception, by the rules that classify every error."""
    verdict = classify(error)
    message = f"{what}: {error_text(error) if text is None else text}.{' ' + way_out if way_out else ''}"
    if _passes(verdict):
        known = verdict.error_class if verdict.error_class.startswith("database") else "database_error"
        return StoreUnavailable(message, error_class=known)
    return StoreRefused(message, error_class=verdict.error_class)


def _passes(verdict: Verdict) -> bool:
    # A full disk is unclear in general; here it is known that nothing was written, and that somebody will make room.
    return verdict.category == "transient" or verdict.error_class == "resource_exhausted"
