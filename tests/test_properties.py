"""What holds for any policy, any sequence of failures and any secret: searched by hypothesis, checked against a second opinion."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import math
import string
import time as real_time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from outlast import (
    ConfigurationError,
    Guard,
    PermanentFailure,
    RetryPolicy,
    TemporaryFailure,
    TotalTimeoutError,
    classify,
    history,
    stop_reason,
)
from outlast.kernel import redact
from outlast.testing import capture_events, virtual_time
from tables import table

# --- failures, with what is known about them ------------------------------------------------------------------------------


class HttpError(Exception):
    def __init__(self, status: int, retry_after: object = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class VendorError(Exception):
    """No rule knows it."""


DatabaseDown = type("OperationalError", (Exception,), {"__module__": "psycopg2"})
DuplicateKey = type("IntegrityError", (Exception,), {"__module__": "psycopg2"})


@dataclass(frozen=True)
class Fault:
    """A failure and the facts about it, written down by hand."""

    make: object
    category: str
    names: tuple[str, ...]  # error class and parents
    tier: str
    status: int | None = None
    hint: float | None = None


PLAIN_FAULTS = [
    Fault(lambda: TimeoutError("slow"), "transient", ("timeout",), "network"),
    Fault(lambda: ConnectionResetError("cut"), "transient", ("connection_reset", "network_error"), "network"),
    Fault(lambda: ConnectionRefusedError("no"), "transient", ("connection_refused", "network_error"), "network"),
    Fault(DatabaseDown, "transient", ("database_connection", "database_error", "network_error"), "database"),
    Fault(DuplicateKey, "permanent", ("data_error",), "data"),
    Fault(lambda: ValueError("bad"), "permanent", ("data_error",), "data"),
    Fault(lambda: PermissionError("no"), "permanent", ("permission_denied",), "auth"),
    Fault(lambda: AttributeError("x"), "permanent", ("code_error",), "code"),
    Fault(lambda: PermanentFailure("never"), "permanent", ("permanent_failure",), "data"),
    Fault(lambda: VendorError("?"), "unclear", ("unknown",), "unknown"),
    Fault(MemoryError, "unclear", ("resource_exhausted",), "resource"),
]
BY_STATUS = {
    401: ("permanent", "auth_error", "auth"),
    404: ("permanent", "client_error", "http_4xx"),
    429: ("transient", "rate_limited", "http_429_503"),
    500: ("transient", "server_error", "http_500_502_504"),
    501: ("unclear", "server_error_other", "http_5xx_other"),
    503: ("transient", "unavailable", "http_429_503"),
}
HINTS = st.none() | st.floats(0, 400).map(lambda seconds: round(seconds, 3))


def of_status(status: int, hint: float | None) -> Fault:
    category, name, tier = BY_STATUS[status]
    return Fault(lambda: HttpError(status, hint), category, (name,), tier, status, hint)


def temporary(hint: float | None) -> Fault:
    return Fault(
        lambda: TemporaryFailure("later", retry_after=hint), "transient", ("temporary_failure",), "unknown", None, hint
    )


FAULTS = st.one_of(
    st.sampled_from(PLAIN_FAULTS[:4]),
    st.sampled_from(PLAIN_FAULTS),
    st.builds(of_status, st.sampled_from(sorted(BY_STATUS)), HINTS),
    st.builds(temporary, HINTS),
)


# --- policies, and a second opinion on them ---------------------------------------------------------------------------------

SPECS = [
    "transient",
    "unclear",
    "permanent",
    "all",
    "timeout",
    "network_error",
    "connection_reset",
    "database_error",
    "data_error",
    "network",
    "database",
    "http_429_503",
    429,
    404,
    "5xx",
    "4xx",
]
JITTERS = st.one_of(
    st.floats(0, 1),
    st.sampled_from(["full", "equal", "decorrelated"]),
    st.builds(lambda add: {"add": add}, st.floats(0, 10)),
)


def apart(on_errors: list, skip: list) -> list:
    """What may be skipped beside these: an entry of `on_errors` that is always skipped would have no effect, and is refused."""
    free: list = []
    for spec in skip:
        with contextlib.suppress(ConfigurationError):
            RetryPolicy(on_errors=on_errors, skip_on_errors=[*free, spec])
            free.append(spec)
    return free


@st.composite
def policies(draw) -> dict[str, object]:
    """The settings of a policy, none left to its default."""
    initial = draw(st.floats(0, 60, allow_subnormal=False))
    # Mostly policies that do retry; the others end after one attempt and have little to tell.
    usual = st.sampled_from([["transient"], ["transient", "unclear"], ["all"]])
    on_errors = draw(usual | st.lists(st.sampled_from(SPECS), max_size=4, unique=True))
    skip = apart(on_errors, draw(st.just([]) | st.lists(st.sampled_from(SPECS), max_size=2, unique=True)))
    tiers = ["network", "database", "http_429_503", "http_500_502_504", "data", "unknown"]
    jitter = draw(JITTERS)
    # A schedule says each delay; decorrelated jitter makes each from the one before.
    delays: tuple[float, ...] = (
        ()
        if jitter == "decorrelated"
        else draw(st.just(()) | st.lists(st.floats(0, 600), min_size=1, max_size=4).map(tuple))
    )
    return {
        "max_attempts": draw(st.integers(1, 7)),
        "backoff": draw(st.sampled_from(["exponential", "linear", "fixed"])),
        "initial_delay": initial,
        "multiplier": draw(st.floats(1, 8)),
        "max_delay": draw(st.none() | st.floats(0, 60).map(lambda more: initial + more)),
        "delays": delays,
        "jitter": jitter,
        "cap": draw(st.sampled_from(["after_jitter", "before_jitter"])),
        "max_retry_after": draw(st.floats(0, 200)),
        "on_errors": on_errors,
        "skip_on_errors": [spec for spec in skip if spec not in on_errors],
        "retry_limits": draw(st.none() | st.dictionaries(st.sampled_from(tiers), st.integers(0, 6))),
    }


def nominal(policy: dict[str, object], attempt: int) -> float:
    initial, delays = policy["initial_delay"], policy["delays"]
    if delays:
        return delays[min(attempt, len(delays)) - 1]
    if policy["backoff"] == "fixed":
        return initial
    if policy["backoff"] == "linear":
        return initial * attempt
    # By logarithms, which do not overflow.
    return math.exp(min(math.log(initial) + math.log(policy["multiplier"]) * (attempt - 1), 600)) if initial else 0.0


def band(policy: dict[str, object], attempt: int, previous: float | None) -> tuple[float, float]:
    """D-5, in words: the cap before or after the jitter; a schedule has no cap."""
    n, j = nominal(policy, attempt), policy["jitter"]
    top = math.inf if policy["max_delay"] is None or policy["delays"] else policy["max_delay"]
    capped = min(n, top)
    soft = policy["cap"] == "before_jitter"
    if isinstance(j, float):
        return capped * (1 - j), capped * (1 + j) if soft else min(n * (1 + j), top)
    if isinstance(j, dict):
        if soft:
            return capped, capped + j["add"]
        return min(n, max(top - j["add"], 0.0)), min(n + j["add"], top)
    if j == "decorrelated":
        base = min(policy["initial_delay"], top)
        widest = 3 * previous if previous is not None else policy["initial_delay"] * 3.0 ** min(attempt, 600)
        return base, max(base, min(widest, top))
    return {"full": 0.0, "equal": capped / 2}[j], capped


def listed(specs: list[object], fault: Fault) -> bool:
    known = {"all", fault.category, fault.tier, *fault.names}
    if fault.status is not None:
        known |= {fault.status, f"{fault.status // 100}xx"}
    return any(spec in known for spec in specs)


def opinion(policy: dict[str, object], fault: Fault, attempt: int) -> str | None:
    """D-2, in words: skip, on, attempts, tier."""
    if listed(policy["skip_on_errors"], fault):
        return "skipped"
    if not listed(policy["on_errors"], fault):
        return "not_listed" if fault.category == "transient" else fault.category
    if attempt >= policy["max_attempts"]:
        return "exhausted"
    limits = policy["retry_limits"]
    if limits is not None and attempt > limits.get(fault.tier, 0):
        return "tier_exhausted"
    return None


def within(low: float, value: float, high: float) -> bool:
    slack = 1e-9 * max(1.0, abs(high)) + 1e-12
    return low - slack <= value <= high + slack


# --- a call, and its story ------------------------------------------------------------------------------------------------


class Body:
    """Fails as scripted, each attempt taking its time, and then succeeds."""

    def __init__(self, script: list[tuple[Fault, float]], time) -> None:
        self.script = script
        self.time = time
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls > len(self.script):
            return "done"
        fault, takes = self.script[self.calls - 1]
        if takes:
            self.time.advance(takes)
        raise fault.make()


def perform(guard: Guard, script: list[tuple[Fault, float]], *, seed: int, in_a_loop: bool = False):
    """One call in virtual time: its outcome, the number of calls, the time and the events."""
    with virtual_time(seed=seed) as time, capture_events() as events:
        body = Body(script, time)
        if in_a_loop:

            async def attempt() -> str:
                return body()

            outcome = asyncio.run(guard.aoutcome(attempt))
        else:
            outcome = guard.outcome(body)
    return outcome, body.calls, time, events


SCRIPTS = st.lists(st.tuples(FAULTS, st.sampled_from([0.0, 0.0, 0.5, 7.0])), max_size=8)
TOTALS = st.none() | st.floats(0.1, 300)


@given(policy=policies(), script=SCRIPTS, total=TOTALS, seed=st.integers(0, 2**32))
@settings(max_examples=120)
def test_any_call_keeps_to_its_policy(policy, script, total, seed):
    """S0-02, S0-09, S0-15, S2-15, C-02, D-5, D-6, D-7: calls allowed, waits within bands, the deadline kept, the right end."""
    outcome, calls, time, _ = perform(Guard(retry=RetryPolicy(**policy), total_timeout=total), script, seed=seed)
    assert calls <= policy["max_attempts"]
    sleeps, elapsed, previous = list(time.sleeps), 0.0, None
    for attempt, (fault, takes) in enumerate(script, start=1):
        elapsed += takes
        expected = opinion(policy, fault, attempt)
        if expected is not None:
            assert (calls, outcome.reason, sleeps) == (attempt, expected, [])
            break
        low, high = band(policy, attempt, previous)
        asked = min(fault.hint or 0.0, policy["max_retry_after"])
        if not sleeps:  # the only other reason to stop: the next wait did not fit
            assert (calls, outcome.reason) == (attempt, "total_timeout")
            assert elapsed + asked + high >= total - 1e-6
            break
        delay = sleeps.pop(0)
        assert within(low + asked, delay, high + asked)
        elapsed += delay
        assert total is None or elapsed < total + 1e-6
        previous = delay - asked
    else:
        assert (outcome.ok, outcome.value, calls, sleeps) == (True, "done", len(script) + 1, [])
    assert outcome.ok == (outcome.error is None) == (outcome.reason is None)
    assert outcome.elapsed == pytest.approx(time.now)
    if total is not None and not outcome.ok:
        # Blocking code is not left by a total timeout: only the attempt that was running may overrun it.
        assert time.now <= total + script[calls - 1][1] + 1e-6


@given(policy=policies(), script=SCRIPTS, total=TOTALS, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_events_tell_the_story_of_the_calls(policy, script, total, seed):
    """S0-34, S0-35, S0-37, S0-38, S2-17, S2-18, S2-19, S2-20, D-18: events, history and calls are one story."""
    guard = Guard("fetch", retry=RetryPolicy(**policy), total_timeout=total)
    outcome, calls, time, events = perform(guard, script, seed=seed)
    failed = script[:calls]
    told = [(e.name, e.attempt) for e in events]
    retries = [("step_retry_attempt", n) for n in range(1, calls)]
    if outcome.ok:
        assert told == retries + ([("step_success", calls)] if calls > 1 else [])
    else:
        final = outcome.reason in {"permanent", "unclear", "not_listed", "skipped"}
        assert told == [*retries, ("step_error_permanent" if final else "step_retry_exhausted", calls)]
        assert events[-1].reason == outcome.reason
        assert history(outcome.error) == outcome.attempts
    assert [e.next_delay for e in events if e.name == "step_retry_attempt"] == time.sleeps
    for event, (fault, _) in zip(events, failed, strict=False):
        assert (event.category, event.error_class, event.tier) == (fault.category, fault.names[0], fault.tier)
        limit = policy["retry_limits"]
        granted = policy["max_attempts"] - 1
        assert event.max_retries == (granted if limit is None else min(granted, limit.get(fault.tier, 0)))
    assert {(e.step_id, e.max_attempts) for e in events} <= {("fetch", policy["max_attempts"])}
    assert [e.seq for e in events] == sorted({e.seq for e in events})
    records = outcome.attempts
    assert [record.number for record in records] == list(range(1, calls + 1))
    assert [record.delay for record in records] == [*time.sleeps, None]
    assert [record.duration for record in records] == pytest.approx([takes for _, takes in failed] + [0.0] * outcome.ok)
    assert [record.error is None for record in records] == [False] * len(failed) + [True] * outcome.ok
    for record, (fault, _) in zip(records, failed, strict=False):
        assert record.verdict == classify(fault.make())


@given(
    policy=policies(),
    script=st.lists(st.tuples(FAULTS, st.just(0.0)), max_size=6),
    total=TOTALS,
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_sync_and_async_tell_the_same_story(policy, script, total, seed):
    """S2-13, U-03, C-06: one flow, two drivers: the same seed gives the same calls, waits, events and end (S4-02)."""
    guard = Guard("fetch", retry=RetryPolicy(**policy), total_timeout=total)
    stories = []
    for in_a_loop in (False, True):
        outcome, calls, time, events = perform(guard, script, seed=seed, in_a_loop=in_a_loop)
        told = [{k: v for k, v in e.as_dict().items() if k not in {"ts", "seq", "next_attempt_at"}} for e in events]
        records = [(r.number, r.duration, r.error, r.verdict, r.delay) for r in outcome.attempts]
        end = (outcome.ok, outcome.value, type(outcome.error), str(outcome.error), outcome.reason, outcome.elapsed)
        stories.append((calls, time.sleeps, time.now, told, records, end))
    assert stories[0] == stories[1]


@contextmanager
def unheard():
    """Nobody listens to the log: then a call that is retried may take its fast lane."""
    logger = logging.getLogger("outlast")
    before = logger.propagate
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = before


@given(policy=policies(), script=st.lists(st.tuples(FAULTS, st.just(0.0)), max_size=8), asynchronous=st.booleans())
@settings(max_examples=60)
def test_the_short_way_ends_where_the_long_way_does(policy, script, asynchronous):
    """U-03, U-04: a plain @retry in real time makes the calls, and leaves the history, that the full flow does."""
    hasty = {"initial_delay": 0.0, "max_delay": None, "delays": (), "jitter": 0.25, "max_retry_after": 0.0}
    guard = Guard("fetch", retry=RetryPolicy(**policy | hasty))
    slow, calls, _, _ = perform(guard, script, seed=1)
    body = Body(script, None)

    async def attempt() -> str:
        return body()

    error = None
    with unheard():
        try:
            value = asyncio.run(guard(attempt)()) if asynchronous else guard(body)()
        except Exception as raised:  # noqa: BLE001 - compared below
            error, value = raised, None
    assert (body.calls, value, type(error)) == (calls, slow.value, type(slow.error))
    if error is not None:
        assert stop_reason(error) == slow.reason
        pairs = [
            [(r.number, r.error, r.verdict, r.delay) for r in records] for records in (history(error), slow.attempts)
        ]
        assert pairs[0] == pairs[1]
        assert [len(e.__notes__) for e in (error, slow.error)] == [1, 1]


@given(
    policy=policies(),
    timeout=st.floats(0.5, 20),
    more=st.floats(0, 40),
    script=st.lists(st.booleans(), max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=12)
def test_a_coroutine_never_outlives_its_total_timeout(policy, timeout, more, script, seed):
    """S0-14, S0-15, S0-16, C-19, D-7: attempts that hang are ended at the lesser of their own time and what is left."""
    total = timeout + more
    guard = Guard(
        "ask",
        retry=RetryPolicy(**policy | {"on_errors": ["transient"], "skip_on_errors": []}),
        timeout=timeout,
        total_timeout=total,
    )
    hangs = iter(script)

    async def ask() -> str:
        hang = next(hangs, None)
        if hang:
            await asyncio.Event().wait()
        if hang is False:
            raise ConnectionResetError
        return "done"

    with virtual_time(seed=seed) as time, capture_events() as events:
        outcome = asyncio.run(guard.aoutcome(ask))
    assert time.now <= total + 1e-6
    assert outcome.ok or outcome.reason is not None
    limits = [(e.timeout, e.scope) for e in events if e.name == "attempt_timeout"]
    assert all(seconds <= timeout + 1e-9 for seconds, _ in limits)
    assert all(seconds == pytest.approx(timeout) for seconds, scope in limits if scope == "attempt")
    if isinstance(outcome.error, TotalTimeoutError):
        assert (outcome.reason, limits[-1][1]) == ("total_timeout", "total")


# --- delays ---------------------------------------------------------------------------------------------------------------


@given(policy=policies(), attempt=st.integers(1, 10**6), roll=st.floats(0, 1, exclude_max=True))
@example(
    policy={
        "initial_delay": 60.0,
        "multiplier": 8.0,
        "max_delay": None,
        "delays": (),
        "backoff": "exponential",
        "jitter": 0.25,
        "cap": "after_jitter",
    },
    attempt=10**6,
    roll=0.5,
)
def test_every_delay_lies_within_its_band(policy, attempt, roll):
    """S0-09, S0-10, D-5: for any attempt up to the millionth; finite, never negative, never above a hard ceiling."""
    built = RetryPolicy(
        **policy | {"max_attempts": 10**6 + 2, "on_errors": ["all"], "skip_on_errors": [], "retry_limits": None}
    )
    delay = built.decide(TimeoutError(), attempt=attempt, roll=roll).delay
    assert math.isfinite(delay)
    low, high = band(policy, attempt, None)
    century = 100 * 366 * 86_400.0  # growth without a cap ends somewhere
    assert within(min(low, century / 2), delay, high)
    shown = built.schedule()[attempt - 1]
    assert within(shown.min, delay, shown.max)
    if policy["cap"] == "after_jitter" and policy["max_delay"] is not None and not policy["delays"]:
        assert delay <= policy["max_delay"] + 1e-9


@given(
    policy=policies(),
    attempt=st.integers(1, 50),
    rolls=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=9),
)
@settings(max_examples=50)
def test_a_larger_roll_never_waits_less(policy, attempt, rolls):
    """C-06: the delay is a function of the roll, and an orderly one (S0-32)."""
    built = RetryPolicy(
        **policy | {"max_attempts": 60, "on_errors": ["all"], "skip_on_errors": [], "retry_limits": None}
    )
    delays = [built.decide(TimeoutError(), attempt=attempt, roll=roll).delay for roll in sorted(rolls)]
    assert delays == sorted(delays)
    assert delays == [built.decide(TimeoutError(), attempt=attempt, roll=roll).delay for roll in sorted(rolls)]


@given(
    initial=st.floats(0.1, 5),
    most=st.none() | st.floats(5, 100),
    hints=st.lists(st.none() | st.floats(0, 100), min_size=2, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_decorrelated_waits_grow_from_the_wait_before(initial, most, hints, seed):
    """C-04, D-5, D-6: each from [base, 3 times the previous backoff], under the cap; what a server asked for stays out of it."""
    policy = RetryPolicy(max_attempts=9, jitter="decorrelated", initial_delay=initial, max_delay=most)
    _, _, time, _ = perform(Guard(retry=policy), [(of_status(503, hint), 0.0) for hint in hints], seed=seed)
    previous = initial
    for delay, hint in zip(time.sleeps, hints, strict=True):
        backoff = delay - (hint or 0.0)
        assert within(initial, backoff, min(3 * previous, most or math.inf) + 1e-6)
        previous = backoff


# --- configuration ----------------------------------------------------------------------------------------------------------

MILLISECONDS = st.integers(0, 600_000)


@st.composite
def blocks(draw) -> tuple[dict[str, object], RetryPolicy]:
    """A block of canonical keys, and the policy that it means."""
    initial = draw(MILLISECONDS)
    most = draw(st.none() | MILLISECONDS.map(lambda more: initial + more))
    wait = draw(MILLISECONDS)
    jitter = draw(
        st.floats(0, 1)
        | st.sampled_from(["full", "equal", "decorrelated"])
        | st.builds(lambda n: {"add_ms": n}, MILLISECONDS)
    )
    delays = [] if jitter == "decorrelated" else draw(st.lists(MILLISECONDS, max_size=4))
    on_errors = draw(st.lists(st.sampled_from(SPECS), max_size=4, unique=True))
    plain = {
        "max_attempts": draw(st.integers(1, 20)),
        "cap": draw(st.sampled_from(["after_jitter", "before_jitter"])),
        "on_errors": on_errors,
        "skip_on_errors": apart(on_errors, draw(st.lists(st.sampled_from(SPECS), max_size=2, unique=True))),
        "retry_limits": draw(
            st.none() | st.dictionaries(st.sampled_from(["network", "database"]), st.integers(0, 9), min_size=1)
        ),
        "retry_exhausted": draw(st.none() | st.booleans()),
    }
    # Beside listed delays the keys of a backoff have no effect, and are refused.
    backoff = "exponential" if delays else draw(st.sampled_from(["exponential", "linear", "fixed"]))
    if not delays and backoff == "exponential":
        plain["multiplier"] = draw(st.floats(1, 10))
    block = plain | {"max_retry_after_ms": wait, "jitter": jitter}
    block |= {"backoff": "schedule", "delays_ms": delays} if delays else {"backoff": backoff}
    own = {}
    if not delays:
        block |= {"initial_delay_ms": initial, "max_delay_ms": most}
        own = {"initial_delay": initial / 1000, "max_delay": None if most is None else most / 1000}
    policy = RetryPolicy(
        **plain,
        **own,
        backoff=backoff,
        max_retry_after=wait / 1000,
        delays=tuple(delay / 1000 for delay in delays),
        jitter={"add": jitter["add_ms"] / 1000} if isinstance(jitter, dict) else jitter,
    )
    return block, policy


@given(block_and_policy=blocks())
@settings(max_examples=50)
def test_canonical_keys_make_the_round_trip(block_and_policy):
    """C-24, D-1: a block of canonical keys means exactly the policy with those numbers; through JSON too."""
    block, policy = block_and_policy
    assert RetryPolicy.from_config(block) == policy
    assert RetryPolicy.from_config(json.loads(json.dumps(block))) == policy


@given(block_and_policy=blocks(), retries=st.integers(0, 19))
@settings(max_examples=50)
def test_attempts_and_retries_are_two_words_for_one_number(block_and_policy, retries):
    """C-01: max_retries is one less than max_attempts, whatever else the block says."""
    block, policy = block_and_policy
    del block["max_attempts"]
    assert RetryPolicy.from_config(block | {"max_retries": retries}) == policy.replace(max_attempts=retries + 1)


# --- secrets ----------------------------------------------------------------------------------------------------------------

IN_WORDS = [
    "password={}",
    "login failed (password={})",
    "host=db password={} user=shop",
    "PASSWORD: {}",
    "db_password = {}",
    "PGPASSWORD={}",
    "AWS_SECRET_ACCESS_KEY={}",
    "OPENAI_API_KEY={}",
    "userPassword={}",
    "Driver=x;Uid=a;Pwd={};Server=y",
    "passwd:{}",
    "client_secret={}&grant_type=x",
    "--password {}",
    "--api-key={}",
    "connect(user='a', password='{}', timeout=5)",
    'password="{}"',
    "('password', '{}')",
    "the password is {}",
]
IN_URLS = [
    "postgresql://shop:{}@db:5432/shop",
    "cannot reach redis://:{}@cache/0 now",
    "https://user:{}@host.example/path?x=1",
    "https://host.example/path?access_token={}",
    "https://host.example/path?accessToken={}&page=2",
    "https://host.example/path?page=2&api_key={}&size=3",
    "https://bucket/key?X-Amz-Signature={}&X-Amz-Date=1",
    "https://host.example/?x=1#token={}",
]
IN_HEADERS = [
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "Authorization: token {}",
    "Authorization: ApiKey {}",
    "Authorization: {}",
    "Proxy-Authorization: Basic {}",
    "X-Api-Key: {}",
    "x-auth-token: {}",
    "Cookie: session={}",
    "Cookie: theme=dark; session={}",
    "Cookie: theme=dark; csrftoken={}; lang=en",
    "Set-Cookie: sid={}; Path=/; HttpOnly",
    "{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}",
    "{{'Cookie': 'theme=dark; session={}'}}",
    "[('authorization', 'token {}')]",
    "[(b'authorization', b'Bearer {}')]",
    'Authorization: Digest username="u", realm="r", response="{}"',
]
LETTERS = string.ascii_letters + string.digits
SECRETS = st.text(LETTERS, min_size=8, max_size=24).map(lambda text: f"Zq7{text}")
SPECIAL = st.text(LETTERS + "!$%*+-._~^", min_size=8, max_size=24).map(lambda text: f"Zq7{text}8kV")
AROUND = st.sampled_from(
    ["", "request failed:", "at 10:05, 3 of 5:", "(in step load)", "Error('x'):", "user=shop", '{"a": 1}']
)


def leaked(secret: str, text: str) -> list[str]:
    """Every piece of the secret, of five characters and more, that is still there."""
    return [secret[i : i + 5] for i in range(len(secret) - 4) if secret[i : i + 5] in text]


@contextmanager
def known(secret: str):
    """A secret that is remembered for as long as the block takes; then whatever the module keeps is as it was before."""
    before = {name: copy.copy(value) for name, value in vars(redact).items() if name.startswith("_")}
    redact.remember_secret(secret)
    try:
        yield
    finally:
        vars(redact).update(before)


@pytest.mark.parametrize("form", IN_WORDS)
@given(secret=SPECIAL, before=AROUND, after=AROUND)
@settings(max_examples=20)
def test_no_secret_after_a_telling_word(form, secret, before, after):
    """Password=..., and whatever else is called so (S0-41)."""
    assume(leaked(secret, form + before + after) == [])
    assert leaked(secret, redact.sanitise(f"{before} {form.format(secret)} {after}")) == []


@pytest.mark.parametrize("form", IN_URLS)
@given(secret=SECRETS, before=AROUND, after=AROUND)
@settings(max_examples=20)
def test_no_secret_in_a_url(form, secret, before, after):
    """As a password or as a parameter (S0-41)."""
    assume(leaked(secret, form + before + after) == [])
    assert leaked(secret, redact.sanitise(f"{before} {form.format(secret)} {after}")) == []


@pytest.mark.parametrize("form", IN_HEADERS)
@given(secret=SECRETS, before=AROUND)
@settings(max_examples=20)
def test_no_secret_in_a_header(form, secret, before):
    """Whatever the scheme, and every cookie (S0-41)."""
    assume(leaked(secret, form + before) == [])
    assert leaked(secret, redact.sanitise(f"{before}\n{form.format(secret)}\nAccept: */*")) == []


@given(
    key=st.sampled_from(
        [
            "password",
            "api_key",
            "apiKey",
            "access_token",
            "accessToken",
            "client_secret",
            "userPassword",
            "Authorization",
        ]
    ),
    secret=SECRETS,
    quote=st.sampled_from(["", '"', "\\", "'", '\\"', "\n", " "]),
    shape=st.sampled_from(["plain", "indented", "compact", "nested", "inside", "repr"]),
)
@settings(max_examples=120)
def test_no_secret_in_json(key, secret, quote, shape):
    """Also with quotes in it, pretty-printed, nested, or JSON inside of JSON (S0-41)."""
    value = secret + quote + "Wb3" + secret[::-1]
    around = f"400 Bad Request: user shop page request body {key}"
    assume(leaked(secret, around) + leaked(secret[::-1], around) == [])  # what stands there anyway is not leaked
    body = {"user": "shop", key: value, "page": 2}
    text = {
        "plain": json.dumps(body),
        "indented": json.dumps(body, indent=2),
        "compact": json.dumps(body, separators=(",", ":")),
        "nested": json.dumps({"request": {"body": [body]}}),
        "inside": json.dumps({"body": json.dumps(body)}),
        "repr": repr(body),
    }[shape]
    out = redact.sanitise(f"400 Bad Request: {text}")
    assert leaked(secret, out) + leaked("Wb3" + secret[::-1], out) == []


@given(
    secret=st.text(min_size=4, max_size=40).filter(lambda text: text.strip() == text and len(text.split()) == 1),
    before=st.text(max_size=60),
    after=st.text(max_size=60),
)
def test_a_known_secret_is_removed_wherever_it_stands(secret, before, after):
    """S0-41: whatever it looks like and whatever stands around it."""
    assume(secret not in redact.MASK)
    with known(secret):
        out = redact.sanitise(before + secret + after, limit=10_000)
    rest = redact.sanitise(before + redact.MASK + after, limit=10_000)
    assert out.count(secret) <= rest.count(secret)


@table("secret", ["Zq7\udcffabcdef8kV", "Zq7\x00abcdef8kV", "Zq7éabcdef8kV", "Zq7 abc\ndef 8kV"])
def test_a_known_secret_may_hold_anything(secret):
    """What an environment variable can hold, bytes that are no text included (S0-41)."""
    with known(secret):
        assert leaked(secret, redact.sanitise(f"refused: {secret}!")) == []


def test_a_known_secret_is_not_cut_in_two():
    """Where a long text ends, half a secret must not be left (S0-41)."""
    secret = "Zq7correcthorsebattery8kV"
    with known(secret):
        for padding in (8170, 8180, 8185):
            assert leaked(secret, redact.sanitise("x" + " " * padding + secret)) == []
        for padding in range(250, 281):
            assert leaked(secret, redact.sanitise("x" * padding + f" {secret}")) == []


@table(
    "text",
    [
        "password=Zq7abcdef,ghijkl8kV",
        "postgresql://shop:Zq7abcdef/ghijkl8kV@db/shop",
        "postgresql://shop:Zq7abcdef'ghijkl8kV@db/shop",
        "https://Zq7abcdefghijkl8kV@github.example/x.git",
        "<password>Zq7abcdefghijkl8kV</password>",
        '{"passwords": ["Zq7abcdefghijkl8kV"]}',
    ],
)
def test_in_doubt_it_masks(text):
    """Too much hidden is a nuisance, too little is an incident (S0-41)."""
    out = redact.sanitise(text)
    assert leaked("Zq7abcdef", out) + leaked("ghijkl8kV", out) == []


@table(
    "text",
    [
        "connection refused by 10.0.0.1:5432",
        "HTTP 503 Service Unavailable for https://host.example/path?page=2",
        "no such table: users",
        "division by zero",
        "timed out after 30.0 s (attempt 2 of 3)",
        "could not serialize access due to concurrent update",
        "KeyError: 'customer_id'",
    ],
)
def test_what_is_no_secret_stays(text):
    """An error must still say what is wrong (S0-41)."""
    assert redact.sanitise(text) == text


@given(text=st.text(max_size=500), limit=st.integers(10, 400))
def test_sanitised_text_is_one_bounded_line(text, limit):
    """Whitespace collapsed, length bounded (S0-41)."""
    out = redact.sanitise(text, limit)
    assert len(out) <= limit
    assert out == " ".join(out.split())


@table("unit", ["a-", "_", "A1b", "key", "x=y ", "https://"])
def test_a_long_text_costs_little(unit):
    """An error message of any kind must not stall the call that it failed (S0-41)."""
    began = real_time.perf_counter()
    redact.sanitise(unit * (100_000 // len(unit)))
    assert real_time.perf_counter() - began < 1.0
