"""Declared parameters: bounds that nothing meets, where a parameter may stand, and what is shown of its value."""

from __future__ import annotations

from typing import Any

from outlast.components import lines
from outlast.spec.compile import compile_text
from outlast.spec.mistakes import errors_in
from outlast.spec.rules import check
from tables import table


def told(declared: str, step: str = "", *, config: str = "path: a.csv", component: str = "files.reader", **given: Any):
    text = (
        f'oml_version: "0.1.0"\nname: movies\nparams: {{{declared}}}\n'
        f"steps:\n  - {{id: s, component: {component}, config: {{{config}}}{', ' if step else ''}{step}}}\n"
    )
    given = {"complete": bool(given)} | given
    return [
        str(one).partition(": ")[2] for one in errors_in(compile_text(text, "f.yaml", rules=(check,), **given).mistakes)
    ]


# --- what is declared ---


@table(
    ("param", "line"),
    [
        ("{type: string, enum: []}", "enum: expected a list of values, got an empty list; write it as [one, two]"),
        ("{type: string, enum: a}", "enum: expected a list of values, got a; write it as [one, two]"),
        (
            "{type: integer, min: 5.5, max: 5.9, default: 4}",
            "min: expected a bound such that an integer lies between it and max (5.9), got 5.5; write min: 5, or max: 6",
        ),
        (
            "{type: list, min: 0.5, max: 0.9}",
            "min: expected a bound such that a number of entries lies between it and max (0.9), got 0.5; write min: 0, or max: 1",
        ),
        ("{type: string, max: -1}", "max: expected at least 0, got -1; raise it, or leave it out"),
    ],
)
def test_what_no_value_meets_is_a_mistake_of_the_declaration(param, line):
    """Once, where it is declared (S0-29)."""
    assert told(f"e: {param}") == [f"params.e.{line}"]


@table(
    "param",
    [
        "{type: integer, min: 5.5, max: 6}",
        "{type: integer, min: -3, max: -3}",
        "{type: number, min: 5.5, max: 5.9}",
        "{type: string, max: 0}",
        "{type: list, min: -1, max: 0.5}",
    ],
)
def test_bounds_that_some_value_meets_are_right(param):
    """U-20."""
    assert told(f"e: {param}") == []


# --- where a parameter may stand ---

LIST = "expected a list that is written out, got '${params.j}'; its entries may be parameters: write it as [\"${params.first}\", 5000]"
MAPPING = "expected a mapping that is written out, got '${params.j}'; its values may be parameters: write it as {network: \"${params.retries}\"}"


@table(
    ("kind", "block", "place", "line", "value"),
    [
        ("list", 'backoff: schedule, delays_ms: "${params.j}"', "delays_ms", LIST, [1000]),
        ("list", 'delays: "${params.j}"', "delays", LIST, [1]),
        ("integer", 'delays_s: "${params.j}"', "delays_s", LIST, 1),
        ("object", 'max_attempts: 3, retry_limits: "${params.j}"', "retry_limits", MAPPING, {"database": 2}),
    ],
)
def test_a_list_of_waits_is_written_out(kind, block, place, line, value):
    """R42: one line, the same before the parameter has a value and after."""
    wanted = [f"steps.s.retry.{place}: {line}"]
    for given in ({}, {"params": {"j": value}}):
        assert told(f"j: {{type: {kind}}}", f"retry: {{{block}}}", **given) == wanted


@table(
    "block",
    [
        'backoff: schedule, delays_ms: ["${params.j}", 5000]',
        'backoff: schedule, delays: ["${params.j}"]',
        'max_attempts: 3, retry_limits: {network: "${params.j}"}',
    ],
)
def test_entries_of_a_list_of_waits_may_be_parameters(block):
    """R42: what the line says is the way out."""
    for given in ({}, {"params": {"j": 2}}):
        assert told("j: {type: integer}", f"retry: {{{block}}}", **given) == []


@table(
    ("step", "config"),
    [
        ('retry: {max_attempts: "${params.a}"}', "path: a.csv"),
        ('circuit_breaker: {failure_threshold: "${params.a}"}', "path: a.csv"),
        ("", 'pool: gpu, capacity: "${params.a}"'),
    ],
)
def test_a_number_where_an_integer_is_expected_is_declared_as_one(step, config):
    """3 was given; what is wrong is the type (S0-29)."""
    component = "resource.allocator" if "pool" in config else "files.reader"
    (line,) = told("a: {type: number}", step, config=config, component=component, params={"a": 3})
    assert "expected an integer" in line
    assert "; declare the parameter a with type: integer" in line
    assert told("a: {type: integer}", step, config=config, component=component, params={"a": 3}) == []


