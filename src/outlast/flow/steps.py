"""
One step of a flow's run, in a thread of its own: its attempts, or those at what undoes it, each of them on record.

A `StepCall` is the protected call of a step. Before an attempt it asks the store for the right to make it, and after it
the store knows how it ended, in one transaction with what follows from that; only then is anything else done. What was
begun and has no end on record is a crash, and whoever goes on with the run sees it.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from outlast.calls.drivers import run
from outlast.calls.state import Call, Ended, current_work, stop_reason
from outlast.components.registry import find_component
from outlast.components.running import NO_ROW, Place, StepContext, do_work, in_child, load
from outlast.deadletters.fingerprints import fingerprint
from outlast.errors import AttemptTimeoutError, LeaseLost, PermanentFailure, TemporaryFailure, TotalTimeoutError
from outlast.flow.filling import Values
from outlast.flow.outputs import Outputs, keep
from outlast.flow.parts import guard_of
from outlast.flow.progress import DONE, PARTIAL, definition_of, plain, tried_since
from outlast.flow.underway import has_come_back, under_way
from outlast.kernel.clock import Stop, ahead_us, here, roll_for, stopping
from outlast.kernel.frames import traceback_of
from outlast.kernel.raised import NoFailure
from outlast.kernel.redact import error_text, remember_secret
from outlast.observe import captures, emit, listening
from outlast.pipeline.engine.attempts import failure_of, scripted
from outlast.pipeline.record.writer import as_row
from outlast.pipeline.stages import LONGEST_SNOOZE, Skip, Snooze
from outlast.spec.manifest import fingerprint as fingerprint_of
from outlast.spec.references import in_text
from outlast.store.faults import StoreError
from outlast.store.flows import Asked, RetriesBefore, StepAttempt, StepKey
from outlast.store.idempotency import IdempotencyConflict, IdempotencyMismatch, KeyDone, key_digest
from outlast.store.records import DeadLetterRow, from_us, to_us
from outlast.verdicts import classify, has_begun, mark_begun
from outlast.work.leases import certainly_dead
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outlast.calls.guard import Guard
    from outlast.calls.records import Context
    from outlast.deciding import Answer
    from outlast.kernel.aliases import StopReason
    from outlast.observe.events import Event
    from outlast.pipeline.home import Home
    from outlast.spec.manifest import Manifest, ManifestStep
    from outlast.store import Store
    from outlast.store.flows import Deed, FlowStep
    from outlast.store.records import EventRow, Lease, RunRecord, RunRequest
    from outlast.verdicts import Verdict

KEY_SECRET = "OUTLAST_IDEMPOTENCY_SECRET"  # noqa: S105 - the name of the variable
#: What keeps an attempt from being begun, if the run is asked for it. One that is cancelled is undone to its end.
_HEEDED: Mapping[Deed, frozenset[RunRequest]] = {
    "do": frozenset({"pause", "cancel", "compensate"}),
    "undo": frozenset({"pause"}),
}
INLINE_MAX_DELAY = 30.0  # seconds that a step of a durable job waits with its worker; for longer it goes to the queue


class Unfinished(Exception):
    """
    The rows or items of a step are not all done, because the flow winds down: it has not failed, and is gone on with.
    `lost`: it is another process's now. `left`: rows were given up in the middle, and nobody knows whether they were done.
    """

    def __init__(self, message: str, *, lost: LeaseLost | None = None, left: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        self.left = left


class OpenRows:
    """A step lost rows or items, and enough of them succeeded: it is a partial success, and a resume runs the open ones."""


class RowsLost(OpenRows, PermanentFailure):
    """Every open row failed permanently."""


class RowsPending(OpenRows, TemporaryFailure):
    """Another attempt of the job may do some of the open rows."""


class _StillRunning(PermanentFailure):
    """What is to be undone is still being done."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """What all steps of one pass of a run have in common."""

    home: Home
    store: Store
    record: RunRecord
    lease: Lease
    manifest: Manifest
    round: int
    root: str
    allowed: tuple[str, ...]
    secret: Mapping[str, Any] = field(repr=False)  # values of sensitive parameters
    hidden: tuple[str, ...] = field(repr=False)  # every secret of the flow, as a text
    connection: Callable[[str], Mapping[str, Any]]  # the fields of a connection, by its name
    stop: Stop  # ends waits, and lets nothing begin
    # In a durable job: the seconds until it is retried for a step that gave up, or why it is not.
    follows: Callable[[ManifestStep, Exception, StopReason, int | None], float | StopReason] | None = None
    attempts_left: int = 0  # of the job, after this one
    asked: Callable[[RunRequest], object] = lambda _: (
        None
    )  # told what the run is asked to do, from the thread of a step
    changed: Callable[[], object] = lambda: None  # called when a step begins to wait, from its thread
    outputs: dict[str, Outputs] = field(default_factory=dict)  # of steps that are done, as far as somebody has asked

    def output(self, step: str, name: str) -> Any:
        """What a step has put out under a name; KeyError if it has not."""
        return self.outputs_of(step)[name]

    def outputs_of(self, step: str) -> Outputs:
        """All that a step has put out."""
        found = self.outputs.get(step)
        if found is None:
            store, number = self.store, self.record.number
            data = keep_trying(lambda: store.outputs_of_step(number, step), "the store")
            if data is None:
                raise KeyError(step)
            found = self.outputs[step] = Outputs(data, self.home.codec, partial(self._part, step))
        return found

    def _part(self, step: str, name: str) -> bytes | None:
        store, number = self.store, self.record.number
        found: bytes | None = keep_trying(lambda: store.part_of_outputs(number, step, name), "the store")
        return found

    @property
    def requeues(self) -> bool:
        """Whether a durable job runs it: then long waits are for the queue, and dead letters are the job's."""
        return self.follows is not None

    def values(self) -> Values:
        """What references stand for."""
        return Values(plain(self.manifest.params), self.secret, self.output)


