"""A worker that stands still in a transaction of finish_in which it has opened under another role of the database."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys

import pytest

import outlast
from forked import Forked
from labor import Beside, outcomes, wait_until
from outlast.store import open_store
from standing import stand_still

WORKER, SHOP = "outlast_worker", "outlast_shop"

PROGRAM = """
import asyncio, sys, threading
from pathlib import Path
import psycopg
import outlast
from outlast.jobs.doors import made, told
from outlast.work.patience import Terms, terms


def declare(app, shop=None):
    now = outlast.RetryPolicy(max_attempts=5, initial_delay=0, jitter=0)

    @app.job(retry=now)
    async def beside() -> str:
        if shop is not None:
            await asyncio.Event().wait()
        return "done"

    @app.job(retry=now)
    def pay() -> str:
        if shop is not None:
            with psycopg.connect(shop) as transaction:
                outlast.current().finish_in(transaction, result="paid")
                folder = Path(__file__).parent
                (folder / "in the transaction").touch()
                while not (folder / "go").exists():
                    threading.Event().wait(0.005)
        return "paid by another"

    return beside, pay


if __name__ == "__main__":
    store, name, shop = sys.argv[1:]
    terms.set(Terms(ttl=2.0))
    app = outlast.App(name, store=store)
    declare(app, shop)
    result, _ = told(made(app, (), 4, until_idle=False))
    print(result.succeeded, result.lost, result.cut_off)
"""


@pytest.fixture
def roles(postgres):
    """The addresses of the store for workers, and of the shop; none of the two roles may end what the other one does."""
    with open_store(postgres.dsn):
        pass
    for role in (WORKER, SHOP):
        if not postgres.execute(f"select 1 from pg_roles where rolname = '{role}'"):
            postgres.execute(f"create role {role} login")
        postgres.execute(
            f"grant all on all tables in schema public to {role}",
            f"grant all on all sequences in schema public to {role}",
        )
    return tuple(postgres.dsn.replace("postgres:@", f"{role}:@") for role in (WORKER, SHOP))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_worker_that_stands_still_in_such_a_transaction_holds_up_no_other_job(roles, on_terms, tmp_path, then):
    """
    G6: its other job is done elsewhere meanwhile. The one in the transaction is nobody else's until that ends: it has
    succeeded if it was committed, which its worker counts as that, and comes back if its process was killed.
    """
    on_terms(ttl=2.0)
    (tmp_path / "program.py").write_text(PROGRAM)
    store, shop = roles
    app = outlast.App(f"tests-{tmp_path.name}-{os.getpid()}", store=store)
    declared = runpy.run_path(str(tmp_path / "program.py"))["declare"](app)
    other, pay = (job.enqueue() for job in declared)
    command = [sys.executable, str(tmp_path / "program.py"), store, app.name, shop]
    process = Forked(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_until((tmp_path / "in the transaction").exists, "it is in the transaction")
        stand_still(process.pid)
        (tmp_path / "go").touch()
        assert (other.status, pay.status) == ("processing", "processing")
        with Beside(app):
            wait_until(lambda: other.status == "succeeded", "its other job is done elsewhere")
            assert (pay.status, outcomes(pay), pay.crashes) == ("processing", [], 0)
            os.kill(process.pid, then)
            wait_until(lambda: pay.status == "succeeded", "the job in the transaction has ended")
            if then == signal.SIGCONT:
                process.terminate()
            said, _ = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    killed = then == signal.SIGKILL
    assert said.split() == ([] if killed else ["1", "1", "0"])
    assert outcomes(other) == ["crashed", "succeeded"]
    assert outcomes(pay) == (["crashed", "succeeded"] if killed else ["succeeded"])
    assert (pay.result(), pay.crashes) == (("paid by another", 1) if killed else ("paid", 0))
    app.store.close()
