"""
A limit that processes share, and the agent of this process that talks to the store.

Callers never wait for the store: they stand in the limit's line as always, and are rung for. What they take comes from
what is at hand: stretches of each rate's track and leased places (see `stretches`). When something is lacking, or will be
soon, they ring for the agent, a thread that exists while the limit is in use. It asks for all callers at once, a few
times a second, and tells what the service said to them.

While the store cannot be asked, each process goes on alone, with an equal part of the limit as far as it knows how many
they are. In virtual time nothing is shared.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from outlast.kernel.clock import REAL, Bell, here
from outlast.kernel.log import logger
from outlast.limits import Limit, Rate, _Bucket, _of, _ring
from outlast.limits.stretches import QUANTUM, Ask, Offset, Stretches, Wish, exchange
from outlast.limits.throttle import GATE_ALWAYS, GATE_FROM, LONGEST_GATE
from outlast.observe import emit, listening
from outlast.sharing.named import apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.limits import Turn
    from outlast.limits.stretches import Answer, Shared
    from outlast.observe.events import Event

    Mode = Literal["shared", "alone", "virtual"]

_POLL = QUANTUM  # seconds between two exchanges while calls start
_CALM_POLL = 2.0  # while calls are under way, but none starts
_HURRY = 0.01  # at least so many seconds between two exchanges
_STARVING = 0.05  # seconds between two exchanges of a process that lacks places
_RETRY = 1.0  # seconds until a store that was away is asked again
_IDLE = 1.0  # seconds without a call after which the agent ends
_FAREWELL = 0.5  # seconds that the end of the program waits for the agent
_CHUNKS = 50  # into so many the calls of a quantum are put together


class SharedLimit(Limit):
    """What ``Limit(..., shared=True)`` makes."""

    def _start(self, era: int) -> None:
        super()._start(era)
        self.processes = 1
        self._agent = _Agent(self)
        self._mode: Mode = "shared"
        self._offset = Offset()
        # Where the newest stretch of a rate ends in the store's time, and by which reckoning.
        self._ends: dict[str, tuple[float, float]] = {}
        self._trip = 0.0  # seconds from the store's decision until it is heard
        self._short = False  # the first in line needs more than is at hand
        self._again = -inf  # when to ask for some that were not to be had
        self._lease = -inf  # the places are ours until then
        self._total: int | None = self.concurrency  # what all processes may use together
        self._fair = inf
        self._shift: int | None = None  # cuts in the store, less those that are counted here; None: not heard of yet
        self._trusted = inf  # successes that the store knows of
        self._refusals: list[tuple[float, int]] = []
        self._grown = self._peak = 0
        self._used = -inf  # when a call last asked for something
        self._missed: tuple[Mapping[str, float] | None, float] = (None, -inf)  # by a call that did not stand in line
        self._lacking = False  # places, for the first in line
        self._lost = False  # the store could not be asked
        self._share_out()

    def _share_out(self) -> None:
        """Have nothing at hand."""
        self._buckets: dict[str, Any] = {
            name: Stretches(rate.amount / rate.per, rate.burst) for name, rate in self.rates.items()
        }
        self._room = inf if self.concurrency is None and self._width == inf else 0
        self._absorb()
        self._ends, self._again, self._lease = {}, -inf, -inf

    def _is_calm(self) -> bool:
        return False

    # -- what it looks like ----------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """How many calls may be under way now in all processes together; None if any number."""
        return self._total if self._mode == "shared" else super().width

    def __repr__(self) -> str:
        many = "1 process" if self.processes == 1 else f"{self.processes} processes"
        where = {
            "shared": f"shared by {many}",
            "alone": "alone, without its store",
            "virtual": "alone, in a test",
        }
        return f"{super().__repr__()[:-1]}, {where[self._mode]}>"

    # -- under the lock: what callers do ------------------------------------------------------------------------------------------

    def _hold(self, cost: Mapping[str, float] | None, now: float) -> float:
        virtual = here.get().clock.virtual or apart.get()  # in a test, where nothing is shared
        if virtual is not (self._mode == "virtual"):
            self._enter("virtual" if virtual else "shared", now)
        hold = super()._hold(cost, now)
        if virtual:
            return hold
        self._used = now
        if self._mode == "shared" and (hold == inf or (self._room != inf and now >= self._lease)):
            if not self._line:
                self._missed = (cost, now)
            self._agent.ring()
            return inf
        self._agent.start()
        return hold

    def _grab(self) -> bool:
        found = super()._grab()
        if not found and self._mode == "shared":
            self._lacking = True
            self._agent.ring()
        self._peak = max(self._peak, self.under_way + len(self._line) + (not found and not self._line))
        return found

    def _forced(self) -> int:
        with self._lock:
            if not super()._grab():  # nobody is asked for it
                self._places += 1
            return self._cuts

    def _refuse(self, hint: float, entry: int, used: int) -> Event | None:
        if self._mode != "shared" or self._shift is None:
            return super()._refuse(hint, entry, used)
        self._refusals.append((hint, entry + self._shift))
        if hint >= (GATE_FROM if self._width == inf and not self._narrow else GATE_ALWAYS):
            self._gate = max(self._gate, here.get().clock.monotonic() + min(hint, LONGEST_GATE))
        self._agent.ring()
        return None  # the agent tells it, if it began a burst

    def _widen(self) -> None:
        if self._mode == "shared":
            self._grown += 1  # the store knows how wide it is
        else:
            super()._widen()

    def _set_width(self, width: float) -> None:
        super()._set_width(width)
        if self._mode == "alone":
            self._room = min(self._room, self._part())

    def _part(self) -> float:
        """An equal part of the places."""
        return inf if self.concurrency is None else max(1, self.concurrency // self.processes)

    def _enter(self, mode: Mode, now: float) -> None:
        """Live with the store, without it, or in another time."""
        self._mode = mode
        self._trust(self._cuts)
        self._shift = None
        if mode == "shared":
            self._share_out()
            return
        if mode == "virtual":
            self.processes = 1
        many = self.processes
        self._buckets = {
            name: _Bucket(Rate(rate.amount, per=rate.per, burst=rate.burst)) for name, rate in self.rates.items()
        }
        if mode == "alone":
            for bucket in self._buckets.values():  # what was at hand may be used up
                bucket.speed, bucket.burst = bucket.speed / many, bucket.burst / many
                bucket.level, bucket.at = 0.0, now
        self._room = self._part()
        self._absorb()

    # -- what the agent does ----------------------------------------------------------------------------------------------------------

    def ask(self, now: float, *, leaves: bool = False) -> tuple[Ask | None, float]:
        """What to tell and to ask the store now, if anything; and when to look again."""
        with self._lock:
            if self._mode == "virtual":
                return None, now + _POLL
            busy, calling = self.under_way, bool(self._line) or now - self._used <= _IDLE
            idle = leaves or not (calling or busy)
            if idle and self._shift is None:
                return None, now + _POLL
            if self._lost and now < self._agent.asked + _RETRY:
                return None, self._agent.asked + _RETRY
            # Before a stretch is asked for, it must be known how well the clocks are known.
            known = not idle and self._mode == "shared" and self._offset.known()
            self._short = False
            calls = self._expected(now) if known else ()
            starving = self._lacking and self._room < self._fair
            due = self._agent.asked + (_STARVING if starving else _POLL if calling else _CALM_POLL)
            if calls:
                due = min(due, self._again)
            elif calling and self._buckets:
                due = min(due, max(self._agent.asked, now) + QUANTUM / 8)  # what is at hand may run short before
            unknown = bool(self._buckets) and calling and not self._offset.known()
            urgent = idle or self._lost or self._refusals or self._shift is None or now >= self._lease or unknown
            if not urgent and due > now:
                return None, due
            wants = 0 if idle else max(self._peak, busy + len(self._line))
            self._peak = 0
            if self._room != inf:
                self._room = min(self._room, wants)
                self._absorb()
            refusals, self._refusals = self._refusals, []
            worked = 0 if self._worked == inf else int(self._worked - self._trusted)
            grown, self._grown = self._grown, 0
            ask = Ask(
                member=self._agent.member,
                tracks={name: self._wish(name, rate, now, idle=idle) for name, rate in self.rates.items()},
                calls=calls,
                waits=bool(self._line),
                trip=self._trip,
                concurrency=self.concurrency,
                keeps=busy if self._room == inf else max(busy, int(self._room)),
                under_way=busy,
                wants=wants,
                refusals=tuple(refusals),
                worked=worked,
                grown=grown,
                drained=self._mode == "alone",
                leaves=idle,
            )
            return ask, now + _POLL

    def _wish(self, name: str, rate: Rate, now: float, *, idle: bool) -> Wish:
        stretches, full = self._buckets[name], rate.burst * rate.per / rate.amount
        if not isinstance(stretches, Stretches):  # alone until now: the store has nothing to know of it
            return Wish(full=full)
        settled, stretches.settled = stretches.settled, 0.0
        unsure = self._offset.unsure if self._offset.unsure < inf else 0.0
        # What is too short for the first in line will pass unused.
        spare = stretches.spare(now) if idle or self._short else 0.0
        return Wish(
            full=full,
            late=stretches.allowance(),
            unsure=unsure,
            settled=settled,
            end=self._ends.get(name, (None, None))[0],
            spare=spare,
        )

    def _expected(self, now: float) -> tuple[tuple[float, ...], ...]:
        """
        What the calls that wait, and those that are to be expected, take of the tracks; nothing if there is enough at
        hand.

        A process that has the limit for itself asks before it must. Otherwise the track is somebody else's while this
        one has nothing, so that nothing is lost; and who asks when all in line lack a stretch knows best how long it
        must be.
        """
        tracks: list[tuple[str, Stretches]] = list(self._buckets.items())
        missed, when = self._missed
        costs = (turn.cost for turn in self._line) if self._line else iter([missed] if now - when < _POLL else [])
        calls: list[tuple[float, ...]] = []
        sums = [0.0] * len(tracks)
        for cost in costs:
            calls.append(tuple(_of(cost, name) / track.speed for name, track in tracks))
            sums = [total + long for total, long in zip(sums, calls[-1], strict=True)]
            if any(total > QUANTUM + track.lead(0.0) for total, (_, track) in zip(sums, tracks, strict=True)):
                break
        recent = [track.recent_at(now) for _, track in tracks]
        few = all(total < QUANTUM / 2 for total in sums)
        most = QUANTUM / self.processes  # or who had much would have ever more
        more = [max(0.0, min(used, most) - total) if few else 0.0 for used, total in zip(recent, sums, strict=True)]
        self._short = any(
            track.wait(long * track.speed, now) == inf
            for call in calls[:1]
            for (_, track), long in zip(tracks, call, strict=True)
        )
        if calls:
            if not self._short and (self.processes > 1 or all(track.left(now) >= QUANTUM / 2 for _, track in tracks)):
                return ()
        elif all(track.left(now) >= extra / 2 for (_, track), extra in zip(tracks, more, strict=True)):
            return ()
        if len(calls) > _CHUNKS:  # many at a time: it is only about how much
            size = -(-len(calls) // _CHUNKS)
            calls = [calls[0]] + [
                tuple(map(sum, zip(*calls[first : first + size], strict=True))) for first in range(1, len(calls), size)
            ]
        one = tuple(track.latest for _, track in tracks)  # those that are to be expected are as the latest was
        count = max((round(extra / long) for extra, long in zip(more, one, strict=True) if long > 0), default=0)
        calls += [one] * min(count, _CHUNKS)
        return tuple(calls)

    def hear(self, ask: Ask, answer: Answer, asked: float, store: float, answered: float) -> None:
        """The store has answered."""
        if self._lost and self._mode != "virtual":  # also when it leaves: who was told that it is away hears of it
            logger().warning("limit %s: shares with other processes again", self.name)
        with self._lock:
            if self._mode == "virtual":
                return
            now = here.get().clock.monotonic()
            if self._mode == "alone":
                self._enter("shared", now)
            self._lost = False
            low, unsure = self._offset.measure(asked, store, answered)
            self._trip = max(now - answered, 0.8 * self._trip)
            self.processes = max(1, answer.members)
            if ask.leaves:
                self._share_out()
                self._shift = None
                return
            if self._shift is None or answer.cuts - self._shift < self._cuts:
                self._shift = answer.cuts - self._cuts
            self._cuts = answer.cuts - self._shift
            ahead = 0.0 if self._worked == inf else self._worked - self._trusted - ask.worked
            self._trusted = answer.worked
            self._worked = answer.worked + ahead
            self._narrow = answer.narrow
            gate = answer.gate - low
            self._gate = max(self._gate, gate) if self._refusals else gate
            self._lease, self._fair = asked + answer.lease, answer.fair
            self._total = None if answer.width == inf else max(1, int(answer.width))
            if self._total is None:
                self._total = self.concurrency
            # What is more than its share comes back when calls end, and is given back with the next exchange.
            self._room = min(answer.places, answer.fair)
            self._width = inf if answer.width == inf else self._room
            self._absorb()
            self._lacking = False
            self._again = answer.again - low
            for name, (begin, end) in answer.stretches.items():
                longer = self._ends.get(name) == (begin, low)
                self._buckets[name].add(begin - low, end - low - unsure, longer=longer)
                self._ends[name] = (end, low)
            rung = self._serve(now)
            told = self._told(answer)
        _ring(rung)
        for event in told:
            emit(event)

    def _told(self, answer: Answer) -> list[Event]:
        if not answer.bursts or not listening():
            return []
        from outlast.observe.events import Throttled

        return [
            Throttled(limit=self.name, retry_after=hint, pause=pause, width=self.width) for hint, pause in answer.bursts
        ]

    def lost(self, why: Exception) -> None:
        """The store cannot be asked: go on alone."""
        rung: list[Turn] = []
        with self._lock:
            first, self._lost = not self._lost, True
            if self._mode == "shared":
                now = here.get().clock.monotonic()
                self._enter("alone", now)
                rung = self._serve(now)
        _ring(rung)
        if first:
            logger().warning(
                "limit %s: its store cannot be asked (%s); this process goes on alone with 1/%d of it",
                *(self.name, type(why).__name__, self.processes),
            )

    def rests(self, now: float) -> bool:
        """Whether the agent may end; the next caller starts another."""
        with self._lock:
            if self._line or self.under_way or now - self._used <= _IDLE or self._refusals:
                return False
            self._agent.thread = None
            return True


class _Agent:
    """The thread that talks to the store for a limit, while the limit is in use."""

    def __init__(self, limit: SharedLimit) -> None:
        self._limit = weakref.ref(limit)
        self._bell = Bell()
        self._rung = self._leaving = False
        self.member = REAL.ids.new()
        self.asked = -inf  # when the store was last asked
        self.thread: threading.Thread | None = None

    def ring(self) -> None:
        """Something is wanted. Under the limit's lock."""
        if not self._rung:
            self._rung = True
            self.start()
            self._bell.set()

    def start(self) -> None:
        """Be there. Under the limit's lock."""
        if self.thread is None and not self._leaving:
            limit = self._limit()
            self.thread = threading.Thread(target=self._run, args=(limit,), name="outlast-limit", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:  # the program ends, or there is no room for a thread: the next caller tries again
                self.thread = None
            else:
                _agents.add(self)

    def _run(self, limit: SharedLimit) -> None:
        try:
            while True:
                try:
                    self._serve(limit)
                except Exception as error:  # noqa: BLE001 - whatever it is: callers wait for this thread, and nobody else would start another
                    logger().error(
                        "limit %s: unexpected %s while its store was asked", limit.name, type(error).__name__
                    )
                    limit.lost(error)
                    if self._leaving:
                        return
                    REAL.clock.sleep(_RETRY)
                else:
                    return
        finally:
            self._over(limit)

    def _over(self, limit: SharedLimit) -> None:
        """This thread ends, however: the next who wants something starts another one."""
        with limit._lock:  # noqa: SLF001 - same room
            if self.thread is threading.current_thread():
                self.thread = None
                self._rung = False

    def _serve(self, limit: SharedLimit) -> None:
        monotonic, due = REAL.clock.monotonic, 0.0
        while True:
            self._bell.wait(max(0.0, due - monotonic()))
            early = self.asked + _HURRY - monotonic()
            if early > 0 and not self._leaving:
                REAL.clock.sleep(early)
            self._rung = False
            leaving, now = self._leaving, monotonic()
            ask, due = limit.ask(now, leaves=leaving)
            if ask is not None:
                due = min(due, self._exchange(limit, ask))
            # At the same instant: who was not idle then has not told the store that it leaves.
            if leaving or ((ask is None or ask.leaves) and limit.rests(now)):
                return

    def _exchange(self, limit: SharedLimit, ask: Ask) -> float:
        """Ask the store; when to ask again at the latest."""
        self.asked = asked = REAL.clock.monotonic()
        at = (0.0, asked)

        def decide(found: Shared | None, now: float) -> tuple[Shared | None, Answer]:
            nonlocal at
            at = (now, REAL.clock.monotonic())
            return exchange(found, now, ask)

        try:
            commons = None if limit.bond is None else limit.bond.commons()
            if commons is None:
                return inf
            limit.hear(ask, commons.change("limit", limit.name, decide), asked, *at)
        except Exception as why:  # noqa: BLE001 - mostly `Unreachable`; whatever it is, callers go on
            limit.lost(why)
        else:
            return inf
        return REAL.clock.monotonic() + _RETRY

    def leave(self) -> None:
        """Give everything back: the program ends."""
        thread, self._leaving = self.thread, True
        self._bell.set()
        if thread is not None:
            thread.join(_FAREWELL)


_agents: weakref.WeakSet[_Agent] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    for agent in list(_agents):
        agent.leave()
