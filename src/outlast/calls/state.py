"""
One protected call, from its first attempt to its end: a state machine that neither waits nor calls.

A `Call` knows what has happened so far and answers what to do next; it never waits and never calls. The drivers
(`outlast.calls.drivers`) are thin loops around it. What happens in a call, from the outside in:

    fallback → total timeout → retry (and its budget) → limit → breaker → attempt timeout → the function

State of one call lives in its `Call`, never in the guard: one guard serves any number of threads and event loops.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar

from outlast import observe
from outlast.calls.ending import note
from outlast.deciding import LONG_AGO, REASONS, after_failure
from outlast.errors import AttemptTimeoutError, CircuitBreakerOpenError, TotalTimeoutError, nearest
from outlast.kernel import raised
from outlast.kernel.clock import here, later, stopping
from outlast.kernel.log import report_once
from outlast.kernel.raised import set_frames
from outlast.observe import emit, listening
from outlast.policy import plain
from outlast.settings.callables import PLAIN, awaitable, discard, shape_of
from outlast.verdicts import classify, plans, refusal, surely_undone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Literal, NoReturn, Protocol, Self, TypeAlias

    from outlast.breaker import CircuitBreaker
    from outlast.breaker.circuit import Circuit, Ticket
    from outlast.budgets import RetryBudget
    from outlast.calls.records import AttemptRecord, Context, History, Notes
    from outlast.deciding import Answer
    from outlast.isolation.processes import ProcessAttempt
    from outlast.isolation.threads import ThreadAttempt
    from outlast.kernel.aliases import StopReason
    from outlast.limits import Limit, Turn, Waited
    from outlast.policy import Coverage, RetryPolicy
    from outlast.settings.callables import Shape
    from outlast.verdicts import Verdict

    Running: TypeAlias = "Begun | list[Any] | None"  # what `running` holds; `made` makes a call of it

    class Settings(Protocol):
        """What a call needs to know of its guard."""

        name: str | None
        plain: bool  # nothing but retries
        retry: RetryPolicy
        timeout: float | None
        total_timeout: float | None
        isolation: str | None
        breaker: CircuitBreaker | None
        limit: Limit | None
        cost: Callable[..., Mapping[str, float]] | None
        retry_budget: RetryBudget | None
        on_open: str
        retry_if: Callable[[Any], bool] | None
        fallback: Callable[..., Any] | None
        covers: Coverage
        cost_shape: Shape | None
        idempotent: bool

        @property
        def hedge(self) -> Hedging | None: ...

    class Hedging(Protocol):
        """When a slow attempt is started once more beside itself, and how often."""

        @property
        def after(self) -> float: ...
        @property
        def max_hedges(self) -> int: ...

    class CurrentWork(Protocol):
        """The item or the job that the running code works on; `told` is what events of calls in it say of it."""

        @property
        def told(self) -> Mapping[str, Any]: ...
        def fill(self, context: Context) -> None: ...

    class Aside(Protocol):
        """What a call gives up while it waits, and takes again before it goes on: a slot."""

        def leave(self) -> None: ...
        def back(self) -> None: ...
        async def aback(self) -> None: ...

    class Begun(Protocol):
        """A call that is running, here or in the process that asked for this attempt."""

        @property
        def deadline(self) -> float | None: ...
        def context(self) -> Context: ...

    class TimeLimit(Protocol):
        """The time limit of one attempt, and whether it ended the attempt."""

        seconds: float
        scope: str
        fired: bool

        def cut_short(self, error: BaseException) -> bool: ...

    # number, began, duration, error, verdict, delay: a record as long as nobody reads it
    Row = tuple[int, float, float, str | None, Verdict | None, float | None]


class Ended(Exception):
    """There is no further attempt, although `retry_if` does not want the result; the call returns that result."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


_MARK = "__outlast_history__"
_numbers = itertools.count(1)
running: ContextVar[Running] = ContextVar("outlast_call", default=None)
current_work: ContextVar[CurrentWork | None] = ContextVar("outlast_work", default=None)  # of all calls made there
# In one of several executions of an attempt: asked before it waits for long, it says whether another one may answer meanwhile.
racing: ContextVar[Callable[[], bool] | None] = ContextVar("outlast_racing", default=None)
# The number of the newest history: read when an attempt begins, to tell the marks it leaves from older ones.
latest = [0]


def current() -> Context:
    """Where the running code stands: attempt, time left, last error."""
    from outlast.calls.records import Context

    call, work = made(running.get()), current_work.get()
    context = Context() if call is None else call.context()
    if work is not None:
        work.fill(context)
    return context


