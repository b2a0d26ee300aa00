"""Texts that a reader of YAML must survive, and files that it must take."""

from __future__ import annotations

import re

from outlast.spec.compile import compile_text
from outlast.spec.manifest import Manifest

LINE = re.compile(r"f\.yaml:\d+:\d+: .*expected .+, got .*; .+")  # a dot is no line end

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(ord('a') + n)}: &{chr(ord('a') + n)} [{','.join(['*' + chr(ord('a') + n - 1)] * 9)}]\n" for n in range(1, 9)
)
HEAD = 'oml_version: "0.1.0"\nname: movies\n'
STEP = '  - {id: a, component: python, config: {call: "a:b"'

HOSTILE: dict[str, str | bytes] = {
    "nothing": "",
    "brackets": "[" * 100_000,
    "braces": "{" * 100_000,
    "lists in lists": "- " * 100_000,
    "keys in keys": "? " * 100_000,
    "mixed depth": "[{a: " * 30_000,
    "indented depth": "".join(f"{' ' * n}a:\n" for n in range(1_500)),
    "closing brackets": "]" * 100_000,
    "a bomb of aliases": BOMB,
    "an alias in itself": "a: &a {b: *a}",
    "many anchors": "".join(f"- &a{n} x\n" for n in range(20_000)),
    "many aliases": "a: &a x\nb: [" + "*a," * 20_000 + "]",
    "merge keys": "a: &a {x: 1}\nb: {<<: *a}\n<<: [*a, *a]",
    "a huge scalar": "a: " + "x" * 4_900_000,
    "a huge quoted scalar": 'a: "' + "x" * 4_900_000 + '"',
    "a huge block": "a: |\n" + "  x\n" * 300_000,
    "a huge key": f"? {'k' * 100_000}\n: 1",
    "many keys": "".join(f"k{n}: 1\n" for n in range(30_000)),
    "many unknown keys of a step": HEAD + "steps:\n  - {id: a, component: python, " + ", ".join(f"k{n}: 1" for n in range(8_000)) + "}",
    "one key again and again": "k: 1\n" * 30_000,
    "a long flow list": "a: [" + "x," * 250_000 + "]",
    "too large": b"#" * 5_000_001,
    "NUL": b"a: \x00b",
    "tabs": "a:\n\tb:\n\t\tc: 1",
    "tabs between": "a:\tb\t# c\nc:\t[1,\t2]\n",
    "lone surrogates": 'a: "\\ud800"',
    "surrogates as bytes": b"a: \xed\xa0\x80",
    "half a character": b"a: \xe2\x82",
    "latin-1": "a: é".encode("latin-1"),
    "UTF-16": "a: 1".encode("utf-16"),
    "a byte order mark": "\ufeffa: 1",
    "old line ends": "a: 1\x85b: 2\u2028c: 3\u2029",
    "carriage returns": "a: 1\rb: 2\r\nc: 3\r",
    "escapes for terminals": "a: \x1b[2J",
    "the end of texts": "a: \ufffe\uffff",
    "directives": "%YAML 9.9\n%TAG ! tag:x:\n---\na: !x 1",
    "YAML 1.1 words": HEAD + "steps:\n" + STEP + ", args: {a: yes, b: no, c: on, d: off, e: 12:30:45, f: 2024-01-01, g: .nan, h: ~}}}",
    "numbers": HEAD + "steps:\n" + STEP + f", args: {{a: {'9' * 5_000}, b: 1e999999, c: 0x{'f' * 5_000}, d: -0, e: +.5, f: 0b1}}}}}}",
    "numbers in a block": HEAD + "steps:\n" + STEP + f"}}, retry: {{max_attempts: {'9' * 399}, initial_delay_ms: {'9' * 399}, multiplier: 1.{'0' * 300}}}}}",
    "references": HEAD + "steps:\n" + STEP + ", args: {a: '" + "${" * 20_000 + "', b: '" + "${x}" * 15_000 + "', c: '${params.' }}}",
    "a billion retries": HEAD + "steps:\n" + "".join(f"  - {{id: s{n}, component: python, config: {{call: 'a:b'}}, retry: {{max_attempts: 1000}}}}\n" for n in range(2_000)),
    "too many steps": HEAD + "steps: [" + "{id: a}," * 12_000 + "]",
    "a knot": HEAD + "steps:\n" + "".join(f"  - {{id: s{n}, component: python, config: {{call: 'a:b'}}, needs: [s{(n + 1) % 1_500}, s{(n + 7) % 1_500}]}}\n" for n in range(1_500)),
    "many needs that are wrong": HEAD + "steps:\n" + "".join(STEP.replace("id: a", f"id: s{n}") + f", args: {{x: '${{steps.s{(n + 7) % 1_500}.outputs.x}}'}}}}, needs: [s{n if n % 2 else 'x'}]}}\n" for n in range(1_500)),
    "many needs": HEAD + "steps:\n" + "".join(f"  - {{id: s{n}, component: python, config: {{call: 'a:b'}}, needs: [{','.join(f's{m}' for m in range(max(0, n - 60), n))}]}}\n" for n in range(600)),
    "many parameters": HEAD + "params: {" + ", ".join(f"p{n}: {{type: string}}" for n in range(8_000)) + "}\nsteps: []",
    "a secret again and again": HEAD + "steps:\n" + STEP + ", args: {" + ", ".join(f"password{n}: hunter2" for n in range(6_000)) + "}}}",
    "names that are nearly right": HEAD + "steps:\n" + "".join(f"  - {{id: s{n}, component: pyhton{n}}}\n" for n in range(1_500)),
}  # fmt: skip


def survives(text: str | bytes, *, pure: bool = False) -> None:
    """The one thing that must hold for every text: a manifest, or lines that say why not."""
    found = compile_text(text, "f.yaml", pure=pure)
    lines = [str(mistake) for mistake in found.mistakes]
    assert (found.manifest is None) == bool(lines)
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    if found.model is not None and found.model.node.get("profiles") is not None:
        each = compile_text(text, "f.yaml", pure=pure, complete=False, every_profile=True)
        assert [str(one) for one in each.mistakes if not LINE.fullmatch(str(one))] == []
    if found.manifest is not None:
        assert Manifest.from_json(found.manifest.to_json()) == found.manifest
