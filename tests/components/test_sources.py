"""Where items come from: compressed lines, Parquet files, Arrow data, datasets. Every row comes once, whole, with Python values."""

from __future__ import annotations

import builtins
import datetime as dt
import gzip
import json
import math
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

import outlast
from outlast.components import Files, open_source
from outlast.pipeline.keys import Keys


@outlast.stage
async def same(item):
    return item


def outputs(app, source, **options):
    """What a run over the source hands through, in order; all of it must succeed."""
    result = outlast.Pipeline("p", same, app=app, failure_budget=1.0).run(source, ordered=True, **options)
    assert result.counts.succeeded == result.counts.total
    return list(result.outputs())


ROWS = [{"id": n, "text": f"ü{n}"} for n in range(3000)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


# --- files of lines, compressed ---


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".ndjson.zst", ".json.GZ", ".csv.gz", ".tsv.zst"])
def test_compressed_lines_are_read_as_plain_ones_are(app, tmp_path, ending):
    """Gzip and zstd, JSON Lines and tables; also files of several members, and the display knows how many items there are (S3-39)."""
    mark = "\t" if "tsv" in ending else ","
    table = ("id" + mark + "text\n" + "".join(f"{row['id']}{mark}{row['text']}\n" for row in ROWS)).encode()
    data = table if "sv" in ending else lines(ROWS)
    pack = {".gz": gzip.compress, "zst": zstd.compress}.get(ending.lower()[-3:], lambda data: data)
    half = data.index(b"\n", len(data) // 2) + 1
    path = tmp_path / f"in{ending}"
    path.write_bytes(pack(data[:half]) + pack(data[half:]))
    wanted = [{"id": str(row["id"]), "text": row["text"]} for row in ROWS] if "sv" in ending else ROWS
    assert outputs(app, path) == wanted
    assert Files(path).count() == 3000


def noises(count, size):
    """So many pieces of bytes that cannot be packed."""
    data = np.random.default_rng(7).bytes(count * size)
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("harm", ["cut", "changed", "none"])
def test_a_damaged_file_is_a_source_error_and_what_came_before_it_is_kept(app, tmp_path, ending, harm):
    """A cut or changed file ends the reading with a message; mended, the run goes on and nothing comes twice."""
    data = lines({"id": n, "noise": noise.hex()} for n, noise in enumerate(noises(3_000, 80)))
    pack, half = (gzip.compress if ending.endswith("gz") else zstd.compress), data.index(b"\n", len(data) // 2) + 1
    members = pack(data[:half]), pack(data[half:])
    whole = b"".join(members)
    broken = {"cut": whole[:-500], "changed": members[0] + b"no such member", "none": b"this is no such file"}[harm]
    path = tmp_path / f"in{ending}"
    path.write_bytes(broken)
    pipeline = outlast.Pipeline("p", same, app=app)
    result = pipeline.run(path, run_key="k", check=False)
    assert (result.status, result.reason) == ("failed", "source_error")
    assert f"in{ending} is cut off or damaged after" in result.why
    assert (result.counts.total > 1250) is (harm != "none")
    path.write_bytes(whole)
    done = pipeline.run(path, run_key="k")
    assert (done.status, done.counts.succeeded, done.counts.total) == ("completed", 3_000, 3_000)
    assert [row["id"] for row in done.outputs()] == list(range(3_000))


def test_one_array_over_many_lines_is_said_to_be_none(app, tmp_path):
    """A `.json` file that holds a single array would be nothing but broken lines."""
    path = tmp_path / "in.json"
    path.write_text(json.dumps([1, 2], indent=2))
    result = outlast.Pipeline("p", same, app=app).run(path, check=False)
    assert "one value a line" in result.why


# --- Parquet ---


def test_parquet_files_are_read_with_others_in_the_order_of_their_names(app, tmp_path):
    """Part files of different formats and schemas under one pattern (S3-39)."""
    pq.write_table(pa.Table.from_pylist(ROWS[:1500]), tmp_path / "a.parquet", row_group_size=400)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[1500:2000])))
    pq.write_table(pa.Table.from_pylist([row | {"more": 1.5} for row in ROWS[2000:]]), tmp_path / "c.pq")
    assert outputs(app, f"{tmp_path}/[abc].*") == ROWS[:2000] + [row | {"more": 1.5} for row in ROWS[2000:]]
    assert Files(f"{tmp_path}/[abc].*").count() == 3000
    with pytest.raises(outlast.ConfigurationError, match=r"It is a folder: name its files, such as .*/\*.parquet"):
        open_source(tmp_path)


