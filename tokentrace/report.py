"""The report of a run: one place for what the terminal, JSON and others show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokentrace import analyze
from tokentrace.layers import load
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
    gaps: list[tuple[int, int]]
    slowest: str
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
            "gaps": [{"start_ns": start, "duration_ns": length} for start, length in self.gaps],
            "slowest": self.slowest,
            "spans": self.spans,
            "findings": self.findings,
            "files": self.files,
            "notes": self.notes,
            "error": self.error,
        }


def build(trace: Trace) -> Report:
    """The report of a whole (unfolded) trace as `stitch` made it."""
    found = analyze.passes(trace)
    times, estimated = analyze.headline(found)
    facts = trace.meta.get("passes") or {}
    exchange = (facts.get(times.name) or {}).get("exchange") or {}
    report = Report(
        trace_id=trace.trace_id_hex,
        reply=str(exchange.get("text") or exchange.get("reasoning") or ""),
        model=str(exchange.get("model") or exchange.get("response_model") or ""),
        headline=times.name,
        wall_ns=times.wall_ns,
        ttft_ns=exchange.get("ttft_ns"),
        tokens={"input": exchange.get("input_tokens"), "output": exchange.get("output_tokens")},
        coverage=times.coverage,
        unattributed_ns=times.unattributed_ns,
        layers=_rows(trace, times, estimated, facts, found),
        passes=_passes(found, facts),
        gaps=times.gaps,
        slowest=analyze.slowest(trace, times),
        notes=list(exchange.get("notes") or ()),
        spans={"produced": len(trace)},
    )
    report.findings = _findings(found, facts, times)
    if exchange.get("error"):
        report.error = {"message": exchange["error"], "layer": exchange["error_layer"], "fix": exchange["fix"]}
    return report


def _rows(
    trace: Trace,
    times: analyze.PassTimes,
    estimated: bool,
    facts: dict[str, Any],
    found: dict[str, analyze.PassTimes],
) -> list[LayerRow]:
    count = dict.fromkeys(range(9), 0)
    for row in range(len(trace)):
        if trace.names[trace.name[row]] != "unseen":
            count[trace.layer[row]] += 1
    rows = []
    for layer in load():
        state = _state(facts, layer.number, times.name)
        seen = state["status"] == "seen"
        down, up = (times.own_ns.get((layer.number, way), 0) for way in (DOWN, UP))
        known = seen and layer.number != 1
        forms = _forms(trace, layer.number)
        rows.append(
            LayerRow(
                layer.number,
                layer.id,
                layer.title,
                state["status"],
                state["reason"],
                state["fix"],
                forms[0] or layer.form_down[0],
                forms[1] or layer.form_down[1],
                forms[2] or layer.form_up[0],
                forms[3] or layer.form_up[1],
                down if known else None,
                up if known else None,
                (down + up) / times.wall_ns if known and times.wall_ns else None,
                count[layer.number],
                "deep proportions" if estimated and layer.number in (3, 4, 5) else "measured",
            )
        )
    return rows


def _state(facts: dict[str, Any], number: int, headline: str) -> dict[str, str]:
    """The state in the headline pass, or a better one from another pass (layers only probed there)."""
    best = {"status": "unseen", "reason": "not asked for", "fix": ""}
    order = [headline, *[name for name in reversed(list(facts)) if name != headline]]
    ranks = {"seen": 2, "idle": 1, "unseen": 0}
    first = True
    for name in order:
        for state in (facts.get(name) or {}).get("states") or ():
            if state["layer"] != number:
                continue
            better = ranks.get(state["status"], 0) > ranks.get(best["status"], 0)
            told = "not probed in" not in state["reason"]
            if first or better or (told and "not probed in" in best["reason"]):
                best, first = state, False
    return best


def _forms(trace: Trace, number: int) -> tuple[str, str, str, str]:
    """The token's form in and out, down and up, from the first spans that carry one."""
    forms = {(DOWN, "in"): "", (DOWN, "out"): "", (UP, "in"): "", (UP, "out"): ""}
    prefer = {5: ("embed_tokens", "sample"), 7: ("chat template", "encode", "decode"), 8: ("send", "stream")}.get(
        number
    )
    for row in range(len(trace)):
        if trace.layer[row] != number or (prefer and trace.names[trace.name[row]] not in prefer):
            continue
        way = trace.direction[row]
        attributes = trace.attributes(row)
        for side in ("in", "out"):
            value = attributes.get(f"tokentrace.form.{side}")
            key = (way, side)
            if (
                value
                and key in forms
                and (not forms[key] or (number == 7 and way == DOWN and side == "out" and "ids" in value))
            ):
                if number == 7 and way == DOWN and side == "out" and "ids" not in value:
                    continue
                forms[key] = str(value)
        if all(forms.values()):
            break
    return forms[DOWN, "in"], forms[DOWN, "out"], forms[UP, "in"], forms[UP, "out"]


def _passes(found: dict[str, analyze.PassTimes], facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    base = found.get("warm")
    return {
        name: {
            "wall_ns": times.wall_ns,
            "ttft_ns": ((facts.get(name) or {}).get("exchange") or {}).get("ttft_ns"),
            "dilation": times.wall_ns / base.wall_ns if base is not None and base.wall_ns else None,
            "coverage": times.coverage,
            "unattributed_ns": times.unattributed_ns,
            "own_ns": {f"{layer}.{way}": ns for (layer, way), ns in sorted(times.own_ns.items(), reverse=True)},
            "steps": times.steps,
        }
        for name, times in found.items()
    }


def _findings(
    found: dict[str, analyze.PassTimes], facts: dict[str, Any], times: analyze.PassTimes
) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = []

    def add(layer: int, status: str, sentence: str, evidence: str = "", fix: str = "") -> None:
        findings.append({"layer": layer, "status": status, "sentence": sentence, "evidence": evidence, "fix": fix})

    texts = {
        n: (f.get("exchange") or {}).get("text") for n, f in facts.items() if (f.get("exchange") or {}).get("complete")
    }
    if len(set(texts.values())) > 1:
        add(6, "warn", "The passes produced different tokens, so their times do not compare.", str(texts))
    cold, warm, deep = (found.get(n) for n in ("cold", "warm", "deep"))
    if cold and warm and warm.wall_ns:
        extra = cold.wall_ns - warm.wall_ns
        compiled = cold.layer_ns(2) - warm.layer_ns(2)
        if extra > warm.wall_ns * 0.05:
            part = f", {compiled / 1e6:.0f} ms of it compiling" if compiled > 0 else ""
            add(
                2 if compiled > 0 else 5,
                "ok",
                f"The first request took {extra / 1e6:.0f} ms longer than the second{part}.",
            )
    cached = sum(step["cached_tokens"] or 0 for step in times.steps)
    if cached:
        add(
            6,
            "ok",
            f"The prefix cache held {cached} tokens of the prompt in the {times.name} pass: its prefill was shorter.",
        )
    if deep and warm and warm.wall_ns:
        add(4, "ok", f"Probing every layer stretched the request {deep.wall_ns / warm.wall_ns:.2f} times.")
    if "warm" in found and times.coverage < 0.95:
        add(8, "warn", f"{1 - times.coverage:.0%} of the request lies in no span of work.")
    return findings
