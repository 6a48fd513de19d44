"""Check tokentrace against a real GPU: a few minutes, no network, nothing downloaded.

    python scripts/gpu_check.py [--out FOLDER] [--parts run,profile,graphs,energy,jit] [--cpu]

Needs torch with CUDA (or ROCm) and transformers. A Llama of about 100 million random weights and its tokenizer are made
on the spot. The parts:

run      `tokentrace run` on it, eager: kernels, launches and their correlation in the trace of the deep pass.
profile  a forward pass and some decoding under torch.profiler: what `tokentrace import` and the agent's own reading
         make of it against a plain count of the trace that torch exported.
graphs   the same for a captured graph that is replayed (needs a GPU).
energy   NVML's energy counter against the integral of its power samples under load (needs an NVIDIA GPU).
jit      `tokentrace run --compile` with cold caches, then with the same caches warm.

With --cpu the model is tiny and what needs no GPU is checked; the rest is skipped and says so. FOLDER then holds
result.json (schema tokentrace.gpu_check/1), the runs and the exported traces.

Exit codes: 0 every check held, 1 one did not, 2 the machine lacks what is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _gpu_figures import as_the_agent_reads, counted, imported
from _gpu_model import PROMPT, loaded, make_model

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
DECODE_STEPS = 8
REPLAYS = 8
LOAD_S = 10.0


class Skip(Exception):
    """This machine cannot show this part; the message says why."""


@dataclass(slots=True)
class Part:
    """One part's outcome: each check has what was got and what was expected."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    seconds: float = 0.0

    def check(self, name: str, got: Any, expected: Any, ok: bool | None = None) -> None:
        held = bool(got == expected) if ok is None else bool(ok)
        self.checks.append({"check": name, "ok": held, "got": got, "expected": expected})

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks)


@dataclass(slots=True)
class Bench:
    """What the parts share: the device, the folder of results, the model's folder."""

    device: str  # cuda (AMD's too) or cpu
    out: Path
    model: Path