@dataclass(frozen=True, slots=True)
class StepEnd:
    """
    How a step came back from its thread. `state` is what is on record of it. `requeue` are the seconds after which
    another attempt is due that the queue waits for.
    """

    state: Literal["succeeded", "partial_success", "cached", "failed", "waiting", "pending", "lost", "broken"]
    error: BaseException | None = None
    reason: StopReason | None = None
    requeue: float | None = None
    row: FlowStep | None = None  # as it is on record then


class StepWork:
    """
    The work of one step, or of what undoes it, and what is on record of it. While it runs, `current_work` holds it.
    """

    def __init__(self, pass_: Pass, step: ManifestStep, deed: Deed, row: FlowStep | None) -> None:
        self.pass_ = pass_
        self.step = step
        self.deed: Deed = deed
        self.row = row
        self.made = 0 if row is None else row.made
        self.work = step.work_fingerprint
        self.definition = definition_of(step)
        undo = step.work.get("compensate", {})
        self.component_name = step.component if deed == "do" else str(undo["component"])
        self.template: Mapping[str, Any] = step.config if deed == "do" else undo["config"]
        self.idempotency = step.work.get("idempotency") if deed == "do" and "for_each" not in step.work else None
        # What must not be forgotten by a power cut.
        self.flushed = "compensate" in step.work or "idempotency" in step.work
        self.key: StepKey | None = None
        self.key_token: int | None = None
        self.since = 1  # the round since which one and the same deed is tried, or undone
        self.number = 0  # of the attempt under way, in the history
        self.noted = 0  # the same, among those of its call
        self.started_us = 0
        self.requeue: float | None = None
        self.end: StepEnd | None = None
        self.done: FlowStep | None = None  # as it is on record once it has succeeded
        self.around: Any = None  # the job that the run is in
        self.events: list[EventRow] = []  # what its calls have told, for the next write
        self.news: list[Event] = []  # what is told once it is on record
        self.call: StepCall | None = None
        self.retried = RetriesBefore(0, None)  # its attempts before this one of the job
        self.answer: tuple[Exception, float | StopReason] | None = None  # what the job does after this error
        # For who watches:
        self.due_us: int | None = None  # while it waits for another attempt
        self.last_error: str | None = None if row is None else row.error
        self.last_class: str | None = None if row is None else row.error_class
        self.counts: Mapping[str, int] | None = None  # of its rows or items
        self.items: Any = None  # the runs over them
        self.left = False  # of what is to be undone, everything is other runs' work

    @property
    def attempt(self) -> int:
        """The attempt under way, or the last one while it waits for another."""
        number = (0 if self.row is None else self.row.attempts) if self.call is None else self.call.number
        return number if self.due_us is not None else max(1, number)  # the first one is about to begin

    def give_up(self) -> None:
        """Nobody waits for it any longer: a process is killed, a thread is left. From the event loop."""
        attempt = None if self.call is None else self.call.thread
        if attempt is not None:
            attempt.abandon()
        if self.items is not None:
            self.items.give_up()

    def release(self) -> None:
        """
        An attempt that nobody waits for is on record as given back, which is no crash; unless it must not be done twice:
        then nobody knows whether it was. Of rows that are given up in the middle nobody knows either.
        """
        there = self.pass_
        if not self.number or self._once:
            return
        left = self.items is not None and self.items.rows_under_way
        ended = Unfinished("interrupted, with rows under way that nobody waited for", left=True) if left else None
        with suppress(LeaseLost, StoreError):  # it has just ended, or its end cannot be put on record either
            there.store.fail_attempt(
                there.lease,
                self._attempt("released" if ended is None else _outcome(ended, snoozed=False), ended),
                state="pending",
                charged=False,
                keeps_time=False,
                events=(),
                flushed=self.flushed,
                ahead_us=ahead_us(),
            )

    @property
    def _once(self) -> bool:
        """Whether it must not be done twice, and no key tells whether it was done."""
        return self.step.policy.get("idempotent") is False and self.key is None

    # -- for the code of the step

    @property
    def told(self) -> dict[str, Any]:
        """What events of calls that are made in the step say of it."""
        return {} if self.around is None else dict(self.around.told)

    def fill(self, context: Context) -> None:
        """What `current` says in a step, and in any call that is made there."""
        if self.around is not None:
            self.around.fill(context)
        context.run_id, context.stage = self.pass_.record.id, self.step.id

    def idempotency_key(self) -> str:
        """
        The same in every attempt and in every round, also after a crash, until the step is done or undone: an answer that
        was lost is no reason to do it twice. What undoes it has one of its own, for as long as it undoes the same deed.
        """
        parts = (self.pass_.record.id, self.step.id, self.deed, self.since)
        return blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16).hexdigest()

    def _tried_since(self) -> int:
        """By what is on record. In the first round there is nothing to look for."""
        there = self.pass_
        if there.round == 1:
            return 1
        store, number = there.store, there.record.number
        history = keep_trying(lambda: store.step_ends(number, self.step.id), "the store")
        before = there.round
        if self.deed == "undo":  # what is undone is what was tried last, which may be rounds ago
            before = max((one for deed, _, one in history if deed == "do"), default=before)
        return tried_since(history, before)

    def _retries_before(self) -> RetriesBefore:
        there = self.pass_
        if there.round == 1 or there.follows is None or self.deed == "undo":
            return RetriesBefore(0, None)
        store, number = there.store, there.record.number
        found: RetriesBefore = keep_trying(
            lambda: store.retries_before(number, self.step.id, self.deed, there.round), "the store"
        )
        return found

    def job_answer(self, error: Exception, reason: StopReason) -> float | StopReason:
        """After it gave up on this error: the seconds until its job is retried, or why there is no further attempt."""
        follows = self.pass_.follows
        if follows is None or self.deed == "undo":
            return reason
        if self.answer is None or self.answer[0] is not error:
            attempts = 1 if self.call is None else self.call.number
            self.answer = error, follows(self.step, error, self._reason(error, reason), attempts)
        return self.answer[1]

    def row_answer(self, error: Exception, reason: StopReason) -> float | StopReason:
        """The same of one of its rows or items: the job runs again what is open."""
        follows = self.pass_.follows
        return reason if follows is None or self.deed == "undo" else follows(self.step, error, reason, None)

    def _reason(self, error: Exception, reason: StopReason) -> StopReason:
        """Why it is not tried again. Whatever else was in the way: a new round must not do it twice either."""
        once = self.deed == "do" and self.step.policy.get("idempotent") is False
        if once and has_begun(error):
            return "ambiguous"
        return "incomplete" if isinstance(error, OpenRows) and self.deed == "do" else reason

    def context(self, row: Any = NO_ROW) -> StepContext:
        """What the component knows beside its config."""
        there, connection = self.pass_, self.template.get("connection")
        inputs = self.step.work.get("inputs", {}) if self.deed == "do" else {}
        return StepContext(
            pipeline=there.manifest.name,
            step=self.step.id,
            run_id=there.record.id,
            run_key=there.record.run_key,
            attempt=self.number,
            idempotency_key=self.idempotency_key(),
            root=there.root,
            allowed=there.allowed,
            connection=there.connection(connection) if isinstance(connection, str) else None,
            inputs=there.values().fill(inputs, self.template),
            row=row,
            hidden=there.hidden,
            undoes=self.deed == "undo",
            component=self.component_name,
            place=Place(
                store_url=there.home.store_url,
                app=there.home.name,
                run=there.record.number,
                token=there.lease.token,
                store=there.store,
            ),
        )

    def prepared(self) -> tuple[Callable[..., Any], tuple[Any, ...], Guard]:
        """What is called, with what, and what protects it. Raises what cannot be had."""
        if self.deed == "undo" and self.step.work.get("compensate", {}).get("per") == "row":
            from outlast.flow.items import prepared_undo

            return prepared_undo(self)
        if self.deed == "undo" and "for_each" in self.step.work and "idempotency" in self.step.work:
            from outlast.flow.items import prepared_if_others

            if (nothing := prepared_if_others(self)) is not None:
                self.left = True
                return nothing
        if self.component_name == "pipeline" or (self.deed == "do" and "for_each" in self.step.work):
            from outlast.flow.items import prepared

            return prepared(self)
        component = find_component(self.component_name)
        if component is None:
            message = f"the component {self.component_name} is not known here: install the package that has it"
            raise PermanentFailure(message, error_class="missing_dependency")
        values = self.pass_.values()
        config = values.fill(
            self.template, self.template, component.places
        )  # references that cannot be filled fail before anything is called
        self._find_key(values)
        guard = guard_of(self.step, what="step" if self.deed == "do" else "compensation", home=self.pass_.home)
        if guard.isolation == "process":
            return in_child, (self.component_name, config), guard
        load(component)
        return _in_thread, (component, [config]), guard

    def _find_key(self, values: Values) -> None:
        if self.idempotency is None:
            return
        rendered = values.key(self.idempotency["key"], self.template)
        scope = f"{self.pass_.manifest.name}.{self.step.id}"
        shown = values.shown({"config": self.template, "inputs": self.step.work.get("inputs", {})}, self.template)
        config = fingerprint_of("config", self.component_name, in_text(shown))
        self.key = StepKey(scope, key_digest(rendered, _key_secret()), config)

    # -- in its thread

    def do(self) -> StepEnd:
        """Make attempts until it is over; what became of it is on record."""
        self.around = current_work.get()
        context = copy_context()
        return context.run(self._do)

    def _do(self) -> StepEnd:
        current_work.set(self)
        captures.set((*captures.get(), self._hear))
        stopping.set(self.pass_.stop)
        there = self.pass_
        try:
            end = self._attempts()
            row = self.done
            if row is None:
                # What is not undone, because another run has done it since, is known by the step itself.
                deed: Deed = "do" if end.state == "cached" else self.deed
                row = keep_trying(lambda: there.store.flow_step(there.record.number, self.step.id, deed), "the store")
            return replace(end, row=row)
        except InterruptedError as error:  # asked to stop while the store was waited for, before anything was begun
            return StepEnd("pending", error)
        except LeaseLost as error:
            return StepEnd("lost", error)
        except Exception as error:  # noqa: BLE001 - of the store, or a defect of ours: a component's errors never come this way
            return StepEnd("broken", error)

    def _attempts(self) -> StepEnd:
        row, call = self.row, None
        try:
            self._wait_for_what_runs()
            self.since = self._tried_since()
            self.retried = self._retries_before()
            fn, args, guard = self.prepared()
            call = self._call(guard)
            wait = None
            if row is not None and row.state == "waiting" and row.due_us is not None:
                wait = max(0.0, (row.due_us - self._now_us()) / 1e6)
                if self._for_the_queue(wait):
                    return StepEnd("waiting", requeue=wait)
            if self.pass_.stop.is_set():
                return StepEnd("pending" if row is None else "waiting")
            given = (self, *args) if fn is _in_thread else self._remote(fn, args)
            run(call, scripted(fn, self.step.id), given, {}, wait)
        except Exception as error:
            if self.end is None:
                if isinstance(error, LeaseLost | StoreError | InterruptedError):
                    raise  # it could not be put on record
                self.end = self._ended_uncalled(call, error)
        assert self.end is not None  # noqa: S101 - every way out of a call is on record
        return self.end

    def _wait_for_what_runs(self) -> None:
        """
        Nothing is undone while an attempt at it that was left still runs in this process: it would do its work afterwards.
        Raises what the step could not be undone for; another process, or this one later, undoes it then.
        """
        if self.deed == "undo" and not has_come_back(self.pass_.record.id, self.step.id):
            raise _StillRunning(
                f"an attempt at {self.step.id} whose time was up still runs, and would go on after it was undone: "
                "undo it once that has ended, or its process has",
                error_class="timeout",
            )

    def _remote(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*args, self.context()) if fn is in_child else args

    def _call(self, guard: Guard) -> StepCall:
        row, clock = self.row, here.get().clock
        if row is None or (row.attempts == 0 and row.state != "waiting"):
            call = StepCall(guard, self.step.id)
        else:
            elapsed = 0.0 if row.began_us is None else max(0.0, (self._now_us() - row.began_us) / 1e6)
            last = None
            if row.error is not None:
                last = TemporaryFailure(row.error, error_class=row.error_class or "unknown")
            call = StepCall.resumed(
                guard,
                self.step.id,
                number=row.attempts,
                began=clock.monotonic() - elapsed,
                previous=None if row.previous_us is None else row.previous_us / 1e6,
                last_error=last,
            )
            call.tier = classify(last).tier if last is not None else call.tier
        call.work = self
        self.call = call
        return call

    def _now_us(self) -> int:
        return to_us(here.get().clock.now())

    def _for_the_queue(self, delay: float) -> bool:
        if not self.pass_.requeues or delay <= INLINE_MAX_DELAY:
            return False
        self.requeue = delay
        return True

    # -- on record

    def begin(self) -> None:
        """
        Ask for the right to make an attempt. Raises `Ended` with the outputs if the work was done before, also if the run is
        asked to pause or to be cancelled, and the error if somebody else is at it, or has done other work for the same key.
        """
        there = self.pass_
        if self.left and self.is_done():
            keep_trying(lambda: there.store.leave_step(there.lease, self.step.id, ahead_us=ahead_us()), "the store")
            self.end = StepEnd("cached")
            raise Ended(None)

        def ask() -> Any:
            try:
                return there.store.begin_step(
                    there.lease,
                    self.step.id,
                    self.deed,
                    made=self.made,
                    round_number=there.round,
                    work=self.work,
                    definition=self.definition,
                    key=self.key,
                    holder=there.record.id,
                    dead=certainly_dead,
                    flushed=self.flushed,
                    ahead_us=ahead_us(),
                    events=self._hit,
                    heeds=_HEEDED[self.deed],
                )
            except (IdempotencyConflict, IdempotencyMismatch) as said:  # which is not the store's own trouble
                return said

        begun = keep_trying(ask, "the store")
        if isinstance(begun, Exception):
            raise begun
        if isinstance(begun, Asked):  # heard before this comes back
            there.asked(begun.request)
            self.end = StepEnd("pending" if self.row is None and not self.made else "waiting")
            raise Ended(None)
        self.started_us, self.due_us = self._now_us(), None
        if isinstance(begun, KeyDone):
            self.end = StepEnd("cached")
            self._tell_news()
            raise Ended(None)
        self.made = self.number = begun.number
        self.began_us = begun.began_us
        self.noted = 0 if self.call is None else self.call.number
        self.key_token = begun.key_token
        self.pass_.changed()

    def is_done(self) -> bool:
        """Whether the step is on record as done."""
        there = self.pass_
        row = keep_trying(lambda: there.store.flow_step(there.record.number, self.step.id, "do"), "the store")
        return row is not None and row.state in DONE

    def _hit(self, done: KeyDone) -> list[EventRow]:
        from outlast.observe.events import IdempotencyHit

        hit = IdempotencyHit(**self._who(), done_at=from_us(done.succeeded_us), done_by=done.holder)
        self.news = [hit]
        return [as_row(hit)]

    def succeeded(self, came: Any) -> None:
        """An attempt has come back: with what it has put out on record, the step is done."""
        there = self.pass_
        kept = None if self.deed == "undo" else keep(came, there.home.codec, self.step.id, there.secret)
        told = list(self.events)
        if self.deed == "undo":
            from outlast.observe.events import CompensationCompleted

            self.news = [CompensationCompleted(**self._who())]
            told += map(as_row, self.news)
        ttl = None if self.idempotency is None else self.idempotency["cache_ttl_ms"] / 1000
        self.done = keep_trying(
            lambda: there.store.succeed_step(
                there.lease,
                self._attempt("succeeded"),
                work=self.work,
                outputs=None if kept is None else kept.data,
                parts=() if kept is None else kept.parts,
                packed=None if kept is None or self.key is None else kept.packed,
                key=self.key,
                key_token=self.key_token,
                ttl=ttl,
                events=told,
                flushed=self.flushed,
                ahead_us=ahead_us(),
            ),
            "the store",
            Stop(),  # what has come back is put on record, also while the run winds down
        )
        if kept is not None and not kept.parts:
            there.outputs[self.step.id] = Outputs(kept.data, there.home.codec, lambda _: None)
        self.events.clear()
        self._tell_news()
        self.end = StepEnd("succeeded")

    def failed(self, call: StepCall, error: Exception, delay: float | None, *, snoozed: bool = False) -> float | None:
        """An attempt has failed: what follows is on record. The delay, if it is waited for here."""
        reason = None if delay is not None else call.reason or "permanent"
        lost = isinstance(error, OpenRows) and self.deed == "do"
        state: Literal["waiting", "failed", "partial_success", "pending"] = PARTIAL if lost else "failed"
        if delay is not None or reason == "shutdown":
            state, reason = "waiting", None
        else:
            reason = self._reason(error, reason or "permanent")
        retry = None if reason is None else self.job_answer(error, reason)
        again = delay if delay is not None else retry if isinstance(retry, float) else None
        letter = self._letter(call, error, reason) if state == "failed" else None
        told = list(self.events)
        if state == "failed" and self.deed == "undo":
            told.append(self._not_undone(error, reason))
        if state == "waiting":
            again = again or 0.0
        there = self.pass_
        attempt = self._attempt(_outcome(error, snoozed=snoozed), error, reason if again is None else None)
        if state == "failed" and self._is_left_standing(error):
            attempt = attempt._replace(error=f"{attempt.error}; it may have been done, and nothing has undone it")
        keep_trying(
            lambda: there.store.fail_attempt(
                there.lease,
                attempt,
                state=state,
                stop_reason=reason,
                delay_us=None if again is None else round(again * 1e6),
                charged=not snoozed,
                keeps_time=delay is not None,
                letter=letter,
                events=told,
                flushed=self.flushed,
                ahead_us=ahead_us(),
            ),
            "the store",
            Stop(),  # as above
        )
        self.events.clear()
        self._tell_news()
        self.number, self.last_error, self.last_class = 0, attempt.error, attempt.error_class
        self.due_us = None if delay is None else self._now_us() + round(delay * 1e6)
        there.changed()
        if delay is not None and self._for_the_queue(delay):
            self.end = StepEnd("waiting", error, requeue=delay)
            return None
        if delay is None:
            self.end = StepEnd(state, error, reason)
        return delay

    def left_in_doubt(self, error: Exception) -> bool:
        """What must not be done twice is left on record as under way, as after a crash: whoever goes on with the run finds it so."""
        if self._once:
            self.end = StepEnd("waiting", error)
        return self._once

    def _is_left_standing(self, error: Exception) -> bool:
        """Whether its work may be done although it failed, and what undoes it is only for a step that came to its end."""
        undo = self.step.work.get("compensate") if self.deed == "do" else None
        return undo is not None and undo["when"] == "completed" and undo.get("per") != "row" and has_begun(error)

    def refused(self, call: StepCall | None, error: Exception, delay: float | None) -> None:
        """Nothing was called, and this is why: on record, without an attempt."""
        there, verdict = self.pass_, classify(error)
        reason = None if delay is not None else (stop_reason(error) or (call and call.reason) or "permanent")
        if isinstance(error, _StillRunning):
            reason = "still_running"
        wait = delay
        if wait is None and there.requeues and reason in {"breaker_open", "throttled"}:
            wait = max(1.0, getattr(error, "retry_after", None) or 60.0)
            self.requeue = min(wait, 3600.0)
        waits = wait is not None
        letter = None if waits else self._letter(call, error, reason)
        told = list(self.events)
        if not waits and self.deed == "undo":
            told.append(self._not_undone(error, reason))
        keep_trying(
            lambda: there.store.refuse_step(
                there.lease,
                self.step.id,
                self.deed,
                state="waiting" if waits else "failed",
                round_number=there.round,
                work=self.work,
                definition=self.definition,
                error=error_text(error),
                error_type=type(error).__name__,
                error_class=verdict.error_class,
                stop_reason=None if waits else reason,
                delay_us=round((wait or 0.0) * 1e6) if waits else None,
                letter=letter,
                events=told,
                ahead_us=ahead_us(),
            ),
            "the store",
        )
        self.events.clear()
        self._tell_news()
        if delay is None:
            self.end = StepEnd("waiting" if waits else "failed", error, None if waits else reason, self.requeue)

    def _ended_uncalled(self, call: StepCall | None, error: Exception) -> StepEnd:
        """It came to an end without an attempt that would have told it: nothing let it through, or a wait was ended."""
        if stop_reason(error) == "shutdown":  # what is on record says already when it goes on
            return StepEnd("waiting", error)
        if self.number and call is not None:  # an attempt is under way: whatever this is, it is how that has ended
            self.failed(call, error, None)
        else:
            self.refused(call, error, None)
        assert self.end is not None  # noqa: S101 - one of the two has just said it
        return self.end

    # -- rows and events

    def _attempt(self, outcome: Any, error: Exception | None = None, reason: StopReason | None = None) -> StepAttempt:
        verdict = None if error is None else classify(error)
        now = self._now_us()
        return StepAttempt(
            step=self.step.id,
            deed=self.deed,
            number=self.number,
            round=self.pass_.round,
            token=self.pass_.lease.token,
            worker=self.pass_.lease.owner,
            started_us=self.started_us,
            took_us=max(0, now - self.started_us),
            outcome=outcome,
            error_class=None if verdict is None else verdict.error_class,
            error_type=None if error is None else type(error).__name__,
            error=None if error is None else error_text(error),
            stop_reason=reason,
            traceback=None if error is None else traceback_of(error),
            spent=self._spent(),
        )

    def _spent(self) -> dict[str, float] | None:
        """What the code of the attempt has said that it used. An attempt that was left alone says no more to anybody."""
        notes = (self.call.notes or {}).get(self.noted) if self.call is not None else None
        return dict(notes.spent) if notes is not None and notes.spent else None

    def _letter(self, call: StepCall | None, error: Exception, reason: StopReason | None) -> DeadLetterRow | None:
        there = self.pass_
        if self.deed == "do" and (there.requeues or not self.step.policy.get("dead_letter", True)):
            return None
        said = (error_text(error), type(error).__name__, classify(error).error_class)
        attempts = 0 if call is None else call.number
        return letter_of(
            there.home, there.record, self.step, self.deed, said, reason, attempts, self.started_us or self._now_us()
        )

    def _who(self) -> dict[str, Any]:
        there = self.pass_
        return {
            "run_id": there.record.id,
            "pipeline": there.manifest.name,
            "run_key": there.record.run_key,
            "step_id": self.step.id,
            "component": self.component_name,
        }

    def _not_undone(self, error: Exception, reason: StopReason | None) -> EventRow:
        from outlast.observe.events import CompensationFailed

        verdict = classify(error)
        told = CompensationFailed(
            **self._who(),
            error=error_text(error),
            error_type=type(error).__name__,
            error_class=verdict.error_class,
            reason=reason,
        )
        self.news = [told]
        return as_row(self.news[0])

    def _tell_news(self) -> None:
        """Tell those who listen what is on record now."""
        news, self.news = self.news, []
        if news and listening():
            token = captures.set(tuple(one for one in captures.get() if one != self._hear))
            for event in news:
                emit(event)
            captures.reset(token)

    def _hear(self, event: Event) -> None:
        """What its calls tell is on record with the attempt."""
        if event.run_id in (None, self.pass_.record.id) and len(self.events) < 1000:
            row = as_row(event)
            self.events.append(row if row.run is not None else _of_run(row, self.pass_.record.id))


