"""A terminal for programs under test: a pty of a given size, and what a person would see on its screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
_TOKEN = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<what>[A-Za-z])|[\r\n]|[^\x1b\r\n]+")


class Terminal:
    """A program whose standard error is a terminal; so is its standard output, unless a file is given for that."""

    def __init__(self, *command: str, folder: Path, width: int = 80, height: int = 24, stdout=None, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        clean = {key: value for key, value in os.environ.items() if key not in {"OUTLAST_STORE", "COLUMNS", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=clean | {"TERM": "xterm-256color", "PYTHONPATH": str(SOURCE)} | env,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
        )
        os.close(theirs)
        self.written = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def read_until(self, text: str) -> str:
        """Everything up to when this has been written."""
        while text not in self.written:
            assert self._read(), f"ended without {text!r}:\n{self.written}"
        return self.written

    def press(self, keys: str) -> None:
        """As if somebody had typed it."""
        os.write(self._ours, keys.encode())

    def finish(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bool:
        try:
            more = os.read(self._ours, 65_536)
        except OSError:  # how a pty says that nobody has it open any more
            return False
        self.written += self._decoder.decode(more)
        return bool(more)

    def screen(self) -> list[str]:
        """What is to be seen now."""
        return self.screens()[-1]

    def screens(self) -> list[list[str]]:
        """What was to be seen after each write that the program has marked as a whole, and now."""
        rows: list[str] = [""]
        shown: list[list[str]] = []
        y = x = 0
        for token in _TOKEN.finditer(self.written):
            if token[0] == "\r":
                x = 0
            elif token[0] == "\n":
                y, x = y + 1, 0
                rows += [""] * (y + 1 - len(rows))
            elif token["what"] == "A":
                y = max(0, y - int(token["numbers"] or 1))
            elif token["what"] == "K":
                rows[y] = ""
            elif token["what"] == "l" and token["numbers"] == "?2026":
                shown.append([row.rstrip() for row in rows])
            elif token["what"] is None:
                row = rows[y].ljust(x)
                rows[y] = row[:x] + token[0] + row[x + len(token[0]) :]
                x += len(token[0])
        return [*shown, [row.rstrip() for row in rows]]
