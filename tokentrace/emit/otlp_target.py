"""Where to send a trace: the OTEL_EXPORTER_OTLP_* variables, as the OTLP exporter specification defines them.

OTEL_EXPORTER_OTLP_TRACES_X wins over OTEL_EXPORTER_OTLP_X for every setting X below.
ENDPOINT          over HTTP gets /v1/traces appended; TRACES_ENDPOINT is used as it is
PROTOCOL          http/protobuf or grpc; when unset: grpc for port 4317 (its registered port), else http/protobuf
HEADERS           key=value,key=value, percent-encoded; never printed
CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY     PEM files
TIMEOUT           of one request: the Python exporters take seconds, the specification milliseconds; a value of
                  1000 or more is read as milliseconds, a smaller one as seconds (default 10 s)
INSECURE          true: no TLS for a gRPC endpoint without a scheme
COMPRESSION       gzip or none
OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER (always_off and the ratios) keep spans from being sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tokentrace.emit._resource import parse_pairs
from tokentrace.emit.otlp_remarks import GRPC, PATH, Remark, Setting, remarks
from tokentrace.errors import ConfigError

__all__ = ["GRPC", "HTTP", "PATH", "OtlpTarget", "Remark", "configured", "mentioned"]

PREFIX = "OTEL_EXPORTER_OTLP_"
HTTP = "http/protobuf"
#: What programs write where a value is not set.
_UNSET = ("none", "null", "nil", "undefined", "nan")
_LIKE = "write it like http://localhost:4318"


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """A receiver. `endpoint` is the full URL over HTTP and scheme://host:port over gRPC.

    `timeout_s` bounds one request, `patience_s` the time without any batch accepted, `total_s` everything.
    """

    endpoint: str
    protocol: str = HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    gzip: bool = False
    timeout_s: float = 10.0
    patience_s: float = 30.0
    total_s: float = 300.0
    disabled: str = ""  # why nothing may be sent
    ratio: float = 1.0  # share of traces to send, by trace id
    source: str = "the endpoint"  # where the endpoint was set, for advice
    remarks: tuple[Remark, ...] = ()  # what is odd about the settings, although they can be used

    @property
    def secure(self) -> bool:
        return self.endpoint.startswith("https://")

    @property
    def host_port(self) -> str:
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]

    @property
    def shown(self) -> str:
        """The endpoint for messages: without user, password and query, which may hold a key."""
        parts = urlsplit(self.endpoint)
        return urlunsplit((parts.scheme, self.host_port, parts.path, "", ""))

    @classmethod
    def from_env(
        cls, endpoint: str = "", environ: Mapping[str, str] | None = None, option: str = "--otlp"
    ) -> OtlpTarget:
        """The target that the environment names; `endpoint` (of this option of a command) wins over its endpoints.

        Raises ConfigError, which names the variable and never a header's value.
        """
        env = os.environ if environ is None else environ
        given = Setting(option, endpoint.strip())
        if not given.text:
            given = Setting(_named(env, "ENDPOINT"), _setting(env, "ENDPOINT"))
        protocol, full = _endpoint(env, given)
        disabled, ratio = _sampling(env)
        headers = Setting(_named(env, "HEADERS"), _setting(env, "HEADERS"))
        return cls(
            endpoint=full,
            protocol=protocol,
            headers=_headers(headers),
            certificate=_setting(env, "CERTIFICATE"),
            client_certificate=_setting(env, "CLIENT_CERTIFICATE"),
            client_key=_setting(env, "CLIENT_KEY"),
            gzip=_compression(env),
            timeout_s=_timeout(env),
            disabled=disabled,
            ratio=ratio,
            source=given.source if given.is_variable else "the endpoint given",
            remarks=remarks(env, given, full, protocol, headers),
        )


def configured(environ: Mapping[str, str] | None = None) -> bool:
    """Does the environment name an OTLP endpoint?"""
    return bool(_setting(os.environ if environ is None else environ, "ENDPOINT"))


def mentioned(environ: Mapping[str, str]) -> list[str]:
    """The OTLP variables that are set, of those that matter to traces; sorted names."""
    return sorted(n for n, v in environ.items() if n.startswith(PREFIX) and v.strip()
                  and not n.startswith((f"{PREFIX}METRICS_", f"{PREFIX}LOGS_")))  # fmt: skip


def _setting(env: Mapping[str, str], name: str) -> str:
    return env.get(f"{PREFIX}TRACES_{name}", "").strip() or env.get(PREFIX + name, "").strip()


def _named(env: Mapping[str, str], name: str) -> str:
    """The variable that a setting came from, for messages."""
    specific = f"{PREFIX}TRACES_{name}"
    return specific if env.get(specific, "").strip() else PREFIX + name


def _endpoint(env: Mapping[str, str], given: Setting) -> tuple[str, str]:
    """(protocol, the full address). Raises ConfigError."""
    text, source = given.text, given.source
    protocol = _setting(env, "PROTOCOL").lower()
    if protocol not in ("", HTTP, GRPC):
        raise ConfigError(
            f"{_named(env, 'PROTOCOL')} is {protocol[:40]!r}, which is not supported", fix=f"set it to {HTTP} or {GRPC}"
        )
    _check_form(given)
    if text.startswith("grpc://"):
        protocol, text = protocol or GRPC, "http://" + text.removeprefix("grpc://")
    if not protocol:
        protocol = GRPC if _port(text, source) == 4317 else HTTP
    if not text:
        return protocol, "http://localhost:4317" if protocol == GRPC else f"http://localhost:4318{PATH}"
    if "://" not in text:
        text = f"{_scheme_for_bare(env, protocol, text)}://{text}"
    parts = _split(text, source)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{source} is {_shown(text)!r}, which is not a URL", fix=_LIKE)
    if protocol == GRPC:
        port = _port(text, source) or 4317
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return protocol, f"{parts.scheme}://{host}:{port}"
    path = parts.path
    if source == f"{PREFIX}TRACES_ENDPOINT":
        path = path or "/"
    elif not path.rstrip("/").endswith(PATH):
        path = path.rstrip("/") + PATH
    _port(text, source)
    return protocol, urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _check_form(given: Setting) -> None:
    """Raises ConfigError for what no program could have meant as an address."""
    text, source = given.text, given.source
    bare = text.strip("\"'`").strip()
    if bare.lower() in _UNSET:
        raise ConfigError(f"{source} is {text!r}, which is a value that was not set", fix=f"unset it, or {_LIKE}")
    if text and bare != text:
        raise ConfigError(
            f"{source} is {_shown(text)!r}: the quotes are part of it", fix=f"set it without them: {_shown(bare)}"
        )
    if re.search(r"\s", text):
        raise ConfigError(f"{source} is {_shown(text)!r}, with a space or a line break inside", fix=_LIKE)


def _shown(text: str) -> str:
    """Without what may be a key: a password or a query."""
    return re.sub(r"(//)[^/@]*@|\?.*", r"\1", text)[:200]


def _split(text: str, source: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # an unclosed [ of an IPv6 address
        raise ConfigError(f"{source} is {_shown(text)!r}, which is not a URL ({error})", fix=_LIKE) from error


def _port(text: str, source: str) -> int | None:
    try:
        return urlsplit(text if "://" in text else f"//{text}").port
    except ValueError as error:
        raise ConfigError(f"{source} has no usable port: {error}", fix=_LIKE) from error


def _scheme_for_bare(env: Mapping[str, str], protocol: str, text: str) -> str:
    """host:port without a scheme: TLS over gRPC unless INSECURE says otherwise, plain HTTP to this machine."""
    if _setting(env, "INSECURE").lower() == "true":
        return "http"
    if protocol == GRPC:
        return "https"
    host = urlsplit(f"//{text}").hostname or ""
    return "http" if host in ("localhost", "127.0.0.1", "::1") else "https"


def _headers(given: Setting) -> dict[str, str]:
    found = {key.lower(): value for key, value in parse_pairs(given.text).items()}
    for key, value in found.items():
        token = key.replace("-", "").replace("_", "").replace(".", "")
        named = token.isalnum() and token.isascii()
        if not named or not value.isprintable() or not value.isascii():
            # A name with other characters may be a whole header with its key: it is not shown.
            which = f"the header {key!r}, whose value" if named else "a header whose name"
            raise ConfigError(
                f"{given.source} holds {which} cannot be sent",
                fix="write it as key=value,key=value, with other characters percent-encoded",
            )
    return found


def _compression(env: Mapping[str, str]) -> bool:
    value = _setting(env, "COMPRESSION").lower()
    if value not in ("", "none", "gzip"):
        raise ConfigError(
            f"{_named(env, 'COMPRESSION')} is {value[:40]!r}, which is not supported", fix="set it to gzip or none"
        )
    return value == "gzip"


def _timeout(env: Mapping[str, str]) -> float:
    text = _setting(env, "TIMEOUT")
    if not text:
        return 10.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            f"{_named(env, 'TIMEOUT')} is {text[:40]!r}, which is not a time", fix="set it to seconds, like 10"
        )
    return value / 1000 if value >= 1000 else value


def _sampling(env: Mapping[str, str]) -> tuple[str, float]:
    """(why nothing may be sent, share of traces)."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED is true", 1.0
    sampler = env.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if sampler == "always_off":
        return f"OTEL_TRACES_SAMPLER is {env['OTEL_TRACES_SAMPLER'].strip()}", 1.0
    if sampler != "traceidratio":
        return "", 1.0
    text = env.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER_ARG is {text[:40]!r}, which is not a share", fix="set it between 0 and 1"
        )
    return "", ratio
