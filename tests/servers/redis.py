"""
A real Redis of our own, from the program of the Debian package ``redis-server``. It keeps nothing on disk.

    with Redis() as server:
        redis.Redis(port=server.port).ping()
"""

from __future__ import annotations

from servers.program import Program, find

PACKAGE = "install the package redis-server (`make servers` does, as root)"


class Redis(Program):
    def command(self) -> list[str]:
        program = find("redis-server", package=PACKAGE)
        return [program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
