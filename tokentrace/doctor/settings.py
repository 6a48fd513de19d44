"""Layer 8, before anything is sent: base URL, key, model, certificates and proxies, as they are set here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tokentrace.client import keys, proxies
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import is_loopback
from tokentrace.doctor.check import SERVERS, Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.errors import ConfigError, TokentraceError

#: The service's own variable for its key.
_VARIABLE_OF = {
    "groq.com": "GROQ_API_KEY", "openrouter.ai": "OPENROUTER_API_KEY", "deepseek.com": "DEEPSEEK_API_KEY",
    "mistral.ai": "MISTRAL_API_KEY", "azure.com": "AZURE_OPENAI_API_KEY", "anthropic.com": "ANTHROPIC_API_KEY",
    "huggingface.co": "HF_TOKEN",
}  # fmt: skip
#: Hosts whose API wants an OAuth access token, no API key.
_OAUTH_HOSTS = ("aiplatform.googleapis.com", "githubcopilot.com", "chatgpt.com")
#: Variables of older clients, and what is read today.
_OLD = {
    "OPENAI_API_BASE": "OPENAI_BASE_URL", "OPENAI_API_HOST": "OPENAI_BASE_URL", "OPENAI_BASE": "OPENAI_BASE_URL",
    "OPENAI_URL": "OPENAI_BASE_URL",
}  # fmt: skip
_PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def _settings(s: Situation) -> Iterable[Result]:
    if isinstance(s.setting_error, TokentraceError):
        yield fail("TT801", str(s.setting_error), s.setting_error.fix, *s.setting_error.detail.splitlines())
        return
    endpoint = s.endpoint
    if endpoint is None:
        yield ok("TT801", "no base URL is set: this machine and the local engine are looked at")
    else:
        where = endpoint.source
        key = f"from {where['api_key']}" if endpoint.api_key and where.get("api_key") else "none"
        model = endpoint.model or "none named, the server's only one is used"
        yield ok(
            "TT801",
            f"requests go to {endpoint.chat_url}",
            f"base URL from {where.get('base_url', 'the command')}",
            f"key: {key if not endpoint.headers else f'{key}, and headers {_names(endpoint)}'}",
            f"model: {model}" + (f" ({where['model']})" if where.get("model") else ""),
            f"timeout: {s.timeout_s:g} s",
            *endpoint.warnings,
        )


def _names(endpoint: Endpoint) -> str:
    return ", ".join(list(endpoint.headers)[:10])


def _key(s: Situation) -> Iterable[Result]:
    endpoint = s.endpoint
    if endpoint is None:
        yield skip("TT832", "no endpoint, no key")
        return
    source, key = endpoint.source.get("api_key", ""), endpoint.api_key
    found = list(_doubts(endpoint, key, source))
    if endpoint.key_problem:
        found.insert(
            0,
            warn("TT832", f"the key from {source} looks malformed: {endpoint.key_problem}", f"set {source} anew"),
        )
    if not key:
        found += _in_another_variable(s, endpoint)
    yield from found
    if not found:
        said = f"the key from {source} has the form of a key" if key else "no key is set, so none is sent"
        yield ok("TT832", said)


def _doubts(endpoint: Endpoint, key: str, source: str) -> Iterator[Result]:
    if not key:
        return
    host = endpoint.host.lower()
    if key.startswith(("http://", "https://")):
        yield warn("TT832", f"the key from {source} is a URL", f"put the key into {source}, the URL into --url")
        return
    hint = keys.hint(key)
    if "expired" in hint:
        yield warn("TT833", hint, "log in again, or use an API key")
    elif "OAuth" in hint and not keys.within(host, _OAUTH_HOSTS) and not is_loopback(host):
        yield warn("TT833", hint, "if it is refused, use an API key of this service")
    elif not hint and keys.within(host, _OAUTH_HOSTS) and key.startswith(("sk-", "AIza", "gsk_")):
        yield warn("TT833", f"{host} wants an OAuth access token, and the key from {source} is an API key", "log in")
    if (service := keys.of_another_service(key, host)) and _service(host):
        yield warn(
            "TT832",
            f"the key from {source} is one of {service}, and {host} is another service",
            f"set {source} to a key of {host}, or use --profile",
        )


def _in_another_variable(s: Situation, endpoint: Endpoint) -> Iterator[Result]:
    for suffix, variable in _VARIABLE_OF.items():
        if keys.within(endpoint.host.lower(), (suffix,)) and s.environ.get(variable):
            yield warn(
                "TT832",
                f"no key is sent, but {variable} is set, which is the variable of this service",
                f'OPENAI_API_KEY="${variable}", or a profile with api_key_env = "{variable}"',
            )


def _service(host: str) -> bool:
    return any(keys.within(host, hosts) for _, _, hosts in keys.SERVICES) or any(
        keys.within(host, (h,)) for h in _VARIABLE_OF
    )


def _others(s: Situation) -> Iterable[Result]:
    found = []
    for old, new in (*_OLD.items(), *((name, "OPENAI_API_KEY") for name in keys.near_names(s.environ))):
        if s.environ.get(old):
            what = "is used" if s.environ.get(new) else "is what counts, and is not set"
            found.append(warn("TT809", f"{old} is set, which is not read; {new} {what}", f"set {new}, and unset {old}"))
    raw = s.environ.get("OPENAI_BASE_URL", "")
    if s.endpoint is not None and s.endpoint.source.get("base_url") == "OPENAI_BASE_URL" and raw != _bare(raw):
        found.append(
            warn(
                "TT809",
                "OPENAI_BASE_URL has quotes or spaces around its value: tokentrace drops them, other clients do not",
                f"export OPENAI_BASE_URL={s.endpoint.base_url}{s.endpoint.query}",
            )
        )
    ours, generic = s.environ.get("TOKENTRACE_BASE_URL"), s.environ.get("OPENAI_BASE_URL")
    if ours and generic and ours.rstrip("/") != generic.rstrip("/"):
        found.append(
            warn(
                "TT809",
                "TOKENTRACE_BASE_URL and OPENAI_BASE_URL differ: other clients talk to another server than tokentrace",
                "unset one of them",
            )
        )
    yield from found
    if not found:
        yield ok("TT809", "no variable is set that has no effect or contradicts another")


def _bare(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _proxies(s: Situation) -> Iterable[Result]:
    found: list[Result] = []
    present = [name for name in _PROXY_VARIABLES if s.environ.get(name)]
    shown: list[str] = []
    for name in present:
        try:
            scheme = "https" if name.lower().startswith("https") else "http"
            choice = proxies.choose(scheme, "host.invalid", 80, {name: s.environ[name]})
            shown.append(choice.shown if choice else name)
        except ConfigError as error:
            found.append(warn("TT822", str(error), error.fix))
    for lower in ("http_proxy", "https_proxy", "all_proxy"):
        small, large = s.environ.get(lower), s.environ.get(lower.upper())
        if small and large and small != large:
            text = f"{lower} and {lower.upper()} differ, and programs read one or the other"
            found.append(warn("TT822", text, f"unset {lower.upper()}"))
    if s.endpoint is not None and not found:
        found += _through(s, s.endpoint, present, shown)
    yield from found
    if not found:
        detail = "no proxy is set" if not present else f"proxies are set: {', '.join(shown)}"
        yield ok("TT822", detail, *([": ".join(proxies.exception(s.environ))] if present else []))


def _through(s: Situation, endpoint: Endpoint, present: list[str], shown: list[str]) -> Iterator[Result]:
    parts = urlsplit(endpoint.base_url)
    if is_loopback(endpoint.host):
        # tokentrace itself never sends these through a proxy; curl, requests and the OpenAI client do.
        named = {e.strip().lower() for e in proxies.exception(s.environ)[1].split(",")}
        swallowed = [n for n in present if n.lower().startswith((parts.scheme, "all"))]
        if swallowed and not {endpoint.host.lower(), "*"} & named:
            networks = ",".join(entry for entry in named if "/" in entry)
            # Tried, address in a network of NO_PROXY: curl 7.88 and requests 2 go past the proxy, httpx 0.28 not.
            others = (
                "clients that read no networks in NO_PROXY, such as httpx"
                if proxies.excepted(endpoint.host, endpoint.port, networks)
                else "other clients, such as curl and openai"
            )
            yield warn(
                "TT822",
                f"{swallowed[0]} swallows requests to {endpoint.host} of {others}: "
                "they get the proxy's answer (tokentrace goes past it)",
                proxies.past(s.environ, "localhost", "127.0.0.1", "::1"),
                *shown,
            )
        return
    choice = proxies.choose(parts.scheme, endpoint.host, endpoint.port, s.environ)
    if choice is not None and _private(endpoint.host):
        yield warn(
            "TT822",
            f"{endpoint.host} is a private address, and requests to it go through the proxy {choice.shown}",
            f"{proxies.past(s.environ, endpoint.host)} if the proxy cannot reach it",
        )
    elif choice is not None:
        yield ok("TT822", f"requests go through the proxy {choice.shown}")
    else:
        yield ok("TT822", "requests go past the proxies" if present else "no proxy is set", *shown)


def _private(host: str) -> bool:
    return bool(re.match(r"10\.|192\.168\.|172\.(1[6-9]|2\d|3[01])\.|\[?f[cd][0-9a-f]{2}:", host)) or host.endswith(
        (".local", ".internal", ".lan", ".svc", ".cluster.local")
    )


def _authorities(s: Situation) -> Iterable[Result]:
    present = {name: s.environ[name] for name in _CA_VARIABLES if s.environ.get(name)}
    missing = [name for name, value in present.items() if not Path(value).exists()]
    secure = s.endpoint is not None and s.endpoint.base_url.startswith("https://")
    if missing:
        name = missing[0]
        wrong = f"{name} names {present[name]}, which does not exist"
        yield (
            fail("TT816", wrong, f"mend or unset {name}", explains=("TT811", "TT801"))
            if secure and name.startswith("SSL_")
            else warn("TT816", wrong, f"mend or unset {name}")
        )
        return
    files = {present[n] for n in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if n in present}
    if len(files) > 1:
        yield warn(
            "TT816",
            "SSL_CERT_FILE, REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name different files: programs differ in whom they "
            "trust",
            "set them to one file",
            *(f"{k}={v}" for k, v in present.items()),
        )
    elif secure and files and "SSL_CERT_FILE" not in present:
        yield warn(
            "TT816",
            f"{next(iter(present))} is set, but this program and the OpenAI client read SSL_CERT_FILE",
            f"export SSL_CERT_FILE={next(iter(files))} too",
        )
    else:
        yield ok("TT816", "; ".join(f"{k}={v}" for k, v in present.items()) or "no certificate variable is set")


def _clock(s: Situation) -> Iterable[Result]:
    """The server's Date header against this clock: a wrong clock breaks certificates, tokens and traces."""
    from tokentrace.doctor.skew import skew_s

    found = skew_s(s)
    if found is None:
        yield unknown("TT880", "the server gave no Date, so its clock could not be compared")
        return
    seconds, bound = found
    if abs(seconds) > 60 + bound:
        ahead = "ahead of" if seconds > 0 else "behind"
        yield warn(
            "TT880",
            f"the server's clock is {abs(seconds):.0f} s {ahead} this one",
            "set both clocks by NTP; certificates, OAuth tokens and traces over hosts depend on it",
        )
    else:
        yield ok("TT880", f"the clocks agree within {max(abs(seconds), bound, 1):.0f} s")


