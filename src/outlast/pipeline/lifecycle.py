"""
A run from start to end: found or created in the store, leased, worked on by a `Runner`, and given its final status.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from outlast.components import open_sink, open_source
from outlast.errors import ConfigurationError, LeaseLost
from outlast.kernel.clock import REAL, Stop, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.observe import emit, listening
from outlast.pipeline.engine.runner import Runner
from outlast.pipeline.errors import mark_with_result
from outlast.pipeline.identity import OtherCode, OtherKeys, changed, identity_of, in_doubt, other_code, refusal
from outlast.pipeline.intake import Intake, in_thread_until
from outlast.pipeline.keys import Ahead, NoKey, checked
from outlast.pipeline.lease import let_go, take, taken
from outlast.pipeline.logs import marked
from outlast.pipeline.record.books import Accounting, counts_in_words, in_words
from outlast.pipeline.record.writer import as_row
from outlast.pipeline.replays import (
    LOOKED_THROUGH,
    Chosen,
    LetterIntake,
    Origins,
    address_of,
    claim_sink,
    close,
    make_ready,
    mark_left,
    remember,
)
from outlast.pipeline.results import RunResult
from outlast.pipeline.view import view_of
from outlast.sharing.named import bind
from outlast.store import StoreError
from outlast.store.records import ENDED
from outlast.verdicts import classify
from outlast.work import leases
from outlast.work.leases import certainly_dead
from outlast.work.patience import keep_trying, terms
from outlast.work.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from outlast.components import Sink
    from outlast.observe.events import Event
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.results import ItemResult
    from outlast.pipeline.view import RunView
    from outlast.store import Store
    from outlast.store.records import Checkpoint, Lease, RunRecord, StageMark

_GOOD = ("completed", "partial_success")  # ends that return
_THE_END = "the end of the run"  # what could not be recorded
_WATCH = 0.2  # seconds between two looks of whoever watches


class _SinkFailed(Exception):
    """The sink of a run failed before anything was begun."""

    def __init__(self, record: RunRecord, error: Exception) -> None:
        super().__init__(f"the sink failed before anything was begun: {type(error).__name__}: {error_text(error)}")
        self.record = record
        self.error = error


class Run:
    """One pass of one run. `go` does the work; `wind_down` and `wind_down_soon` pause, cancel or interrupt it."""

    def __init__(
        self,
        plan: Plan,
        source: object,
        *,
        deliver: Callable[[ItemResult[Any]], None] | None = None,
        crowded: Callable[[], bool] | None = None,
    ) -> None:
        self.plan = plan
        self._source = source
        self._deliver = deliver
        self._crowded = crowded
        self._requested: str | None = None
        self._stop = Stop()  # ends the waits before the first item
        self._items: Any = None
        self._origins: Origins | None = None
        self._letters: LetterIntake | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: deque[str] = deque()
        self._looking: tuple[int, float] | None = None  # at the first item: which thread, since when
        self._doubted = False
        self._versioned: set[str] = set()  # stages that are another version than when it began
        self._written: list[str] = []  # stages whose functions are written in another way
        self._changed: list[str] = []  # these, and those whose functions are written in another way
        self.runner: Runner | None = None

    def wind_down(self, request: str) -> None:
        """
        Wind down (pause, cancel or interrupted); when asked twice, without waiting for running attempts. In the run's
        own loop only.
        """
        again, self._requested = self._requested is not None, self._requested or request
        if self.runner is None:
            self._stop.set()
            return
        if again:
            self.runner.cancel()
        else:
            self.runner.end(request)

    def wind_down_soon(self, request: str) -> None:
        """As `wind_down`, from any thread, from a signal handler, and before it has begun."""
        self._requests.append(request)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        while self._requests:
            self.wind_down(self._requests.popleft())

    def waiting_here(self) -> bool:
        """
        Whether this very thread stands in the source, and has for a while: nobody hears what it is asked meanwhile. For
        a signal handler.
        """
        began = self._looking if self.runner is None else self.runner.intake.reading
        return began is not None and began[0] == get_ident() and perf_counter() - began[1] > self.plan.tuning.blocked

    async def go(self) -> RunResult[Any]:
        """Work on it until nothing more can be done."""
        plan = self.plan
        self._loop = asyncio.get_running_loop()
        self._hear()
        with self._stop:
            try:
                return await self._go(plan)
            finally:
                if self.runner is None and isinstance(self._items, Ahead):  # else the runner closes it
                    self._items.close()

    async def _go(self, plan: Plan) -> RunResult[Any]:
        # What is wrong with these is said before anything is begun.
        _share(plan)
        sink, replays = open_sink(plan.sink), isinstance(self._source, Chosen)
        if not replays:
            try:
                self._looking = (get_ident(), perf_counter())
                self._items = checked(open_source(self._source), plan.item_key)
            finally:
                self._looking = None
        store: Store = await in_thread(lambda: keep_trying(lambda: plan.home.store, "the store"))
        now = identity_of(plan, sink)
        try:
            record, lease, before = await self._open(store, sink, now)
            self._doubted = in_doubt(before.identity, now)
            if before.counts.finished:
                versions = {mark.name: mark.version for mark in before.stages}
                self._written = written = changed(before.identity, now)
                self._versioned = {
                    mark.name for mark in plan.marks if versions.get(mark.name, mark.version) != mark.version
                }
                self._changed = [each.name for each in plan.marks if each.name in {*written, *self._versioned}]
            try:
                if sink is not None:
                    record = await in_thread(lambda: _ready(sink, store, record, lease, before))
                if isinstance(self._source, Chosen):
                    home = self._source.home
                    self._origins = Origins(store, record, lease, plan.bounds, elsewhere=sink is not None, given=home)
                return await self._work(store, record, lease, sink)
            except (OtherKeys, OtherCode, NoKey) as error:
                why = error_text(error)
                if before.passes:
                    await in_thread(lambda: _as_before(store, lease, before))
                else:
                    await in_thread(lambda: _not_begun(store, lease, record, why))
                raise
            except BaseException as error:
                if self.runner is None:  # it never began: nobody has to wait for the lease to end
                    why = error_text(error)
                    if before.status in ENDED:
                        await in_thread(lambda: _as_before(store, lease, before))
                    else:
                        ours = not isinstance(error, _SinkFailed)
                        await in_thread(lambda: _not_begun(store, lease, record, why, forget=ours))
                raise
            finally:
                if leases.held(lease):  # ended in the middle of winding down
                    await in_thread(lambda: _left_behind(store, lease, record))
        except _SinkFailed as failed:
            books = Accounting(plan.bounds, failed.record.counts, failed.record.spent)
            why = f"{failed}; run it again with run_key={failed.record.run_key!r} to go on"
            return self._told(store, failed.record, books, "failed", "store_error", why, failed.error)
        finally:
            if self._origins is not None:
                await in_thread(self._origins.close)
            if sink is not None:
                close(sink)

    async def _open(self, store: Store, sink: Sink | None, now: dict[str, Any]) -> tuple[RunRecord, Lease, RunRecord]:
        """The run, leased. Who is cancelled meanwhile gives it back."""
        found: list[tuple[RunRecord, Lease, RunRecord]] = []
        try:
            await in_thread(lambda: found.append(_opened(store, self.plan, sink, now)), self._stop)
        except BaseException:
            if found:
                record, lease, before = found[0]
                if before.status in ENDED:
                    await in_thread(lambda: _as_before(store, lease, before))
                else:
                    await in_thread(lambda: _not_begun(store, lease, record, "cancelled"))
            raise
        return found.pop()

    async def _work(self, store: Store, record: RunRecord, lease: Lease, sink: Sink | None) -> RunResult[Any]:
        plan, began = self.plan, here.get().clock.now()
        state = await in_thread(lambda: keep_trying(lambda: store.shard_state(record.number, 0), "the store"))
        # Of dead letters all must succeed; the rates are for their own runs.
        bounds = replace(plan.bounds, min_success_rate=1.0) if record.kind == "replay" else plan.bounds
        books = Accounting(bounds, record.counts, record.spent)
        codec, types = plan.home.codec, plan.types()
        options: dict[str, Any] = {
            "store": store,
            "run": record,
            "read_before": state.read,
            "valid": _validity(plan, record),
            "decode": lambda data, _: codec.bring_back(data, types),
            "in_thread": in_thread_until(stop := Stop()),
        }
        letters: LetterIntake | None = None
        if isinstance(self._source, Chosen) and self._origins is not None:
            letters = self._letters = LetterIntake(self._source, plan, lease, self._origins, **options)
            await in_thread(lambda: keep_trying(letters.begin, "the store"))

        intake = letters or Intake(self._items, plan.item_key, stages=plan.stages, doubted=self._doubted, **options)
        self.runner = runner = Runner(plan, store, record, lease, books, sink, intake, stop, self._deliver)
        if self._crowded is not None:
            runner.crowded = self._crowded
        started = _tell_start(record, plan.target)
        if self._requested is not None:
            runner.end(self._requested)
        cancelled: asyncio.CancelledError | None = None
        watcher = None if plan.watch is None else _Watcher(runner, plan.watch)
        try:
            with marked():
                try:
                    if await runner.run(started) and (sink is not None or letters is not None):
                        await self._finish(runner, sink)
                except asyncio.CancelledError:
                    runner.end("interrupted")  # also while its sink is finished: a resume does that
                    raise
                finally:
                    await runner.close()
        except asyncio.CancelledError as interruption:
            cancelled = interruption
        if watcher is not None:
            watcher.task.cancel()
        if isinstance(runner.error, OtherKeys) or (isinstance(runner.error, NoKey) and not runner.intake.read):
            raise runner.error  # nothing was begun
        if self._is_finished_by_others(runner, record):
            raise other_code(plan.name, record.run_key, letters=bool(record.counts.dlq))
        if letters is not None and runner.status != "lost":
            await in_thread(lambda: _set_free(store, lease, record))
        result = runner.result = self._result(runner, types)
        told = _news(record, lease, result, lost=runner.status == "lost")
        unwritten = await in_thread(lambda: _ended(store, lease, record, result, told, lost=runner.status == "lost"))
        if unwritten is not None and result.status in _GOOD:  # a good end that is not on record is none
            runner.status, runner.reason, runner.error = "failed", "store_error", unwritten
            if isinstance(unwritten, LeaseLost):
                runner.status = "lost"
            runner.detail = _THE_END
            result = runner.result = self._result(runner, types)
            told = _news(record, lease, result, lost=runner.status == "lost")
        if listening():
            for event in told:
                emit(event)
        if cancelled is None and runner.reason != "store_error":
            await in_thread(lambda: plan.home.tidy(store, began))
        if watcher is not None:
            watcher.look()
        if cancelled is not None:
            mark_with_result(cancelled, result)
            raise cancelled
        if runner.reason == "aborted" and isinstance(runner.error, KeyboardInterrupt | SystemExit):
            mark_with_result(runner.error, result)
            raise runner.error
        return result

    # -- the end

    def _is_finished_by_others(self, runner: Runner, record: RunRecord) -> bool:
        """
        Whether this pass found every item finished and every stage written in another way: another program may have the
        same names. With open work, changed code is only reported.
        """
        before, now = record.counts, runner.books.counts()
        return (
            self.plan.kind == "run"
            and self.plan.on_change == "stop"
            and {*self._written} == {stage.name for stage in self.plan.stages}
            and runner.status is runner.reason is None
            and now.source_exhausted
            and now.total == now.finished == before.finished
        )

    async def _finish(self, runner: Runner, sink: Sink | None) -> None:
        """
        Tell the sink that the run is over, unless it is to go on, or it is not ours any more, or has failed itself; and
        the sinks that something has come home to, in any case.
        """
        (status, reason), store, lease = self._called(runner), runner.store, runner.lease
        if reason in {"store_error", "lease_lost"}:
            return
        try:
            if self._origins is not None:
                await in_thread(self._origins.finish)
            if sink is not None and status in ENDED:
                await in_thread(lambda: keep_trying(sink.finish, "the sink"))
                if self._origins is not None or runner.record.replayed_by is not None:
                    await in_thread(lambda: keep_trying(lambda: store.hold_sink(lease, None), "the store"))
            if sink is not None:
                await in_thread(lambda: mark_left(store, lease, sink))
        except Exception as error:  # noqa: BLE001 - all items are on record: a resume finishes it
            runner.status, runner.reason, runner.error = "failed", "store_error", error

    def _result(self, runner: Runner, types: dict[str, type]) -> RunResult[Any]:
        status, reason = self._called(runner)
        why = self._why(status, reason, runner)
        return self._told(runner.store, runner.record, runner.books, status, reason, why, runner.error, types)

    def _told(
        self,
        store: Store,
        record: RunRecord,
        books: Accounting,
        status: str,
        reason: str | None,
        why: str,
        error: BaseException | None,
        types: dict[str, type] | None = None,
    ) -> RunResult[Any]:
        plan, codec = self.plan, self.plan.home.codec
        return RunResult(
            id=record.id,
            run_key=record.run_key,
            pipeline=plan.name,
            status=cast("Any", status),
            outcome=books.outcome(),
            reason=reason,
            why=why,
            counts=books.counts(),
            spent=dict(books.spent),
            error=error,
            _number=record.number,
            _kind=record.kind,
            _store=lambda: store,
            _decode=lambda data: codec.decode(data, plan.types() if types is None else types),
        )

    def _why(self, status: str, reason: str | None, runner: Runner) -> str:
        untried = None if self._letters is None else self._letters.untried_in_all
        said = _why(status, reason, runner, untried) + _whereabouts(runner.sink)
        said += _what_changed(self._changed, self._versioned)
        if self._letters is None:
            return said
        note = self._letters.note if status in ENDED else ""
        more = self._letters.in_words(ended=status in ENDED)
        return f"{(note or said).rstrip('.')}. {more}" if more else note or said

    def _called(self, runner: Runner) -> tuple[str, str | None]:
        """What the end is called, and why if not just so."""
        if runner.status == "lost":
            return "failed", "lease_lost"
        books = runner.books
        # What a signal, a pause or a cancel has left nothing of has come to its own end.
        if runner.status is not None and not (runner.reason == runner.status and books.all_ended):
            return runner.status, runner.reason if runner.reason != runner.status else None
        if runner.reason not in {None, runner.status}:
            return "failed", runner.reason
        if books.bounds.final_check and books.over_budget:
            return "failed", "failure_budget_exceeded"
        return books.verdict()


class _Watcher:
    """Calls a user's function with views of a run. One that raises is called no more, and the run goes on."""

    def __init__(self, runner: Runner, watch: Callable[[RunView], None]) -> None:
        self._runner = runner
        self._watch: Callable[[RunView], None] | None = watch
        self.task = asyncio.create_task(self._again_and_again())

    def look(self) -> None:
        """Call it once."""
        if self._watch is None:
            return
        try:
            self._watch(view_of(self._runner))
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more
            self._watch = None
            key, text = self._runner.record.run_key, error_text(error)
            warn("the watch function of run %s raised %s: %s. It is called no more", key, type(error).__name__, text)

    async def _again_and_again(self) -> None:
        while self._watch is not None:
            self.look()
            await asyncio.sleep(_WATCH)


