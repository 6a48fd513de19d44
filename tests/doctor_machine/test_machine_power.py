"""Layer 1: sensors with every field missing in turn, the live call's power, and refusals."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_trees import as_nobody, by_id, situation
from nvml_card import NvmlCard

from tokentrace.doctor.check import Live, Sample
from tokentrace.doctor.machine import busy, load, power
from tokentrace.energy.device import Condition, Reading, SensorInfo
from tokentrace.exchange import Exchange
from tokentrace.probes import _amd, _cpu, _nvidia
from tokentrace.probes._sensors import Found, Tried

NS = 1_000_000_000


def judge(found: Found, around: str = "") -> Any:
    try:
        return by_id(power.judge([found], around))
    finally:
        if found.close:
            found.close()


def test_a_healthy_card_is_told_with_its_fields(nvml: NvmlCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvidia, "kernel_module_version", lambda: "550.54.15")
    found = judge(_nvidia.discover())
    assert found["TT101"].status == "ok" and "1 power sensor" in found["TT101"].detail
    assert found["TT102"].status == "ok" and found["TT104"].status == "ok"
    assert "TT105" not in found and "TT108" not in found


@pytest.mark.parametrize(
    ("switch", "field"),
    [("energy_code", "energy counter"), ("instant_code", "instant power"), ("samples_code", "power history"),
     ("temperature_code", "temperature"), ("mig_code", "MIG")],
)  # fmt: skip
def test_each_missing_field_is_named_and_stops_nothing(nvml: NvmlCard, switch: str, field: str) -> None:
    setattr(nvml, switch, 3)
    found = judge(_nvidia.discover())
    assert found["TT101"].status == "ok"
    assert found["TT103"].status == "unknown" and any(line.startswith(f"{field}: ") for line in found["TT103"].evidence)


def test_driver_and_library_that_differ_are_layer_1_only(nvml: NvmlCard) -> None:
    nvml.init_code = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    found = judge(_nvidia.discover())
    assert found["TT102"].status == "warn" and "compute may still work" in found["TT102"].detail
    assert "reboot" in found["TT102"].fix and set(found) == {"TT102"}


def test_a_card_held_back_and_a_cap_that_was_not_applied(nvml: NvmlCard) -> None:
    nvml.reasons, nvml.enforced_mw, nvml.limit_mw = 4, 230_000, 250_000
    results = [r for r in power.judge([_nvidia.discover()]) if r.id == "TT104"]
    details = " ".join(r.detail for r in results)
    assert {r.status for r in results} == {"warn"}
    assert "230 W, 250 W were asked for" in details and "software power cap" in details


def test_a_shared_card_says_whose_work_is_in_the_watts(nvml: NvmlCard) -> None:
    nvml.mig = 2
    assert "whole card" in judge(_nvidia.discover())["TT105"].detail


def test_nothing_at_all_is_unknown_with_every_reason(tmp_path: Path) -> None:
    tried = [Tried("NVML", "not found", "install the driver"), Tried("RAPL", "no such folder", "sudo modprobe x")]
    found = judge(Found(tried=tried), "inside KVM, which usually has no power sensor")
    assert list(found) == ["TT101"] and found["TT101"].status == "unknown"
    assert found["TT101"].evidence == ("inside KVM, which usually has no power sensor", "NVML: not found",
                                       "RAPL: no such folder")  # fmt: skip


def test_rapl_that_only_root_may_read(public: Path) -> None:
    zone = public / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "123"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(text)
    (zone / "energy_uj").chmod(0o400)
    if os.getuid() == 0:
        results = as_nobody(lambda: [[r.id, r.status, r.detail, r.fix] for r in power.judge([_cpu.rapl(public)])])
        told = next(r for r in results if r[0] == "TT108")
        assert told[1] == "warn" and "root only since 2020" in told[2] and "chmod a+r" in told[3]


def test_amdsmi_outside_of_the_environment(tmp_path: Path) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'amdsmi'")

    (tmp_path / "rocm").mkdir()
    found = _amd.discover(load=missing, hwmon_root=tmp_path / "h", dev_root=tmp_path / "d", rocm=tmp_path / "rocm")
    result = judge(found)["TT101"]
    assert "PYTHONPATH" in result.fix and "but it lies in" in result.evidence[0]


def test_two_distributions_of_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvidia, "providers", lambda: ["nvidia-ml-py", "pynvml"])
    found = judge(Found(tried=[Tried("NVML", "x")]))
    assert found["TT109"].status == "warn" and "pip uninstall pynvml" in found["TT109"].fix
    assert found["TT109"].evidence == ("nvidia-ml-py, pynvml",)


# ---- the live call --------------------------------------------------------------------------------------------------


@pytest.fixture
def devices(nvml: NvmlCard) -> Iterator[load.Devices]:
    opened = load.Devices([_nvidia.discover()])
    yield opened
    opened.close()


def called(devices: load.Devices, nvml: NvmlCard, seconds: float, loaded: bool = True) -> Live:
    """A call of that length, sampled as the doctor does it."""
    live = Live(first=Exchange("u", "m", 1, "", complete=True))
    samples: list[Sample] = []

    def sample(phase: Any, until: float) -> None:
        while True:
            samples.append(Sample(time.time_ns(), phase, devices.read()))
            if time.time() >= until:
                return
            time.sleep(load.PERIOD_S)

    sample("idle", time.time() + 0.3)
    live.start_ns = time.time_ns()
    if loaded:
        nvml.load_start_ns = live.start_ns
    sample("load", time.time() + seconds)
    live.end_ns = time.time_ns()
    nvml.load_end_ns = live.end_ns
    sample("after", time.time() + 0.3)
    live.samples = {load.NAME: samples}
    return live


def test_idle_against_load(devices: load.Devices, nvml: NvmlCard) -> None:
    for _ in range(5):  # until nothing held up the readings themselves
        nvml.load_start_ns = nvml.load_end_ns = 0
        live = called(devices, nvml, 0.6)
        result = load.judge(load.logs_of(live.of(load.NAME))[0], live)
        if "70 W before, 600 W during the call" in result.detail:
            break
    assert result.status == "ok" and "70 W before, 600 W during the call" in result.detail
    joules = float(result.detail.partition("call, ")[2].partition(" ")[0])
    took = (live.end_ns - live.start_ns) / NS
    assert abs(joules - 600 * took) < 0.2 * 600 * took
    assert any("86% of the power limit" in line for line in result.evidence)
    assert busy.judge(load.logs_of(live.of(load.NAME)), live).status == "ok"


def test_a_call_shorter_than_the_sensors_period_is_refused(nvml: NvmlCard) -> None:
    nvml.energy_code = nvml.instant_code = 3  # a mean over the last second is all there is
    devices = load.Devices([_nvidia.discover()])
    live = called(devices, nvml, 0.15)
    devices.close()
    result = load.judge(load.logs_of(live.of(load.NAME))[0], live)
    assert result.status == "unknown" and "too short: " in result.detail and "< 1.00 s" in result.detail
    assert " J " not in result.detail and " W " not in result.detail


def test_throttling_during_the_call_is_a_warning(devices: load.Devices, nvml: NvmlCard) -> None:
    nvml.reasons = 0x20
    live = called(devices, nvml, 0.3)
    result = load.judge(load.logs_of(live.of(load.NAME))[0], live)
    assert result.status == "warn" and "software thermal slowdown" in result.detail


def card(watts: float, utilization: float | None, start: int, seconds: float) -> dict[str, Any]:
    info = SensorInfo("g", "gpu", "GPU 0", "NVIDIA", "NVML", cap_w=700.0)
    middle = start + int(seconds * NS / 2)
    return {"g": (info, Reading(middle, watts=watts), Condition(middle, utilization=utilization))}


def live_with(watts: float, utilization: float | None, seconds: float) -> Live:
    start = time.time_ns()
    live = Live(first=Exchange("u", "m", 1, "", complete=True), start_ns=start, end_ns=start + int(seconds * NS))
    live.samples = {load.NAME: [Sample(start, "load", card(watts, utilization, start, seconds))]}
    return live


@pytest.mark.parametrize(
    ("watts", "utilization", "seconds", "status"),
    [(70.0, 0.0, 5.0, "warn"), (70.0, 0.0, 0.4, "unknown"), (70.0, None, 5.0, "unknown"), (500.0, 0.9, 5.0, "ok")],
)
def test_a_gpu_that_did_nothing(watts: float, utilization: float | None, seconds: float, status: str) -> None:
    live = live_with(watts, utilization, seconds)
    assert busy.judge(load.logs_of(live.of(load.NAME)), live).status == status


def test_full_utilization_at_low_power_is_not_called_work() -> None:
    live = live_with(100.0, 1.0, 5.0)
    result = busy.judge(load.logs_of(live.of(load.NAME)), live)
    assert any("the low power says that it waits" in line for line in result.evidence)


def test_no_live_call_and_another_machine_are_skipped() -> None:
    for run in (load.run, busy.run):
        assert [r.status for r in run(situation(live=None))] == ["skip"]
    live = live_with(70.0, 0.0, 5.0)
    assert [r.status for r in load.run(situation("endpoint", here=False, live=live))] == ["skip"]


def amd_fakes() -> Any:
    """The stand-in for the module amdsmi that the power probe's own tests use."""
    import importlib.util

    path = Path(__file__).parents[1] / "power/test_amd.py"
    spec = importlib.util.spec_from_file_location("amd_fakes", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


AMD_FIELDS = {
    "amdsmi_get_gpu_device_uuid": "uuid",
    "amdsmi_get_gpu_driver_info": "driver version",
    "amdsmi_get_power_cap_info": "power cap",
    "amdsmi_get_clock_info": "clock",
    "amdsmi_get_temp_metric": "temperature",
    "amdsmi_get_gpu_activity": "utilization",
    "amdsmi_get_violation_status": "throttle reasons",
    "amdsmi_get_gpu_compute_partition": "compute partition",
    "amdsmi_get_energy_count": "energy counter",
    "amdsmi_get_power_info": "power",
}


@pytest.mark.parametrize("function", AMD_FIELDS)
def test_each_field_that_amdsmi_refuses_is_named(tmp_path: Path, function: str) -> None:
    fakes = amd_fakes()
    found = judge(fakes.discover(tmp_path, fakes.module(**{function: fakes.refuse})))
    assert found["TT101"].status == "ok"
    missing = [line.partition(": ")[0] for line in found["TT103"].evidence if not line.startswith("yes: ")]
    assert missing == [AMD_FIELDS[function]] and "NOT_SUPPORTED" in found["TT103"].evidence[-1]


def test_amd_partitions_and_throttling_are_told(tmp_path: Path) -> None:
    fakes = amd_fakes()
    found = judge(fakes.discover(tmp_path, fakes.module(amdsmi_get_gpu_compute_partition=lambda _: "CPX")))
    assert "CPX" in found["TT105"].detail
    assert found["TT104"].status == "warn" and "package power limit" in found["TT104"].detail


def test_amdsmi_that_does_not_start_in_a_container(tmp_path: Path) -> None:
    fakes = amd_fakes()

    def fails() -> Any:
        raise fakes.AmdSmiException("AMDSMI_STATUS_INIT_ERROR")

    found = judge(fakes.discover(tmp_path, fakes.module(amdsmi_init=fails)))
    assert found["TT101"].status == "warn" and "/dev/kfd" in found["TT101"].detail
