"""An independent collector (rotel, written in Rust) takes our spans and passes every one of them on, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.otlp_receiver import OtlpReceiver, produced
from support.rotel import collector
from support.traces import run_trace

from tokentrace.emit._shown import shown
from tokentrace.emit.otlp_send import OtlpTarget, send


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_every_span_comes_through_unchanged(protocol: str, tmp_path: Path) -> None:
    trace = run_trace(9000)
    with OtlpReceiver(max_bytes=64 * 2**20) as behind, collector(behind, tmp_path) as (http, grpc):
        endpoint = f"http://127.0.0.1:{grpc}" if protocol == "grpc" else f"http://127.0.0.1:{http}/v1/traces"
        delivery = send(trace, OtlpTarget(endpoint, protocol), environ={})
        assert delivery.ok, delivery
        behind.wait_for(len(trace))
        assert behind.received() == produced(shown(trace))
