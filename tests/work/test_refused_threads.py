"""The system refuses threads ("can't start new thread"): everything ends, with a status that says so, and can go on afterwards."""

from __future__ import annotations

import json
import os
import sys
import tempfile

import pytest

from forked import run

PROGRAM = r'''
import asyncio, faulthandler, json, os, pathlib, sys, threading
import outlast
from outlast.work import threads

what, mode = sys.argv[1:]
threads._REFUSED_S = 0.3  # of real time
real, started, refused, mine = threading.Thread.start, [0], [0], threading.get_ident()

def start(self):
    started[0] += 1
    if started[0] == nth or (mode == "always" and started[0] > nth):
        refused[0] += 1
        raise RuntimeError("can't start new thread")
    return real(self)

def retry():
    return outlast.RetryPolicy(max_attempts=20, initial_delay=0.01, max_delay=0.05, jitter=0)

def worker(fn):
    app = outlast.App("nt", store=f"sqlite:///{folder}/s.db")
    job = app.job(retry=retry())(fn)
    job.enqueue_many({"n": n} for n in range(3))
    def go():
        try:
            app.work(until_idle=True)
        finally:
            left = [one.id for one in app.jobs.find() if one.status == "processing"]
            assert not left, left
        return [one.status for one in app.jobs.find()]
    return go, ["succeeded"] * 3

def jobs():
    def plain(n: int): return n
    return worker(plain)

def ajobs():
    async def kept(n: int):
        return await outlast.current().step("one", asyncio.sleep, 0, n)
    return worker(kept)

def undo(n: int):
    pathlib.Path(folder, f"undone{n}").touch()

def compensated():
    def undone(n: int):
        outlast.current().compensate(undo, n)
        raise ValueError(n)
    go, _ = worker(undone)
    return lambda: (go(), len([*pathlib.Path(folder).glob("undone*")])), (["failed"] * 3, 3)

def pipeline(stage):
    app = outlast.App("nt", store=f"sqlite:///{folder}/s.db")
    made = outlast.Pipeline("p", outlast.stage(retry=retry())(stage), app=app)
    def go():
        result = made.run(range(20), run_key="k", sink=f"{folder}/out.jsonl", check=False)
        if result.status == "completed":
            assert len(pathlib.Path(folder, "out.jsonl").read_text().splitlines()) == 20
            return "completed"
        return f"{result.status} {result.reason} {result.why} {result.error}"
    return go, "completed"

def runs():
    def double(x): return x
    return pipeline(double)

def aruns():
    async def double(x): return x
    return pipeline(double)

def stream():
    app = outlast.App("nt", store=f"sqlite:///{folder}/s.db")
    @outlast.stage(retry=retry())
    def double(x): return x
    made = outlast.Pipeline("p", double, app=app)
    return lambda: sorted(result.value for result in made.stream(range(5))), [0, 1, 2, 3, 4]

def flow():
    pathlib.Path(folder, f"m{nth}.py").write_text("def f():\n    return {'a': 1}\n")
    pathlib.Path(folder, "f.yaml").write_text("""
oml_version: "0.1.0"
name: ok
steps:
  - {id: a, component: python, config: {call: "MODULE:f"}, retry: {max_attempts: 20, initial_delay: 0.01, max_delay: 0.05}}
  - {id: b, component: python, config: {call: "MODULE:f"}, timeout: {step_ms: 5000}, retry: {max_attempts: 20, initial_delay: 0.01, max_delay: 0.05}}
""".replace("MODULE", f"m{nth}"))
    app = outlast.App("nt", store=f"sqlite:///{folder}/s.db")
    made = outlast.Flow.load(f"{folder}/f.yaml")
    def go():
        result = made.run(run_key="k", app=app, check=False)
        return result.status if result.status == "completed" else f"{result.status} {result.why}"
    return go, "completed"

def guard():
    made = outlast.Guard("g", timeout=5, isolation="thread", limit=outlast.Limit(f"l{nth}", concurrency=1), retry=retry())
    return lambda: [made.call(lambda: 5) for _ in range(3)], [5, 5, 5]

def mapped():
    return lambda: sorted(outlast.map(lambda x: x, range(5), concurrency=3).values()), [0, 1, 2, 3, 4]

def aenqueue():
    app = outlast.App("nt", store=f"sqlite:///{folder}/s.db")
    @app.job
    def job(n: int): return n
    async def go():
        for n in range(3):
            await job.options(unique_key=str(n)).aenqueue(n)
        return sorted(one.arguments["n"] for one in app.jobs.find())
    return lambda: asyncio.run(go()), [0, 1, 2]

for nth in range(1, 40):
    folder = os.path.join(os.getcwd(), f"{what}{nth}")
    os.mkdir(folder)
    started[0] = refused[0] = 0
    go, wanted = globals()[what]()
    faulthandler.dump_traceback_later(20, exit=True)
    threading.Thread.start = start
    try:
        came = go()
    except Exception as error:
        came = f"{type(error).__name__}: {error}"
    finally:
        threading.Thread.start = real
    hit = refused[0]
    try:
        again = came if came == wanted else go()
    except Exception as error:
        again = f"{type(error).__name__}: {error}"
    print(json.dumps([nth, hit, came == wanted, str(came), again == wanted, str(again)]), flush=True)
    if not hit:
        break
os._exit(0)
'''


