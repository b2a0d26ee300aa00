"""
Whether a component keeps what a step relies on, for the tests of those who write one.

    def test_it_is_a_component():
        check_component(SHOP_SLACK, {"channel": "orders", "text": "in"}, connection={"base_url": url, "token": "t0ken-7"})
"""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from outlast.components.describing import Component
from outlast.components.registry import find_component, find_family
from outlast.components.running import NO_ROW, Place, StepContext, do_work
from outlast.errors import ConfigurationError
from outlast.settings.secret import Secret
from outlast.store.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_PLAIN = 6  # characters: a shorter secret may stand in any text by chance


def check_component(
    component: Component | str,
    config: Mapping[str, Any] | None = None,
    *,
    connection: Mapping[str, Any] | None = None,
    root: str | Path | None = None,
    row: Any = NO_ROW,
    store_url: str | None = None,
    failing: Mapping[str, Any] | None = None,
    calls: Callable[[], int] | None = None,
) -> Mapping[str, Any]:
    """
    Run a component with this config, its example if there is none, and raise one AssertionError for all that is wrong. Returns
    the outputs.

    It must be described in full; put out what its description says, which can be stored; change nothing that it is given; do
    nothing new the second time, if it is idempotent; and work in a process of its own, in which its last run is: the second one, if it
    is idempotent, else its only one. What `connection` has under the names of secrets, or anywhere in it as a `Secret`, must be in no
    output, message or log. `failing` is a config with which it fails, for which the same holds. `store_url` is for a component that
    keeps something in the store of the app. `calls` says how often a server was called so far: once for each run, because a component never tries again; with `failing` it may not come to that.
    """
    return _Check(component, connection, root, row, store_url, calls).all(config, failing)