# -- the beginning ----------------------------------------------------------------------------------------------------------------


def _share(plan: Plan) -> None:
    """Bind what the stages share with other processes to this app's store."""
    if not here.get().clock.virtual:
        guards = [stage.guard for stage in plan.stages]
        bind(
            [thing for guard in guards for thing in (guard.breaker, guard.limit, guard.retry_budget)], plan.home.commons
        )


def _opened(store: Store, plan: Plan, sink: Sink | None, now: dict[str, Any]) -> tuple[RunRecord, Lease, RunRecord]:
    """The run of this key, the right to work on it and to write to its sink, and the run as it was found."""
    name = None if sink is None else sink.name
    key, at = plan.run_key or REAL.ids.new(), address_of(plan.sink)
    record: RunRecord = keep_trying(
        lambda: store.open_run(
            plan.name,
            key,
            plan.marks,
            kind=plan.kind,
            sink=name,
            sink_at=at,
            identity=now,
            is_new=plan.run_key is None,
        ),
        "the store",
    )
    try:
        _admit(plan, record, name, at, now)
        if sink is not None:
            with _failing(record):
                claim_sink(sink, store, record)
    except BaseException:
        if not record.passes:  # nobody has ever worked on it: what was refused binds nobody
            _withdraw(store, record)
        raise
    lease, bound = take(store, record), _is_bound(record)
    try:
        known: RunRecord | None = None if bound else keep_trying(lambda: store.run(record.id), "the store")
        if not bound and (known is None or _is_bound(known)):
            # Another process has withdrawn it, or read something of it, before the lease was there.
            if known is not None or not keep_trying(lambda: store.forget_run(lease), "the store"):
                let_go(store, lease)
            leases.ended(lease)
            return _opened(store, plan, sink, now)
        goes_on = keep_trying(
            lambda: store.set_run(
                lease,
                record.id,
                status="running",
                stages=None if bound else plan.marks,
                # What has changed is told once; keys are judged by what is on record, whatever function gives them.
                identity={**record.identity, "code": now["code"]} if bound and record.identity is not None else now,
            ),
            "the store",
        )
        if not goes_on:  # it was cancelled while the lease of another process was waited for
            raise _cancelled(plan, record.run_key)
        if record.sink_at != at:
            keep_trying(lambda: store.note_sink(lease, at), "the store")
        if not bound and (record.sink, record.sink_at) != (name, at):
            keep_trying(lambda: store.change_sink(lease, name, anew=record.sink_at != at), "the store")
        if plan.reopens_failed and record.status == "failed":
            keep_trying(lambda: store.reopen_failed(lease), "the store")
        # With the counts of who had the lease before.
        again: RunRecord = keep_trying(lambda: store.run(record.id), "the store") or record
        if again.passes > 1:
            # In a run of an older version attempts may be on record under higher numbers, which must not come twice.
            newest: int = keep_trying(lambda: store.newest_pass(record.number), "the store")
            again = replace(again, passes=max(again.passes, newest + 1))
    except BaseException:
        let_go(store, lease)
        raise
    remember(record.id, plan.sink)
    here.get().ids.begin(f"{again.id}/{again.passes}")
    return again, lease, record


