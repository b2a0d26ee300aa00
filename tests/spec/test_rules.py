"""Rules about policies: each finds what it is for and leaves alone what is near it; all of them can be silenced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli import app
from outlast.components.registry import find_component as find
from outlast.errors import ConfigurationError
from outlast.flow import Flow
from outlast.policy import RetryPolicy
from outlast.spec.compile import compile_text
from outlast.spec.rules import RULES, check
from spec.described import described
from spec.test_schema import examples
from tables import table

HEAD = 'oml_version: "0.1.0"\nname: movies\nparams:\n  batch: {type: string, default: monday}\n  shop: {type: string, default: one}\n'
# What rules need to know of a component.
KNOWN = {
    one.name: one
    for one in (
        described("net.get", keys=("url",), network=True, idempotent=True),
        described("db.read", ("rows",), keys=("connection", "query"), connection="db", reads=True, idempotent=True),
        described("room.book", ("id",), needs_compensation=True, idempotent=True, side_effects=True),
        described("room.free", idempotent=True),
        described("quiet", ("rows",), idempotent=True, takes_row=True),
    )
}


def known(name: str):
    return KNOWN.get(name) or find(name)


def steps(*lines: str) -> str:
    return HEAD + "steps:\n" + "".join(f"  - {{{line}}}\n" for line in lines)


def found(text: str, **options) -> list[str]:
    """The codes of what the rules say of a file that has no errors, with the line of the file."""
    compiled = compile_text(text, "f.yaml", find=known, rules=(check,), **options)
    assert [str(one) for one in compiled.errors] == []
    return [one.code for one in compiled.mistakes]


STEP = "id: a, component: quiet"
ROWS = "for_each: {items: [1], concurrency: %d}"
PYTHON = 'id: a, component: python, config: {call: "a:b"}, idempotent: true'
GET = 'id: a, component: net.get, timeout: {step_ms: 5}, config: {url: "${item}"}'
LAKE = (
    'id: a, component: s3.writer, config: {connection: "@s3.lake", key: k.json, body: {a: 1}%s}, compensate: {component: s3.deleter, '
    'timeout: {step_ms: 5}, config: {connection: "@s3.lake", key: k.json}}, timeout: {step_ms: 5}'
)
# Code -> steps that the rule is for, and steps like them that it is not for.
FIXTURES: dict[str, tuple[list[str], list[str]]] = {
    "R01": (
        [f"{STEP}, retry: {{max_attempts: 21, retry_exhausted: false}}"],
        [f"{STEP}, retry: {{max_attempts: 20, retry_exhausted: false}}"],
    ),
    "R03": (  # the third attempt gets nothing: 2 x 300 s are gone
        [f"{STEP}, retry: {{max_attempts: 3}}, timeout: {{step_ms: 300000, total_ms: 600000}}",
         f"{STEP}, retry: {{max_attempts: 3, initial_delay_ms: 400, jitter: 0}}, timeout: {{total_ms: 1000}}"],
        [f"{STEP}, retry: {{max_attempts: 3, jitter: 0}}, timeout: {{step_ms: 300000, total_ms: 903000}}",
         f"{STEP}, timeout: {{step_ms: 5, total_ms: 5}}"],
    ),
    "R05": (
        [f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: null}}"],
        [f"{STEP}, retry: {{max_attempts: 2, max_delay_ms: null}}", f"{STEP}, retry: {{max_attempts: 3}}",
         f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: null, backoff: fixed}}"],
    ),
    "R06": (
        [f"{STEP}, retry: {{max_attempts: 3, jitter: 0}}, {ROWS % 2}"],
        [f"{STEP}, retry: {{max_attempts: 3, jitter: 0}}, {ROWS % 1}", f"{STEP}, retry: {{max_attempts: 3, jitter: 0}}",
         f"{STEP}, retry: {{max_attempts: 3}}, {ROWS % 2}", f"{STEP}, retry: {{max_attempts: 1, jitter: 0}}, {ROWS % 2}"],
    ),
    "R07": (
        [f"{STEP}, retry: {{max_attempts: 3, jitter: 0.09}}, {ROWS % 100}"],
        [f"{STEP}, retry: {{max_attempts: 3, jitter: 0.1}}, {ROWS % 100}", f"{STEP}, retry: {{max_attempts: 3, jitter: 0.09}}, {ROWS % 99}",
         f"{STEP}, retry: {{max_attempts: 3, jitter: full}}, {ROWS % 100}"],
    ),
    "R08": (
        [f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 2000, cap: before_jitter}}"],
        [f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 2000}}", f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 2000, cap: before_jitter, jitter: 0}}"],
    ),
    "R11": (
        [f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 60000}}"],
        [f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 2000}}", f"{STEP}, retry: {{max_attempts: 3}}"],
    ),
    "R12": (
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: [timeout, unavailable], skip_on_errors: [network]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [503, timeout], skip_on_errors: [5xx]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [ConnectionResetError, timeout], skip_on_errors: [OSError]}}"],
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: [network], skip_on_errors: [timeout]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [OSError], skip_on_errors: [ConnectionResetError]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [OSError], skip_on_errors: [unclear]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [5xx], skip_on_errors: [transient]}}"],
    ),
    "R14": (
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: all}}", f"{STEP}, retry: {{max_attempts: 3, on_errors: [timeout, Exception]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [timeout, MemoryError]}}"],
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: [transient, unclear]}}", f"{STEP}, retry: {{max_attempts: 1, on_errors: all}}"],
    ),
    "R15": (
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: [permission_denied]}}", f"{STEP}, retry: {{max_attempts: 3, on_errors: [404]}}",
         f"{STEP}, retry: {{max_attempts: 3, on_errors: [permanent]}}", f"{STEP}, retry: {{max_attempts: 3, on_errors: [4xx]}}"],
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: [408, 409, 425, 429, 503, timeout]}}"],
    ),
    "R16": (
        [f"{STEP}, retry: {{max_attempts: 3, max_retry_after_ms: 0}}"],
        [f"{STEP}, retry: {{max_attempts: 3, max_retry_after_ms: 0, on_errors: [timeout]}}", f"{STEP}, retry: {{max_attempts: 3}}"],
    ),
    "R17": (
        [f"{STEP}, retry: {{max_attempts: 2, max_retry_after_s: 600}}, timeout: {{total_ms: 500000}}"],
        [f"{STEP}, retry: {{max_attempts: 2, max_retry_after_s: 600}}, timeout: {{total_ms: 600000}}",
         f"{STEP}, retry: {{max_attempts: 2}}, timeout: {{total_ms: 60000}}"],
    ),
    "R18": (
        ['id: a, component: python, config: {call: "a:b"}, retry: {max_attempts: 3}',
         'id: a, component: python, mode: write, config: {call: "a:b"}, retry: {max_attempts: 3, on_errors: [connection_refused, 503]}',
         'id: a, component: http.caller, timeout: {step_ms: 5}, config: {url: "https://a.b/c", method: POST}, retry: {max_attempts: 3, on_errors: [5xx]}'],
        ['id: a, component: python, config: {call: "a:b"}', 'id: a, component: python, config: {call: "a:b"}, retry: {max_attempts: 3}, idempotent: true',
         'id: a, component: python, config: {call: "a:b"}, retry: {max_attempts: 3}, idempotent: false',
         'id: a, component: python, config: {call: "a:b"}, retry: {max_attempts: 3}, idempotency: {key: "${params.batch}"}',
         'id: a, component: python, mode: transform, config: {call: "a:b"}, retry: {max_attempts: 3}',
         'id: a, component: python, config: {call: "a:b"}, retry: {max_attempts: 3, on_errors: [connection_refused, 429, dns_error]}',
         'id: a, component: http.caller, timeout: {step_ms: 5}, config: {url: "https://a.b/c"}, retry: {max_attempts: 3}',
         'id: a, component: pipeline, config: {target: "a:b", input: "in.csv"}, retry: {max_attempts: 3}',
         f"{STEP}, retry: {{max_attempts: 3}}"],
    ),
    "R19": (
        [f'{STEP}, timeout: {{step_ms: 60000}}, idempotency: {{key: "${{params.batch}}", cache_ttl_s: 59}}'],
        [f'{STEP}, timeout: {{step_ms: 60000}}, idempotency: {{key: "${{params.batch}}", cache_ttl_s: 60}}',
         f'{STEP}, idempotency: {{key: "${{params.batch}}", cache_ttl_s: 1}}'],
    ),
    "R20": (
        [f"{STEP}, idempotency: {{key: always}}", f'{STEP}, {ROWS % 1}, idempotency: {{key: "${{item}}"}}',
         f'{GET}, {ROWS % 1}, idempotency: {{key: "${{url}}"}}', 'id: a, component: net.get, timeout: {step_ms: 5}, config: {url: "x"}, idempotency: {key: "${url}"}'],
        [f'{STEP}, idempotency: {{key: "${{params.batch}}"}}',
         'id: a, component: net.get, timeout: {step_ms: 5}, config: {url: "x/${params.batch}"}, idempotency: {key: "${url}"}',
         f'{STEP}, for_each: {{items: ["${{params.batch}}"]}}, idempotency: {{key: "${{item}}"}}'],
    ),
    "R21": (
        ['id: a, component: db.read, config: {connection: "@db.${params.shop}", query: q}, idempotency: {key: "${params.batch}"}'],
        ['id: a, component: db.read, config: {connection: "@db.${params.shop}", query: q}, idempotency: {key: "${connection}:${params.batch}"}',
         'id: a, component: db.read, config: {connection: "@db.${params.shop}", query: q}, idempotency: {key: "${params.shop}:${params.batch}"}',
         'id: a, component: db.read, config: {connection: "@db.main", query: q}, idempotency: {key: "${params.batch}"}'],
    ),
    "R22": (
        [f"{STEP}, retry: {{max_attempts: 4, mode: requeue}}"],
        [f"{STEP}, retry: {{max_attempts: 3, mode: requeue}}", f"{STEP}, retry: {{max_attempts: 4, mode: requeue, retry_exhausted: false}}",
         f"{STEP}, retry: {{max_attempts: 4, mode: requeue, on_errors: [ValueError, resource_exhausted]}}", f"{STEP}, retry: {{max_attempts: 4}}"],
    ),
    "R24": (
        [f"{GET}, retry: {{max_attempts: 2}}, {ROWS % 11}"],
        [f"{GET}, retry: {{max_attempts: 2}}, {ROWS % 10}", f"{GET}, retry: {{max_attempts: 2}}, retry_budget: {{ratio: 0.1}}, {ROWS % 11}",
         f"{STEP}, retry: {{max_attempts: 2}}, {ROWS % 11}"],
    ),
    "R26": (
        [f"{STEP}, retry: {{max_attempts: 2}}, circuit_breaker: {{failure_threshold: 3, shared: false}}"],
        [f"{STEP}, retry: {{max_attempts: 2}}, circuit_breaker: {{failure_threshold: 2, shared: false}}",
         f"{STEP}, retry: {{max_attempts: 2}}, circuit_breaker: {{failure_threshold: 3}}",
         f"{STEP}, retry: {{max_attempts: 2}}, circuit_breaker: {{failure_threshold: 3, shared: false, half_open_requests: 1}}, {ROWS % 1}"],
    ),
    "R27": (
        [f"{STEP}, timeout: {{total_ms: 59999}}, circuit_breaker: {{reset_timeout_s: 60, on_open: wait}}"],
        [f"{STEP}, timeout: {{total_ms: 60000}}, circuit_breaker: {{reset_timeout_s: 60, on_open: wait}}",
         f"{STEP}, timeout: {{total_ms: 59999}}, circuit_breaker: {{reset_timeout_s: 60}}"],
    ),
    "R28": (
        [f"{STEP}, circuit_breaker: {{half_open_requests: 3}}, {ROWS % 20}"],
        [f"{STEP}, circuit_breaker: {{half_open_requests: 2}}, {ROWS % 16}", f"{STEP}, circuit_breaker: {{}}, {ROWS % 1}", f"{STEP}, circuit_breaker: {{half_open_requests: 3}}"],
    ),
    "R29": (
        [f"{STEP}, circuit_breaker: {{count: any}}"],
        [f"{STEP}, circuit_breaker: {{count: faults}}", f"{STEP}, circuit_breaker: {{}}"],
    ),
    "R33": (
        ["id: a, component: room.book", f"{STEP}, compensate: {{component: room.free, retry: {{max_attempts: 1}}}}"],
        ["id: a, component: room.book, compensate: {component: room.free}"],
    ),
    "R34": (
        [f"{STEP}, retry: {{max_attempts: 3}}, compensate: {{component: room.free, retry: {{max_attempts: 2}}}}",
         f"{STEP}, timeout: {{step_ms: 9}}, compensate: {{component: room.free, timeout: {{step_ms: 8}}}}"],
        [f"{STEP}, retry: {{max_attempts: 3}}, timeout: {{step_ms: 9}}, compensate: {{component: room.free, timeout: {{step_ms: 9}}}}"],
    ),
    "R36": (
        ["id: a, component: net.get, config: {url: x}", "id: a, component: net.get, config: {url: x}, retry: {max_attempts: 2}, timeout: {total_ms: 60000}"],
        ["id: a, component: net.get, config: {url: x}, timeout: {step_ms: 60000}", "id: a, component: net.get, config: {url: x}, timeout: {total_ms: 60000}", STEP],
    ),
    "R42": (
        [f"{STEP}", 'id: b, component: db.read, config: {connection: "@db", query: "select ${steps.a.outputs.rows}"}'],
        [f"{STEP}", 'id: b, component: db.read, config: {connection: "@db", query: "select ${params.batch}"}',
         'id: c, component: http.caller, timeout: {step_ms: 5}, config: {url: "https://a.example/${steps.a.outputs.rows}"}',
         'id: d, component: http.caller, timeout: {step_ms: 5}, config: {connection: "@http.a", url: "${steps.a.outputs.rows}"}',
         'id: e, component: files.reader, config: {path: "in/${steps.a.outputs.rows}.csv"}'],
    ),
    "R46": (
        [f"{STEP}, retry: {{max_attempts: 3, on_errors: []}}"],
        [f"{STEP}, retry: {{max_attempts: 1, on_errors: []}}", f"{STEP}, retry: {{max_attempts: 3, on_errors: [VendorError.x]}}"],
    ),
    "R48": (
        [f"id: a, component: net.get, timeout: {{step_ms: 5}}, config: {{url: x}}, {ROWS % 1}",
         f'id: a, component: pipeline, config: {{target: "a:b", input: in.csv}}, {ROWS % 1}'],
        [f"{GET}, {ROWS % 1}", f"{STEP}, {ROWS % 1}", f'id: a, component: python, config: {{call: "a:b"}}, {ROWS % 1}',
         f'id: a, component: net.get, timeout: {{step_ms: 5}}, config: {{url: x}}, inputs: {{row: "${{item}}"}}, {ROWS % 1}'],
    ),
    "R49": (
        [f'{STEP}, inputs: {{path: "in/{{{{ params.batch }}}}.csv"}}', f'{STEP}, inputs: {{rows: ["{{{{steps.a.outputs.rows}}}}"]}}',
         f'{STEP}, compensate: {{component: room.free, config: {{}}}}, idempotency: {{key: "${{params.batch}}{{{{ params.shop }}}}"}}',
         f'{STEP}, inputs: {{row: "{{{{ item.id }}}}"}}, {ROWS % 1}'],
        [f'{STEP}, inputs: {{text: "{{{{ name }}}} and {{ params.batch }}"}}', f'{STEP}, inputs: {{path: "in/${{params.batch}}.csv"}}'],
    ),
    "R52": (
        [f"{PYTHON}, retry: {{max_attempts: 3, on_errors: [{one}]}}, timeout: {{step_ms: 500}}" for one in ("timeout", "transient", "network")]
        + [f"{PYTHON}, timeout: {{step_ms: 5}}, compensate: {{component: python, config: {{call: 'a:b'}}, timeout: {{step_ms: 500}}}}"],
        [f"{PYTHON}, retry: {{max_attempts: 3, on_errors: [timeout]}}, timeout: {{step_ms: 500}}, isolation: process",
         f"{PYTHON}, retry: {{max_attempts: 3, on_errors: [timeout]}}, timeout: {{total_ms: 500000}}",
         f"{PYTHON}, retry: {{max_attempts: 3, on_errors: [connection_reset]}}, timeout: {{step_ms: 500}}",
         f"{PYTHON}, timeout: {{step_ms: 500}}", f"{STEP}, retry: {{max_attempts: 3, on_errors: [timeout]}}, timeout: {{step_ms: 500}}"],
    ),
    "R51": (
        [f"{STEP}, limit: {{rates: {{tokens: 100/min}}}}", f"{STEP}, limit: {{rates: {{calls: 5/s, tokens: {{amount: 9, per_s: 1}}}}}}"],
        [f"{STEP}, limit: {{rates: {{calls: 100/min}}}}", f"{STEP}, limit: {{concurrency: 3}}"],
    ),
    "R53": (
        [LAKE % "", LAKE % ", overwrite: true"],
        [LAKE % ", overwrite: false", LAKE.partition(", compensate")[0] % "" + ", timeout: {step_ms: 5}"],
    ),
}  # fmt: skip


def test_retries_that_would_storm_are_warned_of_before_they_run():
    """S0-44: too many attempts, for every error, by all rows together, without a ceiling, a budget or a way to be told when; and what undoes too little."""
    storm = "retry: {max_attempts: 1000, initial_delay_ms: 1, max_delay_ms: null, max_retry_after_ms: 0, jitter: 0, on_errors: [all]}"
    told = found(steps(f"{GET}, {ROWS % 200}, {storm}"))
    assert {"R01", "R05", "R06", "R14", "R16", "R24"} <= set(told)
    told = found(steps(f"id: a, component: room.book, {storm}"))
    assert "R33" in told
    undone = "compensate: {component: room.free, config: {}, retry: {max_attempts: 1}}"
    assert "R33" in found(steps(f"id: a, component: room.book, retry: {{max_attempts: 3}}, {undone}"))


def test_every_rule_has_its_fixtures():
    """At least one file that it is for, one that it is not for, and a sentence (S0-29)."""
    # R47 is about a connections file, R50 and R54 about a folder: test_connections and test_compile have their steps.
    assert sorted(rule.code for rule in RULES) == sorted([*FIXTURES, "R47", "R50", "R54"])
    assert all(bad and good for bad, good in FIXTURES.values())
    assert all(rule.sentence and rule.severity in ("warning", "note") for rule in RULES)


@pytest.mark.parametrize(("config", "warned"), [('url: "ROWS"', True), ('connection: "@http.a", url: "ROWS"', False)])
def test_an_address_that_a_step_has_put_out_is_warned_of_without_a_connection(config, warned):
    """Its host is chosen by data; with a connection the address is held against that one's."""
    config = config.replace("ROWS", "${steps.a.outputs.rows}")
    told = found(steps(STEP, f"id: b, component: http.caller, timeout: {{step_ms: 5}}, config: {{{config}}}"))
    assert ("R42" in told) is warned


