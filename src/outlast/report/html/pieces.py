"""
What the page is made of: sections, tables, numbers, legends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.display.html import escaped
from outlast.kernel.wording import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime


def section(title: str, lead: str, *body: str) -> str:
    told = f"<p>{lead}</p>" if lead else ""
    return f"<section><header><h2>{title}</h2>{told}</header>{''.join(body)}</section>"


def tabled(headings: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """Rows of (cell, kind); the kind of a column is that of its first cell, and the first column names its row."""
    found = [list(row) for row in rows]
    kinds = [kind for _, kind in found[0]] if found else [""] * len(headings)
    head = "".join(
        f'<th scope="col"{_class(kind)}>{escaped(heading)}</th>' for heading, kind in zip(headings, kinds, strict=True)
    )
    body = ""
    for row in found:
        cells = (
            [f'<th scope="row"{_class(row[0][1])}>{row[0][0]}</th>']
            if row[0][1] != "num"
            else [f'<td class="num">{row[0][0]}</td>']
        )
        cells += [f"<td{_class(kind)}>{cell}</td>" for cell, kind in row[1:]]
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def num(value: int | None) -> tuple[str, str]:
    return ("\N{EN DASH}" if value is None else f"{value:,}"), "num"


def share(share: float | None) -> str:
    return "\N{EN DASH}" if share is None else percent(round(share * 1e9), 10**9)


def moment(at: datetime) -> str:
    return f'<time datetime="{at.isoformat()}">{at:%Y-%m-%d %H:%M:%S}</time>'


def legend_of(entries: Iterable[tuple[str, str, str]]) -> str:
    return (
        '<ul class="legend">'
        + "".join(
            f'<li><span class="key f-{kind}"></span><span>{number} {word}</span></li>' for kind, number, word in entries
        )
        + "</ul>"
    )


def numbers(label: str, table: str) -> str:
    return f"<details><summary>{label}</summary>{table}</details>"
