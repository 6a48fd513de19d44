"""AMD GPUs: amdsmi's answers in all their spellings, its absence, hwmon, and the real module over a C library."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokentrace.exchange import Exchange
from tokentrace.probe import ProbeContext
from tokentrace.probes import _amd
from tokentrace.probes.power import PowerProbe

NS = 1_000_000_000


class AmdSmiException(Exception):
    """amdsmi's own base class of errors; its texts spread over two lines."""

    def __init__(self, info: str) -> None:
        super().__init__(f"Error code:\n\t2 | {info}")
        self.err_info = info


def refuse(*_: Any) -> Any:
    raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")


def module(**changes: Any) -> Any:
    """An object with amdsmi's functions, of one MI300-like GPU that draws 500 W; `changes` replace functions."""
    born = time.time_ns()

    def energy(_: Any) -> dict[str, Any]:
        drawn_uj = 500 * (time.time_ns() - born) / 1000
        return {"energy_accumulator": int(1e9 + drawn_uj / 15.259), "counter_resolution": 15.259, "timestamp": 0}

    functions: dict[str, Any] = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiClkType": SimpleNamespace(GFX=1),
        "AmdSmiTemperatureType": SimpleNamespace(EDGE=0, HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["gpu"],
        "amdsmi_get_gpu_device_uuid": lambda _: "uuid-0",
        "amdsmi_get_gpu_asic_info": lambda _: {"market_name": "MI300X"},
        "amdsmi_get_gpu_driver_info": lambda _: {"driver_version": "6.3.6"},
        "amdsmi_get_power_cap_info": lambda _: {"power_cap": 750_000_000},
        "amdsmi_get_clock_info": lambda *_: {"clk": 2100, "max_clk": 2100},
        "amdsmi_get_temp_metric": lambda _h, kind, _m: 61 if kind == 1 else 0xFFFF,
        "amdsmi_get_gpu_activity": lambda _: {"gfx_activity": 97},
        "amdsmi_get_violation_status": lambda _: {
            "active_ppt_pwr": True,
            "active_hbm_thrm": False,
            "active_vr_thrm": "N/A",
        },
        "amdsmi_get_gpu_compute_partition": lambda _: "SPX",
        "amdsmi_get_energy_count": energy,
        "amdsmi_get_power_info": lambda _: {"current_socket_power": 500, "average_socket_power": "N/A"},
    }
    return SimpleNamespace(**{**functions, **changes})


def discover(tmp_path: Path, smi: Any) -> Any:
    return _amd.discover(
        load=lambda: smi, hwmon_root=tmp_path / "hwmon", dev_root=tmp_path / "dev", rocm=tmp_path / "rocm"
    )


def test_joules_are_accumulator_times_resolution(tmp_path: Path) -> None:
    smi = module()
    probe = PowerProbe(find=lambda: [discover(tmp_path, smi)])
    context = ProbeContext(mode="local", pass_name="warm", deep=False)
    probe.arm(context)
    time.sleep(0.05)
    start = time.time_ns()
    time.sleep(0.4)
    end = time.time_ns()
    probe.disarm()
    context.exchange = Exchange(url="u", model="m", span_id=1, traceparent="", start_ns=start, end_ns=end)
    power = next(r for r in probe.collect(context) if r.name == "power")
    a = power.attributes
    true = 500 * (end - start) / NS
    assert abs(a["tokentrace.power.joules"] - true) <= a["tokentrace.power.error_joules"]
    assert (a["hw.vendor"], a["hw.model"], a["hw.driver_version"]) == ("AMD", "MI300X", "6.3.6")
    assert a["tokentrace.power.cap_w"] == 750.0 and a["tokentrace.power.temperature_c"] == 61.0
    assert a["tokentrace.power.throttle_reasons"] == ["package power limit"]
    assert a["tokentrace.power.utilization"] == 0.97


def test_the_older_key_and_millidegrees(tmp_path: Path) -> None:
    smi = module(
        amdsmi_get_energy_count=lambda _: {"power": 1_000_000, "counter_resolution": 15.259},
        amdsmi_get_temp_metric=lambda *_: 61_000,
        amdsmi_get_power_cap_info=lambda _: {"power_cap": 300},
    )
    (sensor,) = discover(tmp_path, smi).sensors
    assert sensor.read().joules == pytest.approx(15.259)
    assert sensor.condition().temperature_c == 61.0 and sensor.info.cap_w == 300.0


def test_missing_values_are_none_and_a_still_counter_is_not_used(tmp_path: Path) -> None:
    smi = module(
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": 0, "counter_resolution": 15.259},
        amdsmi_get_violation_status=refuse,
        amdsmi_get_gpu_activity=lambda _: {"gfx_activity": "N/A"},
        amdsmi_get_temp_metric=refuse,
        amdsmi_get_power_info=lambda _: {"current_socket_power": 0xFFFF, "average_socket_power": 36},
    )
    (sensor,) = discover(tmp_path, smi).sensors
    assert sensor.info.method == "integration" and sensor.info.fields["energy counter"] == "stands at 0"
    assert "\n" not in sensor.info.fields["throttle reasons"]
    reading, condition = sensor.read(), sensor.condition()
    assert (reading.joules, reading.watts) == (None, 36.0)
    assert (condition.temperature_c, condition.utilization, condition.throttle) == (None, None, None)


