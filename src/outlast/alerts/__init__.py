"""
Alerts: what a store has recorded, compared with thresholds. Pure: facts go in, alerts come out.

    evaluate     the alerts that fire; `RULES` are the rules, `Rules` how they are set
    reading      the facts from a store, and what was acknowledged
    notices      which alerts a webhook gets, so that it gets each once (pure), and the delivery
    webhook      one POST
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from outlast.errors import nearest
from outlast.kernel.wording import counted, duration, window
from outlast.settings.keys import seconds_of
from outlast.store.records import from_us
from outlast.store.troubles import MOST_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from outlast.store.troubles import (
        EndedRun,
        FailedJobs,
        GivenUp,
        IdleQueue,
        NotUndone,
        OldLetters,
        Step,
        StepRate,
        StuckJobs,
    )

Severity: TypeAlias = Literal["warning", "critical"]
Unit: TypeAlias = Literal["share", "number", "seconds", "switch"]

DATABASE_RETRIES = "50%+ of database operations require retries. Consider increasing connection pool size."
NETWORK_EXHAUSTED = "Network retry exhaustion. Check network stability or increase retry limit."
FEW = "steps with few operations"
_NAMED = 3  # steps that a sentence names


class Rule(NamedTuple):
    """
    A rule: it fires above its threshold, which is `usual` unless it is set. A switch has none. `of` is what it is set for one
    by one; the work of a rule that is `over` has ended, so that a person can acknowledge it.
    """

    name: str
    severity: Severity
    unit: Unit
    usual: float
    of: str
    about: str
    over: bool = False


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            *("run_failed", "critical", "switch", 0, "pipeline or flow"),
            "A run or a flow failed.",
            over=True,
        ),
        Rule(
            *("run_incomplete", "warning", "switch", 0, "pipeline or flow"),
            "A run or a flow is a partial success: some of its items or rows failed.",
            over=True,
        ),
        Rule(
            *("run_interrupted", "warning", "switch", 0, "pipeline or flow"),
            "A run or a flow was interrupted, or its process died, and it was not resumed.",
            over=True,
        ),
        Rule(*("job_failed", "critical", "switch", 0, "kind"), "Jobs of a kind failed.", over=True),
        Rule(
            *("schedule_missed", "critical", "seconds", 300, "kind"),
            "A scheduled job is late by more than this: no worker has enqueued it.",
        ),
        Rule(
            *("no_worker", "critical", "seconds", 60, "queue"),
            "A job is due for longer than this, and no live worker serves its queue.",
        ),
        Rule(
            *("stuck_jobs", "critical", "seconds", 900, "queue"),
            "A job, or the compensation of one, is due for longer than this, or its worker is gone for longer than this.",
        ),
        Rule(*("breaker_open", "critical", "switch", 0, "breaker"), "A circuit breaker is open."),
        Rule(
            *("compensation_failed", "critical", "switch", 0, "pipeline or flow"),
            "A compensation failed, and its dead letter is open.",
            over=True,
        ),
        Rule(
            *("network_exhausted", "critical", "number", 10, "pipeline, flow or kind"),
            "How often in an hour steps gave up on network errors.",
        ),
        Rule(
            *("database_retry_rate", "warning", "share", 0.5, "pipeline, flow or kind"),
            "Of the operations of a step that had retries for database errors, the share that required one.",
        ),
        Rule(
            *("dead_letters", "warning", "number", 100, "pipeline, flow, kind or folder"), "Dead letters that are open."
        ),
        Rule(
            *("dead_letters_old", "warning", "seconds", 86_400, "pipeline, flow, kind or folder"),
            "A dead letter is open for longer than this.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Rules:
    """
    How the rules are set: the threshold of each that is on, how far they look back, and how few operations are too few.
    `own` has what is set for one subject of a rule, None for off.
    """

    thresholds: dict[str, float]
    window: float = 3600.0
    minimum: int = 20
    own: dict[tuple[str, str], float | None] = field(default_factory=dict)

    def threshold(self, rule: str, *subjects: str) -> float | None:
        """The threshold of a rule for the first of these names that it is set for; None if it is off."""
        for subject in subjects:
            if (rule, subject) in self.own:
                return self.own[rule, subject]
        return self.thresholds.get(rule)

    def looks(self, rule: str) -> bool:
        """Whether the rule is on, for all or for some subject."""
        return rule in self.thresholds or bool(self.apart(rule, on=True))

    def apart(self, rule: str, *, on: bool = False) -> list[str]:
        """The subjects that the rule is set for one by one; with `on` without those that it is off for."""
        return [name for (of, name), threshold in self.own.items() if of == rule and not (on and threshold is None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """
    A rule fires for a subject: a step, a breaker, a queue, a pipeline. `value` is what was found, above the `threshold`;
    `since` is the earliest stored instant that it follows from. `facts` is what was found, as data; `command` are the words of
    the command that shows it, without the store.
    """

    rule: str
    subject: str
    severity: Severity
    message: str
    why: str
    value: float
    threshold: float | None
    since: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The same for as long as it fires, and whenever it fires again."""
        return f"{self.rule}:{self.subject}" if self.subject else self.rule

    def document(self) -> dict[str, object]:
        """As programs read it."""
        return {
            "id": self.id,
            "rule": self.rule,
            "subject": self.subject,
            "severity": self.severity,
            "message": self.message,
            "why": self.why,
            "value": self.value,
            "threshold": self.threshold,
            "since": self.since.isoformat(),
            "facts": dict(self.facts),
            "command": shlex.join(["outlast", *self.command]) if self.command else None,
        }


