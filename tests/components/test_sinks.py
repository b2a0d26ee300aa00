"""Where outputs go: compressed files and Parquet, each output once, readable by everybody's tools."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import io
import math
import subprocess
import sys
import uuid
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

import forked
import outlast
from captured import captured
from outlast.components import open_sink
from outlast.components.lines import Rows
from outlast.components.parquet import Parquet
from outlast.pipeline.plan import Tuning
from outlast.testing import virtual_time
from outlast.work.writer import BatchLimits
from stores import left_running


@outlast.stage
async def same(item):
    return item


def pipeline(app, stage=same):
    return outlast.Pipeline("p", stage, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)


# --- compressed lines ---


@pytest.mark.parametrize("ending", [".jsonl.gz", ".ndjson.zst", ".csv.gz", ".tsv.zst"])
def test_a_compressed_sink_is_read_by_every_tool(app, tmp_path, ending, monkeypatch):
    """D-15: batches are members of one file, which gzip, zstd, pandas, polars and we ourselves read as one; a resume adds to it."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=100)))
    sink = tmp_path / f"out{ending}"
    rows = [{"n": n, "text": f"ü,{n}"} for n in range(1000)]
    pipeline(app).run(rows[:600], run_key="k", sink=sink, ordered=True)
    pipeline(app).run(rows, run_key="k", sink=sink, ordered=True)
    if ending.endswith("gz"):
        text = subprocess.run(["gzip", "-cd", sink], capture_output=True, check=True).stdout
    else:
        text = pa.input_stream(str(sink), compression="zstd").read()
    mark = "\t" if "tsv" in ending else ","
    if "sv" in ending:
        frame = pd.read_csv(io.BytesIO(text), sep=mark)
        polar = pl.read_csv(sink, separator=mark)
        assert text.count(b"text") == 1
    else:
        frame = pd.read_json(io.BytesIO(text), lines=True)
        polar = pl.read_ndjson(sink)
    assert frame.to_dict("records") == polar.to_dicts() == rows
    if ending.endswith("gz"):  # of zstd pandas knows only another library than ours
        direct = pd.read_csv(sink, sep=mark) if "sv" in ending else pd.read_json(sink, lines=True)
        assert direct.to_dict("records") == rows
    assert list(pipeline(app).run(sink, ordered=True).outputs()) == [
        {name: str(value) for name, value in row.items()} if "sv" in ending else row for row in rows
    ]


def test_whatever_stands_behind_the_committed_bytes_is_cut_off(app, tmp_path):
    """D-15: half a member, as after a crash, does not count; a file that lost something is refused."""
    sink = tmp_path / "out.jsonl.gz"
    pipeline(app).run(range(10), run_key="k", sink=sink)
    with sink.open("ab") as file:
        file.write(gzip.compress(b"99\n" * 1000)[:-5])
    left_running(app.store)
    pipeline(app).run(range(20), run_key="k", sink=sink)
    assert sorted(map(int, gzip.decompress(sink.read_bytes()).split())) == list(range(20))
    sink.write_bytes(b"")
    with pytest.raises(outlast.ConfigurationError, match="It was changed since"):
        pipeline(app).run(range(30), run_key="k", sink=sink)


def test_the_columns_of_a_compressed_table_are_found_again(tmp_path):
    """A resumed table has the header that it began with."""
    sink = Rows(tmp_path / "o.csv.zst")
    sink.open(None, run="r", token=1)
    end = sink.write([sink.encode({"b": 1, "a": 2})], [])
    sink.close()
    again = Rows(tmp_path / "o.csv.zst")
    again.open(end, run="r", token=2)
    with pytest.raises(outlast.PermanentFailure, match=r"and the file has b, a"):
        again.encode({"b": 1, "c": 2})
    again.close()


def test_a_sink_of_an_unknown_kind_is_refused():
    """The message names what is possible."""
    for wrong in ("out.xlsx", "out.parquet.gz", "out", "out.gz", 5, object()):
        with pytest.raises(outlast.ConfigurationError, match=r"parquet|Table"):
            open_sink(wrong)


# --- Parquet ---


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Review:
    n: int
    color: Color
    tags: list[str]


class Label(pydantic.BaseModel):
    n: int
    at: dt.datetime


class Pair(NamedTuple):
    n: int
    other: str


