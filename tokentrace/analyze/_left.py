"""How a traced program left its block and its stages, where it did so with an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tokentrace.interrupts import MARK
from tokentrace.model import STATUS_ERROR, Trace
from tokentrace.probe import Finding
from tokentrace.stitch import STAGE
from tokentrace.wording import plural

#: They end a program or a task from outside, and are told as an interruption where they ended the block.
_NO_FAULT = ("KeyboardInterrupt", "CancelledError", "SystemExit")


def left_with(trace: Trace) -> Iterator[Finding]:
    """As its root and the spans of its stages say: the kind of the error, never its words."""
    if not len(trace) or trace.attributes(0).get("tokentrace.mode") != "trace":
        return
    stages: Counter[tuple[str, str]] = Counter()
    for row in range(1, len(trace)):
        name = trace.names[trace.name[row]]
        if not trace.layer[row] and name.startswith(STAGE):
            status, told = trace.statuses.get(row, (0, ""))
            if status == STATUS_ERROR and told and not told.endswith(_NO_FAULT):
                stages[name.removeprefix(STAGE), told] += 1
    status, told = trace.statuses.get(0, (0, ""))
    if status == STATUS_ERROR and told and MARK not in trace.attributes(0):
        yield Finding(8, f"{told[:1].upper()}{told[1:]}.", "", "see the error in the program", "fail")
    for (stage, told), times in stages.items():
        sentence = f"{told[:1].upper()}{told[1:].replace('left it', f'left the stage `{stage}`', 1)}."
        yield Finding(8, sentence, plural(times, "time") if times > 1 else "", "", "warn")
