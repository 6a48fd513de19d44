"""What the folders of compilers tell of single entries: which key, when it was written, how long it took, who loads it.

inductor, triton and vLLM tell hits and misses themselves (the agent's group "jit"). These tell it only by their files:

cache             key                    miss                     compile time             hit
FlashInfer        the module's name      a new library            .ninja_log               its library is mapped
torch extensions  the library's name     a new library            .ninja_log               its library is mapped
DeepGEMM          kernel.<name>.<hash>   a new kernel.cubin       kernel.cu to the cubin   not told: the cubin is read
HIP (comgr)       llvmcache-<hash>       a new entry              not told                 not told: the entry is read
CUDA              <hex>/<hex>/<hash>     a new entry              not told                 not told: the entry is read
MIOpen            kernel name and args   a new row, a new object  not told                 not told: the row is read
MIOpen db         problem                a new line               not told                 not told: the line is read

When a file was read last (its access time) proves nothing: with the usual mount option relatime the second read of a
day leaves it as it was, and a backup's read looks like the compiler's.

Sources: flashinfer jit/core.py and jit/env.py, torch utils/cpp_extension.py, ninja build_log.cc, deep_gemm
csrc/jit/compiler.hpp, comgr-cache.cpp and llvm Support/Caching.cpp, MIOpen binary_cache.cpp, kern_db.hpp and
db_record.cpp. NVIDIA documents the folder of its cache and not what lies in it; its layout is as users have traced it.
No GPU has run any of this. ninja, torch's extensions and a C++ module that FlashInfer 0.7.4 built were real; the
others' files were made after these sources.

Everything is read only and bounded, and nothing that is read is executed or unpickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokentrace.probes._caches import entries_of

#: Entries of one cache that are looked at, and for how long.
MAX_FILES = 20_000
MAX_SECONDS = 0.5
#: A key or file name that is longer is cut: it is shown to people.
MAX_KEY = 160


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled thing in a cache. `path` is as the serving process names it; `written_ns` is unix ns.

    `took_ns` is how long it was compiled by the cache's own account, None where its files do not tell.
    """

    key: str
    path: str
    written_ns: int
    took_ns: int | None = None


@dataclass(slots=True)
class Entries:
    """What one cache holds. `complete` is False when the bounds ended the look; `problem` says what was not read."""

    entries: list[Entry] = field(default_factory=list)
    complete: bool = True
    problem: str = ""


@dataclass(slots=True)
class Bounds:
    """How much may still be looked at. One for each cache."""

    files: int = MAX_FILES
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def over(self) -> bool:
        return self.files <= 0 or time.monotonic() > self.deadline


def listing(folder: str, found: Entries, bounds: Bounds) -> Iterator[os.DirEntry[str]]:
    """The folder's entries within the bounds; what could not be read is said in `found`. Never raises.

    `entry.path` is of no use, join the folder and `entry.name`. A folder that goes meanwhile is no problem.
    """
    try:
        with entries_of(folder) as (_, entries):
            for entry in entries:
                bounds.files -= 1
                if bounds.over():
                    found.complete = False
                    return
                yield entry
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        found.complete = False
        found.problem = found.problem or f"not all of it can be read: {error.strerror}"


def written_ns(entry: os.DirEntry[str]) -> int | None:
    """Modification time in unix ns of a plain file; None for all else, and for what is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns if entry.is_file(follow_symlinks=False) else None
    except OSError:
        return None


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def head(path: str, most: int) -> bytes:
    """The first `most` bytes of a plain file, b"" when it cannot be read. Opening a pipe would wait, so it is not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(most)
        except OSError:
            return b""


def shown(key: str) -> str:
    """A key as one may print it: no control characters, not too long."""
    text = "".join(letter if letter.isprintable() else "?" for letter in key[: MAX_KEY + 1])
    return text if len(text) <= MAX_KEY else text[: MAX_KEY - 1] + "…"
