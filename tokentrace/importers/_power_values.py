"""A sample of a power dump, and the values such dumps are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TypeAlias

_NUMBER = re.compile(r"^\(?\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\d\s)]*)\s*\)?$")
_MISSING = frozenset({"", "-", "n/a", "na", "none", "null", "unknown", "not supported", "unknown error", "err!"})
_SCALE = {
    "w": {"": 1.0, "w": 1.0, "mw": 1e-3, "uw": 1e-6, "µw": 1e-6, "kw": 1e3},
    "c": {"": 1.0, "c": 1.0, "°c": 1.0, "mc": 1e-3},
    "mhz": {"": 1.0, "mhz": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6},
    "%": {"": 1.0, "%": 1.0},
}
#: nvidia-smi's names of what holds clocks down; idle and chosen clocks are not among them.
REASONS = {
    "sw_power_cap": "software power cap",
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "software thermal slowdown",
}
_DATES = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%Y%m%d %H:%M:%S")


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One device at one instant. None: the dump does not say. `time_ns` None: the dump has no time.

    `watts` is the instantaneous power where the dump tells it apart (`watts_kind` "instant"), else the average
    ("average") or the one figure there is ("unspecified"). `throttle` (): told, and nothing held the clocks down.
    """

    time_ns: int | None
    device: str
    watts: float | None = None
    temp_c: float | None = None
    util_percent: float | None = None
    watts_kind: str = ""
    average_w: float | None = None
    cap_w: float | None = None
    cap_requested_w: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_temp_c: float | None = None
    throttle: tuple[str, ...] | None = None
    mig: bool | None = None
    name: str = ""
    uuid: str = ""
    vendor: str = ""
    driver_version: str = ""
    section: str = ""


#: What a reader of one form gives: the tool and form, its samples, and how many rows or devices could not be read.
Read: TypeAlias = tuple[str, list[PowerSample], int]


def text_of(value: object) -> str:
    """The text of a field, "" when the dump says that it has none."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return ""
    text = str(value).strip()
    bare = text.strip("[]").strip()
    if bare.lower() in _MISSING or "functionality" in bare.lower() or "insufficient permissions" in bare.lower():
        return ""
    return text


def number(value: object, unit: str, default_unit: str = "") -> float | None:
    """A value with or without its unit, in `unit` (W, C, MHz, %); None when it is missing, of another unit or odd.

    `default_unit` is the unit of a bare number, from a column's title.
    """
    match = _NUMBER.match(text_of(value))
    if not match:
        return None
    scale = _SCALE[unit.lower()].get((match[2] or default_unit).lower())
    if scale is None:
        return None
    result = float(match[1]) * scale
    return result if abs(result) < 1e12 else None


def power_choice(instant: float | None, average: float | None, plain: float | None) -> tuple[float | None, str]:
    """(watts, kind): the instantaneous value if there is one, else the average, else the one figure."""
    if instant is not None:
        return instant, "instant"
    if average is not None:
        return average, "average"
    return plain, "unspecified" if plain is not None else ""


def active_reasons(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...] | None:
    """Reasons from (name, "Active" or "Not Active"); None when not one of them is told."""
    told = [(REASONS[name], state) for name, state in pairs if name in REASONS and state in ("Active", "Not Active")]
    if not told:
        return None
    return tuple(reason for reason, state in told if state == "Active")


def on_off(value: object) -> bool | None:
    """Enabled -> True, Disabled -> False, anything else -> None."""
    return {"enabled": True, "disabled": False}.get(text_of(value).lower())


def believable(time_ns: int) -> int | None:
    """A time as it is, None where no clock can have shown it: before 1970, or so late that 64 bits get short (2116)."""
    return time_ns if 0 <= time_ns < 2**62 else None


def time_ns(text: str, zone: tzinfo) -> int | None:
    """A nvidia-smi time as nanoseconds since the epoch, exactly; None when it is in no known form or unbelievable."""
    for form in _DATES:
        try:
            moment = datetime.strptime(" ".join(text.split()), form).replace(tzinfo=zone)
        except ValueError:
            continue
        whole = int(moment.replace(microsecond=0).timestamp())
        return believable(whole * 1_000_000_000 + moment.microsecond * 1000)
    return None
