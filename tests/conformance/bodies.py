"""The functions that the statements protect, and ways to run them: plainly, as coroutines, in many threads, in a fresh interpreter."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

PATIENCE = 30.0  # seconds before a test takes something for hung; nothing here needs one


class Mode:
    """Sync or async: the same story told to both."""

    def __init__(self, name: str, *, asynchronous: bool) -> None:
        self.name = name
        self.asynchronous = asynchronous

    def body(self, fn):
        """The function, as a coroutine function if this mode is async."""
        if not self.asynchronous:
            return fn

        async def body(*args, **kwargs):
            return fn(*args, **kwargs)

        return body

    def run(self, fn, *args, **kwargs):
        """What the function returns or raises."""
        return asyncio.run(fn(*args, **kwargs)) if self.asynchronous else fn(*args, **kwargs)

    def catch(self, fn, *args, **kwargs) -> BaseException | None:
        """What the function raises, control flow included; None if it returns."""
        if not self.asynchronous:
            return caught(fn, *args, **kwargs)

        async def main():
            try:
                await fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - returned
                return error
            return None

        return asyncio.run(main())

    def drop(self, fn, *args, then=None) -> Any:
        """Run the function, let go of what it raises, and say what `then` returns: in async mode before the task has ended."""
        if not self.asynchronous:
            with suppress(Exception):
                fn(*args)
            return then() if then else None

        async def main():
            with suppress(Exception):
                await fn(*args)
            return then() if then else None

        return asyncio.run(main())


SYNC = Mode("sync", asynchronous=False)
ASYNC = Mode("async", asynchronous=True)


class Story:
    """A body that raises the given errors in turn (instances, or types to make one of) and then returns; `calls` counts."""

    def __init__(self, *errors, value="done", forever=None):
        self._errors = errors
        self._forever = forever
        self._value = value
        self.calls = 0
        self.raised = []

    def __call__(self, *args, **kwargs):
        self.calls += 1
        error = self._errors[self.calls - 1] if self.calls <= len(self._errors) else self._forever
        if error is None:
            return self._value
        error = error(f"attempt {self.calls}") if isinstance(error, type) else error
        self.raised.append(error)
        raise error

    @property
    def fn(self):
        """The body as a plain function."""

        def body(*args, **kwargs):
            return self(*args, **kwargs)

        return body


def failing(error=ConnectionResetError):
    """A body that fails for ever."""
    return Story(forever=error)


def caught(fn, *args, **kwargs) -> BaseException | None:
    """What the function raises, control flow included; None if it returns."""
    try:
        fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - returned
        return error
    return None


def trip(breaker, times=1, error=ConnectionResetError):
    """Let so many calls fail."""
    for _ in range(times):
        assert isinstance(caught(breaker.call, failing(error)), error)


def in_threads(count, work):
    """Run `work(number)` in so many threads that begin together; what each returned or raised, in order."""
    results: list[Any] = [None] * count
    together = threading.Barrier(count)

    def run(number):
        try:
            together.wait(PATIENCE)
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - handed over
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "hung"
    return results


def in_thread(work):
    """Run the work in a thread of its own; what it returned, or raise what it raised."""
    returned = []
    (raised,) = in_threads(1, lambda _: returned.append(work()))
    if raised is not None:
        raise raised
    return returned[0]


def ended(thread):
    """Wait until a thread has ended, unless it belongs to a pool, which keeps it for later."""
    if not thread.name.startswith("ThreadPoolExecutor"):
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def settled(rounds=20):
    """Let every task that can go on do so."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def in_new_process(program, **environ):
    """Run a program in a fresh interpreter that sees what this one sees; its lines of output."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def frames(first) -> int:
    """How many frames there are from this one outwards."""
    count = 0
    while first is not None:
        count += 1
        first = first.f_back
    return count


def lines_run(fn) -> int:
    """How many lines of Python run when fn is called: the same for any input if it takes the same steps."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # whoever is told of a collection runs lines, too
    sys.settrace(trace)
    try:
        fn()
    finally:
        sys.settrace(before)
        gc.enable()
    return count
