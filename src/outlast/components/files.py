"""
Files as a source: which ones a pattern means, and their items, one file after the other.

    Files("in/*.csv", delimiter=";", encoding="cp1252")
    Files("january.jsonl", "february.jsonl.gz", "march.parquet")
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components import lines, packed, registry
from outlast.components.csvs import TABLES
from outlast.components.reading import Source, ThreadedReader
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import mask
from outlast.kernel.value import put
from outlast.settings.checks import Check

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterator, Sequence

PARQUET = (".parquet", ".pq")
ENDINGS = "one that ends in .jsonl, .ndjson, .csv or .tsv (also with .gz or .zst behind it) or in .parquet"
_LINES = (*lines.JSON_LINES, ".json", *TABLES)


@dataclass(frozen=True, init=False)
class Files(Source):
    """
    The items of files, as the source of a run: a path or a pattern such as ``in/*.csv``, or several, read in the order
    in which they are named.

    `delimiter` is what stands between the cells of CSV files (a comma; in ``.tsv`` files a tab), `encoding` how they
    are encoded (UTF-8, or whatever a byte order mark at their beginning says). Both are about CSV and TSV only: the
    other kinds leave nothing to say.
    """

    patterns: tuple[str, ...]
    delimiter: str | None
    encoding: str | None

    def __init__(self, *patterns: str | Path, delimiter: str | None = None, encoding: str | None = None) -> None:
        check = Check()
        if not patterns or not all(isinstance(pattern, str | Path) and str(pattern) for pattern in patterns):
            check.add("patterns", "paths or patterns of files", patterns)
        if delimiter is not None and not is_mark(delimiter):
            check.add(
                "delimiter", 'one character that is neither a quote nor the end of a line, such as ";"', delimiter
            )
        if encoding is not None and not is_encoding(encoding):
            check.add("encoding", 'the name of an encoding of text, such as "cp1252"', encoding)
        check.raise_if_any()
        put(self, "patterns", tuple(map(str, patterns)))
        put(self, "delimiter", delimiter)
        put(self, "encoding", encoding)

    def found(self) -> list[Path]:
        """
        The files, in the order in which they are read. All of them are of a kind that is known, and none is there
        twice.
        """
        paths = [path for pattern in self.patterns for path in _found(pattern)]
        known: set[Path] = set()
        for path in paths:
            if (real := path.resolve()) in known:
                raise ConfigurationError(f"expected every file of a source once, got twice: {path}.")
            known.add(real)
        said = [name for name in ("delimiter", "encoding") if getattr(self, name) is not None]
        if said and not any(packed.inner(path) in TABLES for path in paths):
            message = f"expected {' and '.join(said)} for CSV or TSV files, got: none of these, and nothing else has {'them' if len(said) > 1 else 'one'}."
            raise ConfigurationError(message)
        return paths

    def items(self) -> Iterator[Any] | AsyncIterable[Any]:
        """The items. Nothing is read yet; what cannot be a source is said now."""
        paths = [path.absolute() for path in self.found()]  # whatever folder somebody goes to meanwhile
        if any(path.suffix.lower() in PARQUET for path in paths):
            return ThreadedReader(lambda: self._batches(paths))
        return (item for path in paths for item in lines.read(path, self.delimiter, self.encoding))

    def _batches(self, paths: Sequence[Path]) -> Iterator[Sequence[Any]]:
        from outlast.components import parquet

        for path in paths:
            if path.suffix.lower() in PARQUET:
                yield from parquet.read(path)
            else:
                yield from ([item] for item in lines.read(path, self.delimiter, self.encoding))

    def count(self) -> int:
        """How many items they hold: Parquet files say it, of others the lines are counted."""
        from outlast.components import parquet

        return sum(
            parquet.count(path) if path.suffix.lower() in PARQUET else lines.count(path) for path in self.found()
        )


def _found(pattern: str) -> list[Path]:
    # A file of that very name wins: brackets are legal in names.
    names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - the pattern may be absolute
    paths = [path for path in map(Path, names) if path.is_file()]
    if not paths and registry.is_address(pattern):
        known = registry.names("sources")
        others = f" ({', '.join(known)})" if known else ""
        near = nearest(registry.name_in(pattern), known)
        message = f"expected the address of a source to have a registered name{others}, got: {mask(pattern)}.{near}"
        raise ConfigurationError(message)
    if not paths:
        folder = (
            f" It is a folder: name its files, such as {pattern.rstrip('/')}/*.parquet."
            if Path(pattern).is_dir()
            else ""
        )
        raise ConfigurationError(f"expected files at {pattern!r}, got: none.{folder}")
    for path in paths:
        if path.suffix.lower() not in PARQUET and packed.inner(path) not in _LINES:
            raise ConfigurationError(f"expected every file of a source to be {ENDINGS}, got: {path.name}.")
        if path.suffix.lower() in PARQUET:
            from outlast.components import arrow

            arrow.library("a Parquet file")
        packed.check(path)
    return paths


def is_mark(delimiter: object) -> bool:
    """Whether it can stand between the cells of CSV."""
    return isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'


def is_encoding(encoding: object) -> bool:
    """Whether it names an encoding of text that there is."""
    try:
        return isinstance(encoding, str) and "a".encode(encoding) != b""
    except (LookupError, ValueError):
        return False
