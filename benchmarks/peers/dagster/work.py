"""Dagster: dynamic ops, one for each item and stage; or one op with a loop over the items, of which Dagster knows nothing."""

import os
from pathlib import Path

home = Path("home").absolute()
home.mkdir(exist_ok=True)
(home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
os.environ |= {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}

import stages
from dagster import DagsterInstance, DynamicOut, DynamicOutput, RetryPolicy, job, op
from tenacity import retry, stop_after_attempt, wait_exponential_jitter

instance = DagsterInstance.get()
policy = RetryPolicy(max_retries=stages.ATTEMPTS - 1)
steps = (stages.first, stages.second, stages.third)


@op(out=DynamicOut(), config_schema={"items": int})
def source(context):
    for item in range(context.op_config["items"]):
        yield DynamicOutput(item, mapping_key=str(item))


first, second, third = (op(retry_policy=policy)(step) for step in steps)


@op
def total(values):
    return sum(values)


@job
def dynamic():
    total(source().map(first).map(second).map(third).collect())


def loop(name, steps):
    """A job of one op, which takes every item through `steps` by itself."""

    @op(name=f"{name}_op", retry_policy=policy, config_schema={"items": int})
    def work(context):
        found = 0
        for item in range(context.op_config["items"]):
            value = item
            for step in steps:
                value = step(value)
            found += value
        return found

    @job(name=name)
    def looped():
        work()

    return looped, f"{name}_op"


again = retry(stop=stop_after_attempt(stages.ATTEMPTS), wait=wait_exponential_jitter(initial=1, max=60), reraise=True)
JOBS = {
    "dynamic": (dynamic, "source", "total"),
    "loop": (*loop("loop", steps), "loop_op"),
    "retried": (*loop("retried", [again(step) for step in steps]), "retried_op"),
}
chosen, configured, last = JOBS[stages.asked()[0]]


def run(items):
    config = {
        "ops": {configured: {"config": {"items": items}}},
        "loggers": {"console": {"config": {"log_level": "ERROR"}}},  # the event log has it all
    }
    return chosen.execute_in_process(run_config=config, instance=instance).output_for_node(last)


stages.time_it("dagster", run)
