"""Proof of death: the owner of a lease is dead only if the system says so, in whatever state this process or its /proc is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from outlast.work import leases
from outlast.work.leases import certainly_dead, is_of_this_host, myself

NO_PROCESS = 2**22 + 1  # above the largest number that Linux gives
ASK = "import sys; from outlast.work.leases import *; print(*map(certainly_dead, sys.argv[1:]), certainly_dead(myself() + ':1'))"
STARVED = """
import os, resource, sys
from outlast.work import leases
own = leases.myself() + ":1"
leases._alive[own] = None
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as full:
    assert full.errno == 24
print(*map(leases.certainly_dead, sys.argv[1:]), leases.certainly_dead(own), leases.myself() + ":1" == own)
"""
HIDDEN = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=4001 --regid=4001 --clear-groups "$@"'


def owner_of(pid):
    """The owner that a process of this machine has."""
    return f"{leases._host()}:{pid}:{leases._started(pid)}:1"


def gone():
    """The owner of a process that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    owner = owner_of(process.pid)
    process.kill()
    process.wait()
    return owner


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_process_without_descriptors_takes_no_living_process_for_dead():
    """D-39: it cannot read /proc any more. It still knows itself, and that a process does not exist, which the system says without a descriptor."""
    assert said(sys.executable, "-c", STARVED, owner_of(os.getpid()), gone()) == ["False", "True", "False", "True"]


def test_a_process_that_starts_without_descriptors_proves_nothing_and_is_not_proved_dead():
    """It never learnt when it started: its lease must run out."""
    code = STARVED.replace("own = leases.myself()", 'own = ""').replace("print(", "print(leases.this_machine(), ", 1)
    assert said(sys.executable, "-c", code, owner_of(os.getpid()), gone())[:3] == ["None", "False", "False"]
    assert not certainly_dead(f"{leases._host()}:{NO_PROCESS}:None:1")


def test_a_process_of_another_user_that_proc_hides_is_alive():
    """/proc with hidepid=2, as systemd's ProtectProc=invisible gives it: a process that is not in there may live."""
    hidden = ("unshare", "--mount", "sh", "-c", HIDDEN, "sh")
    assert said(*hidden, sys.executable, "-c", ASK, owner_of(os.getpid()), gone()) == ["False", "True", "True"]


def test_equal_host_names_in_two_name_spaces_are_two_machines():
    """Each has its own process 1, and neither can tell whether that of the other lives."""
    apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    code = "from outlast.work.leases import *; print(myself())"
    one, two = (said(*apart, sys.executable, "-c", code)[0] for _ in range(2))
    assert {owner.partition("/")[0] for owner in (one, two, myself())} == {socket.gethostname()}
    assert (one.split(":")[1], two.split(":")[1]) == ("1", "1")
    assert [certainly_dead(f"{owner}:1") for owner in (one, two)] == [False, False]
    assert said(*apart, sys.executable, "-c", ASK, owner_of(os.getpid())) == ["False", "True"]


def test_a_proc_of_another_name_space_proves_nothing():
    """Without a /proc of its own a process finds strangers under the numbers that it knows."""
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    code = ASK + "; print(this_machine(), myself().endswith(':None'))"
    owner = f"{leases._host()}:{NO_PROCESS}:1:1"
    assert said(*apart, sys.executable, "-c", code, owner) == ["False", "True", "None", "True"]


def test_equal_host_names_with_another_boot_are_two_machines():
    """Clones and images of one name: the number of the first PID name space is the same on every Linux, the boot id is not."""
    name, boot, space = leases._host().split("/")
    assert boot
    assert space
    other = f"{name}/00000000-0000-4000-8000-000000000000/{space}"
    for owner in (f"{other}:{NO_PROCESS}:1:1", f"{name}/{space}:{NO_PROCESS}:1:1"):
        assert (certainly_dead(owner), is_of_this_host(owner)) == (False, False)
    assert (certainly_dead(gone()), is_of_this_host(gone())) == (True, True)


@pytest.mark.parametrize("pid", ["0", "-1", "²", "99999999999999999999", ""])
def test_an_owner_with_a_strange_number_is_not_looked_for(pid):
    """A damaged row: nothing is signalled, nothing is proved."""
    assert not certainly_dead(f"{leases._host()}:{pid}:1:1")


def test_another_start_time_is_another_process():
    """Numbers are used again; one whose exit code is still to be collected has ended."""
    me = os.getpid()
    assert certainly_dead(f"{leases._host()}:{me}:1:1")
    assert not certainly_dead(owner_of(os.getppid()))
    process = subprocess.Popen(["sleep", "60"])
    owner = owner_of(process.pid)
    assert not certainly_dead(owner)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert certainly_dead(owner)
    process.wait()
    assert certainly_dead(owner)
