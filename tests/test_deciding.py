"""What follows a failure: one function of values, its order, and what each reason means. All that retries asks it."""

from __future__ import annotations

import inspect
from itertools import permutations
from string import Formatter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast import CircuitBreaker, Guard, RetryBudget, RetryPolicy, Stop, TemporaryFailure
from outlast.calls.state import Call, Ended, latest
from outlast.deciding import LONG_AGO, ORDER, REASONS, after_failure
from outlast.kernel.aliases import StopReason
from outlast.kernel.clock import here
from outlast.testing import virtual_time

# --- the function ---

FLAGS = ("handed_out", "owned", "cut_short", "ambiguous", "stopping", "unpaid")
FACTS = st.fixed_dictionaries(
    {
        "policy": st.one_of(st.floats(0, 100), st.sampled_from(["permanent", "exhausted", "breaker_open"])),
        "now": st.floats(0, 100),
        "deadline": st.one_of(st.none(), st.floats(0, 200)),
        "open_until": st.one_of(st.just(LONG_AGO), st.floats(0, 200), st.just(float("inf"))),
        **{name: st.sampled_from([False, False, False, True]) for name in FLAGS},
    }
)


def second_opinion(policy, now, deadline, open_until, handed_out, owned, cut_short, ambiguous, stopping, unpaid):
    """The same in plain words: what is certain, the policy, what must not be done, time, and who else has a say."""
    if handed_out:
        return "generator_started"
    if owned:
        return "nested_exhausted"
    if cut_short:
        return "total_timeout"
    if isinstance(policy, str):
        return policy
    if ambiguous:
        return "ambiguous"
    if deadline is not None and not now + policy < deadline:
        return "total_timeout"
    if stopping:
        return "shutdown"
    if now + policy < open_until:
        return "breaker_open"
    return "retry_budget" if unpaid else policy


@settings(max_examples=1000)
@given(facts=FACTS)
def test_any_facts_have_the_answer_of_a_second_opinion(facts):
    """U-03: again after d, or stop because r, whatever is true at the same time; same facts, same answer."""
    policy = facts["policy"]
    rest = {name: value for name, value in facts.items() if name != "policy"}
    answers = [after_failure(policy, **rest) for _ in range(2)]
    assert answers == [second_opinion(**facts)] * 2


NO = {
    "handed_out": {"handed_out": True},
    "owned": {"owned": True},
    "cut_short": {"cut_short": True},
    "policy": {"policy": "exhausted"},
    "ambiguous": {"ambiguous": True},
    "late": {"now": 1.0, "deadline": 3.0},
    "stopping": {"stopping": True},
    "blocked": {"now": 1.0, "open_until": 4.0},
    "unpaid": {"unpaid": True},
}


def test_the_order_of_the_reasons_is_data():
    """Each fact says no by itself with its own reason, and of any two the one that stands first is heard."""
    reasons = {fact: reason or "exhausted" for fact, reason in ORDER}
    assert list(NO) == list(reasons)
    assert {fact: after_failure(**{"policy": 2.0} | no) for fact, no in NO.items()} == reasons
    heard = {(one, other): after_failure(**{"policy": 2.0} | NO[one] | NO[other]) for one, other in permutations(NO, 2)}
    rank = {fact: place for place, fact in enumerate(reasons)}
    assert heard == {pair: reasons[min(pair, key=rank.__getitem__)] for pair in heard}


def test_what_costs_something_is_asked_last_and_what_is_certain_first():
    """D-8: the policy, which may roll dice, comes after what is certain; the budget, which pays, last."""
    facts = [fact for fact, _ in ORDER]
    assert (facts[: facts.index("policy")], facts[-1]) == (["handed_out", "owned", "cut_short"], "unpaid")


# --- what the reasons mean ---


def test_every_stop_reason_has_a_row():
    """A reason that nobody gave a meaning would be retried, repaired, halved and told by accident."""
    assert set(REASONS) == set(get_args(StopReason))
    assert {reason for _, reason in ORDER} - {None} <= set(REASONS)


def test_every_advice_can_be_said():
    """What it speaks of is known when a call ends: the error, how often, how long, where."""
    known = {"why", "type", "error_class", "tier", "count", "elapsed", "where"}
    texts = [text for means in REASONS.values() for text in (means.advice, means.uncalled) if text is not None]
    assert {name for text in texts for _, name, _, _ in Formatter().parse(text) if name} == known
    assert [text for text in texts if not text.endswith(".")] == []


