"""
Jobs of Outlast's own: every app has them, and every worker does them, without anybody having declared them.

No job of a user may be called as they are. A worker serves ``outlast.flow``: the jobs of all flows, whose kinds are ``flow:``
and the flow's name. Each is made by a module further up, which is loaded when the job is needed; making it must load nothing
heavy. A worker that lacks the packages of one leaves its jobs to others.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.store.records import FLOW, OF_FLOW, served_kind

if TYPE_CHECKING:
    from outlast.jobs.job import Job

RESERVED = ("outlast.", OF_FLOW)  # how their kinds begin


class _Own(NamedTuple):
    """Where the function `made` is that makes the job of an app, the packages that it needs, and the extra they come with."""

    module: str
    packages: tuple[str, ...]
    extra: str


_OWN = {FLOW: _Own("outlast.flow.enqueued", ("pydantic", "yaml"), "flows")}


def own_jobs(home: Any) -> dict[str, Job[..., Any]]:
    """Those that this program can do, by kind."""
    return {kind: own_job(home, kind) for kind, own in _OWN.items() if all(map(find_spec, own.packages))}


def own_job(home: Any, kind: str) -> Job[..., Any]:
    """The one of this kind, as this app has it."""
    home = getattr(home, "home", home)  # not the one that a test has put in its place, which goes with the test
    known: dict[str, Job[..., Any]] = home.own_kinds
    if kind not in known:
        known.setdefault(kind, import_module(_OWN[served_kind(kind)].module).made(home, kind))
    return known[kind]


def job_of(home: Any, kind: str) -> Job[..., Any] | None:
    """The job of this kind: one of the app, or one of ours; None if there is none."""
    found: Job[..., Any] | None = home.kinds.get(kind)
    return own_job(home, kind) if found is None and served_kind(kind) in _OWN else found


def ends_itself(kind: str) -> bool:
    """Whether it is one of ours: these put things in order before they have failed, whoever sweeps up after a crash."""
    return served_kind(kind) in _OWN


def way_to(kind: str) -> str | None:
    """What a worker needs that does not know this kind; None of a user's own."""
    own = _OWN.get(served_kind(kind))
    return None if own is None else f"pip install 'outlast[{own.extra}]' where a worker runs."
