"""Stored steps: done once for a job and a name, whatever becomes of the attempt; never a result of other arguments."""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
import stepping
from job_hands import Hands
from job_rows import end
from labor import NOW, Beside, outcomes, stop, wait_until
from outlast.jobs import onrecord
from outlast.jobs.onrecord import check_name, fingerprint
from outlast.store.faults import StoreRefused
from outlast.store.steps import NewStep
from outlast.testing import work
from tables import table


@dataclass
class Report:
    pages: int
    price: Decimal


class Colour(enum.Enum):
    RED = "red"


class Effects(list):
    """What steps have done."""

    def had(self, value: int) -> Report:
        self.append(value)
        return Report(value, Decimal("1.50"))

    async def ahad(self, value: int) -> Report:
        await asyncio.sleep(0)
        return self.had(value)


def fails_once(app, effects, is_async):
    """A job of two steps that fails after them in its first attempt."""

    @app.job(retry=NOW, name="chain")
    def chain(value: int) -> list[Report]:
        done = [outlast.current().step(f"step {n}", effects.had, value + n) for n in (1, 2)]
        if outlast.current().attempt == 1:
            raise ConnectionError
        return done

    async def achain(value: int) -> list[Report]:
        done = [await outlast.current().step(f"step {n}", effects.ahad, value + n) for n in (1, 2)]
        if outlast.current().attempt == 1:
            raise ConnectionError
        return done

    if is_async:
        app.kinds.clear()
        return app.job(retry=NOW, name="chain")(achain)
    return chain


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_is_done_once_for_all_attempts(app, is_async):
    """C-12: a retry of the job goes on at the first step that is not done; results come back as they were."""
    effects = Effects()
    handle = fails_once(app, effects, is_async).enqueue(10)
    assert work(app).succeeded == 1
    assert (effects, outcomes(handle)) == ([11, 12], ["failed", "succeeded"])
    assert handle.result() == [Report(11, Decimal("1.50")), Report(12, Decimal("1.50"))]
    assert [(step.name, step.attempt) for step in app.store.steps(int(handle.id))] == [("step 1", 1), ("step 2", 1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_operators_requeue_keeps_what_is_done(app, is_async):
    """The work goes on where it has failed."""
    effects = Effects()

    @app.job(retry=None)
    def chain() -> int:
        outlast.current().step("one", effects.had, 1)
        if len(handle.history()) == 0:
            raise ValueError
        return outlast.current().step("two", effects.had, 2).pages

    async def achain() -> int:
        await outlast.current().step("one", effects.ahad, 1)
        if len(app.store.job_attempts(int(handle.id))) == 0:
            raise ValueError
        return (await outlast.current().step("two", effects.ahad, 2)).pages

    job = app.job(retry=None)(achain) if is_async else chain
    handle = job.enqueue()
    work(app)
    assert (handle.status, effects) == ("failed", [1])
    app.jobs.requeue(handle.id)
    work(app)
    assert (handle.result(), effects) == (2, [1, 2])


def test_a_job_whose_data_was_mended_goes_on_from_the_start(app):
    """Its steps are forgotten with the requeue, which is on record; those of another job stay."""
    effects, data = Effects(), {"seven": 7}

    @app.job(retry=None)
    def mends(name: str) -> int:
        found = outlast.current().step("one", effects.had, data[name])
        if data[name] == 7:
            raise ValueError("wrong data")
        return found.pages

    handle, other = mends.enqueue("seven"), mends.enqueue("seven")
    work(app)
    data["seven"] = 8
    app.jobs.requeue(handle.id)
    work(app)
    assert handle.status == "failed"
    assert "the step 'one' of mends to have the arguments with which it was done" in handle.error
    assert f"outlast jobs requeue {handle.id} --from-start" in handle.error
    assert handle.error.endswith("Nothing was called.")  # not cut
    app.jobs.requeue(handle.id, from_start=True, reason="mended")
    assert app.store.steps(int(handle.id)) == []
    work(app)
    assert (handle.result(), effects) == (8, [7, 7, 8])
    assert [(change.change, change.reason) for change in handle.changes()] == [
        ("requeued", None),
        ("forgot steps", "mended"),
        ("requeued", "mended"),
    ]
    assert [step.attempt for step in app.store.steps(int(other.id))] == [1]


def test_steps_are_not_forgotten_while_code_of_the_job_still_runs(app):
    """What it does would be mixed with what is done again. A writer of an older attempt writes nothing afterwards."""

    @app.job(retry=None)
    def runs() -> None: ...

    handle, hands = runs.enqueue(), Hands(app)
    number = int(handle.id)
    (job,) = hands.take()
    late = NewStep(number, job.token, job.made, "one", "-", "p", b"1")
    assert app.store.put_results([late], hands.lease) == [True]
    hands.finish(end(job, "failed", "timeout", running=True))
    with pytest.raises(StoreRefused, match="it still runs although its time was up"):
        app.jobs.requeue(handle.id, from_start=True)
    assert (handle.status, handle.changes(), len(app.store.steps(number))) == ("failed", [], 1)
    app.store.release_held(hands.lease, [(number, job.token)])
    app.jobs.requeue(handle.id, from_start=True)
    assert app.store.put_results([late], hands.lease) == [False]
    assert app.store.steps(number) == []


def test_retries_of_a_guard_inside_of_the_job_repeat_no_step(app):
    """Also those of a retry around a part of its code."""
    effects, tries = Effects(), []
    fast = outlast.Guard(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))

    @app.job(guard=fast)
    def outer() -> int:
        found = outlast.current().step("one", effects.had, 1)
        tries.append("outer")
        if len(tries) < 3:
            raise ConnectionError
        return found.pages + inner()

    @outlast.retry(max_attempts=3, initial_delay=0)
    def inner() -> int:
        found = outlast.current().step("two", effects.had, 2)
        tries.append("inner")
        if tries.count("inner") < 3:
            raise ConnectionError
        return found.pages

    handle = outer.enqueue()
    work(app)
    assert (handle.result(), effects, outcomes(handle)) == (3, [1, 2], ["succeeded"])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_raises_stores_nothing(app, is_async):
    """Its error goes on as it is, and the step is done again."""
    tries, seen = [], []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise problem
        return "done"

    async def aflaky() -> str:
        return flaky()

    problem = ConnectionError("lost")

    @app.job(retry=NOW)
    def outer() -> str:
        try:
            return outlast.current().step("ask", flaky)
        except ConnectionError as error:
            seen.append(error is problem)
            raise

    async def aouter() -> str:
        try:
            return await outlast.current().step("ask", aflaky)
        except ConnectionError as error:
            seen.append(error is problem)
            raise

    handle = (app.job(retry=NOW)(aouter) if is_async else outer).enqueue()
    work(app)
    assert (handle.result(), len(tries), seen) == ("done", 3, [True, True])


def test_a_result_never_goes_to_other_arguments(app):
    """The same name for other work is an error that no further attempt can mend, and nothing is called."""
    effects = Effects()

    @app.job(retry=NOW)
    def send() -> None:
        for number in (1, 2):
            outlast.current().step("send", effects.had, number)

    handle = send.enqueue()
    work(app)
    assert (handle.status, effects, outcomes(handle)) == ("failed", [1], ["failed"])
    assert "the step 'send' of send to have the arguments with which it was done" in handle.error
    assert "f'send {number}'" in handle.error


def test_the_same_name_and_arguments_are_the_same_step(app):
    """Well-defined in a loop, too: called once."""
    DONE.clear()

    @app.job
    def poll() -> list[int]:
        return [outlast.current().step("poll", done, value=7) for _ in range(3)]

    handle = poll.enqueue()
    work(app)
    assert (handle.result(), DONE) == ([7, 7, 7], [7])


class Mailer:
    """It cannot be stored."""

    def __init__(self, to):
        self.to = to

    def send(self) -> str:
        DONE.append(self.to)
        return self.to

    async def asend(self) -> str:
        return self.send()


def via(mailer: Mailer) -> str:
    return mailer.send()


def sees(what):
    def local():
        return done(what.to if isinstance(what, Mailer) else what[0])

    return local


@table(
    "how",
    [
        lambda to: (lambda: done(to),),
        lambda to: (lambda which=to: done(which),),
        lambda to: (Mailer(to).send,),
        lambda to: (via, Mailer(to)),
        lambda to: (lambda mailers: via(*mailers), [Mailer(to)]),
        lambda to: (partial(via, Mailer(to)),),
        lambda to: (sees(Mailer(to)),),
        lambda to: (sees([to]),),
        lambda to: (to.upper,),
        lambda to: ([to].copy,),
    ],
)
def test_no_result_goes_to_what_only_looks_the_same(sqlite_app, how):
    """C-12: what a local function sees counts; what cannot be compared is refused when it comes again."""
    DONE.clear()
    results = []

    def remind() -> None:
        results.extend(outlast.current().step("remind", *how(to)) for to in ("a", "b"))

    sqlite_app.kinds.clear()
    remind = sqlite_app.job(retry=NOW)(remind)

    handle = remind.enqueue()
    work(sqlite_app)
    assert (handle.status, len(results), outcomes(handle)) == ("failed", 1, ["failed"])
    assert DONE in ([], ["a"])
    assert "Nothing was called." in handle.error


def test_what_cannot_be_compared_is_the_same_step_in_the_next_attempt(app):
    """C-12: and when a guard makes the job, or a part of it, again; but not in another call of that part."""
    DONE.clear()
    tries = []
    fast = outlast.Guard(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))

    @outlast.retry(max_attempts=2, initial_delay=0)
    def part(to: str) -> str:
        sent = outlast.current().step("part", Mailer(to).send)
        tries.append("part")
        if len(tries) == 1:
            raise ConnectionError
        return sent

    @app.job(guard=fast)
    def remind(tos: list[str]) -> list[str]:
        sent = outlast.current().step("whole", Mailer("w").send)
        found = [part(to) for to in tos]
        tries.append("whole")
        if tries.count("whole") == 1:
            raise ConnectionError
        return [sent, *found]

    handle = remind.enqueue(["a"])
    work(app)
    assert (handle.result(), DONE, outcomes(handle)) == (["w", "a"], ["w", "a"], ["succeeded"])
    other = remind.enqueue(["a", "b"])
    work(app)
    assert (other.status, DONE) == ("failed", ["w", "a", "w", "a"])
    assert "a value of type Mailer cannot be compared" in other.error


