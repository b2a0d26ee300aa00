"""The components of steps: what each takes and refuses, how others are found, and the commands that show them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import model_validator
from typer.testing import CliRunner

import outlast
from outlast.cli.commands import command_line
from outlast.components import registry
from outlast.components.describing import Component, Family
from outlast.components.registry import component_names, family_names, find_component, find_family
from outlast.components.steps import OWN, OWN_FAMILIES
from outlast.components.steps.config import Config, Unfit
from outlast.spec.compile import compile_text
from tables import table

ROWS = "${steps.read.outputs.rows}"
ALL = (
    "data.processor files.reader files.writer http.caller llm.caller mysql.extractor pipeline postgres.extractor "
    "postgres.writer python resource.allocator resource.deallocator s3.deleter s3.reader s3.writer schema.validator sql.transform "
    "supabase.deleter supabase.writer"
).split()


def outlast_command(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(command_line(arguments), list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def wrong(name: str, **config: object) -> list[tuple[str, str]]:
    """Where and what is wrong with the example of a component once these keys are changed; None leaves one out."""
    component = find_component(name)
    given = {key: value for key, value in {**component.example, **config}.items() if value is not None}
    unknown = [(key,) for key, value in given.items() if isinstance(value, str) and value.startswith("${")]
    problems = component.problems(given, unknown)
    return [(".".join(map(str, one.path)), f"{one.expected}; {one.way_out}") for one in problems]


# --- what there is ---


def test_every_component_is_there_and_described():
    """U-20: a file can be checked against all of them: config, outputs, what they do."""
    assert sorted(OWN) == ALL
    assert set(ALL) <= set(component_names())
    for name in ALL:
        found = find_component(name)
        assert found.name == name
        assert found.summary.endswith(".")
        assert set(found.secrets) | set(found.literal) | set(found.idempotent_if) <= set(found.keys)
        given = {key for key, rule in found.overrides.items() if rule != "forbidden"}
        assert given <= set(found.keys)
        assert not (set(found.overrides) - given) & set(found.keys)
        if found.connection:
            assert set(found.overrides) <= set(find_family(found.connection).keys)
            assert "connection" in found.keys


@table("name", ALL)
def test_example_is_right_and_a_key_that_nobody_knows_is_not(name):
    """C-24: every example validates, and every model forbids unknown keys."""
    assert wrong(name) == []
    ((path, said),) = wrong(name, nobody_knows_it=1)
    assert (path, said.partition(";")[0]) == ("nobody_knows_it", f"a key that {name} knows")


@table("name", [*ALL, *OWN_FAMILIES])
def test_every_key_is_told_in_the_reference(name):
    """The page of components is made from the descriptions, and none of them is left out."""
    found = find_component(name) if name in ALL else find_family(name)
    page = (Path(outlast.__file__).parents[2] / "docs" / "reference" / "components.md").read_text()
    section = page.partition(f"\n### {'' if name in ALL else 'Connections of '}{name}\n")[2].partition("\n### ")[0]
    assert found.summary in section
    assert [key for key in found.keys if f"| `{key}`" not in section] == []
    assert [key for key in getattr(found, "outputs", None) or () if f"| `{key}`" not in section] == []


@table(
    ("name", "config", "is_so"),
    [
        ("http.caller", {"method": "GET"}, True),
        ("http.caller", {"method": "POST"}, False),
        ("http.caller", {}, True),
        ("postgres.writer", {}, False),
        ("postgres.writer", {"mode": "upsert"}, True),
        ("data.processor", {"call": "a:b"}, False),
        ("data.processor", {}, True),
        ("python", {}, False),
        ("files.reader", {}, True),
    ],
)
def test_whether_doing_it_twice_is_doing_it_once_may_depend_on_the_config(name, config, is_so):
    assert find_component(name).is_idempotent(config) is is_so


# --- what they refuse ---


@table(
    ("name", "config", "path", "said"),
    [
        ("python", {"call": "os.system"}, "call", "a function as module:function"),
        ("python", {"call": "a:b.c"}, "call", "a function as module:function"),
        ("python", {"args": [1]}, "args", "a mapping"),
        ("pipeline", {"on_item_error": "ignore"}, "on_item_error", "one of dlq, collect, stop"),
        ("files.reader", {"path": "/etc/passwd"}, "path", "a path under the project's root"),
        ("files.reader", {"path": "in/../../x"}, "path", "leave .. out"),
        ("files.reader", {"path": "in\\..\\x"}, "path", "leave .. out"),
        ("files.reader", {"path": "~/x"}, "path", "a path under the project's root"),
        ("files.reader", {"path": "C:x"}, "path", "a path under the project's root"),
        ("files.reader", {"path": "in/nul.csv"}, "path", "the name of a file"),
        ("files.reader", {"path": "in/a\x00b"}, "path", "characters that can be seen"),
        ("files.reader", {"path": "in/a.jsonl", "delimiter": ";"}, "path", "delimiter and encoding for CSV"),
        ("files.writer", {"path": "out/*.csv"}, "path", "path to be one file"),
        ("files.writer", {"rows": "in.csv"}, "rows", "rows; write ${steps.id.outputs.rows}"),
        ("http.caller", {"url": "//other.example.com/x"}, "url", "begins with http:// or https://"),
        ("http.caller", {"url": "file:///etc/passwd"}, "url", "begins with http:// or https://"),
        ("http.caller", {"connection": None, "url": "http://a@b/x"}, "url", "an address without a user"),
        ("http.caller", {"url": "/x\r\nX: y"}, "url", "a path of one line"),
        ("http.caller", {"url": "/x", "connection": None}, "url", "a connection, because url is a path"),
        ("http.caller", {"url": "/x#y"}, "url", "an address without #"),
        ("http.caller", {"headers": {"X": "a\r\nY: b"}}, "headers.X", "the header X to be one line"),
        ("http.caller", {"headers": {"X: y": "a"}}, "headers.X: y", "the name of a header"),
        ("http.caller", {"headers": {"Host": "a"}}, "headers.Host", "no header Host"),
        ("http.caller", {"method": "GET"}, "json", "no body with GET"),
        ("http.caller", {"body": "x"}, "json", "one of json, form and body"),
        ("http.caller", {"max_redirects": 6}, "max_redirects", "a number of at most 5"),
        ("http.caller", {"expect": {"status": [99]}}, "expect.status.0", "a number of at least 100"),
        ("http.caller", {"token": "x"}, "token", "it left out; it comes from the connection"),
        ("postgres.extractor", {"query": "select 1; drop table jobs"}, "query", "one statement"),
        ("postgres.extractor", {"query": "-- nothing"}, "query", "a query"),
        ("postgres.extractor", {"parameters": {}}, "parameters", "a parameter day"),
        ("postgres.extractor", {"parameters": {"day": 1, "night": 2}}, "parameters", "leave night out"),
        ("postgres.extractor", {"parameters": [1]}, "parameters", "a mapping is for %(name)s"),
        ("postgres.extractor", {"query": "select %s"}, "parameters", "parameters to be a list"),
        ("postgres.extractor", {"user": "ann"}, "user", "it left out; it comes from the connection"),
        ("postgres.writer", {"table": 'x"; drop table jobs;--'}, "table", "a name in letters, digits and _"),
        ("postgres.writer", {"table": "public.x"}, "table", "without quotes and dots"),
        ("postgres.writer", {"key": ["a b"]}, "key.0", "a name in letters, digits and _"),
        ("postgres.writer", {"key": None}, "mode", "key, because mode is upsert"),
        ("postgres.writer", {"mode": "insert"}, "key", "no key, because mode is insert"),
        ("postgres.writer", {"key": ["a", "a"]}, "key", "each column once in key"),
        ("postgres.writer", {"columns": ["title"]}, "columns", "columns to have those of key"),
        ("schema.validator", {"schema_file": "x.json"}, "schema", "one of schema and schema_file"),
        ("schema.validator", {"schema": None}, "", "one of schema and schema_file"),
        ("schema.validator", {"schema": {"type": "text"}}, "schema.type", "one of string, number"),
        ("schema.validator", {"schema": {"$ref": "http://a/b"}}, "schema.$ref", "$ref to refer to the schema itself"),
        (
            "schema.validator",
            {"schema": {"properties": {"a": 1}}},
            "schema.properties.a",
            "a JSON Schema, which is a mapping",
        ),
        ("schema.validator", {"schema": {"required": "id"}}, "schema.required", "a list of names"),
        ("data.processor", {"rename": None, "select": None}, "", "rename, select, defaults or call"),
        ("data.processor", {"args": {"a": 1}}, "args", "call, because there are args"),
        ("data.processor", {"rename": {"a": "c", "b": "c"}}, "rename", "a name of its own"),
        ("resource.allocator", {"amount": 9}, "amount", "amount to be at most capacity (8)"),
        ("resource.allocator", {"amount": True}, "amount", "an integer"),
        ("resource.deallocator", {"allocation_id": None}, "allocation_id", "the key allocation_id"),
    ],
)
def test_config_that_cannot_be_meant_is_refused(name, config, path, said):
    """U-20: what would change the structure of SQL, an address, a header or a path is refused, and so is what has no effect."""
    found = wrong(name, **config)
    assert len(found) == 1, found
    assert found[0][0] == path, found
    assert said in found[0][1], found


def pipeline(*steps: str) -> str:
    return 'oml_version: "0.1.0"\nname: movies\nparams:\n  day: {type: string, default: monday}\nsteps:\n' + "".join(
        steps
    )


def mistakes(*steps: str, **options) -> list[str]:
    return [str(one) for one in compile_text(pipeline(*steps), "flow.yaml", **options).mistakes]


READ = "  - id: read\n    component: files.reader\n    config: {path: in/x.csv}\n"


@table(
    ("component", "config"),
    [
        ("python", "call: 'shop:${params.day}'"),
        ("pipeline", "target: '${params.day}:x', input: in/x.csv"),
        ("data.processor", "rows: [], call: 'shop:${params.day}'"),
        ("postgres.extractor", "connection: '@postgres.x', query: \"select '${params.day}'\""),
        ("postgres.extractor", "connection: '@postgres.x', query: \"select '${steps.read.outputs.count}'\""),
    ],
)
def test_no_reference_becomes_part_of_sql_or_the_name_of_a_function(component, config):
    """U-20: values are bound, never written into a query; a function is named by the file and by nobody else."""
    found = mistakes(READ, f"  - id: two\n    component: {component}\n    config: {{{config}}}\n")
    assert any("expected a text without references, got ${" in line for line in found), found


def test_keys_that_do_not_go_together_are_told_although_rows_come_later():
    """U-20: a reference for the rows hides nothing of the rest; one for the mode does, because nobody knows it."""
    config = "connection: '@postgres.x', table: movies, rows: '${steps.read.outputs.rows}', mode: upsert"
    (found,) = mistakes(READ, f"  - id: write\n    component: postgres.writer\n    config: {{{config}}}\n")
    assert "flow.yaml:11:" in found
    assert "steps.write.config.mode: expected key, because mode is upsert" in found
    config = config.replace("mode: upsert", "mode: '${steps.ask.outputs.mode}'")
    ask = READ + '  - id: ask\n    component: python\n    config: {call: "a:b"}\n'
    assert mistakes(ask, f"  - id: write\n    component: postgres.writer\n    config: {{{config}}}\n") == []


def test_component_is_never_found_by_an_import_path():
    """U-24: names are looked up in the registry."""
    (found,) = mistakes("  - id: read\n    component: os.system\n")
    assert "expected the name of a component, got 'os.system'" in found


# --- those of others ---


class Nothing(Config):
    pass


def package(folder: Path, name: str, entries: dict[str, str], code: str, group: str = "components") -> None:
    """An installed package with these entry points, and the module that they name."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
    (info / "entry_points.txt").write_text(f"[outlast.{group}]\n{lines}")
    (folder / f"{name}_code.py").write_text(code)


