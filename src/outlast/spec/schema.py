"""
The JSON Schema (2020-12) of a pipeline file, for editors. It is made of the tables that the checks read and of the
components' config models. It takes every file that compiles; what no schema can say (references that lead nowhere,
steps that wait for each other, secrets) is left to `outlast validate`. A second one is that of a connections file.

Where a reference may stand for a value, validators would blame the text for not being one. Each branch therefore has the
words that a YAML language server shows instead (`errorMessage`, `patternErrorMessage`); other validators ignore them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.components.registry import component_names, family_names, find_component, find_family
from outlast.errors import ConfigurationError
from outlast.kernel.redact import error_text
from outlast.policy import CAPS
from outlast.settings.blocks import BACKOFFS_KNOWN
from outlast.settings.keys import BLOCKS, TIMES, UNIT_WORDS, UNITS, spellings
from outlast.spec.blocks import MOST_ATTEMPTS
from outlast.spec.keys import DURATION, FORBIDDEN, ISOLATIONS, MODES, OML_VERSIONS, TABLES, TYPES, kinds_of, meanings_of
from outlast.spec.params import NAME
from outlast.spec.plan import PRESETS
from outlast.spec.rules import RULES, SILENCE
from outlast.spec.steps import MOST_STEPS
from outlast.spec.values import ID
from outlast.verdicts import CATEGORIES, ERROR_CLASSES, TIERS

if TYPE_CHECKING:
    from outlast.components.describing import Component, Family

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: dict[str, Any] = {"$ref": "#/$defs/reference"}
_NOTHING: dict[str, Any] = {"type": "null"}
_DURATION = f"^{DURATION.pattern}$"
_POSITIVE = f"^(?=.*[1-9]){DURATION.pattern}$"
# A name of Python in any alphabet, and the symbol of an errno in any case: validators differ in what \w is.
_WORD = r"[^\s\d!-/:-@\[-^`{-~][^\s!-/:-@\[-^`{-~]*"
_ERRNO = "[eE][A-Za-z0-9]+"
# The time of a rate may be a unit alone: {amount: 5, per: min}.
_PER = rf"^\s*({'|'.join((*UNITS, *UNIT_WORDS))})\s*$"
_VARIABLE = r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"
_REFERENCE_TEXT = r"\$\{"
# Keys with a few words to choose from: block and key.
_CHOICES: dict[tuple[str, str], tuple[str, ...]] = {
    ("file", "oml_version"): OML_VERSIONS,
    ("param", "type"): TYPES,
    ("step", "mode"): MODES,
    ("step", "isolation"): ISOLATIONS,
    ("compensate", "when"): ("completed", "started"),
    ("retry", "backoff"): BACKOFFS_KNOWN,
    ("retry", "cap"): CAPS,
    ("retry", "mode"): ("inline", "requeue"),
    ("retry", "unclear"): ("fail", "retry"),
    ("retry", "preset"): tuple(PRESETS),
    ("circuit_breaker", "on_open"): ("fail", "wait"),
    ("circuit_breaker", "count"): ("faults", "any"),
    ("circuit_breaker", "mode"): ("on", "shadow"),
}
# What a number may be: block and key.
_BOUNDS: dict[tuple[str, str], dict[str, int]] = {
    ("retry", "max_attempts"): {"minimum": 1, "maximum": MOST_ATTEMPTS},
    ("retry", "max_retries"): {"minimum": 0, "maximum": MOST_ATTEMPTS - 1},
    ("retry", "multiplier"): {"minimum": 1},
    ("circuit_breaker", "failure_threshold"): {"minimum": 1},
    ("circuit_breaker", "half_open_requests"): {"minimum": 1},
    ("circuit_breaker", "success_threshold"): {"minimum": 1},
    ("circuit_breaker", "failure_rate"): {"exclusiveMinimum": 0, "maximum": 1},
    ("circuit_breaker", "window"): {"minimum": 1},
    ("circuit_breaker", "min_calls"): {"minimum": 1},
    ("circuit_breaker", "open_jitter"): {"minimum": 0, "maximum": 1},
    ("circuit_breaker", "open_growth"): {"minimum": 1},
    ("limit", "concurrency"): {"minimum": 1},
    ("rate", "amount"): {"exclusiveMinimum": 0},
    ("rate", "burst"): {"exclusiveMinimum": 0},
    ("retry_budget", "ratio"): {"minimum": 0, "maximum": 1},
    ("retry_budget", "reserve"): {"minimum": 0},
    ("for_each", "concurrency"): {"minimum": 1},
    ("for_each", "min_success_rate"): {"minimum": 0, "maximum": 1},
    ("for_each", "min_partial_rate"): {"minimum": 0, "maximum": 1},
}
# Keys of the blocks of settings that may be null, times by their names without a unit.
_NULLS: dict[str, frozenset[str]] = {
    "retry": frozenset("preset max_attempts max_delay retry_limits retry_exhausted retry_exhausted_steps".split()),
    "timeout": frozenset(("step", "total")),
    "circuit_breaker": frozenset("success_threshold failure_rate slow_call shared on_open".split()),
    "limit": frozenset("concurrency rates max_wait adaptive shared".split()),
    "rate": frozenset(("burst",)),
    "retry_budget": frozenset(("shared",)),
}
_BLOCKS = ("retry", "timeout", "circuit_breaker", "limit", "rate", "retry_budget")
_IN_FILE: dict[str, dict[str, Any]] = {
    "params": {"type": ["object", "null"], "propertyNames": {"pattern": f"^({NAME.pattern})$"}, "additionalProperties": {"$ref": "#/$defs/param"}},
    "profiles": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/profile"}},
    "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1, "maxItems": MOST_STEPS},
}  # fmt: skip


def json_schema(unloaded: dict[str, str] | None = None) -> dict[str, Any]:
    """
    The schema, with all components that are registered or installed. One that cannot be loaded is known by its name only,
    and `unloaded` gets the reason.
    """
    known = component_names()
    broken: dict[str, str] = {} if unloaded is None else unloaded
    described = {name: _described(name, broken) for name in known}
    defs: dict[str, Any] = {
        "reference": {
            "type": "string",
            "pattern": _REFERENCE_TEXT,
            "description": "a reference: ${params.name}, ${key} of the step's own config, ${steps.id.outputs.name}; in a step "
            "with for_each also its row, ${item} or ${item.field}",
        },
        "error": _error(),
    }
    for table in ("param", "profile", "idempotency", "for_each"):
        defs[table] = _table(table)
    for block in _BLOCKS:
        defs[block] = _block(block)
    for component in described.values():
        if component is not None:
            defs |= _config(component)
    for table in ("step", "compensate"):
        defs[table] = _table(table) | {"allOf": _conditions(described, modes=table == "step")}
        about = {name: one.summary for name, one in described.items() if one is not None}
        defs[table]["properties"]["component"] = _component(known, about)
    return {"$schema": DIALECT, "title": "Outlast pipeline"} | _table("file") | {"$defs": defs}


def _described(name: str, broken: dict[str, str]) -> Component | None:
    try:
        return find_component(name)
    except ConfigurationError as why:
        broken[name] = error_text(why)
        return None


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(table: str) -> dict[str, Any]:
    kinds, meanings = kinds_of(table), meanings_of(table)
    properties = {key: _value(table, key, kind) | {"description": meanings[key]} for key, kind in kinds.items()}
    found: dict[str, Any] = {
        "type": "object" if table in ("file", "param", "step") else ["object", "null"],
        "properties": properties,
        "required": [name for name, key in TABLES[table].items() if key.needed],
        "additionalProperties": False,
    }
    if table in ("file", "step"):
        found["patternProperties"] = {"^x-": {}}
    if table == "param":
        secret: dict[str, Any] = {"properties": {"sensitive": {"const": True}}, "required": ["sensitive"]}
        without = {key: {"not": {}, "errorMessage": "expected it left out for a secret"} for key in ("default", "enum")}
        found["allOf"] = [_of_type(name, schema) for name, schema in _TYPES.items()]
        found["allOf"].append({"if": secret, "then": {"properties": without}})
    if table == "file":  # an editor marks the key itself, and shows the way out
        for key, way_out in FORBIDDEN.items():
            properties[key] = {"not": {}, "description": f"no key of a pipeline file: {way_out}"}
    return found


_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
}


def _of_type(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """What goes with the type of a parameter: its default, and the values that it may have."""
    values = {"default": schema, "enum": {"items": schema}}
    return {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": {"properties": values}}


def _block(block: str) -> dict[str, Any]:
    meanings = meanings_of(block)
    kinds = {key: kind for key, kind in kinds_of(block).items() if not (block == "timeout" and key.startswith("idle"))}
    properties = {key: _value(block, key, kind) | {"description": meanings[key]} for key, kind in kinds.items()}
    needed = [name for name, key in BLOCKS.get(block, {}).items() if key.needed and key.kind not in TIMES]
    # What may be null says so in its type: a validator then names the place inside, and not the whole block.
    kind: Any = "object" if block == "rate" else ["object", "null"]
    found = {"type": kind, "properties": properties, "required": needed, "additionalProperties": False}
    if block == "rate":
        spelt = [{"required": [key]} for key in spellings("per", "time")]
        found["anyOf"] = [one | {"errorMessage": "expected per, per_s or per_ms: in which time"} for one in spelt]
    return found


def _value(table: str, key: str, kind: str) -> dict[str, Any]:
    """What a key may have."""
    if table == "file" and key in _IN_FILE:
        return dict(_IN_FILE[key])
    if (table, key) in (("file", "name"), ("step", "id")):
        return {"type": "string", "pattern": f"^({ID.pattern})$"}
    if (table, key) in _CHOICES:
        chosen: dict[str, Any] = {"enum": list(_CHOICES[table, key])}
        words = f"one of {', '.join(_CHOICES[table, key])}"
        if table in ("file", "param"):
            return _told(chosen, words)
        return _or_reference(chosen, words, null=_may_be_null(table, key))
    if key in ("on_errors", "skip_on_errors", "retriable_errors"):
        words = _REFERENCE_TEXT if key == "skip_on_errors" else rf"^(auto|all|none)$|{_REFERENCE_TEXT}"
        return {"type": ["array", "string"], "items": {"$ref": "#/$defs/error"}, "pattern": words}
    if key in ("retryable_exceptions", "retryable_http_status_codes"):
        return {"type": ["array", "string"], "items": {"$ref": "#/$defs/error"}, "pattern": _REFERENCE_TEXT}
    if (table, key) == ("param", "enum"):
        return {"type": ["array", "null"], "minItems": 1}
    if (table, key) == ("rate", "per"):
        either = _any(_time(key, positive=True), {"type": "string", "pattern": _PER})
        return _or_reference(either, f"{_time_words(key, positive=True)} or min")
    if (table, key) == ("for_each", "items"):
        return {"type": ["array", "string"], "pattern": _REFERENCE_TEXT}
    if (table, key) in (("param", "min"), ("param", "max")):
        return _told({"type": ["number", "null"]}, "a number, without quotes")
    if (table, key) == ("param", "sensitive"):
        return _told({"type": "boolean"}, "true or false")
    if kind == "block":
        return {"$ref": f"#/$defs/{key}"} if key != "rates" else _rates()
    if kind in ("text", "texts", "map"):
        return _of_texts(table, key, kind)
    return _of_kind(kind, key, _BOUNDS.get((table, key), {}), null=_may_be_null(table, key))


def _may_be_null(table: str, key: str) -> bool:
    return table in TABLES or key.removesuffix("_ms").removesuffix("_s") in _NULLS[table]


def _of_texts(table: str, key: str, kind: str) -> dict[str, Any]:
    if kind == "map":
        return {"type": ["object", "null"]}
    if key == SILENCE:
        codes = _told({"enum": [rule.code for rule in RULES]}, "the code of a warning")
        return {"type": ["array", "null"], "items": codes, "uniqueItems": True}
    if kind == "texts":
        return {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    if table in ("param", "profile"):  # their descriptions
        return {"type": ["string", "null"]}
    return {"type": "string"} if table in TABLES else {"type": "string", "minLength": 1}


def _of_kind(kind: str, key: str, bounds: dict[str, int], *, null: bool) -> dict[str, Any]:
    if kind in ("integer", "number"):
        words = ("an integer" if kind == "integer" else "a number") + _bounds_words(bounds)
        return _or_reference({"type": kind} | bounds, f"{words}, without quotes", null=null)
    if kind == "truth":
        return _or_reference({"type": "boolean"}, "true or false", null=null)
    if kind in TIMES:
        positive = kind == "time" and key not in _WAITS
        return _or_reference(_time(key, positive=positive), _time_words(key, positive=positive), null=null)
    if kind == "times":
        times = _or_reference(_time(key, positive=False), _time_words(key, positive=False))
        return {"type": ["array", "string"], "items": times, "minItems": 1, "pattern": _REFERENCE_TEXT}
    if kind == "integers":
        retries = _or_reference({"type": "integer", "minimum": 0}, "an integer of at least 0")
        tiers = _told({"enum": list(TIERS)}, f"a tier: {', '.join(TIERS)}")
        return {
            "type": ["object", "null"],
            "propertyNames": tiers,
            "additionalProperties": retries,
            "minProperties": 1,
        }
    return _jitter() if kind == "jitter" else {}


def _bounds_words(bounds: dict[str, int]) -> str:
    least, above, most = (bounds.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    said = f" of at least {least}" if least is not None else f" greater than {above}" if above is not None else ""
    if most is None:
        return said
    return f" from {least} to {most}" if least is not None else f"{said} and at most {most}"


# Delays may be 0; time limits may not.
_WAITS = frozenset(kinds_of("retry"))


def _time(key: str, *, positive: bool) -> dict[str, Any]:
    number: dict[str, Any] = {"type": "number", "exclusiveMinimum" if positive else "minimum": 0}
    if key.endswith(("_ms", "_s")):
        return number
    return _any(number, {"type": "string", "pattern": _POSITIVE if positive else _DURATION})


def _time_words(key: str, *, positive: bool) -> str:
    least = "greater than 0" if positive else "of at least 0"
    if key.endswith("_ms"):
        return f"milliseconds {least}, without a unit"
    return f"seconds {least}" + (
        ", without a unit" if key.endswith("_s") else ', or a text with its unit such as "30s"'
    )


def _jitter() -> dict[str, Any]:
    added = {key: _any(_time(key, positive=False), _REFERENCE) for key in ("add", "add_s", "add_ms")}
    choices = _any(
        {"type": "number", "minimum": 0, "maximum": 1},
        {"enum": ["full", "equal", "decorrelated"]},
        {"type": "boolean"},
        {"type": "object", "properties": added, "additionalProperties": False, "minProperties": 1},
    )
    return _or_reference(choices, "a ratio from 0 to 1, true, false, full, equal, decorrelated or {add_ms: 500}")


def _rates() -> dict[str, Any]:
    return {
        "type": ["object", "string", "null"],
        "pattern": _REFERENCE_TEXT,
        "patternErrorMessage": "expected a mapping from a name to a rate, or a reference such as ${params.name}",
        "additionalProperties": _any({"$ref": "#/$defs/rate"}, {"type": "string", "pattern": "[/]"}, _REFERENCE),
    }


def _error() -> dict[str, Any]:
    """What a list of errors may have: names of ours, statuses, names of exceptions."""
    names = [*CATEGORIES, *sorted(ERROR_CLASSES), *sorted(TIERS), "all"]
    choices = _any(
        {"enum": list(dict.fromkeys(names))},
        {"type": "integer", "minimum": 100, "maximum": 599},
        {"type": "string", "pattern": rf"^([1-5][xX][xX]|0*[1-5][0-9][0-9]|[A-Z]\w*|{_ERRNO}|({_WORD}[.])+{_WORD})$"},
    )
    return _or_reference(choices, "an error such as network_error, a status, 5xx, or the name of an exception")


def _told(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """A schema with what an editor shows where a value does not fit."""
    message = f"expected {words}"
    return schema | {"errorMessage": message} | ({"patternErrorMessage": message} if "pattern" in schema else {})


def _or_reference(schema: dict[str, Any], words: str, *, null: bool = False) -> dict[str, Any]:
    """A value for which a reference may stand. An editor shows the words of the branch that is nearest, so all have them."""
    branches = _any(schema, {"type": "string", "pattern": _REFERENCE_TEXT}, *((_NOTHING,) if null else ()))["anyOf"]
    return {"anyOf": [_told(one, f"{words}, or a reference such as ${{params.name}}") for one in branches]}


def _any(*choices: dict[str, Any]) -> dict[str, Any]:
    flat = [inner for one in choices for inner in (one["anyOf"] if set(one) == {"anyOf"} else [one])]
    return {"anyOf": flat}


# -- components --------------------------------------------------------------------------------------------------------


def _component(names: list[str], about: dict[str, str]) -> dict[str, Any]:
    """The name of a component; editors show what each does."""
    described = [{"const": name, "description": about[name]} if name in about else {"const": name} for name in names]
    return {"description": TABLES["step"]["component"].meaning, "enum": names, "anyOf": described}


def _conditions(described: dict[str, Component | None], *, modes: bool) -> list[dict[str, Any]]:
    """Which config, and in steps which mode, goes with which component."""
    found: list[dict[str, Any]] = []
    for name, component in described.items():
        if component is None:
            continue
        then: dict[str, Any] = {"properties": {"config": {"$ref": f"#/$defs/config.{name}"}}}
        if component.modes and modes:
            words = f"{' or '.join(component.modes)}, as {name} does"
            then["properties"]["mode"] = _or_reference({"enum": list(component.modes)}, words, null=True)
        if _needs_config(component):
            then["required"] = ["config"]
        found.append({"if": {"properties": {"component": {"const": name}}, "required": ["component"]}, "then": then})
    return found


def _needs_config(component: Component) -> bool:
    return any(one.is_required() for one in component.config.model_fields.values())


def _config(component: Component) -> dict[str, Any]:
    """The config model of a component and what it refers to, each under a name of its own."""
    own = f"config.{component.name}"
    whole = component.config.model_json_schema(ref_template=f"#/$defs/{own}:{{model}}")
    inner = whole.pop("$defs", {})
    kind: Any = "object" if _needs_config(component) else ["object", "null"]
    found = {own: _inside(whole) | {"type": kind, "description": component.summary}}
    return found | {f"{own}:{name}": _inside(schema) for name, schema in inner.items()}


def _open(schema: Any) -> Any:
    """A schema of a value for which a reference may stand."""
    if not isinstance(schema, dict) or not schema:
        return schema
    inside = _inside(schema)
    if inside.get("type") == "string" and not {"enum", "const", "pattern", "format", "maxLength"} & set(inside):
        return inside
    if not {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"} & set(inside):
        return inside
    if inside.get("type") in ("object", "array"):
        what = "a mapping" if inside["type"] == "object" else "a list"
        message = {"patternErrorMessage": f"expected {what}, or a reference such as ${{params.name}}"}
        return inside | {"type": [inside["type"], "string"], "pattern": _REFERENCE_TEXT} | message
    outside = {key: inside.pop(key) for key in ("description", "default") if key in inside}
    words = _words(inside)
    return (_or_reference(inside, words) if words else _any(inside, _REFERENCE)) | outside


def _words(schema: dict[str, Any]) -> str:
    """What a value of a config may be, in words; nothing where they would not be clear."""
    if "errorMessage" in schema:
        return str(schema["errorMessage"]).removeprefix("expected ")
    if "anyOf" in schema:
        said = [
            _words(one)
            for one in schema["anyOf"]
            if one.get("type") != "null" and one.get("pattern") != _REFERENCE_TEXT
        ]
        return said[0].partition(", or a reference")[0] if len(said) == 1 else ""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kinds = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = f" from {least} to {most}" if least is not None and most is not None else ""
    bounds = bounds or (f" of at least {least}" if least is not None else "")
    return kinds[schema["type"]] + bounds if schema.get("type") in kinds else ""


def _inside(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with everything in it open for references."""
    found = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if isinstance(found.get("properties"), dict):
        found["properties"] = {key: _open(value) for key, value in found["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = _open(found[key])
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(found.get(key), list):
            found[key] = [_open(one) for one in found[key]]
    return found


# -- connections -------------------------------------------------------------------------------------------------------


def connections_schema(unloaded: dict[str, str] | None = None) -> dict[str, Any]:
    """The schema of a connections file, with all families that are registered or installed; `unloaded` as above."""
    broken: dict[str, str] = {} if unloaded is None else unloaded
    families: dict[str, Any] = {}
    defs: dict[str, Any] = {}
    for name in family_names():
        try:
            family = find_family(name)
        except ConfigurationError as why:
            broken[name] = error_text(why)
            family = None
        if family is None:
            families[name] = {"type": ["object", "null"]}
            continue
        defs |= _family(family)
        alias = {"pattern": f"^({ID.pattern})$", "errorMessage": "expected an alias in letters, digits, - and _"}
        families[name] = {
            "type": ["object", "null"],
            "description": family.summary,
            "propertyNames": alias,
            "additionalProperties": {"$ref": f"#/$defs/{name}"},
        }
    whole = {"type": ["object", "null"], "properties": families, "additionalProperties": False}
    return {
        "$schema": DIALECT,
        "title": "Outlast connections",
        "type": "object",
        "properties": {"connections": whole | {"description": "family: {alias: {field: value}}"}},
        "required": ["connections"],
        "additionalProperties": False,
        "patternProperties": {"^x-": {}},
        "$defs": defs,
    }


def _family(family: Family) -> dict[str, Any]:
    """The fields of a family. A secret is the whole of one variable; others may have variables in them."""
    whole = family.config.model_json_schema(ref_template=f"#/$defs/{family.name}:{{model}}")
    inner = whole.pop("$defs", {})
    found = _inside(whole)
    secret = _told(
        {"type": ["string", "null"], "pattern": _VARIABLE}, "a secret to be the whole of one variable: ${NAME}"
    )
    for key in family.secrets:
        about = {name: text for name, text in found["properties"][key].items() if name == "description"}
        found["properties"][key] = secret | about
    found["properties"]["default"] = {
        "type": ["boolean", "null"],
        "description": "whether @family alone means this one",
    }
    return {family.name: found, **{f"{family.name}:{name}": _inside(schema) for name, schema in inner.items()}}
