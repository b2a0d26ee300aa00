"""
The pictures of the page, drawn by hand as SVG.

Places across are shares of the width, so that a picture fits any screen while its letters keep their size. Each has a
title and a description, and nothing in it needs a script: what a mark means shows when it is pointed at.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from zlib import crc32

from outlast.display.html import escaped
from outlast.kernel.wording import precise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from outlast.report.model import Bucket, Spread, Throughput

_LEAST = 0.4  # percent of the width: what is there is seen


def drawing(height: int, title: str, description: str, body: str) -> str:
    """A picture that fills the width of where it stands."""
    number = f"{crc32(f'{title}{description}'.encode()):08x}"
    return (
        f'<svg role="img" height="{height}" aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">{escaped(title)}</title><desc id="d{number}">{escaped(description)}</desc>{body}</svg>'
    )


def rect(x: float, width: float, y: float, height: float, kind: str, hint: str = "", round_: float = 0) -> str:
    """A box; `x` and `width` in percent."""
    shape = f'<rect class="f-{kind}" x="{x:.3f}%" y="{y:.1f}" width="{width:.3f}%" height="{height:.1f}"'
    shape += f' rx="{round_:g}"' if round_ else ""
    return f"{shape}><title>{escaped(hint)}</title></rect>" if hint else f"{shape}/>"


def stacked(parts: Sequence[tuple[str, float, str]], *, height: int, title: str, whole: float | None = None) -> str:
    """One bar of (kind, amount, what it is); a part that is there is always seen."""
    total = sum(amount for _, amount, _ in parts) if whole is None else whole
    shown = (
        [(kind, max(_LEAST, 100 * amount / total), hint) for kind, amount, hint in parts if amount > 0] if total else []
    )
    over = sum(width for _, width, _ in shown)
    scale = 100 / over if over > 100 else 1.0
    x, body = 0.0, rect(0, 100, 0, height, "well", round_=3)
    for kind, width, hint in shown:
        body += rect(x, max(0.15, width * scale - (0.2 if x + width * scale < 99.9 else 0)), 0, height, kind, hint, 2)
        x += width * scale
    return drawing(height, title, "; ".join(hint for _, amount, hint in parts if amount > 0) or "nothing", body)


def small_bar(parts: Iterable[tuple[float, str]], hint: str = "") -> str:
    """
    Shares of a whole, one after the other, as a bar inside of a table; the numbers stand beside it, so it says nothing
    by itself.
    """
    x, body = 0.0, rect(0, 100, 0, 8, "well", round_=3)
    for share, kind in parts:
        if share:
            body += rect(x, max(_LEAST, 100 * share), 0, 8, kind, hint, 2)
            x += 100 * share
    return f'<svg height="8" aria-hidden="true">{body}</svg>'


# -- over time --------------------------------------------------------------------------------------------------------------------


def nice(most: float) -> float:
    """
    A round number at or above this one, to end an axis at.

    >>> nice(7), nice(1200), nice(33_018), nice(0)
    (8.0, 1500.0, 40000.0, 1.0)
    """
    if most <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= most)


def clock(at: datetime, *, days: bool, seconds: bool) -> str:
    """An instant on an axis."""
    return at.strftime("%d %b %H:%M" if days else "%H:%M:%S" if seconds else "%H:%M")


def over_time(throughput: Throughput) -> str:
    """Finished items in each span, and below them those that ended dead, on a scale of their own."""
    buckets, first = throughput.buckets, throughput.buckets[0]
    wide = 100 / len(buckets)
    seconds = throughput.width < 60
    days = len(buckets) * throughput.width > 86_400
    top = nice(max(bucket.finished for bucket in buckets))
    high, base = 150.0, 160.0
    body = scale = ""
    for share in (0.0, 0.5, 1.0):
        y, value = base - high * share, top * share
        if value == int(value):
            body += f'<line class="{"grid" if share else "axis"}" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            scale += f'<text x="8" y="{y + 4:.1f}">{value:,.0f}</text>'
    for place, bucket in enumerate(buckets):
        body += _column(place * wide, wide, bucket, base, high / top, clock(bucket.at, days=days, seconds=seconds))
    marks = (
        [(0, "start"), (len(buckets) // 2, "middle"), (len(buckets) - 1, "end")] if len(buckets) > 2 else [(0, "start")]
    )
    dead = max(bucket.dead for bucket in buckets)
    foot = base
    if dead:
        deep, top_dead = 44.0, nice(dead)
        foot = base + 30 + deep
        body += f'<line class="axis" x1="0" x2="100%" y1="{foot:.1f}" y2="{foot:.1f}"/>'
        body += f'<text x="0" y="{base + 22:.1f}">ended dead, at most {dead:,}</text>'
        for place, bucket in enumerate(buckets):
            if bucket.dead:
                height = max(1.5, deep * bucket.dead / top_dead)
                body += rect(place * wide, wide * 0.86, foot - height, height, "dead", f"{bucket.dead:,} ended dead")
    for place, anchor in marks:
        x = {"start": 0.0, "middle": (place + 0.5) * wide, "end": 100.0}[anchor]
        at = clock(buckets[place].at, days=days, seconds=seconds)
        body += f'<text x="{x:.2f}%" y="{foot + 17:.1f}" text-anchor="{anchor}">{at}</text>'
    most = max(buckets, key=lambda bucket: bucket.finished)
    told = (
        f"{len(buckets)} spans of {precise(throughput.width)}, from {first.at:%Y-%m-%d %H:%M:%S} UTC; the most items, {most.finished:,}, "
        f"ended in the one from {most.at:%H:%M:%S}; {sum(bucket.dead for bucket in buckets):,} ended dead."
    )
    high = int(foot + 24)
    beside = f'<svg class="scale" height="{high}" aria-hidden="true">{scale}</svg>'
    return f'<div class="plot">{drawing(high, "Finished items over time", told, body)}{beside}</div>'


def _column(x: float, wide: float, bucket: Bucket, base: float, scale: float, at: str) -> str:
    y, body = base, ""
    for kind, amount, word in (
        ("ok", bucket.succeeded, "succeeded"),
        ("skip", bucket.skipped, "skipped"),
        ("dead", bucket.dead, "ended dead"),
    ):
        if amount:
            height = max(1.0, amount * scale)
            y -= height
            body += rect(x, wide * 0.86, y, height, kind, f"{at}: {amount:,} {word}")
    return body


# -- durations --------------------------------------------------------------------------------------------------------------------


def ranges(rows: Sequence[tuple[str, Spread]]) -> str:
    """
    For each stage half of all attempts, 95 and 99 of a hundred, and the longest, on a scale where each step is ten
    times the last.
    """
    low = min(max(spread.p50, 1e-6) for _, spread in rows)
    high = max(max(spread.max, 1e-6) for _, spread in rows)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)

    def place(seconds: float) -> float:
        share = (math.log10(max(seconds, 10.0**first)) - first) / (last - first)
        return 2 + 96 * min(1.0, max(0.0, share))

    step, body = 46, ""
    foot = len(rows) * step + 8
    many = last - first > 3
    for power in range(first, last + 1):
        x = place(10.0**power)
        body += f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="4" y2="{foot}"/>'
        if not many or (power - first) % 2 == 0:
            anchor = "start" if power == first else "end" if power == last else "middle"
            body += f'<text x="{x:.2f}%" y="{foot + 16}" text-anchor="{anchor}">{precise(10.0**power)}</text>'
    for number, (name, spread) in enumerate(rows):
        y = number * step + 36
        p50, p95, p99, most = (place(value) for value in (spread.p50, spread.p95, spread.p99, spread.max))
        hint = f"{name}: half within {precise(spread.p50)}, 95 % within {precise(spread.p95)}, 99 % within {precise(spread.p99)}, at most {precise(spread.max)}"
        body += f'<g><title>{escaped(hint)}</title><text x="0" y="{y - 12}">{escaped(name[:40])}</text>'
        body += f'<line class="s-thin" x1="{p50:.2f}%" x2="{most:.2f}%" y1="{y}" y2="{y}"/>'
        body += f'<line class="s-ok" x1="{p50:.2f}%" x2="{max(p95, p50 + 0.01):.2f}%" y1="{y}" y2="{y}"/>'
        body += f'<line class="s-thin" x1="{p99:.2f}%" x2="{p99:.2f}%" y1="{y - 6}" y2="{y + 6}"/>'
        body += f'<line class="s-dead" x1="{most:.2f}%" x2="{most:.2f}%" y1="{y - 6}" y2="{y + 6}"/>'
        body += f'<circle class="f-card" cx="{p50:.2f}%" cy="{y}" r="5"/></g>'
    told = "; ".join(
        f"{name}: half within {precise(spread.p50)}, 95 % within {precise(spread.p95)}, at most {precise(spread.max)}"
        for name, spread in rows
    )
    return drawing(foot + 22, "How long attempts took, by stage", told, body)
