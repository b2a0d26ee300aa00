"""
What users write: stages, and what a stage may say about an item instead of returning its output.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from contextlib import suppress
from types import CodeType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from outlast import presets
from outlast.calls.guard import Guard
from outlast.errors import ConfigurationError
from outlast.kernel.parcel import contents, home_of, packed, reduced
from outlast.kernel.raised import NoFailure
from outlast.pipeline.resources import Use
from outlast.settings.callables import Shape, kind_of, name_of, shape_of
from outlast.settings.checks import Check, Shown
from outlast.store.codec import hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Literal, Never

    from outlast.kernel.aliases import Seconds
    from outlast.policy import RetryPolicy

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

_UNSET: Any = object()
_MOST_REPAIRS = 2
SHORTEST_SNOOZE = 1.0  # seconds: with less, what waits for long would be a busy loop, and a job has a row of each
LONGEST_SNOOZE = 7 * 86400.0  # seconds from the first one: of a job, or of an item at a stage


class Skip(NoFailure):
    """Raise it in a stage to say that this item is not wanted: it ends as skipped, which is no failure."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(NoFailure):
    """
    Raise it in a stage or a job to say: not yet, come back after so many seconds, of which there is at least one. It
    costs no attempt, and ends 7 days after the first one.

    >>> Snooze(0).delay
    1.0
    """

    def __init__(self, delay: Seconds) -> None:
        check = Check()
        asked = check.seconds("the delay of Snooze", delay, SHORTEST_SNOOZE)
        check.raise_if_any()
        self.delay = max(SHORTEST_SNOOZE, asked)
        super().__init__(f"snoozed for {self.delay:g} s")


class Degraded(Generic[Out_co]):
    """
    Return it from a stage: an output that is not as good as it should be, and why. The item succeeds and counts as
    degraded.
    """

    __slots__ = ("value", "why")

    def __init__(self, value: Out_co, why: str) -> None:
        self.value = value
        self.why = why

    def __repr__(self) -> str:
        return f"Degraded({self.why!r})"


class Stage(Generic[P, In_contra, Out_co]):
    """
    One step of a pipeline, made by `stage`. Calling it calls the function as it is, without any protection, as a test
    would.

    `batch` is how many items the function gets at a time, in a list; None for one item.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None,
        guard: Guard,
        concurrency: int,
        checkpoint: bool,
        repairs: tuple[Callable[[Any, Exception], Any], ...],
        version: str,
        is_async: bool,
        batch: int | None = None,
    ) -> None:
        self.fn = fn
        own = getattr(fn, "__name__", None)
        self.name = name or (own if isinstance(own, str) and own else name_of(fn))
        self.guard = guard
        self.concurrency = concurrency
        self.batch = batch
        self.checkpoint = checkpoint
        self.repairs = repairs
        self.version = version
        self.is_async = is_async
        self.resources = _resources(fn)
        shape = None if guard.fallback is None else shape_of(guard.fallback)
        # What of them the fallback takes: it gets the item, and no more than that besides.
        self.lent = frozenset(self.resources if shape is None else shape.fitting((), self.resources)[1])
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, item: In_contra, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself; what it would `use` must be given."""
        missing = [name for name in self.resources if name not in kwargs]
        if missing and not args:
            message = f"{self.name} is called outside of a run, where nothing is opened: give it {missing[0]}=..."
            raise TypeError(message)
        return self.fn(item, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Stage {self.name!r} version {self.version}>"

    def __reduce__(self) -> tuple[Any, ...]:
        owner = f"the stage {self.name!r}"
        state = {field: packed(owner, field, value) for field, value in vars(self).items() if field != "__wrapped__"}
        return reduced(self, state, home_of(self))

    def __setstate__(self, state: Any) -> None:
        if (given := contents(state)) is not None:
            vars(self).update(given, __wrapped__=given["fn"])


def _resources(fn: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
    return {name: found.default.factory for name, found in parameters.items() if isinstance(found.default, Use)}


def annotations_of(fn: Callable[..., Any]) -> list[Any]:
    """What the annotations of a stage's function mean, as far as that can be known."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    with suppress(ValueError):  # it answers that it wraps something, without end
        fn = inspect.unwrap(fn)
    # Mocks and proxies answer many an attribute with something: only real code has names.
    if type(getattr(fn, "__code__", None)) is not CodeType:  # an object that can be called, or a method
        fn = getattr(fn, "__func__", None) or vars(type(fn)).get("__call__", fn)
    code = getattr(fn, "__code__", None)
    if type(code) is not CodeType:
        return []
    free = zip(code.co_freevars, getattr(fn, "__closure__", None) or (), strict=False)
    inside: dict[str, Any] = {}
    for name, cell in free:
        try:
            inside[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return [*hints_of(fn, getattr(fn, "__globals__", {}), inside)]


class BatchStage(Stage[P, In_contra, Out_co]):
    """A stage whose function gets a list of items and returns a list with what becomes of each."""

    def __call__(self, items: Sequence[In_contra], /, *args: P.args, **kwargs: P.kwargs) -> Any:  # type: ignore[override]
        """Call the function itself; what it would `use` must be given."""
        return super().__call__(items, *args, **kwargs)  # type: ignore[arg-type]


class BatchStageDecorator:
    """What ``stage(batch=...)`` returns."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(
        self, fn: Callable[Concatenate[list[A], P], Coroutine[Any, Any, Sequence[B | Degraded[B] | Exception]]], /
    ) -> BatchStage[P, A, B]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[list[A], P], Sequence[B | Degraded[B] | Exception]], /
    ) -> BatchStage[P, A, B]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Stage[..., Any, Any]:
        """Make the function a stage."""
        return _made(fn, **self._options)


