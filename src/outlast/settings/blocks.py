"""
Retry blocks, in every spelling that is accepted, read into the arguments of a `RetryPolicy`; and a policy as such a
block.

Canonical keys carry their unit (``_ms``, ``_s``). A block in an older spelling brings the defaults that went with it
there. Unknown keys are errors: a retry block that is silently ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.settings.callables import name_of
from outlast.settings.checks import Check, Shown
from outlast.settings.keys import number_of, time_of, truth_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from outlast.errors import Problem
    from outlast.kernel.aliases import ErrorSpec

# Every key a retry block may have, with what it means.
CONFIG_KEYS: dict[str, str] = {
    "preset": "a ready-made policy, which holds wherever the block says nothing",
    "max_attempts": "executions in all, the first included",
    "max_retries": "executions after the first",
    "mode": "inline or requeue; read by jobs, ignored elsewhere",
    "backoff": "exponential, linear, fixed (or none), schedule, jittered_exponential",
    "multiplier": "growth of exponential backoff",
    "initial_delay_ms": "first delay",
    "initial_delay_s": "first delay",
    "initial_delay": "first delay, seconds",
    "base_delay_ms": "first delay; brings the stage preset's defaults",
    "base_delay": "first delay, seconds; brings the call preset's defaults",
    "retry_backoff_base": "first delay, seconds; brings the tiered preset's defaults",
    "max_delay_ms": "ceiling of one delay; null for none",
    "max_delay_s": "ceiling of one delay; null for none",
    "max_delay": "ceiling of one delay, seconds; null for none",
    "delays_ms": "the schedule, literally",
    "delays_s": "the schedule, literally",
    "delays": "the schedule, literally, seconds",
    "jitter": "a ratio, full, equal, decorrelated, {add_ms: n}; true is {add_ms: 1000}; false is 0",
    "cap": "after_jitter or before_jitter",
    "max_retry_after_ms": "longest wait granted to a Retry-After",
    "max_retry_after_s": "longest wait granted to a Retry-After",
    "max_retry_after": "longest wait granted to a Retry-After, seconds",
    "on_errors": "what is retried",
    "skip_on_errors": "what is never retried",
    "retriable_errors": "auto, all, none, or what is retried",
    "retryable_exceptions": "exception names that are retried",
    "retryable_http_status_codes": "HTTP statuses that are retried",
    "unclear": "fail or retry errors of category unclear",
    "retry_limits": "retries for each tier",
    "retry_exhausted": "try again what an inner retry gave up on",
    "retry_exhausted_steps": "the same",
}
_TIERED = {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
_BACKOFFS = {
    "none": "fixed",
    "exp": "exponential",
    "jittered_exponential": "exponential",
    "schedule": "exponential",
}
BACKOFFS_KNOWN = ("exponential", "linear", "fixed", *_BACKOFFS)
# Setting -> the keys it may be written as; the ending says the unit.
_TIMES = {
    "initial_delay": "initial_delay initial_delay_s initial_delay_ms base_delay base_delay_ms retry_backoff_base",
    "max_delay": "max_delay max_delay_s max_delay_ms",
    "max_retry_after": "max_retry_after max_retry_after_s max_retry_after_ms",
    "delays": "delays delays_s delays_ms",
}


def _as_it_is(value: Any) -> Any:
    return value


def _numbers(values: Any) -> Any:
    return {name: number_of(value) for name, value in values.items()} if isinstance(values, Mapping) else values


# What is read of a text.
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "max_attempts": number_of,
    "max_retries": number_of,
    "multiplier": number_of,
    "jitter": lambda value: truth_of(number_of(value)),
    "retry_limits": _numbers,
    "retry_exhausted": truth_of,
    "retry_exhausted_steps": truth_of,
}
# Spellings that bring the defaults of their origin.
_DIALECTS = frozenset({"base_delay_ms", "base_delay", "retry_backoff_base"})


class Reading:
    """What a block says: the `settings` it makes, and in `check` what is wrong with it."""

    def __init__(self, config: Mapping[str, Any], presets: Callable[[], Mapping[str, Any]]) -> None:
        self.check = Check()
        self.settings: dict[str, Any] = {}
        self._written: dict[str, str] = {}  # setting -> the key it was written as
        self._origins: list[tuple[str, int]] = []  # where each entry of on_errors was written
        self._complained: set[str] = set()  # settings that a problem is already known of
        if not isinstance(config, Mapping):
            self.check.add("retry", "a mapping of settings", config)
            self.check.raise_if_any()
        self.check.unknown_keys(config, tuple(CONFIG_KEYS))
        # Numbers and truths may be text: an environment variable is nothing else.
        self.config: dict[str, Any] = {key: _PLAIN.get(key, _as_it_is)(value) for key, value in config.items()}
        self.base = self._preset(presets) if config.get("preset") is not None else None
        self._usual: dict[str, Any] = {} if self.base is None else self.base.settings()
        self.settings |= self._dialect()
        self._attempts()
        self._times()
        self._backoff()
        self._errors()
        self._rest()

    def _preset(self, presets: Callable[[], Mapping[str, Any]]) -> Any:
        known, name = presets(), self.config["preset"]
        for key in [key for key in self.config if key in _DIALECTS]:
            way_out = "It brings defaults of its own: write initial_delay_ms."
            self.check.add(key, "left out with a preset", self.config[key], way_out)
        if isinstance(name, str) and name in known:
            return known[name]
        self.check.choice("preset", name, tuple(known))
        return None

    def _dialect(self) -> dict[str, Any]:
        """The defaults that come with a spelling: each origin keeps the numbers it promised."""
        config = self.config
        if "retry_backoff_base" in config:
            by_tier = {} if "max_attempts" in config or "max_retries" in config else {"retry_limits": _TIERED}
            return {"max_delay": None, "jitter": 0.0} | by_tier
        backoff = config.get("backoff")
        if "base_delay_ms" in config or backoff == "jittered_exponential":
            shape: dict[str, Any] = {"jitter": 0.25, "max_delay": 60.0, "cap": "before_jitter"}
            if backoff in ("fixed", "none", "linear"):
                shape = {"jitter": 0.0, "max_delay": 60.0 if backoff == "linear" else None}
            return shape | {"on_errors": ("all",)}
        if "base_delay" in config:
            listed = ("timeout", ConnectionError, "TemporaryFailure")
            return {"max_delay": 60.0, "cap": "before_jitter", "jitter": {"add": 1.0}, "on_errors": listed}
        return {}

    def _attempts(self) -> None:
        attempts, retries = self.config.get("max_attempts"), self.config.get("max_retries")
        if "max_retries" in self.config:
            known = len(self.check.problems)
            granted = self.check.integer("max_retries", retries, low=0, default=2)
            if len(self.check.problems) > known:
                self._complained.add("max_attempts")
            else:
                self.settings["max_attempts"] = granted + 1
                if attempts is not None and attempts != granted + 1:
                    self.check.add("max_retries", "one less than max_attempts", retries, "Give only one of the two.")
        if attempts is not None:
            self.settings["max_attempts"] = attempts

    def _times(self) -> None:
        for field, spellings in _TIMES.items():
            given = [key for key in spellings.split() if key in self.config]
            if len(given) > 1:
                self.check.add(field, "given once", Shown(f"both {given[0]} and {given[1]}"))
            for key in given[:1]:
                self._written[field] = key
                value = self.config[key]
                known = len(self.check.problems)
                if field == "delays":
                    if isinstance(value, list | tuple) and not value:
                        way_out = "Leave it out for backoff, or say max_attempts: 1."
                        self.check.add(key, "a list of at least one delay", Shown("an empty one"), way_out)
                    times: Any = tuple(self._time((key, i), key, one) for i, one in enumerate(self._listed(key)))
                else:
                    times = None if value is None and field == "max_delay" else self._time((key,), key, value)
                if len(self.check.problems) > known:
                    self._complained.add(field)
                    self.settings.pop(field, None)
                else:
                    self.settings[field] = times
        self._order()

    def _order(self) -> None:
        """The first delay against the ceiling, in the words and units that were written."""
        usual = {"initial_delay": 1.0, "max_delay": 30.0} | self._usual | self.settings
        first, top = usual["initial_delay"], usual["max_delay"]
        if {"initial_delay", "max_delay"} & self._complained:
            self._complained |= {"initial_delay"}
        elif top is not None and first > top and not usual.get("delays"):
            self._complained |= {"initial_delay"}
            ceiling = self._written.get("max_delay", "max_delay_ms")
            shown = self.config.get(ceiling, round(top * 1000) if ceiling.endswith("_ms") else top)
            key = self._written.get("initial_delay", "initial_delay_ms")
            way_out = f"Raise {ceiling}, or set {ceiling}: null for no ceiling."
            self.check.add(key, f"at most {ceiling} ({shown})", self.config.get(key, round(first * 1000)), way_out)

    def _time(self, where: tuple[str | int, ...], key: str, value: Any) -> float:
        return time_of(self.check, where, key, value)

    def _backoff(self) -> None:
        usual = self._usual.get("backoff", "exponential")
        backoff = self.check.choice("backoff", self.config.get("backoff", usual), BACKOFFS_KNOWN)
        self.settings["backoff"] = _BACKOFFS.get(backoff, backoff)
        if "backoff" in self.config and backoff != "schedule" and self._usual.get("delays"):
            self.settings.setdefault("delays", ())  # the preset has a schedule, and the block wants none
        delays = self.settings.get("delays", self._usual.get("delays"))
        if backoff == "schedule" and not delays:
            self.check.add("delays_ms", "a list of delays (backoff: schedule needs them)", Shown("none"))
        if delays and "backoff" in self.config and backoff != "schedule":
            self.check.add("backoff", "schedule when delays are listed", backoff)
        if delays:
            for field in ("initial_delay", "max_delay", "multiplier"):
                key = self._written.get(field, field)
                if key in self.config and key not in _DIALECTS:  # those say more than a delay
                    way_out = "Delays are waited as they are listed: leave it out."
                    self.check.add(key, "left out when delays are listed", self.config[key], way_out)
        elif "multiplier" in self.config and self.settings["backoff"] != "exponential":
            way_out = "Only exponential backoff is multiplied: leave it out."
            self.check.add("multiplier", f"left out with backoff {backoff}", self.config["multiplier"], way_out)
        if "jitter" in self.config:
            self.settings["jitter"] = self._jitter(self.config["jitter"])

    def _jitter(self, value: Any) -> Any:
        if isinstance(value, bool):
            return {"add": 1.0} if value else 0.0
        if isinstance(value, Mapping) and list(value)[:1] in (["add"], ["add_s"], ["add_ms"]) and len(value) == 1:
            ((key, amount),) = value.items()
            return {"add": self._time(("jitter", str(key)), str(key), amount)}
        return value

    def _errors(self) -> None:
        config, settings = self.config, self.settings
        lists: list[str] = [key for key in ("on_errors", "retriable_errors") if key in config and config[key] != "auto"]
        if len(lists) > 1:
            self.check.add("on_errors", "given once", Shown("both on_errors and retriable_errors"))
        for key in lists[:1]:
            value = config[key]
            self._written["on_errors"] = key
            settings["on_errors"] = {"all": ["all"], "none": []}.get(value, value) if isinstance(value, str) else value
            self._origins = [(key, i) for i in range(len(value) if isinstance(value, list | tuple) else 0)]
        if not lists and "auto" in (config.get("on_errors"), config.get("retriable_errors")):
            settings["on_errors"] = ["transient"]
        for key in ("retryable_exceptions", "retryable_http_status_codes"):
            if key in config:
                named = self._listed(key)
                before = settings.get("on_errors", ()) if self._origins or lists else ()
                settings["on_errors"] = [*before, *named] if isinstance(before, list | tuple) else before
                self._origins += [(key, i) for i in range(len(named))]
                lists = lists or [key]
        if "skip_on_errors" in config:
            settings["skip_on_errors"] = config["skip_on_errors"]
        unclear = config.get("unclear", "fail")
        if unclear not in ("fail", "retry"):
            self.check.add("unclear", "fail or retry", unclear)
        current = settings.get("on_errors", self._usual.get("on_errors", ("transient",)))
        if unclear == "fail" and "unclear" in config and lists and isinstance(current, list | tuple):
            for wider in [one for one in ("unclear", "all") if one in current]:
                way_out = f"{self._written.get('on_errors', 'on_errors')} lists {wider}: keep it in one."
                self.check.add("unclear", "retry, or left out", unclear, way_out)
        if unclear == "fail" and "unclear" in config and not lists and "unclear" in self._usual.get("on_errors", ()):
            settings["on_errors"] = [one for one in current if one != "unclear"]
        if unclear == "retry" and isinstance(current, list | tuple) and "unclear" not in current:
            settings["on_errors"] = [*current, "unclear"]

    def _listed(self, key: str) -> Sequence[Any]:
        value = self.config.get(key, ())
        if isinstance(value, list | tuple | set | frozenset):
            return tuple(value)
        self.check.add(key, "a list", value)
        return ()

    def _rest(self) -> None:
        config = self.config
        self.settings |= {key: config[key] for key in ("multiplier", "cap", "retry_limits") if key in config}
        if config.get("retry_limits") == {}:
            way_out = "Leave it out for no limits by tier, or say max_attempts: 1."
            self.check.add("retry_limits", "the limit of at least one tier", Shown("an empty mapping"), way_out)
        if "retry_exhausted_steps" in config and "retry_exhausted" in config:
            both = Shown("both retry_exhausted and retry_exhausted_steps")
            self.check.add("retry_exhausted", "given once", both)
        if config.get("mode", "inline") not in ("inline", "requeue"):
            self.check.add("mode", "inline or requeue", config["mode"])
        for key in ("retry_exhausted_steps", "retry_exhausted"):
            if key in config:
                self.settings["retry_exhausted"] = config[key]
                self._written["retry_exhausted"] = key

    def in_its_words(self, problems: Sequence[Problem]) -> list[Problem]:
        """The policy's own complaints under the keys that were written, without what was already said."""
        return [
            problem.replace(path=self._path(*problem.path))
            for problem in problems
            if problem.path[:1] == () or problem.path[0] not in self._complained
        ]

    def _path(self, field: str | int = "", *rest: str | int) -> tuple[str | int, ...]:
        number = rest[0] if rest else None
        if field == "on_errors" and isinstance(number, int) and number < len(self._origins):
            return self._origins[number]
        return (self._written.get(str(field), field), *rest)