@pytest.mark.parametrize("harm", ["cut", "changed", "empty"])
def test_a_damaged_parquet_file_is_a_source_error(app, tmp_path, harm):
    """The rows of files before it are kept, and it goes on when the file is whole."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    path = tmp_path / "b.parquet"
    table = pa.Table.from_pylist([{"id": n, "noise": noise} for n, noise in enumerate(noises(4_000, 250))])
    pq.write_table(table, path, row_group_size=1000)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {"cut": whole[:middle], "changed": whole[:middle] + bytes(70_000) + whole[middle + 70_000 :], "empty": b""}[
            harm
        ]
    )
    pipeline = outlast.Pipeline("p", same, app=app)
    result = pipeline.run(f"{tmp_path}/*.parquet", run_key="k", check=False)
    assert (result.status, result.reason) == ("failed", "source_error"), result.why
    assert "b.parquet is cut off or damaged after" in result.why
    assert result.counts.total >= 3000
    path.write_bytes(whole)
    done = pipeline.run(f"{tmp_path}/*.parquet", run_key="k")
    assert (done.status, done.counts.total, done.counts.succeeded) == ("completed", 7_000, 7_000)
    assert [row["id"] for row in done.outputs()] == [*range(3000), *range(4_000)]


# --- Arrow ---

BERLIN = ZoneInfo("Europe/Berlin")
ODD = [
    {
        "day": dt.date(2026, 11, 15),
        "at": dt.datetime(2026, 11, 15, 12, 30, 1, 5, tzinfo=BERLIN),
        "naive": dt.datetime(2026, 11, 15, 12, 30),  # noqa: DTZ001 - tables hold such ones
        "price": Decimal("12345678901234567890.50"),
        "raw": b"\x00\xff",
        "deep": {"list": [{"a": 1}, {"a": None}], "text": "日本"},
        "took": dt.timedelta(days=-1, microseconds=5),
        "clock": dt.time(23, 59, 59, 999_999),
        "kind": "x",
        "score": math.inf,
        "big": 2**62,
    },
    dict.fromkeys("day at naive price raw deep took clock kind score big".split()),
]


def test_arrow_values_come_as_python_values():
    """Dates, instants with zones, exact numbers, bytes, nested values, dictionaries, null: as Python has them; so does a Parquet file."""
    table = pa.Table.from_pylist(ODD)
    table = table.set_column(8, "kind", table["kind"].dictionary_encode())
    for source in (table, table.to_reader(), table.to_batches()[0]):
        assert read(source) == ODD
    found = read(table)[0]["at"]
    assert found.utcoffset() == dt.timedelta(hours=1)


def read(source):
    """All items of a source, as the runner would have them."""
    import asyncio

    async def main():
        opened = open_source(source)
        return [item async for item in opened] if hasattr(opened, "__aiter__") else list(opened)

    return asyncio.run(main())


def test_columns_of_objects_come_as_they_are():
    """D-26: mixed columns, as every sheet has; dicts keep their own keys; periods are texts; missing is None; an index may be mixed too."""
    frame = pd.DataFrame(
        {
            "mixed": [1, "x", None],
            "docs": [{"x": 1}, {"y": np.int64(2)}, float("nan")],
            "month": pd.PeriodIndex(["2025-01", None, "2025-03"], freq="M"),
            "odd": [pd.Timestamp("2026-11-15", tz="UTC"), pd.NaT, np.arange(2)],
            "n": [1, 2, 3],
        },
        index=pd.Index([1, "q", 3], name="at"),
    )
    assert read(frame) == [
        {
            "mixed": 1,
            "docs": {"x": 1},
            "month": "2025-01",
            "odd": dt.datetime(2026, 11, 15, tzinfo=dt.UTC),
            "n": 1,
            "at": 1,
        },
        {"mixed": "x", "docs": {"y": 2}, "month": None, "odd": None, "n": 2, "at": "q"},
        {"mixed": None, "docs": None, "month": "2025-03", "odd": [0, 1], "n": 3, "at": 3},
    ]
    assert [*read(frame)[0]] == ["mixed", "docs", "month", "odd", "n", "at"]
    assert read(frame["mixed"]) == [1, "x", None]
    assert read(pd.Series([1.5, None])) == [1.5, None]


def test_columns_that_cannot_be_read_are_refused_with_the_way_out():
    """D-26: names that come twice, types that Arrow does not know, and objects of polars, which would leave it as addresses in memory."""
    for frame, why in [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "got twice: a"),
        (pd.DataFrame([[1, 2]], columns=[1, "1"]), "got twice: 1"),
        (pd.DataFrame({"a": [1]}, index=pd.Index([2], name="a")), "got twice: a"),
        (pd.DataFrame({"a": [1j]}), r"got: complex128 .* Hand over its rows instead, frame.to_dict\("),
        (
            pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}),
            r"got: objects of Python in a. .* frame.to_dicts\(\)",
        ),
    ]:
        with pytest.raises(outlast.ConfigurationError, match=why):
            read(frame)


def test_nanoseconds_are_cut_the_same_way_with_and_without_pandas():
    """What Python cannot hold is cut to microseconds, also inside of lists and structures; else keys would depend on what is installed."""
    moment = 1_700_000_000_123_456_789
    kinds = {
        "at": pa.timestamp("ns", "UTC"),
        "took": pa.duration("ns"),
        "clock": pa.time64("ns"),
        "all": pa.list_(pa.timestamp("ns")),
    }
    values = {"at": moment, "took": 1999, "clock": 1999, "all": [moment]}
    table = pa.table(
        {
            name: pa.array([values[name]], type=pa.list_(pa.int64()) if name == "all" else pa.int64()).cast(kind)
            for name, kind in kinds.items()
        }
    )
    at = dt.datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=dt.UTC)
    [row] = read(table)
    assert row == {
        "at": at,
        "took": dt.timedelta(microseconds=1),
        "clock": dt.time(0, 0, 0, 1),
        "all": [at.replace(tzinfo=None)],
    }
    assert {type(value) for value in row.values()} == {dt.datetime, dt.timedelta, dt.time, list}


def test_frames_of_pandas_and_polars_and_relations_of_duckdb_are_sources(app):
    """Rows are dicts; an index without a name is left out, one with a name is a column; NaN of pandas is missing, NaN of polars is NaN (S3-39)."""
    frame = pd.DataFrame({"n": [1.5, math.nan], "text": ["a", None], "kind": pd.Categorical(["u", "v"])}, index=[7, 9])
    wanted = [{"n": 1.5, "text": "a", "kind": "u"}, {"n": None, "text": None, "kind": "v"}]
    assert outputs(app, frame) == wanted
    assert read(frame.set_index("text")) == [
        {"n": row["n"], "kind": row["kind"], "text": row["text"]} for row in wanted
    ]
    polar = pl.DataFrame({"n": [1.5, math.nan, None], "text": ["a", "b", None]})
    first, second, third = read(polar)
    assert (first, third) == ({"n": 1.5, "text": "a"}, {"n": None, "text": None})
    assert math.isnan(second["n"])
    assert read(duckdb.sql("select range as n, 'x' || range as t from range(2500)")) == [
        {"n": n, "t": f"x{n}"} for n in range(2500)
    ]
    lazy = pl.LazyFrame({"n": range(25_000)}).filter(pl.col("n") % 2 == 0)
    assert [row["n"] for row in read(lazy)] == list(range(0, 25_000, 2))


def test_one_column_gives_plain_values_and_no_rows_give_none():
    """A Series is its values; an empty frame is no item; columns without rows do no harm."""
    assert (
        read(pd.Series([1, 2]))
        == read(pl.Series([1, 2]))
        == read(pa.chunked_array([[1], [2]]))
        == read(pa.array([1, 2]))
        == [1, 2]
    )
    assert (
        read(pd.DataFrame()) == read(pd.DataFrame({"a": []})) == read(pa.table({"a": pa.array([], pa.int64())})) == []
    )


def test_names_that_come_twice_are_refused():
    """A dict would lose one of them."""
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(outlast.ConfigurationError, match="got twice: a"):
        read(twice)


def test_a_row_that_python_cannot_hold_is_a_dead_letter_and_stops_no_other(app):
    """A date after the year 9999, text that is none: the item's own fault."""
    ancient = pa.array([0, 400_000 * 366 * 86_400, 1], type=pa.int64()).cast(pa.timestamp("s"))
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"b", b"\xff"]).buffers())
    table = pa.table({"at": ancient, "n": [1, 2, 3], "text": text})
    result = outlast.Pipeline("p", same, app=app, failure_budget=1.0).run(table, check=False)
    assert [(row["n"], row["text"]) for row in result.outputs()] == [(1, "a")]
    texts = [letter.error for letter in app.dead_letters.find()]
    assert sorted(text.split(" has")[0] for text in texts) == ["row 2", "row 3"]


