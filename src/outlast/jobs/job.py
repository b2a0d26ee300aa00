"""
`Job`: a function whose calls are kept in the store, with its settings. Arguments become a payload when a job is
enqueued, and come back when a worker runs it.

A payload holds the arguments by name, as JSON in the codec's envelope. What would not come back as it was is refused
when the job is enqueued, where its author can mend it, and not when a worker reads it. What `use` gives is opened by
the worker and is no part of a payload.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

from outlast import presets
from outlast.calls.guard import Guard
from outlast.calls.records import here_and_now
from outlast.errors import ConfigurationError, PermanentFailure, Problem, nearest
from outlast.jobs.handle import JobHandle, beside
from outlast.jobs.own import RESERVED
from outlast.kernel.clock import ahead_us
from outlast.kernel.log import warn
from outlast.kernel.parcel import contents, home_of, packed, reduced, unpacked
from outlast.kernel.redact import LIMIT
from outlast.pipeline.resources import Use
from outlast.pipeline.stages import annotations_of
from outlast.policy import RetryPolicy
from outlast.settings.callables import Shape, kind_of, name_of, shape_of
from outlast.settings.checks import MOST_PROBLEMS, Check, Shown, a_value_of
from outlast.store.codec import Lost, types_in
from outlast.store.faults import StoreRefused
from outlast.store.jobs import MOST_BYTES as LARGEST
from outlast.store.records import AlikeJobs, NewJob

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from datetime import datetime
    from typing import Literal, Never

    from outlast.jobs.cron import Schedule
    from outlast.jobs.handle import JobHome
    from outlast.jobs.onrecord import HereAndNow
    from outlast.kernel.aliases import Seconds
    from outlast.store.codec import Kept

P = ParamSpec("P")
T = TypeVar("T")

UNSET: Any = object()
TICK = "scheduled_at"  # the parameter of a job that is given the instant of its tick
_LONGEST_NAME = 100  # characters of a kind or a queue
_LONGEST_KEY = 500  # characters of a unique key: an index holds it
_FARTHEST = 100 * 366 * 86400.0  # seconds: a century
_HIGHEST = 2**31 - 1  # a priority
OPTIONS = tuple("name queue guard retry timeout isolation unique_for cron timezone missed version upgrade".split())
_BOUND_OPTIONS = ("unique_key", "delay", "priority", "queue", "transaction")
_FOR_DECORATOR = {name: f"It belongs to the decorator: @app.job({name}=...)." for name in OPTIONS}
_FOR_ENQUEUE = {name: f"It belongs to the enqueue: .options({name}=...).enqueue(...)." for name in _BOUND_OPTIONS}


class JobArgumentsError(PermanentFailure):
    """What is stored of a job's arguments cannot be given to its function; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_class="validation_error")


class Options(NamedTuple):
    """How one job is enqueued."""

    unique_key: str | Callable[..., str] | None = None
    delay_us: int = 0
    priority: int = 0
    queue: str | None = None
    transaction: object | None = None


