"""
Runs over items: stages, pipelines, and what a run came to.

    declare     what users write: stage, use, Skip, Snooze, Degraded
    pipelines   Pipeline; doors: how sync code works on a run, and signals; home: where runs are kept
    conduct     a run from its first line in the store to its last; identity: what makes it itself, pure
    runner      the driver; traffic: slots, tasks, threads (crew), waits; attempts: one at a time; journey: one item's way, pure (stagecalls);
                batches: who goes through one call together, and what it means for each, pure
    intake      from a source to items with something left to do; keys; replays: from dead letters, and home to their runs
    ledger      what becomes of an item that has ended; journal: batches to the store; accounting: the books, pure
    rowerrors   what is wrong with an item, error by error; errorfile: the same for a spreadsheet
    tenure      the lease on a run; resources: what stages share; logs: which item a log record belongs to
    mapping     map and amap: one function over many items, without a store
"""

from __future__ import annotations

from outlast.pipeline.declare import Degraded as Degraded
from outlast.pipeline.declare import Skip as Skip
from outlast.pipeline.declare import Snooze as Snooze
from outlast.pipeline.declare import Stage as Stage
from outlast.pipeline.declare import stage as stage
from outlast.pipeline.mapping import amap as amap
from outlast.pipeline.mapping import map as map  # noqa: A004 - outlast.map
from outlast.pipeline.pipelines import ArrowStream as ArrowStream
from outlast.pipeline.pipelines import Pipeline as Pipeline
from outlast.pipeline.resources import use as use
from outlast.pipeline.results import Counts as Counts
from outlast.pipeline.results import ItemResult as ItemResult
from outlast.pipeline.results import PartialResult as PartialResult
from outlast.pipeline.results import RunResult as RunResult
