"""The report of one run as data: what the terminal prints and what `--json` gives are this, and nothing else.

`to_json()` gives plain values with the versioned schema below; keys may be added within a version, never renamed.
Times are integer nanoseconds, shares are fractions of the wall time, and null means "not known" (the layer's `reason`
or `own_source` says why), never zero.

    schema, trace_id, prompt, model, reply, headline_pass, wall_ns, ttft_ns, tokens {input, output},
    coverage, unattributed_ns,
    layers [{layer, id, title, status, reason, fix, form_in, form_out, form_up_in, form_up_out,
             own_ns_down, own_ns_up, own_source, hidden, share, evidence, evidence_pass, facts, holds}],
    passes {cold|warm|deep|once: {wall_ns, ttft_ns, pace {window_ns, tokens, exact, why}, dilation, coverage,
                                  unattributed_ns, cached_tokens, own_ns {"8.down": …}, steps}},
    spans {produced, accepted, rejected}, findings [{layer, status, sentence, evidence, fix}], files [path],
    gaps, slowest, cold, token_times, operators, operators_pass, operators_own_ns (of all, also those not listed),
    error {message, layer, fix} or null, notes,
    interrupted ("" or where it was cut short),
    program {name, wall_ns, calls} or null: of a block of a program, whose passes are its calls,
    stages [{way, runs, wall_ns, in_calls_ns, calls, failed, tokens {input, output}}] of that program, each with its own
    whole time; `way` is its name behind those of the stages around it, and empty for what lay outside of every stage

`wall_ns` is the time of the headline pass's request; the layers' own times and `unattributed_ns` add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.analyze import Analysis, LayerTimes, PassTimes, analyze
from tokentrace.analyze.stages import stages
from tokentrace.interrupts import MARK
from tokentrace.model import DOWN, UP, Trace
from tokentrace.wording import listed, plural

SCHEMA = "tokentrace.report/1"
#: Attribute of the root in which an import leaves what its report needs beside the spans.
KEPT = "tokentrace.import.report"


@dataclass(slots=True)
class LayerRow:
    """One layer. `form_in` and `form_out` are the token's form on the way down, `form_up_*` on the way back."""

    layer: int
    id: str
    title: str
    status: str  # seen, idle or unseen
    reason: str = ""
    fix: str = ""
    form_in: str = ""
    form_out: str = ""
    form_up_in: str = ""
    form_up_out: str = ""
    own_ns_down: int | None = None
    own_ns_up: int | None = None
    own_source: str = ""  # measured, deep proportions, or why the times are not known
    share: float | None = None
    evidence: int | None = 0  # spans; None where the trace does not hold them all any more
    evidence_pass: str = ""
    hidden: list[str] = field(default_factory=list)  # down, up: it ran, but only while a layer nearer the chip did
    facts: dict[str, Any] = field(default_factory=dict)  # what its probe found, numbers and short texts
    holds: list[int] = field(default_factory=list)  # layers below whose time its own holds, as --layers left them out


@dataclass(slots=True)
class PassRow:
    """One pass; `dilation` is its wall time over the warm one's; `own_ns` as measured, by "layer.direction"."""

    wall_ns: int
    ttft_ns: int | None = None
    pace: dict[str, Any] = field(default_factory=dict)  # see `exchange.Pace`
    dilation: float | None = None
    coverage: float | None = None
    unattributed_ns: int | None = None
    cached_tokens: int | None = None
    own_ns: dict[str, int] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class FindingRow:
    """See `probe.Finding`."""

    layer: int
    status: str
    sentence: str
    evidence: str = ""
    fix: str = ""


@dataclass(slots=True)
class Failure:
    """Why the request failed."""

    message: str
    layer: int = 0
    fix: str = ""


@dataclass(slots=True)
class Program:
    """A block of a program that was watched: from its first line to its last, and how many calls it made."""

    name: str
    wall_ns: int
    calls: int


@dataclass(slots=True)
class StageRow:
    """See `analyze.stages`; `calls` are names of passes."""

    way: list[str]
    runs: int
    wall_ns: int
    in_calls_ns: int
    calls: list[str] = field(default_factory=list)
    failed: int = 0
    tokens: dict[str, int | None] = field(default_factory=dict)


def _nothing_sent() -> dict[str, int | None]:
    return {"produced": 0, "accepted": None, "rejected": None}


@dataclass(slots=True)
class Report:
    """See the module's docstring. `spans`: how many were made and, where they were sent, how many were taken."""

    schema: str
    trace_id: str
    prompt: str = ""
    model: str = ""
    reply: str = ""
    headline_pass: str = ""
    wall_ns: int = 0
    ttft_ns: int | None = None
    tokens: dict[str, int | None] = field(default_factory=dict)
    coverage: float | None = 0.0
    unattributed_ns: int | None = 0
    layers: list[LayerRow] = field(default_factory=list)
    passes: dict[str, PassRow] = field(default_factory=dict)
    spans: dict[str, int | None] = field(default_factory=_nothing_sent)
    findings: list[FindingRow] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    slowest: str = ""
    cold: str = ""
    token_times: list[dict[str, Any]] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    operators_pass: str = ""
    operators_own_ns: int | None = None
    error: Failure | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: str = ""  # where the user cut it short and what is missing
    whole: str = ""  # what the wall time is of where that is no request: "the recording", "the window"
    program: Program | None = None
    stages: list[StageRow] = field(default_factory=list)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Steps of the headline pass."""
        main = self.passes.get(self.headline_pass)
        return main.steps if main is not None else []

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for any JSON encoder."""
        import msgspec

        found: dict[str, Any] = msgspec.to_builtins(self)
        found["spans"] = {**_nothing_sent(), **found["spans"]}
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        """The report that `to_json` gave, for instance out of a saved run. Raises ValueError for anything else."""
        import msgspec

        schema = value.get("schema") if isinstance(value, Mapping) else None
        if schema != SCHEMA:
            raise ValueError(f"this report has schema {schema!r}, this version reads {SCHEMA!r}")
        try:
            return msgspec.convert(dict(value), cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"this is no report: {error}") from error


