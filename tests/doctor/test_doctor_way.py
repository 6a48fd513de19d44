"""Where the server really is, when it is not at the address that was given."""

from __future__ import annotations

import contextlib
import socket

import pytest
from doctor_support import CHAT, ScriptedServer, ids, look, models, reply


def serving(host: str) -> ScriptedServer:
    """A healthy server on one address, at a port where nothing listens on the other family's."""
    other = "127.0.0.1" if ":" in host else "::1"
    while True:
        server = ScriptedServer(host=host)
        with contextlib.suppress(OSError):
            socket.create_connection((other, server.port), timeout=1).close()
            continue
        return server.on("GET", "/v1/models", models("alpha")).on("POST", CHAT, reply)


@pytest.mark.parametrize(("listens", "given"), [("::1", "127.0.0.1"), ("127.0.0.1", "[::1]")])
def test_the_url_that_works_is_given(listens: str, given: str) -> None:
    try:
        server = serving(listens)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        found = look(f"http://{given}:{server.port}/v1")
        verdict = found.verdict
        assert (verdict.status, verdict.check, verdict.layer) == ("fail", "TT806", 8), verdict
        url = verdict.fix.removeprefix("use ")
        assert url == f"{server.url}/v1" and f"{given}:{server.port}" in verdict.cause
        assert "TT800" in ids(look(url), "ok")


def test_a_name_for_both_families_reaches_the_one_that_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost is on most machines: ::1 first, and the server on 127.0.0.1 only. It works, and is warned of."""
    real = socket.getaddrinfo

    def both(host: str, port: object, *args: object, **kwargs: object) -> object:
        if host != "localhost":
            return real(host, port, *args, **kwargs)  # type: ignore[arg-type]
        kwargs["flags"] = socket.AI_NUMERICHOST
        return [one for a in ("::1", "127.0.0.1") for one in real(a, port, *args, **kwargs)]  # type: ignore[arg-type]

    try:
        server = serving("127.0.0.1")
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "getaddrinfo", both)
    with server:
        found = look(f"http://localhost:{server.port}/v1")
    assert found.verdict.exit_code == 0 and "TT807" in ids(found, "warn")
    assert "127.0.0.1 instead of localhost" in found.verdict.fix
