"""What each cause of a failed request means, what it is told by, and what helps: for --explain and the docs."""

from __future__ import annotations

_CONNECT = "the attempts to connect, one by one, with their times"
_TLS = "the handshake, and the certificate that the server shows"
_STATUS = "the status, the answer's own words, and what in its form and headers tells who wrote it"
_REPLY = "the answer's type, its first bytes and its JSON keys"
_STREAM = "the events of the stream, finish_reason, [DONE] and how the connection ended"
_METRICS = "/metrics several times during the request: requests that run and wait, tokens made"

#: id -> (meaning, what it looks at, what to do).
CAUSE_TEXTS: dict[str, tuple[str, str, str]] = {
    "TT802": ("The host name of the base URL has no address, or the name server did not answer.",
              "the name server's answer", "Correct the host name, or the machine's DNS."),
    "TT803": ("The host is there and refuses the connection: nothing listens on that port. The server has not started, "
              "has died, or listens on another port or address.", _CONNECT,
              "Start the server, or correct host and port."),
    "TT804": ("Packets go out and nothing comes back: a firewall that drops them, a wrong address, or a server "
              "too busy to accept.", _CONNECT, "Check host and port, and the firewall between."),
    "TT805": ("The network has no way to that address.", _CONNECT,
              "Check the address, the VPN, and the machine's network."),
    "TT806": ("Nothing listens on the address of the base URL, and something does on another one of this machine: on "
              "::1 and not 127.0.0.1, or the reverse, or only on the loopback.", _CONNECT,
              "Use the address on which it listens, which the sentence gives."),
    "TT810": ("The server's certificate is outside of its dates; or this machine's clock is wrong.", _TLS,
              "Have it renewed, or set the clock."),
    "TT811": ("The certificate is signed by an authority that this program does not know: a company's own, or itself.",
              _TLS, "Set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to that authority's PEM file."),
    "TT812": ("The certificate was made for another name than the one in the base URL.", _TLS,
              "Use the name that the certificate is for."),
    "TT813": ("The base URL says https, and the server speaks plain http.", _TLS, "Use http:// in the base URL."),
    "TT814": ("The base URL says http, and the server speaks https.",
              "the answer's own words, or one more handshake with a port that closed the connection",
              "Use https:// in the base URL."),
    "TT815": ("The TLS handshake failed for another reason, such as versions that do not meet.", _TLS,
              "Look at the server's TLS settings."),
    "TT820": ("A proxy variable is set, and that proxy cannot be reached.", _CONNECT,
              "Correct the variable, or put the server's host into NO_PROXY."),
    "TT821": ("The request went to a proxy, and the proxy refused or could not pass it on. A 502 or 503 may be the "
              "proxy's and not the server's.", _STATUS,
              "Put the server's host into NO_PROXY, or correct the variable."),
    "TT825": ("The server took the request and sent no token within the timeout.", _METRICS,
              "Raise --timeout for a slow model; else look at the server's log."),
    "TT826": ("The stream had begun and then fell silent.", _STREAM,
              "Look at the server's log at that time, or raise --timeout."),
    "TT827": ("The reply kept coming, but not within the time set for all of it.", _STREAM,
              "Raise the limit, or ask for fewer tokens."),
    "TT828": ("The connection was taken and closed without an answer: the server died, or speaks another protocol.",
              _CONNECT, "Look at the server's log at that time."),
    "TT829": ("What listens on that port does not speak HTTP, or answers in a way no client can read.",
              "the first bytes that came", "Check the port."),
    "TT830": ("The server wants a key and none was sent.", _STATUS,
              "export OPENAI_API_KEY=…, or use --profile. Servers of one's own may demand one by VLLM_API_KEY."),
    "TT831": ("The server refused the key that was sent.", _STATUS,
              "Check that the key belongs to this server and was not revoked."),
    "TT833": ("An OAuth access token was sent where an API key is wanted (or the reverse), or it has expired.",
              "the token's form and its own date, never its value", "Use an API key of this service, or log in again."),
    "TT834": ("The server knows the key and forbids this.", _STATUS, "Check what this key may do."),
    "TT835": ("The gateway took your key, and the server behind it refused the one that the gateway has for it.",
              "the answer's own words: gateways repeat what the server behind them said",
              "Correct the key of that model in the gateway's configuration."),
    "TT836": ("A gateway before the server, such as nginx with auth_basic, wants a user name and password itself. The "
              "server behind it was not asked, and its API key does not help.", _STATUS,
              "Give it the login as an Authorization header in a profile, or take that demand off for this path."),
    "TT840": ("The path does not exist there, mostly because the base URL lacks /v1 or has too much.",
              "the status, and the usual places of the API, which are asked for /models",
              "Use the base URL that the sentence gives."),
    "TT841": ("The server has no model of that name. Without --served-model-name the name is the path it was loaded "
              "from.", "the answer, and the names in /models", "Use the nearest name, which the sentence gives."),
    "TT842": ("The path exists and takes no POST.", _STATUS, "Check the path of the base URL."),
    "TT843": ("Something on the way has a limit for a request's size.", _STATUS,
              "Raise that limit, or shorten the prompt."),
    "TT844": ("The server found a field of the request wrong.", _STATUS, "Change what it names."),
    "TT845": ("Too many requests, or the account's quota is used up.", _STATUS,
              "Wait as long as Retry-After says, or check the account."),
    "TT846": ("The server failed by its own fault (5xx).", _STATUS, "Look at the server's log at that time."),
    "TT847": ("A gateway before the server could not reach it, waited too long for it, or failed itself. Its own page "
              "tells it from an answer of the server that it only passed on.", _STATUS,
              "Check that the server itself is up; the gateway's own error log names the address that it tried."),
    "TT849": ("The server sends the request elsewhere. A key does not follow to another host.", _STATUS,
              "Use the address it points to, if it is the right one."),
    "TT850": ("A web page came where the API should be, perhaps with status 200: mostly /v1 is missing.", _REPLY,
              "Use the base URL that the sentence gives."),
    "TT851": ("JSON came that is no chat completion: it has no choices.", _REPLY, "Check the base URL."),
    "TT852": ("The status is 200 and the answer holds an error.", _REPLY,
              "Change what it names, or look at the server's log."),
    "TT853": ("The server speaks another protocol than the OpenAI chat API.", _REPLY,
              "Use the address of its OpenAI-compatible API."),
    "TT854": ("The answer is empty.", _REPLY, "Look at the log of the server at that time."),
    "TT860": ("The connection broke while the reply came: the server died or a gateway cut it.", _STREAM,
              "Look at the logs of the server and the gateway at that time."),
    "TT861": ("The stream ended in good order, but the reply has no end: neither finish_reason nor [DONE].", _STREAM,
              "Look at the logs of the server and the gateway at that time."),
    "TT862": ("Events of the stream are not JSON: something on the way rewrites it.", _STREAM,
              "Look at what sits between here and the server."),
    "TT701": ("The model has no chat template, so the server cannot turn messages into a prompt. Base models have none "
              "on purpose. Another model's template would give stray tags.", "the server's own words",
              "Use /v1/completions, or start the server with --chat-template and this model's own template."),
    "TT601": ("Prompt and reply together are longer than the model's context.", "the numbers in the server's answer",
              "Lower max_tokens to what fits, or shorten the prompt."),
    "TT602": ("The engine behind the web server died or failed.", "the server's own words",
              "Look at the server's log, and restart it."),
    "TT603": ("The server is still loading the model.", "the server's own words", "Wait, and try again."),
    "TT604": ("The engine ran out of memory.", "the server's own words",
              "Lower the length of prompts, the batch, or the share of memory for the KV cache."),
    "TT605": ("Requests wait, or run, and no token is made by any of them: the engine stands still while the web "
              "server before it lives. A health route does not show this.", _METRICS,
              "Restart the server; keep its log of the time it stopped."),
    "TT606": ("The web server answers on other routes, no token comes, and how the engine stands cannot be seen.",
              "the other routes, and that the request got nothing",
              "Look at the server's log: without /metrics, busy and stuck cannot be told apart from outside."),
    "TT607": ("The engine makes tokens, for others: the request did not get its turn within the timeout.", _METRICS,
              "Raise --timeout, send less at once, or give the server more capacity."),
    "TT608": ("The local engine did not start, or ended.", "its exit, and the last lines of its log",
              "See the sentence; `tokentrace run --url` needs no local engine."),
}  # fmt: skip
