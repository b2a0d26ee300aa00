"""
A real MariaDB of our own, from the program of the Debian package ``mariadb-server``.

    with MariaDB() as mariadb:
        connection = pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root")
"""

from __future__ import annotations

import getpass
import subprocess
from typing import Self

from servers.program import Program, find

PACKAGE = "install the package mariadb-server (`make servers` does, as root)"


class MariaDB(Program):
    """The user ``root`` comes in without a password."""

    @property
    def _tmpdir(self) -> str:
        # A server that starts removes what it takes for its own leftovers there: two of them must not share one.
        return f"--tmpdir={self.folder / 'tmp'}"

    def start(self) -> Self:
        (self.folder / "tmp").mkdir(exist_ok=True)
        if not (self.folder / "data").exists():
            done = subprocess.run(
                [
                    find("mariadb-install-db", "mysql_install_db", package=PACKAGE),
                    "--no-defaults",
                    f"--datadir={self.folder / 'data'}",
                    self._tmpdir,
                    f"--user={getpass.getuser()}",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"MariaDB could not make its data folder:\n{done.stdout}\n{done.stderr}")
        return super().start()

    def command(self) -> list[str]:
        return [
            find("mariadbd", "mysqld", package=PACKAGE),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            self._tmpdir,
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--user={getpass.getuser()}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
            "--performance-schema=OFF",
        ]
