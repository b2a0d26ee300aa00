"""
What can be said of a file some of whose parameters nobody has given yet. It is read as if those were left out; then it is
compiled with values that they may have, which shows what was only wrong for want of a value, and what no value makes right. Pure.

A value that was tried can prove a file right, and never wrong: for that, something must hold for all values. So a mistake
that comes with all of them is told only where

- no value of the parameter's type can stand, or none of its range: the bound of a number is on one side of it,
- all values that it may have were tried, and no other open parameter is in that step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from outlast.spec import params, references, yaml
from outlast.spec.mistakes import errors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from outlast.spec.mistakes import Mistake
    from outlast.spec.model import Model
    from outlast.spec.params import Param
    from outlast.spec.yaml import Node

# Compiles a tree with these values of parameters, and gives everything that is wrong, warnings of a wrong file included.
Compile: TypeAlias = "Callable[[Node, Mapping[str, Any]], Sequence[Mistake]]"

MOST_STEPS = 4_000  # that are read for all values together; what is not known after that is not told
_FEW_STEPS = 100  # of a longer file only those are read again that something is to be found out of
_MOST_CHOICES = 64  # values of an enum that are tried
_LONGEST = 300  # characters, or entries, of a value that is made as long as it must be
_TEXTS = (
    *(
        "a",
        "30s",
        "a/b.csv",
        "https://example.com/a",
        "public.a",
        "1",
        "GET",
        "upsert",
        "read",
        "",
        "true",
        "0.5",
        "/a",
    ),
    *("2024-02-29", "select 1", "UTC", "utf-8", ",", "wait", "retry", "requeue", "all", "schedule", "full", "fixed"),
    *("main:run", "{}", "[]", "^a$", "a@example.com", "0 0 * * *", "localhost", "127.0.0.1", "5432", "id", "A", ".csv"),
    *("100/min", "exponential", "transient", "2024-02-29T12:00:00Z", "*", "x" * 300),
)
# Among them numbers that many others divide, and powers of two.
_INTEGERS = (1, 2, 10, 60, 1000, 100, 0, 3, 30, 443, 1024, 5040, 720_720, 10**7, 10**9, -1, -100)
_NUMBERS = (1.0, 0.5, 2.0, 10.0, 60.0, 1000.0, 0.0, 0.01, 1.5, 100.0, 5040.0, 720_720.0, 10.0**9, -0.5, -1.0, -100.0)
_DATA: dict[str, tuple[Any, ...]] = {
    "string": _TEXTS,
    "integer": _INTEGERS,
    "number": _NUMBERS,
    "boolean": (True, False),
    "list": ([], ["a"], [1], [{"a": 1, "id": 1}], [["a"]], [1, 2], ["a", "b", "c"]),
    "object": ({}, {"a": "a"}, {"a": 1}, {"a": {"a": 1}}),
}
# What a place takes, as mistakes say it, and which types have such values.
_WORDS = {
    "a text": {"string"},
    "an integer": {"integer"},
    "a number": {"integer", "number"},
    "milliseconds": {"integer", "number"},
    "true or false": {"boolean"},
    "a list": {"list"},
    "a mapping": {"object"},
}
_BOUND = re.compile(
    r"(?:an integer|a number|milliseconds) of at (?P<side>least|most) (?P<number>-?[0-9]+(?:\.[0-9]+)?)"
)
_ALWAYS = ("R42", "R43")  # of references, and of keys that nobody knows: no value changes that
_CONFIGS = ("config", "inputs")  # where what is unknown is left out of every check

Key: TypeAlias = tuple[str, int, int, str]


def settled(model: Model, found: Sequence[Mistake], compile: Compile, most: int = MOST_STEPS) -> list[Mistake]:  # noqa: A002 - what it does
    """
    The mistakes of a file, of those that were `found` with its open parameters left out, and those that no value mends.
    About so many steps are read for it at `most`.
    """
    some = {name: few for name in model.open_params if (few := of_param(model.params[name]))}
    if not some:
        return list(found)
    look = _Look(model, some)
    sure = [one for one in found if not look.is_doubtful(one)]
    look.doubt(
        [one for one in found if look.is_doubtful(one)], {_place(one) for one in sure if one.severity == "error"}
    )
    look.try_all(compile, most)
    told = [*sure, *look.kept(compile)]
    return list(errors_in(told)) or told


def _key(one: Mistake) -> Key:
    return one.file, one.line, one.column, one.code if one.severity != "error" else one.expected


def _place(one: Mistake) -> tuple[str, int, int]:
    return one.file, one.line, one.column


@dataclass(slots=True)
class _Seen:
    """A mistake that comes with the values that were tried so far."""

    one: Mistake
    used: list[Param]  # the open parameters that stand there
    alike: bool = True  # whether its words are the same with all of them


@dataclass(slots=True)
class _Look:
    """What is found out about a file with values of its open parameters."""

    model: Model
    some: Mapping[str, Sequence[Any]]
    _nodes: dict[tuple[int, int], Node] = field(default_factory=dict)
    _doubtful: dict[Key, Mistake] = field(default_factory=dict)
    _told: set[tuple[str, int, int]] = field(default_factory=set)
    _new: dict[Key, _Seen] | None = None
    _clear: set[Any] = field(default_factory=set)  # the steps that some values make right
    _complete: bool = False  # whether everything was tried

    def __post_init__(self) -> None:
        self._nodes = dict(_places(self.model.node))

    # -- what is doubtful ---------------------------------------------------------------------------------------------

    def is_doubtful(self, one: Mistake) -> bool:
        """Whether it may be there only because a parameter was left out."""
        if one.file != self.model.file or one.path[:1] != ("steps",) or one.code in _ALWAYS:
            return False
        if one.severity != "error":
            return bool(self._open_in(self._step(one)))
        block = self._block(one)
        return block is not None and bool(self._open_in(block[1]))

    def doubt(self, some: Sequence[Mistake], told: set[tuple[str, int, int]]) -> None:
        self._doubtful, self._told = {_key(one): one for one in some}, told

    def _step(self, one: Mistake) -> Node | None:
        step = next((step for step in self.model.steps if step.path == one.path[:2]), None)
        if step is not None:
            return step.node
        steps = self.model.node.get("steps")
        at = one.path[1] if len(one.path) > 1 else None
        return steps.items[at] if steps is not None and isinstance(at, int) and at < len(steps.items) else None

    def _block(self, one: Mistake) -> tuple[tuple[str, ...], Node] | None:
        """The block of a step that a mistake is in, with the way to it; None if it is in none, or in a config."""
        node, way = self._step(one), one.path[2:]
        depth = 2 if way[:1] == ("compensate",) else 1
        if node is None or not way or any(part in _CONFIGS for part in way[:depth]):
            return None
        found = node.at(tuple(str(part) for part in way[:depth]))
        return tuple(map(str, way[:depth])), found

    def _open_in(self, node: Node | None) -> list[str]:
        return [] if node is None else [name for name in dict.fromkeys(_params_in(node)) if name in self.some]

    # -- with values --------------------------------------------------------------------------------------------------

    def try_all(self, compile: Compile, left: int) -> None:  # noqa: A002 - what it does
        root = self.model.node
        for values in _together(self.some):
            left -= _steps_in(root)
            if left < 0 and self._new is not None:
                return
            found = {_key(one): one for one in compile(root, values)}
            wrong = {one.path[:2] for one in found.values() if one.severity == "error"}
            self._judge(found, wrong)
            if not self._doubtful and not self._new:
                break
            if _steps_in(root) > _FEW_STEPS:
                root = self._only(root)
        self._complete = True

    def _judge(self, found: Mapping[Key, Mistake], wrong: set[Any]) -> None:
        for key, one in list(self._doubtful.items()):
            if one.severity == "error":
                gone = key not in found
            else:  # of a step that is wrong with these values nothing is warned of
                step = one.path[:2]
                gone = step not in wrong and key not in found
                self._clear |= set() if step in wrong else {step}
            if gone:
                del self._doubtful[key]
        if self._new is None:
            self._new = {}
            for key, one in found.items():
                if one.severity != "error" or _place(one) in self._told:
                    continue
                used = self._used(one)
                if used and self._may_tell(one, used):
                    self._new[key] = _Seen(one, used)
                elif not used and self.is_doubtful(one):  # while a value was missing its block was not looked at
                    self._doubtful[key] = one
            return
        for key, seen in list(self._new.items()):
            if key not in found:
                del self._new[key]
            elif found[key] != seen.one:
                seen.alike = False

    def _used(self, one: Mistake) -> list[Param]:
        node = None if one.file != self.model.file else self._nodes.get((one.line, one.column))
        return [self.model.params[name] for name in self._open_in(node)]

    def _only(self, root: Node) -> Node:
        """The file with the steps that something is to be found out of."""
        steps = root.get("steps")
        wanted = {
            id(self._step(one))
            for one in (*self._doubtful.values(), *(seen.one for seen in (self._new or {}).values()))
        }
        if steps is None:
            return root
        less = yaml.Node("list", steps.line, steps.column, items=tuple(one for one in steps.items if id(one) in wanted))
        pairs = tuple((key, less if value is steps else value) for key, value in root.pairs)
        return yaml.Node("map", root.line, root.column, pairs=pairs)

    # -- what is told -------------------------------------------------------------------------------------------------

    def _may_tell(self, one: Mistake, used: Sequence[Param]) -> bool:
        """Whether that a value is wrong may mean that every other is: by its type, its range, or because there are few."""
        if one.code in _ALWAYS:
            return True
        node = self._nodes[one.line, one.column]
        if node.kind != "scalar":
            return _never_fits("list" if node.kind == "list" else "object", one.expected)
        if node.text != f"${{params.{used[0].name}}}":
            return _never_fits("string", one.expected)
        param = used[0]
        return _never_fits(param.type, one.expected) or _beyond(param, one.expected) or self._is_alone(one, param)

    def _is_alone(self, one: Mistake, param: Param) -> bool:
        """Whether all of its values can be tried, and nothing else in the step is open."""
        few = param.type == "boolean" or (param.enum is not None and len(param.enum) <= _MOST_CHOICES)
        return few and self._open_in(self._step(one)) == [param.name] and " as steps." not in one.expected

    def kept(self, compile: Compile) -> list[Mistake]:  # noqa: A002 - what it does
        """What is told of all that is left."""
        told: list[Mistake] = []
        for seen in (self._new or {}).values():
            param, expected = seen.used[0], seen.one.expected
            if (
                self._complete or _beyond(param, expected) or not self._is_alone(seen.one, param)
            ):  # then all must be tried
                told.append(self._worded(seen))
        if not self._complete:
            return told
        told += [one for one in self._doubtful.values() if one.severity != "error" and one.path[:2] in self._clear]
        return told + self._still_wrong([one for one in self._doubtful.values() if one.severity == "error"], compile)

    def _still_wrong(self, doubtful: Sequence[Mistake], compile: Compile) -> list[Mistake]:  # noqa: A002 - what it does
        """
        Those that are there also if nothing else stands in their block: whether a value is right may depend on one that is
        open, and on one that was not tried.
        """
        told: list[Mistake] = []
        for one in doubtful[:_FEW_STEPS]:
            block = self._block(one)
            depth = 0 if block is None else 2 + len(block[0])
            key = str(one.path[depth]) if block is not None and len(one.path) > depth else None
            if block is None or key is None or block[1].kind != "map" or self._open_in(block[1].get(key)):
                continue
            if block[1].get(key) is None:
                continue  # that it is missing may depend on anything
            alone = _replaced(self.model.node, block[1], _with_key(block[1], key))
            if _key(one) in {_key(other) for other in compile(alone, next(_together(self.some)))}:
                told.append(one)
        return told

    def _worded(self, seen: _Seen) -> Mistake:
        """With what is known of the parameter, where it is the whole value, and no words that only one value has."""
        one = seen.one
        whole = one.got.strip("'\"") == f"${{params.{seen.used[0].name}}}"
        got = f"{one.got}, which is {params.range_of(seen.used[0])}" if whole else one.got
        return replace(
            one, got=got, way_out=one.way_out if seen.alike else "change it, or how the parameter is declared"
        )


def _never_fits(kind: str, expected: str) -> bool:
    """
    Whether no value of this type can be what was expected.

    >>> _never_fits("string", "an integer of at least 1"), _never_fits("string", "a number or a text")
    (True, False)
    """
    words = [word for word in _WORDS if word in expected]
    return expected.startswith(tuple(_WORDS)) and not any(kind in _WORDS[word] for word in words)


def _beyond(param: Param, expected: str) -> bool:
    """
    Whether a bound leaves none of a parameter's values.

    >>> _beyond(params.Param("n", "integer", max=0), "an integer of at least 1")
    True
    """
    found = _BOUND.fullmatch(expected)
    if found is None or param.type not in ("integer", "number"):
        return False
    bound = float(found["number"])
    if found["side"] == "least":
        highest = param.max if param.enum is None else max(param.enum, default=None)
        return highest is not None and highest < bound
    lowest = param.min if param.enum is None else min(param.enum, default=None)
    return lowest is not None and lowest > bound


def of_param(param: Param) -> tuple[Any, ...]:
    """
    Values that a parameter may have, from one end of its range to the other; none of a secret.

    >>> of_param(params.Param("n", "integer", min=5, max=80))
    (5, 80, 10, 60, 30)
    """
    if param.sensitive:
        return ()
    if param.enum is not None:
        return param.enum[:_MOST_CHOICES]
    ends = [int(one) if param.type == "integer" else one for one in (param.min, param.max) if one is not None]
    usual = _DATA[param.type]
    some = [*ends, *usual] if param.type in ("integer", "number") else [_sized(one, param) for one in usual]
    fit: list[Any] = []
    for one in some:
        try:
            value = params.value_for(param, one)
        except params.Unfit:
            continue
        if value not in fit or param.type not in ("integer", "number"):
            fit.append(value)
    return tuple(fit)


def _sized(value: Any, param: Param) -> Any:
    """A text or a list with as many characters or entries as the parameter may have."""
    if not isinstance(value, str | list) or (param.min is None and param.max is None):
        return value
    least, most = int(min(param.min or 0, _LONGEST)), None if param.max is None else int(param.max)
    filler: Any = "a" if isinstance(value, str) else [value[0] if value else "a"]
    longer = value + filler * (least - len(value))
    return longer if most is None else longer[: max(most, 0)]


def _together(some: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """A value for each of them, so that every one comes at least twice, beside others."""
    most = max(map(len, some.values()))
    for shift in (0, 1):
        for number in range(most):
            yield {name: one[(number + shift * at) % len(one)] for at, (name, one) in enumerate(some.items())}
        if len(some) == 1:
            return


def _steps_in(root: Node) -> int:
    steps = root.get("steps")
    return 1 if steps is None else 1 + len(steps.items)


def _places(node: Node) -> Iterator[tuple[tuple[int, int], Node]]:
    """What begins at each place; of a key, what it has. The inner one comes last, and wins."""
    yield (node.line, node.column), node
    for inner in node.items:
        yield from _places(inner)
    for key, value in node.pairs:
        yield (key.line, key.column), value
        yield from _places(value)


def _params_in(node: Node) -> Iterator[str]:
    if node.kind == "scalar":
        if "${" in node.text:
            parts, _ = references.read(node.text)
            yield from (part.name for part in references.references_in(parts) if part.kind == "param")
        return
    for inner in (*node.items, *(value for _, value in node.pairs)):
        yield from _params_in(inner)


def _with_key(node: Node, key: str) -> Node:
    """A mapping with nothing but this key."""
    pairs = tuple(pair for pair in node.pairs if pair[0].text == key)
    return yaml.Node("map", node.line, node.column, pairs=pairs)


def _replaced(root: Node, old: Node, new: Node) -> Node:
    """The tree with another node in place of one of its own."""
    if root is old:
        return new
    if root.kind == "scalar":
        return root
    items = tuple(_replaced(one, old, new) for one in root.items)
    pairs = tuple((key, _replaced(value, old, new)) for key, value in root.pairs)
    if items == root.items and all(one is other for (_, one), (_, other) in zip(pairs, root.pairs, strict=True)):
        return root
    if root.kind == "list":
        return yaml.Node("list", root.line, root.column, items=items)
    return yaml.Node("map", root.line, root.column, pairs=pairs)
