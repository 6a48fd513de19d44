"""How the report is laid out: reply, one row a layer, where the time went, what was found, where the trace is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentrace.emit._signs import ASCII, clean, cut
from tokentrace.report import LayerRow, Report, StageRow
from tokentrace.wording import duration, listed, plural, share

if TYPE_CHECKING:
    from rich.console import Console

_STATUS = {"fail": ("x", "bold red"), "warn": ("!", "yellow"), "unknown": ("?", "magenta"), "ok": ("-", "green")}
_ESTIMATED = "deep proportions"
_NARROW = 72
_WIDEST = 160
_MANY = 40
#: Holds a number and its unit together while lines are wrapped.
_GLUE = "\ue000"
_UNIT = re.compile(r"(\d) (ns|µs|us|ms|s|min|%|×|x)(?=\W|$)")


class Page:
    """Prints onto one console. `unicode` False: our signs in ASCII."""

    def __init__(self, console: Console, unicode: bool, detail: bool, runs_folder: Path | None = None) -> None:
        self.console = console
        self.runs_folder = runs_folder
        self.unicode = unicode
        self.detail = detail
        self.width = min(console.width, _WIDEST)
        # Own time, share, spans; a narrow terminal gets the own time alone.
        self.columns = (9, 6, 6) if self.width >= _NARROW else (9,)
        self.dot = " · " if unicode else ", "

    def report(self, report: Report, reply: bool = True) -> None:
        if reply and report.reply:
            self._line(clean(report.reply, newlines=True), ours=False)
            self._line("")
        self._summary(report)
        self._layers(report.layers, report)
        self._unseen(report.layers)
        self._where(report)
        self._passes(report)
        if self.detail:
            self._details(report)
        self._findings(report)
        self._files(report)

    def _line(self, text: str = "", style: str = "", *, indent: int = 0, label: str = "", ours: bool = True) -> None:
        """One paragraph, wrapped to the width; a label stands before its first line, the others are indented."""
        from rich.text import Text

        if ours and not self.unicode:
            text = text.translate(ASCII)
        body = Text(_UNIT.sub(rf"\1{_GLUE}\2", text), style=style, overflow="fold")
        for number, line in enumerate(body.wrap(self.console, self.width - indent) or [Text("")]):
            line.rstrip()
            shown = line.plain.replace(_GLUE, " ")
            lead = f"{label:<{indent}}" if number == 0 else " " * indent
            self.console.print(Text((lead + shown).rstrip(), style=style, no_wrap=True, overflow="ignore"), crop=False)

    def _labelled(self, label: str, text: str, style: str = "") -> None:
        self._line(text, style, indent=10, label=label)

    def _summary(self, report: Report) -> None:
        counts = report.tokens
        parts = [report.model] if report.model else []
        known = [
            f"{counts[key]} {word}" for key, word in (("input", "prompt"), ("output", "reply"))
            if counts.get(key) is not None
        ]  # fmt: skip
        if known:
            parts.append(f"{' + '.join(known)} tokens")
        parts.append(duration(report.wall_ns))
        if report.ttft_ns is not None:
            parts.append(f"first token {duration(report.ttft_ns)}")
        if report.program is not None and _of_calls(report):
            program, calls = report.program, plural(report.program.calls, "call")
            longest = f"the longest, {report.headline_pass}, is told here"
            self._line(clean(f"{program.name}: {calls}, {duration(program.wall_ns)} in all; {longest}"), "bold")
        self._line(clean(f"{self.dot}".join(parts)), "bold")
        if report.interrupted:
            self._line(clean(f"{report.interrupted[:1].upper()}{report.interrupted[1:]}."), "yellow")
        self._line()

    def _layers(self, layers: list[LayerRow], report: Report) -> None:
        name = max((len(f"{row.layer} {row.title}") for row in layers), default=10)
        room = self.width - name - 1 - sum(width + 1 for width in self.columns)
        self._row(("layer", "the token's form, down and back", "own time", "share", "spans"), name, room, "bold")
        for row in layers:
            for cells, style in _cells(row):
                self._row(cells, name, room, style)
        free = report.unattributed_ns
        known = ("–", "–") if free is None else (duration(free), share(free, report.wall_ns))
        self._row(("", "of no layer", *known, ""), name, room, "dim")
        which = report.whole or (
            f"the {report.headline_pass} request" if report.headline_pass in ("warm", "deep", "cold")
            else f"the call {clean(report.headline_pass)}" if _of_calls(report) else "the request"
        )  # fmt: skip
        self._row(("", which, duration(report.wall_ns), "100 %", ""), name, room, "bold")
        if any(row.own_source == _ESTIMATED for row in layers):
            text = f"time of the {report.headline_pass} pass, shared out in the proportions of the deep pass"
            self._line(text, "dim", indent=6, label="~")
        for row in layers:
            if row.holds:
                self._line(f"{row.title}: {_held(row, layers)}", "dim", indent=6, label="≤" if self.unicode else "<=")
        for row in layers:
            if row.own_ns_down is not None and row.own_ns_up is None:
                self._line(f"{row.title}: {row.own_source}", "dim", indent=6, label="–" if self.unicode else "-")
        if any(row.hidden for row in layers):
            self._line("ran only while a layer nearer the chip was at work", "dim", indent=6, label="0 ns")
        self._line()

    def _row(self, cells: Sequence[str], name: int, room: int, style: str) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        shown = [cell if self.unicode else cell.translate(ASCII) for cell in cells]
        ellipsis = "…" if self.unicode else "..."
        form = cut(shown[1], room, ellipsis)
        text = f"{shown[0]:<{name}} {form}{' ' * (room - cell_len(form))}"
        for cell, width in zip(shown[2:], self.columns, strict=False):
            text += f" {cell:>{width}}"
        text = cut(text.rstrip(), self.width, ellipsis)
        self.console.print(Text(text, style=style, no_wrap=True, overflow="ignore"), crop=False)

    def _unseen(self, layers: list[LayerRow]) -> None:
        told = False
        for rows in _alike(layers):
            row = rows[0]
            lines = [row.reason] if row.reason and row.status != "idle" else []
            if row.layer == 1:
                lines += _power(row)
            if row.layer == 2 and row.facts.get("tokentrace.jit.caches"):
                lines.append(f"{row.reason}; " * (row.status == "idle") + str(row.facts["tokentrace.jit.caches"]))
            many = "and" if len(rows) == 2 else "to"
            names = f"{row.layer} {row.title}: " if len(rows) == 1 else f"{row.layer} {many} {rows[-1].layer}: "
            for number, line in enumerate(lines):
                name = names if number == 0 else ""
                self._line(clean(name + line), indent=2, label="" if name else "  ")
            if row.fix and row.status == "unseen":
                self._line(f"to see it: {clean(row.fix)}", "dim", indent=2, label="  ")
            told = told or bool(lines)
        if told:
            self._line()

    def _where(self, report: Report) -> None:
        if report.slowest:
            self._labelled("Slowest", report.slowest)
        if report.unattributed_ns is None:
            return
        text = f"{share(report.wall_ns - report.unattributed_ns, report.wall_ns)} of the time lies in spans"
        shown = [_gap(gap) for gap in report.gaps[: 5 if self.detail else 2]]
        if shown:
            text += f"; the longest gaps: {'; '.join(shown)}"
        self._labelled("Coverage", clean(text))

    def _passes(self, report: Report) -> None:
        if len(report.passes) > 1:
            parts = []
            for name, one in report.passes.items():
                text = f"{name} {duration(one.wall_ns)}"
                if one.ttft_ns is not None:
                    text += f" (first token {duration(one.ttft_ns)})"
                if name == "deep" and one.dilation is not None:
                    text += f", {one.dilation:.2f} × warm"
                parts.append(clean(text))
            self._labelled("Calls" if _of_calls(report) else "Passes", self.dot.join(parts))
        if report.cold:
            self._labelled("Cold", report.cold)
        if report.program is not None and report.stages:
            heads = ("stage", "took", "share", "in calls", "calls", "tokens in", "out")
            rows = [_stage(row, report.program.wall_ns) for row in report.stages]
            self._table("Stages of the program", heads, rows, "lrrrrrr")

    def _findings(self, report: Report) -> None:
        shown = [f for f in report.findings if f.sentence != report.cold]
        if shown:
            self._line()
        for finding in shown:
            sign, style = _STATUS.get(finding.status, ("-", ""))
            evidence = f" ({finding.evidence})" if finding.evidence else ""
            self._line(clean(finding.sentence + evidence), style, indent=5, label=f"{sign} L{finding.layer}")
            if finding.fix and finding.status != "ok":
                self._line(clean(finding.fix), "dim", indent=5, label=" ")

    def _files(self, report: Report) -> None:
        from rich.text import Text

        self._line()
        spans = report.spans
        text = f"{spans.get('produced') or 0:,} spans, id {report.trace_id}"
        if spans.get("accepted") is not None:
            text += f"; the receiver took {spans['accepted']:,}"
            if spans.get("rejected"):
                text += f", {spans['rejected']:,} did not arrive"
        self._labelled("Trace", text)
        lines = [("File" if number == 0 else "", path) for number, path in enumerate(report.files)]
        for label, command in _opening(report.files, self.runs_folder):
            lines.append((label, command))
        for label, text in lines:
            # Paths and commands are there to be copied: never broken over two lines.
            line = Text(f"{label:<10}{clean(text)}", no_wrap=True, overflow="ignore")
            self.console.print(line, crop=False, soft_wrap=True)
        for note in report.notes:
            self._labelled("Note", clean(note))

    def _details(self, report: Report) -> None:
        if report.steps:
            rows = [_step(step) for step in report.steps]
            heads = ("step", "phase", "start", "took", "forward", "sample", "tokens", "batch", "cached")
            self._table("Steps", heads, rows, "rlrrrrrrr")
        if report.operators:
            # Runs saved by earlier versions do not say what all had together.
            total = report.operators_own_ns or sum(int(o["own_ns"]) for o in report.operators) or 1
            rows = [
                (str(o["name"]), f"{o['calls']:,}", duration(o["own_ns"]), share(o["own_ns"], total), str(o["shapes"]))
                for o in report.operators
            ]
            kernels = " and kernels" if any(o["total_ns"] is not None for o in report.operators) else ""
            title = f"Operators{kernels} by own time, {report.whole or f'{report.operators_pass} pass'}"
            self._table(title, ("name", "calls", "own time", "share", "shapes of the longest"), rows, "lrrrl")
        if report.token_times:
            rows = [_token(token) for token in report.token_times]
            self._table("Tokens", ("#", "id", "text", "arrived", "after the last"), rows, "rrlrr")

    def _table(self, title: str, heads: Sequence[str], rows: list[tuple[str, ...]], sides: str) -> None:
        """Columns as wide as they need to be; the widest column of words gives way when the line is full."""
        from rich.cells import cell_len
        from rich.text import Text

        left_out = max(0, len(rows) - _MANY)
        if left_out:
            rows = [*rows[: _MANY - 5], *rows[-5:]]
        cells = [heads, *([clean(cell) for cell in row] for row in rows)]
        if not self.unicode:
            cells = [[cell.translate(ASCII) for cell in row] for row in cells]
        widths = [max(cell_len(row[i]) for row in cells) for i in range(len(heads))]
        while sum(widths) + 2 * len(widths) > self.width and max(widths) > 8:
            words = [i for i, side in enumerate(sides) if side == "l"]
            widest = max(words, key=lambda i: widths[i])
            if widths[widest] <= 8:
                break
            widths[widest] -= 1
        self._line()
        self._line(title, "bold")
        ellipsis = "…" if self.unicode else "..."
        for number, row in enumerate(cells):
            if left_out and number == _MANY - 4:
                self._line(f"  … {left_out} more", "dim")
            text = ""
            for cell, width, side in zip(row, widths, sides, strict=True):
                cell = cut(cell, width, ellipsis)
                pad = " " * (width - cell_len(cell))
                text += f"  {cell}{pad}" if side == "l" else f"  {pad}{cell}"
            text = cut(text.rstrip(), self.width, ellipsis)
            self.console.print(Text(text, style="" if number else "dim", no_wrap=True, overflow="ignore"), crop=False)


def _cells(row: LayerRow) -> Iterable[tuple[tuple[str, ...], str]]:
    """The lines of one layer: down, up; or one line when nothing was seen."""
    name = f"{row.layer} {row.title}"
    spans = "–" if not row.evidence else _many(row.evidence)
    part = "–" if row.share is None else share(row.share, 1)
    if row.status != "seen" and not row.own_ns_down and not row.own_ns_up:
        if row.status == "idle":
            yield (name, clean(f"idle: {row.reason}"), "0 ns", part, spans), "dim"
        else:
            yield (name, "unseen, see below", "–", "–", spans), "dim"
        return
    mark = "~" if row.own_source == _ESTIMATED else "≤" if row.holds else ""
    down = "–" if row.own_ns_down is None else mark + duration(row.own_ns_down)
    up = "–" if row.own_ns_up is None else mark + duration(row.own_ns_up)
    yield (name, clean(f"↓ {row.form_in} → {row.form_out}"), down, part, spans), ""
    yield ("", clean(f"↑ {row.form_up_in} → {row.form_up_out}"), up, "", ""), ""


def _held(row: LayerRow, layers: Sequence[LayerRow]) -> str:
    """Whose time is in this layer's own, and why."""
    below = listed([str(number) for number in row.holds])
    which = f"layer {below}" if len(row.holds) == 1 else f"layers {below}"
    gone = [one.layer for one in layers if one.layer in row.holds and one.status == "unseen"]
    why = f"as --layers left out {listed([str(number) for number in gone])}"
    if len(gone) == len(row.holds):
        why = "which --layers left out"
    return f"holds the time of {which} too, {why if gone else 'which only the deep pass saw'}"


