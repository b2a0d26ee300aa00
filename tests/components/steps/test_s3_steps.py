"""`s3.reader`, `s3.writer` and `s3.deleter`, against a real S3 server, and against servers of ours that refuse and lie."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import socket
from base64 import b64encode
from contextlib import ExitStack
from time import monotonic

import pytest
from backports import zstd

from components.steps.answers import Answers, Slow
from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.components.conformance import check_component
from outlast.components.reaching import failure, reach_s3, reached
from outlast.components.registry import find_component, find_family
from outlast.components.running import StepContext
from outlast.errors import PermanentFailure
from outlast.verdicts import classify
from tables import table

SECRET = "outlast-secret"
TOKEN = "of-a-login-t0ken"


def here(s3, **fields):
    return {
        "bucket": "bucket",
        "endpoint_url": s3.url,
        "access_key_id": "outlast-access",
        "secret_access_key": SECRET,
        **fields,
    }


def run(component, s3, key="a.txt", fields=None, **config):
    given = {"connection": "@s3.reports", "key": key, **config}
    return outputs_of(f"s3.{component}", given, a_context(connection=here(s3, **(fields or {}))))


def fails(component, s3, key="a.txt", fields=None, shelf=None, **config):
    given = {"connection": "@s3.reports", "key": key, **config}
    context = a_context(connection=here(s3, **(fields or {})), place=None if shelf is None else shelf.place)
    return failure_of(f"s3.{component}", given, context)


# --- what is written and read ---


@table(
    ("key", "format_", "body", "raw", "kind"),
    [
        ("f/a.txt", None, "höher\n", "höher\n".encode(), "text/plain; charset=utf-8"),
        ("f/a.json", None, {"b": [1, 2.5, None], "a": "ö"}, '{"b":[1,2.5,null],"a":"ö"}'.encode(), "application/json"),
        ("f/a.jsonl", None, [{"id": 1}, {"id": 2}], b'{"id":1}\n{"id":2}\n', "application/x-ndjson"),
        ("f/a.csv", None, [{"id": "1", "n": "a,b"}], b'id,n\n1,"a,b"\n', "text/csv; charset=utf-8"),
        ("f/a.bin", "bytes", b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        ("f/a.dat", "json", "a text", b'"a text"', "application/json"),
        ("f/empty.txt", None, "", b"", "text/plain; charset=utf-8"),
    ],
)  # fmt: skip
def test_what_is_written_is_what_is_read(s3, key, format_, body, raw, kind):
    """S1-01: each format, by the ending of the key or as the step says; type and checksum are noted with the object."""
    said = {} if format_ is None else {"format": format_}
    wrote = run("writer", s3, key, body=body, metadata={"Batch": "7"}, **said)
    digest, etag = hashlib.sha256(raw).hexdigest(), hashlib.md5(raw).hexdigest()
    assert wrote == {"bucket": "bucket", "key": key, "size": len(raw), "etag": etag, "sha256": digest, "written": True}
    assert s3.get(key) == raw
    assert run("reader", s3, key, **said) == {
        "body": body,
        "size": len(raw),
        "etag": etag,
        "content_type": kind,
        "metadata": {"batch": "7"},
    }


@table(
    ("key", "unpack", "kind"),
    [
        ("p/a.jsonl.gz", gzip.decompress, "application/gzip"),
        ("p/a.ndjson.zst", zstd.decompress, "application/zstd"),
    ],
)
def test_rows_are_packed_as_the_key_says(s3, key, unpack, kind):
    """What a reader unpacks by the ending is packed by the writer; the same rows are the same bytes, at any time."""
    rows = [{"id": number, "text": "ö" * number} for number in range(50)]
    first = run("writer", s3, key, body=rows, format="jsonl", overwrite=False)
    assert [json.loads(line) for line in unpack(s3.get(key)).splitlines()] == rows
    assert run("writer", s3, key, body=rows, format="jsonl", overwrite=False) == {**first, "written": True}
    read = run("reader", s3, key, format="jsonl")
    assert (read["body"], read["content_type"]) == (rows, kind)


@pytest.mark.parametrize(
    "key", ["a b.txt", "ö/ß €.txt", "a+b&c=d?e#f%20g.txt", "x" * 200 + ".txt", "q'\"<>.txt", "😀.txt"]
)
def test_keys_of_odd_characters_are_keys(s3, key):
    """Written, read and deleted under the very same name."""
    run("writer", s3, key, body="odd")
    assert (run("reader", s3, key)["body"], s3.get(key)) == ("odd", b"odd")
    run("deleter", s3, key)
    assert s3.get(key) is None


def test_another_bucket_and_type_are_as_the_step_says(s3):
    """In place of that of the connection, and of the format."""
    s3.put("made.txt", b"", bucket="other-bucket")
    run("writer", s3, "x.json", bucket="other-bucket", body={}, content_type="application/vnd.shop+json")
    found = run("reader", s3, "x.json", bucket="other-bucket")
    assert (found["body"], found["content_type"]) == ({}, "application/vnd.shop+json")
    assert s3.get("x.json") is None


# --- what an object must be ---


def test_what_is_not_there_is_a_missing_input(s3):
    """S1-13: no object, or no bucket: it does not help to ask again."""
    told = [fails("reader", s3, "gone.txt")[:2], fails("reader", s3, "gone.txt", bucket="no-such-bucket")[:2]]
    told.append(fails("writer", s3, "gone.txt", bucket="no-such-bucket", body="x")[:2])
    assert told == [
        ("missing_input", "reading gone.txt of bucket: expected the object to be there, got: NoSuchKey"),
        ("missing_input", "reading gone.txt of no-such-bucket: expected the bucket to be there, got: NoSuchBucket"),
        ("missing_input", "writing gone.txt of no-such-bucket: expected the bucket to be there, got: NoSuchBucket"),
    ]
    assert {classify(fails("reader", s3, "gone.txt")[2]).category} == {"permanent"}


def test_an_extension_that_is_not_supported_is_refused_unasked():
    """S1-13: before anything is read; letters count the same in both sizes."""
    with Answers() as server:
        told = fails("reader", server, "in/a.EXE", format="text", extensions=[".txt", ".JSON"])
        assert (told[0], server.asked) == ("validation_error", [])
        assert told[1] == "expected in/a.EXE to end in .txt or .JSON, got: another extension"


def test_required_metadata_that_is_missing_or_damaged_is_refused(s3):
    """S1-13: all of it at once, and no value of it is shown."""
    run("writer", s3, "meta.txt", body="x", metadata={"schema": "v1-hunter2", "owner": "ann"})
    wanted = {"schema": "v[0-9]+", "owner": ".+", "batch": "[0-9]+", "reader": ".+", "note": ".*"}
    kind, said, error = fails("reader", s3, "meta.txt", require_metadata=wanted)
    assert (kind, classify(error).category) == ("validation_error", "permanent")
    assert said == (
        "expected meta.txt to have the metadata schema that fits v[0-9]+, got: another value; batch that fits [0-9]+, got: none; "
        "reader that fits .+, got: none; note that fits .*, got: none"
    )
    assert run("reader", s3, "meta.txt", require_metadata={"SCHEMA": "v1.*", "owner": "ann"})["body"] == "x"


@table(
    ("key", "raw", "config", "kind"),
    [
        ("bad.json", b'{"a": 1', {}, "data_error"),
        ("bad.json", b'{"a": 1, "a": 2}', {}, "data_error"),
        ("bad.json", b"[NaN]", {}, "data_error"),
        ("bad.txt", b"\xff\xfe\xfa", {}, "data_error"),
        ("bad.jsonl", b'{"a": 1}\nhunter2\n', {}, "validation_error"),
        ("bad.csv", b'a,b\n1,"2\n', {}, "validation_error"),
        ("long.txt", b"x" * 11, {"max_bytes": 10}, "data_error"),
    ],
)
def test_what_cannot_be_read_as_the_step_says_is_a_permanent_error(s3, key, raw, config, kind):
    """S1-13: no payload is in the message."""
    s3.put(key, raw)
    shelf = Shelf()
    told, said, error = fails("reader", s3, key, shelf=shelf, **config)
    assert (told, classify(error).category) == (kind, "permanent")
    assert "hunter2" not in said
    assert bool(shelf.kept) == (key != "long.txt")


@table(
    ("key", "raw", "way_out"),
    [
        ("semi.csv", b"a;b\n1;2\n", "If ';' stands between them: WAY. If it is one column: the same."),
        ("latin.csv", b"a\n\xe9\n", "If all of it has another encoding: WAY"),
        ("wide.csv", "a\n1\n".encode("utf-16-le"), "Say how it is encoded: WAY."),
    ],
)
def test_the_way_out_of_a_table_is_one_that_the_step_has(s3, key, raw, way_out):
    """It has no delimiter and no encoding; what helps is told."""
    s3.put(key, raw)
    said = fails("reader", s3, key)[1]
    assert said.endswith(way_out.replace("WAY", "have format: bytes, and read it in a step of your own"))
    assert run("reader", s3, key, format="bytes")["body"] == raw


@pytest.mark.parametrize("key", ["none.jsonl.gz", "none.csv.zst"])
def test_no_bytes_are_no_packed_object(s3, key):
    """An upload that came to nothing is not one without rows, which has bytes."""
    format_ = key.split(".")[1]
    s3.put(key, b"")
    assert fails("reader", s3, key, format=format_)[:2] == (
        "data_error",
        f"{key}: expected a packed object, got: 0 bytes",
    )
    run("writer", s3, key, format=format_, body=[])
    assert run("reader", s3, key, format=format_)["body"] == []


def test_an_object_that_is_too_long_is_not_read():
    """By what it says of itself, before its body is; and by its body, if it says nothing that is true."""
    with Answers({"/bucket/a.txt": (200, {"etag": '"x"'}, b"x" * 100_000)}) as server:
        kind, said, _ = fails("reader", server, max_bytes=50_000)
    assert (kind, said) == ("data_error", "a.txt of bucket: expected at most max_bytes (50000), got: a longer object")


def test_bytes_that_are_not_those_that_were_written_are_found_out():
    """The checksum that the writer has noted is that of what is read."""
    headers = {"etag": '"x"', "x-amz-meta-outlast-sha256": hashlib.sha256(b"right").hexdigest()}
    with Answers({"/bucket/a.txt": (200, headers, b"wrong")}) as server:
        told = fails("reader", server)[:2]
    assert told == (
        "data_error",
        "a.txt of bucket: expected the bytes whose checksum is noted with it (outlast-sha256), got: others",
    )


def test_a_store_that_has_other_bytes_than_were_sent_has_not_kept_them():
    """Also where it says that all is well; and one that says nothing of what it has proves nothing."""
    told = []
    for etag in ({"etag": f'"{hashlib.md5(b"other").hexdigest()}"'}, {}):
        with Answers({"/bucket/a.txt": (200, etag, b"")}) as server:
            told.append(fails("writer", server, body="sent")[:2])
            (asked,) = server.asked
            digest = b64encode(hashlib.md5(b"sent").digest()).decode()
            assert (asked.method, asked.body, asked.headers["content-md5"]) == ("PUT", b"sent", digest)
    assert told == [
        ("network_error", "writing a.txt of bucket: expected the store to have the bytes that were sent, got: others"),
        (
            "network_error",
            "writing a.txt of bucket: the connection broke before the whole answer was there, or it is none of S3",
        ),
    ]
    with Answers({"/bucket/a.txt": (200, {"etag": '"of-its-own"'}, b"")}) as server:
        assert run("writer", server, body="sent")["etag"] == "of-its-own"


# --- what is there already ---


def test_an_object_is_written_again_and_again(s3):
    """The same bytes under the same key change nothing; others replace them, unless the step forbids it."""
    first = run("writer", s3, "again.txt", body="one")
    assert run("writer", s3, "again.txt", body="one") == first
    assert run("writer", s3, "again.txt", body="one", overwrite=False) == first
    kind, said, _ = fails("writer", s3, "again.txt", body="two", overwrite=False)
    assert (kind, s3.get("again.txt")) == ("data_error", b"one")
    assert said == (
        "expected no other object at again.txt of bucket, because overwrite is false, got: one with other bytes"
    )
    assert run("writer", s3, "again.txt", body="two")["size"] == 3
    assert s3.get("again.txt") == b"two"
    assert run("writer", s3, "new.txt", body="two", overwrite=False)["size"] == 3


def test_the_same_bytes_with_other_metadata_are_another_object(s3):
    """overwrite: false says that what was asked for is there: what is not is told, by its name and without its value."""
    noted = {"Schema": "v1-hunter2", "owner": "ann"}
    first = run("writer", s3, "noted.txt", body="x", metadata=noted, content_type="text/x-log; charset=utf-8")
    asked = [{}, {"metadata": noted}, {"metadata": {"OWNER": "ann"}}, {"content_type": "text/X-log;charset=utf-8"}]
    assert [run("writer", s3, "noted.txt", body="x", overwrite=False, **more) for more in asked] == [first] * 4
    other = {"metadata": {"schema": "v2-hunter2", "batch": "7", "owner": "ann"}, "content_type": "text/plain"}
    kind, said, error = fails("writer", s3, "noted.txt", body="x", overwrite=False, **other)
    assert (kind, classify(error).category) == ("data_error", "permanent")
    assert said == (
        "expected no other object at noted.txt of bucket, because overwrite is false, "
        "got: one with other metadata schema, metadata batch, content_type"
    )


def test_what_this_work_has_written_is_known_in_every_round(s3):
    """By its run, its step and its row, whatever the round; another run, step or row has not written it."""

    def written(**who):
        config = {"connection": "@s3.reports", "key": "rounds.txt", "body": "x", "overwrite": False}
        return outputs_of("s3.writer", config, a_context(connection=here(s3), **who))["written"]

    asked = [{}, {"idempotency_key": "of round 2"}, {"run_id": "run-2"}, {"step": "other"}, {"row_key": "1"}]
    assert [written(**who) for who in asked] == [True, True, False, False, False]


def test_the_same_bytes_of_another_run_are_not_undone(s3):
    """They have the same etag. Who undoes a step knows its own by what is noted with them; without a note by the etag."""
    undoing = a_context(connection=here(s3), undoes=True)

    def undone(key):
        config = {"connection": "@s3.reports", "key": key, "etag": hashlib.md5(b"same").hexdigest(), "written": True}
        try:
            outputs_of("s3.deleter", config, undoing)
        except PermanentFailure as refused:
            return refused.error_class, str(refused), s3.get(key)
        return s3.get(key)

    config = {"connection": "@s3.reports", "key": "theirs.txt", "body": "same"}
    outputs_of("s3.writer", config, a_context(connection=here(s3), run_id="run-2"))
    run("writer", s3, "ours.txt", body="same")
    s3.put("nobodys.txt", b"same")
    s3.put("older.txt", b"same", metadata={"outlast-work": hashlib.sha256(b"k-1").hexdigest()})
    assert [undone(key) for key in ("theirs.txt", "ours.txt", "nobodys.txt", "older.txt")] == [
        (
            "data_error",
            "expected theirs.txt of bucket to be what this run has written (outlast-work), got: the same bytes from another run, which is left alone",
            b"same",
        ),
        None,
        None,
        None,
    ]
    # By itself it is no undoing: whoever names an etag means that version, whoever has written it.
    run("deleter", s3, "theirs.txt", etag=hashlib.md5(b"same").hexdigest())
    assert s3.get("theirs.txt") is None


XML = {"content-type": "application/xml"}


def refusal(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>hunter2</Message></Error>".encode()


class Second(Answers):
    """Nothing is there when it is looked at first; when the object comes, somebody else's is."""

    def __init__(self, theirs):
        super().__init__()
        absent, refused = (404, XML, b""), (412, XML, refusal("PreconditionFailed"))
        there = (200, {"etag": f'"{hashlib.md5(theirs).hexdigest()}"', "content-length": str(len(theirs))}, b"")
        self.answers = _InTurn([absent, refused, there])


