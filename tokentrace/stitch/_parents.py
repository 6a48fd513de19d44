"""Which record is whose parent. Looks at one pass; times are not changed here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokentrace.model import Record

NONE = -1
#: Sources of time in one process differ by a few microseconds: torch's profiler reads its clock 3 to 6 us later than
#: a wrapper around the same call. What sticks out no more than this still counts as enclosed.
SLOP_NS = 20_000
#: Two processes of one host may differ a little more; also for records that name their parent.
NAMED_SLOP_NS = 50_000
MAX_DEPTH = 200
_LOOK_DOWN = 200
#: Layers that run inside a step of the engine.
_IN_STEPS = frozenset((5, 4, 3))


@dataclass(slots=True)
class Placement:
    """For each record its parent record (NONE: the pass), how that was found, and whether it is dropped."""

    start: list[int]
    end: list[int]
    parent: list[int]
    join: list[str]
    order: list[int] = field(default_factory=list)  # parents before children, in order of time
    chat: int = NONE
    request_id: str = ""
    foreign: int = 0  # dropped: work of other requests' steps
    outside: int = 0  # dropped: work outside of all steps
    duplicate_keys: int = 0
    repaired: int = 0  # ended before they began
    cycles: int = 0
    unresolved: int = 0  # named a parent or a link that is not there


def resolve(records: Sequence[Record], request_id: str = "", client_span_id: int = 0) -> Placement:
    """Find every record's parent. Takes about 10 us a record."""
    start = [r.start_ns for r in records]
    end = [max(r.end_ns, r.start_ns) for r in records]
    placed = Placement(start, end, [NONE] * len(records), [""] * len(records))
    placed.repaired = sum(1 for r in records if r.end_ns < r.start_ns)
    finder = _Finder(records, placed, request_id, client_span_id)
    finder.run()
    return placed


class _Finder:
    def __init__(self, records: Sequence[Record], placed: Placement, request_id: str, client_span_id: int) -> None:
        self.records = records
        self.placed = placed
        self.keys: dict[str, int] = {}
        self.ids: dict[int, int] = {}
        for index, record in enumerate(records):
            if record.key and self.keys.setdefault(record.key, index) != index:
                placed.duplicate_keys += 1
            if record.span_id:
                self.ids.setdefault(record.span_id, index)
        placed.chat = self.keys.get("chat", NONE)
        if client_span_id:
            placed.chat = self.ids.get(client_span_id, placed.chat)
        self.ours = _our_requests(records, request_id, client_span_id)
        placed.request_id = request_id or next(iter(sorted(self.ours)), "")
        self.dropped = bytearray(len(records))
        self.steps = sorted(
            (i for i, r in enumerate(records) if r.layer == 6 and r.name == "step" and not self.is_foreign(r)),
            key=lambda i: placed.start[i],
        )
        self.step_starts = [placed.start[i] for i in self.steps]
        self.fallback: dict[tuple[str, bool], list[int]] = {}

    def run(self) -> None:
        records = self.records
        within = [NONE] * len(records)
        self._nest(within)
        linked: list[int] = []
        for index, record in enumerate(records):
            if self.is_foreign(record):
                self.placed.foreign += 1
                self.dropped[index] = 1
            elif record.link_keys and not record.parent_key and not record.parent_id:
                linked.append(index)
            else:
                self._place(index, record, within[index])
        for index in linked:
            self._place_linked(index, records[index], within[index])
        self._order()

    def is_foreign(self, record: Record) -> bool:
        request = record.request
        if not request or not self.ours or request in self.ours:
            return False
        # Some servers lengthen the id on the way in ("chatcmpl-x" becomes "chatcmpl-x-1a2b3c4d").
        return not any(request.startswith(f"{own}-") or own.startswith(f"{request}-") for own in self.ours)

    def _place(self, index: int, record: Record, within: int) -> None:
        placed = self.placed
        parent, join = self._named(index, record)
        if parent == NONE and record.parent_key == "chat" and placed.chat == NONE:
            join = "time"  # the model was called without any request: the pass is the whole
        elif parent == NONE and index != placed.chat:
            if within != NONE:
                parent, join = within, "time"
            else:
                if not record.flow and record.layer < 6:
                    parent, join = self._step_at(index), "time"
                if parent == NONE and self.steps and record.layer in _IN_STEPS and not record.flow:
                    placed.outside += 1
                    self.dropped[index] = 1
                elif parent == NONE:
                    parent = self._request_of(index, record)
                    join = "request_id" if record.request else "time"
        placed.parent[index] = parent
        placed.join[index] = record.join or join

    def _named(self, index: int, record: Record) -> tuple[int, str]:
        if record.parent_id:
            found = self.ids.get(record.parent_id, NONE)
            if found not in (NONE, index):
                return found, "traceparent"
            self.placed.unresolved += 1
        if record.parent_key:
            found = self.keys.get(record.parent_key, NONE)
            if found not in (NONE, index):
                holder = self.records[found]
                if holder.layer == 6:
                    return found, "step" if holder.name == "step" else "request_id"
                return found, "request_id" if record.request or holder.request else ""
            self.placed.unresolved += 1
        return NONE, ""

    def _place_linked(self, index: int, record: Record, within: int) -> None:
        """A device's work hangs below whatever holds its launch; `stitch` climbs until that encloses it in time."""
        target = next((self.keys[key] for key in record.link_keys if key in self.keys), NONE)
        if target in (NONE, index):
            self.placed.unresolved += 1
            self._place(index, record, within)
            return
        if self.dropped[target]:
            self.placed.outside += 1
            self.dropped[index] = 1
            return
        self.placed.parent[index] = self.placed.parent[target]
        self.placed.join[index] = record.join or "correlation_id"

    def _nest(self, within: list[int]) -> None:
        """The smallest record that encloses each one on its own thread."""
        start, end = self.placed.start, self.placed.end
        threads: dict[tuple[str, int], list[int]] = {}
        for index, record in enumerate(self.records):
            if not record.flow and not record.link_keys:
                threads.setdefault((record.process, record.thread), []).append(index)
        for rows in threads.values():
            rows.sort(key=lambda i: (start[i], -end[i], -self.records[i].layer, i))
            _nest_thread(rows, start, end, within)

    def _step_at(self, index: int) -> int:
        """Our step that holds this record in time, of its own process if there is one."""
        start, end = self.placed.start[index], self.placed.end[index]
        process = self.records[index].process
        best = NONE
        at = bisect_right(self.step_starts, start + SLOP_NS)
        for position in range(min(at, len(self.steps) - 1), max(-1, at - 8), -1):
            step = self.steps[position]
            if step == index or not holds(self.placed.start[step], self.placed.end[step], start, end, SLOP_NS):
                continue
            if self.records[step].process == process:
                return step
            best = step if best == NONE else best
        return best

    def _request_of(self, index: int, record: Record) -> int:
        """The record of the request itself: as the engine has it, as the server has it, as the client has it."""
        outside = record.layer >= 7
        found = self.fallback.get((record.request, outside))
        if found is None:
            names = dict.fromkeys(filter(None, (record.request, *sorted(self.ours))))
            kinds = ("request-http", "request") if outside else ("request", "request-http")
            wanted = (f"{kind}:{name}" for name in names for kind in kinds)
            found = [self.keys[key] for key in wanted if key in self.keys] + [self.placed.chat]
            self.fallback[record.request, outside] = found
        return next((one for one in found if one != index), NONE)

    def _order(self) -> None:
        """Parents before children, siblings in order of time; what hangs below a dropped record is dropped too."""
        placed = self.placed
        start, end, parent = placed.start, placed.end, placed.parent
        children: dict[int, list[int]] = {}
        in_time = sorted(range(len(start)), key=lambda i: (start[i], -end[i], i))
        for index in in_time:
            children.setdefault(parent[index] if not self.dropped[index] else index, []).append(index)
        seen = bytearray(len(start))
        # A dropped record is listed as its own child above, so that it is never reached from the root.
        for index in in_time:
            if self.dropped[index]:
                seen[index] = 1
                for below in _walk(children, [c for c in children.get(index, ()) if c != index], seen):
                    placed.foreign += 1
                    self.dropped[below] = 1
        for index in _walk(children, children.get(NONE, []), seen):
            placed.order.append(index)
        for index in in_time:  # what is left goes round in circles
            if not seen[index]:
                placed.cycles += 1
                chat = placed.chat
                parent[index] = chat if chat != NONE and seen[chat] and not self.dropped[chat] else NONE
                placed.join[index] = "time"
                for below in _walk(children, [index], seen):
                    placed.order.append(below)


