"""
How a component does its work: the function of its description is called with the config and a `StepContext`, and gives
the outputs of the step.

    def run(config: SlackConfig, context: StepContext) -> Mapping[str, Any] | None: ...

It blocks, in a thread or a process of its own. It never retries, and switches off what its client library retries: the
policy of the step decides about that. An error is raised as it comes from the library, so that it can be classified.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.calls.state import current
from outlast.components.describing import OUTPUT_TYPES
from outlast.errors import PermanentFailure
from outlast.kernel.clock import here
from outlast.kernel.redact import error_text, mask_known, remember_secret
from outlast.observe import emit, listening
from outlast.settings.names import attribute
from outlast.verdicts import mark_begun

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from outlast.components.describing import Component, OutputType
    from outlast.store import Store

_SPARE, _SHARE = 0.25, 0.1  # seconds, and the part of what is left, by which work ends before its time is up: the less
#: What `StepContext.row` is in a step without `for_each`.
NO_ROW: Any = type("NoRow", (), {"__repr__": lambda _: "NO_ROW", "__reduce__": lambda _: "NO_ROW"})()


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """
    Where what a step keeps goes: the store of its app, and the run that it belongs to, by the lease of who works on it.
    In a child process the store is opened anew, by its address.
    """

    store_url: str
    app: str
    run: int
    token: int
    store: Store | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.store_url, self.app, self.run, self.token)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for one, value in zip(fields(self), (*state, None), strict=True):
            object.__setattr__(self, one.name, value)

    def opened(self) -> Store:
        """The store."""
        if self.store is None:
            from outlast.store import open_store

            object.__setattr__(self, "store", open_store(self.store_url, app=self.app))
        assert self.store is not None  # noqa: S101 - just opened
        return self.store


def _without_secrets(raw: str | bytes) -> str | bytes:
    if isinstance(raw, str):
        return mask_known(raw)
    text = raw.decode(errors="surrogateescape")  # what is no text stays what it is
    masked = mask_known(text)
    return raw if masked == text else masked.encode(errors="surrogateescape")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """
    What a component knows beside its config.

    `connection` has the fields of the connection that the config names, with secrets as `Secret`; None without one.
    `inputs` are those of the step. `root` is the folder of the project: paths begin there, and functions are imported
    from there, or from modules that are `allowed`. `idempotency_key` is the same in every attempt at this step, or at this row
    of it, in all rounds of the run, until it has succeeded or was undone: send it to services that take one. `component` is its own name. `row` is what a
    step with `for_each` works on. With ``undoes`` it is called to undo a step. `hidden` are the secrets of the flow: what is on record has none of them in its
    name. `row_key` is what the row of a step with `for_each` is known by.
    """

    pipeline: str
    step: str
    run_id: str
    run_key: str
    attempt: int
    idempotency_key: str
    root: str
    allowed: tuple[str, ...] = ()
    connection: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    row: Any = NO_ROW
    row_key: str = ""
    undoes: bool = False
    component: str = ""
    place: Place | None = field(default=None, repr=False)
    hidden: tuple[str, ...] = field(default=(), repr=False)
    until: float | None = None  # of a row: when its attempt is over, on the monotonic clock

    @property
    def work_key(self) -> str:
        """
        What this work is known by, in every round of the run and to what undoes it; `idempotency_key` is another one then,
        and once the work was done or undone.
        Mark with it what is found again later.
        """
        parts = f"{self.run_id}\x1f{self.step}\x1f{self.row_key}"
        return blake2b(parts.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def key_sent(self) -> None:
        """
        Call it where the service is sent `idempotency_key`. A row with ``idempotent: false`` is then retried after a lost answer.
        """
        if self.row_key:
            _ = current().idempotency_key  # whose reader is taken at its word that it sends the key

    def remaining(self) -> float | None:
        """
        Seconds that work of this attempt may take; None if nothing bounds it. It is a little less than what is left of its
        time: work that ends by itself leaves no thread behind, which the next attempt would find `still_running`.
        """
        known = [current().remaining(), None if self.until is None else self.until - here.get().clock.monotonic()]
        left = min((max(0.0, one) for one in known if one is not None), default=None)
        return None if left is None else left - min(_SPARE, left * _SHARE)

    def keep(self, name: str, raw: str | bytes) -> None:
        """
        Keep this for people to look at, such as the raw answer of a service, also if the attempt fails. It is kept as it came,
        but for the secrets that this process knows: a service may repeat the key that it refuses.
        """
        if self.place is not None:
            raw = _without_secrets(raw)
            place, row = self.place, current().item_key
            called = mask_known(name if row is None else f"{row} {name}")  # of one row of many
            kept = place.opened().keep_of_run(place.run, place.token, self.step, self.attempt, called, raw)
            if kept:
                self._tell(called, len(raw.encode(errors="surrogatepass")) if isinstance(raw, str) else len(raw))

    def _tell(self, artifact: str, size: int) -> None:
        if listening():
            from outlast.observe.events import StepArtifactKept

            emit(
                StepArtifactKept(
                    run_id=self.run_id,
                    pipeline=self.pipeline,
                    run_key=self.run_key,
                    step_id=self.step,
                    component=self.component,
                    attempt=self.attempt,
                    artifact=artifact,
                    size=size,
                )
            )

    def store(self) -> Store:
        """The store of the app, for what belongs to no single run."""
        if self.place is None:
            raise PermanentFailure(f"the step {self.step} has no store here", error_class="code_error")
        return self.place.opened()

    def path(self, text: str) -> Path:
        """
        A path of the config, which begins in the project's root. One that a link leads out of there is refused.
        """
        root = Path(os.path.realpath(self.root))
        found = Path(os.path.realpath(root / text))
        if not found.is_relative_to(root):
            message = f"expected {text} to be under the project's root, got: a link that leads out of it"
            raise PermanentFailure(message, error_class="permission_denied")
        return root / text

    def function(self, name: str) -> Any:
        """
        What ``module:name`` of the config names, imported from the project's root, or from a module that is allowed.
        """
        return imported(name, self.root, self.allowed)


def imported(name: str, root: str, allowed: tuple[str, ...] = ()) -> Any:
    """The object that ``module:name`` names: of a module under the project's root, or of one that is `allowed`."""
    module, _, inside = name.partition(":")
    folder = os.path.realpath(root)
    if folder not in (os.path.realpath(one) for one in sys.path):
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ImportError as missing:
        raise PermanentFailure(f"{name} cannot be imported: {missing}", error_class="missing_dependency") from missing
    if not _is_allowed(module, allowed) and not _is_under(found, folder):
        message = f"expected {module} to be a module under the project's root, got: one of elsewhere; allow it with OUTLAST_ALLOW={module}"
        raise PermanentFailure(message, error_class="permission_denied")
    try:
        named = attribute(found, inside)
    except AttributeError:
        raise PermanentFailure(
            f"expected {module} to have {inside}, got: no such name", error_class="code_error"
        ) from None
    # The module may have imported it, such as by from os import *. An object was made where it stands.
    home = _home_of(named) if inspect.isroutine(named) or inspect.isclass(named) else module
    if home == module or _is_allowed(str(home), allowed) or _is_under(sys.modules.get(str(home)), folder):
        return named
    message = (
        f"expected {name} to be a function of the project, got: one of {home}, which {module} has imported. "
        f"Call it in a function of your own, or allow it with OUTLAST_ALLOW={home}."
    )
    raise PermanentFailure(message, error_class="permission_denied")


