"""The OTEL_EXPORTER_OTLP_* variables mean here what they mean to every OpenTelemetry exporter."""

from __future__ import annotations

import pytest

from tokentrace.emit.otlp_target import OtlpTarget, configured, mentioned
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
        ({"HEADERS": "Authorization: Basic geheim=="}, "HEADERS"),
        ({"ENDPOINT": "None"}, "ENDPOINT"),
        ({"ENDPOINT": "'null'"}, "ENDPOINT"),
        ({"ENDPOINT": '"http://c:4318"'}, "ENDPOINT"),
        ({"ENDPOINT": "http://c :4318"}, "ENDPOINT"),
        ({"ENDPOINT": "http://[::1"}, "ENDPOINT"),
        ({"ENDPOINT": "http://c:99999"}, "ENDPOINT"),
        ({"TIMEOUT": "None"}, "TIMEOUT"),
    ],
)
def test_an_unusable_setting_is_named_and_no_value_of_a_header_shown(environ: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=P + names) as caught:
        OtlpTarget.from_env(environ={P + key: value for key, value in environ.items()})
    assert caught.value.fix
    assert "geheim" not in str(caught.value) + caught.value.fix


@pytest.mark.parametrize(
    ("given", "environ", "message", "fix"),
    [
        ("", {"HEADERS": "geheim"}, "HEADERS has no = in it", "key=value"),
        ("", {"HEADERS": "a=1,geheim"}, "HEADERS (part 2 of 2) has no = in it", "key=value"),
        ("", {"HEADERS": "=geheim"}, "no name before its =", "key=value"),
        ("", {"HEADERS": 'x-key="geheim"'}, "a value in quotes", "quotes"),
        (
            "",
            {"ENDPOINT": "c:4318"},
            "ENDPOINT has no scheme and is read as https://c:4318; most",
            "https:// before it",
        ),
        ("", {"ENDPOINT": "c:4317"}, "ENDPOINT has no scheme and is read as https://c:4317", "http:// if that"),
        ("localhost:4318", {}, "--otlp has no scheme and is read as http://localhost:4318", "http:// before it"),
        ("", {"ENDPOINT": "http://c"}, "no port, so traces go to port 80 of c", ":4318"),
        ("", {"ENDPOINT": "http://c:4317", "PROTOCOL": "http/protobuf"}, "usual port of gRPC", "4318"),
        ("", {"ENDPOINT": "http://c:4318", "PROTOCOL": "grpc"}, "usual port of HTTP", "4317"),
        ("", {"ENDPOINT": "http://c:4317/v1/traces"}, "has a path, and over grpc none is used", "leave the path out"),
        ("", {"TRACES_ENDPOINT": "http://c:4318"}, "does not end in /v1/traces", "end it in /v1/traces"),
        ("", {"ENDPOINT": "http://c:4318/v1/traces"}, "append /v1/traces once more", "TRACES_ENDPOINT"),
        ("", {"INSECURE": "yes"}, "counts as false", "true or false"),
    ],
)
def test_what_can_be_used_and_is_odd_is_remarked(given: str, environ: dict[str, str], message: str, fix: str) -> None:
    found = OtlpTarget.from_env(given, {P + key: value for key, value in environ.items()}).remarks
    assert len(found) == 1, found
    assert message in found[0].message and fix in found[0].fix, found
    assert "geheim" not in str(found[0])


def test_an_option_goes_by_its_name_and_other_programs_do_not_read_it() -> None:
    (remark,) = OtlpTarget.from_env("localhost:4318", {}, option="--endpoint").remarks
    assert remark.message == "--endpoint has no scheme and is read as http://localhost:4318"
    with pytest.raises(ConfigError, match="--endpoint"):
        OtlpTarget.from_env("ftp://c", {}, option="--endpoint")


def test_switches_that_do_not_switch_are_remarked() -> None:
    for name, value in (("OTEL_SDK_DISABLED", "1"), ("OTEL_TRACES_SAMPLER", "sometimes")):
        target = OtlpTarget.from_env("http://c:4318", {name: value})
        assert not target.disabled and [name in str(one) for one in target.remarks] == [True]
    assert OtlpTarget.from_env("http://c:4318", {"OTEL_SDK_DISABLED": "TRUE"}).disabled


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"ENDPOINT": "http://c:4318"},
        {"ENDPOINT": "http://c:4317"},
        {"ENDPOINT": "https://c/otlp", "HEADERS": "authorization=Bearer%20abc=, x=y,"},
        {"TRACES_ENDPOINT": "http://c:4318/v1/traces", "PROTOCOL": "http/protobuf", "INSECURE": "true"},
    ],
)
def test_sound_settings_get_no_remark(environ: dict[str, str]) -> None:
    target = OtlpTarget.from_env("", {P + key: value for key, value in environ.items()})
    assert target.remarks == () and not target.disabled


def test_variables_of_other_signals_are_no_matter_of_traces() -> None:
    names = ("HEADERS", "LOGS_ENDPOINT", "METRICS_PROTOCOL", "TRACES_TIMEOUT", "PROTOCOL")
    assert mentioned({P + name: "x" for name in names} | {P + "TIMEOUT": " "}) == [
        P + "HEADERS", P + "PROTOCOL", P + "TRACES_TIMEOUT",
    ]  # fmt: skip


def test_neither_password_nor_query_is_shown() -> None:
    target = OtlpTarget.from_env("https://user:geheim@c:1/p?key=geheim")
    assert target.shown == "https://c:1/p/v1/traces"


def test_configured_looks_at_both_variables() -> None:
    assert not configured({})
    assert configured({P + "ENDPOINT": "http://c"})
    assert configured({P + "TRACES_ENDPOINT": "http://c"})
