"""
Where items come from and where outputs go, one file a family. A component never tries again by itself: whoever drives it decides.

    files       Files, the files of patterns; lines: JSON Lines, CSV and TSV; csvs: how the latter two are read; packed: the same, compressed
    arrow       pandas, polars, pyarrow, DuckDB: whatever hands out Arrow data; parquet: files; datasets: Hugging Face's
    sql         Query, the rows of a query; tables: Table, a table as a sink
    sinks       what every sink can do; reading: what all sources share; values: users' values on their way out
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components import lines, packed
from outlast.components.csvs import TABLES
from outlast.components.files import ENDINGS, PARQUET
from outlast.components.files import Files as Files
from outlast.components.reading import Aside
from outlast.components.reading import Unreadable as Unreadable
from outlast.components.sinks import Busy as Busy
from outlast.components.sinks import Handed
from outlast.components.sinks import Refused as Refused
from outlast.components.sinks import Sink as Sink  # noqa: TC001 - for those who ask here
from outlast.components.sql import Query as Query
from outlast.components.tables import Inserted
from outlast.components.tables import Table as Table
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# -- sources --------------------------------------------------------------------------------------------------------------------


def open_source(source: object) -> Iterator[Any] | AsyncIterable[Any]:
    """The items of a source, one after the other. Nothing is read yet; what cannot be a source is said now."""
    from outlast.components import arrow, datasets

    if isinstance(source, str | Path):
        source = Files(source)
    if isinstance(source, Files):
        return source.items()
    if isinstance(source, Query):
        return Aside(source.read)
    if datasets.is_dataset(source):
        return datasets.rows(source)
    if arrow.hands_out(source) and not isinstance(source, type):
        arrow.library(f"a source of type {type(source).__name__}")
        return Aside(lambda: arrow.rows(source))
    if isinstance(source, AsyncIterable):
        return source
    if isinstance(source, Iterable) and not isinstance(source, bytes | dict):
        return iter(source)
    message = (
        "expected an iterable, an async iterable, the path of files, Files, something with __arrow_c_stream__ such as a DataFrame, a dataset, or a Query, "
        f"got: {type(source).__name__}."
    )
    raise ConfigurationError(message)


def count_items(pattern: str | Path) -> int:
    """How many items files hold."""
    return Files(pattern).count()


def expected_items(source: object) -> Callable[[], int | None]:
    """
    A question to be asked now and then: how many items a source holds, or None as long as nobody knows. Files are counted beside the run,
    because a display that knows the end can say when it comes.
    """
    if isinstance(source, str | Path):
        source = Files(source)
    if not isinstance(source, Files):
        try:
            known: int | None = len(source)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - a stream has no length, and what a stranger's __len__ raises is none either
            known = None
        return lambda: known
    counted: list[int] = []

    def count() -> None:
        with suppress(Exception):  # the run will say so
            counted.append(source.count())

    threading.Thread(target=count, daemon=True, name="outlast-count").start()
    return lambda: counted[0] if counted else None


# -- sinks ----------------------------------------------------------------------------------------------------------------------


def open_sink(sink: object) -> Sink | None:
    """The sink for what a user gave; None keeps the outputs in the store."""
    if sink is None:
        return None
    if isinstance(sink, str | Path):
        return _file_sink(Path(sink))
    if isinstance(sink, Table):
        return Inserted(sink)
    if callable(sink):
        take: Callable[[Any], object] = sink
        return Handed(take)
    message = f"expected sink to be a path, a Table, a callable or None, got: a value of type {type(sink).__name__}."
    raise ConfigurationError(message)


def _file_sink(path: Path) -> Sink:
    if path.suffix.lower() in PARQUET:
        from outlast.components.parquet import Parquet

        return Parquet(path)
    kind = packed.inner(path)
    if kind in lines.JSON_LINES:
        return lines.Lines(path)
    if kind in TABLES:
        return lines.Rows(path)
    message = f"expected a sink to be {ENDINGS}, got: {path.name}."
    raise ConfigurationError(message)
