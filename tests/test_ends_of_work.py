"""
How work starts, times how it ends: one cell each, in the table of `ends_of_work.md`, which is the test.

A cell runs its commands in a folder of its own, as a person would. It reads status and exit code, what was called, what
was recorded (events, retries, alerts, dead letters), then fixes the cause, runs the next command that the table names,
and reads again.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from forked import Forked
from outlast.cli.commands import command_line
from shells import Shell

PROGRAM = '''
import asyncio, os, signal, sqlite3, subprocess, sys, threading
from pathlib import Path

import outlast

app = outlast.App()
ENDING = Path("ending").read_text() if Path("ending").exists() else "success"
PARTIAL = range(3)
POLICY = outlast.RetryPolicy(max_attempts=3, initial_delay=0.01, jitter=0)
BREAKER = None
if ENDING == "outage with breaker":
    BREAKER = outlast.CircuitBreaker("shop", failure_threshold=2, reset_timeout=0.01, half_open_requests=1)
GUARD = outlast.Guard("shop", retry=POLICY, breaker=BREAKER)
ITEMS = GUARD.replace(retry=POLICY.replace(max_attempts=10)) if BREAKER else GUARD  # no item uses up its attempts
if ENDING == "poison":
    ITEMS = GUARD.replace(isolation="process")  # a thread that kills its process leaves no trace of who it was


def order(n: int, cancel: str = "") -> int:
    """The function that every kind of work calls."""
    with open("calls", "a") as calls:
        calls.write(f"{n}\\n")
    if n < 0:
        return n
    if ENDING == "permanent failure" or (ENDING == "partial" and n in PARTIAL):
        raise ValueError("no such order")
    if ENDING.startswith("outage"):
        raise ConnectionRefusedError("the shop is away")
    if n == 1 and (ENDING == "poison" or (ENDING == "crash" and not Path("crashed").exists())):
        Path("crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 1 and ENDING == "cancel" and cancel:
        subprocess.run([sys.executable, "-m", "outlast", *cancel.split()], check=True, stdout=2)
        if cancel == "cancel k":
            wait_until_noticed()
    return n


def wait_until_noticed() -> None:
    """A request reaches its run with a heartbeat: wait until every lease was renewed twice."""
    seen = set()
    with sqlite3.connect(".outlast/outlast.db") as store:
        while len(seen) < 4:
            seen.add(store.execute("select min(until) from outlast_shards where until > 0").fetchone())
            threading.Event().wait(0.05)


@outlast.stage(guard=ITEMS, concurrency=1)
def ask(row: dict) -> int:
    return order(row["n"], CANCEL)


CANCEL = "cancel k"
ROWS = [{"n": n} for n in range(10)]
orders = outlast.Pipeline("orders", ask, app=app)


@app.job(retry=POLICY, guard=BREAKER and outlast.Guard("shop", retry=None, breaker=BREAKER))
async def one(n: int) -> int:
    order(n, "jobs cancel 1")
    if ENDING == "cancel":
        await asyncio.Event().wait()
    return n


@app.job(retry=POLICY)
def many() -> str:
    return orders.run(ROWS, run_key="k", item_key="n").status


def book() -> None:
    order(-1)


def unbook() -> None:
    order(-2)


def trip() -> None:
    order(1, CANCEL)


def rows() -> dict:
    return {"rows": ROWS}


def row(row: dict) -> None:
    order(row["n"], CANCEL)


def send() -> None:
    order(-3)


if __name__ == "__main__":  # a plain call
    events = []
    outlast.observe.subscribe(lambda event: events.append(event.name))

    async def cancelled() -> None:
        task = asyncio.current_task()

        async def body() -> None:
            order(1)
            task.cancel()
            await asyncio.Event().wait()

        await GUARD.acall(body)

    try:
        if ENDING == "cancel":
            asyncio.run(cancelled())
        elif ENDING in {"crash", "poison"}:
            GUARD.replace(isolation="process").call(order, 1)
        else:
            GUARD.call(order, 1)
        status = "returned"
    except BaseException as error:
        status = f"{type(error).__name__}, {outlast.stop_reason(error)}"
        raise
    finally:
        Path("call.txt").write_text("\\n".join([status, *events]))
'''
BOOK = """\
oml_version: "0.1.0"
name: trip
steps:
  - {id: book, component: python, config: {call: "shop:book"}, idempotent: true,
     compensate: {component: python, config: {call: "shop:unbook"}}}
"""
LAST = """\
  - {id: send, component: python, config: {call: "shop:send"}, needs: [ask], idempotent: true}
