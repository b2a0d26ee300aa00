"""
Runs over items: stages, pipelines, and what a run came to.

    stages       what users write: stage, Skip, Snooze, Degraded; resources: what stages use together
    pipeline     Pipeline; doors: how sync code works on a run, and signals; home: where runs are kept
    lifecycle    a run from its first line in the store to its last; identity: what makes it itself, pure; lease: who works on it
    plan         what a run is to do; intake: from a source to items with something left to do; keys: what items are called
    replays      from dead letters, and home to their runs
    engine/      the runner of items
    record/      what becomes of an item that has ended
    results      what a run came to; errors: the exceptions that carry it; logs: which item a log record belongs to
    mapping      map and amap: one function over many items, without a store
"""

from __future__ import annotations

from outlast.pipeline.mapping import amap as amap
from outlast.pipeline.mapping import map as map  # noqa: A004 - outlast.map
from outlast.pipeline.pipeline import ArrowStream as ArrowStream
from outlast.pipeline.pipeline import Pipeline as Pipeline
from outlast.pipeline.resources import use as use
from outlast.pipeline.results import Counts as Counts
from outlast.pipeline.results import ItemResult as ItemResult
from outlast.pipeline.results import PartialResult as PartialResult
from outlast.pipeline.results import RunResult as RunResult
from outlast.pipeline.stages import Degraded as Degraded
from outlast.pipeline.stages import Skip as Skip
from outlast.pipeline.stages import Snooze as Snooze
from outlast.pipeline.stages import Stage as Stage
from outlast.pipeline.stages import stage as stage
