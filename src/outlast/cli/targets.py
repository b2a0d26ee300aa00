"""
From ``app.py:reviews`` or ``shop.pipelines:reviews`` to the pipeline it names.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import error_text
from outlast.pipeline import Pipeline
from outlast.settings.names import is_file, load_module, parted

if TYPE_CHECKING:
    from types import ModuleType


def load(target: str) -> Pipeline[Any, Any]:
    """The pipeline that a person has named; what is wrong with the name is said in one sentence."""
    where, name = parted(target)
    module = _file(where) if is_file(where) else _module(where)
    found = _pipelines(module)
    if not name:
        if len(found) == 1:
            return next(iter(found.values()))
        if not found:
            raise ConfigurationError(
                f"expected {where} to have a pipeline, got: none. It takes one in a variable of the module, such as "
                'reviews = outlast.Pipeline("reviews", label).'
            )
        raise ConfigurationError(
            f"expected {target} to say which pipeline, as in {target}:{next(iter(found), 'reviews')}. {_listed(found)}"
        )
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise ConfigurationError(
                f"expected {where} to have {name!r}.{nearest(part, list(found) or _names(thing))} {_listed(found)}"
            )
        thing = getattr(thing, part)
    if not isinstance(thing, Pipeline):
        raise ConfigurationError(f"expected {target} to be a Pipeline, got: {_kind(thing)}. {_listed(found)}")
    return thing


def _file(where: str) -> ModuleType:
    path = Path(where)
    if not path.is_file():
        near = nearest(path.name, [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else [])
        message = f"expected {where} to be a Python file, but there is none{'' if path.is_absolute() else f' in {Path.cwd()}'}.{near}"
        raise ConfigurationError(message)
    try:
        return load_module(where)
    except Exception as broken:
        raise _unloadable(where, broken) from broken


def _module(where: str) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        message = f"expected a file or a module with the name of a pipeline, such as app.py:reviews, got: {where!r}."
        raise ConfigurationError(message)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return load_module(where)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (where == missing.name or where.startswith(f"{missing.name}.")):
            raise _unloadable(where, missing) from missing
        hint = f" A file is named with its ending: {where}.py." if Path(f"{where}.py").is_file() else ""
        raise ConfigurationError(
            f"expected {where} to be a module that can be imported from {here}, but there is no {missing.name}.{hint}"
        ) from None
    except Exception as broken:
        raise _unloadable(where, broken) from broken


def _unloadable(where: str, broken: Exception) -> ConfigurationError:
    frames = [frame for frame in traceback.extract_tb(broken.__traceback__) if "importlib" not in frame.filename]
    # The first two frames are ours: this module's and load_module's.
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if len(frames) > 2 else ""
    if isinstance(broken, SyntaxError):
        place = f" (line {broken.lineno} of {Path(broken.filename or where).name})"
    return ConfigurationError(f"{where} cannot be loaded: {type(broken).__name__}: {error_text(broken)}{place}.")


def _pipelines(module: ModuleType) -> dict[str, Pipeline[Any, Any]]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def _listed(found: dict[str, Pipeline[Any, Any]]) -> str:
    if not found:
        return "It has no pipelines."
    return f"It has the pipeline{'s' if len(found) > 1 else ''} {', '.join(sorted(found))}."


def _names(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _kind(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
