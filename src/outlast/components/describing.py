"""
What a step's component is, as a value: `Component`. It says what the component needs and what it does, so that a
pipeline file can be checked without running anything. `Family` says the same of connections. Both have a pydantic
model; what pydantic finds wrong is said in the words of the file.

    READER = Component(
        name="files.reader",
        summary="Reads files of JSON Lines, CSV or Parquet.",
        config=ReaderConfig,
        outputs={"rows": "the rows", "count": "how many there are"},
        reads=True,
        example={"path": "in/*.jsonl"},
    )
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from outlast.errors import Problem, closest, is_misspelt, nearest
from outlast.kernel.redact import error_text, holds_secret, is_secret_name, looks_like_secret, mask_likely
from outlast.settings.checks import Check, Shown, show

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pydantic import BaseModel

    from outlast.components.defaults import Defaults

NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)?")  # family.role, or one word
FAMILY = re.compile(r"[a-z][a-z0-9_-]*")
_MOST = 100  # mistakes of one config that are told
_HIDDEN = "a value that is not shown"
_NOTHING = "nothing"
Override = Literal["allowed", "warning", "forbidden"]
TextPlace = Literal["url", "path", "pattern", "rows"]
OutputType = Literal["rows", "text", "integer", "number", "boolean", "mapping"]
# What an output of each type is, in words.
OUTPUT_TYPES: dict[OutputType, str] = {
    "rows": "a list",
    "text": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "mapping": "a mapping",
}


# A value of each type. Whatever is wrong with it that another value of the type would not have is not told.
_SAMPLES: dict[OutputType, Any] = {
    "rows": [],
    "text": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "mapping": {},
}


class Modelled:
    """What has a pydantic model for what a file says of it, and tells what is wrong in the words of that file."""

    name: str
    config: type[BaseModel]
    secrets: Sequence[str]
    _sees_keys_only = False  # checks of the whole look at which keys there are, and not at values that may be unknown

    @property
    def _elsewhere(self) -> Mapping[str, str]:
        """Keys that it has, but not here, with the way out."""
        return {}

    @property
    def _see(self) -> str:
        """The command that shows it."""
        return f"outlast components show {self.name}"

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys that it may have, as they are written."""
        return tuple(one.alias or name for name, one in self.config.model_fields.items())

    def problems(
        self,
        config: Mapping[str, Any],
        unknown: Collection[tuple[str | int, ...]] = (),
        texts: Collection[tuple[str | int, ...]] = (),
    ) -> list[Problem]:
        """
        What is wrong with a config. `unknown` are the paths of values that are known only when the step runs: nothing is
        said of them, and nothing of the config as a whole that they may change. Those of them that will surely be
        `texts` are told where no text can stand, or where what is written of it is wrong already.
        """
        meant = self._misspelt(config)
        if not meant:
            return self._all_problems(config, unknown, texts)
        found = self._all_problems(
            {meant.get(key, key): value for key, value in config.items()},
            [(meant.get(str(one[0]), one[0]), *one[1:]) if one else one for one in unknown],
            [(meant.get(str(one[0]), one[0]), *one[1:]) if one else one for one in texts],
        )
        written: dict[str | int, str] = {name: key for key, name in meant.items()}
        found = [
            one.replace(path=(written.get(one.path[0], one.path[0]), *one.path[1:])) if one.path else one
            for one in found
        ]
        return [*(self._unknown_key((key,)) for key in meant), *found]

    def _misspelt(self, config: Mapping[str, Any]) -> dict[str, str]:
        """The keys that are read as others, which were meant: what stands there is checked as well."""
        if all(key in self.keys for key in config):
            return {}
        found: dict[str, str] = {}
        for key in self._unknown_keys(config)[:_MOST]:
            name = closest(key, self.keys)
            if key not in self._elsewhere and name not in (*config, *found.values()) and is_misspelt(key, name):
                found[key] = name
        return found

    def _unknown_keys(self, config: Mapping[str, Any]) -> list[str]:
        from pydantic import ValidationError

        try:
            self._validate(config)
        except ValidationError as wrong:
            errors = wrong.errors(include_url=False, include_context=False, include_input=False)
            return [str(one["loc"][0]) for one in errors if one["type"] == "extra_forbidden" and len(one["loc"]) == 1]
        except Exception:  # noqa: BLE001 - a check of somebody else's model may raise anything, which is told
            return []
        return []

    def _all_problems(
        self,
        config: Mapping[str, Any],
        unknown: Collection[tuple[str | int, ...]],
        texts: Collection[tuple[str | int, ...]],
    ) -> list[Problem]:
        found = self._problems(config, unknown, texts)
        told = {one.path[0] for one in found if one.path}
        if unknown or told:  # pydantic checks the whole only if each of its values is right
            unsure = [*unknown, *((name,) for name in told)]
            found += [one for one in self._anyway(config, unsure) if one not in found and told.isdisjoint(one.path)]
        return found

    def _anyway(self, config: Mapping[str, Any], unknown: Collection[tuple[str | int, ...]]) -> list[Problem]:
        """What is wrong with the config as a whole, whatever the unknown values come to."""
        from outlast.components.later import wrong_anyway

        found: list[Problem] = []
        for wrong in wrong_anyway(self.config, config, unknown):
            error = {"type": "value_error", "loc": (), "msg": f"Value error, {wrong}", "ctx": {"error": wrong}}
            problem = self._said(error | {"input": config}, config, (), ())
            found += [] if problem is None else [problem]
        return found

    def _problems(
        self,
        config: Mapping[str, Any],
        unknown: Collection[tuple[str | int, ...]],
        texts: Collection[tuple[str | int, ...]],
    ) -> list[Problem]:
        from pydantic import ValidationError

        try:
            self._validate(config)
        except ValidationError as wrong:
            errors = wrong.errors(include_url=False, include_context=True, include_input=True)
            errors = _spread(errors)
            certain = _certain(errors, config, texts)
            errors = _one_of_union(_without_misspelt(errors, self.keys), config)
            said = _as_one(errors, [self._said(error, config, unknown, certain) for error in errors[:_MOST]])
            if len(errors) > _MOST:
                said.append(
                    Problem((), f"at most {_MOST} mistakes in a config", f"{len(errors):,}", "mend the others first")
                )
            return [one for one in said if one is not None]
        except Exception as broken:  # noqa: BLE001 - a check of somebody else's model may raise anything
            got = f"{type(broken).__name__} in a check of {self.name}: {error_text(broken)}"
            return [Problem((), "a config that can be checked", got, f"{self._see} shows a config that is right")]
        return []

    def refuses(self, config: Mapping[str, Any], path: Sequence[str | int], kind: OutputType) -> str:
        """What is expected at this place of the config, if no value of this type can stand there; else nothing."""
        from pydantic import ValidationError

        sample = _SAMPLES[kind]
        try:
            self._validate(_with(config, path, sample))
        except ValidationError as wrong:
            errors = wrong.errors(include_url=False, include_context=True, include_input=True)
        except Exception:  # noqa: BLE001 - a check of somebody else's model may raise anything
            return ""
        else:
            return ""
        found: dict[str, None] = {}
        for error in errors:
            if _in_config(error["loc"], config, is_key=False) != tuple(path):
                continue
            error_kind, context = str(error["type"]), error.get("ctx", {})
            listed = error_kind in ("literal_error", "enum") and kind != "text"
            if not (error_kind.endswith("_type") or listed or getattr(context.get("error"), "surely", False)):
                return ""  # another value of this type may be right
            expected, _ = _expected(error_kind, context, str(error["msg"]), error["input"])
            found[expected] = None
        return " or ".join(found)

    @cached_property
    def _validate(self) -> Any:
        return self.config.__pydantic_validator__.validate_python

    def resolved(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config with the default of every key that was left out, at every level, as plain data."""
        return self._defaults.filled(config)

    @cached_property
    def _defaults(self) -> Defaults:
        from outlast.components.defaults import defaults_of

        return defaults_of(self.config)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its config, without what looks like a secret."""
        found: dict[str, Any] = _shown_in_schema(self.config.model_json_schema())
        return found

    def choices(self, key: str) -> tuple[Any, ...]:
        """The values that a key may have, if they are listed."""
        said = self._properties.get(key, {})
        return tuple(one for part in (said, *said.get("anyOf", ())) for one in part.get("enum", ()))

    @cached_property
    def _properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.schema().get("properties", {})
        return found

    def _said(
        self,
        error: Mapping[str, Any],
        config: Mapping[str, Any],
        unknown: Collection[tuple[str | int, ...]],
        certain: Collection[tuple[str | int, ...]],
    ) -> Problem | None:
        kind, context = str(error["type"]), error.get("ctx", {})
        path = _in_config(error["loc"], config, is_key=kind in ("missing", "extra_forbidden"))
        keys: Sequence[str] = getattr(context.get("error"), "keys", ())  # those that do not go together
        if keys and not path and not self._sees_keys_only:
            if any(one[0] in keys for one in unknown):
                return None
            unknown = ()
        # A key that nobody knows is one whatever its value is. Inside of a union the value may choose the model. And a
        # text may be wrong whatever the references in it come to.
        surely = getattr(context.get("error"), "surely", False)
        surely = surely or (kind == "extra_forbidden" and len(path) == len(error["loc"]))
        at = path[:-1] if error.get("is_name") else path  # a name is wrong whatever stands under it
        if not surely and path not in certain and any(at[: len(one)] == one for one in unknown):
            return None
        # A check of a whole value may have looked at what stands inside of it, and says not where.
        whole = kind in ("value_error", "assertion_error") and "is_name" not in error
        if whole and path and not surely and any(one[: len(path)] == path for one in unknown):
            return None
        if not path and unknown and not self._sees_keys_only:
            return None
        if kind == "missing":
            return Problem(path, f"the key {path[-1]}", "nothing", f"{self.name} needs it")
        if kind == "extra_forbidden":
            key = str(path[-1])
            if len(path) == 1 and key in self._elsewhere:
                return Problem(path, "it left out", "a value", self._elsewhere[key], kind="key")
            if len(path) > 1:
                return Problem(path, "a key that is known here", show(key), f"see {self._see}", kind="key")
            return self._unknown_key(path)
        expected, way_out = _expected(kind, context, str(error["msg"]), error["input"])
        expected, _, given = expected.partition(", got ")
        if not path:
            told = [key for key in keys or config if key in config]
            return Problem(tuple(told[:1]) if keys else (), expected, given or self._written(told, config), way_out)
        if error.get("is_name"):
            return Problem(path, expected, show(path[-1]), way_out, kind="name")
        got = given or (_HIDDEN if path[0] in self.secrets else _shown(error["input"]))
        return Problem(path, expected, got, way_out)

    def _unknown_key(self, path: tuple[str | int, ...]) -> Problem:
        key = str(path[-1])
        way_out = nearest(key, self.keys) or f"{self.name} knows {', '.join(self.keys) or 'no keys'}"
        return Problem(path, f"a key that {self.name} knows", show(key), way_out, kind="key")

    def _written(self, keys: Sequence[str], config: Mapping[str, Any]) -> str:
        """What stands under these keys, as a file has it; nothing of secrets, and of values that may be unknown."""
        if self._sees_keys_only:
            return ", ".join(keys) or "nothing"
        shown = {key: _HIDDEN if key in self.secrets else _shown(config[key]) for key in keys}
        return ", ".join(f"{key}: {value}" for key, value in shown.items()) or "nothing"


@dataclass(frozen=True)
class Component(Modelled):
    """
    The description of a component. `config` is the pydantic model of its config. It forbids unknown keys and is strict,
    as `outlast.components.steps.config.Config` is, which may be its base.

    `outputs` names what later steps may refer to, with its meaning; None leaves it open. `types` says of those whose
    type is known what they are: ``rows``, ``text``, ``integer``, ``number``, ``boolean`` or ``mapping``. `secrets` are the keys of the
    config that hold secrets: a file may give them by a reference only. `literal` are keys that take no references: SQL
    and the names of functions are written out, and values are bound to them elsewhere. `calls` are those
    that name a function as module:function, which must be one of the project. `files` are those that name a file of the
    project which is there before the pipeline runs. `places` says what a text is whose structure a value from a reference
    must not change: ``url``, ``path`` (of a file, or the key of an object) or ``pattern`` (a path with wildcards). Of those,
    and of ``rows``, no sensitive parameter is a part. `connection` is the family of
    connections (``@family.alias``) that the field `connection` of its model takes. `overrides` says of fields of a connection whether a
    step may give them itself: ``allowed``, ``warning`` or ``forbidden``. `example` is a config that is right.

    The rest says what it does, for the rules that look at a whole file: `reads`, `writes` and `transforms` are the
    modes; `side_effects`: what it has done is not undone by failing; `idempotent`: doing it twice is doing it once, or
    with `idempotent_if` only where keys of the config have one of these values; `network`: it waits for somebody else;
    `needs_compensation`: a step should say what undoes it; `takes_row`: in a step with `for_each` it gets the row by itself,
    where nothing in the step names it.

    `run` is the function that does the work, or ``module:function``, which is imported when a step runs: see
    `outlast.components.running`. A description without it can be compiled and does not run.
    """

    name: str
    summary: str
    config: type[BaseModel]
    outputs: Mapping[str, str] | None = field(default_factory=dict[str, str])
    secrets: Sequence[str] = ()
    connection: str = ""
    overrides: Mapping[str, Override] = field(default_factory=dict[str, Override])
    literal: Sequence[str] = ()
    calls: Sequence[str] = ()
    files: Sequence[str] = ()
    places: Mapping[str, TextPlace] = field(default_factory=dict[str, TextPlace])
    example: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reads: bool = False
    writes: bool = False
    transforms: bool = False
    side_effects: bool = False
    idempotent: bool = False
    idempotent_if: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, "Sequence[Any]"])
    network: bool = False
    needs_compensation: bool = False
    takes_row: bool = False
    types: Mapping[str, OutputType] = field(default_factory=dict[str, OutputType])
    run: Callable[[Any, Any], Mapping[str, Any] | None] | str | None = None

    def runner(self) -> Callable[[Any, Any], Mapping[str, Any] | None]:
        """The function that does its work, loaded when it is first asked for."""
        if self.run is None:
            from outlast.errors import ConfigurationError

            raise ConfigurationError(
                f"expected {self.name} to have a function that does its work, got: a description only."
            )
        if not isinstance(self.run, str):
            return self.run
        from outlast.settings.names import import_name

        found: Callable[[Any, Any], Mapping[str, Any] | None] = import_name(self.run)
        return found

    def __post_init__(self) -> None:
        check = Check()
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            check.add("name", "a name such as family.role, in small letters", self.name)
        if not isinstance(self.summary, str) or not self.summary.strip():
            check.add("summary", "a sentence", self.summary)
        named = {
            option: _names(check, option, getattr(self, option)) for option in ("secrets", "literal", "calls", "files")
        }
        maps = {option: _mapping(check, option, getattr(self, option)) for option in _MAPPINGS}
        _check_model(
            check, self.name, self.config, {**named, **{one: maps[one] for one in ("idempotent_if", "places")}}
        )
        if self.outputs is not None and not isinstance(self.outputs, Mapping):
            check.add("outputs", "a mapping from a name to its meaning, or None", self.outputs)
        if self.connection and "connection" not in getattr(self.config, "model_fields", {"connection": None}):
            check.add("config", f"a pydantic model with a field connection, for @{self.connection}.alias", self.config)
        for name, kind in maps["types"].items():
            if not isinstance(self.outputs, Mapping) or name not in self.outputs or kind not in OUTPUT_TYPES:
                check.add(f"types[{name!r}]", f"one of {', '.join(OUTPUT_TYPES)}, for an output", kind)
        for name, kind in maps["places"].items():
            if kind not in get_args(TextPlace):
                check.add(f"places[{name!r}]", f"one of {', '.join(get_args(TextPlace))}", kind)
        if self.run is not None and not callable(self.run) and not (isinstance(self.run, str) and ":" in self.run):
            check.add("run", "a function, or its name as module:function", self.run)
        for name, rule in maps["overrides"].items():
            if rule not in get_args(Override):
                check.add(f"overrides[{name!r}]", f"one of {', '.join(get_args(Override))}", rule)
        check.raise_if_any()
        _check_example(check, self)
        check.raise_if_any()

    @property
    def modes(self) -> tuple[str, ...]:
        said = {"read": self.reads, "write": self.writes, "transform": self.transforms}
        return tuple(mode for mode, is_so in said.items() if is_so)

    def is_idempotent(self, config: Mapping[str, Any]) -> bool:
        """Whether doing it twice with this config is doing it once."""
        if self.idempotent or not self.idempotent_if:
            return self.idempotent
        given = self.resolved(config)
        return all(_is_plain(given.get(key)) and given[key] in known for key, known in self.idempotent_if.items())

    @property
    def _elsewhere(self) -> Mapping[str, str]:
        said = "it comes from the connection, and a step cannot change it"
        return {key: said for key, rule in self.overrides.items() if rule == "forbidden"}


