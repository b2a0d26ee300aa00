"""
The cases of a statement that differ in their values alone: one test for all of them here, a test for each of them where libraries are compared, so
that a peer which lacks what one case needs still answers the others.
"""

from __future__ import annotations

import os

import pytest

from tables import table

cases = pytest.mark.parametrize if "CONFORMANCE" in os.environ else table
