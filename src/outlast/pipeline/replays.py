"""
Replays of dead letters: a run over letters that it has claimed. Its outputs go to the runs that the letters come from.

A replay has its own lease, and a lease on every run that it writes to: an `Origin`. Outputs go to the sink of that run
in three steps, as for every sink. They are written, and do not count yet. Then one transaction of the store makes all
of it count: the item of the replay; the item, the counts and the sink's offset of the letter's own run; the letter.
Then the sink settles them. A replay that has lost one of these leases writes nothing.

    list     open letters are claimed and recorded in their order; the place in it is the number of the item
    admit    the run of a letter is opened, once: lease and sink; if that fails, the letter stays open, with the reason
    finish   as in any run; `Homecoming` says what it changes in the letter's run
    end      sinks are finished, leases given back; letters that are claimed and not settled are open again

A replay that dies leaves `replayed_by` set on every run whose sink it has opened. The next replay of the pipeline
repairs these sinks first.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from outlast.calls import internal
from outlast.components import Busy, Sink, Table, Unreadable, open_sink, registry
from outlast.components.files import PARQUET
from outlast.components.sinks import spool_of
from outlast.components.sql import steady
from outlast.deadletters import NothingToReplay
from outlast.deadletters.beginnings import beginning
from outlast.errors import ConfigurationError, LeaseLost, PermanentFailure
from outlast.kernel.clock import stopping
from outlast.kernel.log import warn
from outlast.kernel.redact import MASK, error_text, mask, remember_secret
from outlast.kernel.wording import counted
from outlast.pipeline.engine.item import Item
from outlast.pipeline.intake import Intake
from outlast.pipeline.lease import let_go, take, taken
from outlast.pipeline.record.books import Accounting, counts_in_words, in_words
from outlast.pipeline.results import Counts
from outlast.policy import RetryPolicy
from outlast.store.records import ENDED, UNTRIED, Changes, Standing
from outlast.verdicts import classify
from outlast.work.leases import certainly_dead
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.pipeline.plan import Plan
    from outlast.pipeline.record.books import Bounds
    from outlast.pipeline.record.writer import WriteBatch
    from outlast.store import Store
    from outlast.store.records import DeadLetterRow, Lease, RunCounts, RunRecord
    from outlast.work.leases import Heartbeat

_CUT_OFF = ("store_error", "lease_lost", "aborted")  # ends that may leave in a sink what was never committed
MOST_OPEN = 16  # runs that are held at a time, each with its sink
_MOST_TABLES = 256
LOOKED_THROUGH = 1000  # runs, for the one that a sink belongs to
_ALL = 1 << 40
_BUSY = 2.0  # seconds for which a sink that another process has is waited for
_BUSY_SINK = RetryPolicy(max_attempts=sys.maxsize, backoff="fixed", initial_delay=0.1, jitter=0.0, on_errors=(Busy,))


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    The letters that a replay is to do, by their ids and in this order; with a `canary`, so many of them first. `home` is
    the sink of a run that some of them come from, given again.
    """

    ids: Sequence[str]
    canary: int | None = None
    home: Sink | None = None

    def __len__(self) -> int:
        return len(self.ids)


# -- sinks that are opened again ------------------------------------------------------------------------------------------------------

# Tables that this process was given, for addresses that do not belong on record: by the id of the run, and by name if
# that names one database.
_tables: dict[str, Table] = {}


def address_of(sink: object) -> str | None:
    """How the sink of a run can be opened again, for the record: never with a password. None for the store itself."""
    if sink is None:
        return None
    if isinstance(sink, str) and registry.is_address(sink):
        return json.dumps({"address": sink} if tellable(sink) else {"sink": registry.name_in(sink)})
    if isinstance(sink, str | Path):
        return json.dumps({"file": str(Path(sink).absolute())})
    if isinstance(sink, Sink):
        return json.dumps({"sink": type(sink).__qualname__})
    if isinstance(sink, Table):
        told: dict[str, Any] = {"table": sink.name, "key": list(sink.key)}
        target = sink.target
        if isinstance(target, str):
            return json.dumps(told | ({"target": steady(target)} if tellable(target) else {}))
        variable = getattr(target, "variable", None)
        return json.dumps(told | ({"env": variable} if isinstance(variable, str) else {}))
    return json.dumps({"callable": getattr(sink, "__qualname__", type(sink).__name__)})


