"""Components of others: a source or a sink that comes in as an object, by a scheme, by an ending, or from an installed package."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest

import forked
import outlast
import paged
from outlast.cli.printing import next_steps
from outlast.components import (
    Refused,
    Sink,
    Source,
    expected_items,
    open_sink,
    open_source,
    register_sink,
    register_source,
    registry,
)
from outlast.report.views import Views
from paged import Pages

PAGES = Path(paged.__file__).read_text()


@outlast.stage
def double(n: int) -> int:
    return 2 * n


def pipeline(tmp_path, name="doubles"):
    return outlast.Pipeline(name, double, app=outlast.App(store=f"sqlite:///{tmp_path}/outlast.db"))


def written(folder: Path) -> list[int]:
    return sorted(json.loads(line) for page in sorted(folder.glob("*.jsonl")) for line in page.read_text().splitlines())


def problem(make) -> str:
    with pytest.raises(outlast.ConfigurationError) as caught:
        make()
    return str(caught.value)


class Countdown(Source):
    def __init__(self, start: int) -> None:
        self.start = start

    def items(self):
        return iter(range(self.start, 0, -1))

    def count(self) -> int:
        return self.start


@pytest.fixture
def names():
    """What a test registers is gone after it."""
    before = {group: dict(known) for group, known in registry._made.items()}
    yield
    for group, known in before.items():
        registry._made[group].clear()
        registry._made[group].update(known)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that offers components as entry points."""
    site = tmp_path / "site"
    (site / "offered-1.0.dist-info").mkdir(parents=True)
    (site / "offered-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (site / "offered-1.0.dist-info" / "entry_points.txt").write_text(
        "[outlast.sinks]\npaged = offered:sink\nbroken = offered:missing\n[outlast.sources]\ncountdown = offered:countdown\n"
    )
    (site / "offered.py").write_text(
        PAGES + "\n\ndef sink(address):\n    return Pages(address.partition('://')[2])\n"
        "\n\ndef countdown(address):\n    return range(int(address.partition('://')[2]), 0, -1)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("offered", None)


# --- objects ---


def test_a_sink_of_somebody_else_is_taken_as_it_is(tmp_path):
    """A run writes to an object that is a Sink, and every output is there once."""
    sink = Pages(tmp_path / "out")
    run = pipeline(tmp_path).run(range(100), sink=sink)
    assert (run.counts.succeeded, written(tmp_path / "out")) == (100, [2 * n for n in range(100)])
    assert open_sink(sink) is sink


def test_a_source_of_somebody_else_is_read(tmp_path):
    """Its items in its order, and its count for whoever watches."""
    assert list(open_source(Countdown(3))) == [3, 2, 1]
    run = pipeline(tmp_path).run(Countdown(5))
    assert sorted(run.outputs()) == [2, 4, 6, 8, 10]
    known = expected_items(Countdown(7))
    for thread in threading.enumerate():
        if thread.name == "outlast-count":
            thread.join()
    assert known() == 7


def test_the_sources_that_outlast_brings_are_sources():
    """One way in: files and queries are what a source of somebody else is."""
    assert issubclass(outlast.Files, Source)
    assert issubclass(outlast.Query, Source)


def test_a_class_in_place_of_an_object_is_refused():
    """D-26: it could be called, and would be handed batches as if it were a function."""
    assert problem(lambda: open_sink(Pages)) == (
        "expected sink to be a Sink, got: the class Pages. Give one of its objects."
    )


# --- names ---


def test_a_name_is_a_scheme_and_an_ending(tmp_path, names):
    """The whole text is what the component makes something of."""
    asked = []
    register_sink("paged", lambda address: asked.append(address) or Pages(tmp_path / f"out-{len(asked)}"))
    register_source("countdown", lambda address: Countdown(3))
    pipeline(tmp_path).run("countdown://three", sink="paged://here")
    pipeline(tmp_path, "again").run("in/*.countdown", sink=tmp_path / "out.paged")
    assert asked == ["paged://here", str(tmp_path / "out.paged")]
    assert [written(tmp_path / name) for name in ("out-1", "out-2")] == [[2, 4, 6]] * 2


def test_components_of_an_installed_package(tmp_path, package):
    """An entry point is enough; nothing is imported before its name is used."""
    assert "offered" not in sys.modules
    run = pipeline(tmp_path).run("countdown://4", sink=f"paged://{tmp_path}/out")
    assert (run.counts.succeeded, written(tmp_path / "out")) == (4, [2, 4, 6, 8])


def test_an_entry_point_that_cannot_be_loaded(package):
    """C-19: the component is named, with what its module said."""
    assert problem(lambda: open_sink("broken://x")) == (
        "the component 'broken' (offered:missing) cannot be loaded: AttributeError: module 'offered' has no attribute 'missing'."
    )


def test_what_nobody_knows_is_refused_as_before(tmp_path):
    """C-19: an ending without a component."""
    assert problem(lambda: open_sink("out.avro")).endswith("or in .parquet, got: out.avro.")
    assert problem(lambda: open_source(str(tmp_path / "in.avro"))).startswith("expected files at ")
    assert problem(lambda: open_sink("out.parquet.gz")).endswith("got: out.parquet.gz.")
    assert problem(lambda: open_sink("nope://x")).endswith("or in .parquet, got: nope://x.")


def test_what_nobody_knows_is_refused_with_the_names_there_are(names):
    """C-19: the address is told with its scheme, and never with its password."""
    register_sink("paged", Pages)
    assert problem(lambda: open_sink("page://ann:secret@x/y")).endswith(
        "or in .parquet, or one with a registered name (paged), got: page://***@x/y. Did you mean 'paged'?"
    )


class Given(Source):
    """Its items are what it was given."""

    def __init__(self, given):
        self.given = given

    def items(self):
        return self.given


def test_the_items_of_a_source_may_be_any_iterable(tmp_path):
    """C-19: what cannot be iterated is said before anything is begun."""
    assert sorted(pipeline(tmp_path).run(Given(range(3))).outputs()) == [0, 2, 4]
    assert problem(lambda: pipeline(tmp_path).run(Given(5))) == (
        "expected items() of Given to give an iterator or an async one, got: a value of type int."
    )


def test_a_component_that_makes_something_else(names):
    """C-19: said when the run begins, not when it has outputs."""
    register_sink("paged", lambda address: 5)
    register_source("paged", lambda address: None)
    assert (
        problem(lambda: open_sink("paged://x"))
        == "expected the component 'paged' to make a Sink, got: a value of type int."
    )
    assert problem(lambda: open_source("paged://u:hunter2@x")).startswith(
        "expected the component 'paged' to make something of"
    )
    assert "hunter2" not in problem(lambda: open_source("paged://u:hunter2@x"))


def test_an_address_that_nobody_reads_is_told_as_one():
    """It is no file: what is registered is named, the nearest one too, and no password."""
    register_source("paged", list)
    said = problem(lambda: open_source("pagde://u:hunter2@x"))
    assert said.startswith("expected the address of a source to have a registered name (")
    assert ("'paged'" in said, "hunter2" in said) == (True, False)


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("csv", str, "expected name to be one that Outlast does not have itself, got: 'csv'."),
        (
            ".avro",
            str,
            "expected name to be a scheme or an ending in small letters without a dot, such as 'avro', got: '.avro'.",
        ),
        (
            5,
            str,
            "expected name to be a scheme or an ending in small letters without a dot, such as 'avro', got: 5.",
        ),
        (
            "tar.gz",
            str,
            "expected name to be a scheme or an ending in small letters without a dot, such as 'avro', got: 'tar.gz'.",
        ),
        ("avro", 5, "expected make to be a function of an address, got: 5."),
        ("avro", None, "expected make to be a function of an address, got: None."),
    ],
)
def test_a_registration_that_would_never_be_asked(name, make, said):
    """D-26: a name that is taken, or none at all."""
    for register in (register_sink, register_source):
        assert problem(lambda register=register: register(name, make)) == said