def tokentrace(bench: Bench, name: str, *options: str, **environment: str) -> dict[str, Any]:
    """The report of one `tokentrace run`; the run is kept below the folder of results."""
    command = [*COMMAND, "run", PROMPT, "--model", str(bench.model), "--max-tokens", "16", "--detail", "--json",
               "--out", str(bench.out / "runs" / name), *options]  # fmt: skip
    if bench.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise RuntimeError(f"tokentrace run ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def layer(report: dict[str, Any], number: int) -> dict[str, Any]:
    return next(row for row in report["layers"] if row["layer"] == number)


def part_run(bench: Bench, part: Part) -> None:
    report = tokentrace(bench, "eager")
    kernels, facts = layer(report, 3), layer(report, 3)["facts"]
    part.facts = {"layer 3": facts, "coverage": report["coverage"], "wall_ns": report["wall_ns"]}
    part.check("layer 3 is seen", kernels["status"], "seen")
    part.check("own times and the rest add up to the wall time", _sum_of(report), report["wall_ns"])
    if bench.device == "cpu":
        part.check("leaf operators are seen", facts.get("leaf_operators", 0), "> 0", facts.get("leaf_operators", 0) > 0)
        return
    part.check("kernels are seen", facts.get("kernels", 0), "> 0", facts.get("kernels", 0) > 0)
    part.check("launches are seen", facts.get("launches", 0), "> 0", facts.get("launches", 0) > 0)
    # What the step before had queued may run in the first instant of the deep pass.
    orphans, allowed = facts.get("orphans", 0), facts.get("kernels", 0) // 50
    part.check("nearly all device work has its launch", orphans, f"<= {allowed}", orphans <= allowed)
    part.check("power is seen", layer(report, 1)["status"], "seen")


def _sum_of(report: dict[str, Any]) -> int:
    own = sum((row["own_ns_down"] or 0) + (row["own_ns_up"] or 0) for row in report["layers"])
    return int(own + report["unattributed_ns"])


def part_profile(bench: Bench, part: Part) -> None:
    import torch

    model = loaded(bench.model, bench.device)
    ids = torch.randint(0, model.config.vocab_size, (1, 64), device=bench.device)

    def work() -> None:
        model.generate(ids, max_new_tokens=DECODE_STEPS, min_new_tokens=DECODE_STEPS, do_sample=False)

    compare(bench, part, "eager", work)


def part_graphs(bench: Bench, part: Part) -> None:
    if bench.device == "cpu":
        raise Skip("a CPU has no graphs")
    import torch

    model = loaded(bench.model, bench.device)
    ids = torch.randint(0, model.config.vocab_size, (1, 64), device=bench.device)

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    def blocks() -> None:
        hidden = torch.ones(1, 64, model.config.hidden_size, device=bench.device, dtype=model.dtype)
        with torch.no_grad():
            for block in model.model.layers:
                hidden = block.mlp(block.post_attention_layernorm(hidden))

    for name, captured in (("the whole model", forward), ("its MLPs", blocks)):
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            captured()
        torch.cuda.current_stream().wait_stream(side)
        try:
            with torch.cuda.graph(graph):
                captured()
        except RuntimeError as error:
            part.facts[f"not captured: {name}"] = str(error).splitlines()[0][:200]
            continue
        part.facts["captured"] = name
        break
    else:
        raise Skip("neither the model nor its MLPs could be captured")

    def work() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    truth = compare(bench, part, "graphs", work)
    part.check("graph launches", truth["graph_launches"], REPLAYS)
    part.check("every replay has as many kernels", truth["kernels"] % REPLAYS, 0)
    report = tokentrace(bench, "graphs", "--cuda-graphs")
    part.facts["layer 3 of the run"] = layer(report, 3)["facts"]
    part.check("the run with graphs shows kernels", layer(report, 3)["status"], "seen")


def compare(bench: Bench, part: Part, name: str, work: Callable[[], None]) -> dict[str, Any]:
    """Profile the work; check what the importer and the agent's reader make of it. Gives the plain count."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = bench.device != "cpu"
    work()  # first use compiles, loads and allocates
    if on_gpu:
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, record_shapes=True) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    path = bench.out / "traces" / f"{name}.pt.trace.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(path))
    truth = counted(path)
    part.facts["torch's trace"] = truth
    part.check("something was recorded", truth["operators"], "> 0", truth["operators"] > 0)
    if on_gpu:
        part.check("kernels were recorded", truth["kernels"], "> 0", truth["kernels"] > 0)
    for reader, found in (("import", imported(path)), ("agent", as_the_agent_reads(recorded))):
        for key, value in found.items():
            part.check(f"{reader}: {key}", value, truth[key])
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), 6))
    path.unlink()
    return truth


def part_energy(bench: Bench, part: Part) -> None:
    if bench.device == "cpu":
        raise Skip("it compares two readings of one GPU")
    import torch

    from tokentrace.energy.curve import CannotTell, counter_curve, power_curve
    from tokentrace.probes import _nvidia

    found = _nvidia.discover()
    try:
        if not found.sensors:
            raise Skip("; ".join(f"{one.what}: {one.problem}" for one in found.tried) or "NVML shows no card")
        sensor = found.sensors[0]
        stop = threading.Event()

        def load() -> None:
            square = torch.randn(8192, 8192, device=bench.device, dtype=torch.bfloat16)
            while not stop.is_set():
                for _ in range(20):
                    square @ square
                torch.cuda.synchronize()

        worker = threading.Thread(target=load)
        worker.start()
        readings = []
        until = time.monotonic() + LOAD_S + 2
        while time.monotonic() < until:
            readings.append(sensor.read())
            time.sleep(0.01)
        history = sensor.history()
        stop.set()
        worker.join()
        info = sensor.info
        part.facts = {"name": info.name, "driver": info.driver_version, "fields": info.fields, "notes": info.notes}
        if info.method != "counter":
            raise Skip(f"this card has no energy counter: {info.fields.get('energy counter')}")
        end = readings[-1].time_ns - 500_000_000
        begin = end - int(LOAD_S * 1e9) + 1_000_000_000
        told = [(one.time_ns, one.joules) for one in readings if one.joules is not None]
        counter = counter_curve([t for t, _ in told], [j for _, j in told], resolution_joules=info.resolution_joules,
                                assumed_period_ns=info.assumed_period_ns)  # fmt: skip
        part.facts["counter moves every_ns"] = counter.period_ns
        energy = counter.between(begin, end)
        samples = [(one.time_ns, one.watts) for one in readings if one.watts is not None]
        for name, points in (("power samples", samples), ("the driver's history", history)):
            try:
                curve = power_curve([t for t, _ in points], [w for _, w in points])
                other = curve.require(begin, end)
            except CannotTell as problem:
                part.facts[name] = str(problem)
                continue
            # Sensor and counter of a card agree to a few per cent (NVIDIA states 5 % for power).
            slack = energy.error_joules + other.error_joules + 0.05 * energy.joules
            expected = f"{energy.joules:.3f} J ± {slack:.3f} J"
            held = abs(energy.joules - other.joules) <= slack
            part.check(f"energy counter against {name}", round(other.joules, 3), expected, held)
    finally:
        if found.close is not None:
            found.close()


def part_jit(bench: Bench, part: Part) -> None:
    with tempfile.TemporaryDirectory(prefix="tokentrace-caches-") as scratch:
        caches = Path(scratch) / "caches"
        cold = tokentrace(bench, "jit-cold", "--compile", "--cold-caches", str(caches))
        warm = tokentrace(bench, "jit-warm", "--compile", TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
                          TRITON_CACHE_DIR=str(caches / "triton"))  # fmt: skip
    told = {name: lookups(report) for name, report in (("cold", cold), ("warm", warm))}
    part.facts = {"lookups": told, "first request_ns": {"cold": cold["passes"]["cold"]["wall_ns"],
                                                        "warm": warm["passes"]["cold"]["wall_ns"]}}  # fmt: skip
    part.check("cold caches miss", told["cold"]["miss"], "> 0", told["cold"]["miss"] > 0)
    part.check("cold caches never hit", told["cold"]["hit"], 0)
    part.check("warm caches hit", told["warm"]["hit"], "> 0", told["warm"]["hit"] > 0)
    part.check("warm caches never miss", told["warm"]["miss"], 0)
    first = part.facts["first request_ns"]
    part.check("the first request is quicker with warm caches", first["warm"], f"< {first['cold']}",
               first["warm"] < first["cold"])  # fmt: skip


def lookups(report: dict[str, Any]) -> dict[str, int]:
    """Look-ups in the compile caches in all passes, by what they gave, out of the saved trace."""
    from tokentrace.emit import load

    trace = load(Path(report["files"][0]))
    names = [trace.names[trace.name[row]] for row in range(len(trace)) if trace.layer[row] == 2]
    return {result: sum(name.startswith("cache ") and name.endswith(f" {result}") for name in names)
            for result in ("hit", "miss", "bypass")}  # fmt: skip


PARTS: dict[str, Callable[[Bench, Part], None]] = {
    "run": part_run, "profile": part_profile, "graphs": part_graphs, "energy": part_energy, "jit": part_jit,
}  # fmt: skip


def machine(device: str) -> dict[str, Any]:
    import torch
    import transformers

    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__,
                             "transformers": transformers.__version__, "cuda": torch.version.cuda,
                             "hip": torch.version.hip, "device": device}  # fmt: skip
    if device != "cpu":
        facts["gpu"] = torch.cuda.get_device_name(0)
        facts["capability"] = list(torch.cuda.get_device_capability(0))
    return facts


def refuse(sentence: str, fix: str) -> int:
    print(f"gpu_check: {sentence}\n  fix: {fix}", file=sys.stderr)
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder of the results")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="check what needs no GPU, with a tiny model")
    options = parser.parse_args()
    chosen = [name.strip() for name in options.parts.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in PARTS]
    if unknown or not chosen:
        return refuse(f"there is no part {', '.join(unknown) or 'chosen'}", f"the parts are {', '.join(PARTS)}")
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        return refuse(f"{error.name} is not installed", "pip install 'tokentrace[local]'")
    if not options.cpu and not torch.cuda.is_available():
        return refuse("torch finds no GPU", "run it on a machine with one, or with --cpu")
    device = "cpu" if options.cpu else "cuda"
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"schema": "tokentrace.gpu_check/1", "machine": machine(device), "parts": {}}
    with tempfile.TemporaryDirectory(prefix="tokentrace-model-") as scratch:
        bench = Bench(device, options.out.absolute(), Path(scratch) / "llama")
        result["machine"]["parameters"] = make_model(bench.model, small=device == "cpu")
        for name in chosen:
            print(f"{name} …", file=sys.stderr)
            result["parts"][name] = told = one(bench, PARTS[name])
            words = "skipped: " + told["skipped"] if told["skipped"] else "ok" if told["ok"] else "NOT ok"
            print(f"{name}: {words} ({told['seconds']:.1f} s)")
            for check in told["checks"]:
                held = "ok " if check["ok"] else "NOT"
                print(f"  {held} {check['check']}: {check['got']} (expected {check['expected']})")
            (options.out / "result.json").write_text(json.dumps(result, indent=2, default=str))
    result["ok"] = all(part["ok"] for part in result["parts"].values())
    (options.out / "result.json").write_text(json.dumps(result, indent=2, default=str))
    return 0 if result["ok"] else 1


def one(bench: Bench, work: Callable[[Bench, Part], None]) -> dict[str, Any]:
    """Run one part; whatever it raises is a check that did not hold, and the next part runs all the same."""
    part = Part()
    begin = time.monotonic()
    try:
        work(bench, part)
    except Skip as reason:
        part.skipped = str(reason)
    except Exception as error:  # noqa: BLE001 - a part that breaks is a result, too
        part.check("it runs to its end", f"{type(error).__name__}: {error}"[:1000], "no error", ok=False)
    part.seconds = round(time.monotonic() - begin, 1)
    return {"ok": part.ok, "skipped": part.skipped, "seconds": part.seconds, "checks": part.checks, "facts": part.facts}


if __name__ == "__main__":
    sys.exit(main())
