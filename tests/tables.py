"""
A table of cases as one test: every row is checked, and all rows that are wrong are listed at once.

    @table(("status", "error_class"), [(429, "rate_limited"), (503, "unavailable")])
    def test_status(status, error_class):
        assert classify(status).error_class == error_class

It takes what `pytest.mark.parametrize` takes and costs a hundredth of it for each row. What a test is given beside its row is the same for
all rows, so rows that need fixtures of their own are cases of their own.
"""

from __future__ import annotations

import functools
import inspect

import pytest


def table(names, rows, *, ids=None):
    """The test for each of these rows, all of them in one go."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    ids = ids if ids is None or callable(ids) else list(ids)
    cases = [_case(row, number, len(wanted), ids) for number, row in enumerate(rows)]
    assert cases, "a table without rows checks nothing"

    def decorate(test):
        @functools.wraps(test)
        def every_row(*self, **given):
            wrong, first = [], None
            for label, values in cases:
                try:
                    test(*self, **given, **dict(zip(wanted, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever is wrong with a row
                    wrong.append(f"{label}: {type(error).__name__}: {error}")
                    first = first or error
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(cases)} rows are wrong:\n" + "\n".join(wrong)) from first

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        assert len(left) == len(signature.parameters) - len(wanted), f"expected parameters called {wanted}"
        every_row.__signature__ = signature.replace(parameters=left)
        every_row.rows = len(cases) * getattr(test, "rows", 1)
        return every_row

    return decorate


def _case(row, number, width, ids):
    """What a row is called in a message, and its values."""
    label, values = None, (row,) if width == 1 else row
    if isinstance(row, type(pytest.param())):
        assert not row.marks
        label, values = row.id, row.values
    if label is None and ids is not None:
        label = "-".join(str(ids(value)) for value in values) if callable(ids) else ids[number]
    return label or ", ".join(repr(value)[:80] for value in values), tuple(values)