class OpenBreaker(NamedTuple):
    """A breaker that is open in the store, in so many `processes` if it is not shared; `reason` if it was isolated by hand."""

    name: str
    since: datetime
    reason: str | None = None
    processes: int = 0


class OpenLetters(NamedTuple):
    """
    Open dead letters of all pipelines that are not looked at one by one (subject ""), of one pipeline, or in a folder.
    `beyond_us` is when the first one was created that is more than the threshold, if any is.
    """

    subject: str
    number: int
    beyond_us: int | None
    is_folder: bool = False


class EndedRuns(NamedTuple):
    """Runs of one pipeline or flow that ended in one way: the newest, how many, and the first and last instant."""

    rule: str
    newest: EndedRun
    times: int
    first_us: int


class MissedTick(NamedTuple):
    """A schedule whose tick is overdue, by the kind of its jobs."""

    kind: str
    tick_us: int
    late: float


class Facts(NamedTuple):
    """What the rules look at."""

    database: Sequence[StepRate] = ()
    network: Sequence[GivenUp] = ()
    breakers: Sequence[OpenBreaker] = ()
    letters: Sequence[OpenLetters] = ()
    old_letters: Sequence[tuple[OldLetters, bool]] = ()
    stuck: Sequence[StuckJobs] = ()
    idle: Sequence[IdleQueue] = ()
    not_undone: Sequence[NotUndone] = ()
    runs: Sequence[EndedRuns] = ()
    jobs: Sequence[FailedJobs] = ()
    missed: Sequence[MissedTick] = ()
    workers: int = 0


LONGEST = 3653 * 86400.0  # seconds: a window or a threshold of more than ten years is a slip


def rules_from(settings: Iterable[str], problems: list[str], *, window: float = 3600.0, minimum: int = 20) -> Rules:
    """
    The rules as they are usually, changed by settings such as ``dead_letters=500``, ``breaker_open=off`` or, for one subject,
    ``job_failed:nightly=off``. What is wrong with a setting is added to the problems.
    """
    thresholds = {rule.name: rule.usual for rule in RULES.values()}
    own: dict[tuple[str, str], float | None] = {}
    seen: set[tuple[str, str]] = set()
    for setting in settings:
        left, equals, text = (part.strip() for part in setting.rpartition("="))
        left = left if equals else text
        name, colon, subject = left.partition(":")
        rule = RULES.get(name)
        if rule is None:
            known = nearest(name, list(RULES)) or f" There are: {', '.join(RULES)}."
            problems.append(f"expected --rule to be one of the rules, got: {name!r}.{known}")
            continue
        if colon and not subject:
            problems.append(f"expected --rule {name}: to name a {rule.of}, got: {setting!r}.")
        elif (name, subject) in seen:
            problems.append(f"expected one --rule for {left}, got: several.")
        seen.add((name, subject))
        if (threshold := _setting(rule, left, text if equals else None, problems)) is not _WRONG:
            if subject:
                own[name, subject] = threshold
            elif threshold is None:
                thresholds.pop(name, None)
            else:
                thresholds[name] = threshold
    return Rules(thresholds, window, minimum, own)


_WRONG: Any = object()


def _setting(rule: Rule, left: str, text: str | None, problems: list[str]) -> float | None:
    """The threshold that a setting asks for, None for off; `_WRONG` if it cannot be."""
    if text == "off":
        return None
    if text == "on":
        return rule.usual
    if rule.unit == "switch" or text is None:
        wanted = "on or off" if rule.unit == "switch" else f"{left}=THRESHOLD or {left}=off"
        got = left if text is None else f"{left}={text}"
        problems.append(f"expected --rule {left} to be {wanted}, got: {got!r}.")
        return cast("float", _WRONG)
    if (threshold := _threshold(rule.unit, text)) is None:
        problems.append(f"expected --rule {left} to be {_WANTED[rule.unit]}, or off, got: {text!r}.")
        return cast("float", _WRONG)
    return threshold


