"""The same figures three ways: a plain count of torch's exported trace, tokentrace's import, tokentrace's agent."""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime")
LAUNCH = re.compile(r"^(cuda|cu|hip)\w*Launch(Cooperative)?Kernel")
GRAPH = re.compile(r"^(cuda|cu|hip)GraphLaunch")


def counted(path: Path) -> dict[str, Any]:
    """A plain count of an exported trace with nothing of tokentrace in it. Times in ns."""
    events = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    calls = [event for event in spans if event.get("cat") in CALLS]
    launches = [event for event in calls if LAUNCH.match(event["name"])]
    graphs = [event for event in calls if GRAPH.match(event["name"])]
    ids = {event["args"]["correlation"] for event in (*launches, *graphs)}
    every = {event["args"].get("correlation") for event in calls}
    times = sorted((int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)) for event in kernels)
    busy, until = 0, -(2**63)
    for start, end in times:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return {
        "operators": sum(event.get("cat") == "cpu_op" for event in spans),
        "kernels": len(kernels),
        "launches": len(launches) + len(graphs),
        "graph_launches": len(graphs),
        "matched": sum(event["args"].get("correlation") in ids for event in kernels),
        "orphan_kernels": sum(event["args"].get("correlation") not in every for event in kernels),
        "busy_ns": busy,
    }


def imported(path: Path) -> dict[str, Any]:
    from tokentrace import gpu_events
    from tokentrace.importers import chrome, load

    figures = load(path).figures
    keys = ("kernels", "launches", "graph_launches", "matched", "orphan_kernels", "busy_ns")
    return {"operators": len(chrome.read(path).rows(gpu_events.OPERATOR)), **{key: figures[key] for key in keys}}


def as_the_agent_reads(recorded: Any) -> dict[str, Any]:
    """The figures of the way that `tokentrace run` and `attach` go: torch's raw events as columns."""
    import numpy as np

    from tokentrace.agent import kineto_columns
    from tokentrace.importers.join import union_ns
    from tokentrace.probe import Columns
    from tokentrace.probes import _kineto

    lists, arrays = kineto_columns.read(recorded.profiler.kineto_results.events())
    columns = Columns("ops", str(os.getpid()), lists, {name: np.asarray(column) for name, column in arrays.items()})
    events = _kineto.from_columns(columns)
    joined = _kineto.join_launches(events)
    kernel = events.kind[joined.work] == _kineto.KERNEL
    rows = joined.work[kernel]
    return {
        # What torch exports as cpu_op: registered operators, the blocks that it marks itself, and compiled C++ kernels.
        "operators": len(events.rows(_kineto.OPERATOR, _kineto.MARK, _kineto.COMPILED)),
        "kernels": len(rows),
        "launches": len(joined.calls),
        "graph_launches": int(joined.graphs.sum()),
        "orphan_kernels": int((joined.call_of[kernel] < 0).sum()),
        "busy_ns": union_ns(events.start[rows], events.end[rows]),
    }
