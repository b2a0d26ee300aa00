"""
Values of a pipeline file: scalars of the type that is expected, references with the parameters filled in, and secrets,
which have no place there. Whatever is wrong is told at its place, and something usable stands in for it, so that all of
the file is looked at.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlast.errors import closest, is_misspelt, nearest
from outlast.kernel.redact import holds_secret, mask
from outlast.settings.checks import show
from outlast.settings.keys import BLOCKS
from outlast.spec import references, secrets, yaml
from outlast.spec.keys import FORBIDDEN, MEANT, NO_KEYS_OF_STEPS, TABLES, kinds_of
from outlast.spec.mistakes import MOST, Mistake, worded
from outlast.spec.model import WRONG, Template
from outlast.spec.references import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.spec.mistakes import Path
    from outlast.spec.params import Param
    from outlast.spec.yaml import Node

ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", re.ASCII)
MISSING: Any = object()  # in place of a value that is wrong, or that nobody knows yet
USUAL = "change it, or leave the key out for its default"
_EXTENSION = "x-"
# Keys that are read as what was meant whatever stands there, since others refer to it.
_READ_AS_MEANT = frozenset(("params", "steps", "component", "config", "needs", "depends_on", "type"))
HUGE = 1e300
_SHAPES = {"map": "map", "block": "map", "texts": "list", "times": "list", "integers": "map"}  # others are scalars
_ANY_SHAPE = ("data", "jitter")
OUTSIDE = ("a reference to a row in a step that has for_each", "add for_each: {items: ...} to the step")


class Values:
    """
    Reads values. `mistakes` grows with what is wrong; `params` are the parameters that the file declares, and `known` has
    the value of those that have one.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.mistakes: list[Mistake] = []
        self.params: dict[str, Param] = {}
        self.known: dict[str, Any] = {}
        # What is declared wrongly, which is told there: nothing is said of whatever refers to it.
        self.doubtful: set[str] = set()
        self.broken_steps: set[str] = set()
        self.has_nameless = False  # a step without an id: any other name may be meant for it
        self.secrets_told: set[Path] = set()  # where secrets are written out: nothing more is said of them
        self._values = self._characters = 0  # that references have been filled with
        # Why no reference to a row may stand where is being read, and the way out; None: one may.
        self.no_row: tuple[str, str] | None = OUTSIDE

    def wrong(self, node: Node, path: Path, expected: str, got: str, way_out: str, code: str = "") -> None:
        """One more mistake. What stands under the name of a secret is not shown."""
        if node.kind == "scalar" and not node.is_null and got in (node.text, got_of(node)) and _is_below_secret(path):
            got = secrets.HIDDEN
        if expected.startswith("an integer") and (name := self._number_in(node)):  # whole or not, it is none
            way_out = f"declare the parameter {name} with type: integer"
        self.mistakes.append(Mistake(self.file, node.line, node.column, path, expected, got, way_out, code))

    def _number_in(self, node: Node) -> str:
        """The parameter that stands for this value, if it is declared as a number."""
        if node.kind != "scalar" or "${" not in node.text:
            return ""
        parts, _ = references.read(node.text)
        name = next((one.name for one in references.references_in(parts) if one.kind == "param"), "")
        is_number = len(parts) == 1 and name in self.params and self.params[name].type == "number"
        return name if is_number else ""

    def forget(self, path: Path, code: str | None = None) -> None:
        """What was told of this path, under this code, is not told: there is more to say."""
        self.mistakes = [one for one in self.mistakes if one.path != path or code not in (None, one.code)]

    # -- mappings and scalars ------------------------------------------------------------------------------------------

    def mapping(self, node: Node, path: Path, table: str, *, only: Sequence[str] = ()) -> dict[str, Node]:
        """The values of a mapping by their keys. Unknown keys are told, and needed ones that are missing."""
        if node.kind != "map":
            inside = ", ".join(f"{key}: ..." for key in only or first_keys(table))
            way_out = f"write - {{{inside}}}" if table == "step" else f"write it as {path[-1]}: {{{inside}}}"
            self.wrong(node, path, "a mapping", got_of(node), way_out)
            return {}
        known = known_keys(table)
        found: dict[str, Node] = {}
        excused: set[str] = set()  # keys that are there under another name, which is told
        extensible = table in ("file", "step")
        for key, value in node.pairs:
            name = key.written
            if name in known:
                found[name] = value
            elif not (extensible and name.startswith(_EXTENSION)):
                meant = self.unknown(key, path, table, known)
                if node.get(meant) in (None, value):
                    excused.add(meant)
                    if meant in _READ_AS_MEANT or self.is_meant(name, value, meant, known.get(meant, "")):
                        node.rename(key, meant)
                        found[meant] = value
        for name in needed_keys(table):
            if name not in found and name not in excused:
                meaning = TABLES[table][name].meaning
                self.wrong(node, (*path, name), f"the key {name}", "nothing", f"add it: {meaning}")
        return found

    def is_meant(self, name: str, value: Node, meant: str, kind: str) -> bool:
        """
        Whether what stands under a misspelt key is read as what was meant by it, so that all that is wrong with it is told
        as well: the names are much alike, or the block has keys of the one that is meant; and it is of the right shape.
        """
        if meant in ("", "id"):  # by its id others know the step before its keys are read
            return False
        if kind not in _ANY_SHAPE and value.kind != _SHAPES.get(kind, "scalar"):
            return False
        inside = known_keys(meant) if kind == "block" and (meant in BLOCKS or meant in TABLES) else {}
        return is_misspelt(name, meant) or any(key.text in inside for key, _ in value.pairs)

    def unknown(self, key: Node, path: Path, table: str, known: Mapping[str, str]) -> str:
        """Tell of a key that nobody knows; the one that is meant, if that can be guessed."""
        name, code = key.written, "R43"
        where = (*path, yaml.step(name))
        if table == "file" and name in FORBIDDEN:
            self.wrong(key, where, "a key of a pipeline file", show(name), FORBIDDEN[name], code)
            return MEANT.get(name, "")
        if table == "step" and name in NO_KEYS_OF_STEPS:
            self.wrong(key, where, "a known key", show(name), NO_KEYS_OF_STEPS[name], code)
            return ""
        meant = "" if len(self.mistakes) > MOST else closest(name, list(known))  # nobody reads so many
        way_out = f"did you mean {meant!r}?" if meant else f"known are {', '.join(known)}"
        if (head := name.partition(":")[0]) != name and head in known:
            meant, way_out = head, "write a space behind the colon"
        self.wrong(key, where, "a known key", show(name), way_out, code)
        return meant

    def extensions(self, node: Node, path: Path) -> dict[str, Any]:
        return {
            key.text: self.told(value, (*path, key.text), key.text)
            for key, value in node.pairs
            if key.text.startswith(_EXTENSION)
        }

    def text(self, node: Node | None, path: Path) -> str | None:
        """A text that has no references; None if it is missing or wrong."""
        if node is None:
            return None
        value = yaml.value_of(node) if node.kind == "scalar" else None
        if isinstance(value, str):
            self.plain_secret(node, path, value)
            return value
        way_out = "put quotes around it" if value is not None else "write a text"
        self.wrong(node, path, "a text", got_of(node), way_out)
        return None

    def identifier(self, node: Node | None, path: Path, usual: str) -> str:
        text = self.text(node, path)
        if text is None or node is None:
            return usual
        if not ID.fullmatch(text):
            expected = "a name in letters, digits, - and _, of at most 100 characters"
            self.wrong(node, path, expected, show(text), f"write {tidy(text)}" if tidy(text) else "choose another")
            return usual
        return text

    def truth(self, node: Node | None, path: Path) -> bool | None:
        if node is None:
            return None
        value = self.filled(node, path)
        if isinstance(value, bool) or value is None:
            return value
        if value is not MISSING:
            self.wrong(
                node, path, "true or false", got_of(node), yaml.hint(node, "truth") or "write true or false", "R43"
            )
        return None

    def integer(self, node: Node | None, path: Path, low: int) -> int | None:
        if node is None:
            return None
        value = self.filled(node, path)
        if isinstance(value, int) and not isinstance(value, bool) and value >= low:
            return value
        if value is not MISSING and value is not None:
            self.wrong(node, path, f"an integer of at least {low}", got_of(node), yaml.hint(node, "number") or USUAL)
        return None

    def share(self, node: Node | None, path: Path) -> float | None:
        """A number from 0 to 1."""
        if node is None:
            return None
        value = self.filled(node, path)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        if value is not MISSING and value is not None:
            self.wrong(node, path, "a number from 0 to 1", got_of(node), yaml.hint(node, "number") or USUAL)
        return None

    def choice(self, node: Node | None, path: Path, allowed: Sequence[str]) -> str | None:
        if node is None or node.is_null:
            return None
        value = self.filled(node, path)
        if value in allowed:
            return str(value)
        if value is not MISSING:
            way_out = worded(nearest(str(value), allowed)) or "choose one of them"
            self.wrong(node, path, f"one of {', '.join(allowed)}", got_of(node), way_out)
        return None

    def told(self, node: Node, path: Path, name: str = "") -> Any:
        """Data that nothing reads: it has no references, and no secret either."""
        found = _as_told(node)
        self.no_secrets(found, node, path, name)
        return found

    def noted(self, node: Node | None, path: Path) -> dict[str, Any]:
        if node is None or node.is_null:
            return {}
        if node.kind != "map":
            self.wrong(node, path, "a mapping", got_of(node), "write it as name: value")
            return {}
        found: dict[str, Any] = self.told(node, path)
        return found

    def unknown_param(self, node: Node, path: Path, name: str, code: str = "") -> None:
        if name in self.doubtful:
            return
        known = list(self.params)
        near = "" if len(self.mistakes) > MOST else nearest(name, known)
        way_out = worded(near) or (f"known are {', '.join(known[:20])}" if known else "declare it in params")
        self.wrong(node, path, "a parameter that the file declares", show(name), way_out, code)

    # -- references ---------------------------------------------------------------------------------------------------

    def parts(
        self, node: Node, path: Path, text: str, place: references.Place = "text"
    ) -> tuple[tuple[references.Part, ...], bool]:
        """
        The parts of a text with the parameters filled in, those that are known, and whether all of it is right. Of each
        reference that is wrong is told, and it is left out.
        """
        parts, unreadable = references.read(text)
        if unreadable:
            self._unreadable(node, path, unreadable)
        is_right = not unreadable
        signs = references.signs_of(parts) if place == "key" else ""
        if place == "key" and not references.are_apart(parts):
            got, way_out = "two side by side", "write a sign such as : between them"
            self.wrong(node, path, "references that a sign keeps apart", got, way_out, "R20")
            is_right = False
        found: list[references.Part] = []
        unknown: set[str] = set()
        before = ""  # what has been read, for where an address needs it
        for part in parts:
            if isinstance(part, Reference):
                known = self.known.get(part.name, MISSING) if part.kind == "param" else MISSING
                if part.kind == "param" and part.name not in self.params:
                    if part.name not in unknown:
                        self.unknown_param(node, path, part.name, "R42")
                    unknown.add(part.name)
                    is_right = False
                    continue
                if known is not MISSING and len(parts) > 1 and not self.is_room_for(node, path, known):
                    is_right = False
                    continue
                try:
                    if len(parts) == 1:
                        references.whole(known, place)
                    elif known is not MISSING:
                        part = references.in_place(known, place, before, signs)  # noqa: PLW2901 - what stands in its place
                    elif place == "url":
                        references.check_reachable(before)
                except references.Unreadable as misplaced:
                    self.wrong(node, path, misplaced.expected, f"{part}, {misplaced.got}", misplaced.way_out, "R42")
                    is_right = False
                    continue
            if place == "url":
                before += part if isinstance(part, str) else "x"
            found.append(part)
        if not is_right or not self.is_short(node, path, found):
            return references.joined(found), False
        joined = references.joined(found) or ("",)
        if not references.is_clear(joined):
            self.unclear(node, path)
            return joined, False
        return joined, True

    def _unreadable(self, node: Node, path: Path, unreadable: Sequence[references.Unreadable]) -> None:
        named = (
            *(f"${{params.{one}}}" for one in self.doubtful),
            *(f"${{steps.{one}." for one in self.broken_steps),
        )
        for broken in {one.got: one for one in unreadable}.values():  # each once: a text may have thousands
            if not broken.got.startswith(named):
                self.wrong(node, path, "references that can be read", broken.got, broken.way_out, "R42")

    def is_short(self, node: Node, path: Path, parts: Sequence[references.Part]) -> bool:
        """Whether a text that has been filled is no longer than one may be; otherwise that is told."""
        if sum(len(one) for one in parts if isinstance(one, str)) <= references.LONGEST:
            return True
        got, way_out = "more", "give shorter values"
        self.wrong(node, path, f"at most {references.LONGEST:,} characters once it is filled", got, way_out)
        return False

    def is_room_for(self, node: Node, path: Path, value: Any) -> bool:
        """
        Whether a reference may stand for this value: all that references are filled with is no larger than a file may
        be. It is told once; nothing is filled any more after it.
        """
        room = self._values <= yaml.MOST_NODES and self._characters <= yaml.LARGEST
        if room:
            values, characters = references.size(value, yaml.MOST_NODES)
            self._values += values
            self._characters += characters
        left = self._values <= yaml.MOST_NODES and self._characters <= yaml.LARGEST
        if room and not left:
            expected = f"at most {yaml.MOST_NODES:,} values and {yaml.LARGEST:,} characters once references are filled"
            self.wrong(node, path, expected, "more", "refer to large values less often")
        return left

    def unclear(self, node: Node, path: Path) -> None:
        """A value that ends in $ has come to stand before a reference."""
        got, way_out = "$ before ${", "$${ stands for the sign itself: put something between them"
        self.wrong(node, path, "no $ before a reference", got, way_out, "R42")

    def filled(self, node: Node, path: Path) -> Any:
        """
        A scalar outside of config: a parameter may stand for it, nothing that is known only when the step runs. `MISSING`
        if it is wrong, which has been told, or if nobody knows it yet.
        """
        if node.kind != "scalar":
            self.wrong(node, path, "a single value", got_of(node), "write one value")
            return MISSING
        value = yaml.value_of(node)
        if not isinstance(value, str) or "${" not in value:
            return value
        parts, is_right = self.parts(node, path, value)
        for part in references.references_in(parts):
            name = part.name
            if part.kind == "param" and name in self.known:
                continue
            is_right = False
            if part.kind == "param" and (name in self.doubtful or not self.params[name].sensitive):
                continue  # it is given later, or the declaration is mended first
            way_out = "only parameters that are no secrets can stand here"
            self.wrong(node, path, "a value that is known before the step runs", str(part), way_out, "R42")
        return references.filled(parts, lambda one: self.known[one.name]) if is_right else MISSING

    def data(
        self,
        node: Node,
        path: Path,
        places: Mapping[str, references.Place] = MappingProxyType({}),
        place: references.Place = "text",
    ) -> Any:
        """
        A value of config: plain data, in which a `Template` stands for what is known when the step runs. `places` says of
        its keys what the texts under them are.
        """
        if node.kind == "scalar":
            value = yaml.value_of(node)
            if isinstance(value, str):
                if "${" in value:
                    return self.template(node, path, value, place)
                if yaml.is_ambiguous(node):
                    self.wrong(node, path, "a number or a text", node.text, yaml.two_ways(node), "R43")
                    return WRONG
                return value
            if isinstance(value, float) and not abs(value) < HUGE:
                self.wrong(node, path, "a finite number", node.text, "put quotes around it if it is a text")
                return WRONG
            return value
        if node.kind == "list":
            return [self.data(one, (*path, number)) for number, one in enumerate(node.items)]
        found: dict[str, Any] = {}
        for key, value in node.pairs:
            where = (*path, yaml.step(key.text))
            if "${" in key.text:
                self.wrong(
                    key, where, "a key without references", show(key.text), "references stand in values only", "R42"
                )
            found[key.text] = self.data(value, where, place=places.get(key.text, "text"))
        return found

    def template(self, node: Node, path: Path, text: str, place: references.Place = "text") -> Any:
        parts, is_right = self.parts(node, path, text, place)
        if self.no_row is not None:
            expected, way_out = self.no_row
            rows = dict.fromkeys(part for part in references.references_in(parts) if part.kind == "item")
            for row in rows:
                self.wrong(node, path, expected, str(row), way_out, "R42")
            if rows:
                is_right, parts = False, tuple(part for part in parts if part not in rows)
        if not is_right:
            return Template(parts, is_wrong=True)
        if len(parts) == 1:
            (only,) = parts
            if isinstance(only, str):
                return only
            if only.kind == "param" and only.name in self.known:
                value = self.known[only.name]
                return value if self.is_room_for(node, path, value) else WRONG
        return Template(parts)

    # -- secrets ------------------------------------------------------------------------------------------------------

    def no_secrets(self, value: Any, node: Node | None, path: Path, name: str = "") -> None:
        """Tell of every secret in data that stands at this node."""
        for at, where in () if node is None else secrets.inline(value, node, path, self._is_safe, name):
            self.inline(at, where)

    def _is_safe(self, part: Reference) -> bool:
        return part.kind != "param" or (part.name in self.params and self.params[part.name].sensitive)

    def plain_secret(self, node: Node, path: Path, text: str) -> None:
        if holds_secret(secrets.written(text)):
            self.inline(node, path)

    def inline(self, node: Node, path: Path) -> None:
        way_out = "put it into the connections file as ${VARIABLE}, or into a parameter that is sensitive"
        self.wrong(node, path, "no secret in a pipeline file", secrets.HIDDEN, way_out)
        self.secrets_told.add(path)


