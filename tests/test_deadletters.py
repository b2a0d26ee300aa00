"""Dead letters: grouped by problem, kept until they are resolved, and never lost on the way back."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast import compat, deadletters
from outlast.deadletters import DeadLetterEntry, Directory, fingerprint, normalised
from outlast.testing import capture_events

# --- one problem, many messages ---


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Item 42 failed: HTTP 503 after 3.5 s, row 1,234", "Item <n> failed: HTTP <n> after <n> s, row <n>"),
        ("cannot reach https://ann:x@api.example/v1/items?id=7 now", "cannot reach <url> now"),
        ("[Errno 2] No such file or directory: '/data/in/7.json'", "[Errno <n>] No such file or directory: <text>"),
        ("cannot open /data/in/7.json or C:\\data\\7.json", "cannot open <path> or <path>"),
        ("<Review object at 0x7f3ab2c4d5e6>", "<Review object at <n>>"),
        ("commit 4b825dc642cb6eb9 is gone", "commit <n> is gone"),
        ("blob deadbeef01 is gone", "blob <n> is gone"),
        ("request 7f0c2f0e-7f42-4c5b-9b44-0a3c8f6b1e55 timed out", "request <n> timed out"),
        ("req_011CSHoEeqs5C35K2UUqR7Fy was refused", "<n> was refused"),
        ("no account for ann.b+c@mail.example", "no account for <email>"),
        ("stale since 2026-11-15T09:30:00.123+01:00 and 09:30:00", "stale since <time> and <time>"),
        ('field "name" of `user` is “odd”', "field <text> of <text> is <text>"),
        ("don't know what 'it''s' is, can't say", "don't know what <text><text> is, can't say"),
        ("invalid token 'abc and then the text was cut…", "invalid token <text>"),
        ("the read/write lock and/or the file", "the read/write lock and/or the file"),
        ("two\nlines\t and   spaces", "two lines and spaces"),
    ],
)
def test_what_differs_from_item_to_item_is_left_out(message, expected):
    """S3-05: numbers, ids, hex, instants, paths, addresses and quoted text; words stay."""
    assert normalised(message) == expected


values = st.one_of(
    st.integers(0, 10**12).map(str),
    st.floats(0, 1e6).map(lambda x: f"{x:.3f}"),
    st.uuids().map(str),
    st.integers(0, 2**64).map(hex),
    st.text(alphabet=st.characters(blacklist_characters="'\\", blacklist_categories=("Cs",)), max_size=40).map(
        lambda t: f"'{t}'"
    ),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    st.lists(st.text(alphabet="abcdefghij", min_size=1, max_size=8), min_size=1, max_size=4).map(
        lambda parts: "/" + "/".join(parts)
    ),
    st.text(alphabet="abcdefghij", min_size=1, max_size=12).map(lambda name: f"https://{name}.example/{name}"),
)
KINDS = 8


@given(st.integers(0, KINDS - 1), st.data())
def test_messages_that_differ_in_one_value_are_one_problem(kind, data):
    """S3-05: two messages made from one template with values of one kind have one fingerprint."""
    one, other = (data.draw(values.branches[kind]) for _ in range(2))
    found = {fingerprint("label", "timeout", "ReadTimeout", f"no answer for {value} in time") for value in (one, other)}
    assert len(found) == 1


@given(st.text(max_size=400), st.text(max_size=20), st.text(max_size=20))
def test_every_message_has_a_fingerprint(message, stage, error_type):
    """S3-06: whatever an exception says, half a surrogate pair included, it belongs to a group."""
    found = fingerprint(stage, "unknown", error_type, message + "\ud800")
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")


def test_stage_class_type_and_words_tell_problems_apart():
    """S3-05: one fingerprint for each combination."""
    cases = [
        ("a", "timeout", "E", "no"),
        ("b", "timeout", "E", "no"),
        ("a", "data_error", "E", "no"),
        ("a", "timeout", "F", "no"),
        ("a", "timeout", "E", "yes"),
    ]
    assert len({fingerprint(*case) for case in cases}) == len(cases)


HOSTILE = [
    "'",
    "a-",
    "'\\",
    "/",
    "a/",
    "0",
    "a.b@",
    "a.",
    "1-1-1",
    "2026-11-15T",
    "http://",
    "abcdef0",
    "b'",
    "C:\\",
    "\u201c",
    "x",
    "1,",
    "~/",
    "::",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_message_makes_it_slow(piece, monkeypatch):
    """S0-41: eight times the text takes at most about eight times as long, whatever it repeats; far from the square."""
    monkeypatch.setattr(deadletters, "_READ", 10**9)

    def seconds(repeats: int) -> float:
        text = piece * repeats
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            normalised(text)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(40_000) < 8 * 3.5 * max(seconds(5_000), 0.0005)


# --- a directory of entries ---


def entry(**changes: object) -> DeadLetterEntry:
    fields = {
        "id": str(uuid4()),
        "workflow_id": "w-1",
        "task": {"type": "sweep"},
        "repos": ["a", "b"],
        "adapter": "git",
        "error": "boom",
        "error_type": "ValueError",
        "timestamp": "2026-11-15T09:30:00+00:00",
        "metadata": {},
    }
    return DeadLetterEntry(**{**fields, **changes})


def test_an_entry_is_one_indented_json_file_named_after_its_id(tmp_path):
    """S4-18, S4-19: nine fields; folders are made; only the owner can read what may hold anything."""
    kept = entry()
    path = Directory(tmp_path / "deep" / "er").write(kept)
    assert path == tmp_path / "deep" / "er" / f"{kept.id}.json"
    assert json.loads(path.read_text()) == vars(kept)
    assert path.read_text().startswith('{\n  "id"')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "bad", ["../../etc/passwd", "", "x", "/abs", "..", "a\0b", "7f0c2f0e-7f42-4c5b-9b44-0a3c8f6b1e5z"]
)
def test_only_uuids_become_file_names(bad, tmp_path):
    """S4-19, S0-41: an id that is no UUID is never part of a path."""
    directory = Directory(tmp_path)
    assert directory.path(bad) is None
    assert directory.read(bad) is None
    with pytest.raises(ValueError, match="UUID"):
        directory.write(entry(id=bad))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """S4-22: a file is there as a whole or as it was."""
    directory = Directory(tmp_path)
    kept = entry()
    directory.write(kept)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        directory.write(entry(id=kept.id, error="another"))
    monkeypatch.undo()
    assert directory.read(kept.id) == kept
    assert len(list(tmp_path.iterdir())) == 1


def test_broken_files_are_named_and_left_alone(tmp_path):
    """S3-06: nothing is skipped in silence, and one bad file hides no other entry."""
    directory = Directory(tmp_path)
    good = entry()
    directory.write(good)
    (tmp_path / "no-json.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / f"{uuid4()}.json").write_text(json.dumps(vars(entry())))
    (tmp_path / f"{uuid4()}.json").write_text(json.dumps({"id": 1}))
    (tmp_path / ".half.tmp").write_text("{")
    entries, problems = directory.entries()
    assert entries == [good]
    assert len(problems) == 4
    assert any("named after its id" in problem for problem in problems)
    assert any("workflow_id (str), task (dict)" in problem for problem in problems)


def test_entries_are_listed_newest_first_across_time_zones(tmp_path):
    """S4-21, S4-30: by instant, not by spelling; what has no time comes last."""
    directory = Directory(tmp_path)
    for number, when in enumerate(
        ["2026-11-15T10:00:00+02:00", "2026-11-15T09:00:00+00:00", "never", "2026-11-15T09:30:00+01:00"]
    ):
        directory.write(entry(timestamp=when, workflow_id=str(number)))
    assert [found.workflow_id for found in directory.entries()[0]] == ["1", "3", "0", "2"]


# --- the queue under its older name ---


def test_enqueue_writes_the_entry_and_tells_of_it(tmp_path):
    """S4-18, S4-20, S4-30: the id comes back, the event is an error, the time is aware, the message has no secret."""
    queue = compat.DeadLetterQueue(tmp_path / "q")
    with capture_events() as events:
        entry_id = asyncio.run(
            queue.enqueue(
                "w-1",
                {"type": "sweep", "when": datetime(2026, 1, 1, tzinfo=UTC)},
                ["a"],
                "git",
                ValueError("password=hunter2 is wrong"),
            )
        )
    data = json.loads((tmp_path / "q" / f"{entry_id}.json").read_text())
    assert UUID(entry_id).version == 4
    assert datetime.fromisoformat(data.pop("timestamp")).tzinfo is not None
    assert data == {
        "id": entry_id,
        "workflow_id": "w-1",
        "task": {"type": "sweep", "when": "2026-01-01 00:00:00+00:00"},
        "repos": ["a"],
        "adapter": "git",
        "error": "password=*** is wrong",
        "error_type": "ValueError",
        "metadata": {},
    }
    assert [(event.name, event.level, event.letter_id, event.run_id, event.error) for event in events] == [
        ("dead_letter_enqueue", "error", entry_id, "w-1", "password=*** is wrong")
    ]


def test_the_default_folder_is_the_one_it_always_was(tmp_path, monkeypatch):
    """S4-19: .mahavishnu/dead_letter, made with its parents."""
    monkeypatch.chdir(tmp_path)
    assert compat.DeadLetterQueue().queue_dir == Path(".mahavishnu/dead_letter")
    assert (tmp_path / ".mahavishnu" / "dead_letter").is_dir()


def test_replay_does_the_same_work_and_then_lets_the_entry_go(tmp_path):
    """S4-22: same task, repos and adapter; the result comes back; the entry is removed after that and not before."""
    there = []

    async def execute(*, task: dict, repos: list, adapter_name: str) -> dict:
        there.append(len(list(tmp_path.glob("*.json"))))
        return {"status": "success", "did": (task, repos, adapter_name)}

    async def story() -> dict:
        queue = compat.DeadLetterQueue(tmp_path, execute=execute)
        entry_id = await queue.enqueue("w-1", {"type": "sweep"}, ["a"], "git", ValueError("boom"))
        return await queue.replay(entry_id)

    with capture_events() as events:
        result = asyncio.run(story())
    assert result["did"] == ({"type": "sweep"}, ["a"], "git")
    assert there == [1]
    assert list(tmp_path.iterdir()) == []
    assert [(event.name, getattr(event, "status", None)) for event in events] == [
        ("dead_letter_enqueue", None),
        ("dead_letter_replay", "success"),
    ]


@pytest.mark.parametrize("ending", ["raises", "failure"])
def test_a_replay_that_fails_keeps_the_entry(ending, tmp_path):
    """S4-22, C-14: replay never deletes first."""

    async def execute(**_: object) -> dict:
        if ending == "raises":
            raise ConnectionResetError("again")
        return {"status": "failure"}

    queue = compat.DeadLetterQueue(tmp_path, execute=execute)
    entry_id = asyncio.run(queue.enqueue("w-1", {}, [], "git", ValueError("boom")))
    if ending == "raises":
        with pytest.raises(ConnectionResetError):
            asyncio.run(queue.replay(entry_id))
    else:
        asyncio.run(queue.replay(entry_id))
    assert [found.id for found in asyncio.run(queue.list_entries())] == [entry_id]


@pytest.mark.parametrize("unknown", ["7f0c2f0e-7f42-4c5b-9b44-0a3c8f6b1e55", "../secret", "nonsense"])
def test_replay_of_an_unknown_entry_says_so(unknown, tmp_path):
    """S4-22: ValueError, in these words."""
    with pytest.raises(ValueError) as caught:
        asyncio.run(compat.DeadLetterQueue(tmp_path).replay(unknown))
    assert str(caught.value) == f"Entry not found: {unknown}"


def test_without_anything_that_does_the_work_replay_says_what_to_pass(tmp_path):
    """S4-22: and the entry stays."""
    queue = compat.DeadLetterQueue(tmp_path)
    entry_id = asyncio.run(queue.enqueue("w-1", {}, [], "git", ValueError("boom")))
    with pytest.raises(outlast.ConfigurationError, match="execute=function"):
        asyncio.run(queue.replay(entry_id))
    assert len(asyncio.run(queue.list_entries())) == 1


def test_files_that_are_no_entries_are_named_in_the_log(tmp_path, caplog):
    """S4-21, S3-06: listing goes on, and says what it left alone."""
    (tmp_path / "odd.json").write_text("nonsense")
    assert asyncio.run(compat.DeadLetterQueue(tmp_path).list_entries()) == []
    assert "odd.json" in caplog.text


# --- graceful degradation under its older name ---


class Sweeper:
    """Fails for the repositories it is told to."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.seen: list[tuple[dict, list[str]]] = []

    async def execute(self, task: dict, repos: list[str]) -> str:
        self.seen.append((task, repos))
        if repos[0] in self.bad:
            raise PermissionError("token=abcd1234efgh is not allowed")
        return "done"


@pytest.mark.parametrize(
    ("repos", "bad", "status"),
    [
        (["a", "b"], (), "success"),
        (["a", "b"], ("b",), "partial"),
        (["a", "b"], ("a", "b"), "failure"),
        ([], (), "success"),
    ],
)
def test_a_failing_repository_stops_no_other(repos, bad, status):
    """S4-25, S4-26, S4-27, S4-29: all are tried, one event each, and the strict word for the whole; nothing to do is a success."""
    adapter = Sweeper(*bad)
    with capture_events() as events:
        result = asyncio.run(compat.execute_with_graceful_degradation({"type": "sweep"}, repos, adapter))
    assert (result.status, result.total_repos) == (status, len(repos))
    assert result.successful_repos == [repo for repo in repos if repo not in bad]
    assert result.failed_repos == [(repo, "token=*** is not allowed") for repo in bad]
    assert result.metadata == {"task": {"type": "sweep"}, "adapter": "Sweeper"}
    assert result.execution_time_seconds >= 0
    assert adapter.seen == [({"type": "sweep"}, [repo]) for repo in repos]
    assert [(event.name, event.item_id) for event in events] == [
        ("item_failed" if repo in bad else "item_succeeded", repo) for repo in repos
    ]
