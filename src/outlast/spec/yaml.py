"""
YAML with positions: bytes to a tree of `Node`, and all that is wrong with the text.

The tree is built from the parser's events, without recursion, and every limit is checked before anything is built: a
file of 100,000 brackets or a bomb of aliases costs nothing. Scalars stay the text that was written; what a plain one
means (YAML 1.2, the core schema) is asked for where it is known what is expected there. Tags, merge keys and further
documents are refused, and so is a key that stands twice.

The parser is libyaml's, or PyYAML's own where that is missing. What both of them read comes to the same. In lists and
mappings on one line they do not agree on a ``?`` behind a word and on a ``:`` before a bracket (``[1?]``, ``{b:{t}}``), and
some mistakes are told a few columns apart. It is the only user of PyYAML.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from outlast.errors import ConfigurationError, Item
from outlast.kernel.redact import plain
from outlast.settings.checks import show
from outlast.spec.mistakes import Mistake

if TYPE_CHECKING:
    from io import BufferedReader

    from outlast.spec.mistakes import Path

LARGEST = 5_000_000  # bytes of a file
DEEPEST = 64  # levels of lists and mappings
MOST_NODES = 200_000
MOST_ALIASED = 10_000  # nodes that aliases stand for
_SHOWN = 60  # characters of a key in a path


class Node:
    """
    A mapping (`pairs`), a list (`items`) or a scalar (`text`), with the line and column where it begins, from 1. `style`
    of a scalar: plain, quoted or block. Nothing but `rename` changes one; a class that made sure of it would take twice the time, and
    a file has a hundred thousand of them.
    """

    __slots__ = ("_index", "column", "items", "kind", "line", "pairs", "style", "text")

    def __init__(
        self,
        kind: Literal["map", "list", "scalar"],
        line: int,
        column: int,
        text: str = "",
        style: Literal["plain", "quoted", "block"] = "plain",
        pairs: tuple[tuple[Node, Node], ...] = (),
        items: tuple[Node, ...] = (),
    ) -> None:
        self.kind = kind
        self.line = line
        self.column = column
        self.text = text
        self.style: Literal["plain", "quoted", "block"] = style
        self.pairs = pairs
        self.items = items
        self._index: dict[str, tuple[Node, Node]] | None = None

    def get(self, key: str) -> Node | None:
        """What a mapping has under this key."""
        found = self._pair(key)
        return None if found is None else found[1]

    def key(self, key: str) -> Node | None:
        """The key itself, for its place."""
        found = self._pair(key)
        return None if found is None else found[0]

    def _pair(self, key: str) -> tuple[Node, Node] | None:
        if len(self.pairs) > 8:  # a large mapping is asked many times
            if self._index is None:
                self._index = {pair[0].text: pair for pair in self.pairs}
            return self._index.get(key)
        for pair in self.pairs:
            if pair[0].text == key:
                return pair
        return None

    @property
    def written(self) -> str:
        """Its text as the file has it, also of a key that is read as another one."""
        return self.text

    def rename(self, key: Node, name: str) -> None:
        """Read a key, of which is told that it is none, as this one."""
        meant = _Misspelt(key, name)
        self.pairs = tuple((meant if one is key else one, value) for one, value in self.pairs)
        self._index = None

    def at(self, path: Path) -> Node:
        """What stands under this path, or the nearest thing that is there; of a key that has nothing, the key."""
        node = self
        for part in path:
            if isinstance(part, int):
                if node.kind != "list" or not 0 <= part < len(node.items):
                    return node
                node = node.items[part]
            else:
                found = node.get(part) if node.kind == "map" else None
                if found is None and len(part) == _SHOWN:  # of a long key a path has the beginning only
                    found = next((value for key, value in node.pairs if key.text[:_SHOWN] == part), None)
                if found is None:
                    return node
                node = found
        return node

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.style == "plain" and self.text in _NULLS


class _Misspelt(Node):
    """A key that is read as another one. What is wrong with it is told again whenever the tree is read again."""

    __slots__ = ("_written",)

    def __init__(self, key: Node, meant: str) -> None:
        super().__init__("scalar", key.line, key.column, meant, key.style)
        self._written = key.written

    @property
    def written(self) -> str:
        return self._written


class Read(NamedTuple):
    """The tree of a file, None if there is none, and what is wrong with its YAML."""

    node: Node | None
    mistakes: list[Mistake]


def read(data: bytes | str, file: str, *, pure: bool = False) -> Read:
    """The tree of a YAML text. With `pure` the parser that is written in Python reads it."""
    mistakes: list[Mistake] = []

    def wrong(line: int, column: int, expected: str, got: str, way_out: str, code: str = "", path: Path = ()) -> None:
        mistakes.append(Mistake(file, line, column, path, expected, got, way_out, code))

    text = _text(data, wrong)
    if text is None:
        return Read(None, mistakes)
    reading = _Reading(wrong)
    try:
        reading.read(text, pure=pure)
    except _TooMuch:
        return Read(None, mistakes)
    return Read(reading.root, mistakes)


def load(path: str | os.PathLike[str], what: str, most: int = LARGEST) -> bytes:
    """
    What a file has, or one byte more than it may have. ConfigurationError if it cannot be read. A pipe into which nobody
    writes is refused rather than waited for; one that has a writer is read to its end.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return _whole(file, most + 1)
    except (OSError, ValueError) as broken:  # ValueError: a path with a null byte
        why = getattr(broken, "strerror", None) or "no path"
        message = f"{plain(os.fspath(path))}: expected {what} that can be read, got: {why}"
        raise ConfigurationError(message) from broken


