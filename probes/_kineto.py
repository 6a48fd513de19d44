"""A profiler's events (torch.profiler, Kineto) as arrays: what each is, what encloses it, what launched it.

Pure functions over numpy arrays; nothing here talks to a process. Times are ns, rows are event numbers, -1 is "none".

Kinds follow libkineto's activity types (ActivityType.cpp). One thing is not what it seems: every record_function block
and every code path that torch itself marks arrives as `cpu_op` like a real operator. Operators carry a namespace
(`aten::mm`, `mkldnn::_linear_pointwise`), marks do not; so the name decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentrace import gpu_events
from tokentrace.probe import Columns

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

KERNEL, MEMCPY, MEMSET = gpu_events.KERNEL, gpu_events.MEMCPY, gpu_events.MEMSET
OPERATOR, MARK, COMPILED = gpu_events.OPERATOR, gpu_events.ANNOTATION, gpu_events.COMPILED
RUNTIME, OTHER = gpu_events.RUNTIME, gpu_events.OTHER
#: Kinds that run on the device, beside the host's threads.
DEVICE_KINDS = (KERNEL, MEMCPY, MEMSET)

_HOST = ("cpu_op", "operator", "")

#: An operator's name: namespace and name, as `TORCH_LIBRARY` registers them.
_OPERATOR = re.compile(r"^[A-Za-z_]\w*::\w")
#: A C++ kernel that inductor generated; it reports its time only with torch._inductor.config.cpp.enable_kernel_profile.
_COMPILED = re.compile(r"^(graph_\d+_)?cpp_\w+$")
#: Calls of the CUDA and HIP runtime and driver, recognized by name where the profiler does not say what they are.
_CALL = re.compile(r"^(cuda|cu|hip)[A-Z]\w*$")

#: Copies that return when they are done, beside the calls that only wait.
_WAITING_COPY = re.compile(r"^(cudaMemcpy|hipMemcpy)(_v\d+|_ptsz|_spt)*$")

#: Operators that only make another view of the same memory, or none: nothing is computed in them. Source: the
#: functions with a `-> Tensor(a)` schema in torch's native_functions.yaml that prefill and decode steps meet.
BOOKKEEPING = frozenset(
    "aten::" + name
    for name in (
        *("alias", "as_strided", "chunk", "detach", "expand", "expand_as", "lift_fresh", "narrow", "permute"),
        *("resolve_conj", "resolve_neg", "result_type", "select", "slice", "split", "split_with_sizes", "squeeze", "t"),
        *("transpose", "unbind", "unsafe_split", "unsqueeze", "view", "view_as", "_unsafe_view", "_reshape_alias"),
        *("unflatten", "movedim", "swapaxes", "is_nonzero", "empty", "empty_like", "empty_strided", "new_empty"),
        *("new_empty_strided", "resize_", "set_"),
    )
)


#: Operators that compute in a kernel of their own even where they first call others, to convert a number or to copy a
#: bias: the products, and what torch builds on its TensorIterator.
COMPUTES = frozenset(
    "aten::" + name
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "add", "add_", "sub", "sub_", "mul", "mul_", "div"),
        *("div_", "pow", "pow_", "sum", "cumsum", "isin"),
    )
)


@dataclass(slots=True)
class Events:
    """Rows of one process. `thread` is the system's thread id of host rows; `shape` and `geometry` index their lists
    (-1 none); `correlation` joins a device row to the call that caused it; `bytes` of copies, -1 unknown."""

    process: str
    kind: NDArray[np.int8]
    name: Ints
    start: Ints
    end: Ints
    thread: Ints
    correlation: Ints
    shape: Ints
    device: Ints
    stream: Ints
    bytes: Ints
    geometry: Ints
    names: list[str]
    shapes: list[str]
    geometries: list[str]
    header: dict[str, Any] = field(default_factory=dict)
    outside: int = 0  # events that were recorded but do not belong to the request's window

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, *kinds: int) -> Ints:
        return np.flatnonzero(np.isin(self.kind, kinds))

    def waits(self) -> Mask:
        """Bool per row: is it a call in which the host waits for the device?"""
        waiting = self.matching(gpu_events.BLOCKING_SYNC) | self.matching(_WAITING_COPY)
        return np.asarray(waiting & (self.kind == RUNTIME), np.bool_)

    def matching(self, pattern: re.Pattern[str]) -> Mask:
        """Bool per row: does its name match?"""
        found = np.fromiter((pattern.match(n) is not None for n in self.names), np.bool_, len(self.names))
        return found[self.name]


def classify(activity: str, name: str, device_type: str = "CPU") -> int:
    """The kind of an event from what the profiler says of it. `activity` is "" where torch does not tell it; then the
    device and the name decide, as in torch's own reader.
    """
    if activity not in _HOST:
        return gpu_events.CATEGORIES.get(activity, OTHER)
    if device_type not in ("CPU", ""):
        if name.startswith(("Memcpy", "CopyHost", "CopyDevice")):
            return MEMCPY
        return MEMSET if name.startswith("Memset") else KERNEL
    if _COMPILED.match(name):
        return COMPILED
    if _OPERATOR.match(name):
        return OPERATOR
    return RUNTIME if not activity and _CALL.match(name) else MARK


def is_operator(name: str) -> bool:
    """Does the name carry a namespace, as every registered operator's does?"""
    return _OPERATOR.match(name) is not None


