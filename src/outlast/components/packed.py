"""
Compressed files: ``.gz`` and ``.zst``, read as a stream, and written in pieces that each stand alone.

A batch is packed by itself and appended: many members of one gzip file, many frames of one zstd file. Every tool reads
them as one, and the file can be cut off behind any of them.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outlast.components.reading import missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

PACKED = (".gz", ".zst")
_PIECE = 1 << 20  # bytes that are unpacked at a time


def inner(path: str | Path) -> str:
    """What kind of file it is, whether it is compressed or not: ``.csv`` for ``a.csv.gz``."""
    path = Path(path)
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def opened(path: Path) -> IO[bytes]:
    """The content of the file, a stream of bytes."""
    match path.suffix.lower():
        case ".gz":
            return cast("IO[bytes]", gzip.open(path))
        case ".zst":
            return _zstd().open(path)  # type: ignore[no-any-return]
        case _:
            return path.open("rb")


def unpacked_size(path: Path, most: int) -> int:
    """
    How many bytes the file has once it is unpacked, counted up to `most` and one piece: a packed one may be a thousand
    times as long as it looks. Damaged files are reported when they are read.
    """
    if path.suffix.lower() not in PACKED:
        return path.stat().st_size
    check(path)
    size = 0
    with opened(path) as stream:
        try:
            while size <= most and (piece := stream.read(_PIECE)):
                size += len(piece)
        except Exception as error:
            if not is_damage(error):
                raise
    return size


def packer(path: Path) -> Callable[[bytes], bytes] | None:
    """How bytes that are appended to this file are packed; None if they are not."""
    match path.suffix.lower():
        case ".gz":
            return lambda data: gzip.compress(data, compresslevel=6, mtime=0)
        case ".zst":
            zstd = _zstd()
            sure = {zstd.CompressionParameter.checksum_flag: 1}  # damage is noticed, as in a gzip file
            return lambda data: zstd.compress(data, options=sure)
        case _:
            return None


def is_damage(error: Exception) -> bool:
    """Whether a compressed file is cut off or broken."""
    return isinstance(error, EOFError | gzip.BadGzipFile | zlib.error) or type(error).__name__ == "ZstdError"


def check(path: Path) -> None:
    """Complain now if what is needed for this file is not installed."""
    if path.suffix.lower() == ".zst":
        _zstd()


def _zstd() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise missing("a file that ends in .zst", "backports.zstd", "zstd") from None
    return zstd
