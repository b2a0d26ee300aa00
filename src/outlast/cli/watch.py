"""
Watching a run from beside it: a thread looks at the runner a few times a second, draws what it sees, keeps the state of its breakers on record,
and does what `outlast breaker` asks for.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from outlast.breaker import CircuitState
from outlast.cli.display import Pace, Snapshot, StageLine, lines, picture
from outlast.clock import here
from outlast.store import StoreError
from outlast.words import whole

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from outlast.breaker import CircuitBreaker
    from outlast.pipeline.runner import Runner
    from outlast.store import Store

LIVE = 0.2  # seconds between two pictures
LINES = 5.0  # seconds between two lines
_BREAKERS = 1.0  # seconds between two looks at what is asked of breakers
_PROBLEMS = 2.0  # seconds between two looks at what has failed


class Watch:
    """
    A context for one or more runs, and what watches their runners; `how` is live, lines or None (then only breakers are looked after).
    """

    def __init__(
        self,
        how: str | None,
        expected: Callable[[], int | None] | None = None,
        started: Callable[[Runner], None] | None = None,
        *,
        console: Console | None = None,
    ) -> None:
        self._how = how
        self._expected = expected or (lambda: None)
        self._started = started
        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if how == "live" else None
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._pace = Pace()
        self._problems: tuple[tuple[int, str, str], ...] = ()
        self._last = dict[str, float]()

    def __call__(self, runner: Runner) -> None:
        """Called by the runner's loop again and again, at once when it begins: only the first look of each run is taken here."""
        if runner is self._runner:
            return
        if self._started is not None:
            self._started(runner)
        self._began = here.get().clock.monotonic()
        self._pace = Pace()
        self._runner = runner

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._thread = threading.Thread(target=self._look, daemon=True, name="outlast-watch")
        self._thread.start()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._live is not None:
            self._live.stop()

    # -- the thread

    def _look(self) -> None:
        while not self._stop.wait(LIVE):
            runner = self._runner
            if runner is None:
                continue
            # The runner's collections change under our eyes; what is seen wrongly now is seen rightly in the next look.
            with suppress(RuntimeError, LookupError):
                self._show(runner)
            if self._due("breakers", _BREAKERS):
                with suppress(StoreError):
                    look_after_breakers(runner.store, breakers_of(runner))

    def _show(self, runner: Runner) -> None:
        if self._how is None:
            return
        if self._due("problems", _PROBLEMS):
            with suppress(StoreError):
                groups = runner.store.groups(run=runner.record.id, limit=5)
                self._problems = tuple(
                    (group.count, group.stage, f"{group.error_class}: {group.message}") for group in groups
                )
        if self._live is not None:
            width, height = self._console.size
            self._live.update(picture(self._seen(runner), width, height), refresh=True)
        elif self._due("line", LINES):
            for line in lines(self._seen(runner)):
                self._console.print(line, soft_wrap=True, markup=False)

    def _seen(self, runner: Runner) -> Snapshot:
        now = here.get().clock.monotonic()
        finished = runner.books.finished
        return snapshot(
            runner,
            elapsed=now - self._began,
            rate=self._pace.at(now, finished),
            expected=self._expected(),
            problems=self._problems,
        )

    def _due(self, what: str, every: float) -> bool:
        now = here.get().clock.monotonic()
        if now - self._last.get(what, -every) < every:
            return False
        self._last[what] = now
        return True


def snapshot(
    runner: Runner,
    *,
    elapsed: float,
    rate: float | None = None,
    expected: int | None = None,
    problems: tuple[tuple[int, str, str], ...] = (),
) -> Snapshot:
    """What is to be seen of a runner now."""
    books, counts = runner.books, runner.books.counts()
    waiting = _waiting(runner)
    stages = tuple(
        StageLine(
            name=post.name,
            done=tally[0],
            running=post.stage.concurrency - len(post.free),
            waiting=waiting.get(post.index, 0),
            retries=tally[1],
            skipped=tally[2],
            dead=tally[3],
        )
        for post, tally in zip(runner.posts, runner.ledger.stages, strict=True)
    )
    return Snapshot(
        pipeline=runner.plan.name,
        run_key=runner.record.run_key,
        status=runner.status or ("running" if runner.reason is None else "stopping"),
        elapsed=elapsed,
        total=counts.total,
        expected=counts.total if counts.source_exhausted else expected,
        succeeded=counts.succeeded,
        degraded=counts.degraded,
        skipped=counts.skipped,
        dead=counts.dlq,
        failed=counts.failed,
        rate=rate,
        waiting=sum(waiting.values()),
        retries=sum(stage.retries for stage in stages),
        stages=stages,
        notices=tuple(_notices(runner)),
        problems=problems,
        spent=dict(books.spent),
    )


def _waiting(runner: Runner) -> Counter[int]:
    from collections import Counter

    timers = [journey.at for _, _, journey in tuple(runner._timers)]  # noqa: SLF001 - a look from outside, which changes nothing
    return Counter([*timers, *(journey.at for journey in tuple(runner._lines.values()))])  # noqa: SLF001


def _notices(runner: Runner) -> list[str]:
    said = []
    now = here.get().clock.now()
    for name, breaker in breakers_of(runner).items():
        if breaker.state is not CircuitState.CLOSED:
            until = "" if breaker.opened_at is None else f" for {whole((now - breaker.opened_at).total_seconds())}"
            said.append(f"breaker {name} has been {breaker.state.value.replace('_', '-')}{until}: items wait for it")
    return said


# --- breakers -------------------------------------------------------------------------------------------------------------


def breakers_of(runner: Runner) -> dict[str, CircuitBreaker]:
    """The breakers of a run's stages, by name."""
    guards = (post.guard for post in runner.posts)
    return {guard.breaker.name: guard.breaker for guard in guards if guard.breaker is not None}


def look_after_breakers(store: Store, breakers: dict[str, CircuitBreaker]) -> None:
    """Do what was asked of breakers, and put their state on record where it has changed. A shared one is on record by itself."""
    for name, breaker in breakers.items():
        if breaker.shared:
            continue
        kept = store.state("watched_breaker", name)
        data: dict[str, Any] = {} if kept is None else dict(kept.data)
        wish = data.get("wanted")
        if wish == "isolate":
            breaker.isolate(str(data.get("reason") or "isolated by hand"))
        elif wish == "reset":
            breaker.reset()
        news = {
            "state": breaker.state.value,
            "failure_count": breaker.failure_count,
            "wanted": None,
            "reason": data.get("reason"),
        }
        if wish == "reset":
            news["reason"] = None
        if kept is None or news != data:
            # Whoever was faster has said something newer: it is heard in the next look.
            store.save_state("watched_breaker", name, news, expect=0 if kept is None else kept.version)


# --- how many there are -----------------------------------------------------------------------------------------------------


def expected_items(source: str) -> Callable[[], int | None]:
    """
    A question to be asked now and then: how many items files hold, or None as long as nobody knows. They are counted beside the run, because a
    display that knows the end can say when it comes.
    """
    from outlast.components import count_items

    found: list[int] = []

    def count() -> None:
        with suppress(Exception):  # the run will say so
            found.append(count_items(source))

    threading.Thread(target=count, daemon=True, name="outlast-count").start()
    return lambda: found[0] if found else None


def way_to_show(*, wanted: bool | None) -> str | None:
    """How progress is shown: live in a terminal, else in lines, or not at all."""
    terminal = sys.stderr.isatty()
    if wanted is None:
        return "live" if terminal else None
    return ("live" if terminal else "lines") if wanted else None
