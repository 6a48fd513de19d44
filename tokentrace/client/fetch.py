"""Small requests beside the chat: one GET or POST, a bounded answer, every failure diagnosed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tokentrace.client import keys, proxies
from tokentrace.client.diagnose import diagnose
from tokentrace.client.facts import KEPT_BYTES, Facts
from tokentrace.client.gate import hidden_error
from tokentrace.client.hiding import Hider
from tokentrace.client.settings import Endpoint
from tokentrace.client.transport import Outgoing, exchange, failures
from tokentrace.client.wire import Timeouts, Wire
from tokentrace.errors import EndpointError

#: vLLM's /metrics has some hundred kB.
MAX_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_json(self) -> bool:
        return self.body.lstrip()[:1] in (b"{", b"[") and "html" not in self.headers.get("content-type", "")


def hider_of(endpoint: Endpoint, headers: Mapping[str, str] | None = None) -> Hider:
    """Hides every key that a request to the endpoint sends, with these headers on top of its own."""
    bearer = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    found = [keys.secrets(one, endpoint.query) for one in (bearer, endpoint.headers, headers or {})]
    return Hider(dict.fromkeys(key for one in found for key in one))


def facts_of(endpoint: Endpoint, url: str, wire: Wire, timeout_s: float, environ: Mapping[str, str]) -> Facts:
    """Facts with everything that the endpoint's settings and the environment tell."""
    return Facts(
        url=url,
        base_url=endpoint.base_url,
        wire=wire,
        model=endpoint.model,
        hider=hider_of(endpoint),
        timeout_s=timeout_s,
        key_sent=bool(endpoint.api_key) or any(name.lower() == "authorization" for name in endpoint.headers),
        key_source=endpoint.source.get("api_key", ""),
        key_problem=endpoint.key_problem,
        key_hint=keys.hint(endpoint.api_key),
        key_service=keys.of_another_service(endpoint.api_key, endpoint.host),
        key_near=next(iter(keys.near_names(environ)), ""),
        key_variables=keys.set_variables(environ),
        past_proxy=proxies.past(environ, endpoint.host),
    )


def fetch(
    endpoint: Endpoint,
    method: str,
    url: str,
    body: bytes = b"",
    *,
    timeout_s: float,
    max_bytes: int = MAX_BYTES,
    environ: Mapping[str, str] | None = None,
) -> Answer:
    """The answer, whatever its status. `timeout_s` is for all of it. Raises EndpointError when none came."""
    environ = os.environ if environ is None else environ
    wire = Wire()
    limits = Timeouts(timeout_s, timeout_s, timeout_s, timeout_s)
    facts = facts_of(endpoint, url, wire, timeout_s, environ)
    facts.request_bytes = len(body)
    try:
        response = exchange(endpoint, Outgoing(method, url, body), wire, limits, environ=environ)
        try:
            facts.status, facts.headers = response.status, response.headers
            return Answer(response.status, response.headers, response.read(max_bytes))
        finally:
            response.close()
    except failures() as error:
        facts.error = error
        found = diagnose(facts)
        assert found is not None
        raise hidden_error(found, facts.hider) from None


def failed(endpoint: Endpoint, url: str, answer: Answer, timeout_s: float) -> EndpointError:
    """The diagnosis of an answer that is not 2xx."""
    facts = facts_of(endpoint, url, Wire(), timeout_s, os.environ)
    facts.wire.host, facts.wire.port = endpoint.host, endpoint.port
    facts.status, facts.headers, facts.body = answer.status, answer.headers, answer.body[:KEPT_BYTES]
    found = diagnose(facts)
    if found is not None:
        return hidden_error(found, facts.hider)
    return EndpointError(f"{url} answered with status {answer.status}", layer=8)
