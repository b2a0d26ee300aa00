"""
Where items come from and where outputs go, one file a family. A component never retries: its caller decides that.

    files       Files: paths and patterns as a source
    lines       files of JSON Lines, CSV and TSV; csvs: reads CSV and TSV; packed: compressed files
    arrow       pandas, polars, pyarrow, DuckDB: whatever hands out Arrow data; parquet: files; datasets: Hugging Face's
    sql         Query, the rows of a query; tables: Table, a table as a sink
    sinks       Sink, the base class, and callables as sinks; values: converts outputs for every sink
    reading     Source, the base class, and what all sources share
    registry    sources and sinks of other packages, found by name
    answers     what a model has said: whole answers, and the JSON in them
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components import arrow, datasets, lines, packed, registry
from outlast.components.csvs import TABLES
from outlast.components.files import ENDINGS, PARQUET
from outlast.components.files import Files as Files
from outlast.components.reading import Source as Source
from outlast.components.reading import ThreadedReader
from outlast.components.reading import Unreadable as Unreadable
from outlast.components.registry import register_sink as register_sink
from outlast.components.registry import register_source as register_source
from outlast.components.sinks import Busy as Busy
from outlast.components.sinks import CallableSink
from outlast.components.sinks import Refused as Refused
from outlast.components.sinks import Sink as Sink
from outlast.components.sql import Query as Query
from outlast.components.tables import Table as Table
from outlast.components.tables import TableSink
from outlast.errors import ConfigurationError, TemporaryFailure, nearest
from outlast.isolation.threads import start_thread
from outlast.kernel.redact import mask
from outlast.settings.checks import a_value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# -- sources --------------------------------------------------------------------------------------------------------------------


def open_source(source: object) -> Iterator[Any] | AsyncIterable[Any]:
    """The items of a source, one after the other. Nothing is read yet; what cannot be a source is said now."""
    source = _read_from(source)
    for kind, items in _SOURCES:
        if kind(source):
            found: Iterator[Any] | AsyncIterable[Any] = items(source)
            return found
    raise ConfigurationError(
        "expected an iterable, an async iterable, the path of files, Files, something with __arrow_c_stream__ such as a DataFrame, a dataset, a Query or another "
        f"Source, got: {type(source).__name__}."
    )


def _read_from(source: object) -> Any:
    """What an address or a path stands for; anything else as it is."""
    if not isinstance(source, str | Path):
        return source
    found = registry.made("sources", source)
    return Files(source) if found is None else found


def _items_of(source: Source) -> Any:
    items: object = source.items()
    if isinstance(items, AsyncIterable):
        return items
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | dict):
        return iter(items)
    raise ConfigurationError(
        f"expected items() of {type(source).__name__} to give an iterator or an async one, got: {a_value_of(items)}."
    )


def _arrow_rows(source: Any) -> ThreadedReader:
    arrow.library(f"a source of type {type(source).__name__}")
    return ThreadedReader(lambda: arrow.rows(source))


# What a source may be -> its items. The first that holds.
_SOURCES: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (lambda source: isinstance(source, Source), _items_of),
    (datasets.is_dataset, datasets.rows),
    (lambda source: arrow.hands_out(source) and not isinstance(source, type), _arrow_rows),
    (lambda source: isinstance(source, AsyncIterable), lambda source: source),
    (lambda source: isinstance(source, Iterable) and not isinstance(source, bytes | dict), iter),
)


def expected_items(source: object) -> Callable[[], int | None]:
    """
    A question to be asked now and then: how many items a source holds, or None as long as nobody knows. Files are
    counted beside the run, because a display that knows the end can say when it comes.
    """
    source = _read_from(source)
    if not isinstance(source, Source):
        try:
            known: int | None = len(source)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - a stream has no length, and what a stranger's __len__ raises is none either
            known = None
        return lambda: known
    counted: list[int | None] = []

    def count() -> None:
        with suppress(Exception):  # the run will say so
            counted.append(source.count())

    with suppress(TemporaryFailure):
        start_thread(threading.Thread(target=count, daemon=True, name="outlast-count"))
    return lambda: counted[0] if counted else None


# -- sinks ----------------------------------------------------------------------------------------------------------------------


def open_sink(sink: object) -> Sink | None:
    """The sink for what a user gave; None keeps the outputs in the store."""
    if sink is None:
        return None
    for kind, make in _SINKS:
        if isinstance(sink, kind):
            return make(sink)
    if isinstance(sink, type) and issubclass(sink, Sink):
        raise ConfigurationError(
            f"expected sink to be a Sink, got: the class {sink.__name__}. Give one of its objects."
        )
    if callable(sink):
        take: Callable[[Any], object] = sink
        return CallableSink(take)
    raise ConfigurationError(
        f"expected sink to be a path, a Table, a Sink, a callable or None, got: a value of type {type(sink).__name__}."
    )


def _addressed(sink: str | Path) -> Sink:
    path = Path(sink)
    kind = path.suffix.lower()
    if kind in packed.PACKED:
        kind = packed.inner(path)
        kind = "" if kind in PARQUET else kind
    if kind in _ENDINGS and not registry.is_address(sink):
        return _ENDINGS[kind](path)
    found = registry.made("sinks", sink)
    if isinstance(found, Sink):
        return found
    if found is not None:
        message = f"expected the component {registry.name_in(sink)!r} to make a Sink, got: a value of type {type(found).__name__}."
        raise ConfigurationError(message)
    known = registry.names("sinks")
    others = f", or one with a registered name ({', '.join(known)})" if known else ""
    shown = mask(str(sink)) if registry.is_address(sink) else path.name
    message = f"expected a sink to be {ENDINGS}{others}, got: {shown}.{nearest(registry.name_in(sink), known)}"
    raise ConfigurationError(message)


def _parquet(path: Path) -> Sink:
    from outlast.components.parquet import Parquet

    return Parquet(path)


# The ending of a file -> its sink.
_ENDINGS: dict[str, Callable[[Path], Sink]] = {
    **dict.fromkeys(PARQUET, _parquet),
    **dict.fromkeys(lines.JSON_LINES, lines.Lines),
    **dict.fromkeys(TABLES, lines.Rows),
}
# What a sink may be given as -> the sink.
_SINKS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Sink]], ...] = (
    (Sink, lambda sink: sink),
    ((str, Path), _addressed),
    (Table, TableSink),
)
