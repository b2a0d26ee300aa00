"""What steps make of one field: dates that people typed, numbers, choices, forms, and models whose complaints anyone can read."""

# ruff: noqa: RUF001 - characters that look alike are what this is about

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Literal

import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.rows import from_model, matching, number, one_of, required, year_month
from tables import table

CLEANSED, CHINESE = "Date format cleansed", "Chinese date converted"
MONTH = year_month("d")


def read(step, value, field="d"):
    """What a step makes of a value: (the new value, warnings, messages)."""
    result = step.apply({field: value}, outlast.current())
    return result.row[field], list(result.warnings), [error.message for error in result.errors]


# --- months ---

DATES = [
    ("202501", None),
    (202501, None),
    (202501.0, None),
    (Decimal(202501), None),
    (np.int64(202501), None),
    (np.float64(202501), None),
    ("2025-01-15", CLEANSED),
    ("2025-01", CLEANSED),
    ("2025/01/15", CLEANSED),
    ("2025/1", CLEANSED),
    ("2025.1.5", CLEANSED),
    ("2025.01", CLEANSED),
    ("20250115", CLEANSED),
    (20250115, CLEANSED),
    (" 202501\t", CLEANSED),
    ("2025-01-15 00:00:00", CLEANSED),
    ("2025-01-15T10:30:00.123456Z", CLEANSED),
    ("2025-01-15T10:30:00+08:00", CLEANSED),
    (dt.date(2025, 1, 15), CLEANSED),
    (dt.datetime(2025, 1, 15, 10, tzinfo=dt.UTC), CLEANSED),
    (pd.Timestamp("2025-01-15 10:00"), CLEANSED),
    (pd.Period("2025-01", "M"), CLEANSED),
    (np.datetime64("2025-01-15"), CLEANSED),
    (np.datetime64("2025-01"), CLEANSED),
    (np.datetime64("2025-01-15T10:00:00.000000000"), CLEANSED),
    ("2025年01月", CHINESE),
    ("2025年1月", CHINESE),
    ("2025年1月15日", CHINESE),
    ("2025 年 1 月 15 号", CHINESE),
    ("２０２５年０１月", CHINESE),
    ("２０２５０１", CHINESE),
    ("２０２５－０１－１５", CHINESE),
    ("二〇二五年一月", CHINESE),
    ("二零二五年一月十五日", CHINESE),
    ("二〇二五年一月廿三日", CHINESE),
    ("2025年一月份", CHINESE),
]


@table(("value", "warning"), DATES)
def test_month_is_read_however_it_was_typed(value, warning):
    """S2-21: as it is, put into order, or converted; always YYYYMM, with the warning that says which."""
    assert read(MONTH, value) == ("202501", [warning] if warning else [], [])


@pytest.mark.parametrize("month", ["十月", "十一月", "十二月"])
def test_chinese_months_go_to_twelve(month):
    """Ten, eleven, twelve are written with the sign for ten (S2-21)."""
    number = {"十月": "10", "十一月": "11", "十二月": "12"}[month]
    assert read(MONTH, f"二〇二五年{month}")[0] == f"2025{number}"


REFUSED = [
    "", " ", "garbage", "NaN", "None", "2025", "2025年", "25年1月", "202513", "202500", "000001", "2025-13", "2025-02-30", "2025-00-10",
    "20250230", "01/02/2025", "15.01.2025", "1/2025", "Jan 2025", "2025.1", "2025-01/15", "251201", "20251", "2025011", "45672", "2025-1-1-1",
    "二〇二五年十三月", "二〇二五年一月三十二日", "2025年13月", "民国114年1月", "٢٠٢٥٠١", "²⁰²⁵⁰¹x", "-202501", "202501.5", "2025-01-15T99", "=1+1",
]  # fmt: skip


@table("value", REFUSED)
def test_what_is_no_month_or_could_be_two_is_refused_in_the_agreed_words(value):
    """S2-24: nothing is guessed, and the message is always the same sentence."""
    message = f"Field 'd': Cannot parse '{value}' as date. Expected format: YYYYMM. Example: 202501"
    assert read(MONTH, value) == (value, [], [message])


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")


