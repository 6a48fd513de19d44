"""Joules of each step of a recording from a power dump beside it, and of a token of each phase, with their error.

A step gets joules only where the sensor can see it: one that is shorter than the sensor's period or averaging window,
or whose error is as large as its energy, gets none. A step's tokens share its energy evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentrace.energy.curve import CannotTell, EnergyCurve
from tokentrace.energy.device import curve_of
from tokentrace.importers import power_dumps
from tokentrace.importers.power_dumps import PowerDump
from tokentrace.model import Trace
from tokentrace.probe import Finding
from tokentrace.wording import plural

_MORE = "sample power.draw.instant more often than a step is long, or record longer steps"


@dataclass(frozen=True, slots=True)
class Card:
    """A dump's card that is taken for a recording's device.

    By `number`: CUDA_VISIBLE_DEVICES may have given the card another one. As the `only card`: the dump has no other.
    Neither is sure, so what rests on it says so.
    """

    name: str  # in the dump
    device: str  # in the recording
    join: str

    @property
    def told(self) -> str:
        how = "by its number" if self.join == "number" else "as the only one in the dump"
        return f"GPU {self.name} is taken for the recording's device {self.device}, {how}"

    def attributes(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}.card": self.name, f"{prefix}.device": self.device, f"{prefix}.device_join": self.join}


def join(trace: Trace, dump: PowerDump, card: Card) -> list[Finding]:
    """Give the trace's step spans `tokentrace.step.joules` and its error, and say of what card; one finding a phase.

    No finding where the trace has no steps or the dump no curve.
    """
    rows = [row for row in range(len(trace)) if trace.layer[row] == 6 and trace.names[trace.name[row]] == "step"]
    try:
        curve = curve_of(power_dumps.log_of(dump, card.name))
    except (CannotTell, IndexError):
        return []
    phases: dict[str, list[int]] = {}
    for row in rows:
        phases.setdefault(str(trace.attributes(row).get("tokentrace.step.phase") or ""), []).append(row)
    return [_phase(trace, curve, phase, of_phase, card) for phase, of_phase in phases.items()]


def _phase(trace: Trace, curve: EnergyCurve, phase: str, rows: list[int], card: Card) -> Finding:
    joules = error = 0.0
    seen = tokens = 0
    countable = True
    why = ""
    for row in rows:
        try:
            energy = curve.require(trace.start_ns[row], trace.end_ns[row], "step")
        except CannotTell as reason:
            why = why or str(reason)
            continue
        trace.set_attributes(row, {"tokentrace.step.joules": energy.joules,
                                   "tokentrace.step.joules_error": energy.error_joules,
                                   **card.attributes("tokentrace.step.power")})  # fmt: skip
        seen += 1
        joules += energy.joules
        error += energy.error_joules
        count = trace.attributes(row).get("tokentrace.step.tokens")
        countable = countable and isinstance(count, int) and count > 0
        tokens += count if isinstance(count, int) else 0
    what = f"{phase} step" if phase else "step"
    basis = f"a sample each {curve.period_ns / 1e6:,.0f} ms; {card.told}"
    if not seen:
        return Finding(1, f"What a {what} drew of GPU {card.name} cannot be told: {why}.",
                       f"{plural(len(rows), what)}, {basis}", _MORE, "unknown")  # fmt: skip
    sentence = f"GPU {card.name} used {joules / seen:,.3g} J (± {error / seen:,.2g} J) a {what}"
    if countable:
        sentence += f", {joules / tokens:,.3g} J (± {error / tokens:,.2g} J) a token"
    evidence = f"{seen:,} of {plural(len(rows), what)}, {basis}"
    return Finding(1, f"{sentence}.", evidence + (f"; the others: {why}" if why else ""))
