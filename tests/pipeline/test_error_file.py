"""Errors on record and in a file: exact after every resume, from every way of failing, and nothing in it that a spreadsheet would run."""

# ruff: noqa: RUF001 - characters that look alike are what this is about

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import re
import sqlite3
from datetime import UTC, datetime

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
import tables
from outlast import testing
from outlast.pipeline.record.errorfile import HEADER, append_errors, cells_of, defused
from outlast.pipeline.record.rowerrors import ErrorLine
from outlast.rows import number, required, row_stage, year_month

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
CLEAN = row_stage(required("plan_code"), year_month("report_date"), number("scale", low=0))
ROWS = [
    {"plan_code": "P-1", "report_date": "202501", "scale": 1},
    {"plan_code": "", "report_date": "soon", "scale": 2},
    {"plan_code": "P-3", "report_date": "2025-01-15", "scale": -5},
]


def pipeline(*stages, app=None, name="plans", **options):
    return outlast.Pipeline(name, *stages, app=app, min_partial_rate=0, min_success_rate=0, **options)


def table(path):
    """The file as the csv module reads it; the mark and the header are checked."""
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    assert data.count(b"\xef\xbb\xbf") == 1
    header, *rows = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    assert tuple(header) == HEADER
    assert all(len(row) == len(HEADER) for row in rows)
    return [dict(zip(HEADER, row, strict=True)) for row in rows]


def line(**changes):
    given = {
        "run_id": "r1",
        "run_key": "today",
        "timestamp": datetime(2026, 11, 15, tzinfo=UTC),
        "pipeline": "plans",
        "stage": "clean",
        "row_index": 0,
        "item_key": "k",
        "field": "a",
        "error_type": "format",
        "message": "m",
        "original_value": "v",
        "raw_row": {"a": "v"},
    }
    return ErrorLine(**(given | changes))


# --- what is in it ---


@pytest.mark.parametrize("on_item_error", ["dlq", "collect"])
def test_every_error_of_every_row_has_its_line(app, tmp_path, on_item_error):
    """S2-22, C-17, U-16: dead letters and collected rows alike, on both databases: who, where, what, and the row as it came in."""
    result = pipeline(CLEAN, app=app).run(ROWS, run_key="day", on_item_error=on_item_error)
    path = tmp_path / "new" / "folder" / "errors.csv"
    assert result.write_errors(path) == 3
    lines = table(path)
    assert [(row["row_index"], row["field"], row["error_type"], row["original_value"]) for row in lines] == [
        ("1", "plan_code", "missing", ""),
        ("1", "report_date", "format", "soon"),
        ("2", "scale", "range", "-5"),
    ]
    assert {(row["run_id"], row["run_key"], row["pipeline"], row["stage"]) for row in lines} == {
        (result.id, "day", "plans", "clean")
    }
    assert [json.loads(row["raw_row"]) for row in lines] == [ROWS[1], ROWS[1], ROWS[2]]
    assert lines[1]["message"] == (
        "Field 'report_date': Cannot parse 'soon' as date. Expected format: YYYYMM. Example: 202501"
    )
    assert all(datetime.fromisoformat(row["timestamp"]).tzinfo is not None for row in lines)
    assert {row["item_key"] for row in lines} == {item.key for item in result.items() if item.error}


def test_file_opens_in_pandas(tmp_path):
    """U-16: one header, UTF-8, numbers are numbers."""
    result = testing.run(pipeline(CLEAN), ROWS)
    result.write_errors(tmp_path / "e.csv")
    frame = pd.read_csv(tmp_path / "e.csv")
    assert list(frame.columns) == list(HEADER)
    assert list(frame["row_index"]) == [1, 1, 2]
    assert frame["original_value"].iloc[2] == "-5"


def test_row_that_failed_behind_another_stage_is_told_as_the_source_has_it(app, tmp_path):
    """U-16: the owner mends the source, not what a stage has made of it."""

    @outlast.stage
    def first(row: dict) -> dict:
        return {"inner": row["scale"]}

    @outlast.stage
    def second(row: dict) -> dict:
        raise ValueError("Field 'scale': Too odd")

    for how in ("dlq", "collect"):
        result = pipeline(first, second, app=app).run(ROWS[:1], run_key=how, on_item_error=how)
        result.write_errors(tmp_path / f"{how}.csv")
        (row,) = table(tmp_path / f"{how}.csv")
        assert (row["stage"], row["field"], row["error_type"]) == ("second", "scale", "data_error")
        assert json.loads(row["raw_row"]) == ROWS[0]


