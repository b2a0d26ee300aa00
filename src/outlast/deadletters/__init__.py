"""
Dead letters: what could not be saved, kept until somebody has read it, mended it and sent it again.

    open ──► replaying ──► resolved
     │  ▲        │
     │  └────────┘ failed again, or whoever replayed it is gone
     ▼
    archived

A letter is never deleted to be replayed: it is claimed (open → replaying) inside of a run that holds a lease, and
resolved in the transaction that finishes its item. When that run is no more, its claims are worth nothing and the
letters are open again.

    queue         DeadLetters, the door: find, mend, send again, put away
    letters       what people see of them; fingerprints: which of them are one problem
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
from outlast.deadletters.letters import as_groups as as_groups
from outlast.deadletters.queue import DeadLetters as DeadLetters
