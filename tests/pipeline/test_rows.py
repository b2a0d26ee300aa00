"""Row steps in a run: cleansed copies, all errors of a row at once, retries for what a step raises, and never a failed row behind its stage."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass

import pydantic
import pytest

import outlast
from outlast import testing
from outlast.rows import (
    InvalidRow,
    RowError,
    StepSkipped,
    cleanse,
    columns,
    from_model,
    number,
    required,
    row_stage,
    year_month,
)
from tables import table

GOOD = {"report_date": "202501", "plan_code": "P-1", "scale": 3}
CHECKS = (required("plan_code"), year_month("report_date"), number("scale", low=0))
PARSE = "Field 'report_date': Cannot parse '{}' as date. Expected format: YYYYMM. Example: 202501"


def run(stage, rows, *more, **options):
    return testing.run(outlast.Pipeline("rows", stage, *more, **options), rows)


def only(result):
    items = list(result.items())
    assert len(items) == 1
    return items[0]


# --- what a step is ---


def test_step_says_what_it_made_of_a_row():
    """S2-23: apply(row, context) returns a row, warnings and errors; the context is that of the running attempt."""
    seen = []

    class Trim(outlast.RowTransformStep):
        def apply(self, row, context):
            seen.append((context.stage, context.attempt, context.item_key))
            return outlast.StepResult(row=row | {"name": row["name"].strip()}, warnings=["Name trimmed"])

    item = only(run(row_stage(Trim(), name="tidy"), [{"name": " ann "}]))
    assert (item.status, item.value, item.warnings) == ("succeeded", {"name": "ann"}, ("Name trimmed",))
    assert seen == [("tidy", 1, item.key)]


@table(
    "step",
    [
        lambda row: row | {"a": 2},
        lambda row, context: row | {"a": 2},
        lambda row, *, factor=2: {"a": row["a"] * factor},
        lambda row: outlast.StepResult({"a": 2}),
    ],
)
def test_function_of_a_row_is_a_step(step):
    """S2-23: with or without the context, returning a row or a StepResult."""
    assert only(run(row_stage(step), [{"a": 1}])).value == {"a": 2}


def test_anything_with_apply_is_a_step_and_one_that_awaits_makes_the_stage_async():
    """Steps need not inherit; sync and async ones mix (S2-23)."""

    class Looked:
        name = "looked up"

        async def apply(self, row, context):
            return outlast.StepResult(row | {"b": 1})

    stage = row_stage(Looked(), lambda row: row | {"c": 2})
    assert stage.is_async
    assert only(run(stage, [{"a": 0}])).value == {"a": 0, "b": 1, "c": 2}


def test_step_is_called_by_its_class_or_as_it_says():
    """A name may be given on the class, in __init__ or by a property; records and messages use it (S2-23)."""

    class Plain(outlast.RowTransformStep):
        def apply(self, row, context):
            raise StepSkipped("no")

    class Given(Plain):
        def __init__(self):
            self.name = "given"

    class Told(Plain):
        @property
        def name(self):
            return "told"

    item = only(run(row_stage(Plain(), Given(), Told()), [{}]))
    assert item.warnings == tuple(f"Step {name} was skipped: no" for name in ("Plain", "given", "told"))


def test_step_that_returns_no_row_is_the_programmers_mistake():
    """A forgotten return must not make an empty row."""
    item = only(run(row_stage(lambda row: None), [{"a": 1}]))
    assert item.status == "dlq"
    assert "to return a row or a StepResult, got: a value of type NoneType" in item.error
    assert item.attempts == 1


def test_all_mistakes_in_a_stage_of_steps_are_told_at_once():
    """A class instead of a step, a generator, a number."""

    def gives(row):
        yield row

    with pytest.raises(outlast.ConfigurationError) as wrong:
        row_stage(outlast.RowTransformStep, gives, 3, name="")
    assert len(wrong.value.problems) == 4
    with pytest.raises(outlast.ConfigurationError, match="at least one step"):
        row_stage()


def test_what_is_no_row_is_told_as_such():
    """An item without named columns fails as invalid and crashes nothing."""
    result = run(row_stage(required("a")), ["text", None, 7])
    assert [item.status for item in result.items()] == ["dlq"] * 3
    assert {line.message for line in result.errors()} == {
        f"expected a row with named columns, got: a value of type {kind}." for kind in ("str", "NoneType", "int")
    }


# --- the row ---


@dataclass
class Holder:
    values: list


def test_steps_work_on_a_copy_of_the_row():
    """S2-23: neither the caller's row nor what it holds is changed, whatever a step does to its own."""
    holder = Holder([1])
    row = {"tags": ["a"], "inner": {"x": 1}, "holder": holder, "lock": threading.Lock()}

    def spoil(given):
        given["tags"].append("b")
        given["inner"]["x"] = 2
        given["holder"].values.append(2)
        given.pop("lock")
        del given["holder"]
        return given

    result = run(row_stage(spoil), [row])
    assert only(result).value == {"tags": ["a", "b"], "inner": {"x": 2}}
    assert (row["tags"], row["inner"], holder.values) == (["a"], {"x": 1}, [1])