def build(trace: Trace, found: Analysis | None = None, *, prompt: str = "", notes: Sequence[str] = ()) -> Report:
    """The report of a trace as `stitch` made it; analysed here unless that was done already.

    Of one that was folded it holds what the fold has left true, and a note says so: `carried` may know more."""
    found = found or analyze(trace)
    main = found.main
    facts = main.view.exchange
    engine = trace.meta.get("engine")
    told = [str(note) for one in (facts, engine) if isinstance(one, dict) for note in one.get("notes") or ()]
    failed = next((one.view.exchange for one in found.passes.values() if one.view.exchange.get("error")), {})
    error = str(failed.get("error") or "")
    return Report(
        schema=SCHEMA,
        trace_id=trace.trace_id_hex,
        prompt=prompt or str(trace.meta.get("prompt") or trace.attributes(0).get("tokentrace.prompt") or ""),
        model=str(facts.get("model") or facts.get("response_model") or ""),
        reply=str(facts.get("text") or facts.get("reasoning") or ""),
        headline_pass=main.name,
        wall_ns=main.wall_ns,
        ttft_ns=main.ttft_ns,
        tokens={"input": facts.get("input_tokens"), "output": facts.get("output_tokens")},
        coverage=main.coverage,
        unattributed_ns=main.unattributed_ns,
        layers=[_layer(found, one) for one in found.layers],
        passes={name: _pass(one) for name, one in found.passes.items()},
        spans={**_nothing_sent(), "produced": len(trace)},
        findings=[FindingRow(f.layer, f.status, f.sentence, f.evidence, f.fix) for f in found.findings],
        gaps=[gap.as_dict() for gap in found.gaps],
        slowest=found.slowest,
        cold=found.cold_sentence,
        token_times=[token.as_dict() for token in found.tokens],
        operators=[operator.as_dict() for operator in found.operators],
        operators_pass=found.operators_pass if found.operators else "",
        operators_own_ns=found.operators_own_ns if found.operators else None,
        error=Failure(error, int(failed.get("error_layer") or 0), str(failed.get("fix") or "")) if error else None,
        notes=[*told, *notes, *_not_whole(trace, found)],
        interrupted=str(trace.attributes(0).get(MARK) or "") if len(trace) else "",
        program=_program(trace, found),
        stages=_stages(trace, found),
    )


def _not_whole(trace: Trace, found: Analysis) -> list[str]:
    told = []
    if found.folded:
        of_passes = f"the {listed(found.folded)} pass{'es' * (len(found.folded) > 1)}"
        told.append(
            f"The trace is folded: own times, operators and what rests on them are not known of {of_passes}. The run's "
            "own folder has every span: tokentrace list."
        )
    if lost := trace.meta.get("lost"):
        told.append(f"{lost_sentence(lost, trace)} What is told here is of the rest.")
    return told


def lost_sentence(lost: int, trace: Trace) -> str:
    """What of a file could not be read, and why."""
    return (
        f"The file is not whole: {trace.meta.get('lost_reason') or 'lines are missing'}; {plural(lost, 'span')} lost."
    )


def _program(trace: Trace, found: Analysis) -> Program | None:
    if not len(trace) or trace.attributes(0).get("tokentrace.mode") != "trace":
        return None
    calls = sum(bool(one.view.exchange) for one in found.passes.values())
    return Program(trace.names[trace.name[0]], trace.end_ns[0] - trace.start_ns[0], calls)


def _stages(trace: Trace, found: Analysis) -> list[StageRow]:
    return [
        StageRow(
            list(one.way),
            one.runs,
            one.wall_ns,
            one.in_calls_ns,
            [call.name for call in one.calls],
            one.failed,
            {which: one.tokens(which) for which in ("input", "output")},
        )
        for one in stages(trace, {name: times.view for name, times in found.passes.items()})
    ]


def _layer(found: Analysis, one: LayerTimes) -> LayerRow:
    number, own, wall_ns = one.layer.number, one.own_ns, found.main.wall_ns
    down, up = found.forms[number, DOWN], found.forms[number, UP]
    return LayerRow(
        layer=number,
        id=one.layer.id,
        title=one.layer.title,
        status=one.status,
        reason=one.reason,
        fix=one.fix,
        form_in=down[0],
        form_out=down[1],
        form_up_in=up[0],
        form_up_out=up[1],
        own_ns_down=one.own_ns_down,
        own_ns_up=one.own_ns_up,
        own_source=one.source,
        share=own / wall_ns if own is not None and wall_ns > 0 else None,
        evidence=one.evidence,
        evidence_pass=one.evidence_pass,
        hidden=one.hidden,
        facts=one.facts,
        holds=one.holds,
    )


def _pass(one: PassTimes) -> PassRow:
    return PassRow(
        wall_ns=one.wall_ns,
        ttft_ns=one.ttft_ns,
        pace=dict(one.view.exchange.get("pace") or {}),
        dilation=one.dilation,
        coverage=one.coverage,
        unattributed_ns=one.unattributed_ns,
        cached_tokens=one.cached_tokens,
        own_ns={f"{layer}.{way}": spent for (layer, way), spent in sorted(one.own.items(), reverse=True)},
        steps=[step.as_dict() for step in one.steps],
    )
