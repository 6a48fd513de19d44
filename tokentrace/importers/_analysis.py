"""What the findings rest on, and how they put numbers into words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import host
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.host import Host
from tokentrace.importers.join import Joined, union_ns
from tokentrace.importers.measures import Gap, Measures
from tokentrace.importers.steps import Steps

#: Share of the device's window from which on something is worth saying.
WORTH_SAYING = 0.05
#: What the times are of: all of it, the part of it that was asked for, or several recordings side by side.
RECORDING, WINDOW, STEP, RECORDINGS = "the recording", "the window", "the step", "the recordings"

_AMD = re.compile(r"hip[A-Z]|AMD\b")
_NVIDIA = re.compile(r"cu(da)?[A-Z]|(NVIDIA|Tesla|Quadro|GeForce)\b")


@dataclass(slots=True)
class Analysis:
    """All that is known of one recording."""

    events: Events
    joined: Joined
    tree: Host
    steps: Steps
    measures: Measures
    figures: dict[str, Any]
    step_figures: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    layer: Array  # see _spanning.classify
    whole: str = RECORDING  # what this is: RECORDING, WINDOW or STEP


def vendor(events: Events) -> str:
    """Who made the device that was recorded, by the calls it was driven with, else by its name; "" unknown."""
    called = {events.names[code] for code in np.unique(events.name[events.rows(gpu_events.RUNTIME)]).tolist()}
    told = [*called, *map(str, events.facts.get("devices") or [])]
    signs = {"AMD": _AMD, "NVIDIA": _NVIDIA}
    found = [name for name, sign in signs.items() if any(sign.match(text) for text in told)]
    return found[0] if len(found) == 1 else ""


def inside(found: Analysis, gap: Gap, rows: Array) -> int:
    """For how long of a gap the thread that ended it was inside any of these rows, ns."""
    events = found.events
    rows = rows[events.track[rows] == events.track[gap.launch]]
    start, end = np.maximum(events.start[rows], gap.start_ns), np.minimum(events.end[rows], gap.end_ns)
    return union_ns(start[start < end], end[start < end])


def caveat(found: Analysis) -> str:
    if bool((found.events.kind == gpu_events.PYTHON).any()):
        return "; Python functions were recorded too, which slows the host and overstates its share"
    return ""


def counted(events: Events, rows: Array) -> str:
    codes, counts = np.unique(events.name[rows], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    return ", ".join(f"{host.short(events.names[int(codes[n])], 60)} ×{int(counts[n]):,}" for n in order.tolist())
