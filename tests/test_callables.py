"""What is called, and how: a guard goes by code and by the standard library's own marks, never by which attributes a callable answers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socketserver
import threading
import xmlrpc.client
import xmlrpc.server
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec, patch

import pytest

import outlast
from outlast import ConfigurationError, Guard, RetryBudget, RetryPolicy, retry
from outlast.settings.callables import kind_of, name_of
from tables import table

AT_ONCE = RetryPolicy(initial_delay=0)


def plain(item: int) -> int:
    return item


async def later(item: int) -> int:
    return item


class Everything:
    """A proxy that has every attribute, as clients for remote calls do."""

    def __getattr__(self, name: str) -> Everything:
        return Everything()

    def __call__(self, *args: object) -> object:
        return args


SYNC = {
    "Mock": lambda: Mock(return_value=5),
    "MagicMock": lambda: MagicMock(return_value=5),
    "Mock with the spec of a function": lambda: Mock(spec=plain, return_value=5),
    "an autospec": lambda: create_autospec(plain, return_value=5),
    "a partial of a Mock": lambda: functools.partial(Mock(return_value=5)),
    "a proxy": Everything,
    "a method of a remote server": lambda: xmlrpc.client.ServerProxy("http://127.0.0.1:9/").add,
}
ASYNC = {
    "AsyncMock": lambda: AsyncMock(return_value=5),
    "Mock with the spec of a coroutine function": lambda: Mock(spec=later, return_value=5),
    "an autospec of a coroutine function": lambda: create_autospec(later, return_value=5),
    "a partial of an AsyncMock": lambda: functools.partial(AsyncMock(return_value=5)),
}


@table("make", SYNC.values(), ids=list(SYNC))
def test_what_answers_every_attribute_is_a_function(make):
    """S2-13: a mock or a proxy is no coroutine function because it says yes to everything."""
    fn = make()
    assert (kind_of(fn), inspect.iscoroutinefunction(retry(fn))) == ("sync", False)


@table("make", ASYNC.values(), ids=list(ASYNC))
def test_what_is_marked_as_a_coroutine_function_is_one(make):
    """The marks of the standard library count, as they do for `inspect` (S2-13)."""
    fn = make()
    assert (kind_of(fn), inspect.iscoroutinefunction(retry(fn))) == ("async", True)
    for guard in (Guard(retry=AT_ONCE), Guard(retry=AT_ONCE, total_timeout=60)):
        assert asyncio.run(guard.acall(fn, 1)) == 5
        assert asyncio.run(guard(fn)(1)) == 5


def test_only_the_marks_themselves_count():
    """A function with an attribute of the mark's name and another value in it is a function."""

    def fn() -> str:
        return "called"

    fn._is_coroutine_mark = fn._is_coroutine = True
    assert Guard().call(fn) == retry(fn)() == "called"


DOORS = {
    "call": lambda guard, fn: guard.call(fn, 1),
    "decorated": lambda guard, fn: guard(fn)(1),
    "outcome": lambda guard, fn: guard.outcome(fn, 1).value,
}
GUARDS = {
    "plain": lambda: Guard(retry=AT_ONCE),
    "full": lambda: Guard(retry=AT_ONCE, retry_budget=RetryBudget("callables", reserve=9)),
    "result": lambda: Guard(retry=AT_ONCE, retry_if=lambda _: False),
    "thread": lambda: Guard(retry=AT_ONCE, timeout=60, isolation="thread"),
}


@table("door", DOORS.values(), ids=list(DOORS))
@table("guard", GUARDS.values(), ids=list(GUARDS))
def test_a_mock_is_called_and_tried_again(guard, door):
    """S2-16: through every door, until it gives something."""
    mock = Mock(side_effect=[ConnectionResetError(), TimeoutError(), "success"])
    assert door(guard(), mock) == "success"
    assert mock.call_args_list == [((1,),)] * 3


@pytest.mark.parametrize("door", ["acall", "decorated", "aoutcome"])
@pytest.mark.parametrize("full", [False, True])
def test_an_async_mock_is_awaited_and_tried_again(door, full):
    """The same for one of a coroutine function (S2-16)."""
    mock = AsyncMock(side_effect=[ConnectionResetError(), TimeoutError(), "success"])
    guard = Guard(retry=AT_ONCE, total_timeout=60 if full else None)

    async def main():
        if door == "decorated":
            return await guard(mock)(1)
        return await guard.acall(mock, 1) if door == "acall" else (await guard.aoutcome(mock, 1)).value

    assert asyncio.run(main()) == "success"
    assert mock.await_count == 3


def test_a_patched_function_is_called():
    """A test that patches what its code hands to a guard sees the call."""
    with patch("os.path.getsize", return_value=7) as patched:
        import os

        assert Guard().call(os.path.getsize, "somewhere") == 7
    patched.assert_called_once_with("somewhere")


def test_a_mock_is_an_item_function_and_a_stage():
    """Runs over items take mocks, as calls do."""
    assert outlast.map(Mock(return_value=5), [1, 2]).values() == [5, 5]
    mock = Mock(return_value=5)
    mock.__name__ = "mock"
    assert list(outlast.testing.run(outlast.Pipeline("mocked", outlast.stage(mock)), [1]).outputs()) == [5]


def test_a_method_of_a_remote_server_is_called():
    """`xmlrpc` makes a method of any name, also of `__code__`: it is called once, with its arguments."""
    with xmlrpc.server.SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False) as server:
        assert isinstance(server, socketserver.TCPServer)
        server.register_function(lambda one, other: one + other, "add")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with xmlrpc.client.ServerProxy("http://{}:{}/".format(*server.server_address)) as proxy:
                assert retry(proxy.add)(2, 3) == 5
                assert Guard(total_timeout=60).call(proxy.add, 2, 3) == 5
        finally:
            server.shutdown()
            thread.join()


def test_a_proxy_has_the_name_of_its_type():
    """What is no text is no name, in messages as on the decorated function."""
    protected = retry(Everything())
    assert name_of(Everything()) == "Everything"
    assert (protected.__name__, protected.__module__, protected.__doc__) == ("Everything", __name__, None)
    assert protected(1) == (1,)


KINDS = {
    "isgeneratorfunction": "items",
    "isasyncgenfunction": "aitems",
    "iscoroutinefunction": "later",
}


@table("guard", [Guard(), Guard(total_timeout=60)], ids=["plain", "full"])
@table("asked", KINDS)
def test_a_decorated_function_is_of_the_same_kind_for_inspect(asked, guard):
    """Frameworks ask `inspect` how a function is to be called; the answer is that of the function itself."""

    def items():
        yield 1

    async def aitems():
        yield 1

    fns = {"items": items, "aitems": aitems, "later": later, "plain": plain}
    ask = getattr(inspect, asked)
    assert {name for name, fn in fns.items() if ask(guard(fn))} == {KINDS[asked]}


def test_generators_are_refused_where_a_result_is_wanted():
    """A generator function through a mock's spec is one, too, and no call."""

    def items():
        yield 1

    with pytest.raises(ConfigurationError, match="the generator function"):
        Guard().call(items)
