"""Dumps of nvidia-smi, rocm-smi and amd-smi keep their figures and units exactly, and missing is never 0."""

from __future__ import annotations

import gzip
import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.errors import UsageError
from tokentrace.importers import power_dumps
from tokentrace.importers._power_values import number, text_of

RECORDINGS = os.environ.get("TOKENTRACE_RECORDINGS", "")
needs_recordings = pytest.mark.skipif(not RECORDINGS, reason="TOKENTRACE_RECORDINGS is not set")

QUERY = """
==============NVSMI LOG==============

Timestamp                                              : Tue Jul 14 08:12:53 2026
Driver Version                                         : 590.48.01

Attached GPUs                                          : 2
GPU 00000000:00:09.0
    Product Name                                       : NVIDIA X
    MIG Mode
        Current                                        : Enabled
    Minor Number                                       : 3
    Clocks Event Reasons
        Idle                                           : Active
        SW Power Cap                                   : Active
        HW Slowdown                                    : Not Active
            HW Thermal Slowdown                        : Active
    Temperature
        GPU Current Temp                               : 59 C
        Memory Current Temp                            : N/A
    GPU Power Readings
        Average Power Draw                             : 629.45 W
        Instantaneous Power Draw                       : 588.39 W
        Current Power Limit                            : 650.00 W
        Requested Power Limit                          : 700.00 W
    GPU Memory Power Readings
        Average Power Draw                             : 43.19 W
    Clocks
        SM                                             : 1980 MHz
GPU 00000000:00:0A.0
    Product Name                                       : NVIDIA Y
    Power Readings
        Power Draw                                     : [Not Supported]
    Temperature
        GPU Current Temp                               : Requested functionality has been deprecated
"""

CSV = """timestamp, index, power.draw [W], power.draw.instant [W], temperature.gpu, utilization.gpu [%], clocks.sm [MHz]
2026/07/14 08:12:38.696, 0, 69.85 W, 69.62 W, 41, 0 %, 345 MHz
2026/07/14 08:12:38.696, 1, [N/A], [Not Supported], [N/A], [N/A], [Unknown Error]
2026/07/14 08:12:39.198, 0, 631.95 W, 625.68 W, 59, 100 %, 1980 MHz
2026/07/14 08:12:39.198, 1, 10.00 W
"""


def test_query_text_tells_devices_limits_and_reasons_apart() -> None:
    dump = power_dumps.parse(QUERY, zone=timezone.utc)
    first, second = dump.samples
    assert (first.device, first.watts, first.watts_kind, first.average_w) == ("3", 588.39, "instant", 629.45)
    assert (first.cap_w, first.cap_requested_w, first.temp_c, first.memory_temp_c) == (650.0, 700.0, 59.0, None)
    assert first.throttle == ("software power cap", "hardware thermal slowdown")
    assert first.mig is True and first.clock_mhz == 1980.0 and first.driver_version == "590.48.01"
    assert first.time_ns == int(datetime(2026, 7, 14, 8, 12, 53, tzinfo=timezone.utc).timestamp()) * 10**9
    assert (second.watts, second.temp_c, second.throttle, second.mig) == (None, None, None, None)


def test_csv_keeps_milliseconds_exactly_and_counts_short_rows() -> None:
    dump = power_dumps.parse(CSV, zone=timezone.utc)
    assert dump.lost == 1
    series = dump.series("0")
    assert [s.watts for s in series] == [69.62, 625.68]
    assert series[1].time_ns is not None and series[0].time_ns is not None
    assert series[1].time_ns - series[0].time_ns == 502_000_000
    assert series[0].time_ns % 10**9 == 696_000_000
    missing = next(s for s in dump.samples if s.device == "1")
    assert (missing.watts, missing.temp_c, missing.util_percent, missing.clock_mhz) == (None, None, None, None)


def test_csv_without_units_takes_them_from_the_title() -> None:
    text = "index, power.draw [W], clocks.current.sm [MHz]\n0, 69.85, 345\n"
    sample = power_dumps.parse(text).samples[0]
    assert (sample.watts, sample.clock_mhz, sample.time_ns) == (69.85, 345.0, None)


def test_a_zone_moves_times_and_a_missing_one_is_said() -> None:
    berlin = timezone(timedelta(hours=2))
    here, there = power_dumps.parse(CSV), power_dumps.parse(CSV, zone=berlin)
    assert here.samples[0].time_ns - there.samples[0].time_ns == 2 * 3600 * 10**9  # type: ignore[operator]
    assert "read as UTC" in here.notes[-1] and "read as UTC+02:00" in there.notes[-1]


def test_dmon_reads_titles_units_and_dashes() -> None:
    text = "# gpu    pwr  gtemp  mtemp     sm\n# Idx      W      C      C      %\n    0     97     45      -      7\n"
    sample = power_dumps.parse(text).samples[0]
    assert (sample.watts, sample.temp_c, sample.memory_temp_c, sample.util_percent) == (97.0, 45.0, None, 7.0)
    dated = (
        "#Date       Time        gpu    pwr\n#YYYYMMDD   HH:MM:SS    Idx      W\n 20260714   08:12:38      0     97\n"
    )
    assert power_dumps.parse(dated, zone=timezone.utc).samples[0].time_ns == 1784016758 * 10**9


