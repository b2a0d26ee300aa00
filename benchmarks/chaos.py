"""
A run that is killed two hundred times: `make chaos-items`.

A program runs a hundred thousand items through three stages; this one kills it with SIGKILL at random moments and starts it again, until it
is done, once with SQLite and once with PostgreSQL. Then it counts what was lost, doubled or wrong, and renews docs/reliability.md. It ends
with an error if anything was.

    benchmarks/chaos.py --kills 20 --items 10000 --stores sqlite

Then replays are killed: dead letters of three runs are replayed, under a key and without one, into each kind of sink with each store, and after
all kills each output must be once in the sink of its own run, with the run's counts and its letters.

    benchmarks/chaos.py --kills 0 --replay-kills 20 --letters 2000 --sinks parquet table
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

if TYPE_CHECKING:
    from doomed import Recorded

PAUSE = 0.02  # seconds for each item, so that there are enough of them for all the kills
SINKS = ("jsonl", "csv", "jsonl.gz", "parquet", "table")
LOOK = 10  # kills after which everything on record is compared with what was there before


@dataclass
class Story:
    """What happened, and what was found."""

    store: str
    items: int
    kills: int = 0
    torn: int = 0  # kills that left half a line in the file
    tails: int = 0  # kills that left lines behind what was committed
    changed: int = 0  # items whose end changed
    lost: int = 0  # items that no status was found for, or that succeeded and are not in the file
    doubled: int = 0  # lines of the file that are there twice
    wrong: int = 0  # items with another end than they must have, or lines for items that did not succeed
    attempts: int = 0  # attempts of finished items that are not on record
    letters: int = 0  # dead letters that are missing or too many
    seconds: float = 0.0
    ends: dict[int, str] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        return self.changed + self.lost + self.doubled + self.wrong + self.attempts + self.letters


def look(story: Story, now: Recorded) -> None:
    """Compare what is on record with what was there before."""
    story.changed += sum(now.ends.get(seq) != status for seq, status in story.ends.items())
    story.ends = now.ends


def count(story: Story, now: Recorded, letters: int, sink: Path) -> None:
    """Count what is lost, doubled or wrong in the end."""
    from doomed import expected

    look(story, now)
    story.lost += sum(seq not in story.ends for seq in range(story.items))
    story.wrong += sum(status != expected(seq) for seq, status in story.ends.items())
    story.attempts += sum(max(0, number - now.attempts[seq]) for seq, number in now.needed.items())
    lines = Counter(json.loads(line)["n"] for line in sink.read_text().splitlines())
    story.doubled += sum(times - 1 for times in lines.values())
    story.lost += sum(expected(seq) == "succeeded" and seq not in lines for seq in range(story.items))
    story.wrong += sum(expected(seq) != "succeeded" for seq in lines)
    story.letters += abs(letters - sum(expected(seq) == "dlq" for seq in range(story.items)))


def torment(name: str, address: str, *, items: int, kills: int, seed: int) -> Story:
    """Kill it so often, then let it end."""
    import doomed
    import outlast

    dice, story = random.Random(seed), Story(name, items)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sink, address = Path(folder, "out.jsonl"), address or f"{folder}/chaos.db"
        store = outlast.App(doomed.APP, store=address).store
        command: list[str | Path] = [sys.executable, doomed.__file__, address, sink, str(items), str(PAUSE)]
        while story.kills < kills:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                try:
                    process.wait(0.05 + dice.random() * 0.9)
                except subprocess.TimeoutExpired:
                    process.kill()
                else:
                    sys.exit(f"it was done after {story.kills} kills: more items are needed")
            story.kills += 1
            run = store.find_run(doomed.PIPELINE, doomed.KEY)
            written = sink.read_bytes() if sink.exists() else b""
            offset = 0 if run is None else store.shard_state(run.number, 0).sink_offset or 0
            story.torn += bool(written) and not written.endswith(b"\n")
            story.tails += len(written) > offset
            if run is not None and story.kills % LOOK == 0:
                look(story, doomed.recorded(store))
                print(f"{name}: {story.kills} kills, {len(story.ends):,} items finished", file=sys.stderr, flush=True)
        last = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        if not last.endswith("completed\n"):
            sys.exit(f"expected the run to complete, got: {last}")
        count(story, doomed.recorded(store), sum(stat.count for stat in store.stats()), sink)
        store.close()
    story.seconds = time.monotonic() - began
    return story


@dataclass
class Mending:
    """What happened to the replays into one kind of sink, and what was found."""

    store: str
    sink: str
    letters: int
    kills: int = 0
    replays: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def mend(name: str, address: str, kind: str, *, letters: int, kills: int, seed: int) -> Mending:
    """Kill replays so often, begin again with new letters whenever none are left, and look at the end of each round."""
    import mended
    import outlast
    from stores import TABLES

    dice, story, began = random.Random(f"{seed}{name}{kind}"), Mending(name, kind, letters), time.monotonic()
    while story.kills < kills and not story.faults:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as open_now:
            store = address or f"{folder}/chaos.db"
            app_store = outlast.App(mended.APP, store=store).store
            pattern, fetch = f"{folder}/out*.{kind}", None
            if address:
                connection = open_now.enter_context(_postgres(address))
                for each in TABLES:
                    connection.execute(f"delete from {each}")
            if kind == "table":
                if not address:
                    connection = open_now.enter_context(closing(sqlite3.connect(f"{folder}/data.db")))
                pattern = f"{address or f'sqlite:///{folder}/data.db'}#made"
                for run in range(mended.RUNS):
                    connection.execute(f"drop table if exists made{run}")
                    connection.execute(f"create table made{run} (n integer, text varchar(100))")
                connection.commit()
                fetch = partial(_first_column, connection)
            command = [sys.executable, mended.__file__, store, pattern, str(letters)]
            subprocess.run([*command, "fail"], check=True)
            ended = False
            while story.kills < kills and not ended:
                key = ["mend"] if dice.random() < 0.5 else []
                with subprocess.Popen([*command, "replay", *key], stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None
                    process.stdout.readline()
                    try:
                        process.wait(0.02 + dice.random() * 0.5)
                        ended = process.stdout.readline() == "done\n"
                    except subprocess.TimeoutExpired:
                        process.kill()
                        story.kills += 1
                story.replays += 1
            for key in (["mend"], []):
                subprocess.run([*command, "replay", *key], stdout=subprocess.PIPE, check=True)
            app = outlast.App(mended.APP, store=store)
            story.faults += mended.faults(app, pattern, letters, fetch)
            app.store.close()
            app_store.close()
        print(
            f"{name}, {kind}: {story.kills} kills of replays, {len(story.faults)} faults", file=sys.stderr, flush=True
        )
    story.seconds = time.monotonic() - began
    return story


def _postgres(address: str) -> Any:
    import psycopg

    return psycopg.connect(address, autocommit=True)


def _first_column(connection: Any, sql: str) -> list[int]:
    return [row[0] for row in connection.execute(sql).fetchall()]


def mended_table(stories: list[Mending]) -> str:
    lines = [
        "| store | sink | letters a round | replays | kills | lost, doubled or wrong | minutes |",
        "|---|---|" + "---:|" * 5,
    ]
    lines += [
        f"| {story.store} | {story.sink} | {story.letters:,} | {story.replays} | {story.kills} | {len(story.faults)} | {story.seconds / 60:.0f} |"
        for story in stories
    ]
    return "\n".join(lines)


def table(stories: list[Story]) -> str:
    head = "| store | items | kills | half lines left | tails left | lost | doubled | wrong | ends changed | attempts missing | dead letters wrong | minutes |"
    lines = [head, "|---|" + "---:|" * 11]
    lines += [
        f"| {story.store} | {story.items:,} | {story.kills} | {story.torn} | {story.tails} | {story.lost} | {story.doubled} | {story.wrong} | "
        f"{story.changed} | {story.attempts} | {story.letters} | {story.seconds / 60:.0f} |"
        for story in stories
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    parser.add_argument(
        "--replay-kills", type=int, default=200, help="of replays, into each kind of sink with each store"
    )
    parser.add_argument("--letters", type=int, default=1500)
    parser.add_argument("--sinks", nargs="+", default=[*SINKS], choices=SINKS)
    options = parser.parse_args()
    stories: list[Story] = []
    mendings: list[Mending] = []
    with ExitStack() as servers:
        for name in options.stores:
            address = ""
            if name == "postgres":
                from servers.postgres import Postgres

                address = servers.enter_context(Postgres()).dsn
            label = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[name]
            if options.kills:
                stories.append(torment(label, address, items=options.items, kills=options.kills, seed=options.seed))
            mendings += [
                mend(label, address, kind, letters=options.letters, kills=options.replay_kills, seed=options.seed)
                for kind in (options.sinks if options.replay_kills else ())
            ]
    text = table(stories)
    print(text if stories else "")
    if mendings:
        print(mended_table(mendings))
    for mending in mendings:
        for fault in mending.faults:
            print(f"{mending.store}, {mending.sink}: {fault}", file=sys.stderr)
    if options.items == 100_000 and options.kills == 200 and len(stories) == 2:
        renew("reliability.md", text, name="items")
    if any(story.faults for story in (*stories, *mendings)):
        sys.exit("something was lost, doubled or wrong")


if __name__ == "__main__":
    main()
