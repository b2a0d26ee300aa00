"""`python`, `data.processor`, `schema.validator` and the pool of `resource.allocator`, called as a step calls them."""

from __future__ import annotations

import json
import threading
from decimal import Decimal

import pytest

from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.components.running import Place
from outlast.store import open_store
from outlast.verdicts import classify
from stores import prepared
from tables import table

MODULE = """
import asyncio

def label(day, n=1): return {"day": day, "n": n}
async def later(row, factor): await asyncio.sleep(0); return {"twice": row["n"] * factor}
def nothing(): return None
def number(): return 7
def named(): return {1: "a"}
def broken(row): raise LookupError("no such movie")
def even(row, of="n"): return None if row[of] % 2 else {**row, "even": True}
def spoils(row): row["n"] = 0; return row
def ends(row): return next(iter(()))
CONSTANT = 3
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / f"steps_{tmp_path.name.replace('-', '_')}.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def module(root):
    return f"steps_{root.name.replace('-', '_')}"


# --- python ---


def test_what_a_function_returns_is_the_outputs(root, module):
    """A mapping is taken over, None stands for no outputs, a coroutine function runs to its end, a row comes first."""
    plain = outputs_of("python", {"call": f"{module}:label", "args": {"day": "monday"}}, a_context(root))
    none = outputs_of("python", {"call": f"{module}:nothing"}, a_context(root))
    config = {"call": f"{module}:later", "args": {"factor": 2}}
    row = outputs_of("python", config, a_context(root, row={"n": 3}))
    assert (plain, none, row) == ({"day": "monday", "n": 1}, {}, {"twice": 6})


def test_what_is_no_mapping_is_an_error_of_the_code_and_is_not_shown(root, module):
    """A value that cannot be outputs is told by its type only."""
    told = [
        failure_of("python", {"call": f"{module}:{name}"}, a_context(root))[:2]
        for name in ("number", "named", "CONSTANT", "gone")
    ]
    assert told == [
        ("code_error", f"expected {module}:number to return a mapping from names to values, or None, got: a value of type int"),
        ("code_error", f"expected {module}:named to return a mapping from names to values, or None, got: a mapping with names that are no texts"),
        ("code_error", f"expected {module}:CONSTANT to be a function, got: a value of type int"),
        ("code_error", f"expected {module} to have gone, got: no such name"),
    ]  # fmt: skip


def test_a_function_of_elsewhere_is_refused_unless_it_is_allowed(root):
    """Only modules under the project's root are called, and those that the operator allows."""
    kind, said, _ = failure_of("python", {"call": "json:dumps", "args": {"obj": 1}}, a_context(root))
    assert (kind, "OUTLAST_ALLOW=json" in said) == ("permission_denied", True)
    allowed = a_context(root, allowed=("json",))
    assert failure_of("python", {"call": "json:dumps", "args": {"obj": 1}}, allowed)[0] == "code_error"  # a text


def test_a_function_that_a_module_of_the_project_has_imported_is_one_of_elsewhere(root, module):
    """Where it is from counts, and not only where it was imported; what another module of the project has is the project's."""
    (root / f"{module}_more.py").write_text(
        "import functools, outlast\nfrom os import *\nfrom json import dumps as say\nfrom collections import Counter\n"
        f"from {module} import label as theirs\nimport {module}\n"
        "cwd = getcwd\n"
        "@outlast.retry\ndef own(): return {'n': 1}\n"
        "@functools.cache\ndef cached(): return {'n': 1}\n"
        "bound = functools.partial(own)\nmethod = functools.partial\n"
    )
    more = f"{module}_more"
    for name, home in (
        ("getcwd", "posix"),
        ("cwd", "posix"),
        ("system", "posix"),
        ("say", "json"),
        ("Counter", "collections"),
        ("method", "functools"),
    ):
        config = {"call": f"{more}:{name}", "args": {"command": "touch pwned"} if name == "system" else {}}
        kind, said, _ = failure_of("python", config, a_context(root))
        assert (name, kind, f"OUTLAST_ALLOW={home}" in said) == (name, "permission_denied", True)
    assert not (root / "pwned").exists()
    for name in ("own", "cached", "bound"):
        assert outputs_of("python", {"call": f"{more}:{name}"}, a_context(root)) == {"n": 1}
    theirs = failure_of("python", {"call": f"{more}:theirs", "args": {"no": 1}}, a_context(root))
    assert theirs[0] != "permission_denied"
    allowed = a_context(root, allowed=("json",))
    assert failure_of("python", {"call": f"{more}:say", "args": {"obj": 1}}, allowed)[0] == "code_error"  # a text


