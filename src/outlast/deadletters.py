"""
Dead letters: what could not be saved, kept until somebody has read it, mended it and sent it again.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import UUID

from outlast.redact import sanitise

# --- one problem, many messages -----------------------------------------------------------------------------------------
#
# Forty thousand failures are a handful of problems once what differs from item to item is taken out of their messages. The
# first alternative that fits a place wins. Nothing here can be made slow: every alternative either begins where no other
# match of its own can reach back to, or its repetitions never give back what they took.

_READ = 1_000  # characters of a message that tell problems apart

_VARIES = re.compile(
    r"""
      (?P<url>   \b[A-Za-z][A-Za-z0-9+.\-]{1,20}+://[^\s'"<>)\]}]++ )
    | (?P<email> (?<![\w.+\-])[\w.+\-]{1,64}+@[\w\-]{1,63}+(?:\.[\w\-]{1,63}+)++ )
    | (?P<time>  (?<!\d)\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d(?:[.,]\d++)?+)?+(?:\ ?(?:Z\b|UTC\b|[+\-]\d\d:?\d\d))?+)?+(?!\d)
               | (?<!\d)\d\d?:\d\d:\d\d(?:[.,]\d++)?+(?!\d) )
    | (?P<path>  (?<![\w/.~\\])(?:~|\.{1,2}+)?+/[\w.\-@+%=~:,]*+(?:/[\w.\-@+%=~:,]*+)*+
               | (?<![\w/.\-])[\w.\-]++(?:/[\w.\-]++){2,}+
               | (?<!\w)[A-Za-z]:\\[^\s'"<>|?*]*+ )
    | (?P<text>  (?<![\w\\])(?:[bBrRuUfF]{1,2})?+
                 (?:'(?:[^'\\]|\\.)*+(?:'|(?<=…)\Z)|"(?:[^"\\]|\\.)*+(?:"|(?<=…)\Z)|`[^`]*+`|\u201c[^\u201c\u201d]*+\u201d|\u2018[^\u2018\u2019]*+\u2019|\u00ab[^\u00ab\u00bb]*+\u00bb)(?!\w) )
    | (?P<n>     (?<![\w\-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![\w\-])
               | (?<![\w\-])(?=[A-Za-z_\-]*+\d)(?=[\d_\-]*+[A-Za-z])[\w\-]{16,}+(?![\w\-])
               | \b0[xX][0-9a-fA-F]++
               | (?<!\w)(?=[a-fA-F]*+\d)[0-9a-fA-F]{8,}+(?!\w)
               | \d++(?:[.,_]\d++)*+ )
    """,
    re.VERBOSE,
)


def normalised(message: str) -> str:
    """
    The message without what differs from item to item: numbers and ids, instants, paths, addresses and quoted text.

    >>> normalised("user 'ann' (id 4711) not found in /var/db/users.csv at 2026-11-15T09:30:00Z")
    'user <text> (id <n>) not found in <path> at <time>'
    """
    return " ".join(_VARIES.sub(lambda found: f"<{found.lastgroup}>", message[:_READ]).split())


def fingerprint(stage: str, error_class: str, error_type: str, message: str) -> str:
    """
    The problem behind a failure, as 16 hexadecimal digits: failures with the same one are told as one group.

    >>> fingerprint("label", "timeout", "ReadTimeout", "no answer in 30 s") == fingerprint("label", "timeout", "ReadTimeout", "no answer in 5 s")
    True
    """
    parts = "\x1f".join((stage, error_class, error_type, normalised(message)))
    return blake2b(parts.encode(errors="replace"), digest_size=8).hexdigest()


# --- a directory of entries ---------------------------------------------------------------------------------------------


@dataclass
class DeadLetterEntry:
    """One failed piece of work as a JSON file of its own: the nine fields that other programs read and write."""

    id: str
    workflow_id: str
    task: dict[str, Any]
    repos: list[str]
    adapter: str
    error: str
    error_type: str
    timestamp: str
    metadata: dict[str, Any]


_FIELDS = {
    "id": str,
    "workflow_id": str,
    "task": dict,
    "repos": list,
    "adapter": str,
    "error": str,
    "error_type": str,
    "timestamp": str,
    "metadata": dict,
}


class Directory:
    """
    One JSON file per entry, named after its id. Only ids that are UUIDs ever become file names.

    A file is there as a whole or not at all: written beside its place, flushed to the disk, then moved. It is readable by its owner only,
    because it holds the payload as it was.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, entry_id: str) -> Path | None:
        """The file of this id, or None if the id is no UUID and so can have none."""
        try:
            return self.folder / f"{UUID(entry_id)}.json"
        except (ValueError, AttributeError, TypeError):
            return None

    def write(self, entry: DeadLetterEntry) -> Path:
        """Keep the entry, in place of an older one with its id."""
        path = self.path(entry.id)
        if path is None:
            message = f"expected the id of an entry to be a UUID, got: {entry.id!r}."
            raise ValueError(message)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(entry), indent=2, default=str, ensure_ascii=False) + "\n"
        handle, beside = tempfile.mkstemp(dir=self.folder, prefix=f".{path.stem}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
        _flush_names(self.folder)
        return path

    def read(self, entry_id: str) -> DeadLetterEntry | None:
        """The entry with this id; None if there is none."""
        path = self.path(entry_id)
        try:
            return None if path is None else _entry(path)
        except FileNotFoundError:
            return None

    def remove(self, entry_id: str) -> None:
        """Forget the entry with this id."""
        path = self.path(entry_id)
        if path is not None:
            path.unlink(missing_ok=True)
            _flush_names(self.folder)

    def entries(self) -> tuple[list[DeadLetterEntry], list[str]]:
        """All entries, newest first, and a sentence for each file that is none."""
        entries: list[DeadLetterEntry] = []
        problems: list[str] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                entries.append(_entry(path))
            except FileNotFoundError:
                continue  # replayed or removed by somebody else meanwhile
            except (OSError, ValueError) as broken:
                problems.append(str(broken))
        return sorted(entries, key=lambda entry: (_instant(entry.timestamp), entry.id), reverse=True), problems


def _entry(path: Path) -> DeadLetterEntry:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as broken:
        message = f"expected {path.name} to hold one JSON object, got: {sanitise(str(broken))}."
        raise ValueError(message) from None
    if not isinstance(data, dict):
        message = f"expected {path.name} to hold one JSON object, got: {type(data).__name__}."
        raise ValueError(message)  # noqa: TRY004 - what is wrong is the file, not an argument
    data.setdefault("metadata", {})
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(data.get(name), kind)]
    if wrong:
        message = f"expected {path.name} to have {', '.join(f'{name} ({_FIELDS[name].__name__})' for name in wrong)}."
        raise ValueError(message)
    if (own := _uuid(data["id"])) is None or own != _uuid(path.stem):
        message = (
            f"expected {path.name} to be named after its id and the id to be a UUID, got: {sanitise(data['id'])!r}."
        )
        raise ValueError(message)
    return DeadLetterEntry(**{name: data[name] for name in _FIELDS})


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _instant(timestamp: str) -> float:
    """Seconds since the epoch; a time without a zone is this machine's, and what is no time at all is the oldest."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("-inf")


def _flush_names(folder: Path) -> None:
    """A name that was moved or removed is on the disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
