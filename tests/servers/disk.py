"""
A small disk, to be full soon.

    disk = Disk("1m")
    ...
    disk.grow()
    disk.close()
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path


class Disk:
    """A small disk of our own, in memory."""

    def __init__(self, size):
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-disk-"))
        self._mount("-t", "tmpfs", "-o", f"size={size},mode=0777", "outlast-test", str(self.folder))

    def grow(self):
        self._mount("-o", "remount,size=64m", str(self.folder))

    def close(self):
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        self.folder.rmdir()

    def _mount(self, *arguments):
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"a small disk is needed, and mounting one needs root: {done.stderr.strip()}")
