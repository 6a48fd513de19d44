"""Layer 5: did a GPU work during the live call?"""

from __future__ import annotations

from collections.abc import Iterable

from tokentrace.doctor.check import Check, Live, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware
from tokentrace.doctor.machine.load import NAME, logs_of
from tokentrace.doctor.machine.situation import view_of
from tokentrace.energy.device import Log
from tokentrace.wording import duration, listed

#: NVML's utilization is a mean over one sixth of a second to one second, AMD's over a few milliseconds.
_WINDOW_NS = 1_000_000_000
#: A card that is "100 % used" and draws less than this part of its limit is waiting more than working.
_LITTLE_POWER = 0.3


def run(situation: Situation) -> Iterable[Result]:
    """TT507."""
    live = situation.live
    if live is None or not live.answered:
        return [skip("TT507", "no live call was answered")]
    if not situation.here:
        return [skip("TT507", "the server runs on another machine, its GPU cannot be seen from here")]
    if not hardware.look(view_of(situation)).any_gpu:
        return [skip("TT507", "there is no GPU here")]
    logs = [log for log in logs_of(live.of(NAME)) if log.info.type == "gpu"]
    if not logs:
        why = live.errors.get(NAME) or "no sensor of a GPU answers, see TT101"
        return [unknown("TT507", f"whether the GPU worked is not known: {why}")]
    return [judge(logs, live)]


def judge(logs: list[Log], live: Live) -> Result:
    """All cards together: the call needs only one of them."""
    took = live.end_ns - live.start_ns
    used: dict[str, float] = {}
    lines = []
    for log in logs:
        during = [c.utilization for c in log.conditions
                  if c.utilization is not None and live.start_ns <= c.time_ns <= live.end_ns + _WINDOW_NS]  # fmt: skip
        if not during:
            lines.append(f"{log.info.name}: utilization {log.info.fields.get('utilization', 'not told')}")
            continue
        used[log.info.name] = max(during)
        watts = [r.watts for r in log.readings if r.watts and live.start_ns <= r.time_ns <= live.end_ns]
        power = f", {max(watts):.0f} W" if watts else ""
        limit = f" of {log.info.cap_w:.0f} W" if watts and log.info.cap_w else ""
        lines.append(f"{log.info.name}: {max(during):.0%} at most{power}{limit}")
        if watts and log.info.cap_w and max(during) > 0.9 and max(watts) < _LITTLE_POWER * log.info.cap_w:
            lines.append(
                f"{log.info.name}: utilization counts any kernel that is there; the low power says that it waits"
            )
    if not used:
        return unknown("TT507", "the utilization of no GPU can be read", "", *lines)
    busy = [name for name, value in used.items() if value > 0]
    if busy:
        return ok("TT507", f"{listed(busy)} worked during the live call", *lines)
    if took < _WINDOW_NS:
        return unknown("TT507", f"no GPU showed work, but the live call took {duration(took)} and the sensor looks at "
                       f"{duration(_WINDOW_NS)}", "ask for a longer reply", *lines)  # fmt: skip
    return warn("TT507", f"no GPU worked during the live call of {duration(took)}: the model runs on the processor",
                "see TT501, TT503 and TT509; with transformers check model.device", *lines)  # fmt: skip


CHECKS = (
    Check(
        "TT507", "GPU at work",
        "A model that quietly runs on the processor answers correctly and slowly. Utilization counts any kernel that "
        "is there, so it is shown beside power.",
        "utilization and power of every GPU before, during and after the live call",
        "Install a torch for the GPU and see that the model is placed on it.",
        run, live=True,
    ),
)  # fmt: skip
