"""What attaching costs a vLLM server: tokens per second and time between tokens, in randomised alternation in one run.

    python benchmarks/attach.py --vllm-python .venv-vllm/bin/python [--rounds 6] [--requests 100] [--tokens 12]

Two servers of the same model run side by side, one at a time is asked:

    none        tokentrace is not in the server
    dormant     its plugin waits there, nobody is attached
    light       every request is traced (http, tokenizer, engine, model, jit), and the records are fetched as they come
    deep        light, and one request of each block also module by module and with torch.profiler (3 steps)

Each block sends the same requests, a few at a time; every setting must give the same number of tokens. Printed are
ratios of medians with their spread (the middle half of the ratios of blocks of one round). Then tokentrace is put into
the plain server and taken out again, twenty times, while a stream runs: how long each process was held, and the longest
gap between two tokens beside the usual ones.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx

from tokentrace import attach
from tokentrace.agent_client import AgentGroup
from tokentrace.attach.watch import DEEP_GROUPS, Watcher
from tokentrace.engines.local.model import ensure_model
from tokentrace.errors import AttachError, ProbeUnavailable

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))
import vllm_server
from vllm_server import MODEL, VllmServer

SETTINGS = ("none", "dormant", "light", "deep")
PAIRS = (("dormant", "none"), ("light", "dormant"), ("light", "none"), ("deep", "light"), ("deep", "none"))
AT_ONCE = 4


@dataclass
class Block:
    tokens_per_s: float
    between_ms: float  # median of all gaps between the tokens of one reply
    tokens: int


def stream(client: httpx.Client, url: str, prompt: str, tokens: int) -> tuple[list[int], int]:
    """(when each piece of one reply came, ns; the server's count of its tokens)."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True,
            "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
    times: list[int] = []
    counted = 0
    with client.stream("POST", f"{url}/chat/completions", json=body, timeout=300) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                counted = chunk["usage"]["completion_tokens"]
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter_ns())
    return times, counted


def block(url: str, requests: int, tokens: int, before: Callable[[int], None], after: Callable[[int], None]) -> Block:
    """`requests` replies, AT_ONCE at a time; `before` and `after` are called around each with its number."""
    waiting: queue.Queue[int] = queue.Queue()
    for number in range(requests):
        waiting.put(number)
    gaps: list[int] = []
    counted: list[int] = []

    def work() -> None:
        with httpx.Client() as client:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                before(number)
                times, count = stream(client, url, f"Count from {number}.", tokens)
                after(number)
                counted.append(count)
                gaps.extend(b - a for a, b in pairwise(times))

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - start
    return Block(requests * tokens / spent, statistics.median(gaps) / 1e6, sum(counted))


@contextmanager
def traced(server: VllmServer, seen: list[int]) -> Iterator[AgentGroup]:
    """Every request traced lightly, the records fetched as `tokentrace attach --for` fetches them."""
    with attach.open(attach.find(server.url), method="agent") as found:
        agents = AgentGroup(found.agents)
        with Watcher(agents) as watcher:
            over = threading.Event()

            def fetch() -> None:
                while not over.wait(0.1):
                    seen.append(len(watcher.poll()))

            thread = threading.Thread(target=fetch)
            thread.start()
            try:
                yield agents
            finally:
                over.set()
                thread.join()
        if agents.faults or agents.dropped or agents.lost:
            raise SystemExit(f"tracing went wrong: {agents.faults} {agents.dropped} {agents.lost}")


def run_one(name: str, servers: dict[str, VllmServer], requests: int, tokens: int) -> Block:
    nothing: Callable[[int], None] = lambda number: None  # noqa: E731
    if name in ("none", "dormant"):
        return block(servers[name].url, requests, tokens, nothing, nothing)
    seen: list[int] = []
    with traced(servers["dormant"], seen) as agents:
        if name == "light":
            found = block(servers["dormant"].url, requests, tokens, nothing, nothing)
        else:
            chosen = random.randrange(requests)

            def before(number: int) -> None:
                if number == chosen:
                    for group in DEEP_GROUPS:
                        agents.enable(group, {"steps": 3})

            def after(number: int) -> None:
                if number == chosen:
                    for group in DEEP_GROUPS:
                        agents.disable(group)

            found = block(servers["dormant"].url, requests, tokens, before, after)
        time.sleep(1.0)  # the last ones are fetched
    if sum(seen) < requests:
        raise SystemExit(f"{sum(seen)} of {requests} requests were traced")
    return found


