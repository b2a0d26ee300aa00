"""
The package's logger: standard logging, silent unless the application configures it, and free if nobody would hear it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

_logger: logging.Logger | None = None
_silent: type | None = None  # logging.NullHandler, once logging is there
_reported: dict[int, object] = {}


def logger() -> logging.Logger:
    """The logger ``outlast``."""
    global _logger, _silent  # noqa: PLW0603 - one logger, looked up once
    if _logger is None:
        import logging

        _silent = logging.NullHandler
        _logger = logging.getLogger("outlast")
        _logger.addHandler(logging.NullHandler())
        _logger.addFilter(_harmless)
    return _logger


def _harmless(record: logging.LogRecord) -> bool:
    """
    The only way of a record to its handlers: names and keys in it may hold what a terminal obeys, or what begins a line
    of its own.
    """
    from outlast.kernel.redact import harmless, mask

    raised = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if raised is not None:  # which a handler would print as it is
        from traceback import format_exception

        record.__dict__["traceback"], record.exc_info = mask("".join(format_exception(raised))), None
    where = record.__dict__.get("traceback")
    if isinstance(where, str) and not record.exc_info:
        record.exc_text = harmless(where.rstrip(), lines=True)  # every formatter puts it below the sentence
    if isinstance(record.args, tuple):
        record.args = tuple(harmless(value) if isinstance(value, str) else value for value in record.args)
    return True


def warn(message: str, *args: object, **more: Any) -> None:
    """A warning about work that goes on, whatever a handler of the application's makes of it."""
    _say("warning", message, *args, **more)


def _say(level: str, message: str, *args: object, **more: Any) -> None:
    try:
        getattr(logger(), level)(message, *args, **more)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - what is told must not be ended by telling it
        return


def heard() -> bool:
    """
    Whether a record would reach any handler. Nobody can listen before `logging` is imported, so it is not imported to
    ask.
    """
    log = _logger
    if log is None:
        if "logging" not in sys.modules:
            return False
        log = logger()
    # Asked once in every call that fails: the usual two loggers, ours and the root, are looked at without a further
    # call.
    while True:
        for handler in log.handlers:
            if handler.__class__ is not _silent:
                return True
        parent = log.parent
        if parent is None or not log.propagate:
            return False
        log = parent


def report_once(hook: object, broken: BaseException, consequence: str) -> None:
    """Say once that somebody's hook or predicate fails, without its message: that could be anything."""
    if id(hook) in _reported:
        return
    import weakref

    # An id is free again when its owner is gone: then it is forgotten here as well.
    key = id(hook)
    try:
        _reported[key] = weakref.ref(hook, lambda _: _reported.pop(key, None))
    except TypeError:
        _reported[key] = hook
    name = getattr(hook, "__qualname__", type(hook).__name__)
    _say("error", "%s failed with %s; %s", name, type(broken).__name__, consequence)
