"""
One bus for everything that is worth telling.

Events are made only if somebody listens. They go to the hooks given to `subscribe`, to the captures of a test, and to the
standard log; redaction happens where an event's text is made, which is the only way out. A hook that fails never breaks the
call it watches: it is reported once and called again next time.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from outlast.log import heard, logger, report_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.observe.events import Event

    Hook = Callable[[Event], object]

_hooks: tuple[tuple[Hook], ...] = ()
_changing = allocate_lock()
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

    level = logging.getLevelNamesMapping()[event.level.upper()]
    if logger().isEnabledFor(level):
        logger().log(level, "%s", event.sentence(), extra=event.as_dict())
