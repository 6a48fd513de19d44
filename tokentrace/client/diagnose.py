"""One diagnosis for a request that failed: from plain facts to a sentence, a fix, a layer and a stable cause id.

Pure: nothing here touches the network. `lookaround` asks what helps (the models, a better base URL) beforehand.
"""

from __future__ import annotations

from tokentrace.client._diagnose_network import network_failure
from tokentrace.client._diagnose_reply import reply_failure, reply_notes
from tokentrace.client._diagnose_status import nearest, status_failure
from tokentrace.client.causes import CAUSES, failure, of_setting
from tokentrace.client.facts import Facts
from tokentrace.client.sse import SseTooLong
from tokentrace.client.transport import BodyTooLong, UnknownCoding
from tokentrace.errors import ConfigError, EndpointError

__all__ = ["diagnose", "error_type", "nearest", "reply_notes"]


def diagnose(facts: Facts) -> EndpointError | None:
    """What went wrong, or None when the reply is whole. `facts.error` is looked at first."""
    error = facts.error
    if isinstance(error, EndpointError):
        return error
    if isinstance(error, ConfigError):
        return of_setting(error)
    if error is not None:
        if isinstance(error, (BodyTooLong, SseTooLong)):
            return failure("TT851", f"{facts.where} sent no sensible answer: {error}", "check the base URL")
        if isinstance(error, UnknownCoding):
            return failure(
                "TT829",
                f"the answer is compressed ({error}) although that was not asked for",
                "switch compression off in the gateway before the server",
            )
        if facts.status >= 300:
            return status_failure(facts)  # its body was not read to the end, but the status tells
        return network_failure(facts)
    if not 200 <= facts.status < 300:
        return status_failure(facts)
    return reply_failure(facts)


def error_type(error: EndpointError, status: int) -> str:
    """The value of `error.type`: the HTTP status where it tells the failure, else the cause's word."""
    if status >= 300:
        return str(status)
    cause = CAUSES.get(error.check)
    return cause.word if cause else type(error).__name__
