"""What a job is: a function with a kind, settings that are checked where they are written, arguments that come back as they were."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

import outlast
from outlast import presets
from outlast.jobs.job import LARGEST, JobArgumentsError
from outlast.kernel.redact import error_text
from outlast.store.codec import Lost
from tables import table


@pytest.fixture
def app(tmp_path):
    return outlast.App("shop", store=str(tmp_path / "store.db"))


def problems(work):
    with pytest.raises(outlast.ConfigurationError) as caught:
        work()
    return list(caught.value.problems)


@contextmanager
def open_client():
    yield "a client"


@dataclass
class Report:
    text: str
    when: date


class Pair(NamedTuple):
    left: int
    right: int


class Colour(Enum):
    RED = "red"


@dataclass
class Stranger:
    text: str


class Text(str):
    __slots__ = ()


class Opaque:
    pass


def carried(job, *args, version=1, **kwargs):
    """What a worker calls the function with."""
    return job.bind_payload(job.encode_arguments(job.arguments(args, kwargs)), version)


# --- the decorator ---


def test_a_job_has_the_settings_of_its_preset_until_it_says_otherwise(app):
    """Bare, on a sync and an async function; the kind is the function's name."""

    @app.job
    def tidy(days: int) -> int:
        return days + 1

    @app.job(name="ask", queue="slow", retry=None, timeout=30, unique_for=60, version=3, upgrade=lambda given, _: given)
    async def ask_model(prompt: str) -> str:
        return prompt

    assert (tidy.kind, tidy.queue, tidy.retry, tidy.guard, tidy.timeout) == (
        "tidy",
        "default",
        presets.jobs,
        None,
        None,
    )
    assert (tidy.isolation, tidy.unique_for, tidy.version, tidy.is_async) == (None, None, 1, False)
    assert (ask_model.kind, ask_model.queue, ask_model.timeout, ask_model.unique_for) == ("ask", "slow", 30.0, 60.0)
    assert (ask_model.retry.max_attempts, ask_model.version, ask_model.is_async) == (1, 3, True)
    assert app.kinds == {"tidy": tidy, "ask": ask_model}
    assert tidy(3) == 4
    assert (tidy.__name__, repr(tidy)) == ("tidy", "<Job 'tidy' version 1>")


def test_a_sync_job_with_a_timeout_runs_in_a_thread_that_can_be_left(app):
    """D-9: sync code needs isolation for a timeout, and a job has it by itself; a process is a guard that can kill."""

    @app.job(timeout=5)
    def left(days: int) -> None: ...

    killed = app.job(isolation="process", timeout=5)(tidy_alone)
    both = app.job(name="both", guard=outlast.Guard(timeout=2), isolation="process", timeout=5)(tidy_alone)
    assert (left.isolation, left.guard) == ("thread", None)
    assert (killed.isolation, killed.guard.isolation, killed.guard.timeout) == ("process", "process", 5.0)
    assert (both.guard.timeout, both.guard.total_timeout, both.guard.isolation) == (2.0, None, "process")


def tidy_alone(days: int) -> None: ...


def generator(days: int):
    yield days


async def stream(days: int):
    yield days


def many(*days: int) -> None: ...


def by_place(days: int, /) -> None: ...


class Shop:
    def tidy(self, days: int) -> None: ...


@table(
    "fn, said",
    [
        (generator, "got: the generator function generator. A job returns one result."),
        (stream, "got: the async generator function stream. A job returns one result."),
        (Shop, "got: the class Shop."),
        (lambda days: days, "got: a lambda. Give it a name with def"),
        (17, "got: a value of type int."),
        (many, "expected no *days in the job many"),
        (by_place, "expected no parameter by place only in the job by_place, got: days."),
        (Shop.tidy, "expected no self in the job Shop.tidy, got: a method."),
        (functools.partial(tidy_alone, 3), "expected name to be a name for the job"),
    ],
)
def test_what_cannot_be_a_job_is_refused_where_it_is_written(fn, said, tmp_path):
    """D-26: a function of the wrong shape is refused at once, together with every other mistake."""
    app = outlast.App("shop", store=str(tmp_path / "store.db"))
    found = problems(lambda: app.job(quue="slow", timeout=0)(fn))
    assert found[0] == "expected no argument 'quue'. Did you mean 'queue'?"
    assert any(text.startswith("expected timeout to be seconds") for text in found)
    assert any(said in text for text in found)
    assert app.kinds == {}