def check_resume(plan: Plan) -> None:
    """Raise what a resume of this run would before any of its work begins. Nothing is changed."""
    store, sink = plan.home.store, open_sink(plan.sink)
    try:
        record = store.find_run(plan.name, plan.run_key or "")
        if record is None:
            return
        _admit(plan, record, None if sink is None else sink.name, address_of(plan.sink), identity_of(plan, sink))
        lease = store.run_lease(record.number, 0)
        if lease is not None and not certainly_dead(lease.owner):
            raise taken(record, lease)
    finally:
        if sink is not None:
            close(sink)


def _cancelled(plan: Plan, key: str) -> ConfigurationError:
    return ConfigurationError(f"the run {key!r} of {plan.name} was cancelled: begin another one with another run_key.")


def _is_bound(record: RunRecord) -> bool:
    """
    Whether what makes the run itself must stay: something was read. Until then nothing is finished, and nothing is in
    its sink.
    """
    return record.passes > 0 and record.counts.total > 0


def _admit(plan: Plan, record: RunRecord, name: str | None, at: str | None, now: dict[str, Any]) -> None:
    """Complain if the run of this key is another one than is meant."""
    key = record.run_key
    if record.kind != plan.kind:
        other = "a replay of dead letters" if record.kind == "replay" else "a run"
        way = f"Go on with it: outlast resume {key}" if record.kind == "replay" else "Choose another run_key"
        message = f"expected run_key to be that of a {plan.kind}, got: {key!r}, which is {other}. {way}."
        raise ConfigurationError(message)
    if record.status == "cancelled":
        raise _cancelled(plan, key)
    if not _is_bound(record):
        return
    if record.sink != name and (at is None or record.sink_at != at):
        raise ConfigurationError(
            f"expected the sink of the run {key!r} to stay the same, {record.sink or 'the store'}, got: {name or 'none'}. "
            "What it has finished is there: give the same sink, or another run_key."
        )
    if plan.kind == "run" and (problem := refusal(record.identity, now, key)) is not None:
        raise ConfigurationError(problem)
    before, after = _versions(record.stages), _versions(plan.marks)
    if before != after and plan.on_change == "stop":
        old, new = (", ".join(f"{name} {version}" for name, version in marks) for marks in (before, after))
        raise ConfigurationError(
            f"the stages have changed since the run {key!r} of {plan.name} began ({old}; now {new}). Finished items stay as they are: "
            'on_change="keep" goes on with the checkpoints of the old stages, on_change="redo" without them.'
        )


