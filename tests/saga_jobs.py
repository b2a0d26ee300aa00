"""The job of `sagas`: each step registers what undoes it, before it does anything; one does so afterwards."""

from __future__ import annotations

import outlast
import sagas

STEPS = ("reserve", "book", "pack")


def undo(name: str, which: str) -> None:
    sagas.point(f"before undo {name}")
    sagas.noted("undo", name, which)
    sagas.point(f"after undo {name}")


def do(name: str) -> str:
    which = sagas.noted("chosen", name)
    outlast.current().compensate(undo, name, which)
    sagas.point(f"before do {name}")
    sagas.noted("do", name, which)
    sagas.point(f"after do {name}")
    return which


def declared(app: outlast.App) -> outlast.Job[[], None]:
    @app.job
    def order() -> None:
        context = outlast.current()
        for name in STEPS:
            which = context.step(name, do, name)
        context.compensate(undo, "sent", f"{which}-sent")
        sagas.point("before pay")
        raise ValueError("no money")

    return order
