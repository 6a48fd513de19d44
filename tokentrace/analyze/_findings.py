"""What the data shows, one sentence each with what it rests on. Silent where the data cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tokentrace.analyze import _compare, _split
from tokentrace.analyze._arrivals import FIX_CLIENT, bursts, late_token
from tokentrace.analyze._cache_use import cache_use
from tokentrace.analyze._left import left_with
from tokentrace.analyze._metrics_told import told_by_metrics
from tokentrace.analyze._passes import NONE, PassView, name_of
from tokentrace.analyze._server import only_told, own_account
from tokentrace.analyze._written import after_last_write
from tokentrace.model import Trace
from tokentrace.probe import LEFT_OUT, Finding
from tokentrace.wording import duration, listed, plural, share

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis

#: Unattributed time beyond this share is worth a finding.
FREE_SHARE = 0.05
#: Deep probing that stretches a request beyond this makes its proportions doubtful.
STRETCHED = 1.5
#: Passes whose waits in the queue differ by more than this share of the warm time are compared without them.
WAITED_SHARE = 0.02
#: Compiling that takes more than this share of a request is worth a finding.
COMPILING_SHARE = 0.1
_SMALL_NS = 1_000_000


def findings(trace: Trace, found: Analysis) -> list[Finding]:
    """What failed first, then what the times rest on, then what took the time."""
    result: list[Finding] = []
    for part in _PARTS if not found.main.beyond_steps else _OF_NO_SPANS:
        result += part(trace, found)
    return result


def _failed(trace: Trace, found: Analysis) -> Iterator[Finding]:
    for one in found.passes.values():
        facts = one.view.exchange
        if facts.get("error"):
            got = f"{plural(len(facts.get('chunks') or ()), 'chunk')} of the reply had arrived"
            what = "request"
            if trace.meta.get("mode") == "trace" and one.view.chat == NONE:
                what, got = "call", ""  # of a model in the program itself
            where = f"The {one.name} {what} failed: " if len(found.passes) > 1 else f"The {what} failed: "
            layer = int(facts.get("error_layer") or 8)
            yield Finding(layer, where + str(facts["error"]), got, str(facts.get("fix") or ""), "fail")


def _left(trace: Trace, found: Analysis) -> Iterator[Finding]:
    yield from left_with(trace)


def _different_replies(trace: Trace, found: Analysis) -> Iterator[Finding]:
    if trace.meta.get("mode") == "trace":
        return  # a program's own calls ask for different things
    found_at = _compare.replies(trace, {n: one.view for n, one in found.passes.items() if not one.beyond_steps})
    if found_at is None:
        return
    left, right = found_at["passes"]
    if "token" in found_at:
        shown = [f"{name} {pair[0][0]} {pair[0][1]!r}" for name, pair in
                 ((left, found_at["left"]), (right, found_at["right"])) if pair]  # fmt: skip
        evidence = f"first at token {found_at['token']}: {', '.join(shown)}"
    else:
        evidence = f"first at character {found_at['character']}"
    sentence = f"The {left} and {right} passes produced different tokens, so their times are of different work."
    yield Finding(6, sentence, evidence, "leave --temperature at 0; compare dtype and kernels between the runs", "warn")


def _reply_cut(trace: Trace, found: Analysis) -> Iterator[Finding]:
    facts = found.main.view.exchange
    if facts.get("finish_reason") == "length":
        count = facts.get("output_tokens")
        text = plural(count, "output token") if isinstance(count, int) else ""
        yield Finding(8, "The reply was cut off at the token limit.", text, f"raise {_most_tokens(trace)}", "ok")
    if facts.get("finish_reason") == "abort":
        count = facts.get("output_tokens")
        text = f"after {plural(count, 'output token')}" if isinstance(count, int) else ""
        yield Finding(8, "The request was aborted before its reply was whole, as when its client hangs up.", text, "",
                      "warn")  # fmt: skip
    asked = found.main.view.chat != NONE and trace.attributes(found.main.view.chat).get("gen_ai.operation.name")
    if asked and facts and found.main.view.whole and not facts.get("chunks"):
        yield Finding(8, "The server answered without any content.", f"finish reason {facts.get('finish_reason')!r}",
                      f"raise {_most_tokens(trace)}, or look at what the chat template makes of the prompt",
                      "warn")  # fmt: skip


def _most_tokens(trace: Trace) -> str:
    """How whoever asked says how long a reply may be: a program has no options of ours."""
    return "the call's max_tokens" if trace.meta.get("mode") == "trace" else "--max-tokens"


def _token_counts(trace: Trace, found: Analysis) -> Iterator[Finding]:
    counted = found.main.view.exchange.get("input_tokens")
    for row in found.main.view.rows:
        if trace.layer[row] == 7 and name_of(trace, row) in ("encode", "tokenize"):
            seen = trace.attributes(row).get("tokentrace.tokens.count")
            if isinstance(seen, int) and isinstance(counted, int) and seen != counted:
                sentence = f"The tokenizer made {seen} prompt tokens, the server's usage says {counted}."
                yield Finding(7, sentence, "", "look at the chat template and at added special tokens", "warn")
            return


def _prefix_cache(trace: Trace, found: Analysis) -> Iterator[Finding]:
    served: list[str] = []
    whole = 0
    for one in found.passes.values():
        cached = one.cached_tokens
        prompt = one.view.exchange.get("input_tokens")
        if cached:
            served.append(one.name)
            of = f" of {prompt}" if isinstance(prompt, int) else ""
            whole = max(whole, cached)
            text = f"{whole}{of}"
    if not served:
        return
    main = found.main
    if main.name not in served:
        return
    sentence = f"The prefix cache served {text} prompt tokens in the {listed(served)} pass{'es' * (len(served) > 1)}"
    cold = found.passes.get("cold")
    evidence = ""
    if cold is not None and cold.name not in served:
        sentence += "; only the cold pass computed the whole prompt"
        if cold.ttft_ns is not None and main.ttft_ns is not None:
            evidence = f"time to first token {duration(cold.ttft_ns)} cold, {duration(main.ttft_ns)} {main.name}"
    yield Finding(6, f"{sentence}.", evidence, "", "ok")


def _cold(trace: Trace, found: Analysis) -> Iterator[Finding]:
    cold, warm = found.passes.get("cold"), found.passes.get("warm")
    if (
        cold is None
        or warm is None
        or not found.cold_sentence
        or cold.wall_ns < 1.2 * warm.wall_ns
        or cold.wall_ns - warm.wall_ns < _SMALL_NS
    ):
        return
    evidence = f"{duration(cold.wall_ns)} cold, {duration(warm.wall_ns)} warm"
    compiled = next((e.extra_ns for e in found.cold_extra if e.layer == 2 and e.extra_ns > 0), 0)
    fix = "keep the compile caches between starts: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR" if compiled else ""
    yield Finding(2 if compiled else 5, found.cold_sentence, evidence, fix, "ok")


def _compiled(trace: Trace, view: PassView) -> list[int]:
    """What a compiler said it compiled. What is known by a cache's files has a finding of its own."""
    return [row for row in view.rows if trace.layer[row] == 2 and name_of(trace, row).startswith("compile ")
            and trace.attributes(row).get("tokentrace.jit.source") != "files"]  # fmt: skip


