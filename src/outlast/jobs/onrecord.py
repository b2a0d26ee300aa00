"""
What the code of a job puts on record while it runs: the results of its steps, what undoes them, artifacts, and its own end.

    step    look ──► on record with these arguments: its result, and nothing is called
                 └─► not on record: call, encode, write under (job, token); only then is it returned

A step is known by its name, and with its result the record has fingerprints of its arguments: a result never goes to a
call with other ones. Where a part of a call cannot be compared, such as a client, a second call of that name is refused.
Blocking jobs read and write in their own thread. Async jobs wait for nothing in the event loop: one thread writes for
all of them, and what comes while it is busy goes together. Only what is small is written in the loop itself, with SQLite
and when nobody else writes: that takes less than to hand it over.

Both databases refuse a write by a worker that has lost the job. Then `LeaseLost` is raised in the job's code, and no
further step of it begins. So it is for code whose attempt was given up: a step is a good place to end.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from queue import SimpleQueue
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.calls.state import Call, made, running
from outlast.errors import AttemptTimeoutError, ConfigurationError, LeaseLost, PermanentFailure, TemporaryFailure
from outlast.isolation.threads import start_thread
from outlast.jobs import telling, transactions
from outlast.jobs.handle import beside
from outlast.jobs.outcome import succeeded
from outlast.jobs.places import is_main, place_of, program
from outlast.kernel.clock import REAL, ahead_us, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.pipeline.stages import annotations_of
from outlast.settings.callables import PLAIN, awaitable, kind_of, name_of
from outlast.settings.checks import a_value_of
from outlast.store.codec import Codec, Lost, types_in
from outlast.store.compensations import MOST_COMPENSATIONS, NewCompensation
from outlast.store.database import lock_patience
from outlast.store.faults import StoreError, StoreUnavailable
from outlast.store.jobs import MOST_BYTES
from outlast.store.records import storable
from outlast.store.steps import LONGEST_NAME, MOST_ARTIFACTS, MOST_STEPS, NewArtifact, NewStep
from outlast.work.patience import keep_trying
from outlast.work.threads import begun_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextvars import Context
    from typing import TypeAlias

    from outlast.jobs.job import Job
    from outlast.jobs.running import ActiveJob, Came
    from outlast.store import Store
    from outlast.store.codec import Kept
    from outlast.store.finishing import Finished
    from outlast.store.records import JobEnd, Lease
    from outlast.store.steps import Put

    Place: TypeAlias = list[tuple[object, int]]  # calls, the outermost first, and the number of the attempt in each
    Entry: TypeAlias = "tuple[OnRecord, Put, asyncio.Future[None]]"

_SOON = 0.02  # seconds between two looks at a transaction that is open
_LONGEST = 0.5  # which become longer, up to this
_PATIENCE = 5.0  # seconds after which that is told
_SMALL = 16_384  # bytes that are written in the event loop at most
_END = 5.0  # seconds that a thread without work has to end
_PLAIN_CODEC = Codec()
_NOTHING = "-"  # the fingerprint of no arguments
# The names of the steps that the running code is inside of.
_inside: ContextVar[tuple[str, ...]] = ContextVar("outlast_steps", default=())


class Wanted(NamedTuple):
    """
    A step as its caller wants it; `arguments` is the fingerprint of what its function is called with, as it is on record,
    `exact` the one that also tells how, and `unsure` names a part of the call that cannot be compared.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: str
    exact: str
    unsure: str | None


