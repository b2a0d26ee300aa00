"""
What will happen, as a value: a `Manifest` is what compiling a pipeline file comes to.

It holds no clock, no host, no path of a machine and no secret, so that the same input gives the same bytes everywhere:
`to_json` writes keys in order, times in milliseconds and every setting that holds, also where nothing was said.
Connections and sensitive parameters are in it by their names.

Each step has two fingerprints. `work` covers what is done: component, config, needs, inputs, idempotency, compensation.
`policy` covers the rest: retries, timeouts, breaker, limits. So a changed number of retries is not taken for other
work. `fingerprint` covers both. That of the manifest covers all that is in it, descriptions too: one that was edited by
hand is not taken for what was compiled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError
from outlast.kernel.redact import in_json
from outlast.policy import Delay
from outlast.spec import shapes
from outlast.spec.schedule import attempts, of_step, policy_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1  # of the JSON; another number is another reading of it
_DIGITS = 32  # of a fingerprint: 128 bits of SHA-256
# What of a step is its work; its policy is all else.
WORK = ("component", "mode", "config", "needs", "inputs", "for_each", "idempotency", "compensate")
POLICY = ("retry", "timeout", "circuit_breaker", "limit", "retry_budget", "idempotent", "dead_letter", "concurrency",
          "min_success_rate", "min_partial_rate", "isolation", "compensate_retry", "compensate_timeout")  # fmt: skip


def canonical(value: Any) -> str:
    """A value as JSON in one form only: keys in order, no space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(*parts: Any) -> str:
    """
    The same for the same values, on every machine.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    return sha256(canonical(parts).encode()).hexdigest()[:_DIGITS]


class _Fixed:
    """What is in a manifest stays as it was compiled; a copy of it (``dict(...)``, ``list(...)``) may be changed."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a manifest cannot be changed: change the pipeline file and compile it again")

    def __reduce__(self) -> Any:
        return _fixed, (list(self) if isinstance(self, list) else dict(self),)  # type: ignore[call-overload]

    __setitem__ = __delitem__ = __iadd__ = __imul__ = __ior__ = _refuse
    append = extend = insert = remove = reverse = sort = update = setdefault = pop = popitem = clear = _refuse


class _Dict(_Fixed, dict[str, Any]):
    """A mapping of a manifest."""


