"""What follows an attempt of a job: every row of the table in `outlast.jobs.outcome`, from values alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast import presets
from outlast.jobs import outcome
from outlast.jobs.outcome import Ending, When, after_crash, failed, released, succeeded
from outlast.store.records import JOB_MOVES, ClaimedJob, Orphan

NOW = 1_800_000_000_000_000
WHEN = When(NOW, 2_000_000)
POLICY = outlast.RetryPolicy(delays=(30.0, 120.0), jitter=0)


def job(**fields):
    given = {
        "id": 17,
        "kind": "send",
        "version": 1,
        "queue": "mail",
        "priority": 0,
        "payload": b"{}",
        "token": 5,
        "attempts": 1,
        "made": 1,
        "crashes": 0,
        "previous_us": None,
        "snoozed_us": None,
        "enqueued_us": NOW - 9_000_000,
        "began_us": NOW - 1_000_000,
        "claimed_us": NOW - 1000,
    }
    return ClaimedJob(**(given | fields))


def orphan(**fields):
    given = {name: value for name, value in job()._asdict().items() if name in Orphan._fields}
    return Orphan(**({"worker": "w1", "swept_us": NOW} | given | fields))


def ending(**fields):
    return Ending(**({"roll": 0.5, "letter": "a" * 32} | fields))


def shape(end):
    """State, outcome, seconds until it is due, whether it is charged, why there is no further attempt."""
    return end.state, end.outcome, end.delay_us / 1e6, end.charged, end.stop_reason


def test_a_job_that_returned_has_succeeded():
    """With its result, under the token of its claim and the number of its attempt."""
    end = succeeded(job(made=3), WHEN, b"r", 60_000_000)
    assert (end.id, end.token, end.number, end.result, end.unique_for_us) == (17, 5, 3, b"r", 60_000_000)
    assert shape(end) == ("succeeded", "succeeded", 0.0, True, None)


def test_a_transient_failure_waits_as_the_policy_says():
    """S1-15, S1-16: the first two failures wait, each with its own delay; the third is the end."""
    ends = [failed(job(attempts=n, made=n), ConnectionResetError("x"), POLICY, WHEN, ending()) for n in (1, 2, 3)]
    assert [shape(end) for end in ends] == [
        ("waiting", "failed", 30.0, True, None),
        ("waiting", "failed", 120.0, True, None),
        ("failed", "failed", 0.0, True, "exhausted"),
    ]
    assert [end.letter is not None for end in ends] == [False, False, True]


def test_a_failure_for_good_has_a_dead_letter():
    """C-14: kind, payload, error and attempts, so that it can be tried again."""
    letter = failed(job(attempts=2), ValueError("bad row"), POLICY, WHEN, ending()).letter
    assert (letter.kind, letter.pipeline, letter.stage, letter.item_key) == ("job", "send", "send", "17")
    assert (letter.run, letter.seq, letter.payload, letter.attempts) == (None, None, b"{}", 2)
    assert (letter.error, letter.error_type, letter.stop_reason) == ("bad row", "ValueError", "permanent")
    assert (letter.metadata, letter.created_us) == ({"queue": "mail", "version": 1}, NOW + 2_000_000)


def test_a_snooze_costs_no_attempt_and_ends_after_seven_days():
    """D-31."""
    assert shape(failed(job(), outlast.Snooze(60), POLICY, WHEN, ending())) == ("waiting", "snoozed", 60.0, False, None)
    late = job(snoozed_us=NOW - int(6.9 * 86400e6))
    end = failed(late, outlast.Snooze(86400), POLICY, WHEN, ending())
    assert shape(end) == ("failed", "failed", 0.0, True, "permanent")
    assert "within 7 days of its first Snooze" in end.error


@pytest.mark.parametrize("days_before", [0, 6])
def test_a_snooze_may_end_exactly_seven_days_after_the_first_one(days_before):
    """D-31: the bound itself is allowed, by one snooze or by several; a second more fails the job."""
    day = 86_400
    end_us = WHEN.started_us + WHEN.took_us
    snoozed = job(snoozed_us=end_us - days_before * day * 1_000_000 if days_before else None)
    delay = float((7 - days_before) * day)
    for asked, wanted in (
        (delay, ("waiting", "snoozed", delay, False, None)),
        (delay + 1, ("failed", "failed", 0.0, True, "permanent")),
    ):
        assert shape(failed(snoozed, outlast.Snooze(asked), POLICY, WHEN, ending())) == wanted


def test_skip_is_refused_with_a_sentence():
    end = failed(job(), outlast.Skip("old"), POLICY, WHEN, ending())
    assert shape(end) == ("failed", "failed", 0.0, True, "permanent")
    assert "Skip, which has no meaning in a job" in end.error


def open_error(after):
    now = datetime(2026, 11, 16, tzinfo=UTC)
    return outlast.CircuitBreakerOpenError("open", name="b", opened_at=now, retry_at=now, retry_after=after)


def test_an_open_circuit_that_let_nothing_through_is_waited_for():
    """D-10: requeued at retry_at, and not charged; one that never closes by itself is asked again in a minute."""
    for after, wait in ((42.0, 42.0), (float("inf"), 60.0)):
        end = failed(job(), open_error(after), POLICY, WHEN, ending(called=False, gave_up="breaker_open"))
        assert shape(end) == ("waiting", "released", wait, False, None)


def test_an_open_circuit_inside_of_the_code_is_charged():
    """D-22: something may have been done; it waits for the circuit's time all the same."""
    end = failed(job(), open_error(300.0), POLICY, WHEN, ending())
    assert shape(end) == ("waiting", "failed", 330.0, True, None)


