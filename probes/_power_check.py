"""What the check of layer 1 says: which interfaces answer, which fields, and what holds a device back right now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tokentrace.energy.device import SensorInfo
from tokentrace.probe import Finding
from tokentrace.probes import _nvidia
from tokentrace.probes._sensors import Found, Sensor, SensorError, Tried

LAYER = 1


#: What a finding is about; the doctor has a check for each.
Topic = Literal["interface", "versions", "fields", "limits", "sharing", "processor", "binding"]
Told = tuple[Topic, Finding]


def findings(found: Sequence[Found]) -> list[Finding]:
    """One finding for each interface tried in vain and several for each sensor. Reads only; never raises."""
    result = [finding for _, finding in by_topic(found)]
    if not any(f.sensors for f in found):
        result.append(
            Finding(
                LAYER,
                "No power sensor can be read here: joules are not available, processor use is shown instead",
                evidence=f"{len(result)} interfaces tried",
                status="unknown",
            )
        )
    return result


def by_topic(found: Sequence[Found]) -> list[Told]:
    """The same, each with what it is about, and without the conclusion."""
    result: list[Told] = []
    sensors = [s for f in found for s in f.sensors]
    for one in (t for f in found for t in f.tried):
        status = "unknown" if one.absent else "warn"
        result.append((_topic(one), Finding(LAYER, f"{one.what}: {one.problem}", fix=one.fix, status=status)))
    for sensor in sensors:
        result.extend(_sensor(sensor))
    if any(s.info.interface == "NVML" for s in sensors):
        result.extend(_nvidia_versions(sensors))
    result.extend(_bindings())
    return result


def _topic(one: Tried) -> Topic:
    if "does not fit the loaded kernel module" in one.problem:
        return "versions"
    return "processor" if not one.absent and "rapl" in one.what.lower() else "interface"


def _sensor(sensor: Sensor) -> Iterator[Told]:
    info = sensor.info
    how = "its total energy counter" if info.method == "counter" else "samples of its power"
    yield "interface", Finding(LAYER, f"{info.name}: joules come from {how} through {info.interface}", evidence=info.id)
    missing = {name: why for name, why in info.fields.items() if why != "yes"}
    readable = [name for name, why in info.fields.items() if why == "yes"]
    yield (
        "fields",
        Finding(
            LAYER,
            f"{info.name}: {len(readable)} of {len(info.fields)} fields can be read",
            evidence="; ".join([f"yes: {', '.join(readable)}", *(f"{n}: {w}" for n, w in missing.items())]),
            status="ok" if not missing else "unknown",
        ),
    )
    for note in info.notes:
        yield "sharing", Finding(LAYER, f"{info.name}: {note}", evidence=info.scope, status="warn")
    for finding in (*_cap(info), *_held_back(sensor)):
        yield "limits", finding


def _cap(info: SensorInfo) -> Iterator[Finding]:
    if info.cap_w is None:
        return
    if info.cap_requested_w is not None and abs(info.cap_requested_w - info.cap_w) >= 1:
        yield Finding(
            LAYER,
            f"{info.name}: the power limit in force is {info.cap_w:g} W, {info.cap_requested_w:g} W were asked for",
            fix="another limit is lower; see nvidia-smi -q -d POWER",
            status="warn",
        )
        return
    yield Finding(LAYER, f"{info.name}: the power limit is {info.cap_w:g} W")


def _held_back(sensor: Sensor) -> Iterator[Finding]:
    try:
        now = sensor.condition()
    except (OSError, SensorError) as error:
        yield Finding(LAYER, f"{sensor.info.name}: its condition cannot be read", evidence=str(error), status="unknown")
        return
    facts = []
    if now.temperature_c is not None:
        facts.append(f"{now.temperature_c:g} C")
    if now.clock_mhz is not None:
        of = f" of {sensor.info.max_clock_mhz:g}" if sensor.info.max_clock_mhz else ""
        facts.append(f"{now.clock_mhz:g}{of} MHz")
    evidence = ", ".join(facts)
    if now.throttle:
        yield Finding(
            LAYER,
            f"{sensor.info.name}: its clocks are held down by {', '.join(now.throttle)}",
            evidence=evidence,
            fix="look at cooling, power supply and power limit",
            status="warn",
        )
    elif now.throttle is not None:
        yield Finding(LAYER, f"{sensor.info.name}: nothing holds its clocks down", evidence=evidence)


def _nvidia_versions(sensors: Sequence[Sensor]) -> Iterator[Told]:
    driver = next((s.info.driver_version for s in sensors if s.info.interface == "NVML"), "")
    kernel, library = _nvidia.kernel_module_version(), _nvidia.library_version()
    known = {name: version for name, version in (("kernel module", kernel), ("library", library)) if version}
    evidence = ", ".join(f"{name} {version}" for name, version in {"driver": driver, **known}.items() if version)
    if not driver or not known:
        yield "versions", Finding(LAYER, "NVML: versions cannot be compared", evidence=evidence, status="unknown")
    elif all(version == driver for version in known.values()):
        yield "versions", Finding(LAYER, f"NVML: driver and library agree on {driver}", evidence=evidence)
    else:
        yield (
            "versions",
            Finding(
                LAYER,
                "NVML: kernel module and library differ in version: monitoring may break, compute may still work",
                evidence=evidence,
                fix="reboot, or unload and load the nvidia kernel modules",
                status="warn",
            ),
        )
    if visible := _nvidia.visible_devices():
        yield (
            "sharing",
            Finding(
                LAYER,
                f"CUDA_VISIBLE_DEVICES is {visible}: CUDA counts these from 0; power is shown for every card",
            ),
        )


def _bindings() -> Iterator[Told]:
    providers = _nvidia.providers()
    if len(providers) > 1:
        yield (
            "binding",
            Finding(
                LAYER,
                f"The module pynvml comes from {len(providers)} distributions that shadow each other",
                evidence=", ".join(providers),
                fix="pip uninstall pynvml, and keep nvidia-ml-py",
                status="warn",
            ),
        )
