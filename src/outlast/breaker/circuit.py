"""
Circuits: what a breaker knows about its dependency, how that changes, and where it lives.

`Circuit` is a frozen value: the state, its era, its probes. Every change of state begins a new *era*, and an outcome
counts only in the era its call was admitted in, so a late answer from before the opening cannot close or re-open
anything. A `Tally` is what its closed state counts. The functions that change either are pure: time and dice are their
inputs, and the clock is whichever the memory has.

A circuit changes in one piece, in its memory. `LocalMemory` is a field of this process; `outlast.breaker.shared` has
one that processes share.
"""

from __future__ import annotations

from _thread import allocate_lock
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from outlast.kernel.clock import here

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

T = TypeVar("T")
ROUNDING = 1e-6  # who slept exactly until then must not come a rounding error too early
LONGEST_OPEN = 3600.0  # growth of the open time ends here (or at reset_timeout, if that is longer)
PROBE_LEASE = 10.0  # a probe that has not come back after this (or reset_timeout) loses its place


class CircuitState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """One era of a circuit. Monotonic instants are on the clock of the memory that holds it."""

    passing: bool = True  # closed, and known to be: calls need not ask
    state: CircuitState = CircuitState.CLOSED
    era: int = 0
    opened_at: datetime | None = None
    retry_at: datetime | None = None
    retry_on: float = 0.0  # when probes may start
    rounds: int = 0  # probe rounds that failed since it was last closed
    successes: int = 0
    probes: tuple[tuple[int, float], ...] = ()  # (number, end of its lease)
    # Probes of earlier eras that are still under way: they decide nothing, but count.
    late: tuple[tuple[int, float], ...] = ()
    issued: int = 0  # probes so far, of all eras: a number is never given twice
    isolated: str | None = None
    row: int | None = None  # failures in a row, where they are counted here; None: each process counts its own


if TYPE_CHECKING:
    #: From a circuit, the time on its clock and on the wall, to what it becomes and an answer. Pure: it may be asked again.
    Decide: TypeAlias = Callable[[Circuit, float, datetime], tuple[Circuit, T]]


class Tally(NamedTuple):
    """What the closed state counts. Integers only: nothing drifts."""

    window: int  # how many outcomes are looked back upon
    row: int = 0  # failures in a row
    last_failure_time: datetime | None = None
    calls: int = 0  # in the window
    failures: int = 0  # of those
    outcomes: int = 0  # the window itself, a bit for each call: 1 is a failure, and the newest is the lowest


class Terms(Protocol):
    """What a breaker wants of its circuit."""

    @property
    def name(self) -> str: ...
    @property
    def reset_timeout(self) -> float: ...
    @property
    def half_open_requests(self) -> int: ...
    @property
    def success_threshold(self) -> int: ...
    @property
    def failure_threshold(self) -> int: ...
    @property
    def failure_rate(self) -> float | None: ...
    @property
    def min_calls(self) -> int: ...
    @property
    def open_growth(self) -> float: ...
    @property
    def open_jitter(self) -> float: ...

    def told(self, before: Circuit, after: Circuit, reason: str, *, learnt: bool = False) -> None:
        """The circuit has changed its state; `learnt` says that another process has done it."""
        ...


class Ticket:
    """Leave to call once. `probe` is its number among the probes, None in a closed circuit."""

    __slots__ = ("era", "probe", "started")

    def __init__(self, era: int, probe: int | None, started: float) -> None:
        self.era = era
        self.probe = probe
        self.started = started


# -- what the closed state counts: pure --------------------------------------------------------------------------------


def counted(
    tally: Tally,
    failed: bool,  # noqa: FBT001 - the outcome
    wall: datetime | None,
    terms: Terms,
) -> tuple[Tally, str | None]:
    """The tally with one outcome more, and the reason to open, if there is one now; `wall` is when a failure came."""
    size, row, last, calls, failures, outcomes = tally
    if not failed and not failures and not row and calls == size:
        return tally, None  # all is well, and has been for a whole window
    row, last = (row + 1, wall) if failed else (0, last)
    rate = terms.failure_rate
    if rate is None:
        reason = f"{row} failure{'s' * (row > 1)} in a row" if row >= terms.failure_threshold else None
        return _tally(Tally, (size, row, last, calls, failures, outcomes)), reason
    if outcomes >> size - 1:  # a failure leaves the window
        outcomes ^= 1 << size - 1
        failures -= 1
    if calls < size:
        calls += 1
    outcomes <<= 1
    reason = None
    if failed:
        outcomes += 1
        failures += 1
        if calls >= terms.min_calls and failures >= rate * calls:
            reason = f"{failures} of the last {calls} calls failed"
    return _tally(Tally, (size, row, last, calls, failures, outcomes)), reason