class _Check:
    def __init__(
        self,
        component: Component | str,
        connection: Mapping[str, Any] | None,
        root: str | Path | None,
        row: Any,
        store_url: str | None,
        calls: Callable[[], int] | None,
    ) -> None:
        found = component if isinstance(component, Component) else find_component(component)
        if found is None:
            raise ConfigurationError(f"expected a component that is known, got: {component!r}.")
        self.component = found
        self.wrong: list[str] = []
        self._connection = connection
        self._root = root
        self._row = row
        self._store_url = store_url
        self._calls = calls
        self._secrets: list[str] = []

    def all(self, config: Mapping[str, Any] | None, failing: Mapping[str, Any] | None) -> Mapping[str, Any]:
        outputs: Mapping[str, Any] = {}
        self._description()
        with tempfile.TemporaryDirectory() as folder, self._planted() as connection:
            context = StepContext(
                pipeline="conformance",
                step="step",
                run_id=uuid4().hex,
                run_key="conformance",
                attempt=1,
                idempotency_key=f"conformance:{uuid4().hex}",
                root=str(self._root or folder),
                connection=connection,
                row=self._row,
                place=None
                if self._store_url is None
                else Place(store_url=self._store_url, app="conformance", run=0, token=0),
            )
            given = self.component.example if config is None else config
            try:
                if self._can_run(given):
                    outputs = self._works(given, context)
                if failing is not None and self._can_run(failing):
                    other = replace(context, run_id=uuid4().hex, idempotency_key=f"conformance:{uuid4().hex}")
                    self._fails(failing, other)
            finally:
                if context.place is not None and context.place.store is not None:
                    context.place.store.close()
        if self.wrong:
            told = "\n".join(f"  - {one}" for one in self.wrong)
            raise AssertionError(f"{self.component.name} is not what a step relies on:\n{told}")
        return outputs

    # -- its description

    def _description(self) -> None:
        component = self.component
        if not component.example:
            self.wrong.append("expected an example, got: none")
        if not component.summary.strip().endswith("."):
            self.wrong.append("expected summary to be a sentence, got: no full stop at its end")
        for name, field in component.config.model_fields.items():
            if not field.description:
                self.wrong.append(f"expected the key {field.alias or name} to have a description, got: none")
        for name, meaning in (component.outputs or {}).items():
            if not meaning.strip():
                self.wrong.append(f"expected the output {name} to have a meaning, got: none")
        if component.connection and find_family(component.connection) is None:
            self.wrong.append(f"expected a family of connections that is known, got: {component.connection}")

    def _can_run(self, config: Mapping[str, Any]) -> bool:
        problems = self.component.problems(config)
        for problem in problems[:5]:
            self.wrong.append(f"the config: {problem}; references are filled in for it to run")
        try:
            self.component.runner()
        except Exception as error:  # noqa: BLE001 - whatever its module raises
            self.wrong.append(f"expected a function that does the work, got: {type(error).__name__}: {error}")
            return False
        return not problems

    # -- its work

    def _works(self, config: Mapping[str, Any], context: StepContext) -> Mapping[str, Any]:
        goes = self._goes_elsewhere(config, context)
        twice = self.component.is_idempotent(config)
        came = self._once(config, context, elsewhere=goes and not twice)
        if came.outputs is None:
            where = " in a process of its own" if came.elsewhere else ""
            self.wrong.append(f"expected it to work with the config{where}, got: {came.error}")
            return {}
        self._storable(came.outputs)
        if twice:
            again = self._once(config, replace(context, attempt=2), elsewhere=goes)
            where = ", in a process of its own," if again.elsewhere else ","
            if again.outputs is None:
                self.wrong.append(f"expected the same outputs the second time{where} got: {again.error}")
            elif not _is_same(again.outputs, came.outputs):
                other = [name for name in came.outputs if not _is_same(again.outputs.get(name), came.outputs[name])]
                self.wrong.append(f"expected the same outputs the second time{where} got others: {', '.join(other)}")
        return came.outputs

    def _fails(self, config: Mapping[str, Any], context: StepContext) -> None:
        if self._once(config, context, elsewhere=False, least=0).outputs is not None:
            self.wrong.append("expected it to fail with the config failing, got: outputs")

    def _once(self, config: Mapping[str, Any], context: StepContext, *, elsewhere: bool, least: int = 1) -> _Came:
        """One attempt, here or in a process of its own, with at least so many calls if it works; at most one in any case."""
        before = 0 if self._calls is None else self._calls()
        came = _elsewhere(self.component, config, context) if elsewhere else _attempt(self.component, config, context)
        if came.changed:
            self.wrong.append("expected it to leave its config as it is, got: another one")
        if self._calls is not None:
            count = self._calls() - before
            if count > 1:
                self.wrong.append(
                    f"expected one call for one attempt, got: {count}; what tries again is the policy of the step"
                )
            elif count < least and came.outputs is not None:
                self.wrong.append(f"expected one call for one attempt, got: {count}; calls has to count those of it")
        shown = {"outputs": [*_texts(came.outputs)], "message": came.told, "log": came.log}
        for place, texts in shown.items():
            if any(form in text for text in texts for secret in self._secrets for form in _forms(secret)):
                self.wrong.append(f"expected no secret of the connection in its {place}, got: one")
        return came

    def _storable(self, outputs: Mapping[str, Any]) -> None:
        codec = Codec()
        for name, value in outputs.items():
            try:
                same = _is_same(codec.decode(codec.encode(value)), value)
            except (TypeError, ValueError) as error:
                self.wrong.append(f"expected the output {name} to be what a store can keep: {error}")
            else:
                if not same:
                    self.wrong.append(
                        f"expected the output {name} to come back from a store as it was, got: another one"
                    )

    def _goes_elsewhere(self, config: Mapping[str, Any], context: StepContext) -> bool:
        """Whether all that a process of its own is sent gets there, and it finds the function."""
        run, model = self.component.run, self.component.config
        told = len(self.wrong)
        for what, value in (("config", dict(config)), ("context", context), ("run", run), ("its model", model)):
            try:
                pickle.loads(pickle.dumps(value))  # noqa: S301 - of this process
            except Exception as error:  # noqa: BLE001 - whatever its class does
                way_out = "; define it at the top of a module" if what in {"run", "its model"} else ""
                self.wrong.append(
                    f"expected {what} to reach a process of its own, got: {type(error).__name__}{way_out}"
                )
        return len(self.wrong) == told

    # -- what it is given

    @contextmanager
    def _planted(self) -> Iterator[Mapping[str, Any] | None]:
        """The connection, with its secrets as a run has them: named, and found in the environment."""
        if self._connection is None:
            yield None
            return
        family = find_family(self.component.connection) if self.component.connection else None
        fields = dict(self._connection)
        variables: list[str] = []
        for name in family.secrets if family is not None else ():
            if isinstance(fields.get(name), str):
                variables.append(f"CONFORMANCE_{name.upper()}")
                os.environ[variables[-1]] = fields[name]
                fields[name] = Secret.env(variables[-1])
        self._secrets = [one for one in _revealed(fields) if len(one) >= _PLAIN]
        try:
            yield fields
        finally:
            for one in variables:
                os.environ.pop(one, None)


