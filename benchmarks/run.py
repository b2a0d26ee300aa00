"""
Measure Outlast beside its peers and report the figures: `make bench`.

Builds an environment with the pinned peers and a wheel of this source tree,
runs `measure.py` in it, prints the tables and holds them against the bars the
project has set itself. A complete run also renews the figures in
docs/benchmarks.md. Nothing here passes or fails: timings depend on the machine,
so a person reads them.

    benchmarks/run.py --quick --only sync --libraries outlast pyresilience
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environment import Failed, digest, install, pip, python_of
from measure import Row, Table
from report import grid, renew
from scenarios import NONE, OURS, PROGRAMS, TIMED

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LOCK = HERE / "requirements.txt"
ENV = HERE / ".venv"
PYTHON = python_of(ENV)
SCENARIOS = (*(scenario.id for scenario in TIMED), "import", "memory")


# The environment.


def install_ours() -> None:
    """Build and install a wheel of the source tree when it has changed."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    stamp, wanted = ENV / ".ours", digest(ROOT / "pyproject.toml", *sources)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing outlast from the source tree", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        offline = ("--no-deps", "--no-index")
        pip(sys.executable, "wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, ROOT)
        pip(PYTHON, "install", *offline, "--force-reinstall", *Path(folder).glob("*.whl"))
    stamp.write_text(wanted)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    command: list[str | Path] = [PYTHON, "-E", "-s", HERE / "measure.py"]
    if options.quick:
        command.append("--quick")
    command += ["--only", *options.only, "--libraries", *options.libraries]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=clean)
    if done.returncode:
        sys.exit(done.returncode)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def read_table(raw: dict[str, Any]) -> Table:
    return Table(raw["id"], raw["title"], [Row(**row) for row in raw["rows"]])


# The report.


def time_text(nanoseconds: float) -> str:
    if nanoseconds < 1_000:
        return f"{nanoseconds:.0f} ns"
    microseconds = nanoseconds / 1_000
    if microseconds >= 1_000:
        return f"{microseconds / 1_000:.2f} ms"
    return f"{microseconds:.2f} µs" if microseconds < 10 else f"{microseconds:.1f} µs"


def name_text(row: Row) -> str:
    if row.library == NONE:
        return row.label
    name = f"**{row.library}**" if row.library == OURS else row.library
    return f"{name} `{row.label}`" if row.label else name


def timed_cells(row: Row) -> list[str]:
    def ratio(value: float) -> str:
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"

    low, middle, high = row.value
    cells = [name_text(row), time_text(middle), f"{time_text(low)} to {time_text(high)}"]
    if row.ratio is None:
        return [*cells, "", ""]
    return [*cells, ratio(row.ratio[1]), f"{ratio(row.ratio[0])} to {ratio(row.ratio[2])}"]


def import_cells(row: Row) -> list[str]:
    low, middle, high = row.value
    return [name_text(row), f"{middle:.1f} ms", f"{low:.1f} to {high:.1f} ms", "yes" if row.asyncio else "no"]


def memory_cells(row: Row) -> list[str]:
    return [name_text(row), f"{row.value[1]:,.0f} bytes"]


LAYOUTS = {
    "import": (["", "median", "quartiles", "asyncio loaded"], import_cells),
    "memory": (["", "per function"], memory_cells),
}
TIMED_LAYOUT = (["", "median", "quartiles", "ratio", "quartiles"], timed_cells)


def table_text(table: Table) -> str:
    head, cells = LAYOUTS.get(table.id, TIMED_LAYOUT)
    rows = sorted(table.rows, key=lambda row: (row.library != NONE, row.value[1]))
    return f"### {table.title}\n\n{grid(head, [cells(row) for row in rows])}"


# The bars.

RATE_PEERS = {"interlock-cb"}


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: str
    measured: str
    holds: bool

    def cells(self) -> list[str]:
        return [self.bar, self.measured, "holds" if self.holds else "**missed**"]


def middle(row: Row) -> float:
    return row.value[1]


def ours(table: Table, prefix: str = "") -> list[Row]:
    return [row for row in table.rows if row.library == OURS and row.label.startswith(prefix)]