def remember(run: str, sink: object) -> None:
    """Keep the table that a run was given, for what comes home to it later in this process."""
    if isinstance(sink, Table):
        names = (run, str(sink)) if _names_one(sink) else (run,)
        for name in names:
            _tables.pop(name, None)
            _tables[name] = sink
        while len(_tables) > _MOST_TABLES:
            del _tables[next(iter(_tables))]


def _names_one(table: Table) -> bool:
    """
    Whether two tables of this name are surely in one database: of the address of a server only the password is hidden.
    A function that connects may connect anywhere, and so may a secret of which nobody knows where it comes from; a path
    depends on the folder.
    """
    target = table.target
    if isinstance(target, str):
        return target.startswith("postgres")
    return isinstance(getattr(target, "variable", None), str)


def tellable(target: str) -> bool:
    """
    Whether an address may be on record: a user's name may, a password may not.

    >>> tellable("postgresql://ann@db.example/shop"), tellable("postgresql://ann:secret@db.example/shop")
    (True, False)
    >>> tellable("postgresql://db.example/shop?p%61ssword=secret")
    False
    """
    scheme, mark, rest = target.partition("://")
    place, slash, path = rest.partition("/")
    user, _, host = place.rpartition("@")
    user = unquote(user)
    bare = f"{scheme}{mark}{host}{slash}{path}"
    return not user.partition(":")[2] and mask(bare) == bare


class _Variable:
    """An address that is in an environment variable."""

    def __init__(self, name: str) -> None:
        self.variable = name

    def reveal(self) -> str:
        value = os.environ.get(self.variable)
        if not value:
            raise Gone(
                f"the address of the sink of its run is in the environment variable {self.variable}, which is not set"
            )
        remember_secret(value)
        return value

    def __repr__(self) -> str:
        return f"Secret.env({self.variable!r}) = {MASK}"


class Gone(PermanentFailure):
    """The sink of a run cannot be opened again; the message says why and what to do."""


def opened_again(run: RunRecord, offset: int | None, given: object = None) -> Sink | None:
    """
    The sink of a run, from what is on record or was given to this process; None if the store keeps its outputs. `Gone`
    if there is no way.
    """
    if run.sink is None and run.sink_at is None:
        return None
    told: dict[str, Any] = json.loads(run.sink_at) if run.sink_at else {}
    if (what := only_given(run)) is not None:
        if "sink" in told and isinstance(given, Sink) and _is_that_of(given, run):
            return given
        raise Gone(f"the sink of its run is {what}: replay it from Python, and give it again with sink=")
    name = run.sink or ""
    if "address" in told:
        return open_sink(told["address"])
    if "table" in told or name.startswith("table "):
        return open_sink(_table(run, told, given))
    path = Path(told.get("file") or name)
    there = path.exists() or spool_of(path).exists()
    if offset and not there:
        raise Gone(
            f"the sink of its run is gone: {path}. Put it back, or give another one with sink= (--output in a shell)"
        )
    ended = run.status in ENDED
    if not told and there and path.suffix not in {".parquet", ".pq"} and ended and path.stat().st_size != (offset or 0):
        # Only its name is on record, from before there was more: what is not just as that run has left it may be
        # another file.
        message = f"the sink of its run, {path}, is not as the run has left it: give another one with sink= (--output in a shell)"
        raise Gone(message)
    return open_sink(path)


def _is_that_of(sink: Sink, run: RunRecord) -> bool:
    """Whether a sink is that of the run, by its name; one without a name, by what it is."""
    return sink.name == run.sink and (sink.name is not None or address_of(sink) == run.sink_at)


