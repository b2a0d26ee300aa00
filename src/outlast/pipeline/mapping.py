"""
A function over many items in one line: what succeeded, what failed, and no store.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import FIRST_COMPLETED, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import ConfigurationError
from outlast.kernel.clock import here
from outlast.kernel.redact import error_text, sanitise
from outlast.observe import emit, for_an_item, listening
from outlast.pipeline.engine.attempts import failure_of
from outlast.pipeline.engine.item import shorten
from outlast.pipeline.results import PartialResult
from outlast.pipeline.stages import Degraded, Skip
from outlast.settings.callables import is_async, name_of
from outlast.settings.checks import Check
from outlast.verdicts import classify
from outlast.work.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from concurrent.futures import Future

    from outlast.calls.guard import Guard

A = TypeVar("A")
B = TypeVar("B")


def map(  # noqa: A001 - outlast.map
    fn: Callable[[A], B], items: Iterable[A], /, *, concurrency: int = 16, guard: Guard | None = None
) -> PartialResult[A, B]:
    """
    Call fn with every item, in threads, and go on when one fails. Each call is protected by the guard, if there is one.
    """
    name, concurrency = _checked(fn, concurrency, wanted=False)
    work = _protected(fn, guard, name, wanted=False)
    clock = here.get().clock
    began = clock.monotonic()
    ended: dict[int, tuple[A, Any, Exception | None]] = {}
    under_way: dict[Future[Any], tuple[int, A]] = {}

    def collect(when: str) -> None:
        done, _ = wait(under_way, return_when=when)
        for future in done:
            number, item = under_way.pop(future)
            # Without being raised here: its traceback would lead to this frame, and this frame to it.
            error = future.exception()
            if isinstance(error, KeyboardInterrupt):
                raise error
            if isinstance(error, _Passing):
                error = error.skip
            if error is not None and not isinstance(error, Exception):  # the item's own, sys.exit too
                error = failure_of(name, error)
            ended[number] = (item, None if error is not None else future.result(), error)
            del error
            _tell(name, *ended[number])

    with Pool(concurrency, thread_name_prefix="outlast-map") as threads:
        try:
            for number, item in enumerate(items):
                context = copy_context()
                context.run(for_an_item.set, True)  # noqa: FBT003 - a variable has no keywords
                under_way[threads.submit(context.run, work, item)] = (number, item)
                if len(under_way) >= concurrency:
                    collect(FIRST_COMPLETED)
            while under_way:
                collect(FIRST_COMPLETED)
        except BaseException:
            for future in under_way:
                future.cancel()
            raise
    return _result(ended, clock.monotonic() - began)


async def amap(
    fn: Callable[[A], Awaitable[B]], items: Iterable[A], /, *, concurrency: int = 16, guard: Guard | None = None
) -> PartialResult[A, B]:
    """As `map`, for coroutine functions, in the running event loop."""
    name, concurrency = _checked(fn, concurrency, wanted=True)
    work: Any = _protected(fn, guard, name, wanted=True)
    clock = here.get().clock
    began = clock.monotonic()
    ended: dict[int, tuple[A, Any, Exception | None]] = {}
    source = iter(enumerate(items))

    async def one(number: int, item: A) -> None:
        for_an_item.set(True)
        try:
            ended[number] = (item, await work(item), None)
        except Exception as error:  # noqa: BLE001 - that is the point
            shorten(error)
            ended[number] = (item, None, error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except _Passing as passing:
            ended[number] = (item, None, passing.skip)
        except BaseException as thrown:
            if isinstance(thrown, asyncio.CancelledError) and number in called_off:
                raise
            ended[number] = (item, None, failure_of(name, thrown))
        _tell(name, *ended[number])

    called_off: set[int] = set()

    async def several() -> None:
        for number, item in source:
            # A task of its own, so that what one item sets in context variables is not seen by the next.
            task = asyncio.create_task(one(number, item))
            try:
                await asyncio.wait([task])  # which passes no cancellation of the item's own on
            except asyncio.CancelledError:
                called_off.add(number)
                task.cancel()
                await asyncio.wait([task])
                raise
            if task.cancelled():  # by itself, after it had ended
                ended.setdefault(number, (item, None, failure_of(name, asyncio.CancelledError())))
            else:
                task.result()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(several())
    return _result(ended, clock.monotonic() - began)


class _Passing(BaseException):
    """Carries a Skip through a guard. It is no Exception, so the guard counts neither a success nor a failure."""

    def __init__(self, skip: Skip) -> None:
        super().__init__()
        self.skip = skip


def _protected(fn: Any, guard: Guard | None, name: str, *, wanted: bool) -> Any:
    """What is called for each item."""
    if guard is None:
        return fn
    if guard.isolation == "process":  # which must find the function by its name
        return guard(fn)

    def call(item: Any) -> Any:
        try:
            return fn(item)
        except Skip as skip:
            raise _Passing(skip) from None

    async def acall(item: Any) -> Any:
        try:
            return await fn(item)
        except Skip as skip:
            raise _Passing(skip) from None

    work: Any = functools.wraps(fn)(acall if wanted else call)
    work.__name__ = name
    return guard(work)


def _checked(fn: Any, concurrency: int, *, wanted: bool) -> tuple[str, int]:
    check = Check()
    concurrency = check.integer("concurrency", concurrency, low=1, default=16)
    check.raise_if_any()
    if not callable(fn):
        raise ConfigurationError(f"expected a function, got: a value of type {type(fn).__name__}.")
    if is_async(fn) is not wanted and (not wanted or _surely_sync(fn)):
        raise ConfigurationError(
            f"expected a coroutine function, got: {name_of(fn)}. Use outlast.map."
            if wanted
            else f"expected a function that is not async, got: {name_of(fn)}. Use `await outlast.amap(...)`."
        )
    return name_of(fn), concurrency


def _surely_sync(fn: Any) -> bool:
    """A plain function could still return something to await, and a wrapped coroutine function does."""
    return not hasattr(fn, "__wrapped__") and getattr(fn, "__name__", "") != "<lambda>"


def _result(ended: dict[int, tuple[A, B, Exception | None]], elapsed: float) -> PartialResult[A, B]:
    rows = [ended[number] for number in sorted(ended)]
    good = [(item, value) for item, value, error in rows if error is None]
    failed = [(item, error) for item, _, error in rows if error is not None and not isinstance(error, Skip)]
    status: Any = "success" if not failed else "partial" if good else "failure"
    succeeded: list[Any] = [(item, value.value if isinstance(value, Degraded) else value) for item, value in good]
    return PartialResult(
        status=status,
        total=len(rows),
        succeeded=succeeded,
        failed=failed,
        elapsed=elapsed,
        skipped=[(item, sanitise(str(error.reason))) for item, _, error in rows if isinstance(error, Skip)],
        degraded=[(item, sanitise(str(value.why))) for item, value in good if isinstance(value, Degraded)],
    )


def _tell(name: str, item: object, _: object, error: Exception | None) -> None:
    if not listening() or isinstance(error, Skip):
        return
    # An item may be anything: a short text or a number names it, of the rest only the kind is told.
    tell_item(name, sanitise(str(item)) if isinstance(item, str | int | float) else type(item).__name__, error)


def tell_item(name: str, key: str, error: Exception | None) -> None:
    """Tell how one attempt at an item outside of runs has ended."""
    from outlast.observe.events import ItemFailed, ItemSucceeded

    if error is None:
        emit(ItemSucceeded(item_id=key, step_id=name, attempts=1))
        return
    emit(
        ItemFailed(
            item_id=key,
            step_id=name,
            attempts=1,
            error=error_text(error),
            error_type=type(error).__name__,
            error_class=classify(error).error_class,
        )
    )