UNLINK = Path.unlink
AT = dt.datetime(2026, 11, 15, 12, tzinfo=dt.timezone(dt.timedelta(hours=1)))


def test_a_parquet_sink_is_one_file_when_the_run_is_over(app, tmp_path):
    """D-15: dicts, dataclasses, models and named tuples; columns and types grow as rows need them; nothing else is left behind."""
    made = [
        {"n": 1, "x": None},
        {"n": 2, "x": 1},
        {"n": 3, "x": 2.5, "deep": {"a": None, "list": []}},
        {"n": 4, "deep": {"a": 1, "list": [1, 2.5], "more": "x"}, "empty": {}},
        Review(5, Color.RED, ["a", "ü"]),
        Label(n=6, at=AT),
        Pair(7, "b"),
        {"n": np.int64(8), "price": Decimal("1.50"), "vector": np.arange(3), "id": uuid.UUID(int=8), "raw": b"\x00"},
        {
            "n": 9,
            "price": Decimal("123456.789"),
            "day": AT.date(),
            "took": dt.timedelta(seconds=1),
            "path": Path("a/b"),
        },
        {"n": 10, "x": math.nan, "at": AT.astimezone(dt.UTC), "big": 2**62, "wide": [1.5] * 1000},
    ]
    sink = tmp_path / "out.parquet"

    @outlast.stage
    async def make(n):
        return made[n]

    result = pipeline(app, make).run(range(len(made)), sink=sink)
    assert result.status == "completed", [letter.error for letter in app.dead_letters.find()]
    found = {
        row["n"]: {name: value for name, value in row.items() if value is not None}
        for row in pq.read_table(sink).to_pylist()
    }
    nan = found[10].pop("x")
    assert math.isnan(nan)
    assert found == {
        1: {"n": 1},
        2: {"n": 2, "x": 1.0},
        3: {"n": 3, "x": 2.5, "deep": {"a": None, "list": [], "more": None}},
        4: {"n": 4, "deep": {"a": 1, "list": [1.0, 2.5], "more": "x"}},
        5: {"n": 5, "color": "red", "tags": ["a", "ü"]},
        6: {"n": 6, "at": AT},
        7: {"n": 7, "other": "b"},
        8: {"n": 8, "price": Decimal("1.500"), "vector": [0, 1, 2], "id": str(uuid.UUID(int=8)), "raw": b"\x00"},
        9: {"n": 9, "price": Decimal("123456.789"), "day": AT.date(), "took": dt.timedelta(seconds=1), "path": "a/b"},
        10: {"n": 10, "at": AT, "big": 2**62, "wide": [1.5] * 1000},
    }
    assert len(pd.read_parquet(sink)) == len(pl.read_parquet(sink)) == 10
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix not in {".db-shm", ".db-wal", ".db"}) == [
        "out.parquet"
    ]


def test_what_cannot_be_a_row_is_a_dead_letter(app, tmp_path):
    """As for a table of text: no columns, another type than the column has, numbers and texts that do not fit. The others are written."""
    wrong = [
        5,
        "text",
        [1],
        {},
        {"n": "a text"},
        {"n": True},
        {"n": 2**63},
        {"n": 1, "text": "\ud800"},
        {"n": 1, "map": {(1, 2): 2}},
        {"n": 1, "twice": {1: 2, "1": 3}},
        {"n": 1, "price": Decimal("NaN")},
        {"n": 1, "took": dt.timedelta.max},
        {"n": 1, "thing": object()},
        {"n": 1, "mixed": [1, "a"]},
    ]
    sink = tmp_path / "out.parquet"

    @outlast.stage
    async def make(n):
        return {"n": n} if n < 100 else wrong[n - 100]

    result = pipeline(app, make).run(range(100 + len(wrong)), sink=sink, ordered=True)
    assert (result.counts.succeeded, result.counts.dlq) == (100, len(wrong))
    assert pq.read_table(sink).to_pylist() == [{"n": n} for n in range(100)]
    errors = [letter.error for letter in app.dead_letters.find()]
    assert all("cannot be a row of out.parquet" in error for error in errors)
    assert any("the column n has whole numbers, and this would be texts" in error for error in errors)