class _InTurn(dict):
    def __init__(self, answers):
        super().__init__()
        self._left = answers

    def get(self, path, default):
        return self._left.pop(0)


def test_a_writer_that_comes_second_is_refused_by_a_store_that_can():
    """If-None-Match goes with the object. Who was quicker is looked at: the same bytes are the same work, others are not."""
    told = []
    for theirs in (b"mine", b"yours"):
        with Second(theirs) as server:
            try:
                told.append(run("writer", server, body="mine", overwrite=False)["etag"])
            except PermanentFailure as refused:
                told.append(refused.error_class)
        methods = [(one.method, one.headers.get("if-none-match")) for one in server.asked]
        assert methods == [("HEAD", None), ("PUT", "*"), ("HEAD", None)]
    assert told == [hashlib.md5(b"mine").hexdigest(), "data_error"]


def test_writers_at_the_same_moment_are_worth_another_attempt():
    """A store that cannot say yet which of them was first says so."""
    for code in ("ConditionalRequestConflict", "OperationAborted"):
        with Answers() as server:
            server.answers = _InTurn([(404, XML, b""), (409, XML, refusal(code))])
            kind, said, error = fails("writer", server, body="mine", overwrite=False)
        assert (kind, classify(error).category, [one.method for one in server.asked]) == (
            "temporary_failure",
            "transient",
            ["HEAD", "PUT"],
        )
        assert said == f"writing a.txt of bucket: another writer is at it ({code})"