DESCRIPTION = """\
from outlast.components.describing import Component, Family
from outlast.components.steps.config import Config, Unfit
class Nothing(Config): pass
class Connected(Config): connection: str
LOUD = Component("loud.shouter", "Shouts.", Connected, connection="loud")
OTHER = Component("loud.other", "Is something else.", Nothing)
FAMILY = Family("loud", "A loud thing.", Nothing)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder whose packages are installed for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(registry, "_families", dict(registry._families))
    return tmp_path


def test_component_of_an_installed_package_is_loaded_when_it_is_named(installed):
    """U-20: entry points are read, and the module is loaded once a file names it."""
    package(installed, "loudly", {"loud.shouter": "loudly_code:LOUD"}, DESCRIPTION)
    assert "loud.shouter" in component_names()
    assert "loudly_code" not in sys.modules
    assert find_component("loud.shouter").summary == "Shouts."
    assert "loud" in family_names()
    package(installed, "louder", {"loud": "loudly_code:FAMILY"}, "", group="connections")
    registry._installed.cache_clear()
    assert find_family("loud").summary == "A loud thing."


@table(
    ("entries", "code", "said"),
    [
        ({"loud.broken": "brokenly_code:X"}, "raise RuntimeError('password=hunter2')", "RuntimeError: password=***"),
        ({"loud.broken": "brokenly_code:NOT_THERE"}, "", "AttributeError: "),
        ({"loud.broken": "brokenly_nowhere:X"}, "", "ModuleNotFoundError: "),
        ({"loud.broken": "brokenly_code:X"}, "raise ValueError('It is gone.')", "ValueError: It is gone"),
        ({"loud.broken": "brokenly_code:X"}, "raise ValueError('Is it there?')", "ValueError: Is it there?"),
    ],
)
def test_package_that_cannot_be_loaded_is_named(entries, code, said, tmp_path_factory, monkeypatch):
    """U-20: which package, and why, at the place of the file that names it; the others can be listed all the same."""
    folder = tmp_path_factory.mktemp("packages")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.delitem(sys.modules, "brokenly_code", raising=False)
        package(folder, "brokenly", entries, code)
        (found,) = mistakes("  - id: read\n    component: loud.broken\n")
        assert found.startswith("flow.yaml:7:16: steps.read.component: expected a component that can be loaded")
        assert "of brokenly) cannot be loaded: " + said in found
        assert not found.endswith(".")
        assert "?." not in found
        assert "hunter2" not in found
        listed = outlast_command("components", "list")
        assert "loud.broken" in listed
        assert "files.reader" in listed
        assert "hunter2" not in listed


def test_component_with_a_connection_and_no_field_for_it_is_refused():
    """U-20: no file could name one."""
    with pytest.raises(outlast.ConfigurationError, match=r"a pydantic model with a field connection, for @http\.alias"):
        Component("shop.slack", "Posts.", Config, connection="http")


def test_name_that_two_packages_have_is_refused(installed):
    """U-20: which of the two is meant is nobody's guess."""
    package(installed, "first", {"loud.shouter": "first_code:LOUD"}, DESCRIPTION)
    package(installed, "second", {"loud.shouter": "second_code:LOUD"}, DESCRIPTION)
    with pytest.raises(outlast.ConfigurationError) as caught:
        find_component("loud.shouter")
    assert "first_code:LOUD of first and second_code:LOUD of second. Uninstall one of them." in str(caught.value)