@pytest.mark.parametrize(
    "values",
    [
        [2**53 + 1, 0.5, 3],
        [0.5, 2**53 + 1, 3],
        [[2**53 + 1], [0.5], [3]],
        [{"x": 2**53 + 1}, {"x": 0.5}, {"x": 3}],
        [Decimal("0.1"), 0.5, 3],
        [0.5, Decimal("0.1"), 3],
    ],
)
@pytest.mark.parametrize("batch", [1, 2000])
def test_a_number_that_would_become_another_one_is_a_dead_letter(app, tmp_path, monkeypatch, values, batch):
    """D-26: ids above 2^53 beside fractions, exact numbers beside fractions: the later one is refused, the others are what they were."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=batch)))
    sink = tmp_path / "out.parquet"
    result = pipeline(app).run([{"v": value} for value in values], sink=sink, ordered=True)
    assert pq.read_table(sink)["v"].to_pylist() == [values[0], values[2]]
    [letter] = app.dead_letters.find()
    assert "one of them would become another number" in letter.error
    assert (result.counts.succeeded, result.counts.dlq) == (2, 1)


@pytest.mark.parametrize("values", [[2**62 + 1, Decimal("0.25"), -7], [Decimal("1e30"), 2**62 + 1, Decimal("-0.001")]])
@pytest.mark.parametrize("batch", [1, 2000])
def test_whole_numbers_and_exact_ones_share_a_column(app, tmp_path, monkeypatch, values, batch):
    """D-26: nineteen digits and a Decimal: the file can be made, in one batch as in many, and each number is exact."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=batch)))
    sink = tmp_path / "out.parquet"
    result = pipeline(app).run([{"v": value} for value in values], sink=sink, ordered=True)
    assert (result.status, pq.read_table(sink)["v"].to_pylist()) == ("completed", values)


