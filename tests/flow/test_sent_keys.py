"""
The key that steps send to services, `Idempotency-Key`: the same until the work is done or undone, in whatever round, and
another one then. The service of these tests is honest: it charges once for each key, and may lose its answers.
"""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import outlast
from held_flows import running
from outlast.testing import virtual_time


class Service:
    """What was asked for, in its order, and the charges by their keys. Each of `lose` is a body whose answer is lost once."""

    def __init__(self):
        self.asked: list[tuple[str, Any, str]] = []  # path, what, key
        self.charges: dict[str, Any] = {}
        self.lose: list[Any] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = False
        self._http.ours = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def keys(self, path="/pay", what=None):
        """The keys that came, in their order, without those that are as the one before."""
        found = [key for came, body, key in self.asked if came == path and what in (None, body["id"])]
        return [key for place, key in enumerate(found) if place == 0 or key != found[place - 1]]

    @property
    def charged(self):
        return sorted(self.charges.values())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        ours = self.server.ours
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        ours.asked.append((self.path, body, key))
        if self.path == "/pay":
            ours.charges.setdefault(key, body["id"])
        if (lost := (self.path, body["id"])) in ours.lose:
            ours.lose.remove(lost)
            self.close_connection = True
            return
        self.send_response_only(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


FUNCTIONS = """\
import json, os, signal, urllib.request
from pathlib import Path
import outlast
HERE = Path(__file__).parent
def gate():
    if (HERE / "shut").exists():
        raise ValueError("shut")
def pay(id):
    body, key = json.dumps({"id": id}).encode(), outlast.current().idempotency_key
    asks = urllib.request.Request(os.environ["PAY_URL"] + "/pay", body, {"Idempotency-Key": key})
    urllib.request.urlopen(asks).read()
    dies = HERE / "dies"
    if dies.exists():
        left = dies.read_text()[1:]
        dies.write_text(left) if left else dies.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
def refund(id):
    pass
"""
PAY = """\
name: shop
steps:
  - id: pay
    component: http.caller
    config: {connection: "@http.pay", url: /pay, method: POST, json: {id: 7}}
    retry: {max_attempts: 2, initial_delay_ms: 1, jitter: 0}
"""
ROWS = """\
name: shop
steps:
  - id: pay
    component: http.caller
    for_each: {items: [{id: 1}, {id: 2}, {id: 3}], key: id}
    config: {connection: "@http.pay", url: /pay, method: POST, json: {id: "${item.id}"}}
    retry: {max_attempts: 2, initial_delay_ms: 1, jitter: 0}
"""
KEY = '    idempotency: {key: "order-7"}\n'
ROW_KEY = '    idempotency: {key: "order-${item.id}"}\n'
BACK = '{component: http.caller, WHENconfig: {connection: "@http.pay", url: /refund, method: POST, json: {id: ID}}, retry: {max_attempts: 1}}'
UNDOES = "    compensate: " + BACK.replace("ID", "7") + "\n"
UNDOES_ROWS = "    compensate: " + BACK.replace("ID", '"${item.id}"') + "\n"
GATE = '  - {id: gate, component: python, needs: [pay], config: {call: "MODULE:gate"}}\n'


def when(text, said="completed"):
    return text.replace("WHEN", f"when: {said}, ")


@pytest.fixture
def service(project, monkeypatch):
    (project.root / "connections.yaml").write_text(
        'connections: {http: {pay: {base_url: "${PAY_URL}", allow_private: true}}}\n'
    )
    project.functions(FUNCTIONS)
    with Service() as made:
        monkeypatch.setenv("PAY_URL", made.url)
        yield made


def lost(*ids, times=2, path="/pay"):
    return [(path, one) for one in ids for _ in range(times)]


# --- it stays ---


@pytest.mark.parametrize("more", ["", KEY, "    isolation: process\n"], ids=["plain", "with a key", "in a process"])
def test_a_lost_answer_and_a_new_round_charge_once(project, app, service, more):
    """The advised way on after a failure: the service knows the key of the round before."""
    flow = project.load(PAY + more)
    service.lose = lost(7, times=4)
    for _ in range(2):
        assert flow.run(run_key="a", app=app, check=False).status == "failed"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert (len(service.asked), len(service.keys()), service.charged) == (5, 1, [7])
    assert flow.run(run_key="b", app=app)["pay"].status == ("cached" if more == KEY else "succeeded")
    assert len(service.keys()) == (1 if more == KEY else 2)  # another run is other work, unless a key says else


@pytest.mark.parametrize(
    "more",
    ["", ROW_KEY, when(UNDOES_ROWS), "    isolation: process\n"],
    ids=["plain", "with a key", "undone by row", "in a process"],
)
def test_rows_whose_answers_are_lost_are_charged_once(project, app, service, more):
    """Each by itself: also where the rows that came through are undone in between, which these were not."""
    flow = project.load(ROWS + more)
    service.lose = lost(2, 3, times=4)
    for _ in range(2):
        assert flow.run(run_key="a", app=app, check=False).status == "failed"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert [len(service.keys(what=one)) for one in (1, 2, 3)] == [3 if "compensate" in more else 1, 1, 1]
    assert len({*service.keys()}) == len(service.charges) == (5 if "compensate" in more else 3)


@pytest.mark.parametrize("more", ["", "    isolation: process\n"], ids=["thread", "process"])
def test_rows_that_send_their_key_are_retried_although_they_must_not_be_done_twice(project, app, service, more):
    """The service recognises the second request of a row."""
    flow = project.load(ROWS + "    idempotent: false\n" + more)
    service.lose = lost(2, times=1)
    assert flow.run(run_key="a", app=app).status == "completed"
    assert (len(service.asked), service.charged) == (4, [1, 2, 3])


def test_rows_with_a_header_of_their_own_in_place_of_the_key_are_in_doubt(project, sqlite_app, service):
    """Then the key is not sent."""
    config = ROWS.replace("method: POST,", 'method: POST, headers: {Idempotency-Key: "none"},')
    service.lose = lost(2, times=1)
    flow = project.load(config + "    idempotent: false\n")
    assert flow.run(run_key="a", app=sqlite_app, check=False).status == "partial_success"
    (letter,) = [one for one in sqlite_app.dead_letters.find() if one.kind == "item"]
    assert (letter.item_key, letter.stop_reason, len(service.asked)) == ("2", "ambiguous", 3)


def test_from_step_after_a_failure_charges_once(project, app, service):
    """Who looks first and goes on by the name of the step sends the same key: the charge may have been made."""
    flow = project.load(PAY + "    idempotent: false\n")
    service.lose = lost(7, times=1)
    assert flow.run(run_key="a", app=app, check=False)["pay"].stop_reason == "ambiguous"
    assert flow.run(run_key="a", app=app, from_step="pay").status == "completed"
    assert (len(service.asked), service.charged) == (2, [7])


def test_a_round_of_another_step_changes_no_key(project, app, service):
    """The step waits to go on while others are done again."""
    text = PAY.replace("steps:\n", 'steps:\n  - {id: first, component: python, config: {call: "MODULE:gate"}}\n')
    text = text.replace("    component: http", "    needs: [first]\n    component: http")
    flow = project.load(text)
    service.lose = lost(7)
    assert flow.run(run_key="a", app=app, check=False).status == "failed"
    assert flow.run(run_key="a", app=app, from_step="first").status == "completed"
    assert (len(service.asked), service.charged) == (3, [7])


STEP = '  - {id: pay, component: python, config: {call: "MODULE:pay", args: {id: 7}}, idempotent: true}\n'
EACH = """\
  - id: pay
    component: python
    for_each: {items: [{id: 7}], key: id}
    config: {call: "MODULE:pay", args: {id: "${item.id}"}}
"""
BY_ROW = '    compensate: {component: python, config: {call: "MODULE:refund", args: {id: "${item.id}"}}}\n'


@pytest.mark.timeout(240)
@pytest.mark.parametrize("steps", [STEP, EACH, EACH + ROW_KEY + BY_ROW], ids=["step", "rows", "rows nobody knows of"])
def test_killed_three_times_and_begun_anew_it_is_charged_once(project, app, service, steps):
    """Each process ends between the charge and the record of it; the third end is that of the round."""
    flow = project.load(f"name: shop\nsteps:\n{steps}")
    (project.root / "dies").write_text("xxx")
    for _ in range(3):
        with running(app, project.root) as process:
            assert process.wait() == -signal.SIGKILL
    assert flow.run(run_key="a", app=app, check=False)["pay"].stop_reason == "poison"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert (len(service.asked), service.charged) == (4, [7])


@pytest.mark.parametrize(("text", "ids"), [(PAY + KEY, [7]), (ROWS, [1, 2, 3])], ids=["step", "rows"])
def test_a_worker_that_tries_an_enqueued_flow_again_charges_once(project, app, service, text, ids):
    """Nobody has asked for the new round but the job itself."""
    service.lose = lost(*ids)
    handle = project.load(text).enqueue(app=app, run_key="a")
    with virtual_time():
        result = outlast.testing.work(app)
    assert (result.requeued, handle.status) == (1, "succeeded")
    assert (len(service.asked), service.charged) == (3 * len(ids), ids)


def test_code_that_asks_for_the_key_of_a_row_gets_the_one_that_is_sent(project, sqlite_app, service):
    """Also in a process of its own, in each round."""
    text = f"name: shop\nsteps:\n{EACH}    isolation: process\n    retry: {{max_attempts: 2, initial_delay_ms: 1, jitter: 0}}\n"
    flow = project.load(text)
    service.lose = lost(7, times=3)
    assert flow.run(run_key="a", app=sqlite_app, check=False).status == "failed"
    assert flow.run(run_key="a", app=sqlite_app).status == "completed"
    assert (len(service.asked), service.charged) == (4, [7])


# --- it changes ---


@pytest.mark.parametrize("more", ["", KEY], ids=["plain", "with a key"])
def test_what_was_undone_is_done_under_a_new_key(project, app, service, more):
    """A service would else answer with what was undone. What undoes it sends one key for each deed, in all rounds."""
    flow = project.load(PAY + more + when(UNDOES) + GATE)
    (project.root / "shut").touch()
    service.lose = lost(7, path="/refund", times=2)
    for status in ("failed", "failed", "failed"):  # its undoing fails twice; then it is undone, done anew and undone
        result = flow.run(run_key="a", app=app, check=False)
        assert result.status == status
    assert result.compensation == "completed"
    (project.root / "shut").unlink()
    assert flow.run(run_key="a", app=app).status == "completed"
    assert [path for path, _, _ in service.asked] == ["/pay", *["/refund"] * 3, "/pay", "/refund", "/pay"]
    assert len({*service.keys(), *service.keys("/refund")}) == 5
    assert (len(service.keys()), len(service.keys("/refund")), service.charged) == (3, 2, [7, 7, 7])


def test_what_was_begun_and_undone_is_done_under_a_new_key(project, app, service):
    """Its answer was lost, and it was undone all the same; the second time somebody does that by hand."""
    flow = project.load(PAY + when(UNDOES, "started"))
    service.lose = lost(7)
    assert flow.run(run_key="a", app=app, check=False).compensation == "completed"
    service.lose = lost(7) + lost(7, path="/refund", times=1)
    assert flow.run(run_key="a", app=app, check=False).compensation == "failed"
    app.dead_letters.archive(
        ids=[letter.id for letter in app.dead_letters.find() if letter.kind == "compensation"], reason="by hand"
    )
    service.lose = lost(7)
    assert flow.run(run_key="a", app=app, check=False).compensation == "completed"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert (len(service.keys()), len(service.keys("/refund"))) == (4, 3)


@pytest.mark.parametrize("more", ["", ROW_KEY], ids=["plain", "with a key"])
def test_rows_that_were_undone_are_done_under_new_keys(project, app, service, more):
    """A row that could not be undone at first is undone under the same key later."""
    flow = project.load(ROWS + more + when(UNDOES_ROWS) + GATE)
    (project.root / "shut").touch()
    service.lose = lost(2, path="/refund", times=1)
    for _ in range(2):
        assert flow.run(run_key="a", app=app, check=False).status == "failed"
    (project.root / "shut").unlink()
    assert flow.run(run_key="a", app=app).status == "completed"
    refunds = [body["id"] for path, body, _ in service.asked if path == "/refund"]
    assert sorted(refunds) == [1, 1, 2, 2, 2, 3, 3]
    assert [len(service.keys(what=one)) for one in (1, 2, 3)] == [3, 3, 3]
    assert [len(service.keys("/refund", one)) for one in (1, 2, 3)] == [2, 2, 2]
    assert len({key for _, _, key in service.asked}) == 15


def test_one_compensation_for_all_rows_gives_each_a_new_key(project, app, service):
    """Also those whose answer was lost: what undoes the step undoes all of it."""
    flow = project.load(ROWS + when(UNDOES, "started"))
    service.lose = lost(2, 3)
    assert flow.run(run_key="a", app=app, check=False).compensation == "completed"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert [len(service.keys(what=one)) for one in (1, 2, 3)] == [2, 2, 2]


def test_what_has_succeeded_and_is_wanted_again_is_done_under_a_new_key(project, app, service):
    """Under the old one nothing would be done. If its answer is lost then, that key stays."""
    flow = project.load(PAY + KEY)
    flow.run(run_key="a", app=app)
    service.lose = lost(7)
    assert flow.run(run_key="a", app=app, check=False, from_step="pay").status == "failed"
    assert flow.run(run_key="a", app=app).status == "completed"
    assert (len(service.asked), len(service.keys()), service.charged) == (4, 2, [7, 7])
    changed = project.load((PAY + KEY).replace("id: 7", "id: 8"))
    assert changed.run(run_key="a", app=app, on_change="redo").status == "completed"
    assert service.charged == [7, 7, 8]


def test_rows_that_have_succeeded_and_are_wanted_again_are_done_under_new_keys(project, app, service):
    """One whose answer was lost, in a step that has succeeded without it, keeps its own."""
    many = ", ".join(f"{{id: {one}}}" for one in range(1, 31))
    flow = project.load(ROWS.replace("{id: 1}, {id: 2}, {id: 3}], key: id", f"{many}], key: id, min_success_rate: 0.9"))
    service.lose = lost(2)
    assert flow.run(run_key="a", app=app)["pay"].outputs["dead_letters"] == 1
    assert flow.run(run_key="a", app=app, from_step="pay").status == "completed"
    assert [len(service.keys(what=one)) for one in (1, 2, 3)] == [2, 1, 2]
