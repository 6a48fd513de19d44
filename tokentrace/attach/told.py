"""Requests of others by the server's own spans of them: from outside, without anything in the server.

vLLM with --otlp-traces-endpoint makes one span a request, when it has ended, and sends it some seconds later. Each one
becomes a trace and a run of its own: what it says of queue, prefill and decoding, and no other layer. Its times are
the server's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tokentrace import runs, workflow
from tokentrace.attach.joined import Left
from tokentrace.attach.obstacles import PLUGIN_FIX
from tokentrace.attach.served import NO_POWER
from tokentrace.attach.session import Attached, engine_facts
from tokentrace.attach.watch import POLL_S, Row
from tokentrace.exchange import Exchange
from tokentrace.model import IdSource, Trace
from tokentrace.probe import LayerState
from tokentrace.receive import ReceivedSpan, Receiver
from tokentrace.receive.account import account, figures_of
from tokentrace.receive.join import add, process_of
from tokentrace.receive.spans import number
from tokentrace.session import Outcome
from tokentrace.stitch import PassRecords, stitch

#: A span is sent so long after its request at most: every 5 s by OpenTelemetry's SDK.
LATE_S = 6.0
ONE_SPAN = "the server's own span of the request says nothing of it"


def watch_told(
    attached: Attached,
    settings: workflow.Settings,
    receiver: Receiver,
    *,
    for_s: float | None = None,
    requests: int | None = None,
    late_s: float = LATE_S,
    stop: Callable[[], bool] = lambda: False,
    idle: Callable[[int], None] = lambda under_way: None,
    left: Left | None = None,
) -> Iterator[tuple[Row, workflow.Run]]:
    """Requests as the server tells of them, for `for_s` seconds and `late_s` more, until `requests` were told or
    `stop()` is true; each saved and sent on as the settings say. `left` holds how many were told of and not given."""
    left = left if left is not None else Left()
    receiver.expect_requests()
    deadline = time.monotonic() + for_s + late_s if for_s is not None else None
    count = 0
    while True:
        over = stop() or (deadline is not None and time.monotonic() >= deadline)
        spans = receiver.drain()[: None if requests is None else requests - count]
        left.ended = len(spans)
        for span in spans:
            trace = trace_of(span, engine_facts(attached, None), attached.found.base_url, attached.fix or PLUGIN_FIX)
            run = workflow.conclude(Outcome(trace, {}), settings)
            left.ended -= 1
            yield row_of(span, run), run
            count += 1
            if requests is not None and count >= requests:
                return
        if over:
            return
        idle(0)
        time.sleep(POLL_S)


def trace_of(span: ReceivedSpan, facts: dict[str, Any], url: str, fix: str) -> Trace:
    """The trace of one request. One that came with a traceparent keeps its trace id and hangs below its span. `fix`:
    how the layers inside would be seen."""
    ids = IdSource()
    exchange = Exchange(
        url,
        str(span.attributes.get("gen_ai.response.model") or facts.get("model") or ""),
        0,
        "",
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        response_id=_request_id(span),
        usage=_usage(span),
        complete=True,
        notes=["seen by the server's own span; neither the client nor the server was watched"],
    )
    states = [LayerState(layer, "unseen", ONE_SPAN, fix) for layer in (8, 7, 5, 4, 3, 2)]
    states.append(LayerState(1, "unseen", NO_POWER))
    one = PassRecords("once", span.start_ns, span.end_ns, [], states, 0, exchange.response_id, {}, exchange)
    # That its clock is ours is not known, so neither is its host.
    key, process = process_of(span, {}, same_clock=False)
    add(one, account([span], exchange, -1, key, phases=True))
    meta: dict[str, Any] = {
        "prompt": "",
        "mode": "attach",
        "engine": facts,
        "endpoint": url,
        "model": exchange.model,
        "created_ns": time.time_ns(),
    }
    if span.parent_id:
        meta["parent_span_id"] = span.parent_id
    return stitch([one], ids=ids, trace_id=span.trace_id, root_name="tokentrace attach", processes={key: process},
                  attributes={"tokentrace.mode": "attach"}, meta=meta)  # fmt: skip


def row_of(span: ReceivedSpan, run: workflow.Run) -> Row:
    """The line of the table for one request."""
    figures, usage = figures_of(span), _usage(span)
    made = usage.get("completion_tokens")
    decode = figures.get("decode")
    return Row(
        request=_request_id(span),
        status=0,
        prompt_tokens=usage.get("prompt_tokens"),
        reply_tokens=made,
        wall_ns=span.end_ns - span.start_ns,
        ttft_ns=figures.get("ttft"),
        wait_ns=figures.get("queue_wait"),
        prefill_ns=figures.get("prefill"),
        decode_ns_per_token=decode / (made - 1) if decode is not None and made is not None and made > 1 else None,
        batch=None,
        layer="",
        share=None,
        run=runs.shown(run.folder) if run.folder is not None else "",
    )


def _request_id(span: ReceivedSpan) -> str:
    return str(span.attributes.get("gen_ai.request.id") or f"{span.span_id:016x}")


def _usage(span: ReceivedSpan) -> dict[str, int]:
    """Tokens as the span tells them."""
    found = {}
    for name in ("prompt_tokens", "completion_tokens"):
        value = number(span.attributes, f"gen_ai.usage.{name}")
        if value is not None:
            found[name] = int(value)
    return found
