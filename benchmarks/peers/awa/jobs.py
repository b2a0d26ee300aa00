"""Awa, whose engine is written in Rust. The variant is how many jobs run at a time."""

import asyncio
import time
from dataclasses import dataclass

import queues
from awa import AsyncClient

CHUNK = 10_000  # jobs in one call


@dataclass
class Work:
    number: int


async def fill(_, first, count):
    client = AsyncClient(queues.database())
    if not first:
        await client.migrate()
        await client.install_queue_storage(schema="awa")  # the newer of its two engines, which COPY needs
    began = time.perf_counter()
    for start in range(first, first + count, CHUNK):
        numbers = range(start, min(start + CHUNK, first + count))
        await client.enqueue_many_copy([Work(number) for number in numbers])
    return time.perf_counter() - began


async def work(variant):
    client = AsyncClient(queues.database(), max_connections=20)

    @client.task(Work)
    async def job(given):
        queues.ran(given.args.number)

    queues.go()
    await client.start([("default", int(variant))])
    await asyncio.Event().wait()


async def ping(_, first, count):
    client = AsyncClient(queues.database())
    await queues.ping(lambda number: client.insert(Work(number)), range(first, first + count))


queues.main("awa-pg", {"fill": fill, "work": work, "ping": ping})