def test_a_version_that_is_not_meant_is_not_deleted(s3):
    """Who undoes a write takes back what was written, and nothing that came after it; what is gone is gone."""
    wrote = run("writer", s3, "undo.txt", body="mine")
    run("writer", s3, "undo.txt", body="yours")
    kind, said, _ = fails("deleter", s3, "undo.txt", etag=wrote["etag"])
    assert (kind, s3.get("undo.txt")) == ("data_error", b"yours")
    assert said.endswith("to be the version of this etag, got: another one, which is left alone")
    wrote = run("writer", s3, "undo.txt", body="mine")
    for _ in range(2):
        assert run("deleter", s3, "undo.txt", etag=wrote["etag"]) == {"bucket": "bucket", "key": "undo.txt"}
        assert s3.get("undo.txt") is None
    assert run("deleter", s3, "undo.txt") == {"bucket": "bucket", "key": "undo.txt"}


# --- who is refused, and when it is worth another attempt ---


@table(
    ("component", "status", "code", "error_class", "category"),
    [
        ("reader", 503, "SlowDown", "rate_limited", "transient"),
        ("writer", 503, "ServiceUnavailable", "unavailable", "transient"),
        ("deleter", 500, "InternalError", "server_error", "transient"),
        ("writer", 400, "RequestTimeout", "timeout", "transient"),
        ("writer", 400, "BadDigest", "network_error", "transient"),
        ("reader", 403, "AccessDenied", "permission_denied", "permanent"),
        ("writer", 403, "AccessDenied", "permission_denied", "permanent"),
        ("deleter", 403, "InvalidAccessKeyId", "auth_error", "permanent"),
        ("reader", 400, "ExpiredToken", "auth_error", "permanent"),
        ("deleter", 404, "NoSuchBucket", "missing_input", "permanent"),
        ("reader", 400, "InvalidArgument", "client_error", "permanent"),
    ],
)
def test_what_a_store_says_no_to_has_its_class(component, status, code, error_class, category):
    """S1-09, S1-14: asked once, whatever the library would do by itself; none of the store's own words is told."""
    config = {"body": "x"} if component == "writer" else {}
    with Answers({"/bucket/a.txt": (status, XML, refusal(code))}) as server:
        kind, said, error = fails(component, server, **config)
    assert (kind, classify(error).category, len(server.asked)) == (error_class, category, 1)
    assert code in said
    assert "hunter2" not in said


