"""Causes that an HTTP status other than 200 stands for, and whose answer it is."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from urllib.parse import urlsplit

from tokentrace.client._diagnose_context import too_long
from tokentrace.client._diagnose_gateway import absurdly, gateways_own, proxys_own, size_of
from tokentrace.client._diagnose_network import proxy_wants_password, speaks_https
from tokentrace.client.causes import failure, one_line, some_lines
from tokentrace.client.facts import Facts
from tokentrace.client.urls import redirected
from tokentrace.errors import EndpointError

_NO_TEMPLATE = re.compile(
    r"no chat.?template|not .{0,20}chat.?template|without (a )?chat.?template|chat.?template.{0,60}(is |are )?"
    r"(not (set|defined|found|provided)|missing|no longer allowed|none)|must provide a chat template|"
    r"carries no chat|(has|have|lacks?) (no |a )?chat.?template",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context.?length|context.?window|context size|context_length_exceeded|max_model_len|maximum model length|"
    r"longer than the (model|maximum)|max_new_tokens. must be|prompt is too long|too many tokens|"
    r"reduce the length of the|exceeds? the (model|maximum|available|max)",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"model_?not_?found|model.{0,120}(not found|does not exist|not exist|not available|is not served|unknown|"
    r"decommissioned|not supported by this server|is not a valid)|(unknown|invalid|no such|unsupported) model|"
    r"no endpoints found for|server is pinned to .{1,200}requested",
    re.IGNORECASE | re.DOTALL,
)
_MEMORY = re.compile(r"out of memory|OutOfMemory|cannot allocate", re.IGNORECASE)
_LOADING = re.compile(r"loading model|model is loading|still loading|currently loading|is (being )?load", re.IGNORECASE)
_DEAD = re.compile(
    r"EngineDead|engine ?(core )?(died|failed|is dead|has died|encountered an issue)|background loop|"
    r"(CUDA|HIP|NCCL|RCCL|cuBLAS|cuDNN) error|illegal memory access|device-side assert",
    re.IGNORECASE,
)
_OTHER_CARD = re.compile(r"no kernel image is available|invalid device function", re.IGNORECASE)
#: What passes by itself: nothing in the request is wrong.
_PASSING = re.compile(
    r"overloaded|(try|retry)( it)?( again)?( later| in )|temporar(y|il)|at capacity|too busy|too many requests|"
    r"rate.?limit|no capacity|server.?busy",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"insufficient_quota|quota|billing|credit|balance", re.IGNORECASE)
#: In a 400, which means many things.
_UNPAID = re.compile(
    r"(credit|balance).{0,40}(too low|insufficient|exhausted)|insufficient.{0,20}(credit|balance|funds)", re.IGNORECASE
)
_EXPIRED = re.compile(r"expired|expir", re.IGNORECASE)
_OAUTH = re.compile(r"oauth|access token|session token|jwt", re.IGNORECASE)
#: A gateway repeats what the server behind it said: LiteLLM with the names of its exceptions, OpenRouter in its words.
_BEHIND = re.compile(r"litellm\.[A-Z]\w*Error|\b[A-Z]\w*Exception - |provider returned error", re.IGNORECASE)
_UNREACHED = re.compile(
    r"(litellm\.|exception - ).{0,80}(connection error|cannot connect|connect call failed)|upstream connect error|"
    r"no healthy upstream|ECONNREFUSED|cannot connect to host|all connection attempts failed|connection refused|"
    r"no deployments available|all_deployments_in_cooldown|no available (workers|servers|backends)",
    re.IGNORECASE | re.DOTALL,
)
_NO_KEY_STORE = re.compile(r"no connected db|no_db_connection", re.IGNORECASE)
_HTTPS_PORT = re.compile(r"plain HTTP request was sent to HTTPS port|HTTP request to an HTTPS server", re.IGNORECASE)


def status_failure(facts: Facts) -> EndpointError:
    """For any status that is not 2xx."""
    status = facts.status
    if _HTTPS_PORT.search(facts.text):
        return speaks_https(facts)
    if 300 <= status < 400:
        return _redirect(facts)
    if status == 407:
        return proxy_wants_password(facts)
    if (found := proxys_own(facts)) is not None:
        return found
    if (writer := facts.writer) is not None and writer.name != "LiteLLM":
        return gateways_own(facts, writer)
    if status in (401, 403) and facts.key_sent and _BEHIND.search(facts.said):
        return _gateways_key(facts)
    if status == 401:
        return _unauthorised(facts)
    if (found := said_failure(facts, status)) is not None:
        return found
    if status == 403:
        return _forbidden(facts)
    if status == 404:
        return _not_found(facts)
    if status in (405, 501):
        return failure(
            "TT842",
            f"{facts.who} does not take POST at {urlsplit(facts.url).path} ({status}){_said(facts)}",
            root_fix(facts, "check the path of the base URL, and what serves it"),
            _detail(facts),
        )
    if status == 413:
        return failure(
            "TT843",
            f"{facts.who} finds {size_of(facts)} too large (413){absurdly(facts)}{_said(facts)}",
            "raise its limit for a request's size" if absurdly(facts) else "lower the prompt's length",
            _detail(facts),
        )
    if status == 429 or status == 402 or (status == 400 and _UNPAID.search(facts.said)):
        return _limited(facts)
    if status >= 500:
        return _server_error(facts)
    fix = "change what it names" if facts.said else "look at the log of the server at that time: it gave no reason"
    return failure("TT844", f"{facts.who} refused the request ({status}){_said(facts)}", fix, _detail(facts))


def said_failure(facts: Facts, status: int) -> EndpointError | None:
    """A cause that the server's own words give away, whatever the status (0: in an answer with 200); or None."""
    said, code = facts.said, facts.error_code
    text = f"{said} {code}"
    if _NO_TEMPLATE.search(said):
        return failure(
            "TT701",
            f"the model has no chat template{_said(facts)}",
            "use the server's /v1/completions route, or start the server with --chat-template FILE for this model",
            _detail(facts),
        )
    if status != 404 and _CONTEXT.search(text) and status not in (401, 403, 429):
        return too_long(facts)
    if status >= 400 and _UNREACHED.search(text):
        return failure(
            "TT847",
            f"{facts.gateway or 'the gateway'} cannot reach the server behind it ({status}){_said(facts)}",
            "check that the server behind the gateway is up, and its address in the gateway's configuration",
            _detail(facts),
        )
    if _NO_KEY_STORE.search(text) and facts.key_sent:
        return failure(
            "TT831",
            f"the gateway does not know the key from {facts.key_source or 'the settings'} ({status}){_said(facts)}",
            "use the gateway's master key, or a key that it issued",
            _detail(facts),
        )
    if (
        status in (0, 400, 404, 422, 403, 500)
        and _MODEL.search(text)
        and not (status == 404 and "chat/completions" in said)
    ):
        return _unknown_model(facts)
    if _MEMORY.search(said):
        return failure(
            "TT604",
            f"the engine ran out of memory{_said(facts)}",
            "lower max_tokens, the prompt or the batch",
            _detail(facts),
        )
    if _LOADING.search(said):
        fix = f"wait {facts.wait} and run this again" if facts.wait else "wait and run this again"
        return failure("TT603", "the server is still loading the model", fix, _detail(facts))
    if _DEAD.search(text):
        fix = "restart the server; its log at that time tells why"
        if _OTHER_CARD.search(said):
            fix = "install a torch that was built for that card: nothing else helps, a restart neither"
        return failure("TT602", f"the engine behind the server failed{_said(facts)}", fix, _detail(facts))
    return None


