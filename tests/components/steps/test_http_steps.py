"""`http.caller`, against servers that answer, redirect, hang up, stall and send too much."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import pickle
import socket
import ssl
import zlib
from datetime import date
from time import monotonic

import pytest
import trustme

from components.steps.answers import Answers, Dripping
from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.components.reaching import is_public
from outlast.components.running import StepContext
from outlast.components.steps.doing import wire
from outlast.settings.secret import Secret
from outlast.verdicts import classify, has_begun, surely_undone
from servers.http import MisbehavingServer
from tables import table

SECRET = "s3cr3t-hunter2-token"
JSON = {"content-type": "application/json; charset=utf-8"}


def here(server, **fields):
    """A connection to a server of this machine."""
    return {"base_url": server.url, "allow_private": True, **fields}


def call(connection, url="/a", context=None, **config):
    context = context or a_context(connection=connection)
    return outputs_of("http.caller", {"connection": "@http.shop", "url": url, **config}, context)


def fails(connection, url="/a", shelf=None, **config):
    context = a_context(connection=connection, place=None if shelf is None else shelf.place)
    return failure_of("http.caller", {"connection": "@http.shop", "url": url, **config}, context)


@pytest.fixture
def at_most(monkeypatch):
    """Sets how much time is left for the attempt."""
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


@pytest.fixture
def names(monkeypatch):
    """Names of hosts that lead to these addresses; what is looked up is written down."""
    real, known, asked = socket.getaddrinfo, {}, []

    def lookup(host, port, *args, **kwargs):
        asked.append(host)
        return [one for address in known.get(host, [host]) for one in real(address, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    known["asked"] = asked
    return known


@pytest.fixture
def public(monkeypatch):
    """Other ports of this machine stand for other hosts, which are public."""
    monkeypatch.setattr(wire, "is_public", lambda _: True)


# --- what is sent ---


def test_what_the_step_says_is_what_is_sent():
    """Path behind the base address, query, headers over those of the connection, a body as JSON, each once."""
    with Answers() as server:
        connection = here(server, headers={"X-Team": "a", "X-Kind": "b"}) | {"base_url": f"{server.url}/v1/?v=2"}
        query = {"q": "a b", "n": [1, 2], "yes": True}
        outputs = call(
            connection,
            "/orders?x=1",
            method="PUT",
            query=query,
            headers={"x-kind": "c"},
            json={"day": date(2026, 1, 2)},
        )
    (asked,) = server.asked
    assert outputs == {"status": 200, "headers": {"content-length": "2"}, "body": "ok"}
    assert (asked.method, asked.path) == ("PUT", "/v1/orders?v=2&x=1&q=a+b&n=1&n=2&yes=true")
    assert (asked.headers["content-type"], json.loads(asked.body)) == ("application/json", {"day": "2026-01-02"})
    assert (asked.headers["x-team"], asked.headers["x-kind"]) == ("a", "c")
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"


def test_a_form_and_a_text_are_sent_as_they_are():
    """What the body is, is said, unless the step says it itself."""
    with Answers() as server:
        call(here(server), method="POST", form={"a": "b c"})
        call(here(server), method="POST", body="<x/>", headers={"Content-Type": "text/xml"})
    sent = [(one.headers["content-type"], one.body) for one in server.asked]
    assert sent == [("application/x-www-form-urlencoded", b"a=b+c"), ("text/xml", b"<x/>")]


def test_the_idempotency_key_goes_with_what_must_not_be_done_twice():
    """POST and PATCH carry the key of the step, unless the step gives one itself; other methods need none."""
    with Answers() as server:
        for method in ("POST", "PATCH", "PUT", "GET"):
            call(here(server), method=method)
        call(here(server), method="POST", headers={"idempotency-key": "mine"})
    assert [one.headers.get("idempotency-key") for one in server.asked] == ["k-1", "k-1", None, None, "mine"]


def test_who_asks_is_said_as_the_connection_has_it(monkeypatch):
    """A token is a bearer; user and password are basic authentication."""
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    with Answers() as server:
        call(here(server, token=Secret.env("SHOP_TOKEN")))
        call(here(server, user="ann", password=Secret.env("SHOP_TOKEN")))
    first, second = (one.headers["authorization"] for one in server.asked)
    assert (first, second.startswith("Basic ")) == (f"Bearer {SECRET}", True)


def test_proxies_of_the_environment_are_not_asked(monkeypatch):
    """What is private to a connection goes where the connection says, and nowhere else."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Answers() as server:
        assert call(here(server))["status"] == 200


