"""
A guard from a configuration block, and a guard as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import ConfigurationError, Problem
from outlast.kernel.redact import error_text
from outlast.policy import RetryPolicy
from outlast.settings.blocks import shown_specs
from outlast.settings.callables import defined_in
from outlast.settings.checks import Check, Shown, a_value_of, show
from outlast.settings.keys import Block, name_for, named, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

G = TypeVar("G")


def guard_from(make: Callable[..., G], config: Mapping[str, Any], name: str | None, imports: Sequence[str]) -> G:
    """The guard that a block describes; every mistake in it and in the blocks inside of it is told at once."""
    from outlast.breaker import CircuitBreaker
    from outlast.budgets import RetryBudget
    from outlast.calls.hedge import Hedge
    from outlast.limits import Limit

    if isinstance(imports, str) or not all(isinstance(one, str) for one in imports):
        raise ConfigurationError("expected imports to be a list of modules, such as ['shop.guards'].")
    given = config if isinstance(config, Mapping) else {}
    known_as = given.get("name", name)
    called = known_as if isinstance(known_as, str) else None
    parts = {
        "retry": lambda one: RetryPolicy.from_config(_mapping(one)),
        "circuit_breaker": lambda one: named(
            CircuitBreaker, "circuit_breaker", _without(one, "on_open"), called, also=("on_open",)
        ),
        "limit": lambda one: Limit.from_config(one, name=called),
        "retry_budget": lambda one: RetryBudget.from_config(one, name=called),
        "hedge": Hedge.from_config,
    }
    times, outer = given.get("timeout"), config
    if isinstance(times, Mapping):
        outer = _without(outer, "timeout")
    if given.get("preset") is not None and isinstance(given.get("retry"), Mapping):
        outer = _without(outer, "retry")  # it is read with the preset, below
    block = Block("guard", outer, parts, _importer(imports))
    if isinstance(times, Mapping):
        _times(block, times)
    circuit = given.get("circuit_breaker")
    if isinstance(circuit, Mapping) and "on_open" in circuit:
        block.put("on_open", ("circuit_breaker", "on_open"), lambda: circuit["on_open"])
    _preset(block, given)
    if _idle_budget(block.settings):
        way_out = "Without retries and hedges nothing is taken from it."
        block.check.add("retry_budget", "left out with one attempt", given["retry_budget"], way_out)
    if name is not None:
        block.settings.setdefault("name", name)
    return block.made(make)


def _importer(packages: Sequence[str]) -> Callable[[str], Any]:
    """
    Finds functions in these packages and modules only. Each step of the dotted name must be defined in one of them, so
    that no name leads through what an allowed module has imported.
    """

    def allowed(module: str) -> bool:
        return module != "" and any(module == one or module.startswith(f"{one}.") for one in packages)

    def found(text: str) -> Any:
        module, colon, name = text.partition(":")
        if not colon or not allowed(module):
            way_out = f"Allow its module where the block is read: imports=[{show(module)}]." if colon else ""
            raise _refused(show(text), way_out)
        part, homes = "", [module]
        try:
            if not all(one.isidentifier() for one in (*module.split("."), *name.split("."))):
                raise ValueError("it is no dotted name")  # a file is none, for one
            thing: Any = import_module(module)
            for part in name.split("."):
                thing = getattr(thing, part)
                homes = defined_in(thing)
                if not all(map(allowed, homes)):
                    break
        except Exception as broken:  # noqa: BLE001 - whatever somebody's module says when it is loaded
            why = f"{show(text)}, which cannot be had: {type(broken).__name__}: {error_text(broken)}"
            raise ConfigurationError([Problem((), 'a function as "module:name"', why)]) from None
        if isinstance(thing, ModuleType):
            raise _refused(f"{show(text)}, where {part} is a module", "Name a function by the module that defines it.")
        home = next((one for one in homes if not allowed(one)), None)
        if home:
            way_out = f"Name it there, and allow that module where the block is read: imports=[{show(home)}]."
            raise _refused(f"{show(text)}, where {part} is defined in {home}", way_out)
        if home == "" or not callable(thing):
            raise _refused(f"{show(text)}, where {part} is {a_value_of(thing)}")
        return thing

    return found


def _refused(got: str, way_out: str = "") -> ConfigurationError:
    return ConfigurationError(
        [Problem((), 'a function as "module:name", of a module that may be imported', got, way_out)]
    )


def _idle_budget(options: Mapping[str, Any]) -> bool:
    """Whether the budget has no effect: nothing is retried or hedged, and no other process has the budget too."""
    budget, retry = options.get("retry_budget"), options.get("retry", RetryPolicy())
    once = retry is None or retry.max_attempts == 1
    return budget is not None and not budget.shared and once and options.get("hedge") is None


def _mapping(config: Any) -> Any:
    if not isinstance(config, Mapping):
        raise ConfigurationError([Problem((), "a mapping of settings", show(config))])
    return config


def _without(config: Any, key: str) -> Any:
    return {one: value for one, value in config.items() if one != key} if isinstance(config, Mapping) else config


def _times(block: Block, times: Mapping[str, Any]) -> None:
    """``timeout: {step_ms: ..., total_ms: ...}``: three options of the guard in one block."""
    inner = Block("timeout", times)
    block.check.take(ConfigurationError(inner.check.problems), "timeout")
    for option, where in inner.written.items():
        if option in inner.settings:
            block.put(option, ("timeout", *where), lambda option=option: inner.settings[option])  # type: ignore[misc]


def _preset(block: Block, given: Mapping[str, Any]) -> None:
    """``preset: llm`` is the policy, and the block `retry` changes it."""
    block.settings.pop("preset", None)
    if given.get("preset") is None:
        return
    retry = given.get("retry", {})
    if not isinstance(retry, Mapping):
        if retry is None:
            way_out = "Without retries there is nothing to preset: leave one of the two out."
            block.check.add("preset", "left out with retry: null", given["preset"], way_out)
        return
    if "preset" in retry:
        block.check.add("preset", "given once", Shown("both preset and retry.preset"))
        return
    try:
        block.settings["retry"] = RetryPolicy.from_config({"preset": given["preset"], **retry})
    except ConfigurationError as wrong:
        block.check.problems += [one if one.path[:1] == ("preset",) else one.within("retry") for one in wrong.details]


def guard_block(guard: Any, options: Sequence[str], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The block that makes such a guard; what cannot be data is told, all of it at once."""
    check = Check()

    def part(key: str) -> Callable[[Any], Any]:
        def one(value: Any) -> Any:
            try:
                return value.to_config()
            except ConfigurationError as wrong:
                check.take(wrong, key)
                return None

        return one

    parts: dict[str, Callable[[Any], Any]] = {
        key: part(key) for key in ("retry", "circuit_breaker", "limit", "retry_budget", "hedge")
    }
    for key in ("cost", "retry_if", "fallback"):
        parts[key] = lambda function, key=key: name_for(check, key, function)  # type: ignore[misc]
    once, retry = RetryPolicy(max_attempts=1), parts["retry"]
    parts["retry"] = lambda policy: None if policy == once else retry(policy)
    parts["fallback_on"] = lambda specs: shown_specs(check, "fallback_on", specs)
    said = {option: getattr(guard, option) for option in options}
    if _idle_budget(said):
        del said["retry_budget"]
    block = shown("guard", said, {"name": None, **usual}, parts)
    check.raise_if_any()
    return block
