"""Alerts: they fire above their thresholds and not at them, say what the seeds say, and are told once."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import threading
from datetime import UTC, datetime

import pytest

from job_rows import SECOND, claimed, end, enqueued, failed, finished, new, worker
from outlast.alerts import (
    FEW,
    RULES,
    Alert,
    EndedRuns,
    Facts,
    MissedTick,
    OpenBreaker,
    OpenLetters,
    evaluate,
    rules_from,
)
from outlast.alerts.notices import CLAIM, notify, planned, settled
from outlast.alerts.reading import facts_of
from outlast.alerts.webhook import place_of, post, problems_of
from outlast.breaker.shared import by_hand
from outlast.report.views import Views
from outlast.store import open_store
from outlast.store.records import from_us
from outlast.store.troubles import (
    MOST_RUNS,
    EndedRun,
    FailedJobs,
    GivenUp,
    NotUndone,
    OldLetters,
    Step,
    StepRate,
    StuckJobs,
)
from servers.scripted import ScriptedServer
from shells import Shell
from stores import START, letter, prepared, sql

HOUR = 3600 * SECOND
SEND = Step("", "send")
LOCKED = {"error_class": "database_connection", "error_type": "OperationalError", "error": "locked"}
RESET = {"error_class": "connection_reset", "error_type": "ConnectionResetError", "error": "reset"}


@pytest.fixture(scope="session")
def database(postgres_server):
    """A database for all tests here, each with an app of its own; tests of other modules may come between them."""
    return postgres_server.database("alerts")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    address = prepared(tmp_path / "outlast.db")
    if request.param == "postgres":
        address = request.getfixturevalue("database").dsn
    with open_store(address, app=f"alerts {tmp_path}") as opened:
        yield opened


def rules(*settings, **how):
    problems: list[str] = []
    made = rules_from(settings, problems, **how)
    assert problems == []
    return made


def firing(facts, *settings, **how):
    return [alert.id for alert in evaluate(facts, rules(*settings, **how))]


# --- thresholds, pure -------------------------------------------------------------------------------------------------


def test_the_database_rate_fires_above_its_threshold_only():
    """S2-26, U-23: more than half, of at least twenty operations; the text is the seed's."""
    told = {
        (operations, retried): firing(Facts(database=[StepRate(SEND, operations, retried, START)]))
        for operations, retried in [(20, 9), (20, 10), (20, 11), (19, 19), (1000, 500), (1000, 501), (21, 11)]
    }
    fires = ["database_retry_rate:send"]
    assert told == {
        (20, 9): [], (20, 10): [], (20, 11): fires, (19, 19): [], (1000, 500): [], (1000, 501): fires, (21, 11): fires,
    }  # fmt: skip
    (alert,) = evaluate(Facts(database=[StepRate(SEND, 20, 11, START)]), rules())
    assert alert == Alert(
        rule="database_retry_rate",
        subject="send",
        severity="warning",
        message="50%+ of database operations require retries. Consider increasing connection pool size.",
        why="11 of 20 operations of send in the last 1 h required a retry for a database error: 55.0%, more than 50.0%.",
        value=0.55,
        threshold=0.5,
        since=from_us(START),
        facts={"operations": 20, "retried": 11},
    )


def test_a_busy_step_hides_no_other_and_small_steps_are_looked_at_together():
    """S2-26: each step by itself; those with too few operations as one, if together they have enough."""
    busy, broken = StepRate(Step("p", "busy"), 1000, 1, START), StepRate(Step("p", "broken"), 20, 20, START)
    assert firing(Facts(database=[busy, broken])) == ["database_retry_rate:p/broken"]
    small = [StepRate(Step("p", f"step {place}"), 5, 5 if place else 0, START + place) for place in range(4)]
    assert firing(Facts(database=small)) == [f"database_retry_rate:{FEW}"]
    assert firing(Facts(database=small[:3])) == []
    assert firing(Facts(database=small[:3]), minimum=15) == [f"database_retry_rate:{FEW}"]
    (alert,) = evaluate(Facts(database=small), rules())
    assert alert.why == (
        "15 of 20 operations of steps with few operations (p/step 1 5, p/step 2 5, p/step 3 5 and 1 further step) in the last 1 h "
        "required a retry for a database error: 75.0%, more than 50.0%."
    )