def from_columns(
    columns: Columns,
    window: tuple[int, int] | None = None,
    others: tuple[Ints, Ints] | None = None,
) -> Events:
    """The events that belong to a request: those that overlap `window` (start, end) and do not start inside one of
    `others`, disjoint ordered intervals (starts, ends) in which the engine worked for other requests only.

    The order of rows is by start; an event that ends before it starts is kept with length 0.
    """
    header, arrays = columns.header, columns.arrays
    start = np.asarray(arrays["start_ns"], np.int64)
    end = np.maximum(start, np.asarray(arrays["end_ns"], np.int64))
    keep = np.ones(len(start), np.bool_)
    if window is not None:
        keep &= (start < window[1]) & (end > window[0])
    if others is not None and len(others[0]):
        at = np.searchsorted(others[0], start, "right") - 1
        keep &= ~((at >= 0) & (start < others[1][np.maximum(at, 0)]))
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((-end[rows], start[rows]))]

    def column(name: str) -> Ints:
        return np.asarray(arrays[name])[rows].astype(np.int64)

    names = [str(n) for n in header["names"]]
    name, activity, device_type = column("name"), column("kind"), column("device_type")
    # The kind depends on three interned columns, so it is worked out once for each combination that occurs.
    combined = np.stack((name, activity, device_type), axis=1) if len(rows) else np.empty((0, 3), np.int64)
    unique, inverse = np.unique(combined, axis=0, return_inverse=True)
    of_unique = np.fromiter(
        (classify(header["kinds"][k], names[n], header["device_types"][d]) for n, k, d in unique.tolist()),
        np.int8,
        len(unique),
    )
    return Events(
        process=columns.process,
        kind=of_unique[inverse.reshape(-1)] if len(rows) else np.empty(0, np.int8),
        name=name,
        start=start[rows],
        end=end[rows],
        thread=column("thread"),
        correlation=column("correlation"),
        shape=column("shape"),
        device=column("device"),
        stream=column("stream"),
        bytes=column("bytes"),
        geometry=column("geometry"),
        names=names,
        shapes=[str(s) for s in header["shapes"]],
        geometries=[str(g) for g in header["geometries"]],
        header=header,
        outside=len(start) - len(rows),
    )


def nest(start: Ints, end: Ints, thread: Ints) -> Ints:
    """For each row the row of its thread that encloses it most closely (equal ends included), -1 where there is none.

    Of two rows with the same times the earlier row is the outer one. Of rows that overlap without nesting, which those
    of one thread do not do, the later one takes what both enclose.
    """
    order, found = gpu_events.nest(start, end, thread)
    parents = np.empty(len(order), np.int64)
    parents[order] = found
    return parents


def self_times(start: Ints, end: Ints, parent: Ints) -> Ints:
    """Duration of each row without its direct children, ns."""
    own = end - start
    inner = np.zeros(len(own), np.int64)
    inside = parent >= 0
    np.add.at(inner, parent[inside], own[inside])
    return np.asarray(np.maximum(own - inner, 0), np.int64)


def last_visible(names: Sequence[str], name: Ints, parent: Ints) -> Mask:
    """Bool per row: is this the last operator that can be seen on the way to the chip?

    It is, when nothing lies below it but bookkeeping (a matrix product first asks its arguments whether they are
    conjugated: `aten::mm` has children, and still computes itself). Bookkeeping itself is, when nothing at all lies
    below it. Operators in `COMPUTES` always are. `parent` as `nest` gives it.
    """
    computes = np.fromiter((n in COMPUTES for n in names), np.bool_, len(names))[name]
    bookkeeping = np.fromiter((n in BOOKKEEPING for n in names), np.bool_, len(names))[name]
    has_any = np.zeros(len(name), np.bool_)
    has_work = np.zeros(len(name), np.bool_)
    inside = parent >= 0
    has_any[parent[inside]] = True
    has_work[parent[inside & ~bookkeeping]] = True
    return np.asarray(computes | np.where(bookkeeping, ~has_any, ~has_work), np.bool_)


@dataclass(slots=True)
class Launches:
    """Device work and its causes. `call_of` runs along `work` (rows of kernels, copies and sets) and holds the row of
    the call with the same correlation id, -1 for an orphan. `calls` are the rows of kernel and graph launches."""

    work: Ints
    call_of: Ints
    calls: Ints
    graphs: Mask  # along `calls`

    @property
    def orphans(self) -> Ints:
        return self.work[self.call_of < 0]


def join_launches(events: Events) -> Launches:
    """Join by correlation id, which the driver's tracing interface writes on both sides. A graph launch owns every
    kernel of the graph. Where several calls carry the id (a runtime call and the driver call inside it) a launch wins,
    then the earliest.
    """
    called = events.rows(RUNTIME)
    graph = events.matching(gpu_events.GRAPH_LAUNCH)[called]
    launch = events.matching(gpu_events.LAUNCH)[called] | graph
    work = events.rows(*DEVICE_KINDS)
    usable = events.correlation[called] > 0
    among = called[usable]
    at = gpu_events.first_with_id(
        events.correlation[work], events.correlation[among], events.start[among], ~launch[usable]
    )
    call_of = np.append(among, -1)[at]
    return Launches(work=work, call_of=call_of, calls=called[launch], graphs=graph[launch])


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters: what a person calls it.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)")
    'at::native::vectorized_elementwise_kernel'
    """
    text = name.removeprefix("void ").replace("(anonymous namespace)", "{anonymous}")
    cut = len(text)
    for mark in "<(":
        at = text.find(mark)
        if at > 0:
            cut = min(cut, at)
    return text[:cut].strip() or name