_tally = tuple.__new__  # without the detour through its own __new__: breakers with a rate count every call


def open_time(terms: Terms, rounds: int, roll: float) -> float:
    """For how many seconds it opens after so many failed rounds of probes."""
    longest = max(terms.reset_timeout, LONGEST_OPEN)
    try:
        seconds = min(terms.reset_timeout * terms.open_growth**rounds, longest)
    except OverflowError:
        seconds = longest
    return min(seconds * (1 - terms.open_jitter + 2 * terms.open_jitter * roll), longest)


# -- how a circuit changes: pure ----------------------------------------------------------------------------------------------


def admitted(circuit: Circuit, now: float, terms: Terms, lease: float, early: float) -> tuple[Circuit, int | None]:
    """The circuit after a call asked to pass, and the number of its probe; None if it may not."""
    if circuit.state is CircuitState.OPEN:
        if now < circuit.retry_on - early:
            return circuit, None
        late = _under_way(circuit, now)
        if len(late) >= terms.half_open_requests:
            return circuit, None  # those of the rounds before hang: one more would hang too
        circuit = replace(circuit, state=CircuitState.HALF_OPEN, era=circuit.era + 1, successes=0, probes=(), late=late)
    alive = _alive(circuit.probes, now)
    if (
        len(alive) + len(_alive(circuit.late, now)) >= terms.half_open_requests
        or len(alive) + circuit.successes >= terms.success_threshold
    ):
        return circuit, None
    number = circuit.issued + 1
    return replace(circuit, probes=(*alive, (number, now + lease)), issued=number), number


def _alive(probes: tuple[tuple[int, float], ...], now: float) -> tuple[tuple[int, float], ...]:
    return tuple(probe for probe in probes if probe[1] > now)


def _under_way(circuit: Circuit, now: float) -> tuple[tuple[int, float], ...]:
    """All probes that have not come back, of this era and of those before."""
    return _alive((*circuit.late, *circuit.probes), now)


def without(circuit: Circuit, probe: int) -> Circuit:
    """The circuit after a probe of an earlier era came back: its place is free, and its answer too old."""
    late = tuple(other for other in circuit.late if other[0] != probe)
    return circuit if late == circuit.late else replace(circuit, late=late)


def probed(
    circuit: Circuit,
    probe: int,
    failed: bool | None,  # noqa: FBT001 - the outcome
    now: float,
    wall: datetime,
    terms: Terms,
    roll: float,
) -> Circuit:
    """The circuit after one of its probes came back; the same one if its lease had ended by then: its place may be another's."""
    if dict(circuit.probes).get(probe, 0.0) <= now:
        return circuit
    left = tuple(other for other in circuit.probes if other[0] != probe)
    if failed:
        rounds, row = circuit.rounds + 1, None if circuit.row is None else circuit.row + 1
        return opened(replace(circuit, probes=left, row=row), now, wall, open_time(terms, rounds, roll), rounds=rounds)
    successes = circuit.successes + (failed is False)
    if successes >= terms.success_threshold:
        return closed(replace(circuit, probes=left))
    return replace(circuit, probes=left, successes=successes)


def opened(circuit: Circuit, now: float, wall: datetime, seconds: float, *, rounds: int) -> Circuit:
    """The circuit, open for so many seconds."""
    return Circuit(
        passing=False,
        state=CircuitState.OPEN,
        era=circuit.era + 1,
        opened_at=wall,
        retry_at=wall + timedelta(seconds=seconds),
        retry_on=now + seconds,
        rounds=rounds,
        late=_under_way(circuit, now),
        issued=circuit.issued,
        row=circuit.row,
    )


def tripped(era: int | None, seconds: float) -> Decide[bool]:
    """Open a circuit that is closed, in this era, or in any; whether it was."""

    def decide(circuit: Circuit, now: float, wall: datetime) -> tuple[Circuit, bool]:
        if circuit.state is not CircuitState.CLOSED or era not in {None, circuit.era}:
            return circuit, False
        return opened(circuit, now, wall, seconds, rounds=0), True

    return decide


