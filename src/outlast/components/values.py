"""
Values of users on their way out: to JSON, and to the columns of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from outlast.errors import PermanentFailure


def plain(value: Any) -> Any:
    """A value that JSON does not know, as one that it does; for ``json.dumps(default=plain)``. TypeError if there is no good way."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    iso = getattr(value, "isoformat", None)
    if iso is not None:
        return iso()
    if isinstance(value, bytes | bytearray | memoryview):
        return value.hex()
    return told(value)


def told(value: Any) -> Any:
    """As `plain`, for what has no value of its own in most formats: enumerations, paths, ids, exact numbers, numpy's."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal | UUID | PurePath) or type(value).__module__ == "ipaddress":
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    listed = getattr(value, "tolist", None)  # numpy's scalars and arrays, tensors, the standard library's arrays
    if listed is not None:
        return listed()
    if type(value).__name__ == "NAType":  # what pandas has for missing
        return None
    message = f"expected something that JSON can hold, got: a value of type {type(value).__name__}"
    raise TypeError(message)


def row_of(value: Any, where: str) -> Mapping[Any, Any]:
    """The columns of an output, with values as Python has them."""
    if isinstance(value, Mapping):
        return value
    fields = fields_of(value)
    if fields is None:
        message = f"the output cannot be a row of {where}: it is a {type(value).__name__}, which has no columns"
        raise PermanentFailure(message, error_class="validation_error")
    return fields


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, a model or a named tuple; None for anything else."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    fields = getattr(value, "model_dump", None) or (isinstance(value, tuple) and getattr(value, "_asdict", None))
    return dict(fields()) if fields else None