ODD = [
    (None, "None"),
    (True, "True"),
    (np.bool_(False), "False"),
    (float("nan"), "nan"),
    (float("inf"), "inf"),
    (202501.5, "202501.5"),
    (-202501, "-202501"),
    (0, "0"),
    (pd.NaT, "NaT"),
    (pd.NA, "<NA>"),
    (np.datetime64("NaT"), "NaT"),
    (b"202501", "b'202501'"),
    ([202501], "[202501]"),
    ({"y": 2025}, "{'y': 2025}"),
    (object, "<class 'object'>"),
    (Hostile(), "<Hostile>"),
    (10**5000, "<int>"),
    ("a\nb\u202ec\x00", "a\\nb\\u202ec\\u0000"),
    ("x" * 500, "x" * 59 + "…"),
]


@table(("value", "text"), ODD, ids=[str(place) for place in range(len(ODD))])
def test_odd_values_are_refused_and_crash_nothing(value, text):
    """S2-24, S2-21: values that are no text, long ones, and ones that cannot be seen."""
    _, warnings, errors = read(MONTH, value)
    assert warnings == []
    assert errors == [f"Field 'd': Cannot parse '{text}' as date. Expected format: YYYYMM. Example: 202501"]


@table("text", ["1" * 10**6, "2025-01" + " " * 10**6 + "x", "2025年" * 10**5, " " * 10**6, "㍻" * 10**5])
def test_hostile_text_does_not_stall_a_step(text):
    """Nothing that long is a date, a number or a choice."""
    for step in (MONTH, number("d"), one_of("d", ["a"])):
        assert read(step, text)[2] != []


def test_missing_column_of_a_month_is_told_in_the_same_words():
    """S2-24: a sample that crashed on a missing value must not come back."""
    result = MONTH.apply({"other": 1}, outlast.current())
    assert [error.message for error in result.errors] == [
        "Field 'd': Cannot parse 'None' as date. Expected format: YYYYMM. Example: 202501"
    ]


def test_empty_month_may_be_allowed():
    """Not every row has a date."""
    step = year_month("d", optional=True)
    assert [read(step, value)[2] for value in (None, "", float("nan"), pd.NaT)] == [[]] * 4
    assert step.apply({}, outlast.current()).errors == []
    assert read(step, "x")[2] != []