def test_an_edit_does_again_what_cannot_be_compared(app):
    """C-12: it may have been made of the arguments of the job."""
    DONE.clear()

    @app.job(retry=None)
    def bill(account: str) -> str:
        found = outlast.current().step("balance", Mailer(account).send)
        if account == "wrong":
            raise ValueError
        return found

    handle = bill.enqueue("wrong")
    work(app)
    (letter,) = app.dead_letters.find()
    app.dead_letters.edit(letter.id, payload={"account": "right"}, reason="a typo")
    app.jobs.requeue(handle.id)
    work(app)
    assert (handle.result(), DONE) == ("right", ["wrong", "right"])


def test_what_a_function_sets_itself_does_not_count(app):
    """A counter or a list around a function is another one in the next attempt, and the step is the same."""
    count, seen = 0, []

    def send() -> int:
        nonlocal count
        count += 1
        seen.append(count)
        return count

    @app.job(retry=NOW)
    def remind() -> int:
        found = outlast.current().step("send", send)
        if outlast.current().attempt == 1:
            raise ConnectionError
        return found

    handle = remind.enqueue()
    work(app)
    assert (handle.result(), seen) == (1, [1])


DONE = []


def done(value):
    """A function that everything can be known of."""
    DONE.append(value)
    return value


def changing(app, effects):
    """A job that has failed after its steps, with arguments that were edited since: 1 became 5, and day stays."""

    @app.job(retry=None)
    def send(to: int, day: int) -> list[int]:
        context = outlast.current()
        came = [
            context.step("by argument", effects.had, to).pages,
            context.step("by day", done, day),
            context.step("in a function", lambda: effects.had(100 + to).pages),
        ]
        if to == 1:
            raise ValueError
        return came

    return send


