"""SAQ, with its queue in PostgreSQL. The variant is how many jobs run at a time."""

import asyncio
import logging
import time

import queues
from saq import Queue, Worker

logging.getLogger("saq").setLevel(logging.ERROR)
WIDTH = 20  # calls at a time: there is none for many jobs


async def job(_, *, number):
    queues.ran(number)


async def fill(_, first, count):
    queue = Queue.from_url(queues.database())
    await queue.connect()
    numbers = iter(range(first, first + count))

    async def some():
        for number in numbers:
            await queue.enqueue("job", number=number)

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(WIDTH)))
    took = time.perf_counter() - began
    await queue.disconnect()
    return took


async def work(variant):
    queue = Queue.from_url(queues.database())
    await queue.connect()
    worker = Worker(queue, functions=[("job", job)], concurrency=int(variant))
    queues.go()
    await worker.start()


async def ping(_, first, count):
    queue = Queue.from_url(queues.database())
    await queue.connect()
    await queues.ping(lambda number: queue.enqueue("job", number=number), range(first, first + count))
    await queue.disconnect()


queues.main("saq", {"fill": fill, "work": work, "ping": ping})
