"""The token's way step by step: what each engine step did in each layer, for the prefill and every token after it.

A frame is one step of the engine; where no step was seen it is the time up to one arrival of text. Every instant that
a layer owns belongs to one frame, so the frames' own times add up to those of the pass. Work that belongs to a step
(it lies in it, or carries its token) counts there even when it ran after the next step had begun; all other work
counts in the frame in whose time it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tokentrace.analyze import Analysis, PassTimes, _split
from tokentrace.analyze._folded import folded
from tokentrace.analyze._forms import Form, form
from tokentrace.analyze._passes import NONE, PassView, name_of
from tokentrace.analyze._steps import StepRow, TokenRow, tokens
from tokentrace.analyze._sweep import Place, direction_of, sweep
from tokentrace.layers import MARKS, by_number
from tokentrace.model import DOWN, UP, Trace

__all__ = ["Frame", "folded", "frames"]


@dataclass(slots=True)
class Frame:
    """`start_ns` and `end_ns` count from the request's start; own times in ns by layer and direction.

    `phase` is the step's (prefill, decode, mixed), or "arrival" where no step was seen. `estimated`: layers 5 to 3
    share the step's measured time in the deep pass's proportions. `together`: that time stands under layer 5, since
    what would share it out was folded. `tokens` are those this step brought.
    """

    phase: str
    start_ns: int
    end_ns: int
    own: dict[Place, int] = field(default_factory=dict)
    unattributed_ns: int = 0
    estimated: bool = False
    together: bool = False
    forms: dict[Place, Form] = field(default_factory=dict)
    tokens: list[TokenRow] = field(default_factory=list)
    step: StepRow | None = None


def frames(trace: Trace, analysis: Analysis, name: str) -> list[Frame]:
    """The frames of one pass, in order; none when nothing in it tells one token from the next."""
    timed = analysis.passes[name]
    cut = _Cut(trace, timed)
    if not cut.frames:
        return []
    deep = analysis.passes.get("deep")
    cut.measure()
    other = None
    if deep is not None and deep is not timed:
        if not folded(trace, deep.view):
            cut.share_out(deep)
        else:
            for frame in cut.frames:
                frame.together = not any(layer in (4, 3) for layer, _ in frame.own)
        other = _Cut(trace, deep)
        if [f.phase for f in other.frames] != [f.phase for f in cut.frames]:
            other = None  # another way through the engine: its shapes are not this pass's
    cut.name_forms(other)
    return cut.frames


class _Cut:
    """One pass cut into frames, and which of them each row belongs to."""

    def __init__(self, trace: Trace, timed: PassTimes) -> None:
        self.trace, self.timed, self.view = trace, timed, timed.view
        arrived = tokens(trace, timed.view)
        self.steps = _step_rows(trace, timed.view)
        if timed.steps:
            self.frames = _of_steps(timed, arrived)
        else:
            self.frames = _of_arrivals(timed, arrived)
        self._frame_of: dict[int, int] = {row: index for index, row in enumerate(self.steps)}
        if self.frames:
            self._assign()

    def _assign(self) -> None:
        """Rows by the step they lie in, by their token, else by when they began."""
        trace, view = self.trace, self.view
        of_token = {t.index: number for number, frame in enumerate(self.frames) for t in frame.tokens}
        starts = [view.start_ns + frame.start_ns for frame in self.frames]
        decodes = {index for index, name in enumerate(trace.names) if name == "decode"}
        latest: list[tuple[int, int]] = []  # (when it was decoded, its frame)
        for row in view.rows:
            if row in self._frame_of:
                continue
            known = self._frame_of.get(trace.parent[row])
            if known is None and trace.layer[row] == 7 and trace.name[row] in decodes:
                known = of_token.get(trace.attributes(row).get("tokentrace.token.index", NONE))
                if known is not None:
                    latest.append((trace.start_ns[row], known))
            if known is None and self._inside(row):
                known = self._by_time(trace.start_ns[row], starts)
            if known is not None:
                self._frame_of[row] = known
        latest.sort()
        written = {index for index, name in enumerate(trace.names) if name == "write chunk"}
        times = [at for at, _ in latest]
        for row in view.rows:
            if trace.name[row] in written and latest:
                place = int(np.searchsorted(times, trace.start_ns[row], "right")) - 1
                self._frame_of[row] = latest[max(place, 0)][1]

    def _inside(self, row: int) -> bool:
        return row not in self.trace.envelopes and self.trace.layer[row] > 1

    @staticmethod
    def _by_time(at: int, starts: Sequence[int]) -> int:
        return max(int(np.searchsorted(starts, at, "right")) - 1, 0)

    def measure(self) -> None:
        """Own time of each frame. A row without a step may own time in several: it is cut where they meet."""
        trace, view = self.trace, self.view
        found = sweep(trace, view)
        if len(found.edges) < 2:
            return
        starts = np.array([view.start_ns + frame.start_ns for frame in self.frames], np.int64)
        inner = starts[(starts > found.edges[0]) & (starts < found.edges[-1])]
        edges = np.unique(np.concatenate((found.edges, inner)))
        owners = found.owner[np.searchsorted(found.edges, edges[:-1], "right") - 1]
        by_time = np.maximum(np.searchsorted(starts, edges[:-1], "right") - 1, 0)
        self.own_by_row: list[dict[int, int]] = [{} for _ in self.frames]
        loose = self._loose()
        for owner, number, length in zip(owners.tolist(), by_time.tolist(), np.diff(edges).tolist(), strict=True):
            if owner == NONE:
                self.frames[number].unattributed_ns += length
                continue
            at = number if owner in loose else self._frame_of.get(owner, number)
            rows = self.own_by_row[at]
            rows[owner] = rows.get(owner, 0) + length
        for frame, rows in zip(self.frames, self.own_by_row, strict=True):
            for row, length in rows.items():
                place = trace.layer[row], direction_of(trace, row)
                frame.own[place] = frame.own.get(place, 0) + length

    def _loose(self) -> set[int]:
        """Rows outside of any step that reach over the border of a frame, such as the wait for the first token."""
        trace, view = self.trace, self.view
        ends = [view.start_ns + frame.end_ns for frame in self.frames]
        tied = set(self.steps)
        for row in view.rows:
            if trace.parent[row] in tied:
                tied.add(row)
        return {
            row for row, number in self._frame_of.items()
            if row not in tied and trace.layer[row] != 7 and trace.end_ns[row] > ends[number]
        }  # fmt: skip

    def share_out(self, deep: PassTimes) -> None:
        """Layers 5 to 3 in the deep pass's proportions, as the whole pass's times are."""
        weights = _split.parts(self.trace, deep.view, deep.own_by_row, looked_into=True)
        for frame, rows in zip(self.frames, self.own_by_row, strict=True):
            shared = _split.by_proportions(_split.parts(self.trace, self.view, rows), weights)
            if shared is None:
                return
            kept = {place: spent for place, spent in frame.own.items() if place[0] not in (5, 4, 3)}
            frame.own, frame.estimated = {**kept, **shared}, True

    def name_forms(self, deep: _Cut | None) -> None:
        """The token's form at each place where this frame has spans; the deep pass's where only it has them."""
        cuts = [self] if deep is None else [self, deep]
        grouped = [cut._grouped() for cut in cuts]
        for number, frame in enumerate(self.frames):
            groups = [group[number] for group in grouped]
            for place in sorted({place for group in groups for place in group}, reverse=True):
                layer, way = place
                views = [
                    replace(cut.view, rows=[*cut._speaking(number), *group[place]], chat=NONE, exchange={})
                    for cut, group in zip(cuts, groups, strict=True)
                    if place in group
                ]
                frame.forms[place] = form(self.trace, views, by_number(layer), way)
            self._client_form(number, frame, grouped[0][number])
            self._decode_form(number, frame)
            if (7, UP) in frame.forms and frame.tokens and not any(token.text for token in frame.tokens):
                frame.forms[7, UP] = (frame.forms[7, UP][0], "no text")

    def _decode_form(self, number: int, frame: Frame) -> None:
        """What a decode step takes in is the token that the step before it brought."""
        words = by_number(6).form_down[0]
        before = [token.id for token in self.frames[number - 1].tokens if token.id is not None] if number else []
        taken, made = frame.forms.get((6, DOWN), ("", ""))
        if taken == words and before and frame.step is not None and frame.step.tokens == 1:
            frame.forms[6, DOWN] = (f"id {before[-1]}", made)

    def _grouped(self) -> list[dict[Place, list[int]]]:
        trace = self.trace
        found: list[dict[Place, list[int]]] = [{} for _ in self.frames]
        marks = {index for index, name in enumerate(trace.names) if name in MARKS}
        for row, number in self._frame_of.items():
            if 1 < trace.layer[row] < 9 and trace.name[row] not in marks and row not in trace.envelopes:
                found[number].setdefault((trace.layer[row], direction_of(trace, row)), []).append(row)
        return found

    def _speaking(self, number: int) -> list[int]:
        """The step itself tells the sampled token and the batch."""
        return [self.steps[number]] if number < len(self.steps) else []

    def _client_form(self, number: int, frame: Frame, groups: Mapping[Place, list[int]]) -> None:
        """What reached the user: the text of this frame's tokens, and the chunk that carried it."""
        text = "".join(token.text for token in frame.tokens)
        if not text:
            frame.forms.pop((8, UP), None)
            return
        sizes = [
            self.trace.attributes(row).get("tokentrace.bytes") for row in groups.get((8, UP), ())
            if name_of(self.trace, row) == "write chunk"
        ]  # fmt: skip
        sent = sum(size for size in sizes if isinstance(size, int))
        chunk = f"SSE chunk, {sent} bytes" if sent else "SSE chunk"
        frame.forms[8, UP] = (chunk, f'"{text[:60]}"')
        if number and (8, DOWN) in frame.forms:
            del frame.forms[8, DOWN]  # the request was sent once


