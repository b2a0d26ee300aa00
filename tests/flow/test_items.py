"""Steps over rows and items: each row on record by itself, done once, undone once."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections import Counter
from subprocess import PIPE
from uuid import uuid4

import pytest

import outlast
from forked import Forked
from outlast import testing
from outlast.store import open_store
from servers.http import MisbehavingServer
from stores import prepared

HEAD = """
import json, os, threading, time
from pathlib import Path
HERE = Path(__file__).parent
def note(*what):
    with open(HERE / "log", "a") as file:
        file.write(json.dumps(what) + "\\n")
def there(name):
    return (HERE / name).exists()
def rows(many=6):
    return {"rows": [{"id": n, "name": f"row {n}"} for n in range(many)]}
def wound_down():
    from outlast.kernel.clock import stopping
    assert stopping.get().wait(30)
def die_once(pipeline, many):
    "End this process as a power cut does, the first time, when so many rows are on record."
    import signal
    from outlast.store import open_store
    if there("killed"):
        return
    store = open_store(os.environ["STORE"], app=os.environ["APP"])
    (run,) = [run for run in store.runs() if run.pipeline == pipeline]
    while len(store.items(run.number)) < many:
        threading.Event().wait(0.01)
    (HERE / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
READ = """
  - id: read
    component: python
    config: {call: "FNS:rows"}
"""
EACH = """
  - id: each
    component: python
    for_each: {items: "${steps.read.outputs.rows}", key: id}
    config: {call: "FNS:one", args: {id: "${item.id}"}}
"""
LOSSY = EACH.replace("key: id", "key: id, min_success_rate: 0.5")
LAST = """
  - id: last
    component: python
    config: {call: "FNS:last"}
"""
FAILS = """
def last():
    if not there("mended"):
        raise ValueError("last")
"""
UNDONE = (
    LOSSY
    + """\
    compensate: {component: python, config: {call: "FNS:undo", args: {id: "${item.id}", made: "${steps.each.outputs.made}"}}}
"""
)


class Project:
    """A folder with functions and a pipeline file; what was called is in a log there."""

    def __init__(self, folder):
        self.folder = folder
        self.module = f"fns_{uuid4().hex}"

    def write(self, code, *steps):
        (self.folder / f"{self.module}.py").write_text(HEAD + textwrap.dedent(code))
        text = 'oml_version: "0.1.0"\nname: shop\nsteps:\n' + "".join(steps)
        (self.folder / "p.yaml").write_text(text.replace("FNS", self.module))
        return self

    def run(self, app, key="k", **options):
        flow = outlast.Flow.load(self.folder / "p.yaml")
        return flow.run(run_key=key, app=app, check=False, **options)

    def log(self, *only):
        path = self.folder / "log"
        lines = [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if not only or line[0] in only]

    def mend(self, name="mended"):
        (self.folder / name).touch()

    def killed(self, app, key="k"):
        """Run it in a process of its own, which ends itself in the middle; what is left to say about that."""
        program = self.folder / "program.py"
        program.write_text(
            "import os, outlast\n"
            "app = outlast.App(os.environ['APP'], store=os.environ['STORE'])\n"
            f"outlast.Flow.load({str(self.folder / 'p.yaml')!r}).run(run_key={key!r}, app=app, check=False)\n"
        )
        given = {**os.environ, "STORE": app.store_url, "APP": app.name}
        with Forked([sys.executable, str(program)], cwd=self.folder, env=given, stderr=PIPE, text=True) as process:
            said = process.stderr.read()
        assert process.returncode == -signal.SIGKILL, said


@pytest.fixture
def project(tmp_path):
    made, path = Project(tmp_path), list(sys.path)
    yield made
    sys.path[:] = path
    sys.modules.pop(made.module, None)


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    sqlite = request.param == "sqlite"
    address = prepared(tmp_path / "outlast.db") if sqlite else request.getfixturevalue("postgres_server").dsn
    made = outlast.App(f"tests-{uuid4().hex}", store=address)
    yield made
    made.store.close()


@pytest.fixture
def sqlite_app(tmp_path):
    made = outlast.App(f"tests-{uuid4().hex}", store=prepared(tmp_path / "outlast.db"))
    yield made
    made.store.close()


def letters(app, **where):
    return [(letter.kind, letter.item_key, letter.error_class) for letter in app.store.letters(**where)]


# -- rows ------------------------------------------------------------------------------------------------------------------


def test_component_is_called_once_for_each_row_with_its_own_config(project, app):
    """What is put out for a row stands beside the row, in the order of the rows, and rows that share a key are told apart."""
    project.write(
        """
        def read():
            return {"rows": [{"id": 7, "at": {"city": "Graz"}}, {"id": 8, "at": {"city": "Linz"}}, {"id": 7, "at": {"city": "Wels"}}]}
        def one(id, city, day):
            return {"label": f"{id} {city} {day}"}
        """,
        """
  - id: read
    component: python
    config: {call: "FNS:read"}
  - id: each
    component: python
    for_each: {items: "${steps.read.outputs.rows}", key: id, concurrency: 2}
    config: {call: "FNS:one", args: {id: "${item.id}", city: "${item.at.city}", day: monday}}
""",
    )
    result = project.run(app)
    assert result.status == "completed", result.why
    outputs = result["each"].outputs
    rows = [
        {"key": "7", "item": {"id": 7, "at": {"city": "Graz"}}, "outputs": {"label": "7 Graz monday"}},
        {"key": "8", "item": {"id": 8, "at": {"city": "Linz"}}, "outputs": {"label": "8 Linz monday"}},
        {"key": "7#2", "item": {"id": 7, "at": {"city": "Wels"}}, "outputs": {"label": "7 Wels monday"}},
    ]
    assert outputs["rows"] == rows
    assert (outputs["count"], outputs["dead_letters"], outputs["outcome"]) == (3, 0, "completed")
    run = app.store.run(outputs["run"])
    assert (run.pipeline, run.run_key, run.status) == ("shop.each", f"{result.id}/each", "completed")


def test_function_gets_the_row_where_nothing_names_it(project, sqlite_app):
    """Named in the config or in the inputs, the row is not given once more."""
    project.write(
        """
        def bare(row, **more):
            return {"got": [row, more]}
        def named(**more):
            return {"got": more}
        """,
        """
  - id: bare
    component: python
    for_each: {items: [{n: 1}]}
    config: {call: "FNS:bare", args: {x: 2}}
    silence: [R48]
  - id: named
    component: python
    for_each: {items: [{n: 1}]}
    config: {call: "FNS:named", args: {x: "${item.n}"}}
  - id: whole
    component: python
    for_each: {items: [{n: 1}]}
    config: {call: "FNS:named", args: {x: "${item}"}}
""",
    )
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    got = {step.id: [row["outputs"]["got"] for row in step.outputs["rows"]] for step in result.steps}
    assert got == {"bare": [[{"n": 1}, {"x": 2}]], "named": [{"x": 1}], "whole": [{"x": {"n": 1}}]}


def test_texts_and_numbers_are_their_own_keys(project, sqlite_app):
    """Rows that are no mappings are known by what they are, mappings without a key by their content."""
    project.write(
        "def one(row): return {'row': row}",
        """
  - id: each
    component: python
    for_each: {items: [graz, 7, graz, {n: 1}]}
    config: {call: "FNS:one", args: {row: "${item}"}}
""",
    )
    rows = project.run(sqlite_app)["each"].outputs["rows"]
    keys = [row["key"] for row in rows]
    assert (keys[:3], len(keys[3])) == (["graz", "7", "graz#2"], 32)
    assert [row["outputs"]["row"] for row in rows] == ["graz", 7, "graz", {"n": 1}]


def test_row_that_fails_for_good_is_a_dead_letter_and_the_others_go_on(project, app):
    """A row that lacks a field, one whose work fails and one whose outputs cannot be kept fail by themselves."""
    project.write(
        """
        def read():
            return {"rows": [{"id": n} for n in range(9)] + [{"name": "no id"}]}
        def one(id):
            if id == 3:
                raise ValueError("three")
            return {"id": object() if id == 4 else id}
        """,
        READ.replace("rows", "read"),
        LOSSY.replace("key: id, ", ""),
        """
  - id: after
    component: python
    config: {call: "FNS:note", args: {}}
""",
    )
    result = project.run(app)
    outputs = result["each"].outputs
    assert result.status == "completed", result.why
    assert "3 dead letters of rows are open" in result.why
    assert (outputs["outcome"], outputs["count"], outputs["dead_letters"]) == ("partial_success", 7, 3)
    assert [row["item"]["id"] for row in outputs["rows"]] == [0, 1, 2, 5, 6, 7, 8]
    found = app.store.letters(run=outputs["run"])
    assert sorted((one.kind, one.stage, one.pipeline, one.error_class) for one in found) == [
        ("item", "each", "shop.each", "data_error"),
        ("item", "each", "shop.each", "data_error"),
        ("item", "each", "shop.each", "validation_error"),
    ]
    assert any("${item.id}" in one.error for one in found)


def test_attempts_are_those_of_each_row(project, sqlite_app):
    """Retries wait and count by row; the step itself is begun once."""
    project.write(
        """
        tries = {}
        def one(id):
            tries[id] = tries.get(id, 0) + 1
            if id in (2, 4) and tries[id] < 3:
                raise ConnectionResetError("again")
            return {"tries": tries[id]}
        """,
        READ,
        EACH + "    retry: {max_attempts: 3, initial_delay: 20s, jitter: 0}\n    idempotent: true\n",
    )
    with testing.virtual_time() as virtual:
        result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert [row["outputs"]["tries"] for row in result["each"].outputs["rows"]] == [1, 1, 3, 1, 3, 1]
    assert len(result["each"].attempts) == 1
    assert virtual.now == 50  # 20 and 30 seconds, side by side


def test_http_calls_of_rows_are_tried_again_by_row(project, sqlite_app):
    """Any component can be done for each row, such as an HTTP call with the row in its address."""
    with MisbehavingServer() as server:
        connections = {"connections": {"http": {"shop": {"base_url": server.url, "allow_private": True}}}}
        (project.folder / "connections.yaml").write_text(json.dumps(connections))
        project.write(
            "",
            READ,
            """
  - id: each
    component: http.caller
    for_each: {items: "${steps.read.outputs.rows}", key: id}
    config: {connection: "@http.shop", url: /flaky, query: {key: "${item.id}", fail: "1"}}
    retry: {max_attempts: 3, initial_delay_ms: 1, jitter: 0}
    timeout: {step: 30s}
""",
        )
        result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert [row["outputs"]["status"] for row in result["each"].outputs["rows"]] == [200] * 6


def test_rows_can_have_processes_of_their_own(project, sqlite_app):
    """With isolation: process, each attempt at a row runs in a child, which is killed when its time is up."""
    project.write(
        """
        def one(id):
            note("pid", id, os.getpid())
            if id == 1:
                threading.Event().wait(60)
            if id == 2 and not there("died"):
                (HERE / "died").touch()
                os._exit(9)
            return {"pid": os.getpid()}
        """,
        READ,
        LOSSY
        + "    isolation: process\n    timeout: {step: 1s}\n    retry: {max_attempts: 2, initial_delay_ms: 1, on_errors: [worker_lost]}\n    idempotent: true\n",
    )
    began = time.monotonic()
    result = project.run(sqlite_app)
    assert time.monotonic() - began < 30
    assert result.status == "completed", result.why
    outputs = result["each"].outputs
    assert [row["key"] for row in outputs["rows"]] == ["0", "2", "3", "4", "5"]
    assert os.getpid() not in {row["outputs"]["pid"] for row in outputs["rows"]}
    assert letters(sqlite_app, run=outputs["run"]) == [("item", "1", "timeout")]
    assert Counter(id_ for _, id_, _ in project.log("pid")) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}


