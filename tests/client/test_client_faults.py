"""Faults below HTTP, each made for real: names, ports, address families, proxies, other protocols."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from client_support import CHAT, ask, error_of, say_hi
from support.http_servers import Answer, ForwardProxy, Raw, Refusing, ScriptedServer, hello, html_answer

from tokentrace.client import network, proxies
from tokentrace.client.network import Backend
from tokentrace.client.wire import Timeouts, Wire
from tokentrace.errors import ConfigError, EndpointError


def test_nothing_listens() -> None:
    with Refusing() as port:
        x = say_hi(port.url + "/v1")
    error = error_of(x, "TT803")
    assert f"127.0.0.1:{port.port}" in str(error) and x.error_type == "connection_refused"
    assert [p.name for p in x.phases] == ["connect"] and x.phases[0].attributes["error.type"] == "failed"
    assert error.detail.startswith("127.0.0.1 refused after")


def test_connecting_is_tried_again_when_asked_for() -> None:
    with Refusing() as port:
        x = say_hi(port.url + "/v1", max_retries=1)
    assert x.attempts == 2 and "retry 1 of 1" in x.notes[0]
    assert [p.name for p in x.phases] == ["connect", "wait", "connect"]


def test_unknown_name() -> None:
    x = say_hi("http://no-such-host.invalid/v1")
    error = error_of(x, "TT802")
    assert "no-such-host.invalid" in str(error)
    assert x.phases[0].name == "dns"


def test_no_answer_to_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        # With the queue full the system answers no further connection, as a firewall would.
        held = [socket.socket() for _ in range(4)]
        try:
            for one in held:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            time.sleep(0.1)
            x = say_hi(f"http://127.0.0.1:{port}/v1", timeout_s=0.5)
        finally:
            for one in held:
                one.close()
    error = error_of(x, "TT804")
    assert "did not answer" in error.detail


def use_addresses(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses, in this order."""
    real = socket.getaddrinfo

    def resolve(host: str, port: Any, *args: Any, **kwargs: Any) -> Any:
        if not host.replace(".", "").isalpha():
            return real(host, port, *args, **kwargs)  # an address, not a name
        kwargs["flags"] = socket.AI_NUMERICHOST
        return [found for a in addresses for found in real(a, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def test_an_address_nobody_listens_on_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    use_addresses(monkeypatch, "127.0.0.2", "127.0.0.1")
    with ScriptedServer().on("POST", CHAT, hello()) as server:
        x = say_hi(f"http://both.example:{server.port}/v1")
    assert x.complete
    tried = next(p for p in x.phases if p.name == "connect").attributes["tokentrace.connect.attempts"]
    assert [t.split(" after")[0] for t in tried] == ["127.0.0.2 refused", "127.0.0.1 connected"]


@needs_ipv6
def test_localhost_that_is_ipv6_first(monkeypatch: pytest.MonkeyPatch) -> None:
    use_addresses(monkeypatch, "::1", "127.0.0.1")
    with ScriptedServer().on("POST", CHAT, hello()) as server:
        x = say_hi(f"http://localhost:{server.port}/v1")
    assert x.complete
    connect = next(p for p in x.phases if p.name == "connect")
    assert connect.attributes["network.peer.address"] == "127.0.0.1"


@contextlib.contextmanager
def _silent_beside() -> Iterator[tuple[socket.socket, ScriptedServer]]:
    """A server at 127.0.0.2, and a socket at 127.0.0.1 with the same port, which somebody else may have just now."""
    for _ in range(50):
        with socket.socket() as silent, ScriptedServer(host="127.0.0.2") as server:
            try:
                silent.bind(("127.0.0.1", server.port))
            except OSError:
                continue
            yield silent, server
            return
    pytest.fail("no port is free at both addresses")


def test_a_silent_first_address_costs_a_quarter_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with _silent_beside() as (silent, server):
        server.on("POST", CHAT, hello())
        silent.listen(0)
        held = [socket.socket() for _ in range(4)]
        try:
            for one in held:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", server.port))
            time.sleep(0.1)
            use_addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
            x = say_hi(f"http://both.example:{server.port}/v1")
        finally:
            for one in held:
                one.close()
    assert x.complete
    tried = next(p for p in x.phases if p.name == "connect").attributes["tokentrace.connect.attempts"]
    assert tried[0].startswith("127.0.0.1 given up") and tried[1].startswith("127.0.0.2 connected")


def only_on(host: str) -> socket.socket:
    """A listener on one address, at a port that is free on 127.0.0.1 and ::1."""
    while True:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        with contextlib.suppress(OSError):
            other = "127.0.0.1" if ":" in host else "::1"
            socket.create_connection((other, listener.getsockname()[1]), timeout=1).close()
            listener.close()
            continue
        return listener


@needs_ipv6
@pytest.mark.parametrize(
    ("listens", "name", "resolved"),
    [
        ("127.0.0.1", "localhost", "::1"),
        ("::1", "localhost", "127.0.0.1"),
        ("::1", "127.0.0.1", ""),
        ("127.0.0.1", "[::1]", ""),
    ],
)
def test_a_server_on_the_other_family_of_this_machine(
    listens: str, name: str, resolved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with only_on(listens) as listener:
        port = listener.getsockname()[1]
        if resolved:
            use_addresses(monkeypatch, resolved)
        error = error_of(say_hi(f"http://{name}:{port}/v1"), "TT806")
        right = f"http://{'[::1]' if listens == '::1' else listens}:{port}/v1"
        assert error.fix == f"use {right}" and f"nothing listens on {name}:{port}" in str(error)
        assert not resolved or f"localhost is {resolved} here" in str(error)


def test_a_port_that_nobody_listens_on_anywhere_is_no_matter_of_families() -> None:
    with Refusing() as port:
        error_of(say_hi(f"http://localhost:{port.port}/v1"), "TT803")


def test_families_take_turns() -> None:
    def address(host: str) -> network.Address:
        return (socket.AF_INET6 if ":" in host else socket.AF_INET, 1, 6, (host, 80))

    mixed = network._alternate([address(h) for h in ("::1", "::2", "::3", "1.1.1.1", "2.2.2.2")])
    assert [a[3][0] for a in mixed] == ["::1", "1.1.1.1", "::2", "2.2.2.2", "::3"]


def test_lookup_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: (released.wait(100), [])[1])
    start = time.monotonic()
    x = say_hi("http://slow.example/v1", timeout_s=0.3)
    assert time.monotonic() - start < 60
    released.set()
    error_of(x, "TT802")


@pytest.mark.parametrize(
    ("greeting", "check", "word"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "TT829", "speaks SSH, and no HTTP"),
        (b"220 mail.example ESMTP Postfix\r\n", "TT829", "speaks SMTP"),
        (b"-ERR unknown command\r\n", "TT829", "speaks Redis"),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "TT829", "HTTP/2"),
        (b"\x00\x01\x02", "TT829", "does not speak HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "TT814", "speaks https"),
        (b"", "TT828", "without an answer"),
        (b"HTTP/1.1 abc def\r\n\r\n", "TT829", "not valid HTTP"),
    ],
)
def test_what_answers_is_something_else(greeting: bytes, check: str, word: str) -> None:
    with ScriptedServer(greeting=greeting) as server:
        error = error_of(ask(server), check)
    assert word in str(error)


@pytest.mark.parametrize(
    ("greeting", "word"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "speaks SSH"),
        (b"220 mail.example ESMTP Postfix\r\n", "speaks SMTP"),
        (b"hello there, whoever you are\r\n", "neither https nor http"),
    ],
)
def test_https_to_something_else(greeting: bytes, word: str) -> None:
    with ScriptedServer(greeting=greeting) as server:
        error = error_of(say_hi(server.url.replace("http://", "https://") + "/v1"), "TT829")
    assert word in str(error) and "plain http" not in str(error) + error.fix
    assert "it began with: " in error.detail