class OnRecord:
    """
    What one attempt of a job has on record. Steps of the same name come one after the other, also from several threads
    or tasks of the job.
    """

    def __init__(self, active: ActiveJob) -> None:
        self._active = active
        self._job: Job[..., Any] = active.kind.declared
        self._store: Store = self._job.home.present.store
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] | None = None  # name: fingerprints of its arguments and of the payload
        # The column of a step's arguments mixes positional ones, keywords and those of a `partial`: two calls may have the same
        # there, and older programs read and write it so. The exact fingerprint lies beside the result. Where an older program
        # has stored that, the first call of this attempt counts.
        self._exact: dict[str, str] = {}
        self._undoing: dict[str, int] = {}  # what is registered, by its fingerprint: its place
        self._undoing_soon: dict[str, Future[None]] = {}  # what is being registered, by its fingerprint
        self._places_taken = 0  # by steps and by what undoes them, in the order in which they come on record
        self._turns: dict[str, threading.Lock] = {}
        self._aturns: dict[str, asyncio.Lock] = {}
        self._places: dict[str, Place] = {}  # of steps that cannot be compared: where each was called last
        self._kept: set[str] = set()
        self._unwritten: set[asyncio.Future[None]] = set()
        self._not_kept: dict[str, Exception] = {}  # artifacts of an async job, and what has prevented them
        self._lost = False
        self.finishing = False  # a transaction of the job's code may have ended it
        self.raised = False  # the call that gave its transaction to finish_in has raised
        self.ended = False  # as `is_ended` said after the last call of an async job
        self.committed = False  # the job has succeeded with a transaction of its code, whatever its worker does
        self.success: JobEnd | None = None  # of such a job, once its code has ended
        self._result: bytes | None = None

    @functools.cached_property
    def _payload(self) -> str:
        return sha256(self._active.job.payload).hexdigest()[:32]

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Context.step`."""
        is_async = step_kind(name, fn, in_async_job=self._job.is_async)
        if name in _inside.get():
            message = f"expected the step {name!r} to have other steps inside of it, got: itself."
            raise PermanentFailure(message, error_class="code_error")
        wanted = Wanted(name, fn, args, kwargs, *self._fingerprint(fn, args, kwargs))
        return self._astep(wanted) if is_async else self._step(wanted)

    def _step(self, wanted: Wanted) -> Any:
        with self._lock:
            turn = self._turns.setdefault(wanted.name, threading.Lock())
        with turn:
            self._refuse_given_up()
            if self._known is None:
                self._learn()
            self._refuse_unsure(wanted)
            if self._done(wanted):
                data = self._patiently(lambda: self._store.step_result(self._active.job.id, wanted.name))
                if data is not None and (kept := self._restored(wanted, data)) is not None:
                    return kept["value"]
            before = _inside.set((*_inside.get(), wanted.name))
            try:
                result = wanted.fn(*wanted.args, **wanted.kwargs)
            finally:
                _inside.reset(before)
            if result.__class__ not in PLAIN and awaitable(result):
                _refuse_awaitable(result, wanted)
            self._write(self._row(wanted, result))
            self._note(wanted)
            return result

    async def _astep(self, wanted: Wanted) -> Any:
        turn = self._aturns.get(wanted.name)
        if turn is None:
            turn = self._aturns[wanted.name] = asyncio.Lock()
        async with turn:
            self._refuse_given_up()
            if self._known is None:
                if self._active.job.made > 1:
                    await beside(self._learn)
                else:
                    self._learn()
            self._refuse_unsure(wanted)
            if self._done(wanted):
                data = await beside(
                    lambda: self._patiently(lambda: self._store.step_result(self._active.job.id, wanted.name))
                )
                if data is not None and (kept := self._restored(wanted, data)) is not None:
                    return kept["value"]
            before = _inside.set((*_inside.get(), wanted.name))
            try:
                args = wanted.args
                if wanted.fn is asyncio.to_thread and args:  # also where somebody has chosen the executor of the loop
                    args = (self._active.watched(args[0]), *args[1:])
                result = await wanted.fn(*args, **wanted.kwargs)
            finally:
                _inside.reset(before)
            await self._awrite(self._row(wanted, result), lambda: self._note(wanted))
            return result

    def _learn(self) -> None:
        """Which steps are on record. Nothing is, in the very first attempt. Blocks."""
        job = self._active.job
        again = job.made > 1
        found = self._patiently(lambda: self._store.steps(job.id)) if again else ()
        undoing = self._patiently(lambda: self._store.compensations(job.id)) if again else ()
        known = {step.name: (step.arguments, step.payload) for step in found}
        with self._lock:
            if self._known is None:
                self._known = known
                self._undoing = {one.fingerprint: one.place for one in undoing if one.state == "registered"}
                self._places_taken = max((one.place or 0 for one in (*found, *undoing)), default=0)

    def _next_place(self) -> int:
        with self._lock:
            self._places_taken += 1
            return self._places_taken

    def _refuse_unsure(self, wanted: Wanted) -> None:
        """
        Refuse a second call of a name if it cannot be known whether it is the same. The job, or a call of a guard inside
        of it, that is made again begins anew.
        """
        if wanted.unsure is None:
            return
        here, before = self._place(), self._places.get(wanted.name)
        if before is None or _repeats(before, here):
            self._places[wanted.name] = here
            return
        known = (self._known or {}).get(wanted.name)
        if known is not None and known[0] != wanted.arguments:
            return  # other arguments: that is told
        message = (
            f"expected the step {wanted.name!r} of {self._job.kind} once, got: a second call of it, and whether it is the same cannot be "
            f"known: {wanted.unsure} cannot be compared. Each step of a job needs a name of its own, in a loop for example "
            "f'send {number}'. Nothing was called."
        )
        raise PermanentFailure(message, error_class="code_error")

    def _place(self) -> Place:
        """The calls of guards that the running code is inside of, the job's own first, and how often each was made."""
        inside: list[tuple[object, int]] = []
        call: Any = made(running.get())
        while isinstance(call, Call):
            if call is not self._active.call:
                inside.append((call, call.number))
            call = call.outer
        own = self._active.call
        return [(own, 0 if own is None else own.number), *reversed(inside)]

    def _done(self, wanted: Wanted) -> bool:
        """Whether it is on record; refuses one that was done with other arguments, and one too many."""
        known = self._known or {}
        found = known.get(wanted.name)
        if found is None:
            if len(known) >= MOST_STEPS:
                message = (
                    f"expected a job to have at most {MOST_STEPS:,} steps, got: another one of {self._job.kind}. Nothing of it was "
                    "done. Do several things in one step, or enqueue a job for each of them."
                )
                raise PermanentFailure(message, error_class="code_error")
            return False
        if found[0] == wanted.arguments:
            return True
        self._refuse_other(wanted)
        return False

    def _refuse_other(self, wanted: Wanted) -> None:
        """Raise for a step that was done with other arguments; unless those of the job have changed: it is done again."""
        if (self._known or {})[wanted.name][1] != self._payload:
            warn(
                "the arguments of the job %s (%s) were changed: its step %r is done again with those of now",
                self._active.job.id,
                self._job.kind,
                wanted.name,
            )
            return
        message = (
            f"expected the step {wanted.name!r} of {self._job.kind} to have the arguments with which it was done, got: other ones. "
            f"If its data was changed since: outlast jobs requeue {self._active.job.id} --from-start does all steps again. "
            "If two steps have this name: give each its own, f'send {number}'. Nothing was called."
        )
        raise PermanentFailure(message, error_class="code_error")

    def _note(self, wanted: Wanted) -> None:
        with self._lock:
            if self._known is not None:
                self._known[wanted.name] = wanted.arguments, self._payload

    def _row(self, wanted: Wanted, result: object) -> NewStep:
        job = self._active.job
        data = self._encoded(wanted, result)
        place = self._next_place()
        return NewStep(job.id, job.token, job.made, wanted.name, wanted.arguments, self._payload, data, place)

    def _encoded(self, wanted: Wanted, result: object) -> bytes:
        try:
            whole = {"value": result} if wanted.exact == _NOTHING else {"value": result, "call": wanted.exact}
            kept: Kept = self._job.home.codec.keep(whole)
            lacks = kept.lacks(self._classes(wanted.fn)) if kept.classes else []
            if lacks:
                why = f"it is, or holds, a value of {' and '.join(lacks)}. Annotate what {name_of(wanted.fn)} returns."
            elif len(kept.data) > MOST_BYTES:
                why = f"it takes {len(kept.data):,} bytes, more than {MOST_BYTES:,}. Keep large data in a file or a table, and return its name."
            else:
                return kept.data
        except RecursionError:
            why = "it is nested too deeply."
        except Exception as error:  # noqa: BLE001 - somebody else's class may fail in any way
            why = f"it is, or holds, a value of type {getattr(error, 'kind', type(error).__name__)}."
        message = (
            f"the step {wanted.name!r} of {self._job.kind} was done, and its result cannot be stored: {why} "
            "It is not on record, so another attempt would do it again."
        )
        raise PermanentFailure(message, error_class="code_error")

    def _restored(self, wanted: Wanted, data: bytes) -> dict[str, Any] | None:
        """What is stored, with its `value`; None if that is of another call, and the step is done again."""
        try:
            kept: dict[str, Any] = self._job.home.codec.bring_back(data, self._classes(wanted.fn))
        except Lost as lost:
            message = (
                f"the step {wanted.name!r} of {self._job.kind} is done, and its result cannot be had, because {lost}."
            )
            raise PermanentFailure(message, error_class="code_error") from None
        if (kept.get("call") or self._exact.setdefault(wanted.name, wanted.exact)) == wanted.exact:
            return kept
        self._refuse_other(wanted)
        return None

    def _classes(self, fn: Callable[..., Any]) -> Mapping[str, type]:
        return {**self._job.known, **types_in(*annotations_of(fn))}

    def _fingerprint(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str, str | None]:
        """Those of a call, and what of it cannot be compared."""
        whole, local = called_with(fn, args, kwargs)
        if not whole:
            return _NOTHING, _NOTHING, None
        unsure: list[str] = []
        known = _canonical(whole, unsure)
        if local or unsure:  # what it does may depend on the arguments of the job
            known = [known, self._payload]
        arguments = _digest(known)
        exact = arguments if len(whole) == len(args) else _digest(["call", _canonical(_parts(fn, args, kwargs), [])])
        return arguments, exact, unsure[0] if unsure else None

    # -- what undoes it ----------------------------------------------------------------------------------------------

    def compensate(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Context.compensate`."""
        is_async, call = undo_kind(fn, in_async_job=self._job.is_async)
        _refuse_misfit(fn, args, kwargs)
        data = self._call_data(call, fn, args, kwargs)
        known = _digest(["undo", call, _canonical(args, []), _canonical(kwargs, [])])
        return self._acompensate(call, data, known) if is_async else self._compensate(call, data, known)

    def _compensate(self, call: str, data: bytes, known: str) -> None:
        self._refuse_given_up()
        if self._known is None:
            self._learn()
        while (row := self._undo_row(call, data, known)) is not None:
            if isinstance(row, Future):
                row.exception()  # somebody is at it; if that fails, it is written here
                continue
            with self._registering(known):
                self._write(row)
                self._undoing[known] = row.place

    async def _acompensate(self, call: str, data: bytes, known: str) -> None:
        self._refuse_given_up()
        if self._known is None:
            await beside(self._learn)
        while (row := self._undo_row(call, data, known)) is not None:
            if isinstance(row, Future):
                await asyncio.wait([asyncio.wrap_future(row)])  # which leaves it alone
                continue
            with self._registering(known):
                await self._awrite(row, functools.partial(self._undoing.__setitem__, known, row.place))

    def _undo_row(self, call: str, data: bytes, known: str) -> NewCompensation | Future[None] | None:
        """
        What is put on record; None if it is there, and what to wait for while another thread or task puts it there. The same function
        with the same arguments undoes the same thing.
        """
        job, inside = self._active.job, _inside.get()
        with self._lock:
            if known in self._undoing:
                return None
            if known in self._undoing_soon:
                return self._undoing_soon[known]
            if len(self._undoing) + len(self._undoing_soon) >= MOST_COMPENSATIONS:
                message = (
                    f"expected a job to register at most {MOST_COMPENSATIONS:,} functions that undo it, got: another one of {self._job.kind}. "
                    "It is not registered. Let one function undo several things, or enqueue a job for each of them."
                )
                raise PermanentFailure(message, error_class="code_error")
            self._places_taken += 1
            place = self._places_taken
            self._undoing_soon[known] = Future()
        return NewCompensation(job.id, job.token, job.made, place, call, data, known, inside[-1] if inside else None)

    @contextmanager
    def _registering(self, known: str) -> Iterator[None]:
        """Others who want the same wait until it is on record, or could not be put there."""
        try:
            yield
        finally:
            with self._lock:
                waited_for = self._undoing_soon.pop(known)
            waited_for.set_result(None)

    def _call_data(self, call: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as they are stored; what cannot be stored is refused before anything is done."""
        try:
            whole: dict[str, Any] = {"args": [*args], "kwargs": kwargs}
            if is_main(call):  # which another program has, too
                whole["program"] = program()
            kept: Kept = self._job.home.codec.keep(whole)
            lacks = kept.lacks(self._classes(fn)) if kept.classes else []
            if lacks:
                why = f"a value of {' and '.join(lacks)}, whose class no parameter of {name_of(fn)} names. Annotate it."
            elif len(kept.data) > MOST_BYTES:
                why = f"{len(kept.data):,} bytes. Pass the name of large data, not the data."
            else:
                return kept.data
        except RecursionError:
            why = "something that is nested too deeply."
        except Exception as error:  # noqa: BLE001 - somebody else's class may fail in any way
            why = f"a value of type {getattr(error, 'kind', type(error).__name__)}. Pass its id, and let the function find it."
        message = (
            f"expected arguments of {name_of(fn)} that can be stored, in at most {MOST_BYTES:,} bytes, since another process may have to undo "
            f"{self._job.kind}, got: {why} Nothing is registered."
        )
        raise PermanentFailure(message, error_class="code_error")

    # -- artifacts ---------------------------------------------------------------------------------------------------

    def keep(self, name: str, raw: str | bytes) -> None:
        """As `Context.keep`."""
        data, size = artifact_data(name, raw)
        job = self._active.job
        if len({*self._kept, name}) > MOST_ARTIFACTS:
            message = (
                f"expected an attempt to keep at most {MOST_ARTIFACTS} artifacts, got: another one of {self._job.kind}."
            )
            raise PermanentFailure(message, error_class="code_error")
        cut = len(data) < size if isinstance(data, bytes) else len(data.encode(errors="surrogatepass")) < size
        if cut:
            warn(
                "the artifact %r of %s has %d bytes: what is beyond %d is not kept",
                name,
                self._job.kind,
                size,
                MOST_BYTES,
            )
        row = NewArtifact(job.id, job.token, job.made, name, self._job.home.codec.encode(data), size, cut)
        self._refuse_lost()  # also code that is to end may say why
        if not self._in_loop():
            self._write(row)
        else:
            # The event loop does not wait for it; the end of the attempt does.
            writing = self._active.runner.results.put(self, row)
            if not writing.done():
                self._kept.add(name)
                self._unwritten.add(writing)
                writing.add_done_callback(functools.partial(self._kept_late, name, size))
                return
            writing.result()
        self._is_kept(name, size)

    def _is_kept(self, name: str, size: int) -> None:
        self._kept.add(name)
        self._not_kept.pop(name, None)
        if telling.loud():
            telling.kept(self._active, name, size)

    def _kept_late(self, name: str, size: int, writing: asyncio.Future[None]) -> None:
        """What an async job has kept is on record, or could not be put there: then the attempt fails with it at its end."""
        self._unwritten.discard(writing)
        error = None if writing.cancelled() else writing.exception()
        if error is None:
            self._is_kept(name, size)
        elif isinstance(error, Exception) and not isinstance(error, LeaseLost):
            self._not_kept[name] = error
            warn("what %s has kept as %r could not be put on record: %s", self._who, name, error_text(error))

    # -- writing -----------------------------------------------------------------------------------------------------

    def _write(self, row: Put) -> None:
        """Blocks until it is on record."""
        (mine,) = self.put([row])
        self.written(mine=mine)

    def put_at_once(self, row: Put) -> bool | None:
        """As `put`, if that needs no wait at all; None if it does, or fails."""
        if isinstance(row, NewCompensation) or len(row.result if isinstance(row, NewStep) else row.data) > _SMALL:
            return None
        try:
            return self._store.put_at_once(row, ahead_us=ahead_us())
        except StoreError:  # it is tried again where there is time
            return None

    def put(self, rows: Sequence[Put]) -> list[bool]:
        """Write these, and perhaps those of other jobs of the same worker; of each, whether its job is still its own. Blocks."""
        done: list[bool] | None = self._patiently(lambda: self._put(rows))
        if done is None:
            message = (
                "the store is locked by another transaction, perhaps one of this job itself: commit it before a step or keep(). "
                "What was to be put on record is not there, so another attempt does it again."
            )
            raise StoreUnavailable(message, error_class="database_connection", locked=True)
        return done

    def _put(self, rows: Sequence[Put]) -> list[bool] | None:
        """As `put`; None if the store is locked, which is not to be waited for once more."""
        # A thread that the job has started itself has variables of its own.
        token = lock_patience.set(self._active.runner.lock_patience)
        try:
            return self._store.put_results(rows, self._lease, ahead_us=ahead_us())
        except StoreUnavailable as error:
            if not error.locked:
                raise
        finally:
            lock_patience.reset(token)
        return None

    @property
    def _lease(self) -> Lease | None:
        tenure = self._active.tenure
        return None if tenure is None else tenure.lease

    async def _awrite(self, row: Put, then: Callable[[], object]) -> None:
        """Put it on record; `then` knows of it, also if whoever waits for it is cancelled meanwhile: it may be wanted once more."""
        if not self._in_loop():  # an event loop that the job has made for itself

            def write() -> None:
                self._write(row)
                then()

            await beside(write)
            return
        writing = self._active.runner.results.put(self, row)
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])  # what is done must be on record, also if nobody waits for it any more
            except asyncio.CancelledError as interruption:
                cancelled = interruption
        try:
            if writing.exception() is None:
                then()
            if cancelled is not None:
                raise cancelled from writing.exception()
            writing.result()
        finally:
            del writing, cancelled

    def written(self, *, mine: bool) -> None:
        """What became of a write: `LeaseLost` if the job is somebody else's."""
        if not mine:
            self._lost = True
            self._refuse_lost()

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish_in(self, transaction: object, result: object) -> None:
        """As `Context.finish_in`."""
        with self._finish(result) as end:
            transactions.finish(self._job.home.present, transaction, end, self._lease)

    async def afinish_in(self, transaction: object, result: object) -> None:
        """As `Context.afinish_in`."""
        with self._finish(result) as end:
            await transactions.afinish(self._job.home.present, transaction, end, self._lease)

    @contextmanager
    def _finish(self, result: object) -> Iterator[JobEnd]:
        active = self._active
        try:
            self._refuse_given_up(ends=True)
        except (
            AttemptTimeoutError,
            InterruptedError,
        ) as over:  # one error for all of these: its caller is to roll back
            message = f"{over}: nothing of this attempt is put on record any more. Roll back."
            raise LeaseLost(message) from None
        self._result = self._job.encode_result(result)
        before, self.finishing = self.finishing, True
        self.raised = False
        try:
            yield succeeded(active.job, active.when(active.runner.monotonic()), self._result, active.kind.unique_for_us)
        except ConfigurationError:
            self.finishing = before  # refused before anything was changed
            raise
        except LeaseLost:
            self._lost = True
            raise

    def end(self, stored: bytes | None, error: BaseException | None) -> Came:
        """How the attempt ends: its result, or its error. Blocks until it is known whether a transaction has ended it."""
        try:
            return self._ended(stored, error)
        except Exception as broken:  # noqa: BLE001 - whether it was committed cannot be known: nothing is written
            warn(
                "how the job %s (%s) has ended is not known here: %s",
                self._active.job.id,
                self._job.kind,
                error_text(broken),
            )
            self._active.why = "lost"
            return None, error or broken

    async def aend(self, stored: bytes | None, error: BaseException | None) -> Came:
        """As `end`, once all that was kept is on record."""
        while unwritten := [writing for writing in self._unwritten if not writing.done()]:
            await _patient(unwritten)
        if error is None and self._not_kept:
            stored, error = None, next(iter(self._not_kept.values()))
        if not self.finishing:
            return stored, error  # type: ignore[return-value]
        # Looked at from the loop: jobs that wait for their transactions keep no threads.
        pauses = self._pauses()
        while await _surely(self.status) == "open" and (pause := next(pauses, None)) is not None:
            await _patient([asyncio.ensure_future(asyncio.sleep(pause))])
        came: Came = await _surely(functools.partial(self.end, stored, error))
        return came

    def _ended(self, stored: bytes | None, error: BaseException | None) -> Came:
        if not self.finishing:
            return stored, error  # type: ignore[return-value]
        active, job = self._active, self._active.job
        found = self._look()
        if found == "lost":
            active.why = "lost"
            return None, error or LeaseLost(f"the job {job.id} ({job.kind}) was taken over")
        if found == "rolled back" and error is None and self.raised:
            return stored, None  # of a later call of the guard, or of its fallback
        if found == "rolled back":
            message = (
                f"{job.kind} called finish_in and returned, but its transaction was not committed: neither what was done there nor the "
                "end of the job is on record. Commit it before the function returns, or let its error go up."
            )
            return None, error or PermanentFailure(message, error_class="code_error")
        if error is not None and not isinstance(error, LeaseLost):
            warn(
                "the job %s (%s) has succeeded with its own transaction, and raised afterwards, which changes nothing: %s",
                *(job.id, job.kind, error_text(error) if isinstance(error, Exception) else type(error).__name__),
            )
        self.committed = True
        if active.why != "lost":
            active.why = None  # whatever it was to end for came too late
        return self._result, None

    def _look(self) -> Finished:
        """What became of the transaction; one that is open is waited for."""
        job, pauses = self._active.job, self._pauses()
        while True:
            found: Finished = self._in_the_end(lambda: self._store.settled_in(job.id, job.made, job.token))
            if found != "open":
                return found
            pause = next(pauses, None)
            if pause is None:
                return "lost"  # who sweeps finds out
            REAL.clock.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Seconds between looks at a transaction that is open, until its end is of no use here."""
        job, since, told, pause = self._active.job, REAL.clock.monotonic(), False, _SOON
        # Also if it is to be given back: while its worker lives, nobody else may, and nobody else asks.
        while self._active.why != "lost" and not self._active.tenure.over:
            if not told and REAL.clock.monotonic() - since > _PATIENCE:
                told = True
                warn(
                    "the job %s (%s) has ended, and the transaction that it gave to finish_in is still open: it is waited for",
                    job.id,
                    job.kind,
                )
            yield pause
            pause = min(_LONGEST, pause * 1.2)

    def status(self) -> Finished | None:
        """What became of the transaction as far as the store says it now; None if it does not. Blocks."""
        job = self._active.job
        try:
            found: Finished = self._store.settled_in(job.id, job.made, job.token)
        except Exception:  # noqa: BLE001 - whoever must know asks again
            return None
        return found

    def is_ended(self) -> bool:
        """
        Whether the job has ended, with its transaction or by somebody else, or may have: then its code is not called
        again. Blocks.
        """
        job = self._active.job
        try:
            found = self._patiently(lambda: self._store.finished_in(job.id, job.made, job.token))
        except Exception:  # noqa: BLE001 - `end` asks again, and tells it
            return True
        return found in {"committed", "lost"}

    async def look(self) -> None:
        """Note whether the job `is_ended`."""
        self.ended = await _surely(self.is_ended)

    def _in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._active.runner.loop
        except RuntimeError:
            return False

    def _patiently(self, do: Callable[[], Any]) -> Any:
        """While the store cannot be used, wait for it, within limits: the job itself may be what locks it."""
        try:
            return do()
        except StoreUnavailable:  # only then is all that needed which a wait takes
            pass
        return keep_trying(do, "the store", self._active.stop)

    def _in_the_end(self, do: Callable[[], Any]) -> Any:
        """
        As `_patiently`, for as long as the worker lives: without an answer the job would stay as it is, and no other
        worker looks at the jobs of one that lives.
        """
        tenure = self._active.tenure
        while True:
            try:
                return keep_trying(do, "the store", tenure.give_up)
            except Exception:
                if tenure.over or tenure.give_up.is_set():
                    raise
            REAL.clock.sleep(_LONGEST)

    @property
    def _who(self) -> str:
        return f"the job {self._active.job.id} ({self._job.kind})"

    def _refuse_given_up(self, *, ends: bool = False) -> None:
        """Let no step begin in code that goes on although its attempt is over."""
        self._refuse_lost(ends=ends)
        active, who = self._active, self._who
        if active.why == "timeout":
            raise AttemptTimeoutError(f"the time of this attempt of {who} is up")
        if active.why is not None:
            raise InterruptedError(f"{who} is to end")
        if active.over:
            raise InterruptedError(f"this attempt of {who} has ended")

    def _refuse_lost(self, *, ends: bool = False) -> None:
        """
        Let nothing be put on record by code whose job is somebody else's, or has ended. Code that `ends` it once more
        may do so in a transaction that locks a SQLite file: whether the job has ended there, that one says itself.
        """
        job, who, store = self._active.job, self._who, self._store
        if self._lost or self._active.why == "lost":
            raise LeaseLost(f"{who} was taken over, or has ended: nothing of this attempt is put on record any more.")
        if not self.finishing:
            return
        found = store.finished_in(job.id, job.made, job.token)
        message = f"expected nothing more of {who} after finish_in, which comes last, got: a step, an artifact or another end."
        if found == "rolled back" and not ends:
            found = store.settled_in(job.id, job.made, job.token)
            if found == "open":  # as far as one can see, and no job fails for good because of that
                message += (
                    " The store is locked, as it is while that transaction is open: commit it or roll it back first."
                )
                raise TemporaryFailure(message, error_class="database_connection")
        if found in {"open", "committed"}:
            raise PermanentFailure(message, error_class="code_error")


class HereAndNow:
    """The code of a job that is called as a plain function: steps are calls, and nothing is kept."""

    def __init__(self, kind: str, *, is_async: bool) -> None:
        self._kind = kind
        self._is_async = is_async
        self._key: str | None = None

    def idempotency_key(self) -> str:
        """A new one for each call: there is no job that could be tried again."""
        if self._key is None:
            self._key = here.get().ids.new()
        return self._key

    def step(self, name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step_kind(name, fn, in_async_job=self._is_async)
        return fn(*args, **kwargs)

    def keep(self, name: str, raw: str | bytes) -> None:
        artifact_data(name, raw)

    def compensate(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002 - nothing is kept
        is_async, _ = undo_kind(fn, in_async_job=self._is_async)
        return _nothing() if is_async else None

    def finish_in(self, transaction: object, result: object) -> None:  # noqa: ARG002 - there is no job to end
        if (problem := transactions.refusal(transaction)) is not None:
            raise ConfigurationError(problem)

    async def afinish_in(self, transaction: object, result: object) -> None:
        self.finish_in(transaction, result)


def step_kind(name: object, fn: Any, *, in_async_job: bool) -> bool:
    """Whether the function of a step is async; `ConfigurationError` for what can be no step."""
    check_name("a step", name)
    if not callable(fn):
        message = f"expected a function after the name of the step {name!r}, got: {a_value_of(fn)}. Pass the function itself, then its arguments."
        raise ConfigurationError(message)
    kind = kind_of(fn)
    if "generator" in kind:
        message = f"expected the step {name!r} to have a function that returns, got: the {kind} function {name_of(fn)}."
        raise ConfigurationError(message)
    if kind == "sync" and in_async_job and _loop_runs():
        message = (
            f"expected an async function for the step {name!r} of an async job, got: {name_of(fn)}, which would hold up the event loop. "
            f"Write `await current().step({name!r}, asyncio.to_thread, {name_of(fn)}, ...)`, or a coroutine function around it."
        )
        raise ConfigurationError(message)
    return kind == "async"


def undo_kind(fn: Any, *, in_async_job: bool) -> tuple[bool, str]:
    """Whether what undoes a part of a job is async, and where other processes find it; `ConfigurationError` if they cannot."""
    if not callable(fn):
        message = f"expected a function that undoes something, got: {a_value_of(fn)}. Pass the function itself, then its arguments."
        raise ConfigurationError(message)
    kind, runs = kind_of(fn), _loop_runs()
    if "generator" in kind:
        raise ConfigurationError(
            f"expected a function that returns to undo something, got: the {kind} function {name_of(fn)}."
        )
    if kind == "sync" and in_async_job and runs:
        message = (
            f"expected an async function in an async job, got: {name_of(fn)}. To register it would hold up the event loop: write "
            f"`await asyncio.to_thread(outlast.current().compensate, {name_of(fn)}, ...)`."
        )
        raise ConfigurationError(message)
    if kind == "async" and not runs:
        message = (
            f"expected a function that is not async where nothing can be awaited, got: {name_of(fn)}, which would never be registered. "
            "Pass one that blocks, or make the job async and write `await outlast.current().compensate(...)`."
        )
        raise ConfigurationError(message)
    return kind == "async", place_of(fn)


def _refuse_misfit(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What can never be called with these arguments is not registered: it would be known only when the job has failed."""
    try:
        declared = inspect.signature(fn, follow_wrapped=False)  # what is called: a decorator may add arguments
    except (TypeError, ValueError):  # nobody knows its parameters
        return
    try:
        declared.bind(*args, **kwargs)
    except TypeError as misfit:
        message = f"expected arguments that {name_of(fn)} takes, since it is called with them should the job fail, got: others ({misfit}). Nothing is registered."
        raise ConfigurationError(message) from None