def letter_of(
    home: Home,
    record: RunRecord,
    step: ManifestStep,
    deed: Deed,
    said: tuple[str, str, str],
    reason: StopReason | None,
    attempts: int,
    started_us: int,
) -> DeadLetterRow:
    """
    The dead letter of a step that has failed for good, or of what could not undo it. `said` are the text of the error,
    its type and its class.
    """
    text, kind, error_class = said
    part = step.work if deed == "do" else step.work["compensate"]
    component = str(part["component"])
    payload = {"step": step.id, "component": component, "config": plain(part["config"])}
    return DeadLetterRow(
        id=here.get().ids.new(),
        run=record.id,
        seq=None,
        pipeline=record.pipeline,
        stage=step.id,
        item_key=record.run_key,
        kind="step" if deed == "do" else "compensation",
        payload=home.codec.encode(payload),
        error=text,
        error_type=kind,
        error_class=error_class,
        tier=classify(TemporaryFailure(text, error_class=error_class)).tier,
        fingerprint=fingerprint(step.id, error_class, kind, text),
        attempts=max(1, attempts),
        first_failed_us=started_us,
        last_attempt_us=started_us,
        created_us=to_us(here.get().clock.now()),
        metadata={"component": component, "flow": record.pipeline},
        stop_reason=reason,
    )


