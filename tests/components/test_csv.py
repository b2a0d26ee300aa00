"""Files of rows as a source: each record is an item or a dead letter, and none is lost in silence."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import forked
import outlast
from outlast.components import open_source
from outlast.components.reading import Unreadable


@outlast.stage
async def same(item):
    return item


def read(path, **options):
    """The items of a file; of a broken one its text and what is wrong."""
    items = open_source(outlast.Files(path, **options))
    return [(item.raw, str(item.error)) if isinstance(item, Unreadable) else item for item in items]


def row(*cells):
    return dict(zip(("id", "name"), cells, strict=True))


def test_an_unclosed_quote_is_one_dead_letter_and_no_later_row_is_lost(app, tmp_path):
    """D-26: of a thousand rows one is broken; the run has the other 999, and the letter has the line as it stands there."""
    path = tmp_path / "u.csv"
    path.write_text("id,name\n" + "".join(f'{n},"x\n' if n == 3 else f"{n},x\n" for n in range(1000)))
    pipeline = outlast.Pipeline("p", same, app=app, failure_budget=1.0)
    result = pipeline.run(path, ordered=True)
    assert (result.counts.total, result.counts.succeeded, result.counts.dlq) == (1000, 999, 1)
    assert [item["id"] for item in result.outputs()] == [str(n) for n in range(1000) if n != 3]
    [letter] = app.dead_letters.find()
    assert (letter.payload, letter.error) == ('3,"x', "u.csv line 5: a quote that is not closed")


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('1,"x\n2,y\n3,"z"\n4,"a\nb"\n', [('1,"x', "2: a quote that is not closed"), row("2", "y"), row("3", "z"), row("4", "a\nb")]),
        ('1,a\n2,"cut off in', [row("1", "a"), ('2,"cut off in', "3: a quote that is not closed")]),
        ('1,"more\nx,y"oops\n2,c\n', [('1,"more\nx,y"oops', "2: something behind a closing quote"), row("2", "c")]),
        ('1,"a"b\n2,c\n', [('1,"a"b', "2: something behind a closing quote"), row("2", "c")]),
        ('1,"a ""q"""\r\n2,""\r\n3,5" pipe\r\n4,"x,\r\ny"\r\n', [row("1", 'a "q"'), row("2", ""), row("3", '5" pipe'), row("4", "x,\r\ny")]),
        ("1\n1,2,3\n\n4,5\n", [("1", "2: 1 columns instead of 2"), ("1,2,3", "3: 3 columns instead of 2"), row("4", "5")]),
        ('1,"a\nb",c\n2,d\n', [('1,"a\nb",c', "2: 3 columns instead of 2"), row("2", "d")]),
        ('1,"open\nb","c\n2,d\n3,e"f\n', [('1,"open', "2: a quote that is not closed"), ('b","c', "3: a quote in the middle of a cell"), row("2", "d"), ('3,e"f', "5: a quote in the middle of a cell")]),
    ],
)  # fmt: skip
def test_a_record_that_is_broken_is_told_apart_from_its_neighbours(tmp_path, text, items):
    """Quotes that are not closed, closed too early or doubled; too many cells or too few; the number is the line where the record began."""
    path = tmp_path / "in.csv"
    path.write_text("id,name\n" + text, newline="")
    wanted = [(each[0], f"in.csv line {each[1]}") if isinstance(each, tuple) else each for each in items]
    assert read(path) == wanted
    packed = tmp_path / "in.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [each[0] if isinstance(each, tuple) else each for each in read(packed)] == [
        each[0] if isinstance(each, tuple) else each for each in items
    ]


def test_a_long_text_is_a_cell_and_one_that_never_ends_is_not(tmp_path):
    """Cells may be longer than what Python's csv module takes; how far a quote is followed is bounded."""
    path = tmp_path / "in.csv"
    path.write_text('id,name\n1,"' + "x\n" * 200_000 + '"\n2,' + "y" * 200_000 + "\n")
    assert read(path) == [row("1", "x\n" * 200_000), row("2", "y" * 200_000)]
    long = "x" * 100_000  # 16 million characters are looked through for the other quote
    path.write_text('id,name\n1,"open\n' + "".join(f"{n},{long}\n" for n in range(2, 200)) + '200,"closed"\n')
    items = read(path)
    assert items[0] == ('1,"open', "in.csv line 2: a quote that is not closed")
    assert [item["id"] for item in items[1:]] == [str(n) for n in range(2, 201)]


