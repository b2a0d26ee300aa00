"""
A flow of six steps with two branches that is killed at every boundary, and what must be true of it afterwards; and so is a job with steps
that registers what undoes it.

    python sagas.py direct|job|steps STORE FOLDER [FIRST LAST]

Its last step fails for good, so that all that was done is undone. Each trial runs it in a process of its own, which kills
itself at one boundary: before or after a write to the store, before or after what a step or its compensation does. Another
process goes on with it, to the end; now and then it is killed as well. `faults` compares what was done, which is in a ledger, with what is on record. The
boundaries that one trial has met are those that the next ones are killed at, so that none is forgotten.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import NamedTuple

import outlast
import outlast.components.running  # so that processes are forked with it
import outlast.components.steps.python
import outlast.display
import outlast.flow.runner
import outlast.jobs.doors
import outlast.jobs.onrecord
import outlast.jobs.worker
import outlast.spec.compile
import outlast.spec.rules
from outlast.flow.record import result_of_record
from outlast.store import Store
from stores import prepared

KEY = "once"
STEPS = ("reserve", "left_1", "left_2", "right_1", "book", "pay")
UNDONE = STEPS[:-1]
FLOW = """\
oml_version: "0.1.0"
name: saga
steps:
  - id: reserve
    component: python
    needs: []
    config: {call: "saga_steps:do", args: {name: reserve}}
    compensate: {component: python, config: {call: "saga_steps:undo", args: {name: reserve, id: "${steps.reserve.outputs.id}"}}}
  - id: left_1
    component: python
    needs: [reserve]
    config: {call: "saga_steps:do", args: {name: left_1}}
    idempotency: {key: "left"}
    compensate: {component: python, config: {call: "saga_steps:undo", args: {name: left_1, id: "${steps.left_1.outputs.id}"}}}
  - id: left_2
    component: python
    needs: [left_1]
    config: {call: "saga_steps:do", args: {name: left_2}}
    compensate: {component: python, config: {call: "saga_steps:undo", args: {name: left_2, id: "${steps.left_2.outputs.id}"}}}
  - id: right_1
    component: python
    needs: [reserve]
    config: {call: "saga_steps:do", args: {name: right_1}}
    compensate: {component: python, config: {call: "saga_steps:undo", args: {name: right_1, id: "${steps.right_1.outputs.id}"}}}
  - id: book
    component: python
    needs: [left_2, right_1]
    config: {call: "saga_steps:do", args: {name: book}}
    compensate: {component: python, config: {call: "saga_steps:undo", args: {name: book, id: "${steps.book.outputs.id}"}}}
  - id: pay
    component: python
    needs: [book]
    config: {call: "saga_steps:do", args: {name: pay}}
"""
FUNCTIONS = """\
import os
import sagas

def do(name):
    sagas.point(f"before do {name}")
    if name == "pay" and os.environ.get("SAGA_FAILS") == "1":
        raise ValueError("no money")
    id = sagas.noted("do", name)
    sagas.point(f"after do {name}")
    return {"id": id}

def undo(name, id):
    sagas.point(f"before undo {name}")
    sagas.noted("undo", name, id)
    sagas.point(f"after undo {name}")
"""
# What a process does to its store in a run; each call is two boundaries.
WRITES = (
    "open_run take_run set_run recover_steps reset_steps begin_step succeed_step fail_attempt add_events drop_lease "
    "enqueue turn take_lease tell_worker put_results claim_undoing begin_compensation end_compensation release_held"
).split()
_met: list[str] = []
_lock = threading.Lock()
_at: list[str] = []  # the boundary at which this process ends
_numbers = count(1)


def point(name: str) -> None:
    """A boundary. The process ends here if it was asked to."""
    with _lock:
        _met.append(name)
        which = f"{name} {_met.count(name)}"
        if which in _at:
            os.kill(os.getpid(), signal.SIGKILL)


def noted(deed: str, name: str, which: str | None = None) -> str:
    """Something was done, in the world outside: it is never forgotten. An id for it."""
    with _lock:
        id_ = which or f"{name}-{os.getpid()}-{next(_numbers)}"
        line = json.dumps([deed, name, id_]) + "\n"
    ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(ledger, line.encode())
    os.close(ledger)
    return id_


def watched() -> None:
    """Every write to the store is two boundaries."""
    for name in WRITES:
        plain = getattr(Store, name)  # a name that the store does not have is a mistake of this list

        def call(self, *args, __plain=plain, __name=name, **kwargs):
            point(f"before {__name}")
            came = __plain(self, *args, **kwargs)
            point(f"after {__name}")
            return came

        setattr(Store, name, call)


def in_child(do, at: str | None = None) -> tuple[int, list[str]]:
    """Do it in a process of its own that is killed at this boundary; how it ended, and the boundaries it met."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            _at[:] = [] if at is None else [at]
            _met.clear()
            watched()
            do()
            code = 0
        except BaseException as error:  # noqa: BLE001 - told by the exit code, and on stderr
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            counts: Counter[str] = Counter()
            names = []
            for name in _met:
                counts[name] += 1
                names.append(f"{name} {counts[name]}")
            os.write(write, json.dumps(names).encode())
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), json.loads(text) if text else []


