"""The recipes of real reports, each over a real socket: layer, key facts, fix, and what must not be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from doctor_support import CHAT, detail, everything, healthy, ids, layer, look, look_at_metrics, metrics, reply
from support.http_servers import (
    DONE,
    RESET,
    WAIT,
    Answer,
    Raw,
    Request,
    ScriptedServer,
    chunk,
    html_answer,
    json_answer,
    models,
    sse,
    usage_chunk,
)
from support.together import together

from tokentrace.doctor import Diagnosis
from tokentrace.doctor.registry import by_id


def assert_fails(found: Diagnosis, check: str, number: int, *facts: str) -> None:
    verdict = found.verdict
    assert (verdict.status, verdict.check, verdict.layer, verdict.exit_code) == ("fail", check, number, 1), verdict
    for fact in facts:
        assert fact in verdict.cause + " " + verdict.fix, (fact, verdict)
    assert by_id(check).meaning and by_id(check).fix


# 1: a web page instead of the API


def test_web_page_instead_of_api() -> None:
    with healthy() as server:
        server.otherwise(html_answer())
        found = look(server.url)
    assert_fails(found, "TT850", 8, "web page", "200", f"{server.url}/v1")
    assert everything(found).count("<!doctype") <= 3


def test_json_without_choices_lists_its_keys() -> None:
    with healthy() as server:
        server.otherwise(json_answer({"error": "unknown path", "hint": 1}))
        found = look(server.url)
    assert found.verdict.layer == 8 and found.verdict.exit_code == 1
    assert "error, hint" in found.verdict.cause and f"{server.url}/v1" in found.verdict.fix


# 2: forms of the URL


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat/completions"])
def test_forms_that_are_right(path: str) -> None:
    with healthy() as server:
        found = look(server.url + path)
        assert found.verdict.exit_code == 0, found.verdict
        assert f"{server.url}{CHAT}" in detail(found, "TT801")
        assert not [p for p in server.paths() if "//" in p or p.count("chat/completions") > 1]


def test_bare_host_and_doubled_path() -> None:
    with healthy() as server:
        assert_fails(look(server.url), "TT840", 8, f"{server.url}/v1")
        before = len(server.requests)
        assert_fails(look(f"{server.url}/v1/v1"), "TT801", 8, "doubled path", f"{server.url}/v1")
        assert len(server.requests) == before


# 4: comments, and events without data


def test_comments_are_no_fault() -> None:
    parts = [
        b"id: 7\n" + chunk("He"),
        b": ping\n\n",
        b": \n\n",
        b"retry: 3000\n\n",
        b"id: 8\n" + chunk("llo", finish="stop"),
    ]
    with healthy() as server:
        server.on("POST", CHAT, sse(*parts, usage_chunk(), DONE))
        found = look(server.url + "/v1")
    assert found.verdict.status != "fail", found.verdict
    assert "TT800" in ids(found, "ok")


# 7: the stream is cut


def _cut(*steps: object, framing: str = "chunked") -> Diagnosis:
    with healthy() as server:
        server.on("POST", CHAT, sse(*steps, framing=framing))  # type: ignore[arg-type]
        return look(server.url + "/v1")


def test_stream_reset() -> None:
    # A reset throws away what was not read yet: the pause is the client's time to read.
    found = _cut(chunk("He"), Raw(b"400\r\n" + b"x" * 18), 1.0, RESET)
    assert_fails(found, "TT860", 8, "after 1 chunk with text")


def test_stream_without_end_is_cut_and_with_finish_is_a_note() -> None:
    assert_fails(_cut(chunk("He"), chunk("llo")), "TT861", 8, "finish_reason", "[DONE]")
    found = _cut(chunk("He"), chunk("llo", finish="stop"), usage_chunk())
    assert found.verdict.exit_code == 0 and "TT873" in ids(found, "warn")


# 9: keys


@pytest.fixture
def guarded() -> Iterator[ScriptedServer]:
    def wants_key(answer: Answer) -> object:
        def handler(request: Request) -> Answer:
            if request.headers.get("authorization") == "Bearer k-right":
                return reply(request) if request.method == "POST" else answer
            return json_answer({"error": "no"}, 401)

        return handler

    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length"))
        server.on("GET", "/metrics", metrics(""))
        server.on("GET", "/v1/models", wants_key(models("alpha")))  # type: ignore[arg-type]
        server.on("POST", CHAT, wants_key(models("alpha")))  # type: ignore[arg-type]
        yield server


def test_no_key_although_health_is_green(guarded: ScriptedServer) -> None:
    found = look(guarded.url + "/v1", environ={"VLLM_API_KEY": "k-right"})
    assert_fails(found, "TT830", 8, "wants a key", "VLLM_API_KEY")
    assert all("authorization" not in r.headers for r in guarded.requests)
    assert layer(found, 8) == "fail"
    assert "k-right" not in everything(found)


@pytest.mark.parametrize("key", ["None", "k-right\n", '"k-right"', "Bearer k-right", "null", " k-right"])
def test_malformed_keys(guarded: ScriptedServer, key: str) -> None:
    found = look(guarded.url + "/v1", environ={"OPENAI_API_KEY": key})
    assert found.verdict.status == "fail" and found.verdict.layer == 8
    assert "malformed" in found.verdict.cause and "OPENAI_API_KEY" in found.verdict.cause + found.verdict.fix
    assert "k-right" not in everything(found)


def test_the_right_key(guarded: ScriptedServer) -> None:
    found = look(guarded.url + "/v1", environ={"OPENAI_API_KEY": "k-right"})
    assert found.verdict.exit_code == 0 and "TT800" in ids(found, "ok")
    assert "k-right" not in everything(found)


# 10: no chat template


@pytest.mark.parametrize(
    "body",
    [
        {
            "error": {
                "message": "tokenizer carries no chat template",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
        {"object": "error", "message": "tokenizer carries no chat template", "code": 400},
    ],
)
def test_no_chat_template(body: dict[str, object]) -> None:
    with healthy() as server:
        server.on("POST", CHAT, json_answer(body, 400))
        found = look(server.url + "/v1")
    assert_fails(found, "TT701", 7, "no chat template", "/v1/completions", "--chat-template")
    assert layer(found, 8) in ("ok", "warn") and "TT844" not in everything(found)


# 12: healthy web server, dead engine

_GAUGES = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="alpha"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="alpha"}} {waiting}
vllm:num_requests_waiting_by_reason{{model_name="alpha",reason="capacity"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="alpha"}} 0.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{model_name="alpha"}} {tokens}
"""


