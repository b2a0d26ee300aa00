"""
What becomes of an item that has ended: its rows, its output, its dead letter; and whether its end stops the run.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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

    from outlast.components import Sink
    from outlast.deadletters.beginnings import Inputs
    from outlast.pipeline.engine.item import Item, Phase, RunFacts
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.record.books import Accounting
    from outlast.pipeline.record.writer import OriginPart, WriteBatch
    from outlast.work.writer import BatchWriter

_NOTHING: dict[str, float] = {}


class StageCounts:
    """What happened at one stage, for a display."""

    __slots__ = ("dead", "retries", "skipped")

    def __init__(self) -> None:
        self.retries = 0
        self.skipped = 0
        self.dead = 0


class Halt(NamedTuple):
    """Why an item's end stops the run. ``out_of_order``: it stops the run once all items before it have ended."""

    reason: str
    error: BaseException | None = None
    detail: str = ""


class Endings:
    """Makes rows of items that have ended, and says when that stops the run. It belongs to the event loop."""

    def __init__(
        self,
        plan: Plan,
        facts: RunFacts,
        phase: Phase,
        books: Accounting,
        writer: BatchWriter[WriteBatch],
        sink: Sink | None,
        deliver: Callable[[ItemResult[Any]], None] | None,
    ) -> None:
        self._facts = facts
        self._phase = phase
        self._books = books
        self._writer = writer
        self._sink = sink
        self._deliver = deliver
        self._codec = plan.home.codec
        self._stages = plan.stages
        self._known = plan.types()
        self._names = [stage.name for stage in plan.stages]
        self._warned: set[tuple[str, str]] = set()  # of what does not come back, by stage
        self._keep = plan.keep_outputs and sink is None
        self._dlq = plan.on_item_error != "collect"
        self._stops = plan.on_item_error == "stop"
        # For outputs in the order of the source: the items in hand, and of those the ones that have ended.
        self._queue: deque[Item] | None = deque() if plan.ordered else None
        self._ended: dict[int, Item] = {}
        self._missing: set[int] = set()  # items that stay unfinished: what comes behind them cannot be written in order
        self._heard = _loud()
        self._carried = plan.carried
        # Only while the run is watched: what became of items at each stage, and how many have ended behind so many.
        self._watched = plan.watch is not None
        self.stages = [StageCounts() for _ in plan.stages]
        self.refusals = 0  # items that had ended well until the sink refused their outputs
        self.through = [0] * (len(plan.stages) + 1)
        # Items that began at this stage: behind a checkpoint, or as a dead letter.
        self.entered = [0] * len(plan.stages)
        self.recording = [0] * len(plan.stages)  # items on their way to it whose checkpoint is being recorded
        self.before = books.finished  # items that earlier passes have finished

    # -- from the runner

    def taken_in(self, items: Sequence[Item]) -> None:
        """These are in hand from now on."""
        if self._watched:
            for item in items:
                if item.at:
                    self.entered[item.at] += 1
        if self._queue is not None:
            self._queue.extend(items)

    def finish(self, item: Item) -> Sequence[Halt]:
        """The item has a status; why that stops the run, if it does."""
        if self._queue is None:
            return self._write(item)
        halts: list[Halt] = []
        self._ended[item.seq] = item
        if item.status == "failed" and self._queue[0] is not item and (item.verdict.fatal or self._stops):
            halts.append(Halt("out_of_order"))
        while self._queue and self._queue[0].seq in self._ended:
            halts += self._write(self._ended.pop(self._queue.popleft().seq))
        self._forgo()
        return halts

    def given_back(self, item: Item) -> None:
        """The item stays unfinished; those behind it that have ended already cannot be written in order."""
        self._keep_attempts(item)
        if self._queue is not None:
            self._missing.add(item.seq)
            self._forgo()

    def _forgo(self) -> None:
        """What has ended behind an item that stays unfinished cannot be written in order: a resume does it again."""
        if not self._missing or not self._ended or self._queue is None:
            return
        behind = itertools.dropwhile(lambda one: one.seq not in self._missing, tuple(self._queue))
        for item in [one for one in behind if one.seq in self._ended]:
            del self._ended[item.seq]
            self._missing.add(item.seq)
            self._keep_attempts(item)
            self._phase.in_hand -= 1

    def _keep_attempts(self, item: Item) -> None:
        """Keep the rows of unfinished attempts, and what they have cost: the pass that finishes the item adds it up."""
        if item.rows:
            self._writer.batch.attempts += item.rows
            if self._watched:
                self._count_retries(item)
            item.rows = []
            self._writer.added(entries=0)

    def unreadable(self, item: Item) -> None:
        """The item could not even be read, or its dead letter cannot be replayed: it is to be finished."""
        broken = item.value
        if item.untried is not None:
            item.started = self._facts.monotonic()
            item.source = item.value = None
            item.reason = item.untried
            if item.status is None:
                item.give_up(item.letter.stage, broken.error)
                item.reason = f"{UNTRIED}{item.untried}"
            return
        item.source = item.value = broken.raw
        item.started = self._facts.monotonic()
        item.attempts = 1
        item.give_up(SOURCE, broken.error)

    def checkpoint(self, item: Item) -> bool:
        """Put the output of the stage before on record; the item goes on then. False if it has failed instead."""
        batch = self._writer.batch
        stage = self._stages[item.at - 1]
        try:
            kept = self._codec.keep(item.value)
        except Exception as error:  # noqa: BLE001 - what cannot be stored cannot be a checkpoint
            item.at -= 1
            item.value = item.before
            item.give_up(stage.name, _unstorable(error, stage.name))
            return False
        if kept.classes and (lacks := kept.lacks(self._known)):
            self._warn(item, stage.name, f"the checkpoint of {stage.name}", lacks, "a resume does its stage again")
        item.saved = (item.at, kept.data)
        batch.checkpoints.append(Checkpoint(item.seq, item.key, item.at - 1, stage.version, kept.data))
        batch.attempts += item.rows
        if self._watched:
            self._count_retries(item)
            self.recording[item.at] += 1
        item.rows = []
        batch.recording.append(item)
        self._writer.added(len(kept.data), entries=0)
        return True

    def recorded(self, batch: WriteBatch) -> None:
        """All of this is on record."""
        self._books.record(batch.items)
        if self._heard:
            for item in batch.sent:  # those that the sink could have refused
                self._tell_success(item)
        if self._watched:
            for item in batch.recording:
                self.recording[item.at] -= 1
        if self._deliver is not None:
            for result in batch.told:
                self._deliver(result)

    # -- writing

    def _write(self, item: Item) -> Sequence[Halt]:
        batch, facts = self._writer.batch, self._facts
        status: Any = item.status
        output: bytes | None = None
        size = 0
        if status == "succeeded":
            try:
                if self._sink is not None:
                    encoded = self._sink.encode(item.output)
                    batch.outputs.append(encoded)
                    batch.keys.append(item.key)
                    if self._sink.refuses:
                        batch.sent.append(item)
                    size = len(encoded) if encoded.__class__ is bytes else size_of(encoded)
                elif item.origin is not None:
                    output = self._send_home(item, batch)
                    size = 0 if output is None else len(output)
                elif self._keep:
                    output = self._codec.encode(item.output)
                    size = len(output)
                elif self._deliver is not None:
                    size = size_of(item.output)
            except Exception as error:  # noqa: BLE001 - an output that cannot be kept is no success
                last = self._names[-1]
                item.give_up(last, _unstorable(error, last))
                status = "failed"
        letter: tuple[str, Inputs] | None = None
        failure: Failure | None = None
        if status == "failed":
            failure = _failure(item)
            if self._dlq:
                status = "dlq"
                letter = self._kept(item) if item.letter is None else None
            output = self._particulars(item, letter)
            size = 0 if letter is None else len(letter[1].payload)
        now = facts.monotonic()
        started = now if item.started is None else item.started
        batch.items.append(
            tuple.__new__(  # without the detour through the named tuple's own __new__
                ItemRow,
                (
                    item.seq,
                    item.key,
                    status,
                    item.at,
                    item.attempts,
                    item.degraded,
                    item.reason,
                    tuple(item.warnings) if item.warnings else (),
                    item.spent or _NOTHING,
                    output,
                    int(started * 1e6) + facts.base_us,
                    int((now - started) * 1e6),
                    None if item.waits is None and item.unplaced is None else added(item.unplaced, item.waits),
                    failure,
                ),
            )
        )
        if item.rows and (facts.audit_all or item.first_failed is not None):
            batch.attempts += item.rows
        if item.letter is not None:
            self._settle_letter(item, batch, output, failure)
        if self._watched:
            self._count(item, status)
        if failure is None:
            if self._heard and status == "succeeded" and not (self._sink is not None and self._sink.refuses):
                self._tell_success(item)
            stop = self._books.judge(status, spent=item.spent)
        else:
            stop = self._failed(item, batch, letter, failure)
        if self._deliver is not None:
            batch.told.append(_result(item, status))
        # The context of a task or a timer may remember the item for a while; what it carried is in the batch.
        item.output = None
        if self._sink is None or not self._sink.refuses:
            item.source = item.value = item.saved = None
        self._writer.added(size)
        self._phase.in_hand -= 1
        if stop is not None:
            halt = self._halt(stop, item)
            item.forget()
            return (halt,)
        if failure is not None:
            item.forget()
        if self._books.bounds.spend_limit and (what := self._books.overspent) is not None:
            return (Halt("spend_limit", detail=what),)
        return ()

    def _send_home(self, item: Item, batch: WriteBatch) -> bytes | None:
        """Have the output written where the letter comes from; as it is kept by the store beside that."""
        sink = item.origin.sink
        if sink is None:
            return self._codec.encode(item.output)
        encoded = sink.encode(item.output)
        part = batch.of(item.origin)
        part.outputs.append(encoded)
        part.keys.append(item.key)
        if sink.refuses:
            part.sent.append(item)
        try:
            return self._codec.encode(item.output)
        except Exception:  # noqa: BLE001 - it is where it belongs; only this replay's own outputs go without
            return None

    def refused(
        self, batch: WriteBatch, part: WriteBatch | OriginPart, errors: Mapping[int, Exception]
    ) -> Sequence[Halt]:
        """A sink will never take these outputs of the part: their items have failed after all."""
        halts: list[Halt] = []
        places = {row.seq: place for place, row in enumerate(batch.items)}
        last = self._names[-1]
        for number, error in errors.items():
            item = part.sent[number]
            self._books.take_back(spent=item.spent)
            item.give_up(last, error)
            status: Any = "dlq" if self._dlq else "failed"
            letter = self._kept(item) if self._dlq and item.letter is None else None
            failure = _failure(item)
            place = places[item.seq]
            batch.items[place] = batch.items[place]._replace(
                status=status,
                reason=item.reason,
                degraded=False,
                warnings=tuple(item.warnings or ()),
                output=self._particulars(item, letter),
                failure=failure,
            )
            if item.letter is not None:  # which stays open
                _take_back(item, batch)
                self._settle_letter(item, batch, batch.items[place].output, failure)
            if self._watched:
                self.through[item.at + 1] -= 1
                self.through[item.at] += 1
                self.stages[item.at].dead += 1
                self.refusals += 1
            stop = self._failed(item, batch, letter, failure)
            if stop is not None:
                halts.append(self._halt(stop, item))
            item.forget()
        part.outputs = [each for number, each in enumerate(part.outputs) if number not in errors]
        part.keys = [each for number, each in enumerate(part.keys) if number not in errors]
        part.sent = [each for number, each in enumerate(part.sent) if number not in errors]
        return halts

    def _failed(self, item: Item, batch: WriteBatch, letter: tuple[str, Inputs] | None, failure: Failure) -> str | None:
        facts = self._facts
        error, verdict = item.error, item.verdict
        stage = item.failed_at
        text, kind, mark = error_text(error), type(error).__name__, failure.fingerprint or ""
        identity: dict[str, Any] = {
            "run_id": facts.run_id,
            "pipeline": facts.pipeline,
            "item_id": item.key,
            "step_id": stage,
        }
        fields: dict[str, Any] = {"error": text, "error_type": kind, "error_class": verdict.error_class}
        heard = listening()
        if heard:
            from outlast.observe.events import ItemFailed

            emit(ItemFailed(**identity, **fields, attempts=item.attempts))
        if letter is not None:
            row = self._letter(letter, item, stage, text, kind, mark)
            batch.letters.append(row)
            if heard:
                from outlast.observe.events import DeadLetterEnqueue

                emit(DeadLetterEnqueue(**identity, **fields, letter_id=letter[0]))
        # What was not tried says nothing about the others.
        neutral = item.throttled or item.untried is not None
        stop = self._books.judge("dlq", fingerprint=mark, throttled=neutral, spent=item.spent)
        if verdict.fatal:
            return "fatal_error"
        if self._stops:
            return "item_error"
        return stop

    def _kept(self, item: Item) -> tuple[str, Inputs]:
        """The id of a new dead letter, and what it keeps of the item."""
        kept = inputs(
            self._codec,
            self._known,
            self._names,
            at=item.at,
            value=item.value,
            source=item.source,
            saved=item.saved,
            mended=item.mended_at == item.at,
        )
        name = self._names[item.at]
        if kept.unstored is not None:
            begins = kept.metadata.get("begins")
            after = "its dead letters cannot be replayed" if begins is None else f"a replay begins at {begins}"
            self._warn_once(item, name, f"the input of {name} is not stored: {kept.unstored}; {after}")
        elif kept.lacks:
            self._warn(item, name, f"the input of {name}", kept.lacks, "a replay begins earlier, if that can be had")
        return here.get().ids.new(), kept

    def _warn(self, item: Item, stage: str, what: str, lacks: Sequence[str], after: str) -> None:
        said = f"{what} holds {' and '.join(lacks)}, which no annotation of a stage brings back whole: {after}"
        self._warn_once(item, stage, said)

    def _warn_once(self, item: Item, stage: str, message: str) -> None:
        """In the log, and with the first item that it concerns."""
        kind = message.partition(":")[0]
        if (stage, kind) not in self._warned:
            self._warned.add((stage, kind))
            item.warn(message)
            warn("%s of %s: %s", stage, self._facts.pipeline, message)

    def _particulars(self, item: Item, letter: tuple[str, Inputs] | None) -> bytes:
        """Each error of its own, and the input as the source gave it, or the dead letter that has it."""
        told = particulars(item.failed_at, item.error, item.verdict.error_class)
        known = letter[0] if letter is not None else None if item.letter is None else item.letter.id
        if known is not None:
            return self._codec.encode(told | {"letter": known})
        try:
            return self._codec.encode(told | {"input": item.source})
        except Exception:  # noqa: BLE001 - the failure itself must be on record all the same
            return self._codec.encode(told | {"input": _looks(item.source)})

    def _letter(
        self, letter: tuple[str, Inputs], item: Item, stage: str, text: str, kind: str, mark: str
    ) -> DeadLetterRow:
        facts, verdict = self._facts, item.verdict
        instant = self._instant
        letter_id, kept = letter
        metadata = kept.metadata
        if item.warnings:
            metadata["warnings"] = item.warnings[:20]
        return DeadLetterRow(
            id=letter_id,
            run=facts.run_id,
            seq=item.seq,
            pipeline=facts.pipeline,
            stage=stage,
            item_key=item.key,
            payload=kept.payload,
            error=text,
            error_type=kind,
            error_class=verdict.error_class,
            tier=verdict.tier,
            fingerprint=mark,
            attempts=_tries(item),
            first_failed_us=instant(item.first_failed),
            last_attempt_us=instant(None),
            created_us=instant(None),
            metadata=metadata,
            stop_reason=item.stop_reason,
        )

    def _instant(self, at: float | None) -> int:
        facts = self._facts
        return int((facts.monotonic() if at is None else at) * 1e6) + facts.base_us

    def _newest(self, item: Item, failure: Failure) -> LetterFailure:
        """How a replay of a letter has failed."""
        verdict = item.verdict
        return LetterFailure(
            stage=item.failed_at,
            error=error_text(item.error),
            error_type=type(item.error).__name__,
            error_class=verdict.error_class,
            tier=verdict.tier,
            fingerprint=failure.fingerprint or "",
            attempts=_tries(item),
            first_us=self._instant(item.first_failed),
            stop_reason=item.stop_reason,
            begins=begins_at(item.letter),
        )

    def _settle_letter(self, item: Item, batch: WriteBatch, output: bytes | None, failure: Failure | None) -> None:
        worked = item.status in {"succeeded", "skipped"}
        status: Any = "resolved" if worked else "open"
        again = None if failure is None or item.untried is not None else failure
        newest = None if again is None else self._newest(item, again)
        batch.resolved.append(Settled(item.letter.id, status, newest, item.untried, item.seq))
        origin = item.origin
        if origin is not None:
            batch.returned.append(origin)
            if again is not None and item.letter.seq is not None:
                batch.of(origin).failed.append(FailedAgain(item.letter.seq, item.seq, item.reason, output, again))
            if worked and item.letter.seq is not None:
                batch.of(origin).mended.append(
                    Mended(
                        item.letter.seq,
                        item.seq,
                        cast("Any", item.status),
                        item.degraded,
                        item.reason,
                        tuple(item.warnings or ()),
                        output if origin.sink is None and self._sink is None else None,
                    )
                )
        if listening():
            from outlast.observe.events import DeadLetterReplay

            facts = self._facts
            emit(
                DeadLetterReplay(
                    run_id=facts.run_id,
                    pipeline=facts.pipeline,
                    letter_id=item.letter.id,
                    item_id=item.key,
                    step_id=item.letter.stage,
                    status=status,
                )
            )

    def _tell_success(self, item: Item) -> None:
        if item.key in self._carried:  # which the run that called it has reported
            return
        from outlast.observe.events import ItemSucceeded

        facts = self._facts
        emit(
            ItemSucceeded(
                run_id=facts.run_id,
                pipeline=facts.pipeline,
                item_id=item.key,
                step_id=facts.pipeline,
                attempts=item.attempts,
            )
        )

    def _count_retries(self, item: Item) -> None:
        for row in item.rows:
            if row.outcome == "retrying":
                self.stages[row.stage].retries += 1

    def _count(self, item: Item, status: str) -> None:
        at = item.at
        if item.first_failed is not None or item.attempts > at + 1:  # there may be retries, which most items have not
            self._count_retries(item)
        if status == "succeeded":
            self.through[at + 1] += 1
        else:
            self.through[at] += 1
            counts = self.stages[at]
            if status == "skipped":
                counts.skipped += 1
            elif item.failed_at != SOURCE:  # what could not be read has come to no stage
                counts.dead += 1

    # -- what it means for the run

    def _halt(self, reason: str, item: Item) -> Halt:
        if reason != "failure_budget_exceeded":
            return Halt(reason, item.error, item.reason or "")
        books = self._books
        message = (
            f"failure rate {books.rate:.1%} exceeds the budget of {books.bounds.failure_budget:.1%} "
            f"({books.failures} of {books.processed} items failed). Aborting run to prevent resource waste."
        )
        error = FailureBudgetExceeded(
            message,
            result=cast("Any", None),
            rate=books.rate,
            budget=books.bounds.failure_budget,
            processed=books.processed,
            failed=books.failures,
        )
        return Halt(reason, error)


