"""
Functions that a file names (``call: "module:function"``) are imported from the project's root, or from modules that
whoever runs the file has allowed. Here nothing is imported: it is only looked where a module would come from, and in
its text which names it has.

What was found is kept in a `Project`, for one compilation. Nothing outlives it: a file is judged by what is there now,
and not by what the process has seen before.
"""

from __future__ import annotations

import ast
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.errors import closest, is_misspelt
from outlast.kernel.frames import parse_python
from outlast.settings.checks import show
from outlast.verdicts import class_by_name
from outlast.verdicts.rules import TYPES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from typing import Any, TypeAlias

    from outlast.components.describing import Component
    from outlast.spec.mistakes import Mistake
    from outlast.spec.mistakes import Path as Place
    from outlast.spec.model import Model, Step

    Missing: TypeAlias = tuple[str, str, str]  # what is expected, what came, the way out

VARIABLE = "OUTLAST_ALLOW"
_LARGEST = 2_000_000  # bytes of a module that is read
_MAKERS = frozenset(
    {"globals", "vars", "locals", "exec", "setattr"}
)  # by which a module may get names that its text does not show


def allowed_by(text: str) -> tuple[str, ...]:
    """
    The modules that the environment variable allows: names with commas between them.

    >>> allowed_by("numpy, shop.steps")
    ('numpy', 'shop.steps')
    """
    return tuple(name for one in text.split(",") if (name := one.strip()))


def outside(model: Model) -> list[Mistake]:
    """Functions of modules that are Python's own, or are installed elsewhere, and that nobody has allowed."""
    project = model.project
    if project is None:
        return []
    found: list[Mistake] = []
    for step in model.steps:
        for path, text in _calls(step):
            module = text.partition(":")[0]
            if not _is_name(module):
                from outlast.components.steps.config import example_of  # with pydantic: a component was found

                # In the words of those components that look at it themselves, so that it is told once.
                said = ("a function as module:function", show(text), f"write it as {example_of(text)}")
                found.append(model.mistake(step, path, *said, severity="error"))
            elif not project.allows(module) and project.is_elsewhere(module):
                expected = "a function of the project, which is under its root"
                way_out = project.nearby(module) or "name another"
                way_out += f", or allow the module: {VARIABLE}={module}"
                found.append(model.mistake(step, path, expected, f"one of {module}", way_out, severity="error"))
    return found


def absent(model: Model, step: Step) -> Iterator[tuple[Place, str, str, str]]:
    """
    What a step names and the project does not have: modules, functions in them, files. Where it stands, what is
    expected, what came and the way out. Nothing is imported: the text of a module is read. What modules that are
    allowed have is not looked for.
    """
    project = model.project
    if project is None:
        return
    for path, text in _calls(step):
        module, _, name = text.partition(":")
        if _is_name(module) and not project.allows(module) and not project.is_elsewhere(module):
            found = project.missing(module, name)
            if found is not None:
                yield (path, *found)
    for path, text in _files(step):
        if not _is_file(project.root / text):
            yield path, "a file that is there, under the project's root", show(text), "write it, or name another"


def unsure_error(model: Model, name: str) -> tuple[str, str] | None:
    """
    What is wrong with the dotted name of an exception, and the way out: its module does not have it, or cannot be looked
    at. Nothing is imported. None if the rules of verdicts know the name, or the text of the module has it.
    """
    module, _, attribute = name.rpartition(".")
    if model.project is None or not module or class_by_name(name) is not None:
        return None
    names = model.project.names_in(module)
    if names is not None and attribute in names:
        return None
    known = [one.rpartition(".")[2] for one in TYPES if _top(one) == _top(module)]
    has_all = names is not None and not {"*", "__getattr__"} & names
    near = closest(attribute, sorted({*known, *(names or ())} - {"*"}))
    way_out = f"did you mean {module}.{near}?" if near else f"see that {module} has it: no rule knows the name"
    if has_all:
        return f"{name}, which {module} does not have", way_out
    if near and is_misspelt(attribute, near):
        return f"{name}, which no rule knows", way_out
    why = "cannot be looked at" if names is not None else "is not installed here"
    return f"{name}, which could not be checked: {module} {why}", way_out


