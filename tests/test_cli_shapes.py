"""What commands print, as text and as JSON, is an interface: it is compared with what is on record in golden/cli.txt."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
from outlast.store.records import EventRow, StageMark
from outlast.testing import virtual_time

GOLDEN = Path(__file__).parent / "golden" / "cli.txt"
LINES = (
    "runs list",
    "runs list --status interrupted",
    "runs list --status failed",
    "runs list --limit 1 --pipeline reviews",
    "runs show today",
    "runs show left",
    "runs show same",
    "runs show same --pipeline orders",
    "runs items today",
    "runs items today --status dlq",
    "runs items today --limit 2 --after 0",
    "runs items today --reveal",
    "runs items left",
    "runs attempts today",
    "runs attempts today --item 2",
    "runs attempts today --item nothing",
    "runs errors today",
    "runs outputs today",
    "runs outputs today --reveal",
    "runs report today --item 2",
    "events",
    "events --run today --limit 2",
    "events --name run_started",
    "breaker list",
    "breaker isolate shop --reason maintenance",
    "breaker reset nothing",
    "metrics",
    "alerts check",
    "alerts check --rule dead_letters=1 --rule breaker_open=off",
    "dlq list",
    "dlq list --reveal --limit 1",
    "dlq list --status resolved",
    "dlq groups --stage label",
    "dlq groups --status archived",
    "dlq stats",
    "dlq show ID",
    "dlq show ID --reveal",
    "dlq archive ID --reason seen",
    "dlq archive --run today --undo",
    "pause today",
    "cancel left",
    "cancel today",
    "runs show nothing",
)


def parse(row):
    if row["text"] == "none":
        raise outlast.Skip("no text")
    return row


def label(row):
    if row["text"] == "bad":
        raise ValueError("no label for this")
    if row["text"] == "slow":
        raise ConnectionResetError("reset by peer")
    return {"label": row["text"], "password": "hunter2", "token": row["id"]}


def filled(store_url):
    """A store with a run of every fate, one that was left in the middle, two of one key, breakers and events."""
    retry = outlast.RetryPolicy(max_attempts=3, initial_delay=0.5, jitter=0)
    with virtual_time(seed=7):
        app = outlast.App("shop", store=store_url)
        guard = outlast.Guard("label", retry=retry)
        stages = outlast.stage(parse, concurrency=1), outlast.stage(label, guard=guard, concurrency=1)
        reviews = outlast.Pipeline("reviews", *stages, app=app, failure_budget=1.0)
        rows = [{"id": place, "text": text} for place, text in enumerate(("good", "none", "slow", "bad", "good"))]
        reviews.run(rows, run_key="today", item_key="id", check=False)
        for pipeline, key in (("reviews", "left"), ("reviews", "same"), ("orders", "same")):
            app.store.open_run(pipeline, key, (StageMark("label"),), sink="out.jsonl" if key == "left" else None)
        app.store.add_events([EventRow("e" * 32, "run_paused", 0, None, {"run_key": "old", "reason": None})])
        app.store.save_state("watched_breaker", "shop", {"state": "closed", "failure_count": 2}, expect=0)
        (first, *_) = app.store.letters()
        app.store.close()
    return first.id


def printed(line, store_url, letter):
    words = line.replace("ID", letter).split()
    env = {"COLUMNS": "1000", "OUTLAST_STORE": store_url, "NO_COLOR": "1"}
    done = CliRunner().invoke(command_line(words), words, env=env)
    shown = done.output
    if words[-1] == "--json" and done.exit_code == 0:
        found = json.loads(shown)
        shown = "".join(
            f"{json.dumps(one, ensure_ascii=False)}\n" for one in (found if isinstance(found, list) else [found])
        )
    if isinstance(done.exception, outlast.ConfigurationError):
        shown += f"{done.exception}\n"
    shown = re.sub(r"(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "<instant>", shown)
    shown = re.sub(r'(?<=_us": )\d{16}', "<instant>", shown)
    shown = re.sub(r'(seq=|"seq": )\d+(?=, "?run_id)', r"\1<number>", shown)  # who else listens to events has some too
    return f"$ outlast {line}\n{shown}[{done.exit_code}]\n"


def test_every_command_prints_what_it_printed(tmp_path):
    """C-07: neither a column nor a key changes unless the record does."""
    url = f"sqlite:///{tmp_path}/shop.db"
    letter = filled(url)
    said = [printed(f"{line}{mode}", url, letter) for line in LINES for mode in ("", " --json")]
    text = "\n".join(said).replace(letter, "ID").replace(letter[:12], "ID")
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    assert text.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