def _of_calls(report: Report) -> bool:
    """Is it about a program of several calls? The layers above are those of its longest."""
    return report.program is not None and report.program.calls > 1


def _many(count: int) -> str:
    """In six characters."""
    return f"{count:,}" if count < 100_000 else f"{count / 1000:,.0f}k"


def _alike(layers: list[LayerRow]) -> list[list[LayerRow]]:
    """Layers that stand side by side and are unseen for one reason, together."""
    found: list[list[LayerRow]] = []
    for row in layers:
        before = found[-1][0] if found else None
        same = before is not None and (row.status, row.reason, row.fix) == ("unseen", before.reason, before.fix)
        if same and before is not None and before.status == "unseen" and row.layer != 1:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _power(row: LayerRow) -> list[str]:
    """Joules where a sensor gave them, and processor use as what it is."""
    facts = row.facts
    lines = []
    if "joules" in facts:
        text = f"{facts['joules']:.3g} J"
        if facts.get("error_joules"):
            text += f" ± {facts['error_joules']:.2g}"
        if facts.get("joules_per_token"):
            text += f", {facts['joules_per_token']:.3g} J per token"
        lines.append(text)
    if "tokentrace.cpu.seconds" in facts:
        text = f"processor use, which is no power: {facts['tokentrace.cpu.seconds']:.3g} CPU seconds"
        if "tokentrace.cpu.cores_busy" in facts:
            text += f", {facts['tokentrace.cpu.cores_busy']:.2f} of {facts.get('tokentrace.cpu.cores', '?')} cores busy"
        if "tokentrace.cpu.utilization" in facts:
            text += f", machine {100 * facts['tokentrace.cpu.utilization']:.0f} % in use"
        if "tokentrace.cpu.frequency_mhz" in facts:
            text += f", {facts['tokentrace.cpu.frequency_mhz']:,.0f} MHz"
        lines.append(text)
    return lines