@contextmanager
def _failing(record: RunRecord) -> Iterator[None]:
    """
    What the sink of a run raises here fails the run, unless it refuses it. One that nobody has worked on yet is refused
    in any case.
    """
    try:
        yield
    except (ConfigurationError, LeaseLost, StoreError, InterruptedError, ImportError):
        raise
    except Exception as error:
        if not record.passes:
            raise
        raise _SinkFailed(record, error) from error


def _withdraw(store: Store, record: RunRecord) -> None:
    """Forget a run that was refused before anybody has worked on it, unless somebody does so by now."""
    try:
        lease = store.take_run(record.number, 0, leases.myself(), terms.get().ttl)
        if lease is not None and not store.forget_run(lease):
            let_go(store, lease)
    except Exception as error:  # noqa: BLE001 - why it was refused is raised
        warn("a run that was refused stays on record: %s", error_text(error))


def _versions(marks: Iterable[StageMark]) -> list[tuple[str, str]]:
    return [(mark.name, mark.version) for mark in marks]


def _validity(plan: Plan, record: RunRecord) -> Callable[[Checkpoint], bool]:
    """
    Whether an item may go on behind a checkpoint: not if that stage or one before it has changed and is to be redone.
    """
    now, before = _versions(plan.marks), _versions(record.stages)

    def valid(checkpoint: Checkpoint) -> bool:
        if checkpoint.stage + 1 >= len(now):
            return False
        if plan.on_change == "redo":
            reach = checkpoint.stage + 1
            return now[:reach] == before[:reach] and checkpoint.version == now[checkpoint.stage][1]
        return checkpoint.stage < len(before) and before[checkpoint.stage][0] == now[checkpoint.stage][0]

    return valid


