"""Layers 4 and 3: a tiny real profile in a process of its own. Does the profiler work, and does it see kernels?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from tokentrace.doctor.check import Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware, surroundings, torches, visible
from tokentrace.doctor.machine.situation import in_the_servers_process
from tokentrace.doctor.machine.view import View
from tokentrace.probes import _nvidia_cards

SECONDS = 40.0
#: A CUDA context with torch's kernels takes up to half a GiB; a card with less than this left is not touched.
_CONTEXT_BYTES = 2**30
#: Nothing may be written: neither bytecode nor any compiler's cache. One thread is enough for a few small operators.
_NO_WRITING = {
    "PYTHONDONTWRITEBYTECODE": "1", "CUDA_CACHE_DISABLE": "1", "AMD_COMGR_CACHE": "0", "MIOPEN_DISABLE_CACHE": "1",
    "KINETO_LOG_LEVEL": "6", "TOKENTRACE_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
#: Variables that decide which device and which libraries a process gets.
_SHARED = (*visible.VARIABLES, "LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER")
#: The folder of the package tokentrace.
_PACKAGE = Path(__file__).parents[2]
_COUNTERS_FIX = "see TT402 for rights, TT403 for the tracing library, TT404 for other profilers"


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT401, TT301 and TT507 from one trial."""
    where = torches.in_folders(view, torches.folders_of(view)) if not view.hidden else []
    mine = torches.in_folders(View(situation.environ), torches.folders_of(View(situation.environ)))
    if not mine:
        here = f"; {view.whose} has torch {where[0].version} in {where[0].folder}" if where else ""
        why = f"torch is not installed for {sys.executable}, so no profile was tried{here}"
        return [skip("TT401", why), skip("TT301", why)]
    leave_gpu = _leave_gpu(view)
    limit = max(1.0, min(SECONDS, situation.left_s - 0.5))
    found = run(sys.executable, _environ(situation, view), limit, bool(leave_gpu))
    results = list(judge(found, hardware.look(view).any_gpu, surroundings.look(view), leave_gpu))
    if situation.mode != "machine":
        # The server has a torch of its own: this one says what the trace could not show, not what breaks requests.
        results = [replace(r, status="warn") if r.status == "fail" else r for r in results]
    return results


def _environ(situation: Situation, view: View) -> dict[str, str]:
    """This process's environment, with what the server says of devices and libraries where its folders are ours."""
    mine = dict(situation.environ)
    if view.pid and not view.hidden and view.root == "/":
        mine.update({name: view.environ[name] for name in _SHARED if name in view.environ})
    return mine


def run(python: str, environ: Mapping[str, str], limit_s: float, only_cpu: bool = False) -> dict[str, Any]:
    """What the trial program printed, or `error` and the `stage` it was in. Ends within the limit; never raises."""
    program = str(Path(__file__).with_name("trial_program.py"))
    command = [python, "-B", program, str(_PACKAGE), *(["cpu"] if only_cpu else [])]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
            env={**environ, **_NO_WRITING}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return {"stage": "start", "error": f"{python} does not start: {error.strerror}"}
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"stage": "time", "error": f"it was not done in {limit_s:.0f} s"}
    finally:
        _end(child)
    try:
        found = orjson.loads(out.splitlines()[-1])
    except (orjson.JSONDecodeError, IndexError):
        died = f"killed by signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        return {"stage": "end", "error": "; ".join([died, *(line[:200] for line in last)])}
    return found if isinstance(found, dict) else {"stage": "end", "error": "it printed something else"}


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        child.communicate()


def _leave_gpu(view: View) -> str:
    """Why the cards are left alone, "" when they need not be."""
    if not hardware.look(view).cards_of("NVIDIA"):
        return ""
    for card in _nvidia_cards.read().cards:
        if card.free_bytes is not None and card.free_bytes < _CONTEXT_BYTES:
            return f"GPU {card.index} has less than 1 GiB free"
        if (card.compute_mode or "").startswith("exclusive") and card.processes:
            return f"GPU {card.index} is in exclusive mode and taken"
    return ""


def judge(
    found: Mapping[str, Any], any_gpu: bool, around: surroundings.Surroundings, leave_gpu: str = ""
) -> Iterator[Result]:
    """What the trial's answer means for layers 5, 4 and 3."""
    error, stage = found.get("error"), found.get("stage")
    if error and stage == "time":
        yield unknown("TT401", f"the profiler could not be tried: {error}", "give more time: --timeout 60")
        yield unknown("TT301", "no profile was recorded in time")
        return
    if error:
        words = {"import": "torch cannot be imported", "work": "torch cannot compute", "device": "torch cannot compute"}
        said = words.get(str(stage), "torch's profiler does not work")
        fix = "reinstall torch: pip install --force-reinstall torch" if stage == "import" else "run the same in Python"
        yield fail("TT401", f"{said}: {error}", fix, *_facts(found))
        yield unknown("TT301", "no profile was recorded")
        return
    seen = found["counts"]
    if not seen["operators"]:
        yield fail("TT401", "torch's profiler ran and recorded no operator", "use torch 2.6 or later", *_facts(found))
    else:
        took = (found["header"].get("end_ns", 0) - found["header"].get("start_ns", 0)) / 1e6
        yield ok("TT401", f"torch's profiler recorded {seen['operators']} operators in {took:.1f} ms", *_facts(found))
    yield from _device(found, any_gpu, leave_gpu)
    yield _kernels(found, seen, any_gpu, around, leave_gpu)


