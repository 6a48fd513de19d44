"""Measurements of what has no spans to count: a saved report, and an imported recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrace.analyze.tree import STEP
from tokentrace.compare.sample import NOBODY, ONCE, OPERATORS, Amount, Amounts, Sample, Step, pace_of, step_amounts
from tokentrace.exchange import Pace, pace

if TYPE_CHECKING:
    from tokentrace.importers import Imported
    from tokentrace.report import Report


def of_report(report: Report, label: str, name: str = "") -> Sample:
    """A report without its spans: layers, steps, and the operators that it lists. Raises KeyError: no such pass."""
    name = name or report.headline_pass
    one = report.passes[name]
    layers: Amounts = {}
    for place, spent in one.own_ns.items():
        number = place.partition(".")[0]
        if not number.isdecimal():  # a file may say anything
            continue
        layer = int(number)
        amount = layers.setdefault(layer, Amount("", layer))
        amount.slots[ONCE] = amount.slots.get(ONCE, 0) + spent
    if one.unattributed_ns is not None:
        layers[NOBODY] = Amount("", NOBODY, {ONCE: one.unattributed_ns})
    met: dict[str, int] = {}
    steps = []
    for row in one.steps:
        phase = str(row.get("phase") or STEP)
        steps.append(Step((phase, met.get(phase, 0)), row.get("index"), int(row["wall_ns"]), row.get("tokens")))
        met[phase] = met.get(phase, 0) + 1
    why = "a report holds no spans: give the run"
    sample = Sample(
        label=label,
        kind="report",
        pass_name=name,
        wall_ns=one.wall_ns,
        ttft_ns=one.ttft_ns,
        tokens=dict(report.tokens) if name == report.headline_pass else {},
        pace=_pace_of_report(report, name),
        facts={k: v for k, v in (("prompt", report.prompt), ("model", report.model)) if v},
        steps=steps,
        looks_inside=any(layer in layers for layer in OPERATORS),
        levels={"layers": layers, "steps": step_amounts(steps)},
        missing={"spans": why, "modules": why, "kernels": why},
        partial=frozenset(("operators",)),
    )
    if report.operators and name in (report.headline_pass, report.operators_pass):
        sample.levels["operators"] = {
            str(o["name"]): Amount(str(o["name"]), 4, {ONCE: int(o["own_ns"])}) for o in report.operators
        }
        sample.deep_pass = report.operators_pass
    else:
        sample.missing["operators"] = "the report lists none"
    return sample


def _pace_of_report(report: Report, name: str) -> Pace:
    """As the report tells it, or of what an older one kept."""
    if kept := report.passes[name].pace:
        return pace_of({"pace": kept})
    if name != report.headline_pass:
        return Pace(why="a report does not tell it")
    if report.ttft_ns is None:
        return Pace(why="the reply was not streamed")
    times = [int(row["arrival_ns"]) for row in report.token_times if row.get("arrival_ns") is not None]
    # Of a token without an arrival at the end it is known that it has no text.
    ended = bool(report.token_times) and report.token_times[-1].get("arrival_ns") is None
    return pace(times, report.tokens.get("output"), end_mark=ended)


def of_import(found: Imported, label: str) -> Sample:
    """A recording: when kernels ran, and every kernel by name. Operators are the largest ones, by own host time."""
    figures = found.figures
    steps = [
        Step(("step", number), row.get("index"), int(row["span_ns"]), name=str(row.get("name") or f"step {number}"))
        for number, row in enumerate(found.steps)
    ]
    kernels: Amounts = {}
    for name, _, spent in found.kernels:
        amount = kernels.setdefault(name, Amount(name, 3, {ONCE: 0}))
        amount.slots[ONCE] += spent
    devices = max(1, len(figures["devices"]))
    wall = int(figures["span_ns"]) * devices
    sample = Sample(
        label=label,
        kind="import",
        pass_name="import",
        wall_ns=int(figures["span_ns"]),
        steps=steps if devices == 1 else [],
        levels={"steps": step_amounts(steps), "kernels": kernels},
        missing={
            "spans": "a recording of the chip shows no request",
            "modules": "modules of recordings are not compared",
        },
        partial=frozenset(("operators",)),
    )
    if kernels:
        busy = {("step", n): int(row["busy_ns"]) for n, row in enumerate(found.steps)} if devices == 1 else {}
        rest = int(figures["busy_ns"]) - sum(busy.values())
        slots = {**busy, ONCE: rest} if rest >= 0 else {ONCE: int(figures["busy_ns"])}
        sample.levels["layers"] = {
            3: Amount("", 3, slots),
            NOBODY: Amount("", NOBODY, {ONCE: max(0, wall - int(figures["busy_ns"]))}),
        }
        if devices > 1:
            sample.notes.append(f"{label} has {devices} devices: kernel time is the sum over them")
    else:
        sample.missing |= {"kernels": "no kernel is in it", "layers": "no kernel is in it"}
        del sample.levels["kernels"]
    if found.operators:
        sample.levels["operators"] = {
            str(o["name"]): Amount(str(o["name"]), 4, {ONCE: int(o["own_ns"])}) for o in found.operators
        }
    else:
        sample.missing["operators"] = "no operator is in it"
    return sample
