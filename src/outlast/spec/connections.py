"""
The connections file: what steps name as ``@family.alias``, and where its secrets come from.

    connections:
      postgres:
        shop:
          default: true
          host: db.example.com
          database: shop
          user: reader
          password: ${SHOP_PASSWORD}

``${NAME}`` is an environment variable; it stands here only, and nothing else does. A secret is never written out: it is
the whole of one variable, and becomes a `Secret`. Reading a file looks at no variable; `Connections.resolved` does.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from outlast.components.registry import family_names, find_family
from outlast.errors import ConfigurationError, FewSuggestions, closest, nearest
from outlast.kernel.redact import UNKNOWN, error_text, holds_secret
from outlast.settings.checks import show
from outlast.settings.secret import Secret
from outlast.spec import references, secrets, yaml
from outlast.spec.mistakes import Mistake, in_order, refused, worded
from outlast.spec.values import ID, as_written, finite, got_of, tidy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.components.describing import Component, Family
    from outlast.spec.mistakes import Path as Place
    from outlast.spec.model import Model, Step
    from outlast.spec.yaml import Node

FILE = "connections.yaml"
_HIDDEN = "a value that is not shown"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, by its name."""

    name: str

    def __str__(self) -> str:
        return f"${{{self.name}}}"


@dataclass(frozen=True, slots=True)
class Text:
    """A text with variables in it."""

    parts: tuple[str | Variable, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, Variable))

    @property
    def only(self) -> str:
        """The variable that is all of the text; nothing if there is more."""
        return self.variables[0] if len(self.parts) == 1 and self.variables else ""


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection as the file has it; a `Text` stands for what is in the environment."""

    family: str
    alias: str
    node: Node
    fields: Mapping[str, Any]
    described: Family | None
    is_default: bool = False

    @property
    def name(self) -> str:
        return f"@{self.family}.{self.alias}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that it needs, each once."""
        return self.variables_of()

    def variables_of(self, *path: str | int) -> tuple[str, ...]:
        """Those that the value at this place comes from."""
        found = (name for at, text in _texts(self.fields) if at[: len(path)] == path for name in text.variables)
        return tuple(dict.fromkeys(found))

    def is_secret(self, key: str) -> bool:
        return secrets.is_named(key) or (self.described is not None and key in self.described.secrets)


