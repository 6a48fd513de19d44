"""A request that asked for several replies (n > 1, or several prompts), seen on the way of its first one."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrace.model import UP, Record
from tokentrace.probe import Raw

_MADE = ("output", "decode")


def whole_at(theirs: Sequence[Sequence[Raw]]) -> int:
    """When the last of the other replies was whole, by the records of each; 0 where that was not seen."""
    return max((raw.end_ns for one in theirs for raw in one if raw.name in _MADE), default=0)


def waits_for_others(rid: str, request: Raw, raws: Sequence[Raw], others_end_ns: int) -> list[Record]:
    """The waits for the other replies, when this one was whole; pieces of them that were sent meanwhile lie between."""
    own = [raw for raw in raws if raw.name in _MADE]
    if not own or not others_end_ns:
        return []
    at, until = max(raw.end_ns for raw in own), min(others_end_ns, request.end_ns)
    found = []
    for write in sorted((raw for raw in raws if raw.name == "write"), key=lambda raw: raw.start_ns):
        if write.end_ns > at:
            found.append((at, min(write.start_ns, until)))
            at = write.end_ns
    found.append((at, until))
    return [
        Record("wait for other replies", 6, start, end, {}, UP, own[0].process, own[0].thread, request=rid,
               parent_key=f"request-http:{rid}", join="request_id", flow=True)
        for start, end in found if end > start
    ]  # fmt: skip
