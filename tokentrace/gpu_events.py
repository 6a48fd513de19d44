"""Events of a GPU profiler, whoever recorded them: what each is, which calls launch work, how ids and times join.

Shared by the probes (raw events of a running profiler) and the importers (recordings): one reading of the same things.
Times are ns; positions are into the arrays given, -1 is "none".
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# What an event is. The order says nothing but this: kinds below GPU_KINDS run on the device.
KERNEL, MEMCPY, MEMSET, GPU_ANNOTATION, SYNC, GPU_KINDS = 0, 1, 2, 3, 4, 5
OPERATOR, RUNTIME, PYTHON, ANNOTATION, OVERHEAD, OTHER, ENVELOPE, COMPILED = 5, 6, 7, 8, 9, 10, 11, 12
KIND_NAMES = ("kernel", "memcpy", "memset", "gpu annotation", "sync", "operator", "runtime", "python", "mark",
              "overhead", "other", "envelope", "compiled kernel")  # fmt: skip

#: Category of an event (lower case) -> kind. Sources: libkineto's ActivityType.cpp (2021 to 2026) and the 2021 writer,
#: which used "Operator", "Runtime", "Kernel", "Memcpy", "Memset".
CATEGORIES = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "gpu_user_annotation": GPU_ANNOTATION,
    "cuda_sync": SYNC,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "cuda runtime": RUNTIME,
    "runtime": RUNTIME,
    "hip_runtime": RUNTIME,
    "hip_driver": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "python_function": PYTHON,
    "user_annotation": ANNOTATION,
    "overhead": OVERHEAD,
    "trace": ENVELOPE,
}

_SUFFIX = r"(_v\d+|_ptsz|_spt)*$"
LAUNCH = re.compile(
    r"^(cudaLaunchKernel(ExC)?|cudaLaunchCooperativeKernel(MultiDevice)?|cuLaunchKernel(Ex)?|cuLaunchCooperativeKernel"
    r"|hipLaunchKernel(ExC)?|hipModuleLaunchKernel|hipExtModuleLaunchKernel|hipExtLaunchKernel"
    r"|hipLaunchCooperativeKernel|hipModuleLaunchCooperativeKernel|hipHccModuleLaunchKernel|hipDrvLaunchKernelEx"
    r"|(ur|pi)Enqueue(Cooperative)?KernelLaunch\w*|zeCommandListAppendLaunch(Cooperative)?Kernel\w*)" + _SUFFIX
)
GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch" + _SUFFIX)
CAPTURE = re.compile(r"^(cuda|cu|hip)(StreamBeginCapture\w*|StreamEndCapture|GraphInstantiate\w*)" + _SUFFIX)
#: Calls in which the host waits for the device. A copy may wait, too; whether one did, only its times can tell.
BLOCKING_SYNC = re.compile(
    r"^(cuda(Device|Stream|Event|Thread)Synchronize|cu(Ctx|Stream|Event)Synchronize"
    r"|hip(Device|Stream|Event)Synchronize|(ur|pi)(EventWait|EventsWait|QueueFinish)"
    r"|zeCommandQueueSynchronize|zeEventHostSynchronize)" + _SUFFIX
)
COPY_CALL = re.compile(r"^(cuda|cu|hip)(Memcpy|Memset)\w*$|^(ur|pi)EnqueueUSMMemcpy")
#: Device memory taken from or given back to the driver; most of these wait for the device.
MEMORY_CALL = re.compile(r"^(cuda|hip|cu)(Mem)?(Malloc|Free|Alloc|HostAlloc|HostMalloc|HostFree|FreeHost)\w*$")
MODULE_LOAD = re.compile(
    r"^(cu|hip)(Module|Library)Load\w*$|^(cuda)(Library|Module)Load\w*$|^(nvrtc|hiprtc)CompileProgram$|^cuLink\w+$"
)


def nest(start: Ints, end: Ints, track: NDArray[Any]) -> tuple[Ints, Ints]:
    """(positions in order of track, start and falling end; for each the position of the smallest row that contains
    it, -1 where there is none).

    A row is a child only of rows of its own track. Ends are included, so that a call of zero length at the very end
    of an operator (whole-microsecond recordings) stays inside it; of two rows with the same times the earlier one is
    the outer. Rows that overlap without containing each other become siblings.
    """
    order = np.lexsort((-end, start, track))
    parents = np.empty(len(order), np.int64)
    ends: list[int] = []
    open_rows: list[int] = []
    current = None
    rows = zip(order.tolist(), end[order].tolist(), track[order].tolist(), strict=True)
    for index, (row, row_end, row_track) in enumerate(rows):
        if row_track != current:
            current = row_track
            ends.clear()
            open_rows.clear()
        while ends and ends[-1] < row_end:
            ends.pop()
            open_rows.pop()
        parents[index] = open_rows[-1] if open_rows else -1
        ends.append(row_end)
        open_rows.append(row)
    return order, parents


def first_with_id(wanted: Ints, have: Ints, *keys: NDArray[Any]) -> Ints:
    """For each wanted id the position of the first of `have` that equals it, -1 where there is none. First by `keys`,
    arrays along `have`, the most important one last.
    """
    if not len(have) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    order = np.lexsort((*keys, have))
    sorted_ids = have[order]
    at = np.minimum(np.searchsorted(sorted_ids, wanted, "left"), len(sorted_ids) - 1)
    return np.where(sorted_ids[at] == wanted, order[at], -1)