class Project:
    """
    The folder from which functions are imported, and the modules beside it that are `allowed`. Everything is looked at
    once, so that a function that a thousand steps call costs no more than one; make a new one for each compilation.
    With `from_shell` the way out names options of commands.
    """

    def __init__(self, root: Path, allowed: Collection[str] = (), *, from_shell: bool = False) -> None:
        self.root = Path(os.path.realpath(root))  # so that another current folder does not make it another one
        self._allowed, self._from_shell = allowed, from_shell
        self._specs: dict[str, ModuleSpec | None] = {}
        self._elsewhere: dict[str, bool] = {}
        self._missing: dict[tuple[str, str], Missing | None] = {}
        self._names: dict[Path, frozenset[str] | None] = {}

    def allows(self, module: str) -> bool:
        return any(module == one or module.startswith(f"{one}.") for one in self._allowed)

    def is_elsewhere(self, module: str) -> bool:
        """Whether this module is there, and not under the root. One that nobody has yet may still be written."""
        if module not in self._elsewhere:
            self._elsewhere[module] = self._look_elsewhere(module)
        return self._elsewhere[module]

    def missing(self, module: str, name: str) -> Missing | None:
        """What is expected of a function of the project, what came and the way out; None if it is there, or may be."""
        if (module, name) not in self._missing:
            self._missing[module, name] = self._look_for(module, name)
        return self._missing[module, name]

    def names_in(self, module: str) -> frozenset[str] | None:
        """The names of a module, as `_names_in`; ``*`` if its text cannot be read, None if there is no such module."""
        file = _file_of(self._folder(_top(module)).joinpath(*module.split(".")))
        if file is None:
            with suppress(ImportError, ValueError, OSError):
                return None if self._spec(_top(module)) is None else frozenset("*")
            return frozenset("*")
        if file not in self._names:
            self._names[file] = _names_in(file)
        return self._names[file] or frozenset("*")

    def nearby(self, module: str) -> str:
        """What to do if the module is under the current folder, which is not the root; nothing if it is not."""
        if _is_python_s(module) or not _has(Path(), *module.split(".")):
            return ""
        way_out = "--root ." if self._from_shell else f"put the pipeline file beside {_top(module)}"
        return f"it is under the current folder: {way_out}"

    def _look_elsewhere(self, module: str) -> bool:
        top = _top(module)
        if _is_python_s(module):
            return True
        if _has(self.root, top):
            return False
        try:
            spec = self._spec(top)
        except (ImportError, ValueError, OSError):  # from a finder of another package
            return True
        if spec is None:
            return False
        # Folders of one name, and this module is in that of the root.
        if not spec.origin and _has(self.root, *module.split(".")):
            return False
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        return not any(Path(os.path.realpath(one)).is_relative_to(self.root) for one in places)

    def _spec(self, top: str) -> ModuleSpec | None:
        if top not in self._specs:
            self._specs[top] = installed(top)
        return self._specs[top]

    def _look_for(self, module: str, name: str) -> Missing | None:
        at = self._folder(_top(module)).joinpath(*module.split("."))
        file = _file_of(at)
        if file is None:
            return self._no_module(at, module)
        if file not in self._names:
            self._names[file] = _names_in(file)
        names = self._names[file]
        if names is None:
            way_out = f"python -m py_compile {file.name} shows where it cannot"
            return "a module that Python can read", show(module), way_out
        if name in names or "*" in names or "__getattr__" in names:
            return None
        near = closest(name, sorted(names))
        way_out = f"did you mean {module}:{near}?" if near else "write it, or name another"
        return f"a function that {module} has", show(name), way_out

    def _no_module(self, at: Path, module: str) -> Missing | None:
        beside = _listed(at.parent)
        if any(one.startswith(f"{at.name}.") for one in beside):
            return None  # compiled, or made by other means
        expected = "a module of the project, which is under its root"
        if way_out := self.nearby(module):
            return expected, show(module), way_out
        modules = {one.removesuffix(".py") for one in beside if one.endswith(".py") or _is_folder(at.parent / one)}
        near = closest(at.name, sorted(one for one in modules if one.isidentifier()))
        meant = ".".join((*module.split(".")[:-1], near))
        return expected, show(module), f"did you mean {meant}?" if near else "write it, or name another"

    def _folder(self, top: str) -> Path:
        """Where the package stands: in the root, or where its installation says."""
        if _is_folder(self.root / top) or _is_file(self.root / f"{top}.py"):
            return self.root
        with suppress(ImportError, ValueError, OSError):
            spec = self._spec(top)
            if spec is not None and spec.origin:
                home = Path(spec.origin).parent
                return home.parent if spec.submodule_search_locations is not None else home
        return self.root


