"""What a person sees of a run: pictures are functions of a snapshot, and read well at any width."""

from __future__ import annotations

import dataclasses
import io
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from outlast.breaker import CircuitState
from outlast.components import Files
from outlast.display.graph import gutter, ranks
from outlast.display.page import run_page
from outlast.display.snapshot import CostLine, Edge, Pace, Snapshot, Speed, StageLine
from outlast.display.telling import breaker, ending, lines, pace
from outlast.display.terminal import picture
from outlast.kernel.wording import counted, duration, per_second, percent
from outlast.pipeline.view import BreakerView, BudgetView, LimitView
from tables import table


def circuit(name: str, state: str = "closed", **fields: object) -> BreakerView:
    unknown = {"failure_count": 0, "since": None, "probe_in": None, "isolated": None, "shared": False}
    return BreakerView(name=name, state=CircuitState(state), **(unknown | fields))


def lane(name: str, **fields: object) -> LimitView:
    plain = {"concurrency": None, "width": None, "paused": 0.0, "rates": {}, "taken": {}}
    return LimitView(name=name, **(plain | {"shared": False, "processes": None} | fields))


WAY = ["source", "parse", "label", "store", "out.jsonl"]
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
    stages=(
        StageLine(name="parse", done=12_400, skipped=12, dead=3),
        StageLine(
            name="label",
            done=12_350,
            running=40,
            waiting=23,
            throttled=310,
            retries=1_800,
            dead=40,
            behind=("limit openai", "breaker openai"),
        ),
        StageLine(name="store", done=12_290, running=12, retries=12),
    ),
    edges=tuple(
        Edge(start=start, end=end, count=count)
        for start, end, count in zip(WAY, WAY[1:], [12_468, 12_400, 12_350, 12_290], strict=False)
    ),
    limits=(
        lane("openai", under_way=40, width=40, concurrency=64, waiting=310, paused=12.3, shared=True, processes=3),
    ),
    speeds={
        "openai": (
            Speed(name="calls", amount=500, per=60, used=492.2),
            Speed(name="tokens", amount=2_000_000, per=60, used=187_312),
        )
    },
    breakers=(circuit("openai"),),
    budgets=(BudgetView(name="openai", available=7),),
    costs=(CostLine(name="usd", spent=12.34, an_item=0.001, at_the_end=20, limit=200),),
    problems=(
        (38, "label", "client_error: HTTP 422 from the service: " + "cannot label this text " * 4),
        (3, "parse", "data_error: no id in\nthis row"),
    ),
)
TIMES = "\N{MULTIPLICATION SIGN}"


def changed(snapshot: Snapshot, **fields: object) -> Snapshot:
    return dataclasses.replace(snapshot, **fields)


