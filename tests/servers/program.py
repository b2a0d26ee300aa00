"""
Servers that come as programs: started on loopback with their data in a temporary folder, gone at the end.

A program that is not installed is a failure which says what to do; nothing is installed from here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from standing import stand_still

if TYPE_CHECKING:
    from collections.abc import Iterator


def find(*names: str, package: str) -> str:
    """The path of the first of these programs that is there: beside this Python, on the path, or where Debian keeps servers."""
    places = (str(Path(sys.executable).parent), None, "/usr/sbin")
    for name in names:
        for place in places:
            found = shutil.which(name, path=place)
            if found:
                return found
    raise RuntimeError(f"these tests need {names[0]}, which is not installed: {package}")


def free_port() -> int:
    """A port that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# In a process of its own: it must outlive who started it, and is nobody's child.
_WATCH = """
( while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done
  [ -d "$2" ] || exit 0
  kill -KILL "$(head -n 1 "$2/$3")" 2>/dev/null
  sleep 1
  rm -rf "$2" ) >/dev/null 2>&1 &
"""


def end_with_this_process(folder: Path, pid_file: str) -> None:
    """If this process is killed: kill the server whose number is in the file of its folder, and delete the folder. Until that is gone."""
    arguments = [str(os.getpid()), str(folder), pid_file]
    subprocess.run(["sh", "-c", _WATCH, "sh", *arguments], stdin=subprocess.DEVNULL, check=True, start_new_session=True)


class Program:
    """One process on one port of loopback, with a folder of its own; a subclass says how it is started."""

    patience = 120.0  # seconds until it must listen, and until it must end

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-server-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watched = False

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What it finds in its environment beside what we have."""
        return {}

    def start(self) -> Self:
        """Start it, or start it again with the data it had; done when it listens."""
        with (self.folder / "log").open("ab") as log:
            environment = os.environ | self.environment()
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.folder, env=environment)
        (self.folder / "server.pid").write_text(str(self._process.pid))
        if not self._watched:
            self._watched = True
            end_with_this_process(self.folder, "server.pid")
        tries = int(self.patience / 0.05)
        for _ in range(tries):
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                threading.Event().wait(0.05)
            else:
                return self
        said = (self.folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.command()[0]} did not listen on port {self.port}; it said:\n{said}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It takes connections, as the kernel does that for it, and answers nothing."""
        assert self._process is not None
        stand_still(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it and keep its data."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(self.patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
