"""
What a step with `for_each` does for one row, and what undoes that: functions of a row, for the stage of an item run.

    RowDeed   the row's config filled in, its idempotency key, the component
    Marks     digests by which a later round knows whether a row, and what is done for it, are what they were
    RowUndo   what undoes one row that was done; its idempotency record is forgotten then

Both block: the item runner calls them in threads, and their guard is the stage's. Only a child process is left to a
guard inside of that (`_in_process`), so that what must be on record before and after the work is written here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from outlast.calls.drivers import run
from outlast.calls.guard import Guard
from outlast.calls.state import Call, current, current_work
from outlast.components.running import NO_ROW, Place, StepContext, do_work, in_child, load
from outlast.errors import LeaseLost, PermanentFailure
from outlast.flow.filling import Values
from outlast.flow.outputs import Outputs, keep
from outlast.flow.record import UNKNOWN
from outlast.flow.steps import _key_secret
from outlast.flow.underway import under_way
from outlast.kernel.clock import ahead_us, here
from outlast.observe import emit, listening
from outlast.pipeline.keys import Keys
from outlast.pipeline.record.writer import as_row
from outlast.pipeline.stages import Skip, Snooze
from outlast.spec.manifest import fingerprint as fingerprint_of
from outlast.spec.references import in_text, parse, references_in
from outlast.store.idempotency import IdempotencyConflict, IdempotencyMismatch, KeyDone, key_digest
from outlast.store.records import from_us
from outlast.work.leases import certainly_dead
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.components.describing import Component
    from outlast.flow.steps import Pass, StepWork
    from outlast.pipeline.engine.item import Item
    from outlast.store.codec import Codec
    from outlast.store.idempotency import KeyBegun

_GONE = 3600.0  # seconds for which a row that must not go on is put off: the run winds down long before


# -- rows and their keys ---------------------------------------------------------------------------------------------------


def key_of_rows(rows: Sequence[Any], field: str | None, hidden: Sequence[str] = ()) -> Any:
    """
    What the item runner knows rows by: a field, their content, or for texts and numbers the row itself. A key is on record
    and told: of one that has something `hidden` in it there is only a digest.
    """
    own = partial(_own_key, field)
    if any(_tells(own(row), hidden) for row in rows):
        return partial(_digest_if, own, hidden)
    return own if any(_is_plain(row) for row in rows) else field


def _tells(key: str | None, hidden: Sequence[str]) -> bool:
    return key is not None and any(one in key for one in hidden if len(one) >= 4)


def _digest_if(own: Callable[[Any], str | None], hidden: Sequence[str], row: Any) -> str | None:
    key = own(row)
    return blake2b(key.encode(), digest_size=16).hexdigest() if key is not None and _tells(key, hidden) else key


def _own_key(field: str | None, row: Any) -> str | None:
    if _is_plain(row):
        return str(row)
    if field is None:
        return Keys(None).of(row, 0)
    value = row.get(field) if isinstance(row, Mapping) else None
    return None if value is None else str(value)


def _is_plain(row: Any) -> bool:
    return isinstance(row, str | int | float) and not isinstance(row, bool)


def keys_of(rows: Sequence[Any], item_key: Any) -> list[str]:
    """The key of each row, as the item runner gives it."""
    keys = Keys(item_key)
    return [keys.of(row, place) for place, row in enumerate(rows)]


def names_row(value: Any) -> bool:
    """Whether a part of a manifest has a reference to the row in it."""
    if isinstance(value, str):
        return "${" in value and any(part.kind == "item" for part in references_in(parse(value)))
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(names_row, inner))


def remembering(there: Pass) -> Values:
    """What references stand for, with each output of another step read once for all rows."""
    known: dict[tuple[str, str], Any] = {}

    def output(step: str, name: str) -> Any:
        if (step, name) not in known:
            known[step, name] = there.output(step, name)
        return known[step, name]

    return Values(there.manifest.params, there.secret, output)


def content_of(value: Any, hidden: Sequence[str]) -> str:
    """A value as a text that digests are made of, without anything `hidden`."""
    try:
        text = in_text(value)
    except (TypeError, ValueError, RecursionError):  # keys of several types, or a value that holds itself
        text = repr(value)
    for one in hidden:
        if len(one) >= 4:
            text = text.replace(one, "***")
    return text


class Marks:
    """
    What is kept with the outputs of a row, to know later whether it is the same row and the same work: a digest of each,
    made without secrets.
    """

    def __init__(self, work: StepWork, values: Values) -> None:
        self._config, self._values, self._hidden = work.step.config, values, work.pass_.hidden
        parts = {"config": work.step.config, "inputs": work.step.work.get("inputs", {})}
        # Inputs may be large: what is the same for all rows is looked at once.
        self._own = {kind: {k: one for k, one in part.items() if _differs(one)} for kind, part in parts.items()}
        self._common = {kind: {k: one for k, one in part.items() if not _differs(one)} for kind, part in parts.items()}
        self._first = work.step.component
        self._told: str | None = None

    def of(self, row: Any) -> dict[str, str]:
        """Both digests; PermanentFailure if the row's config cannot be filled in."""
        if self._told is None:
            self._told = content_of([self._first, self._values.shown(self._common, self._config)], self._hidden)
            self._told = _digest(self._told)
        own = content_of(self._values.with_row(row).shown(self._own, self._config), self._hidden)
        return {"row": self.of_row(row), "work": _digest(self._told + own)}

    def of_row(self, row: Any) -> str:
        """That of the row itself."""
        return _digest(content_of(row, self._hidden))


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _differs(value: Any) -> bool:
    """Whether a part of a manifest may come to something else for each row."""
    if isinstance(value, str):
        return "${" in value and any(part.kind in {"item", "own"} for part in references_in(parse(value)))
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(_differs, inner))


