"""A file appears whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from tokentrace.errors import ExportError, UsageError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` when the block ends, and leaves it as it was when the block fails.

    A name that ends in .gz is compressed, without a time stamp, so that the same trace gives the same bytes.
    Raises UsageError when the folder cannot be written, ExportError when the disk is full.
    """
    folder = path.parent
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
    except OSError as error:
        raise _unwritable(path, error) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as raw:
            if path.name.endswith(".gz"):
                packed = gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=raw, mtime=0)
                with packed, io.BufferedWriter(cast(io.RawIOBase, packed), 1 << 20) as buffered:
                    yield cast(BinaryIO, buffered)
            else:
                yield cast(BinaryIO, raw)
            raw.flush()
            os.fsync(raw.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """mkstemp makes files only the owner can read; a saved trace gets the rights the user's other files get."""
    for line in Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else ():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def _unwritable(path: Path, error: OSError) -> UsageError | ExportError:
    reason = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return UsageError(f"{path} cannot be written: there is no folder {path.parent}", fix=f"mkdir -p {path.parent}")
    if isinstance(error, PermissionError | IsADirectoryError):
        return UsageError(f"{path} cannot be written: {reason}", fix="choose a file in a folder of your own with -o")
    return ExportError(f"{path} was not written: {reason}", fix="free some space, or choose another disk with -o")
