"""
The steps of a file, one by one: component and config, references to the step's own config, idempotency, compensation.
"""

from __future__ import annotations

import re
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlast.components.registry import component_names
from outlast.errors import ConfigurationError, closest, is_misspelt, nearest
from outlast.kernel.redact import error_text
from outlast.settings.checks import Check, show
from outlast.settings.keys import time_of
from outlast.spec import blocks, references, secrets, yaml
from outlast.spec.keys import ISOLATIONS, MODES
from outlast.spec.linking import NO_REFERENCE
from outlast.spec.mistakes import MOST, worded
from outlast.spec.model import WRONG, Compensation, ForEach, Idempotency, Step, Template, names_row
from outlast.spec.references import Reference
from outlast.spec.values import ID, MISSING, OUTSIDE, as_written, got_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.components.describing import Component
    from outlast.errors import Problem
    from outlast.spec.mistakes import Path
    from outlast.spec.values import Values
    from outlast.spec.yaml import Node

MOST_STEPS = 10_000
MOST_DELAYS = 100_000  # of all steps: each is a row of the manifest
_DAY = 86_400.0
_NOTHING = yaml.Node("map", 0, 0)  # a config that is not there
# Names that differ from one attempt or run to the next: no part of an idempotency key.
_CHANGING = re.compile(r"(?i)(.*[._-])?(attempts?|random|uuid4?|guid|now|today|time|timestamp|date|datetime|nonce)")