def passing(facts: Facts) -> bool:
    """Do the server's words say that it is busy or overloaded, so that the same request may be answered later?"""
    return _PASSING.search(f"{facts.said} {facts.error_code}") is not None


def nearest(model: str, models: Sequence[str]) -> list[str]:
    """The server's models, most similar first: the same apart from case or folder, then by likeness."""

    def likeness(known: str) -> tuple[bool, bool, float, int]:
        a, b = model.lower(), known.lower()
        base_a, base_b = posixpath.basename(a.rstrip("/")), posixpath.basename(b.rstrip("/"))
        bare_a, bare_b = base_a.partition(":")[0], base_b.partition(":")[0]
        ratio = max(SequenceMatcher(None, a, b).ratio(), SequenceMatcher(None, base_a, base_b).ratio())
        return (a == b, base_a == base_b or bare_a == bare_b, ratio, -len(known))

    return sorted(models, key=likeness, reverse=True)


def _unknown_model(facts: Facts) -> EndpointError:
    named = f"the model {facts.model!r}" if facts.model else "a model of no name"
    if facts.models is None:
        return failure(
            "TT841", f"the server does not have {named}", "see its /v1/models for the right name", _detail(facts)
        )
    if not facts.models:
        return failure(
            "TT841", f"the server does not have {named}, nor any other", "load a model there", _detail(facts)
        )
    known = nearest(facts.model, facts.models)
    return failure(
        "TT841",
        f"the server does not have {named}",
        f"--model {known[0]}",
        "it has: " + one_line(", ".join(known[:10]), 600) + (f" and {len(known) - 10} more" if len(known) > 10 else ""),
    )


