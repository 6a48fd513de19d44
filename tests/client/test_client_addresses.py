"""Addresses that are easily misread: a port that is none, the zone of a link-local address, characters nobody sees."""

from __future__ import annotations

import socket

import psutil
import pytest
from client_support import CHAT, ask, say_hi
from support.http_servers import ScriptedServer, hello

from tokentrace.client.urls import normalise
from tokentrace.errors import ConfigError


@pytest.mark.parametrize("url", ["http://127.0.0.1:0/v1", "https://[::1]:0", "localhost:0/v1"])
def test_port_0_is_refused_and_not_taken_for_the_usual_one(url: str) -> None:
    with pytest.raises(ConfigError, match="port 0") as caught:
        normalise(url)
    assert "port" in caught.value.fix


@pytest.mark.parametrize("url", ["http://[fe80::1%25eth0]:18742/v1", "http://[fe80::1%eth0]:18742/v1"])
def test_the_zone_of_an_address_is_read_in_both_spellings(url: str) -> None:
    found = normalise(url)
    assert (found.host, found.port) == ("fe80::1%eth0", 18742)
    assert normalise(found.url) == found


def _link_local() -> str:
    """An address of this machine that needs a zone, with it; "" when there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET6 and one.address.startswith("fe80:"):
                return f"{one.address.partition('%')[0]}%25{name}"
    return ""


def test_a_server_is_reached_over_a_link_local_address() -> None:
    """In the Host header the zone has no place: to another machine it means nothing, and servers refuse it."""
    if not (address := _link_local()):
        pytest.skip("this machine has no link-local IPv6 address")
    with ScriptedServer(host="::").on("POST", CHAT, hello()) as server:
        x = say_hi(f"http://[{address}]:{server.port}/v1")
        assert x.complete, x.error
        assert server.requests[0].headers["host"] == f"[{address.partition('%')[0]}]:{server.port}"


@pytest.mark.parametrize(
    ("character", "said"),
    [(" ", "a space"), ("\\", "a backslash"), ("\x1b", "U+001B"), ("\x7f", "U+007F"), ("\u200b", "U+200B")],
)
def test_a_character_that_no_address_has_is_named(character: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normalise(f"http://127.0.0.1:8000/{character}v1")
    assert said in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_tokens": 10**24}, "max_tokens is larger"),
        ({"temperature": float("nan")}, "temperature of nan"),
        ({"temperature": float("inf")}, "temperature of inf"),
        ({"body": {"stop": object()}}, "cannot be sent"),
    ],
)
def test_what_json_has_no_form_for_is_refused_before_anything_is_sent(asked: dict[str, object], said: str) -> None:
    with ScriptedServer().on("POST", CHAT, hello()) as server:
        x = ask(server, more=asked)
        assert x.error is not None and said in str(x.error) and x.error.fix and not server.requests
