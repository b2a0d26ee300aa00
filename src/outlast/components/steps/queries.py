"""
Whether a text is one query that only reads, as far as the words of PostgreSQL or MySQL tell. The text is gone through
once: a text, a name in quotes or a comment that is not closed is refused where it begins, as the server would, and nothing
is searched for twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READS = frozenset("select with values table show explain".split())
MYSQL_READS = READS | {"describe", "desc"}
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
_PLACES = re.compile(r"%(?:%|s|\([^()]*\)s)")
_HIDDEN = frozenset("line comment escaped text name dollar".split())  # texts, names in quotes and comments


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


def checked_mysql(query: str) -> str:
    """The same for MySQL and MariaDB, whose comments, quotes and backslashes are others."""
    if "\x00" in query:
        raise ValueError("expected a query without NUL; leave it out")
    _check(_mysql_words(query), _MYSQL)
    if "\\" in query:  # with NO_BACKSLASH_ESCAPES a backslash hides nothing
        try:
            other = list(_mysql_words(query, backslashes=False))
        except _Open:
            return query
        _check(iter(other), _MYSQL)
    return query


def places_in_quotes(query: str, *, mysql: bool = False) -> bool:
    """
    Whether a place for a value stands inside of quotes or a comment. Drivers do not look: that for MySQL would put the value
    there, with quotes of its own, and that for PostgreSQL a $1, which is a text like any other there.
    """
    parts = _mysql_parts(query, backslashes=True) if mysql else _parts(query)
    hidden = (query[begins.start() : end] for begins, end in parts if begins.lastgroup in _HIDDEN)
    return any(place[0] != "%%" for part in hidden for place in _PLACES.finditer(part))


@dataclass(frozen=True)
class _Language:
    """What a statement that reads begins with, the words that change something, and who changes rows instead."""

    reads: frozenset[str]
    changes: frozenset[str]
    explained: frozenset[str]
    writer: str
    quotes: str


_POSTGRES = _Language(READS, _CHANGES, _EXPLAINED, "postgres.writer, or by a function with python", "double quotes")
# INSERT and REPLACE are functions as well; as statements they stand neither behind WITH nor without INTO.
_MYSQL = _Language(
    MYSQL_READS, frozenset({"update", "delete"}), _EXPLAINED, "a function with python", "quotes such as `update`"
)


def _check(words: Iterator[str], language: _Language = _POSTGRES) -> None:
    first = before = ""
    ended = False
    for word in words:
        if ended:
            raise ValueError("expected one statement; give each a step of its own")
        if not first and word != "(":
            first = word
            if first not in language.reads:
                break
        _check_word(word, before, first, language)
        ended = word == ";"
        before = word
    if not first or first == ";":
        raise ValueError("expected a query; write a SELECT")
    if first not in language.reads:
        raise ValueError(f"expected a SELECT; what changes rows is done by {language.writer}")


def _check_word(word: str, before: str, first: str, language: _Language) -> None:
    if before in (".", "as"):  # a column, or a name for one
        return
    locks = before in ("for", "key") and word in ("update", "share")  # FOR NO KEY UPDATE, FOR KEY SHARE
    if locks or (before, word, language) == ("lock", "in", _MYSQL):  # LOCK IN SHARE MODE
        said = f"{before} {word}".upper() if before == "lock" else f"FOR {word.upper()}"
        raise ValueError(f"expected a query that only reads, got {said}; leave it out, a reader locks no rows")
    if word == "into":
        raise ValueError(
            "expected a query that only reads, got INTO; leave it out, and let "
            f"{'postgres.writer' if language is _POSTGRES else 'another step'} write the rows"
        )
    if word in language.changes or (first == "explain" and word in language.explained):
        raise ValueError(
            f"expected a query that only reads, got {word.upper()}; what changes rows is done by {language.writer.partition(',')[0]}, and "
            f"a column of this name is written in {language.quotes}"
        )


def _words(query: str, *, backslashes: bool = False) -> Iterator[str]:
    r"""
    The words and signs of a query, in small letters, without its comments; a text is ' and a name in quotes ". With
    `backslashes` they hide a quote in every text, and not only in E'...'.

    >>> list(_words("SELECT $$a;b$$, c -- d"))
    ['select', "'", ',', 'c']
    """
    for begins, _ in _parts(query, backslashes=backslashes):
        kind = begins.lastgroup
        if kind in ("escaped", "text", "dollar"):
            yield "'"
        elif kind == "name":
            yield '"'
        elif kind not in ("line", "comment"):
            yield begins[0].lower() if kind is not None else "%"


def _parts(query: str, *, backslashes: bool = False) -> Iterator[tuple[re.Match[str], int]]:
    """What begins in a query, each with where it ends."""
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
        elif kind == "name":
            at = _end(_NAME, query, at, "a name in quotes that ends; add the quote that closes it")
        elif kind == "dollar":
            at = query.find(begins[0], at) + len(begins[0])
            if at < begins.end() + len(begins[0]):
                raise _Open(f"expected a text that ends; add the {begins[0][:60]} that closes it")
        yield begins, at


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


# -- MySQL ---------------------------------------------------------------------------------------------------------------

# A dash begins a comment only before white space; # always does. What stands in /*! */ is done, and is no comment.
_MYSQL_BEGINS = re.compile(
    rf"%\([^()]*+\)s|%%|(?P<line>#|--(?=[\s\x00-\x1f]|$))|(?P<done>/\*M?!)|(?P<comment>/\*)"
    rf"|(?P<text>['\"])|(?P<name>`)|(?P<word>[{_LETTER}$][{_LETTER}0-9$]*+)|(?P<sign>[^\s\w])|\d",
    re.ASCII,
)
_MYSQL_ENDS = {
    ("'", True): _ESCAPED,
    ("'", False): _TEXT,
    ('"', True): re.compile(r'[^"\\]*+(?:(?:""|\\.)[^"\\]*+)*+"', re.DOTALL),
    ('"', False): _NAME,
}
_MYSQL_NAME = re.compile(r"[^`]*+(?:``[^`]*+)*+`")
_NEWLINE = re.compile(r"\n")


def _mysql_words(query: str, *, backslashes: bool = True) -> Iterator[str]:
    r"""
    As `_words`. Without `backslashes` they hide no quote.

    >>> list(_mysql_words("SELECT `a;b`, 'it\\'s;' # c"))
    ['select', '"', ',', "'"]
    """
    for begins, _ in _mysql_parts(query, backslashes=backslashes):
        kind = begins.lastgroup
        if kind in ("text", "name"):
            yield "'" if kind == "text" else '"'
        elif kind not in ("line", "comment"):
            yield begins[0].lower() if kind is not None else "%"


def _mysql_parts(query: str, *, backslashes: bool) -> Iterator[tuple[re.Match[str], int]]:
    """As `_parts`."""
    at = 0
    while (begins := _MYSQL_BEGINS.search(query, at)) is not None:
        at = begins.end()
        kind = begins.lastgroup
        if kind == "done":
            raise ValueError(
                f"expected comments that are none of the server's business, got {begins[0]}; write it out, it would be done"
            )
        if kind == "line":
            ends = _NEWLINE.search(query, at)
            at = len(query) if ends is None else ends.end()
        elif kind == "comment":  # none stands in another
            at = query.find("*/", at) + 2
            if at < begins.end() + 2:
                raise _Open("expected a comment that ends; add */")
        elif kind == "text":
            pattern = _MYSQL_ENDS[begins[0], backslashes]
            at = _end(pattern, query, at, "a text that ends; add the quote that closes it")
        elif kind == "name":
            at = _end(_MYSQL_NAME, query, at, "a name in quotes that ends; add the quote that closes it")
        yield begins, at
