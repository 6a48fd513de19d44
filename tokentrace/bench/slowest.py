"""The slowest request kept as a run, so that its way can be looked at: show, view, diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace import runs
from tokentrace.bench.plan import Plan, Target
from tokentrace.layers import by_number, load
from tokentrace.model import IdSource
from tokentrace.probe import LayerState, ProbeContext
from tokentrace.registry import create
from tokentrace.report import build
from tokentrace.stitch import PassRecords, stitch

if TYPE_CHECKING:
    from tokentrace.exchange import Exchange

_WHY = "bench measures from the client only, so that nothing slows the server"


def keep(plan: Plan, target: Target, exchange: Exchange, number: int) -> Path:
    """Save the trace of one exchange as a run and give its folder. Raises UsageError when that cannot be written."""
    context = ProbeContext("url", "once", False, target.endpoint.model)
    context.exchange = exchange
    probe = create(by_number(8))
    probe.arm(context)
    try:
        records = list(probe.collect(context))
    finally:
        probe.disarm()
    fix = "trace one request: tokentrace run"
    unseen = [LayerState(layer.number, "unseen", _WHY, fix) for layer in load() if layer.number < 8]
    states = [probe.state, *unseen]
    ids = IdSource()
    _, trace_id, span_id, _ = exchange.traceparent.split("-")
    trace = stitch(
        [PassRecords("once", exchange.start_ns, exchange.end_ns, records, states, int(span_id, 16), exchange=exchange)],
        ids=ids,
        trace_id=int(trace_id, 16),
        attributes={"tokentrace.mode": "url"},
        meta={
            "prompt": plan.messages(number)[-1]["content"],
            "mode": "url",
            "endpoint": target.endpoint.base_url,
            "model": exchange.model,
            "created_ns": exchange.start_ns,
        },
    )
    report = build(trace, notes=[f"the slowest of a bench of {target.name}"])
    return runs.save(trace, trace, report)