def test_who_watches_sees_how_far_the_rows_are(project, sqlite_app):
    """The view of a step has the counts of its rows."""
    project.write(
        """
        def one(id):
            while id == 4 and not there("seen"):
                threading.Event().wait(0.01)
        """,
        READ,
        EACH,
    )
    seen = []

    def watch(view):
        counts = next(one for one in view.steps if one.id == "each").counts
        seen.append(counts)
        if counts is not None and counts["succeeded"] == 5:
            project.mend("seen")

    assert project.run(sqlite_app, watch=watch).status == "completed"
    assert {"total": 6, "succeeded": 5, "skipped": 0, "failed": 0} in seen


def test_items_that_are_no_list_fail_the_step_with_words(project, sqlite_app):
    """What for_each gets may only be known when it runs."""
    project.write("def rows(): return {'rows': 3}\ndef one(id): ...", READ, EACH)
    result = project.run(sqlite_app)
    assert result.status == "failed"
    assert "expected for_each.items of each to be a list, got: a value of type int" in result["each"].error


# -- rounds ----------------------------------------------------------------------------------------------------------------

HALF = """
def one(id):
    note("one", id)
    if id % 2 and id > 1 and not there("mended"):
        raise ValueError("odd")
    if id < 3 and not there("mended"):
        raise ValueError("small")
    return {"id": id}
"""


