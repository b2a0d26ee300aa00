"""Values of a pipeline file: what scalars mean, what references stand for, and where parameters have their values from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.spec import references, yaml
from outlast.spec.compile import compile_text
from outlast.spec.graph import Graph
from outlast.spec.references import Reference
from spec.trees import data_of
from tables import table

# --- scalars ---


@table(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ('""', ""), ("'~'", "~"),
        ("true", True), ("False", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ('"true"', "true"),
        ("3", 3), ("-3", -3), ("+3", 3), ("0", 0), ("0x1F", 31), ("3.5", 3.5), (".5", 0.5), ("3.", 3.0), ('"3"', "3"),
        ("2024-01-01", "2024-01-01"), ("12:30:45", "12:30:45"), ("017", "017"), ("1e3", "1e3"), ("1_000", "1_000"),
        ("a b", "a b"), ("|\n two\n lines\n", "two\nlines\n"), ("-", [None]),
    ],
)  # fmt: skip
def test_scalar_means_what_yaml_1_2_says(text, value):
    """Quoted is a text; a word or a number of YAML 1.1 only is one too."""
    assert data_of(yaml.read(f"a: {text}" if text != "-" else "a:\n-", "f").node)["a"] == value


def levels(count: int) -> str:
    return "[" * count + "]" * count


@table(
    ("text", "said"),
    [
        (levels(64), ""),
        (levels(65), "at most 64 levels"),
        (f"a: &a {levels(31)}\nb: [*a]", ""),
        (f"a: &a {levels(62)}\nb: [*a]", ""),
        (f"a: &a {levels(63)}\nb: [*a]", "at most 64 levels"),
        ("[" + "x," * 199_999 + "]", ""),
        ("[" + "x," * 200_000 + "]", "at most 200,000 values"),
        ("a: &a [" + "x," * 999 + "]\nb: [" + "*a," * 10 + "]", ""),
        ("a: &a [" + "x," * 999 + "]\nb: [" + "*a," * 11 + "]", "aliases that stand for at most 10,000"),
        ("a: " + "x" * 4_999_997, ""),
        ("a: " + "x" * 4_999_998, "at most 5,000,000 bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_limits_are_where_they_are_said_to_be(text, said):
    """The last that is allowed is read, the next is refused; aliases count as what they stand for, also in depth."""
    node, mistakes = yaml.read(text, "f.yaml")
    assert (node is None) == bool(said)
    assert [said in str(one) for one in mistakes] == ([True] if said else [])


def args(value: str, **options):
    """An argument of a step as the manifest has it; its line, if it is refused."""
    text = f"""\
oml_version: "0.1.0"
name: one
params:
  batch: {{type: string, default: b1}}
  count: {{type: integer, default: 3}}
  odd: {{type: string, default: "a $${{x}} b"}}
  list: {{type: list, default: [1, "$${{y}}"]}}
  token: {{type: string, sensitive: true}}
steps:
  - id: first
    component: files.reader
    config: {{path: in.csv}}
  - id: second
    component: python
    config: {{call: "a:b", args: {{key: {value}, n: 5, deep: {{x: 1}}}}}}
"""
    found = compile_text(text, "f.yaml", **options)
    if found.manifest is None:
        return [str(one).partition(": steps.second.config.args.")[2] for one in found.mistakes]
    return found.manifest["second"].config["args"]["key"]


# --- references ---


@table(
    ("text", "value"),
    [
        ('"${params.batch}"', "b1"),
        ('"${params.count}"', 3),
        ('"n=${params.count}"', "n=3"),
        ('"${params.batch}-${params.batch}"', "b1-b1"),
        ('"${call}"', "a:b"),
        ('"x ${call} y"', "x a:b y"),
        ('"${steps.first.outputs.rows}"', "${steps.first.outputs.rows}"),
        ('"${params.batch}/${steps.first.outputs.count}"', "b1/${steps.first.outputs.count}"),
        ('"$${params.batch}"', "$${params.batch}"),
        ('"${params.odd}"', "a $${x} b"),
        ('"<${params.odd}>"', "<a $${x} b>"),
        ('"${params.list}"', [1, "$${y}"]),
        ('"${params.token}"', "${params.token}"),
        ('"{0.__class__} %(x)s $x $(id) `id`"', "{0.__class__} %(x)s $x $(id) `id`"),
        ("[1, '${params.count}', {a: '${params.batch}'}]", [1, 3, {"a": "b1"}]),
    ],
)
def test_reference_stands_for_its_value(text, value):
    """S0-20, S0-17: parameters typed where they stand alone, as text inside of one; filled once, never read again; a secret by its name."""
    assert args(text) == value


@table(
    "text",
    ["${x.y.z}", "${params}", "${params.}", "${params.a.b}", "${steps.first}", "${steps.first.outputs}", "${steps.first.rows}", "${}", "${ x }",
     "${x[0]}", "${params.batch.upper()}", "${call.__class__}", "${steps.first.outputs.rows.__len__}", "${params.batch!r}", "${a", "${${call}}"],
)  # fmt: skip
def test_nothing_else_is_a_reference(text):
    """A look-up by name: no attribute, no index, no call, no nesting."""
    (line,) = args(f"'{text}'")
    assert "expected references that can be read" in line


@given(st.text(alphabet="${}ab.p", max_size=30) | st.text(max_size=60))
def test_any_text_is_read_or_refused_and_comes_back(text):
    """What is written of the parts of a text are the same parts again."""
    try:
        parts = references.parse(text)
    except references.Unreadable as refused:
        said = (refused.got, refused.way_out)
    else:
        said = ("read",)
        assert references.parse(references.written(parts)) == parts
    assert all(said)


def test_filled_values_are_bounded():
    """64 kB of text with references, and of what it comes to; the ends are inside."""
    long = "x" * (references.LONGEST - 4)
    assert references.parse(long + "${a}")[-1] == Reference("own", "a")
    with pytest.raises(references.Unreadable, match="65,537"):
        references.parse(long + "y${a}")
    with pytest.raises(references.Unreadable):
        references.filled(references.parse("${a}${a}"), lambda _: "x" * 40_000)


def test_an_output_of_python_may_have_any_name():
    """What is open is believed; what is declared is checked."""
    text = """\
