"""
Rows that people typed: steps that cleanse and check them, and words in which their owner can mend the rest.

    steps     StepResult, RowTransformStep, row_stage: steps one after the other on a copy of the row, all errors at once
    fields    steps for one field each: required, number, one_of, matching; columns; cleanse, a chain of at most two fallbacks
    dates     year_month: what people write for a month, as YYYYMM
    models    from_model: a pydantic model as a step, its complaints in plain sentences

The errors themselves, and the file they go to, are those of every run (`outlast.pipeline.record.rowerrors`,
`outlast.pipeline.record.errorfile`).
"""

from __future__ import annotations

from outlast.pipeline.record.rowerrors import InvalidRow as InvalidRow
from outlast.pipeline.record.rowerrors import RowError as RowError
from outlast.rows.dates import year_month as year_month
from outlast.rows.fields import cleanse as cleanse
from outlast.rows.fields import columns as columns
from outlast.rows.fields import matching as matching
from outlast.rows.fields import number as number
from outlast.rows.fields import one_of as one_of
from outlast.rows.fields import required as required
from outlast.rows.models import from_model as from_model
from outlast.rows.steps import RowTransformStep as RowTransformStep
from outlast.rows.steps import StepResult as StepResult
from outlast.rows.steps import StepSkipped as StepSkipped
from outlast.rows.steps import row_stage as row_stage

__all__ = [
    "InvalidRow",
    "RowError",
    "RowTransformStep",
    "StepResult",
    "StepSkipped",
    "cleanse",
    "columns",
    "from_model",
    "matching",
    "number",
    "one_of",
    "required",
    "row_stage",
    "year_month",
]
