"""The server's own view of one HTTP request, from what the agent's group "http" wrote down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokentrace.exchange import Exchange
from tokentrace.model import DOWN, KIND_SERVER, STATUS_ERROR, STATUS_UNSET, UP, Record
from tokentrace.probe import Raw
from tokentrace.probes._request import same_span

LAYER = 8


def server_side(raws: Iterable[Raw], exchange: Exchange, request_id: str = "") -> list[Record]:
    """Records of our own requests: those that carried our traceparent, or have the id that the reply gave.

    Several belong to us when the first one was refused and another followed. Others' requests are left out.
    """
    kept = list(raws)
    ours = _ours(kept, exchange, request_id)
    found: list[Record] = []
    for raw in kept:
        rid = str(raw.data.get("rid", ""))
        if rid in ours:
            record = _record(raw, rid, ours[rid], exchange)
            if record is not None:
                found.append(record)
    return found


def _ours(raws: list[Raw], exchange: Exchange, request_id: str) -> dict[str, str]:
    """Server ids of our requests, and how each was recognised."""
    found: dict[str, str] = {}
    for raw in raws:
        rid = str(raw.data.get("rid", ""))
        if not rid or raw.name != "request":
            continue
        if same_span(str(raw.data.get("traceparent", "")), exchange.traceparent):
            found[rid] = "traceparent"
        elif rid in (exchange.response_id, request_id):
            found.setdefault(rid, "request_id")
    return found


def _record(raw: Raw, rid: str, join: str, exchange: Exchange) -> Record | None:
    key = f"request-http:{rid}"
    if raw.name == "request":
        method, path = str(raw.data.get("method") or "POST"), str(raw.data.get("path") or "")
        attributes: dict[str, Any] = {
            "http.request.method": method,
            "url.path": path,
            "tokentrace.request_id": rid,
        }
        status = raw.data.get("status")
        if isinstance(status, int) and status:
            attributes["http.response.status_code"] = status
        error = raw.data.get("error")
        if error:
            attributes["error.type"] = str(error)[:200]
        failed = bool(error) or (isinstance(status, int) and status >= 500)
        return Record(
            f"{method} {path}",
            LAYER,
            raw.start_ns,
            raw.end_ns,
            attributes,
            process=raw.process,
            thread=raw.thread,
            parent_id=exchange.span_id,
            key=key,
            request=rid,
            join=join,
            flow=True,
            envelope=True,
            kind=KIND_SERVER,
            status=STATUS_ERROR if failed else STATUS_UNSET,
            status_message=str(error)[:200] if error else "",
        )
    if raw.name not in ("parse", "write"):
        return None
    down = raw.name == "parse"
    size = raw.data.get("bytes")
    attributes = {"tokentrace.bytes": size} if isinstance(size, int) else {}
    if down:
        attributes["tokentrace.form.in"] = "HTTP body" + (f", {size} bytes" if size else "")
        attributes["tokentrace.form.out"] = "messages"
    else:
        attributes["tokentrace.chunk.index"] = raw.data.get("index", 0)
    return Record(
        "parse request" if down else "write chunk",
        LAYER,
        raw.start_ns,
        raw.end_ns,
        attributes,
        DOWN if down else UP,
        process=raw.process,
        thread=raw.thread,
        parent_key=key,
        request=rid,
        join="request_id",
        flow=True,
    )
