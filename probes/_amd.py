"""AMD GPUs through AMD SMI (module amdsmi), and through the amdgpu driver's hwmon folder where that is missing.

Sources: the AMD SMI reference. Energy in microjoules = accumulator x counter_resolution (15.259 uJ, 2^-16 J, on the
boards documented); socket power in watts; caps in microwatts on bare metal and watts on a virtualization host;
temperature in degrees C. hwmon: power in microwatts, temperature in millidegrees C, frequency in hertz
(Documentation/gpu/amdgpu/thermal.rst). Tested with amdsmi's own Python code over a small C library and with
folders laid out like hwmon's; no AMD GPU has run this file yet.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokentrace.energy.device import Condition, Reading, SensorInfo
from tokentrace.probes._sensors import (
    HWMON,
    Found,
    Sensor,
    SensorError,
    Tried,
    now_ns,
    number_if_any,
    number_in,
    text_in,
)

#: Where ROCm packages put the Python module, outside of every virtual environment.
ROCM_MODULE = Path("/opt/rocm/share/amd_smi")
INSTALL = "pip install 'tokentrace[amd]' and install the amd-smi-lib package of ROCm"
DEV = Path("/dev")
#: amdsmi_get_violation_status keys that say what holds the clocks down now.
_VIOLATIONS = {
    "active_ppt_pwr": "package power limit",
    "active_socket_thrm": "socket thermal limit",
    "active_hbm_thrm": "memory thermal limit",
    "active_vr_thrm": "voltage regulator thermal limit",
    "active_prochot_thrm": "processor hot",
}


def _import_amdsmi() -> Any:
    """The module amdsmi. It prints to stdout when its C library is missing and then fails with a KeyError."""
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module("amdsmi")


def device_nodes(root: Path = DEV) -> list[Tried]:
    """The device nodes AMD SMI and HIP need and this user may not open."""
    problems = []
    for node in [root / "kfd", *sorted((root / "dri").glob("renderD*"))]:
        if node.exists() and not os.access(node, os.R_OK | os.W_OK):
            problems.append(
                Tried(str(node), "no permission", "sudo usermod -aG render,video $USER and log in again", absent=False)
            )
    return problems


def discover(
    *,
    load: Callable[[], Any] = _import_amdsmi,
    hwmon_root: Path = HWMON,
    dev_root: Path = DEV,
    rocm: Path = ROCM_MODULE,
) -> Found:
    """All AMD GPUs: through AMD SMI, else through hwmon; or what is missing. Never raises."""
    found = _amdsmi(load, rocm)
    if found.sensors:
        return found
    found.sensors.extend(_hwmon(hwmon_root, found.tried))
    found.tried.extend(device_nodes(dev_root))
    return found


def _amdsmi(load: Callable[[], Any], rocm: Path) -> Found:
    found = Found()
    try:
        smi = load()
    except ImportError:
        fix = f"export PYTHONPATH={rocm}:$PYTHONPATH" if rocm.is_dir() else INSTALL
        where = f" here, but it lies in {rocm}" if rocm.is_dir() else ""
        found.tried.append(Tried("AMD SMI", f"module amdsmi is not installed{where}", fix))
        return found
    except (KeyError, OSError, AttributeError):
        found.tried.append(Tried("AMD SMI", "module amdsmi is there but not its library libamd_smi.so", INSTALL))
        return found
    except Exception as error:  # noqa: BLE001 - a foreign module may raise anything while it loads
        found.tried.append(Tried("AMD SMI", f"module amdsmi failed: {error}", INSTALL, False))
        return found
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except smi.AmdSmiException as error:
        nodes = "; check /dev/kfd and /dev/dri/renderD*"
        found.tried.append(Tried("AMD SMI", f"did not start: {_words(error)}{nodes}", "run amd-smi list", False))
        return found

    def close() -> None:
        with contextlib.suppress(smi.AmdSmiException):
            smi.amdsmi_shut_down()

    found.close = close
    if not handles:
        found.tried.append(Tried("AMD SMI", "the driver shows no GPU"))
    for index, handle in enumerate(handles):
        try:
            found.sensors.append(AmdSmiSensor(smi, handle, index))
        except SensorError as error:
            found.tried.append(Tried(f"AMD SMI GPU {index}", str(error), "run amd-smi metric -p", False))
    return found


def _words(error: Exception) -> str:
    """An AMD SMI error in words; its own text spreads over two lines."""
    info = getattr(error, "err_info", "") or str(error) or type(error).__name__
    return " ".join(str(info).split())


def _known(value: Any) -> float | None:
    """A number of AMD SMI, or None for its ways of saying "not available" ("N/A", all bits set)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return None if value in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) else float(value)


