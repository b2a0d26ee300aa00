"""
Two lanes for the same behaviour. Inside the scopes of `outlast.testing` a call takes the flow from its first attempt on; in a program a decorated
function takes a short way as long as nothing goes wrong. Tests that ask for `lane` run on both: on the short way a virtual time is no scope that
turns it off, and every call of a guard is made through a decorated function.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest

from outlast import Guard
from outlast.calls import guard
from outlast.kernel.clock import here


class _Scopes:
    """In place of the number of open scopes: whether the short way is closed in this context, by `disabled` or by faults."""

    def __bool__(self) -> bool:
        world = here.get()
        return not world.retries or world.faults is not None


def _now() -> float:
    return here.get().clock.monotonic()


def _nothing(_: int) -> None:
    """A scope was entered or left."""


def _call(self, fn, /, *args, **kwargs):
    return self(fn)(*args, **kwargs) if not guard._scopes else _flow_call(self, fn, *args, **kwargs)


async def _acall(self, fn, /, *args, **kwargs):
    work = self(fn)(*args, **kwargs) if not guard._scopes else _flow_acall(self, fn, *args, **kwargs)
    return await work


_flow_call, _flow_acall = Guard.call, Guard.acall


@contextmanager
def on_the_short_way():
    """What is decorated takes the way that it takes in a program, also in virtual time, and every call of a guard is one of those."""
    clock = SimpleNamespace(monotonic=_now)
    with (
        mock.patch.object(guard, "_scopes", _Scopes()),
        mock.patch.object(guard, "scoped", _nothing),
        mock.patch.object(guard, "REAL", SimpleNamespace(clock=clock)),
        mock.patch.object(Guard, "call", _call),
        mock.patch.object(Guard, "acall", _acall),
    ):
        yield


@pytest.fixture(params=["flow", "short way"])
def lane(request):
    """Both lanes, one after the other."""
    if request.param == "flow":
        yield request.param
    else:
        with on_the_short_way():
            yield request.param