def test_network_exhaustion_fires_above_ten_an_hour():
    """S2-27, U-23: all steps together, scaled to an hour where the window is another; the text is the seed's."""

    def gave_up(*times):
        return Facts(network=[GivenUp(Step("p", f"s{place}"), "network", n, START) for place, n in enumerate(times)])

    assert [firing(gave_up(*times)) for times in [(), (10,), (11,), (6, 5), (5, 5)]] == [
        [], [], ["network_exhausted"], ["network_exhausted"], [],
    ]  # fmt: skip
    assert firing(gave_up(5), window=1800.0) == []
    assert firing(gave_up(6), window=1800.0) == ["network_exhausted"]
    assert firing(gave_up(11), window=7200.0) == []
    (alert,) = evaluate(gave_up(6, 5), rules())
    assert (alert.message, alert.why, alert.severity) == (
        "Network retry exhaustion. Check network stability or increase retry limit.",
        "Steps gave up on network errors 11 times in the last 1 h, more than 10 an hour: p/s0 6, p/s1 5.",
        "critical",
    )


def test_a_rule_for_one_step_wins_over_the_rule_for_its_pipeline():
    """What is set for a pipeline holds for its other steps."""
    facts = Facts(
        database=[StepRate(Step("p", name), 20, 18, START) for name in ("read", "write")],
        network=[GivenUp(Step("p", name), "network", 12, START) for name in ("read", "write")],
    )
    for settings, expected in {
        ("database_retry_rate:p=off",): [],
        ("database_retry_rate:p=off", "database_retry_rate:p/read=0.8"): ["p/read"],
        ("database_retry_rate:p=0.8", "database_retry_rate:p/read=0.9"): ["p/write"],
        ("database_retry_rate:p=on", "database_retry_rate:p/read=off"): ["p/write"],
    }.items():
        found = evaluate(facts, rules("network_exhausted=off", *settings))
        assert [alert.subject for alert in found] == expected, settings
    for settings, expected in {
        ("network_exhausted:p=off",): [],
        ("network_exhausted:p=off", "network_exhausted:p/read=11"): ["p/read"],
        ("network_exhausted:p=11", "network_exhausted:p/read=off"): ["p"],
    }.items():
        found = evaluate(facts, rules("database_retry_rate=off", *settings))
        assert [alert.subject for alert in found] == expected, settings


def test_the_command_of_an_alert_can_be_pasted_whatever_its_subject_is_named():
    """A shell takes the name of a pipeline or a kind as one word."""
    for name in ("daily import", "a'b", "a;b", "$(x)"):
        failures = FailedJobs(name, "mail", 1, START, START, 7, "no", "ValueError", "data_error")
        facts = Facts(
            not_undone=[NotUndone(name, 1, START, START)],
            jobs=[failures],
            old_letters=[(OldLetters(name, 1, START), False)],
        )
        commands = [shlex.split(alert.document()["command"]) for alert in evaluate(facts, rules())]
        assert commands == [
            ["outlast", "jobs", "list", "--kind", name, "--status", "failed"],
            ["outlast", "dlq", "list", "--pipeline", name],
            ["outlast", "dlq", "list", "--pipeline", name],
        ]