@pytest.mark.parametrize("headers", [{f"X-{n}": "a" * 10_000 for n in range(100)}, {"X": "a" * 1_000_000}])
def test_headers_that_are_too_long(headers: dict[str, str]) -> None:
    with ScriptedServer().on("POST", CHAT, Answer(200, headers, [b"{}"], "length")) as server:
        error = error_of(ask(server), "TT829")
    assert "headers" in str(error) and "100 KiB" in str(error) and "broke" not in str(error)


def test_chunk_framing_that_is_broken() -> None:
    with ScriptedServer().on("POST", CHAT, Answer(200, {}, [Raw(b"zz\r\nhello\r\n")])) as server:
        error_of(ask(server), "TT860")


def test_https_to_a_server_of_plain_http() -> None:
    with ScriptedServer().on("POST", CHAT, hello()) as server:
        url = server.url.replace("http://", "https://") + "/v1"
        x = say_hi(url)
    error = error_of(x, "TT813")
    assert error.fix == f"use {server.url}/v1"
    assert x.phases[-1].name == "tls"


def test_a_proxy_that_takes_the_tunnel_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        x = say_hi("https://server.example/v1", environ={"HTTPS_PROXY": url}, timeout_s=0.5)
    error = error_of(x, "TT820")
    assert url.removeprefix("http://") in str(error) and "server.example" not in str(error)


