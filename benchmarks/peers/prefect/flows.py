"""
Prefect: a flow that calls a task for each step; its own server beside it, with SQLite in a temporary home. Results stay in memory, which is
its default; nothing is looked for in its cache, and nothing is logged.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

home = Path("home").absolute()
os.environ |= {
    "PREFECT_HOME": str(home),
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "50",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
}

import chains
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

case, steps, _ = chains.asked()
begin, add = (task(cache_policy=NO_CACHE)(step) for step in (chains.begin, chains.add))


@flow
def chain():
    came = begin()
    for _ in range(steps - 1):
        came = add(came["number"])
    return came["number"]


def recorded():
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        return connection.execute("select count(*) from task_run where state_type = 'COMPLETED'").fetchone()[0]


if case == "once":
    chain()
else:
    chains.time_it("prefect", chain, recorded)
