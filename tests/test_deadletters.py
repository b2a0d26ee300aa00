"""Dead letters: grouped by problem, kept until they are resolved, and never lost on the way back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forked
import outlast
from outlast import compat
from outlast.deadletters import DeadLetterEntry, Directory, fingerprint, normalised
from outlast.store import open_store
from outlast.store.filters import FIELDS
from outlast.store.records import EventRow, to_us
from outlast.testing import capture_events, virtual_time
from stores import TABLES, sql
from stores import letter as row
from tables import table

# --- one problem, many messages ---


@table(
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
        ('violates check constraint "qty_pos"', 'violates check constraint "qty_pos"'),
        ('null value in column "name" of relation "t"', 'null value in column "name" of relation <text>'),
        ("Duplicate entry '5' for key 't.PRIMARY'", "Duplicate entry <text> for key 't.PRIMARY'"),
        ('unique constraint "sales_2026_11_pkey"', 'unique constraint "sales_<n>_<n>_pkey"'),
        ("CHECK constraint failed: qty_pos", "CHECK constraint failed: qty_pos"),
        ("column 'two words' is empty", "column <text> is empty"),
        ('field "name" of `user` is “odd”', "field <text> of <text> is <text>"),
        ("don't know what 'it''s' is, can't say", "don't know what <text><text> is, can't say"),
        ("invalid token 'abc and then the text was cut…", "invalid token <text>"),
        ("the read/write lock and/or the file", "the read/write lock and/or the file"),
        ("two\nlines\t and   spaces", "two lines and spaces"),
    ],
)
def test_what_differs_from_item_to_item_is_left_out(message, expected):
    """Numbers, ids, hex, instants, paths, addresses and quoted text; words stay (S3-05)."""
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
    """Two messages made from one template with values of one kind have one fingerprint (S3-05)."""
    one, other = (data.draw(values.branches[kind]) for _ in range(2))
    found = {fingerprint("label", "timeout", "ReadTimeout", f"no answer for {value} in time") for value in (one, other)}
    assert len(found) == 1


@given(st.text(max_size=400), st.text(max_size=20), st.text(max_size=20))
def test_every_message_has_a_fingerprint(message, stage, error_type):
    """Whatever an exception says, half a surrogate pair included, it belongs to a group (S3-06)."""
    found = fingerprint(stage, "unknown", error_type, message + "\ud800")
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")


def test_stage_class_type_and_words_tell_problems_apart():
    """One fingerprint for each combination (S3-05)."""
    cases = [
        ("a", "timeout", "E", "no"),
        ("b", "timeout", "E", "no"),
        ("a", "data_error", "E", "no"),
        ("a", "timeout", "F", "no"),
        ("a", "timeout", "E", "yes"),
    ]
    assert len({fingerprint(*case) for case in cases}) == len(cases)


@table(
    ("one", "other", "same"),
    [
        ("'price'", "'customer'", False),
        ("'order-4711'", "'order-4712'", True),
        ("'Ann Smith'", "'Bob Jones'", True),
        ("4711", "4712", True),
    ],
)
def test_a_missing_key_that_is_a_name_is_a_problem_of_its_own(one, other, same):
    """A KeyError says nothing else; ids are not names (S3-05)."""
    found = {fingerprint("label", "data_error", "KeyError", message) for message in (one, other)}
    assert (len(found) == 1) is same


HOSTILE = [
    "column '",
    'constraint "a',
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


@table("piece", HOSTILE)
def test_no_message_makes_it_slow(piece):
    """Eight times the text takes at most about eight times as long, whatever it repeats; far from the square (S0-41)."""

    def seconds(repeats: int) -> float:
        text = piece * repeats
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            normalised(text, read=len(text))
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
    """An id that is no UUID is never part of a path (S0-41) (S4-19)."""
    directory = Directory(tmp_path)
    assert directory.path(bad) is None
    assert directory.read(bad) is None
    with pytest.raises(ValueError, match="UUID"):
        directory.write(entry(id=bad))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """A file is there as a whole or as it was (S4-22)."""
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
    """Nothing is skipped in silence, and one bad file hides no other entry (S3-06)."""
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


def test_the_queue_lists_the_newest_entry_first(tmp_path):
    """S4-21: whatever their ids are."""
    queue = compat.DeadLetterQueue(tmp_path)
    ids = []
    with virtual_time() as time:
        for number in range(6):
            ids.append(asyncio.run(queue.enqueue(f"w-{number}", {}, [], "git", ValueError("boom"))))
            time.advance(60)
    listed = [(found.id, found.workflow_id) for found in asyncio.run(queue.list_entries())]
    assert listed == [(ids[number], f"w-{number}") for number in (5, 4, 3, 2, 1, 0)]


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


def test_a_partial_replay_keeps_the_entry_for_what_failed_again(tmp_path):
    """S4-22, S4-25: nothing that is still to be done goes with the entry, however the work says what failed."""

    async def sweep(*, task: dict, repos: list, adapter_name: str) -> object:
        if adapter_name == "value":
            return await compat.execute_with_graceful_degradation(task, repos, Sweeper("r3", "r4"))
        return {"status": "partial", "failed_repos": {"names": ["r3"], "pairs": [("r3", "boom")]}.get(adapter_name)}

    async def left(adapter: str) -> list[str]:
        queue = compat.DeadLetterQueue(tmp_path / adapter, execute=sweep)
        await queue.replay(await queue.enqueue("w-1", {}, ["r1", "r2", "r3", "r4"], adapter, ValueError("boom")))
        (found,) = await queue.list_entries()
        return found.repos

    assert {adapter: asyncio.run(left(adapter)) for adapter in ("value", "names", "pairs", "unsaid")} == {
        "value": ["r3", "r4"],
        "names": ["r3"],
        "pairs": ["r3"],
        "unsaid": ["r1", "r2", "r3", "r4"],
    }


def test_a_replay_whose_end_cannot_be_told_keeps_the_entry_and_says_so(tmp_path, caplog):
    """S4-22: only a status that means success lets an entry go."""

    async def execute(**_: object) -> object:
        return {"ok": True}

    queue = compat.DeadLetterQueue(tmp_path, execute=execute)
    entry_id = asyncio.run(queue.enqueue("w-1", {}, [], "git", ValueError("boom")))
    assert asyncio.run(queue.replay(entry_id)) == {"ok": True}
    assert [found.id for found in asyncio.run(queue.list_entries())] == [entry_id]
    assert "stays: expected its replay to return a status (completed, succeeded, success or partial)" in caplog.text


def claimed_elsewhere(folder: Path, entry_id: str) -> str:
    """What another process gets when it claims an entry."""
    program = """
