"""What is printed, logged or noted is text and nothing else: no terminal obeys it, and no line in it is somebody else's."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace

import pytest

import outlast
from job_rows import end, enqueued, finished, new, worker
from outlast.kernel.redact import harmless, in_json, masked, plain, sanitise
from outlast.store.records import EventRow
from outlast.testing import capture_events
from stores import letter as dead_letter
from stores import sql
from tables import table
from terminal import SOURCE, Terminal

#: Titles, cleared screens, links, colours by one byte, text that is read backwards, lines that somebody else begins.
HOSTILE = (
    "a\x1b]0;title\x07\x1b[2J\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\x9b31m\x9d0;t\x9c\u202eback\u2066\u200b"
    "\r\nFAKED 100 succeeded\x85FAKED\u2028FAKED\x0bFAKED\x08\x7f\x00\ufeff\x1bc\x1b]52;c;eA==\udc9b"
)
_OURS = re.compile(r"\x1b\[[0-9;]*m")  # colours, which rich makes of styles

DRIVER = """
import json, sys
from outlast.cli import main

for line in json.load(open("commands.json")):
    sys.argv = ["outlast", *line]
    try:
        main()
    except SystemExit as ended:
        sys.stdout.flush()
        print("\\n== ended", ended.code, flush=True)