# -- one row ---------------------------------------------------------------------------------------------------------------


class _OfRow:
    """What both have in common: the component, and where it works."""

    def __init__(
        self,
        work: StepWork,
        component: Component,
        guard: Guard,
        values: Values,
        *,
        lost: Callable[[LeaseLost], object],
    ) -> None:
        """`lost` is told that the flow is another process's now."""
        self.__name__ = work.step.id  # the stage is called so
        self._lost = lost
        self.work = work
        self.values = values
        self.template = work.template
        self.inputs: Mapping[str, Any] = work.step.work.get("inputs", {}) if work.deed == "do" else {}
        self._component = component
        self._limit = guard.timeout
        # A child process is told what to do once everything is on record that has to be.
        self._child = (
            Guard(work.step.id, retry=None, timeout=guard.timeout, isolation="process")
            if guard.isolation == "process"
            else None
        )
        if self._child is None:
            load(component)
        connection = self.template.get("connection")
        self._connection = work.pass_.connection(connection) if isinstance(connection, str) else None

    @staticmethod
    def outer(guard: Guard) -> Guard:
        """The guard of the stage: a child process has its time limit inside of it."""
        return guard.replace(timeout=None, isolation=None) if guard.isolation == "process" else guard

    def _done(self, config: Mapping[str, Any], context: StepContext) -> Mapping[str, Any]:
        if self._child is None:
            return do_work(self._component, config, context)
        call = _ChildCall(self._child, self._child.name or "")
        call.sent = context.idempotency_key
        try:
            done: Mapping[str, Any] = run(call, in_child, (self._component.name, config, context), {})
        finally:
            if call.asked:
                _ = current().idempotency_key  # the code in the child has asked, so the call of the row has too
        return done

    def _context(self, values: Values, row_key: str, row: Any = NO_ROW) -> StepContext:
        work, there, item = self.work, self.work.pass_, cast("Item", current_work.get())
        # A child process knows its own time.
        limit = None if self._child is not None else self._limit
        return StepContext(
            until=None if limit is None else here.get().clock.monotonic() + limit,
            pipeline=there.manifest.name,
            step=work.step.id,
            run_id=there.record.id,
            run_key=there.record.run_key,
            attempt=current().attempt,
            idempotency_key=item.idempotency_key(),  # of `current` it would count as one that the work sends along
            root=there.root,
            allowed=there.allowed,
            connection=self._connection,
            inputs=values.fill(self.inputs, self.template),
            row=row,
            row_key=row_key,
            hidden=there.hidden,
            undoes=work.deed == "undo",
            place=Place(
                store_url=there.home.store_url,
                app=there.home.name,
                run=there.record.number,
                token=there.lease.token,
                store=there.store,
            ),
        )

    def _asked(self, ask: Callable[..., Any], *key: str) -> Any:
        """What the store says to who wants to begin something under a key; its refusals are raised."""
        there = self.work.pass_

        def asked() -> Any:
            try:
                return ask(
                    *key,
                    holder=there.record.id,
                    lease=there.lease,
                    dead=certainly_dead,
                    ahead_us=ahead_us(),
                )
            except (IdempotencyConflict, IdempotencyMismatch) as said:  # which is not the store's own trouble
                return said

        begun = self._ours(asked)
        if isinstance(begun, Exception):
            raise begun
        return begun

    def _ours(self, write: Callable[[], Any]) -> Any:
        """
        Write under the flow's lease. If that is lost, it is neither this row's failure nor its end: the run winds down,
        and whoever has the flow now goes on with it.
        """
        try:
            return keep_trying(write, "the store")
        except LeaseLost as lost:
            self._lost(lost)
            raise Snooze(_GONE) from None


