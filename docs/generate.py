"""
Writes the tables of the reference that come from data: error classes and rules, presets, configuration keys, events, metrics.

    python docs/generate.py            rewrite what stands between the markers
    python docs/generate.py --check    change nothing, and fail if anything would change

A section stands between ``<!-- generated: name -->`` and ``<!-- generated: end -->``; everything else on a page is written by hand.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.settings import blocks, keys
from outlast import presets
from outlast.verdicts import rules
from outlast.observe import events, metrics
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
    rows = ((code(*keys.spellings(name, one.kind)), KINDS[one.kind], one.meaning) for name, one in keys.BLOCKS[block].items())
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
    "events": event_list,
    "metrics": metric_list,
}


def rendered(text: str) -> str:
    """The page with every generated section as it should be."""
    return SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n\n{found[3]}", text)


def pages() -> list[Path]:
    """The pages that have generated sections."""
    return [page for page in sorted(DOCS.rglob("*.md")) if SECTION.search(page.read_text(encoding="utf-8"))]


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
