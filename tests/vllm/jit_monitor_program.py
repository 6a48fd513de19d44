"""Compiles with vLLM's real JIT monitor and the agent's group "jit" on; prints what was recorded as JSON.

    python jit_monitor_program.py MODE     late: the agent comes to an active monitor; early: it is there before vLLM is
                                           loaded; error: late, with --jit-monitor-mode error; missing: the function
                                           that reports is not in this version

What compiles: Triton's own `jit` for a GPU that is not there, CuTeDSL and TileLang where they are installed, and
functions of the monitor itself where they are not.
"""  # fmt: skip

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tokentrace.agent import jit_monitor as agents
from tokentrace.agent import vllm_names
from tokentrace.agent.compile_events import JitGroup

RECORDS: list[list[object]] = []
RAISED: list[str] = []


def attempt(name: str, compilation: Callable[[], object]) -> None:
    try:
        compilation()
    except RuntimeError as error:
        RAISED.append(f"{name}: {error}")


def stand_ins(monitor: Any) -> list[str]:
    """CuTeDSL's compile through the monitor's own stand-in for it, and TileLang's report."""
    done = []
    if importlib.util.find_spec("cutlass") is None:

        def compile_it(kernel: object) -> object:
            return kernel

        def my_kernel() -> None: ...

        callable_ = monitor._MonitoredCuteCompile(compile_it)
        attempt("CuTeDSL", lambda: callable_(my_kernel))
        done.append("CuTeDSL")
    if importlib.util.find_spec("tilelang") is None:
        attempt("TileLang", lambda: monitor._log_tilelang_jit_compile("my_tile", "shapes"))
        done.append("TileLang")
    return done


def real_ones() -> None:
    if importlib.util.find_spec("cutlass") is not None:
        cute = importlib.import_module("cutlass.cute")

        @cute.jit  # type: ignore[untyped-decorator]
        def my_kernel(x: importlib.import_module("cutlass").Int32):  # type: ignore[no-untyped-def,misc]
            cute.printf("{}", x)

        attempt("CuTeDSL", lambda: cute.compile(my_kernel, 3))
    if importlib.util.find_spec("tilelang") is not None:
        import jit_monitor_tile

        attempt("TileLang", lambda: jit_monitor_tile.my_tile(os.getpid()))


def triton_kernel() -> bool:
    """Triton's own way from a call of a `jit` function to the compiled kernel; nothing is launched."""
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver
        from triton.runtime.jit import MockTensor
    except ImportError:
        return False
    import jit_monitor_kernel
    import torch

    class Absent:
        """A device to compile for."""

        def get_current_device(self) -> int:
            return 0

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Absent())
    floats = MockTensor(torch.float32)
    attempt("Triton", lambda: jit_monitor_kernel.add.warmup(floats, floats, 100, SIZE=64, grid=(1,)))
    attempt("Triton", lambda: jit_monitor_kernel.tuned.run(floats, floats, 100, grid=(1,), warmup=True))
    return True


def main() -> None:
    mode = sys.argv[1]
    group = JitGroup()
    if mode == "early":
        group.enable(lambda *record: RECORDS.append(list(record)))
    from vllm.utils import jit_monitor as monitor

    monitor.HAS_TRITON = importlib.util.find_spec("triton") is not None  # vLLM for the CPU does not use it
    if mode == "missing":
        del monitor._handle_jit_event
    states = [agents.state()["state"]]
    if mode != "early":
        monitor.activate(mode="error" if mode == "error" else "warn")
    before = {**vllm_names.identities(), **tile_functions()}
    if mode == "early":
        before = {name: id(sys.modules["vllm.utils.jit_monitor"].__dict__[name].__wrapped__)
                  for name in ("_handle_jit_event", "activate")}  # fmt: skip
        monitor.activate()
    else:
        group.enable(lambda *record: RECORDS.append(list(record)))
    states.append(agents.state()["state"])
    told: dict[str, Any] = {"triton": False, "stand_ins": []}
    if mode != "missing":
        real_ones()
        told = {"stand_ins": stand_ins(monitor), "triton": triton_kernel()}
    group.disable()
    seen = len(RECORDS)
    if mode != "missing":
        attempt("unseen", lambda: monitor._log_cutedsl_jit_compile("unseen"))
    after = {**vllm_names.identities(), **tile_functions()}
    if mode == "early":
        after = {name: id(monitor.__dict__[name]) for name in before}
    print(
        json.dumps(
            {
                **told,
                "records": RECORDS,
                "unseen": len(RECORDS) - seen,
                "states": states,
                "facts": group.bulk()[0][0],
                "identical": before == after,
                "watched": len(before),
                "raised": RAISED,
            }
        )
    )


def tile_functions() -> dict[str, int]:
    found = {}
    for target in agents.TIMED:
        module, _, path = target.partition(":")
        if module in sys.modules:
            owner, _, name = path.partition(".")
            found[target] = id(vars(getattr(sys.modules[module], owner))[name])
    return found


if __name__ == "__main__":
    main()