class _ChildCall(Call):
    """The call of a row in a process of its own. `current` has the row's idempotency key there, too."""

    sent: str

    def key(self) -> str:
        return self.sent


class RowDeed(_OfRow):
    """
    Does a step's work for one row. What it gives is what the store keeps of the row: `outputs`, its `marks`, and `cached`
    if another run had done the work for its key.
    """

    def __init__(
        self,
        work: StepWork,
        component: Component,
        guard: Guard,
        values: Values,
        *,
        lost: Callable[[LeaseLost], object],
        instead: Callable[[Mapping[str, Any], str], Mapping[str, Any]] | None = None,
    ) -> None:
        """`instead` does the work if no component of its own does."""
        super().__init__(work, component, guard, values, lost=lost)
        self._instead = instead
        self._takes_row = component.takes_row and not names_row([self.template, self.inputs])
        self._idempotency = work.step.work.get("idempotency")
        self._turns: dict[str, tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()
        self._marks = Marks(work, values)

    def __call__(self, row: Any) -> dict[str, Any]:
        key = current().item_key or ""
        marks = self._marks.of(row)  # before the component may change it
        # Also while it waits for its turn, or for the store: one that nobody waits for any more goes on from there.
        with under_way(self.work.pass_.record.id, self.work.step.id):
            return self._work(row, key) | {"marks": marks}

    def _work(self, row: Any, key: str) -> dict[str, Any]:
        values = self.values.with_row(row)
        if self._idempotency is None:
            return {"outputs": self._outputs(values, row, key, key)[0]}
        scope, digest, config = record_of(self.work, values, row if self._takes_row else NO_ROW)
        with self._turn(digest):
            begun = self._begin(scope, digest, config)
            if isinstance(begun, KeyDone):
                return self._hit(begun)
            there = self.work.pass_
            try:
                outputs, packed = self._outputs(values, row, key, digest)  # rows that share it are the same work
            except BaseException:
                keep_trying(lambda: there.store.release_key(begun, ahead_us=ahead_us()), "the store")
                raise
            ttl = self._idempotency["cache_ttl_ms"] / 1000
            self._ours(lambda: there.store.succeed_key(begun, packed, ttl, there.lease, ahead_us=ahead_us()))
            return {"outputs": outputs}

    def _outputs(self, values: Values, row: Any, key: str, row_key: str) -> tuple[Mapping[str, Any], bytes]:
        """What the component puts out for the row, also in one piece; PermanentFailure if it would not come back."""
        config = values.fill(self.template, self.template, self._component.places)
        if self._instead is not None:
            came = self._instead(config, key)
        else:
            came = self._done(config, self._context(values, row_key, row if self._takes_row else NO_ROW))
        return came, keep(came, self.work.pass_.home.codec, self.work.step.id, self.work.pass_.secret).packed

    # -- its idempotency key

    @contextmanager
    def _turn(self, digest: str) -> Iterator[None]:
        """
        Of rows that share a key, one at a time. To the store they are of one holder, and the second would take over from
        the first.
        """
        with self._lock:
            lock, waiting = self._turns.get(digest) or (threading.Lock(), 0)
            self._turns[digest] = (lock, waiting + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, waiting = self._turns.pop(digest)
                if waiting > 1:
                    self._turns[digest] = (lock, waiting - 1)

    def _begin(self, scope: str, digest: str, config: str) -> KeyBegun | KeyDone:
        return self._asked(self.work.pass_.store.begin_key, scope, digest, config)  # type: ignore[no-any-return]

    def _hit(self, done: KeyDone) -> dict[str, Any]:
        """The outputs of who did the work. What an attempt of this run did before it crashed is this run's own."""
        there = self.work.pass_
        found: dict[str, Any] = {"outputs": outputs_of(done.outputs, there.home.codec)}
        if done.holder != there.record.id:
            found["cached"] = True
            self._tell_hit(done)
        return found

    def _tell_hit(self, done: KeyDone) -> None:
        from outlast.observe.events import IdempotencyHit

        work, there = self.work, self.work.pass_
        hit = IdempotencyHit(
            run_id=there.record.id,
            pipeline=there.manifest.name,
            run_key=there.record.run_key,
            step_id=work.step.id,
            component=work.component_name,
            done_at=from_us(done.succeeded_us),
            done_by=done.holder,
        )
        if listening():
            emit(hit)
        if len(work.events) < _MOST_HITS:  # on record with the step
            work.events.append(as_row(hit))


_MOST_HITS = 1000  # events of rows that were not executed, on record with their step


def undone_by_row(work: StepWork) -> bool:
    """Whether each row of a step is undone by itself."""
    return bool(work.step.work.get("compensate", {}).get("per") == "row")


def outputs_of(data: bytes | None, codec: Codec) -> dict[str, Any]:
    """What a row has put out, by what is on record with its key."""
    return {} if data is None else dict(Outputs(data, codec, lambda _: None))


def record_of(work: StepWork, values: Values, row: Any = NO_ROW) -> tuple[str, str, str]:
    """
    The idempotency record of a row: what its key is one for, its digest, a fingerprint of the work. `row`: what the
    component is given beside its config, which is part of the work then.
    """
    step = work.step
    rendered = values.key(step.work["idempotency"]["key"], step.config)
    shown = values.shown({"config": step.config, "inputs": step.work.get("inputs", {})}, step.config)
    given = () if row is NO_ROW else (content_of(row, work.pass_.hidden),)
    config = fingerprint_of("config", step.component, in_text(shown), *given)
    return f"{work.pass_.manifest.name}.{step.id}", key_digest(rendered, _key_secret()), config


class RowUndo(_OfRow):
    """
    Undoes one row. It is given the row's entry: its key, the `item`, and `outputs`, unless it failed after it was begun.
    References to the step's own outputs are to those of the row. One that is `unknown` is left as it is, and on record as that.
    """

    def __call__(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        work, there = self.work, self.work.pass_
        if entry.get("unknown"):
            raise Skip(UNKNOWN)
        row = entry["item"]
        values = self.values.with_row(row, own_outputs=(work.step.id, entry.get("outputs", {})))
        config = values.fill(self.template, self.template, self._component.places)
        if "idempotency" not in work.step.work:
            self._done(config, self._context(values, str(entry["key"])))
            return {}
        scope, digest, _ = record_of(work, self.values.with_row(row))
        if "outputs" not in entry:
            # Nobody else begins what was begun here, until it is undone.
            held = self._asked(there.store.hold_key, scope, digest)
            if isinstance(held, KeyDone) and held.holder != there.record.id:
                return {}  # that run's, since a moment ago
        self._done(config, self._context(values, digest))
        keep_trying(lambda: there.store.forget_key(scope, digest, there.record.id), "the store")
        return {}


def not_known(name: str) -> PermanentFailure:
    """A component that this process does not have."""
    message = f"the component {name} is not known here: install the package that has it"
    return PermanentFailure(message, error_class="missing_dependency")