def test_the_other_rules_say_what_is_so():
    """S4-17, S4-24, U-23: breaker open, dead letters over their threshold, stuck jobs, compensation failed; critical ones first."""
    since = from_us(START)
    facts = Facts(
        breakers=[OpenBreaker("openai", since), OpenBreaker("db", since, "maintenance", 2)],
        letters=[OpenLetters("", 101, START)],
        old_letters=[(OldLetters("trip", 2, START), False)],
        stuck=[StuckJobs("mail", 2, START, 1, START + SECOND), StuckJobs("trips", undo=1, undo_us=START)],
        not_undone=[NotUndone("trip", 1, START, START)],
        workers=0,
    )
    instant = "2027-01-15 08:00:00 UTC"
    assert [
        (alert.severity, alert.id, alert.message, alert.why, alert.since) for alert in evaluate(facts, rules())
    ] == [
        (
            "critical",
            "stuck_jobs:mail",
            "Jobs of the queue mail are stuck.",
            (
                f"2 jobs due for more than 15 min 00 s and not claimed, the oldest since {instant} and 1 job of workers that are gone "
                "for more than 15 min 00 s, the first since 2027-01-15 08:00:01 UTC. No worker is running."
            ),
            since,
        ),
        (
            "critical",
            "stuck_jobs:trips",
            "Jobs of the queue trips are stuck.",
            f"1 job waiting to be compensated for more than 15 min 00 s, the first since {instant}. No worker is running.",
            since,
        ),
        (
            "critical",
            "breaker_open:db",
            "The circuit breaker db is open in 2 processes.",
            f"Open since {instant}. Isolated by hand: maintenance.",
            since,
        ),
        ("critical", "breaker_open:openai", "The circuit breaker openai is open.", f"Open since {instant}.", since),
        (
            "critical",
            "compensation_failed:trip",
            "Compensation of trip failed.",
            "1 compensation failed permanently, and its dead letter is open.",
            since,
        ),
        (
            "warning",
            "dead_letters",
            "Too many dead letters are open.",
            "101 dead letters are open, more than 100.",
            since,
        ),
        (
            "warning",
            "dead_letters_old:trip",
            "Dead letters of trip are open for more than 24 h.",
            f"2 dead letters, the oldest since {instant}. Replay them, or archive them with a reason.",
            since,
        ),
    ]
    assert firing(facts._replace(letters=[OpenLetters("", 100, None)], old_letters=())) == firing(facts)[:-2]
    everything_off = [f"{name}=off" for name in RULES]
    assert firing(facts, *everything_off) == []
    assert firing(facts, "dead_letters=101", "breaker_open=off", "dead_letters_old=off") == [
        "stuck_jobs:mail",
        "stuck_jobs:trips",
        "compensation_failed:trip",
    ]


def test_an_alert_of_several_things_counts_all_and_began_with_the_first():
    """U-23: whatever the order they are found in."""
    later, first = START + SECOND, START
    stuck = [
        StuckJobs("a", 2, later, 3, first, 4, later + 1),
        StuckJobs("b", 2, later, 3, later + 1, 4, first),
        StuckJobs("c", 2, first, undo=4, undo_us=later),
    ]
    facts = Facts(
        stuck=stuck,
        network=[GivenUp(Step("p", name), "network", 6, at) for name, at in (("a", later), ("b", first), ("c", later))],
        database=[StepRate(Step("p", name), 10, 10, at) for name, at in (("a", later), ("b", first))],
        workers=1,
    )
    found = {alert.id: alert for alert in evaluate(facts, rules())}
    assert {id_: (alert.value, alert.since) for id_, alert in found.items()} == {
        "stuck_jobs:a": (9, from_us(first)),
        "stuck_jobs:b": (9, from_us(first)),
        "stuck_jobs:c": (6, from_us(first)),
        "network_exhausted": (18, from_us(first)),
        f"database_retry_rate:{FEW}": (1, from_us(first)),
    }
    assert found["stuck_jobs:a"].facts == {"late": 2, "orphaned": 3, "to_compensate": 4, "workers": 1}
    assert found["network_exhausted"].facts == {"times": 18, "steps": {"p/a": 6, "p/b": 6, "p/c": 6}}
    run = EndedRun("r1", "run", "import", "k", "failed", "why", START)
    said = [
        alert.why.partition(" times")[0]
        for times in (MOST_RUNS - 1, MOST_RUNS)
        for alert in evaluate(Facts(runs=[EndedRuns("run_failed", run, times, START)]), rules())
    ]
    assert said == ["9,999", "at least 10,000"]


