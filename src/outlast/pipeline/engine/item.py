"""
One item's way through the stages: where it is, what has happened to it, and what is next. It neither waits nor calls.

`AttemptRunner` makes an attempt and calls `succeeded` or `failed`, which returns what to do next (`Next`). A failed
attempt is decided as in any protected call, with the rules of `itemcall`.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.calls.records import Notes, add_to
from outlast.calls.state import Ended, current_work, running
from outlast.deciding import REASONS
from outlast.errors import CircuitBreakerOpenError, PermanentFailure
from outlast.kernel import raised
from outlast.kernel.clock import stopping
from outlast.kernel.redact import error_text, sanitise
from outlast.pipeline.engine.itemcall import StageCall
from outlast.pipeline.stages import LONGEST_SNOOZE, Degraded, Skip, Snooze
from outlast.store.records import AttemptRow
from outlast.verdicts import classify, refusal
from outlast.work.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outlast.calls.guard import Guard
    from outlast.calls.records import Context
    from outlast.kernel.aliases import StopReason
    from outlast.pipeline.stages import Stage
    from outlast.store.records import ItemStatus
    from outlast.verdicts import Verdict

_PACKAGE = Path(__file__).parents[2]
# The rooms that make attempts; what other rooms raise may be a defect of theirs, and its frames are kept.
_OURS = tuple(
    str(_PACKAGE / room) for room in ("pipeline", "isolation", "calls/drivers.py", "calls/remote.py", "calls/hedge.py")
)
_UNTOLD = (None,) * 7
_row = tuple.__new__  # a named tuple from its values, without the detour through its own __new__
NEUTRAL = GeneratorExit()  # for a breaker and a limit: the call came back, and that says nothing about the service
_BAD_REQUEST = 400  # the service refused the request itself; repairs are for answers of the wrong shape
_REPAIRABLE = frozenset(reason for reason, means in REASONS.items() if means.repairable)
_BLAMELESS = frozenset(reason for reason, means in REASONS.items() if means.blameless)
UNFINISHED = frozenset(reason for reason, means in REASONS.items() if means.unfinished)


def shorten(error: BaseException) -> None:
    """
    Take our own frames off the front of a traceback. They hold the item, which holds the error: only the garbage
    collector would free what a failed body held.
    """
    reached = raised.frames(error)
    while reached is not None and reached.tb_frame.f_code.co_filename.startswith(_OURS):
        reached = reached.tb_next
    raised.set_frames(error, reached)


class Next(Enum):
    """What to do with an item now."""

    GO = "go"  # on to the stage it is at
    RECORD = "record"  # its checkpoint must be on record first
    WAIT = "wait"  # `wait` seconds, then the same stage
    LINE = "line"  # until its turn at the limit has come
    END = "end"  # it has a status
    BACK = "back"  # it stays unfinished
    DISBAND = "disband"  # a group has come out of its call: each of its items has its own `outcome`


class RunStage:
    """One stage in one run: the function as it is called there, and its slots."""

    __slots__ = (
        "declared",
        "direct",
        "guard",
        "index",
        "is_async",
        "kwargs",
        "last",
        "most_rounds",
        "name",
        "native",
        "needs_call",
        "onward",
        "rounds",
        "run",
        "single",
        "slots",
        "work",
    )

    def __init__(
        self, run: RunFacts, declared: Stage[..., Any, Any], index: int, *, last: bool, most_rounds: int = 3
    ) -> None:
        self.run = run
        self.declared = declared
        self.index = index
        self.last = last
        self.name = declared.name
        self.guard: Guard = declared.guard
        self.is_async = declared.is_async
        self.work: Callable[..., Any] = declared.fn
        self.kwargs: dict[str, Any] = {}
        self.direct = False  # calling it makes a coroutine and runs no code yet
        self.native = False  # a direct stage that leaves the context variables of its task as they were
        self.onward = Next.RECORD if declared.checkpoint else Next.GO  # for an item that came through
        self.single = declared.batch is None  # one item for each call: no batch stage
        # Anything but retries has to be asked before an attempt; and repairs must not run in the event loop.
        self.needs_call = not declared.guard.plain or not self.single or (self.is_async and bool(declared.repairs))
        self.slots: Slots[Any] = Slots(declared.concurrency)  # at a batch stage a `GroupQueue` waits for them
        self.most_rounds = most_rounds  # of failed probes in a row, after which an outage counts as lasting
        self.rounds: int | None = None  # rounds of failed probes when its breaker first held an item up


class Phase:
    """
    What a pass does at present (it reads, drops items, cancels attempts) and its counts of items. The runner's parts
    share it.
    """

    __slots__ = ("cancelling", "dropping", "in_hand", "reading", "recording")

    def __init__(self) -> None:
        self.reading = True  # there may be items that are not read yet, and they are wanted
        self.dropping = False  # items that could go on are given back instead
        self.cancelling = False  # running attempts are not waited for any longer
        self.in_hand = 0  # items read and neither finished nor given back
        self.recording = 0  # items in hand that wait until their checkpoint is in the store


class RunFacts:
    """What all items of a run have in common."""

    __slots__ = ("audit_all", "base_us", "follows", "known_by", "monotonic", "pass_", "pipeline", "run_id")

    def __init__(
        self,
        *,
        pipeline: str,
        run_id: str,
        pass_: int,
        monotonic: Callable[[], float],
        wall_us: int,
        audit_all: bool,
        known_by: Callable[[str], str] | None = None,
        follows: Callable[[Exception, StopReason], float | StopReason] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.run_id = run_id
        self.pass_ = pass_
        self.monotonic = monotonic
        self.base_us = wall_us - int(monotonic() * 1e6)
        self.audit_all = audit_all
        self.known_by = known_by
        self.follows = follows

    def retried_after(self, error: Exception, reason: StopReason | None) -> float | None:
        """The seconds until the run itself is retried for an item that gave up; None if it has failed for good."""
        answer = None if self.follows is None or reason is None else self.follows(error, reason)
        return answer if isinstance(answer, float) else None


class Item:
    """One item of a run. During its attempts it is in `current_work`, for `outlast.current` and for log records."""

    # What an item that comes through at once never changes stands here, on the class: making one must cost little.
    call: StageCall | None = None
    notes: Notes | None = None
    stage: RunStage
    status: ItemStatus | None = None
    reason: str | None = None
    stop_reason: StopReason | None = None  # why a failed item was not tried again
    warnings: list[str] | None = None
    spent: dict[str, float] | None = None
    degraded = False
    started: float | None = None
    attempts = 0
    wait = 0.0
    why = ""  # what it waits for: a kind and, where there are several, a name; see `AttemptRow`
    since = 0.0  # when this wait began
    waits: dict[str, int] | None = None  # what it has waited for since its last row, in microseconds
    unplaced: dict[str, int] | None = None  # waits before attempts that have no row, in microseconds
    seen = 0  # the value of `calls.state.latest` when the attempt began
    repaired = numbered = 0  # repairs tried at this stage, and the attempts before the newest of them
    mended_at: int | None = None  # the stage for which a repair has made its value
    needs_fallback = False  # the fallback answers next
    fallback_cause: Exception | None = None  # the error for which the fallback answers; None: for an unwanted result
    first_failed: float | None = None
    snoozed: tuple[int, float] | None = None  # the stage that asked for it last, and when it did so first
    throttled_at: float | None = None
    throttled = False
    letter: Any = None  # the dead letter that is replayed
    origin: Any = None  # the run that it comes from, if its output comes home to it
    untried: str | None = None  # why the letter cannot be replayed
    output: Any = None
    before: Any = None  # the input of the stage whose checkpoint is being recorded
    saved: tuple[int, bytes] | None = None  # its last checkpoint: the stage that goes on from there, and what it gets
    error: Exception
    verdict: Verdict
    failed_at: str

    def __init__(self, seq: int, key: str, value: Any) -> None:
        self.seq = seq
        self.key = key
        self.source = self.value = value
        self.at = 0
        self.rows: list[AttemptRow] = []

    @property
    def untouched(self) -> bool:
        """Whether nothing was tried with it yet at the stage it is at."""
        if self.repaired or self.needs_fallback or (self.snoozed is not None and self.snoozed[0] == self.at):
            return False
        return self.call is None or self.call.tries == 0

    # -- as the current work of the context

    def enter(self, call: StageCall) -> None:
        """Called inside of an attempt's own context, before an attempt with a call of its own."""
        running.set(call)
        current_work.set(self)

    def context(self) -> Context:
        """What `current` says during a first attempt that has no call yet."""
        from outlast.calls.records import Context

        return Context(
            max_attempts=self.stage.guard.retry.max_attempts, key=self.idempotency_key, notes=self._take_notes
        )

    @property
    def told(self) -> dict[str, Any]:
        """Of items, events of calls that are made in a stage say nothing."""
        return {}

    def fill(self, context: Context) -> None:
        """What `current` says in a stage, and in any call that is made there."""
        context.run_id, context.item_key, context.stage = self.stage.run.run_id, self.key, self.stage.name
        context.item_keys = (self.key,)

    def _take_notes(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    def idempotency_key(self) -> str:
        """The same in every attempt at this stage, also after a resume."""
        run = self.stage.run
        own = f"{run.run_id}\x1f{self.seq}" if run.known_by is None else run.known_by(self.key)
        parts = f"{own}\x1f{self.stage.name}\x1f{self.repaired}"
        return blake2b(parts.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    # -- before an attempt

    def begin(self, stage: RunStage) -> Next | None:
        """None: attempt now. Anything else: not yet, or not at all."""
        call = self.call
        if call is None:
            call = self.call = StageCall(stage.guard, stage.name)
            call.item, self.stage = self, stage
            if stage.guard.cost is not None:
                try:
                    call.estimate((self.value,), stage.kwargs)
                except Exception as error:  # noqa: BLE001 - what it would cost is not known, so it is not called
                    self.give_up(stage.name, error)
                    return Next.END
        try:
            wait = call.begin()
        except Ended as end:
            return self.final_result(stage, end.result)
        except Exception as error:  # noqa: BLE001 - the end of this item at this stage
            return self.final_error(stage, error)
        if wait is None:
            return None
        self.why = call.held_up_by()
        if call.turn is not None:
            return Next.LINE
        self.wait = wait
        return Next.WAIT

    def waited(self, now: float) -> None:
        """What it waited for `since` then has come, or will not come."""
        waits = self.waits or {}
        waits[self.why] = waits.get(self.why, 0) + int((now - self.since) * 1e6 + 0.5)
        self.waits = waits

    # -- after an attempt

    def succeeded(self, stage: RunStage, result: Any, began: float) -> Next:
        """An attempt returned."""
        call, run = self.call, stage.run
        now = run.monotonic()
        if self.started is None:
            self.started = began
        number = 1 + self.numbered
        if call is not None:
            number = call.tries + self.numbered
        notes = self._said()
        if notes is not None:
            self._keep(notes)
        again = None if call is None else call.succeeded(result)
        self.attempts += 1
        if again is not None:
            if self.first_failed is None:
                self.first_failed = now
            why = "retry_if wants another result"
            self._row(stage, number, "retrying", began, now, error=why, delay=again, spent=_spent(notes))
            self.wait, self.why = again, "result"
            return Next.WAIT
        if notes is not None or self.waits is not None or not run.audit_all:
            self._row(stage, number, "success", began, now, spent=_spent(notes))
        else:
            self.rows.append(
                _row(
                    AttemptRow,
                    (
                        self.seq,
                        stage.index,
                        run.pass_,
                        number,
                        "success",
                        int(began * 1e6) + run.base_us,
                        int((now - began) * 1e6),
                        *_UNTOLD,
                    ),
                )
            )
        return self.final_result(stage, result)

    def succeeded_at_once(self, stage: RunStage, result: Any, began: float) -> Next:
        """
        As `succeeded`, in one piece, for a first attempt that needed no call and said nothing: nearly all of them.
        """
        if self.notes is not None or result.__class__ is Degraded or self.repaired or self.waits is not None:
            return self.succeeded(stage, result, began)
        run = stage.run
        if self.started is None:
            self.started = began
        self.attempts += 1
        if run.audit_all or self.first_failed is not None:
            took, base = int((run.monotonic() - began) * 1e6), run.base_us
            start = int(began * 1e6) + base
            self.rows.append(_row(AttemptRow, (self.seq, stage.index, run.pass_, 1, "success", start, took, *_UNTOLD)))
        if stage.last:
            self.output = result
            self.status = "succeeded"
            return Next.END
        if stage.declared.checkpoint:
            self.before = self.value
        self.at += 1
        self.value = result
        return stage.onward

    def final_result(self, stage: RunStage, result: Any) -> Next:
        """The stage has its last result; if that is one that `retry_if` does not want, the fallback answers."""
        call, fallback = self.call, stage.guard.fallback
        if fallback is None or call is None or call.reason is None or not call.world.retries:
            return self.advance(stage, result)
        self.needs_fallback, self.fallback_cause = True, None
        return Next.GO

    def advance(self, stage: RunStage, result: Any) -> Next:
        """The stage has its output: the item goes on to the next one, or has succeeded."""
        if result.__class__ is Degraded:
            self.degraded = True
            self.warn(f"degraded at {stage.name}: {result.why}")
            result = result.value
        if self.call is not None or self.notes is not None:
            self.call = self.notes = None
        if self.repaired:
            self.repaired = self.numbered = 0
        if stage.last:
            self.output = result
            self.status = "succeeded"
            return Next.END
        self.at = stage.index + 1
        before, self.value = self.value, result
        if stage.declared.checkpoint:
            self.before = before
            return Next.RECORD
        return Next.GO

    def failed(self, stage: RunStage, error: Exception, began: float) -> Next:
        """An attempt raised."""
        shorten(error)
        run = stage.run
        now = run.monotonic()
        if self.started is None:
            self.started = began
        if isinstance(error, Skip):
            return self._skipped(stage, error, began, now)
        if isinstance(error, Snooze):
            return self._snoozed(stage, error, began, now)
        call = self.call
        if call is None:
            call = self.call = StageCall(stage.guard, stage.name, self.seen)
            call.item = self
            if self.notes is not None:
                call.notes, self.notes = {1: self.notes}, None
        stop = stopping.get()
        if stop is not None and stop.is_set() and not call.is_final(error):
            # It may have failed because of that, which says nothing about the item. That it was made stays on record.
            self._kept_only(stage, error, began, now)
            self.reason = "shutdown"
            return Next.BACK
        number = call.tries + self.numbered
        notes = (call.notes or {}).get(call.number)
        if notes is not None:
            self._keep(notes)
        uncharged = call.uncharged
        wait = call.failed(error)
        if self.first_failed is None:
            self.first_failed = now
        if wait is not None and call.reason is None:
            self.attempts += 1
            verdict = call.rows[-1][4]
            self._failure(stage, error, verdict, number, began, now, wait, notes)
            self.wait = wait
            self.why = "retry" if verdict is None or verdict.retry_after is None else "retry_after"
            if isinstance(error, CircuitBreakerOpenError):
                self.why = f"breaker {error.name}"
            if call.uncharged != uncharged:
                self.why = call.at_limit("throttled")
            return Next.WAIT
        return self.final_error(stage, error, (number, began, now, notes))

    def cut_short(self, stage: RunStage, began: float) -> None:
        """The run does not wait for this attempt any longer; the item stays unfinished."""
        error = InterruptedError("the run was asked to end, and did not wait for this attempt")
        self._kept_only(stage, error, began, stage.run.monotonic())

    def _kept_only(self, stage: RunStage, error: Exception, began: float, now: float) -> None:
        """The attempt is on record and decides nothing."""
        if self.started is None:
            self.started = began
        notes = self._said()
        if notes is not None:
            self._keep(notes)
        self._failure(stage, error, classify(error), self._number(), began, now, 0.0, notes)
        self.attempts += 1

    def final_error(
        self, stage: RunStage, error: Exception, attempt: tuple[int, float, float, Notes | None] | None = None
    ) -> Next:
        """No further attempt at this stage; `attempt` is the one that has just failed, if that is what ended it."""
        call = self.call
        reason = None if call is None else call.reason
        verdict = classify(error)
        if reason in UNFINISHED:
            if attempt is not None:
                self.attempts += 1
                self._failure(stage, error, verdict, attempt[0], attempt[1], attempt[2], 0.0, attempt[3])
            self.reason = reason
            return Next.BACK
        if attempt is not None:
            self.attempts += 1
            number, began, now, notes = attempt
            again = stage.run.retried_after(error, reason)
            told = reason if again is None else None
            self._failure(stage, error, verdict, number, began, now, again, notes, stop_reason=told)
        if (
            reason in _REPAIRABLE
            and self.repaired < len(stage.declared.repairs)
            and not verdict.fatal
            and verdict.status != _BAD_REQUEST
            and self._repair(stage, error)
        ):
            if attempt is not None:  # it is tried again after all, with another input
                self.rows[-1] = self.rows[-1]._replace(outcome="retrying", delay_us=0, stop_reason=None)
            return Next.GO
        if stage.guard.fallback is not None and (call is None or call.covers(error)):
            self.needs_fallback, self.fallback_cause = True, error
            self.stop_reason = reason
            return Next.GO
        self.give_up(stage.name, error, verdict, reason)
        return Next.END

    def fell_back(self, stage: RunStage, result: Any = None, error: Exception | None = None) -> Next:
        """The fallback has answered, or failed too. It is no attempt; what it spends is booked with the last one."""
        self.needs_fallback = False
        if self.notes is not None:
            self._keep(self.notes)
            if self.notes.spent and self.rows:
                self.rows[-1] = self.rows[-1]._replace(spent=sum_of(self.rows[-1].spent, self.notes.spent))
        cause, stop_reason, self.stop_reason = self.fallback_cause, self.stop_reason, None
        self.fallback_cause = None  # it leads to frames, and those to the item
        if error is None:
            after = "a result that retry_if does not want" if cause is None else type(cause).__name__
            self.warn(f"the fallback of {stage.name} answered after {after}")
            self.degraded = True
            if self.call is not None:
                self.call.fell_back(cause)
            return self.advance(stage, result)
        if raised.context(error) is None and error is not cause:
            raised.set_context(error, cause)
        self.give_up(stage.name, error, stop_reason=stop_reason)
        return Next.END

    def give_up(
        self,
        stage: str,
        error: Exception,
        verdict: Verdict | None = None,
        stop_reason: StopReason | None = "permanent",
    ) -> None:
        """The item has failed for good. What cannot be read or written is not even tried again: it is permanent."""
        self.verdict = verdict or classify(error)
        self.stop_reason = stop_reason
        self.error = error
        self.failed_at = stage
        # The service was asked too often, or a circuit inside of the stage was open: neither is the item's fault.
        self.throttled = (
            refusal(error, self.verdict) is not None
            or getattr(self.call, "reason", None) in _BLAMELESS
            or self.verdict.error_class == "circuit_open"
        )
        self.reason = f"{stage}: {type(error).__name__}: {error_text(error)}"
        self.status = "failed"

    def forget(self) -> None:
        """Its failure is on record. An error leads to frames and those to the item: a circle is not freed at once."""
        self.call = self.notes = None
        self.__dict__.pop("error", None)

    # -- what may be said instead of an output

    def _skipped(self, stage: RunStage, skip: Skip, began: float, now: float) -> Next:
        number, notes = self._number(), self._said()
        if self.call is not None:
            self.call.interrupted(NEUTRAL)
        if notes is not None:
            self._keep(notes)
        self.attempts += 1
        self._row(stage, number, "success", began, now, spent=_spent(notes))
        self.status, self.reason = "skipped", sanitise(str(skip.reason))
        return Next.END

    def _snoozed(self, stage: RunStage, snooze: Snooze, began: float, now: float) -> Next:
        number = self._number()
        if self.call is not None:
            self.call.interrupted(NEUTRAL)
            self.call.number -= 1
        if self.snoozed is None or self.snoozed[0] != stage.index:
            self.snoozed = (stage.index, now)
        if now + snooze.delay - self.snoozed[1] > LONGEST_SNOOZE:
            message = (
                f"expected what {stage.name} waits for to come within 7 days of its first Snooze, "
                f"got: a Snooze of another {snooze.delay:g} s"
            )
            error = PermanentFailure(message)
            self.attempts += 1
            self._failure(stage, error, classify(error), number, began, now, None, self._said())
            self.give_up(stage.name, error)
            return Next.END
        self.wait, self.why = snooze.delay, "snooze"
        return Next.WAIT

    def _repair(self, stage: RunStage, error: Exception) -> bool:
        repair = stage.declared.repairs[self.repaired]
        self.repaired += 1
        name = getattr(repair, "__name__", type(repair).__name__)
        try:
            self.value = repair(self.value, error)
        except Exception as broken:  # noqa: BLE001 - then the item fails as it would have without
            self.warn(f"{name} could not repair the input of {stage.name}: {type(broken).__name__}")
            return False
        self.mended_at = stage.index
        self.numbered += 1 if self.call is None else self.call.tries
        self.call = self.notes = None
        self.warn(f"input of {stage.name} repaired by {name} after {type(error).__name__}")
        return True

    # -- the record

    def parted(self, stage: RunStage, error: Exception, verdict: Verdict, began: float) -> None:
        """The attempt failed for all who were in it, and is made again in halves: on record, and not charged."""
        now, call = stage.run.monotonic(), self.call
        notes = None if call is None or call.notes is None else call.notes.pop(call.number + 1, None)
        if notes is not None:
            self._keep(notes)
        if self.started is None:
            self.started = began
        if self.first_failed is None:
            self.first_failed = now
        self.attempts += 1
        self._failure(stage, error, verdict, self._number(), began, now, 0.0, notes)

    def _number(self) -> int:
        """Which attempt this is of those at this stage."""
        return self.numbered + (1 if self.call is None else self.call.tries)

    def _said(self) -> Notes | None:
        """What the code of this attempt has said."""
        return self.notes if self.call is None else (self.call.notes or {}).get(self.call.number)

    def warn(self, message: str) -> None:
        if self.warnings is None:
            self.warnings = []
        self.warnings.append(sanitise(message))

    def _keep(self, notes: Notes) -> None:
        """What the code of an attempt has said about it."""
        if notes.warnings:
            self.warnings = (self.warnings or []) + notes.warnings
        if notes.spent:
            self.spent = sum_of(self.spent, notes.spent)

    def _failure(
        self,
        stage: RunStage,
        error: Exception,
        verdict: Verdict | None,
        number: int,
        began: float,
        now: float,
        delay: float | None,
        notes: Notes | None,
        *,
        stop_reason: StopReason | None = None,
    ) -> None:
        self._row(
            stage,
            number,
            "failed" if delay is None else "retrying",
            began,
            now,
            error_class=None if verdict is None else verdict.error_class,
            error_type=type(error).__name__,
            error=error_text(error),
            delay=delay,
            spent=_spent(notes),
            stop_reason=stop_reason,
        )

    def _row(
        self,
        stage: RunStage,
        number: int,
        outcome: Any,
        began: float,
        now: float,
        *,
        error_class: str | None = None,
        error_type: str | None = None,
        error: str | None = None,
        delay: float | None = None,
        spent: Mapping[str, float] | None = None,
        stop_reason: StopReason | None = None,
    ) -> None:
        run = stage.run
        waits, self.waits = self.waits, None
        if outcome == "success" and not run.audit_all and self.first_failed is None:
            self.unplaced, waits = added(self.unplaced, waits), None
            if not spent:
                return
            # What was spent is needed if the item is not finished in this pass; `Endings` leaves the row out otherwise.
        self.rows.append(
            AttemptRow(
                self.seq,
                stage.index,
                run.pass_,
                number,
                outcome,
                int(began * 1e6) + run.base_us,
                int((now - began) * 1e6),
                error_class,
                error_type,
                error,
                None if delay is None else int(delay * 1e6),
                spent,
                waits,
                stop_reason,
            )
        )


def sum_of(some: Mapping[str, float] | None, more: Mapping[str, float]) -> dict[str, float]:
    """What was spent, and what was spent besides."""
    total = dict(some or {})
    add_to(total, more)
    return total


def _spent(notes: Notes | None) -> dict[str, float] | None:
    return None if notes is None else notes.spent or None


def added(one: dict[str, int] | None, other: dict[str, int] | None) -> dict[str, int] | None:
    """The waits of both."""
    if one is None or other is None:
        return one or other
    return one | {why: one.get(why, 0) + waited for why, waited in other.items()}
