"""
`Secret`: a secret by its name.
"""

from __future__ import annotations

import os

from outlast.errors import ConfigurationError
from outlast.kernel.redact import MASK, remember_secret


class Secret:
    """
    A secret that is named in code and found at run time; it never shows itself, and its value is removed from all that
    goes out.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def env(cls, name: str, /) -> Secret:
        """The secret in this environment variable."""
        if not name or not isinstance(name, str):
            raise ConfigurationError("expected the name of an environment variable, got an empty one.")
        return cls(name)

    @property
    def variable(self) -> str:
        """The environment variable that it is in."""
        return self._name

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
