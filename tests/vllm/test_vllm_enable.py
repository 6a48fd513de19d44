"""A server that traces by itself: TOKENTRACE_ENABLE, a sampled traceparent, and the user's own collector."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.otlp_receiver import OtlpReceiver
from vllm_server import VllmServer, complete

pytestmark = pytest.mark.vllm
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
#: The process beside the server takes its time to see that the server is whole.
READY_S = 60.0


def test_a_sampled_request_is_traced_into_the_callers_trace_and_others_are_not(
    start_vllm: Callable[..., VllmServer],
) -> None:
    with OtlpReceiver() as receiver:
        server = start_vllm(TOKENTRACE_ENABLE="1", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_url)
        deadline = time.monotonic() + READY_S
        while not receiver.received() and time.monotonic() < deadline:
            complete(server.url, "Hi", 4, {"traceparent": f"00-{TRACE}-{SPAN}-01"})
            time.sleep(1.0)
        spans = list(receiver.received().values())
        assert spans, server.last_lines()
        count = len(spans)
        complete(server.url, "Hi", 4, {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-00"})  # not sampled
        complete(server.url, "Hi", 4)
        time.sleep(3.0)
        after = receiver.received()
    assert {one["trace_id"] for one in after.values()} == {int(TRACE, 16)}, "a request that was not sampled was traced"
    assert len(after) >= count
    tops = [one for one in spans if one["parent_id"] == int(SPAN, 16)]
    assert len(tops) >= 1 and {one["name"] for one in tops} == {"tokentrace attach"}
    names = {one["name"] for one in spans}
    assert {"POST /v1/chat/completions", "queue wait", "step", "forward", "decode"} <= names
    assert not any("tokentrace.token.text" in one["attributes"] for one in spans)
    beside = _beside(server)
    assert beside
    server.stop()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and Path(f"/proc/{beside}").exists():
        time.sleep(0.2)
    assert not Path(f"/proc/{beside}").exists(), "the process beside the server outlives it"


def _beside(server: VllmServer) -> int:
    import psutil

    for one in psutil.process_iter(["cmdline"]):
        if (one.info["cmdline"] or [])[-3:] == ["-m", "tokentrace.attach.beside", str(server.process.pid)]:
            return int(one.pid)
    return 0
