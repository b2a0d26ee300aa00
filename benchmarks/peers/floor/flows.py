"""
The floor: each step in a thread of its own, a row committed before it and another one, with what it has put out, after it. The settings of
SQLite are those of our store: `flushed` waits for the disk at each commit, `plain` does not.
"""

import json
import sqlite3
import threading
import time

import chains

case, steps, _ = chains.asked()
connection = sqlite3.connect("bench.db", isolation_level=None, check_same_thread=False)
connection.execute("pragma journal_mode = wal")
connection.execute(f"pragma synchronous = {'full' if case == 'flushed' else 'normal'}")
connection.execute("pragma cache_size = -4096")
connection.execute(
    "create table rows (run integer, step text, state text, outputs text, at real, primary key (run, step, state))"
)
numbers = chains.itertools.count()


def written(run, step, state, outputs):
    connection.execute("begin immediate")
    connection.execute("insert into rows values (?, ?, ?, ?, ?)", (run, step, state, outputs, time.time()))
    connection.execute("commit")


def work(run, place, outputs):
    step = f"s{place}"
    written(run, step, "running", None)
    came = chains.add(json.loads(outputs[-1])["number"]) if place else chains.begin()
    text = json.dumps(came)
    written(run, step, "succeeded", text)
    outputs.append(text)


def run():
    number, outputs = next(numbers), []
    for place in range(steps):
        thread = threading.Thread(target=work, args=(number, place, outputs))
        thread.start()
        thread.join()
    return json.loads(outputs[-1])["number"]


def recorded():
    return connection.execute("select count(*) from rows where state = 'succeeded'").fetchone()[0]


chains.time_it(None, run, recorded)
