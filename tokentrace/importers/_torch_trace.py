"""TORCH_TRACE: the compile log of dynamo, AOTAutograd and inductor.

It is text: a glog line with one JSON object, then its payload in lines that begin with a tab. Only payloads of
`chromium_event` are read: begin and end of each compile phase, and an instant for each cache lookup. Stacks, source
code, guards and file names, which make up most of such a log, are never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tokentrace.importers._jit_events import LIMIT, JitEvent
from tokentrace.importers._numbers import decimal_ns
from tokentrace.importers.columns import Lost, clean

#: A line that begins an entry.
LINE = re.compile(rb"^[VIWEF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]]{0,300}\] (\{.*)$")
_CACHE = re.compile(r"^(fx_graph|autograd|aotautograd|pgo|inductor\w*|triton\w*)_cache_(hit|miss|bypass|disabled)$")
#: Phases by the part of the compiler they belong to; the rest is dynamo's.
_AOT = re.compile(r"aot|backend_compile|joint_graph|create_aot")
_INDUCTOR = re.compile(
    r"inductor|GraphLowering|Scheduler|code_gen|codegen|fx_codegen|compile_fx|PyCodeCache|post_grad|pre_grad"
)
_TRITON_PHASE = re.compile(r"[Tt]riton|async_compile|AsyncCompile|CachingAutotuner|autotun")
_CACHE_OF = {"fx": "inductor", "autograd": "aotautograd", "aotautograd": "aotautograd", "pgo": "dynamo"}


class _Args(msgspec.Struct, gc=False):
    compile_id: str | None = None
    key: str | None = None
    cache_state: str | None = None
    time_saved_ns: float | None = None
    cache_bypass_reason: str | None = None
    fail_type: str | None = None


class _Chromium(msgspec.Struct, gc=False):
    ph: str
    name: str
    ts: msgspec.Raw
    args: _Args | None = None
    pid: int | str = 0
    tid: int | str = 0


class _Entry(msgspec.Struct, gc=False):
    chromium_event: dict[str, Any] | None = None


def events(lines: Iterator[bytes], lost: Lost) -> list[JitEvent]:
    """The log's events, a parent before its children."""
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
        match = LINE.match(line)
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
        if len(self.events) >= LIMIT:
            self.lost.add(1, f"more than {LIMIT:,} compile events: the rest was skipped")
            return
        self._latest = max(self._latest, at)
        stack = self._open.setdefault((str(mark.pid), str(mark.tid)), [])
        name = clean(mark.name, 200)
        args = mark.args or _Args()
        if mark.ph == "B":
            self.events.append(self._event(name, at, args, stack))
            stack.append(len(self.events) - 1)
        elif mark.ph == "E":
            self._end(name, at, stack, clean(args.fail_type or "", 100))
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

    def _end(self, name: str, at: int, stack: list[int], failure: str) -> None:
        if not any(self.events[row].name == name for row in stack):
            self.lost.add(1, "ends of compile phases without a beginning were skipped")
            return
        while stack:
            row = stack.pop()
            event = self.events[row]
            event.end_ns = max(at, event.start_ns)
            if event.name == name:
                event.failure = failure
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