def given_again(store: Store, pipeline: str, run_key: str, ids: Sequence[str], given: object) -> Sink | None:
    """
    The sink that a replay was given, if a run that its letters come from has the same one: it is opened for that run,
    where that has come to. None for any other, which is the replay's own; and for files and tables, which know what is
    theirs.
    """
    addressed = isinstance(given, str | Path) and registry.find("sinks", given) is not None
    sink = open_sink(given) if addressed or isinstance(given, Sink) else None
    if sink is None:
        return None
    before = store.find_run(pipeline, run_key)
    if before is not None and before.sink_at is not None:
        return None  # it has a sink of its own already
    wanted = {*ids, *(letter for _, letter in ([] if before is None else store.replay_list(before.number)))}
    runs = {run for id_, _, run in store.letter_owners(pipeline=pipeline) if run is not None and id_ in wanted}
    at = address_of(given) or ""
    told = addressed and "sink" not in json.loads(at)  # all of it: nothing had to be left out
    found = [run for run in map(store.run, runs) if run is not None]
    return sink if any(_is_that_of(sink, run) or (told and run.sink_at == at) for run in found) else None


def only_given(run: RunRecord) -> str | None:
    """What the sink of a run is, in words, if a replay can only have it by being given it; else None."""
    told: dict[str, Any] = json.loads(run.sink_at) if run.sink_at else {}
    if "callable" in told:
        return f"the callable {told['callable']}"
    return f"a {told['sink']}" if "sink" in told else None


def waiting_in(run: RunRecord) -> Path | None:
    """The file beside a run's sink in which outputs wait until the run is over; None if there is none."""
    told: dict[str, Any] = json.loads(run.sink_at) if run.sink_at else {}
    name = told.get("file") or ("" if told or (run.sink or "").startswith("table ") else run.sink)
    if not name or Path(name).suffix.lower() not in PARQUET:
        return None
    spool = spool_of(Path(name))
    return spool if spool.is_file() else None


def _table(run: RunRecord, told: dict[str, Any], given: object) -> Table:
    """
    The table of a run, and never one that may be another run's. What is on record is the same from every folder, so it
    comes first.
    """
    name = run.sink or ""
    if "target" in told:
        return Table(told["target"], told["table"], key=told["key"])
    if run.id in _tables:
        return _tables[run.id]
    if isinstance(given, Table) and str(given) == name and _names_one(given):
        return given
    if name in _tables:
        return _tables[name]
    if "env" in told:
        return Table(_Variable(told["env"]), told["table"], key=told["key"])
    raise Gone(
        f"the sink of its run, the {name}, has an address that is not on record: give it again with sink=, "
        "or in a shell with --output ADDRESS#TABLE"
    )


def as_recorded(store: Store, pipeline: str, table: Table, run_key: str | None = None) -> Table:
    """
    The table with the key that the run of this name has on record for it; without a name, the newest run of the
    pipeline that has one.
    """
    found = store.runs(pipeline, limit=LOOKED_THROUGH) if run_key is None else [store.find_run(pipeline, run_key)]
    target = steady(table.target) if isinstance(table.target, str) else None
    for run in found:
        told: dict[str, Any] = json.loads((run and run.sink_at) or "{}")
        same = run is not None and (run.sink == str(table) or told.get("target", "") == target)
        if same and told.get("table") == table.name and told["key"]:
            return Table(table.target, table.name, key=told["key"])
    return table


def sink_of_replay(store: Store, pipeline: str, run_key: str) -> object:
    """What a replay that goes on was given as its sink; None if it had none, or is new."""
    run: RunRecord | None = keep_trying(lambda: store.find_run(pipeline, run_key), "the store")
    if run is None or run.kind != "replay" or run.sink_at is None:
        return None
    told: dict[str, Any] = json.loads(run.sink_at)
    if "file" in told:
        return run.sink if run.sink and Path(run.sink).absolute() == Path(told["file"]) else told["file"]
    if "table" in told:
        return _table(run, told, None)
    if "address" in told:
        return told["address"]
    what = f"the callable {told['callable']}" if "callable" in told else f"a {told['sink']}"
    raise ConfigurationError(f"expected sink: the replay {run_key!r} was given {what}, give it again.")


def claim_sink(sink: Sink, store: Store, record: RunRecord) -> None:
    """The sink comes before the lease: who cannot write must not take a run away from somebody who is only slow."""
    sink.look_for(keep_trying(lambda: store.shard_state(record.number, 0), "the store").sink_offset)

    def claim() -> None:
        try:
            sink.claim()
        except Busy:  # one that begins has its file before its lease, and one that ends after it
            other = keep_trying(lambda: store.run_lease(record.number, 0), "the store")
            if other is not None and not certainly_dead(other.owner):
                raise taken(record, other) from None
            raise

    stopped = "asked to stop while another process writes to the sink"
    internal.keep_trying(claim, _BUSY_SINK, _BUSY, stop=stopping.get(), stopped=stopped)


