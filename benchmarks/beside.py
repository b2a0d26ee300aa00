"""
What a run costs beside other tools: the same items through the same three stages, each tool in an environment and a process of its own.

A folder of peers/ has the lock of a tool and the program that does the work with it. A program gets an empty folder to live in, which is
gone afterwards like every process it has started, and no way to send anything home that could be switched off. One that cannot be
installed, fails or takes too long has its line in the table all the same, and the line says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import Failed, install, python_of
from report import grid, renew

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "peers-items"
OURS = "ours"
STAGES = 3
ROUNDS, REPEATS = 2, 3  # processes for each line, and how often each of them does the work
PATIENCE = 60.0  # seconds for one process
GOODBYE = 8.0  # seconds to end by itself once its figures are there
POLL = 0.1


@dataclass(frozen=True)
class Peer:
    name: str
    folder: str
    case: str
    items: int
    record: str  # what it knows about an item
    retries: str = "each stage of an item"  # what it tries again
    tracks: bool = False  # whether the end of every item is on record, for good
    postgres: bool = False


ALL, FAILED, STEPS = "every attempt", "its end, failed attempts", "every stage, its output"
PEERS = [
    Peer("bare asyncio pool", OURS, "floor", 100_000, "nothing", "nothing"),
    Peer("**outlast**, SQLite", OURS, "all", 30_000, ALL, tracks=True),
    Peer("**outlast**, PostgreSQL", OURS, "all", 30_000, ALL, tracks=True, postgres=True),
    Peer('**outlast**, SQLite, `audit="failures"`', OURS, "failures", 30_000, FAILED, tracks=True),
    Peer('**outlast**, PostgreSQL, `audit="failures"`', OURS, "failures", 30_000, FAILED, tracks=True, postgres=True),
    Peer("asyncio + tenacity", "tenacity", "pool", 10_000, "nothing"),
    Peer("Dagster, a loop in one op, with tenacity", "dagster", "retried", 10_000, "nothing"),
    Peer("Dagster, a loop in one op", "dagster", "loop", 100_000, "nothing", "the whole loop"),
    Peer("Dagster, dynamic ops", "dagster", "dynamic", 30, "events of every stage", tracks=True),
    Peer("Prefect, a task for each stage", "prefect", "loop", 60, "states of every stage", tracks=True),
    Peer("DBOS, a workflow for each item, SQLite", "dbos", "loop", 150, STEPS, tracks=True),
    Peer("DBOS, a workflow for each item, PostgreSQL", "dbos", "each", 150, STEPS, tracks=True, postgres=True),
    Peer("Dask, a future for each stage", "dask", "futures", 500, "in memory, while held"),
    Peer("Ray, a task for each stage", "ray", "tasks", 1_000, "in memory, for a while"),
    Peer("Ray Data, three maps", "ray", "data", 50_000, "nothing", "nothing for a row"),
]


@dataclass
class Story:
    """What was seen of a peer."""

    version: str = ""
    fault: str = ""
    starts: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


# The processes.


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent has gone: nothing gets out of sight. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def below(root: int, spare: frozenset[int] = frozenset()) -> list[int]:
    """The processes below `root`, but neither those in `spare` nor what is below them. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        children.setdefault(parent, []).append(int(place.parent.name))
    found: list[int] = []
    ahead = [root]
    while ahead:
        new = [child for child in children.get(ahead.pop(), []) if child not in spare]
        found += new
        ahead += new
    return found


def resident(processes: list[int]) -> float:
    """Megabytes in memory, all together; pages that several share are counted for each."""
    pages = 0
    for process in processes:
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def reap(processes: list[int]) -> None:
    for process in processes:
        try:
            os.waitpid(process, os.WNOHANG)
        except ChildProcessError:
            continue  # not ours yet, or not any more


def end(spare: frozenset[int]) -> None:
    """End what a program has left behind: asked first, then killed."""
    for sign, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        left = below(os.getpid(), spare)
        for process in left:
            try:
                os.kill(process, sign)
            except ProcessLookupError:
                continue
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            reap(left)
            time.sleep(0.05)
            left = below(os.getpid(), spare)


