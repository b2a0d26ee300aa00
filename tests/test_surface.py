"""The public surface: every promised name exists with its promised shape, imports cheaply and needs nothing installed."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import outlast
from tables import table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "outlast"
CONTRACT = ROOT / "tests" / "typing" / "contract" / "outlast"

# Promised in the contract, built later: whole names, and parameters of what is already there. What has come true must leave.
LATER: set[str] = set()
LATER_PARAMETERS: dict[str, set[str]] = {}

# Third parties, and the rooms that may import them.
ROOMS = {
    "IPython": "display",
    "backports": "components/packed",
    "botocore": "components/steps/doing/s3",
    "click": "cli",
    "compression": "components/packed",
    "cronsim": "jobs/cron",
    "duckdb": "components/steps/doing/sql",
    "httpcore": "components/steps/doing/http components/steps/doing/llm components/steps/doing/wire",
    "httpx": "components/steps/doing/http components/steps/doing/llm components/steps/doing/wire",
    "jsonschema": "components/steps/doing/rows",
    "openai": "components/steps/doing/llm",
    "opentelemetry": "observe/otel",
    "prometheus_client": "observe/prometheus",
    "psycopg": "store/postgres components/steps/doing/postgres",
    "pyarrow": "components",
    "pymysql": "components/mysql components/steps/doing/mysql",
    "pydantic": "components/defaults components/describing components/steps rows/models",
    "pydantic_core": "components/defaults components/describing",
    "referencing": "components/steps/doing/rows",
    "rich": "cli display",
    "typer": "cli",
    "urllib3": "components/steps/doing/s3",
    "yaml": "spec/yaml",
}

# Tests that really wait, and why nothing else would do.
SLEEPERS: dict[str, str] = {
    "mended.py": "a disk that is slow, so that kills hit the moments in between",
    "components/test_kills.py": "in programs that are killed: a slow disk, so that kills hit the moments in between",
    "doomed.py": "in a program that is killed: a slow disk, so that kills hit the moments in between",
    "hostile.py": "for ever, in worker processes, which are killed for it",
    "job_trials.py": "jobs that take a while, so that kills hit them, and between two looks at other processes",
    "servers/limited.py": "a server that takes a while to answer, as real ones do",
    "shared/test_shared_breaker.py": "between two looks at what other processes do, whose clock is a store's",
    "sharing.py": "between two looks at what other processes do",
    "trials.py": "for as long as a lease lasts whose owner stands still in another process",
    "test_hedge.py": "on the virtual clock of trio, which jumps: it takes no time",
    "pipeline/test_crashes.py": "in a program that kills itself, so that items are under way when it does",
    "test_trio.py": "on the virtual clock of trio, which jumps: it takes no time",
}

NO_DEFAULT = inspect.Parameter.empty
UNKNOWN = object()  # a default the contract leaves open with `...`, or one that is no literal


# --- the names ---


def test_every_public_name_can_be_had():
    """`__all__` is what is importable, once each, and `dir` shows it."""
    missing = [name for name in outlast.__all__ if not hasattr(outlast, name)]
    assert missing == []
    assert len(outlast.__all__) == len(set(outlast.__all__))
    assert set(outlast.__all__) <= set(dir(outlast))


def test_every_name_of_the_contract_is_public():
    """Classes, functions, and the types that annotations need."""
    tree = ast.parse((CONTRACT / "__init__.pyi").read_text())
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    names |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in names - set(outlast.__all__) - LATER if not name.startswith("_")} == set()


def test_what_is_promised_for_later_is_not_there_yet():
    """The list of what is missing is true."""
    there = {name for name in LATER if name in outlast.__all__}
    there |= {name for name in LATER if "." in name and hasattr(real(name.rpartition(".")[0]), name.rpartition(".")[2])}
    assert there == set()


def test_no_module_bears_the_name_of_a_public_function():
    """Importing a submodule binds its name in the package, so a shared name would hand out the module."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    shared = modules & set(outlast.__all__)
    assert [name for name in shared if not inspect.ismodule(getattr(outlast, name))] == []


def test_an_unknown_name_is_an_attribute_error():
    """Lazy loading must not turn a typo into anything else."""
    with pytest.raises(AttributeError, match="no_such_name"):
        outlast.no_such_name


# --- the shapes ---


