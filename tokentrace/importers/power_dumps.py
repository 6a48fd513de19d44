"""Power recorded by others: dumps of nvidia-smi, rocm-smi and amd-smi -> samples in exact units, and power records.

Read here: nvidia-smi `-q` text, `-q -x` XML (device DTD 11 to 13), `--query-gpu … --format=csv`, `dmon`, and captures
that hold several of these under `# section :: command` headings; rocm-smi and amd-smi JSON and CSV. What a dump
marks as not available ("N/A", "[Not Supported]", "-", a deprecated field) is None, never 0.

nvidia-smi writes local time without a zone. `zone` says which; without it a capture's own UTC heading decides where
there is one, else the time is read as UTC and `PowerDump.notes` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path

from tokentrace.energy.device import Condition, Log, Reading, SensorInfo, Split, Tokens, Window, device_record
from tokentrace.errors import UsageError
from tokentrace.importers import _power_amd, _power_nvidia, _source
from tokentrace.importers._power_values import PowerSample, Read
from tokentrace.importers.columns import Lost
from tokentrace.model import Record

__all__ = ["PowerDump", "PowerSample", "parse", "read", "records"]

#: No dump of a text tool is longer; anything beyond is refused, packed or not.
MAX_BYTES = 256 << 20
_NO_SPLIT, _NO_TOKENS = Split((), ""), Tokens(None, "")
_HEADING = re.compile(r"^#{20,}\n# (?P<title>[^\n]* :: [^\n]*)\n(?:# [^\n]*\n)*#{20,}\n", re.MULTILINE)
_COLLECTED = re.compile(r"^collected_at:\s*(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z\s*$", re.MULTILINE)


@dataclass(slots=True)
class PowerDump:
    """What a dump holds. `kind` names the tool and form; `lost` counts rows or devices that could not be read."""

    kind: str
    samples: list[PowerSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: int = 0

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(s.device for s in self.samples))

    def series(self, device: str) -> list[PowerSample]:
        """Samples of one device that have a time and a power, in time order."""
        chosen = [s for s in self.samples if s.device == device and s.time_ns is not None and s.watts is not None]
        return sorted(chosen, key=lambda s: s.time_ns or 0)


def read(path: Path, zone: tzinfo | None = None) -> PowerDump:
    """Read a dump, plain or gzip. Raises UsageError when it cannot be read or is none of the known forms."""
    lost = Lost()
    raw = bytearray()
    for piece in _source.chunks(path, lost):
        raw += piece
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB", fix="cut the dump into parts")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = raw.decode("utf-16", errors="replace")  # what PowerShell's > writes
    else:
        text = raw.decode("utf-8-sig", errors="replace")
    dump = parse(text, path.name, zone)
    dump.notes = lost.reasons + dump.notes
    return dump


def parse(text: str, name: str = "dump", zone: tzinfo | None = None) -> PowerDump:
    """Read a dump from text. Raises UsageError when it is none of the known forms."""
    text = text.replace("\r\n", "\n")
    headings = list(_HEADING.finditer(text))
    if headings:
        dump = _capture(text, headings, zone)
    else:
        dump = _one(text, zone or timezone.utc)
        if any(s.time_ns is not None for s in dump.samples) and dump.kind.startswith("nvidia-smi"):
            dump.notes.append(f"times have no zone in this dump and were read as {zone or 'UTC'}")
    if any(not s.device for s in dump.samples):
        dump.samples = [s if s.device else replace(s, device="0") for s in dump.samples]
        dump.notes.append("no column names the card, so all rows were taken to be of one (query index or uuid too)")
    if not dump.samples:
        raise UsageError(
            f"{name} is no power dump that can be read: {dump.kind or 'unknown form'}",
            fix="give the output of nvidia-smi -q, -q -x, --query-gpu … --format=csv, rocm-smi or amd-smi --json",
        )
    return dump


def _one(text: str, zone: tzinfo) -> PowerDump:
    """One dump of one tool."""
    kind, samples, lost = _in_its_form(text, zone)
    return PowerDump(kind, samples, lost=lost)


def _in_its_form(text: str, zone: tzinfo) -> Read:
    start = text.lstrip()[:4096]
    if start.startswith("<") and "nvidia_smi_log" in start:
        return _power_nvidia.from_xml(text, zone)
    if "NVSMI LOG" in start:
        return _power_nvidia.from_query(text, zone)
    if _power_nvidia.is_dmon(text):
        return _power_nvidia.from_dmon(text, zone)
    if _power_amd.looks_like_json(text):
        return _power_amd.from_json(text)
    header = next((line for line in text.splitlines() if "," in line), "")
    if _power_nvidia.is_csv_header(header):
        return _power_nvidia.from_csv(text, zone)
    if _power_amd.is_csv_header(header):
        return _power_amd.from_csv(text)
    return "", [], 0


def _capture(text: str, headings: Sequence[re.Match[str]], zone: tzinfo | None) -> PowerDump:
    """Several dumps under headings `# section :: command`; help texts and process lists are left out."""
    dump = PowerDump("capture of nvidia-smi")
    known = zone or timezone.utc
    collected = _COLLECTED.search(text[: headings[0].start() + 4096])
    parts = [
        (m["title"].partition(" :: ")[0].strip(), text[m.end() : following.start() if following else len(text)])
        for m, following in zip(headings, [*headings[1:], None], strict=True)
    ]
    for section, body in parts:
        if section == "capabilities":
            continue
        part = _one(body, known)
        dump.lost += part.lost
        dump.samples.extend(replace(s, section=section) for s in part.samples)
    if zone is None and dump.samples:
        _shift(dump, collected)
    return dump


def _shift(dump: PowerDump, collected: re.Match[str] | None) -> None:
    """Move local times to UTC by the heading's own UTC time. Zones are whole quarters of an hour."""
    first = min((s.time_ns for s in dump.samples if s.time_ns is not None), default=None)
    if collected is None or first is None:
        dump.notes.append("times have no zone in this dump and were read as UTC")
        return
    utc = datetime.fromisoformat(collected[1]).replace(tzinfo=timezone.utc)
    quarters = round((first / 1e9 - utc.timestamp()) / 900)
    offset_ns = quarters * 900 * 1_000_000_000
    dump.samples = [s if s.time_ns is None else replace(s, time_ns=s.time_ns - offset_ns) for s in dump.samples]
    dump.notes.append(f"times were taken to be UTC{_sign(quarters)}, from the capture's heading")


