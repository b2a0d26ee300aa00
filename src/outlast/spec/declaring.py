"""
The parameters that a file declares, its profiles, and the value that each parameter has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.errors import nearest
from outlast.kernel.wording import numeral
from outlast.settings.checks import show
from outlast.spec import params, references, secrets, yaml
from outlast.spec.keys import TYPES
from outlast.spec.mistakes import worded
from outlast.spec.params import kind_of
from outlast.spec.values import MISSING, got_of, known_keys, tidy

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping

    from outlast.spec.mistakes import Path
    from outlast.spec.params import Param, Source
    from outlast.spec.values import Values
    from outlast.spec.yaml import Node


_MOST_CHOICES = 1_000  # of an enum
MOST_PROFILES = 100  # with each of them a file is checked


def _references(value: Any) -> Iterator[re.Match[str]]:
    """Every sign of a reference in data that has none."""
    if isinstance(value, str):
        yield from (mark for mark in references.MARK.finditer(value) if mark[0] != "$${")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _references(one)


def _unescaped(value: Any) -> Any:
    """Data with ``$${`` read as ``${``, as everywhere in a file."""
    if isinstance(value, str):
        return value.replace("$${", "${")
    if isinstance(value, dict):
        return {key: _unescaped(one) for key, one in value.items()}
    return [_unescaped(one) for one in value] if isinstance(value, list) else value


class Declarations:
    """
    Reads what is declared into `values`. `given` are the values that were given by hand, `environment` the environment
    variables, `profile` the name of the one that was chosen. With `complete` every parameter must have a value, with `bare`
    none has one.
    """

    def __init__(
        self,
        values: Values,
        given: Mapping[str, Any],
        environment: Mapping[str, str],
        profile: str | None,
        *,
        complete: bool,
        from_shell: bool,
        bare: bool = False,
    ) -> None:
        self.values = values
        self._from_shell = from_shell  # so that what is given by hand may be a text, and options are the way out
        self.sources: dict[str, Source] = {}  # where each value that is known comes from
        self._bare = bare
        self._untyped: set[str] = set()  # those of which nobody knows what values fit
        self._given, self._environment, self._profile_name, self._complete = given, environment, profile, complete

    def read(self, root: Node, declared: Node | None, profiles: Node | None) -> None:
        self.declare(declared)
        self.assign(root, declared, self.profile(root, profiles))

    def declare(self, node: Node | None) -> None:
        if node is None or node.is_null:
            return
        if node.kind != "map":
            self.values.wrong(node, ("params",), "a mapping", got_of(node), "write it as name: {type: string}")
            return
        variables: dict[str, str] = {}
        for key, value in node.pairs:
            path: Path = ("params", yaml.step(key.text))
            if not params.NAME.fullmatch(key.text):
                meant = tidy(key.text)
                way_out = f"write {meant}" if params.NAME.fullmatch(meant) else "choose another"
                self.values.wrong(key, path, "a name in letters, digits, - and _", show(key.text), way_out)
                self.values.doubtful.add(key.text)
                continue
            other = variables.setdefault(params.variable_of(key.text), key.text)
            if other != key.text:
                got = f"that of {other}"
                self.values.wrong(
                    key, path, f"a variable of its own ({params.variable_of(key.text)})", got, "rename one of the two"
                )
            told = len(self.values.mistakes)
            self.values.params[key.text] = self._param(key.text, value, path)
            if len(self.values.mistakes) > told:
                self.values.doubtful.add(key.text)

    def _param(self, name: str, node: Node, path: Path) -> Param:
        if node.kind == "scalar" and node.text in TYPES:
            self.values.wrong(node, path, "a mapping", got_of(node), f"write {name}: {{type: {node.text}}}")
            return params.Param(name, node.text)
        found = self.values.mapping(node, path, "param")
        told = len(self.values.mistakes)
        # One of them may have been meant for sensitive: true.
        unsure = node.kind != "map" or any(key.text not in known_keys("param") for key, _ in node.pairs)
        is_said = self._is_written(
            found.get("type"), (*path, "type"), f"one of {', '.join(TYPES)}", "choose one of them"
        )
        said = self.values.choice(found.get("type"), (*path, "type"), TYPES) if is_said else None
        kind = said or "string"
        if said is None:
            self._untyped.add(name)
        self._described(found.get("description"), path)
        where = (*path, "sensitive")
        is_said = self._is_written(found.get("sensitive"), where, "true or false", "write true, or leave it out")
        sensitive = is_said and self.values.truth(found.get("sensitive"), where) is True
        unsure = unsure or len(self.values.mistakes) > told
        if secrets.is_named(name) and not sensitive and not unsure and kind != "boolean":
            way_out = "add sensitive: true, or choose another name"
            self.values.wrong(node, path, "sensitive: true for a parameter with the name of a secret", "none", way_out)
        sensitive = sensitive or unsure or secrets.is_named(name)
        least, most = (self._bound(found.get(key), (*path, key)) for key in ("min", "max"))
        if least is not None and most is not None and least > most:
            self.values.wrong(
                found["min"], (*path, "min"), f"at most max ({numeral(most)})", numeral(least), "swap them"
            )
            least = most = None
        if kind in ("boolean", "object"):
            for key in ("min", "max"):
                if key in found:
                    self.values.wrong(
                        found[key], (*path, key), f"it left out for a {kind}", got_of(found[key]), "leave it out"
                    )
            least = most = None
        if not self._leave_room(found, path, kind, least, most):
            least = most = None
        enum = None
        if "enum" in found and sensitive and not unsure:
            self.values.wrong(
                found["enum"], (*path, "enum"), "it left out for a secret", secrets.HIDDEN, "leave it out"
            )
        elif said is not None and not sensitive:
            enum = self._enum(found.get("enum"), (*path, "enum"), kind)
        param = params.Param(name, kind, None, False, enum, least, most)  # noqa: FBT003
        param = replace(param, sensitive=sensitive)
        if "default" in found and sensitive and not unsure:
            way_out = f"give it when it runs: {param.variable}"
            self.values.wrong(
                found["default"], (*path, "default"), "it left out for a secret", "a value that is not shown", way_out
            )
        elif "default" in found and said is not None and found["default"].is_null:
            way_out = "leave it out, if one must be given"
            self.values.wrong(found["default"], (*path, "default"), params.WHAT[kind], "nothing", way_out)
        elif "default" in found and said is not None and not sensitive:  # whose type is known
            value = self._fitting(param, found["default"], (*path, "default"))
            if value is not MISSING:
                return replace(param, default=value, has_default=True)
        return param

    def _leave_room(
        self, found: Mapping[str, Node], path: Path, kind: str, least: float | None, most: float | None
    ) -> bool:
        """Whether a whole number lies between two bounds of an integer, or of how long a text or a list is."""
        what = {"integer": "an integer", "string": "a number of characters", "list": "a number of entries"}.get(kind)
        if what is None or most is None:
            return True
        if kind != "integer" and most < 0:
            self.values.wrong(found["max"], (*path, "max"), "at least 0", numeral(most), "raise it, or leave it out")
            return False
        if least is not None and least <= most and math.ceil(least) > math.floor(most):
            expected = f"a bound such that {what} lies between it and max ({numeral(most)})"
            way_out = f"write min: {math.floor(least)}, or max: {math.ceil(most)}"
            self.values.wrong(found["min"], (*path, "min"), expected, numeral(least), way_out)
            return False
        return True

    def _is_written(self, node: Node | None, path: Path, expected: str, way_out: str) -> bool:
        """
        Whether a key that decides what a parameter is may be read. It is written out: nothing, or a reference, is told,
        and never taken for what holds without the key.
        """
        if node is None or node.kind != "scalar":
            return True
        if not node.is_null and "${" not in node.text:
            return True
        way_out = way_out if node.is_null else "write it out: references stand in steps only"
        self.values.wrong(node, path, expected, got_of(node), way_out, "" if node.is_null else "R42")
        return False

    def _described(self, node: Node | None, path: Path) -> None:
        if node is not None and not node.is_null:
            self.values.text(node, (*path, "description"))

    def _bound(self, node: Node | None, path: Path) -> float | None:
        if node is None or node.is_null:
            return None
        value = yaml.value_of(node) if node.kind == "scalar" else None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            return value
        self.values.wrong(
            node, path, "a finite number", got_of(node), yaml.hint(node, "number") or "leave it out for no bound"
        )
        return None

    def _enum(self, node: Node | None, path: Path, kind: str) -> tuple[Any, ...] | None:
        if node is None or node.is_null:
            return None
        if node.kind != "list" or not node.items:
            got = "an empty list" if node.kind == "list" else got_of(node)
            self.values.wrong(node, path, "a list of values", got, "write it as [one, two]")
            return None
        if len(node.items) > _MOST_CHOICES:
            expected, way_out = f"at most {_MOST_CHOICES:,} values", "leave it out, and check the value in a step"
            self.values.wrong(node, path, expected, f"{len(node.items):,}", way_out)
            return None
        bare = params.Param("", kind)
        found = [self._fitting(bare, one, (*path, number)) for number, one in enumerate(node.items)]
        return tuple(one for one in found if one is not MISSING)

    def _fitting(self, param: Param, node: Node, path: Path) -> Any:
        """A value of the file for a parameter."""
        data = self.values.told(node, path)
        if any(one[: len(path)] == path for one in self.values.secrets_told):
            return MISSING  # nothing more is said of it
        marks = list(_references(data))
        for mark in marks:
            inside = mark["inside"] or ""
            way_out = "write it where the parameter is used, or $${ for the sign itself"
            if inside.isupper():
                way_out = (
                    f"environment variables stand in the connections file only; {param.variable} gives this parameter"
                )
            self.values.wrong(node, path, "a value without references", show(mark[0][:60]), way_out, "R42")
        if marks:
            return MISSING
        data = _unescaped(data)
        try:
            return params.value_for(param, data)
        except params.Unfit as unfit:
            wanted: Any = "truth" if param.type == "boolean" else "number"
            hint = yaml.hint(node, wanted) if param.type in ("integer", "number", "boolean") else ""
            is_text = isinstance(data, str)
            quotes = "put quotes around it" if param.type == "string" and node.kind == "scalar" and not is_text else ""
            known = [str(one) for one in param.enum or ()]
            hint = hint or (worded(nearest(str(data), known)) if is_text else "")
            way_out = unfit.way_out or hint or quotes or "change it"
            self.values.wrong(node, path, unfit.expected, unfit.got, way_out)
            return MISSING

    def profile(self, root: Node, node: Node | None) -> dict[str, Any]:
        """The values of the profile that was chosen."""
        profiles = {} if node is None or node.kind != "map" else {key.text: value for key, value in node.pairs}
        if node is not None and not node.is_null and node.kind != "map":
            self.values.wrong(node, ("profiles",), "a mapping", got_of(node), "write it as name: {params: {...}}")
        if node is not None and len(profiles) > MOST_PROFILES:
            got = f"{len(profiles):,}"
            self.values.wrong(node, ("profiles",), f"at most {MOST_PROFILES} profiles", got, "give values with --param")
        found: dict[str, Any] = {}
        for name, one in profiles.items():
            path: Path = ("profiles", yaml.step(name))
            inside = {} if one.is_null else self.values.mapping(one, path, "profile", only=("params",))
            self._described(inside.get("description"), path)
            given = inside.get("params")
            if given is None or given.is_null:
                continue
            if given.kind != "map":
                self.values.wrong(given, (*path, "params"), "a mapping", got_of(given), "write it as name: value")
                continue
            for key, value in given.pairs:
                where = (*path, "params", yaml.step(key.text))
                if key.text not in self.values.params:
                    self.values.unknown_param(key, where, key.text)
                    continue
                param = self.values.params[key.text]
                if key.text in self.values.doubtful:
                    continue  # nobody knows what it may be
                if param.sensitive:
                    way_out = f"give it when it runs: {param.variable}"
                    self.values.wrong(value, where, "it left out for a secret", "a value that is not shown", way_out)
                    continue
                fit = MISSING if key.text in self._untyped else self._fitting(param, value, where)
                if name == self._profile_name and fit is not MISSING:
                    found[key.text] = fit
        if self._profile_name is not None and self._profile_name not in profiles:
            known = f"known are {', '.join(profiles)}" if profiles else "the file has no profiles"
            way_out = worded(nearest(self._profile_name, list(profiles))) or known
            self.values.wrong(
                node or root, ("profiles",), "the profile that was chosen", show(self._profile_name), way_out
            )
        return found

    def assign(self, root: Node, node: Node | None, profile: Mapping[str, Any]) -> None:
        place = node if node is not None and node.kind == "map" else root
        for name in self._given:
            if name not in self.values.params:
                self.values.unknown_param(place, ("params", yaml.step(str(name))), str(name))
        for name, param in () if self._bare else self.values.params.items():
            found = params.sources(name, self._given, self._environment, profile)
            at = place.get(name) or place
            if found is None:
                self._assign_default(param, at)
                continue
            if name in self._untyped:
                continue
            source, given = found
            try:
                value = params.value_for(
                    param, given, is_text=source != "profile" and (source != "given" or self._from_shell)
                )
            except params.Unfit as unfit:
                way_out = "give another value" if source == "given" else f"change {source}"
                # Who gave it knows it, and who reads along must not.
                shown = unfit.got if source == "profile" else secrets.HIDDEN
                expected, got = unfit.expected, shown if source == "given" else f"{shown}, from {source}"
                if unfit.way_out:
                    way_out, got = unfit.way_out, unfit.got if source == "given" else f"{unfit.got}, from {source}"
                elif (
                    param.type in ("list", "object")
                    and isinstance(given, str)
                    and (source != "given" or self._from_shell)
                ):
                    expected = f"{params.WHAT[param.type]} as JSON"
                    way_out = "write it as " + ("[1, 2]" if param.type == "list" else '{"name": 1}')
                self.values.wrong(at, ("params", name), expected, got, way_out)
                continue
            if param.sensitive:
                continue
            if any(secrets.inline(value, yaml.Node("scalar", 1, 1), (), lambda _: True)):
                expected, way_out = "no secret in a parameter that is not sensitive", "add sensitive: true"
                got = secrets.HIDDEN if source == "given" else f"{secrets.HIDDEN}, from {source}"
                self.values.wrong(at, ("params", name), expected, got, way_out)
                continue
            self.values.known[name] = value
            self.sources[name] = kind_of(source)

    def _assign_default(self, param: Param, at: Node) -> None:
        if param.sensitive or param.name in self.values.doubtful:
            return
        if param.has_default:
            self.values.known[param.name] = param.default
            self.sources[param.name] = "default"
        elif self._complete:
            by_hand = f"--param {param.name}=..." if self._from_shell else f"params={{{param.name!r}: ...}}"
            way_out = f"give it with {by_hand}, {param.variable} or a default"
            self.values.wrong(at, ("params", param.name), "a value", "none", way_out, "R42")