_WAITS = hasattr(os, "mkfifo")  # where opening a pipe waits for its other side


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | (os.O_NONBLOCK if _WAITS else 0))


def _whole(file: BufferedReader, most: int) -> bytes:
    begin: bytes | None = b""
    if _WAITS:
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            begin = file.raw.read(most)  # None: it has a writer, who has written nothing yet
            if begin == b"":
                raise OSError(errno.EPIPE, "a pipe into which nobody writes")
        os.set_blocking(file.fileno(), True)
    begin = begin or b""
    return begin + file.read(most - len(begin))


# -- from bytes to text ------------------------------------------------------------------------------------------------


# What no YAML file may have, and the line ends of old that no editor counts as such.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_HALVES = re.compile("[\ud800-\udfff]")  # of a pair; the parser in Python lets them be written as escapes
_HALF_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def _text(data: bytes | str, wrong: Any) -> str | None:
    if len(data) > LARGEST:
        wrong(1, 1, f"a file of at most {LARGEST:,} bytes", f"{len(data):,}", "split it into several pipelines")
        return None
    if isinstance(data, bytes):
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            wrong(1, 1, "a text in UTF-8", "UTF-16", "save the file as UTF-8")
            return None
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as broken:
            before = data[: broken.start].decode("utf-8", "replace")
            line, column = _place(before, len(before))
            got = f"the byte 0x{data[broken.start]:02x}"
            wrong(line, column, "a text in UTF-8", got, "save the file as UTF-8")
            return None
    else:
        text = data
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if (odd := _CONTROL.search(text)) is not None:
        line, column = _place(text, odd.start())
        got = f"the character U+{ord(odd[0]):04X}"
        wrong(line, column, "a text without control characters", got, "leave it out, or write it as an escape")
        return None
    for count, end in enumerate(_LINE_ENDS.finditer(text)):
        if count == 20:
            break
        line, column = _place(text, end.start())
        got = f"the line end U+{ord(end[0]):04X}"
        wrong(line, column, "lines that end in a line feed", got, "use a line feed, or write it as an escape")
    return _LINE_ENDS.sub(" ", text)


