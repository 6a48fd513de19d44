"""Where the recordings are, and the checks that hold for every imported trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tokentrace import layers
from tokentrace.errors import UsageError
from tokentrace.importers import load
from tokentrace.importers._analysis import Analysis
from tokentrace.importers._load import _read, analyse
from tokentrace.model import Trace

SMALL = Path(__file__).parents[1] / "data" / "recordings"
_FOLDER = os.environ.get("TOKENTRACE_RECORDINGS")
LARGE = Path(_FOLDER) if _FOLDER and Path(_FOLDER).is_dir() else None


#: Small, and whole.
TINY = SMALL / "a100_cuda_event_sync_small.json.gz"


def known() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Name -> (file, independent figures) of every recording there is here."""
    small = json.loads((SMALL / "figures.json").read_text())
    found = {name: (SMALL / name, facts) for name, facts in small.items()}
    if LARGE is not None:
        for name, facts in json.loads((LARGE / "groundtruth.json").read_text()).items():
            found[name] = (LARGE / name, facts)
    return found


def large(name: str) -> Path:
    if LARGE is None:
        pytest.skip("TOKENTRACE_RECORDINGS is not set")
    return LARGE / name


def analysed(path: Path) -> Analysis:
    return analyse(_read(path, None, None)[0])


def check_tree(trace: Trace, budget: int = 10_000) -> None:
    """One root, no orphan, children inside their parents, known names, links that end in the trace."""
    assert 0 < len(trace) <= budget
    ids = set(trace.span_id)
    assert len(ids) == len(trace) and 0 not in ids
    assert [row for row in range(len(trace)) if trace.parent[row] < 0] == [0]
    assert trace.names[trace.name[0]] == "tokentrace import"
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        assert 0 <= parent < row
        span, holder = trace.span(row), trace.span(parent)
        assert holder.start_ns <= span.start_ns <= span.end_ns <= holder.end_ns, (span, holder)
        if span.layer:
            assert layers.by_number(span.layer).owns(span.name), span.name
        assert span.direction in ("down", "up", "")
    for links in trace.links.values():
        assert all(link.span_id in ids for link in links)
    assert {1, 2, 3, 4, 5, 6, 7, 8} <= set(trace.layer)


def spannable(found: Analysis) -> int:
    """How many rows may become spans."""
    return int((found.layer > 0).sum())


def trace_file(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def op(name: str, ts: Any, dur: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def call(name: str, ts: Any, dur: Any, correlation: Any, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}, **more}  # fmt: skip


def kernel(name: str, ts: Any, dur: Any, correlation: Any, stream: Any = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": stream, "correlation": correlation, **args}}  # fmt: skip


def launches(count: int, every: float, took: float, delay: float = 5) -> list[dict[str, Any]]:
    """Operators that launch one kernel each: `every` µs, for `took` µs, starting `delay` µs after the operator."""
    rows = []
    for n in range(count):
        rows += [op("aten::mm", n * every, 4), call("cudaLaunchKernel", n * every + 1, 2, n + 1),
                 kernel("gemm", n * every + delay, took, n + 1)]  # fmt: skip
    return rows


def refused(path: Path, **options: Any) -> str:
    """What is said of a file that is refused, in one sentence."""
    with pytest.raises(UsageError) as caught:
        load(path, **options)
    assert caught.value.exit_code == 2 and caught.value.fix
    text = str(caught.value)
    assert "\n" not in text and len(text) < 300
    return text


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