def test_a_rule_is_set_for_one_subject_and_holds_for_the_others():
    """U-23: off or another threshold for a pipeline, kind, queue or breaker; on for one where it is off for all."""
    job = FailedJobs("nightly", "default", 50, START, START, 50, "no", "ValueError", "data_error")
    run = EndedRun("r1", "run", "import", "k", "failed", "why", START)
    facts = Facts(
        breakers=[OpenBreaker("a", from_us(START)), OpenBreaker("b", from_us(START))],
        jobs=[job, job._replace(kind="hourly")],
        runs=[EndedRuns("run_failed", run, 1, START), EndedRuns("run_failed", run._replace(pipeline="x"), 1, START)],
        network=[GivenUp(Step("p", "s"), "network", 11, START), GivenUp(SEND, "network", 11, START)],
        database=[StepRate(Step("p", "s"), 20, 11, START), StepRate(SEND, 20, 11, START)],
        missed=[MissedTick("nightly", START, 301.0), MissedTick("hourly", START, 300.0)],
    )
    assert firing(facts) == [
        "run_failed:import", "run_failed:x", "job_failed:hourly", "job_failed:nightly", "schedule_missed:nightly",
        "breaker_open:a", "breaker_open:b", "network_exhausted", "database_retry_rate:p/s", "database_retry_rate:send",
    ]  # fmt: skip
    assert firing(
        facts, "run_failed:x=off", "job_failed=off", "job_failed:hourly=on", "breaker_open:a=off", "network_exhausted:p=11",
        "network_exhausted:send=off", "database_retry_rate:p/s=0.6", "database_retry_rate:send=0.54", "schedule_missed:hourly=299",
        "schedule_missed:nightly=302",
    ) == ["run_failed:import", "job_failed:hourly", "schedule_missed:hourly", "breaker_open:b", "database_retry_rate:send"]  # fmt: skip


def test_fifty_failed_jobs_are_one_alert_with_an_example_and_a_command():
    """U-23: grouped by kind, with the newest error; programs get the same as data."""
    job = FailedJobs("nightly", "mail", 50, START, START + SECOND, 7, "no file", "OSError", "data_error")
    (alert,) = evaluate(Facts(jobs=[job]), rules())
    assert (alert.message, alert.why, alert.since) == (
        "50 jobs of nightly failed.",
        "The newest is job 7, at 2027-01-15 08:00:01 UTC: OSError (data_error): no file.",
        from_us(START),
    )
    document = alert.document()
    assert document["command"] == "outlast jobs list --kind nightly --status failed"
    assert document["facts"] == {
        "count": 50,
        "last": "2027-01-15T08:00:01+00:00",
        "job": "7",
        "queue": "mail",
        "error": "no file",
        "error_type": "OSError",
        "error_class": "data_error",
    }


def test_every_mistake_in_the_rules_is_told_at_once():
    problems: list[str] = []
    rules_from(
        [
            "dead_leters=3",
            "stuck_jobs=soon",
            "database_retry_rate=1",
            "breaker_open=3",
            "dead_letters",
            "x=1",
            "dead_letters=2",
            "job_failed:=off",
            "job_failed:nightly=3",
            "stuck_jobs:mail=never",
            "run_failed:a=off",
            "run_failed:a=on",
        ],
        problems,
    )
    assert problems == [
        "expected --rule to be one of the rules, got: 'dead_leters'. Did you mean 'dead_letters'?",
        "expected --rule stuck_jobs to be a duration such as 90s, 10m or 2h, of ten years at most, or off, got: 'soon'.",
        "expected --rule database_retry_rate to be a share from 0 to below 1, such as 0.5, or off, got: '1'.",
        "expected --rule breaker_open to be on or off, got: 'breaker_open=3'.",
        "expected --rule dead_letters to be dead_letters=THRESHOLD or dead_letters=off, got: 'dead_letters'.",
        f"expected --rule to be one of the rules, got: 'x'. There are: {', '.join(RULES)}.",
        "expected one --rule for dead_letters, got: several.",
        "expected --rule job_failed: to name a kind, got: 'job_failed:=off'.",
        "expected --rule job_failed:nightly to be on or off, got: 'job_failed:nightly=3'.",
        "expected --rule stuck_jobs:mail to be a duration such as 90s, 10m or 2h, of ten years at most, or off, got: 'never'.",
        "expected one --rule for run_failed:a, got: several.",
    ]