def _place(text: str, index: int) -> tuple[int, int]:
    """Line and column of a character; a carriage return alone ends a line too."""
    before = text[:index].replace("\r", "\n")
    return before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1


# -- from text to events -----------------------------------------------------------------------------------------------


@cache
def _parsers() -> tuple[Any, Any, Any, Any]:
    """The module, libyaml's parser if it is there, PyYAML's own, and what ends its reading."""
    try:
        import yaml  # type: ignore[import-untyped]
        from yaml.parser import Parser  # type: ignore[import-untyped]
        from yaml.reader import Reader  # type: ignore[import-untyped]
        from yaml.scanner import Scanner  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            "Pipeline files need PyYAML, which is not installed: pip install 'outlast[flows]'."
        ) from None

    class Pure(Reader, Scanner, Parser):  # type: ignore[misc]
        """PyYAML's parser, with tabs as libyaml takes them: between words, never at the beginning of a line."""

        allow_simple_key: bool

        def __init__(self, text: str) -> None:
            Reader.__init__(self, text)
            Scanner.__init__(self)
            Parser.__init__(self)

        def scan_to_next_token(self) -> None:
            found = True
            while found:
                while self.peek() == " " or (self.peek() == "\t" and (self.flow_level or not self.allow_simple_key)):
                    self.forward()
                if self.peek() == "#":
                    while self.peek() not in "\0\r\n":
                        self.forward()
                found = bool(self.scan_line_break())
                if found and not self.flow_level:
                    self.allow_simple_key = True

    try:
        from yaml._yaml import CParser  # type: ignore[import-untyped]
    except ImportError:  # a Python without it
        CParser = None  # noqa: N806 - the name of the class
    return yaml, CParser, Pure, yaml.YAMLError


_STYLES: dict[str | None, Any] = {None: "plain", "": "plain", "'": "quoted", '"': "quoted", "|": "block", ">": "block"}


class _TooMuch(Exception):
    """Nothing more is read."""


class _Open:
    """A list or a mapping that has not ended yet."""

    __slots__ = ("anchor", "column", "count", "height", "is_map", "key", "keys", "line", "parts")

    def __init__(self, line: int, column: int, anchor: str | None, *, is_map: bool) -> None:
        self.line, self.column, self.anchor, self.is_map = line, column, anchor, is_map
        self.parts: list[Any] = []
        self.keys: dict[str, Node] = {}
        self.key: Node | None = None  # a key that waits for its value
        self.count = 1  # nodes, with those that aliases stand for
        self.height = 1