def test_an_option_in_the_wrong_place_is_answered_with_its_place(tmp_path):
    """D-26: what belongs to the enqueue is no option of the decorator, and the other way round."""
    app = outlast.App("shop", store=str(tmp_path / "store.db"))
    for name in ("unique_key", "delay", "priority", "transaction"):
        assert problems(lambda name=name: app.job(**{name: "x"})(tidy_alone)) == [
            f"expected no argument {name!r}. It belongs to the enqueue: .options({name}=...).enqueue(...)."
        ]
    job = app.job(tidy_alone)
    for name in ("unique_for", "retry", "timeout", "guard", "cron"):
        assert problems(lambda name=name: job.options(**{name: 1})) == [
            f"expected no argument {name!r}. It belongs to the decorator: @app.job({name}=...)."
        ]
    assert problems(lambda: job.options(countdown=60)) == ["expected no argument 'countdown'. Did you mean 'delay'?"]
    assert problems(lambda: job.options(unique="k")) == ["expected no argument 'unique'. Did you mean 'unique_key'?"]


def test_all_that_is_wrong_with_the_options_is_told_at_once(app):
    """Every mistake at once, each with what was expected."""

    async def fetch(url: str, client: str = outlast.use(open_client)) -> None: ...

    found = problems(
        lambda: app.job(
            name="", queue="q" * 101, guard="llm", retry={"max_attempts": 3}, timeout="5", isolation="fork",
            unique_for=-1, version=0, upgrade=lambda given: given,
        )(fetch)
    )  # fmt: skip
    assert [text.split(" to be")[0] for text in found] == [
        f"expected {name}" for name in "name queue version upgrade timeout unique_for retry guard isolation".split()
    ]
    assert problems(lambda: app.job(unique_for=1e15)(fetch)) == [
        "expected unique_for to be at most a century, got: 1e+15 s."
    ]
    assert problems(lambda: app.job(upgrade=lambda given, version: given)(fetch)) == [
        "expected upgrade to be None with version=1, got: a function. There are no arguments of an older version."
    ]
    assert "expected no isolation for the coroutine function" in problems(lambda: app.job(isolation="thread")(fetch))[0]


def test_what_is_opened_by_the_worker_cannot_be_in_another_process(app):
    """As in a stage."""

    def fetch(url: str, client: str = outlast.use(open_client)) -> None: ...

    assert any(
        "'process' with use() for client" in text for text in problems(lambda: app.job(isolation="process")(fetch))
    )


def test_a_job_and_a_pipeline_cannot_have_one_name(app):
    """Filters of dead letters name either, and a replay must not send what is not meant."""
    pipeline = outlast.Pipeline("tidy", outlast.stage(lambda row: row), app=app)

    @app.job
    def sweep() -> None: ...

    (said,) = problems(lambda: app.job(name="tidy")(sweep.fn))
    assert said == (
        "expected name to be one that no pipeline of the app has, got: 'tidy'. Give one of the two another name with name=."
    )
    (said,) = problems(lambda: outlast.Pipeline("sweep", outlast.stage(lambda row: row), app=app))
    assert said == "expected name to be one that no job of the app has, got: 'sweep'. Give one of the two another name."
    assert pipeline.name == "tidy"