def engine(running: int, waiting: int, per_scrape: int) -> object:
    made = [1234]

    def answer(_: Request) -> Answer:
        made[0] += per_scrape
        return metrics(_GAUGES.format(running=running, waiting=waiting, tokens=made[0]))

    return answer


def _stalled() -> Diagnosis:
    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length"))
        server.on("GET", "/version", json_answer({"version": "0.17.0"}))
        server.on("GET", "/metrics", engine(0, 6, 0))  # type: ignore[arg-type]
        server.on("POST", CHAT, Answer(200, {}, [WAIT], before=60))
        return look(server.url + "/v1", timeout_s=6)


def _not_taken() -> Diagnosis:
    """As vLLM shows it whose EngineCore is stopped: every route green, and the request in no figure."""
    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length"))
        server.on("GET", "/metrics", engine(0, 0, 0))  # type: ignore[arg-type]
        server.on("POST", CHAT, Answer(200, {"Content-Type": "text/event-stream"}, [WAIT]))
        return look(server.url + "/v1", timeout_s=9)


def _busy() -> Diagnosis:
    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length", before=60))
        server.on("GET", "/metrics", engine(8, 6, 500))  # type: ignore[arg-type]
        late = [chunk("Hi", finish="stop"), usage_chunk(9, 1), DONE]
        server.on("POST", CHAT, Answer(200, {"Content-Type": "text/event-stream"}, late, before=4))
        return look(server.url + "/v1", timeout_s=15)