def alone(code: str, lines: list[str]) -> list[list[str]]:
    """What is found in each of these steps, as a file of its own; in two steps that belong together, as one."""
    return [found(steps(*lines))] if code == "R42" else [found(steps(line)) for line in lines]


@table("code", FIXTURES)
def test_rule_finds_what_it_is_for_and_nothing_else(code):
    """S0-29: what is found has this code and no other, so that silencing one hides no other."""
    bad, good = FIXTURES[code]
    assert alone(code, bad) == [[code]] * (1 if code == "R42" else len(bad))
    assert alone(code, good) == [[]] * (1 if code == "R42" else len(good))


@table("code", FIXTURES)
def test_rule_can_be_silenced_by_its_code(code):
    """For the step, and for the whole file (S0-29)."""
    lines = FIXTURES[code][0]
    lines = lines if code == "R42" else lines[:1]
    assert found(steps(*lines[:-1], f"{lines[-1]}, silence: [{code}]")) == []
    assert found(f"silence: [{code}]\n{steps(*lines)}") == []


class Odd(ConnectionError):
    """What its type says is not what its status says."""

    status_code = 503


class Busy(Exception):
    status_code = 503


@table(
    ("on", "skip", "error", "covered"),
    [
        ("OSError", "unclear", ConnectionResetError("gone"), ""),  # listed by its name, and of another class
        ("ConnectionError", "network_error", Odd("odd"), "most of which"),  # so is this one, unlike others of its name
        ("503", "unavailable", Busy("busy"), "which"),
        ("ConnectionError", "OSError", ConnectionResetError("gone"), "which"),
        ("timeout", "transient", TimeoutError("late"), "which"),
    ],
)
def test_what_is_said_never_to_be_retried_is_not(on, skip, error, covered):
    """R12 asks the policy, and not what errors of a name mostly are (S0-29)."""
    policy = RetryPolicy(max_attempts=3, on_errors=[on], skip_on_errors=[skip])
    assert policy.decide(error, attempt=1).retry is (covered != "which")
    text = steps(f"{STEP}, retry: {{max_attempts: 3, on_errors: [{on}], skip_on_errors: [{skip}]}}")
    told = [one.got for one in compile_text(text, find=known, rules=(check,)).mistakes if one.code == "R12"]
    assert told == ([f"{on}, {covered} {skip} in skip_on_errors covers"] if covered else [])