def test_what_an_allowed_module_has_imported_is_not_allowed_with_it(root, tmp_path_factory, monkeypatch):
    """The module in which a function was written counts: it is allowed itself, or of the project."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(elsewhere)
    name = f"m_{root.name.replace('-', '_')}"
    (elsewhere / f"{name}.py").write_text(
        "from os import *\nfrom json import dumps as say\nfrom random import random\ndef own(): return {'n': 1}\n"
    )
    allowed = a_context(root, allowed=(name,))
    for call, home in (("system", "posix"), ("say", "json"), ("random", "random")):
        kind, said, _ = failure_of("python", {"call": f"{name}:{call}"}, allowed)
        assert (call, kind, f"OUTLAST_ALLOW={home}" in said) == (call, "permission_denied", True)
    assert outputs_of("python", {"call": f"{name}:own"}, allowed) == {"n": 1}
    for call in ("say", "random"):
        kind, _, _ = failure_of("python", {"call": f"{name}:{call}"}, a_context(root, allowed=(name, "json", "random")))
        assert (call, kind) != (call, "permission_denied")
    assert failure_of("python", {"call": "random:random"}, a_context(root, allowed=("random",)))[0] == "code_error"


@table(
    ("allowed", "refused"),
    [("email", False), ("email.utils", False), ("ema", True), ("email.util", True), ("utils", True)],
)
def test_an_allowed_module_allows_its_submodules_only(root, allowed, refused):
    """A module with a longer name and the package around it stay refused."""
    kind, _, _ = failure_of("python", {"call": "email.utils:make_msgid"}, a_context(root, allowed=(allowed,)))
    assert kind == ("permission_denied" if refused else "code_error")  # what it returns is a text
    package = failure_of("python", {"call": "email:message_from_string"}, a_context(root, allowed=("email.utils",)))
    assert package[0] == "permission_denied"


def test_what_a_function_raises_goes_up_as_it_is(root, module):
    """A policy decides by what the function itself has raised."""
    _, said, error = failure_of("python", {"call": f"{module}:broken"}, a_context(root, row={}))
    assert (type(error), said) == (LookupError, "no such movie")


def test_the_end_of_a_loop_that_a_function_raises_is_told(root, module):
    """It has no words of its own, and whoever calls would take it for the end of a loop."""
    said = f"{module}:ends raised StopIteration; next(...) with a default does not raise it"
    plain = failure_of("python", {"call": f"{module}:ends"}, a_context(root, row={}))
    each = failure_of("data.processor", {"rows": [{}], "call": f"{module}:ends"}, a_context(root))
    assert [plain[:2], each[:2]] == [("code_error", said)] * 2
    assert type(plain[2].__cause__) is StopIteration


# --- data.processor ---


def processed(root, rows, **config):
    return outputs_of("data.processor", {"rows": rows, **config}, a_context(root))


def test_rows_are_renamed_selected_and_filled_in_this_order(root):
    """Names may change places; a selected column that is missing gets its default; nothing of the input is changed."""
    rows = [{"id": 1, "ttl": "a", "x": 1}, {"id": 2, "ttl": None, "x": 2}]
    made = processed(
        root, rows, rename={"ttl": "title"}, select=["id", "title", "lang"], defaults={"lang": "en", "title": "?"}
    )
    assert made == {
        "rows": [{"id": 1, "title": "a", "lang": "en"}, {"id": 2, "title": "?", "lang": "en"}],
        "count": 2,
        "dropped": 0,
    }
    assert rows == [{"id": 1, "ttl": "a", "x": 1}, {"id": 2, "ttl": None, "x": 2}]
    assert processed(root, [{"a": 1, "b": 2}], rename={"a": "b", "b": "a"})["rows"] == [{"b": 1, "a": 2}]


def test_a_function_may_change_and_drop_rows(root, module):
    """What it returns is the row, None drops it, and the rows that were given stay as they are."""
    rows = [{"n": 1}, {"n": 2}, {"n": 4}]
    made = processed(root, rows, call=f"{module}:even", args={"of": "n"})
    assert made == {"rows": [{"n": 2, "even": True}, {"n": 4, "even": True}], "count": 2, "dropped": 1}
    assert processed(root, rows, call=f"{module}:spoils")["rows"] == [{"n": 0}] * 3
    assert rows == [{"n": 1}, {"n": 2}, {"n": 4}]


@table(
    ("rows", "config", "kind", "said"),
    [
        ([{"a": 1}, {"b": 2}], {"rename": {"a": "c"}}, "validation_error", "expected row 2 to have a, which is renamed"),
        ([{"a": 1}, {"b": 2}], {"select": ["a"]}, "validation_error", "expected row 2 to have a, which is selected"),
        ([{"a": 1, "b": 2}], {"rename": {"a": "b"}}, "validation_error", "expected one column b in row 1 once"),
        ([{"a": 1}, "hunter2"], {"select": ["a"]}, "validation_error", "expected row 2 to be a mapping, got: a value of type str"),
        ("${steps.a.outputs.rows}", {"select": ["a"]}, "validation_error", "expected rows to be a list"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_named_by_its_number(tmp_path, rows, config, kind, said):
    """No row is dropped in silence, and no value of one is in a message."""
    found, told, _ = failure_of("data.processor", {"rows": rows, **config}, a_context(tmp_path))
    assert (found, told.startswith(said), "hunter2" in told) == (kind, True, False)


def test_a_function_that_fails_or_returns_no_row_says_at_which_row(root, module):
    """The error is the function's own, with a note."""
    config = {"rows": [{}], "call": f"{module}:broken"}
    error = failure_of("data.processor", config, a_context(root))[2]
    assert (type(error), error.__notes__) == (LookupError, [f"{module}:broken was called with row 1"])
    kind, said, _ = failure_of(
        "data.processor", {"rows": [{"n": 1}], "call": "builtins:len"}, a_context(root, allowed=("builtins",))
    )
    assert (kind, said.endswith("got for row 1: a value of type int")) == ("code_error", True)


