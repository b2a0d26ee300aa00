"""Environments for the peers: made from a lock, and again when the lock or the interpreter has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Failed(Exception):
    """A command that did not do what it should; the message is what it said."""


def digest(*files: Path) -> str:
    """One checksum over the files and this Python's version."""
    total = hashlib.sha256(sys.version.encode())
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def python_of(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pip(python: str | Path, *arguments: str | Path) -> None:
    """Run pip; what it says is heard only when it failed."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failed(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")


def install(folder: Path, lock: Path) -> None:
    """Make the environment in `folder` hold what `lock` says, and nothing else."""
    stamp, wanted = folder / ".peers", digest(lock)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {lock.parent.name}/{lock.name} into {folder.name}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    pip(python_of(folder), "install", "--require-hashes", "--no-deps", "--requirement", lock)
    stamp.write_text(wanted)