@pytest.mark.parametrize("kept", [True, False])
def test_next_round_does_the_rows_that_failed_and_no_other(project, app, kept):
    """Rows that succeeded in a failed step are not executed again; letters of those that failed are settled."""
    more = "" if kept else "    dead_letter: false\n"
    project.write(HALF, READ, EACH + more)
    first = project.run(app)
    assert (first.status, first["each"].status) == ("failed", "failed")
    assert "1 of 6 items succeeded" in first["each"].error
    found = letters(app, status="open")
    assert len([one for one in found if one[0] == "item"]) == (5 if kept else 0)
    project.mend()
    second = project.run(app)
    outputs = second["each"].outputs
    assert second.status == "completed", second.why
    assert [row["outputs"] for row in outputs["rows"]] == [{"id": n} for n in range(6)]
    assert (outputs["count"], outputs["dead_letters"], outputs["outcome"]) == (6, 0, "completed")
    assert Counter(id_ for _, id_ in project.log("one")) == {4: 1, 0: 2, 1: 2, 2: 2, 3: 2, 5: 2}
    assert letters(app, status="open") == []


def test_row_that_fails_again_has_one_open_letter(project, sqlite_app):
    """The letter of the round before is put away, with the reason."""
    project.write(HALF, READ, EACH)
    project.run(sqlite_app)
    again = project.run(sqlite_app)
    assert again.status == "failed"
    found = [one for one in sqlite_app.store.letters() if one.kind == "item"]
    assert Counter(one.status for one in found) == {"open": 5, "archived": 5}
    assert Counter(id_ for _, id_ in project.log("one"))[4] == 1


def test_step_that_is_done_again_does_its_rows_again(project, app):
    """from_step means it, also where rows have idempotency keys of this run."""
    project.write(
        "def one(id): note('one', id); return {'id': id}", READ, EACH + '    idempotency: {key: "again:${item.id}"}\n'
    )
    project.run(app)
    assert project.run(app).status == "completed"
    assert len(project.log("one")) == 6
    result = project.run(app, from_step="each")
    assert result.status == "completed", result.why
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)
    assert app.store.run(result["each"].outputs["run"]).run_key == f"{result.id}/each/2"


# -- killed, interrupted ---------------------------------------------------------------------------------------------------

KILLED = """
def rows():
    return {"rows": [{"id": n} for n in range(40)]}
def one(id):
    note("one", id)
    if id == 25:
        die_once("shop.each", 20)
    return {"id": id}
"""


@pytest.mark.parametrize("key", ["", '    idempotency: {key: "killed:${item.id}"}\n'])
def test_no_row_is_lost_by_a_kill_and_none_on_record_is_done_again(project, app, key):
    """Whoever goes on with the flow goes on with its rows."""
    project.write(KILLED, READ, EACH.replace("key: id", "key: id, concurrency: 2") + key)
    project.killed(app)
    (flow,) = [run for run in app.store.runs() if run.pipeline == "shop"]
    run = app.store.find_run("shop.each", f"{flow.id}/each")
    finished = {int(row.key) for row in app.store.items(run.number)}
    assert len(finished) >= 20
    result = project.run(app)
    assert result.status == "completed", result.why
    assert [row["outputs"] for row in result["each"].outputs["rows"]] == [{"id": n} for n in range(40)]
    times = Counter(id_ for _, id_ in project.log("one"))
    assert set(times) == set(range(40))
    assert all(times[id_] == 1 for id_ in finished)
    assert max(times.values()) <= 2
    if key:  # a success under a key is on record at once
        assert sum(many > 1 for many in times.values()) <= 2


def test_interrupted_rows_are_gone_on_with(project, sqlite_app):
    """Ctrl-C lets running rows end and begins no other; that is no failure, and costs no attempt."""
    project.write(
        """
        import signal
        def one(id):
            note("one", id)
            if id == 2 and not there("mended"):
                os.kill(os.getpid(), signal.SIGINT)
                wound_down()
            return {"id": id}
        """,
        READ,
        EACH.replace("key: id", "key: id, concurrency: 1"),
    )
    with pytest.raises(KeyboardInterrupt) as raised:
        project.run(sqlite_app)
    stopped = outlast.result_of(raised.value)
    assert (stopped.status, stopped["each"].status) == ("interrupted", "pending")
    assert [attempt.outcome for attempt in stopped["each"].attempts] == ["released"]
    assert len(project.log("one")) < 6
    project.mend()
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert [id_ for _, id_ in project.log("one")] == list(range(6))
    assert [attempt.outcome for attempt in result["each"].attempts] == ["released", "succeeded"]


