"""
The services that the worker depends on, on this machine, and how they misbehave: as the script says, and not by chance.

    S3          `rclone serve s3`, behind a proxy that resets connections and loses answers
    the model   an endpoint with the interface of OpenAI, which counts who was asked about, and what it said
    PostgreSQL  a table whose trigger raises errors, or waits, for the files of the script

Each of them keeps a ledger: what it was really asked and what it really has, whatever the worker believes.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import boto3
import psycopg
from botocore.config import Config
from script import CORRUPTED, HUNG_UP, KILL, LOST_ANSWER, METADATA, MISSING, RESET, RESTART, STALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from script import Fault, Input

LOCK = 15  # who updates a file of the script waits for this lock, which nobody gives


# -- the model -------------------------------------------------------------------------------------------------------------


class Model:
    """Answers questions about files, and keeps a ledger: `calls` by file, what it `said`, and what SDKs said of their own retries."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = {one.file: one for one in inputs}
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self._lock = threading.Lock()
        self._let_go = threading.Event()
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, name="model")
        self.calls: Counter[str] = Counter()
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.own_retries: Counter[str] = Counter()
        self.held = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def turn(self, body: str, headers: Any) -> tuple[Input, Fault | None]:
        """Whose question this is, and what goes wrong with it this time."""
        found = re.search(r"f-\d{5}\.\w+", body)
        assert found is not None, "a question about no file"
        with self._lock:
            one = self._inputs[found[0]]
            self.calls[one.file] += 1
            self.own_retries[headers.get("x-stainless-retry-count", "none")] += 1
            faults = [*one.story.faults.get("ask", ()), *one.story.faults.get("check", ())]
            number = self.calls[one.file]
        return one, faults[number - 1] if number <= len(faults) else None

    def hold(self) -> None:
        """Say nothing, until the model is closed."""
        with self._lock:
            self.held += 1
        self._let_go.wait()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    model: Model

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news: some are killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        model = self.server.model
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        one, fault = model.turn(body, self.headers)
        if fault is KILL or fault is STALL:
            self.close_connection = True
            model.hold()
        elif fault is HUNG_UP:
            # Lingering for zero seconds turns the close into a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.rfile.close()
            self.connection.close()
        elif fault is not None and fault.status:
            self._answer(fault.status, {"error": {"message": "as scripted", "type": "scripted"}}, fault.retry_after)
        else:
            text = one.answer if fault is None else fault.answer
            model.said[one.file].append(text)
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if fault is not None and fault.refused:
                message["refusal"] = "I cannot help with that."
            finish = "stop" if fault is None else fault.finish
            self._answer(
                200,
                {
                    "id": f"chatcmpl-{one.number}",
                    "object": "chat.completion",
                    "created": 1_790_000_000,
                    "model": "reporter-1",
                    "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                    "usage": {
                        "prompt_tokens": len(body) // 4,
                        "completion_tokens": 40,
                        "total_tokens": len(body) // 4 + 40,
                    },
                },
            )

    def _answer(self, status: int, said: dict[str, Any], retry_after: int = 0) -> None:
        content = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """The ledger has it."""


# -- the object store ------------------------------------------------------------------------------------------------------


def bucket_client(url: str, access_key: str, secret_key: str) -> Any:
    """For the ledger, which looks at the objects without the proxy."""
    return boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


