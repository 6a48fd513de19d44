"""An OTLP collector that is not ours: rotel, written in Rust, as a process of its own that passes everything on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.otlp_receiver import OtlpReceiver

rotel = pytest.importorskip("rotel", reason="pip install rotel")
AGENT = Path(rotel.__file__).with_name("rotel-agent")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def collector(behind: OtlpReceiver, folder: Path) -> Iterator[tuple[int, int]]:
    """(HTTP port, gRPC port) of a rotel that passes on to the receiver. It cannot choose free ports itself.

    Its batches are large because rotel 0.0.1a15 drops the resource of spans where it splits a batch at its size.
    """
    for _ in range(5):
        http, grpc = free_port(), free_port()
        log = (folder / "rotel.log").open("wb")
        process = subprocess.Popen(
            [str(AGENT), "start", "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint",
             f"127.0.0.1:{grpc}", "--exporter", "otlp", "--otlp-exporter-protocol", "grpc",
             "--otlp-exporter-endpoint", f"http://127.0.0.1:{behind.grpc_port}",
             "--batch-timeout", "100ms", "--batch-max-size", "100000", "--pid-file", str(folder / "rotel.pid")],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
        try:
            if listening(process, http) and listening(process, grpc):
                yield http, grpc
                return
        finally:
            process.terminate()
            process.wait(60)
            log.close()
    pytest.fail(f"rotel did not start: {(folder / 'rotel.log').read_text()[-500:]}")


def listening(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            time.sleep(0.02)
    return False
