"""When the server wrote what arrived here, so that a late token is put down to the side that was late.

The server's `write chunk` spans and the pieces that the client read are the same bytes. Where their sizes agree one by
one, each piece has its write. Else each piece of text gets the latest write that it can have come by, so that nothing
is put down to the way that may have been the server's.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tokentrace.analyze._passes import NONE, PassView, name_of
from tokentrace.model import Trace

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis

#: Start and end, ns after the request's start.
Write = tuple[int, int]


def text_arrivals(view: PassView) -> list[int]:
    """When each piece of text was read, ns after the request's start."""
    return [int(at) for at, text in view.exchange.get("chunks") or () if text]


def written(trace: Trace, view: PassView) -> list[Write] | None:
    """The write of each piece of text, in order; None where the server's writes were not seen, or cannot be those."""
    rows = [r for r in view.rows if trace.layer[r] == 8 and name_of(trace, r) == "write chunk"]
    arrivals = text_arrivals(view)
    if not rows or not arrivals:
        return None
    rows.sort(key=lambda r: (trace.start_ns[r], trace.end_ns[r]))
    writes = [(trace.start_ns[r] - view.start_ns, trace.end_ns[r] - view.start_ns) for r in rows]
    return _by_size(trace, view, rows, writes, len(arrivals)) or _latest(writes, arrivals)


def _by_size(trace: Trace, view: PassView, rows: list[int], writes: list[Write], pieces: int) -> list[Write] | None:
    read: list[tuple[int, bool]] = []
    for event in trace.events.get(view.chat, ()) if view.chat != NONE else ():
        size = event.attributes.get("tokentrace.bytes")
        if size:  # a finish that came in the last token's piece has no size of its own
            text = event.name == "tokentrace.token" and bool(event.attributes.get("tokentrace.token.text"))
            read.append((size, text))
    if [size for size, _ in read] != [trace.attributes(row).get("tokentrace.bytes") for row in rows]:
        return None
    found = [write for (_, text), write in zip(read, writes, strict=True) if text]
    return found if len(found) == pieces else None


def _latest(writes: list[Write], arrivals: list[int]) -> list[Write] | None:
    found: list[Write] = []
    following = len(writes)
    for at in reversed(arrivals):
        chosen = next((n for n in range(following - 1, -1, -1) if writes[n][0] <= at), None)
        if chosen is None:
            return None  # several pieces in one write
        found.append(writes[chosen])
        following = chosen
    return found[::-1]


def held_ns(writes: list[Write], arrivals: list[int]) -> list[int]:
    """For how long each piece was under way after its write, beyond the shortest of them."""
    under_way = [at - end for at, (_, end) in zip(arrivals, writes, strict=True)]
    return [one - min(under_way) for one in under_way]


def intervals(writes: list[Write]) -> list[int]:
    """Between one write and the next, ns."""
    return [later[0] - earlier[0] for earlier, later in pairwise(writes)]


def after_last_write(trace: Trace, found: Analysis) -> int:
    """Of the time of no layer, what lies after the server's last write: the way back and the client, ns."""
    view = found.main.view
    ends = [trace.end_ns[r] - view.start_ns for r in view.rows
            if trace.layer[r] == 8 and name_of(trace, r) == "write chunk"]  # fmt: skip
    return sum(gap.length_ns for gap in found.gaps if gap.start_ns >= max(ends)) if ends else 0
