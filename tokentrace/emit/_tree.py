"""A trace's tree as lines of text: bounded, because a trace may hold ten thousand spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokentrace.emit._signs import ASCII, clean, cut
from tokentrace.layers import MARKS
from tokentrace.model import STATUS_ERROR, Trace
from tokentrace.wording import duration

if TYPE_CHECKING:
    from rich.console import Console

#: Of siblings with one name, these many are shown at the beginning and at the end.
_HEAD, _TAIL = 2, 1
_MOST_CHILDREN = 24
#: Below this width only the duration is shown.
_NARROW = 60


@dataclass(slots=True)
class _Line:
    lead: str
    name: str
    times: str
    style: str = ""


class TreeView:
    """Prints onto one console."""

    def __init__(self, trace: Trace, console: Console, unicode: bool) -> None:
        self.trace = trace
        self.console = console
        self.unicode = unicode
        self.children = trace.children()
        for rows in self.children:
            rows.sort(key=lambda row: (trace.start_ns[row], row))

    def show(self, depth: int | None, max_lines: int, pass_name: str) -> None:
        top = self._top(pass_name)
        lines = list(self._lines(top, depth if depth is not None else self._depth(top, max_lines)))
        for line in lines[:max_lines]:
            self._print(line)
        if len(lines) > max_lines:
            self._print(_Line("", f"… {len(lines) - max_lines} more lines", "", "dim"))

    def _top(self, pass_name: str) -> int:
        trace, wanted = self.trace, f"pass {pass_name}"
        rows = range(1, len(trace)) if pass_name else ()  # a pass may lie in a stage
        return next((row for row in rows if not trace.layer[row] and trace.names[trace.name[row]] == wanted), 0)

    def _depth(self, top: int, max_lines: int) -> int:
        """The deepest view that still fits."""
        depth, count = 1, 0
        while depth < 60:
            more = sum(1 for _ in self._lines(top, depth + 1))
            if more > max_lines or more == count:
                break
            depth, count = depth + 1, more
        return depth

    def _lines(self, top: int, depth: int) -> Iterator[_Line]:
        """Iterative: a trace may be nested deeper than Python's own stack allows."""
        stack: list[tuple[int | _Line, str, str, int]] = [(top, "", "", 0)]
        while stack:
            item, lead, below, level = stack.pop()
            if isinstance(item, _Line):
                yield _Line(lead, item.name, item.times, item.style)
                continue
            yield self._line(item, lead, top, self._below(item) if level >= depth else 0)
            shown = self._shown(item) if level < depth else []
            for number, child in reversed(list(enumerate(shown))):
                last = number == len(shown) - 1
                stack.append((child, below + ("└ " if last else "├ "), below + ("  " if last else "│ "), level + 1))

    def _shown(self, parent: int) -> list[int | _Line]:
        """Children as they are shown: of many with one name some, with a line for the others."""
        trace = self.trace
        rows = self.children[parent]
        names: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            names.setdefault((trace.name[row], trace.layer[row]), []).append(row)
        result: list[int | _Line] = []
        for row in rows:
            alike = names[trace.name[row], trace.layer[row]]
            if len(alike) <= _HEAD + _TAIL + 1 or row in alike[:_HEAD] or row in alike[-_TAIL:]:
                result.append(row)
            elif row == alike[_HEAD]:
                others = alike[_HEAD:-_TAIL]
                spent = sum(trace.end_ns[r] - trace.start_ns[r] for r in others)
                name = clean(trace.names[trace.name[row]])
                result.append(_Line("", f"… {len(others)} more × {name}", f"{duration(spent):>24}", "dim"))
        if len(result) > _MOST_CHILDREN:
            left_out = len(result) - _MOST_CHILDREN + 1
            middle = _Line("", f"… {left_out} more", "", "dim")
            result = [*result[: _MOST_CHILDREN - 4], middle, *result[-3:]]
        return result

    def _below(self, row: int) -> int:
        count = 0
        stack = [row]
        while stack:
            below = self.children[stack.pop()]
            count += len(below)
            stack.extend(below)
        return count

    def _line(self, row: int, lead: str, top: int, below: int) -> _Line:
        """`below`: spans under this one that the view does not reach."""
        trace = self.trace
        told = trace.attributes(row)
        name = clean(trace.names[trace.name[row]])
        if name in MARKS:
            why = told.get("tokentrace.unseen") or told.get("tokentrace.idle") or ""
            sort = "idle" if "tokentrace.idle" in told else "unseen"
            return _Line(lead, clean(f"{sort}: {why}"), f"L{trace.layer[row]}{'':>22}", "dim")
        count = told.get("tokentrace.folded.count", 1)
        if count > 1:
            name += f" ×{count}"
        if told.get("tokentrace.folded.spans"):
            name += f" (+{told['tokentrace.folded.spans']:,} folded)"
        if below:
            name += f" (+{below:,} below)"
        spent = told.get("tokentrace.folded.total_ns", trace.end_ns[row] - trace.start_ns[row])
        layer = f"L{trace.layer[row]}" if trace.layer[row] else "  "
        way = {"down": "↓", "up": "↑"}.get(trace.direction[row], " ")
        start = f"+{duration(trace.start_ns[row] - self._origin(row, top))}"
        times = f"{layer}{way}{start:>10} {duration(spent):>10}"
        failed = trace.statuses.get(row, (0, ""))[0] == STATUS_ERROR
        return _Line(lead, name + (f"  error: {clean(trace.statuses[row][1])}" if failed else ""), times,
                     "red" if failed else "")  # fmt: skip

    def _origin(self, row: int, top: int) -> int:
        """Times count from the start of the pass; a pass's own, and a stage's, from the start of the run."""
        trace = self.trace
        at = trace.parent[row] if trace.layer[row] else 0
        while at > 0 and at != top and trace.layer[at]:
            at = trace.parent[at]
        return trace.start_ns[max(at, 0) if row != top else top]

    def _print(self, line: _Line) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        lead, name, times = (
            part if self.unicode else part.translate(ASCII) for part in (line.lead, line.name, line.times)
        )
        ellipsis = "…" if self.unicode else "..."
        width = self.console.width
        if width < _NARROW:  # the duration alone
            times = times[-11:]
        room = max(6, width - len(times) - 1 - cell_len(lead))
        name = cut(name, room, ellipsis)
        text = cut(f"{lead}{name}{' ' * (room - cell_len(name))} {times}".rstrip(), width, ellipsis)
        self.console.print(Text(text, style=line.style, no_wrap=True, overflow="ignore"), crop=False)
