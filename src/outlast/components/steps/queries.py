"""
Whether a text is one query that only reads, as far as PostgreSQL's words tell. The text is gone through once: a text, a
name in quotes or a comment that is not closed is refused where it begins, as the server would, and nothing is searched for
twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READS = frozenset("select with values table show explain".split())
_CHANGES = frozenset("insert update delete merge".split())
_EXPLAINED = frozenset("create execute declare refresh call".split())  # which EXPLAIN (ANALYZE) does
# Letters of names are those of PostgreSQL: whatever is not ASCII is one, also what looks like a sign or a space.
_LETTER = "A-Za-z_\x80-\U0010ffff"
# What begins here: a place for a value, a comment, a text, a name in quotes, a text between dollars, a word, a sign.
_BEGINS = re.compile(
    rf"%\([{_LETTER}][{_LETTER}0-9]*+\)s|%%"
    r"|(?P<line>--)|(?P<comment>/\*)|(?P<escaped>[eE]')|(?P<text>(?:[uU]&|[bBxXnN])?')|(?P<name>(?:[uU]&)?\")"
    rf"|(?P<dollar>\$(?:[{_LETTER}][{_LETTER}0-9]*+)?\$)|\$\d++|(?P<word>[{_LETTER}][{_LETTER}0-9$]*+)|(?P<sign>[^\s\w])|\d",
    re.ASCII,
)
_LINE_ENDS = re.compile(r"[\r\n]")
_COMMENT = re.compile(r"/\*|\*/")
_TEXT = re.compile(r"[^']*+(?:''[^']*+)*+'")
_ESCAPED = re.compile(r"[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+'", re.DOTALL)
_NAME = re.compile(r'[^"]*+(?:""[^"]*+)*+"')


class _Open(ValueError):
    """What has begun does not end."""


def checked(query: str) -> str:
    """The query, if it is one that reads; otherwise a ValueError says why not."""
    if "\x00" in query:
        raise ValueError("expected a query without NUL; leave it out")
    _check(_words(query))
    if "\\'" in query:  # on a server with standard_conforming_strings = off a backslash hides the quote behind it
        try:
            other = list(_words(query, backslashes=True))
        except _Open:  # which that server refuses
            return query
        _check(iter(other))
    return query


def _check(words: Iterator[str]) -> None:
    first = before = ""
    ended = False
    for word in words:
        if ended:
            raise ValueError("expected one statement; give each a step of its own")
        if not first and word != "(":
            first = word
            if first not in READS:
                break
        _check_word(word, before, first)
        ended = word == ";"
        before = word
    if not first or first == ";":
        raise ValueError("expected a query; write a SELECT")
    if first not in READS:
        raise ValueError(
            "expected a SELECT; what changes rows is done by postgres.writer, or by a function with python"
        )


def _check_word(word: str, before: str, first: str) -> None:
    if before in (".", "as"):  # a column, or a name for one
        return
    if before in ("for", "key") and word in ("update", "share"):  # FOR NO KEY UPDATE, FOR KEY SHARE
        raise ValueError(
            f"expected a query that only reads, got FOR {word.upper()}; leave it out, a reader locks no rows"
        )
    if word == "into":
        raise ValueError(
            "expected a query that only reads, got INTO; leave it out, and let postgres.writer write the rows"
        )
    if word in _CHANGES or (first == "explain" and word in _EXPLAINED):
        raise ValueError(
            f"expected a query that only reads, got {word.upper()}; what changes rows is done by postgres.writer, and "
            "a column of this name is written in double quotes"
        )


def _words(query: str, *, backslashes: bool = False) -> Iterator[str]:
    r"""
    The words and signs of a query, in small letters, without its comments; a text is ' and a name in quotes ". With
    `backslashes` they hide a quote in every text, and not only in E'...'.

    >>> list(_words("SELECT $$a;b$$, c -- d"))
    ['select', "'", ',', 'c']
    """
    at = 0
    while (begins := _BEGINS.search(query, at)) is not None:
        at = begins.end()
        kind = begins.lastgroup
        if kind == "line":
            ends = _LINE_ENDS.search(query, at)
            at = len(query) if ends is None else ends.end()
        elif kind == "comment":
            at = _comment_end(query, at)
        elif kind in ("escaped", "text"):
            hides = backslashes or kind == "escaped"
            at = _end(_ESCAPED if hides else _TEXT, query, at, "a text that ends; add the quote that closes it")
            yield "'"
        elif kind == "name":
            at = _end(_NAME, query, at, "a name in quotes that ends; add the quote that closes it")
            yield '"'
        elif kind == "dollar":
            at = query.find(begins[0], at) + len(begins[0])
            if at < begins.end() + len(begins[0]):
                raise _Open(f"expected a text that ends; add the {begins[0][:60]} that closes it")
            yield "'"
        elif kind is not None:
            yield begins[0].lower()
        else:
            yield "%"


def _end(pattern: re.Pattern[str], query: str, at: int, expected: str) -> int:
    found = pattern.match(query, at)
    if found is None:
        raise _Open(f"expected {expected}")
    return found.end()


def _comment_end(query: str, at: int) -> int:
    """Behind the comment that has begun before; comments may stand in comments."""
    depth = 1
    for mark in _COMMENT.finditer(query, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise _Open("expected a comment that ends; add */")
