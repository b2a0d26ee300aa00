"""
The command line: ``outlast``. Needs the extra ``cli``; without it, says so.
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """
    Run the command line. Ctrl-C while it is still loading is no error of the program: no traceback, and the exit code
    of every Ctrl-C.
    """
    try:
        _main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _main() -> None:
    from outlast.errors import ConfigurationError, OutlastError
    from outlast.kernel.redact import harmless

    try:
        from outlast.cli.commands import command_line

        app = command_line(sys.argv[1:])
    except ModuleNotFoundError as missing:
        if missing.name not in {"typer", "rich", "click"}:
            raise
        sys.stderr.write("The command line needs an extra: pip install 'outlast[cli]'\n")
        raise SystemExit(2) from None
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a line or an accent gets a question mark, and no traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except ConfigurationError as wrong:
        sys.stderr.write("".join(f"{harmless(problem)}\n" for problem in wrong.problems))
        raise SystemExit(2) from None
    except OutlastError as failed:
        sys.stderr.write(f"{harmless(str(failed), lines=True)}\n")
        raise SystemExit(1) from None
    except OSError as failed:
        where = failed.filename if failed.filename is not None else _unwritable(failed)
        if where is None:
            raise
        sys.stderr.write(harmless(f"{where}: {failed.strerror}") + "\n")
        raise SystemExit(1) from None


def _unwritable(failed: OSError) -> str | None:
    """What a command prints could not be written, to a full disk or a closed file: that error has no name in it."""
    import errno

    if failed.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        return None
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # Or it would fail once more at the end, with a traceback.
        sys.stdout = None
    return "cannot write"


def __getattr__(name: str) -> object:
    if name == "app":
        from outlast.cli.commands import command_line

        return command_line()
    raise AttributeError(f"module 'outlast.cli' has no attribute {name!r}")
