"""
Runs over items: stages, pipelines, and what a run came to.

    stages       what users write: stage, Skip, Snooze, Degraded; resources: what stages share
    pipeline     Pipeline; drivers: how sync code drives a run, and signals; home: where runs are kept
    lifecycle    a run from start to end; identity: what must stay the same at a resume, pure; lease: the lease on a run
    plan         what a run is asked to do; intake: reads a source and makes items; keys: the keys of items
    replays      runs over dead letters, which write to the runs that the letters come from
    engine/      runs the items of one pass
    record/      writes the rows of items that have ended
    results      what a run came to; errors: the exceptions that carry it; logs: adds run, item and stage to log records
    view         a running run as a value, for displays
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