import sys
from outlast.deadletters import Directory
with Directory(sys.argv[1]).claim(sys.argv[2]) as entry:
    print(entry)
"""
    return forked.run([sys.executable, "-c", program, str(folder), entry_id], check=True).stdout.strip()


def test_two_replays_of_one_entry_do_its_work_once(tmp_path):
    """S4-22: the second finds no entry, in this process and in another one; when the first has failed, the entry can be replayed again."""
    calls = []

    async def story() -> list[object]:
        begun, go = asyncio.Event(), asyncio.Event()

        async def execute(**_: object) -> dict:
            calls.append("work")
            begun.set()
            await go.wait()
            return {"status": "success" if len(calls) == 2 else "failure"}

        queue = compat.DeadLetterQueue(tmp_path, execute=execute)
        entry_id = await queue.enqueue("w-1", {}, [], "git", ValueError("boom"))
        first = asyncio.create_task(queue.replay(entry_id))
        await begun.wait()
        second = (await asyncio.gather(queue.replay(entry_id), return_exceptions=True))[0]
        other = await asyncio.to_thread(claimed_elsewhere, tmp_path, entry_id)
        go.set()
        ends = [(await first)["status"], str(second), other, (await queue.replay(entry_id))["status"]]
        return [end.replace(entry_id, "ID") for end in ends]

    assert asyncio.run(story()) == ["failure", "Entry not found: ID", "None", "success"]
    assert (calls, list(tmp_path.iterdir())) == (["work", "work"], [])


@pytest.mark.parametrize("unknown", ["7f0c2f0e-7f42-4c5b-9b44-0a3c8f6b1e55", "../secret", "nonsense"])
def test_replay_of_an_unknown_entry_says_so(unknown, tmp_path):
    """S4-22: ValueError, in these words."""
    with pytest.raises(ValueError) as caught:
        asyncio.run(compat.DeadLetterQueue(tmp_path).replay(unknown))
    assert str(caught.value) == f"Entry not found: {unknown}"


def test_without_anything_that_does_the_work_replay_says_what_to_pass(tmp_path):
    """And the entry stays (S4-22)."""
    queue = compat.DeadLetterQueue(tmp_path)
    entry_id = asyncio.run(queue.enqueue("w-1", {}, [], "git", ValueError("boom")))
    with pytest.raises(outlast.ConfigurationError, match="execute=function"):
        asyncio.run(queue.replay(entry_id))
    assert len(asyncio.run(queue.list_entries())) == 1


def test_files_that_are_no_entries_are_named_in_the_log(tmp_path, caplog):
    """Listing goes on, and says what it left alone (S3-06) (S4-21)."""
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


@table(
    ("repos", "bad", "status"),
    [
        (["a", "b"], (), "success"),
        (["a", "b"], ("b",), "partial"),
        (["a", "b"], ("a", "b"), "failure"),
        ([], (), "success"),
    ],
)
def test_a_failing_repository_stops_no_other(repos, bad, status):
    """S4-25, S4-26, S4-27, S4-29: all are tried, one event each at the level of old, and the strict word for the whole; nothing to do is a success."""
    adapter = Sweeper(*bad)
    with capture_events() as events:
        result = asyncio.run(compat.execute_with_graceful_degradation({"type": "sweep"}, repos, adapter))
    assert (result.status, result.total_repos) == (status, len(repos))
    assert result.successful_repos == [repo for repo in repos if repo not in bad]
    assert result.failed_repos == [(repo, "token=*** is not allowed") for repo in bad]
    assert result.metadata == {"task": {"type": "sweep"}, "adapter": "Sweeper"}
    assert result.execution_time_seconds >= 0
    assert adapter.seen == [({"type": "sweep"}, [repo]) for repo in repos]
    assert [(event.name, event.item_id, event.level) for event in events] == [
        ("item_failed", repo, "error") if repo in bad else ("item_succeeded", repo, "info") for repo in repos
    ]
    with capture_events() as events:
        outlast.map(str, repos)
    assert {event.level for event in events} <= {"debug"}  # elsewhere a success is no news


def test_all_repositories_are_worked_on_at_the_same_time():
    """S4-25: each waits until all of them are under way, which one after the other would never be."""

    class Meeting:
        def __init__(self) -> None:
            self.under_way: list[str] = []
            self.all_there = asyncio.Event()

        async def execute(self, _: dict, repos: list[str]) -> None:
            self.under_way += repos
            if len(self.under_way) == 3:
                self.all_there.set()
            await asyncio.wait_for(self.all_there.wait(), 60)

    async def meet() -> compat.PartialResult:
        return await compat.execute_with_graceful_degradation({}, ["a", "b", "c"], Meeting())

    assert asyncio.run(meet()).successful_repos == ["a", "b", "c"]


class Careless:
    """A plain function that raises, returns a value, or hands out a coroutine."""

    def execute(self, _: dict, repos: list[str]) -> object:
        if repos == ["raises"]:
            raise ValueError("no such repository")
        return Sweeper().execute({}, repos) if repos == ["later"] else {"status": "success"}


def test_an_adapter_that_is_no_coroutine_function_stops_no_other():
    """S4-25: what it raises, before or after it hands out a coroutine, belongs to its repository."""
    result = asyncio.run(
        compat.execute_with_graceful_degradation({}, ["raises", "later", "now"], Careless())  # type: ignore[arg-type]
    )
    assert (result.successful_repos, result.failed_repos) == (["later", "now"], [("raises", "no such repository")])


# --- dead letters in a store ---


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """An empty store on each of the databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server = request.getfixturevalue("postgres")
    with open_store(server.dsn):
        pass
    server.execute(*(f"delete from {table}" for table in TABLES))
    return server.dsn


