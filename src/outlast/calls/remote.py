"""
A call as seen by the child process that runs one of its attempts. What the attempt reports there (amounts spent,
warnings, that it read the idempotency key) returns with its result or its error, and is added to the call here.
"""

from __future__ import annotations

from contextvars import copy_context

from outlast.calls.state import current_work, renumber, running
from outlast.isolation.supervisor import SAID
from outlast.kernel import raised
from outlast.kernel.clock import REAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from outlast.calls.records import Context, Durable, Notes
    from outlast.calls.state import Call

    Said: TypeAlias = tuple[bool, dict[str, float], list[str]]  # asked for the key, spent, warnings

_WORK = ("run_id", "item_key", "item_keys", "stage", "job_id")  # what is known of the item or the job


class Elsewhere:
    """
    A call as seen by a child process: the values of `current` there, and the deadline for calls inside of the attempt.
    """

    def __init__(self, call: Call) -> None:
        here = call.context()
        self._number, self._max_attempts = here.attempt, here.max_attempts
        self._key = call.key()
        self._asked = False
        self._notes: Notes | None = None
        self._work: dict[str, Any] = {}
        work = current_work.get()
        if work is not None:
            from outlast.calls.records import Context

            work.fill(there := Context())
            self._work = {name: getattr(there, name) for name in _WORK}
        left = call.left()
        # On the real monotonic clock, which is the same one in every process.
        self.deadline = None if left is None else REAL.clock.monotonic() + left

    def __call__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the attempt, there: what came of it, and what it said."""
        return copy_context().run(self._run, fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Said]:
        running.set(self)
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            object.__setattr__(error, SAID, self._said())
            raise
        return result, self._said()

    def _said(self) -> Said:
        notes = self._notes
        return self._asked, {} if notes is None else notes.spent, [] if notes is None else notes.warnings

    def context(self) -> Context:
        """What `current` says during the attempt."""
        from outlast.calls.records import Context

        context = Context(
            attempt=self._number,
            max_attempts=self._max_attempts,
            deadline=self.deadline,
            monotonic=REAL.clock.monotonic,
            key=self._ask_key,
            notes=self._take_notes,
        )
        for name, value in self._work.items():
            setattr(context, name, value)
        if context.job_id is not None:
            context._durable = _no_store  # noqa: SLF001 - known in every call that is made in a job
        return context

    def _ask_key(self) -> str:
        self._asked = True
        return self._key

    def _take_notes(self) -> Notes:
        from outlast.calls.records import Notes

        if self._notes is None:
            self._notes = Notes()
        return self._notes


def _no_store() -> Durable:
    message = (
        'the code of a job with isolation="process" has no store to put steps and artifacts into, and no part in its worker\'s '
        'transactions. Use isolation="thread"; or make each step a job of its own, and return what is to be kept.'
    )
    raise LookupError(message)


def hear(call: Call, said: Said) -> None:
    """What an attempt said in another process counts as if it had been said here."""
    asked, spent, warnings = said
    call.asked = call.asked or asked
    if spent or warnings:
        notes = call.notes_of(call.number)
        for name, amount in spent.items():  # the one before may have been the same attempt, that was put off
            notes.spent[name] = notes.spent.get(name, 0.0) + amount
        notes.warnings += warnings


def adopt(call: Call, error: BaseException) -> None:
    """An error came from another process, which numbers its histories by itself: here they count as made now."""
    said = raised.fields(error).pop(SAID, None)
    if said is not None:
        hear(call, said)
    renumber(error)
