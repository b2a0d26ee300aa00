"""
`s3.reader`, `s3.writer` and `s3.deleter`: one object each, by a client of its own that never tries again.

Errors are told in our words: those of the library quote what the store says. What a broken connection leaves of an answer is
never taken for one: an answer must say how long it is, and be that long. Every wait ends with the time of the attempt, however
slowly the store takes or sends.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
import tempfile
import threading
from base64 import b64encode
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b, md5, sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from outlast.components import open_sink, packed
from outlast.components.reaching import plain_value
from outlast.components.reading import missing
from outlast.components.steps.doing import invalid, keep
from outlast.components.steps.doing.files import fill, rows_of
from outlast.components.steps.doing.jsons import strict
from outlast.components.steps.s3 import OWN_METADATA, OWN_WORK, format_of
from outlast.components.values import json_text
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.verdicts import classify

try:
    import botocore.config  # type: ignore[import-untyped]
    import botocore.loaders  # type: ignore[import-untyped]
    import botocore.session  # type: ignore[import-untyped]
    from botocore.awsrequest import (  # type: ignore[import-untyped]
        AWSHTTPConnection,
        AWSHTTPConnectionPool,
        AWSHTTPSConnection,
        AWSHTTPSConnectionPool,
        AWSResponse,
    )
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
        ConfigNotFound,
        ConfigParseError,
        InvalidConfigError,
        PartialCredentialsError,
        ProfileNotFound,
    )
    from botocore.httpsession import URLLib3Session  # type: ignore[import-untyped]
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
except ImportError:
    raise missing("a step with S3", "boto3", "s3") from None

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outlast.components.running import StepContext
    from outlast.components.steps.s3 import DeleterConfig, ReaderConfig, WriterConfig
    from outlast.errors import OutlastError

_PATIENCE = 60.0  # seconds for one wait on the socket, where no time limit is nearer
_PIECE = 16_384  # bytes that are read at a time
_ANSWER = 65_536  # bytes of an answer that is no object; what is longer is not read
_TYPES = {
    "text": "text/plain; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "bytes": "application/octet-stream",
}
_PACKED_TYPES = {".gz": "application/gzip", ".zst": "application/zstd"}
_UNUSABLE = (ConfigNotFound, ConfigParseError, InvalidConfigError, PartialCredentialsError, ProfileNotFound)
_LOADER = botocore.loaders.create_loader()  # reads the description of the service once for all clients
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_MD5 = re.compile(r"[0-9a-f]{32}")
# By what an answer of a store is known: the mark of an object, of one in parts too, and headers of AWS, MinIO and others.
_S3_ETAG = re.compile(r'"?[0-9a-f]{32}(-[0-9]+)?"?')
_S3_HEADER = re.compile(r"x-(amz|goog)-|x-[a-z]+-request-id")
# What the store says of bytes that have changed on the way.
_DAMAGED = frozenset("BadDigest IncompleteBody XAmzContentSHA256Mismatch XAmzContentChecksumMismatch".split())
_MISSING = {"NoSuchKey": "object", "NoSuchBucket": "bucket", "NoSuchVersion": "object"}
# What it says of writers that come at the same moment.
_AT_ONCE = frozenset("ConditionalRequestConflict OperationAborted".split())
# What it says of a bucket that is elsewhere.
_ELSEWHERE = frozenset(
    "AuthorizationHeaderMalformed IllegalLocationConstraintException PermanentRedirect Redirect".split()
)
# What is said of an error, by its class.
_WORDS = {
    "timeout": "no answer in time",
    "connection_refused": "the connection was refused: nothing listens there",
    "connection_reset": "the connection broke before the whole answer was there",
    "dns_error": "cannot find the host",
    "tls_verify": "the store cannot prove who it is (TLS)",
    "auth_error": "there is no login that can be used",
    "network_error": "the connection failed",
}

_ours: ContextVar[bool] = ContextVar("outlast_s3", default=False)


def _unheard(_: logging.LogRecord) -> bool:
    """The library's own log has the headers and the bodies of what is sent and of what comes."""
    return not _ours.get()


def _hush() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name == "urllib3.connectionpool" or name.startswith("botocore."):
            logging.getLogger(name).addFilter(_unheard)


