"""Layer 8 before anything is sent: settings, keys, certificates, proxies. Whole kinds, with controls."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from doctor_support import CHAT, chunk, detail, everything, healthy, ids, look, sse
from support.certificates import make_certificate, server_context
from support.http_servers import (
    Answer,
    ForwardProxy,
    Refusing,
    ScriptedServer,
    hello,
    html_answer,
    json_answer,
    models,
)
from support.together import together

from tokentrace.doctor import Diagnosis
from tokentrace.doctor.check import Live, Situation
from tokentrace.doctor.skew import skew_s
from tokentrace.exchange import Exchange

EIGHT = frozenset((8,))


def static(url: str | None, **environ: str) -> object:
    return look(url, environ=environ, offline=True, layers=EIGHT)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (" http://127.0.0.1:8000/v1 ", ""),
        ('"http://127.0.0.1:8000/v1"', ""),
        ("http://127.0.0.1:8000/v1\n", ""),
        ("127.0.0.1:8000", ""),
        ("None", "None"),
        ("null", "null"),
        ("sk-abcdefghijkl", "looks like a key"),
        ("ftp://127.0.0.1/v1", "ftp"),
        ("http://", "host"),
        ("http://127.0.0.1:99999/v1", "port"),
        ("http://exa mple/v1", ""),
        ("http://h/v1/chat/completions/chat/completions", "doubled"),
        ("${OPENAI_BASE_URL}", ""),
    ],
)
def test_base_urls_are_judged_without_a_request(url: str, said: str) -> None:
    found = look(None, environ={"OPENAI_BASE_URL": url}, offline=True, layers=EIGHT)
    verdict = found.verdict
    if verdict.status == "fail":
        assert verdict.check == "TT801" and verdict.fix and said in verdict.cause
    else:
        assert not said, verdict
        assert "TT801" in ids(found, "ok")


def _jwt(expires: float) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"eyJ{part({'alg': 'none'})[3:]}.{part({'exp': expires})}.sig"


@pytest.mark.parametrize(
    ("url", "environ", "check", "said"),
    [
        ("https://api.groq.com/openai/v1", {"GROQ_API_KEY": "gsk_abc"}, "TT832", "GROQ_API_KEY"),
        ("https://api.groq.com/openai/v1", {"OPENAI_API_KEY": "sk-ant-api03-abc"}, "TT832", "Anthropic"),
        ("https://api.openai.com/v1", {"OPENAI_API_KEY": _jwt(time.time() + 9000)}, "TT833", "OAuth"),
        ("https://api.openai.com/v1", {"OPENAI_API_KEY": _jwt(time.time() - 9000)}, "TT833", "expired"),
        ("https://us-aiplatform.googleapis.com/v1", {"OPENAI_API_KEY": "AIzaSyabc"}, "TT833", "OAuth"),
        ("https://host.example/v1", {"OPENAI_API_KEY": "http://host.example/v1"}, "TT832", "is a URL"),
        ("https://host.example/v1", {"OPENAI_API_KEY": "your-api-key"}, "TT832", "placeholder"),
        ("https://host.example/v1", {"OPENAI_API_BASE": "http://x"}, "TT809", "OPENAI_BASE_URL"),
        ("https://host.example/v1", {"OPENAI_KEY": "sk-abcdef0123"}, "TT809", "OPENAI_API_KEY"),
        ("https://host.example/v1", {"OPENAI_APIKEY": "sk-abcdef0123"}, "TT809", "OPENAI_APIKEY"),
        ("https://host.example/v1", {"OPEN_AI_KEY": "sk-abcdef0123"}, "TT809", "OPEN_AI_KEY"),
    ],
)
def test_doubtful_keys_and_variables(url: str, environ: dict[str, str], check: str, said: str) -> None:
    found = look(url, environ=environ, offline=True, layers=EIGHT)
    assert check in ids(found, "warn") and said in detail(found, check), found.examination.results
    for value in environ.values():
        assert value not in everything(found) or value.startswith("http")


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.groq.com/openai/v1", "gsk_abcdef123456"),
        ("http://127.0.0.1:8000/v1", "EMPTY"),
        ("http://127.0.0.1:8000/v1", "sk-ant-api03-abc"),  # a server of one's own takes any key
        ("https://host.example/v1", "abcdef123456"),
    ],
)
def test_keys_without_doubt(url: str, key: str) -> None:
    found = look(url, environ={"OPENAI_API_KEY": key}, offline=True, layers=EIGHT)
    assert "TT832" in ids(found, "ok") and found.verdict.status == "ok", found.examination.results


def test_proxies_that_swallow_requests() -> None:
    local = {"HTTP_PROXY": "http://u:secret-pw@proxy.example:3128"}
    found = look("http://127.0.0.1:8000/v1", environ=local, offline=True, layers=EIGHT)
    assert "TT822" in ids(found, "warn") and "NO_PROXY=localhost" in found.verdict.fix
    assert "secret-pw" not in everything(found)
    for no_proxy in ("127.0.0.1", "*"):
        found = look("http://127.0.0.1:8000/v1", environ={**local, "NO_PROXY": no_proxy}, offline=True, layers=EIGHT)
        assert "TT822" in ids(found, "ok")
    network = {**local, "NO_PROXY": "127.0.0.0/8"}  # curl reads it, httpx does not
    told = detail(look("http://127.0.0.1:8000/v1", environ=network, offline=True, layers=EIGHT), "TT822")
    assert "httpx" in told and "curl" not in told
    found = look("http://10.1.2.3:8000/v1", environ=local, offline=True, layers=EIGHT)
    assert "private address" in detail(found, "TT822")
    found = look("https://api.openai.com/v1", environ=local, offline=True, layers=EIGHT)
    assert "TT822" in ids(found, "ok")
    found = look("https://api.openai.com/v1", environ={"HTTPS_PROXY": "nonsense://x y"}, offline=True, layers=EIGHT)
    assert "HTTPS_PROXY" in detail(found, "TT822")
    differ = {"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1"}
    assert "differ" in detail(look("https://x.example/v1", environ=differ, offline=True, layers=EIGHT), "TT822")


def test_a_proxys_502_is_the_proxys() -> None:
    with ForwardProxy(refuse=502) as proxy:
        found = look("http://server.example/v1", environ={"http_proxy": proxy.url})
    assert found.verdict.check == "TT821" and "proxy" in found.verdict.cause and "NO_PROXY" in found.verdict.fix


def test_a_proxy_that_is_not_there() -> None:
    with Refusing() as nobody:
        found = look("http://server.example/v1", environ={"http_proxy": nobody.url})
    assert found.verdict.check == "TT820" and "http_proxy" in found.verdict.cause


def test_an_unknown_host() -> None:
    found = look("http://no-such-host.invalid/v1")
    assert found.verdict.check == "TT802" and "no-such-host.invalid" in found.verdict.cause


def _https(folder: Path, **certificate: object) -> tuple[ScriptedServer, Path]:
    authority = make_certificate(folder, "Private CA", authority=True)
    cert, key = make_certificate(folder, "localhost", signed_by=authority, **certificate)  # type: ignore[arg-type]
    server = ScriptedServer(tls=server_context(cert, key))
    server.on("POST", CHAT, hello()).on("GET", "/v1/models", models("alpha"))
    return server, authority[0]


def test_private_authority(tmp_path: Path) -> None:
    server, authority = _https(tmp_path)
    with server:
        found = look(server.url + "/v1")
        assert found.verdict.check == "TT811" and "Private CA" in everything(found)
        assert "SSL_CERT_FILE" in found.verdict.fix and "verify" not in found.verdict.fix
        trusted = look(server.url + "/v1", environ={"SSL_CERT_FILE": str(authority)})
        assert trusted.verdict.status != "fail"
        assert "expires on" in detail(trusted, "TT817") and "TT817" in ids(trusted, "warn")  # it has two days


def test_certificate_of_another_name(tmp_path: Path) -> None:
    server, authority = _https(tmp_path, names=("DNS:other.example",))
    with server:
        found = look(server.url + "/v1", environ={"SSL_CERT_FILE": str(authority)})
    assert found.verdict.check == "TT812"


def test_expired_certificate(tmp_path: Path) -> None:
    server, authority = _https(tmp_path, days=0)
    time.sleep(1.1)
    with server:
        found = look(server.url + "/v1", environ={"SSL_CERT_FILE": str(authority)})
    assert found.verdict.check == "TT810" and "expired" in found.verdict.cause


def test_http_and_https_mixed_up(tmp_path: Path) -> None:
    with healthy() as plain:
        found = look(plain.url.replace("http://", "https://") + "/v1")
        assert found.verdict.check == "TT813" and f"http://127.0.0.1:{plain.port}/v1" in found.verdict.fix


def test_certificate_files_that_are_not_there() -> None:
    missing = {"SSL_CERT_FILE": "/nonexistent/ca.pem"}
    found = look("https://host.example/v1", environ=missing, offline=True, layers=EIGHT)
    assert found.verdict.check == "TT816" and "/nonexistent/ca.pem" in found.verdict.cause
    found = look("http://127.0.0.1:1/v1", environ=missing, offline=True, layers=EIGHT)
    assert found.verdict.exit_code == 0


def _answered(date: str) -> Situation:
    x = Exchange("http://h/v1", "m", 1, "")
    x.status_code, x.start_ns, x.end_ns = 200, 1_700_000_000 * 10**9, 1_700_000_002 * 10**9
    x.response_headers = {"date": date}
    return Situation("endpoint", {}, 0.0, live=Live(first=x))


def test_clock_skew() -> None:
    assert skew_s(_answered("Tue, 14 Nov 2023 22:13:21 GMT")) == (0.0, 2.0)
    ahead = skew_s(_answered("Tue, 14 Nov 2023 22:23:21 GMT"))
    assert ahead is not None and ahead[0] == 600
    for wrong in ("", "yesterday", "Tue, 99 Nov 2023 22:23:21 GMT", "\x00"):
        assert skew_s(_answered(wrong)) is None
    with healthy() as server:
        server.on("POST", CHAT, hello().with_headers(Date="Mon, 01 Jan 2001 00:00:00 GMT"))
        found = look(server.url + "/v1")
    assert "TT880" in ids(found, "warn") and "behind" in detail(found, "TT880")


@pytest.mark.parametrize(
    ("status", "headers", "check", "said"),
    [
        (401, {}, "TT830", "key"),
        (403, {}, "TT834", "403"),
        (404, {}, "TT840", "404"),
        (405, {}, "TT842", "405"),
        (413, {"Server": "nginx"}, "TT843", "413"),
        (415, {}, "TT844", "415"),
        (422, {}, "TT844", "422"),
        (429, {"Retry-After": "7"}, "TT845", "7 s"),
        (500, {}, "TT846", "server"),
        (502, {"Server": "nginx"}, "TT847", "nginx"),
        (503, {"Server": "envoy"}, "TT847", "Envoy"),
        (504, {"Server": "cloudflare"}, "TT847", "Cloudflare"),
    ],
)
def test_statuses_and_whose_they_are(status: int, headers: dict[str, str], check: str, said: str) -> None:
    with healthy() as server:
        answer = html_answer("<html>no</html>", status, **headers) if headers.get("Server") else json_answer({}, status)
        server.on("POST", CHAT, answer.with_headers(**headers))
        found = look(server.url + "/v1")
    assert found.verdict.check == check and said in found.verdict.cause + found.verdict.fix, found.verdict


def test_unknown_model_with_the_nearest() -> None:
    with healthy("/models/alpha-7b", "beta") as server:
        wrong = {"error": {"message": "The model `alpha-7b` does not exist.", "code": 404}}
        server.on("POST", CHAT, json_answer(wrong, 404))
        found = look(server.url + "/v1", model="alpha-7b")
        assert found.verdict.check == "TT841" and "/models/alpha-7b" in found.verdict.fix
        unnamed = look(server.url + "/v1")
        assert unnamed.verdict.check == "TT841" and "no model was named" in unnamed.verdict.cause


_SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.send_header("content-length", "0"); self.end_headers()
    do_POST = do_GET
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_key_that_the_server_was_started_with() -> None:
    """The server's own environment names the variable; its value never shows."""
    env = {"PATH": os.environ["PATH"], "VLLM_API_KEY": "canary-of-the-server"}
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        by_url, by_pid = look(url), look(None, pid=process.pid)
    finally:
        process.kill()
        process.wait()
    for found in (by_url, by_pid):
        assert found.verdict.check == "TT830" and "VLLM_API_KEY" in found.verdict.cause, found.verdict
        assert f"process {process.pid}" in found.verdict.cause
        assert "canary-of-the-server" not in everything(found)


