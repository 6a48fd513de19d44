"""Joules of each step of a recording from a power dump beside it, and of a token of each phase, with their error.

A step gets joules only where the sensor can see it: one that is shorter than the sensor's period or averaging window,
or whose error is as large as its energy, gets none. A step's tokens share its energy evenly.
"""

from __future__ import annotations

from tokentrace.energy.curve import CannotTell, EnergyCurve
from tokentrace.energy.device import curve_of
from tokentrace.importers import power_dumps
from tokentrace.importers.power_dumps import PowerDump
from tokentrace.model import Trace
from tokentrace.probe import Finding
from tokentrace.wording import plural

_MORE = "sample power.draw.instant more often than a step is long, or record longer steps"


def join(trace: Trace, dump: PowerDump, device: str, name: str) -> list[Finding]:
    """Give the trace's step spans `tokentrace.step.joules` and its error; one finding a phase. `name` is the device's.

    No finding where the trace has no steps or the dump no curve.
    """
    rows = [row for row in range(len(trace)) if trace.layer[row] == 6 and trace.names[trace.name[row]] == "step"]
    try:
        curve = curve_of(power_dumps.log_of(dump, device))
    except (CannotTell, IndexError):
        return []
    phases: dict[str, list[int]] = {}
    for row in rows:
        phases.setdefault(str(trace.attributes(row).get("tokentrace.step.phase") or ""), []).append(row)
    return [_phase(trace, curve, phase, of_phase, name) for phase, of_phase in phases.items()]


def _phase(trace: Trace, curve: EnergyCurve, phase: str, rows: list[int], name: str) -> Finding:
    joules = error = 0.0
    seen = tokens = 0
    countable = True
    why = ""
    for row in rows:
        try:
            energy = curve.require(trace.start_ns[row], trace.end_ns[row])
        except CannotTell as reason:
            why = why or str(reason).replace("the request", "the step").replace("a request", "a step")
            continue
        trace.set_attributes(row, {"tokentrace.step.joules": energy.joules,
                                   "tokentrace.step.joules_error": energy.error_joules})  # fmt: skip
        seen += 1
        joules += energy.joules
        error += energy.error_joules
        count = trace.attributes(row).get("tokentrace.step.tokens")
        countable = countable and isinstance(count, int) and count > 0
        tokens += count if isinstance(count, int) else 0
    what = f"{phase} step" if phase else "step"
    period = f"a sample each {curve.period_ns / 1e6:,.0f} ms"
    if not seen:
        return Finding(1, f"What a {what} drew of {name} cannot be told: {why}.",
                       f"{plural(len(rows), what)}, {period}", _MORE, "unknown")  # fmt: skip
    sentence = f"{name} used {joules / seen:,.3g} J (± {error / seen:,.2g} J) a {what}"
    if countable:
        sentence += f", {joules / tokens:,.3g} J (± {error / tokens:,.2g} J) a token"
    evidence = f"{seen:,} of {plural(len(rows), what)}, {period}"
    return Finding(1, f"{sentence}.", evidence + (f"; the others: {why}" if why else ""))