def _cap_w(value: Any) -> float | None:
    """A power cap in watts. It comes in microwatts or watts: no board has a cap of 100 kW, nor one below 0.1 W."""
    known = _known(value)
    if not known:
        return None
    return known / 1e6 if known >= 1e5 else known


def _temperature_c(value: Any) -> float | None:
    """Degrees C. ROCm before 6 gave millidegrees: nothing that runs is at 1000 degrees or more."""
    known = _known(value)
    if known is None:
        return None
    return known / 1000 if known >= 1000 else known


class AmdSmiSensor(Sensor):
    """One GPU. Raises SensorError when neither energy nor power can be read."""

    def __init__(self, smi: Any, handle: Any, index: int) -> None:
        self._smi, self._handle = smi, handle
        self.info = SensorInfo(id=f"amd-{index}", type="gpu", name=f"GPU {index}", vendor="AMD", interface="AMD SMI")
        info = self.info
        info.id = self._try("uuid", lambda: smi.amdsmi_get_gpu_device_uuid(handle)) or info.id
        asic = self._try("name", lambda: smi.amdsmi_get_gpu_asic_info(handle)) or {}
        market = str(asic.get("market_name", ""))
        info.model = "" if market == "N/A" else market
        info.name = f"GPU {index}" + (f" {info.model}" if info.model else "")
        driver = self._try("driver version", lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
        version = str(driver.get("driver_version", ""))
        info.driver_version = "" if version == "N/A" else version
        caps = self._try("power cap", lambda: smi.amdsmi_get_power_cap_info(handle)) or {}
        info.cap_w = _cap_w(caps.get("power_cap"))
        clocks = self._try("clock", self._clock) or {}
        info.max_clock_mhz = _known(clocks.get("max_clk"))
        self._try("temperature", self._temperature)
        self._try("utilization", lambda: smi.amdsmi_get_gpu_activity(handle))
        self._try("throttle reasons", lambda: smi.amdsmi_get_violation_status(handle))
        self._describe_partition()
        energy = self._try("energy counter", self._energy)
        watts = self._try("power", self._watts)
        # Some boards answer, but with a counter that stands still at 0.
        if energy is not None and energy[0] == 0:
            info.fields["energy counter"] = "stands at 0"
            energy = None
        if energy is None and watts is None:
            raise SensorError(f"neither energy nor power can be read: {info.fields['energy counter']}")
        self._counts = energy is not None
        if energy is not None:
            info.resolution_joules, info.assumed_period_ns = energy[1], 20_000_000
        else:
            info.method, info.poll_ns = "integration", 50_000_000

    def _describe_partition(self) -> None:
        mode = self._try("compute partition", lambda: self._smi.amdsmi_get_gpu_compute_partition(self._handle))
        if mode and mode not in ("N/A", "SPX"):
            self.info.scope = f"whole board in {mode} partitions"
            self.info.notes.append(f"the GPU is partitioned ({mode}): the board's power includes every partition")

    def _try(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except (self._smi.AmdSmiException, SensorError, AttributeError, KeyError, ValueError) as error:
            self.info.fields[name] = _words(error)
            return None
        self.info.fields[name] = "yes"
        return value

    def _energy(self) -> tuple[float, float]:
        """(joules, resolution in joules). ROCm 5 called the accumulator 'power'."""
        count = self._smi.amdsmi_get_energy_count(self._handle)
        ticks = count.get("energy_accumulator", count.get("power"))
        resolution = _known(count.get("counter_resolution"))
        if _known(ticks) is None or not resolution:
            raise SensorError("the counter has no value or no resolution")
        return int(ticks) * resolution / 1e6, resolution / 1e6

    def _watts(self) -> float:
        """MI300 and later fill current_socket_power, earlier boards average_socket_power."""
        info = self._smi.amdsmi_get_power_info(self._handle)
        for key in ("current_socket_power", "average_socket_power", "socket_power"):
            value = _known(info.get(key))
            if value:
                return value
        raise SensorError("no power value is filled in")

    def _clock(self) -> dict[str, Any]:
        clocks: dict[str, Any] = self._smi.amdsmi_get_clock_info(self._handle, self._smi.AmdSmiClkType.GFX)
        return clocks

    def _temperature(self) -> float:
        smi = self._smi
        kinds = smi.AmdSmiTemperatureType
        problem: Exception | None = None
        for kind in ("HOTSPOT", "JUNCTION", "EDGE"):
            if not hasattr(kinds, kind):
                continue
            try:
                value = smi.amdsmi_get_temp_metric(
                    self._handle, getattr(kinds, kind), smi.AmdSmiTemperatureMetric.CURRENT
                )
            except smi.AmdSmiException as error:
                problem = error
                continue
            known = _temperature_c(value)
            if known is not None:
                return known
        raise SensorError(_words(problem) if problem else "no temperature sensor")

    def read(self) -> Reading:
        before = now_ns()
        try:
            joules = self._energy()[0] if self._counts else None
            after = now_ns()
            watts = self._watts() if self.info.fields.get("power") == "yes" else None
        except self._smi.AmdSmiException as error:
            raise SensorError(_words(error)) from error
        return Reading.within(before, after if joules is not None else now_ns(), joules, watts)

    def condition(self) -> Condition:
        smi, fields = self._smi, self.info.fields
        result = Condition(now_ns())
        try:
            if fields.get("temperature") == "yes":
                result.temperature_c = self._temperature()
            if fields.get("clock") == "yes":
                result.clock_mhz = _known(self._clock().get("clk"))
            if fields.get("utilization") == "yes":
                busy = _known(smi.amdsmi_get_gpu_activity(self._handle).get("gfx_activity"))
                result.utilization = None if busy is None else busy / 100
            if fields.get("throttle reasons") == "yes":
                status = smi.amdsmi_get_violation_status(self._handle)
                if any(isinstance(status.get(key), bool) for key in _VIOLATIONS):
                    result.throttle = tuple(name for key, name in _VIOLATIONS.items() if status.get(key) is True)
        except smi.AmdSmiException as error:
            raise SensorError(_words(error)) from error
        return result


def _hwmon(root: Path, tried: list[Tried]) -> list[AmdgpuHwmonSensor]:
    sensors: list[AmdgpuHwmonSensor] = []
    for folder in sorted(root.glob("hwmon*")) if root.is_dir() else []:
        try:
            if text_in(folder / "name") != "amdgpu":
                continue
            sensors.append(AmdgpuHwmonSensor(folder, len(sensors)))
        except PermissionError:
            tried.append(Tried(str(folder), "no permission", f"sudo chmod a+r {folder}/power1_*", absent=False))
        except (OSError, SensorError) as error:
            tried.append(Tried(str(folder), f"amdgpu shows no power: {error}", absent=False))
    if not sensors:
        tried.append(Tried(f"amdgpu hwmon ({root}/hwmon*/power1_*)", "no amdgpu folder there"))
    return sensors


class AmdgpuHwmonSensor(Sensor):
    """One GPU through its driver's files: power only, no energy counter. Raises OSError without a power file."""

    def __init__(self, folder: Path, index: int) -> None:
        self._folder = folder
        # power1_average is the firmware's mean over an undocumented window; power1_input is the newer, instant one.
        instant = (folder / "power1_input").exists()
        self._power = folder / ("power1_input" if instant else "power1_average")
        device = (folder / "device").resolve()
        self.info = SensorInfo(
            id=device.name if (folder / "device").exists() else str(folder),
            type="gpu",
            name=f"GPU {index} amdgpu",
            vendor="AMD",
            interface="hwmon",
            method="integration",
            poll_ns=50_000_000,
            averaging_ns=0 if instant else 100_000_000,
        )
        number_in(self._power)
        self.info.fields["power"] = "yes"
        self.info.fields["energy counter"] = "hwmon has none; AMD SMI does"
        cap = self._maybe("power1_cap")
        self.info.cap_w = cap / 1e6 if cap else None

    def _maybe(self, name: str) -> float | None:
        return number_if_any(self._folder / name)

    def read(self) -> Reading:
        before = now_ns()
        watts = number_in(self._power) / 1e6
        return Reading.within(before, now_ns(), watts=watts)

    def condition(self) -> Condition:
        temperature = self._maybe("temp2_input") or self._maybe("temp1_input")
        clock, busy = self._maybe("freq1_input"), self._maybe("device/gpu_busy_percent")
        return Condition(
            now_ns(),
            temperature_c=None if temperature is None else temperature / 1000,
            clock_mhz=None if clock is None else clock / 1e6,
            utilization=None if busy is None else busy / 100,
        )
