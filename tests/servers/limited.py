"""
Services that admit only so much: a token bucket and a fixed window, as models, and either of them behind a real HTTP server on loopback.

    with LimitedServer(Bucket(200, burst=20), latency=0.02) as server:
        urllib.request.urlopen(server.url)
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

from outlast.kernel.clock import here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Limiter(Protocol):
    """Asked once for each request: None if it is admitted, else the seconds until it is worth asking again."""

    def ask(self, now: float) -> float | None: ...


class Bucket:
    """Fills with `rate` a second, holds at most `burst`."""

    def __init__(self, rate: float, *, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, -math.inf

    def ask(self, now: float) -> float | None:
        """Take one."""
        if self._at != -math.inf:
            self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level >= 1:
            self._level -= 1
            return None
        return (1 - self._level) / self._rate


class Window:
    """Admits `count` in each `per` seconds, counted from the first request on."""

    def __init__(self, count: int, *, per: float) -> None:
        self._count, self._per = count, per
        self._began: float | None = None
        self._window = self._used = 0

    def ask(self, now: float) -> float | None:
        """Take one."""
        if self._began is None:
            self._began = now
        window = int((now - self._began) // self._per)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used < self._count:
            self._used += 1
            return None
        return self._began + (window + 1) * self._per - now


class Refused(Exception):
    """A 429 as HTTP clients raise it."""

    def __init__(self, after: float) -> None:
        super().__init__(429)
        self.status_code = 429
        self.headers = {"Retry-After": f"{after:g}"}


class Service:
    """A limiter in virtual time: what is admitted takes `latency` ± 30 %, what is refused comes back after 50 ms."""

    def __init__(self, limiter: Limiter, *, whole_seconds: bool, seed: int, latency: float = 0.8) -> None:
        self._limiter = limiter
        self._whole_seconds = whole_seconds
        self._latency = latency
        self._random = random.Random(seed)
        self.refused = 0

    async def __call__(self) -> None:
        """One request."""
        clock = here.get().clock
        wait = self._limiter.ask(clock.monotonic())
        if wait is not None:
            self.refused += 1
            await clock.asleep(0.05)
            raise Refused(math.ceil(wait) if self._whole_seconds else wait)
        await clock.asleep(self._latency * self._random.uniform(0.7, 1.3))


async def many(call: Callable[[], Awaitable[object]], count: int, width: int) -> tuple[int, float]:
    """So many calls, so many at a time: how many failed, and how long all took."""
    clock = here.get().clock
    began, failed, todo = clock.monotonic(), 0, iter(range(count))

    async def worker() -> None:
        nonlocal failed
        for _ in todo:
            try:
                await call()
            except Exception:  # noqa: BLE001 - counted
                failed += 1

    await asyncio.gather(*(worker() for _ in range(width)))
    return failed, clock.monotonic() - began


class LimitedServer:
    """Answers every request with 200, or with 429 and Retry-After; from a thread of its own between ``with`` and its end."""

    def __init__(self, limiter: Limiter, *, latency: float) -> None:
        self._limiter = limiter
        self._latency = latency
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="limited")
        self.admitted = self.refused = 0
        self.url = ""

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._ready.set()
        async with server:
            await self._over.wait()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                wait = self._limiter.ask(time.monotonic())
                if wait is None:
                    self.admitted += 1
                    await asyncio.sleep(self._latency)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                else:
                    self.refused += 1
                    head = f"HTTP/1.1 429 Too Many Requests\r\nRetry-After: {wait:.3f}\r\nContent-Length: 0\r\n\r\n"
                    writer.write(head.encode())
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
