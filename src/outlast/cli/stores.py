"""
The store that a command works with.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.output import refuse
from outlast.errors import ConfigurationError, nearest
from outlast.report.views import Views
from outlast.store import StoreError, open_store
from outlast.store.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.store import Store


@contextmanager
def opened(url: str | None, app: str | None = None, *, make: bool = False) -> Iterator[Views]:
    """
    The store at this address. Looking into one that is not there makes none, unless told to.

    Without a name, the app is the only one that has anything there. One that has nothing there is a mistake: what is
    found under it would look as if nothing had happened.
    """
    address = Address.wanted(url or None)
    if not make:
        present(address)
    with open_store(address.text, app=app or "default") as store:
        try:
            if app is None:
                store.app = _only_app(store)
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


def present(address: Address) -> None:
    """Refuse an address where no store is, as far as that can be seen without making one."""
    if address.file is not None and not Path(address.file).is_file():
        refuse(
            f"There is no store at {address}: nothing has run here yet.",
            "A run makes one: outlast run app.py:reviews --input in.jsonl. Another one: --store or OUTLAST_STORE.",
        )


def _only_app(store: Store) -> str:
    names = store.apps()
    if len(names) > 1:
        refuse(f"expected --app: this store has {', '.join(names)}.")
    return names[0] if names else "default"


def stored_at(views: Views, store: str | None) -> tuple[str, ...]:
    """What a command needs to find the store, without a password, and the app in it."""
    return (*(("--store", str(Address(store))) if store else ()), *views.app_option())
