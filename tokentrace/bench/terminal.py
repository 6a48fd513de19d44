"""The result as text: one table an endpoint, errors by cause, the comparison, what limits the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrace.bench.result import Result, TargetResult
from tokentrace.bench.server_figures import ServerFigures
from tokentrace.bench.stats import Figure, Quantile, success_interval
from tokentrace.emit._signs import ASCII, clean
from tokentrace.wording import duration, plural, share

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "ttft": "first token",
    "wait": "  from sent",
    "inter_token": "gap between tokens",
    "mean_inter_token": "time a token",
    "total": "whole request",
    "tokens_per_s": "tokens a second",
    "delay": "sent late by",
}
#: The server's own means beside ours of the same thing.
SERVER = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "inter_token",
    "time_per_output_token": "mean_inter_token",
    "e2e": "total",
}
_BOUNDS = {"at least": "≥", "at most": "≤"}
PERCENTILES = ("p50", "p90", "p99")


def print_result(result: Result, console: Console, *, unicode: bool) -> None:
    """Print on `console`, which interprets no markup."""
    printer = _Printer(console, unicode)
    for target in result.targets:
        printer.target(target)
    if result.verdict:
        printer.line(result.verdict, "bold")
    if result.client is not None and result.client.cpu_share is not None:
        late = result.client.late_p99_ns
        text = f"client  {result.client.cpu_share:.0%} of a core".replace("%", " %")
        printer.line(text + (f", its threads up to {duration(late)} late (p99)" if late is not None else ""), "dim")
    for note in result.notes:
        printer.line(f"note    {note}", "yellow")


def cell(quantile: Quantile, unit: str) -> tuple[str, str]:
    """(value, interval) as text."""
    if quantile.value is None:
        return "–", ""
    value = number(quantile.value, unit)
    if quantile.low is None and quantile.high is None:
        return value, ""
    low = number(quantile.low, unit) if quantile.low is not None else "?"
    high = number(quantile.high, unit) if quantile.high is not None else "?"
    return value, f"{low} … {high}"


def number(value: float, unit: str) -> str:
    return duration(value) if unit == "ns" else f"{value:.1f}"


def titled(title: str, one: Figure) -> str:
    """The title, with a sign where the figure is no more than a bound."""
    return f"{title} {_BOUNDS[one.bound]}" if one.bound else title


def _alone(server: ServerFigures) -> str:
    if server.alone:
        return ""
    if server.requests is None:
        return "; it does not say over how many requests"
    return f"; it ended {plural(server.requests, 'request')} in that time, another number than worked here"


class _Printer:
    def __init__(self, console: Console, unicode: bool) -> None:
        self.console, self.unicode = console, unicode
        self.width = min(console.width, 120)

    def target(self, one: TargetResult) -> None:
        count, good = len(one.measured), len(one.good)
        low, high = success_interval(good, count)
        self.line(f"{one.name}  {one.model}  {one.url}", "bold")
        told = f"{share(good, count) if count else '–'}, 95 % interval {share(low, 1)} to {share(high, 1)}"
        self.line(f"{good} of {plural(count, 'request')} worked ({told})")
        seconds = one.wall_ns / 1e9
        if seconds > 0 and good:
            tokens = one.output_tokens
            rate = f", {tokens / seconds:.1f} tokens a second in all" if tokens is not None else ""
            self.line(f"{good / seconds:.2f} requests a second{rate}; {duration(one.wall_ns)}")
        if one.warm:
            first = duration(one.warm[0].total_ns)
            self.line(f"{plural(len(one.warm), 'warm-up request')} not counted, the first took {first}")
        if good:
            self._figures(one.figures)
        for group in one.errors:
            times = f"{group.count} × " if group.count > 1 else ""
            self.line(f"{times}{group.check} {group.title}: {group.message}", "red")
            if group.fix:
                self.line(f"  fix: {group.fix}")
        self._server(one)
        for note in one.notes:
            self.line(f"note    {note}", "yellow")
        if one.slowest:
            self.line(f"slowest tokentrace show {one.slowest}")
        self.line("")

    def _figures(self, figures: dict[str, Figure]) -> None:
        """Intervals of all percentiles where there is room, else of the median."""
        with_interval = PERCENTILES if self.width >= 116 else PERCENTILES[:1]
        head = f"{'':<19}{'mean':>9}"
        for name in PERCENTILES:
            head += f"{name:>9}" + (f"  {'95 % interval':<20}" if name in with_interval else "")
        self._raw(head.rstrip(), "dim")
        refused: dict[str, str] = {}
        unclear = False
        for name, title in TITLES.items():
            one = figures.get(name)
            if one is None or one.mean is None:
                continue
            text = f"{titled(title, one):<19}{number(one.mean, one.unit):>9}"
            for percentile in PERCENTILES:
                quantile = one.quantiles[percentile]
                value, inside = cell(quantile, one.unit)
                text += f"{value:>9}" + (f"  {inside:<20}" if percentile in with_interval else "")
                unclear = unclear or (percentile in with_interval and "?" in inside)
                if quantile.value is None:
                    refused.setdefault(percentile, quantile.why)
            self._raw(text.rstrip())
        for percentile, why in refused.items():
            self.line(f"{percentile} refused: {why}", "dim")
        if unclear:
            self.line("?: so few measurements do not show how far it may reach", "dim")

    def _server(self, one: TargetResult) -> None:
        if one.server is None:
            return
        parts = []
        for theirs, ours in SERVER.items():
            figure = one.figures.get(ours)
            if theirs in one.server.means_ns and figure is not None and figure.mean is not None:
                here = f"here {figure.bound} {duration(figure.mean)}".replace("  ", " ")
                parts.append(f"{TITLES[ours].strip()} {duration(one.server.means_ns[theirs])} ({here})")
        if parts:
            both = " over the requests of both endpoints, which are one server" if one.server.endpoints > 1 else ""
            self.line(f"server  its own means{both}: {', '.join(parts)}{_alone(one.server)}", "dim")

    def line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        for part in Text(self._ours(clean(text)), overflow="fold").wrap(self.console, self.width) or [Text("")]:
            self._raw(part.plain.rstrip(), style)

    def _ours(self, text: str) -> str:
        return text if self.unicode else text.translate(ASCII)

    def _raw(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self.console.print(Text(self._ours(text), style=style, no_wrap=True, overflow="ignore"), crop=False)