def test_two_functions_cannot_have_one_kind(app):
    """A payload must never reach another function; a second app has kinds of its own."""

    def made():
        def tidy(days: int) -> None: ...

        return tidy

    first = app.job(made())
    (said,) = problems(lambda: app.job(made()))
    assert said == (
        "expected name to be one that no other job of 'shop' has, got: 'tidy', which is that of "
        f"{__name__}.test_two_functions_cannot_have_one_kind.<locals>.made.<locals>.tidy. Give one of the two another name with name=."
    )
    assert app.kinds == {"tidy": first}
    other = outlast.App("other", store=app.store_url)
    assert (other.job(made()).kind, app.job(name="tidy_2")(made()).kind) == ("tidy", "tidy_2")


def test_a_module_that_is_loaded_again_brings_its_jobs_again(app, tmp_path, monkeypatch):
    """The newest counts; twice in one module is a mistake."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "jobs_of_a_test.py"
    module.write_text("import outlast_test_app\n@outlast_test_app.app.job\ndef tidy(days: int): ...\n")
    holder = type(sys)("outlast_test_app")
    holder.app = app
    monkeypatch.setitem(sys.modules, "outlast_test_app", holder)
    loaded = importlib.import_module("jobs_of_a_test")
    first = app.kinds["tidy"]
    module.write_text(
        "import outlast_test_app\n\n@outlast_test_app.app.job\ndef tidy(days: int, hours: int = 0): ...\n"
    )
    importlib.reload(loaded)
    assert app.kinds["tidy"] is loaded.tidy is not first
    module.write_text(module.read_text() + "\n@outlast_test_app.app.job\ndef tidy(days: int): ...\n")
    assert "which is that of jobs_of_a_test.tidy" in problems(lambda: importlib.reload(loaded))[0]
    monkeypatch.delitem(sys.modules, "jobs_of_a_test")


def test_a_job_that_uses_something_is_called_with_it(app):
    """A plain call opens nothing."""

    @app.job
    def fetch(url: str, client: str = outlast.use(open_client)) -> str:
        return f"{client} {url}"

    assert fetch("a", client="mine") == "mine a"
    with pytest.raises(
        TypeError, match="fetch is called outside of a worker, where nothing is opened: give it client="
    ):
        fetch(url="a")


# --- arguments ---


def test_arguments_come_back_as_they_were(app):
    """D-23: with their types, by place or by name, without those that have defaults and were not given."""

    @app.job
    def file_report(
        report: Report,
        pair: Pair,
        colour: Colour,
        at: datetime,
        *,
        key: UUID,
        size: Decimal,
        where: Path,
        blob: bytes,
        n: int = 3,
    ) -> None: ...

    given = {
        "colour": Colour.RED,
        "at": datetime(2026, 11, 16, 12, tzinfo=UTC),
        "key": UUID(int=5),
        "size": Decimal("1.10"),
        "where": Path("a/b"),
        "blob": b"\0\xff",
    }
    report, pair = Report("a", date(2026, 11, 16)), Pair(1, 2)
    assert carried(file_report, report, pair, **given) == ((), {"report": report, "pair": pair, **given})
    assert type(carried(file_report, report, pair, **given)[1]["pair"]) is Pair


def test_a_job_may_take_any_name(app):
    """Names that the signature leaves open travel like the others."""

    @app.job
    def label(key: str, **more: object) -> None: ...

    assert carried(label, "a", colour="red", days=3) == ((), {"key": "a", "colour": "red", "days": 3})


def test_wrong_arguments_are_named_all_at_once(app):
    """Missing, unknown, twice, too many, and what the worker opens."""

    @app.job
    async def process_report(file_id: str, day: date, client: str = outlast.use(open_client)) -> None: ...

    assert problems(lambda: process_report.arguments((), {"file": "f-1"})) == [
        "expected no argument 'file' of process_report. Did you mean 'file_id'?",
        "expected the argument file_id of process_report, got: nothing.",
        "expected the argument day of process_report, got: nothing.",
    ]
    assert problems(lambda: process_report.arguments(("f-1", 1, 2, 3), {"day": 2})) == [
        "expected at most 3 arguments of process_report by place, got: 4.",
        "expected the argument day of process_report once, got: by place and by name.",
        "expected no argument client of process_report: it is opened by the worker, with use().",
    ]


def test_what_would_not_come_back_is_refused_by_name_and_never_shown(app):
    """The message names the parameter and the way out, and nothing of what is in the value."""

    @app.job
    def label(a: object, b: object, c: object, d: object) -> None: ...

    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    wanted = "of label to be one that can be stored and comes back as it is, got:"
    assert problems(
        lambda: label.encode_arguments({"a": Stranger("hidden"), "b": Opaque(), "c": Text("hidden"), "d": deep})
    ) == [
        f"expected the argument a {wanted} a value of Stranger. Annotate the parameter a with its class.",
        f"expected the argument b {wanted} a value with Opaque in it. Pass what it is made of.",
        f"expected the argument c {wanted} a value of Text. Pass what it is made of.",
        f"expected the argument d {wanted} a value that is nested too deeply.",
    ]
    while deep:
        deep = deep.pop()  # type: ignore[assignment]  # from the outside in: its own end would go too deep


def test_a_payload_has_a_largest_size(app):
    """A row that every worker reads is no place for files."""

    @app.job
    def label(key: str, text: str) -> None: ...

    assert carried(label, "a", "x" * (LARGEST - 100))[1]["key"] == "a"
    (said,) = problems(lambda: label.encode_arguments({"key": "a", "text": "x" * LARGEST}))
    assert said.startswith("expected the arguments of label to take at most 1,048,576 bytes, got: 1,048,60")
    assert "most of it in text. Put it where the worker can read it" in said


# --- versions ---


def test_arguments_of_older_code_go_through_upgrade(app):
    """What an older version wrote reaches today's function; objects of a class that is no more are dicts of their fields."""

    @app.job
    def send(report: Report, to: str) -> None: ...

    old = send.encode_arguments({"report": Report("a", date(2026, 1, 2)), "to": "me"})
    seen = []

    def upgrade(given, version):
        seen.append((given, version))
        return {"text": given["report"]["text"], "to": [given["to"]]}

    newer = outlast.App("newer", store=app.store_url)

    @newer.job(version=3, upgrade=upgrade)
    def send(text: str, to: list[str]) -> None: ...

    assert send.bind_payload(old, 2) == ((), {"text": "a", "to": ["me"]})
    assert seen == [({"report": {"text": "a", "when": date(2026, 1, 2)}, "to": "me"}, 2)]
    assert carried(send, "b", ["you"], version=3) == ((), {"text": "b", "to": ["you"]})


