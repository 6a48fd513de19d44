"""What the doctor's tests share: a diagnosis as a user would get it, over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from support.http_servers import Answer, Request, ScriptedServer, chunk, hello, json_answer, models, sse, usage_chunk

from tokentrace.doctor import Diagnosis, Wishes, diagnose
from tokentrace.doctor.document import document
from tokentrace.doctor.verdict import worst

CHAT = "/v1/chat/completions"
#: The layers that an endpoint shows; those of this machine have tests of their own.
OUTSIDE = frozenset((8, 7, 6))


def look(url: str | None, *, environ: dict[str, str] | None = None, timeout_s: float = 8.0, **wishes: Any) -> Diagnosis:
    """Without any configuration file of this machine."""
    wished = {"layers": OUTSIDE, **wishes}
    return diagnose(Wishes(url, timeout_s=timeout_s, **wished), environ=environ or {}, folder=Path("/nonexistent"))


def healthy(*names: str) -> ScriptedServer:
    """A server as it should be: models, chat that streams one by one with usage, everything else 404 as JSON."""
    server = ScriptedServer()
    server.on("GET", "/v1/models", models(*(names or ("alpha",))))
    server.on("POST", CHAT, reply)
    return server


def reply(request: Request) -> Answer:
    """As many tokens as were asked for, each on its own, with usage."""
    wanted = request.json.get("max_tokens") or 3
    pieces: list[Any] = [chunk(role="assistant")]
    for number in range(wanted):
        pieces += [0.01, chunk(f" w{number}", finish="length" if number == wanted - 1 else None)]
    return sse(*pieces, usage_chunk(9, wanted), b"data: [DONE]\n\n")


def metrics(text: str) -> Answer:
    return Answer(200, {"Content-Type": "text/plain; version=0.0.4"}, [text.encode()], "length")


def look_at_metrics(text: str) -> Diagnosis:
    """Of a server that is well, and whose /metrics say this."""
    with healthy() as server:
        server.on("GET", "/metrics", metrics(text))
        return look(server.url + "/v1")


def ids(found: Diagnosis, status: str) -> set[str]:
    return {r.id for r in found.examination.results if r.status == status}


def layer(found: Diagnosis, number: int) -> str:
    return worst(r for r in found.examination.results if r.layer == number)


def detail(found: Diagnosis, check: str) -> str:
    return " | ".join(r.detail for r in found.examination.results if r.id == check)


def everything(found: Diagnosis) -> str:
    """All that may be pasted into a bug report."""
    value = document(found.examination, found.verdict, found.scrub)
    return orjson.dumps(value).decode()


__all__ = [
    "CHAT", "OUTSIDE", "Answer", "ScriptedServer", "chunk", "detail", "everything", "healthy", "hello", "ids",
    "json_answer", "layer", "look", "look_at_metrics", "metrics", "models", "reply", "sse", "usage_chunk",
]  # fmt: skip
