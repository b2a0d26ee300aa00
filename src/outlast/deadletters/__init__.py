"""
Dead letters: items and jobs that failed for good, kept until they are replayed or archived.

    open ──► replaying ──► resolved
     │  ▲        │
     │  └────────┘ failed again, or the replay has died
     ▼
    archived

A letter is never deleted to be replayed: it is claimed (open → replaying) inside of a run that holds a lease, and
resolved in the transaction that finishes its item. When the lease of that run has ended, its claims are void and the
letters are open again.

    queue         DeadLetters, the door: find, mend, send again, put away
    letters       what people see of them; fingerprints: which of them are one problem
    requeueing    replays of jobs, which workers do
    beginnings    what is kept of an item, and where a replay of it begins
    folder        the same as JSON files, for other programs
"""

from __future__ import annotations

from outlast.deadletters.fingerprints import fingerprint as fingerprint
from outlast.deadletters.fingerprints import normalised as normalised
from outlast.deadletters.folder import DeadLetterEntry as DeadLetterEntry
from outlast.deadletters.folder import Directory as Directory
from outlast.deadletters.letters import DeadLetter as DeadLetter
from outlast.deadletters.letters import FailureGroup as FailureGroup
from outlast.deadletters.letters import NothingToReplay as NothingToReplay
from outlast.deadletters.letters import ReplayedJobs as ReplayedJobs
from outlast.deadletters.letters import ReplayStopped as ReplayStopped
from outlast.deadletters.letters import as_groups as as_groups
from outlast.deadletters.queue import DeadLetters as DeadLetters