def test_a_path_cannot_leave_where_the_connection_leads():
    """What another step has put out may be part of a path, and must not climb."""
    with Answers() as server:
        told = {path: fails(here(server), path)[0] for path in ("/a/../b", "/a/%2e%2e/b", "/a/..%2fb", "/a/..%5Cb")}
    assert (set(told.values()), server.asked) == ({"validation_error"}, [])


# --- what is read ---


@table(
    ("answer", "config", "body"),
    [
        ((200, JSON, b'{"a": [1.5]}'), {}, {"a": [1.5]}),
        ((200, {"content-type": "application/problem+json"}, b"[1]"), {}, [1]),
        ((200, JSON, b'{"a": 1}'), {"response": "text"}, '{"a": 1}'),
        ((200, {}, b"[1]"), {"response": "json"}, [1]),
        ((200, {"content-type": "text/plain; charset=latin-1"}, b"caf\xe9"), {}, "café"),
        ((200, JSON, b"{}"), {"response": "none"}, None),
        ((204, JSON, b""), {}, None),
        ((200, {"content-encoding": "gzip"}, gzip.compress(b"ab") + gzip.compress(b"c")), {}, "abc"),
        ((200, {"content-encoding": "deflate"}, zlib.compress(b"abc")), {}, "abc"),
        ((200, {"content-encoding": "deflate"}, zlib.compress(b"abc")[2:-4]), {}, "abc"),
        ((200, JSON, b"{}"), {"method": "HEAD"}, None),
    ],
)
def test_the_body_is_read_as_the_step_says(answer, config, body):
    """JSON where the answer says so, else a text; compressed bodies are unpacked."""
    with Answers({"/a": answer}) as server:
        assert call(here(server), **config)["body"] == body


