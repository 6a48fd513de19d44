"""The endpoint's other addresses, for what looks from outside: /tokenize, /metrics, /v1/models, /version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tokentrace.client.chunks import parse_json
from tokentrace.client.fetch import Answer, failed, fetch
from tokentrace.client.lookaround import model_ids
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import server_root
from tokentrace.errors import EndpointError


class HttpServer:
    """Implements `probe.Server`.

    A path like /metrics belongs under the base URL without its version, so that a server behind a path prefix is found;
    one that begins with /v1/ belongs under the base URL itself. No redirect is followed, so the key stays at the host.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.root = server_root(endpoint.base_url)

    def url(self, path: str) -> str:
        path = "/" + path.lstrip("/")
        if path.startswith("/v1/") and self.root != self._endpoint.base_url:
            return self._endpoint.base_url + path[3:]
        return self.root + path

    def get_text(self, path: str, *, timeout_s: float = 2.0) -> str:
        """Body of a GET. Raises EndpointError when the answer is not 200 or longer than 8 MiB."""
        return self._ask("GET", path, b"", timeout_s).body.decode("utf-8", "replace")

    def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
        """Parsed JSON answer of a POST. Raises EndpointError when it is not there or not JSON."""
        return self._json(path, self._ask("POST", path, orjson.dumps(body), timeout_s))

    def models(self) -> list[str] | None:
        """Ids of the models it offers, None when it has no list."""
        return model_ids(self._endpoint)

    def _ask(self, method: str, path: str, body: bytes, timeout_s: float) -> Answer:
        url = self.url(path)
        answer = fetch(self._endpoint, method, url, body, timeout_s=timeout_s)
        if answer.status != 200:
            raise failed(self._endpoint, url, answer, timeout_s)
        return answer

    def _json(self, path: str, answer: Answer) -> Any:
        try:
            return parse_json(answer.body)
        except ValueError:
            raise EndpointError(
                f"{self.url(path)} did not answer with JSON", fix="check the base URL", layer=8, check="TT851"
            ) from None
