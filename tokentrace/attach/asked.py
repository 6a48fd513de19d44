"""What a server says of itself over HTTP: which engine it is, which version, whether it serves models at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokentrace.client.chunks import parse_json
from tokentrace.client.fetch import fetch
from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError

#: A stalled server answers nothing; it can be found by its processes all the same.
_EACH_S = 3.0


@dataclass(slots=True)
class Told:
    """`serves`: whether it has an OpenAI-compatible list of models. `error`: why it did not answer, None if it did."""

    engine: str = ""
    version: str = ""
    serves: bool = False
    error: EndpointError | None = None


def ask(endpoint: Endpoint) -> Told:
    """Two GET requests, /v1/models and /version; they make no tokens."""
    server = HttpServer(endpoint)
    told = Told()
    try:
        answer = fetch(endpoint, "GET", server.url("/v1/models") + endpoint.query, timeout_s=_EACH_S)
    except EndpointError as error:
        told.error = error
        return told
    data = _object(answer.body).get("data") if answer.status == 200 else None
    # Without its key a server says so as JSON, and is one all the same.
    told.serves = isinstance(data, list) or (answer.status in (401, 403) and answer.is_json)
    owners = {str(one.get("owned_by")) for one in data or () if isinstance(one, dict)}
    told.engine = "vllm" if "vllm" in owners else "tokentrace" if "tokentrace" in owners else ""
    try:
        answer = fetch(endpoint, "GET", server.url("/version"), timeout_s=_EACH_S)
    except EndpointError:
        return told
    version = _object(answer.body).get("version") if answer.status == 200 else None
    told.version = version if isinstance(version, str) else ""
    return told


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
