"""
The composition root: an application's name, its store and its secrets, joined in one place.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from outlast.checks import Check, Shown
from outlast.errors import ConfigurationError
from outlast.redact import MASK, remember_secret

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Never

_EMBEDDED = "sqlite:///.outlast/outlast.db"


class Secret:
    """A secret that is named in code and found at run time; it never shows itself, and its value is removed from all that goes out."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def env(cls, name: str, /) -> Secret:
        """The secret in this environment variable."""
        if not name or not isinstance(name, str):
            message = "expected the name of an environment variable, got an empty one."
            raise ConfigurationError(message)
        return cls(name)

    def reveal(self) -> str:
        """Its value, for the one place that needs it."""
        value = os.environ.get(self._name)
        if not value:
            message = f"expected the environment variable {self._name} to be set, got: {'nothing' if value is None else 'an empty text'}."
            raise ConfigurationError(message)
        remember_secret(value)
        return value

    def __repr__(self) -> str:
        return f"Secret.env({self._name!r}) = {MASK}"


class App:
    """
    One application. Its store is the argument, else the environment variable ``OUTLAST_STORE``, else SQLite under ``.outlast/``.

    The values of its `secrets` are removed from every log line, event and record, from the moment it is made.
    """

    def __init__(
        self, name: str = "default", *, store: str | None = None, secrets: Sequence[Secret] = (), **unknown: Never
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", "store", "secrets"))
        self.name = check.name("name", name)
        self.store_url = check.name("store", os.environ.get("OUTLAST_STORE") or _EMBEDDED if store is None else store)
        for number, secret in enumerate(secrets):
            if not isinstance(secret, Secret):
                check.add(
                    f"secrets[{number}]",
                    "a Secret",
                    Shown(f"a value of type {type(secret).__name__}"),
                    'Use outlast.Secret.env("NAME"): a value does not belong into code.',
                )
        check.raise_if_any()
        self.secrets = tuple(secrets)
        for secret in self.secrets:
            # One that is not set yet is learnt when it is revealed.
            try:
                secret.reveal()
            except ConfigurationError:
                continue

    def __repr__(self) -> str:
        # Not the store: its address may hold a password.
        return f"<App {self.name!r}>"