def test_a_masked_row_is_json(tmp_path):
    """What is masked in it is a text, as everywhere; what is no JSON anyhow is masked as it stands."""
    rows = [{"id": 7, "password": 12345}, {"password": "hunter2", "at": datetime(2026, 1, 1, tzinfo=UTC)}]
    assert [json.loads(cells_of(line(raw_row=row))[-1]) for row in rows] == [
        {"id": 7, "password": "***"},
        {"password": "***", "at": "2026-01-01T00:00:00+00:00"},
    ]
    assert json.loads(cells_of(line(raw_row=rows[0]), reveal=True)[-1]) == rows[0]
    assert "hunter2" not in cells_of(line(raw_row={(1, 2): "password=hunter2"}))[-1]


@pytest.mark.parametrize("on_item_error", ["dlq", "collect"])
def test_line_of_a_source_file_that_cannot_be_read_is_in_it(app, tmp_path, on_item_error):
    """With the file's name and line, and the text as it stands there (S2-22)."""
    source = tmp_path / "in.csv"
    source.write_text("plan_code,report_date,scale\nP-1,202501,1\nP-2,202501\nP-3,x,1\n")
    result = pipeline(CLEAN, app=app).run(source, on_item_error=on_item_error)
    result.write_errors(tmp_path / "e.csv")
    lines = table(tmp_path / "e.csv")
    assert [(row["row_index"], row["stage"]) for row in lines] == [("1", "source"), ("2", "clean")]
    assert lines[0]["message"] == "in.csv line 3: 2 columns instead of 3"
    assert lines[0]["raw_row"] == "P-2,202501"


def test_resumed_run_adds_what_is_new_and_repeats_nothing(app, tmp_path):
    """Written after each pass, the file has every error once (S2-22)."""
    wanted = pipeline(CLEAN, app=app)

    def broken():
        yield from ROWS[:2]
        raise OSError("the source went away")

    path = tmp_path / "e.csv"
    first = wanted.run(broken(), run_key="day", check=False)
    assert (first.status, first.write_errors(path)) == ("failed", 2)
    second = wanted.run(ROWS, run_key="day")
    assert second.write_errors(path) == 1
    assert second.write_errors(path) == 0
    assert [row["row_index"] for row in table(path)] == ["1", "1", "2"]
    other = wanted.run(ROWS, run_key="next day")
    assert other.write_errors(path) == 3
    assert len(table(path)) == 6


def test_replay_that_fails_again_has_its_errors_too(app):
    """Dead letters of a replay are those of the first run, but what was wrong this time is told (S2-22)."""
    wanted = pipeline(CLEAN, app=app)
    wanted.run(ROWS)
    again = wanted.reprocess(check=False)
    assert sorted((line.field, line.raw_row["plan_code"]) for line in again.errors()) == [
        ("plan_code", ""),
        ("report_date", ""),
        ("scale", "P-3"),
    ]


def test_edited_dead_letter_does_not_change_what_was_wrong(app):
    """The file tells what the source had."""
    wanted = pipeline(CLEAN, app=app)
    result = wanted.run(ROWS)
    letter = next(iter(app.dead_letters.find(text="scale")))
    app.dead_letters.edit(letter.id, ROWS[0], reason="typo")
    assert [line.raw_row for line in result.errors()][-1] == ROWS[2]


def test_failed_items_have_no_value(app):
    """What is kept of a failure is not its output."""
    result = pipeline(CLEAN, app=app).run(ROWS, on_item_error="collect")
    assert [(item.status, item.value is None) for item in result.items()] == [
        ("succeeded", False),
        ("failed", True),
        ("failed", True),
    ]
    assert len(list(result.outputs())) == 1


def test_row_that_cannot_be_stored_is_told_as_it_looks(app):
    """U-16: a value of a strange type keeps no error from its line."""
    result = pipeline(CLEAN, app=app).run(
        [{"plan_code": "", "report_date": "202501", "scale": 1, "odd": object}], on_item_error="collect"
    )
    (found,) = result.errors()
    assert "odd" in found.raw_row
    assert "class 'object'" in found.raw_row


class Sealed:
    def encode(self, data):
        return data[::-1]

    def decode(self, data):
        return data[::-1]