# --- schema.validator ---

SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}, "price": {"type": "number"}},
}  # fmt: skip


def test_rows_that_fit_are_put_out(tmp_path):
    """Exact numbers are numbers; each row is checked by itself."""
    rows = [{"id": 1, "price": Decimal("1.5")}, {"id": 2}]
    assert outputs_of("schema.validator", {"data": rows, "schema": SCHEMA}, a_context(tmp_path)) == {
        "valid": rows,
        "invalid": [],
        "count": 2,
    }


def test_what_does_not_fit_fails_the_step_and_is_kept_for_people():
    """The message names rows, places and rules, and no value; what came is kept beside it."""
    shelf = Shelf()
    rows = [{"id": 1}, {"id": "hunter2", "tags": ["a", 3]}, {}]
    kind, said, _ = failure_of("schema.validator", {"data": rows, "schema": SCHEMA}, a_context(place=shelf.place))
    assert kind == "validation_error"
    assert said == (
        "expected every row to fit the schema, got 2 of 3 that do not: row 2: id: properties/id/type, tags.1: "
        "properties/tags/items/type; row 3: all of it: required"
    )
    kept = [json.loads(line) for line in str(shelf.kept["raw"]).splitlines()]
    assert [one["value"] for one in kept] == rows[1:]


def test_what_does_not_fit_can_be_split_off():
    """on_invalid: split puts out both parts, with the reasons."""
    config = {"data": [{"id": 1}, {"id": "x"}], "schema": SCHEMA, "on_invalid": "split"}
    assert outputs_of("schema.validator", config, a_context()) == {
        "valid": [{"id": 1}],
        "invalid": [{"row": 2, "value": {"id": "x"}, "reasons": ["id: properties/id/type"]}],
        "count": 1,
    }


