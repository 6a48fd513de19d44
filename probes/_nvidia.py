"""NVIDIA GPUs through NVML (module pynvml of the distribution nvidia-ml-py).

Every field is asked for by itself: a card that lacks one still gives the others, and the reason is kept. Sources:
the NVML API reference for units (mJ since the driver was loaded, mW, MHz, degrees C), for what power means (a mean
over 1 s on Ampere and later except GA100, instantaneous before that and on GA100; field 186 is always the
instantaneous one) and for MIG (power and energy exist for the whole card only). The energy counter needs Volta or
later. Tested against a small C library that implements the same functions; no GPU has run this file yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokentrace.energy.device import Condition, Reading, SensorInfo
from tokentrace.probes._sensors import Found, Sensor, SensorError, Tried, now_ns

INSTALL = "pip install 'tokentrace[nvidia]'"
#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Idle and chosen clocks do not hold a card back.
THROTTLE_BITS = {
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x200: "board limit",
    0x400: "reliability",
}
CHOSEN_BITS = {0x001: "idle", 0x002: "application clocks", 0x100: "display clocks"}
_LIBRARY = "libnvidia-ml.so.1"
#: Sentence, fix, merely absent.
NO_LIBRARY = (
    f"the NVML library ({_LIBRARY}) was not found",
    "install the NVIDIA driver; in a container start it with --gpus all",
    True,
)
#: Distributions that have held the module pynvml; the deprecated ones no longer do in all versions.
_PROVIDERS = ("nvidia-ml-py", "nvidia-ml-py3", "pynvml")
_POLICIES = {"power": 0, "thermal": 1}  # NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL
_SECOND = 1_000_000_000
_POWER_EVERY_NS = 50_000_000
_FRESH_NS = 5 * _SECOND  # the driver's buffer is filled all the time, its newest sample is never older
_PERIOD_NS = 100_000_000  # assumed until the counter has been seen moving; 20 to 100 ms are reported


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """What holds the clocks down, in words; () when nothing does. Unknown bits are named by their value."""
    known = {**THROTTLE_BITS, **CHOSEN_BITS}
    reasons = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    rest = bits & ~sum(known)
    return (*reasons, f"unknown reason {rest:#x}") if rest else tuple(reasons)


def kernel_module_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of the loaded NVIDIA kernel module, "" when none is loaded or it cannot be read."""
    return _found_in(path, r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s")


def library_version(maps: Path = Path("/proc/self/maps")) -> str:
    """Version in the file name of the NVML library this process has mapped, "" when it is not mapped or unnamed."""
    return _found_in(maps, r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)\b")


def _found_in(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def library_missing() -> bool:
    """Is the driver's library surely not there? Asked first: it is quicker than importing pynvml, which is large."""
    if sys.platform != "linux" or "pynvml" in sys.modules or find_spec("pynvml") is None:
        return False
    try:
        ctypes.CDLL(_LIBRARY)  # by the name that pynvml loads
    except OSError:
        return True
    return False


def starting_error(pynvml: Any, code: int) -> tuple[str, str, bool]:
    """An NVML error while starting -> (sentence, fix, merely absent)."""
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NO_LIBRARY
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return (
            "the NVML library is there but the NVIDIA kernel module is not loaded",
            "sudo modprobe nvidia; in a container start it with --gpus all",
            False,
        )
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        kernel, library = kernel_module_version() or "unknown", library_version() or "another version"
        return (
            f"the NVML library ({library}) does not fit the loaded kernel module ({kernel}): "
            "monitoring is broken, compute may still work",
            "reboot, or unload and load the nvidia kernel modules; an update has replaced the library",
            False,
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return "NVML refused: no permission", "give this user access to /dev/nvidiactl and /dev/nvidia*", False
    return f"NVML did not start: {words(pynvml, code)}", "run nvidia-smi, it shows the same fault", False


def words(pynvml: Any, code: int) -> str:
    # Not str(NVMLError): that asks the library, which may be the thing that is missing.
    names: dict[int, str] = pynvml.NVMLError._errcode_to_string
    return names.get(code, f"NVML error {code}")


def discover() -> Found:
    """All NVIDIA cards NVML shows, each a sensor; or what is missing. Never raises."""
    found = Found()
    if library_missing():
        found.tried.append(Tried("NVML", *NO_LIBRARY))
        return found
    try:
        import pynvml
    except ImportError:
        found.tried.append(Tried("NVML", "module pynvml is not installed", INSTALL))
        return found
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        problem, fix, absent = starting_error(pynvml, error.value)
        found.tried.append(Tried("NVML", problem, fix, absent))
        return found
    except Exception as error:  # noqa: BLE001 - a foreign module named pynvml may raise anything
        found.tried.append(Tried("NVML", f"module pynvml failed: {error}", INSTALL, False))
        return found

    def close() -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return

    found.close = close
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        found.tried.append(Tried("NVML", f"cards cannot be counted: {words(pynvml, error.value)}", absent=False))
        return found
    if not count:
        found.tried.append(Tried("NVML", "the driver shows no card", "in a container start it with --gpus all"))
    for index in range(count):
        try:
            found.sensors.append(NvmlSensor(pynvml, index))
        except (SensorError, pynvml.NVMLError) as error:
            text = words(pynvml, error.value) if isinstance(error, pynvml.NVMLError) else str(error)
            found.tried.append(Tried(f"NVML card {index}", text, "run nvidia-smi, it shows the same fault", False))
    return found


def providers() -> list[str]:
    """Distributions that provide the module pynvml; more than one shadow each other.

    Only those that are known to are asked: the files of every installed package are many thousands.
    """
    found = []
    for name in _PROVIDERS:
        with contextlib.suppress(PackageNotFoundError):
            if any(file.parts[0] in ("pynvml", "pynvml.py") for file in distribution(name).files or ()):
                found.append(name)
    return found


class NvmlSensor(Sensor):
    """One whole card. Raises SensorError when neither energy nor power can be read."""

    def __init__(self, pynvml: Any, index: int) -> None:
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._power_ns = 0
        self.info = SensorInfo(id=f"nvidia-{index}", type="gpu", name=f"GPU {index}", vendor="NVIDIA", interface="NVML")
        self._describe(index)
        self._energy = self._try("energy counter", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        self._instant = self._try("instant power", self._instant_mw) is not None
        self._average = self._try("power", lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle)) is not None
        if self._energy is None and not self._instant and not self._average:
            raise SensorError("neither energy nor power can be read: " + self.info.fields["energy counter"])
        info = self.info
        self._kept = self._try("power history", self._samples) is not None
        info.assumed_period_ns = _PERIOD_NS
        if self._energy is not None:
            info.method, info.resolution_joules = "counter", 0.001
        else:
            info.method, info.poll_ns = "integration", 50_000_000
            info.averaging_ns = 0 if self._instant else self._averaging_ns()

    def _describe(self, index: int) -> None:
        nvml, handle, info = self._nvml, self._handle, self.info
        info.id = self._try("uuid", lambda: nvml.nvmlDeviceGetUUID(handle)) or info.id
        info.model = self._try("name", lambda: nvml.nvmlDeviceGetName(handle)) or ""
        info.name = f"GPU {index}" + (f" {info.model}" if info.model else "")
        info.driver_version = self._try("driver version", nvml.nvmlSystemGetDriverVersion) or ""
        limit = self._try("enforced power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        asked = self._try("power limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
        info.cap_w = None if limit is None else limit / 1000
        info.cap_requested_w = None if asked is None else asked / 1000
        info.max_clock_mhz = self._try("max clock", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        self._try("temperature", self._temperature)
        self._try("clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        self._try("throttle reasons", self._throttle)
        self._try("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        for name, policy in _POLICIES.items():
            self._try(f"time held back by {name}", partial(nvml.nvmlDeviceGetViolationStatus, handle, policy))
        self._describe_mig()
        processes = self._try("processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        info.pids = None if processes is None else frozenset(int(p.pid) for p in processes)

    def _describe_mig(self) -> None:
        nvml, handle, info = self._nvml, self._handle, self.info
        mode = self._try("MIG", lambda: nvml.nvmlDeviceGetMigMode(handle))
        if mode is None:
            return
        info.mig = mode[0] == 1
        if not info.mig:
            return
        slots = self._try("MIG slices", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
        info.mig_slices = 0
        for slot in range(slots or 0):
            try:
                nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                info.mig_slices += 1
            except nvml.NVMLError:
                continue  # an empty slot
        info.scope = f"whole card of {info.mig_slices} MIG slices"
        info.notes.append("MIG is on: power is measured for the whole card, other slices' work is included")

    def _try(self, name: str, call: Callable[[], Any]) -> Any:
        """The value, or None with the reason kept in `info.fields`."""
        try:
            value = call()
        except self._nvml.NVMLError as error:
            self.info.fields[name] = words(self._nvml, error.value)
            return None
        except (SensorError, AttributeError) as error:
            self.info.fields[name] = str(error)
            return None
        self.info.fields[name] = "yes"
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def _averaging_ns(self) -> int:
        try:
            capability = self._nvml.nvmlDeviceGetCudaComputeCapability(self._handle)
        except self._nvml.NVMLError:
            return _SECOND  # not known: the longer window is the safe answer
        return _SECOND if tuple(capability) > (8, 0) else 0  # (8, 0) is GA100

    def _instant_mw(self) -> int:
        nvml = self._nvml
        value = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise SensorError(words(nvml, value.nvmlReturn))
        return int(value.value.uiVal)

    def _temperature(self) -> int:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetTemperatureV(self._handle, nvml.NVML_TEMPERATURE_GPU))
        except (nvml.NVMLError, AttributeError):
            # Drivers and bindings before 560 have the older function only.
            return int(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU))

    def _throttle(self) -> int:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except (nvml.NVMLError, AttributeError):
            # The name before driver 535.
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def read(self) -> Reading:
        nvml = self._nvml
        before = now_ns()
        try:
            energy = None
            if self._energy is not None:
                energy = nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000
            after = now_ns()
            watts = None
            # Beside a counter power is only shown; asked for more often than 50 ms some drivers answer 0 or an error.
            if energy is not None and before - self._power_ns < _POWER_EVERY_NS:
                return Reading.within(before, after, energy)
            self._power_ns = before
            if self._instant:
                watts = self._instant_mw() / 1000
            elif self._average:
                watts = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
            if energy is None:
                after = now_ns()
        except nvml.NVMLError as error:
            raise SensorError(words(nvml, error.value)) from error
        return Reading.within(before, after, energy, watts)

    def _samples(self) -> list[tuple[int, float]]:
        nvml = self._nvml
        kind, samples = nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_TOTAL_POWER_SAMPLES, 0)
        if kind not in (nvml.NVML_VALUE_TYPE_UNSIGNED_INT, nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG):
            raise SensorError(f"power history has values of the unknown type {kind}")
        wide = kind == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        pairs = [(int(s.timeStamp), s.sampleValue.ullVal if wide else s.sampleValue.uiVal) for s in samples]
        # Slots that were never filled have time 0 or power 0.
        kept = sorted((stamp * 1000, milliwatts / 1000) for stamp, milliwatts in pairs if stamp and milliwatts)
        if kept and abs(kept[-1][0] - now_ns()) > _FRESH_NS:
            raise SensorError("power history is not on this machine's clock, or is old")
        return kept

    def history(self) -> list[tuple[int, float]]:
        if not self._kept:
            return []
        try:
            return self._samples()
        except self._nvml.NVMLError as error:
            raise SensorError(words(self._nvml, error.value)) from error

    def condition(self) -> Condition:
        nvml, fields = self._nvml, self.info.fields
        result = Condition(now_ns())
        try:
            if fields.get("temperature") == "yes":
                result.temperature_c = float(self._temperature())
            if fields.get("clock") == "yes":
                result.clock_mhz = float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            if fields.get("throttle reasons") == "yes":
                result.throttle = throttle_reasons(self._throttle())
            if fields.get("utilization") == "yes":
                result.utilization = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            for name, policy in _POLICIES.items():
                if fields.get(f"time held back by {name}") == "yes":
                    status = nvml.nvmlDeviceGetViolationStatus(self._handle, policy)
                    result.throttled_ns[name] = int(status.violationTime)
        except nvml.NVMLError as error:
            raise SensorError(words(nvml, error.value)) from error
        return result


def visible_devices() -> str:
    """CUDA_VISIBLE_DEVICES as this process has it, "" when unset: CUDA's numbers are positions in that list."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")