KINDS = ["jobs", "ajobs", "compensated", "runs", "aruns", "stream", "flow", "guard", "mapped", "aenqueue"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("what", "mode"),
    # A compensation for which no thread can be had uses up its attempts, and has failed.
    [(what, mode) for what in KINDS for mode in ("once", "always") if (what, mode) != ("compensated", "always")],
)
def test_each_thread_that_is_refused_ends_in_a_status_and_loses_nothing(what, mode, tmp_path):
    """Whichever thread is refused, once or with all that follow it, the work ends, says why, and is done once there are threads."""
    (tmp_path / "trials.py").write_text(PROGRAM)
    done = run([sys.executable, "trials.py", what, mode], cwd=tmp_path, timeout=180)
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [
        (nth, came, again)
        for nth, _, good, came, good_again, again in trials
        if not good_again or not (good or "refused to start a thread" in came or "queued" in came)
    ]
    assert (wrong, done.returncode, trials[-1:] and trials[-1][1]) == ([], 0, 0), done.stderr[-3000:]
    assert len(trials) > 1


LIMITED = """
import faulthandler, os, resource, sys, threading
import outlast
from outlast.work import threads

threads._REFUSED_S = 0.5
user, limit = map(int, sys.argv[1:3])
retry = outlast.RetryPolicy(max_attempts=20, initial_delay=0.05, max_delay=0.05)

def app_of(name):
    app = outlast.App(name, store=f"sqlite:///{name}.db")
    @app.job(retry=retry)
    def wait(n: int):
        threading.Event().wait(0.01)
    wait.enqueue_many({"n": n} for n in range(40))
    return app

app_of("loads").work(until_idle=True)  # all that is needed, while its files can be read
os.chdir(sys.argv[3])
os.setresuid(user, user, user)
app = app_of("limited")
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
faulthandler.dump_traceback_later(60, exit=True)
ends = ""
while any(one.status == "queued" for one in app.jobs.find()):
    try:
        app.work(until_idle=True, concurrency=16)
    except outlast.TemporaryFailure as error:
        ends = str(error)
        break
print({one.status for one in app.jobs.find()}, ends, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("limit", "ends"), [(2, False), (5, False), (9, True), (13, True)])
def test_a_real_limit_of_threads_ends_a_worker_or_makes_it_slower(limit, ends, tmp_path):
    """RLIMIT_NPROC, for a user of this process alone: with a few threads all jobs are done, with too few the worker says why it ends."""
    (tmp_path / "limited.py").write_text(LIMITED)
    user = 1_000_000 + os.getpid() * 20 + limit
    with tempfile.TemporaryDirectory() as folder:  # that of pytest is for its own user
        os.chown(folder, user, user)
        done = run([sys.executable, "limited.py", str(user), str(limit), folder], cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    if ends:
        assert done.stdout == "{'succeeded'} \n"
    else:
        assert done.stdout.startswith("{'queued'} the system refused to start a thread.")