def test_arguments_that_an_operator_has_edited(app):
    """Steps that depend on them are done again, those that do not are not."""
    effects = Effects()
    handle = changing(app, effects).enqueue(to=1, day=9)
    work(app)
    assert effects == [1, 101]
    (letter,) = app.dead_letters.find()
    app.dead_letters.edit(letter.id, payload={"to": 5, "day": 9}, reason="wrong address")
    app.jobs.requeue(handle.id)
    work(app)
    assert handle.result() == [5, 9, 105]
    assert effects == [1, 101, 5, 105]
    kept = {step.name: step.attempt for step in app.store.steps(int(handle.id))}
    assert kept == {"by argument": 2, "by day": 1, "in a function": 2}


BEGUN, GO_ON = threading.Event(), threading.Event()


def slow() -> str:
    DONE.append(1)
    BEGUN.set()
    assert GO_ON.wait(200)
    return "slow"


async def aslow() -> str:
    DONE.append(1)
    for _ in range(20):
        await asyncio.sleep(0)
    return "slow"


@pytest.mark.parametrize("is_async", [False, True])
def test_two_calls_of_one_step_at_a_time(app, is_async):
    """One runs, the other waits for it and has its result."""
    DONE.clear()
    BEGUN.clear()
    GO_ON.clear()

    @app.job(retry=None)
    def twice() -> list[str]:
        context, came = outlast.current(), []
        threads = [threading.Thread(target=lambda: came.append(context.step("slow", slow))) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert BEGUN.wait(200)
        GO_ON.set()
        for thread in threads:
            thread.join()
        return came

    async def atwice() -> list[str]:
        context = outlast.current()
        return await asyncio.gather(*(context.step("slow", aslow) for _ in range(3)))

    handle = (app.job(retry=None)(atwice) if is_async else twice).enqueue()
    work(app)
    assert (handle.result(), DONE) == (["slow"] * 3, [1])


class Client:
    """Something that cannot be stored."""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Client(), "a value of type Client"),  # noqa: PLW0108 - a step has a function
        (lambda: Report(1, Decimal(2)), "a value of Report. Annotate what"),
        (lambda: "x" * (1 << 20), "more than 1,048,576"),
    ],
)
def test_a_result_that_cannot_be_stored(app, made, said):
    """D-23: an error at once and for good, which says that the step was done."""

    @app.job(retry=NOW)
    def send() -> None:
        outlast.current().step("make", made)

    handle = send.enqueue()
    work(app)
    assert (handle.status, outcomes(handle)) == ("failed", ["failed"])
    assert "was done, and its result cannot be stored" in handle.error
    assert said in handle.error


