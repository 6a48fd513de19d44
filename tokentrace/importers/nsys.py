"""Nsight Systems sqlite exports: CUPTI_ACTIVITY_KIND_* tables and NVTX ranges, as columns.

Correlation ids count per process there: the key is (process, id), and a thread's id without its low 24 bits is its
process. Column names are looked up, not assumed: they changed between Nsight 2021 and 2026.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.errors import UsageError
from tokentrace.importers import _source, columns
from tokentrace.importers.columns import NONE, Array, Events, Lost, Parts
from tokentrace.wording import plural

MAGIC = b"SQLite format 3\0"
_UNPACKED_LIMIT = 64 << 30
_BLOCK = 200_000
_COPY = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
         11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD"}  # fmt: skip
_SYNC = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_RANGES = (59, 60, 70, 71)  # NvtxPushPopRange, NvtxStartEndRange and their text forms
#: torch.autograd.profiler.emit_nvtx appends ", seq = 5, op_id = 314290, sizes = [[1, 2]]".
_EMIT_NVTX = re.compile(r"^(.*?)(?:, seq = -?\d+)?(?:, op_id = -?\d+)?(?:, sizes = (\[.*\])[^\]]*)?$", re.DOTALL)
#: sqlite puts damaged names into its messages as they are, and Python then fails to decode the message.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


def read(
    path: Path,
    *,
    window_ns: tuple[int, int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Events:
    """All kernels, copies, calls, synchronisations and NVTX ranges of an export.

    `window_ns` counts from the first event. Raises UsageError when it is no such export or too damaged to open.
    """
    lost = Lost()
    with _plain(path, lost, progress) as file:
        try:
            with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
                database.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return _Export(database, path.name, lost, window_ns).read(file.stat().st_size, progress)
        except _DAMAGE as error:
            raise UsageError(
                f"{path.name} is a damaged sqlite file: {columns.clean(str(error), 200)}",
                fix="export it again with 'nsys export --type sqlite'",
            ) from error


@contextmanager
def _plain(path: Path, lost: Lost, progress: Callable[[int], None] | None) -> Iterator[Path]:
    """The file itself, or its unpacked copy in a temporary folder."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            yield path.resolve()
            return
    with tempfile.TemporaryDirectory(prefix="tokentrace-") as folder:
        copy = Path(folder) / "export.sqlite"
        size = 0
        with copy.open("wb") as out:
            for piece in _source.chunks(path, lost):
                size += len(piece)
                if size > _UNPACKED_LIMIT:
                    raise UsageError(
                        f"{path.name} unpacks to more than {_UNPACKED_LIMIT >> 30} GiB", fix="unpack it by hand first"
                    )
                try:
                    out.write(piece)
                    out.flush()
                except OSError as error:
                    with suppress(OSError):
                        out.close()
                    raise UsageError(
                        f"{path.name} cannot be unpacked into {Path(folder).parent}: {error.strerror}",
                        fix="free some space there, or set TMPDIR to a folder that has it",
                    ) from error
                if progress:
                    progress(size)
        yield copy