def definitions() -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method of the contract by dotted name, overloads together, without private ones."""
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for stub, prefix in (("__init__.pyi", ""), ("testing.pyi", "testing.")):
        for node in ast.parse((CONTRACT / stub).read_text()).body:
            if isinstance(node, functions):
                found.setdefault(prefix + node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, functions):
                        found.setdefault(f"{prefix}{node.name}.{member.name}", []).append(member)
    return found


def literal(node: ast.expr | None) -> object:
    if node is None:
        return NO_DEFAULT
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return UNKNOWN
    return UNKNOWN if value is ... else value


def promised(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[inspect.Parameter]:
    """The parameters of a stub as `inspect` would give them, without annotations."""
    spec = function.args
    kinds = inspect._ParameterKind
    plain = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + list(spec.defaults)
    parameters = [
        (arg.arg, kinds.POSITIONAL_ONLY if arg in spec.posonlyargs else kinds.POSITIONAL_OR_KEYWORD, literal(default))
        for arg, default in zip(plain, defaults, strict=True)
    ]
    if spec.vararg:
        parameters.append((spec.vararg.arg, kinds.VAR_POSITIONAL, NO_DEFAULT))
    parameters += [
        (arg.arg, kinds.KEYWORD_ONLY, literal(default))
        for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    ]
    if spec.kwarg:
        parameters.append((spec.kwarg.arg, kinds.VAR_KEYWORD, NO_DEFAULT))
    return [inspect.Parameter(name, kind, default=default) for name, kind, default in parameters]


def real(name: str) -> object:
    """The thing behind a dotted name of the contract; a method is the plain function."""
    thing: object = outlast
    for part in name.split("."):
        thing = inspect.getattr_static(thing, part) if inspect.isclass(thing) else getattr(thing, part)
    return thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing


def complaints(name: str, wanted: list[inspect.Parameter], given: dict[str, inspect.Parameter]) -> list[str]:
    found = []
    for parameter in wanted:
        actual = given.get(parameter.name)
        if actual is None:
            found.append(f"{name} has no parameter {parameter.name}")
        elif actual.kind is not parameter.kind:
            found.append(f"{name}: {parameter.name} is {actual.kind.description}, not {parameter.kind.description}")
        elif parameter.default is not UNKNOWN and actual.default != parameter.default:
            found.append(f"{name}: {parameter.name} defaults to {actual.default!r}, not {parameter.default!r}")
    return found


NOW = {
    name: found
    for name, found in definitions().items()
    if name not in LATER and name.split(".")[0] not in LATER and not name.startswith("_")
}


@table("name", sorted(name for name, found in NOW.items() if len(found) == 1))
def test_signature_keeps_the_contract(name):
    """Names, kinds and literal defaults of parameters are as promised; more may be there."""
    given = dict(inspect.signature(real(name)).parameters)
    later = LATER_PARAMETERS.get(name, set())
    wanted = [parameter for parameter in promised(*NOW[name]) if parameter.name not in later | {"self", "cls"}]
    assert complaints(name, wanted, given) == []
    assert later & set(given) == set(), "built now: take it off the list"


def test_retry_takes_every_promised_option():
    """Each option of each overload of `retry` is accepted with the default that the contract promises."""
    assert sorted(name for name, found in NOW.items() if len(found) > 1) == [
        "App.job",
        "Context.compensate",
        "Context.step",
        "Pipeline.__new__",
        "retry",
        "stage",
    ]
    bare, of_policy, of_options = NOW["retry"]
    assert [parameter.name for parameter in promised(bare)] == ["fn"]
    for wanted, args in ((promised(of_policy)[1:], (outlast.RetryPolicy(),)), (promised(of_options), ())):
        for parameter in wanted:
            assert isinstance(outlast.retry(*args, **{parameter.name: parameter.default}), outlast.Guard)


@pytest.mark.parametrize("name", ["App.job", "Pipeline.__new__", "stage"])
def test_what_has_several_signatures_takes_every_promised_option(name):
    """Each option of each overload is there, keyword-only, with the default that the contract promises."""
    given = dict(inspect.signature(real(name)).parameters)
    later = LATER_PARAMETERS.get(name, set())
    assert later & set(given) == set(), "built now: take it off the list"
    for overload in NOW[name]:
        wanted = [parameter for parameter in promised(overload) if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        wanted = [parameter for parameter in wanted if parameter.name not in later]
        assert complaints(name, wanted, given) == []


def test_presets_are_the_promised_ones():
    """Eight presets, each a policy."""
    wanted = {
        node.target.id
        for node in ast.parse((CONTRACT / "presets.pyi").read_text()).body
        if isinstance(node, ast.AnnAssign)
    }
    assert {name for name in wanted if not isinstance(getattr(outlast.presets, name), outlast.RetryPolicy)} == set()


# --- the cost of an import ---


def modules_after(code: str, *options: str) -> set[str]:
    """The modules loaded by a fresh interpreter that can see nothing but the standard library and the package."""
    report = (
        f"import sys, json; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", *options, "-c", report], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


PROTECTED_CALL = "from outlast import retry\n@retry\ndef call(x): return x\nassert call(1) == 1"


def test_a_protected_call_loads_no_heavy_module():
    """Importing, decorating and calling stays far from asyncio and everything else that costs milliseconds."""
    loaded = modules_after(PROTECTED_CALL) - modules_after("pass")
    heavy = {"asyncio", "dataclasses", "typing", "logging", "inspect", "re", "threading", "datetime", "random"}
    assert loaded & heavy == set()


def test_a_protected_call_loads_few_modules():
    """Lazy rooms stay closed: what a plain call does not need is not loaded."""
    loaded = {name for name in modules_after(PROTECTED_CALL) if name.startswith("outlast.")}
    assert loaded & {f"outlast.{room}" for room in ("app", "breaker", "cli", "compat", "testing")} == set()


def test_every_name_loads_with_the_standard_library_alone():
    """No public name of the core needs an installed package."""
    loaded = modules_after("import outlast\nfor name in outlast.__all__: getattr(outlast, name)")
    assert {module.split(".")[0] for module in loaded} - set(sys.stdlib_module_names) == {"outlast", "__main__"}


def imported(path: Path) -> set[str]:
    """The top-level names of every absolute import in a file, also those inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_each_third_party_has_one_room():
    """Whatever is not the standard library is imported by its own room only."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("")
        foreign = imported(path) - set(sys.stdlib_module_names) - {"outlast"}
        homeless = sorted(
            name for name in foreign if not any(inside.is_relative_to(room) for room in ROOMS.get(name, "").split())
        )
        found += [f"{path.relative_to(ROOT)} imports {name}" for name in homeless]
    assert found == []


ALONE = """
import dataclasses, functools, gc, importlib, importlib.machinery, os, sys

