"""
A real PgBouncer in front of a test's PostgreSQL, from the program of the Debian package ``pgbouncer``.

    with PgBouncer(postgres) as pooler:
        psycopg.connect(pooler.dsn(postgres))

It lends a connection for one transaction, as poolers mostly do in production. There are only a few connections to lend,
so that clients get one after the other what somebody else has used: whatever depends on a session shows.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Self

from servers.postgres import USER
from servers.program import Program, find

if TYPE_CHECKING:
    from servers.postgres import Postgres

PACKAGE = "install the package pgbouncer (`make servers` does, as root)"


class PgBouncer(Program):
    """A pooler in transaction mode for all databases of a server."""

    def __init__(self, server: Postgres, *, lends: int = 4, patience: int = 100) -> None:
        """It has so many connections to lend, and lets a client wait so many seconds for one."""
        super().__init__()
        self._server = server
        self._lends = lends
        self._patience = patience

    def dsn(self, database: Postgres) -> str:
        """The address of a database of the server, through the pooler."""
        return f"postgresql://postgres:@127.0.0.1:{self.port}/{database.name}"

    def start(self) -> Self:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "auth_type": "any",  # whoever comes is `postgres`
            "admin_users": "postgres",
            "default_pool_size": self._lends,
            "max_client_conn": 500,
            "query_wait_timeout": self._patience,
            "server_login_retry": 1,
        }
        text = f"[databases]\n* = host={Path(self._server.socket).parent} user=postgres\n\n[pgbouncer]\n"
        text += "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "pgbouncer.ini").write_text(text)
        if os.geteuid() == 0:  # it refuses to be root, and must reach the socket of the server
            for path in (self.folder, self.folder / "pgbouncer.ini"):
                shutil.chown(path, USER, USER)
        return super().start()

    def command(self) -> list[str]:
        user = ["-u", USER] if os.geteuid() == 0 else []
        return [find("pgbouncer", package=PACKAGE), "-q", *user, str(self.folder / "pgbouncer.ini")]
