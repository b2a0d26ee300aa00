"""
Dagster: a job with an op for each step, executed in this process; its events are in SQLite in a temporary home, what ops put out stays in
memory. `dagster job execute` takes the job from here, too, and then it is in files.
"""

import os
from pathlib import Path

home = Path("home").absolute()
home.mkdir(exist_ok=True)
(home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
os.environ |= {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}

import chains
from dagster import DagsterInstance, in_process_executor, job, op

steps = int(os.environ["BENCH_STEPS"])
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}  # the event log has it all


@op
def begin():
    return chains.begin()


@op
def add(came):
    return chains.add(came["number"])


@job(executor_def=in_process_executor, config=QUIET)
def chain():
    came = begin.alias("s0")()
    for place in range(1, steps):
        came = add.alias(f"s{place}")(came)


if __name__ == "__main__":
    instance, done = DagsterInstance.get(), []

    def run():
        result = chain.execute_in_process(instance=instance)
        done.append(result.run_id)
        return result.output_for_node(f"s{steps - 1}")["number"]

    def recorded():
        return sum(instance.get_run_stats(one).steps_succeeded for one in done)

    chains.time_it("dagster", run, recorded)
