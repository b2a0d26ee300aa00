"""Outlast, as it is in the environment: a declared pipeline, compiled once, run with a new key each time."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import chains

import outlast

case, steps, _ = chains.asked()
place = os.environ.get("BENCH_DATABASE") or "bench.db"
app = outlast.App("bench", store=place)
flow = outlast.Flow.load(chains.project(Path.cwd(), steps, guarded=case == "guarded"))
DONE = """
select count(*) from outlast_flow_steps f
join outlast_step_attempts a on a.run = f.run and a.step = f.step and a.deed = f.deed and a.outcome = 'succeeded'
join outlast_steps o on o.kind = 'run' and o.owner = f.run and o.name = f.step
where f.state = 'succeeded'
"""


def run():
    result = flow.run(run_key=f"run {next(numbers)}", app=app)
    return result[f"s{steps - 1}"].outputs["number"]


def recorded():
    """Steps that have succeeded, with their attempt and what they have put out."""
    if place.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(place) as connection:
            return connection.execute(DONE).fetchone()[0]
    with closing(sqlite3.connect(place)) as connection:
        return connection.execute(DONE).fetchone()[0]


numbers = chains.itertools.count()
chains.time_it("outlast", run, recorded)
