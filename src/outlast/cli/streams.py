"""
The standard streams of a command. A reader that has gone, a full device or a closed stream must not change the exit code of work
that is done.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS = frozenset({"alerts", "breaker", "components", "connections", "dlq", "jobs", "runs"})
# What these print is all they do. Every other command works, or its exit code is the answer.
READING = frozenset(
    "artifact attempts classify compile diff errors events explain groups items list metrics outputs report schedules schema "
    "show stats validate workers".split()
)
# With one of these, the answer of a reading command is in a file or in the exit code.
ANSWERED_ELSEWHERE = ("--output", "--html", "--csv", "--here")
ENDED_BY_SIGPIPE = 128 + 13  # as a shell reports it

_output: list[_Descriptor] = []  # standard output, if it is guarded


def is_reading(words: Sequence[str]) -> bool:
    """
    Whether this command line does nothing but print.

    >>> is_reading(["runs", "list", "--json"]), is_reading(["jobs", "requeue", "7"]), is_reading(["run", "list"])
    (True, False, False)
    >>> is_reading(["compile", "f.yaml", "--output=f.json"]), is_reading(["run", "--help"]), is_reading([])
    (False, True, True)
    """
    if not words or not {"--help", "--version", "--dry-run"}.isdisjoint(words):
        return True
    command = words[1:2] if words[0] in GROUPS else words[:1]
    return not READING.isdisjoint(command) and not any(word.startswith(ANSWERED_ELSEWHERE) for word in words)


class _Descriptor(io.FileIO):
    """
    A standard stream. `lost` is the first failure to write; what is written afterwards is dropped. With `raises`, that failure
    also ends the command.
    """

    def __init__(self, number: int, *, raises: bool) -> None:
        self.lost: OSError | None = None
        self.raises = raises
        self._closed_by_caller = not _is_open(number)
        if self._closed_by_caller:
            # Or the next file that is opened gets this number, and what a library prints is written into it.
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        super().__init__(number, "w", closefd=False)

    def write(self, data: Any) -> int:
        """Write what the device takes; if that is nothing right now, wait for it."""
        try:
            if self._closed_by_caller and self.lost is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            while self.lost is None:
                if (written := super().write(data)) is not None:
                    return written
                select.select([], [self], [])
        except OSError as failed:
            self.lost = failed
            if self.raises:
                raise
        return len(data)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def open_streams(words: Sequence[str]) -> None:
    """Guard standard output and standard error for this command line. A stream that a program has put there stays."""
    _output.clear()
    for name, number, raises in (("stdout", 1, is_reading(words)), ("stderr", 2, False)):
        stream = getattr(sys, name)
        if stream is None or _number(stream) == number:
            raw = _Descriptor(number, raises=raises)
            setattr(sys, name, _text(stream, raw))
            if number == 1:
                _output.append(raw)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _number(stream: Any) -> int | None:
    try:
        return int(stream.fileno()) if isinstance(stream, io.TextIOWrapper) else None
    except (OSError, ValueError):
        return None


def _text(stream: io.TextIOWrapper | None, raw: _Descriptor) -> io.TextIOWrapper:
    # A terminal that cannot show a line or an accent gets a question mark, and no traceback.
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="replace",
        line_buffering=stream is None or stream.line_buffering,
        write_through=stream is not None and stream.write_through,
    )


def output_is_lost() -> bool:
    """Whether standard output could not be written."""
    return any(raw.lost is not None for raw in _output)


def settled(code: int) -> int:
    """
    Write what is buffered, and return the exit code: that of the work. If output was lost, one line on standard error reports it.
    A reading command has then failed; one whose reader has gone ends as if by SIGPIPE.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
    raw = next(iter(_output), None)
    if raw is None or raw.lost is None:
        return code
    if raw.raises and raw.lost.errno == errno.EPIPE:
        return ENDED_BY_SIGPIPE
    kept = "" if raw.raises else f" The work is not affected: exit code {code}."
    sys.stderr.write(f"Cannot write to standard output: {raw.lost.strerror}.{kept}\n")
    sys.stderr.flush()
    return code or 1 if raw.raises else code