def _key_secret() -> bytes | None:
    """What digests of keys are made with, if somebody has said it: without it nobody can try out keys."""
    value = os.environ.get(KEY_SECRET)
    if not value:
        return None
    remember_secret(value)
    return value.encode()


def keys_mark() -> str:
    """A digest that tells one secret of idempotency keys from another, and from none."""
    return key_digest("keys of this run", _key_secret())


def _of_run(row: EventRow, run: str) -> EventRow:
    return replace(row, run=run, data={**row.data, "run_id": run})


def _outcome(error: Exception, *, snoozed: bool) -> str:
    if isinstance(error, Unfinished):
        return "crashed" if error.left else "released"
    if snoozed:
        return "snoozed"
    if isinstance(error, AttemptTimeoutError | TotalTimeoutError):
        return "timeout"
    return "crashed" if classify(error).error_class == "worker_lost" else "failed"


def _in_thread(work: StepWork, component: Any, filled: list[Any]) -> Any:
    """
    The work of a component, in this thread. What would end a program is this step's failure. Each attempt has values of its
    own: one that changes them and fails leaves nothing of that to the next. `filled` are those of the first one.
    """
    try:
        with under_way(work.pass_.record.id, work.step.id) if work.deed == "do" else nullcontext():
            config = (
                filled.pop() if filled else work.pass_.values().fill(work.template, work.template, component.places)
            )
            return do_work(component, config, work.context())
    except BaseException as thrown:
        if isinstance(thrown, Exception):
            raise
        raise failure_of(f"the step {work.step.id}", thrown) from None


