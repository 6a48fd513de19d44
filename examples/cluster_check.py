"""A list of endpoints, each asked by several clients at once: who answers, how fast, and what it cost in tokens.

    python examples/cluster_check.py [CONFIG] [CLIENTS]

CONFIG is a tokentrace.toml with one profile an endpoint; without it the local engine is checked twice under two names.
For a whole diagnosis of one endpoint: tokentrace doctor --profile NAME
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _server import server

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint, resolve
from tokentrace.exchange import Exchange
from tokentrace.model import IdSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROMPT = "Say hello in one word."


def probe(where: Endpoint, clients: int) -> list[Exchange]:
    """As many requests at once, each with a trace context of its own."""
    ids = IdSource()

    def one(_: int) -> Exchange:
        question = [{"role": "user", "content": PROMPT}]
        return chat(where, question, trace_id=ids.trace_id(), span_id=ids.span_id(), max_tokens=8)

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(one, range(clients)))


def check(name: str, where: Endpoint, clients: int) -> tuple[int, int]:
    """Prints one line, and the first failure's sentence and fix; gives the tokens read and written."""
    done = probe(where, clients)
    good = [one for one in done if one.error is None]
    waits = [one.ttft_ns / 1e6 for one in good if one.ttft_ns is not None]
    seen = f"first token {statistics.median(waits):.0f} ms (median)" if waits else "no token"
    print(f"{name:<10} {len(good)} of {len(done)} answered, {seen}")
    for failed in [one.error for one in done if one.error is not None][:1]:
        print(f"           layer {failed.layer}: {failed}")
        print(f"           fix: {failed.fix}")
    return sum(one.input_tokens or 0 for one in good), sum(one.output_tokens or 0 for one in good)


def check_all(cluster: dict[str, Endpoint], clients: int) -> bool:
    """Whether anybody answered."""
    counts = [check(name, where, clients) for name, where in cluster.items()]
    read, wrote = (sum(column) for column in zip(*counts, strict=True))
    print(f"{'together':<10} {read} tokens read, {wrote} written")
    return wrote > 0


def main() -> None:
    clients = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if len(sys.argv) > 1:
        config = Path(sys.argv[1])
        names = tomllib.loads(config.read_text())["profiles"]
        found = {name: resolve(profile=name, config=config) for name in names}
        sys.exit(not check_all({name: where for name, where in found.items() if where is not None}, clients))
    with server() as (url, key, model):
        here = Endpoint(url, api_key=key, model=model)
        sys.exit(not check_all({"first": here, "second": here}, clients))


if __name__ == "__main__":
    main()
