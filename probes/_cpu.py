"""Processors and boards through sysfs: RAPL (powercap), hwmon energy and power meters; and processor use by psutil.

Sources: Documentation/power/powercap/powercap.rst (energy_uj and max_energy_range_uj in microjoules; the counter
starts again at 0), Documentation/hwmon/sysfs-interface.rst (power in microwatts, energy in microjoules, current in
milliamperes, voltage in millivolts), Documentation/hwmon/amd_energy.rst (registers updated every 1 ms).
`energy_uj` has been readable by root only since 2020 (CVE-2020-8694, the PLATYPUS side channel).

Processor seconds, frequency and utilization are not power and are never turned into joules here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokentrace.energy.device import Reading, SensorInfo
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

POWERCAP = Path("/sys/class/powercap")
#: GPU drivers with a hwmon of their own; they belong to the modules of their vendors.
_GPU_DRIVERS = ("amdgpu", "nouveau", "i915", "xe")
#: Rails of Jetson boards that carry the whole module's current, by driver ina3221.
_JETSON_TOTAL = ("VDD_IN", "POM_5V_IN")


class _EnergyFile(Sensor):
    """A file with a total energy counter in microjoules."""

    def __init__(self, file: Path, info: SensorInfo) -> None:
        self.info = info
        self._file = file
        info.assumed_period_ns, info.poll_ns = 1_000_000, 10_000_000
        info.fields["energy counter"] = "yes"
        number_in(file)

    def read(self) -> Reading:
        before = now_ns()
        value = number_in(self._file)
        return Reading.within(before, now_ns(), joules=value / 1e6)


class RaplSensor(_EnergyFile):
    """One powercap zone with an energy counter (a package, its memory, the platform)."""

    def __init__(self, zone: Path, part_of: str = "") -> None:
        label = text_in(zone / "name")
        range_uj = number_if_any(zone / "max_energy_range_uj")
        info = SensorInfo(
            id=str(zone),
            type="memory" if label == "dram" else "enclosure" if label == "psys" else "cpu",
            name=f"RAPL {label}",
            vendor=_cpu_vendor(),
            interface="RAPL",
            model=_cpu_model(),
            scope={"dram": "memory of one package", "psys": "whole platform"}.get(label, f"whole {label}"),
            # One energy unit is at most 61 uJ (2^-14 J) on the processors documented; the wrap is exact to one unit.
            resolution_joules=2 * 2**-14,
            wrap_joules=None if not range_uj else range_uj / 1e6,
            part_of=part_of,
        )
        super().__init__(zone / "energy_uj", info)
        limit = number_if_any(zone / "constraint_0_power_limit_uw")
        info.cap_w = limit / 1e6 if limit else None
        info.fields["power limit"] = "yes" if limit else "not there"
        info.fields["counter range"] = "yes" if range_uj else "not there: a wrap could not be corrected"


def rapl(root: Path = POWERCAP) -> Found:
    """Sensors of the intel-rapl control type (AMD's processors use it too). Never raises."""
    found = Found()
    what = f"RAPL ({root}/intel-rapl*)"
    try:
        names = sorted(p.name for p in root.iterdir())
    except OSError:
        names = []
    zones = [n for n in names if re.fullmatch(r"intel-rapl:\d+(:\d+)?", n)]
    # intel-rapl-mmio shows the same package by another road; it counts only where the usual one is missing.
    zones = zones or [n for n in names if re.fullmatch(r"intel-rapl-mmio:\d+(:\d+)?", n)]
    if not zones:
        problem = "no such folder" if not root.is_dir() else "no zone in it"
        fix = "sudo modprobe intel_rapl_msr (not possible inside most virtual machines)"
        found.tried.append(Tried(what, problem, fix))
        return found
    for name in zones:
        zone = root / name
        try:
            label = text_in(zone / "name")
            parent = name.rpartition(":")[0]
            inside = parent in zones and label != "dram"
            found.sensors.append(RaplSensor(zone, part_of=str(root / parent) if inside else ""))
        except PermissionError:
            found.tried.append(
                Tried(
                    f"{zone}/energy_uj",
                    "no permission: readable by root only since 2020 (CVE-2020-8694)",
                    f"sudo chmod a+r {zone}/energy_uj (until the next boot; it opens a side channel to local users), "
                    "or run as root",
                    absent=False,
                )
            )
        except (OSError, SensorError) as error:
            problem = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            found.tried.append(Tried(f"{zone}/energy_uj", problem, "", absent=False))
    return found


class AmdEnergySensor(_EnergyFile):
    """The counter of one socket of hwmon's driver amd_energy."""

    def __init__(self, file: Path, label: str) -> None:
        info = SensorInfo(
            id=str(file),
            type="cpu",
            name=f"amd_energy {label}",
            vendor=_cpu_vendor(),
            interface="hwmon",
            scope=label,
            resolution_joules=1.25e-4,  # the coarser of the two energy units named in amd_energy.rst
        )
        super().__init__(file, info)


class HwmonPowerSensor(Sensor):
    """A power meter of hwmon: `power*_input`/`power*_average` (uW), or a rail's volts times amperes (ina3221)."""

    def __init__(self, files: tuple[Path, ...], driver: str, label: str, averaging_ms: float | None = None) -> None:
        self._files = files
        self.info = SensorInfo(
            id=str(files[0]),
            type="enclosure",
            name=f"{driver} {label}",
            vendor="",
            interface="hwmon",
            method="integration",
            scope=label,
            assumed_period_ns=100_000_000,
            averaging_ns=int((averaging_ms or 0) * 1e6),
            poll_ns=50_000_000,
        )
        self.info.fields["power"] = "yes"
        self._watts()

    def _watts(self) -> float:
        if len(self._files) == 2:
            return number_in(self._files[0]) * number_in(self._files[1]) / 1e6  # mV x mA
        return number_in(self._files[0]) / 1e6

    def read(self) -> Reading:
        before = now_ns()
        watts = self._watts()
        return Reading.within(before, now_ns(), watts=watts)


def hwmon(root: Path = HWMON) -> Found:
    """Energy and power meters of drivers that are no GPU's. Never raises."""
    found = Found()
    folders = sorted(root.glob("hwmon*")) if root.is_dir() else []
    for folder in folders:
        try:
            driver = text_in(folder / "name")
        except OSError:
            continue
        if driver in _GPU_DRIVERS:
            continue
        for sensor in _hwmon_sensors(folder, driver, found.tried):
            found.sensors.append(sensor)
    if not found.sensors and not found.tried:
        problem = "no power or energy meter in it" if folders else "no such folder" if not root.is_dir() else "empty"
        found.tried.append(Tried(f"hwmon ({root}/hwmon*/power*_input, energy*_input)", problem))
    return found


def _hwmon_sensors(folder: Path, driver: str, tried: list[Tried]) -> Iterable[Any]:
    makers: list[tuple[Path, Any]] = []
    if driver == "amd_energy":
        # Its per-core counters are parts of the sockets'.
        for file in sorted(folder.glob("energy*_input")):
            label = _maybe_text(file.with_name(file.name.replace("_input", "_label")))
            if "socket" in label.lower():
                makers.append((file, lambda f=file, n=label: AmdEnergySensor(f, n)))
    elif driver == "ina3221":
        for label_file in sorted(folder.glob("in*_label")):
            label = _maybe_text(label_file)
            if label in _JETSON_TOTAL:
                volts = label_file.with_name(label_file.name.replace("_label", "_input"))
                amperes = volts.with_name("curr" + volts.name[2:])
                pair = (volts, amperes)
                makers.append((volts, lambda p=pair, n=label: HwmonPowerSensor(p, driver, n)))
    else:
        for file in sorted([*folder.glob("power*_input"), *folder.glob("power*_average")]):
            if file.name.endswith("_input") and file.with_name(file.name.replace("_input", "_average")).exists():
                continue
            prefix = file.name.rpartition("_")[0]
            label = _maybe_text(folder / f"{prefix}_label") or prefix
            window = number_if_any(folder / f"{prefix}_average_interval") if file.name.endswith("_average") else None
            makers.append((file, lambda f=file, n=label, w=window: HwmonPowerSensor((f,), driver, n, w)))
    for file, make in makers:
        try:
            yield make()
        except PermissionError:
            tried.append(Tried(str(file), "no permission", f"sudo chmod a+r {file}, or run as root", absent=False))
        except (OSError, SensorError) as error:
            tried.append(Tried(str(file), str(error), absent=False))


def _maybe_text(path: Path) -> str:
    try:
        return text_in(path)
    except OSError:
        return ""


def _cpuinfo(key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.+)$", _maybe_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else ""


def _cpu_model() -> str:
    return _cpuinfo("model name")


def _cpu_vendor() -> str:
    return {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(_cpuinfo("vendor_id"), _cpuinfo("vendor_id"))


@dataclass(slots=True)
class CpuReading:
    """Processor time used so far, in seconds since an arbitrary zero. None: not known."""

    time_ns: int
    process_seconds: float | None
    system_seconds: float | None
    frequency_mhz: float | None


@dataclass(slots=True)
class CpuWatch:
    """Processor use of some processes, with the children they have at `open`, and of the whole machine.

    Linux counts processor time in clock ticks (`tick_seconds`, usually 10 ms): shorter work may read as 0.
    """

    pids: tuple[int, ...] = ()
    problems: list[str] = field(default_factory=list)
    readings: list[CpuReading] = field(default_factory=list)
    _processes: list[Any] = field(default_factory=list)
    _last: dict[int, float] = field(default_factory=dict)

    @property
    def tick_seconds(self) -> float:
        return 1.0 / os.sysconf("SC_CLK_TCK")

    @property
    def processes(self) -> list[int]:
        return [p.pid for p in self._processes]

    def open(self) -> None:
        """Find the processes. A pid that is gone or not visible from here is noted in `problems`."""
        import psutil

        for pid in self.pids:
            try:
                process = psutil.Process(pid)
                family = [process, *process.children(recursive=True)]
            except psutil.Error as error:
                denied = isinstance(error, psutil.AccessDenied)
                self.problems.append(f"process {pid}: {'no permission' if denied else 'not there'}")
                continue
            known = {p.pid for p in self._processes}
            self._processes.extend(p for p in family if p.pid not in known)

    def read(self) -> CpuReading:
        import psutil

        before = now_ns()
        for process in self._processes:
            try:
                times = process.cpu_times()
                self._last[process.pid] = times.user + times.system
            except psutil.Error:
                continue  # it ended; what it had used stays counted
        used = sum(self._last.values()) if self._processes else None
        system: float | None = None
        try:
            all_times = psutil.cpu_times()
            idle = all_times.idle + getattr(all_times, "iowait", 0.0) + getattr(all_times, "steal", 0.0)
            # guest time is already inside user time
            guest = getattr(all_times, "guest", 0.0) + getattr(all_times, "guest_nice", 0.0)
            system = sum(all_times) - idle - guest
        except (OSError, RuntimeError):
            self.problems.append("system processor time cannot be read")
        reading = CpuReading((before + now_ns()) // 2, used, system, _frequency())
        self.readings.append(reading)
        return reading


def _frequency() -> float | None:
    import psutil

    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None
    return float(frequency.current) if frequency and frequency.current else None
