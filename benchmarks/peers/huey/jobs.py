"""Huey with SQLite: its consumer with one thread. The variant says whether every write waits for the disk."""

import logging
import sys
import time

import queues
from huey import SqliteHuey

logging.getLogger("huey").setLevel(logging.ERROR)
huey = SqliteHuey(filename=queues.database(), fsync=sys.argv[2] == "fsync")


@huey.task()
def job(number):
    queues.ran(number)


def fill(_, first, count):
    began = time.perf_counter()
    for number in range(first, first + count):
        job(number)
    return time.perf_counter() - began


def work(_):
    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False, check_worker_health=False)
    queues.go()
    consumer.run()


queues.main("huey", {"fill": fill, "work": work})
