"""What NVML tells of each NVIDIA card beside its power: memory and who holds it, capability, modes, memory faults.

Every field is asked for by itself, as in `_nvidia`; a card that fails does not hide the others. Sources: the NVML API
reference (memory in bytes; compute mode 0 to 3; remapped rows: correctable, uncorrectable, pending, failed) and the
CUDA programming guide for compute capability. Tested against a small C library with the same functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokentrace.probes import _nvidia

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(slots=True)
class Card:
    """None: the driver does not say; the reason is in `fields` under the field's name."""

    index: int
    name: str = ""
    uuid: str = ""
    capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc_errors: int | None = None  # uncorrected since the driver was loaded
    rows_pending: bool | None = None  # memory rows that wait for a reset to be replaced
    rows_failed: bool | None = None
    processes: dict[int, int | None] | None = None  # pid -> bytes; pids are the host's
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def unified(self) -> bool:
        """The card has no memory of its own (GB10): the driver knows its name but says memory is not supported."""
        return self.total_bytes is None and "not supported" in self.fields.get("memory", "").lower()


@dataclass(slots=True)
class Cards:
    cards: list[Card] = field(default_factory=list)
    problem: str = ""  # why there are none
    driver_cuda: str = ""  # newest CUDA that the driver knows, such as 12.4


def read() -> Cards:
    """Every card once. Never raises."""
    try:
        import pynvml
    except ImportError:
        return Cards(problem=f"module pynvml is not installed; {_nvidia.INSTALL}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Cards(problem=_nvidia.starting_error(pynvml, error.value)[0])
    except Exception as error:  # noqa: BLE001 - a foreign module named pynvml may raise anything
        return Cards(problem=f"module pynvml failed: {error}")
    try:
        return _all(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _all(nvml: Any) -> Cards:
    found = Cards()
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        found.driver_cuda = f"{version // 1000}.{version % 1000 // 10}"
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        found.problem = f"cards cannot be counted: {_nvidia.words(nvml, error.value)}"
        return found
    for index in range(count):
        card = Card(index)
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            card.fields["handle"] = _nvidia.words(nvml, error.value)
        else:
            _fill(nvml, handle, card)
        found.cards.append(card)
    return found


def _fill(nvml: Any, handle: Any, card: Card) -> None:
    def ask(name: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except nvml.NVMLError as error:
            card.fields[name] = _nvidia.words(nvml, error.value)
            return None
        except AttributeError as error:
            card.fields[name] = str(error)
            return None
        card.fields[name] = "yes"
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    card.name = ask("name", lambda: nvml.nvmlDeviceGetName(handle)) or ""
    card.uuid = ask("uuid", lambda: nvml.nvmlDeviceGetUUID(handle)) or ""
    capability = ask("compute capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    card.capability = None if capability is None else (int(capability[0]), int(capability[1]))
    memory = ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is not None and int(memory.total) > 0:
        card.total_bytes, card.free_bytes = int(memory.total), int(memory.free)
    mode = ask("compute mode", lambda: nvml.nvmlDeviceGetComputeMode(handle))
    card.compute_mode = None if mode is None else COMPUTE_MODES.get(int(mode), f"mode {mode}")
    persistence = ask("persistence mode", lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    card.persistence = None if persistence is None else bool(persistence)
    mig = ask("MIG", lambda: nvml.nvmlDeviceGetMigMode(handle))
    card.mig = None if mig is None else mig[0] == 1
    card.ecc_errors = ask(
        "ECC errors",
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    rows = ask("remapped rows", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if rows is not None:
        card.rows_pending, card.rows_failed = bool(rows[2]), bool(rows[3])
    running = ask("processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if running is not None:
        card.processes = {int(p.pid): None if p.usedGpuMemory is None else int(p.usedGpuMemory) for p in running}
