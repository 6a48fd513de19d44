"""rocprofv3 JSON results ({"rocprofiler-sdk-tool": [...]}): dispatches, HIP calls, copies, markers, as columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from tokentrace import gpu_events
from tokentrace.errors import UsageError
from tokentrace.importers import _rocprof_salvage, _source, columns
from tokentrace.importers.columns import NONE, Array, Events, Lost, Parts

KEY = b'"rocprofiler-sdk-tool"'
_HIP = ("hip_api", "hip_compiler_api", "hip_runtime_api")
_MARKER = ("marker_api", "roctx_api")
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class _Handle(msgspec.Struct, gc=False):
    handle: int = 0


class _Correlation(msgspec.Struct, gc=False):
    internal: int = 0
    external: int | dict[str, Any] = 0


class _Size(msgspec.Struct, gc=False):
    x: int = 0
    y: int = 0
    z: int = 0


class _Dispatch(msgspec.Struct, gc=False):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = -1
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Record(msgspec.Struct, gc=False):
    start_timestamp: int = 0
    end_timestamp: int = 0
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    dispatch_info: _Dispatch = msgspec.field(default_factory=_Dispatch)
    stream_id: _Handle | None = None
    dst_agent_id: _Handle | None = None
    src_agent_id: _Handle | None = None
    bytes: int = -1
    name: str = ""


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Agent(msgspec.Struct, gc=False):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int = 0
    product_name: str = ""
    logical_node_type_id: int = -1
    node_id: int = -1
    domain: int = 0
    location_id: int = 0
    uuid: msgspec.Raw = msgspec.Raw(b"")


class _Operations(msgspec.Struct, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct, gc=False):
    key: int = 0  # the marker's correlation id
    value: str = ""


class _Strings(msgspec.Struct, gc=False):
    buffer_records: list[_Operations] = []
    marker_api: list[_Message] = []


class _Metadata(msgspec.Struct, gc=False):
    pid: int = 0


class _Tool(msgspec.Struct, gc=False):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    agents: msgspec.Raw = msgspec.Raw(b"[]")
    kernel_symbols: msgspec.Raw = msgspec.Raw(b"[]")
    strings: msgspec.Raw = msgspec.Raw(b"{}")
    buffer_records: dict[str, msgspec.Raw] = {}


class _File(msgspec.Struct, gc=False):
    tools: list[_Tool] = msgspec.field(default_factory=list, name="rocprofiler-sdk-tool")


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Events:
    """All processes of a result. Of a damaged one what is readable is taken and what is lost is counted in
    `Events.lost`. Raises UsageError when the file is larger than the memory there is: its parts need each other.
    """
    lost = Lost()
    text = _whole(path, lost, progress)
    try:
        tools = msgspec.json.decode(text, type=_File).tools
    except (msgspec.DecodeError, RecursionError) as error:
        lost.add(0, f"the result is damaged or cut: {columns.clean(str(error), 200)}", torn=True)
        tools = [_salvaged(found) for found in _rocprof_salvage.parts(text, lost)]
    del text
    parts = Parts()
    gpus = _Gpus()
    products: list[str] = []
    for number, tool in enumerate(tools):
        agents = _list(tool.agents, _Agent, "agents", lost)
        process = _one(tool.metadata, _Metadata, "metadata", lost).pid
        _tool(parts, number, tool, process, gpus.of_process(agents, process), lost)
        products += [columns.clean(agent.product_name, 80) for agent in agents if agent.type == 2]
    facts: dict[str, Any] = {"devices": products, "hip_calls_recorded": _has_calls(tools)}
    if gpus.by_number and len(tools) > 1:
        facts["gpus_by_number"] = True
    return parts.finish(path.name, base_ns=None, facts=facts, lost=lost)


def _whole(path: Path, lost: Lost, progress: Callable[[int], None] | None) -> bytes:
    import psutil

    pieces = []
    size = 0
    for piece in _source.chunks(path, lost):
        pieces.append(piece)
        size += len(piece)
        if progress:
            progress(size)
        # The pieces, their sum and the records decoded from it are held at once.
        if size > 1 << 26 and psutil.virtual_memory().available < 2 * size:
            raise UsageError(
                f"{path.name} has more than {size >> 20:,} MiB, too many for this machine's memory",
                fix="record fewer steps; a rocprofv3 result can only be read as a whole",
            )
    return b"".join(pieces)


def _salvaged(found: dict[str, msgspec.Raw]) -> _Tool:
    own = {key: found.pop(key) for key in ("metadata", "agents", "kernel_symbols", "strings") if key in found}
    return _Tool(**own, buffer_records=found)


def _has_calls(tools: list[_Tool]) -> bool:
    return any(len(bytes(tool.buffer_records.get(key, b""))) > 8 for tool in tools for key in _HIP)


def _list(raw: msgspec.Raw, kind: type[_Kind], name: str, lost: Lost) -> list[_Kind]:
    return cast("list[_Kind]", _rocprof_salvage.decoded(raw, kind, name, lost))


def _one(raw: msgspec.Raw, kind: type[_Kind], name: str, lost: Lost) -> _Kind:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        lost.add(1, f"'{name}' of the result could not be read")
        return kind()


def _records(tool: _Tool, key: str, lost: Lost) -> list[_Record]:
    raw = tool.buffer_records.get(key)
    return [] if raw is None else _list(raw, _Record, key, lost)


class _Gpus:
    """What the GPUs of all processes are called: by their number among the GPUs, as HIP and Kineto do. (The handle
    means nothing outside the process.)

    That number counts only the GPUs a process may see, so two processes in two containers may each call another one 0.
    The kernel's number of the node (/sys/class/kfd/kfd/topology/nodes) counts all there are, and its place on the bus
    and its serial number are its own: where these differ, so do the GPUs. Source: read_topology() of rocprofiler-sdk's
    agent.cpp.
    """

    def __init__(self) -> None:
        self.by_number = False  # of some nothing but that number is known
        self._name_of: dict[tuple[int, int, int, bytes], str] = {}

    def of_process(self, agents: list[_Agent], process: int) -> dict[int, str]:
        """handle -> name"""
        found = {}
        for agent in agents:
            if agent.type != 2 or agent.logical_node_type_id < 0:
                continue
            name = str(agent.logical_node_type_id)
            if agent.node_id >= 0:
                key = (agent.node_id, agent.domain, agent.location_id, bytes(agent.uuid))
                if key not in self._name_of:
                    self._name_of[key] = self._free(name, process)
                name = self._name_of[key]
            else:
                self.by_number = True
            found[agent.id.handle] = name
        return found

    def _free(self, number: str, process: int) -> str:
        """A name that no other GPU has: in two containers also the processes may have one number."""
        taken = set(self._name_of.values())
        name, again = number, 1
        while name in taken:
            name = f"{number} of process {process}" + (f" ({again})" if again > 1 else "")
            again += 1
        return name


def _tool(parts: Parts, number: int, tool: _Tool, process: int, gpus: dict[int, str], lost: Lost) -> None:
    known = _list(tool.kernel_symbols, _Symbol, "kernel_symbols", lost)
    symbols = {symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name for symbol in known}
    strings = _one(tool.strings, _Strings, "strings", lost)
    operations = strings.buffer_records
    # A marker's own text stands apart, under its correlation id; its operation is only "roctxThreadRangeA".
    messages = {message.key: message.value for message in strings.marker_api}

    def operation(record: _Record, marker: bool = False) -> str:
        if record.name:
            return record.name
        if marker and (text := messages.get(record.correlation_id.internal)):
            return text
        names = operations[record.kind].operations if 0 <= record.kind < len(operations) else []
        return names[record.operation] if 0 <= record.operation < len(names) else f"operation {record.operation}"

    def keys(records: list[_Record]) -> Array:
        # Zero stands for "none"; ids count per process. What does not fit below the process is no id either.
        ids = (record.correlation_id.internal for record in records)
        return np.array([(number << 40) | ident if 0 < ident < 2**40 else NONE for ident in ids], np.int64)

    dispatches = _records(tool, "kernel_dispatch", lost)
    info = [record.dispatch_info for record in dispatches]
    parts.add(
        gpu_events.KERNEL,
        *_times(dispatches),
        name=_codes(parts.names, [symbols.get(i.kernel_id) or f"kernel {i.kernel_id}" for i in info]),
        track=_codes(parts.tracks, [("gpu", _name(i.agent_id, gpus)) for i in info]),
        device=_codes(parts.devices, [_name(i.agent_id, gpus) for i in info]),
        stream=_codes(parts.streams, [i.queue_id.handle for i in info]),
        correlation=keys(dispatches),
        detail=_codes(parts.details, [_geometry(i) for i in info]),
    )
    copies = _records(tool, "memory_copy", lost)
    parts.add(
        gpu_events.MEMCPY,
        *_times(copies),
        name=_codes(parts.names, ["Memcpy " + operation(r).removeprefix("MEMORY_COPY_").lower() for r in copies]),
        track=_codes(parts.tracks, [("gpu", _gpu(r, gpus)) for r in copies]),
        device=_codes(parts.devices, [_gpu(r, gpus) for r in copies]),
        stream=_codes(parts.streams, [r.stream_id.handle if r.stream_id else 0 for r in copies]),
        correlation=keys(copies),
        bytes=np.array([r.bytes if 0 <= r.bytes < 2**63 else -1 for r in copies], np.int64),
    )
    for kind, names in ((gpu_events.RUNTIME, _HIP), (gpu_events.ANNOTATION, _MARKER)):
        for key in names:
            records = _records(tool, key, lost)
            parts.add(
                kind,
                *_times(records),
                name=_codes(parts.names, [operation(record, kind == gpu_events.ANNOTATION) for record in records]),
                track=_codes(parts.tracks, [(process, record.thread_id) for record in records]),
                correlation=keys(records),
            )


def _times(records: list[_Record]) -> tuple[Array, Array]:
    limit = 2**63 - 1  # no clock shows this: such rows are dropped and counted with those of other recordings
    return (np.array([min(max(r.start_timestamp, -limit), limit) for r in records], np.int64),
            np.array([min(max(r.end_timestamp, -limit), limit) for r in records], np.int64))  # fmt: skip


def _codes(interner: columns.Interner, values: list[Any]) -> Array:
    return np.array([interner[value] for value in values], np.int32)


def _geometry(info: _Dispatch) -> str:
    grid, block = info.grid_size, info.workgroup_size
    return f"[{grid.x},{grid.y},{grid.z}] x [{block.x},{block.y},{block.z}]"


def _name(agent: _Handle, gpus: dict[int, str]) -> str:
    return gpus.get(agent.handle, str(agent.handle))


def _gpu(record: _Record, gpus: dict[int, str]) -> str:
    """The GPU that a copy goes to, or else comes from; where neither end is known to be one, an end's handle."""
    ends = [agent for agent in (record.dst_agent_id, record.src_agent_id) if agent]
    end = next((agent for agent in ends if agent.handle in gpus), ends[0] if ends else _Handle())
    return _name(end, gpus)
