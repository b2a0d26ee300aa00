"""Many threads on one store, and what a forked child may touch."""

from __future__ import annotations

import subprocess
import sys
import threading

from outlast.store.records import Changes, EventRow
from stores import STAGES, attempt, counts, item, letter


def test_sixteen_threads_read_and_write_one_store(store):
    """Eight write for a shard each, eight read meanwhile: nothing is lost, and no reader ever sees half a batch (C-28)."""
    run = store.open_run("reviews", "today", STAGES)
    failed: list[BaseException] = []
    written = threading.Event()
    begun = threading.Semaphore(
        0
    )  # a reader for each write that begins: those who read without end would slow the writers down

    def write(shard):
        lease = store.take_run(run.number, shard, f"writer-{shard}", 600)
        for number in range(10):
            first = shard * 1000 + number * 10
            rows = [item(seq, "failed" if seq % 5 == 0 else "succeeded") for seq in range(first, first + 10)]
            dead = letter(first + 1, run=run.id)
            event = EventRow(f"{first:032x}", "batch", 1, run.id)
            begun.release()
            store.write(
                lease,
                Changes(
                    items=rows,
                    attempts=[attempt(row.seq) for row in rows],
                    dead_letters=[dead],
                    read=10 * number + 10,
                ),
            )
            begun.release()
            store.add_events([event], lease)
            lease, _ = store.beat(lease)
        store.drop_lease(lease)

    def read():
        while begun.acquire() and not written.is_set():
            found = store.run(run.id).counts
            assert found.succeeded % 8 == found.failed % 2 == found.total % 10 == 0
            rows = store.items(run.number, limit=1000)
            assert len(rows) % 10 == 0
            store.letters(run=run.id)
            store.groups()
            store.finished(run.number, 0, 100)

    def guarded(work, *arguments):
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a failure
            failed.append(error)

    writers = [threading.Thread(target=guarded, args=(write, shard)) for shard in range(8)]
    readers = [threading.Thread(target=guarded, args=(read,)) for _ in range(8)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    begun.release(len(readers))
    for thread in readers:
        thread.join()
    assert failed == []
    assert counts(store, run) == ((640, 0, 0, 160, 0),) * 2
    assert len(store.events(limit=1000)) == 80
    assert sum(group.count for group in store.groups(run=run.id)) == 80


CHILD = """
import os, sys, threading
from outlast.store import open_store
from outlast.store.records import Changes, ItemRow

store = open_store(sys.argv[1])
run = store.open_run("reviews", "today", ())
lease = store.take_run(run.number, 0, "parent", 600)

def write(seq):
    store.write(lease, Changes(items=[ItemRow(seq, str(seq), "succeeded", 0, 1, False, None, (), {}, None, 1, 1)]))

write(0)
parents = {id(connection) for pool in (store._database._many, store._database._batches) for connection in pool._idle}
assert len(parents) == 2

# A thread is in the middle of a batch when the process forks: the child must not wait for it, and the parent's batch must not be hurt.
inside, go_on = threading.Event(), threading.Event()
def hold():
    with store._database.writing(batches=True) as tx:
        tx.row("select 1")
        inside.set()
        go_on.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    status = 1
    try:
        assert store.run(run.id).counts.succeeded == 1
        pools = (store._database._many, store._database._batches)
        assert parents.isdisjoint(id(connection) for pool in pools for connection in pool._idle)
        if sys.argv[1].startswith("postgresql"):
            write(1)  # on SQLite the parent's open batch has the file
        store.close()
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go_on.set()
thread.join()
write(2)
assert store.beat(lease)[0].token == lease.token
print(sorted(row.seq for row in store.items(run.number)))
"""


def test_a_forked_child_uses_none_of_its_parents_connections(address, store):
    """It connects by itself, does not wait for its parent's threads, and closing its store hurts nobody."""
    store.close()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", CHILD, address],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    expected = "[0, 1, 2]" if address.startswith("postgresql") else "[0, 2]"
    assert done.stdout.strip() == expected, done.stderr


def test_a_store_that_nobody_closed_leaves_no_warning(address):
    """A program that ends without a word closes its connections all the same."""
    code = (
        "import sys\nfrom outlast.store import open_store\n"
        "store = open_store(sys.argv[1])\nstore.open_run('reviews', 'today', ())\nother = open_store(sys.argv[1])\n"
        "del other\nimport gc; gc.collect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code, address], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_come_and_go_leave_no_connections_behind(store):
    """A connection belongs to the store, not to the thread that used it first."""
    run = store.open_run("reviews", "today", STAGES)
    for _ in range(50):
        thread = threading.Thread(target=store.run, args=(run.id,))
        thread.start()
        thread.join()
    assert len(store._database._many._idle) <= 8