# --- what is on record ------------------------------------------------------------------------------------------------


def test_alerts_follow_from_what_is_on_record(store):
    """S2-26, S2-27, S4-17, S4-24, U-23: of a store with a fault of every kind, at the border of the window; what is mended is quiet."""
    lease = worker(store)
    at = round(store.now() * SECOND) - 10_000
    enqueued(store, *(new() for _ in range(31)))
    jobs = claimed(store, lease, 31)
    finished(
        store, lease, *(end(job, "waiting", "failed", delay_us=HOUR, started_us=at, **LOCKED) for job in jobs[:20])
    )
    finished(store, lease, *(failed(job, started_us=at + 5, **RESET)._replace(letter=None) for job in jobs[20:]))
    store.add_letters([letter(kind="compensation", pipeline="trip")])
    views, strict = Views(store), rules("dead_letters=0", "stuck_jobs=1h")
    store.change_state("breaker", "openai", lambda document, now: (by_hand(document, now, "maintenance"), None))

    def fires(at_us):
        return [alert.id for alert in evaluate(facts_of(store, views, strict, at_us=at_us), strict)]

    always = ["job_failed:send", "breaker_open:openai", "compensation_failed:trip"]
    assert fires(at + HOUR + 4) == [*always, "network_exhausted", "database_retry_rate:send", "dead_letters"]
    assert fires(at + HOUR + 5) == [*always, "network_exhausted", "dead_letters"]
    assert fires(at + HOUR + 10) == [*always, "dead_letters"]
    late = at + 2 * HOUR + 60 * SECOND
    assert fires(late) == [
        *("job_failed:send", "no_worker:mail", "stuck_jobs:mail", "breaker_open:openai", "compensation_failed:trip"),
        "dead_letters",
    ]
    store.change_state("breaker", "openai", lambda document, now: (by_hand(document, now, None), None))
    sql(store, "update outlast_dead_letters set status = 'resolved'")
    store.pause_queue("mail")
    assert fires(late) == ["job_failed:send"]
    assert fires(at + 7 * 24 * HOUR + 3600 * SECOND) == []


def test_a_queue_with_a_threshold_of_its_own_is_held_to_that_alone(store):
    """A higher one silences it until then, a lower one changes nothing for the others."""
    enqueued(store, new(queue="mail"), new(queue="images"))
    at, late = round(store.now() * SECOND), 1200 * SECOND
    off = [f"{name}=off" for name in RULES if name not in {"no_worker", "stuck_jobs"}]

    def fires(*settings, after=late):
        own = rules(*off, *settings)
        return [alert.id for alert in evaluate(facts_of(store, Views(store), own, at_us=at + after), own)]

    images, mail = ["no_worker:images", "stuck_jobs:images"], ["no_worker:mail", "stuck_jobs:mail"]
    assert sorted(fires()) == sorted(images + mail)
    assert fires("no_worker:mail=1h", "stuck_jobs:mail=1h") == images
    assert fires("no_worker:mail=off", "stuck_jobs:mail=off") == images
    assert sorted(fires("no_worker:mail=1h", "stuck_jobs:mail=1h", after=3 * late + SECOND)) == sorted(images + mail)
    assert fires("no_worker:mail=5s", "stuck_jobs:mail=10s", after=30 * SECOND) == mail


def test_a_breaker_of_a_run_that_is_gone_is_not_said_to_be_open(store):
    """S4-17: what a run that shares no breaker has left on record is its state of then."""
    store.save_state("watched_breaker", "api", {"state": "open", "failure_count": 5}, expect=0)
    views = Views(store)
    assert facts_of(store, views, rules()).breakers == []
    run = store.open_run("reviews", "today", ())
    store.take_run(run.number, 0, "here", 600.0)
    store.set_run(None, run.id, status="running")
    assert [breaker.name for breaker in facts_of(store, views, rules()).breakers] == ["api"]


# --- notices ----------------------------------------------------------------------------------------------------------


def alert(rule="dead_letters", subject=""):
    return Alert(
        rule=rule, subject=subject, severity="warning", message="m", why="w", value=1, threshold=0, since=datetime(2026, 11, 17, tzinfo=UTC),
    )  # fmt: skip