def made(begun: Running) -> Begun | None:
    """
    The call that is running. Most calls succeed at once, and nobody ever asks for them, so they begin as a mere list
    and are made when somebody does: [guard, name, when it began, what was running around it, the call once it is made].
    """
    if not isinstance(begun, list):
        return begun
    call: Call | None = begun[4]
    if call is None:
        guard, name, began, outer, _ = begun
        call = begun[4] = Call(guard, name, began=began, outer=outer)
    return call


def history(error: BaseException, /) -> tuple[AttemptRecord, ...]:
    """The attempts behind an exception that a protected call raised; () if there were none."""
    mark = _mark_of(error)
    return mark.attempts if mark is not None else ()


def stop_reason(error: BaseException, /) -> StopReason | None:
    """
    Why the protected call that raised this exception made no further attempt; None if no protected call raised it.
    """
    mark = _mark_of(error)
    return mark.reason if mark is not None else None


def gave_up(error: BaseException, seen: int) -> tuple[StopReason | None, bool]:
    """
    Why a call has given up on this error since `latest` was `seen`, and whether it, or one that caused the error, had
    tried again; (None, False) if none has.
    """
    marks = [mark for link in _chain(error) if (mark := _mark_of(link)) is not None and mark.number > seen]
    own = _mark_of(error)
    return (own.reason if own in marks and own is not None else None), any(mark.retried for mark in marks)


def _mark_of(error: BaseException) -> History | None:
    return raised.fields(error).get(_MARK)


def mark_exhausted(error: BaseException, reason: StopReason) -> None:
    """
    Say on an exception that retries inside of what raised it have given up: another layer of this process does not try
    it again.
    """
    from outlast.calls.records import History

    number = latest[0] = next(_numbers)
    raised.fields(error)[_MARK] = History(attempts=(), reason=reason, retried=True, number=number, note="")


def renumber(error: BaseException) -> None:
    """The histories on an error were made in another process, which numbers its own: here they count as made now."""
    for link in _chain(error):
        mark = _mark_of(link)
        if mark is not None:
            from dataclasses import replace

            latest[0] = next(_numbers)
            raised.fields(link)[_MARK] = replace(mark, number=latest[0])


# -- the call ------------------------------------------------------------------------------------------------------------------


