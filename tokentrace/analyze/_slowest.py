"""The slowest thing of a request in one sentence, and the operators that took the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.analyze._passes import NONE, PassView, name_of
from tokentrace.analyze._steps import StepRow
from tokentrace.analyze._sweep import Gap
from tokentrace.layers import MARKS
from tokentrace.model import Trace
from tokentrace.wording import duration, plural, share

_ROLES = {"prefill": "Prefill", "decode": "Decoding", "mixed": "Mixed prefill and decode"}


@dataclass(slots=True)
class OperatorRow:
    """Calls of one operator or kernel and the time that was its own, in the pass that saw operators. `total_ns` is None
    where nobody added it up, as in a recording's own count of its operators."""

    name: str
    calls: int
    own_ns: int
    total_ns: int | None
    shapes: str  # of the call with the most own time

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SeenIn:
    """The pass that saw operators: its own times by row, its steps."""

    view: PassView
    own: Mapping[int, int]
    steps: list[StepRow]


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of every event where the trace holds a part of them only. `operators`: the longest by own time;
    `operators_own_ns`: of all of them; `own_ns` by layer."""

    operators: list[OperatorRow]
    operators_own_ns: int
    own_ns: Mapping[int, int]


def operators(trace: Trace, view: PassView, own: Mapping[int, int], count: int = 20) -> list[OperatorRow]:
    """By own time, the most first. A leaf operator is the operator itself, seen in layer 3."""
    found: dict[str, OperatorRow] = {}
    longest: dict[str, int] = {}
    for row in view.rows:
        if trace.layer[row] not in (4, 3):
            continue
        name = name_of(trace, row)
        if name in MARKS:
            continue
        name = name.removeprefix("leaf ")
        entry = found.setdefault(name, OperatorRow(name, 0, 0, 0, ""))
        entry.calls += 1
        entry.total_ns = (entry.total_ns or 0) + trace.end_ns[row] - trace.start_ns[row]
        spent = own.get(row, 0)
        entry.own_ns += spent
        if spent > longest.get(name, -1):
            longest[name] = spent
            shapes = trace.attributes(row).get("tokentrace.op.input_shapes")
            entry.shapes = str(shapes) if shapes else ""
    return sorted(found.values(), key=lambda o: (-o.own_ns, o.name))[:count]


def slowest(
    trace: Trace,
    view: PassView,
    own: Mapping[int, int],
    steps: list[StepRow],
    gap: Gap | None,
    counted: Counted | None = None,
    seeing: SeenIn | None = None,
) -> str:
    """Which part took most of the wall time, and where in it. `seeing`: the pass that saw operators."""
    candidates: list[tuple[int, str, str]] = []  # the time, what took it, and where in it
    compiled: dict[str, int] = {}
    for role, title in _ROLES.items():
        chosen = [s for s in steps if s.took_part_as(role)]
        if chosen:
            spent = sum(s.wall_ns for s in chosen)
            candidates.append((spent, title, f": {_steps_text(chosen)}"))
            compiled[title] = _compiling_in(trace, view, own, chosen)
    names: dict[tuple[int, str], int] = {}
    compiling = 0
    in_steps = {"step", "schedule", "prepare batch", "update batch", "forward", "sample"} if steps else set()
    for row, spent in own.items():
        name, layer = name_of(trace, row), trace.layer[row]
        if layer == 2:
            compiling += spent
        elif layer >= 5 and not (layer in (5, 6) and name in in_steps):
            names[layer, name] = names.get((layer, name), 0) + spent
    if not candidates:  # a recording: nothing above says where the work of the chip belongs
        for number, title in ((3, "Kernels and launches"), (4, "Operators")):
            low, inside = _of_layer(trace, own, number) if counted is None else _of_counted(counted, number)
            if low:
                candidates.append((low, title, inside))
    if compiling:
        candidates.append((compiling, "Compiling", ""))
    if names:
        (layer, name), spent = max(names.items(), key=lambda item: item[1])
        candidates.append((spent, f"`{name}` (layer {layer})", ""))
    outside = {"wait": _waited_for(view), "stream": "The reply's stream"}
    phases = [
        r for r in view.rows if trace.layer[r] == 8 and trace.parent[r] == view.chat and name_of(trace, r) in outside
    ]
    if phases and not any(trace.layer[row] < 8 for row in own):
        # From outside the server these two hold all that nobody owns, and say more than that nobody owns it.
        for row in phases:
            length = trace.end_ns[row] - trace.start_ns[row]
            candidates.append((length, outside[name_of(trace, row)], ""))
    elif gap is not None:
        between = f", between {gap.before} and {gap.after} (in {gap.around})"
        candidates.append((gap.length_ns, "Time of no layer", between))
    if not candidates:
        return ""
    spent, what, where = max(candidates, key=lambda c: c[0])
    text = f"{what} took {duration(spent)}, {share(spent, view.wall_ns)} of {_whole(trace, view)}{where}"
    if 2 * compiled.get(what, 0) > spent:
        text += f"; inside, compiling took {duration(compiled[what])}"
    elif seeing is not None and what in _ROLES.values():
        text += _operator_inside(trace, seeing, next(role for role, title in _ROLES.items() if title == what))
    return f"{text}."


def _waited_for(view: PassView) -> str:
    """What ended the phase `wait`: the first token of a stream. Its headers, role and keep-alives came before."""
    streamed = view.exchange.get("chunks") and view.exchange.get("ttft_ns") is not None
    return "The wait for the first token" if streamed else "The wait for the reply"


def _operator_inside(trace: Trace, seeing: SeenIn, role: str) -> str:
    """The operator with the most own time in the steps of this role, where a profiler saw into any of them."""
    chosen = {_step_key(step.index, step.start_ns) for step in seeing.steps if step.took_part_as(role)}
    within: dict[int, bool] = {0: False}
    names: dict[str, int] = {}
    for row, spent in seeing.own.items():
        if trace.layer[row] not in (4, 3) or (name := name_of(trace, row)) in MARKS:
            continue
        path, at = [], row
        while at not in within:
            path.append(at)
            if trace.layer[at] == 6 and name_of(trace, at) == "step":
                index = trace.attributes(at).get("tokentrace.step.index")
                within[at] = _step_key(index, trace.start_ns[at] - seeing.view.start_ns) in chosen
            else:
                at = trace.parent[at]
        within.update(dict.fromkeys(path, within[at]))
        if within[row]:
            name = name.removeprefix("leaf ")
            names[name] = names.get(name, 0) + spent
    if not names:
        return ""
    first = min(names, key=lambda name: (-names[name], name))
    return f"; inside, {first} had {share(names[first], sum(names.values()))} of the operators' time"


def _step_key(index: Any, start_ns: int) -> tuple[str, int]:
    """Steps of several processes are the same one by their index."""
    return ("index", index) if isinstance(index, int) else ("start", start_ns)


def _compiling_in(trace: Trace, view: PassView, own: Mapping[int, int], chosen: list[StepRow]) -> int:
    """Own time of layer 2 within these steps, ns."""
    spans = [(view.start_ns + s.start_ns, view.start_ns + s.start_ns + s.wall_ns) for s in chosen]
    return sum(
        spent for row, spent in own.items()
        if trace.layer[row] == 2 and any(low <= trace.start_ns[row] < high for low, high in spans)
    )  # fmt: skip


def _of_layer(trace: Trace, own: Mapping[int, int], number: int) -> tuple[int, str]:
    """The layer's own time, and which name in it has most of that."""
    names: dict[str, int] = {}
    for row, spent in own.items():
        if trace.layer[row] == number:
            name = name_of(trace, row)
            names[name] = names.get(name, 0) + spent
    low = sum(names.values())
    return low, _inside(*max(names.items(), key=lambda item: item[1]), low) if low else ""


