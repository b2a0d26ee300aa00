"""
From ``app.py:reviews`` or ``shop.pipelines:reviews`` to what it names: a pipeline, an app, a job.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from outlast.cli.output import hint
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import error_text
from outlast.pipeline import Pipeline
from outlast.settings.names import is_file, load_module, parted
from outlast.store.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from outlast.app import App
    from outlast.jobs.job import Job

T = TypeVar("T")
_OURS = Path(__file__).parent.parent


class Wanted(NamedTuple, Generic[T]):
    """What a command needs: its class, its name in a sentence, and how one is made."""

    kind: type[T]
    word: str
    example: str
    made: str
    kept: str  # what its app keeps in the store
    home: Callable[[T], Any]  # its app

    @property
    def one(self) -> str:
        return f"{'an' if self.word[0] in 'aeiou' else 'a'} {self.word}"


PIPELINE: Wanted[Pipeline[Any, Any]] = Wanted(
    Pipeline,
    "pipeline",
    "app.py:reviews",
    'reviews = outlast.Pipeline("reviews", label)',
    "runs",
    lambda pipeline: pipeline.app,
)


def is_flow(target: str) -> bool:
    """Whether a target is a pipeline file or a manifest: a pipeline over items is Python."""
    return Path(target).suffix.lower() in {".yaml", ".yml", ".json"}


def app_wanted() -> Wanted[App]:
    """What a worker needs."""
    from outlast.app import App

    return Wanted(App, "app", "shop.jobs:app", 'app = outlast.App("shop")', "jobs", lambda app: app)


def job_wanted() -> Wanted[Job[..., Any]]:
    """What is enqueued."""
    from outlast.jobs.job import Job

    example = "shop.jobs:process_report"
    return Wanted(Job, "job", example, "a function with @app.job above it", "jobs", lambda job: job.home)


def loaded(target: str, wanted: Wanted[T], store: str | None, problems: list[str]) -> T | None:
    """What a person has named, with `--store` taking the place of the environment's before any App is made."""
    if store is not None:
        os.environ["OUTLAST_STORE"] = store
    try:
        found = find(target, wanted)
    except ConfigurationError as wrong:
        problems += wrong.problems
        return None
    if store is not None and wanted.home(found).store_url != store:
        problems.append(
            f"{target} says itself where its {wanted.kept} are kept, and --store says otherwise: leave one of them out."
        )
    elif (
        store is None and (others := os.environ.get("OUTLAST_STORE")) and _differ(wanted.home(found).store_url, others)
    ):
        hint(
            f"{target} says itself where its {wanted.kept} are kept: OUTLAST_STORE, which says otherwise, is not used."
        )
    return found


def _differ(one: str, other: str) -> bool:
    return Address(one).settled != Address(other).settled


def find(target: str, wanted: Wanted[T]) -> T:
    """What a person has named, of the kind that is wanted; without a name, the only one that the module has."""
    where, name = parted(target)
    module = _file(where) if is_file(where) else _module(where, wanted)
    found = _all_of(module, wanted)
    if not name:
        return _only(target, where, found, wanted)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise ConfigurationError(
                f"expected {where} to have {name!r}.{nearest(part, list(found) or _names(thing))} {_listed(found, wanted)}"
            )
        thing = getattr(thing, part)
    if not isinstance(thing, wanted.kind):
        capital = wanted.kind.__name__
        article = wanted.one.partition(" ")[0]
        raise ConfigurationError(
            f"expected {target} to be {article} {capital}, got: {_kind(thing)}. {_listed(found, wanted)}"
        )
    return thing


def _only(target: str, where: str, found: dict[str, T], wanted: Wanted[T]) -> T:
    different = list({id(one): one for one in found.values()}.values())
    if len(different) == 1:
        return different[0]
    if not found:
        raise ConfigurationError(
            f"expected {where} to have {wanted.one}, got: none. It takes one in a variable of the module, such as {wanted.made}."
        )
    raise ConfigurationError(
        f"expected {target} to say which {wanted.word}, as in {target}:{next(iter(found))}. {_listed(found, wanted)}"
    )


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


def _module(where: str, wanted: Wanted[Any]) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        message = (
            f"expected a file or a module with the name of {wanted.one}, such as {wanted.example}, got: {where!r}."
        )
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
    # Ours are the first two, and those that refuse what the module says.
    frames = [frame for frame in frames if _OURS not in Path(frame.filename).parents]
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    if isinstance(broken, SyntaxError):
        place = f" (line {broken.lineno} of {Path(broken.filename or where).name})"
    return ConfigurationError(f"{where} cannot be loaded: {type(broken).__name__}: {error_text(broken)}{place}.")


def _all_of(module: ModuleType, wanted: Wanted[T]) -> dict[str, T]:
    return {name: value for name, value in vars(module).items() if isinstance(value, wanted.kind)}


def _listed(found: Mapping[str, object], wanted: Wanted[Any]) -> str:
    if not found:
        return f"It has no {wanted.word}s."
    return f"It has the {wanted.word}{'s' if len(found) > 1 else ''} {', '.join(sorted(found))}."


def _names(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _kind(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    name = type(thing).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