@table(
    ("answer", "config", "said"),
    [
        ((200, JSON, b'{"a": hunter2'), {}, "expected a body of JSON"),
        ((200, JSON, b"[NaN]"), {}, "expected a body of JSON"),
        ((200, JSON, b"[1e999]"), {}, "expected a body of JSON"),
        ((200, JSON, b'{"a": [{"b": 1, "b": 1}]}'), {}, "expected a body of JSON"),
        ((200, {}, b"hunter2\xff"), {}, "expected a body of text"),
        ((200, {"content-type": "text/plain; charset=nope"}, b"a"), {}, "expected a body of text"),
        ((200, {"content-type": "text/html"}, b"hunter2"), {"expect": {"content_type": "application/json"}}, "expected the Content-Type to begin with application/json"),
        ((200, {}, b"x" * 11), {"max_bytes": 10}, "expected a body of at most max_bytes (10)"),
        ((200, {"content-encoding": "gzip"}, gzip.compress(b"x" * 50_000_000)), {"max_bytes": 100_000}, "expected a body of at most max_bytes (100000)"),
        ((200, {"content-encoding": "gzip"}, gzip.compress(b"x" * 1000)[:-10]), {}, "expected a body that can be unpacked"),
        ((200, {"content-encoding": "gzip"}, b"hunter2"), {}, "expected a body that can be unpacked"),
        ((200, {"content-encoding": "br"}, b"x"), {}, "expected a body that is packed with gzip or deflate"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_what_it_must_be_fails_for_good(answer, config, said):
    """The message has neither body nor address; what came is kept for people where it was read; what was asked for may be done."""
    with Answers({"/a": answer}) as server:
        kind, told, error = fails(here(server), **config)
    assert (kind, said in told, "hunter2" in told, has_begun(error)) == ("data_error", True, False, True)


def test_a_packed_body_that_unpacks_to_nothing_ends_all_the_same():
    """What comes over the wire counts as well, also where no time is set and there is always more to read."""
    with Dripping(b"Content-Encoding: gzip\r\n", gzip.compress(b"") * 1000, 0) as server:
        kind, said, _ = fails(here(server), max_bytes=100_000)
        assert (kind, said.endswith("expected a body of at most max_bytes (100000), got: a longer one")) == (
            "data_error",
            True,
        )
    with Answers({"/a": (200, {"content-encoding": "gzip"}, gzip.compress(b"abc"))}) as server:
        assert call(here(server), max_bytes=3)["body"] == "abc"  # although it is longer while it is packed


def test_a_body_that_never_comes_to_an_end_is_given_up_in_time(at_most):
    """Also where every read has something to give at once."""
    at_most(0.3)
    with Dripping(b"Content-Encoding: gzip\r\n", gzip.compress(b"") * 1000, 0) as server:
        assert fails(here(server), max_bytes=1_000_000_000)[0] == "timeout"


@table("headers", [b"Content-Length: 1000000\r\n", b"Content-Encoding: gzip\r\n"])
def test_an_answer_of_another_type_is_not_waited_for(monkeypatch, headers):
    """What is only looked at gets a moment, and no more, where the step has no time limit."""
    monkeypatch.setattr("outlast.components.steps.doing.http._LINGER", 0.1)
    piece = gzip.compress(b"") if b"gzip" in headers else b"x"
    with Dripping(headers, piece) as server:
        kind, said, _ = fails(here(server), expect={"content_type": "application/json"})
    assert (kind, "expected the Content-Type to begin with" in said) == ("data_error", True)


@table(
    ("status", "headers", "kind", "wait"),
    [
        (429, {"retry-after": "7"}, "rate_limited", 7.0),
        (503, {"retry-after-ms": "1500"}, "unavailable", 1.5),
        (500, {}, "server_error", None),
        (404, {}, "client_error", None),
        (401, {}, "auth_error", None),
        (302, {"location": "/b"}, "client_error", None),
        (206, {}, "client_error", None),
    ],
)
def test_a_status_that_is_not_expected_is_classified_by_it(status, headers, kind, wait):
    """The status and when to ask again are on the error, also once it has come from another process; the body is kept apart."""
    shelf = Shelf()
    with Answers({"/a": (status, headers, b"hunter2")}) as server:
        found, said, error = fails(here(server), "/a?q=hunter2", shelf)
        assert len(server.asked) == 1
    again = pickle.loads(pickle.dumps(error))
    assert (found, classify(again).error_class, classify(again).retry_after) == (kind, kind, wait)
    assert has_begun(again) == (status < 400)  # nobody has said no: it may have been done
    assert said == f"GET 127.0.0.1: answered with the status {status}, which is not expected"
    assert shelf.kept == {"answer": b"hunter2"}


def test_a_status_that_the_step_expects_is_none_to_fail_of():
    """Also one that would be an error elsewhere."""
    with Answers({"/a": (404, {}, b"none")}) as server:
        assert call(here(server), expect={"status": [200, 404]})["status"] == 404


# --- redirects ---


def test_redirects_are_followed_where_the_step_says_so():
    """As many as it says: a POST becomes a GET after a 303, and stays what it is after a 307."""
    answers = {
        "/a": (307, {"location": "/b"}, b""),
        "/b": (303, {"location": "c?d=1"}, b""),
        "/loop": (302, {"location": "/loop"}, b""),
    }
    with Answers(answers) as server:
        assert call(here(server), method="POST", json={}, max_redirects=2)["body"] == "ok"
        sent = [(one.method, one.path, one.body, one.headers.get("idempotency-key")) for one in server.asked]
        assert sent == [("POST", "/a", b"{}", "k-1"), ("POST", "/b", b"{}", "k-1"), ("GET", "/c?d=1", b"", None)]
        assert fails(here(server), "/loop", max_redirects=3)[0] == "client_error"
        assert len(server.asked) == 7


@table("hop", ["/busy", "refused"])
def test_a_hop_that_is_refused_does_not_prove_that_nothing_was_done(public, hop):
    """The request that led there was taken; one that is refused itself was not."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/"
    answers = {
        "/order": (303, {"location": nobody if hop == "refused" else hop}, b""),
        "/busy": (429, {}, b""),
    }
    with Answers(answers) as server:
        errors = [fails(here(server), path, method="POST", json={}, max_redirects=1)[2] for path in ("/order", "/busy")]
    again = [pickle.loads(pickle.dumps(error)) for error in errors]
    assert [surely_undone(error, classify(error)) for error in again] == [False, True]
    assert {classify(error).category for error in again} == {"transient"}


def test_another_host_gets_no_login_and_no_header_of_the_connection(public):
    """What is for the service alone stays with it."""
    with Answers() as other, Answers({"/a": (302, {"location": f"{other.url}/b"}, b"")}) as server:
        connection = here(server, token=SECRET, headers={"X-Api-Key": SECRET})
        call(connection, headers={"X-Mine": SECRET, "Accept": "text/plain"}, max_redirects=1)
    (asked,) = other.asked
    assert (SECRET in str(asked), asked.headers["accept"]) == (False, "text/plain")
    assert SECRET in str(server.asked)


def test_each_address_on_the_way_is_checked(names):
    """A host that may be private does not lead to another one that is, nor to http:// with a user in it."""
    names["inside.example"] = ["127.0.0.1"]
    with Answers() as other:
        answers = {
            "/a": (302, {"location": f"http://inside.example:{other.port}/"}, b""),
            "/b": (302, {"location": f"http://ann:x@127.0.0.1:{other.port}/"}, b""),
            "/c": (302, {"location": "file:///etc/passwd"}, b""),
        }
        with Answers(answers) as server:
            failed = [fails(here(server), path, max_redirects=1) for path in answers]
    told = [kind for kind, _, _ in failed]
    assert all(has_begun(error) for _, _, error in failed)  # the first request was answered
    assert (told, other.asked) == (["permission_denied", "client_error", "validation_error"], [])


@table("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_reach_another_port_of_a_private_host(status):
    """What the connection allows is the host and the port that it names; nothing is sent elsewhere."""
    with Answers() as other, Answers({"/a": (status, {"location": f"{other.url}/b"}, b"")}) as server:
        kind, said, error = fails(here(server), max_redirects=2)
        assert (kind, has_begun(error), other.asked) == ("permission_denied", True, [])
        assert "its own host and port" in said


@table("status", [307, 308])
def test_a_redirect_takes_no_body_to_another_host_or_port(public, status):
    """Where the method would stay the same the body would go along: it is refused. Within one origin it goes along."""
    with Answers() as other, Answers({"/a": (status, {"location": f"{other.url}/b"}, b"")}) as server:
        kind, said, error = fails(here(server), method="POST", json={"card": SECRET}, max_redirects=1)
        assert (kind, has_begun(error), other.asked) == ("client_error", True, [])
        assert "redirect a body to no other host or port" in said
        call(here(server), method="DELETE", max_redirects=1)
    assert [(one.method, one.body) for one in other.asked] == [("DELETE", b"")]


def test_headers_that_repeat_the_login_are_not_stored():
    """A service may say the token, the password or another secret of the request once more: the rest is put out."""
    login = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    others = {"set-cookie": f"t={SECRET}; Path=/", "x-own": "hunter2-own", "x-c": "kept"}
    for sent, fields in (
        (f"Bearer {SECRET}", {"token": SECRET}),
        (f"Basic {login}", {"user": "ann", "password": SECRET}),
    ):
        with Answers({"/a": (200, {"x-a": sent, **others}, b"ok")}) as server:
            context = a_context(connection=here(server, **fields), hidden=("hunter2-own", SECRET))
            headers = call(here(server, **fields), context=context)["headers"]
            assert {name: one for name, one in headers.items() if name.startswith(("x-", "set"))} == {"x-c": "kept"}


def test_a_login_of_the_step_goes_before_that_of_the_connection():
    """An Authorization header of the step is sent, and the login of the connection is not."""
    with Answers() as server:
        for fields in ({"token": SECRET}, {"user": "ann", "password": SECRET}, {"headers": {"Authorization": SECRET}}):
            call(here(server, **fields), headers={"authorization": "Bearer mine"})
    assert [one.headers["authorization"] for one in server.asked] == ["Bearer mine"] * 3
    assert SECRET not in str(server.asked)


def test_what_is_kept_of_an_answer_is_bounded_however_it_is_unusable():
    """64 KiB of a body that is no JSON, of one with another status, of one with another type."""
    body = b"x" * 200_000
    answers = {
        "/json": (200, JSON, body),
        "/status": (418, JSON, body),
        "/type": (200, {"content-type": "text/plain"}, body),
    }
    with Answers(answers) as server:
        for path in answers:
            shelf = Shelf()
            fails(here(server), path, shelf, expect={"content_type": "application/json"})
            assert (path, {name: len(raw) for name, raw in shelf.kept.items()}) == (path, {"answer": 65_536})


# --- where it goes ---


def test_private_addresses_need_a_connection_that_allows_them(names):
    """What counts is the address that a name leads to, each of them if it has several; nothing is sent."""
    names["shop.example"] = ["93.184.215.14", "127.0.0.1"]
    names["mapped.example"] = ["::ffff:127.0.0.1"]
    names["nat64.example"] = ["64:ff9b::7f00:1"]
    with Answers() as server:
        hosts = ("127.0.0.1", "shop.example", "mapped.example", "2130706433", "nat64.example")
        told = [fails({"base_url": f"http://{host}:{server.port}"})[0] for host in hosts]
        config = {"url": f"http://shop.example:{server.port}/"}
        told.append(failure_of("http.caller", config, a_context())[0])
    assert (told, server.asked) == (["permission_denied"] * 6, [])


@table(
    ("address", "public"),
    [
        ("64:ff9b::a00:1", False),  # NAT64 of 10.0.0.1
        ("64:ff9b::5db8:d70e", True),  # of 93.184.215.14
        ("64:ff9b:1::5db8:d70e", False),
        ("2002:a00:1::1", False),  # 6to4
        ("2002:5db8:d70e::1", True),
        ("::10.0.0.1", False),
        ("::93.184.215.14", True),
        ("::ffff:0:10.0.0.1", False),
        ("::ffff:0:169.254.169.254", False),
        ("2001:0:5db8:d70e::f5ff:fffe", False),  # Teredo of 10.0.0.1
        ("fec0::1", False),
        ("168.63.129.16", False),
        ("64:ff9b::a83f:8110", False),  # the same
        ("2606:4700:4700::1111", True),
        ("::1", False),
        ("::", False),
    ],
)
def test_an_address_that_carries_another_is_judged_by_it(address, public):
    """Whoever passes it on translates it, and then it leads into a network of one's own."""
    assert is_public(address) == public


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(names):
    """A name is looked up once, so that it cannot lead elsewhere the second time; the server still hears its name."""
    names["shop.example"] = ["127.0.0.1"]
    with Answers() as server:
        call({"base_url": f"http://shop.example:{server.port}", "allow_private": True})
    assert names["asked"].count("shop.example") == 1
    assert server.asked[0].headers["host"] == f"shop.example:{server.port}"


def test_the_certificate_is_checked_for_the_name(names, tmp_path, monkeypatch):
    """TLS has the name of the host, although an address is connected to; a certificate of another name is refused."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    names["shop.example"] = names["other.example"] = ["127.0.0.1"]
    with Answers(certificate=authority.issue_cert("shop.example")) as server:
        assert call({"base_url": f"https://shop.example:{server.port}", "allow_private": True})["status"] == 200
        assert fails({"base_url": f"https://other.example:{server.port}", "allow_private": True})[0] == "tls_verify"


def test_certificates_are_read_once_and_again_when_they_change(names, public, tmp_path, monkeypatch):
    """Reading them costs more than a call; http:// needs none of it. No name and no login is kept with them."""
    made = []
    real = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(1) or real())
    names["shop.example"] = ["127.0.0.1"]
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with Answers() as plain:
        call(here(plain))
    assert made == []
    with Answers(certificate=authority.issue_cert("shop.example")) as server:
        connection = {"base_url": f"https://shop.example:{server.port}", "allow_private": True}
        assert [call(connection)["status"] for _ in range(3)] == [200] * 3
        with Answers({"/a": (302, {"location": f"https://shop.example:{server.port}/b"}, b"")}) as plain:
            leads_on = {"base_url": f"http://shop.example:{plain.port}", "allow_private": True}
            assert call(leads_on, max_redirects=1)["status"] == 200
        assert made == [1]
        other.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        os.utime(tmp_path / "ca.pem", ns=(1, 1))
        assert fails(connection)[0] == "tls_verify"
    assert made == [1, 1]


# --- faults on the wire ---


@table(
    ("path", "kind", "name"),
    [
        ("/close", "connection_reset", "RemoteProtocolError"),
        ("/reset", "connection_reset", "ReadError"),
        ("/garbage", "connection_reset", "RemoteProtocolError"),
        ("/cut", "connection_reset", "RemoteProtocolError"),
        ("/cut?then=reset", "connection_reset", "ReadError"),
    ],
)
def test_a_connection_that_breaks_is_told_as_it_is_and_never_tried_again(path, kind, name):
    """The server sees one request; the error is httpx's, without a word of what was sent."""
    with MisbehavingServer() as server:
        found, said, error = fails(here(server), path)
        assert (found, type(error).__name__, server.seen) == (kind, name, [f"GET {path}"])
    assert "not HTTP" not in said


def test_nobody_there_and_no_such_name_are_told_apart():
    """What was never sent is known to be undone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = fails({"base_url": f"http://127.0.0.1:{port}", "allow_private": True})
    unknown = fails({"base_url": "http://nobody.invalid", "allow_private": True})
    assert (refused[0], unknown[0]) == ("connection_refused", "dns_error")


@table("path", ["/hang", "/cut?then=hang"])
def test_a_server_that_stalls_is_given_up_when_the_time_is_over(at_most, path):
    """No wait on the socket is longer than what is left of the attempt."""
    at_most(0.2)
    with MisbehavingServer() as server:
        begin = monotonic()
        kind, _, error = fails(here(server), path)
        assert (kind, type(error).__name__, monotonic() - begin < 30) == ("timeout", "ReadTimeout", True)


def test_a_server_that_drips_is_given_up_when_the_time_is_over(at_most):
    """The time is that of the whole attempt, not of each byte."""
    at_most(0.3)
    with Dripping() as server:
        assert fails(here(server))[0] == "timeout"


# --- secrets ---


def test_a_secret_is_in_no_message_and_no_log(monkeypatch, caplog):
    """Neither in what goes wrong with it, nor in what the library logs."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SHOP_TOKEN", f"{SECRET}\nmore")
    connection = {"base_url": "http://127.0.0.1:1", "allow_private": True, "token": Secret.env("SHOP_TOKEN")}
    kind, said, _ = fails(connection)
    assert (kind, said) == (
        "validation_error",
        "expected the header authorization to be one line of text, got: one with other characters",
    )
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    with Answers({"/a": (500, {}, b"")}) as server:
        fails({**connection, "base_url": server.url}, query={"key": SECRET})
    assert SECRET not in caplog.text
