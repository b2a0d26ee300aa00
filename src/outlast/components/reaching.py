"""
Whether what a connection names can be reached: one attempt, within a time limit, for ``outlast connections doctor``.
Nothing is written there. What goes wrong is raised as it is; `failure` says which of five kinds it is, and why. It has no
word of a driver: those quote the host, the user, and of an address that is written wrongly also a part of the password.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from outlast.components.reading import missing
from outlast.errors import ConfigurationError
from outlast.isolation.threads import start_thread
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind: TypeAlias = Literal["auth", "network", "permission", "timeout", "unknown"]
_KINDS: dict[str, Kind] = {
    "auth_error": "auth",
    "tls_verify": "auth",
    "permission_denied": "permission",
    "timeout": "timeout",
    "network_error": "network",
    "connection_refused": "network",
    "connection_reset": "network",
    "dns_error": "network",
    "database_connection": "network",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why it is not reached: one of five kinds, the reason in our own words, and the fields that have to do with it."""

    kind: Kind
    why: str
    fields: tuple[str, ...] = ()


_HOST = ("url", "base_url", "endpoint_url", "host", "port")
_LOGIN = ("url", "user", "password", "token", "key", "api_key", "access_key_id", "secret_access_key")
_TLS = ("url", "base_url", "endpoint_url", "sslmode", "sslrootcert")
# While a connection is being made the driver hands on what the server says, and not its code. The first that fits.
_SAYS: tuple[tuple[str, Kind, str, tuple[str, ...]], ...] = (
    (r"password authentication failed", "auth", "the password or the user is wrong", _LOGIN),
    (r"no password supplied", "auth", "the server wants a password, and there is none", _LOGIN),
    (r"role .* does not exist", "auth", "the server does not know the user", _LOGIN),
    (r"no pg_hba\.conf entry", "auth", "the server lets this user in neither from here nor in this way", _LOGIN),
    (r"authentication failed|gssapi|sasl", "auth", "the server does not accept who logs in", _LOGIN),
    (r"permission denied", "permission", "the user may not use this database", ("url", "database", "user")),
    (r"timeout expired|timed out", "timeout", "no answer in time", _HOST),
    (r"database .* does not exist", "unknown", "the server has no such database", ("url", "database")),
    (r"too many (clients|connections)|remaining connection slots", "unknown", "the server takes no more", ()),
    (r"starting up|shutting down|in recovery", "network", "the server is starting or stopping", ()),
    (r"root certificate file|certificate file", "auth", "the file of the authority cannot be read", _TLS),
    (r"certificate|does not support ssl|ssl error", "auth", "the server cannot prove who it is (TLS)", _TLS),
    (r"resolve|name or service not known|translate host|nodename", "network", "cannot find the host", _HOST),
    (r"connection refused", "network", "the host refuses the connection: nothing listens there", _HOST),
    (r"no such file or directory", "network", "there is no server in this folder", _HOST),
    (r"unreachable|no route", "network", "the host cannot be reached from here", _HOST),
    (r"server closed the connection|reset by peer|broken pipe", "network", "the other side hung up", _HOST),
    (r"fatal:", "unknown", "the server says no", ()),
)
_SAID = [(re.compile(one, re.IGNORECASE), Failure(kind, why, fields)) for one, kind, why, fields in _SAYS]
# Numbers of MySQL that say more than their class.
_OF_MYSQL: dict[int, Failure] = {
    1040: Failure("unknown", "the server takes no more"),
    1203: Failure("unknown", "the server takes no more of this user"),
    1226: Failure("unknown", "the server takes no more of this user"),
    1045: Failure("auth", "the password or the user is wrong", _LOGIN),
    1049: Failure("unknown", "the server has no such database", ("url", "database")),
    1044: Failure("permission", "the user may not use this database", ("url", "database", "user")),
    1130: Failure("permission", "the server lets nobody in from here", _HOST),
    2026: Failure("auth", "the server cannot prove who it is (TLS)", _TLS),
}
# What the class of an error says, where no text does.
_OF_CLASS: dict[str, tuple[str, tuple[str, ...]]] = {
    "auth_error": ("the service does not accept who logs in", _LOGIN),
    "tls_verify": ("the server cannot prove who it is (TLS)", _TLS),
    "permission_denied": ("whoever logs in may not do this", _LOGIN),
    "timeout": ("no answer in time", _HOST),
    "network_error": ("the connection failed", _HOST),
    "connection_refused": ("the host refuses the connection: nothing listens there", _HOST),
    "connection_reset": ("the other side hung up", _HOST),
    "dns_error": ("cannot find the host", _HOST),
    "database_connection": ("the connection to the database failed", _HOST),
}