def test_clients_and_functions_count_by_their_kind(app):
    """What cannot be stored is compared by its type: another connection is the same argument."""
    effects = Effects()

    def ask(client: Client, question: str) -> str:
        effects.append(question)
        return question

    @app.job(retry=NOW)
    def send() -> str:
        answer = outlast.current().step("ask", partial(ask, Client()), question="why")
        if outlast.current().attempt == 1:
            raise ConnectionError
        return answer

    handle = send.enqueue()
    work(app)
    assert (handle.result(), effects) == ("why", ["why"])


def test_what_can_be_no_step(sqlite_app, monkeypatch):
    """Each is refused before anything is called."""
    app, wrong = sqlite_app, []
    monkeypatch.setattr(onrecord, "MOST_STEPS", 2)

    def generates():
        yield 1

    async def coroutine() -> None: ...

    def nested() -> None:
        outlast.current().step("one", lambda: outlast.current().step("one", int))

    @app.job(retry=None)
    def send() -> None:
        context = outlast.current()
        for call in (
            lambda: context.step("", int),
            lambda: context.step("x" * 201, int),
            lambda: context.step("a\0b", int),
            lambda: context.step("one", 3),
            lambda: context.step("one", generates),
            lambda: context.step("one", lambda: coroutine()),  # noqa: PLW0108 - as users write it
            nested,
            lambda: [context.step(f"step {n}", int, n) for n in range(3)],
        ):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever it is
                wrong.append(str(error).split(".")[0])

    send.enqueue()
    work(app)
    awaited = (
        "the step 'one' was given a function that returned something to await: pass a coroutine function and its "
        "arguments, and await the step"
    )
    assert wrong == [
        "expected the name of a step to be a text of 1 to 200 characters, got: an empty text",
        "expected the name of a step to be a text of 1 to 200 characters, got: 201 characters",
        "expected the name of a step to be a text of 1 to 200 characters, got: a text with a NUL or half of a surrogate pair, which no database takes",
        "expected a function after the name of the step 'one', got: a value of type int",
        "expected the step 'one' to have a function that returns, got: the generator function test_what_can_be_no_step",
        awaited,
        "expected the step 'one' to have other steps inside of it, got: itself",
        "expected a job to have at most 2 steps, got: another one of send",
    ]


def test_an_async_job_does_not_block_its_loop(sqlite_app):
    """A blocking function is refused there, with the way to call it."""

    @sqlite_app.job(retry=None)
    async def send() -> int:
        return outlast.current().step("one", int, "3")

    @sqlite_app.job(retry=None)
    async def right() -> int:
        return await outlast.current().step("one", asyncio.to_thread, int, "3")

    handle, other = send.enqueue(), right.enqueue()
    work(sqlite_app)
    assert "expected an async function for the step 'one' of an async job, got: int" in handle.error
    assert other.result() == 3


def test_outside_of_jobs(sqlite_app):
    """A plain call and a stage have no record; a job that is called as a function does its steps as calls."""
    effects = Effects()

    @sqlite_app.job
    def chain() -> int:
        outlast.current().keep("raw", "answer")
        return outlast.current().step("one", effects.had, 1).pages

    @sqlite_app.job
    async def achain() -> int:
        return (await outlast.current().step("one", effects.ahad, 2)).pages

    assert (chain(), chain(), asyncio.run(achain()), effects) == (1, 1, 2, [1, 1, 2])
    with pytest.raises(LookupError, match=r"current\(\).step needs a job"):
        outlast.current().step("one", int)
    with pytest.raises(LookupError, match=r"current\(\).keep needs a job"):
        outlast.current().keep("one", "two")

    @outlast.stage
    def stage(item: int) -> int:
        return outlast.current().step("one", int)

    result = outlast.Pipeline("items", stage, app=sqlite_app).run([1], check=False)
    assert "needs a job" in next(iter(result.items())).error
    assert list(sqlite_app.jobs.find()) == []


def in_child() -> None:
    outlast.current().step("one", int)


def test_in_a_process_of_its_own(sqlite_app):
    """It has no store, and says so."""
    handle = sqlite_app.job(retry=None, isolation="process")(in_child).enqueue()
    work(sqlite_app)
    assert 'a job with isolation="process" has no store' in handle.error


def test_with_protection_switched_off(app):
    """A step is stored all the same."""
    effects = Effects()
    handle = fails_once(app, effects, False).enqueue(0)
    with outlast.testing.disabled():
        work(app)
    assert (handle.status, effects) == ("succeeded", [1, 2])


def test_where_jobs_are_done_as_they_are_enqueued(sqlite_app):
    """`testing.inline`: with a store that is not the app's own."""
    effects = Effects()
    chain = fails_once(sqlite_app, effects, False)
    with outlast.testing.inline(sqlite_app):
        handle = chain.enqueue(0)
        assert (handle.status, effects) == ("succeeded", [1, 2])
    assert list(sqlite_app.jobs.find()) == []