def make_ready(sink: Sink, store: Store, record: RunRecord, lease: Lease, *, before: RunRecord) -> RunRecord:
    """
    Open the sink of a run where that has come to: what was written and never committed goes. The run's record, which is
    another one if something on it is not in the sink. `before` is the run as it was found: one that has come to a good
    end, and that nobody has touched since, has left nothing behind what is committed.
    """
    state = keep_trying(lambda: store.shard_state(record.number, 0), "the store")
    alone = not lease.before or certainly_dead(lease.before)
    settled: bool | None = False  # somebody had it and did not finish: what is behind may be theirs
    if not lease.before and before.replayed_by is None:
        settled = (before.status in ENDED and before.reason not in _CUT_OFF) or None
    if sink.place is not None and state.sink_offset is not None:
        addresses = [*{str(address_of(path)) for path in (sink.place, sink.place.resolve())}]
        sink.others = keep_trying(lambda: store.claims(record.number, addresses), "the store")
    at, mark = state.sink_offset, state.sink_mark
    open_it = partial(sink.open, at, run=record.id, token=lease.token, alone=alone, settled=settled, mark=mark)
    keep_trying(open_it, "the sink", patience=lease.ttl / 2, unclear=False)  # nobody beats for the lease yet
    if sink.name is not None and (state.sink_offset is None or sink.mark != state.sink_mark):
        # From now on what stands in the file is ours, and can be told from what is on record; and more may follow that
        # is not.
        news = Changes(sink_offset=state.sink_offset or 0, sink_mark=sink.mark, read=state.read)
        keep_trying(lambda: store.write(lease, news), "the store")
    if not sink.returned:
        return record
    # They are done once more: the sink says then what is wrong, and their dead letters have what they came from.
    found = keep_trying(lambda: store.find_keys(record.number, sink.returned), "the store")
    undone = [seq for seq, status in found.values() if status == "succeeded"]
    keep_trying(lambda: store.write(lease, Changes(undone=undone, read=state.read)), "the store")
    return keep_trying(lambda: store.run(record.id), "the store") or record


def close(sink: Sink) -> None:
    """Let a sink go. What it raises then changes nothing that counts: that is committed."""
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001 - the run has its result
        warn("the sink could not be closed: %s: %s", type(error).__name__, error_text(error))


def _other_sink(replay: RunRecord, run: RunRecord) -> str | None:
    """What a replay was given as its sink, in words; None if that is the run's own, given again."""
    told, own = (json.loads(each.sink_at or "{}") for each in (replay, run))
    given = _tables.get(replay.id)
    if "target" in told:
        same = (told["target"], told["table"]) == (own.get("target"), own.get("table"))
    elif "table" in told:
        same = replay.sink == run.sink if given is None or _names_one(given) else given == _tables.get(run.id)
    else:
        same = replay.sink_at == run.sink_at
    return None if same else replay.sink or f"the callable {told.get('callable', 'it was given')}"


# -- the runs that letters come from --------------------------------------------------------------------------------------------------


class Origin:
    """A run that dead letters come from, with its lease and its sink, while a replay writes to it."""

    def __init__(
        self, record: RunRecord, lease: Lease, sink: Sink | None, bounds: Bounds, elsewhere: str | None = None
    ) -> None:
        """`elsewhere` names the sink that outputs go to instead of this run's own."""
        self.record = record
        self.lease = lease
        self.sink = sink
        self.under_way = 0  # letters that are worked on
        self._bounds = bounds
        self._elsewhere = elsewhere

    def judge(self, said: Standing, before: RunCounts, after: RunCounts, exhausted: bool) -> Standing:  # noqa: FBT001 - as on record
        """
        What is said of the run now. One that has read everything and finished all of it is called by its counts; of any
        other only the numbers change.
        """
        then, now = (
            Counts.of(counts, degraded=counts.degraded, source_exhausted=exhausted) for counts in (before, after)
        )
        elsewhere = said.elsewhere
        if self._elsewhere is not None:
            many = elsewhere.get(self._elsewhere, 0) + after.succeeded - before.succeeded
            elsewhere = {name: count for name, count in {**elsewhere, self._elsewhere: many}.items() if count}
        if said.status in ENDED - {"cancelled"} and exhausted and now.pending == 0:
            books = Accounting(self._bounds, now)
            books.source_exhausted = True
            status, reason = books.verdict()
            if self._bounds.final_check and now.success_rate < 1 - self._bounds.failure_budget:
                status, reason = "failed", said.reason or "failure_budget_exceeded"
            return Standing(status, reason, in_words(status, reason, now, self._bounds, elsewhere=elsewhere), elsewhere)
        old, new = counts_in_words(then, elsewhere=said.elsewhere), counts_in_words(now, elsewhere=elsewhere)
        return said._replace(why=said.why.replace(old, new, 1), elsewhere=elsewhere)


