"""How items failed, on record: why there was no further attempt, and which problem it is, with and without dead letters."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import laborious
import outlast
from outlast import report
from outlast.cli import app as command_line
from outlast.cli.printing import print_run
from outlast.deadletters.folder import as_entry, from_entry
from outlast.isolation.supervisor import pack_error, unpack_error
from outlast.testing import run as trial
from outlast.verdicts import mark_begun
from stores import sql

QUICK = {"max_attempts": 2, "initial_delay": 0.001}


def policy(**options):
    """A policy whose waits are over at once, unless it says otherwise."""
    return outlast.RetryPolicy(**(QUICK | options))


class Odd(Exception):
    """No rule knows it."""


def raising(error):
    def work(_):
        raise error

    return work


@outlast.retry(max_attempts=2, initial_delay=0.001)
def inner(_):
    raise ConnectionResetError("inner")


def busy(_):
    error = RuntimeError("too many")
    error.status_code = 429
    raise error


RESET = raising(ConnectionResetError("reset"))
# The stop reason, the stage's function, how it is guarded, and how many attempts it has.
CASES = [
    ("permanent", raising(ValueError("bad")), {"retry": policy()}, 1),
    ("exhausted", RESET, {"retry": policy()}, 2),
    ("unclear", raising(Odd("?")), {"retry": policy()}, 1),
    ("not_listed", RESET, {"retry": policy(on_errors=["timeout"])}, 1),
    ("skipped", RESET, {"retry": policy(skip_on_errors=["connection_reset"])}, 1),
    ("tier_exhausted", busy, {"retry": policy(max_attempts=9, retry_limits={"http_429_503": 1})}, 2),
    (
        "total_timeout",
        RESET,
        {"guard": outlast.Guard(retry=policy(initial_delay=60, max_delay=60), total_timeout=5)},
        1,
    ),
    ("nested_exhausted", inner, {"retry": policy()}, 1),
    ("ambiguous", raising(TimeoutError("lost")), {"guard": outlast.Guard(retry=policy(), idempotent=False)}, 1),
]


def shell(app, *arguments):
    """What a command prints."""
    done = CliRunner().invoke(
        command_line, [*arguments, "--app", app.name], env={"OUTLAST_STORE": app.store_url, "COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_why_there_was_no_further_attempt_is_on_record(app):
    """S3-05, S3-21: with the item, its dead letter and its last attempt, each reason told apart; earlier attempts and other items have none."""
    for reason, work, options, attempts in CASES:
        stage = outlast.stage(**options)(work)
        for how in ("dlq", "collect"):
            pipeline = outlast.Pipeline(f"{reason} {how}", stage, app=app)
            result = pipeline.run([1], on_item_error=how, check=False)
            [item] = result.items()
            assert (item.stop_reason, item.attempts) == (reason, attempts), item.error
            rows = app.store.attempts(result._number)
            assert [row.stop_reason for row in rows] == [None] * (attempts - 1) + [reason]
            letters = [*app.dead_letters.find(pipeline=pipeline.name)]
            assert [letter.stop_reason for letter in letters] == ([reason] if how == "dlq" else [])
            assert report.of(result).stop_reasons == {reason: 1}
            assert report.story_of(result, 0).moments[-1].stop_reason == reason


def test_a_replay_moves_the_stop_reason(app):
    """A letter has that of the last time it failed; an item that has come home after all has none."""
    errors = [ValueError("bad"), ConnectionResetError("reset"), None]

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def work(value):
        if errors[0] is not None:
            raise errors[0]
        return value

    pipeline = outlast.Pipeline("p", work, app=app)
    result = pipeline.run([1], check=False)
    errors.pop(0)
    with contextlib.suppress(outlast.RunFailed):
        pipeline.reprocess()
    assert [letter.stop_reason for letter in app.dead_letters.find()] == ["exhausted"]
    errors.pop(0)
    pipeline.reprocess()
    [item] = result.items()
    assert (item.status, item.stop_reason) == ("succeeded", None)
    assert report.of(result).stop_reasons == {}


def test_an_attempt_that_still_runs_is_why_there_was_no_other(app):
    """Its thread cannot be ended, and a second one beside it is not begun."""
    end = threading.Event()

    @outlast.stage(timeout=0.05, retry=policy())
    def work(_):
        end.wait(20)

    try:
        result = outlast.Pipeline("slow", work, app=app).run([1], check=False)
        [item] = result.items()
        assert item.stop_reason == "still_running"
        assert [letter.stop_reason for letter in app.dead_letters.find()] == ["still_running"]
    finally:
        end.set()


@pytest.mark.parametrize(("begun", "idempotent", "tries"), [(True, False, 1), (False, False, 2), (True, True, 2)])
def test_a_refusal_behind_a_limit_is_not_waited_out_if_something_was_done_before(begun, idempotent, tries):
    """Refusals are not charged, and tried for long; what must not be done twice is not."""
    tried = []

    class Busy(Exception):
        status_code = 429

    def work(found):
        tried.append(found)
        if len(tried) > 1:
            return found
        error = Busy()
        if begun:
            mark_begun(error)
        raise error

    guard = outlast.Guard("g", retry=policy(), limit=outlast.Limit("vendor", concurrency=1), idempotent=idempotent)
    trial(outlast.Pipeline("p", outlast.stage(guard=guard)(work)), [1])
    assert len(tried) == tries


@pytest.mark.parametrize("batch", [None, 2])
def test_what_ends_a_wait_is_on_record_too(batch):
    """No turn at a limit within its time, and a retry budget that stays empty; the attempts before say nothing of it."""
    options = {} if batch is None else {"batch": batch}
    limit = outlast.Limit("vendor", rates={"calls": outlast.Rate(1, per=100)}, max_wait=30)
    throttled = outlast.stage(guard=outlast.Guard("g", retry=policy(), limit=limit), **options)(lambda found: found)
    result = trial(outlast.Pipeline("p", throttled), range(4 if batch else 2))
    reasons = [item.stop_reason for item in result.items()]
    assert sorted(map(str, reasons)) == ["None"] * (batch or 1) + ["throttled"] * (batch or 1)

    budget = outlast.RetryBudget("b", ratio=0.0001, reserve=1)
    patient = outlast.RetryPolicy(max_attempts=9, initial_delay=1, jitter=0)
    broke = outlast.stage(guard=outlast.Guard("g", retry=patient, retry_budget=budget), **options)(RESET)
    result = trial(outlast.Pipeline("p", broke), range(batch or 1))
    assert {item.stop_reason for item in result.items()} == {"retry_budget"}


def test_items_that_did_not_fail_have_no_stop_reason(app):
    """Succeeded, also through a fallback or after a repair, and skipped; a fallback that fails leaves the reason of the call."""

    def mend(_, __):
        return "mended"

    def answer(value):
        if value == "worse":
            raise ValueError("no answer either")
        return "instead"

    @outlast.stage(guard=outlast.Guard(retry=policy(), fallback=answer))
    def reset(value):
        if value == "skip":
            raise outlast.Skip("not wanted")
        raise ConnectionResetError("reset")

    @outlast.stage(retry=policy(), repairs=[mend])
    def parse(value):
        if value == "instead":
            raise ValueError("bad")
        return value

    pipeline = outlast.Pipeline("good", reset, parse, app=app)
    found = {
        item.key: (item.status, item.stop_reason)
        for item in pipeline.run(["fine", "skip", "worse"], item_key=str, check=False).items()
    }
    assert found == {"fine": ("succeeded", None), "skip": ("skipped", None), "worse": ("dlq", "exhausted")}
    streamed = {item.key: item.stop_reason for item in pipeline.stream(["fine", "worse"], check=False)}
    assert sorted(map(str, streamed.values())) == ["None", "exhausted"]


@pytest.mark.parametrize("way", ["thread", "coroutine", "batch", "process", "behind a checkpoint"])
def test_a_letter_holds_the_input_as_it_was_repaired_last(way, app):
    """D-23: the stage's last input is in the letter, a replay begins with it, and from_start with what the source gave."""
    seen, whole = [], []

    def first(item: dict, error: Exception) -> dict:
        return {**item, "repaired": [1]}

    def second(item: dict, error: Exception) -> dict:
        return {**item, "repaired": [*item["repaired"], 2, *whole]}

    def blocking(item: dict) -> dict:
        seen.append(item)
        return laborious.unless_whole(item)

    async def prompt(item: dict) -> dict:
        return blocking(item)

    async def together(items: list[dict]) -> list[dict]:
        return [blocking(item) for item in items]

    @outlast.stage(checkpoint=True)
    async def before(item: dict) -> dict:
        return item

    options = {"repairs": [first, second], "retry": policy()}
    judge = {
        "coroutine": outlast.stage(prompt, **options),
        "batch": outlast.stage(together, batch=2, **options),
        "process": outlast.stage(laborious.unless_whole, isolation="process", **options),
    }.get(way, outlast.stage(blocking, **options))
    stages = [before, judge] if way == "behind a checkpoint" else [judge]
    pipeline = outlast.Pipeline("judge", *stages, app=app)
    pipeline.run([{"id": 1}], run_key="k", item_key="id", check=False)
    (letter,) = app.dead_letters.find(pipeline="judge")
    assert letter.payload == {"id": 1, "repaired": [1, 2]}
    seen.clear()
    pipeline.reprocess(check=False)
    assert way == "process" or seen[0] == letter.payload
    seen.clear()
    whole.append("whole")
    app.dead_letters.replay(ids=[letter.id], from_start=True)
    assert way == "process" or seen[0] == {"id": 1}
    result = pipeline.run([{"id": 1}], run_key="k", item_key="id")
    assert (result.counts.succeeded, [*result.outputs()]) == (1, [{"id": 1, "repaired": [1, 2, "whole"]}])


