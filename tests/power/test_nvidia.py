"""NVIDIA cards through NVML's real C interface: pynvml over a small library whose card has a known power profile."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tokentrace.exchange import Chunk, Exchange
from tokentrace.model import Record
from tokentrace.probe import ProbeContext
from tokentrace.probes import _nvidia
from tokentrace.probes._sensors import Found
from tokentrace.probes.power import PowerProbe

pynvml = pytest.importorskip("pynvml")
CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
NS = 1_000_000_000


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    path = folder / "libnvidia-ml.so.550.54.15"
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run([str(CC), "-shared", "-fPIC", "-O1", "-Wall", "-o", str(path), str(source)], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(path.name)
    return path


class Card:
    """The library's globals as attributes."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        object.__setattr__(self, "_lib", lib)

    def __setattr__(self, name: str, value: int) -> None:
        kind: Any = ctypes.c_int
        if name.endswith("_ns") or name == "reasons":
            kind = ctypes.c_longlong
        kind.in_dll(self._lib, f"tt_{name}").value = value

    def __getattr__(self, name: str) -> int:
        return int(ctypes.c_int.in_dll(self._lib, f"tt_{name}").value)


@pytest.fixture
def card(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    # A copy for each test: globals start fresh.
    copy = tmp_path / library.name
    shutil.copy(library, copy)
    lib = ctypes.CDLL(str(copy))
    monkeypatch.setattr(pynvml, "nvmlLib", lib)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield Card(lib)
    pynvml._nvmlGetFunctionPointer_cache.clear()


def nvidia_only() -> list[Found]:
    return [_nvidia.discover()]


def request(
    card: Card, load_s: float, before_s: float = 0.15, tokens: int = 4
) -> tuple[PowerProbe, list[Record], float]:
    """One request during which the card is loaded; returns the true joules of the request too."""
    probe = PowerProbe(find=nvidia_only)
    context = ProbeContext(mode="local", pass_name="warm", deep=False, options={"pids": [os.getpid()]})
    probe.arm(context)
    time.sleep(before_s)
    start = time.time_ns()
    card.load_start_ns = start
    time.sleep(load_s)
    end = time.time_ns()
    card.load_end_ns = end
    probe.disarm()
    step = (end - start) // tokens
    context.exchange = Exchange(
        url="http://x",
        model="m",
        span_id=1,
        traceparent="",
        start_ns=start,
        end_ns=end,
        usage={"completion_tokens": tokens},
    )
    context.exchange.chunks = [Chunk(start + step * (i + 1), "content", "a") for i in range(tokens)]
    records = list(probe.collect(context))
    return probe, records, (end - start) / NS * 600.0


def test_joules_from_the_counter_lie_within_their_error(card: Card) -> None:
    probe, records, true = request(card, 0.5)
    (power,) = [r for r in records if r.name == "power"]
    a = power.attributes
    assert a["tokentrace.power.method"] == "counter"
    assert abs(a["tokentrace.power.joules"] - true) <= a["tokentrace.power.error_joules"] < true / 2
    assert a["hw.energy"] == a["tokentrace.power.joules"] and a["hw.vendor"] == "NVIDIA" and a["hw.id"] == "GPU-1"
    assert a["tokentrace.power.before_w"] == 70.0 and a["tokentrace.power.peak_w"] == 600.0
    assert a["tokentrace.power.joules_per_token"] == pytest.approx(a["tokentrace.power.joules"] / 4)
    parts = a["tokentrace.power.prefill_joules"] + a["tokentrace.power.decode_joules"]
    assert parts + a["tokentrace.power.outside_steps_joules"] == pytest.approx(a["tokentrace.power.joules"])
    assert len(a["tokentrace.power.token_joules"]) == 3
    assert a["tokentrace.power.cap_w"] == 700.0 and a["tokentrace.power.temperature_c"] == 59.0
    assert a["tokentrace.power.temperature_before_c"] == 41.0 and a["tokentrace.power.clock_mhz"] == 1560.0
    assert power.flow and power.parent_key == "chat" and power.layer == 1
    assert 0 < len(a["tokentrace.power.samples_w"]) <= 64
    assert probe.state.status == "seen" and probe.state.facts["joules"] == a["tokentrace.power.joules"]
    assert card.shutdowns == 1


def test_without_a_counter_power_is_integrated(card: Card) -> None:
    card.energy_code = 3
    _, records, true = request(card, 0.6)
    a = next(r for r in records if r.name == "power").attributes
    assert a["tokentrace.power.method"] == "integration"
    assert abs(a["tokentrace.power.joules"] - true) <= a["tokentrace.power.error_joules"] < true / 2


def test_averaged_power_refuses_a_request_shorter_than_its_window(card: Card) -> None:
    card.energy_code, card.instant_code = 3, 3
    probe, records, _ = request(card, 0.3)
    a = next(r for r in records if r.name == "power").attributes
    assert a["tokentrace.power.method"] == "unavailable" and "averages over 1000.0 ms" in a["tokentrace.power.reason"]
    assert "tokentrace.power.joules" not in a and "hw.energy" not in a
    assert a["tokentrace.power.temperature_c"] == 59.0  # the rest is still shown
    assert probe.state.status == "unseen" and "1000.0 ms" in probe.state.reason and probe.state.fix


def test_a_slow_counter_refuses_with_numbers(card: Card) -> None:
    card.update_ns = NS
    probe, _, _ = request(card, 0.15)
    assert probe.state.status == "unseen"
    assert "too short" in probe.state.reason or "did not move" in probe.state.reason


def test_throttling_is_told_with_its_time(card: Card) -> None:
    card.reasons = 0x4 | 0x40 | 0x1
    _, records, true = request(card, 0.4)
    a = next(r for r in records if r.name == "power").attributes
    assert a["tokentrace.power.throttle_reasons"] == ["hardware thermal slowdown", "software power cap"]
    assert a["tokentrace.power.held_back_by_power_ms"] == pytest.approx(true / 600 * 1000)
    assert a["tokentrace.power.held_back_by_thermal_ms"] == 0


def test_mig_measures_the_whole_card_and_says_so(card: Card) -> None:
    card.mig = 3
    _, records, _ = request(card, 0.3)
    a = next(r for r in records if r.name == "power").attributes
    assert a["tokentrace.power.mig"] is True and "3 MIG slices" in a["tokentrace.power.scope"]
    assert any("other slices" in note for note in a["tokentrace.power.notes"])


def test_only_the_serving_card_counts(card: Card) -> None:
    card.count, card.pid = 2, os.getpid()
    probe, records, _ = request(card, 0.3)
    serves = {r.attributes["hw.id"]: r.attributes["tokentrace.power.serves"] for r in records if r.name == "power"}
    assert serves == {"GPU-1": True, "GPU-2": False}
    assert list(probe.state.facts["joules_by_device"]) == ["GPU 0 Stub"]


def test_a_lost_card_does_not_hide_the_others(card: Card) -> None:
    card.count, card.lost = 2, 1
    found = _nvidia.discover()
    assert [s.info.id for s in found.sensors] == ["GPU-1"]
    assert found.tried[0].what == "NVML card 1" and "lost" in found.tried[0].problem


def test_fields_are_unsupported_one_by_one(card: Card) -> None:
    card.temperature_code, card.samples_code = 3, 3
    (sensor,) = _nvidia.discover().sensors
    assert (
        sensor.info.fields["temperature"] == "Not Supported" and sensor.info.fields["power history"] == "Not Supported"
    )
    assert sensor.info.fields["energy counter"] == "yes"
    condition = sensor.condition()
    assert condition.temperature_c is None and condition.clock_mhz == 345.0
    assert sensor.history() == []


def test_history_skips_slots_that_were_never_filled(card: Card) -> None:
    (sensor,) = _nvidia.discover().sensors
    history = sensor.history()
    assert len(history) == 100 and {w for _, w in history} == {70.0}
    assert all(b[0] - a[0] == 20_000_000 for a, b in pairwise(history))


def test_a_card_without_any_power_is_explained(card: Card) -> None:
    card.energy_code = card.instant_code = card.power_code = 3
    found = _nvidia.discover()
    assert not found.sensors and "neither energy nor power" in found.tried[0].problem


@pytest.mark.parametrize(
    ("code", "words", "fix"),
    [
        (18, "does not fit the loaded kernel module", "reboot"),
        (9, "not loaded", "modprobe"),
        (4, "permission", "access"),
    ],
)
def test_starting_errors_become_sentences(card: Card, code: int, words: str, fix: str) -> None:
    card.init_code = code
    (tried,) = _nvidia.discover().tried
    assert words in tried.problem and fix in tried.fix and not tried.absent


def test_doctor_reads_limits_fields_and_mig(card: Card) -> None:
    card.mig, card.enforced_mw, card.limit_mw, card.reasons = 2, 230_000, 250_000, 0x4
    context = ProbeContext(mode="local", pass_name="", deep=False)
    found = list(PowerProbe(find=nvidia_only).check(context))
    text = "\n".join(f"{f.status} {f.sentence} [{f.evidence}]" for f in found)
    assert "warn GPU 0 Stub: the power limit in force is 230 W, 250 W were asked for" in text
    assert "warn GPU 0 Stub: its clocks are held down by software power cap [41 C, 345 of 1980 MHz]" in text
    assert "MIG is on" in text and "energy counter" in text
    assert all(f.layer == 1 for f in found)


def test_the_library_is_found_by_its_real_name(library: Path) -> None:
    """In a process of its own: the loader finds libnvidia-ml.so.1, and its version agrees with the driver's."""
    code = (
        "from tokentrace.probe import ProbeContext\n"
        "from tokentrace.probes.power import PowerProbe\n"
        "c = ProbeContext(mode='local', pass_name='', deep=False)\n"
        "print('\\n'.join(f.sentence for f in PowerProbe().check(c)))\n"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "GPU 0 Stub: joules come from its total energy counter through NVML" in done.stdout
    if not _nvidia.kernel_module_version():
        assert "NVML: driver and library agree on 550.54.15" in done.stdout


def test_versions_are_read_from_their_files(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  460.56  Tue Feb 23 23:19:43 UTC 2021\nGCC 9\n")
    assert _nvidia.kernel_module_version(version) == "460.56"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (x)\n")
    assert _nvidia.kernel_module_version(version) == "550.54.15"
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 08:01 1  /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.460.73.01\n")
    assert _nvidia.library_version(maps) == "460.73.01"
    assert _nvidia.kernel_module_version(tmp_path / "none") == "" == _nvidia.library_version(tmp_path / "none")


def test_unknown_throttle_bits_are_named() -> None:
    assert _nvidia.throttle_reasons(0x101) == ()
    assert _nvidia.throttle_reasons(0x1008) == ("hardware slowdown", "unknown reason 0x1000")