_WANTED: dict[Unit, str] = {
    "share": "a share from 0 to below 1, such as 0.5",
    "number": "a number that is at least 0, such as 10",
    "seconds": "a duration such as 90s, 10m or 2h, of ten years at most",
}


def _threshold(unit: Unit, text: str) -> float | None:
    if unit == "seconds":
        found = seconds_of(text)
        good = isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= LONGEST
        return float(found) if good else None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < (1 if unit == "share" else float("inf")) else None


# --- what fires -------------------------------------------------------------------------------------------------------


def evaluate(facts: Facts, rules: Rules) -> list[Alert]:
    """The alerts that fire, the critical ones first; each rule above its threshold, not at it."""
    found = [alert for name, check in _CHECKS.items() if rules.looks(name) for alert in check(facts, rules)]
    return sorted(found, key=lambda alert: (alert.severity != "critical", list(RULES).index(alert.rule), alert.subject))


def _runs(rule: str) -> Callable[[Facts, Rules], Iterator[Alert]]:
    def check(facts: Facts, rules: Rules) -> Iterator[Alert]:
        for ended in facts.runs:
            newest = ended.newest
            if ended.rule != rule or rules.threshold(rule, newest.pipeline) is None:
                continue
            many = f"at least {ended.times:,}" if ended.times >= MOST_RUNS else f"{ended.times:,}"
            what = "flow" if newest.kind == "flow" else "run"
            said = {
                "run_failed": "failed",
                "run_incomplete": "ended as a partial success",
                "run_interrupted": "was interrupted and not resumed",
            }[rule]
            why = f": {newest.why.rstrip('.')}" if newest.why else ""
            which = f"run {newest.run_key} at {_instant(from_us(newest.ended_us))}{why}."
            yield _alert(
                rule,
                newest.pipeline,
                f"The {what} {newest.pipeline} {said}.",
                f"R{which[1:]}" if ended.times == 1 else f"{many} times. The newest: {which}",
                value=ended.times,
                since=from_us(ended.first_us),
                facts={
                    "count": ended.times,
                    "last": _iso(newest.ended_us),
                    "kind": what,
                    "run": newest.id,
                    "run_key": newest.run_key,
                    "status": newest.status,
                },
                command=("runs", "show", newest.id[:12]),
            )

    return check


