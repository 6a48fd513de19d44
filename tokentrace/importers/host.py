"""What the host did: the nesting of operators, Python functions and runtime calls on each thread, and own times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import columns
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.join import Joined, nest

#: Work of a compiler, by the name of the event: dynamo's own timers, and the functions that stand at their top.
COMPILE = re.compile(
    r"\(dynamo_timed\)$"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): (_compile|compile_inner)$"
    r"|torch/_inductor/compile_fx\.py\(\d+\): (compile_fx|compile_fx_inner|_compile_fx_inner|codegen_and_compile)$"
    r"|torch/_functorch/aot_autograd\.py\(\d+\): (aot_module_simplified|create_aot_dispatcher_function)$"
    r"|(^|/)triton/compiler/compiler\.py\(\d+\): compile$"
    r"|torch/utils/cpp_extension\.py\(\d+\): _jit_compile$"
)
#: A compiled function looked up, not compiled.
LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
#: Code brought onto the device on its first use (overhead events of CUPTI).
LOADING = re.compile(r"^(Lazy Function Loading|Runtime Triggered Module Loading)$")
#: So many operators with the most own time are told, whatever kernel time they launched.
_SLOWEST = 3
COMPILED_CALL = re.compile(r"^## Call CompiledFxGraph (\w+)")


@dataclass(slots=True)
class Host:
    """`rows` in order of track, start, falling end; `parent`, `own_ns` and `operator` run along all rows of Events.

    parent: the smallest enclosing host row of the same thread, -1 none. own_ns: duration without that of the direct
    children. operator: the nearest operator at or above the row, -1 none. Rows that are no host rows have -1 and 0.
    """

    rows: Array
    parent: Array
    own_ns: Array
    operator: Array


def build(events: Events) -> Host:
    rows, parents = nest(events, events.rows(*columns.HOST_KINDS))
    count = len(events)
    parent = np.full(count + 1, -1, np.int64)
    parent[rows] = parents
    own = np.zeros(count + 1, np.int64)
    own[rows] = events.end[rows] - events.start[rows]
    inner = parents >= 0
    np.subtract.at(own, parents[inner], (events.end - events.start)[rows[inner]])
    is_operator = np.append(events.kind == gpu_events.OPERATOR, False)
    operator = nearest(parent, is_operator)
    return Host(rows, parent, np.maximum(own, 0), operator)


def nearest(parent: Array, wanted: Array) -> Array:
    """For each row the nearest row at or above it that is wanted, -1 if there is none.

    Both arrays have one row more than Events (the last stands for "none"), so that -1 may be used as an index.
    """
    at = np.arange(len(parent))
    at[-1] = -1
    while True:
        climb = (at >= 0) & ~wanted[at]
        if not bool(climb.any()):
            return np.where(at >= 0, at, -1)
        at[climb] = parent[at[climb]]


def outermost_operator(events: Events, host: Host, rows: Array) -> Array:
    """For each row the outermost operator around it, -1 if there is none."""
    top = host.operator[rows]
    while True:
        above = np.where(top >= 0, host.operator[host.parent[top]], -1)
        higher = above >= 0
        if not bool(higher.any()):
            return top
        top = np.where(higher, above, top)


def blocking_calls(events: Events, joined: Joined) -> tuple[Array, Array]:
    """(synchronisation calls, copy calls that return only after their copy has ended), rows."""
    sync = joined.runtime[events.names_matching(gpu_events.BLOCKING_SYNC)[events.name[joined.runtime]]]
    have = np.flatnonzero(joined.copy_call >= 0)
    call, copy = joined.copy_call[have], joined.copies[have]
    is_copy = events.names_matching(gpu_events.COPY_CALL)[events.name[call]]
    waited = is_copy & (events.end[call] >= events.end[copy]) & (events.kind[copy] == gpu_events.MEMCPY)
    return sync, np.unique(call[waited])


def own_syncs(events: Events, joined: Joined, sync: Array) -> Array:
    """Of these synchronisations those of the program: before its first and after its last launch it is the profiler
    that waits for the device, around what it records."""
    launches, start = joined.all_launches, events.start
    if not len(launches):
        return sync
    own: Array = sync[(start[sync] > start[launches].min()) & (start[sync] < start[launches].max())]
    return own


def operators(events: Events, joined: Joined, host: Host, spans: Array) -> list[dict[str, Any]]:
    """All operators, by the kernel time they launched, then by own host time: name, calls, own_ns, device_ns.

    `spans`: bool per row and one for "none", the rows that may become spans. An operator's own time is without that of
    those below it: other operators, modules, launches, copies, waits. What no span stands for, such as the functions
    of an operator that is written in Python, is its own.
    """
    size = len(events.names)
    rows = events.rows(gpu_events.OPERATOR)
    calls = np.bincount(events.name[rows], minlength=size)
    owner = nearest(host.parent, spans)
    mine = np.flatnonzero((owner >= 0) & np.append(events.kind == gpu_events.OPERATOR, False)[owner])
    own = np.zeros(size, np.int64)
    np.add.at(own, events.name[owner[mine]], host.own_ns[mine])
    device = np.zeros(size, np.int64)
    launched = joined.launch_of >= 0
    owner = host.operator[joined.launch_of[launched]]
    time = (events.end - events.start)[joined.kernels[launched]]
    known = owner >= 0
    np.add.at(device, events.name[owner[known]], time[known])
    found: list[dict[str, Any]] = [
        {
            "name": events.names[code],
            "calls": int(calls[code]),
            "own_ns": int(own[code]),
            "device_ns": int(device[code]),
        }
        for code in np.flatnonzero(calls).tolist()
    ]
    found.sort(key=lambda entry: (-entry["device_ns"], -entry["own_ns"], entry["name"]))
    return found


def leading(found: list[dict[str, Any]], count: int = 12) -> list[dict[str, Any]]:
    """The first of these operators, and those with the most own host time if they are not among them."""
    slowest = sorted(found, key=lambda entry: -entry["own_ns"])[:_SLOWEST]
    return found[:count] + [entry for entry in slowest if entry not in found[:count]]


_ADDRESS = re.compile(r" (object )?at 0x[0-9a-f]+")
_BUILTIN = re.compile(r"^<built-in (?:method|function) (\S+)(?: of (?:type object|(\S+)(?: object)?))?.*>$")
_PLACE = re.compile(r"^(?:.*/)?([^/]+\.py)\((\d+)\): (.*)$")


def short(name: str, limit: int = 120) -> str:
    """A name without folders and addresses: 'linear.py:124 forward', 'Tensor.numel', else the name itself, cut."""
    if match := _PLACE.match(name):
        name = f"{match[1]}:{match[2]} {match[3]}"
    elif match := _BUILTIN.match(name):
        name = f"{match[2]}.{match[1]}" if match[2] else match[1]
    name = _ADDRESS.sub("", name)
    return name if len(name) <= limit else name[: limit - 1] + "…"


def during(events: Events, host: Host, track: int, start: int, end: int) -> int:
    """The shortest row of a thread that fills at least half of the time between two instants, -1 if there is none."""
    rows = host.rows[events.track[host.rows] == track]
    overlap = np.minimum(events.end[rows], end) - np.maximum(events.start[rows], start)
    rows = rows[2 * overlap >= end - start]
    return int(rows[np.argmin((events.end - events.start)[rows])]) if len(rows) else -1


def doing(events: Events, host: Host, track: int, start: int, end: int, count: int = 3) -> list[tuple[str, int]]:
    """What a thread did between two instants: (name, ns) of the largest own shares, rows outside each other."""
    rows = host.rows[events.track[host.rows] == track]
    rows = rows[(events.start[rows] < end) & (events.end[rows] > start)]
    if not len(rows):
        return []
    share = np.minimum(events.end[rows], end) - np.maximum(events.start[rows], start)
    own = np.zeros(len(events) + 1, np.int64)
    own[rows] = share
    np.subtract.at(own, host.parent[rows], share)  # the last cell takes those without a parent
    total: dict[str, int] = {}
    for row in rows.tolist():
        if own[row] > 0:
            name = short(events.names[int(events.name[row])], 60)
            total[name] = total.get(name, 0) + int(own[row])
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))[:count]