def figures_in(output: Path) -> dict[str, Any] | None:
    """The line with the figures, once it is there as a whole."""
    for line in output.read_text(errors="replace").splitlines(keepends=True):
        if line.startswith('{"version"') and line.endswith("\n"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def environment_for(tool: str, folder: str, database: str) -> dict[str, str]:
    ours = tool == OURS
    kept = ("PATH", "LANG", "PYTHONPATH") if ours else ("LANG",)
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    path = [str(HERE), *variables.get("PYTHONPATH", "").split(os.pathsep)]
    variables |= {"HOME": folder, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    variables.setdefault("PATH", f"{python_of(BUILD / tool).parent}:/usr/bin:/bin")
    variables["DO_NOT_TRACK"] = "1"
    if database:
        variables["BENCH_DATABASE"] = database
    return variables


def once(peer: Peer, story: Story, *, items: int, repeats: int, database: str) -> None:
    """One process of a peer, from nothing to nothing."""
    python = sys.executable if peer.folder == OURS else python_of(BUILD / peer.folder)
    program = HERE / "peers" / peer.folder / "work.py"
    spare = frozenset(below(os.getpid()))
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        output = Path(folder, "output")
        home = Path(folder, "home")
        home.mkdir()
        began, peak = time.time(), 0.0
        with output.open("wb") as out, Path(folder, "errors").open("wb") as errors:
            process = subprocess.Popen(
                [python, program, peer.case, str(items), str(repeats)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=home,
                env=environment_for(peer.folder, folder, database),
            )
        until = began + PATIENCE
        figures: dict[str, Any] | None = None
        while process.poll() is None and time.time() < until:
            peak = max(peak, resident(below(os.getpid(), spare)))
            if figures is None and (figures := figures_in(output)):
                until = min(until, time.time() + GOODBYE)
            time.sleep(POLL)
        late = process.poll() is None
        end(spare)
        code = process.wait(10)
        figures = figures or figures_in(output)
        if figures is None:
            said = Path(folder, "errors").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            print("\n".join(said[-20:]), file=sys.stderr)
            story.fault = (
                f"not done in {PATIENCE:.0f} s" if late else f"failed, exit code {code}"
            )  # no words of its own: a page gets them
            return
    story.version = figures["version"]
    story.starts.append(figures["ready"] - began)
    story.walls += [wall / items for wall in figures["walls"]]
    story.memory.append(peak)


# The report.


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cells(peer: Peer, story: Story, items: int) -> list[str]:
    head = [peer.name, story.version, "yes" if peer.tracks else "no", peer.record, peer.retries]
    if not story.walls:
        return [*head, story.fault, "", "", "", "", ""]
    low, middle, high = quartiles(story.walls)
    micro = 1e6 / STAGES
    memory = statistics.median(story.memory)
    return [
        *head,
        f"{items:,}",
        number(1 / middle),
        f"{number(1 / high)} to {number(1 / low)}",
        number(middle * micro),
        f"{statistics.median(story.starts):.1f} s",
        f"{memory:,.0f} MB" if memory else "not known",
    ]


HEAD = ["", "version", "tracked", "on record for an item", "tried again", "items", "items/s", "quartiles"]
HEAD += ["µs per item and stage", "start", "most memory"]


def bars(stories: dict[Peer, Story]) -> str:
    """Each way to run ours with every attempt on record, against those that it must be ahead of."""

    def seconds(peer: Peer) -> float:
        return quartiles(stories[peer].walls)[1]

    there = [peer for peer in stories if stories[peer].walls]
    mine = [peer for peer in there if peer.folder == OURS and peer.case == "all"]
    rivals = [peer for peer in there if peer.folder != OURS]
    goals = {
        "ahead of every tool that tracks items": [peer for peer in rivals if peer.tracks],
        "ahead of a loop in one op of Dagster, its stages tried again": [
            peer for peer in rivals if peer.case == "retried"
        ],
        "ahead of a loop in one op of Dagster, plain": [
            peer for peer in rivals if (peer.folder, peer.case) == ("dagster", "loop")
        ],
    }
    lines = [
        [
            f"{peer.name}: {goal}",
            f"{number(1 / seconds(peer))} items/s, {best.name} {number(1 / seconds(best))}",
            "holds" if seconds(peer) < seconds(best) else "**missed**",
        ]
        for peer in mine
        for goal, group in goals.items()
        for best in sorted(group, key=seconds)[:1]
    ]
    return grid(["bar", "measured", ""], lines) if lines else ""


def report(stories: dict[Peer, Story], items: dict[Peer, int]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} processors"
    order = sorted(stories, key=lambda peer: quartiles(stories[peer].walls)[1] if stories[peer].walls else float("inf"))
    table = grid(HEAD, [cells(peer, stories[peer], items[peer]) for peer in order])
    return f"Measured with {python}.\n\n{table}\n\n{bars(stories)}".strip()


def main(*, quick: bool, rounds: int, only: list[str]) -> None:
    from servers.postgres import Postgres

    chosen = [peer for peer in PEERS if not only or peer.folder in only]
    items = {peer: max(peer.items // 10, 10) if quick else peer.items for peer in chosen}
    stories = {peer: Story() for peer in chosen}
    faults: dict[str, str] = {}
    for folder in sorted({peer.folder for peer in chosen} - {OURS}):
        try:
            install(BUILD / folder, HERE / "peers" / folder / "requirements.txt")
        except (Failed, OSError, subprocess.SubprocessError) as failed:
            print(failed, file=sys.stderr)
            faults[folder] = "could not be installed"
    adopt_orphans()
    began = time.monotonic()
    for _ in range(rounds):
        for peer in chosen:
            story = stories[peer]
            story.fault = story.fault or faults.get(peer.folder, "")
            if story.fault:
                continue  # one failure is enough to know
            try:
                with Postgres() if peer.postgres else nullcontext() as server:
                    database = server.dsn if server else ""
                    once(peer, story, items=items[peer], repeats=1 if quick else REPEATS, database=database)
            except Exception as error:  # noqa: BLE001 - the others can be measured all the same
                story.fault = f"could not be run: {type(error).__name__}"
                traceback.print_exc()
            reap(below(os.getpid()))  # the server that has been stopped
            print(f"{time.monotonic() - began:4.0f} s  {peer.name}: {story}", file=sys.stderr, flush=True)
    text = report(stories, items)
    print(text)
    if not (quick or only):
        renew("items.md", text, name="peers")
