"""
Understanding a run: what it came to, what went wrong, where the time and the money went, and why one item took the way
it took.

    outlast.report.of(pipeline.run(rows)).save("report.html")
    outlast.report.read(app, "2026-11-15").errors
    outlast.report.flow(app, "2026-11-15").steps
    outlast.report.story(app, "2026-11-15", "order-4711").lines()

    views      what is asked of a store, and its JSON: runs, items, dead letters, events, breakers; jobs: those
    model      a report as values: the JSON of ``outlast runs report --json``
    gather     from what the store counted to a report
    flows      a run of a flow: its steps, what was undone, what to do next; flowpage: its page
    stories    one item's way in sentences
    page       the page; charts: its pictures; style: how it looks
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from outlast.pipeline import RunResult
    from outlast.report import model as model
    from outlast.report.flows import FlowReport as FlowReport
    from outlast.report.model import Report as Report
    from outlast.report.stories import Story as Story
    from outlast.store import Store
    from outlast.store.records import RunRecord

    class Keeper(Protocol):
        """What has a store: an App."""

        @property
        def store(self) -> Store: ...


def __getattr__(name: str) -> object:
    """Reports of runs are loaded when they are asked for: commands about jobs and dead letters come here, too."""
    from importlib import import_module

    if name == "model":
        return import_module("outlast.report.model")
    rooms = {"Report": "model", "Story": "stories", "FlowReport": "flows"}
    if name in rooms:
        return getattr(import_module(f"outlast.report.{rooms[name]}"), name)
    raise AttributeError(f"module 'outlast.report' has no attribute {name!r}")


def of(result: RunResult[Any]) -> Report:
    """The report of a run that has just ended, from its result."""
    return read(_known(result), result.id)


def story_of(result: RunResult[Any], item: str | int) -> Story:
    """One item's way through a run that has just ended, by its key or its position in the source."""
    return story(_known(result), result.id, item)


def read(where: Keeper | Store, run: str, *, pipeline: str | None = None) -> Report:
    """The report of a run over items on record, by its id or its key; `where` is an App or a store."""
    from outlast.report.gather import gathered

    store = _store(where)
    found = _found(store, run, pipeline)
    if found.kind == "flow":
        raise ConfigurationError(
            f"expected a run over items, got: {run!r}, which is a run of a flow. Use outlast.report.flow(app, run)."
        )
    return gathered(store, found)


def flow(where: Keeper | Store, run: str, *, pipeline: str | None = None) -> FlowReport:
    """The report of a flow's run on record, by its id or its key; `where` is an App or a store."""
    from outlast.report.flows import flow_report

    store = _store(where)
    found = _found(store, run, pipeline)
    if found.kind != "flow":
        raise ConfigurationError(
            f"expected a run of a flow, got: {run!r}, which is a run over items. Use outlast.report.read(app, run)."
        )
    return flow_report(store, found)


def story(where: Keeper | Store, run: str, item: str | int, *, pipeline: str | None = None) -> Story:
    """One item's way through a run, by its key or its position in the source."""
    from outlast.report.stories import told

    store = _store(where)
    return told(store, _found(store, run, pipeline), item)


def _known(result: RunResult[Any]) -> Store:
    if result._store is None:  # noqa: SLF001 - rooms of one package
        message = "expected a result that knows its store, got: one that came from another process. Use outlast.report.read(app, run)."
        raise ConfigurationError(message)
    return result._store()  # noqa: SLF001 - as above


def _store(where: Any) -> Store:
    store: Store = getattr(where, "store", where)
    return store


def _found(store: Store, wanted: str, pipeline: str | None) -> RunRecord:
    matches = store.find_runs(wanted, pipeline)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise ConfigurationError(f"expected the id or the key of a run, got: {wanted!r}.")
    owners = sorted(record.pipeline for record in matches)
    way = "name the pipeline" if len({*owners}) == len(owners) else "name one by its id"
    raise ConfigurationError(f"expected one run, but {', '.join(owners)} have one called {wanted!r}: {way}.")