def test_a_warning_says_where_and_what_to_do():
    """On one line, at its place in the file, with its code; the third attempt of the seed's example gets nothing (S0-29)."""
    compiled = compile_text(steps(*FIXTURES["R03"][0][:1]), "f.yaml", find=known, rules=(check,))
    (told,) = map(str, compiled.mistakes)
    words = "expected time for every attempt, got 4 min 58.75 s left for attempt 2; raise it to 15 min 3.75 s"
    assert told == f"f.yaml:7:94: warning: steps.a.timeout.total_ms: {words}, or lower max_attempts [R03]"
    assert compiled.manifest is not None


@table(
    "lines",
    [
        # Without a ceiling of its own a step has the usual one of 30 s, which would cut the last wait.
        (
            f"{STEP}, retry: {{max_attempts: 7, max_delay_ms: 120000}}",
            "lower it to 40 s",
            f"{STEP}, retry: {{max_attempts: 7, max_delay_ms: 40000}}",
        ),
        (
            f"{STEP}, retry: {{max_attempts: 3, max_delay_ms: 60000}}",
            "leave it out",
            f"{STEP}, retry: {{max_attempts: 3}}",
        ),
        (
            f"{STEP}, retry: {{max_attempts: 14, mode: requeue, retry_exhausted: false}}",
            "lower max_attempts",
            f"{STEP}, retry: {{max_attempts: 9, mode: requeue, retry_exhausted: false}}",
        ),
    ],
)
def test_ways_out_lead_out_and_change_nothing_else(lines):
    """Whoever does what is said has the schedule from before, as far as it goes (S0-29)."""
    bad, way_out, good = lines
    before, after = (compile_text(steps(line), find=known, rules=(check,)) for line in (bad, good))
    (told,) = before.mistakes
    assert (told.way_out, after.mistakes) == (way_out, ())
    delays = [compiled.manifest.steps[0].timing["delays"] for compiled in (before, after)]
    assert delays[0][: len(delays[1])] == delays[1]


