"""
DBOS: a workflow for each job, in a queue, with SQLite or PostgreSQL. The variant is how often it looks at the queue, in seconds.

It has no call for many workflows at once. What is faster: threads side by side with PostgreSQL, a few transactions with SQLite.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import queues
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig

POSTGRES = queues.database().startswith("postgresql:")
ADDRESS = queues.database() if POSTGRES else f"sqlite:///{queues.database()}"
THREADS = 16
CHUNK = 1_000  # jobs in one transaction
JOB = {"queue_name": "bench", "workflow_name": "job"}
config: DBOSConfig = {
    "name": "bench",
    "system_database_url": ADDRESS,
    "run_admin_server": False,
    "enable_otlp": False,
    "log_level": "ERROR",
}


@DBOS.workflow(name="job")
async def job(number):
    queues.ran(number)


def launch(variant):
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=float(variant))


def fill(variant, first, count):
    if not first:
        launch(variant)
        DBOS.destroy()
    client = DBOSClient(system_database_url=ADDRESS)
    began = time.perf_counter()
    (side_by_side if POSTGRES else in_transactions)(client, range(first, first + count))
    took = time.perf_counter() - began
    client.destroy()
    return took


def side_by_side(client, numbers):
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda number: client.enqueue(JOB, number), numbers):
            pass


def in_transactions(client, numbers):
    engine = sa.create_engine(ADDRESS)
    for start in range(0, len(numbers), CHUNK):
        with engine.begin() as connection:
            for number in numbers[start : start + CHUNK]:
                client.enqueue_in_transaction(connection, JOB, number)
    engine.dispose()


def work(variant):
    queues.go()  # it begins to look at its queues when it is launched
    launch(variant)
    threading.Event().wait()


async def ping(_, first, count):
    client = DBOSClient(system_database_url=ADDRESS)
    await queues.ping(lambda number: client.enqueue_async(JOB, number), range(first, first + count))


queues.main("dbos", {"fill": fill, "work": work, "ping": ping})
