"""rocm-smi and amd-smi: JSON and CSV. Key names change between ROCm versions, so they are matched by their words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokentrace.importers._power_nvidia import csv_rows
from tokentrace.importers._power_values import PowerSample, Read, believable, number, text_of

_ROCM_CSV = re.compile(r"^device,", re.IGNORECASE)
_AMD_CSV = re.compile(r"(?:^|,)gpu(?:,|$)", re.IGNORECASE)


def looks_like_json(text: str) -> bool:
    """JSON, perhaps after a few lines of warnings as rocm-smi prints them."""
    return bool(re.search(r"^\s*[\[{]", text, re.MULTILINE)) and "power" in text.lower()


def from_json(text: str) -> Read:
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    if start is None:
        return "", [], 0
    try:
        data, _ = json.JSONDecoder().raw_decode(text[start.end() - 1 :])
    except (ValueError, RecursionError):
        return "JSON that does not parse", [], 0
    if isinstance(data, dict) and any(re.fullmatch(r"card\d+", key) for key in data):
        return _rocm(data)
    samples: list[PowerSample] = []
    lost = 0
    for entry in _entries(data):
        sample = _amd_entry(entry)
        if sample is None:
            lost += 1
        else:
            samples.append(sample)
    return "amd-smi --json", samples, lost


def _rocm(data: Mapping[str, Any]) -> Read:
    system = data.get("system")
    driver = text_of(system.get("Driver version")) if isinstance(system, dict) else ""
    samples: list[PowerSample] = []
    lost = 0
    for card, fields in data.items():
        if not re.fullmatch(r"card\d+", card):
            continue
        if isinstance(fields, dict):
            samples.append(_rocm_card(card[4:], fields, driver))
        else:
            lost += 1
    return "rocm-smi --json", samples, lost


def _rocm_card(device: str, fields: Mapping[str, Any], driver: str) -> PowerSample:
    def find(pattern: str, unit: str) -> float | None:
        """First key that matches and has a value; its unit is in the key's last brackets."""
        for key, value in fields.items():
            if re.search(pattern, key, re.IGNORECASE):
                title = re.search(r"\(([^()]*)\)\s*:?\s*$", key)
                result = number(value, unit, title[1] if title else "")
                if result is not None:
                    return result
        return None

    average = find(r"^average .*power", "W")
    current = find(r"^current .*power|^socket.*power", "W")
    # A current figure of 0 beside an average one is a field that this board does not fill.
    watts, kind = (current, "instant") if current else (average, "average" if average is not None else "")
    return PowerSample(
        time_ns=None,
        device=device,
        watts=watts,
        watts_kind=kind,
        average_w=average,
        cap_w=find(r"^max .*power", "W"),
        temp_c=_first(find(r"temperature \(sensor edge\)", "C"), find(r"temperature \(sensor junction\)", "C")),
        memory_temp_c=find(r"temperature \(sensor (?:memory|hbm 0)\)", "C"),
        util_percent=find(r"^gpu use \(%\)", "%"),
        clock_mhz=find(r"^sclk clock speed", "MHz"),
        memory_clock_mhz=find(r"^mclk clock speed", "MHz"),
        name=text_of(fields.get("Card series")) or text_of(fields.get("Card Series")),
        uuid=text_of(fields.get("Unique ID")),
        vendor="AMD",
        driver_version=driver,
    )


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


def _entries(data: Any, depth: int = 4) -> Iterator[Mapping[str, Any]]:
    """The GPU objects of amd-smi's JSON: a list, a list of lists (watch mode) or {"gpu_data": [...]}."""
    if isinstance(data, list) and depth:
        for item in data:
            yield from _entries(item, depth - 1)
    elif isinstance(data, dict):
        if "gpu" in data:
            yield data
        elif isinstance(data.get("gpu_data"), list) and depth:
            yield from _entries(data["gpu_data"], depth)


def _value(entry: Any, unit: str) -> float | None:
    """`{"value": 10, "unit": "W"}`, or a bare value."""
    if isinstance(entry, dict):
        return number(entry.get("value"), unit, str(entry.get("unit") or ""))
    return number(entry, unit)


