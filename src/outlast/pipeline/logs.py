"""
Which item a log record belongs to: while a run is under way, every record has `outlast_run_id`, `outlast_item_key`,
`outlast_stage` and `outlast_attempt`, None outside of stages.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlast.calls.state import current, current_work

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

_changing = threading.Lock()
_runs = 0
_before: Callable[..., logging.LogRecord] | None = None


@contextmanager
def marked() -> Iterator[None]:
    """Mark records as long as this is open, in the whole process: loggers have one factory."""
    _count(+1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    import logging

    global _runs, _before  # noqa: PLW0603 - there is one factory in a process
    with _changing:
        _runs += change
        if _runs == 1 and change > 0:
            _before = logging.getLogRecordFactory()
            logging.setLogRecordFactory(_record)
        elif _runs == 0 and logging.getLogRecordFactory() is _record and _before is not None:
            logging.setLogRecordFactory(_before)


def _record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    import logging

    record = (_before or logging.LogRecord)(*args, **kwargs)
    context = None if current_work.get() is None else current()
    record.outlast_run_id = None if context is None else context.run_id
    record.outlast_item_key = None if context is None else context.item_key
    record.outlast_stage = None if context is None else context.stage
    record.outlast_attempt = None if context is None else context.attempt
    return record