def test_failed_step_beside_it_winds_its_rows_down_and_the_next_round_goes_on(project, sqlite_app):
    """Rows that were done before the other step failed are not executed again."""
    project.write(
        """
        def one(id):
            note("one", id)
            if id == 2:
                (HERE / "begun").touch()
                if not there("mended"):
                    wound_down()
            return {"id": id}
        def other():
            while not there("begun"):
                threading.Event().wait(0.01)
            if not there("mended"):
                raise ValueError("other")
        """,
        READ,
        EACH.replace("key: id", "key: id, concurrency: 1"),
        '  - {id: other, component: python, needs: [read], config: {call: "FNS:other"}}\n',
    )
    first = project.run(sqlite_app)
    assert (first.status, first["other"].status) == ("failed", "failed")
    assert len(project.log("one")) < 6
    project.mend()
    assert project.run(sqlite_app).status == "completed"
    assert [id_ for _, id_ in project.log("one")] == list(range(6))


def test_flow_that_was_taken_over_leaves_its_rows_to_the_other_process(project, sqlite_app):
    """No row fails because of that, and whoever has the flow goes on with the rows."""
    project.write(
        """
        import sqlite3
        def one(id):
            note("one", id)
            if id == 2 and not there("mended"):
                with sqlite3.connect(HERE / "outlast.db", timeout=30) as database:
                    run = "run = (select number from outlast_runs where pipeline = 'shop')"
                    database.execute(f"update outlast_progress set token = token + 1 where {run}")
            return {"id": id}
        """,
        READ,
        EACH.replace("key: id", "key: id, concurrency: 1") + '    idempotency: {key: "t:${item.id}"}\n',
    )
    lost = project.run(sqlite_app)
    assert (lost.status, lost.reason) == ("interrupted", "lease_lost"), lost.why
    assert letters(sqlite_app) == []
    with sqlite_app.store._database.writing() as tx:
        tx.execute("update outlast_shards set until = 0")
    project.mend()
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert Counter(id_ for _, id_ in project.log("one")) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}


# -- idempotency -----------------------------------------------------------------------------------------------------------


def test_row_whose_key_was_done_by_another_run_is_not_executed(project, app):
    """Its outputs are those of the first time; rows that are new are done."""
    project.write(
        """
        def rows(many=3):
            return {"rows": [{"id": n} for n in range(5 if there("mended") else 3)]}
        def one(id): note("one", id); return {"id": id, "made": 10 * id}
        """,
        READ,
        EACH + '    idempotency: {key: "row:${item.id}"}\n',
    )
    assert project.run(app, "monday").status == "completed"
    project.mend()
    with testing.capture_events() as events:
        result = project.run(app, "tuesday")
    assert result.status == "completed", result.why
    assert [row["outputs"]["made"] for row in result["each"].outputs["rows"]] == [0, 10, 20, 30, 40]
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(5), 1)
    assert sum(type(event).__name__ == "IdempotencyHit" for event in events) == 3


def test_rows_that_share_an_idempotency_key_are_done_once(project, sqlite_app):
    """One has the other's outputs if it is the same work, and is refused if it is not."""
    project.write(
        """
        def rows():
            return {"rows": [{"id": 1}, {"id": 1}, {"id": 1}, {"id": 1, "x": 2}, *({"id": n} for n in range(2, 9))]}
        def one(id, **more): note("one", id); threading.Event().wait(0.05); return {"id": id}
        """,
        READ,
        LOSSY.replace('id: "${item.id}"', 'id: "${item.id}", row: "${item}"')
        + '    idempotency: {key: "${item.id}"}\n',
    )
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert Counter(id_ for _, id_ in project.log("one"))[1] == 1
    classes = {one[2] for one in letters(sqlite_app, run=result["each"].outputs["run"])}
    assert classes == {"idempotency_mismatch"}


def test_row_that_a_function_is_given_is_part_of_the_work_of_its_key(project, sqlite_app):
    """Another row with the same idempotency key is refused, and never has the outputs of the first."""
    project.write(
        """
        def rows():
            return {"rows": [{"id": n % 5, "n": n} for n in range(10)]}
        def one(row): return {"n": row["n"]}
        """,
        READ,
        """
  - id: each
    component: python
    for_each: {items: "${steps.read.outputs.rows}", key: n}
    config: {call: "FNS:one"}
    idempotency: {key: "${item.id}"}
""",
    )
    first = project.run(sqlite_app)
    (run,) = [run for run in sqlite_app.store.runs() if run.pipeline == "shop.each"]
    kept = {
        row.key: sqlite_app.codec.decode(row.output)["outputs"]["n"]
        for row in sqlite_app.store.items(run.number, status="succeeded")
    }
    assert len(kept) == 5
    assert all(str(n) == key for key, n in kept.items()), first.why
    assert {one[2] for one in letters(sqlite_app, run=run.id)} == {"idempotency_mismatch"}


@pytest.mark.parametrize("key", ["", '    idempotency: {key: "${item.id}"}\n'])
def test_row_that_has_changed_is_not_carried_over(project, app, key):
    """A step that is read again may give other rows under the same keys: only those that are what they were keep their outputs."""
    project.write(
        """
        def rows():
            again = there("mended")
            return {"rows": [{"id": n, "name": "ZZZ" if again and n == 1 else f"row {n}"} for n in range(6)]}
        def one(id, name):
            note("one", id)
            if id > 1 and not there("mended"):
                raise ValueError("no")
            return {"name": name}
        """,
        READ,
        EACH.replace('id: "${item.id}"', 'id: "${item.id}", name: "${item.name}"') + key,
    )
    assert project.run(app).status == "failed"
    project.mend()
    second = project.run(app, from_step="read")
    assert second.status == "completed", second.why
    names = [row["outputs"]["name"] for row in second["each"].outputs["rows"]]
    assert names == ["row 0", "ZZZ", "row 2", "row 3", "row 4", "row 5"]
    assert Counter(id_ for _, id_ in project.log("one")) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2}