def test_a_limit_without_a_place_is_waited_for():
    error = outlast.LimitExceededError("full", name="l", retry_after=None)
    end = failed(job(), error, POLICY, WHEN, ending(called=False, gave_up="throttled"))
    assert shape(end) == ("waiting", "released", 60.0, False, None)


def test_what_an_inner_retry_gave_up_on_goes_back_to_the_queue():
    """D-8: fast inside, slow outside; retry_exhausted=False turns it off."""
    inner = ending(gave_up="exhausted", owned=True)
    assert shape(failed(job(), TimeoutError(), POLICY, WHEN, inner))[:3] == ("waiting", "failed", 30.0)
    strict = POLICY.replace(retry_exhausted=False)
    assert shape(failed(job(), TimeoutError(), strict, WHEN, inner)) == (
        "failed",
        "failed",
        0.0,
        True,
        "nested_exhausted",
    )


def test_a_decorrelated_wait_grows_from_the_wait_before():
    """D-5: at most three times the previous delay, also if the previous worker was lost."""
    policy = outlast.RetryPolicy(max_attempts=9, initial_delay=1.0, max_delay=None, jitter="decorrelated")
    for previous_us, longest in ((2_000_000, 6.0), (40_000_000, 120.0)):
        again = job(attempts=2, previous_us=previous_us)
        ends = [failed(again, TimeoutError(), policy, WHEN, ending(roll=roll)) for roll in (0.0, 1.0)]
        assert [end.delay_us / 1e6 for end in ends] == [1.0, longest]
        rescue = after_crash(orphan(attempts=2, crashes=2, previous_us=previous_us), policy, roll=1.0, letter="c" * 32)
        assert rescue.delay_us / 1e6 == longest


def test_what_may_have_been_done_is_not_done_twice():
    end = failed(job(), TimeoutError(), POLICY, WHEN, ending(gave_up="ambiguous"))
    assert shape(end) == ("failed", "failed", 0.0, True, "ambiguous")


def test_the_lists_of_an_inner_retry_do_not_bind_the_job():
    end = failed(job(), TimeoutError(), POLICY, WHEN, ending(gave_up="not_listed"))
    assert shape(end)[:3] == ("waiting", "failed", 30.0)


def test_what_a_worker_gives_back_is_not_charged():
    """D-16: a job with two crashes stays alone."""
    assert shape(released(job(), WHEN, "bye")) == ("ready", "released", 0.0, False, None)
    assert released(job(crashes=2), WHEN, "bye").state == "alone"


def test_a_stop_of_the_jobs_own_is_a_failure_like_others():
    """Nobody ends its worker: given back uncharged, it would be tried without a pause and without an end."""
    end = failed(job(), TimeoutError(), POLICY, WHEN, ending(gave_up="shutdown"))
    assert shape(end)[:4] == ("waiting", "failed", 30.0, True)


def test_a_wait_beyond_the_total_timeout_is_not_begun():
    """C-19: from the first claim on."""
    assert shape(failed(job(), TimeoutError(), POLICY, WHEN, ending(left=31.0)))[0] == "waiting"
    end = failed(job(), TimeoutError(), POLICY, WHEN, ending(left=30.0))
    assert shape(end) == ("failed", "failed", 0.0, True, "total_timeout")


