"""
From a text to the thing it names: ``shop.steps:label``, ``shop.steps.label`` or ``app.py:label``.

What is wrong with the text is raised as Python has it: ValueError, ImportError, AttributeError, or what the module
itself raises.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def import_name(text: Any) -> Any:
    """The thing itself. Without a colon the last part is the name."""
    if not isinstance(text, str) or not text.strip(".:"):
        raise ValueError("no path")
    where, name = parted(text)
    if not name and not is_file(where):
        where, _, name = where.rpartition(".")
    return attribute(load_module(where), name)


def parted(text: str) -> tuple[str, str]:
    """What is before the colon and what is after it; the colon after a drive separates nothing."""
    where, colon, name = text.rpartition(":")
    if not colon or (len(where) == 1 and name.startswith(("\\", "/"))):
        return text, ""
    return where, name


def is_file(where: str) -> bool:
    """Whether this is written as a file rather than as a module."""
    return where.endswith(".py") or "/" in where or "\\" in where


def load_module(where: str) -> ModuleType:
    """The module of that name or in that file. A file is loaded as if it were run: its neighbours can be imported."""
    if not is_file(where):
        return importlib.import_module(where)
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    path = Path(where)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} is not a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    return module


def attribute(thing: Any, name: str) -> Any:
    """What a thing has under a dotted name."""
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing
