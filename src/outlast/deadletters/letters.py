"""
What people see: a dead letter, and a group of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outlast.errors import ConfigurationError, OutlastError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Self

    from outlast.kernel.aliases import StopReason
    from outlast.store.records import LetterGroup, LetterKind


class NothingToReplay(ConfigurationError):
    """
    No open dead letter fits the filter, so no run was made. `DeadLetters.replay` returns an empty result instead, and a
    command does not report it as a mistake.
    """

    def __init__(self) -> None:
        super().__init__("there is nothing to replay: none of the dead letters that are open fits.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """
    One piece of work that failed for good, with the input of the stage that failed.

    It tells its newest failure; ``metadata["earlier_failures"]`` has those before. `group` is its fingerprint; `error`
    is sanitised; `payload` is the user's data as it was, and so it is left out of `repr`; `reason` says why its status
    was changed last. `begins_at` is the stage whose input the payload is and where a replay begins: an earlier one than
    `stage` if that one's input could not be stored, for the reason in `unstored`; None if nothing could, and there is
    no payload. `unreadable` says why the payload is on record and cannot be read: then `payload` is None. `stop_reason`
    is why there was no further attempt; None for letters from before that was on record, and of other programs.
    """

    id: str
    pipeline: str
    stage: str
    item_key: str
    payload: Any = field(repr=False)
    error: str
    error_class: str
    group: str
    attempts: int
    status: Literal["open", "replaying", "resolved", "archived"]
    kind: LetterKind = "item"
    run_id: str | None = None
    error_type: str = ""
    tier: str = ""
    first_failed_at: datetime
    last_attempt_at: datetime
    created_at: datetime
    replays: int = 0
    reason: str | None = None
    edited: bool = False
    stop_reason: StopReason | None = None
    begins_at: str | None = None
    unstored: str | None = None
    unreadable: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


class ReplayStopped(OutlastError):
    """A job of the canary did not succeed, so the others were left as they are. `result` says what was done."""

    result: ReplayedJobs

    def __init__(self, result: ReplayedJobs) -> None:
        super().__init__(result.why)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJobs:
    """
    What a replay of jobs came to: workers do their work. `requeued` has the ids of the jobs that are in the queue
    again; `left` has dead letters that are as they were, each with the reason. `why` is a sentence. `canary` tells how
    the jobs that went first have ended: ``succeeded``, ``failed``, ``unknown`` if no worker took them; None without
    one.
    """

    requeued: tuple[str, ...]
    left: Mapping[str, str]
    why: str
    canary: Literal["succeeded", "failed", "unknown"] | None = None

    def raise_for_status(self) -> Self:
        """This, unless a job of the canary has failed: then `ReplayStopped`."""
        if self.canary == "failed":
            raise ReplayStopped(self)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """
    Failures with one fingerprint: the same stage, error class, exception type and message, apart from numbers and names
    in it.
    """

    id: str
    stage: str
    error_class: str
    message: str
    count: int
    share: float
    sample_keys: tuple[str, ...]
    first_seen_at: datetime
    last_seen_at: datetime
    pipeline: str = ""
    error_type: str = ""


class FailureGroups(tuple[FailureGroup, ...]):  # noqa: SLOT001 - a tuple can have none but empty ones
    """
    Groups of failures, the largest first; a notebook shows them as a table. `options` are what a command needs beside
    ``--group`` to send the first one again; None if there are no dead letters that it could send.
    """

    options: Sequence[str] | None = None

    def _repr_html_(self) -> str:
        from outlast.display.page import groups_page

        return groups_page(self, self.options)


def as_groups(rows: Sequence[LetterGroup], options: Sequence[str] | None = None) -> FailureGroups:
    """Groups as the store counts them, the largest first, each with its share of them all."""
    whole = sum(row.count for row in rows)
    groups = FailureGroups(
        FailureGroup(share=row.count / whole, **{name: getattr(row, name) for name in row.__slots__}) for row in rows
    )
    groups.options = options
    return groups
