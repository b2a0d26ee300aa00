"""
Alerts: what is on record in a store, held against thresholds. Pure: facts go in, alerts come out.

    evaluate     the alerts that fire; `RULES` are the rules, `Rules` how they are set
    reading      the facts, asked of a store
    notices      which of them are to be told, so that each is told once (pure), and the telling
    webhook      one POST
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from outlast.errors import nearest
from outlast.kernel.wording import counted, duration, window
from outlast.settings.keys import seconds_of
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from outlast.store.troubles import GivenUp, NotUndone, StepRate, StuckJobs

Severity: TypeAlias = Literal["warning", "critical"]
Unit: TypeAlias = Literal["share", "number", "seconds", "switch"]

DATABASE_RETRIES = "50%+ of database operations require retries. Consider increasing connection pool size."
NETWORK_EXHAUSTED = "Network retry exhaustion. Check network stability or increase retry limit."
FEW = "steps with few operations"
_NAMED = 3  # steps that a sentence names


class Rule(NamedTuple):
    """A rule: it fires above its threshold, which is `usual` if nothing is said. A switch has none."""

    name: str
    severity: Severity
    unit: Unit
    usual: float
    about: str


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            *("database_retry_rate", "warning", "share", 0.5),
            "Of the operations of a step that had retries for database errors, the share that required one.",
        ),
        Rule(
            *("network_exhausted", "critical", "number", 10),
            "How often in an hour steps gave up on network errors.",
        ),
        Rule(*("breaker_open", "critical", "switch", 0), "A circuit breaker is open."),
        Rule(*("dead_letters", "warning", "number", 100), "Dead letters that are open."),
        Rule(
            *("stuck_jobs", "critical", "seconds", 900),
            "For how long a job is due and nobody takes it, or its worker is gone and nobody brings it back; also one that is to be undone.",
        ),
        Rule(*("compensation_failed", "critical", "switch", 0), "What a flow did could not be undone."),
    )
}


@dataclass(frozen=True, slots=True)
class Rules:
    """How the rules are set: the threshold of each that is on, how far they look back, and how few operations are too few."""

    thresholds: dict[str, float]
    window: float = 3600.0
    minimum: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """
    A rule fires for a subject: a step, a breaker, a queue, a pipeline. `value` is what was found, above the `threshold`;
    `since` is the earliest instant on record that it follows from.
    """

    rule: str
    subject: str
    severity: Severity
    message: str
    why: str
    value: float
    threshold: float | None
    since: datetime

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
        }


class OpenBreaker(NamedTuple):
    """A breaker that lets nothing through, as far as is on record; `reason` if somebody has isolated it."""

    name: str
    since: datetime
    reason: str | None = None


class Facts(NamedTuple):
    """What the rules look at. `beyond` is when the first open letter was made that is one too many, if any is."""

    database: Sequence[StepRate] = ()
    network: Sequence[GivenUp] = ()
    breakers: Sequence[OpenBreaker] = ()
    letters: int = 0
    beyond: datetime | None = None
    stuck: Sequence[StuckJobs] = ()
    not_undone: Sequence[NotUndone] = ()
    workers: int = 0


def rules_from(settings: Iterable[str], problems: list[str], *, window: float = 3600.0, minimum: int = 20) -> Rules:
    """
    The rules as they are usually, changed by settings such as ``dead_letters=500`` or ``breaker_open=off``. What is
    wrong with a setting is added to the problems.
    """
    thresholds = {rule.name: rule.usual for rule in RULES.values()}
    seen: set[str] = set()
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        rule = RULES.get(name)
        if rule is None:
            known = nearest(name, list(RULES)) or f" There are: {', '.join(RULES)}."
            problems.append(f"expected --rule to be one of the rules, got: {name!r}.{known}")
        elif name in seen:
            problems.append(f"expected one --rule for {name}, got: several.")
        elif text == "off":
            del thresholds[name]
        elif rule.unit == "switch" or not equals:
            if text != "on":
                wanted = "on or off" if rule.unit == "switch" else f"{name}=THRESHOLD or {name}=off"
                problems.append(f"expected --rule {name} to be {wanted}, got: {setting!r}.")
        elif (threshold := _threshold(rule.unit, text)) is None:
            problems.append(f"expected --rule {name} to be {_WANTED[rule.unit]}, or off, got: {text!r}.")
        else:
            thresholds[name] = threshold
        seen.add(name)
    return Rules(thresholds, window, minimum)


_WANTED: dict[Unit, str] = {
    "share": "a share from 0 to below 1, such as 0.5",
    "number": "a number that is at least 0, such as 10",
    "seconds": "a duration such as 90s, 10m or 2h",
}


def _threshold(unit: Unit, text: str) -> float | None:
    if unit == "seconds":
        found = seconds_of(text)
        good = isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < float("inf")
        return float(found) if good else None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < (1 if unit == "share" else float("inf")) else None


# --- what fires -------------------------------------------------------------------------------------------------------


def evaluate(facts: Facts, rules: Rules) -> list[Alert]:
    """The alerts that fire, the critical ones first; each rule above its threshold, not at it."""
    found = [alert for name, check in _CHECKS.items() if name in rules.thresholds for alert in check(facts, rules)]
    return sorted(found, key=lambda alert: (alert.severity != "critical", list(RULES).index(alert.rule), alert.subject))


def _database(facts: Facts, rules: Rules) -> Iterator[Alert]:
    """Each step by itself; those with fewer operations than the minimum together, if together they have enough."""
    threshold = rules.thresholds["database_retry_rate"]
    few = [rate for rate in facts.database if rate.operations < rules.minimum]
    alone = [(str(rate.step), [rate]) for rate in facts.database if rate.operations >= rules.minimum]
    for subject, rates in [*alone, (FEW, few)]:
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
        )


def _network(facts: Facts, rules: Rules) -> Iterator[Alert]:
    threshold = rules.thresholds["network_exhausted"]
    times = sum(one.times for one in facts.network)
    hourly = times * 3600 / rules.window
    if hourly > threshold:
        yield _alert(
            "network_exhausted",
            "",
            NETWORK_EXHAUSTED,
            f"Steps gave up on network errors {times:,} times in the last {window(rules.window)}, more than {threshold:g} an hour: "
            f"{_steps((one.step, one.times) for one in facts.network)}.",
            value=hourly,
            threshold=threshold,
            since=from_us(min(one.first_us for one in facts.network)),
        )


def _breakers(facts: Facts, _: Rules) -> Iterator[Alert]:
    for breaker in facts.breakers:
        by_hand = "" if breaker.reason is None else f" Somebody has isolated it: {breaker.reason}."
        yield _alert(
            "breaker_open",
            breaker.name,
            f"The circuit breaker {breaker.name} is open.",
            f"On record as open since {_instant(breaker.since)}.{by_hand}",
            value=1,
            since=breaker.since,
        )


def _letters(facts: Facts, rules: Rules) -> Iterator[Alert]:
    threshold = rules.thresholds["dead_letters"]
    if facts.letters > threshold and facts.beyond is not None:
        yield _alert(
            "dead_letters",
            "",
            "Too many dead letters are open. Look at them with `outlast dlq groups`.",
            f"{counted(facts.letters, 'dead letter')} {'is' if facts.letters == 1 else 'are'} open, more than {threshold:g}.",
            value=facts.letters,
            threshold=threshold,
            since=facts.beyond,
        )


def _stuck(facts: Facts, rules: Rules) -> Iterator[Alert]:
    threshold = rules.thresholds["stuck_jobs"]
    for queue in facts.stuck:
        said = []
        if queue.late and queue.oldest_due_us is not None:
            said.append(
                f"{counted(queue.late, 'job')} due for more than {duration(threshold)} that nobody has taken, the oldest since "
                f"{_instant(from_us(queue.oldest_due_us))}"
            )
        if queue.orphaned and queue.orphaned_us is not None:
            said.append(
                f"{counted(queue.orphaned, 'job')} of workers that are gone for more than {duration(threshold)}, the first since "
                f"{_instant(from_us(queue.orphaned_us))}"
            )
        if queue.undo and queue.undo_us is not None:
            said.append(
                f"{counted(queue.undo, 'job')} to be undone for more than {duration(threshold)} that nobody undoes, the first since "
                f"{_instant(from_us(queue.undo_us))}"
            )
        workers = "no worker is running" if facts.workers == 0 else f"{counted(facts.workers, 'worker')} alive"
        yield _alert(
            "stuck_jobs",
            queue.queue,
            f"Jobs of the queue {queue.queue} are stuck.",
            f"{' and '.join(said)}; {workers}.",
            value=queue.late + queue.orphaned + queue.undo,
            threshold=threshold,
            since=from_us(min(at for at in (queue.oldest_due_us, queue.orphaned_us, queue.undo_us) if at is not None)),
        )


def _not_undone(facts: Facts, _: Rules) -> Iterator[Alert]:
    for failed in facts.not_undone:
        yield _alert(
            "compensation_failed",
            failed.pipeline,
            f"What {failed.pipeline} did could not be undone. Look at it with `outlast dlq list --pipeline {failed.pipeline}`.",
            f"{counted(failed.times, 'compensation')} failed for good, and nobody has seen to the dead letter.",
            value=failed.times,
            since=from_us(failed.first_us),
        )


_CHECKS = {
    "database_retry_rate": _database,
    "network_exhausted": _network,
    "breaker_open": _breakers,
    "dead_letters": _letters,
    "stuck_jobs": _stuck,
    "compensation_failed": _not_undone,
}


def _alert(
    rule: str, subject: str, message: str, why: str, *, value: float, since: datetime, threshold: float | None = None
) -> Alert:
    severity = RULES[rule].severity
    return Alert(
        rule=rule,
        subject=subject,
        severity=severity,
        message=message,
        why=why,
        value=value,
        threshold=threshold,
        since=since,
    )


def _steps(times: Iterable[tuple[object, int]]) -> str:
    """The steps that it concerns most."""
    most = sorted(times, key=lambda one: (-one[1], str(one[0])))
    more = f" and {counted(len(most) - _NAMED, 'further step')}" if len(most) > _NAMED else ""
    return ", ".join(f"{step} {count:,}" for step, count in most[:_NAMED]) + more


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