@pytest.mark.parametrize(("dead", "said"), [("::1", "IPv6 first"), ("127.0.0.2", "did not answer")])
def test_names_with_an_address_that_nobody_listens_on(monkeypatch: pytest.MonkeyPatch, dead: str, said: str) -> None:
    """The name server is the only part that is not real: what localhost leads to differs between machines."""
    real = socket.getaddrinfo

    def resolve(host: str, port: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["flags"] = socket.AI_NUMERICHOST
        return [found for a in (dead, "127.0.0.1") for found in real(a, port, *args, **kwargs)]

    with healthy() as server:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        found = look(f"http://localhost:{server.port}/v1")
    assert "TT807" in ids(found, "warn") and said in detail(found, "TT807")
    assert found.verdict.exit_code == 0
    if dead == "::1":
        assert "use 127.0.0.1 instead of localhost" in everything(found)


def test_a_server_that_is_still_loading() -> None:
    with healthy() as server:
        server.on("POST", CHAT, json_answer({"error": "starting"}, 503).with_headers(Retry_After="1"))
        found = look(server.url + "/v1")
    assert "not ready (503)" in found.verdict.cause and "in 1 s" in found.verdict.fix


def _kept_alive() -> Diagnosis:
    with healthy() as server:
        steps = [b": keep-alive\n\n", *([0.3, b": keep-alive\n\n"] * 200)]
        server.on("POST", CHAT, Answer(200, {"Content-Type": "text/event-stream"}, steps))
        server.on("GET", "/v1/models", json_answer({}, 404))
        return look(server.url + "/v1", timeout_s=3)


def _slow_stream() -> Diagnosis:
    with healthy() as server:
        # One token may come in a few pieces; many would show that max_tokens is not kept.
        # No pause is as long as what a busy machine leaves of the limit, and all of them are longer than it.
        steps = [step for number in range(4) for step in (chunk(f" w{number}"), 1.5)]
        server.on("POST", CHAT, sse(*steps))
        return look(server.url + "/v1", timeout_s=5.0)


@pytest.fixture(scope="module")
def slow() -> Iterator[dict[str, Future[Diagnosis]]]:
    with together({"kept alive": _kept_alive, "slow stream": _slow_stream}) as looks:
        yield looks


def test_keep_alives_are_proof_of_life(slow: dict[str, Future[Diagnosis]]) -> None:
    found = slow["kept alive"].result()
    assert found.verdict.status == "fail" and "keep-alives" in everything(found)


def test_a_slow_stream_names_the_flag(slow: dict[str, Future[Diagnosis]]) -> None:
    verdict = slow["slow stream"].result().verdict
    assert verdict.check == "TT827" and verdict.fix.startswith("raise --timeout"), verdict


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_that_is_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        os.kill(process.pid, signal.SIGSTOP)
        found = look(url, timeout_s=3)
    finally:
        process.kill()
        process.wait()
    assert found.verdict.check == "TT605" and f"kill -CONT {process.pid}" in found.verdict.fix, found.verdict


def test_the_variable_that_wins_is_the_one_to_set() -> None:
    env = {"http_proxy": "http://proxy.example:3128", "no_proxy": ".internal", "NO_PROXY": "unread"}
    for url, wanted in (("http://10.1.2.3:8000/v1", "10.1.2.3"), ("http://127.0.0.1:8000/v1", "localhost")):
        found = look(url, environ=env, offline=True, layers=EIGHT)
        assert found.verdict.fix.startswith(f"export no_proxy=.internal,{wanted}"), found.verdict


def test_a_base_url_that_only_tokentrace_mends_is_told() -> None:
    for raw in (' "http://127.0.0.1:8000/v1"', "http://127.0.0.1:8000/v1 "):
        found = look(None, environ={"OPENAI_BASE_URL": raw}, offline=True, layers=EIGHT)
        assert (found.verdict.check, found.verdict.status) == ("TT809", "warn"), found.verdict
        assert found.verdict.fix == "export OPENAI_BASE_URL=http://127.0.0.1:8000/v1"
    plain = look(None, environ={"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}, offline=True, layers=EIGHT)
    assert "TT809" in ids(plain, "ok")


def test_the_key_of_the_server_is_told_as_it_is_typed() -> None:
    with ScriptedServer().on("POST", CHAT, json_answer({"error": "Unauthorized"}, 401)) as server:
        found = look(server.url + "/v1", environ={"VLLM_API_KEY": "canary"}, model="alpha")
    assert "export OPENAI_API_KEY=$VLLM_API_KEY" in found.verdict.fix and "canary" not in everything(found)


def test_what_passes_by_itself_is_not_to_be_changed() -> None:
    with healthy() as server:
        server.on("POST", CHAT, json_answer({"error": "model overloaded, try later"}))
        verdict = look(server.url + "/v1").verdict
        assert (verdict.check, verdict.fix) == ("TT852", "try again later")
        server.on("POST", CHAT, json_answer({"error": "the field foo is wrong"}))
        assert "change what it names" in look(server.url + "/v1").verdict.fix