def test_a_frame_that_fails_is_a_source_error(app):
    """A column of complex numbers is nothing that Arrow knows; the message says so, and the run is no success."""
    frame = pd.DataFrame({"a": [1j, 2j]})
    result = outlast.Pipeline("p", same, app=app).run(frame, check=False)
    assert (result.status, result.reason, result.counts.total) == ("failed", "source_error", 0)
    assert "got: complex128" in result.why


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    """The core needs nothing installed; what is missing says how to get it, before anything runs."""
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] in {"pyarrow", "backports"}:
            raise ImportError(name)
        return real(name, *rest, **more)

    path = tmp_path / "a.parquet"
    path.touch()
    packed = tmp_path / "a.jsonl.zst"
    packed.touch()
    frame = pd.DataFrame({"a": [1]})
    monkeypatch.setattr(builtins, "__import__", without)
    for source in (path, frame):
        with pytest.raises(outlast.ConfigurationError, match=r"pip install 'outlast\[parquet\]'"):
            open_source(source)
    with pytest.raises(outlast.ConfigurationError, match=r"pip install 'outlast\[zstd\]'"):
        open_source(packed)


# --- datasets ---


def test_datasets_are_sources_whole_and_streamed(app, tmp_path):
    """A Dataset, and an IterableDataset from files and from a generator; several splits are not guessed at (S3-39)."""
    import datasets  # of all that is read here the one that takes seconds to load

    whole = datasets.Dataset.from_dict({"id": list(range(1500)), "text": ["é"] * 1500})
    wanted = [{"id": n, "text": "é"} for n in range(1500)]
    assert outputs(app, whole) == wanted
    assert read(whole.select(range(10)).with_format("numpy"))[3]["id"] == 3
    whole.to_parquet(tmp_path / "part.parquet")
    streamed = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "part.parquet"), split="train", streaming=True, cache_dir=str(tmp_path)
    )
    assert outputs(app, streamed, run_key="streamed") == wanted
    splits = datasets.DatasetDict({"train": whole, "test": whole})
    with pytest.raises(outlast.ConfigurationError, match=r"splits 'train', 'test'. Choose one: dataset\['train'\]"):
        open_source(splits)