@dataclass(frozen=True)
class Family(Modelled):
    """
    The description of a family of connections: those that are written ``@name.alias``. `config` is the pydantic model of
    the fields, `secrets` those that hold secrets, which a connections file takes from the environment only. Checks of
    the whole model may look at which fields there are, and not at what they hold. `reach` connects with the fields of a
    resolved connection within so many seconds, for ``outlast connections doctor``, and raises what went wrong.
    """

    name: str
    summary: str
    config: type[BaseModel]
    secrets: Sequence[str] = ()
    example: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reach: Callable[[Mapping[str, Any], float], object] | None = None

    _sees_keys_only = True

    def __post_init__(self) -> None:
        check = Check()
        if not isinstance(self.name, str) or not FAMILY.fullmatch(self.name):
            check.add("name", "a word in small letters", self.name)
        if not isinstance(self.summary, str) or not self.summary.strip():
            check.add("summary", "a sentence", self.summary)
        _check_model(check, self.name, self.config, {"secrets": _names(check, "secrets", self.secrets)})
        check.raise_if_any()

    @property
    def _see(self) -> str:
        return "the reference of components"


def _check_model(check: Check, name: str, model: Any, named: Mapping[str, Collection[str]]) -> None:
    """Whether files can be checked against the model; `named` are keys of it that the description names."""
    if not hasattr(model, "model_validate"):
        check.add("config", "a pydantic model", model)
        return
    if getattr(model, "model_config", {}).get("extra") != "forbid":
        check.add("config", "a pydantic model that forbids unknown keys", model)
    from outlast.components.defaults import Defaults, fields_of, models_in

    keys = list(fields_of(model))
    for option, names in named.items():
        for one in names:
            if one not in keys:
                check.add(option, "keys of the config", one, nearest(str(one), keys))
    try:
        usual, again = Defaults(model).usual, Defaults(model).usual
        inside = [Defaults(one).usual for one in models_in(model)]
        json.dumps(inside, allow_nan=False)  # they are in the manifest
    except Exception as broken:  # noqa: BLE001 - whatever a function for a default raises
        way_out = f"One raised {type(broken).__name__}: give it a value, or a function without arguments."
        check.add("config", "a pydantic model whose defaults are known beforehand", model, way_out)
        return
    if usual != again:
        check.add("config", "a pydantic model whose defaults are always the same", model)
    for one in named["secrets"]:
        if usual.get(one) is not None:
            check.add("secrets", f"{one} without a default", "one", "A secret comes from the connections file.")
    told = {key: None for defaults in inside for key in secrets_in(defaults) if key not in named["secrets"]}
    for one in told:
        expected = f"a model in which {one} of {name} has no default that looks like a secret"
        way_out = "Leave the default out: a file gives it by a reference, or it comes from the connections file."
        check.add("config", expected, "one", way_out)