class NotAllowed(Exception):
    """The connection does not allow this address."""


class NotInstalled(Exception):
    """A package that is needed to reach it is not there."""


class Unreadable(Exception):
    """The driver cannot read the address."""


class NotThere(Exception):
    """The service has no such bucket."""


class NoAnswer(TimeoutError):
    """Nobody has answered in time."""


class Answered(Exception):
    """The service answered with a status that says no."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the service answered with the status {status}")
        self.status_code = status


def failure(error: BaseException) -> Failure:
    """What went wrong, without a word of what raised it; only our own errors are shown as they are."""
    if isinstance(error, NotAllowed):
        return Failure("permission", str(error), ("base_url", "url"))
    if isinstance(error, NoAnswer):
        return Failure("timeout", str(error), _HOST)
    if isinstance(error, NotThere):
        return Failure("unknown", str(error), ("bucket",))
    if isinstance(error, NotInstalled):
        return Failure("unknown", str(error))
    if isinstance(error, Unreadable):
        return Failure("unknown", str(error), ("url",))
    found = classify(error).error_class
    kind = _KINDS.get(found, "unknown")
    if isinstance(error, Answered):
        return Failure(kind, str(error), _LOGIN if kind in ("auth", "permission") else ("base_url", "url"))
    if isinstance(error, TimeoutError):
        return Failure("timeout", *_OF_CLASS["timeout"])
    first = error.args[0] if error.args else None
    if type(error).__module__.partition(".")[0] == "pymysql" and first in _OF_MYSQL:
        return _OF_MYSQL[first]
    if kind == "network":
        for pattern, said in _SAID:
            if pattern.search(str(error)):
                return said
    why, fields = _OF_CLASS.get(found, (f"{type(error).__name__}, whose words may show a value and are left out", ()))
    return Failure(kind, why, fields)


def reached(reach: Callable[[Mapping[str, Any], float], object], fields: Mapping[str, Any], limit: float) -> None:
    """
    Try it for at most `limit` seconds, also where a name server does not answer: the thread that waits for that is left
    behind. Raises what went wrong.
    """
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            reach(fields, limit)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True, name="outlast-reach")
    start_thread(thread)
    thread.join(limit)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise NoAnswer(f"no answer within {limit:g} s")


def plain_value(value: Any) -> Any:
    """What a field of a resolved connection holds, a secret too."""
    return value.reveal() if hasattr(value, "reveal") else value


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

_OF_DRIVER = {"database": "dbname"}
_FOR_DRIVER = ("host", "port", "database", "user", "password", "sslmode", "sslrootcert")


def conninfo(fields: Mapping[str, Any]) -> str:
    """How the driver is told of a connection. Every value is quoted: none of them is read as a setting."""
    if fields.get("url") is not None:
        return str(plain_value(fields["url"]))
    given = {_OF_DRIVER.get(key, key): plain_value(fields[key]) for key in _FOR_DRIVER if fields.get(key) is not None}
    quoted = {key: str(value).replace("\\", "\\\\").replace("'", "\\'") for key, value in given.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


def reach_postgres(fields: Mapping[str, Any], limit: float) -> None:
    """Log in, and ask for nothing."""
    try:
        from outlast.store.postgres import Postgres
    except ImportError:
        raise NotInstalled(str(missing("PostgreSQL", "psycopg 3", "postgres"))) from None
    try:
        database = Postgres(conninfo(fields), patience=limit, bounded=False)
    except ConfigurationError:
        raise Unreadable("the address cannot be read") from None
    connection = database.connect(batches=False)
    try:
        connection.execute("select 1")
    finally:
        connection.close()


# -- MySQL -------------------------------------------------------------------------------------------------------------


def reach_mysql(fields: Mapping[str, Any], limit: float) -> None:
    """Log in, and ask for nothing."""
    try:
        from outlast.components.mysql import connect_mysql
    except ImportError:
        raise NotInstalled(str(missing("MySQL", "PyMySQL", "mysql"))) from None
    connection = connect_mysql(fields, limit)
    try:
        connection.ping(reconnect=False)
    finally:
        connection.close()


# -- HTTP --------------------------------------------------------------------------------------------------------------


# Addresses that lead to one of IPv4 which is a part of them, by how many bits stand behind it: whoever passes them on
# translates them. Mapped, compatible and translated ones, NAT64, 6to4.
_CARRY = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
# NAT64 of a network's own, in which it alone knows where the other address stands; Teredo; what was site-local.
_OWN = (IPv6Network("64:ff9b:1::/48"), IPv6Network("2001::/32"), IPv6Network("fec0::/10"))
_PLATFORM = IPv4Address("168.63.129.16")  # by which machines of Azure ask their host


def is_public(address: str) -> bool:
    """
    Whether an address belongs to nobody's own network, however it is spelt.

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("64:ff9b::a9fe:a9fe")
    (True, False, False, False)
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        if any(found in own for own in _OWN):
            return False
        behind = next((bits for carry, bits in _CARRY if found in carry), None)
        if behind is not None:
            found = IPv4Address(int(found) >> behind & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and found != _PLATFORM


def reach_http(fields: Mapping[str, Any], limit: float) -> None:
    """
    Ask for the base address, and look at the status only. The name is looked up once, every address that it has is
    checked, and one of those is connected to; nothing is followed.
    """
    import http.client
    import ssl

    parts = urlsplit(fields["base_url"])
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not fields.get("allow_private") and not all(is_public(str(one[4][0])) for one in found):
        raise NotAllowed("the host is in this machine or a private network; allow_private: true allows that")
    channel = _connected(found, limit)
    try:
        if is_tls:
            channel = ssl.create_default_context().wrap_socket(channel, server_hostname=host)
        connection = http.client.HTTPConnection(host, port, timeout=limit)
        connection.sock = channel
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=_headers(fields))
        with closing(connection.getresponse()) as answer:
            status = answer.status
    finally:
        channel.close()
    if status in (401, 403, 407) or status >= 500:
        raise Answered(status)