def test_dead_letter_keeps_the_row_as_it_came_in():
    """What is mended is the source, so the record has the row before any step (S2-22)."""

    def spoil(row):
        row["tags"].append("b")
        return row

    result = run(row_stage(spoil, required("plan")), [{"tags": ["a"], "plan": ""}])
    assert [line.raw_row for line in result.errors()] == [{"tags": ["a"], "plan": ""}]


def test_skipped_step_leaves_the_row_as_it_was_and_a_warning():
    """An optional step that cannot do its work is passed over: half of its changes are not kept."""

    def enrich(row):
        row["city"] = "half"
        raise StepSkipped("no lookup table today")

    item = only(run(row_stage(enrich, lambda row: row | {"b": 1}), [{"a": 1}]))
    assert (item.status, item.value) == ("succeeded", {"a": 1, "b": 1})
    assert item.warnings == ("Step enrich was skipped: no lookup table today",)


def test_skip_of_a_row_is_still_a_skip():
    """A step may say that the whole row is not wanted."""

    def wanted(row):
        raise outlast.Skip("a total, not a row")

    assert only(run(row_stage(wanted), [{"a": 1}])).status == "skipped"


# --- errors ---


def test_errors_fail_the_row_once_and_for_all_with_all_of_them():
    """S2-22, C-18: one execution, no retry, class validation_error, every error of the row at once, in the words of the message format."""
    executions = []

    def count(row):
        executions.append(row)
        return row

    with testing.capture_events() as events:
        result = run(row_stage(count, *CHECKS), [{"report_date": "garbage", "plan_code": "", "scale": -100.5}])
    assert len(executions) == 1
    assert [line.message for line in result.errors()] == [
        "Field 'plan_code': A value is required, but it is empty.",
        PARSE.format("garbage"),
        "Field 'scale': Must be non-negative, got '-100.5'. Expected: a number of at least 0. Example: 0",
    ]
    assert [(line.field, line.error_type, line.original_value) for line in result.errors()] == [
        ("plan_code", "missing", ""),
        ("report_date", "format", "garbage"),
        ("scale", "range", "-100.5"),
    ]
    assert [group.error_class for group in result.groups] == ["validation_error"]
    assert "step_retry_attempt" not in [event.name for event in events]


def test_failed_row_reaches_neither_the_next_stage_nor_the_output():
    """C-17: of ten rows three are wrong, seven come out, and the next stage sees seven (S2-22)."""
    seen = []

    @outlast.stage
    async def load(row: dict) -> dict:
        seen.append(row["plan_code"])
        return row

    rows = [GOOD | {"plan_code": "" if place in {2, 5, 9} else f"P-{place}"} for place in range(10)]
    result = run(row_stage(*CHECKS), rows, load)
    valid = [f"P-{place}" for place in (0, 1, 3, 4, 6, 7, 8)]
    assert [row["plan_code"] for row in result.outputs()] == valid
    assert sorted(seen) == valid
    assert [line.row_index for line in result.errors()] == [2, 5, 9]


