"""torch's raw profiler events as columns of numbers, quickly: one method of the event class mapped over all of them."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterator
from typing import Any

from tokentrace.agent.stock import GAP_S

SLICE = 512

# Column -> array type code: 64 bits for times, ids and sizes, 32 for codes and small numbers.
_COLUMNS = {"start_ns": "q", "end_ns": "q", "thread": "q", "name": "i", "kind": "b", "device_type": "b", "shape": "i",
            "geometry": "i", "correlation": "q", "device": "i", "stream": "q", "bytes": "q"}  # fmt: skip


class _Interner(dict[Any, int]):
    """value -> small code in the order of first sight."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def read(events: Any) -> tuple[dict[str, list[str]], dict[str, array[int]]]:
    """torch's `_KinetoEvent`s as columns of equal length, with the lists that their codes index.

    start_ns, end_ns (unix ns), thread (system thread id; -1 on a device), name, kind (activity type), device_type,
    shape, geometry (codes; -1 none), correlation, device, stream (-1 on the host), bytes (-1 unknown). Strings never
    repeat; shapes are JSON text.
    """
    codes = {name: _Interner() for name in ("names", "kinds", "device_types", "shapes", "geometries")}
    columns: dict[str, array[int]] = {name: array(code) for name, code in _COLUMNS.items()}
    kind = type(events[0]) if len(events) else None
    for chunk in _slices(events):
        _read_chunk(kind, chunk, columns, codes)
        time.sleep(GAP_S)  # lets another thread have the interpreter
    lists = {name: [str(v) for v in found] for name, found in codes.items()}
    lists["device_types"] = [v.rpartition(".")[2] for v in lists["device_types"]]
    return lists, columns


def _slices(events: Any) -> Iterator[list[Any]]:
    for first in range(0, len(events), SLICE):
        yield list(events[first : first + SLICE])


def _read_chunk(kind: Any, chunk: list[Any], columns: dict[str, array[int]], codes: dict[str, _Interner]) -> None:
    columns["start_ns"].extend(map(kind.start_ns, chunk))
    if hasattr(kind, "end_ns"):
        columns["end_ns"].extend(map(kind.end_ns, chunk))
    else:
        columns["end_ns"].extend(e.start_ns() + e.duration_ns() for e in chunk)
    columns["name"].extend(map(codes["names"].__getitem__, map(kind.name, chunk)))
    columns["correlation"].extend(map(kind.correlation_id, chunk))
    shapes = codes["shapes"]
    if hasattr(kind, "shapes"):
        texts = map(str, map(kind.shapes, chunk))
        columns["shape"].extend(-1 if text == "[]" else shapes[text] for text in texts)
    else:
        columns["shape"].extend([-1] * len(chunk))
    if hasattr(kind, "activity_type"):
        columns["kind"].extend(map(codes["kinds"].__getitem__, map(kind.activity_type, chunk)))
    else:
        columns["kind"].extend([codes["kinds"][""]] * len(chunk))
    types = [codes["device_types"][str(t)] for t in map(kind.device_type, chunk)]
    columns["device_type"].extend(types)
    host = codes["device_types"].get("DeviceType.CPU", -1)
    resources = list(map(kind.device_resource_id, chunk))
    if all(t == host for t in types):
        columns["thread"].extend(resources)
        for name in ("device", "stream", "bytes", "geometry"):
            columns[name].extend([-1] * len(chunk))
        return
    # On the host the resource is the system's thread id (start_thread_id() is torch's own count), on a device the
    # stream.
    for event, device_type, resource in zip(chunk, types, resources, strict=True):
        on_host = device_type == host
        columns["thread"].append(resource if on_host else -1)
        columns["stream"].append(-1 if on_host else resource)
        columns["device"].append(-1 if on_host else event.device_index())
        columns["bytes"].append(-1 if on_host or not hasattr(kind, "nbytes") else event.nbytes())
        text = "" if on_host else _geometry(event)
        columns["geometry"].append(codes["geometries"][text] if text else -1)


def _geometry(event: Any) -> str:
    """A kernel's "[grid] x [block]" out of its metadata, of which nothing else is kept."""
    if not hasattr(event, "metadata_json"):
        return ""
    try:
        facts = json.loads("{" + event.metadata_json() + "}")
        grid, block = facts["grid"], facts["block"]
        return "[{},{},{}] x [{},{},{}]".format(*(int(n) for n in (*grid, *block)))
    except (ValueError, KeyError, TypeError, IndexError):
        return ""