def test_rows_are_not_carried_over_to_another_config(project, sqlite_app):
    """A step that was mended does all of its rows as it says now."""
    code = """
        def one(id, times):
            note("one", id)
            if id > 1 and not there("mended"):
                raise ValueError("no")
            return {"made": id * times}
        """
    each = EACH.replace('id: "${item.id}"', 'id: "${item.id}", times: 2')
    project.write(code, READ, each)
    assert project.run(sqlite_app).status == "failed"
    project.mend()
    project.write(code, READ, each.replace("times: 2", "times: 3"))
    second = project.run(sqlite_app)
    assert second.status == "completed", second.why
    assert [row["outputs"]["made"] for row in second["each"].outputs["rows"]] == [0, 3, 6, 9, 12, 15]


def test_row_that_can_be_undone_is_undone_as_it_was_before_it_is_done_again(project, sqlite_app):
    """Nothing is done over what stands, although the step before gives other rows under the same keys."""
    project.write(
        """
        def rows():
            return {"rows": [{"id": n, "name": f"{'new' if there('mended') else 'old'} {n}"} for n in range(6)]}
        def one(id, name):
            note("one", name)
            if id > 1 and not there("mended"):
                raise ValueError("no")
        def undo(name):
            if not there("mended"):
                raise ValueError("stays")
            note("undo", name)
        """,
        READ,
        EACH.replace('id: "${item.id}"', 'id: "${item.id}", name: "${item.name}"')
        + '    compensate: {component: python, config: {call: "FNS:undo", args: {name: "${item.name}"}}}\n',
    )
    first = project.run(sqlite_app)
    assert (first.status, first.compensation) == ("failed", "failed"), first.why
    project.mend()
    second = project.run(sqlite_app, from_step="read")
    assert second.status == "completed", second.why
    assert sorted(project.log("undo")) == [("undo", "old 0"), ("undo", "old 1")]
    assert Counter(name for _, name in project.log("one") if "new" in name) == {f"new {n}": 1 for n in range(6)}


def test_failed_row_leaves_its_key_to_whoever_comes(project, sqlite_app):
    """Only successes are remembered."""
    project.write(
        """
        def one(id):
            note("one", id)
            if id == 1 and not there("mended"):
                raise ValueError("one")
            return {"id": id}
        """,
        READ,
        LOSSY + '    idempotency: {key: "row:${item.id}"}\n',
    )
    first = project.run(sqlite_app, "monday")
    assert first["each"].outputs["dead_letters"] == 1
    project.mend()
    second = project.run(sqlite_app, "tuesday")
    assert second["each"].outputs["count"] == 6
    assert Counter(id_ for _, id_ in project.log("one")) == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1}


# -- undoing ---------------------------------------------------------------------------------------------------------------

DONE = """
def one(id):
    note("one", id)
    if id == 4 and not there("mended"):
        raise ValueError("four")
    return {"made": 10 * id}
def undo(id, made):
    note("undo", id, made)
"""


def test_rows_that_were_done_are_undone_with_their_own_outputs(project, app):
    """The last one first, those that failed not at all; the next round does all of them again."""
    steps = READ, UNDONE + '    idempotency: {key: "u:${item.id}"}\n', LAST
    project.write(DONE + FAILS, *steps)
    first = project.run(app)
    assert (first.status, first.compensation, first["each"].status) == ("failed", "completed", "compensated")
    assert sorted(project.log("undo")) == [("undo", n, 10 * n) for n in (0, 1, 2, 3, 5)]
    project.mend()
    second = project.run(app)
    assert second.status == "completed", second.why
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)
    assert len(project.log("undo")) == 5


def test_rows_of_an_earlier_run_are_not_undone(project, sqlite_app):
    """What a key had spared is not this run's to undo."""
    project.write(
        """
        def rows():
            return {"rows": [{"id": n} for n in range(5 if there("more") else 3)]}
        """
        + textwrap.indent(DONE + FAILS, " " * 8),
        READ,
        UNDONE + '    idempotency: {key: "e:${item.id}"}\n',
        LAST,
    )
    project.mend()
    assert project.run(sqlite_app, "monday").status == "completed"
    (project.folder / "mended").unlink()
    project.mend("more")
    result = project.run(sqlite_app, "tuesday")
    assert result["each"].status == "compensated", result.why
    assert project.log("undo") == [("undo", 3, 30)]


def test_nothing_is_told_as_undone_where_all_rows_were_known_by_their_keys(project, sqlite_app):
    """They are an earlier run's: the step is cached, as one without rows is, and nothing was this run's to undo."""
    from outlast.report.flows import flow_report

    project.write(
        DONE.replace("id == 4", "False") + FAILS, READ, UNDONE + '    idempotency: {key: "u:${item.id}"}\n', LAST
    )
    project.mend()
    assert project.run(sqlite_app, "first").status == "completed"
    (project.folder / "mended").unlink()
    second = project.run(sqlite_app, "second")
    assert (second.status, second.compensation, project.log("undo")) == ("failed", "none", [])
    assert [f"{step.id} {step.status}" for step in second.steps] == ["read succeeded", "each cached", "last failed"]
    told = "2 of 3 steps succeeded, 1 of them before, by its key; nothing was this run's to undo; run it again"
    assert (told in second.why, "undone: " in second.why) == (True, False)
    report = flow_report(sqlite_app.store, sqlite_app.store.run(second.id))
    assert (report.why, report.undone, report.compensation) == (second.why, (), "none")
    assert (report["each"].status, report["each"].nothing_undone) == ("cached", True)
    assert (report.counts["succeeded"], report.counts["compensated"]) == (2, 0)
    project.mend()
    third = project.run(sqlite_app, "second")
    assert (third.status, len(project.log("one"))) == ("completed", 6)