def recorded(era: int, *, failed: bool, threshold: int, seconds: float) -> Decide[bool]:
    """
    Count an outcome in the circuit itself, if it is closed and of this era: a failure is one more and opens it at the
    threshold, a success begins at 0 again. Whether it has opened.
    """

    def decide(circuit: Circuit, now: float, wall: datetime) -> tuple[Circuit, bool]:
        if circuit.state is not CircuitState.CLOSED or circuit.era != era:
            return circuit, False
        if not failed:
            return (replace(circuit, row=0) if circuit.row else circuit), False
        row = (circuit.row or 0) + 1
        changed = replace(circuit, row=row)
        return (changed, False) if row < threshold else (opened(changed, now, wall, seconds, rounds=0), True)

    return decide


def isolated(circuit: Circuit, now: float, wall: datetime, reason: str) -> Circuit:
    """The circuit, open until it is reset."""
    return replace(
        opened(circuit, now, wall, 0.0, rounds=circuit.rounds),
        isolated=reason,
        retry_at=datetime.max.replace(tzinfo=UTC),
        retry_on=float("inf"),
    )


def closed(circuit: Circuit) -> Circuit:
    """The circuit, closed. Probes that are still under way count if it opens again before they are back."""
    row = None if circuit.row is None else 0
    return Circuit(era=circuit.era + 1, late=(*circuit.late, *circuit.probes), issued=circuit.issued, row=row)


# -- where it lives ---------------------------------------------------------------------------------------------------------------


class Answer(StrEnum):
    """What a memory says to a call that is neither admitted nor a probe."""

    REJECTED = "rejected"
    AGAIN = "again"  # it has changed: look at it once more
    SOON = "soon"  # the store is being asked: come back in a moment


class LocalMemory:
    """A circuit of this process."""

    moment = 0.002  # seconds after which a call asks again whose answer is on its way

    def __init__(self) -> None:
        self.circuit = Circuit()  # as far as is known here
        self.lock = allocate_lock()

    def swap(self, old: Circuit, new: Circuit) -> bool:
        """Replace the circuit unless somebody else was faster."""
        with self.lock:
            if self.circuit is not old:
                return False
            self.circuit = new
            return True

    def decided(self, decide: Decide[T]) -> tuple[Circuit, Circuit, T]:
        """What the circuit was, what it became, and the answer."""
        while True:
            circuit, clock = self.circuit, here.get().clock
            changed, answer = decide(circuit, clock.monotonic(), clock.now())
            if changed is circuit or self.swap(circuit, changed):
                return circuit, changed, answer

    def change(self, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """Let the circuit become what is decided, and tell what it was, what it is and the answer."""
        then(*self.decided(decide))

    def trip(self, circuit: Circuit, seconds: float, then: Callable[[Circuit, Circuit, bool], object]) -> None:
        """Open a closed circuit, if it is still this one."""
        then(*self.decided(tripped(circuit.era, seconds)))

    def enter(self, terms: Terms) -> Ticket | Answer:
        """Leave for a probe, for a call that found the circuit not passing."""
        lease = max(terms.reset_timeout, PROBE_LEASE)
        circuit, changed, probe = self.decided(lambda seen, now, _: admitted(seen, now, terms, lease, ROUNDING))
        if changed.passing:
            return Answer.AGAIN
        if probe is None:
            return Answer.REJECTED
        if changed.state is not circuit.state:
            terms.told(circuit, changed, "its time is up, probes are admitted")
        return Ticket(changed.era, probe, here.get().clock.monotonic())

    def leave(self, ticket: Ticket, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """As `change`, for a probe that came back."""

        def in_its_era(circuit: Circuit, now: float, wall: datetime) -> tuple[Circuit, Any]:
            return (
                decide(circuit, now, wall) if circuit.era == ticket.era else (without(circuit, ticket.probe or 0), None)
            )

        self.change(in_its_era, then)

    def known(self) -> Circuit:
        """The circuit, for somebody who wants to see it."""
        return self.circuit

    def by_hand(self, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """As `change`, for what a person wants."""
        self.change(decide, then)

    def renew(self) -> None:
        """
        In a forked child: the lock may have been held by a thread that is not here, and probes under way are the
        parent's.
        """
        self.lock = allocate_lock()
        if self.circuit.probes or self.circuit.late:
            self.circuit = replace(self.circuit, probes=(), late=())
