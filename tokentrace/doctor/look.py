"""The server's other addresses, asked once and at the same time: models, version, health, metrics.

Only GET requests to the host that was given; bounded in time and size. A route that is not there is no failure: servers
differ in what they offer.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokentrace.client.causes import one_line
from tokentrace.client.chunks import parse_json
from tokentrace.client.fetch import fetch
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import server_root
from tokentrace.errors import EndpointError

#: vLLM's /metrics has some hundred kB; a health page or a list of models never that much.
_METRICS_BYTES = 2 * 2**20
_OTHER_BYTES = 2**20

LITELLM = "LiteLLM"
#: litellm/constants.py: DEFAULT_MODEL_CREATED_AT_TIME.
_LITELLM_CREATED = 1_677_610_602
#: The first word of a server's metrics -> its name, and what /v1/models says of the owner -> its name.
_BY_METRICS = {
    "vllm:": "vLLM", "sglang:": "SGLang", "tgi_": "Text Generation Inference", "llamacpp:": "llama.cpp",
    "tokentrace:": "tokentrace's local engine", "litellm_": "LiteLLM",
}  # fmt: skip
_BY_OWNER = {
    "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "library": "Ollama",
    "organization_owner": "LM Studio", "tokentrace": "tokentrace's local engine",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """What one address answered. `error` is set when no answer came; `took_s` counts from the question."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    took_s: float = 0.0
    error: EndpointError | None = None

    @property
    def value(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return parse_json(self.body)
        except ValueError:
            return None

    @property
    def told(self) -> str:
        """For evidence: the status and how long it took, or why there was none."""
        if self.error is not None:
            return one_line(str(self.error), 160)
        return f"{self.status} in {self.took_s:.2f} s"


@dataclass(slots=True)
class Look:
    """Replies by name: models, version, health, metrics. One that is not there had not come in time."""

    replies: dict[str, Reply] = field(default_factory=dict)

    def get(self, name: str) -> Reply | None:
        return self.replies.get(name)

    @property
    def models(self) -> list[dict[str, Any]] | None:
        """The entries of /v1/models that have an id; None when there is no such list."""
        reply = self.get("models")
        if reply is None or reply.status != 200:
            return None
        value = reply.value
        listed = value.get("data") if isinstance(value, dict) else value
        if not isinstance(listed, list):
            return None
        return [m for m in listed[:10_000] if isinstance(m, dict) and m.get("id")]

    def model(self, name: str) -> dict[str, Any]:
        """One entry of /v1/models; empty when it is not listed."""
        return next((m for m in self.models or () if m.get("id") == name), {})

    @property
    def version(self) -> str:
        reply = self.get("version")
        value = reply.value if reply is not None and reply.status == 200 else None
        version = value.get("version") if isinstance(value, dict) else None
        return one_line(version, 40) if isinstance(version, str) else ""

    @property
    def server(self) -> str:
        """Which server this is, "" when nothing tells."""
        if self.is_litellm:
            return LITELLM
        metrics = self.get("metrics")
        if metrics is not None and metrics.status == 200:
            text = metrics.body[:200_000].decode("utf-8", "replace")
            for start, name in _BY_METRICS.items():
                if re.search(rf"^(# (HELP|TYPE) )?{re.escape(start)}", text, re.MULTILINE):
                    return name
        for model in self.models or ():
            if owner := _BY_OWNER.get(str(model.get("owned_by", "")).lower()):
                return owner
        return ""

    @property
    def is_litellm(self) -> bool:
        """LiteLLM tells it by its headers, or by the one date of making that it gives all its models."""
        if any(name.startswith("x-litellm") for reply in self.replies.values() for name in reply.headers):
            return True
        models = self.models
        return bool(models) and all(m.get("created") == _LITELLM_CREATED for m in models or ())

    @property
    def alive(self) -> list[str]:
        """Which routes answered with 200, for evidence."""
        return [name for name, reply in self.replies.items() if reply.status == 200]


def urls(endpoint: Endpoint) -> dict[str, str]:
    """/v1/models belongs under the base URL, the others under the server's root."""
    root = server_root(endpoint.base_url)
    return {
        "models": endpoint.base_url + "/models" + endpoint.query,
        "version": root + "/version",
        "health": root + "/health",
        "metrics": root + "/metrics",
    }


def look(endpoint: Endpoint, environ: Mapping[str, str], timeout_s: float) -> Look:
    """Ask all at once. Returns after `timeout_s` at the latest, with what had come by then."""
    found = Look()
    listed = threading.Event()

    def one(name: str, url: str) -> None:
        try:
            if name == "health" and listed.wait(timeout_s / 2) and found.is_litellm:
                return  # LiteLLM's /health sends a chat request to every model that it has
            found.replies[name] = ask(endpoint, url, environ, max(0.2, end - 0.3 - time.monotonic()))
        finally:
            if name == "models":
                listed.set()

    end = time.monotonic() + timeout_s + 0.3
    threads = [
        threading.Thread(target=one, args=item, name=f"tokentrace-look-{item[0]}", daemon=True)
        for item in urls(endpoint).items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return Look({name: found.replies[name] for name in urls(endpoint) if name in found.replies})


def ask(endpoint: Endpoint, url: str, environ: Mapping[str, str], timeout_s: float) -> Reply:
    """One GET. Never raises because of the server."""
    began = time.monotonic()
    limit = _METRICS_BYTES if url.endswith("/metrics") else _OTHER_BYTES
    try:
        answer = fetch(endpoint, "GET", url, timeout_s=timeout_s, max_bytes=limit, environ=environ)
    except EndpointError as error:
        return Reply(took_s=time.monotonic() - began, error=error)
    return Reply(answer.status, answer.headers, answer.body, time.monotonic() - began)