def _step_rows(trace: Trace, view: PassView) -> list[int]:
    """The rows of `steps`, in the same order."""
    rows = [r for r in view.rows if trace.layer[r] == 6 and name_of(trace, r) == "step"]
    if not rows:
        return []
    first = min(rows, key=lambda r: trace.start_ns[r])
    return sorted((r for r in rows if trace.process[r] == trace.process[first]), key=lambda r: trace.start_ns[r])


def _of_steps(timed: PassTimes, arrived: list[TokenRow]) -> list[Frame]:
    """One frame a step: from its start to the next one's, the first from the request's start, the last to its end."""
    steps = timed.steps
    found = []
    for index, step in enumerate(steps):
        start = step.start_ns if index else 0
        end = steps[index + 1].start_ns if index + 1 < len(steps) else timed.wall_ns
        found.append(Frame(step.phase or "step", start, max(start, end), step=step))
    bringing = [index for index, step in enumerate(steps) if step.token_id is not None]
    if not bringing:
        # Without ids: the last steps brought one token each, as in greedy decoding; more tokens than steps cannot be.
        bringing = list(range(len(steps)))[-len(arrived) :] if 0 < len(arrived) <= len(steps) else []
    for token, index in zip(arrived, bringing, strict=False):
        found[index].tokens.append(token)
    return found


def _of_arrivals(timed: PassTimes, arrived: list[TokenRow]) -> list[Frame]:
    """One frame an arrival of text, from the arrival before it; the last one to the request's end."""
    found: list[Frame] = []
    for token in arrived:
        if token.arrival_ns is None:
            if found:
                found[-1].tokens.append(token)
            continue
        start = found[-1].end_ns if found else 0
        found.append(Frame("arrival", start, max(start, token.arrival_ns), tokens=[token]))
    if found:
        found[-1].end_ns = max(found[-1].end_ns, timed.wall_ns)
    return found