# --- workers that lose their jobs ---


def taken_away(app):
    """Let all workers of the app be taken for dead."""
    app.store.sweep(lambda _: True, lambda orphan: onrecord_rescue(orphan))  # noqa: PLW0108


def onrecord_rescue(_):
    from outlast.store.records import Rescue

    return Rescue("ready", error="lost", error_class="worker_lost")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_that_has_lost_its_job_writes_no_step(app, is_async, on_terms):
    """Fenced by (id, token): the late step is refused with LeaseLost, and no further one begins."""
    on_terms(ttl=600.0)
    effects, seen, why = Effects(), [], []

    def had_late(number: int, attempt: int) -> None:
        effects.had(number)
        if attempt == 1:
            taken_away(app)  # inside of the step: the worker may notice it at once, and then none begins

    @app.job(retry=NOW)
    def chain() -> str:
        context = outlast.current()
        context.step("one", effects.had, 1)
        for number in (2, 3):
            try:
                context.step(f"step {number}", had_late, number, context.attempt)
            except outlast.LeaseLost as error:
                seen.append(number)
                why.append(type(error))
        return f"attempt {context.attempt}"

    async def late(number: int, attempt: int) -> None:
        await effects.ahad(number)
        if attempt == 1:
            taken_away(app)  # in the loop, so that the worker cannot notice it before the step is to be written

    async def achain() -> str:
        context = outlast.current()
        await context.step("one", effects.ahad, 1)
        for number in (2, 3):
            try:
                await context.step(f"step {number}", late, number, context.attempt)
            except (outlast.LeaseLost, asyncio.CancelledError) as error:
                # The worker may notice it while the step is being written: then it cancels the job, once.
                seen.append(number)
                why.append(type(error))
        return f"attempt {context.attempt}"

    handle = (app.job(retry=NOW)(achain) if is_async else chain).enqueue()
    work(app)
    assert (handle.result(), outcomes(handle)) == ("attempt 2", ["crashed", "succeeded"])
    assert (seen, effects, why[-1]) == ([2, 3], [1, 2, 2, 3], outlast.LeaseLost)
    assert {step.name: step.attempt for step in app.store.steps(int(handle.id))} == {"one": 1, "step 2": 2, "step 3": 2}


def test_only_the_owner_of_a_job_writes_for_it(app):
    """By id, token and app; nothing of another writer is on record, and of a batch only what is its own."""

    @app.job
    def send() -> None: ...

    handles = [send.enqueue() for _ in range(3)]
    hands = Hands(app)
    claimed = hands.take(most=2)
    rows = [NewStep(job.id, job.token, 1, "one", "a", "p", b"{}") for job in claimed]
    rows += [
        rows[0]._replace(token=rows[0].token + 1, name="late"),
        rows[0]._replace(job=int(handles[2].id), name="free"),
    ]
    assert app.store.put_results(rows, hands.lease) == [True, True, False, False]
    other = outlast.App(f"{app.name}-other", store=app.store_url)
    assert other.store.put_results(rows[:1]) == [False]
    assert (other.store.steps(claimed[0].id), other.store.step_result(claimed[0].id, "one")) == ([], None)
    other.store.close()
    assert [[step.name for step in app.store.steps(int(handle.id))] for handle in handles] == [["one"], ["one"], []]
    hands.finish(*(job_end(job) for job in claimed))
    assert app.store.put_results([rows[0]._replace(name="after")], hands.lease) == [False]


def job_end(job):
    from job_rows import end

    return end(job)


CUTS = ["before 1", *(f"{place} {number}" for number in stepping.STEPS for place in ("in", "after"))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["chain", "achain"])
def test_a_worker_is_killed_at_every_boundary(app, kind, tmp_path):
    """C-12, D-16: what is on record is not repeated; a step that was cut between its effect and its record is."""
    for cut in CUTS:
        folder = tmp_path / cut
        folder.mkdir()
        app.kinds.clear()
        handle = stepping.jobs(app, folder)[kind].enqueue()
        with stepping.stepper(app, folder, cut) as process:
            process.wait(200)
            assert process.returncode == -signal.SIGKILL, (cut, process.stderr.read())
        app.work(until_idle=True)
        assert (handle.result(), outcomes(handle)) == (["step 1", "step 2", "step 3"], ["crashed", "succeeded"]), cut
        twice = [int(cut[-1])] if cut.startswith("in") else []
        assert sorted(stepping.marks(folder)) == sorted([*stepping.STEPS, *twice]), cut