_hush()


# -- the connections -----------------------------------------------------------------------------------------------------


class Wire:
    """
    What a client sends its requests by. When the time is over it hangs up, so that whoever waits for the store hears of it:
    what is not on its way yet is not sent any more. An answer that is no object is read up to a length.
    """

    def __init__(self, limit: float | None) -> None:
        self.is_late = False
        self.said = b""  # the body of the last answer that is no object
        self._deadline = None if limit is None else monotonic() + limit
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = None if limit is None else threading.Timer(max(0.0, limit), self._hang_up)
        self._session: Any = None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def carry(self, made: Any, verify: Any) -> None:
        """Send the requests of this client from now on, in place of what the library has made for it."""
        wait = self.wait()
        self._session = URLLib3Session(verify=verify, proxies={}, timeout=(wait, wait))
        # The pools of the library are made by these classes; no setting names them.
        self._session._manager.pool_classes_by_scheme = {  # noqa: SLF001
            "http": type("_Pool", (AWSHTTPConnectionPool,), {"ConnectionCls": self._kind(AWSHTTPConnection)}),
            "https": type("_Pools", (AWSHTTPSConnectionPool,), {"ConnectionCls": self._kind(AWSHTTPSConnection)}),
        }
        made.meta.events.register("before-call.s3", _stay)
        made.meta.events.register("before-send.s3", self._send)

    def wait(self) -> float:
        """How long the next wait may take, in seconds; never 0, which would stand for not waiting at all."""
        return _PATIENCE if self._deadline is None else min(_PATIENCE, max(0.001, self._deadline - monotonic()))

    def _kind(self, plain: Any) -> Any:
        return type("_Connection", (_Held, plain), {"wire": self})

    def _send(self, request: Any, **_: Any) -> Any:
        self.said = b""
        is_object = request.stream_output
        request.stream_output = True  # so that nothing of the body is read yet
        answer = self._session.send(request)
        if is_object and answer.status_code < 300:
            return answer
        self.said = self._read(answer)
        return AWSResponse(answer.url, answer.status_code, answer.headers, _Read(self.said))

    def _read(self, answer: Any) -> bytes:
        """The body of an answer that is no object. Of one that is too long only the status counts."""
        found = bytearray()
        with closing(answer.raw) as body:
            while piece := body.read(_PIECE):
                found += piece
                if len(found) > _ANSWER:
                    if answer.status_code < 300:
                        raise _Torn
                    return b""
        return bytes(found)

    def connected(self, host: str, port: int) -> socket.socket:
        """A connection to the first address of the host that takes one; all of them share the time that is left."""
        refused: OSError | None = None
        for address in dict.fromkeys(one[4][0] for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            try:
                made = socket.create_connection((str(address), port), self.wait())
            except OSError as error:
                refused = error
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self.is_late:
                    made.close()
                    raise TimeoutError
                self._held.append(made.dup())
            return made
        raise refused or OSError("the name has no address")

    def _hang_up(self) -> None:
        with self._lock:
            self.is_late = True
            for held in self._held:
                with held:
                    with suppress(OSError):  # once it is closed, what has not left this machine is thrown away
                        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    with suppress(OSError):
                        held.shutdown(socket.SHUT_RDWR)
            self._held.clear()


def _stay(context: dict[str, Any], **_: Any) -> None:
    """The library asks where a bucket is and sends a request once more, to another region: unless it has done so before."""
    context.setdefault("s3_redirect", {})["redirected"] = True


class _Held:
    """A connection of the library that a wire can hang up."""

    wire: Wire
    host: str
    port: int

    def _new_conn(self) -> socket.socket:
        mine: Any = self
        try:
            return self.wire.connected(self.host.strip("[]"), self.port)
        except socket.gaierror as unknown:
            raise NameResolutionError(self.host, mine, unknown) from unknown
        except TimeoutError as late:
            raise ConnectTimeoutError(mine, "no connection in time") from late
        except OSError as refused:
            raise NewConnectionError(mine, "no connection") from refused

    def _consume_headers(self, stream: Any) -> None:
        """What follows 100 Continue. The library waits for an empty line for ever, also if nobody is there any more."""
        while (line := stream.readline(_ANSWER)) != b"\r\n":
            if not line:
                raise ConnectionResetError


class _Read:
    """A body that is here already."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def stream(self) -> Iterator[bytes]:
        yield self._raw


# -- the client ----------------------------------------------------------------------------------------------------------


def _nobodys() -> dict[str, Any]:
    """The library's settings without the variables and files they are read from. Which certificates are trusted is as ever."""
    known: dict[str, Any] = botocore.session.Session.SESSION_VARIABLES
    unread = {
        name: (key, None, default, cast) for name, (key, _, default, cast) in known.items() if name != "ca_bundle"
    }
    return {**unread, "config_file": (None, None, "", None), "credentials_file": (None, None, "", None)}


def client(fields: Mapping[str, Any], wire: Wire) -> Any:
    """
    One that never tries again. With keys it reads nobody's settings, but which certificates are trusted; without, those of
    this machine tell who logs in. Its requests go by `wire`.
    """
    wait = wire.wait()
    given = {name: plain_value(fields.get(name)) for name in ("access_key_id", "secret_access_key", "session_token")}
    has_keys = given["access_key_id"] is not None
    session = botocore.session.Session(session_vars=_nobodys() if has_keys else None)
    session.register_component("data_loader", _LOADER)
    config = botocore.config.Config(
        retries={"total_max_attempts": 1},
        connect_timeout=wait,
        read_timeout=wait,
        signature_version="s3v4",
        s3={"addressing_style": "path" if fields.get("path_style", True) else "virtual"},
        proxies={},
        ignore_configured_endpoint_urls=has_keys or None,
        # Stores that only speak the protocol do not know the newer checksums; ours are below.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    made: Any = session.create_client(
        "s3",
        region_name=str(fields.get("region") or "us-east-1"),
        endpoint_url=fields.get("endpoint_url"),
        config=config,
        aws_access_key_id=given["access_key_id"],
        aws_secret_access_key=given["secret_access_key"],
        aws_session_token=given["session_token"],
    )
    wire.carry(made, session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True)
    return made


@contextmanager
def asked(fields: Mapping[str, Any], wire: Wire) -> Iterator[Any]:
    """A client whose log nobody hears, and which is closed afterwards."""
    ours = _ours.set(True)
    try:
        made = client(fields, wire)
        _hush()  # what is loaded with the first client, too
        with closing(made):
            yield made
    finally:
        _ours.reset(ours)


def is_there(fields: Mapping[str, Any], limit: float) -> bool:
    """Whether the bucket is there, and whoever logs in may see what is in it. What the library raises goes up as it is."""
    with Wire(limit) as wire, asked(fields, wire) as made:
        try:
            answer = made.list_objects_v2(Bucket=fields["bucket"], MaxKeys=1)
        except ClientError as refused:
            if _status(refused) != 404:
                raise
            return False
        except Exception:
            if not wire.is_late:
                raise
            answer = {}
    if wire.is_late:
        raise TimeoutError
    if "Name" not in answer:  # of the bucket, which the library does not miss where an answer is cut
        raise ConnectionResetError
    return True


# The first client reads descriptions of several megabytes, which must not be part of the time of a call.
_NOBODY = {"endpoint_url": "http://127.0.0.1", "access_key_id": "-", "secret_access_key": "-"}
with Wire(None) as _first, asked(_NOBODY, _first):
    pass


class _Object(NamedTuple):
    """Which object it is, and the client that reaches it."""

    client: Any
    bucket: str
    key: str
    wire: Wire

    @property
    def where(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    def call(self, doing: str, operation: str, but: tuple[str, ...] = (), **options: Any) -> dict[str, Any] | None:
        """
        One call. What comes back is whole, as far as can be told: it says how long its body is, unless it is known to have
        none, and has the mark of the object. None if the store refuses it with one of the codes `but`.
        """
        with _told(self, doing):
            try:
                found: dict[str, Any] = getattr(self.client, operation)(**self.where, **options)
            except ClientError as refused:
                if _code(refused) in but:
                    return None
                raise
            if not (self._is_gone(found) if operation == "delete_object" else self._is_whole(found)):
                if "Body" in found:
                    found["Body"].close()
                raise _Torn
            return found

    def _is_gone(self, found: Mapping[str, Any]) -> bool:
        """Whether the answer to a deletion is one: 204, or 200 and nothing else, which a page of another server is not."""
        status = found["ResponseMetadata"]["HTTPStatusCode"]
        return status == 204 or (status == 200 and not self.wire.said)

    def _is_whole(self, found: Mapping[str, Any]) -> bool:
        """
        Whether an answer about an object is about all of it (200, which 204 and 206 are not), says how long it is, and has the
        object's mark, which is in quotes or in none. Beside an object that is read, it has no body: none comes from a store.
        """
        if found["ResponseMetadata"]["HTTPStatusCode"] != 200 or self.wire.said:
            return False
        etag, headers = str(found.get("ETag", "")), found["ResponseMetadata"]["HTTPHeaders"]
        has_length = bool({"content-length", "transfer-encoding"} & headers.keys())
        is_mark = bool(etag.strip('"')) and etag.startswith('"') == etag.endswith('"')
        return has_length and is_mark and not _is_page(headers, etag)


def _is_page(headers: Mapping[str, str], etag: str) -> bool:
    """
    Whether an answer is surely the page of a web server, such as one to log in. Objects may be pages, too: those of a store
    come with headers of its own, or with the MD5 of their bytes as their mark.
    """
    is_html = headers.get("content-type", "").lower().startswith(("text/html", "application/xhtml"))
    return is_html and not _S3_ETAG.fullmatch(etag) and not any(map(_S3_HEADER.match, headers))


class _Torn(Exception):
    """An answer of which a part is missing."""


@contextmanager
def _reached(config: ReaderConfig | WriterConfig | DeleterConfig, context: StepContext) -> Iterator[_Object]:
    fields = context.connection or {}
    bucket = config.bucket or str(fields["bucket"])
    with ExitStack() as opened:
        wire = opened.enter_context(Wire(context.remaining()))
        with _told(None, "reaching"):
            made = opened.enter_context(asked(fields, wire))
        yield _Object(made, bucket, config.key, wire)


@contextmanager
def _told(about: _Object | None, doing: str) -> Iterator[None]:
    """What goes wrong, in our words. What is there when the time is over counts for nothing: it may be cut."""
    made: Exception | None = None
    what = "the store" if about is None else f"{doing} {about.key} of {about.bucket}"
    try:
        yield
    except (PermanentFailure, TemporaryFailure):
        raise
    except Exception as error:  # noqa: BLE001 - what the library makes of half an answer is of any type
        made = _failure(error, what)
    if about is not None and about.wire.is_late:
        raise TemporaryFailure(f"{what}: {_WORDS['timeout']}", error_class="timeout")
    if made is not None:
        raise made


def _failure(error: Exception, what: str) -> OutlastError:
    if isinstance(error, ClientError):
        return _refused(error, what)
    if isinstance(error, _UNUSABLE):
        message = f"{what}: the settings of this machine for AWS cannot be used ({type(error).__name__}); look at the variables AWS_... and at ~/.aws, or give the connection access_key_id and secret_access_key"
        return PermanentFailure(message, error_class="auth_error")
    verdict = classify(error)
    if not isinstance(error, BotoCoreError) and verdict.error_class != "timeout":
        message = f"{what}: the connection broke before the whole answer was there, or it is none of S3"
        return TemporaryFailure(message, error_class="network_error")
    said = _WORDS.get(verdict.error_class, f"the call failed ({type(error).__name__})")
    kind = PermanentFailure if verdict.category == "permanent" else TemporaryFailure
    return kind(f"{what}: {said}", error_class=verdict.error_class)


def _code(error: ClientError) -> str:
    answer: Any = error.response
    return str(answer.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> Any:
    answer: Any = error.response
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")


def _names_region(error: ClientError) -> bool:
    """Whether the store says of itself where the bucket is, as it does where a request is signed for another region."""
    answer: Any = error.response
    return "x-amz-bucket-region" in answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})


def _refused(error: ClientError, what: str) -> OutlastError:
    """What the store says no to, by its code."""
    code, status = _code(error), _status(error)
    shown = code if _CODE.fullmatch(code) else str(status)
    if code in _MISSING or status == 404:
        # Nothing but the bucket needs to be there for what is written or deleted.
        lacking = _MISSING.get(code, "object" if what.startswith("reading ") else "bucket")
        message = f"{what}: expected the {lacking} to be there, got: {shown}"
        return PermanentFailure(message, error_class="missing_input")
    if code in _AT_ONCE:
        return TemporaryFailure(f"{what}: another writer is at it ({shown})", error_class="temporary_failure")
    if code in _DAMAGED:
        return TemporaryFailure(f"{what}: the bytes have changed on the way ({shown})", error_class="network_error")
    if code in _ELSEWHERE or 300 <= int(status or 0) < 400 or (status == 400 and _names_region(error)):
        message = f"{what}: the store says {shown}; look at region and endpoint_url of the connection"
        return PermanentFailure(message, error_class="client_error")
    verdict = classify(error)
    message = f"{what}: the store says {shown}"
    if verdict.category == "permanent":
        return PermanentFailure(message, error_class=verdict.error_class)
    return TemporaryFailure(message, error_class=verdict.error_class, retry_after=verdict.retry_after)


# -- s3.reader -----------------------------------------------------------------------------------------------------------


def read(config: ReaderConfig, context: StepContext) -> dict[str, Any]:
    """All of the object, if it is what it must be."""
    kind = _kind(config)
    # Not when the file is compiled: which object it is may come with a parameter, and then the run tells what became of it.
    if config.extensions is not None and not config.key.lower().endswith(tuple(map(str.lower, config.extensions))):
        raise invalid(f"expected {config.key} to end in {' or '.join(config.extensions)}, got: another extension")
    with _reached(config, context) as about:
        answer = about.call("reading", "get_object")
        assert answer is not None  # noqa: S101 - no code is let pass
        with closing(answer["Body"]) as body:
            metadata = _noted(answer)
            _check_metadata(config, metadata)
            raw = _whole(about, body, answer, config.max_bytes)
    noted, _ = metadata.pop(OWN_METADATA, None), metadata.pop(OWN_WORK, None)
    if noted is not None and noted != sha256(raw).hexdigest():
        message = f"{config.key} of {about.bucket}: expected the bytes whose checksum is noted with it ({OWN_METADATA}), got: others"
        raise PermanentFailure(message, error_class="data_error")
    return {
        "body": _read_as(kind, raw, config, context),
        "size": len(raw),
        "etag": str(answer.get("ETag", "")).strip('"'),
        "content_type": str(answer.get("ContentType", "")),
        "metadata": metadata,
    }


def _kind(config: ReaderConfig | WriterConfig) -> str:
    found = format_of(config.key, config.format)
    if found is None:  # the ending came with a reference
        raise invalid(f"expected an ending of {config.key} that says what it holds, got: another; say it with format")
    return found


def _check_metadata(config: ReaderConfig, metadata: Mapping[str, str]) -> None:
    """Everything that is wrong with it at once; what it holds is not shown."""
    wrong = [
        f"{name} that fits {pattern}, got: {'none' if found is None else 'another value'}"
        for name, pattern in config.require_metadata.items()
        if (found := metadata.get(name.lower())) is None or re.fullmatch(pattern, found) is None
    ]
    if wrong:
        raise invalid(f"expected {config.key} to have the metadata {'; '.join(wrong)}")


def _whole(about: _Object, body: Any, answer: Mapping[str, Any], most: int) -> bytes:
    """All bytes, no more than allowed, and as many as were promised."""
    too_long = f"{about.key} of {about.bucket}: expected at most max_bytes ({most}), got: a longer object"
    with _told(about, "reading"):
        promised = answer.get("ContentLength")
        if promised is None:
            raise _Torn
        if promised > most:
            raise PermanentFailure(too_long, error_class="data_error")
        found = bytearray()
        while True:
            found += (piece := body.read(_PIECE))
            if not piece:
                break
            if len(found) > most:
                raise PermanentFailure(too_long, error_class="data_error")
        if len(found) != promised:
            raise _Torn
        return bytes(found)


def _read_as(kind: str, raw: bytes, config: ReaderConfig, context: StepContext) -> Any:
    if kind == "bytes":
        return raw
    name = re.sub(r"[^A-Za-z0-9._-]", "_", config.key.rpartition("/")[2])[-100:] or "object"
    if kind in ("jsonl", "csv"):
        with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
            path = Path(folder) / name
            path.write_bytes(raw)
            _check_unpacked(path, config.max_bytes)
            return list(
                rows_of(path, f".{kind}", context, way_out="have format: bytes, and read it in a step of your own")
            )
    try:
        text = raw.decode("utf-8-sig")
        return text if kind == "text" else strict(text)
    except (ValueError, RecursionError):
        keep(context, "object", raw[:65_536])
        what = "JSON" if kind == "json" else "text in UTF-8"
        raise PermanentFailure(f"{name}: expected {what}, got: something else", error_class="data_error") from None


def _check_unpacked(path: Path, most: int) -> None:
    """What is packed may be a thousand times as long as it looks. What is damaged is told by whoever reads the rows."""
    if path.suffix.lower() not in packed.PACKED:
        return
    packed.check(path)
    if not path.stat().st_size:  # which Python takes for a gzip file, and nobody else
        raise PermanentFailure(f"{path.name}: expected a packed object, got: 0 bytes", error_class="data_error")
    if packed.unpacked_size(path, most) > most:
        message = f"{path.name}: expected at most max_bytes ({most}) once it is unpacked, got: more"
        raise PermanentFailure(message, error_class="data_error")


# -- s3.writer -----------------------------------------------------------------------------------------------------------


def write(config: WriterConfig, context: StepContext) -> dict[str, Any]:
    """
    One object, in one request: the store has it whole or not at all. With `overwrite` false, an object that is there is left
    alone; if it has the same bytes the work is done already, by an attempt at this step or by somebody else.
    """
    kind = _kind(config)
    raw = _written_as(kind, config, context)
    if len(raw) > config.max_bytes:
        raise invalid(f"expected a body of at most max_bytes ({config.max_bytes}), got: a longer one")
    digest = sha256(raw).hexdigest()
    with _reached(config, context) as about:
        work = f"{_run_mark(context)}-{context.work_key}"
        found = None if config.overwrite else _there(about, config, raw, digest, work)
        if (
            found is None
            and (etag := _put(about, config, kind, raw, {OWN_METADATA: digest, OWN_WORK: work})) is not None
        ):
            found = etag, True
        if found is None:  # somebody was quicker
            found = _there(about, config, raw, digest, work)
        if found is None:
            message = f"writing {about.key} of {about.bucket}: another writer is at it"
            raise TemporaryFailure(message, error_class="temporary_failure")
    about_it = {"bucket": about.bucket, "key": config.key, "size": len(raw), "sha256": digest}
    return {**about_it, "etag": found[0], "written": found[1]}


def _written_as(kind: str, config: WriterConfig, context: StepContext) -> bytes:
    body = config.body  # of a type that fits, which the config has checked
    if kind == "bytes":
        return bytes(body)
    if kind == "text":
        try:
            return str(body).encode()
        except UnicodeEncodeError:
            raise invalid("expected body to be a text in Unicode, got: one with half a character") from None
    if kind == "json":
        try:
            return json_text(body).encode()
        except (TypeError, ValueError, RecursionError) as wrong:
            raise invalid(f"expected body to be what JSON can hold, got another: {wrong}") from None
    with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
        path = Path(folder) / f"object.{kind}"
        sink = open_sink(path)
        assert sink is not None  # noqa: S101 - of a path there always is one
        try:
            fill(sink, body, context)
        finally:
            sink.close()
        raw = path.read_bytes()
    key = Path(config.key)
    packed.check(key)
    pack = packed.packer(key)  # at once: the same rows are the same bytes
    return raw if pack is None else pack(raw)


def _put(about: _Object, config: WriterConfig, kind: str, raw: bytes, noted: Mapping[str, str]) -> str | None:
    """The mark of what the store has now; None if there was something that must not be replaced."""
    sent = md5(raw, usedforsecurity=False)
    options: dict[str, Any] = {} if config.overwrite else {"IfNoneMatch": "*"}
    answer = about.call(
        "writing",
        "put_object",
        but=() if config.overwrite else ("PreconditionFailed", "412"),
        Body=raw,
        ContentLength=len(raw),
        ContentMD5=b64encode(sent.digest()).decode(),  # the store checks it before it keeps anything
        ContentType=config.content_type or _type_of(kind, config.key),
        Metadata={**{name.lower(): value for name, value in config.metadata.items()}, **noted},
        **options,
    )
    if answer is None:
        return None
    etag = str(answer.get("ETag", "")).strip('"')
    # That of an object which the store encrypts with a key of its own is another one.
    has_own_key = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    if _MD5.fullmatch(etag) and not has_own_key and etag != sent.hexdigest():
        message = (
            f"writing {about.key} of {about.bucket}: expected the store to have the bytes that were sent, got: others"
        )
        raise TemporaryFailure(message, error_class="network_error")
    return etag


def _type_of(kind: str, key: str) -> str:
    is_packed = kind in ("jsonl", "csv")  # if its key says so
    return (_PACKED_TYPES.get(Path(key).suffix.lower()) if is_packed else None) or _TYPES[kind]


def _run_mark(context: StepContext) -> str:
    """The run, in what is noted with an object; no secret, and no name of anybody's."""
    return blake2b(context.run_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _there(about: _Object, config: WriterConfig, raw: bytes, digest: str, work: str) -> tuple[str, bool] | None:
    """
    The mark of the object that is there, if it has the same bytes and what is asked to be noted with them, and whether an
    attempt at this step has written it, in whichever round; None if there is none. Another one is an error.
    """
    found = _looked_at(about)
    if found is None:
        return None
    etag = str(found.get("ETag", "")).strip('"')
    noted = _noted(found)
    is_same = found.get("ContentLength") == len(raw) and (
        noted.get(OWN_METADATA) == digest or etag == md5(raw, usedforsecurity=False).hexdigest()
    )
    other = [] if is_same else ["bytes"]
    if is_same:
        other += [f"metadata {name}" for name, value in config.metadata.items() if noted.get(name.lower()) != value]
        if config.content_type is not None and _bare(config.content_type) != _bare(str(found.get("ContentType", ""))):
            other.append("content_type")
    if other:
        message = f"expected no other object at {about.key} of {about.bucket}, because overwrite is false, got: one with other {', '.join(other)}"
        raise PermanentFailure(message, error_class="data_error")
    return etag, noted.get(OWN_WORK) == work


def _bare(content_type: str) -> str:
    """Without what stores write in their own way."""
    return content_type.replace(" ", "").casefold()


def _noted(found: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of an object, names in small letters."""
    return {str(name).lower(): str(value) for name, value in found.get("Metadata", {}).items()}


def _looked_at(about: _Object) -> dict[str, Any] | None:
    """What is known of the object; None if there is none."""
    return about.call("looking at", "head_object", but=("404", "NoSuchKey"))


# -- s3.deleter ----------------------------------------------------------------------------------------------------------


def delete(config: DeleterConfig, context: StepContext) -> dict[str, Any]:
    """It is gone afterwards, unless it is another version than the one that is meant, or was there before."""
    if not config.written:
        return {"bucket": config.bucket or str((context.connection or {})["bucket"]), "key": config.key}
    with _reached(config, context) as about:
        if config.etag is None or _is_version(about, config.etag, context):
            about.call("deleting", "delete_object", but=("NoSuchKey",))
    return {"bucket": about.bucket, "key": config.key}


def _is_version(about: _Object, etag: str, context: StepContext) -> bool:
    """
    Whether it is there and the one that is meant. Another one is an error: by its etag, and where a step is undone by the run
    that is noted with it, because objects with the same bytes have the same etag. One without that note is known by its etag.
    """
    found = _looked_at(about)
    if found is None:
        return False
    run, _, work = _noted(found).get(OWN_WORK, "").partition("-")
    other = ""
    if str(found.get("ETag", "")).strip('"') != etag.strip('"'):
        other = "the version of this etag, got: another one"
    elif context.undoes and work and run != _run_mark(context):
        other = f"what this run has written ({OWN_WORK}), got: the same bytes from another run"
    if other:
        message = f"expected {about.key} of {about.bucket} to be {other}, which is left alone"
        raise PermanentFailure(message, error_class="data_error")
    return True
