"""
How a MySQL or MariaDB database is reached, by the fields of a connection of the family `mysql`.
"""

from __future__ import annotations

import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pymysql  # type: ignore[import-untyped]

from outlast.components.deadline import Late
from outlast.components.reaching import plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping


def connect_mysql(fields: Mapping[str, Any], limit: float, **options: Any) -> pymysql.Connection[Any]:
    """
    A connection of PyMySQL that is made within so many seconds, and after that waits as long as it takes. Without TLS only
    where `sslmode` says so, or in a socket.
    """
    told = _mysql(fields)
    context = None if "unix_socket" in told else _mysql_tls(fields)
    settings: dict[str, Any] = {"ssl": context} if context is not None else {"ssl_disabled": True}
    settings |= {"connect_timeout": max(0.1, limit), "read_timeout": max(0.1, limit), "charset": "utf8mb4"}
    connection: Any = _Timely(limit, **told, **settings, **options)
    if context is not None and not hasattr(connection._sock, "getpeercert"):  # noqa: SLF001 - nothing else tells
        connection.close()
        raise pymysql.err.OperationalError(2026, "SSL is required but the server does not support it")
    connection._read_timeout = None  # noqa: SLF001 - a query may take longer than a connection
    return connection


class _Timely(pymysql.Connection):  # type: ignore[misc]
    """A connection that stands in time or not at all. The driver bounds each wait alone, and a server may send its greeting byte by byte."""

    def __init__(self, limit: float, **settings: Any) -> None:
        self._until = monotonic() + limit
        self._late: Late | None = None
        super().__init__(**settings)

    def connect(self, sock: Any = None) -> None:
        try:
            super().connect(sock)
        finally:
            if self._late is not None:
                self._late.__exit__()

    def _get_server_information(self) -> None:
        """The first that is read once the socket is there."""
        self._late = Late(self._sock.fileno(), max(0.001, self._until - monotonic()))  # pyright: ignore[reportAttributeAccessIssue]
        self._late.__enter__()
        super()._get_server_information()  # pyright: ignore[reportAttributeAccessIssue]


def _mysql(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Where the server is, and who reaches it, as the driver has it."""
    if fields.get("url") is not None:
        parts = urlsplit(str(plain_value(fields["url"])))
        login = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        return {"host": parts.hostname or "", "port": parts.port or 3306, "database": unquote(parts.path[1:]), **login}
    host = str(plain_value(fields["host"]))
    where = {"unix_socket": host} if host.startswith("/") else {"host": host, "port": int(fields.get("port", 3306))}
    login = {name: str(plain_value(fields[name])) for name in ("database", "user")}
    return {**where, **login, "password": str(plain_value(fields.get("password") or ""))}


def _mysql_tls(fields: Mapping[str, Any]) -> ssl.SSLContext | None:
    """How the server must prove who it is; None if it need not."""
    mode = fields.get("sslmode", "verify-full")
    if mode == "disable":
        return None
    authority = fields.get("sslrootcert")
    context = ssl.create_default_context(cafile=None if authority is None else str(plain_value(authority)))
    context.check_hostname = mode == "verify-full"
    if mode == "require":
        context.verify_mode = ssl.CERT_NONE
    return context