class Told:
    """Checks, one after the other, and what a webhook takes of them."""

    def __init__(self, store):
        self.store, self.taken, self.problem = store, [], None

    def __call__(self, *alerts, again=14_400.0, url="https://example.com/secret"):
        done = notify(self.store, alerts, url, self.deliver, again=again)
        return [(one["status"], one["id"]) for one in done.sent], done.problem

    def deliver(self, document):
        self.taken.append(document)
        return self.problem


def test_an_alert_is_told_once_and_once_when_it_is_over(store):
    """U-23: to each webhook by itself; one that fires anew is told anew."""
    told = Told(store)
    assert told(alert()) == ([("firing", "dead_letters")], None)
    assert told(alert()) == ([], None)
    assert told(alert(), alert("breaker_open", "x")) == ([("firing", "breaker_open:x")], None)
    assert told(alert(), url="https://example.com/other") == ([("firing", "dead_letters")], None)
    assert told(alert("breaker_open", "x")) == ([("resolved", "dead_letters")], None)
    assert told(alert("breaker_open", "x")) == ([], None)
    assert told(alert()) == ([("firing", "dead_letters"), ("resolved", "breaker_open:x")], None)
    assert told(alert(), again=0.0) == ([("firing", "dead_letters")], None)
    assert len(told.taken) == 6
    assert told.taken[0] == {
        "version": 1,
        "app": store.app,
        "text": "[firing] dead_letters: m w",
        "notices": [{"status": "firing"} | alert().document()],
    }
    over = told.taken[3]["notices"][0]
    instant = f"{datetime.fromisoformat(over['ended']):%Y-%m-%d %H:%M:%S} UTC"
    assert told.taken[3]["text"] == (
        f"[resolved] dead_letters: It is over. A check at {instant} found that it does not fire any more. "
        "Since 2026-11-17 00:00:00 UTC it was: m w"
    )
    assert over == alert().document() | {
        "status": "resolved",
        "message": "It is over.",
        "why": told.taken[3]["text"].partition("It is over. ")[2],
        "value": None,
        "facts": {},
        "ended": over["ended"],
        "was": {"message": "m", "why": "w", "value": 1, "facts": {}},
    }
    assert "secret" not in json.dumps(sql(store, "select name, data from outlast_states where kind = 'alerts'"))


def test_of_too_many_alerts_none_that_fires_is_called_over(store):
    """U-23: a webhook is told of a thousand; those that it knows are not pushed out by others."""
    told, many = Told(store), [alert("breaker_open", f"b{number:04}") for number in range(1000)]
    assert len(told(*many)[0]) == 1000
    assert told(alert("breaker_open", "a"), *many) == ([], None)
    assert told(alert("breaker_open", "a"), *many[1:])[0] == [
        ("firing", "breaker_open:a"),
        ("resolved", "breaker_open:b0000"),
    ]


def test_what_a_webhook_has_not_taken_is_told_by_the_next_check(store):
    """U-23: also when the alert is over by then, and when its end could not be told."""
    told = Told(store)
    told.problem = "it answered 503"
    assert told(alert()) == ([], "it answered 503")
    assert told() == ([], "it answered 503")  # over, and nobody has heard of it
    told.problem = None
    assert told() == ([("resolved", "dead_letters")], None)
    assert told() == ([], None)
    assert told(alert()) == ([("firing", "dead_letters")], None)
    told.problem = "gone"
    assert told() == ([], "gone")
    assert told() == ([], "gone")
    told.problem = None
    assert told() == ([("resolved", "dead_letters")], None)
    first, again, last = (document["notices"][0]["ended"] for document in told.taken[-3:])
    assert first == again == last  # when it was over, not when that could be told


def test_one_that_fires_again_before_its_end_was_told_goes_on(store):
    """U-23: nothing is told twice, and its end is the later one."""
    told = Told(store)
    assert told(alert()) == ([("firing", "dead_letters")], None)
    told.problem = "gone"
    assert told() == ([], "gone")
    told.problem = None

    def ended():
        ((data,),) = sql(store, "select data from outlast_states where kind = 'alerts' and app = ?", store.app)
        kept = json.loads(data) if isinstance(data, str) else data
        return [one.get("ended") for one in kept["alerts"].values()]

    assert ended() != [None]
    assert told(alert()) == ([], None)
    assert ended() == [None]
    assert told() == ([("resolved", "dead_letters")], None)