"""
POLICY = """\
    idempotent: true
    retry: {max_attempts: ATTEMPTS, initial_delay_ms: 10, jitter: 0}
"""
STEP = """\
  - id: ask
    component: python
    config: {call: "shop:trip"}
    needs: [book]
"""
EACH = """\
  - {id: rows, component: python, config: {call: "shop:rows"}, needs: [book], idempotent: true}
  - id: ask
    component: python
    for_each: {items: "${steps.rows.outputs.rows}", key: n, concurrency: 1}
    config: {call: "shop:row"}
    needs: [rows]
"""
ITEMS = """\
  - {id: rows, component: python, config: {call: "shop:rows"}, needs: [book], idempotent: true}
  - id: ask
    component: pipeline
    config: {target: "shop:orders", input: "${steps.rows.outputs.rows}"}
    needs: [rows]
    idempotent: true
"""
BREAKER = "    circuit_breaker: {failure_threshold: 2, reset_timeout_ms: 10, half_open_requests: 1}\n"
#: The command line, with leases of three seconds: a cancel is noticed within one.
FAST = """
from outlast.cli import main
from outlast.work.patience import Terms, terms

terms.set(Terms(ttl=3.0))
main()
"""

#: How each kind of work starts. A worker is started again as long as it is killed, and jobs that wait become due.
WAYS = {
    "call": "python shop.py",
    "run": "outlast run shop.py:orders --input rows.jsonl --item-key n --run-key k",
    "job": "outlast enqueue shop.py:one --arg n=1",
    "flow": "outlast run trip.yaml --run-key k",
    "flow in a queue": "outlast enqueue trip.yaml --run-key k",
    "run inside a job": "outlast enqueue shop.py:many",
    "pipeline inside a flow": "outlast run items.yaml --run-key k",
    "row of a step": "outlast run each.yaml --run-key k",
}
STEPS = {"-1": "book", "-2": "unbook", "-3": "send"}
QUEUED = {"job", "flow in a queue", "run inside a job"}
ENDINGS = [
    "success", "partial", "permanent failure", "outage", "outage with breaker", "cancel", "crash", "poison",
]  # fmt: skip
COLUMNS = ["status", "exit", "calls", "events", "retries", "alerts", "dead letters"]


class Cell(NamedTuple):
    """A row of the table: what is to be seen at first, the next command, and what is to be seen after it."""

    way: str
    ending: str
    first: dict[str, str]
    then: str
    after: dict[str, str]
    reason: str


def table() -> dict[tuple[str, str], Cell]:
    """The cells of the page, each of two lines: what happens first, and what the next command does."""
    lines = [
        [part.strip() for part in line.strip().strip("|").split("|")]
        for line in Path(__file__).with_name("ends_of_work.md").read_text().splitlines()
        if line.startswith("|") and not line.startswith(("| work", "|---"))
    ]
    cells: dict[tuple[str, str], Cell] = {}
    for way, ending, *rest in lines:
        if way in WAYS:
            reason = rest[0] if not any(rest[1:]) else ""
            cells[way, ending] = Cell(way, ending, dict(zip(COLUMNS, rest, strict=False)), "", {}, reason)
        else:  # the line below: the command, and what is so after it
            key, cell = list(cells.items())[-1]
            cells[key] = cell._replace(then=ending.strip("`"), after=dict(zip(COLUMNS, rest, strict=True)))
    return cells


CELLS = table()


class Work(Shell):
    """A folder with the program, in which one kind of work is started, looked at, and continued."""

    def __init__(self, folder, way: str, ending: str) -> None:
        breaker = BREAKER if ending == "outage with breaker" else ""
        each = BOOK + EACH + POLICY.replace("ATTEMPTS", "10" if breaker else "3") + breaker + LAST
        single = BOOK + STEP + POLICY.replace("ATTEMPTS", "3") + breaker + LAST
        files = {
            "shop.py": PROGRAM,
            "fast.py": FAST,
            "rows.jsonl": "".join(f'{{"n": {n}}}\n' for n in range(10)),
            "trip.yaml": each if ending == "partial" else single,
            "each.yaml": each,
            "items.yaml": BOOK + ITEMS + LAST,
            "ending": ending,
        }
        super().__init__(folder, files)
        self.way, self.ending = way, ending
        self.exit = 0

    def start(self, line: str, **options: str):
        program, *words = shlex.split(line)
        command = [sys.executable, *(words if program == "python" else ["fast.py", *words])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return Forked(command, cwd=self.folder, env=self.env | options, text=True, **pipes)

    def do(self, lines: str) -> None:
        """Commands; then, if the work is in a queue, workers until nothing waits there. What kills its process is started again."""
        for line in lines.split("; "):
            for _ in range(5):
                done = self(line)
                if done.returncode != -9 or self.ending != "poison":
                    break
        while self.way in QUEUED and done.returncode in {0, -9}:
            done = self("outlast worker shop.py:app --until-idle")
            if done.returncode != -9 and not self.hurry():
                break
        self.exit, self.said = done.returncode, done.stdout + done.stderr

    def hurry(self) -> bool:
        """Time passes: what waits in the queue is due."""
        with sqlite3.connect(self.folder / ".outlast" / "outlast.db") as store:
            jobs = store.execute("update outlast_jobs set due = 0 where state in ('ready', 'waiting', 'alone')")
        store.close()
        return jobs.rowcount > 0

    def seen(self) -> dict[str, str]:
        """What a person sees now, as it is in the table."""
        calls = self.folder / "calls"
        found = {"exit": str(self.exit), "calls": called(calls.read_text().split() if calls.exists() else [])}
        calls.unlink(missing_ok=True)
        if self.way == "call":
            status, *events = (self.folder / "call.txt").read_text().split("\n")
            return found | {"status": status, "events": shown(events), "retries": "", "alerts": "", "dead letters": ""}
        letters = Counter((one["kind"], one["status"]) for one in self.document("dlq list --status all"))
        events = [one["name"] for one in self.document("events --limit 1000") if one["name"] != "run_command"]
        return found | {
            "status": ", ".join(self.statuses()),
            "events": shown(events),
            "retries": self.retries(),
            "alerts": ", ".join(sorted({one["rule"] for one in self.document("alerts check")["firing"]})),
            "dead letters": ", ".join(f"{count} {kind} {status}" for (kind, status), count in sorted(letters.items())),
        }

    def printed(self, line: str) -> str:
        """What a command prints that only reads, in this process."""
        words = line.split()
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(command_line(words), words, env={"OUTLAST_STORE": None}).stdout

    def document(self, line: str):
        return json.loads(self.printed(f"{line} --json"))

    def statuses(self):
        if self.way in QUEUED:
            job = self.document("jobs show 1")
            yield "job " + job["status"] + (f" ({job['stop_reason']})" if job["stop_reason"] else "")
        if self.way != "job":
            for run in self.document("runs list"):
                if run["run_key"] == "k":
                    yield f"{run['kind']} {run['status']}"

    def retries(self) -> str:
        """Retries, successes after one, and exhausted ones, of `outlast metrics`."""
        page = self.printed("metrics")
        counts = [
            sum(float(number) for number in re.findall(rf"^pipeline_retry_{name}_total\S* (\S+)$", page, re.MULTILINE))
            for name in ("attempts", "success", "exhausted")
        ]
        return "/".join(f"{count:g}" for count in counts)


def shown(words: list[str]) -> str:
    """Each word once, in the order in which they came first, with its number."""
    return " ".join(word if count == 1 else f"{count} {word}" for word, count in Counter(words).items())


def called(calls: list[str]) -> str:
    """What was called: the steps around by their names, the work itself as `ask`."""
    return shown([STEPS.get(call, "ask") for call in calls])


def fitted(seen: dict[str, str], expected: dict[str, str]) -> dict[str, str]:
    """What was seen, with a `#` for each number for which the table has one: how often a circuit is probed depends on time."""
    patterns = {name: re.escape(text).replace(r"\#", r"\d+") for name, text in expected.items()}
    return {name: expected[name] if re.fullmatch(patterns[name], text) else text for name, text in seen.items()}


def test_the_table_has_every_cell():
    """Each kind of work meets each ending, and no cell is there twice."""
    assert [*CELLS] == [(way, ending) for way in WAYS for ending in ENDINGS]


@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS.values() if not cell.reason], ids=lambda cell: f"{cell.way}: {cell.ending}"
)
def test_how_work_ends(cell, tmp_path):
    """Status, exit code and all that is recorded are those of the table, and so is what the next command does."""
    work = Work(tmp_path, cell.way, cell.ending)
    work.do(WAYS[cell.way])
    assert fitted(work.seen(), cell.first) == cell.first, work.said
    if cell.then:
        (work.folder / "ending").write_text("success")
        work.do(cell.then)
        assert fitted(work.seen(), cell.after) == cell.after, work.said