@pytest.mark.failure(3)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["chain", "achain"])
def test_a_stopped_worker_that_comes_back_writes_no_step(app, kind, tmp_path, on_terms):
    """Stopped inside of a step past its lease; the late step is refused, and what the other one wrote stays."""
    on_terms(ttl=1.0)
    handle = stepping.jobs(app, tmp_path)[kind].enqueue()
    with stepping.stepper(app, tmp_path, "hold 2", ttl=1.0) as process:
        wait_until(lambda: stepping.marks(tmp_path) == [1, 2], "it is inside of the second step")
        stop(process, app.store._database)
        with Beside(app):
            wait_until(lambda: handle.status == "succeeded", "another worker has done it")
        before = app.store.steps(int(handle.id))
        (tmp_path / "go on").touch()
        os.kill(process.pid, signal.SIGCONT)
        other = app.kinds[kind].enqueue()
        wait_until(lambda: other.status == "succeeded", "it goes on with another job")
        assert (app.store.steps(int(handle.id)), outcomes(handle)) == (before, ["crashed", "succeeded"])
    assert [(step.name, step.attempt) for step in before] == [("step 1", 1), ("step 2", 2), ("step 3", 2)]
    assert sorted(stepping.marks(tmp_path)) == [1, 1, 2, 2, 2, 3, 3]


@pytest.mark.timeout(240)
def test_a_drain_gives_a_job_back_between_its_steps(app):
    """The next step of a job that is to end does not begin; those that are done stay, and no attempt is charged."""
    effects, inside, go_on = Effects(), threading.Event(), threading.Event()

    def slow() -> str:
        effects.append("slow")
        inside.set()
        assert go_on.wait(200)
        return "slow"

    @app.job(retry=NOW)
    def chain() -> str:
        found = outlast.current().step("slow", slow)
        outlast.current().step("last", effects.had, 1)
        return found

    handle = chain.enqueue()
    with Beside(app) as beside:
        assert inside.wait(200)
        beside.worker.ask_soon()
        beside.worker.ask_soon()  # without waiting for what runs
        wait_until(lambda: beside.worker.view().cutting, "it is to end")
        go_on.set()
    assert (handle.status, handle.attempts, outcomes(handle), effects) == ("queued", 0, ["released"], ["slow"])
    work(app)
    assert (handle.result(), effects) == ("slow", ["slow", 1])


@pytest.mark.timeout(240)
def test_a_step_that_ends_after_the_time_of_its_attempt(app):
    """Its effect is had, and its job is still its own: it is on record for the next attempt."""
    effects, go_on = Effects(), threading.Event()

    def slow() -> str:
        effects.append("slow")
        assert go_on.wait(200)
        return "slow"

    @app.job(retry=NOW, timeout=0.2)
    def chain() -> str:
        found = outlast.current().step("slow", slow)
        outlast.current().step("last", effects.had, 1)
        return found

    handle = chain.enqueue()
    with Beside(app):
        wait_until(lambda: handle.status == "queued" and outcomes(handle) == ["timeout"], "its time is up")
        assert effects == ["slow"]
        go_on.set()
        wait_until(lambda: handle.status == "succeeded", "the next attempt has ended")
    assert (outcomes(handle)[0], effects[:2], effects.count("slow")) == ("timeout", ["slow", 1], 1)


@pytest.mark.timeout(240)
def test_a_step_that_is_cut_by_its_timeout_is_not_on_record(app):
    """An async one is cancelled in the middle, and done again."""
    effects = Effects()

    async def slow() -> str:
        effects.append("slow")
        if len(effects) == 1:
            await asyncio.Event().wait()
        return "slow"

    @app.job(retry=NOW, timeout=0.2)
    async def chain() -> str:
        return await outlast.current().step("slow", slow)

    handle = chain.enqueue()
    app.work(until_idle=True)
    # On a busy machine the short time may be up once more, before the step has begun or in the middle of it.
    assert (handle.result(), outcomes(handle)[0], effects[:2]) == ("slow", "timeout", ["slow", "slow"])


@pytest.mark.timeout(240)
def test_a_job_that_is_cancelled_while_its_step_is_written(app, monkeypatch):
    """What was done is on record before the attempt ends, and is not done again."""
    effects, writing, go_on = Effects(), threading.Event(), threading.Event()
    put = type(app.store).put_results

    def slowly(self, rows, *more, **how):
        writing.set()
        assert go_on.wait(200)
        return put(self, rows, *more, **how)

    monkeypatch.setattr(type(app.store), "put_results", slowly)
    monkeypatch.setattr(type(app.store), "put_at_once", lambda *_, **__: None)

    @app.job(retry=NOW)
    async def chain() -> int:
        return (await outlast.current().step("one", effects.ahad, 1)).pages

    handle = chain.enqueue()
    with Beside(app) as beside:
        assert writing.wait(200)
        beside.worker.ask_soon()
        beside.worker.ask_soon()  # without waiting for what runs
        wait_until(lambda: beside.worker.view().cutting, "it is to end")
        go_on.set()
    assert (outcomes(handle), handle.attempts) == (["released"], 0)
    work(app)
    assert (handle.result(), effects) == (1, [1])


