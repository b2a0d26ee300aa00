"""
The facts that alerts follow from, as a store has them, and what a person has acknowledged.

An alert about work that has ended fires until that work is resumed, requeued, replayed, archived or acknowledged, and for
`LONGEST_DAYS` at most.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.alerts import RULES, EndedRuns, Facts, MissedTick, OpenBreaker, OpenLetters
from outlast.deadletters.folder import Directory
from outlast.kernel.clock import here
from outlast.kernel.redact import sanitise
from outlast.store.records import EventRow, from_us, to_us
from outlast.store.troubles import MOST_RUNS, EndedRun, OldLetters
from outlast.work.leases import this_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    from outlast.alerts import Alert, Rules
    from outlast.report.views import Views
    from outlast.store import Store

    T = TypeVar("T")

LONGEST_DAYS = 7
_LONGEST_US = LONGEST_DAYS * 86_400_000_000
_RULE_OF = {"failed": "run_failed", "partial_success": "run_incomplete", "interrupted": "run_interrupted"}
ACKNOWLEDGED = "alert_acknowledged"  # the event that says so
_STATE = "acknowledged"  # the name of the state; those of webhooks begin with "webhook "


class Acknowledgement(NamedTuple):
    """What was acknowledged: what an alert reported until `until_us`. Later failures fire again."""

    alert: str
    until_us: int
    at_us: int
    by: str
    reason: str

    def document(self) -> dict[str, object]:
        """As programs read it."""
        instants = {"until": from_us(self.until_us).isoformat(), "at": from_us(self.at_us).isoformat()}
        return {"alert": self.alert, **instants, "by": self.by, "reason": self.reason}


def facts_of(
    store: Store, views: Views, rules: Rules, *, folders: Iterable[Path] = (), at_us: int | None = None
) -> Facts:
    """What the rules that are on look at, as of now or `at_us`."""
    on, window_us = rules.looks, round(rules.window * 1e6)
    now_us = round(store.now() * 1e6) if at_us is None else at_us
    since_us = now_us - _LONGEST_US
    known = {(one.alert): one.until_us for one in acknowledgements(store)}
    folders = tuple(folders)

    def acknowledged(rule: str) -> dict[str, int]:
        return {id_.partition(":")[2]: until for id_, until in known.items() if id_.partition(":")[0] == rule}

    return Facts(
        database=store.step_rates("database", window_us, at_us=at_us) if on("database_retry_rate") else (),
        network=store.given_up("network", window_us, at_us=at_us) if on("network_exhausted") else (),
        breakers=_open_breakers(views) if on("breaker_open") else (),
        letters=_letters(store, rules, folders) if on("dead_letters") else (),
        old_letters=_old_letters(store, rules, folders, now_us) if on("dead_letters_old") else (),
        stuck=_each(rules, "stuck_jobs", lambda limit: store.stuck_jobs(limit, at_us=at_us), lambda one: one.queue),
        idle=_each(rules, "no_worker", lambda limit: store.idle_queues(limit, at_us=at_us), lambda one: one.queue),
        not_undone=store.not_undone(since_us, acknowledged("compensation_failed")) if on("compensation_failed") else (),
        runs=_ended_runs(store, views, rules, since_us, known),
        jobs=store.failed_jobs(since_us, acknowledged("job_failed")) if on("job_failed") else (),
        missed=_missed(store, now_us) if on("schedule_missed") else (),
        workers=store.backlog().workers if on("stuck_jobs") or on("no_worker") else 0,
    )


def _each(rules: Rules, rule: str, ask: Callable[[int], Sequence[T]], name: Callable[[T], str]) -> list[T]:
    """What is found with the threshold of the rule, and with that of each subject that it is set for."""
    apart = rules.apart(rule)
    usual = rules.thresholds.get(rule)
    found = [] if usual is None else [one for one in ask(round(usual * 1e6)) if name(one) not in apart]
    for subject in rules.apart(rule, on=True):
        found += [one for one in ask(round((rules.threshold(rule, subject) or 0) * 1e6)) if name(one) == subject]
    return found


def _ended_runs(
    store: Store, views: Views, rules: Rules, since_us: int, acknowledged: Mapping[str, int]
) -> list[EndedRuns]:
    if not any(rules.looks(rule) for rule in _RULE_OF.values()):
        return []
    found = store.ended_runs(since_us)
    if rules.looks("run_interrupted"):
        found = [*found, *store.without_live_jobs(list(_abandoned(store, views, since_us)))]
    groups: dict[tuple[str, str], list[EndedRun]] = defaultdict(list)
    for run in found:
        rule = _RULE_OF[run.status]
        if run.ended_us > acknowledged.get(f"{rule}:{run.pipeline}", 0):
            groups[rule, run.pipeline].append(run)
    return [
        EndedRuns(rule, max(runs, key=lambda run: run.ended_us), len(runs), min(run.ended_us for run in runs))
        for (rule, _), runs in sorted(groups.items())
    ]


def _abandoned(store: Store, views: Views, since_us: int) -> Iterable[EndedRun]:
    """Runs that are stored as running and whose process is dead. They ended when their lease did, as far as is known."""
    for run in views.abandoned()[:MOST_RUNS]:
        lease = store.run_lease(run.number, 0)
        ended_us = to_us(run.started_at if lease is None else max(lease.until, run.started_at))
        # One that a step of a flow has made is reported with its flow, and a replay with the run that its letters are of.
        if run.kind == "replay" or ended_us <= since_us or store.flow_above(run) is not None:
            continue
        yield EndedRun(
            run.id,
            run.kind,
            run.pipeline,
            run.run_key,
            "interrupted",
            run.why,
            ended_us,
            run.job,
        )


def _missed(store: Store, now_us: int) -> list[MissedTick]:
    """
    Schedules whose next tick is past. After a week that is no news: a schedule that was removed from the code keeps its row.
    """
    rows, _ = store.schedules()
    return [
        MissedTick(row.kind, row.next_us, (now_us - row.next_us) / 1e6)
        for row in rows
        if row.next_us is not None and 0 < now_us - row.next_us <= _LONGEST_US
    ]


# -- dead letters --------------------------------------------------------------------------------------------------------


def _letters(store: Store, rules: Rules, folders: Sequence[Path]) -> list[OpenLetters]:
    """Of the pipelines that the rule is set for one by one, and of all others together; and each folder by itself."""
    rule, counts = "dead_letters", store.open_letters()
    apart = rules.apart(rule)
    found: list[OpenLetters] = []
    usual = rules.thresholds.get(rule)
    if usual is not None:
        rest = sum(count for pipeline, count in counts.items() if pipeline not in apart)
        found.append(OpenLetters("", rest, store.open_letter_beyond(int(usual), but=apart)))
    for pipeline in rules.apart(rule, on=True):
        if pipeline in counts:
            most = int(rules.threshold(rule, pipeline) or 0)
            found.append(OpenLetters(pipeline, counts[pipeline], store.open_letter_beyond(most, only=pipeline)))
    for folder in folders:
        threshold = rules.threshold(rule, str(folder))
        if threshold is not None and len(created := Directory(folder).created_us()) > threshold:
            found.append(OpenLetters(str(folder), len(created), created[int(threshold)], is_folder=True))
    return found


def _old_letters(store: Store, rules: Rules, folders: Sequence[Path], now_us: int) -> list[tuple[OldLetters, bool]]:
    rule = "dead_letters_old"
    usual = rules.thresholds.get(rule)
    found: list[OldLetters] = []
    if usual is not None:
        found += store.old_letters(round(usual * 1e6), but=rules.apart(rule), at_us=now_us)
    for pipeline in rules.apart(rule, on=True):
        found += store.old_letters(round((rules.threshold(rule, pipeline) or 0) * 1e6), only=pipeline, at_us=now_us)
    both = [(one, False) for one in found]
    for folder in folders:
        threshold = rules.threshold(rule, str(folder))
        if threshold is not None:
            old = [at for at in Directory(folder).created_us() if at < now_us - threshold * 1e6]
            both += [(OldLetters(str(folder), len(old), old[0]), True)] if old else []
    return both


def _open_breakers(views: Views) -> list[OpenBreaker]:
    return [
        OpenBreaker(
            one["name"], one.get("opened_at") or one["changed_at"], one.get("reason"), len(one.get("processes", ()))
        )
        for one in views.breakers_now()
        if one["state"] == "open"
    ]


# -- what was acknowledged -----------------------------------------------------------------------------------------------


def acknowledgements(store: Store) -> list[Acknowledgement]:
    """What was acknowledged of work that can still fire."""
    kept, now = store.look("alerts", _STATE)
    oldest = round(now * 1e6) - _LONGEST_US
    found = (Acknowledgement(*row) for row in (kept or {}).get("alerts", ()))
    return [one for one in found if one.until_us > oldest]


def acknowledge(store: Store, alert: Alert, reason: str) -> Acknowledgement:
    """Keep that a person knows of what this alert reports; it does not fire for that any more."""
    assert RULES[alert.rule].over  # noqa: S101 - the caller refuses the others
    world = here.get()
    until_us = to_us(datetime.fromisoformat(alert.facts["last"]))
    made = Acknowledgement(alert.id, until_us, to_us(world.clock.now()), sanitise(this_user()), sanitise(reason))
    oldest = made.at_us - _LONGEST_US

    def change(kept: Mapping[str, Any] | None, _: float) -> tuple[Mapping[str, Any], None]:
        others = [row for row in (kept or {}).get("alerts", ()) if row[0] != alert.id and row[1] > oldest]
        return {"alerts": [*others, list(made)]}, None

    store.change_state("alerts", _STATE, change)
    store.add_events([EventRow(world.ids.new(), ACKNOWLEDGED, made.at_us, None, made.document())])
    return made
