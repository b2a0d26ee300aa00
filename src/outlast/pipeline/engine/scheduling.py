"""
How items move: from stage to stage, in tasks and threads, through slots, and through waits.

Async stages run in long-lived tasks, blocking ones in `Threads`. Each takes the most advanced item whose stage has a
free slot and carries it on as long as slots are free. An item that waits (for another attempt, a circuit, the record of
its checkpoint) holds no slot. Only an item that waits in the line of a limit keeps its slot: the other items at its
stage would wait in the same line, and an item whose turn has come must not wait for a slot again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextvars import copy_context
from itertools import chain
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from outlast.calls.drivers import same
from outlast.calls.state import current_work, latest
from outlast.pipeline.engine.attempts import AttemptRunner, as_failure, inside, rest
from outlast.pipeline.engine.batches import LINGER, Group, GroupQueue
from outlast.pipeline.engine.item import Next, RunStage
from outlast.work.memory import LARGE, size_of
from outlast.work.threads import Threads
from outlast.work.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextvars import Context as Variables

    from outlast.kernel.clock import Clock
    from outlast.pipeline.engine.attempts import Unit
    from outlast.pipeline.engine.item import Item, Phase, RunFacts
    from outlast.pipeline.record.endings import Endings, Halt
    from outlast.pipeline.record.writer import WriteBatch
    from outlast.work.writer import BatchWriter

T = TypeVar("T")
LOW = 128  # items that are read and not begun, below which more are read
MOST_TASKS = 4096
_MOMENT = 0.0005  # seconds of real time
_TURN = 64  # items after which a task lets others have their turn
_SPACE = 64  # free places in the window that are worth reading for while there is other work
_TASTES = 100  # results that are weighed in their threads
_GO, _END, _WAIT, _LINE, _RECORD, _BACK = Next.GO, Next.END, Next.WAIT, Next.LINE, Next.RECORD, Next.BACK
_DISBAND = Next.DISBAND


class RunControl(Protocol):
    """The part of the `Runner` that the scheduler calls."""

    def abort(self, error: BaseException) -> None:
        """End the run at once: the error is no item's failure."""

    def stay_open(self, stage: RunStage) -> None:
        """The circuit breaker of a stage stays open: stop."""

    def halt(self, halts: Sequence[Halt]) -> None:
        """Stop, because of how items have ended."""

    def feed_more(self) -> None:
        """There is room for more items."""

    def check_done(self) -> None:
        """No item may be left."""

    def review(self) -> None:
        """There may be room for more values."""

    def wary(self) -> bool: ...  # whether the end of any item in hand may stop the run


class StageLoad(NamedTuple):
    """How many items at one stage are attempted, wait for a slot, for another attempt or a circuit, and for a limit."""

    running: int
    queued: int
    waiting: int
    in_line: int


