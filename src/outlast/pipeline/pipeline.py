"""
`Pipeline`: the public class for runs over items.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from outlast.deadletters.beginnings import SOURCE
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.parcel import contents, reduced
from outlast.pipeline.drivers import Stream, blocking, stepped
from outlast.pipeline.home import DEFAULT, Home
from outlast.pipeline.lifecycle import Run, check_resume
from outlast.pipeline.plan import Plan, Tuning
from outlast.pipeline.record.books import Bounds
from outlast.pipeline.replays import Chosen, given_again, sink_of_replay
from outlast.pipeline.stages import Stage
from outlast.settings.checks import Check
from outlast.store import open_store
from outlast.store.filters import checked, spelled_out

# The default of min_partial_rate, known by its identity: who says nothing about it means "and no more than
# min_success_rate".
_FOLLOWS = float("0.5")

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import ModuleType
    from typing import Never, TypedDict, Unpack

    from outlast.components import Sink, Source, Table
    from outlast.pipeline.results import ItemResult, RunResult
    from outlast.pipeline.view import RunView
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.filters import LetterFilter

    class _Options(TypedDict, total=False):
        app: Home | None
        failure_budget: float
        failure_check_interval: int
        min_success_rate: float
        min_partial_rate: float
        spend_limit: Mapping[str, float]
        final_check: bool


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
T = TypeVar("T")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

_OPTIONS = (
    "app",
    "failure_budget",
    "failure_check_interval",
    "min_success_rate",
    "min_partial_rate",
    "spend_limit",
    "final_check",
)


class ArrowStream(Protocol):
    """Anything that hands out Arrow data."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class Pipeline(Generic[In_contra, Out_co]):
    """
    Stages, one after the other, for many items. One that fails does not stop the others: it becomes a dead letter.

    A run stops reading when more than `failure_budget` of the finished items have failed (looked at after every
    `failure_check_interval` of them), when 50 in a row fail in the same way, at an error that no item can survive, and
    when more than `spend_limit` was spent. It is called completed from `min_success_rate` on, a partial success from
    `min_partial_rate` on, else failed.
    """

    name: str
    stages: tuple[Stage[..., Any, Any], ...]
    app: Home
    _bounds: Bounds
    _module: str | None
    _tuning = Tuning()

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls,
            name: str,
            s1: Stage[..., A, B],
            /,
            **options: Unpack[_Options],
        ) -> Pipeline[A, B]: ...
        @overload
        def __new__(
            cls,
            name: str,
            s1: Stage[..., A, B],
            s2: Stage[..., B, C],
            /,
            **options: Unpack[_Options],
        ) -> Pipeline[A, C]: ...
        @overload
        def __new__(
            cls,
            name: str,
            s1: Stage[..., A, B],
            s2: Stage[..., B, C],
            s3: Stage[..., C, D],
            /,
            **options: Unpack[_Options],
        ) -> Pipeline[A, D]: ...
        @overload
        def __new__(
            cls,
            name: str,
            s1: Stage[..., A, B],
            s2: Stage[..., B, C],
            s3: Stage[..., C, D],
            s4: Stage[..., D, E],
            /,
            *more: Stage[..., Any, Any],
            **options: Unpack[_Options],
        ) -> Pipeline[A, Any]: ...

    def __new__(
        cls,
        name: str,
        /,
        *stages: Any,
        app: Any = None,
        failure_budget: float = 0.1,
        failure_check_interval: int = 1000,
        min_success_rate: float = 0.95,
        min_partial_rate: float = _FOLLOWS,
        spend_limit: Mapping[str, float] | None = None,
        final_check: bool = False,
        **unknown: Never,
    ) -> Any:
        check = Check()
        check.unknown(unknown, _OPTIONS)
        self: Any = super().__new__(cls)
        self.name = check.written_name("name", name)
        self.stages = _checked(stages, check)
        if app is not None and not isinstance(app, Home):
            check.add("app", "an App", app)
            app = None
        self.app = DEFAULT if app is None else app
        limits = dict(spend_limit or {})
        bounds = Bounds(
            failure_budget=check.number("failure_budget", failure_budget, low=0, high=1, default=0.1),
            failure_check_interval=check.integer("failure_check_interval", failure_check_interval, low=1, default=1000),
            min_success_rate=check.number("min_success_rate", min_success_rate, low=0, high=1, default=0.95),
            min_partial_rate=check.number("min_partial_rate", min_partial_rate, low=0, high=1, default=0.5),
            spend_limit={
                what: check.number(f"spend_limit[{what!r}]", most, low=0, default=0) for what, most in limits.items()
            },
            final_check=check.maybe_bool("final_check", final_check) is True,
        )
        if min_partial_rate is _FOLLOWS:
            bounds = replace(bounds, min_partial_rate=min(bounds.min_partial_rate, bounds.min_success_rate))
        if name in self.app.kinds:  # a filter of dead letters names either
            check.add("name", "one that no job of the app has", name, "Give one of the two another name.")
        if bounds.min_partial_rate > bounds.min_success_rate:
            check.add("min_partial_rate", "at most min_success_rate", bounds.min_partial_rate)
        check.raise_if_any()
        self._bounds = bounds
        self._module = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001 - who makes it
        self.app.add_pipeline(self)
        return self

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {' → '.join(stage.name for stage in self.stages)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        module, name = self._found_at()
        return reduced(self, vars(self).copy(), (module.__name__, name) if module and name else None)

    def __setstate__(self, state: Any) -> None:
        if (given := contents(state)) is not None:
            vars(self).update(given)
            if not self.app.has_pipeline(self.name):
                self.app.add_pipeline(self)

    def _repr_html_(self) -> str:
        from outlast.display.page import pipeline_page

        return pipeline_page(self.name, self.stages, self._bounds.in_words())

    # -- running

    def run(
        self,
        source: Iterable[In_contra] | ArrowStream | Source | str | Path,
        /,
        *,
        run_key: str | None = None,
        item_key: str | Callable[[In_contra], str] | None = None,
        sink: str | Path | Table | Sink | Callable[[Sequence[Out_co]], None] | None = None,
        engine: str = "local",
        ordered: bool = False,
        audit: Literal["all", "failures"] = "all",
        on_item_error: Literal["dlq", "collect", "stop"] = "dlq",
        on_change: Literal["stop", "keep", "redo"] = "stop",
        breaker_rounds: int = 3,
        progress: bool = False,
        check: bool = True,
        watch: Callable[[RunView], None] | None = None,
    ) -> RunResult[Out_co]:
        """
        Run every item of the source through the stages. The same `run_key` goes on with the same run: what is finished
        stays.

        `sink` is a file (.jsonl, .csv, also with .gz or .zst; .parquet) or a `Table`, which hold each output exactly
        once whatever happens, a `Sink` of yours, a callable, which gets outputs at least once, or None: then the store
        keeps them. `audit="failures"` keeps no record of attempts that succeeded at once. While the circuit breaker
        of a stage is open its items wait; after `breaker_rounds` rounds of failed probes in a row the run stops.
        `progress` shows the run
        while it runs: in a notebook, in a terminal (if rich is installed), else in lines on standard error. `watch` is
        called with a `RunView` a few times a second instead.

        With `check`, only a completed run returns. RunIncomplete is raised for a partial success (unless
        ``on_item_error="collect"``), RunFailed if the run failed, and RunInterrupted if it was paused, cancelled or
        interrupted. Ctrl-C and SIGTERM let running attempts end, for 25 s
        at most, and then do what they always do: KeyboardInterrupt, SystemExit(143), or the program's own handler,
        which is called at the end; also with ``check=False``.
        """
        if engine != "local":
            message = f"expected engine to be 'local', got: {engine!r}. Other engines are not in this version."
            raise ConfigurationError(message)
        with _shown(source, wanted=progress, instead=watch) as looks:
            plan = self._plan(
                run_key=run_key,
                item_key=item_key,
                sink=sink,
                ordered=ordered,
                audit=audit,
                on_item_error=on_item_error,
                on_change=on_change,
                breaker_rounds=breaker_rounds,
                watch=looks,
                expected=_counted(source, looks),
            )
            result = blocking(Run(plan, source))
        return _checked_end(result, on_item_error) if check else result

    async def arun(
        self,
        source: Iterable[In_contra] | AsyncIterable[In_contra] | ArrowStream | Source | str | Path,
        /,
        *,
        run_key: str | None = None,
        item_key: str | Callable[[In_contra], str] | None = None,
        sink: str | Path | Table | Sink | Callable[[Sequence[Out_co]], None] | None = None,
        ordered: bool = False,
        audit: Literal["all", "failures"] = "all",
        on_item_error: Literal["dlq", "collect", "stop"] = "dlq",
        on_change: Literal["stop", "keep", "redo"] = "stop",
        breaker_rounds: int = 3,
        check: bool = True,
        watch: Callable[[RunView], None] | None = None,
    ) -> RunResult[Out_co]:
        """
        As `run`, in the running event loop, whose signals are left alone. A cancelled run is interrupted, and can be
        resumed.
        """
        plan = self._plan(
            run_key=run_key,
            item_key=item_key,
            sink=sink,
            ordered=ordered,
            audit=audit,
            on_item_error=on_item_error,
            on_change=on_change,
            breaker_rounds=breaker_rounds,
            watch=watch,
            expected=_counted(source, watch),
        )
        result: RunResult[Out_co] = await Run(plan, source).go()
        return _checked_end(result, on_item_error) if check else result

    async def astream(
        self, source: Iterable[In_contra] | AsyncIterable[In_contra], /, *, check: bool = True
    ) -> AsyncIterator[ItemResult[Out_co]]:
        """
        The items as they end, each when its end is on record. At the end it raises as `arun` does. To leave it earlier
        interrupts the run.
        """
        results: Any = Stream[Any](self._plan(keep_outputs=False), source, check=check).results()
        try:
            async for result in results:
                yield result
        finally:
            await results.aclose()

    def stream(self, source: Iterable[In_contra], /, *, check: bool = True) -> Iterator[ItemResult[Out_co]]:
        """
        As `astream`, for code that is not async; signals do what they do to `run`. Work goes on while the next result
        is asked for.
        """
        return stepped(Stream(self._plan(keep_outputs=False), source, check=check))

    def _check_stage(self, stage: str | None) -> None:
        """
        Refuse the name of a stage that nothing can have failed at: nothing found would look as if nothing had failed.
        """
        if stage is None or stage in {*(known.name for known in self.stages), "source"}:
            return
        # One that was renamed since has letters all the same.
        if stage not in {stat.stage for stat in self.app.store.stats() if stat.pipeline == self.name}:
            names = [known.name for known in self.stages]
            message = f"expected stage to be one of {', '.join(names)}, got: {stage!r}.{nearest(stage, names)}"
            raise ConfigurationError(message)

    @spelled_out(without=("pipeline", "status"))
    def reprocess(
        self,
        *,
        canary: int | None = None,
        from_start: bool = False,
        sink: str | Path | Table | Sink | Callable[[Sequence[Out_co]], None] | None = None,
        run_key: str | None = None,
        progress: bool = False,
        check: bool = True,
        watch: Callable[[RunView], None] | None = None,
        **where: Unpack[LetterFilter],
    ) -> RunResult[Out_co]:
        """
        Run the open dead letters of this pipeline again, from the stage that failed with its stored input; with a
        `canary`, so many of them first, and the others only if all of those succeed.

        Outputs go to the sink of the run that a letter comes from, exactly once, and its counts and its status change
        with them; `sink`, a new one, gets all of them instead. The same `run_key` goes on with the same replay.
        `progress`, `check` and `watch` are those of `run`.
        """
        checked(where, without=("pipeline", "status"))
        self._check_stage(where.get("stage"))
        self.app.add_pipeline(self)  # another one of the same name may have been made since
        with _shown(None, wanted=progress, instead=watch) as looks:
            return self.app.dead_letters.replay(  # type: ignore[no-any-return]
                canary=canary,
                from_start=from_start,
                sink=sink,
                run_key=run_key,
                check=check,
                watch=looks,
                **(where | {"pipeline": self.name}),
            )

    def replayed(
        self,
        ids: Sequence[str],
        /,
        *,
        run_key: str,
        canary: int | None = None,
        from_start: bool = False,
        sink: object = None,
        watch: Callable[[RunView], None] | None = None,
    ) -> RunResult[Out_co]:
        """
        Run the dead letters of these ids that are open, as a run of its own, each from the stage that failed with its
        stored input. A letter is settled (resolved, or open again) in the transaction that finishes its item; nothing
        is deleted. The same `run_key` goes on with what that replay has claimed, and with its sink.
        """
        home = None
        if sink is None:
            sink = sink_of_replay(self.app.store, self.name, run_key)
        elif (home := given_again(self.app.store, self.name, run_key, ids, sink)) is not None:
            sink = None
        plan = self._plan(
            run_key=run_key,
            kind="replay",
            from_start=from_start,
            sink=sink,
            on_change="keep",
            watch=watch,
            expected=lambda: len(ids),
        )
        return blocking(Run(plan, Chosen(ids, canary, home)))

    def check_resume(
        self, *, run_key: str, kind: Literal["run", "replay"], item_key: str | None, sink: Any, on_change: str
    ) -> None:
        """Raise what a resume of this run would before any of its work begins. Nothing is changed."""
        if kind == "replay" and sink is None:
            sink = sink_of_replay(self.app.store, self.name, run_key)
        on_change = "keep" if kind == "replay" else on_change
        check_resume(self._plan(run_key=run_key, kind=kind, item_key=item_key, sink=sink, on_change=on_change))

    # -- planning

    def _plan(self, *, run_key: str | None = None, **options: Any) -> Plan:
        check = Check()
        if run_key is not None:
            run_key = check.name("run_key", run_key)
        for option, choices in (
            ("audit", ("all", "failures")),
            ("on_item_error", ("dlq", "collect", "stop")),
            ("on_change", ("stop", "keep", "redo")),
        ):
            if option in options:
                check.choice(option, options[option], choices)
        if "breaker_rounds" in options:
            check.integer("breaker_rounds", options["breaker_rounds"], low=1, default=3)
        item_key = options.get("item_key")
        if item_key is not None and not isinstance(item_key, str) and not callable(item_key):
            check.add("item_key", "the name of a field, a function of an item, or None", item_key)
        check.watch(options.get("watch"))
        check.raise_if_any()
        options.setdefault("home", self.app)
        options.setdefault("target", self._target())
        options.setdefault("tuning", self._tuning)
        return Plan(name=self.name, stages=self.stages, bounds=self._bounds, run_key=run_key, **options)

    def _found_at(self) -> tuple[ModuleType | None, str | None]:
        """The module that made it, and its name there, if it has one."""
        module = sys.modules.get(self._module or "")
        name = next((name for name, value in list(vars(module).items()) if value is self), None) if module else None
        return module, name

    def _target(self) -> str | None:
        """
        Where the command line would find this pipeline: ``file.py:name`` or ``module:name``; None if it could not, as
        in a notebook.
        """
        module, name = self._found_at()
        file = getattr(module, "__file__", None)
        if module is None or name is None or file is None:
            return None
        if module.__name__ != "__main__" and module.__package__:
            return f"{module.__name__}:{name}"
        path = Path(file).resolve()
        return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"

    def run_in_turn(
        self, source: Iterable[In_contra], *, window: int, check: bool = True, **options: Any
    ) -> RunResult[Out_co]:
        """As `run`, with at most so many items in hand at a time."""
        result: RunResult[Out_co] = blocking(Run(self._plan(window=window, **options), source))
        return _checked_end(result, options.get("on_item_error")) if check else result

    def tested(self, items: Iterable[In_contra], provided: Mapping[Any, Any], **options: Any) -> RunResult[Out_co]:
        """As `run`, in a store of its own and with these resources; for `outlast.testing.run`."""
        plan = self._plan(provided=provided, home=_Bench(self.app.name, self.app.codec), **options)
        return blocking(Run(plan, items))


def _checked_end(result: RunResult[Out], on_item_error: object) -> RunResult[Out]:
    """The result of a run that may return: a caller who collects errors looks at them."""
    partial = on_item_error == "collect" and result.status == "partial_success"
    return result if partial else result.raise_for_status()


class _Bench:
    """A home for one test. Its store is deleted when no object refers to it any more."""

    def __init__(self, name: str, codec: Codec) -> None:
        folder = tempfile.mkdtemp(prefix="outlast-test-")
        self.name = name
        self.codec = codec
        self.store = open_store(f"{folder}/outlast.db", app=name)
        weakref.finalize(self.store, shutil.rmtree, folder, ignore_errors=True)

    def tidy(self, store: Store, began: datetime, /) -> None:
        """Nothing is kept for long here."""


def _checked(stages: tuple[Any, ...], check: Check) -> tuple[Stage[..., Any, Any], ...]:
    if not stages:
        check.add("stages", "at least one stage", "none")
    for number, each in enumerate(stages, 1):
        if not isinstance(each, Stage):
            check.add(f"stage {number}", "a Stage", each, "Decorate the function with @outlast.stage.")
    names = [each.name for each in stages if isinstance(each, Stage)]
    if SOURCE in names:
        check.add("stages", "names other than that of the source", SOURCE, "Items that could not be read fail at it.")
    for name in {name for name in names if names.count(name) > 1}:
        why = (
            "Dead letters are found by the name of their stage: give one of them another with @outlast.stage(name=...)."
        )
        check.add("stages", "names that differ", name, why)
    return stages


@contextmanager
def _shown(
    source: object, *, wanted: bool, instead: Callable[[RunView], None] | None = None
) -> Iterator[Callable[[RunView], None] | None]:
    """What watches a run. Nothing of it is loaded unless it is wanted."""
    if not wanted or instead is not None:
        yield instead
        return
    from outlast.components import expected_items
    from outlast.display.watch import Watch, screen

    with Watch(screen(), expected_items(source)) as watch:
        yield watch


def _counted(source: object, watch: Callable[[RunView], None] | None) -> Callable[[], int | None]:
    """How many items there are. They are counted if somebody watches; what shows a run counts them or does without."""
    if watch is None:
        return lambda: None
    from outlast.components import expected_items
    from outlast.display.watch import Watch

    return watch.expected if isinstance(watch, Watch) else expected_items(source)