def test_values_are_stored_through_the_codec_of_the_app(tmp_path):
    """What an app encrypts is not in its store in plain text, not even as the particulars of an error."""
    app = outlast.App("sealed", store=str(tmp_path / "s.db"), codec=Sealed())

    def check(row):
        return outlast.StepResult(row, errors=[outlast.rows.RowError("Wrong.", "a", "own", "PLAINVALUE")])

    result = pipeline(row_stage(check), app=app).run([{"a": "PLAINVALUE"}], on_item_error="collect")
    assert [(line.original_value, line.raw_row) for line in result.errors()] == [("PLAINVALUE", {"a": "PLAINVALUE"})]
    app.store.close()
    with sqlite3.connect(tmp_path / "s.db") as db:
        dump = " ".join(db.iterdump())
    assert "PLAINVALUE" not in dump
    assert b"PLAINVALUE".hex().upper() not in dump


def test_credentials_are_masked_unless_they_are_to_be_revealed(tmp_path):
    """The value is the user's own and is shown, but what looks like a credential does not leave by accident (S2-24)."""
    rows = [{"plan_code": "", "report_date": "202501", "scale": 1, "password": "hunter2000"}]
    result = testing.run(pipeline(CLEAN), rows)
    result.write_errors(tmp_path / "masked.csv")
    assert "hunter2000" not in (tmp_path / "masked.csv").read_text()
    result.write_errors(tmp_path / "open.csv", reveal=True)
    assert json.loads(table(tmp_path / "open.csv")[0]["raw_row"]) == rows[0]


# --- the file ---


def append_many(path, run, count):
    """In a process of its own."""
    for place in range(count):
        append_errors(path, [line(run_id=run, row_index=place, message=f"no\n{place}")])


def test_processes_take_turns(tmp_path):
    """Three write at the same time: one header, no line lost, none torn (S2-22)."""
    path = tmp_path / "e.csv"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(path, run, 40)) for run in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    found = sorted((row["run_id"], int(row["row_index"])) for row in table(path))
    assert found == [(run, place) for run in "abc" for place in range(40)]


def test_half_a_line_that_a_crash_has_left_is_taken_away(tmp_path):
    """Wherever the last write was cut, the next one leaves a whole file with every line once (S2-22)."""
    path = tmp_path / "e.csv"
    lines = [line(row_index=0), line(row_index=1, message='a "quoted"\nline', raw_row={"a": 'x"\r\ny'})]
    append_errors(path, lines)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        append_errors(path, lines)
        assert [row["row_index"] for row in table(path)] == ["0", "1"], cut


def test_file_that_an_editor_saved_without_its_last_newline_goes_on(tmp_path):
    """What people do to the file in between is theirs."""
    path = tmp_path / "e.csv"
    append_errors(path, [line()])
    path.write_bytes(path.read_bytes().rstrip(b"\r\n").replace(b"\r\n", b"\n"))
    append_errors(path, [line(run_id="r2", row_index=1)])
    assert [row["row_index"] for row in table(path)] == ["0", "1"]


def test_file_of_something_else_is_not_touched(tmp_path):
    """The source itself, given by mistake, is safe."""
    path = tmp_path / "in.csv"
    for text in ("plan_code,scale\nP,1\n", "x", "\n\n"):
        path.write_text(text)
        with pytest.raises(outlast.ConfigurationError, match=r"in\.csv to be new, or a file of errors"):
            append_errors(path, [line()])
        assert path.read_text() == text