def test_xml_series_and_entities() -> None:
    one = (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>'
        "<timestamp>Fri Aug  4 11:44:30 2023</timestamp><gpu><minor_number>1</minor_number><gpu_power_readings>"
        "<power_draw>67.03 W</power_draw></gpu_power_readings></gpu></nvidia_smi_log>\n"
    )
    bomb = one.replace("<nvidia_smi_log>", "", 1).replace(
        'SYSTEM "nvsmi_device_v12.dtd"', 'x [<!ENTITY a "aaaa"><!ENTITY nvidia_smi_log "&a;&a;">]'
    )
    dump = power_dumps.parse(one + one.replace("30 2023", "31 2023") + bomb, zone=timezone.utc)
    assert [s.watts for s in dump.samples] == [67.03, 67.03] and dump.lost == 1
    assert dump.samples[1].time_ns - dump.samples[0].time_ns == 10**9  # type: ignore[operator]


def test_rocm_smi_after_warnings_and_as_csv() -> None:
    card = {
        "Average Graphics Package Power (W)": "36.0",
        "Temperature (Sensor junction) (C)": "55.0",
        "GPU use (%)": "0",
    }
    text = "WARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps({"card2": card, "system": {}})
    sample = power_dumps.parse(text).samples[0]
    assert (sample.device, sample.watts, sample.watts_kind, sample.temp_c) == ("2", 36.0, "average", 55.0)
    assert sample.util_percent == 0.0 and sample.clock_mhz is None
    table = "device,Current Socket Graphics Package Power (W),sclk clock speed:\ncard0,141.0,(1269Mhz)\ncard1,N/A,\n"
    first, second = power_dumps.parse(table).samples
    assert (first.watts, first.watts_kind, first.clock_mhz, second.watts) == (141.0, "instant", 1269.0, None)


def test_amd_smi_values_carry_their_units() -> None:
    entry = {
        "gpu": 1,
        "power": {"socket_power": {"value": 141500, "unit": "mW"}, "throttle_status": "THROTTLED"},
        "temperature": {"edge": "N/A", "hotspot": {"value": 60, "unit": "C"}},
        "usage": {"gfx_activity": {"value": "N/A", "unit": "%"}},
    }
    for shape in ([entry], {"gpu_data": [entry]}, [[entry]]):
        sample = power_dumps.parse(json.dumps(shape)).samples[0]
        assert (sample.watts, sample.temp_c, sample.util_percent) == (141.5, 60.0, None)
        assert sample.throttle == ("throttled, cause not told",)
    monitor = "timestamp,gpu,power_usage,hotspot_temperature,gfx_clk,gfx\n1722000000,0,141,60,132,0\n"
    sample = power_dumps.parse(monitor).samples[0]
    assert (sample.time_ns, sample.watts, sample.temp_c, sample.clock_mhz) == (1722000000 * 10**9, 141.0, 60.0, 132.0)


def test_timed_samples_become_a_power_record_with_joules() -> None:
    rows = "".join(
        f"2026/07/14 08:12:{38 + i // 10}.{i % 10}00, 0, {100.0 if i < 20 else 300.0} W\n" for i in range(40)
    )
    dump = power_dumps.parse("timestamp, index, power.draw.instant [W]\n" + rows, zone=timezone.utc)
    start = dump.series("0")[0].time_ns
    assert start is not None
    (record,) = power_dumps.records(dump, start, start + 3_900_000_000)
    # 1.9 s at 100 W, one sample of rise, 1.9 s at 300 W.
    assert record.attributes["tokentrace.power.joules"] == pytest.approx(1.9 * 100 + 0.1 * 200 + 1.9 * 300)
    assert record.attributes["tokentrace.power.method"] == "integration"
    (short,) = power_dumps.records(dump, start, start + 50_000_000)
    assert short.attributes["tokentrace.power.method"] == "unavailable"
    assert "50.0 ms" in short.attributes["tokentrace.power.reason"] and "hw.energy" not in short.attributes
    assert power_dumps.records(dump, start - 10**12, start - 10**11) == []


@pytest.mark.parametrize("text", ["", "hello", "{}", "[1, 2]", '{"power": 1}', "a,b\n1,2\n", "<html></html>", "power{"])
def test_other_files_are_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        power_dumps.read(path)
    assert "\n" not in str(caught.value) and caught.value.fix


