"""What every test of runs gets: an app with a store of its own."""

from __future__ import annotations

import pytest

import outlast


@pytest.fixture
def app(tmp_path):
    """An app whose store is in this test's own folder."""
    made = outlast.App("tests", store=str(tmp_path / "outlast.db"))
    yield made
    made.store.close()
