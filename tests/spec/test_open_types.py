"""Parameters that are given when a pipeline runs: what the manifest knows of them, and how their values are read."""

from __future__ import annotations

import pytest

import outlast
from outlast.spec.compile import compile_text
from outlast.spec.diff import diff
from outlast.spec.manifest import Manifest
from outlast.spec.params import open_value
from tables import table

HEAD = 'oml_version: "0.1.0"\nname: p\nparams:\n%ssteps:\n  - {id: a, component: python, config: {call: "a:b", args: {%s}}}\n'


def manifest_of(**types):
    params = "".join(f"  {name}: {{type: {kind}, sensitive: true}}\n" for name, kind in types.items())
    args = ", ".join(f'{name}: "${{params.{name}}}"' for name in types)
    found = compile_text(HEAD % (params, args), "p.yaml", params=dict.fromkeys(types))
    found = compile_text(HEAD % (params, args), "p.yaml", complete=False) if found.manifest is None else found
    assert found.manifest is not None, [str(one) for one in found.errors]
    return found.manifest


def test_a_manifest_has_the_types_that_are_no_strings():
    """C-26: so that a text from the environment can be read; strings are not named, and a manifest of them is what it was."""
    manifest = manifest_of(pin="integer", token="string", ports="list")
    assert (tuple(manifest.open_params), manifest.open_types) == (
        ("pin", "ports", "token"),
        {"pin": "integer", "ports": "list"},
    )
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert "open_types" not in manifest_of(token="string").to_json()
    with pytest.raises(TypeError, match="cannot be changed"):
        manifest.open_types["pin"] = "string"


def test_another_type_is_a_difference():
    """U-20: told as what changes for who gives it."""
    found = diff(manifest_of(pin="string"), manifest_of(pin="integer"))
    assert (found.file, found.steps) == (("the parameter pin is of the type integer, was string",), ())


@table(
    ("kind", "text", "value"),
    [
        ("string", "12", "12"),
        ("string", "", ""),
        ("integer", "-12", -12),
        ("number", "2", 2.0),
        ("number", "1e3", 1000.0),
        ("boolean", "false", False),
        ("list", '[1, "a"]', [1, "a"]),
        ("object", '{"a": {"b": null}}', {"a": {"b": None}}),
    ],
)
def test_a_text_is_read_as_its_type_says(kind, text, value):
    """C-26: as it is when a file is compiled."""
    found = open_value("pin", kind, text)
    assert (found, type(found)) == (value, type(value))
    assert open_value("pin", kind, value, is_text=False) == value


@table(
    ("kind", "given", "is_text", "expected"),
    [
        ("integer", "planted", True, "an integer, got: a value that is not shown."),
        ("integer", "12", False, "an integer, got: a value that is not shown."),
        ("number", "nan", True, "a number, got: a value that is not shown."),
        ("boolean", "yes", True, "true or false, got: a value that is not shown."),
        ("list", "planted", True, "a list, got: a value that is not shown. Write it as JSON."),
        ("object", "[1]", True, "a mapping, got: a value that is not shown. Write it as JSON."),
        ("object", ["planted"], False, "a mapping, got: a value that is not shown."),
        ("string", 98765, False, "a text, got: a value that is not shown."),
        (
            "list",
            "[" * 70 + "]" * 70,
            True,
            "at most 64 levels of lists and mappings, got: more. Flatten it, or put it into a file that a step reads.",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_not_shown(kind, given, is_text, expected):
    """U-24: what is wrong is told, what it is is not."""
    with pytest.raises(outlast.ConfigurationError) as refused:
        open_value("pin", kind, given, is_text=is_text)
    assert str(refused.value) == f"expected params.pin to be {expected}"
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