def test_meanings_agree_with_one_another():
    """Another input helps only where the error is to blame, and what is unfinished blames nobody."""
    assert [r for r, means in REASONS.items() if means.repairable and (means.retriable or not means.divisible)] == []
    assert [r for r, means in REASONS.items() if means.unfinished and not (means.blameless and means.requeued)] == []
    assert [r for r, means in REASONS.items() if means.blameless and (means.divisible or means.repairable)] == []


def test_a_durable_job_tries_again_what_time_may_mend():
    """D-8: what was given up for time, load or a service is requeued; what is permanent or not safe is not."""
    kept = {reason for reason, means in REASONS.items() if not means.requeued}
    of_the_error = {"permanent", "unclear", "not_listed", "skipped"}
    assert kept == of_the_error | {"ambiguous", "still_running", "cancelled", "poison"}


# --- who asks it ---

ERRORS = {
    "reset": ConnectionResetError,
    "value": ValueError,
    "wait": lambda: TemporaryFailure("later", retry_after=3),
    "strange": type("Strange", (Exception,), {}),
}
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 6),
    initial_delay=st.sampled_from([0.0, 0.5, 2.0]),
    jitter=st.sampled_from([0, 0.25, "full", "decorrelated"]),
    on_errors=st.sampled_from([("transient",), ("all",), ()]),
    skip_on_errors=st.sampled_from([(), (ConnectionResetError,)]),
)


@given(
    policy=POLICIES,
    kind=st.sampled_from(sorted(ERRORS)),
    attempt=st.integers(1, 7),
    elapsed=st.sampled_from([0.0, 1.0, 7.5]),
    total=st.sampled_from([None, 2.0, 8.0, 60.0]),
    previous=st.sampled_from([None, 0.5, 4.0]),
    seed=st.integers(0, 9),
)
def test_a_call_that_goes_on_at_attempt_n_decides_as_the_policy_does(
    policy, kind, attempt, elapsed, total, previous, seed
):
    """U-03: a resumed call with nothing but retries and a total timeout has the answer of `decide`, for any attempt."""
    error = ERRORS[kind]()
    with virtual_time(seed=seed):
        roll = here.get().dice.roll()
    decision = policy.decide(
        error, attempt=attempt, elapsed=elapsed, roll=roll, total_timeout=total, previous_delay=previous
    )
    with virtual_time(seed=seed):
        call = Call.resumed(
            Guard("fetch", retry=policy, total_timeout=total),
            "fetch",
            number=attempt,
            began=here.get().clock.monotonic() - elapsed,
            previous=previous,
        )
        call.seen = latest[0]
        delay = call.failed(error)
    assert (delay is not None, delay or 0.0, call.reason) == (decision.retry, decision.delay, decision.reason)


GUARDS = st.fixed_dictionaries(
    {
        "total_timeout": st.sampled_from([None, 6.0, 30.0]),
        "breaker": st.booleans(),
        "budget": st.sampled_from([None, 1, 9]),
        "idempotent": st.sampled_from([True, True, False]),
    }
)


def guarded(policy, options):
    return Guard(
        "fetch",
        retry=policy,
        total_timeout=options["total_timeout"],
        breaker=CircuitBreaker("b", failure_threshold=3, reset_timeout=5) if options["breaker"] else None,
        retry_budget=None if options["budget"] is None else RetryBudget("b", ratio=0, reserve=options["budget"]),
        idempotent=options["idempotent"],
    )


def story(guard, errors, cuts):
    """One call whose attempts fail with these errors; where it is cut, another one takes its place."""
    with virtual_time(seed=3) as time:
        call, told = Call(guard, "fetch"), []
        for cut, kind in zip(cuts, errors, strict=True):
            if cut:
                call = Call.resumed(
                    guard,
                    "fetch",
                    number=call.number,
                    began=call.began,
                    previous=call.previous,
                    last_error=call.last_error,
                    unwanted=call.unwanted,
                    rows=call.rows,
                    notes=call.notes,
                )
            error = None
            try:
                while (wait := call.begin()) is not None:
                    here.get().clock.sleep(wait)
                call.notes_of(call.number).spent["usd"] = 1.5
                here.get().clock.sleep(0.25)
                error = ERRORS[kind]()
                wait = call.failed(error)
            except Exception as ended:  # noqa: BLE001 - compared below
                error, wait = ended, None
            told.append((call.number, wait, call.reason, type(error), call.context().remaining()))
            if wait is None:
                break
            here.get().clock.sleep(wait)
        records = [(r.number, r.duration, r.error, r.verdict, r.delay, r.spent) for r in outlast.history(error)]
        return told, records, getattr(error, "__notes__", None), time.sleeps