class _List(_Fixed, list[Any]):
    """A list of a manifest."""


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return _Dict({key: _fixed(one) for key, one in value.items()})
    return _List(map(_fixed, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class ManifestStep:
    """
    One step: what is done (`work`), what happens when it fails (`policy`), and what follows from that (`timing`). All
    three are plain data, as they are in the JSON.

    `work` has the keys of `WORK` that the step uses, `policy` those of `POLICY`; times are in milliseconds and end in
    ``_ms``. Texts in `config` are templates: a reference in them is filled when the step runs, and ``$${`` is ``${``.
    `timing` has the delays of the schedule with their sums, the worst case against the timeouts, the most executions
    (`calls`), and for each category where its errors go (`errors`).
    """

    id: str
    work: Mapping[str, Any]
    policy: Mapping[str, Any]
    timing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: Mapping[str, Any] = field(
        default_factory=dict[str, Any]
    )  # description, metadata and x-*: nothing reads them

    def __post_init__(self) -> None:
        for name in ("work", "policy", "timing", "notes"):
            object.__setattr__(self, name, _fixed(getattr(self, name)))

    @property
    def component(self) -> str:
        return str(self.work["component"])

    @property
    def needs(self) -> Sequence[str]:
        """The ids of the steps that must have succeeded before."""
        return tuple(self.work["needs"])

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.work["config"]
        return config

    @cached_property
    def work_fingerprint(self) -> str:
        return fingerprint("work", self.id, self.work)

    @cached_property
    def policy_fingerprint(self) -> str:
        return fingerprint("policy", self.id, self.policy)

    @cached_property
    def fingerprint(self) -> str:
        """Of work and policy together."""
        return fingerprint(self.work_fingerprint, self.policy_fingerprint)

    @cached_property
    def schedule(self) -> Sequence[Delay]:
        """The waits before attempts 2, 3, ..., in seconds."""
        return tuple(
            Delay(
                attempt=one["attempt"],
                nominal=one["nominal_ms"] / 1000,
                min=one["min_ms"] / 1000,
                max=one["max_ms"] / 1000,
            )
            for one in self.timing.get("delays", ())
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<ManifestStep {self.id!r}: {self.component}, {self.fingerprint}>"

    def as_data(self) -> dict[str, Any]:
        """As it is in the JSON."""
        prints = {"work": self.work_fingerprint, "policy": self.policy_fingerprint, "step": self.fingerprint}
        found = {"id": self.id, "work": self.work, "policy": self.policy, "timing": self.timing, "fingerprints": prints}
        return found | ({"notes": self.notes} if self.notes else {})


@dataclass(frozen=True)
class Manifest:
    """
    A pipeline file, compiled: `steps` in the order in which they may run. `params` are the values that the file was
    compiled with; those that are sensitive, or are given when it runs, are named in `open_params`. `params_from` says where
    each value comes from: ``given`` by hand, ``environment``, ``profile``, ``default``. It changes nothing that is done.
    `open_types` has the declared type of each open parameter that is no string.
    """

    name: str
    steps: Sequence[ManifestStep]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    open_params: Sequence[str] = ()
    profile: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # description, metadata, schedule and x-*
    params_from: Mapping[str, str] = field(default_factory=dict[str, str])  # empty in manifests of older versions
    open_types: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for name in ("params", "notes", "params_from", "open_types"):
            object.__setattr__(self, name, _fixed(getattr(self, name)))

    @cached_property
    def fingerprint(self) -> str:
        """Of all that is in it, also of what is only told (descriptions, metadata) and of what follows from the rest."""
        return fingerprint(self._content)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<Manifest {self.name!r}: {len(self.steps)} steps, {self.fingerprint}>"

    def __getitem__(self, step: str, /) -> ManifestStep:
        return self._by_id[step]

    @cached_property
    def _by_id(self) -> dict[str, ManifestStep]:
        return {step.id: step for step in self.steps}

    def as_data(self) -> dict[str, Any]:
        """As it is in the JSON."""
        return {**self._content, "fingerprint": self.fingerprint}

    @property
    def _content(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "outlast_manifest": FORMAT,
            "name": self.name,
            "params": self.params,
            "open_params": list(self.open_params),
            "profile": self.profile,
            "steps": [step.as_data() for step in self.steps],
        }
        also = {"notes": self.notes, "params_from": self.params_from, "open_types": self.open_types}
        return found | {key: value for key, value in also.items() if value}

    def to_json(self) -> str:
        """Canonical: the same bytes for the same input, on every machine. `from_json` reads it."""
        text = json.dumps(self.as_data(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        return in_json(text) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, /) -> Manifest:
        """
        The manifest that `to_json` wrote. One that was changed since is refused, and so is one whose fingerprints fit and
        whose parts are not those of a manifest, or whose `timing` is not what follows from the policy.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise _no_manifest("it is no JSON") from None
        found = data.get("outlast_manifest") if isinstance(data, dict) else None
        if found.__class__ is not int or found != FORMAT:  # true is no number here
            what = "it has no outlast_manifest" if found is None else f"its format is {str(found)[:20]}, not {FORMAT}"
            raise _no_manifest(what)
        try:
            steps = tuple(
                ManifestStep(one["id"], one["work"], one["policy"], one["timing"], one.get("notes", {}))
                for one in data["steps"]
            )
            made = cls(
                data["name"],
                steps,
                data["params"],
                tuple(data["open_params"]),
                data["profile"],
                data.get("notes", {}),
                data.get("params_from", {}),
                data.get("open_types", {}),
            )
            same = canonical(made.as_data()) == canonical(data)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            raise _no_manifest("a part of it is missing, or is something else") from None
        if not same:
            raise _no_manifest("it was changed after it was compiled: its fingerprints do not fit")
        if wrong := shapes.wrong_with(data) or _untrue(steps):
            raise _no_manifest(wrong)
        return made


def _untrue(steps: Sequence[ManifestStep]) -> str:
    """What is wrong with the policies of steps and with what is said to follow from them, the first of it."""
    for step in steps:
        where = f"steps.{step.id}"
        try:
            # Asked first: by now there is a wait for each attempt, so that no number makes this take long.
            told = [(step.policy["retry"], step.timing)]
            told += [
                (step.policy[one], step.timing["compensate"]) for one in ("compensate_retry",) if one in step.policy
            ]
            same = all(attempts(policy_of(retry)) == timing["attempts"] for retry, timing in told)
            same = same and canonical(of_step(step.work, step.policy)) == canonical(step.timing)
        except (ConfigurationError, ArithmeticError, TypeError, ValueError):
            return f"{where}.policy has settings that no policy can have"
        if not same:
            return f"{where}.timing is not what follows from its policy, by this version of Outlast"
    return ""


def _no_manifest(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"expected a manifest as `outlast compile` writes it, but {why}. Compile the pipeline again."
    )
