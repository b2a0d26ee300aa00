"""
References in texts: ``${params.name}``, ``${key}`` of the step's own config, ``${steps.id.outputs.name}``, and in a step
with `for_each` its row, ``${item}`` or ``${item.field}``. Nothing else.

A reference is a look-up by name: it calls nothing, reaches no attribute and is never read twice. ``$${`` stands for
``${`` itself. A text that is one reference and nothing else has the value with its type; inside of a longer text the
value is written out.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from outlast.errors import is_misspelt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_T = TypeVar("_T")

LONGEST = 65_536  # characters of a text with references, and of what it comes to
MARK = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}\n]*)\}|\$\{")
_BRACE = re.compile(r"[{}]")
_PARAM = re.compile(r"params\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)", re.ASCII)
_OUTPUT = re.compile(
    r"steps\.(?P<step>[A-Za-z0-9_][A-Za-z0-9_-]*)\.outputs\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)", re.ASCII
)
_SHORT = re.compile(r"steps\.(?P<step>[A-Za-z0-9_][A-Za-z0-9_-]*)\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)", re.ASCII)
_ITEM = re.compile(r"item(?P<fields>(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*)", re.ASCII)
_OWN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_TAKEN = ("params", "steps", "item")  # no key of a config is meant by these
_LIKE = {"params": ("param", "parameter", "parameters", "p"), "steps": ("step",)}  # what others call them
_LIKE_ITEM = frozenset("items row rows record each it element entry".split())  # what others call it


@dataclass(frozen=True, slots=True)
class Reference:
    """
    One reference: to a parameter, to a key of the step's own config, to an output of a step, or to the row that a step
    with `for_each` works on. The name of that is the way to a field, with dots; none for the whole row.
    """

    kind: Literal["param", "own", "output", "item"]
    name: str
    step: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The keys that lead to what is meant of a row, from the outside to the inside."""
        return tuple(self.name.split(".")) if self.name else ()

    def __str__(self) -> str:
        if self.kind == "item":
            return f"${{item.{self.name}}}" if self.name else "${item}"
        if self.kind == "output":
            return f"${{steps.{self.step}.outputs.{self.name}}}"
        return f"${{params.{self.name}}}" if self.kind == "param" else f"${{{self.name}}}"


Part: TypeAlias = str | Reference
#: What a text is to its reader, and so what a value in it must not change: plain text, an address, a path or the
#: key of an object, a path that may be a pattern, rows, an idempotency key.
Place: TypeAlias = Literal["text", "url", "path", "pattern", "rows", "key"]
# Where the path of an address begins. Before that a value would choose the host. Other schemes are refused elsewhere.
_HOST = re.compile(r"(?i)/(?!/)|https?://[^/?#]+[/?]|(?!https?:)[a-z][a-z0-9+.-]*:")


class Unreadable(ValueError):
    """A text whose references cannot be read; `got` and `way_out` say why."""

    def __init__(
        self, got: str, way_out: str, expected: str = "a text with references to come to one that can be used"
    ) -> None:
        super().__init__(got)
        self.got, self.way_out, self.expected = got, way_out, expected


def parse(text: str) -> tuple[Part, ...]:
    """
    The parts of a text: texts and references.

    >>> [str(part) for part in parse("in/${params.day}/${table}.csv")]
    ['in/', '${params.day}', '/', '${table}', '.csv']
    >>> parse("costs $${x}")
    ('costs ${x}',)
    """
    parts, unreadable = read(text)
    if unreadable:
        raise unreadable[0]
    return parts


def read(text: str) -> tuple[tuple[Part, ...], list[Unreadable]]:
    """
    The parts of a text that can be read, and of each reference that cannot, why.

    >>> parts, unreadable = read("${a.b.c}/${params.day}/${")
    >>> [str(part) for part in parts], [one.got for one in unreadable]
    (['/', '${params.day}', '/'], ['${a.b.c}', '${ without its }'])
    """
    if "${" not in text:
        return (text,), []
    if len(text) > LONGEST:
        return (), [Unreadable(f"{len(text):,} characters", f"a text with references has at most {LONGEST:,}")]
    parts: list[Part] = []
    unreadable: list[Unreadable] = []
    ends: dict[int, int] | None = None
    done = 0
    for mark in MARK.finditer(text):
        if mark.start() < done:  # inside of one that has been told
            continue
        parts.append(text[done : mark.start()])
        done = mark.end()
        if mark[0] == "$${":
            parts.append("${")
        elif mark["inside"] is None:
            ends = _ends(text) if ends is None else ends
            end = ends.get(mark.end() - 1, 0)
            if text.find("${", mark.end(), end) < 0:
                unreadable.append(Unreadable("${ without its }", "close it, or write $${ for the sign itself"))
            else:
                way_out = "a reference has no other one in it: write its name out"
                unreadable.append(Unreadable(text[mark.start() : min(end, mark.start() + 60)], way_out))
                done = end
        else:
            try:
                parts.append(_reference(mark["inside"]))
            except Unreadable as broken:
                unreadable.append(broken)
    return joined([*parts, text[done:]]), unreadable