def test_every_record_of_a_long_file_may_span_lines(tmp_path):
    """The bound on the length of a quoted text holds for each record, not for all records of a file together."""
    path = tmp_path / "in.csv"
    text = "x" * 50_000 + "\n" + "y" * 50_000  # of all together: more than 16 million characters
    path.write_text("id,name\n" + "".join(f'{n},"{text}"\n' for n in range(400)))
    assert read(path) == [row(str(n), text) for n in range(400)]


def test_bytes_that_are_no_text_are_the_dead_letter_of_their_row(tmp_path):
    """D-26: never U+FFFD; the letter shows the bytes, the error the way out; with the encoding said, all of it is read."""
    path = tmp_path / "l.csv"
    path.write_bytes("id,name\n1,Müller\n2,x\n".encode("cp1252"))
    broken, good = read(path)
    assert broken[0] == r"1,M\xfcller"
    assert "line 2: the byte 0xfc is not utf-8" in broken[1]
    assert 'encoding="cp1252"' in broken[1]
    assert good == row("2", "x")
    assert read(path, encoding="cp1252") == [row("1", "Müller"), row("2", "x")]


@pytest.mark.parametrize("name", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_a_byte_order_mark_says_how_a_file_is_encoded(tmp_path, name):
    """Excel writes such files. Without the mark, and with zeros in it, a file is refused until it is said what it is."""
    path = tmp_path / "in.csv"
    text = 'id,name\n1,"Müller 日本"\n'
    mark = "\ufeff" if name == "utf-16-be" else ""
    path.write_bytes((mark + text).encode(name))
    assert read(path) == read(path, encoding=name) == [row("1", "Müller 日本")]
    path.write_bytes(text.encode("utf-16-le"))
    with pytest.raises(outlast.ConfigurationError, match=r"as in UTF-16. Say how it is encoded"):
        read(path)
    assert read(path, encoding="utf-16-le") == [row("1", "Müller 日本")]
    path.write_bytes("id,name\n1,ab\n2,c".encode("utf-16-le")[:-1])
    assert "the byte 0x63 is not utf-16-le" in read(path, encoding="utf-16-le")[-1][1]


def test_columns_that_cannot_be_told_apart_are_refused(app, tmp_path):
    """D-26: names that come twice, another delimiter than the one that is looked for; each with the way out."""
    path = tmp_path / "in.csv"
    path.write_text("id,name,name\n1,first,last\n")
    result = outlast.Pipeline("p", same, app=app).run(path, check=False)
    assert (result.status, result.reason, result.counts.total) == ("failed", "source_error", 0)
    assert "expected the columns of in.csv to have names that differ, got twice: 'name'" in result.why
    path.write_text("a;b\n1;2\n")
    with pytest.raises(
        outlast.ConfigurationError,
        match=r"single column 'a;b'. If ';' stands between them: Files\(..., delimiter=';'\)",
    ):
        read(path)
    assert read(path, delimiter=";") == [{"a": "1", "b": "2"}]
    assert read(path, delimiter=",") == [{"a;b": "1;2"}]
    path.write_bytes(b"id,na\xffme\n1,2\n")
    with pytest.raises(outlast.ConfigurationError, match=r"to begin with the names of its columns, got: in.csv line 1"):
        read(path)


def test_options_of_files_are_checked_where_they_are_written(tmp_path):
    """D-26: what has no effect is refused, and so is a file that would be read twice."""
    for options in ({"delimiter": ";;"}, {"delimiter": '"'}, {"encoding": "no such"}, {"encoding": "hex"}):
        with pytest.raises(outlast.ConfigurationError, match=f"expected {next(iter(options))} to be"):
            outlast.Files("in.csv", **options)
    (tmp_path / "in.jsonl").write_text("1\n")
    with pytest.raises(outlast.ConfigurationError, match="expected encoding for CSV or TSV files, got: none of these"):
        open_source(outlast.Files(tmp_path / "in.jsonl", encoding="cp1252"))
    with pytest.raises(outlast.ConfigurationError, match=r"every file of a source once, got twice: .*in.jsonl"):
        open_source(outlast.Files(tmp_path / "in.jsonl", f"{tmp_path}/*.jsonl"))
    with pytest.raises(outlast.ConfigurationError, match="expected patterns to be"):
        outlast.Files()


def test_json_lines_that_are_too_deep_or_no_text_are_dead_letters(app, tmp_path):
    """D-26: a nested line that no parser follows, and bytes that are no text, stop nobody."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'1\n"M\xfcller"\n' + b"[" * 100_000 + b"]" * 100_000 + b"\n" + b"9" * 5000 + b"\n2\n")
    result = outlast.Pipeline("p", same, app=app, failure_budget=1.0).run(path, ordered=True, check=False)
    assert (list(result.outputs()), result.counts.dlq) == ([1, 2], 3)
    letters = sorted(app.dead_letters.find(), key=lambda letter: len(letter.payload))
    assert letters[0].payload == r'"M\xfcller"'
    assert letters[2].payload == "[" * 100_000 + "]" * 100_000
    path.write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(
        outlast.ConfigurationError, match=r"expected in.jsonl to be UTF-8, as JSON Lines are, got: UTF-16"
    ):
        list(open_source(path))


def test_a_line_with_two_values_of_one_name_is_a_dead_letter(tmp_path):
    """D-26: as two columns of one name are; at any depth. The first line may have a byte order mark."""
    path = tmp_path / "in.jsonl"
    path.write_text(
        '\ufeff{"a": 1}\n{"a": 1, "a": 2}\n[{"b": {"c": 1, "d": 2, "c": 1}}]\n{"a": {"a": 3}}\n', encoding="utf-8"
    )
    items = list(open_source(path))
    assert [items[0], items[3]] == [{"a": 1}, {"a": {"a": 3}}]
    assert [str(item.error) for item in items[1:3]] == [
        "in.jsonl line 2: two values have the name 'a'",
        "in.jsonl line 3: two values have the name 'c'",
    ]


@pytest.mark.parametrize(
    "text", [json.dumps([{"id": 1}, {"id": 2}]), json.dumps([1, 2], indent=2), "\ufeff [1]\n[2]\n"]
)
def test_an_array_is_refused_on_one_line_as_over_many(tmp_path, text):
    """A `.json` file with an array is not one item; with another name each line may be an array."""
    path = tmp_path / "in.json"
    path.write_text(text)
    with pytest.raises(
        outlast.ConfigurationError,
        match=r"got: an array. Write each element to a line of its own, as jq -c '.\[\]' does",
    ):
        list(open_source(path))
    (tmp_path / "in.jsonl").write_text("[1]\n[2, 3]\n")
    assert list(open_source(tmp_path / "in.jsonl")) == [[1], [2, 3]]


CELLS = st.text(st.sampled_from(list("ab\",;\n\r\t'ü日 ")) | st.characters(blacklist_categories=["Cs"]), max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=8), st.sampled_from(",;\t|"))
def test_whatever_python_writes_is_read_back(tmp_path_factory, rows, mark):
    """Every file that the csv module writes with all cells in quotes has the same cells here, for every delimiter."""
    path = tmp_path_factory.getbasetemp() / "round.csv"
    text = io.StringIO()
    csv.writer(text, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([("id", "name"), *rows])
    path.write_text(text.getvalue(), newline="", encoding="utf-8")
    assert read(path, delimiter=mark) == [row(*cells) for cells in rows]


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(list('ab",\n')), max_size=60))
def test_every_character_is_in_an_item_or_in_a_dead_letter(tmp_path_factory, text):
    """D-26: whatever the quotes are like, all letters of the file come out, in their order and once."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text("id,name\n" + text, newline="")
    found = "".join("".join(each.values()) if isinstance(each, dict) else each[0] for each in read(path))
    assert [letter for letter in found if letter in "ab"] == [letter for letter in text if letter in "ab"]


def test_a_shell_reads_several_inputs_and_says_how_tables_are_written(tmp_path):
    """Each --input is read, in its order; a resume knows them; what is wrong with --output is said with everything else."""
    (tmp_path / "flow.py").write_text(
        "import outlast\n@outlast.stage\nasync def same(row):\n    return row\npipe = outlast.Pipeline('p', same)\n"
    )
    (tmp_path / "a.csv").write_bytes("id;name\n1;Müller\n".encode("cp1252"))
    (tmp_path / "b.csv").write_bytes("id;name\n2;x\n".encode("cp1252"))

    def shell(*words):
        command = [sys.executable, "-m", "outlast.cli", *words]
        return forked.run(command, cwd=tmp_path)

    way = ("--delimiter", ";", "--encoding", "cp1252")
    first = shell(
        "run", "flow.py:pipe", "--input", "b.csv", "--input", "a.csv", *way, "--output", "o.jsonl", "--run-key", "k"
    )
    assert first.returncode == 0, first.stderr
    assert sorted((tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()) == [
        '{"id":"1","name":"Müller"}',
        '{"id":"2","name":"x"}',
    ]
    (tmp_path / "a.csv").write_bytes("id;name\n1;Müller\n3;ü\n".encode("cp1252"))
    again = shell("resume", "k", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["counts"]["succeeded"] == 3
    wrong = shell(
        "run", "flow.py:pipe", "--input", "a.csv", "--encoding", "none", "--output", "o.xlsx", "--on-change", "no"
    )
    assert wrong.returncode == 2
    for said in ("expected encoding to be", "got: o.xlsx", "--on-change"):
        assert said in wrong.stderr
