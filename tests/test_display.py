"""What a person sees of a run: pictures are functions of a snapshot, and read well at any width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outlast.cli.display import Pace, Snapshot, StageLine, lines, picture
from rich.console import Console

from outlast.words import counted, duration, per_second, percent

RUN = Snapshot(
    pipeline="reviews",
    run_key="2026-11-15",
    status="running",
    elapsed=83.2,
    total=12_468,
    expected=20_000,
    succeeded=12_290,
    degraded=31,
    skipped=12,
    dead=43,
    rate=148.2,
    waiting=23,
    retries=1_812,
    stages=(
        StageLine(name="parse", done=12_400, skipped=12, dead=3),
        StageLine(name="label", done=12_350, running=64, waiting=23, retries=1_800, dead=40),
        StageLine(name="store", done=12_290, running=12, retries=12),
    ),
    notices=("breaker shop is open: next probe in 12 s",),
    problems=((38, "label", "client_error: HTTP 422 from the service: " + "cannot label this text " * 4),),
)


def drawn(snapshot: Snapshot, width: int, height: int = 1000) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None, legacy_windows=False)
    console.print(picture(snapshot, width, height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_run_at_80_columns():
    """S3-05, S3-07: progress, rate, time left, per-stage counts, retries, waiting, dead letters; nothing wraps, nothing is cut but messages."""
    assert drawn(RUN, 80) == [
        "reviews  2026-11-15                                          running  1 min 23 s",
        "━" * 35 + "─" * 21 + "  12,345 of 20,000  62 %",
        "148 items/s   about 52 s left   1,812 retries   23 waiting",
        "",
        "stage     done  running  waiting  retries  skipped     dead",
        "parse   12,400        ·        ·        ·       12        3",
        "label   12,350       64       23    1,800        ·       40",
        "store   12,290       12        ·       12        ·        ·",
        "",
        "12,290 succeeded (31 degraded)   12 skipped   43 dead letters   123 pending",
        "breaker shop is open: next probe in 12 s",
        "     38 \N{MULTIPLICATION SIGN} label  client_error: HTTP 422 from the service: cannot label this tex…",
    ]


def test_a_run_at_200_columns():
    """S3-05: a wide terminal shows whole messages; the bar stays short enough to be read."""
    wide = drawn(RUN, 200)
    assert wide[0].endswith("running  1 min 23 s")
    assert len(wide[0]) == len(wide[1]) == 100
    assert (
        wide[-1]
        == "     38 \N{MULTIPLICATION SIGN} label  client_error: HTTP 422 from the service: "
        + ("cannot label this text " * 4).rstrip()
    )
    assert wide[4:8] == drawn(RUN, 80)[4:8]


def test_a_narrow_terminal_goes_without_what_the_totals_say():
    """S3-05: at 50 columns the table keeps what each stage has done and lost."""
    narrow = drawn(RUN, 50)
    assert narrow[4].split() == ["stage", "done", "running", "dead"]
    assert max(len(line) for line in narrow) == 50


def test_a_low_terminal_keeps_the_counts_and_drops_the_problems():
    """S3-07: what does not fit is left out from the bottom."""
    crowded = Snapshot(**{**{name: getattr(RUN, name) for name in RUN.__slots__}, "problems": RUN.problems * 5})
    assert len(drawn(crowded, 80, height=14)) == 12
    assert drawn(crowded, 80, height=5)[9].endswith("123 pending")


def test_without_an_expected_total_nothing_is_promised():
    """S3-07: a stream of unknown length has neither percentage nor time left."""
    stream = Snapshot(pipeline="p", run_key="k", status="running", elapsed=2.0, total=10, succeeded=5, rate=2.5)
    text = "\n".join(drawn(stream, 80))
    assert "5 so far" in text
    assert "2.5 items/s" in text
    assert "%" not in text
    assert "left" not in text


def test_one_dead_letter_in_a_million_can_be_seen():
    """S3-06: what went wrong has a place in the bar, however little it is."""
    from rich.text import Text

    rare = Snapshot(
        pipeline="p", run_key="k", status="running", elapsed=1, total=10**6, expected=10**6, succeeded=999_998, dead=1
    )
    bar = picture(rare, 80).renderables[1]
    assert isinstance(bar, Text)
    assert any(span.style == "red" and span.end > span.start for span in bar.spans)
    assert "99.9 %" in bar.plain


def test_plain_lines_say_the_same_for_a_log():
    """S3-05: what is no terminal gets one line, and one for each notice."""
    assert list(lines(RUN)) == [
        (
            "reviews 2026-11-15: 12,345 of 20,000 (62 %), 148 items/s, about 52 s left, 12,290 succeeded (31 degraded), 12 skipped, "
            "43 dead letters, 1,812 retries, 23 waiting"
        ),
        "breaker shop is open: next probe in 12 s",
    ]


def test_pace_follows_the_last_seconds_only():
    """S3-05: a pause brings the rate down, and what was long ago is forgotten."""
    pace = Pace(window=10)
    rates = [pace.at(float(second), min(second, 20) * 100) for second in range(41)]
    assert rates[0] is None
    assert rates[20] == 100
    assert rates[25] == 50
    assert rates[30] == rates[40] == 0


amounts = st.integers(min_value=0, max_value=10**9)


@given(
    st.integers(40, 220),
    amounts,
    amounts,
    amounts,
    amounts,
    st.none() | amounts,
    st.none() | st.floats(0, 1e6),
    st.text(max_size=60),
)
def test_no_snapshot_breaks_the_picture(width, succeeded, skipped, dead, pending, expected, rate, name):
    """S3-06: whatever the numbers, every line fits, and the bar is as long as it should be."""
    total = succeeded + skipped + dead + pending
    snapshot = Snapshot(
        pipeline=" ".join(name.split()) or "p",
        run_key="k",
        status="running",
        elapsed=1.0,
        total=total,
        expected=expected,
        succeeded=succeeded,
        degraded=succeeded // 3,
        skipped=skipped,
        dead=dead,
        rate=rate,
        stages=(StageLine(name="label", done=succeeded, dead=dead),),
    )
    bar = picture(snapshot, width).renderables[1]
    assert bar.cell_len == max(min(width, 100), bar.cell_len - bar.plain.count("━") - bar.plain.count("─") + 10)
    assert max((len(line) for line in drawn(snapshot, width)[2:]), default=0) <= width
    assert len(list(lines(snapshot))) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (counted(0, "retry", "retries"), "0 retries"),
        (duration(59.96), "1 min 00 s"),
        (duration(9.96), "10 s"),
        (duration(86_399), "23 h 59 min"),
        (per_second(0.05), "180 items/h"),
        (percent(1, 3), "33 %"),
    ],
)
def test_numbers_read_well_at_the_edges(said, expected):
    """S3-05: rounding never says 60 s or 100 % too early."""
    assert said == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", "1\n2\n3\n", 3),
        ("a.jsonl", "1\n\n2\n3", 3),
        ("a.jsonl", "\n1\n", 1),
        ("a.jsonl", "", 0),
        ("a.csv", "id\n1\n2\n", 2),
        ("a.csv", "", 0),
    ],
)
def test_items_are_counted_before_they_are_read(name, text, expected, tmp_path):
    """S3-05: so that a display can say when the end comes."""
    from outlast.cli.watch import _items

    (tmp_path / name).write_text(text)
    assert _items(tmp_path / name) == expected