CHECKS = (
    Check(
        "TT801",
        "settings",
        "The base URL, key and model are there and can be used as they are: no quotes, spaces, line breaks, doubled "
        "words or paths. What is named is where each value came from, never the key.",
        "the flags, TOKENTRACE_* and OPENAI_* variables, tokentrace.toml",
        "Set the value again as the sentence says; `--url`, `--key`, `--model` or `--profile` win over variables.",
        _settings,
    ),
    Check(
        "TT832",
        "key",
        "What is set as a key looks like a key of this service. A key that no server can have issued (None, quotes, "
        "a placeholder, Bearer in front, a URL, another service's prefix) could only be refused.",
        "the key's form, never its value; the variables that hold keys, by name",
        "Set the variable to the key itself, on one line and without quotes.",
        _key,
        modes=SERVERS,
    ),
    Check(
        "TT809",
        "variables without effect",
        "No variable is set that clients no longer read, and none contradicts another.",
        "the environment",
        "Unset the variable that is named, and set the one that is read.",
        _others,
    ),
    Check(
        "TT816",
        "certificate variables",
        "The files that say which authorities are trusted exist, and programs agree on them. Python's HTTP clients, "
        "requests and curl each read another variable.",
        "SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE",
        "Set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to the same PEM file. Do not switch verification off.",
        _authorities,
    ),
    Check(
        "TT822",
        "proxies",
        "The proxy variables are well formed, and no request to this machine or a private address is swallowed by a "
        "proxy that cannot reach it. Such a proxy answers 502 or 503, which looks like a broken server.",
        "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY in both cases of letters; never their passwords",
        "Put the host into NO_PROXY, or unset the variable.",
        _proxies,
    ),
    Check(
        "TT880",
        "clock",
        "The server's clock and this one agree. A wrong clock makes certificates and tokens look expired, and traces "
        "over two hosts wrong.",
        "the Date header of the server's answers, with half the round trip as its bound",
        "Set both clocks by NTP.",
        _clock,
        live=True,
        network=True,
        modes=SERVERS,
    ),
)
