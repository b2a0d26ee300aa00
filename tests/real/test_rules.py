"""The rules name types that the libraries really have: a misspelt name would never match."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from outlast.verdicts import rules
from tables import table

NOT_HERE = {
    "MySQLdb": "a C extension that needs a compiler; it raises what PyMySQL raises",
    "pydantic.error_wrappers": "pydantic 1, whose place pydantic 2 takes; its copy pydantic.v1 is checked",
    "psycopg_pool": "an extra of psycopg",
}
NAMES = sorted({*rules.TYPES, *rules.WRAPPERS, *rules.CARRIERS, *rules.NOT_A_STATUS, *rules.NOT_AN_ERRNO})
LIBRARIES = sorted({name.partition(".")[0] for name in NAMES} - sys.stdlib_module_names - {"outlast"})


@pytest.mark.xdist_group("model apis")  # whose clients take longest to load
@table("library", LIBRARIES)
def test_every_type_in_the_rules_exists_under_its_canonical_name(library: str) -> None:
    """C-08: dotted names, because nothing is imported to recognise a type; here everything is."""
    wrong = []
    for dotted in NAMES:
        module, _, name = dotted.rpartition(".")
        if dotted.partition(".")[0] == library and not any(module.startswith(absent) for absent in NOT_HERE):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = getattr(importlib.import_module(module), name, None)
            if found is None or f"{found.__module__}.{found.__qualname__}" != dotted:
                wrong.append(dotted)
    assert wrong == []
