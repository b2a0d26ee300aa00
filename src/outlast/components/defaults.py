"""
The defaults of a config model, filled into a config that may still have references in it: pydantic itself can fill
only what it can also check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_EXACT = 2**53  # above it not every whole number is a float
_Fields: TypeAlias = "dict[str, FieldInfo]"


class Defaults:
    """What a model of pydantic has where nothing is said."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._fields: _Fields = fields_of(model)
        self.usual = {key: _default(one) for key, one in self._fields.items() if not one.is_required()}
        self._deep = {key for key, one in self._fields.items() if _is_deep(one.annotation)}

    def filled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """
        A config with the default of every key that was left out, of the models inside of it too. Where only a float may stand, a
        whole number is one, as the component gets it: 1 and 1.0 are the same.
        """
        found = {
            key: _filled(self._fields[key].annotation, value) if key in self._deep else value
            for key, value in config.items()
        }
        return found | {key: value for key, value in self.usual.items() if key not in config}


@lru_cache(maxsize=512)
def defaults_of(model: type[BaseModel]) -> Defaults:
    """The defaults of a model, worked out once."""
    return Defaults(model)


def fields_of(model: type[BaseModel]) -> _Fields:
    """The fields of a model, by the keys as they are written."""
    return {one.alias or name: one for name, one in model.model_fields.items()}


def models_in(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model, and every one that a value of it may have inside, each once."""
    found: dict[type[BaseModel], None] = {model: None}
    waiting: list[Any] = [one.annotation for one in fields_of(model).values()]
    while waiting:
        for one in _choices(waiting.pop()):
            if _is(one, BaseModel):
                if one not in found:
                    found[one] = None
                    waiting += [inner.annotation for inner in fields_of(one).values()]
            else:
                waiting += get_args(one)
    return list(found)


def _default(one: FieldInfo) -> Any:
    return _plain(one.get_default(call_default_factory=True))


def _plain(value: Any) -> Any:
    """As JSON has it, and the same in every process: a set has an order there."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(by_alias=True))
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((_plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else to_jsonable_python(value)


def _filled(kind: Any, value: Any) -> Any:
    """A value of this annotation with the defaults of the models in it."""
    if isinstance(value, int) and not isinstance(value, bool):
        kinds = _choices(kind)
        return float(value) if float in kinds and int not in kinds and abs(value) < _EXACT else value
    if isinstance(value, list):
        return [_filled(_entry(kind, number), one) for number, one in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    for one in _choices(kind):
        if _is_model(one) and _fits(one, value):
            return defaults_of(one).filled(value)
        origin, inner = get_origin(one), get_args(one)
        if origin is not None and _is(origin, Mapping) and len(inner) == 2:
            return {key: _filled(inner[1], item) for key, item in value.items()}
    return value


def _entry(kind: Any, number: int) -> Any:
    """The annotation of an entry of a list."""
    for one in _choices(kind):
        origin, inner = get_origin(one), get_args(one)
        if origin is tuple and inner[-1:] != (...,):
            return inner[number] if number < len(inner) else None
        if origin is not None and (_is(origin, Sequence) or _is(origin, AbstractSet)):
            return inner[0] if inner else None
    return None


def _choices(kind: Any) -> list[Any]:
    """The members of a union, of unions in it too; the annotation itself if it is none."""
    kind = getattr(kind, "__value__", kind)  # of `type X = ...`
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [inner for one in get_args(kind) for inner in _choices(one)]
    return [kind]


def _is_deep(kind: Any) -> bool:
    """Whether a value of this annotation may be a model or a float, or have one in it."""
    return any(_is_model(one) or one is float or any(map(_is_deep, get_args(one))) for one in _choices(kind))


def _is_model(kind: Any) -> bool:
    return _is(kind, BaseModel) and not _is(kind, RootModel)


def _fits(model: type[BaseModel], value: Mapping[str, Any]) -> bool:
    """Whether it is this model of a union: no key is unknown or missing, and words to choose from are its own."""
    fields = fields_of(model)
    if not value.keys() <= fields.keys() or any(one.is_required() and key not in value for key, one in fields.items()):
        return False
    words = {key: get_args(one.annotation) for key, one in fields.items() if get_origin(one.annotation) is Literal}
    return all(not isinstance(value[key], str) or value[key] in said for key, said in words.items() if key in value)


def _is(origin: Any, kind: type[Any]) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)
