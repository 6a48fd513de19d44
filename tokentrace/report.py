"""The report of a run: one place for what the terminal, JSON and others show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokentrace import analyze
from tokentrace.model import DOWN, UP, Trace

SCHEMA = "tokentrace.report/1"


@dataclass(slots=True)
class LayerRow:
    """One layer. Own times are None where the layer cannot be seen; `source` tells measured from estimated."""

    layer: int
    id: str
    title: str
    status: str
    reason: str
    fix: str
    form_in: str
    form_out: str
    form_up_in: str
    form_up_out: str
    own_ns_down: int | None
    own_ns_up: int | None
    share: float | None
    evidence: int
    source: str


@dataclass(slots=True)
class Report:
    """What a run came to. Times in ns; `passes` by name."""

    trace_id: str
    reply: str
    model: str
    headline: str
    wall_ns: int
    ttft_ns: int | None
    tokens: dict[str, int | None]
    coverage: float
    unattributed_ns: int
    layers: list[LayerRow]
    passes: dict[str, dict[str, Any]]
    gaps: list[dict[str, Any]]
    slowest: str
    cold: str = ""
    operators: list[dict[str, Any]] = field(default_factory=list)
    token_rows: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    spans: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, schema `tokentrace.report/1`."""
        return {
            "schema": SCHEMA,
            "trace_id": self.trace_id,
            "reply": self.reply,
            "model": self.model,
            "headline_pass": self.headline,
            "wall_ns": self.wall_ns,
            "ttft_ns": self.ttft_ns,
            "tokens": self.tokens,
            "coverage": self.coverage,
            "unattributed_ns": self.unattributed_ns,
            "layers": [
                {
                    "layer": r.layer,
                    "id": r.id,
                    "status": r.status,
                    "reason": r.reason,
                    "fix": r.fix,
                    "form_in": r.form_in,
                    "form_out": r.form_out,
                    "form_up_in": r.form_up_in,
                    "form_up_out": r.form_up_out,
                    "own_ns_down": r.own_ns_down,
                    "own_ns_up": r.own_ns_up,
                    "share": r.share,
                    "evidence": r.evidence,
                    "own_source": r.source,
                }
                for r in self.layers
            ],
            "passes": self.passes,
            "gaps": self.gaps,
            "slowest": self.slowest,
            "cold": self.cold,
            "operators": self.operators,
            "token_times": self.token_rows,
            "spans": self.spans,
            "findings": self.findings,
            "files": self.files,
            "notes": self.notes,
            "error": self.error,
        }


def build(trace: Trace) -> Report:
    """The report of a whole (unfolded) trace as `stitch` made it."""
    found = analyze.analyze(trace)
    main = found.main
    exchange = main.view.exchange
    report = Report(
        trace_id=trace.trace_id_hex,
        reply=str(exchange.get("text") or exchange.get("reasoning") or ""),
        model=str(exchange.get("model") or exchange.get("response_model") or ""),
        headline=main.name,
        wall_ns=main.wall_ns,
        ttft_ns=main.ttft_ns,
        tokens={"input": exchange.get("input_tokens"), "output": exchange.get("output_tokens")},
        coverage=main.coverage,
        unattributed_ns=main.unattributed_ns,
        layers=[_row(found, times, main.wall_ns) for times in found.layers],
        passes={name: _pass(one) for name, one in found.passes.items()},
        gaps=[gap.as_dict() for gap in found.gaps],
        slowest=found.slowest,
        cold=found.cold_sentence,
        operators=[row.as_dict() for row in found.operators[:20]],
        token_rows=[row.as_dict() for row in found.tokens],
        notes=list(exchange.get("notes") or ()),
        spans={"produced": len(trace)},
    )
    report.findings = [
        {"layer": f.layer, "status": f.status, "sentence": f.sentence, "evidence": f.evidence, "fix": f.fix}
        for f in found.findings
    ]
    if exchange.get("error"):
        report.error = {"message": exchange["error"], "layer": exchange["error_layer"], "fix": exchange["fix"]}
    return report


def _row(found: analyze.Analysis, times: analyze.LayerTimes, wall_ns: int) -> LayerRow:
    layer = times.layer
    down, up = found.forms[layer.number, DOWN], found.forms[layer.number, UP]
    own = times.own_ns
    return LayerRow(
        layer.number,
        layer.id,
        layer.title,
        times.status,
        times.reason,
        times.fix,
        *down,
        *up,
        times.own_ns_down,
        times.own_ns_up,
        own / wall_ns if own is not None and wall_ns else None,
        times.evidence,
        times.source,
    )


def _pass(one: analyze.PassTimes) -> dict[str, Any]:
    return {
        "wall_ns": one.wall_ns,
        "ttft_ns": one.ttft_ns,
        "dilation": one.dilation,
        "coverage": one.coverage,
        "unattributed_ns": one.unattributed_ns,
        "own_ns": {f"{layer}.{way}": ns for (layer, way), ns in sorted(one.own.items(), reverse=True)},
        "steps": [step.as_dict() for step in one.steps],
    }
