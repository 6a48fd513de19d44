"""Two models in a chain: one condenses a long text (prefill does the work), the other answers (decode does).

    python examples/two_chip_chain.py [CONFIG]

CONFIG is a tokentrace.toml with the profiles "prefill", "decode" and, if there is one, "fallback"; without it the local
engine plays both parts. Busy servers (429, 503) are asked again with growing pauses; then the fallback is asked. Each
part is a stage of the trace: its time holds all that was asked and the pauses between.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from _server import server

import tokentrace
from tokentrace.client.settings import Endpoint, resolve
from tokentrace.report import Report
from tokentrace.wording import plural

TEXT = (
    "The ferry leaves the island at seven in the morning and comes back at nine in the evening. In winter it sails on "
    "Mondays and Fridays only. Dogs travel for free, bicycles cost two coins, and whoever misses the boat may sleep in "
    "the lighthouse, whose keeper bakes bread at five."
)
QUESTION = "When does the ferry leave?"
RETRIES = 3


def ask(client: httpx.Client, where: Endpoint, prompt: str, max_tokens: int) -> dict[str, Any]:
    """The server's answer. Raises httpx.HTTPError when there is none after all retries."""
    body = {"model": where.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    headers = {"Authorization": f"Bearer {where.api_key}"} if where.api_key else {}
    for attempt in range(RETRIES + 1):
        response = client.post(where.chat_url, json=body, headers=headers, timeout=where.timeout_s)
        if response.status_code not in (429, 503) or attempt == RETRIES:
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return answer
        asked = response.headers.get("retry-after", "")
        time.sleep(float(asked) if asked.isdecimal() else 0.2 * 2**attempt * random.uniform(0.8, 1.2))
    raise AssertionError("not reached")


def reply(client: httpx.Client, chips: list[Endpoint], prompt: str, max_tokens: int) -> str:
    """Of the first of these servers that answers."""
    for number, where in enumerate(chips):
        try:
            answer = ask(client, where, prompt, max_tokens)
        except httpx.HTTPError as error:
            if number == len(chips) - 1:
                raise
            print(f"  {where.base_url} does not answer ({error}), trying the next")
            continue
        return str(answer["choices"][0]["message"]["content"])
    raise ValueError("no server was given")


def chain(prefill: list[Endpoint], decode: list[Endpoint]) -> None:
    with tokentrace.trace("two chip chain", save=True) as trace, httpx.Client() as client:
        with trace.stage("condense"):
            short = reply(client, prefill, f"Sum up in one sentence: {TEXT}", 24)
        print(f"condense: {short!r}")
        with trace.stage("answer"):
            answer = reply(client, decode, f"{short}\n\n{QUESTION}", 32)
        print(f"answer:   {answer!r}")
    told(trace.report)
    print(f"one trace, id {trace.trace_id}, saved in {trace.folder}")


def told(report: Report) -> None:
    """The time and the tokens of each stage, and what each of its calls took."""
    assert report.program is not None  # a trace of a program always has one
    for stage in report.stages:
        name = stage.way[0] if stage.way else "the rest"  # what the program did outside of both
        tokens = {way: "?" if count is None else count for way, count in stage.tokens.items()}  # not every server tells
        print(
            f"{name:<9} {stage.wall_ns / 1e6:7.0f} ms  {stage.wall_ns / report.program.wall_ns:5.0%}: "
            f"{stage.in_calls_ns / 1e6:.0f} ms in {plural(len(stage.calls), 'call')}, {stage.failed} failed, "
            f"{(stage.wall_ns - stage.in_calls_ns) / 1e6:.0f} ms between and around"
            + (f"; {tokens['input']} tokens read, {tokens['output']} written" if stage.calls else "")
        )
        if len(stage.calls) > 1:
            print(
                "          " + ", ".join(f"{name} {report.passes[name].wall_ns / 1e6:.0f} ms" for name in stage.calls)
            )


def profile(name: str) -> Endpoint:
    """A profile of the file that was named. Raises TokentraceError when it has none of that name."""
    found = resolve(profile=name, config=Path(sys.argv[1]))
    assert found is not None  # a profile has a URL, else resolve raises
    return found


def main() -> None:
    if len(sys.argv) > 1:
        prefill, decode = profile("prefill"), profile("decode")
        try:
            spare = [profile("fallback")]
        except tokentrace.TokentraceError:
            spare = []
        chain([prefill, *spare], [decode, *spare])
        return
    with server() as (url, key, model):
        both = [Endpoint(url, api_key=key, model=model)]
        chain(both, both)


if __name__ == "__main__":
    main()