def _device(found: Mapping[str, Any], any_gpu: bool, leave_gpu: str) -> Iterator[Result]:
    if found.get("device") == "cuda":
        missing = _no_code(found)
        if missing:
            yield fail("TT509", missing, "install a torch that was built for this card", *_facts(found))
        else:
            yield ok("TT509", "torch computes on the GPU", *_facts(found))
    elif any_gpu and found.get("why_not"):
        yield fail(
            "TT509", f"torch cannot use the GPU: {found['why_not']}", "see TT501, TT502 and TT504", *_facts(found)
        )
    elif any_gpu and leave_gpu:
        yield unknown("TT509", f"torch was not tried on the GPU: {leave_gpu}")


def _no_code(found: Mapping[str, Any]) -> str:
    """A card that none of the architectures in torch covers: code runs on the same major version, PTX on later ones."""
    architectures = [str(a) for a in found.get("architectures", ())]
    numbers = {a: int(a.partition("_")[2].rstrip("abcdefghijklmnopqrstuvwxyz") or 0) for a in architectures
               if a.startswith(("sm_", "compute_"))}  # fmt: skip
    if not numbers:
        return ""
    for name, (major, minor) in zip(found.get("names", ()), found.get("capabilities", ()), strict=False):
        card = major * 10 + minor
        same = any(a.startswith("sm_") and n // 10 == major and n <= card for a, n in numbers.items())
        later = any(a.startswith("compute_") and n <= card for a, n in numbers.items())
        if not same and not later:
            return f"torch has no code for {name} (compute capability {major}.{minor}), only {', '.join(architectures)}"
    return ""


def _kernels(found: Mapping[str, Any], seen: Mapping[str, int], any_gpu: bool,
             around: surroundings.Surroundings, leave_gpu: str) -> Result:  # fmt: skip
    evidence = f"{seen['launches']} launches, {seen['launched']} kernels and copies, {seen['orphans']} without a launch"
    if found.get("device") != "cuda":
        if any_gpu:
            return unknown("TT301", f"no kernel was tried on the GPU: {leave_gpu or 'torch does not use it'}")
        return ok("TT301", "on a processor there are no launches: the leaf operators are the last thing to be seen",
                  "kernels of compiled code report their times too")  # fmt: skip
    if not seen["launches"]:
        return fail("TT301", "operators ran on the GPU, and neither launches nor kernels were recorded",
                    _COUNTERS_FIX, evidence)  # fmt: skip
    if not seen["device"]:
        if around.wsl:
            return warn("TT301", "this platform (WSL) records no kernels; the GPU did work",
                        "profile on Linux itself", evidence)  # fmt: skip
        return fail("TT301", "launches were recorded but no kernel: the profiler is blind to the device", _COUNTERS_FIX,
                    evidence)  # fmt: skip
    if seen["orphans"] > seen["launched"] // 2:
        return warn("TT301", "most kernels cannot be joined to their launches", _COUNTERS_FIX, evidence)
    return ok("TT301", "launches and kernels were recorded and joined by correlation id", evidence)


def _facts(found: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [f"{sys.executable}, torch {found.get('torch', 'not loaded')}"]
    if "import_s" in found:
        lines.append(f"torch was imported in {found['import_s']:.1f} s")
    header = found.get("header") or {}
    if header.get("activities"):
        lines.append(f"recorded: {', '.join(header['activities'])}")
    if found.get("names"):
        lines.append(f"devices: {', '.join(found['names'])}")
    return tuple(lines)


CHECKS = (
    Check(
        "TT401", "torch's profiler",
        "Layers 4 and 3 come from torch.profiler; a torch that cannot profile leaves them dark.",
        "a few operators, really profiled in a process of their own that ends within its time and writes nothing",
        "Reinstall torch, or use torch 2.6 or later.",
        in_the_servers_process("TT401", look), seconds=SECONDS,
    ),
    Check(
        "TT301", "kernels and launches",
        "On a GPU each kernel carries the correlation id of its launch; without the driver's tracing interface only "
        "the launches are seen. On a processor the leaf operators are the last thing that can be seen.",
        "the same profile as TT401",
        "Let the driver's tracing interface in: see TT402, TT403 and TT404.",
    ),
    Check(
        "TT509", "torch on the GPU",
        "A driver, a build and a card can each be right and still not fit each other: torch has no code for a card "
        "that is newer or older than it.",
        "the same profile as TT401: whether torch starts on the GPU, and its architectures against the card",
        "Install a torch that was built for the card.",
    ),
)  # fmt: skip