# -- what is known of the tables ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def known_keys(table: str) -> dict[str, str]:
    """Every key of a table or a block, with the kind of its value."""
    return kinds_of(table)


@lru_cache(maxsize=64)
def needed_keys(table: str) -> tuple[str, ...]:
    return tuple(name for name, key in TABLES[table].items() if key.needed)


def first_keys(table: str) -> Sequence[str]:
    return needed_keys(table) or tuple(known_keys(table))[:2]


def got_of(node: Node) -> str:
    """What stands there, in words; a scalar as it is written."""
    if node.kind != "scalar":
        return "a list" if node.kind == "list" else "a mapping"
    if node.is_null:
        return "nothing"
    return show(node.text)[1:-1] if node.style == "plain" and len(node.text) < 50 else show(node.text)


def tidy(text: str) -> str:
    """A name that is like this one, and allowed; nothing if there is none."""
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:100]
    return found if ID.fullmatch(found) and mask(text) == text else ""  # with other signs a secret is not seen


def as_written(node: Node, got: str, known: dict[int, bool] | None = None) -> str:
    """
    What came, in words; of a value that a reference stands for, the reference. `known` keeps what has been found out of
    nodes, for those who ask about the same large one again and again.
    """
    if got in ("nothing", "none", "what is there"):
        return got
    known = {} if known is None else known
    if id(node) not in known:
        known[id(node)] = _has_references(node)
    return got_of(node) if known[id(node)] else got


def _has_references(node: Node) -> bool:
    if node.kind == "scalar":
        return "${" in node.text
    return any(map(_has_references, node.items)) or any(_has_references(value) for _, value in node.pairs)


def _is_below_secret(path: Path) -> bool:
    return any(secrets.is_named(part) for part in path if isinstance(part, str))


def _as_told(node: Node) -> Any:
    if node.kind == "scalar":
        return finite(yaml.value_of(node))
    if node.kind == "list":
        return [_as_told(one) for one in node.items]
    return {key.text: _as_told(value) for key, value in node.pairs}


def finite(value: Any) -> Any:
    """What JSON can say: a number without an end is a text."""
    return str(value) if isinstance(value, float) and not abs(value) < HUGE else value
