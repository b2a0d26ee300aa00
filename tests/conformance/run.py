"""
Ask Outlast and its peers every statement and write docs/conformance.md: `make conformance`.

Each library has a process of its own. A peer that fails is shown; only a failure of Outlast fails the run.

    tests/conformance/run.py outlast tenacity      # these only: printed, the page stays as it is
"""

# ruff: noqa: RUF001, T201 - it prints, and the page has dashes

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "conformance.md"
REQUIREMENTS = ROOT / "docs" / "requirements.md"
OURS = "outlast"
PEERS = "tenacity stamina backoff redress pyresilience pybreaker circuitbreaker interlock-cb".split()
SHOWN = {"holds": "holds", "fails": "**fails**", "none": "–"}
PROCESSES = 30  # each stuck test costs one

INTRODUCTION = """\
# Conformance

What a protected call owes its caller, as statements that are also tests, asked of Outlast and of its peers. `make conformance`
runs them and writes this page.

- **holds**: every test of the statement that applies to the library passes, sync and async.
- **fails**: at least one does not. What was seen stands below the table.
- **–**: the library does not offer what the statement is about, or nothing could be asked of it fairly.

A statement is our idea of good behaviour. Some failures are choices that a library has made and documented, and many never matter to
a given program. Each peer is used through its documented API in the configuration that comes nearest to what the test asks for: for
example tenacity with `reraise=True` and `stop_before_delay`, pybreaker with `throw_new_error_on_trip=False`. Without other
instructions the peers retry connection errors and timeouts, by type. The tests were written for Outlast, the adapters by its authors;
they are in `tests/conformance`, and corrections are welcome.
"""


def sentences():
    """Each statement's number and sentence, as docs/requirements.md has them."""
    return {
        int(number): said
        for number, said in re.findall(
            r"^- \*\*(\d+)\*\* (\S.*)$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def in_scope():
    """The numbers of the statements that have tests here."""
    numbers = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "statement":
                numbers.add(ast.literal_eval(node.args[0]))
    return sorted(numbers)


def version_of(library):
    if library != OURS:
        return version(library)
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


# Asking.


def ask(library):
    """Run the suite on one library: a line for each test."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        command = [sys.executable, "-m", "pytest", HERE, "-p", "conformance.recorder", "-p", "no:cacheprovider", "-q"]
        command += ["--tb=short" if library == OURS else "--tb=no", "-r", "N", "-o", "timeout_method=signal"]
        if library != OURS:  # a peer that warns has not failed
            command += ["-o", "timeout=15", "-W", "default"]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        environ = os.environ | {"CONFORMANCE": library, "CONFORMANCE_RECORD": str(record), "PYTHONPATH": path}
        for _ in range(PROCESSES):
            done = subprocess.run(
                command, check=False, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode != 9:  # a stuck test has ended the process: go on behind it
                break
        if done.returncode not in (0, 1) or (library == OURS and done.returncode):
            print(done.stdout, file=sys.stderr)
        if done.returncode not in (0, 1, 5):
            sys.exit(f"the tests did not run on {library}")
        return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def judged(lines):
    """One word for each statement."""
    ends = defaultdict(set)
    for line in lines:
        ends[line["statement"]].add(line["end"])
    return {number: next(end for end in ("fails", "holds", "none") if end in found) for number, found in ends.items()}


# Telling.


def row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


def table(answers):
    said, verdicts = sentences(), {library: judged(lines) for library, lines in answers.items()}
    head = row("", "Statement", *(f"{library} {version_of(library)}" for library in answers))
    lines = [head, row("--:", "---", *[":-:"] * len(answers))]
    for number in in_scope():
        ends = (SHOWN[verdicts[library].get(number, "none")] for library in answers)
        lines.append(row(number, said[number].replace("|", "\\|"), *ends))
    return "\n".join(lines)


def summary(answers):
    lines = [row("", "holds", "fails", "–"), row("---", "--:", "--:", "--:")]
    for library, found in answers.items():
        verdicts = judged(found)
        count = Counter(verdicts.get(number, "none") for number in in_scope())
        lines.append(row(library, count["holds"], count["fails"], count["none"]))
    return "\n".join(lines)


def plain(text):
    """One line that is the same in every run: no addresses, no numbers of objects, no folders of this machine."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text.replace(str(ROOT), ".")).replace("`", "'")
    text = re.sub(r"/[\w./+-]+/(?=[\w.-]+)", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\d [\d:.+]+", "...", text).removeprefix("AssertionError: ")
    text = re.sub(r"circuit-\d+", "circuit", text)
    return text if len(text) <= 160 else f"{text[:157]}..."


def failures(answers):
    said, parts = sentences(), []
    for library, lines in answers.items():
        failed = defaultdict(list)
        for line in lines:
            if line["end"] == "fails":
                name, _, _ = line["test"].partition("::")[2].partition("[")
                failed[line["statement"], name].append(line)
        if not failed:
            continue
        parts.append(f"### {library}")
        entries = []
        for (number, name), found in sorted(failed.items()):
            case = found[0]["test"].partition("[")[2].removesuffix("]").removeprefix(library).strip("-")
            more = f", and {len(found) - 1} more of it" if len(found) > 1 else ""
            shown = f"`{name}`{f' ({plain(case)})' if case else ''}{more}: `{plain(found[0]['seen']) or 'failed'}`"
            entries.append(f"- **{number}** {shown}")
        assert all(number in said for number, _ in failed)
        parts.append("\n".join(entries))
    return "\n\n".join(parts) or "None."


def page(answers):
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    parts = [
        INTRODUCTION.rstrip(),
        f"## Summary\n\nWith {python}.\n\n{summary(answers)}",
        f"## Statements\n\n{table(answers)}",
        "## What was seen\n\nThe first case of each test that failed, and the first line of what it said.",
        failures(answers),
    ]
    return "\n\n".join(parts) + "\n"


def main():
    libraries = sys.argv[1:] or [OURS, *PEERS]
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        answers = dict(zip(libraries, pool.map(ask, libraries), strict=True))
    print(summary(answers))
    if sys.argv[1:]:
        print(f"\n{failures(answers)}")
    else:
        PAGE.write_text(page(answers), encoding="utf-8")
        print(f"\nrenewed {PAGE.relative_to(ROOT)}")
    if "fails" in judged(answers.get(OURS, [])).values():
        print(f"\nOutlast fails:\n\n{failures({OURS: answers[OURS]})}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
