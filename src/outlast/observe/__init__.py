"""
One bus for everything that is worth telling.

Events are made only if somebody listens. They go to the hooks given to `subscribe`, to the captures of a test, and to the
standard log; redaction happens where an event's text is made, which is the only way out. A hook that fails never breaks the
call it watches: it is reported once and called again next time.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from outlast.clock import here
from outlast.log import heard, logger, report_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from outlast.observe.events import Event

    Hook = Callable[[Event], object]

_hooks: tuple[tuple[Hook], ...] = ()
_changing = allocate_lock()
QUIET = 10.0  # seconds in which a warning of a run is said once
_MOST_SAID = 10_000
_said: dict[tuple[object, ...], list[Any]] = {}  # when it was said, how often it was not said since, and what
captures: ContextVar[tuple[Hook, ...]] = ContextVar("outlast_captures", default=())


def subscribe(hook: Hook, /) -> Callable[[], None]:
    """Call the hook with every event of this process, until the function that is returned is called."""
    global _hooks  # noqa: PLW0603 - replaced, never changed, so that emit needs no lock
    subscription = (hook,)  # a place of its own: the same hook may be there twice
    with _changing:
        _hooks = (*_hooks, subscription)

    def unsubscribe() -> None:
        global _hooks  # noqa: PLW0603 - as above
        with _changing:
            _hooks = tuple(other for other in _hooks if other is not subscription)

    return unsubscribe


def listening() -> bool:
    """Whether making an event is worth it."""
    return bool(_hooks or captures.get() or heard())


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    for hook in (*captures.get(), *(hook for (hook,) in _hooks), _log):
        try:
            hook(event)
        except Exception as broken:  # noqa: BLE001 - watching must not change what is watched
            report_once(hook, broken, "the call went on")


def _log(event: Event) -> None:
    """The event as a standard log record: one sentence, and every field in ``extra=``. Call arguments are never in it."""
    if not heard():
        return
    import logging

    level, sentence = logging.getLevelNamesMapping()[event.level.upper()], event.sentence()
    if level == logging.WARNING and event.pipeline is not None and hasattr(event, "item_id"):
        # In a run one cause has many items say the same; each has its row in the store.
        same = ("step_id", "error_type", "error_class")
        like = (event.name, event.run_id, *(getattr(event, part, "") for part in same))
        before = rarely(like, sentence)
        level = logging.DEBUG if before is None else level
        sentence += f" ({before:,} more like it before)" if before else ""
    if event.name == "run_finished":
        for told, count in _unsaid(event.run_id):
            logger().warning("%s more like: %s", f"{count:,}", told)
    if logger().isEnabledFor(level):
        logger().log(level, "%s", sentence, extra=event.as_dict())


def rarely(like: tuple[object, ...], sentence: str = "") -> int | None:
    """
    Whether to say what may come hundreds of times: None if the same was said a moment ago, else how often it was not said since. `like` is what makes
    it the same; its second part is the run.
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
