"""Ctrl-C at a bad moment: what has been seen is kept first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentrace.model import Trace

#: Of the root: where a run was cut short and what is missing, in a sentence without its subject.
MARK = "tokentrace.interrupted"

#: After so many, the user means it more than the trace.
_INSIST = 2


#: Those that are held now, one in another.
_open: list[Held] = []


class Held:
    """Whether SIGINT or SIGTERM came meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def came(self) -> bool:
        return self.count > 0


@contextmanager
def held() -> Iterator[Held]:
    """SIGINT and SIGTERM inside are noted and nothing more; the second raises KeyboardInterrupt.

    For seconds at most (fetching what was recorded, stitching, saving), or for a loop that looks at `came`. In other
    threads than the main one, where no signal arrives, it does nothing.
    """
    found = Held()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, frame: FrameType | None) -> None:
        found.count += 1
        if found.count >= _INSIST:
            for one in _open:  # it ends what is around it, too
                one.count = max(one.count, found.count)
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for one in (signal.SIGINT, signal.SIGTERM):
        before[one] = signal.signal(one, note)
    _open.append(found)
    try:
        yield found
    finally:
        _open.remove(found)
        for one, handler in before.items():
            # None: it was not set from Python, and cannot be set again from here.
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)


def mark(trace: Trace, sentence: str) -> None:
    """Say on the trace's root that it was cut short: as attribute, as event, and as the span's status."""
    from tokentrace.model import STATUS_ERROR, Event

    trace.set_attributes(0, {MARK: sentence})
    # Where the root ends nothing more was seen; a later time would lie outside of it.
    trace.events.setdefault(0, []).append(Event(MARK, min(time.time_ns(), trace.end_ns[0]), {MARK: sentence}))
    trace.statuses[0] = (STATUS_ERROR, sentence)