def _ends(text: str) -> dict[int, int]:
    """For each brace that is closed, where what it holds has ended."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            waiting.append(brace.start())
        elif waiting:
            found[waiting.pop()] = brace.end()
    return found


def _reference(inside: str) -> Reference:
    if (found := _PARAM.fullmatch(inside)) is not None:
        return Reference("param", found["name"])
    if (found := _OUTPUT.fullmatch(inside)) is not None:
        return Reference("output", found["name"], found["step"])
    if (found := _ITEM.fullmatch(inside)) is not None:
        return Reference("item", found["fields"][1:])
    if _OWN.fullmatch(inside) and inside not in _TAKEN:
        return Reference("own", inside)
    raise Unreadable(f"${{{inside[:60]}}}", _way_out(inside))


def _way_out(inside: str) -> str:
    forms = "write ${params.name}, ${key of this config} or ${steps.id.outputs.name}"
    if not inside:
        return forms
    if ":-" in inside:
        return "a default stands at the parameter: ${params.name}"
    bare = inside.strip()
    if bare != inside and any(form.fullmatch(bare) for form in (_PARAM, _OUTPUT, _OWN)):
        return f"write ${{{bare}}}, without spaces"
    if (short := _SHORT.fullmatch(bare)) is not None:
        return f"write ${{steps.{short['step']}.outputs.{short['name']}}}"
    if (found := _OUTPUT.match(bare)) is not None:
        return f"write ${{{found[0]}}}: a reference names all of an output, and has no index and no call"
    head, _, rest = inside.partition(".")
    for whole, form in (("params", _PARAM), ("steps", _OUTPUT)):
        if head != whole and form.fullmatch(f"{whole}.{rest}") and (head in _LIKE[whole] or is_misspelt(head, whole)):
            return f"write ${{{whole}.{rest}}}"
    if head == "env" and _OWN.fullmatch(rest):
        return "environment variables stand in the connections file only"
    if head.partition("[")[0] == "item":
        return "write ${item} for the row, ${item.field} for what it has under a key; no index, no call"
    if head in _LIKE_ITEM and _ITEM.fullmatch(f"item.{rest}"):
        return f"write ${{item.{rest}}} for what the row of a step with for_each has under a key"
    if _OWN.fullmatch(head) and _OWN.fullmatch(rest) and head not in ("params", "steps") and rest[0] != "_":
        return f"write ${{steps.{head}.outputs.{rest}}}"
    return f"{forms}, or $${{ for the sign itself"


def written(parts: Sequence[Part]) -> str:
    """The text that `parse` makes these parts of."""
    return "".join(str(part) if isinstance(part, Reference) else part.replace("${", "$${") for part in parts)


def joined(parts: Iterable[str | _T]) -> tuple[str | _T, ...]:
    """
    The same with texts that stand side by side made one, and without empty ones.

    >>> joined(["a", "", "b", 1, "c"])
    ('ab', 1, 'c')
    """
    found: list[str | _T] = []
    texts: list[str] = []  # side by side, made one when they end: each is copied once

    def end() -> None:
        if text := "".join(texts):
            found.append(text)
        texts.clear()

    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        else:
            end()
            found.append(part)
    end()
    return tuple(found)


def is_clear(parts: Sequence[Part]) -> bool:
    """
    Whether `written` can write these parts: a ``$`` before a reference would be read as the sign for itself.

    >>> is_clear(("$", Reference("own", "x"))), is_clear(("$ ", Reference("own", "x")))
    (False, True)
    """
    return not any(
        isinstance(one, str) and one.endswith("$") and isinstance(after, Reference) for one, after in pairwise(parts)
    )


def references_in(parts: Sequence[Part]) -> Iterator[Reference]:
    return (part for part in parts if isinstance(part, Reference))


def filled(parts: Sequence[Part], value_of: Callable[[Reference], Any], place: Place = "text") -> Any:
    """
    What the parts come to: the value itself if there is one reference and nothing else, a text otherwise. Values are not
    read for references, and none of them changes the structure of the text: `Unreadable` for one that would.

    >>> filled(parse("${params.n}"), lambda one: 3), filled(parse("n=${params.n}"), lambda one: "${x}")
    (3, 'n=${x}')
    >>> filled(parse("/customers/${item.id}/sessions"), lambda one: "42#", "url")
    '/customers/42%23/sessions'
    """
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    signs = signs_of(parts) if place == "key" else ""
    text = ""
    for part in parts:
        try:
            if isinstance(part, Reference) and len(parts) == 1:
                return whole(value_of(part), place)
            text += in_place(value_of(part), place, text, signs) if isinstance(part, Reference) else part
        except Unreadable as misplaced:
            raise Unreadable(f"{part}, {misplaced.got}", misplaced.way_out, misplaced.expected) from None
    if len(text) > LONGEST:
        raise Unreadable(f"{len(text):,} characters", f"a text that has been filled has at most {LONGEST:,}")
    return text


def size(value: Any, most: int) -> tuple[int, int]:
    """How many values and characters there are in a value; one that has more than `most` is not read to its end."""
    values = characters = 0
    waiting = [value]
    while waiting and values <= most:
        one = waiting.pop()
        values += 1
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, dict):
            characters += sum(map(len, one))
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        else:  # a text that still has references
            characters += sum(len(part) for part in getattr(one, "parts", ()) if isinstance(part, str))
    return values, characters


def of_row(part: Reference, row: Any) -> Any:
    """
    What a reference to a row stands for: the row itself, or what it has under these keys, one inside of the other. A row
    that is no mapping there, or has no such key, is a LookupError. No attribute is ever looked at.

    >>> of_row(parse("${item.address.city}")[0], {"address": {"city": "Graz"}}), of_row(parse("${item}")[0], 7)
    ('Graz', 7)
    """
    found = row
    for number, name in enumerate(part.fields):
        if not isinstance(found, Mapping):
            before = ".".join(("item", *part.fields[:number]))
            said = f"expected {before} to be a mapping with {name}, got {type(found).__name__}"
            raise LookupError(said)  # noqa: TRY004 - it is data that does not have it
        if name not in found:
            raise LookupError(f"expected the row to have {'.'.join(part.fields[: number + 1])}, got none")
        found = found[name]
    return found


def whole(value: Any, place: Place) -> Any:
    """A value that is all of a text. One that is an address is checked where it is used."""
    if place in ("path", "pattern") and isinstance(value, str):
        _check_segments(value)
    return value


def in_place(value: Any, place: Place, before: str, signs: str = "") -> str:
    """
    A value inside of a text, behind the text `before`: its own signs are no part of the structure. `signs` are those that
    keep the values of a key apart.

    >>> in_place("a/b", "url", "/x/"), in_place("a b&c", "url", "/x?q="), in_place("[1].csv", "pattern", "in/")
    ('a%2Fb', 'a%20b%26c', '[[]1].csv')
    >>> in_place("b:c", "key", "a:", ":")
    'b%3Ac'
    """
    text = in_text(value)
    if place in ("text", "rows"):
        return text
    if place == "key":
        return (
            "".join(f"%{ord(sign):02X}" if sign in signs or sign == "%" else sign for sign in text) if signs else text
        )
    if value is None or isinstance(value, Mapping | list | tuple):
        got = "which is nothing" if value is None else "which is a list or a mapping"
        raise Unreadable(got, "refer to a text or a number", "a value that can be a part of an address or a path")
    if place == "url":
        check_reachable(before)
        if "?" not in before and text in ("", ".", ".."):
            raise Unreadable(
                "which is empty" if not text else "which is . or ..",
                "the address would be that of another resource",
                "a part of the path of url",
            )
        try:
            return quote(text, safe="")
        except UnicodeError:
            raise Unreadable("which has half of a character", "leave it out", "a part of url") from None
    _check_segments(text)
    return glob.escape(text) if place == "pattern" else text


def check_reachable(before: str) -> None:
    """Whether what stands behind this beginning of an address is a part of its path or of its query."""
    if not _HOST.match(before):
        way_out = "name a connection for the host, or refer to the whole address"
        raise Unreadable("which stands before the path", way_out, "references in the path or the query of url")


def _check_segments(text: str) -> None:
    if not {"", ".", ".."}.isdisjoint(text.replace("\\", "/").split("/")):
        raise Unreadable(
            "which has an empty part, . or .. between its /",
            "it would lead elsewhere",
            "the name of a file or an object",
        )


def signs_of(parts: Iterable[object]) -> str:
    """The signs of the texts between several references, which keep their values apart."""
    known = list(parts)
    if sum(not isinstance(part, str) for part in known) < 2:
        return ""
    return "".join(sorted({sign for part in known if isinstance(part, str) for sign in part if not sign.isalnum()}))


def are_apart(parts: Sequence[object]) -> bool:
    """
    Whether the values of a key can be told apart: a sign that is no letter and no digit stands between two references.

    >>> are_apart(parse("${item.a}:${item.b}")), are_apart(parse("${item.a}${item.b}")), are_apart(parse("${item.a}0${item.b}"))
    (True, False, False)
    """
    places = [number for number, part in enumerate(parts) if not isinstance(part, str)]
    return all(
        any(isinstance(part, str) and not part.isalnum() and part for part in parts[one + 1 : after])
        for one, after in pairwise(places)
    )


def in_text(value: Any) -> str:
    """A value inside of a text: as JSON writes it, a text as it is."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
