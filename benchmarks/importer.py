"""Import speed and memory against peers: HolisticTraceAnalysis, and the json module with pandas.

    python benchmarks/importer.py [--recordings FOLDER] [--peer-python PYTHON] [--repeat 3]

Every measurement runs in a process of its own. Time is from the opened file to the figures (kernels, launches,
matched, busy time, idle share, top kernels); for HolisticTraceAnalysis it is loading alone, which is in its favour.
Memory is the process's peak. Peers are installed into a temporary environment with your own pip settings, unless
--peer-python names an interpreter that has HolisticTraceAnalysis.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

LARGEST = (
    "hta/a100_recsys_rank3of8.json.gz",
    "hta/v100_dlrm_cudagraph_2rank.json.gz",
    "tracelens/mi300_vllm_graph_capture.pt.trace.json.gz",
)

OURS = """
import sys
from pathlib import Path
from tokentrace.importers import chrome, figures, join
def work(path):
    events = chrome.read(Path(path))
    return figures.figures(events, join.join(events))
"""
OURS_WHOLE = """
from tokentrace.importers import load
def work(path):
    return load(path).figures
"""
#: One copy's worth out of the middle of the grown recording.
OURS_WINDOW = """
from tokentrace.importers import load
def work(path):
    return load(path, window=(1_000_000_000, 1_465_000_000)).figures
"""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def work(path):
    TraceAnalysis(trace_files={0: path}, trace_dir="")
    return None
"""
PANDAS = """
import gzip, json
import pandas
def work(path):
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    frame = pandas.DataFrame([e for e in events if e.get("ph") == "X"])
    args = pandas.DataFrame(list(frame["args"].map(lambda a: a if isinstance(a, dict) else {})))
    frame["correlation"] = args.get("correlation")
    kernels = frame[frame["cat"] == "kernel"].copy()
    kernels["start"] = kernels["ts"].astype(float)
    kernels["end"] = kernels["start"] + kernels["dur"].astype(float)
    kernels = kernels.sort_values("start")
    until = kernels["end"].cummax()
    fresh = kernels["start"] > until.shift(fill_value=-1.0)
    group = fresh.cumsum()
    busy = (kernels.groupby(group)["end"].max() - kernels.groupby(group)["start"].min()).sum()
    calls = frame[frame["cat"].isin(["cuda_runtime", "cuda_driver"])]
    launches = calls[calls["name"].str.contains("LaunchKernel|GraphLaunch")]
    matched = kernels["correlation"].isin(launches["correlation"]).sum()
    top = kernels.groupby("name")["dur"].agg(["sum", "count"]).sort_values("sum", ascending=False).head(5)
    return {"kernels": len(kernels), "launches": len(launches), "matched": int(matched),
            "busy_ns": round(float(busy) * 1000), "top": len(top)}
"""
FRAME = """
import json, re, resource, sys, time
{code}
before = time.perf_counter()
found = work(sys.argv[1])
spent = time.perf_counter() - before
try:  # ru_maxrss would count the parent's memory from before the exec
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("RESULT" + json.dumps({{"seconds": spent, "peak_mb": peak / 1024,
      "kernels": found and found["kernels"], "busy_ns": found and found["busy_ns"]}}))
"""


def measure(python: str, code: str, path: Path, repeat: int) -> dict[str, Any]:
    """The fastest of `repeat` runs, each in a fresh process; its highest memory."""
    best: dict[str, Any] = {}
    for _ in range(repeat):
        done = subprocess.run([python, "-c", FRAME.format(code=code), str(path)], capture_output=True, text=True,
                              check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
        line = next((text for text in done.stdout.splitlines() if text.startswith("RESULT")), None)
        if line is None:
            raise SystemExit(f"a measurement failed on {path.name}:\n{done.stderr[-2000:]}")
        found = json.loads(line.removeprefix("RESULT"))
        if not best or found["seconds"] < best["seconds"]:
            best = {**found, "peak_mb": max(found["peak_mb"], best.get("peak_mb", 0))}
    return best


def grow(source: Path, target: Path, events: int) -> tuple[int, int]:
    """Repeat a recording until it has this many events, each copy later and with ids of its own: (events, copies)."""
    tree = json.loads(gzip.decompress(source.read_bytes()))
    rows = tree["traceEvents"]
    copies = -(-events // len(rows))
    timed = [row for row in rows if row.get("ph") == "X" and row.get("cat") != "Trace"]
    span = max(row["ts"] + row["dur"] for row in timed) - min(row["ts"] for row in timed) + 1000
    step = 1 + max(
        row["args"]["correlation"] for row in rows if isinstance(row.get("args", {}).get("correlation"), int)
    )
    with gzip.open(target, "wt", compresslevel=6) as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for copy in range(copies):
            lines = []
            for row in rows:
                row = {**row, "ts": row["ts"] + span * copy} if "ts" in row else row
                args = row.get("args")
                if isinstance(args, dict) and isinstance(args.get("correlation"), int) and args["correlation"] >= 0:
                    row = {**row, "args": {**args, "correlation": args["correlation"] + step * copy}}
                lines.append(json.dumps(row))
            file.write((",\n" if copy else "") + ",\n".join(lines))
        file.write("\n]}\n")
    return copies * len(rows), copies


def peer_python(folder: Path) -> str:
    print("installing HolisticTraceAnalysis into a temporary environment …", file=sys.stderr)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis"], check=True)
    return python


def tell(name: str, tool: str, found: dict[str, Any], ours: dict[str, Any]) -> None:
    time, memory = (f"{found[key] / ours[key]:.1f}x" for key in ("seconds", "peak_mb"))
    print(f"{name:<34}{tool:<24}{found['seconds']:>9.3f}{found['peak_mb']:>9.0f}{time:>8}{memory:>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", default=os.environ.get("TOKENTRACE_RECORDINGS"))
    parser.add_argument("--peer-python")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    if not options.recordings:
        parser.error("give --recordings FOLDER or set TOKENTRACE_RECORDINGS")
    folder = Path(options.recordings)
    with tempfile.TemporaryDirectory() as scratch:
        python = options.peer_python or peer_python(Path(scratch) / "peers")
        grown = Path(scratch) / "grown.json.gz"
        total, copies = grow(folder / LARGEST[0], grown, options.events)
        print(f"{'recording':<34}{'tool':<24}{'seconds':>9}{'peak MB':>9}{'time':>8}{'memory':>8}")
        times = []
        for path in [*(folder / name for name in LARGEST), grown]:
            name = path.name.split(".")[0][:32] if path != grown else f"grown to {total:,} events"
            repeat = options.repeat if path != grown else 1
            ours = measure(sys.executable, OURS, path, repeat)
            times.append(ours["seconds"])
            rows = [("tokentrace: figures", ours),
                    ("tokentrace: whole trace", measure(sys.executable, OURS_WHOLE, path, repeat)),
                    ("HolisticTraceAnalysis", measure(python, HTA, path, repeat)),
                    ("json + pandas", measure(python, PANDAS, path, repeat))]  # fmt: skip
            for tool, found in rows:
                tell(name, tool, found, ours)
            if path == grown:
                tell(name, "tokentrace: a window", measure(sys.executable, OURS_WINDOW, path, repeat), ours)
            wrong = [tool for tool, found in rows if found["kernels"] not in (None, ours["kernels"])]
            if wrong:
                print(f"  kernel counts differ: {', '.join(wrong)}")
        per_event = times[-1] / copies / times[0]
        print(f"time per event, grown against the original: {per_event:.2f} (1 = linear)")


if __name__ == "__main__":
    main()
