"""
A flow in a process of its own, whose steps note what they do in files of its folder and wait for files to be there:

    python held.py STORE APP FOLDER KEY TTL [OPTION]...

It prints what it came to. With ``die`` in the folder, a step of that name kills its process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import outlast
import outlast.flow.runner
from forked import Forked
from outlast.work.patience import Terms, terms

FUNCTIONS = """\
import os, signal, threading
from pathlib import Path
HERE = Path(__file__).parent

def note(line):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{line}\\n")

def wait_for(name):
    while not (HERE / name).exists():
        threading.Event().wait(0.005)

def quick(name):
    note(f"does {name}")
    if (HERE / f"die {name}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"id": name}

def hold(name):
    note(f"begins {name}")
    wait_for(f"go {name}")
    note(f"ends {name}")
    return {"id": name}

def undo(name):
    note(f"undoes {name}")
    if (HERE / f"hold undo {name}").exists():
        wait_for(f"go undo {name}")

def fail():
    note("fails")
    raise ValueError("no")

def drop():
    note("drops")
    raise ConnectionResetError("away")
"""


def notes(folder):
    path = Path(folder) / "notes"
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def running(app, folder, key="a", *, ttl=20.0, **options):
    """The flow of this folder in a process of its own, until it is ended."""
    given = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, __file__, app.store_url, app.name, str(folder), key, str(ttl), *given]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def main(store, name, folder, key, ttl, *options):
    app = outlast.App(name, store=store)
    terms.set(Terms(ttl=float(ttl)))
    given = dict(option.split("=") for option in options)
    flow = outlast.Flow.load(Path(folder) / "pipeline.yaml")
    result = flow.run(run_key=key, app=app, check=False, **given)
    sys.stdout.write(json.dumps([result.status, result.reason, result.why]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
