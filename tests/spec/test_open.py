"""A file whose parameters have no value yet: what is wrong with it whatever they come to is told, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from outlast.components.describing import Component
from outlast.components.registry import find_component
from outlast.components.steps.config import Config
from outlast.spec import compile as compiling
from outlast.spec import samples
from outlast.spec.compile import compile_text
from outlast.spec.params import Param, value_for
from outlast.spec.rules import check
from outlast.spec.samples import of_param

HEAD = """\
oml_version: "0.1.0"
name: p
params:
  none: {type: integer, max: 0}
  n: {type: integer, min: 1}
  x: {type: number}
  s: {type: string}
  code: {type: string, min: 3, max: 8}
  l: {type: list}
  o: {type: object}
  b: {type: boolean}
  kind: {type: string, enum: [fixed, linear]}
  other: {type: string, enum: [often, seldom]}
  token: {type: string, sensitive: true}
"""
READER = "component: files.reader, config: {path: in/a.csv}"


class Coded(Config):
    """Takes texts that nobody would guess."""

    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-[0-9]{4}$")]
    amount: int = 1


CODED = Component("own.coded", "Takes a code.", Coded, example={"code": "ABC-1234"})


def find(name: str) -> Component | None:
    return CODED if name == "own.coded" else find_component(name)


def told(step: str, **options) -> list[str]:
    text = f"{HEAD}steps:\n  - {{id: a, {step}}}\n"
    found = compile_text(text, "p.yaml", complete=False, rules=(check,), find=find, **options).mistakes
    return [str(one).partition(": ")[2] for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            f'{READER}, retry: {{max_attempts: "${{params.none}}"}}',
            "steps.a.retry.max_attempts: expected an integer of at least 1, got '${params.none}', which is an integer of at most 0; ",
        ),
        (
            f'{READER}, retry: {{max_attempts: "x${{params.n}}"}}',
            "steps.a.retry.max_attempts: expected an integer, got 'x${params.n}'; ",
        ),
        (
            f'{READER}, retry: {{max_attempts: ["${{params.n}}"]}}',
            "steps.a.retry.max_attempts: expected an integer of at least 1, got a list; ",
        ),
        (
            f'{READER}, retry: {{max_attempts: "${{params.n}}", retry_limits: {{bogus: 2}}}}',
            "steps.a.retry.retry_limits.bogus: expected the limit of a tier (",
        ),
        (
            f'{READER}, retry: {{max_attempts: 3, backoff: "${{params.other}}"}}',
            "steps.a.retry.backoff: expected one of exponential, linear, fixed, none, exp, jittered_exponential, schedule, got '${params.other}', which is one of 'often', 'seldom'; ",
        ),
        (
            f'{READER}, timeout: {{step_ms: "${{params.l}}"}}',
            "steps.a.timeout.step_ms: expected milliseconds, got '${params.l}', which is a list; ",
        ),
        (
            f'{READER}, limit: {{name: a, concurrency: "${{params.s}}"}}',
            "steps.a.limit.concurrency: expected an integer, got '${params.s}', which is a text; ",
        ),
        (
            f'{READER}, idempotent: "${{params.s}}"',
            "steps.a.idempotent: expected true or false, got '${params.s}', which is a text; ",
        ),
        (
            'component: files.reader, config: {path: "../${params.s}"}',
            "steps.a.config.path: expected a path under the project's root, got '../${params.s}'; ",
        ),
        (
            'component: http.caller, config: {url: "https://example.com/${params.s}", headers: "${params.n}"}',
            "steps.a.config.headers: expected a mapping, got '${params.n}', which is an integer of at least 1; ",
        ),
        (
            'component: own.coded, config: {code: "${params.s}", amount: "${params.s}"}',
            "steps.a.config.amount: expected an integer, got '${params.s}', which is a text; ",
        ),
        (
            'component: own.coded, config: {code: "${params.l}"}',
            "steps.a.config.code: expected a text, got '${params.l}', which is a list; ",
        ),
    ],
)  # fmt: skip
def test_what_no_value_makes_right_is_a_mistake(step, expected):
    """R43: with the type, the range and the choices that the file declares (S0-29)."""
    (line,) = told(step)
    assert line.startswith(expected)
    assert told(step, every_profile=True) == [line]


@pytest.mark.parametrize(
    "step",
    [
        f'{READER}, retry: {{max_attempts: "${{params.n}}", backoff: "${{params.kind}}"}}',
        f'{READER}, retry: {{max_attempts: 3, backoff: "${{params.s}}", jitter: "${{params.s}}"}}',
        f'{READER}, retry: {{preset: "${{params.s}}"}}',
        f'{READER}, retry: {{max_attempts: 3, backoff: "${{params.kind}}", initial_delay_ms: "${{params.n}}", max_delay_ms: "${{params.n}}"}}',
        f'{READER}, timeout: {{step: "${{params.s}}", total_ms: "${{params.n}}"}}',
        f'{READER}, limit: {{name: "${{params.s}}", concurrency: "${{params.n}}"}}',
        f'{READER}, idempotent: "${{params.b}}", dead_letter: "${{params.b}}"',
        'component: files.reader, config: {path: "${params.s}", format: "${params.s}", encoding: "${params.s}", delimiter: "${params.s}"}',
        'component: http.caller, config: {url: "${params.s}", method: "${params.s}", headers: "${params.o}"}',
        'component: http.caller, config: {url: "https://example.com/${params.s}/", headers: {X-Day: "${params.s}"}, json: "${params.l}", method: POST}',
        'component: http.caller, config: {url: "https://example.com/", headers: {Authorization: "Bearer ${params.token}"}}',
        'component: postgres.extractor, config: {connection: "${params.s}", query: "select 1 where 1 = %(n)s", parameters: {n: "${params.n}"}}',
        'component: postgres.writer, config: {connection: "@postgres.main", rows: "${params.l}", table: "${params.s}"}',
        'component: python, config: {call: "a:b", args: {n: "${params.none}", l: ["${params.l}"], x: "${params.x}"}}',
        'component: own.coded, config: {code: "${params.code}", amount: "${params.n}"}',
        'component: python, config: {call: "a:b"}, for_each: {items: "${params.l}", concurrency: "${params.n}"}',
    ],
)  # fmt: skip
def test_what_some_value_makes_right_is_none(step):
    """Also where a component of one's own takes texts that nobody guesses (S0-29)."""
    assert told(step) == []