def test_nothing_is_told_as_undone_where_there_was_no_row(project, sqlite_app):
    """A step over no rows has done nothing that could be undone: it has succeeded, and stays so."""
    project.write('def rows():\n    return {"rows": []}\n' + DONE + FAILS, READ, UNDONE, LAST)
    result = project.run(sqlite_app)
    assert (result.status, result["each"].status, result.compensation) == ("failed", "succeeded", "none")
    assert "2 of 3 steps succeeded; nothing was this run's to undo" in result.why


def test_row_that_cannot_be_undone_keeps_no_other_from_it_and_is_tried_again(project, app):
    """What was undone is not undone twice, and only then is the step done again."""
    project.write(
        DONE
        + """
def undo(id, made):
    note("undo", id)
    if id == 2 and not there("undoable"):
        raise ValueError("stays")
"""
        + FAILS,
        READ,
        UNDONE,
        LAST,
    )
    first = project.run(app)
    assert (first.status, first.compensation, first["each"].status) == ("failed", "failed", "compensation_failed")
    assert "1 row of 5 could not be undone (2): each: ValueError: stays" in first["each"].error
    assert Counter(id_ for _, id_ in project.log("undo")) == {0: 1, 1: 1, 2: 1, 3: 1, 5: 1}
    project.mend("undoable")
    project.mend()
    second = project.run(app)
    assert second.status == "completed", second.why
    assert Counter(id_ for _, id_ in project.log("undo")) == {0: 1, 1: 1, 2: 2, 3: 1, 5: 1}
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)


def test_rows_that_were_undone_in_any_of_three_tries_are_not_undone_again(project, sqlite_app):
    """Each try has a run of its own; what the first of them has undone is known to the third."""
    project.write(
        DONE
        + """
def undo(id, made):
    note("undo", id)
    if id in (1, 2) and not there(f"undoable {id}"):
        raise ValueError("stays")
"""
        + FAILS,
        READ,
        UNDONE,
        LAST,
    )
    assert project.run(sqlite_app).compensation == "failed"
    project.mend("undoable 1")
    assert project.run(sqlite_app).compensation == "failed"
    project.mend("undoable 2")
    project.mend()
    last = project.run(sqlite_app)
    assert last.status == "completed", last.why
    assert Counter(id_ for _, id_ in project.log("undo")) == {0: 1, 1: 2, 2: 3, 3: 1, 5: 1}


@pytest.mark.parametrize("ends", ["succeeds", "is skipped"])
def test_letters_of_rows_are_settled_by_the_round_that_knows_more(project, sqlite_app, ends):
    """Also two rounds later: the one between them failed before it came to the rows."""
    project.write(
        """
        import outlast
        def gate():
            if there("shut") and not there("mended"):
                raise ValueError("shut")
        def open_gate(): pass
        def one(id):
            if id == 2 and there("mended") and there("is skipped"):
                raise outlast.Skip("a duplicate")
            if id < 4 and not there("mended"):
                raise ValueError("no")
            return {"id": id}
        """,
        """
  - id: gate
    component: python
    config: {call: "FNS:gate"}
    compensate: {component: python, config: {call: "FNS:open_gate"}}
""",
        READ,
        EACH,
    )
    project.mend(ends)
    assert project.run(sqlite_app).status == "failed"
    project.mend("shut")
    assert project.run(sqlite_app)["each"].status == "skipped"
    assert len([one for one in letters(sqlite_app, status="open") if one[0] == "item"]) == 4
    project.mend()
    assert project.run(sqlite_app).status == "completed"
    found = [(one.item_key, one.status) for one in sqlite_app.store.letters() if one.kind == "item"]
    assert sorted(found) == [(str(id_), "resolved") for id_ in range(4)]


def test_rows_that_are_read_page_by_page_are_all_there(project, sqlite_app, monkeypatch):
    """With pages of two: what is put out, carried over, settled and undone are the rows of every page."""
    monkeypatch.setattr("outlast.flow.items._PAGE", 2)
    monkeypatch.setattr("outlast.flow.record._PAGE", 2)
    project.write(
        """
        def rows(): return {"rows": [{"id": n} for n in range(12)]}
        def one(id):
            note("one", id)
            if id % 2 and not there("mended"):
                raise ValueError("odd")
            return {"made": id}
        def undo(id, made): note("undo", id)
        def last():
            if not there("good"):
                raise ValueError("last")
        """,
        READ,
        UNDONE.replace("min_success_rate: 0.5", "min_partial_rate: 0.5"),
        LAST,
    )
    first = project.run(sqlite_app)
    assert (first.status, first.dead_letters) == ("partial_success", 6)
    project.mend()
    second = project.run(sqlite_app)
    assert (second.status, second["each"].status) == ("failed", "compensated")
    assert [one[0] for one in letters(sqlite_app, status="open")] == ["step"]
    assert Counter(id_ for _, id_ in project.log("one")) == {n: 1 + n % 2 for n in range(12)}
    assert Counter(id_ for _, id_ in project.log("undo")) == dict.fromkeys(range(12), 1)
    project.mend("good")
    third = project.run(sqlite_app)
    assert [row["key"] for row in third["each"].outputs["rows"]] == [str(n) for n in range(12)]


def test_undoing_that_was_killed_goes_on_where_it_was(project, app):
    """No row is forgotten, and none that is on record as undone is undone again."""
    project.write(
        """
        def rows():
            return {"rows": [{"id": n} for n in range(30)]}
        def one(id): return {"made": id}
        def undo(id, made):
            note("undo", id)
            if id == 10:
                die_once("shop.each.undo", 15)
        def last(): raise ValueError("last")
        """,
        READ,
        UNDONE.replace("key: id", "key: id, concurrency: 2"),
        LAST,
    )
    project.killed(app)
    (undo,) = [run for run in app.store.runs() if run.pipeline == "shop.each.undo"]
    finished = {int(row.key) for row in app.store.items(undo.number)}
    assert len(finished) >= 15
    result = project.run(app)
    assert (result.status, result.compensation) == ("failed", "completed"), result.why
    times = Counter(id_ for _, id_ in project.log("undo"))
    assert set(times) == set(range(30))
    assert all(times[id_] == 1 for id_ in finished)
    assert max(times.values()) <= 2