def _ready(sink: Sink, store: Store, record: RunRecord, lease: Lease, before: RunRecord) -> RunRecord:
    if record.kind == "replay":  # who finds it dead makes its sink good
        keep_trying(lambda: store.hold_sink(lease, record.id), "the store")
    try:
        with _failing(before):
            return make_ready(sink, store, record, lease, before=before)
    except ConfigurationError:
        if record.kind != "replay":
            raise
        runs = keep_trying(lambda: store.runs(record.pipeline, limit=LOOKED_THROUGH), "the store")
        same = [run for run in runs if run.kind == "run" and run.sink_at == record.sink_at]
        # Of an object only its kind is on record; of a file the name may be relative.
        own = next((run for run in same if sink.place is not None or run.sink == sink.name), None)
        if own is None:
            raise
        raise ConfigurationError(
            f"expected sink to be a new one, got: {sink.name}, which is that of the run {own.run_key!r}. "
            "What is replayed goes to the sink of its run by itself: leave sink out."
        ) from None


def _set_free(store: Store, lease: Lease, record: RunRecord) -> None:
    """Letters that were claimed and not settled are open again."""
    try:
        keep_trying(lambda: store.free_letters(lease, record.id, "its replay has ended before its turn"), "the store")
    except Exception as error:  # noqa: BLE001 - whoever replays next opens them
        warn("letters of the replay could not be opened again: %s", error_text(error))