def _walk(children: dict[int, list[int]], first: list[int], seen: bytearray) -> Iterator[int]:
    stack = first[::-1]
    while stack:
        index = stack.pop()
        if seen[index]:
            continue
        seen[index] = 1
        yield index
        below = children.get(index)
        if below:
            stack.extend(below[::-1])


def _nest_thread(rows: list[int], start: list[int], end: list[int], within: list[int]) -> None:
    """`rows` in order of start, longest first. Records that overlap without nesting become siblings."""
    stack: list[int] = []
    depth: dict[int, int] = {}
    limit = 2 * _LOOK_DOWN
    for row in rows:
        first, last = start[row], end[row]
        while stack:
            top = end[stack[-1]]
            if top < first or (top == first and (last > first or start[stack[-1]] == top)):
                stack.pop()
            else:
                break
        if len(stack) > limit:  # ended ones buried below others that overlap them
            stack = [open_ for open_ in stack if end[open_] > first]
            limit = 2 * max(len(stack), _LOOK_DOWN)
        for open_ in reversed(stack[-_LOOK_DOWN:]):
            if last <= end[open_] or (last - end[open_] <= SLOP_NS and 2 * (end[open_] - first) >= last - first):
                level = depth.get(open_, 0)
                if level >= MAX_DEPTH:
                    open_ = within[open_]
                    level -= 1
                within[row] = open_
                depth[row] = level + 1
                break
        stack.append(row)


def holds(outer_start: int, outer_end: int, start: int, end: int, slop: int) -> bool:
    """Enclosed, or sticking out by no more than `slop`, or by less than half its length."""
    out = max(0, outer_start - start) + max(0, end - outer_end)
    if out <= slop:
        return True
    return 2 * (min(end, outer_end) - max(start, outer_start)) >= end - start > 0


def _our_requests(records: Sequence[Record], request_id: str, client_span_id: int) -> frozenset[str]:
    """Ids of our own request: as given, else of what hangs below the span that went out in the traceparent."""
    if request_id:
        return frozenset((request_id,))
    if not client_span_id:
        return frozenset()
    return frozenset(r.request for r in records if r.request and client_span_id in (r.parent_id, r.span_id))