def test_two_checkers_tell_it_once(store):
    """U-23: the second one comes while the first one tells it, and says so; a checker that dies is taken over from."""
    inside, go_on, done = threading.Event(), threading.Event(), []

    def slow(document):
        inside.set()
        assert go_on.wait(60)

    url = "https://example.com"
    first = threading.Thread(target=lambda: done.append(notify(store, [alert()], url, slow, again=60.0)))
    first.start()
    assert inside.wait(60)
    assert notify(store, [alert()], url, pytest.fail, again=60.0).busy
    go_on.set()
    first.join()
    assert [len(one.sent) for one in done] == [1]
    assert notify(store, [alert()], url, pytest.fail, again=60.0) == ((), None, False)

    def dies(document):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify(store, [alert(subject="x")], url, dies, again=60.0)
    told = Told(store)
    assert told(alert(subject="x"), url=url) == ([("firing", "dead_letters:x"), ("resolved", "dead_letters")], None)


def test_a_claim_runs_out_and_a_late_checker_changes_nothing():
    """U-23: pure; at the very end of the claim another one may begin, and what the first one says then is not taken for its own."""
    firing = {"a": alert(subject="a").document() | {"id": "a"}}
    kept, notices = planned(None, firing, 100.0, claim="one", again=60.0)
    assert (kept["claim"], [one["id"] for one in notices]) == ({"id": "one", "until": 100.0 + CLAIM}, ["a"])
    assert planned(kept, firing, 100.0 + CLAIM - 0.001, claim="two", again=60.0) == (None, None)
    taken, again = planned(kept, firing, 100.0 + CLAIM, claim="two", again=60.0)
    assert (taken["claim"]["id"], [one["id"] for one in again]) == ("two", ["a"])
    assert settled(taken, "one", notices, 161.0) is None
    over = settled(taken, "two", again, 161.0)
    assert (over["claim"], over["alerts"]["a"]["sent"]) == (None, 161.0)
    assert planned(over, firing, 161.0 + 59.999, claim="three", again=60.0) == (None, [])
    assert [one["id"] for one in planned(over, firing, 221.0, claim="three", again=60.0)[1]] == ["a"]


def test_a_webhook_has_taken_what_it_answers_well():
    """U-23: 2xx and nothing else, no redirect is followed, and no message says more of the address than its host."""
    with ScriptedServer() as server, ScriptedServer() as elsewhere:
        place = server.url
        url = f"{place}/services/T0/secret?key=hidden"
        said = {}
        for status in (200, 204, 302, 404, 500):
            server.answer(status, location=elsewhere.url)
            said[status] = post(url, {"a": 1}, token="hidden-token")
        server.hang_up()
        said["hung up"] = post(url, {})
    said["gone"] = post(url, {})
    start = f"the webhook at {place} has not taken the notice: "
    assert said == {
        200: None,
        204: None,
        302: f"{start}it answered 302, and a webhook must not lead elsewhere.",
        404: f"{start}it answered 404.",
        500: f"{start}it answered 500.",
        "hung up": f"{start}RemoteDisconnected.",
        "gone": f"{start}ConnectionRefusedError, Connection refused.",
    }
    assert place_of("https://h:1/x") == "https://h:1"
    wrong = ["ftp://h/x", "https:///secret", "https://user:secret@h/x", "https://h/se cret", "http://[secret", "secret"]
    assert ["secret" in str(problems_of(url)) or not problems_of(url) for url in wrong] == [False] * len(wrong)


