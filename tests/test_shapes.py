"""Functions of the user's: one of the wrong shape is refused where it is written, one that fails at run time changes nothing else."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from contextlib import contextmanager

import pytest

import outlast
from outlast import (
    CircuitBreaker,
    CircuitBreakerOpenError,
    ConfigurationError,
    Guard,
    Limit,
    Rate,
    RetryPolicy,
    TemporaryFailure,
    observe,
)
from outlast.testing import capture_events, disabled, virtual_time
from tables import table

AT_ONCE = RetryPolicy(initial_delay=0)


@contextmanager
def opened():
    yield "a client"


async def later(_):
    return False


def items(_):
    yield False


def none():
    return False


def two(_, __):
    return False


class Later:
    async def __call__(self, _):
        return False


WRONG = {
    "a coroutine function": (later, "got: the coroutine function later. It must answer at once."),
    "an object that is one": (Later(), "got: the coroutine function Later. It must answer at once."),
    "a partial of one": (functools.partial(later), "got: the coroutine function later. It must answer at once."),
    "a generator function": (items, "got: the generator function items. It must answer at once."),
    "no argument": (none, "got: none()."),
    "two arguments": (two, "got: two(_, __)."),
}
WRITTEN = {
    "retry_if": (lambda fn: Guard(retry_if=fn), "expected retry_if to be a function of a result, "),
    "on_errors": (lambda fn: RetryPolicy(on_errors=["transient", fn]), "expected on_errors[1] to be a function of an error, "),
    "skip_on_errors": (lambda fn: RetryPolicy(skip_on_errors=[fn]), "expected skip_on_errors[0] to be a function of an error, "),
    "retry(on_errors)": (lambda fn: outlast.retry(on_errors=[fn]), "expected on_errors[0] to be a function of an error, "),
    "fallback_on": (
        lambda fn: Guard(fallback=lambda: 1, fallback_on=[fn]),
        "expected fallback_on[0] to be a function of an error, ",
    ),
    "subscribe": (observe.subscribe, "expected hook to be a function of an event, "),
    "repairs": (lambda fn: outlast.stage(repairs=[fn])(lambda row: row), "expected repairs[0] to be a function of an item and an error, "),
}  # fmt: skip


@table("where", WRITTEN)
@table("wrong", WRONG)
def test_a_function_of_the_wrong_shape_is_refused_where_it_is_written(where, wrong):
    """D-26: a coroutine is true and never runs, so that an async condition would be obeyed as a yes."""
    write, said = WRITTEN[where]
    fn, shown = WRONG[wrong]
    if where == "repairs" and wrong in ("no argument", "two arguments"):
        fn, shown = {"no argument": (none, "got: none()."), "two arguments": (later, "coroutine function later")}[wrong]
    before = observe._hooks
    with pytest.raises(ConfigurationError) as caught:
        write(fn)
    (problem,) = caught.value.problems
    assert problem.startswith(said)
    assert shown.split(" It must")[0] in problem
    assert observe._hooks == before


@pytest.mark.parametrize("value", [None, 3, "print"])
def test_a_hook_is_a_function(value):
    """D-26: what cannot be called is refused at once, not at the first event."""
    with pytest.raises(ConfigurationError, match="expected hook to be a function of an event, got:"):
        observe.subscribe(value)


def failing(error):
    def work(*_, **__):
        raise error

    return work


def broken(_):
    raise KeyError("hunter2")


def awaits(_):
    return later(_)


@pytest.mark.parametrize("predicate", [broken, awaits], ids=["raises", "returns something to await"])
@pytest.mark.parametrize("decorated", [False, True])
def test_a_predicate_that_fails_ends_the_call_with_the_original_error(predicate, decorated, caplog):
    """D-26: whether it lists the error is not known, so it is not retried, and a note says why."""
    for options, error, reason in (
        ({"on_errors": [predicate]}, ConnectionResetError("down"), "not_listed"),
        ({"on_errors": [predicate]}, ValueError("bad"), "permanent"),
        ({"on_errors": ["transient"], "skip_on_errors": [predicate]}, ConnectionResetError("down"), "skipped"),
        ({"on_errors": [predicate, "all"]}, ValueError("bad"), None),
    ):
        calls, policy = [], RetryPolicy(initial_delay=0, **options)

        def work(calls=calls, error=error):
            calls.append(1)
            raise error

        with pytest.raises(type(error)) as caught:
            Guard("shop", retry=policy)(work)() if decorated else Guard("shop", retry=policy).call(work)
        assert caught.value is error
        decision = policy.decide(type(error)(), attempt=1)
        if reason is None:  # another entry lists it, so that nobody is asked
            assert (len(calls), decision.retry) == (3, True)
            continue
        kind = "KeyError" if predicate is broken else "TypeError"
        name = predicate.__qualname__
        assert error.__notes__ == [
            f"outlast shop: not retried: the predicate {name} failed with {kind} when it was asked."
        ]
        assert (len(calls), outlast.stop_reason(error), type(outlast.stop_reason(error))) == (1, reason, str)
        assert (decision.retry, decision.reason, type(decision.reason)) == (False, reason, str)
    assert "hunter2" not in caplog.text


def test_a_result_stays_good_if_its_predicate_fails(caplog):
    """D-26: a broken `retry_if` costs no good result; it is reported once."""
    for predicate in (broken, awaits):
        guard = Guard(retry=AT_ONCE, retry_if=predicate)
        assert [guard.call(lambda: 5), guard(lambda: 6)()] == [5, 6]


class Aborted(BaseException):
    """Control flow of somebody else's."""


