"""
Dead letters as a folder of JSON files, one for each, which other programs read and write too.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

from outlast.deadletters.fingerprints import fingerprint
from outlast.errors import ConfigurationError
from outlast.kernel.aliases import StopReason
from outlast.kernel.clock import here
from outlast.kernel.redact import sanitise, to_json
from outlast.store.letters import EARLIER
from outlast.store.records import DeadLetterRow, LetterKind, from_us, to_us
from outlast.verdicts import classify

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


_KINDS: dict[str, LetterKind] = {kind: kind for kind in get_args(LetterKind)}
_REASONS: dict[str, StopReason] = {reason: reason for reason in get_args(StopReason)}
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

    A file is there as a whole or not at all: written beside its place, flushed to the disk, then moved. It is readable
    by its owner only, because it holds the payload as it was.
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
            raise ValueError(f"expected the id of an entry to be a UUID, got: {entry.id!r}.")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What cannot be written as text, such as half a character, is spelt as an escape and comes back.
        text = to_json(asdict(entry), indent=2) + "\n"
        handle, beside = tempfile.mkstemp(dir=self.folder, prefix=f".{path.stem}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
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

    @contextmanager
    def claim(self, entry_id: str) -> Iterator[DeadLetterEntry | None]:
        """
        The entry with this id, for nobody else until the block ends; None if there is none, or somebody else has it.

        Between processes a lock on a file beside the entry decides. It goes with its process, however that ends, and a
        forked child does not have it.
        """
        path = self.path(entry_id)
        if path is None:
            yield None
            return
        beside = path.with_name(f".{path.stem}.lock")
        with _claiming:
            mine = (known := str(beside.absolute())) not in _claimed and self.folder.is_dir()
            if mine:
                _claimed.add(known)
        if not mine:
            yield None
            return
        try:
            with _locked(beside) as locked:
                yield self.read(entry_id) if locked else None
        finally:
            with _claiming:
                _claimed.discard(known)

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

    def created_us(self) -> list[int]:
        """When the entries were created, the oldest first; of one whose timestamp is no time, when its file was changed."""
        found: list[int] = []
        for entry in self.entries()[0]:
            at, path = _instant(entry.timestamp), self.path(entry.id)
            if at <= 0 and path is not None:
                with suppress(OSError):  # replayed or removed meanwhile
                    at = path.stat().st_mtime
            found.append(max(0, round(at * 1e6)) if at > 0 else 0)
        return sorted(found)


_claiming = threading.Lock()
_claimed: set[str] = set()  # lock files that this process holds: the system would give it each of them again


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether this process alone has the lock of this file; the file goes with the lock."""
    if fcntl is None:
        yield True
        return
    handle = _lock(path)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _lock(path: Path) -> int | None:
    assert fcntl is not None  # noqa: S101 - asked by who locks
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass  # whoever had it removed the file before this process locked it: the next one counts
        except OSError:
            os.close(handle)
            return None
        os.close(handle)


def _entry(path: Path) -> DeadLetterEntry:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"expected {path.name} to hold one JSON object, got: one that is nested too deeply.") from None
    except ValueError as broken:
        raise ValueError(f"expected {path.name} to hold one JSON object, got: {sanitise(str(broken))}.") from None
    if not isinstance(data, dict):
        message = f"expected {path.name} to hold one JSON object, got: {type(data).__name__}."
        raise ValueError(message)  # noqa: TRY004 - what is wrong is the file, not an argument
    data.setdefault("metadata", {})
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(data.get(name), kind)]
    if wrong:
        message = f"expected {path.name} to have {', '.join(f'{name} ({_FIELDS[name].__name__})' for name in wrong)}."
        raise ValueError(message)
    if (own := _uuid(data["id"])) is None or own != _uuid(path.stem):
        raise ValueError(
            f"expected {path.name} to be named after its id and the id to be a UUID, got: {sanitise(data['id'])!r}."
        )
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


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and bool(re.fullmatch(r"[0-9a-f]+", text))


def _public_name(error_type: str) -> str:
    """What `classify` can be asked about: a name that it knows nothing of is an unknown error."""
    try:
        classify(error_type)
    except ConfigurationError:
        return "Exception"
    return error_type


# -- letters as entries

_FOREIGN = "entry"  # what of another program's entry no letter has a place for
_OURS = frozenset({_FOREIGN, "edits", "begins", EARLIER})


