"""
The jobs of the stores that are kept here. As the pipelines, they are written for every version of Outlast that has jobs, and what goes wrong in them is an
argument.
"""

from __future__ import annotations

import threading

import outlast

LATER = outlast.RetryPolicy(max_attempts=3, delays=[100.0], jitter=0)


def declare(app, seen, *, broken=False):
    """By kind. Those that are broken fail, or never end."""

    @app.job
    def send(n: int) -> int:
        seen.append(("send", n))
        return 2 * n

    @app.job(queue="mail")
    def write(n: int) -> int:
        seen.append(("write", n))
        return n

    @app.job(retry=None)
    def refuse(n: int) -> int:
        seen.append(("refuse", n))
        if broken:
            raise ValueError(f"nobody knows {n}")
        return n

    @app.job(retry=LATER)
    def hesitate(n: int) -> int:
        seen.append(("hesitate", n))
        if broken:
            raise ConnectionResetError("once more")
        return n

    @app.job(retry=LATER)
    def stay(n: int) -> int:
        """Has begun when its worker dies."""
        seen.append(("stay", n))
        if broken:
            threading.Event().wait()
        return n

    @app.job(retry=LATER, timeout=0.1)
    def linger(n: int) -> int:
        """Its time is up and its code still runs when its worker dies."""
        seen.append(("linger", n))
        if broken:
            threading.Event().wait()
        return n

    return app.kinds