@pytest.mark.parametrize(
    "raised", [ValueError, SystemExit, GeneratorExit, asyncio.CancelledError, Aborted], ids=lambda kind: kind.__name__
)
def test_a_hook_that_fails_leaves_the_call_alone(raised, caplog):
    """D-26: whatever it raises but an interrupt; said once, counted each time, told to the others."""
    heard = []

    def hook(_):
        raise raised

    hook.__qualname__ = f"hook that raises {raised.__name__}"
    ends = [
        observe.subscribe(hook),
        observe.subscribe(lambda event: heard.append((event.name, getattr(event, "hook", None)))),
    ]
    try:
        with caplog.at_level(logging.ERROR, "outlast"), virtual_time():
            for _ in range(2):
                script = iter([ConnectionResetError(), None])
                assert (
                    Guard(retry=AT_ONCE).call(lambda script=script: failing(e)() if (e := next(script)) else "done")
                    == "done"
                )
    finally:
        for end in ends:
            end()
    failed = ("hook_failed", hook.__qualname__)
    assert heard == [("step_retry_attempt", None), failed, ("step_success", None), failed] * 2
    assert [record.message for record in caplog.records if "hook that raises" in record.message] == [
        f"{hook.__qualname__} failed with {raised.__name__}; the call went on"
    ]


def test_an_interrupt_in_a_hook_is_an_interrupt():
    """D-26: a Ctrl-C that comes while a hook runs is not swallowed."""

    def hook(_):
        raise KeyboardInterrupt

    end = observe.subscribe(hook)
    try:
        with pytest.raises(KeyboardInterrupt):
            Guard(retry=AT_ONCE).call(failing(ConnectionResetError()))
    finally:
        end()


# --- fallbacks and rejections ---------------------------------------------------------------------------------------------


SPECS = {
    "nothing said": (None, {"reset": True, "bug": False, "value": True, "open": True, "late": True, "mixed": False}),
    "transient": (["transient"], {"reset": True, "bug": False, "value": False, "open": True, "late": True, "mixed": False}),
    "all": (["all"], {"reset": True, "bug": True, "value": True, "open": True, "late": True, "mixed": True}),
    "a type": ([ValueError], {"reset": False, "bug": False, "value": True, "open": False, "late": False, "mixed": False}),
    "a name": (["circuit_open", "code_error"], {"reset": False, "bug": True, "value": False, "open": True, "late": False, "mixed": False}),
    "a predicate": ([lambda e: "down" in str(e)], {"reset": True, "bug": False, "value": False, "open": False, "late": False, "mixed": False}),
    "none": ([], dict.fromkeys(("reset", "bug", "value", "open", "late", "mixed"), False)),
}  # fmt: skip