class Steps:
    """Reads steps. `find` gives the description of a component."""

    def __init__(self, values: Values, find: Callable[[str], Component | None]) -> None:
        self.values = values
        self.blocks = blocks.Blocks(values)
        self._find = find
        self._found: dict[str, Component | None] = {}
        self._unloaded: set[str] = set()  # components that are there and cannot be loaded, which has been told
        self._delays = 0
        self._here: Node  # the step that is being read

    def read(self, node: Node | None, flow: str) -> tuple[list[Step | None], dict[str, int]]:
        if node is None:
            return [], {}
        if node.kind != "list" or not node.items:
            got = "an empty list" if node.kind == "list" else got_of(node)
            self.values.wrong(node, ("steps",), "a list of steps", got, "write - id: ... for each of them")
            return [], {}
        if len(node.items) > MOST_STEPS:
            self.values.wrong(
                node, ("steps",), f"at most {MOST_STEPS:,} steps", f"{len(node.items):,}", "split the pipeline"
            )
            return [], {}
        ids: dict[str, int] = {}
        names: list[str] = []
        for number, one in enumerate(node.items):
            names.append(self._id(one, number, ids, node.items))
        steps: list[Step | None] = []
        before = ""
        for number, one in enumerate(node.items):
            steps.append(self._step(one, number, names[number], before, flow))
            before = names[number] or before  # one without a name has been told; those behind it have done nothing
        if self._delays > MOST_DELAYS:
            got = f"{self._delays:,}"
            self.values.wrong(
                node, ("steps",), f"at most {MOST_DELAYS:,} retries of all steps together", got, "lower max_attempts"
            )
        return steps, ids

    def _id(self, node: Node, number: int, ids: dict[str, int], steps: Sequence[Node]) -> str:
        found = node.get("id") if node.kind == "map" else None
        name = self.values.identifier(found, ("steps", number, "id"), "")
        if not name and found is not None and found.kind == "scalar" and not found.is_null:
            self.values.broken_steps.add(found.text)
        self.values.has_nameless |= not name and (found is None or found.kind != "scalar" or found.is_null)
        if name and found is not None:
            first = ids.setdefault(name, number)
            if first != number:
                got = f"{show(name)}, which the step in line {steps[first].line} has too"
                self.values.wrong(
                    found, ("steps", number, "id"), "an id that no other step has", got, "rename one of the two"
                )
                return ""
        return name

    def _step(self, node: Node, number: int, id: str, before: str, flow: str) -> Step | None:  # noqa: A002
        path: Path = ("steps", id or number)
        found = self.values.mapping(node, path, "step", only=("id", "component"))
        if node.kind != "map":
            return None
        self._here = node
        rows = found.get("for_each")
        self.values.no_row = OUTSIDE if rows is None or rows.is_null else None
        component, described = self._component(found.get("component"), (*path, "component"))
        config = self._config(found.get("config"), (*path, "config"), described)
        mode = self.values.choice(found.get("mode"), (*path, "mode"), MODES)
        if mode and described is not None and described.modes and mode not in described.modes:
            expected = f"{' or '.join(described.modes)}, as {described.name} does"
            self.values.wrong(found["mode"], (*path, "mode"), expected, mode, "leave it out, or name another component")
        own = self._own_values(config, described)
        config = self._own(config, own, (*path, "config"), of_config=True, places=_places(described))
        own = self._own_values(config, described)  # the defaults too: they are in the manifest
        self.values.no_secrets(own, found.get("config") or node, (*path, "config"))
        if "config" not in found or found["config"].kind == "map" or found["config"].is_null:
            self._described(node, (*path, "config"), described, config)
        connection = config.get("connection")
        scope = connection if isinstance(connection, str) else f"{flow}.{id or number}"
        retry, block = self.blocks.retry(found.get("retry"), (*path, "retry"), blocks.ONCE)
        self._delays += retry.max_attempts - 1
        inputs_node = found.get("inputs")
        inputs = self._own(self._config(inputs_node, (*path, "inputs")), own, (*path, "inputs"))
        self.values.no_secrets(inputs, inputs_node, (*path, "inputs"))
        return Step(
            number=number,
            id=id,
            component=component,
            described=described,
            node=node,
            config=config,
            inputs=inputs,
            needs=self._needs(found, path, before),
            mode=mode,
            retry=retry,
            retry_block=block,
            timeout=self.blocks.times(found.get("timeout"), (*path, "timeout")),
            isolation=self._isolation(found.get("isolation"), (*path, "isolation"), component),
            circuit_breaker=self.blocks.part(found.get("circuit_breaker"), path, "circuit_breaker", scope),
            limit=self.blocks.part(found.get("limit"), path, "limit", scope),
            retry_budget=self.blocks.part(found.get("retry_budget"), path, "retry_budget", scope),
            idempotency=self._idempotency(found.get("idempotency"), (*path, "idempotency"), own, described),
            idempotent=self.values.truth(found.get("idempotent"), (*path, "idempotent")),
            compensate=self._compensation(found.get("compensate"), (*path, "compensate"), own),
            for_each=self._for_each(found.get("for_each"), (*path, "for_each"), own),
            dead_letter=self.values.truth(found.get("dead_letter"), (*path, "dead_letter")) is not False,
            description=self.values.text(found.get("description"), (*path, "description")),
            metadata=self.values.noted(found.get("metadata"), (*path, "metadata")),
            extensions=self.values.extensions(node, path),
        )

    def _isolation(self, node: Node | None, path: Path, component: str) -> str:
        found = self.values.choice(node, path, ISOLATIONS) or ISOLATIONS[0]
        if node is not None and found == "process" and component == "pipeline":
            expected, way_out = (
                "thread: the stages of a pipeline say how its items run",
                'leave it out, and write @stage(isolation="process")',
            )
            self.values.wrong(node, path, expected, got_of(node), way_out)
        return found

    def _component(self, node: Node | None, path: Path) -> tuple[str, Component | None]:
        name = self.values.text(node, path)
        if name is None or node is None:
            return "", None
        if name not in self._found:
            try:
                self._found[name] = self._find(name) if len(name) <= 200 else None
            except ConfigurationError as broken:
                self._found[name] = None
                self._unloaded.add(name)
                self.values.wrong(
                    node, path, "a component that can be loaded", show(name), error_text(broken).removesuffix(".")
                )
                return name, None
        described = self._found[name]
        if described is None and name not in self._unloaded:
            meant = "" if len(self.values.mistakes) > MOST else closest(name, component_names())
            way_out = f"did you mean {meant!r}?" if meant else "outlast components list shows all of them"
            self.values.wrong(node, path, "the name of a component", show(name), way_out)
            described = self._meant(meant) if is_misspelt(name, meant) else None
        return name, described

    def _meant(self, name: str) -> Component | None:
        """The component that was meant by a misspelt name: the step is checked against it."""
        if name not in self._found:
            with suppress(ConfigurationError):  # nobody has named it: that it cannot be loaded is not told
                self._found[name] = self._find(name)
        return self._found.get(name)

    def _config(self, node: Node | None, path: Path, described: Component | None = None) -> dict[str, Any]:
        if node is None or node.is_null:
            return {}
        if node.kind != "map":
            self.values.wrong(node, path, "a mapping", got_of(node), "write it as name: value")
            return {}
        found: dict[str, Any] = self.values.data(node, path, _places(described))
        return found

    def _described(self, block: Node, path: Path, described: Component | None, config: dict[str, Any]) -> None:
        """Whether the config of this block is what the component takes."""
        if described is None:
            return
        component = described.name
        node = block.get("config") or block
        there = node if node is not block and node.kind == "map" else _NOTHING
        unknown: dict[tuple[str | int, ...], Template] = {}
        filled = _for_check(config, (), unknown)
        told = [one for one, template in unknown.items() if template.is_wrong]
        texts = [one for one, template in unknown.items() if len(template.parts) > 1 and not template.is_wrong]
        known: dict[int, bool] = {}
        for name in described.literal:  # whatever it comes to, it is to be written out
            if self._literal(there.get(name), (*path, name), component):
                told.append((name,))
                config[name] = WRONG  # so that nothing is said of what it refers to
        for problem in described.problems(filled, unknown, texts):
            where = (*path, *yaml.steps(problem.path))
            of_key = problem.kind in ("key", "name")
            if where in self.values.secrets_told and not of_key:
                continue
            if any(problem.path[: len(one)] == one for one in told) and not of_key:
                continue
            at = there.at(problem.path) if there is not _NOTHING else node
            key = there.at(problem.path[:-1]).key(str(problem.path[-1])) if of_key else None
            if key is not None and secrets.is_named(key.text):  # that it must not be there says more than what it is
                self.values.forget(where)
            way_out = worded(problem.way_out) or self._hinted(at, problem, component)
            got = problem.got if key else as_written(at, problem.got, known)
            self.values.wrong(key or at, where, problem.expected, got, way_out, "R43" if problem.kind == "key" else "")
        for name in described.secrets:
            given = there.get(name)
            if given is not None and _is_told(config.get(name)):
                self.values.inline(given, (*path, name))
        for name, place in described.places.items():
            if place != "url" and name in config:
                self._no_sensitive(config[name], there.get(name) or node, (*path, name))
        self._connection(there, path, component, described, config)

    def _no_sensitive(self, value: Any, node: Node, path: Path) -> None:
        """What is stored and shown as it is, such as rows and names of files, has no sensitive parameter in it."""
        params = self.values.params
        for name in dict.fromkeys(one.name for one in _references(value) if one.kind == "param"):
            if name in params and params[name].sensitive:
                way_out = "give it to the component in another key, such as args or headers"
                expected = "a value without a sensitive parameter, because it is stored and shown as it is"
                self.values.wrong(node, path, expected, f"${{params.{name}}}", way_out)

    def _literal(self, node: Node | None, path: Path, component: str) -> bool:
        """A text in which a value could change what is done: no reference may stand in it. Whether one does, and is told."""
        if node is None or node.kind != "scalar" or "${" not in node.text:
            return False
        parts, unreadable = references.read(node.text)
        found = list(references.references_in(parts))
        if found and not unreadable:
            self.values.forget(path, "R42")  # where they lead does not matter
        for part in found:
            way_out = f"write it out: values go into other keys, see outlast components show {component}"
            self.values.wrong(node, path, "a text without references", str(part), way_out, "R42")
        return bool(found)

    def _hinted(self, node: Node, problem: Problem, component: str) -> str:
        if problem.expected == "true or false":
            return yaml.hint(node, "truth") or "write true or false"
        if "number" in problem.expected or "integer" in problem.expected:
            if isinstance(yaml.value_of(node) if node.kind == "scalar" else None, int | float):
                if problem.expected == "an integer":  # a fraction, or a truth
                    return "write a whole number"
                return "lower it" if "at most" in problem.expected or "less than" in problem.expected else "raise it"
            return yaml.hint(node, "number") or "write a number"
        if problem.expected == "a text" and node.kind == "scalar":
            return "put quotes around it"
        return f"see outlast components show {component}"

    def _connection(
        self, node: Node, path: Path, component: str, described: Component, config: Mapping[str, Any]
    ) -> None:
        said = config.get("connection")
        if not described.connection or not isinstance(said, str):
            return
        found = secrets.CONNECTION.fullmatch(said)
        at = node.get("connection") or node
        if found is None:
            way_out = f'write connection: "@{described.connection}.name"'
            self.values.wrong(at, (*path, "connection"), "a connection as @family.alias", got_of(at), way_out)
        elif found["family"] != described.connection:
            expected = f"a connection of the family {described.connection}, which {component} needs"
            self.values.wrong(
                at,
                (*path, "connection"),
                expected,
                as_written(at, show(said)),
                f"name one: @{described.connection}.alias",
            )

    def _own_values(self, config: Mapping[str, Any], described: Component | None) -> dict[str, Any]:
        """What `${key}` may stand for: the keys of the config, with their defaults."""
        return dict(config) if described is None else described.resolved(config)

    def _own(
        self,
        value: Any,
        own: Mapping[str, Any],
        path: Path,
        *,
        of_config: bool = False,
        in_text: bool = False,
        places: Mapping[str, references.Place] = MappingProxyType({}),
        place: references.Place = "text",
    ) -> Any:
        """
        A value with references to the step's own config filled in. `of_config`: it is part of that itself, where one key
        may refer to another, but not to one that refers on. `in_text`: what it comes to is written out. `places` says
        what the texts under its keys are.
        """
        if isinstance(value, Template):
            in_text = in_text or len(value.parts) > 1
            return self._own_template(value, own, path, of_config=of_config, in_text=in_text, place=place)
        if isinstance(value, dict):
            if not _has_template(value):
                return value
            return {
                key: self._own(one, own, (*path, yaml.step(key)), of_config=of_config, place=places.get(key, "text"))
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self._own(one, own, (*path, number), of_config=of_config) for number, one in enumerate(value)]
        return value

    def _own_template(
        self,
        template: Template,
        own: Mapping[str, Any],
        path: Path,
        *,
        of_config: bool,
        in_text: bool,
        place: references.Place,
    ) -> Any:
        if not any(part.kind == "own" for part in references.references_in(template.parts)):
            return template
        at = self._here.at(blocks.plain_path(path[2:]))
        found: list[references.Part] = []
        is_right = not template.is_wrong
        signs = references.signs_of(template.parts) if place == "key" else ""
        for part in template.parts:
            if not isinstance(part, Reference) or part.kind != "own":
                found.append(part)
                continue
            value = self._own_value(at, path, part, own, of_config=of_config, in_text=in_text)
            if value is MISSING or (isinstance(value, Template) and value.is_wrong):
                is_right = False
            elif not in_text and is_right:
                return value
            else:
                before = "".join(map(str, found))
                for one in value.parts if isinstance(value, Template) else (value,):
                    if not isinstance(one, Reference):
                        try:
                            one = references.in_place(one, place, before, signs)  # noqa: PLW2901 - as it stands there
                        except references.Unreadable as bad:
                            self.values.wrong(at, path, bad.expected, f"{part}, {bad.got}", bad.way_out, "R42")
                            is_right = False
                            continue
                    found.append(one)
        is_right = is_right and self.values.is_short(at, path, found)
        found = list(references.joined(found))
        if is_right and not references.is_clear(found):
            self.values.unclear(at, path)
            is_right = False
        if not is_right or any(isinstance(part, Reference) for part in found):
            return Template(tuple(found), is_wrong=not is_right)
        return "".join(map(str, found))

    def _own_value(
        self, at: Node, path: Path, part: Reference, own: Mapping[str, Any], *, of_config: bool, in_text: bool
    ) -> Any:
        """What a reference to a key of the config stands for; `MISSING` if it may not, which is told."""
        value = own.get(part.name, MISSING)
        if value is MISSING:
            self._no_such_key(at, path, part.name, own)
            return MISSING
        if of_config and any(one.kind == "own" for one in _references(value)):
            expected, way_out = "a key whose value has no references to other keys", "references are filled once"
            self.values.wrong(at, path, expected, str(part), f"{way_out}: write the value out", "R42")
            return MISSING
        if not self.values.is_room_for(at, path, value):
            return MISSING
        if in_text and not isinstance(value, Template) and _references(value):
            expected, way_out = "a key whose value can be written out now", "refer to a single value"
            self.values.wrong(at, path, expected, f"{part}, which has references inside", way_out, "R42")
            return MISSING
        return value

    def _no_such_key(self, node: Node, path: Path, name: str, own: Mapping[str, Any]) -> None:
        known = [key for key, value in own.items() if value is not WRONG]
        way_out = worded(nearest(name, known))
        if not way_out and name.isupper():
            way_out = "environment variables stand in the connections file only"
        if not way_out and name in self.values.params:
            way_out = f"write ${{params.{name}}}"
        expected = "a reference to a key of this step's config"
        self.values.wrong(
            node, path, expected, f"${{{name}}}", way_out or _listed(known, "the config has no keys"), "R42"
        )

    def _idempotency(
        self, node: Node | None, path: Path, own: Mapping[str, Any], described: Component | None
    ) -> Idempotency | None:
        if node is None or node.is_null:
            return None
        found = self.values.mapping(node, path, "idempotency", only=("key",))
        lifetime = self._lifetime(node, found, path)
        key = found.get("key")
        if key is None:
            return None
        if self.values.text(key, (*path, "key")) is None:
            return None
        template = self.values.template(key, (*path, "key"), key.text, "key")
        told: list[str] = []
        if isinstance(template, Template):
            told = self._key_parts(key, (*path, "key"), template, own, described)
            known = dict(own) | dict.fromkeys(told, WRONG)
            template = self._own(template, known, (*path, "key"), in_text=True, place="key")
        is_wrong = isinstance(template, Template) and template.is_wrong
        if self.values.no_row is None and not is_wrong and not told and not names_row(template):
            self._one_key_for_all(key, (*path, "key"))
        return Idempotency(template if isinstance(template, Template) else references.in_text(template), lifetime)

    def _one_key_for_all(self, node: Node, path: Path) -> None:
        """Rows with one key between them: the second would be taken for the first, or be refused as something else."""
        field = self._here.at(("for_each", "key"))
        named = field.text if field.kind == "scalar" and ID.fullmatch(field.text) else "field"
        expected, got = "a key that names the row, since each row is done by itself", "one that all rows share"
        self.values.wrong(node, path, expected, got, f"add ${{item.{named}}}, or ${{item}} for all of it", "R48")

    def _key_parts(
        self, node: Node, path: Path, template: Template, own: Mapping[str, Any], described: Component | None
    ) -> list[str]:
        """No secret in a key, and nothing that changes from one attempt to the next (R20). Names that are told of."""
        hidden = () if described is None else described.secrets
        told: list[str] = []
        for part in references.references_in(template.parts):
            secret = part.kind == "param" and self.values.params[part.name].sensitive
            secret = secret or (part.kind == "own" and (part.name in hidden or secrets.is_named(part.name)))
            secret = secret or (part.kind == "item" and any(map(secrets.is_named, part.fields)))
            value = own.get(part.name) if part.kind == "own" else None
            secret = secret or any(
                one.kind == "param" and self.values.params[one.name].sensitive for one in _references(value)
            )
            if secret:
                way_out = "name what tells one piece of work from another, such as a batch"
                self.values.wrong(node, path, "a key without secrets", str(part), way_out, "R20")
                told.append(part.name)
            elif part.kind == "own" and part.name not in own and _CHANGING.fullmatch(part.name):
                way_out = "a key that changes finds nothing again: name the batch"
                self.values.wrong(node, path, "a key that is the same in every attempt", str(part), way_out, "R20")
                told.append(part.name)
        return told

    def _lifetime(self, node: Node, found: Mapping[str, Node], path: Path) -> float:
        given = [key for key in ("cache_ttl", "cache_ttl_s", "cache_ttl_ms") if key in found]
        if not given:
            return _DAY
        if len(given) > 1:
            both = f"both {given[0]} and {given[1]}"
            self.values.wrong(found[given[1]], (*path, given[1]), "it given once", both, "keep one of the two")
        value = self.blocks.typed(found[given[0]], (*path, given[0]), given[0], "time")
        if value is MISSING or value is None:
            return _DAY

        check = Check()
        seconds = time_of(check, (given[0],), given[0], value, positive=True)
        self.blocks.complain(node, path, "idempotency", check.problems)
        return _DAY if check.problems else seconds

    def _compensation(self, node: Node | None, path: Path, own: Mapping[str, Any]) -> Compensation | None:
        if node is None or node.is_null:
            return None
        found = self.values.mapping(node, path, "compensate", only=("component", "config"))
        if node.kind != "map":
            return None
        component, described = self._component(found.get("component"), (*path, "component"))
        config = self._config(found.get("config"), (*path, "config"), described)
        config = self._own(config, own, (*path, "config"), places=_places(described))
        self.values.no_secrets(self._own_values(config, described), found.get("config") or node, (*path, "config"))
        if "config" not in found or found["config"].kind == "map" or found["config"].is_null:
            self._described(node, (*path, "config"), described, config)
        retry, block = self.blocks.retry(found.get("retry"), (*path, "retry"), blocks.COMPENSATION)
        self._delays += retry.max_attempts - 1
        when = self.values.choice(found.get("when"), (*path, "when"), ("completed", "started")) or "completed"
        times = self.blocks.times(found.get("timeout"), (*path, "timeout"))
        return Compensation(component, described, config, when, retry, block, times)

    def _for_each(self, node: Node | None, path: Path, own: Mapping[str, Any]) -> ForEach | None:
        if node is None or node.is_null:
            return None
        found = self.values.mapping(node, path, "for_each", only=("items",))
        items = found.get("items")
        value = WRONG if items is None else self._rows(items, (*path, "items"), own)
        concurrency = self.values.integer(found.get("concurrency"), (*path, "concurrency"), 1)
        success = self.values.share(found.get("min_success_rate"), (*path, "min_success_rate"))
        partial = self.values.share(found.get("min_partial_rate"), (*path, "min_partial_rate"))
        success = 1.0 if success is None else success
        if partial is not None and partial > success:
            got, way_out = f"{partial:g}, more than {success:g}", "lower it, or raise min_success_rate"
            lowered = found["min_partial_rate"]
            self.values.wrong(lowered, (*path, "min_partial_rate"), "at most min_success_rate", got, way_out)
        least = min(0.5, success) if partial is None else partial
        key = self._row_key(found.get("key"), (*path, "key"))
        return ForEach(value, key, concurrency or 16, success, least)

    def _rows(self, node: Node, path: Path, own: Mapping[str, Any]) -> Any:
        """What stands for the rows: a list, or a reference to what may be one."""
        expected, way_out = "a reference to rows, or a list", "write ${steps.id.outputs.rows}"
        self.values.no_row = ("the rows, of which ${item} is one", way_out)
        value = self._own(self.values.data(node, path), own, path)
        self.values.no_secrets(value, node, path)
        if names_row(value):  # by a key of the config
            self.values.wrong(node, path, self.values.no_row[0], got_of(node), way_out, "R42")
            value = WRONG
        self.values.no_row = None
        if isinstance(value, list) or (isinstance(value, Template) and value.is_wrong):
            self._no_sensitive(value, node, path)
            return value
        if isinstance(value, Template) and len(value.parts) == 1:
            (only,) = value.parts
            declared = (
                self.values.params[only.name].type if isinstance(only, Reference) and only.kind == "param" else "list"
            )
            if declared == "list":
                self._no_sensitive(value, node, path)
                return value
            self.values.wrong(
                node, path, expected, f"{only}, a parameter of the type {declared}", "declare it as a list"
            )
            return WRONG
        got = "a text with a reference in it" if isinstance(value, Template) else got_of(node)
        self.values.wrong(node, path, expected, got, way_out)
        return WRONG

    def _row_key(self, node: Node | None, path: Path) -> str | None:
        name = self.values.text(node, path)
        if node is None or name is None or "${" not in name:
            return name
        field = name.removeprefix("${item.").removesuffix("}")
        way_out = f"write {field}" if ID.fullmatch(field) else "write its name alone"
        self.values.wrong(node, path, "the name of a field, which each row is asked for", show(name), way_out, "R42")
        return None

    def _needs(self, found: Mapping[str, Node], path: Path, before: str) -> tuple[str, ...]:
        given = [key for key in ("needs", "depends_on") if key in found]
        if not given:
            return (before,) if before else ()
        lists = [self._listed(found[key], (*path, key)) for key in given]
        if len(lists) > 1 and sorted(lists[0]) != sorted(lists[1]):
            got = f"{', '.join(lists[1]) or 'none'}"
            self.values.wrong(
                found["depends_on"], (*path, "depends_on"), "the same as needs", got, "keep one of the two"
            )
        return lists[0]

    def _listed(self, node: Node, path: Path) -> tuple[str, ...]:
        if node.kind != "list":
            is_one = node.kind == "scalar" and node.text and not node.is_null
            way_out = f"write it as [{node.text}]" if is_one else "write [] for none"
            expected = "a list of ids"
            if is_one and "${" in node.text:
                expected, way_out = "a list of ids that are written out", NO_REFERENCE
            self.values.wrong(node, path, expected, got_of(node), way_out)
            return ()
        found: dict[str, None] = {}
        for number, one in enumerate(node.items):
            name = self.values.text(one, (*path, number))
            if name is not None and name in found:
                self.values.wrong(one, (*path, number), "each id once", show(name), "leave it out")
            elif name is not None:
                found[name] = None
        return tuple(found)