def test_entry_point_under_another_name_is_refused(installed):
    package(installed, "misnamed", {"loud.shouter": "misnamed_code:OTHER"}, DESCRIPTION)
    with pytest.raises(outlast.ConfigurationError) as caught:
        find_component("loud.shouter")
    assert "expected misnamed_code:OTHER to be the Component 'loud.shouter'" in str(caught.value)


def test_descriptions_are_checked_when_they_are_made():
    """C-24: everything that is wrong at once."""
    from pydantic import BaseModel

    with pytest.raises(outlast.ConfigurationError) as caught:
        Component("Bad Name", "", BaseModel, outputs=3, overrides={"a": "maybe"})
    assert [problem.split()[1] for problem in caught.value.problems] == [
        "name",
        "summary",
        "config",
        "outputs",
        "overrides['a']",
    ]
    with pytest.raises(outlast.ConfigurationError) as caught:
        Family("a.b", "", Nothing)
    assert [problem.split()[1] for problem in caught.value.problems] == ["name", "summary"]
    for register in (registry.register_component, registry.register_family):
        with pytest.raises(outlast.ConfigurationError):
            register(3)
    with pytest.raises(outlast.ConfigurationError):
        registry.register_component(Component("python", "Another.", Nothing))
    with pytest.raises(outlast.ConfigurationError):
        registry.register_family(Family("http", "Another.", Nothing))


