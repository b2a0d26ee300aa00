"""
Values that are hard to keep, through a run or a replay into a sink, and back with the reader of that sink.

A sink has one column for them, of one kind at a time: texts, numbers, bytes, times, nested ones, or all kinds mixed.
What it says it has taken must be there once and be what the documentation says it becomes; everything else must be a
dead letter.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import random
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg

import outlast
from mended import Found
from outlast.components import open_source

_PIECES = (
    *(
        "",
        " ",
        "x",
        "ü",
        "日本",
        "👩‍👩‍👧",
        "\u202e",
        "\ufeff",
        "\x00",
        "\x07",
        "\x1b[31m",
        "\x7f",
        "\x85",
        "\u2028",
        "\n",
        "\r",
        "\r\n",
        "\t",
    ),
    *(
        ",",
        ";",
        "|",
        '"',
        '""',
        "'",
        "\\",
        "\\n",
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "%s",
        "{}",
        "$1",
        "null",
        "None",
        "NULL",
        "true",
        "NaN",
    ),
    *("\ud800", "\udfff", "0123", "1e5", "2026-01-01", "<b>", "--", "/*", "é", "e\u0301", "a" * 5000),
)
_INTS = (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**40, -(10**400))
_FLOATS = (0.0, -0.0, 0.1, 1e308, 5e-324, 2.0**53, math.inf, -math.inf, math.nan, 1 / 3)
_EAST = dt.timezone(dt.timedelta(hours=14))
_TIMES = (
    *(
        dt.datetime.min,  # noqa: DTZ901 - users have such ones
        dt.datetime.max,  # noqa: DTZ901 - users have such ones
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - users have such ones
        dt.datetime(2026, 2, 28, 1, 2, 3),  # noqa: DTZ001 - users have such ones
    ),
    *(dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
    *(dt.datetime.min.replace(tzinfo=_EAST), dt.datetime(2026, 3, 29, 2, 30, tzinfo=_EAST)),
)
KINDS = ("text", "int", "float", "bytes", "time", "nested", "mixed")
_EASY = {
    "text": "x",
    "int": 1,
    "float": 0.5,
    "bytes": b"x",
    "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "nested": [1],
    "mixed": "x",
}
_POSTGRES = {
    "text": "text",
    "int": "numeric",
    "float": "double precision",
    "bytes": "bytea",
    "time": "timestamptz",
    "nested": "jsonb",
    "mixed": "jsonb",
}


def made(dice: random.Random, kind: str) -> Any:
    """One value of this kind."""
    match kind:
        case "text":
            return "".join(dice.choices(_PIECES, k=dice.randint(0, 4)))
        case "int":
            return dice.choice(_INTS) if dice.random() < 0.5 else dice.randint(-(2**70), 2**70)
        case "float":
            return (
                dice.choice(_FLOATS) if dice.random() < 0.5 else dice.uniform(-1, 1) * 10.0 ** dice.randint(-300, 300)
            )
        case "bytes":
            return dice.randbytes(dice.choice([0, 1, 16, 3000]))
        case "time":
            return dice.choice(_TIMES)
        case "nested":
            return _nested(dice, dice.choice([1, 2, 3, 200]))
    if dice.random() < 0.2:
        return dice.choice(
            [
                None,
                True,
                False,
                {1, 2},
                frozenset(),
                (1, "x"),
                Decimal("1e-40"),
                Decimal("NaN"),
                UUID(int=7),
                1j,
                object,
            ]
        )
    return made(dice, dice.choice(KINDS[:-1]))


def _nested(dice: random.Random, depth: int) -> Any:
    if depth > 100:
        deep: Any = []
        for _ in range(dice.choice([100, 2000, 100_000])):
            deep = [deep]
        return deep
    if depth == 0:
        return made(dice, dice.choice(["text", "int", "float", "bytes", "time"]))
    inside = [_nested(dice, depth - 1) for _ in range(dice.randint(0, 3))]
    return inside if dice.random() < 0.5 else {"".join(dice.choices(_PIECES[:40], k=2)): each for each in inside}


class Changed(ValueError):
    """There is no documented way to keep it."""


def as_json(value: Any) -> Any:
    """What the documentation says that JSON has for it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        value.encode()  # what is no Unicode has no place
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Changed
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return [as_json(each) for each in sorted(value)]
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {as_json(name): as_json(each) for name, each in value.items()}
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise Changed


def _told(value: Any) -> Any:
    told = as_json(value)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) if isinstance(told, list | dict) else told


def wanted(value: Any, sink: str, kind: str, dialect: str) -> Any:
    """What the reader of this sink must give back for it, as the documentation says."""
    if sink.startswith("jsonl"):
        return as_json(value)
    if sink == "csv":
        told = repr(value) if isinstance(value, float) else _text(value)
        return "" if told is None else told if isinstance(told, str) else repr(told)
    if dialect == "postgres":
        return as_json(value) if _POSTGRES[kind] == "jsonb" else value
    if sink == "parquet":
        return value
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | bytes) else _text(value)


def _text(value: Any) -> Any:
    told = as_json(value)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) if isinstance(told, list | dict) else told


