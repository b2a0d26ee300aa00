"""Files, components and commands that nobody means well with: no traceback, no hang, and nothing larger than a file may be."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, field_validator
from typer.testing import CliRunner

from outlast import errors
from outlast.cli import app
from outlast.components import registry
from outlast.components.describing import Component
from outlast.components.registry import find_component
from outlast.components.steps.config import Config
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import mask
from outlast.spec import compile as compiling
from outlast.spec import rules, yaml
from outlast.spec.compile import compile_text
from outlast.spec.connections import read
from outlast.spec.mistakes import Mistake, in_order
from outlast.spec.references import joined
from outlast.spec.rules import Look, check
from spec.test_components import package
from tables import table

HEAD = 'oml_version: "0.1.0"\nname: movies\n'
STEP = '- id: a\n  component: python\n  config: {call: "m:f"}\n'
LONG = 200  # seconds: only tells a hang


def told(text: str, **options) -> list[str]:
    """What compiling says; a file that compiles also has a manifest that can be written."""
    compiled = compile_text(text, "f.yaml", rules=(check,), **options)
    if compiled.manifest is not None:
        json.loads(compiled.manifest.to_json())
    return [str(one) for one in compiled.errors]


def step(config: str, more: str = "", head: str = "") -> str:
    return f'{HEAD}{head}steps:\n- id: a\n  component: python\n  config: {{call: "m:f", args: {config}}}\n{more}'


def seconds(text: str, **options) -> float:
    """Processor time that compiling takes."""
    began = time.process_time()
    compile_text(text, "f.yaml", rules=(check,), **options)
    return time.process_time() - began


# --- no traceback ---


@table("number", [".inf", "-.inf", ".nan", "9" * 390, "9" * 390 + ".0"])
def test_number_without_an_end_in_a_block_is_a_mistake(number):
    """C-01: wherever in a block it stands."""
    blocks = [
        "retry: {max_attempts: 3, initial_delay_ms: NUMBER}",
        "retry: {max_attempts: NUMBER}",
        "retry: {delays_ms: [1, NUMBER]}",
        "retry: {jitter: {add_ms: NUMBER}}",
        "retry: {nonsense: {x: [NUMBER]}}",
        "timeout: {step_ms: NUMBER}",
        "circuit_breaker: {failure_threshold: NUMBER}",
        "limit: {concurrency: NUMBER}",
        "limit: {rates: {a: {amount: NUMBER, per_ms: 1}}}",
        "retry_budget: {reserve: NUMBER}",
        "retry_budget: {ratio: NUMBER}",
        "idempotency: {key: k, cache_ttl_ms: NUMBER}",
    ]
    for block in blocks:
        found = told(f"{HEAD}steps:\n{STEP}  {block.replace('NUMBER', number)}\n")
        assert any("expected a finite number" in line for line in found), (block, found)


def test_a_thousand_private_keys_are_masked():
    """U-24: one after the other, however many; what stands between them stays."""
    key = "-----BEGIN PRIVATE KEY-----a-----END PRIVATE KEY-----"
    assert mask(f"{key} and " * 3_000) == "*** and " * 3_000
    assert mask(f"x {key} y -----BEGIN PRIVATE KEY-----abc") == "x *** y ***"
    (found,) = told(step(f'{{x: "{key * 1_200}"}}'))
    assert "expected no secret in a pipeline file" in found
    assert len(read(f'connections: {{postgres: {{a: {{host: "{key * 1_200}"}}}}}}').mistakes) > 0


class Raising(Config):
    a: str = "x"

    @field_validator("a")
    @classmethod
    def _check(cls, value: str) -> str:
        raise RuntimeError(f"boom, password={value}")


def test_check_of_a_component_that_raises_is_a_mistake_of_its_config():
    """C-01: it names the component, and shows no secret."""
    component = Component("shop.raising", "Raises.", Raising)
    text = f"{HEAD}steps:\n- id: a\n  component: shop.raising\n  config: {{a: hunter2}}\n"
    (found,) = told(text, find=lambda _: component)
    assert "expected a config that can be checked, got RuntimeError in a check of shop.raising: boom" in found
    assert "hunter2" not in found


class Endless(Config):
    a: float = math.inf


class Factory(Config):
    a: int = Field(default_factory=lambda: 1 // 0)


class Planted(Config):
    phrase: str = "planted"


class Inner(Config):
    dsn: str = "postgresql://ann:planted9X@db/shop"


class Holding(Config):
    api_key: str = "planted"
    port: int = 5432
    key: list[str] = Field(default_factory=lambda: ["id"])
    inside: list[Inner] | None = None
    pools: dict[str, str] = Field(default_factory=lambda: {"password": "planted"})
    token: int = 4711
    empty_secret: str = ""


class Told(Config):
    code: str = Field("x", description="as in password: planted9X", examples=["postgresql://ann:planted9X@db/shop"])
    token: str | None = Field(None, examples=["planted9X"])
    title: str = Field("a", examples=["b"])


def test_secrets_among_the_defaults_of_a_component_are_refused():
    """U-24: by the component and the key, at every level; they would be in every manifest and in the schema."""
    with pytest.raises(ConfigurationError) as refused:
        Component("shop.bad", "Is bad.", Holding)
    said = [line.partition(" has no default")[0].rpartition("which ")[2] for line in refused.value.problems]
    assert said == [f"{key} of shop.bad" for key in ("api_key", "pools.password", "token", "dsn")]
    assert "planted" not in str(refused.value)


def test_secrets_among_what_a_component_says_are_not_in_its_schema():
    """U-24: examples and sentences; what is no secret stays."""
    found = Component("shop.told", "Is told.", Told).schema()
    assert "planted" not in json.dumps(found)
    assert found["properties"]["title"]["examples"] == ["b"]


class Late(Config):
    api_key: str | None = None


def test_secrets_among_defaults_that_come_late_are_mistakes_of_the_file(monkeypatch):
    """U-24: what is filled in is looked at as what is written."""
    component = Component("shop.late", "Is late.", Late)
    monkeypatch.setitem(component._defaults.usual, "api_key", "planted")
    undo = "  compensate: {component: shop.late}\n"
    for config in ("", "  config: {}\n"):
        text = f"{HEAD}steps:\n- id: a\n  component: shop.late\n{config}{undo}"
        found = told(text, find=lambda _: component)
        assert ["steps.a.config.api_key: " in found[0], "steps.a.compensate.config.api_key: " in found[1]] == [True] * 2
        assert "planted" not in "".join(found)


@table(
    ("model", "said"),
    [
        (Endless, "One raised ValueError"),
        (Factory, "One raised ZeroDivisionError"),
        (Planted, "expected secrets to be phrase without a default"),
    ],
)
def test_component_whose_defaults_cannot_be_in_a_manifest_is_refused(model, said):
    """C-01, U-24: when it is described, and not when somebody compiles a file."""
    secrets = ("phrase",) if model is Planted else ()
    with pytest.raises(ConfigurationError) as refused:
        Component("shop.bad", "Is bad.", model, secrets=secrets)
    assert said in str(refused.value)
    assert "planted" not in str(refused.value)


@table(
    ("code", "said"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Odd(BaseException): pass\nraise Odd('password=hunter2')", "Odd: password=***"),
    ],
)
def test_package_that_exits_when_it_is_loaded_ends_no_command(code, said, tmp_path_factory, monkeypatch):
    """C-01: its name is told; a file with mistakes is not taken for a right one."""
    folder = tmp_path_factory.mktemp("packages")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.delitem(sys.modules, "exiting_code", raising=False)
        patched.setattr(registry, "_components", {})
        package(folder, "exiting", {"evil.exit": "exiting_code:X"}, code)
        (found,) = told(f"{HEAD}steps:\n- id: a\n  component: evil.exit\n", find=find_component)
        assert f"of exiting) cannot be loaded: {said}" in found
        assert len(read("connections: {nowhere: {a: {host: x}}}").mistakes) == 1  # which loads all of them
        listed = CliRunner().invoke(app, ["components", "list"])
        assert listed.exit_code == 0
        assert "evil.exit" in listed.output
        schema = CliRunner().invoke(app, ["schema"])
        assert schema.exit_code == 0
        assert "files.reader" in schema.output


def test_ctrl_c_while_a_package_is_loaded_is_no_mistake(tmp_path, monkeypatch):
    """Whoever waits for it may end it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package(tmp_path, "slowly", {"evil.slow": "slowly_code:X"}, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        find_component("evil.slow")


def nested(levels: int) -> list:
    found: list = []
    for _ in range(levels - 1):
        found = [found]
    return found


@table("levels", [64, 65, 330, 400, 900, 3_000, 100_000])
def test_parameter_has_no_more_levels_than_a_file(levels):
    """D-19: by hand, from a shell and from the environment; also where values are put one into the other."""
    deep = f'{"[" * 58}"${{NAME}}"{"]" * 58}'
    inside, args = deep.replace("NAME", "params.p"), deep.replace("NAME", "args")
    undo = f'  compensate: {{component: python, config: {{call: "m:f", args: {{x: {args}}}}}}}\n'
    text = step(f"{{x: {inside}}}", f"  inputs: {{y: {args}}}\n{undo}", "params: {p: {type: list}}\n")
    as_json = "[" * levels + "]" * levels
    ways = [
        {"params": {"p": nested(levels)}},
        {"params": {"p": as_json}, "from_shell": True},
        {"environment": {"OUTLAST_PARAM_P": as_json}},
    ]
    for way in ways:
        found = told(text, **way)
        assert len(found) == (0 if levels <= 64 else 1)
        assert all("params.p: expected at most 64 levels of lists and mappings, got more" in line for line in found)


def test_parameter_that_holds_itself_is_refused():
    """C-01: or one list again and again, which no text could hold."""
    endless: list = [1]
    endless.append(endless)
    shared: list = [1]
    for _ in range(60):
        shared = [shared, shared]
    tuples: tuple = ()
    for _ in range(5_000):
        tuples = (tuples,)
    text = step('{x: "${params.p}"}', head="params: {p: {type: list}}\n")
    said = {"levels": endless, "65,536 characters": shared, "a list": [tuples], "characters": ["x" * 70_000]}
    for word, value in said.items():
        (found,) = told(text, params={"p": value})
        assert word in found


# --- no hang ---


def wrong_needs(number: int) -> str:
    return f"{HEAD}steps:\n" + "".join(
        f'- {{id: step-number-{n}, component: python, config: {{call: "m:f"}}, needs: [stap-number-{n}]}}\n'
        for n in range(number)
    )


SLOW = {
    "digits and underscores": step(f"{{x: 1{'_' * 100_000}x}}"),
    "wrong needs": wrong_needs(1_000),
    "wrong outputs": f"{HEAD}steps:\n"
    + "".join(
        f'- {{id: s-{n}, component: python, config: {{call: "m:f", args: {{x: "${{steps.zs-{n}.outputs.x}}"}}}}}}\n'
        for n in range(1_000)
    ),
    "names that are long and alike": f"{HEAD}steps:\n"
    + "".join(
        f'- {{id: {"a" * 90}{n}, component: python, config: {{call: "m:f"}}, needs: [{"a" * 92}b{n}]}}\n'
        for n in range(1_000)
    ),
    "wrong own references": step("{" + ", ".join(f'k{n}: "${{argz{n}}}"' for n in range(2_000)) + "}"),
    "many needs": f"{HEAD}steps:\n{STEP}  needs: [{','.join(f'n{n}' for n in range(60_000))}]\n",
    "profiles and an enum": f"{HEAD}params: {{p: {{type: string, enum: [{','.join(f'value{n}' for n in range(1_000))}]}}}}\nprofiles:\n"
    + "".join(f"  p{n}: {{params: {{p: valye{n}}}}}\n" for n in range(1_000))
    + f"steps:\n{STEP}",
    "a long enum": f"{HEAD}params: {{p: {{type: string, enum: [{','.join(f'v{n}' for n in range(50_000))}]}}}}\nprofiles:\n"
    + "".join(f"  p{n}: {{params: {{p: w{n}}}}}\n" for n in range(10_000))
    + f"steps:\n{STEP}",
    "unknown keys of configs": f"{HEAD}steps:\n"
    + "".join(
        f"- {{id: s{n}, component: files.reader, config: {{{', '.join(f'paht{m}: 1' for m in range(60))}}}}}\n"
        for n in range(400)
    ),
    "a list in many places": step(
        "{x: [" + ",".join(['"${params.p}"'] * 20_000) + "]}",
        head=f"params: {{p: {{type: list, default: [{','.join(['1'] * 21_000)}]}}}}\n",
    ),
    "a text again and again": step(
        f'{{x: "{"${params.p}" * 5_900}"}}', head=f"params: {{p: {{type: string, default: {'y' * 65_000}}}}}\n"
    ),
    "own values again and again": step(f"{{x: {'y' * 100_000}}}", f'  inputs: {{t: "{"${args}" * 9_000}"}}\n'),
}  # fmt: skip


@table("name", SLOW)
def test_files_with_a_thousand_mistakes_are_answered_at_once(name):
    """D-19: names are compared for the first mistakes only, and no list is gone through again for each of its entries."""
    assert seconds(SLOW[name]) < 20  # a busy machine; without bounds it is minutes


QUERIES = {
    "comments that begin": "/* " * 33_000,
    "texts between dollars that begin": " ".join(f"$t{n}$" for n in range(13_000)),
    "backslashes and quotes": "\\\\'" * 33_000,
    "comments in comments": "/*" * 24_000 + "*/" * 24_000,
    "quotes": "'" * 99_000,
    "dollars": "$" * 99_000,
}


@table("name", QUERIES)
def test_queries_are_read_once(name):
    """D-19: what has begun is looked for to its end once, and what does not end is refused where it begins."""
    config = f'config: {{connection: "@postgres.a", query: "select {QUERIES[name]}"}}'
    steps = "".join(f"- id: s{n}\n  component: postgres.extractor\n  {config}\n" for n in range(15))
    assert seconds(f"{HEAD}steps:\n{steps}") < 20  # a busy machine; each of them was some ten seconds


def test_texts_with_signs_for_themselves_are_put_together_once():
    """D-19: in a file and in connections, whose texts are no longer than those of files."""
    began = time.process_time()
    assert joined(["$", "{"] * 2_000_000 + [1, "", "a"]) == ("${" * 2_000_000, 1, "a")
    assert time.process_time() - began < 20  # each was copied for each that follows
    text = 'connections: {http: {a: {base_url: "https://x.example/TEXT"}}}'
    (found,) = read(text.replace("TEXT", "$${" * 1_000_000)).mistakes
    assert "expected a text with variables of at most 65,536 characters, got 3,000,018" in str(found)
    assert read(text.replace("TEXT", "$${" * 20_000)).mistakes == ()


def work(text: str, **options) -> int:
    """How many functions are called while a file is compiled: the same on every machine, however busy it is."""
    count = 0

    def called(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        compile_text(text, "f.yaml", rules=(check,), **options)
    finally:
        sys.setprofile(before)
    return count


def listing(on: list[str], skip: list[str]) -> str:
    block = f"retry: {{max_attempts: 3, on_errors: [{', '.join(on)}], skip_on_errors: [{', '.join(skip)}]}}"
    return f"{HEAD}steps:\n{STEP}  {block}\n"


LISTS = {
    "names in one and other names in the other": lambda n: listing(
        [f"a.B{m}" for m in range(n)], [f"c.D{m}" for m in range(n)]
    ),
    "the same names in both": lambda n: listing(*[[f"a.B{m}" for m in range(n)]] * 2),
    "one word again and again": lambda n: listing(["timeout"] * n, ["a.B"] * n),
    "every builtin and every status": lambda n: listing(
        [str(400 + m % 200) for m in range(n)], [("OSError", "KeyError", "eio")[m % 3] for m in range(n)]
    ),
    "names that nobody knows": lambda n: listing([f"Foo{m}" for m in range(n)], [f"efoo{m}" for m in range(n)]),
}


@table("name", LISTS)
def test_lists_of_errors_take_time_as_they_are_long(name):
    """D-19: twice as many names are twice the work, and not four times."""
    once, twice = (work(LISTS[name](number)) for number in (200, 400))
    assert twice < 2.6 * once


def test_unknown_connections_are_answered_at_once():
    """D-19: three thousand steps, fifteen hundred aliases."""
    aliases = read(
        "connections: {postgres: {" + ", ".join(f"alias-{n}: {{host: h, database: d}}" for n in range(1_500)) + "}}"
    )
    text = f"{HEAD}steps:\n" + "".join(
        f'- {{id: s{n}, component: postgres.extractor, config: {{connection: "@postgres.elias-{n}", query: q}}}}\n'
        for n in range(3_000)
    )
    assert seconds(text, connections=aliases) < 20


def test_first_mistakes_have_suggestions_in_the_largest_file():
    """C-01: the bound is for the work, not for the first of those who need help."""
    found = told(wrong_needs(300))
    assert "did you mean 'step-number-0'?" in found[0]
    assert "name a step of this file" in found[-1]


def test_suggestions_are_not_bounded_elsewhere():
    """The bound ends with the file."""
    with errors.FewSuggestions():
        nearest("t" * 100, [f"x{n}" for n in range(1_000)])
        nearest("t" * 20, [f"x{n}" for n in range(1_000)])
        nearest("t", [f"x{n}" for n in range(1_000)])
        assert nearest("timeot", ["timeout"]) == ""
    assert nearest("timeot", ["timeout"]) == " Did you mean 'timeout'?"


@table(
    ("text", "said"),
    [
        (SLOW["a list in many places"], "at most 200,000 values and 5,000,000 characters once references are filled"),
        (SLOW["own values again and again"], "at most 200,000 values and 5,000,000 characters"),
        (step("{x: " + "y" * 2_000 + "}", f'  inputs: {{t: "{"${args}" * 1_000}"}}\n'), "at most 65,536 characters"),
    ],
)
def test_references_make_nothing_larger_than_a_file_may_be(text, said):
    """D-19: it is said once, at the reference that goes too far."""
    (found,) = told(text)
    assert said in found


def test_large_value_may_be_referred_to_a_few_times():
    """The limits are those of a file, and a value is not too large because a reference stands for it."""
    head = f"params: {{p: {{type: list, default: [{','.join(['1'] * 20_000)}]}}}}\n"
    assert told(step("{x: [" + ",".join(['"${params.p}"'] * 9) + "]}", head=head)) == []


def test_every_warning_is_counted_and_the_first_are_told(flow):
    """C-01: the number is that of all of them, also with profiles."""
    steps = "".join(f'- {{id: s{n}, component: http.caller, config: {{url: "https://x/{n}"}}}}\n' for n in range(700))
    head = "params: {p: {type: string, default: a}}\nprofiles: {one: {params: {p: b}}, two: {params: {p: c}}}\n"
    for more in ("", head):
        (flow / "many.yaml").write_text(f"{HEAD}{more}steps:\n{steps}")
        done = CliRunner().invoke(app, ["validate", "many.yaml"])
        assert done.exit_code == 0
        assert ", 700 warnings." in done.output
        assert (
            "expected at most 500 mistakes, got 700, of which this is the next; mend those above first\n" in done.output
        )
        assert done.output.count(" warning: ") == 501
        assert CliRunner().invoke(app, ["validate", "--strict", "many.yaml"]).exit_code == 2


def test_no_error_is_left_out_for_the_warnings_before_it():
    """C-01: a file with more warnings than are told is not taken for a right one."""
    warnings = [Mistake("f", n, 1, ("a",), "b", "c", severity="warning") for n in range(1, 701)]
    wrong = Mistake("f", 800, 1, ("a",), "b", "c")
    assert in_order([*warnings, wrong]) == (wrong,)
    assert len(in_order(warnings)) == 501


def test_checking_a_file_makes_no_manifest_and_keeps_few_schedules(flow, monkeypatch):
    """D-19: the largest file takes less than 200 MB; each schedule has a row for each attempt."""
    monkeypatch.setattr(compiling, "manifest_of", None)
    monkeypatch.setattr(rules, "Look", KeptLook)
    text = "".join(f"{STEP.replace('id: a', f'id: s{n}')}  retry: {{initial_delay_ms: {n + 1}}}\n" for n in range(200))
    (flow / "f.yaml").write_text(f"{HEAD}steps:\n{text}")
    assert CliRunner().invoke(app, ["validate", "f.yaml"]).exit_code == 0
    assert len(KeptLook.seen) == 200
    assert max(KeptLook.seen) <= 64


class KeptLook(Look):
    """Says how many schedules are kept, for each step."""

    seen: ClassVar[list[int]] = []

    def timing(self, step):
        found = super().timing(step)
        if step is not getattr(self, "_last", None):
            self._last = step
            self.seen.append(len(self._timings))
        return found


def test_pipe_without_a_writer_is_refused_and_one_with_a_writer_is_read(tmp_path):
    """C-01: nothing waits for ever, and what a shell calls <(command) works."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="got: a pipe into which nobody writes"):
        yaml.load(pipe, "a pipeline file")
    shell = (
        f"{shlex.quote(sys.executable)} -m outlast.cli validate <(read -t 1 < <(:); echo '{HEAD}steps:'; echo '{STEP}')"
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=LONG, check=False)
    assert ": valid, 1 step" in done.stdout, done


@table("kind", ["folder", "link", "pipe"])
def test_connections_file_that_is_none_is_told(kind, tmp_path_factory):
    """C-01: a folder, a link to nothing or a pipe of that name is no reason to go on without connections."""
    folder = tmp_path_factory.mktemp("flow")
    (folder / "f.yaml").write_text(f"{HEAD}steps:\n{STEP}")
    there = folder / "connections.yaml"
    {"folder": there.mkdir, "link": lambda: there.symlink_to("nowhere"), "pipe": lambda: os.mkfifo(there)}[kind]()
    done = CliRunner().invoke(app, ["validate", str(folder / "f.yaml")])
    assert done.exit_code == 2
    assert "expected a connections file that can be read" in done.output


# --- what is written ---


@pytest.fixture
def flow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(f"{HEAD}steps:\n{STEP}")
    (tmp_path / "connections.yaml").write_text("connections: {}\n")
    (tmp_path / "m.py").write_text("def f() -> None: ...\n")
    return tmp_path


@table("place", [".", "", "/", "f.yaml", "./f.yaml", "connections.yaml", "link.yaml"])
def test_output_that_would_replace_something_else_is_refused(place, flow):
    """C-01: folders, and what the manifest is made of, also by another name."""
    if not (flow / "link.yaml").is_symlink():
        (flow / "link.yaml").symlink_to("connections.yaml")
    before = {one.name: one.read_text() for one in flow.iterdir()}
    done = CliRunner().invoke(app, ["compile", "f.yaml", "--output", place])
    assert done.exit_code == 2
    assert done.output.startswith("expected --output to be ")
    assert {one.name: one.read_text() for one in flow.iterdir()} == before


def test_output_through_a_link_writes_its_target(flow):
    """The link stays, and so do the permissions of what is there."""
    (flow / "real.json").write_text("old")
    (flow / "real.json").chmod(0o600)
    (flow / "link.json").symlink_to("real.json")
    (flow / "new.json").symlink_to("not-there.json")
    for name in ("link.json", "new.json"):
        assert CliRunner().invoke(app, ["compile", "f.yaml", "--output", name]).exit_code == 0
        assert (flow / name).is_symlink()
        assert json.loads((flow / name).read_text())["name"] == "movies"
    assert (flow / "real.json").stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in flow.iterdir() if one.name.startswith(".")) == []


def test_output_to_a_pipe_is_written_into_it(flow):
    """It stays a pipe, as with any other tool."""
    os.mkfifo(flow / "pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert CliRunner().invoke(app, ["compile", "f.yaml", "--output", "pipe"]).exit_code == 0
        assert json.loads(reader.communicate(timeout=LONG)[0])["name"] == "movies"
    assert (flow / "pipe").is_fifo()


@table("line", ["validate f.yaml", "compile f.yaml", "compile --json f.yaml", "schema"])
def test_full_disk_is_told_in_a_line(line, flow):
    """C-01: no traceback, and no success."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        command = [sys.executable, "-m", "outlast.cli", *line.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (1, f"Cannot write to standard output: {os.strerror(errno.ENOSPC)}.\n")


def test_document_that_cannot_be_written_is_no_success(flow):
    """C-01: standard output is closed."""
    shell = f"{shlex.quote(sys.executable)} -m outlast.cli compile --json f.yaml >&-"
    done = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (1, f"Cannot write to standard output: {os.strerror(errno.EBADF)}.\n")


def test_wide_graph_is_listed_and_not_drawn(flow):
    """D-19: the plan grows with the steps, not with their square."""
    steps = [f"- {{id: s{n}, component: python, config: {{call: 'm:f'}}, needs: []}}\n" for n in range(300)]
    last = f"- {{id: last, component: python, config: {{call: 'm:f'}}, needs: [{', '.join(f's{n}' for n in range(300))}]}}\n"
    (flow / "wide.yaml").write_text(f"{HEAD}steps:\n{''.join(steps)}{last}")
    done = CliRunner().invoke(app, ["compile", "wide.yaml"])
    assert done.exit_code == 0
    assert "after s0, s1, s10, s100, s101, and 295 more" in done.output
    assert "│" not in done.output


def test_file_that_is_called_as_a_secret_is_keeps_its_line_and_column():
    """C-01: the name of a file is no secret."""
    (found,) = compile_text(f"{HEAD}steps:\n{STEP}  bogus: 1\n", "pass=x1Y.yaml").mistakes
    assert str(found).startswith("pass=x1Y.yaml:7:3: steps.a.bogus: expected a known key")


BROKEN = ("${params.}", "${${params.day}}")
VALUE = re.compile(r"(?<=: )(?P<value>\"[^\"]*\"|[^\s{}\[\],\"]+)")


@table("example", ["movies.yaml", "report-worker/report.yaml"])
def test_a_broken_reference_is_a_line_wherever_it_stands(example):
    """Each value of a file in turn, also a connection beside an idempotency key: mistakes, and never a traceback (S0-29)."""
    text = (Path(__file__).parents[2] / "examples" / example).read_text()
    places = [found.span("value") for found in VALUE.finditer(text)]
    wrong = 0
    for begin, end in places:
        for broken in BROKEN:
            changed = f'{text[:begin]}"{broken}"{text[end:]}'
            told = compile_text(changed, "f.yaml", rules=(check,), complete=False)
            wrong += bool(told.errors)
    assert wrong > len(places) * len(BROKEN) / 2 > 20  # but for comments and notes


def test_a_broken_reference_in_a_connection_beside_a_key_is_told():
    """The rule that compares both does not need the reference to be right (R21)."""
    step = 'id: s, component: http.caller, config: {connection: "${params.}@http.a", url: /x}, idempotency: {key: "${params.k}"}'
    text = f'oml_version: "0.1.0"\nname: m\nparams: {{k: {{type: string, default: x}}}}\nsteps: [{{{step}}}]'
    told = compile_text(text, "f.yaml", rules=(check,)).mistakes
    assert "references that can be read" in [one.expected for one in told]
