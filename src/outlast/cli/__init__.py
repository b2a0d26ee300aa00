"""
The command line: ``outlast``. Needs the extra ``cli``; without it, says so.
"""

from __future__ import annotations

import sys


def main() -> None:
    """
    Run the command line. Ctrl-C while it is still loading is no error of the program: no traceback, and the exit code
    of every Ctrl-C.
    """
    from outlast.cli.streams import open_streams, settled

    open_streams(sys.argv[1:])
    try:
        _main()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else 0
    else:
        code = 0
    raise SystemExit(settled(code))


def _main() -> None:
    from outlast.cli.streams import output_is_lost
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
    try:
        app()
    except ConfigurationError as wrong:
        sys.stderr.write("".join(f"{harmless(problem)}\n" for problem in wrong.problems))
        raise SystemExit(2) from None
    except OutlastError as failed:
        sys.stderr.write(f"{harmless(str(failed), lines=True)}\n")
        raise SystemExit(1) from None
    except OSError as failed:
        if not output_is_lost():
            where = failed.filename if failed.filename is not None else _unwritable(failed)
            if where is None:
                raise
            sys.stderr.write(harmless(f"{where}: {failed.strerror}") + "\n")
        raise SystemExit(1) from None


def _unwritable(failed: OSError) -> str | None:
    """A file that could not be written, on a full disk for example: that error has no name in it."""
    import errno

    return "cannot write" if failed.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) else None


def __getattr__(name: str) -> object:
    if name == "app":
        from outlast.cli.commands import command_line

        return command_line()
    raise AttributeError(f"module 'outlast.cli' has no attribute {name!r}")
