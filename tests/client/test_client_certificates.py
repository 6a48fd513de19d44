"""Certificates, each made for real: trusted, refused, expired, for another name, of the client."""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path

import pytest
from client_support import CHAT, ask, error_of, say_hi
from support.certificates import make_certificate, server_context
from support.http_servers import ForwardProxy, ScriptedServer, hello

from tokentrace.client import certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def test_http_to_a_server_of_https(folder: Path) -> None:
    cert, key = make_certificate(folder)
    with ScriptedServer(tls=server_context(cert, key)) as server:
        error = error_of(say_hi(server.url.replace("https://", "http://") + "/v1"), "TT814")
    assert error.fix == f"use {server.url}/v1"


def test_a_server_that_wants_a_certificate_of_the_client(folder: Path) -> None:
    cert, key = make_certificate(folder, "mutual")
    context = server_context(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cert)
    with ScriptedServer(tls=context).on("POST", CHAT, hello()) as server:
        error = error_of(say_hi(server.url + "/v1", environ={"SSL_CERT_FILE": str(cert)}), "TT815")
    assert "wants a certificate of the client" in str(error) and "TLS 1.2" not in error.fix


def test_a_trusted_certificate(folder: Path) -> None:
    cert, key = make_certificate(folder, "trusted")
    with ScriptedServer(tls=server_context(cert, key)).on("POST", CHAT, hello()) as server:
        x = say_hi(server.url + "/v1", environ={"SSL_CERT_FILE": str(cert)})
    assert x.complete and [p.name for p in x.phases] == ["connect", "tls", "send", "wait", "stream"]
    tls = x.phases[1].attributes
    assert tls["tls.protocol.version"].startswith("TLSv1.") and tls["tls.cipher"]


def test_a_self_signed_certificate(folder: Path) -> None:
    cert, key = make_certificate(folder, "selfmade")
    with ScriptedServer(tls=server_context(cert, key)).on("POST", CHAT, hello()) as server:
        error = error_of(ask(server, api_key="sk-1"), "TT811")
        assert server.requests == []
    assert "self-signed" in str(error)
    assert "SSL_CERT_FILE" in error.fix and "REQUESTS_CA_BUNDLE" in error.fix and "trusted here" in error.detail
    assert "verif" not in error.fix


def test_a_private_authority(folder: Path) -> None:
    authority = make_certificate(folder, "Corp Root CA", authority=True)
    cert, key = make_certificate(folder, "signed", signed_by=authority)
    with ScriptedServer(tls=server_context(cert, key)).on("POST", CHAT, hello()) as server:
        error = error_of(ask(server), "TT811")
        assert "Corp Root CA" in str(error)
        assert ask(server, environ={"SSL_CERT_FILE": str(authority[0])}).complete


@pytest.mark.skipif(sys.version_info < (3, 13), reason="earlier versions accept it")
def test_an_authority_that_is_known_and_refused_all_the_same(folder: Path) -> None:
    authority = make_certificate(folder, "Old Root CA", authority=True, strict=False)
    cert, key = make_certificate(folder, "by the old", signed_by=authority, strict=False)
    with ScriptedServer(tls=server_context(cert, key)) as server:
        error = error_of(ask(server, environ={"SSL_CERT_FILE": str(authority[0])}), "TT811")
    assert "is refused here: " in str(error) and "not trusted" not in str(error) and "issued anew" in error.fix


def test_a_certificate_for_another_name(folder: Path) -> None:
    cert, key = make_certificate(folder, "ignored.example", names=["DNS:other.example", "DNS:*.b.example", "IP:::1"])
    with ScriptedServer(tls=server_context(cert, key)) as server:
        error = error_of(ask(server, environ={"SSL_CERT_FILE": str(cert)}), "TT812")
    assert "it is for other.example, *.b.example and ::1" in str(error) and "ignored.example" not in str(error)


def test_an_expired_certificate(folder: Path) -> None:
    cert, key = make_certificate(folder, "old", days=0)
    time.sleep(1.1)
    with ScriptedServer(tls=server_context(cert, key)) as server:
        error = error_of(ask(server, environ={"SSL_CERT_FILE": str(cert)}), "TT810")
    assert "has expired (valid 20" in str(error) and "clock" in error.fix


def test_unusable_certificate_variables(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name in (tmp_path / "absent.pem", tmp_path / "empty.pem"):
        error = error_of(say_hi("https://127.0.0.1:1/v1", environ={"SSL_CERT_FILE": str(name)}), "TT801")
        assert "SSL_CERT_FILE" in str(error)


def test_certificates_are_read(folder: Path) -> None:
    cert, _ = make_certificate(folder, "read.me")
    import ssl

    found = certificates.parse(ssl.PEM_cert_to_DER_cert(cert.read_text()))
    assert found.subject == found.issuer == "read.me" and found.self_signed
    assert found.not_before[:2] == "20" and found.not_after > found.not_before
    for broken in (b"", b"\x30", b"\x30\x82\xff\xff", bytes(50), ssl.PEM_cert_to_DER_cert(cert.read_text())[:80]):
        with pytest.raises(ValueError, match="not a certificate"):
            certificates.parse(broken)


def test_through_a_tunnel(folder: Path) -> None:
    cert, key = make_certificate(folder, "tunnel", names=["DNS:server.example"])
    with ScriptedServer(tls=server_context(cert, key)).on("POST", CHAT, hello()) as server, ForwardProxy() as proxy:
        environ = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(cert)}
        x = say_hi(f"https://server.example:{server.port}/v1", environ=environ, api_key="sk-secret")
        assert x.complete and proxy.seen == [f"CONNECT server.example:{server.port} HTTP/1.1"]
        assert b"secret" not in proxy.heads[0]
    assert [p.name for p in x.phases] == ["connect", "tls", "send", "wait", "stream"]
    for one, other in zip(x.phases, x.phases[1:], strict=False):
        assert one.end_ns <= other.start_ns
