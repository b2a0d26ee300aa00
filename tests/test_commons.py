"""The door from the core to what processes share: where a shared thing belongs."""

from __future__ import annotations

import threading

import pytest

import outlast
from outlast import testing
from outlast.sharing.contact import Contact, Unreachable
from outlast.sharing.named import Bond, bind


class Place:
    """A commons that nobody asks."""


def test_a_shared_thing_belongs_to_the_first_store_it_is_used_with(tmp_path):
    """D-10: bound once; another app's store is a mistake that is named."""
    shop = outlast.App("shop", store=f"sqlite:///{tmp_path}/shop.db")
    bond = Bond("breaker", "openai")
    bond.bind(shop.commons)
    bond.bind(outlast.App("shop", store=f"sqlite:///{tmp_path}/shop.db").commons)
    with pytest.raises(outlast.ConfigurationError, match=r"breaker 'openai'.*app 'shop'.*app 'mail'.*app.share"):
        bond.bind(outlast.App("mail", store=f"sqlite:///{tmp_path}/shop.db").commons)
    assert bond.commons() == shop.commons


def test_without_an_app_it_belongs_to_the_default_one(monkeypatch, tmp_path):
    """Its first use binds it, and everything it says about itself is without a password."""
    monkeypatch.setenv("OUTLAST_STORE", "postgresql://me:hunter2@127.0.0.1:1/none")
    bond = Bond("limit", "openai")
    assert "default" in repr(bond.commons())
    assert "hunter2" not in repr(bond.commons())
    with pytest.raises(outlast.ConfigurationError) as caught:
        bond.bind(outlast.App("shop", store=f"sqlite:///{tmp_path}/shop.db").commons)
    assert "hunter2" not in str(caught.value)


def test_in_virtual_time_nothing_is_shared():
    """A test of a user needs no store."""
    with testing.virtual_time():
        assert Bond("breaker", "openai").commons() is None


def test_what_is_not_shared_is_passed_over():
    """A guard may have no breaker, or one of its own."""
    bind([None, outlast.CircuitBreaker("mine"), object()], Place())


def test_an_app_says_what_it_cannot_share():
    """All mistakes at once."""
    with pytest.raises(outlast.ConfigurationError) as caught:
        outlast.App("shop").share(outlast.RetryBudget("own"), "openai")
    assert len(caught.value.problems) == 2
    assert "shared=True" in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:////dev/null/store.db", "postgresql://127.0.0.1:1/none", "mysql://nowhere"])
def test_a_store_that_cannot_be_asked_is_unreachable_and_nothing_else(url):
    """Semantics 55: one signal, whatever the reason is."""
    commons = outlast.App("shop", store=url).commons
    with pytest.raises(Unreachable):
        commons.look("breaker", "openai")
    with pytest.raises(Unreachable):
        commons.change("breaker", "openai", lambda shared, now: (None, None))


class Thing:
    """Looked after by a contact; its first look fails as nothing that was thought of."""

    def __init__(self) -> None:
        self.looks, self.enough = 0, threading.Event()

    def attend(self, contact) -> bool:
        self.looks += 1
        if self.looks == 1:
            raise MemoryError
        contact.asked(lambda _: None)
        self.enough.set()
        return True

    def part(self, _) -> None:
        """Nothing to give back."""


class Desk:
    """A commons that is asked in memory."""

    def change(self, *_):
        raise AssertionError

    look = change


def test_an_unexpected_error_in_the_thread_of_a_contact_stops_nobody(caplog):
    """Semantics 55: it is logged, it concerns one question or one thing, and the next one is answered."""
    contact, thing, other = Contact(Desk()), Thing(), Thing()
    other.looks = 1
    done = threading.Event()

    def broken(_) -> None:
        raise MemoryError

    contact.post(lambda _: 1, broken)
    contact.post(lambda _: 2, lambda _: done.set())
    assert done.wait(10)
    contact.attend(thing)
    contact.attend(other)
    assert thing.enough.wait(10)
    assert other.enough.wait(10)
    assert contact.ask(lambda _: 3) == 3
    assert not contact.lost
    assert caplog.text.count("unexpected MemoryError") == 2


def test_the_thread_of_a_contact_goes_on_after_an_unexpected_error(caplog, monkeypatch):
    """Semantics 55: whatever it is, meanwhile everybody decides alone, and later what is shared counts again."""
    contact, thing = Contact(Desk(), retry=0.01), Thing()
    thing.looks = 1
    fails = iter([True])
    look = contact._look_after_all

    def look_after_all() -> None:
        if next(fails, False):
            raise MemoryError
        look()

    monkeypatch.setattr(contact, "_look_after_all", look_after_all)
    contact.attend(thing)
    assert thing.enough.wait(10)
    assert "unexpected MemoryError" in caplog.text
    assert not contact.lost
    assert contact.ask(lambda _: 3) == 3
