"""What a proxy from the environment answers in place of the server, with the heads that a real Squid sent."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from client_support import CHAT, say_hi
from support.http_servers import ForwardProxy, ScriptedServer, html_answer, json_answer, read_request
from support.loopback import Loopback

#: Squid 5.7; its pages are replaced by their titles.
SQUID = json.loads((Path(__file__).resolve().parents[1] / "data" / "gateways" / "squid.json").read_text())


class Answering(Loopback):
    """A proxy that gives this answer to whatever it is asked."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self._answer = answer.encode("latin-1")

    def handle(self, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(self._answer)


@pytest.mark.parametrize("name", SQUID)
def test_squid_is_named_with_its_variable_and_the_line_that_goes_past_it(name: str) -> None:
    scheme, variable = ("https", "https_proxy") if name.startswith("CONNECT") else ("http", "http_proxy")
    with Answering(SQUID[name]) as proxy:
        x = say_hi(f"{scheme}://server.example/v1", environ={variable: proxy.url, "NO_PROXY": "localhost,10.0.0.1"})
    error = x.error
    assert error is not None and error.check == "TT821" and error.layer == 8, error
    assert f"the proxy 127.0.0.1:{proxy.port} ({variable})" in str(error) and "the server was not asked" in str(error)
    assert "export NO_PROXY=localhost,10.0.0.1,server.example" in error.fix
    assert name.split()[-1] in str(error)
    code = SQUID[name].partition("X-Squid-Error: ")[2].split()[0]
    if scheme == "http" and "407" not in name:  # the library that opens the tunnel keeps no headers
        assert code in str(error)
    words = {"403": "does not pass requests", "407": "user name and password"}.get(name[-3:], "could not reach")
    assert words in str(error)


def test_a_proxy_that_refuses_without_a_word() -> None:
    with ForwardProxy(refuse=403) as proxy:
        x = say_hi("http://server.example/v1", environ={"http_proxy": proxy.url})
    assert x.error is not None and x.error.check == "TT821" and "(http_proxy)" in str(x.error)


def test_the_variable_in_small_letters_is_the_one_that_counts() -> None:
    with Answering(SQUID["403"]) as proxy:
        x = say_hi("http://server.example/v1", environ={"http_proxy": proxy.url, "no_proxy": "a.example"})
    assert x.error is not None and "export no_proxy=a.example,server.example" in x.error.fix


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_what_the_server_answers_through_a_proxy_is_the_servers(status: int) -> None:
    with ScriptedServer().on("POST", CHAT, json_answer({"detail": "no"}, status)) as server, ForwardProxy() as proxy:
        x = say_hi(f"http://server.example:{server.port}/v1", environ={"http_proxy": proxy.url})
    assert x.error is not None and x.error.check != "TT821" and "the proxy" not in str(x.error) + x.error.fix


def test_a_page_of_nginx_behind_a_proxy_is_no_page_of_the_proxy() -> None:
    page = html_answer("<html><hr><center>nginx/1.22.1</center></body></html>", 502, server="nginx")
    with ScriptedServer().on("POST", CHAT, page) as server, ForwardProxy() as proxy:
        x = say_hi(f"http://server.example:{server.port}/v1", environ={"http_proxy": proxy.url})
    assert x.error is not None and x.error.check == "TT847" and "nginx" in str(x.error)