def judge_ratio(table: Table, bar: str, limit: float, prefix: str = "@retry") -> list[Verdict]:
    verdicts: list[Verdict] = []
    for row in ours(table, prefix):
        low, ratio, high = row.ratio or (math.inf, math.inf, math.inf)
        measured = f"`{row.label}` {ratio:.2f} ({low:.2f} to {high:.2f})"
        verdicts.append(Verdict(f"{bar}: at most {limit} x floor", measured, ratio <= limit))
    return verdicts


def judge_race(table: Table, bar: str) -> list[Verdict]:
    peers = [row for row in table.rows if row.library not in {OURS, NONE}]
    verdicts: list[Verdict] = []
    for row in ours(table):
        # Keeping a window costs more than counting in a row: a breaker with a rate races those that have one.
        rate = "failure_rate" in row.label
        rivals = [peer for peer in peers if peer.library in RATE_PEERS] if rate else peers
        best = min(rivals, key=middle, default=None)
        if best is not None:
            measured = f"`{row.label}` {time_text(middle(row))}, fastest peer {best.library} {time_text(middle(best))}"
            kind = "every peer with a rate" if rate else "every peer"
            verdicts.append(Verdict(f"{bar}: faster than {kind}", measured, middle(row) < middle(best)))
    return verdicts


def judge_full(table: Table, bar: str, limit: float) -> list[Verdict]:
    return judge_ratio(table, bar, limit, "Guard") + judge_race(table, bar)


def judge_import(table: Table) -> list[Verdict]:
    (mine,) = ours(table)
    return [
        Verdict("import and first use of `@retry`: at most 20 ms", f"{middle(mine):.1f} ms", middle(mine) <= 20),
        Verdict("import and first use of `@retry`: no asyncio", "loaded" if mine.asyncio else "none", not mine.asyncio),
    ]


def judge_memory(table: Table) -> list[Verdict]:
    return [
        Verdict("a decorated function: at most 2 KiB", f"`{row.label}` {middle(row):,.0f} bytes", middle(row) <= 2048)
        for row in ours(table)
    ]


def no_bar(_: Table) -> list[Verdict]:
    return []


JUDGES: dict[str, Callable[[Table], list[Verdict]]] = {
    "sync": partial(judge_ratio, bar="`@retry`, success, sync", limit=1.5),
    "async": partial(judge_ratio, bar="`@retry`, success, async", limit=1.3),
    "failures": partial(judge_race, bar="two failures, then success, sync"),
    "failures-async": partial(judge_race, bar="two failures, then success, async"),
    "work": partial(judge_race, bar="the same with sleeping stubbed, sync"),
    "work-async": partial(judge_race, bar="the same with sleeping stubbed, async"),
    "breaker": partial(judge_race, bar="breaker alone, sync"),
    "breaker-async": partial(judge_race, bar="breaker alone, async"),
    "full": partial(judge_full, bar="everything at once, sync", limit=8),
    "full-async": partial(judge_full, bar="everything at once, async", limit=1.5),
    "import": judge_import,
    "memory": judge_memory,
}


def report(figures: dict[str, Any], tables: list[Table]) -> str:
    versions: dict[str, str] = figures["versions"]
    parts = [
        f"Measured with {figures['python']}: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    ]
    parts += map(table_text, tables)
    if OURS in versions and len(versions) > 1:
        verdicts = [verdict.cells() for table in tables for verdict in JUDGES.get(table.id, no_bar)(table)]
        parts.append(f"### Against our bars\n\n{grid(['bar', 'measured', ''], verdicts)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", nargs="+", default=[], choices=SCENARIOS, help="these tables only")
    parser.add_argument("--libraries", nargs="+", default=[], choices=tuple(PROGRAMS), help="these contenders only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    options = parser.parse_args()
    try:
        install(ENV, LOCK)
        if not options.libraries or OURS in options.libraries:
            install_ours()
    except Failed as failed:
        sys.exit(str(failed))
    figures = measure(options)
    text = report(figures, [read_table(raw) for raw in figures["tables"]])
    print(text)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if not (options.quick or options.only or options.libraries):
        renew("benchmarks.md", text)


if __name__ == "__main__":
    main()
