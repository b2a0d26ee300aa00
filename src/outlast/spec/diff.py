"""
Two manifests compared: what has changed in the work, what in the policy, step by step, as values and in words. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from outlast.kernel.redact import harmless, mask, plain
from outlast.settings.checks import show
from outlast.spec.manifest import canonical
from outlast.spec.plan import exact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outlast.spec.manifest import Manifest, ManifestStep

Part = Literal["work", "policy", "notes"]
_MISSING: Any = object()
_MOST = 60  # characters of a value that are shown
_BEFORE = 20  # of them before the first that differs
_HIDDEN = "a value that is not shown"


@dataclass(frozen=True, slots=True)
class Change:
    """
    One thing that differs: where it stands (``retry.max_attempts``), and the sentence that says what it was and is. In
    `before` and `after` None stands for what is not there.
    """

    part: Part
    path: str
    before: Any
    after: Any
    text: str


@dataclass(frozen=True, slots=True)
class StepDiff:
    """What became of a step; `consequences` are sentences about what follows from the changes."""

    id: str
    kind: Literal["added", "removed", "changed"]
    changes: tuple[Change, ...] = ()
    consequences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diff:
    """All differences of two manifests. Notes (description, metadata, x-*) change nothing that is done."""

    file: tuple[str, ...]
    steps: tuple[StepDiff, ...]

    @property
    def same(self) -> bool:
        return not self.file and not self.steps

    def of(self, part: Part) -> list[str]:
        """The steps in which this part differs; a step that came or went differs in work and policy."""
        return [
            one.id
            for one in self.steps
            if (one.kind != "changed" and part != "notes") or any(change.part == part for change in one.changes)
        ]


def diff(before: Manifest, after: Manifest) -> Diff:
    """
    What differs from one manifest to another.
    """
    old, new = ({step.id: step for step in manifest.steps} for manifest in (before, after))
    steps = [StepDiff(id, "removed") for id in old if id not in new]  # noqa: A001 - an id
    for id, step in new.items():  # noqa: A001
        if id not in old:
            steps.append(StepDiff(id, "added"))
        elif found := _changes(old[id], step):
            steps.append(StepDiff(id, "changed", found, _consequences(old[id], step)))
    whole = Diff((*_of_file(before, after), *_order(before, after)), tuple(steps))
    # Where a value comes from changes nothing that is done.
    prints = {replace(one, params_from={}).fingerprint for one in (before, after)}
    if not whole.same or len(prints) == 1:
        return whole
    return Diff(("what follows from the policies is worked out otherwise, by another version of Outlast",), ())


def _order(before: Manifest, after: Manifest) -> Iterator[str]:
    """Steps that are in both, and not in the same order."""
    both = {step.id for step in before.steps} & {step.id for step in after.steps}
    old, new = ([step.id for step in one.steps if step.id in both] for one in (before, after))
    if old != new:
        is_now, was = _windows(", ".join(new), ", ".join(old))
        yield f"the order of the steps is {is_now}, was {was}"


def _of_file(before: Manifest, after: Manifest) -> tuple[str, ...]:
    found: list[str] = []
    if before.name != after.name:
        found.append(f"the name is {plain(after.name)}, was {plain(before.name)}")
    for key, (old, new) in _pairs(before.params, after.params).items():
        found.append(f"the parameter {plain(key)}{_origin(key, before, after)}: {_said(old, new)}")
    for name in sorted({*before.open_params} ^ {*after.open_params}):
        when = "when it runs now" if name in after.open_params else "before it is compiled now, or no more"
        found.append(f"the parameter {name} is given {when}")
    for name in sorted({*before.open_params} & {*after.open_params}):
        was, is_now = (one.open_types.get(name, "string") for one in (before, after))
        if was != is_now:
            found.append(f"the parameter {name} is of the type {is_now}, was {was}")
    if before.profile != after.profile:
        found.append(f"the profile is {_shown(after.profile)}, was {_shown(before.profile)}")
    for key, (old, new) in _pairs(before.notes, after.notes).items():
        found.append(f"{plain(key)}, which changes nothing that is done: {_said(old, new)}")
    return tuple(mask(one) for one in found)


def _origin(name: str, before: Manifest, after: Manifest) -> str:
    """Where the value of a parameter comes from now, and where it came from, as far as that is known."""
    was, is_now = (
        f"profile {plain(str(one.profile))}" if source == "profile" else source
        for one in (before, after)
        for source in [one.params_from.get(name, "")]
    )
    if not is_now:
        return ""
    return f" ({is_now}, was {was})" if was and was != is_now else f" ({is_now})"


def _changes(before: ManifestStep, after: ManifestStep) -> tuple[Change, ...]:
    parts: tuple[tuple[Part, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("work", before.work, after.work),
        ("policy", before.policy, after.policy),
        ("notes", before.notes, after.notes),
    )
    return tuple(change for part, old, new in parts for change in _inside(part, "", old, new))


def _inside(part: Part, path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, (old, new) in _pairs(before, after).items():
            yield from _inside(part, f"{path}.{key}" if path else key, old, new)
    elif _differ(before, after):
        where = plain(path)
        old, new = (None if one is _MISSING else one for one in (before, after))
        yield Change(part, where, old, new, mask(f"{where}: {_said(before, after, where)}"))


def _differ(before: Any, after: Any) -> bool:
    """Whether two values are different in the manifest: there 1 and true are, and 1 and 1.0, and 0.0 and -0.0."""
    if before is _MISSING or after is _MISSING:
        return before is not after
    return canonical(before) != canonical(after)


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two mappings have under each key, where that is not the same."""
    keys = sorted({*before, *after})
    pairs = {key: (before.get(key, _MISSING), after.get(key, _MISSING)) for key in keys}
    return {key: (old, new) for key, (old, new) in pairs.items() if _differ(old, new)}