class Origins:
    """
    The runs whose dead letters a replay works on. Not safe in threads: one call at a time. With `elsewhere`, outputs go
    to the replay's own sink, and only the counts of these runs change. `given` is the sink of one or more of them, which
    one run at a time can have open.
    """

    def __init__(
        self,
        store: Store,
        replay: RunRecord,
        lease: Lease,
        bounds: Bounds,
        *,
        elsewhere: bool,
        given: Sink | None = None,
    ) -> None:
        """`lease` is the replay's own."""
        self._store = store
        self._lease = lease
        self._replay = replay
        self._bounds = bounds
        self._elsewhere = elsewhere
        self._given = given
        self._most = MOST_OPEN if given is None else 1
        self._open: dict[str, Origin] = {}
        self._barred: dict[str, str] = {}
        self._unknown: set[str] = set()
        self.heartbeat: Heartbeat[Any] | None = None  # of the replay, once there is one

    def known(self, run: str) -> bool:
        """Whether `of` answers at once."""
        return run in self._open or run in self._barred or run in self._unknown

    def of(self, run: str) -> Origin | str | None:
        """The run of this id, held; or why it cannot be; or None if it is not on record, and nothing can come home."""
        if run in self._open:
            return self._open[run]
        if run in self._barred:
            return self._barred[run]
        if run in self._unknown:
            return None
        try:
            found = self._take(run)
        except (LeaseLost, Gone, ConfigurationError) as error:
            self._barred[run] = error_text(error)
            return self._barred[run]
        if found is None:
            self._unknown.add(run)
            return None
        self._open[run] = found
        if self.heartbeat is not None:
            self.heartbeat.also(found.lease)
        return found

    def _take(self, run: str) -> Origin | None:
        record: RunRecord | None = keep_trying(lambda: self._store.run(run), "the store")
        if record is None or record.id == self._replay.id:
            return None
        # A replay that was stopped past its lease may find the run free, because whoever took over has finished with
        # it.
        leased = _leased(
            self._store,
            record,
            self._replay.id,
            elsewhere=self._elsewhere,
            given=self._given,
            only_if=partial(self._store.beat, self._lease),
        )
        return Origin(*leased, self._bounds, _other_sink(self._replay, record) if self._elsewhere else None)

    def room_for(self, run: str) -> bool:
        """Whether this one is held, or can be without giving another one back."""
        return self.known(run) or len(self._open) < self._most

    @property
    def idle(self) -> bool:
        """Whether there is a run with nothing under way."""
        return any(origin.under_way == 0 for origin in self._open.values())

    def give_back_idle(self) -> None:
        """Finish with the runs that nothing is under way for."""
        for run in [run for run, origin in self._open.items() if origin.under_way == 0]:
            self._finish(run)

    def finish(self) -> None:
        """
        Nothing more comes home: sinks are finished, leases given back. The first error is raised when all was tried.
        """
        errors: list[Exception] = []
        for run in [*self._open]:
            try:
                self._finish(run)
            except Exception as error:  # noqa: BLE001 - raised when the others are done
                errors.append(error)
        if errors:
            raise errors[0]

    def _finish(self, run: str) -> None:
        origin = self._open[run]
        if origin.sink is not None:
            record: RunRecord | None = keep_trying(lambda: self._store.run(run), "the store")
            if record is not None:
                finished(self._store, record, origin.lease, origin.sink)
        self._give_back(self._open.pop(run))

    def close(self) -> None:
        """Let everything go that is still held; what is not finished keeps its mark."""
        while self._open:
            self._give_back(self._open.popitem()[1])

    def _give_back(self, origin: Origin) -> None:
        if self.heartbeat is not None:
            self.heartbeat.no_more(origin.lease)
        if origin.sink is not None:
            close(origin.sink)
        let_go(self._store, origin.lease)


