"""Servers that do everything wrong: always an answer in time, with bounded memory, and without a key in it."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from doctor_support import CHAT, Answer, ScriptedServer, chunk, healthy, hello, ids, look, metrics, models
from support.http_servers import CLOSE, DONE, RESET, WAIT, Raw, Refusing, Request, html_answer, json_answer, sse
from support.together import together

from tokentrace.client.settings import Endpoint
from tokentrace.doctor import Diagnosis
from tokentrace.doctor.refine import after_failure
from tokentrace.errors import EndpointError

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
CANARY = "sk-canary-0123456789abcdef"
KIND = {"Content-Type": "text/event-stream"}


def _headers(count: int, size: int) -> Answer:
    return Answer(200, {**KIND, **{f"X-{n}": "a" * size for n in range(count)}}, [b"{}"], "length")


def _echo(request: Request) -> Answer:
    return json_answer({"error": {"message": f"no: {request.headers} {request.body.decode()}"}}, 400)


def _many(_: Request) -> Answer:
    choices = [{"index": n, "delta": {"content": "x"}, "finish_reason": "stop"} for n in range(100_000)]
    return sse(b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n", DONE)


#: name -> the chat's answer. Each is told as a failure of layer 8, or is no failure at all.
BAD: dict[str, tuple[Answer | Callable[[Request], Answer], str]] = {
    "never": (Answer(200, {}, [WAIT], before=60), "TT606"),
    "headers and then nothing": (Answer(200, KIND, [WAIT]), "TT606"),
    "one byte a second": (Answer(200, KIND, [b"d", *([1.0, b"a"] * 60)]), "TT606"),
    "keep-alives for ever": (Answer(200, KIND, [b": ping\n\n", *([0.2, b": ping\n\n"] * 300)]), "TT"),
    "10 MB of headers": (_headers(1000, 10_000), "TT829"),
    "one header of 10 MB": (_headers(1, 10_000_000), "TT829"),
    "binary": (Answer(200, KIND, [os.urandom(100_000)], "length"), "TT8"),
    "binary without HTTP": (Answer(200, {}, [Raw(os.urandom(5000)), RESET], "close"), "TT8"),
    "reset": (Answer(200, {}, [RESET]), "TT828"),
    "closed at once": (Answer(200, KIND, [CLOSE]), "TT8"),
    "an endless line": (Answer(200, KIND, [b"data: " + b"x" * 1_000_000] * 40, "close"), "TT8"),
    "gzip that was not asked for": (
        Answer(200, {**KIND, "Content-Encoding": "gzip"}, [gzip.compress(chunk("Hi", finish="stop") + DONE)], "length"),
        "ok",
    ),
    "damaged gzip": (Answer(200, {**KIND, "Content-Encoding": "gzip"}, [b"\x1f\x8b" + os.urandom(99)], "close"), "TT8"),
    "a gzip bomb": (
        Answer(200, {"Content-Encoding": "gzip"}, [gzip.compress(b"\0" * 300_000_000, 9)], "length"),
        "TT8",
    ),
    "brotli": (Answer(200, {**KIND, "Content-Encoding": "br"}, [os.urandom(50)], "length"), "TT829"),
    "100,000 choices": (_many, "any"),
    "deeply nested JSON": (Answer(200, {}, [b"[" * 200_000], "length"), "TT8"),
    "what was sent, sent back": (_echo, "TT844"),
    "redirect to itself": (Answer(307, {"Location": CHAT}, [b""], "length"), "TT849"),
    "odd status": (Answer(799, {}, [b""], "length"), "TT8"),
    "no content": (Answer(204, {}, [b""], "close"), "TT8"),
}  # fmt: skip


LIMIT_S = 8  # long enough for a busy machine to read 100,000 choices
#: More than any machine needs beyond its limit, and much less than the servers here would keep anybody waiting.
BEYOND_S = 40


#: Those that keep the doctor waiting for as long as it may.
ENDLESS = ("never", "headers and then nothing", "one byte a second", "keep-alives for ever")


def _look_at_bad(name: str) -> tuple[Diagnosis, float]:
    with healthy() as server:
        server.on("POST", CHAT, BAD[name][0])
        began = time.monotonic()
        found = look(server.url + "/v1", timeout_s=LIMIT_S, environ={"OPENAI_API_KEY": CANARY})
        return found, time.monotonic() - began


ROUTES = ("/metrics", "/v1/models", "/health", "/version")
SILENT = Answer(200, {}, [WAIT], before=60)


def _look_at_route(path: str, answer: Answer) -> tuple[Diagnosis, float]:
    with healthy() as server:
        server.on("GET", path, answer)
        began = time.monotonic()
        found = look(server.url + "/v1", timeout_s=5, model="alpha")
        return found, time.monotonic() - began


@pytest.fixture(scope="module")
def endless() -> Iterator[dict[str, Future[tuple[Diagnosis, float]]]]:
    """All of them at once: each waits out its own limit, and none has to wait for the others."""
    work = {name: partial(_look_at_bad, name) for name in ENDLESS}
    with together({**work, **{path: partial(_look_at_route, path, SILENT) for path in ROUTES}}) as looks:
        yield looks


@pytest.mark.parametrize("name", BAD)
def test_chat_that_goes_wrong(name: str, request: pytest.FixtureRequest) -> None:
    wanted = BAD[name][1]
    found, took = request.getfixturevalue("endless")[name].result() if name in ENDLESS else _look_at_bad(name)
    assert took < LIMIT_S + BEYOND_S, found.verdict
    verdict = found.verdict
    if wanted == "ok":
        assert verdict.status != "fail", verdict
    elif wanted != "any":
        assert verdict.status == "fail" and verdict.check.startswith(wanted), verdict
    assert len(verdict.cause) < 500 and "\n" not in verdict.cause


@pytest.mark.parametrize(
    "answer",
    [
        SILENT,
        metrics("vllm:num_requests_running 1\n" * 300_000),
        metrics("vllm:num_requests_running " + "9" * 1_000_000 + "\n"),
        metrics('vllm:num_requests_running{a="\x00\xff'),
        Answer(200, {}, [os.urandom(1_000_000)], "length"),
        html_answer(),
        Answer(302, {"Location": "http://127.0.0.1:1/metrics"}, [b""], "length"),
    ],
)
@pytest.mark.parametrize("path", ROUTES)
def test_other_routes_that_go_wrong_do_no_harm(path: str, answer: Answer, request: pytest.FixtureRequest) -> None:
    waited = answer is SILENT
    found, took = request.getfixturevalue("endless")[path].result() if waited else _look_at_route(path, answer)
    assert took < 5 + BEYOND_S and found.verdict.status != "fail", found.verdict
    assert "TT800" in ids(found, "ok")


PROMPT_ECHO = {
    "422": lambda r: json_answer({"detail": [{"loc": ["body"], "msg": "bad", "input": r.json}], "body": r.json}, 422),
    "400": lambda r: json_answer({"error": {"message": f"cannot parse {r.body.decode()}"}}, 400),
    "500": lambda r: Answer(500, {"Content-Type": "text/plain"}, [r.body], "length"),
}


@pytest.mark.parametrize("name", PROMPT_ECHO)
def test_a_run_does_not_print_the_prompt_that_the_server_repeats(name: str, tmp_path: Path) -> None:
    with healthy() as server:
        server.on("POST", CHAT, PROMPT_ECHO[name])
        done = subprocess.run(
            [*COMMAND, "run", "the canary prompt of a patient", "--url", server.url + "/v1", "--key", CANARY],
            capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
            env={**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path)},
        )  # fmt: skip
    assert done.returncode == 2 and f"({name})" in done.stderr, done.stderr
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("answer", "check", "said"),
    [
        (json_answer({"detail": "Method Not Allowed"}, 405), "TT842", "does not take POST"),
        (json_answer({"error": {"message": "not implemented", "code": 501}}, 501), "TT842", "does not take POST"),
        (html_answer("<h1>Unsupported method ('POST')</h1>", 501, server="SimpleHTTP/0.6"), "TT842", "501"),
        (json_answer({"detail": "too large"}, 413), "TT843", "hardly any request"),
    ],
)
def test_statuses_that_refuse_every_request(answer: Answer, check: str, said: str) -> None:
    with healthy() as server:
        server.on("POST", CHAT, answer)
        found = look(server.url + "/v1")
    assert found.verdict.check == check and said in found.verdict.cause and found.verdict.fix, found.verdict


def test_a_key_does_not_follow_a_redirect() -> None:
    with healthy() as other, healthy() as server:
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics")):
            server.on(method, path, Answer(307, {"Location": other.url + path}, [b""], "length"))
        found = look(server.url + "/v1", environ={"OPENAI_API_KEY": CANARY})
        assert found.verdict.check == "TT849" and other.requests == []


def run(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    env = {**clean, "TOKENTRACE_DATA_DIR": str(home), **environment}
    done = subprocess.run(
        [*COMMAND, "doctor", *arguments], capture_output=True, text=True, env=env, timeout=240, check=False, cwd=home
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


SAYING = {
    "chat echoes the request": ("POST", CHAT, _echo),
    "chat refuses the key and repeats it": (
        "POST", CHAT, lambda r: json_answer({"error": {"message": f"bad key {r.headers.get('authorization')}"}}, 401),
    ),
    "chat answers with the key": ("POST", CHAT, lambda r: sse(chunk(f"your key: {CANARY}", finish="stop"), DONE)),
    "models named after the key": ("GET", "/v1/models", lambda r: models(CANARY, "alpha")),
    "a header with the key": ("POST", CHAT, lambda r: hello().with_headers(Server=CANARY, X_Request_Id=CANARY)),
    "a redirect with the key": ("POST", CHAT, lambda r: Answer(302, {"Location": f"/?k={CANARY}"}, [b""], "length")),
    "metrics with the key": ("GET", "/metrics", lambda r: metrics(f'vllm:num_requests_waiting{{a="{CANARY}"}} 1\n')),
    "a version with the key": ("GET", "/version", lambda r: json_answer({"version": CANARY})),
    "html with the key": ("POST", CHAT, lambda r: html_answer(f"<html>{CANARY}", 502)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAYING)
def test_no_key_in_any_output(name: str, tmp_path: Path) -> None:
    method, path, answer = SAYING[name]
    report = tmp_path / "report.json"
    with healthy() as server:
        server.on(method, path, answer)
        where = ("--url", server.url + "/v1", "--timeout", "6", "--layers", "8-6,0", "--model", "alpha")
        for flags in (("-v", "--report", str(report)), ("--json",)):
            done = run(*where, *flags, home=tmp_path, OPENAI_API_KEY=CANARY, MY_SECRET_TOKEN="other-canary-77")
            assert done.returncode in (0, 1), done.stderr
            assert CANARY not in done.stdout + done.stderr and "other-canary-77" not in done.stdout + done.stderr
    assert CANARY not in report.read_text()


def test_keys_in_odd_places_do_not_show(tmp_path: Path) -> None:
    for url in (f"http://user:{CANARY}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?api-key={CANARY}", CANARY):
        done = run("--url", url, "-v", "--layers", "8", home=tmp_path, HTTP_PROXY=f"http://u:{CANARY}@127.0.0.1:1")
        assert done.returncode == 1 and CANARY not in done.stdout + done.stderr, done.stdout
    given = run("--url", "http://127.0.0.1:9/v1", "--key", CANARY, "-v", "--layers", "8", home=tmp_path)
    assert CANARY not in given.stdout + given.stderr


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Everything at once that a server can send too much of, under 512 MiB of data."""
    with healthy() as server:
        server.on("POST", CHAT, BAD["a gzip bomb"][0])
        server.on("GET", "/v1/models", Answer(200, {}, [b" " * 1_000_000] * 100))
        server.on("GET", "/metrics", Answer(200, {}, [b"vllm:x 1\n" * 100_000] * 100))
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({2**29}, {2**29}));"
        code = COMMAND[2]
        done = subprocess.run(
            [sys.executable, "-c", limit + code, "doctor", "--url", server.url + "/v1", "--layers", "8-6", "--json"],
            capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # no buffers for 64 cores
        )  # fmt: skip
    assert orjson.loads(done.stdout)["verdict"]["layer"] == 8, done.stdout + done.stderr
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 2**29


