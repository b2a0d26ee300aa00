"""
From the config of a manifest to what a component gets: every reference is filled in, once. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.errors import PermanentFailure
from outlast.spec.references import Unreadable, filled, in_text, of_row, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.spec.references import Place, Reference

_NONE: Any = object()
_DEEPEST = 20  # keys of a config that refer to each other


class Values:
    """
    What references of one step stand for. `output` gives what a step has put out under a name, and raises KeyError if it
    has not. Parameters that are sensitive are in `secret`.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        secret: Mapping[str, Any],
        output: Callable[[str, str], Any],
        *,
        row: Any = _NONE,
        own_outputs: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._params = params
        self._secret = secret
        self._output = output
        self._row = row
        self._own = own_outputs  # of a row that is undone

    def with_row(self, row: Any, own_outputs: tuple[str, Mapping[str, Any]] | None = None) -> Values:
        """The same in a step with `for_each`, for one of its rows."""
        return Values(self._params, self._secret, self._output, row=row, own_outputs=own_outputs)

    def fill(self, template: Any, config: Mapping[str, Any], places: Mapping[str, Place] | None = None) -> Any:
        """
        A part of a step with every reference filled in. `config` is the step's own, for ``${key}``. `places` says of its
        keys what the texts under them are: values change nothing in the structure of these. What cannot be filled in is a
        PermanentFailure that says which reference, and shows no value.
        """
        if not places:
            return self._filled(template, config, secrets=True, depth=0)
        return {
            key: self._filled(one, config, secrets=True, depth=0, place=places.get(key, "text"))
            for key, one in template.items()
        }

    def key(self, template: Any, config: Mapping[str, Any]) -> str:
        """An idempotency key as a text, in which the values of several references can be told apart."""
        return in_text(self._filled(template, config, secrets=True, depth=0, place="key"))

    def shown(self, template: Any, config: Mapping[str, Any]) -> Any:
        """As `fill`, with the names of sensitive parameters in place of their values: for a fingerprint."""
        return self._filled(template, config, secrets=False, depth=0)

    def _filled(
        self, template: Any, config: Mapping[str, Any], *, secrets: bool, depth: int, place: Place = "text"
    ) -> Any:
        if isinstance(template, str):
            return self._text(template, config, secrets=secrets, depth=depth, place=place)
        if isinstance(template, Mapping):
            return {key: self._filled(one, config, secrets=secrets, depth=depth) for key, one in template.items()}
        if isinstance(template, list | tuple):
            return [self._filled(one, config, secrets=secrets, depth=depth) for one in template]
        return template

    def _text(self, text: str, config: Mapping[str, Any], *, secrets: bool, depth: int, place: Place) -> Any:
        if "${" not in text:
            return text

        def value_of(part: Reference) -> Any:
            return self._value(part, config, secrets=secrets, depth=depth)

        try:
            return filled(parse(text), value_of, place)
        except Unreadable as broken:
            message = f"expected {broken.expected}, got: {broken.got}; {broken.way_out}"
            raise PermanentFailure(message, error_class="validation_error") from None

    def _value(self, part: Reference, config: Mapping[str, Any], *, secrets: bool, depth: int) -> Any:
        try:
            if part.kind == "param":
                if part.name in self._secret:
                    return self._secret[part.name] if secrets else f"{part}"
                return self._params[part.name]
            if part.kind == "own":
                if depth > _DEEPEST:
                    raise KeyError(part.name)
                return self._filled(config[part.name], config, secrets=secrets, depth=depth + 1)
            if part.kind == "item":
                if self._row is _NONE:
                    raise KeyError("item")
                return of_row(part, self._row)
            if self._own is not None and part.step == self._own[0]:
                return self._own[1][part.name]
            return self._output(part.step, part.name)
        except LookupError as missing:
            why = "it is not there" if isinstance(missing, KeyError) else str(missing)
            raise PermanentFailure(
                f"expected {part} to stand for something, got: {why}", error_class="data_error"
            ) from None
