"""What `make chaos-jobs` does, a few times; and that its counting finds what is lost, wrong, changed, doubled or missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from job_trials import Attempt, JobNow, Ran, Struck, account, read_log

ROOT = Path(__file__).resolve().parent.parent.parent
CALM = Struck(frozenset(), {}, [], ttl=4.0)
_SHORT = {"jobs": 250, "workers": 2, "kills": 6, "stalls": 1, "restarts": 1, "cuts": 2, "answers": 1}

SHORTAGES = ["no descriptors", "hidden /proc", "equal host names"]


@pytest.mark.failure(1, 3, 8, 10, 15, 16, 21, 22, 35)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_nothing_is_lost_wrong_or_doubled_whatever_strikes_workers(store):
    """S1-20, C-11, C-12, C-22, D-16: two worker processes at a time; kills, a stall, a restart, cut connections, an answer that is lost."""
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos_jobs.py"), "--only", "faults", "--stores", store]
    for name, number in _SHORT.items():
        command += [f"--{name}", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = rows_of(done.stdout)
    wanted = ("6", "1", "1", "2", "1") if store == "postgres" else ("6", "1", "0", "0", "0")
    assert tuple(row[name] for name in ("kills", "stalls", "restarts", "cuts", "lost answers")) == wanted
    assert {row[name] for name in ("lost", "wrong", "changed", "doubled", "missing")} == {"0"}
    assert int(row["attempts begun"].replace(",", "")) >= _SHORT["jobs"]
    assert int(row["begun again after a fault"].replace(",", "")) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_starved_worker_takes_no_job_from_a_live_one(store):
    """S1-20, C-22: two workers without descriptors, that cannot see each other's processes, or share a host name."""
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos_jobs.py"), "--only", "starved", "--stores", store]
    command += ["--starved", "200", "--of", *SHORTAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert [row["workers have"] for row in rows] == SHORTAGES
    zero = ("lost", "wrong", "changed", "doubled", "missing", "poison")
    assert [row for row in rows if any(row[name] != "0" for name in zero)] == []
    assert [int(row["refused"]) > 0 for row in rows] == [what.startswith("no ") for what in SHORTAGES]


def rows_of(table):
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_what_is_lost_wrong_doubled_or_missing_is_counted():
    """Each way in which what ran and what is on record may differ is found, and what must be is not."""

    def job(state="succeeded", *, number=1, n=3, made=1, crashes=0, result=None, **more):
        given = {"kind": "brief", "error_class": None, "stop_reason": None, "result": result or [n, number, made]}
        return JobNow(number, n, state=state, made=made, crashes=crashes, **(given | more))

    def found(jobs, attempts, ran, struck=CALM, asked=(3,)):
        tally = account(asked, jobs, {1: attempts}, ran, struck)
        return {name: value for name, value in vars(tally).items() if value and name not in {"notes", "attempts"}}

    done, crashed = Attempt(1, 1, "succeeded", 20.0), Attempt(1, 1, "crashed", 20.0)
    again = Attempt(2, 2, "succeeded", 30.0)
    first, second = Ran(1, 1, 1, 0, 10.0, 11.0), Ran(1, 2, 2, 5, 25.0, 26.0)
    twice = job(made=2, crashes=1)
    killed = CALM._replace(killed=frozenset({0}))

    assert found([job()], [done], [first]) == {}
    assert found([twice], [crashed, again], [first, second], killed) == {"repeated": 1}
    stalled = CALM._replace(stalls={0: [(10.5, 17.0)]})
    assert found([twice], [crashed, again], [first, second], stalled) == {"repeated": 1}
    restarted = CALM._replace(everywhere=[(8.0, 9.0)])
    assert found([twice], [crashed, again], [first, second], restarted) == {"repeated": 1}
    thrice = [Attempt(n, n, "crashed", 20.0 + n) for n in (1, 2, 3)]
    poison = job("failed", made=3, crashes=3, stop_reason="poison")
    assert found([poison], thrice, [first], killed) == {"poisoned": 1, "repeated": 1}

    # lost
    assert found([], [], []) == {"lost": 1}
    assert found([job("ready")], [done], [first]) == {"lost": 1}
    # wrong
    assert found([job(), job(number=2)], [done], [first]) == {"wrong": 2, "missing": 1}  # twice on record, never run
    assert found([job()], [done], []) == {"wrong": 1}  # nothing ran
    assert found([job()], [done], [Ran(1, 1, 1, 0, 10.0)]) == {"wrong": 1}  # it did not come to its end
    assert found([job()], [done], [Ran(1, 1, 1, 0, 10.0, 11.0, raised=True)]) == {"wrong": 1}
    assert found([job(result=[4, 1, 1])], [done], [first]) == {"wrong": 1}  # the result of another job
    assert found([job("failed")], [done], [first]) == {"wrong": 1}
    early = {"wrong": 1, "poisoned": 1, "repeated": 1}
    assert found([poison._replace(made=2, crashes=2)], thrice[:2], [first], killed) == early
    assert found([job(made=2)], [done, Attempt(2, 2, "succeeded", 30.0)], [first, second]) == {"wrong": 1}
    assert found([job(made=2)], [crashed, again], [first, second], killed) == {"wrong": 1, "repeated": 1}
    # doubled
    assert found([twice], [crashed, again], [first, second]) == {"doubled": 1}  # nothing had struck it
    late = CALM._replace(everywhere=[(21.0, 22.0)], stalls={5: [(10.5, 17.0)]})
    assert found([twice], [crashed, again], [first, second], late) == {
        "doubled": 1
    }  # what struck came later, or elsewhere
    assert found([job()], [done], [first, first]) == {"doubled": 1}
    # missing
    assert found([job()], [done], [first, second]) == {"missing": 1}
    assert found([job(made=2, result=[3, 1, 1])], [done], [first]) == {"missing": 1}


def test_the_log_of_a_process_that_was_killed_is_read(tmp_path):
    """An attempt without an end, one that raised, one under the same claim again, and when the machine was late."""
    log = tmp_path / "7.log"
    log.write_text(
        "begins 1 1 1 99 1.5\nbegins 2 3 4 99 1.6\nraises 2 3 4 99 1.7\nlate 2.0 0 0 99 3.5\n"
        "refused 0 0 0 99 3.6\nbegins 5 1 1 99 4.0\nends 5 1 1 99 4.5\nbegins 5 1 1 99 5.0\n"
    )
    ran, late, refused = read_log(log)
    assert (late, refused) == ([(2.0, 3.5)], 1)
    assert ran == [
        Ran(5, 1, 1, 7, 4.0, 4.5),
        Ran(1, 1, 1, 7, 1.5),
        Ran(2, 3, 4, 7, 1.6, 1.7, raised=True),
        Ran(5, 1, 1, 7, 5.0),
    ]
