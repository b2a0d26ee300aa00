"""
`data.processor` and `schema.validator`: change rows, and check them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.components.reading import missing
from outlast.components.steps.doing import invalid, keep, listed, result_of, row_at
from outlast.components.steps.rows import check_schema
from outlast.errors import PermanentFailure

if TYPE_CHECKING:
    from outlast.components.running import StepContext
    from outlast.components.steps.rows import ProcessorConfig, ValidatorConfig

_TOLD = 5  # rows of which a message says why they do not fit
_REASONS = 10  # reasons that are told of one of them
_FORMATS = ("date", "email", "ipv4", "ipv6", "regex", "uuid")  # those that need no further package
_DATE_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
# What a check breaks with on a value that is deeper or larger than it can compute with. It is then none that fits: nobody has found that it does.
BREAKS = (RecursionError, ArithmeticError, TypeError, ValueError)
_KEPT = 1_000_000  # characters of what does not fit that are kept for people to look at

# -- data.processor ------------------------------------------------------------------------------------------------------


def process(config: ProcessorConfig, context: StepContext) -> dict[str, Any]:
    """Each row by itself: rename, select, fill in, then the function."""
    name = config.call or ""
    function = context.function(name) if name else None
    rows = listed(config.rows)
    made: list[Any] = []
    for number, given in enumerate(rows, 1):
        row: Any = _shaped(number, row_at(number, given), config)
        if function is not None:
            try:
                row = result_of(name, function, row, **config.args)
            except Exception as error:
                error.add_note(f"{config.call} was called with row {number}")
                raise
            if row is None:
                continue
            if not isinstance(row, Mapping):
                message = f"expected {config.call} to return a mapping, or None to drop the row, got for row {number}: a value of type {type(row).__name__}"
                raise PermanentFailure(message, error_class="code_error")
        made.append(dict(row))
    return {"rows": made, "count": len(made), "dropped": len(rows) - len(made)}


def _shaped(number: int, given: Mapping[str, Any], config: ProcessorConfig) -> dict[str, Any]:
    if lacking := [old for old in config.rename if old not in given]:
        raise invalid(f"expected row {number} to have {', '.join(lacking)}, which is renamed, got: no such column")
    row: dict[str, Any] = {}
    for old, value in given.items():
        name = config.rename.get(old, old)
        if name in row:
            raise invalid(f"expected one column {name} in row {number} once columns are renamed, got: two")
        row[name] = value
    if config.select is not None:
        if lacking := [name for name in config.select if name not in row and name not in config.defaults]:
            raise invalid(f"expected row {number} to have {', '.join(lacking)}, which is selected, got: no such column")
        row = {name: row.get(name) for name in config.select}
    for name, value in config.defaults.items():
        if row.get(name) is None:
            row[name] = value
    return row


# -- schema.validator ----------------------------------------------------------------------------------------------------


def validate(config: ValidatorConfig, context: StepContext) -> dict[str, Any]:
    """
    A list is rows, each of which is checked by itself; anything else is one value. What does not fit is told by its place
    and the rule that it breaks, never by its value.
    """
    validator = validator_of(config.schema_, config.schema_file, context)
    if not isinstance(config.data, list):
        reasons = reasons_of(validator, config.data)
        if not reasons:
            return {"valid": config.data, "invalid": None, "count": 1}
        found = {"value": config.data, "reasons": reasons}
        if config.on_invalid == "fail":
            raise _unfit(context, [found], f"expected data to fit the schema, got: {'; '.join(reasons)}")
        return {"valid": None, "invalid": found, "count": 0}
    valid: list[Any] = []
    wrong: list[dict[str, Any]] = []
    for number, row in enumerate(config.data, 1):
        reasons = reasons_of(validator, row)
        if reasons:
            wrong.append({"row": number, "value": row, "reasons": reasons})
        else:
            valid.append(row)
    if wrong and config.on_invalid == "fail":
        told = "; ".join(f"row {one['row']}: {', '.join(one['reasons'])}" for one in wrong[:_TOLD])
        more = f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
        message = (
            f"expected every row to fit the schema, got {len(wrong)} of {len(config.data)} that do not: {told}{more}"
        )
        raise _unfit(context, wrong, message)
    return {"valid": valid, "invalid": wrong, "count": len(valid)}


def validator_of(schema: Any, schema_file: str | None, context: StepContext) -> Any:
    """What checks values against a JSON Schema, which is given or in a file of the project."""
    return checker_of(schema if schema_file is None else _from_file(schema_file, context))


def checker_of(schema: Any) -> Any:
    """What checks values against this JSON Schema. Nothing is fetched for it."""
    try:
        from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
        from referencing import Registry
    except ImportError:
        raise missing("A JSON Schema", "jsonschema", "flows") from None
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as wrong:
        message = f"expected the schema to be a JSON Schema (2020-12), got another at {_place(wrong.absolute_path)}"
        raise invalid(message) from None
    # With a registry of our own nothing is fetched: what the schema refers to is in the schema.
    formats = FormatChecker(_FORMATS)  # the same wherever it runs, whatever else is installed there
    formats.checks("date-time", raises=ValueError)(_is_date_time)
    return Draft202012Validator(schema, registry=Registry(), format_checker=formats)


def _is_date_time(value: Any) -> bool:
    """A text as RFC 3339 has it, with an offset; what is no text has no format."""
    if not isinstance(value, str):
        return True
    found = _DATE_TIME.fullmatch(value)
    return found is not None and bool(dt.date.fromisoformat(found["day"]))


def _from_file(name: str, context: StepContext) -> Any:
    path = context.path(name)
    if not path.is_file():
        raise PermanentFailure(f"expected a JSON Schema at {name}, got: no such file", error_class="missing_input")
    try:
        schema = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise invalid(f"expected {name} to be JSON, got: something else") from None
    if not isinstance(schema, dict):
        raise invalid(f"expected {name} to hold a JSON Schema, which is a mapping, got: another value")
    try:
        return check_schema(schema)
    except ValueError as wrong:
        raise invalid(f"expected {name} to hold a JSON Schema that needs no other file: {wrong}") from None


def reasons_of(validator: Any, value: Any) -> list[str]:
    """Where a value does not fit, and the rule of the schema that says so."""
    from referencing.exceptions import Unresolvable

    try:
        errors = sorted(
            (_place(error.absolute_path), "/".join(map(str, error.absolute_schema_path)))
            for error in validator.iter_errors(value)
        )
    except Unresolvable as lacking:
        raise invalid(f"expected {lacking.ref} to be in the schema, which refers to it, got: no such place") from None
    except RecursionError:
        return ["all of it: deeper than can be checked"]
    except BREAKS as broken:
        return [f"all of it: has a value that cannot be checked ({type(broken).__name__})"]
    return [f"{place}: {rule}" for place, rule in errors[:_REASONS]]


def _place(path: Any) -> str:
    return ".".join(map(str, path)) or "all of it"


def _unfit(context: StepContext, found: list[dict[str, Any]], message: str) -> PermanentFailure:
    lines: list[str] = []
    size = 0
    for one in found:
        try:
            lines.append(json.dumps(one, ensure_ascii=False, default=str))
        except (TypeError, ValueError, RecursionError):  # a value that is no JSON; the reasons are
            lines.append(json.dumps({**one, "value": f"a value of type {type(one['value']).__name__}"}))
        size += len(lines[-1])
        if size > _KEPT:
            break
    keep(context, "raw", "\n".join(lines)[:_KEPT])
    return invalid(message)
