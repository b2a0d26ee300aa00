"""
Tables in memory, and whatever else hands out Arrow data: pandas, polars, pyarrow, DuckDB. Each row is an item, a dict
of Python values.

A table is turned into Python values slice by slice, so that memory does not grow with it. What Arrow calls null is
None; NaN stays NaN where Arrow knows the difference (pandas does not: its missing values are None). Instants keep their
zone. Nanoseconds are cut to microseconds, which is all that Python's own types can hold, with or without pandas at
hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.components.reading import broken_item, missing
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.components.reading import Unreadable

SLICE = 1000  # rows that become Python values at a time
_PART = 10_000  # rows of a frame that become Arrow data at a time
_UNNAMED = "__index_level_"  # the column as which a file of pandas has an index without a name


def library(what: str) -> Any:
    """The module pyarrow, for something that needs it."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
    except ImportError:
        raise missing(what, "pyarrow", "parquet") from None
    return pa


def hands_out(source: object) -> bool:
    """Whether this is something for `rows`."""
    return any(hasattr(source, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "collect_batches"))


def rows(source: Any) -> Iterator[list[Any]]:
    """The rows in lists, slice by slice."""
    library(f"a source of type {type(source).__name__}")
    if _is_of(source, "pandas"):
        yield from _pandas(source)
        return
    if _is_of(source, "polars"):
        _check_polars(source)
    done = 0
    for part in _parts(source):
        for batch in _batches(part):
            yield from python(batch, done)
            done += len(batch)


def _parts(source: Any) -> Iterator[Any]:
    """Things with `__arrow_c_stream__` or `__arrow_c_array__`, one after the other."""
    if hasattr(source, "collect_batches"):  # a polars LazyFrame: nothing is collected as a whole
        yield from source.collect_batches(chunk_size=_PART, maintain_order=True)
    else:
        yield source


def _batches(part: Any) -> Iterator[Any]:
    """Record batches, or plain arrays if it has no columns."""
    pa = library("Arrow data")
    if not hasattr(part, "__arrow_c_stream__"):
        try:
            yield pa.record_batch(part)
        except (pa.ArrowInvalid, TypeError):
            yield pa.array(part)
        return
    try:
        stream = pa.RecordBatchReader.from_stream(part)
    except pa.ArrowInvalid as wrong:
        if "non-struct" not in str(wrong):
            raise
        yield from pa.chunked_array(part).chunks
        return
    with stream:
        yield from stream


def python(batch: Any, before: int, where: str = "") -> Iterator[list[Any]]:
    """The rows of a record batch (or the values of an array) as Python values; one that cannot be is a broken item."""
    names = [] if not hasattr(batch, "schema") else _distinct(batch.schema.names)
    wanted = [name for name in names if not name.startswith(_UNNAMED)]
    if len(wanted) != len(names):
        batch = batch.select(wanted)
    for start in range(0, len(batch), SLICE):
        piece = batch.slice(start, SLICE)
        try:
            yield _rows(piece, wanted)
        # A date that Python has not, text that is none: of one row only.
        except (ValueError, OverflowError, ArithmeticError):
            yield [
                _row(piece.slice(place, 1), wanted, before + start + place + 1, where) for place in range(len(piece))
            ]