def _opening(files: Sequence[str], runs_folder: Path | None) -> list[tuple[str, str]]:
    """Commands that open a saved run: by its name where that is enough to find it, else by its file."""
    saved = next((Path(path) for path in files if path.endswith(".jsonl")), None)
    if saved is None:
        return []
    named = runs_folder is not None and saved.parent.parent.absolute() == runs_folder.absolute()
    run = saved.parent.name if named else shlex.quote(str(saved))
    return [("Look", f"tokentrace show {run} --detail"), ("Jaeger", f"tokentrace export {run} --to jaeger")]


def _gap(gap: dict[str, Any]) -> str:
    return f"{duration(int(gap['length_ns']))} between {gap['before']} and {gap['after']} in {gap['around']}"


def _known(value: Any) -> str:
    return "–" if value is None else str(value)


def _time(value: Any) -> str:
    return "–" if value is None else duration(int(value))


def _stage(row: StageRow, whole_ns: int) -> tuple[str, ...]:
    name = "  " * (len(row.way) - 1) + row.way[-1] if row.way else "(outside of all)"
    return (
        name + (f" ×{row.runs}" if row.runs > 1 else ""), duration(row.wall_ns), share(row.wall_ns, whole_ns),
        duration(row.in_calls_ns), f"{len(row.calls)}" + (f", {row.failed} failed" if row.failed else ""),
        _known(row.tokens.get("input")), _known(row.tokens.get("output")),
    )  # fmt: skip


def _step(step: dict[str, Any]) -> tuple[str, ...]:
    tokens = _known(step["tokens"])
    if step["batch_tokens"] is not None and step["batch_tokens"] != step["tokens"]:
        tokens = f"{tokens} of {step['batch_tokens']}"
    return (
        _known(step["index"]), str(step["phase"]), _time(step["start_ns"]), _time(step["wall_ns"]),
        _time(step["forward_ns"]), _time(step["sample_ns"]), tokens, _known(step["batch_size"]),
        _known(step["cached_tokens"]),
    )  # fmt: skip


def _token(token: dict[str, Any]) -> tuple[str, ...]:
    text = repr(token["text"]) if token["text"] else "(no text)"
    return (
        str(token["index"]), _known(token["id"]), text, _time(token["arrival_ns"]), _time(token["itl_ns"])
    )  # fmt: skip
