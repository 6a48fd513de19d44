"""Layer 6: how the engine stands, by its progress and its own figures: busy, queueing, preempting, cache, context."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tokentrace.client.causes import one_line
from tokentrace.doctor.check import Check, Result, Situation, ok, unknown, warn
from tokentrace.doctor.machine import command, torches
from tokentrace.doctor.machine.situation import view_of
from tokentrace.doctor.readings import NAME, SAMPLER, engines
from tokentrace.doctor.request import engine_progress
from tokentrace.exchange import Exchange
from tokentrace.probes import _metrics
from tokentrace.probes._metrics import Change, Engine
from tokentrace.wording import listed

#: Where these figures have other names, the engine's version decides which.
_TRACE_FLAGS = ("otlp-traces-endpoint", "enable-trace")  # vLLM's and SGLang's
_WANTED = {"running": "requests that run", "waiting": "requests that wait", "kv_usage": "use of the KV cache"}


def _engines(s: Situation) -> list[Engine] | str:
    """The last figures, or why there are none."""
    samples = s.live.of(NAME) if s.live is not None else []
    if samples:
        found: list[Engine] = samples[-1].values["engines"]
        return found
    reply = s.look.get("metrics") if s.look is not None else None
    version = f"; its version is {s.look.version}" if s.look is not None and s.look.version else ""
    if reply is not None and reply.status == 200:
        try:
            known = engines(reply.body.decode("utf-8", "replace"))
        except ValueError:
            return f"what the server answers on /metrics cannot be read{version}"
        return known or f"none of the known figures is on the server's /metrics{version}"
    why = f"/metrics {reply.told}" if reply is not None else "/metrics did not answer in time"
    return f"not available: {why}{version}"


def _change(s: Situation) -> list[Change]:
    samples = s.live.of(NAME) if s.live is not None else []
    if len(samples) < 2:
        return []
    return _metrics.change(samples[0].values["engines"], samples[-1].values["engines"])


def _of(engine: Engine) -> str:
    return f" of {engine.name}" if engine.name else ""


def _figures(s: Situation) -> Iterable[Result]:
    found = _engines(s)
    if isinstance(found, str):
        yield unknown("TT613", f"the engine's figures: {found}", "a server with /metrics (vLLM, SGLang) tells more")
        return
    missing = [text for key, text in _WANTED.items() if all(key not in e.gauges for e in found)]
    version = f" (version {s.look.version})" if s.look is not None and s.look.version else ""
    told = "; ".join(_told(e) for e in found)
    if missing:
        yield unknown("TT613", f"{listed(missing)} not found on /metrics{version}", "", told)
    else:
        yield ok("TT613", told)


def _told(engine: Engine) -> str:
    parts = [f"{engine.gauges[n]:.0f} {n}" for n in ("running", "waiting") if n in engine.gauges]
    if "kv_usage" in engine.gauges:
        parts.append(_metrics.kv_told(replace(engine, name="")))
    return (f"{engine.name}: " if engine.name else "") + (", ".join(parts) or "no figures of this moment")


def _queue(s: Situation) -> Iterable[Result]:
    seen = engine_progress(s)
    x = s.live.first if s.live is not None else None
    answered = x is not None and x.complete
    if seen is None:
        yield unknown("TT610", "the engine's queue cannot be seen")
    elif seen.verdict == "stalled" and not answered:
        yield unknown("TT610", f"the engine {seen.sentence}")  # the failure itself is told as TT605
    elif seen.verdict in ("busy", "stalled") or seen.waiting:
        wait = f"; the first token took {x.ttft_ns / 1e9:.1f} s" if answered and x is not None and x.ttft_ns else ""
        yield warn(
            "TT610",
            f"the engine {seen.sentence}: requests queue behind others{wait}",
            "send less at once, or give the server more capacity",
            *seen.evidence,
        )
    else:
        yield ok("TT610", f"nothing waits: the engine {seen.sentence}", *seen.evidence)


def _cache(s: Situation) -> Iterable[Result]:
    found = _engines(s)
    told = "; ".join(filter(None, map(_metrics.kv_told, found))) if not isinstance(found, str) else ""
    shares = [(e, _metrics.kv_usage(e)) for e in found] if not isinstance(found, str) else []
    known = [(e, use) for e, use in shares if use is not None]
    if not known:
        yield unknown("TT612", told or "the use of the KV cache: not available")
        return
    full = [(e, use) for e, use in known if use >= _metrics.KV_WARN]
    if full:
        yield warn(
            "TT612",
            f"the KV cache{_of(full[0][0])} is {full[0][1]:.0%} full: new requests wait, and running ones may be "
            "preempted",
            "send less at once, shorten prompts, or give the cache more memory (--gpu-memory-utilization)",
            told,
        )
    else:
        yield ok("TT612", told)


def _preempted(s: Situation) -> Iterable[Result]:
    changes = [c for c in _change(s) if "preemptions" in c.counters]
    if not changes:
        yield unknown("TT611", "preemptions are not counted by this server, or were read only once")
        return
    count = sum(c.counters["preemptions"] for c in changes)
    if count:
        yield warn(
            "TT611",
            f"{count} requests were preempted while this ran: their work is done again",
            "lower the number of requests at once (--max-num-seqs), or give the KV cache more memory",
        )
    else:
        yield ok("TT611", "nothing was preempted while this ran")


def _context(s: Situation) -> Iterable[Result]:
    x = s.live.first if s.live is not None else None
    name = x.model if x is not None else (s.endpoint.model if s.endpoint is not None else "")
    entry = s.look.model(name) if s.look is not None else {}
    window = entry.get("max_model_len") or entry.get("context_length") or entry.get("n_ctx")
    if not isinstance(window, int) or window <= 0:
        yield unknown("TT614", "the server does not tell its context length in /models")
        return
    held = _cache_tokens(s)
    if held is not None and held < window:
        yield warn(
            "TT614",
            f"the context has {window} tokens, but the KV cache holds only {held}",
            f"--max-model-len {held} on the server, or give the cache more memory",
        )
        return
    prompt = (x.input_tokens if x is not None else None) or 0
    needed = prompt + s.max_tokens
    if needed > window:
        fits = window - prompt
        yield warn(
            "TT614",
            f"the context has {window} tokens: {prompt} of prompt and {s.max_tokens} of reply do not fit",
            f"--max-tokens {fits} fits" if fits > 0 else "raise --max-model-len of the server",
        )
    else:
        left = window - s.max_tokens
        more = () if held is None else (f"the KV cache holds {held} tokens",)
        told = f"the context has {window} tokens; with a reply of {s.max_tokens}, {left} are left for the prompt"
        yield ok("TT614", told, *more)


def _cache_tokens(s: Situation) -> int | None:
    """Blocks times their size, as the cache's configuration in /metrics tells them."""
    reply = s.look.get("metrics") if s.look is not None else None
    text = reply.body.decode("utf-8", "replace") if reply is not None and reply.status == 200 else ""
    labels = re.search(r"^\w+:cache_config_info\{([^}\n]*)\}", text, re.MULTILINE)
    found = dict(re.findall(r'\b(block_size|num_gpu_blocks)="(\d{1,12})"', labels[1])) if labels else {}
    return int(found["block_size"]) * int(found["num_gpu_blocks"]) if len(found) == 2 else None