class BoundJob(Generic[P, T]):
    """A job with the options for enqueueing it: what `Job.options` returns."""

    def __init__(self, job: Job[P, T], options: Options) -> None:
        self._job = job
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[T]:
        """
        Put a call with these arguments into the queue. It is on disk when this returns; in a `transaction` of the
        caller's, when that is committed. With a unique key that another job has: the handle of that one.
        """
        new = self._new(args, kwargs)
        home = self._job.home.present
        if self._options.transaction is None:
            (done,) = home.store.enqueue([new], ahead_us=ahead_us())
            return JobHandle(home, done.id, done.at_us, new=done.new)
        from outlast.jobs import transactions

        (made,) = transactions.enqueue(home, self._options.transaction, [new])
        return JobHandle(home, made.id, made.at_us, new=made.new)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[T]:
        """As `enqueue`; for a transaction of an async library it is the only way."""
        new = self._new(args, kwargs)
        home = self._job.home.present
        if self._options.transaction is None:
            (done,) = await beside(lambda: home.store.enqueue([new], ahead_us=ahead_us()))
            return JobHandle(home, done.id, done.at_us, new=done.new)
        from outlast.jobs import transactions

        (made,) = await transactions.aenqueue(home, self._options.transaction, [new])
        return JobHandle(home, made.id, made.at_us, new=made.new)

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]], /) -> int:
        """
        Enqueue one job for each mapping of keyword arguments: all of them or none; how many are new. Those whose unique
        key another job has are not.
        """
        many, home = self._many(arguments), self._job.home.present
        if self._options.transaction is None:
            return home.store.enqueue_many(many, ahead_us=ahead_us())
        from outlast.jobs import transactions

        return sum(one.new for one in transactions.enqueue(home, self._options.transaction, many))

    async def aenqueue_many(self, arguments: Iterable[Mapping[str, Any]], /) -> int:
        """As `enqueue_many`."""
        many, home = self._many(arguments), self._job.home.present
        if self._options.transaction is None:
            return await beside(lambda: home.store.enqueue_many(many, ahead_us=ahead_us()))
        from outlast.jobs import transactions

        return sum(one.new for one in await transactions.aenqueue(home, self._options.transaction, many))

    def __reduce__(self) -> tuple[Any, ...]:
        key = packed(f"the options of the job {self._job.kind!r}", "unique_key", self._options.unique_key)
        return _bound, (self._job, self._options._replace(unique_key=key))

    def _new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        arguments = self._job.arguments(args, kwargs)
        return self._made(arguments)

    def _many(self, arguments: Iterable[Mapping[str, Any]]) -> Sequence[NewJob]:
        """
        All of them, before the first is stored: whatever is wrong with one is told with its place, and no transaction
        waits for the caller's iterable.
        """
        if isinstance(self._options.unique_key, str):
            message = (
                "expected unique_key to be a function of the arguments for enqueue_many, got: one text. "
                "All of them would be the same job."
            )
            raise ConfigurationError(message)
        if isinstance(arguments, Mapping):
            message = (
                "expected an iterable with the keyword arguments of each job, got: one mapping. Write [...] around it."
            )
            raise ConfigurationError(message)
        job, alike = self._job, self._options.unique_key is None
        bind, make = job.arguments, job.encode_arguments if alike else self._made
        made: list[Any] = []
        problems: list[Problem] = []
        for place, given in enumerate(arguments):
            try:
                if type(given) is not dict and not isinstance(given, Mapping):
                    wrong = Problem((), "the keyword arguments of a job as a mapping", a_value_of(given))
                    raise ConfigurationError([wrong])
                made.append(make(bind((), given)))
            except ConfigurationError as error:
                problems += [problem.within("arguments", place) for problem in error.details]
                if len(problems) >= MOST_PROBLEMS:
                    break
        if problems:
            raise ConfigurationError(problems)
        return AlikeJobs(self._like(b"", None), made) if alike else made

    def _made(self, arguments: Mapping[str, Any]) -> NewJob:
        job, key = self._job, self._options.unique_key
        unique = job.key_of(key, arguments) if callable(key) else key
        return self._like(job.encode_arguments(arguments), unique)

    def _like(self, payload: bytes, unique: str | None) -> NewJob:
        job, (_, delay_us, priority, queue, _) = self._job, self._options
        return NewJob(queue or job.queue, job.kind, job.version, priority, delay_us, payload, unique)


