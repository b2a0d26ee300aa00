"""
A run in words, for every place where it is shown; and as plain lines for a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.kernel.redact import plain
from outlast.kernel.wording import counted, per_second, percent, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.display.snapshot import CostLine, Snapshot, Speed
    from outlast.pipeline.view import BreakerView, BudgetView, LimitView

AGAIN = "Ctrl-C"
_UNITS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "day"}


def number(amount: float) -> str:
    """
    An amount of anything, short enough to be read while it changes.

    >>> [number(n) for n in (0, 0.00123, 0.5, 12.345, 1234.5, 1_200_000.0)]
    ['0', '0.00123', '0.50', '12.35', '1,234', '1,200,000']
    """
    if amount == 0:
        return "0"
    if abs(amount) < 0.1:
        return f"{amount:.3g}"
    return f"{amount:,.2f}" if abs(amount) < 1000 and amount != int(amount) else f"{amount:,.0f}"


def pace(now: Snapshot) -> list[str]:
    """How fast it goes, and when the end comes."""
    said = ["starting" if now.rate is None else per_second(now.rate)]
    if now.left is not None:
        said.append(f"about {whole(now.left)} left")
    elif now.held_by is not None and now.status == "running":
        said.append(plain(f"waits for breaker {now.held_by.name}"))
    return said


def trouble(now: Snapshot) -> list[str]:
    """What is tried again, and what waits."""
    said = [counted(now.retries, "retry", "retries")] if now.retries else []
    if now.waiting:
        said.append(f"{now.waiting:,} waiting")
    if now.throttled:
        said.append(f"{now.throttled:,} throttled")
    return said


def ends(now: Snapshot) -> list[tuple[str, str]]:
    """What has become of items: the words, and of which kind they are."""
    degraded = f" ({now.degraded:,} degraded)" if now.degraded else ""
    said = [(f"{now.succeeded:,} succeeded{degraded}", "succeeded")]
    if now.skipped:
        said.append((f"{now.skipped:,} skipped", "skipped"))
    if now.dead:
        said.append((counted(now.dead, "dead letter"), "dead"))
    if now.failed:
        said.append((f"{now.failed:,} failed", "dead"))
    return said


def totals(now: Snapshot) -> list[tuple[str, str]]:
    """As `ends`, with what has not ended."""
    said = [*ends(now), (f"{max(0, now.total - now.finished):,} pending", "")]
    if now.before:
        said.append((f"{now.before:,} finished before", ""))
    return said


def ending(now: Snapshot, again: str = AGAIN) -> str | None:
    """Why no more is begun, and what can be done about what still runs; None while all goes on."""
    if now.status != "stopping":
        return None
    if now.grace is None:
        return f"reads no more ({(now.reason or 'asked to end').replace('_', ' ')}): what was begun is finished"
    under_way = counted(now.running, "attempt")
    return f"winding down: {under_way} may end, {whole(now.grace)} at most. {again} again gives them up"


# --- what protects the stages -------------------------------------------------------------------------------------------


def limit(line: LimitView) -> list[str]:
    """A limit in words: paused 7 s (429), 3 of 40 under way (of 64), 12 in line."""
    said = [f"paused {whole(line.paused)} (429)"] if line.paused else []
    if line.width is None:
        said.append(f"{line.under_way:,} under way")
    else:
        narrow = f" (of {line.concurrency:,})" if line.concurrency and line.width < line.concurrency else ""
        said.append(f"{line.under_way:,} of {line.width:,} under way{narrow}")
    said.append(f"{line.waiting:,} in line")
    if line.processes is not None:
        said.append(f"shared by {counted(line.processes, 'process', 'processes')}")
    return said


def speed(line: Speed) -> str:
    """
    How much of a rate is used.

    >>> from outlast.display.snapshot import Speed
    >>> speed(Speed(name="calls", amount=500, per=60, used=492.3)), speed(Speed(name="tokens", amount=9000, per=15))
    ('calls 492 of 500/min', 'tokens 0 of 9,000 per 15 s')
    """
    used = max(0.0, line.used or 0.0)
    shown = f"{used:,.0f}" if used >= 10 or used == 0 else f"{used:.1f}"
    burst = " with its burst" if used > line.amount else ""
    return f"{line.name} {shown} of {number(line.amount)}{unit(line.per)}{burst}"


def unit(per: float) -> str:
    """
    The time that a rate is counted over.

    >>> unit(60), unit(15)
    ('/min', ' per 15 s')
    """
    short = _UNITS.get(float(per))
    return f"/{short}" if short else f" per {per:g} s"


def breaker(line: BreakerView) -> list[str]:
    """A breaker in words: open for 48 s, next probe in 12 s."""
    if line.isolated is not None:
        return [f"isolated: {line.isolated}", "until: outlast breaker reset"]
    if line.state == "closed":
        return ["closed"]
    since = "" if line.since is None else f" for {whole(line.since)}"
    said = [line.state.replace("_", "-") + since]
    if line.state == "half_open":
        said.append("probing")
    elif line.probe_in is not None:
        said.append(f"next probe in {whole(line.probe_in)}" if line.probe_in > 0 else "the next item probes")
    return said


def budget(line: BudgetView) -> list[str]:
    """A retry budget in words."""
    return [f"{counted(line.available, 'retry', 'retries')} left"]


def cost(line: CostLine) -> list[str]:
    """
    What was spent, in words.

    >>> from outlast.display.snapshot import CostLine
    >>> cost(CostLine(name="usd", spent=12.34, an_item=0.001, at_the_end=240, limit=200))
    ['12.34 of 200 spent', '0.001 an item', 'about 240 at the end: over the limit']
    """
    most = "" if line.limit is None else f" of {number(line.limit)}"
    said = [f"{number(line.spent)}{most} spent"]
    if line.an_item:
        said.append(f"{number(line.an_item)} an item")
    if line.at_the_end:
        over = ": over the limit" if line.limit is not None and line.at_the_end > line.limit else ""
        said.append(f"about {number(line.at_the_end)} at the end{over}")
    return said


def protections(now: Snapshot) -> list[tuple[str, str, list[str], bool]]:
    """Kind, name, words, and whether it holds nobody up; always in one order, so that a line keeps its place."""
    said: list[tuple[str, str, list[str], bool]] = []
    for line in now.limits:
        calm = not line.waiting and not line.paused and line.width == line.concurrency
        said.append(("limit", line.name, limit(line), calm))
        if speeds := now.speeds.get(line.name):
            said.append(("rate", line.name, [speed(rate) for rate in speeds], not line.waiting))
    said += [("breaker", line.name, breaker(line), line.state == "closed") for line in now.breakers]
    said += [("budget", line.name, budget(line), line.available > 0) for line in now.budgets]
    for each in now.costs:
        enough = each.limit is None or max(each.spent, each.at_the_end or 0.0) <= each.limit
        said.append(("cost", each.name, cost(each), enough))
    return said


# --- plain lines --------------------------------------------------------------------------------------------------------


def lines(now: Snapshot) -> Iterator[str]:
    """The run as one line of text for a log, and a line for each thing that holds it up."""
    who = f"{now.pipeline} {now.run_key}"
    share = "" if now.expected is None else f" of {now.expected:,} ({percent(now.finished, now.expected)})"
    parts = [f"{now.finished:,}{share}", *pace(now), *(text for text, _ in ends(now)), *trouble(now)]
    parts += [f"{number(line.spent)} {line.name} spent" for line in now.costs if line.spent]
    yield plain(f"{who}: {', '.join(parts)}")
    if (stopping := ending(now)) is not None:
        yield plain(f"{who}: {stopping}")
    if now.why:
        word = now.why if now.why.startswith(f"{now.status}:") else f"{now.status}, {now.why}"
        yield plain(f"{who}: {word}")
        return
    for kind, name, said, calm in protections(now):
        if not calm:
            yield plain(f"{kind} {name}: {', '.join(said)}")
