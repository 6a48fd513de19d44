"""Real requests and a `probe.Server` over real sockets, for the tests of layers 7, 6 and 5."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk, Exchange


class UrlServer:
    """`probe.Server` over a real socket."""

    def __init__(self, root: str) -> None:
        self.root = root

    def get_text(self, path: str, *, timeout_s: float = 60.0) -> str:
        return self._fetch(urllib.request.Request(self.root + path), timeout_s)

    def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60.0) -> Any:
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        text = self._fetch(urllib.request.Request(self.root + path, data, headers), timeout_s)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EndpointError(f"{self.root}{path} does not answer with JSON") from error

    def _fetch(self, request: urllib.request.Request, timeout_s: float) -> str:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return str(answer.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            raise EndpointError(f"{request.full_url} answers {error.code}") from error
        except OSError as error:
            raise EndpointError(f"{request.full_url} does not answer") from error


def stream_chat(base_url: str, model: str, prompt: str, span_id: int = 0, **more: Any) -> Exchange:
    """One real streaming request, with the few facts of an Exchange that these probes read."""
    import httpx

    trace = f"00-{'ab' * 16}-{span_id:016x}-01" if span_id else ""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": True, "temperature": 0,
            "stream_options": {"include_usage": True}, **more}  # fmt: skip
    exchange = Exchange(f"{base_url}/chat/completions", model, span_id, trace, body, start_ns=time.time_ns())
    headers = {"traceparent": trace} if trace else {}
    with httpx.stream("POST", exchange.url, json=body, headers=headers, timeout=120) as response:
        exchange.status_code = response.status_code
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            exchange.response_id = event["id"]
            exchange.usage = event.get("usage") or exchange.usage
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                exchange.text += text
                exchange.chunks.append(Chunk(time.time_ns(), "content" if text else "other", text))
                exchange.finish_reason = choice.get("finish_reason") or exchange.finish_reason
    exchange.end_ns, exchange.complete = time.time_ns(), True
    return exchange