def test_rows_that_were_begun_are_undone_too_where_that_is_said(project, sqlite_app):
    """With when: started the rows of a failed step are undone, those that failed included, and done again afterwards."""
    project.write(
        """
        def one(id):
            note("one", id)
            if id != 3 and not there("mended"):
                raise ValueError("no")
        def undo(id): note("undo", id)
        """,
        READ,
        EACH
        + '    compensate: {component: python, when: started, config: {call: "FNS:undo", args: {id: "${item.id}"}}}\n',
    )
    first = project.run(sqlite_app)
    assert (first.status, first.compensation) == ("failed", "completed"), first.why
    assert sorted(id_ for _, id_ in project.log("undo")) == list(range(6))
    project.mend()
    assert project.run(sqlite_app).status == "completed"
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)


def test_rows_of_a_step_that_was_wound_down_are_undone_where_that_is_said(project, sqlite_app):
    """A step beside it fails for good in the middle: with when: started, the rows that were begun are undone."""
    project.write(
        """
        def one(id):
            note("one", id)
            if id == 2:
                (HERE / "begun").touch()
                if not there("mended"):
                    wound_down()
        def other():
            while not there("begun"):
                threading.Event().wait(0.01)
            if not there("mended"):
                raise ValueError("other")
        def undo(id): note("undo", id)
        """,
        READ,
        EACH.replace("key: id", "key: id, concurrency: 1")
        + '    compensate: {component: python, when: started, config: {call: "FNS:undo", args: {id: "${item.id}"}}}\n',
        '  - {id: other, component: python, needs: [read], config: {call: "FNS:other"}}\n',
    )
    first = project.run(sqlite_app)
    assert (first.status, first.compensation) == ("failed", "completed"), first.why
    assert project.log("undo") == [("undo", 2), ("undo", 1), ("undo", 0)]
    project.mend()
    assert project.run(sqlite_app).status == "completed"
    assert Counter(id_ for _, id_ in project.log("one")) == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1}


def test_killed_pipeline_goes_on_with_its_file(project, app):
    """Every output is in the file once, and what was on record is not done again."""
    project.write(
        """
        import outlast
        @outlast.stage(concurrency=2)
        def label(item):
            note("label", item["n"])
            if item["n"] == 25:
                die_once("labels", 20)
            return item
        labels = outlast.Pipeline("labels", label)
        """,
        items_step("labels", input="in/items.jsonl", output="out.jsonl", item_key="n"),
    )
    written(project, many=40)
    project.killed(app)
    (run,) = [run for run in app.store.runs() if run.pipeline == "labels"]
    finished = {int(row.key) for row in app.store.items(run.number)}
    result = project.run(app)
    assert result.status == "completed", result.why
    lines = [json.loads(line)["n"] for line in (project.folder / "out.jsonl").read_text().splitlines()]
    assert sorted(lines) == list(range(40))
    times = Counter(n for _, n in project.log("label"))
    assert all(times[n] == 1 for n in finished)


def test_rows_that_were_undone_by_hand_are_done_again(project, app):
    """A step that failed was undone in part: it is tried again, and once somebody has put its letter away all is done anew."""
    project.write(
        """
        def one(id):
            note("one", id)
            if id not in (0, 2) and not there("mended"):
                raise ValueError("no")
        def undo(id):
            if id == 2:
                raise ValueError("stays")
            note("undo", id)
        """,
        READ,
        EACH
        + '    compensate: {component: python, when: started, config: {call: "FNS:undo", args: {id: "${item.id}"}}}\n',
    )
    first = project.run(app)
    assert (first.status, first.compensation) == ("failed", "failed"), first.why
    assert sorted(id_ for _, id_ in project.log("undo")) == [0, 1, 3, 4, 5]
    project.mend()
    again = project.run(app)
    assert (again.status, again.compensation) == ("failed", "failed"), again.why
    assert len(project.log("one")) == 6
    ids = [letter.id for letter in app.store.letters(status="open") if letter.kind == "compensation"]
    app.dead_letters.archive(ids=ids, reason="undone by hand")
    third = project.run(app)
    assert third.status == "completed", third.why
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)


def test_compensation_that_names_no_row_is_done_once_for_all(project, sqlite_app):
    """And all rows are done again in the next round."""
    project.write(
        DONE + FAILS + "def undo(): note('undo')\n",
        READ,
        LOSSY + '    compensate: {component: python, config: {call: "FNS:undo"}}\n',
        LAST,
    )
    assert project.run(sqlite_app)["each"].status == "compensated"
    assert project.log("undo") == [("undo",)]
    project.mend()
    assert project.run(sqlite_app).status == "completed"
    assert Counter(id_ for _, id_ in project.log("one")) == dict.fromkeys(range(6), 2)


# -- pipelines of the project ----------------------------------------------------------------------------------------------

PIPELINE = """
import outlast
@outlast.stage
def parse(item):
    note("parse", item["n"])
    return item["n"]
@outlast.stage(retry=None)
def label(n):
    if n in (3, 5) and not there("mended"):
        raise ValueError("no label")
    return {"n": n, "label": f"item {n}"}
labels = outlast.Pipeline("labels", parse, label, min_success_rate=0.9)
strict = outlast.Pipeline("strict", parse, label, min_success_rate=1.0, min_partial_rate=1.0)
nothing = 7
"""


def written(project, name="in/items.jsonl", many=20):
    path = project.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(many)))


def items_step(target, **config):
    given = json.dumps({"target": f"FNS:{target}", **config})
    return f"  - id: items\n    component: pipeline\n    config: {given}\n"