@dataclass(frozen=True, slots=True)
class Connections:
    """A connections file, read. `mistakes` are its own; one that could not be read knows no connection and says so."""

    file: str
    families: Mapping[str, Mapping[str, Connection]] = field(default_factory=dict[str, "Mapping[str, Connection]"])
    mistakes: tuple[Mistake, ...] = ()

    def __iter__(self) -> Iterator[Connection]:
        return (one for aliases in self.families.values() for one in aliases.values())

    def find(self, name: str) -> Connection:
        """The connection that is named ``@family.alias``, or ``@family`` for the default one. KeyError says why not."""
        wanted = secrets.CONNECTION.fullmatch(name)
        if wanted is None:
            meant = f"@{name}" if secrets.CONNECTION.fullmatch(f"@{name}") else "@postgres.shop"
            raise UnknownConnection("a connection as @family.alias", show(name), f"write it as {meant}")
        aliases = self.families.get(wanted["family"])
        if aliases is None:
            known = f"known are {_some(self.families)}" if self.families else "it has no connections"
            way_out = worded(nearest(wanted["family"], list(self.families))) or known
            raise UnknownConnection(f"a family of connections that {self.file} has", show(name), way_out)
        if wanted["alias"] is None:
            return self._default(wanted["family"], aliases)
        if wanted["alias"] not in aliases:
            known = _some(aliases, f"@{wanted['family']}.")
            none = f"it has no connection of the family {wanted['family']}"
            meant = closest(wanted["alias"], list(aliases))
            near = f"did you mean '@{wanted['family']}.{meant}'?" if meant else ""
            way_out = near or (f"known are {known}" if known else none)
            raise UnknownConnection(f"a connection that {self.file} has", show(name), way_out)
        return aliases[wanted["alias"]]

    def _default(self, family: str, aliases: Mapping[str, Connection]) -> Connection:
        marked = [one for one in aliases.values() if one.is_default] or [
            one for alias, one in aliases.items() if alias == "default"
        ]
        if not marked:
            known = _some(aliases, f"@{family}.")
            way_out = f"mark one with default: true, or name one: {known}" if known else "add one with default: true"
            raise UnknownConnection(f"a default connection of the family {family}", "none", way_out)
        return marked[0]

    def resolved(self, name: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """
        The fields of a connection, with what is in the environment filled in. Secrets are `Secret`. ConfigurationError
        names every variable that is not set, with its field and its alias.
        """
        try:
            one = self.find(name)
        except UnknownConnection as unknown:
            raise refused([Mistake(self.file, 1, 1, (), unknown.expected, unknown.got, unknown.way_out)]) from None
        path: Place = ("connections", one.family, one.alias)
        wrong = [self._unset(one, path, at, text, environment) for at, text in _texts(one.fields)]
        told = [mistake for mistakes in wrong for mistake in mistakes]
        if told:
            raise refused(in_order(told))
        filled = _filled(one.fields, environment)
        if one.described is not None:
            filled = _typed(one, one.described, filled)
            problems = one.described.problems(filled)
            if problems:
                raise refused(_told(self.file, one, path, problems))
            filled = one.described.resolved(filled)
        return _with_secrets(one, filled)

    def _unset(
        self, one: Connection, path: Place, at: tuple[str | int, ...], text: Text, environment: Mapping[str, str]
    ) -> list[Mistake]:
        node = one.node.at(at)
        found: list[Mistake] = []
        for variable in text.variables:
            if not environment.get(variable):
                got = "an empty text" if variable in environment else "nothing"
                way_out = f"set it: {at[0]} of {one.name} needs it"
                expected = f"the environment variable {variable} to be set"
                found.append(Mistake(self.file, node.line, node.column, (*path, *at), expected, got, way_out))
        return found

    def used_by(self, model: Model) -> list[Mistake]:
        """What is wrong with the connections that the steps of a file name."""
        if self.mistakes and not self.families:
            return []  # that has been told
        found: list[Mistake] = []
        for step in model.steps:
            found += self._used(model, step, ("config",), step.described, step.config)
            if step.compensate is not None:
                undo = step.compensate
                found += self._used(model, step, ("compensate", "config"), undo.described, undo.config)
        return found

    def _used(
        self, model: Model, step: Step, path: Place, described: Component | None, config: Mapping[str, Any]
    ) -> list[Mistake]:
        said = config.get("connection")
        if described is None or not described.connection or not isinstance(said, str):
            return []
        named = secrets.CONNECTION.fullmatch(said)
        if named is None or named["family"] != described.connection:
            return []  # that is told of the step itself
        try:
            self.find(said)
        except UnknownConnection as unknown:
            at = (*path, "connection")
            got = as_written(step.node.at(at), unknown.got)
            return [model.mistake(step, at, unknown.expected, got, unknown.way_out, severity="error")]
        return []

    def overridden(self, described: Component, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Keys of a config that its connection has too, and that a step had better not give; each with the connection."""
        said = config.get("connection")
        try:
            one = self.find(said) if isinstance(said, str) else None
        except UnknownConnection:
            return
        for key, rule in described.overrides.items():
            if one is not None and rule == "warning" and config.get(key) is not None and key in one.fields:
                yield key, one.name


class UnknownConnection(KeyError):
    """A connection that is not there."""

    def __init__(self, expected: str, got: str, way_out: str) -> None:
        super().__init__(expected)
        self.expected, self.got, self.way_out = expected, got, way_out


def _some(names: Mapping[str, object], before: str = "") -> str:
    """The first of these names: a line has no room for more."""
    return ", ".join(f"{before}{name}" for name in islice(names, 20))


# -- where the file is -------------------------------------------------------------------------------------------------


def connections_of(
    pipeline: str | os.PathLike[str],
    given: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Connections | None:
    """
    The connections of a pipeline file: those of the file that was `given`, else of the one in the project's root, if
    there is one. The root is the folder of the pipeline file, unless it is said.
    """
    if given is not None:
        return load(given)
    path = (Path(pipeline).parent if root is None else Path(root)) / FILE
    return load(path) if os.path.lexists(path) else None  # also a folder, or a link to nothing, which is then told


def load(path: str | os.PathLike[str]) -> Connections:
    """Read a connections file. What is wrong inside of it is among its mistakes; one that is not there is refused."""
    return read(yaml.load(path, "a connections file"), os.fspath(path))


def read(text: bytes | str, file: str = FILE) -> Connections:
    """Connections from the text of a file, with everything that is wrong with it."""
    found = yaml.read(text, file)
    reading = _Reading(file)
    reading.mistakes += found.mistakes
    with FewSuggestions():
        families = {} if found.node is None else reading.read(found.node)
    if found.node is None and not found.mistakes:
        reading.mistakes.append(Mistake(file, 1, 1, (), _FORM, "nothing", _BEGIN))
    return Connections(file, families, in_order(reading.mistakes))


_FORM = "a mapping with the key connections"
_BEGIN = "begin with connections:"
_Families: TypeAlias = "dict[str, dict[str, Connection]]"


class _Reading:
    def __init__(self, file: str) -> None:
        self.file = file
        self.mistakes: list[Mistake] = []

    def wrong(self, node: Node, path: Place, expected: str, got: str, way_out: str, code: str = "") -> None:
        self.mistakes.append(Mistake(self.file, node.line, node.column, path, expected, got, way_out, code))

    def read(self, root: Node) -> _Families:
        if root.kind != "map":
            self.wrong(root, (), _FORM, "nothing" if root.is_null else got_of(root), _BEGIN)
            return {}
        for key, _ in root.pairs:
            if key.text != "connections" and not key.text.startswith("x-"):
                way_out = worded(nearest(key.text, ["connections"])) or "known is connections"
                self.wrong(key, (yaml.step(key.text),), "a known key", show(key.text), way_out, "R43")
        node = root.get("connections")
        if node is None and self.mistakes:
            return {}
        if node is None:
            self.wrong(root, ("connections",), "the key connections", "nothing", _BEGIN)
            return {}
        if node.is_null:
            return {}
        if node.kind != "map":
            self.wrong(node, ("connections",), "a mapping", got_of(node), "write it as family: {alias: {...}}")
            return {}
        names = [key.text for key, _ in node.pairs]
        found = [self._family(key, value, names) for key, value in node.pairs]
        return dict(found)

    def _family(self, key: Node, node: Node, names: Sequence[str]) -> tuple[str, dict[str, Connection]]:
        """A family by its name, or by the one that is meant, so that steps that name it rightly are not told."""
        path = ("connections", yaml.step(key.text))
        family, described = self._described(key, path, names)
        return family, self._aliases(family, described, node, path)

    def _aliases(self, family: str, described: Family | None, node: Node, path: Place) -> dict[str, Connection]:
        if node.is_null:
            return {}
        if node.kind != "map":
            self.wrong(node, path, "a mapping", got_of(node), "write it as alias: {...}")
            return {}
        found = {
            alias.text: self._connection(family, alias, value, (*path, yaml.step(alias.text)), described)
            for alias, value in node.pairs
        }
        marked = [one for one in found.values() if one.is_default]
        for one in marked[1:]:
            at = one.node.get("default") or one.node
            got = f"a second one beside {marked[0].alias}"
            self.wrong(at, (*path, one.alias, "default"), "one default of a family", got, "leave it out")
        return found

    def _described(self, key: Node, path: Place, names: Sequence[str]) -> tuple[str, Family | None]:
        name = key.text
        try:
            described = find_family(name)
            known = family_names() if described is None else [name]
            if name not in known:
                meant = closest(name, known)
                way_out = f"did you mean {meant!r}?" if meant else f"known are {', '.join(known)}"
                self.wrong(key, path, "a family of connections", show(name), way_out)
                name = meant if meant and meant not in names else name
                described = find_family(name)
        except ConfigurationError as broken:
            self.wrong(key, path, "a family that can be loaded", show(name), error_text(broken).removesuffix("."))
            return name, None
        return name, described

    def _connection(self, family: str, alias: Node, node: Node, path: Place, described: Family | None) -> Connection:
        name = alias.text
        if not ID.fullmatch(name):
            way_out = f"write {tidy(name)}" if tidy(name) else "choose another"
            self.wrong(alias, path, "an alias in letters, digits, - and _", show(name), way_out)
        if node.kind != "map":
            got = "nothing" if node.is_null else got_of(node)
            first = next(iter(described.example), "...") if described is not None else "..."
            way_out = f"write it as {name}: {{{first}: ...}}" if first != "..." else f"write it as {name}: {{...}}"
            self.wrong(alias if node.is_null else node, path, "a mapping", got, way_out)
            return Connection(family, name, node, {}, described)
        one = Connection(family, name, node, {}, described)
        told = len(self.mistakes)
        fields = {key.text: self._value(one, key, value, (*path, yaml.step(key.text))) for key, value in node.pairs}
        default = fields.pop("default", None)
        if not isinstance(default, bool | None):
            at = node.get("default") or node
            way_out = yaml.hint(at, "truth") or "write true or false"
            self.wrong(at, (*path, "default"), "true or false", got_of(at), way_out)
        one = Connection(family, name, node, fields, described, default is True)
        if described is not None:
            unknown = [at for at, _ in _texts(fields)]
            problems = described.problems(_shaped(fields), unknown)
            spoken = {mistake.path for mistake in self.mistakes[told:]}
            for problem in problems:
                (mistake,) = _told(self.file, one, path, [problem])
                # That nobody knows a key is to be said whatever stands there.
                self.mistakes += [mistake] if problem.kind == "key" or mistake.path not in spoken else []
        return one

    def _value(self, one: Connection, key: Node | None, node: Node, path: Place, *, secret: bool = False) -> Any:
        secret = secret or (key is not None and one.is_secret(key.text))
        if node.kind == "list":
            return [self._value(one, None, item, (*path, n), secret=secret) for n, item in enumerate(node.items)]
        if node.kind == "map":
            return {
                name.text: self._value(one, name, value, (*path, yaml.step(name.text)), secret=secret)
                for name, value in node.pairs
            }
        value = yaml.value_of(node)
        if isinstance(value, str) and "${" in value:
            return self._text(node, path, value, secret=secret)
        if secret and value is not None:
            self._inline(node, path)
            return _REMOVED
        if yaml.is_ambiguous(node):
            self.wrong(node, path, "a number or a text", node.text, yaml.two_ways(node), "R43")
            return _REMOVED
        if isinstance(value, str) and holds_secret(value):
            self._inline(node, path)
            return _REMOVED
        return finite(value)

    def _text(self, node: Node, path: Place, text: str, *, secret: bool) -> Any:
        if len(text) > references.LONGEST:
            expected, got = f"a text with variables of at most {references.LONGEST:,} characters", f"{len(text):,}"
            self.wrong(node, path, expected, got, "put it into a file, or into one variable")
            return _REMOVED
        parts: list[str | Variable] = []
        done, told = 0, len(self.mistakes)
        for mark in references.MARK.finditer(text):
            parts.append(text[done : mark.start()])
            done = mark.end()
            inside = mark["inside"]
            if mark[0] == "$${":
                parts.append("${")
            elif inside is not None and _VARIABLE.fullmatch(inside):
                parts.append(Variable(inside))
            else:
                self.wrong(node, path, "environment variables as ${NAME}", _odd(inside, secret=secret), _mend(inside))
        if len(self.mistakes) > told:
            return _REMOVED
        parts.append(text[done:])
        joined = references.joined(parts)
        found = Text(joined)
        if not found.variables:
            if secret:
                self._inline(node, path)
                return _REMOVED
            return "".join(str(part) for part in joined)
        if secret and not found.only:
            way_out = f"put all of it into one variable, and write ${{{_suggested(path)}}}"
            self.wrong(node, path, "a secret to be the whole of one variable", _HIDDEN, way_out)
            return _REMOVED
        if holds_secret("".join(part if isinstance(part, str) else UNKNOWN for part in joined)):
            self._inline(node, path)
            return _REMOVED
        return found

    def _inline(self, node: Node, path: Place) -> None:
        way_out = f"put it into an environment variable, and write ${{{_suggested(path)}}}"
        if path[-1] == "base_url":  # in a variable it would be refused as well
            way_out = "leave the login out of it: user and password are keys of their own"
        self.wrong(node, path, "no secret in a connections file", _HIDDEN, way_out)


_REMOVED = Text((Variable("_"),))  # in place of what is wrong, so that nothing more is said of it


def _odd(inside: str | None, *, secret: bool) -> str:
    if inside is None:
        return "${ without its }"
    name, default, _ = inside.partition(":-")
    if default:
        return f"a default for {name[:60]}" if _VARIABLE.fullmatch(name) and not secret else _HIDDEN
    return _HIDDEN if secret else show(f"${{{inside[:60]}}}")


def _mend(inside: str | None) -> str:
    if inside is None:
        return "close it, or write $${ for the sign itself"
    name, default, _ = inside.partition(":-")
    if default and _VARIABLE.fullmatch(name):
        return f"write ${{{name}}}: there are no defaults, set the variable"
    if inside.startswith(("params.", "steps.")):
        return "parameters and outputs stand in the pipeline file only"
    return "write the name of the variable, in letters, digits and _"


def _suggested(path: Place) -> str:
    """A name for the variable of a field: that of the alias and the field."""
    said = "_".join(str(part) for part in path[2:])
    return re.sub(r"[^A-Za-z0-9]+", "_", said).strip("_").upper()[:60] or "NAME"


def _texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Text]]:
    if isinstance(value, Text):
        yield path, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _texts(one, (*path, number))


def _shaped(value: Any) -> Any:
    """Data for the check of a family: a text in place of what is in the environment."""
    if isinstance(value, Text):
        return "unknown"
    if isinstance(value, dict):
        return {key: _shaped(one) for key, one in value.items()}
    return [_shaped(one) for one in value] if isinstance(value, list) else value


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, Text):
        return "".join(environment[part.name] if isinstance(part, Variable) else part for part in value.parts)
    if isinstance(value, dict):
        return {key: _filled(one, environment) for key, one in value.items()}
    return [_filled(one, environment) for one in value] if isinstance(value, list) else value


def _typed(one: Connection, described: Family, filled: dict[str, Any]) -> dict[str, Any]:
    """The environment has texts only: one that is all of a field is read as the number or truth that the field takes."""
    wanted = {problem.path[0]: problem.expected for problem in described.problems(filled) if len(problem.path) == 1}
    found = dict(filled)
    for key, value in one.fields.items():
        if isinstance(value, Text) and value.only and key in wanted:
            text = filled[key]
            if _INTEGER.fullmatch(text) and ("integer" in wanted[key] or "number" in wanted[key]):
                found[key] = int(text)
            elif text in ("true", "false") and wanted[key] == "true or false":
                found[key] = text == "true"
    return found


def _with_secrets(one: Connection, filled: dict[str, Any]) -> dict[str, Any]:
    def hidden(raw: Any, value: Any, *, secret: bool) -> Any:
        if isinstance(raw, Text):
            return Secret.env(raw.only) if secret and raw.only else value
        if isinstance(raw, dict):
            return {
                key: hidden(raw.get(key), inner, secret=secret or one.is_secret(key)) for key, inner in value.items()
            }
        if isinstance(raw, list):
            return [hidden(r, v, secret=secret) for r, v in zip(raw, value, strict=True)]
        return value

    return {key: hidden(one.fields.get(key), value, secret=one.is_secret(key)) for key, value in filled.items()}


def _told(file: str, one: Connection, path: Place, problems: list[Any]) -> list[Mistake]:
    """What a family's model finds wrong, at its place in the file."""
    found: list[Mistake] = []
    for problem in problems:
        at = one.node.at(problem.path)
        of_key = problem.kind in ("key", "name")
        key = one.node.at(problem.path[:-1]).key(str(problem.path[-1])) if of_key else None
        where = (*path, *yaml.steps(problem.path))
        node = key or at
        hint = yaml.hint(at, "truth" if problem.expected == "true or false" else "number")
        way_out = worded(problem.way_out) or hint or "change it"
        # What comes from the environment is not shown either, whatever the field is called.
        filled = bool(problem.path) and any(True for _ in _texts(one.fields.get(str(problem.path[0]))))
        secret = filled or (bool(problem.path) and one.is_secret(str(problem.path[0])))
        got = _HIDDEN if secret and not of_key and problem.got != "nothing" else problem.got
        if got == _HIDDEN and (names := one.variables_of(*problem.path)):
            got = f"that of {', '.join(names)}, which is not shown"
        expected = problem.expected.replace(f"that {one.family} knows", f"that connections of {one.family} have")
        code = "R43" if key and problem.kind == "key" else ""
        found.append(Mistake(file, node.line, node.column, where, expected, got, way_out, code))
    return found