def test_a_webhook_gets_the_document_and_the_token(tmp_path):
    """U-23: one POST of JSON to the whole address; the token is that of the environment, and without one no header is sent."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        store.add_letters([letter()])
    line = f"alerts check --store {address} --rule dead_letters=0 --rule dead_letters_old=off"
    with ScriptedServer() as server:
        for name, token in (("a", {}), ("b", {"OUTLAST_WEBHOOK_TOKEN": "t0ken"}), ("c", {"OUTLAST_WEBHOOK_TOKEN": ""})):
            assert shell(f"{line} --webhook {server.url}/{name}?key=1", **token).returncode == 1
        asked = server.asked
    assert [(where, headers.get("authorization"), headers["content-type"]) for where, headers, _ in asked] == [
        ("POST /a?key=1", None, "application/json"),
        ("POST /b?key=1", "Bearer t0ken", "application/json"),
        ("POST /c?key=1", None, "application/json"),
    ]
    document = json.loads(asked[0][2])
    assert (document["app"], [(one["status"], one["id"]) for one in document["notices"]]) == (
        "default",
        [("firing", "dead_letters")],
    )


def test_a_webhook_that_is_silent_is_not_waited_for_for_ever():
    """U-23: neither one that never answers, nor one that answers a byte at a time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert post(url, {}, patience=0.1) == f"the webhook at {url} has not taken the notice: TimeoutError."
        ended = threading.Event()

        def drip():
            while not ended.is_set():
                caller, _ = silent.accept()
                with caller, contextlib.suppress(OSError):
                    while not ended.wait(0.02):
                        caller.sendall(b"H")

        dripping = threading.Thread(target=drip)
        dripping.start()
        said = post(url, {}, patience=0.2)
        ended.set()
        with contextlib.suppress(OSError):
            socket.create_connection(silent.getsockname(), timeout=5).close()  # for the next accept
        dripping.join()
    assert said == f"the webhook at {url} has not taken the notice: no answer within 0.3 s."


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_fires_and_tells_a_webhook(tmp_path):
    """U-23, S4-24: 0 quiet, 1 firing or not told, 2 invalid; the secret of the address is in no output."""
    shell = Shell(tmp_path, {})
    address = prepared(tmp_path / "s.db")
    at = f"alerts check --store {address}"
    quiet = shell(at)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "Quiet: of 13 rules none fires.\n", "")
    with open_store(address) as store:
        store.add_letters([letter()])
    with ScriptedServer() as server:
        hook = {"OUTLAST_WEBHOOK": f"{server.url}/hidden", "OUTLAST_WEBHOOK_TOKEN": "hidden"}
        server.answer(500)
        line = f"{at} --rule dead_letters=0"
        outcomes = [shell(line, **hook)]
        server.answer(200)
        outcomes += [shell(line, **hook), shell(line, **hook), shell(at, **hook)]
    said = [(done.returncode, done.stderr) for done in outcomes]
    assert said == [
        (1, f"The webhook at {server.url} has not taken the notice: it answered 500. The next check tries again.\n"),
        (1, "Sent to the webhook: 1 notice.\n"),
        (1, ""),
        (0, "Sent to the webhook: 1 notice.\n"),
    ]
    assert "hidden" not in "".join(done.stdout + done.stderr for done in outcomes)
    document = json.loads(shell(f"{line} --json").stdout)
    assert [(one["id"], one["value"], one["threshold"]) for one in document["firing"]] == [("dead_letters", 1, 0.0)]
    wrong = shell(f"{at} --window 0 --rule dead_leters=1 --webhook nowhere/hidden")
    assert (wrong.returncode, wrong.stderr.splitlines()) == (
        2,
        [
            "expected --window to be a duration such as 90s, 10m or 2h, or a number of seconds, longer than nothing and ten years at most, got: '0'.",
            "expected --rule to be one of the rules, got: 'dead_leters'. Did you mean 'dead_letters'?",
            "expected --webhook to be an address such as https://host/path, got: one without http:// or https://.",
        ],
    )


def test_a_store_that_cannot_be_reached_is_no_silence(tmp_path):
    """U-23: exit code 1, as for an alert, and the first line says that nothing was found out."""
    done = Shell(tmp_path, {})("alerts check --store postgresql://ann@127.0.0.1:1/shop")
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout, first) == (1, "", "Cannot check alerts:")
    assert second.startswith("the store 'shop' on 127.0.0.1 failed: ")