class _Reading:
    """Builds the tree from events, on a stack of its own."""

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong
        self.root: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        self._nodes = self._aliased = self._documents = 0
        self._refused_tags = 0

    def read(self, text: str, *, pure: bool) -> None:
        yaml, fast, slow, fault = _parsers()
        self._text = text
        kinds = {
            yaml.MappingStartEvent: self._begin,
            yaml.SequenceStartEvent: self._begin,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }
        self._is_map = yaml.MappingStartEvent
        scalar, scalars, end = yaml.ScalarEvent, self._scalar, yaml.StreamEndEvent
        try:
            parser = slow(text) if pure or fast is None else fast(text)
            event_after = parser.get_event
            while (event := event_after()) is not None:
                kind = event.__class__
                if kind is scalar:
                    scalars(event)
                elif kind in kinds:
                    kinds[kind](event)
                elif kind is end:
                    break
        except fault as broken:
            tokens = (slow if pure or fast is None else fast, yaml.ScalarToken, fault)
            if not self._missed(broken, text, tokens):
                self._complain(broken, text)
            self.root = None
        except RecursionError:  # of the parser in Python, which is recursive for block lists inside lists
            self.wrong(1, 1, f"at most {DEEPEST} levels", "more", "flatten it")
            raise _TooMuch from None

    # -- events

    def _document(self, event: Any) -> None:
        self._documents += 1
        if event.version not in (None, (1, 2)):
            mark, shown = event.start_mark, ".".join(map(str, event.version))
            way_out = "write %YAML 1.2, or leave the line out"
            self.wrong(mark.line + 1, mark.column + 1, "YAML 1.2", f"a file that says it is YAML {shown}", way_out)
        if self._documents > 1:
            mark = event.start_mark
            way_out = "a file is one pipeline: put the other into a file of its own"
            self.wrong(mark.line + 1, mark.column + 1, "one document", "a second one", way_out)
            raise _TooMuch

    def _scalar(self, event: Any) -> None:
        mark, text = event.start_mark, event.value
        node = Node("scalar", mark.line + 1, mark.column + 1, text, _STYLES[event.style])
        if event.tag is not None:
            self._tagged(event, node.line, node.column)
        if not text.isascii() and _HALVES.search(text):
            half = _HALF_ESCAPE.search(self._text, mark.index)
            line, column = (node.line, node.column) if half is None else _place(self._text, half.start())
            self.wrong(line, column, *next(said[2:] for said in _SAID if said[0] == "escape"))
            raise _TooMuch
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._count(0, node.line, node.column)
        if event.anchor is not None or not self._open:
            self._put(node, 1, 0, event.anchor)
            return
        one = self._open[-1]  # as `_put` has it, for what there is most of
        one.count += 1
        if not one.is_map:
            one.parts.append(node)
        elif one.key is None:
            one.key = node
        else:
            key, one.key = one.key, None
            if not text and node.style == "plain":  # nothing has no place of its own
                node.line, node.column = key.line, key.column
            if self._is_key(one, key):
                one.parts.append((key, node))

    def _begin(self, event: Any) -> None:
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        if event.tag is not None:
            self._tagged(event, line, column)
        self._count(1, line, column)
        if len(self._open) >= DEEPEST:
            self._too_deep(line, column)
        self._open.append(_Open(line, column, event.anchor, is_map=event.__class__ is self._is_map))

    def _end(self, event: Any) -> None:  # noqa: ARG002 - as the others
        one = self._open.pop()
        if one.is_map:
            node = Node("map", one.line, one.column, pairs=tuple(one.parts))
        else:
            node = Node("list", one.line, one.column, items=tuple(one.parts))
        self._put(node, one.count, one.height, one.anchor)

    def _alias(self, event: Any) -> None:
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        found = self._anchors.get(event.anchor)
        if found is None:
            inside = any(one.anchor == event.anchor for one in self._open)
            got = f"*{event.anchor}, which {'is inside of itself' if inside else 'nothing before it bears'}"
            self.wrong(line, column, "the name of an anchor", got, "write the value out")
            self._put(Node("scalar", line, column, "", "plain"), 1, 0, None)
            return
        node, count, height = found
        self._aliased += count
        if self._aliased > MOST_ALIASED:
            expected = f"aliases that stand for at most {MOST_ALIASED:,} values"
            self.wrong(line, column, expected, "more", "write the values out, or split the file")
            raise _TooMuch
        self._count(count, line, column)
        if len(self._open) + height > DEEPEST:
            self._too_deep(line, column)
        self._put(node, count, height, None)

    # -- the tree

    def _put(self, node: Node, count: int, height: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, count, height)
        if not self._open:
            self.root = node
            return
        one = self._open[-1]
        one.count += count
        if height >= one.height:
            one.height = height + 1
        if not one.is_map:
            one.parts.append(node)
        elif one.key is None:
            one.key = node
        else:
            key, one.key = one.key, None
            if self._is_key(one, key):
                one.parts.append((key, node))

    def _is_key(self, one: _Open, key: Node) -> bool:
        if key.kind == "map" and (key.line, key.column) == (one.line, one.column + 1):
            # At the place of the outer one, of which then nothing else is said.
            way_out = 'write a reference in quotes: "${params.name}"'
            self.wrong(one.line, one.column, "a value", "a mapping in a mapping, {{ ... }}", way_out)
            return False
        if key.kind != "scalar":
            what = "mapping" if key.kind == "map" else "list"
            way_out = "put quotes around it if it is a text"
            self.wrong(key.line, key.column, "a text as a key", f"a {what}", way_out, path=self._path())
            return False
        if key.text == "<<" and key.style == "plain":
            way_out = "write the keys out, or use an alias for the whole value"
            self.wrong(key.line, key.column, "no merge key", "<<", way_out, path=self._path())
            return False
        first = one.keys.setdefault(key.text, key)
        if first is not key:
            got = f"{show(key.text)}, which stands in line {first.line} too"
            way_out = "keep one of the two"
            self.wrong(key.line, key.column, "each key once", got, way_out, "R43", (*self._path(), step(key.text)))
            return False
        return True

    def _path(self) -> Path:
        """Where the mapping stands that is being read; steps by their ids, if these have been read."""
        path: list[str | int] = []
        for one, inner in pairwise(self._open):
            if one.is_map:
                path.append(step("" if one.key is None or one.key.kind != "scalar" else one.key.text))
                continue
            named = [value for key, value in inner.parts if key.text == "id"] if inner.is_map else []
            is_step = path == ["steps"] and named and named[0].kind == "scalar"
            path.append(step(named[0].text) if is_step else len(one.parts))
        return tuple(path)

    def _count(self, count: int, line: int, column: int) -> None:
        self._nodes += count
        if self._nodes > MOST_NODES:
            expected = f"at most {MOST_NODES:,} values in a file"
            self.wrong(line, column, expected, "more", "split it into several pipelines")
            raise _TooMuch

    def _too_deep(self, line: int, column: int) -> None:
        self.wrong(line, column, f"at most {DEEPEST} levels of lists and mappings", "more", "flatten it")
        raise _TooMuch

    def _tagged(self, event: Any, line: int, column: int) -> None:
        self._refused_tags += 1
        if self._refused_tags <= 20:
            way_out = "leave it out; put quotes around what is a text"
            self.wrong(line, column, "no tag", plain(f"{event.tag}"[:_SHOWN]), way_out)

    def _missed(self, broken: Any, text: str, tokens: tuple[Any, Any, Any]) -> bool:
        """Whether the mistake stands before the place that the parser came to; then it is told there."""
        mark = getattr(broken, "problem_mark", None)
        if mark is None:
            return False
        said = f"{getattr(broken, 'context', None) or ''} {getattr(broken, 'problem', None) or ''}"
        begin = getattr(broken, "context_mark", None)
        is_open = "end of stream" in said or "document indicator" in said
        quote = (begin.line, begin.column) if is_open and begin is not None else _open_quote(text, mark, *tokens)
        if quote is not None:
            got = "a text that goes on in the next line" if not is_open else "a text without an end"
            way_out = "close the quotes in this line, or write a quote inside of them twice or with a backslash"
            self.wrong(quote[0] + 1, quote[1] + 1, "the quote that closes a text", got, way_out)
            return True
        shown = _line(text, mark.line + 1)
        if "expected ':'" in said and begin is not None and begin.line < mark.line:
            self.wrong(begin.line + 1, begin.column + 1, *_keyless(_line(text, begin.line + 1)[begin.column :]))
            return True
        if _DASH.match(shown) and ("block" in said or "expected ':'" in said):
            self.wrong(
                mark.line + 1, _indent(shown) + 1, "a space behind the - of a list", "none", "write it as - key: value"
            )
            return True
        if begin is not None and ("',' or '}'" in said or "',' or ']'" in said):
            before = _line(text, begin.line + 1)
            sign = before[begin.column : begin.column + 1]
            if begin.line < mark.line and _indent(shown) <= _indent(before) and sign in ("[", "{") and sign:
                closing = "]" if sign == "[" else "}"
                way_out = f"close it in this line, or indent the lines up to the {closing} more than this one"
                self.wrong(
                    begin.line + 1,
                    begin.column + 1,
                    f"the {closing} that closes what {sign} has begun",
                    "none",
                    way_out,
                )
                return True
        if (closing := shown[mark.column : mark.column + 1]) in ("}", "]") and closing and "block" in said:
            got, way_out = f"one {closing} too many", "leave it out"
            self.wrong(mark.line + 1, mark.column + 1, "a bracket that closes what one has begun", got, way_out)
            return True
        return False

    def _complain(self, broken: Any, text: str) -> None:
        mark = getattr(broken, "problem_mark", None) or getattr(broken, "context_mark", None)
        said = f"{getattr(broken, 'context', None) or ''} {getattr(broken, 'problem', None) or ''}"
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        shown = _line(text, line)
        character = shown[column - 1 : column]
        if "escape" in said:  # the one parser points at the backslash, the other behind it
            column = shown.rfind("\\", 0, column) + 1 or column
        expected, got, way_out = _in_words(said, character)
        first = max(0, column - _AROUND)  # a line may be as long as a file
        for bare in _BARE.finditer(shown[first : column + _AROUND]):
            if first + bare.start() <= column - 1 <= first + bare.end():
                column = first + bare.start() + 1
                # What stands around a reference may be a secret.
                way_out = (
                    f'write "{bare[0]}"'
                    if bare[0] == bare["last"]
                    else f"put them around all of it, not only {bare['last']}"
                )
                expected, got = "quotes around a text with a reference", "none"
                break
        self.wrong(line, column, expected, got, way_out)