def test_many_async_jobs_write_their_steps_together(app, monkeypatch):
    """What comes while one batch is written goes with the next; one that cannot be written hurts no other."""
    batches = []
    put = type(app.store).put_results

    def counted(self, rows, *more, **how):
        batches.append(len(rows))
        if len(rows) > 1 and any(row.name == "bad" for row in rows):
            raise outlast.store.StoreRefused("no")
        if rows[0].name == "bad":
            raise outlast.store.StoreRefused("no")
        return put(self, rows, *more, **how)

    monkeypatch.setattr(type(app.store), "put_results", counted)
    monkeypatch.setattr(type(app.store), "put_at_once", lambda *_, **__: None)

    async def one() -> int:
        return 1

    @app.job(retry=None)
    async def chain(bad: bool) -> int:
        return await outlast.current().step("bad" if bad else "good", one)

    chain.enqueue_many({"bad": n == 7} for n in range(40))
    result = work(app)
    assert (result.succeeded, result.failed) == (39, 1)
    assert len(batches) < 40 + 1 + 40
    assert max(batches) > 1


@pytest.mark.parametrize("size", [10, 20_000], ids=["small", "large"])
def test_only_what_is_small_is_written_in_the_event_loop(sqlite_app, monkeypatch, size):
    """Of SQLite; a thread writes what is large. It also writes what comes while another thread of the worker writes."""
    store, by_thread = type(sqlite_app.store), []
    put = store.put_results

    def seen(self, rows, *more, **how):
        by_thread.append(threading.current_thread().name)
        return put(self, rows, *more, **how)

    monkeypatch.setattr(store, "put_results", seen)

    async def text() -> str:
        return "x" * size

    @sqlite_app.job(retry=None)
    async def chain() -> int:
        return sum([len(await outlast.current().step(f"step {number}", text)) for number in range(20)])

    handle = chain.enqueue()
    work(sqlite_app)
    assert handle.result() == 20 * size
    assert set(by_thread) <= {"outlast-results"}
    assert len(by_thread) == 20 if size > 10 else len(by_thread) < 10
    assert len(sqlite_app.store.steps(int(handle.id))) == 20


def test_a_step_waits_in_a_thread_while_somebody_else_writes(sqlite_app, monkeypatch):
    """Of SQLite; the event loop goes on."""
    store, by_thread = type(sqlite_app.store), []
    put = store.put_results

    def seen(self, rows, *more, **how):
        by_thread.append(threading.current_thread().name)
        return put(self, rows, *more, **how)

    monkeypatch.setattr(store, "put_results", seen)

    async def text() -> str:
        return "x"

    @sqlite_app.job(retry=None)
    async def chain() -> str:
        with closing(sqlite3.connect(sqlite_app.store._database.path, isolation_level=None)) as other:
            other.execute("begin immediate")
            step = asyncio.ensure_future(outlast.current().step("one", text))
            while not by_thread:  # noqa: ASYNC110 - a thread changes it, while the loop is free
                await asyncio.sleep(0)
            assert not step.done()
            other.execute("rollback")
            return await step

    handle = chain.enqueue()
    work(sqlite_app)
    assert handle.result() == "x"
    assert by_thread == ["outlast-results"]
    assert [step.name for step in sqlite_app.store.steps(int(handle.id))] == ["one"]


def test_retention_takes_steps_with_their_job(app):
    effects = Effects()
    handle = fails_once(app, effects, False).enqueue(0)
    work(app)
    number = int(handle.id)
    assert app.store.step_result(number, "step 1") is not None
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set ended = 0 where id = ?", number)
    app.tidy(app.store, outlast.testing.datetime.now(outlast.testing.UTC))
    assert app.store.job(number) is None
    assert app.store._database.rows("select 1 from outlast_steps where owner = ?", number) == []


# --- fingerprints ---

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.dates()
    | st.decimals(allow_nan=False)
    | st.just(Colour.RED),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(plain, plain)
def test_fingerprints_are_those_of_equal_values(one, other):
    """Equal for what is written alike, different for what is not."""
    assert fingerprint([one]) == fingerprint([one])
    assert (fingerprint([one]) == fingerprint([other])) == (repr(one) == repr(other))


@given(st.dictionaries(st.text(), st.sets(st.text())))
def test_a_fingerprint_does_not_depend_on_an_order(value):
    turned = {key: set[str]() for key in reversed(list(value))}
    for key, members in value.items():
        for member in reversed(list(members)):
            turned[key].add(member)
    assert fingerprint(value) == fingerprint(turned)


@table(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        ((1,), [1]),
        ({1}, frozenset({1})),
        (None, "None"),
        (b"a", "a"),
        ({}, []),
        (0, None),
    ],
)
def test_values_of_different_types_differ(one, other):
    assert fingerprint([one]) != fingerprint([other])


def taken(*args, **kwargs):
    return f"{args} {kwargs}"