class Trial:
    """One store, one folder, one run."""

    def __init__(self, store: str, app: str, how: str) -> None:
        self.store, self.app, self.how = store, app, how

    def home(self):
        return outlast.App(self.app, store=self.store)

    def go(self) -> None:
        """Run it, directly or as a job; a failure is what is expected."""
        flow = outlast.Flow.load("saga.yaml")
        app = self.home()
        if self.how == "direct":
            flow.run(run_key=KEY, app=app, check=False)
        else:
            flow.enqueue(run_key=KEY, app=app, unique_key=KEY)
            self.worked(app)
        app.store.close()

    def worked(self, app) -> None:
        """Do the jobs; after a second crash one waits for half a minute, a third one is its end."""
        if app.work(until_idle=True).later:
            due = "update outlast_jobs set due = 0 where app = ? and state = 'waiting'"
            app.store._database.written(due, self.app)
            app.work(until_idle=True)

    def result(self):
        app = self.home()
        record = app.store.find_run("saga", KEY)
        found = None if record is None else result_of_record(app.store, app.codec, record)
        rows = [] if record is None else app.store.flow_steps(record.number)
        app.store.close()
        return found, rows


class JobTrial(Trial):
    """One store, one folder, one job with steps."""

    def go(self) -> None:
        import saga_jobs

        app = self.home()
        job = saga_jobs.declared(app)
        if not [*app.jobs.find()]:
            job.enqueue()
        self.worked(app)
        app.store.close()

    def result(self):
        """The job, once it has failed and all of it is undone, and what is on record of it."""
        app = self.home()
        job = next(app.jobs.find(), None)
        known = None
        if job is not None:
            rows = [(one, one.arguments) for one in app.store.compensations(int(job.id))]
            undoing = [(one, app.codec.decode(data)["args"][1]) for one, data in rows]
            known = JobOnRecord(
                job.status, job.error, job.compensation, [step.name for step in app.store.steps(int(job.id))], undoing
            )
        app.store.close()
        over = known is not None and known.status == "failed" and known.compensation != "pending"
        return (known if over else None), known


class JobOnRecord(NamedTuple):
    """What is on record of a job: its steps, and what undoes it, each with the id that it undoes."""

    status: str
    error: str | None
    compensation: str
    steps: list[str]
    undoing: list


def job_faults(snapshots, after) -> list[str]:
    """All that is wrong, once the job has ended. `snapshots` are as for `faults`."""
    if after is None or after[:3] != ("failed", "no money", "completed"):
        return [f"ended as {after}"]
    found: list[str] = []
    lines = ledger()
    for known, length in snapshots:
        if known is None:
            continue
        again = [one for one in lines[length:] if one[0] == "do" and one[1] in known.steps]
        again += [
            ["undo", one.call, which]
            for one, which in known.undoing
            if one.state == "undone" and ["undo", which] in [[line[0], line[2]] for line in lines[length:]]
        ]
        found += [f"{one} was on record, and done again" for one in again]
    undone = [one[2] for one in lines if one[0] == "undo"]
    wanted = [which for _, which in reversed(after.undoing)]
    if [*dict.fromkeys(undone)] != wanted:
        found.append(f"undone in the order {undone}, registered in the reverse of {wanted}")
    found += [f"{one[1:]} was done and never undone" for one in lines if one[0] == "do" and one[2] not in undone]
    for one, which in after.undoing:
        if (one.state, undone.count(which) > 1 + one.crashes) != ("undone", False):
            found.append(
                f"{which} is {one.state}, undone {undone.count(which)} times, with {one.crashes} crashes on record"
            )
    return found