def same(value: Any, found: Any, *, table: bool) -> bool:
    """
    Whether it is the very same: no other number, NaN as NaN, and the sign of a zero unless it is in a table, where
    databases drop it. A column of structures has null for fields that a row has not.
    """
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return (
            isinstance(found, list)
            and len(value) == len(found)
            and all(same(a, b, table=table) for a, b in zip(value, found, strict=True))
        )
    if isinstance(value, dict):
        there = found or {}
        return value.keys() <= there.keys() | {
            name for name, each in value.items() if same(each, None, table=table)
        } and all(same(value.get(name), each, table=table) for name, each in there.items())
    if value is None:
        return found is None or (
            isinstance(found, dict) and all(same(None, each, table=table) for each in found.values())
        )
    if isinstance(value, bool) or isinstance(found, bool):
        return value is found
    if isinstance(value, float):
        number = float(found) if isinstance(found, int | float | Decimal) else None
        if number is None or number != value:
            return number is not None and math.isnan(value) and math.isnan(number)
        return table or math.copysign(1, value) == math.copysign(1, number)
    if isinstance(value, Decimal) and value.is_nan():
        return isinstance(found, Decimal) and found.is_nan()
    return bool(value == found) or (isinstance(value, UUID) and str(value) == found)


def act(tell: Any, store: str, address: str, folder: str, sink: str, of: str, seed: float, count: int) -> None:
    """So many values of each kind in turn, into a sink of their own; tells what was found."""
    found = Found()
    for place, kind in enumerate(KINDS):
        dice = random.Random(f"{seed}{kind}")
        # Every tenth is an easy one: a run stops when too many in a row fail in the same way.
        share = range(count // len(KINDS) + (place < count % len(KINDS)))
        some = [made(dice, kind) if n % 10 else _EASY[kind] for n in share]
        _through(found, kind, some, store=store, address=address, folder=folder, sink=sink, of=of)
    tell(found)


def _through(
    found: Found, kind: str, some: list[Any], *, store: str, address: str, folder: str, sink: str, of: str
) -> None:
    dialect = "" if sink != "table" else "postgres" if address else "sqlite"
    if dialect == "postgres" and kind == "time":
        # What it makes of a time without a zone is the server's own, and what it has before the year 1 no driver reads.
        some = [each.replace(tzinfo=dt.UTC) if each.tzinfo is None or each.year == 1 else each for each in some]
    target, source = _made_sink(kind, address, folder, sink)
    app = outlast.App("values", store=store)

    def mill(*, broken: bool) -> outlast.Pipeline:
        @outlast.stage(retry=None)
        def pass_on(item: Any) -> Any:
            if broken and item["n"] % 10:
                raise ValueError("not yet")
            return item

        return outlast.Pipeline(kind, pass_on, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)

    items = [{"n": n, "v": value} for n, value in enumerate(some)]
    mill(broken=of == "replay").run(items, run_key="k", item_key=lambda item: str(item["n"]), sink=target, check=False)
    if of == "replay":
        mill(broken=False).reprocess(check=False)
    letters = app.store.letters(limit=100_000)
    refused = {int(letter.item_key) for letter in letters if letter.pipeline == kind and letter.status != "resolved"}
    rows = asyncio.run(_read(source))
    there = [int(row["n"]) for row in rows if isinstance(row, dict)]
    lost = set(range(len(some))) - refused - set(there)
    twice = len(there) - len(set(there)) + len(set(there) & refused)
    if lost or twice or len(there) != len(rows):
        note = f"{kind}: {len(lost)} lost such as {[_shown(some[n]) for n in sorted(lost)[:3]]}, {twice} doubled"
        found.add(note, lost=len(lost), doubled=twice, wrong=len(rows) - len(there))
    for row in rows:
        if isinstance(row, dict):
            value = some[int(row["n"])]
            try:
                right = same(wanted(value, sink, kind, dialect), row["v"], table=sink == "table")
            except (ValueError, RecursionError):
                right = False
            if not right:
                found.add(f"{kind}: expected {_shown(value)}, got: {_shown(row['v'])}", wrong=1)
    record = app.store.find_run(kind, "k")
    if record is None or record.counts.succeeded != len(there):
        found.add(f"{kind}: {len(there)} rows, and counted were {record and record.counts}", wrong=1)
    if some and 0 not in there:
        found.add(f"{kind}: the easy ones were refused", wrong=1)
    app.store.close()


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except RecursionError:
        return "something deep"


def _made_sink(kind: str, address: str, folder: str, sink: str) -> tuple[Any, Any]:
    if sink != "table":
        path = f"{folder}/{kind}.{sink}"
        return path, path
    if address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"create table made_{kind} (n integer, v {_POSTGRES[kind]})")
    else:
        with closing(sqlite3.connect(f"{folder}/data.db")) as connection:
            connection.execute(f"create table made_{kind} (n integer, v)")  # of no type: it keeps what it gets
    address = address or f"sqlite:///{folder}/data.db"
    return outlast.Table(address, f"made_{kind}"), outlast.Query(address, f"select n, v from made_{kind}")


async def _read(source: Any) -> list[Any]:
    rows = open_source(source)
    return [row async for row in rows] if hasattr(rows, "__aiter__") else list(rows)