def as_entry(row: DeadLetterRow, decode: Callable[[bytes], Any], unreadable: str | None = None) -> DeadLetterEntry:
    """
    The letter as other programs read it, with what only this one knows in its metadata. One that another program wrote
    is its entry again. A payload that is `unreadable`, for this reason, is written as it is stored.
    """
    # A replay may have given it a stage at which it failed; what it keeps is still the input of none.
    foreign = row.kind == "job" and not row.metadata.get("begins", row.stage)
    kept = row.metadata.get(_FOREIGN)
    more = {
        name: getattr(row, name)
        for name in (
            "kind",
            "error_class",
            "tier",
            "attempts",
            "first_failed_us",
            "last_attempt_us",
            "created_us",
            "replays",
            "stop_reason",
        )
    }
    why = {} if unreadable is None else {"unreadable": unreadable}
    entry = DeadLetterEntry(
        id=str(UUID(row.id)),
        workflow_id=row.run or "",
        task={
            "pipeline": row.pipeline,
            "stage": row.stage,
            "item_key": row.item_key,
            "payload": json.loads(row.payload) if is_json(row.payload, strictly=True) else row.payload.hex(),
        },
        repos=[row.item_key],
        adapter=row.pipeline,
        error=row.error,
        error_type=row.error_type,
        timestamp=from_us(row.created_us).isoformat(),
        metadata={**row.metadata, "outlast": {**more, "status": row.status, **why}},
    )
    if not foreign or unreadable is not None or not isinstance(kept, dict):
        return entry
    # The entry of another program: its task and its repositories, or what an edit has made of them since.
    work = decode(row.payload)
    task, repos = (work.get("task"), work.get("repos")) if isinstance(work, dict) else (None, None)
    if not isinstance(task, dict) or not isinstance(repos, list):
        return entry
    own = {name: value for name, value in row.metadata.items() if name not in _OURS}
    return replace(entry, task=task, repos=repos, timestamp=kept["timestamp"], metadata=own)


def from_entry(entry: DeadLetterEntry, encode: Callable[[Any], bytes]) -> DeadLetterRow:
    """The letter of an entry, also of one that another program has written."""
    metadata = {name: value for name, value in entry.metadata.items() if name != "outlast"}
    own = entry.metadata.get("outlast")
    created = _instant(entry.timestamp)
    now_us = to_us(here.get().clock.now())
    created_us = round(created * 1e6) if created > 0 else now_us
    if isinstance(own, dict):
        _check_own(entry, own)
        payload, stage, item_key = entry.task.get("payload"), entry.task.get("stage"), entry.task.get("item_key")
        data = bytes.fromhex(payload) if isinstance(payload, str) and _is_hex(payload) else json.dumps(payload).encode()
    else:
        # Work of another program, which its adapter does: that stands for the pipeline, and a replay needs the rest.
        work = {"task": entry.task, "repos": entry.repos, "adapter": entry.adapter}
        own, stage, item_key, data = {"kind": "job"}, "", entry.workflow_id, encode(work)
        metadata[_FOREIGN] = {"timestamp": entry.timestamp}
    error_class = str(own.get("error_class") or classify(_public_name(entry.error_type)).error_class)
    return DeadLetterRow(
        id=UUID(entry.id).hex,
        run=entry.workflow_id or None,
        seq=None,
        pipeline=entry.adapter,
        stage=str(stage or ""),
        item_key="" if item_key is None else str(item_key),
        kind=_KINDS.get(str(own.get("kind")), "item"),
        payload=data,
        error=sanitise(entry.error),
        error_type=entry.error_type,
        error_class=error_class,
        tier=str(own.get("tier") or ""),
        fingerprint=fingerprint(str(stage or ""), error_class, entry.error_type, sanitise(entry.error)),
        attempts=int(own.get("attempts") or 1),
        first_failed_us=int(own.get("first_failed_us") or created_us),
        last_attempt_us=int(own.get("last_attempt_us") or created_us),
        created_us=int(own.get("created_us") or created_us),
        replays=int(own.get("replays") or 0),
        stop_reason=_REASONS.get(str(own.get("stop_reason"))),
        metadata=metadata,
    )


def _check_own(entry: DeadLetterEntry, own: dict[str, Any]) -> None:
    """
    What this program wrote, and somebody may have changed since: numbers that no letter can have break whoever reads
    it.
    """
    wrong = [
        f"{name} to be {wanted}, got: {sanitise(repr(own[name]), 60)}"
        for names, wanted, fits in (
            (("attempts", "replays"), "a number from 0 to 1,000,000,000", range(1_000_000_001)),
            (("first_failed_us", "last_attempt_us", "created_us"), "microseconds of an instant", _INSTANTS),
            (("kind", "error_class", "tier"), "a text", None),
        )
        for name in names
        if own.get(name) is not None and not _fits(own[name], fits)
    ]
    if wrong:
        raise ValueError(f"expected {UUID(entry.id)}.json to have in metadata.outlast {'; '.join(wrong)}.")


_INSTANTS = range(to_us(datetime(9999, 12, 31, tzinfo=UTC)) + 1)


def _fits(value: Any, numbers: range | None) -> bool:
    return isinstance(value, str) if numbers is None else type(value) is int and value in numbers


def is_json(data: bytes, *, strictly: bool = False) -> bool:
    """
    Whether it is text that JSON can read; a codec may have made something else of it. `strictly`: NaN and Infinity are
    none.
    """
    try:
        json.loads(data, parse_constant=_refused if strictly else None)
    except (ValueError, RecursionError):
        return False
    return True


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