class _Export:
    def __init__(self, database: sqlite3.Connection, name: str, lost: Lost, window_ns: tuple[int, int] | None) -> None:
        self.database = database
        self.name = name
        self.lost = lost
        self.window: tuple[int, int] | None = None
        self.wanted = window_ns
        self.parts = Parts()
        self.graph_traces = 0
        self.strings: dict[int, str] = {}
        self.processes = columns.Interner()
        self.tables = {str(row[0]) for row in database.execute("select name from sqlite_master where type = 'table'")}

    def read(self, size: int, progress: Callable[[int], None] | None) -> Events:
        """`size` is the file's, in bytes."""
        if not any(table.startswith(("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS")) for table in self.tables):
            raise UsageError(
                f"{self.name} is a sqlite file, but no Nsight Systems export: there are no CUPTI tables",
                fix="make one with 'nsys export --type sqlite REPORT.nsys-rep'",
            )
        if "StringIds" in self.tables:
            self.strings = {row[0]: str(row[1]) for row in self._rows("select id, value from StringIds")}
        if self.wanted is not None:
            first = self._first()
            self.window = (first + self.wanted[0], first + self.wanted[1])
        tables = (self._kernels, self._copies, self._memsets, self._calls, self._syncs, self._nvtx, self._graphs)
        for done, read in enumerate(tables, 1):
            try:
                read()
            except _DAMAGE as error:
                told = f"a table could not be read to its end: {columns.clean(str(error), 120)}"
                self.lost.add(0, told, torn=True)
            if progress:
                progress(size * done // len(tables))
        begin = self.window[0] if self.window else -(2**62)
        return self.parts.finish(
            self.name, base_ns=self._base(), facts=self._facts(), lost=self.lost, window_begin=begin
        )

    def _rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        cursor = self.database.execute(query, values)
        while block := cursor.fetchmany(_BLOCK):
            yield from block

    def _first(self) -> int:
        found = []
        for table in sorted(self.tables):
            if table in _TABLES:
                value = self.database.execute(f'select min(start) from "{table}"').fetchone()[0]
                if isinstance(value, int):
                    found.append(value)
        return min(found, default=0)

    def _select(self, table: str, wanted: Sequence[str], where: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Blocks of rows with these columns, None where this export lacks one. `a|b` takes the first there is."""
        if table not in self.tables:
            return
        have = {str(row[1]) for row in self.database.execute(f'pragma table_info("{table}")')}
        if "start" not in have:
            return
        chosen = []
        for names in wanted:
            found = next((name for name in names.split("|") if name in have), None)
            chosen.append(f'"{found}"' if found else "null")
        conditions = [where] if where else []
        values: list[Any] = []
        if self.window:
            # Calls may come before the window when their kernels lie in it; the caller prunes the rest.
            back = columns.LOOK_BACK_NS if table == "CUPTI_ACTIVITY_KIND_RUNTIME" else 0
            conditions.append("start >= ? and start < ?")
            values = [self.window[0] - back, self.window[1]]
        query = f'select {", ".join(chosen)} from "{table}"'
        if conditions:
            query += " where " + " and ".join(conditions)
        cursor = self.database.execute(query, values)
        while block := cursor.fetchmany(_BLOCK):
            yield block

    def _timed(self, block: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows that begin with two times; the others are lost."""
        good = [row for row in block if isinstance(row[0], int) and isinstance(row[1], int)]
        if len(good) != len(block):
            self.lost.add(len(block) - len(good), "rows without a time")
        return good

    def _gpu(self, kind: int, table: str, name: Callable[[tuple[Any, ...]], str], extra: Sequence[str]) -> None:
        base = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes")
        parts = self.parts
        for block in self._select(table, (*base, *extra)):
            good = self._timed(block)
            devices = [parts.devices[row[2]] for row in good]
            parts.add(
                kind,
                np.array([row[0] for row in good], np.int64),
                np.array([row[1] for row in good], np.int64),
                name=np.array([parts.names[name(row)] for row in good], np.int32),
                track=np.array([parts.tracks["gpu", row[2]] for row in good], np.int32),
                device=np.array(devices, np.int32),
                stream=np.array([parts.streams[row[3]] for row in good], np.int32),
                correlation=self._keys([row[5] for row in good], [row[4] for row in good]),
                bytes=np.array([row[6] if isinstance(row[6], int) else -1 for row in good], np.int64),
                detail=np.array([self._geometry(row[len(base) :]) for row in good], np.int32)
                if kind == gpu_events.KERNEL else np.full(len(good), -1, np.int32),
            )  # fmt: skip

    def _geometry(self, extra: tuple[Any, ...]) -> int:
        grid, block = extra[2:5], extra[5:8]
        if not all(isinstance(value, int) for value in (*grid, *block)):
            return -1
        return self.parts.details[f"[{','.join(map(str, grid))}] x [{','.join(map(str, block))}]"]

    def _keys(self, globals_: list[Any], correlations: list[Any]) -> Array:
        processes = self.processes
        return np.array(
            [
                NONE
                if not isinstance(c, int) or not isinstance(g, int)
                else (processes[g >> 24] << 40) | (c & 0xFFFFFFFFFF)
                for g, c in zip(globals_, correlations, strict=True)
            ],
            np.int64,
        )

    def _kernels(self) -> None:
        self._gpu(gpu_events.KERNEL, "CUPTI_ACTIVITY_KIND_KERNEL",
                  lambda row: self._string(row[7]) or self._string(row[8]) or "kernel",
                  ("demangledName|shortName|name", "shortName|name", "gridX", "gridY", "gridZ",
                   "blockX", "blockY", "blockZ"))  # fmt: skip

    def _copies(self) -> None:
        def name(row: tuple[Any, ...]) -> str:
            kind = f"Memcpy {_COPY.get(row[7], 'unknown')}"
            return kind if row[8] is None else f"{kind} ({_MEMORY.get(row[8], '?')} -> {_MEMORY.get(row[9], '?')})"

        self._gpu(gpu_events.MEMCPY, "CUPTI_ACTIVITY_KIND_MEMCPY", name, ("copyKind", "srcKind", "dstKind"))

    def _memsets(self) -> None:
        self._gpu(gpu_events.MEMSET, "CUPTI_ACTIVITY_KIND_MEMSET", lambda row: "Memset", ())

    def _syncs(self) -> None:
        self._gpu(gpu_events.SYNC, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                  lambda row: _SYNC.get(row[7], "Sync"), ("syncType",))  # fmt: skip

    def _graphs(self) -> None:
        """Graph executions recorded as a whole: the kernels in them were not recorded, so they are no kernels."""
        before = self.parts.rows
        self._gpu(gpu_events.GPU_ANNOTATION, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                  lambda row: f"graph {row[7]}", ("graphId",))  # fmt: skip
        self.graph_traces = self.parts.rows - before

    def _string(self, ident: Any) -> str:
        return self.strings.get(ident, "") if isinstance(ident, int) else str(ident or "")

    def _calls(self) -> None:
        parts = self.parts
        for block in self._select(
            "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            good = self._timed(block)
            parts.add(
                gpu_events.RUNTIME,
                np.array([row[0] for row in good], np.int64),
                np.array([row[1] for row in good], np.int64),
                name=np.array([parts.names[self._string(row[4])] for row in good], np.int32),
                track=np.array([parts.tracks[_track(row[2])] for row in good], np.int32),
                correlation=self._keys([row[2] for row in good], [row[3] for row in good]),
            )

    def _nvtx(self) -> None:
        parts = self.parts
        marks = f"eventType in ({', '.join(map(str, _RANGES))})"
        for block in self._select("NVTX_EVENTS", ("start", "end", "globalTid", "text", "textId"), marks):
            good = [row for row in block if isinstance(row[0], int) and isinstance(row[1], int)]
            if len(good) != len(block):
                self.lost.add(0, f"{plural(len(block) - len(good), 'NVTX range')} still open at the end")
            kinds, names, details = [], [], []
            for row in good:
                text = str(row[3]) if row[3] is not None else self._string(row[4])
                match = _EMIT_NVTX.match(text)
                name = match[1] if match else text
                kinds.append(gpu_events.OPERATOR if "::" in name or name != text else gpu_events.ANNOTATION)
                names.append(parts.names[name])
                details.append(parts.details[match[2]] if match and match[2] else -1)
            parts.add(
                np.array(kinds, np.int8),
                np.array([row[0] for row in good], np.int64),
                np.array([row[1] for row in good], np.int64),
                name=np.array(names, np.int32),
                track=np.array([parts.tracks[_track(row[2])] for row in good], np.int32),
                detail=np.array(details, np.int32),
            )

    def _base(self) -> int | None:
        if "TARGET_INFO_SESSION_START_TIME" not in self.tables:
            return None
        row = self.database.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
        return row[0] if row and isinstance(row[0], int) else None

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"graph_traces": self.graph_traces}
        if "TARGET_INFO_GPU" in self.tables:
            rows = self.database.execute("select name from TARGET_INFO_GPU").fetchmany(64)
            facts["devices"] = [columns.clean(str(row[0]), 80) for row in rows]
        return facts


_TABLES = frozenset(
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE")
) | {"NVTX_EVENTS"}


def _track(global_tid: Any) -> tuple[int, int]:
    """(process id, thread id) out of a serialised id: 24 bits each, above them the virtual machine."""
    value = global_tid if isinstance(global_tid, int) else 0
    return (value >> 24) & 0xFFFFFF, value & 0xFFFFFF