class Call:
    """
    One protected call.

    A driver asks `begin` before each attempt and tells `failed` or `succeeded` after it; both of those answer with the
    seconds to wait before the next attempt, or None when the call is over.
    """

    # What a call that succeeds at once never changes stands here, on the class: most calls do, and making one must cost
    # little.
    number = 0
    previous: float | None = None
    last_error: Exception | None = None
    reason: StopReason | None = None
    tier = "unknown"
    heard: bool | None = None
    timer: TimeLimit | None = None
    ticket: Ticket | int | None = None
    turn: Turn | None = None  # in the line of the limit
    entry = -1  # the place held there
    asking = False  # whether the store of a shared circuit is being asked
    held_up = False  # whether it had to wait before its first attempt
    cost: Mapping[str, float] | None = None
    notes: dict[int, Notes] | None = None
    thread: ThreadAttempt | ProcessAttempt | None = None
    timed = True
    recorded = False  # whether somebody wants the record of an attempt that succeeds
    quick = False
    unwanted: object = None
    unawaited: object = None  # watches over the rest of a call that nobody has awaited yet
    deadline: float | None = None
    circuits = False  # whether an open circuit inside of an attempt is as transient as anything
    gated = True  # whether breaker and retry budget are asked for this call
    defers = False  # whether an empty retry budget holds the next attempt up, and does not end the call
    owing: float | None = None  # since when it does
    asked = False  # whether the code has asked for its idempotency key, to send it along
    outer: Begun | None = None  # the call that it was made in
    around: Begun | None = None  # the same one, if this call is a plain one, which speaks for it
    aside: Aside | None = None  # what it gives up while it waits
    has_own_key = False  # whether it has a key and a record of its own, whatever its guard
    _key: str | None = None

    def __init__(
        self,
        guard: Settings,
        name: str,
        plain_since: int | None = None,
        *,
        began: float | None = None,
        outer: Running = None,
    ) -> None:
        """
        `plain_since` says that the first attempt, a plain one, has already failed: what `latest` was when it began. A
        call that is `made` later began before, and had another one around it.
        """
        self.guard = guard
        self.name = name
        self.world = world = here.get()
        self.rows: list[Row] = []
        if began is None:
            began, outer = world.clock.monotonic(), running.get()
        self.began = self.attempt_began = began
        around = made(outer)
        if around is not None:
            self.outer = around
        if around is not None and guard.plain and not self.has_own_key:
            self.around = around
        if guard.total_timeout is not None and world.retries:
            self.deadline = began + guard.total_timeout
            # Nested deadlines take the minimum: an inner call cannot extend an outer one.
            if around is not None and around.deadline is not None and around.deadline < self.deadline:
                self.deadline = around.deadline
        elif around is not None and around.deadline is not None:
            self.deadline = around.deadline
        if plain_since is not None:
            self.number = 1
            self.seen = plain_since
            self.timed = False
            self.heard = listening()
            # Nothing but a policy to ask, and nobody who watches: the fast lane.
            self.quick = not self.heard and world.retries and self.deadline is None and stopping.get() is None

    @classmethod
    def resumed(
        cls,
        guard: Settings,
        name: str,
        *,
        number: int,
        began: float,
        previous: float | None = None,
        last_error: Exception | None = None,
        unwanted: object = None,
        rows: Iterable[Row] = (),
        notes: Mapping[int, Notes] | None = None,
    ) -> Self:
        """
        A call that goes on after `number` attempts which were made elsewhere: in other calls, in another process. It
        `began` at that instant of this clock: now, less what has elapsed since. `previous` is its newest delay, `rows`
        and `notes` are its record so far.

        If the next attempt cannot be made, it ends with its `last_error`; without one, with the result that was
        `unwanted`. An exception that is gone has a stand-in: a `TemporaryFailure` with its text and its error class.
        """
        call = cls(guard, name, began=began, outer=running.get())
        call.number, call.previous, call.last_error, call.unwanted = number, previous, last_error, unwanted
        call.rows = [*rows]
        if notes is not None:
            call.notes = {**notes}
        return call

    # -- before an attempt

    def begun(self, circuit: Circuit | None, entry: int, seen: int) -> None:
        """
        The first attempt has begun elsewhere, without asking: the closed circuit it found, its place, and what `latest`
        was.
        """
        self.number = 1
        self.ticket = None if circuit is None else circuit.era
        self.entry = entry
        self.seen = seen

    def begin(self) -> float | None:
        """
        None: attempt now. Seconds: wait so long, then ask again; if there is a `turn`, wait for that. Raises if the
        call cannot go on.
        """
        guard = self.guard
        if not guard.plain:
            if self.thread is not None and self.thread.running:
                self._end_with_last("still_running")
            if self.world.retries:
                limit, breaker = guard.limit, guard.breaker
                if limit is not None and self.entry < 0:
                    self.entry = entry = limit.take(self.cost) if self.turn is None else self._take_turn(self.turn)
                    if entry < 0:
                        if breaker is not None and guard.on_open == "fail" and breaker.open_beyond(0.0):
                            self._rejected(breaker)  # not even worth standing in line
                        self.turn = limit.line_up(self.cost)
                        self.held_up, self.asking = True, False
                        return 0.0
                if breaker is not None:
                    self.ticket = ticket = breaker.era()
                    if ticket is None and (wait := self._admission(breaker)) is not None:
                        self.held_up = True
                        return wait
        self.seen = latest[0]
        if self.number or self.held_up:
            self.unwanted = None
            self.attempt_began = self.world.clock.monotonic()
        self.number += 1
        return None

    def estimate(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], fn: Callable[..., Any] | None = None) -> None:
        """
        What an attempt will probably use of the limit's rates: the same for all of them, for they have the same
        arguments. Raises what `cost` raises: a call whose price is not known would pass a limit that is there to bound
        it.
        """
        guard = self.guard
        cost, shape, limit = guard.cost, guard.cost_shape, guard.limit
        if cost is None or limit is None or not self.world.retries:
            return
        if shape is not None:
            args, kwargs = shape.fitting(args, kwargs, None if fn is None or not kwargs else shape_of(fn))
        self.cost = _amounts(cost, cost(*args, **kwargs), limit.rates)

    def _take_turn(self, turn: Turn) -> int:
        """The turn that was waited for has come."""
        self.turn = None
        return turn.entry

    def patience(self) -> float | None:
        """How long to stand in line at the most."""
        most = None if self.guard.limit is None else self.guard.limit.max_wait
        if self.deadline is None or self.turn is None:
            return most
        left = self.deadline - self.world.clock.monotonic()
        self.turn.hurried = most is None or left < most
        return left if self.turn.hurried else most

    def _leave(
        self,
        error: BaseException | None = None,
        verdict: Verdict | None = None,
        *,
        worked: bool = False,
        undone: bool = False,
    ) -> None:
        """Give back the place at the limit."""
        limit, entry, self.entry = self.guard.limit, self.entry, -1
        if limit is None or entry < 0:
            return
        notes = None if self.notes is None else self.notes.get(self.number)
        limit.leave(
            entry,
            self.cost,
            None if notes is None or undone else notes.spent,
            worked=worked,
            refused=None if verdict is None else refusal(error, verdict),
            undone=undone,
        )

    def _admission(self, breaker: CircuitBreaker) -> float | None:
        try:
            self.ticket = breaker.ask()
            self.asking = self.ticket is None
            if self.asking:
                self._leave(undone=True)
                return self._moment(breaker.memory.moment)
        except CircuitBreakerOpenError as rejection:
            self.asking = False
            self._leave(undone=True)
            wait = self._patience(rejection.retry_after)
            if wait is not None:
                return wait
            if self.number == 0:
                self._attach(rejection, "breaker_open", None)
                self._turned_away("breaker", breaker.name)
                raise
        if self.ticket is None:  # outside of the handler, or the rejection would become the last error's context
            self._end_with_last("breaker_open")
        return None

    def _moment(self, seconds: float) -> float:
        """How long to wait for the answer of a shared circuit's store, which is on its way."""
        if not self._too_late(seconds):
            return seconds
        if self.number:
            self._end_with_last("total_timeout")
        error = TotalTimeoutError("the total timeout ran out while a shared circuit was asked: nothing was called")
        self._attach(error, "total_timeout", None)
        try:
            raise error
        finally:
            del error

    def _rejected(self, breaker: CircuitBreaker) -> NoReturn:
        """End because the circuit is open, as `_admission` does when nothing is waited for."""
        if self.number:
            self._end_with_last("breaker_open")
        rejection = breaker.rejection()
        self._attach(rejection, "breaker_open", None)
        self._turned_away("breaker", breaker.name)
        try:
            raise rejection
        finally:
            del rejection

    def _patience(self, seconds: float) -> float | None:
        """How long an open circuit is waited for; that costs no attempt. None: it is not."""
        if self.guard.on_open != "wait" or seconds == float("inf") or self._stopped():
            return None
        return None if self._too_late(seconds) else seconds

    def blocking_limit(self) -> tuple[float, str] | None:
        """As `limit`, for code that no enclosing call can cancel: what that has left counts too."""
        limit, left = self.limit(), self.left_in_all()
        return limit if left is None or (limit is not None and limit[0] <= left) else (left, "total")

    def left(self) -> float | None:
        """Seconds until the nearest deadline; None without one."""
        if self.deadline is None or not self.world.retries:
            return None
        return max(0.0, self.deadline - self.world.clock.monotonic())

    def left_in_all(self) -> float | None:
        """As `left`, without what bounds a single attempt."""
        return self.left()

    def limit(self) -> tuple[float, str] | None:
        """The time the next attempt may take, and whether it is the attempt's own or what is left in all."""
        guard = self.guard
        if not self.world.retries or (guard.timeout is None and guard.total_timeout is None):
            return None
        if guard.total_timeout is None:
            return (guard.timeout or 0.0), "attempt"
        left = max(0.0, self.began + guard.total_timeout - self.world.clock.monotonic())
        return (guard.timeout, "attempt") if guard.timeout is not None and guard.timeout < left else (left, "total")

    def context(self) -> Context:
        """What `current` says during an attempt."""
        if self.around is not None:  # nothing but retries: time, key and what is spent are those of the call around it
            context = self.around.context()
            context.attempt, context.max_attempts = self.number or 1, self.guard.retry.max_attempts
            context.last_error = self.last_error
            return context
        from outlast.calls.records import Context

        return Context(
            attempt=self.number or 1,  # it has begun elsewhere
            max_attempts=self.guard.retry.max_attempts,
            last_error=self.last_error,
            deadline=self.deadline,
            monotonic=self.world.clock.monotonic,
            key=None if self.guard.plain else self._ask_key,
            notes=self._take_notes(self.number or 1),
        )

    def _take_notes(self, number: int) -> Callable[[], Notes]:
        return lambda: self.notes_of(number)

    def notes_of(self, number: int) -> Notes:
        """What the code of this attempt says about it."""
        from outlast.calls.records import Notes

        if self.notes is None:
            self.notes = {}
        return self.notes.setdefault(number, Notes())

    def _ask_key(self) -> str:
        self.asked = True
        return self.key()

    def key(self) -> str:
        """The idempotency key: the same in every attempt."""
        if self._key is None:
            self._key = self.world.ids.new()
        return self._key

    # -- the fallback

    def covers(self, error: Exception) -> bool:
        """Whether the fallback answers for this error. To be asked to stop is no failure that it could make good."""
        if not self.world.retries or self.reason == "shutdown" or isinstance(error, raised.NoFailure):
            return False
        answer = self.guard.covers(error)
        if isinstance(answer, str):  # a predicate has failed
            raised.add_note(error, f"outlast {self.name}: {answer}")
        return answer is True

    def fell_back(self, error: Exception | None) -> None:
        """The fallback has answered, for this error or for a result that was not wanted."""
        if listening():
            from outlast.observe.events import FallbackUsed

            kind = "unwanted result" if error is None else type(error).__name__
            error_class = "unknown" if error is None else classify(error).error_class
            emit(FallbackUsed(**self.who(), error_class=error_class, error_type=kind, reason=self.reason))

    def _turned_away(self, by: str, which: str) -> None:
        """Nothing was called, because a breaker or a limit said no."""
        if listening():
            from outlast.observe.events import CallRejected

            who = {name: value for name, value in self.who().items() if name not in {"attempt", "max_attempts"}}
            emit(CallRejected(**who, by=by, which=which))

    # -- after an attempt

    def roll(self) -> float:
        """What chance says about the next wait."""
        return self.world.dice.roll()

    def failed(self, error: Exception) -> float | None:
        """An attempt raised: the seconds until the next one, or None, and then the error is to be raised as it is."""
        if self.quick:
            # The fast lane: an error whose type says all, and a policy that asks for its category only. The same as
            # below, in one piece, because a retry should cost little more than its attempts.
            plan, policy, number = plans.get(type(error)), self.guard.retry, self.number
            if (
                plan is not None
                and plan.simple
                and plan.category in policy._easy  # noqa: SLF001 - the policy keeps its answers ready for this
                and number < policy.max_attempts
                and latest[0] == self.seen
                and error.__context__ is None
                and error.__cause__ is None
                and not error.__dict__
                and (not plan.has_errno or error.errno is None)  # type: ignore[attr-defined]
                and (band := policy._bands.get(number)) is not None  # noqa: SLF001 - as above
            ):
                low, high = band
                delay = low if low == high else low + self.roll() * (high - low)
                began = self.attempt_began
                duration = self.world.clock.monotonic() - began if number > 1 else 0.0
                try:
                    text = str(error)
                except Exception:  # noqa: BLE001 - somebody else's __str__
                    text = _text(error)
                self.rows.append((number, began, duration, text, plan.verdict, delay))
                set_frames(error, None)
                self.last_error = error
                return delay
        world = self.world
        if not world.retries:
            return None
        if isinstance(error, raised.NoFailure):
            self.interrupted(error)
            return None
        verdict = classify(error)
        if self.ticket is not None:
            self._settle(error, verdict)
        if self.entry >= 0:
            self._leave(error, verdict)
        # The first attempt of a plain call is not timed: for all we know it has just begun.
        now = world.clock.monotonic() if self.timed or self.number > 1 else self.attempt_began
        says, owned, cut_short = self._first_facts(error, verdict)
        ambiguous = not (self.guard.idempotent or self.asked or surely_undone(error, verdict))
        answer = self._follows(says, now, owned=owned, cut_short=cut_short, ambiguous=ambiguous)
        if isinstance(answer, str):
            self._finish(error, verdict, answer, now)
            return None
        # A wait that was asked for is no step of our own backoff.
        self.previous = answer if verdict.retry_after is None else answer - self.guard.retry.asked(verdict)
        self._again(error, verdict, answer, now)
        return answer

    def _first_facts(self, error: Exception, verdict: Verdict) -> tuple[Answer, bool, bool]:
        """What the policy says, whether a retry inside owns the error, whether the total timeout cut it short."""
        owned = cut_short = False
        if latest[0] != self.seen or self.timer is not None:
            owned = not self.guard.retry.retry_exhausted and self._owned_by_inner(error)
            cut_short = self.timer is not None and self.timer.cut_short(error)
            if owned or cut_short:  # which is heard first: no predicate is called in vain, and no dice are rolled
                return 0.0, owned, cut_short
        return (
            self.guard.retry.answer(error, verdict, self.number, self.roll, self.previous, circuits=self.circuits),
            owned,
            cut_short,
        )

    def _follows(
        self, policy: Answer, now: float, *, owned: bool = False, cut_short: bool = False, ambiguous: bool = False
    ) -> Answer:
        """What follows, with the facts of this moment; the retry budget is asked only if all else says yes."""
        guard, stop, open_until, budget = self.guard, stopping.get(), LONG_AGO, None
        if self.gated:
            budget = guard.retry_budget
            if guard.breaker is not None and guard.on_open == "fail":
                open_until = guard.breaker.open_until()
        answer = after_failure(
            policy,
            now=now,
            deadline=self.deadline,
            open_until=open_until,
            owned=owned,
            cut_short=cut_short,
            ambiguous=ambiguous,
            stopping=stop is not None and stop.is_set(),
        )
        if budget is None or isinstance(answer, str) or budget.withdraw():
            return answer
        if self.defers:
            self.owing = now
            return answer
        return after_failure(answer, unpaid=True)

    def _again(self, error: Exception, verdict: Verdict, delay: float, now: float) -> None:
        """The attempt has failed, and another one follows: it is on record and told, and holds nothing any more."""
        self.rows.append((self.number, self.attempt_began, now - self.attempt_began, _text(error), verdict, delay))
        self.tier = verdict.tier
        if self.heard is None:
            self.heard = listening()
        if self.heard:
            self._tell_retry(error, verdict, delay)
        # A traceback keeps alive whatever its frames hold.
        set_frames(error, None)
        if raised.context(error) is not None or raised.cause(error) is not None or isinstance(error, ExceptionGroup):
            _forget_frames(error)
        self.last_error = error

    def succeeded(self, result: object) -> float | None:
        """An attempt returned: None, or the seconds to wait if `retry_if` wants another one."""
        guard = self.guard
        if not self.world.retries:
            return None
        unwanted = guard.retry_if is not None and self._is_unwanted(result)
        ticket, limit = self.ticket, guard.limit
        if ticket is not None and guard.breaker is not None:
            self.ticket = None
            guard.breaker.passed(ticket)
        if limit is not None and self.entry >= 0:
            if self.notes is None:
                limit.leave(self.entry, self.cost, worked=True)
                self.entry = -1
            else:
                self._leave(worked=True)
        if unwanted:
            return self._another(result)
        if self.recorded:
            now = self.world.clock.monotonic()
            self.rows.append((self.number, self.attempt_began, now - self.attempt_began, None, None, None))
        if guard.retry_budget is not None and self.number == 1:
            guard.retry_budget.deposit()
        if self.number > 1:
            if self.heard is None:
                self.heard = listening()
            if self.heard:
                from outlast.observe.events import StepSuccess

                emit(StepSuccess(**self.who(), tier=self.tier))
        if observe.counting:
            self._finished("succeeded")
        return None

    def _is_unwanted(self, result: object) -> bool:
        wanted = self.guard.retry_if
        try:
            answer = wanted is not None and wanted(result)
            if answer.__class__ not in PLAIN and awaitable(answer):
                discard(answer)
                raise TypeError("it returned something to await")
            return bool(answer)
        except Exception as broken:  # noqa: BLE001 - a broken predicate must not destroy a good result
            report_once(wanted, broken, "the result counts as good")
            return False

    def _another(self, result: object) -> float | None:
        """
        A result that `retry_if` does not want: the delay until another attempt, or None, and then it is returned as it
        is.
        """
        now = self.world.clock.monotonic()
        answer = self._follows(self.guard.retry.answer_result(self.number, self.roll(), self.previous), now)
        again, self.reason = (None, answer) if isinstance(answer, str) else (answer, None)
        self.rows.append((self.number, self.attempt_began, now - self.attempt_began, None, None, again))
        self.previous, self.last_error, self.unwanted = again, None, result
        if listening():
            self.heard = True
            self._tell_result(result, answer)
        if again is None and observe.counting:
            self._finished("unwanted")
        return again

    def interrupted(self, error: BaseException) -> None:
        """
        An attempt was ended from outside (cancellation, Ctrl-C), or will not be made: neither success nor failure.
        Whatever the call holds goes back: its leave from the breaker, its place at the limit, its turn in the line,
        granted or not.
        """
        if self.ticket is not None:
            self._settle(error)
        if self.entry >= 0:
            self._leave()
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.limit.withdraw(turn)

    def over(self) -> None:
        """The call has ended, however: by now it holds nothing, unless a way out was taken that nobody thought of."""
        self.unawaited = None
        if self.entry >= 0 or self.ticket is not None or self.turn is not None:
            self.interrupted(GeneratorExit())

    def _settle(self, error: BaseException, verdict: Verdict | None = None) -> None:
        ticket, self.ticket = self.ticket, None
        breaker = self.guard.breaker
        if ticket is None or breaker is None:
            return
        # An attempt that the total timeout cut short says nothing about the service.
        short = self.timer is not None and self.timer.cut_short(error)
        breaker.settle(ticket, None if short else breaker.judge(error, verdict))

    def _too_late(self, delay: float) -> bool:
        return self.deadline is not None and self.world.clock.monotonic() + delay >= self.deadline

    def _stopped(self) -> bool:
        stop = stopping.get()
        return stop is not None and stop.is_set()

    def _owned_by_inner(self, error: BaseException) -> bool:
        """Whether a retry inside this attempt has already given up on the error: then it is not tried again here."""
        for link in _chain(error):
            mark = _mark_of(link)
            if mark is not None and mark.retried and mark.number > self.seen:
                return True
        return False

    # -- between attempts

    def may_wait(self, seconds: float) -> None:
        """A wait begins. What this call is a part of may have a better place for a long one, and leaves it by raising."""
        waits: Callable[[float, Exception | None], None] | None = getattr(current_work.get(), "long_wait", None)
        if waits is not None:
            waits(seconds, self.last_error)

    def waited(self, how: Waited) -> NoReturn:
        """The wait has not brought what it was for: the call ends, as its last attempt did if there was one."""
        limit, turn, self.turn = self.guard.limit, self.turn, None
        reason: StopReason = "shutdown"
        if how == "late" and turn is not None:
            reason = "total_timeout" if turn.hurried else "throttled"
        if self.number:
            if reason == "throttled" and limit is not None:
                limit.tell_exceeded()
            self._end_with_last(reason)
        if reason == "total_timeout":
            name = "" if limit is None else limit.name
            error: Exception = TotalTimeoutError(
                f"the total timeout ran out in the line of the limit {name!r}: nothing was called"
            )
        elif turn is not None and limit is not None:
            error = limit.rejection("asked to stop" if how == "stopped" else None)
        else:  # it waited for the circuit
            error = self.guard.breaker.rejection() if self.guard.breaker is not None else Ended(None)
        self._attach(error, reason, None)
        if reason == "throttled" and limit is not None:
            self._turned_away("limit", limit.name)
        try:
            raise error
        finally:
            del error

    def stopped_late(self) -> bool:
        """Whether it was asked to stop after its wait, before it has what it gave up for it: then it begins nothing."""
        stopped = self._stopped()
        if stopped and self.turn is not None:
            self.turn.limit.withdraw(self.turn)
        return stopped

    def interrupted_wait(self, interruption: BaseException) -> None:
        """Cancelled while waiting: the failure that was waited on stays visible."""
        turn, self.turn = self.turn, None
        if turn is not None:  # a Ctrl-C may come in the very moment in which it was granted
            turn.limit.withdraw(turn)
        if raised.context(interruption) is None and interruption is not self.last_error:
            raised.set_context(interruption, self.last_error)

    # -- the end

    def _end_with_last(self, reason: StopReason) -> NoReturn:
        """
        End as the last attempt ended, whatever kept the next one from starting: with its error, or with its result.
        """
        error, self.last_error = self.last_error, None
        if error is None:
            self.reason = reason
            raise Ended(self.unwanted)
        verdict = self.rows[-1][4] if self.rows else classify(error)  # what a resumed call did may not be on its record
        self._attach(error, reason, verdict)
        self._tell_end(error, reason, verdict)
        try:
            raise error
        finally:
            del error

    def too_late(self, error: Exception) -> None:
        """A generator failed after its first item: it is not started anew, whatever the policy says."""
        if not self.world.retries:
            return
        if isinstance(error, raised.NoFailure):
            self.interrupted(error)
            return
        verdict = classify(error)
        self._settle(error, verdict)
        self._leave(error, verdict)
        reason: Any = after_failure(0.0, handed_out=True)
        self._finish(error, verdict, reason, self.world.clock.monotonic())

    def _finish(self, error: Exception, verdict: Verdict, reason: StopReason, now: float) -> None:
        self.rows.append((self.number, self.attempt_began, now - self.attempt_began, _text(error), verdict, None))
        self.last_error = None
        self._attach(error, reason, verdict)
        self._tell_end(error, plain(reason), verdict)

    def _attach(self, error: Exception, reason: StopReason, verdict: Verdict | None) -> None:
        """Give the exception its history, its stop reason and a note for people."""
        from outlast.calls.records import History

        said = note(self, error, reason, verdict)
        self.reason = reason = plain(reason)
        inner = _mark_of(error)
        nested = reason == "nested_exhausted" and inner is not None
        number = latest[0] = next(_numbers)
        mark = History(
            attempts=inner.attempts if nested and inner is not None else self.attempts(),
            reason=reason,
            retried=nested or self.number > 1,
            number=number,
            note=said,
        )
        notes = [old for old in raised.notes(error) if inner is None or old != inner.note]
        raised.fields(error).update({"__notes__": [*notes, mark.note], _MARK: mark})
        if observe.counting:
            self._finished("failed")

    def _finished(self, outcome: Literal["succeeded", "failed", "unwanted"]) -> None:
        """Emit how a call ended, while calls are counted. Items and jobs have events of their own."""
        if type(self) is Call and listening():
            from outlast.observe.events import CallFinished

            who = {name: value for name, value in self.who().items() if name not in {"attempt", "max_attempts"}}
            emit(CallFinished(**who, outcome=outcome, attempts=self.number, duration=self.elapsed))

    @property
    def policy(self) -> RetryPolicy:
        """What decides about its retries."""
        return self.guard.retry

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self.world.clock.monotonic() - self.began

    def attempts(self) -> tuple[AttemptRecord, ...]:
        """What has happened so far, as values."""
        from outlast.calls.records import AttemptRecord
        from outlast.kernel.redact import sanitise

        now, wall, notes = self.world.clock.monotonic(), self.world.clock.now(), self.notes or {}
        return tuple(
            AttemptRecord(
                number=number,
                started_at=later(wall, began - now),
                duration=duration,
                error=None if text is None else sanitise(text),
                verdict=verdict,
                delay=delay,
                spent=dict(notes[number].spent) if number in notes else {},
                warnings=tuple(notes[number].warnings) if number in notes else (),
            )
            for number, began, duration, text, verdict, delay in self.rows
        )

    # -- telling

    @property
    def shown_number(self) -> int:
        """The number of the attempt for people; 0 if it is the only one, and they count others."""
        return self.number

    def who(self) -> dict[str, Any]:
        """The fields that every event of this call has."""
        who: dict[str, Any] = {
            "step_id": self.name,
            "attempt": self.number,
            "max_attempts": self.guard.retry.max_attempts,
        }
        work = current_work.get()
        return who if work is None else {**who, **work.told}

    def _what(self, error: BaseException, verdict: Verdict) -> dict[str, Any]:
        from outlast.kernel.redact import error_text

        policy = self.guard.retry
        granted = policy.max_attempts - 1
        if policy.retry_limits is not None:
            granted = min(granted, policy.retry_limits.get(verdict.tier, 0))
        return self.who() | {
            "max_retries": granted,
            "tier": verdict.tier,
            "category": verdict.category,
            "error_class": verdict.error_class,
            "error_type": type(error).__name__,
            "error": error_text(error),
        }

    def _tell_retry(self, error: BaseException, verdict: Verdict, delay: float, level: str | None = None) -> None:
        from outlast.observe.events import StepRetryAttempt

        self._tell_timeout(error)
        at = later(self.world.clock.now(), delay)
        event = StepRetryAttempt(**self._what(error, verdict), next_delay=delay, next_attempt_at=at)
        if level is not None:
            event._told_at(level)  # noqa: SLF001 - of this event alone
        emit(event)

    def _tell_result(self, result: object, answer: Answer) -> None:
        """A result that was not wanted is told like a failure; of the result itself only its type."""
        from outlast.observe.events import StepRetryAttempt, StepRetryExhausted

        fields: dict[str, Any] = self.who() | {
            "max_retries": self.guard.retry.max_attempts - 1,
            "tier": "unknown",
            "category": "unclear",
            "error_class": "unknown",
            "error_type": type(result).__name__,
            "error": "retry_if wants another result",
        }
        if isinstance(answer, str):
            emit(StepRetryExhausted(**fields, reason=answer))
        else:
            emit(StepRetryAttempt(**fields, next_delay=answer, next_attempt_at=later(self.world.clock.now(), answer)))

    def _tell_end(self, error: BaseException, reason: StopReason, verdict: Verdict | None) -> None:
        if verdict is None or not listening():
            return
        from outlast.observe.events import RetryBudgetExhausted, StepErrorPermanent, StepRetryExhausted

        self._tell_timeout(error)
        if reason == "retry_budget" and self.guard.retry_budget is not None:
            emit(RetryBudgetExhausted(**self.who(), budget=self.guard.retry_budget.name))
        kind = StepRetryExhausted if REASONS[reason].retriable else StepErrorPermanent
        emit(kind(**self._what(error, verdict), reason=reason))

    def _tell_timeout(self, error: BaseException) -> None:
        timer, self.timer = self.timer, None
        if timer is None or not timer.fired or not isinstance(error, AttemptTimeoutError | TotalTimeoutError):
            return
        from outlast.observe.events import AttemptTimeout

        event = AttemptTimeout(**self.who(), timeout=timer.seconds, scope=timer.scope)
        if not self.shown_number:  # the job tells it, as the end of its own attempt
            event._told_at("debug")  # noqa: SLF001 - of this event alone
        emit(event)


