"""What is kept of each recording once its columns are gone, and how several become one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokentrace.importers import figures, findings, layers, report, spans
from tokentrace.importers._analysis import Analysis
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


class Collected:
    """What is kept of each recording once its columns are gone."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self.kernels: list[tuple[str, int, int]] = []
        self.steps: list[dict[str, Any]] = []
        self.findings: list[tuple[str, list[Finding]]] = []
        self.states: list[list[LayerState]] = []
        self.operators: list[dict[str, Any]] = []
        self.sources: list[dict[str, Any]] = []
        self.collective: list[int] = []
        self.lost = Lost()
        self.other_ranks: list[int | None] = []
        self.more: list[Finding] = []  # of what lies beside the recordings
        self.beside: dict[int, LayerState] = {}

    def add(self, label: str, found: Analysis, kind: str) -> None:
        events = found.events
        self.labels.append(label)
        self.figures.append({"label": label, **found.figures})
        self.kernels += figures.by_name(events, found.joined.kernels)
        self.steps += [{"lane": label, **entry} for entry in found.step_figures]
        self.findings.append((label, findings.findings(found)))
        self.states.append(layers.states(found))
        self.operators = found.operators if len(self.labels) == 1 else []
        self.collective.append(found.measures.collective_ns)
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

    def finish(self, builder: spans.Builder, whole: str = "the recording") -> Imported:
        """`whole` is what the times are of: the recording, or the part of it that was asked for."""
        one = len(self.labels) == 1
        total = self.figures[0] if one else _sum(self.figures, self.kernels) if self.labels else _nothing()
        total.pop("label", None)
        states = self.states[0] if one else layers.combine(self.states) if self.labels else layers.only_beside()
        for number, state in self.beside.items():
            states[8 - number] = _joined(states[8 - number], state)
        attributes = {
            "tokentrace.pass": "import",
            "tokentrace.import.files": [source["file"] for source in self.sources][:64],
            "tokentrace.import.clock": ", ".join(sorted({source["clock"] for source in self.sources})),
            **{f"tokentrace.import.{key}": total[key] for key in COUNTED if key != "kernel_sum_ns"},
        }
        if one:
            for entry in self.steps:
                entry.pop("lane")
        told = self.findings[0][1] if one else self._of_lanes()
        for finding in told:
            finding.sentence = finding.sentence.replace("the recording", whole)
        told += self.more
        if not one and self.labels and whole == "the recording":
            whole = "the recordings"
        files: dict[str, Any] = {"files": self.sources, "events": sum(source["events"] for source in self.sources)}
        trace = builder.finish(states, attributes)
        report.keep(trace, told, states, self.operators, whole=whole, lanes="lanes" in total)
        return Imported(
            figures=total,
            trace=trace,
            findings=told,
            lost=self.lost.as_dict(),
            steps=self.steps,
            source=self.sources[0] if len(self.sources) == 1 else files,
            layers=states,
            operators=self.operators,
            kernels=self.kernels,
        )

    def _of_lanes(self) -> list[Finding]:
        """Across the lanes first, then what is worth a warning in each."""
        result = []
        busy = [(entry["busy_ns"] / (entry["span_ns"] * max(1, len(entry["devices"]))), entry["label"])
                for entry in self.figures if _knows_idle(entry)]  # fmt: skip
        if len(busy) > 1:
            low, high = min(busy), max(busy)
            result.append(
                Finding(3, f"The least busy of {len(busy)} recordings is {low[1]} ({share(low[0], 1)}), "
                           f"the busiest {high[1]} ({share(high[0], 1)}).",
                        ", ".join(f"{label} {share(part, 1)}" for part, label in busy[:16]))
            )  # fmt: skip
        talk = [(ns, label) for ns, label in zip(self.collective, self.labels, strict=True) if ns]
        if len(talk) > 1 and max(talk)[0] > 1.2 * min(talk)[0]:
            result.append(
                Finding(
                    3,
                    f"{min(talk)[1]} spends the least time in collectives, so the other ranks probably wait for it.",
                    ", ".join(f"{label} {duration(ns)}" for ns, label in talk[:16]),
                    "look at what this rank does before its collectives",
                    "warn",
                )
            )
        for label, found in self.findings:
            for finding in found:
                if finding.status in ("warn", "fail", "unknown"):
                    finding.sentence = f"{label}: {finding.sentence}"
                    result.append(finding)
        return result


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


def _sum(each: list[dict[str, Any]], kernels: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Figures of several recordings: counts and busy time add up; so does the span, one for each recording. `kernels`
    are all of theirs by name: the leaders of the whole need not lead in any one of them."""
    total: dict[str, Any] = {key: sum(entry[key] for entry in each) for key in COUNTED}
    single = all(len(entry["devices"]) == 1 and _knows_idle(entry) for entry in each)
    total["idle_share"] = figures.idle(total["busy_ns"], total["span_ns"]) if single else None
    total["top_kernels"] = figures.top(kernels)
    total["devices"] = [{"lane": entry["label"], **device} for entry in each for device in entry["devices"]]
    total["lanes"] = each
    return total
