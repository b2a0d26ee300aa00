"""Real processes that share a thing: each evaluates what a test sends it, and answers in JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

from forked import Forked
from standing import stand_still

NOTHING = "outlast.CircuitBreaker('nothing', shared=True)"
PROGRAM = """
import asyncio, json, logging, sys, threading, time
import outlast
from outlast.breaker import shared

exec(sys.argv[3])
events, lines = [], []
from outlast.observe import subscribe
thing = None

def heard(event):
    # One of a test before may be learnt of late: it is still looked after while somebody holds it.
    if getattr(event, "breaker", None) in (None, getattr(thing, "name", None)):
        events.append([event.name, getattr(event, "learnt", None)])

subscribe(heard)

class Lines(logging.Handler):
    def emit(self, record):
        if "asked" in record.getMessage():
            lines.append(record.levelname + " " + record.getMessage())

logging.getLogger("outlast").addHandler(Lines())
logging.getLogger("outlast").setLevel(logging.INFO)

def share(made, app="shop"):
    "Begin with another thing."
    global thing, gate, inside
    thing, gate, inside = made, threading.Event(), []
    events.clear(), lines.clear()
    outlast.App(app, store=sys.argv[1]).share(thing)

share(eval(sys.argv[2]))

def work(wanted):
    if wanted is not None:
        raise wanted
    return "ok"

def call(wanted=None):
    "The end of one call: ok, the error's name, or rejected."
    try:
        return thing.call(work, wanted)
    except outlast.CircuitBreakerOpenError:
        return "rejected"
    except Exception as error:
        return type(error).__name__

def fail(times=1):
    return [call(ConnectionError("down")) for _ in range(times)]

def hold():
    "A call that stays inside until the gate opens."
    def body():
        inside.append(1)
        gate.wait(60)
    def run():
        try:
            thing.call(body)
        except outlast.CircuitBreakerOpenError:
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not inside and thread.is_alive():
        time.sleep(0.002)
    return bool(inside)

def state():
    return thing.memory.circuit.state.value

def until(wanted, seconds=10.0):
    "How long it took until something held."
    began = time.monotonic()
    while not wanted():
        if time.monotonic() - began > seconds:
            raise TimeoutError("it never came to that")
        time.sleep(0.005)
    return time.monotonic() - began

print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = {"value": eval(json.loads(line))}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer, default=str), flush=True)
"""


class Process:
    """A process that has one shared thing, made by an expression."""

    def __init__(self, url: str, thing: str, *, first: str = "") -> None:
        self._process = Forked(
            [sys.executable, "-c", PROGRAM, url, thing, first], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ready = False

    def ready(self):
        if not self._ready:
            assert self._process.stdout.readline() == "ready\n"
            self._ready = True
        return self

    def send(self, expression: str) -> None:
        self.ready()
        self._process.stdin.write(json.dumps(expression) + "\n")
        self._process.stdin.flush()

    def answer(self):
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def __call__(self, expression: str):
        self.send(expression)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        stand_still(self._process.pid)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def eventually(holds, seconds: float = 10.0, every: float = 0.005) -> float:
    """Wait for other processes: how long it took until something held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it never came to that"
        time.sleep(every)
    return time.monotonic() - began


async def soon(holds) -> None:
    """As `eventually`, in an event loop."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - others bring it about, which know no event of ours
            await asyncio.sleep(0.001)
