"""
What processes share of a limit, as plain values and pure functions: tracks of time, places, and what the service said.

**Rates: stretches of a track.** To a rate belongs a *track*, which is time itself. A call of cost c takes c / speed
seconds of the track, behind all that was taken before and never in the past: it *begins* at b ≥ s, where s is the
instant at which it starts, and it may start as soon as its *end* e ≤ s + max(burst, c) / speed. No two calls have the
same part of the track. So the calls that start within any time w have parts that lie between the begin of that time and
max(burst, c) / speed after its end, one beside the other; hence over any time w no more is taken than speed · w plus
the burst or, if that is more, plus the largest single cost. That is all there is to a bucket, and it does not matter
who takes which part: a process is given a *stretch* of the track, and inside of it accounts for its calls alone,
without asking anybody.

A stretch is never lent for free use, and never needs to be given back: as a part begins in no past, a stretch is worth
nothing once time has passed its end. A process that is killed loses at most what it was given ahead, and one that was
stopped finds its stretch gone.

**Clocks.** The track lies in the store's time; a process has only its own. It knows that the store's clock, when its
own shows m, shows between m + o and m + o + u. It reckons with m + o, and leaves the last u of each stretch unused. For
if its clock really is x ≤ u ahead of that, then all its parts really lie x further on the track: still inside of the
stretch, one beside the other, and each still within the bounds above.

**Places** are leased: a process has some, says how many it keeps and how many it wants, and gets what is free of a fair
share. Whoever does not renew its lease has none; it must see that by its own clock, which started to run before the
store's did.

**What the service said**, a gate and a width, is as in one process, for all of them together.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from outlast.limits.throttle import LONGEST_GATE, MANY, Heed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Shared: TypeAlias = Mapping[str, Any]  # what is in the store: instants are the store's, in seconds since the epoch

QUANTUM = 0.25  # seconds: how long a stretch is at the most, and how early it is given; one call if that takes longer
LEASE = 10.0  # seconds that places are kept for a process that says nothing
_RENEW = 3.0  # after so many it is written down that a process is still there
_GRACE = 0.1  # seconds that the first who waits for a stretch is waited for
_LATE = 0.03  # seconds of a stretch that may be lost because callers wake up late
_LEAST = 1e-5  # the same, and what is lost to rounding: an instant is known to a quarter of a microsecond
_NEXT = 0.005  # seconds after which the second asks again
_ROTATION = 2.0  # seconds that the places which cannot be divided stay with a process
_ROUNDING = 1e-9


# -- what the service said -----------------------------------------------------------------------------------------------------


class _Heard(Heed):
    """The same of all processes together, as it is in the store."""

    def __init__(self, found: Shared | None, concurrency: int | None) -> None:
        self.concurrency = concurrency
        self._trust(0)
        if found:
            self._gate = -inf if found["gate"] is None else found["gate"]
            self._worked = inf if found["worked"] is None else found["worked"]
            self._narrow, self._cuts = found["narrow"], found["cuts"]
            self._cut_from, self._refused = found["cut_from"], found["refused"]
            if found["width"] is not None:
                self._set_width(found["width"])

    def told(self) -> Shared:
        return {
            "gate": None if self._gate == -inf else self._gate,
            "worked": None if self._worked == inf else self._worked,
            "narrow": self._narrow,
            "width": None if self._width == inf else self._width,
            "cuts": self._cuts,
            "cut_from": self._cut_from,
            "refused": self._refused,
        }

    def hear(self, ask: Ask, under_way: int, now: float) -> list[tuple[float, float]]:
        """Take to heart what a process has met; (hint, pause) of the refusals that began a burst."""
        if ask.worked:
            self._worked += ask.worked
            if self._worked > MANY:
                self._worked = inf
            for _ in range(min(ask.grown, MANY)):
                if self._width == inf:
                    break
                self._widen()
        bursts: list[tuple[float, float]] = []
        for hint, entry in ask.refusals:
            # A place may have been taken in an era that this process alone knows of: then it is of now.
            first, pause = self._heed(hint, min(entry, self._cuts), max(1, under_way), now)
            if first:
                bursts.append((hint, pause))
        if self._gate <= now:
            self._gate = -inf
        self._gate = min(self._gate, now + LONGEST_GATE)
        return bursts


# -- what a process says, and what it hears ------------------------------------------------------------------------------------


class Wish(NamedTuple):
    """What a process has to say about a track; all in seconds of it."""

    full: float  # the burst
    late: float = 0.0  # what may be lost on the way because callers wake up late
    unsure: float = 0.0  # what is left unused at the end, for the sake of the clocks
    settled: float = 0.0  # what calls have not used after all; less than nothing: what they used beyond their estimate
    end: float | None = None  # where the newest stretch of the process ends, in the store's time,
    spare: float = 0.0  # and how much of that it does not want any more


class Ask(NamedTuple):
    """What a process tells and wants. It keeps to `keeps` from the moment it asks."""

    member: str
    tracks: Mapping[str, Wish]
    # That wait or are expected, the first ones first: what each takes of these tracks.
    calls: tuple[tuple[float, ...], ...] = ()
    waits: bool = False  # at least one of them waits
    trip: float = 0.0  # seconds until the process has heard what is decided now
    concurrency: int | None = None
    keeps: int = 0  # places that it has, or needs for what is under way
    under_way: int = 0
    wants: int = 0  # places
    refusals: tuple[tuple[float, int], ...] = ()  # the hint, and after how many cuts the call started
    worked: int = 0
    grown: int = 0  # of them those that were as many as may be
    drained: bool = False  # the process has lived without the store until now
    leaves: bool = False


class Answer(NamedTuple):
    stretches: Mapping[str, tuple[float, float]]
    again: float  # when to ask for stretches that are not to be had yet
    places: float  # that the process may use until its lease ends; infinite if they are not counted
    lease: float  # seconds
    fair: float  # how many it should go down to
    width: float  # what all may use together
    cuts: int
    worked: float
    narrow: bool
    gate: float
    bursts: list[tuple[float, float]]
    members: int
    under_way: int  # in all processes


def exchange(found: Shared | None, now: float, ask: Ask) -> tuple[Shared | None, Answer]:
    """What is to be shared after a process has asked (None: as it is), and what it is answered."""
    state = _moved(found, now)
    others = {id: one for id, one in state["members"].items() if id != ask.member and one["until"] > now}  # noqa: A001
    heard = _Heard(state["heed"], ask.concurrency)
    under_way = ask.under_way + sum(one["under_way"] for one in others.values())
    bursts = heard.hear(ask, under_way, now)
    tracks = dict(state["tracks"]) | {
        name: _told(state["tracks"].get(name, now), now, ask, name) for name in ask.tracks
    }
    queue, stretches, again = _reserve(tracks, state["queue"], now, ask)
    tracks |= {name: end for name, (_, end) in stretches.items()}
    most = heard._places_at_most()  # noqa: SLF001 - same room
    has, usable, fair = _allot(most, others, ask, now)
    members: dict[str, Any] = dict(others)
    lease = 0.0
    if not ask.leaves:
        members[ask.member] = one = _enrolled(state["members"].get(ask.member), now, ask, has)
        lease = one["until"] - now
    answer = Answer(
        stretches=stretches,
        again=again,
        places=usable,
        lease=lease,
        fair=fair,
        width=heard._width,  # noqa: SLF001 - same room
        cuts=heard._cuts,  # noqa: SLF001 - same room
        worked=heard._worked,  # noqa: SLF001 - same room
        narrow=heard._narrow,  # noqa: SLF001 - same room
        gate=heard._gate,  # noqa: SLF001 - same room
        bursts=bursts,
        members=len(members),
        under_way=under_way,
    )
    after = {"v": 1, "at": now, "tracks": tracks, "queue": queue, "heed": heard.told(), "members": members}
    if found is not None and {**after, "at": found["at"]} == dict(found):
        return None, answer
    return after, answer


def _enrolled(had: Shared | None, now: float, ask: Ask, places: float) -> Shared:
    """What is written down of the process; as before, if there is nothing new that is worth a write."""
    one = {
        "until": now + LEASE,
        "places": None if places == inf else int(places),
        "under_way": ask.under_way,
        "wants": ask.wants,
    }
    if (
        had is None
        or had["places"] != one["places"]
        or had["until"] - now < LEASE - _RENEW
        or any(abs(had[what] - one[what]) > had[what] / 8 for what in ("under_way", "wants"))
    ):
        return one
    return had


def _moved(found: Shared | None, now: float) -> Shared:
    """
    What is shared, with every instant moved back if the store's clock was set back: nobody waits for a time that was
    never real.
    """
    if not found:
        return {"tracks": {}, "queue": [], "heed": None, "members": {}}
    back = found["at"] - now
    if back <= 1.0:  # two connections may read the clock in another order than they write
        return found
    heed = dict(found["heed"])
    if heed["gate"] is not None:
        heed["gate"] -= back
    return {
        "tracks": {name: end - back for name, end in found["tracks"].items()},
        "queue": [],
        "heed": heed,
        "members": {id: {**one, "until": one["until"] - back} for id, one in found["members"].items()},  # noqa: A001
    }


# -- tracks -----------------------------------------------------------------------------------------------------------------------


def _told(end: float, now: float, ask: Ask, name: str) -> float:
    """The end of what is taken of a track, after what the process says about it."""
    wish = ask.tracks[name]
    if wish.end is not None and wish.end == end:  # nobody has come behind
        end -= wish.spare
    if wish.settled > 0:
        end = max(min(end, now), end - wish.settled)
    elif wish.settled < 0:
        end = max(end, now) - wish.settled
    return max(end, now + wish.full) if ask.drained else end


def _reserve(
    tracks: Mapping[str, float], queue: list[list[Any]], now: float, ask: Ask
) -> tuple[list[list[Any]], dict[str, tuple[float, float]], float]:
    """
    Who waits for stretches afterwards; the stretches that are given, and if there are none, when to ask again.

    All tracks together, and one process after the other: whoever has a stretch of one track needs the others at the
    same time.
    """
    queue = [
        one
        for one in queue
        if (now - one[1] <= _GRACE and one[0] != ask.member) or (one[0] == ask.member and ask.waits)
    ]
    if not ask.calls:
        return queue, {}, -inf
    wishes = [ask.tracks[name] for name in ask.tracks]
    begins = [max(tracks[name], now) for name in ask.tracks]
    first = _start(now, begins, ask.calls[0], wishes)
    before = queue[0] if queue and queue[0][0] != ask.member else None
    if first - QUANTUM > now or before is not None:
        again = first - QUANTUM if before is None else max(first - QUANTUM, before[1] + _NEXT, now + _NEXT)
        if ask.waits:
            place = next((place for place, one in enumerate(queue) if one[0] == ask.member), len(queue))
            queue = [*queue[:place], [ask.member, again], *queue[place + 1 :]]
        return queue, {}, again
    # All that can start within a quantum; and at least one call.
    ends, aheads, at = list(begins), [0.0] * len(begins), first
    for call in ask.calls:
        at = max(at, _start(now, ends, call, wishes))
        if at > first + QUANTUM:
            break
        aheads = [max(0.0, end - at) for end in ends]
        ends = [max(end, at) + long if long > 0 else end for end, long in zip(ends, call, strict=True)]
    # Where the parts are ahead of their calls, because of a burst, it does not matter that a caller wakes up late.
    late = max(0.0, ask.trip - (first - now))
    given = {
        name: (begin, end + wish.unsure + max(_LEAST, wish.late + late - ahead))
        for name, begin, end, wish, ahead in zip(ask.tracks, begins, ends, wishes, aheads, strict=True)
        if end > begin
    }
    return [one for one in queue if one[0] != ask.member], given, -inf


def _start(now: float, ends: list[float], call: tuple[float, ...], wishes: list[Wish]) -> float:
    """When a call can start, if so much is taken of each track."""
    starts = [end - max(0.0, wish.full - long) for end, long, wish in zip(ends, call, wishes, strict=True) if long > 0]
    return max(now, *starts) if starts else now


class Stretches:
    """
    What this process has of a track, in its own time; to a limit it is as a `Bucket`.
    """

    __slots__ = (
        "_at",
        "_counted",
        "_lost",
        "_recent",
        "_since",
        "burst",
        "late",
        "latest",
        "parts",
        "settled",
        "speed",
    )

    def __init__(self, speed: float, burst: float) -> None:
        self.speed = speed
        self.burst = burst
        self.parts: deque[list[float]] = deque()  # begin and end
        self.settled = 0.0  # seconds of the track, to be told
        # seconds of the track that passed unused within a quantum because callers woke up late; a moving average
        self.late = 0.0
        self.latest = 0.0  # seconds of the track that the latest call took
        self._recent = self._counted = self._lost = self._at = 0.0
        self._since = -inf

    def lead(self, cost: float) -> float:
        return max(0.0, self.burst - cost) / self.speed

    def wait(self, cost: float, now: float) -> float:
        """The seconds until so much may be taken; infinite if there is no stretch for it."""
        self._at = now
        if cost <= 0:
            return 0.0
        long = cost / self.speed
        while self.parts:
            begin, end = self.parts[0]
            if max(begin, now) + long <= end:
                wait = begin - self.lead(cost) - now
                return 0.0 if wait <= _ROUNDING else wait
            if len(self.parts) == 1 and end > now:
                break
            self.parts.popleft()
        return inf

    def give(self, amount: float) -> None:
        """Take less than nothing, as of the newest `wait`: the latest call took nothing after all."""
        if not self.parts:
            return
        part, long = self.parts[0], -amount / self.speed
        if long <= 0:
            part[0] += long
            return
        self._count(self._at)
        self._counted += long
        self.latest = long
        self._lost += min(max(0.0, self._at - part[0]), _LATE)
        part[0] = max(part[0], self._at) + long

    def settle(self, amount: float) -> None:
        """Something was not used after all; it goes back to the track."""
        self.settled += amount / self.speed

    def _count(self, now: float) -> None:
        """Begin the next quantum, if it is time."""
        if now - self._since >= QUANTUM:
            self._recent = self._counted if now - self._since < 2 * QUANTUM else 0.0
            self.late = min(_LATE, (self.late + self._lost) / 2)
            self._since, self._counted, self._lost = now, 0.0, 0.0

    def recent_at(self, now: float) -> float:
        """Seconds of the track that were taken in the last full quantum."""
        self._count(now)
        return self._recent

    def left(self, now: float) -> float:
        """Seconds of the track that are at hand."""
        return sum(max(0.0, end - max(begin, now)) for begin, end in self.parts)

    def add(self, begin: float, end: float, *, longer: bool = False) -> None:
        """Have another stretch; `longer`: it begins where the last one ends, and they are one."""
        if longer and self.parts:
            self.parts[-1][1] = end
        else:
            self.parts.append([begin, end])

    def allowance(self) -> float:
        """What must be added to a stretch, so that the last call fits although callers wake up late."""
        return 0.003 + 2 * self.late

    def spare(self, now: float) -> float:
        """Give up what is at hand; how much that is at the end of the newest stretch."""
        spare = 0.0
        if self.parts:
            begin, end = self.parts[-1]
            spare = max(0.0, end - max(begin, now))
        self.parts.clear()
        return spare


# -- places ------------------------------------------------------------------------------------------------------------------------


def _allot(most: float, others: Mapping[str, Mapping[str, Any]], ask: Ask, now: float) -> tuple[float, float, float]:
    """
    How many places the process has now, how many of them it may use for further calls, and what its fair share is.
    """
    if most == inf or ask.leaves:
        return (inf, inf, inf) if most == inf else (0, 0, 0)
    wants = {id: one["wants"] for id, one in others.items()} | {ask.member: max(ask.wants, ask.under_way)}  # noqa: A001
    fair = _shares(int(most), wants, int(now / _ROTATION))[ask.member]
    # Who has not heard yet that places are counted has those that it uses.
    taken = sum(one["under_way"] if one["places"] is None else one["places"] for one in others.values())
    free = max(0, int(most) - taken)
    # One whose lease was over has calls under way in places that are somebody else's by now.
    has = max(ask.keeps, min(fair, free))
    return has, min(has, free), fair


def _shares(places: int, wants: Mapping[str, int], turn: int) -> dict[str, int]:
    """
    What each gets: what it wants or, if that is too much for all, the same as the others; what cannot be divided goes
    round.

    >>> _shares(10, {"a": 2, "b": 20, "c": 20}, turn=0)
    {'a': 2, 'b': 4, 'c': 4}
    >>> _shares(1, {"a": 1, "b": 1}, turn=0), _shares(1, {"a": 1, "b": 1}, turn=1)
    ({'a': 1, 'b': 0}, {'a': 0, 'b': 1})
    """
    given, left = dict.fromkeys(sorted(wants), 0), places
    hungry = [id for id in given if wants[id] > 0]  # noqa: A001
    while hungry and left >= len(hungry):
        each = min(left // len(hungry), *(wants[id] - given[id] for id in hungry))  # noqa: A001
        for id in hungry:  # noqa: A001
            given[id] += each
        left -= each * len(hungry)
        hungry = [id for id in hungry if wants[id] > given[id]]  # noqa: A001
    for place in range(min(left, len(hungry))):
        given[hungry[(turn + place) % len(hungry)]] += 1
    return given


# -- clocks ------------------------------------------------------------------------------------------------------------------------

_GRAIN = 1e-3  # seconds: SQLite counts milliseconds
_DRIFT = 1e-4  # how much two clocks part, for each second
_OLD = 5.0  # seconds after which it is measured anew
_APART = _DRIFT * 2 * _OLD


class Offset:
    """
    How the store's clock stands to that of this process: when this one shows m, that one shows from m + `low` to m +
    `low` + `unsure`.
    """

    __slots__ = ("_at", "_tries", "low", "unsure")

    def __init__(self) -> None:
        self.low = 0.0
        self.unsure = inf
        self._tries = 3  # the first exchange opens the store, which takes its time
        self._at = -inf

    def known(self) -> bool:
        """Whether it is as good as it gets: what is unsure is lost at the end of each stretch."""
        return self.unsure < QUANTUM / 10 or self._tries <= 0

    def measure(self, asked: float, store: float, answered: float) -> tuple[float, float]:
        """
        The store's clock showed `store` between these two instants here. The reckoning for what was answered then: the
        one that was known when it was asked for, unless it was wrong.
        """
        self._tries -= 1
        low, unsure = store - answered - _APART, answered - asked + _GRAIN + 2 * _APART
        known = self.low, self.unsure
        right = self.unsure < inf and low <= self.low + self.unsure and self.low <= low + unsure
        if not right or unsure < self.unsure or answered - self._at >= _OLD:
            self.low, self.unsure, self._at = low, unsure, answered
        return known if right else (low, unsure)