def ledger() -> list[list[str]]:
    path = Path("ledger")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def faults(snapshots, after, rows, *, fails=True) -> list[str]:
    """
    All that is wrong, once the run has ended. `snapshots` are what was on record and how long the ledger was after each
    kill.
    """
    found: list[str] = []
    wanted = ("failed", "completed") if fails else ("completed", "none")
    if after is None or (after.status, after.compensation) != wanted:
        return [f"ended as {after}"]
    lines = ledger()
    # What was on record as done is not done again.
    for known, length in snapshots:
        for row in known:
            again = any(one[:2] == [row.deed, row.step] for one in lines[length:])
            if row.state in {"succeeded", "compensated"} and again:
                found.append(f"{row.step} was on record ({row.deed} {row.state}), and done again")
    for name in STEPS:
        step = after[name]
        for deed, attempts in (("do", step.attempts), ("undo", step.undone_by)):
            times = sum(one[:2] == [deed, name] for one in lines)
            crashed = sum(one.outcome == "crashed" for one in attempts)
            if times > 1 + crashed:
                found.append(f"{name}: {deed} {times} times, with {crashed} crashes on record")
    found += _not_undone(after, rows, lines) if fails else _not_done(after, lines)
    return found


def _not_done(after, lines) -> list[str]:
    """What stands is what is on record."""
    found = [f"{one[1]} was undone" for one in lines if one[0] == "undo"]
    for name in STEPS:
        done = [one[2] for one in lines if one[:2] == ["do", name]]
        if not done or after[name].outputs["id"] != done[-1]:
            found.append(f"{name} put out {dict(after[name].outputs)}, and {done} was done")
    return found


def _not_undone(after, rows, lines) -> list[str]:
    """What was done is undone, with the id that is on record, in the reverse order in which steps succeeded."""
    found: list[str] = []
    for name in UNDONE:
        done = [one[2] for one in lines if one[:2] == ["do", name]]
        undone = [one[2] for one in lines if one[:2] == ["undo", name]]
        if done and not undone:
            found.append(f"{name} was done and never undone")
        elif undone and undone[-1] != done[-1]:
            found.append(f"{name}: {undone[-1]} was undone, and {done[-1]} is what stands")
        if after[name].status != "compensated":
            found.append(f"{name} is {after[name].status}")
    order = sorted((row for row in rows if row.deed == "do" and row.completed), key=lambda row: -row.completed)
    undone = list(dict.fromkeys(one[1] for one in lines if one[0] == "undo"))
    if undone != [row.step for row in order if row.step in UNDONE]:
        found.append(f"undone in the order {undone}, succeeded in the reverse of {[row.step for row in order]}")
    return found


def prepare(folder: Path) -> None:
    """A project of its own, and this process in it."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    Path("saga.yaml").write_text(FLOW)
    Path("saga_steps.py").write_text(FUNCTIONS)


# Boundaries of the process that goes on at which it is killed as well: while it does steps, and while it undoes them.
AGAIN = {
    "direct": ("after begin_step 1", "before undo left_1 1"),
    "job": ("after begin_step 1", "before undo left_1 1"),
    "steps": ("after put_results 1", "before undo book 1"),
}
EVERY = 7  # so many boundaries are met before another one is such a case


def is_a_look(at: str) -> bool:
    """Whether a worker looks for jobs there: how often it does differs, so its last look may be another run's last but one."""
    return at.split()[1] == "turn"