class StepCall(Call):
    """The protected call of a step. Its attempts are those of a round, whichever process has made them."""

    has_own_key = True
    work: StepWork

    def key(self) -> str:
        return self.work.idempotency_key()

    def roll(self) -> float:
        """The same for the same run, step and attempt: a run can be told again from its id."""
        there = self.work.pass_
        return roll_for(there.record.id, there.round, self.work.step.id, self.work.deed, self.number)

    def who(self) -> dict[str, Any]:
        work, own = self.work, self.guard.retry.max_attempts
        there, before = work.pass_, work.retried.attempts
        later = there.attempts_left * own if work.deed == "do" else 0  # the retries of its job
        return super().who() | {
            "run_id": there.record.id,
            "pipeline": there.manifest.name,
            "attempt": before + self.number,
            "max_attempts": before + own + later,
        }

    def _what(self, error: BaseException, verdict: Verdict) -> dict[str, Any]:
        found = super()._what(error, verdict)
        left = self.work.pass_.attempts_left if self.work.deed == "do" else 0
        own: int = found["max_retries"]
        return found | {"max_retries": self.work.retried.attempts + own + left * (own + 1)}

    def _tell_end(self, error: BaseException, reason: StopReason, verdict: Verdict | None) -> None:
        if verdict is None or not isinstance(error, Exception):
            super()._tell_end(error, reason, verdict)
            return
        answer = self.work.job_answer(error, reason)
        if isinstance(answer, str):
            super()._tell_end(error, reason, verdict)
        elif listening():
            self._tell_retry(error, verdict, answer, level="debug")  # the job logs that it is requeued

    # What an attempt may take counts for the code that asks how much time is left, and for what it calls.

    def left(self) -> float | None:
        limit = self.limit()
        return super().left() if limit is None else self._left_of(limit)

    def _left_of(self, limit: tuple[float, str]) -> float:
        gone = self.world.clock.monotonic() - self.attempt_began if limit[1] == "attempt" else 0.0
        own, whole = max(0.0, limit[0] - gone), super().left()
        return own if whole is None else min(own, whole)

    def left_in_all(self) -> float | None:
        return super().left()

    def context(self) -> Context:
        context, left = super().context(), self.left()
        context._key = self._ask_key  # noqa: SLF001 - known in every step, also with a plain guard
        if left is not None:
            context._deadline = self.world.clock.monotonic() + left  # noqa: SLF001 - the nearer of the two
        return context

    def begin(self) -> float | None:
        wait = super().begin()
        if wait is not None:
            return wait
        try:
            self.work.begin()
        except Ended:
            self.interrupted(GeneratorExit())  # it is not called: what it holds goes back, and says nothing
            raise
        except (IdempotencyConflict, IdempotencyMismatch) as said:
            self.interrupted(GeneratorExit())
            wait = super().failed(said)
            self.work.refused(self, said, wait)
            if wait is None:
                raise
        return wait

    def _follows(self, policy: Answer, now: float, **facts: bool) -> Answer:
        # A thread cannot be stopped, so there is no other attempt. Whether it ends before that was due is not waited for.
        if not isinstance(policy, str) and self.thread is not None and self.thread.running:
            return "still_running"
        return super()._follows(policy, now, **facts)

    def failed(self, error: Exception) -> float | None:
        if isinstance(error, Unfinished):
            self.interrupted(error)
            if error.lost is not None:
                raise error.lost
            self.reason = "shutdown"
            if error.left and self.work.left_in_doubt(error):
                return None
            # Where what was begun is to be undone, it counts: else nobody would know that it was.
            begun = self.work.step.work.get("compensate", {}).get("when") == "started"
            return self.work.failed(self, error, None, snoozed=not begun)
        if isinstance(error, Snooze):
            self.interrupted(error)
            waited = (to_us(here.get().clock.now()) - self.work.began_us) / 1e6
            if waited + error.delay <= LONGEST_SNOOZE:
                self.number -= 1
                return self.work.failed(self, error, error.delay, snoozed=True)
            error = PermanentFailure("expected what the step waits for to come within 7 days of its first Snooze")
        elif isinstance(error, Skip | NoFailure):
            error = PermanentFailure(
                f"the step {self.name} raised {type(error).__name__}, which has no meaning in a step: return, if there is nothing to do",
                error_class="code_error",
            )
        return self.work.failed(self, error, super().failed(error))

    def succeeded(self, result: object) -> float | None:
        super().succeeded(result)
        if self.number == 1 and self.work.retried.attempts and listening():
            from outlast.observe.events import StepSuccess

            emit(StepSuccess(**self.who(), tier=classify(self.work.retried.error_class or "unknown").tier))
        try:
            self.work.succeeded(result)
        except PermanentFailure as unfit:  # what it has put out cannot be kept
            if self.work.items is None:  # rows and items are on record by themselves, and are not done again
                mark_begun(unfit)
            self.interrupted(GeneratorExit())
            self._finish(unfit, classify(unfit), "permanent", self.world.clock.monotonic())
            self.work.failed(self, unfit, None)
            raise
        return None