def _places(described: Component | None) -> Mapping[str, references.Place]:
    return {} if described is None else described.places


def _listed(known: Sequence[str], none: str) -> str:
    return f"known are {', '.join(known[:20])}" if known else none


def _references(value: Any) -> list[Reference]:
    if isinstance(value, Template):
        return list(references.references_in(value.parts))
    if isinstance(value, dict):
        return [one for inner in value.values() for one in _references(inner)]
    return [one for inner in value for one in _references(inner)] if isinstance(value, list) else []


def _is_told(value: Any) -> bool:
    """Whether anything in there is written out, rather than referred to."""
    if isinstance(value, dict | list):
        return any(map(_is_told, value.values() if isinstance(value, dict) else value))
    return value is not None and not isinstance(value, Template)


def _has_template(value: Any) -> bool:
    return any(
        one.__class__ is Template or (one.__class__ in (dict, list) and _has_template(one))
        for one in (value.values() if isinstance(value, dict) else value)
    )


def _for_check(value: Any, path: tuple[str | int, ...], unknown: dict[tuple[str | int, ...], Template]) -> Any:
    """Data as the component's model can check it; `unknown` gets what is known when the step runs, by its path."""
    if isinstance(value, Template):
        unknown[path] = value
        return str(value)
    if isinstance(value, dict):
        return {key: _for_check(one, (*path, key), unknown) for key, one in value.items()}
    if isinstance(value, list):
        return [_for_check(one, (*path, number), unknown) for number, one in enumerate(value)]
    return value
