"""The result as one HTML file: the tables, and plots. No script, no network, everything escaped."""

from __future__ import annotations

from pathlib import Path

from tokentrace.bench.plots import CSS, scatter, shares
from tokentrace.bench.result import Result, TargetResult
from tokentrace.bench.terminal import PERCENTILES, TITLES, cell, number, titled
from tokentrace.compare.page import table, text, write
from tokentrace.wording import share


def write_result(result: Result, path: Path) -> None:
    """Write the page. Raises UsageError when the file cannot be written."""
    title = "; ".join(f"{t.name}: {len(t.good)} of {len(t.measured)} worked" for t in result.targets)
    if result.verdict:
        whole = all(len(t.good) == len(t.measured) for t in result.targets)
        title = result.verdict if whole else f"{title}. {result.verdict}"
    parts = [f"<h1>{text(title)}</h1>", f'<p class="dim">{text(result.sent)}.</p>']
    parts += [f"<p>Note: {text(note)}.</p>" for note in result.notes]
    if result.comparison:
        parts.append(_comparison(result))
    parts += [_target(target) for target in result.targets]
    good = [(t.name, t.good) for t in result.targets]
    parts.append(scatter("First token of each request, by when it was sent", good, "ttft_ns"))
    parts.append(scatter("Whole time of each request, by when it was sent", good, "total_ns"))
    parts.append(shares("Share of requests whose first token came within", good, "ttft_ns"))
    parts.append(shares("Share of gaps between tokens within", good, "between_ns"))
    write(path, "tokentrace bench", "".join(parts), CSS)


def _target(one: TargetResult) -> str:
    rows = []
    for name, title in TITLES.items():
        figure = one.figures.get(name)
        if figure is None or figure.mean is None:
            continue
        row = [text(titled(title.strip(), figure)), text(number(figure.mean, figure.unit))]
        for percentile in PERCENTILES:
            quantile = figure.quantiles[percentile]
            value, inside = cell(quantile, figure.unit)
            hint = f' <span class="dim">({text(inside)})</span>' if inside else ""
            row.append(f'<span title="{text(quantile.why)}">{text(value)}</span>{hint}')
        rows.append([*row, text(f"{figure.count:,} in {figure.requests:,} requests")])
    found = table(f"{one.name}: {one.model} at {one.url}", ("", "mean", *PERCENTILES, "measurements"), rows)
    errors = [
        [text(g.check), text(f"{g.count} ({share(g.share, 1)})"), text(f"{g.title}: {g.message}; {g.fix}")]
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
