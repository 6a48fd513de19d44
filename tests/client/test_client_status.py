"""What an answer that is no reply means, through a real socket: whose it is, what to do, and in which layer."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from client_support import CHAT, ask, everything_said, say_hi
from hypothesis import given
from hypothesis import strategies as st
from support.http_servers import (
    DONE,
    WAIT,
    Answer,
    ForwardProxy,
    ScriptedServer,
    body_answer,
    chunk,
    event,
    html_answer,
    json_answer,
    models,
    sse,
)

from tokentrace.client.causes import CAUSES
from tokentrace.client.diagnose import diagnose, nearest
from tokentrace.client.facts import Facts
from tokentrace.client.wire import Timeouts
from tokentrace.errors import EndpointError


def failed(answer: Answer, **settings: Any) -> EndpointError:
    with ScriptedServer().on("POST", CHAT, answer) as server:
        x = ask(server, **settings)
    assert x.error is not None and not x.complete
    assert x.error.fix and "\n" not in str(x.error) and x.error.check in CAUSES
    assert x.error.layer == CAUSES[x.error.check].layer == int(x.error.check[2])
    if answer.status >= 300:
        assert x.error_type == str(answer.status)
    return x.error


def cause(answer: Answer, **settings: Any) -> str:
    """The id and the whole of what is said."""
    error = failed(answer, **settings)
    return f"{error.check} {error} / {error.fix}"


def test_a_broken_device_is_no_lack_of_memory() -> None:
    for said in ("CUDA error: an illegal memory access was encountered", "CUDA error: device-side assert triggered",
                 "HIP error: unspecified launch failure", "NCCL error: unhandled system error"):  # fmt: skip
        told = cause(openai(said, None, 500))
        assert told.startswith("TT602") and "out of memory" not in told and "restart" in told
    assert cause(openai("CUDA error: out of memory", None, 500)).startswith("TT604")
    other_card = cause(openai("CUDA error: no kernel image is available for execution on the device", None, 500))
    assert "built for that card" in other_card


def test_a_redirect_that_leads_nowhere_is_no_address_to_use() -> None:
    with ScriptedServer() as server:
        url = f"{server.url}{CHAT}"
        server.on("POST", CHAT, Answer(308, {"Location": url}, [], "length"))
        circle = ask(server).error
        server.on("POST", CHAT, Answer(302, {}, [], "length"))
        nowhere = ask(server).error
    assert circle is not None and "in a circle" in str(circle) and "use http" not in circle.fix
    assert nowhere is not None and "names no address" in str(nowhere) and "use http" not in nowhere.fix
    assert circle.check == nowhere.check == "TT849"


@pytest.mark.parametrize(
    ("status", "word"),
    [(521, "refused the connection"), (522, "no connection"), (530, "no server"), (524, "no answer in time")],
)
def test_cloudflares_own_statuses_speak_of_the_server_behind_it(status: int, word: str) -> None:
    told = cause(body_answer(b"error code: %d" % status, "text/plain", status, server="cloudflare", cf_ray="x"))
    assert told.startswith("TT847 Cloudflare") and word in told and "has nothing of it" not in told


def test_a_route_that_cloudflare_lacks() -> None:
    told = cause(html_answer("<html><title>404</title></html>", 404, server="cloudflare", cf_ray="x"))
    assert "(the routes of Cloudflare)" in told


def test_an_account_without_money() -> None:
    for answer in (openai("Insufficient credits", None, 402), openai("Your credit balance is too low", None, 400)):
        assert cause(answer).startswith("TT845") and "plan and billing" in cause(answer)


def test_what_passes_by_itself_and_what_says_nothing() -> None:
    assert cause(openai("Overloaded", "overloaded_error", 529)).endswith("try again later")
    assert "wait 5 s" in cause(openai("Loading model", 503, 503, retry_after="5"))
    assert "what it names" not in cause(body_answer(b"", "text/plain", 408))


def test_a_request_found_wrong_is_told_without_the_request() -> None:
    detail = [{"type": "missing", "loc": ["body", "foo"], "msg": "Field required", "input": {"messages": "my prompt"}}]
    told = cause(json_answer({"detail": detail}, 422))
    assert "body.foo: Field required" in told and "my prompt" not in told


def test_answers_that_are_damaged_are_not_called_another_api() -> None:
    text = chunk("a") + chunk("b", finish="stop")
    assert "compressed bytes (gzip)" in cause(body_answer(gzip.compress(text), "text/event-stream"))
    assert "cut off" in cause(body_answer(b'{"choices":[{"mess', "application/json"))
    assert "no event can be read" in cause(body_answer(text[:40], "text/event-stream"))
    bare = cause(body_answer(text.replace(b"data: ", b""), "text/event-stream"))
    assert "lacks `data:`" in bare and "empty choices" not in bare


def test_a_reply_without_end_is_the_servers_and_no_short_timeout() -> None:
    # Ten tokens where one was asked for, and the connection stays open until the client gives up.
    with ScriptedServer().on("POST", CHAT, sse(*[chunk("more")] * 10, WAIT)) as server:
        limits = Timeouts(total_s=2.0)
        error = say_hi(server.url + "/v1", more={"max_tokens": 1, "timeouts": limits}).error
    assert error is not None and error.check == "TT827"
    assert "does not keep to max_tokens: 1 token asked for" in str(error) and "raise --timeout" not in error.fix


def openai(message: str, code: str | int | None = None, status: int = 400, **headers: str) -> Answer:
    return json_answer({"error": {"message": message, "type": "x", "param": None, "code": code}}, status, **headers)


NGINX = {"server": "nginx/1.25.3"}


@pytest.mark.parametrize(
    ("answer", "check", "words"),
    [
        (openai("Incorrect API key provided: sk-…", "invalid_api_key", 401), "TT831", ["Incorrect API key"]),
        (openai("OAuth token has expired", None, 401), "TT833", ["expired"]),
        (openai("The access token is invalid", None, 401), "TT833", ["OAuth"]),
        (openai("You have insufficient permissions", None, 403), "TT834", ["403", "insufficient"]),
        (html_answer("<html>blocked</html>", 403, server="cloudflare", cf_ray="x"), "TT834", ["Cloudflare"]),
        (json_answer({"detail": "Method Not Allowed"}, 405), "TT842", ["405", CHAT]),
        (html_answer("<html>too large</html>", 413, **NGINX), "TT843", ["nginx", "413"]),
        (openai("Rate limit reached for requests", "rate_limit_exceeded", 429, retry_after="7"), "TT845", ["limits"]),
        (openai("You exceeded your current quota", "insufficient_quota", 429), "TT845", ["quota"]),
        (openai("max_tokens must be at most 8192", None, 400), "TT844", ["8192"]),
        (json_answer({"detail": [{"loc": ["body", "top_p"], "msg": "bad"}]}, 422), "TT844", ["422", "top_p"]),
        (openai("Internal server error", None, 500), "TT846", ["the server failed", "500"]),
        (html_answer("<html>502</html>", 502, **NGINX), "TT847", ["nginx", "502"]),
        (html_answer("<html>504</html>", 504, server="awselb/2.0"), "TT847", ["AWS", "504"]),
        (body_answer(b"upstream connect error", "text/plain", 503, server="envoy"), "TT847", ["Envoy", "503"]),
        (openai("Service Unavailable", None, 503, retry_after="3"), "TT846", ["not ready"]),
        (openai("Loading model", 503, 503), "TT603", ["loading"]),
        (openai("CUDA out of memory. Tried to allocate 2 GiB", None, 500), "TT604", ["memory"]),
        (openai("EngineCore encountered an issue: EngineDeadError", None, 500), "TT602", ["engine"]),
        (body_answer(b"400 The plain HTTP request was sent to HTTPS port", "text/html", 400), "TT814", ["https"]),
        (openai("Model is decommissioned: the model `x` has been decommissioned", "model_decommissioned"), "TT841", []),
        (body_answer(b"", "text/plain", 418), "TT844", ["418"]),
    ],
)  # fmt: skip
def test_statuses(answer: Answer, check: str, words: list[str]) -> None:
    error = failed(answer, api_key="sk-abc-0123456789", source={"api_key": "OPENAI_API_KEY"})
    assert error.check == check, str(error)
    for word in words:
        assert word in str(error)
    assert "sk-abc" not in str(error) + error.fix + error.detail


def test_retry_after_is_told() -> None:
    assert "7 s" in failed(openai("slow down", None, 429, retry_after="7")).fix


CONTEXT = [
    ("This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, "
     "6048 in the completion). Please reduce the length of the messages or completion.", 6048, 568, 6048),
    ("'max_tokens' or 'max_completion_tokens' is too large: 6048. This model's maximum context length is 6048 tokens "
     "and your request has 568 input tokens (6048 > 6048 - 568).", 6048, 568, 6048),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9,300 tokens.",
     8192, 9300, 0),
    ("This model's maximum context length is 4096 tokens, but the request needs 5000 tokens of prompt and 100 of "
     "completion: 5100 tokens.", 4096, 5000, 100),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096, 5000, 0),
    ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 200 `max_new_tokens`",
     4096, 4000, 200),
    ("This model's maximum context length is 64 tokens, but the request needs 31 tokens of prompt and 40 of "
     "completion: 71 tokens.", 64, 31, 40),
    ("the request exceeds the available context size (4096 tokens), try increasing it", 4096, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("said", "limit", "prompt", "wanted"), CONTEXT)
def test_context_exceeded_gives_the_numbers_and_what_fits(said: str, limit: int, prompt: int, wanted: int) -> None:
    error = failed(openai(said))
    assert (error.check, error.layer) == ("TT601", 6)
    assert f"limit {limit}" in str(error)
    if prompt:
        assert f"prompt {prompt}" in str(error)
        assert error.fix == (f"--max-tokens {limit - prompt} fits" if prompt < limit else
                             f"shorten the prompt to {limit - (wanted or 1)} tokens")  # fmt: skip
    if wanted:
        assert f"asked for {wanted}" in str(error)


MISSING = [
    openai("The model `alpha-7b` does not exist.", "model_not_found", 404),
    json_answer({"object": "error", "message": "The model `alpha-7b` does not exist.", "type": "NotFoundError"}, 404),
    openai('model "alpha-7b" not found, try pulling it first', None, 404),
    openai("Invalid model: alpha-7b", "1500", 400),
]


@pytest.mark.parametrize("answer", MISSING)
def test_unknown_model_names_the_nearest(answer: Answer) -> None:
    with ScriptedServer() as server:
        server.on("POST", CHAT, answer).on("GET", "/v1/models", models("beta", "/models/alpha-7b", "alpha-70b"))
        x = ask(server, model="alpha-7b")
        assert server.paths() == [CHAT, "/v1/models"]
    assert x.error is not None and x.error.check == "TT841"
    assert x.error.fix == "--model /models/alpha-7b"
    assert x.error.detail.startswith("it has: /models/alpha-7b, alpha-70b")


def test_unknown_model_without_a_list() -> None:
    error = failed(MISSING[0], model="alpha-7b")
    assert error.check == "TT841" and "'alpha-7b'" in str(error)


@pytest.mark.parametrize(
    ("wanted", "best"),
    [("GPT-4o-Mini", "gpt-4o-mini"), ("llama", "meta/llama-3"), ("qwen3", "qwen3:8b"), ("gpt4o", "gpt-4o-mini")],
)
def test_nearest(wanted: str, best: str) -> None:
    assert nearest(wanted, ["gpt-4o-mini", "meta/llama-3", "qwen3:8b", "gemma"])[0] == best


def test_model_is_taken_when_there_is_only_one() -> None:
    from support.http_servers import hello

    with ScriptedServer().on("POST", CHAT, hello()).on("GET", "/v1/models", models("only")) as server:
        x = ask(server, model="")
        assert x.complete and x.model == "only" and "only" in x.notes[0]
        assert server.requests[-1].json["model"] == "only"
        server.on("GET", "/v1/models", models("one", "two"))
        x = ask(server, model="")
        assert x.error is not None and x.error.check == "TT841" and "one, two" in x.error.detail
        server.on("GET", "/v1/models", json_answer({}, 404))
        x = ask(server, model="")
        assert x.complete and "model" not in server.requests[-1].json


def test_path_not_found_when_models_are_there() -> None:
    with ScriptedServer().on("GET", "/v1/models", models("alpha")) as server:
        x = ask(server)
    assert x.error is not None and x.error.check == "TT840" and "has /models" in str(x.error)


@pytest.mark.parametrize(
    ("answer", "check", "word"),
    [
        (sse(event({"error": {"message": "overloaded", "code": 529}})), "TT852", "overloaded"),
        (sse(chunk("a"), event({"error": {"message": "it broke"}}), DONE), "TT852", "after 1 chunk with text"),
        (sse(chunk("a"), b"event: error\ndata: it broke\n\n"), "TT852", "it broke"),
        (json_answer({"error": {"message": "bad day"}}), "TT852", "bad day"),
        (sse(event({"error": {"message": "CUDA out of memory"}})), "TT604", "memory"),
        (json_answer({"choices": []}), "TT851", "empty choices"),
        (json_answer({"choices": None}), "TT851", "empty choices"),
        (json_answer([1, 2]), "TT851", "not the API"),
        (body_answer(b"OK", "text/plain"), "TT851", "text/plain"),
        (body_answer(b"", "application/json"), "TT854", "nothing in it"),
        (sse(), "TT854", "nothing in it"),
        (sse(b": ping\n\n", b": ping\n\n"), "TT854", "2 keep-alives"),
        (sse(b"data: hello\n\n", b"data: world\n\n"), "TT862", "no JSON"),
        (sse(chunk("a"), b'data: {"choices": [\n\n', chunk("b", finish="stop"), DONE), "TT862", "1 of 4 events"),
        (sse(chunk("a"), chunk("b")[:-20]), "TT861", "in the middle of an event"),
        (sse(event({"type": "message_start", "message": {"role": "assistant"}})), "TT853", "Anthropic"),
        (body_answer(b'{"model":"q","message":{"content":"Hi"},"done":false}\n{"done":true}\n', "application/x-ndjson"),
         "TT853", "Ollama"),
        (sse(event({"type": "response.created", "response": {}})), "TT853", "responses"),
        (html_answer("  <HTML><body>login</body></HTML>"), "TT850", "HTML"),
        (body_answer(b"<!DOCTYPE html><html></html>", "text/event-stream"), "TT850", "HTML"),
        (sse(event({"object": "chat.completion.chunk", "choices": []}), DONE), "TT851", "empty choices"),
    ],
)  # fmt: skip
def test_answers_with_status_200_that_are_no_reply(answer: Answer, check: str, word: str) -> None:
    error = failed(answer)
    assert error.check == check, str(error)
    assert word in str(error)


def test_a_proxy_s_own_answers_are_told_apart() -> None:
    for status, check in ((502, "TT821"), (407, "TT821")):
        with ForwardProxy(refuse=status) as proxy:
            x = say_hi("http://server.example/v1", environ={"http_proxy": proxy.url})
        assert x.error is not None and x.error.check == check
        assert f"127.0.0.1:{proxy.port} (http_proxy)" in str(x.error)


def test_a_long_error_page_is_cut() -> None:
    with ScriptedServer().on("POST", CHAT, body_answer(b"trouble\n" * 100_000, "text/plain", 500)) as server:
        x = ask(server)
    assert x.error is not None and len(str(x.error)) < 500 and x.error.detail.count("\n") < 3


@given(
    st.integers(100, 999),
    st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
    st.dictionaries(st.sampled_from(["content-type", "server", "location", "retry-after"]), st.text(max_size=30)),
)
def test_any_answer_gets_one_line_and_a_fix(status: int, body: bytes, headers: dict[str, str]) -> None:
    facts = Facts("http://h/v1/chat/completions", "http://h/v1", status=status, body=body, headers=headers)
    error = diagnose(facts)
    assert error is not None and error.fix and error.check in CAUSES
    assert "\n" not in str(error) + error.fix and len(str(error)) <= 400


def test_nothing_of_the_key_is_kept() -> None:
    key = "sk-secret-0123456789"
    with ScriptedServer().on("POST", CHAT, openai("nope", None, 401)) as server:
        x = ask(server, api_key=key)
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert key not in everything_said(x)


#: Answers of a LiteLLM proxy (1.8x) to each of these, word for word.
LITELLM = {
    "the server behind it is not there": (
        500,
        "litellm.InternalServerError: InternalServerError: OpenAIException - Connection error.\nLiteLLM: model group "
        "'dead' failed with the error above. No fallback was attempted.",
        "TT847", "behind it",
    ),
    "its own key is wrong": (
        401,
        "litellm.AuthenticationError: AuthenticationError: OpenAIException - Invalid API key\nLiteLLM: model group "
        "'keyed' failed with the error above. No fallback was attempted.",
        "TT835", "own key",
    ),
    "it gave up on the server for a while": (
        429, "No deployments available for selected model, Try again in 5 seconds. Passed model=keyed.", "TT847", "behind",  # noqa: E501
    ),
    "a key that it did not issue": (400, "No connected db.", "TT831", "does not know the key"),
    "a model that it does not have": (
        400, "/chat/completions: Invalid model name passed in model=goood. Call `/v1/models` to view available models.",
        "TT841", "goood",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LITELLM)
def test_a_gateway_and_what_lies_behind_it(name: str) -> None:
    status, said, check, fact = LITELLM[name]
    with ScriptedServer() as server:
        answer = json_answer({"error": {"message": said, "type": None, "param": None, "code": str(status)}}, status)
        server.on("POST", CHAT, answer.with_headers(x_litellm_call_id="1"))
        x = ask(server, api_key="sk-own-0123456789", model="goood")
    assert x.error is not None and x.error.check == check and fact in str(x.error), x.error
    assert x.error.fix and "\n" not in str(x.error)


def test_a_500_without_a_key_mentions_the_key() -> None:
    with ScriptedServer() as server:
        server.on("POST", CHAT, Answer(500, {}, [b"Internal Server Error"], "length"))
        without, with_key = ask(server), ask(server, api_key="sk-own-0123456789")
    assert without.error is not None and "no key was sent" in without.error.fix
    assert with_key.error is not None and "key" not in with_key.error.fix