def hold(
    store: Store,
    record: RunRecord,
    replay: str | None,
    *,
    elsewhere: bool = False,
    given: object = None,
    only_if: Callable[[], object] = lambda: None,
) -> tuple[RunRecord, Lease, Sink | None]:
    """
    A run for a replay: its sink, unless outputs go elsewhere, and its lease, with a mark on the run until the sink is
    finished with. Once the lease is there and before anything is done with it, `only_if` may raise: the lease is given
    back.
    """
    state = keep_trying(lambda: store.shard_state(record.number, 0), "the store")
    sink = None if elsewhere else opened_again(record, state.sink_offset, given)
    try:
        if sink is not None:
            claim_sink(sink, store, record)
        lease = take(store, record, counted=False)
        try:
            keep_trying(only_if, "the store")
            now: RunRecord = keep_trying(lambda: store.run(record.id), "the store") or record
            if sink is not None:
                now = _marked(store, now, lease, sink, replay or now.replayed_by)
        except BaseException:
            let_go(store, lease)
            raise
    except BaseException:
        if sink is not None:
            close(sink)
        raise
    return now, lease, sink


def _leased(store: Store, record: RunRecord, replay: str | None, **how: Any) -> tuple[RunRecord, Lease, Sink | None]:
    """
    As `hold`, which is done again while the error is one that passes, such as a connection that was cut; `Gone` if it
    does not.
    """

    def once() -> tuple[RunRecord, Lease, Sink | None]:
        try:
            return hold(store, record, replay, **how)
        except (LeaseLost, Gone, ConfigurationError, InterruptedError):
            raise
        except Exception as error:
            if classify(error).category == "transient":
                raise
            raise unusable(error) from error

    def unusable(error: Exception) -> Gone:
        return Gone(f"the sink of its run cannot be used: {error_text(error)}")

    try:
        return keep_trying(once, "the sink of a run that letters come from")  # type: ignore[no-any-return]
    except (LeaseLost, Gone, ConfigurationError, InterruptedError):
        raise
    except Exception as error:
        raise unusable(error) from error


def _marked(store: Store, record: RunRecord, lease: Lease, sink: Sink, replay: str | None) -> RunRecord:
    keep_trying(lambda: store.hold_sink(lease, replay), "the store")
    try:
        # A replay that is under way waits for a sink as it does when it writes to it: its letters need not be sent
        # again for a moment's loss.
        now: RunRecord = keep_trying(lambda: make_ready(sink, store, record, lease, before=record), "the sink")
    except BaseException:
        with suppress(Exception):  # whose mark was there still has to be made good
            store.hold_sink(lease, record.replayed_by)
        raise
    if sink.returned and now.status in ENDED:
        why = f"{counted(len(sink.returned), 'output')} could not be kept by the sink; run it again with run_key={now.run_key!r}"
        if not keep_trying(lambda: store.set_run(lease, now.id, status="interrupted", why=why), "the store"):
            kept_out = counted(len(sink.returned), "output")
            warn(
                "%s of the run %s could not be kept by its sink, and the run was %s", kept_out, now.run_key, now.status
            )
    return now


def finished(store: Store, record: RunRecord, lease: Lease, sink: Sink) -> None:
    """Finish the sink of a run that is over; one that is to be resumed is finished then. The mark goes."""
    if record.status in ENDED or record.kind == "replay":
        keep_trying(sink.finish, "the sink")
    mark_left(store, lease, sink)
    keep_trying(lambda: store.hold_sink(lease, None), "the store")


def mark_left(store: Store, lease: Lease, sink: Sink) -> None:
    """Everything that the sink was given is committed: note how it looks, so that it is known again."""
    mark = sink.left()
    if mark is not None:
        keep_trying(lambda: store.mark_sink(lease, mark), "the store")