def _prefix(s: Situation) -> Iterable[Result]:
    reply = s.look.get("metrics") if s.look is not None else None
    text = reply.body.decode("utf-8", "replace") if reply is not None and reply.status == 200 else ""
    switch = re.search(r'^\w+:cache_config_info\{[^}\n]*enable_prefix_caching="(\w+)"', text, re.MULTILINE)
    hits = sum(c.counters.get("cached_tokens", 0) for c in _change(s))
    last = s.live.second or s.live.first if s.live is not None else None
    cached = _cached_tokens(last)
    if switch is not None and switch[1].lower() == "false":
        yield warn(
            "TT615",
            "prefix caching is off: the same beginning of a prompt is computed each time",
            "start the server with --enable-prefix-caching",
        )
    elif cached is not None:
        yield ok("TT615", f"the server tells cached tokens in its usage ({cached} of the last request)")
    elif hits:
        yield unknown(
            "TT615",
            f"the prefix cache is used ({hits} tokens while this ran), but how many were this request's is not told",
            "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report",
        )
    elif switch is not None:
        yield ok("TT615", "prefix caching is on; cached tokens of one request are not told")
    else:
        yield unknown("TT615", "whether prompts are cached is not told by this server")


def _cached_tokens(x: Exchange | None) -> int | None:
    details = (x.usage or {}).get("prompt_tokens_details") if x is not None else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def _tracing(s: Situation) -> Iterable[Result]:
    """Can what the server does be joined to the request? By the id that comes back with the reply."""
    packages = _without_packages(s)
    if packages is not None:
        yield packages
        return
    x = s.live.first if s.live is not None else None
    if x is None or not x.complete:
        yield unknown("TT616", "no request was answered, so its ids could not be followed")
        return
    sent = f"tokentrace-{x.span_id:016x}"
    flag = _flag(s)
    if sent in x.response_id or x.response_headers.get("x-request-id", "") == sent:
        follows = "" if flag is None else " and follows traceparent" if flag else " and drops traceparent"
        yield ok("TT616", f"the server keeps the request id that is sent{follows}: its records can be joined to it")
    else:
        shown = one_line(x.response_id, 40) or "none"
        yield unknown(
            "TT616",
            "the server names the request anew, and whether it follows traceparent cannot be seen from outside",
            "vLLM drops traceparent unless it runs with --otlp-traces-endpoint",
            f"its id: {shown}",
        )


