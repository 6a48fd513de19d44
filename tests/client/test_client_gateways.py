"""nginx before a server: which of the two wrote the answer? With the bytes of a real nginx, and with nginx itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from client_support import say_hi
from nginx_support import OWN, PASSED, PROGRAM, RECORDED, Replay, behind, nginx

from tokentrace.client import gateways
from tokentrace.errors import EndpointError

KEY = {"api_key": "k-wrong-0123456789", "source": {"api_key": "OPENAI_API_KEY"}}


@pytest.fixture(scope="module", params=["recorded", "real"])
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of nginx: of one that replays what it sent, and of a real one where it is installed."""
    if request.param == "recorded":
        with Replay(json.loads(RECORDED.read_text())) as replay:
            yield replay.url
    elif PROGRAM is None:
        pytest.skip("nginx is not installed")
    else:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(behind())
            try:
                url = stack.enter_context(nginx(tmp_path_factory.mktemp("nginx"), server))
            except RuntimeError as error:
                pytest.skip(f"nginx does not start here: {error}")
            yield url


def error(url: str, **settings: object) -> EndpointError:
    x = say_hi(url, timeout_s=20.0, **settings)
    assert x.error is not None and not x.complete
    assert x.error.layer == 8 and x.error.fix and "\n" not in str(x.error)
    return x.error


CHECKS = {
    "/nowhere": "TT840", "/dead": "TT847", "/slow": "TT847", "/login": "TT836", "/key": "TT831", "/blocked": "TT834",
    "/small": "TT843", "/files": "TT842", "/422": "TT844", "/500": "TT847", "/503": "TT847", "/429": "TT845",
}  # fmt: skip


@pytest.mark.parametrize("path", OWN)
def test_what_nginx_answers_itself_is_said_of_nginx(before: str, path: str) -> None:
    if path in ("/503", "/429"):
        say_hi(f"{before}{path}/v1")  # one request a minute is within the limit
    found = error(f"{before}{path}/v1", **KEY)
    assert found.check == CHECKS[path], found
    assert "nginx" in str(found) and str(OWN[path]) in str(found)
    if OWN[path] >= 500:
        assert "nginx's error log (/var/log/nginx/error.log)" in found.fix
    else:
        assert "answered itself" in str(found) and "the server behind it was not asked" in str(found)


@pytest.mark.parametrize("number", range(len(PASSED)), ids=list(PASSED))
def test_what_the_server_answered_is_said_of_the_server(before: str, number: int) -> None:
    name = list(PASSED)[number]
    found = error(f"{before}/pass/{number}/v1", **KEY)
    assert "nginx" not in str(found) + found.fix and "gateway" not in str(found) + found.fix
    assert "the server" in str(found) or f"/pass/{number}/v1/chat/completions does not exist" in str(found)
    assert name[:3] in str(found) or found.check == "TT841"
    if "vLLM" not in name or "404" not in name:  # the sentence for an unknown model has other evidence
        assert "came through nginx" in found.detail


def test_facts_that_help(before: str) -> None:
    assert "auth_basic" in error(f"{before}/login/v1").fix or "Authorization" in error(f"{before}/login/v1").fix
    small = error(f"{before}/small/v1")
    assert "client_max_body_size" in small.fix and "hardly any request" in str(small) and "bytes" in str(small)
    assert "proxy_read_timeout" in error(f"{before}/slow/v1").fix
    assert "none was sent" in str(error(f"{before}/key/v1"))


def page(body: bytes, status: int = 502, **headers: str) -> str:
    found = gateways.wrote(status, {k.replace("_", "-"): v for k, v in headers.items()}, body, None)
    return found.name if found is not None else ""


@pytest.mark.parametrize(
    ("body", "status", "headers", "name"),
    [
        (b"<html>\r\n<body>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n", 404, {}, "nginx"),
        (b"<center>openresty/1.25.3.1</center></body>", 502, {}, "openresty"),
        (b"<html><center>Microsoft-Azure-Application-Gateway/v2</center></body></html>", 502, {},
         "Azure Application Gateway"),
        (b"<body><h1>503 Service Unavailable</h1>\nNo server is available to handle this request.\n</body></html>", 503,
         {}, "HAProxy"),
        (b"upstream request timeout", 504, {"server": "envoy"}, "Envoy"),
        (b"no healthy upstream", 503, {}, "Envoy"),
        (b"Internal Server Error", 500, {"server": "envoy", "x-envoy-upstream-service-time": "3"}, ""),
        (b"error code: 502", 502, {"server": "cloudflare"}, "Cloudflare"),
        (b"", 502, {"server": "Caddy"}, "Caddy"),
        (b"Not Found", 404, {"server": "Caddy"}, ""),
        (b"404 page not found\n", 404, {}, ""),
        (b"<address>Apache/2.4.62 (Debian) Server at localhost Port 80</address>", 503, {}, "Apache"),
        (b"<h1>Error 503 Backend fetch failed</h1><h3>Guru Meditation:</h3>", 503, {"server": "Varnish"}, "Varnish"),
    ],
)  # fmt: skip
def test_pages_of_other_gateways(body: bytes, status: int, headers: dict[str, str], name: str) -> None:
    assert page(body, status, **headers) == name


def test_an_error_in_json_is_the_servers_whatever_the_header_says() -> None:
    for value, name in (({"detail": "Not Found"}, None), ({"message": "no Route matched"}, "Kong")):
        found = gateways.wrote(404, {"server": "kong/3.4.2" if name else "nginx"}, b"{}", value)
        assert (found.name if found is not None else None) == name
