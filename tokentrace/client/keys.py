"""Is this an API key at all? Says what is wrong with one without ever showing it."""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from tokentrace.errors import ConfigError

#: Words that a program writes where a key is missing.
_NOTHING = frozenset({"none", "null", "undefined", "nil", "false", "nan"})
#: Words that people send to servers that want no key.
_ANY = frozenset(("empty", "dummy", "fake", "test", "placeholder", "x", "na", "n/a", "key", "token")) | frozenset(
    f"{word}{end}" for word in ("no-key", "no_key", "not", "none", "sk-no-key") for end in ("", "-needed", "-required")
) | frozenset(("api-key", "api_key", "apikey", "local", "ollama", "lm-studio", "vllm"))  # fmt: skip
_PLACEHOLDER = re.compile(r"^(sk-)?your|^<.*>$|replace.?me|x{6,}|\.\.\.|changeme", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?\w+\}?|%\w+%|\{\{.*\}\}")
#: A line of a shell or of an .env file in place of the value in it.
_ASSIGNED = re.compile(r"(export\s+|set\s+)?[A-Z][A-Z0-9_]*(KEY|TOKEN|SECRET)\s*=", re.IGNORECASE)
#: Variables that hold a key for an OpenAI-compatible server or for a well-known service.
KEY_VARIABLES = (
    "TOKENTRACE_API_KEY",
    "OPENAI_API_KEY",
    "VLLM_API_KEY",
    "GROQ_API_KEY",
    "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY",
    "MISTRAL_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "HF_TOKEN",
)
#: What a key of a service begins with, and the hosts that take it. From the services' own documentation.
SERVICES = (
    ("sk-ant-", "Anthropic", ("anthropic.com",)),
    ("sk-or-", "OpenRouter", ("openrouter.ai",)),
    ("sk-proj-", "OpenAI", ("openai.com",)),
    ("gsk_", "Groq", ("groq.com",)),
    ("xai-", "xAI", ("x.ai",)),
    ("nvapi-", "NVIDIA", ("nvidia.com",)),
    ("pplx-", "Perplexity", ("perplexity.ai",)),
    ("r8_", "Replicate", ("replicate.com",)),
    ("AIza", "Google", ("googleapis.com",)),
    ("hf_", "Hugging Face", ("huggingface.co", "huggingface.cloud", "hf.space")),
)
#: OPENAI_API_KEY in the spellings that people give it, without underscores and in capital letters.
_NEAR = frozenset(
    f"{who}{what}"
    for who in ("OPENAI", "OPENIA")
    for what in (
        "KEY",
        "KEYS",
        "APIKEY",
        "APIKEYS",
        "APITOKEN",
        "TOKEN",
        "SECRET",
        "SECRETKEY",
        "APISECRET",
        "APISECRETKEY",
    )
)
#: Headers and fields of a query that hold a key.
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|^sig", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeyReading:
    """`key` is what may be sent ("" for nothing), `malformed` why it is probably not a key."""

    key: str = field(repr=False)
    malformed: str = ""