def test_a_step_of_ones_own_does_not_see_a_row_that_is_known_to_be_wrong():
    """Follow-up errors and lookups with wrong values would only confuse; the checks of fields go on, so that all errors are told."""
    seen = []

    def look_up(row):
        seen.append(row)
        return row

    steps = (year_month("report_date"), look_up, required("plan_code"))
    result = run(row_stage(*steps), [{"report_date": "x", "plan_code": ""}])
    assert seen == []
    assert [line.field for line in result.errors()] == ["report_date", "plan_code"]


def test_a_field_is_complained_about_once():
    """What is empty is not also called unreadable."""
    steps = (required("report_date"), year_month("report_date"), number("scale"))
    result = run(row_stage(*steps), [{"report_date": "", "scale": "x"}])
    assert [(line.field, line.error_type) for line in result.errors()] == [
        ("report_date", "missing"),
        ("scale", "format"),
    ]


def test_a_model_adds_what_is_not_known_yet():
    """Steps of several kinds make one list."""

    class Plan(pydantic.BaseModel):
        plan_code: str = pydantic.Field(min_length=1)
        scale: float

    result = run(row_stage(required("plan_code"), from_model(Plan)), [{"plan_code": "", "scale": "x"}])
    assert [(line.field, line.error_type) for line in result.errors()] == [
        ("plan_code", "missing"),
        ("scale", "format"),
    ]


def test_a_step_that_fails_because_the_row_is_wrong_hides_no_error():
    """What was found before a step broke is told."""

    class Eager(outlast.RowTransformStep):
        despite_errors = True

        def apply(self, row, context):
            raise ZeroDivisionError

    result = run(row_stage(required("a"), Eager()), [{"a": ""}])
    assert [line.message for line in result.errors()] == ["Field 'a': A value is required, but it is empty."]


def test_sentences_and_values_are_errors_alike():
    """A sentence in the usual form says which field it is about (S2-23)."""

    def check(row):
        return outlast.StepResult(row, errors=["Field 'scale': Too odd", RowError("No", "b", "own"), "Anything"])

    result = run(row_stage(check), [{"scale": 1}])
    assert [(line.field, line.error_type) for line in result.errors()] == [
        ("scale", "invalid"),
        ("b", "own"),
        (None, "invalid"),
    ]


def test_value_error_of_a_step_costs_one_execution_and_names_its_field():
    """S2-22: what a step raises about the data is as permanent as what it returns."""
    calls = []

    def check(row):
        calls.append(row)
        raise ValueError("Field 'scale': Must be non-negative")

    result = run(row_stage(check), [{"scale": -1}])
    assert len(calls) == 1
    assert [(line.field, line.message) for line in result.errors()] == [
        ("scale", "Field 'scale': Must be non-negative")
    ]


def test_rows_with_one_problem_are_one_group_and_fields_are_told_apart():
    """Values differ from row to row; fields and kinds are the problem."""
    rows = [GOOD | {"report_date": f"bad {place}"} for place in range(3)] + [GOOD | {"plan_code": ""}] * 2
    result = run(row_stage(*CHECKS), rows)
    assert [group.count for group in result.groups] == [3, 2]


def test_sentences_of_ones_own_are_grouped_by_what_they_say():
    """Two rules for one field are two problems, whatever the values are."""

    def check(row):
        said = f"Field 'a': '{row['a']}' is odd" if row["a"] % 2 else f"No {row['a']} here"
        return outlast.StepResult(row, errors=[said])

    result = run(row_stage(check), [{"a": value} for value in (1, 2, 3, 4, 5)])
    assert [group.count for group in result.groups] == [3, 2]


