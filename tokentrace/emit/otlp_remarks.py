"""What is odd about the OTLP settings although a trace can be sent with them: it will hurt, or other programs differ.

The doctor warns of these, and every command that sends a trace says them, so that both tell the same. What cannot be
used at all is a ConfigError of `otlp_target`; what a receiver answers is told by the sending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

GRPC, PATH = "grpc", "/v1/traces"
_SAMPLERS = ("", "always_on", "always_off", "traceidratio", "jaeger_remote", "xray")
_QUOTES = "\"'`"


@dataclass(frozen=True, slots=True)
class Remark:
    """`message` is a sentence without its full stop, `fix` what to type; no header's value is in either."""

    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A text and the variable (or option) that it came from."""

    source: str
    text: str

    @property
    def is_variable(self) -> bool:
        return self.source.startswith("OTEL_")


def remarks(
    env: Mapping[str, str], given: Setting, endpoint: str, protocol: str, headers: Setting
) -> tuple[Remark, ...]:
    """Of one target. `given`: the endpoint as it was written; `endpoint`: as it is used, over `protocol`."""
    return (*_address(given, endpoint, protocol), *_headers(headers), *_switches(env))


def _address(given: Setting, endpoint: str, protocol: str) -> Iterator[Remark]:
    parts = urlsplit(endpoint)
    port = parts.port
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    path = urlsplit(given.text if "://" in given.text else f"//{given.text}").path.rstrip("/")
    if given.text and "://" not in given.text:
        read = f"{given.source} has no scheme and is read as {where}"
        more = "; most programs cannot use it" if given.is_variable and protocol != GRPC else ""
        other = "http" if parts.scheme == "https" else "https"
        yield Remark(f"{read}{more}", f"write {parts.scheme}:// before it, or {other}:// if that is what is spoken")
    if protocol != GRPC and port == 4317:
        yield Remark(
            f"traces go to {where} over {protocol}, and 4317 is the usual port of gRPC",
            "use port 4318 for http/protobuf, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
        )
    elif protocol == GRPC and port == 4318:
        yield Remark(
            f"traces go to {where} over grpc, and 4318 is the usual port of HTTP",
            "use port 4317 for grpc, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        )
    elif protocol != GRPC and parts.scheme == "http" and port is None:
        yield Remark(
            f"{given.source} names no port, so traces go to port 80 of {parts.hostname}",
            "write the receiver's port, usually :4318",
        )
    if protocol == GRPC:
        if path:
            yield Remark(f"{given.source} has a path, and over grpc none is used", "leave the path out")
    elif not parts.path.rstrip("/").endswith(PATH):
        yield Remark(
            f"traces go to {where}{parts.path}, whose path does not end in {PATH}",
            f"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is: end it in {PATH}",
        )
    elif path.endswith(PATH) and given.source == "OTEL_EXPORTER_OTLP_ENDPOINT":
        yield Remark(
            f"{given.source} ends in {PATH}, and other programs append {PATH} once more",
            f"leave {PATH} out, or use OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        )


def _headers(given: Setting) -> Iterator[Remark]:
    """Counted, never shown: any part of it may be a key."""
    parts = [part.strip() for part in given.text.split(",")]
    for number, part in enumerate(parts, 1):
        key, equals, value = part.partition("=")
        which = f"{given.source} (part {number} of {len(parts)})" if len(parts) > 1 else given.source
        value = value.strip()
        if part and not (equals and key.strip()):
            what = "no name before its =" if equals else "no = in it"
            yield Remark(f"{which} has {what}, so no header is sent for it", "write it as key=value,key=value")
        elif len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
            yield Remark(f"{which} has a value in quotes, which are sent along", "leave the quotes out")


def _switches(env: Mapping[str, str]) -> Iterator[Remark]:
    for name, what in (("OTEL_SDK_DISABLED", "traces are sent"), ("OTEL_EXPORTER_OTLP_INSECURE", "TLS is used")):
        value = env.get(name, "").strip()
        if value.lower() not in ("", "true", "false"):
            yield Remark(f"{name} is {value[:40]!r}, which counts as false: {what}", "set it to true or false")
    sampler = env.get("OTEL_TRACES_SAMPLER", "").strip()
    if sampler.lower().removeprefix("parentbased_") not in _SAMPLERS:
        yield Remark(f"OTEL_TRACES_SAMPLER is {sampler[:40]!r}, which is no sampler: all traces are sent", "unset it")
