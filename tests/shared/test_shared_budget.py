"""One retry budget for several real processes: never more retries than the traffic of all of them pays for."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

import outlast
from outlast import testing
from outlast.store import open_store
from servers.postgres import Postgres
from sharing import Process, eventually


def thing(name="shop", **settings):
    """An expression that makes a budget."""
    return f"outlast.RetryBudget({name!r}, shared=True, {', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def sharing(crew, *args, **settings):
    """All of the crew with one budget."""
    for process in crew:
        process.send(f"share({thing(*args, **settings)})")
    for process in crew:
        process.answer()
    return crew


def left(address, name="shop"):
    with open_store(address, app="shop") as store:
        return (store.look("budget", name)[0] or {}).get("tokens")


def together(crew, expression):
    for process in crew:
        process.send(expression)
    return [process.answer() for process in crew]


def test_retries_of_all_processes_draw_on_one_reserve(crew, name):
    """Semantics 33, 34: four processes ask for fifty retries each, at once; ten are granted."""
    sharing(crew, name, ratio=0.2, reserve=10)
    granted = together(crew, "sum(thing.withdraw() for _ in range(50))")
    assert sum(granted) == 10
    assert together(crew, "thing.withdraw()") == [False] * 4


def test_deposits_of_one_process_pay_for_retries_of_another(crew, name, address):
    """Semantics 33, 34: retries <= ratio * first successes + reserve, over all processes, with both going on at once."""
    one, other, *_ = sharing(crew, name, ratio=0.2, reserve=0)
    assert other("thing.withdraw()") is False
    one("[thing.deposit() for _ in range(50)] and None")
    eventually(lambda: left(address, name) is not None and left(address, name) > 9.9)
    assert 0 < other("until(lambda: thing.withdraw())") < 3.0
    work = "sum(thing.deposit() or thing.withdraw() for _ in range(200))"
    granted = 1 + sum(together(crew, work))
    assert granted <= 0.2 * (50 + 800)
    eventually(lambda: left(address, name) == pytest.approx(0.2 * 850 - granted))


def test_a_guard_of_each_process_stops_retrying(crew, name):
    """Semantics 33: N first calls that all fail, in four processes; the errors are the calls' own, the reason is the budget."""
    sharing(crew, name, ratio=0.2, reserve=8)
    story = """
def story():
    attempts, reasons = [], []
    guard = outlast.Guard("fetch", retry=outlast.RetryPolicy(max_attempts=4, initial_delay=0.001), retry_budget=thing)
    def fetch():
        attempts.append(1)
        raise ConnectionError("down")
    for _ in range(20):
        try:
            guard.call(fetch)
        except ConnectionError as error:
            reasons.append(outlast.stop_reason(error))
    return len(attempts), sorted(set(reasons))
"""
    for process in crew:
        process(f"exec({story!r}, globals())")
    ends = together(crew, "story()")
    assert sum(attempts for attempts, _ in ends) == 4 * 20 + 8
    assert {reason for _, reasons in ends for reason in reasons} <= {"retry_budget", "exhausted"}


def test_a_loan_that_nobody_uses_is_given_back(crew, name, address):
    """A process that has stopped retrying does not keep others from it; neither does one that ends."""
    (one,) = sharing(crew[:1], name, ratio=0, reserve=12)
    assert one("thing.withdraw()") is True
    eventually(lambda: left(address, name) == 11)
    with Process(address, thing(name, ratio=0, reserve=12)) as other:
        assert other("thing.withdraw()") is True
    assert left(address, name) == 10


def test_what_a_killed_process_had_borrowed_is_lost_and_never_spent_twice(crew, name, address):
    """Semantics 33: the bound holds after kill -9; at most a quarter of what was there is lost with it."""
    (one,) = sharing(crew[:1], name, ratio=0, reserve=40)
    with Process(address, thing(name, ratio=0, reserve=40)) as other:
        assert other("[thing.withdraw() for _ in range(3)]") == [True] * 3
        other.kill()
    granted = one("sum(thing.withdraw() for _ in range(100))")
    assert 30 <= granted <= 37


def test_a_full_budget_takes_no_deposits_until_somebody_withdraws(crew, name, address):
    """A good day must not pay for a storm: 1000 successes are kept."""
    one, other = sharing(crew[:2], name, ratio=0.01, reserve=3)
    one("[thing.deposit() for _ in range(2000)] and None")
    assert one("until(lambda: thing.full and not thing._common._gathered)") < 3.0  # all of it is handed in
    assert left(address, name) == pytest.approx(13.0)
    assert other("thing.withdraw()") is True
    assert one("until(lambda: not thing.full)") < 3.0