def _not_found(facts: Facts) -> EndpointError:
    path = urlsplit(facts.url).path
    if facts.better_base:
        return failure(
            "TT840", f"{path} does not exist on {facts.where} (404)", f"use {facts.better_base}", _detail(facts)
        )
    if facts.models is not None:
        return failure(
            "TT840",
            f"{facts.where} has /models, but no {path} (404)",
            "it may serve no chat models; see its documentation",
            _detail(facts),
        )
    return failure("TT840", f"{path} does not exist on {facts.where} (404)", root_fix(facts), _detail(facts))


def _unauthorised(facts: Facts) -> EndpointError:
    said = _said(facts)
    if facts.key_problem:
        return failure(
            "TT832",
            f"the server wants a key (401), and the key from {facts.key_source} looks malformed: {facts.key_problem}",
            f"set {facts.key_source} to the key itself",
            _detail(facts),
        )
    if not facts.key_sent:
        others = [v for v in facts.key_variables if v not in ("OPENAI_API_KEY", "TOKENTRACE_API_KEY")]
        fix = "export OPENAI_API_KEY=…"
        if facts.key_near:
            fix = f"{facts.key_near} is set, which nobody reads: export OPENAI_API_KEY=${facts.key_near}"
        elif others:
            fix = f"is it the one in {others[0]}? then export OPENAI_API_KEY=${others[0]}"
        return failure(
            "TT830", "the server wants a key (401) and none was sent", f"{fix}, or use --profile", _detail(facts)
        )
    if _EXPIRED.search(facts.said) and (_OAUTH.search(facts.said) or "OAuth" in facts.key_hint):
        return failure(
            "TT833", f"the OAuth token has expired (401){said}", "log in again, or use an API key", _detail(facts)
        )
    if "OAuth" in facts.key_hint or _OAUTH.search(facts.said):
        hint = facts.key_hint or "it speaks of an OAuth token"
        return failure(
            "TT833", f"the server refused the key (401): {hint}", "use an API key of this service", _detail(facts)
        )
    hint = f" ({facts.key_hint})" if facts.key_hint else ""
    if facts.key_service:
        source, host = facts.key_source or "the settings", urlsplit(facts.url).hostname
        return failure(
            "TT831",
            f"the server refused the key from {source} (401): it is a key of {facts.key_service}, and {host} is "
            "another service"
            f"{said}",
            f"set {source} to a key of {host}, or use --profile",
            _detail(facts),
        )
    return failure(
        "TT831",
        f"the server refused the key from {facts.key_source or 'the settings'} (401){hint}{said}",
        "check that it belongs to this server and was not revoked",
        _detail(facts),
    )


def _gateways_key(facts: Facts) -> EndpointError:
    by = facts.gateway or "the gateway"
    return failure(
        "TT835",
        f"the server behind {by} refused {by}'s own key ({facts.status}){_said(facts)}",
        f"correct the api_key of {facts.model or 'this model'} in the gateway's configuration; yours was accepted",
        _detail(facts),
    )