def make_good(store: Store, given: object = None) -> None:
    """
    Make good what dead replays have left: rows that were committed and not moved, tails that were never committed,
    Parquet files that were not built.
    """
    for record in keep_trying(store.held_sinks, "the store"):
        holder = keep_trying(partial(store.run, record.replayed_by or ""), "the store")
        lease = None if holder is None else keep_trying(partial(store.run_lease, holder.number, 0), "the store")
        if lease is not None and not certainly_dead(lease.owner):
            continue
        try:
            _make_good(store, record, given)
        except (LeaseLost, Gone, ConfigurationError) as error:
            warn(
                "the sink of run %s of %s, which a replay has left unfinished, stays so: %s. Once it is there, any replay "
                "makes it good; so does the run itself with its run_key and sink",
                *(record.run_key, record.pipeline, error_text(error).removesuffix(".")),
            )


def _make_good(store: Store, record: RunRecord, given: object) -> None:
    now, lease, sink = _leased(store, record, None, given=given)
    try:
        if sink is None:
            keep_trying(lambda: store.hold_sink(lease, None), "the store")
        else:
            finished(store, now, lease, sink)
    finally:
        if sink is not None:
            close(sink)
        let_go(store, lease)


# -- from letters to items ------------------------------------------------------------------------------------------------------------