def test_every_mistake_is_told_at_once():
    """Those that stand in the file, and those that no value makes right (S0-29)."""
    step = (
        'component: files.reader, config: {path: "../${params.s}", nope: 1}, retry: {max_attempts: "${params.none}"}, '
        'timeout: {step_ms: "${params.b}"}'
    )
    assert [one.partition(":")[0] for one in told(step)] == [
        "steps.a.config.path",
        "steps.a.config.nope",
        "steps.a.retry.max_attempts",
        "steps.a.timeout.step_ms",
    ]


def test_a_file_that_is_right_is_compiled_only_a_few_times_more(monkeypatch):
    """A mistake of one value that another does not have ends the look."""
    times = []
    compiled = compiling._Compiling._compiled

    def counted(self, *rest, **options):
        times.append(self.params)
        return compiled(self, *rest, **options)

    monkeypatch.setattr(compiling._Compiling, "_compiled", counted)
    assert told(f'{READER}, retry: {{max_attempts: "${{params.n}}"}}') == []
    assert len(times) <= 3


def test_of_a_long_file_only_the_steps_with_mistakes_are_looked_at_again(monkeypatch):
    """The time that checking takes grows with the file, also if its parameters are open."""
    steps = []
    read = compiling.reading.read

    def counted(root, *rest, **options):
        steps.append(len(root.get("steps").items))
        return read(root, *rest, **options)

    monkeypatch.setattr(compiling.reading, "read", counted)
    lines = "".join(f'  - {{id: s{n}, {READER}, retry: {{max_attempts: "${{params.n}}"}}}}\n' for n in range(300))
    wrong = f'  - {{id: wrong, {READER}, retry: {{max_attempts: "${{params.s}}"}}}}\n'
    found = compile_text(f"{HEAD}steps:\n{lines}{wrong}", "p.yaml", complete=False, find=find).errors
    assert [one.path for one in found] == [("steps", "wrong", "retry", "max_attempts")]
    assert steps[:2] == [301, 301]
    assert set(steps[2:]) == {1}


def test_what_is_not_found_out_in_time_is_not_told(monkeypatch):
    """A file with very many open parameters is read a bounded number of times; what follows from types is told all the same."""
    settled = samples.settled
    monkeypatch.setattr(samples, "settled", lambda model, found, compiled, _: settled(model, found, compiled, 10))
    assert len(told(f'{READER}, retry: {{max_attempts: "${{params.s}}"}}')) == 1
    assert len(told(f'{READER}, retry: {{max_attempts: "${{params.none}}"}}')) == 1
    assert told(f'{READER}, retry: {{max_attempts: 3, backoff: "${{params.other}}"}}') == []
    assert told(f'{READER}, retry: {{initial_delay_ms: "${{params.n}}", max_delay_ms: 500}}') == []


