"""Tables for people, and the place for them in a page of the documentation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def amount(value: float) -> str:
    """Three digits that say something, or all of a large number."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"


def between(values: list[float]) -> str:
    return f"{amount(min(values))} to {amount(max(values))}"


def verdict(holds: bool) -> str:  # noqa: FBT001 - one word
    return "holds" if holds else "**missed**"


def grid(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table that also lines up in a terminal."""
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]

    def line(cells: list[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if at else "-") for at, width in enumerate(widths)) + "|"
    return "\n".join([line(head), rule, *map(line, body)])


def disk_of(folder: str) -> tuple[str, str]:
    """The device and the kind of file system that a folder is on."""
    where, found, longest = os.path.realpath(folder), ("unknown device", "unknown file system"), -1
    mounts = Path("/proc/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else []:
        device, mount, kind, *_ = line.split()
        if (where == mount or where.startswith(mount.rstrip("/") + "/")) and len(mount) > longest:
            found, longest = (device, kind), len(mount)
    return found


def renew(page: str, text: str, *, name: str = "figures") -> None:
    """Put `text` between ``<!-- name: start -->`` and ``<!-- name: end -->`` of a page in docs/."""
    file, start, end = ROOT / "docs" / page, f"<!-- {name}: start -->", f"<!-- {name}: end -->"
    before, place, rest = file.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (place and closed):
        sys.exit(f"docs/{page} has no place for the figures: {start} ... {end}")
    file.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}", encoding="utf-8")
    print(f"\nrenewed docs/{page}", file=sys.stderr)
