"""
What a worker does for jobs that have failed for good: it undoes what their code has registered, the last one first.

    claim      a job that has failed, and has something registered; it stays failed, and its row says who undoes it
    begin      on record before the function is called: whoever finds it so later knows of a crash
    end        undone; or due again after a wait, for which the job is given back; or failed, with a dead letter
    leave      its worker ends, and a function does not: the lease is kept until that has ended, or its process

Nothing here waits: a job whose next attempt is due later is given back, and claimed again by whoever is there then. One that
could not be undone keeps none of the others from it. The job's own end is never touched. `judged` is pure: what follows an attempt.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from inspect import isasyncgen, isgenerator
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast import presets
from outlast.calls.records import Context
from outlast.calls.state import current_work, gave_up, latest, running
from outlast.deadletters.fingerprints import fingerprint
from outlast.errors import LeaseLost, PermanentFailure, TemporaryFailure
from outlast.isolation.threads import start_thread
from outlast.jobs import telling
from outlast.jobs.outcome import POISON, Ending, follows
from outlast.jobs.places import NotFound, found_at, is_main, program
from outlast.jobs.running import UNDERWAY
from outlast.kernel.clock import REAL, ahead_us, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.pipeline.engine.attempts import failure_of
from outlast.pipeline.stages import annotations_of
from outlast.policy import plain
from outlast.settings.callables import PLAIN, awaitable, kind_of
from outlast.store.codec import Lost, types_in
from outlast.store.compensations import CompensationEnd
from outlast.store.records import DeadLetterRow, pipeline_of_kind, to_us
from outlast.verdicts import classify
from outlast.work import leases
from outlast.work.patience import keep_trying
from outlast.work.threads import begun_in_thread, in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from outlast.jobs.running import JobRunner, Kind
    from outlast.jobs.tenure import Tenure
    from outlast.store.compensations import CompensationRecord, UndoneJob

#: As for the steps of flows: what undoes something is also tried again after errors of which nobody knows whether they pass. What a
#: guard of the function itself has tried again is not.
POLICY = presets.step.replace(on_errors=(*presets.step.on_errors, "unclear"), retry_exhausted=False)
AT_ONCE = 8  # jobs that one worker undoes at a time, beside those that it runs
# Seconds until a worker is asked again, after one that does not know the function; they are doubled, up to four hours. After a day in all
# that is the end.
_UNKNOWN, _LONGEST_UNKNOWN, _MOST_UNKNOWN = 30.0, 14_400.0, 15
_PAUSE = 0.5  # seconds after the store could not be used for long
_BEATS = 4  # of a lease that is kept for what was left behind, while it lasts


class _Tried(NamedTuple):
    """What a policy is asked about: the attempts made, and the wait before the last one."""

    attempts: int
    previous_us: int | None


def judged(one: CompensationRecord, error: Exception, ending: Ending) -> CompensationEnd:
    """What follows an attempt to undo something that has raised this; the letter is not there yet."""
    tried: Any = _Tried(one.attempts, one.previous_us)
    verdict = classify(error)
    said: dict[str, Any] = {
        "error": error_text(error),
        "error_type": type(error).__name__,
        "error_class": verdict.error_class,
    }
    answer = follows(tried, error, POLICY, ending, verdict)
    if isinstance(answer, str):
        return CompensationEnd(one.place, "failed", stop_reason=plain(answer), **said)
    return CompensationEnd(one.place, "due", delay_us=round(answer * 1e6), **said)


def after_crash(one: CompensationRecord, roll: float) -> CompensationEnd:
    """What becomes of something that was being undone when its worker was lost. It costs no attempt, and the third is the end."""
    crashes = one.crashes + 1
    text = "its worker ended or stood still while it undid this"
    if crashes >= POISON:
        text = f"{crashes} workers ended or stood still while they undid this: it is not tried again"
        said = {"error": text, "error_type": "WorkerLost", "error_class": "poison"}
        return CompensationEnd(one.place, "failed", crashed=True, charged=False, stop_reason="poison", **said)  # type: ignore[arg-type]
    wait = 0.0 if crashes == 1 else POLICY.delay(1, roll, None, None)
    said = {"error": text, "error_type": "WorkerLost", "error_class": "worker_lost"}
    return CompensationEnd(one.place, "due", round(wait * 1e6), charged=False, crashed=True, **said)  # type: ignore[arg-type]


def not_found(one: CompensationRecord, missing: NotFound) -> CompensationEnd:
    """This worker does not know the function. Another one may, so it waits, but not for ever."""
    text = f"this worker cannot undo it: {missing}"
    said = {"error": text, "error_type": "NotFound", "error_class": "code_error"}
    if one.unknown + 1 >= _MOST_UNKNOWN:
        return CompensationEnd(one.place, "failed", unknown=True, stop_reason="exhausted", **said)  # type: ignore[arg-type]
    wait = min(_LONGEST_UNKNOWN, _UNKNOWN * 2**one.unknown)
    return CompensationEnd(one.place, "due", round(wait * 1e6), unknown=True, **said)  # type: ignore[arg-type]


class _Underway:
    """What `current_work` holds while something is undone."""

    deadline = None

    def __init__(self, app: str, job: UndoneJob, one: CompensationRecord) -> None:
        self._app = app
        self.job = job
        self.one = one
        self.told = {"job_id": str(job.id), "job_kind": job.kind}

    def context(self) -> Context:
        context = Context(attempt=self.one.attempts + 1, max_attempts=POLICY.max_attempts, key=self.key)
        self.fill(context)
        return context

    def fill(self, context: Context) -> None:
        context.job_id = str(self.job.id)

    def key(self) -> str:
        """The same however often this is undone."""
        job = self.job
        parts = f"{self._app}\x1f{job.kind}\x1f{job.id}\x1f{job.enqueued_us}\x1fundo\x1f{self.one.place}"
        return blake2b(parts.encode(), digest_size=16).hexdigest()


class _Call:
    """A function that undoes something, while its code runs. What has called it may be gone before it."""

    def __init__(self, tenure: Tenure, job: UndoneJob, one: CompensationRecord, *, blocking: bool) -> None:
        self.tenure = tenure
        self.job = job
        self.one = one
        self.blocking = blocking
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self.over = False
        self.undone = False  # it has come to its end, and raised nothing

    def runs(self) -> bool:
        """Whether its code may still run. A loop that is closed goes on with nothing."""
        return not self.over and (self.blocking or not self.loop.is_closed())

    def end(self) -> CompensationEnd:
        """What became of it, if nobody has waited for that: what was cut off costs no attempt."""
        return CompensationEnd(self.one.place, "undone") if self.undone else _given_back(self.one)


class _LeftBehind(Exception):
    """The worker ends before the function that it has called."""


class Undoer:
    """
    The part of a worker that undoes failed jobs. It belongs to the event loop; blocking functions run in threads of their own.
    `changed` is called when it has come to an end, with whether it has done anything.
    """

    def __init__(
        self,
        runner: JobRunner,
        kinds: Mapping[str, Kind],
        queues: tuple[str, ...] | None,
        *,
        codec: Any,
        app: str,
        in_hand: Callable[[], set[int]],
        changed: Callable[[bool], None],
    ) -> None:
        """`in_hand` are the ids of the jobs whose code runs in this worker."""
        self._runner = runner
        self._codec = codec
        self._kinds = kinds
        self._versions = {name: kind.declared.version for name, kind in kinds.items()}
        self._queues = queues
        self._app = app
        self._in_hand = in_hand
        self._changed = changed
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._ends = False
        self._cut = False
        self._unsure = False  # perhaps it has claimed, and the answer is lost
        self._jobs: dict[asyncio.Task[None], UndoneJob] = {}
        self._calls: set[_Call] = set()
        self._leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call_ended = threading.Event()

    @property
    def cut_off(self) -> int:
        """How many jobs are being undone by code that runs. From any thread."""
        return len({call.job.id for call in self._calls.copy() if call.runs()})

    def in_hand(self) -> set[int]:
        """The ids of the jobs that are being undone. From any thread."""
        return {job.id for job in [*self._jobs.values()]} | {call.job.id for call in self._calls.copy()}

    @property
    def busy(self) -> bool:
        """Whether it is at something."""
        return bool(self._jobs) or self._looking is not None

    def look(self, tenure: Tenure | None) -> None:
        """Take what is to be undone, if there is anything."""
        if tenure is None or tenure.over or self._ends:
            return
        if self._looking is not None:
            self._again = True
            return
        loop = asyncio.get_running_loop()
        self._looking = loop.create_task(self._look(tenure), context=self._runner.base.copy())

    def end(self) -> None:
        """Begin nothing more; what runs may end."""
        self._ends = True

    def lose(self) -> None:
        """The lease is lost, and with it all that is being undone under it."""
        for task in self._jobs:
            task.cancel()

    def cut(self) -> None:
        """Do not wait for what runs: async functions are cancelled, and all that has ended is given back."""
        self._ends = self._cut = True
        self.lose()

    async def close(self, patience: float) -> None:
        """
        After `cut`: wait until all of it is given back, for so many seconds at most. What blocks for longer is left behind: it stays on
        record as begun. To give it back would have it called a second time, beside itself.
        """
        until = REAL.clock.monotonic() + patience
        while tasks := [task for task in (self._looking, *self._jobs) if task is not None]:
            left = until - REAL.clock.monotonic()
            if left <= 0:
                break
            await asyncio.wait(tasks, timeout=left)
        if not self._leaving.done():
            self._leaving.set_result(None)

    def outlive(self, tenure: Tenure) -> bool:
        """
        After `close`, and after the tenure is closed: whether code runs on that undoes something. Then a thread keeps the lease until
        that has ended, puts it on record and gives all of it back. If the process ends before, others find it dead, and that is a crash.
        """
        calls = [call for call in self._calls if call.tenure is tenure]
        if not calls:
            return False
        leases.kept(tenure.lease)
        see_out = partial(self._see_out, tenure, calls)
        try:
            start_thread(threading.Thread(target=copy_context().run, args=(see_out,), daemon=True, name="outlast-left"))
        except TemporaryFailure:
            leases.ended(tenure.lease)  # it runs out by itself: to release it would have the code called beside itself
        return True

    # -- claiming ----------------------------------------------------------------------------------------------------

    async def _look(self, tenure: Tenure) -> None:
        try:
            while True:
                self._again = False
                room = AT_ONCE - len(self._jobs)
                known = self._in_hand() | {job.id for job in self._jobs.values()}
                found = await in_thread(partial(self._claimed, tenure, room, known)) if room > 0 else []
                for job in found:
                    task = asyncio.get_running_loop().create_task(
                        self._undo(tenure, job), context=self._runner.base.copy()
                    )
                    self._jobs[task] = job
                    task.add_done_callback(partial(self._ended, tenure))
                    if self._cut:
                        task.cancel()
                if not self._again and len(found) < room:
                    break
                if room <= 0:
                    break
        finally:
            self._looking = None
            if self._unsure and not self._ends:
                asyncio.get_running_loop().call_later(_PAUSE, self.look, tenure)
            if not self._jobs:
                self._changed(False)  # noqa: FBT003 - as a callback has it

    def _claimed(self, tenure: Tenure, room: int, known: set[int]) -> list[UndoneJob]:
        store = tenure.store
        try:
            if self._unsure:
                store.release_undoing(tenure.lease, known)
                self._unsure = False
            if not store.undoing_waits(self._queues, self._versions, ahead_us=ahead_us()):
                return []
            return store.claim_undoing(tenure.lease, self._queues, self._versions, room, ahead_us=ahead_us())
        except LeaseLost:
            return []
        except Exception as error:  # noqa: BLE001 - the store may be away
            self._unsure = True
            if classify(error).category == "permanent":
                warn("jobs that are to be undone could not be looked for: %s", error_text(error))
            return []

    def _ended(self, tenure: Tenure, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(task)
        self._call_ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            warn("the job %s (%s) could not be undone here: %s", job.id, job.kind, error_text(error))
        if not self._jobs and self._looking is None:
            self._changed(True)  # noqa: FBT003 - as above
        elif not tenure.over and not self._ends:
            self.look(tenure)  # there is room for another one

    # -- one job -----------------------------------------------------------------------------------------------------

    async def _undo(self, tenure: Tenure, job: UndoneJob) -> None:
        """All that is left of a job, until something has to wait."""
        try:
            for one in job.left:
                if self._ends or not await self._surely_undone(tenure, job, one):
                    break
        except LeaseLost:
            warn("the job %s (%s) is undone by somebody else", job.id, job.kind)
            return
        except _LeftBehind as left:
            warn(
                "%s of the job %s (%s) still runs, and its worker ends: nobody calls it beside that",
                left,
                job.id,
                job.kind,
            )
            return
        except BaseException:  # whatever it is: no other worker looks at what one has that lives
            await in_thread(partial(self._give_back, tenure, job))
            raise
        await in_thread(partial(self._give_back, tenure, job))

    async def _surely_undone(self, tenure: Tenure, job: UndoneJob, one: CompensationRecord) -> bool:
        """As `_undo_one`. If that fails itself, another worker may know better: it waits, and that is on record."""
        try:
            return await self._undo_one(tenure, job, one)
        except (LeaseLost, _LeftBehind):
            raise
        except Exception as broken:  # noqa: BLE001 - nothing here may keep the others from being undone
            missing = NotFound(f"{type(broken).__name__} was raised around it")
            return (await self._write(tenure, job, one, not_found(one, missing))).state != "due"

    def _give_back(self, tenure: Tenure, job: UndoneJob) -> None:
        try:
            self._surely(
                tenure, lambda: tenure.store.release_held(tenure.lease, [(job.id, job.token)], ahead_us=ahead_us())
            )
        except LeaseLost:
            return

    async def _undo_one(self, tenure: Tenure, job: UndoneJob, one: CompensationRecord) -> bool:
        """Whether it is over, however: then the next one comes."""
        if one.state == "running":
            end = await self._write(tenure, job, one, after_crash(one, here.get().dice.roll()))
            if end.state != "due" or end.delay_us:
                return end.state != "due"
            one = one._replace(
                state="due", crashes=one.crashes + 1, attempts=one.attempts - 1
            )  # as it is on record now
        try:
            fn = await in_thread(partial(self._found, job, one))
        except NotFound as missing:
            return (await self._write(tenure, job, one, not_found(one, missing))).state != "due"
        begin = partial(
            tenure.store.begin_compensation, tenure.lease, job.id, job.token, one.place, attempt=one.attempts + 1
        )
        if not await in_thread(lambda: self._surely(tenure, lambda: begin(ahead_us=ahead_us()))):
            raise LeaseLost(f"the job {job.id} is undone by somebody else")
        if one.attempts == 0:  # else it was told before
            self._tell("triggered", job, one)
        current_work.set(_Underway(self._app, job, one))
        running.set(UNDERWAY)
        seen = latest[0]
        error = await self._called(tenure, job, one, fn)
        if isinstance(error, asyncio.CancelledError):
            await self._write(tenure, job, one, _given_back(one))
            return False
        one = one._replace(attempts=one.attempts + 1)
        if error is None:
            end = CompensationEnd(one.place, "undone")
        else:
            failure = error if isinstance(error, Exception) else failure_of(f"{one.call}", error)
            reason, owned = gave_up(failure, seen)
            ending = Ending(roll=here.get().dice.roll(), letter="", gave_up=reason, owned=owned)
            end = judged(one, failure, ending)
        return (await self._write(tenure, job, one, end)).state != "due"

    def _found(self, job: UndoneJob, one: CompensationRecord) -> Any:
        fn = found_at(one.call)
        if is_main(one.call):
            try:
                of = self._codec.bring_back(one.arguments, self._classes(job.kind, fn)).get("program")
            except Exception:  # noqa: BLE001 - perhaps of a function of this name in another program
                of = None
            if of is None or of != program():
                raise NotFound(f"{one.call} is the one of {of or 'another program'}, and this program is another one")
        return fn

    async def _called(
        self, tenure: Tenure, job: UndoneJob, one: CompensationRecord, fn: Callable[..., Any]
    ) -> BaseException | None:
        """Call it; what it raised. `CancelledError`: it was given up. `_LeftBehind`: it still runs, and the worker ends."""
        try:
            kept = self._codec.bring_back(one.arguments, self._classes(job.kind, fn))
            call = _Call(tenure, job, one, blocking=kind_of(fn) != "async")
            self._calls.add(call)
            if call.blocking:
                await self._blocking(call, lambda: fn(*kept["args"], **kept["kwargs"]))
            else:
                await self._async(call, fn(*kept["args"], **kept["kwargs"]))
        except _LeftBehind:
            raise
        except Lost as lost:
            return PermanentFailure(f"the arguments of {one.call} cannot be had: {lost}", error_class="code_error")
        except asyncio.CancelledError as cancelled:
            return cancelled if self._cut or tenure.over else TemporaryFailure(f"{one.call} was cancelled")
        except BaseException as error:  # noqa: BLE001 - judged, whatever it is
            return error
        return None

    async def _async(self, call: _Call, awaited: Awaitable[object]) -> None:
        try:
            await awaited
        finally:
            call.over = True
            self._calls.discard(call)

    async def _blocking(self, call: _Call, do: Callable[[], Any]) -> None:
        """
        Call it in a thread. Nothing can end that: whoever cancels this waits for it, unless the lease is lost or the worker has left. If
        it has come to its end after a cut, that counts; what it has raised then does not.
        """

        def work() -> None:
            try:
                _refuse_unfinished(do(), call.one.call)
                call.undone = True
            finally:
                call.over = True
                self._call_ended.set()

        thread = begun_in_thread(work, left=True)
        thread.add_done_callback(_heard_of)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not thread.done():
                if self._leaving.done():
                    raise _LeftBehind(call.one.call)
                try:
                    await asyncio.wait(
                        [thread, self._leaving], return_when=asyncio.FIRST_COMPLETED
                    )  # which leaves them alone
                except asyncio.CancelledError as interruption:
                    if call.tenure.over:
                        thread.add_done_callback(lambda _: self._calls.discard(call))
                        raise
                    cancelled = interruption
            if cancelled is not None and self._cut and thread.exception() is not None:
                raise cancelled
            thread.result()
        finally:
            if call.over:
                self._calls.discard(call)
            del thread, cancelled  # an exception and this frame must not keep each other

    def _see_out(self, tenure: Tenure, left: list[_Call]) -> None:
        """Keep the lease until these calls have ended, and their ends are on record. In a thread of its own."""
        store, lease, renewed = tenure.store, tenure.lease, REAL.clock.monotonic()
        while left and REAL.clock.monotonic() < renewed + lease.ttl:  # else others have it by now
            try:
                store.renew_lease(lease)
                renewed = REAL.clock.monotonic()
                left = [call for call in left if not self._seen_out(call)]
            except LeaseLost:
                break
            except Exception as error:  # noqa: BLE001 - the store may be away; it is tried again
                if classify(error).category == "permanent":
                    warn("what was left behind could not be put on record: %s", error_text(error))
            if left:
                self._call_ended.wait(lease.ttl / _BEATS)
                self._call_ended.clear()
        tenure.give_back()

    def _seen_out(self, call: _Call) -> bool:
        """Put on record what became of a call that was left behind; False: its code still runs."""
        if call.runs():
            return False
        if not call.blocking:  # its own task puts it on record
            return call.task is None or call.task.done() or call.loop.is_closed()
        job, tenure, end = call.job, call.tenure, call.end()
        if tenure.store.end_compensation(tenure.lease, job.id, job.token, end, ahead_us=ahead_us()):
            if end.state == "undone":
                self._tell("completed", job, call.one)
            tenure.store.release_held(tenure.lease, [(job.id, job.token)], ahead_us=ahead_us())
        return True

    def _classes(self, kind: str, fn: Any) -> Mapping[str, type]:
        return {**self._kinds[kind].declared.known, **types_in(*annotations_of(fn))}

    async def _write(
        self, tenure: Tenure, job: UndoneJob, one: CompensationRecord, end: CompensationEnd
    ) -> CompensationEnd:
        """Put on record what became of it, whoever cancels this meanwhile, and tell it."""
        if end.state == "failed":
            end = end._replace(letter=_letter(job, one, end))
        write = partial(tenure.store.end_compensation, tenure.lease, job.id, job.token, end)
        if not await in_thread(lambda: self._surely(tenure, lambda: write(ahead_us=ahead_us()))):
            raise LeaseLost(f"the job {job.id} is undone by somebody else")
        if end.state == "undone":
            self._tell("completed", job, one)
        elif end.state == "failed":
            self._tell("failed", job, one, end)
        else:
            warn("%s of the job %s (%s) has not undone it: %s", one.call, job.id, job.kind, end.error or "given back")
        return end

    def _tell(self, what: str, job: UndoneJob, one: CompensationRecord, end: CompensationEnd | None = None) -> None:
        telling.undoing(what, job, one, end)

    @staticmethod
    def _surely(tenure: Tenure, do: Callable[[], Any]) -> Any:
        """While the worker lives: without it the job would stay as it is, and no other worker looks at what one has that lives."""
        while True:
            try:
                return keep_trying(do, "the store", tenure.give_up)
            except Exception as error:
                if isinstance(error, LeaseLost) or tenure.over or tenure.give_up.is_set():
                    raise
            REAL.clock.sleep(_PAUSE)


def _given_back(one: CompensationRecord) -> CompensationEnd:
    """It was cut off, which costs no attempt."""
    return CompensationEnd(one.place, "due", charged=False, error=one.error, error_class=one.error_class)


def _heard_of(thread: asyncio.Future[Any]) -> None:
    """Perhaps nobody waits for it any more: what went wrong there is not to be told as forgotten."""
    if not thread.cancelled():
        thread.exception()


def _refuse_unfinished(result: Any, call: str) -> None:
    """If what it returned would have had to be awaited, or gone through, nothing was undone."""
    generator = isgenerator(result) or isasyncgen(result)
    if not generator and (result.__class__ in PLAIN or not awaitable(result)):
        return
    unused: Any = result
    with suppress(Exception):  # not everything of that kind can be closed
        unused.close()
    what = "something to await: declare it with `async def`" if awaitable(result) else "a generator, which was not run"
    message = f"{call} has undone nothing: it is no coroutine function, and returned {what}"
    raise PermanentFailure(message, error_class="code_error")


def _letter(job: UndoneJob, one: CompensationRecord, end: CompensationEnd) -> DeadLetterRow:
    """What could not be undone, for people."""
    text, kind, error_class = end.error or "", end.error_type or "", end.error_class or ""
    now = to_us(here.get().clock.now())
    return DeadLetterRow(
        id=here.get().ids.new(),
        run=None,
        seq=None,
        kind="compensation",
        pipeline=pipeline_of_kind(job.kind),
        stage=one.call.partition(":")[2],
        item_key=str(job.id),
        payload=one.arguments,
        error=text,
        error_type=kind,
        error_class=error_class,
        tier=classify(TemporaryFailure(text, error_class=error_class)).tier,
        fingerprint=fingerprint(one.call, error_class, kind, text),
        attempts=max(1, one.attempts - (not end.charged) + one.crashes + end.crashed),  # how often it was called
        first_failed_us=one.began_us or now,
        last_attempt_us=now,
        created_us=now,
        metadata={"queue": job.queue, "call": one.call, **({} if one.step is None else {"step": one.step})},
        stop_reason=end.stop_reason,
    )
