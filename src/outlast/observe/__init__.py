"""
One bus for everything that is worth telling.

Events are made only if somebody listens. They go to the hooks given to `subscribe`, to the captures of a test, and to
the standard log; redaction happens where an event's text is made, which is the only way out. A hook that fails never
breaks the call it watches: it is reported once and called again next time.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from outlast.kernel.clock import here
from outlast.kernel.log import heard, logger, report_once
from outlast.settings.callables import PLAIN, awaitable, discard, name_of
from outlast.settings.checks import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from outlast.observe.events import Event

    Hook = Callable[[Event], object]

    class Standing(Protocol):
        """Something that has a state from the moment on that it is made, such as a breaker."""

        name: str

        def seems(self) -> str: ...


_hooks: tuple[tuple[Hook], ...] = ()
_changing = allocate_lock()
QUIET = 10.0  # seconds in which a warning of a run is said once
_MOST_SAID = 10_000
_said: dict[tuple[object, ...], list[Any]] = {}  # when it was said, how often it was not said since, and what
# Whether calls made here belong to an item that tells its own end.
for_an_item: ContextVar[bool] = ContextVar("outlast_for_an_item", default=False)
captures: ContextVar[tuple[Hook, ...]] = ContextVar("outlast_captures", default=())


def subscribe(hook: Hook, /) -> Callable[[], None]:
    """Call the hook with every event of this process, until the function that is returned is called."""
    check = Check()
    if hook is None:
        check.add("hook", "a function of an event", hook)
    check.question(
        "hook", hook, ("an event",), "It is called where the event happens: let it hand the event to a task."
    )
    check.raise_if_any()
    global _hooks  # noqa: PLW0603 - replaced, never changed, so that emit needs no lock
    subscription = (hook,)  # a place of its own: the same hook may be there twice
    with _changing:
        _hooks = (*_hooks, subscription)

    def unsubscribe() -> None:
        global _hooks  # noqa: PLW0603 - as above
        with _changing:
            _hooks = tuple(other for other in _hooks if other is not subscription)

    return unsubscribe


counting = 0  # how often `count_calls` was called and not taken back


def count_calls() -> Callable[[], None]:
    """
    From now on emit `call_finished` with outcome and duration for every call of a guard, until the function that is returned
    is called. Meanwhile no call takes the fast path: a call that succeeds at its first attempt costs several times as much.
    """
    # The switch of the fast path lies above. Until now no call has asked for it.
    from outlast.calls.guard import scoped

    def change(by: int) -> None:
        global counting  # noqa: PLW0603 - a counter that the end of every slow call reads
        with _changing:
            counting += by
            scoped(by)

    change(1)
    pending = [-1]

    def stop() -> None:
        if pending:
            change(pending.pop())

    return stop


_standing: Any = None  # what has a state, as long as it lives
_watchers: tuple[Callable[[Any], None], ...] = ()


def stands(thing: Standing) -> None:
    """Something that has a state was made: whoever keeps states hears of it."""
    global _standing  # noqa: PLW0603 - made with the first
    from weakref import WeakSet

    with _changing:
        if _standing is None:
            _standing = WeakSet()
        _standing.add(thing)
        watchers = _watchers
    for watcher in watchers:
        _show(watcher, thing)


def _show(watcher: Callable[[Any], None], thing: Standing) -> None:
    try:
        watcher(thing)
    except Exception as broken:  # noqa: BLE001 - watching must not change what is watched
        report_once(watcher, broken, "what it watches went on")


def watch(watcher: Callable[[Any], None]) -> Callable[[], None]:
    """
    Show the watcher everything that has a state, what is there now and what is made later, until what is returned is
    called.
    """
    global _watchers  # noqa: PLW0603 - replaced, never changed
    with _changing:
        _watchers = (*_watchers, watcher)
        there = [*(_standing or ())]
    for thing in there:
        _show(watcher, thing)

    def unwatch() -> None:
        global _watchers  # noqa: PLW0603 - as above
        with _changing:
            _watchers = tuple(other for other in _watchers if other is not watcher)

    return unwatch


def listening() -> bool:
    """Whether making an event is worth it."""
    return bool(_hooks or captures.get() or heard())


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    told = (*captures.get(), *(hook for (hook,) in _hooks), _log)
    broke: list[tuple[Hook, BaseException]] = []
    for hook in told:
        try:
            answer = hook(event)
            if answer.__class__ not in PLAIN and awaitable(answer):
                discard(answer)
                raise TypeError("it returned something to await")
        except KeyboardInterrupt:
            raise
        except BaseException as broken:  # noqa: BLE001 - watching must not change what is watched
            broke.append((hook, broken))
    for hook, raised in broke:
        _broke(hook, raised, told)


def _broke(hook: Hook, broken: BaseException, told: tuple[Hook, ...]) -> None:
    """A hook has failed: said once in the log, and every time to the others, who may count it."""
    from outlast.observe.events import HookFailed

    report_once(hook, broken, "the call went on")
    failure = HookFailed(hook=name_of(hook), error_type=type(broken).__name__)
    for other in told:
        if other is not hook and other is not _log:
            try:
                other(failure)
            except KeyboardInterrupt:
                raise
            except BaseException as worse:  # noqa: BLE001 - as above; of failures to tell a failure nothing is told
                report_once(other, worse, "the call went on")


def _log(event: Event) -> None:
    """
    The event as a standard log record: one sentence, and every field in ``extra=``. Call arguments are never in it.
    """
    if not heard():
        return
    import logging

    level, sentence = logging.getLevelNamesMapping()[event.level.upper()], event.sentence()
    like = _alike(event) if level == logging.WARNING else None
    if like is not None:
        before = rarely(like, sentence)
        level = logging.DEBUG if before is None else level
        sentence += f" ({before:,} more like it before)" if before else ""
    if event.name == "run_finished":
        for told, count in _unsaid(event.run_id):
            logger().warning("%s more like: %s", f"{count:,}", told)
    if logger().isEnabledFor(level):
        logger().log(level, "%s", sentence, extra=event.as_dict())


def _alike(event: Event) -> tuple[object, ...] | None:
    """
    What a warning that one cause may bring hundreds of times has in common with the others; None if it is always said.
    """
    if event.name == "throttled":  # a service that refuses calls for minutes: by the limit, and by what it asks for
        return (event.name, event.run_id, getattr(event, "limit", ""), bool(getattr(event, "pause", 0.0)))
    if event.pipeline is not None and getattr(event, "item_id", None) is not None:  # of a run; each has its row
        same = ("step_id", "error_type", "error_class")
        return (event.name, event.run_id, *(getattr(event, part, "") for part in same))
    return None


def rarely(like: tuple[object, ...], sentence: str = "") -> int | None:
    """
    Whether to say what may come hundreds of times: None if the same was said a moment ago, else how often it was not
    said since. `like` is what makes it the same; its second part is the run.
    """
    now = here.get().clock.monotonic()
    with _changing:
        known = _said.get(like)
        if known is not None and 0 <= now - known[0] < QUIET:
            known[1] += 1
            return None
        if len(_said) >= _MOST_SAID:
            _said.clear()
        _said[like] = [now, 0, sentence]
    return 0 if known is None else known[1]


def _unsaid(run_id: str | None) -> list[tuple[str, int]]:
    """What a run that is over has not said, and how often."""
    with _changing:
        over = [like for like in _said if like[1] == run_id]
        left = [_said.pop(like) for like in over]
    return [(sentence, count) for _, count, sentence in left if count]
