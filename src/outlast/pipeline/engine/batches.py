"""
Stages over many items at a time: who goes together, and what one call means for each of them. Neither waits nor calls.

A `Gathering` holds the items that wait for others at such a stage; a `Convoy` is those that go through one call together. To a driver it looks
like a journey: it begins, succeeds or fails, and then its items go on by themselves (`apart`). What the call's gates are asked (limit, breaker,
budget, timeouts) is asked once for all of them; what a failure means, each item's own policy decides, so that an item that failed alone is
tried again on its own account.

A call that failed as a whole, with nothing left to wait for, is made again in halves until the bad items stand alone: at once, and without a
charge. One bad item among n costs about 2 log2(n) calls, and however many are bad, n items cost at most max_attempts + 2n - 2 calls.
"""

from __future__ import annotations

from collections import deque
from functools import cache, partial
from hashlib import blake2b
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any

from outlast.calls.records import Context, Notes
from outlast.calls.state import Ended, running, standing
from outlast.deciding import REASONS, after_failure
from outlast.errors import PermanentFailure
from outlast.kernel import raised
from outlast.kernel.clock import roll_for, stopping
from outlast.pipeline.engine.attempts import as_failure
from outlast.pipeline.engine.item import NEUTRAL, UNFINISHED, Next, sum_of
from outlast.pipeline.engine.itemcall import StageCall
from outlast.pipeline.stages import Skip, Snooze
from outlast.verdicts import classify, refusal, surely_undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.pipeline.engine.item import Journey, Post
    from outlast.verdicts import Verdict

LINGER = 0.05  # seconds that an item waits for others to go with
# Reasons that may be the fault of one item; the others are about load or the service, and halves would meet them too.
_DIVISIBLE = frozenset(reason for reason, means in REASONS.items() if means.divisible)
_WHOLE = 2.0**53  # up to here every whole number is a float


class Gathering:
    """Takes the place of a stage's line of items. It belongs to the event loop."""

    __slots__ = ("_convoys", "_loose", "_post", "_released", "_size", "due")

    def __init__(self, post: Post, size: int) -> None:
        self._post = post
        self._convoys: deque[Convoy] = deque()
        self._loose: deque[Journey] = deque()
        self._released = 0  # of the loose ones, those that have waited long enough
        self._size = size
        self.due: float | None = None  # when `release` is to be called

    def append(self, traveller: Journey | Convoy) -> None:
        """At the end of the line; a convoy goes before those who are still loose."""
        if isinstance(traveller, Convoy):
            self._convoys.append(traveller)
        else:
            self._loose.append(traveller)

    @property
    def loose(self) -> int:
        """Items that are in no convoy yet."""
        return len(self._loose)

    @property
    def lingering(self) -> bool:
        """Whether somebody waits for others to come."""
        return len(self._loose) > self._released

    def release(self) -> None:
        """Those who are here now need not wait for more."""
        self._released, self.due = len(self._loose), None

    def __bool__(self) -> bool:
        """Whether a convoy can be had now."""
        return bool(self._convoys) or self._released > 0 or len(self._loose) >= self._size

    def popleft(self) -> Convoy:
        if self._convoys:
            return self._convoys.popleft()
        count = min(self._size, len(self._loose))
        self._released = max(0, self._released - count)
        convoy = Convoy(self._post, [self._loose.popleft() for _ in range(count)])
        if not self.lingering:
            self.due = None
        return convoy

    def __len__(self) -> int:
        """How many items are here."""
        return len(self._loose) + sum(len(convoy.journeys) for convoy in self._convoys)

    def __iter__(self) -> Iterator[Journey | Convoy]:
        yield from self._convoys
        yield from self._loose

    def clear(self) -> None:
        self._convoys.clear()
        self._loose.clear()
        self._released, self.due = 0, None


