"""
A run that is killed two hundred times: `make chaos-items`.

A program runs a hundred thousand items through three stages; this one kills it with SIGKILL at random moments and starts it again, until it
is done, once with SQLite and once with PostgreSQL. Then it counts what was lost, doubled or wrong, and renews docs/reliability.md. It ends
with an error if anything was.

    benchmarks/chaos.py --kills 20 --items 10000 --stores sqlite
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from report import renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

if TYPE_CHECKING:
    from doomed import Recorded

PAUSE = 0.02  # seconds for each item, so that there are enough of them for all the kills
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
    options = parser.parse_args()
    stories: list[Story] = []
    with ExitStack() as servers:
        for name in options.stores:
            address = ""
            if name == "postgres":
                from servers.postgres import Postgres

                address = servers.enter_context(Postgres()).dsn
            label = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[name]
            stories.append(torment(label, address, items=options.items, kills=options.kills, seed=options.seed))
    text = table(stories)
    print(text)
    if options.items == 100_000 and options.kills == 200 and len(stories) == 2:
        renew("reliability.md", text, name="items")
    if any(story.faults for story in stories):
        sys.exit("something was lost, doubled or wrong")


if __name__ == "__main__":
    main()
