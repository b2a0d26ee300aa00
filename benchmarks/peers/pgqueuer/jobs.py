"""PgQueuer, with asyncpg and uvloop. The variant is the size of its batches."""

import asyncio
import logging
import time

import asyncpg
import queues
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
logging.getLogger("pgqueuer").setLevel(logging.ERROR)
CHUNK = 10_000  # jobs in one call


async def connect():
    return Queries(AsyncpgPoolDriver(await asyncpg.create_pool(queues.database(), min_size=4, max_size=8)))


async def fill(_, first, count):
    queries = await connect()
    if not first:
        await queries.install()
    payloads = [b"%d" % number for number in range(first, first + count)]
    began = time.perf_counter()
    for start in range(0, count, CHUNK):
        part = payloads[start : start + CHUNK]
        await queries.enqueue(["job"] * len(part), part, [0] * len(part))
    return time.perf_counter() - began


async def work(variant):
    manager = QueueManager(await connect())

    @manager.entrypoint("job")
    async def job(given):
        queues.ran(int(given.payload))

    queues.go()
    await manager.run(batch_size=int(variant))


async def ping(_, first, count):
    queries = await connect()
    await queues.ping(lambda number: queries.enqueue("job", b"%d" % number), range(first, first + count))


queues.main("pgqueuer", {"fill": fill, "work": work, "ping": ping})
