"""litequeue: a queue of messages, and the loop that its documentation shows."""

import time

import queues
from litequeue import LiteQueue

queue = LiteQueue(queues.database())


def fill(_, first, count):
    began = time.perf_counter()
    with queue.transaction():
        for number in range(first, first + count):
            queue.put(str(number))
    return time.perf_counter() - began


def work(_):
    queues.go()
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.01)
            continue
        queues.ran(int(message.data))
        queue.done(message.message_id)


queues.main("litequeue", {"fill": fill, "work": work})
