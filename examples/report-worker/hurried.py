"""
The same worker in a hurry: the waits of the preset `jobs` are divided by ``HURRY``, in this process and for everything that it
decides. A demonstration cannot wait for ten and a half minutes; attempts, jitter and all the rest are as they are. Each wait that is
decided is a line in the file ``WAITS``, for the audit: what is on record says when an attempt was due, which is later by as long as writing took.

    HURRY=150 WAITS=waits.jsonl outlast worker hurried.py
"""

from __future__ import annotations

import json
import os

import outlast.presets
from outlast.observe import subscribe
from outlast.observe.events import JobRequeued

outlast.presets.jobs = outlast.presets.jobs.replace(
    delays=tuple(delay / float(os.environ["HURRY"]) for delay in outlast.presets.jobs.delays or ())
)

waits = os.open(os.environ["WAITS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def write_down(event: object) -> None:
    if isinstance(event, JobRequeued):
        os.write(waits, json.dumps([event.job_id, event.attempt, event.delay]).encode() + b"\n")


subscribe(write_down)

from report_jobs import app  # noqa: E402, F401 - the preset comes first
