"""MIOpen's two folders: the kernels it compiled, and what it found out about problems.

Kernels   <version>/<architecture>_<CUs>.ukdb, SQLite: table kern_db with kernel_name, kernel_args, kernel_blob,
          kernel_hash (MD5 of the blob) and uncompressed_size; a kernel's key is its name with its arguments. A MIOpen
          that was built without SQLite keeps <version>/<MD5 of device and arguments>/<name>.o instead.
Problems  *.ufdb.txt (which solvers there are) and *.udb.txt (their tuned parameters): lines key=id:values;id:values

Rows and lines have no times, so what is new is what was not there before: `state` first, `since` afterwards. SQLite
opens the file read-only and as immutable: no lock, no journal, nothing written. A file that MIOpen is writing just
then, which its journal shows, is not read, and the cache is told as not wholly seen. No MIOpen wrote the files of the
tests; they follow its sources.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tokentrace.probes._cache_entries import (
    MAX_KEY,
    Bounds,
    Entries,
    Entry,
    head,
    is_folder,
    listing,
    shown,
    written_ns,
)

_KERNELS = re.compile(r".+\.u?kdb")
_PROBLEMS = re.compile(r".+\.(ufdb|udb|fdb|db)\.txt")
_OBJECTS = re.compile(r"[0-9a-f]{32}")
_DEEPEST = 3
MAX_TEXT_BYTES = 32 * 2**20
MAX_ROWS = 200
#: Virtual machine steps of SQLite between two looks at the clock.
_STEPS = 5_000


@dataclass(slots=True)
class State:
    """How MIOpen's files stood. `last_row` and `lines` are by file, as we reach it."""

    last_row: dict[str, int] = field(default_factory=dict)
    lines: dict[str, frozenset[int]] = field(default_factory=dict)  # hashes of keys
    complete: bool = True
    problem: str = ""
    taken_ns: int = 0


@dataclass(slots=True)
class _Files:
    kernels: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    objects: list[tuple[str, int]] = field(default_factory=list)


def state(folder: str, bounds: Bounds) -> State:
    """How the folder stands now. Never raises."""
    found = Entries()
    now = State(taken_ns=time.time_ns())
    files = _files(folder, found, bounds)
    for path in files.kernels:
        try:
            now.last_row[path] = _last_row(path, bounds)
        except (sqlite3.Error, ValueError) as error:
            found.complete, found.problem = False, found.problem or _why(path, error)
    for path in _in_time(files.problems, found, bounds):
        now.lines[path] = frozenset(map(hash, keys_of(head(path, MAX_TEXT_BYTES))))
    now.complete, now.problem = found.complete, found.problem
    return now


def _in_time(paths: list[str], found: Entries, bounds: Bounds) -> Iterator[str]:
    """These paths while there is time; `found` is not complete when it ends before them."""
    for path in paths:
        if bounds.over():
            found.complete = False
            return
        yield path


def since(before: State, folder: str, told: str, bounds: Bounds) -> Entries:
    """Rows, lines and objects that were not there before; `written_ns` is their file's. Never raises."""
    found = Entries(complete=before.complete, problem=before.problem)
    files = _files(folder, found, bounds)
    for path in files.kernels:
        if path not in before.last_row and not before.complete:
            continue  # it may have been there, and how far it went is not known
        name = told + path[len(folder) :]
        try:
            keys = _rows_after(path, before.last_row.get(path, 0), bounds)
            found.entries += [Entry(key, name, _changed_ns(path)) for key in keys]
            found.complete = found.complete and len(keys) < MAX_ROWS
        except (sqlite3.Error, ValueError) as error:
            found.complete, found.problem = False, found.problem or _why(path, error)
    for path in _in_time(files.problems, found, bounds):
        if path not in before.lines and not before.complete:
            continue
        known = before.lines.get(path, frozenset())
        new = [key for key in keys_of(head(path, MAX_TEXT_BYTES)) if hash(key) not in known]
        name, changed = told + path[len(folder) :], _changed_ns(path)
        found.entries += [Entry(shown(key), name, changed) for key in dict.fromkeys(new)]
    for path, made in files.objects:
        if made >= before.taken_ns:
            found.entries.append(Entry(shown(os.path.relpath(path, folder)), told + path[len(folder) :], made))
    return found


def keys_of(data: bytes) -> list[str]:
    """The keys of a text database, in its order; a line without one is passed over, as MIOpen does. Never raises."""
    keys = []
    for line in data.split(b"\n"):
        key, separator, values = line.partition(b"=")
        if separator and key and b":" in values:
            keys.append(key[: 4 * MAX_KEY].decode("utf-8", "replace"))
    return keys


def _files(folder: str, found: Entries, bounds: Bounds) -> _Files:
    files = _Files()
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        objects = _OBJECTS.fullmatch(here.rpartition("/")[2]) is not None
        for entry in listing(here, found, bounds):
            path = f"{here}/{entry.name}"
            if is_folder(entry):
                if depth < _DEEPEST:
                    waiting.append((path, depth + 1))
            elif (made := written_ns(entry)) is None:
                continue
            elif _KERNELS.fullmatch(entry.name):
                files.kernels.append(path)
            elif _PROBLEMS.fullmatch(entry.name):
                files.problems.append(path)
            elif objects and entry.name.endswith(".o"):
                files.objects.append((path, made))
    return files


def _open(path: str, bounds: Bounds) -> sqlite3.Connection:
    """Raises sqlite3.Error, and ValueError for a file that is being written."""
    for ending in ("-journal", "-wal"):
        try:
            if Path(path + ending).stat().st_size:
                raise ValueError("it is being written")
        except OSError:
            continue
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True, timeout=0)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.set_progress_handler(bounds.over, _STEPS)
    connection.set_authorizer(_only_reading)
    return connection


def _only_reading(action: int, first: str | None, second: str | None, database: str | None, by: str | None) -> int:
    """A file from elsewhere may define a view of any kind under the table's name: that one is refused."""
    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK if by is None else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_READ:
        return sqlite3.SQLITE_OK if first == "kern_db" and by is None else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if second in ("max", "substr") else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY


def _last_row(path: str, bounds: Bounds) -> int:
    with closing(_open(path, bounds)) as connection:
        row = connection.execute("SELECT max(id) FROM kern_db").fetchone()
    return int(row[0]) if row and isinstance(row[0], int) else 0


def _rows_after(path: str, last: int, bounds: Bounds) -> list[str]:
    query = (f"SELECT substr(kernel_name, 1, {MAX_KEY}), substr(kernel_args, 1, {MAX_KEY}) FROM kern_db "
             f"WHERE id > ? ORDER BY id LIMIT {MAX_ROWS}")  # fmt: skip
    with closing(_open(path, bounds)) as connection:
        return [shown(f"{name} {arguments}".strip()) for name, arguments in connection.execute(query, (last,))]


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _why(path: str, error: Exception) -> str:
    return f"{os.path.basename(path)} cannot be read: {error}"  # noqa: PTH119