anything = st.one_of(
    st.text(),
    st.text(alphabet="0123456789-/.年月日〇一二三十 :TZ０１２", max_size=14),
    st.integers(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.none(),
    st.booleans(),
    st.decimals(),
    st.binary(),
    st.lists(st.integers()),
)


@given(anything)
def test_a_month_comes_out_as_yyyymm_or_not_at_all(value):
    """S2-21: whatever comes in, what comes out is a month or an error, and reading it again changes nothing."""
    found, warnings, errors = read(MONTH, value)
    if errors:
        assert warnings == []
        assert found is value
    else:
        assert re.fullmatch(r"\d{4}(0[1-9]|1[0-2])", found)
        if 1900 <= int(found[:4]) < 2200:
            assert read(MONTH, found) == (found, [], [])


@given(st.dates(dt.date(1900, 1, 1), dt.date(2199, 12, 31)), st.sampled_from("-/."), st.booleans())
def test_every_day_is_read_in_every_order_that_begins_with_the_year(day, mark, padded):
    """No day of the calendar is lost (S2-21)."""
    month, date = (f"{day.month:02}", f"{day.day:02}") if padded else (str(day.month), str(day.day))
    for text in (f"{day.year}{mark}{month}{mark}{date}", f"{day:%Y%m%d}", f"{day.year}年{month}月{date}日"):
        assert read(MONTH, text)[0] == f"{day:%Y%m}"


# --- other fields ---


@table("value", [None, "", "  ", "\u3000", float("nan"), pd.NA, pd.NaT, np.float64("nan")])
def test_required_value_must_be_there(value):
    """S2-22: nothing, only space, and what tables have for nothing."""
    assert read(required("d", example="P-1"), value)[2] == [
        "Field 'd': A value is required, but it is empty. Example: P-1"
    ]


@table("value", [0, False, "0", "x", [], np.int64(0)])
def test_zero_is_a_value(value):
    """What is false in Python is not empty in a table."""
    assert read(required("d"), value)[2] == []


@table(
    ("value", "found", "warned"),
    [(3, 3, False), ("3", 3, False), ("-3.5", -3.5, False), (".5", 0.5, False), ("1e3", 1000.0, False), (Decimal("2.5"), Decimal("2.5"), False),
     ("1,234,567.5", 1234567.5, True), (" 12 ", 12, True), ("１２", 12, True), ("\u22125", -5, True)],
)  # fmt: skip
def test_number_is_read(value, found, warned):
    """Text becomes a number; what was put right is warned about (S2-22)."""
    assert read(number("d"), value) == (found, ["Number format cleansed"] if warned else [], [])


@table(
    "value",
    ["", None, "x", True, float("nan"), "inf", "1.234,5", "1,23", "12 34", "0x10", "9" * 400, [], "1_000", np.True_],
)
def test_what_is_no_number_is_refused(value):
    """A mark that means something else elsewhere is not guessed (S2-22)."""
    assert "is no number. Expected: a number. Example: 0" in read(number("d"), value)[2][0]


def test_bounds_of_a_number_are_told():
    """S2-22: negative, too large, not whole; with the expected range and an example that is in it."""
    assert read(number("d", low=0), -100.5)[2] == [
        "Field 'd': Must be non-negative, got '-100.5'. Expected: a number of at least 0. Example: 0"
    ]
    assert read(number("d", low=1, high=12, whole=True), "13")[2] == [
        "Field 'd': Too large, got '13'. Expected: a whole number from 1 to 12. Example: 1"
    ]
    assert read(number("d", whole=True), "1.5")[2] == [
        "Field 'd': '1.5' is no whole number. Expected: a whole number. Example: 0"
    ]
    assert read(number("d", whole=True), "2.0")[0] == 2
    with pytest.raises(outlast.ConfigurationError, match="expected low to be at most high"):
        number("d", low=2, high=1)


def test_choice_is_offered_the_nearest_one():
    """Other case and width are put right; what is close is suggested, not taken."""
    step = one_of("d", ["open", "closed"])
    assert read(step, "open") == ("open", [], [])
    assert read(step, " ＯＰＥＮ") == ("open", ["Spelling cleansed"], [])
    assert read(step, "opne")[2] == [
        "Field 'd': 'opne' is not one of the allowed values. Did you mean 'open'? Expected: open, closed. Example: open"
    ]
    assert read(one_of("d", [1, 2]), True)[2] != []
    assert "and 8 more" in read(one_of("d", [f"c{n}" for n in range(20)]), "x")[2][0]
    with pytest.raises(outlast.ConfigurationError, match="the values that are allowed"):
        one_of("d", "open")


def test_form_is_told_in_words():
    """A regular expression is no explanation."""
    step = matching("d", r"P-\d{3}", expected="P, a dash, three digits", example="P-001")
    assert read(step, "P-123") == ("P-123", [], [])
    assert read(step, "P-123\n")[2] == [
        "Field 'd': 'P-123\\n' does not have the right form. Expected: P, a dash, three digits. Example: P-001"
    ]
    with pytest.raises(outlast.ConfigurationError, match="text that the pattern fits"):
        matching("d", r"\d", expected="a digit", example="x")
    with pytest.raises(outlast.ConfigurationError, match="cannot be read"):
        matching("d", "(", expected="a", example="b")


# --- models ---


class Address(pydantic.BaseModel):
    city: str


class Plan(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    plan_code: str = pydantic.Field(min_length=1)
    scale: float = pydantic.Field(ge=0)
    members: int = pydantic.Field(gt=0, le=500, examples=[12])
    status: Literal["open", "closed"] = "open"
    code: str = pydantic.Field(default="AA", pattern="^[A-Z]{2}$", max_length=5, description="Two capital letters.")
    start: dt.date = dt.date(2025, 1, 1)
    active: bool = True
    price: Decimal = Decimal(1)
    address: Address | None = None
    tags: list[int] = []

    @pydantic.field_validator("scale")
    @classmethod
    def _even(cls, scale: float) -> float:
        if scale == 13:
            raise ValueError("13 is not used here")
        return scale


VALID = {"plan_code": "P", "scale": 1, "members": 3}

COMPLAINTS = [
    ({"scale": -100.5}, "Field 'scale': Must be non-negative, got '-100.5'. Expected: a number of at least 0. Example: 0", "range"),
    ({"scale": "many"}, "Field 'scale': 'many' is no number. Expected: a number. Example: 12.5", "format"),
    ({"scale": 13}, "Field 'scale': 13 is not used here, got '13'.", "invalid"),
    ({"plan_code": ""}, "Field 'plan_code': A value is required, got ''.", "missing"),
    ({"members": "2.5"}, "Field 'members': '2.5' is no whole number. Expected: a whole number. Example: 12", "format"),
    ({"members": 501}, "Field 'members': Too large, got '501'. Expected: at most 500. Example: 12", "range"),
    ({"members": 0}, "Field 'members': Too small, got '0'. Expected: more than 0. Example: 12", "range"),
    ({"status": "opne"}, "Field 'status': 'opne' is not one of the allowed values. Expected: open or closed.", "choice"),
    ({"code": "ab"}, "Field 'code': 'ab' does not have the right form. Expected: Two capital letters.", "format"),
    ({"code": "ABCDEF"}, "Field 'code': Too long, got 'ABCDEF'. Expected: at most 5 characters.", "length"),
    ({"start": "soon"}, "Field 'start': 'soon' is no date. Expected: a date as YYYY-MM-DD. Example: 2025-01-15", "format"),
    ({"active": "perhaps"}, "Field 'active': 'perhaps' is neither yes nor no. Expected: true or false. Example: true", "format"),
    ({"price": "x"}, "Field 'price': 'x' is no number. Expected: a number. Example: 12.5", "format"),
    ({"address": {}}, "Field 'address.city': The column is missing.", "missing"),
    ({"tags": [1, "x"]}, "Field 'tags[1]': 'x' is no whole number. Expected: a whole number. Example: 42", "format"),
    ({"plan_cod": 1}, "Field 'plan_cod': The column is not expected. Did you mean 'plan_code'?", "unexpected"),
]  # fmt: skip


@table(("change", "message", "kind"), COMPLAINTS)
def test_complaint_of_a_model_is_a_sentence_for_its_reader(change, message, kind):
    """Field, what is wrong, what is expected, an example; no word of the library's own (S2-22) (S2-24)."""
    result = from_model(Plan).apply(VALID | change, outlast.current())
    assert [(error.message, error.kind) for error in result.errors] == [(message, kind)]


def test_row_becomes_what_the_model_makes_of_it():
    """Values have their types, defaults are filled in, and the input is as it was."""
    row = {"plan_code": "P", "scale": "2", "members": "3"}
    made = from_model(Plan).apply(row, outlast.current())
    assert (made.row["scale"], made.row["members"], made.row["status"]) == (2.0, 3, "open")
    assert row == {"plan_code": "P", "scale": "2", "members": "3"}


def test_all_complaints_of_a_model_come_at_once_with_the_missing_column_that_is_there_under_another_name():
    """One look at the list is enough."""
    result = from_model(Plan).apply({"plan_cod": "P", "scale": -1, "members": 1}, outlast.current())
    assert [(error.field, error.kind) for error in result.errors] == [
        ("plan_code", "missing"),
        ("scale", "range"),
        ("plan_cod", "unexpected"),
    ]
    assert "Is it 'plan_cod'?" in result.errors[0].message


def test_column_that_a_lax_model_would_pass_over_is_warned_about_if_it_was_meant():
    """A misspelt optional column would otherwise be lost in silence."""

    class Lax(pydantic.BaseModel):
        plan_code: str = "none"

    result = from_model(Lax).apply({"plan_cod": "P", "zzz": 1}, outlast.current())
    assert result.warnings == ["Field 'plan_cod': The column is not used. Did you mean 'plan_code'?"]


def test_model_that_is_none_is_refused():
    """An instance, a dataclass, nothing."""
    for wrong in (None, 3, object, Plan(**VALID)):
        with pytest.raises(outlast.ConfigurationError, match="expected a pydantic model"):
            from_model(wrong)


def test_model_that_checks_the_whole_row_names_no_field():
    """What is wrong between fields belongs to none of them."""

    class Span(pydantic.BaseModel):
        low: int
        high: int

        @pydantic.model_validator(mode="after")
        def _ordered(self):
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    (error,) = from_model(Span).apply({"low": 2, "high": 1}, outlast.current()).errors
    assert error.field is None
    assert error.message == "Low is above high."


@given(st.dictionaries(st.text(max_size=8), anything, max_size=4))
def test_no_row_crashes_a_model(row):
    """Whatever comes in, a row or errors come out (S2-22)."""
    result = from_model(Plan).apply(row, outlast.current())
    assert result.errors
    assert all(error.message for error in result.errors)