def _forbidden(facts: Facts) -> EndpointError:
    fix = "check what this key may do" if facts.key_sent else "send a key: export OPENAI_API_KEY=…"
    return failure("TT834", f"{facts.who} forbids this (403){_said(facts)}", fix, _detail(facts))


def _limited(facts: Facts) -> EndpointError:
    left = [f"{k}: {v}" for k, v in facts.headers.items() if k.startswith("x-ratelimit")]
    detail = "\n".join(filter(None, [*(one_line(x, 120) for x in left[:4]), _detail(facts)]))
    if facts.status != 429 or _QUOTA.search(f"{facts.said} {facts.error_code}"):
        what = "the account's quota is used up" if facts.status == 429 else "the account has to be paid for"
        return failure("TT845", f"{what} ({facts.status}){_said(facts)}", "check its plan and billing", detail)
    fix = f"wait {facts.wait}" if facts.wait else "wait and try again"
    return failure(
        "TT845", f"{facts.who} limits the rate (429){_said(facts)}", f"{fix}; a shared key counts for all", detail
    )


def _server_error(facts: Facts) -> EndpointError:
    status = facts.status
    if status in (502, 504) and not isinstance(facts.value, dict):
        what = "got no answer in time from the server" if status == 504 else "cannot reach the server behind it"
        return failure(
            "TT847",
            f"a gateway {what} ({status}){_said(facts)}",
            "check that the server itself is up; the gateway's own error log tells what it tried",
            _detail(facts),
        )
    if status == 503:
        fix = f"try again in {facts.wait}" if facts.wait else "it may still be starting: try again"
        return failure("TT846", f"the server is not ready (503){_said(facts)}", fix, _detail(facts))
    fix = "try again later" if passing(facts) else "look at the server's log"
    if not facts.key_sent and not passing(facts):
        fix += "; no key was sent, and some gateways answer that so"
    return failure("TT846", f"{facts.who} failed ({status}){_said(facts)}", fix, _detail(facts))


def _redirect(facts: Facts) -> EndpointError:
    location = facts.headers.get("location", "")
    if not location:
        return failure(
            "TT849",
            f"the server answered with status {facts.status}, which sends elsewhere, and names no address",
            "check the base URL, and the gateway before the server",
        )
    target = redirected(facts.url, location)
    if not target:
        said = f"the server sends the request on to something that is no address ({facts.status})"
        return failure("TT849", said, "check the base URL, and the gateway before the server")
    parts, here = urlsplit(target), urlsplit(facts.url)
    place = f"{parts.scheme}://{parts.netloc}{parts.path}"
    login = re.search(r"login|signin|sign-in|oauth|sso", place, re.IGNORECASE)
    if login:
        return failure(
            "TT849",
            f"the server sends the request to a login page ({facts.status})",
            "this address wants a browser session; use the service's API address",
            place,
        )
    if target == facts.url:
        return failure(
            "TT849",
            f"the server sends the request in a circle: {one_line(place)} leads to itself ({facts.status})",
            "look at the redirects of the server, or of the gateway before it",
        )
    root = place.removesuffix("/").removesuffix("/chat/completions")
    same = (parts.scheme, parts.netloc) == (here.scheme, here.netloc)
    why = "" if same else ", and a key must not follow to another host"
    return failure(
        "TT849", f"the server sends the request on to {one_line(place)} ({facts.status}){why}", f"use {root}"
    )


def root_fix(facts: Facts, otherwise: str = "") -> str:
    if facts.better_base:
        return f"use {facts.better_base}"
    if re.search(r"/v\d+[a-z0-9]*$", facts.base_url):
        return otherwise or "check the base URL; the chat route is looked for under it"
    return f"most servers keep the API under /v1: try {facts.base_url}/v1"


def _said(facts: Facts) -> str:
    said = one_line(facts.said, 160)
    return f": {said}" if said else ""


def _detail(facts: Facts) -> str:
    through = f"the answer is the server's own; it came through {facts.passed}" if facts.passed else ""
    text = "" if facts.is_html else some_lines(facts.said or facts.shown(facts.text))
    return "\n".join(filter(None, [text, through]))
