"""What tests start ends with them, also if pytest is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = """
import signal, sys
from forked import nursery, run
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
with Postgres() as server, PgBouncer(server) as pooler:
    program = run([sys.executable, "-c", "import os; print(os.getppid())"])
    first = open(f"{server._folder}/postmaster.pid").readline().strip()
    print(first, pooler._process.pid, program.stdout.strip(), server._folder, pooler.folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def folder():
    """A folder with a short name: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ends-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def test_servers_and_their_folders_are_gone_after_a_kill(folder):
    """PostgreSQL, a pooler and the process that commands are forked from; with kill -9 nothing of ours can end them."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE) as process:
        server, pooler, nursery, *folders = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    pids = [int(server), int(pooler), int(nursery)]
    until = time.monotonic() + 40
    while left := [
        *(one for one in pids if Path(f"/proc/{one}").exists()),
        *(one for one in folders if Path(one).exists()),
        *(one for one in folder.iterdir() if one.name.startswith("outlast-")),  # the template's, too
    ]:
        assert time.monotonic() < until, left
        threading.Event().wait(0.1)
