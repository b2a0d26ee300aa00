"""
A flow's run from start to end: opened by its key, leased, its steps begun as soon as they may, what has been done undone
if one fails for good. A thin driver around `progress`: it starts steps in threads and hears how they come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from outlast.errors import LeaseLost
from outlast.flow.opening import Opened, identity_of
from outlast.flow.opening import opened as open_run
from outlast.flow.progress import DONE, PARTIAL
from outlast.flow.record import NOTHING, in_words, left_alone, progress_of, result_of_record, rows_left
from outlast.flow.results import without_secrets
from outlast.flow.steps import Pass, StepWork
from outlast.kernel.clock import Stop, here
from outlast.kernel.log import report_once, warn
from outlast.kernel.redact import error_text
from outlast.observe import emit, listening
from outlast.pipeline.errors import mark_with_result
from outlast.pipeline.lease import let_go
from outlast.pipeline.logs import marked
from outlast.pipeline.record.writer import as_row
from outlast.spec.manifest import ManifestStep
from outlast.store import StoreError
from outlast.work import leases
from outlast.work.patience import keep_trying
from outlast.work.threads import in_thread, start_patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outlast.flow.opening import FlowPlan
    from outlast.flow.progress import Progress
    from outlast.flow.record import RowsLeft
    from outlast.flow.results import FlowResult, StepStatus
    from outlast.flow.steps import StepEnd
    from outlast.kernel.aliases import StopReason
    from outlast.observe.events import Event
    from outlast.pipeline.results import RunOutcome
    from outlast.store import Store
    from outlast.store.flows import Deed
    from outlast.store.records import RunRecord, RunRequest

MOST = 16  # steps that run at a time
_CANCELS = frozenset({"cancel", "compensate"})
_GIVEN_UP = 5.0  # seconds that a step which was given up has to come back


class FlowRun:
    """One pass of one run. `go` does the work; `wind_down` and `wind_down_soon` pause, cancel or interrupt it."""

    def __init__(self, plan: FlowPlan) -> None:
        self.plan = plan
        self.comes_back = False  # a step has failed, and the job tries it again
        self._due: float | None = None  # when it is to be gone on with, on the monotonic clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: deque[str] = deque()
        self._requested: str | None = None
        self._heard: RunRequest | None = None  # the last request of the store that was heard
        self._too_late = False  # it was cancelled when all steps were done
        self._stop = Stop()
        self._news = asyncio.Event()
        self._running: dict[str, tuple[StepWork, asyncio.Future[StepEnd]]] = {}
        self._threads = _Threads()
        self._progress: Progress | None = None
        self._lost: BaseException | None = None
        self._broken: BaseException | None = None
        self._errors: dict[str, BaseException] = {}
        self._pass: Pass | None = None
        self._heartbeat: Any = None

    # -- from outside ----------------------------------------------------------------------------------------------------

    @property
    def requeue(self) -> float | None:
        """Seconds after which it is to be gone on with, by whoever has the job; None if nothing waits for that."""
        return None if self._due is None else max(0.0, self._due - here.get().clock.monotonic())

    def _wait_until(self, seconds: float) -> None:
        due = here.get().clock.monotonic() + seconds
        self._due = due if self._due is None else min(self._due, due)

    def wind_down_soon(self, request: str) -> None:
        """
        Wind down (pause, cancel, compensate or interrupted); when asked twice, without waiting for what runs. From any
        thread, from a signal handler, and before it has begun.
        """
        self._requests.append(request)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hear)

    def waiting_here(self) -> bool:
        """A flow never reads in the thread that hears signals."""
        return False

    def _hear(self) -> None:
        while self._requests:
            request = self._requests.popleft()
            if self._requested is not None and request != "pause":
                self._give_up()
            if request == "compensate" and self._progress is not None:
                self._progress.cancelling = True
            if self._requested is None or (request in _CANCELS and self._requested not in _CANCELS):
                self._requested = request
            if self._gave_up or not (self._undoes and self._requested in {"cancel", "compensate"}):
                self._stop.set()  # else it is undone to its end
            self._look()
        self._news.set()

    def _hear_wanted(self, request: RunRequest) -> None:
        """What the store says is wanted, by a beat or when a step was about to begin: one request is heard once."""
        if request != self._heard:
            self._heard = request
            self._requests.append(request)
            self._hear()

    def _give_up(self) -> None:
        """What runs is not waited for any longer: processes are killed, threads are left."""
        self._gave_up = True
        for work, _ in self._running.values():
            work.give_up()

    _gave_up = False
    _undoes = False  # what was done is being undone
    _spent = False

    # -- from start to end -----------------------------------------------------------------------------------------------

    async def go(self) -> FlowResult:
        """Work on it until nothing more can be done."""
        plan = self.plan
        self._loop = asyncio.get_running_loop()
        self._hear()
        with self._stop:
            store: Store = await in_thread(lambda: keep_trying(lambda: plan.home.store, "the store"))
            opened: Opened | FlowResult = await self._open(store)
        if not isinstance(opened, Opened):
            return opened
        try:
            return await self._work(store, opened)
        finally:
            if leases.held(opened.lease):  # ended in the middle of winding down
                await in_thread(lambda: _left_behind(store, opened))

    async def _open(self, store: Store) -> Opened | FlowResult:
        found: list[Opened | FlowResult] = []
        try:
            await in_thread(lambda: found.append(open_run(store, self.plan)), self._stop)
        except BaseException:
            if found and isinstance(found[0], Opened):
                opened = found[0]
                await in_thread(lambda: _left_behind(store, opened))
            raise
        return found.pop()

    async def _work(self, store: Store, opened: Opened) -> FlowResult:
        plan, record, lease = self.plan, opened.record, opened.lease
        loop = asyncio.get_running_loop()
        began = here.get().clock.now()
        self._pass = Pass(
            home=plan.home,
            store=store,
            record=record,
            lease=lease,
            manifest=plan.manifest,
            round=opened.round,
            root=plan.root,
            allowed=plan.allowed,
            secret=plan.secret,
            hidden=plan.hidden,
            connection=plan.connection,
            stop=self._stop,
            follows=None if plan.follows is None else self._follows,
            attempts_left=plan.attempts_left,
            asked=lambda request: _soon(loop, lambda: self._hear_wanted(request)),
            changed=_nothing if plan.watch is None else lambda: _soon(loop, self._look),
        )
        self._progress = progress_of(plan.manifest, opened.rows, record)
        self._progress.cancelling = self._progress.cancelling or plan.undo_only or self._requested == "compensate"
        self._spent = plan.spent and not self._progress.cancelling and self._progress.phase(()) == "forward"
        self._progress.cancelling = self._progress.cancelling or self._spent
        self._heartbeat = leases.Heartbeat(
            store.beat,
            lease,
            loop,
            drop=store.drop_lease,
            lost=lambda error: _soon(loop, lambda: self._lose(error)),
            requested=self._pass.asked,
        )
        cancelled: asyncio.CancelledError | None = None
        try:
            with marked():
                await self._tell_start(store, record, opened)
                try:
                    await self._all_of_it(store, opened)
                except asyncio.CancelledError as interruption:
                    cancelled = interruption
                    self.wind_down_soon("interrupted")
                    await self._drained()
                except BaseException:  # a defect of ours: nobody takes the run over while its steps still run
                    self._stop.set()
                    await self._drained()
                    raise
        finally:
            self._heartbeat.close()
            self._threads.close()
        result: FlowResult = await in_thread(lambda: self._ended(store, opened))
        if self._broken is None and self._lost is None:
            await in_thread(lambda: plan.home.tidy(store, began))
        self._show(result)
        if cancelled is not None:
            mark_with_result(cancelled, result)
            raise cancelled
        return result

    async def _tell_start(self, store: Store, record: RunRecord, opened: Opened) -> None:
        from outlast.observe.events import RunStarted

        done = sum(row.deed == "do" and row.state in DONE for row in opened.rows)
        event = RunStarted(
            run_id=record.id, pipeline=record.pipeline, run_key=record.run_key, finished=done, unit="steps"
        )
        row = as_row(event)
        if listening():
            emit(event)
        await in_thread(lambda: keep_trying(lambda: store.add_events([row], opened.lease), "the store"))
        if opened.changed is not None and opened.changed.policy:
            warn("%s: goes on with other retries or limits: %s", record.run_key, ", ".join(opened.changed.policy))
        if opened.changed is not None and opened.changed.mended:
            warn("%s: goes on with other work in: %s", record.run_key, ", ".join(opened.changed.mended))

    async def _all_of_it(self, store: Store, opened: Opened) -> None:
        """What has to be undone first, then all steps, then what is to be undone."""
        progress, there = self._progress, self._pass
        assert progress is not None and there is not None  # noqa: S101, PT018 - made before
        if opened.redo:
            progress.redoing = {*opened.redo}
            undone = await self._undo_each(opened.first)
            if progress.cancelling:  # then everything is undone, and nothing done again
                progress.redoing.clear()
            elif self._ends or not undone:
                return
            else:
                await in_thread(lambda: self._again(store, opened))
        await self._forward()
        await self._look_for_request(store, opened)
        if self._ends and not progress.cancelling:
            return
        if self._comes_back() or progress.phase(()) != "undo":
            return
        self._stop = there.stop = Stop()
        self._undoes = True
        await self._undo_all()

    async def _look_for_request(self, store: Store, opened: Opened) -> None:
        """What was wanted while the last step ran is heard before anything follows from its end."""
        if self._ends:
            return
        found: list[RunRequest | None] = []
        with suppress(StoreError):  # which the end of the run tells
            await in_thread(
                lambda: found.append(keep_trying(lambda: store.wanted_of(opened.record.number), "the store"))
            )
        if found and found[0] is not None:
            self._hear_wanted(found[0])

    @property
    def _ends(self) -> bool:
        """Whether nothing more is begun, because somebody has asked for it or because it is not ours to do."""
        return self._requested is not None or self._lost is not None or self._broken is not None

    def _comes_back(self) -> bool:
        """Whether a durable job tries again what has failed: then nothing is undone now."""
        progress, final = self._progress, self.plan.final
        if final is None or progress is None or progress.undoing or progress.cancelling:
            return False
        if names := progress.failed or progress.partial:
            self.comes_back = not final([(progress.do[name], self._errors.get(name)) for name in names])
        return self.comes_back

    def _follows(
        self, step: ManifestStep, error: Exception, reason: StopReason, attempts: int | None
    ) -> float | StopReason:
        """Whether the job is retried after a step has failed. One that is cancelled is not. From the thread of the step."""
        progress, follows = self._progress, self.plan.follows
        cancelled = self._requested in _CANCELS or (progress is not None and (progress.cancelling or progress.undoing))
        return reason if follows is None or cancelled else follows(step, error, reason, attempts)

    async def _forward(self) -> None:
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        held: set[str] = set()  # the queue waits for these
        while True:
            phase = progress.phase(self._running)
            if phase == "forward" and not self._ends:
                for name in progress.ready({*self._running, *held})[: MOST - len(self._running)]:
                    self._begin(progress.manifest[name], "do")
            elif phase != "forward":
                self._stop.set()  # what waits for another attempt comes back
            if not self._running or self._gave_up:
                return
            for name, end in await self._some():
                if end.requeue is not None:
                    held.add(name)
                    self._wait_until(end.requeue)

    async def _undo_all(self) -> None:
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        while not self._undo_ends and (left := progress.to_undo()):
            await self._undo(left[0])

    async def _undo_each(self, names: list[str]) -> bool:
        """Undo these, the last one done first; whether all of them are undone."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        for name in sorted(names, key=lambda name: -(progress.do[name].completed or 0)):
            if self._ends:
                return False
            await self._undo(name)
        # What another run has done under its key is not this run's to undo.
        undone = {name for name, row in progress.undo.items() if row.state == "succeeded"}
        return all(progress.state(name) == "cached" or name in undone for name in names)

    @property
    def _undo_ends(self) -> bool:
        """As `_ends`, where to be cancelled is no reason to stop undoing, unless somebody asks twice."""
        asked = self._requested in {"interrupted", "pause"} or self._gave_up
        return asked or self._stop.is_set() or self._lost is not None or self._broken is not None

    async def _undo(self, name: str) -> None:
        progress, there = self._progress, self._pass
        assert progress is not None and there is not None  # noqa: S101, PT018 - made before
        definition = progress.do[name].definition
        step = ManifestStep(name, definition["work"], definition["policy"])
        before = progress.undo.get(name)
        if before is None or before.state == "pending":
            await in_thread(lambda: self._tell_undo(step))
        self._begin(step, "undo")
        while self._running and not self._gave_up:
            for _, end in await self._some():
                if end.state == "waiting" and end.requeue is not None:
                    self._wait_until(end.requeue)
                    self._stop.set()

    def _tell_undo(self, step: ManifestStep) -> None:
        from outlast.observe.events import CompensationTriggered

        progress, there = self._progress, self._pass
        assert progress is not None and there is not None  # noqa: S101, PT018 - made before
        failed = progress.failed
        because = (
            f"{', '.join(failed)} failed for good"
            if failed
            else "its job has no attempt left"
            if self._spent
            else "the run is cancelled"
            if progress.cancelling
            else "it is done again"
        )
        event = CompensationTriggered(
            run_id=there.record.id,
            pipeline=there.record.pipeline,
            run_key=there.record.run_key,
            step_id=step.id,
            component=str(step.work["compensate"]["component"]),
            because=because,
        )
        row = as_row(event)
        if listening():
            emit(event)
        keep_trying(lambda: there.store.add_events([row], there.lease), "the store")

    def _again(self, store: Store, opened: Opened) -> None:
        """Steps are done again, from their first attempt on."""
        plan, progress, there = self.plan, self._progress, self._pass
        assert progress is not None and there is not None  # noqa: S101, PT018 - made before
        number = there.round = there.round + 1
        keep_trying(lambda: store.reset_steps(opened.lease, opened.redo, round_number=number), "the store")
        keep_trying(
            lambda: store.set_run(
                opened.lease, opened.record.id, status="running", identity=identity_of(plan), same_pass=True
            ),
            "the store",
        )
        for name in opened.redo:
            there.outputs.pop(name, None)
        progress.do.clear()
        progress.undo.clear()
        progress.redoing.clear()
        progress.put(keep_trying(lambda: store.flow_steps(opened.record.number), "the store"))

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _begin(self, step: ManifestStep, deed: Deed) -> None:
        progress, there = self._progress, self._pass
        assert progress is not None and there is not None  # noqa: S101, PT018 - made before
        rows = progress.do if deed == "do" else progress.undo
        work = StepWork(there, step, deed, rows.get(step.id))
        future = self._threads.begun(work.do)
        self._running[step.id] = (work, future)
        future.add_done_callback(lambda _: self._news.set())
        self._look()

    async def _some(self) -> list[tuple[str, StepEnd]]:
        """Wait until something has come back; what has."""
        await self._news.wait()
        self._news.clear()
        return self._collect()

    def _collect(self) -> list[tuple[str, StepEnd]]:
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        found: list[tuple[str, StepEnd]] = []
        for name, (_, future) in list(self._running.items()):
            if not future.done():
                continue
            del self._running[name]
            end = future.result()
            found.append((name, end))
            if end.row is not None:
                progress.put([end.row])
            if end.error is not None:
                self._errors[name] = end.error
            if end.state == "lost":
                self._lose(end.error)
            elif end.state == "broken":
                self._broken = self._broken or end.error
                self._stop.set()
        self._look()
        return found

    async def _drained(self) -> None:
        """Wait for what runs, unless that is given up."""
        while self._running and not self._gave_up:
            try:
                await self._some()
            except asyncio.CancelledError:
                self._give_up()

    def _lose(self, error: BaseException | None) -> None:
        self._lost = self._lost or error or LeaseLost("the lease was taken over")
        self._stop.set()
        self._give_up()  # somebody else may be at the same steps
        self._news.set()

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _standing(self) -> tuple[str, str | None]:
        """The status, and the reason for it."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        if self._lost is not None:
            return "interrupted", "lease_lost"
        if self._broken is not None:
            return "failed", "store_error"
        cancelled = self._requested in _CANCELS  # then no job goes on with it, except to undo it
        if not cancelled and (self.comes_back or (self._due is not None and not progress.failed)):
            return "interrupted", "requeued"
        over = progress.phase(()) == "over"
        if self._spent and not cancelled:
            reason = "compensation_failed" if progress.not_undone() else "exhausted"
            return ("failed", reason) if over else ("interrupted", None)
        if progress.cancelling:
            return ("cancelled", "cancelled") if over else ("interrupted", "cancelling")
        if self._requested == "cancel":
            return "cancelled", "cancelled"
        if over and (progress.failed or progress.undoing):
            reason = "compensation_failed" if progress.not_undone() else "step_failed"
            return "failed", reason
        if over and progress.partial:
            return "partial_success", "incomplete"
        if over:
            return "completed", None
        if self._requested is None and progress.not_undone():
            return "failed", "compensation_failed"
        return ("paused" if self._requested == "pause" else "interrupted"), None

    def _ended(self, store: Store, opened: Opened) -> FlowResult:
        """Put the end on record, and give the lease back. What is wanted of the run by then is heard first."""
        while True:
            found = self._ended_unless_asked(store, opened)
            if not isinstance(found, str):
                return found
            self._hear_late(found)

    def _hear_late(self, request: RunRequest) -> None:
        """
        The end was about to be written. One that is completed stays that, and says so; any other one is cancelled. Nothing is
        left to pause.
        """
        progress = self._progress
        assert progress is not None  # noqa: S101 - made before
        self._heard = request
        if request not in _CANCELS:
            return
        if self._standing()[0] == "completed":
            self._too_late = True
            return
        self._requested = request
        self.comes_back = False
        if request == "compensate":
            progress.cancelling = True

    def _ended_unless_asked(self, store: Store, opened: Opened) -> FlowResult | RunRequest:
        plan, progress = self.plan, self._progress
        assert progress is not None  # noqa: S101 - made before
        for work, _ in self._running.values():  # which are not waited for any longer
            work.release()
        status, reason = self._standing()
        record, error = opened.record, self._broken or self._lost
        if error is None and (names := progress.failed or progress.partial):
            error = self._errors.get(names[0])
        error = None if error is None else without_secrets(error)
        lost = self._lost is not None

        def read(**said: Any) -> FlowResult:
            return result_of_record(store, plan.home.codec, record, plan.manifest, error=error, **said)

        try:
            if status != "completed":  # else all of it is known, as it is on record
                progress.do.clear()
                progress.undo.clear()
                progress.put(store.flow_steps(record.number))
            found = read(status=status, reason=reason, why="")
            alone = left_alone(store, record, progress)
            left = rows_left(store, plan.home.codec, record, progress)
            why = self._why(status, reason, found.dead_letters, alone, left)
            result = replace(found, why=why)
        except StoreError as broken:
            why = self._why(status, reason, 0, NOTHING)
            result = _unread(plan, record, status if status != "completed" else "failed", why, broken)
        told = self._news_of_end(result)
        unwritten, wanted = _write_end(store, opened, result, told, lost=lost, heard=self._heard)
        if wanted is not None:
            return wanted
        if unwritten is not None and result.status == "completed":  # a good end that is not on record is none
            why = f"the end of the run could not be recorded: {type(unwritten).__name__}: {error_text(unwritten)}; run it again with run_key={record.run_key!r} to go on"
            result = replace(result, status="failed", reason="store_error", why=why, error=unwritten)
            told = self._news_of_end(result)
        if listening():
            for event in told:
                emit(event)
        return result

    def _why(
        self,
        status: str,
        reason: str | None,
        letters: int,
        alone: Mapping[str, StepStatus],
        left: Mapping[str, RowsLeft] | None = None,
    ) -> str:
        progress, key = self._progress, self.plan.run_key
        assert progress is not None  # noqa: S101 - made before
        said = in_words(progress, status, key, letters, alone=alone, left=left, retried=reason == "requeued")
        if reason == "lease_lost":
            return f"another process works on this run now; {said}"
        if reason == "store_error":
            problem = f"{type(self._broken).__name__}: {error_text(self._broken)}" if self._broken is not None else ""
            return f"what was done could not be recorded: {problem}; {said}"
        if reason == "requeued":
            wait = "" if self.requeue is None else f" in {self.requeue:.3g} s"
            return f"its job goes on with it{wait}; {said}"
        if reason == "exhausted":
            return f"its job has no attempt left; {said}"
        if reason == "cancelling":
            return f"cancelled, and not everything is undone yet; {said}"
        if self._too_late:
            return f"{said}; it was asked to be cancelled when all its steps were done, which was too late"
        return said if status in {"completed", "partial_success", "failed"} else f"{status}: {said}"

    def _news_of_end(self, result: FlowResult) -> list[Event]:
        from outlast.observe import events

        identity: dict[str, Any] = {"run_id": result.id, "pipeline": result.pipeline, "run_key": result.run_key}
        told: list[Event] = []
        if self._lost is not None:
            owner = "" if self._pass is None else self._pass.lease.owner
            told.append(events.LeaseLost(**identity, owner=owner))
        elif result.status == "paused":
            told.append(events.RunPaused(**identity))
        states = [step.status for step in result.steps]
        done = sum(state in DONE for state in states)
        failed = sum(state in {"failed", PARTIAL, "compensation_failed"} for state in states)
        skipped = states.count("skipped")
        outcomes: dict[str, RunOutcome] = {"completed": "success", "partial_success": "partial"}
        told.append(
            events.RunFinished(
                **identity,
                status=result.status,
                outcome=outcomes.get(result.status, "failure"),
                reason=result.reason,
                why=result.why,
                total=len(states),
                succeeded=done,
                skipped=skipped,
                dlq=0,
                failed=failed,
                pending=len(states) - done - failed - skipped,
            )
        )
        return told

    # -- who watches -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.plan.watch is not None and self._progress is not None and self._pass is not None:
            from outlast.flow.view import view_of

            self._watched(view_of(self._progress, self._pass.record, self._running, requested=self._requested))

    def _show(self, result: FlowResult) -> None:
        if self.plan.watch is not None and self._progress is not None and self._pass is not None:
            from outlast.flow.view import view_of

            self._watched(view_of(self._progress, self._pass.record, {}, result=result))

    def _watched(self, view: Any) -> None:
        watch = self.plan.watch
        try:
            if watch is not None:
                watch(view)
        except Exception as broken:  # noqa: BLE001 - watching must not change what is watched
            report_once(watch, broken, "the run went on")


class _Threads:
    """
    Threads for steps, each of which does one at a time and then the next: to start one takes as long as a trivial step. The
    end of the program waits for none of them. Only the event loop uses this.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[SimpleQueue[Any], threading.Thread]] = []
        self._closed = False

    def begun(self, do: Callable[[], StepEnd]) -> asyncio.Future[StepEnd]:
        """Do it in a thread that nothing else uses meanwhile."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[StepEnd] = loop.create_future()
        if self._idle:
            inbox, thread = self._idle.pop()
        else:
            inbox = SimpleQueue[Any]()
            thread = threading.Thread(target=_steps_of, args=(inbox, loop), daemon=True, name="outlast-work")
            start_patiently(thread, lambda refused: None if done.done() else done.set_exception(refused))

        def arrive(came: Any, wrong: BaseException | None) -> None:
            if self._closed:
                inbox.put(None)
            else:
                self._idle.append((inbox, thread))
            if done.done():  # cancelled, by somebody who cancels all there is
                return
            if wrong is None:
                done.set_result(came)
            else:
                done.set_exception(wrong)

        inbox.put((copy_context(), do, arrive))
        return done

    def close(self) -> None:
        """Those that do nothing end now, the others when they come back."""
        self._closed = True
        for inbox, _ in self._idle:
            inbox.put(None)
        for _, thread in self._idle:
            thread.join()  # until it is gone, it keeps what it has used
        self._idle.clear()


def _steps_of(inbox: SimpleQueue[Any], loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: one step after the other."""
    while (given := inbox.get()) is not None:
        context, do, arrive = given
        came: Any = None
        wrong: BaseException | None = None
        try:
            came = context.run(do)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            wrong = error
        try:
            loop.call_soon_threadsafe(arrive, came, wrong)
        except RuntimeError:  # the loop is closed: nobody waits
            return
        finally:
            del given, context, do, arrive, came, wrong  # it keeps nothing of the step