def test_pipeline_runs_over_files_into_a_file_and_its_rows_feed_later_steps(project, app):
    """Paths begin in the project's root, and its run is in the store of the flow's app."""
    project.write(
        PIPELINE + "def last(rows): return {'got': rows}\n",
        items_step("labels", input="in/*.jsonl", output="out/labels.jsonl", item_key="n"),
        '  - {id: last, component: python, config: {call: "FNS:last", args: {rows: "${steps.items.outputs.rows}"}}}\n',
    )
    written(project)
    result = project.run(app)
    assert result.status == "completed", result.why
    good = [{"n": n, "label": f"item {n}"} for n in range(20) if n not in (3, 5)]
    lines = [json.loads(line) for line in (project.folder / "out/labels.jsonl").read_text().splitlines()]
    outputs = result["items"].outputs
    assert sorted(lines, key=lambda one: one["n"]) == good
    assert sorted(outputs["rows"], key=lambda one: one["n"]) == good
    assert result["last"].outputs["got"] == outputs["rows"]
    assert (outputs["count"], outputs["dead_letters"], outputs["outcome"]) == (18, 2, "partial_success")
    run = app.store.run(outputs["run"])
    assert (run.pipeline, run.run_key) == ("labels", f"{result.id}/items")
    assert sorted(letters(app)) == [("item", "3", "data_error"), ("item", "5", "data_error")]


def test_pipeline_runs_over_rows_and_puts_out_what_they_became(project, sqlite_app):
    """Without a file the store keeps them; a file that no step asks for is not read into the outputs."""
    rows = [{"n": n} for n in range(3)]
    project.write(
        PIPELINE,
        items_step("labels", input=rows),
        items_step("labels", input=rows, output="out.jsonl").replace("id: items", "id: more"),
    )
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert result["items"].outputs["rows"] == [{"n": n, "label": f"item {n}"} for n in range(3)]
    assert sorted(result["more"].outputs) == ["count", "dead_letters", "outcome", "run"]


def test_failed_pipeline_tries_what_failed_again_in_the_next_round(project, app):
    """Its dead letters are replayed into the same run, so that its file has everything once."""
    project.write(PIPELINE, items_step("strict", input="in/items.jsonl", output="out.jsonl", item_key="n"))
    written(project)
    first = project.run(app)
    assert (first.status, first["items"].status) == ("failed", "failed")
    assert "18 of 20 items succeeded, 2 became dead letters" in first["items"].error
    project.mend()
    second = project.run(app)
    assert second.status == "completed", second.why
    lines = [json.loads(line)["n"] for line in (project.folder / "out.jsonl").read_text().splitlines()]
    assert sorted(lines) == list(range(20))
    assert Counter(n for _, n in project.log("parse")) == dict.fromkeys(range(20), 1)
    assert second["items"].outputs["count"] == 20
    assert letters(app, status="open") == []


def test_what_a_pipeline_cannot_be_is_said(project, sqlite_app):
    """Neither something else nor a file outside of the project."""
    project.write(PIPELINE, items_step("nothing", input=[{"n": 1}]))
    said = project.run(sqlite_app)["items"].error
    assert said == f"expected {project.module}:nothing to be a Pipeline, got: a value of type int"
    outside = project.folder / "in"
    outside.mkdir()
    (outside / "link.jsonl").symlink_to("/etc/hostname")
    project.write(PIPELINE, items_step("labels", input="in/*.jsonl"))
    result = project.run(sqlite_app, "other")
    assert "a link that leads out of it" in result["items"].error


def test_time_limit_ends_the_run_of_a_pipeline_and_another_attempt_goes_on_with_it(project, sqlite_app):
    """What is finished is not done again, and nothing of the first attempt runs on beside the second."""
    project.write(
        """
        import outlast
        @outlast.stage(concurrency=1)
        async def slow(item):
            import asyncio
            note("slow", item["n"])
            if item["n"] == 3 and not there("mended"):
                (HERE / "mended").touch()
                await asyncio.Event().wait()
            return item
        slowly = outlast.Pipeline("slowly", slow)
        """,
        items_step("slowly", input=[{"n": n} for n in range(6)], item_key="n")
        + "    timeout: {step: 1500ms}\n    retry: {max_attempts: 2, initial_delay_ms: 1, jitter: 0}\n",
    )
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    assert [attempt.outcome for attempt in result["items"].attempts] == ["timeout", "succeeded"]
    assert Counter(n for _, n in project.log("slow")) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1}


def test_pipeline_with_an_app_of_its_own_keeps_its_run_there(project, sqlite_app, tmp_path):
    """Where its code says so."""
    project.write(
        """
        import outlast
        @outlast.stage
        def same(item): return item
        own = outlast.Pipeline("own", same, app=outlast.App("own", store=f"sqlite:///{HERE}/own.db"))
        """,
        items_step("own", input=[{"n": 1}]),
    )
    result = project.run(sqlite_app)
    assert result.status == "completed", result.why
    store = open_store(f"sqlite:///{tmp_path}/own.db", app="own")
    assert store.run(result["items"].outputs["run"]).run_key == f"{result.id}/items"
    store.close()
    sys.modules[project.module].own.app.store.close()


def test_pipeline_can_run_for_each_row_and_undo_a_step(project, sqlite_app):
    """It is a component like any other."""
    project.write(
        PIPELINE + FAILS,
        """
  - id: each
    component: pipeline
    for_each: {items: [{id: a, n: 1}, {id: b, n: 2}], key: id}
    config: {target: "FNS:labels", input: [{n: "${item.n}"}]}
    compensate: {component: pipeline, config: {target: "FNS:labels", input: [{n: 9}]}}
""",
        LAST,
    )
    first = project.run(sqlite_app)
    assert (first.status, first.compensation) == ("failed", "completed"), first.why
    assert sorted(project.log("parse")) == [("parse", 1), ("parse", 2), ("parse", 9)]
    project.mend()
    second = project.run(sqlite_app)
    rows = second["each"].outputs["rows"]
    assert [row["outputs"]["rows"] for row in rows] == [[{"n": n, "label": f"item {n}"}] for n in (1, 2)]
