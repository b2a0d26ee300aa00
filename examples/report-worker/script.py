"""
The fault script: what goes wrong with each input, and how it must end.

    stories   what goes wrong, by stage of the chain: which fault, and how often
    inputs    so many files, each with its story: the same for the same seed
    expected  how an input of this story ends: every attempt, the calls of the model, what is left behind

Nothing here knows of servers, stores or runs: `expected` plays the chain by the rules of the worker, with a pencil.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Form = Literal["flow", "jobs"]
Stage = Literal["read", "ask", "check", "write", "update"]

CHAIN: tuple[Stage, ...] = ("read", "ask", "check", "write", "update")
MOST_ATTEMPTS = 4
POISON = 3  # workers that one input may kill


@dataclass(frozen=True)
class Fault:
    """
    What happens, and the error class that must be on record. Faults that `passes` are tried again, others are final.
    """

    name: str
    error_class: str
    passes: bool = True
    retry_after: int = 0  # seconds, of a status
    status: int = 0  # of HTTP
    sqlstate: str = ""
    answer: str = ""  # what the model says
    finish: str = "stop"  # why it has ended, as the endpoint says it
    refused: bool = False  # whether the endpoint says that the model refused


# -- faults, by their names ------------------------------------------------------------------------------------------------

TOO_MANY = Fault("429", "rate_limited", status=429, retry_after=1)
BROKEN = Fault("500", "server_error", status=500)
BAD_GATEWAY = Fault("502", "server_error", status=502)
AWAY = Fault("503", "unavailable", status=503)
OVERLOADED = Fault("529", "server_error_other", status=529)
STALL = Fault("no answer", "timeout")
HUNG_UP = Fault("hung up", "connection_reset")
REFUSED = Fault("400", "client_error", passes=False, status=400)
UNFIT = Fault("422", "client_error", passes=False, status=422)
PROSE = Fault("prose", "invalid_output", passes=False, answer="I am afraid I cannot summarise this report.")
CUT = Fault("cut off", "invalid_output", passes=False, answer='```json\n{"title": "Summary of the rep')
MISFIT = Fault("misfit", "invalid_output", passes=False, answer='{"title": "Summary", "pages": "many"}')
TWICE = Fault("twice", "invalid_output", passes=False, answer='{"title": "Summary", "pages": 3, "pages": 1}')
TOO_LONG = Fault("length", "invalid_output", passes=False, answer='{"title": "Sum", "pages": 3}', finish="length")
DECLINED = Fault("refusal", "invalid_output", passes=False, answer='{"title": "None", "pages": 1}', refused=True)
BLOCK = '```json\n{"title": "Summary", "pages": %d}\n```\n'
CHOICE = Fault("choice", "invalid_output", passes=False, answer=BLOCK % 3 + "or\n" + BLOCK % 4)
DEEP = Fault("deep", "invalid_output", passes=False, answer='{"title": %s, "pages": 3}' % ("[" * 3000 + "]" * 3000))
RESET = Fault("reset", "connection_reset")
LOST_ANSWER = Fault("lost answer", "connection_reset")
MISSING = Fault("missing", "missing_input", passes=False)
EXTENSION = Fault("extension", "validation_error", passes=False)
METADATA = Fault("no metadata", "validation_error", passes=False)
CORRUPTED = Fault("corrupted metadata", "validation_error", passes=False)
CONFLICT = Fault("conflict", "database_error", sqlstate="40001")
SHUTDOWN = Fault("shutdown", "database_connection", sqlstate="57P01")
RESTART = Fault("restart", "database_connection")
CONSTRAINT = Fault("constraint", "data_error", passes=False, sqlstate="23514")
KILL = Fault("kill", "worker_lost")


@dataclass(frozen=True, eq=False)
class Story:
    """What goes wrong at each stage, in order; how many of a hundred inputs it is told of (each at least once)."""

    name: str
    faults: Mapping[Stage, Sequence[Fault]] = field(default_factory=dict)
    percent: float = 1.5
    most: int = 1_000_000
    extension: str = ".txt"
    title: str = "Summary of {file}"
    said: str = "%s"  # the answer, around the report

    @property
    def kills(self) -> int:
        """How many workers it takes with it."""
        return sum(fault is KILL for faults in self.faults.values() for fault in faults)

    @property
    def restarts(self) -> bool:
        """Whether the database is restarted while it updates."""
        return any(fault is RESTART for faults in self.faults.values() for fault in faults)


STORIES = (
    Story("nothing goes wrong", percent=0),
    Story("the answer is fenced", said="Here you are:\n```json\n%s\n```", percent=4),
    Story("the fence is in capitals", said="```JSON\n%s\n```", percent=1),
    Story("there is prose around it", said="Sure: %s Shall I go on?", percent=1),
    Story("the model thinks aloud", said='<think>{"pages": 1}? No.</think>\n%s', percent=1),
    Story("the title has a fence", title="``` in {file}", percent=1),
    # -- what passes, within four attempts
    Story("429 once", {"ask": [TOO_MANY]}, percent=4),
    Story("429 three times", {"ask": [TOO_MANY] * 3}),
    Story("500 once", {"ask": [BROKEN]}, percent=3),
    Story("503 twice", {"ask": [AWAY] * 2}, percent=3),
    Story("529, then 502, then 500", {"ask": [OVERLOADED, BAD_GATEWAY, BROKEN]}),
    Story("the model stalls", {"ask": [STALL]}, percent=1),
    Story("the model hangs up", {"ask": [HUNG_UP]}),
    Story("S3 resets two reads", {"read": [RESET] * 2}),
    Story("S3 resets a write", {"write": [RESET]}),
    Story("S3 writes, its answer is lost", {"write": [LOST_ANSWER]}),
    Story("the update conflicts twice", {"update": [CONFLICT] * 2}),
    Story("S3, then 503, then a conflict", {"read": [RESET], "ask": [AWAY], "update": [CONFLICT]}),
    # -- what passes, too late
    Story("429 four times", {"ask": [TOO_MANY] * 4}),
    Story("502 five times", {"ask": [BAD_GATEWAY] * 5}),
    Story("S3 writes, four answers are lost", {"write": [LOST_ANSWER] * 4}),
    Story("the database hangs up four times", {"update": [SHUTDOWN] * 4}),
    Story("503 twice, then two conflicts", {"ask": [AWAY] * 2, "update": [CONFLICT] * 2}),
    # -- what does not pass
    Story("400", {"ask": [REFUSED]}),
    Story("422 after a 503", {"ask": [AWAY, UNFIT]}),
    Story("no JSON", {"ask": [PROSE]}),
    Story("JSON that is cut off", {"ask": [CUT]}),
    Story("a name comes twice", {"check": [TWICE]}, percent=1),
    Story("cut off where it looks whole", {"ask": [TOO_LONG]}, percent=1),
    Story("the model refuses", {"ask": [DECLINED]}, percent=1),
    Story("two answers", {"check": [CHOICE]}, percent=1),
    Story("deeper than anybody reads", {"check": [DEEP]}, percent=1),
    Story("JSON of another schema", {"check": [MISFIT]}),
    Story("another schema, after a 429", {"ask": [TOO_MANY], "check": [MISFIT]}),
    Story("no such object", {"read": [MISSING]}),
    Story("unsupported extension", {"read": [EXTENSION]}, extension=".exe"),
    Story("no metadata", {"read": [METADATA]}),
    Story("corrupted metadata", {"read": [CORRUPTED]}),
    Story("the table refuses the row", {"update": [CONSTRAINT]}),
    # -- workers and the database
    Story("killed while it asks", {"ask": [KILL]}, most=4),
    Story("killed while it writes", {"write": [KILL]}, most=4),
    Story("killed while it updates", {"update": [KILL]}, most=4),
    Story("kills three workers", {"ask": [KILL] * 3}, most=1),
    Story("the database restarts", {"update": [RESTART]}, most=8),
    Story("503, then the database restarts", {"ask": [AWAY], "update": [RESTART]}, most=8),
)


@dataclass(frozen=True)
class Input:
    """One input: its name, which is its key everywhere, and its story."""

    file: str
    story: Story

    @property
    def number(self) -> int:
        return int(self.file.removeprefix("f-").partition(".")[0])

    @property
    def report(self) -> dict[str, object]:
        """What the model makes of it, where it answers as it should."""
        return {"title": self.story.title.format(file=self.file), "pages": 1 + self.number % 40}

    @property
    def answer(self) -> str:
        """That, as the model says it."""
        return self.story.said % json.dumps(self.report)


def inputs(count: int, seed: int) -> list[Input]:
    """So many inputs: each story at least once, the others with nothing wrong, in an order that the seed decides."""
    if count < len(STORIES):
        raise SystemExit(f"expected --inputs to be at least {len(STORIES)}, one for each story, got: {count}.")
    told = Counter({story: min(story.most, max(1, round(count * story.percent / 100))) for story in STORIES[1:]})
    told[STORIES[0]] = max(1, count - told.total())
    while told.total() > count:
        story, _ = max(told.items(), key=lambda one: (one[1], one[0].name))
        told[story] -= 1
    stories = [story for story in STORIES for _ in range(told[story])]
    random.Random(seed).shuffle(stories)
    return [Input(f"f-{number:05}{story.extension}", story) for number, story in enumerate(stories, 1)]


# -- how it must end -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One attempt that must be on record: how it ended, with which error class, and the seconds that a service asked for."""

    outcome: str
    error_class: str | None = None
    retry_after: int = 0