def trial(
    folder: Path, store: str, app: str, how: str, at: str | None, again: str | None = None
) -> tuple[list[str], list[str], list[str]]:
    """
    What is wrong after a kill at this boundary, and one of the process that goes on at `again` if it comes there; the
    boundaries that were met without a kill; and those at which a process was killed.
    """
    prepare(folder)
    one = (JobTrial if how == "steps" else Trial)(store, app, how)
    code, met = in_child(one.go, at)
    if at is None:
        return ([] if code == 0 else [f"ended with {code}"]), met, []
    if code != -signal.SIGKILL:
        missed = [] if code == 0 and is_a_look(at) else [f"was not killed at {at}, but ended with {code}"]
        return missed, met, []
    killed, snapshots = [at], []
    for boundary in (None,) if again is None else (again, None):
        before, known = one.result()
        snapshots.append((known, len(ledger())))
        if before is not None and before.status == "failed":  # the end was on record: to run it again is a new round
            return _told(killed, _wrong(how, snapshots, before, known)), [], killed
        code, _ = in_child(one.go, boundary)
        if code not in (0, -signal.SIGKILL) or (code and boundary is None):
            return [f"after a kill at {killed} it ended with {code}"], [], killed
        if code:
            killed.append(str(boundary))
        else:
            break
    after, rows = one.result()
    for _ in range(50 if how == "steps" else 0):
        if after is not None:
            break
        in_child(one.go)  # what was killed twice is due after a wait, which a worker that runs until it is idle leaves
        after, rows = one.result()
    return _told(killed, _wrong(how, snapshots, after, rows)), [], killed


def _wrong(how: str, snapshots, after, rows) -> list[str]:
    return job_faults(snapshots, after) if how == "steps" else faults(snapshots, after, rows)


def _told(killed: list[str], wrong: list[str]) -> list[str]:
    return [f"killed at {killed}: {fault}" for fault in wrong]


def storm(folder: Path, store: str, app: str, how: str, met: list[str], dice) -> tuple[list[str], int]:
    """
    What is wrong after one, two or three kills at random boundaries of one run, which fails in the end or not; and how many kills there were.
    No step is killed three times: that is the end of it, whatever it has done.
    """
    prepare(folder)
    fails = dice.random() < 0.7
    os.environ["SAGA_FAILS"] = "1" if fails else "0"
    one, snapshots, kills, told = Trial(store, app, how), [], 0, []
    for _ in range(dice.randint(1, 3 if how == "direct" else 2)):
        at = dice.choice(met)
        code, _ = in_child(one.go, at)
        told.append(at)
        found, known = one.result()
        snapshots.append((known, len(ledger())))
        kills += code == -signal.SIGKILL
        if found is not None and found.status in {"failed", "completed"}:
            return [f"killed at {told}: {fault}" for fault in faults(snapshots, found, known, fails=fails)], kills
        if any(row.crashes >= 1 and row.state in {"running", "pending"} for row in known):
            break
    code, _ = in_child(one.go)
    if code != 0:
        return [f"after kills at {told} it ended with {code}"], kills
    after, rows = one.result()
    return [f"killed at {told}: {fault}" for fault in faults(snapshots, after, rows, fails=fails)], kills


def load(folder: Path, how: str, store: str) -> None:
    """Import and compile once what each process of a trial needs, half of all that it would do: they are forked with it."""
    if how == "steps":
        import saga_jobs  # noqa: F401
    else:
        import outlast.components.steps.doing.python
        import outlast.flow.enqueued
        import outlast.flow.prepared

        prepare(folder)
        outlast.Flow.load("saga.yaml")
    if "://" in store:
        import outlast.store.postgres
    else:
        import outlast.store.sqlite
    gc.freeze()


def main(how: str, store: str, folder: str) -> None:
    """Every boundary once. What is wrong is printed, a line each, and at the end how many there were."""
    os.environ["SAGA_FAILS"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    base = Path(folder).resolve()
    load(base / "loaded", how, store)
    wrong, met, _ = trial(base / "whole", store, f"whole {how}", how, None)
    say(*wrong)
    kills = twice = looks = 0
    for number, at in enumerate(met):
        place = base / f"trial-{number}"
        address = store if "://" in store else prepared(base / f"{number}.db")
        again = AGAIN[how][number // EVERY % 2] if number % EVERY == 0 else None
        found, _, killed = trial(place, address, f"{how} {number}", how, at, again)
        say(*found)
        kills += bool(killed)
        twice += len(killed) > 1
        looks += not killed and is_a_look(at)
    say(json.dumps({"boundaries": len(met), "kills": kills, "looks that did not come": looks, "killed again": twice}))


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.modules["sagas"] = sys.modules["__main__"]  # what steps call must meet the same boundaries
    main(*sys.argv[1:])
