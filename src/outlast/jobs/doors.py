"""
How a worker is made from what the user says, and driven by sync code; what signals do in the meantime.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError
from outlast.isolation.threads import start_thread
from outlast.jobs.worker import Worker, WorkResult
from outlast.kernel.clock import in_trio
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.pipeline.drivers import Signals, elsewhere, in_loop, to_its_end
from outlast.settings.checks import Check, Shown
from outlast.store.faults import StoreUnavailable
from outlast.work.patience import terms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from outlast.pipeline.home import Home

FAST = 4.0  # seconds of a lease
_LOOK = 0.05  # seconds between two looks whether a signal has come
_STRAY = 1.0  # seconds that tasks which outlive the worker have to end, once they are cancelled
_OPTIONS = ("queues", "concurrency", "until_idle")


def made(
    home: Home,
    queues: Sequence[str] | Mapping[str, int],
    concurrency: int,
    *,
    until_idle: bool,
    due_later: bool = False,
    drain: float = 20.0,
    provided: Mapping[Any, Any] | None = None,
    unknown: Mapping[str, Any] | None = None,
) -> Worker:
    """A worker; `ConfigurationError` has all that is wrong."""
    check = Check()
    check.unknown(unknown or {}, _OPTIONS)
    most = check.integer("concurrency", concurrency, low=1, default=64)
    bounds: dict[str, int] | None = None
    if isinstance(queues, str):
        check.add("queues", "a list of names, or a mapping of names to numbers", queues, f"Use [{queues!r}].")
    elif isinstance(queues, Mapping):
        bounds = {
            check.name(f"queues[{queue!r}]", queue): check.integer(f"queues[{queue!r}]", number, low=1, default=1)
            for queue, number in queues.items()
        }
        for queue, number in bounds.items():
            if number > most:
                way_out = "Raise concurrency, which bounds them all together."
                check.add(f"queues[{queue!r}]", f"at most concurrency ({most})", number, way_out)
    else:
        try:
            named = [check.name(f"queues[{place}]", queue) for place, queue in enumerate(queues)]
        except TypeError:
            named = []
            check.add("queues", "a list of names, or a mapping", Shown(f"a value of type {type(queues).__name__}"))
        bounds = dict.fromkeys(named, most) or None
    if isinstance(queues, Mapping) and not queues:
        bounds = None
    if not isinstance(until_idle, bool):
        check.add("until_idle", "true or false", until_idle)
    check.raise_if_any()
    return Worker(
        home,
        queues=bounds,
        concurrency=most,
        until_idle=until_idle,
        due_later=due_later,
        drain=drain,
        provided=provided,
    )


def blocking(worker: Worker) -> WorkResult:
    """
    Work until it ends, in this thread, or in another one if an event loop is running here. A signal drains it, and then
    does what it would have done without a worker.
    """
    result: WorkResult | None = None
    problem: BaseException | None = None
    with Signals(worker.ask_soon, lambda: False) as signals:
        try:
            result = elsewhere(lambda: _here(worker), worker.ask_soon) if in_loop() else _surely(worker)
        except BaseException as error:  # noqa: BLE001 - raised below, unless a signal is what ends it
            problem = error
    try:
        if signals.caught and isinstance(problem, StoreUnavailable):  # the end by the signal would hide it
            warn("%s", error_text(problem))
        signals.pass_on(None, problem, quiet=True)
        if problem is not None:
            raise problem
        assert result is not None  # noqa: S101 - one of the two
        return result
    finally:
        del problem


async def awaited(worker: Worker) -> WorkResult:
    """Work until it ends, in the event loop that is running, which must be one of asyncio: else nothing begins."""
    if (found := _other_loop()) is not None:
        message = (
            f"expected awork to be awaited in an event loop of asyncio, got: {found}. Run it with asyncio.run or with the asyncio "
            "backend of anyio, or call app.work() in a thread or a process of its own. No job was claimed."
        )
        raise ConfigurationError(message)
    return await worker.run()


def _other_loop() -> str | None:
    """What runs this code, if that is no event loop of asyncio."""
    if in_trio() is not None:  # also where trio is the guest of such a loop: its tasks can await nothing of that
        return "one of trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "no event loop"
    return None


def told(
    worker: Worker,
    *,
    fast: bool = False,
    first: Callable[[], None] | None = None,
    watched: AbstractContextManager[object] | None = None,
) -> tuple[WorkResult, int | None]:
    """
    Work until it ends, for who tells it in its own way: what it came to, and the number of the signal that has ended
    it. `fast`: others notice within six seconds if this process dies. `first` is done before it begins, and `watched`
    entered around it, when signals are heard already: one that comes while `first` waits for the store ends it all.
    If a signal has ended it, those that come later do nothing, until the caller says what they do.
    """
    before = terms.set(terms.get()._replace(ttl=FAST) if fast else terms.get())
    try:
        with Signals(worker.ask_soon, lambda: False) as signals:
            try:
                if first is not None:
                    _unless_caught(first, signals)
                with watched or nullcontext():
                    result = _surely(worker)
            except InterruptedError:  # it waited for the store, and had nothing in hand
                if not signals.caught:
                    raise
                result = WorkResult()
            signals.last = True
    finally:
        terms.reset(before)
    return result, signals.caught[0] if signals.caught else None


def _unless_caught(do: Callable[[], None], signals: Signals) -> None:
    """
    Do it in a thread, which a signal leaves behind: `InterruptedError`. A store that does not answer would hold up the
    main thread, and with it every handler.
    """
    over, wrong = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            wrong.append(error)
        over.set()

    start_thread(threading.Thread(target=copy_context().run, args=(work,), daemon=True, name="outlast-first"))
    while not over.wait(_LOOK):
        if signals.caught:
            break
    if signals.caught:
        raise InterruptedError("asked to stop before the worker has begun")
    if wrong:
        raise wrong.pop()


def _surely(worker: Worker) -> WorkResult:
    """As `_here`; signals end the process if the loop hangs."""
    with worker.unheard():
        return _here(worker)


def _here(worker: Worker) -> WorkResult:
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return to_its_end(loop, worker.run(), worker.ask_soon)
    finally:
        _close(loop)
        asyncio.set_event_loop(None)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """
    Cancel the tasks that are left, those that jobs have made and forgotten too, and let them end. What goes on although
    it was cancelled is not waited for, nor is a thread of the loop's: the worker would never end.
    """
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        _, deaf = loop.run_until_complete(asyncio.wait(tasks, timeout=_STRAY))
        for task in deaf:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - told about already
    loop.run_until_complete(asyncio.wait([loop.create_task(loop.shutdown_asyncgens())], timeout=_STRAY))
    loop.close()
