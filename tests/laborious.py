"""What stages do in child processes: hard work, and every way to die of it. A child imports it by its name."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import outlast


def square(item):
    return item * item, os.getpid()


def meet(item):
    """Comes back only if another process is at the same place at the same time."""
    folder, number, count = item
    Path(folder, str(number)).touch()
    until = time.monotonic() + 20
    while len(list(Path(folder).iterdir())) < count:
        if time.monotonic() > until:
            raise PermissionError("nobody else came")
    return os.getpid()


class Odd(BaseException):
    """Of somebody who wanted not to be caught."""


def die(item):
    match item:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(3)
        case "cancelled":
            raise asyncio.CancelledError
        case "own":
            raise Odd
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            return len(bytearray(1 << 34))
    return item


def unless_whole(item):
    """Refuses what was not repaired twice and not mended by hand."""
    if item.get("repaired") != [1, 2, "whole"]:
        raise ValueError("not whole")
    return item


def die_together(items):
    return [die(item) for item in items]


def hang(item):
    if item == "hang":
        threading.Event().wait()
    return item


def hang_and_tell(fifo):
    """Says its number, then never comes back."""
    with Path(fifo).open("w") as told:
        told.write(f"{os.getpid()}\n")
    threading.Event().wait()


def report(item):
    here = outlast.current()
    here.spend(tokens=3, usd=0.5)
    here.warn(f"{here.stage} {here.item_key} {here.item_keys} attempt {here.attempt}")
    if item == "once" and here.attempt == 1:
        raise ConnectionResetError("gone")
    return here.run_id is not None


def report_together(items):
    here = outlast.current()
    here.spend(tokens=len(items) + 1)
    return [f"{here.stage} {here.item_keys}" for _ in items]


def put_off_once(item):
    here = outlast.current()
    here.spend(tokens=3)
    mark = Path(item)
    if not mark.exists():
        mark.touch()
        raise outlast.Snooze(0)
    return here.attempt


def unpicklable(item):
    return threading.Lock() if item == "output" else item


@functools.cache
def open_client():
    return os.getpid()


def use_client(item):
    return open_client() == os.getpid()