@dataclass
class Box:
    size: int

    def taken(self, *args):
        return f"{self} {args}"


ALIKE = {
    "a mapping, a keyword": [(taken, {"x": 1}), (partial(taken, x=1),)],
    "a partial, its parts": [(partial(taken, 1, 2),), (taken, [1, 2], {})],
    "a method, its object": [(Box(1).taken, 2), (taken, Box(1), 2)],
    "two partials": [(partial(partial(taken, 1), 2),), (partial(taken, 2), [1], {})],
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("calls", [*ALIKE.values(), "keywords"], ids=[*ALIKE, "keywords"])
def test_calls_with_the_same_values_in_other_places_are_other_calls(app, calls, first):
    """A result goes to none of them but its own; and it is found again by the attempts that follow."""
    ways = [lambda: outlast.current().step("s", taken, {"x": 1}), lambda: outlast.current().step("s", taken, x=1)]
    if calls != "keywords":
        ways = [lambda call=call: outlast.current().step("s", *call) for call in calls]
    found = []

    @app.job(retry=NOW)
    def job() -> None:
        found.append(ways[first]())
        if outlast.current().attempt == 1:
            raise ConnectionError("again")
        found.append(ways[first]())
        ways[1 - first]()

    handle = job.enqueue()
    work(app)
    assert (handle.status, len(found), found.count(found[0])) == ("failed", 3, 3)
    assert handle.error.startswith(
        "expected the step 's' of job to have the arguments with which it was done, got: other ones."
    )


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("calls", [*ALIKE.values(), "keywords"], ids=[*ALIKE, "keywords"])
def test_a_later_attempt_gets_no_result_of_such_a_call(app, calls, first, edited):
    """It fails and calls nothing. If an operator has changed the arguments of the job, the step is done again."""
    ways = [lambda: outlast.current().step("s", taken, {"x": 1}), lambda: outlast.current().step("s", taken, x=1)]
    if calls != "keywords":
        ways = [lambda call=call: outlast.current().step("s", *call) for call in calls]
    found = []

    @app.job(retry=None)
    def job(note: str) -> None:
        found.append(ways[first if not found else 1 - first]())
        if len(found) == 1:
            raise ConnectionError("again")

    handle = job.enqueue("a")
    work(app)
    (letter,) = app.dead_letters.find()
    if edited:
        app.dead_letters.edit(letter.id, {"note": "b"}, reason="mended")
    app.dead_letters.replay(ids=[letter.id])
    work(app)
    if edited:
        assert (handle.status, len({*found})) == ("succeeded", 2)
        return
    assert (handle.status, len(found)) == ("failed", 1)
    assert "to have the arguments with which it was done, got: other ones." in handle.error


def test_a_result_that_an_older_program_has_stored_is_found(app):
    """D-32: it says less about its call. What is stored now is read by older programs, too: they ask for the value."""
    called = []

    @app.job(retry=NOW)
    def job() -> str:
        called.append(1)
        return outlast.current().step("s", taken, x=1)

    handle, hands = job.enqueue(), Hands(app)
    (claim,) = hands.take()
    old = app.codec.encode({"value": "from before"})
    step = NewStep(claim.id, claim.token, 1, "s", fingerprint([{"x": 1}]), "p", old)
    assert app.store.put_results([step], hands.lease) == [True]
    hands.finish(end(claim, "waiting", "failed"))
    work(app)
    assert (handle.result(), called) == ("from before", [1])
    other = job.enqueue()
    work(app)
    assert app.codec.decode(app.store.step_result(int(other.id), "s"))["value"] == "() {'x': 1}"


def test_the_fingerprints_on_record_are_those_of_before(sqlite_app):
    """D-32: results that older programs have stored are found, and theirs find those of this one."""

    @sqlite_app.job(retry=None)
    def job() -> None:
        step = outlast.current().step
        step("plain", taken, 1, "a")
        step("keywords", taken, 1, x=[2])
        step("partial", partial(taken, 1, y=2), 3)
        step("method", Box(1).taken, 2)
        step("nothing", taken)

    handle = job.enqueue()
    work(sqlite_app)
    assert {step.name: step.arguments for step in sqlite_app.store.steps(int(handle.id))} == {
        "plain": fingerprint([1, "a"]),
        "keywords": fingerprint([1, {"x": [2]}]),
        "partial": fingerprint([[1], {"y": 2}, 3]),
        "method": fingerprint([Box(1), 2]),
        "nothing": "-",
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "an empty text"),
        ("a\0", "a NUL or half"),
        ("\ud800", "a NUL or half"),
        (3, "int"),
        ("n" * 201, "201 characters"),
    ],
)
def test_a_name_that_no_step_can_have_is_told_with_what_is_wrong(name, told):
    with pytest.raises(
        outlast.ConfigurationError, match=f"the name of a step to be a text of 1 to 200 .*got: .*{told}"
    ):
        check_name("a step", name)