def test_a_value_on_which_the_check_breaks_does_not_fit():
    """Deeper or larger than the check can compute with: the row is split off as any other, and the rows around it are checked."""
    deep = []
    for _ in range(300):
        deep = [deep]
    schema = {"properties": {"a": {"multipleOf": 0.5}, "b": {"$ref": "#/$defs/list"}, "c": {"type": "string"}}}
    schema["$defs"] = {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}
    rows = [{"a": 1}, {"a": 10**400}, {"a": Decimal("1.5")}, {"b": deep}, {"c": 10**5000}, {"a": 2.5}]
    config = {"data": rows, "schema": schema}
    split = outputs_of("schema.validator", {**config, "on_invalid": "split"}, a_context())
    assert (split["valid"], split["count"]) == ([rows[0], rows[5]], 2)
    broken = "all of it: has a value that cannot be checked"
    assert [(one["row"], one["reasons"]) for one in split["invalid"]] == [
        (2, [f"{broken} (OverflowError)"]),
        (3, [f"{broken} (TypeError)"]),
        (4, ["all of it: deeper than can be checked"]),
        (5, [f"{broken} (ValueError)"]),
    ]
    shelf = Shelf()
    kind, said, _ = failure_of("schema.validator", config, a_context(place=shelf.place))
    assert (kind, said[:71]) == (
        "validation_error",
        "expected every row to fit the schema, got 4 of 6 that do not: row 2: al",
    )
    assert len(str(shelf.kept["raw"]).splitlines()) == 4


@table(
    ("format_", "right", "wrong"),
    [
        ("date", "2026-02-28", "2026-02-30"),
        ("date-time", "2026-02-28T23:59:60.5Z", "2026-02-28T23:59:00"),
        ("date-time", "2026-02-28t01:02:03+05:30", "2026-02-30T01:02:03Z"),
        ("date-time", 7, "2026-02-28T25:00:00Z"),
        ("email", "ann@example.com", "ann"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("ipv6", "::1", "1::2::3"),
        ("regex", "a+", "a("),
        ("uuid", "6f2b6e6e-7d0a-4f5e-9d3f-3d6d1f6c0a11", "6f2b6e6e"),
        ("hostname", "-", None),
    ],
)
def test_formats_are_checked_where_it_is_said(format_, right, wrong):
    """Those that are documented, whatever else is installed; others are not."""
    config = {"data": [right, wrong], "schema": {"format": format_}, "on_invalid": "split"}
    found = outputs_of("schema.validator", config, a_context())
    assert found["valid"] == ([right, None] if wrong is None else [right])
    assert [one["reasons"] for one in found["invalid"]] == ([] if wrong is None else [["all of it: format"]])


def test_one_value_is_checked_as_a_whole():
    """Whatever is no list is one value."""
    right = outputs_of("schema.validator", {"data": {"id": 1}, "schema": SCHEMA}, a_context())
    split = {"data": {"id": "x"}, "schema": SCHEMA, "on_invalid": "split"}
    wrong = outputs_of("schema.validator", split, a_context())
    assert right == {"valid": {"id": 1}, "invalid": None, "count": 1}
    assert wrong == {
        "valid": None,
        "invalid": {"value": {"id": "x"}, "reasons": ["id: properties/id/type"]},
        "count": 0,
    }
    kind, said, _ = failure_of("schema.validator", {"data": {"id": "x"}, "schema": SCHEMA}, a_context())
    assert (kind, said) == ("validation_error", "expected data to fit the schema, got: id: properties/id/type")


def test_a_schema_of_a_file_is_read_from_the_project_only(tmp_path):
    """A file that is missing, is no schema or refers to another place is told; nothing is fetched."""
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "far.json").write_text('{"$ref": "http://127.0.0.1:1/x"}')
    (tmp_path / "lacks.json").write_text('{"$ref": "#/$defs/gone"}')
    (tmp_path / "odd.json").write_text('{"minLength": -1}')
    made = outputs_of("schema.validator", {"data": [{"id": 1}], "schema_file": "s.json"}, a_context(tmp_path))
    assert made["count"] == 1
    told = {
        name: failure_of("schema.validator", {"data": [{"id": 1}], "schema_file": f"{name}.json"}, a_context(tmp_path))[
            :2
        ]
        for name in ("gone", "no", "list", "far", "lacks", "odd")
    }
    assert {name: kind for name, (kind, _) in told.items()} == {
        "gone": "missing_input",
        **dict.fromkeys(("no", "list", "far", "lacks", "odd"), "validation_error"),
    }
    assert told["lacks"][1] == "expected /$defs/gone to be in the schema, which refers to it, got: no such place"
    assert "expected $ref to refer to the schema itself" in told["far"][1]


