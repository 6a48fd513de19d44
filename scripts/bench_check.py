"""tokentrace bench beside other clients, in turn on one server that is up already:

    python scripts/bench_check.py --url http://localhost:8000/v1 --model NAME --tokenizer FOLDER \\
        --vllm .venv-vllm/bin/python --aiperf venv/bin/aiperf [-n 40] [--concurrency 4] [--rounds 4] [--json]

Each round sends the same prompt as often, with as many at a time, from each client (A B A B …). `--vllm`: an
interpreter that has vLLM, for `vllm bench serve`; `--aiperf`: its command. Start the server without a prefix cache,
so that it has as much to do for the first client as for the last. Shown are medians of the rounds and their range,
and what each client saw over what vLLM's own histograms say of the same requests: so a machine that is busier in one
round than in the next does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

PROMPT = "Name the colours of the rainbow, one after the other, and say for each of them what it is like. " * 8
#: Name, unit, and what it is.
FIGURES = (
    ("ttft", "ms", "first token"),
    ("wait", "ms", "first token, from sent"),
    ("tpot", "ms", "time a token"),
    ("gap", "ms", "gap between tokens"),
    ("total", "ms", "whole request"),
    ("rate", "tokens/s", "tokens a second of all"),
)
#: What `vllm bench serve` calls; the command itself asks for a package of the name vllm, which some builds do not have.
_BENCH_SERVE = (
    "import argparse; from vllm.benchmarks import serve; parser = argparse.ArgumentParser(); "
    "serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
#: Of vLLM's /metrics, in seconds.
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "gap": "vllm:inter_token_latency_seconds",
    "total": "vllm:e2e_request_latency_seconds",
}
_SETTLE_S = 1.0
Run = Callable[[argparse.Namespace, Path], dict[str, Any]]


def tokentrace(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    done = _told([
        sys.executable, "-m", "tokentrace", "bench", PROMPT,
        "--url", given.url, "--model", given.model,
        "-n", str(given.n), "--concurrency", str(given.concurrency), "--max-tokens", str(given.tokens),
        "--temperature", "0", "--warmup", "0", "--no-save", "--json",
    ])  # fmt: skip
    target = json.loads(done)["targets"][0]
    mean = {name: (one["mean"] or 0) / 1e6 for name, one in target["figures"].items()}
    middle = {name: (one["p50"]["value"] or 0) / 1e6 for name, one in target["figures"].items()}
    return {
        "requests": target["ok"],
        "tokens": target["output_tokens"],
        "gaps": target["figures"]["inter_token"]["count"],
        "mean": {"ttft": mean["ttft"], "wait": mean["wait"], "tpot": mean["mean_inter_token"],
                 "gap": mean["inter_token"], "total": mean["total"], "rate": target["output_tokens_per_s"]},
        "p50": {"ttft": middle["ttft"], "wait": middle["wait"], "tpot": middle["mean_inter_token"],
                "gap": middle["inter_token"], "total": middle["total"]},
    }  # fmt: skip


def vllm(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    prompts, result = folder / "prompts.json", folder / "vllm.json"
    # ShareGPT's form: the only one of a file that it reads without pandas.
    prompts.write_text(json.dumps([{"conversations": [{"value": PROMPT}, {"value": PROMPT}]}] * given.n))
    parts = urlsplit(given.url)
    _told([
        given.vllm, "-c", _BENCH_SERVE, "--backend", "openai-chat",
        "--base-url", f"{parts.scheme}://{parts.netloc}", "--endpoint", f"{parts.path}/chat/completions",
        "--model", given.model, "--tokenizer", given.tokenizer, "--dataset-name", "sharegpt",
        "--dataset-path", str(prompts), "--sharegpt-output-len", str(given.tokens),
        "--num-prompts", str(given.n), "--max-concurrency", str(given.concurrency),
        "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--save-detailed",
        "--result-dir", str(folder), "--result-filename", result.name, "--disable-tqdm",
    ])  # fmt: skip
    found = json.loads(result.read_text())
    names = {"ttft": "ttft", "tpot": "tpot", "gap": "itl", "total": "e2el"}
    return {
        "requests": found["completed"],
        "tokens": found["total_output_tokens"],
        "gaps": sum(map(len, found["itls"])),
        "mean": {n: found[f"mean_{k}_ms"] for n, k in names.items()} | {"rate": found["output_throughput"]},
        "p50": {name: found[f"median_{key}_ms"] for name, key in names.items()},
    }


def aiperf(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    prompts, out = folder / "aiperf.jsonl", folder / "aiperf"
    prompts.write_text(f"{json.dumps({'text': PROMPT})}\n" * given.n)
    parts = urlsplit(given.url)
    _told([
        given.aiperf, "profile", "--model", given.model, "--url", f"{parts.scheme}://{parts.netloc}",
        "--endpoint-type", "chat", "--streaming", "--tokenizer", given.tokenizer, "--input-file", str(prompts),
        "--custom-dataset-type", "single_turn", "--extra-inputs", f"max_completion_tokens:{given.tokens}",
        "--extra-inputs", "temperature:0", "--use-server-token-count", "--request-count", str(given.n),
        "--concurrency", str(given.concurrency), "--ui", "none",
        "--connection-reuse-strategy", "never", "--no-auto-plot", "--output-artifact-dir", str(out),
    ])  # fmt: skip
    found = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    names = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "total": "request_latency"}
    return {
        "requests": round(found["request_count"]["avg"]),
        "tokens": round(found["total_output_tokens"]["avg"]) if "total_output_tokens" in found else None,
        "gaps": None,
        "mean": {n: found[k]["avg"] for n, k in names.items()} | {"rate": found["output_token_throughput"]["avg"]},
        "p50": {name: found[key]["p50"] for name, key in names.items()},
    }


def _sums(given: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """(sum in s, count) of each histogram until now; {} where the server is no vLLM."""
    parts = urlsplit(given.url)
    with urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    found = {}
    for figure, name in _HISTOGRAMS.items():
        values = [
            [float(line.split()[-1]) for line in lines if line.startswith(f"{name}_{end}")] for end in ("sum", "count")
        ]
        if all(values):
            found[figure] = (sum(values[0]), sum(values[1]))
    return found


def _served(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """The server's means in ms over what ended between, and of how many requests."""
    means = {
        name: 1e3 * (after[name][0] - before[name][0]) / (after[name][1] - before[name][1])
        for name in before.keys() & after.keys() if after[name][1] > before[name][1]
    }  # fmt: skip
    return {"requests": round(after["total"][1] - before["total"][1]), "mean": means} if means else {}