def _compiled_again(trace: Trace, found: Analysis) -> Iterator[Finding]:
    warm = found.passes.get("warm")
    if warm is None:
        return
    rows = _compiled(trace, warm.view)
    spent = sum(ns for (layer, _), ns in warm.own.items() if layer == 2)
    if rows and spent >= _SMALL_NS:
        names = sorted({name_of(trace, r) for r in rows})
        yield Finding(2, f"Something was compiled again in the warm pass, {duration(spent)}.", listed(names),
                      "see what changed its shapes or guards: TORCH_LOGS=recompiles", "warn")  # fmt: skip


def _compiled_for_it(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """Of a request that nothing is compared with: what it waited for while something was compiled."""
    main = found.main
    spent = sum(ns for (layer, _), ns in main.own.items() if layer == 2)
    if main.name == "warm" or spent < max(_SMALL_NS, COMPILING_SHARE * main.wall_ns):
        return
    rows = [row for row in _compiled(trace, main.view) if trace.layer[trace.parent[row]] != 2]
    if not rows:
        return
    rows.sort(key=lambda r: trace.start_ns[r] - trace.end_ns[r])
    where = ""
    if trace.layer[trace.parent[rows[0]]] in (6, 5):
        where = f", {'inside' if len(rows) == 1 else 'most of it inside'} `{name_of(trace, trace.parent[rows[0]])}`"
    what = dict.fromkeys(str(trace.attributes(r).get("tokentrace.jit.function") or name_of(trace, r)) for r in rows)
    yield Finding(
        2, f"The request waited {duration(spent)} ({share(spent, main.wall_ns)}) for something to be compiled{where}.",
        listed(list(what)), "send such a request once before others come, and keep the compile caches between starts: "
        "TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR", "warn",
    )  # fmt: skip


def _looked_up(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """What the compile caches gave, in each pass that asked them."""
    for one in found.passes.values():
        facts = one.view.states.get(2, {}).get("facts") or {}
        hits, misses = int(facts.get("cache_hit") or 0), int(facts.get("cache_miss") or 0)
        if not hits + misses:
            continue
        where = f" in the {one.name} pass" if len(found.passes) > 1 else ""
        sentence = f"The compile caches gave {plural(hits, 'hit')} and {plural(misses, 'miss', 'misses')}{where}"
        if facts.get("saved_ns"):
            sentence += f", which saved {duration(int(facts['saved_ns']))} of compiling as the compiler reckons it"
        spent = sum(ns for (layer, _), ns in one.own.items() if layer == 2)
        if hits and not misses and spent >= _SMALL_NS:
            sentence += f"; loading what they hold and tracing the model took the {duration(spent)} of layer 2"
        yield Finding(2, f"{sentence}.", str(facts.get("tokentrace.jit.caches") or ""), "", "ok")


def _facts_of_caches(trace: Trace, found: Analysis) -> Iterator[Finding]:
    told: dict[str, None] = {}
    for one in found.passes.values():
        facts = one.view.states.get(2, {}).get("facts") or {}
        told.update(dict.fromkeys(map(str, facts.get("findings") or ())))
    for sentence in told:
        yield Finding(2, sentence[:1].upper() + sentence[1:].rstrip(".") + ".", "", "", "warn")


def _unattributed(trace: Trace, found: Analysis) -> Iterator[Finding]:
    main = found.main
    if main.unattributed_ns is None or main.unattributed_ns <= max(0, FREE_SHARE * main.wall_ns):
        return
    program = trace.meta.get("mode") == "trace"
    if program and not main.view.exchange:
        return  # nothing was seen in the block: there is no request to speak of
    size = f"{duration(main.unattributed_ns)} ({share(main.unattributed_ns, main.wall_ns)})"
    left_out = [number for number, state in main.view.states.items() if state.get("reason") == LEFT_OUT]
    if left_out and trace.meta.get("mode") != "url":
        sentence = f"{size} of the request belongs to no layer that was looked at."
        without = listed([str(number) for number in sorted(left_out, reverse=True)], 8)
        yield Finding(8, sentence, f"--layers left out {without}", "leave --layers away", "unknown")
        return
    if program and main.view.chat == NONE and not main.own:
        yield Finding(6, f"{size} of the call belongs to no layer that was seen.", "", "", "warn")
        return
    if not any(layer < 8 for layer, _ in main.own):
        if trace.meta.get("mode") == "attach" and not trace.meta.get("prompt") and main.view.exchange.get("error"):
            return  # somebody's request, refused where it came in: we looked from inside
        sentence = f"{size} of the request lies in the server and on the network, which cannot be seen from here."
        fix = "see how the other layers look on the local engine: tokentrace run without --url"
        if program:
            fix = "look inside the server on its own machine, while the program runs: tokentrace attach URL"
        yield Finding(8, sentence, "", fix, "unknown")
        return
    if only_told(found):
        sentence = f"{size} of the request is known by the server's own account only, not which layer took it."
        yield Finding(6, sentence, "", "look inside it on its own machine: tokentrace attach URL", "unknown")
        return
    gap = found.gaps[0]
    evidence = f"longest: {duration(gap.length_ns)} between {gap.before} and {gap.after}, in {gap.around}"
    after = after_last_write(trace, found)
    if 2 * after > main.unattributed_ns:
        size = f"{duration(after)} ({share(after, main.wall_ns)})"
        sentence = f"{size} of the request lies behind the server's last write: on the way back, or in the client."
        yield Finding(8, sentence, evidence, FIX_CLIENT, "warn")
        return
    yield Finding(6, f"{size} of the request belongs to no layer that was seen.", evidence, "", "warn")


def _dilation(trace: Trace, found: Analysis) -> Iterator[Finding]:
    deep, warm = found.passes.get("deep"), found.passes.get("warm")
    if deep is None or warm is None or deep.dilation is None or not any(layer in (3, 4) for layer, _ in deep.own):
        return
    parts = []
    for phase in ("prefill", "decode"):
        slower = _compare.step_dilation(deep.steps, warm.steps, phase)
        if slower is not None:
            many = sum(step.took_part_as(phase) for step in deep.steps) > 1
            told = f"{phase} steps {slower:.2f} times (median)" if many else f"the {phase} step {slower:.2f} times"
            parts.append(told)
    ratio, times = deep.dilation, "its warm time"
    waits = _compare.waited(trace, deep.view), _compare.waited(trace, warm.view)
    if abs(waits[0] - waits[1]) > WAITED_SHARE * warm.wall_ns and warm.wall_ns > waits[1]:
        # How long it waited for others is none of the profiler's doing.
        ratio = (deep.wall_ns - waits[0]) / (warm.wall_ns - waits[1])
        times += ", the waits in the queue left out"
        parts.insert(0, f"it waited {duration(waits[0])} in the deep pass and {duration(waits[1])} in the warm one")
    status = "warn" if ratio > STRETCHED else "ok"
    times = f"{ratio:.2f} times {times}"
    if ratio < 1:
        sentence = f"Deep probing did not slow the request: it took {times}."
    elif status == "warn":
        sentence = f"Deep probing stretched the request to {times}; take the shares below a step as rough."
    else:
        sentence = f"Deep probing stretched the request to {times}."
    yield Finding(4, sentence, ", ".join(parts), "", status)


def _recorded_in_part(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """A profiler records the first steps of a long reply; in three passes the others are shared out by these."""
    main = found.main
    if "deep" in found.passes and main.name != "deep":
        return
    seen = _split.looked_into(trace, main.own_by_row)
    if not seen.without:
        return
    sentence = (
        f"The profiler recorded {seen.within} of {seen.without + seen.within} forward passes; the "
        f"{duration(seen.without_ns)} of the others stand under layer 5 undivided, so layers 4 and 3 took more than is "
        "shown."
    )
    evidence = f"{share(seen.without_ns, main.wall_ns)} of the request"
    fix = "leave --once away, which shares them out, or ask for a shorter reply: --max-tokens"
    if trace.meta.get("mode") == "trace":
        fix = "ask for a shorter reply: the call's max_tokens"
    if trace.meta.get("mode") == "attach":
        fix = "raise --steps"
        if _spent_on_others(main.view, seen):
            evidence += "; the profiler records the first steps, whosever they are, and spent some on other requests"
            fix = "watch longer, for a request that it records from its first step on, or raise --steps"
        if trace.meta.get("prompt"):  # our own
            fix = "leave --once away, which shares them out, or raise --steps"
    yield Finding(5, sentence, evidence, fix, "warn")


def _spent_on_others(view: PassView, seen: _split.LookedInto) -> bool:
    """Did the profiler record steps that did not serve this request, or was it busy with others when it began?"""
    recordings = (view.states.get(4, {}).get("facts") or {}).get("profiler") or ()
    steps = max((int(one.get("recorded_steps") or 0) for one in recordings), default=0)
    return steps > seen.at_most or not seen.first


def _queue_wait(trace: Trace, found: Analysis) -> Iterator[Finding]:
    main = found.main
    waited = _compare.waited(trace, main.view)
    whole = main.ttft_ns or main.wall_ns
    if waited > 5 * _SMALL_NS and waited > whole // 4:
        first = main.steps[0] if main.steps else None
        others = first.batch_size - 1 - first.siblings if first is not None and first.batch_size else 0
        evidence = f"{duration(waited)} of {duration(whole)}"
        if others:
            evidence += f"; its first step held {plural(others, 'other request')}"
        sentence = "The request waited in the engine's queue for much of its time to the first token."
        if (main.view.states.get(6, {}).get("facts") or {}).get("steps") == 0:  # the engine was seen, and did none
            sentence = "The request waited in the engine's queue and was never scheduled."
        elif main.ttft_ns is None:
            sentence = "The request waited in the engine's queue for much of its time."
        yield Finding(6, sentence, evidence, "send fewer requests at once, or add capacity", "warn")


def _shared(trace: Trace, found: Analysis) -> Iterator[Finding]:
    steps = found.steps
    crowded = [s.batch_size for s in steps if s.batch_size is not None and s.batch_size - s.siblings > 1]
    if crowded:
        sentence = f"{len(crowded)} of {plural(len(steps), 'step')} also served other requests."
        yield Finding(6, sentence, f"up to {max(crowded)} requests in a batch", "", "ok")
    preempted = sum(s.preempted for s in steps)
    if preempted:
        yield Finding(6, f"The engine took KV blocks away from {plural(preempted, 'request')} during these steps.", "",
                      "give the KV cache more memory, or admit fewer requests at once", "warn")  # fmt: skip


def _stitching(trace: Trace, found: Analysis) -> Iterator[Finding]:
    told = trace.meta.get("stitch")
    if not isinstance(told, dict):
        return
    early = told.get("clamped_early_max_ns", 0)
    if early > _SMALL_NS:
        sentence = "Some spans began before what they are part of and were cut"
        if len(set(filter(None, trace.process))) > 1:  # one process has one clock
            sentence += ": the clocks may not agree"
        yield Finding(8, f"{sentence}.", f"by up to {duration(early)}", "", "unknown")
    lost = told.get("cycles", 0) + told.get("repaired", 0) + told.get("duplicate_keys", 0)
    if lost:
        yield Finding(6, f"{plural(lost, 'record')} contradicted others and hang where their times put them.",
                      "", "", "unknown")  # fmt: skip


_PARTS: tuple[Callable[[Trace, Analysis], Iterator[Finding]], ...] = (
    _failed, _left, _different_replies, _reply_cut, _token_counts, _unattributed, _cold, _compiled_again,
    _compiled_for_it, _looked_up,
    cache_use, _facts_of_caches,
    _prefix_cache, own_account, told_by_metrics, _queue_wait, _shared, bursts, late_token, _dilation,
    _recorded_in_part, _stitching,
)  # fmt: skip
#: Those that are true of a request whose spans were folded, its steps and tokens among them.
_OF_NO_SPANS = (_failed, _left, _reply_cut, _looked_up, _facts_of_caches, _stitching)
