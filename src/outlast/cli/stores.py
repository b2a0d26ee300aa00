"""
The store that a command works with.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.output import hint, refuse
from outlast.errors import ConfigurationError, nearest
from outlast.report.views import Views
from outlast.store import StoreError, StoreUnavailable, open_store
from outlast.store.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.store import Store


@contextmanager
def opened(url: str | None, app: str | None = None, *, jobs: Sequence[str] = (), make: bool = False) -> Iterator[Views]:
    """
    The store at this address. Looking into one that is not there makes none, unless told to.

    Without a name, the app is the one that has these `jobs`, or else the only one that has anything there. One that has
    nothing there is a mistake: what is found under it would look as if nothing had happened.
    """
    address = Address.wanted(url or None)
    if not make:
        present(address)
    with or_way_out(), open_store(address.text, app=app or "default") as store:
        try:
            store.named = ("--store", str(address)) if url else ()
            if app is None:
                store.app = _only_app(store, jobs)
            elif not make and not store.has_app(app) and (known := store.apps()):
                refuse(
                    f"expected --app to be one that has something in this store, got: {app!r}.{nearest(app, known)} "
                    f"Those there are: {', '.join(known)}."
                )
            yield Views(store)
        except ConfigurationError:
            raise
        except (ValueError, TypeError, OverflowError, KeyError, IndexError) as broken:
            # A row that no program of ours writes: what is asked of the store here is what it was asked for a thousand
            # times.
            message = f"the store at {address} holds what cannot be read ({type(broken).__name__}): it is damaged. Restore it from a backup."
            raise StoreError(message) from None


@contextmanager
def introduced(said: str) -> Iterator[None]:
    """Where the store fails, first say what that means: the exit code alone may mean something else."""
    try:
        yield
    except StoreError:
        hint(said)
        raise


@contextmanager
def or_way_out(target: str = "", app_store: str | None = None) -> Iterator[None]:
    """Where the store cannot be reached, say what to look at; as `way_out`."""
    try:
        yield
    except StoreUnavailable as away:
        if (way := way_out(away, target, app_store)) is None:
            raise
        raise StoreUnavailable(f"{away} {way}", error_class="database_connection") from None


def way_out(away: StoreUnavailable, target: str = "", app_store: str | None = None) -> str | None:
    """
    What says where the store is, if it cannot be reached; None for one that was, and is locked. Of the app of a `target`
    that may be the app itself.
    """
    if away.error_class != "database_connection" or away.locked:
        return None
    own = app_store is not None and named_by(app_store) is not None
    return f"If it is not the right one: {f'{target} names it' if own else '--store or OUTLAST_STORE'}."


def present(address: Address) -> None:
    """Refuse an address where no store is, as far as that can be seen without making one."""
    if address.file is not None and not Path(address.file).is_file():
        looked_in = "" if Path(address.file).is_absolute() else f" in {Path.cwd()}"
        refuse(
            f"There is no store at {address}{looked_in}: nothing has run here yet.",
            "A run or a job makes one: outlast run app.py:reviews --input in.jsonl, or outlast enqueue shop.py:pay and outlast worker "
            "shop.py.",
            "The store of an app that names its own one, as in App(store=...), and any other: --store or OUTLAST_STORE.",
        )


def _only_app(store: Store, jobs: Sequence[str]) -> str:
    names = store.apps()
    if len(names) > 1:
        owners = Views(store).apps_of_jobs(jobs)
        if len(owners) == 1:
            return owners[0]
        if jobs and not owners:
            return names[0]  # whichever is asked says that it has no such job
        several = " These jobs are of more than one." if owners else ""
        refuse(f"expected --app: this store has {', '.join(names)}.{several}")
    return names[0] if names else "default"


def named_by(app_store: str) -> str | None:
    """The address of an app's store, if commands would not find it by themselves: the app names its own one."""
    return None if Address(app_store).settled == Address.wanted().settled else app_store


def tell_masked(store: str | None) -> None:
    """Say how a command that was printed with this store gets its password, which is never printed."""
    if store and str(Address(store)) != store:
        hint(
            "The password of the store is not shown: write it instead of ***, or set OUTLAST_STORE to the whole address."
        )


def stored_at(views: Views, store: str | None, app: str | None = None) -> tuple[str, ...]:
    """What a command needs to find the store, without a password, and the app in it if it was named or there are more."""
    named = ("--app", app) if app else views.app_option()
    return (*(("--store", str(Address(store))) if store else ()), *named)
