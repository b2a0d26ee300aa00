"""Chancy, with jobs in its event loop and eager polling. The variant is how many jobs run at a time."""

import logging
import time

import queues
from chancy import Chancy, Job, Queue, Worker

log = logging.getLogger("chancy")
log.setLevel(logging.ERROR)
JOB = Job(func="queues.job")  # it finds a function by where it can be imported from


def app():
    return Chancy(queues.database(), log=log)


async def fill(variant, first, count):
    async with app() as chancy:
        if not first:
            await chancy.migrate()
            await chancy.declare(
                Queue("default", concurrency=int(variant), executor=Chancy.Executor.Async, eager_polling=True),
                upsert=True,
            )
        began = time.perf_counter()
        jobs = [JOB.with_kwargs(number=number) for number in range(first, first + count)]
        async for _ in chancy.push_many(jobs):
            pass
        return time.perf_counter() - began


async def work(_):
    async with app() as chancy:
        worker = Worker(chancy)
        worker.send_outgoing_interval = 0.1  # seconds between two writes of what has ended; 1 as it comes
        queues.go()
        async with worker:
            await worker.wait_for_shutdown()


async def ping(_, first, count):
    async with app() as chancy:
        await queues.ping(lambda number: chancy.push(JOB.with_kwargs(number=number)), range(first, first + count))


queues.main("chancy", {"fill": fill, "work": work, "ping": ping})
