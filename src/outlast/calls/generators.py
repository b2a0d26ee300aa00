"""
Protected generators: tried again only as long as no item has been handed out.

Once the first item is out, the consumer has acted on it, and starting anew would hand it out twice. A failure after
that goes up as it is, with the stop reason ``generator_started``. Until then everything is as in a call: attempts,
waits, breaker, budget, time limits up to the first item. Sending, throwing and closing reach the inner generator at
once.
"""

from __future__ import annotations

from outlast.calls.drivers import Deadline, arest, rest
from outlast.calls.state import running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any

    from outlast.calls.state import Call


class _DONE:
    """
    The inner generator has ended. A class, because cloudpickle copies the code of a decorated generator with what it
    names, and a class by its name.
    """


def stream(
    call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[Any, Any, Any]:
    """A generator around the generators that fn makes."""
    inner: Any = None
    item: Any = None
    ended: Any = None
    if call.guard.cost is not None:
        call.estimate(args, kwargs, fn)
    while True:
        while (delay := call.begin()) is not None:
            rest(call, delay)
        try:
            inner = fn(*args, **kwargs)
            item = _step(call, inner.__next__)
        except StopIteration as end:
            item, ended = _DONE, end.value
        except Exception as error:
            delay = call.failed(error)
            if delay is None:
                raise
        except BaseException as interruption:
            call.interrupted(interruption)
            raise
        if delay is None:
            break
        rest(call, delay)
    while item is not _DONE:
        try:
            sent = yield item
        except GeneratorExit as closing:
            call.interrupted(closing)
            inner.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - handed on
            item, ended = _later(call, inner.throw, thrown)
        else:
            item, ended = _later(call, inner.send, sent)
    call.succeeded(None)
    return ended


def _step(call: Call, step: Callable[..., Any], *args: Any) -> Any:
    token = running.set(call)
    try:
        return step(*args)
    finally:
        running.reset(token)


def _later(call: Call, step: Callable[..., Any], value: Any) -> tuple[Any, Any]:
    """One step after the first item: the next item, or the end and what was returned."""
    try:
        return _step(call, step, value), None
    except StopIteration as end:
        return _DONE, end.value
    except Exception as error:
        call.too_late(error)
        raise
    except BaseException as interruption:
        call.interrupted(interruption)
        raise
    finally:
        del value  # it may be the exception that this frame is in the traceback of


def astreamed(begin: Callable[[], tuple[Call, Callable[..., Any]]], idle_timeout: float | None) -> Callable[..., Any]:
    """
    An async generator function around the one that `begin` gives with the call; no item may take longer than
    `idle_timeout`. It is one itself, and no function that returns a generator: `inspect`, and whoever asks it, goes by
    that.
    """

    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        call, fn = begin()
        inner: Any = None
        item: Any = None
        if call.guard.cost is not None:
            call.estimate(args, kwargs, fn)
        while True:
            while (delay := call.begin()) is not None:
                await arest(call, delay)
            try:
                inner = fn(*args, **kwargs)
                item = await _astep(call, inner.__anext__, _first_limit(call, idle_timeout))
            except StopAsyncIteration:
                item = _DONE
            except Exception as error:
                # A generator that has raised is finished: there is nothing to close.
                delay = call.failed(error)
                if delay is None:
                    raise
            except BaseException as interruption:
                call.interrupted(interruption)
                raise
            if delay is None:
                break
            await arest(call, delay)
        limit = None if idle_timeout is None or not call.world.retries else (idle_timeout, "idle")
        while item is not _DONE:
            try:
                sent = yield item
            except GeneratorExit as closing:
                call.interrupted(closing)
                await inner.aclose()
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on
                item = await _alater(call, inner.athrow, thrown, limit)
            else:
                item = await _alater(call, inner.asend, sent, limit)
        call.succeeded(None)

    return wrapper


def _first_limit(call: Call, idle_timeout: float | None) -> tuple[float, str] | None:
    limit = call.limit()
    if idle_timeout is None or not call.world.retries or (limit is not None and limit[0] <= idle_timeout):
        return limit
    return idle_timeout, "idle"


async def _astep(call: Call, step: Callable[..., Any], limit: tuple[float, str] | None, *args: Any) -> Any:
    token = running.set(call)
    try:
        if limit is None:
            return await step(*args)
        call.timer = Deadline(call.number, *limit)
        with call.timer:
            return await step(*args)
    finally:
        running.reset(token)


async def _alater(call: Call, step: Callable[..., Any], value: Any, limit: tuple[float, str] | None) -> Any:
    try:
        return await _astep(call, step, limit, value)
    except StopAsyncIteration:
        return _DONE
    except Exception as error:
        call.too_late(error)
        raise
    except BaseException as interruption:
        call.interrupted(interruption)
        raise
    finally:
        del value
