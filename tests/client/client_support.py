"""What the client's tests share."""

from __future__ import annotations

from typing import Any

from support.http_servers import ScriptedServer

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange

CHAT = "/v1/chat/completions"
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7
HI = [{"role": "user", "content": "Hi"}]


def say_hi(
    url: str, *, environ: dict[str, str] | None = None, more: dict[str, Any] | None = None, **endpoint: Any
) -> Exchange:
    """One chat request as a user's would be. `endpoint` are its settings, `more` goes to `chat`."""
    settings = {"model": "alpha", "timeout_s": 60.0, **endpoint}
    return chat(Endpoint.of(url, **settings), HI, trace_id=TRACE, span_id=SPAN, environ=environ or {}, **(more or {}))


def ask(server: ScriptedServer, **settings: Any) -> Exchange:
    return say_hi(server.url + "/v1", **settings)


def phases_of(x: Exchange) -> list[str]:
    return [phase.name for phase in x.phases]


def everything_said(x: Exchange) -> str:
    """All text that may reach a screen, a file or a trace."""
    error = x.error
    told = [repr(x), *x.notes]
    if error is not None:
        told += [str(error), error.fix, error.detail, repr(error)]
    return "\n".join(told)


def error_of(x: Exchange, check: str) -> EndpointError:
    """The error of a request that failed by this cause, which lies on the way to the server."""
    assert x.error is not None and not x.complete
    assert x.error.check == check, str(x.error)
    assert x.error.layer == 8 and x.error.fix and x.error.exit_code == 2
    return x.error