def test_a_web_page_that_came_through_a_proxy_names_it() -> None:
    with ScriptedServer().otherwise(html_answer("<html>Log in to the network</html>")) as portal:
        x = say_hi("http://server.example/v1", environ={"HTTP_PROXY": portal.url})
    error = error_of(x, "TT850")
    assert f"the proxy 127.0.0.1:{portal.port} (HTTP_PROXY)" in str(error) and "NO_PROXY=server.example" in error.fix


def test_proxy_that_is_not_there() -> None:
    with Refusing() as port:
        for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            x = say_hi("http://server.example/v1", environ={variable: f"http://user:secret@127.0.0.1:{port.port}"})
            error = error_of(x, "TT820")
            assert f"127.0.0.1:{port.port} ({variable})" in str(error) and f"unset {variable}" in error.fix
            assert "secret" not in str(error) + error.fix + error.detail + repr(x)


def test_through_a_proxy() -> None:
    with ScriptedServer().on("POST", CHAT, hello()) as server, ForwardProxy() as proxy:
        url = f"http://server.example:{server.port}/v1"
        x = say_hi(url, environ={"http_proxy": proxy.url.replace("//", "//me:pass@")})
        assert x.complete and x.proxy == f"127.0.0.1:{proxy.port} (http_proxy)"
        assert proxy.seen == [f"POST http://server.example:{server.port}{CHAT} HTTP/1.1"]
        assert b"Proxy-Authorization: Basic" in proxy.heads[0]


def test_tunnel_refused() -> None:
    with ForwardProxy(refuse=403) as proxy:
        error = error_of(say_hi("https://server.example/v1", environ={"https_proxy": proxy.url}), "TT821")
    assert "403" in str(error) and f"127.0.0.1:{proxy.port}" in str(error)


def test_this_machine_is_never_asked_through_a_proxy() -> None:
    with Refusing() as port, ScriptedServer().on("POST", CHAT, hello()) as server:
        for host in ("127.0.0.1", "localhost"):
            assert say_hi(f"http://{host}:{server.port}/v1", environ={"http_proxy": port.url}).complete


def test_unusable_proxy_variables() -> None:
    for value in ("ftp://p:1", "http://", "http://h:abc"):
        error = error_of(say_hi("http://server.example/v1", environ={"http_proxy": value}), "TT801")
        assert "http_proxy" in str(error)
    error = error_of(say_hi("https://s.example/v1", environ={"https_proxy": "https://p.example:1"}), "TT801")
    assert "not supported" in str(error)


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("a.example.com", "example.com", True),
        ("a.example.com", ".example.com", True),
        ("a.example.com", "*.example.com", True),
        ("badexample.com", "example.com", False),
        ("example.com", "EXAMPLE.com, other", True),
        ("h", "*", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3:8000", True),
        ("10.1.2.3", "10.1.2.3:9000", False),
        ("h", "", False),
        ("h", " , ,", False),
        ("10.1.2.3", "not/a/network", False),
    ],
)
def test_no_proxy(host: str, no_proxy: str, direct: bool) -> None:
    found = proxies.choose("http", host, 8000, {"HTTP_PROXY": "127.0.0.1:3128", "NO_PROXY": no_proxy})
    assert (found is None) == direct
    if found is not None:
        assert found.shown == "127.0.0.1:3128 (HTTP_PROXY)"


def test_proxy_repr_hides_the_password() -> None:
    found = proxies.choose("http", "h", 80, {"http_proxy": "http://me:secret@p:1"})
    assert found is not None and found.password == "secret"
    assert "secret" not in repr(found) and "me" not in found.shown


def test_socks_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "socksio", None)
    error = error_of(say_hi("http://s.example/v1", environ={"ALL_PROXY": "socks5://127.0.0.1:1"}), "TT801")
    assert "socksio" in str(error) + error.fix


def test_waiting_can_be_stopped() -> None:
    backend = Backend(Wire(), Timeouts(), lambda: True)
    with pytest.raises(network.Stopped):
        backend.sleep(10)


def test_config_errors_in_files_are_no_endpoint_errors() -> None:
    assert not issubclass(ConfigError, EndpointError)