class StageDecorator:
    """What ``stage(...)`` returns."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, fn: Callable[Concatenate[A, P], Coroutine[Any, Any, B | Degraded[B]]], /) -> Stage[P, A, B]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[A, P], B | Degraded[B]], /) -> Stage[P, A, B]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Stage[..., Any, Any]:
        """Make the function a stage."""
        return _made(fn, **self._options)


@overload
def stage(fn: Callable[Concatenate[A, P], Coroutine[Any, Any, B | Degraded[B]]], /) -> Stage[P, A, B]: ...
@overload
def stage(fn: Callable[Concatenate[A, P], B | Degraded[B]], /) -> Stage[P, A, B]: ...
@overload
def stage(
    *,
    batch: int,
    name: str | None = None,
    guard: Guard | None = None,
    retry: RetryPolicy | None = ...,
    timeout: Seconds | None = None,
    concurrency: int = 16,
    isolation: Literal["thread", "process"] | None = None,
    checkpoint: bool = False,
    repairs: Sequence[Callable[[Any, Exception], Any]] = (),
    version: str = "1",
) -> BatchStageDecorator: ...
@overload
def stage(
    *,
    name: str | None = None,
    guard: Guard | None = None,
    retry: RetryPolicy | None = ...,
    timeout: Seconds | None = None,
    concurrency: int = 16,
    batch: None = None,
    isolation: Literal["thread", "process"] | None = None,
    checkpoint: bool = False,
    repairs: Sequence[Callable[[Any, Exception], Any]] = (),
    version: str = "1",
) -> StageDecorator: ...
def stage(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    guard: Guard | None = None,
    retry: RetryPolicy | None = _UNSET,
    timeout: Seconds | None = None,
    concurrency: int = 16,
    batch: int | None = None,
    isolation: Literal["thread", "process"] | None = None,
    checkpoint: bool = False,
    repairs: Sequence[Callable[[Any, Exception], Any]] = (),
    version: str = "1",
    **unknown: Never,
) -> Any:
    """
    Make a function one stage of a pipeline: it gets an item and returns what becomes of it. Sync functions run in
    threads.

    It is called after its function, or `name`: two stages of one function need names that differ.

    Without a `guard` its attempts follow the preset ``stage``; `retry` and `timeout` win over those of the guard.
    `concurrency` is how many items may be in it at a time. ``checkpoint=True`` stores its output, so that neither
    resume nor replay pays for it again. `repairs` change the input of an item that failed with an error that is not
    retried, one after the other, at most two. `version` says that the code has changed; what that means for a run that
    is resumed, its ``on_change`` decides.

    With `batch` the function gets a list of up to so many items and returns a list of the same length, in the same
    order. In it an exception says that this item has failed, a `Skip` or a `Snooze` says that of this item, and a
    `Degraded` is an output. `concurrency` counts calls.
    """
    options: dict[str, Any] = {
        "name": name,
        "guard": guard,
        "retry": retry,
        "timeout": timeout,
        "concurrency": concurrency,
        "batch": batch,
        "isolation": isolation,
        "checkpoint": checkpoint,
        "repairs": repairs,
        "version": version,
        "unknown": unknown,
    }
    if fn is not None:
        return _made(fn, **options)
    return StageDecorator(options) if batch is None else BatchStageDecorator(options)


def _made(
    fn: Callable[..., Any],
    *,
    name: str | None,
    guard: Guard | None,
    retry: Any,
    timeout: Any,
    concurrency: int,
    batch: int | None,
    isolation: Any,
    checkpoint: bool,
    repairs: Sequence[Callable[[Any, Exception], Any]],
    version: str,
    unknown: dict[str, Any],
) -> Stage[..., Any, Any]:
    if isinstance(fn, Stage) or not callable(fn):
        raise ConfigurationError(f"expected a function to make a stage of, got: a value of type {type(fn).__name__}.")
    kind = kind_of(fn)
    if "generator" in kind:
        message = f"expected a function that returns one output, got: the generator function {name_of(fn)}."
        raise ConfigurationError(message)
    check = Check()
    check.unknown(
        unknown,
        ("name", "guard", "retry", "timeout", "concurrency", "batch", "isolation", "checkpoint", "repairs", "version"),
    )
    name = None if name is None else check.written_name("name", name)
    concurrency = check.integer("concurrency", concurrency, low=1, default=16)
    version = check.name("version", version)
    checkpoint = check.maybe_bool("checkpoint", checkpoint) is True
    if batch is not None:
        batch = check.integer("batch", batch, low=1, default=1)
    if isinstance(repairs, str) or not isinstance(repairs, Sequence) or len(repairs) > _MOST_REPAIRS:
        shown = Shown(f"{len(repairs)} of them") if isinstance(repairs, Sequence) else repairs
        check.add("repairs", f"at most {_MOST_REPAIRS} functions of an item and an error", shown)
        repairs = ()
    for number, repair in enumerate(repairs):
        if repair is None:
            check.add(("repairs", number), "a function of an item and an error", repair)
        else:
            check.question(("repairs", number), repair, ("an item", "an error"), "It may block: it runs in a thread.")
    if guard is not None and not isinstance(guard, Guard):
        check.add("guard", "a Guard", guard)
        guard = None
    made = Guard()
    try:
        made = _stage_guard(fn, guard, retry, timeout, isolation, is_async=kind == "async")
    except ConfigurationError as wrong:
        check.take(wrong)
    shared = ", ".join(_resources(fn))
    if made.isolation == "process" and shared:
        check.add(
            "isolation",
            "None or 'thread' in a stage with use()",
            Shown(f"'process' with use() for {shared}"),
            "What the run opens lives in its own process: open it in the function instead, once for a child with functools.cache.",
        )
    check.raise_if_any()
    return (Stage if batch is None else BatchStage)(
        fn,
        name=name,
        guard=made,
        concurrency=concurrency,
        checkpoint=checkpoint,
        repairs=tuple(repairs),
        version=version,
        is_async=kind == "async",
        batch=batch,
    )


def _stage_guard(
    fn: Callable[..., Any], given: Guard | None, retry: Any, timeout: Any, isolation: Any, *, is_async: bool
) -> Guard:
    """
    What protects the attempts of a stage: a stage always waits for an open circuit, and leaves a blocking call in its
    thread.
    """
    base = given or Guard(retry=presets.stage)
    bound = base.timeout if timeout is None else timeout
    isolation = base.isolation if isolation is None else isolation
    if not is_async and bound is not None and isolation is None:
        isolation = "thread"
    if base.idle_timeout is not None:
        message = f"expected no idle_timeout in the guard of the stage {name_of(fn)}: it hands out one output."
        raise ConfigurationError(message)
    # `idle_timeout` is None here: it was refused above.
    patient = "fail" if base.breaker is None else "wait"
    made = base.replace(
        retry=base.retry if retry is _UNSET else retry, timeout=bound, isolation=isolation, on_open=patient
    )
    opened = [*_resources(fn)]  # always given, by name
    called = Shape(("item",), 1, ("item", *opened), opened, more=False, anything=False)
    made._check(fn, called)  # noqa: SLF001 - the guard knows what it can promise for a function
    return made