def _tell_start(record: RunRecord, target: str | None) -> Event:
    from outlast.observe.events import RunStarted

    identity: dict[str, Any] = {"run_id": record.id, "pipeline": record.pipeline, "run_key": record.run_key}
    event = RunStarted(**identity, finished=record.counts.finished, target=target)
    if listening():
        emit(event)
    return event


# -- the end ------------------------------------------------------------------------------------------------------------------------


def _news(record: RunRecord, lease: Lease, result: RunResult[Any], *, lost: bool) -> list[Event]:
    """The events that tell the end."""
    from outlast.observe import events

    identity: dict[str, Any] = {"run_id": record.id, "pipeline": record.pipeline, "run_key": record.run_key}
    told: list[Event] = []
    if lost:
        told.append(events.LeaseLost(**identity, owner=lease.owner))
    elif result.status == "paused":
        told.append(events.RunPaused(**identity))
    counts = result.counts
    told.append(
        events.RunFinished(
            **identity,
            status=result.status,
            outcome=result.outcome,
            reason=result.reason,
            why=result.why,
            total=counts.total,
            succeeded=counts.succeeded,
            skipped=counts.skipped,
            dlq=counts.dlq,
            failed=counts.failed,
            pending=counts.pending,
        )
    )
    return told


def _ended(
    store: Store, lease: Lease, record: RunRecord, result: RunResult[Any], told: list[Event], *, lost: bool
) -> Exception | None:
    """Write the end, and give the lease back; why it could not be written."""
    leases.ended(lease)
    if lost:
        return None
    rows = [as_row(event) for event in told]

    def write() -> None:  # once more changes nothing
        store.set_run(lease, record.id, status=result.status, reason=result.reason, why=result.why)
        store.add_events(rows)

    unwritten: Exception | None = None
    try:
        if result.status in ENDED and result.reason != "store_error":
            keep_trying(write, "the store")  # whoever gets this result must find it there, too
        else:  # the store was waited for, or somebody waits for us to end
            write()
    except Exception as error:  # noqa: BLE001 - whoever gets the result is told
        unwritten = error
        warn("the end of the run could not be written: %s", error_text(error))
        if classify(error).category == "permanent":
            return unwritten
    let_go(store, lease)
    return unwritten


