"""What the page tells beside the spans: the report, the passes with their frames, power, and where evidence lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokentrace.analyze.frames import Frame, folded, frames
from tokentrace.emit.html import _recording
from tokentrace.emit.html._evidence import evidence, slowest_row
from tokentrace.emit.perfetto import WATTS, WATTS_AT
from tokentrace.layers import MARKS, load
from tokentrace.version import __version__
from tokentrace.wording import plural

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis, PassTimes
    from tokentrace.model import Trace
    from tokentrace.report import Report

#: A page shows texts, it is no archive: longer ones are cut, and say so.
_MOST_CHARACTERS = 20_000
#: Facts of the run worth a line at the page's foot, from the trace's meta.
_META = ("mode", "endpoint", "engine", "created_ns", "fold", "lost", "lost_reason")


def story(trace: Trace, found: Analysis, report: Report) -> dict[str, Any]:
    """JSON-able; times in ns, of passes and power after the first span's start."""
    epoch = min(trace.start_ns, default=0)
    told = report.to_json()
    for name in ("prompt", "reply"):
        told[name] = _cut(told[name])
    return {
        "version": __version__,
        "report": told,
        "layers": [{"number": x.number, "id": x.id, "title": x.title, "question": x.question} for x in load()],
        "passes": [_pass(trace, found, one, epoch) for one in found.passes.values()],
        "headline": found.main.name,
        "findings": [evidence(trace, found, row) for row in report.findings],
        "slowest": slowest_row(trace, found, report.slowest),
        "power": _power(trace, found, epoch),
        "meta": {key: trace.meta[key] for key in _META if key in trace.meta},
        "root": trace.attributes(0) if len(trace) else {},
        "program": trace.names[trace.name[0]] if len(trace) else "",
        "recording": _recording.story(trace),
        # Names of the spans of no length that only say why a layer left none.
        "marks": sorted(MARKS),
        # Requests that were cut short; where the whole run was, the report says.
        "interrupted": [name for name, one in found.passes.items() if _interrupted(one.view.exchange)],
    }


def _interrupted(exchange: Mapping[str, Any]) -> bool:
    return bool(exchange.get("interrupted")) or "interrupted" in (exchange.get("notes") or ())


def _cut(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}… (cut here, {len(text):,} characters in all)"


def _pass(trace: Trace, found: Analysis, one: PassTimes, epoch: int) -> dict[str, Any]:
    view = one.view
    is_folded = folded(trace, view)
    recorded = _recording.steps(trace, view)
    return {
        "name": one.name,
        "row": max(view.row, 0),
        "request": view.chat if view.chat >= 0 else max(view.row, 0),
        "start": view.start_ns - epoch,
        "end": view.end_ns - epoch,
        "reply": _cut(str(view.exchange.get("text") or view.exchange.get("reasoning") or "")),
        "failed": str(view.exchange.get("error") or ""),
        "let_go": str(view.exchange.get("let_go") or ""),
        "model": str(view.exchange.get("model") or view.exchange.get("response_model") or ""),
        "tokens": {way: view.exchange.get(f"{way}_tokens") for way in ("input", "output")},
        "folded": is_folded,
        # A fold reaches from its first span to its last: own times of a folded pass are the report's, not the trace's.
        "frames": [_frame(frame, is_folded, recorded) for frame in frames(trace, found, one.name)],
    }


def _frame(frame: Frame, is_folded: bool, recorded: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    forms = {f"{layer}.{way}": form for (layer, way), form in frame.forms.items()}
    step = recorded.get(frame.step.index) if frame.step is not None and frame.step.index is not None else None
    if is_folded and step is not None and step["kernels"] and "3.down" in forms:
        # What is shown of the step is fewer.
        forms["3.down"] = (forms["3.down"][0], plural(step["kernels"], "kernel"))
    return {
        "phase": frame.phase,
        "start": frame.start_ns,
        "end": frame.end_ns,
        "own": None if is_folded else {f"{layer}.{way}": spent for (layer, way), spent in frame.own.items()},
        "unattributed": None if is_folded else frame.unattributed_ns,
        "estimated": frame.estimated,
        "together": frame.together,
        "forms": forms,
        "tokens": [token.as_dict() for token in frame.tokens],
        "step": frame.step.as_dict() if frame.step is not None else None,
        "recorded": step,
    }


def _power(trace: Trace, found: Analysis, epoch: int) -> list[dict[str, Any]]:
    """Each series of watts that a sensor gave, with its pass and device."""
    series = []
    for name, one in found.passes.items():
        for row in one.view.rows:
            if trace.layer[row] != 1:
                continue
            own = trace.attributes(row)
            points = _listed(own, trace.start_ns[row]) or _of_events(trace, row)
            if points:
                series.append(
                    {
                        "pass": name,
                        "row": row,
                        "device": str(own.get("hw.name") or own.get("hw.id") or ""),
                        "points": [[at - epoch, watts] for at, watts in points],
                    }
                )
    return series


def _listed(own: Mapping[str, Any], start_ns: int) -> list[tuple[int, float]]:
    watts, at_ms = own.get(WATTS), own.get(WATTS_AT)
    if not isinstance(watts, (list, tuple)) or not isinstance(at_ms, (list, tuple)):
        return []
    return [(start_ns + round(ms * 1e6), float(value)) for ms, value in zip(at_ms, watts, strict=False)]


def _of_events(trace: Trace, row: int) -> list[tuple[int, float]]:
    return [
        (event.time_ns, float(event.attributes["hw.power"]))
        for event in trace.events.get(row, ())
        if isinstance(event.attributes.get("hw.power"), (int, float))
    ]
