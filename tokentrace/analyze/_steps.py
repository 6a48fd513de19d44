"""The engine's steps and the reply's tokens, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokentrace.analyze._passes import NONE, PassView, name_of
from tokentrace.model import Trace


@dataclass(slots=True)
class StepRow:
    """One step that served the request. Counts are None where the engine did not say."""

    index: int | None
    phase: str
    start_ns: int  # after the request's start
    wall_ns: int
    tokens: int | None  # of this request
    batch_tokens: int | None
    batch_size: int | None
    cached_tokens: int | None
    forward_ns: int | None
    sample_ns: int | None
    token_id: int | None
    preempted: int
    siblings: int = 0  # of the batch: replies to the same request, where it asked for several
    role: str = ""  # what it did for this request, prefill or decode, where `phase` is that of the whole batch
    after_end: bool = False  # it was under way when the request ended: nothing of it is in the reply

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def took_part_as(self, role: str) -> bool:
        """Whether it is one of the request's prefill, decode or (not known which) mixed steps."""
        return (self.role or self.phase) == role and not self.after_end


@dataclass(slots=True)
class TokenRow:
    """One token of the reply. `arrival_ns` after the request's start; None when it came with another's chunk, or with
    a reply that was not streamed."""

    index: int
    text: str
    id: int | None
    arrival_ns: int | None
    itl_ns: int | None  # since the arrival before it

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def steps(trace: Trace, view: PassView) -> list[StepRow]:
    """In the order they ran; of several processes that ran the same steps, those of the first."""
    rows = [r for r in view.rows if trace.layer[r] == 6 and name_of(trace, r) == "step"]
    if not rows:
        return []
    first = min(rows, key=lambda r: trace.start_ns[r])
    rows = sorted((r for r in rows if trace.process[r] == trace.process[first]), key=lambda r: trace.start_ns[r])
    inside: dict[int, dict[str, int]] = {row: {} for row in rows}
    for row in view.rows:
        parent = trace.parent[row]
        if trace.layer[row] == 5 and parent in inside:
            length = trace.end_ns[row] - trace.start_ns[row]
            name = name_of(trace, row)
            inside[parent][name] = inside[parent].get(name, 0) + length
    result: list[StepRow] = []
    for row in rows:
        told = trace.attributes(row)

        def number(name: str, told: dict[str, Any] = told) -> int | None:
            value = told.get(name)
            return value if isinstance(value, int) and not isinstance(value, bool) else None

        result.append(
            StepRow(
                index=number("tokentrace.step.index"),
                phase=str(told.get("tokentrace.step.phase", "")),
                start_ns=trace.start_ns[row] - view.start_ns,
                wall_ns=trace.end_ns[row] - trace.start_ns[row],
                tokens=number("tokentrace.step.request_tokens"),
                batch_tokens=number("tokentrace.step.scheduled_tokens"),
                batch_size=number("tokentrace.step.batch_size"),
                cached_tokens=number("tokentrace.step.cached_tokens"),
                forward_ns=inside[row].get("forward"),
                sample_ns=inside[row].get("sample"),
                token_id=number("tokentrace.token.id"),
                preempted=number("tokentrace.step.preempted") or 0,
                siblings=number("tokentrace.step.siblings") or 0,
                after_end=_after_end(trace, view, row),
            )
        )
        result[-1].role = _role(result, view.exchange.get("input_tokens"))
    return result


def _after_end(trace: Trace, view: PassView, row: int) -> bool:
    if view.chat == NONE or trace.end_ns[row] < view.end_ns:
        return False
    return trace.end_ns[row] > view.end_ns or "tokentrace.clamped_ns" in trace.attributes(row)


def _role(so_far: list[StepRow], prompt: Any) -> str:
    """What the last of these steps did for its request. A batch may hold prompts of some and single tokens of others;
    and a long prompt may go through several steps."""
    step = so_far[-1]
    if step.phase != "mixed":
        return step.phase
    if step.cached_tokens is not None:  # told of a request's first step only
        return "prefill"
    before = so_far[:-1]
    if step.tokens is None or not before:
        return ""
    done = sum(one.tokens or 0 for one in before) + (before[0].cached_tokens or 0)
    return "prefill" if isinstance(prompt, int) and done < prompt else "decode"


def decoded(trace: Trace, view: PassView) -> list[tuple[int, str]]:
    """(id, text) of each token as the tokenizer turned it back into text, in order."""
    rows = [r for r in view.rows if trace.layer[r] == 7 and name_of(trace, r) == "decode"]
    found = []
    for row in sorted(rows, key=lambda r: trace.start_ns[r]):
        told = trace.attributes(row)
        if isinstance(told.get("tokentrace.token.id"), int):
            text = str(told.get("tokentrace.form.out", ""))
            found.append((told["tokentrace.token.id"], text[1:-1] if text[:1] == text[-1:] == '"' else text))
    return found


def tokens(trace: Trace, view: PassView) -> list[TokenRow]:
    """The reply's tokens as they arrived, with their ids where the tokenizer was seen.

    Without a look at the tokenizer a row is a chunk, which may hold several tokens. Ids are given only where tokens
    and chunks can be told to be the same ones: as many tokens with text as chunks with text. A reply that was not
    streamed is one row, and has no time of its own.
    """
    if view.exchange.get("streamed") is False:
        whole = "".join(str(text) for _, text in view.exchange.get("chunks", ()))
        return [TokenRow(0, whole, None, None, None)] if whole else []
    chunks = [(int(at), str(text)) for at, text in view.exchange.get("chunks", ()) if text]
    known = decoded(trace, view)
    shown = [token for token in known if token[1]]
    if not shown and len(known) in (len(chunks), len(chunks) + 1):
        # The tokenizer's texts were not recorded; of one token more than chunks the last is the end mark.
        texts = [*(text for _, text in chunks), ""]
        known = [(known_id, text) for (known_id, _), text in zip(known, texts, strict=False)]
        shown = known[: len(chunks)]
    if known and len(shown) == len(chunks):
        arrivals = iter(chunks)
        pairs: list[tuple[str, int | None, int | None]] = []
        for known_id, text in known:
            if text:
                arrived, whole = next(arrivals)
                pairs.append((whole, known_id, arrived))
            else:
                pairs.append(("", known_id, None))
    else:
        pairs = [(text, None, arrived) for arrived, text in chunks]
    result: list[TokenRow] = []
    last: int | None = None
    for index, (text, token_id, at) in enumerate(pairs):
        result.append(TokenRow(index, text, token_id, at, at - last if at is not None and last is not None else None))
        last = last if at is None else at
    return result
