"""Spans per second into OTLP bytes: the OpenTelemetry SDK against tokentrace, on the same trace, in one run.

    python benchmarks/encoder.py [SPANS] [ROUNDS]

The trace has the make-up of a deep pass: operators with shapes under modules under steps, kernels linked to their
launches, per-token spans with texts that occur once, token events, an error. Times are CPU seconds of this
process, the best of ROUNDS. Three ratios, each against what the SDK's exporter does with the same spans:

    encoding alone    spans that exist already -> bytes (SDK: ReadableSpan -> encode_spans -> SerializeToString)
    as it is sent     the same with what a send of ours does before: the critical path that a browser can compute
    record to bytes   names, times and attributes -> bytes (SDK: start_span, end and the above; ours: Trace.add and
                      all that a send does)

What comes out is compared with the protobuf classes field by field, and each request is parsed and serialised
again and must give the same bytes. Exit code 1 when a field differs.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from tokentrace.emit._shown import shown
from tokentrace.emit.otlp_encode import batches, encode
from tokentrace.model import KIND_CLIENT, STATUS_ERROR, Event, IdSource, Link, Process, Trace

Row = dict[str, Any]
T0 = 1_790_000_000_000_000_000
OPERATORS = ("linear", "mm", "add", "mul", "scaled_dot_product_attention", "_to_copy", "cat", "silu", "view", "t")


def row(name: str, layer: int, parent: int, start_ns: int, end_ns: int, **more: Any) -> Row:
    return {"name": name, "layer": layer, "parent": parent, "start_ns": start_ns, "end_ns": end_ns, **more}


def rows(count: int) -> list[Row]:
    """What a deep pass records, as keyword arguments of Trace.add."""
    rng = random.Random(7)
    common = {"tokentrace.pass": "deep"}
    found: list[Row] = [
        row("pass deep", 0, -1, T0, T0 + count * 20_000, attributes={**common, "tokentrace.layer": 0}),
        row(
            "chat smollm2",
            8,
            0,
            T0,
            T0 + count * 20_000,
            kind=KIND_CLIENT,
            attributes={
                **common,
                "tokentrace.layer": 8,
                "gen_ai.request.model": "smollm2",
                "gen_ai.request.temperature": 0.0,
                "gen_ai.request.stream": True,
            },
            events=[Event("tokentrace.token", T0 + i * 50_000, {"index": i, "form": f"t{i}"}) for i in range(12)],
        ),
    ]
    step = module = launch = 1
    clock = T0
    while len(found) < count:
        clock += rng.randrange(200, 9_000)
        end = clock + rng.randrange(100, 90_000)
        layer, at = 4, len(found)
        more: Row = {"thread": rng.choice((4711, 4712))}
        attributes: dict[str, Any] = {**common, "tokentrace.direction": rng.choice(("down", "up"))}
        if at % 500 == 2:
            layer, name, parent = 6, "step", 1
            attributes.update(
                {
                    "tokentrace.step.index": at,
                    "tokentrace.step.phase": "decode",
                    "tokentrace.step.kv_used": rng.random(),
                    "tokentrace.join": "request_id",
                }
            )
            step = at
        elif at % 30 == 3:
            layer, name, parent = 5, f"layers.{at // 30 % 30}.mlp", step
            attributes.update(
                {
                    "tokentrace.tensor.in_shape": "[1, 1, 576]",
                    "tokentrace.tensor.dtype": "float32",
                    "tokentrace.tensor.bytes": rng.randrange(1, 1 << 22),
                }
            )
            module = at
        elif at % 40 == 5:
            layer, name, parent = 7, "decode", 1
            attributes.update({"tokentrace.form.in": f"{rng.randrange(49152)}", "tokentrace.form.out": f"piece {at} ö"})
        elif at % 5 == 4:
            layer, name, parent = 3, f"kernel sgemm_{rng.randrange(12)}", module
            attributes.update(
                {
                    "tokentrace.kernel.correlation": at,
                    "tokentrace.kernel.stream": 7,
                    "tokentrace.kernel.grid": [rng.randrange(64), 1, 1],
                    "tokentrace.duration_ns": end - clock,
                }
            )
            more["link_row"] = launch
        elif at % 5 == 3:
            layer, name, parent = 3, "launch cudaLaunchKernel", module
            attributes.update({"tokentrace.kernel.correlation": at + 1, "tokentrace.duration_ns": 900})
            launch = at
        else:
            name, parent = f"aten::{rng.choice(OPERATORS)}", module
            attributes.update(
                {
                    "tokentrace.op.shapes": f"[[1, {rng.randrange(40)}, 576], [576, 1536]]",
                    "tokentrace.op.calls": 1,
                    "tokentrace.op.self_ns": rng.randrange(100, 90_000),
                }
            )
        attributes["tokentrace.layer"] = layer
        found.append(row(name, layer, parent, clock, end, attributes=attributes, **more))
    for one in reversed(found[1:]):  # a parent ends with its last child
        above = found[one["parent"]]
        above["end_ns"] = max(above["end_ns"], one["end_ns"])
    found[-1].update(status=STATUS_ERROR, status_message="out of memory")
    return found


def build(plan: list[Row]) -> Trace:
    trace = Trace(ids=IdSource(1))
    trace.processes["77"] = Process("77", {"process.pid": 77, "host.id": "h", "host.name": "here"})
    add, ids = trace.add, trace.span_id
    for planned in plan:
        span = dict(planned)
        if "link_row" in span:
            span["links"] = [Link(ids[span.pop("link_row")])]
        add(process="77", direction=span["attributes"].get("tokentrace.direction", ""), **span)
    return trace


class Keep(SpanExporter):
    """Stands where the OTLP exporter stands: encodes each batch, sends nothing."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.encode = True
        self.count = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.count += len(spans)
        if self.encode:
            encode_spans(spans).SerializeToString()
        else:
            self.spans.extend(spans)
        return SpanExportResult.SUCCESS