# -- one attempt -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Came:
    """What came of an attempt: the outputs, or None and the error; whether the config was changed, and all that was told."""

    outputs: Mapping[str, Any] | None
    error: str = ""
    changed: bool = False
    told: Sequence[str] = ()
    log: Sequence[str] = ()
    elsewhere: bool = False


def _attempt(component: Component, config: Mapping[str, Any], context: StepContext) -> _Came:
    given = copy.deepcopy(dict(config))
    with _heard() as log:
        try:
            came = _Came(do_work(component, given, context))
        except Exception as error:  # noqa: BLE001 - whichever it is, it is looked at
            told = ["".join(traceback.format_exception(error)), repr(error), *_texts(error.args)]
            came = _Came(None, f"{type(error).__name__}: {error}", told=told)
    return replace(came, changed=not _is_same(given, config), log=log)


def _elsewhere(component: Component, config: Mapping[str, Any], context: StepContext) -> _Came:
    """The same as a step with `isolation: process` does it."""
    from outlast.calls.guard import Guard

    names = ("name", "summary", "config", "outputs", "types", "run")  # that is all that the work needs
    parts = {name: getattr(component, name) for name in names}
    guard = Guard("conformance", retry=None, isolation="process")
    try:
        came: _Came = guard.call(_in_child, parts, dict(config), context)
    except Exception as error:  # noqa: BLE001 - the process died, or what came does not get back
        return _Came(None, f"{type(error).__name__}: {error}", elsewhere=True)
    return replace(came, elsewhere=True)


def _in_child(parts: dict[str, Any], config: Mapping[str, Any], context: StepContext) -> _Came:
    return _attempt(Component(**parts), config, context)


# -- comparing -------------------------------------------------------------------------------------------------------------


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where what is no number equals itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, as it is; what is no text as it is written."""
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, bytes | bytearray):
            yield bytes(one).decode(errors="replace")
        elif not isinstance(one, Mapping | list | tuple | set | frozenset):
            yield repr(one)
        elif id(one) not in seen:  # one that is in itself is looked at once
            seen.add(id(one))
            left += [*one, *one.values()] if isinstance(one, Mapping) else one


def _revealed(value: Any) -> Iterator[str]:
    """Every secret in the fields of a connection, however deep."""
    if hasattr(value, "reveal"):
        yield str(value.reveal())
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _revealed(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _revealed(inner)


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as Python, JSON and addresses write it."""
    escaped = {repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]}
    escaped |= {json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret.encode(errors="replace"))[2:-1]}
    return {secret, quote(secret, safe="", errors="replace"), *escaped}


@contextmanager
def _heard() -> Iterator[list[str]]:
    """All that is logged meanwhile, as it is formatted, whatever its level."""
    told: list[str] = []

    class Ears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(self.format(record))

    top, ears = logging.getLogger(), Ears()
    level = top.level
    top.addHandler(ears)
    top.setLevel(logging.DEBUG)
    try:
        yield told
    finally:
        top.removeHandler(ears)
        top.setLevel(level)
