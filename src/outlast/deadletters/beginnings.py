"""
What is kept of an item that failed, and where a replay of it begins.

A letter holds the input of the stage that failed, as the last attempt got it, also if a repair has made it. If that
input cannot be stored, the letter holds the nearest earlier one that can: the last checkpoint, else the item from the
source. If none can be stored, the letter says so and is not replayed. Objects of a class come back if an annotation of
a stage names the class. That is decided when a replay begins, so an annotation that is added later makes a letter
replayable.

    payload                 the input of the stage ``begins``, which is the letter's own stage if that is not said
    metadata  begins        another stage than the letter's, by name; None: there is no payload
              unstored      why the input of the letter's stage is not there
              earlier       stage and data of the checkpoint before it, if no annotation names a class of the payload
              source        what the source gave, if that is not the payload; None if that cannot be stored
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import PermanentFailure
from outlast.kernel.redact import sanitise
from outlast.store.codec import Lost
from outlast.store.faults import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.store.codec import Codec, Kept
    from outlast.store.records import DeadLetterRow

SOURCE = "source"  # the stage at which an item fails that could not be read
_PLACEHOLDER = "$unstorable"  # what older versions stored in place of a value


class Unreplayable(PermanentFailure):
    """There is nothing that a replay of this letter could begin with; the message says so, and why."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"cannot be replayed, because {', and '.join(dict.fromkeys(problems))}", error_class="validation_error"
        )


@dataclass(frozen=True, slots=True)
class Beginning:
    """The number of the stage at which a replay begins, and the input it has there."""

    at: int
    value: Any


class Inputs(NamedTuple):
    """
    What a new letter keeps; `lacks` has the classes that no annotation names, `unstored` why the input is not there.
    """

    payload: bytes
    metadata: dict[str, Any]
    lacks: list[str]
    unstored: str | None


def inputs(
    codec: Codec,
    known: Mapping[str, type],
    stages: Sequence[str],
    *,
    at: int,
    value: Any,
    source: Any,
    saved: tuple[int, bytes] | None,
    mended: bool = False,
) -> Inputs:
    """
    What is kept of an item that failed at the stage `at` with this input; `saved` is its last checkpoint: of which
    stage's input. `mended`: a repair has made this input of the one that the stage had first.
    """
    metadata: dict[str, Any] = {}
    kept, why = stored(codec, value)
    lacks = [] if kept is None else kept.lacks(known)
    first: Kept | None = None
    if at or mended:
        first, _ = stored(codec, source)
        metadata["source"] = None if first is None else _text(first.data)
    if saved is not None and saved[0] == at and not mended:  # as it was before the stage could change it in place
        return Inputs(saved[1], metadata, lacks, None)
    if kept is not None:
        if lacks and saved is not None:
            metadata["earlier"] = {"stage": stages[saved[0]], "data": _text(saved[1])}
        return Inputs(kept.data, metadata, lacks, None)
    metadata["unstored"] = why
    if saved is not None:
        return Inputs(saved[1], metadata | {"begins": stages[saved[0]]}, [], why)
    if first is not None:
        return Inputs(first.data, metadata | {"begins": stages[0]}, first.lacks(known), why)
    return Inputs(codec.encode(None), metadata | {"begins": None}, [], why)


def stored(codec: Codec, value: Any) -> tuple[Kept | None, str | None]:
    """The value as bytes, or why there are none."""
    try:
        return codec.keep(value), None
    except RecursionError:
        return None, "it is nested too deeply"
    except Exception as error:  # noqa: BLE001 - somebody else's class may fail in any way; the failure must be on record all the same
        kind = getattr(error, "kind", None)
        if kind is None:
            return None, f"{type(error).__name__} while it was stored"
        return None, f"it {'is' if kind == type(value).__qualname__ else 'holds'} a value of type {kind}"


def beginning(
    letter: DeadLetterRow,
    codec: Codec,
    known: Mapping[str, type],
    stages: Sequence[str],
    *,
    from_start: bool = False,
) -> Beginning:
    """
    Where a replay of the letter begins in a pipeline with these stages; `Unreplayable` if nowhere. A letter of a stage
    that is no more, or of none, begins at the start.
    """
    problems: list[str] = []
    try:
        candidates = [*_candidates(letter, from_start=from_start)]
    except (TypeError, ValueError, KeyError) as error:  # taken in from a file that somebody has written
        raise Unreplayable(["what it says about its input cannot be read"]) from error
    if letter.original is not None and not from_start:
        # What somebody has written is replayed, or nothing: anything earlier would drop it in silence.
        del candidates[1:]
    for what, name, data in candidates:
        if isinstance(data, str):
            problems.append(f"{what} was not stored ({data})")
            continue
        if name is not None and name not in stages:
            if "source" in letter.metadata:
                edited = (
                    ", for which its input was edited; from_start=True takes what the source gave"
                    if letter.original
                    else ""
                )
                problems.append(f"the pipeline has no stage {name!r} any more{edited}")
                continue
            name = None  # noqa: PLW2901 - where no source is kept beside it, the input is what the source gave
        try:
            value = codec.bring_back(data, known)
        except (Lost, StoreRefused) as error:
            problems.append(f"{what} cannot be made again ({error})")
            continue
        except Exception as error:  # noqa: BLE001 - the app's own codec, or a hand in the store: it concerns this letter only
            problems.append(f"{what} cannot be read ({type(error).__name__})")
            continue
        if isinstance(value, dict) and value.keys() == {_PLACEHOLDER}:
            problems.append(f"{what} was not stored")
            continue
        return Beginning(0 if name is None else stages.index(name), value)
    raise Unreplayable(problems)


def _candidates(letter: DeadLetterRow, *, from_start: bool) -> Iterator[tuple[str, str | None, bytes | str]]:
    """
    What it is, the stage whose input it is (None: the first), and the bytes or why there are none; the nearest first.
    """
    metadata, edited = letter.metadata, letter.original is not None
    begins = metadata.get("begins", letter.stage)
    own = None if letter.stage == SOURCE else letter.stage
    missing = unstored(letter) or ""
    of_source = "what the source gave"
    if not from_start or "source" not in metadata:
        if begins is None:
            # Whoever edits such a letter gives it the input of its stage.
            yield (f"the input of {letter.stage}", own, letter.payload if edited else missing)
        else:
            where = of_source if begins == SOURCE else f"the input of {begins}"
            yield where, None if begins == SOURCE else begins, letter.payload
    if not from_start and "earlier" in metadata:
        earlier = metadata["earlier"]
        yield f"the input of {earlier['stage']}", str(earlier["stage"]), base64.b64decode(earlier["data"])
    if "source" in metadata:
        source = metadata["source"]
        yield of_source, None, "it cannot be" if source is None else base64.b64decode(source)


def begins_at(letter: DeadLetterRow) -> str | None:
    """The stage at which a replay begins, as far as that is known without the pipeline's code; None if nowhere."""
    begins = letter.metadata.get("begins", letter.stage)
    if begins is None:
        return None if letter.original is None else letter.stage
    return str(begins)


def unstored(letter: DeadLetterRow) -> str | None:
    """Why the input of the letter's stage is not stored; None if it is."""
    why = letter.metadata.get("unstored")
    return None if why is None else sanitise(str(why))


def source_of(letter: DeadLetterRow) -> bytes | None:
    """What the source gave, before any stage or person changed it; None if that is not on record."""
    if "source" in letter.metadata:
        kept = letter.metadata["source"]
        return None if kept is None else base64.b64decode(kept)
    if letter.metadata.get("begins", letter.stage) is None:
        return None
    return letter.original or letter.payload


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