def test_an_interrupted_run_keeps_its_spool_and_says_where(app, tmp_path, monkeypatch):
    """D-15: no half of a Parquet file is ever seen; the rows wait beside it, and the resume makes the file of all of them."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=50)))
    sink = tmp_path / "out.parquet"

    @outlast.stage
    async def work(n):
        if n == 500 and not done:
            runs[0].end("interrupted")
        return {"n": n, "odd": None if n < 400 else n / 2}

    done = []
    with captured() as runs:
        result = pipeline(app, work).run(range(1000), run_key="k", sink=sink, check=False)
    assert result.status == "interrupted"
    assert f"What they became waits in {sink}.spool until the run is over" in result.why
    assert not sink.exists()
    done.append(1)
    result = pipeline(app, work).run(range(1000), run_key="k", sink=sink)
    assert (result.status, result.why) == ("completed", "1,000 of 1,000 items succeeded")
    assert sorted(row["n"] for row in pq.read_table(sink).to_pylist()) == list(range(1000))


def test_a_run_that_goes_on_after_its_end_adds_to_the_file(app, tmp_path):
    """D-15: a source that has grown, several times; a run without news changes nothing; new columns find their place."""
    sink = tmp_path / "out.parquet"
    for end in (10, 10, 25, 40):
        pipeline(app).run(
            [{"n": n} | ({"late": 1.5} if n > 30 else {}) for n in range(end)], run_key="k", sink=sink, ordered=True
        )
        assert pq.read_table(sink)["n"].to_pylist() == list(range(end))
        assert not Path(f"{sink}.spool").exists()
    assert pq.read_table(sink)["late"].to_pylist() == [None] * 31 + [1.5] * 9


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "out.csv.gz"])
def test_a_link_stays_a_link_and_its_target_gets_the_rows(app, tmp_path, name, dangling):
    """The file is where the link points to, in a folder that may not be there yet; nothing else is left beside either of them."""
    far, near = tmp_path / "far", tmp_path / "near"
    near.mkdir()
    if not dangling or name != "out.parquet":
        far.mkdir()
    link = near / name
    link.symlink_to(far / f"real.{name}")
    for end in (5, 10):
        pipeline(app).run([{"n": n} for n in range(end)], run_key="k", sink=link, ordered=True)
        assert (link.is_symlink(), [each.name for each in far.iterdir()]) == (True, [f"real.{name}"])
        assert [each.name for each in near.iterdir()] == [name]
        assert [int(row["n"]) for row in pipeline(app).run(link, ordered=True).outputs()] == list(range(end))


@pytest.mark.parametrize("kind", [Rows, Parquet])
def test_a_link_stays_when_its_sink_is_refused(tmp_path, kind):
    """What was made for it goes, and nothing else."""
    link = tmp_path / ("out.csv" if kind is Rows else "out.parquet.spool")
    link.symlink_to(tmp_path / "real")
    with pytest.raises(outlast.ConfigurationError, match="It was changed since"):
        kind(tmp_path / link.name.removesuffix(".spool")).open(10, run="r", token=1)
    assert (link.is_symlink(), [each.name for each in tmp_path.iterdir()]) == (True, [link.name])


@pytest.mark.parametrize("moment", ["built", "renamed", "unlinked"])
def test_a_crash_while_the_file_is_made_loses_and_doubles_nothing(app, tmp_path, monkeypatch, moment):
    """D-15: whichever of the steps at the end was the last one that happened."""
    sink = tmp_path / "out.parquet"

    def stop(*_, **__):
        raise outlast.PermanentFailure("as if it had died here")

    for round_, end in enumerate((300, 600, 900)):
        with monkeypatch.context() as patched:
            if moment == "built":
                patched.setattr(Path, "replace", stop)
            elif moment == "renamed":
                patched.setattr(Path, "unlink", stop)
            else:
                patched.setattr(
                    Path, "unlink", lambda path, missing_ok=False: (UNLINK(path, missing_ok=missing_ok), stop())
                )
            died = pipeline(app).run([{"n": n} for n in range(end)], run_key="k", sink=sink, check=False)
            assert (died.status, died.reason) == ("failed", "store_error")
        if round_ == 1:  # once with a resume in between, else crash upon crash
            pipeline(app).run([{"n": n} for n in range(end)], run_key="k", sink=sink)
            assert sorted(pq.read_table(sink)["n"].to_pylist()) == list(range(end))
    pipeline(app).run([{"n": n} for n in range(900)], run_key="k", sink=sink)
    assert sorted(pq.read_table(sink)["n"].to_pylist()) == list(range(900))


def test_a_full_disk_at_the_end_leaves_a_run_that_can_go_on(app, tmp_path, monkeypatch):
    """D-15: the rows are on record in the spool; the message says what is wrong, and the resume makes the file."""
    sink = tmp_path / "out.parquet"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, virtual_time():
        patched.setattr(Path, "replace", full)
        result = pipeline(app).run([{"n": n} for n in range(100)], run_key="k", sink=sink, check=False)
    assert (result.status, result.reason, result.counts.succeeded) == ("failed", "store_error", 100)
    assert "No space left" in result.why
    assert f"waits in {sink}.spool" in result.why
    assert pipeline(app).run([{"n": n} for n in range(100)], run_key="k", sink=sink).status == "completed"
    assert sorted(pq.read_table(sink)["n"].to_pylist()) == list(range(100))


def test_a_failed_run_has_a_file_and_can_go_on(app, tmp_path):
    """What has succeeded can be looked at; mended, the run adds the rest."""
    sink = tmp_path / "out.parquet"

    @outlast.stage
    async def work(n):
        if n >= 50 and not mended:
            raise outlast.PermanentFailure("broken")
        return {"n": n}

    mended = []
    strict = outlast.Pipeline("p", work, app=app)
    result = strict.run(range(500), run_key="k", sink=sink, on_item_error="stop", check=False)
    assert result.status == "failed"
    assert set(pq.read_table(sink)["n"].to_pylist()) == set(range(50))
    mended.append(1)
    done = strict.run(range(500), run_key="k", sink=sink)
    assert len(pq.read_table(sink)) == done.counts.succeeded >= 499 - done.counts.dlq


def test_a_run_without_outputs_makes_a_file_without_rows(app, tmp_path):
    """An empty source, or nothing but failures: whoever reads the file finds one."""
    sink = tmp_path / "out.parquet"
    pipeline(app).run([], run_key="k", sink=sink)
    assert pq.read_table(sink).num_rows == 0
    pipeline(app).run([{"n": 1}], run_key="k", sink=sink)
    assert pq.read_table(sink).to_pylist() == [{"n": 1}]


def test_a_file_that_is_not_ours_is_not_touched(app, tmp_path):
    """A file that was there before, one that was replaced meanwhile, a lost spool, two writers."""
    sink = tmp_path / "out.parquet"
    pq.write_table(pa.table({"a": [1]}), sink)
    before = sink.read_bytes()
    with pytest.raises(outlast.ConfigurationError, match="new or empty"):
        pipeline(app).run([{"n": 1}], run_key="k", sink=sink)
    assert sink.read_bytes() == before
    sink.unlink()
    pipeline(app).run([{"n": 1}], run_key="k", sink=sink)
    sink.write_bytes(before)
    with pytest.raises(outlast.ConfigurationError, match="as this run has left it"):
        pipeline(app).run([{"n": 1}, {"n": 2}], run_key="k", sink=sink)
    sink.unlink()
    with pytest.raises(outlast.ConfigurationError, match="It was changed since"):
        pipeline(app).run([{"n": 1}, {"n": 2}], run_key="k", sink=sink)
    one, other = Parquet(tmp_path / "o.parquet"), Parquet(tmp_path / "o.parquet")
    one.open(None, run="r", token=1)
    with pytest.raises(outlast.ConfigurationError, match="another process"):
        other.open(None, run="r", token=1)
    one.close()


def test_a_spool_of_an_earlier_version_becomes_a_file(tmp_path):
    """Its batches do not say what they are like: columns that it let grow still fit, and nothing that comes later is changed."""
    frames = b""
    for rows in ([{"n": 1, "id": 2**60 + 1}], [{"n": 0.5, "id": 2, "late": "x"}]):
        buffer = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_pylist(rows)
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
        data = bytes(buffer.getvalue())
        frames += len(data).to_bytes(8, "little") + data
    (tmp_path / "o.parquet.spool").write_bytes(b"OUTLAST1" + bytes(8) + frames)
    sink = Parquet(tmp_path / "o.parquet")
    sink.open(len(frames), run="r", token=2)
    with pytest.raises(outlast.PermanentFailure, match="the column id would have whole numbers above"):
        sink.encode({"id": 0.5})
    sink.write([sink.encode({"n": 3, "id": 4})], [])
    sink.settle()
    sink.finish()
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [
        {"n": 1.0, "id": 2**60 + 1, "late": None},
        {"n": 0.5, "id": 2, "late": "x"},
        {"n": 3.0, "id": 4, "late": None},
    ]


def test_row_groups_are_large_however_small_the_batches_were(app, tmp_path, monkeypatch):
    """A file of a thousand tiny row groups would be slow to read for ever."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=20)))
    sink = tmp_path / "out.parquet"
    pipeline(app).run([{"n": n} for n in range(5000)], sink=sink)
    assert pq.read_metadata(sink).num_row_groups == 1