def through_sdk(plan: list[Row], encode: bool) -> Keep:
    """The plan through the SDK's public way: start_span, end, batch processor, exporter."""
    keep = Keep()
    keep.encode = encode
    provider = TracerProvider(
        resource=Resource.create({"service.name": "tokentrace"}), span_limits=SpanLimits(max_events=None)
    )
    # A queue that holds them all: the default of 2,048 would drop most of them.
    size = len(plan) + 10
    provider.add_span_processor(BatchSpanProcessor(keep, max_queue_size=size, max_export_batch_size=4000))
    tracer = provider.get_tracer("tokentrace", "0")
    contexts: list[Any] = []
    flags = TraceFlags(1)
    for planned in plan:
        parent = planned["parent"]
        links = None
        if "link_row" in planned:
            links = [SdkLink(contexts[planned["link_row"]][0])]
        span = tracer.start_span(
            planned["name"],
            context=contexts[parent][1] if parent >= 0 else None,
            kind=SpanKind.CLIENT if planned.get("kind") == KIND_CLIENT else SpanKind.INTERNAL,
            attributes=planned["attributes"] | ({"thread.id": planned["thread"]} if "thread" in planned else {}),
            links=links,
            start_time=planned["start_ns"],
        )
        for event in planned.get("events", ()):
            span.add_event(event.name, event.attributes, event.time_ns)
        if "status" in planned:
            span.set_status(Status(StatusCode.ERROR, planned["status_message"]))
        context = span.get_span_context()
        remote = SpanContext(context.trace_id, context.span_id, False, flags)
        contexts.append((context, set_span_in_context(NonRecordingSpan(remote))))
        span.end(planned["end_ns"])
    provider.shutdown()
    if keep.count != len(plan):
        raise SystemExit(f"the SDK exported {keep.count} of {len(plan)} spans: not a fair comparison")
    return keep


def best(rounds: int, *works: Callable[[], Any]) -> list[float]:
    """CPU seconds of each work's fastest round; they take turns, so that a slow spell of the machine hits all."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, times, strict=True):
            gc.collect()
            begin = time.process_time()
            work()
            taken.append(time.process_time() - begin)
    return [min(taken) for taken in times]


def plain(value: Any) -> Any:
    """An AnyValue as a Python value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def differences(trace: Trace, bodies: list[bytes]) -> int:
    """How many spans differ from the trace in any field, plus requests whose bytes change when re-serialised."""
    wrong = 0
    seen: dict[int, Any] = {}
    for body in bodies:
        request = ExportTraceServiceRequest.FromString(body)
        wrong += request.SerializeToString() != body
        for resource in request.resource_spans:
            service = {a.key: plain(a.value) for a in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    seen[int.from_bytes(span.span_id, "big")] = (service, span)
    wrong += len(seen) != len(trace)
    for want in trace.spans:
        service, got = seen.get(want.span_id, ("", None))
        if got is None:
            wrong += 1
            continue
        parent = trace.span_id[want.parent].to_bytes(8, "big") if want.parent >= 0 else b""
        attributes = want.attributes | ({"thread.id": want.thread} if want.thread else {})
        wrong += not (
            got.trace_id == trace.trace_id.to_bytes(16, "big")
            and (got.parent_span_id, got.name, got.kind, got.flags) == (parent, want.name, want.kind, 0x101)
            and (got.start_time_unix_nano, got.end_time_unix_nano) == (want.start_ns, want.end_ns)
            and {a.key: plain(a.value) for a in got.attributes} == attributes
            and (got.status.code, got.status.message) == (want.status, want.status_message)
            and [(e.name, e.time_unix_nano, {a.key: plain(a.value) for a in e.attributes}) for e in got.events]
            == [(e.name, e.time_ns, e.attributes) for e in want.events]
            and [int.from_bytes(link.span_id, "big") for link in got.links] == [x.span_id for x in want.links]
            and service.startswith(f"L{want.layer} " if want.layer else "tokentrace")
        )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spans", type=int, nargs="?", default=40_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    asked = parser.parse_args()
    count, rounds = asked.spans, asked.rounds
    plan = rows(count)
    trace = build(plan)
    ready = through_sdk(plan, encode=False).spans

    def sdk_encode() -> None:
        for first in range(0, count, 4000):
            encode_spans(ready[first : first + 4000]).SerializeToString()

    def ours_encode() -> list[bytes]:
        return [batch.body() for batch in batches(trace, environ={})]

    def ours_sent() -> list[bytes]:
        return encode(trace, environ={})

    def ours_whole() -> None:
        encode(build(plan), environ={})

    wrong = differences(trace, ours_encode()) + differences(shown(trace), ours_sent())
    theirs_alone, alone, sent = best(rounds, sdk_encode, ours_encode, ours_sent)
    figures = {
        "encoding alone": (theirs_alone, alone),
        "as it is sent": (theirs_alone, sent),
        "record to bytes": best(rounds, lambda: through_sdk(plan, encode=True), ours_whole),
    }
    print(f"{count:,} spans, {len(trace.shapes)} attribute shapes, {len(trace.names)} names, {rounds} rounds")
    for title, (theirs, mine) in figures.items():
        print(
            f"{title:16s} SDK {count / theirs:>10,.0f} spans/s   tokentrace {count / mine:>10,.0f} spans/s   "
            f"ratio {theirs / mine:5.1f}"
        )
    print(f"spans that differ from the protobuf classes: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