HTML = {"content-type": "text/html; charset=utf-8", "last-modified": "Mon, 16 Nov 2026 09:00:00 GMT"}
NONE_OF_S3 = "the connection broke before the whole answer was there, or it is none of S3"
MD5_OF_X = hashlib.md5(b"x").hexdigest()


@table(
    ("component", "status", "headers", "body"),
    [
        ("reader", 206, {"etag": '"x"', "content-range": "bytes 0-2/100"}, b"abc"),
        ("reader", 204, {"etag": '"x"'}, b""),
        ("reader", 203, {"etag": '"x"'}, b"abc"),
        ("writer", 204, {"etag": f'"{MD5_OF_X}"'}, b""),
        ("writer", 202, {"etag": f'"{MD5_OF_X}"'}, b""),
        ("deleter", 200, {}, b"<html>log in first</html>"),
        ("deleter", 202, {}, b""),
        ("writer", 200, {"etag": f'"{MD5_OF_X}"'}, b"x" * 100_000),
        ("writer", 200, {"etag": f'"{MD5_OF_X}"'}, b"<html>log in first</html>"),
        ("writer", 200, {"etag": '"5f3a-267"', **HTML}, b""),
        ("reader", 200, {"etag": '"5f3a-267"', **HTML}, b"<html>log in first</html>"),
    ],
)
def test_an_answer_that_does_not_say_it_is_done_is_none(component, status, headers, body):
    """A part of an object is none, and the page of another server deletes nothing: 200 is done, and 204 for a deletion."""
    config = {"body": "x"} if component == "writer" else {}
    with Answers({"/bucket/a.txt": (status, headers, body)}) as server:
        kind, said, _ = fails(component, server, **config)
    assert (kind, said.partition(": ")[2], len(server.asked)) == ("network_error", NONE_OF_S3, 1)


@table(
    ("component", "config"),
    [("writer", {"body": "x", "overwrite": False}), ("deleter", {"etag": "5f3a-267"})],
)
def test_a_page_is_no_object_to_look_at(component, config):
    """Nothing is written or deleted by what another server says of its page: it is worth another attempt."""
    with Answers({"/bucket/a.txt": (200, {"etag": '"5f3a-267"', **HTML}, b"")}) as server:
        kind, said, _ = fails(component, server, **config)
    assert (kind, said.partition(": ")[2], [one.method for one in server.asked]) == (
        "network_error",
        NONE_OF_S3,
        ["HEAD"],
    )


