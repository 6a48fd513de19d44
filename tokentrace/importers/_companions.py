"""What may lie beside a recording: compile logs and power dumps, joined to it by time."""

from __future__ import annotations

import re
from datetime import tzinfo
from pathlib import Path

from tokentrace.errors import UsageError
from tokentrace.importers import _power_of_steps, _source, jit_logs, power_dumps, spans
from tokentrace.importers._collect import Collected
from tokentrace.importers._jit_events import JitLog
from tokentrace.importers._power_of_steps import Card
from tokentrace.importers.power_dumps import PowerDump
from tokentrace.model import Record
from tokentrace.probe import Finding, LayerState
from tokentrace.wording import duration, listed, plural

#: A share of the trace's spans for all compile logs together.
SHARE = 2_000
#: Compiles of a start-up belong to a recording that was made within the hour; a dump of another run is days away.
_SAME_RUN_NS = 3_600 * 10**9
#: Zones lie no further apart than 26 hours; a dump further away was made at another time.
_A_ZONE_NS = 26 * 3_600 * 10**9
MORE_POWER = "sample power.draw.instant and more often, or record a longer stretch"
WRONG_TIME = "say the dump's time zone with --zone, such as --zone Europe/Berlin, or check both clocks"
#: rocm-smi ({"card0": …) and amd-smi ([{"gpu": 0, …) write JSON too.
_SMI_JSON = re.compile(rb'[\[{]\s*(\{\s*)?"(card\d+|system|gpu|gpu_data)"\s*:')