class Convoy:
    """Items that go through one call together, from before it to what came of it."""

    reason: str | None = None
    seated = False  # as for a journey
    wait = 0.0
    why = ""  # what they all wait for
    since = 0.0  # when that began
    seen = 0  # what the flow's `latest` was when the attempt began

    def __init__(
        self, post: Post, journeys: Sequence[Journey], before: Gate | None = None, *, falling: bool = False
    ) -> None:
        """`before` is the call that these items have just come out of together."""
        self.post = post
        self.journeys: Sequence[Journey] = journeys
        self.at = post.index
        self.value = [journey.value for journey in journeys]
        self.call: Gate | None = None
        self.falling = falling
        self.notes: Notes | None = None
        self._before = before
        self._outcome: list[tuple[Journey | Convoy, Next]] = []

    # -- standing in the context

    @property
    def key(self) -> str | None:
        """The item's key, if there is only one."""
        return self.journeys[0].key if len(self.journeys) == 1 else None

    @property
    def started(self) -> float | None:
        """When the first of its items began, if one has."""
        return next((journey.started for journey in self.journeys if journey.started is not None), None)

    @property
    def untouched(self) -> bool:
        """Whether nothing was tried yet with one of its items."""
        return any(journey.untouched for journey in self.journeys)

    def enter(self, call: StageCall) -> None:
        running.set(call)
        standing.set(self)

    def context(self) -> Context:
        """What `current` says where no attempt is prepared: in a fallback."""
        return Context(
            max_attempts=self.post.guard.retry.max_attempts, key=self.idempotency_key, notes=self._take_notes
        )

    def fill(self, context: Context) -> None:
        context.run_id, context.stage = self.post.run.run_id, self.post.name
        context.item_keys = tuple(journey.key for journey in self.journeys)

    def _take_notes(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    def idempotency_key(self) -> str:
        """The same whenever the same items go together."""
        items = ",".join(sorted(f"{journey.seq}.{journey.repaired}" for journey in self.journeys))
        parts = f"{self.post.run.run_id}\x1f{items}\x1f{self.post.name}"
        return blake2b(parts.encode(), digest_size=16).hexdigest()

    # -- before a call

    def begin(self, post: Post) -> Next | None:
        """None: call now. Anything else: not yet, or not at all."""
        gate = self.call
        if gate is None:
            shares = [share for journey in self.journeys if (share := _share_of(journey)) is not None]
            gate = self.call = Gate.of(self, shares)
            gate.follow(self._before)
            if post.guard.cost is not None:
                try:
                    gate.estimate((self.value,), post.kwargs)
                except Exception as error:  # noqa: BLE001 - as for one item
                    for journey in self.journeys:
                        journey.give_up(post.name, error)
                        self._then(journey, Next.END)
                    return self._apart()
        try:
            wait = gate.begin()
        except Exception as error:  # noqa: BLE001 - the end of these items at this stage
            return self.over(post, error)
        if wait is None:
            return None
        self.why = gate.held_up_by()
        if gate.turn is not None:
            return Next.LINE
        self.wait = wait
        return Next.WAIT

    def waited(self, now: float) -> None:
        """What they waited for `since` then has come, or will not come."""
        for journey in self.journeys:
            journey.why, journey.since = self.why, self.since
            journey.waited(now)

    def over(self, post: Post, error: Exception) -> Next:
        """The call cannot be made: those that have tried before end as their last attempt did."""
        gate = self.call
        assert gate is not None  # noqa: S101 - it was asked
        if gate.reason in UNFINISHED:
            self.reason = gate.reason
            return Next.BACK
        for journey in self.journeys:
            share = _share_of(journey)
            if share is None and gate.number:  # only the others were not let in
                self._then(journey, Next.GO)
                continue
            share = share or self._share(journey)
            share.reason = gate.reason
            if isinstance(error, Ended) or (share.number and share.last_error is None):
                self._then(journey, journey.ended(post, share.unwanted))
            else:
                self._then(journey, journey.over(post, share.last_error or error))
        return self._apart()

    # -- after a call

    def succeeded(self, post: Post, result: Any, began: float) -> Next:
        """The call returned."""
        wrong = _mismatch(post, result, len(self.journeys))
        if wrong is not None:
            return self.failed(post, wrong, began, divisible=False)
        gate = self.call
        assert gate is not None  # noqa: S101 - it has begun
        slots = [_slot(one, post) for one in result]
        errors = [one for one in slots if isinstance(one, Exception) and not isinstance(one, Skip | Snooze)]
        gate.came_back(errors, all_of_them=len(errors) == len(slots))
        notes = self._told()
        bare: dict[int, dict[str, Any]] = {}
        asks = post.guard.retry_if is not None
        together = self.roll(gate)
        for journey, slot, said in zip(self.journeys, slots, notes, strict=True):
            journey.post = post
            if isinstance(slot, Exception):
                self._tried(journey, began, said, together)
                self._then(journey, _fail(journey, post, slot, began, bare))
            elif journey.call is None and not asks:
                journey.notes = said
                self._then(journey, journey.passed(post, slot, began))
            else:
                self._tried(journey, began, said, together)
                self._then(journey, journey.succeeded(post, slot, began))
        return self._apart()

    def failed(self, post: Post, error: Exception, began: float, *, divisible: bool = True) -> Next:
        """The call raised, or did not return what it must: that concerns all of them, until it is known whom."""
        gate = self.call
        assert gate is not None  # noqa: S101 - it has begun
        stop = stopping.get()
        if stop is not None and stop.is_set() and not isinstance(error, Skip | Snooze):
            self.keep_only(post, error, began)
            self.reason = "shutdown"
            return Next.BACK
        if isinstance(error, Skip | Snooze):
            gate.interrupted(NEUTRAL)
        else:
            gate.came_back([error], all_of_them=True)
        verdict, roll, bare = classify(error), self.roll(gate), {id(error): dict(raised.fields(error))}
        together: list[Journey] = []
        bad: list[Journey] = []
        for journey, said in zip(self.journeys, self._told(), strict=True):
            journey.post = post
            share = self._tried(journey, began, said, roll)
            _bare(error, bare)
            if divisible and len(self.journeys) > 1 and share.may_divide(error, verdict):
                bad.append(journey)
                journey.parted(post, error, verdict, began)
                continue
            after = _fail(journey, post, error, began, bare)
            if after is Next.WAIT:
                together.append(journey)
            else:
                self._then(journey, after)
        if together:
            rest = Convoy(post, together, gate)
            rest.wait, rest.why = max((journey.wait, journey.why) for journey in together)
            self._outcome.append((rest, Next.WAIT))
        middle = (len(bad) + 1) // 2
        for part in (bad[:middle], bad[middle:]):
            if part:
                self._outcome.append((Convoy(post, part, gate), Next.GO))
        return self._apart()

    def keep_only(self, post: Post, error: Exception, began: float) -> None:
        """The call is on record for each of them, and decides nothing: the run winds down."""
        gate = self.call
        assert gate is not None  # noqa: S101 - it has begun
        verdict, roll = classify(error), self.roll(gate)
        for journey, said in zip(self.journeys, self._told(), strict=True):
            journey.post = post
            self._tried(journey, began, said, roll)
            journey.parted(post, error, verdict, began)

    def cut_short(self, post: Post, began: float) -> None:
        """The run does not wait for this call any longer."""
        self.keep_only(post, InterruptedError("the run was asked to end, and did not wait for this attempt"), began)

    def fell_back(self, post: Post, result: Any = None, error: Exception | None = None) -> Next:
        """The fallback has answered for them, or failed too; it is no attempt."""
        error = error or _mismatch(post, result, len(self.journeys))
        slots = [error] * len(self.journeys) if error is not None else [_slot(one, post) for one in result]
        for journey, slot, said in zip(self.journeys, slots, _portions(self.notes, len(slots)), strict=True):
            journey.notes = said
            failed = isinstance(slot, Exception)
            after = journey.fell_back(post, error=slot) if failed else journey.fell_back(post, slot)
            self._then(journey, after)
        return self._apart()

    def ruined(self, post: Post, error: Exception) -> None:
        """Nobody in here goes on: each of the items has failed."""
        left: list[Journey | Convoy] = list(self.disband())
        while left:
            one = left.pop()
            if isinstance(one, Convoy):
                left += one.disband()
            elif one.status is None:
                one.give_up(post.name, error)
                self._then(one, Next.END)
            else:
                self._then(one, Next.END)

    def outcome(self) -> list[tuple[Journey | Convoy, Next]]:
        """Who goes on now, and how; afterwards nobody is in this convoy any more."""
        outcome, self._outcome, self.journeys = self._outcome, [], ()
        self.call = self._before = None  # which know this convoy, and the errors of its items
        return outcome

    def disband(self) -> Sequence[Journey | Convoy]:
        """Everybody who is in this convoy or has just come out of it."""
        outcome = [one for one, _ in self._outcome] or self.journeys
        self._outcome, self.journeys = [], ()
        return outcome

    def _then(self, journey: Journey, after: Next) -> None:
        self._outcome.append((journey, after))

    def _apart(self) -> Next:
        """Those for whom the fallback answers next go there together."""
        falling = [one for one, _ in self._outcome if not isinstance(one, Convoy) and one.falling]
        if falling:
            self._outcome = [pair for pair in self._outcome if isinstance(pair[0], Convoy) or not pair[0].falling]
            self._outcome.append((Convoy(self.post, falling, falling=True), Next.GO))
        return Next.APART

    # -- each item's part of it

    def _share(self, journey: Journey) -> Share:
        gate = self.call
        assert gate is not None  # noqa: S101 - it has begun
        share = Share(self.post.guard, self.post.name, began=gate.opened, outer=None)
        share.journey, journey.call = journey, share
        return share

    def _tried(self, journey: Journey, began: float, said: Notes | None, roll: Callable[[], float]) -> Share:
        """The item has had one attempt more."""
        gate, share = self.call, _share_of(journey)
        assert gate is not None  # noqa: S101 - it has begun
        if share is None:
            share = self._share(journey)
            if journey.notes is not None:  # said before it snoozed
                said, journey.notes = _both(journey.notes, said), None
        share.world, share.rolled = gate.world, roll
        share.number += 1
        share.attempt_began, share.seen, share.timer = began, gate.seen, gate.timer
        share.asked = share.asked or gate.asked
        if said is not None:
            share.notes = (share.notes or {}) | {share.number: _both((share.notes or {}).get(share.number), said)}
        return share

    def roll(self, gate: Gate) -> Callable[[], float]:
        """One roll for all items of a call, that of the first: those that failed alike wait alike, and come back together."""
        first, tries = self.journeys[0], gate.tries
        return cache(partial(roll_for, self.post.run.run_id, self.post.name, first.key, tries + first.numbered))

    def _told(self) -> list[Notes | None]:
        """What the code has said during the call, as each item's part of it."""
        gate = self.call
        assert gate is not None  # noqa: S101 - it has begun
        return _portions((gate.notes or {}).get(gate.number), len(self.journeys))


class Gate(StageCall):
    """The call for all of them, as far as it asks for leave and for time."""

    journey: Any  # the convoy
    opened = 0.0
    heard = False  # each item tells its own

    def roll(self) -> float:
        roll: float = self.journey.roll(self)()
        return roll

    @classmethod
    def of(cls, convoy: Convoy, shares: list[Share]) -> Gate:
        """It goes on from where the item is that has tried most."""
        guard, name, tried = convoy.post.guard, convoy.post.name, [share for share in shares if share.tries]
        if not tried:
            gate = cls(guard, name)
            gate.opened = gate.began
        else:
            first = max(tried, key=lambda share: share.number)
            gate = cls.resumed(
                guard,
                name,
                number=first.number,
                began=min(share.began for share in tried),
                previous=first.previous,
                last_error=first.last_error,
                rows=first.rows,
            )
            gate.uncharged = first.tries - first.number
            gate.opened = gate.world.clock.monotonic()
            # What is tried again is a retry of one call, however many items are in it.
            if guard.retry_budget is not None and first.number > 0 and gate.world.retries:
                gate.owing = gate.opened
        gate.journey = convoy
        return gate

    def follow(self, before: Gate | None) -> None:
        if before is not None:
            self.thread = before.thread  # it may still run

    def came_back(self, errors: list[Exception], *, all_of_them: bool) -> None:
        """The service has failed if nothing worked; one refusal is enough for it to ask for less."""
        if not self.world.retries:
            return
        if not all_of_them:
            refused = next((error for error in errors if refusal(error, classify(error)) is not None), None)
            if refused is not None and self.entry >= 0:
                self._leave(refused, classify(refused))
            super().succeeded(None)
            return
        verdict = classify(errors[0]) if errors else None
        if errors:
            self._settle(errors[0], verdict)
            self._leave(errors[0], verdict)

    def _is_unwanted(self, result: object) -> bool:  # noqa: ARG002 - each item's own output is asked about
        return False


class Share(StageCall):
    """One item's part in calls for many: the policy's answers, and nothing that was asked for all of them."""

    gated = False  # the call for all of them was asked
    parted = 0  # attempts in a call that was made again in halves
    rolled: Callable[[], float]  # for all items of the call

    @property
    def tries(self) -> int:
        return super().tries + self.parted

    def roll(self) -> float:
        return self.rolled()

    def may_divide(self, error: Exception, verdict: Verdict) -> bool:
        """Whether nothing is left to wait for, and one of the others may be the cause; if so, the attempt is not charged."""
        if isinstance(error, Skip | Snooze) or verdict.fatal or not self.world.retries:
            return False
        if refusal(error, verdict) is not None or not (self.guard.idempotent or surely_undone(error, verdict)):
            return False  # halves are other calls, with other keys: what may have been done must not be done twice
        says, owned, cut_short = self._first_facts(error, verdict)
        if after_failure(says, owned=owned, cut_short=cut_short) not in _DIVISIBLE or self._too_late(0.0):
            return False
        self.number -= 1
        self.parted += 1
        return True

    def succeeded(self, result: object) -> float | None:
        if self.number > 1 or not self.world.retries:
            return super().succeeded(result)
        unwanted = self.guard.retry_if is not None and self._is_unwanted(result)
        return self._another(result) if unwanted else None


def _share_of(journey: Journey) -> Share | None:
    call = journey.call
    return call if isinstance(call, Share) else None


def _fail(journey: Journey, post: Post, error: Exception, began: float, bare: dict[int, dict[str, Any]]) -> Next:
    """Tell the item of an error that others may be told of too."""
    _bare(error, bare)
    return journey.failed(post, error, began)


def _bare(error: Exception, bare: dict[int, dict[str, Any]]) -> None:
    """An item must not find on an error what the flow has told about another one."""
    known = bare.setdefault(id(error), dict(raised.fields(error)))
    fields = raised.fields(error)
    fields.clear()
    fields.update(known)


def _slot(one: Any, post: Post) -> Any:
    """What a function has put into one place of its list."""
    if isinstance(one, KeyboardInterrupt):
        raise one
    return as_failure(one, post) if isinstance(one, BaseException) else one


def _mismatch(post: Post, result: Any, count: int) -> Exception | None:
    if isinstance(result, list | tuple):
        if len(result) == count:
            return None
        got = f"a list of {len(result)}"
    else:
        got = f"a value of type {type(result).__name__}"
    message = (
        f"expected the batch stage {post.name} to return a list with one output for each of its {count} items, "
        f"in their order, got: {got}"
    )
    return PermanentFailure(message, error_class="code_error")


# -- what was spent, in parts ---------------------------------------------------------------------------------------------------------


def portions(amount: float, count: int) -> list[float]:
    """
    An amount in so many parts, as equal as can be, whose sum is exactly the amount, in whatever order they are added.

    >>> portions(100.0, 3), sum(portions(0.1, 7)) == 0.1
    ([34.0, 33.0, 33.0], True)
    """
    if amount.is_integer() and amount <= _WHOLE:
        whole, exponent = int(amount), 0
    else:
        fraction, power = frexp(amount)
        whole, exponent = int(ldexp(fraction, 53)), power - 53
    part, left = divmod(whole, count)
    return [ldexp(float(part + (place < left)), exponent) for place in range(count)]


def _portions(notes: Notes | None, count: int) -> list[Notes | None]:
    if notes is None:
        return [None] * count
    parts = [Notes() for _ in range(count)]
    for name, amount in notes.spent.items():
        for part, portion in zip(parts, portions(amount, count), strict=True):
            part.spent[name] = portion
    for part in parts:
        part.warnings = [*notes.warnings]
    return [*parts]


def _both(old: Notes | None, new: Notes | None) -> Notes:
    made = Notes()
    for notes in (old, new):
        if notes is not None:
            made.warnings += notes.warnings
            made.spent = sum_of(made.spent, notes.spent)
    return made
