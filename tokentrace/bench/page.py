"""The result as one HTML file: the tables, and plots drawn as SVG. No script, no network, everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tokentrace.bench.measured import Measured
from tokentrace.bench.result import Result, TargetResult
from tokentrace.bench.terminal import PERCENTILES, TITLES, cell, number
from tokentrace.compare.page import table, text, write
from tokentrace.wording import duration

#: Apart in brightness too, for print and for eyes that do not tell red from green.
_COLOURS = ("#2f6fde", "#d9822b", "#5f9c3f", "#8a4fbf")
_MARKS = ("circle", "square")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 260, 70, 34, 14
_MOST_POINTS = 4_000


def write_result(result: Result, path: Path) -> None:
    """Write the page. Raises UsageError when the file cannot be written."""
    title = "; ".join(f"{t.name}: {len(t.good)} of {len(t.measured)} worked" for t in result.targets)
    if result.verdict:
        whole = all(len(t.good) == len(t.measured) for t in result.targets)
        title = result.verdict if whole else f"{title}. {result.verdict}"
    parts = [f"<h1>{text(title)}</h1>", f'<p class="dim">{text(result.sent)}.</p>']
    parts += [f"<p>Note: {text(note)}.</p>" for note in result.notes]
    good = [(t.name, t.good) for t in result.targets]
    parts.append(_scatter("First token of each request, by when it was sent", good, "ttft_ns"))
    parts.append(_scatter("Whole time of each request, by when it was sent", good, "total_ns"))
    parts.append(_steps("Share of requests whose first token came within", good, "ttft_ns"))
    parts.append(_steps("Share of gaps between tokens within", good, "between_ns"))
    for target in result.targets:
        parts.append(_target(target))
    if result.comparison:
        parts.append(_comparison(result))
    write(path, "tokentrace bench", "".join(parts))


def _target(one: TargetResult) -> str:
    rows = []
    for name, title in TITLES.items():
        figure = one.figures.get(name)
        if figure is None or figure.mean is None:
            continue
        row = [text(title.strip()), text(number(figure.mean, figure.unit))]
        for percentile in PERCENTILES:
            quantile = figure.quantiles[percentile]
            value, inside = cell(quantile, figure.unit)
            hint = f' <span class="dim">({text(inside)})</span>' if inside else ""
            row.append(f'<span title="{text(quantile.why)}">{text(value)}</span>{hint}')
        rows.append([*row, text(f"{figure.count:,} of {figure.requests:,} requests")])
    found = table(f"{one.name}: {one.model} at {one.url}", ("", "mean", *PERCENTILES, "measurements"), rows)
    errors = [
        [text(g.check), text(f"{g.count} ({g.share:.0%})"), text(f"{g.title}: {g.message}; {g.fix}")]
        for g in one.errors
    ]
    if errors:
        found += table("Failures by cause", ("cause", "count", "what"), errors)
    return found + "".join(f"<p>Note: {text(note)}.</p>" for note in one.notes)


def _comparison(result: Result) -> str:
    rows = []
    for row in result.comparison:
        unit = "ns" if row.metric != "tokens_per_s" else ""
        values = ["–" if v is None else number(v, unit) for v in (row.first_median, row.second_median, row.difference)]
        told = {True: "beyond noise", False: "within noise", None: row.why or "unknown"}[row.beyond_noise]
        rows.append([text(row.title), *map(text, values), text(told)])
    first, second = result.comparison[0].first, result.comparison[0].second
    return table("Comparison, medians over rounds", ("", first, second, "difference", ""), rows)


def _scatter(title: str, sides: Sequence[tuple[str, list[Measured]]], attribute: str) -> str:
    points = [
        [(m.start_ns, getattr(m, attribute)) for m in thin(measured) if getattr(m, attribute) is not None]
        for _, measured in sides
    ]
    every = [p for side in points for p in side]
    if len(every) < 2:
        return ""
    begin = min(x for x, _ in every)
    across = max(x for x, _ in every) - begin or 1
    most = max(y for _, y in every) or 1
    marks = ""
    for number_, side in enumerate(points):
        colour = _COLOURS[number_ % len(_COLOURS)]
        for x, y in side:
            px = _LEFT + (_WIDTH - _LEFT - 10) * (x - begin) / across
            py = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - y / most)
            if _MARKS[number_ % 2] == "circle":
                marks += f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>'
            else:
                marks += f'<rect x="{px - 3:.1f}" y="{py - 3:.1f}" width="6" height="6" fill="{colour}"/>'
    return _frame(title, sides, marks, [(0, "0"), (1, duration(most))], [(0, "0"), (1, duration(across))])


def _steps(title: str, sides: Sequence[tuple[str, list[Measured]]], attribute: str) -> str:
    """The share of measurements up to each value: all of the distribution, without bins that hide it."""
    values = []
    for _, measured in sides:
        found: list[float] = []
        for m in measured:
            value = getattr(m, attribute)
            found += value if isinstance(value, tuple) else [] if value is None else [value]
        values.append(np.sort(np.asarray(found, np.float64)))
    most = max((float(np.quantile(v, 0.999)) for v in values if len(v)), default=0.0)
    if most <= 0 or max(map(len, values)) < 2:
        return ""
    lines = ""
    for number_, side in enumerate(values):
        if not len(side):
            continue
        shown = np.minimum(np.quantile(side, np.linspace(0, 1, 201)), most)
        xs = _LEFT + (_WIDTH - _LEFT - 10) * shown / most
        ys = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - np.linspace(0, 1, 201))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        dash = ' stroke-dasharray="6 3"' if number_ % 2 else ""
        lines += (
            f'<polyline points="{path}" fill="none" stroke="{_COLOURS[number_ % len(_COLOURS)]}" '
            f'stroke-width="2"{dash}/>'
        )
    ticks = [(0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (1, "100 %")]
    return _frame(title, sides, lines, ticks, [(0, "0"), (0.5, duration(most / 2)), (1, duration(most))])


def _frame(
    title: str,
    sides: Sequence[tuple[str, list[Measured]]],
    inner: str,
    up: Sequence[tuple[float, str]],
    along: Sequence[tuple[float, str]],
) -> str:
    floor, right = _HEIGHT - _BOTTOM, _WIDTH - 10
    parts = [f'<path d="M{_LEFT} {_TOP}V{floor}H{right}" fill="none" stroke="currentColor" opacity=".4"/>', inner]
    for share, label in up:
        y = _TOP + (floor - _TOP) * (1 - share)
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(label)}</text>')
    for share, label in along:
        x = _LEFT + (right - _LEFT) * share
        side = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="{side}">{text(label)}</text>')
    for number_, (name, _) in enumerate(sides):
        x = _LEFT + 14 + 200 * number_
        parts.append(f'<rect x="{x}" y="2" width="9" height="9" fill="{_COLOURS[number_ % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="11">{text(name[:28])}</text>')
    return (
        f'<h2>{text(title)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(title)}">'
        f"{''.join(parts)}</svg>"
    )


def thin(measured: list[Measured]) -> list[Measured]:
    """At most some thousand, evenly: a page with more points is no better."""
    step = max(1, -(-len(measured) // _MOST_POINTS))
    return measured[::step]