# --- the commands ---


def test_components_are_listed_and_shown():
    """U-20: for people and for programs."""
    listed = json.loads(outlast_command("components", "list", "--json"))
    assert set(ALL) <= {one["name"] for one in listed}
    shown = outlast_command("components", "show", "postgres.writer")
    assert "Comes from the connection only: url, host, port, database, user, password" in shown
    assert '"mode": "upsert"' in shown
    document = json.loads(outlast_command("components", "show", "http.caller", "--json"))
    assert document["config"]["url"]["needed"] is True
    assert document["config"]["method"] == {
        "needed": False,
        "meaning": "the method of the request",
        "choices": ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"],
        "default": "GET",
    }
    assert "one of insert, upsert, replace" in " ".join(shown.split())
    assert document["schema"]["additionalProperties"] is False
    refused = outlast_command("components", "show", "files.raeder", code=2)
    assert "Did you mean 'files.reader'?" in refused


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_new_component_comes_with_all_that_pip_needs(tmp_path):
    """U-20: beside nothing else a whole pyproject.toml, which names the module; beside one that is there, the entry point."""
    whole = outlast_command("components", "new", "shop.sender", "--folder", str(tmp_path))
    text = whole[whole.index("[build-system]") :]
    found = tomllib.loads(text)
    assert found["tool"]["setuptools"]["py-modules"] == ["shop_sender"]
    assert found["project"]["entry-points"]["outlast.components"] == {"shop.sender": "shop_sender:SHOP_SENDER"}
    (tmp_path / "pyproject.toml").write_text(text)
    part = outlast_command("components", "new", "shop.asker", "--folder", str(tmp_path))
    assert "[build-system]" not in part
    assert '"shop.asker" = "shop_asker:SHOP_ASKER"' in part