async def _nothing() -> None:
    return


async def _patient(futures: list[asyncio.Future[Any]]) -> None:
    """Wait for these, whoever cancels it meanwhile: it is over anyway, and its end must be known."""
    while not all(future.done() for future in futures):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(futures)


async def _surely(do: Callable[[], Any]) -> Any:
    """What it brings, in a thread of its own, whoever cancels this meanwhile."""
    work = begun_in_thread(do)
    await _patient([work])
    return work.result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_name(what: str, name: object) -> None:
    """Refuse what cannot be the name of a step or an artifact."""
    if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and storable(name) == name:
        return
    if not isinstance(name, str):
        shown = a_value_of(name)
    elif not name:
        shown = "an empty text"
    elif len(name) > LONGEST_NAME:
        shown = f"{len(name):,} characters"
    else:
        shown = "a text with a NUL or half of a surrogate pair, which no database takes"
    message = f"expected the name of {what} to be a text of 1 to {LONGEST_NAME} characters, got: {shown}."
    raise ConfigurationError(message)


def artifact_data(name: object, raw: object) -> tuple[str | bytes, int]:
    """As much of an artifact as is kept, and how many bytes it has."""
    check_name("an artifact", name)
    if isinstance(raw, str):
        whole = raw.encode(errors="surrogatepass")
        # Cut at a byte, the last character may be half a one: it is left out. That it was cut is on record and told.
        return raw if len(whole) <= MOST_BYTES else whole[:MOST_BYTES].decode(errors="ignore"), len(whole)
    if isinstance(raw, bytes | bytearray | memoryview):
        return bytes(raw[:MOST_BYTES]), len(bytes(raw))
    message = f"expected what is kept as {name!r} to be a text or bytes, got: {a_value_of(raw)}. Keep str(...) or json.dumps(...) of it."
    raise ConfigurationError(message)