class Job(BoundJob[P, T]):
    """
    A function whose calls can be put into a queue, made by ``@app.job``. Calling it calls the function here and now.

    `kind` is its name in the store: that of the function, or the one it was given. Its module is no part of it, so code
    may move.
    """

    #: Whether it is run once more, when it has no attempt left, to put things in order: see `own`.
    ends_itself = False

    def __init__(
        self,
        home: JobHome,
        fn: Callable[..., Any],
        *,
        kind: str,
        queue: str,
        guard: Guard | None,
        retry: RetryPolicy,
        timeout: float | None,
        isolation: Literal["thread", "process"] | None,
        unique_for: float | None,
        schedule: Schedule | None,
        version: int,
        upgrade: Callable[[dict[str, Any], int], dict[str, Any]] | None,
    ) -> None:
        super().__init__(self, Options())
        self.home = home
        self.fn = fn
        self.kind = kind
        self.queue = queue
        self.guard = guard
        self.retry = retry
        self.timeout = timeout
        self.isolation = isolation
        self.unique_for = unique_for
        self.schedule = schedule
        self.version = version
        self.upgrade = upgrade
        self.is_async = kind_of(fn) == "async"
        parameters = inspect.signature(fn).parameters
        self.resources = resources_of(fn)
        self._order = [name for name, found in parameters.items() if found.kind is found.POSITIONAL_OR_KEYWORD]
        named = [
            found
            for name, found in parameters.items()
            if found.kind is not found.VAR_KEYWORD and name not in self.resources
        ]
        self._defaults = {found.name: found.default for found in named if found.default is not found.empty}
        self.names = frozenset(found.name for found in named)
        self._needed = self.names - self._defaults.keys()
        self._anything = any(found.kind is found.VAR_KEYWORD for found in parameters.values())
        self.made_by = _execution(fn)
        self._unstored = False  # whether the log has said that results cannot be stored
        self._received = False  # whether another process has sent it: one that is declared here comes first
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, here and now; what it would `use` must be given."""
        if self.resources:
            given = {*self._order[: len(args)], *kwargs}
            if missing := [name for name in self.resources if name not in given]:
                message = (
                    f"{self.kind} is called outside of a worker, where nothing is opened: give it {missing[0]}=... "
                    "In a test, outlast.testing.inline opens what it uses."
                )
                raise TypeError(message)
        from outlast.jobs.onrecord import HereAndNow

        around = HereAndNow(self.kind, is_async=self.is_async)
        if self.is_async:
            return _awaited(self.fn(*args, **kwargs), around)
        before = here_and_now.set(around)
        try:
            return self.fn(*args, **kwargs)
        finally:
            here_and_now.reset(before)

    def __repr__(self) -> str:
        return f"<Job {self.kind!r} version {self.version}>"

    def __reduce__(self) -> tuple[Any, ...]:
        owner = f"the job {self.kind!r}"
        state = {
            field: packed(owner, field, value)
            for field, value in vars(self).items()
            if field not in {"__wrapped__", "known"}  # the second is found again
        }
        return reduced(self, state, home_of(self))

    def __setstate__(self, state: Any) -> None:
        if (given := contents(state)) is not None:
            vars(self).update(given, __wrapped__=given["fn"])
            self._received = True
            known = self.home.kinds.get(self.kind)
            if known is None or known._received:  # noqa: SLF001 - same class
                self.home.kinds[self.kind] = self

    def options(
        self,
        *,
        unique_key: str | Callable[..., str] | None = None,
        delay: Seconds | None = None,
        priority: int = 0,
        queue: str | None = None,
        transaction: object | None = None,
        **unknown: Never,
    ) -> BoundJob[P, T]:
        """
        How it is enqueued. While a job of this kind with the same `unique_key` is queued, being processed or has
        succeeded, there is no second one; the key is a text, or a function of the job's arguments. `delay`: in seconds,
        not before. A larger `priority` goes first. In a `transaction` of the caller's, on the store's own database, the
        job exists if and only if that is committed.
        """
        check = Check()
        check.unknown(unknown, _BOUND_OPTIONS, _FOR_DECORATOR)
        unique_key = self._checked_key(check, unique_key)
        delayed = 0.0 if delay is None else check.seconds("delay", delay, 0.0)
        if delayed > _FARTHEST:
            check.add("delay", "at most a century", Shown(f"{delayed:g} s"))
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _HIGHEST:
            check.add("priority", f"an integer from -{_HIGHEST} to {_HIGHEST}", priority)
        if queue is not None:
            queue = named(check, "queue", queue)
        if transaction is not None:
            from outlast.jobs.transactions import refusal

            if (problem := refusal(transaction)) is not None:
                check.problems.append(Problem(expected=problem, kind="text"))
        check.raise_if_any()
        return BoundJob(self, Options(unique_key, round(delayed * 1_000_000), priority, queue, transaction))

    def _checked_key(self, check: Check, key: Any) -> Any:
        if key is None:
            return None
        if not callable(key):
            return named(check, "unique_key", key, _LONGEST_KEY)
        what = "a text, or a function of the job's arguments"
        if (kind := kind_of(key)) != "sync":
            shown = Shown(f"the {'coroutine' if kind == 'async' else kind} function {name_of(key)}")
            check.add("unique_key", what, shown, "It must answer at once.")
        shape = shape_of(key)
        # It is called by name.
        needed = set() if shape is None else {*shape.positional[: shape.required], *shape.needed}
        wrong = needed - self.names if not self._anything else set[str]()
        places = set() if shape is None else set(shape.positional) - shape.named
        if wrong or places:
            takes = f"{name_of(key)}{shape}"
            check.add("unique_key", f"a function of ({', '.join(self._listed())}), by name", Shown(takes))
        return key

    def _listed(self) -> list[str]:
        return [name for name in inspect.signature(self.fn).parameters if name in self.names]

    # -- arguments to payload ------------------------------------------------------------------------------------------

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call by name; `ConfigurationError` names each that is missing or unknown."""
        if not args and self._needed <= kwargs.keys() <= self.names:
            return kwargs
        # By place first: a payload keeps the order in which a person reads a call.
        given = {**dict(zip(self._order, args, strict=False)), **kwargs}
        if len(given) == len(args) + len(kwargs) and self._needed <= given.keys() <= self.names:
            return given  # each of them once
        problems: list[str] = []
        if len(args) > len(self._order):
            problems.append(f"expected at most {len(self._order)} arguments of {self.kind} by place, got: {len(args)}.")
        problems += [
            f"expected the argument {name} of {self.kind} once, got: by place and by name."
            for name in self._order[: len(args)]
            if name in kwargs
        ]
        problems += [
            f"expected no argument {name} of {self.kind}: it is opened by the worker, with use()."
            for name in self.resources
            if name in given
        ]
        unknown = (
            [] if self._anything else [name for name in given if name not in self.names and name not in self.resources]
        )
        for name in unknown[:MOST_PROBLEMS]:
            way_out = nearest(str(name), self._listed()) or f" It takes: {', '.join(self._listed()) or 'none'}."
            problems.append(f"expected no argument {str(name)!r} of {self.kind}.{way_out}")
        problems += [
            f"expected the argument {name} of {self.kind}, got: nothing."
            for name in self._listed()
            if name in self._needed and name not in given
        ]
        if any(not isinstance(name, str) for name in given):
            problems.append(f"expected the names of arguments of {self.kind} to be texts.")
        if problems:
            raise ConfigurationError(problems)
        return given

    def encode_arguments(self, arguments: Mapping[str, Any]) -> bytes:
        """The payload; `ConfigurationError` names each argument that would not come back as it is."""
        try:
            given = arguments if type(arguments) is dict else dict(arguments)
            plain = self.home.codec.plain(given)
            if plain is not None and len(plain) <= LARGEST:
                return plain
            kept = self.home.codec.keep(given)
        except Exception:  # noqa: BLE001 - somebody else's class may fail in any way; each argument is asked by itself
            raise ConfigurationError(self._unstorable(arguments)) from None
        if kept.classes and kept.lacks(self.known):
            raise ConfigurationError(self._unstorable(arguments))
        if len(kept.data) > LARGEST:
            raise ConfigurationError(self._too_large(arguments, len(kept.data)))
        return kept.data

    def _unstorable(self, arguments: Mapping[str, Any]) -> list[str]:
        problems: list[str] = []
        for name, value in arguments.items():
            wanted = f"expected the argument {name} of {self.kind} to be one that can be stored and comes back as it is, got:"
            try:
                kept = self.home.codec.keep(value)
            except RecursionError:
                problems.append(f"{wanted} a value that is nested too deeply.")
                continue
            except Exception as error:  # noqa: BLE001 - as above
                what = (
                    getattr(error, "kind", None)
                    or f"{a_value_of(value)}, which fails to be stored with {type(error).__name__}"
                )
                problems.append(
                    f"{wanted} a value with {what} in it. Pass what it is made of."
                    if hasattr(error, "kind")
                    else f"{wanted} {what}."
                )
                continue
            if lacks := kept.lacks(self.known):
                problems.append(f"{wanted} a value of {' and '.join(lacks)}. {_way_out(name, kept)}")
        return problems or [f"expected the arguments of {self.kind} to be nested less deeply."]

    def _too_large(self, arguments: Mapping[str, Any], size: int) -> str:
        sizes = {name: len(self.home.codec.encode(value)) for name, value in arguments.items()}
        largest = max(sizes, key=lambda name: sizes[name])
        return (
            f"expected the arguments of {self.kind} to take at most {LARGEST:,} bytes, got: {size:,}, most of it in {largest}. "
            "Put it where the worker can read it, and enqueue where that is."
        )

    def new_of_tick(self, tick: datetime) -> NewJob:
        """The job of a tick of its schedule."""
        from outlast.jobs.cron import key_of

        arguments = {TICK: tick} if TICK in self.names else {}
        return self.options(unique_key=key_of(tick))._new((), arguments)  # noqa: SLF001 - as `enqueue` does

    def key_of(self, key: Callable[..., str], arguments: Mapping[str, Any]) -> str:
        """The unique key of a job with these arguments, those with defaults included."""
        whole = {**self._defaults, **arguments}
        shape = shape_of(key)
        made = key(**(whole if shape is None else shape.fitting((), whole)[1]))
        check = Check()
        found = named(check, "unique_key", made, _LONGEST_KEY)
        if check.problems:
            # Not what it returned: that may be made of the payload.
            message = f"expected {name_of(key)} to return a text of 1 to {_LONGEST_KEY} characters as unique_key, got: {a_value_of(made)}."
            raise ConfigurationError(message)
        return found

    # -- payload to arguments, result and back -------------------------------------------------------------------------

    @functools.cached_property
    def known(self) -> Mapping[str, type]:
        """The classes that its annotations name. Looked at when first needed: a name may be defined below it."""
        return types_in(*annotations_of(self.fn))

    def bind_payload(self, payload: bytes, version: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        The arguments to call the function with, without its resources. Those of an older version go through `upgrade`,
        which gets objects of classes that are no more as dicts of their fields. `JobArgumentsError` if they do not fit.
        """
        if version > self.version:
            message = f"expected arguments of version {self.version} or older, got: version {version}. A worker of newer code can do it."
            raise JobArgumentsError(message)
        upgraded = version < self.version and self.upgrade is not None
        codec = self.home.codec
        try:
            arguments = codec.decode(payload, self.known) if upgraded else codec.bring_back(payload, self.known)
        except (Lost, StoreRefused) as error:
            message = f"the arguments of {self.kind} cannot be made again: {error}"
            raise JobArgumentsError(message) from None
        except Exception as error:
            message = f"the arguments of {self.kind} cannot be read ({type(error).__name__})"
            raise JobArgumentsError(message) from error
        if upgraded:
            arguments = self._upgraded(arguments, version)
        if not isinstance(arguments, dict):
            message = f"expected the arguments of {self.kind} by name, got: {a_value_of(arguments)}."
            raise JobArgumentsError(message)
        try:
            return (), cast("dict[str, Any]", self.arguments((), arguments))
        except ConfigurationError as wrong:
            raise JobArgumentsError(self._unfit(wrong.problems, version)) from None

    def plain_arguments(self, payload: bytes, version: int) -> dict[str, Any] | None:
        """As `bind_payload`, if no code but that of JSON makes them, and they fit; else None."""
        if version != self.version:
            return None
        found = self.home.codec.plainly(payload)
        if isinstance(found, dict) and self._needed <= found.keys() <= self.names:
            return found
        return None

    def _upgraded(self, arguments: Any, version: int) -> Any:
        upgrade = cast("Callable[[dict[str, Any], int], Any]", self.upgrade)
        try:
            return upgrade(arguments, version)
        except Exception as error:
            message = f"{name_of(upgrade)} could not bring the arguments of {self.kind} from version {version} to {self.version} ({type(error).__name__})"
            raise JobArgumentsError(message) from error

    def _unfit(self, problems: Sequence[str], version: int) -> str:
        """What does not fit, and the way out, which is not cut from the record however much does not fit."""
        begins, ends = f"the arguments on record do not fit {self.kind}: ", self._about(version)
        said = " ".join(problem.replace(f" of {self.kind}", "") for problem in problems)
        room = max(40, LIMIT - len(begins) - len(ends))
        return begins + (said if len(said) <= room else f"{said[: room - 1]}…") + ends

    def _about(self, version: int) -> str:
        if version == self.version:
            return (
                " If they were edited, edit them again with outlast dlq edit. If the function was changed, give it version= and "
                "upgrade=."
            )
        return "" if self.upgrade is not None else f" They are of version {version}, and the job has no upgrade=."

    def encode_result(self, value: object) -> bytes | None:
        """
        What is stored of a result; None of None. A result that cannot come back does not fail a job whose work is done:
        then the reason is stored, and `JobHandle.result` raises it.
        """
        if value is None:
            return None
        codec = self.home.codec
        try:
            kept = codec.keep({"value": value})
            lacks = kept.lacks(self.known) if kept.classes else []
            why = (
                f"it is, or holds, a value of {' and '.join(lacks)}. Annotate what {self.kind} returns."
                if lacks
                else ""
            )
            if not why and len(kept.data) <= LARGEST:
                return kept.data
            why = why or f"it takes {len(kept.data):,} bytes, more than {LARGEST:,}."
        except RecursionError:
            why = "it is nested too deeply."
        except Exception as error:  # noqa: BLE001 - somebody else's class may fail in any way
            why = f"it is, or holds, a value of type {getattr(error, 'kind', type(error).__name__)}."
        if not self._unstored:
            self._unstored = True
            warn(
                "The result of %s cannot be stored: %s The job succeeds, and result() raises ResultLost.",
                self.kind,
                why,
            )
        return codec.encode({"unstored": why})

    def decode_result(self, data: bytes | None) -> T:
        """The result that was kept; `Lost` says why there is none."""
        if data is None:
            return cast("T", None)
        kept = self.home.codec.bring_back(data, self.known)
        if "unstored" in kept:
            message = f"it was not stored: {kept['unstored']}"
            raise Lost(message)
        return cast("T", kept["value"])

    def result_in(self, home: JobHome, data: bytes | None) -> T:  # noqa: ARG002 - for jobs whose result is in the store
        """As `decode_result`, of a job in this home's store."""
        return self.decode_result(data)


async def _awaited(called: Coroutine[Any, Any, Any], around: HereAndNow) -> Any:
    before = here_and_now.set(around)
    try:
        return await called
    finally:
        here_and_now.reset(before)


def _bound(job: Job[..., Any], options: Options) -> BoundJob[..., Any]:
    return BoundJob(job, options._replace(unique_key=unpacked(options.unique_key)))


def _way_out(name: str, kept: Kept) -> str:
    named_by = types_in(*kept.classes)
    if kept.parts:
        return "Its JSON does not hold all of it: pass what it is made of."
    if named_by and len(kept.lacks(named_by)) == 0:
        return f"Annotate the parameter {name} with its class."
    return "Pass what it is made of."


def resources_of(fn: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """What the parameters of a job `use`, by name."""
    parameters = inspect.signature(fn).parameters
    return {name: found.default.factory for name, found in parameters.items() if isinstance(found.default, Use)}


def named(check: Check, field: str, value: object, most: int = _LONGEST_NAME) -> str:
    """A name that goes on record and into an index as it is."""
    name = check.written_name(field, value)
    if "\0" in name or len(name) > most:
        check.add(field, f"at most {most} characters, none of them NUL", Shown(f"{len(name)} characters"))
    return name


# -- the decorator -----------------------------------------------------------------------------------------------------


class JobDecorator:
    """What ``app.job(...)`` returns."""

    def __init__(self, home: JobHome, options: dict[str, Any]) -> None:
        self._home = home
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Job[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Job[P, T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Job[..., Any]:
        """Make the function a job."""
        return make(self._home, fn, **self._options)


def make(
    home: JobHome,
    fn: Any,
    *,
    name: str | None,
    queue: str,
    guard: Guard | None,
    retry: Any,
    timeout: Any,
    isolation: Any,
    unique_for: Any,
    cron: Any,
    timezone: Any,
    missed: Any,
    version: int,
    upgrade: Any,
    unknown: Mapping[str, Any],
) -> Job[..., Any]:
    """A job of the app, which knows it by its kind from now on; `ConfigurationError` has all that is wrong."""
    check = Check()
    check.unknown(unknown, OPTIONS, _FOR_ENQUEUE)
    kind = _kind(check, fn, name)
    queue = named(check, "queue", queue)
    version = check.integer("version", version, low=1, default=1)
    upgrade = check.question("upgrade", upgrade, ("the arguments", "their version"))
    if upgrade is not None and version == 1:
        check.add("upgrade", "None with version=1", Shown("a function"), "There are no arguments of an older version.")
    bound = None if timeout is None else check.seconds("timeout", timeout, 1.0, positive=True)
    unique = None if unique_for is None else check.seconds("unique_for", unique_for, 1.0, positive=True)
    if unique is not None and unique > _FARTHEST:
        check.add("unique_for", "at most a century", Shown(f"{unique:g} s"))
    schedule = None
    if (cron, timezone, missed) != (None, "UTC", "once"):
        from outlast.jobs.cron import checked

        schedule = checked(check, cron, timezone, missed)
    policy = presets.jobs
    if retry is None:
        policy = RetryPolicy(max_attempts=1)
    elif isinstance(retry, RetryPolicy):
        policy = retry
    elif retry is not UNSET:
        check.add("retry", "a RetryPolicy or None", retry, _way_to_retry(retry))
    if guard is not None and not isinstance(guard, Guard):
        check.add("guard", "a Guard", guard)
        guard = None
    if isolation not in {None, "thread", "process"}:
        check.choice("isolation", isolation, ("thread", "process"))
        isolation = None
    if _is_function(check, fn):
        try:
            guard, isolation = _protection(fn, guard, bound, isolation)
        except ConfigurationError as wrong:
            check.take(wrong)
        shared = ", ".join(resources_of(fn))
        if isolation == "process" and shared:
            check.add(
                "isolation",
                "None or 'thread' in a job with use()",
                Shown(f"'process' with use() for {shared}"),
                "What the worker opens lives in its own process: open it in the function instead, once for a child with functools.cache.",
            )
        _refuse_twin(check, home, fn, kind)
        if cron is not None:
            _refuse_arguments(check, fn)
    check.raise_if_any()
    job: Job[..., Any] = Job(
        home,
        fn,
        kind=kind,
        queue=queue,
        guard=guard,
        retry=policy,
        timeout=bound,
        isolation=isolation,
        unique_for=unique,
        schedule=schedule,
        version=version,
        upgrade=upgrade,
    )
    home.kinds[kind] = job
    return job


def _way_to_retry(given: object) -> str:
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return f"Write RetryPolicy(max_attempts={given})."
    return "RetryPolicy.from_config reads a mapping."


def _kind(check: Check, fn: Any, name: str | None) -> str:
    if name is not None:
        return _own_name(check, named(check, "name", name))
    own = getattr(fn, "__name__", None)
    if isinstance(own, str) and own.isidentifier():
        return named(check, "name", own)
    if callable(fn) and not isinstance(fn, type) and own != "<lambda>":
        check.add("name", "a name for the job", Shown(f"{a_value_of(fn)}, which has none"), "Give it one with name=.")
    return "unnamed"


def _own_name(check: Check, name: str) -> str:
    if name.startswith(RESERVED):
        check.add(
            "name",
            f"one that does not begin with {' or '.join(RESERVED)}",
            name,
            "Those are jobs of Outlast and of flows.",
        )
    return name


def _is_function(check: Check, fn: Any) -> bool:
    """Whether it can be a job: a function that returns, with arguments that have names."""
    what = "a function or a coroutine function to make a job of"
    if isinstance(fn, Job):
        check.add((), what, Shown(f"{fn!r}, which is one already"))
    elif isinstance(fn, staticmethod | classmethod) or not callable(fn):
        check.add((), what, Shown(a_value_of(fn)))
    elif isinstance(fn, type):
        check.add((), what, Shown(f"the class {fn.__name__}"))
    elif getattr(fn, "__name__", None) == "<lambda>":
        check.add((), what, Shown("a lambda"), "Give it a name with def: the name is how workers find it.")
    elif "generator" in (kind := kind_of(fn)):
        check.add((), what, Shown(f"the {kind} function {name_of(fn)}"), "A job returns one result.")
    else:
        return _has_names(check, fn)
    return False


def _has_names(check: Check, fn: Any) -> bool:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        check.add((), "a function whose parameters can be seen", Shown(name_of(fn)), "Write one around it.")
        return False
    before = len(check.problems)
    by_name = "Its arguments are stored by name."
    for name, found in parameters.items():
        if found.kind is found.VAR_POSITIONAL:
            check.add((), f"no *{name} in the job {name_of(fn)}", Shown("one"), by_name + " Take a list.")
        elif found.kind is found.POSITIONAL_ONLY:
            check.add((), f"no parameter by place only in the job {name_of(fn)}", Shown(name), by_name)
    if next(iter(parameters), None) in {"self", "cls"}:
        check.add(
            (),
            f"no {next(iter(parameters))} in the job {name_of(fn)}",
            Shown("a method"),
            "Make a function of it: a worker has no object to call it on.",
        )
    return len(check.problems) == before


def _refuse_arguments(check: Check, fn: Any) -> None:
    """Nobody gives a job arguments that its schedule enqueues."""
    needed = [
        name
        for name, found in inspect.signature(fn).parameters.items()
        if found.default is found.empty and found.kind is not found.VAR_KEYWORD
    ]
    if needed:
        check.add(
            "cron",
            f"a function that can be called without arguments, since {name_of(fn)} is enqueued by its schedule",
            Shown(f"one that needs {', '.join(needed)}"),
            "Give them defaults.",
        )


def _protection(fn: Any, guard: Guard | None, timeout: float | None, isolation: Any) -> tuple[Guard | None, Any]:
    """
    What protects the body inside of an attempt, and where it runs; None: nothing does. A sync job runs in a thread
    anyway.
    """
    is_async = kind_of(fn) == "async"
    where = isolation or (None if guard is None else guard.isolation)
    bounded = timeout is not None or (guard is not None and guard.timeout is not None)
    if not is_async and bounded and where is None:
        where = "thread"
    inner = Guard(retry=None, timeout=timeout if where == "process" else None) if guard is None else guard
    made = inner.replace(isolation=where)
    opened = [*resources_of(fn)]
    parameters = [found for name, found in inspect.signature(fn).parameters.items() if name not in opened]
    called = Shape(
        (),
        0,
        [*(found.name for found in parameters if found.kind is not found.VAR_KEYWORD), *opened],
        [
            *(
                found.name
                for found in parameters
                if found.default is found.empty and found.kind is not found.VAR_KEYWORD
            ),
            *opened,
        ],
        more=False,
        anything=any(found.kind is found.VAR_KEYWORD for found in parameters),
    )
    made._check(fn, called)  # noqa: SLF001 - the guard knows what it can promise for a function
    return (made if guard is not None or where == "process" else None), where


def _execution(fn: Any) -> tuple[object, ...]:
    """
    Module, name, file and one execution of the module: reloading it makes another one.
    """
    inner = inspect.unwrap(fn) if hasattr(fn, "__wrapped__") else fn
    code = getattr(inner, "__code__", None)
    module = getattr(inner, "__module__", None)
    spec = getattr(sys.modules.get(str(module)), "__spec__", None)
    return module, getattr(inner, "__qualname__", None), getattr(code, "co_filename", None), id(spec) if spec else None


def _refuse_twin(check: Check, home: JobHome, fn: Any, kind: str) -> None:
    """
    Another function with the kind of one that is known. A notebook's cell that runs again and a module that is loaded
    again bring the same function once more: the newest counts.
    """
    if home.has_pipeline(kind):  # a filter of dead letters names either
        check.add("name", "one that no pipeline of the app has", kind, "Give one of the two another name with name=.")
    other = home.kinds.get(kind)
    if other is None or other.fn is fn:
        return
    now, before = _execution(fn), other.made_by
    same = now[:2] == before[:2] and "<locals>" not in str(now[1])
    again = now[2:] != before[2:] or str(now[2]).startswith("<")
    if not (same and again):
        check.add(
            "name",
            f"one that no other job of {home.name!r} has",
            Shown(f"{kind!r}, which is that of {other.fn.__module__}.{name_of(other.fn)}"),
            "Give one of the two another name with name=.",
        )
