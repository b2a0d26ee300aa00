"""
Where a store is: an argument, else the environment variable ``OUTLAST_STORE``, else SQLite under ``.outlast/``.

Its text may have a password, which is never shown.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import ConfigurationError
from outlast.kernel.redact import mask

_EMBEDDED = "sqlite:///.outlast/outlast.db"
_LIBPQ = re.compile(r"(^|\s)(host|hostaddr|port|dbname|user|password)\s*=")


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """
    ``sqlite:///path``, a plain path, or ``postgresql://user@host/name``. A wrong address raises when `file` is read.
    """

    text: str

    @classmethod
    def wanted(cls, given: str | os.PathLike[str] | None = None) -> Address:
        """The address that is meant, if this one is given."""
        return cls(os.fspath(given) if given is not None else os.environ.get("OUTLAST_STORE") or _EMBEDDED)

    @property
    def file(self) -> str | None:
        """The file of SQLite, or None for PostgreSQL."""
        address = self.text
        scheme, mark, rest = address.partition("://")
        if mark and scheme in {"postgresql", "postgres"}:
            return None
        if mark and scheme != "sqlite":
            raise self._wrong("Only these two are supported.")
        if not mark and scheme.partition(":")[0].lower() in {"sqlite", "postgres", "postgresql"} and ":" in scheme:
            raise self._wrong("Slashes are missing after the colon.")
        if mark and not rest.startswith("/"):
            raise self._wrong("A path comes after three slashes: sqlite:///relative or sqlite:////absolute.")
        if not mark and _LIBPQ.search(address):
            raise self._wrong("Write it as postgresql://user:password@host/name.")
        path = rest[1:] if mark else address
        if path.strip() in {"", "/"}:
            raise self._wrong("The path is missing.")
        if path.startswith((":memory:", "file:")):
            raise self._wrong("What is stored must outlast the program, so it needs a file.")
        if mark and "?" in path:
            raise self._wrong("There are no options for SQLite.")
        return path

    @property
    def settled(self) -> str:
        """The address of the same store from whichever folder; one that is wrong as it is."""
        try:
            path = self.file
        except ConfigurationError:
            return self.text
        return self.text if path is None else str(Path(path).expanduser().absolute())

    def _wrong(self, why: str) -> ConfigurationError:
        # What is no address may have a password anywhere.
        scheme, _, rest = self.text.partition(":")
        hidden = "@" in self.text or "passw" in self.text.lower()
        shown = repr(self.text)
        if hidden:
            shown = f"{scheme}:..." if rest and scheme.isalpha() else "a text that may hold a password"
        return ConfigurationError(
            f"expected the store's address to be sqlite:///path, a path, or postgresql://..., got: {shown}. {why}"
        )

    def __str__(self) -> str:
        return mask(self.text)

    def __repr__(self) -> str:
        return f"<{self}>"