def examine(key: str, source: str) -> KeyReading:
    """Raises ConfigError (layer 8) for a key that no server can have issued: it could only be refused."""

    def wrong(problem: str, fix: str) -> ConfigError:
        return ConfigError(f"the key from {source} looks malformed: {problem}", fix=fix, layer=8)

    bare = key.strip()
    if not bare:
        return KeyReading("")
    if key != bare:
        end = "ends" if key.rstrip() != key else "begins"
        what = "a line break" if set(key) & set("\r\n") else "a space"
        raise wrong(
            f"it {end} with {what}", f"set {source} again without it, for instance with $(tr -d '[:space:]' < file)"
        )
    if _ASSIGNED.match(bare):
        raise wrong(
            "it begins with the name of a variable and =", f"set {source} to what follows the =, without quotes"
        )
    if bare[0] in "\"'\u201c\u2018" or bare[-1] in "\"'\u201d\u2019":
        raise wrong("it has quotes around it", f"set {source} again without the quotes")
    if re.match(r"bearer(\s|$)", bare, re.IGNORECASE):
        raise wrong("it begins with the word Bearer, which is added when it is sent", f"remove that word from {source}")
    if any(c.isspace() or ord(c) < 33 for c in bare):
        raise wrong("it contains a space or a line break", f"set {source} again, on one line")
    if not bare.isascii():
        raise wrong("it contains characters that no key has", f"copy it again and set {source}")
    if bare.lower() in _NOTHING:
        return KeyReading("", f"it is the word {bare}, so no key was sent")
    if _VARIABLE.fullmatch(bare):
        raise wrong("it is the name of a variable, not its value", f"set {source} to the key itself")
    if bare.lower() not in _ANY and _PLACEHOLDER.search(bare):
        return KeyReading(bare, "it reads like a placeholder")
    return KeyReading(bare)


def hint(key: str, now_s: float | None = None) -> str:
    """What kind of credential this is, where that may explain a refusal; "" when it tells nothing. Never the key."""
    if not key:
        return ""
    if key.lower() in _ANY:
        return "the key is a stand-in word, not a key"
    if key.startswith(("sk-ant-oat", "ya29.", "gho_", "ghu_")):
        return "the key is an OAuth access token, which many APIs refuse where they want an API key"
    claims = _claims(key)
    if claims is not None:
        expires = claims.get("exp")
        now_s = time.time() if now_s is None else now_s
        if isinstance(expires, (int, float)) and expires < now_s:
            return f"the key is an OAuth token that expired {_ago(now_s - expires)} ago"
        return "the key is an OAuth token (JWT), which many APIs refuse where they want an API key"
    return ""


def secrets(headers: Mapping[str, str], query: str = "") -> list[str]:
    """The keys that a request sends, for whoever must not repeat them.

    The words that are sent to servers which want no key are none: everybody knows them.
    """
    found: dict[str, None] = {}
    for name, value in (*headers.items(), *parse_qsl(query.lstrip("?"))):
        if not _SECRET_NAME.search(name):
            continue
        kind, _, credentials = value.strip().rpartition(" ")
        if "cookie" in name.lower():
            parts = [one.partition("=")[2].strip() for one in value.split(";")]
        elif kind.lower() == "basic":
            parts = [credentials, *_basic(credentials)]
        else:
            parts = [credentials]
        found.update(dict.fromkeys(one for one in parts if one and one.lower() not in _NOTHING | _ANY))
    return list(found)


def _basic(credentials: str) -> tuple[str, ...]:
    """User and password, as they were before base64, and the password alone. RFC 7617."""
    try:
        plain = base64.b64decode(credentials, validate=True).decode()
    except ValueError:
        return ()
    return plain, plain.partition(":")[2]


def set_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names (never values) of the key variables that are set."""
    return tuple(name for name in KEY_VARIABLES if env.get(name))


def near_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of variables that are set and nobody reads, but nearly have the name of OPENAI_API_KEY."""
    return tuple(
        name for name in env
        if env[name] and name != "OPENAI_API_KEY" and name.replace("_", "").replace("-", "").upper() in _NEAR
    )  # fmt: skip


def of_another_service(key: str, host: str) -> str:
    """The service that issued this key, by its beginning; "" when the host is that service, or it cannot be told."""
    host = host.lower()
    return next((who for start, who, hosts in SERVICES if key.startswith(start) and not within(host, hosts)), "")


def within(host: str, suffixes: Iterable[str]) -> bool:
    return any(host == suffix or host.endswith(("." + suffix, "-" + suffix)) for suffix in suffixes)


def _claims(key: str) -> dict[str, object] | None:
    parts = key.split(".")
    if len(parts) != 3 or not key.startswith("eyJ"):
        return None
    try:
        value = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    return value if isinstance(value, dict) else None


def _ago(seconds: float) -> str:
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"
