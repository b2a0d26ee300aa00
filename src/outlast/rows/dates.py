"""
Months as people write them, read as YYYYMM. What could mean two things is refused: nobody is there to ask.

As it is: 202501 as text or number. Put into order: what begins with the year, with a day or without, and dates of
Python, pandas and numpy. Converted: the Chinese way of writing, digits of full width, Chinese numerals.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from typing import TYPE_CHECKING, Any

from outlast.rows.fields import cleanse

if TYPE_CHECKING:
    from outlast.rows.steps import RowTransformStep

# Six digits of another meaning (day, month and a short year) must not pass for a year far away. 9999 stands for "no
# end" in many tables.
_YEARS = range(1900, 2200)
_NO_END = 9999
_LONGEST = 100  # characters of what may be a date

_MONTH = re.compile(r"(\d{4})(\d{2})", re.ASCII)
_DAY = re.compile(r"(\d{4})(\d{2})(\d{2})", re.ASCII)
_TIME = r"(?:[T ]\s*\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?\s*(?:Z|UTC|[+-]\d{2}:?\d{2})?)?"
_PARTS = re.compile(rf"(\d{{4}})\s*([-/.])\s*(\d{{1,2}})(?:\s*\2\s*(\d{{1,2}}){_TIME})?", re.ASCII)
_CHINESE = re.compile(
    r"([0-9]{4}|[〇零○一二三四五六七八九]{4})\s*年\s*([0-9]{1,2}|[一二三四五六七八九十]{1,2})\s*月份?\s*"
    r"(?:([0-9]{1,2}|[一二三四五六七八九十廿卅]{1,3})\s*[日号號]?)?"
)
_DIGITS = {digit: place for place, digit in enumerate("〇一二三四五六七八九")} | {"零": 0, "○": 0}


def _formed(year: int, month: int, day: int = 1) -> str:
    """The month of a day that there is in the calendar."""
    if year not in _YEARS and year != _NO_END:
        raise ValueError
    found = date(year, month, day)
    return f"{found.year:04d}{found.month:02d}"


def as_it_is(value: Any) -> str:
    """202501, as text or as a number, also one that a spreadsheet has made 202501.0."""
    text = value if isinstance(value, str) else _digits(value)
    found = _MONTH.fullmatch(text)
    if found is None:
        raise ValueError
    return _formed(int(found[1]), int(found[2]))


def _digits(value: Any) -> str:
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        raise TypeError
    whole = int(value)
    if whole != value or not 0 < whole < 10**8:
        raise ValueError
    return str(whole)


def in_order(value: Any) -> str:
    """Text that begins with the year, with or without a day; a date; a number of eight digits."""
    if isinstance(value, str):
        return _in_order(value.strip())
    if type(value).__name__ == "datetime64":
        return _in_order(str(value))
    if hasattr(value, "year") and hasattr(value, "month"):
        # A date is what it says: nothing is guessed, so any year will do.
        return f"{int(value.year):04d}{int(value.month):02d}"
    return _in_order(_digits(value))


def _in_order(text: str) -> str:
    found = _MONTH.fullmatch(text) or _DAY.fullmatch(text)
    if found is not None:
        return _formed(*map(int, found.groups()))
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise ValueError
    year, mark, month, day = parts.groups()
    if day is None and mark == "." and len(month) == 1:  # 2025.1 may have been 2025.10 before a spreadsheet saw it
        raise ValueError
    return _formed(int(year), int(month), int(day or 1))


def chinese(value: Any) -> str:
    """
    2025年01月, with a day or without, in digits of any width or in Chinese numerals; and full-width spellings of the
    others.
    """
    if len(value) > _LONGEST:
        raise ValueError
    text = unicodedata.normalize("NFKC", value).strip()
    found = _CHINESE.fullmatch(text)
    if found is None:
        return _in_order(text)
    year, month, day = found.groups()
    numerals = int(year) if year.isdecimal() else int("".join(str(_DIGITS[digit]) for digit in year))
    return _formed(numerals, _numeral(month), 1 if day is None else _numeral(day))


def _numeral(text: str) -> int:
    """1 to 99 in digits or as 九, 十一, 二十, 廿三."""
    if text.isdecimal():
        return int(text)
    text = text.replace("廿", "二十").replace("卅", "三十")
    tens, ten, ones = text.rpartition("十")
    if len(tens) > 1 or len(ones) > 1:
        raise ValueError
    return (_DIGITS[tens] if tens else 1 if ten else 0) * 10 + (_DIGITS[ones] if ones else 0)


def year_month(field: str, *, optional: bool = False) -> RowTransformStep:
    """
    A step that makes YYYYMM of what people write for a month: "202501" stays; "2025-01-15", "2025/1" or a date is put
    into order (warning "Date format cleansed"); "2025年1月" or "二〇二五年一月" is converted (warning "Chinese date converted").
    "01/02/2025" is refused: it may be January or February.
    """
    return cleanse(
        field,
        as_it_is,
        (in_order, "Date format cleansed"),
        (chinese, "Chinese date converted"),
        what="date",
        expected="YYYYMM",
        example="202501",
        optional=optional,
    )
