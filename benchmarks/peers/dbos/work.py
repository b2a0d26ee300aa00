"""
DBOS: a workflow of three steps for each item, with SQLite or PostgreSQL.

One after the other is faster with SQLite, side by side in threads with PostgreSQL: each has what suits it.
"""

import os
from pathlib import Path

import stages
from dbos import DBOS, DBOSConfig

config: DBOSConfig = {
    "name": "bench",
    "system_database_url": os.environ.get("BENCH_DATABASE") or f"sqlite:///{Path.cwd()}/dbos.sqlite",
    "run_admin_server": False,
    "enable_otlp": False,
    "log_level": "ERROR",
}
DBOS(config=config)

again = DBOS.step(retries_allowed=True, max_attempts=stages.ATTEMPTS)
first, second, third = (again(step) for step in (stages.first, stages.second, stages.third))


@DBOS.workflow()
def journey(item):
    return third(second(first(item)))


def each(items):
    handles = [DBOS.start_workflow(journey, item) for item in range(items)]
    return sum(handle.get_result() for handle in handles)


def loop(items):
    return sum(journey(item) for item in range(items))


DBOS.launch()
try:
    stages.time_it("dbos", {"loop": loop, "each": each}[stages.asked()[0]])
finally:
    DBOS.destroy()
