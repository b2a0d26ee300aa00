"""
Writes what comes from data: the tables of the reference (error classes and rules, presets, configuration keys, events, metrics), and
below each requirement the tests that prove it.

    python docs/generate.py            rewrite what stands between the markers
    python docs/generate.py --check    change nothing, and fail if anything would change

A section stands between ``<!-- generated: name -->`` and ``<!-- generated: end -->``, the tests of a requirement on a line in small
print below its sentence; everything else on a page is written by hand.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components import steps as step_rooms
from outlast.components.registry import find_component, find_family
from outlast.settings import blocks, keys
from outlast import presets
from outlast.verdicts import rules
from outlast.observe import events, metrics
from outlast.spec import keys as file_keys
from outlast.spec import rules as file_rules
from outlast.policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DOCS = Path(__file__).resolve().parent
SECTION = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- generated: end -->)", re.DOTALL)

# What a code stands for, where the rule itself does not say.
SQLSTATE_MEANINGS = {
    "03": "statement not complete",
    "08": "connection exception",
    "21": "cardinality violation",
    "22": "data exception",
    "23": "integrity constraint violation",
    "25P04": "transaction too long",
    "26": "no such prepared statement",
    "28": "authorization refused",
    "34": "no such cursor",
    "42": "syntax error, unknown table or column",
    "42501": "privilege missing",
    "53": "out of connections, memory or disk",
    "54": "limit of the program exceeded",
    "57P01": "shut down by an administrator",
    "57P02": "crashed",
    "57P03": "cannot connect now",
    "57P05": "idle session ended",
    "58": "error outside of the database",
    "XX001": "data corrupted",
    "XX002": "index corrupted",
}
SQLITE_NAMES = {
    1: "ERROR", 3: "PERM", 5: "BUSY", 6: "LOCKED", 7: "NOMEM", 8: "READONLY", 9: "INTERRUPT", 10: "IOERR", 11: "CORRUPT", 13: "FULL",
    14: "CANTOPEN", 15: "PROTOCOL", 17: "SCHEMA", 18: "TOOBIG", 19: "CONSTRAINT", 20: "MISMATCH", 21: "MISUSE", 23: "AUTH",
    25: "RANGE", 26: "NOTADB",
}  # fmt: skip


def table(headings: str, rows: Iterable[Iterable[object]]) -> str:
    names = headings.split(" | ")
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(*words: object) -> str:
    return ", ".join(f"`{word}`" for word in words)


def comments(module: Any, pattern: str) -> dict[str, str]:
    """What the source says in a comment behind (or before) a line: the first group is the key, the second the comment."""
    return dict(re.findall(pattern, inspect.getsource(module), re.MULTILINE))


# --- verdicts ---


def error_classes() -> str:
    rows = (
        (code(known.name), known.category, code(known.tier), code(*known.parents), "yes" if known.fatal else "")
        for known in rules.ERROR_CLASSES.values()
    )
    return table("error class | category | tier | parents | fatal", rows)


def statuses() -> str:
    rows = [(code(status), code(name), rules.ERROR_CLASSES[name].category) for status, name in rules.STATUSES.items()]
    for rest, name in (("any other 4xx", "client_error"), ("any other 5xx", "server_error_other")):
        rows.append((rest, code(name), rules.ERROR_CLASSES[name].category))
    return table("status | error class | category", rows)


def sqlstates() -> str:
    said = comments(rules, r'^    "(\w{2}|\w{5})": "\w+",  # (.*)$')
    rows = (
        (
            code(state) + ("" if len(state) == 5 else " (class)"),
            said.get(state, SQLSTATE_MEANINGS.get(state, "")),
            code(name),
            rules.ERROR_CLASSES[name].category,
        )
        for state, name in rules.SQLSTATES.items()
    )
    return table("SQLSTATE | meaning | error class | category", rows)


def errnos() -> str:
    by_class: dict[str, list[str]] = {}
    for symbol, name in rules.ERRNOS.items():
        by_class.setdefault(name, []).append(symbol)
    rows = ((code(*symbols), code(name), rules.ERROR_CLASSES[name].category) for name, symbols in by_class.items())
    return table("errno | error class | category", rows)


def sqlite_codes() -> str:
    rows = (
        (number, code(f"SQLITE_{SQLITE_NAMES[number]}"), code(name), rules.ERROR_CLASSES[name].category)
        for number, name in rules.SQLITE_CODES.items()
    )
    return table("result code | name | error class | category", rows)


def library_codes() -> str:
    rows = []
    for family, table_of in rules.CODES.items():
        by_class: dict[str, list[str]] = {}
        for number, name in table_of.items():
            by_class.setdefault(name, []).append(number)
        for shown, (name, numbers) in zip((family, *[""] * len(by_class)), by_class.items(), strict=False):
            rows.append((shown, code(*numbers), code(name), rules.ERROR_CLASSES[name].category))
    return table("of | codes | error class | category", rows)


def exception_types() -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for dotted, name in rules.TYPES.items():
        module, _, short = public(dotted).rpartition(".")
        grouped.setdefault((module or "builtins", name), []).append(short)
    rows = []
    previous = ""
    for (module, name), types in grouped.items():
        rows.append((code(module) if module != previous else "", code(*types), code(name)))
        previous = module
    return table("module | types | error class", rows)


def public(dotted: str) -> str:
    for private, shown in rules.PUBLIC.items():
        if dotted.startswith(private):
            return shown + dotted[len(private) :]
    return dotted


# --- policies ---


def ready_made() -> str:
    said = {
        name: " ".join(text.replace("#:", " ").split())
        for text, name in re.findall(r"^((?:#: .*\n)+)(\w+) = ", inspect.getsource(presets), re.MULTILINE)
    }
    rows = []
    for name, policy in vars(presets).items():
        if isinstance(policy, RetryPolicy):
            waits = "<br>".join(
                f"{d.nominal:g} s" if d.min == d.max else f"{d.nominal:g} s ({d.min:g} to {d.max:g})"
                for d in policy.schedule()
            )
            listed = code(*(spec.__name__ if isinstance(spec, type) else spec for spec in policy.on_errors))
            rows.append((code(name), said[name].replace("``", "`"), policy.max_attempts, waits, listed))
    return table("preset | what for | attempts | waits: nominal (from, to) | on_errors", rows)


def configuration_keys() -> str:
    rows = ((code(key), text, unit(key)) for key, text in blocks.CONFIG_KEYS.items())
    return table("key | meaning | unit", rows)


def block_keys(block: str) -> str:
    rows = (
        (code(*keys.spellings(name, one.kind)), KINDS[one.kind], one.meaning)
        for name, one in keys.BLOCKS[block].items()
    )
    return table("key | value | meaning", rows)


KINDS = {
    "text": "text",
    "integer": "an integer",
    "number": "a number",
    "truth": "true or false",
    "list": "a list",
    "wait": "a duration of at least 0",
    "time": "a duration greater than 0",
    "function": '`"module:name"`',
    "block": "a block",
}


def unit(key: str) -> str:
    return {"ms": "milliseconds", "s": "seconds"}.get(key.rpartition("_")[2] if "_" in key else "", "")


# --- events ---


def event_list() -> str:
    parts = []
    for name, event in events.EVENTS.items():
        older = [alias for alias, canonical in events.ALIASES.items() if canonical == name]
        derived = [key for key, member in inspect.getmembers(event) if isinstance(member, property)]
        lines = [
            f"### {name}",
            inspect.cleandoc(event.__doc__ or ""),
            f"Class {code(event.__name__)}, name {code(name)}, level {code(event.level)}"
            + (f", older name{'s' if len(older) > 1 else ''} {code(*older)}" if older else "")
            + ".",
            f"Fields: {code(*(field.name for field in fields(event)))}."
            + (f" Derived: {code(*derived)}." if derived else ""),
        ]
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts)


def metric_list() -> str:
    rows = ((code(metric.name), metric.kind, code(*metric.labels), metric.about) for metric in metrics.METRICS)
    return table("metric | kind | labels | what it says", rows)


def recorded_metrics() -> str:
    rows = ((code(metric.name), code(*metric.labels), metric.about) for metric in metrics.RECORDED)
    return table("metric | labels | what it says", rows)


PARTS = {
    "file": "The file",
    "param": "A parameter",
    "profile": "A profile",
    "step": "A step",
    "circuit_breaker": "A step's circuit breaker",
    "idempotency": "Idempotency",
    "compensate": "Compensation",
    "for_each": "For each row",
}


def pipeline_file_keys() -> str:
    """The tables of a pipeline file, one after the other."""
    parts = []
    for name, heading in PARTS.items():
        known = file_keys.STEP_BREAKER if name == "circuit_breaker" else file_keys.TABLES[name]
        needed = {key for key, one in known.items() if one.needed}
        meanings = (
            {key: one.meaning for key, one in known.items()}
            if name == "circuit_breaker"
            else file_keys.meanings_of(name)
        )
        rows = [(f"`{key}`", meaning, "yes" if key in needed else "") for key, meaning in meanings.items()]
        parts.append(f"### {heading}\n\n{table('key | meaning | needed', rows)}")
    outputs = [(code(name), meaning) for name, meaning in file_keys.OF_ROWS.items()]
    parts.append(f"### What a step with for_each puts out\n\n{table('output | meaning', outputs)}")
    return "\n\n".join(parts)


def step_components() -> str:
    """Every component of a step: its config, its outputs, what it does, an example."""
    parts = []
    for name in step_rooms.OWN:
        found = find_component(name)
        lines = [f"### {name}", found.summary, config_table(found)]
        if found.outputs is None:
            lines.append("Outputs: any name; what is referred to must be returned.")
        else:
            lines.append(table("output | meaning", [(code(key), meaning) for key, meaning in found.outputs.items()]))
        lines += said_of(found)
        lines.append(f"```yaml\ncomponent: {name}\nconfig: {json.dumps(dict(found.example), ensure_ascii=False)}\n```")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts)


def said_of(found) -> list[str]:
    """What a component does, in a sentence for each thing that is so."""
    said = [f"Mode: {', '.join(found.modes)}."] if found.modes else []
    for rule, words in (
        ("allowed", "A step may give in place of the connection"),
        ("warning", "A step may give in place of the connection, with a warning"),
        ("forbidden", "Only the connection has"),
    ):
        fields = [key for key, one in found.overrides.items() if one == rule]
        said += [f"{words}: {code(*fields)}."] if fields else []
    said += [f"No references in {code(*found.literal)}."] if found.literal else []
    said += ["What it has done is not undone by failing."] if found.side_effects else []
    said += ["Doing it twice is doing it once."] if found.idempotent else []
    for key, values in found.idempotent_if.items():
        words = ", ".join("nothing" if value is None else f"`{value}`" for value in values)
        said.append(f"Doing it twice is doing it once where `{key}` is {words}.")
    said += ["It waits for somebody else."] if found.network else []
    said += ["A step should say what undoes it, in `compensate` (R33)."] if found.needs_compensation else []
    said += ["With `for_each` it gets the row by itself, if the step does not name it."] if found.takes_row else []
    return [" ".join(said)] if said else []


def config_table(found) -> str:
    """The keys of a config model."""
    usual, properties = found.resolved({}), found.schema()["properties"]
    rows = []
    for key in found.keys:
        default = "" if key not in usual or usual[key] is None else f"`{json.dumps(usual[key])}`"
        needed = "" if key in usual else "yes"
        meaning = properties[key].get("description", properties[key].get("title", ""))
        choices = found.choices(key)
        shown = f"{meaning}; one of {code(*choices)}" if choices else meaning
        rows.append((f"`{key}`" + (" (secret)" if key in found.secrets else ""), shown, needed, default))
    return table("key | meaning | needed | default", rows)


def connection_families() -> str:
    """Every family of connections with its fields."""
    parts = []
    for name in step_rooms.OWN_FAMILIES:
        found = find_family(name)
        example = json.dumps(dict(found.example), ensure_ascii=False)
        parts += [f"### Connections of {name}", found.summary, config_table(found)]
        parts.append(f"```yaml\nconnections:\n  {name}:\n    shop: {example}\n```")
    return "\n\n".join(parts)


def pipeline_file_rules() -> str:
    """What the rules about pipeline files warn of."""
    return table(
        "code | what it warns of",
        [
            (f"`{rule.code}`", rule.sentence + (" (a note)" if rule.severity == "note" else ""))
            for rule in file_rules.RULES
        ],
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "error classes": error_classes,
    "statuses": statuses,
    "sqlstates": sqlstates,
    "errnos": errnos,
    "sqlite codes": sqlite_codes,
    "library codes": library_codes,
    "exception types": exception_types,
    "presets": ready_made,
    "configuration keys": configuration_keys,
    **{f"keys of {block.replace('_', ' ')}": functools.partial(block_keys, block) for block in keys.BLOCKS},
    "pipeline file keys": pipeline_file_keys,
    "components of steps": step_components,
    "families of connections": connection_families,
    "pipeline file rules": pipeline_file_rules,
    "events": event_list,
    "metrics": metric_list,
    "recorded metrics": recorded_metrics,
}


# --- requirements ---

TESTS = DOCS.parent / "tests"
ID = re.compile(r"\b(?:S\d-\d\d|[CU]-\d\d|D-\d+)\b")
RANGE = re.compile(r"\b(S\d|[CUD])-(\d+)\.\.\1-(\d+)\b")
REQUIREMENT = re.compile(rf"^- \*\*({ID.pattern})\*\* \S.*\n(?:  (?!<br><small>)\S.*\n)*", re.MULTILINE)
OPENING = re.compile(
    rf"(?:{ID.pattern}|semantics \d+)[^:]*"
)  # of a docstring: what it proves; ids further on are only mentioned
PROOF = re.compile(r"^  <br><small>.*</small>\n", re.MULTILINE)
SHOWN = 3  # the tests that name the fewest requirements: they are about this one


def spelled(opening: str) -> str:
    """The opening of a docstring with ranges of ids in full: S1-08..S1-10 is S1-08, S1-09, S1-10."""

    def each(found: re.Match[str]) -> str:
        kind, first, last = found[1], found[2], found[3]
        if int(first) >= int(last):
            raise SystemExit(f"expected a range of requirements to go up, got: {found[0]}.")
        return ", ".join(f"{kind}-{number:0{len(first)}}" for number in range(int(first), int(last) + 1))

    return RANGE.sub(each, opening)


@functools.cache
def proofs() -> dict[str, list[str]]:
    """The tests whose docstrings open with a requirement, by its id; those first that open with the fewest."""
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for test in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
                opening = OPENING.match(ast.get_docstring(test) or "")
                ids = set(ID.findall(spelled(opening[0]))) if opening else set()
                for one in ids:
                    place = f"{path.relative_to(TESTS).as_posix()}::{test.name}"
                    found.setdefault(one, []).append((len(ids), place))
    return {one: [place for _, place in sorted(places)] for one, places in found.items()}


def with_proofs(text: str) -> str:
    """The page with the tests of each requirement below its sentence."""

    def proved(found: re.Match[str]) -> str:
        tests = proofs().get(found[1], [])
        more = f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
        return found[0] + (f"  <br><small>{code(*tests[:SHOWN])}{more}</small>\n" if tests else "")

    return REQUIREMENT.sub(proved, PROOF.sub("", text))


def rendered(text: str) -> str:
    """The page with everything that is generated as it should be."""
    return with_proofs(SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n\n{found[3]}", text))


def pages() -> list[Path]:
    """The pages that have something generated."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return [page for page, text in texts.items() if SECTION.search(text) or REQUIREMENT.search(text)]


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = [page for page in pages() if rendered(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(f"{'out of date' if check else 'written'}: {page.relative_to(DOCS)}")
        if not check:
            page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
