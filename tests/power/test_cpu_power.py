"""RAPL and hwmon on real folders laid out like the kernel's, and processor use of real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokentrace.exchange import Chunk, Exchange
from tokentrace.model import Record
from tokentrace.probe import ProbeContext, ProbeUnavailable
from tokentrace.probes._cpu import CpuWatch, hwmon, rapl
from tokentrace.probes._sensors import Found, Tried
from tokentrace.probes.power import NO_SENSOR_FIX, PowerProbe

NS = 1_000_000_000
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder another user may look into, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="tt-power-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def zone(root: Path, name: str, label: str, energy_uj: int, range_uj: int | None = 262143328850) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "name").write_text(label + "\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    if range_uj is not None:
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


class Meter:
    """Writes a counter file as a package that draws `watts` would move it, wrapping at `range_uj`.

    `late_s`: how far behind it was at most, because the machine had other things to do.
    """

    def __init__(self, file: Path, watts: float, start_uj: int, range_uj: int) -> None:
        self._file, self._watts, self._start, self._range = file, watts, start_uj, range_uj
        self._stop, self._wrote = threading.Event(), threading.Event()
        self.late_s = 0.0
        self._born = time.time_ns()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        beside = self._file.with_name("new")
        last = time.monotonic()
        while not self._stop.is_set():
            drawn = self._watts * (time.time_ns() - self._born) / 1000
            beside.write_text(str(int(self._start + drawn) % self._range))
            beside.replace(self._file)
            self._wrote.set()
            now = time.monotonic()
            self.late_s, last = max(self.late_s, now - last), now
            time.sleep(0.002)

    def __enter__(self) -> Meter:
        self._thread.start()
        assert self._wrote.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def one_request(probe: PowerProbe, seconds: float, **options: object) -> tuple[list[Record], ProbeContext]:
    context = ProbeContext(mode="local", pass_name="warm", deep=False, options=dict(options))
    probe.arm(context)
    time.sleep(0.05)
    start = time.time_ns()
    time.sleep(seconds)
    end = time.time_ns()
    probe.disarm()
    context.exchange = Exchange(url="http://x", model="m", span_id=1, traceparent="", start_ns=start, end_ns=end)
    context.exchange.chunks = [Chunk((start + end) // 2, "content", "a"), Chunk(end, "content", "b")]
    return list(probe.collect(context)), context


def test_a_package_counter_that_wraps_during_the_request(folder: Path) -> None:
    range_uj = 20_000_000
    package = zone(folder, "intel-rapl:0", "package-0", 0, range_uj)
    probe = PowerProbe(find=lambda: [rapl(folder)])
    for _ in range(5):  # until the meter itself was in time
        with Meter(package / "energy_uj", 50.0, range_uj - 10_000_000, range_uj) as meter:
            records, _ = one_request(probe, 0.5)
        if meter.late_s < 0.1:
            break
    a = next(r for r in records if r.name == "power").attributes
    seconds = (records[0].end_ns - records[0].start_ns) / NS
    assert a["tokentrace.power.method"] == "counter" and a["hw.name"] == "RAPL package-0" and a["hw.type"] == "cpu"
    # The meter itself may be behind, which is the machine's doing and not the sensor's.
    behind = 5 + 2 * 50 * meter.late_s
    assert a["tokentrace.power.joules"] == pytest.approx(50 * seconds, abs=a["tokentrace.power.error_joules"] + behind)
    assert a["tokentrace.power.tokens_source"] == "chunks"
    assert probe.state.status == "seen"


def test_subzones_are_parts_and_memory_is_not(folder: Path) -> None:
    zone(folder, "intel-rapl:0", "package-0", 5)
    zone(folder, "intel-rapl:0:0", "core", 3)
    zone(folder, "intel-rapl:0:1", "dram", 2)
    zone(folder, "intel-rapl:1", "psys", 9)
    zone(folder, "intel-rapl-mmio:0", "package-0", 5)
    (folder / "intel-rapl").mkdir()
    found = rapl(folder)
    assert {s.info.name: (s.info.type, bool(s.info.part_of)) for s in found.sensors} == {
        "RAPL package-0": ("cpu", False),
        "RAPL core": ("cpu", True),
        "RAPL dram": ("memory", False),
        "RAPL psys": ("enclosure", False),
    }
    assert not found.tried


def test_a_file_only_root_may_read_is_refused_with_the_exact_fix(folder: Path) -> None:
    package = zone(folder, "intel-rapl:0", "package-0", 5)
    (package / "energy_uj").chmod(0o400)
    if os.geteuid() == 0:
        # Permissions do not bind root: look as somebody else.
        os.seteuid(NOBODY)
        try:
            found = rapl(folder)
        finally:
            os.seteuid(0)
    else:
        (package / "energy_uj").chmod(0)
        found = rapl(folder)
    (tried,) = found.tried
    assert not found.sensors and not tried.absent
    assert "root only" in tried.problem and f"sudo chmod a+r {package}/energy_uj" in tried.fix
    probe = PowerProbe(find=lambda: [found])
    records, _ = one_request(probe, 0.05)
    assert [r.name for r in records] == ["power cpu usage"]
    assert probe.state.status == "unseen" and "root only" in probe.state.reason and "chmod" in probe.state.fix


def test_root_may_read_it(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    (zone(folder, "intel-rapl:0", "package-0", 5) / "energy_uj").chmod(0o400)
    assert len(rapl(folder).sensors) == 1


@pytest.mark.parametrize(("energy", "words"), [("", "not a number"), ("garbage", "not a number")])
def test_odd_files_are_explained(folder: Path, energy: str, words: str) -> None:
    (zone(folder, "intel-rapl:0", "package-0", 5) / "energy_uj").write_text(energy)
    found = rapl(folder)
    assert not found.sensors and words in found.tried[0].problem


def test_missing_folders_are_named(tmp_path: Path) -> None:
    (tried,) = rapl(tmp_path / "none").tried
    assert str(tmp_path / "none") in tried.what and tried.absent and "modprobe" in tried.fix
    (tried,) = rapl(tmp_path).tried
    assert "no zone" in tried.problem
    (tried,) = hwmon(tmp_path / "none").tried
    assert tried.absent


def test_hwmon_meters_of_three_kinds(folder: Path) -> None:
    def driver(index: int, name: str, **files: str) -> None:
        path = folder / f"hwmon{index}"
        path.mkdir()
        (path / "name").write_text(name + "\n")
        for file, text in files.items():
            (path / file).write_text(text + "\n")

    driver(0, "coretemp", temp1_input="40000")
    driver(1, "power_meter", power1_average="120500000", power1_average_interval="300000")
    driver(
        2, "amd_energy", energy1_label="Ecore000", energy1_input="1", energy9_label="Esocket0", energy9_input="2500000"
    )
    driver(3, "ina3221", in1_label="VDD_IN", in1_input="5000", curr1_input="2000", in2_label="VDD_SOC", in2_input="1")
    driver(4, "amdgpu", power1_average="1")
    found = hwmon(folder)
    by_name = {s.info.name: s for s in found.sensors}
    assert set(by_name) == {"power_meter power1", "amd_energy Esocket0", "ina3221 VDD_IN"}
    assert by_name["power_meter power1"].read().watts == 120.5
    assert by_name["power_meter power1"].info.averaging_ns == 300 * NS // 1
    assert by_name["amd_energy Esocket0"].read().joules == 2.5
    assert by_name["ina3221 VDD_IN"].read().watts == 10.0


def test_processor_use_of_a_busy_child_is_seconds_and_not_joules() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        time.sleep(0.3)
        probe = PowerProbe(find=lambda: [Found(tried=[Tried("NVML", "no library", "install the driver")])])
        records, _ = one_request(probe, 0.8, pids=[busy.pid, idle.pid])
        (record,) = records
        a = record.attributes
        seconds = (record.end_ns - record.start_ns) / NS
        used = busy_share(busy.pid)
        assert 0 < a["tokentrace.cpu.seconds"] <= seconds + 2 * a["tokentrace.cpu.tick_seconds"]
        assert used > 0 and set(a["tokentrace.cpu.processes"]) == {busy.pid, idle.pid}
        assert a["tokentrace.cpu.system_seconds"] > 0 and 0 < a["tokentrace.cpu.utilization"] <= 1
        assert a["tokentrace.power.method"] == "unavailable" and "NVML: no library" in a["tokentrace.power.reason"]
        assert not any("joule" in key or "watt" in key or key in ("hw.energy", "hw.power") for key in a)
        assert probe.state.status == "unseen" and probe.state.facts["tokentrace.cpu.seconds"] > 0
        assert probe.state.fix == NO_SENSOR_FIX
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()


def busy_share(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def test_a_process_that_is_gone_is_said_and_not_zero() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    watch = CpuWatch((gone.pid,))
    watch.open()
    assert watch.read().process_seconds is None and watch.problems == [f"process {gone.pid}: not there"]


def test_this_machine_names_all_it_tried() -> None:
    """Whatever the machine: either joules are there, or every road that was tried is named with its fault."""
    probe = PowerProbe()
    records, _ = one_request(probe, 0.4, pids=[os.getpid()])
    assert records[-1].name == "power cpu usage"
    if probe.state.status == "unseen" and "no power sensor" in probe.state.reason:
        for road in ("NVML", "AMD SMI", "RAPL", "hwmon", "Apple"):
            assert road in probe.state.reason
        assert probe.state.fix


def test_a_server_elsewhere_is_not_measured_here() -> None:
    probe = PowerProbe(find=list)
    context = ProbeContext(mode="url", pass_name="once", deep=False)
    for address, here in (("203.0.113.7", False), ("", False), ("127.0.0.1", True), ("::1", True)):
        probe.arm(context)
        start = time.time_ns()
        time.sleep(0.02)
        probe.disarm()
        context.exchange = Exchange(
            url="u", model="m", span_id=1, traceparent="", start_ns=start, end_ns=time.time_ns(), server_address=address
        )
        if here:
            assert list(probe.collect(context))
        else:
            with pytest.raises(ProbeUnavailable, match="another machine") as caught:
                list(probe.collect(context))
            assert caught.value.fix


def test_disarm_never_raises_and_leaves_no_thread() -> None:
    probe = PowerProbe(find=list)
    probe.disarm()
    context = ProbeContext(mode="local", pass_name="warm", deep=False)
    probe.arm(context)
    probe.disarm()
    probe.disarm()
    list(probe.collect(context))
    assert not [t for t in threading.enumerate() if t.name == "tokentrace-power"]