def test_the_way_out_is_not_cut_from_the_record(app):
    """However much does not fit: what is longer than a record may be is left out before it."""

    @app.job
    def send(text: str) -> None: ...

    @app.job
    def report(
        the_name_of_the_customer: str, the_day_on_which_it_is_due: str, the_pages_that_are_wanted: str
    ) -> None: ...

    with pytest.raises(JobArgumentsError) as caught:
        report.bind_payload(send.encode_arguments({"text": "hidden"}), 1)
    assert len(str(caught.value)) == 280
    assert error_text(caught.value).endswith(
        "… If they were edited, edit them again with outlast dlq edit. If the function was changed, give it version= and upgrade=."
    )


def test_arguments_that_do_not_fit_say_why(app):
    """Permanent, with a sentence: nothing of it is tried again, and nothing of what is in it is shown."""

    @app.job
    def send(text: str) -> None: ...

    payload = send.encode_arguments({"text": "hidden"})
    newer = outlast.App("newer", store=app.store_url)

    @newer.job(version=2)
    def send(body: str) -> None: ...

    with pytest.raises(JobArgumentsError) as caught:
        send.bind_payload(payload, 1)
    assert str(caught.value) == (
        "the arguments on record do not fit send: expected no argument 'text'. It takes: body. "
        "expected the argument body, got: nothing. They are of version 1, and the job has no upgrade=."
    )
    assert outlast.classify(caught.value).category == "permanent"
    with pytest.raises(
        JobArgumentsError, match=r"version 2 or older, got: version 3. A worker of newer code can do it"
    ):
        send.bind_payload(payload, 3)
    with pytest.raises(JobArgumentsError, match="cannot be made again: expected a stored value in its envelope"):
        send.bind_payload(b"???", 2)
    failing = newer.job(name="third", version=2, upgrade=lambda given, version: given["gone"])(tidy_alone)
    with pytest.raises(
        JobArgumentsError, match=r"could not bring the arguments of third from version 1 to 2 \(KeyError\)"
    ):
        failing.bind_payload(payload, 1)