def test_packed_cut_and_utf16_dumps(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(CSV.encode()))
    assert len(power_dumps.read(packed).samples) == 3
    packed.write_bytes(gzip.compress((CSV * 500).encode())[:-40])
    assert any("cut" in note for note in power_dumps.read(packed).notes)
    packed.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(UsageError):
        power_dumps.read(packed)
    wide = tmp_path / "w.csv"
    wide.write_bytes(CSV.replace("\n", "\r\n").encode("utf-16"))
    assert len(power_dumps.read(wide).samples) == 3
    with pytest.raises(UsageError):
        power_dumps.read(tmp_path / "missing")


@given(st.sampled_from(["N/A", "[N/A]", "[Not Supported]", "-", "", "[Unknown Error]", "None"]), st.sampled_from("WC%"))
def test_missing_is_none(text: str, unit: str) -> None:
    assert number(text, unit) is None and text_of(text) == ""


@given(st.integers(0, 10**6), st.sampled_from([("W", 1.0), ("mW", 1e-3), ("uW", 1e-6), ("kW", 1e3)]))
def test_power_units_scale(value: int, unit: tuple[str, float]) -> None:
    assert number(f"{value} {unit[0]}", "W") == pytest.approx(value * unit[1])
    assert number(f"{value} {unit[0]}", "C") is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_dumps_never_raise_anything_else(data: st.DataObject) -> None:
    amd = json.dumps([{"gpu": 0, "power": {"socket_power": {"value": 10, "unit": "W"}}}])
    source = data.draw(st.sampled_from([QUERY, CSV, amd, "# gpu pwr\n 0 1\n"]))
    place = data.draw(st.integers(0, len(source)))
    junk = data.draw(st.text(max_size=20))
    text = source[:place] + junk + source[place + data.draw(st.integers(0, 30)) :]
    try:
        dump = power_dumps.parse(text)
    except UsageError:
        return
    for sample in dump.samples:
        assert sample.watts is None or abs(sample.watts) < 1e12


@needs_recordings
@pytest.mark.parametrize(
    ("file", "device", "expected"),
    [
        ("telegraf/a100-sxm4-v12.xml", "1", (67.03, "unspecified", 500.0, 27.0, 44.0, None, 1275.0, True)),
        ("telegraf/rtx-3080-v13.xml", "0", (142.33, "instant", 320.0, 27.0, None, 65.0, 1950.0, None)),
        ("telegraf/tesla-t4.xml", "0", (26.78, "unspecified", 70.0, 40.0, None, 0.0, 585.0, None)),
        ("telegraf/a10g.xml", "0", (25.58, "unspecified", 300.0, 17.0, None, 0.0, 210.0, None)),
        ("telegraf/rocm-smi_vega-10-XT.json", "0", (15.0, "average", 170.0, 39.0, 92.0, 0.0, 1269.0, None)),
        ("telegraf/rocm-smi_mi100_rocm602.json", "1", (44.0, "average", 290.0, 55.0, 54.0, 0.0, 300.0, None)),
        ("amdsmi/amd-smi_metric_power_radeon.json", "0", (10.0, "unspecified", None, None, None, None, None, None)),
    ],
)
def test_recorded_snapshots(file: str, device: str, expected: tuple[object, ...]) -> None:
    dump = power_dumps.read(Path(RECORDINGS) / file)
    s = next(s for s in dump.samples if s.device == device)
    found = (s.watts, s.watts_kind, s.cap_w, s.temp_c, s.memory_temp_c, s.util_percent, s.clock_mhz, s.mig)
    assert found == expected and dump.lost == 0


@needs_recordings
@pytest.mark.parametrize(
    ("file", "zone", "idle", "load"),
    [
        ("linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01", "+00:00", (69.62, 345.0), (625.68, 1980.0)),
        ("windows-x86_64__nvidia-geforce-rtx-2080-super__591.86", "+02:00", (38.92, 300.0), (97.43, 2055.0)),
        ("linux-x86_64__nvidia-l40s__595.80", "+00:00", (127.67, 2520.0), (112.38, 2520.0)),
    ],
)
def test_recorded_captures_hold_idle_and_load(
    file: str, zone: str, idle: tuple[float, float], load: tuple[float, float]
) -> None:
    dump = power_dumps.read(Path(RECORDINGS) / "nvidia_gpu_exporter" / f"{file}.txt.gz")
    assert any(f"UTC{zone}" in note for note in dump.notes) and dump.lost == 0
    for section, expected in (("idle", idle), ("load", load)):
        # The CSV query is the second timed sample of each section; dmon's five have no time.
        timed = [s for s in dump.samples if s.section == section and s.time_ns is not None]
        assert [(s.watts, s.clock_mhz) for s in timed][1] == expected
        assert len([s for s in dump.samples if s.section == section and s.time_ns is None]) == 5
    assert all(s.watts is not None and s.watts > 0 for s in dump.samples)


@needs_recordings
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_flipped_bytes_of_recordings(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tesla-t4.xml", "rocm-smi_vega-10-XT.json"]))
    raw = bytearray((Path(RECORDINGS) / "telegraf" / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        power_dumps.parse(raw.decode("utf-8", errors="replace"))
    except UsageError as error:
        assert str(error)