def _said(before: Any, after: Any, path: str = "") -> str:
    if before is _MISSING:
        return f"{_shown(after, path)}, was not there"
    if after is _MISSING:
        return f"not there any more, was {_shown(before, path)}"
    if isinstance(before, list) and isinstance(after, list):
        return _listed(before, after)
    is_now, was = _apart(after, before, path)
    return f"{is_now}, was {was}"


def _listed(before: list[Any], after: list[Any]) -> str:
    old, new = (Counter(map(canonical, some)) for some in (before, after))
    came, went = ([json.loads(one) for one in some.elements()] for some in (new - old, old - new))
    pairs = [_apart(*both) for both in zip(came, went, strict=False)]
    added = [one for one, _ in pairs] + [_shown(one) for one in came[len(pairs) :]]
    removed = [one for _, one in pairs] + [_shown(one) for one in went[len(pairs) :]]
    parts = [f"{', '.join(some)} {word}" for some, word in ((added, "added"), (removed, "removed")) if some]
    return "; ".join(parts) or "the same in another order"


def _apart(one: Any, other: Any, path: str = "") -> tuple[str, str]:
    """
    Two different values in words that differ: of long texts the part in which they do, with spaces and types as they are if
    nothing else tells them apart.

    >>> _apart("select " + "a, " * 40 + "b", "select " + "a, " * 40 + "c")
    ('…a, a, a, a, a, a, a, b', '…a, a, a, a, a, a, a, c')
    """
    for words in (_whole, _as_json):
        texts = [mask(words(value, path)) for value in (one, other)]
        if texts[0] != texts[1]:
            first, second = _windows(*texts)
            return first, second
    return f"another, {_HIDDEN}", _HIDDEN


def _windows(one: str, other: str) -> tuple[str, str]:
    if max(len(one), len(other)) <= _MOST:
        return one, other
    first = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = first - _BEFORE if first > _MOST // 2 else 0
    begin = max(one.rfind(" ", 0, begin + 1) + 1, begin - _BEFORE, 0) if begin else 0  # with a word, if there are words
    return _window(one, begin), _window(other, begin)


def _window(text: str, begin: int) -> str:
    found = text[begin : begin + _MOST]
    return ("…" if begin else "") + found + ("…" if begin + _MOST < len(text) else "")


def _as_json(value: Any, path: str = "") -> str:  # noqa: ARG001 - called as _whole is
    return harmless(json.dumps(value, ensure_ascii=False, sort_keys=True))


def _shown(value: Any, path: str = "") -> str:
    return _cut(_whole(value, path))


def _whole(value: Any, path: str = "") -> str:
    if value is None:
        return "none"
    if path.endswith("_ms") and isinstance(value, int | float) and not isinstance(value, bool):
        return exact(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} {_whole(one, key)}" for key, one in sorted(value.items()))
        return f"{{{plain(inner)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_whole, value))}]"
    if isinstance(value, float) and path.endswith("amount"):  # of a rate: a number of things
        return f"{value:.15g}"
    return plain(value) if isinstance(value, str) and value else str(value) if isinstance(value, int) else show(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def _consequences(before: ManifestStep, after: ManifestStep) -> tuple[str, ...]:
    found: list[str] = []
    worst = [one.timing["worst_ms"] for one in (before, after)]
    if worst[0] != worst[1]:
        said = ["no bound" if one is None else exact(one) for one in worst]
        found.append(f"worst case {said[1]}, was {said[0]}")
    doubt = after.timing.get("in_doubt")
    if doubt is not None and doubt != before.timing.get("in_doubt"):
        found.append(f"attempt {doubt['attempt']} may not have its full time before the total is up")
    if before.work_fingerprint != after.work_fingerprint:
        found.append("it is other work, with another fingerprint")
    return tuple(found)
