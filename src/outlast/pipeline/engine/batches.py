"""
Stages over many items at a time: which items go together, and what one call means for each. It neither waits nor calls.

A `GroupQueue` holds the items that wait for others at such a stage; a `Group` is items that go through one call
together. To a driver it looks like an item: it begins, succeeds or fails, and then its items go on by themselves
(`outcome`). Limit, breaker, budget and timeouts are asked once for all of them; what a failure means is decided by each
item's own policy, so that an item that failed alone is tried again on its own account.

A call that failed as a whole, with nothing left to wait for, is made again in halves until the bad items stand alone:
at once, and without a charge. One bad item among n costs about 2 log2(n) calls, and however many are bad, n items cost
at most max_attempts + 2n - 2 calls.
"""

from __future__ import annotations

from collections import deque
from functools import cache, partial
from hashlib import blake2b
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any

from outlast.calls.records import Context, Notes
from outlast.calls.state import Ended, current_work, running
from outlast.deciding import REASONS, after_failure
from outlast.errors import PermanentFailure
from outlast.kernel import raised
from outlast.kernel.clock import roll_for
from outlast.pipeline.engine.attempts import as_failure
from outlast.pipeline.engine.item import NEUTRAL, UNFINISHED, Next, sum_of
from outlast.pipeline.engine.itemcall import StageCall
from outlast.pipeline.stages import Skip, Snooze
from outlast.verdicts import classify, refusal, surely_undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.pipeline.engine.item import Item, RunStage
    from outlast.verdicts import Verdict
    from outlast.work.timers import Timer

LINGER = 0.05  # seconds that an item waits for others to go with
# Reasons that may be the fault of one item; the others are about load or the service, and halves would meet them too.
_DIVISIBLE = frozenset(reason for reason, means in REASONS.items() if means.divisible)
_WHOLE = 2.0**53  # up to here every whole number is a float


class GroupQueue:
    """The queue of a batch stage: it makes groups of the items that wait. Only the event loop uses it."""

    __slots__ = ("_groups", "_loose", "_released", "_size", "_stage", "timer")

    def __init__(self, stage: RunStage, size: int) -> None:
        self._stage = stage
        self._groups: deque[Group] = deque()
        self._loose: deque[Item] = deque()
        self._released = 0  # how many loose items have waited long enough
        self._size = size
        self.timer: Timer[Any] | None = None  # rings when `release` is to be called

    def append(self, unit: Item | Group) -> None:
        """Put it at the end; a group goes before items that are still loose."""
        if isinstance(unit, Group):
            self._groups.append(unit)
        else:
            self._loose.append(unit)

    @property
    def loose(self) -> int:
        """Items that are in no group yet."""
        return len(self._loose)

    @property
    def lingering(self) -> bool:
        """Whether an item waits for others to come."""
        return len(self._loose) > self._released

    def release(self) -> None:
        """The items that are here now need not wait for more."""
        self._released = len(self._loose)
        self._no_timer()

    def _no_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __bool__(self) -> bool:
        """Whether a group can be had now."""
        return bool(self._groups) or self._released > 0 or len(self._loose) >= self._size

    def popleft(self) -> Group:
        """The next group."""
        if self._groups:
            return self._groups.popleft()
        count = min(self._size, len(self._loose))
        self._released = max(0, self._released - count)
        group = Group(self._stage, [self._loose.popleft() for _ in range(count)])
        if not self.lingering:
            self._no_timer()
        return group

    def __len__(self) -> int:
        """How many items are here."""
        return len(self._loose) + sum(len(group.items) for group in self._groups)

    def __iter__(self) -> Iterator[Item | Group]:
        yield from self._groups
        yield from self._loose

    def clear(self) -> None:
        """Take all out."""
        self._groups.clear()
        self._loose.clear()
        self._released = 0
        self._no_timer()