def test_the_way_out_of_a_weak_compensation_keeps_its_errors():
    """A block of its own would otherwise retry less than none (S0-29)."""
    line = f"{STEP}, retry: {{max_attempts: 6, retry_exhausted: false}}, compensate: {{component: room.free%s}}"
    compiled = compile_text(steps(line % ""), find=known, rules=(check,))
    (told,) = [str(one) for one in compiled.mistakes]
    block = "retry: {preset: step, unclear: retry, max_attempts: 6}"
    assert told.endswith(f"got 3; add {block} [R34]")
    mended = compile_text(steps(line % f", {block}"), find=known, rules=(check,))
    assert mended.mistakes == ()
    assert compiled.manifest is not None
    assert mended.manifest is not None
    before, after = (one["a"].policy["compensate_retry"] for one in (compiled.manifest, mended.manifest))
    assert before | {"max_attempts": 6} == after
    (told,) = [
        str(one)
        for one in compile_text(steps(line % ", retry: {max_attempts: 2}"), find=known, rules=(check,)).mistakes
    ]
    assert told.endswith("got 2; write max_attempts: 6 [R34]")


def test_a_silence_that_silences_nothing_is_told():
    """D-26: in a step and in the file; not where a parameter that has no value yet may be the reason."""
    idle = steps(f"{STEP}, silence: [R03]")
    assert found(idle) == ["R00"]
    assert found(f"silence: [R18]\n{steps(STEP)}") == ["R00"]
    assert found(f"silence: [R01]\n{steps(FIXTURES['R01'][0][0] + ', silence: [R01]')}") == ["R00"]
    open_text = idle.replace("default: monday", "min: 1")
    assert found(open_text, complete=False) == []


