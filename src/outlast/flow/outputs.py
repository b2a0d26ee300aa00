"""
What a step has put out, as bytes and back. Small values are one piece of JSON, in the codec's envelope, which keeps the
types of dates, decimals and their like. Rows beyond `SMALL` bytes are tables by themselves: Parquet, if that brings every
value back as it was, else JSON as well.

    keep(outputs) ──► Kept: `data`, and `parts` that are stored by themselves
    Outputs(data, part) ──► the values, each read when it is asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import PermanentFailure
from outlast.store.codec import Lost, Unstorable, texts_in
from outlast.store.flows import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from outlast.store.codec import Codec

SMALL = 262_144  # bytes of rows that are stored with the other outputs
SHORTEST_SECRET = 8  # characters: shorter values of sensitive parameters are found in too many other texts
LARGEST = 512_000_000  # bytes of all that a step may put out
_MAGIC = b"outlast outputs 1\n"
# What a value says that cannot be stored: a type that nobody knows, one level too many, an integer of thousands of digits, a
# half of a surrogate pair.
_UNFIT = (Unstorable, RecursionError, ValueError, OverflowError)


class Kept(NamedTuple):
    """What a step has put out, as it is stored."""

    data: bytes
    parts: tuple[Part, ...] = ()

    @property
    def packed(self) -> bytes:
        """All of it in one piece."""
        if not self.parts:
            return self.data
        pieces = [
            self.data,
            *(piece for part in self.parts for piece in (part.name.encode(errors="surrogatepass"), part.data)),
        ]
        return _MAGIC + b"".join(len(one).to_bytes(8, "big") + one for one in pieces)


def keep(outputs: Mapping[str, Any], codec: Codec, step: str, secret: Mapping[str, Any] = MappingProxyType({})) -> Kept:
    """
    What a step has put out, as it is stored. PermanentFailure for a value that would not come back as it is, and for one
    with the text of a sensitive parameter in it: outputs are stored and shown as they are. `secret` has these.
    """
    _refuse_secrets(outputs, secret, step)
    small: dict[str, Any] = {}
    tables: dict[str, str] = {}  # in which form each of them is
    parts: list[Part] = []
    for name, value in outputs.items():
        try:
            if _is_large(value):
                kind, data = _table(value, codec)
                parts.append(Part(name, codec.seal(data) if kind == "parquet" else data))
                tables[name] = kind
            else:
                small[name] = value
        except _UNFIT as wrong:
            raise _refused(step, name, wrong) from None
    try:
        kept = codec.keep({"values": small, "tables": tables})
    except _UNFIT as wrong:
        raise _refused(step, _culprit(small, codec), wrong) from None
    if lacking := kept.lacks({}):
        message = (
            f"expected the outputs of {step} to be values that come back as they are, got: {', '.join(lacking)}. "
            "Put out plain values: mappings, lists, texts, numbers, dates."
        )
        raise PermanentFailure(message, error_class="validation_error")
    size = len(kept.data) + sum(len(part.data) for part in parts)
    if size > LARGEST:
        message = (
            f"expected {step} to put out at most {LARGEST:,} bytes, got: {size:,}. "
            "Write them to a file, and put out its path; or work on them as items, with component: pipeline."
        )
        raise PermanentFailure(message, error_class="data_error")
    return Kept(kept.data, tuple(parts))


def _refuse_secrets(outputs: Mapping[str, Any], secret: Mapping[str, Any], step: str) -> None:
    known = {text: param for param, value in secret.items() for text in _secret_texts(value)}
    if not known:
        return
    for output, value in outputs.items():
        if (param := _param_in(texts_in(output), known)) is not None:
            raise _has_secret("the name of every output", step, param)
        try:
            param = _param_in(texts_in(value), known)
        except _UNFIT as wrong:
            raise _refused(step, output, wrong) from None
        if param is not None:
            raise _has_secret(f"the output {output}", step, param)


def _secret_texts(value: Any) -> Iterator[str]:
    """The texts and numbers in the value of a sensitive parameter, also as a path has them."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _secret_texts(one)
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        yield from (one for one in (text, str(PurePosixPath(text))) if len(one) >= SHORTEST_SECRET)


def _param_in(texts: Iterable[str], known: Mapping[str, str]) -> str | None:
    """The first parameter whose value is in one of these texts."""
    return next((param for text in texts for one, param in known.items() if one in text), None)