def _of_counted(counted: Counted, number: int) -> tuple[int, str]:
    """The same where the trace holds a part only; which kernel or launch is the longest is not known then."""
    low = counted.own_ns.get(number, 0)
    first = counted.operators[0] if number == 4 and counted.operators else None
    return low, _inside(first.name, first.own_ns, low) if first else ""


def _inside(name: str, spent: int, low: int) -> str:
    """Where in a layer its time is, where one name has at least a tenth of it."""
    if 10 * spent < low:
        return ""
    part = "most of it" if 2 * spent > low else "the largest part"
    return f", {part} in {name} ({duration(spent)})"


def _whole(trace: Trace, view: PassView) -> str:
    """What the wall time is of. An import says whether it is all of a recording."""
    if view.chat != NONE or trace.meta.get("mode") == "trace":
        return "the request"
    if trace.meta.get("mode") in ("local", "url", "attach"):  # --layers left the request itself out
        return f"the {view.name} pass" if view.name in ("cold", "warm", "deep") else "the pass"
    return str(trace.attributes(0).get("tokentrace.import.whole") or "the recording")


def _steps_text(chosen: list[StepRow]) -> str:
    if len(chosen) == 1:
        tokens = chosen[0].tokens
        text = "1 step" + (f" of {plural(tokens, 'token')}" if tokens is not None else "")
        return text + (f", which also held {others}" if (others := _others(chosen[0])) else "")
    middle = median(s.wall_ns for s in chosen)
    worst = max(chosen, key=lambda s: s.wall_ns)
    text = f"{len(chosen)} steps of {duration(middle)} (median)"
    if worst.wall_ns > 2 * middle:
        which = f" (step {worst.index})" if worst.index is not None else ""
        text += f", the longest {duration(worst.wall_ns)}{which}"
        if others := _others(worst):
            text += f", which also held {others}"
    return text


def _others(step: StepRow) -> str:
    """What else was in a step that was a prefill for some of its batch and a decode for others."""
    if step.phase != "mixed" or step.role not in ("prefill", "decode"):
        return ""
    others = (step.batch_size or 0) - 1
    whose = "its other replies" if others == step.siblings else "another request" if others == 1 else "other requests"
    count = ""
    if step.batch_tokens is not None and step.tokens is not None:
        count = f" ({plural(step.batch_tokens - step.tokens, 'token')})"
    return f"{'the prefill' if step.role == 'decode' else 'decoding'} of {whose}{count}"
