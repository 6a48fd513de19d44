"""Layer 3: how the server's command makes it launch kernels: CUDA graphs, and the batch sizes they were captured for.

Source: vLLM's engine arguments. Without --enforce-eager decode steps replay captured graphs, one for each captured
batch size; a batch above the largest captured size runs kernel by kernel. A given list is --cuda-graph-sizes (before
0.15), --cudagraph-capture-sizes, or "cudagraph_capture_sizes" inside --compilation-config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from tokentrace.doctor.check import Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import command, hardware
from tokentrace.doctor.machine.command import Command
from tokentrace.doctor.machine.situation import on_the_servers_machine
from tokentrace.doctor.machine.view import View
from tokentrace.wording import listed


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT304."""
    if not view.pid:
        return [skip("TT304", "no server process was given, so its command is not known")]
    asked = command.parse(view.command)
    if asked.engine != "vllm":
        return [skip("TT304", "the server is no vLLM, as far as its command tells")]
    if not hardware.look(view).cards:
        return [skip("TT304", "there is no GPU here, so there are no graphs")]
    return judge(asked, view)


def judge(asked: Command, view: View) -> list[Result]:
    """What the flags mean for decode steps on a GPU."""
    ranks = asked.get("tensor-parallel-size", "tp") or "1"
    evidence = [f"--tensor-parallel-size {ranks}"]
    if "enforce-eager" in asked and asked.get("enforce-eager").lower() != "false":
        detail = "--enforce-eager: every decode step launches its kernels one by one, and the GPU waits in between"
        if ranks.isdecimal() and int(ranks) > 1:
            layers = command.model_config(view, asked.model).get("hidden_size")
            if isinstance(layers, int):
                evidence.append(f"hidden size {layers}: {layers // int(ranks)} a rank")
            detail += f"; split over {ranks} GPUs each kernel is smaller still"
        return [warn("TT304", detail, "start vLLM without --enforce-eager", "--enforce-eager", *evidence)]
    sizes = captured(asked)
    most = asked.get("max-num-seqs")
    if sizes is None:
        return [unknown("TT304", "the list of captured batch sizes in the command cannot be read")]
    if sizes and most.isdecimal() and int(most) > max(sizes):
        detail = f"batches of {max(sizes) + 1} to {most} requests have no captured graph and run kernel by kernel"
        fix = f"add {most} to the captured sizes, or --max-num-seqs {max(sizes)}"
        return [warn("TT304", detail, fix, f"captured: {listed([str(s) for s in sizes], 12)}", *evidence)]
    return [ok("TT304", "decode steps replay captured graphs", *evidence)]


def captured(asked: Command) -> list[int] | None:
    """The batch sizes that the command lists, [] when it leaves them to vLLM, None when they cannot be read."""
    text = asked.get("cudagraph-capture-sizes", "cuda-graph-sizes")
    if not text:
        given = asked.get("compilation-config", "O")
        try:
            config: Any = orjson.loads(given) if given.lstrip().startswith("{") else {}
        except orjson.JSONDecodeError:
            return None
        listed_sizes = config.get("cudagraph_capture_sizes") if isinstance(config, dict) else None
        if listed_sizes is None:
            return []
        text = " ".join(map(str, listed_sizes)) if isinstance(listed_sizes, list) else "?"
    if re.fullmatch(r"[\d\s,\[\]]+", text) is None:
        return None
    return sorted(int(n) for n in re.findall(r"\d+", text))


CHECKS = (
    Check(
        "TT304", "captured graphs",
        "A decode step is hundreds of tiny kernels; launched one by one they leave the GPU waiting, captured in a "
        "graph they do not. A batch larger than every captured size falls back.",
        "--enforce-eager, --max-num-seqs and the captured sizes in vLLM's command line",
        "Start vLLM without --enforce-eager and with sizes up to --max-num-seqs.",
        on_the_servers_machine("TT304", look),
    ),
)  # fmt: skip