def test_partitions_are_said(tmp_path: Path) -> None:
    (sensor,) = discover(tmp_path, module(amdsmi_get_gpu_compute_partition=lambda _: "CPX")).sensors
    assert "CPX" in sensor.info.scope and sensor.info.notes


def test_nothing_readable_is_explained(tmp_path: Path) -> None:
    found = discover(tmp_path, module(amdsmi_get_energy_count=refuse, amdsmi_get_power_info=refuse))
    assert not found.sensors and any("neither energy nor power" in t.problem for t in found.tried)


def absent() -> Any:
    raise ImportError("No module named 'amdsmi'")


def test_a_module_outside_the_environment_gets_its_one_line_fix(tmp_path: Path) -> None:
    rocm = tmp_path / "rocm"
    rocm.mkdir()
    found = _amd.discover(load=absent, hwmon_root=tmp_path / "h", dev_root=tmp_path, rocm=rocm)
    assert found.tried[0].fix == f"export PYTHONPATH={rocm}:$PYTHONPATH"


def test_hwmon_serves_where_amdsmi_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "hwmon" / "hwmon3"
    (folder / "device").mkdir(parents=True)
    for name, text in {
        "name": "amdgpu",
        "power1_average": "36000000",
        "power1_cap": "290000000",
        "temp1_input": "53000",
        "freq1_input": "300000000",
        "device/gpu_busy_percent": "7",
    }.items():
        (folder / name).write_text(text + "\n")
    found = _amd.discover(load=absent, hwmon_root=tmp_path / "hwmon", dev_root=tmp_path, rocm=tmp_path / "none")
    (sensor,) = found.sensors
    condition = sensor.condition()
    assert sensor.read().watts == 36.0 and sensor.info.cap_w == 290.0
    assert (condition.temperature_c, condition.clock_mhz, condition.utilization) == (53.0, 300.0, 0.07)
    assert found.tried[0].what == "AMD SMI"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_device_nodes_are_checked_one_by_one() -> None:
    import tempfile

    root = Path(tempfile.mkdtemp(prefix="tt-dev-"))
    try:
        root.chmod(0o755)
        (root / "dri").mkdir()
        (root / "dri").chmod(0o755)
        for name, mode in (("kfd", 0o666), ("dri/renderD128", 0o660)):
            (root / name).touch()
            (root / name).chmod(mode)
        code = (
            "import sys; from pathlib import Path; from tokentrace.probes._amd import device_nodes\n"
            "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "print([t.what for t in device_nodes(Path(sys.argv[1]))])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=240)
        assert done.stdout.strip() == str([str(root / "dri" / "renderD128")]), done.stderr
    finally:
        shutil.rmtree(root)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_real_module_over_a_c_library(tmp_path: Path) -> None:
    """amdsmi's own Python code, with a library that has every symbol and answers energy, power and temperature."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("amdsmi is not installed")
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    answers = {
        "amdsmi_init": "(uint64_t f) { return 0; }",
        "amdsmi_shut_down": "(void) { return 0; }",
        "amdsmi_get_socket_handles": "(uint32_t *n, void **h) { if (h) h[0] = (void *)1; *n = 1; return 0; }",
        "amdsmi_get_processor_handles": "(void *s, uint32_t *n, void **h)"
        " { if (h) h[0] = (void *)2; *n = 1; return 0; }",
        "amdsmi_get_energy_count": "(void *h, uint64_t *e, float *r, uint64_t *t)"
        " { *e = 65536000; *r = 15.2587890625f; *t = 1; return 0; }",
        "amdsmi_get_temp_metric": "(void *h, int s, int m, int64_t *v) { *v = 64; return 0; }",
    }
    source = "#include <stdint.h>\n" + "".join(
        f"int {name}{answers.get(name, '() { return 2; }')}\n" for name in sorted(names)
    )
    (tmp_path / "stub.c").write_text(source)
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libamd_smi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(tmp_path / "stub.c")], check=True)
    code = (
        "from tokentrace.probes._amd import discover\n"
        "f = discover(); s = f.sensors[0]\n"
        "print(s.read().joules, s.condition().temperature_c, s.info.resolution_joules, s.info.fields['power'])\n"
    )
    env = {**os.environ, "ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    joules, celsius, resolution, power = done.stdout.split(maxsplit=3)
    assert float(joules) == pytest.approx(1000.0) and float(celsius) == 64.0
    assert float(resolution) == pytest.approx(2**-16) and "NOT_SUPPORTED" in power


def test_a_missing_library_is_told_and_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Any:
        raise KeyError("libamd_smi.so")

    found = _amd.discover(load=load, hwmon_root=tmp_path, dev_root=tmp_path, rocm=tmp_path)
    assert "libamd_smi.so" in found.tried[0].problem and capsys.readouterr().out == ""
