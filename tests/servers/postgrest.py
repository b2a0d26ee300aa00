"""
A server on loopback that speaks as PostgREST does, on a real PostgreSQL: what Supabase has before its tables.

    with PostgREST(postgres.dsn, keys={"k3y-of-the-service": None, "k3y-of-a-reader": "reader"}) as server:
        server.url, server.asked            # where it is, and what it was asked, in order
        server.instead = [(503, {"Retry-After": "7"}, b"")]     # what the next requests get in place of an answer

It knows inserts, upserts (``on_conflict``, ``Prefer: resolution``), deletes by eq, in and is, ``columns``, ``Prefer: return`` and
``count``, and profiles (schemas). Each request is one transaction, as the role of its key. Errors are JSON with code, message,
details and hint, under the status that PostgREST has for the SQLSTATE.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg import sql

PREFIX = "/rest/v1/"
# As the documentation of PostgREST has them: the first that fits.
STATUSES = (
    ("08", 503), ("09", 500), ("0L", 403), ("0P", 403), ("23503", 409), ("23505", 409), ("25006", 405), ("25", 500), ("28", 403),
    ("2D", 500), ("38", 500), ("39", 500), ("3B", 500), ("40", 500), ("53400", 500), ("53", 503), ("54", 500), ("55", 500),
    ("57", 500), ("58", 500), ("F0", 500), ("HV", 500), ("P0001", 400), ("P0", 500), ("XX", 500), ("42883", 404),
    ("42P01", 404), ("42P17", 500), ("42501", 403),
)  # fmt: skip
PLAIN = {"select", "order", "limit", "offset", "columns", "on_conflict", "and", "or"}


class Refused(Exception):
    """What the server itself says no to."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Asked(NamedTuple):
    method: str
    path: str  # behind the prefix
    prefer: str
    size: int  # of the body


class PostgREST:
    def __init__(self, dsn: str, *, keys: dict[str, str | None], schemas: tuple[str, ...] = ("public",)) -> None:
        self.dsn, self.keys, self.schemas = dsn, keys, schemas
        self.asked: list[Asked] = []
        self.instead: list[tuple[int, dict[str, str], bytes] | None] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = False
        self._http.ours = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        ours: PostgREST = self.server.ours
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        ours.asked.append(
            Asked(self.command, self.path.removeprefix(PREFIX), self.headers.get("Prefer", ""), len(body))
        )
        instead = ours.instead.pop(0) if ours.instead else None
        if instead is not None:
            self._answer(*instead)
            return
        try:
            self._answer(*self._done(ours, body))
        except Refused as no:
            self._error(no.status, no.code, str(no))
        except psycopg.Error as error:
            state = error.sqlstate or "08006"
            status = next((status for prefix, status in STATUSES if state.startswith(prefix)), 400)
            self._error(status, state, error.diag.message_primary or "", error.diag.message_detail)

    do_DELETE = do_GET = do_POST  # noqa: N815 - the standard library's names

    def _done(self, ours: PostgREST, body: bytes) -> tuple[int, dict[str, str], bytes]:
        key = self.headers.get("apikey", "")
        if key not in ours.keys or self.headers.get("Authorization") != f"Bearer {key}":
            raise Refused(401, "PGRST301", "JWSError JWSInvalidSignature")
        parts = urlsplit(self.path)
        if not parts.path.startswith(PREFIX):
            raise Refused(404, "PGRST125", "Invalid path specified in request URL")
        if self.command == "GET":
            return 200, {"Content-Type": "application/openapi+json"}, b"{}"
        schema = self.headers.get("Content-Profile", ours.schemas[0])
        if schema not in ours.schemas:
            raise Refused(406, "PGRST106", f"The schema must be one of the following: {', '.join(ours.schemas)}")
        table = parts.path.removeprefix(PREFIX)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        prefers = {one.strip() for one in self.headers.get("Prefer", "").split(",")}
        with psycopg.connect(ours.dsn) as connection:
            columns = _columns(connection, schema, table)
            if ours.keys[key] is not None:
                connection.execute(sql.SQL("set local role {}").format(sql.Identifier(str(ours.keys[key]))))
            work = _insert if self.command == "POST" else _delete
            statement = work(sql.Identifier(schema, table), query, prefers, columns, body)
            rows = [row[0] for row in connection.execute(statement).fetchall()]
        headers = {"Content-Range": f"*/{len(rows) if 'count=exact' in prefers else '*'}"}
        if "return=representation" not in prefers:
            return 201 if self.command == "POST" else 204, headers, b""
        content = f"[{','.join(rows)}]".encode()  # as the database wrote them, with all digits of numbers
        return 201 if self.command == "POST" else 200, headers | {"Content-Type": "application/json"}, content

    def _error(self, status: int, code: str, message: str, details: str | None = None) -> None:
        body = json.dumps({"code": code, "message": message, "details": details, "hint": None}).encode()
        self._answer(status, {"Content-Type": "application/json; charset=utf-8"}, body)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _columns(connection: psycopg.Connection[Any], schema: str, table: str) -> set[str]:
    found = connection.execute(
        "select column_name from information_schema.columns where table_schema = %s and table_name = %s",
        (schema, table),
    ).fetchall()
    if not found:
        raise Refused(404, "PGRST205", f"Could not find the table '{schema}.{table}' in the schema cache")
    return {row[0] for row in found}


