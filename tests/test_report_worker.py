"""
The worker of reports (examples/report-worker): the script says how each input must end, the audit finds what is otherwise, and a small run of
the whole, as a flow and as jobs, ends as the script says.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "report-worker"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setitem(sys.modules, "script", None)
    monkeypatch.delitem(sys.modules, "script")
    return importlib.import_module("script")


@pytest.fixture
def audit(script, monkeypatch):
    for name in ("audit", "report_jobs"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("audit")


def test_the_script_says_how_each_story_ends(script):
    """By its rules alone, attempt by attempt; that the product does the same is asserted below."""
    told = {}
    for story in script.STORIES:
        end = script.expected(story)
        tried = [attempt.error_class or attempt.outcome for attempt in end.attempts]
        told[story.name] = (end.status, tried, end.calls, end.undone, end.kept is not None)
    done, lost = "succeeded", "worker_lost"
    assert told == {
        "nothing goes wrong": (done, [done], 1, False, False),
        "the answer is fenced": (done, [done], 1, False, False),
        "the fence is in capitals": (done, [done], 1, False, False),
        "there is prose around it": (done, [done], 1, False, False),
        "the model thinks aloud": (done, [done], 1, False, False),
        "the title has a fence": (done, [done], 1, False, False),
        "429 once": (done, ["rate_limited", done], 2, False, False),
        "429 three times": (done, ["rate_limited"] * 3 + [done], 4, False, False),
        "500 once": (done, ["server_error", done], 2, False, False),
        "503 twice": (done, ["unavailable"] * 2 + [done], 3, False, False),
        "529, then 502, then 500": (
            done,
            ["server_error_other", "server_error", "server_error", done],
            4,
            False,
            False,
        ),
        "the model stalls": (done, ["timeout", done], 2, False, False),
        "the model hangs up": (done, ["connection_reset", done], 2, False, False),
        "S3 resets two reads": (done, ["connection_reset"] * 2 + [done], 1, False, False),
        "S3 resets a write": (done, ["connection_reset", done], 1, False, False),
        "S3 writes, its answer is lost": (done, ["connection_reset", done], 1, False, False),
        "the update conflicts twice": (done, ["database_error"] * 2 + [done], 1, False, False),
        "S3, then 503, then a conflict": (
            done,
            ["connection_reset", "unavailable", "database_error", done],
            2,
            False,
            False,
        ),
        "429 four times": ("failed", ["rate_limited"] * 4, 4, False, False),
        "502 five times": ("failed", ["server_error"] * 4, 4, False, False),
        "S3 writes, four answers are lost": ("failed", ["connection_reset"] * 4, 1, True, False),
        "the database hangs up four times": ("failed", ["database_connection"] * 4, 1, True, False),
        "503 twice, then two conflicts": (
            "failed",
            ["unavailable"] * 2 + ["database_error"] * 2,
            3,
            True,
            False,
        ),
        "400": ("failed", ["client_error"], 1, False, False),
        "422 after a 503": ("failed", ["unavailable", "client_error"], 2, False, False),
        "no JSON": ("failed", ["invalid_output"], 1, False, True),
        "JSON that is cut off": ("failed", ["invalid_output"], 1, False, True),
        "a name comes twice": ("failed", ["invalid_output"], 1, False, True),
        "cut off where it looks whole": ("failed", ["invalid_output"], 1, False, True),
        "the model refuses": ("failed", ["invalid_output"], 1, False, True),
        "two answers": ("failed", ["invalid_output"], 1, False, True),
        "deeper than anybody reads": ("failed", ["invalid_output"], 1, False, True),
        "JSON of another schema": ("failed", ["invalid_output"], 1, False, True),
        "another schema, after a 429": ("failed", ["rate_limited", "invalid_output"], 2, False, True),
        "no such object": ("failed", ["missing_input"], 0, False, False),
        "unsupported extension": ("failed", ["validation_error"], 0, False, False),
        "no metadata": ("failed", ["validation_error"], 0, False, False),
        "corrupted metadata": ("failed", ["validation_error"], 0, False, False),
        "the table refuses the row": ("failed", ["data_error"], 1, True, False),
        "killed while it asks": (done, [lost, done], 2, False, False),
        "killed while it writes": (done, [lost, done], 1, False, False),
        "killed while it updates": (done, [lost, done], 1, False, False),
        "kills three workers": ("failed", [lost, lost, "poison"], 3, False, False),
        "the database restarts": (done, ["database_connection", done], 1, False, False),
        "503, then the database restarts": (done, ["unavailable", "database_connection", done], 2, False, False),
    }


def test_every_story_is_told_and_the_seed_decides_of_whom(script):
    """The same seed gives the same inputs; each story has one at least, and their number is the one that was asked for."""
    for count in (len(script.STORIES), 50, 500):
        inputs = script.inputs(count, seed=1)
        assert len(inputs) == len({one.file for one in inputs}) == count
        assert {one.story for one in inputs} == set(script.STORIES)
        assert inputs == script.inputs(count, seed=1) != script.inputs(count, seed=2)
    with pytest.raises(SystemExit, match="expected --inputs to be at least 45"):
        script.inputs(44, seed=1)


def test_the_audit_finds_whatever_is_otherwise(script, audit):
    """How could it lie: each thing that can be wrong with an input is found, and nothing is where nothing is wrong."""
    one = next(one for one in script.inputs(50, 1) if one.story.name == "429 once")
    broken = next(one for one in script.inputs(50, 1) if one.story.name == "no JSON")
    right = audit.Facts(
        status="succeeded",
        attempts=(script.Attempt("failed", "rate_limited"), script.Attempt("succeeded")),
        waits=(1.2, None),
        due=(1.25, None),
        stop_reason=None,
        error=None,
        calls=2,
        objects=[one.report],
        rows=[audit.target_of(one)],
        writes=1,
        kept=None,
        undone=False,
        letters=0,
    )
    failed = audit.Facts(
        status="failed",
        attempts=(script.Attempt("failed", "invalid_output"),),
        waits=(None,),
        due=(None,),
        stop_reason="permanent",
        error="no JSON",
        calls=1,
        objects=[],
        rows=[],
        writes=0,
        kept=script.PROSE.answer,
        undone=False,
        letters=1,
    )

    def found(which, facts):
        came = audit.Audit({which.file: facts})
        audit.compare(came, which, script.expected(which.story), hurry=150)
        return tuple(len(lines) for lines in (came.lost, came.doubled, came.otherwise))

    assert (found(one, right), found(broken, failed)) == ((0, 0, 0), (0, 0, 0))
    wrong = {
        "still queued": (one, replace(right, status="queued"), (1, 0, 1)),
        "no object": (one, replace(right, objects=[]), (1, 0, 0)),
        "another object": (one, replace(right, objects=[{"title": "?"}]), (1, 0, 0)),
        "no row": (one, replace(right, rows=[]), (1, 0, 0)),
        "a row that names another object": (one, replace(right, rows=["out/f.json"]), (1, 0, 0)),
        "written twice": (one, replace(right, writes=2), (0, 1, 0)),
        "asked three times": (one, replace(right, calls=3), (0, 1, 1)),
        "Retry-After was not waited for": (one, replace(right, waits=(0.2, None)), (0, 0, 1)),
        "waited less than the band": (one, replace(right, waits=(1.1599, None)), (0, 0, 1)),
        "waited more than the band": (one, replace(right, waits=(1.2401, None)), (0, 0, 1)),
        "the last wait of the schedule in place of the first": (one, replace(right, waits=(4.2, None)), (0, 0, 1)),
        "due before the wait was over": (one, replace(right, due=(0.9, None)), (0, 0, 1)),
        "no wait on record": (one, replace(right, due=(None, None)), (0, 0, 1)),
        "another error class": (
            one,
            replace(right, attempts=(script.Attempt("failed", "unavailable"), right.attempts[1])),
            (0, 0, 1),
        ),
        "an attempt too many": (
            one,
            replace(right, attempts=(right.attempts[0], *right.attempts), waits=(1.2, 1.8, None), due=(1.2, 1.8, None)),
            (0, 0, 1),
        ),
        "what was kept is lost": (broken, replace(failed, kept=None), (0, 0, 1)),
        "another answer was kept": (broken, replace(failed, kept="{}"), (0, 0, 1)),
        "an object was left behind": (broken, replace(failed, objects=[{}]), (0, 1, 0)),
        "no dead letter": (broken, replace(failed, letters=0), (0, 0, 1)),
        "tried again": (broken, replace(failed, stop_reason="exhausted"), (0, 0, 1)),
    }
    assert {how: found(which, facts) for how, (which, facts, _) in wrong.items()} == {
        how: must for how, (_, _, must) in wrong.items()
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store", "form"), [("sqlite", "jobs"), ("postgres", "flow")])
def test_each_input_ends_as_the_script_says(tmp_path, store, form):
    """
    S1-01, S1-08..S1-18, S1-20, C-12, C-20, C-21, D-8, D-16, D-17: every story, with real servers, workers that are killed and a database
    that restarts; the other two are the same code.
    """
    command = [sys.executable, str(EXAMPLE / "main.py"), "--inputs", "46", "--store", store, "--as", form]
    command += ["--hurry", "600", "--model-timeout", "15", "--workers", "2", "--json", f"{tmp_path}/found.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    (trial,) = json.loads((tmp_path / "found.json").read_text())
    sums = {
        name: trial[name] for name in ("inputs", "succeeded", "killed", "restarted", "calls", "kept", "undone", "wrong")
    }
    assert sums == {
        "inputs": 46,
        "succeeded": 24,
        "killed": 3,
        "restarted": 1,
        "calls": 70,
        "kept": 9,
        "undone": 4,
        "wrong": [],
    }
    assert "\nLost: 0. " in done.stdout
    assert "\nDoubled: 0. " in done.stdout
    assert done.stdout.endswith("\nEvery input has ended as it must.\n")


def test_the_guide_shows_the_example_as_it_is():
    """What stands in the guide as a part of a file is a part of that file."""
    guide = (ROOT / "docs" / "guides" / "report-worker.md").read_text()
    shown = re.findall(r"<!-- (?:not run: )?of ([\w.]+)[^\n]*-->\n```\w+\n(.*?)```", guide, re.DOTALL)
    assert [name for name, _ in shown] == ["report.yaml"] * 3 + ["report_jobs.py"] * 2
    assert [text for name, text in shown if text not in (EXAMPLE / name).read_text()] == []