oml_version: "0.1.0"
name: one
steps:
  - {id: a, component: python, config: {call: "a:b"}}
  - {id: b, component: python, config: {call: "a:b", args: {x: "${steps.a.outputs.anything}"}}}
"""
    assert compile_text(text).mistakes == ()
    (mistake,) = compile_text(
        text.replace('component: python, config: {call: "a:b"}}', "component: files.reader, config: {path: x.csv}}", 1)
    ).mistakes
    assert "expected an output that a has" in str(mistake)


# --- parameters ---

PARAMS = """\
oml_version: "0.1.0"
name: one
params:
  day: {type: string, default: monday, enum: [monday, friday, sunday, tuesday]}
  count: {type: integer, min: 1, max: 10, default: 3}
  rate: {type: number, default: 0.5}
  on-time: {type: boolean, default: true}
  tags: {type: list, default: []}
profiles:
  prod: {params: {day: friday, count: 5}}
steps:
  - {id: a, component: python, config: {call: "a:b"}}
"""


@table(
    ("given", "environment", "profile", "day"),
    [
        ({}, {}, None, "monday"),
        ({}, {}, "prod", "friday"),
        ({}, {"OUTLAST_PARAM_DAY": "sunday"}, "prod", "sunday"),
        ({"day": "tuesday"}, {"OUTLAST_PARAM_DAY": "sunday"}, "prod", "tuesday"),
        ({"day": "tuesday"}, {}, None, "tuesday"),
        ({}, {"OUTLAST_PARAM_DAY": "sunday"}, None, "sunday"),
    ],
)
def test_precedence_of_parameters(given, environment, profile, day):
    """C-26: given by hand > environment > profile > default."""
    manifest = compile_text(PARAMS, params=given, environment=environment, profile=profile, from_shell=True).manifest
    assert manifest.params["day"] == day


@table(
    ("variable", "text", "name", "value"),
    [
        ("COUNT", "7", "count", 7),
        ("RATE", "2", "rate", 2.0),
        ("RATE", "1e-3", "rate", 0.001),
        ("ON_TIME", "false", "on-time", False),
        ("TAGS", '["a", 1]', "tags", ["a", 1]),
        ("DAY", "friday", "day", "friday"),
    ],
)
def test_text_of_the_environment_is_read_as_its_type(variable, text, name, value):
    """Where all is text, the declaration says what is meant."""
    manifest = compile_text(PARAMS, environment={f"OUTLAST_PARAM_{variable}": text}).manifest
    assert manifest.params[name] == value
    assert isinstance(manifest.params[name], type(value))
    assert isinstance(value, bool) == isinstance(manifest.params[name], bool)


@table(
    ("name", "value", "said"),
    [
        ("count", 0, "expected an integer of at least 1, got a value that is not shown"),
        ("count", 11, "expected an integer of at most 10, got a value that is not shown"),
        ("count", "many", "expected an integer, got a value that is not shown"),
        ("count", True, "expected an integer, got a value that is not shown"),
        ("rate", float("nan"), "expected a number, got a value that is not shown"),
        ("day", "someday", "expected one of 'monday', 'friday', 'sunday', 'tuesday', got a value that is not shown"),
        ("on-time", "yes", "expected true or false, got a value that is not shown"),
        ("tags", {"a": 1}, "expected a list, got a value that is not shown"),
        ("tags", [object()], "expected a list, got a value that is not shown"),
        ("tags", "a, b", "expected a list as JSON, got a value that is not shown; write it as [1, 2]"),
        ("dya", "monday", "expected a parameter that the file declares, got 'dya'"),
    ],
)
def test_a_value_that_does_not_fit_is_told_at_its_parameter(name, value, said):
    """With what fits, and never the value; lists and objects from a shell are JSON."""
    (line,) = map(str, compile_text(PARAMS, "f.yaml", params={name: value}, from_shell=True).mistakes)
    assert said in line


def test_an_unknown_profile_is_told():
    """With the nearest right name."""
    (line,) = map(str, compile_text(PARAMS, "f.yaml", profile="prd").mistakes)
    assert line == "f.yaml:10:3: profiles: expected the profile that was chosen, got 'prd'; did you mean 'prod'?"


def test_a_file_can_be_looked_at_without_its_parameters():
    """With `complete=False` what nobody has given yet stays a reference."""
    text = PARAMS.replace("{type: string, default: monday, enum: [monday, friday, sunday, tuesday]}", "{type: string}")
    text = text.replace('"a:b"', '"a:b", args: {day: "${params.day}"}')
    assert "expected a value, got none" in str(compile_text(text).mistakes[0])
    manifest = compile_text(text, complete=False).manifest
    assert (manifest["a"].config["args"], manifest.open_params) == ({"day": "${params.day}"}, ("day",))


SECRET = "S3cr3t-canary-value"


@table("sensitive", [SECRET, 5, None])
def test_a_secret_is_nowhere(sensitive):
    """Given by hand, by the environment or in the file, right or wrong: no line and no manifest has it (S0-42)."""
    declared = "{type: string, sensitive: true, max: 3}"
    text = PARAMS.replace("  tags:", f"  token: {declared}\n  tags:").replace(
        '"a:b"', '"a:b", args: {t: "${params.token}"}'
    )
    for found in (
        compile_text(text, params={"token": sensitive}),
        compile_text(text, environment={"OUTLAST_PARAM_TOKEN": SECRET}),
        compile_text(text.replace(declared, f"{{type: string, sensitive: true, default: {SECRET}}}")),
        compile_text(text.replace("count: 5", f"token: {SECRET}"), profile="prod"),
        compile_text(text.replace('{t: "${params.token}"}', f"{{password: {SECRET}}}")),
        compile_text(text.replace("name: one", f"name: one\nmetadata: {{api_key: {SECRET}}}")),
    ):
        assert found.manifest is None
        assert found.mistakes
        assert SECRET not in "".join(map(str, found.mistakes))
    right = compile_text(text.replace(", max: 3", ""), params={"token": SECRET}).manifest
    assert SECRET not in right.to_json()
    assert (
        right.fingerprint == compile_text(text.replace(", max: 3", ""), params={"token": "other"}).manifest.fingerprint
    )


# --- order ---


@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4), max_size=12))
def test_order_and_ancestors(needs):
    """Every step comes after what it needs; ancestors are those of its needs; what is in no order is in or behind a cycle."""
    graph = Graph({str(step): [str(one) for one in before] for step, before in needs.items()})
    place = {step: number for number, step in enumerate(graph.order)}
    above: dict[str, set[str]] = {}
    for step in graph.order:
        assert all(place[one] < place[step] for one in graph.needs[step])
        above[step] = {one for need in graph.needs[step] for one in (need, *above[need])}
        assert {one for one in graph.needs if graph.is_before(one, step)} == above[step]
    assert bool(graph.cycles) == (len(graph.order) < len(needs))
    for cycle in graph.cycles:
        assert all(after in graph.needs[before] for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


@table("kind", ["", "null", "'${params.other}'", "[integer]"])
def test_value_for_a_parameter_without_a_type_is_not_thrown_away(kind):
    """C-26: that the type is missing is told; the file does not compile as if nothing had been given."""
    text = f"""oml_version: "0.1.0"
