"""What the caches that tell nothing themselves did in one pass: looked at after it, those of MIOpen before it too.

A miss is an entry that was written in the pass; for a library, it must also be mapped by a serving process then, and
for the other caches that compiler's own library must be, for the folders are shared with other programs. Where /proc
may not be read, every new entry counts, and `note` says so. A hit is a library that was mapped in the pass and is older
than it. What was mapped before the pass is told apart by the server's start: compiled since then, or found there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.host import proc
from tokentrace.model import Record
from tokentrace.probe import Agent
from tokentrace.probes._cache_entries import Bounds, Entries, Entry, hashed, loaded, miopen, ninja
from tokentrace.probes._caches import VARIABLES, CacheFolder, cache_folders

LAYER = 2
_READERS: dict[str, Callable[[str, str, Bounds], Entries]] = {
    "FlashInfer": ninja.read,
    "torch extensions": ninja.read,
    "DeepGEMM": hashed.deep_gemm,
    "HIP": hashed.comgr,
    "CUDA": hashed.cuda,
}
_LIBRARIES = ("FlashInfer", "torch extensions")
_MIOPEN = ("MIOpen", "MIOpen db")
_UNTOLD = "hits are not told by its files"
#: Of each cache: keys that are told, and spans that are made.
SHOWN = 5
MAX_RECORDS = 100


@dataclass(slots=True)
class Use:
    """One cache in one pass. Counts are None where they cannot be known; times are sums of what is known, in ns.

    `loaded` were mapped when the pass began: `found` of them older than the server, `paid` compiled since its start.
    `untimed` are misses whose time is not known. `keys` are the first few, the longest first, `more` counts the rest.
    """

    compiler: str
    path: str
    held: int | None = None
    complete: bool = True
    miss: int | None = 0
    miss_ns: int = 0
    hit: int | None = None
    saved_ns: int = 0
    loaded: int | None = None
    found: int | None = None
    found_ns: int = 0
    paid: int | None = None
    paid_ns: int = 0
    foreign: int = 0  # new entries of other programs
    untimed: int = 0
    keys: list[dict[str, Any]] = field(default_factory=list)
    more: int = 0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Process:
    key: str  # of the trace's processes
    pid: int  # as our /proc has it


class CacheWatch:
    """`begin` before the pass, `end` after it. Neither raises because of what lies in the folders."""

    def __init__(self) -> None:
        self.began_ns = 0
        self.root, self.mounts = "/", "/proc/self/mountinfo"
        self._processes: list[_Process] = []
        self._mapped: frozenset[str] | None = None
        self._miopen: dict[str, tuple[str, miopen.State]] = {}

    def begin(self, agent: Agent) -> None:
        self.began_ns = time.time_ns()
        members = getattr(agent, "members", ())
        self._processes = [_Process(one.process, one.pid_here) for one in members if one.pid_here]
        environment: Mapping[str, str] = {}
        if self._processes:
            first = self._processes[0].pid
            self.root, self.mounts = proc.root_of(first)
            with contextlib.suppress(OSError):
                environment = proc.environment(first, VARIABLES)
        self._mapped = loaded.of_all(one.pid for one in self._processes)
        for folder in cache_folders(environment or os.environ, root=self.root, mounts=self.mounts, max_files=0):
            if folder.compiler in _MIOPEN:
                state = miopen.state(self._here(folder), Bounds()) if _there(folder) else miopen.State()
                self._miopen[folder.compiler] = folder.path, state

    def end(self, folders: Iterable[CacheFolder], last_ns: int) -> tuple[list[Use], list[Record]]:
        """What each cache did until `last_ns` (unix ns), and the spans of what was compiled meanwhile. Nothing where
        `begin` was not called."""
        if not self.began_ns:
            return [], []
        mapped = {one.key: loaded.files(one.pid) for one in self._processes}
        known = [paths for paths in mapped.values() if paths is not None]
        now = frozenset().union(*known) if known else None
        uses: list[Use] = []
        records: list[Record] = []
        for folder in folders:
            if (folder.compiler not in _READERS and folder.compiler not in _MIOPEN) or not _there(folder):
                continue
            use = Use(folder.compiler, folder.path)
            entries = self._entries(folder, use)
            if folder.compiler in _LIBRARIES:
                new = self._libraries(use, entries, now, last_ns)
            else:
                new = self._others(use, entries, now, last_ns)
            _tell(use, new)
            records += [self._record(use, entry, mapped) for entry in _longest_first(new)[:MAX_RECORDS]]
            uses.append(use)
        return uses, records

    def _here(self, folder: CacheFolder) -> str:
        return folder.path if self.root == "/" else self.root + folder.path

    def _entries(self, folder: CacheFolder, use: Use) -> list[Entry]:
        if folder.compiler in _MIOPEN:
            path, before = self._miopen[folder.compiler]
            if path != folder.path:
                use.miss, use.note = None, "its rows have no times, and it was not looked at before the pass"
                return []
            found = miopen.since(before, self._here(folder), folder.path, Bounds())
        else:
            found = _READERS[folder.compiler](self._here(folder), folder.path, Bounds())
        use.complete = found.complete
        if folder.compiler not in _MIOPEN:  # of MIOpen only what is new is read
            use.held = len(found.entries)
        if not found.complete:
            use.note = found.problem or "it is too large to be looked through"
        return found.entries

    def _new(self, entries: Iterable[Entry], last_ns: int) -> list[Entry]:
        return [entry for entry in entries if self.began_ns <= entry.written_ns <= last_ns]

    def _libraries(
        self, use: Use, entries: list[Entry], now: frozenset[str] | None, last_ns: int
    ) -> list[Entry]:  # fmt: skip
        new = self._new(entries, last_ns)
        if now is None:
            _note(use, "which libraries the server has loaded may not be read, so that other programs' may count")
            return new
        mapped = [entry for entry in entries if self._is_mapped(entry, now)]
        before = self._mapped
        use.foreign = sum(entry not in mapped for entry in new)
        older = [entry for entry in mapped if entry.written_ns < self.began_ns]
        if before is not None:
            hits = [entry for entry in older if not self._is_mapped(entry, before)]
            use.hit, use.saved_ns = len(hits), _sum(hits)
            use.keys = [_key(entry, "hit") for entry in _longest_first(hits)[:SHOWN]]
            use.more = len(hits) - len(use.keys)
            older = [entry for entry in older if entry not in hits]
        use.loaded = len(older)
        starts = self._starts_ns()
        if starts:
            paid = [entry for entry in older if entry.written_ns >= min(starts)]
            found = [entry for entry in older if entry not in paid]
            use.paid, use.paid_ns, use.found, use.found_ns = len(paid), _sum(paid), len(found), _sum(found)
        return [entry for entry in new if entry in mapped]

    def _others(self, use: Use, entries: list[Entry], now: frozenset[str] | None, last_ns: int) -> list[Entry]:
        _note(use, _UNTOLD)
        new = self._new(entries, last_ns)
        if now is None:
            if new:
                _note(use, "whether the server uses it may not be read, so that other programs' entries may count")
        elif not loaded.uses(now, use.compiler):
            use.foreign = len(new)
            return []
        return new

    def _starts_ns(self) -> list[int]:
        """When the processes started that can be asked, unix ns."""
        found = []
        for one in self._processes:
            with contextlib.suppress(OSError):
                found.append(proc.started_ns(one.pid))
        return found

    def _is_mapped(self, entry: Entry, paths: frozenset[str]) -> bool:
        return loaded.has(paths, entry.path, self.root)

    def _record(self, use: Use, entry: Entry, mapped: Mapping[str, frozenset[str] | None]) -> Record:
        owner = next((key for key, paths in mapped.items() if paths and self._is_mapped(entry, paths)), "")
        owner = owner or (self._processes[0].key if self._processes else "")
        attributes: dict[str, Any] = {
            "tokentrace.jit.compiler": use.compiler,
            "tokentrace.jit.key": entry.key,
            "tokentrace.jit.result": "miss",
            "tokentrace.jit.cache": use.compiler,
            "tokentrace.jit.cache_dir": use.path,
            "tokentrace.jit.source": "files",
        }
        if entry.took_ns is None:
            return Record(f"cache {use.compiler} miss", LAYER, entry.written_ns, entry.written_ns, attributes,
                          process=owner, join="time")  # fmt: skip
        attributes["tokentrace.jit.compile_ms"] = entry.took_ns / 1e6
        return Record(f"compile {use.compiler}", LAYER, entry.written_ns - entry.took_ns, entry.written_ns, attributes,
                      process=owner, join="time")  # fmt: skip


def _there(folder: CacheFolder) -> bool:
    return folder.exists and not folder.disabled and folder.path.startswith("/")


def _tell(use: Use, new: list[Entry]) -> None:
    if use.miss is None:
        return
    use.miss, use.miss_ns = len(new), _sum(new)
    use.untimed = sum(entry.took_ns is None for entry in new)
    told = [_key(entry, "miss") for entry in _longest_first(new)]
    every = len(told) + len(use.keys) + use.more
    use.keys = [*told, *use.keys][:SHOWN]
    use.more = every - len(use.keys)


def _note(use: Use, why: str) -> None:
    use.note = f"{use.note}; {why}" if use.note else why


def _key(entry: Entry, result: str) -> dict[str, Any]:
    return {"key": entry.key, "result": result, "took_ns": entry.took_ns}


def _sum(entries: Sequence[Entry]) -> int:
    return sum(entry.took_ns or 0 for entry in entries)


def _longest_first(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (-(entry.took_ns or 0), entry.written_ns, entry.key))
