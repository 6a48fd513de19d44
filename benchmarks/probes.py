"""What the probes cost: time per generated token of the local engine, in randomised alternation in one run.

    python benchmarks/probes.py [--rounds 12] [--tokens 16] [--seconds 60]

Each round measures every setting once; after --seconds no further one begins, but three are made in any case.

Pairs, each printed as a ratio of medians with its spread (the middle half of the ratios of neighbours):
    light probes / none                 http, tokenizer, engine, model, jit
    light probes and modules / none     the above and modules
    profiler alone / none               torch.profiler as the group ops runs it
    all deep probes / profiler alone    what our part of a deep pass adds to torch.profiler's own cost

Time per token is taken by the client between the first and the last chunk of a reply, so that switching groups, the
profiler's stop and its reading are not in it. Every setting generates the same tokens; that is checked.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tokentrace.agent_client import AgentClient
from tokentrace.engines.local.process import LocalEngine

LEAST_ROUNDS = 3
LIGHT = ("http", "tokenizer", "engine", "model", "jit")
SETTINGS: Mapping[str, Sequence[str]] = {
    "none": (),
    "light": LIGHT,
    "modules": (*LIGHT, "modules"),
    "profiler": ("ops",),
    "deep": (*LIGHT, "modules", "ops"),
}
PAIRS = (
    ("light probes / none", "light", "none"),
    ("light probes and modules / none", "modules", "none"),
    ("profiler alone / none", "profiler", "none"),
    ("all deep probes / profiler alone", "deep", "profiler"),
)


def generate(client: httpx.Client, url: str, tokens: int) -> tuple[float, str]:
    """(ms per token after the first one, text) of one streamed reply."""
    body = {"messages": [{"role": "user", "content": "Tell a story"}], "max_tokens": tokens, "stream": True,
            "temperature": 0, "ignore_eos": True}  # fmt: skip
    times: list[int] = []
    text = ""
    with client.stream("POST", f"{url}/chat/completions", json=body, timeout=300) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if choice["delta"].get("content"):
                        times.append(time.perf_counter_ns())
                        text += choice["delta"]["content"]
    return (times[-1] - times[0]) / 1e6 / (tokens - 1), text


def measure(
    engine: LocalEngine, agent: AgentClient, rounds: int, tokens: int, seconds: float
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    texts: set[str] = set()
    order = list(SETTINGS)
    with httpx.Client() as client:
        for _ in range(2):
            generate(client, engine.base_url, tokens)
        began = time.monotonic()
        for number in range(rounds):
            spent = time.monotonic() - began
            if number >= LEAST_ROUNDS and spent + spent / number > seconds:
                print(f"{seconds:.0f} s allow no further round", file=sys.stderr)
                break
            random.shuffle(order)
            for name in order:
                agent.begin_pass()
                for group in SETTINGS[name]:
                    agent.enable(group, {"text": True})
                per_token, text = generate(client, engine.base_url, tokens)
                for group in reversed(SETTINGS[name]):
                    agent.disable(group)
                agent.end_pass()
                if agent.faults or agent.dropped:
                    raise SystemExit(f"the agent reports {agent.faults} and {agent.dropped} dropped records")
                found[name].append(per_token)
                texts.add(text)
            print(f"round {number + 1} of {rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    if len(texts) != 1:
        raise SystemExit("the settings did not generate the same text; these times are not comparable")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What the probes cost.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no round that would end later")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    with LocalEngine.start() as engine, AgentClient.connect(engine.agent_socket or "") as agent:
        print("the engine is ready", file=sys.stderr)
        found = measure(engine, agent, options.rounds, options.tokens, options.seconds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    rows: list[dict[str, Any]] = []
    for title, one, other in PAIRS:
        neighbours = sorted(a / b for a, b in zip(found[one], found[other], strict=True))
        quarter = len(neighbours) // 4
        row = {"what": title, "ratio": medians[one] / medians[other], "low": neighbours[quarter]}
        rows.append({**row, "high": neighbours[-1 - quarter], "best": min(found[one]) / min(found[other])})
    if options.json:
        print(json.dumps({"ms_per_token": medians, "rounds": len(found["none"]), "ratios": rows}))
        return
    for name, median in medians.items():
        print(f"{name:10s} {median:7.2f} ms per token (median), {min(found[name]):7.2f} (best)")
    for row in rows:
        print(f"{row['what']:34s} {row['ratio']:.3f}  ({row['low']:.3f} to {row['high']:.3f}; best {row['best']:.3f})")


if __name__ == "__main__":
    main()
