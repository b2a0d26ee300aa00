"""Ray on two processors: a task for each item and stage, or a dataset that is mapped three times."""

import os
from pathlib import Path

os.environ |= {
    "HOME": str(Path.cwd()),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",  # nobody there, should it report all the same
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only, and no look at which address leads outside
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
# Without this file in the home it asks the metadata services of three clouds where it is, reports or no reports.
Path("~/ray_bootstrap_config.yaml").expanduser().write_text("provider:\n  type: local\n")

import ray
import stages


def tasks(items):
    again = ray.remote(max_retries=stages.ATTEMPTS - 1, retry_exceptions=True)
    first, second, third = (again(step) for step in (stages.first, stages.second, stages.third))
    return sum(ray.get([third.remote(second.remote(first.remote(item))) for item in range(items)]))


def data(items):
    def row(step):
        return lambda row: {"id": step(row["id"])}

    dataset = ray.data.range(items)
    for step in (stages.first, stages.second, stages.third):
        dataset = dataset.map(row(step))
    return sum(row["id"] for row in dataset.iter_rows())


case = stages.asked()[0]
if case == "data":
    import ray.data

ray.init(
    num_cpus=2,
    include_dashboard=False,
    object_store_memory=200 * 1024 * 1024,
    _temp_dir=str(Path("ray").absolute()),
    _node_ip_address="127.0.0.1",
    logging_level="ERROR",
    log_to_driver=False,
)
if case == "data":
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
try:
    stages.time_it("ray", {"tasks": tasks, "data": data}[case])
finally:
    ray.shutdown()