# -- the end ---------------------------------------------------------------------------------------------------------------


def _write_end(
    store: Store, opened: Opened, result: FlowResult, told: list[Event], *, lost: bool, heard: RunRequest | None
) -> tuple[Exception | None, RunRequest | None]:
    """
    Write the end, and give the lease back; why it could not be written, or what is wanted of the run that was not `heard`:
    then nothing is written.
    """
    leases.ended(opened.lease)
    if lost:
        return None, None
    rows = [as_row(event) for event in told]

    def write() -> RunRequest | None:  # once more changes nothing
        status = "interrupted" if result.reason == "store_error" else result.status
        wanted: RunRequest | None = store.end_run(
            opened.lease, opened.record.id, status=status, reason=result.reason, why=result.why, heard=heard
        )
        if wanted is None:
            store.add_events(rows)
        return wanted

    unwritten: Exception | None = None
    try:
        wanted = keep_trying(write, "the store", patience=None if result.reason != "store_error" else 0.0)
    except Exception as error:  # noqa: BLE001 - whoever gets the result is told
        unwritten = error
        warn("the end of the run could not be written: %s", error_text(error))
    else:
        if wanted is not None:
            return None, wanted
    let_go(store, opened.lease)
    return unwritten, None


def _left_behind(store: Store, opened: Opened) -> None:
    """It did not come to its own end: what is done is on record, and the rest is for whoever goes on with it."""
    why = f"ended before it had wound down; run it again with run_key={opened.record.run_key!r} to go on"
    try:
        store.set_run(opened.lease, opened.record.id, status="interrupted", why=why)
    except Exception as error:  # noqa: BLE001 - what has ended it is raised
        warn("the end of the run could not be written: %s", error_text(error))
    if leases.held(opened.lease):
        let_go(store, opened.lease)


def _unread(plan: FlowPlan, record: RunRecord, status: str, why: str, error: BaseException) -> FlowResult:
    from outlast.flow.results import FlowResult, StepRow

    steps = tuple(StepRow(id=step.id, component=step.component, status="pending") for step in plan.manifest.steps)
    return FlowResult(
        id=record.id,
        run_key=record.run_key,
        pipeline=record.pipeline,
        status=status,  # type: ignore[arg-type]
        why=why,
        steps=steps,
        reason="store_error",
        error=error,
    )


def _nothing() -> None:
    """Nobody watches: the loop is left asleep."""


def _soon(loop: asyncio.AbstractEventLoop, do: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(do)
    except RuntimeError:  # the run is over
        return
