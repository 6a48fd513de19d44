"""Run in a process of its own: loads torch, profiles a few operators with it, prints one line of JSON.

    python -B trial_program.py FOLDER [cpu]

FOLDER is the folder of the package tokentrace, whose agent is used to profile just as it does inside an engine, and
whose probes read what was recorded; nothing else of it is loaded, for that takes time. "cpu": leave the GPU alone. The
caches of compilers are switched off by whoever starts this, nothing is written.

Importing torch is most of the cost. Garbage is not collected, and nothing is torn down at the end: that halves it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any


def _agent(folder: str) -> Any:
    """`tokentrace.agent.profile` and nothing else of tokentrace."""
    package = types.ModuleType("tokentrace")
    package.__path__ = [folder]
    sys.modules["tokentrace"] = package
    from tokentrace.agent import profile

    return profile


def main(folder: str, only_cpu: bool) -> dict[str, Any]:
    """Facts of torch, the recording's header and its `counts`; `error` says in which `stage` it ended."""
    found: dict[str, Any] = {"stage": "import", "python": sys.version.split()[0]}
    before = time.perf_counter()
    try:
        import torch
        import torch.autograd.profiler

        found.update(torch=str(torch.__version__), import_s=time.perf_counter() - before, stage="device")
        found["cuda"], found["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
        device = "cpu"
        if not only_cpu:
            found["available"] = bool(torch.cuda.is_available())
            if found["available"]:
                device = "cuda"
                found.update(_device_facts(torch))
            elif torch.version.cuda or found["hip"]:
                found["why_not"] = _why_not(torch)
        found.update(device=device, stage="work")
        weights = torch.ones(64, 64, device=device)
        _work(torch, weights, device)
        found["stage"] = "profile"
        profiler = _agent(folder).TorchProfiler()
        profiler.prepare()
        profiler.start()
        _work(torch, weights, device)
        profiler.stop()
        header, columns = profiler.columns()
        seen = counts(header, {name: _array(code, data) for name, (code, data) in columns.items()})
        found.update(stage="done", header=header, counts=seen)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the result
        found["error"] = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}"
    return found


def counts(header: dict[str, Any], columns: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Of a recording, as the probes read it: operators, what ran on a device, launches, what was launched, and how
    much of that has no launch. Counted here, where numpy is loaded with torch."""
    import numpy as np

    from tokentrace.probe import Columns
    from tokentrace.probes import _kineto

    arrays = {name: np.asarray(values, np.int64) for name, values in columns.items()}
    events = _kineto.from_columns(Columns("ops", "trial", dict(header), arrays))
    joined = _kineto.join_launches(events)
    return {
        "operators": len(events.rows(_kineto.OPERATOR)), "device": len(events.rows(*_kineto.DEVICE_KINDS)),
        "launches": len(joined.calls), "launched": len(joined.work), "orphans": len(joined.orphans),
    }  # fmt: skip


def _work(torch: Any, weights: Any, device: str) -> None:
    value = weights
    for _ in range(4):
        value = torch.relu(value @ weights)
    if device == "cuda":
        torch.cuda.synchronize()


def _device_facts(torch: Any) -> dict[str, Any]:
    count = torch.cuda.device_count()
    return {
        "names": [torch.cuda.get_device_name(i) for i in range(count)],
        "capabilities": [list(torch.cuda.get_device_capability(i)) for i in range(count)],
        "architectures": list(torch.cuda.get_arch_list()),
    }


def _why_not(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - torch raises RuntimeError, AssertionError and others here
        return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return "torch.cuda.is_available() is false"


def _array(code: str, data: bytes) -> Any:
    from array import array

    values = array(code)
    values.frombytes(data)
    return values


if __name__ == "__main__":
    gc.disable()
    sys.stdout.write(json.dumps(main(sys.argv[1], "cpu" in sys.argv[2:])) + "\n")
    sys.stdout.flush()
    os._exit(0)
