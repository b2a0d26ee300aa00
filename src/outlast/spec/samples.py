"""
What is wrong with a file whatever the parameters that nobody has given yet come to. A file is compiled with values that
these may have; a mistake that comes with each of them is one of the file. Pure.

A text may be anything, and somebody's own component may take few texts: of those only what no text can be is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from outlast.components.describing import OUTPUT_TYPES
from outlast.spec import params, references, yaml
from outlast.spec.mistakes import errors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from outlast.spec.mistakes import Mistake
    from outlast.spec.model import Model
    from outlast.spec.params import Param
    from outlast.spec.yaml import Node

# Compiles a tree with these values of parameters, and gives what is wrong.
Compile: TypeAlias = "Callable[[Node, Mapping[str, Any]], Sequence[Mistake]]"

_MOST_STEPS = 200  # with mistakes that are looked into: of a long file with more of them the first are told
_MOST_CHOICES = 64  # values of an enum that are tried; of a longer one nothing is sure
_TEXTS = (
    *("a", "a/b.csv", "https://example.com/a", "30s", "public.a", "1", "", "true", "0.5", "/a", "2024-02-29"),
    *("select 1", "UTC", "utf-8", ",", "GET", "main:run", "{}", "[]", "^a$", "a@example.com", "0 0 * * *", "localhost"),
    *("127.0.0.1", "5432", "id", "A", "?a=1", ".csv", "100/min", "exponential", "2024-02-29T12:00:00Z", "*", "x" * 300),
)
# Among them numbers that many others divide, and powers of two.
_INTEGERS = (1, 2, 10, 60, 100, 0, 3, 30, 443, 1024, 5040, 720_720, 10**7, 10**9, -1, -100)
_NUMBERS = (1.0, 0.5, 2.0, 10.0, 60.0, 0.0, 0.01, 1.5, 100.0, 5040.0, 720_720.0, 10.0**9, -0.5, -1.0, -100.0)
_DATA: dict[str, tuple[Any, ...]] = {
    "string": _TEXTS,
    "integer": _INTEGERS,
    "number": _NUMBERS,
    "boolean": (True, False),
    "list": ([], ["a"], [1], [{"a": 1, "id": 1}], [["a"]], [1, 2], ["a", "b", "c"]),
    "object": ({}, {"a": "a"}, {"a": 1}, {"a": {"a": 1}}),
}
_TYPES = tuple(OUTPUT_TYPES.values())


def never_right(model: Model, known: Sequence[Mistake], compile: Compile) -> list[Mistake]:  # noqa: A002 - what it does
    """The errors that a file has with every value of its open parameters that was tried, without those that are `known`."""
    some = {name: few for name in model.open_params if (few := of_param(model.params[name]))}
    if not some:
        return []
    told = {(one.file, one.line, one.column) for one in errors_in(known)}
    root = model.node
    used: dict[Mistake, list[Param]] | None = None  # those that are left, with the parameters that stand there
    for values in _together(some):
        found = dict.fromkeys(errors_in(compile(root, values)))
        if used is None:
            fresh = [one for one in found if (one.file, one.line, one.column) not in told]
            used = _with_params(fresh, model, some)
            used = {one: there for one, there in used.items() if _is_sure(one, there, model)}
            root = _only(root, used)
        else:
            used = {one: there for one, there in used.items() if one in found}
        if not used:
            return []
    return [_worded(one, there) for one, there in (used or {}).items()]


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
    least, most = int(min(param.min or 0, 65_536)), None if param.max is None else int(param.max)
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


def _only(root: Node, mistakes: Collection[Mistake]) -> Node:
    """The file with the steps that the mistakes are about: the others need not be read again and again."""
    steps = root.get("steps")
    if steps is None or any(one.path[:1] != ("steps",) for one in mistakes):
        return root
    wanted = list(dict.fromkeys(one.path[1] for one in mistakes if len(one.path) > 1))[:_MOST_STEPS]
    if any(isinstance(one, int) for one in wanted):
        return root
    named = set(map(str, wanted))
    kept = tuple(one for one in steps.items if (found := one.get("id")) is not None and yaml.step(found.text) in named)
    less = yaml.Node("list", steps.line, steps.column, items=kept)
    pairs = tuple((key, less if value is steps else value) for key, value in root.pairs)
    return yaml.Node("map", root.line, root.column, pairs=pairs)


def _with_params(mistakes: Sequence[Mistake], model: Model, some: Collection[str]) -> dict[Mistake, list[Param]]:
    """Mistakes with the open parameters that stand where each is."""
    if not mistakes:
        return {}
    places = dict(_places(model.node))
    found: dict[Mistake, list[Param]] = {}
    for one in mistakes:
        node = places.get((one.line, one.column))
        names = () if node is None or one.file != model.file else dict.fromkeys(_params_in(node))
        found[one] = [model.params[name] for name in names if name in some]
    return found


def _places(node: Node) -> Iterator[tuple[tuple[int, int], Node]]:
    """What begins at each place; of a key, what it has. The outer one comes last, and wins."""
    for inner in node.items:
        yield from _places(inner)
    for key, value in node.pairs:
        yield from _places(value)
        yield (key.line, key.column), value
    yield (node.line, node.column), node


def _params_in(node: Node) -> Iterator[str]:
    if node.kind == "scalar":
        parts, _ = references.read(node.text)
        yield from (part.name for part in references.references_in(parts) if part.kind == "param")
        return
    for inner in (*node.items, *(value for _, value in node.pairs)):
        yield from _params_in(inner)


def _is_sure(one: Mistake, used: Sequence[Param], model: Model) -> bool:
    """Whether other values than those that are tried would be wrong as well."""
    if any(param.enum is not None and len(param.enum) > _MOST_CHOICES for param in used):
        return False
    if not any(param.type == "string" and param.enum is None for param in used):
        return True
    if one.expected.startswith(_TYPES):
        return not one.expected.startswith("a text")
    if one.expected.startswith("one of ") or one.path[-1:] == ("connection",):
        return False
    step = next((step for step in model.steps if step.path == one.path[:2]), None)
    part = step if step is None or step.compensate is None or "compensate" not in one.path else step.compensate
    described = None if part is None else part.described
    return described is None or described.config.__module__.startswith("outlast.components.")


def _worded(one: Mistake, used: Sequence[Param]) -> Mistake:
    """With what is known of the parameter, where it is the whole value."""
    if len(used) != 1 or one.got.strip("'\"") != f"${{params.{used[0].name}}}":
        return one
    return replace(one, got=f"{one.got}, which is {params.range_of(used[0])}")