name: movies
params: {{n: {{type: {kind}, default: 5, min: 3}}, other: {{type: string, default: integer}}}}
steps:
- {{id: a, component: python, config: {{call: "m:f"}}, retry: {{max_attempts: "${{params.n}}"}}}}
"""
    for by_hand in ({}, {"n": 7}, {"n": -1_000_000}):
        for complete in (True, False):
            found = compile_text(text, params=by_hand, complete=complete)
            assert found.manifest is None
            assert [one.path for one in found.mistakes] == [("params", "n", "type")]


def test_a_time_that_does_not_fit_is_shown_as_it_was_written():
    """C-24: 0s is not 0.0."""
    step = '  - {id: a, component: python, config: {call: "a:b"}, timeout: {step: 0s, total_ms: 0}}\n'
    lines = [str(one) for one in compile_text(f'oml_version: "0.1.0"\nname: p\nsteps:\n{step}').errors]
    assert [line.partition(" got ")[2].partition(";")[0] for line in lines] == ["'0s'", "0"]


def test_where_a_secret_among_parameters_comes_from_is_told_in_words():
    """C-26: by its variable; what was given by hand needs no such word (S0-42)."""
    text = 'oml_version: "0.1.0"\nname: p\nparams: {x: {type: string}}\nsteps:\n  - {id: a, component: python, config: {call: "a:b"}}\n'
    secret = "postgresql://bob:hunter2PLANT@h/x"
    (by_hand,) = compile_text(text, params={"x": secret}).errors
    (by_variable,) = compile_text(text, environment={"OUTLAST_PARAM_X": secret}).errors
    assert (by_hand.got, by_variable.got) == (
        "a value that is not shown",
        "a value that is not shown, from OUTLAST_PARAM_X",
    )