def _take_back(item: Item, batch: WriteBatch) -> None:
    """The letter was settled as one that succeeded, and will be settled again."""
    batch.resolved = [settled for settled in batch.resolved if settled.letter != item.letter.id]
    if item.origin is not None:
        batch.returned.remove(item.origin)
        part = batch.of(item.origin)
        part.undone += [mended for mended in part.mended if mended.replayed == item.seq]
        part.mended = [mended for mended in part.mended if mended.replayed != item.seq]


def _tries(item: Item) -> int:
    """The attempts at the stage at which it failed."""
    return item.numbered + (1 if item.call is None else item.call.tries)


def _failure(item: Item) -> Failure:
    """What is on record with a failed item: why it was not tried again, and which problem it has."""
    error, error_class, kind = item.error, item.verdict.error_class, type(item.error).__name__
    problem = error.problem if isinstance(error, InvalidRow) else error_text(error)
    mark = fingerprint(item.failed_at, error_class, kind, problem)
    return Failure(item.stop_reason, mark, error_class, kind)


def _looks(value: Any) -> str:
    """What a person would see of it."""
    try:
        return as_json(value)[:100_000]
    except Exception:  # noqa: BLE001 - a class of the user's
        return f"<a value of type {type(value).__name__}>"


def _unstorable(error: Exception, stage: str) -> Exception:
    if isinstance(error, PermanentFailure):
        return error
    return PermanentFailure(f"the output of {stage} cannot be stored: {error}", error_class="validation_error")


def _result(item: Item, status: Any) -> ItemResult[Any]:
    return ItemResult(
        key=item.key,
        status=status,
        value=item.output if status == "succeeded" else None,
        error=item.reason,
        attempts=item.attempts,
        stop_reason=item.stop_reason,
        warnings=tuple(item.warnings or ()),
        spent=item.spent or {},
    )


def _loud() -> bool:
    """Whether anybody wants to hear of each item that succeeds: there may be millions."""
    from outlast import observe
    from outlast.kernel.log import heard

    return bool(observe._hooks or observe.captures.get() or (heard() and logger().isEnabledFor(10)))  # noqa: SLF001 - one bus
