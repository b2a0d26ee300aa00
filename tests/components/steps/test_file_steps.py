"""`files.reader` and `files.writer`, on real files."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from random import Random

import pytest

from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.components.registry import find_component
from servers.disk import Disk
from tables import table

ROWS = [{"id": 1, "title": "Café"}, {"id": 2, "title": 'a,b\n"c"'}]
TEXTS = [{**row, "id": str(row["id"])} for row in ROWS]


def names_in(folder):
    return sorted(one.name for one in folder.iterdir())


def read(root, path, **config):
    return outputs_of("files.reader", {"path": path, **config}, a_context(root))["rows"]


def write(root, path, rows, **config):
    return outputs_of("files.writer", {"path": path, "rows": rows, **config}, a_context(root))


@table("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.zst", "a.parquet"])
def test_what_is_read_is_bounded_as_it_comes_out(tmp_path, name):
    """By max_bytes, of all files together once they are unpacked; a small packed file may be a thousand times as long."""
    write(tmp_path, f"in/1{name}", [{"text": "x" * 1000} for _ in range(2000)])
    packed = (tmp_path / "in" / f"1{name}").stat().st_size
    if not name.endswith(("jsonl", "csv")):
        assert packed < 100_000
    assert len(read(tmp_path, f"in/1{name}", max_bytes=3_000_000)) == 2000
    for path, most in ((f"in/1{name}", 1_500_000), ("in/*" + name, 3_000_000)):
        (tmp_path / "in" / f"2{name}").write_bytes((tmp_path / "in" / f"1{name}").read_bytes())
        config = {"path": path, "max_bytes": most}
        kind, said, _ = failure_of("files.reader", config, a_context(tmp_path))
        assert (kind, f"at most max_bytes ({most}) together once they are unpacked" in said) == ("data_error", True)


def test_the_bound_of_files_is_exact(tmp_path):
    """As many bytes as max_bytes says are read, one more is an error."""
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\n' * 10)
    assert len(read(tmp_path, "a.jsonl", max_bytes=80)) == 10
    assert failure_of("files.reader", {"path": "a.jsonl", "max_bytes": 79}, a_context(tmp_path))[0] == "data_error"
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a":1}\n' * 10))
    assert len(read(tmp_path, "b.jsonl.gz", max_bytes=80)) == 10
    assert failure_of("files.reader", {"path": "b.jsonl.gz", "max_bytes": 79}, a_context(tmp_path))[0] == "data_error"


@table(
    ("path", "config", "rows"),
    [
        ("out/a.jsonl", {}, ROWS),
        ("out/a.ndjson.gz", {}, ROWS),
        ("out/a.json", {}, ROWS),
        ("out/a.json.gz", {}, ROWS),
        ("out/a.csv", {}, TEXTS),
        ("out/a.tsv", {}, TEXTS),
        ("out/a.csv.zst", {}, TEXTS),
        ("out/a.parquet", {}, ROWS),
        ("out/a.pq", {}, ROWS),
        ("out/a.txt", {"format": "tsv"}, TEXTS),
        ("out/b.tsv", {"format": "csv"}, TEXTS),
        ("out/b.csv.gz", {"format": "jsonl"}, ROWS),
        ("out/b.dat", {"format": "parquet"}, ROWS),
    ],
)
def test_what_is_written_is_read_back(tmp_path, path, config, rows):
    """Every format, by its ending or by the step's word, also compressed; the folder is made, and nothing is left beside it."""
    assert write(tmp_path, path, ROWS, **config) == {"path": path, "count": 2}
    assert read(tmp_path, path, **config) == rows
    assert [name for name in names_in(tmp_path / "out") if name.startswith(".")] == []


def test_fewer_rows_than_min_rows_leave_the_file_as_it_was(tmp_path):
    """The file that is there keeps its rows, and no part of a new one stays behind; as many rows as min_rows are enough."""
    write(tmp_path, "a.csv", [{"n": 1}])
    before = (tmp_path / "a.csv").read_bytes()
    config = {"path": "a.csv", "rows": [], "min_rows": 1}
    kind, said, _ = failure_of("files.writer", config, a_context(tmp_path))
    assert (kind, said) == (
        "validation_error",
        "expected at least 1 row for the file a.csv, because min_rows is 1, got: 0. Nothing was written",
    )
    assert (names_in(tmp_path), (tmp_path / "a.csv").read_bytes()) == (["a.csv"], before)
    assert write(tmp_path, "a.csv", [{"n": 2}], min_rows=1)["count"] == 1


