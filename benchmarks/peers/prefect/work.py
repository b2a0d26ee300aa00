"""
Prefect: a flow that calls three tasks for each item; its own server beside it, with SQLite in a temporary home.

The tasks are called one after the other, which takes a third less time than mapping them over the items.
"""

import os
from pathlib import Path

os.environ |= {
    "PREFECT_HOME": str(Path("home").absolute()),
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "50",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_CLI_PROMPT": "false",
}

import stages
from prefect import flow, task

options = {"retries": stages.ATTEMPTS - 1, "retry_delay_seconds": 1}
first, second, third = (task(**options)(step) for step in (stages.first, stages.second, stages.third))


@flow
def looped(items):
    return sum(third(second(first(item))) for item in range(items))


stages.time_it("prefect", looped)