def secrets_in(value: Any, name: str = "", path: str = "") -> list[str]:
    """
    The keys, with dots between them, under which data has what looks like a secret.

    >>> secrets_in({"api_key": "hunter2", "auth": {"dsn": "postgresql://ann:hunter2@db/shop"}, "key": ["id"]})
    ['api_key', 'auth.dsn']
    """
    if isinstance(value, Mapping):
        pairs = [
            (one, key if is_secret_name(key) or not is_secret_name(name) else name, key) for key, one in value.items()
        ]
        found = [
            where for one, called, key in pairs for where in secrets_in(one, called, f"{path}.{key}" if path else key)
        ]
        return found + [path or "config" for key in value if holds_secret(key)]
    if isinstance(value, list):
        return list(dict.fromkeys(where for one in value for where in secrets_in(one, name, path)))
    if isinstance(value, str):
        return [path] if value[:1] != "@" and looks_like_secret(name, value) else []
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [path] if is_number and is_secret_name(name) else []


def _shown_in_schema(schema: Any, name: str = "") -> Any:
    """A schema without defaults and examples that look like secrets; its sentences are masked, as those of files are."""
    if isinstance(schema, list):
        return [_shown_in_schema(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            found[key] = {inner: _shown_in_schema(one, inner) for inner, one in value.items()}
        elif key in ("description", "title") and isinstance(value, str):
            found[key] = mask_likely(value)
        elif key not in ("default", "examples", "example"):
            found[key] = _shown_in_schema(value, name)
        elif not secrets_in(value, name):
            found[key] = value
    return found


_MAPPINGS = {
    "overrides": "a field of the connection to a rule",
    "example": "a key of the config to its value",
    "idempotent_if": "a key of the config to its values",
    "types": "an output to its type",
    "places": "a key of the config to what its text is",
}


def _names(check: Check, option: str, names: Any) -> Collection[str]:
    """A list of keys; a text would be taken for its letters. None of them if it is something else, which is told."""
    if isinstance(names, Sequence | AbstractSet) and not isinstance(names, str | bytes):
        return names
    check.add(option, "a list of keys of the config", names)
    return ()


def _mapping(check: Check, option: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    check.add(option, f"a mapping from {_MAPPINGS[option]}", given)
    return {}


def _check_example(check: Check, component: Component) -> None:
    """An example is what people copy. Its references are taken for what they will be."""
    if not component.example:
        return
    unknown = _with_references(component.example, ())
    for problem in component.problems(component.example, unknown)[:1]:
        where = ".".join(map(str, ("example", *problem.path)))
        check.add(where, problem.expected, Shown(problem.got), problem.way_out)


def _with_references(value: Any, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    if isinstance(value, str):
        return [path] if "${" in value else []
    pairs: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, inner in pairs for one in _with_references(inner, (*path, key))]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


# What is expected, by pydantic's name for what is wrong; longer beginnings first.
_EXPECTED: tuple[tuple[str, str], ...] = (
    ("int", "an integer"),
    ("float", "a number"),
    ("decimal", "a number"),
    ("finite_number", "a finite number"),
    ("bool", "true or false"),
    ("string_type", "a text"),
    ("string_too_short", "a text of at least {min_length} characters"),
    ("string_too_long", "a text of at most {max_length} characters"),
    ("string_pattern_mismatch", "a text of the form {pattern}"),
    ("literal_error", "{expected}"),
    ("enum", "{expected}"),
    ("greater_than_equal", "a number of at least {ge}"),
    ("greater_than", "a number greater than {gt}"),
    ("less_than_equal", "a number of at most {le}"),
    ("less_than", "a number less than {lt}"),
    ("multiple_of", "a multiple of {multiple_of}"),
    ("list", "a list"),
    ("tuple", "a list"),
    ("set", "a list"),
    ("too_short", "at least {min_length} of them"),
    ("too_long", "at most {max_length} of them"),
    ("dict", "a mapping"),
    ("mapping", "a mapping"),
    ("model", "a mapping"),
    ("none_required", "nothing"),
    ("date", "a date as YYYY-MM-DD"),
    ("time", "a time"),
    ("url", "an address"),
    ("union", "one of the forms that are allowed"),
)
_QUOTED = re.compile(r"'([^']*)'")


def _expected(kind: str, context: Mapping[str, Any], message: str, given: Any) -> tuple[str, str]:
    """What is expected, and the way out, if there is more to say than that."""
    if kind in ("value_error", "assertion_error"):  # a check of the component's own: it has its own words
        said = message.partition(", ")[2] or message
        expected, _, way_out = said.partition("; ")
        return expected.removeprefix("expected ").rstrip("."), way_out
    form = next((said for begin, said in _EXPECTED if kind.startswith(begin)), "")
    if not form:
        return "another value", message[:1].lower() + message[1:]
    words = form.format_map({name: str(value) for name, value in context.items()}) if "{" in form else form
    if kind in ("literal_error", "enum"):
        choices = _QUOTED.findall(words)
        words = f"one of {', '.join(choices)}" if len(choices) > 1 else words.replace("'", "")
        same = next((one for one in choices if isinstance(given, str) and one.lower() == given.lower()), "")
        near = f"Did you mean {same!r}?" if same else nearest(str(given), choices)
        return words, near if isinstance(given, str) else ""
    return words, ""


def _spread(errors: Sequence[Any]) -> list[Any]:
    """
    Each error of a check that says where inside of its value something is wrong, as one error for each of them:
    `is_name` tells which of them are about the name of a key.
    """
    found: list[Any] = []
    for error in errors:
        broken = error.get("ctx", {}).get("error")
        if not hasattr(broken, "inside"):
            found.append(error)
            continue
        names = [(*one, True) for one in broken.names]
        for path, said, is_name in [*names, *((*one, False) for one in broken.inside)]:
            value = error["input"]
            for part in path:
                value = value[part]
            other = {"loc": (*error["loc"], *path), "input": value, "msg": f"Value error, {said}", "ctx": {}}
            found.append({**error, **other, "is_name": is_name})
    return found


def _one_of_union(errors: Sequence[Any], config: Mapping[str, Any]) -> list[Any]:
    """Where a value is of the type of one member of a union, only what that member finds wrong."""
    paths = [_in_config(error["loc"], config, is_key=False) for error in errors]
    fits = {path for path, error in zip(paths, errors, strict=True) if not str(error["type"]).endswith("_type")}
    # A member that found something wrong inside of a value has taken the value itself.
    fits |= {path[:length] for path in paths for length in range(1, len(path))}
    return [
        error
        for path, error in zip(paths, errors, strict=True)
        if path not in fits or len(error["loc"]) == len(path) or not str(error["type"]).endswith("_type")
    ]


def _as_one(errors: Sequence[Any], said: Sequence[Problem | None]) -> list[Problem | None]:
    """One problem for a value that is of no type of a union, in place of one for each of its members."""
    found: dict[tuple[str | int, ...], list[Problem]] = {}
    for error, one in zip(errors, said, strict=False):
        if one is not None and str(error["type"]).endswith("_type") and len(error["loc"]) > len(one.path):
            found.setdefault(one.path, []).append(one)
    together = {path: some for path, some in found.items() if len(some) > 1}
    if not together:
        return list(said)
    kept: list[Problem | None] = []
    for one in said:
        some = [] if one is None else together.get(one.path, [])
        if one not in some:
            kept.append(one)
        elif one is some[0]:
            words = list(dict.fromkeys(other.expected for other in some))
            words = [word for word in words if word != "an integer" or "a number" not in words]
            expected = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
            way_out = "write a value, or leave the key out" if some[0].got == _NOTHING else "write one of these"
            kept.append(some[0].replace(expected=expected, way_out=way_out))
    return kept


def _certain(
    errors: Sequence[Mapping[str, Any]], config: Mapping[str, Any], texts: Collection[tuple[str | int, ...]]
) -> set[tuple[str | int, ...]]:
    """Those of the texts of which everything that is wrong is so whatever the references in them stand for."""
    found: dict[tuple[str | int, ...], bool] = {}
    for error in errors if texts else ():
        path = _in_config(error["loc"], config, is_key=False)
        sure = getattr(error.get("ctx", {}).get("error"), "surely", False) or str(error["type"]).endswith("_type")
        found[path] = found.get(path, True) and sure
    return {path for path in texts if found.get(path)}


def _without_misspelt(errors: Sequence[Any], known: Sequence[str]) -> list[Any]:
    """The errors without keys that are missing only because they are misspelt, of which is told."""
    unknown = [error["loc"][0] for error in errors if error["type"] == "extra_forbidden" and len(error["loc"]) == 1]
    meant = {closest(str(key), known) for key in unknown[:_MOST]}
    return [error for error in errors if error["type"] != "missing" or error["loc"][-1] not in meant]


def _in_config(place: Sequence[str | int], config: Any, *, is_key: bool) -> tuple[str | int, ...]:
    """
    Where it stands in the config: pydantic also names the members of a union, which nobody has written. `is_key`: the
    last part is a key that is missing or unknown.
    """
    path: list[str | int] = []
    node: Any = config
    for number, part in enumerate(place):
        if _has(node, part):
            path.append(part)
            node = node[part]
        elif is_key and number == len(place) - 1:
            path.append(part)
    return tuple(path)


def _with(value: Any, path: Sequence[str | int], there: Any) -> Any:
    """The same data with another value at this place."""
    if not path:
        return there
    first: Any = path[0]
    if isinstance(value, Mapping):
        return {**value, first: _with(value[first], path[1:], there)}
    return [_with(one, path[1:], there) if number == first else one for number, one in enumerate(value)]


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and 0 <= part < len(node)


def _shown(value: Any) -> str:
    if value is None:
        return _NOTHING  # as a file says it
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return show(value)
