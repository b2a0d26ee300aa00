"""
One item's way through a run, as sentences: each attempt, each wait and what it was for, and the end.

What lies between two attempts and was no wait on record is the wait for a slot.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outlast.calls.records import add_to
from outlast.errors import ConfigurationError
from outlast.kernel.redact import sanitise
from outlast.kernel.wording import counted, duration
from outlast.report.gather import reason, told_stage
from outlast.report.model import plain
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from outlast.store import Store
    from outlast.store.figures import Trail
    from outlast.store.records import AttemptRow, DeadLetterRow, ItemRow, RunRecord

_NOTICED = 1000  # microseconds; a shorter wait for a slot is nothing but bookkeeping
_MOST = 1000  # attempts that are told

Kind = Literal["read", "attempt", "wait", "pause", "checkpoint", "warning", "replay", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """
    One thing that happened to an item, and a sentence that says it. `at` is None where that is not on record.

    `seconds` is how long an attempt or a wait took; `why` is a wait's reason; `stage`, `attempt`, `outcome`
    (``success``, ``retrying``, ``failed``, and at the end the item's status), `error_class`, `error` and `stop_reason`
    are an attempt's or the end's.
    """

    kind: Kind
    text: str
    at: datetime | None = None
    seconds: float | None = None
    stage: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    why: str | None = None
    error_class: str | None = None
    error: str | None = None
    stop_reason: str | None = None
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def clock(self) -> str:
        """When it was, to the millisecond; empty where that is not on record."""
        return "" if self.at is None else self.at.strftime("%H:%M:%S.%f")[:-3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """
    All that is on record of one item. `status` is None for one that is not finished. `took` is how long it was in hand,
    attempts and waits, in all passes and replays together, without the pauses between them; `worked` is the part of it
    that attempts took.
    """

    run_id: str
    pipeline: str
    run_key: str
    key: str
    position: int
    status: str | None
    took: float | None
    attempts: int
    worked: float
    waited: Mapping[str, float]
    spent: Mapping[str, float]
    letter: str | None
    moments: tuple[Moment, ...]

    def lines(self) -> list[str]:
        """The story for a person, a line for each moment."""
        return [f"{each.clock:12}  {each.text}" for each in self.moments]

    def to_dict(self) -> dict[str, Any]:
        """All of it for `json.dumps`."""
        found: dict[str, Any] = plain(self)
        return found


def told(store: Store, run: RunRecord, item: str | int) -> Story:
    """The story of an item, by its key or its position."""
    trail = store.trail(run.number, item)
    if trail is None and isinstance(item, str) and item.isdecimal():
        trail = store.trail(run.number, int(item))
    if trail is None:
        ended = shlex.join(["outlast", "runs", "items", run.run_key, *store.place_option()])
        raise ConfigurationError(
            f"expected the key or the position of an item of {run.run_key}, got: {sanitise(str(item))!r}. "
            f"Nothing is on record of an item before its first checkpoint or its end. Those that ended: {ended}"
        )
    known = _trial(store, run, trail.seq, trail)
    letter = store.letter_of(run.id, trail.seq)
    replays = [] if letter is None else list(_replays(store, letter))
    look = None
    if letter is not None:
        look = shlex.join(["outlast", "dlq", "show", letter.id[:12], *store.place_option()])
    waited, spent = Counter[str](), dict[str, float]()
    for each in (known, *replays):
        for attempt in each.attempts:
            waited.update(attempt.waits or {})
        if each.row is not None:
            waited.update(each.row.waits or {})
            add_to(spent, each.row.spent)
    return Story(
        run_id=run.id,
        pipeline=sanitise(run.pipeline),
        run_key=sanitise(run.run_key),
        key=sanitise(trail.key),
        position=trail.seq,
        status=trail.status,
        took=None if known.row is None else sum(each.took_us for each in (known, *replays)) / 1e6,
        attempts=sum(each.number for each in (known, *replays)),
        worked=sum(each.took_us for trial in (known, *replays) for each in trial.attempts) / 1e6,
        waited={why: microseconds / 1e6 for why, microseconds in waited.items()},
        spent=spent,
        letter=None if letter is None else letter.id,
        moments=tuple(_moments(trail.seq, known, replays, spent, look)),
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a run, or a replay, has on record of the item; `row` is None where it has not finished it."""

    run: RunRecord
    row: ItemRow | None
    attempts: list[AttemptRow]
    checkpoints: set[int]

    @property
    def number(self) -> int:
        """How many attempts there were."""
        return len(self.attempts) if self.row is None else self.row.attempts

    @property
    def took_us(self) -> int:
        """
        How long the item was in hand: what its row says of the pass that finished it, and the spans of attempts in
        passes before that.
        """
        spans: dict[int, tuple[int, int]] = {}
        for each in self.attempts:
            if self.row is None or each.started_us < self.row.started_us:
                begun, ended = spans.get(each.pass_, (each.started_us, each.started_us))
                spans[each.pass_] = (min(begun, each.started_us), max(ended, each.started_us + each.took_us))
        return sum(ended - begun for begun, ended in spans.values()) + (0 if self.row is None else self.row.took_us)

    @property
    def tried(self) -> bool:
        return bool(self.attempts) or bool(self.row is not None and self.row.attempts)


def _replays(store: Store, letter: DeadLetterRow) -> Iterator[_Trial]:
    """Every replay of the item's dead letter, the first one first."""
    for run_id, seq in store.replays_of(letter):
        run = store.run(run_id)
        if run is not None:
            yield _trial(store, run, seq, store.trail(run.number, seq))


def _trial(store: Store, run: RunRecord, seq: int, trail: Trail | None) -> _Trial:
    rows = store.items(run.number, after=seq - 1, limit=1)
    attempts = store.attempts(run.number, seq, limit=_MOST)
    return _Trial(
        run,
        next((row for row in rows if row.seq == seq), None),
        sorted(attempts, key=lambda each: (each.started_us, each.stage)),
        set() if trail is None else set(trail.checkpoints),
    )


def _moments(
    seq: int, known: _Trial, replays: Sequence[_Trial], spent: Mapping[str, float], look: str | None
) -> Iterator[Moment]:
    yield Moment(kind="read", text=f"read from the source, at position {seq:,}")
    yield from _tried(known)
    row = known.row
    if row is None:
        yield Moment(kind="end", text="not finished: a resume goes on with it")
        return
    for why, took in (row.waits or {}).items():
        text = f"waited {duration(took / 1e6)}: {reason(why)[2]}; no attempt on record came after it"
        yield Moment(kind="wait", why=why, seconds=took / 1e6, text=text)
    for replay in replays:
        yield from _replayed(replay, last=replay is replays[-1])
    for warning in row.warnings:
        yield Moment(kind="warning", text=f"warning: {sanitise(warning)}")
    yield _end(known.run, row, [replay for replay in replays if replay.tried], spent, look)


def _tried(trial: _Trial) -> Iterator[Moment]:
    before: AttemptRow | None = None
    for attempt in trial.attempts:
        if before is not None and attempt.pass_ != before.pass_:
            end = before.started_us + before.took_us
            apart = (attempt.started_us - end) / 1e6
            yield Moment(
                kind="pause",
                at=from_us(end),
                seconds=apart,
                text=f"the run ended before the item did; it went on {duration(apart)} later",
            )
            before = None
        yield from _waits(attempt.waits, attempt.started_us, before)
        yield _attempt(trial.run, attempt)
        if attempt.outcome == "success" and attempt.stage in trial.checkpoints:
            stage = told_stage(trial.run, attempt.stage)
            yield Moment(
                kind="checkpoint", stage=stage, text=f"the output of {stage} is on record: no resume pays for it again"
            )
        before = attempt


def _replayed(replay: _Trial, *, last: bool) -> Iterator[Moment]:
    row, name = replay.row, sanitise(replay.run.run_key)
    begun = min((each.started_us for each in replay.attempts), default=None if row is None else row.started_us)
    yield Moment(
        kind="replay",
        at=None if begun is None else from_us(begun),
        outcome=None if row is None else row.status,
        text=f"its dead letter was replayed by {name}",
    )
    yield from _tried(replay)
    why = "" if row is None else sanitise(row.reason or "")
    if row is None:
        text = "that replay has not finished it" if last else "that replay did not finish it"
    elif not replay.tried:
        text = f"that replay did not try it: {why}"
    elif row.status in {"dlq", "failed"}:
        text = f"it failed again: {why}"
    else:
        return
    yield Moment(kind="replay", outcome=None if row is None else row.status, error=why or None, text=text)


def _waits(waits: Mapping[str, int] | None, started_us: int, before: AttemptRow | None) -> Iterator[Moment]:
    """What was waited for before an attempt, in order; each at the instant it began, as far as that is known."""
    parts = list((waits or {}).items())
    at = started_us - sum(waited for _, waited in parts)
    idle = 0
    if before is not None:
        at = before.started_us + before.took_us
        idle = started_us - at - sum(waited for _, waited in parts)
    for why, waited in parts:
        yield Moment(
            kind="wait",
            at=from_us(at),
            seconds=waited / 1e6,
            why=why,
            text=f"waited {duration(waited / 1e6)}: {reason(why)[2]}",
        )
        at += waited
    if idle >= _NOTICED:
        yield Moment(
            kind="wait",
            at=from_us(at),
            seconds=idle / 1e6,
            why="slot",
            text=f"waited {duration(idle / 1e6)}: a free slot",
        )


def _attempt(run: RunRecord, attempt: AttemptRow) -> Moment:
    stage, took = told_stage(run, attempt.stage), attempt.took_us / 1e6
    said = f"attempt {attempt.number} at {stage} "
    if attempt.outcome == "success":
        said += f"came through in {duration(took)}"
    elif attempt.error_type is None:
        said += f"returned after {duration(took)}, and retry_if wanted another result"
    else:
        said += f"failed after {duration(took)} with {attempt.error_type} ({attempt.error_class}): {sanitise(attempt.error or '')}"
    if attempt.stop_reason is not None:
        said += f"; not tried again: {attempt.stop_reason}"
    if attempt.delay_us is not None:
        said += "; to be tried again " + (f"in {duration(attempt.delay_us / 1e6)}" if attempt.delay_us else "at once")
    if attempt.spent:
        said += f"; spent {amounts(attempt.spent)}"
    return Moment(
        kind="attempt",
        at=from_us(attempt.started_us),
        seconds=took,
        stage=stage,
        attempt=attempt.number,
        outcome=attempt.outcome,
        error_class=attempt.error_class,
        error=attempt.error and sanitise(attempt.error),
        stop_reason=attempt.stop_reason,
        spent=dict(attempt.spent or {}),
        text=said,
    )


def _end(
    run: RunRecord, row: ItemRow, replays: Sequence[_Trial], spent: Mapping[str, float], look: str | None
) -> Moment:
    stage = told_stage(run, row.stage)
    why = sanitise(row.reason or "")
    end_us = row.started_us + row.took_us
    number = row.attempts + sum(replay.number for replay in replays)
    total = f" after {counted(number, 'attempt')}"
    dead = "became a dead letter"
    if not replays:
        total += f" in {duration(row.took_us / 1e6)}"
    else:
        final = replays[-1]
        if row.status in {"dlq", "failed"}:
            dead = "is still a dead letter"
        else:
            total += f", in the replay {sanitise(final.run.run_key)}"
        stage = told_stage(final.run, row.stage if final.row is None else final.row.stage)
        end_us = end_us if final.row is None else final.row.started_us + final.row.took_us
    said = {
        "succeeded": f"succeeded{', degraded' if row.degraded else ''}{total}",
        "skipped": f"skipped at {stage}: {why}",
        "dlq": f"{dead}{total}: {why}",
        "failed": f"failed{total}: {why}",
    }[row.status]
    if row.stop_reason is not None:
        said += f"; not tried again: {row.stop_reason}"
    if spent:
        said += f"; spent {amounts(spent)} in all"
    if look is not None:
        said += f"; look: {look}"
    return Moment(
        kind="end",
        at=from_us(end_us),
        stage=stage,
        outcome=row.status,
        error=why or None,
        stop_reason=row.stop_reason,
        spent=dict(spent),
        text=said,
    )


def amounts(spent: Mapping[str, float]) -> str:
    """
    What was spent, for a person's eye.

    >>> amounts({"tokens": 812.0, "usd": 0.004})
    '812 tokens, 0.004 usd'
    """
    return ", ".join(f"{amount:,.6g} {sanitise(name)}" for name, amount in spent.items())