_DASH = re.compile(r"\s*-[A-Za-z_][\w.]*\s*:(\s|$)")
_NO_SPACE = re.compile(r"[A-Za-z_]\w*:\S")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _keyless(line: str) -> tuple[str, str, str]:
    """What is wrong with a line that should be a key and its value."""
    if _NO_SPACE.match(line):
        return "a space behind ':'", "none", "write it as key: value"
    return "a key with ':' behind it", "a line without one", "write it as key: value"


def _open_quote(text: str, mark: Any, parser: Any, scalar: Any, fault: Any) -> tuple[int, int] | None:
    """
    Where a text in quotes begins that was not closed: the next quote, lines below, was taken for its end, and what
    stands behind that makes no sense.
    """
    lines = text.replace("\r", "\n").split("\n", mark.line + 1)[: mark.line + 1]
    last: tuple[int, int] | None = None
    try:
        scanner = parser("\n".join(lines))
        while (token := scanner.get_token()) is not None:
            if not isinstance(token, scalar) or token.plain or token.style not in ("'", '"'):
                continue
            begin, end = token.start_mark, token.end_mark
            if begin.line == end.line:
                continue
            behind = lines[end.line][end.column : end.column + 1]
            if behind not in ("", " ", "\t", ",", "]", "}", ":"):
                return begin.line, begin.column
            last = (begin.line, begin.column) if end.line == mark.line else last
    except fault:
        return last
    return last


