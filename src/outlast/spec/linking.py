"""
What concerns several steps at once: their order, and what they refer to of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.components.describing import OUTPUT_TYPES
from outlast.errors import closest, nearest
from outlast.settings.checks import show
from outlast.spec import references, yaml
from outlast.spec.graph import Graph
from outlast.spec.keys import OF_ROWS, OF_ROWS_TYPES
from outlast.spec.mistakes import worded
from outlast.spec.model import Template

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from outlast.components.describing import Component, OutputType
    from outlast.spec.mistakes import Path
    from outlast.spec.model import Step
    from outlast.spec.references import Reference
    from outlast.spec.values import Values

NO_REFERENCE = "no reference may stand here: name the steps, such as [read]"
_INNER = (dict, list, Template)
_LOOKED_AT = 100  # rows of a file, for each reference: the time that compiling takes grows with the file, not faster


def _has(row: Any, fields: Sequence[str]) -> bool:
    """Whether a row that a file lists has this; what is known only when the step runs may have it."""
    for name in fields:
        if isinstance(row, Template):
            return True
        if not isinstance(row, dict) or name not in row:
            return False
        row = row[name]
    return True


class Links:
    """Checks what steps have to do with each other."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._meant: dict[str, list[str]] = {}  # of steps whose needs are wrong: the steps that are meant
        self._unsure: set[str] = set()  # steps of which nobody knows what they need
        self._unsure_in: int | None = None
        self._refusals: dict[tuple[str, str | int, OutputType], str] = {}

    def graph(self, steps: Sequence[Step | None], ids: Mapping[str, int]) -> Graph:
        known = list(ids)
        for step in steps:
            if step is None:
                continue
            key = "needs" if step.node.get("needs") is not None else "depends_on"
            given = step.node.get(key)
            if given is not None and given.kind != "list":  # which has been told
                self._mean(step, given.text if given.text in ids else "")
            at = given or step.node
            places = {node.text: node for node in reversed(at.items)}
            for one in step.needs:
                if self._is_lost(one, ids):
                    self._mean(step, "")
                elif one not in ids or one == step.id:
                    place = places.get(one, at)
                    meant = "" if one == step.id else closest(one, known)
                    way_out = f"did you mean {meant!r}?" if meant else "name a step of this file"
                    way_out = "leave it out" if one == step.id else way_out
                    expected = "another step" if one == step.id else "the id of a step"
                    if "${" in one:
                        expected, way_out = "the id of a step, written out", NO_REFERENCE
                    self.values.wrong(place, (*step.path, key), expected, show(one), way_out)
                    self._mean(step, meant)
        by_id = {step.id: step for step in steps if step is not None and step.id}
        graph = Graph({step.id: [one for one in step.needs if one != step.id] for step in by_id.values()})
        for cycle in graph.cycles:
            first = by_id[cycle[0]]
            key = "needs" if first.node.get("needs") is not None else "depends_on"
            shown = " needs ".join([*cycle[:8], *(["..."] if len(cycle) > 8 else []), cycle[0]])
            at = first.node.get(key) or first.node
            self.values.wrong(
                at, (*first.path, key), "steps that do not wait for each other", shown, "take one of them out"
            )
        return graph

    def _is_lost(self, name: str, known: Collection[str]) -> bool:
        """Whether this may be a step whose id is wrong or missing, of which is told there."""
        if name in known:
            return False
        return name in self.values.broken_steps or (self.values.has_nameless and not closest(name, list(known)))

    def _mean(self, step: Step, meant: str) -> None:
        if meant and meant != step.id:
            self._meant.setdefault(step.id, []).append(meant)
        else:
            self._unsure.add(step.id)

    def outputs(self, steps: Sequence[Step | None], graph: Graph) -> None:
        """Every reference to an output: of a step that has surely run, and of an output that it has."""
        described = {step.id: step for step in steps if step is not None and step.id}
        if self._meant:  # with what is meant, so that nothing is told twice
            needs = {id_: [*graph.needs[id_], *self._meant.get(id_, ())] for id_ in graph.needs}
            graph = Graph(needs)
        for step in steps:
            if step is None:
                continue
            self._refer(step, ("config",), step.config, described, graph)
            self._refer(step, ("inputs",), step.inputs, described, graph)
            if step.idempotency is not None:
                self._refer(step, ("idempotency", "key"), step.idempotency.key, described, graph)
            if step.for_each is not None:
                self._refer(step, ("for_each", "items"), step.for_each.items, described, graph)
                if step.for_each.key is not None:
                    self._row_key(step, step.for_each.items, step.for_each.key)
            if step.compensate is not None:
                self._refer(step, ("compensate", "config"), step.compensate.config, described, graph, itself=True)

    def _is_open(self, id: str, graph: Graph) -> bool:  # noqa: A002 - of a step
        """Whether what comes before a step depends on a mistake of which has been told."""
        if not graph.is_ordered(id):
            return True
        return id in self._unsure or graph.is_after_any(id, self._unsure_set(graph))

    def _unsure_set(self, graph: Graph) -> int:
        if self._unsure_in is None:  # asked for many times, and the graph stays the same
            self._unsure_in = graph.set_of(self._unsure)
        return self._unsure_in

    def _refer(
        self,
        step: Step,
        path: Path,
        value: Any,
        steps: Mapping[str, Step],
        graph: Graph,
        *,
        itself: bool = False,
    ) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                if one.__class__ in _INNER:
                    self._refer(step, (*path, key), one, steps, graph, itself=itself)
        elif isinstance(value, list):
            for number, one in enumerate(value):
                if one.__class__ in _INNER:
                    self._refer(step, (*path, number), one, steps, graph, itself=itself)
        elif isinstance(value, Template):
            for part in references.references_in(value.parts):
                if part.kind == "output":
                    is_whole = len(value.parts) == 1 and not value.is_wrong
                    self._output(step, path, part, steps, graph, itself=itself, is_whole=is_whole)
                elif part.kind == "item":
                    self._field(step, path, part)

    def _field(self, step: Step, path: Path, part: Reference) -> None:
        """Whether rows that the file lists have what is meant of them."""
        rows = None if step.for_each is None else step.for_each.items
        if not isinstance(rows, list) or not part.fields:
            return
        for number, row in enumerate(rows[:_LOOKED_AT]):
            if not _has(row, part.fields):
                at = step.node.at(path)
                where = (*step.path, *(yaml.step(one) if isinstance(one, str) else one for one in path))
                expected = f"a field that every row has, and for_each.items[{number}] has none of that name"
                way_out = "name another" if isinstance(row, dict) else "write ${item}: it is no mapping"
                self.values.wrong(at, where, expected, str(part), way_out, "R42")
                return

    def _row_key(self, step: Step, rows: Any, key: str) -> None:
        """Whether rows that the file lists have the field that tells them apart."""
        for number, row in enumerate(rows[:_LOOKED_AT] if isinstance(rows, list) else ()):
            if not _has(row, (key,)):
                path = ("for_each", "key")
                expected = f"a field that every row has, and for_each.items[{number}] has none of that name"
                way_out = (
                    "name another"
                    if isinstance(row, dict)
                    else "leave it out: rows that are no mappings are their own key"
                )
                self.values.wrong(step.node.at(path), (*step.path, *path), expected, show(key), way_out)
                return

    def _is_rows(self, step: Step, part: Reference, other: Step) -> None:
        """Whether an output that stands for rows may be a list; of many outputs nobody knows."""
        path = ("for_each", "items")
        types = self._types(other, itself=False)
        kind = types.get(part.name, "rows")
        if kind == "rows":
            return
        better = next((name for name, one in types.items() if one == "rows"), None)
        way_out = f"write ${{steps.{part.step}.outputs.{better}}}" if better else "name an output that is a list"
        got = f"{part}, which is {OUTPUT_TYPES[kind]}"
        self.values.wrong(step.node.at(path), (*step.path, *path), "rows", got, way_out, "R42")

    def _fits(self, step: Step, path: Path, part: Reference, other: Step, code: str) -> None:
        """Whether an output that is all of a value of a config can be what the component takes there."""
        undo = step.compensate if path[0] == "compensate" else None
        described = step.described if undo is None else undo.described
        types = self._types(other, itself=part.step == step.id)
        kind = types.get(part.name)
        if described is None or kind is None:
            return
        config, inside = (step.config, path[1:]) if undo is None else (undo.config, path[2:])
        expected = self._refused(described, config, inside, kind)
        if not expected:
            return
        better = [name for name, one in types.items() if not self._refused(described, config, inside, one)]
        way_out = (
            f"write ${{steps.{part.step}.outputs.{better[0]}}}" if better else f"name an output that is {expected}"
        )
        got = f"{part}, which is {OUTPUT_TYPES[kind]}"
        self.values.wrong(step.node.at(path), (*step.path, *yaml.steps(path)), expected, got, way_out, code)

    def _types(self, other: Step, *, itself: bool) -> Mapping[str, OutputType]:
        if other.for_each is not None and not itself:
            return OF_ROWS_TYPES
        return {} if other.described is None else other.described.types

    def _refused(self, described: Component, config: Mapping[str, Any], path: Path, kind: OutputType) -> str:
        """As `refuses`; of a key by itself it is asked once, since files have many steps of few components."""
        key = (described.name, path[0], kind) if len(path) == 1 else None
        if key is None or key not in self._refusals:
            found = described.refuses(_written_out(config), path, kind)
            if key is None:
                return found
            self._refusals[key] = found
        return self._refusals[key]

    def _output(
        self,
        step: Step,
        path: Path,
        part: Reference,
        steps: Mapping[str, Step],
        graph: Graph,
        *,
        itself: bool,
        is_whole: bool,
    ) -> None:
        at, where = step.node.at(path), (*step.path, *yaml.steps(path))
        code = "R33" if path[0] == "compensate" else "R42"
        # One that comes from another key of the config is looked at there.
        is_written = at.kind != "scalar" or str(part) in at.text
        other = steps.get(part.step)
        unfit = self._unreachable(step, part, other, steps, graph, itself=itself)
        if unfit is not None:
            expected, way_out = unfit
            if expected and is_written:
                self.values.wrong(at, where, expected, str(part), way_out, code)
        elif other is not None and path == ("for_each", "items") and is_whole:
            self._is_rows(step, part, other)
        elif other is not None and is_whole and "config" in path[:2]:
            self._fits(step, path, part, other, code)

    def _unreachable(
        self,
        step: Step,
        part: Reference,
        other: Step | None,
        steps: Mapping[str, Step],
        graph: Graph,
        *,
        itself: bool,
    ) -> tuple[str, str] | None:
        """What is expected in place of a reference that leads nowhere, and the way out: both empty if that has been told."""
        if other is None:
            if self._is_lost(part.step, steps):
                return "", ""
            way_out = worded(nearest(part.step, list(steps))) or "name a step of this file"
            return "a reference to a step of this file", way_out
        if part.step == step.id and not itself:
            return "a reference to an earlier step", "a step has no outputs before it has run"
        if part.step == step.id and step.compensate is not None and step.compensate.when == "started":
            expected = "a reference to what is there also if the step has failed (when: started)"
            return expected, "leave when: started out, or name an earlier step"
        is_before = part.step == step.id or graph.is_before(part.step, step.id)
        if not is_before and not self._is_open(step.id, graph):
            way_out = f"add {part.step} to needs" if not graph.is_before(step.id, part.step) else "name an earlier step"
            return "a reference to a step that has run before", way_out
        outputs = None if other.described is None else other.described.outputs
        own = outputs
        if other.for_each is not None and part.step != step.id:
            outputs = OF_ROWS
        if outputs is None or part.name in outputs:
            return None
        known = list(outputs)
        has = "a step with for_each" if outputs is OF_ROWS or other.described is None else other.described.name
        way_out = worded(nearest(part.name, known)) or f"{has} has {', '.join(known) or 'no outputs'}"
        if outputs is OF_ROWS and (own is None or part.name in own):
            way_out = f"write ${{steps.{part.step}.outputs.rows}}: there each row has it, under outputs.{part.name}"
        return f"an output that {part.step} has", way_out


def _written_out(value: Any) -> Any:
    """A config as its model takes it: references are texts."""
    if isinstance(value, Template):
        return str(value)
    if isinstance(value, dict):
        return {key: _written_out(one) for key, one in value.items()}
    return [_written_out(one) for one in value] if isinstance(value, list) else value
