"""What every test gets. Time limits, random order and warnings as errors are set in pyproject.toml."""

from __future__ import annotations

from hypothesis import settings

# The machine may be busy: a slow example is no finding, and the time limit of the test catches a hanging one.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