def _not_begun(store: Store, lease: Lease, record: RunRecord, why: str, *, forget: bool = True) -> None:
    """A run of which nothing is on record is forgotten; one that is not to be forgotten has failed."""

    def write() -> None:
        if not forget:
            store.set_run(lease, record.id, status="failed", reason="store_error", why=why)
        elif store.forget_run(lease):
            leases.ended(lease)
        else:
            store.set_run(lease, record.id, status="interrupted", why=f"could not begin: {why}")

    _given_back(store, lease, write)


def _left_behind(store: Store, lease: Lease, record: RunRecord) -> None:
    """It did not come to its own end: what is finished is on record, and the rest is for whoever goes on with it."""
    why = "ended before it had wound down; run it again to go on"
    _given_back(store, lease, lambda: store.set_run(lease, record.id, status="interrupted", why=why))


def _as_before(store: Store, lease: Lease, before: RunRecord) -> None:
    """It was refused: the run is what it was."""
    status = "interrupted" if before.status == "running" else before.status
    said: dict[str, Any] = {"status": status, "reason": before.reason, "why": before.why, "identity": before.identity}
    _given_back(store, lease, lambda: store.set_run(lease, before.id, **said))


def _given_back(store: Store, lease: Lease, write: Callable[[], object]) -> None:
    """Write what is to be said of a run, and give its lease back."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - what has ended it, or kept it from beginning, is raised
        warn("the end of the run could not be written: %s", error_text(error))
    if leases.held(lease):  # else it went with a run that was forgotten
        let_go(store, lease)


def _why(status: str, reason: str | None, runner: Runner, untried: int | None) -> str:
    """What the run came to, in a sentence or two."""
    counts, bounds = runner.books.counts(), runner.books.bounds
    missing = counts.source_exhausted and runner.status is None and runner.reason is None
    elsewhere = runner.record.elsewhere
    said = counts_in_words(counts, missing=missing, elsewhere=elsewhere, untried=untried)
    again = f"; run it again with run_key={runner.record.run_key!r} to go on"
    problem = "" if runner.error is None else f"{type(runner.error).__name__}: {error_text(runner.error)}"
    match reason or status:
        case "completed" | "partial_success" | "low_success_rate":
            return in_words(status, reason, counts, bounds, missing=missing, elsewhere=elsewhere, untried=untried)
        case "failure_budget_exceeded" if runner.error is not None:
            return f"{error_text(runner.error)} {said}"
        case "failure_budget_exceeded":
            return f"failure rate {runner.books.rate:.1%} exceeds the budget of {bounds.failure_budget:.1%}; {said}"
        case "same_failure":
            return f"50 items in a row failed in the same way ({runner.detail}); {said}"
        case "fatal_error":
            return f"no other item can succeed either: {runner.detail}; {said}"
        case "item_error":
            return f"an item failed, and on_item_error is stop: {runner.detail}; {said}"
        case "spend_limit":
            spent = runner.books.spent.get(runner.detail, 0.0)
            return f"the spend limit of {(bounds.spend_limit or {}).get(runner.detail):g} {runner.detail} is reached ({spent:g}); {said}; run it again with run_key={runner.record.run_key!r} and a higher limit to go on"
        case "breaker_open":
            return f"{runner.detail or 'a circuit breaker stayed open'}; {said}{again}"
        case "source_error":
            return f"the source failed with {problem}; {said}{again}"
        case "store_error":
            return f"{_THE_END if runner.detail is _THE_END else 'what was finished'} could not be recorded: {problem}; {said}{again}"
        case "resource_error":
            return f"a resource could not be opened: {problem}"
        case "lease_lost":
            return f"another process works on this run now; {said}"
        case "aborted":
            return f"ended by {problem}; {said}{again}"
        case "paused":
            return f"paused: {said}{again}"
        case "cancelled":
            return f"cancelled: {said}"
        case _:
            return f"interrupted: {said}{again}"


def _what_changed(stages: list[str], versioned: set[str]) -> str:
    """What is finished keeps its outputs: that is told, and what would tell the old from the new unless it was said."""
    kept = "changed since, and what is finished keeps its outputs"
    silent, said = ([name for name in stages if (name in versioned) is told] for told in (False, True))
    parts = [
        f"the {what} of {', '.join(names)} {'has' if len(names) == 1 else 'have'} {kept}{way}"
        for what, names, way in (("version", said, ""), ("code", silent, ": say version= to tell the old from the new"))
        if names
    ]
    for part in parts:
        warn("%s", part)
    return "".join(f"; {part}" for part in parts)


def _whereabouts(sink: Sink | None) -> str:
    waits = None if sink is None else sink.waits
    return "" if waits is None else f". What they became waits in {waits} until the run is over"


def announce(result: RunResult[Any]) -> None:
    """Tell a person at the terminal what is left and how to go on."""
    print(f"outlast: run {result.run_key} of {result.pipeline} {result.why}", file=sys.stderr)  # noqa: T201 - it is asked for by Ctrl-C
