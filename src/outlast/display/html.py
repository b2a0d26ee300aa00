"""
What every page of HTML is made of, a notebook's and a report's: one way to escape, one palette, one bar.

Pieces for notebooks have their styles inline and take the colours of the page around them, light or dark. A report is a
page of its own: its sheet takes its colours from the same palette, and `report.html` has its charts and its tables.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from outlast.kernel.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


#: Colours on light, on dark, and halfway, to be read on both. They keep their meaning for eyes that see red and green alike.
PALETTE = {
    "ok": ("#2b7bb0", "#5eb0e0", "#3a8bc2"),
    "again": ("#d79a14", "#e9b84e", "#c9971c"),
    "skip": ("#8d97a3", "#7f8a96", "#8d97a3"),
    "dead": ("#c5481a", "#f0875a", "#d2582a"),
    "rest": ("#d6d2c8", "#3c444c", "#b9b5ab"),
    "limit": ("#7965b5", "#a795e2", "#8f7dcb"),
    "mark": ("#3c9384", "#5fbcab", "#4da797"),
    "good": ("#1c6a3f", "#7fd0a0", "#2f9e63"),
    "bad": ("#a8360c", "#f5a07a", "#d2582a"),
}
_KINDS = {"succeeded": "ok", "degraded": "again", "skipped": "skip", "dead": "dead"}
_STATUS = {"running": "ok", "completed": "good", "success": "good", "failed": "bad", "failure": "bad"}
_LINE = "rgba(128,128,128,.35)"
_FAINT = "rgba(128,128,128,.18)"
_FRAME = "font:13px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;max-width:60em;color:inherit;text-align:left"
_DIM = "opacity:.65"
_CODE = f"font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;background:{_FAINT};border-radius:3px;padding:1px 4px"
_CELL = f"padding:2px 10px 2px 0;text-align:left;vertical-align:top;border:0;border-bottom:1px solid {_LINE};background:none"
_NUMBER = (
    _CELL.replace("text-align:left", "text-align:right")
    + ";font-variant-numeric:tabular-nums;white-space:nowrap;min-width:4em"
)
_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]|[\ud800-\udfff]")
_LONGEST = 300  # characters of a message
_NAME = 64  # characters


def escaped(text: object) -> str:
    r"""
    Text that is nothing but text on the page.

    >>> escaped('<script>"&\0')
    '&lt;script&gt;&quot;&amp;�'
    """
    return escape(_UNSHOWABLE.sub("\ufffd", str(text)))


def isolated(value: object) -> str:
    """Somebody else's text: it may run from right to left, and must not turn the page around."""
    return f"<bdi>{escaped(value)}</bdi>"


def named(value: str) -> str:
    """A name in a table or a heading: one that would fill the page is cut."""
    return isolated(value if len(value) <= _NAME else f"{value[: _NAME - 1]}…")


def tone(kind: str) -> str:
    """A colour of the palette that can be read on light and on dark."""
    return PALETTE[_KINDS.get(kind, kind)][2]


def cut(text: str, most: int = _LONGEST) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def framed(*parts: str) -> str:
    return f'<div style="{_FRAME}">{"".join(parts)}</div>'


def paragraph(content: str, style: str = "") -> str:
    return f'<div style="margin:2px 0;{style}">{content}</div>'


def dimmed(text: str) -> str:
    return f'<span style="{_DIM}">{escaped(text)}</span>'


def monospaced(text: str) -> str:
    return f'<code style="{_CODE}">{escaped(text)}</code>'


def coloured(text: str, kind: str) -> str:
    return f'<span style="color:{tone(kind)}">{escaped(text)}</span>'


def quiet(count: int) -> str:
    return f"{count:,}" if count else '<span style="opacity:.35">·</span>'


def headline(name: str, key: str, status: str, took: str = "") -> str:
    colour = tone(_STATUS.get(status, "again"))
    pill = (
        f'<span style="border:1px solid {colour};color:{colour};border-radius:9px;padding:0 8px;font-weight:600">'
        f"{escaped(status.replace('_', ' '))}</span>"
    )
    return (
        '<div style="display:flex;gap:10px;align-items:baseline;margin:2px 0 4px">'
        f'<b style="font-size:15px">{escaped(name)}</b>{dimmed(key)}<span style="flex:1"></span>{pill}'
        f'<span style="{_DIM};font-variant-numeric:tabular-nums;min-width:6em;text-align:right">{escaped(took)}</span></div>'
    )