def test_objects_that_are_pages_are_read(s3):
    """Of the real server; and as stores send them, with the MD5 of the bytes or a header of their own."""
    run("writer", s3, "page.txt", body="<html></html>", content_type="text/html")
    found = run("reader", s3, "page.txt")
    assert (found["body"], found["content_type"]) == ("<html></html>", "text/html")
    marks = [
        {"etag": f'"{MD5_OF_X}"'},
        {"etag": f'"{MD5_OF_X}-3"'},
        {"etag": '"of-its-own"', "x-amz-request-id": "4442587FB7D0A2F9"},
        {"etag": '"CJ6x"', "x-goog-generation": "1"},
        {"etag": '"of-its-own"', "x-oss-request-id": "534B371674E88A4D8906008B"},
    ]
    for headers in marks:
        with Answers({"/bucket/a.txt": (200, {**headers, **HTML}, b"<html></html>")}) as server:
            assert run("reader", server)["body"] == "<html></html>"


def test_what_is_gone_already_is_deleted():
    """By 204 and by an empty 200, which stores say of any deletion; by a 404 that is about the object, and by no other."""
    done = [(204, {}, b""), (200, {}, b""), (404, XML, refusal("NoSuchKey"))]
    for answer in done:
        with Answers({"/bucket/a.txt": answer}) as server:
            assert run("deleter", server) == {"bucket": "bucket", "key": "a.txt"}
    told = []
    for component, config in (("deleter", {}), ("writer", {"body": "x"}), ("reader", {})):
        with Answers({"/bucket/a.txt": (404, {}, b"<html>nginx</html>")}) as server:
            told.append(fails(component, server, **config)[:2])
    assert told == [
        ("missing_input", "deleting a.txt of bucket: expected the bucket to be there, got: 404"),
        ("missing_input", "writing a.txt of bucket: expected the bucket to be there, got: 404"),
        ("missing_input", "reading a.txt of bucket: expected the object to be there, got: 404"),
    ]


def test_a_refusal_without_end_is_judged_by_its_status():
    """What is longer than 64 KiB is not read: the store is hung up on."""
    with Slow(b"HTTP/1.1 500 Error\r\nContent-Length: 600000000\r\n\r\n", b"x" * 100_000) as server:
        told = fails("reader", server)[:2]
        server.wait()
    assert told == ("server_error", "reading a.txt of bucket: the store says 500")


def test_what_is_packed_is_bounded_unpacked():
    """By max_bytes, as it is and as it comes out; what is damaged is told as such."""
    rows = [{"a": number} for number in range(1000)]
    plain = "".join(f'{{"a":{row["a"]}}}\n' for row in rows).encode()
    raw = gzip.compress(plain)
    answers = {
        "/bucket/a.jsonl.gz": (200, {"etag": '"x"'}, raw),
        "/bucket/cut.jsonl.gz": (200, {"etag": '"x"'}, raw[:-9]),
    }
    with Answers(answers) as server:
        found = run("reader", server, "a.jsonl.gz", format="jsonl", max_bytes=len(plain))
        told = fails("reader", server, "a.jsonl.gz", format="jsonl", max_bytes=len(plain) - 1)[:2]
        cut = fails("reader", server, "cut.jsonl.gz", format="jsonl")
    assert (found["body"], found["size"]) == (rows, len(raw))
    assert told == (
        "data_error",
        f"a.jsonl.gz: expected at most max_bytes ({len(plain) - 1}) once it is unpacked, got: more",
    )
    assert classify(cut[2]).category == "permanent"


ELSEWHERE = {**XML, "x-amz-bucket-region": "eu-west-1"}
MALFORMED = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"


@table(
    ("component", "status", "headers", "body", "shown"),
    [
        ("reader", 301, ELSEWHERE, refusal("PermanentRedirect"), "PermanentRedirect"),
        ("writer", 301, ELSEWHERE, refusal("PermanentRedirect"), "PermanentRedirect"),
        ("writer", 307, ELSEWHERE, refusal("TemporaryRedirect"), "TemporaryRedirect"),
        ("deleter", 307, {**XML, "location": "/bucket/b.txt"}, refusal("TemporaryRedirect"), "TemporaryRedirect"),
        ("reader", 302, {"location": "/bucket/b.txt"}, b"", "302"),
        ("deleter", 301, {}, b"", "301"),
        ("reader", 400, XML, MALFORMED, "AuthorizationHeaderMalformed"),
        ("writer", 400, ELSEWHERE, MALFORMED, "AuthorizationHeaderMalformed"),
        ("versioned", 301, ELSEWHERE, b"", "301"),
        ("versioned", 400, ELSEWHERE, b"", "400"),
    ],
)
def test_a_bucket_that_is_elsewhere_is_not_followed(component, status, headers, body, shown):
    """S1-09: one call, whatever the library would do by itself; an object is never sent twice."""
    config = {"writer": {"body": "x"}, "versioned": {"etag": "x"}}.get(component, {})
    with Answers({"/bucket/a.txt": (status, headers, body)}) as server:
        kind, said, error = fails("deleter" if component == "versioned" else component, server, **config)
    assert (kind, classify(error).category, len(server.asked)) == ("client_error", "permanent", 1)
    assert said.partition(": ")[2] == (f"the store says {shown}; look at region and endpoint_url of the connection")


