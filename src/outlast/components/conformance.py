"""
Whether a component keeps what a step relies on, for the tests of those who write one.

    def test_it_is_a_component():
        check_component(SHOP_SLACK, {"channel": "orders", "text": "in"}, connection={"base_url": url, "token": "t0ken-7"})
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outlast.components.describing import Component
from outlast.components.registry import find_component, find_family
from outlast.components.running import NO_ROW, Place, StepContext, do_work
from outlast.errors import ConfigurationError
from outlast.settings.secret import Secret
from outlast.store.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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
    nothing new the second time, if it is idempotent; and work in a process of its own. What `connection` has under the names of
    secrets, or as a `Secret`, must be in no output, message or log. `failing` is a config with which it fails, for which the
    same holds. `store_url` is for a component that keeps something in the store of the app. `calls` says how often a server was called so far: once for each run, because a component never tries again.
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
                    self._fails(failing, replace(context, idempotency_key=f"conformance:{uuid4().hex}"))
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
        self._goes_elsewhere(config, context)
        outputs = self._once(config, context)
        if isinstance(outputs, BaseException):
            self.wrong.append(f"expected it to work with the config, got: {type(outputs).__name__}: {outputs}")
            return {}
        self._storable(outputs)
        if self.component.is_idempotent(config):
            again = self._once(config, replace(context, attempt=2))
            if isinstance(again, BaseException):
                self.wrong.append(f"expected the same outputs the second time, got: {type(again).__name__}: {again}")
            elif again != outputs:
                other = [name for name in outputs if again.get(name) != outputs[name]]
                self.wrong.append(f"expected the same outputs the second time, got others: {', '.join(other)}")
        return outputs

    def _fails(self, config: Mapping[str, Any], context: StepContext) -> None:
        if not isinstance(self._once(config, context), Exception):
            self.wrong.append("expected it to fail with the config failing, got: outputs")

    def _once(self, config: Mapping[str, Any], context: StepContext) -> Mapping[str, Any] | Exception:
        given = copy.deepcopy(dict(config))
        before = 0 if self._calls is None else self._calls()
        came: Mapping[str, Any] | Exception
        with _heard() as log:
            try:
                came = do_work(self.component, given, context)
            except Exception as error:  # noqa: BLE001 - looked at below
                came = error
        if given != config:
            self.wrong.append("expected it to leave its config as it is, got: another one")
        if self._calls is not None and (count := self._calls() - before) > 1:
            self.wrong.append(
                f"expected one call for one attempt, got: {count}; what tries again is the policy of the step"
            )
        shown = {
            "outputs": "" if isinstance(came, Exception) else repr(came),
            "message": "".join(traceback.format_exception(came)) + repr(came) if isinstance(came, Exception) else "",
            "log": "\n".join(log),
        }
        for place, text in shown.items():
            if any(secret in text for secret in self._secrets):
                self.wrong.append(f"expected no secret of the connection in its {place}, got: one")
        return came

    def _storable(self, outputs: Mapping[str, Any]) -> None:
        codec = Codec()
        for name, value in outputs.items():
            try:
                same = codec.decode(codec.encode(value)) == value
            except (TypeError, ValueError) as error:
                self.wrong.append(f"expected the output {name} to be what a store can keep: {error}")
            else:
                if not same:
                    self.wrong.append(
                        f"expected the output {name} to come back from a store as it was, got: another one"
                    )

    def _goes_elsewhere(self, config: Mapping[str, Any], context: StepContext) -> None:
        """What a process of its own is sent, and whether it finds the function there."""
        run = self.component.run
        for what, value in (("config", dict(config)), ("context", context), ("run", run)):
            try:
                pickle.loads(pickle.dumps(value))  # noqa: S301 - of this process
            except Exception as error:  # noqa: BLE001 - whatever its class does
                way_out = "; define it at the top of a module" if what == "run" else ""
                self.wrong.append(
                    f"expected {what} to reach a process of its own, got: {type(error).__name__}{way_out}"
                )

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
        revealed = [str(one.reveal()) for one in fields.values() if hasattr(one, "reveal")]
        self._secrets = [one for one in revealed if len(one) >= _PLAIN]
        try:
            yield fields
        finally:
            for one in variables:
                os.environ.pop(one, None)


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