# What was once told as wrong, with values that compile: (declarations, step, values).
COMPILES = [
    ("a: {type: integer}", f'{READER}, retry: {{max_delay_ms: 500, initial_delay_ms: "${{params.a}}"}}', {"a": 5}),
    ("a: {type: string}", f'{READER}, retry: {{max_delay_ms: 500, initial_delay: "${{params.a}}"}}', {"a": "200ms"}),
    ("a: {type: integer}", f'{READER}, retry: {{max_delay_ms: 200, base_delay_ms: "${{params.a}}"}}', {"a": 100}),
    ("a: {type: integer}", f'{READER}, circuit_breaker: {{failure_rate: 0.5, window: 7, min_calls: "${{params.a}}"}}', {"a": 6}),
    ("a: {type: integer}", f'{READER}, circuit_breaker: {{failure_rate: 0.5, window: "${{params.a}}", min_calls: 200}}', {"a": 300}),
    ("a: {type: number}", f'{READER}, circuit_breaker: {{failure_rate: "${{params.a}}", window: 50}}', {"a": 0.5}),
    ("a: {type: boolean}", f'{READER}, retry: {{max_attempts: 1}}, retry_budget: {{name: n, shared: "${{params.a}}"}}', {"a": True}),
    ("a: {type: string}", f'{READER}, limit: {{rates: {{calls: {{amount: 5, per: "${{params.a}}"}}}}, adaptive: false, name: n}}', {"a": "5m"}),
    ("a: {type: string}", f'{READER}, circuit_breaker: {{on_open: "${{params.a}}"}}', {"a": "wait"}),
    ("a: {type: string}", f'{READER}, retry: {{unclear: "${{params.a}}"}}', {"a": "retry"}),
    ("a: {type: string}", f'{READER}, retry: {{retriable_errors: "${{params.a}}"}}', {"a": "all"}),
    ("a: {type: string}", f'{READER}, retry: {{backoff: "${{params.a}}", delays_ms: [1, 2]}}', {"a": "schedule"}),
    ("a: {type: string}", f'{READER}, retry: {{jitter: "f${{params.a}}"}}', {"a": "ull"}),
    ("a: {type: object}", f'{READER}, retry: {{jitter: "${{params.a}}"}}', {"a": {"add_ms": 5}}),
    ("a: {type: integer}", f'{READER}, retry: {{max_attempts: "${{params.a}}", max_retries: 7}}', {"a": 8}),
    ("a: {type: string, min: 5}", f'{READER}, timeout: {{step: "${{params.a}}"}}', {"a": "500ms"}),
    ("a: {type: object}", 'component: postgres.extractor, config: {connection: "@postgres.a", query: "select 1 where a = %(day)s", parameters: "${params.a}"}', {"a": {"day": 1}}),
    ("a: {type: list}", 'component: postgres.extractor, config: {connection: "@postgres.a", query: "select %s,%s,%s,%s,%s", parameters: "${params.a}"}', {"a": [1, 2, 3, 4, 5]}),
    ("a: {type: integer}", 'component: files.reader, config: {path: in/a.csv, encoding: "cp${params.a}"}', {"a": 1252}),
    ("a: {type: string, max: 3}", 'component: files.reader, config: {path: "in/day.${params.a}"}', {"a": "csv"}),
    (
        "a: {type: string, enum: [x, y]}\n  z: {type: boolean}\n  b: {type: string, enum: [x, y]}",
        'component: postgres.writer, config: {connection: "@postgres.a", rows: [], table: t, mode: upsert, key: ["${params.a}", "${params.b}"]}',
        {"a": "x", "b": "y", "z": True},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "step", "values"), COMPILES)
def test_what_compiles_with_some_value_is_valid_before_it_has_one(declared, step, values):
    """Neither what is missing is taken for its default, nor what was tried for all that there is (S0-29)."""
    text = f'oml_version: "0.1.0"\nname: p\nparams:\n  {declared}\nsteps:\n  - {{id: a, {step}}}\n'
    assert compile_text(text, "p.yaml", params=values, find=find).errors == ()
    assert compile_text(text, "p.yaml", complete=False, find=find).errors == ()


def test_what_a_profile_leaves_open_is_looked_at_as_well():
    """C-26: with the values that the profile gives, and whatever the others may be (S0-29)."""
    text = (
        'oml_version: "0.1.0"\nname: p\nparams:\n  a: {type: integer}\n  b: {type: integer, default: 500}\n'
        "profiles: {slow: {params: {b: 900}}, none: {params: {b: -1}}}\n"
        f'steps:\n  - {{id: a, {READER}, retry: {{initial_delay_ms: "${{params.a}}", max_delay_ms: "${{params.b}}"}}}}\n'
    )
    found = compile_text(text, "p.yaml", complete=False, every_profile=True).errors
    assert [one.path for one in found] == [("profiles", "none", "params", "b")]


