"""Tables of cases: no row is left out, and each that is wrong is named."""

from __future__ import annotations

import pytest

from tables import table


def test_every_row_is_checked_and_those_that_are_wrong_are_named():
    """Rows behind a wrong one are checked too, whatever it raised, and tables may be put on top of each other."""
    seen = []

    @table("sign", [1, -1], ids=["plus", "minus"])
    @table(("left", "right"), [(1, 1), (2, 3), pytest.param(4, 4, id="fours"), (5, None)])
    def equal(sign, left, right):
        seen.append((sign, left))
        with pytest.raises(ZeroDivisionError):
            left / (right - right)
        assert left * sign == right

    with pytest.raises(AssertionError) as caught:
        equal()
    assert seen == [(sign, left) for sign in (1, -1) for left in (1, 2, 4, 5)]
    assert equal.rows == 8
    said = str(caught.value)
    assert said.startswith("2 of 2 rows are wrong:\nplus: AssertionError: 2 of 4 rows are wrong:\n2, 3: AssertionError")
    assert "5, None: TypeError" in said
    assert "minus: AssertionError: 4 of 4 rows are wrong:" in said
    assert "fours: AssertionError: assert" in said


def test_a_row_that_does_not_raise_as_it_should_is_wrong():
    """Neither is a table without rows, or for other parameters, taken for a good one."""

    @table("number", [0, 1])
    def divide(number):
        with pytest.raises(ZeroDivisionError):
            1 / number

    with pytest.raises(AssertionError, match=r"1 of 2 rows are wrong:\n1: Failed: DID NOT RAISE"):
        divide()
    with pytest.raises(AssertionError, match="without rows"):
        table("number", [])
    with pytest.raises(AssertionError, match=r"expected parameters called \['other'\]"):
        table("other", [1])(lambda number: None)