def _refuse_awaitable(result: Any, wanted: Wanted) -> None:
    with suppress(Exception):  # not everything that can be awaited can be closed
        result.close()
    message = (
        f"the step {wanted.name!r} was given a function that returned something to await: pass a coroutine function and its "
        "arguments, and await the step"
    )
    raise PermanentFailure(message, error_class="code_error")


# -- fingerprints --------------------------------------------------------------------------------------------------------


def called_with(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """
    What a function is called with, and whether it is one that was made inside of another: it may see the variables of
    that one.
    """
    whole: list[Any] = []
    while isinstance(fn, functools.partial | MethodType):
        if isinstance(fn, functools.partial):
            whole += [list(fn.args), dict(fn.keywords)]
            fn = fn.func
        else:
            whole.append(fn.__self__)
            fn = fn.__func__
    whole += args
    if kwargs:
        whole.append(dict(kwargs))
    # What runs in a thread for somebody is that somebody's.
    local = any(_is_local(each) for each in (fn, *args) if callable(each))
    if _is_local(fn) or _name(fn) is None or _owner(fn) is not None:
        whole.append(fn)
    return whole, local


def _parts(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """As `called_with`, and which of it comes from where."""
    parts: list[Any] = []
    while isinstance(fn, functools.partial | MethodType):
        if isinstance(fn, functools.partial):
            parts.append(("partial", fn.args, dict(fn.keywords)))
            fn = fn.func
        else:
            parts.append(("method", fn.__self__))
            fn = fn.__func__
    return [*parts, ("arguments", args, dict(kwargs))]


def fingerprint(value: object) -> str:
    """
    Equal for equal values, in every process. What cannot be stored, such as a client or a connection, counts by its
    type; a function by its name. What a function sees without being given it may differ from host to host, and is not
    compared.

    >>> fingerprint([{"a": 1, "b": {1, 2}}]) == fingerprint([{"b": {2, 1}, "a": 1}])
    True
    >>> fingerprint([1]) == fingerprint(["1"]) or fingerprint([(1, 2)]) == fingerprint([[1, 2]])
    False
    """
    return _digest(_canonical(value, []))


def _digest(known: object) -> str:
    return sha256(_text(known).encode()).hexdigest()[:32]


def _canonical(value: Any, unsure: list[str]) -> Any:
    """A value as JSON that is the same for equal values; `unsure` gets the names of parts that cannot be compared."""
    kind = type(value)
    if kind in {str, int, float, bool, type(None)}:
        return value
    if kind in {list, tuple}:
        return [kind.__name__, [_canonical(inner, unsure) for inner in value]]
    if kind in {set, frozenset}:
        return [kind.__name__, sorted((_canonical(inner, unsure) for inner in value), key=_text)]
    if kind is dict:
        pairs = ([_canonical(key, unsure), _canonical(inner, unsure)] for key, inner in value.items())
        return ["dict", sorted(pairs, key=_text)]
    try:
        return ["stored", _ordered(json.loads(_PLAIN_CODEC.encode(value))["d"])]
    except Exception:  # noqa: BLE001 - somebody else's class may fail in any way
        return _named(value, unsure)


def _named(value: Any, unsure: list[str]) -> Any:
    """What cannot be stored."""
    if isinstance(value, functools.partial):
        return ["partial", [_canonical(part, unsure) for part in (value.func, list(value.args), value.keywords)]]
    if isinstance(value, MethodType):
        return ["method", _canonical(value.__self__, unsure), _canonical(value.__func__, unsure)]
    if isinstance(value, ModuleType):
        return ["named", value.__name__]
    name = _name(value)
    if name is None:
        unsure.append(f"a value of type {type(value).__qualname__}")
        return ["named", f"a {type(value).__qualname__}"]
    if (owner := _owner(value)) is not None:
        unsure.append(f"a value of type {type(owner).__qualname__}")
        return ["named", name, f"a {type(owner).__qualname__}"]
    if not _is_local(value):
        return ["named", name]
    if not isinstance(value, FunctionType):
        unsure.append(f"{name}, which was made inside of a function,")
        return ["named", name]
    if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
        unsure.append("what the function sees beside its arguments")
    return ["named", name]


def _name(value: Any) -> str | None:
    """What a function or a class is called; None for any other value."""
    found = getattr(value, "__qualname__", None) if callable(value) else None
    return found if isinstance(found, str) else None


def _is_local(value: Any) -> bool:
    return "<" in (_name(value) or "")


def _owner(value: Any) -> Any:
    """The value that a built-in method belongs to, such as the list of its `append`."""
    owner = getattr(value, "__self__", None) if isinstance(value, BuiltinMethodType) else None
    return None if isinstance(owner, ModuleType | type) else owner


def _ordered(stored: Any) -> Any:
    """Stored JSON with the members of sets in an order that is always the same."""
    if isinstance(stored, list):
        return [_ordered(inner) for inner in stored]
    if isinstance(stored, dict):
        inside = {key: _ordered(inner) for key, inner in stored.items()}
        if inside.get("$type") in {"set", "frozenset"}:
            inside["d"] = sorted(inside["d"], key=_text)
        return inside
    return stored


_text = json.JSONEncoder(sort_keys=True).encode


def _repeats(before: Place, now: Place) -> bool:
    """Whether the code between two calls of a step was left and begun again by a guard."""
    for (one, number), (other, again) in zip(before, now, strict=False):
        if one is not other:
            return False
        if number != again:
            return True
    return False


# -- one thread for all async jobs of a worker ---------------------------------------------------------------------------


class ResultWriter:
    """
    Writes for the async jobs of a worker, in a thread of its own. What is put in while it writes goes together, in one
    transaction.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._waiting: list[Entry] = []
        self._batches: SimpleQueue[list[Entry] | None] = SimpleQueue()
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, whose: OnRecord, row: Put) -> asyncio.Future[None]:
        """Have this written; done when it is, or with what has prevented it. In the loop."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_look)
        if not self._busy and (mine := whose.put_at_once(row)) is not None:
            _tell(whose, done, mine)
            return done
        self._waiting.append((whose, row, done))
        if self._thread is None:
            thread = threading.Thread(target=self._context.run, args=(self._run,), daemon=True, name="outlast-results")
            try:
                start_thread(thread)
            except TemporaryFailure:
                self._waiting.pop()
                raise
            self._thread = thread
        if not self._busy:
            self._next()
        return done

    def close(self) -> None:
        """Write no more, once what waits is written."""
        self._batches.put(None)

    def join(self) -> None:
        """After `close`: wait until the thread has ended, unless it still writes. Blocks for a moment."""
        if self._thread is not None and not self._busy:
            self._thread.join(_END)

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self._batches.put(self._waiting)
            self._waiting = []

    def _came(self, batch: list[Entry], came: list[bool | Exception]) -> None:
        for (whose, _, done), mine in zip(batch, came, strict=True):
            _tell(whose, done, mine)
        self._next()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            came = _together([(whose, row) for whose, row, _ in batch])
            try:
                self._loop.call_soon_threadsafe(self._came, batch, came)
            except RuntimeError:  # the loop is closed, and nobody waits for it
                return


def _together(rows: Sequence[tuple[OnRecord, Put]]) -> list[bool | Exception]:
    """Of each, whether its job was still this worker's, or what has prevented the write."""
    try:
        return list(rows[0][0].put([row for _, row in rows]))
    except Exception as error:  # noqa: BLE001 - told to each of them
        if (
            isinstance(error, StoreUnavailable) and error.locked
        ):  # all of it: one by one they would only wait for longer
            return [StoreUnavailable(str(error), error_class="database_connection", locked=True) for _ in rows]
        if len(rows) == 1:
            return [error]
    return [came for one in rows for came in _together([one])]


def _tell(whose: OnRecord, done: asyncio.Future[None], mine: object) -> None:
    try:
        if isinstance(mine, Exception):
            raise mine
        whose.written(mine=bool(mine))
    except Exception as error:  # noqa: BLE001 - it is for whoever waits
        done.set_exception(error)
    else:
        done.set_result(None)


def _look(done: asyncio.Future[None]) -> None:
    """What nobody waits for, such as an artifact, is told by whoever has put it in; it must not be told as forgotten."""
    if not done.cancelled():
        done.exception()