def test_parts_that_steps_share_are_compared_once_their_parameters_have_values():
    """A limit of two steps may be the same, with a value that nobody has tried (S0-29)."""
    steps = "".join(
        f"  - {{id: {name}, {READER}, limit: {{name: n, concurrency: {value}}}}}\n"
        for name, value in (("a", 7), ("b", '"${params.a}"'))
    )
    text = f'oml_version: "0.1.0"\nname: p\nparams:\n  a: {{type: integer}}\nsteps:\n{steps}'
    assert compile_text(text, "p.yaml", complete=False).errors == ()
    assert compile_text(text, "p.yaml", params={"a": 7}).errors == ()
    assert len(compile_text(text, "p.yaml", params={"a": 8}).errors) == 1


@pytest.mark.parametrize(
    ("step", "code", "value"),
    [
        ('component: http.caller, config: {url: "https://example.com/"}, timeout: {step_ms: "${params.a}"}', "R36", 500),
        (f'{READER}, retry: {{max_attempts: 9}}, timeout: {{step_ms: 100, total_ms: "${{params.a}}"}}', "R03", 10**6),
    ],
)  # fmt: skip
def test_what_a_value_may_mend_is_no_warning(step, code, value):
    """With --strict a file would be refused for a value that it has not got yet (S0-29)."""
    text = f'oml_version: "0.1.0"\nname: p\nparams:\n  a: {{type: integer}}\nsteps:\n  - {{id: a, {step}}}\n'
    codes = {one.code for one in compile_text(text, "p.yaml", complete=False, rules=(check,)).mistakes}
    given = {one.code for one in compile_text(text, "p.yaml", params={"a": value}, rules=(check,)).mistakes}
    assert code not in codes | given
    without = text.replace(', timeout: {step_ms: "${params.a}"}', "")
    assert code != "R36" or code in {
        one.code for one in compile_text(without, "p.yaml", complete=False, rules=(check,)).mistakes
    }


def test_what_no_value_mends_is_still_a_warning():
    """A warning that has nothing to do with what is open (S0-29)."""
    step = (
        'component: http.caller, config: {url: "https://example.com/${params.s}"}, retry: {max_attempts: "${params.n}"}'
    )
    text = f"{HEAD}steps:\n  - {{id: a, {step}}}\n"
    codes = {one.code for one in compile_text(text, "p.yaml", complete=False, rules=(check,)).mistakes}
    assert "R36" in codes


PARAMS = st.builds(
    Param,
    st.just("p"),
    st.sampled_from(["string", "integer", "number", "boolean", "list", "object"]),
    min=st.none() | st.integers(-5, 5).map(float),
    max=st.none() | st.integers(6, 400).map(float),
)


@given(PARAMS)
def test_a_sample_is_a_value_that_the_parameter_may_have(param):
    """So what is said of all samples may be said of the parameter (S0-29)."""
    found = of_param(param)
    assert found
    assert [value_for(param, one) for one in found] == list(found)


@given(
    st.sampled_from(["retry: {max_attempts: V}", "timeout: {step_ms: V}", "limit: {name: a, concurrency: V}", "idempotent: V"]),
    st.sampled_from(["${params.p}", "x${params.p}", "${params.p}0"]),
    st.sampled_from(["string", "integer", "number", "boolean", "list", "object"]),
    st.data(),
)  # fmt: skip
def test_what_is_told_holds_for_any_value(block, text, kind, data):
    """A mistake that is told of an open parameter is there with whatever is given (S0-29)."""
    file = f'oml_version: "0.1.0"\nname: p\nparams:\n  p: {{type: {kind}}}\nsteps:\n  - {{id: a, {READER}, {block}}}\n'
    file = file.replace("V", f'"{text}"')
    found = compile_text(file, "p.yaml", complete=False).errors
    values = {
        "string": st.text(alphabet="ab1 .%", max_size=5) | st.sampled_from(["5", "true", "1s"]),
        "integer": st.integers(-(10**6), 10**6),
        "number": st.floats(-1e6, 1e6, allow_nan=False),
        "boolean": st.booleans(),
        "list": st.lists(st.integers() | st.text("ab"), max_size=3),
        "object": st.dictionaries(st.text("ab", min_size=1), st.integers(), max_size=2),
    }
    with_value = compile_text(file, "p.yaml", params={"p": data.draw(values[kind])}).errors
    places = {(one.line, one.column) for one in with_value}
    assert {(one.line, one.column) for one in found} <= places


def test_the_guide_says_so():
    page = (Path(__file__).parents[2] / "docs/guides/checking.md").read_text()
    assert "What no value of its type, range or choices makes right is a mistake" in page
