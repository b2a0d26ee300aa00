"""
The reference as data: every name that has a place of its own on a page, with what the page says there.

A place is a heading of names (`### retry`, `## map, amap`), or a row of a table, an entry of a list or a paragraph that begins with names
as code (`` | `find(**which)` | ... ``, `` - `run(source)`: ... ``, `` `Counts`: `total`, ... ``). To a heading belongs all down to the next one
of its rank; to the others, their own text.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
CODE = re.compile(r"`([^`\n]+)`")
WORD = r"(?:await |outlast\.)*@?(?:[\w-]+\.)*([\w-]+)"
NAMES = re.compile(rf"(?:[-*] )?((?:{CODE.pattern}(?: and |, )?)+)")  # that something begins with
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (PAGES / name).read_text()


def section(text: str, heading: str) -> str:
    """What stands under this heading; empty if there is none."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,6}} |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        return ""
    depth = len(found[1])
    whole = re.match(rf".*?(?=^#{{1,{depth}}} |\Z)", text[found.start(2) :], re.MULTILINE | re.DOTALL)
    return whole[0] if whole else ""


def blocks(text: str) -> list[str]:
    """Rows of tables, entries of lists and paragraphs, without programs and headings."""
    found: list[str] = []
    for line in FENCE.sub("", text).splitlines():
        starts = not line.strip() or line.startswith(("|", "- ", "#", "<!--"))
        if starts or not found or not found[-1] or found[-1].startswith("|"):
            found.append(line)
        else:
            found[-1] += f"\n{line}"
    return [block for block in found if block.strip() and not block.startswith(("#", "<!--"))]


def begins_with(block: str) -> list[str]:
    """The names that a row, an entry or a paragraph is about."""
    opening = block.split("|")[1].strip() if block.startswith("|") else block
    found = NAMES.match(opening)
    if not found:
        return []
    spans = CODE.findall(found[1])
    return [word[1] for word in (re.match(rf"{WORD}(?=[\s(:,]|$)", span) for span in spans) if word]


def places(text: str) -> dict[str, str]:
    """Every name that has a place on this page, with the text there; several places are put together."""
    found: dict[str, str] = {}

    def add(name: str, said: str) -> None:
        found[name] = f"{found.get(name, '')}\n{said}"

    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        if re.fullmatch(r"[\w.]+(, [\w.]+)*", heading):
            for name in heading.split(", "):
                add(name, section(text, heading))
    for block in blocks(text):
        for name in begins_with(block):
            add(name, block)
    return found


def rows(text: str) -> dict[str, str]:
    """The rows of tables that begin with names."""
    return {name: block for block in blocks(text) if block.startswith("|") for name in begins_with(block)}


def words(text: str) -> set[str]:
    """The words that a text shows as code."""
    fences = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", FENCE.sub("", text).replace("``", "`"))
    return set(re.findall(r"[\w-]+", " ".join([*fences, *spans])))