@table(("specs", "expected"), SPECS.values(), ids=list(SPECS))
@table("is_async", [False, True])
def test_a_fallback_answers_for_what_fallback_on_lists(specs, expected, is_async):
    """D-28: by default for everything but bugs; in the words of `on_errors`, and an open circuit is transient here."""
    breaker = CircuitBreaker("listed", failure_threshold=1)
    limit = Limit("listed", concurrency=1, max_wait=0)
    answered = {}
    for what, error in {
        "reset": ConnectionResetError("down"),
        "bug": AttributeError("typo"),
        "value": ValueError("bad"),
        "open": None,
        "late": None,
        "mixed": ExceptionGroup("both", [TimeoutError(), AttributeError()]),
    }.items():
        options = {"open": {"breaker": breaker}, "late": {"limit": limit}}.get(what, {})
        guard = Guard(retry=None, fallback=lambda: "stale", fallback_on=specs, **options)
        work = failing(error)

        async def awork(work=work):
            return work()

        breaker.isolate("test")
        with limit:
            try:
                answer = asyncio.run(guard(awork)()) if is_async else guard(work)()
            except (Exception, ExceptionGroup):  # noqa: BLE001 - the point is that it came out
                answer = None
        answered[what] = answer == "stale"
        breaker.reset()
    assert answered == expected


def test_waiting_for_a_circuit_that_is_not_there_is_refused():
    """D-26: on_open has no effect without a breaker; a stage, which always waits, has one only if its guard does."""
    with pytest.raises(ConfigurationError, match="expected on_open to be 'fail' without a breaker, got: 'wait'"):
        Guard(on_open="wait")
    breakers = (None, outlast.CircuitBreaker("stage"))
    stages = [outlast.stage(guard=Guard(breaker=breaker))(lambda item: item) for breaker in breakers]
    assert [stage.guard.on_open for stage in stages] == ["fail", "wait"]


def test_fallback_on_without_a_fallback_is_refused():
    """D-26: it would have no effect."""
    with pytest.raises(ConfigurationError, match="expected fallback_on to be None without a fallback"):
        Guard(fallback_on=["all"])
    with pytest.raises(ConfigurationError, match=r"expected fallback_on\[0\] to be a category"):
        Guard(fallback=lambda: 1, fallback_on=["transiet"])


def test_a_predicate_of_fallback_on_that_fails_leaves_the_error():
    """D-26: nobody knows whether the fallback may answer, so it does not, and a note says why."""
    error = ConnectionResetError("down")
    guard = Guard("shop", retry=None, fallback=lambda: "stale", fallback_on=[broken])
    with pytest.raises(ConnectionResetError) as caught:
        guard.call(failing(error))
    assert caught.value is error
    assert (
        error.__notes__[-1] == "outlast shop: no fallback: the predicate broken failed with KeyError when it was asked."
    )


def test_each_answer_of_a_fallback_and_each_rejection_is_told_once():
    """D-28: customers who get stale data, and how many calls an open circuit keeps away, are seen."""
    guard = Guard(
        "price",
        retry=None,
        breaker=CircuitBreaker("shop", failure_threshold=1),
        fallback=lambda: "stale",
    )
    bare = CircuitBreaker("bare", failure_threshold=1)
    bare.isolate("test")
    full = Limit("full", concurrency=1, max_wait=0)

    async def never():
        pytest.fail("called")

    with virtual_time(), capture_events() as events:
        assert [guard.call(failing(ConnectionRefusedError("down"))) for _ in range(3)] == ["stale"] * 3
        for door in (
            lambda: bare.call(print),
            bare(print),
            lambda: asyncio.run(bare.acall(never)),
            bare.__enter__,
            lambda: Guard("b", breaker=bare).call(print),
        ):
            with pytest.raises(CircuitBreakerOpenError):
                door()
        with full, pytest.raises(outlast.LimitExceededError):
            Guard("l", limit=full).call(print)
        with full, pytest.raises(outlast.LimitExceededError):
            full.__enter__()
    told = [event for event in events if event.name in {"fallback_used", "call_rejected"}]
    assert [
        (event.name, event.step_id, event.by, event.which)
        if event.name == "call_rejected"
        else (event.name, event.step_id, event.attempt, event.error_class, event.reason, event.retries_used)
        for event in told
    ] == [
        ("fallback_used", "price", 1, "connection_refused", "exhausted", 0),
        ("call_rejected", "price", "breaker", "shop"),
        ("fallback_used", "price", 0, "circuit_open", "breaker_open", 0),
        ("call_rejected", "price", "breaker", "shop"),
        ("fallback_used", "price", 0, "circuit_open", "breaker_open", 0),
        *[("call_rejected", None, "breaker", "bare")] * 4,
        ("call_rejected", "b", "breaker", "bare"),
        ("call_rejected", "l", "limit", "full"),
        ("call_rejected", None, "limit", "full"),
    ]