def test_without_a_store_each_process_has_a_budget_of_its_own():
    """Semantics 55: no error, no wait, and one budget again when the store is back."""
    made = thing(ratio=0.5, reserve=3)
    with Postgres() as server, Process(server.dsn, made) as one, Process(server.dsn, made) as other:
        assert one("thing.withdraw()") is True
        server.stop("immediate")
        assert other("sum(thing.withdraw() for _ in range(10))") == 3
        assert other("[thing.deposit(), thing.deposit(), thing.withdraw(), thing.withdraw()]") == [
            None,
            None,
            True,
            False,
        ]
        assert other("len(lines)") == 1
        server.start()
        assert other("until(lambda: len(lines) == 2)") < 5.0
        assert 1 <= other("sum(thing.withdraw() for _ in range(10))") <= 2


# -- in this process --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def budget(address, name):
    def make(**settings):
        made = outlast.RetryBudget(name, shared=True, **settings)
        outlast.App("shop", store=address).share(made)
        return made

    return make


def test_in_an_event_loop_a_retry_is_granted_too(budget):
    """From the first one on; the next ones are borrowed ahead."""
    made = budget(ratio=0, reserve=6)

    async def story():
        calls = []

        async def fetch():
            calls.append(1)
            raise ConnectionError("down")

        guard = outlast.Guard(
            "fetch", retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0.001), retry_budget=made
        )
        await asyncio.gather(*(guard.acall(fetch) for _ in range(20)), return_exceptions=True)
        return len(calls)

    assert asyncio.run(story()) == 20 + 6


def test_a_deposit_asks_nobody(budget, monkeypatch):
    """It is gathered; a thousand successes a second must not meet the store."""
    made = budget()
    made.deposit()
    monkeypatch.setattr("outlast.sharing.contact.Contact.ask", None)
    monkeypatch.setattr("outlast.sharing.contact.Contact.post", None)
    for _ in range(1000):
        made.deposit()
    assert made.available >= made.reserve


def test_a_budget_that_nobody_uses_is_not_looked_at(budget, monkeypatch):
    """After what it has is handed in."""
    monkeypatch.setattr("outlast.budgets._DOZE", 0.3)
    made = budget(ratio=0.5, reserve=1)
    made.deposit()
    assert made.withdraw()
    eventually(lambda: not made._common._attended)
    assert made._common._gathered == made._common._loan == 0
    assert made.withdraw() is False
    made.deposit()
    made.deposit()
    eventually(made.withdraw)


def test_copies_and_pickles_stay_shared(budget, crew):
    """Semantics 66: one budget."""
    made = budget(reserve=4, ratio=0)
    assert copy.deepcopy(made) is made
    assert pickle.loads(pickle.dumps(made)) is made
    crew[0](f"share(__import__('pickle').loads({pickle.dumps(made)!r}))")
    assert crew[0]("sum(thing.withdraw() for _ in range(10))") == 4
    assert made.withdraw() is False


def test_in_virtual_time_a_shared_budget_is_this_process_own():
    """A test of a user needs no store."""
    made = outlast.RetryBudget("shop", shared=True, reserve=2, ratio=0.5)
    with testing.virtual_time():
        assert [made.withdraw() for _ in range(3)] == [True, True, False]
        made.deposit()
        made.deposit()
        assert made.withdraw()
    assert made.bond._commons is None


def test_what_nobody_can_read_is_a_new_budget(budget, address, name):
    """A document of another program takes nothing away."""
    with open_store(address, app="shop") as store:
        store.save_state("budget", name, {"tokens": "many"}, expect=0)
    made = budget(reserve=2, ratio=0)
    assert [made.withdraw() for _ in range(3)] == [True, True, False]


class Shelf:
    """A commons with one document."""

    document = None

    def change(self, _, __, decide):
        changed, answer = decide(self.document, 0.0)
        self.document = changed or self.document
        return answer


def test_a_loan_that_was_given_back_is_gone():
    """D-12: it is the store's again, and no longer this process's."""
    budget, shelf = outlast.RetryBudget("loan", reserve=8, shared=True), Shelf()
    budget._common._settle(shelf, lend=True)
    assert (shelf.document, budget._common._loan) == ({"tokens": 6.0}, 2)
    budget._common._settle(shelf, give_back=True)
    assert (shelf.document, budget._common._loan) == ({"tokens": 8.0}, 0)