def _told(command: list[str]) -> str:
    env = {**os.environ, "TOKENTRACE_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        sys.exit(f"{' '.join(command[:5])} ended with {done.returncode}:\n" + "\n".join(last))
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--url", "--model", "--tokenizer"):
        parser.add_argument(name, required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--aiperf")
    parser.add_argument("-n", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.url = given.url.rstrip("/")
    clients: dict[str, Run] = {"tokentrace": tokentrace}
    clients |= {name: run for name, run in (("vllm", vllm), ("aiperf", aiperf)) if getattr(given, name)}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
    for number in range(given.rounds):
        for name, run in clients.items():
            print(f"round {number + 1} of {given.rounds}: {name}", file=sys.stderr)
            before = _sums(given)
            with tempfile.TemporaryDirectory() as folder:
                rounds[name].append(run(given, Path(folder)))
            time.sleep(_SETTLE_S)  # the server counts a request a moment after its last byte
            rounds[name][-1]["server"] = _served(before, _sums(given))
            print(f"  {json.dumps(rounds[name][-1])}", file=sys.stderr)
    if given.json:
        print(json.dumps({"n": given.n, "concurrency": given.concurrency, "tokens": given.tokens, "rounds": rounds}))
        return
    for name, found in rounds.items():
        print(f"{name}: {[(one['requests'], one['tokens'], one['gaps']) for one in found]} requests, tokens, gaps")
    for kind in ("p50", "mean"):
        for figure, unit, title in FIGURES:
            cells = []
            for name, found in rounds.items():
                values = [one[kind][figure] for one in found if figure in one[kind]]
                if values:
                    cells.append(f"{name} {median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
            if cells:
                print(f"{kind:>5} {title:<24} {unit:<9} {'  '.join(cells)}")

    for figure, _, title in FIGURES:
        cells = []
        for name, found in rounds.items():
            ratios = [
                one["mean"][figure] / one["server"]["mean"][figure] for one in found
                if figure in one["mean"] and figure in one["server"].get("mean", {})
                and one["server"]["requests"] == one["requests"]  # nobody else's
            ]  # fmt: skip
            if ratios:
                cells.append(f"{name} {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        if cells:
            print(f"over the server's own mean: {title:<20} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
