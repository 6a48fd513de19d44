"""Bytes of a recording in bounded pieces: plain or gzip, whole, cut, damaged or hostile."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokentrace.errors import UsageError
from tokentrace.importers.columns import Lost

CHUNK = 1 << 19  # measured from 128 KiB to 2 MiB: smaller costs calls, larger costs cache misses and memory
_LAYERS = 3  # gzip inside gzip, seen in the wild once; deeper is a bomb
#: A gzip stream that grows beyond this and by more than this factor is refused. Real recordings shrink 10 to 60 fold.
_BOMB_BYTES = 1 << 26
_BOMB_FACTOR = 150
_GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs.github.com/spec"


def chunks(path: Path, lost: Lost) -> Iterator[bytes]:
    """The plain bytes in pieces of about CHUNK. A cut or damaged gzip stream ends early and says so in `lost`."""
    plain: Iterator[bytes] = _file(path)
    for _ in range(_LAYERS):
        first = next(plain, b"")
        rest = _chain(first, plain)
        if first[:2] != _GZIP:
            yield from rest
            return
        plain = _gunzip(rest, lost, path)
    first = next(plain, b"")
    if first[:2] == _GZIP:
        raise UsageError(f"{path.name} is gzip inside gzip more than {_LAYERS} deep", fix="unpack it by hand first")
    yield first
    yield from plain


def ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, fetched while those before are worked on: zlib unpacks without holding the interpreter.

    Two are asked for at a time: a thread that has to wait for the interpreter before it may begin gains nothing, one
    that goes from a finished piece straight to the next does.
    """
    with ThreadPoolExecutor(1, "tokentrace-unpack") as worker:
        coming = deque(worker.submit(next, pieces, b"") for _ in range(2))
        while piece := coming.popleft().result():
            coming.append(worker.submit(next, pieces, b""))
            yield piece


def head(path: Path, size: int = 4096) -> bytes:
    """The first plain bytes, for telling what kind of file it is. Raises UsageError when nothing can be read."""
    try:
        if not path.is_file():
            raise UsageError(
                f"{path} is not a file" if path.exists() else f"{path} does not exist", fix="check the path"
            )
        if path.stat().st_size == 0:
            raise UsageError(
                f"{path.name} is an empty file: its writer died before it wrote anything",
                fix="record again and let the profiler finish",
            )
        lost = Lost()
        found = b""
        for piece in chunks(path, lost):
            found += piece
            if len(found) >= size:
                break
    except OSError as error:
        raise unreadable(path.name, error) from error
    if not found.strip():
        raise UsageError(
            f"{path.name} holds nothing: its writer died before it wrote anything",
            fix="record again and let the profiler finish",
        )
    if found.startswith(_LFS):
        raise UsageError(
            f"{path.name} is a Git LFS pointer, not the recording itself", fix="run 'git lfs pull' in its repository"
        )
    return found[:size]


def unreadable(name: object, error: OSError) -> UsageError:
    """What to tell of a file or folder that the system does not let us read."""
    return UsageError(f"{name} cannot be read: {error.strerror}", fix="check the path and its rights")


def _file(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while piece := file.read(CHUNK):
                yield piece
    except OSError as error:
        raise unreadable(path.name, error) from error


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _gunzip(packed: Iterator[bytes], lost: Lost, path: Path) -> Iterator[bytes]:
    stream = zlib.decompressobj(31)
    taken = given = 0
    fresh = True  # at the start of a member
    for piece in packed:
        taken += len(piece)
        while piece:
            before = stream.copy()
            try:
                plain = stream.decompress(piece, CHUNK)
            except zlib.error:
                saved = _up_to_damage(before, piece)
                if saved:
                    yield saved
                elif given == 0 and fresh:
                    raise UsageError(
                        f"{path.name} begins like gzip but cannot be unpacked", fix="copy or record it again"
                    ) from None
                lost.add(0, "the gzip stream is damaged: what came after the damage is lost", torn=True)
                return
            fresh = False
            given += len(plain)
            if given > _BOMB_BYTES and given > taken * _BOMB_FACTOR:
                raise UsageError(
                    f"{path.name} unpacks to more than {_BOMB_FACTOR} times its size and was refused",
                    fix="if it really is a recording, unpack it by hand first",
                )
            if plain:
                yield plain
            if stream.eof:
                piece = stream.unused_data
                if not piece.strip(b"\0"):
                    piece = b""
                elif piece[:1] != _GZIP[:1]:
                    lost.add(0, "bytes after the end of the gzip stream were ignored")
                    return
                stream = zlib.decompressobj(31)
                fresh = True
            else:
                piece = stream.unconsumed_tail
    # A new decompressor also reports eof = False: only a started member can be cut.
    if not fresh and not stream.eof:
        try:
            last = stream.flush()
        except zlib.error:
            last = b""
        if last:
            yield last
        lost.add(0, "the gzip stream is cut: its end is missing", torn=True)


def _up_to_damage(stream: zlib._Decompress, piece: bytes) -> bytes:
    """What a damaged piece yields before the damage: a failing call returns nothing, so feed it little by little."""
    found: list[bytes] = []
    view = memoryview(piece)
    try:
        for at in range(0, len(piece), 64):
            part: bytes = bytes(view[at : at + 64])
            while part:
                found.append(stream.decompress(part, CHUNK))
                part = stream.unconsumed_tail
            if stream.eof:
                break
    except zlib.error:
        pass
    return b"".join(found)