def test_a_file_with_errors_has_no_warnings():
    """Also where the error is one of the rules' own, such as a code that nobody knows."""
    warned = FIXTURES["R03"][0][0]
    assert found(steps(warned)) == ["R03"]
    compiled = compile_text(f"silence: [R99]\n{steps(warned)}", find=known, rules=(check,))
    assert [(one.severity, one.got) for one in compiled.mistakes] == [("error", "R99")]


@table(
    ("silence", "words"),
    [
        ("[R99]", "expected the code of a warning, got R99"),
        ("[R03x]", "did you mean 'R03'?"),
        ("[R00]", "expected the code of a warning"),
        ("R03", "expected a list of codes, got R03; write it as [R18]"),
        ("[R03, R03]", "expected each code once"),
        ("[{a: 1}]", "expected the code of a warning, got a mapping"),
    ],
)
def test_a_code_that_no_rule_has_is_an_error(tmp_path, silence, words):
    """D-26: also when a file is loaded in Python, where warnings are not told."""
    text = f"silence: {silence}\n{steps('id: a, component: python, config: {call: a:b}')}"
    told = [str(one) for one in compile_text(text, find=known, rules=(check,)).errors]
    assert any(words in one for one in told), told
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="silence"):
        Flow.load(tmp_path / "f.yaml")


