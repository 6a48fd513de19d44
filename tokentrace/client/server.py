"""The endpoint's other paths, for the probes that look from outside: /tokenize, /metrics, /v1/models, /version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tokentrace.client.chat import http_client
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError

_MAX_BYTES = 16 << 20


class HttpServer:
    """Implements `probe.Server`. Paths are relative to the host; bodies are bounded."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.base_url)
        path = parts.path.removesuffix("/v1").rstrip("/")
        self.root = f"{parts.scheme}://{parts.netloc}{path}"

    def get_text(self, path: str, *, timeout_s: float = 2.0) -> str:
        return self._fetch("GET", path, None, timeout_s).decode("utf-8", "replace")

    def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
        import orjson

        data = self._fetch("POST", path, orjson.dumps(body), timeout_s)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise EndpointError(f"{self.root}{path} does not answer with JSON", layer=8) from error

    def _fetch(self, method: str, path: str, content: bytes | None, timeout_s: float) -> bytes:
        import httpx

        url = self.root + path
        headers = {**self._endpoint.headers, **({"content-type": "application/json"} if content else {})}
        try:
            with (
                http_client(self._endpoint, timeout_s) as client,
                client.stream(method, url, content=content, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise EndpointError(f"{url} answers {response.status_code}", layer=8)
                found = b""
                for data in response.iter_bytes():
                    found += data
                    if len(found) > _MAX_BYTES:
                        raise EndpointError(f"{url} answers with more than {_MAX_BYTES >> 20} MiB", layer=8)
                return found
        except (httpx.HTTPError, OSError) as error:
            raise EndpointError(f"{url} does not answer", layer=8) from error