def test_a_pattern_is_read_in_the_order_of_names(tmp_path):
    """Several files are one list, always in the same order, and a file with a bracket in its name is meant by its name."""
    for name in ("b", "a", "c[1]"):
        write(tmp_path, f"in/{name.replace('[1]', '1')}.jsonl", [{"of": name}])
    (tmp_path / "in/c1.jsonl").rename(tmp_path / "in/c[1].jsonl")
    assert [row["of"] for row in read(tmp_path, "in/*.jsonl")] == ["a", "b", "c[1]"]
    assert [row["of"] for row in read(tmp_path, "in/c[1].jsonl")] == ["c[1]"]
    assert [row["of"] for row in read(tmp_path, "**/*.jsonl")] == ["a", "b", "c[1]"]


def test_delimiter_and_encoding_are_those_of_the_step(tmp_path):
    """CSV of elsewhere is read as it is written."""
    (tmp_path / "a.csv").write_bytes("id;title\n1;Café\n".encode("cp1252"))
    assert read(tmp_path, "a.csv", delimiter=";", encoding="cp1252") == [{"id": "1", "title": "Café"}]


@table(
    ("name", "content", "kind", "said"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": hunter2\n', "validation_error", "a.jsonl line 2: Expecting value"),
        ("a.jsonl", b'{"id": 1}\n\n{"id": [{"a": NaN}]}\n', "validation_error", "a.jsonl row 2: NaN, Infinity or a number that is too large, which is no JSON"),
        ("a.json", b"-Infinity\n", "validation_error", "a.json row 1: NaN, Infinity or a number that is too large"),
        ("a.ndjson", b'{"id": 1e999}\n', "validation_error", "a.ndjson row 1: NaN, Infinity or a number that is too large"),
        ("a.csv", b"id,title\n1\n", "validation_error", "a.csv line 2: 1 columns instead of 2"),
        ("a.jsonl.gz", gzip.compress(b'{"id": 1}\n')[:-4], "data_error", "a.jsonl.gz is cut off or damaged after 1 items"),
        ("a.parquet", b"PAR1hunter2", "data_error", "a.parquet is cut off or damaged"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_fail_the_step(tmp_path, name, content, kind, said):
    """Nothing is left out in silence; the message has the place, and not what stands there, which is kept for people."""
    (tmp_path / name).write_bytes(content)
    shelf = Shelf()
    found, told, _ = failure_of("files.reader", {"path": name}, a_context(tmp_path, place=shelf.place))
    assert (found, told.startswith(said), "hunter2" in told) == (kind, True, False)
    kept = {b"hunter2\n": '{"id": hunter2', b"NaN": '{"id": [{"a": NaN}]}', b"1e999": '{"id": Infinity}', b"-Inf": "-Infinity", b"\n1\n": "1"}  # fmt: skip
    assert shelf.kept == next(({"unreadable": text} for part, text in kept.items() if part in content), {})


@table(
    ("content", "config", "said"),
    [
        (b"id\n\xff\n", {}, 'a.csv line 2: the byte 0xff is not utf-8. If all of it has another encoding: give the step encoding: "cp1252"'),
        (b"i\0d\0,\0", {}, 'Say how it is encoded: give the step encoding: "utf-16-le".'),
        (b"id;b\n1;2\n", {}, "If ';' stands between them: give the step delimiter: ';'. If it is one column: delimiter: ','."),
    ],
)  # fmt: skip
def test_the_way_out_is_a_key_of_the_step(tmp_path, content, config, said):
    """And no option of Python or of a command, which a file does not have."""
    (tmp_path / "a.csv").write_bytes(content)
    told = failure_of("files.reader", {"path": "a.csv", **config}, a_context(tmp_path))[1]
    assert (told.endswith(said), "Files(" in told, "--" in told) == (True, False, False), told


@table("encoding", ["idna", "IDNA", "punycode", "hex", "nope"])
def test_an_encoding_that_is_none_of_files_is_refused_before_anything_runs(encoding):
    """Python has codecs that read names of hosts, and fail only once a file is read."""
    problems = find_component("files.reader").problems({"path": "a.csv", "encoding": encoding})
    assert [(one.path, one.expected) for one in problems] == [(("encoding",), "the name of an encoding of text")]


def test_a_file_that_is_not_there_is_missing_input(tmp_path):
    """A file, a pattern that means none, and a folder are each told."""
    (tmp_path / "in.csv").mkdir()
    told = [
        failure_of("files.reader", {"path": path}, a_context(tmp_path))[:2] for path in ("a.csv", "x/*.csv", "in.csv")
    ]
    assert told == [
        ("missing_input", "expected files at a.csv, got: none"),
        ("missing_input", "expected files at x/*.csv, got: none"),
        ("missing_input", "expected files at in.csv, got: a folder"),
    ]


def test_links_that_lead_out_of_the_root_are_refused(tmp_path):
    """Also a single file among those of a pattern, a folder on the way, and the file that would be written."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "in").mkdir(parents=True)
    outside.mkdir()
    (outside / "b.jsonl").write_text("{}\n")
    write(root, "in/a.jsonl", [{}])
    (root / "in/b.jsonl").symlink_to(outside / "b.jsonl")
    (root / "away").symlink_to(outside)
    told = [
        failure_of("files.reader", {"path": path}, a_context(root))[0]
        for path in ("in/b.jsonl", "in/*.jsonl", "away/b.jsonl", "away/*.jsonl", "**/*.jsonl")
    ]
    told += [
        failure_of("files.writer", {"path": path, "rows": []}, a_context(root))[0]
        for path in ("in/b.jsonl", "away/c.jsonl", "away/new/c.jsonl")
    ]
    assert told == ["permission_denied"] * 8
    assert names_in(outside) == ["b.jsonl"]


def test_a_link_inside_of_the_root_stays_one(tmp_path):
    """What it leads to is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "latest.jsonl").symlink_to(tmp_path / "data/a.jsonl")
    write(tmp_path, "latest.jsonl", ROWS)
    assert ((tmp_path / "latest.jsonl").is_symlink(), read(tmp_path, "data/a.jsonl")) == (True, ROWS)


@table("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_row_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path, name):
    """All rows or none: the old file stays, and no part of a new one is left."""
    write(tmp_path, name, ROWS)
    before = (tmp_path / name).read_bytes()
    config = {"path": name, "rows": [*ROWS, {"id": 3, "title": object()}]}
    kind, said, _ = failure_of("files.writer", config, a_context(tmp_path))
    assert (kind, said.startswith("row 3: "), "type object" in said) == ("validation_error", True, True)
    assert ((tmp_path / name).read_bytes(), [one for one in names_in(tmp_path) if one[0] == "."]) == (before, [])


@pytest.fixture
def disk():
    made = Disk("1m")
    yield made
    made.close()


@table("name", ["a.jsonl", "a.csv.gz", "a.parquet"])
def test_a_disk_that_is_full_leaves_the_file_as_it_was(disk, name):
    """What the system raises goes up as it is, and what was begun is removed."""
    write(disk.folder, name, ROWS)
    before = read(disk.folder, name)
    rows = [{"id": number, "title": str(Random(number).getrandbits(4096))} for number in range(2000)]
    kind, _, _ = failure_of("files.writer", {"path": name, "rows": rows}, a_context(disk.folder))
    assert (kind, read(disk.folder, name)) == ("resource_exhausted", before)
    assert [one for one in names_in(disk.folder) if one.startswith(".")] == []


def test_what_a_killed_attempt_has_left_is_removed_by_the_next(tmp_path):
    """The next attempt at the same step clears it; that of another step is left alone."""
    with pytest.MonkeyPatch.context() as dies:
        dies.setattr("shutil.rmtree", lambda *_, **__: None)
        dies.setattr("outlast.components.steps.doing.files.fill", lambda *_: 1 / 0)
        for key in ("k-1", "k-2"):
            failure_of("files.writer", {"path": "a.csv", "rows": []}, a_context(tmp_path, idempotency_key=key))
    assert len(names_in(tmp_path)) == 2
    write(tmp_path, "a.csv", ROWS)
    assert sorted(name[:7] for name in names_in(tmp_path)) == [".a.csv.", "a.csv"]


def test_no_rows_are_a_file_without_rows(tmp_path):
    """The file is there for whoever reads it next."""
    for name in ("a.jsonl", "a.csv", "a.parquet", "a.jsonl.gz", "a.csv.zst"):
        assert write(tmp_path, name, []) == {"path": name, "count": 0}
        assert read(tmp_path, name) == []
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == b""


def test_only_a_file_is_replaced(tmp_path):
    """A folder of that name is told, and stays."""
    (tmp_path / "a.csv").mkdir()
    kind, said, _ = failure_of("files.writer", {"path": "a.csv", "rows": []}, a_context(tmp_path))
    assert (kind, said) == ("data_error", "expected a.csv to be a file, got: a folder")


def test_types_of_values_come_back_from_parquet(tmp_path):
    """Dates, exact numbers and bytes stay what they are."""
    row = {
        "day": dt.date(2026, 1, 2),
        "price": Decimal("1.50"),
        "raw": b"\x00",
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    }
    write(tmp_path, "a.parquet", [row])
    assert read(tmp_path, "a.parquet") == [row]
