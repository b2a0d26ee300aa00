"""`outlast.testing.FaultProxy`: each fault does to the client, and to the target, exactly what it says."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import closing

import pytest

from outlast import ConfigurationError
from outlast.testing import FaultProxy
from servers.http import MisbehavingServer


class Echo:
    """A server that answers every line with the same line; `heard` has all bytes that it got."""

    def __init__(self, *, hang_up: bool = False) -> None:
        self.heard = b""
        self._hang_up = hang_up
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(client,)))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            try:
                for line in lines:
                    self.heard += line
                    if self._hang_up:
                        return
                    client.sendall(line)
            except OSError:
                return


def said(client: socket.socket, words: bytes) -> str | bytes:
    """What a client hears after these words, up to the end of the line or of the stream: bytes, or the name of an error."""
    try:
        client.sendall(words)
        heard = b""
        while not heard.endswith(b"\n") and (more := client.recv(65536)):
            heard += more
    except OSError as error:
        return type(error).__name__
    return heard


def connected(proxy: FaultProxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


STORIES = {
    "reset_before": ("ConnectionResetError", b"after\n"),
    "reset_after": ("ConnectionResetError", b"request\nafter\n"),
    "half_close": (b"requ", b"request\nafter\n"),
    "garbage": (bytes(range(256)) * 4, b"request\nafter\n"),
}


@pytest.mark.parametrize("kind", STORIES)
def test_a_fault_strikes_one_connection_and_the_next_one_is_whole(kind):
    """What the client hears, and what has reached the target."""
    with Echo() as echo, FaultProxy(echo.address) as proxy:
        proxy.fault(kind)
        with connected(proxy) as client, connected(proxy) as other:
            told = said(client, b"request\n")
            assert said(other, b"after\n") == b"after\n"
        assert (told, echo.heard, proxy.struck) == (*STORIES[kind], [kind])


@pytest.mark.parametrize("end", ["cut", "stop", "the target hangs up"])
def test_a_stalled_client_hears_nothing_until_it_is_cut(end):
    """The target has the request, and that it hangs up is not told either."""
    with Echo(hang_up=end == "the target hangs up") as echo, FaultProxy(echo.address) as proxy:
        proxy.fault("stall")
        with connected(proxy) as client:
            client.settimeout(0.2)
            assert said(client, b"request\n") == "TimeoutError"
            assert said(client, b"more\n") == "TimeoutError"
            assert proxy.struck == ["stall"]
            assert echo.heard == (b"request\n" if end == "the target hangs up" else b"request\nmore\n")
            client.settimeout(60)
            proxy.stop() if end == "stop" else proxy.cut()
            assert said(client, b"")[:10] == "Connection"


def test_faults_wait_for_what_they_are_told_and_strike_in_order():
    """`when` may come in two pieces and on any request of a connection; `times` counts requests."""
    with Echo() as echo, FaultProxy(echo.address) as proxy:
        proxy.fault("reset_after", when=b"commit", times=2)
        proxy.fault("half_close", when=b"commit")
        proxy.fault("garbage", when=b"never said")
        heard = []
        for _ in range(4):
            with connected(proxy) as client:
                assert said(client, b"begin\n") == b"begin\n"
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.sendall(b"com")
                while not echo.heard.endswith(b"begin\n"):
                    pass
                heard.append(said(client, b"mit\n"))
        assert heard == ["ConnectionResetError", "ConnectionResetError", b"com", b"commit\n"]
        assert echo.heard == b"begin\ncommit\n" * 4
        assert proxy.struck == ["reset_after", "reset_after", "half_close"]


def test_an_answer_that_asks_to_go_on_is_not_the_answer():
    """A client that waits for 100 Continue sends its whole request before the fault strikes."""
    heard = []

    def serve(listener):
        client, _ = listener.accept()
        with client, client.makefile("rb") as lines:
            heard.append(lines.readline())
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            heard.append(lines.readline())
            client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with FaultProxy(listener.getsockname()) as proxy, connected(proxy) as client:
            proxy.fault("reset_after")
            first = said(client, b"PUT / HTTP/1.1\r\n")
            second = said(client, b"the body\r\n")
        server.join()
    assert (first, second) == (b"HTTP/1.1 100 Continue\r\n\r\n", "ConnectionResetError")
    assert heard == [b"PUT / HTTP/1.1\r\n", b"the body\r\n"]


def test_http_clients_tell_the_faults_apart(server_of_http):
    """That of Python itself takes half of the headers for an answer without a body; the others it takes for none."""
    told = []
    with FaultProxy(("127.0.0.1", server_of_http.port)) as proxy:
        for kind in ("reset_before", "reset_after", "half_close", "garbage", "stall"):
            proxy.fault(kind, when=b"/ok")
            with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=0.2)) as client:
                try:
                    client.request("GET", "/ok")
                    told.append(client.getresponse().read())
                except (OSError, http.client.HTTPException) as error:
                    told.append(type(error).__name__)
    assert told == ["ConnectionResetError", "ConnectionResetError", b"", "BadStatusLine", "TimeoutError"]
    assert len(server_of_http.seen) == 4


@pytest.fixture
def server_of_http():
    with MisbehavingServer() as server:
        yield server


def test_a_client_that_reads_nothing_can_be_cut():
    """Nothing waits for it for ever, and no thread is left."""
    before = set(threading.enumerate())
    much = b"x" * 8_000_000 + b"\n"
    with Echo() as echo, FaultProxy(echo.address) as proxy, connected(proxy) as client:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.sendall(much * 4)
        proxy.cut()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.timeout(60)
def test_a_target_that_takes_nobody_holds_nothing_up(tmp_path, kind):
    """Other clients are taken meanwhile, `cut` resets those that wait, and `stop` leaves nothing behind."""
    family, where = (socket.AF_INET, ("127.0.0.1", 0)) if kind == "tcp" else (socket.AF_UNIX, str(tmp_path / "full"))
    with closing(socket.socket(family)) as full:
        full.bind(where)
        full.listen(0)
        waiting = [socket.socket(family) for _ in range(8)]  # more than its queue takes
        for one in waiting:
            one.settimeout(0)
            one.connect_ex(full.getsockname())
        threads = threading.active_count()
        with FaultProxy(full.getsockname()) as proxy:
            first, second = (socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(2))
            with first, second:
                while len(proxy._pairs) < 2:
                    threading.Event().wait(0.01)
                proxy.cut()
                assert [said(one, b"a\n") for one in (first, second)] == ["ConnectionResetError"] * 2
            third = socket.create_connection(("127.0.0.1", proxy.port))
        with third:
            assert (said(third, b"a\n") in {"ConnectionResetError", "BrokenPipeError"}, proxy._pairs) == (True, [])
        assert threading.active_count() == threads
        for one in waiting:
            one.close()


def test_an_answer_that_comes_in_pieces_is_held_back():
    """The client never has all of it, wherever it is cut in two; what came before is handed on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server, FaultProxy(server.getsockname()) as proxy:
        proxy.hold_back(b"do it", b"COMMIT")
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            target, _ = server.accept()
            with target:
                client.sendall(b"do it")
                assert target.recv(100) == b"do it"
                target.sendall(b"...COM")
                assert client.recv(100) == b"...COM"
                target.sendall(b"MIT done")
                target.shutdown(socket.SHUT_WR)
                proxy._pairs[0]._threads[-1].join()  # it has seen all of it
                proxy.cut()
                assert said(client, b"") == "ConnectionResetError"