def _amd_entry(entry: Mapping[str, Any]) -> PowerSample | None:
    def part(name: str) -> Mapping[str, Any]:
        value = entry.get(name)
        return value if isinstance(value, dict) else {}

    power, temperature, usage = part("power"), part("temperature"), part("usage")
    gfx = part("clock").get("gfx_0")
    memory = part("clock").get("mem_0")
    if not power and not temperature and not usage:
        return None
    watts = _first(_value(power.get("socket_power"), "W"), _value(power.get("current_socket_power"), "W"))
    average = _value(power.get("average_socket_power"), "W")
    status = text_of(power.get("throttle_status")).upper()
    throttle = {"UNTHROTTLED": (), "THROTTLED": ("throttled, cause not told",)}.get(status)
    limit = part("limit")
    return PowerSample(
        time_ns=_epoch_ns(entry.get("timestamp")),
        device=str(entry.get("gpu")),
        watts=watts if watts is not None else average,
        watts_kind="unspecified" if watts is not None else "average" if average is not None else "",
        average_w=average,
        cap_w=_first(_value(power.get("power_limit"), "W"), _value(limit.get("socket_power_limit"), "W")),
        temp_c=_first(_value(temperature.get("edge"), "C"), _value(temperature.get("hotspot"), "C")),
        memory_temp_c=_value(temperature.get("mem"), "C"),
        util_percent=_value(usage.get("gfx_activity"), "%"),
        clock_mhz=_value(gfx.get("clk"), "MHz") if isinstance(gfx, dict) else None,
        memory_clock_mhz=_value(memory.get("clk"), "MHz") if isinstance(memory, dict) else None,
        throttle=throttle,
        vendor="AMD",
    )


def _epoch_ns(value: object) -> int | None:
    """amd-smi's `timestamp`: whole seconds since the epoch."""
    text = text_of(value)
    return believable(int(text) * 1_000_000_000) if re.fullmatch(r"\d{9,11}", text) else None


def is_csv_header(line: str) -> bool:
    return bool(_ROCM_CSV.search(line)) or (bool(_AMD_CSV.search(line)) and "power" in line.lower())


def from_csv(text: str) -> Read:
    samples: list[PowerSample] = []
    lost = 0
    titles: list[str] = []
    rocm = False
    for row in csv_rows(text):
        if not row or not any(cell.strip() for cell in row):
            continue
        if not titles:
            if is_csv_header(",".join(row)):
                titles = [cell.strip() for cell in row]
                rocm = titles[0].lower() == "device"
            continue
        if len(row) != len(titles):
            lost += 1
            continue
        fields = dict(zip(titles, row, strict=True))
        if rocm:
            device = re.sub(r"^card", "", fields[titles[0]].strip())
            if device != "system":
                samples.append(_rocm_card(device, fields, ""))
        else:
            samples.append(_amd_row(fields))
    return ("rocm-smi --csv" if rocm else "amd-smi --csv"), samples, lost


def _amd_row(row: Mapping[str, str]) -> PowerSample:
    def value(unit: str, *names: str) -> float | None:
        return _first(*(number(row[n], unit) for n in names if n in row))

    watts = value("W", "socket_power", "power_usage", "current_socket_power")
    average = value("W", "average_socket_power")
    return PowerSample(
        time_ns=_epoch_ns(row.get("timestamp")),
        device=row.get("gpu", "0").strip(),
        watts=watts if watts is not None else average,
        watts_kind="unspecified" if watts is not None else "average" if average is not None else "",
        average_w=average,
        cap_w=value("W", "power_limit", "socket_power_limit", "max_power"),
        temp_c=value("C", "edge", "edge_temperature", "hotspot", "hotspot_temperature"),
        memory_temp_c=value("C", "mem", "memory_temperature"),
        util_percent=value("%", "gfx_activity", "gfx"),
        clock_mhz=value("MHz", "gfx_0_clk", "gfx_clk", "gfx_clock"),
        memory_clock_mhz=value("MHz", "mem_0_clk", "mem_clock"),
        vendor="AMD",
    )