class Scheduler:
    """Moves the items of one run. It belongs to the event loop, except for what its threads do."""

    def __init__(
        self,
        control: RunControl,
        stages: list[RunStage],
        facts: RunFacts,
        phase: Phase,
        endings: Endings,
        writer: BatchWriter[WriteBatch],
        *,
        base: Variables,
        clock: Clock,
        window: int,
        threads: int,
        metered: bool,
    ) -> None:
        """`base` is the context of every attempt. `metered`: threads must not run far ahead of what is counted."""
        self._control = control
        self._stages = stages
        self._phase = phase
        self._endings = endings
        self._writer = writer
        self._memory = writer.memory
        self._base = base
        self._monotonic = facts.monotonic
        self._virtual = clock.virtual
        self._window = window
        self._space = min(_SPACE, window)
        self._loop = asyncio.get_running_loop()
        self._async_stages = [stage for stage in reversed(stages) if stage.is_async]
        for stage in stages:
            if not stage.single:
                stage.slots.waiting = GroupQueue(stage, stage.declared.batch or 1)
        self._queued = [stage for stage in stages if stage.is_async or not stage.single]  # the loop owns their queues
        self._most_tasks = min(MOST_TASKS, sum(stage.declared.concurrency for stage in self._async_stages))
        self.tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._fresh: deque[Item] = deque()  # not begun, before an async stage
        self._metered: deque[Item] | None = deque() if metered and not stages[0].is_async and stages[0].single else None
        self._granted: deque[Unit] = deque()  # have a slot, and wait for a task
        self._lines: dict[asyncio.Task[None], Unit] = {}  # stand in the line of a limit, each in a task
        self._relieving = False
        self.timers: Timers[Unit | RunStage] = Timers(clock)  # a stage: its items have waited long enough for others
        blocking = [stage for stage in stages if not stage.is_async]
        self.threads: Threads[Unit, Next] = Threads(
            self._carry_in_thread,
            back=self.safely(self._came_back),
            seen=self.safely(self._seen),
            lost=_release,
            loop=self._loop,
            slots=[stage.slots for stage in blocking if stage.single],
            most=min(threads, sum(stage.declared.concurrency for stage in blocking)),
        )
        self._careful = False  # work that ends in a thread holds up the others until the loop has seen it
        self._tasted = 0
        self.attempts = AttemptRunner(facts, phase, base, self.threads.hold, virtual=clock.virtual)

    def safely(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback, and the end of the run if it fails: the run would wait for ever otherwise."""

        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 - a defect of ours, or of a hook
                self._control.abort(error)

        return call

    # -- from the runner ---------------------------------------------------------------------------------------------

    @property
    def unbegun(self) -> int:
        """How many items wait for their first async stage."""
        return len(self._fresh)

    def take_in(self, items: Iterable[Item]) -> None:
        """Begin with items that were read."""
        first = self._stages[0]
        fresh = first.is_async and first.single
        for item in items:
            if self._metered is not None and not item.at:
                self._metered.append(item)
            elif item.at or not fresh:
                self.set_ready(item)
            else:
                self._fresh.append(item)
        if self._fresh:
            self._wake(1)
        self._meter()

    def no_more_to_come(self) -> None:
        """Nothing more is read: batches need not wait for others."""
        for stage in self._stages:
            if not stage.single:
                self._gathered(stage)

    def recorded(self, items: Iterable[Item]) -> None:
        """The checkpoints of these items are on record: they go on."""
        phase, now = self._phase, self._monotonic()
        for item in items:
            phase.recording -= 1
            item.waited(now)
            if phase.dropping:
                self.give_back(item)
            else:
                self.set_ready(item)
        self.relieve()
        if self._virtual and phase.recording == 0:
            self.timers.look()

    def drop_unbegun(self) -> int:
        """Give back the units for which nothing was done in this pass; how many there were."""
        unbegun = self._unbegun()
        for unit in unbegun:
            self.give_back(unit)
        return len(unbegun)

    def drop_waiting(self) -> None:
        """Give back whatever is not being attempted."""
        waiting = [*self._granted]
        self._granted.clear()
        for stage in self._queued:
            waiting += stage.slots.waiting
            stage.slots.waiting.clear()
        waiting += self._in_timers()
        self.timers.clear()
        waiting += self.threads.unstarted()
        for unit in waiting:
            self.give_back(unit)
        for task in [*self._lines]:
            task.cancel()

    def _unbegun(self) -> list[Unit]:
        """Take out what waits for a slot, a thread or others of its batch, and was not begun in this pass."""
        unbegun: list[Unit] = [*self._fresh, *(self._metered or ())]
        self._fresh.clear()
        if self._metered is not None:
            self._metered.clear()
        waiting = [*self.threads.unstarted(), *self._granted]
        self._granted.clear()
        for stage in self._queued:
            waiting += stage.slots.waiting
            stage.slots.waiting.clear()
        for unit in waiting:
            if unit.started is None:
                unbegun.append(unit)
            elif self._stages[unit.at].slots.keeps(unit):
                self._seat(unit)
            else:
                self.set_ready(unit)
        return unbegun

    def any_untouched(self) -> bool:
        """Whether anything waits that was not begun with at its stage."""
        lines = [
            (*self._fresh, *(self._metered or ()), *self._granted, *self._lines.values()),
            self._in_timers(),
            self.threads.waiting(),
            *(stage.slots.waiting for stage in self._queued),
        ]
        return any(unit.untouched for unit in chain.from_iterable(lines))

    def loads(self) -> list[StageLoad]:
        """Where the items in hand are, by stage. Any thread may ask; what moves meanwhile may be missed."""
        queued = _items_at([*self.threads.inbox(), *tuple(self._granted), *tuple(self._metered or ())])
        waiting = _items_at(self._in_timers())
        in_line = _items_at(unit for task, unit in tuple(self._lines.items()) if not task.done())
        return [
            StageLoad(
                running=stage.slots.under_way,
                queued=len(stage.slots.waiting) + queued[stage.index],
                waiting=waiting[stage.index],
                in_line=in_line[stage.index],
            )
            for stage in self._stages
        ]

    def cancel(self) -> None:
        """Do not wait for running attempts any longer."""
        for task in self.tasks:
            task.cancel()

    @property
    def open_tasks(self) -> list[asyncio.Task[None]]:
        """The tasks to end with the run."""
        return [*self.tasks, *self._lines]

    def give_back(self, unit: Unit) -> None:
        """It stays unfinished: it is pending, and a resume goes on with it."""
        self._unseat(unit)
        call = unit.call
        if call is not None:
            call.interrupted(GeneratorExit())
        if isinstance(unit, Group):
            for one in unit.disband():
                self.give_back(one)
            return
        self._phase.in_hand -= 1
        self._endings.given_back(unit)
        self._control.check_done()

    # -- slots and tasks ---------------------------------------------------------------------------------------------

    def set_ready(self, unit: Unit) -> None:
        """It can go on at its stage, as soon as there is a slot."""
        stage = self._stages[unit.at]
        if not stage.is_async and stage.single:
            self.threads.put(unit)
            return
        stage.slots.waiting.append(unit)
        if stage.single:
            self._wake(1)
        else:
            self._gathered(stage)

    def _gathered(self, stage: RunStage) -> None:
        """Send off the groups of a batch stage that can go, and let no item wait for others for ever."""
        slots, phase = stage.slots, self._phase
        queue: GroupQueue = slots.waiting
        if queue.loose and not phase.reading and queue.loose >= phase.in_hand:
            queue.release()  # no other item is left to come
        if stage.is_async:
            if queue:
                self._wake(1)
        else:
            while queue and slots.free and not phase.dropping:
                slots.take()
                self._seat(queue.popleft())
        if queue.lingering and queue.timer is None:
            queue.timer = self.timers.add(self._monotonic() + LINGER, stage)

    def _seat(self, unit: Unit) -> None:
        """It has a slot: it waits only for a task or a thread that takes it on."""
        stage = self._stages[unit.at]
        stage.slots.keep(unit)
        if stage.is_async:
            self._granted.append(unit)
            self._wake(1)
        else:
            self.threads.put(unit)

    def _unseat(self, unit: Unit) -> None:
        """It goes on without being attempted: the slot that it may have kept is free."""
        stage = self._stages[unit.at]
        if not stage.slots.release(unit) or self._phase.dropping:
            return
        if not stage.single:
            self._gathered(stage)
        elif stage.is_async:
            self._wake(1)
        else:
            self.threads.again(stage.slots.next())

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1
        for _ in range(min(count, self._most_tasks - len(self.tasks))):
            task = self._loop.create_task(self._work(), context=self._base.copy())
            self.tasks.add(task)
            task.add_done_callback(self.left)

    def relieve(self) -> None:
        """A task is about to wait: another one takes over what it could have done."""
        if self._fresh or self._granted or any(stage.slots.waiting for stage in self._async_stages):
            self._wake(1)

    def _relieve_if_waiting(self) -> None:
        """As `relieve`, when it is not known whether the task will wait: the loop comes to this only if it does."""
        if not self._relieving:
            self._relieving = True
            self._loop.call_soon(self._now_waiting)

    def _now_waiting(self) -> None:
        self._relieving = False
        self.relieve()

    def left(self, task: asyncio.Task[None]) -> None:
        """A task has ended. What it raises is no attempt's failure: control flow of user code, or a defect of ours."""
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._control.abort(error)

    def _pick(self) -> Any:
        """What has a slot, else the most advanced item whose stage has a free one; the slot is taken."""
        if self._granted:
            unit = self._granted.popleft()
            self._stages[unit.at].slots.resume(unit)
            return unit
        if not self._memory.has_room():
            return None
        for stage in self._async_stages:
            slots = stage.slots
            if slots.waiting and slots.free:
                slots.take()
                return slots.waiting.popleft()
        if self._fresh:
            slots = self._stages[0].slots
            if slots.free and not self._writer.behind:
                slots.take()
                if len(self._fresh) == LOW:
                    self._control.feed_more()
                return self._fresh.popleft()
        return None

    async def _work(self) -> None:
        turns = 0
        while True:
            unit = self._pick()
            if unit is None:
                self._control.feed_more()
                if len(self._idle) + 1 >= len(self.tasks) and self.threads.outstanding == 0:
                    self._writer.flush()  # nothing is under way: what waits for the record need not wait longer
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                try:
                    await waiting
                except asyncio.CancelledError:
                    self._not_by_a_stage()
                continue
            if await self._carry(unit):
                # A stage has changed the context variables of this task, which concern no other item.
                self.tasks.discard(asyncio.current_task())
                self._wake(1)
                return
            turns += 1
            if turns >= _TURN:
                turns = 0
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self._not_by_a_stage()

    def _not_by_a_stage(self) -> None:
        """Go on if a stage has cancelled this task and ended before it felt that. Called in an `except`."""
        task = asyncio.current_task()
        if self._phase.cancelling or task is None:
            raise  # noqa: PLE0704 - the cancellation
        while task.cancelling():
            task.uncancel()

    async def _carry(self, unit: Any) -> bool:
        """
        Carry it from stage to stage as long as slots are free; the slot of the first is taken already. Whether the
        context of the task was changed.
        """
        stages, monotonic, enter = self._stages, self._monotonic, current_work.set
        changed = False
        after: Next = _GO
        while True:
            stage = stages[unit.at]
            try:
                if unit.call is not None or stage.needs_call or unit.needs_fallback:
                    self.relieve()
                    after = await self.attempts.in_loop(unit, stage)
                elif stage.native and not changed:
                    # As below, in the context of this task: quicker, as long as the stage leaves that as it was.
                    unit.stage, unit.seen = stage, latest[0]
                    enter(unit)
                    before = copy_context()
                    self._relieve_if_waiting()
                    began = monotonic()
                    try:
                        result = await stage.work(unit.value)
                    except Exception as error:  # noqa: BLE001 - told to the item
                        after = unit.failed(stage, error, began)
                    except BaseException as thrown:  # noqa: BLE001 - as above
                        after = self.attempts.thrown(unit, stage, thrown, began)
                    else:
                        after = unit.succeeded_at_once(stage, result, began)
                        result = None
                    if not same(copy_context(), before):
                        changed, stage.native = True, False
                else:
                    # As `in_loop`, for a first attempt that nothing has to be asked for: nearly all of them.
                    context = self._base.copy()
                    unit.stage, unit.seen = stage, latest[0]
                    run = context.run
                    run(enter, unit)
                    began = monotonic()
                    try:
                        work = stage.work(unit.value) if stage.direct else run(stage.work, unit.value, **stage.kwargs)
                        if work.__class__ is CoroutineType:
                            try:
                                wanted = run(work.send, None)
                            except StopIteration as end:
                                result = end.value
                            else:
                                self.relieve()
                                result = await rest(context, work, wanted)
                        else:
                            self.relieve()
                            result = await inside(context, work)
                    except Exception as error:  # noqa: BLE001 - told to the item
                        after = run(unit.failed, stage, error, began)
                    except BaseException as thrown:  # noqa: BLE001 - as above
                        after = self.attempts.thrown(unit, stage, thrown, began)
                    else:
                        after = unit.succeeded_at_once(stage, result, began)
                        result = None
            except BaseException as error:
                if isinstance(error, Exception | asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
                    self.give_back(unit)
                    raise
                after = self._ruined(unit, stage, error)
            finally:
                if after is _LINE:
                    stage.slots.keep(unit)
                else:
                    stage.slots.give()
            if after is not _GO or self._phase.dropping:
                self._go_on(unit, after)
                return changed
            following = stages[unit.at]
            slots = following.slots
            if not following.is_async or not slots.free or slots.waiting or not following.single:
                self.set_ready(unit)
                return changed
            slots.take()

    def _go_on(self, unit: Any, after: Next) -> None:
        """What follows an attempt."""
        phase = self._phase
        if phase.cancelling:
            self.give_back(unit)
        elif after is _END:
            self.finish(unit)
        elif after is _DISBAND:
            for one, then in unit.outcome():
                self._go_on(one, then)
            self._gathered(self._stages[unit.at])
        elif after is _BACK or phase.dropping:
            if after is _BACK and unit.reason == "breaker_open":
                self._control.stay_open(self._stages[unit.at])
            self.give_back(unit)
        elif after is _GO:
            self.set_ready(unit)
        elif after is _WAIT:
            unit.since = self._monotonic()
            self.timers.add(unit.since + unit.wait, unit)
        elif after is _RECORD:
            unit.why, unit.since = "checkpoint", self._monotonic()
            if self._endings.checkpoint(unit):
                phase.recording += 1
            else:
                self.finish(unit)
        else:
            task = self._loop.create_task(self._stand_in_line(unit))
            self._lines[task] = unit
            task.add_done_callback(self._out_of_line)

    def finish(self, item: Item) -> None:
        """It has a status."""
        phase = self._phase
        halts = self._endings.finish(item)
        if halts:
            self._control.halt(halts)
        if phase.reading:
            if self._window - phase.in_hand >= self._space and len(self._fresh) < LOW:
                self._control.feed_more()
        elif phase.in_hand == 0:
            self._control.check_done()

    def _ruined(self, unit: Any, stage: RunStage, thrown: BaseException) -> Next:
        """What is no Exception came out of code that decides about an attempt, as a repair: items have failed."""
        if unit.call is not None:
            unit.call.interrupted(GeneratorExit())
        error = as_failure(thrown, stage)
        if unit.__class__ is Group:
            unit.ruined(stage, error)
            return _DISBAND
        unit.give_up(stage.name, error)
        return _END

    # -- threads -----------------------------------------------------------------------------------------------------

    def _meter(self) -> None:
        metered = self._metered
        while metered and self.threads.outstanding < 2 * self._stages[0].declared.concurrency:
            self.threads.put(metered.popleft())

    def _came_back(self, burst: list[tuple[Any, Next | BaseException]]) -> None:
        threads = self.threads
        for unit, after in burst:
            if isinstance(after, Exception | KeyboardInterrupt):
                self.give_back(unit)
                self._control.abort(after)
            elif isinstance(after, BaseException):
                self._go_on(unit, self._ruined(unit, self._stages[unit.at], after))
            else:
                self._go_on(unit, after)
            if threads.holding:
                threads.release(unit)
        self._careful = self._control.wary()
        self._meter()
        if threads.outstanding < _SPACE:
            self._control.feed_more()
        if self._virtual and threads.busy == 0:
            self.timers.look()  # no thread is busy any more: time may jump at once
        if threads.outstanding == 0 and len(self._idle) >= len(self.tasks):
            self._writer.flush()

    def _seen(self) -> None:
        if not self._memory.has_room():
            self._control.review()

    def _enter(self) -> None:
        """Wait, in a thread, until there is memory for what an attempt may bring back."""
        memory = self._memory
        if memory.typical and not memory.fits(self.threads.unseen):
            memory.block()
            try:
                self._loop.call_soon_threadsafe(self.safely(self._control.review))
            except RuntimeError:  # the run is over
                memory.unblock_for_good()
        memory.wait()

    def _carry_in_thread(self, unit: Unit) -> Next | None:
        """As `_carry`, through blocking stages; None if it is parked."""
        self._enter()
        threads, stages, attempt = self.threads, self._stages, self.attempts.in_thread
        while True:
            if threads.holding:
                threads.wait_for_release(unit)
            stage = stages[unit.at]
            slots = stage.slots
            if not slots.kept or not slots.resume(unit):
                try:
                    slots.take()
                except IndexError:
                    threads.again(slots.park(unit))
                    return None
            after: Next | None = None
            try:
                after = attempt(unit, stage)
                if after is _END:
                    if self._careful:
                        threads.hold(unit)
                elif threads.holding and stage.single:
                    threads.release(unit)
            finally:
                if after is _LINE:
                    slots.keep(unit)
                else:
                    slots.give()
                    if stage.single and slots.waiting:
                        threads.again(slots.next())
            following = stages[unit.at]
            if after is not _GO or threads.closed or following.is_async or not following.single:
                if self._tasted < _TASTES:  # later the loop weighs them, which may be far behind in the beginning
                    self._tasted += 1
                    size = size_of(getattr(unit, "output", None))
                    if size > LARGE:
                        self._memory.weigh(size)
                return after

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def ring(self) -> None:
        """Send units on when their wait is over, until cancelled."""
        timers, phase = self.timers, self._phase
        while True:
            due = await timers.due(busy=self.threads.busy > 0 or phase.recording > 0)
            now = self._monotonic()
            for unit in due:
                if isinstance(unit, RunStage):
                    unit.slots.waiting.release()
                    self._gathered(unit)
                else:
                    unit.waited(now)
                    self.set_ready(unit)
                del unit  # while this waits it keeps nothing: its frame is freed by the collector only
            due.clear()

    def _in_timers(self) -> list[Unit]:
        return [unit for unit in self.timers.waiting() if not isinstance(unit, RunStage)]

    async def _stand_in_line(self, unit: Unit) -> None:
        """Wait for the turn at a limit, with the slot in hand."""
        call = unit.call
        assert call is not None  # noqa: S101 - it has lined up
        turn = call.turn
        assert turn is not None  # noqa: S101 - as above
        unit.since = self._monotonic()
        while self._virtual and self.threads.busy:  # noqa: ASYNC110 - threads park items without a word
            await asyncio.sleep(_MOMENT)  # virtual time must not jump while something works: it would seem to take long
        how = await self._base.run(turn.limit.await_turn, turn, call.patience())
        unit.waited(self._monotonic())
        if how == "granted":
            self._seat(unit)
            return
        self._unseat(unit)
        try:
            call.waited(how)
        except Exception as error:  # noqa: BLE001 - the item's end at this stage
            self._go_on(unit, unit.final_error(self._stages[unit.at], error))

    def _out_of_line(self, task: asyncio.Task[None]) -> None:
        unit = self._lines.pop(task)
        if task.cancelled():
            self.give_back(unit)
        else:
            self.left(task)


def _release(unit: Unit) -> None:
    """Give back what its call holds: a place at the limit, a turn in the line, a probe."""
    if unit.call is not None:
        unit.call.interrupted(GeneratorExit())


def _items_at(units: Iterable[Unit]) -> Counter[int]:
    """How many items there are at each stage, those of a batch included."""
    found: Counter[int] = Counter()
    for unit in units:
        found[unit.at] += len(unit.items) if isinstance(unit, Group) else 1
    return found
