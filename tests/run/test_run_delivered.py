"""The trace of a real run, read back from real OTLP receivers: what arrives is what was produced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.otlp_receiver import OtlpReceiver, produced
from support.rotel import collector

from tokentrace import emit
from tokentrace.emit._shown import shown

pytestmark = pytest.mark.model
COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


def tokentrace(data: Path, *arguments: str, protocol: str = "http/protobuf") -> str:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    env = {**keep, "TOKENTRACE_DATA_DIR": str(data), "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=env, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_whole_run_arrives_over_http_and_grpc_at_our_receiver_and_at_a_foreign_one(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        told = tokentrace(tmp_path, "run", "Hi", "--max-tokens", "4", "--json", "--otlp", receiver.http_url)
        report = orjson.loads(told)
        trace = emit.load(Path(report["files"][0]))
        made = produced(shown(trace))
        assert report["spans"]["produced"] == report["spans"]["accepted"] == len(trace) > 1000
        assert report["spans"]["rejected"] == 0
        assert receiver.received() == made
    name = Path(report["files"][0]).parent.name
    with OtlpReceiver() as receiver:
        tokentrace(tmp_path, "export", name, "--to", "otlp", "--endpoint", receiver.grpc_url, protocol="grpc")
        assert receiver.received() == made
    for protocol in ("http/protobuf", "grpc"):
        with OtlpReceiver(max_bytes=64 * 2**20) as behind, collector(behind, tmp_path) as (http, grpc):
            endpoint = f"http://127.0.0.1:{grpc if protocol == 'grpc' else http}"
            tokentrace(tmp_path, "export", name, "--to", "otlp", "--endpoint", endpoint, protocol=protocol)
            behind.wait_for(len(trace))
            assert behind.received() == made