def test_nothing_listens_and_nothing_answers() -> None:
    with Refusing() as refusing:
        found = look(refusing.url + "/v1")
        assert found.verdict.check == "TT803" and f"127.0.0.1:{refusing.port}" in found.verdict.cause
    away = "http://server.example/v1"
    failed = EndpointError("no token came", fix="-", layer=8, check="TT825")  # of a command that asked the same way
    work: dict[str, Callable[[], Any]] = {  # a limit that is not kept would wait for ever
        "itself": lambda: look(silent.url + "/v1", timeout_s=2),
        "as a proxy": lambda: look(away, environ={"HTTP_PROXY": silent.url}, timeout_s=2),
        "again": lambda: after_failure(failed, Endpoint.of(away, timeout_s=2.0), {"HTTP_PROXY": silent.url}),
    }
    with ScriptedServer(accept=False) as silent, together(work) as looks:
        found = looks["itself"].result()
        assert found.verdict.status == "fail" and found.verdict.layer == 8
        assert found.verdict.check == "TT825" and not found.verdict.also
        assert f"nothing answers on 127.0.0.1:{silent.port}" in found.verdict.cause
        through = looks["as a proxy"].result()
        assert f"through the proxy 127.0.0.1:{silent.port} (HTTP_PROXY)" in through.verdict.cause
        assert "it takes connections" not in through.verdict.cause and "NO_PROXY" in through.verdict.fix
        told = looks["again"].result()
        assert f"through the proxy 127.0.0.1:{silent.port} (HTTP_PROXY)" in str(told)
    with ScriptedServer(greeting=b"SSH-2.0-OpenSSH_9.6\r\n") as ssh:
        assert look(ssh.url + "/v1").verdict.check == "TT829"
