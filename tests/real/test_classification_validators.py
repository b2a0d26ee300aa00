"""Verdicts on what pydantic and jsonschema really raise."""

from __future__ import annotations

import warnings

import jsonschema
import pydantic

from real.expected import check, raised_by

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the old interface warns about newer Pythons
    import pydantic.v1


class Item(pydantic.BaseModel):
    amount: int


class OldItem(pydantic.v1.BaseModel):
    amount: int


def test_data_that_does_not_fit_a_pydantic_model_is_validation_error() -> None:
    """C-07: from Python values, from JSON text, and through a type adapter."""
    check(raised_by(lambda: Item(amount="many")), "validation_error")
    check(raised_by(lambda: Item.model_validate_json('{"amount": "many"}')), "validation_error")
    check(raised_by(lambda: pydantic.TypeAdapter(int).validate_python("many")), "validation_error")


def test_the_older_interface_of_pydantic_is_validation_error_as_well() -> None:
    """C-07: pydantic.v1 has a type of its own."""
    check(raised_by(lambda: OldItem(amount="many")), "validation_error")


def test_a_model_that_cannot_be_built_is_code_error() -> None:
    """D-3: the program is wrong, not the data."""
    check(raised_by(lambda: type("Wrong", (pydantic.BaseModel,), {"amount": 5})), "code_error")


def test_data_that_does_not_fit_a_json_schema_is_validation_error() -> None:
    """C-07: the document is wrong."""
    check(
        raised_by(lambda: jsonschema.validate({"amount": "many"}, {"properties": {"amount": {"type": "integer"}}})),
        "validation_error",
    )


def test_a_json_schema_that_is_none_is_code_error() -> None:
    """D-3: the schema is part of the program."""
    check(raised_by(lambda: jsonschema.validate({}, {"type": 5})), "code_error")