def test_a_file_that_is_wrong_is_not_warned_of():
    """A block that could not be read is no policy (S0-29)."""
    text = steps('id: a, component: net.get, config: {url: x}, timeout: {step_ms: "5"}')
    compiled = compile_text(text, find=known, rules=(check,))
    assert [one.severity for one in compiled.mistakes] == ["error"]


def test_strict_makes_warnings_count_and_notes_never(tmp_path, monkeypatch):
    """Exit code 0 with warnings, 2 with --strict; for validate and compile (S0-29)."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("def b(): ...")
    python = 'id: a, component: python, config: {call: "a:b"}, idempotent: true, retry:'
    Path("warned.yaml").write_text(steps(f"{python} {{max_attempts: 21}}"))
    Path("noted.yaml").write_text(steps(f"{python} {{max_attempts: 3, max_delay_ms: 60000}}"))
    run = CliRunner().invoke
    assert [run(app, ["validate", name]).exit_code for name in ("warned.yaml", "noted.yaml")] == [0, 0]
    assert [run(app, ["validate", name, "--strict"]).exit_code for name in ("warned.yaml", "noted.yaml")] == [2, 0]
    assert [run(app, ["compile", name, "--strict"]).exit_code for name in ("warned.yaml", "noted.yaml")] == [2, 0]
    told = run(app, ["validate", "warned.yaml"])
    assert told.stderr.rstrip().endswith("[R01]")
    assert told.stdout == "warned.yaml: valid, 1 step, 1 warning.\n"


@table("name", [name for name in examples() if not name.startswith("seed")])
def test_examples_are_without_findings(name):
    """What the docs show follows the rules (S0-29)."""
    text = examples()[name]
    found_here = compile_text(text, find=known, rules=(check,), complete=False)
    assert [str(one) for one in found_here.mistakes] == []


def test_a_thousand_steps_take_less_than_a_second():
    """Every rule on every step; of the processor's time, so that a busy machine is no reason (S0-29)."""
    lines = [
        f'id: s{n}, component: python, config: {{call: "a:b"}}, retry: {{max_attempts: 3, jitter: 0.{n % 9}}}, '
        f"timeout: {{step_ms: {1000 + n}, total_ms: 100000}}, circuit_breaker: {{failure_threshold: 9, shared: false}}, "
        f'idempotency: {{key: "${{params.batch}}:${{item}}"}}, {ROWS % 2}'
        for n in range(1000)
    ]
    model = compile_text(steps(*lines), find=known).model
    assert model is not None
    start = time.process_time()
    assert len(check(model)) > 100
    assert time.process_time() - start < 1