def measure(servers: dict[str, VllmServer], rounds: int, requests: int, tokens: int) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {name: [] for name in SETTINGS}
    for name in ("none", "dormant"):
        run_one(name, servers, AT_ONCE * 2, tokens)  # warm
    order = list(SETTINGS)
    for number in range(rounds):
        random.shuffle(order)
        for name in order:
            found[name].append(run_one(name, servers, requests, tokens))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    counts = {one.tokens for blocks in found.values() for one in blocks}
    if len(counts) != 1:
        raise SystemExit(f"the settings gave different numbers of tokens: {sorted(counts)}")
    return found


def ratio(upper: list[float], lower: list[float]) -> str:
    each = sorted(a / b for a, b in zip(upper, lower, strict=True))
    low, high = (statistics.quantiles(each, n=4)[i] for i in (0, 2)) if len(each) > 1 else (each[0], each[0])
    return f"{statistics.median(upper) / statistics.median(lower):5.3f}  ({low:.3f} to {high:.3f})"


def injections(server: VllmServer, times: int) -> None:
    """Put the agent into the plain server and take it out again, beside a stream."""
    held: list[int] = []
    arrived: list[int] = []
    over = threading.Event()

    def keep_streaming() -> None:
        with httpx.Client() as client:
            while not over.is_set():
                arrived.extend(stream(client, server.url, "Tell me about rivers.", 200)[0])

    thread = threading.Thread(target=keep_streaming)
    thread.start()
    moments: list[tuple[int, int]] = []
    try:
        time.sleep(3)
        for _ in range(times):
            start = time.perf_counter_ns()
            with attach.open(attach.find(server.url)) as found:
                if found.depth != "injected":
                    print(f"the agent could not be put in: {found.reason}")
                    return
                held += [one.held_ns for one in found.inside]
            moments.append((start, time.perf_counter_ns()))
            time.sleep(0.5)
    except (AttachError, ProbeUnavailable) as error:
        print(f"the agent could not be put in: {error}")
        return
    finally:
        over.set()
        thread.join()
    gaps = [(b - a, a, b) for a, b in pairwise(arrived)]
    during = [gap for gap, a, b in gaps if any(start <= b and a <= end for start, end in moments)]
    beside = [gap for gap, a, b in gaps if not any(start <= b and a <= end for start, end in moments)]
    print(f"\ninjection, {times} times into {len(held) // times} processes:")
    print(f"  a process was held    median {statistics.median(held) / 1e6:.2f} ms, at most {max(held) / 1e6:.2f} ms")
    for name, found_gaps in (("meanwhile", during), ("otherwise", beside)):
        if found_gaps:
            print(f"  between tokens, {name}: median {statistics.median(found_gaps) / 1e6:.1f} ms, "
                  f"99 % below {statistics.quantiles(found_gaps, n=100)[98] / 1e6:.1f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--injections", type=int, default=20)
    asked = parser.parse_args()
    model = Path(str(ensure_model().path))
    with ExitStack() as stack:
        servers: dict[str, VllmServer] = {}
        for name, environment in (("none", {"TOKENTRACE_DISABLE": "1"}), ("dormant", {})):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers[name] = vllm_server.start(asked.vllm_python, model, folder, (), environment)
            stack.callback(servers[name].stop)
        found = measure(servers, asked.rounds, asked.requests, asked.tokens)
        print(f"{asked.rounds} rounds of {asked.requests} requests with {asked.tokens} tokens, {AT_ONCE} at once\n")
        for name in SETTINGS:
            speed = statistics.median(one.tokens_per_s for one in found[name])
            gap = statistics.median(one.between_ms for one in found[name])
            print(f"{name:8} {speed:7.1f} tokens/s   {gap:6.2f} ms between tokens")
        print("\n                      tokens/s                   time between tokens")
        for upper, lower in PAIRS:
            speeds = ratio([b.tokens_per_s for b in found[upper]], [b.tokens_per_s for b in found[lower]])
            gaps = ratio([b.between_ms for b in found[upper]], [b.between_ms for b in found[lower]])
            print(f"{upper + ' / ' + lower:18} {speeds:26} {gaps}")
        if asked.injections:
            injections(servers["none"], asked.injections)


if __name__ == "__main__":
    main()