def test_a_store_that_asks_to_wait_is_heeded():
    """Retry-After of the answer is that of the error."""
    answer = (503, {**XML, "retry-after": "7"}, refusal("SlowDown"))
    with Answers({"/bucket/a.txt": answer}) as server:
        assert classify(fails("reader", server)[2]).retry_after == 7.0


def test_a_login_that_is_wrong_is_not_tried_again(s3):
    """By the real server: keys that it does not know, and a secret that does not fit; neither is told."""
    told = [
        fails("reader", s3, fields={"access_key_id": "wrong-access"})[:2],
        fails("reader", s3, fields={"secret_access_key": "wrong-secret"})[:2],
    ]
    assert told == [
        ("auth_error", "reading a.txt of bucket: the store says InvalidAccessKeyId"),
        ("auth_error", "reading a.txt of bucket: the store says SignatureDoesNotMatch"),
    ]


@pytest.fixture
def nobodys_home(monkeypatch, tmp_path):
    """A machine without settings for AWS, where nothing tells by the network who logs in."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path / ".aws"


@table(
    ("name", "value"),
    [
        ("AWS_PROFILE", "work"),
        ("AWS_PROFILE", "none-there"),
        ("AWS_DEFAULT_PROFILE", "none-there"),
        ("AWS_CONFIG_FILE", "/dev/null/none"),
        ("AWS_DEFAULTS_MODE", "none-such"),
        ("AWS_RETRY_MODE", "none-such"),
        ("AWS_MAX_ATTEMPTS", "many"),
        ("AWS_USE_FIPS_ENDPOINT", "true"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "somebody-else"),
        ("AWS_SESSION_TOKEN", "of-somebody-else"),
        ("AWS_AUTH_SCHEME_PREFERENCE", "none-such"),
        ("AWS_ACCOUNT_ID_ENDPOINT_MODE", "none-such"),
        ("AWS_REQUEST_CHECKSUM_CALCULATION", "none-such"),
        ("AWS_SDK_UA_APP_ID", "none\nsuch"),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
    ],
)
def test_a_connection_with_keys_reads_nobodys_settings(monkeypatch, nobodys_home, name, value):
    """Whatever the variables and the files of this machine say, the request is the same."""
    nobodys_home.mkdir(exist_ok=True)
    (nobodys_home / "config").write_text("[profile work]\nregion = eu-west-1\ns3 =\n  addressing_style = none-such\n")
    with Answers({"/bucket/a.txt": (200, {"etag": '"x"'}, b"abc")}) as server, monkeypatch.context() as changed:
        changed.setenv(name, value)
        assert run("reader", server)["body"] == "abc"
    (asked,) = server.asked
    assert asked.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=outlast-access/")
    assert "/us-east-1/s3/aws4_request" in asked.headers["authorization"]
    assert "x-amz-security-token" not in asked.headers


def test_settings_of_this_machine_that_cannot_be_used_are_told(monkeypatch, nobodys_home):
    """Without keys it is the login of this machine: one that is not there, or is damaged, is no error of the data."""

    def told(**variables):
        with monkeypatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, value)
            found = failure_of("s3.reader", _with("a.txt"), a_context(connection={"bucket": "bucket"}))
        return found[0], classify(found[2]).category, found[1]

    way_out = "look at the variables AWS_... and at ~/.aws, or give the connection access_key_id and secret_access_key"
    unusable = "the store: the settings of this machine for AWS cannot be used"
    nobodys_home.mkdir()
    (nobodys_home / "damaged").write_text("[profile")
    assert [
        told(),
        told(AWS_PROFILE="none-there"),
        told(AWS_CONFIG_FILE=str(nobodys_home / "damaged")),
        told(AWS_ACCESS_KEY_ID="half"),
    ] == [
        ("auth_error", "permanent", "reading a.txt of bucket: there is no login that can be used"),
        ("auth_error", "permanent", f"{unusable} (ProfileNotFound); {way_out}"),
        ("auth_error", "permanent", f"{unusable} (ConfigParseError); {way_out}"),
        ("auth_error", "permanent", f"{unusable} (PartialCredentialsError); {way_out}"),
    ]


def test_who_cannot_be_reached_is_worth_another_attempt(monkeypatch):
    """S1-09: nobody listens, or nobody answers in the time that is left."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with monkeypatch.context() as changed:
            changed.setattr(StepContext, "remaining", lambda _: 0.2)
            silent = failure_of("s3.reader", {"connection": "@s3.x", "key": "a.txt"}, a_context(connection=_at(url)))
    nobody = failure_of("s3.reader", {"connection": "@s3.x", "key": "a.txt"}, a_context(connection=_at(url)))
    assert [silent[:2], (nobody[0], classify(nobody[2]).category)] == [
        ("timeout", "reading a.txt of bucket: no answer in time"),
        ("connection_refused", "transient"),
    ]


def test_a_store_that_takes_no_connection_is_given_up_when_the_time_is_over(monkeypatch):
    """S1-09: nobody answers the connect, and what hangs up has no connection to hang up yet."""
    monkeypatch.setattr(StepContext, "remaining", lambda _: 0.3)
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # its queue is full: to whoever comes now nobody says anything
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        begin = monotonic()
        told = failure_of("s3.reader", {"connection": "@s3.x", "key": "a.txt"}, a_context(connection=_at(url)))[:2]
        assert monotonic() - begin < 20  # and not after a minute, which is the client's own patience
    assert told == ("timeout", "reading a.txt of bucket: no answer in time")


OBJECT = b'HTTP/1.1 200 OK\r\nETag: "x"\r\n'