def test_new_component_has_a_test_that_passes(tmp_path):
    """U-20: the template is a component that works, with its test; what is there is not overwritten."""
    outlast_command("components", "new", "shop.sender", "--folder", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop_sender.py", "test_shop_sender.py"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert "6 passed" in done.stdout, done.stdout
    made = _loaded(tmp_path / "shop_sender.py").SHOP_SENDER
    assert (made.side_effects, made.network, made.idempotent) == (
        True,
        True,
        False,
    )  # whoever changes nothing is warned
    (tmp_path / "shop_sender.py").write_text("mine")
    again = outlast_command("components", "new", "shop.sender", "--folder", str(tmp_path), code=2)
    assert "shop_sender.py not to be there yet" in again
    assert (tmp_path / "shop_sender.py").read_text() == "mine"
    for name in ("Bad Name", "python", "../x"):
        outlast_command("components", "new", name, "--folder", str(tmp_path), code=2)
    outlast_command("components", "new", "a.b", "--folder", str(tmp_path / "nowhere"), code=2)


class _Mail(Config):
    to: list[str]
    text: str | None = None
    html: str | None = None
    limit: int = 5

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.html is None):
            raise Unfit("expected one of text and html; give one of the two", "text", "html")
        if isinstance(self.text, str) and len(self.text) > self.limit:
            raise Unfit("expected a shorter text; shorten it", "text", "limit")
        return self