# --- results ---


def test_a_result_comes_back_or_says_why_not(app, caplog):
    """A job whose work is done does not fail for its result; whoever asks for that is told (D-23)."""

    @app.job
    def make(kind: str) -> Report | None: ...

    assert make.decode_result(make.encode_result(Report("a", date(2026, 1, 2)))) == Report("a", date(2026, 1, 2))
    assert make.encode_result(None) is None
    assert make.decode_result(None) is None
    for value, why in (
        (Opaque(), "it is, or holds, a value of type Opaque."),
        ([Stranger("hidden")], "it is, or holds, a value of Stranger. Annotate what make returns."),
        ("x" * LARGEST, "it takes 1,048,600 bytes, more than 1,048,576."),
    ):
        with pytest.raises(Lost) as caught:
            make.decode_result(make.encode_result(value))
        assert str(caught.value) == f"it was not stored: {why}"
    assert [record.getMessage() for record in caplog.records] == [
        "The result of make cannot be stored: it is, or holds, a value of type Opaque. The job succeeds, and result() raises ResultLost."
    ]


def test_a_job_that_is_called_as_a_function_has_an_idempotency_key(sqlite_app):
    """The same in the whole call, and in no other; also inside of a retry, and in an async job."""

    @outlast.retry
    def send() -> str:
        return outlast.current().idempotency_key

    @sqlite_app.job
    def pay() -> tuple[str, str]:
        return outlast.current().idempotency_key, send()

    @sqlite_app.job
    async def bill() -> str:
        return outlast.current().idempotency_key

    first, second = pay(), pay()
    assert first[0] == first[1]
    assert len({first[0], second[0], asyncio.run(bill())}) == 3
    with pytest.raises(LookupError):
        send()


def test_a_number_of_attempts_is_no_retry_policy(sqlite_app):
    """The advice is what to write."""
    with pytest.raises(outlast.ConfigurationError, match=r"Write RetryPolicy\(max_attempts=3\)\."):
        sqlite_app.job(retry=3)(tidy_alone)


def test_a_payload_has_arguments_in_the_order_of_the_call(sqlite_app):
    """By place, then by name."""

    @sqlite_app.job
    def pay(zeta: str, alpha: int = 1, mid: str = "") -> None: ...

    assert list(pay.arguments(("z", 7), {"mid": "m"})) == ["zeta", "alpha", "mid"]
    with pytest.raises(outlast.ConfigurationError, match="the argument zeta of pay once, got: by place and by name"):
        pay.arguments(("z",), {"zeta": "y"})


def test_a_job_is_had_by_its_number_too(sqlite_app):
    """As people write it."""

    @sqlite_app.job
    def pay() -> None: ...

    job = pay.enqueue()
    assert sqlite_app.jobs.get(int(job.id)) == sqlite_app.jobs.get(job.id) == job
    for wrong in (True, 0, -1, 1.0):
        with pytest.raises(outlast.ConfigurationError, match="expected the id of a job"):
            sqlite_app.jobs.get(wrong)
