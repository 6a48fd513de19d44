"""A server that makes one span a request and sends it as vLLM does, with OpenTelemetry's SDK and exporters."""

from __future__ import annotations

import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.http_servers import DONE, Answer, Request, chunk, sse, usage_chunk

from tokentrace import receive

#: Seconds, in the names and with the meaning of vllm/tracing/utils.py.
FIGURES = {
    "gen_ai.latency.time_in_queue": 0.002,
    "gen_ai.latency.time_in_model_prefill": 0.010,
    "gen_ai.latency.time_in_model_decode": 0.020,
    "gen_ai.latency.time_to_first_token": 0.014,
    "gen_ai.latency.e2e": 0.036,
    "gen_ai.usage.prompt_tokens": 9,
    "gen_ai.usage.completion_tokens": 2,
    "gen_ai.request.id": "chatcmpl-1",
}
LENGTH_NS = 36_000_000


def exporter(receiver: receive.Receiver, protocol: str) -> SpanExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=f"http://127.0.0.1:{receiver.grpc_port}", insecure=True)
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    compression = Compression.Gzip if protocol == "http+gzip" else None
    return OverHttp(endpoint=f"http://127.0.0.1:{receiver.http_port}/v1/traces", compression=compression)


class Tracing:
    """`shift_ns`: what its clock is ahead of ours. A context manager; what is left is sent at its end."""

    def __init__(self, out: SpanExporter, shift_ns: int = 0) -> None:
        resource = Resource({"vllm.instrumenting_module_name": "vllm.llm_engine", "vllm.process_id": "4242"})
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(BatchSpanProcessor(out, schedule_delay_millis=100))
        self._tracer = self.provider.get_tracer("vllm.tracing.otel")
        self._shift_ns = shift_ns

    def __enter__(self) -> Tracing:
        return self

    def __exit__(self, *_: object) -> None:
        self.provider.shutdown()

    def span(
        self, traceparent: str, end_ns: int, name: str = "llm_request", *, figures: bool = True, request: str = ""
    ) -> None:
        """Of a request that ended at `end_ns` and took LENGTH_NS; without `figures` of something else."""
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent} if traceparent else {})
        start = end_ns - LENGTH_NS + self._shift_ns
        span = self._tracer.start_span(name, context=context, start_time=start, kind=SpanKind.SERVER)
        span.set_attributes(FIGURES if figures else {})
        if request:
            span.set_attribute("gen_ai.request.id", request)
        span.end(end_ns + self._shift_ns)

    def answers(self, request: Request) -> Answer:
        """Two tokens, and a span of the time that they took."""
        time.sleep(LENGTH_NS / 1e9)
        self.span(request.headers.get("traceparent", ""), time.time_ns())
        return sse(chunk("He"), chunk("llo", finish="stop"), usage_chunk(), DONE)
