"""The house is in order: style, import order, types, docs, locks and the wheel. Each check is one of make's own targets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tables import table

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the root, outside any running make; its output is both streams together."""
    env = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=env | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "target", ["lint-style", "lint-format", "lint-imports", "lint-mypy", "lint-pyright", "lint-contract"]
)
def test_the_code_passes(target):
    """Style, format, the import order, both type checkers, and the pinned API's own example."""
    done = run("make", "--no-print-directory", target)
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(600)
def test_the_docs_build_without_a_warning_and_load_nothing_from_elsewhere(tmp_path):
    """A broken link, a missing anchor or a page outside the navigation is an error; the pages work without a network."""
    done = run("make", "--no-print-directory", "docs-build", f"SITE={tmp_path}")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "index.html").is_file()
    loaded = re.compile(
        r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?https?:[^>]+>|<link\b[^>]*\bhref=["']?https?:[^>]+>"""
    )
    assert {tag for page in tmp_path.rglob("*.html") for tag in loaded.findall(page.read_text())} == set()


LOCKS = ["requirements/test.txt", "requirements/demo.txt", "benchmarks/requirements.txt"]
LOCKS += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("benchmarks/peers/*/requirements.txt"))]


@table("lock", LOCKS)
def test_lock_pins_everything_by_hash_and_names_no_index(lock):
    """Every line is a pinned requirement or one of its hashes; where packages come from is the machine's business."""
    line = re.compile(r"[a-z0-9._-]+==\S+( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|#.*")
    text = (ROOT / lock).read_text()
    assert [found for found in text.splitlines() if not line.fullmatch(found)] == []
    assert "://" not in text


def pins(lock: Path) -> dict[str, list[str]]:
    """Each package of a lock with its versions: more than one where Pythons differ."""
    found: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        found.setdefault(package, []).append(version)
    return found


@pytest.mark.parametrize("name", ["test", "demo"])
def test_lock_holds_what_was_asked_for(name):
    """A requirement added to an .in file and not locked is a mistake; `make lock` mends it."""
    wanted = re.findall(r"^([a-z0-9._-]+)(?:\[|$)", (ROOT / "requirements" / f"{name}.in").read_text(), re.MULTILINE)
    assert wanted
    assert set(wanted) - set(pins(ROOT / "requirements" / f"{name}.txt")) == set()


def test_the_demo_needs_nothing_that_the_tests_lack():
    """One environment serves both, so the small lock is part of the large one."""
    large, small = (pins(ROOT / "requirements" / f"{name}.txt") for name in ("test", "demo"))
    assert {package: versions for package, versions in small.items() if large.get(package) != versions} == {}


@pytest.mark.timeout(600)
def test_the_wheel_works_alone(tmp_path):
    """The built wheel, unpacked with nothing beside it, protects a call; it carries its types and licence, and no tests."""
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("outlast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "alone")
    assert "outlast/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if not name.startswith("outlast")] == []
    story = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'alone')!r})\n"
        "import outlast\n"
        "@outlast.retry(initial_delay=0)\n"
        "def call():\n"
        "    answer = next(answers)\n"
        "    if isinstance(answer, Exception): raise answer\n"
        "    return answer\n"
        "answers = iter([ConnectionResetError(), ConnectionResetError(), 'saved'])\n"
        "print(call())\n"
    )
    alone = run(sys.executable, "-I", "-S", "-W", "error", "-c", story)
    assert alone.stdout == "saved\n"


def test_nothing_tells_where_it_was_written():
    """No committed file holds a path of the machine it was written on or the address of a package index."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard")
    assert listed.returncode == 0, listed.stdout
    places = "|".join(re.escape(f"{place}/") for place in (ROOT, Path.home()) if len(place.parts) > 1)
    telling = re.compile(rf"(?<![\w./])(?:{places})|https?://[a-z0-9.-]+/simple\b|files\.pythonhosted")
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            text = path.read_bytes().decode("utf-8", "replace")
            found += [f"{name}: {match.group(0)}" for match in telling.finditer(text)]
    assert found == []
