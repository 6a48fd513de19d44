"""The figures of `tokentrace bench` beside those of vLLM's own client, in turn on one server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_server import MODEL, VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]
SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_check.py"
REQUESTS, TOKENS = 8, 16


def test_vllms_client_sees_what_we_see(
    start_vllm: Callable[..., VllmServer], vllm_python: str, model_folder: Path
) -> None:
    if subprocess.run([vllm_python, "-c", "import vllm.benchmarks.serve"], capture_output=True, check=False).returncode:
        pytest.skip("vLLM's benchmark client cannot be loaded")
    server = start_vllm("--no-enable-prefix-caching", plugin=False)
    done = subprocess.run(
        [
            sys.executable, str(SCRIPT), "--url", server.url, "--model", MODEL, "--tokenizer", str(model_folder),
            "--vllm", vllm_python, "-n", str(REQUESTS), "--tokens", str(TOKENS), "--rounds", "2", "--json",
        ],
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, theirs = (json.loads(done.stdout)["rounds"][name] for name in ("tokentrace", "vllm"))
    for one in (*ours, *theirs):
        assert (one["requests"], one["tokens"]) == (REQUESTS, REQUESTS * TOKENS)
    # Ours are between chunks with text; theirs begin with the empty one that tells the role.
    assert {one["gaps"] for one in ours} <= set(range(REQUESTS * (TOKENS - 2), REQUESTS * (TOKENS - 1) + 1))
    assert {one["gaps"] for one in theirs} <= set(range(REQUESTS * (TOKENS - 1), REQUESTS * (TOKENS + 1) + 1))
    # Over vLLM's own histograms of the same requests, so that the machine's other work counts on both sides. Another
    # unit would be further away still; how far these scatter depends on what else the machine does.
    for one in (*ours, *theirs):
        assert one["server"]["requests"] == REQUESTS, "somebody else asked this server as well"
        for name in ("ttft", "tpot", "total"):
            assert 0.2 < one["mean"][name] / one["server"]["mean"][name] < 5, name