# --- resource.allocator, resource.deallocator ---


@pytest.fixture
def place(tmp_path):
    store = open_store(prepared(tmp_path / "outlast.db"), app="tests")
    yield Place(store_url="", app="tests", run=1, token=1, store=store)
    store.close()


def taken(place, key, amount=2, capacity=5):
    config = {"pool": "gpu", "amount": amount, "capacity": capacity}
    return outputs_of("resource.allocator", config, a_context(place=place, idempotency_key=key))


def test_an_attempt_after_a_crash_gets_the_share_that_is_taken_already(place):
    """The idempotency key of the step tells shares apart, so one step never has two."""
    first, again, other = taken(place, "k-1"), taken(place, "k-1"), taken(place, "k-2")
    assert first == again == {"allocation_id": first["allocation_id"], "left": 3}
    assert (other["left"], other["allocation_id"] != first["allocation_id"]) == (1, True)


def test_a_pool_that_is_full_is_worth_another_attempt(place):
    """It fails with a class of its own, which on_errors can name, and takes nothing."""
    taken(place, "k-1", 4)
    config = {"pool": "gpu", "amount": 2, "capacity": 5}
    kind, said, _ = failure_of("resource.allocator", config, a_context(place=place, idempotency_key="k-2"))
    assert (kind, said) == ("resource_exhausted", "the pool gpu has 4 of 5 taken, which leaves less than 2")
    assert taken(place, "k-3", 1)["left"] == 0


def test_all_steps_of_a_pool_have_one_capacity(place):
    """Another one is refused for good while something is taken; with nothing taken it counts, for everybody."""
    mine = taken(place, "k-1", 2, 5)
    config = {"pool": "gpu", "amount": 1, "capacity": 8}
    kind, said, error = failure_of("resource.allocator", config, a_context(place=place, idempotency_key="k-2"))
    assert (kind, classify(error).category) == ("validation_error", "permanent")
    assert said == (
        "expected the capacity of the pool gpu to be 5, of which 2 is taken, got: 8; give all steps of this pool the same "
        "capacity: another one counts once nothing is taken"
    )
    assert taken(place, "k-1", 2, 8) == mine  # it was taken already
    outputs_of("resource.deallocator", {"allocation_id": mine["allocation_id"]}, a_context(place=place))
    assert taken(place, "k-2", 1, 8)["left"] == 7
    assert failure_of("resource.allocator", {**config, "capacity": 5}, a_context(place=place, idempotency_key="k-3"))[
        1
    ].startswith("expected the capacity of the pool gpu to be 8, of which 1 is taken, got: 5")


def test_giving_a_share_back_twice_is_giving_it_back_once(place):
    """The second time nothing is released, and nobody else's share goes."""
    mine, others = taken(place, "k-1"), taken(place, "k-2")
    config = {"allocation_id": mine["allocation_id"]}
    told = [outputs_of("resource.deallocator", config, a_context(place=place))["released"] for _ in range(2)]
    assert (told, taken(place, "k-2")) == ([True, False], {**others, "left": 3})


def test_only_what_the_allocator_has_put_out_is_given_back(place):
    """A text that names no pool is a mistake; a share that nobody knows is none."""
    assert failure_of("resource.deallocator", {"allocation_id": "x"}, a_context(place=place))[0] == "validation_error"
    assert outputs_of("resource.deallocator", {"allocation_id": "gpu:x"}, a_context(place=place)) == {"released": False}


def test_many_at_a_time_never_take_more_than_there_is(place):
    """Each share is taken in a transaction of its own."""
    ends: list[object] = []

    def take(key):
        try:
            ends.append(taken(place, key, 1, 3)["left"])
        except Exception as error:  # noqa: BLE001 - counted
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=take, args=(f"k-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, ends)) == ["0", "1", "2", *["TemporaryFailure"] * 5]


def test_a_step_without_a_store_says_so():
    """Components that need one are told of it before anything is done."""
    kind, said, _ = failure_of("resource.allocator", {"pool": "gpu", "capacity": 1}, a_context())
    assert (kind, said) == ("code_error", "the step work has no store here")
