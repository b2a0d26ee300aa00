"""
The same worker in a hurry: the waits of the preset `jobs` are divided by ``HURRY``, in this process and for everything that it
decides. A demonstration cannot wait for ten and a half minutes; attempts, jitter and all the rest are as they are.

    HURRY=150 outlast worker hurried.py
"""

from __future__ import annotations

import os

import outlast.presets

outlast.presets.jobs = outlast.presets.jobs.replace(
    delays=tuple(delay / float(os.environ["HURRY"]) for delay in outlast.presets.jobs.delays or ())
)

from report_jobs import app  # noqa: E402, F401 - the preset comes first