def reach_llm(fields: Mapping[str, Any], limit: float) -> None:
    """Ask for the models of an endpoint, which costs nothing, and look at the status only."""
    headers = dict(fields.get("headers", {}))
    if fields.get("organization") is not None:
        headers["OpenAI-Organization"] = fields["organization"]
    asked = {"base_url": f"{fields['base_url'].rstrip('/')}/models", "token": fields.get("api_key"), "headers": headers}
    reach_http({**asked, "allow_private": fields.get("allow_private")}, limit)


def _connected(found: list[Any], limit: float) -> socket.socket:
    """A connection to the first address that takes one."""
    refused: OSError | None = None
    for family, kind, protocol, _, address in found:
        channel = socket.socket(family, kind, protocol)
        channel.settimeout(limit)
        try:
            channel.connect(address)
        except OSError as error:
            refused = error
            with suppress(OSError):
                channel.close()
        else:
            return channel
    raise refused or OSError("the name has no address")


def _headers(fields: Mapping[str, Any]) -> dict[str, str]:
    import base64

    found = {key: str(plain_value(value)) for key, value in fields.get("headers", {}).items()}
    if fields.get("token") is not None:
        found["Authorization"] = f"Bearer {plain_value(fields['token'])}"
    elif fields.get("user") is not None:
        login = f"{fields['user']}:{plain_value(fields['password'])}"
        found["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return found


def supabase_url(fields: Mapping[str, Any]) -> str:
    """Where the tables of a connection of the family `supabase` are, without a slash at the end."""
    return str(plain_value(fields["url"])).rstrip("/") + str(fields.get("path", "/rest/v1")).rstrip("/")


def reach_supabase(fields: Mapping[str, Any], limit: float) -> None:
    """Ask what there is, with the key."""
    key = plain_value(fields["key"])
    asked = {"base_url": f"{supabase_url(fields)}/", "token": key, "headers": {"apikey": key}}
    reach_http({**asked, "allow_private": fields.get("allow_private", False)}, limit)


# -- S3 ----------------------------------------------------------------------------------------------------------------


def reach_s3(fields: Mapping[str, Any], limit: float) -> None:
    """Ask for the name of one object of the bucket."""
    try:
        from outlast.components.steps.doing import s3
    except ConfigurationError as not_there:
        raise NotInstalled(str(not_there)) from None
    if not s3.is_there(fields, limit):
        raise NotThere("the store has no such bucket")