def test_a_fallback_that_fails_gives_no_answer():
    """D-28: no event for what it did not give."""
    with capture_events() as events, pytest.raises(KeyError):
        Guard(retry=None, fallback=failing(KeyError())).call(failing(TimeoutError()))
    assert "fallback_used" not in [event.name for event in events]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_unwanted_result_is_answered_by_the_fallback_and_told(is_async):
    """D-28: whatever `fallback_on` lists, for there is no error."""
    guard = Guard("export", retry=AT_ONCE, retry_if=lambda r: r == "pending", fallback=lambda: "old", fallback_on=[])

    async def pending():
        return "pending"

    with capture_events() as events:
        assert (asyncio.run(guard.acall(pending)) if is_async else guard.call(lambda: "pending")) == "old"
    last = events[-1]
    assert (last.name, last.error_type, last.reason) == ("fallback_used", "unwanted result", "exhausted")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_fallbacks_answer_in_a_stage_is_degraded(is_async, batch):
    """D-28: the item succeeds, counts as degraded, and the answer is told with the item's key."""
    seen = []

    def stale(rows, client):
        seen.append(client)
        return ["stale"] * len(rows) if batch else "stale"

    def work(rows, client, other):
        raise ConnectionRefusedError("down")

    def ask(rows, client=outlast.use(opened), other=outlast.use(opened)):
        return work(rows, client, other)

    async def aask(rows, client=outlast.use(opened), other=outlast.use(opened)):
        return work(rows, client, other)

    made = outlast.stage(guard=Guard(retry=None, fallback=stale), **({} if batch is None else {"batch": batch}))
    pipeline = outlast.Pipeline("degraded", made(aask if is_async else ask))
    with capture_events() as events:
        result = outlast.testing.run(pipeline, [1, 2], provide={})
    assert (result.status, result.counts.succeeded, result.counts.degraded) == ("completed", 2, 2)
    assert sorted(result.outputs()) == ["stale", "stale"]
    used = [event for event in events if event.name == "fallback_used"]
    assert len(used) == 2
    assert len({event.item_id for event in used}) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fallback_in_a_stage_answers_for_failures_and_unwanted_results_only(is_async):
    """D-28: a bug is a dead letter, an unwanted result is answered as in a call."""

    def work(n):
        if n == 0:
            raise AttributeError("typo")
        return "pending" if n == 1 else "fine"

    async def awork(n):
        return work(n)

    guard = Guard(retry=AT_ONCE, retry_if=lambda r: r == "pending", fallback=lambda _: "stale")
    stage = outlast.stage(guard=guard)(awork if is_async else work)
    result = outlast.testing.run(outlast.Pipeline("answers", stage), [0, 1, 2])
    assert (result.counts.dlq, result.counts.degraded, sorted(result.outputs())) == (1, 1, ["fine", "stale"])


def test_disabled_means_no_fallback_in_a_stage_either(tmp_path, monkeypatch):
    """semantics 78: as for a call."""
    monkeypatch.chdir(tmp_path)
    stage = outlast.stage(guard=Guard(retry=None, fallback=lambda _: "stale"))(failing(ConnectionResetError()))
    with disabled():
        result = outlast.Pipeline("off", stage).run([1], check=False)
    assert (result.counts.succeeded, result.counts.dlq) == (0, 1)


# --- stages: cost and repairs -----------------------------------------------------------------------------------------------


COSTS = {
    "only the item": (lambda row: {"tokens": 10}, None),
    "and a resource": (lambda row, client: {"tokens": 10}, None),
    "anything": (lambda row, **_: {"tokens": 10}, None),
    "another rate": (lambda row: {"tokns": 10}, "ConfigurationError"),
    "fails": (lambda row: {}["tokens"], "KeyError"),
}