@table(
    ("config", "unknown", "expected"),
    [
        ({"to": "${item}", "text": "${item.t}", "html": "h"}, "to text", ["one of text and html"]),
        ({"to": ["a"], "limit": "${item.n}"}, "limit", ["one of text and html"]),
        ({"to": ["a"], "text": "${item.t}"}, "text", []),
        ({"to": ["a"], "text": "longer", "limit": "${item.n}"}, "limit", []),
        ({"to": "${item}", "text": "longer"}, "to", ["a shorter text"]),
    ],
)
def test_check_of_several_keys_holds_where_values_are_known_later(config, unknown, expected):
    """C-24: which keys are there is known, also in the model of somebody else; what a check reads of a value is not."""
    mail = Component(name="acme.mail", summary="Sends.", config=_Mail)
    found = mail.problems(config, [(key,) for key in unknown.split()])
    assert [one.expected for one in found] == expected


def test_check_that_asks_for_the_type_of_a_value_says_nothing_while_it_is_unknown():
    """C-24: what is known later is neither a list nor none."""
    config = {"connection": "@postgres.shop", "query": "select %s", "parameters": "${item}"}
    assert find_component("postgres.extractor").problems(config, [("parameters",)]) == []


def test_description_under_the_name_of_another_is_told_with_its_name():
    mail = Component(name="acme.mail", summary="Sends.", config=_Mail)
    with pytest.raises(outlast.ConfigurationError, match="got: the one called 'acme"):
        registry._kept("acme.mailer", "x", mail, {}, Component)


class _Point(Config):
    lat: float
    number: int | float = 0


class _Places(Config):
    ratio: float
    least: float | None = None
    points: list[_Point]
    weights: dict[str, float]
    size: int = 1
    either: int | float = 1


def test_a_whole_number_where_a_float_stands_is_one():
    """U-20: 1 and 1.0 are the same work where the component gets a float; elsewhere a number stays what it is."""
    described = Component(name="shop.places", summary="Places.", config=_Places)
    one = {"ratio": 1, "least": 2, "points": [{"lat": 3, "number": 4}], "weights": {"a": 5}, "size": 6, "either": 7}
    other = {
        "ratio": 1.0,
        "least": 2.0,
        "points": [{"lat": 3.0, "number": 4}],
        "weights": {"a": 5.0},
        "size": 6,
        "either": 7,
    }
    assert json.dumps(described.resolved(one)) == json.dumps(described.resolved(other)) == json.dumps(other)
    huge = {"ratio": 2**60 + 1}
    assert described.resolved(huge)["ratio"] == 2**60 + 1  # no float is the same number
    assert described.resolved({"ratio": True})["ratio"] is True  # which is refused


@table("name", ["json", "typing", "pydantic", "outlast", "pytest", "class"])
def test_new_component_hides_no_module(name, tmp_path):
    """D-26: beside such a file neither Outlast nor its own test could be loaded; the way out is a name that works."""
    told = outlast_command("components", "new", name, "--folder", str(tmp_path), code=2)
    assert f"Choose another, such as {name}.sender, which is in {name}_sender.py." in told
    assert list(tmp_path.iterdir()) == []


def test_new_component_takes_the_name_that_is_proposed(tmp_path):
    """D-26."""
    outlast_command("components", "new", "pydantic.sender", "--folder", str(tmp_path))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["pydantic_sender.py", "test_pydantic_sender.py"]