def _has_secret(what: str, step: str, param: str) -> PermanentFailure:
    message = (
        f"expected {what} of {step} to have no sensitive parameter in it, got: the value of {param}. "
        "Outputs are stored and shown as they are: leave it out of what the step puts out."
    )
    return PermanentFailure(message, error_class="validation_error")


def _refused(step: str, name: str, wrong: BaseException) -> PermanentFailure:
    kind = getattr(wrong, "kind", None)
    got = "one that is nested too deeply" if isinstance(wrong, RecursionError) else "one that cannot be written down"
    message = (
        f"expected the output {name} of {step} to be made of values that can be stored, got: "
        f"{got if kind is None else f'one of type {kind}'}. Put out plain values: mappings, lists, texts, numbers, dates."
    )
    return PermanentFailure(message, error_class="validation_error")


def _culprit(outputs: Mapping[str, Any], codec: Codec) -> str:
    for name, value in outputs.items():
        try:
            codec.keep(value)
        except _UNFIT:
            return name
    return ", ".join(outputs)


def _is_large(value: Any) -> bool:
    """Whether this is a list that would not be small as JSON, judged by its first rows."""
    if not isinstance(value, list) or len(value) < 100:
        return False
    try:
        sample = sum(len(repr(one)) for one in value[:: max(1, len(value) // 50)][:50]) / 50
    except RecursionError:
        return False
    return sample * len(value) > SMALL


def _table(rows: list[Any], codec: Codec) -> tuple[str, bytes]:
    found = _as_parquet(rows)
    if found is not None:
        return "parquet", found
    kept = codec.keep(rows)
    if lacking := kept.lacks({}):
        raise Unstorable(type(rows), f" with {', '.join(lacking)}")
    return "json", kept.data


_EXACT = (str, int, float, bool, bytes)  # types that Parquet brings back as they are


def _as_parquet(rows: list[Any]) -> bytes | None:
    """The rows as Parquet, if every one has the same columns and each column one type; None for others."""
    first = rows[0]
    if type(first) is not dict or not first or not all(type(name) is str for name in first):
        return None
    names = tuple(first)
    kinds: dict[str, type] = {}
    for row in rows:
        if type(row) is not dict or tuple(row) != names:
            return None
        for name, value in row.items():
            kind = type(value)
            if value is None:
                continue
            if kind not in _EXACT or kinds.setdefault(name, kind) is not kind:
                return None
            if kind is int and not -(2**63) <= value < 2**63:
                return None
    if len(kinds) < len(names):  # a column of nothing has no type
        return None
    from outlast.components.parquet import table_bytes

    return table_bytes(rows, kinds)


class Outputs(Mapping[str, Any]):
    """What a step has put out. A table is read when it is asked for, and not kept."""

    def __init__(self, data: bytes, codec: Codec, part: Callable[[str], bytes | None]) -> None:
        parts: dict[str, bytes] = {}
        if data.startswith(_MAGIC):
            data, parts = _unpacked(data)
        self._data, self._codec = data, codec
        found = self._decoded()
        self._small: dict[str, Any] = found["values"]
        self._tables: dict[str, str] = found["tables"]
        self._part = parts.get if parts else part

    def __getitem__(self, name: str) -> Any:
        if name not in self._tables:
            value = self._small[name]
            # Whoever gets it may change it: the next one gets what is on record.
            return self._decoded()["values"][name] if isinstance(value, list | dict | set | bytearray) else value
        data = self._part(name)
        if data is None:
            raise PermanentFailure(
                f"the table {name} that a step has put out is not on record any more", error_class="data_error"
            )
        if self._tables[name] == "json":
            return self._codec.bring_back(data, {})
        from outlast.components.parquet import rows_of_bytes

        return rows_of_bytes(self._codec.unseal(data))

    def _decoded(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._codec.bring_back(self._data, {})
        except Lost as lost:
            message = f"what a step has put out cannot come back, because {lost}"
            raise PermanentFailure(message, error_class="data_error") from None
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*self._small, *self._tables))

    def __len__(self) -> int:
        return len(self._small) + len(self._tables)

    def __repr__(self) -> str:
        return f"<outputs: {', '.join(self) or 'none'}>"


def _unpacked(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    pieces: list[bytes] = []
    at = len(_MAGIC)
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        pieces.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    names = [one.decode(errors="surrogatepass") for one in pieces[1::2]]
    return pieces[0], dict(zip(names, pieces[2::2], strict=True))