class Companions:
    """Compile logs and power dumps among the given files."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self.logs: list[JitLog] = []
        self.dumps: list[tuple[str, PowerDump]] = []

    def __len__(self) -> int:
        return len(self.logs) + len(self.dumps)

    def take(self, path: Path) -> bool:
        """Read the file if it is a companion. Raises UsageError when it is one, but useless."""
        head = _source.head(path)
        if jit_logs.kind_of(head):
            self.logs.append(jit_logs.read(path, self._zone))
            return True
        if head.startswith(b"SQLite"):
            return False
        plain = head.lstrip(b"\xef\xbb\xbf \r\n\t")
        if plain[:1] in (b"{", b"[") and not _SMI_JSON.match(plain):
            return False
        if path.stat().st_size > power_dumps.MAX_BYTES:
            return False
        try:
            dump = power_dumps.read(path, self._zone)
        except UsageError:
            return False
        if all(sample.time_ns is None for sample in dump.samples):
            raise UsageError(
                f"{path.name} is a power dump without times, so it cannot be joined to anything",
                fix="sample with a time: nvidia-smi --query-gpu=timestamp,power.draw --format=csv -l 1",
            )
        self.dumps.append((path.name, dump))
        return True

    def join(self, builder: spans.Builder, collected: Collected) -> None:
        """Add their spans, findings and layer states."""
        # Compile logs and dumps hold unix times; a recording with another clock shares no instant with them.
        strange = not all(kept.unix for kept in collected.recordings)
        for log in self.logs:
            if strange:
                collected.more.append(_no_clock(2, log.source))
            else:
                self._compiles(log, builder, collected)
        for name, dump in self.dumps:
            if strange:
                collected.more.append(_no_clock(1, name))
            else:
                self._power(name, dump, builder, collected)

    def _compiles(self, log: JitLog, builder: spans.Builder, collected: Collected) -> None:
        first, last = min(e.start_ns for e in log.events), max(e.end_ns for e in log.events)
        before = builder.bounds
        apart = max(before[0] - last, first - before[1])
        if collected.labels and apart > _SAME_RUN_NS:
            collected.more.append(
                Finding(2, f"{log.source} is of another run than the recording.", f"{_apart(apart)} apart",
                        "give the log of the same run", "unknown")
            )  # fmt: skip
            return
        if collected.labels and apart > 0:
            log.notes.append(f"{_apart(apart)} apart from the recording, taken to be of the same run")
        builder.add_compiles(log, SHARE // max(1, len(self.logs)))
        collected.more += jit_logs.findings(log)
        collected.lost.events += log.lost.events
        for reason in log.lost.reasons:
            collected.lost.add(0, f"{log.source}: {reason}")
        outer = sum(e.end_ns - e.start_ns for e in log.events if e.parent < 0)
        collected.beside[2] = LayerState(2, facts={"own_ns": outer, "share": 0.0, "evidence": len(log.events)})
        collected.sources.append({"file": log.source, "events": len(log.events), "clock": "unix", "kind": log.kind})

    def _power(self, name: str, dump: PowerDump, builder: spans.Builder, collected: Collected) -> None:
        times = [sample.time_ns for sample in dump.samples if sample.time_ns is not None]
        if builder.bounds == (0, 0):
            builder.widen(min(times), max(times))
        found = {device: power_dumps.record_of(dump, device, *builder.bounds) for device in dump.devices}
        records = {device: record for device, record in found.items() if record is not None}
        if records and (other := _of_another_card(collected, dump)):
            collected.more.append(
                Finding(1, f"{name} is of another device than {collected.whole}, and is not joined to it.", other,
                        "give the dump of the device that was recorded", "unknown")
            )  # fmt: skip
            return
        if not records:
            begin, end = builder.bounds
            apart, side = max((begin - max(times), "before"), (min(times) - end, "after"))
            gap = [f"{_apart(apart)} {side} {collected.whole}"] if apart > 0 else []
            evidence = "; ".join([plural(len(times), "sample"), *gap, *dump.notes])
            fix = WRONG_TIME if apart < _A_ZONE_NS else "give the dump that was made beside the recording"
            collected.more.append(Finding(1, f"No sample of {name} lies in {collected.whole}'s time.", evidence, fix,
                                          "unknown"))  # fmt: skip
            return
        card = _card_of(collected, dump)
        for device, record in records.items():
            taken = card if card is not None and device == card.name else None
            builder.add_power(record, taken.attributes("tokentrace.power") if taken else {})
            collected.more.append(energy_finding(record, [*dump.notes, *([taken.told] if taken else [])]))
        if card is not None:
            collected.more += _power_of_steps.join(builder.trace, dump, card)
        if dump.lost:
            collected.lost.add(dump.lost, f"{name}: rows that could not be read")
        facts = {"own_ns": 0, "share": 0.0, "evidence": len(times)}
        collected.beside[1] = LayerState(1, facts=facts)
        collected.sources.append({"file": name, "events": len(dump.samples), "clock": "unix", "kind": dump.kind})


def _no_clock(layer: int, name: str) -> Finding:
    return Finding(
        layer,
        f"{name} cannot be joined to the recording, whose clock has no known origin.",
        "the times of the one are unix times, those of the other count from some instant of their own",
        "give a recording with unix times, such as torch.profiler's or an nsys export with its session's start",
        "unknown",
    )


def _of_another_card(collected: Collected, dump: PowerDump) -> str:
    """Why none of the dump's cards can be the one that was recorded, "" where one may be.

    By the maker; of NVIDIA's also by the model, which its driver calls the same everywhere.
    """
    makers = {kept.vendor for kept in collected.recordings}
    models = sorted({model for kept in collected.recordings for model in kept.models})
    cards = [dump.series(device)[0] for device in dump.devices]
    if not collected.recordings or "" in makers or any(not card.vendor for card in cards):
        return ""
    if not makers & {card.vendor for card in cards}:
        what = listed(sorted({card.name or f"a device of {card.vendor}" for card in cards}))
        return f"the dump is of {what}, the recording of a device of {listed(sorted(makers))}"
    named = [card.name for card in cards]
    if makers != {"NVIDIA"} or not models or not all(named) or any(not kept.models for kept in collected.recordings):
        return ""
    if any(model.startswith(name) or name.startswith(model) for model in models for name in named):
        return ""
    return f"the dump is of {listed(sorted(set(named)))}, the recording of {listed(models)}"


def _card_of(collected: Collected, dump: PowerDump) -> Card | None:
    """The dump's card that is taken for the device on which the recording's steps ran; None where there is no such."""
    ran = {str(device["device"]) for kept in collected.recordings for device in kept.figures["devices"]}
    if len(collected.labels) != 1 or len(ran) != 1:
        return None
    (device,) = ran
    if device in dump.devices:
        return Card(device, device, "number")
    return Card(dump.devices[0], device, "only card") if len(dump.devices) == 1 else None


def energy_finding(record: Record, notes: list[str], when: str = "while this was recorded") -> Finding:
    """One sentence on what a device drew, or why that is unknown."""
    told = record.attributes
    who = str(told.get("hw.name", "the device"))
    count, scope = int(told.get("tokentrace.power.sample_count", 0)), told.get("tokentrace.power.scope", "")
    method = told.get("tokentrace.power.method")
    joules = told.get("tokentrace.power.joules")
    if joules is None:
        reason = str(told.get("tokentrace.power.reason", "too few samples"))
        evidence = "; ".join([f"{plural(count, 'sample')}, {scope}", *notes])
        return Finding(1, f"The energy of {who} {when} is unknown: {reason}.", evidence, MORE_POWER, "unknown")
    error = told.get("tokentrace.power.error_joules", 0.0)
    return Finding(1, f"{who} used {_joules(joules)} (± {_joules(error)}) {when}.",
                   "; ".join([f"{plural(count, 'sample')}, {scope}, method {method}", *notes]))  # fmt: skip


def _apart(ns: int) -> str:
    days = ns // (86_400 * 10**9)
    return f"{days:,} days" if days > 1 else duration(ns)


def _joules(value: float) -> str:
    return f"{value:,.0f} J" if value >= 1000 else f"{value:.3g} J"