def test_invalid_row_can_travel():
    """An error that crosses processes keeps what it knows."""
    error = InvalidRow(["Field 'a': No.", RowError("Never.", "b", "own", "7")])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.errors, again.error_class) == (
        "Field 'a': No; Never",
        error.errors,
        "validation_error",
    )


# --- retries ---


def test_retriable_error_inside_a_step_is_retried_by_the_stage():
    """A lookup that fails twice is tried again with the row as it came in, and what was cleansed is warned about once (S2-23)."""
    calls = []

    def look_up(row):
        calls.append(dict(row))
        row["seen"] = True
        if len(calls) < 3:
            raise ConnectionResetError
        return row

    item = only(run(row_stage(year_month("report_date"), look_up), [{"report_date": "2025-01-15"}]))
    assert (item.status, item.attempts) == ("succeeded", 3)
    assert calls == [{"report_date": "202501"}] * 3
    assert item.warnings == ("Date format cleansed",)


def test_lookup_that_keeps_failing_ends_as_any_stage_does():
    """Retries are bounded by the policy of the stage, and the error is the lookup's own (S2-23)."""

    def look_up(row):
        raise TimeoutError("no answer")

    stage = row_stage(look_up, retry=outlast.RetryPolicy(max_attempts=4, jitter=0))
    item = only(run(stage, [{"a": 1}]))
    assert (item.status, item.attempts) == ("dlq", 4)
    assert "TimeoutError: no answer" in item.error


def test_cleansing_is_no_retry():
    """C-18, S2-21: at most two fallbacks, at once, no attempt more and no retry told; the outcome is a warning on the item."""
    with testing.virtual_time() as time, testing.capture_events() as events:
        result = outlast.Pipeline("rows", row_stage(year_month("report_date"))).tested(
            [{"report_date": "2025年01月"}], {}
        )
    item = only(result)
    assert (item.value, item.warnings) == ({"report_date": "202501"}, ("Chinese date converted",))
    assert (item.attempts, time.now) == (1, 0.0)
    assert {event.name for event in events} <= {"run_started", "run_finished", "item_succeeded"}


def test_chain_has_at_most_two_fallbacks_and_tries_them_in_order():
    """C-18: as it is, then the first, then the second; a third is refused when the chain is made."""
    tried = []

    def way(name):
        def parse(value):
            tried.append(name)
            raise ValueError

        return parse

    chain = {"what": "code", "expected": "ABC", "example": "XYZ"}
    step = cleanse("code", way("as is"), (way("first"), "1"), (way("second"), "2"), **chain)
    result = run(row_stage(step), [{"code": "?"}])
    assert tried == ["as is", "first", "second"]
    assert [line.message for line in result.errors()] == [
        "Field 'code': Cannot parse '?' as code. Expected format: ABC. Example: XYZ"
    ]
    with pytest.raises(outlast.ConfigurationError, match="at most 2"):
        cleanse("code", way("as is"), *[(way("more"), "w")] * 3, **chain)


def test_lookup_in_a_chain_is_retried_and_no_verdict_on_the_value():
    """C-18: only what says that a value cannot be read moves on to the next parser."""
    answers = iter([TimeoutError(), "known"])

    def parse(value):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    step = cleanse("code", parse, (str.upper, "Upper"), what="code", expected="ABC", example="XYZ")
    item = only(run(row_stage(step), [{"code": "x"}]))
    assert (item.value, item.attempts, item.warnings) == ({"code": "known"}, 2, ())


def test_columns_that_are_missing_or_too_many_are_named_with_the_nearest_right_name():
    """A misspelt heading is the most common mistake of all."""
    result = run(row_stage(columns("plan_code", "scale")), [{"plan_cod": "P", "scale": 1, "zzz": 2}])
    assert [line.message for line in result.errors()] == [
        "Field 'plan_code': The column is missing. Is it 'plan_cod'?",
        "Field 'plan_cod': The column is not expected. Did you mean 'plan_code'?",
        "Field 'zzz': The column is not expected. Expected: plan_code, scale",
    ]