def test_what_is_over_is_forgotten():
    """A connection that both sides have closed holds neither threads nor sockets, while the proxy goes on."""
    with Echo() as echo, FaultProxy(echo.address) as proxy:
        before = threading.active_count()
        for _ in range(20):
            with connected(proxy) as client:
                assert said(client, b"x\n") == b"x\n"
        while proxy._pairs or threading.active_count() > before + 20:
            pass
        assert proxy._pairs == []


def test_it_may_be_stopped_twice_or_without_a_beginning():
    """And its port is free then."""
    proxy = FaultProxy(("127.0.0.1", 1))
    proxy.stop()
    proxy.stop()
    with FaultProxy(("127.0.0.1", 1), port=proxy.port) as again:
        assert again.port == proxy.port


def test_what_is_wrong_is_said_at_once():
    """Everything in one error."""
    with pytest.raises(ConfigurationError) as wrong:
        FaultProxy(("localhost",), port=70_000)
    assert [str(problem) for problem in wrong.value.details] == [
        "expected target to be the path of a unix socket, or host and port, got: a value of type tuple.",
        "expected port to be an integer from 0 to 65535, got: 70000.",
    ]
    proxy = FaultProxy(("127.0.0.1", 1))
    try:
        with pytest.raises(ConfigurationError) as wrong:
            proxy.fault("reset_bevore", when="commit", times=0)
        assert [str(problem) for problem in wrong.value.details] == [
            "expected kind to be one of reset_before, reset_after, stall, half_close, garbage, got: 'reset_bevore'. Did you mean 'reset_before'?",
            "expected when to be bytes, got: 'commit'. Write them as b'...'.",
            "expected times to be an integer of at least 1, got: 0.",
        ]
        with pytest.raises(ConfigurationError, match="expected said to be bytes, at least one, got"):
            proxy.hold_back(b"", b"answer")
    finally:
        proxy.stop()