def test_writing_a_batch_once_more_changes_nothing(tmp_path):
    """After a commit that failed the same batch comes again."""
    sink = Parquet(tmp_path / "o.parquet")
    sink.open(None, run="r", token=1)
    batch = [sink.encode({"n": 1}), sink.encode({"n": 2.5})]
    first = sink.write(batch, [])
    assert sink.write(batch, []) == first
    sink.settle()
    assert sink.write([], []) == first
    sink.finish()
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"n": 1.0}, {"n": 2.5}]
    assert [path.name for path in tmp_path.iterdir()] == ["o.parquet"]


def test_a_shell_reads_and_writes_them_too(tmp_path):
    """`outlast run` knows files by how their names end, and says what it does not know."""
    (tmp_path / "flow.py").write_text(
        "import outlast\n@outlast.stage\nasync def same(row):\n    return row\npipe = outlast.Pipeline('p', same)\n"
    )
    pq.write_table(pa.Table.from_pylist([{"n": n} for n in range(50)]), tmp_path / "in.parquet")

    def shell(*words):
        command = [sys.executable, "-m", "outlast.cli", "run", "flow.py:pipe", *words]
        return forked.run(command, cwd=tmp_path)

    first = shell("--input", "in.parquet", "--output", "mid.jsonl.zst", "--progress")
    assert first.returncode == 0, first.stderr
    second = shell("--input", "mid.jsonl.zst", "--output", "out.parquet", "--json")
    assert second.returncode == 0, second.stderr
    assert sorted(pq.read_table(tmp_path / "out.parquet")["n"].to_pylist()) == list(range(50))
    wrong = shell("--input", "in.parquet", "--output", "out.xlsx")
    assert wrong.returncode == 2
    assert "out.xlsx" in wrong.stderr + wrong.stdout