@table(
    ("component", "begin", "piece"),
    [
        ("reader", b"HTTP/1.1 200 OK\r\nx: ", b"x"),  # the headers
        ("writer", b"HTTP/1.1 200 OK\r\nx: ", b"x"),
        ("deleter", b"HTTP/1.1 204 No Content\r\nx: ", b"x"),
        ("reader", OBJECT + b"Content-Length: 100000\r\n\r\n", b"x"),  # the body
        ("writer", OBJECT + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ("reader", b"HTTP/1.1 503 Slow\r\nContent-Length: 1000\r\n\r\n", b"x"),  # why not
        ("writer", b"HTTP/1.1 100 Continue\r\nx: ", b"x"),  # what comes before the answer
        ("reader", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_a_store_that_drips_does_not_outlive_the_time_limit(monkeypatch, component, begin, piece):
    """S1-09: it would go on for ever, a piece at a time; there is one call, and it is hung up on."""
    monkeypatch.setattr(StepContext, "remaining", lambda _: 0.5)
    config = {"body": "x"} if component == "writer" else {}
    with Slow(begin, piece) as server:
        kind, said, error = fails(component, server, **config)
        server.wait()  # it has noticed: nobody is there any more
    assert (kind, classify(error).category, len(server.taken) <= 1) == ("timeout", "transient", True)
    assert said.endswith(" a.txt of bucket: no answer in time")


def test_an_upload_that_is_too_slow_is_not_finished_later(monkeypatch):
    """S1-09: what has not left this machine when the time is over never does, so no object comes after its undoing."""
    monkeypatch.setattr(StepContext, "remaining", lambda _: 1.5)  # the first second is that of 100 Continue
    size = 30_000_000
    with Slow() as server:
        told = fails("writer", server, "a.bin", format="bytes", body=bytes(size))[:2]
        server.wait()
    assert told == ("timeout", "writing a.bin of bucket: no answer in time")
    assert sum(server.taken) < size


def test_the_doctor_hangs_up_in_time():
    """A store that drips is one that does not answer."""
    with Slow(b"HTTP/1.1 200 OK\r\nx: ") as server:
        with pytest.raises(TimeoutError):
            reach_s3(here(server), 0.3)
        server.wait()


def test_the_doctor_does_not_take_any_answer_for_that_of_a_store():
    """One that says nothing of the bucket, such as the page of another server."""
    page = (200, {}, b"<html>log in first</html>")
    with Answers({"/bucket": page}) as server, pytest.raises(ConnectionResetError) as caught:
        reach_s3(here(server), 30)
    assert failure(caught.value).kind == "network"


def _at(url, **fields):
    return {
        "bucket": "bucket",
        "endpoint_url": url,
        "access_key_id": "outlast-access",
        "secret_access_key": SECRET,
        **fields,
    }


def test_the_librarys_log_is_not_heard(s3, caplog):
    """It would have the headers with the login, and the bodies."""
    with caplog.at_level(logging.DEBUG):
        run("writer", s3, "log.txt", body="hunter2 in a body", fields={"session_token": TOKEN})
        run("reader", s3, "log.txt", fields={"session_token": TOKEN})
    assert [record.name for record in caplog.records if "outlast" not in record.name] == []


# --- what is wrong in a file ---


@table(
    ("component", "config", "said"),
    [
        ("reader", {"key": "a"}, "key to be a key that ends in .txt, .json, .jsonl, .ndjson, .csv, got: key: 'a'. or say what it is with format"),
        ("reader", {"key": "/a.txt"}, "key to be a key that does not begin with /, got: '/a.txt'. leave the first / out"),
        ("reader", {"key": "s3://bucket/a.txt"}, "key to be a key without its bucket, got"),
        ("reader", {"key": "a/../b.txt"}, "key to be a key without . and .. between its /, which are lost on the way, got"),
        ("reader", {"key": "a\nb.txt"}, "key to be a key of characters that can be seen, got"),
        ("reader", {"key": "ö" * 600 + ".txt"}, "key to be a key of at most 1024 bytes, got"),
        ("reader", {"key": "a.txt", "bucket": "s3://x"}, "bucket to be the name of a bucket in letters, digits, dots and -, got"),
        ("writer", {"key": "a.txt", "body": 5}, "body to be a text, as key or format says, got: body: 5. write it in quotes, or say format: json"),
        ("writer", {"key": "a.json", "format": "csv", "body": "x"}, "body to be rows, as key or format says, got: body: 'x'. write"),
        ("writer", {"key": "a.jsonl", "body": {"a": "${params.a}"}}, "body to be rows, as key or format says, got"),
        ("writer", {"key": "a", "format": "bytes", "body": "x"}, "body to be bytes, as format says, got: body: 'x'. they come"),
        ("reader", {"key": "a.txt", "extensions": ["txt"]}, "extensions[0] to be an extension such as .json, got"),
        ("reader", {"key": "a.txt", "require_metadata": {"a": "("}}, "require_metadata.a to be a regular expression, got"),
        ("reader", {"key": "a.txt", "max_bytes": 0}, "max_bytes to be a number of at least 1, got: 0."),
        ("writer", {"key": "a.txt"}, "body to be the key body, got: nothing. s3.writer needs it"),
        ("writer", {"key": "a.txt", "body": None}, "body to be a value, got: body: nothing. an object without one is"),
        ("writer", {"key": "a.txt", "body": "x", "metadata": {"a": "ö"}}, "metadata.a to be one line of ASCII, which is what a header can hold, got"),
        ("writer", {"key": "a.txt", "body": "x", "metadata": {"outlast-sha256": "x"}}, "metadata.outlast-sha256 to be a name of your own, got"),
        ("writer", {"key": "a.txt", "body": "x", "content_type": "a\nb"}, "content_type to be a type as application/json, got"),
        ("deleter", {"key": "a.txt", "etag": ""}, "etag to be a text of at least 1 characters, got: ''."),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_step_is_said_before_it_runs(component, config, said):
    """With the way out."""
    found = find_component(f"s3.{component}")
    told = [str(problem) for problem in found.problems({"connection": "@s3.reports", **config}, [])]
    assert len(told) == 1
    assert told[0].startswith(f"expected {said}")


@table(
    ("component", "config", "unknown"),
    [
        ("writer", {"key": "${params.key}", "body": 5}, "key"),
        ("writer", {"key": "a.csv", "body": "${steps.read.outputs.body}"}, "body"),
        ("writer", {"key": "a.csv", "format": "${params.format}", "body": "x"}, "format"),
    ],
)
def test_what_a_reference_may_come_to_is_not_judged_before_it_does(component, config, unknown):
    """Keys, formats and bodies that are known when the step runs."""
    found = find_component(f"s3.{component}")
    assert found.problems({"connection": "@s3.reports", **config}, [(unknown,)], [(unknown,)]) == []


@table(
    ("fields", "said"),
    [
        ({"endpoint_url": "objects.example.com"}, "expected an address that begins with http:// or https://"),
        ({"endpoint_url": "https://ann:x@objects.example.com"}, "expected an address of a host and nothing behind it"),
        ({"access_key_id": "a"}, "expected access_key_id and secret_access_key, both or none of them"),
        ({"endpoint_url": "https://o.example"}, "expected access_key_id and secret_access_key with endpoint_url"),
        ({"session_token": "a"}, "expected access_key_id and secret_access_key with session_token"),
        ({"region": "EU"}, "expected a region in small letters"),
    ],
)
def test_what_is_wrong_in_a_connection_is_said(fields, said):
    """Before anything is reached."""
    with pytest.raises(ValueError, match=said):
        find_family("s3").config.model_validate({"bucket": "reports", **fields})


def test_values_that_come_with_references_are_checked_when_the_step_runs(s3):
    """A body of another type than the format, rows that are none, and an ending that says nothing."""
    filled_in = "the config of work does not fit s3.writer, now that it is filled in"
    told = [
        fails("writer", s3, body=1)[:2],
        fails("writer", s3, "a.jsonl", body="x")[:2],
        fails("writer", s3, "a.json", body={"a": float("nan")})[0],
        fails("writer", s3, "a.bin", format="bytes", body="x")[:2],
        fails("writer", s3, body="xx", max_bytes=1)[:2],
    ]
    assert told == [
        ("validation_error", f"{filled_in}: body: expected a text, as key or format says"),
        ("validation_error", f"{filled_in}: body: expected rows, as key or format says"),
        "validation_error",
        ("validation_error", f"{filled_in}: body: expected bytes, as format says"),
        ("validation_error", "expected a body of at most max_bytes (1), got: a longer one"),
    ]


# --- conformance, and the doctor ---


def test_they_are_what_a_step_relies_on(s3):
    """The check that authors are given; no secret in outputs, messages and logs."""
    s3.put("conforming.json", b"{}")
    given = {"connection": here(s3, session_token=TOKEN)}
    found = [
        check_component("s3.reader", _with("conforming.json"), failing=_with("gone.json"), **given),
        check_component("s3.writer", _with("c.json", body=[1]), failing=_with("c.json", body=[1], bucket="none-there"), **given),
        check_component("s3.deleter", _with("c.json"), failing=_with("c.json", bucket="none-there"), **given),
    ]  # fmt: skip
    assert [sorted(one) for one in found] == [
        ["body", "content_type", "etag", "metadata", "size"],
        ["bucket", "etag", "key", "sha256", "size", "written"],
        ["bucket", "key"],
    ]


def _with(key, **config):
    return {"connection": "@s3.reports", "key": key, **config}


def test_each_attempt_is_one_call():
    """SDK retries are off: counted at the server, for what succeeds and for what does not."""
    answers = {
        "/bucket/a.txt": (200, {"etag": f'"{MD5_OF_X}"'}, b""),
        "/bucket/no.txt": (503, XML, refusal("SlowDown")),
    }
    with Answers(answers) as server:
        given = {"connection": here(server), "calls": lambda: len(server.asked)}
        check_component("s3.writer", _with("a.txt", body="x"), failing=_with("no.txt", body="x"), **given)
        check_component("s3.reader", _with("a.txt"), failing=_with("no.txt"), **given)
        check_component("s3.deleter", _with("a.txt"), failing=_with("no.txt"), **given)


def test_the_doctor_tells_why_a_bucket_is_not_reached(s3):
    """Reached, no such bucket, wrong secret, nobody there: in our words, without a secret."""

    def tried(**fields):
        try:
            reached(reach_s3, here(s3, **fields), 30)
        except Exception as error:  # noqa: BLE001 - whichever it is, it is told
            found = failure(error)
            return found.kind, found.why, found.fields
        return "reached"

    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    told = [tried(), tried(bucket="none-there"), tried(secret_access_key="wrong-secret"), tried(endpoint_url=url)]
    assert [one[:2] if isinstance(one, tuple) else one for one in told] == [
        "reached",
        ("unknown", "the store has no such bucket"),
        ("auth", "the service does not accept who logs in"),
        ("network", "the host refuses the connection: nothing listens there"),
    ]
    assert told[1][2] == ("bucket",)
