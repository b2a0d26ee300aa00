"""
Circuits that processes share: a document in a store, by the store's own clock, and what each process knows of it.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.breaker.circuit import (
    PROBE_LEASE,
    ROUNDING,
    Answer,
    Circuit,
    CircuitState,
    LocalMemory,
    Ticket,
    admitted,
    closed,
    isolated,
    opened,
    tripped,
    without,
)
from outlast.kernel.clock import here
from outlast.sharing.contact import PATIENCE, Unreachable, on_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from outlast.breaker.circuit import Decide, Terms
    from outlast.sharing.contact import Commons, Contact
    from outlast.sharing.named import Bond

T = TypeVar("T")
_COARSE = 0.005  # how early a probe may be by a store's clock, which may tick in milliseconds
_SHARED_LEASE = 5.0  # a probe of a process that has not been heard of for so long
_RENEW = 1.5  # seconds between two signs of life
_CLAIM = 0.5  # seconds in which somebody must use a probe that was asked for
_DOZE = 20.0  # seconds without use after which a circuit is no longer looked at
_JUMP = 1.0  # seconds by which a store's clock may be behind what it said before
_LONGEST_MOMENT = 0.1  # seconds after which a call comes back for an answer, however many wait for it


# -- as a document --------------------------------------------------------------------------------------------------------------


def written(circuit: Circuit) -> dict[str, Any]:
    """
    A circuit by a store's clock, as others can read it. `failures` is there only if they are counted in it: versions
    that know nothing of that read all the rest, and leave it out of what they write.
    """
    counted = {} if circuit.row is None else {"failures": circuit.row}
    return {
        "shared": True,
        "state": circuit.state.value,
        "era": circuit.era,
        "opened_at": None if circuit.opened_at is None else circuit.opened_at.timestamp(),
        "retry_at": None if circuit.retry_on == float("inf") else circuit.retry_on,
        "rounds": circuit.rounds,
        "successes": circuit.successes,
        "probes": [list(probe) for probe in circuit.probes],
        "late": [list(probe) for probe in circuit.late],
        "issued": circuit.issued,
        "isolated": circuit.isolated,
        **counted,
    }


def read(document: Mapping[str, Any] | None, now: float) -> Circuit:
    """
    The circuit in a document. What a clock that was set back makes impossible is over: an opening in the future, a
    lease longer than any.
    """
    try:
        return Circuit() if document is None else _read(document, now)
    except (KeyError, TypeError, ValueError, OverflowError):
        return Circuit()  # nobody here has written that


def _read(document: Mapping[str, Any], now: float) -> Circuit:
    state = CircuitState(document["state"])
    late = _probes(document.get("late", ()), now)  # not there before this was counted
    failures = document.get("failures")
    row = None if failures is None else max(0, int(failures))
    if state is CircuitState.CLOSED:
        return Circuit(era=int(document["era"]), late=late, issued=int(document["issued"]), row=row)
    opened_at, retry_at, hand = document["opened_at"], document["retry_at"], document["isolated"]
    retry_on = float("inf") if hand is not None or retry_at is None else float(retry_at)
    if opened_at is not None and opened_at > now + _JUMP and hand is None:
        retry_on = min(retry_on, now)
    return Circuit(
        passing=False,
        state=state,
        era=int(document["era"]),
        opened_at=None if opened_at is None else instant(opened_at),
        retry_at=datetime.max.replace(tzinfo=UTC) if retry_on == float("inf") else instant(retry_on),
        retry_on=retry_on,
        rounds=int(document["rounds"]),
        successes=int(document["successes"]),
        probes=_probes(document["probes"], now),
        late=late,
        issued=int(document["issued"]),
        isolated=hand,
        row=row,
    )


def _probes(written: Iterable[Any], now: float) -> tuple[tuple[int, float], ...]:
    probes = ((int(number), float(until)) for number, until in written)
    return tuple(probe for probe in probes if probe[1] <= now + _SHARED_LEASE + _JUMP)


def by_hand(document: Mapping[str, Any] | None, now: float, reason: str | None) -> dict[str, Any]:
    """The document of a circuit that somebody isolates for a reason, or resets."""
    circuit = read(document, now)
    return written(closed(circuit) if reason is None else isolated(circuit, now, instant(now), reason))


def instant(seconds: float) -> datetime:
    """Seconds since the epoch, aware and in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