def _too_busy() -> Diagnosis:
    with healthy() as server:
        server.on("GET", "/metrics", engine(8, 6, 500))  # type: ignore[arg-type]
        server.on("POST", CHAT, Answer(200, {}, [WAIT], before=60))
        return look(server.url + "/v1", timeout_s=4)


def _silent() -> Diagnosis:
    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length"))
        server.on("POST", CHAT, Answer(200, {}, [WAIT], before=60))
        return look(server.url + "/v1", timeout_s=3)


_SLOW: dict[str, Callable[[], Diagnosis]] = {
    "stalled": _stalled, "not taken": _not_taken, "busy": _busy, "too busy": _too_busy, "silent": _silent,
}  # fmt: skip


@pytest.fixture(scope="module")
def slow() -> Iterator[dict[str, Future[Diagnosis]]]:
    with together(_SLOW) as looks:
        yield looks


def test_stalled_engine_behind_a_green_web_server(slow: dict[str, Future[Diagnosis]]) -> None:
    found = slow["stalled"].result()
    assert_fails(found, "TT605", 6, "stalled, not busy", "6 waiting, 0 running")
    assert layer(found, 8) in ("ok", "warn") and "TT825" not in ids(found, "fail")
    assert "6 wait because of capacity" in everything(found)


def test_an_engine_that_does_not_even_take_the_request(slow: dict[str, Future[Diagnosis]]) -> None:
    found = slow["not taken"].result()
    assert_fails(found, "TT605", 6, "has not taken the request", "0 waiting, 0 running")
    assert layer(found, 8) in ("ok", "warn")


def test_busy_engine_is_not_dead(slow: dict[str, Future[Diagnosis]]) -> None:
    found = slow["busy"].result()
    assert (found.verdict.status, found.verdict.layer, found.verdict.exit_code) == ("warn", 6, 0), found.verdict
    assert "busy" in found.verdict.cause and "8 running" in found.verdict.cause


def test_busy_engine_that_does_not_get_to_us(slow: dict[str, Future[Diagnosis]]) -> None:
    assert_fails(slow["too busy"].result(), "TT607", 6, "is busy", "--timeout")


def test_silent_engine_without_metrics_is_said_as_what_it_is(slow: dict[str, Future[Diagnosis]]) -> None:
    assert_fails(slow["silent"].result(), "TT606", 6, "the web server lives", "no token")


# 13: renamed metrics

_OLD = 'vllm:gpu_cache_usage_perc{m="a"} 0.97\nvllm:num_requests_running{m="a"} 1\nvllm:num_requests_waiting{m="a"} 0\n'
_NEW = _OLD.replace("gpu_cache", "kv_cache")
_SGLANG = "sglang:token_usage 0.97\nsglang:num_queue_reqs 0\nsglang:num_running_reqs 1\n"


@pytest.mark.parametrize("text", [_OLD, _NEW, _SGLANG])
def test_cache_nearly_full_by_any_name(text: str) -> None:
    found = look_at_metrics(text)
    assert "97%" in detail(found, "TT612") and "TT612" in ids(found, "warn")
    assert (found.verdict.status, found.verdict.layer) == ("warn", 6)


def test_two_engines_are_told_apart_and_nothing_is_added_up() -> None:
    text = "".join(f'vllm:kv_cache_usage_perc{{engine="{n}"}} 0.97\n' for n in (0, 1))
    found = look_at_metrics(text)
    said = everything(found)
    assert "engine 0 97% full" in said and "engine 1 97% full" in said and "194%" not in said


@pytest.mark.parametrize(
    "answer",
    [metrics("other_metric 5\n"), json_answer({"detail": "Not Found"}, 404), metrics("vllm:kv_cache_usage_perc{ x\n")],
)
def test_no_figures_is_unknown_never_zero(answer: Answer) -> None:
    with healthy() as server:
        server.on("GET", "/metrics", answer)
        server.on("GET", "/version", json_answer({"version": "0.11.2"}))
        found = look(server.url + "/v1")
    assert {"TT610", "TT611", "TT612", "TT613"} <= ids(found, "unknown")
    assert "0.11.2" in detail(found, "TT613") and " 0%" not in everything(found)
    assert found.verdict.exit_code == 0
