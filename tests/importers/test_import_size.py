"""A window of a recording costs the memory of the window, however large the recording is."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

STEP_US = 100_000  # so that the calls which are looked for before the window are few
LAUNCHES = 40

_WORK = """
import json, re, sys
from tokentrace.importers import load
first, last = int(sys.argv[2]), int(sys.argv[3])
found = load(sys.argv[1], window=(first, last))
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
figures = found.figures
print(json.dumps({"peak_kb": peak, "kernels": figures["kernels"], "matched": figures["matched"]}))
"""


def recording(path: Path, steps: int) -> int:
    """`steps` steps of 40 launches with their kernels, packed; gives the plain size in bytes."""
    size = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        size += file.write(b'{"schemaVersion": 1, "traceEvents": [\n')
        for step in range(steps):
            rows = []
            for n in range(LAUNCHES):
                at, key = step * STEP_US + n * 20, step * LAUNCHES + n + 1
                rows.append({"ph": "X", "cat": "cpu_op", "name": f"aten::op{n}", "pid": 1, "tid": 1, "ts": at, "dur": 9,
                             "args": {"External id": key, "Input Dims": [[4096, 4096], [4096, 4096]]}})  # fmt: skip
                rows.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                             "ts": at + 1, "dur": 5, "args": {"correlation": key}})  # fmt: skip
                rows.append({"ph": "X", "cat": "kernel", "name": f"kernel_{n}", "pid": 0, "tid": 7, "ts": at + 8,
                             "dur": 10, "args": {"device": 0, "stream": 7, "correlation": key}})  # fmt: skip
            text = ",\n".join(json.dumps(row) for row in rows)
            size += file.write((text + (",\n" if step < steps - 1 else "\n")).encode())
        size += file.write(b"]}\n")
    return size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory_follows_the_window_not_the_recording(tmp_path: Path) -> None:
    found = {}
    for steps in (400, 3200):
        path = tmp_path / f"{steps}.json.gz"
        size = recording(path, steps)
        window = [str(steps // 2 * STEP_US * 1000), str((steps // 2 + 10) * STEP_US * 1000)]
        done = subprocess.run(
            [sys.executable, "-c", _WORK, str(path), *window], capture_output=True, text=True, check=True
        )
        found[steps] = {**json.loads(done.stdout), "size_kb": size >> 10}
    small, large = found[400], found[3200]
    assert small["kernels"] == large["kernels"] == small["matched"] == large["matched"] == 10 * LAUNCHES
    grown = large["peak_kb"] - small["peak_kb"]
    assert grown < 0.1 * (large["size_kb"] - small["size_kb"]), found
