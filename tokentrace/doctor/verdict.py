"""From many results to one sentence: which layer, which cause, what to type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokentrace.client.causes import CAUSES
from tokentrace.doctor.check import LEFT_OUT, Result, Status
from tokentrace.errors import ConfigError, EndpointError, TokentraceError
from tokentrace.layers import by_number
from tokentrace.wording import listed

_WORST: tuple[Status, ...] = ("fail", "warn", "ok", "unknown", "skip")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`layer` 0 is the plumbing, None when nothing is wrong or nothing could be told. `also`: other things found."""

    status: Status
    cause: str
    layer: int | None = None
    fix: str = ""
    check: str = ""
    also: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return {"fail": 1, "unknown": 2}.get(self.status, 0)

    @property
    def sentence(self) -> str:
        """Layer and cause; the fix stands apart."""
        if self.layer is None:
            return self.cause
        return f"{layer_name(self.layer)}: {self.cause}"


def layer_name(number: int) -> str:
    """layer 8 client request; the plumbing for 0."""
    return f"layer {number} {by_number(number).title}" if number else "the trace's plumbing"


def worst(results: Iterable[Result]) -> Status:
    """Of one layer: a fault before a doubt, and what was seen before what was not."""
    found = {r.status for r in results}
    return next((s for s in _WORST if s in found), "skip")


def judge(results: Sequence[Result]) -> Verdict:
    """The root cause: a failure that no other one explains, that of the request before others, the lowest first."""
    failures = [r for r in results if r.status == "fail"]
    if failures:
        explained = {one for r in failures for one in r.explains}
        roots = [r for r in failures if r.id not in explained] or failures
        root = min(roots, key=lambda r: (r.id not in CAUSES, r.layer == 0, r.layer, r.id))
        others = [r for r in failures if r is not root and r.detail != root.detail]
        return Verdict("fail", root.detail, root.layer, root.fix, root.id, tuple(f"{r.id} {r.detail}" for r in others))
    warnings = [r for r in results if r.status == "warn"]
    seen = [r for r in results if r.status == "ok"]
    if undecided := next((r for r in results if r.id == "TT800" and r.status == "unknown"), None):
        more = tuple(f"{r.id} {r.detail}" for r in warnings if r.id != "TT618")
        engine = next((r for r in results if r.id == "TT618" and r.status in ("unknown", "warn")), None)
        if engine is not None:  # without an endpoint, what the local engine lacks is why nothing was asked
            return Verdict("unknown", engine.detail, engine.layer, engine.fix, engine.id, more)
        return Verdict("unknown", f"could not be checked: {undecided.detail}", 8, undecided.fix, undecided.id, more)
    left_out = _left_out(results)
    if warnings:
        first = max(warnings, key=lambda r: (r.layer, r.id))
        more = tuple(f"{r.id} {r.detail}" for r in (*warnings, *left_out) if r is not first)
        return Verdict("warn", f"nothing is broken, but {first.detail}", first.layer, first.fix, first.id, more)
    if not seen:
        return Verdict("unknown", "nothing could be checked", fix="give a --url, or other --layers")
    layers = sorted({r.layer for r in seen if r.layer}, reverse=True)
    where = f"layers {listed([str(n) for n in layers], 8)}" if len(layers) > 1 else "the layer that was looked at"
    if left_out:
        unseen = "whether a request would be answered was not checked (--offline)"
        fix = left_out[0].fix or "leave --offline out to have a real request made"
        more = tuple(f"{r.id} {r.detail}" for r in left_out if r.id != "TT800")
        return Verdict(
            "ok", f"nothing wrong in what was looked at: {where} showed no fault; {unseen}", fix=fix, also=more
        )
    call = "a real request was answered" if any(r.id == "TT800" for r in seen) else "no request was made"
    return Verdict("ok", f"nothing wrong: {call}, and {where} showed no fault")


def _left_out(results: Sequence[Result]) -> list[Result]:
    """What --offline leaves open: the request, and before it the local engine's model where there is none."""
    request = [r for r in results if r.id == "TT800" and r.status == "skip" and LEFT_OUT in r.detail]
    model = [r for r in results if r.id == "TT618" and r.status == "unknown"]
    return [*model, *request] if request else []


def of_error(error: TokentraceError) -> Verdict:
    """The same said of a command that failed."""
    check = error.check if isinstance(error, EndpointError) else ""
    layer = error.layer or None
    if isinstance(error, ConfigError) and layer == 8:
        check = "TT801"
    if layer is None and check:
        layer = CAUSES[check].layer
    return Verdict("fail", str(error), layer, error.fix, check)