# --- what stands between cells ---


@table("delimiter", ['";;"', '""', '"\\n"'])
def test_a_delimiter_is_one_character(delimiter):
    """And the way out says so (S0-29)."""
    (line,) = told("", config=f"path: a.csv, delimiter: {delimiter}")
    assert "expected one character that is neither a quote nor the end of a line, got" in line
    assert line.endswith("; write one, such as ;")


def test_any_other_character_may_stand_between_cells(tmp_path):
    """U-20: also those that no editor shows; files are read with them."""
    for mark, written in (("\0", "\\0"), ("\u2028", "\\u2028"), ("\x85", "\\x85"), ("\t", "\\t")):
        assert told("", config=f'path: a.csv, delimiter: "{written}"') == []
        (tmp_path / "a.csv").write_bytes(f"a{mark}b\n1{mark}2\n".encode())
        assert list(lines.read(tmp_path / "a.csv", mark, None)) == [{"a": "1", "b": "2"}]


# --- what is shown of a value ---


def test_of_a_sensitive_parameter_nothing_is_shown():
    """U-24: whether it fits or not, and wherever it stands."""
    for kind, value in (("string", "planted1X"), ("integer", "54321"), ("integer", "planted1X")):
        for source in ({"params": {"p": value}}, {"environment": {"OUTLAST_PARAM_P": value}}):
            for step in (
                'retry: {initial_delay_ms: "${params.p}", max_delay_ms: 7}',
                'timeout: {step_ms: "${params.p}"}',
                "",
            ):
                found = told(
                    f"p: {{type: {kind}, sensitive: true, max: 8}}",
                    step,
                    config='path: "${params.p}"',
                    from_shell=True,
                    **source,
                )
                assert found
                assert "planted1X" not in "".join(found)
                assert "54321" not in "".join(found)


def test_of_a_value_that_does_not_fit_its_declaration_nothing_is_shown():
    """U-24: who gave it knows it, and who reads along must not."""
    for kind, value in (("integer", "planted1X"), ("integer", "54321"), ("string, enum: [a]", "planted1X")):
        for source in ({"params": {"p": value}}, {"environment": {"OUTLAST_PARAM_P": value}}):
            (line,) = told(f"p: {{type: {kind}, {'max: 9' if kind == 'integer' else ''}}}", from_shell=True, **source)
            assert "got a value that is not shown" in line
            assert value not in line


def test_a_number_of_another_parameter_is_shown_where_it_is_compared():
    """The value itself by its reference, what it is compared with as it is (S0-29)."""
    params = "low: {type: integer}, high: {type: integer}"
    block = 'retry: {max_attempts: 3, initial_delay_ms: "${params.high}", max_delay_ms: "${params.low}"}'
    (line,) = told(params, block, params={"low": 54321, "high": 98765})
    assert "expected at most max_delay_ms (54321), got '${params.high}'" in line
    assert "98765" not in line


@table(
    ("component", "config", "step"),
    [
        ("files.reader", 'path: "/${params.p}"', ""),
        ("files.reader", 'path: a.csv, encoding: "${params.p}"', ""),
        ("files.reader", 'path: a.csv, delimiter: "${params.p}"', ""),
        ("files.reader", 'path: a.csv, format: "${params.p}"', ""),
        ("http.caller", 'url: "${params.p}"', ""),
        ("http.caller", 'url: "//${params.p}/x"', ""),
        ("http.caller", 'url: "https://a.example/", method: "${params.p}"', ""),
        ("schema.validator", 'data: 1, schema: {type: "${params.p}"}', ""),
        ("schema.validator", 'data: 1, schema: {items: "${params.p}"}', ""),
        ("schema.validator", 'data: 1, schema: {pattern: "(${params.p}"}', ""),
        ("postgres.writer", 'connection: "@postgres.a", table: t, rows: [], mode: "${params.p}"', ""),
        ("files.reader", "path: a.csv", 'retry: {max_attempts: 3, on_errors: ["${params.p}-"]}'),
        ("files.reader", "path: a.csv", 'retry: {backoff: "${params.p}"}'),
        ("files.reader", "path: a.csv", 'timeout: {step: "${params.p}"}'),
        ("files.reader", "path: a.csv", 'limit: {rates: {calls: "${params.p}"}}'),
    ],
)
def test_a_text_of_a_parameter_is_shown_by_its_reference(component, config, step):
    """U-24: what is wrong is told of what the file says."""
    found = told("p: {type: string}", step, config=config, component=component, params={"p": "planted1X"})
    assert found
    assert "planted1X" not in "".join(found)
    assert "${params.p}" in "".join(found)
