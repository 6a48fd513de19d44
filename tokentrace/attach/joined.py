"""Requests of others, seen from inside, each with the server's own spans of it: a finished one waits here for them.

vLLM sends its span of a request some seconds after the request has ended. Both sides have one clock: an agent is on
this machine.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokentrace.attach.served import Served
from tokentrace.probes._request import ended
from tokentrace.receive.account import OUT_NS
from tokentrace.receive.join import Told, why_missing
from tokentrace.receive.spans import ReceivedSpan

if TYPE_CHECKING:
    from tokentrace.receive import Receiver

#: A span that belongs to no request that is waited for is kept for so long: the request may not have ended here yet.
KEEP_S = 60.0
CUT = "the watching ended before the server sent its own span of it", "watch longer"


@dataclass(slots=True)
class Left:
    """How many requests of others have not been given yet; true while they are watched and behind it."""

    under_way: int = 0  # begun, and not ended when the watching was to end
    ended: int = 0  # ended before that, and not saved


class Joiner:
    """Finished requests go in, and come out once the server has told of them, or after the receiver's patience.

    Without a receiver they come out at once. `len` is how many wait.
    """

    def __init__(self, receiver: Receiver | None) -> None:
        self._receiver = receiver
        self._waiting: list[tuple[float, Served]] = []
        self._spans: list[tuple[float, ReceivedSpan]] = []
        if receiver is not None:
            receiver.expect_requests()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, served: Served) -> None:
        self._waiting.append((time.monotonic(), served))

    def ready(self, *, at_once: bool = False) -> list[tuple[Served, Told | None]]:
        """The requests that need not wait any longer, oldest first; `at_once`: all of them."""
        receiver = self._receiver
        if receiver is None:
            waited, self._waiting = self._waiting, []
            return [(served, None) for _, served in waited]
        now = time.monotonic()
        self._spans += [(now, span) for span in receiver.drain()]
        found: list[tuple[Served, Told | None]] = []
        for since, served in list(self._waiting):
            mine = spans_of(served, [span for _, span in self._spans])
            whole = len(mine) >= expected(served)
            if not (whole or at_once or now - since >= receiver.patience_s):
                continue
            self._waiting.remove((since, served))
            self._spans = [one for one in self._spans if one[1] not in mine]
            missing = None
            if not mine and not whole:
                missing = CUT if now - since < receiver.patience_s else why_missing(receiver, watching=True)
            found.append((served, Told(mine, missing)))
        self._spans = [one for one in self._spans if now - one[0] < KEEP_S]
        return found


def expected(served: Served) -> int:
    """How many spans the server makes of it: one for each reply, none when it never came to the engine or its client
    hung up."""
    if served.first("submit") is None or ended(served.raws) in ("", "abort"):
        return 0
    return served.replies


def spans_of(served: Served, spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Those of this request, by its id and time. Not by its traceparent: a caller may send one with many requests."""
    request = served.request
    rids = [served.rid, *map(str, request.data.get("rids") or ())]
    return [
        span
        for span in spans
        if request.start_ns - OUT_NS <= span.start_ns
        and span.end_ns <= request.end_ns + OUT_NS
        and any(_is_of(span, rid) for rid in rids)
    ]


def _is_of(span: ReceivedSpan, rid: str) -> bool:
    """Whether its request is the one that the engine calls `rid`: vLLM puts the reply's number in front of the id and
    eight random digits behind it (vllm/v1/engine/input_processor.py, parallel_sampling.py)."""
    own = span.attributes.get("gen_ai.request.id")
    return isinstance(own, str) and re.fullmatch(rf"(?:\d+_)?{re.escape(own)}(?:-[0-9a-f]{{8}})?", rid) is not None
