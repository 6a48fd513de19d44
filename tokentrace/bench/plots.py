"""Plots of a bench as SVG beside HTML labels: the drawing stretches with the page, letters and dots keep their size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tokentrace.bench.measured import Measured
from tokentrace.compare.page import text
from tokentrace.wording import duration

#: Apart in brightness too, for print and for eyes that do not tell red from green; each 3:1 on white and on black.
_COLOURS = ("#2f6fde", "#c06c14", "#4d8a2f", "#8a4fbf")
#: Ends of a stroke without length: dots and squares.
_CAPS = ("round", "square")
_SIZE = 1000
_MOST_POINTS = 4_000
_TICKS = 4

#: For the page's style sheet.
CSS = """
.plot{display:grid;grid-template-columns:3.9rem 1fr;gap:.2rem .5rem;font-size:.8rem;color:var(--dim);margin:0 .5rem 0 0}
.plot svg{grid-column:2;width:100%;height:clamp(11rem,32vw,17rem);overflow:visible}
.plot path,.plot polyline,.key path{fill:none;vector-effect:non-scaling-stroke}
.plot .axes{stroke:currentColor;opacity:.6}.plot .grid{stroke:currentColor;opacity:.18}
.plot .up,.plot .along{position:relative}.plot .along{grid-column:2;height:1.4em}
.plot span{position:absolute;white-space:nowrap}.plot .up span{right:0;transform:translateY(50%);line-height:1}
.plot .along span{transform:translateX(-50%)}.plot .along span:first-child{transform:none}
.plot .along .end{transform:translateX(-100%)}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.2rem 0 .8rem;padding:0;list-style:none;font-size:.85rem}
.key li{overflow-wrap:anywhere;min-width:0}.key svg{width:1.6rem;height:.7rem;margin-right:.4rem;overflow:visible}
"""

Sides = Sequence[tuple[str, list[Measured]]]


def scatter(title: str, sides: Sides, attribute: str) -> str:
    """One dot a request: when it was sent, and what it took. Empty for fewer than two."""
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
    for number, side in enumerate(points):
        dots = "".join(f"M{_SIZE * (x - begin) / across:.1f} {_SIZE * (1 - y / most):.1f}h.01" for x, y in side)
        if dots:
            stroke = f'stroke="{_colour(number)}" stroke-width="6" stroke-linecap="{_CAPS[number % 2]}"'
            marks += f'<path d="{dots}" {stroke}/>'
    return _plot(title, sides, marks, _ticks(most), _ticks(across), lines=False)


def shares(title: str, sides: Sides, attribute: str) -> str:
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
    lines, parts = "", np.linspace(0, 1, 201)
    for number, side in enumerate(values):
        if not len(side):
            continue
        xs = _SIZE * np.minimum(np.quantile(side, parts), most) / most
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, _SIZE * (1 - parts), strict=True))
        lines += f'<polyline points="{path}" stroke="{_colour(number)}" stroke-width="2"{_dash(number)}/>'
    up = [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (1.0, "100 %")]
    return _plot(title, sides, lines, up, _ticks(most), lines=True)


def thin(measured: list[Measured]) -> list[Measured]:
    """At most some thousand, evenly: a page with more points is no better."""
    step = max(1, -(-len(measured) // _MOST_POINTS))
    return measured[::step]


def _plot(
    title: str,
    sides: Sides,
    inner: str,
    up: Sequence[tuple[float, str]],
    along: Sequence[tuple[float, str]],
    *,
    lines: bool,
) -> str:
    grid = "".join(f"M0 {_SIZE * (1 - share):.1f}H{_SIZE}" for share, _ in up if share)
    grid += "".join(f"M{_SIZE * share:.1f} 0V{_SIZE}" for share, _ in along if share)
    upward = "".join(f'<span style="bottom:{100 * share:.2f}%">{text(label)}</span>' for share, label in up)
    across = ""
    for share, label in along:
        end = ' class="end"' if share > 0.93 else ""
        across += f'<span{end} style="left:{100 * share:.2f}%">{text(label)}</span>'
    keys = "".join(f"<li>{_key(number, lines)}{text(name)}</li>" for number, (name, _) in enumerate(sides))
    return (
        f'<h2>{text(title)}</h2><ul class="key">{keys}</ul><div class="plot">'
        f'<div class="up" aria-hidden="true">{upward}</div>'
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
        f'<path class="grid" d="{grid}"/><path class="axes" d="M0 0V{_SIZE}H{_SIZE}"/>{inner}</svg>'
        f'<div class="along" aria-hidden="true">{across}</div></div>'
    )


def _key(number: int, lines: bool) -> str:
    mark = (
        f'd="M0 5H22" stroke-width="2"{_dash(number)}'
        if lines
        else f'd="M11 5h.01" stroke-width="8" stroke-linecap="{_CAPS[number % 2]}"'
    )
    return f'<svg viewBox="0 0 22 10" aria-hidden="true"><path {mark} stroke="{_colour(number)}"/></svg>'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _dash(number: int) -> str:
    return ' stroke-dasharray="6 3"' if number % 2 else ""


def _ticks(most: float) -> list[tuple[float, str]]:
    """(share of the axis, label) at round figures from nothing on, about four of them."""
    rough = most / _TICKS
    ten = 10 ** math.floor(math.log10(rough))
    step = next(ten * factor for factor in (1, 2, 5, 10) if ten * factor >= rough)
    return [(0.0, "0")] + [(k * step / most, _round(k * step)) for k in range(1, math.floor(most / step) + 1)]


def _round(ns: float) -> str:
    """200 ms and not 200.0 ms: a round figure needs no digits behind the point."""
    if ns >= 60e9:  # a round number of seconds is no round number of minutes
        return f"{ns / 1e9:g} s"
    number, _, unit = duration(ns).partition(" ")
    return f"{float(number):g} {unit}"
