"""Which rows become spans: the layer each belongs to, and the choice of those that fit the budget."""

from __future__ import annotations

import re

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import host
from tokentrace.importers._analysis import Analysis
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.join import Joined, holder
from tokentrace.importers.measures import Measures
from tokentrace.importers.steps import Steps

#: Modules on the way up: from the last hidden state to the sampled token.
UP = re.compile(
    r"lm_head|LogitsProcessor|\bSampler\b|ParallelLMHead|sample_tokens|gpu_model_runner: sample", re.IGNORECASE
)
_MODULE = re.compile(r"^nn\.Module: ")
_UPWARD_COPY = re.compile(r"DtoH|Device -> (Pinned|Pageable)|device_to_host", re.IGNORECASE)


def is_upward(name: str) -> bool:
    """Does this copy bring something back to the host?"""
    return _UPWARD_COPY.search(name) is not None


def classify(events: Events, joined: Joined, steps: Steps, measures: Measures) -> Array:
    """Layer of each row that may become a span, 0 for the others (one more row than Events: "none")."""
    layer = np.zeros(len(events) + 1, np.int8)
    names = events.name
    python = events.rows(gpu_events.PYTHON)
    layer[python[events.names_matching(_MODULE)[names[python]]]] = 5
    layer[events.rows(gpu_events.ANNOTATION)] = 5
    layer[events.rows(gpu_events.OPERATOR)] = 4
    runtime = joined.runtime
    layer[joined.all_launches] = 3
    layer[runtime[events.names_matching(gpu_events.BLOCKING_SYNC)[names[runtime]]]] = 3
    layer[runtime[events.names_matching(gpu_events.COPY_CALL)[names[runtime]]]] = 3
    layer[joined.kernels] = 3
    layer[joined.copies] = 3
    for rows in (measures.compiles, measures.lookups, measures.loads):
        layer[rows] = 2
    for step in steps.steps:
        layer[step.row] = 6
    return layer


def choose(found: Analysis, budget: int) -> Array:
    """Bool per row. Within the budget everything; else steps and compiles first, then, in shares, the longest kernels
    with their launches, the longest operators, and the longest modules."""
    events, joined, layer = found.events, found.joined, found.layer
    chosen = layer > 0
    length = np.append(events.end - events.start, 0)
    steps = np.array([step.row for step in found.steps.steps], np.int64)
    if int(chosen.sum()) <= budget:
        return chosen
    result = np.zeros(len(layer), np.bool_)
    left = budget - _take(result, steps, length, budget // 4)
    left -= _take(result, np.flatnonzero(layer == 2), length, max(0, left // 5))
    device = np.zeros(len(layer), np.bool_)
    device[joined.kernels] = True
    device[joined.copies] = True
    for pool, part in (
        (np.flatnonzero(device), 0.30),
        (np.flatnonzero((layer == 3) & ~device), 0.30),
        (np.flatnonzero(layer == 5), 0.15),
        (np.flatnonzero(layer == 4), 0.25),
    ):
        if part == 0.30 and not bool(device[pool].any()):
            # Launches of the kernels that are shown come first, so that links have an end.
            partners = np.unique(np.concatenate((joined.call_of[result[joined.kernels]],
                                                 joined.copy_call[result[joined.copies]])))  # fmt: skip
            partners = partners[(partners >= 0) & (layer[partners] == 3)]
            taken = _take(result, partners, length, int(left * part))
            _take(result, pool[~result[pool]], length, int(left * part) - taken)
        else:
            _take(result, pool, length, int(left * part))
    # What a kind did not need goes to the longest of the rest.
    rest = np.flatnonzero((layer > 0) & ~result & (layer != 6))
    _take(result, rest, length, budget - int(result.sum()))
    return result


def _take(result: Array, pool: Array, length: Array, count: int) -> int:
    if count <= 0 or not len(pool):
        return 0
    best = pool[np.argsort(-length[pool], kind="stable")[:count]]
    result[best] = True
    return len(best)


def step_at(found: Analysis) -> Array:
    """For each row the step that holds it: by its launch for the device, by its start for the host; -1 none."""
    events, steps = found.events, found.steps
    result = np.full(len(events) + 1, -1, np.int64)
    if not steps.steps:
        return result
    start = np.array([step.start_ns for step in steps.steps])
    end = np.array([step.host_end_ns for step in steps.steps])
    result[:-1] = holder(events.start, start, end)
    result[found.joined.kernels] = steps.of_kernel
    result[found.joined.copies] = steps.of_copy
    return result


def jit_name(text: str) -> str:
    if host.LOOKUP.match(text):
        return "cache TorchDynamo lookup"
    return f"compile {host.short(text, 100)}"


def compiler(text: str) -> str:
    """Which compiler an event belongs to, by its name."""
    low = text.lower()
    for word, name in (("triton", "triton"), ("inductor", "inductor"), ("nvrtc", "nvrtc"), ("hip", "hip"),
                       ("dynamo", "dynamo"), ("torch", "dynamo"), ("cu", "cuda"), ("lazy", "cuda"),
                       ("module loading", "cuda")):  # fmt: skip
        if word in low:
            return name
    return "unknown"
