"""A server that traces by itself: TOKENTRACE_ENABLE, a sampled traceparent, and the user's own collector."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.otlp_receiver import OtlpReceiver
from vllm_server import VllmServer, complete

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LATER = "0af7651916cd43dd8448eb211c80319c"
#: The process beside the server takes its time to see that the server is whole.
READY_S = 240.0
SEEN = {"POST /v1/chat/completions", "queue wait", "step", "forward", "decode"}


def test_a_sampled_request_is_traced_into_the_callers_trace_and_others_are_not(
    start_vllm: Callable[..., VllmServer],
) -> None:
    with OtlpReceiver() as receiver:
        server = start_vllm(TOKENTRACE_ENABLE="1", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_url)
        asked_until_seen(server, receiver, TRACE)
        complete(server.url, "Hi", 4, {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-00"})  # not sampled
        complete(server.url, "Hi", 4)
        asked_until_seen(server, receiver, LATER)  # what came before it would be here by then
        spans = list(receiver.received().values())
    wanted = {int(TRACE, 16), int(LATER, 16)}
    assert {one["trace_id"] for one in spans} == wanted, "a request that was not sampled was traced"
    tops = [one for one in spans if one["parent_id"] == int(SPAN, 16)]
    assert len(tops) >= 2 and {one["name"] for one in tops} == {"tokentrace attach"}
    assert "from now on requests with a sampled traceparent are traced" in server.log.read_text(errors="replace")
    assert not any("tokentrace.token.text" in one["attributes"] for one in spans)
    beside = _beside(server)
    assert beside
    server.stop()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and Path(f"/proc/{beside}").exists():
        time.sleep(0.2)
    assert not Path(f"/proc/{beside}").exists(), "the process beside the server outlives it"


def asked_until_seen(server: VllmServer, receiver: OtlpReceiver, trace: str) -> None:
    """Sampled requests of this trace, until one of them has arrived."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        complete(server.url, "Hi", 4, {"traceparent": f"00-{trace}-{SPAN}-01"})
        names = {one["name"] for one in receiver.received().values() if one["trace_id"] == int(trace, 16)}
        if names >= SEEN:
            return
        time.sleep(0.5)
    raise AssertionError(server.last_lines())


def _beside(server: VllmServer) -> int:
    import psutil

    for one in psutil.process_iter(["cmdline"]):
        if (one.info["cmdline"] or [])[-3:] == ["-m", "tokentrace.attach.beside", str(server.process.pid)]:
            return int(one.pid)
    return 0
