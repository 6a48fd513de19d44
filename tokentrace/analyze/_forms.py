"""The form of the token going into and coming out of each layer, with the values of this run.

From the spans' `tokentrace.form.in` and `.out`; where no span says, the words of layers.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from tokentrace.analyze import _metrics_told
from tokentrace.analyze._passes import PassView, name_of
from tokentrace.analyze._sweep import direction_of
from tokentrace.layers import Layer
from tokentrace.model import DOWN, UP, Trace
from tokentrace.wording import plural

Form = tuple[str, str]
IN, OUT = "tokentrace.form.in", "tokentrace.form.out"
#: For each layer and direction the spans to ask, best first, for the form going in and the one coming out.
_ASK: dict[tuple[int, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    (8, DOWN): (("send", "chat *"), ("send",)),
    (8, UP): (("stream",), ("stream", "chat *")),
    (7, DOWN): (("chat template", "tokenize", "encode"), ("encode", "tokenize")),
    (7, UP): ((), ()),
    (6, DOWN): (("submit",), ()),
    (6, UP): ((), ()),
    (5, DOWN): (("embed_tokens", "*embed*", "forward"), ("embed_tokens", "*embed*")),
    (5, UP): (("sample", "lm_head"), ("sample",)),
    (1, DOWN): (("power",), ("power",)),
}


def form(trace: Trace, views: Iterable[PassView], layer: Layer, direction: str) -> Form:
    """(in, out); each from the first pass that has it."""
    words = layer.form_down if direction == DOWN else layer.form_up
    found_in = found_out = ""
    for view in views:
        rows = [r for r in view.rows if trace.layer[r] == layer.number and direction_of(trace, r) == direction]
        if layer.number == 8 and direction == UP and view.chat >= 0:
            rows.append(view.chat)
        special = _SPECIAL.get((layer.number, direction))
        told = special(trace, rows) if special else ("", "")
        if layer.number == 6 and not any(told):
            # The engine's figures from outside are one span, on the way down, and tell of both ways.
            told = _metrics_told.form(trace, [r for r in view.rows if trace.layer[r] == 6], direction)
        if (layer.number, direction) == (7, UP) and not told[1]:
            first = next((str(text) for _, text in view.exchange.get("chunks", ()) if text), "")
            told = told[0], f'"{first[:60]}"' if first else ""
        ask_in, ask_out = _ASK.get((layer.number, direction), (("*",), ("*",)))
        if direction == UP and layer.number in (5, 6) and not told[1]:
            sampled = first_token(trace, view)
            if sampled is not None:
                told = (told[0], str(sampled)) if layer.number == 5 else ("sampled token", f"id {sampled}")
        found_in = found_in or told[0] or _first(trace, rows, ask_in, IN)
        found_out = found_out or told[1] or _first(trace, rows, ask_out, OUT)
        if found_in and found_out:
            break
    return found_in or words[0], found_out or words[1]


def _first(trace: Trace, rows: list[int], patterns: tuple[str, ...], attribute: str) -> str:
    shapes = {index for index, names in enumerate(trace.shapes) if attribute in names}
    for pattern in patterns:
        for row in rows:
            if trace.shape[row] in shapes and fnmatchcase(name_of(trace, row), pattern):
                told = str(trace.attributes(row)[attribute])
                if told and told != '""':
                    return told
    return ""


def _queue_down(trace: Trace, rows: list[int]) -> Form:
    for row in rows:
        told = trace.attributes(row)
        if name_of(trace, row) != "step" or "tokentrace.step.batch_size" not in told:
            continue
        text = f"batch of {told['tokentrace.step.batch_size']}"
        used, total = told.get("tokentrace.step.kv_blocks_used"), told.get("tokentrace.step.kv_blocks_total")
        if isinstance(used, int) and isinstance(total, int) and total:
            text += f", {used} of {total} KV blocks"
        return "", text
    return "", ""


def first_token(trace: Trace, view: PassView) -> int | None:
    """Id of the first token sampled, as the engine's step has it, else as the tokenizer got it."""
    for name, layer in (("step", 6), ("sample", 5), ("decode", 7)):
        rows = [r for r in view.rows if trace.layer[r] == layer and name_of(trace, r) == name]
        for row in sorted(rows, key=lambda r: trace.start_ns[r]):
            sampled = trace.attributes(row).get("tokentrace.token.id")
            if isinstance(sampled, int):
                return sampled
    return None


def _decode(trace: Trace, rows: list[int]) -> Form:
    """Of the first token that has text, in and out together."""
    decodes = [trace.attributes(r) for r in rows if name_of(trace, r) == "decode"]
    for told in decodes:
        if told.get(OUT) not in (None, "", '""'):
            return str(told.get(IN, "")), str(told[OUT])
    return (str(decodes[0].get(IN, "")), "") if decodes else ("", "")


def _operator(trace: Trace, rows: list[int]) -> Form:
    shapes = {index for index, names in enumerate(trace.shapes) if "tokentrace.op.input_shapes" in names}
    rows = [r for r in rows if trace.shape[r] in shapes]
    if not rows:
        return "", ""
    longest = max(rows, key=lambda r: (trace.end_ns[r] - trace.start_ns[r], -r))
    taken = str(trace.attributes(longest)["tokentrace.op.input_shapes"])
    return f"tensors {taken[:60]}{'…' if len(taken) > 60 else ''}", name_of(trace, longest)


def _kernel(trace: Trace, rows: list[int]) -> Form:
    count: dict[str, int] = {}
    for row in rows:
        kind = name_of(trace, row).split(" ", 1)[0]
        count[kind] = count.get(kind, 0) + 1
    words = {"kernel": ("kernel", ""), "leaf": ("leaf operator", ""), "copy": ("copy", "copies")}
    return "", ", ".join(plural(count[kind], *word) for kind, word in words.items() if count.get(kind))


_SPECIAL: dict[tuple[int, str], Callable[[Trace, list[int]], Form]] = {
    (6, DOWN): _queue_down,
    (7, UP): _decode,
    (4, DOWN): _operator,
    (4, UP): _operator,
    (3, DOWN): _kernel,
    (3, UP): _kernel,
}