def test_a_repaired_input_that_cannot_be_stored_leaves_the_one_before(app):
    """D-23: nothing is put in its place; the letter keeps what the source gave, and says why."""

    def spoil(item: dict, error: Exception) -> dict:
        return {**item, "lock": threading.Lock()}

    @outlast.stage(retry=policy(), repairs=[spoil])
    def judge(item: dict) -> dict:
        raise ValueError("bad")

    outlast.Pipeline("spoilt", judge, app=app).run([{"id": 1}], check=False)
    (letter,) = app.dead_letters.find(pipeline="spoilt")
    assert (letter.payload, letter.metadata["unstored"]) == ({"id": 1}, "it holds a value of type lock")


def test_what_cannot_be_read_or_kept_is_permanent(app, tmp_path):
    """It is not even tried again; in a run that collects its failures such items are in the groups and in the report as well."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": 1}\n{broken\n{"a": 2}\n{broken too\n')

    @outlast.stage
    def work(row):
        return object() if row["a"] == 2 else row

    for how in ("dlq", "collect"):
        pipeline = outlast.Pipeline(f"unread {how}", work, app=app)
        result = pipeline.run(str(source), on_item_error=how, check=False)
        dead = [item for item in result.items() if item.status in {"dlq", "failed"}]
        assert [item.stop_reason for item in dead] == ["permanent"] * 3
        assert {group.stage: (group.count, group.error_class) for group in result.groups} == {
            "source": (2, "validation_error"),
            "work": (1, "validation_error"),
        }
        made = report.of(result)
        assert {group.stage: (group.count, group.dead) for group in made.errors} == {"source": (2, 2), "work": (1, 1)}
        assert "What went wrong" in made.html()


def test_failures_without_dead_letters_are_groups_too(app):
    """Of a run that collects them, and of a replay in which they fail again."""

    @outlast.stage(retry=None)
    def work(number):
        raise (ValueError if number % 3 else KeyError)(f"cannot read {number}")

    pipeline = outlast.Pipeline("p", work, app=app)
    collected = pipeline.run(range(1, 10), item_key=str, on_item_error="collect", check=False)
    first, second = collected.groups
    assert (first.count, first.error_type, first.stage, first.message) == (6, "ValueError", "work", "cannot read 8")
    assert (first.sample_keys, round(first.share, 2), second.count) == (("8", "1"), 0.67, 3)
    assert [(group.id, group.count) for group in pipeline.run(range(1, 10), check=False).groups] == [
        (first.id, 6),
        (second.id, 3),
    ]
    try:
        replayed = pipeline.reprocess()
    except outlast.RunFailed as failed:
        replayed = failed.result
    assert [(group.id, group.count) for group in replayed.groups] == [(first.id, 6), (second.id, 3)]


def test_a_shell_shows_problems_and_stop_reasons(app):
    """`runs show` names the problem of a run without dead letters and the next command; items, attempts, letters and reports say why."""
    work = outlast.stage(retry=policy())(raising(ConnectionResetError("reset by peer")))
    collected = outlast.Pipeline("c", work, app=app).run([1], run_key="collected", on_item_error="collect", check=False)
    outlast.Pipeline("d", work, app=app).run([1], run_key="kept", check=False)
    shown = shell(app, "runs", "show", "collected")
    assert "reset by peer" in shown
    assert "outlast runs errors collected" in shown
    assert "outlast dlq" not in shown
    assert [group["count"] for group in json.loads(shell(app, "runs", "show", "collected", "--json"))["groups"]] == [1]
    for command in ("items", "attempts"):
        assert "exhausted" in shell(app, "runs", command, "collected")
    [item] = json.loads(shell(app, "runs", "items", "collected", "--json"))
    assert (item["stop_reason"], item["error_class"], item["error_type"]) == (
        "exhausted",
        "connection_reset",
        "ConnectionResetError",
    )
    attempts = json.loads(shell(app, "runs", "attempts", "collected", "--json"))
    assert [attempt["stop_reason"] for attempt in attempts] == [None, "exhausted"]
    [letter] = app.dead_letters.find()
    assert "stopped      exhausted" in shell(app, "dlq", "show", letter.id)
    assert json.loads(shell(app, "dlq", "show", letter.id, "--json"))["stop_reason"] == "exhausted"
    told = shell(app, "runs", "report", collected.id)
    assert "Not retried: 1 exhausted" in told
    assert "outlast runs errors collected" in told
    assert json.loads(shell(app, "runs", "report", "kept", "--json"))["stop_reasons"] == {"exhausted": 1}
    again = from_entry(as_entry(app.store.letter(letter.id), app.codec.decode), app.codec.encode)
    assert again.stop_reason == "exhausted"


def test_a_shell_shows_no_share_of_what_was_read_ahead(app, capsys):
    """Of a source that was not read to its end the number of items is not known: no bar, no percentage, unless somebody has counted them."""

    @outlast.stage(concurrency=1)
    async def work(n):
        if n == 20:
            raise ValueError("bad")
        return n

    pipeline = outlast.Pipeline("p", work, app=app)
    pipeline.run(iter(range(2000)), run_key="k", on_item_error="stop", check=False)
    said, _, _ = shell(app, "runs", "show", "k").partition(
        "count"
    )  # before the table of failures, which has shares of its own
    assert ("%" in said, "━" in said, "256 items read, more to come" in said) == (False, False, True)
    print_run(app.store.find_run("p", "k"), [], expected=2000)
    said = capsys.readouterr().out
    assert ("1.1 %" in said or "1 %" in said, "256 items read of 2,000" in said) == (True, True)
    pipeline.run(range(2000), run_key="k", check=False)
    assert "100 %" in shell(app, "runs", "show", "k")


def test_a_shell_says_what_is_not_stored(app):
    """A letter without an input says so, and how to give it one."""
    outlast.Pipeline("p", outlast.stage(retry=None)(raising(ValueError("no"))), app=app).run([object()], check=False)
    [letter] = app.dead_letters.find()
    shown = shell(app, "dlq", "show", letter.id)
    assert "input        not stored: it is a value of type object; cannot be replayed" in shown
    assert "outlast dlq edit" in shown
    assert "payload" not in shown.replace("--payload", "")


def test_a_shell_shows_values_that_json_has_no_words_for(app):
    """Names that are tuples, sets, arrays: one such value must not keep people from seeing the others."""

    @outlast.stage(retry=None)
    def work(value):
        if isinstance(value, int):
            return {(value, 2): {3}, "array": np.ones(2)}
        raise ValueError("no")

    outlast.Pipeline("p", work, app=app).run([1, {(1, 2): {3}}], run_key="k", check=False)
    made = {"[1, 2]": [3], "array": [1.0, 1.0]}
    assert json.loads(shell(app, "runs", "outputs", "k")) == made
    assert json.loads(shell(app, "runs", "items", "k", "--json"))[0]["output"] == made
    assert json.loads(shell(app, "dlq", "list", "--json"))[0]["payload"] == {"[1, 2]": [3]}


@pytest.mark.parametrize("how", ["dlq", "collect"])
def test_a_failed_item_tells_no_secret_and_is_counted_as_dead(app, how):
    """In results, in the store and in the figures of its stage."""

    @outlast.stage(retry=None)
    async def fail(_):
        raise ValueError("cannot open postgresql://shop:hunter2@db/shop")

    result = outlast.Pipeline("p", fail, app=app).run([1, 2], check=False, on_item_error=how)
    assert all("hunter2" not in item.error for item in result.items())
    assert all("hunter2" not in row.reason for row in app.store.items(result._number))
    assert all("hunter2" not in group.message for group in result.groups)
    assert report.of(result).stages[0].dead == 2


@pytest.mark.parametrize("batch", [None, 2])
def test_another_run_has_other_idempotency_keys(app, batch):
    """The same in every attempt of an item, and nowhere else."""
    keys = []

    @outlast.stage(**({} if batch is None else {"batch": batch}))
    def pay(items):
        keys.append(outlast.current().idempotency_key)
        return items

    pipeline = outlast.Pipeline("pay", pay, app=app)
    pipeline.run([1, 2])
    pipeline.run([3, 4])
    assert len(set(keys)) == len(keys)


def test_a_payload_that_cannot_be_read_hides_no_other_letter(app):
    """It is listed with the reason, by the library and in a shell, as JSON too; it can be shown, and edited into one that can be read."""
    work = outlast.stage(retry=policy())(raising(ValueError("no")))
    outlast.Pipeline("p", work, app=app).run(range(3), run_key="k", item_key=str, check=False)
    broken = next(each for each in app.dead_letters.find() if each.item_key == "1")
    stored = {
        b"\x80 another codec's": "expected a stored value in its envelope, got: other bytes.",
        b'{"v":1,"d":{"$type":"datetime","d":"hunter2"}}': "it holds what cannot be read (ValueError)",
    }
    for data, why in stored.items():
        sql(app.store, "update outlast_dead_letters set payload = ? where id = ?", data, broken.id)
        found = {each.item_key: each for each in app.dead_letters.find()}
        assert {key: (each.payload, each.unreadable is None) for key, each in found.items()} == {
            "0": (0, True),
            "1": (None, False),
            "2": (2, True),
        }
        assert found["1"].unreadable.startswith(why)
    listed = shell(app, "dlq", "list")
    assert f"The payload of {broken.id[:12]} cannot be read: {why}" in listed
    assert "hunter2" not in listed
    assert all(each.id[:12] in listed for each in found.values())
    told = {each["item_key"]: each for each in json.loads(shell(app, "dlq", "list", "--json"))}
    assert (told["0"]["payload"], told["1"]["payload"], told["1"]["unreadable"]) == (0, None, why)
    shown = shell(app, "dlq", "show", broken.id)
    assert f"payload      cannot be read: {why}" in shown
    assert "Give it an input: outlast dlq edit" in shown
    app.dead_letters.edit(broken.id, 7, reason="from the backup")
    assert app.dead_letters.show(broken.id).unreadable is None


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3


class WithoutSetting(Exception):
    def __setattr__(self, name, value):
        raise RuntimeError(name)


class WithoutGetting(Exception):
    def __getattribute__(self, name):
        if name == "__class__":  # which isinstance asks for
            return WithoutGetting
        raise SystemExit(name)


class WithoutArgs(Exception):
    args = property(lambda _: 1 / 0)


class WithoutFields(Exception):
    __dict__ = property(lambda _: 1 / 0)


class WithoutCause(Exception):
    __cause__ = property(lambda _: 1 / 0)
    __context__ = property(lambda _: 1 / 0)


class OddNotes(Exception):
    def __init__(self):
        super().__init__()
        self.__notes__ = 5


class WithoutNotes(Exception):
    __notes__ = property(lambda _: 1 / 0)


class WithoutResponse(Exception):
    @property
    def response(self):
        raise SystemExit(3)


ODD = [
    Frozen,
    WithoutSetting,
    WithoutGetting,
    WithoutArgs,
    WithoutFields,
    WithoutCause,
    OddNotes,
    WithoutNotes,
    WithoutResponse,
]
AGAIN = policy(on_errors=("transient", "permanent", "unclear"))


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_exception_is_the_failure_of_its_item(sqlite_app, kind):
    """Whatever its class does with what every exception has: it is tried again and becomes a dead letter, and nobody else is held up."""

    def plainly(item):
        if item == 3:
            raise kind
        return item

    async def waiting(item):
        return plainly(item)

    def together(items):
        return [plainly(item) for item in items]

    stages = [
        outlast.stage(retry=AGAIN)(plainly),
        outlast.stage(retry=AGAIN)(waiting),
        outlast.stage(retry=AGAIN, batch=4)(together),
        outlast.stage(retry=AGAIN, timeout=5, isolation="thread")(plainly),
    ]
    ended = []
    for number, stage in enumerate(stages):
        pipeline = outlast.Pipeline(f"p{number}", stage, app=sqlite_app, failure_budget=1, min_success_rate=0.5)
        result = pipeline.run(range(9), check=False)
        ended.append((result.status, result.counts.succeeded, result.counts.dlq, result.error))
    raised: type | None = None
    try:
        outlast.retry(AGAIN)(plainly)(3)
    except BaseException as error:  # noqa: BLE001 - any of these, and pytest could not look at some of them
        raised = type(error)
    assert (ended, raised) == ([("completed", 8, 1, None)] * 4, kind)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_exception_comes_out_of_a_worker_process(kind):
    """As itself, or as an error that names it."""
    try:
        raise kind
    except BaseException as error:  # noqa: BLE001 - any of these
        back = unpack_error(memoryview(pack_error(error)))
    assert type(back) is kind or kind.__name__ in str(back)