@table(("cost", "error"), COSTS.values(), ids=list(COSTS))
@table("is_async", [False, True])
@table("batch", [None, 1])
def test_a_cost_in_a_stage_gets_what_it_takes_and_is_never_left_out(cost, error, is_async, batch):
    """D-26: the limit holds, or the items fail with what is wrong; it is never off in silence."""
    calls = []

    def ask(row, client=outlast.use(opened)):
        calls.append(outlast.testing.here.get().clock.monotonic())
        return row

    async def aask(row, client=outlast.use(opened)):
        return ask(row, client)

    limit = Limit("stage", rates={"tokens": Rate(10, per=1)})
    made = outlast.stage(guard=Guard(limit=limit, cost=cost), **({} if batch is None else {"batch": batch}))
    pipeline = outlast.Pipeline("costs", made(aask if is_async else ask))
    result = outlast.testing.run(pipeline, [1, 2, 3])
    assert limit.under_way == 0
    if error is None:
        assert result.counts.succeeded == 3
        assert max(calls) - min(calls) >= 1.9
    else:
        assert (result.counts.dlq, calls) == (3, [])
        assert all(error in item.error for item in result.items())


def test_a_cost_that_a_stage_cannot_call_is_refused_where_it_is_declared():
    """D-26: not when the night is over."""
    guard = Guard(limit=Limit("never", rates={"tokens": Rate(10, per=1)}), cost=lambda row, model: {"tokens": 1})
    with pytest.raises(
        ConfigurationError, match=r"expected cost to take the arguments of .*\(item\), got: .*\(row, model\)"
    ):
        outlast.stage(guard=guard)(lambda row: row)
    with pytest.raises(ConfigurationError, match=r"expected fallback to take the arguments of .*\(item\), got: .*\(\)"):
        outlast.stage(guard=Guard(fallback=lambda: 1))(lambda row: row)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_repairs_run_where_they_may_block(is_async, batch, tmp_path, monkeypatch):
    """D-26: never in the event loop, which would stand still for every item."""
    monkeypatch.chdir(tmp_path)
    where = []

    def mend(row, error):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            where.append(threading.current_thread())
        return row | {"mended": True}

    def work(row):
        if "mended" not in row:
            raise ValueError("bad")
        return row["n"]

    def label(rows):
        return [work_or_error(row) for row in rows] if batch else work(rows)

    def work_or_error(row):
        try:
            return work(row)
        except ValueError as error:
            return error

    async def alabel(rows):
        return label(rows)

    made = outlast.stage(repairs=[mend], **({} if batch is None else {"batch": batch}))
    pipeline = outlast.Pipeline("mended", made(alabel if is_async else label))
    result = pipeline.run([{"n": n} for n in range(4)])
    assert sorted(result.outputs()) == [0, 1, 2, 3]
    assert len(where) == 4


def test_a_repair_that_fails_leaves_the_item_its_own_error():
    """D-26: as without it, in a sync and in an async stage."""

    def mend(row, error):
        raise TemporaryFailure("the repair")

    async def alabel(row):
        raise ValueError("the item")

    for fn in (failing(ValueError("the item")), alabel):
        result = outlast.testing.run(outlast.Pipeline("own", outlast.stage(repairs=[mend])(fn)), [1])
        (item,) = result.items()
        assert "the item" in item.error
        assert "the repair" not in item.error


def test_a_guard_can_be_changed():
    """A copy with other options: all the rest is kept, and checked again."""
    guard = Guard("a", retry=AT_ONCE, total_timeout=60, fallback=lambda: 1, fallback_on=["all"], idempotent=False)
    changed = guard.replace(name="b", total_timeout=30)
    same = ("retry", "fallback", "fallback_on", "idempotent", "timeout", "on_open")
    assert [getattr(changed, name) for name in same] == [getattr(guard, name) for name in same]
    assert (changed.name, changed.total_timeout, guard.name, guard.total_timeout) == ("b", 30.0, "a", 60.0)
    with pytest.raises(ConfigurationError, match="expected no argument 'retries'"):
        guard.replace(retries=3)
