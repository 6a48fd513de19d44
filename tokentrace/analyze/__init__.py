"""What a trace says: own time of each layer, what nobody owns, the slowest thing, cold against warm, findings.

The run's times are those of its headline pass (warm, else once, else deep). Own times and unattributed time add up to
that request's wall time exactly. Analyse before folding: of a pass that has lost spans to a fold own times, operators
and what rests on them are not known any more, and said to be so (`PassTimes.folded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokentrace.analyze import _compare, _folded, _split
from tokentrace.analyze._compare import Extra
from tokentrace.analyze._findings import findings
from tokentrace.analyze._forms import Form, form
from tokentrace.analyze._layers import LayerTimes, layer_times
from tokentrace.analyze._passes import PassView, headline, passes
from tokentrace.analyze._slowest import Counted, OperatorRow, SeenIn, operators, slowest
from tokentrace.analyze._steps import StepRow, TokenRow, steps, tokens
from tokentrace.analyze._sweep import Gap, Place, by_place, gaps, sweep
from tokentrace.layers import Layer, load
from tokentrace.model import DOWN, UP, Trace
from tokentrace.probe import Finding

__all__ = [
    "Analysis",
    "Counted",
    "Extra",
    "Gap",
    "LayerTimes",
    "OperatorRow",
    "PassTimes",
    "StepRow",
    "TokenRow",
    "analyze",
]


@dataclass(slots=True)
class PassTimes:
    """One pass. `own` is measured, by (layer, direction); own and unattributed add up to the wall time. Where spans of
    the pass were `folded` both are not known: empty and None. `beyond_steps`: so are its tokens and phases."""

    view: PassView
    own: dict[Place, int]
    own_by_row: dict[int, int]
    unattributed_ns: int | None
    steps: list[StepRow]
    dilation: float | None = None  # wall time over the warm one's; None where these two cannot be compared
    folded: bool = False
    beyond_steps: bool = False

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def wall_ns(self) -> int:
        return self.view.wall_ns

    @property
    def ttft_ns(self) -> int | None:
        value = self.view.exchange.get("ttft_ns")
        return value if isinstance(value, int) else None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the prefix cache served, as the engine says, else as the usage does."""
        if self.steps and self.steps[0].cached_tokens is not None:
            return self.steps[0].cached_tokens
        value = self.view.exchange.get("cached_tokens")
        return value if isinstance(value, int) else None

    @property
    def coverage(self) -> float | None:
        if self.unattributed_ns is None:
            return None
        return 1 - self.unattributed_ns / self.wall_ns if self.wall_ns > 0 else 0.0


@dataclass(slots=True)
class Analysis:
    """See the module's docstring. `main` is the headline pass."""

    main: PassTimes
    passes: dict[str, PassTimes]
    layers: list[LayerTimes]  # nearest the user first, all eight
    forms: dict[Place, Form]
    gaps: list[Gap]
    slowest: str
    steps: list[StepRow]
    tokens: list[TokenRow]
    operators: list[OperatorRow]
    operators_pass: str
    operators_own_ns: int  # of all of them, also of those that are not listed
    cold_extra: list[Extra] = field(default_factory=list)
    cold_sentence: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def unattributed_ns(self) -> int | None:
        return self.main.unattributed_ns

    @property
    def coverage(self) -> float | None:
        return self.main.coverage

    @property
    def folded(self) -> list[str]:
        """Passes that have lost spans to a fold."""
        return [one.name for one in self.passes.values() if one.folded]


def analyze(trace: Trace, counted: Counted | None = None) -> Analysis:
    """Analyse a stitched trace. Never changes it. `counted`: of a trace that holds only a part of what was recorded,
    what is known of the whole. Of one that was folded only what a fold leaves true is told."""
    views = passes(trace)
    timed = {name: _times(trace, view) for name, view in views.items()}
    main = timed[headline(views, str(trace.meta.get("headline") or "")).name]
    deep = timed.get("deep")
    warm = timed.get("warm")
    if warm is not None and warm.view.whole:
        for one in timed.values():
            one.dilation = _compare.dilation(one.view, warm.view) if one.view.whole else None
    shared = None
    if deep is not None and deep is not main and not deep.folded and not main.folded:
        light = _split.parts(trace, main.view, main.own_by_row)
        shared = _split.by_proportions(light, _split.parts(trace, deep.view, deep.own_by_row, looked_into=True))
    holes = [] if main.folded else gaps(trace, main.view, sweep(trace, main.view))
    seeing = deep or main
    if seeing.folded:
        top, in_operators = [], 0
    elif counted is not None:
        top, in_operators = counted.operators, counted.operators_own_ns
    else:
        top = operators(trace, seeing.view, seeing.own_by_row)
        in_operators = sum(ns for (layer, _), ns in seeing.own.items() if layer in (4, 3))
    order = [main, *(one for name, one in timed.items() if name != main.name and name == "deep")]
    analysis = Analysis(
        main=main,
        passes=timed,
        layers=layer_times(
            trace,
            main.view,
            deep.view if deep else None,
            main.own,
            shared,
            {one.name for one in order if one.folded},
        ),
        forms={(x.number, way): _form(trace, order, x, way) for x in load() for way in (DOWN, UP)},
        gaps=holes,
        slowest="" if main.folded else slowest(
            trace, main.view, main.own_by_row, main.steps, holes[0] if holes else None, counted,
            SeenIn(seeing.view, seeing.own_by_row, seeing.steps) if counted is None else None,
        ),
        steps=main.steps,
        tokens=[] if main.beyond_steps else tokens(trace, main.view),
        operators=top,
        operators_pass=seeing.name,
        operators_own_ns=in_operators,
    )  # fmt: skip
    cold = timed.get("cold")
    if cold is not None and warm is not None and cold.view.whole and warm.view.whole:
        free = cold.unattributed_ns, warm.unattributed_ns
        if free[0] is not None and free[1] is not None:
            analysis.cold_extra = _compare.extras(cold.own, warm.own, free[0], free[1])
            cached = (warm.cached_tokens or 0) - (cold.cached_tokens or 0)
            analysis.cold_sentence = _compare.cold_sentence(cold.view, warm.view, analysis.cold_extra, cached)
    analysis.findings = findings(trace, analysis)
    return analysis


def _times(trace: Trace, view: PassView) -> PassTimes:
    if _folded.times_lost(trace, view):
        beyond = _folded.beyond_steps(trace, view)
        return PassTimes(view, {}, {}, None, [] if beyond else steps(trace, view), folded=True, beyond_steps=beyond)
    found = sweep(trace, view)
    own = found.own_by_row()
    return PassTimes(view, by_place(trace, own), own, found.unattributed_ns, steps(trace, view))


def _form(trace: Trace, seen: list[PassTimes], layer: Layer, way: str) -> Form:
    """A pass that was folded has not the operators and kernels that a form counts or chooses from."""
    views = [one.view for one in seen if not one.folded or (layer.number > 4 and not one.beyond_steps)]
    return form(trace, views, layer, way)


def total(own: Mapping[Place, int]) -> int:
    """All own time together, ns."""
    return sum(own.values())
