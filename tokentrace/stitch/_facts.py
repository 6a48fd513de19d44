"""What the client saw, as plain values that a trace keeps beside its spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokentrace.exchange import TOKEN_KINDS, Exchange

#: Chunks kept one by one; a longer reply keeps its first ones, and the counts stay whole.
MAX_CHUNKS = 20_000


def exchange_facts(exchange: Exchange) -> dict[str, Any]:
    """JSON values; times of chunks are ns after the request's start. Holds no header and no key."""
    error = exchange.error
    details = (exchange.usage or {}).get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    chunks = [c for c in exchange.chunks if c.kind in TOKEN_KINDS and c.choice == 0]
    return {
        "url": exchange.url,
        "model": exchange.model,
        "response_model": exchange.response_model,
        "response_id": exchange.response_id,
        "start_ns": exchange.start_ns,
        "wall_ns": exchange.wall_ns,
        "ttft_ns": exchange.ttft_ns,
        "pace": exchange.pace.as_dict(),
        "input_tokens": exchange.input_tokens,
        "output_tokens": exchange.output_tokens,
        "cached_tokens": cached if isinstance(cached, int) else None,
        "text": exchange.text,
        "reasoning": exchange.reasoning,
        "finish_reason": exchange.finish_reason,
        "status_code": exchange.status_code,
        "complete": exchange.complete,
        "interrupted": exchange.interrupted,
        "let_go": exchange.let_go,
        "request_bytes": exchange.request_bytes,
        "response_bytes": exchange.response_bytes,
        "chunk_count": len(exchange.chunks),
        "streamed": exchange.streamed,
        "chunks": [[c.time_ns - exchange.start_ns, c.text] for c in chunks[:MAX_CHUNKS]],
        "error": str(error) if error is not None else "",
        "error_layer": error.layer if error is not None else 0,
        "fix": error.fix if error is not None else "",
        "notes": list(exchange.notes),
    }


def plain(value: Any) -> Any:
    """The value in JSON's own types; what has none becomes its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)