def _amounts(cost: object, said: object, rates: Mapping[str, object]) -> dict[str, float]:
    """What `cost` has returned, if it is amounts of rates that the limit has."""
    from collections.abc import Mapping as SomeMapping

    from outlast.calls.records import amount
    from outlast.settings.callables import name_of
    from outlast.settings.checks import Check

    if isinstance(said, SomeMapping) and rates.keys() >= said.keys():
        return {name: amount(name, value) for name, value in said.items()}
    check = Check()
    if isinstance(said, SomeMapping):
        for name in [name for name in said if name not in rates][:8]:
            known = nearest(str(name), tuple(rates)) or f" Known: {', '.join(rates)}."
            check.add(f"what {name_of(cost)} returns", "amounts of the limit's rates", name, known)
    else:
        if awaitable(said):
            discard(said)
        check.add(f"what {name_of(cost)} returns", 'a mapping such as {"tokens": 800}', said)
    check.raise_if_any()
    return {}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:16_384]  # more than is ever read of it
    except Exception:  # noqa: BLE001 - somebody else's __str__
        return f"<{type(error).__name__} has no readable text>"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = raised.cause(link) or raised.context(link)


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of all that hangs on it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < 1000:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        set_frames(link, None)
        waiting += [raised.cause(link), raised.context(link)]
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
