"""Columns as the agent sends them, from a few rows or from a recording."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np

from tokentrace.probe import Columns

ACTIVITIES = ["cpu_op", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "user_annotation"]


def columns(rows: list[dict[str, object]], **header: object) -> Columns:
    """Columns as the agent sends them, from rows with the fields that matter."""
    names: list[str] = []
    shapes: list[str] = []

    def code(table: list[str], value: object) -> int:
        if value is None:
            return -1
        if value not in table:
            table.append(str(value))
        return table.index(str(value))

    arrays = {
        "start_ns": [r["start"] for r in rows],
        "end_ns": [r["end"] for r in rows],
        "thread": [r.get("thread", 1) for r in rows],
        "name": [code(names, r["name"]) for r in rows],
        "kind": [ACTIVITIES.index(str(r.get("activity", "cpu_op"))) for r in rows],
        "device_type": [int(r.get("activity") in ("kernel", "gpu_memcpy", "gpu_memset")) for r in rows],
        "shape": [code(shapes, r.get("shapes")) for r in rows],
        "geometry": [-1] * len(rows),
        "correlation": [r.get("correlation", 0) for r in rows],
        "device": [r.get("device", -1) for r in rows],
        "stream": [r.get("stream", -1) for r in rows],
        "bytes": [r.get("bytes", -1) for r in rows],
    }
    lists = {"names": names, "kinds": ACTIVITIES, "device_types": ["CPU", "CUDA"], "shapes": shapes, "geometries": []}
    return Columns("ops", "7", {**lists, **header}, {name: np.array(v, np.int64) for name, v in arrays.items()})


def columns_of_recording(path: Path) -> Columns:
    """A torch.profiler trace in Chrome's format as the agent would have sent it."""
    raw = path.read_bytes()
    data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)
    rows = []
    for event in data["traceEvents"]:
        activity = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or activity not in ACTIVITIES:
            continue
        args = event.get("args", {})
        on_device = activity in ("kernel", "gpu_memcpy", "gpu_memset")
        start = int(event["ts"] * 1000)
        rows.append(
            {
                "name": event["name"],
                "start": start,
                "end": start + int(event.get("dur", 0) * 1000),
                "activity": activity,
                "thread": -1 if on_device else event["tid"],
                "correlation": args.get("correlation", 0) if activity != "cpu_op" else 0,
                "device": args.get("device", -1) if on_device else -1,
                "stream": args.get("stream", -1) if on_device else -1,
                "bytes": args.get("bytes", -1),
                "shapes": json.dumps(args["Input Dims"]) if "Input Dims" in args else None,
            }
        )
    return columns(rows, activities=["CPU", "CUDA"])
