"""How each of the eight layers stands in a recording: seen, idle or unseen and why, its own time and its evidence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers._analysis import Analysis
from tokentrace.importers.columns import Array
from tokentrace.importers.join import merged
from tokentrace.probe import LayerState

#: Layers a recording can show, nearest the chip first: an instant belongs to the first that is active.
_ORDER = (2, 3, 4, 5, 6)


def states(found: Analysis) -> list[LayerState]:
    """Layers 8 to 1. `facts` of a seen layer: own_ns (each instant belongs to the active layer nearest the chip),
    share (of the recording's span) and evidence (number of events)."""
    layer = found.layer[:-1]
    own = own_times(found, layer)
    span = found.figures["span_ns"]
    result = []
    for number in range(8, 0, -1):
        count = int((layer == number).sum())
        if count:
            share = round(own[number] / span, 6) if span else 0.0
            result.append(LayerState(number, facts={"own_ns": own[number], "share": share, "evidence": count}))
        else:
            result.append(_absent(found, number))
    return result


def own_times(found: Analysis, layer: Array) -> dict[int, int]:
    """Layer -> own time, ns; 0 -> time that belongs to no layer. They add up to the span of the recording."""
    events = found.events
    result = {}
    start, end = np.empty(0, np.int64), np.empty(0, np.int64)
    before = 0
    until = events.end.copy()
    for step in found.steps.steps:  # a step is over when its work is done
        until[step.row] = step.end_ns
    for number in _ORDER:
        rows = np.flatnonzero(layer == number)
        start, end = merged(np.concatenate((start, events.start[rows])), np.concatenate((end, until[rows])))
        covered = int((end - start).sum())
        result[number] = covered - before
        before = covered
    result[0] = max(0, found.figures["span_ns"] - before)
    return result


def combine(each: Iterable[list[LayerState]]) -> list[LayerState]:
    """The states of several recordings as one: a layer is seen where one of them shows it; times add up."""
    result: list[LayerState] = []
    for group in zip(*each, strict=True):
        seen = [state for state in group if state.status == "seen"]
        if not seen:
            result.append(group[0])
            continue
        facts = {key: sum(state.facts[key] for state in seen) for key in ("own_ns", "evidence")}
        facts["share"] = round(sum(state.facts["share"] for state in seen) / len(group), 6)
        result.append(LayerState(seen[0].layer, facts=facts))
    return result


def only_beside() -> list[LayerState]:
    """The states when no recording was given, only a compile log or a power dump."""
    reason = "no recording was given, only what lies beside one"
    return [LayerState(number, "unseen", reason, "give the recording too") for number in range(8, 0, -1)]


def _absent(found: Analysis, number: int) -> LayerState:
    events = found.events
    on_host = not len(found.joined.runtime) and not len(found.joined.kernels)
    operators = bool((events.kind == gpu_events.OPERATOR).any())
    reason, fix, status = {
        8: ("a profiler recording does not hold the request",
            "trace a request to that server: tokentrace run --url", "unseen"),
        7: ("a profiler recording does not hold the tokenizer's work",
            "trace a request to that server: tokentrace run --url", "unseen"),
        6: ("no step is marked in the recording",
            "mark steps: profiler.step(), an NVTX range 'step N', or the engine's own annotations", "unseen"),
        5: ("neither modules nor annotations were recorded",
            "record with with_stack=True or with_modules=True, or annotate with record_function", "unseen"),
        4: ("operators were not recorded", "record with ProfilerActivity.CPU, or emit_nvtx() under nsys", "unseen"),
        3: (("not applicable: the model ran on the CPU, or only the host was recorded" if on_host and operators
             else "neither launches nor kernels were recorded"),
            "record with ProfilerActivity.CUDA (nsys -t cuda, rocprofv3 --kernel-trace)", "unseen"),
        2: ("nothing was compiled or loaded while this was recorded",
            "to see compiles, record the first request after a start", "idle"),
        1: ("a profiler recording holds no power readings", "sample nvidia-smi or rocm-smi beside it", "unseen"),
    }[number]  # fmt: skip
    return LayerState(number, status, reason, fix)
