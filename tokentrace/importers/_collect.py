"""What is kept of each recording once its columns are gone, and how several become one answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokentrace.importers import figures, findings, host, layers, report, spans
from tokentrace.importers._analysis import RECORDING, RECORDINGS, Analysis, vendor
from tokentrace.importers.columns import Lost
from tokentrace.model import Trace
from tokentrace.probe import Finding, LayerState
from tokentrace.wording import duration, share


@dataclass(slots=True)
class Imported:
    """What a recording, or several, came to.

    `figures` as in `figures.figures`, over all files, with `lanes` where there are several; `steps` one entry a step
    with the same figures; `lost` {events, reason}; `source` what was read; `layers` 8 to 1; `operators` by kernel time
    and own time; `kernels` (name, count, total ns) of every kernel, where a name may come twice.
    """

    figures: dict[str, Any]
    trace: Trace
    findings: list[Finding]
    lost: dict[str, Any]
    steps: list[dict[str, Any]]
    source: dict[str, Any]
    layers: list[LayerState] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Kept:
    """What is kept of one recording once its columns are gone."""

    label: str
    figures: dict[str, Any]
    steps: list[dict[str, Any]]
    findings: list[Finding]
    states: list[LayerState]
    operators: list[dict[str, Any]]
    kernels: list[tuple[str, int, int]]
    collective_ns: int
    unix: bool  # its times are unix times
    vendor: str  # of its device, "" unknown
    models: list[str]  # the names of the machine's devices, where the recording tells them


class Collected:
    """All that was read: the recordings, and what lies beside them."""

    def __init__(self, whole: str = RECORDING) -> None:
        """`whole`: what the times are of, RECORDING or the part of it that was asked for."""
        self.whole = whole
        self.recordings: list[Kept] = []
        self.sources: list[dict[str, Any]] = []
        self.lost = Lost()
        self.other_ranks: list[int | None] = []
        self.more: list[Finding] = []  # of what lies beside the recordings
        self.beside: dict[int, LayerState] = {}

    @property
    def labels(self) -> list[str]:
        return [kept.label for kept in self.recordings]

    def add(self, label: str, found: Analysis, kind: str) -> None:
        events = found.events
        self.recordings.append(
            Kept(
                label=label,
                figures=found.figures,
                steps=found.step_figures,
                findings=findings.findings(found),
                states=layers.states(found),
                operators=found.operators,
                kernels=figures.by_name(events, found.joined.kernels),
                collective_ns=found.measures.collective_ns,
                unix=events.base_ns is not None,
                vendor=vendor(events),
                models=[str(name) for name in events.facts.get("devices") or []],
            )
        )
        self.sources.append(
            {
                "kind": kind,
                "file": events.source,
                "events": events.total_events,
                "clock": "unix" if events.base_ns is not None else "unknown origin",
                **events.facts,
            }
        )
        for reason in events.lost.reasons:
            self.lost.add(0, reason)
        self.lost.events += events.lost.events

    def finish(self, builder: spans.Builder) -> Imported:
        """The answer. The trace gets what its report needs beside its spans."""
        several = len(self.recordings) > 1
        whole = RECORDINGS if several and self.whole == RECORDING else self.whole
        total, states, told = self._figures(), self._states(), self._findings()
        operators = [] if several else [entry for kept in self.recordings for entry in kept.operators]
        trace = builder.finish(states, self._attributes(total, whole))
        report.keep(trace, told, states, operators, whole=whole, lanes=several)
        return Imported(
            figures=total,
            trace=trace,
            findings=told,
            lost=self.lost.as_dict(),
            steps=self._steps(),
            source=self._source(),
            layers=states,
            operators=host.leading(operators),
            kernels=[entry for kept in self.recordings for entry in kept.kernels],
        )

    def _figures(self) -> dict[str, Any]:
        if not self.recordings:
            return _nothing()
        return self.recordings[0].figures if len(self.recordings) == 1 else _sum(self.recordings)

    def _states(self) -> list[LayerState]:
        """Layers 8 to 1, with what lies beside the recordings."""
        each = [kept.states for kept in self.recordings]
        states = layers.only_beside() if not each else each[0] if len(each) == 1 else layers.combine(each)
        return [_joined(state, self.beside[state.layer]) if state.layer in self.beside else state for state in states]

    def _findings(self) -> list[Finding]:
        """Of one recording all; of several what is across them, and what is worth a warning in each."""
        if len(self.recordings) == 1:
            return [*self.recordings[0].findings, *self.more]
        lanes = [
            replace(finding, sentence=f"{kept.label}: {finding.sentence}")
            for kept in self.recordings
            for finding in kept.findings
            if finding.status in ("warn", "fail", "unknown")
        ]
        return [*_across(self.recordings), *lanes, *self.more]

    def _steps(self) -> list[dict[str, Any]]:
        if len(self.recordings) == 1:
            return self.recordings[0].steps
        return [{"lane": kept.label, **entry} for kept in self.recordings for entry in kept.steps]

    def _source(self) -> dict[str, Any]:
        if len(self.sources) == 1:
            return self.sources[0]
        return {"files": self.sources, "events": sum(source["events"] for source in self.sources)}

    def _attributes(self, total: dict[str, Any], whole: str) -> dict[str, Any]:
        """Of the trace's root."""
        return {
            "tokentrace.pass": "import",
            "tokentrace.import.whole": whole,
            "tokentrace.import.files": [source["file"] for source in self.sources][:64],
            "tokentrace.import.clock": ", ".join(sorted({source["clock"] for source in self.sources})),
            **{f"tokentrace.import.{key}": total[key] for key in COUNTED if key != "kernel_sum_ns"},
        }


