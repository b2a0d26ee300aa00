"""
The store that a command works with, and what is found in it by the little a person types.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.cli.output import refuse
from outlast.deadletters import DeadLetters
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import mask
from outlast.report.gather import as_told
from outlast.store import EMBEDDED, StoreError, open_store
from outlast.store.codec import Codec
from outlast.work.leases import certainly_dead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outlast.store import Store
    from outlast.store.records import RunRecord, RunStatus


@contextmanager
def opened(url: str | None, app: str | None = None, *, make: bool = False) -> Iterator[Store]:
    """
    The store at this address. Looking into one that is not there makes none, unless told to.

    Without a name, the app is the only one that has anything there. One that has nothing there is a mistake: what is found under it
    would look as if nothing had happened.
    """
    address = url or os.environ.get("OUTLAST_STORE") or EMBEDDED
    if not make:
        present(address)
    with open_store(address, app=app or "default") as store:
        try:
            if app is None:
                store.app = _only_app(store)
            elif not make and not store.has_app(app) and (known := store.apps()):
                refuse(
                    f"expected --app to be one that has something in this store, got: {app!r}.{nearest(app, known)} "
                    f"Those there are: {', '.join(known)}."
                )
            yield store
        except ConfigurationError:
            raise
        except (ValueError, TypeError, OverflowError, KeyError, IndexError) as broken:
            # A row that no program of ours writes: what is asked of the store here is what it was asked for a thousand times.
            message = f"the store at {mask(address)} holds what cannot be read ({type(broken).__name__}): it is damaged. Restore it from a backup."
            raise StoreError(message) from None


def present(address: str) -> None:
    """Refuse an address where no store is, as far as that can be seen without making one."""
    path = _file(address)
    if path is not None and not path.is_file():
        refuse(
            f"There is no store at {mask(address)}: nothing has run here yet.",
            "A run makes one: outlast run app.py:reviews --input in.jsonl. Another one: --store or OUTLAST_STORE.",
        )


def _file(address: str) -> Path | None:
    scheme, mark, rest = address.partition("://")
    if mark:
        return Path(rest[1:]) if scheme == "sqlite" and rest.startswith("/") else None
    return Path(address)


def _only_app(store: Store) -> str:
    names = store.apps()
    if len(names) > 1:
        refuse(f"expected --app: this store has {', '.join(names)}.")
    return names[0] if names else "default"


def stored_at(kept: Store, store: str | None) -> tuple[str, ...]:
    """What a command needs to find the store, without a password, and the app in it."""
    return (*(("--store", mask(store)) if store else ()), *kept.app_option())


def found_run(store: Store, wanted: str, pipeline: str | None = None) -> RunRecord:
    """The run of this id, of the beginning of one, or of this key, as people are told of it."""
    matches = store.find_runs(wanted, pipeline)
    if len(matches) == 1:
        return as_told(store, matches[0])
    if not matches:
        message = f"expected the id or the key of a run, got: {wanted!r}. Those there are: outlast runs list"
        raise ConfigurationError(message)
    listed = ", ".join(f"{record.id[:12]} ({record.pipeline})" for record in matches[:5])
    message = f"expected one run, but {len(matches)} are called {wanted!r}: {listed}. Name one by its id."
    raise ConfigurationError(message)


def told_runs(
    store: Store, pipeline: str | None = None, status: RunStatus | None = None, *, limit: int
) -> list[RunRecord]:
    """The newest runs, as people are told of them: one that is on record as running and that nobody runs is among the interrupted."""
    if status not in {"running", "interrupted"}:
        return [as_told(store, run) for run in store.runs(pipeline, status, limit=limit)]
    found = store.runs(pipeline, "interrupted", limit=limit) if status == "interrupted" else []
    before, fitting = None, 0
    while fitting < limit and (page := store.runs(pipeline, "running", limit=500, before=before)):
        told = [run for run in (as_told(store, run) for run in page) if run.status == status]
        found += told
        fitting, before = fitting + len(told), page[-1]
    return sorted(found, key=lambda run: (run.started_at, run.number), reverse=True)[:limit]


def worker_of(store: Store, run: RunRecord) -> str | None:
    """Who is running it now, for a person's eye; None if nobody is, or if that was a process of this machine that is gone."""
    lease = store.run_lease(run.number, 0)
    if lease is None or certainly_dead(lease.owner):
        return None
    host, _, rest = lease.owner.partition(":")
    return f"{host.partition('/')[0]}, process {rest.partition(':')[0]}"


class Plain(Codec):
    """Payloads as a shell can take them: without the classes that the pipeline's own code would give them, and without numpy's."""

    _plainly = True


class Shell(Plain):
    """The same, as a shell can show them: one that cannot be read says so."""

    def decode(self, data: bytes, known: Mapping[str, type] | None = None) -> Any:
        try:
            return super().decode(data, known)
        except StoreError:
            return "<unreadable here: it was stored through a codec of the app's own>"


def dead_letters(store: Store, codec: Codec | None = None) -> DeadLetters:
    """The dead letters of a store, without the code that could replay them; shown, unless another codec is named."""

    def replay(pipeline: str, *_: object, **__: object) -> Any:
        message = f"expected the code of {pipeline}: name it with --target app.py:{pipeline}."
        raise ConfigurationError(message)

    return DeadLetters(lambda: store, codec or Shell(), replay, gone=certainly_dead)