# -- known here ---------------------------------------------------------------------------------------------------------------


class SharedMemory(LocalMemory):
    """
    A circuit that processes share: a document in a store, and what is known of it here.

    Whatever changes the circuit changes the document, in one transaction and by the store's clock. `circuit` is the
    document as it was last seen, on this process's clock and in eras of its own, which only grow. A closed circuit is
    `passing`: its calls ask nobody. What others do with it is learnt in the background, a few times a second while it
    is in use. It is not `passing` before anybody has looked, and again after a while without use ("asleep"): then the
    next call looks first.

    A call that an open circuit may admit as a probe asks for it. In a thread it waits for the answer; in an event loop
    it is told to come back. A probe that was granted meanwhile is there for whoever comes first. Its lease is short and
    renewed while its call is under way: a process that is killed gives its place back with that.

    While the store is lost, the circuit is decided about here alone ("astray"). When it is back, what stands there
    counts, except that an opening here is published if nobody has changed anything since, and what was done by hand in
    any case.
    """

    def __init__(self, bond: Bond) -> None:
        super().__init__()
        self.circuit = Circuit(passing=False)
        self.bond = bond
        self.terms: Callable[[], Terms | None] = lambda: None
        self._seen: int | None = None  # the era in the document
        self._ahead = 0  # what our eras are ahead of that
        self._astray = False
        self._changed = False  # whether it was changed here alone
        self._by_hand = False  # and that on somebody's wish
        self._attended = False
        self._fresh = False  # whether somebody has looked since
        self._used = False
        self._dozed_at = 0.0
        self._asking: float | None = None  # since when the store is being asked for a look or a probe
        self._soon = 0  # calls that were told to come back since then
        self._opening = set[object]()  # openings that are on their way to the store
        self._counting = set[object]()  # outcomes that are
        self._failed_last = False  # whether the last of those was a failure
        self._granted: deque[tuple[Ticket, float]] = deque()
        self._probes: dict[Ticket, tuple[float, float]] = {}  # under way, of any era: (since, last sign of life)

    # -- calls

    def enter(self, terms: Terms) -> Ticket | Answer:
        """Leave for a probe, for a call that found the circuit not passing."""
        contact = self.bond.contact()
        if contact is None:
            return self._alone(terms)
        now = here.get().clock.monotonic()
        self.terms = weakref.ref(terms)
        self._attend(contact)
        if contact.lost:
            self._go_astray()
        if self._astray:
            return self._alone(terms)
        with self.lock:
            circuit, fresh = self.circuit, self._fresh
            if fresh and circuit.state is CircuitState.CLOSED:
                self._wake()
                return Answer.AGAIN
        if fresh:
            ticket = self._claimed(circuit.era, now)
            if ticket is not None:
                return ticket
            if admitted(circuit, now, terms, _SHARED_LEASE, ROUNDING)[1] is None:
                return Answer.REJECTED  # as far as is known; that is never older than the last look
        return self._ask(contact, terms, now, probing=fresh)

    @property
    def moment(self) -> float:  # type: ignore[override]
        """Longer the more are waiting: thousands that come back at once would keep the answer itself from coming."""
        return min(_LONGEST_MOMENT, LocalMemory.moment * max(1.0, self._soon / 4))

    def _alone(self, terms: Terms) -> Ticket | Answer:
        with self.lock:
            self._wake()
            if self.circuit.passing:
                return Answer.AGAIN
        circuit = self.circuit
        answer = super().enter(terms)
        if self.circuit is not circuit:
            self._changed = True
        return answer

    def _wake(self) -> None:
        """Under the lock."""
        if self.circuit.state is CircuitState.CLOSED and not self.circuit.passing:
            self.circuit = replace(self.circuit, passing=True)

    def _claimed(self, era: int, now: float) -> Ticket | None:
        while self._granted:
            try:
                ticket, _ = self._granted.popleft()
            except IndexError:
                return None
            if ticket.era == era:
                ticket.started = now
                self._probes[ticket] = (now, now)
                return ticket
        return None

    def _ask(self, contact: Contact, terms: Terms, now: float, *, probing: bool) -> Answer:
        """
        Look at the document, or ask for a probe; one call of this process at a time does, the others wait for what
        comes of it.
        """
        with self.lock:
            since = self._asking
            if since is None:
                self._asking = now
                self._soon = 0
            self._soon += 1
        if since is not None:
            if now - since > PATIENCE:
                contact.lose(f"no answer within {PATIENCE:g} s")
            return Answer.SOON

        def question(commons: Commons) -> tuple[Circuit, Circuit, int | None] | None:
            try:
                if not probing:
                    self._look(commons)
                    return None
                found = self._through(commons, lambda seen, now, _: admitted(seen, now, terms, _SHARED_LEASE, _COARSE))
            finally:
                self._asking = None
            _, changed, probe = found
            if probe is not None:
                now = here.get().clock.monotonic()
                self._granted.append((Ticket(changed.era, probe, now), now))
            return found

        def tell(found: tuple[Circuit, Circuit, int | None] | None) -> None:
            if found is not None and found[2] is not None and found[0].state is not found[1].state:
                terms.told(found[0], found[1], "its time is up, probes are admitted")

        def otherwise() -> None:
            self._asking = None

        if on_loop():
            contact.post(question, tell, otherwise)
            return Answer.SOON
        try:
            tell(contact.ask(question))
        except Unreachable:
            otherwise()
        return Answer.AGAIN

    def change(self, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """
        Let the circuit become what is decided, in the store if that can be asked; in an event loop nobody waits for it.
        """
        contact = self._contact()
        if contact is None:
            self._change_here(decide, then)
            return

        def question(commons: Commons) -> tuple[Circuit, Circuit, T]:
            return self._through(commons, decide)

        def otherwise() -> None:
            self._go_astray()
            self._change_here(decide, then)

        _put(contact, question, then, otherwise)

    def _change_here(self, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        circuit, changed, answer = self.decided(decide)
        if changed is not circuit:
            self._changed = True
        then(circuit, changed, answer)

    def by_hand(self, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """As `change`, for what a person wants: it is not forgotten if the store cannot be asked."""

        def noted(before: Circuit, after: Circuit, answer: T) -> None:
            self._by_hand = self._astray
            then(before, after, answer)

        self.change(decide, noted)

    def trip(self, circuit: Circuit, seconds: float, then: Callable[[Circuit, Circuit, bool], object]) -> None:
        """Open a closed circuit, if it is still this one: here at once, and in the store if nobody was faster there."""
        contact = self._contact()
        if contact is not None and contact.lost:
            self._go_astray()
        if contact is None or self._astray:
            self._change_here(tripped(circuit.era, seconds), then)
            return
        clock, token = here.get().clock, object()
        with self.lock:
            if self.circuit.era != circuit.era or self.circuit.state is not CircuitState.CLOSED:
                return
            era = self._seen
            local = self.circuit = opened(circuit, clock.monotonic(), clock.now(), seconds, rounds=0)
            self._opening.add(token)
            self._changed = True

        def question(commons: Commons) -> tuple[Circuit, Circuit, bool]:
            self._opening.discard(token)
            before, after, done = self._through(commons, tripped(None, seconds), only=era)
            return before, after, bool(done)

        def otherwise() -> None:
            self._opening.discard(token)
            self._go_astray()
            then(circuit, local, True)  # noqa: FBT003 - it was opened

        _put(contact, question, then, otherwise)

    def count(self, decide: Decide[bool], then: Callable[[Circuit, Circuit, bool], object], *, failed: bool) -> None:
        """
        As `change`, for an outcome that the circuit itself counts. A success changes nothing where no failure is known
        of, nor behind another one: then nobody is asked, so that the store never has more to do than there are failures.
        """
        contact = self._contact()
        if contact is not None and contact.lost:
            self._go_astray()
        if contact is None or self._astray:
            self._count_here(decide, then)
            return
        token = object()
        with self.lock:
            pending, known = bool(self._counting), self._fresh and not self.circuit.row
            if not failed and (known if not pending else not self._failed_last):
                return
            self._failed_last = failed
            self._counting.add(token)

        def question(commons: Commons) -> tuple[Circuit, Circuit, bool]:
            try:
                return self._through(commons, decide)
            finally:
                self._counting.discard(token)

        def otherwise() -> None:
            self._counting.discard(token)
            self._go_astray()
            self._count_here(decide, then)

        _put(contact, question, then, otherwise)

    def _count_here(self, decide: Decide[bool], then: Callable[[Circuit, Circuit, bool], object]) -> None:
        """From what was last known on. What it comes to is news to others only if it opens the circuit."""
        circuit, changed, opened = self.decided(decide)
        if opened:
            self._changed = True
        then(circuit, changed, opened)

    def leave(self, ticket: Ticket, decide: Decide[T], then: Callable[[Circuit, Circuit, T], object]) -> None:
        """As `change`, for a probe that came back."""
        ours = self._probes.pop(ticket, None)
        if ours is None and ticket.era != self.circuit.era:
            # Granted here alone, or given up: the store knows nothing of it, and there its number may be another's.
            if self._astray:
                self.decided(lambda circuit, _, __: (without(circuit, ticket.probe or 0), None))
            return
        super().leave(ticket, decide, then)

    def known(self) -> Circuit:
        """
        The circuit, for somebody who wants to see it: after a look, if nobody has looked lately and nobody would be
        held up by it.
        """
        if not self._attended and not on_loop():
            contact = self.bond.contact()
            if contact is not None:
                try:
                    contact.ask(self._look)
                except Unreachable:
                    return self.circuit
        return self.circuit

    def _contact(self) -> Contact | None:
        """The contact, for something that changes the circuit; whoever does that uses it."""
        contact = self.bond.contact()
        if contact is not None:
            self._attend(contact)
        return contact

    def _attend(self, contact: Contact) -> None:
        with self.lock:
            attended, self._attended, self._used = self._attended, True, True
            if not attended:
                self._dozed_at = here.get().clock.monotonic()
        if not attended:
            contact.attend(self)

    # -- the document: in the contact's thread

    def _through(self, commons: Commons, decide: Decide[T], *, only: int | None = None) -> tuple[Circuit, Circuit, T]:
        """Decide about the document, and take over what it is now; not if it is of another era than `only`."""
        if self._astray:
            self._come_back(commons)
        return self._transact(commons, decide, only)

    def _transact(self, commons: Commons, decide: Decide[T], only: int | None) -> tuple[Circuit, Circuit, T]:
        monotonic = here.get().clock.monotonic

        def change(
            document: Mapping[str, Any] | None, now: float
        ) -> tuple[dict[str, Any] | None, tuple[Circuit, Circuit, Any, int, float]]:
            seen = read(document, now)
            ours = replace(seen, era=self._era(seen.era))
            changed, answer = decide(ours, now, instant(now)) if only in {None, seen.era} else (ours, None)
            era = seen.era + changed.era - ours.era
            found = (ours, changed, answer, era, monotonic() - now)
            return None if changed is ours else written(replace(changed, era=era)), found

        before, after, answer, era, shift = commons.change("breaker", self.bond.name, change)
        after = self._take_over(_shifted(after, shift), era, learnt=after.era == before.era)
        return _shifted(before, shift), after, answer

    def _look(self, commons: Commons) -> None:
        if self._astray:
            self._come_back(commons)
            return
        document, now = commons.look("breaker", self.bond.name)
        if document is None:  # so that others can see that there is such a circuit
            commons.change("breaker", self.bond.name, lambda there, _: (None if there else written(Circuit()), None))
        seen = read(document, now)
        ours = replace(seen, era=self._era(seen.era))
        self._take_over(_shifted(ours, here.get().clock.monotonic() - now), seen.era, learnt=True)

    def _era(self, era: int) -> int:
        """The document's era in ours. One that is new to us comes after all we had."""
        return era + self._ahead if era == self._seen and not self._changed else self.circuit.era + 1

    def _take_over(self, circuit: Circuit, era: int, *, learnt: bool) -> Circuit:
        with self.lock:
            before = self.circuit
            if self._opening and circuit.state is CircuitState.CLOSED:
                return circuit  # what we have is newer, and on its way
            self._seen, self._ahead, self._changed = era, circuit.era - era, False
            self._astray = self._by_hand = False
            self._fresh = self._attended
            if circuit.state is CircuitState.CLOSED:
                # Nothing of a closed circuit changes, except what it counts and that it falls asleep; and one that nobody
                # looks at sleeps.
                if before.era == circuit.era:
                    circuit = before if before.row == circuit.row else replace(before, row=circuit.row)
                else:
                    circuit = replace(circuit, passing=self._attended)
            self.circuit = circuit
        if learnt and (before.state is not circuit.state or (before.era != circuit.era and not circuit.passing)):
            terms = self.terms()
            if terms is not None:
                terms.told(before, circuit, _learnt(circuit), learnt=True)
        return circuit

    # -- in the background

    def attend(self, contact: Contact) -> bool:
        """Look what is new, give signs of life, give back what nobody uses; False when nobody has used it for a while."""
        now = here.get().clock.monotonic()
        if not self._in_use(now):
            return False
        if contact.lost:
            self._go_astray()
        if unclaimed := [ticket for ticket, since in tuple(self._granted) if now - since > _CLAIM]:
            for ticket in unclaimed:
                self._unclaimed(contact, ticket)
        elif any(now - sign > _RENEW for _, sign in tuple(self._probes.values())):
            contact.asked(self._sign)
        else:
            contact.asked(self._look)
        return True

    def _in_use(self, now: float) -> bool:
        with self.lock:
            if now - self._dozed_at < _DOZE:
                return True
            self._dozed_at = now
            used, self._used = self._used or self._by_hand or bool(self._probes), False
            if self.circuit.passing:
                self.circuit = replace(self.circuit, passing=False)  # the next call wakes it up
                return True
            self._attended = self._fresh = used
            return used

    def _unclaimed(self, contact: Contact, ticket: Ticket) -> None:
        entry = next((entry for entry in tuple(self._granted) if entry[0] is ticket), None)
        try:
            self._granted.remove(entry)  # type: ignore[arg-type]
        except ValueError:
            return  # claimed after all
        contact.asked(lambda commons: self._through(commons, lambda seen, _, __: (_without(seen, ticket), None)))

    def _sign(self, commons: Commons) -> None:
        """Renew the leases of our probes, of each as long as a probe may take."""
        now, terms = here.get().clock.monotonic(), self.terms()
        longest = PROBE_LEASE if terms is None else max(terms.reset_timeout, PROBE_LEASE)
        alive = {}
        for ticket, (since, _) in tuple(self._probes.items()):
            if now - since > longest:
                self._probes.pop(ticket, None)
            elif ticket in self._probes:  # it may have come back meanwhile
                alive[ticket.probe] = ticket.era
                self._probes[ticket] = (since, now)

        def renewed(seen: Circuit, now: float, _: datetime) -> tuple[Circuit, None]:
            probes = tuple(
                (number, now + _SHARED_LEASE if until > now and alive.get(number) == seen.era else until)
                for number, until in seen.probes
            )
            late = tuple(
                (number, now + _SHARED_LEASE if until > now and alive.get(number, seen.era) < seen.era else until)
                for number, until in seen.late
            )
            same = probes == seen.probes and late == seen.late
            return (seen if same else replace(seen, probes=probes, late=late)), None

        self._through(commons, renewed)

    def part(self, contact: Contact) -> None:
        """The process ends: its probes will not come back."""
        tickets = [*self._probes] + [ticket for ticket, _ in self._granted]
        self._probes.clear()
        self._granted.clear()
        if not tickets or self._astray:
            return

        def gone(seen: Circuit, _: float, __: datetime) -> tuple[Circuit, None]:
            for ticket in tickets:
                seen = _without(seen, ticket)
            return seen, None

        contact.asked(lambda commons: self._through(commons, gone))

    # -- alone

    def _go_astray(self) -> None:
        with self.lock:
            if self._astray:
                return
            self._astray = True
            self._granted.clear()
            # Those of this process are still under way, and the only ones that it will hear of.
            longest = PROBE_LEASE if (terms := self.terms()) is None else max(terms.reset_timeout, PROBE_LEASE)
            late = tuple((ticket.probe or 0, since + longest) for ticket, (since, _) in self._probes.items())
            self._probes.clear()
            self._wake()
            if self.circuit.state is not CircuitState.CLOSED:
                # Probes that are granted here must not be taken for those that others were granted.
                self._changed = True
                self.circuit = replace(self.circuit, era=self.circuit.era + 1, probes=(), late=late)

    def _come_back(self, commons: Commons) -> None:
        """The store can be asked again."""
        here_now = here.get().clock.monotonic()
        mine, by_hand, changed = self.circuit, self._by_hand, self._changed

        def reconciled(seen: Circuit, now: float, wall: datetime) -> tuple[Circuit, bool]:
            if by_hand and mine.isolated is not None:
                return isolated(seen, now, wall, mine.isolated), True
            left = mine.retry_on - here_now
            if changed and mine.state is CircuitState.OPEN and (seen.passing or by_hand) and left > 0:
                return replace(opened(seen, now, wall, left, rounds=mine.rounds), opened_at=mine.opened_at), True
            return (closed(seen), True) if by_hand else (seen, False)

        # Only what others did since is news; an opening of theirs and a closing outweighs one of ours.
        self._transact(commons, reconciled, None if by_hand else self._seen)

    def renew(self) -> None:
        """In a forked child: nothing is known yet, and probes are the parent's."""
        super().renew()
        self._attended = self._fresh = self._used = False
        self._asking = None
        self._opening.clear()
        self._counting.clear()
        self._granted.clear()
        self._probes.clear()
        if self.circuit.passing:
            self.circuit = replace(self.circuit, passing=False)


def _shifted(circuit: Circuit, seconds: float) -> Circuit:
    """The circuit on another clock, which shows so much more."""
    if circuit.state is CircuitState.CLOSED:
        return circuit
    probes = tuple((number, until + seconds) for number, until in circuit.probes)
    late = tuple((number, until + seconds) for number, until in circuit.late)
    return replace(circuit, retry_on=circuit.retry_on + seconds, probes=probes, late=late)


def _without(circuit: Circuit, ticket: Ticket) -> Circuit:
    if circuit.era != ticket.era:
        return without(circuit, ticket.probe or 0)
    left = tuple(probe for probe in circuit.probes if probe[0] != ticket.probe)
    return circuit if left == circuit.probes else replace(circuit, probes=left)


def _learnt(circuit: Circuit) -> str:
    if circuit.isolated is not None:
        return f"isolated: {circuit.isolated}"
    return "another process has found out"


def _put(
    contact: Contact,
    question: Callable[[Commons], tuple[Circuit, Circuit, T]],
    then: Callable[[Circuit, Circuit, T], object],
    otherwise: Callable[[], None],
) -> None:
    """Have the store asked; in an event loop nobody waits for the answer."""
    if on_loop():
        contact.post(question, lambda found: then(*found), otherwise)
        return
    try:
        found = contact.ask(question)
    except Unreachable:
        otherwise()
    else:
        then(*found)