# A text with references, which cannot stand in [] or {} without quotes.
_BARE = re.compile(r"(?:[^\s,\[\]{}\"']*(?P<last>\$\{[\w. -]{1,100}\}))+[^\s,\[\]{}\"']*", re.ASCII)
_AROUND = 200  # characters on each side of a mistake


def _line(text: str, line: int) -> str:
    lines = text.replace("\r", "\n").split("\n", line)
    return lines[line - 1] if line <= len(lines) else ""


# What the parsers say, in part, with what is expected, what came and the way out. The first that is found counts.
_SAID = (
    ("cannot start any token", "\t", "spaces", "a tab", "replace it by spaces"),
    ("cannot start any token", "@", "a value", "one that begins with @", 'put quotes around it: "@family.alias"'),
    ("cannot start any token", "`", "a value", "one that begins with `", "put quotes around it"),
    ("cannot start any token", "%", "a value", "one that begins with %", "put quotes around it"),
    ("cannot start any token", "", "a value", "a character that can begin none", "put quotes around the value"),
    ("values are not allowed", "", "one key in a line", "a second ':'",
     "put quotes around a text with a colon, or indent the key as its neighbours"),
    ("found expected ':'", "", "a key with ':' behind it", "a line without one", "write it as key: value"),
    ("find expected ':'", "", "a key with ':' behind it", "a line without one", "write it as key: value"),
    ("unexpected end of stream", "", "the quote that closes a text", "the end of the file", "close the quotes"),
    ("unexpected document indicator", "", "the quote that closes a text", "a new document", "close the quotes"),
    ("',' or '}'", ":", "a comma before a second key", "none", "put one between them, or quotes around a text with a colon"),
    ("',' or ']'", "", "a comma or ]", "something else", "close the list that [ has begun"),
    ("',' or '}'", "", "a comma or }", "something else", "close the mapping that { has begun"),
    ("flow node", "", "a value, or the end of the list or mapping", "something else", "close what [ or { has begun"),
    ("block node", "", "a value", "something that begins none", "put quotes around it if it is a text"),
    ("incompatible", "", "no directive", "a version of YAML that nobody knows", "leave the line that begins with % out"),
    ("hexdecimal", "", "an escape that YAML knows", "another one", "write the backslash twice, or use single quotes"),
    ("hexadecimal", "", "an escape that YAML knows", "another one", "write the backslash twice, or use single quotes"),
    ("escape", "", "an escape that YAML knows", "another one", "write the backslash twice, or use single quotes"),
    ("unexpected ':'", "", "a space behind ':'", "none", "write one, or put quotes around the text"),
    ("sequence entries are not allowed", "", "a value", "the '-' of a list", "begin the list in a new line"),
    ("a block collection", "", "an entry that begins with '-', in one column with those above", "something else",
     "indent it as its neighbours"),
    ("block mapping", "", "a key in one column with those above", "something else", "indent it as its neighbours"),
    ("indentation", "", "spaces", "a tab or other indentation", "indent with spaces"),
    ("anchor", "", "a name of letters and digits behind & or *", "something else", "put quotes around a text"),
    ("alias", "", "a name of letters and digits behind & or *", "something else", "put quotes around a text"),
    ("tag", "", "no tag", "one that cannot be read", "put quotes around a text that begins with !"),
    ("directive", "", "no directive", "one that cannot be read", "put quotes around a text that begins with %"),
    ("block scalar", "", "| or > and then a new line", "something else", "begin the text in a new line"),
    ("document start", "", "the end of the file", "more of it", "indent it, or begin it in the first column"),
)  # fmt: skip