def bar(whole: int, *, label: str, **kinds: int) -> str:
    """Shares of a whole; trouble first, and what there is can be seen, however little."""
    shown = "".join(
        f'<span title="{escaped(f"{amount:,} {kind}")}" style="flex:0 0 auto;width:{100 * amount / max(whole, 1):.3f}%;'
        f'min-width:3px;background:{tone(kind)}"></span>'
        for kind, amount in kinds.items()
        if amount
    )
    return (
        '<div style="display:flex;gap:10px;align-items:center">'
        f'<div style="flex:1;display:flex;height:8px;border-radius:4px;overflow:hidden;background:{_FAINT}">{shown}</div>'
        f'<span style="font-variant-numeric:tabular-nums;white-space:nowrap">{escaped(label)}</span></div>'
    )


def counts_bar(counts: Any) -> str:
    """Where the items are, as a bar and in words; the counts are those of a result or of a report."""
    drawn = bar(
        counts.total,
        dead=counts.dlq + counts.failed,
        degraded=counts.degraded,
        skipped=counts.skipped,
        succeeded=counts.succeeded - counts.degraded,
        label=counted(counts.total, "item") + " read" + ("" if counts.source_exhausted else ", more to come"),
    )
    degraded = f" ({counts.degraded:,} degraded)" if counts.degraded else ""
    said = [
        (counts.skipped, f"{counts.skipped:,} skipped", "skipped"),
        (counts.dlq, counted(counts.dlq, "dead letter"), "dead"),
        (counts.failed, f"{counts.failed:,} failed", "dead"),
        (counts.pending, f"{counts.pending:,} pending", ""),
    ]
    succeeded = (f"{counts.succeeded:,} succeeded{degraded}", "succeeded")
    return drawn + paragraph(kinds([succeeded, *((words, kind) for count, words, kind in said if count)]))


def kinds(said: Iterable[tuple[str, str]]) -> str:
    return " · ".join(coloured(words, kind) if kind else escaped(words) for words, kind in said)


def lanes(columns: Sequence[Sequence[str]], counts: Mapping[tuple[str, str], int], notes: Mapping[str, str]) -> str:
    """A graph from left to right: boxes, and between two columns an arrow with how many have gone it."""
    cells: list[str] = []
    for place, names in enumerate(columns):
        boxes = "".join(
            f'<div style="border:1px solid {_LINE};border-radius:6px;padding:1px 10px;margin:2px 0;white-space:nowrap">'
            f"{escaped(name)}{f'<div style={chr(34)}{_DIM};font-size:11px{chr(34)}>{notes[name]}</div>' if name in notes else ''}"
            "</div>"
            for name in names
        )
        cells.append(f'<div style="display:flex;flex-direction:column;justify-content:center">{boxes}</div>')
        if place + 1 == len(columns):
            break
        # An arrow says from where to where only if there is more than one way.
        leaving = [(pair, count) for pair, count in counts.items() if pair[0] in names]
        plain = len(leaving) == 1
        said = "<br>".join(
            f"{count:,}" if plain else f"{escaped(pair[0])} → {escaped(pair[1])} {count:,}" for pair, count in leaving
        )
        cells.append(
            f'<div style="text-align:center;min-width:4.5em;padding:0 4px;font-size:11px;line-height:1.1;{_DIM};font-variant-numeric:tabular-nums">'
            f"{said or '&nbsp;'}<div>───▸</div></div>"
        )
    return f'<div style="display:flex;flex-wrap:wrap;align-items:center;gap:2px;margin:8px 0">{"".join(cells)}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    # No heading is shown in a column that is empty everywhere.
    kept = [
        place for place in range(len(rows[0]) if rows else 0) if any(row[place] not in {"", dimmed("")} for row in rows)
    ]
    head = "".join(
        f'<th style="{_NUMBER if place in right else _CELL};{_DIM};font-weight:500">{escaped(heads[place])}</th>'
        for place in (kept if heads else ())
    )
    body = "".join(
        "<tr style='background:none'>"
        + "".join(f'<td style="{_NUMBER if place in right else _CELL}">{row[place]}</td>' for place in kept)
        + "</tr>"
        for row in rows
    )
    first = f"<thead><tr style='background:none'>{head}</tr></thead>" if head else ""
    return f'<table style="border-collapse:collapse;margin:8px 0;font-size:inherit;border:0">{first}<tbody>{body}</tbody></table>'