"""


def obeyed(text: str) -> list[str]:
    """What a terminal would obey or not show, but for ends of lines, and the two joiners."""
    left = _OURS.sub("", text).replace("\r\n", "\n").replace("\u200d", "").replace("\u200c", "")
    return [
        hex(ord(each)) for each in left if each != "\n" and unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]


@pytest.fixture
def hostile(tmp_path):
    """A folder with a store in which everything that has a name has a hostile one."""
    app = outlast.App("shop", store=f"sqlite:///{tmp_path}/.outlast/outlast.db")

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0, on_errors=["all"]))
    def label(row: dict) -> dict:
        outlast.current().warn(HOSTILE)
        if row["bad"]:
            raise ValueError(HOSTILE)
        return {"said": HOSTILE}

    pipeline = outlast.Pipeline("reviews", label, app=app, failure_budget=1.0)
    rows = [{"id": f"{number}{HOSTILE}", "bad": number % 2 == 0, "text": HOSTILE} for number in range(4)]
    result = pipeline.run(rows, run_key=HOSTILE, item_key="id", check=False)
    store = app.store
    name = HOSTILE.replace("\0", "\ufffd").encode(errors="replace").decode()
    store.save_state("watched_breaker", HOSTILE, {"state": "open", "reason": HOSTILE}, expect=0)
    enqueued(store, new(app.codec.encode({HOSTILE: HOSTILE}), queue=name, kind=name, key=name))
    lease = worker(store, f"{name}/x:{name}:y")
    (taken,) = store.turn(lease, [], {name: 1}, {name: 1}).claimed
    told = {"error": name, "error_type": name, "error_class": name}
    assert finished(store, lease, end(taken, "failed", letter=dead_job(taken, name), **told)) == ()
    enqueued(store, new(app.codec.encode({"a": 1}), queue=name, kind=name))
    store.pause_queue(name)
    store.add_events([EventRow("e" * 32, "run_finished", 1, result.id, {"why": HOSTILE, HOSTILE: 1})])
    for change in (
        "outlast_runs set pipeline = ?, why = ?",
        "outlast_dead_letters set pipeline = ?, stage = ?",
        "outlast_dead_letters set error = ?, error_type = ?",
        "outlast_dead_letters set error_class = ?, reason = ?",
        "outlast_attempts set error = ?, error_class = ?",
        "outlast_items set reason = ?, key = seq || ?",
    ):
        sql(store, f"update {change}", name, name)
    sql(store, "update outlast_job_attempts set outcome = ?, worker = ?", name, name)
    sql(store, "update outlast_runs set stages = ?", json.dumps([{"name": name, "version": name, "checkpoint": False}]))
    store.close()
    return tmp_path, result.id


def dead_job(job, name):
    """Its dead letter."""
    kept = dead_letter(
        job.id,
        seq=None,
        pipeline=name,
        stage=name,
        item_key=str(job.id),
        kind="job",
        error=name,
        metadata={"queue": name, "version": 1},
    )
    return replace(kept, id="d" * 32, payload=job.payload)


def commands(run: str, letter: str) -> list[list[str]]:
    shown = [
        ["runs", "list"],
        ["runs", "show", run],
        ["runs", "items", run],
        ["runs", "attempts", run],
        ["runs", "attempts", run, "--item", HOSTILE.replace("\0", "").replace("\udc9b", "")],
        ["runs", "errors", run],
        ["runs", "report", run],
        ["runs", "report", run, "--item", "0"],
        ["runs", "outputs", run],
        ["dlq", "list"],
        ["dlq", "groups"],
        ["dlq", "show", letter],
        ["dlq", "stats"],
        ["events"],
        ["breaker", "list"],
        ["dlq", "show", "d" * 32],
        ["jobs", "list"],
        ["jobs", "show", "1"],
        ["jobs", "show", "2"],
        ["jobs", "stats"],
        ["jobs", "workers"],
    ]
    revealing = [["runs", "items", run], ["runs", "errors", run], ["dlq", "list"], ["dlq", "show", letter]]
    revealing += [["jobs", "list"], ["jobs", "show", "1"]]
    told = [
        ["pause", run],
        ["resume", run],
        ["dlq", "replay", letter],
        ["dlq", "edit", letter, "--payload", "{}", "--reason", "x\x1b[2J"],
        ["dlq", "archive", letter, "--reason", "x\x1b[2J"],
        ["dlq", "export", "out"],
        ["breaker", "isolate", "none such\x1b[2J", "--reason", "x"],
        ["runs", "show", "none such\x1b[2J"],
        ["dlq", "replay", "d" * 32],
        ["jobs", "show", "none such\x1b[2J"],
        ["jobs", "requeue", "1", "2", "77"],
        ["jobs", "cancel", "1", "2"],
        ["jobs", "pause", "none such\x1b[2J"],
        ["jobs", "resume", "none such\x1b[2J"],
        ["enqueue", "jobs.py:x\x1b[2J", "--arg", "a\x1b[2J=1"],
        ["enqueue", "shop.py:label", "--arg", "b=1"],
        ["worker", "shop.py", "--until-idle", "--no-progress"],
        ["worker", "shop.py", "--until-idle", "--json", "--queue", "q\x1b[2J"],
        ["worker", "shop.py:x\x1b[2J", "--queue", "q\x1b[2J=x", "--drain", "\x1b[2J"],
        ["enqueue", "shop.py:label", "--arg", "a\x1b[2J=1", "--arg", "b=\x1b[2J", "--queue", "q\x1b[2J"],
        ["cancel", run],
    ]
    return [
        *shown,
        *([*line, "--json"] for line in shown),
        *([*line, "--reveal"] for line in revealing),
        *([*line, "--reveal", "--json"] for line in revealing),
        *told,
    ]


def test_no_command_sends_a_terminal_what_it_obeys(hostile):
    """H6: every command over a store that somebody else has filled, on a terminal and through a pipe."""
    folder, run = hostile
    app = outlast.App("shop", store=f"sqlite:///{folder}/.outlast/outlast.db")
    letter = next(one.id for one in app.dead_letters.find() if one.kind == "item")
    (folder / "shop.py").write_text(
        "import outlast\napp = outlast.App('shop')\n\n@app.job\ndef label(b: int): raise ValueError('\\x1b[2Jx\\nFAKED')\n"
    )
    lines = commands(run, letter)
    (folder / "commands.json").write_text(json.dumps(lines))
    (folder / "driver.py").write_text(DRIVER)
    env = {key: value for key, value in os.environ.items() if key not in {"OUTLAST_STORE", "COLUMNS"}}
    piped = subprocess.run(
        [sys.executable, "driver.py"],
        cwd=folder,
        env=env | {"PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    out, err = piped.stdout.decode(), piped.stderr.decode()
    assert out.count("== ended") == len(lines), err
    assert not re.search(r'File ".*outlast/cli/', err), (
        err
    )  # a command that breaks; that of a failed job is another thing
    with Terminal("driver.py", folder=folder, width=2000) as terminal:  # a long line would wrap
        terminal.finish()
        drawn = terminal.written
    for text in (out, err, drawn):
        assert "FAKED" in text  # it was shown
        assert obeyed(text) == []
        assert [line for line in text.splitlines() if line.lstrip().startswith("FAKED")] == []
    assert next((folder / "out").iterdir()).stat().st_mode & 0o077 == 0


def test_json_says_the_same_without_what_a_terminal_obeys():
    """H6: a program reads back what was stored, to the last character."""
    document = json.dumps([HOSTILE, "日本 👩‍👩‍👧", "\U000e0041"], ensure_ascii=False)
    safe = in_json(document)
    assert json.loads(safe) == json.loads(document)
    assert obeyed(safe) == []
    assert "日本 👩‍👩‍👧" in safe
    assert in_json('{\n  "a": 1\n}') == '{\n  "a": 1\n}'


def test_an_error_text_is_one_line_that_no_terminal_obeys():
    """H6: whole sequences go, what is left of one is seen, and nothing unseen hides a secret."""
    assert obeyed(sanitise(HOSTILE)) == []
    assert sanitise("\x1b[31mred\x1b[0m and \x1b]8;;http://x\x1b\\link\x1b]8;;\x07") == "red and link"
    assert sanitise("begins \x1b]0;no end, but a message") == "begins 0;no end, but a message"
    assert sanitise("pass\u200bword=hunter2x \x1b[1mtoken\x1b[0m=abc123def") == "password=*** token=***"
    assert sanitise("naïve café 日本 👩‍👩‍👧 می‌خواهم") == "naïve café 日本 👩‍👩‍👧 می‌خواهم"
    assert plain(" two\n lines\t") == "two lines"
    assert harmless("id  key\tx\ny") == "id  key x y"
    assert harmless("{\n\t1\x1b\n}", lines=True) == "{\n    1\ufffd\n}"


def test_logs_and_notes_obey_the_same_rule(caplog):
    """H6: names and messages of calls, in the log, on the exception and in events."""
    call = outlast.Guard(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0), name="shop\x1b[2J\nFAKED")

    def body() -> None:
        raise ConnectionResetError(HOSTILE)

    with (
        caplog.at_level(logging.DEBUG, "outlast"),
        capture_events() as events,
        pytest.raises(ConnectionResetError) as failed,
    ):
        call.call(body)
    assert caplog.messages
    for text in (*caplog.messages, *failed.value.__notes__):
        assert obeyed(text) == []
        assert "\n" not in text
    assert all(obeyed(event.error) == [] for event in events if hasattr(event, "error"))


@table(
    "value",
    [
        {"user": "ann", "password": "hunter2"},
        {"a": {"api_key": "k3yk3yk3y"}, "b": [{"token": 5}, {"token": [1, 2]}]},
        ["password", "hunter2hunter2"],
        {"url": "postgresql://ann:hunter2@db/x", "note": "password=hunter2"},
        {"config": '{"password": "hunter2"}'},
        "token=hunter2x",
    ],
)
def test_masked_data_is_data(value):
    """B18, C3: whatever is taken out, the rest is JSON of the same shape, and what is harmless stays."""
    hidden = json.dumps(masked(value))
    assert "***" in hidden
    assert not re.search("hunter2|k3yk3y", hidden)
    assert type(masked(value)) is type(value) or masked(value) == "***"
    assert masked({"user": "ann", "n": [1, None, 2.5]}) == {"user": "ann", "n": [1, None, 2.5]}
