"""Every cause for which a request can fail, with its stable id. `EndpointError.check` holds the id.

The first digit is the layer that the fault lies in. The word is what spans carry as `error.type` where no HTTP status
says more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentrace.errors import ConfigError, EndpointError


@dataclass(frozen=True, slots=True)
class Cause:
    layer: int
    word: str
    title: str


CAUSES: dict[str, Cause] = {
    "TT801": Cause(8, "unusable_setting", "a setting cannot be used"),
    "TT802": Cause(8, "name_not_found", "the host name has no address"),
    "TT803": Cause(8, "connection_refused", "nothing listens there"),
    "TT804": Cause(8, "connect_timeout", "no answer to the connection"),
    "TT805": Cause(8, "unreachable", "no way to that address"),
    "TT806": Cause(8, "wrong_address_family", "the server listens on another address of this machine"),
    "TT810": Cause(8, "certificate_expired", "the server's certificate has expired or is not yet valid"),
    "TT811": Cause(8, "certificate_untrusted", "the server's certificate is signed by an unknown authority"),
    "TT812": Cause(8, "certificate_name", "the server's certificate is for another name"),
    "TT813": Cause(8, "https_to_http", "https was spoken to a server of plain http"),
    "TT814": Cause(8, "http_to_https", "plain http was spoken to a server of https"),
    "TT815": Cause(8, "tls", "the TLS handshake failed"),
    "TT820": Cause(8, "proxy_unreachable", "the proxy from the environment cannot be reached"),
    "TT821": Cause(8, "proxy_refused", "the proxy refused to pass the request on"),
    "TT825": Cause(8, "timeout", "no answer in time"),
    "TT826": Cause(8, "stream_timeout", "the stream fell silent"),
    "TT827": Cause(8, "total_timeout", "the whole took too long"),
    "TT828": Cause(8, "closed_without_answer", "the connection was closed without an answer"),
    "TT829": Cause(8, "not_http", "what answered does not speak HTTP"),
    "TT830": Cause(8, "key_missing", "the server wants a key"),
    "TT831": Cause(8, "key_refused", "the server refused the key"),
    "TT832": Cause(8, "key_malformed", "the key looks malformed"),
    "TT833": Cause(8, "oauth_token", "an OAuth token was sent where a key is wanted, or it has expired"),
    "TT834": Cause(8, "forbidden", "the key is not allowed to do this"),
    "TT835": Cause(8, "gateway_key", "the server behind the gateway refused the gateway's own key"),
    "TT836": Cause(8, "gateway_login", "the gateway before the server wants a login of its own"),
    "TT840": Cause(8, "path_not_found", "the path does not exist on the server"),
    "TT841": Cause(8, "model_not_found", "the server does not have this model"),
    "TT842": Cause(8, "method_not_allowed", "the path does not take POST"),
    "TT843": Cause(8, "too_large", "the request is larger than something on the way allows"),
    "TT844": Cause(8, "invalid_request", "the server refused a field of the request"),
    "TT845": Cause(8, "rate_limited", "a limit of the service was reached"),
    "TT846": Cause(8, "server_error", "the server failed"),
    "TT847": Cause(8, "gateway_error", "a gateway before the server failed, mostly to reach it"),
    "TT849": Cause(8, "redirect", "the server sends the request elsewhere"),
    "TT850": Cause(8, "html", "a web page came instead of the API"),
    "TT851": Cause(8, "no_choices", "the answer has no choices"),
    "TT852": Cause(8, "error_in_answer", "the answer has status 200 and holds an error"),
    "TT853": Cause(8, "other_protocol", "the server speaks another protocol"),
    "TT854": Cause(8, "empty_answer", "the answer is empty"),
    "TT860": Cause(8, "connection_broke", "the connection broke during the stream"),
    "TT861": Cause(8, "stream_cut", "the stream ended before the reply did"),
    "TT862": Cause(8, "malformed_event", "an event of the stream is not JSON"),
    "TT701": Cause(7, "no_chat_template", "the model has no chat template"),
    "TT601": Cause(6, "context_exceeded", "prompt and reply do not fit into the context"),
    "TT602": Cause(6, "engine_failed", "the engine behind the server failed"),
    "TT603": Cause(6, "loading", "the server is still loading the model"),
    "TT604": Cause(6, "out_of_memory", "the engine ran out of memory"),
    "TT605": Cause(6, "engine_stalled", "the engine makes no progress"),
    "TT606": Cause(6, "engine_silent", "the web server lives, and no token comes from the engine"),
    "TT607": Cause(6, "engine_busy", "the engine is busy with other requests"),
    "TT608": Cause(6, "local_engine", "the local engine did not start, or ended"),
}


def failure(check: str, message: str, fix: str, detail: str = "") -> EndpointError:
    """An EndpointError of this cause. The message and the fix are one line each, whatever the server wrote."""
    return EndpointError(
        one_line(message, 400), fix=one_line(fix, 400), layer=CAUSES[check].layer, detail=detail, check=check
    )


def of_setting(error: ConfigError) -> EndpointError:
    """The same said of a request: a setting that it needed cannot be used."""
    return EndpointError(str(error), fix=error.fix, layer=error.layer or 8, detail=error.detail, check="TT801")


def one_line(text: str, limit: int = 200) -> str:
    """Without line breaks and control characters, cut to `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def some_lines(text: str, lines: int = 3, width: int = 200) -> str:
    """The beginning of what a server sent, for `EndpointError.detail`."""
    kept = [one_line(line, width) for line in text.splitlines() if line.strip()][:lines]
    return "\n".join(kept)