def _names(text: str) -> list[str]:
    return [one.strip('"') for one in text.split(",")]


def _insert(
    table: sql.Identifier, query: list[tuple[str, str]], prefers: set[str], known: set[str], body: bytes
) -> sql.Composed:
    given = dict(query)
    rows = json.loads(body)
    columns = _names(given["columns"]) if "columns" in given else list(rows[0])
    if unknown := [one for one in columns if one not in known]:
        raise Refused(400, "PGRST204", f"Could not find the '{unknown[0]}' column of the table in the schema cache")
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("insert into {} as t ({}) select {} from json_populate_recordset(null::{}, {})").format(
        table, listed, listed, table, sql.Literal(json.dumps(rows))
    )
    if "on_conflict" in given and any(one.startswith("resolution=") for one in prefers):
        key = _names(given["on_conflict"])
        changed = sql.SQL(", ").join(sql.SQL("{} = excluded.{}").format(*[sql.Identifier(one)] * 2) for one in columns)
        what = (
            sql.SQL("nothing")
            if "resolution=ignore-duplicates" in prefers
            else sql.SQL("update set {}").format(changed)
        )
        statement += sql.SQL(" on conflict ({}) do {}").format(sql.SQL(", ").join(map(sql.Identifier, key)), what)
    return statement + sql.SQL(" returning to_json(t)::text")


def _delete(
    table: sql.Identifier, query: list[tuple[str, str]], prefers: set[str], known: set[str], body: bytes
) -> sql.Composed:
    where = [_condition(name.strip('"'), value) for name, value in query if name not in PLAIN]
    statement = sql.SQL("delete from {} as t").format(table)
    if where:
        statement += sql.SQL(" where ") + sql.SQL(" and ").join(where)
    return statement + sql.SQL(" returning to_json(t)::text")


def _condition(name: str, text: str) -> sql.Composed:
    """One value is all that stands behind its operator; those of a list may stand in quotes."""
    operator, _, value = text.partition(".")
    column = sql.Identifier(name)
    if operator == "eq":
        return sql.SQL("t.{} = {}").format(column, sql.Literal(value))
    if operator == "is" and value in ("null", "true", "false"):
        return sql.SQL("t.{} is {}").format(column, sql.SQL(value))
    if operator == "in" and value[:1] == "(" and value[-1:] == ")":
        found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^,"]+)', value[1:-1])
        values = [re.sub(r"\\(.)", r"\1", quoted) if quoted or not bare else bare for quoted, bare in found]
        if not values:
            return sql.SQL("false").format()
        return sql.SQL("t.{} in ({})").format(column, sql.SQL(", ").join(map(sql.Literal, values)))
    raise Refused(400, "PGRST100", f'"failed to parse filter ({text})" (line 1, column 1)')
