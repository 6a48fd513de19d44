"""tokentrace: one prompt, one trace, eight layers, both ways.

trace = tokentrace.run("Hi")                                  the local engine
trace = tokentrace.run("Hi", url="http://localhost:8000/v1")  any OpenAI-compatible server
trace = tokentrace.load("trace.jsonl")

with tokentrace.trace("chain") as trace:                      a program's own calls, all in one trace
    client.chat.completions.create(...)

`trace.spans`, `trace.layers`, `trace.findings`, `trace.save("x.jaeger.json")`, `trace.send()`: see `tracing.result`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokentrace.errors import TokentraceError
from tokentrace.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tokentrace.tracing.block import Block
    from tokentrace.tracing.result import Trace

__all__ = ["TokentraceError", "__version__", "load", "run", "trace"]


def run(prompt: str, *, url: str | None = None, save: bool = False, once: bool = False, **settings: Any) -> Trace:
    """Trace one prompt. Further settings: key, model, profile, config, timeout_s (see `client.settings.resolve`),
    system, max_tokens, temperature. Raises the request's TokentraceError when it failed.
    """
    from tokentrace import workflow
    from tokentrace.client.settings import resolve
    from tokentrace.session import Ask
    from tokentrace.tracing.result import Trace

    asked = {k: settings.pop(k) for k in ("system", "max_tokens", "temperature") if k in settings}
    endpoint = resolve(url, **settings)
    where = workflow.Settings(endpoint, once=once, save=save)
    if endpoint is None:
        where.model, where.timeout_s = settings.get("model"), settings.get("timeout_s")
    done = workflow.run(Ask(prompt, **asked), where, workflow.Quiet())
    if done.error is not None:
        raise done.error
    return Trace(done.trace, done.report)


def trace(name: str = "trace", **settings: Any) -> Block:
    """`with tokentrace.trace("name") as t:` makes one trace of what the program does inside: requests over httpx, by
    the openai package too, and transformers' `generate`. Settings: deep, save, otlp, layers (see `tracing.block`).
    """
    from tokentrace.tracing.block import Block

    return Block(name, **settings)


def load(path: str | Path) -> Trace:
    """A trace saved as OTLP lines (.jsonl, .jsonl.gz). Raises UsageError for anything else."""
    from pathlib import Path as _Path

    from tokentrace.emit import load as _load
    from tokentrace.tracing.result import Trace

    return Trace(_load(_Path(path)))