def drawn(snapshot: Snapshot, width: int, height: int = 1000) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None, legacy_windows=False)
    console.print(picture(snapshot, width, height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_run_at_80_columns():
    """The way of the items with counts, per-stage numbers, limits, breakers, budget, cost, failures, time left; in 24 lines (S3-05, S3-07)."""
    assert drawn(RUN, 80, 24) == [
        "reviews  2026-11-15                                          running  1 min 23 s",
        "━" * 35 + "─" * 21 + "  12,345 of 20,000  62 %",
        "148 items/s     about 52 s left        1,812 retries  23 waiting  310 throttled",
        "12,290 succeeded (31 degraded)   12 skipped   43 dead letters   123 pending",
        "",
        "                done  running  waiting  throttled  retries  skipped    dead",
        "┌ source      12,468",
        "├ parse       12,400        ·        ·          ·        ·       12       3",
        "├ label       12,350       40       23        310    1,800        ·      40",
        "├ store       12,290       12        ·          ·       12        ·       ·",
        "▼ out.jsonl   12,290",
        "",
        "limit    openai  paused 12 s (429)   40 of 40 under way (of 64)   310 in line  …",
        "rate     openai  calls 492 of 500/min   tokens 187,312 of 2,000,000/min",
        "breaker  openai  closed",
        "budget   openai  7 retries left",
        "cost     usd     12.34 of 200 spent   0.001 an item   about 20 at the end",
        "",
        f"     38 {TIMES} label  client_error: HTTP 422 from the service: cannot label this tex…",
        f"      3 {TIMES} parse  data_error: no id in this row",
    ]


def test_a_run_at_50_columns():
    """A narrow terminal breaks what says how it goes in two, and leaves out columns that other lines have (S3-05)."""
    assert drawn(RUN, 50, 24) == [
        "reviews  2026-11-15            running  1 min 23 s",
        "━" * 16 + "─" * 10 + "  12,345 of 20,000  62 %",
        "148 items/s     about 52 s left",
        "1,812 retries  23 waiting  310 throttled",
        "12,290 succeeded (31 degraded)   12 skipped",
        "43 dead letters   123 pending",
        "",
        "                done  running  waiting    dead",
        "┌ source      12,468",
        "├ parse       12,400        ·        ·       3",
        "├ label       12,350       40       23      40",
        "├ store       12,290       12        ·       ·",
        "▼ out.jsonl   12,290",
        "",
        "limit    openai  paused 12 s (429)   40 of 40 und…",
        "rate     openai  calls 492 of 500/min   tokens 18…",
        "breaker  openai  closed",
        "budget   openai  7 retries left",
        "cost     usd     12.34 of 200 spent   0.001 an it…",
        "",
        f"     38 {TIMES} label  client_error: HTTP 422 from the …",
        f"      3 {TIMES} parse  data_error: no id in this row",
    ]


def test_a_run_at_200_columns():
    """A wide terminal says all of it, and what each stage is behind; the bar stays short enough to be read (S3-05)."""
    wide = drawn(RUN, 200, 24)
    assert wide[0] == "reviews  2026-11-15" + " " * 62 + "running  1 min 23 s"
    assert wide[1] == "━" * 47 + "─" * 29 + "  12,345 of 20,000  62 %"
    assert wide[2:4] == drawn(RUN, 80, 24)[2:4]
    assert wide[5:11] == [
        "                done  running  waiting  throttled  retries  skipped    dead  behind",
        "┌ source      12,468",
        "├ parse       12,400        ·        ·          ·        ·       12       3",
        "├ label       12,350       40       23        310    1,800        ·      40  limit openai, breaker openai",
        "├ store       12,290       12        ·          ·       12        ·       ·",
        "▼ out.jsonl   12,290",
    ]
    assert (
        wide[12]
        == "limit    openai  paused 12 s (429)   40 of 40 under way (of 64)   310 in line   shared by 3 processes"
    )
    message = "client_error: HTTP 422 from the service: " + ("cannot label this text " * 4).rstrip()
    assert wide[-2] == f"     38 {TIMES} label  {message}"


def test_a_low_terminal_keeps_what_holds_the_run_up():
    """Source, sink, blank lines and what is calm go first, then failures; the counts stay (S3-07)."""
    assert drawn(RUN, 80, 12) == [
        *drawn(RUN, 80, 24)[:4],
        "            done  running  waiting  throttled  retries  skipped    dead",
        "├ parse   12,400        ·        ·          ·        ·       12       3",
        "├ label   12,350       40       23        310    1,800        ·      40",
        "├ store   12,290       12        ·          ·       12        ·       ·",
        *drawn(RUN, 80, 24)[12:14],
        drawn(RUN, 80, 24)[18],
    ]
    assert drawn(RUN, 80, 5) == drawn(RUN, 80, 24)[:4]


def test_a_circuit_that_is_not_closed_is_told_and_no_end_is_promised():
    """Open with its next probe, half-open, isolated by hand with the reason (S0-26, S3-05)."""
    held = changed(RUN, breakers=(circuit("shop", state="open", since=48.2, probe_in=11.8),))
    assert drawn(held, 80)[2] == "148 items/s     waits for breaker shop 1,812 retries  23 waiting  310 throttled"
    assert "breaker  shop    open for 48 s   next probe in 12 s" in drawn(held, 80)
    assert breaker(circuit("b", state="open", since=1, probe_in=0)) == ["open for 1 s", "the next item probes"]
    assert breaker(circuit("b", state="half_open", since=70)) == ["half-open for 1 min 10 s", "probing"]
    isolated = circuit("b", state="open", since=9, isolated="maintenance")
    assert breaker(isolated) == ["isolated: maintenance", "until: outlast breaker reset"]
    assert list(lines(held))[-1] == "breaker shop: open for 48 s, next probe in 12 s"


def test_ctrl_c_says_what_happens_and_what_a_second_one_does():
    """D-13: while it winds down, in the line that says how it goes; in a notebook in its own words."""
    ending_now = changed(RUN, status="stopping", reason="interrupted", grace=21.4)
    said = "winding down: 52 attempts may end, 21 s at most. Ctrl-C again gives them up"
    assert drawn(ending_now, 80)[2] == said
    assert f"reviews 2026-11-15: {said}" in lines(ending_now)
    assert ending(ending_now, "Interrupting").endswith("Interrupting again gives them up")
    full = changed(RUN, status="stopping", reason="failure_budget_exceeded")
    assert ending(full) == "reads no more (failure budget exceeded): what was begun is finished"
    assert ending(RUN) is None
    assert pace(ending_now) == ["148 items/s"]


def test_the_last_picture_says_what_it_came_to():
    """The sentence why instead of a pace; what was calm need not be told any more (S3-08)."""
    why = "12290 of 20000 items succeeded, 43 became dead letters; the dead letters are open"
    last = drawn(changed(RUN, status="completed", why=why, limits=()), 80)
    assert last[0].endswith("completed  1 min 23 s")
    assert " ".join(last[2:4]) == why
    assert [line for line in last if line.startswith(("breaker", "budget", "rate", "limit"))] == []
    assert [line for line in last if line.startswith("cost")] != []


@table(
    ("edges", "expected"),
    [
        ("ab bc", ["┌ a", "├ b", "▼ c"]),
        ("ab ac bd cd", ["┌─╮ a", "├ │ b", "│ ├ c", "▼─╯ d"]),
        ("ab bc cd ac", ["┌─╮ a", "├ │ b", "├─╯ c", "▼   d"]),
        ("ab ac ad be ce de", ["┌─┬─╮ a", "├ │ │ b", "│ ├ │ c", "│ │ ├ d", "▼─┴─╯ e"]),
        ("ac bc", ["┌   a", "│ ┌ b", "▼─╯ c"]),
        ("ab ac bd ce", ["┌─╮ a", "├ │ b", "│ ├ c", "▼ │ d", "  ▼ e"]),
        ("ab ba", ["┌ a", "├ b"]),
    ],
)
def test_any_graph_of_stages_can_be_drawn(edges, expected):
    """From its edges, a line a node; a circle, which no pipeline has, does not hang it (S3-05)."""
    pairs = [(pair[0], pair[1]) for pair in edges.split()]
    assert [f"{way} {name}" for way, name in gutter(pairs)] == expected
    assert sorted(name for column in ranks(pairs) for name in column) == sorted({*edges} - {" "})


def test_without_an_expected_total_nothing_is_promised():
    """A stream of unknown length has neither percentage nor time left (S3-07)."""
    stream = Snapshot(pipeline="p", run_key="k", status="running", elapsed=2.0, total=10, succeeded=5, rate=2.5)
    text = "\n".join(drawn(stream, 80))
    assert "5 so far" in text
    assert "2.5 items/s" in text
    assert "%" not in text
    assert "left" not in text


def test_one_dead_letter_in_a_million_can_be_seen():
    """What went wrong has a place in the bar, however little it is (S3-06)."""
    from rich.text import Text

    rare = Snapshot(
        pipeline="p", run_key="k", status="running", elapsed=1, total=10**6, expected=10**6, succeeded=999_998, dead=1
    )
    bar = picture(rare, 80).renderables[1]
    assert isinstance(bar, Text)
    assert any(span.style == "red" and span.end > span.start for span in bar.spans)
    assert "99.9 %" in bar.plain


def test_plain_lines_say_the_same_for_a_log():
    """What is no terminal gets one line, and one for each thing that holds it up (S3-05)."""
    assert list(lines(RUN)) == [
        (
            "reviews 2026-11-15: 12,345 of 20,000 (62 %), 148 items/s, about 52 s left, 12,290 succeeded (31 degraded), 12 skipped, "
            "43 dead letters, 1,812 retries, 23 waiting, 310 throttled, 12.34 usd spent"
        ),
        "limit openai: paused 12 s (429), 40 of 40 under way (of 64), 310 in line, shared by 3 processes",
        "rate openai: calls 492 of 500/min, tokens 187,312 of 2,000,000/min",
    ]


def test_pace_follows_the_last_seconds_only():
    """A pause brings the rate down, and what was long ago is forgotten (S3-05)."""
    pace = Pace(window=10)
    rates = [pace.at(float(second), min(second, 20) * 100) for second in range(41)]
    assert rates[0] is None
    assert rates[20] == 100
    assert rates[25] == 50
    assert rates[30] == rates[40] == 0


amounts = st.integers(min_value=0, max_value=10**9)
names = st.text(min_size=1, max_size=60)


@settings(max_examples=60)
@given(
    st.integers(40, 220),
    st.integers(3, 60),
    st.tuples(amounts, amounts, amounts, amounts),
    st.none() | amounts,
    st.none() | st.floats(0, 1e6),
    st.lists(names, min_size=1, max_size=6, unique=True),
    names,
)
def test_no_snapshot_breaks_the_picture(width, height, counts, expected, rate, stages, name):
    """Whatever the numbers and names, no line is wider than the terminal, nor the picture higher, and nothing in it is a command (S3-06)."""
    succeeded, skipped, dead, pending = counts
    snapshot = Snapshot(
        pipeline=name,
        run_key=name,
        status="running",
        elapsed=1.0,
        total=sum(counts),
        expected=expected,
        succeeded=succeeded,
        degraded=succeeded // 3,
        skipped=skipped,
        dead=dead,
        rate=rate,
        stages=tuple(
            StageLine(name=stage, done=succeeded, waiting=pending, dead=dead, behind=(name,)) for stage in stages
        ),
        edges=tuple(Edge(start=start, end=end, count=dead) for start, end in pairwise([*stages, "\0sink"])),
        limits=(lane(name, under_way=pending, waiting=dead),),
        speeds={name: (Speed(name="calls", amount=1, per=1),)},
        breakers=(circuit(name, state="open", since=1, isolated=name),),
        problems=((dead, stages[0], name),) * 7,
    )
    drawing = picture(snapshot, width, height)
    bar = drawing.renderables[1]
    assert bar.cell_len == max(min(width, 100), bar.cell_len - bar.plain.count("━") - bar.plain.count("─") + 10)
    shown = drawn(snapshot, width, height)
    assert max(cell_len(line) for line in [shown[0], *shown[2:]]) <= width
    assert len(drawing.renderables) == len(shown)
    assert len(shown) <= height - 1
    # The two joiners are of no width, and writing needs them.
    assert all(re.sub("[\u200c\u200d]", "", line).isprintable() for line in [*shown, *lines(snapshot)])
    text_of = re.sub(r"<[^<>]*>", "", run_page(snapshot))
    assert "<" not in text_of


@table(
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
    """Rounding never says 60 s or 100 % too early (S3-05)."""
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
    """So that a display can say when the end comes (S3-05)."""
    (tmp_path / name).write_text(text)
    assert Files(tmp_path / name).count() == expected