# --- killed and resumed ---

PROGRAM = """
import os, signal, sys
import outlast
from paged import Pages

deadly = int(sys.argv[2])  # the write after which the process dies


class Killed(Pages):
    writes = 0

    def write(self, outputs, keys):
        offset = super().write(outputs, keys)
        self.writes += bool(outputs)
        if self.writes == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return offset


@outlast.stage
def double(n: int) -> int:
    return 2 * n


pipeline = outlast.Pipeline("doubles", double, app=outlast.App(store=f"sqlite:///{sys.argv[1]}/outlast.db"))
run = pipeline.run(range(5000), run_key="k", sink=Killed(sys.argv[1] + "/out"))
print(run.counts.succeeded)
"""


def test_every_output_is_there_once_whenever_the_process_was_killed(tmp_path):
    """D-15, C-28: a page that was written and not committed is taken away when the run goes on, and written again."""
    (tmp_path / "paged.py").write_text(PAGES)
    (tmp_path / "program.py").write_text(PROGRAM)
    ends = []
    for deadly in (1, 2, 1, 3, 0):
        program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(deadly)]
        ends.append(forked.run(program))
    assert [end.returncode for end in ends] == [-signal.SIGKILL] * 4 + [0], ends[-1].stderr
    assert ends[-1].stdout.strip() == "5000"
    assert written(tmp_path / "out") == [2 * n for n in range(5000)]


