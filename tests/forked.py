"""
Python programs that start at once: processes of their own, forked from one that has loaded what they all need.

    with Forked([sys.executable, "-m", "outlast.cli", "runs", "list"], cwd=folder, stdout=PIPE, text=True) as process:
        out, err = process.communicate()

It is a `subprocess.Popen` for what takes its arguments, its folder, its environment and its streams as any other program does. To load the
packages takes ten times longer than most programs of the tests do, and so does taking them apart: a program that has ended well waits for its
threads, calls what it has registered for its end, frees what is its own, and is gone. Of the options of Python it knows -W. Where the interpreter
itself matters (its other options and its variables, what it loads, its hashes, its last moments), a test starts a real one.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

# What the command line, runs over items and stores of both kinds need, with what loads when it is first used.
LOADED = (
    "asyncio cronsim importlib.readers importlib.resources.readers outlast.app outlast.breaker outlast.breaker.shared "
    "outlast.cli.arguments outlast.cli.classify outlast.cli.commands outlast.cli.components outlast.cli.connections "
    "outlast.cli.jobs outlast.cli.letters outlast.cli.printing outlast.cli.report outlast.cli.running outlast.cli.schema "
    "outlast.cli.spec outlast.cli.targets outlast.cli.watch outlast.cli.worker "
    "outlast.components.arrow outlast.components.datasets outlast.components.lines outlast.components.tables "
    "outlast.display.snapshot outlast.display.watch outlast.jobs.doors outlast.jobs.job outlast.jobs.onrecord outlast.jobs.queue "
    "outlast.jobs.transactions outlast.limits "
    "outlast.pipeline.lifecycle "
    "outlast.pipeline.record.writer outlast.report.gather outlast.report.stories outlast.rows "
    "outlast.settings.blocks outlast.store.postgres outlast.store.sqlite outlast.testing psycopg "
    "pydantic.plugin._loader pydantic.type_adapter rich.console rich.live rich.markdown rich.syntax rich.traceback "
    "secrets typer typer._adapters typer._click.decorators"
)
NURSERY = """
import atexit, gc, importlib, json, os, runpy, selectors, signal, socket, sys, threading, warnings

def program(given):
    "What the interpreter does between its start and the program's first line."
    args = given["args"]
    if args[0] == "-m":
        sys.argv, sys.path[0] = [args[1], *args[2:]], os.getcwd()
        return lambda: runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    if args[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *args[2:]], ""
        code = compile(args[1], "<string>", "exec")
        return lambda: exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
    return lambda: runpy.run_path(args[0], run_name="__main__")

def wait_for_work():
    "Returns in every child, with its program; the parent stays."
    door = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2].split():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no child looks through what all of them have
    ended, awake = os.pipe()
    os.set_blocking(awake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awake)
    told = {}
    chosen = selectors.DefaultSelector()
    chosen.register(door, selectors.EVENT_READ)
    chosen.register(ended, selectors.EVENT_READ)
    starter = os.getppid()
    while True:
        ready = chosen.select(2.0)
        if os.getppid() != starter:
            os._exit(0)  # it was killed, and another child of it may keep the door open
        for key, _ in ready:
            if key.fd == ended:
                os.read(ended, 512)
                for pid in list(told):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        os.write(told[pid], f"{os.waitstatus_to_exitcode(status)}\\n".encode())
                        os.close(told.pop(pid))
                continue
            given, streams, _, _ = socket.recv_fds(door, 1 << 20, 4)
            if not given:
                os._exit(0)
            *streams, tell = streams
            pid = os.fork()
            if pid:
                os.write(tell, f"{pid}\\n".encode())
                told[pid] = tell
                for stream in streams:
                    os.close(stream)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            chosen.close()
            door.close()
            for file in (*streams, tell, ended, awake, *told.values()):
                os.close(file)
            given = json.loads(given)
            sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
            sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", newline="\\n", closefd=False)
            sys.stderr = sys.__stderr__ = open(
                2, "w", 1, encoding="utf-8", errors="backslashreplace", newline="\\n", closefd=False
            )
            sys.warnoptions += given["warnings"]
            warnings._processoptions(given["warnings"])
            os.chdir(given["cwd"])
            os.environ.clear()
            os.environ.update(given["env"])
            return program(given)

def leave(run):
    "What the interpreter does after the program's last line, except for taking all modules apart."
    code = 0
    try:
        run()
    except SystemExit as asked:
        if not isinstance(asked.code, int | None):
            raise
        code = asked.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)

leave(wait_for_work())
"""


@functools.cache
def nursery(loaded: str) -> socket.socket:
    """The door to a process that has loaded these modules and forks programs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", NURSERY, str(theirs.fileno()), loaded]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0
        )

    def leave() -> None:
        ours.close()
        process.wait()

    atexit.register(leave)
    return ours


class Forked(subprocess.Popen):
    """A program that begins as a copy of a process in which what it needs is loaded already."""

    loaded = LOADED

    def _execute_child(self, args, *rest):
        cwd, env = rest[4], rest[5]
        stdin, _, _, stdout, _, stderr = rest[9:15]
        words = [os.fspath(word) for word in args]
        begins = 3 if words[1] == "-W" else 1
        request = {
            "args": words[begins:],
            "warnings": words[2:begins],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        heard, tell = os.pipe()
        streams = [given if given != -1 else number for number, given in enumerate((stdin, stdout, stderr))]
        socket.send_fds(nursery(self.loaded), [json.dumps(request).encode()], [*streams, tell])
        os.close(tell)
        self._heard = os.fdopen(heard, "rb", buffering=0)
        self.pid = int(self._said())
        self._child_created = True
        for ours in {stdin, stdout, stderr} - {-1}:
            os.close(ours)

    def _said(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = self._heard.read(1)
            if not more:
                return b"-9\n"  # who forked it has been killed
            line += more
        return line

    def _internal_poll(self, *_, **__):
        if self.returncode is None and select.select([self._heard], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def _wait(self, timeout):
        if self.returncode is None:
            if not select.select([self._heard], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._ended()
        return self.returncode

    def _ended(self) -> None:
        with self._heard:
            self.returncode = int(self._said())


class ForkedWithArrow(Forked):
    """The same for programs that read and write Parquet."""

    loaded = f"{LOADED} pyarrow.parquet"


def run(args, *, timeout=None, check=False, start=Forked, **options):
    """As `subprocess.run`, with output as text."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    with start(args, **given) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