def _flag(s: Situation) -> bool | None:
    """Was vLLM started to follow traces? None when its command line is not known."""
    if s.pid is None or not s.here:
        return None
    asked = command.parse(view_of(s).command)
    return any(name in asked for name in _TRACE_FLAGS) if asked.engine else None


def _without_packages(s: Situation) -> Result | None:
    """A warning when the server is told to trace and its environment lacks the packages for that."""
    if not _flag(s):
        return None
    view = view_of(s)
    folders = torches.folders_of(view)
    if view.hidden or not folders or any(view.exists(f"{folder}/opentelemetry/sdk") for folder in folders):
        return None
    return warn(
        "TT616",
        f"{view.whose} is told to send traces, and its environment has no OpenTelemetry SDK",
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp into the server's environment",
        *folders[:4],
    )


_LIVE_ENGINES = (
    ("TT610", "queue", "No requests wait. A health route cannot tell busy from stuck; tokens made between two readings "
     "can.", "/metrics before, during and after the live call",
     "Send less at once, or give the server more capacity.", _queue),
    ("TT611", "preemptions", "No running request lost its place in the KV cache. A preempted one is computed anew, "
     "which shows as a spike of its latency.", "the counter of preemptions, before and after the live call",
     "Lower --max-num-seqs, or give the KV cache more memory.", _preempted),
    ("TT612", "KV cache", "The KV cache has room. Of several engines each is told on its own.",
     "the share of the cache in use, under the names of old and new versions",
     "Send less at once, shorten prompts, or give the cache more memory.", _cache),
    ("TT613", "engine's figures", "The server tells how its engine stands. A figure that is not there is unknown, "
     "never 0; names differ between versions.", "/metrics", "Nothing to mend; without it less can be told.", _figures),
    ("TT614", "context", "The shortest prompt and a reply of --max-tokens fit into the model's context.",
     "max_model_len in /models, and the prompt's count", "Lower --max-tokens, or raise --max-model-len of the server.",
     _context),
    ("TT615", "prefix cache", "The same beginning of a prompt is not computed twice. Cached tokens that a server does "
     "not tell are unknown, never 0.", "the cache's configuration and counters in /metrics, and the usage of the reply",
     "Switch prefix caching on; vLLM tells cached tokens with --enable-prompt-tokens-details.", _prefix),
    ("TT616", "joining server and request", "The server keeps the request's id or its traceparent, so that its own "
     "records can be joined to the request.", "the id in the reply, and the headers that came back",
     "vLLM: --otlp-traces-endpoint; without it tokentrace joins by request id and by time.", _tracing),
)  # fmt: skip
CHECKS = tuple(
    Check(check_id, title, meaning, looks, fix, run, live=True, network=True)
    for check_id, title, meaning, looks, fix, run in _LIVE_ENGINES
)
SAMPLERS = (SAMPLER,)