def test_another_sink_under_the_same_key_is_refused(tmp_path):
    """What the run has finished is in the first one."""
    pipeline(tmp_path).run(range(3), run_key="k", sink=Pages(tmp_path / "out"))
    with pytest.raises(outlast.ConfigurationError, match="to stay the same"):
        pipeline(tmp_path).run(range(5), run_key="k", sink=Pages(tmp_path / "other"))


def test_the_sink_of_the_guide_takes_nothing_of_another_run_away(tmp_path):
    """C-18: a new run finds a folder that is not its own, and leaves it as it is; so does a replay."""
    flaky = mended(tmp_path, ("k", Pages(tmp_path / "out")), ("other", Pages(tmp_path / "other")))
    with pytest.raises(outlast.ConfigurationError, match="to be new or empty, got: pages of something else"):
        flaky.run(range(3), run_key="new", sink=Pages(tmp_path / "out"))
    with pytest.raises(outlast.ConfigurationError, match=r"to be a new one, got: .*, which is that of the run 'k'"):
        flaky.app.dead_letters.replay(run=flaky.app.store.find_run("fragile", "other").id, sink=Pages(tmp_path / "out"))
    assert written(tmp_path / "out") == [0, 2, 4, 8]


def test_the_sink_of_the_guide_notices_that_its_folder_is_gone(tmp_path):
    """C-18: what was committed is not there any more, and nothing is made in its place."""
    pipeline(tmp_path).run(range(3), run_key="k", sink=Pages(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(outlast.ConfigurationError, match="to hold 1 committed pages, got: 1 less"):
        pipeline(tmp_path).run(range(5), run_key="k", sink=Pages(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_guide_shows_the_sink_that_is_tested():
    """C-18: the class in the guide is this very one."""
    guide = (Path(__file__).parents[2] / "docs/guides/components.md").read_text()
    assert PAGES[PAGES.index("class Pages") :].strip() in guide


class Failing(Sink):
    """Raises when it gets to one of its methods."""

    name = "failing"

    def __init__(self, at):
        self.at = at

    def _reach(self, what):
        if what == self.at:
            raise PermissionError(f"no {what}")

    def look_for(self, offset):
        self._reach("look_for")

    def claim(self):
        self._reach("claim")

    def open(self, offset, **_):
        self._reach("open")

    def write(self, outputs, keys):
        return None

    def close(self):
        self._reach("close")


@pytest.mark.parametrize("at", ["look_for", "claim", "open"])
def test_a_sink_that_fails_before_a_run_goes_on_fails_that_pass(tmp_path, at):
    """As when it fails later, the error knows the run, which stays as it was; a new run is refused (S3-05)."""
    doubles = pipeline(tmp_path)
    with pytest.raises(PermissionError, match=f"no {at}"):
        doubles.run(range(3), run_key="k", sink=Failing(at), check=False)
    assert doubles.app.store.find_run("doubles", "k") is None
    first = doubles.run(range(3), run_key="k", sink=Failing(None))
    failed = f"the sink failed before anything was begun: PermissionError: no {at}"
    with pytest.raises(outlast.RunFailed, match=failed) as caught:
        doubles.run(range(5), run_key="k", sink=Failing(at))
    assert isinstance(caught.value.__cause__, PermissionError)
    result = doubles.run(range(5), run_key="k", sink=Failing(at), check=False)
    assert (result.status, result.reason, result.counts.succeeded) == ("failed", "store_error", 3)
    assert outlast.result_of(caught.value).id == result.id == first.id
    assert doubles.app.store.find_run("doubles", "k").status == "completed"
    assert doubles.run(range(5), run_key="k", sink=Failing(None)).counts.succeeded == 5


def test_a_sink_that_cannot_be_closed_takes_no_result_away(tmp_path, caplog):
    """All is committed by then; the log says it (S3-05)."""
    result = pipeline(tmp_path).run(range(3), run_key="k", sink=Failing("close"))
    assert (result.status, result.counts.succeeded) == ("completed", 3)
    assert "the sink could not be closed: PermissionError: no close" in caplog.text


class Picky(Sink):
    """Refuses the first output of its first batch, when that is written or when it is settled."""

    def __init__(self, at, said):
        self.at, self.said, self.kept = at, said, []

    def write(self, outputs, keys):
        if self.at == "write" and outputs:
            self.at = None
            raise Refused(self.said)
        self.kept.extend(outputs)

    def settle(self):
        if self.at == "settle" and self.kept:
            self.at = None
            return self.said
        return None


@pytest.mark.parametrize("at", ["write", "settle"])
def test_a_sink_refuses_single_outputs(tmp_path, at):
    """It need not announce that; their items are dead letters, and the others are there (S3-05)."""
    run = pipeline(tmp_path).run(range(30), sink=Picky(at, {0: ValueError("not this one")}))
    assert (run.counts.succeeded, run.counts.dlq) == (29, 1)
    assert [item.error for item in run.items(status="dlq")] == ["double: ValueError: not this one"]


@pytest.mark.parametrize("at", ["write", "settle"])
@pytest.mark.parametrize("said", [[0], {0: "x"}, {99: ValueError("where")}])
def test_a_sink_that_names_what_it_refuses_in_another_way_is_told(tmp_path, at, said):
    """C-19: the sink is named, with what is expected of it and what it gave."""
    run = pipeline(tmp_path).run(range(3), sink=Picky(at, said), check=False)
    assert "expected the sink Picky to name the outputs that it refuses by a mapping from their places" in run.why


@pytest.mark.parametrize("at", ["write", "settle"])
def test_a_sink_that_never_refuses_and_does_is_told(tmp_path, at):
    """C-19: without the items nothing can be taken back."""
    sink = Picky(at, {0: ValueError("not this one")})
    sink.refuses = False
    run = pipeline(tmp_path).run(range(3), sink=sink, check=False)
    assert "expected the sink Picky to have refuses = True, because it refuses single outputs, got: False" in run.why


# --- replays ---


def test_a_replay_comes_home_to_an_address(tmp_path, names):
    """D-25: what is on record is the address, and the component opens it again."""
    register_sink("paged", lambda address: Pages(address.partition("://")[2]))
    broken = {3}

    @outlast.stage(retry=None)
    def fragile(n: int) -> int:
        if n in broken:
            raise ValueError(n)
        return 2 * n

    app = outlast.App(store=f"sqlite:///{tmp_path}/outlast.db")
    flaky = outlast.Pipeline("fragile", fragile, app=app, failure_budget=1.0)
    flaky.run(range(5), sink=f"paged://{tmp_path}/out", check=False)
    assert written(tmp_path / "out") == [0, 2, 4, 8]
    broken.clear()
    flaky.reprocess()
    assert written(tmp_path / "out") == [0, 2, 4, 6, 8]


def test_a_replay_of_an_object_says_what_it_needs(tmp_path):
    """D-25: an object cannot be on record: it is given again."""
    broken = {3}

    @outlast.stage(retry=None)
    def fragile(n: int) -> int:
        if n in broken:
            raise ValueError(n)
        return 2 * n

    app = outlast.App(store=f"sqlite:///{tmp_path}/outlast.db")
    flaky = outlast.Pipeline("fragile", fragile, app=app, failure_budget=1.0)
    flaky.run(range(5), sink=Pages(tmp_path / "out"), check=False)
    broken.clear()
    run = flaky.reprocess(check=False)
    assert (
        "is a Pages: replay it from Python, and give it again with sink=" in str([*app.dead_letters.find()]) + run.why
    )
    flaky.reprocess(sink=Pages(tmp_path / "more"))
    assert written(tmp_path / "more") == [6]


def mended(tmp_path, *runs, **options):
    """Runs of one pipeline with one bad item each, by key and sink; what was wrong with them is gone."""
    broken = {3}

    @outlast.stage(retry=None)
    def fragile(n: int) -> int:
        if n % 10 in broken:
            raise ValueError(n)
        return 2 * n

    app = outlast.App(store=f"sqlite:///{tmp_path}/outlast.db")
    flaky = outlast.Pipeline("fragile", fragile, app=app, failure_budget=1.0, **options)
    for place, (key, sink) in enumerate(runs):
        flaky.run(range(10 * place, 10 * place + 5), run_key=key, sink=sink, check=False)
    broken.clear()
    return flaky


def test_an_object_that_is_given_again_is_the_sink_of_its_run(tmp_path):
    """D-25: nothing that the run has committed goes, its counts change, and the next pass finds all of it."""
    flaky = mended(tmp_path, ("k", Pages(tmp_path / "out")))
    flaky.reprocess(sink=Pages(tmp_path / "out"))
    assert written(tmp_path / "out") == [0, 2, 4, 6, 8]
    assert flaky.app.store.find_run("fragile", "k").told == "5 of 5 items succeeded"
    flaky.run(range(7), run_key="k", sink=Pages(tmp_path / "out"))
    assert written(tmp_path / "out") == [0, 2, 4, 6, 8, 10, 12]


def test_an_address_that_is_given_again_is_the_sink_of_its_run(tmp_path, names):
    """D-25: also one that the replay would have opened by itself."""
    register_sink("paged", lambda address: Pages(address.partition("://")[2]))
    flaky = mended(tmp_path, ("k", f"paged://{tmp_path}/out"))
    flaky.reprocess(sink=f"paged://{tmp_path}/out")
    assert written(tmp_path / "out") == [0, 2, 4, 6, 8]
    assert flaky.app.store.find_run("fragile", "k").told == "5 of 5 items succeeded"


def test_a_command_is_only_proposed_where_one_can_do_it(tmp_path):
    """D-25: the sink of a run that is an object must be given again, which only a program can."""
    flaky = mended(tmp_path, ("k", Pages(tmp_path / "out")), ("file", tmp_path / "out.jsonl"))
    views = Views(flaky.app.store)
    runs = [flaky.app.store.find_run("fragile", key) for key in ("k", "file")]
    object_, file = ([*next_steps(run, views.problems(run), None)][-1] for run in runs)
    assert object_.startswith("After the fix, from Python, with its sink, a Pages: app.dead_letters.replay(group=")
    assert object_.endswith(f"run='{runs[0].id}', sink=...)")
    assert file.startswith("After the fix: outlast dlq replay --group")


def test_only_the_runs_that_have_the_sink_get_their_letters_into_it(tmp_path):
    """D-25: the others come home to their own sinks, and those that cannot stay open with the reason."""
    one, two = Pages(tmp_path / "one"), Pages(tmp_path / "two")
    flaky = mended(tmp_path, ("a", one), ("b", two), ("c", tmp_path / "c.jsonl"))
    run = flaky.reprocess(sink=Pages(tmp_path / "one"), check=False)
    assert "1 letter: the sink of its run is a Pages" in run.why
    assert written(tmp_path / "one") == [0, 2, 4, 6, 8]
    assert written(tmp_path / "two") == [20, 22, 24, 28]
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 5
    flaky.reprocess(sink=Pages(tmp_path / "two"))
    assert written(tmp_path / "two") == [20, 22, 24, 26, 28]


class Shared(Sink):
    """A list for each run, all under one name; the offset is how many outputs of the run count."""

    name = "shared"
    rows: ClassVar[dict[str, list[int]]] = {}

    def open(self, offset, *, run, **_):
        self.mine = self.rows.setdefault(run, [])
        del self.mine[offset or 0 :]

    def write(self, outputs, keys):
        self.mine.extend(outputs)
        return len(self.mine)

    def close(self):
        self.mine = None


def test_runs_with_one_sink_have_it_one_after_the_other(tmp_path):
    """D-25: one object is open for one run at a time, at what that one has committed."""
    flaky = mended(tmp_path, ("a", Shared()), ("b", Shared()))
    flaky.reprocess(sink=Shared())
    assert sorted(map(sorted, Shared.rows.values())) == [[0, 2, 4, 6, 8], [20, 22, 24, 26, 28]]