@given(
    policy=POLICIES,
    options=GUARDS,
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(ERRORS))), min_size=1, max_size=7),
)
def test_a_call_that_was_interrupted_goes_on_as_if_it_had_not_been(policy, options, steps):
    """D-7, D-8: wherever it is cut, the resumed call has the same number, waits, deadline, reason, history and note."""
    cuts, errors = zip(*steps, strict=True)
    assert story(guarded(policy, options), errors, cuts) == story(guarded(policy, options), errors, [False] * len(cuts))


def test_a_resumed_call_that_may_not_be_made_ends_with_the_stand_in_of_its_last_error():
    """D-8: its error is gone with the process that had it; text and class come from the record."""
    breaker = CircuitBreaker("b")
    breaker.isolate("maintenance")
    last = TemporaryFailure("the server has gone away", error_class="network_error")
    with virtual_time():
        now = here.get().clock.monotonic()
        call = Call.resumed(Guard("f", breaker=breaker), "f", number=2, began=now - 40, last_error=last)
        with pytest.raises(TemporaryFailure) as caught:
            call.begin()
    assert (caught.value, outlast.stop_reason(last), call.number) == (last, "breaker_open", 2)
    unwanted = Call.resumed(Guard("f", breaker=breaker), "f", number=1, began=now, unwanted="pending")
    with pytest.raises(Ended) as ended:
        unwanted.begin()
    assert (ended.value.result, unwanted.reason) == ("pending", "breaker_open")


def test_the_retry_budget_pays_only_for_attempts_that_follow():
    """D-12: whoever else says no, nothing is taken; once nobody does, one retry is."""
    stop, tripped = Stop(), CircuitBreaker("tripped", failure_threshold=1)
    stop.set()
    patient = RetryPolicy(initial_delay=10, jitter=0)
    refusing = {
        "permanent": {"retry": RetryPolicy(on_errors=[])},
        "late": {"retry": patient, "total_timeout": 10},
        "blocked": {"retry": patient, "breaker": tripped},
        "ambiguous": {"retry": patient, "idempotent": False},
        "stopping": {"retry": patient},
        "nobody": {"retry": patient},
    }
    paid = {}
    for name, options in refusing.items():
        budget = RetryBudget(name, reserve=5)
        with virtual_time(), stop if name == "stopping" else Stop():
            call = Call(Guard("fetch", retry_budget=budget, **options), "fetch")
            assert call.begin() is None
            call.failed(ConnectionResetError())
        paid[name] = 5 - budget._tokens
    assert paid == dict.fromkeys(refusing, 0) | {"nobody": 1}


@given(
    policy=POLICIES,
    kinds=st.lists(st.sampled_from(sorted(ERRORS)), min_size=1, max_size=6),
    spoken=st.booleans(),
)
@settings(max_examples=60)
def test_the_fast_lane_gives_the_answers_of_the_decision(policy, kinds, spoken):
    """U-04: a plain call that nobody watches answers, records and rolls as one that goes the long way."""
    told = []
    for attempt in range(1, 7):  # the fast lane is for policies that have their bands ready
        policy.delay(attempt, 0.5)
    for quick in (False, True):
        with virtual_time(seed=5):
            call = Call(Guard("fetch", retry=policy), "fetch", latest[0])
            call.quick, call.heard = quick, False
            answers = []
            for kind in kinds:
                error = ERRORS[kind]("a text") if spoken and kind in ("reset", "value") else ERRORS[kind]()
                answers.append(call.failed(error))
                if answers[-1] is None:
                    break
                here.get().clock.sleep(answers[-1])
                call.begin()
            rows = [(row[0], row[2], row[3], row[5], row[4].error_class) for row in call.rows]
            told.append((answers, call.reason, rows, here.get().dice.roll()))
    assert told[0] == told[1]


def test_the_facts_are_values():
    """U-03: nothing that could be called is among them, so that a simulation can make them up."""
    kinds = {str(parameter.annotation) for parameter in inspect.signature(after_failure).parameters.values()}
    assert kinds == {"Answer", "bool", "float", "float | None"}
