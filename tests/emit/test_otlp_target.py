"""The OTEL_EXPORTER_OTLP_* variables mean here what they mean to every OpenTelemetry exporter."""

from __future__ import annotations

import pytest

from tokentrace.emit.otlp_target import OtlpTarget, configured
from tokentrace.errors import ConfigError

P = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("given", "environ", "endpoint", "protocol"),
    [
        ("", {}, "http://localhost:4318/v1/traces", "http/protobuf"),
        ("", {"PROTOCOL": "grpc"}, "http://localhost:4317", "grpc"),
        ("", {"ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", "http/protobuf"),
        ("", {"ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces", "http/protobuf"),
        ("", {"ENDPOINT": "https://c/otlp/"}, "https://c/otlp/v1/traces", "http/protobuf"),
        ("", {"ENDPOINT": "https://c/api?k=1"}, "https://c/api/v1/traces?k=1", "http/protobuf"),
        ("", {"TRACES_ENDPOINT": "http://c:4318/x"}, "http://c:4318/x", "http/protobuf"),
        ("", {"TRACES_ENDPOINT": "http://c:4318"}, "http://c:4318/", "http/protobuf"),
        ("", {"TRACES_ENDPOINT": "http://t:1/x", "ENDPOINT": "http://c:2"}, "http://t:1/x", "http/protobuf"),
        ("", {"ENDPOINT": "http://c:4317"}, "http://c:4317", "grpc"),
        ("", {"ENDPOINT": "http://c:4317", "PROTOCOL": "http/protobuf"}, "http://c:4317/v1/traces", "http/protobuf"),
        ("", {"ENDPOINT": "http://c:99/p", "PROTOCOL": "grpc"}, "http://c:99", "grpc"),
        ("", {"ENDPOINT": "http://c:99", "PROTOCOL": "grpc", "TRACES_PROTOCOL": "http/protobuf"},
         "http://c:99/v1/traces", "http/protobuf"),
        ("", {"ENDPOINT": "c:99", "PROTOCOL": "grpc"}, "https://c:99", "grpc"),
        ("", {"ENDPOINT": "c:99", "PROTOCOL": "grpc", "INSECURE": "TRUE"}, "http://c:99", "grpc"),
        ("", {"ENDPOINT": "http://c:99", "PROTOCOL": "grpc", "INSECURE": "false"}, "http://c:99", "grpc"),
        ("", {"ENDPOINT": "http://[::1]", "PROTOCOL": "grpc"}, "http://[::1]:4317", "grpc"),
        ("http://c:4318", {"ENDPOINT": "http://other"}, "http://c:4318/v1/traces", "http/protobuf"),
        ("http://c:4318/v1/traces", {"TRACES_ENDPOINT": "http://other"}, "http://c:4318/v1/traces", "http/protobuf"),
        ("localhost:4318", {}, "http://localhost:4318/v1/traces", "http/protobuf"),
        ("collector:4318", {}, "https://collector:4318/v1/traces", "http/protobuf"),
        ("grpc://c:99", {}, "http://c:99", "grpc"),
        ("http://c:4317/", {}, "http://c:4317", "grpc"),
    ],
)  # fmt: skip
def test_endpoint_and_protocol(given: str, environ: dict[str, str], endpoint: str, protocol: str) -> None:
    target = OtlpTarget.from_env(given, {P + key: value for key, value in environ.items()})
    assert (target.endpoint, target.protocol) == (endpoint, protocol)


def test_the_other_settings() -> None:
    target = OtlpTarget.from_env(
        environ={
            P + "HEADERS": "general=1",
            P + "TRACES_HEADERS": "X-Key = a%20b , other=c=d,bad",
            P + "CERTIFICATE": "/ca.pem",
            P + "CLIENT_CERTIFICATE": "/c.pem",
            P + "CLIENT_KEY": "/k.pem",
            P + "COMPRESSION": "gzip",
            P + "TRACES_COMPRESSION": "none",
            P + "TIMEOUT": "7",
        }
    )
    assert target.headers == {"x-key": "a b", "other": "c=d"}
    assert (target.certificate, target.client_certificate, target.client_key) == ("/ca.pem", "/c.pem", "/k.pem")
    assert target.timeout_s == 7
    assert not target.gzip
    assert OtlpTarget.from_env(environ={P + "TIMEOUT": "2500"}).timeout_s == 2.5


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"PROTOCOL": "http/json"}, "PROTOCOL"),
        ({"TRACES_PROTOCOL": "udp"}, "TRACES_PROTOCOL"),
        ({"ENDPOINT": "ftp://user:geheim@c/?k=geheim"}, "ENDPOINT"),
        ({"TRACES_ENDPOINT": "http://c:port"}, "TRACES_ENDPOINT"),
        ({"TIMEOUT": "soon"}, "TIMEOUT"),
        ({"TIMEOUT": "-1"}, "TIMEOUT"),
        ({"TIMEOUT": "nan"}, "TIMEOUT"),
        ({"COMPRESSION": "zstd"}, "COMPRESSION"),
        ({"HEADERS": "key=geheim%0Ax"}, "HEADERS"),
        ({"HEADERS": "a b=geheim"}, "HEADERS"),
    ],
)
def test_an_unusable_setting_is_named_and_no_value_of_a_header_shown(environ: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=P + names) as caught:
        OtlpTarget.from_env(environ={P + key: value for key, value in environ.items()})
    assert caught.value.fix
    assert "geheim" not in str(caught.value) + caught.value.fix


def test_neither_password_nor_query_is_shown() -> None:
    target = OtlpTarget.from_env("https://user:geheim@c:1/p?key=geheim")
    assert target.shown == "https://c:1/p/v1/traces"


def test_configured_looks_at_both_variables() -> None:
    assert not configured({})
    assert configured({P + "ENDPOINT": "http://c"})
    assert configured({P + "TRACES_ENDPOINT": "http://c"})