@pytest.mark.failure(29)
def test_code_that_still_runs_holds_its_job():
    """Its time is up, and it goes on: nobody may begin it again before it has ended."""
    error = outlast.AttemptTimeoutError("late")
    assert shape(failed(job(), error, POLICY, WHEN, ending(running=True)))[:3] == ("held", "timeout", 30.0)
    last = failed(job(attempts=3), error, POLICY, WHEN, ending(running=True, gave_up="still_running"))
    assert shape(last) == ("failed", "timeout", 0.0, True, "exhausted")


def test_a_child_process_that_died_is_a_crash_on_record():
    error = outlast.TemporaryFailure("the child process of send was killed", error_class="worker_lost")
    assert shape(failed(job(), error, POLICY, WHEN, ending()))[:2] == ("waiting", "crashed")


def test_claimed_with_no_attempt_left():
    """D-16: it ends as worker_lost without being run."""
    end = outcome.lost(job(attempts=4, crashes=1), WHEN, "b" * 32)
    assert (shape(end), end.error_class) == (("failed", "failed", 0.0, False, "exhausted"), "worker_lost")
    assert end.letter.error_class == "worker_lost"


def test_claimed_with_no_attempt_left_because_the_code_allows_fewer():
    """No worker was lost: the last error stays, on the job and in its letter."""
    last = {"error": "no answer", "error_type": "ConnectionError", "error_class": "network"}
    end = outcome.lost(job(attempts=3, **last), WHEN, "b" * 32)
    assert shape(end) == ("failed", "failed", 0.0, False, "exhausted")
    for told in (end, end.letter):
        assert (told.error, told.error_type, told.error_class) == tuple(last.values())


def crashed(policy=POLICY, **fields):
    rescue = after_crash(orphan(**fields), policy, roll=0.5, letter="c" * 32)
    return rescue.state, rescue.delay_us / 1e6, rescue.error_class, rescue.stop_reason


def test_the_first_crash_is_claimable_at_once_the_second_waits_the_third_is_poison():
    """D-16."""
    assert crashed(crashes=1) == ("ready", 0.0, "worker_lost", None)
    assert crashed(crashes=2, attempts=2) == ("waiting", 120.0, "worker_lost", None)
    assert crashed(crashes=3, attempts=2) == ("failed", 0.0, "poison", "poison")


def test_a_crash_of_the_last_attempt_is_the_end():
    assert crashed(crashes=1, attempts=3) == ("failed", 0.0, "worker_lost", "exhausted")


@pytest.mark.failure(5)
def test_whoever_rescues_need_not_know_the_kind():
    """The wait is that of presets.jobs, and whoever claims it sees whether an attempt is left."""
    assert crashed(policy=None, crashes=1, attempts=99) == ("ready", 0.0, "worker_lost", None)
    assert crashed(policy=None, crashes=2, attempts=1) == ("waiting", 30.0, "worker_lost", None)
    assert presets.jobs.delays[0] == 30.0


@given(
    attempts=st.integers(1, 10_000),
    crashes=st.integers(0, 2),
    error=st.sampled_from([TimeoutError(), ValueError("x"), KeyError("k"), outlast.Snooze(1), open_error(5.0)]),
    running=st.booleans(),
    called=st.booleans(),
    reason=st.sampled_from([None, "exhausted", "breaker_open", "shutdown", "ambiguous", "total_timeout", "throttled"]),
    left=st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_every_end_is_a_legal_move_and_says_why(attempts, crashes, error, running, called, reason, left):
    """Whatever happens: a legal state, a letter if and only if it failed, a reason if and only if nothing follows."""
    claimed = job(attempts=attempts, made=attempts, crashes=crashes)
    facts = ending(running=running, called=called, gave_up=reason, left=left)
    end = failed(claimed, error, POLICY, WHEN, facts)
    assert end.state in JOB_MOVES["processing"]
    assert (end.letter is not None) == (end.state == "failed") == (end.stop_reason is not None)
    assert end.delay_us >= 0
    if not end.charged:
        assert end.outcome in {"released", "snoozed"}


@pytest.mark.parametrize("delay", [1e12, 1e300])
def test_a_wait_of_ages_fits_into_any_database(delay):
    policy = outlast.RetryPolicy(max_attempts=3, initial_delay=delay, max_delay=None, jitter=0)
    assert failed(job(), TimeoutError(), policy, WHEN, ending()).delay_us < 2**62
