"""Numbers as people read them."""

from __future__ import annotations


def duration(ns: int | float) -> str:
    """Three significant digits with the unit that fits: 940 ns, 3.21 µs, 85.0 ms, 1.27 s, 12.4 min."""
    sign, value = ("-", -ns) if ns < 0 else ("", ns)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)):
        limit = 60 if unit == "s" else 999.5
        if value / size < limit or unit == "min":
            number = value / size
            if unit == "ns":
                return f"{sign}{number:.0f} ns"
            digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
            return f"{sign}{number:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def share(part: int | float, whole: int | float) -> str:
    """Per cent: 0 %, <0.1 %, 3.2 %, 87 %, 99.9 %; 100 % only for all of it."""
    if whole <= 0:
        return "0 %"
    value = 100 * part / whole
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.1:
        return "<0.1 %"
    if 99 <= value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def size(count: int) -> str:
    """Bytes in decimal units: 899 bytes, 12.4 MB, 1.27 GB."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            digits = 0 if unit == "bytes" or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def plural(count: int, one: str, many: str = "") -> str:
    """1 step, 2 steps."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(items: list[str], most: int = 4) -> str:
    """a, b and c; of many the first ones."""
    if len(items) > most:
        items = [*items[:most], f"{len(items) - most} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