@dataclass(frozen=True)
class Ending:
    """How an input must end."""

    status: str
    attempts: tuple[Attempt, ...]
    stop_reason: str | None
    calls: int  # of the model
    written: bool  # whether its object is there, and its row names it
    undone: bool  # whether its object was written, and is removed again
    kept: str | None  # the answer of the model that is kept to look at


def expected(story: Story, *, flow: bool = False) -> Ending:
    """
    Four attempts in all; what passes is queued again while one is left, what does not is failed at once. An
    attempt goes on at the stage that failed. A crash costs its attempt, and three of them are the end. A flow has
    one more attempt then, which compensates what was done.
    """
    left = {stage: list(story.faults.get(stage, ())) for stage in CHAIN}
    done: list[Stage] = []
    attempts: list[Attempt] = []
    calls = crashes = 0
    begun: set[Stage] = set()
    while True:
        fault = None
        for stage in CHAIN[len(done) :]:
            calls += stage == "ask"
            begun.add(stage)
            fault = left[stage].pop(0) if left[stage] else None
            if fault is not None:
                break
            done.append(stage)
        if fault is None:
            attempts.append(Attempt("succeeded"))
            return Ending("succeeded", tuple(attempts), None, calls, written=True, undone=False, kept=None)
        crashes += fault is KILL
        poison = crashes == POISON
        error_class = "poison" if poison and not flow else fault.error_class
        attempts.append(Attempt("crashed" if fault is KILL else "failed", error_class, fault.retry_after))
        if poison or not fault.passes or len(attempts) == MOST_ATTEMPTS:
            reason = "poison" if poison else "exhausted" if fault.passes else "permanent"
            if poison and flow:
                attempts.append(Attempt("failed", "poison"))
            kept = fault.answer or None
            undone = "write" in begun and not poison
            return Ending("failed", tuple(attempts), reason, calls, written=False, undone=undone, kept=kept)
