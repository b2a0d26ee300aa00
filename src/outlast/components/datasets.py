"""
Datasets of Hugging Face: each row is an item, as the dataset hands it out, with its features decoded. Nothing of theirs
is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_dataset(source: object) -> bool:
    """Whether it is one of theirs, also several in one."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(source).__mro__)


def rows(source: Any) -> Iterator[Any]:
    """The rows; of several splits none, because nobody said which."""
    if isinstance(source, dict):
        splits = ", ".join(repr(name) for name in source)
        first = next(iter(source), "train")
        message = f"expected one dataset, got: a {type(source).__name__} with the splits {splits}. Choose one: dataset[{first!r}]."
        raise ConfigurationError(message)
    return iter(source)