# Each file is read and compiled once, and so are the methods of its dataclasses: that takes most of the time.
loader = importlib.machinery.SourceFileLoader
loader.__hash__, loader.__eq__ = lambda self: hash(self.path), lambda self, other: self.path == other.path
loader.get_code = functools.cache(loader.get_code)
compiled = functools.cache(lambda text: compile(text, "<string>", "exec"))
dataclasses.exec = lambda text, names, made: exec(compiled(text), names, made)

def alone(package):
    # In a process of its own, in which nothing of ours is loaded but the packages around it.
    if os.fork() == 0:
        ended = 1
        try:
            importlib.import_module(package)
            ended = max(map(alone, [name for name in inside.get(package, ()) if name not in sys.modules]), default=0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(ended)
    return int(os.wait()[1] != 0)

names = sys.argv[1].split()
for name in names:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "outlast"]:
    del sys.modules[name]
gc.collect()
gc.freeze()
gc.disable()
inside = {}
for name in names[1:]:
    inside.setdefault(name.rpartition(".")[0], []).append(name)
sys.exit(alone(names[0]))
"""


def test_every_module_can_be_imported_by_itself():
    """
    No module depends on another one having been imported before it. What is loaded first are the packages that it is in, so that
    each of its neighbours can go on from there; other people's modules are loaded already.
    """
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.stem != "__main__"
    ]
    command = [sys.executable, "-W", "error", "-c", ALONE, " ".join(sorted(names))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- the tests themselves ---


def test_no_test_sleeps():
    """Tests wait for events, never for time; the list above names the exceptions and their reasons."""
    literal_sleep = re.compile(r"\b(?:time|asyncio|anyio|trio)\.sleep\(\s*(?!0\s*\))[^)]")
    sleeping = {
        str(path.relative_to(ROOT / "tests"))
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__) and literal_sleep.search(path.read_text())
    }
    assert sleeping == set(SLEEPERS)


def test_no_test_is_skipped_or_excused():
    """A test runs and passes: nothing is skipped, expected to fail, or run again until it works."""
    excuse = re.compile(r"mark\.(skip|skipif|xfail|flaky)\b|pytest\.(skip|xfail|importorskip)\(")
    excused = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__) and excuse.search(path.read_text())
    ]
    assert excused == []


def test_all_brings_every_extra():
    """Whoever installs outlast[all] can use all of it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (whole,) = extras.pop("all")
    assert whole == f"outlast[{','.join(sorted(extras))}]"