def _jobs(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for failed in facts.jobs:
        if rules.threshold("job_failed", failed.kind) is None:
            continue
        error = f"{failed.error_type} ({failed.error_class}): {failed.error}"
        yield _alert(
            "job_failed",
            failed.kind,
            f"{counted(failed.times, 'job')} of {failed.kind} failed.",
            f"The newest is job {failed.job}, at {_instant(from_us(failed.last_us))}: {error.rstrip('.')}.",
            value=failed.times,
            since=from_us(failed.first_us),
            facts={
                "count": failed.times,
                "last": _iso(failed.last_us),
                "job": str(failed.job),
                "queue": failed.queue,
                "error": failed.error,
                "error_type": failed.error_type,
                "error_class": failed.error_class,
            },
            command=("jobs", "list", "--kind", failed.kind, "--status", "failed"),
        )


def _missed(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for missed in facts.missed:
        threshold = rules.threshold("schedule_missed", missed.kind)
        if threshold is not None and missed.late > threshold:
            yield _alert(
                "schedule_missed",
                missed.kind,
                f"The schedule of {missed.kind} missed its tick.",
                f"Due at {_instant(from_us(missed.tick_us))}, {duration(missed.late)} ago. No worker that has this job has enqueued it. "
                "Start a worker.",
                value=missed.late,
                threshold=threshold,
                since=from_us(missed.tick_us),
                facts={"tick": _iso(missed.tick_us)},
                command=("jobs", "schedules"),
            )


def _idle(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for idle in facts.idle:
        threshold = rules.threshold("no_worker", idle.queue)
        if threshold is not None:
            others = (
                f"{counted(facts.workers, 'worker')} of other queues alive" if facts.workers else "No worker is alive"
            )
            yield _alert(
                "no_worker",
                idle.queue,
                f"No worker serves the queue {idle.queue}.",
                f"{counted(idle.due, 'job')} due for more than {duration(threshold)}, the oldest since "
                f"{_instant(from_us(idle.oldest_us))}. {others}. Start a worker for this queue.",
                value=idle.due,
                threshold=threshold,
                since=from_us(idle.oldest_us),
                facts={"due": idle.due, "workers": facts.workers},
                command=("jobs", "stats"),
            )


def _database(facts: Facts, rules: Rules) -> Iterator[Alert]:
    """Each step by itself; those with fewer operations than the minimum together, if together they have enough."""
    on = [
        (rate, threshold)
        for rate in facts.database
        if (threshold := _of_step(rules, "database_retry_rate", rate.step)) is not None
    ]
    few = [rate for rate, _ in on if rate.operations < rules.minimum]
    alone = [(str(rate.step), [rate], threshold) for rate, threshold in on if rate.operations >= rules.minimum]
    for subject, rates, threshold in [*alone, (FEW, few, rules.thresholds.get("database_retry_rate", 1.0))]:
        operations, retried = sum(one.operations for one in rates), sum(one.retried for one in rates)
        if operations < max(1, rules.minimum) or retried / operations <= threshold:
            continue
        whose = subject if rates is not few else f"{FEW} ({_steps((one.step, one.retried) for one in rates)})"
        yield _alert(
            "database_retry_rate",
            subject,
            DATABASE_RETRIES,
            f"{retried:,} of {counted(operations, 'operation')} of {whose} in the last {window(rules.window)} required a retry for a "
            f"database error: {retried / operations:.1%}, more than {threshold:.1%}.",
            value=retried / operations,
            threshold=threshold,
            since=from_us(min(one.first_us for one in rates)),
            facts={"operations": operations, "retried": retried},
        )


def _network(facts: Facts, rules: Rules) -> Iterator[Alert]:
    """All steps together, but for those of a pipeline or kind that the rule is set for."""
    groups: dict[str, list[GivenUp]] = {}
    for one in facts.network:
        subject = next((name for name in _names(one.step) if ("network_exhausted", name) in rules.own), "")
        groups.setdefault(subject, []).append(one)
    for subject, some in groups.items():
        threshold = rules.threshold("network_exhausted", subject)
        times = sum(one.times for one in some)
        hourly = times * 3600 / rules.window
        if threshold is not None and hourly > threshold:
            yield _alert(
                "network_exhausted",
                subject,
                NETWORK_EXHAUSTED,
                f"Steps gave up on network errors {times:,} times in the last {window(rules.window)}, more than {threshold:g} an hour: "
                f"{_steps((one.step, one.times) for one in some)}.",
                value=hourly,
                threshold=threshold,
                since=from_us(min(one.first_us for one in some)),
                facts={"times": times, "steps": {str(one.step): one.times for one in some}},
            )


def _of_step(rules: Rules, rule: str, step: Step) -> float | None:
    return rules.threshold(rule, *_names(step))


def _names(step: Step) -> tuple[str, ...]:
    """What a rule for a step can be set by: its whole name, and its pipeline or kind."""
    return (str(step), step.pipeline or step.name)


def _breakers(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for breaker in facts.breakers:
        if rules.threshold("breaker_open", breaker.name) is None:
            continue
        by_hand = "" if breaker.reason is None else f" Isolated by hand: {breaker.reason}."
        where = "" if not breaker.processes else f" in {counted(breaker.processes, 'process', 'processes')}"
        yield _alert(
            "breaker_open",
            breaker.name,
            f"The circuit breaker {breaker.name} is open{where}.",
            f"Open since {_instant(breaker.since)}.{by_hand}",
            value=1,
            since=breaker.since,
            facts={"processes": breaker.processes, "reason": breaker.reason},
            command=("breaker", "list"),
        )


def _letters(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for letters in facts.letters:
        threshold = rules.threshold("dead_letters", letters.subject)
        if threshold is None or letters.number <= threshold or letters.beyond_us is None:
            continue
        where = f" in {letters.subject}" if letters.is_folder else f" of {letters.subject}" if letters.subject else ""
        yield _alert(
            "dead_letters",
            letters.subject,
            f"Too many dead letters{where} are open.",
            f"{counted(letters.number, 'dead letter')} {'is' if letters.number == 1 else 'are'} open, more than {threshold:g}.",
            value=letters.number,
            threshold=threshold,
            since=from_us(letters.beyond_us),
            facts={"count": letters.number},
            command=_letters_command(letters.subject, is_folder=letters.is_folder, groups=True),
        )


def _old_letters(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for old, is_folder in facts.old_letters:
        threshold = rules.threshold("dead_letters_old", old.pipeline)
        if threshold is not None:
            yield _alert(
                "dead_letters_old",
                old.pipeline,
                f"Dead letters {'in' if is_folder else 'of'} {old.pipeline} are open for more than {window(threshold)}.",
                f"{counted(old.times, 'dead letter')}, the oldest since {_instant(from_us(old.first_us))}. "
                + (
                    "Replay them, or move their files away."
                    if is_folder
                    else "Replay them, or archive them with a reason."
                ),
                value=old.times,
                threshold=threshold,
                since=from_us(old.first_us),
                facts={"count": old.times},
                command=_letters_command(old.pipeline, is_folder=is_folder),
            )


def _letters_command(subject: str, *, is_folder: bool, groups: bool = False) -> tuple[str, ...]:
    """The command that shows them; none shows those in a folder."""
    if is_folder:
        return ()
    return ("dlq", "groups" if groups else "list", *(("--pipeline", subject) if subject else ()))


def _stuck(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for queue in facts.stuck:
        threshold = rules.threshold("stuck_jobs", queue.queue)
        if threshold is None:
            continue
        said = []
        if queue.late and queue.oldest_due_us is not None:
            said.append(
                f"{counted(queue.late, 'job')} due for more than {duration(threshold)} and not claimed, the oldest since "
                f"{_instant(from_us(queue.oldest_due_us))}"
            )
        if queue.orphaned and queue.orphaned_us is not None:
            said.append(
                f"{counted(queue.orphaned, 'job')} of workers that are gone for more than {duration(threshold)}, the first since "
                f"{_instant(from_us(queue.orphaned_us))}"
            )
        if queue.undo and queue.undo_us is not None:
            said.append(
                f"{counted(queue.undo, 'job')} waiting to be compensated for more than {duration(threshold)}, the first since "
                f"{_instant(from_us(queue.undo_us))}"
            )
        workers = "No worker is running" if facts.workers == 0 else f"{counted(facts.workers, 'worker')} alive"
        yield _alert(
            "stuck_jobs",
            queue.queue,
            f"Jobs of the queue {queue.queue} are stuck.",
            f"{' and '.join(said)}. {workers}.",
            value=queue.late + queue.orphaned + queue.undo,
            threshold=threshold,
            since=from_us(min(at for at in (queue.oldest_due_us, queue.orphaned_us, queue.undo_us) if at is not None)),
            facts={
                "late": queue.late,
                "orphaned": queue.orphaned,
                "to_compensate": queue.undo,
                "workers": facts.workers,
            },
            command=("jobs", "stats"),
        )


def _not_undone(facts: Facts, rules: Rules) -> Iterator[Alert]:
    for failed in facts.not_undone:
        if rules.threshold("compensation_failed", failed.pipeline) is None:
            continue
        yield _alert(
            "compensation_failed",
            failed.pipeline,
            f"Compensation of {failed.pipeline} failed.",
            f"{counted(failed.times, 'compensation')} failed permanently, and {'its dead letter is' if failed.times == 1 else 'their dead letters are'} open.",
            value=failed.times,
            since=from_us(failed.first_us),
            facts={"count": failed.times, "last": _iso(failed.last_us)},
            command=("dlq", "list", "--pipeline", failed.pipeline),
        )


_CHECKS: dict[str, Callable[[Facts, Rules], Iterator[Alert]]] = {
    "run_failed": _runs("run_failed"),
    "run_incomplete": _runs("run_incomplete"),
    "run_interrupted": _runs("run_interrupted"),
    "job_failed": _jobs,
    "schedule_missed": _missed,
    "no_worker": _idle,
    "stuck_jobs": _stuck,
    "breaker_open": _breakers,
    "compensation_failed": _not_undone,
    "network_exhausted": _network,
    "database_retry_rate": _database,
    "dead_letters": _letters,
    "dead_letters_old": _old_letters,
}


def _alert(
    rule: str,
    subject: str,
    message: str,
    why: str,
    *,
    value: float,
    since: datetime,
    threshold: float | None = None,
    facts: Mapping[str, Any],
    command: tuple[str, ...] = (),
) -> Alert:
    return Alert(
        rule=rule,
        subject=subject,
        severity=RULES[rule].severity,
        message=message,
        why=why,
        value=value,
        threshold=threshold,
        since=since,
        facts=facts,
        command=command,
    )


def _steps(times: Iterable[tuple[object, int]]) -> str:
    """The steps that it concerns most."""
    most = sorted(times, key=lambda one: (-one[1], str(one[0])))
    more = f" and {counted(len(most) - _NAMED, 'further step')}" if len(most) > _NAMED else ""
    return ", ".join(f"{step} {count:,}" for step, count in most[:_NAMED]) + more


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _iso(instant_us: int) -> str:
    return from_us(instant_us).isoformat()
