"""What is said in advance is what happens: a manifest, a diff of two, and a file that is called valid."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import outlast
from outlast.calls.guard import Guard
from outlast.components.describing import Component
from outlast.components.registry import find_component as find
from outlast.components.steps.config import Config
from outlast.flow import compile_path
from outlast.spec.compile import compile_text
from outlast.spec.diff import diff
from outlast.spec.manifest import Manifest
from outlast.spec.references import Reference, is_clear, parse, written
from outlast.spec.rules import check
from outlast.spec.schema import json_schema
from outlast.testing import virtual_time
from spec.test_schema import read
from tables import table

if TYPE_CHECKING:
    from outlast.spec.compile import Compiled
    from outlast.spec.manifest import ManifestStep

HEAD = 'oml_version: "0.1.0"\nname: movies\nparams: {p: {type: string, sensitive: true}, sign: {type: string, default: $}}\nsteps:\n'
FIRST = '  - {id: a, component: python, config: {call: "m:f"}}\n'


def looked_at(steps: str, **options) -> Compiled:
    return compile_text(HEAD + steps, "f.yaml", rules=(check,), find=find, **options)


def lines(steps: str) -> list[str]:
    """What is told of a file, without its name."""
    return [str(one).removeprefix("f.yaml:") for one in looked_at(steps).mistakes]


def manifest(steps: str) -> Manifest:
    found = looked_at(steps)
    assert [str(one) for one in found.errors] == []
    assert found.manifest is not None
    return found.manifest


def step_with(rest: str) -> ManifestStep:
    return manifest(f'  - {{id: a, component: python, config: {{call: "m:f"}}, {rest}}}\n')["a"]


def with_value(text: str) -> str:
    return f'  - {{id: a, component: python, config: {{call: "m:f", args: {{x: {text}}}}}}}\n'


# -- two manifests -----------------------------------------------------------------------------------------------------


@table(
    ("old", "new", "told"),
    [
        ("1", "true", "true, was 1"),
        ("1", "1.0", "1.0, was 1"),
        ("0.0", "-0.0", "-0.0, was 0.0"),
        ("[1]", "[true]", "true added; 1 removed"),
        ("[1, 1, 2]", "[1, 2]", "1 removed"),
        ("[1, 2]", "[2, 1]", "the same in another order"),
        ("[{b: 1}]", "[{b: 1.0}]", "{b 1.0} added; {b 1} removed"),
    ],
)
def test_what_is_another_value_in_json_differs(old, new, told):
    """U-20: to Python 1 is True; to whoever reads a manifest it is not."""
    before, after = manifest(with_value(old)), manifest(with_value(new))
    assert before.fingerprint != after.fingerprint
    (step,) = diff(before, after).steps
    assert [change.text for change in step.changes] == [f"config.args.x: {told}"]


def test_steps_in_another_order_differ():
    """U-20: they run in the order of the manifest where nothing else decides."""
    first, second = (f'  - {{id: {id}, component: python, needs: [], config: {{call: "m:f"}}}}\n' for id in "ab")  # noqa: A001
    found = diff(manifest(first + second), manifest(second + first))
    assert found.file == ("the order of the steps is b, a, was a, b",)
    assert not found.same
    assert diff(manifest(first + second), manifest(first + second)).same


def test_manifests_with_other_fingerprints_are_never_the_same():
    """U-20: what follows from a policy may have been worked out by another version."""
    one = manifest(FIRST)
    timing = {**one["a"].timing, "worst_ms": 5}
    found = diff(one, replace(one, steps=(replace(one["a"], timing=timing),)))
    assert not found.same
    assert "another version" in found.file[0]


@table("number", ["true", "1.0", "NaN", "null"])
def test_the_format_of_a_manifest_is_the_number_one(number):
    """U-20: to Python 1 is True, too."""
    text = manifest(FIRST).to_json()
    with pytest.raises(outlast.ConfigurationError, match="expected a manifest"):
        Manifest.from_json(text.replace('"outlast_manifest": 1', f'"outlast_manifest": {number}'))


@table(
    ("old", "new"),
    [
        ("retry: {initial_delay_ms: 0.4}", "retry: {initial_delay_ms: 0.2}"),
        ("retry: {initial_delay_ms: 1000}", "retry: {initial_delay_ms: 1000.4}"),
        ("retry: {jitter: {add_ms: 0.1}}", "retry: {jitter: {add_ms: 0.3}}"),
        ("retry: {delays_ms: [1, 2]}", "retry: {delays_ms: [1, 2.4]}"),
        ("retry: {delays_ms: [1, 2]}", "retry: {delays_ms: [1, 2.0000001]}"),
        ("timeout: {step_ms: 1}", "timeout: {step_ms: 1.4}"),
        ("timeout: {step_ms: 0.0000001}", "timeout: {step_ms: 0.0000002}"),
    ],
)
def test_every_changed_number_changes_the_fingerprint(old, new):
    """Times are milliseconds, and no fraction of them is lost (S0-31)."""
    before, after = step_with(old), step_with(new)
    assert before.policy_fingerprint != after.policy_fingerprint
    assert before.work_fingerprint == after.work_fingerprint


def test_no_time_limit_is_rounded_to_nothing():
    """A limit of 0 would be none at all (S0-31)."""
    step = step_with("timeout: {step_ms: 0.0000001}")
    assert step.policy["timeout"] == {"step_ms": 1e-07}
    assert step.timing["worst_ms"] == 1


# -- references --------------------------------------------------------------------------------------------------------


@table(
    "value",
    ["'${params.sign}${steps.a.outputs.x}'", "'a${params.sign}${params.p}'", "'${own}${steps.a.outputs.x}', own: $"],
)
def test_a_sign_before_a_reference_does_not_hide_it(value):
    """C-19: in the manifest $${ would be the sign for itself, and the reference a text."""
    text = f'{FIRST}  - {{id: b, component: python, config: {{call: "m:f", args: {{x: {value}}}}}}}\n'
    if "own" in value:
        text = text.replace('python, config: {call: "m:f", args: {x: \'${own}', "shop.any, config: {x: '${own}")
        text = text.replace(", own: $}}}", ", own: $}}")
    found = compile_text(HEAD + text, "f.yaml", find=lambda name: None if name == "shop.any" else find(name))
    told = [str(one) for one in found.mistakes if "name of a component" not in str(one)]
    assert len(told) == 1
    assert "expected no $ before a reference, got $ before ${; $${ stands for the sign itself" in told[0]


PARTS = st.lists(st.text("${}x", min_size=1) | st.just(Reference("param", "p")), max_size=4)


@given(PARTS)
def test_what_is_written_is_read_as_the_same(parts):
    """C-19: a template goes through the manifest unchanged, or is refused."""
    joined: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    if is_clear(joined):
        assert list(parse(written(joined))) == (joined or [""])


@table(
    ("config", "told"),
    [
        ('host: "${params.p}"', "config.host: expected it left out, got a value; it comes from the connection"),
        ('password: "${params.p}"', "config.password: expected it left out, got a value; it comes from the connection"),
        ('chunk_row: "${params.p}"', "config.chunk_row: expected a key that postgres.extractor knows, got 'chunk_row'"),
        ('chunk_row: "${steps.z.outputs.n}"', "config.chunk_row: expected a key that postgres.extractor knows"),
    ],
)
def test_a_key_is_unknown_whatever_its_value_is(config, told):
    """C-19: also where the value is known only when the step runs."""
    first = FIRST.replace("id: a", "id: z")
    step = f'  - {{id: a, component: postgres.extractor, timeout: {{step_ms: 1}}, config: {{connection: "@postgres.shop", query: select 1, {config}}}}}\n'
    (line,) = lines(first + step)
    assert told in line


# -- where errors go ---------------------------------------------------------------------------------------------------


def attempts_made(rest: str, error: Exception) -> int:
    """How often a guard with the policy of such a step really tries, if it always fails like this."""
    found = looked_at(f'  - {{id: a, component: python, config: {{call: "m:f"}}, {rest}}}\n')
    assert found.model is not None
    step = found.model.steps[0]
    made: list[int] = []

    async def fail() -> None:
        made.append(1)
        raise error

    async def run() -> None:
        guard = Guard(retry=step.retry, idempotent=step.idempotent is not False)
        await guard(fail)()

    with virtual_time(seed=1), pytest.raises(type(error)):
        asyncio.run(run())
    return len(made)


def goes(rest: str, category: str, name: str) -> str:
    said = step_with(rest).timing["errors"][category]
    return said if isinstance(said, str) else next(word for word, names in said.items() if name in names)


@table(
    ("rest", "error", "category", "name", "attempts"),
    [
        ("idempotent: false, retry: {max_attempts: 3}", TimeoutError("late"), "transient", "timeout", 1),
        ("idempotent: false, retry: {max_attempts: 3}", ConnectionRefusedError("no"), "transient", "connection_refused", 3),
        ("idempotent: false, retry: {max_attempts: 3, on_errors: [unclear]}", OSError("odd"), "unclear", "unknown", 1),
        ("idempotent: true, retry: {max_attempts: 3, on_errors: [unclear]}", OSError("odd"), "unclear", "unknown", 3),
        ("retry: {max_attempts: 3, on_errors: [TimeoutError], skip_on_errors: [timeout]}", TimeoutError("late"), "transient", "timeout", 1),
        ("retry: {max_attempts: 9, retry_limits: {network: 1}}", TimeoutError("late"), "transient", "timeout", 2),
        ("retry: {max_attempts: 9, retry_limits: {database: 1}}", TimeoutError("late"), "transient", "timeout", 1),
    ],
)  # fmt: skip
def test_the_table_of_errors_says_what_a_guard_does(rest, error, category, name, attempts):
    """S0-08, D-8: what is not tried again is under fail, whatever the reason."""
    made = attempts_made(rest, error)
    assert made == attempts
    assert goes(rest, category, name) == ("retry" if made > 1 else "fail")
    assert made <= step_with(rest).timing["attempts"]


@table(
    ("rest", "listed"),
    [
        ("retry: {max_attempts: 3, on_errors: [TimeoutError], skip_on_errors: [Exception]}", None),
        ("retry: {max_attempts: 3, on_errors: [TimeoutError], skip_on_errors: [OSError]}", None),
        ("retry: {max_attempts: 3, on_errors: [TimeoutError, 503], skip_on_errors: [http_429_503]}", ["TimeoutError"]),
        ("retry: {max_attempts: 3, on_errors: [5xx, shop.Closed], skip_on_errors: [503]}", ["5xx", "shop.Closed"]),
        ("retry: {max_attempts: 3, on_errors: [429, 503], retry_limits: {network: 2}}", None),
        ("retry: {max_attempts: 3, on_errors: [429, 500, httpx.ConnectTimeout, shop.Closed]}, idempotent: false",
         ["429", "500", "httpx.ConnectTimeout", "shop.Closed"]),  # as far as the error proves that nothing was done
        ("retry: {max_attempts: 3, on_errors: [KeyError], skip_on_errors: [all]}", None),
    ],
)  # fmt: skip
def test_what_is_listed_by_name_and_skipped_is_not_said_to_be_retried(rest, listed):
    """Skip_on_errors, the limits of tiers and idempotent: false win (S0-08)."""
    assert step_with(rest).timing["errors"].get("listed") == listed


def test_the_limits_of_tiers_bound_the_schedule():
    """No wait is in the manifest that never comes (S0-31)."""
    timing = step_with("retry: {max_attempts: 10, retry_limits: {network: 1}}, timeout: {step_ms: 1000}").timing
    assert (timing["attempts"], len(timing["delays"]), timing["calls"]) == (2, 1, {"run": 2, "job": 8})
    assert timing["worst_ms"] == 123_250  # with two minutes that a service may ask for


LISTS = {
    "a base class of it": ("[shop.Late]", "[timeout]"),
    "another name of a builtin": ("[KeyError, InterruptedError, ValueError]", "[shop.Base, shop.Alias]"),
    "one name under two": ("[shop.Late]", "[shop.Later]"),
    "no exception at all": ("[shop.Nothing, shop.number]", "[]"),
    "control flow": ("[shop.Leaving]", "[]"),
    "a known name": ("[socket.error, asyncio.TimeoutError]", "[OSError, TimeoutError]"),
    "cancellation": ("[asyncio.CancelledError, trio.Cancelled]", "[]"),
}


@table("name", LISTS)
def test_what_is_loaded_changes_no_manifest_and_no_mistake(name, monkeypatch):
    """D-19: the same bytes and lines in a process that has the module of an exception, and in one that has not."""
    from outlast.spec import schedule

    on, skip = LISTS[name]
    text = f"  - {{id: a, component: python, config: {{call: 'm:f'}}, retry: {{max_attempts: 3, on_errors: {on}, skip_on_errors: {skip}}}}}"
    module = ModuleType("shop")
    late = type("Late", (TimeoutError,), {"__module__": "shop"})
    leaving = type("Leaving", (BaseException,), {"__module__": "shop"})
    vars(module).update(Late=late, Later=late, Base=LookupError, Alias=ValueError, Leaving=leaving, number=5)
    told = []
    for loaded in (None, module):
        schedule._errors.cache_clear()
        schedule.classes_of.cache_clear()
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "shop", loaded)
            if loaded is None:
                patched.delitem(sys.modules, "shop")
                patched.delitem(sys.modules, "trio", raising=False)
            found = looked_at(text)
        told.append((found.manifest and found.manifest.to_json(), list(map(str, found.mistakes))))
    assert told[0] == told[1]
    assert (told[0][0] is None) == (name in ("a known name", "cancellation"))


def test_what_is_loaded_still_counts_where_nothing_is_compiled(monkeypatch):
    """A policy in Python is checked with all that is known there, also after a file has been compiled."""
    module = ModuleType("shop")
    vars(module).update(Alias=ValueError)
    monkeypatch.setitem(sys.modules, "shop", module)
    looked_at(FIRST)
    with pytest.raises(outlast.ConfigurationError, match="free of what skip_on_errors lists"):
        outlast.RetryPolicy(on_errors=[ValueError], skip_on_errors=["shop.Alias"])


# -- what is checked although something is not known yet ---------------------------------------------------------------


@table(
    ("step", "told"),
    [
        ("component: files.writer, config: {path: o.csv, rows: 'abc ${steps.a.outputs.x}'}", "config.rows: expected rows, got"),
        ("component: files.writer, config: {path: o.csv, rows: '${steps.a.outputs.x}'}", None),
        ("component: http.caller, timeout: {step_ms: 5}, config: {url: 'https://b.c', max_bytes: 'x${steps.a.outputs.x}'}",
         "config.max_bytes: expected an integer, got"),
        ("component: http.caller, timeout: {step_ms: 5}, config: {url: 'https://b.c', max_bytes: '${steps.a.outputs.x}'}", None),
        ("component: http.caller, timeout: {step_ms: 5}, config: {url: 'file:///etc/${params.p}'}", "config.url: expected an address that begins with http"),
        ("component: http.caller, timeout: {step_ms: 5}, config: {url: 'https://${params.p}:${params.p}/x'}", "config.url: expected references in the path or the query of url"),
        ("component: http.caller, timeout: {step_ms: 5}, config: {url: 'https://b.c/${params.p}/x?y=${params.p}'}", None),
        ("component: files.reader, config: {path: '../../${steps.a.outputs.x}'}", "config.path: expected a path under the project's root"),
        ("component: files.reader, config: {path: '/etc/${steps.a.outputs.x}'}", "config.path: expected a path under the project's root"),
        ("component: files.reader, config: {path: 'C:${steps.a.outputs.x}'}", "config.path: expected a path under the project's root"),
        ("component: files.reader, config: {path: '${steps.a.outputs.x}/../x'}", "leave .. out"),
        ("component: files.reader, config: {path: 'in/${steps.a.outputs.x}/..x'}", None),
        ("component: pipeline, config: {target: 'a:b', input: '../${steps.a.outputs.x}'}", "config.input: expected a path under the project's root"),
        ("component: pipeline, config: {target: 'a:b', input: '${steps.a.outputs.x}'}", None),
        ("component: files.reader, config: {path: 'in/${params.p}.csv'}", "config.path: expected a value without a sensitive parameter"),
        ("component: files.writer, config: {path: o.csv, rows: [{a: '${params.p}'}]}", "config.rows: expected a value without a sensitive parameter"),
        ("component: python, config: {call: 'm:f'}, for_each: {items: [1, '${params.p}']}", "for_each.items: expected a value without a sensitive parameter"),
        ("component: python, config: {call: 'm:f', args: {a: '${params.p}'}}", None),
    ],
)  # fmt: skip
def test_what_is_certain_of_a_text_is_told(step, told):
    """C-19: a text with a reference in it is a text, and what is written of it stays (S0-29)."""
    said = lines(FIRST + f"  - {{id: b, {step}}}\n")
    assert [told in line for line in said] == ([] if told is None else [True])


def test_what_undoes_a_step_that_may_have_failed_refers_to_no_output_of_it():
    """R33: `when: started` undoes a step also if it failed, and then it has put out nothing."""
    step = '  - {id: a, component: python, config: {call: "m:f"}, compensate: {component: python, %s config: {call: "m:g", args: {x: "${steps.a.outputs.x}"}}}}\n'
    assert lines(step % "") == []
    (line,) = lines(step % "when: started,")
    assert "expected a reference to what is there also if the step has failed (when: started), got ${steps.a.o" in line


REFERS = '  - {%scomponent: python, config: {call: "m:f", args: {x: "${steps.%s.outputs.x}"}}}\n'


def test_a_step_without_a_good_id_is_looked_at_all_the_same():
    """All mistakes at once; and those behind it are not blamed for it, nor those that name the step that is meant (S0-30)."""
    unknown = REFERS.replace("steps.%s.outputs.", "%s.")
    text = FIRST + "".join(unknown % (id, "params") for id in ("", 'id: "a b", ', "id: a, "))  # noqa: A001
    text += REFERS % ("id: c, ", "a") + REFERS % ("id: d, ", "zz")
    places = [line.split(": ")[1] for line in lines(text)]
    assert places == [f"steps[{number}].{key}" for number in (1, 2, 3) for key in ("id", "config.args.x")]


def test_every_knot_of_steps_is_told_and_nothing_else_of_it():
    """Also one that waits for another; and no step is told to need what it needs (S0-30)."""
    step = '  - {id: %s, needs: [%s], component: python, config: {call: "m:f", args: {x: "${steps.%s.outputs.x}"}}}\n'
    text = "".join(
        step % one for one in (("a", "b", "b"), ("b", "a", "a"), ("d", "e, a", "e"), ("e", "d", "d"), ("f", "e", "e"))
    )
    assert [line.partition(", got ")[2].partition(";")[0] for line in lines(text)] == [
        "a needs b needs a",
        "d needs e needs d",
    ]


@table(
    ("block", "told"),
    [
        ("circuit_breaker: {shared: [1]}", "circuit_breaker.shared: expected true or false, got a list"),
        ("limit: {concurrency: 1, shared: {a: 1}}", "limit.shared: expected true or false, got a mapping"),
    ],
)
def test_no_list_stands_for_true_or_false(block, told):
    """U-20."""
    (line,) = lines(f'  - {{id: a, component: python, config: {{call: "m:f"}}, {block}}}\n')
    assert told in line


def test_a_key_without_a_value_has_its_default():
    """C-24: in the manifest stands what holds."""
    step = step_with("circuit_breaker: {shared: null}, limit: {concurrency: 1, shared: null}")
    assert (step.policy["circuit_breaker"]["shared"], step.policy["limit"]["shared"]) == (True, False)


def test_descriptions_are_texts_everywhere():
    """U-20."""
    text = 'oml_version: "0.1.0"\nname: m\nparams: {p: {type: string, default: a, description: [1]}}\nprofiles: {x: {description: {a: 1}}}\nsteps:\n'
    found = compile_text(text + FIRST, "f")
    assert [str(one)[2:] for one in found.mistakes] == [
        "3:53: params.p.description: expected a text, got a list; write a text",
        "4:29: profiles.x.description: expected a text, got a mapping; write a text",
    ]


class Described(Config):
    password: str
    size: int = 1


@table(
    ("options", "told"),
    [
        ({"secrets": "password"}, "expected secrets to be a list of keys of the config"),
        ({"secrets": None}, "expected secrets to be a list of keys of the config"),
        ({"literal": "size"}, "expected literal to be a list of keys of the config"),
        ({"overrides": None}, "expected overrides to be a mapping"),
        ({"idempotent_if": None}, "expected idempotent_if to be a mapping"),
        ({"idempotent_if": {"sise": (1,)}}, "Did you mean 'size'?"),
        ({"example": {"password": "${params.x}", "size": "large"}}, "expected example.size to be an integer"),
        ({"example": {"size": 1}}, "expected example.password to be the key password"),
    ],
)
def test_a_description_that_is_wrong_is_refused(options, told):
    """C-06: whoever writes a component is told, and not whoever uses it."""
    with pytest.raises(outlast.ConfigurationError, match=re.escape(told)):
        Component("shop.any", "Is wrong.", Described, **options)
    Component("shop.any", "Is right.", Described, example={"password": "${params.x}", "size": "${params.n}"})


# -- rules -------------------------------------------------------------------------------------------------------------


NET = "http.caller, config: {url: 'https://b.c'}"


@table(
    ("rest", "code"),
    [
        ("retry: {on_errors: [429, 503], max_retry_after_ms: 0}", "R16"),
        ("retry: {max_attempts: 3, initial_delay_ms: 5000}, idempotency: {key: '${params.sign}', cache_ttl_ms: 1000}", "R19"),
        ("idempotency: {key: '${params.attempt}'}", "R20"),
        ("circuit_breaker: {shared: false, failure_rate: 0.5, min_calls: 50}", "R26"),
        ("retry: {on_errors: [429, timeout], skip_on_errors: [rate_limited]}", "R12"),
        ("retry: {on_errors: [TimeoutError, 503], skip_on_errors: [timeout]}", "R12"),
        ("retry: {on_errors: [builtins.Exception]}", "R14"),
        ("retry: {on_errors: [timeout, builtins.MemoryError]}", "R14"),
        (f"compensate: {{component: {NET}}}", "R36"),
        (f"compensate: {{component: {NET}, timeout: {{step_ms: 5}}, retry: {{max_delay_ms: null}}}}", "R05"),
        (f"compensate: {{component: {NET}, timeout: {{step_ms: 1000, total_ms: 1500}}}}", "R03"),
    ],
)  # fmt: skip
def test_a_rule_sees_all_of_what_it_warns_of(rest, code):
    """By class, by status and by name alike; and of what undoes a step as of the step (S0-29)."""
    head = HEAD.replace("params: {", "params: {attempt: {type: integer, default: 1}, ")
    text = f'{head}  - {{id: a, component: python, mode: read, config: {{call: "m:f"}}, {rest}}}\n'
    assert [one.code for one in compile_text(text, rules=(check,)).mistakes] == [code]


def test_a_whole_address_out_of_outputs_is_told():
    """R42: nobody knows where it leads."""
    (line,) = lines(
        FIRST + "  - {id: b, component: http.caller, timeout: {step_ms: 5}, config: {url: '${steps.a.outputs.x}'}}\n"
    )
    assert line.endswith(
        "got ${steps.a.outputs.x}; make sure where it leads, or silence the code if it is trusted [R42]"
    )


@table("name", ["builtins.int", "builtins.Nothing", "outlast.errors.Item"])
def test_what_is_no_exception_is_no_error_to_list(name):
    """R13."""
    (line,) = lines(
        f'  - {{id: a, component: python, config: {{call: "m:f"}}, retry: {{on_errors: [timeout, {name}]}}}}\n'
    )
    assert f"retry.on_errors[1]: expected an exception of {name.partition('.')[0]}" in line


# -- the schema, and what is quoted ------------------------------------------------------------------------------------


RETRIES = """
on_errors: auto|on_errors: none|on_errors: all|retriable_errors: none|on_errors: "${params.list}"|initial_delay: "1"|initial_delay: " 5s "
initial_delay: "5s"|initial_delay: 5|delays: ["1"]|delays: [1, 2s]|jitter: "yes"|jitter: "on"|jitter: "no"|jitter: "0.5"|jitter: yes|jitter: full
jitter: true|retryable_exceptions: 5|retryable_exceptions: [TimeoutError]|skip_on_errors: all|skip_on_errors: "${params.list}"
""".strip().replace("\n", "|").split("|")  # fmt: skip
PARAMS = """
{type: integer, default: a}|{type: integer, default: 1}|{type: number, default: 1}|{type: string, default: null}|{type: string, enum: [1]}
{type: string, enum: [a], default: a}|{type: list, default: [1]}|{type: object, default: 1}|{type: string, enum: a}|{type: boolean, default: true}
{type: string, enum: []}
""".strip().replace("\n", "|").split("|")  # fmt: skip


def test_the_schema_takes_what_compiles_and_refuses_what_does_not():
    """Done 5: an editor says what the compiler says; what is quoted is a text to both."""
    validator = Draft202012Validator(json_schema())
    head = HEAD.replace("params: {", "params: {list: {type: list, default: [timeout]}, ")
    texts = {
        one: f'{head}  - {{id: a, component: python, config: {{call: "m:f"}}, retry: {{{one}}}}}\n' for one in RETRIES
    }
    texts |= {one: f'oml_version: "0.1.0"\nname: m\nparams: {{p: {one}}}\nsteps:\n{FIRST}' for one in PARAMS}
    compiles = {one: not compile_text(text, complete=False).errors for one, text in texts.items()}
    fits = {one: validator.is_valid(read(text)) for one, text in texts.items()}
    assert fits == compiles
    assert (compiles['jitter: "yes"'], compiles['initial_delay: "1"'], compiles["on_errors: none"]) == (
        False,
        False,
        True,
    )


# -- small things ------------------------------------------------------------------------------------------------------


def test_a_mistake_under_a_long_key_is_told_at_its_place():
    """Of a long key a line shows the beginning only (S0-30)."""
    text = f'  - {{id: a, component: python, config: {{call: "m:f", args: {{"{"a long key " * 9}": {{y: "${{zz}}"}}}}}}}}\n'
    (line,) = lines(text)
    assert line.startswith(f"5:{text.index('${zz}')}: ")


@table(
    ("text", "told"),
    [
        ("+0x1f", 'got +0x1f; write 31, or "+0x1f" if it is a text'),
        ("-0x1F", 'got -0x1F; write -31, or "-0x1F" if it is a text'),
        ("9" * 401, "put quotes around it: a number has at most 400 digits"),
        ("0x1f", None),
        ("9" * 400, None),
    ],
)
def test_no_number_becomes_a_text_by_itself(text, told):
    """R43: what is a number to one reader and a text to another is asked about."""
    assert [told in line for line in lines(with_value(text))] == ([] if told is None else [True])


@table(("version", "told"), [("1.1", 1), ("1.2", 0)])
def test_a_file_that_says_it_is_older_is_not_read_as_if_it_were_not(version, told):
    """R43: what 1.1 and 1.2 read in two ways."""
    found = compile_text(f"%YAML {version}\n---\n{HEAD}{FIRST}", "f")
    assert [str(one).partition("; ")[0] for one in found.mistakes] == [
        "f:1:1: expected YAML 1.2, got a file that says it is YAML 1.1"
    ] * told


@table("pure", [False, True])
def test_a_broken_escape_is_told_in_our_words(pure):
    """U-20."""
    (mistake,) = looked_at(with_value(r'"\xzz"'), pure=pure).mistakes
    assert (mistake.expected, mistake.got) == ("an escape that YAML knows", "another one")


@table("text", ["{b:{t}}", "[1?]", "{x?: 1}", "[b:[t]]", "- b", "{b: {t}}", "[x:y]", "[a, b, c]"])
def test_both_parsers_come_to_the_same_or_one_of_them_says_no(text):
    """D-19: no file has two manifests; and neither speaks in the words of its library."""
    found = [looked_at(with_value(text), pure=pure) for pure in (False, True)]
    made = [one.manifest.to_json() for one in found if one.manifest is not None]
    assert len(set(made)) <= 1
    assert [str(one) for each in found for one in each.mistakes if "expected YAML" in str(one)] == []


@table(
    ("step", "told"),
    [
        ('python, config: {call: "m:f"}, retry: {retry_limits: {network: "1"}}', "retry_limits.network: expected an integer"),
        ('postgres.extractor, timeout: {step_ms: 1}, config: {connection: "@postgres.x", query: select 1, password: hunter2}',
         "config.password: expected it left out, got a value; it comes from the connection"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_line(step, told):
    """U-20."""
    (line,) = lines(f"  - {{id: a, component: {step}}}\n")
    assert told in line


def test_a_component_that_cannot_be_loaded_is_told_once():
    """And not as the name of nothing where it is used again (S0-30)."""

    def find_broken(name: str):
        raise outlast.ConfigurationError(f"{name} cannot be loaded: it is broken.")

    text = HEAD + "  - {id: a, component: evil.one, config: {}}\n  - {id: b, component: evil.one, config: {}}\n"
    (told,) = (str(one).partition(": ")[2] for one in compile_text(text, find=find_broken).mistakes)
    assert told.startswith(
        "steps.a.component: expected a component that can be loaded, got 'evil.one'; evil.one cannot be"
    )


class Login(Config):
    creds: dict[str, str]


def test_a_secret_may_be_a_mapping_of_references():
    """D-26: written out in there is written out."""
    component = Component("shop.any", "Logs in.", Login, secrets=("creds",))
    text = HEAD + "  - {id: a, component: shop.any, config: {creds: {login: %s}}}\n"
    results = [compile_text(text % one, find=lambda _: component) for one in ('"${params.p}"', "ann")]
    assert [[one.expected for one in found.mistakes] for found in results] == [[], ["no secret in a pipeline file"]]


@table("value", [{1: 2}, {1: 2, "x": 1}, {"a": {2: 3}}])
def test_a_parameter_has_keys_that_are_texts(value):
    """C-26: another key would become a text in the manifest, or be in no order."""
    text = 'oml_version: "0.1.0"\nname: m\nparams: {o: {type: object}}\nsteps:\n' + FIRST
    (mistake,) = compile_text(text, params={"o": value}).mistakes
    assert mistake.expected == "a mapping"
    assert compile_text(text, params={"o": {"x": [1, {"y": None}]}}).manifest is not None


def test_a_default_that_is_written_out_changes_no_fingerprint():
    """`mode: inline` is what holds anyway (S0-31)."""
    plain, said, other = (
        step_with(f"retry: {{max_attempts: 3{mode}}}") for mode in ("", ", mode: inline", ", mode: requeue")
    )
    assert plain.policy_fingerprint == said.policy_fingerprint != other.policy_fingerprint


# -- functions that a file names ---------------------------------------------------------------------------------------


@table(
    ("call", "allow", "refused"),
    [
        ("os:system", "", True),
        ("os.path:join", "", True),
        ("builtins:eval", "", True),
        ("pytest:main", "", True),
        ("__main__:run", "", True),
        ("os:system", "numpy, os", False),
        ("os.path:join", "os", False),
        ("os:system", "o", True),
        ("shop.steps:label", "", False),
        ("pydantic:create_model", "", False),
        ("not_written_yet:label", "", False),
        ("jsonschema:validate", "", True),
        ("jsonschema.steps:label", "", True),
        ("hypothesis.steps:label", "", False),
        ("shared.steps:label", "", False),
        ("shared.others:label", "", True),
    ],
)
def test_functions_are_those_of_the_project_or_allowed(call, allow, refused, tmp_path_factory, monkeypatch):
    """
    Requirements 1: nobody gets at the rest of the machine by a file; nothing is imported to find out. A folder without
    __init__ is no package: Python takes one of that name from elsewhere.
    """
    folder, elsewhere = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(str(elsewhere))
    for one in (folder / "shop", folder / "jsonschema", folder / "hypothesis", folder / "shared", elsewhere / "shared"):
        one.mkdir()
    for one in ("hypothesis/__init__.py", "hypothesis/steps.py", "jsonschema/steps.py", "shared/steps.py"):
        (folder / one).write_text("def label(): ...")
    (elsewhere / "shared" / "others.py").write_text("")
    (folder / "pydantic.py").write_text("def create_model(): ...\nraise RuntimeError('nobody imports this')")
    (folder / "flow.yaml").write_text(HEAD + FIRST.replace("m:f", call))
    monkeypatch.setenv("OUTLAST_ALLOW", allow)
    found = compile_path(folder / "flow.yaml", complete=False)
    assert [(one.path, one.got) for one in found.errors] == (
        [(("steps", "a", "config", "call"), f"one of {call.partition(':')[0]}")] if refused else []
    )


def test_the_root_says_which_project_it_is(tmp_path, monkeypatch):
    """Requirements 1: the folder of the file unless something else is said; and what undoes a step is looked at, too."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "pytest.py").write_text("def main(): ...")
    step = FIRST.replace("m:f", "pytest:main").replace(
        "}}", "}, compensate: {component: python, config: {call: 'os:remove'}}}"
    )
    (tmp_path / "flows" / "flow.yaml").write_text(HEAD + step)
    told = [
        [one.got for one in compile_path(tmp_path / "flows" / "flow.yaml", root=root, complete=False).errors]
        for root in (None, tmp_path)
    ]
    assert told == [["one of pytest", "one of os"], ["one of os"]]


class Handled(Config):
    handler: str


def test_a_relative_module_is_no_module_of_the_project(tmp_path):
    """Requirements 1: also where a component of another package looks at nothing of its text."""
    component = Component("shop.any", "Calls.", Handled, calls=("handler",))
    (tmp_path / "steps.py").write_text("def label(): ...")
    text = HEAD + "  - {id: a, component: shop.any, config: {handler: '%s'}}\n"
    told = [
        [
            (one.line, one.path, one.expected, one.way_out)
            for one in compile_text(text % call, find=lambda _: component, root=tmp_path, rules=(check,)).mistakes
            if one.severity == "error"
        ]
        for call in (".steps:label", "../../steps:label", "steps:label")
    ]
    place = (5, ("steps", "a", "config", "handler"), "a function as module:function")
    assert told == [[(*place, "write it as steps:label")], [(*place, "write it as shop.steps:label")], []]


def test_what_was_looked_at_before_changes_no_answer(tmp_path, monkeypatch):
    """Requirements 1, D-19: the same relative root is another folder elsewhere, and a folder another one a moment later."""
    text = HEAD + FIRST.replace("m:f", "pydantic:run")
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        folder.mkdir()
        (folder / "flow.yaml").write_text(text)
    (ours / "pydantic.py").write_text("def run(): ...")

    def refused(folder) -> bool:
        monkeypatch.chdir(folder)
        return bool(compile_path("flow.yaml", complete=False).errors)

    assert [refused(one) for one in (ours, other, ours, other)] == [False, True, False, True]
    (other / "pydantic.py").write_text("def run(): ...")
    (ours / "pydantic.py").unlink()
    assert [refused(one) for one in (ours, other)] == [True, False]


def test_functions_are_looked_for_in_the_module_that_is_there_now(tmp_path, monkeypatch):
    """R50: two modules of one relative path, size and time are two."""
    told = []
    for folder, name in ((tmp_path / "a", "one"), (tmp_path / "b", "two")):
        folder.mkdir()
        (folder / "steps.py").write_text(f"def {name}(): ...")
        os.utime(folder / "steps.py", ns=(1, 1))
        (folder / "flow.yaml").write_text(HEAD + FIRST.replace("m:f", "steps:one"))
        monkeypatch.chdir(folder)
        told.append([one.got for one in compile_path("flow.yaml", complete=False).mistakes if one.code == "R50"])
    assert told == [[], ["'one'"]]


START = "import sys; sys.argv = ['outlast', 'validate', 'flows/flow.yaml', *sys.argv[1:]]; from outlast.cli import main; main()"


def test_how_the_command_is_started_changes_no_answer(tmp_path):
    """D-19: `python -m outlast` has the current folder on its path, `outlast` has not; a module there is not installed."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "flow.yaml").write_text(HEAD + FIRST.replace("m:f", "shop.steps:label"))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "steps.py").write_text("def label(): ...")
    (tmp_path / "script.py").write_text(START)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "outlast").write_text(START)
    validate = ("-m", "outlast", "validate", "flows/flow.yaml")
    starts = [validate, ("-P", *validate), ("-c", START), ("script.py",), ("bin/outlast",)]

    def told(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            env=os.environ | environment,
        )
        return done.returncode, done.stderr

    answers = {told(*start) for start in starts}
    assert len(answers) == 1
    ((code, line),) = answers
    assert code == 0
    assert line.startswith("flows/flow.yaml:5:47: warning: steps.a.config.call: expected a module of the project")
    assert line.endswith("got 'shop.steps'; it is under the current folder: --root . [R50]\n")
    assert told(*validate, "--root", ".") == (0, "")
    code, line = told(*validate, PYTHONPATH=str(tmp_path))  # where somebody says that it is installed, it is
    assert code == 2
    assert line.endswith("it is under the current folder: --root ., or allow the module: OUTLAST_ALLOW=shop.steps\n")


@table(
    "step",
    [
        ("python", "call: '{}:run'", "call"),
        ("python", "call: 'shop.{}:run'", "call"),
        ("python", "call: '{}.shop:run'", "call"),
        ("pipeline", "target: '{}:run', input: x.csv", "target"),
        ("schema.validator", "data: 1, schema_file: {}.json", "schema_file"),
        ("schema.validator", "data: 1, schema_file: '{0}/{0}.json'", "schema_file"),
    ],
)
def test_a_name_that_is_too_long_for_a_file_is_one_that_is_not_there(step, tmp_path):
    """A line with its place; the disk refuses to look for it (S0-30)."""
    (tmp_path / "shop").mkdir(exist_ok=True)
    component, config, key = step
    config = config.format("x" * 300)
    (tmp_path / "flow.yaml").write_text(HEAD + f"  - {{id: a, component: {component}, config: {{{config}}}}}\n")
    told = compile_path(tmp_path / "flow.yaml", complete=False).mistakes
    found = [(one.line, one.path, one.way_out) for one in told if one.code == "R50"]
    assert found == [(5, ("steps", "a", "config", key), "write it, or name another")]