def _distinct(names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"expected the columns of a source to have names that differ, got twice: {', '.join(twice)}."
        raise ConfigurationError(message)
    return names


def _rows(piece: Any, names: Sequence[str]) -> list[Any]:
    if not hasattr(piece, "schema"):
        return list(_values(piece))
    if not names:
        return [{} for _ in range(len(piece))]
    return [dict(zip(names, row, strict=True)) for row in zip(*map(_values, piece.columns), strict=True)]


def _values(column: Any) -> list[Any]:
    known = _known(column.type)
    if known is not column.type:
        column = column.cast(known, safe=False)
    return column.to_pylist()  # type: ignore[no-any-return]


def _known(kind: Any) -> Any:
    """The type with microseconds where it had nanoseconds; the same object if it had none."""
    pa = library("Arrow data")
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if types.is_dictionary(kind):
        value = _known(kind.value_type)
        return kind if value is kind.value_type else value
    if types.is_struct(kind):
        fields = [field.with_type(_known(field.type)) for field in kind]
        return kind if all(new.type is old.type for new, old in zip(fields, kind, strict=True)) else pa.struct(fields)
    if types.is_list(kind) or types.is_large_list(kind):
        value = _known(kind.value_type)
        return kind if value is kind.value_type else (pa.list_ if types.is_list(kind) else pa.large_list)(value)
    return kind


# -- pandas and polars ------------------------------------------------------------------------------------------------------------


def _is_of(source: object, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(source).__mro__)


def _pandas(source: Any) -> Iterator[list[Any]]:
    """
    The rows of a frame, or the values of a series. Columns of objects may hold anything, and are not for Arrow, which
    would make one type of them or give up: each value comes as it is.
    """
    for start in range(0, len(source), _PART):
        part = source.iloc[start : start + _PART]
        if not hasattr(part, "columns"):
            for values in _together({"": part}, len(part), start):
                yield [value[""] if isinstance(value, dict) else value for value in values]
            continue
        _distinct([str(name) for name in part.columns])
        columns = {str(name): part.iloc[:, place] for place, name in enumerate(part.columns)}
        for level, name in enumerate(part.index.names):
            if name is not None:
                _distinct([*columns, str(name)])
                columns[str(name)] = part.index.get_level_values(level).to_series()
        yield from _together(columns, len(part), start)


def _together(columns: dict[str, Any], count: int, before: int) -> Iterator[list[Any]]:
    pa = library("a DataFrame")
    own = {name: _own_values(column) for name, column in columns.items()}
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        if own[name] is not None:
            continue
        try:
            made = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError) as wrong:
            raise ConfigurationError(
                f"expected the column {name!r} of a DataFrame to be of a type that Arrow knows, got: {column.dtype} ({wrong}). "
                'Hand over its rows instead, frame.to_dict("records"), or turn the column into objects, astype(object).'
            ) from None
        arrays[name] = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    if not arrays:
        yield [{name: (values or [])[place] for name, values in own.items()} for place in range(count)]
        return
    loose = len(arrays) < len(columns)
    done = 0
    for rows in python(pa.record_batch(list(arrays.values()), names=list(arrays)), before):
        if loose:
            for place, row in enumerate(rows, done):
                if isinstance(row, dict):
                    for name, values in own.items():  # all of them, so that columns keep their order
                        value = row.pop(name, None)
                        row[name] = value if values is None else values[place]
        done += len(rows)
        yield rows


def _own_values(column: Any) -> list[Any] | None:
    """The values of a column that is not for Arrow; None for one that is."""
    kind = str(column.dtype)
    if kind.startswith("period"):
        return [None if value is None else str(value) for value in map(_own, column)]
    return list(map(_own, column)) if kind == "object" else None


def _own(value: Any) -> Any:
    """
    A value in a column of objects, as Python has it: what pandas calls missing is None, and what only numpy and pandas
    have is Python's.
    """
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind is float:
        return None if value != value else value  # noqa: PLR0124 - NaN is the one that is not itself
    if kind is dict:
        return {name: _own(each) for name, each in value.items()}
    if kind in {list, tuple}:
        return [_own(each) for each in value]
    if kind.__name__ in {"NAType", "NaTType"}:
        return None
    for turn in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, turn):
            return value.to_pydatetime(warn=False) if turn == "to_pydatetime" else value.to_pytimedelta()
    if kind.__module__ == "numpy":
        if value.dtype.kind in {"M", "m"}:
            value = value.astype("datetime64[us]" if value.dtype.kind == "M" else "timedelta64[us]")
        listed = value.tolist()
        return listed if type(listed) is kind else _own(listed)
    return value


def _check_polars(source: Any) -> None:
    """Columns of Python objects leave polars as addresses in memory."""
    schema = source.collect_schema() if hasattr(source, "collect_schema") else {source.name: source.dtype}
    objects = [name for name, kind in schema.items() if "Object" in str(kind)]
    if objects:
        message = f"expected the columns of a polars frame to have types of its own, got: objects of Python in {', '.join(objects)}. Hand over its rows instead: frame.to_dicts()."
        raise ConfigurationError(message)


def _row(one: Any, names: Sequence[str], number: int, where: str) -> dict[str, Any] | Unreadable | Any:
    try:
        return _rows(one, names)[0]
    except (ValueError, OverflowError, ArithmeticError) as wrong:
        what = type(wrong).__name__ if isinstance(wrong, UnicodeError) else f"{type(wrong).__name__}: {wrong}"
        place = f"{where} row {number}".lstrip()
        return broken_item(str(one.slice(0, 1))[:10_000], f"{place} has a value that Python does not know: {what}")