class Group:
    """Items that go through one call together: before the call, during it, and with its outcome."""

    reason: str | None = None
    wait = 0.0
    why = ""  # what they all wait for
    since = 0.0  # when that began
    seen = 0  # the value of `calls.state.latest` when the attempt began

    def __init__(
        self, stage: RunStage, items: Sequence[Item], before: GroupCall | None = None, *, needs_fallback: bool = False
    ) -> None:
        """`before` is the call that these items have just come out of together."""
        self.stage = stage
        self.items: Sequence[Item] = items
        self.at = stage.index
        self.value = [item.value for item in items]
        self.call: GroupCall | None = None
        self.needs_fallback = needs_fallback
        self.notes: Notes | None = None
        self._before = before
        self._outcome: list[tuple[Item | Group, Next]] = []

    # -- as the current work of the context

    @property
    def key(self) -> str | None:
        """The item's key, if there is only one."""
        return self.items[0].key if len(self.items) == 1 else None

    @property
    def started(self) -> float | None:
        """When the first of its items began, if one has."""
        return next((item.started for item in self.items if item.started is not None), None)

    @property
    def untouched(self) -> bool:
        """Whether nothing was tried yet with one of its items."""
        return any(item.untouched for item in self.items)

    def enter(self, call: StageCall) -> None:
        running.set(call)
        current_work.set(self)

    def context(self) -> Context:
        """What `current` says where no attempt is prepared: in a fallback."""
        return Context(
            max_attempts=self.stage.guard.retry.max_attempts, key=self.idempotency_key, notes=self._take_notes
        )

    @property
    def told(self) -> dict[str, Any]:
        """Of items, events of calls that are made in a stage say nothing."""
        return {}

    def fill(self, context: Context) -> None:
        context.run_id, context.stage = self.stage.run.run_id, self.stage.name
        context.item_keys = tuple(item.key for item in self.items)

    def _take_notes(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    def idempotency_key(self) -> str:
        """The same whenever the same items go together."""
        items = ",".join(sorted(f"{item.seq}.{item.repaired}" for item in self.items))
        parts = f"{self.stage.run.run_id}\x1f{items}\x1f{self.stage.name}"
        return blake2b(parts.encode(), digest_size=16).hexdigest()

    # -- before a call

    def begin(self, stage: RunStage) -> Next | None:
        """None: call now. Anything else: not yet, or not at all."""
        call = self.call
        if call is None:
            members = [member for item in self.items if (member := _member_of(item)) is not None]
            call = self.call = GroupCall.of(self, members)
            call.follow(self._before)
            if stage.guard.cost is not None:
                try:
                    call.estimate((self.value,), stage.kwargs)
                except Exception as error:  # noqa: BLE001 - as for one item
                    for item in self.items:
                        item.give_up(stage.name, error)
                        self._then(item, Next.END)
                    return self._disbanded()
        try:
            wait = call.begin()
        except Exception as error:  # noqa: BLE001 - the end of these items at this stage
            return self.final_error(stage, error)
        if wait is None:
            return None
        self.why = call.held_up_by()
        if call.turn is not None:
            return Next.LINE
        self.wait = wait
        return Next.WAIT

    def waited(self, now: float) -> None:
        """What they waited for `since` then has come, or will not come."""
        for item in self.items:
            item.why, item.since = self.why, self.since
            item.waited(now)

    def final_error(self, stage: RunStage, error: Exception) -> Next:
        """The call cannot be made: those that have tried before end as their last attempt did."""
        call = self.call
        assert call is not None  # noqa: S101 - it was asked
        if call.reason in UNFINISHED:
            self.reason = call.reason
            return Next.BACK
        for item in self.items:
            member = _member_of(item)
            if member is None and call.number:  # only the others were not let in
                self._then(item, Next.GO)
                continue
            member = member or self._member(item)
            member.reason = call.reason
            if isinstance(error, Ended) or (member.number and member.last_error is None):
                self._then(item, item.final_result(stage, member.unwanted))
            else:
                self._then(item, item.final_error(stage, member.last_error or error))
        return self._disbanded()

    # -- after a call

    def succeeded(self, stage: RunStage, result: Any, began: float) -> Next:
        """The call returned."""
        wrong = _mismatch(stage, result, len(self.items))
        if wrong is not None:
            return self.failed(stage, wrong, began, divisible=False)
        call = self.call
        assert call is not None  # noqa: S101 - it has begun
        outputs = [_output(one, stage) for one in result]
        errors = [one for one in outputs if isinstance(one, Exception) and not isinstance(one, Skip | Snooze)]
        call.came_back(errors, all_of_them=len(errors) == len(outputs))
        notes = self._told()
        bare: dict[int, dict[str, Any]] = {}
        asks = stage.guard.retry_if is not None
        together = self.roll(call)
        for item, output, said in zip(self.items, outputs, notes, strict=True):
            item.stage = stage
            if isinstance(output, Exception):
                self._tried(item, began, said, together)
                self._then(item, _fail(item, stage, output, began, bare))
            elif item.call is None and not asks:
                item.notes = said
                self._then(item, item.succeeded_at_once(stage, output, began))
            else:
                self._tried(item, began, said, together)
                self._then(item, item.succeeded(stage, output, began))
        return self._disbanded()

    def failed(self, stage: RunStage, error: Exception, began: float, *, divisible: bool = True) -> Next:
        """The call raised, or did not return what it must: that concerns all of them, until it is known whom."""
        call = self.call
        assert call is not None  # noqa: S101 - it has begun
        if isinstance(error, Skip | Snooze):
            call.interrupted(NEUTRAL)
        else:
            call.came_back([error], all_of_them=True)
        verdict, roll, bare = classify(error), self.roll(call), {id(error): dict(raised.fields(error))}
        together: list[Item] = []
        bad: list[Item] = []
        for item, said in zip(self.items, self._told(), strict=True):
            item.stage = stage
            member = self._tried(item, began, said, roll)
            _bare(error, bare)
            if divisible and len(self.items) > 1 and member.may_divide(error, verdict):
                bad.append(item)
                item.parted(stage, error, verdict, began)
                continue
            after = _fail(item, stage, error, began, bare)
            if after is Next.WAIT:
                together.append(item)
            else:
                self._then(item, after)
        if together:
            rest = Group(stage, together, call)
            rest.wait, rest.why = max((item.wait, item.why) for item in together)
            self._outcome.append((rest, Next.WAIT))
        middle = (len(bad) + 1) // 2
        for part in (bad[:middle], bad[middle:]):
            if part:
                self._outcome.append((Group(stage, part, call), Next.GO))
        return self._disbanded()

    def keep_only(self, stage: RunStage, error: Exception, began: float) -> None:
        """The call is on record for each of them, and decides nothing: the run winds down."""
        call = self.call
        assert call is not None  # noqa: S101 - it has begun
        verdict, roll = classify(error), self.roll(call)
        for item, said in zip(self.items, self._told(), strict=True):
            item.stage = stage
            self._tried(item, began, said, roll)
            item.parted(stage, error, verdict, began)

    def cut_short(self, stage: RunStage, began: float) -> None:
        """The run does not wait for this call any longer."""
        self.keep_only(stage, InterruptedError("the run was asked to end, and did not wait for this attempt"), began)

    def fell_back(self, stage: RunStage, result: Any = None, error: Exception | None = None) -> Next:
        """The fallback has answered for them, or failed too; it is no attempt."""
        error = error or _mismatch(stage, result, len(self.items))
        outputs = [error] * len(self.items) if error is not None else [_output(one, stage) for one in result]
        for item, output, said in zip(self.items, outputs, _portions(self.notes, len(outputs)), strict=True):
            item.notes = said
            failed = isinstance(output, Exception)
            after = item.fell_back(stage, error=output) if failed else item.fell_back(stage, output)
            self._then(item, after)
        return self._disbanded()

    def ruined(self, stage: RunStage, error: Exception) -> None:
        """Nobody in here goes on: each of the items has failed."""
        left: list[Item | Group] = list(self.disband())
        while left:
            one = left.pop()
            if isinstance(one, Group):
                left += one.disband()
            elif one.status is None:
                one.give_up(stage.name, error)
                self._then(one, Next.END)
            else:
                self._then(one, Next.END)

    def outcome(self) -> list[tuple[Item | Group, Next]]:
        """The items that go on now, and how; afterwards the group is empty."""
        outcome, self._outcome, self.items = self._outcome, [], ()
        self.call = self._before = None  # which know this group, and the errors of its items
        return outcome

    def disband(self) -> Sequence[Item | Group]:
        """The items that are in this group, or have just come out of it."""
        outcome = [one for one, _ in self._outcome] or self.items
        self._outcome, self.items = [], ()
        return outcome

    def _then(self, item: Item, after: Next) -> None:
        self._outcome.append((item, after))

    def _disbanded(self) -> Next:
        """Those for whom the fallback answers next go there together."""
        those = [one for one, _ in self._outcome if not isinstance(one, Group) and one.needs_fallback]
        if those:
            self._outcome = [pair for pair in self._outcome if isinstance(pair[0], Group) or not pair[0].needs_fallback]
            self._outcome.append((Group(self.stage, those, needs_fallback=True), Next.GO))
        return Next.DISBAND

    # -- each item's part of it

    def _member(self, item: Item) -> MemberCall:
        call = self.call
        assert call is not None  # noqa: S101 - it has begun
        member = MemberCall(self.stage.guard, self.stage.name, began=call.opened, outer=None)
        member.item, item.call = item, member
        return member

    def _tried(self, item: Item, began: float, said: Notes | None, roll: Callable[[], float]) -> MemberCall:
        """The item has had one attempt more."""
        call, member = self.call, _member_of(item)
        assert call is not None  # noqa: S101 - it has begun
        if member is None:
            member = self._member(item)
            if item.notes is not None:  # said before it snoozed
                said, item.notes = _both(item.notes, said), None
        member.world, member.rolled = call.world, roll
        member.number += 1
        member.attempt_began, member.seen, member.timer = began, call.seen, call.timer
        member.asked = member.asked or call.asked
        if said is not None:
            member.notes = (member.notes or {}) | {member.number: _both((member.notes or {}).get(member.number), said)}
        return member

    def roll(self, call: GroupCall) -> Callable[[], float]:
        """
        One roll for all items of a call, that of the first: what failed together waits alike and comes back together.
        """
        first, tries = self.items[0], call.tries
        return cache(partial(roll_for, self.stage.run.run_id, self.stage.name, first.key, tries + first.numbered))

    def _told(self) -> list[Notes | None]:
        """What the code has said during the call, as each item's part of it."""
        call = self.call
        assert call is not None  # noqa: S101 - it has begun
        return _portions((call.notes or {}).get(call.number), len(self.items))


class GroupCall(StageCall):
    """
    The protected call of a group. It asks limit, breaker and retry budget once for all items, and has the timeouts.
    """

    item: Any  # the group
    opened = 0.0
    heard = False  # each item emits its own events

    def roll(self) -> float:
        roll: float = self.item.roll(self)()
        return roll

    @classmethod
    def of(cls, group: Group, members: list[MemberCall]) -> GroupCall:
        """It goes on from where the item is that has tried most."""
        guard, name, tried = group.stage.guard, group.stage.name, [member for member in members if member.tries]
        if not tried:
            call = cls(guard, name)
            call.opened = call.began
        else:
            first = max(tried, key=lambda member: member.number)
            call = cls.resumed(
                guard,
                name,
                number=first.number,
                began=min(member.began for member in tried),
                previous=first.previous,
                last_error=first.last_error,
                rows=first.rows,
            )
            call.uncharged = first.tries - first.number
            call.opened = call.world.clock.monotonic()
            # What is tried again is a retry of one call, however many items are in it.
            if guard.retry_budget is not None and first.number > 0 and call.world.retries:
                call.owing = call.opened
        call.item = group
        return call

    def follow(self, before: GroupCall | None) -> None:
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


class MemberCall(StageCall):
    """
    The retries of one item of a group: it asks the policy for this item alone, and leaves the rest to the `GroupCall`.
    """

    gated = False  # the `GroupCall` asks breaker and retry budget
    parted = 0  # attempts in a call that was made again in halves
    rolled: Callable[[], float]  # for all items of the call

    @property
    def tries(self) -> int:
        return super().tries + self.parted

    def roll(self) -> float:
        return self.rolled()

    def may_divide(self, error: Exception, verdict: Verdict) -> bool:
        """Whether nothing is left to wait for, and another item may be the cause; if so, the attempt is not charged."""
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


def _member_of(item: Item) -> MemberCall | None:
    call = item.call
    return call if isinstance(call, MemberCall) else None


def _fail(item: Item, stage: RunStage, error: Exception, began: float, bare: dict[int, dict[str, Any]]) -> Next:
    """Tell the item of an error that others may be told of too."""
    _bare(error, bare)
    return item.failed(stage, error, began)


def _bare(error: Exception, bare: dict[int, dict[str, Any]]) -> None:
    """An item must not find on an error what the flow has told about another one."""
    known = bare.setdefault(id(error), dict(raised.fields(error)))
    fields = raised.fields(error)
    fields.clear()
    fields.update(known)


def _output(one: Any, stage: RunStage) -> Any:
    """What a function has put into one place of its list."""
    if isinstance(one, KeyboardInterrupt):
        raise one
    return as_failure(one, stage) if isinstance(one, BaseException) else one


def _mismatch(stage: RunStage, result: Any, count: int) -> Exception | None:
    if isinstance(result, list | tuple):
        if len(result) == count:
            return None
        got = f"a list of {len(result)}"
    else:
        got = f"a value of type {type(result).__name__}"
    message = (
        f"expected the batch stage {stage.name} to return a list with one output for each of its {count} items, "
        f"in their order, got: {got}"
    )
    return PermanentFailure(message, error_class="code_error")


# -- what was spent, in parts ----------------------------------------------------------------------------------------


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
