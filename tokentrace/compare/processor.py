"""What speaks for a busier machine and what for slower work, where all parts of a request took longer alike.

The processor time of the model's processes says it, where it was recorded: the same work that only had to wait its
turn uses as much of it as before, while other programs use the rest of the machine. It is a hint and no verdict: a
machine whose cores share their units makes a processor second worth less, and threads that spin while they wait use
processor time as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokentrace.wording import duration

if TYPE_CHECKING:
    from tokentrace.model import Trace

#: Below so many ticks of the counter its resolution is too much of the figure.
_LEAST_TICKS = 10
#: Of the extra time, at most this share may be processor time of the model where it only waited, and at least that
#: where it is the work.
_WAITED, _WORKED = 0.3, 0.7
#: From this share of all its cores on a machine is full.
_FULL = 0.95
#: What other programs use may differ by so many cores and still be called the same.
_SAME_CORES = 0.25


@dataclass(frozen=True, slots=True)
class Processor:
    """Processor seconds of one pass: of the model's processes, and of the whole machine in the same time."""

    model_s: float
    machine_s: float
    window_s: float
    cores: int

    @property
    def full(self) -> bool:
        """Had the machine no time left?"""
        return self.machine_s >= _FULL * self.window_s * self.cores

    @property
    def others(self) -> float:
        """Cores that other programs kept busy."""
        return max(0.0, self.machine_s - self.model_s) / self.window_s


def of_rows(trace: Trace, rows: Iterable[int]) -> Processor | None:
    """What the power layer left on a span of these; None where the model was not watched, or for too short."""
    found = (_read(trace.attributes(r), trace.end_ns[r] - trace.start_ns[r]) for r in rows if trace.layer[r] == 1)
    return next((one for one in found if one is not None), None)


def _read(own: Mapping[str, Any], window_ns: int) -> Processor | None:
    keys = ("seconds", "system_seconds", "tick_seconds", "cores")
    known = [own.get(f"tokentrace.cpu.{key}") for key in keys]
    figures = [float(value) for value in known if isinstance(value, (int, float))]
    if len(figures) < len(keys) or window_ns <= 0:
        return None
    model, machine, tick, cores = figures
    return Processor(model, machine, window_ns / 1e9, int(cores)) if model >= _LEAST_TICKS * tick else None


def hint(base: Processor | None, new: Processor | None) -> str:
    """One sentence with the figures, or nothing where they are not known of both sides."""
    if base is None or new is None:
        return ""
    slow, fast = (new, base) if new.window_s > base.window_s else (base, new)
    extra = slow.window_s / fast.window_s - 1
    if extra <= 0:
        return ""
    paid = (slow.model_s / fast.model_s - 1) / extra
    used = f"{_seconds(base.model_s)}, then {_seconds(new.model_s)}"
    others = f"other programs kept {base.others:.1f}, then {new.others:.1f} cores busy"
    more = slow.others - fast.others
    if paid <= _WAITED and slow.full:
        much = f"the model used much the same processor time ({used}), while {others}"
        if not fast.full and more > 0:
            return f"The machine's load is the likelier cause: {much}."
        # On a full machine others have what the model leaves, whatever it waits for.
        return f"It waited, for the processor or for something else: {much} of a machine that was full."
    if paid <= _WAITED and more <= _SAME_CORES:
        return (
            f"It waited, and not for other programs: the model used much the same processor time ({used}), and "
            f"{others}. A sleep, a lock, a limit on processor time or a wait for the chip does that."
        )
    if paid >= _WORKED and more <= _SAME_CORES:
        return (
            f"The work itself, or a processor that runs slower, is the likelier cause: the model's processor time "
            f"changed with it ({used}), while {others}."
        )
    return f"The model used {used} of processor time, while {others}."


def _seconds(value: float) -> str:
    return duration(value * 1e9)
