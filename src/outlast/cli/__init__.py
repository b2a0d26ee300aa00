"""
The command line: ``outlast``. Needs the extra ``cli``; without it, says so.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from outlast.errors import ConfigurationError, OutlastError

    try:
        from outlast.cli.commands import app
    except ModuleNotFoundError as missing:
        if missing.name not in {"typer", "rich", "click"}:
            raise
        sys.stderr.write("The command line needs an extra: pip install 'outlast[cli]'\n")
        raise SystemExit(2) from None
    try:
        app()
    except ConfigurationError as wrong:
        sys.stderr.write("".join(f"{problem}\n" for problem in wrong.problems))
        raise SystemExit(2) from None
    except OutlastError as failed:
        sys.stderr.write(f"{failed}\n")
        raise SystemExit(1) from None


def __getattr__(name: str) -> object:
    if name == "app":
        from outlast.cli.commands import app

        return app
    message = f"module 'outlast.cli' has no attribute {name!r}"
    raise AttributeError(message)
