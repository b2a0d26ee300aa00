"""
What becomes of an item that has ended: its rows, its output, its dead letter; and what its end means for the run.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from outlast.deadletters import fingerprint
from outlast.deadletters.beginnings import SOURCE, begins_at, inputs
from outlast.errors import PermanentFailure
from outlast.kernel.clock import here
from outlast.kernel.log import logger, warn
from outlast.kernel.redact import error_text
from outlast.observe import emit, listening
from outlast.pipeline.engine.item import added
from outlast.pipeline.errors import FailureBudgetExceeded
from outlast.pipeline.record.errorfile import as_json
from outlast.pipeline.record.rowerrors import InvalidRow, particulars
from outlast.pipeline.results import ItemResult
from outlast.store.records import (
    UNTRIED,
    Checkpoint,
    DeadLetterRow,
    FailedAgain,
    Failure,
    ItemRow,
    LetterFailure,
    Mended,
    Settled,
)
from outlast.work.memory import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.deadletters.beginnings import Inputs
    from outlast.pipeline.engine.item import Journey
    from outlast.pipeline.engine.runner import Runner
    from outlast.pipeline.record.writer import OriginPart, WriteBatch
    from outlast.store.codec import Codec

_NOTHING: dict[str, float] = {}


class Tally:
    """What happened at a stage."""

    __slots__ = ("dead", "retries", "skipped")

    def __init__(self) -> None:
        self.retries = 0
        self.skipped = 0
        self.dead = 0


class Ledger:
    """Belongs to the event loop of its runner."""

    def __init__(self, runner: Runner, codec: Codec, deliver: Callable[[ItemResult[Any]], None] | None = None) -> None:
        self._runner = runner
        self._codec = codec
        self._deliver = deliver
        plan = runner.plan
        self._known = plan.types()
        self._names = [stage.name for stage in plan.stages]
        self._warned: set[tuple[str, str]] = set()  # of what does not come back, by stage
        self._sink = runner.sink
        self._keep = plan.keep_outputs and self._sink is None
        self._dlq = plan.on_item_error != "collect"
        # For outputs in the order of the source: the items in hand, and of those the ones that have ended.
        self._queue: deque[Journey] | None = deque() if plan.ordered else None
        self._ended: dict[int, Journey] = {}
        self._missing: set[int] = set()  # those that stay unfinished: what comes behind them cannot be written in order
        self._heard = _loud()
        # Only while somebody watches: what became of items at each stage, and how many have ended behind so many stages.
        self.stages = [Tally() for _ in plan.stages]
        self.refusals = 0  # items that had ended well until the sink refused their outputs
        self.through = [0] * (len(plan.stages) + 1)
        self.entered = [0] * len(
            plan.stages
        )  # items that began at this stage: behind a checkpoint, or as a dead letter
        self.held = [0] * len(plan.stages)  # items on their way to it whose checkpoint is being recorded
        self._watched = plan.watch is not None
        self.before = runner.books.finished  # items that earlier passes have finished

    # -- from the runner

    def taken_in(self, journeys: Sequence[Journey]) -> None:
        if self._watched:
            for journey in journeys:
                if journey.at:
                    self.entered[journey.at] += 1
        if self._queue is not None:
            self._queue.extend(journeys)

    def finish(self, journey: Journey) -> None:
        """The item has a status."""
        if self._queue is None:
            self._write(journey)
            return
        self._ended[journey.seq] = journey
        if journey.status == "failed" and self._queue[0] is not journey and self._ends_it(journey):
            self._runner.begin_no_more()  # it stops the run when those before it have ended
        while self._queue and self._queue[0].seq in self._ended:
            self._write(self._ended.pop(self._queue.popleft().seq))
        self._forgo()

    def _ends_it(self, journey: Journey) -> bool:
        return journey.verdict.fatal or self._runner.plan.on_item_error == "stop"

    def given_back(self, journey: Journey) -> None:
        """The item stays unfinished; those behind it that have ended already cannot be written in order."""
        self._keep_attempts(journey)
        if self._queue is not None:
            self._missing.add(journey.seq)
            self._forgo()

    def _forgo(self) -> None:
        """What has ended behind an item that stays unfinished cannot be written in order: a resume does it again."""
        if not self._missing or not self._ended or self._queue is None:
            return
        behind = itertools.dropwhile(lambda one: one.seq not in self._missing, tuple(self._queue))
        for journey in [one for one in behind if one.seq in self._ended]:
            del self._ended[journey.seq]
            self._missing.add(journey.seq)
            self._keep_attempts(journey)
            self._runner.finished()

    def _keep_attempts(self, journey: Journey) -> None:
        """What was tried in vain stays on record, and so does what it has cost: the pass that finishes the item adds it up."""
        if journey.rows:
            self._runner.batches.batch.attempts += journey.rows
            if self._watched:
                self._tally_retries(journey)
            journey.rows = []
            self._runner.batches.added(entries=0)

    def unreadable(self, journey: Journey) -> None:
        """The item could not even be read, or its dead letter cannot be replayed."""
        broken = journey.value
        if journey.untried is not None:
            journey.started = self._runner.bearings.monotonic()
            journey.source = journey.value = None
            journey.reason = journey.untried
            if journey.status is None:
                journey.give_up(journey.letter.stage, broken.error)
                journey.reason = f"{UNTRIED}{journey.untried}"
            self.finish(journey)
            return
        journey.source = journey.value = broken.raw
        journey.started = self._runner.bearings.monotonic()
        journey.attempts = 1
        journey.give_up(SOURCE, broken.error)
        self.finish(journey)

    def checkpoint(self, journey: Journey) -> None:
        """The stage before the one the item is at has made this of it; it goes on when that is on record."""
        runner, batch = self._runner, self._runner.batches.batch
        stage = runner.plan.stages[journey.at - 1]
        try:
            kept = self._codec.keep(journey.value)
        except Exception as error:  # noqa: BLE001 - what cannot be stored cannot be a checkpoint
            journey.at -= 1
            journey.value = journey.before
            journey.give_up(stage.name, _unstorable(error, stage.name))
            runner.let_go(journey)
            return
        if kept.classes and (lacks := kept.lacks(self._known)):
            self._warn(journey, stage.name, f"the checkpoint of {stage.name}", lacks, "a resume does its stage again")
        journey.saved = (journey.at, kept.data)
        batch.checkpoints.append(Checkpoint(journey.seq, journey.key, journey.at - 1, stage.version, kept.data))
        batch.attempts += journey.rows
        if self._watched:
            self._tally_retries(journey)
            self.held[journey.at] += 1
        journey.rows = []
        batch.held.append(journey)
        runner.batches.added(len(kept.data), entries=0)

    def committed(self, batch: WriteBatch) -> None:
        """All of this is on record."""
        books = self._runner.books
        books.record(batch.items)
        if self._heard:
            for journey in batch.journeys:  # those that the sink could have refused
                self._tell_success(journey)
        if self._watched:
            for journey in batch.held:
                self.held[journey.at] -= 1
        if self._deliver is not None:
            for result in batch.told:
                self._deliver(result)

    # -- writing

    def _write(self, journey: Journey) -> None:
        runner, batch, bearings = self._runner, self._runner.batches.batch, self._runner.bearings
        status: Any = journey.status
        output: bytes | None = None
        size = 0
        if status == "succeeded":
            try:
                if self._sink is not None:
                    encoded = self._sink.encode(journey.output)
                    batch.outputs.append(encoded)
                    batch.keys.append(journey.key)
                    if self._sink.refuses:
                        batch.journeys.append(journey)
                    size = len(encoded) if encoded.__class__ is bytes else size_of(encoded)
                elif journey.origin is not None:
                    output = self._send_home(journey, batch)
                    size = 0 if output is None else len(output)
                elif self._keep:
                    output = self._codec.encode(journey.output)
                    size = len(output)
                elif self._deliver is not None:
                    size = size_of(journey.output)
            except Exception as error:  # noqa: BLE001 - an output that cannot be kept is no success
                last = runner.plan.stages[-1].name
                journey.give_up(last, _unstorable(error, last))
                status = "failed"
        letter: tuple[str, Inputs] | None = None
        failure: Failure | None = None
        if status == "failed":
            failure = _failure(journey)
            if self._dlq:
                status = "dlq"
                letter = self._kept(journey) if journey.letter is None else None
            output = self._particulars(journey, letter)
            size = 0 if letter is None else len(letter[1].payload)
        now = bearings.monotonic()
        started = now if journey.started is None else journey.started
        batch.items.append(
            tuple.__new__(  # without the detour through the named tuple's own __new__
                ItemRow,
                (
                    journey.seq,
                    journey.key,
                    status,
                    journey.at,
                    journey.attempts,
                    journey.degraded,
                    journey.reason,
                    tuple(journey.warnings) if journey.warnings else (),
                    journey.spent or _NOTHING,
                    output,
                    int(started * 1e6) + bearings.base_us,
                    int((now - started) * 1e6),
                    None
                    if journey.waits is None and journey.unplaced is None
                    else added(journey.unplaced, journey.waits),
                    failure,
                ),
            )
        )
        if journey.rows and (bearings.audit_all or journey.first_failed is not None):
            batch.attempts += journey.rows
        if journey.letter is not None:
            self._settle_letter(journey, batch, output, failure)
        if self._watched:
            self._tally(journey, status)
        if failure is None:
            if self._heard and status == "succeeded" and not (self._sink is not None and self._sink.refuses):
                self._tell_success(journey)
            stop = runner.books.judge(status, spent=journey.spent)
        else:
            stop = self._failed(journey, batch, letter, failure)
        if self._deliver is not None:
            batch.told.append(_result(journey, status))
        # The context of a task or a timer may remember the journey for a while; what it carried is in the batch.
        journey.output = None
        if self._sink is None or not self._sink.refuses:
            journey.source = journey.value = journey.saved = None
        runner.batches.added(size)
        runner.finished()
        if stop is not None:
            self._stop(stop, journey)
            journey.forget()
        elif status in {"dlq", "failed"}:
            journey.forget()
        if stop is None and runner.books.bounds.spend_limit and (what := runner.books.overspent) is not None:
            runner.stop_spending(what)

    def _send_home(self, journey: Journey, batch: WriteBatch) -> bytes | None:
        """Have the output written where the letter comes from; as it is kept by the store beside that."""
        sink = journey.origin.sink
        if sink is None:
            return self._codec.encode(journey.output)
        encoded = sink.encode(journey.output)
        part = batch.of(journey.origin)
        part.outputs.append(encoded)
        part.keys.append(journey.key)
        if sink.refuses:
            part.journeys.append(journey)
        try:
            return self._codec.encode(journey.output)
        except Exception:  # noqa: BLE001 - it is where it belongs; only this replay's own outputs go without
            return None

    def refused(self, batch: WriteBatch, part: WriteBatch | OriginPart, errors: Mapping[int, Exception]) -> None:
        """A sink will never take these outputs of the part: their items have failed after all."""
        places = {row.seq: place for place, row in enumerate(batch.items)}
        last = self._runner.plan.stages[-1].name
        for number, error in errors.items():
            journey = part.journeys[number]
            self._runner.books.take_back(spent=journey.spent)
            journey.give_up(last, error)
            status: Any = "dlq" if self._dlq else "failed"
            letter = self._kept(journey) if self._dlq and journey.letter is None else None
            failure = _failure(journey)
            place = places[journey.seq]
            batch.items[place] = batch.items[place]._replace(
                status=status,
                reason=journey.reason,
                degraded=False,
                warnings=tuple(journey.warnings or ()),
                output=self._particulars(journey, letter),
                failure=failure,
            )
            if journey.letter is not None:  # which stays open
                _take_back(journey, batch)
                self._settle_letter(journey, batch, batch.items[place].output, failure)
            if self._watched:
                self.through[journey.at + 1] -= 1
                self.through[journey.at] += 1
                self.stages[journey.at].dead += 1
                self.refusals += 1
            stop = self._failed(journey, batch, letter, failure)
            if stop is not None:
                self._stop(stop, journey)
            journey.forget()
        part.outputs = [each for number, each in enumerate(part.outputs) if number not in errors]
        part.keys = [each for number, each in enumerate(part.keys) if number not in errors]
        part.journeys = [each for number, each in enumerate(part.journeys) if number not in errors]

    def _failed(
        self, journey: Journey, batch: WriteBatch, letter: tuple[str, Inputs] | None, failure: Failure
    ) -> str | None:
        runner, bearings = self._runner, self._runner.bearings
        error, verdict = journey.error, journey.verdict
        stage = journey.failed_at
        text, kind, mark = error_text(error), type(error).__name__, failure.fingerprint or ""
        identity: dict[str, Any] = {
            "run_id": bearings.run_id,
            "pipeline": bearings.pipeline,
            "item_id": journey.key,
            "step_id": stage,
        }
        fields: dict[str, Any] = {"error": text, "error_type": kind, "error_class": verdict.error_class}
        heard = listening()
        if heard:
            from outlast.observe.events import ItemFailed

            emit(ItemFailed(**identity, **fields, attempts=journey.attempts))
        if letter is not None:
            row = self._letter(letter, journey, stage, text, kind, mark)
            batch.letters.append(row)
            if heard:
                from outlast.observe.events import DeadLetterEnqueue

                emit(DeadLetterEnqueue(**identity, **fields, letter_id=letter[0]))
        # What was not tried says nothing about the others.
        neutral = journey.throttled or journey.untried is not None
        stop = runner.books.judge("dlq", fingerprint=mark, throttled=neutral, spent=journey.spent)
        if verdict.fatal:
            return "fatal_error"
        if runner.plan.on_item_error == "stop":
            return "item_error"
        return stop

    def _kept(self, journey: Journey) -> tuple[str, Inputs]:
        """The id of a new dead letter, and what it keeps of the item."""
        kept = inputs(
            self._codec,
            self._known,
            self._names,
            at=journey.at,
            value=journey.value,
            source=journey.source,
            saved=journey.saved,
            mended=journey.mended_at == journey.at,
        )
        name = self._names[journey.at]
        if kept.unstored is not None:
            begins = kept.metadata.get("begins")
            after = "its dead letters cannot be replayed" if begins is None else f"a replay begins at {begins}"
            self._warn_once(journey, name, f"the input of {name} is not stored: {kept.unstored}; {after}")
        elif kept.lacks:
            self._warn(journey, name, f"the input of {name}", kept.lacks, "a replay begins earlier, if that can be had")
        return here.get().ids.new(), kept

    def _warn(self, journey: Journey, stage: str, what: str, lacks: Sequence[str], after: str) -> None:
        said = f"{what} holds {' and '.join(lacks)}, which no annotation of a stage brings back whole: {after}"
        self._warn_once(journey, stage, said)

    def _warn_once(self, journey: Journey, stage: str, message: str) -> None:
        """In the log, and with the first item that it concerns."""
        kind = message.partition(":")[0]
        if (stage, kind) not in self._warned:
            self._warned.add((stage, kind))
            journey.warn(message)
            warn("%s of %s: %s", stage, self._runner.plan.name, message)

    def _particulars(self, journey: Journey, letter: tuple[str, Inputs] | None) -> bytes:
        """Each error of its own, and the input as the source gave it, or the dead letter that has it."""
        told = particulars(journey.failed_at, journey.error, journey.verdict.error_class)
        known = letter[0] if letter is not None else None if journey.letter is None else journey.letter.id
        if known is not None:
            return self._codec.encode(told | {"letter": known})
        try:
            return self._codec.encode(told | {"input": journey.source})
        except Exception:  # noqa: BLE001 - the failure itself must be on record all the same
            return self._codec.encode(told | {"input": _looks(journey.source)})

    def _letter(
        self, letter: tuple[str, Inputs], journey: Journey, stage: str, text: str, kind: str, mark: str
    ) -> DeadLetterRow:
        bearings, verdict = self._runner.bearings, journey.verdict
        instant = self._instant
        letter_id, kept = letter
        metadata = kept.metadata
        if journey.warnings:
            metadata["warnings"] = journey.warnings[:20]
        return DeadLetterRow(
            id=letter_id,
            run=bearings.run_id,
            seq=journey.seq,
            pipeline=bearings.pipeline,
            stage=stage,
            item_key=journey.key,
            payload=kept.payload,
            error=text,
            error_type=kind,
            error_class=verdict.error_class,
            tier=verdict.tier,
            fingerprint=mark,
            attempts=_tries(journey),
            first_failed_us=instant(journey.first_failed),
            last_attempt_us=instant(None),
            created_us=instant(None),
            metadata=metadata,
            stop_reason=journey.stop_reason,
        )

    def _instant(self, at: float | None) -> int:
        bearings = self._runner.bearings
        return int((bearings.monotonic() if at is None else at) * 1e6) + bearings.base_us

    def _newest(self, journey: Journey, failure: Failure) -> LetterFailure:
        """How a replay of a letter has failed."""
        verdict = journey.verdict
        return LetterFailure(
            stage=journey.failed_at,
            error=error_text(journey.error),
            error_type=type(journey.error).__name__,
            error_class=verdict.error_class,
            tier=verdict.tier,
            fingerprint=failure.fingerprint or "",
            attempts=_tries(journey),
            first_us=self._instant(journey.first_failed),
            stop_reason=journey.stop_reason,
            begins=begins_at(journey.letter),
        )

    def _settle_letter(
        self, journey: Journey, batch: WriteBatch, output: bytes | None, failure: Failure | None
    ) -> None:
        worked = journey.status in {"succeeded", "skipped"}
        status: Any = "resolved" if worked else "open"
        again = None if failure is None or journey.untried is not None else failure
        newest = None if again is None else self._newest(journey, again)
        batch.resolved.append(Settled(journey.letter.id, status, newest, journey.untried, journey.seq))
        origin = journey.origin
        if origin is not None:
            batch.returned.append(origin)
            if again is not None and journey.letter.seq is not None:
                batch.of(origin).failed.append(
                    FailedAgain(journey.letter.seq, journey.seq, journey.reason, output, again)
                )
            if worked and journey.letter.seq is not None:
                batch.of(origin).mended.append(
                    Mended(
                        journey.letter.seq,
                        journey.seq,
                        cast("Any", journey.status),
                        journey.degraded,
                        journey.reason,
                        tuple(journey.warnings or ()),
                        output if origin.sink is None and self._sink is None else None,
                    )
                )
        if listening():
            from outlast.observe.events import DeadLetterReplay

            bearings = self._runner.bearings
            emit(
                DeadLetterReplay(
                    run_id=bearings.run_id,
                    pipeline=bearings.pipeline,
                    letter_id=journey.letter.id,
                    item_id=journey.key,
                    step_id=journey.letter.stage,
                    status=status,
                )
            )

    def _tell_success(self, journey: Journey) -> None:
        from outlast.observe.events import ItemSucceeded

        bearings = self._runner.bearings
        emit(
            ItemSucceeded(
                run_id=bearings.run_id,
                pipeline=bearings.pipeline,
                item_id=journey.key,
                step_id=bearings.pipeline,
                attempts=journey.attempts,
            )
        )

    def _tally_retries(self, journey: Journey) -> None:
        for row in journey.rows:
            if row.outcome == "retrying":
                self.stages[row.stage].retries += 1

    def _tally(self, journey: Journey, status: str) -> None:
        at = journey.at
        if (
            journey.first_failed is not None or journey.attempts > at + 1
        ):  # there may be retries, which most items have not
            self._tally_retries(journey)
        if status == "succeeded":
            self.through[at + 1] += 1
        else:
            self.through[at] += 1
            tally = self.stages[at]
            if status == "skipped":
                tally.skipped += 1
            else:
                tally.dead += 1

    # -- what it means for the run

    def _stop(self, reason: str, journey: Journey) -> None:
        runner, books = self._runner, self._runner.books
        if reason == "failure_budget_exceeded":
            stops = runner.stoppable
            self._over_budget(stopped=stops)
            if not stops:
                return
            message = (
                f"failure rate {books.rate:.1%} exceeds the budget of {books.bounds.failure_budget:.1%} "
                f"({books.failures} of {books.processed} items failed). Aborting run to prevent resource waste."
            )
            details = FailureBudgetExceeded(
                message,
                result=cast("Any", None),
                rate=books.rate,
                budget=books.bounds.failure_budget,
                processed=books.processed,
                failed=books.failures,
            )
            runner.stop(reason, details, drop=True)
        elif reason == "same_failure":
            if runner.stoppable:
                runner.detail = journey.reason or ""
                runner.stop(reason, journey.error, drop=True)
        else:
            runner.detail = journey.reason or ""
            runner.stop(reason, journey.error, drop=True)

    def _over_budget(self, *, stopped: bool) -> None:
        if not listening():
            return
        from outlast.observe.events import FailureBudgetExceeded as Told

        runner, books = self._runner, self._runner.books
        emit(
            Told(
                run_id=runner.record.id,
                pipeline=runner.plan.name,
                run_key=runner.record.run_key,
                rate=books.rate,
                budget=books.bounds.failure_budget,
                processed=books.processed,
                failed=books.failures,
                stopped=stopped,
            )
        )


def _take_back(journey: Journey, batch: WriteBatch) -> None:
    """The letter was settled as one that succeeded, and will be settled again."""
    batch.resolved = [settled for settled in batch.resolved if settled.letter != journey.letter.id]
    if journey.origin is not None:
        batch.returned.remove(journey.origin)
        part = batch.of(journey.origin)
        part.undone += [mended for mended in part.mended if mended.replayed == journey.seq]
        part.mended = [mended for mended in part.mended if mended.replayed != journey.seq]


def _tries(journey: Journey) -> int:
    """The attempts at the stage at which it failed."""
    return journey.numbered + (1 if journey.call is None else journey.call.tries)


def _failure(journey: Journey) -> Failure:
    """What is on record with a failed item: why it was not tried again, and which problem it has."""
    error, error_class, kind = journey.error, journey.verdict.error_class, type(journey.error).__name__
    problem = error.problem if isinstance(error, InvalidRow) else error_text(error)
    mark = fingerprint(journey.failed_at, error_class, kind, problem)
    return Failure(journey.stop_reason, mark, error_class, kind)


def _looks(value: Any) -> str:
    """What a person would see of it."""
    try:
        return as_json(value)[:100_000]
    except Exception:  # noqa: BLE001 - somebody else's class
        return f"<a value of type {type(value).__name__}>"


def _unstorable(error: Exception, stage: str) -> Exception:
    if isinstance(error, PermanentFailure):
        return error
    return PermanentFailure(f"the output of {stage} cannot be stored: {error}", error_class="validation_error")


def _result(journey: Journey, status: Any) -> ItemResult[Any]:
    return ItemResult(
        key=journey.key,
        status=status,
        value=journey.output if status == "succeeded" else None,
        error=journey.reason,
        attempts=journey.attempts,
        stop_reason=journey.stop_reason,
        warnings=tuple(journey.warnings or ()),
        spent=journey.spent or {},
    )


def _loud() -> bool:
    """Whether anybody wants to hear of each item that succeeds: there may be millions."""
    from outlast import observe
    from outlast.kernel.log import heard

    return bool(observe._hooks or observe.captures.get() or (heard() and logger().isEnabledFor(10)))  # noqa: SLF001 - one bus