# -- a policy as a block ---------------------------------------------------------------------------------------------------


def policy_block(policy: Any, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The block that makes such a policy: what differs from the usual, times as seconds."""
    check = Check()
    said = {name: value for name, value in policy.settings().items() if value != usual[name]}
    # What has no effect is refused in a block.
    idle = {"backoff", "initial_delay", "multiplier", "max_delay"} if policy.delays else set()
    idle |= {"delays"} if policy.max_attempts == 1 else set()
    idle |= {"multiplier"} if policy.backoff != "exponential" else set()
    block: dict[str, Any] = {}
    for name, value in said.items():
        if name in idle:
            continue
        if name in ("on_errors", "skip_on_errors"):
            block[name] = shown_specs(check, name, value)
        elif name == "jitter":
            block[name] = {"add_s": value["add"]} if isinstance(value, Mapping) else value
        elif name == "retry_limits":
            block[name] = dict(value) or {"unknown": 0}  # no tier has any: neither has one that is listed with none
        else:
            block[f"{name}_s" if name in _TIMES else name] = list(value) if isinstance(value, tuple) else value
    check.raise_if_any()
    return block


def shown_specs(check: Check, field: str, specs: Sequence[ErrorSpec]) -> list[str | int]:
    """Errors as configuration lists them: exception classes by their names."""
    from outlast.verdicts import resolve

    found: list[str | int] = []
    for number, spec in enumerate(specs):
        name: str | int = ""
        if isinstance(spec, str | int):
            name = spec
        elif isinstance(spec, type):
            dotted = spec.__qualname__ if spec.__module__ == "builtins" else f"{spec.__module__}.{spec.__qualname__}"
            name = dotted if resolve(dotted) is spec else ""
        if name == "":
            way_out = "Configuration lists errors by name: raise an exception class of a module for it."
            check.add((field, number), "an error that a name leads to", Shown(name_of(spec)), way_out)
        found.append(name)
    return found