class Shop:
    """An app with one pipeline: parse, then label, which fails for texts that are in `bad`."""

    def __init__(self, address: str) -> None:
        self.bad: set[str] = set()
        self.labelled: list[str] = []
        self.parsed: list[str] = []
        self.app = outlast.App("shop", store=address)

        @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
        def parse(row: dict) -> Review:
            self.parsed.append(row["id"])
            return Review(row["id"], row["text"])

        @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1), concurrency=1)
        def label(review: Review) -> str:
            self.labelled.append(review.id)
            if review.text in self.bad:
                raise ValueError(f"cannot label {review.text!r}")
            return review.text.upper()

        self.reviews = outlast.Pipeline("reviews", parse, label, app=self.app, failure_budget=1.0)
        self.letters = self.app.dead_letters

    def fail(self, *texts: str) -> list[outlast.DeadLetter]:
        """Run these texts, all of them bad; their dead letters, oldest first."""
        self.bad |= set(texts)
        rows = [{"id": f"i{number}", "text": text} for number, text in enumerate(texts)]
        self.reviews.run(rows, item_key="id", check=False)
        self.labelled.clear()
        self.parsed.clear()
        return list(self.letters.find())[::-1]

    def statuses(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for letter in self.letters.find(status=None):
            found[letter.status] = found.get(letter.status, 0) + 1
        return found


@dataclass
class Review:
    id: str
    text: str


@pytest.fixture
def shop(address):
    made = Shop(address)
    yield made
    made.app.store.close()


def test_a_failed_item_becomes_a_dead_letter_with_all_that_is_needed(shop):
    """C-14, S3-24: what, where, why, how often and when, with the input of the stage that failed."""
    before = datetime.now(UTC)
    (letter,) = shop.fail("odd")
    assert (letter.pipeline, letter.stage, letter.item_key, letter.kind, letter.status) == (
        "reviews",
        "label",
        "i0",
        "item",
        "open",
    )
    assert (letter.error, letter.error_type, letter.error_class, letter.tier) == (
        "cannot label 'odd'",
        "ValueError",
        "data_error",
        "data",
    )
    assert letter.payload == {"id": "i0", "text": "odd"}
    assert (letter.attempts, letter.replays, letter.edited) == (1, 0, False)
    assert before <= letter.first_failed_at <= letter.last_attempt_at <= letter.created_at
    assert letter.group == fingerprint("label", "data_error", "ValueError", "cannot label 'odd'")
    assert "odd'}" not in repr(letter)
    assert shop.letters.show(str(UUID(letter.id))) == letter


def test_letters_are_found_newest_first_by_what_is_asked(shop):
    """S3-26: pipeline, stage, group, status, run and text."""
    first, second = shop.fail("odd", "strange")
    found = shop.letters.find
    assert [letter.id for letter in found()] == [second.id, first.id]
    assert [letter.id for letter in found(text="STRANGE")] == [second.id]
    assert len(list(found(pipeline="reviews", stage="label", group=first.group, run=first.run_id))) == 2
    for nothing in (
        {"pipeline": "other"},
        {"stage": "parse"},
        {"group": "0" * 16},
        {"status": "resolved"},
        {"run": "x"},
    ):
        assert list(found(**nothing)) == []
    with pytest.raises(outlast.ConfigurationError, match="expected status"):
        found(status="odd")


def test_forty_thousand_dead_letters_read_as_five_problems(shop):
    """S3-05, S3-27: one line for each problem, the largest first, with its share and samples."""
    kinds = [
        ("label", "ReadTimeout", "timeout", "no answer in {n}.5 s"),
        ("label", "HTTPError", "client_error", "HTTP 422 for http://service/{n}: text 'row {n}' is empty"),
        ("parse", "ValueError", "data_error", "invalid literal for int() with base 10: 'x{n}'"),
        ("store", "OSError", "resource_exhausted", "cannot write /data/out/{n}.json"),
        ("label", "HTTPError", "server_error", "HTTP 500: request 00000000-0000-4000-8000-{n:012x} failed"),
    ]
    store, rows = shop.app.store, []
    for number in range(40_000):
        stage, kind, error_class, template = kinds[min(number % 7, 4)]
        error = template.format(n=number)
        mark = fingerprint(stage, error_class, kind, error)
        rows.append(row(number, stage=stage, error=error, error_type=kind, error_class=error_class, fingerprint=mark))
    for start in range(0, len(rows), 4_000):
        store.add_letters(rows[start : start + 4_000])
    groups = shop.letters.groups()
    assert [(group.stage, group.error_class) for group in groups[:1]] == [("label", "server_error")]
    assert {(group.stage, group.error_class) for group in groups} == {
        (stage, error_class) for stage, _, error_class, _ in kinds
    }
    assert len(groups) == 5
    assert sum(group.count for group in groups) == 40_000
    assert sum(group.share for group in groups) == pytest.approx(1)
    assert all(len(group.sample_keys) == 3 for group in groups)
    assert sum(stat.count for stat in shop.letters.stats()) == 40_000


def test_a_replay_begins_at_the_stage_that_failed_and_resolves(shop):
    """S3-28, D-15, S4-22: parse is not paid again; the letter stays on record as resolved."""
    (letter,) = shop.fail("odd")
    shop.bad.clear()
    with capture_events() as events:
        result = shop.letters.replay(ids=[letter.id])
    assert (result.status, result.counts.succeeded, list(result.outputs())) == ("completed", 1, ["ODD"])
    assert (shop.parsed, shop.labelled) == ([], ["i0"])
    assert shop.letters.show(letter.id).status == "resolved"
    assert [(event.letter_id, event.status) for event in events if event.name == "dead_letter_replay"] == [
        (letter.id, "resolved")
    ]


def test_a_replay_from_the_start_begins_with_what_the_item_was_at_first(shop):
    """D-15: from_start goes through every stage."""
    (letter,) = shop.fail("odd")
    shop.bad.clear()
    shop.letters.replay(ids=[letter.id], from_start=True)
    assert (shop.parsed, shop.labelled) == (["i0"], ["i0"])


def test_a_letter_that_fails_again_is_open_again_and_counted(shop):
    """C-14: open, with one replay more and no second letter."""
    (letter,) = shop.fail("odd")
    result = shop.letters.replay(group=letter.group, check=False)
    assert result.status == "failed"
    (after,) = shop.letters.find(status=None)
    assert (after.id, after.status, after.replays) == (letter.id, "open", 1)


def in_the_order_they_were_made(letters):
    """The keys of their items: which of two items fails first is for the threads to decide."""
    return [letter.item_key for letter in sorted(letters, key=lambda letter: (letter.created_at, letter.id))]


def test_a_failing_canary_stops_the_rest(shop):
    """The others are not even tried, and the result says so (S3-27)."""
    made = in_the_order_they_were_made(shop.fail(*(f"odd {number}" for number in range(9))))
    canaries = [made[0], made[3], made[6]]
    (group,) = shop.letters.groups()
    shop.bad -= {f"odd {key[1:]}" for key in canaries[:2]}  # two of the canaries are mended, the third is not
    result = shop.letters.replay(group=group.id, canary=3, check=False)
    assert result.why == "canary: 1 of 3 failed again, so the other 6 were left as they are"
    assert sorted(shop.labelled) == sorted(canaries)
    assert shop.statuses() == {"resolved": 2, "open": 7}
    assert sorted(letter.replays for letter in shop.letters.find()) == [0, 0, 0, 0, 0, 0, 1]


def test_after_a_good_canary_the_rest_follow_once(shop):
    """Every letter is replayed once, and one result counts them all (S3-27)."""
    made = in_the_order_they_were_made(shop.fail(*(f"odd {number}" for number in range(9))))
    shop.bad.clear()
    result = shop.letters.replay(pipeline="reviews", canary=3)
    assert (result.status, result.counts.total, result.counts.succeeded) == ("completed", 9, 9)
    assert sorted(shop.labelled[:3]) == sorted([made[0], made[3], made[6]])
    assert sorted(shop.labelled) == sorted(f"i{number}" for number in range(9))
    assert shop.statuses() == {"resolved": 9}


def test_reprocess_replays_a_stage_of_a_pipeline(shop):
    """S3-28: the pipeline's own door."""
    shop.fail("odd", "strange")
    shop.bad.clear()
    assert shop.reviews.reprocess(stage="label", canary=1).counts.succeeded == 2
    nothing = shop.reviews.reprocess(stage="label")
    assert (nothing.id, nothing.pipeline, nothing.status) == ("", shop.reviews.name, "completed")


def test_a_replay_of_nothing_is_a_completed_result_that_counts_nothing(shop):
    """S3-28: by each door, also under a key; no run is made, and all that can be read of it is empty."""
    for nothing in (
        shop.reviews.reprocess(),
        shop.reviews.reprocess(run_key="mend"),
        shop.reviews.reprocess(run_key="mend"),
        shop.app.dead_letters.replay(pipeline="typo"),
        shop.app.dead_letters.replay(group="none", canary=2),
    ):
        assert nothing.why == "there was nothing to replay: no open dead letter fits"
        assert (nothing.status, nothing.outcome, nothing.counts.total) == ("completed", "success", 0)
        assert [*nothing.outputs(), *nothing.items(), *nothing.errors(), *nothing.groups] == []
        assert nothing.raise_for_status() is nothing
        assert "nothing to replay" in nothing._repr_html_()
    assert list(shop.app.store.runs(limit=10)) == []


def test_a_job_that_runs_and_reprocesses_succeeds(shop):
    """D-42: after a clean run, after one with transient failures, and where its worker died behind a replay."""
    down = {"odd"}
    attempts = []

    @outlast.stage(retry=None)
    async def save(word):
        if word in down:
            raise ConnectionResetError("hung up")
        return word

    words = outlast.Pipeline("words", save, app=shop.app)

    @shop.app.job
    def load(key: str) -> int:
        attempts.append(key)
        words.reprocess(check=False)
        result = words.run(["odd", "even"], run_key=key, check=False)
        down.clear()
        return result.raise_for_status().counts.succeeded

    for key, tries in (("monday", 2), ("tuesday", 1)):
        job = load.enqueue(key)
        outlast.testing.work(shop.app)
        assert (job.result(), attempts.count(key)) == (2, tries)


def test_a_replay_writes_its_outputs_to_a_sink_of_its_own(shop, tmp_path):
    """S3-28, D-15: exactly once, canaries and the others; a file that is somebody else's is refused, and the letters stay open."""
    shop.fail("odd", "strange", "queer")
    shop.bad.clear()
    sink = tmp_path / "mended.jsonl"
    sink.write_text("mine\n")
    with pytest.raises(outlast.ConfigurationError, match="to be new or empty"):
        shop.reviews.reprocess(sink=sink)
    assert shop.statuses() == {"open": 3}
    sink.unlink()
    assert shop.reviews.reprocess(canary=1, sink=sink).counts.succeeded == 3
    assert sorted(json.loads(line) for line in sink.read_text().splitlines()) == ["ODD", "QUEER", "STRANGE"]


def test_an_edited_letter_is_replayed_with_its_new_payload_and_its_old_type(shop):
    """S3-27: who edits writes fields; the stage gets the class it expects; the first payload and the reason stay on record."""
    (letter,) = shop.fail("odd")
    edited = shop.letters.edit(letter.id, {"id": "i0", "text": "even"}, reason="a typo, password=hunter2")
    assert (edited.payload, edited.edited) == ({"id": "i0", "text": "even"}, True)
    assert edited.metadata["edits"][0]["reason"] == "a typo, password=***"
    assert json.loads(shop.app.store.letter(letter.id).original)["d"]["d"] == {"id": "i0", "text": "odd"}
    assert list(shop.letters.replay(ids=[letter.id]).outputs()) == ["EVEN"]


def another_replay(store, key="x"):
    """A replay of another process that lives, and its lease."""
    run = store.open_run("reviews", key, (), kind="replay")
    return run, store.take_run(run.number, 0, "elsewhere", 600)


def test_only_an_open_letter_can_be_edited(shop):
    """C-14: whoever claims it first has it; an edit never reaches a replay that is under way."""
    (letter,) = shop.fail("odd")
    store = shop.app.store
    run, lease = another_replay(store)
    assert store.claim_for_replay(lease, run.id, [letter.id], reason="replayed by x") == 1
    with pytest.raises(ValueError, match="to be open, got: replaying"):
        shop.letters.edit(letter.id, {}, reason="too late")
    assert shop.letters.show(letter.id).payload == {"id": "i0", "text": "odd"}


def test_of_an_edit_and_many_claims_at_a_time_each_letter_has_one_owner(shop):
    """C-14: compare-and-set: eight claims, one winner for each letter, and edits only before."""
    letters = shop.fail(*(f"odd {number}" for number in range(20)))
    store, won, ready = shop.app.store, [], threading.Barrier(9)

    def claim(name: str) -> None:
        run, lease = another_replay(store, name)
        ready.wait(10)
        store.claim_for_replay(lease, run.id, [letter.id for letter in letters], reason=f"replayed by {name}")
        won.extend((id_, run.id) for _, id_ in store.replay_list(run.number))

    def edit() -> None:
        ready.wait(10)
        for letter in letters:
            with contextlib.suppress(ValueError):
                shop.letters.edit(letter.id, {"id": letter.item_key, "text": "even"}, reason="race")

    threads = [threading.Thread(target=claim, args=(f"c{number}",)) for number in range(8)] + [
        threading.Thread(target=edit)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(id_ for id_, _ in won) == sorted(letter.id for letter in letters)
    for id_, name in won:
        assert store.letter(id_).claimed_by == name


def test_two_replays_at_a_time_share_the_letters(address):
    """S4-22: no letter is replayed twice, whoever asks for it."""
    shop, other = Shop(address), Shop(address)
    shop.fail(*(f"odd {number}" for number in range(30)))
    shop.bad.clear()
    ready, results = threading.Barrier(2), []

    def replay(one: Shop) -> None:
        ready.wait(10)
        with contextlib.suppress(outlast.TemporaryFailure):  # the other one may have been faster with all of them
            results.append(one.letters.replay(pipeline="reviews").counts.succeeded)

    threads = [threading.Thread(target=replay, args=(one,)) for one in (shop, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(results) == 30
    assert len(shop.labelled) + len(other.labelled) == 30
    assert shop.statuses() == {"resolved": 30}
    for one in (shop, other):
        one.app.store.close()


KILLED = """
import sys
import outlast

app = outlast.App("shop", store=sys.argv[1])

@outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
def parse(row: dict) -> dict:
    return row

@outlast.stage(retry=outlast.RetryPolicy(max_attempts=1), concurrency=1)
def label(row: dict) -> str:
    if sys.argv[2] == "fail":
        raise ValueError("not yet")
    if row["id"] == 5:
        print("working", flush=True)
        sys.stdin.read()  # until it is killed
    print("done", row["id"], flush=True)
    return "x"

reviews = outlast.Pipeline("reviews", parse, label, app=app, failure_budget=1.0)
if sys.argv[2] == "fail":
    reviews.run([{"id": number} for number in range(12)], item_key="id", check=False)
else:
    reviews.reprocess()
"""


def test_kill_9_in_the_middle_of_a_replay_loses_nothing(address, tmp_path):
    """C-14, S4-22: what was finished is resolved, everything else is open again, and the next replay does just that."""
    script = tmp_path / "shop.py"
    script.write_text(KILLED)
    forked.run([sys.executable, script, address, "fail"], check=True, timeout=200)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    replay = forked.Forked([sys.executable, script, address, "replay"], **pipes)
    with replay:
        for line in replay.stdout:
            if line == "working\n":
                break
        replay.kill()
    shop = Shop(address)
    store = shop.app.store
    assert sum(stat.count for stat in store.stats()) == 12
    # The dead cannot give their lease back: it ends by itself within seconds, which no test waits for.
    sql(store, "update outlast_shards set until = 0")
    found = {letter.item_key: letter.status for letter in shop.letters.find(status=None)}
    assert len(found) == 12
    assert found["5"] == "open"
    assert set(found.values()) <= {"open", "resolved"}
    left = {key for key, status in found.items() if status == "open"}
    again = forked.run([sys.executable, script, address, "replay"], check=True, timeout=200)
    assert {line.split()[1] for line in again.stdout.splitlines() if line.startswith("done")} == left
    assert shop.statuses() == {"resolved": 12}
    store.close()


def test_archived_letters_are_kept_and_not_replayed(shop):
    """C-14, S4-24: put away with a reason, and back again."""
    first, second = shop.fail("odd", "strange")
    assert shop.letters.archive(ids=[first.id], reason="known, see the tracker") == 1
    assert shop.letters.archive(ids=[first.id], reason="again") == 0
    assert [letter.id for letter in shop.letters.find()] == [second.id]
    shop.bad.clear()
    assert shop.letters.replay(pipeline="reviews").counts.total == 1
    with pytest.raises(outlast.ConfigurationError, match="Open it again first, with unarchive"):
        shop.letters.replay(ids=[first.id])
    assert shop.letters.unarchive(ids=[first.id], reason="was wrong") == 1
    assert shop.letters.replay(ids=[first.id]).counts.succeeded == 1


def test_every_file_that_is_no_letter_is_named_and_nothing_is_taken_in(shop, tmp_path):
    """Numbers that no letter can have, types that are wrong, JSON that is too deep: a sentence for each, and the healthy one waits (S4-19)."""
    shop.fail("odd")
    folder = tmp_path / "letters"
    shop.letters.export(folder)
    assert (folder.stat().st_mode & 0o777, [path.stat().st_mode & 0o777 for path in folder.iterdir()]) == (
        0o700,
        [0o600],
    )
    (healthy,) = folder.iterdir()
    text = healthy.read_text()
    bad = {
        "created_us": 10**18,
        "first_failed_us": -1,
        "last_attempt_us": 1e300,
        "attempts": "many",
        "replays": 10**12,
        "tier": ["x"],
    }
    for number, (name, value) in enumerate(bad.items(), 1):
        data = json.loads(text)
        data["id"] = str(UUID(int=number))
        data["metadata"]["outlast"][name] = value
        (folder / f"{data['id']}.json").write_text(json.dumps(data))
    deep = UUID(int=77)
    nested = json.loads(text) | {"id": str(deep), "task": "DEEP"}
    (folder / f"{deep}.json").write_text(json.dumps(nested).replace('"DEEP"', '{"a":' * 9000 + "1" + "}" * 9000))
    (folder / f"{UUID(int=78)}.json").write_text("[" * 100_000)
    other = outlast.App("other", store=shop.app.store_url)
    with pytest.raises(outlast.ConfigurationError) as refused:
        other.dead_letters.import_(folder)
    said = "\n".join(refused.value.problems)
    assert [name for name in bad if name not in said] == []
    assert all(f"{UUID(int=number)}.json" in said for number in (*range(1, 7), 77, 78))
    assert healthy.name not in said
    assert list(other.dead_letters.find()) == []
    other.store.close()


def test_a_row_beyond_the_calendar_breaks_no_reading(shop):
    """M7: what is in a store already is shown as well as can be."""
    store = shop.app.store
    store.add_letters([row(1, created_us=10**18, last_attempt_us=10**18, first_failed_us=-(10**18)), row(2)])
    found = list(shop.letters.find())
    assert len(found) == 2
    assert max(letter.created_at for letter in found).year == 9999
    assert shop.letters.groups()[0].first_seen_at.year == 1
    assert shop.letters.stats()[0].newest_at.year == 9999


def test_half_a_character_comes_back_from_a_folder(shop, tmp_path):
    """What a letter held is what is taken in, to the last character (S4-19)."""
    (letter,) = shop.fail("odd \ud83d \u202e end")
    shop.letters.export(tmp_path / "letters")
    other = outlast.App("other", store=f"sqlite:///{tmp_path}/other.db")
    assert other.dead_letters.import_(tmp_path / "letters") == (1, 0)
    assert other.dead_letters.show(letter.id).payload == letter.payload == {"id": "i0", "text": "odd \ud83d \u202e end"}
    other.store.close()


def test_an_edit_that_nobody_could_read_is_refused(shop):
    """M7: nested too deeply for any reader of JSON."""
    (letter,) = shop.fail("odd")
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(outlast.ConfigurationError, match="nested less deeply"):
        shop.letters.edit(letter.id, deep, reason="x")
    assert shop.letters.show(letter.id).payload == {"id": "i0", "text": "odd"}


def test_every_door_takes_every_mark_of_a_letter(shop, tmp_path):
    """One filter for finding, grouping, putting away, bringing back, writing out and replaying; marks add up (S4-24) (S4-23)."""
    day, letters, store = 86_400_000_000, shop.letters, shop.app.store
    (kept,) = shop.fail("odd")
    run = kept.run_id
    store.add_letters([row(1, stage="parse"), row(2, pipeline="mails"), row(3, error="the disk is full")])
    aged = f"update outlast_dead_letters set moved = moved - {3 * day} where item_key = 'key-3'"
    marks = {
        "pipeline": "mails",
        "stage": "parse",
        "group": kept.group,
        "run": run,
        "text": "DISK is",
        "older_than_days": 2,
    }
    assert set(marks) | {"status"} == set(FIELDS)
    for name, value in marks.items():
        sql(store, aged)  # archiving and opening again make it young
        (found,) = letters.find(**{name: value})
        (group,) = letters.groups(**{name: value})
        assert (group.count, group.sample_keys) == (1, (found.item_key,))
        assert letters.export(tmp_path / name, **{name: value}) == 1
        assert letters.archive(reason="known", **{name: value}) == 1
        sql(store, aged)
        assert [letter.reason for letter in letters.find(**{name: value, "status": "archived"})] == ["known"]
        assert list(letters.find(**{name: value})) == []
        assert letters.unarchive(**{name: value}) == 1
        assert letters.archive(reason="no", ids=[found.id], text="nowhere") == 0
    assert letters.archive(pipeline="reviews", older_than_days=2, reason="x") == 0  # what was opened again is not old
    shop.bad.clear()
    assert letters.replay(run=run, text="odd", stage="label").counts.total == 1
    assert letters.replay(ids=[row(1).id], text="nowhere").id == ""


def test_a_mark_that_is_none_is_refused(shop):
    """D-26: a name that is misspelt, a value that cannot be meant, and one that would mean all there are (S0-29)."""
    letters = shop.letters
    for call, message in [
        (lambda: letters.find(pipline="reviews"), "got: pipline. Did you mean 'pipeline'"),
        (lambda: letters.archive(status="open", stage="x", reason="x"), "got: status"),
        (lambda: letters.archive(text="", reason="x"), "expected text to be a text to look for, got: an empty one"),
        (lambda: letters.archive(older_than_days=-1, reason="x"), "expected older_than_days to be a number of days"),
        (lambda: letters.archive(older_than_days=float("nan"), reason="x"), "expected older_than_days"),
        (lambda: letters.find(stage=3), "expected stage to be a text, got: a value of type int"),
        (lambda: shop.reviews.reprocess(pipeline="mails"), "got: pipeline"),
    ]:
        with pytest.raises(outlast.ConfigurationError, match=message):
            call()


def test_old_letters_are_put_away_by_themselves(address):
    """S4-24: after so many days, or as the app's retention says."""
    shop = Shop(address)
    store = shop.app.store
    now = to_us(datetime.now(UTC))
    store.add_letters([row(number, created_us=now - number * 86_400_000_000) for number in range(10)])
    sql(store, "update outlast_dead_letters set moved = created")
    assert shop.letters.auto_archive() == 0
    assert shop.letters.auto_archive(older_than_days=6.5) == 3
    assert {letter.reason for letter in shop.letters.find(status="archived")} == {
        "older than 6.5 days, archived by itself"
    }
    app = outlast.App("shop", store=address, retention_days={"open_dead_letters": 2})
    assert len(app.store.letters(status="archived")) == 3 + 5  # when the store was opened
    assert app.dead_letters.auto_archive() == 0
    assert len(list(app.dead_letters.find())) == 2
    for opened in (store, app.store):
        opened.close()


def test_retention_happens_by_itself_when_a_run_ends(address):
    """S4-24, C-14: open letters are put away, what is over goes, and nothing of the run that ends or of one that can go on."""
    app = outlast.App(
        "shop",
        store=address,
        retention_days=dict.fromkeys(("runs", "dead_letters", "events"), 0) | {"open_dead_letters": 0},
    )

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def label(number: int) -> int:
        if number == 0:
            raise ValueError("odd")
        return number

    pipeline = outlast.Pipeline("reviews", label, app=app, failure_budget=1.0)
    store = app.store
    paused = store.open_run("reviews", "paused", ())
    store.set_run(None, paused.id, status="interrupted")
    store.add_events([EventRow("e" * 32, "run_started", 1, paused.id)])
    last = [pipeline.run([0, 1], run_key=f"run {number}", check=False) for number in range(4)][-1]
    assert {run.run_key for run in store.runs()} == {"paused", "run 3"}
    assert {(event.run, event.name) for event in store.events()} == {
        (paused.id, "run_started"),
        (last.id, "run_started"),
        (last.id, "run_finished"),
    }
    assert list(last.outputs()) == [1]
    assert [(letter.run, letter.status) for letter in store.letters()][1:] == [(last.id, "open")]
    (before,) = app.dead_letters.find(status="archived")
    assert before.reason == "older than 0 days, archived by itself"
    store.close()


def test_retention_happens_by_itself_when_a_store_is_opened(address, monkeypatch):
    """S4-24: settled letters are kept for 90 days unless the app says otherwise, and deleted a bounded piece at a time."""
    shop = Shop(address)
    store = shop.app.store
    store.add_letters([row(number, status="archived") for number in range(10)] + [row(10), row(11, status="resolved")])
    sql(store, f"update outlast_dead_letters set moved = moved - {91 * 86_400_000_000} where item_key <> 'key-11'")
    store.close()
    keeping = outlast.App("shop", store=address, retention_days={"dead_letters": None})
    assert sum(stat.count for stat in keeping.store.stats()) == 12
    keeping.store.close()
    monkeypatch.setattr("outlast.store.retention._AT_MOST", 4)
    monkeypatch.setattr("outlast.store.upkeep._CHUNK", 2)
    app = outlast.App("shop", store=address)
    assert sum(stat.count for stat in app.store.stats()) == 8
    app.tidy(app.store, datetime.now(UTC))
    app.tidy(app.store, datetime.now(UTC))
    assert {(stat.status, stat.count) for stat in app.store.stats()} == {("open", 1), ("resolved", 1)}
    app.store.close()


def test_a_run_tells_by_itself_that_too_many_letters_are_open(address):
    """S4-24: with the threshold of the app, at the end of each run that leaves more."""
    app = outlast.App("shop", store=address, dead_letter_threshold=1)

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def label(number: int) -> int:
        raise ValueError("odd")

    pipeline = outlast.Pipeline("reviews", label, app=app, failure_budget=1.0)
    with capture_events() as events:
        pipeline.run([0], check=False)
        assert "dead_letters_over_threshold" not in [event.name for event in events]
        pipeline.run([0], check=False)
    (event,) = [event for event in events if event.name == "dead_letters_over_threshold"]
    assert (event.count, event.threshold) == (2, 1)
    app.store.close()
    with pytest.raises(outlast.ConfigurationError, match="dead_letter_threshold to be an integer of at least 0"):
        outlast.App("shop", dead_letter_threshold=-1)


def test_too_many_open_letters_are_told(shop):
    """S4-23, S4-24: an event with the number, the threshold and the age of the oldest; nothing is refused."""
    shop.fail("odd", "strange", "weird")
    with capture_events() as events:
        assert shop.letters.check_size(most=3) is False
        assert shop.letters.check_size(most=2) is True
    assert [(event.name, event.level, event.count, event.threshold) for event in events] == [
        ("dead_letters_over_threshold", "warning", 3, 2)
    ]
    assert events[0].oldest_at == min(letter.created_at for letter in shop.letters.find())


def test_what_is_meant_must_be_said(shop):
    """No forgotten option empties or replays the whole queue; wrong values are refused before anything happens (S0-29)."""
    (letter,) = shop.fail("odd")
    letters = shop.letters
    for call, message in [
        (letters.replay, "which dead letters are meant"),
        (lambda: letters.archive(reason="x"), "which dead letters are meant"),
        (lambda: letters.archive(group=letter.group, reason=" "), "reason to say why"),
        (lambda: letters.edit(letter.id, {}, reason=""), "reason to say why"),
        (lambda: letters.replay(group=letter.group, canary=0), "canary to be an integer of at least 1"),
        (lambda: letters.replay(ids=letter.id), "list of ids"),
    ]:
        with pytest.raises(outlast.ConfigurationError, match=message):
            call()
    with pytest.raises(ValueError, match="Entry not found: nothing"):
        letters.show("nothing")
    assert shop.statuses() == {"open": 1}


def test_export_and_import_bring_the_same_letters_back(shop, address, tmp_path):
    """C-14, S4-18, S4-19, D-15: nine fields a file; importing twice adds nothing; a replay of what came back works."""
    shop.fail("odd", "strange")
    before = {letter.id: letter for letter in shop.letters.find()}
    assert shop.letters.export(tmp_path / "out") == 2
    assert shop.letters.import_(tmp_path / "out") == (0, 2)
    files = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert {UUID(name).hex for name in files} == set(before)
    assert set(next(iter(files.values()))) == set(DeadLetterEntry.__annotations__)
    sql(shop.app.store, "delete from outlast_dead_letters")
    assert shop.letters.import_(tmp_path / "out") == (2, 0)
    after = {letter.id: letter for letter in shop.letters.find()}
    same = (
        "pipeline",
        "stage",
        "item_key",
        "payload",
        "error",
        "error_type",
        "error_class",
        "tier",
        "group",
        "attempts",
        "run_id",
        "created_at",
    )
    for id_, letter in before.items():
        assert [getattr(letter, name) for name in same] == [getattr(after[id_], name) for name in same]
    shop.bad.clear()
    assert sorted(shop.letters.replay(pipeline="reviews").outputs()) == ["ODD", "STRANGE"]


def test_entries_of_another_program_are_taken_in(shop, tmp_path):
    """Task, repos and adapter of an entry that Outlast did not write; a broken file stops the import before anything is taken (S4-18)."""
    foreign = entry(error="no such host: password=hunter2", error_type="ConnectionError")
    Directory(tmp_path).write(foreign)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(outlast.ConfigurationError, match=r"broken\.json"):
        shop.letters.import_(tmp_path)
    assert shop.statuses() == {}
    (tmp_path / "broken.json").unlink()
    assert shop.letters.import_(tmp_path) == (1, 0)
    (letter,) = shop.letters.find()
    assert (letter.id, letter.pipeline, letter.item_key, letter.kind) == (UUID(foreign.id).hex, "git", "w-1", "job")
    assert (letter.payload, letter.error, letter.error_class) == (
        {"task": {"type": "sweep"}, "repos": ["a", "b"], "adapter": "git"},
        "no such host: password=***",
        "network_error",
    )
    with pytest.raises(outlast.ConfigurationError, match="folder with one JSON file"):
        shop.letters.import_(tmp_path / "nothing")
    shop.letters.export(tmp_path / "again")
    (again,) = Directory(tmp_path / "again").entries()[0]
    assert vars(again) == {**vars(foreign), "error": "no such host: password=***"}  # the same entry, without the secret


def test_groups_keep_ports_apart():
    """User B12: addresses that differ in the port are two problems; ports of connections, hosts and line numbers are not."""
    apart = [
        "circuit_open: the circuit '127.0.0.1:{}' is open",
        "connect to db-1.example.com:{} failed.",
        "[Errno 111] Connect call failed ('10.0.0.7', {})",
        'connection to server at "127.0.0.1", port {} failed: refused',
        "HTTPConnectionPool(host='shop', port={}): Max retries exceeded",
        "GET http://user:1@shop.example:{}/orders/17?page=2 gave 500",
        "connect to [::1]:{} failed",
        "localhost:{} is away",
    ]
    together = [
        "shop.py:{}: no key",
        "order:{} is unknown",
        "row {}:30 is wrong",
        "took {}.5 s",
        "version 1.2.{}.4",
        "a:{}:b",
    ]
    wrong = [text for text in apart if normalised(text.format(9203)) == normalised(text.format(9204))]
    wrong += [text for text in apart if normalised(text.format(40_001)) != normalised(text.format(51_742))]
    wrong += [text for text in apart if normalised(text.format(32_767)) == normalised(text.format(32_768))]
    wrong += [text for text in together if normalised(text.format(9203)) != normalised(text.format(9204))]
    assert wrong == []
    assert normalised("10.0.0.1:5432 is away") == normalised("10.9.9.9:5432 is away")


def test_an_edited_entry_of_another_program_is_written_as_it_is_now(shop, tmp_path):
    """The repositories that an edit left go into the file; one that is no such work any more is written as ours."""
    Directory(tmp_path / "in").write(entry(id=str(UUID(int=1))))
    Directory(tmp_path / "in").write(entry(id=str(UUID(int=2))))
    shop.letters.import_(tmp_path / "in")
    work = {"task": {"type": "sweep"}, "repos": ["b"], "adapter": "git"}
    shop.letters.edit(UUID(int=1).hex, work, reason="a was done")
    shop.letters.edit(UUID(int=2).hex, ["something else"], reason="another shape")
    shop.letters.export(tmp_path / "out")
    written = {item.id: item for item in Directory(tmp_path / "out").entries()[0]}
    first, second = written[str(UUID(int=1))], written[str(UUID(int=2))]
    assert (first.task, first.repos, first.adapter, first.metadata) == ({"type": "sweep"}, ["b"], "git", {})
    assert (second.task["pipeline"], second.metadata["outlast"]["kind"]) == ("git", "job")