class Objects:
    """One bucket with a report for each input, but for those that are missing; `bucket` is that of one trial."""

    def __init__(self, client: Any, bucket: str, proxy: Any) -> None:
        self._client, self.bucket, self._proxy = client, bucket, proxy
        self._before = proxy.struck.count("stall")

    def fill(self, inputs: Sequence[Input]) -> None:
        self._client.create_bucket(Bucket=self.bucket)
        for one in inputs:
            faults = one.story.faults.get("read", ())
            if MISSING not in faults:
                text = f"The report {one.file}.\n" + "All went as planned. " * 20
                owner = "o-%00" if CORRUPTED in faults else f"o-{one.number % 7}"
                metadata = {} if METADATA in faults else {"owner": owner}
                self._client.put_object(Bucket=self.bucket, Key=f"in/{one.file}", Body=text.encode(), Metadata=metadata)

    def misbehave(self, inputs: Sequence[Input]) -> None:
        """Tell the proxy which requests go wrong, by the name of the file in them."""
        for one in inputs:
            self._fault("GET", f"in/{one.file}", one.story.faults.get("read", ()))
            self._fault("PUT", f"out/{one.file}.json", one.story.faults.get("write", ()))

    def _fault(self, verb: str, key: str, faults: Sequence[Fault]) -> None:
        kinds = {RESET: "reset_before", LOST_ANSWER: "reset_after", KILL: "stall"}
        for fault in faults:
            if fault in kinds:
                self._proxy.fault(kinds[fault], when=f"{verb} /{self.bucket}/{key}".encode())

    @property
    def stalled(self) -> int:
        """How many requests wait for an answer that does not come."""
        return int(self._proxy.struck.count("stall")) - self._before

    def written(self) -> dict[str, Any]:
        """Every report that is there, by its key."""
        found = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="out/"):
            for entry in page.get("Contents", ()):
                body = self._client.get_object(Bucket=self.bucket, Key=entry["Key"])["Body"].read()
                found[entry["Key"]] = json.loads(body)
        return found


# -- the database ----------------------------------------------------------------------------------------------------------

TABLES = """
create table reports (file text primary key, object text not null);
create table written (file text not null, object text not null);
create table mishaps (file text, turn int, sqlstate text, waits bool, primary key (file, turn));
create function misbehave() returns trigger language plpgsql as $$
declare
  mishap mishaps;
  times int;
begin
  perform 1 from mishaps where file = new.file;
  if found then
    times := nextval(format('%I', new.file)); -- it counts on, although its transaction is rolled back
    select * into mishap from mishaps where file = new.file and turn = times;
    if mishap.waits then
      perform pg_advisory_xact_lock_shared({lock});
    elsif mishap.sqlstate is not null then
      raise exception 'as scripted' using errcode = mishap.sqlstate;
    end if;
  end if;
  insert into written values (new.file, new.object);
  return new;
end $$;
create trigger misbehave before insert or update on reports for each row execute function misbehave();
"""


class Table:
    """The table of one trial, in a database of its own: `written` has a row for every write that was committed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._keeper: psycopg.Connection[Any] | None = None

    def make(self, inputs: Sequence[Input]) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(TABLES.replace("{lock}", str(LOCK)))
            for one in inputs:
                faults = one.story.faults.get("update", ())
                for turn, fault in enumerate(faults, 1):
                    row = (one.file, turn, fault.sqlstate or None, fault in (KILL, RESTART))
                    connection.execute("insert into mishaps values (%s, %s, %s, %s)", row)
                if faults:
                    connection.execute(f'create sequence "{one.file}"')

    def lock(self) -> None:
        """From now on, those wait whose story says so."""
        self.unlock()
        self._keeper = psycopg.connect(self.dsn, autocommit=True)
        self._keeper.execute("select pg_advisory_lock(%s)", (LOCK,))

    def unlock(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def waiting(self) -> list[int]:
        """The sessions that wait."""
        if self._keeper is None:
            return []
        query = "select pid from pg_locks where locktype = 'advisory' and not granted"
        return [pid for (pid,) in self._keeper.execute(query)]

    def hang_up(self) -> None:
        """End the sessions that wait: who had opened them is dead, which PostgreSQL would see only when it answers."""
        for pid in self.waiting():
            assert self._keeper is not None
            self._keeper.execute("select pg_terminate_backend(%s, 10000)", (pid,))

    def rows(self) -> dict[str, str]:
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute("select file, object from reports").fetchall())

    def writes(self) -> Counter[tuple[str, str]]:
        with psycopg.connect(self.dsn) as connection:
            return Counter(connection.execute("select file, object from written").fetchall())