def _sign(quarters: int) -> str:
    delta = timedelta(minutes=15 * abs(quarters))
    return f"{'-' if quarters < 0 else '+'}{delta.seconds // 3600:02d}:{delta.seconds % 3600 // 60:02d}"


def records(
    dump: PowerDump, start_ns: int, end_ns: int, split: Split = _NO_SPLIT, tokens: Tokens = _NO_TOKENS
) -> list[Record]:
    """One `power` record per device that has one, see `record_of`."""
    found = (record_of(dump, device, start_ns, end_ns, split, tokens) for device in dump.devices)
    return [record for record in found if record is not None]


def record_of(
    dump: PowerDump,
    device: str,
    start_ns: int,
    end_ns: int,
    split: Split = _NO_SPLIT,
    tokens: Tokens = _NO_TOKENS,
) -> Record | None:
    """The `power` record of a device whose timed samples reach into [start_ns, end_ns], joined by time, else None.
    `split` and `tokens` share the energy out where the request's steps and tokens are known.

    Joules come from integration where the samples suffice, else the record says why not.
    """
    times = [s.time_ns for s in dump.series(device) if s.time_ns is not None]
    if not times or times[0] > end_ns or times[-1] < start_ns:
        return None
    return device_record(log_of(dump, device), Window(start_ns, end_ns, ""), split, tokens, None)[0]


def log_of(dump: PowerDump, device: str) -> Log:
    """What the dump says of one device, as a sensor's log. Raises IndexError when it has no timed sample of it."""
    series = dump.series(device)
    first = series[0]
    info = SensorInfo(
        id=first.uuid or device,
        type="gpu",
        name=f"GPU {device}" + (f" {first.name}" if first.name else ""),
        vendor=first.vendor,
        interface=dump.kind,
        model=first.name,
        driver_version=first.driver_version,
        method="integration",
        assumed_period_ns=0,
        # nvidia-smi's plain and average power are means over 1 s on recent boards; the window is not recorded.
        averaging_ns=0 if first.watts_kind == "instant" else 1_000_000_000,
        cap_w=first.cap_w,
        cap_requested_w=first.cap_requested_w,
        mig=first.mig,
    )
    log = Log(info)
    for s in _distinct(series):
        assert s.time_ns is not None  # series() keeps timed samples only
        log.readings.append(Reading(s.time_ns, watts=s.watts))
        busy = None if s.util_percent is None else s.util_percent / 100
        log.conditions.append(Condition(s.time_ns, s.temp_c, s.clock_mhz, busy, s.throttle))
    return log


def _distinct(series: Iterable[PowerSample]) -> Iterable[PowerSample]:
    last: int | None = None
    for sample in series:
        if sample.time_ns != last:
            yield sample
        last = sample.time_ns
