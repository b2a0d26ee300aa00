"""
Watching a run from beside it: a thread looks at it a few times a second and shows what it sees, in a terminal, in a
notebook, or in lines. The run itself does little more for it than count.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from contextvars import copy_context
from time import thread_time
from typing import TYPE_CHECKING, Any, Protocol

from outlast.display.snapshot import View
from outlast.display.telling import lines
from outlast.errors import TemporaryFailure
from outlast.isolation.threads import start_thread
from outlast.kernel.clock import here
from outlast.kernel.log import logger, warn
from outlast.kernel.redact import error_text
from outlast.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from outlast.display.snapshot import Snapshot
    from outlast.pipeline.view import RunView

LIVE = 0.2  # seconds between two pictures in a terminal
PAGE = 0.3  # and in a notebook, where each travels to a browser
LINES = 5.0  # seconds between two lines,
LONGEST = 60.0  # which become rarer up to this
_SECOND = 1.0  # between two calls of `every_second`
_RARER = 80.0  # times what a look has cost, to the next one: watching takes little, also on a slow machine
_FAREWELL = 5.0  # seconds that a look may take when the run is over


class Screen(Protocol):
    """Where snapshots are shown."""

    every: float  # seconds between two of them

    def open(self) -> None: ...
    def show(self, now: Any) -> None: ...
    def close(self, last: Any) -> None: ...


class Watching:
    """
    A context in which a thread looks at something a few times a second and shows what it sees. Without a `screen` it
    shows nothing.
    """

    what = "the run"

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = dict[str, float]()

    def look(self) -> Any:
        """What is to be shown now; None if there is nothing."""
        return None

    def act(self) -> None:
        """What is done every second beside it; asks a store, perhaps."""

    def __enter__(self) -> Self:
        with self._harmless():
            if self._screen is not None:
                self._screen.open()
        # In the context of whoever runs: a notebook knows by it to which cell a picture belongs.
        thread = threading.Thread(target=copy_context().run, args=(self._look,), daemon=True, name="outlast-watch")
        try:
            start_thread(thread)
        except TemporaryFailure as refused:
            warn("the work goes on without a display: %s", refused)
        else:
            self._thread = thread
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_FAREWELL)
        with self._harmless():
            screen = self._screen
            if screen is not None:
                last: Any = None
                with suppress(RuntimeError, LookupError):
                    last = self.look()
                screen.close(last)

    # -- the thread

    def _look(self) -> None:
        cost = 0.0
        while not self._stop.wait(_SECOND if self._screen is None else max(self._screen.every, cost * _RARER)):
            began = thread_time()
            with self._harmless():
                # What changes while it is looked at may be seen wrongly now; it is seen rightly in the next look.
                if self._screen is not None:
                    with suppress(RuntimeError, LookupError):
                        now = self.look()
                        if now is not None:
                            self._screen.show(now)
                if self._due("act", _SECOND):
                    with suppress(StoreError):
                        self.act()
            cost = thread_time() - began

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A display that breaks (a closed terminal, a full pipe) is gone, and the work goes on without it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the work is worth more
            broken, self._screen = self._screen, None
            if broken is not None:
                with suppress(Exception):
                    broken.close(None)  # what was redirected goes where it went before
            logger().warning("%s is not shown any more: %s", self.what, error_text(error))

    def _due(self, what: str, every: float) -> bool:
        now = here.get().clock.monotonic()
        if now - self._last.get(what, -every) < every:
            return False
        self._last[what] = now
        return True


class Watch(Watching):
    """
    A context for one or more runs, and what watches them. `started` is called once with each, in its own thread;
    `every_second` is called in ours.
    """

    def __init__(
        self,
        screen: Screen | None,
        expected: Callable[[], int | None] = lambda: None,
        *,
        started: Callable[[RunView], None] | None = None,
        every_second: Callable[[RunView], None] | None = None,
    ) -> None:
        super().__init__(screen)
        self.expected = expected
        self._started = started
        self._every_second = every_second
        self._view: View | None = None

    def __call__(self, view: RunView) -> None:
        """
        Called by the run's loop again and again, at once when it begins: only the first look of each pass is taken
        here.
        """
        if self._view is not None and (self._view.run.id, self._view.run.pass_number) == (view.id, view.pass_number):
            return
        if self._started is not None:
            self._started(view)
        self._view = View(view)

    def look(self) -> Snapshot | None:
        """The run as it is now."""
        return None if self._view is None else self._view.look()

    def act(self) -> None:
        """What whoever watches wants to do."""
        if self._view is not None and self._every_second is not None:
            self._every_second(self._view.run)


# --- where it is shown --------------------------------------------------------------------------------------------------


class Lines:
    """
    Plain lines on standard error, often at first and then less so; `keep`: one at the end too. `tell` makes them of
    what was seen; `news`: what would be told twice in a row is said once.
    """

    every = 1.0

    def __init__(self, *, keep: bool = True, tell: Callable[[Any], Iterable[str]] = lines, news: bool = False) -> None:
        self._keep = keep
        self._news = news
        self._tell = tell
        self._told = list[str]()
        self._due = LINES

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, now: Any) -> None:
        """The lines, if it is time for them."""
        if now.elapsed >= self._due:
            self._due = now.elapsed + min(LONGEST, max(LINES, now.elapsed / 12))
            self._print(now)

    def close(self, last: Any) -> None:
        """The last lines."""
        if self._keep and last is not None:
            self._print(last)

    def _print(self, now: Any) -> None:
        before, self._told = self._told, list(self._tell(now))
        for line in () if self._news and self._told == before else self._told:
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - asked for with progress=True


class _Whole:
    """A terminal that is asked to show each write as a whole, so that nothing flickers. Those that cannot ignore it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write between the marks of a synchronised update."""
        return self._file.write(f"\x1b[?2026h{text}\x1b[?2026l") if text else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _lead(streams: list[tuple[Any, Any]]) -> None:
    """
    Lead log handlers from one stream to another. A handler keeps the stream it was made with: what it writes would land
    in the midst of the picture, and be drawn over.
    """
    logging = sys.modules.get("logging")  # who has not loaded it has no handlers
    if logging is None:
        return
    named = [*logging.Logger.manager.loggerDict.values()]
    handlers = {id(one): one for logger in (logging.root, *named) for one in getattr(logger, "handlers", ())}
    for handler in handlers.values():
        for old, new in streams:
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)
                break


class Terminal:
    """
    A live picture on standard error; `keep`: the last one stays. `draw` makes it of what was seen and the size of the
    terminal: that of a run, unless another is given.
    """

    every = LIVE

    def __init__(self, *, keep: bool = True, console: Any = None, draw: Callable[..., Any] | None = None) -> None:
        from rich.live import Live

        from outlast.display.terminal import Screen as Safe
        from outlast.display.terminal import picture

        self._draw = draw or picture

        out: Any = _Whole(sys.stderr)
        self._console = console or Safe(file=out, highlight=False, emoji=False)
        # What stages print and log goes above the picture; unless it goes elsewhere, which is not ours to change.
        self._live = Live(
            console=self._console, auto_refresh=False, transient=not keep, redirect_stdout=sys.stdout.isatty()
        )
        self._before: list[tuple[Any, Any]] = []  # the streams as they were, and what stands in for each

    def open(self) -> None:
        """Begin to draw."""
        were = (sys.stdout, sys.stderr)
        self._live.start()
        self._before = [(was, now) for was, now in zip(were, (sys.stdout, sys.stderr), strict=True) if was is not now]
        _lead(self._before)

    def show(self, now: Any) -> None:
        """Draw over what was there."""
        width, height = self._console.size
        self._live.update(self._draw(now, width, height), refresh=True)

    def close(self, last: Any) -> None:
        """Draw for the last time."""
        try:
            if last is not None:
                self.show(last)
        finally:
            try:
                self._live.stop()
            finally:
                _lead([(now, was) for was, now in self._before])


class Notebook:
    """
    An output of the cell that changes in place, and stays as it was at the end. `page` makes it of what was seen: that of
    a run over items, unless another is given.
    """

    every = PAGE

    def __init__(self, *, page: Callable[[Any], Any] | None = None) -> None:
        self._page = page
        self._handle: Any = None
        self._shown = ""

    def open(self) -> None:
        """The output appears with the first picture: a run that cannot begin leaves none."""

    def show(self, now: Any) -> None:
        """The picture, unless it is the one that is there."""
        from IPython import display

        from outlast.display.page import Page

        show: Any = display.display  # untyped
        page = Page(now) if self._page is None else self._page(now)
        if page.html == self._shown:
            return
        self._shown = page.html
        if self._handle is None:
            self._handle = show(page, display_id=True)
        else:
            self._handle.update(page)

    def close(self, last: Any) -> None:
        """The last picture."""
        if last is not None:
            self.show(last)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # who has not loaded it is in none
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def in_terminal() -> bool:
    """Whether standard error is a terminal that pictures can be drawn on, and rich is there to draw them."""
    try:
        if not sys.stderr.isatty() or not (sys.stderr.encoding or "").lower().startswith("utf"):
            return False
        from rich.console import Console
    except (ImportError, AttributeError, ValueError):  # no rich, no standard error, or a closed one
        return False
    return not Console(stderr=True).is_dumb_terminal


def screen() -> Screen:
    """Where progress is shown that was asked for: in the notebook, in the terminal, or in lines."""
    if in_notebook():
        return Notebook()
    return Terminal() if in_terminal() else Lines()