def _home_of(named: Any) -> str | None:
    """The module in which a function or class was written; of a method of a C type, the one of that type."""
    home: str | None = getattr(named, "__module__", None)
    return home or getattr(type(getattr(named, "__self__", None)), "__module__", None)


def _is_allowed(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in allowed)


def _is_under(module: ModuleType | None, folder: str) -> bool:
    """Whether the file of a module is under the project's root."""
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(os.path.realpath(origin)).is_relative_to(folder)


def called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a function comes to; a coroutine function runs in an event loop of its own."""
    came = function(*args, **kwargs)
    if inspect.isawaitable(came):
        import asyncio

        async def awaited() -> Any:
            return await came

        return asyncio.run(awaited())
    return came


def load(component: Component) -> None:
    """Load what a component needs, before the time of an attempt begins: a large library takes seconds."""
    with suppress(Exception):  # the attempt says what is missing, and is on record
        component.runner()


def do_work(component: Component, config: Mapping[str, Any], context: StepContext) -> Mapping[str, Any]:
    """What the component puts out for this config, in which every reference is filled in."""
    run = component.runner()
    problems = component.problems(config)
    if problems:
        # What came is data of earlier steps by now, which no message shows.
        told = "; ".join(f"{problem.where or 'all of it'}: expected {problem.expected}" for problem in problems[:5])
        message = f"the config of {context.step} does not fit {component.name}, now that it is filled in: {told}"
        raise PermanentFailure(message, error_class="validation_error")
    came = run(component.config.model_validate(config), context)
    outputs = {} if came is None else came
    wrong = _wrong(component, outputs)
    if wrong:
        unfit = PermanentFailure(f"{component.name} put out {wrong}", error_class="code_error")
        mark_begun(unfit)  # its work is done all the same
        raise unfit
    return dict(outputs)


def _wrong(component: Component, outputs: Any) -> str:
    """What is wrong with what a component has put out; nothing if it is what its description says."""
    if not hasattr(outputs, "items"):
        return f"a value of type {type(outputs).__name__}: expected a mapping from names to values, or None"
    if not all(isinstance(name, str) for name in outputs):
        return "outputs whose names are no texts"
    if component.outputs is None:
        return ""
    unknown = [name for name in outputs if name not in component.outputs]
    lacking = [name for name in component.outputs if name not in outputs]
    if unknown or lacking:
        return f"{', '.join(outputs) or 'nothing'}: expected {', '.join(component.outputs)}"
    for name, kind in component.types.items():
        if not _IS[kind](outputs[name]):
            return f"{name} as a value of type {type(outputs[name]).__name__}: expected {OUTPUT_TYPES[kind]}"
    return ""


# Whether a value is of a type of outputs; a truth is no number.
_IS: dict[OutputType, Callable[[Any], bool]] = {
    "rows": lambda value: isinstance(value, list),
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float | Decimal) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "mapping": lambda value: isinstance(value, Mapping),
}


def in_child(name: str, config: Mapping[str, Any], context: StepContext) -> Mapping[str, Any]:
    """As `do_work`, where only the name of the component is known: in another process."""
    from outlast.components.registry import find_component

    for secret in context.hidden:
        remember_secret(secret)
    component = find_component(name)
    if component is None:
        message = f"expected the component {name} to be that of an installed package, which a process of its own finds, got: none"
        raise PermanentFailure(message, error_class="missing_dependency")
    try:
        return do_work(component, config, context)
    except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as thrown:  # noqa: BLE001 - the panic of an extension, for one: a failure of this attempt only
        said = f"the step {context.step} raised {type(thrown).__name__}, which is no Exception: {error_text(thrown)}"
        raise RuntimeError(said) from None
