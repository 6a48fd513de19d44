"""One pass of a trace: its rows, its request, what the client saw, and how each layer stood in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokentrace.layers import MARKS
from tokentrace.model import Trace

#: Which pass speaks for the run: the one that light probes saw with everything loaded.
HEADLINE = ("warm", "once", "deep", "cold")
NONE = -1


@dataclass(slots=True)
class PassView:
    """`start_ns` to `end_ns` is the request (the chat span), or the pass itself when no request was sent in it."""

    name: str
    row: int
    rows: list[int]
    chat: int
    start_ns: int
    end_ns: int
    exchange: Mapping[str, Any] = field(default_factory=dict)
    states: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def whole(self) -> bool:
        """Did its request come to its end? What broke off, or was interrupted, cannot be compared with another pass."""
        return not any(self.exchange.get(how) for how in ("error", "interrupted", "let_go"))


def passes(trace: Trace) -> dict[str, PassView]:
    """The passes by name, in the order they ran. A trace without passes is one pass, "once"."""
    # Below the root, or below a stage of a program; nothing else is of layer 0.
    tops = [row for row in range(1, len(trace)) if not trace.layer[row] and not trace.layer[trace.parent[row]]]
    tops = [row for row in tops if trace.names[trace.name[row]].startswith("pass ")]
    of_pass = [NONE] * len(trace)
    for row in tops:
        of_pass[row] = row
    rows: dict[int, list[int]] = {row: [] for row in tops}
    if not tops:
        rows[0] = list(range(1, len(trace)))
    for row in range(1, len(trace)):
        if of_pass[row] == NONE:
            of_pass[row] = of_pass[trace.parent[row]]
            if of_pass[row] != NONE:
                rows[of_pass[row]].append(row)
    found: dict[str, PassView] = {}
    meta = trace.meta.get("passes")
    for top, own in rows.items():
        name = trace.names[trace.name[top]].removeprefix("pass ") if top else "once"
        facts = meta.get(name) if isinstance(meta, Mapping) else None
        found[name] = _view(trace, name, top, own, facts if isinstance(facts, Mapping) else {})
    return found


def _view(trace: Trace, name: str, top: int, rows: list[int], facts: Mapping[str, Any]) -> PassView:
    chat = next((r for r in rows if trace.layer[r] == 8 and trace.parent[r] == top and r in trace.envelopes), NONE)
    whole = chat if chat != NONE else top
    states = facts.get("states")
    return PassView(
        name,
        top,
        rows,
        chat,
        trace.start_ns[whole],
        trace.end_ns[whole],
        facts.get("exchange") or {},
        {int(s["layer"]): s for s in states} if states else _states_of_spans(trace, rows),
    )


def _states_of_spans(trace: Trace, rows: list[int]) -> dict[int, Mapping[str, Any]]:
    """How layers stood, as the spans themselves tell it (a trace read from a file without its meta)."""
    found: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        layer = trace.layer[row]
        if trace.names[trace.name[row]] not in MARKS:
            found.setdefault(layer, {"layer": layer, "status": "seen", "reason": "", "fix": ""})
            continue
        told = trace.attributes(row)
        status = "idle" if "tokentrace.idle" in told else "unseen"
        reason = told.get("tokentrace.idle") or told.get("tokentrace.unseen") or ""
        found[layer] = {"layer": layer, "status": status, "reason": reason, "fix": told.get("tokentrace.fix", "")}
    return found


def headline(found: Mapping[str, PassView], chosen: str = "") -> PassView:
    """The pass whose times are the run's: `chosen`, where the trace names one that it has, else one that is whole."""
    if chosen in found:
        return found[chosen]
    whole = {name: view for name, view in found.items() if view.whole}
    for views in (whole, found):
        for name in HEADLINE:
            if name in views:
                return views[name]
    return list(found.values())[-1]


def name_of(trace: Trace, row: int) -> str:
    return trace.names[trace.name[row]]