# -- where a module would come from ------------------------------------------------------------------------------------


def installed(top: str) -> ModuleSpec | None:
    """
    Where Python finds a package, without the folder that is on its path only because a program was started there:
    ``python -m outlast`` and ``outlast`` give the same answer. What was imported before is not asked.
    """
    path = _path()
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        found: ModuleSpec | None = (
            PathFinder.find_spec(top, path) if finder is PathFinder else None if find is None else find(top, None)
        )
        if found is not None:
            return found
    return None


def _path() -> list[str]:
    """
    ``sys.path`` without the folder that Python puts there by itself: that of the script, or the current one with
    ``-m`` and ``-c``. Where an installation names the same folder it is there a second time, and stays.
    """
    own = None if sys.flags.safe_path else _started_in()
    path = list(sys.path)
    for number, one in enumerate(path):
        if own is not None and os.path.realpath(one) == own:
            return path[:number] + path[number + 1 :]
    return path


def _started_in() -> str | None:
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    with suppress(OSError):  # the current folder may be gone
        if script and getattr(main, "__spec__", None) is None:
            return str(Path(os.path.realpath(script)).parent)
        return os.path.realpath(Path.cwd())
    return None


def _file_of(at: Path) -> Path | None:
    """The text of the module whose path this is, without an ending."""
    return next((one for one in (at.with_name(f"{at.name}.py"), at / "__init__.py") if _is_file(one)), None)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_python_s(module: str) -> bool:
    """Whether Python itself has it, which wins over a file of the project."""
    return _top(module) in sys.stdlib_module_names or _top(module) == "__main__"


def _is_name(module: str) -> bool:
    """Whether it is the whole name of a module: not relative to another, and no path."""
    return all(part.isidentifier() for part in module.split("."))


def _has(folder: Path, *names: str) -> bool:
    """
    Whether a module stands there: a file, or a folder with __init__. A folder without it is none: Python takes a
    package of that name from wherever else there is one.
    """
    at = folder.joinpath(*names)
    return any(
        _is_file(at.with_name(f"{at.name}{suffix}")) or _is_file(at / f"__init__{suffix}") for suffix in all_suffixes()
    )


# A name that is too long for the disk, or a folder that nobody may look into, is an OSError: nothing is there.


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _listed(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []


# -- what a module has -------------------------------------------------------------------------------------------------


def _names_in(file: Path) -> frozenset[str] | None:
    """The names that a module has, as far as its text tells; ``*`` for those that nobody knows. None: no Python."""
    try:
        if file.stat().st_size > _LARGEST:
            return frozenset("*")
        tree = parse_python(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    except OSError:
        return frozenset("*")
    made = any(isinstance(one, ast.Name) and one.id in _MAKERS for one in ast.walk(tree))
    return frozenset([*_bound(tree.body), *("*" if made else "")])


def _bound(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements of a module bind, those inside of if, try, with and loops too."""
    for one in statements:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield one.name
            continue
        if isinstance(one, ast.Import | ast.ImportFrom):
            yield from (name.asname or _top(name.name) for name in one.names)
            continue
        yield from (node.id for node in ast.walk(one) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        for block in ("body", "orelse", "finalbody"):
            yield from _bound(getattr(one, block, ()))
        for handler in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            yield from _bound(handler.body)


def _files(step: Step) -> Iterator[tuple[Place, str]]:
    for known, config, path in _configs(step):
        for key in () if known is None else known.files:
            if isinstance(text := config.get(key), str) and text:
                yield (*path, key), text


def _configs(step: Step) -> Iterator[tuple[Component | None, Mapping[str, Any], Place]]:
    yield step.described, step.config, ("config",)
    if step.compensate is not None:
        yield step.compensate.described, step.compensate.config, ("compensate", "config")


def _calls(step: Step) -> Iterator[tuple[Place, str]]:
    for known, config, path in _configs(step):
        for key in () if known is None else known.calls:
            if isinstance(text := config.get(key), str) and ":" in text:
                yield (*path, key), text
