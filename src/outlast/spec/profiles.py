"""
What is wrong with a file under one of its profiles only: told at the value that the profile gives, or with its name. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outlast.settings.checks import show
from outlast.spec import references
from outlast.spec.mistakes import errors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from outlast.spec.mistakes import Mistake
    from outlast.spec.model import Model
    from outlast.spec.yaml import Node

_ONLY_IF_EVERYWHERE = "R00"  # a silence that one profile needs is not told under another
_ONE_FOR_ALL = "R11"  # a ceiling that the file gives, for all profiles: it is needed if one of them reaches it


def names_of(root: Node) -> list[str]:
    """The profiles of a file that give a value."""
    found = root.get("profiles")
    return [] if found is None or found.kind != "map" else [key.text for key, one in found.pairs if _values(one)]


def _values(profile: Node | None) -> Node | None:
    given = None if profile is None or profile.kind != "map" else profile.get("params")
    return given if given is not None and given.kind == "map" and given.pairs else None


def placed(mistakes: Iterable[Mistake], model: Model, independent: Callable[[], Collection[Mistake]]) -> list[Mistake]:
    """
    Mistakes of a file under a profile; those about a value that the profile gives are told at its place there. `independent`
    gives the mistakes that the file has whatever its parameters are.
    """
    found = list(mistakes)
    profile = None if model.profile is None else _values((model.node.get("profiles") or model.node).get(model.profile))
    if profile is None:
        return found
    uses = {(node.line, node.column): node for node in _uses(model.node)}
    moved = [_moved(one, uses.get((one.line, one.column)), model, profile) for one in found]
    if moved == found:
        return found
    stay = independent()
    return [one if one in stay else other for one, other in zip(found, moved, strict=True)]


def _uses(node: Node) -> Iterator[Node]:
    """Every text with a parameter in it."""
    if node.kind == "scalar":
        if "${params." in node.text:
            yield node
        return
    for one in (*node.items, *(value for _, value in node.pairs)):
        yield from _uses(one)


def _moved(one: Mistake, used: Node | None, model: Model, profile: Node) -> Mistake:
    if used is None or one.file != model.file:
        return one
    try:
        names = [part.name for part in references.references_in(references.parse(used.text)) if part.kind == "param"]
    except references.Unreadable:
        return one
    name = next((one for one in names if model.sources.get(one) == "profile"), None)
    value = None if name is None else profile.get(name)
    if name is None or value is None:
        return one
    reference = f"${{params.{name}}}"
    shown = show(model.values[name])
    got = shown if one.got.strip("'\"") == reference else one.got
    got += f" with {name} {shown}" if reference in got else ""
    where = ".".join(map(str, one.path))
    path = ("profiles", str(model.profile), "params", name)
    # Without the value of the profile there would be the default, which may be no better.
    way_out = "lower it" if one.code == _ONE_FOR_ALL else one.way_out
    return replace(one, line=value.line, column=value.column, path=path, got=f"{got}, in {where}", way_out=way_out)


def merged(
    base: Sequence[Mistake], others: Sequence[tuple[str, Sequence[Mistake]]], root: Node | None = None
) -> list[Mistake]:
    """
    The mistakes of a file without a profile, and those that only a profile makes: each once, with the profiles that it comes
    under. A file with errors has no warnings. `root` is the file itself.
    """
    places = {(node.line, node.column) for node in (() if root is None else _uses(root))}

    def is_for_all(one: Mistake) -> bool:
        return one.code == _ONE_FOR_ALL and (one.line, one.column) not in places and one.path[:1] != ("profiles",)

    everywhere = [set(base), *(set(some) for _, some in others)]
    found = _in_all([[one for one in some if is_for_all(one)] for some in (base, *(some for _, some in others))])
    found += [
        one
        for one in base
        if not is_for_all(one) and (one.code != _ONLY_IF_EVERYWHERE or all(one in some for some in everywhere))
    ]
    under: dict[Mistake, list[str]] = {}
    for name, some in others:
        for one in some:
            if one not in everywhere[0] and one.code != _ONLY_IF_EVERYWHERE and not is_for_all(one):
                under.setdefault(one, []).append(name)
    found += [replace(one, profiles=tuple(names)) for one, names in under.items()]
    wrong = errors_in(found)
    return list(wrong) if wrong else found


def _in_all(views: Sequence[Sequence[Mistake]]) -> list[Mistake]:
    """What is told of one place without a profile and under each of them: once, though the numbers may differ."""
    found: list[Mistake] = []
    for one in views[0]:
        same = [other for view in views for other in view if other.path == one.path]
        if len(same) < len(views):
            continue
        if any((other.got, other.way_out) != (one.got, one.way_out) for other in same):
            one = replace(one, got="none that does, with any profile", way_out="lower it")  # noqa: PLW2901 - in its place
        found.append(one)
    return found
