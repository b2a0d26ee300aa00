"""
Bytecode of all tests and of the package, made once, by as many processes as there are processors. Without it, each of pytest's
workers would compile all of it for itself: they collect the same tests at the same time.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
from pathlib import Path

from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parent.parent


def keep_bytecode(config) -> None:
    """Leave behind what the imports of workers look for."""
    tests = [path for name in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(name)]
    state = config.stash[rewrite.assertstate_key]
    due = [path for path in tests if rewrite._read_pyc(path, kept(path)) is None]

    def share(which: int) -> None:
        for path in due[which::processes]:
            try:
                found, code = rewrite._rewrite_test(path, config)
            except SyntaxError:
                continue  # collecting it says so
            rewrite._write_pyc(state, code, found, kept(path))
        for path in plain[which::processes]:
            compileall.compile_file(path, quiet=2)

    plain = sorted((ROOT / "src").rglob("*.py")) + sorted(set((ROOT / "tests").rglob("*.py")).difference(tests))
    processes = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    shares = [fork.Process(target=share, args=(which,)) for which in range(processes)]
    for one in shares:
        one.start()
    for one in shares:
        one.join()


def kept(path: Path) -> Path:
    """Where pytest keeps the bytecode of a test."""
    folder = rewrite.get_cache_dir(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{path.stem}{rewrite.PYC_TAIL}"
