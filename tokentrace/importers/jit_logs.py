"""Compile logs written by others: TORCH_TRACE (dynamo, AOTAutograd, inductor) and Triton's structured trace.

TORCH_TRACE is text: a glog line with one JSON object, then its payload in lines that begin with a tab. Only payloads of
`chromium_event` are read: begin and end of each compile phase, and an instant for each cache lookup. Stacks, source
code, guards and file names, which make up most of such a log, are never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from tokentrace.errors import UsageError
from tokentrace.importers import _source
from tokentrace.importers._numbers import decimal_ns
from tokentrace.importers.columns import Lost, clean
from tokentrace.probe import Finding
from tokentrace.wording import duration

_LINE = re.compile(rb"^[VIWEF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]]{0,300}\] (\{.*)$")
_TRITON = re.compile(rb"^\s*\{.*\"event_type\"\s*:\s*\"(compilation|launch|ir_analysis|autotune_analysis)\"", re.DOTALL)
_CACHE = re.compile(r"^(fx_graph|autograd|aotautograd|pgo|inductor\w*|triton\w*)_cache_(hit|miss|bypass|disabled)$")
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?")
_LONGEST_LINE = 64 << 20
_LIMIT = 200_000
#: Phases by the part of the compiler they belong to; the rest is dynamo's.
_AOT = re.compile(r"aot|backend_compile|joint_graph|create_aot")
_INDUCTOR = re.compile(
    r"inductor|GraphLowering|Scheduler|code_gen|codegen|fx_codegen|compile_fx|PyCodeCache|post_grad|pre_grad"
)
_TRITON_PHASE = re.compile(r"[Tt]riton|async_compile|AsyncCompile|CachingAutotuner|autotun")
_CACHE_OF = {"fx": "inductor", "autograd": "aotautograd", "aotautograd": "aotautograd", "pgo": "dynamo"}


@dataclass(slots=True)
class JitEvent:
    """One phase of a compile, or one cache lookup (`result` hit, miss, bypass; no length unless known). ns, unix."""

    compiler: str
    name: str
    start_ns: int
    end_ns: int
    result: str = ""
    key: str = ""
    saved_ns: int = 0
    compile_id: str = ""
    reason: str = ""
    parent: int = -1
    resolution_ns: int = 1
    unfinished: bool = False

    @property
    def span_name(self) -> str:
        if self.result:
            return f"cache {self.compiler} {self.result}"
        return f"compile {self.name}"

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tokentrace.jit.compiler": self.compiler,
            "tokentrace.duration_ns": self.end_ns - self.start_ns,
        }
        told = {
            "phase": self.name,
            "result": self.result,
            "key": self.key,
            "saved_ns": self.saved_ns,
            "compile_id": self.compile_id,
            "reason": self.reason,
            "unfinished": self.unfinished,
        }
        for key, value in told.items():
            if value:
                found[f"tokentrace.jit.{key}"] = value
        if self.resolution_ns > 1:
            found["tokentrace.jit.resolution_ns"] = self.resolution_ns
        return found


@dataclass(slots=True)
class JitLog:
    """All events of one log; a parent stands before its children."""

    source: str
    kind: str
    events: list[JitEvent]
    lost: Lost = field(default_factory=Lost)
    notes: list[str] = field(default_factory=list)  # on what its times rest


class _Args(msgspec.Struct, gc=False):
    compile_id: str | None = None
    key: str | None = None
    cache_state: str | None = None
    time_saved_ns: float | None = None
    cache_bypass_reason: str | None = None


class _Chromium(msgspec.Struct, gc=False):
    ph: str
    name: str
    ts: msgspec.Raw
    args: _Args | None = None
    pid: int | str = 0
    tid: int | str = 0


class _Entry(msgspec.Struct, gc=False):
    chromium_event: dict[str, Any] | None = None


class _TritonMetadata(msgspec.Struct, gc=False):
    name: str = ""
    hash: str = ""
    cache_hit: bool | None = None


class _TritonTimes(msgspec.Struct, gc=False):
    ir_initialization: int = 0  # all times are microseconds
    lowering_stages: list[tuple[str, int]] = []
    store_results: int = 0


class _TritonPayload(msgspec.Struct, gc=False):
    metadata: _TritonMetadata = msgspec.field(default_factory=_TritonMetadata)
    times: _TritonTimes = msgspec.field(default_factory=_TritonTimes)


class _TritonEvent(msgspec.Struct, gc=False):
    event_type: str
    timestamp: str = ""
    payload: _TritonPayload | None = None


def kind_of(head: bytes) -> str:
    """'torch_trace', 'triton' or '' by the first bytes of a file."""
    first = head.lstrip().split(b"\n", 1)[0]
    if _LINE.match(first):
        return "torch_trace"
    return "triton" if _TRITON.match(head[:4096]) else ""


def read(path: Path, zone: tzinfo | None = None) -> JitLog:
    """Read a compile log. Raises UsageError when it is none, or holds no compile event.

    `zone`: of a Triton log, whose times are local ones though a Z stands behind them (it writes them with
    `logging.Formatter.formatTime`); without it they are read as UTC, and `notes` says so.
    """
    kind = kind_of(_source.head(path))
    lost = Lost()
    notes = []
    lines = _lines(_source.chunks(path, lost), lost)
    if kind == "torch_trace":
        events = _torch_trace(lines, lost)
    elif kind == "triton":
        events = _triton(lines, lost, zone or timezone.utc)
        notes.append(f"its times have no zone that holds and were read as {zone or 'UTC'}")
    else:
        raise UsageError(f"{path.name} is no compile log", fix="give a TORCH_TRACE log or a Triton structured trace")
    if not events:
        raise UsageError(
            f"{path.name} is a compile log, but no compile event is in it",
            fix="record it while something is compiled (TORCH_TRACE=FOLDER, TRITON_TRACE=FOLDER)",
        )
    return JitLog(path.name, kind, events, lost, notes)


def _lines(pieces: Iterator[bytes], lost: Lost) -> Iterator[bytes]:
    rest = b""
    skipping = False
    for piece in pieces:
        parts = (rest + piece).split(b"\n")
        rest = parts.pop()
        if skipping and parts:
            parts.pop(0)
            skipping = False
        yield from parts
        if len(rest) > _LONGEST_LINE:
            lost.add(1, "a line was too long and was skipped")
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest


def _torch_trace(lines: Iterator[bytes], lost: Lost) -> list[JitEvent]:
    builder = _Pairs(lost)
    payload: list[bytes] | None = None
    for line in lines:
        if line.startswith(b"\t"):
            if payload is not None:
                payload.append(line[1:])
            continue
        if payload is not None:
            builder.add(b"\n".join(payload))
            payload = None
        match = _LINE.match(line)
        if match and b"chromium_event" in match[1][:200]:
            try:
                entry = msgspec.json.decode(match[1], type=_Entry)
            except (msgspec.DecodeError, RecursionError):
                lost.add(1, "damaged lines were skipped")
                continue
            if entry.chromium_event is not None:
                payload = []
    if payload is not None:
        builder.add(b"\n".join(payload))
    return builder.finish()


class _Pairs:
    """Begin and end marks into intervals, nested as they were written."""

    def __init__(self, lost: Lost) -> None:
        self.lost = lost
        self.events: list[JitEvent] = []
        self._open: dict[tuple[str, str], list[int]] = {}
        self._latest = 0

    def add(self, payload: bytes) -> None:
        try:
            mark = msgspec.json.decode(payload, type=_Chromium)
        except (msgspec.DecodeError, RecursionError):
            self.lost.add(1, "damaged compile events were skipped")
            return
        at = decimal_ns(bytes(mark.ts).strip(b'"'))
        if at is None:
            self.lost.add(1, "compile events without a readable time were skipped")
            return
        if len(self.events) >= _LIMIT:
            self.lost.add(1, f"more than {_LIMIT:,} compile events: the rest was skipped")
            return
        self._latest = max(self._latest, at)
        stack = self._open.setdefault((str(mark.pid), str(mark.tid)), [])
        name = clean(mark.name, 200)
        args = mark.args or _Args()
        if mark.ph == "B":
            self.events.append(self._event(name, at, args, stack))
            stack.append(len(self.events) - 1)
        elif mark.ph == "E":
            self._end(name, at, stack)
        elif mark.ph in ("i", "I") and (cache := _CACHE.match(name)):
            event = self._event(name, at, args, stack)
            event.result = "bypass" if cache[2] == "disabled" else cache[2]
            event.compiler = _CACHE_OF.get(cache[1].split("_")[0], event.compiler)
            self.events.append(event)

    def _event(self, name: str, at: int, args: _Args, stack: list[int]) -> JitEvent:
        parent = stack[-1] if stack else -1
        if parent >= 0:  # marks of one thread are in order; a clock that steps back must not tear the tree
            at = max(at, self.events[parent].start_ns)
        return JitEvent(
            compiler=_compiler(name), name=name, start_ns=at, end_ns=at, key=clean(args.key or "", 100),
            saved_ns=max(0, int(args.time_saved_ns or 0)), compile_id=clean(args.compile_id or "", 40),
            reason=clean(" ".join((args.cache_bypass_reason or "").split()), 200), parent=parent,
        )  # fmt: skip

    def _end(self, name: str, at: int, stack: list[int]) -> None:
        if not any(self.events[row].name == name for row in stack):
            self.lost.add(1, "ends of compile phases without a beginning were skipped")
            return
        while stack:
            row = stack.pop()
            event = self.events[row]
            event.end_ns = max(at, event.start_ns)
            if event.name == name:
                return
            event.unfinished = True

    def finish(self) -> list[JitEvent]:
        for stack in self._open.values():
            for row in stack:
                self.events[row].unfinished = True
                self.events[row].end_ns = max(self._latest, self.events[row].start_ns)
        for event in reversed(self.events):  # a parent ends no earlier than its children
            if event.parent >= 0:
                parent = self.events[event.parent]
                parent.end_ns = max(parent.end_ns, event.end_ns)
        return self.events


def _compiler(name: str) -> str:
    if _TRITON_PHASE.search(name):
        return "triton"
    if _INDUCTOR.search(name):
        return "inductor"
    return "aotautograd" if _AOT.search(name) else "dynamo"


def _triton(lines: Iterator[bytes], lost: Lost, zone: tzinfo) -> list[JitEvent]:
    """Each compilation ends at its time stamp, which some versions write in whole seconds."""
    events: list[JitEvent] = []
    for line in lines:
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_TritonEvent)
        except (msgspec.DecodeError, RecursionError):
            lost.add(1, "damaged lines were skipped")
            continue
        if entry.event_type != "compilation" or entry.payload is None:
            continue
        stamp = _stamp(entry.timestamp, zone)
        if stamp is None:
            lost.add(1, "compilations without a readable time were skipped")
            continue
        if len(events) >= _LIMIT:
            lost.add(1, f"more than {_LIMIT:,} compile events: the rest was skipped")
            continue
        end, resolution = stamp
        times, metadata = entry.payload.times, entry.payload.metadata
        spent = times.ir_initialization + sum(stage for _, stage in times.lowering_stages) + times.store_results
        spent = min(max(0, spent), 10**12)
        name = clean(metadata.name, 120) or "kernel"
        result = "" if metadata.cache_hit is None else "hit" if metadata.cache_hit else "miss"
        events.append(
            JitEvent("triton", name, end - spent * 1000, end, result=result, key=clean(metadata.hash, 100),
                     resolution_ns=resolution)
        )  # fmt: skip
    return events


def _stamp(text: str, zone: tzinfo) -> tuple[int, int] | None:
    """(instant, its resolution) in ns."""
    match = _STAMP.match(text)
    if match is None:
        return None
    try:
        seconds = int(datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone).timestamp())
    except (ValueError, OverflowError):
        return None
    digits = (match[2] or "")[1:10]
    return seconds * 10**9 + int(digits.ljust(9, "0")), 10 ** (9 - len(digits))


def findings(log: JitLog) -> list[Finding]:
    """What the log tells: time compiling, caches hit and missed, the reason of a bypass."""
    result = []
    outer = [event for event in log.events if event.parent < 0 and not (event.result and log.kind == "torch_trace")]
    if outer:
        total = sum(event.end_ns - event.start_ns for event in outer)
        slowest = max(outer, key=lambda event: event.end_ns - event.start_ns)
        compiled = [event for event in outer if event.result != "hit"]
        result.append(
            Finding(
                2,
                f"{log.source} shows {duration(total)} of compiling."
                if compiled
                else f"{log.source} shows {duration(total)} in the compiler; all it was asked for came from the cache.",
                f"compiles: {len(outer):,}; slowest: {slowest.name} {slowest.compile_id}".rstrip()
                + "; ".join([f" {duration(slowest.end_ns - slowest.start_ns)}", *log.notes]),
                "keep the compile cache folders between starts" if compiled else "",
            )
        )
    for compiler in sorted({event.compiler for event in log.events if event.result}):
        looked = [event for event in log.events if event.result and event.compiler == compiler]
        counts = {kind: sum(event.result == kind for event in looked) for kind in ("hit", "miss", "bypass")}
        saved = sum(event.saved_ns for event in looked)
        again = _compiled_again(looked)
        reasons = sorted({event.reason for event in looked if event.reason})
        result.append(
            Finding(
                2,
                f"The {compiler} cache: hits {counts['hit']}, misses {counts['miss']}, bypassed {counts['bypass']}.",
                (f"hits saved {duration(saved)}; " if saved else "") + f"{len({e.key for e in looked if e.key})} keys"
                + (f"; bypassed because: {reasons[0]}" if reasons else ""),
                "the same key was missed again: the cache folder is not kept or not shared" if again else "",
                "warn" if again or counts["bypass"] > counts["hit"] + counts["miss"] else "ok",
            )
        )  # fmt: skip
    failed = [event for event in log.events if event.unfinished]
    if failed:
        names = ", ".join(sorted({event.name for event in failed})[:5])
        sentence = f"Compile phases without an end: {len(failed):,}; they failed, or the log was cut."
        result.append(Finding(2, sentence, names, "look at the log's end", "warn"))
    return result


def _compiled_again(looked: list[JitEvent]) -> bool:
    missed = [event.key for event in looked if event.result == "miss" and event.key]
    return len(missed) != len(set(missed))
