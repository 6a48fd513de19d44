"""The step level: which stretches of a recording are engine or training steps, and which kernels belong to each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers.columns import NONE, Array, Events
from tokentrace.importers.join import Joined, holder

#: torch.profiler's schedule.
_PROFILER = re.compile(r"^ProfilerStep#(\d+)$")
#: vLLM: execute_context_1(888_788544)_generation_0(0) and, later, execute_32_context_0(sq0sk0…)_generation_32(sq32…).
_VLLM = re.compile(r"^execute_(?:(\d+)_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)")
#: SGLang: step[EXTEND bs=15 toks=15360].
_SGLANG = re.compile(r"^step\[(\w+)(?:\s+bs=(\d+))?(?:\s+toks=(\d+))?")
#: vLLM's graph capture: capture_32_FULL.
_CAPTURE = re.compile(r"^capture_(\d+)_(FULL|PIECEWISE)")
#: NVTX ranges and own annotations.
_NUMBERED = re.compile(r"^(?:train(?:ing)?[ _])?(?:iteration|iter|step|batch)[ _#:=]*(\d+)$", re.IGNORECASE)
_KNOWN = (_VLLM, _SGLANG, _PROFILER, _CAPTURE, _NUMBERED)
#: Annotations that are parts of a step, never a step.
_PART = re.compile(
    r"^Optimizer\.|^## Call CompiledFxGraph|^Torch-Compiled Region|^cuda|\(dynamo_timed\)$|^enumerate\(DataLoader\)"
)
#: torch's own annotations (record_function in its Python code): DataLoader, Optimizer, DistributedDataParallel, dynamo.
_TORCH = re.compile(
    r"^enumerate\(DataLoader\)#|^Optimizer\.(step|zero_grad)#|^DistributedDataParallel\.forward$|\(dynamo_timed\)$"
)
#: What a backend of torch.distributed does, by the title that its process group gives it.
_COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|rccl|xccl):\w")
_SGLANG_PHASE = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed"}


@dataclass(slots=True)
class Step:
    """One step. `row` is its annotation in Events; times are as recorded. `end_ns` is the later of the annotation's end
    and the end of the last kernel it launched: a step is over when its work is done. `inferred`: the annotation is
    not one that is known to mark steps, only the outermost there is."""

    index: int
    name: str
    row: int
    start_ns: int
    host_end_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    inferred: bool = False


@dataclass(slots=True)
class Steps:
    """All steps in time order, and for each kernel and copy the step it belongs to (-1 none)."""

    steps: list[Step]
    of_kernel: Array
    of_copy: Array


def tell_annotations(events: Events) -> None:
    """Let annotations be annotations and operators operators, whatever the recording calls them.

    Profilers until 2022 wrote annotations as operators, and in ranges of NVTX nothing tells them apart but the name.
    A step or an optimizer is no operator: it holds some. What torch writes as an annotation and is none is a
    collective of a backend.
    """
    operators, marks = events.rows(gpu_events.OPERATOR), events.rows(gpu_events.ANNOTATION)
    annotation = _step_names(events) | events.names_with(_TORCH)
    collective = events.names_matching(_COLLECTIVE)
    events.kind[operators[annotation[events.name[operators]]]] = gpu_events.ANNOTATION
    events.kind[marks[collective[events.name[marks]]]] = gpu_events.OPERATOR


def _step_names(events: Events) -> Array:
    """Bool per name: does it mark a step?"""
    return np.fromiter((any(p.match(name) for p in _KNOWN) for name in events.names), np.bool_, len(events.names))


def find(events: Events, joined: Joined) -> Steps:
    marks = events.rows(gpu_events.ANNOTATION)
    rows = marks[_step_names(events)[events.name[marks]]]
    inferred = False
    if not len(rows):
        rows = _outermost_annotations(events, joined)
        inferred = True
    rows = _outermost(events, rows)
    steps = []
    for order, row in enumerate(rows.tolist()):
        name = events.names[int(events.name[row])]
        index, attributes = _describe(name)
        steps.append(
            Step(
                index=order if index is None else index,
                name=name,
                row=row,
                start_ns=int(events.start[row]),
                host_end_ns=int(events.end[row]),
                end_ns=int(events.end[row]),
                attributes=attributes,
                inferred=inferred,
            )
        )
    if len({step.index for step in steps}) != len(steps):  # numbers that repeat tell nothing: count instead
        for order, step in enumerate(steps):
            step.index = order
    found = Steps(
        steps,
        _assign(events, steps, joined.kernels, joined.call_of),
        _assign(events, steps, joined.copies, joined.copy_call),
    )
    _extend(events, found, joined)
    return found


def _outermost_annotations(events: Events, joined: Joined) -> Array:
    """User annotations of the thread that launches most, without those that are parts of a step by their name."""
    rows = events.rows(gpu_events.ANNOTATION)
    part = events.names_with(_PART)
    rows = rows[~part[events.name[rows]]]
    launches = joined.all_launches
    if len(launches) and len(rows):
        track, count = np.unique(events.track[launches], return_counts=True)
        rows = rows[events.track[rows] == track[int(count.argmax())]]
    return rows


def _outermost(events: Events, rows: Array) -> Array:
    """Rows not inside another of them on the same thread, in time order."""
    kept = []
    until: dict[int, int] = {}
    order = np.lexsort((-events.end[rows], events.start[rows]))
    for row in rows[order].tolist():
        track, end = int(events.track[row]), int(events.end[row])
        if track in until and until[track] >= end:
            continue
        until[track] = end
        kept.append(row)
    return np.array(kept, np.int64)


def _describe(name: str) -> tuple[int | None, dict[str, Any]]:
    """(number in the name, what the name tells): phase, batch, scheduled tokens."""
    if match := _VLLM.match(name):
        total, prefills, prefill_tokens, decodes, decode_tokens = (int(x) if x else 0 for x in match.groups())
        phase = "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else ""
        tokens = total or prefill_tokens + decode_tokens
        return None, {"tokentrace.step.phase": phase, "tokentrace.step.batch": prefills + decodes,
                      "tokentrace.step.tokens": tokens}  # fmt: skip
    if match := _SGLANG.match(name):
        known = {"tokentrace.step.phase": _SGLANG_PHASE.get(match[1].upper(), "")}
        more = {"tokentrace.step.batch": match[2], "tokentrace.step.tokens": match[3]}
        return None, {**known, **{key: int(value) for key, value in more.items() if value}}
    if match := _CAPTURE.match(name):
        return None, {"tokentrace.step.phase": "graph capture", "tokentrace.step.batch": int(match[1])}
    for pattern in (_PROFILER, _NUMBERED):
        if match := pattern.match(name):
            return int(match[1][:18]), {}
    return None, {}


def _assign(events: Events, steps: list[Step], rows: Array, calls: Array) -> Array:
    """Step of each GPU row: the one its call started in; without a call, the one whose own GPU annotation or, failing
    that, whose host time holds its start."""
    result = np.full(len(rows), -1, np.int64)
    if not steps or not len(rows):
        return result
    start = np.array([step.start_ns for step in steps])
    end = np.array([step.host_end_ns for step in steps])
    track = np.array([events.track[step.row] for step in steps])
    with_call = np.flatnonzero(calls >= 0)
    when = events.start[calls[with_call]]
    where = events.track[calls[with_call]]
    # The step of the same thread first: two engines in one file run their steps side by side.
    for own in np.unique(track).tolist():
        mine = np.flatnonzero(track == own)
        on = np.flatnonzero(where == own)
        _place(result, with_call[on], when[on], mine, start, end)
    rest = with_call[result[with_call] < 0]
    _place(result, rest, events.start[calls[rest]], np.arange(len(steps)), start, end)
    without = np.flatnonzero(calls < 0)
    if len(without):
        point = events.start[rows[without]]
        for mark, number in _marks_on_device(events, steps):
            result[without[(point >= events.start[mark]) & (point <= events.end[mark])]] = number
        rest = without[result[without] < 0]
        _place(result, rest, events.start[rows[rest]], np.arange(len(steps)), start, end)
    return result


def _marks_on_device(events: Events, steps: list[Step]) -> Iterator[tuple[int, int]]:
    """(row of an annotation of the device, the step it stands for): both have the External id, else a name that only
    one step has. Engines give the same name to many steps."""
    by_id: dict[int, list[int]] = {}
    by_name: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        by_id.setdefault(int(events.external[step.row]), []).append(number)
        by_name.setdefault(step.name, []).append(number)
    by_id.pop(NONE, None)
    for mark in events.rows(gpu_events.GPU_ANNOTATION).tolist():
        named = by_name.get(events.names[int(events.name[mark])], [])
        same = [number for number in by_id.get(int(events.external[mark]), []) if number in named]
        fitting = same or named
        if len(fitting) == 1:
            yield mark, fitting[0]


def _place(result: Array, which: Array, when: Array, among: Array, start: Array, end: Array) -> None:
    if not len(which) or not len(among):
        return
    at = holder(when, start[among], end[among])
    hit = at >= 0
    result[which[hit]] = among[at[hit]]


def _extend(events: Events, found: Steps, joined: Joined) -> None:
    for rows, owner in ((joined.kernels, found.of_kernel), (joined.copies, found.of_copy)):
        if not len(found.steps) or not len(rows):
            continue
        last = np.full(len(found.steps), -(2**63), np.int64)
        owned = np.flatnonzero(owner >= 0)
        np.maximum.at(last, owner[owned], events.end[rows[owned]])
        for step, end in zip(found.steps, last.tolist(), strict=True):
            step.end_ns = max(step.end_ns, end)
