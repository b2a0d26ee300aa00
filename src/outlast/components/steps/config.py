"""
The base of all config models, and the kinds of values that several components have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Sequence


class Config(BaseModel):
    """A config that forbids unknown keys, takes nothing for what it is not, and stays as it is."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        regex_engine="rust-regex",
        hide_input_in_errors=True,
    )


class Unfit(ValueError):
    """
    Keys that do not go together. It is told at the first of `keys` that is there. While the value of one of them is known
    only when the step runs, it is told if the check did not look at that value: which keys are there is known.
    """

    def __init__(self, said: str, *keys: str) -> None:
        super().__init__(said)
        self.keys = keys


class Surely(ValueError):
    """What is wrong with a text whatever the references in it come to; it is told while they are not known, too."""

    surely = True


class Inside(ValueError):
    """
    What is wrong inside of a value that is checked as a whole. `inside` has the path in the value of each, and what is
    said of it. `names` has the same of keys that are wrong, whatever stands under them.
    """

    def __init__(
        self,
        inside: Sequence[tuple[tuple[str | int, ...], str]] = (),
        names: Sequence[tuple[tuple[str | int, ...], str]] = (),
    ) -> None:
        super().__init__("; ".join(said for _, said in (*names, *inside)))
        self.inside = inside
        self.names = names


_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_REFERENCE = re.compile(r"\$\{[^{}]*\}")  # and nothing beside it
_DRIVE = re.compile(r"[A-Za-z]:")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Names that are devices on Windows, in every folder and with every ending.
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def _named(text: str) -> str:
    if not _CALL.fullmatch(text):
        raise ValueError(f"expected a function as module:function; write it as {example_of(text)}")
    return text


def example_of(text: str) -> str:
    """
    What is meant by a text that names no function as module:function, or how one looks.

    >>> example_of("shop.steps.label"), example_of(".steps:label"), example_of("label")
    ('shop.steps:label', 'steps:label', 'shop.steps:label')
    """
    meant = text.lstrip(".") if ":" in text else ":".join(text.rpartition(".")[::2])
    return meant if _CALL.fullmatch(meant) else "shop.steps:label"


def _inside(text: str) -> str:
    """A path that cannot lead out of the project's root, whichever system reads it."""
    parts = text.replace("\\", "/").split("/")
    if not text.isprintable():
        raise ValueError("expected a path of characters that can be seen; leave the others out")
    if _SCHEME.match(text):
        raise Surely(
            "expected a path under the project's root; files of other places are fetched first, by a step of their own"
        )
    if text[0] in "/\\~" or _DRIVE.match(text):
        raise Surely("expected a path under the project's root; write it without its beginning, such as in/day.csv")
    if ".." in parts:
        raise Surely("expected a path under the project's root; leave .. out")
    if any(_DEVICES.fullmatch(part) for part in parts):
        raise Surely("expected the name of a file; choose another")
    return text


def _referred(rows: Any) -> Any:
    if not isinstance(rows, list) and not (isinstance(rows, str) and _REFERENCE.fullmatch(rows)):
        raise Surely("expected rows; write ${steps.id.outputs.rows}, or a list")
    return rows


def _identifier(text: str) -> str:
    """A name that no database reads as anything else, and that is quoted all the same."""
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError("expected a name in letters, digits and _; write it without quotes and dots")
    return text


def known_ending(path: str) -> bool:
    """Whether the ending of a path tells what kind of file it is."""
    name = path.lower()
    unpacked = name.removesuffix(".gz").removesuffix(".zst")
    return unpacked.endswith((".jsonl", ".ndjson", ".json", ".csv", ".tsv")) or name.endswith((".parquet", ".pq"))


def _shown(pattern: str, words: str) -> Any:
    """What an editor checks of a text while it is typed, and what it says."""
    said = f"expected {words}"
    return Field(json_schema_extra={"pattern": pattern, "errorMessage": said, "patternErrorMessage": said})


Call = Annotated[
    str,
    AfterValidator(_named),
    _shown(f"^{_CALL.pattern}$", "a function as module:function, such as shop.steps:label"),
]
PathInside = Annotated[
    str,
    Field(min_length=1, max_length=4096),
    AfterValidator(_inside),
    _shown(
        r"^(?![/\\~]|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]+:/)(?!(.*[/\\])?\.\.([/\\]|$))",
        "a path under the project's root, without .. and without / at its beginning",
    ),
]
Rows = Annotated[
    list[Any] | str,
    BeforeValidator(_referred),
    Field(description="the rows: ${steps.id.outputs.rows}, or a list"),
]
MinRows = Annotated[
    int, Field(ge=0, description="fewer rows than this are an error, and nothing is written; guards what is replaced")
]
Identifier = Annotated[
    str, AfterValidator(_identifier), Field(json_schema_extra={"pattern": f"^{_IDENTIFIER.pattern}$"})
]
Connection = Annotated[str, Field(min_length=2), _shown("^@", "a connection as @family.alias")]