class LetterIntake(Intake):
    """
    The intake of a replay: it claims the letters of its list, and makes an item of each, at the stage that failed and
    with the input of that stage.
    """

    def __init__(self, chosen: Chosen, plan: Plan, lease: Lease, origins: Origins, **options: Any) -> None:
        super().__init__(iter(()), None, stages=plan.stages, **options)
        self._plan = plan
        self._lease = lease
        self.origins = self._origins = origins
        self._types = plan.types()
        self._codec = plan.home.codec
        self._names = [stage.name for stage in plan.stages]
        self._canary = chosen.canary
        self._rest: Sequence[str] = chosen.ids
        self._last = -1  # the number of the last item that was handed out
        self._under_way = 0
        self._news: asyncio.Event = asyncio.Event()
        self.note = ""  # what the result is to say instead
        self.untried: Counter[str] = Counter()  # why letters stay open that were not tried
        self._untried_before = 0  # by earlier passes
        self._goes_on = False  # an earlier pass has tried some of it

    # -- the list

    def begin(self) -> None:
        """Put on record what is to be done, before anything is: blocking."""
        store, run = self._store, self._run
        listed = store.replay_list(run.number, unfinished=False)
        if listed:
            self._goes_on, self._untried_before = True, len(store.untried(run.number))
            known = {letter for _, letter in listed}
            self._rest = [letter for letter in self._rest if letter not in known]
            left = [letter for _, letter in store.replay_list(run.number)]
            store.claim_for_replay(self._lease, run.id, left, reason=f"replayed by {run.run_key}", again=True)
            if self._canary is None:
                self._claim(len(self._rest))
            return
        if not self._claim(len(self._rest) if self._canary is None else self._canary):
            raise NothingToReplay

    def _claim(self, many: int) -> int:
        count = self._claim_these(self._rest[:many])
        self._rest = self._rest[many:]  # only now: after an error the same ones are asked for again
        return count

    def _claim_these(self, chosen: Sequence[str]) -> int:
        run = self._run
        return self._store.claim_for_replay(self._lease, run.id, chosen, reason=f"replayed by {run.run_key}")

    # -- items

    async def chunk(self, most: int) -> list[Item]:
        run = self._run.number
        rows = await self._in_thread(lambda: self._store.replay_list(run, after=self._last, limit=most))
        while not rows:
            if not await self._more_to_do():
                self.exhausted = True
                return []
            rows = await self._in_thread(lambda: self._store.replay_list(run, after=self._last, limit=most))
        letters = await self._in_thread(lambda: self._store.letters_by_id(letter for _, letter in rows))
        items: list[Item] = []
        for seq, id_ in rows:
            letter = letters.get(id_)
            if items and letter is not None and letter.run is not None and not self._origins.room_for(letter.run):
                break  # these must be on their way before it can be opened
            items.append(await self._item(seq, id_, letter))
            self._last = seq
        self._next = max(self._next, self._last + 1)
        self._under_way += len(items)
        tried = [item for item in items if item.untried is None]
        await self._remember(tried)
        await self._set_ahead(tried)
        # The list is stored and does not grow, except behind a canary.
        self.exhausted = len(items) == len(rows) < most and not (self._rest and self._canary is not None)
        return items

    async def _more_to_do(self) -> bool:
        """Whether there is more than the canaries, and it is to follow: they are waited for."""
        if not self._rest or self._canary is None:
            return False
        while self._under_way:
            self._news.clear()
            await self._news.wait()
        ends = await self._in_thread(lambda: self._store.finished(self._run.number, 0, _ALL))
        untried = await self._in_thread(lambda: self._store.untried(self._run.number))
        # What was not tried says nothing about the others: the next ones take its place.
        canaries = [status for seq, _, status in ends if seq not in untried][: self._canary]
        failed = sum(status not in {"succeeded", "skipped"} for status in canaries)
        if failed:
            again = "failed again" if self._last >= 0 else "had failed"
            self.note = (
                f"canary: {failed} of {len(canaries)} {again}, so the other {len(self._rest)} were left as they are"
            )
            return False
        if (lacking := self._canary - len(canaries)) > 0:
            step = max(1, len(self._rest) // lacking)
            chosen = self._rest[::step][:lacking]
            named = set(chosen)
            self._rest = [letter for letter in self._rest if letter not in named]
            await self._in_thread(lambda: self._claim_these(chosen))
        else:
            await self._in_thread(lambda: self._claim(len(self._rest)))
        return True

    async def _item(self, seq: int, id_: str, letter: DeadLetterRow | None) -> Item:
        if letter is None or letter.status != "replaying" or letter.claimed_by != self._run.id:
            item = Item(seq, id_ if letter is None else letter.item_key, None)
            what = "it is no more on record" if letter is None else f"it is {letter.status} by now"
            return self._without(item, what, status="skipped")
        item = Item(seq, letter.item_key, None)
        item.letter = letter
        if letter.run is not None:
            origin = await self._origin(letter.run)
            if isinstance(origin, str):
                return self._without(item, origin)
            if origin is not None:
                origin.under_way += 1
                item.origin = origin
        try:
            found = beginning(letter, self._codec, self._types, self._names, from_start=self._plan.from_start)
        except Exception as error:  # noqa: BLE001 - one letter that cannot be read stops no other
            return self._without(item, error_text(error))
        item.at = found.at
        item.source = item.value = found.value
        return item

    def _without(self, item: Item, why: str, status: Any = None) -> Item:
        """It is not tried: it stays as it is, and the result says so."""
        item.untried, item.status = why, status
        item.value = Unreadable("", PermanentFailure(why, error_class="validation_error"))
        return item

    async def _origin(self, run: str) -> Origin | str | None:
        origins = self._origins
        while not origins.room_for(run):
            while not origins.idle:
                self._news.clear()
                await self._news.wait()
            await self._in_thread(origins.give_back_idle)
        return origins.of(run) if origins.known(run) else await self._in_thread(lambda: origins.of(run))

    def recorded(self, batch: WriteBatch) -> None:
        self._under_way -= len(batch.items)
        # Now, and not when it was handed out: a replay that is stopped gives back what has not ended.
        for item in batch.items:
            if item.reason is not None and item.reason.startswith(UNTRIED):
                self.untried[item.reason.removeprefix(UNTRIED)] += 1
        for origin in batch.returned:
            origin.under_way -= 1
        self._news.set()

    @property
    def untried_in_all(self) -> int:
        """Letters that were not tried, by this pass or an earlier one."""
        return self._untried_before + self.untried.total()

    def in_words(self, *, ended: bool) -> str:
        """Why letters stay open that were not tried, or that this pass had nothing to do."""
        told = [f"{counted(many, 'letter')}: {why.rstrip('.')}" for why, many in self.untried.most_common(3)]
        if told:
            return f"Not tried and still open: {'; '.join(told)}."
        if ended and self._goes_on and self._last < 0:
            return "Nothing was tried now: this replay tries no letter twice. What is still open needs a new one, with another run_key."
        return ""
