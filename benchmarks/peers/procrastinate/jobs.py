"""Procrastinate, with psycopg. The variant is how many jobs run at a time."""

import logging
import time

import procrastinate
import queues

logging.getLogger("procrastinate").setLevel(logging.ERROR)
CHUNK = 1_000  # jobs in one call
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=queues.database(), min_size=4, max_size=20))


@app.task(name="job")
async def job(number):
    queues.ran(number)


async def fill(_, first, count):
    async with app.open_async():
        if not first:
            await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for start in range(first, first + count, CHUNK):
            numbers = range(start, min(start + CHUNK, first + count))
            await job.batch_defer_async(*({"number": number} for number in numbers))
        return time.perf_counter() - began


async def work(variant):
    async with app.open_async():
        queues.go()
        await app.run_worker_async(concurrency=int(variant))


async def ping(_, first, count):
    async with app.open_async():
        await queues.ping(lambda number: job.defer_async(number=number), range(first, first + count))


queues.main("procrastinate", {"fill": fill, "work": work, "ping": ping})
