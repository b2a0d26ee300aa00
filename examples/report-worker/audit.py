"""
What became of each input, from three sides: what is on record, what the services have, and what the script says.

`facts` gathers, `differences` compares; neither asks the worker what it believes. An input is lost that has no end on record, or
lacks its object or its row although it succeeded; it is doubled that has two jobs, was written into the table twice, was
asked about more often than the script says, or has left an object or a row behind although it failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import report_jobs
from script import Attempt, expected

from outlast.report.views import Views

if TYPE_CHECKING:
    from script import Ending, Input
    from trial import Trial

SCHEDULE = (
    30.0,
    120.0,
    480.0,
)  # seconds before the second, third and fourth attempt, as the preset `jobs` promises them
SPREAD = 0.2
ROUNDING = 1e-5  # seconds: waits are kept in microseconds
SLACK = 10.0  # seconds that a busy machine may take to write down when an attempt is due


@dataclass
class Facts:
    """One input as it was found."""

    status: str
    attempts: tuple[Attempt, ...]
    waits: tuple[float | None, ...]  # seconds after each attempt, as its worker decided
    due: tuple[float | None, ...]  # seconds from the end of each attempt until the next one was due, as it is on record
    stop_reason: str | None
    error: str | None
    calls: int
    objects: list[Any]  # what is there under its name
    rows: list[str]  # objects that the table names for it
    writes: int  # rows that were committed for it
    kept: str | None
    undone: bool
    letters: int


@dataclass
class Audit:
    """What was found in a trial, and everything that is not as it must be."""

    facts: dict[str, Facts]
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.otherwise]


def audit(trial: Trial) -> Audit:
    found = Audit(facts(trial))
    jobs = Counter(handle.unique_key for handle in report_jobs.app.jobs.find())
    for one in trial.inputs:
        if jobs[one.file] == 0:
            found.lost.append(f"{one.file}: there is no job for it")
        elif jobs[one.file] > 1:
            found.doubled.append(f"{one.file}: there are {jobs[one.file]} jobs for it")
        compare(found, one, expected(one.story, flow=trial.form == "flow"), trial.hurry)
    names = {one.file for one in trial.inputs}
    targets = {target_of(one) for one in trial.inputs}
    found.doubled += [f"{file}: a job of no input" for file in jobs if file not in names]
    found.doubled += [f"{key}: an object of no input" for key in trial.objects.written() if key not in targets]
    found.doubled += [f"{file}: a row of no input" for file in trial.table.rows() if file not in names]
    calls = trial.model.calls
    found.otherwise += [f"the model was asked about {file}" for file in calls if file not in names]
    retried = {count: times for count, times in trial.model.own_retries.items() if count not in ("0", "none")}
    found.otherwise += [f"an SDK tried again by itself: {retried}"] if retried else []
    return found


def target_of(one: Input) -> str:
    return f"out/{one.file}.json"


# -- gather ----------------------------------------------------------------------------------------------------------------


def facts(trial: Trial) -> dict[str, Facts]:
    objects, rows, writes = trial.objects.written(), trial.table.rows(), Counter(trial.table.writes())
    written: Counter[str] = Counter()
    for (file, _), times in writes.items():
        written[file] += times
    letters = Counter(letter.item_key for letter in report_jobs.app.dead_letters.find(status=None))
    found, waits = {}, trial.waits()
    for one in trial.inputs:
        handle = trial.handles[one.file]
        history = handle.history()
        last = history[-1] if history else None
        found[one.file] = Facts(
            status=handle.status,
            attempts=tuple(
                Attempt("failed" if row.outcome == "timeout" else row.outcome, row.error_class)
                for row in history
                if row.outcome not in ("released", "snoozed")
            ),
            waits=tuple(waits.get((handle.id, row.number)) for row in history),
            due=tuple(
                None
                if row.next_run_at is None
                else (row.next_run_at - row.started_at).total_seconds() - (row.duration or 0.0)
                for row in history
            ),
            stop_reason=None if last is None else last.stop_reason,
            error=handle.error,
            calls=trial.model.calls[one.file],
            objects=[objects[key] for key in (target_of(one),) if key in objects],
            rows=[rows[key] for key in (one.file,) if key in rows],
            writes=written[one.file],
            kept=kept(trial, handle),
            undone=undone(trial, handle, one),
            letters=letters[handle.id],
        )
    return found


def kept(trial: Trial, handle: Any) -> str | None:
    """What the model said, as it was kept by the last attempt that has kept something."""
    name = "answer" if trial.form == "jobs" else "ask answer"
    if name not in {artifact.name for artifact in handle.artifacts()}:
        return None
    raw = handle.artifact(name)
    return raw.decode() if isinstance(raw, bytes) else raw


def undone(trial: Trial, handle: Any, one: Input) -> bool:
    """Whether it is on record that its object was removed again."""
    if trial.form == "jobs":
        return handle.compensation == "completed"
    record = report_jobs.app.store.find_run("report", one.file)
    if record is None:
        return False
    return "write" in Views(report_jobs.app.store).flows.report(record).undone


# -- compare ---------------------------------------------------------------------------------------------------------------


def compare(found: Audit, one: Input, must: Ending, hurry: float) -> None:
    facts, name = found.facts[one.file], f"{one.file} ({one.story.name})"
    report, target = (one.report, target_of(one)) if must.written else (None, None)
    if facts.status not in ("succeeded", "failed"):
        found.lost.append(f"{name}: it is {facts.status}")
    elif must.written and (facts.objects != [report] or facts.rows != [target]):
        found.lost.append(f"{name}: its object or its row is not there, or is another one")
    elif not must.written and (facts.objects or facts.rows):
        found.doubled.append(f"{name}: it must fail, and there is an object or a row of it")
    if facts.writes != must.written:
        found.doubled.append(f"{name}: {facts.writes} rows were committed for it")
    if facts.calls > must.calls:
        found.doubled.append(f"{name}: the model was asked {facts.calls} times, expected {must.calls}")
    tried = tuple(Attempt(attempt.outcome, attempt.error_class) for attempt in must.attempts)
    kept = facts.kept if must.status == "failed" and must.kept else None  # other answers may be kept, too
    for what, is_so, must_be in (
        ("ended as", facts.status, must.status),
        ("attempts", shown(facts.attempts), shown(tried)),
        ("no other attempt, because", facts.stop_reason, must.stop_reason),
        ("calls of the model", facts.calls, must.calls),
        ("kept", kept, must.kept),
        ("its object was removed again", facts.undone, must.undone),
        ("dead letters", facts.letters, int(must.status == "failed")),
    ):
        if is_so != must_be:
            found.otherwise.append(f"{name}: {what}: {is_so}, expected {must_be}")
    if shown(facts.attempts) == shown(tried):
        found.otherwise += [f"{name}: {line}" for line in late(facts, must, hurry)]


def shown(attempts: tuple[Attempt, ...]) -> str:
    return ", ".join(
        attempt.outcome if attempt.error_class is None else f"{attempt.outcome} {attempt.error_class}"
        for attempt in attempts
    )


def late(facts: Facts, must: Ending, hurry: float) -> list[str]:
    """
    Waits that are not those of the schedule, with what the service asked for on top, and attempts that were due before
    their wait was over. After a crash nobody waits.
    """
    wrong = []
    if len(facts.waits) != len(must.attempts):
        return ["there are attempts on record that cost nothing: nobody gave it back"]
    for number, (wait, due, attempt) in enumerate(zip(facts.waits[:-1], facts.due, must.attempts, strict=False)):
        if attempt.outcome != "failed":
            continue
        least, most = (attempt.retry_after + SCHEDULE[number] / hurry * (1 + side) for side in (-SPREAD, SPREAD))
        if wait is None or not least - ROUNDING <= wait <= most + ROUNDING:
            wrong.append(f"the wait after attempt {number + 1} was {wait} s, expected {least:.3g} to {most:.3g} s")
        elif due is None or not wait - 0.01 <= due <= wait + SLACK:
            wrong.append(
                f"attempt {number + 2} was due {due} s after the one before it, expected {wait:.3g} s or somewhat more"
            )
    return wrong
