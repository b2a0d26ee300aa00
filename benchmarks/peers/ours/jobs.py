"""Outlast: a worker process, many jobs at once, single jobs, steps. The variant is how many jobs run at a time, or "blocking"."""

import time

import queues

import outlast

app = outlast.App("bench", store=queues.database())


@app.job
async def job(number: int) -> None:
    queues.ran(number)


@app.job
async def steps(count: int) -> None:
    """So many steps, one after the other, each kept when it returns."""
    step = outlast.current().step
    await step("warm", nothing, 0)
    began = time.perf_counter()
    for number in range(count):
        await step(f"step {number}", nothing, number)
    queues.board.asked[0] = round((time.perf_counter() - began) * 1e9)
    queues.ran(0)


async def nothing(number: int) -> int:
    return number


@app.job
def blocking_steps(count: int) -> None:
    """As `steps`, in a thread."""
    step = outlast.current().step
    step("warm", blocking_nothing, 0)
    began = time.perf_counter()
    for number in range(count):
        step(f"step {number}", blocking_nothing, number)
    queues.board.asked[0] = round((time.perf_counter() - began) * 1e9)
    queues.ran(0)


def blocking_nothing(number: int) -> int:
    return number


def fill(_: str, first: int, count: int) -> float:
    app.jobs.stats()  # the store is open, and its tables are there
    began = time.perf_counter()
    new = job.enqueue_many({"number": number} for number in range(first, first + count))
    took = time.perf_counter() - began
    assert new == count, f"expected {count} new jobs, got: {new}"
    return took


def work(variant: str) -> None:
    app.jobs.stats()
    queues.go()
    app.work(concurrency=int(variant))


async def ping(_: str, first: int, count: int) -> None:
    app.jobs.stats()
    await queues.ping(job.enqueue, range(first, first + count))


def step(variant: str, count: int) -> float:
    (blocking_steps if variant == "blocking" else steps).enqueue(count)
    assert app.work(until_idle=True).succeeded == 1
    return queues.board.asked[0] / 1e9


queues.main("outlast", {"fill": fill, "work": work, "ping": ping, "step": step})