# --- keys ---

ROW = """
import datetime as dt, decimal, enum, math, uuid, pathlib, numpy as np, pandas as pd, ipaddress
row = {"d": decimal.Decimal("1.50"), "day": dt.date(2026, 1, 2), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "b": b"\\x00", "ba": bytearray(b"x"),
       "i": np.int64(5), "f": np.float32(0.5), "bool": np.bool_(True), "array": np.arange(3), "nan": math.nan, "na": pd.NA, "nat": pd.NaT,
       "id": uuid.UUID(int=5), "path": pathlib.PurePosixPath("a/b"), "took": dt.timedelta(seconds=1.5), "ip": ipaddress.ip_address("::1"),
       "stamp": pd.Timestamp("2026-01-02"), "time": dt.time(1, 2), "set": {3, 1, 2}}
from outlast.pipeline.keys import Keys
print(*(Keys(None).of({name: value}, 7) for name, value in row.items()), Keys(None).of(row, 7))
"""


def test_keys_of_rows_are_the_same_in_every_process():
    """D-15: by content, for whatever tables and databases hold; else a resume would do everything again."""
    said = {
        subprocess.run(
            [sys.executable, "-c", ROW],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    keys = said.pop().split()
    assert len(set(keys)) == len(keys) == 20
    assert not any(key.startswith("@") for key in keys)


def test_a_frame_is_resumed_where_it_was(app):
    """D-15: the keys of its rows are the same the next time, so nothing is done again."""
    frame = pd.DataFrame(
        {"id": range(2500), "price": [Decimal(n) / 4 for n in range(2500)], "at": pd.Timestamp("2026-01-02", tz="UTC")}
    )
    seen = []

    @outlast.stage
    async def stop_at(row):
        seen.append(row["id"])
        if row["id"] == 1200 and not done:
            raise outlast.PermanentFailure("stop")
        return row["id"]

    done = []
    pipeline = outlast.Pipeline("p", stop_at, app=app)
    first = pipeline.run(frame, run_key="k", on_item_error="stop", check=False)
    assert first.reason == "item_error"
    before = first.counts.succeeded
    done.append(1)
    second = pipeline.run(frame, run_key="k")
    assert second.counts.succeeded == 2499
    assert len(seen) <= 2500 + (2500 - before)
    assert sorted(second.outputs()) == [n for n in range(2500) if n != 1200]


def test_a_source_with_another_order_each_time_is_resumed_right(app):
    """D-15: what is finished is found by its key wherever it stands, every item is done once, and the counts add up."""
    rng = np.random.default_rng(5)
    for size in (3, 40, 1800):
        rows = [{"id": n} for n in range(size)]
        done, failing = [], set(range(0, size, 7))

        @outlast.stage
        async def work(row, done=done, size=size, failing=failing):
            if len(done) >= size // 2 and not failing.isdisjoint({row["id"]}):
                raise outlast.PermanentFailure("later")
            done.append(row["id"])
            return row["id"]

        pipeline = outlast.Pipeline("p", work, app=app, failure_budget=1.0)
        first = pipeline.run(iter(rows), run_key=f"k{size}", on_item_error="stop", check=False)
        assert first.counts.pending or not first.counts.source_exhausted or size == 3
        failing.clear()
        shuffled = [rows[place] for place in rng.permutation(size)]
        last = pipeline.run(shuffled, run_key=f"k{size}")
        assert sorted(done) == sorted(last.outputs()), "done twice, or lost"
        assert len(set(done)) == len(done)
        assert (last.counts.total, last.counts.pending) == (size, 0)


def test_an_item_that_ended_further_back_is_found_although_its_new_place_was_free(app):
    """D-15: the first items were still waiting when the process died, and a later one that had ended now comes first."""
    store = app.store
    seen = []

    @outlast.stage
    async def work(row):
        seen.append(row)
        return row

    pipeline = outlast.Pipeline("p", work, app=app)
    keys = Keys(None)
    rows = [{"id": n} for n in range(1200)]
    names = [keys.of(row, n) for n, row in enumerate(rows)]
    pipeline.run(
        rows[:1], run_key="k"
    )  # a run with a shard; now as if a pass had read all, and only the 900th had ended
    from outlast.store.records import Changes, ItemRow

    record = store.find_run("p", "k")
    lease = store.take_run(record.number, 0, "test", 60)
    store.write(
        lease,
        Changes(
            items=[ItemRow(900, names[900], "succeeded", 0, 1, False, None, (), {}, b'{"v":1,"d":900}', 0, 0)],
            read=1200,
        ),
    )
    store.drop_lease(lease)
    seen.clear()
    result = pipeline.run([rows[0], rows[900], *rows[1:900], *rows[901:]], run_key="k")
    assert sorted(row["id"] for row in seen) == [n for n in range(1200) if n not in {0, 900}]
    assert (result.counts.total, result.counts.succeeded, result.counts.pending) == (1200, 1200, 0)


def test_lines_of_text_in_a_path_object_and_a_name_with_brackets(app, tmp_path):
    """A file of that very name wins over the pattern that it could be."""
    odd = Path(tmp_path / "a[1].jsonl.gz")
    odd.write_bytes(gzip.compress(b'{"a":1}\n\n{"a":2}'))
    assert outputs(app, odd) == [{"a": 1}, {"a": 2}]
