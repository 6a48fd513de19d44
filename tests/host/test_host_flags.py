"""The options of a server's command line."""

from __future__ import annotations

import pytest

from tokentrace.host.flags import flags_of


@pytest.mark.parametrize(
    ("line", "flags", "rest"),
    [
        ("", {}, []),
        ("vllm serve m --port 8001 --enforce-eager", {"port": "8001", "enforce-eager": ""}, ["vllm", "serve", "m"]),
        ("--port=8001 --port 8002", {"port": "8002"}, []),
        ("--otlp_traces_endpoint=http://a?b=c x", {"otlp-traces-endpoint": "http://a?b=c"}, ["x"]),
        ("--lora-modules a=b c=d --x -1", {"lora-modules": "a=b c=d", "x": "-1"}, []),
        ("python -m vllm --headless", {"headless": ""}, ["python", "-m", "vllm"]),
    ],
)
def test_each_option_with_its_value(line: str, flags: dict[str, str], rest: list[str]) -> None:
    assert flags_of(line.split()) == (flags, rest)