def _in_words(said: str, character: str) -> tuple[str, str, str]:
    if character == "\t" and "quoted" not in said:
        return _SAID[0][2:]
    for part, at, expected, got, way_out in _SAID:
        if part in said and at in ("", character):
            return expected, got, way_out
    return "YAML", f"something else ({' '.join(said.split())})", "look at this line and the one above"


# -- what a scalar means -----------------------------------------------------------------------------------------------

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTHS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_HEX = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)", re.ASCII)
_ENDLESS = {
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
# Words of YAML 1.1 for true and false: texts in YAML 1.2.
_OLD_TRUTHS = frozenset("y Y yes Yes YES n N no No NO on On ON off Off OFF".split())
# Numbers that YAML 1.1 and 1.2 do not read alike: octal, with an exponent, with underscores, binary.
_TWO_WAYS = re.compile(
    r"[-+]?(?:0[0-9]+(?:\.[0-9]*)?|0o[0-7]+|0b[01_]+|(?=[0-9]++_)[0-9_]++(?:\.[0-9_]*)?"
    r"|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+)",
    re.ASCII,
)
_SIGNED_HEX = re.compile(r"[-+]0x[0-9a-fA-F]+", re.ASCII)  # a number in YAML 1.1 only
_SIXTIES = re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?", re.ASCII)
_LONGEST_NUMBER = 400  # digits
_DIGITS = frozenset("+-.0123456789")  # what a number begins with


def is_ambiguous(node: Node) -> bool:
    """
    Whether this is a number that YAML 1.1 and YAML 1.2 read in two ways: ``017``, ``1e3``, ``1_000``, ``+0x1f``; or one
    of so many digits that it would be taken for a text.
    """
    text = node.text
    if node.style != "plain" or text[:1] not in _DIGITS or node.kind != "scalar":
        return False
    return _TWO_WAYS.fullmatch(text) is not None or _SIGNED_HEX.fullmatch(text) is not None or _is_too_long(text)


def _is_too_long(text: str) -> bool:
    return len(text) > _LONGEST_NUMBER and any(one.fullmatch(text) for one in (_INTEGER, _FLOAT, _HEX))


def value_of(node: Node) -> Any:
    """
    What a scalar means in YAML 1.2: a text, a number, a truth or nothing. A text if it is quoted, and if it is a word
    or a number of YAML 1.1 only.
    """
    text = node.text
    if node.style != "plain":
        return text
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if text[0] in _DIGITS and len(text) <= _LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _HEX.fullmatch(text):
            return int(text, 16)
        if text in _ENDLESS:
            return _ENDLESS[text]
    return text


def hint(node: Node, wanted: Literal["number", "truth"]) -> str:
    """The way out for a scalar that is not the number or the truth that it may look like; nothing if it does not."""
    text = node.text
    if node.kind != "scalar" or len(text) > _SHOWN:
        return ""
    if node.style == "quoted":
        bare = value_of(Node("scalar", node.line, node.column, text))
        is_truth = isinstance(bare, bool)
        is_number = isinstance(bare, int | float) and not is_truth
        return "write it without quotes" if (is_truth if wanted == "truth" else is_number) else ""
    if text in _OLD_TRUTHS and wanted == "truth":
        said = "true" if text.lower() in ("y", "yes", "on") else "false"
        return f"write {said}: YAML 1.2 has no other words for it"
    if _SIXTIES.fullmatch(text) and wanted == "number":
        return "write one number, in the unit that the key names"
    if is_ambiguous(node) and wanted == "number":
        return f"{_written_out(text)}: YAML 1.1 and 1.2 read it in two ways"
    return ""


def two_ways(node: Node) -> str:
    """The way out for an ambiguous number, where a text may be meant too."""
    if _is_too_long(node.text):
        return f"put quotes around it: a number has at most {_LONGEST_NUMBER} digits"
    return f'{_written_out(node.text)}, or "{node.text}" if it is a text'


def _written_out(text: str) -> str:
    bare = text.replace("_", "")
    try:
        if bare.lower().lstrip("+-").startswith(("0o", "0b", "0x")):
            return f"write {int(bare, 0)}"
        if "e" in bare.lower() or "." in bare:
            number = float(bare)
            if abs(number) > 1e15 or (number != 0 and abs(number) < 1e-12):
                return "write it without an exponent"
            return f"write {int(number)}" if number == int(number) else f"write {number:.15f}".rstrip("0")
        return f"write {int(bare)}"
    except (ValueError, OverflowError):
        return "write the number out"


# -- places ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def step(key: str) -> str:
    """A key as a part of a path."""
    # What follows the name of such a header is masked up to the end of the line; in brackets it is not taken for one.
    return key if _PLAIN_KEY.fullmatch(key) and not _HEADERS.search(key) else Item(key[:_SHOWN])


def steps(path: Path) -> Path:
    """A path of keys and numbers as a mistake has it."""
    return tuple(step(part) if isinstance(part, str) else part for part in path)


_HEADERS = re.compile(r"(?i)authorization|cookie")
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]{0,99}")