def _across(recordings: Sequence[Kept]) -> Iterator[Finding]:
    """What only several recordings together tell."""
    busy = [(kept.figures["busy_ns"] / (kept.figures["span_ns"] * max(1, len(kept.figures["devices"]))), kept.label)
            for kept in recordings if _knows_idle(kept.figures)]  # fmt: skip
    if len(busy) > 1:
        low, high = min(busy), max(busy)
        yield Finding(
            3,
            f"The least busy of {len(busy)} recordings is {low[1]} ({share(low[0], 1)}), "
            f"the busiest {high[1]} ({share(high[0], 1)}).",
            ", ".join(f"{label} {share(part, 1)}" for part, label in busy[:16]),
        )
    talk = [(kept.collective_ns, kept.label) for kept in recordings if kept.collective_ns]
    if len(talk) > 1 and max(talk)[0] > 1.2 * min(talk)[0]:
        yield Finding(
            3,
            f"{min(talk)[1]} spends the least time in collectives, so the other ranks probably wait for it.",
            ", ".join(f"{label} {duration(ns)}" for ns, label in talk[:16]),
            "look at what this rank does before its collectives",
            "warn",
        )


COUNTED = (
    "kernels",
    "launches",
    "graph_launches",
    "matched",
    "orphan_kernels",
    "busy_ns",
    "span_ns",
    "kernel_sum_ns",
)


def _knows_idle(entry: dict[str, Any]) -> bool:
    return bool(entry["devices"]) and all(device["idle_share"] is not None for device in entry["devices"])


def _nothing() -> dict[str, Any]:
    """The figures of an import without any recording: nothing was counted, and no share can be told."""
    return {**dict.fromkeys(COUNTED, 0), "idle_share": None, "top_kernels": [], "devices": []}


def _joined(recorded: LayerState, beside: LayerState) -> LayerState:
    """A layer seen in a recording keeps its own time; what lies beside adds its evidence."""
    if recorded.status != "seen":
        return beside
    facts = {**recorded.facts, "evidence": recorded.facts["evidence"] + beside.facts["evidence"]}
    return LayerState(recorded.layer, facts=facts)


def _sum(recordings: Sequence[Kept]) -> dict[str, Any]:
    """Figures of several recordings: counts and busy time add up; so does the span, one for each recording. The
    leaders of the whole need not lead in any one of them."""
    each = [kept.figures for kept in recordings]
    total: dict[str, Any] = {key: sum(entry[key] for entry in each) for key in COUNTED}
    single = all(len(entry["devices"]) == 1 and _knows_idle(entry) for entry in each)
    total["idle_share"] = figures.idle(total["busy_ns"], total["span_ns"]) if single else None
    total["top_kernels"] = figures.top(entry for kept in recordings for entry in kept.kernels)
    total["devices"] = [{"lane": kept.label, **device} for kept in recordings for device in kept.figures["devices"]]
    total["lanes"] = [{"label": kept.label, **kept.figures} for kept in recordings]
    return total