def test_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """An error on the way is raised, and nothing half is left (S2-22)."""
    path = tmp_path / "e.csv"
    append_errors(path, [line()])
    before = path.read_bytes()
    write = os.write

    def full(file, data):
        write(file, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        append_errors(path, [line(row_index=1)])
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_no_error_makes_a_file_with_a_header_only(tmp_path):
    """Who expects a file finds one, and reads from it that all is well."""
    assert testing.run(pipeline(CLEAN), ROWS[:1]).write_errors(tmp_path / "e.csv") == 0
    assert table(tmp_path / "e.csv") == []


# --- formulas ---

CORPUS = [
    "=1+1", "=cmd|' /C calc'!A0", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(1+9)*cmd|' /C calc'!A0", '=HYPERLINK("http://x","y")',
    '=DDE("cmd";"/C calc";"x")', "\t=1+1", "\r=1+1", "\n=1+1", " =1+1", "\u00a0=1", "\u3000=1", "\ufeff=1", "\u200b=1", '"=1+1"', "＝1+1",
    "＋1+cmd", "－1-cmd", "＠SUM(1)", "a;=1+1", "a\t=1", "a\n=1", 'a;"=1+1', "x;\u3000+1-2", "+1-555-0100", "-", "=", "\t", '=IMPORTXML("http://x")',
    "-1e5x", "=-5", "--5", '=A1&""', "%0A=1", "@import",
]  # fmt: skip


def runs(cell):
    """Whether a spreadsheet may take the cell for a formula."""
    seen = cell.lstrip('"\ufeff\u200b \u00a0\u3000')
    if cell[:1] in {"\t", "\r", "\n"}:
        return True
    plain_number = re.fullmatch(r"[+-]?(\d+([.,]\d+)*|\.\d+)([eE][+-]?\d+)?", seen)
    return seen[:1] != "" and seen[0] in SIGNS and plain_number is None


@tables.table("text", CORPUS)
def test_no_cell_is_a_formula_however_the_file_is_split(tmp_path, text):
    """As value, message, key, field and inside of the row; read with commas, semicolons, tabs, and by pandas (S2-22)."""
    path = tmp_path / "e.csv"
    path.unlink(missing_ok=True)
    found = line(
        message=text, original_value=text, item_key=text, field=text, raw_row={text: text, "b": [text, f"x;{text}"]}
    )
    append_errors(path, [found, line(row_index=1, raw_row=text, run_key=text)])
    data = path.read_bytes().decode("utf-8-sig")
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(data, newline=""), delimiter=delimiter):
            assert not [cell for cell in row if runs(cell)]
    for cell in re.split(r"[;\t\r\n]", data):  # a reader that does not know quotes
        assert not runs(cell.split(",")[0])
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert not [cell for column in frame for cell in frame[column] if runs(cell)]
    assert len(frame) == 2
    assert json.loads(frame["raw_row"].iloc[0]) == {text: text, "b": [text, f"x;{text}"]}


@tables.table("text", ["-5", "+5", "-5.25", "-1,234.5", "-1e-3", "+.5", "5", "-0"])
def test_number_stays_a_number(text):
    """A minus alone makes no formula (S2-22)."""
    assert defused(text) == text


texts = st.text(alphabet=st.characters(blacklist_categories=()), max_size=40) | st.text(
    alphabet=SIGNS + ";,\"'\t\r\n 1a\u3000\ufeff", max_size=12
)


@given(texts)
def test_whatever_stands_in_a_cell_is_defused_and_readable(text):
    """No cell runs, and nothing but apostrophes was added (S2-22)."""
    cell = defused(text)
    assert not runs(cell)
    assert cell.replace("'", "") == text.replace("'", "")


@given(texts, texts)
def test_what_is_written_comes_back(tmp_path_factory, text, other):
    """Quotes, newlines and separators survive; only what nobody can see is written out (S2-22)."""
    path = tmp_path_factory.mktemp("csv") / "e.csv"
    found = line(message=text, original_value=other, raw_row={"a": text, "b": [other]})
    assert append_errors(path, [found], reveal=True) == 1
    assert append_errors(path, [found], reveal=True) == 0
    (row,) = table(path)
    assert list(row.values()) == cells_of(found, reveal=True)


@tables.table("text", ["\t" * 60_000, "; " * 30_000, '"' * 60_000, "\n;=" * 20_000, " " * 60_000 + "x", "=" * 60_000])
def test_hostile_text_does_not_stall_the_file(text):
    """Every rule reads a cell once."""
    cells = cells_of(line(message=text, original_value=text, raw_row=text))
    assert not [cell for cell in cells if runs(cell)]
    assert not [cell for cell in cells_of(line(raw_row={text: [text]})) if runs(cell)]


def test_long_values_are_cut(tmp_path):
    """A spreadsheet holds 32,767 characters in a cell."""
    append_errors(
        tmp_path / "e.csv", [line(original_value="x" * 5000, raw_row={"a": "y" * 100_000}, message="m" * 9000)]
    )
    (row,) = table(tmp_path / "e.csv")
    assert [len(row[name]) for name in ("original_value", "message", "raw_row")] == [200, 1000, 30_000]


def test_characters_that_nobody_sees_are_written_out():
    """Control characters, half characters, and those that turn the direction of reading."""
    row = dict(zip(HEADER, cells_of(line(message="a\x00b\x1b[31m\u202e\ud800", raw_row={1: (2, 3)})), strict=True))
    assert row["message"] == "a\\u0000b\\u001b[31m\\u202e\\ud800"
    assert row["raw_row"] == '{"1": [2, 3]}'
