"""The running engine, over real HTTP, with the built-in model."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.model

HI = [{"role": "user", "content": "Hi"}]
LONG = {"messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 120, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(engine: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.base_url.removesuffix("/v1"), timeout=120) as made:
        yield made


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={"messages": HI, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def events(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
    with client.stream("POST", path, json={"temperature": 0, "stream": True, **fields}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"tokentrace:{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise AssertionError(f"no metric {name}")


def test_hi_is_greeted(client: httpx.Client) -> None:
    value = chat(client)
    assert value["choices"][0]["message"]["content"].startswith(("Hello", "Hi"))
    assert value["choices"][0]["finish_reason"] == "stop"
    assert value["usage"]["prompt_tokens"] == 31
    assert value["usage"]["total_tokens"] == 31 + value["usage"]["completion_tokens"]


def test_the_stream_adds_up_to_the_whole_reply(client: httpx.Client) -> None:
    whole = chat(client)
    got = events(client, messages=HI, stream_options={"include_usage": True})
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = [e["choices"][0]["delta"].get("content", "") for e in got if e["choices"]]
    assert "".join(text) == whole["choices"][0]["message"]["content"]
    assert [e["choices"][0]["finish_reason"] for e in got if e["choices"]][-1] == "stop"
    assert got[-1]["choices"] == [] and got[-1]["usage"] == whole["usage"]
    assert len({e["id"] for e in got}) == 1
    # one chunk for each token but the last, which ends the reply and has no text
    assert sum(bool(t) for t in text) == whole["usage"]["completion_tokens"] - 1


def test_without_a_temperature_the_models_own_settings_hold(client: httpx.Client) -> None:
    answers = [client.post("/v1/chat/completions", json={"messages": HI}).json() for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]  # this model's generation_config says nothing: greedy


def test_two_prompts_at_once_share_a_batch(engine: Any) -> None:
    async def stream(client: httpx.AsyncClient, name: str, order: list[str]) -> None:
        async with client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if '"content":"' in line:
                    order.append(name)

    async def both() -> tuple[list[str], int]:
        order: list[str] = []
        together = 0
        async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=120) as client:
            tasks = [asyncio.create_task(stream(client, name, order)) for name in "ab"]
            while not all(task.done() for task in tasks):
                text = (await client.get("/metrics")).text
                line = next(line for line in text.splitlines() if line.startswith("tokentrace:num_requests_running"))
                together = max(together, int(float(line.rsplit(" ", 1)[1])))
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)
        return order, together

    order, together = asyncio.run(both())
    changes = sum(left != right for left, right in itertools.pairwise(order))
    assert together == 2, "the scheduler held both as running"
    # One after the other would be one change; a reader who is late finds several tokens of each at once.
    assert changes > 10, "their tokens came in turn, step by step"


def test_a_reply_is_the_same_alone_and_in_a_batch(engine: Any) -> None:
    prompts = ["The sea is", "Once upon a time there", "1 2 3 4", "A cat and a dog"]

    async def ask(client: httpx.AsyncClient, prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
        return str(answer.json()["choices"][0]["text"])

    async def run() -> tuple[list[str], list[str]]:
        async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=120) as client:
            alone = [await ask(client, prompt) for prompt in prompts]
            return alone, list(await asyncio.gather(*(ask(client, prompt) for prompt in prompts)))

    alone, batched = asyncio.run(run())
    assert batched == alone


def test_tokens_are_those_of_plain_generate(client: httpx.Client, smol: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smol.path, dtype=torch.float32).eval()
    for prompt in ("The capital of France is", "def add(a, b):", "12 + 30 ="):
        ids = client.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
        out = model.generate(torch.tensor([ids]), max_new_tokens=20, min_new_tokens=20, do_sample=False)
        body = {"prompt": ids, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        expected = client.post("/detokenize", json={"tokens": out[0, len(ids) :].tolist()}).json()["prompt"]
        assert text == expected


def test_tokenize_and_back(client: httpx.Client) -> None:
    value = client.post("/tokenize", json={"messages": HI}).json()
    assert value["count"] == len(value["tokens"]) == 31
    assert value["max_model_len"] == client.get("/v1/models").json()["data"][0]["max_model_len"]
    digits = client.post("/tokenize", json={"prompt": "12"}).json()
    assert digits["count"] == 2, "each digit is a token of its own, as this model was trained"
    for text in ("Hi", "12 + 345", "naïve café 🎉 你好", "  two  spaces\n\ttab", "x=1;y=2"):
        ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == text


def test_stop_strings_end_the_reply_before_them(client: httpx.Client) -> None:
    whole = chat(client)["choices"][0]["message"]["content"]
    word = whole.split()[2]
    value = chat(client, stop=[word])
    assert value["choices"][0]["message"]["content"] == whole[: whole.index(word)]
    assert value["choices"][0]["finish_reason"] == "stop"
    got = events(client, messages=HI, stop=word)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in got) == whole[: whole.index(word)]


def test_max_tokens(client: httpx.Client) -> None:
    value = chat(client, max_completion_tokens=3)
    assert (value["choices"][0]["finish_reason"], value["usage"]["completion_tokens"]) == ("length", 3)


def test_chance_is_repeatable_with_a_seed_and_top_k_1_is_greedy(client: httpx.Client) -> None:
    def text(**fields: Any) -> str:
        body = {"prompt": "My favourite", "max_tokens": 12, **fields}
        return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    assert text(temperature=1, seed=7) == text(temperature=1, seed=7)
    assert len({text(temperature=1.5, seed=seed) for seed in range(4)}) > 1
    assert text(temperature=1, top_k=1, seed=3) == text(temperature=0)
    assert text(temperature=1, top_p=0.0001, seed=3) == text(temperature=0)


def test_completions_stream(client: httpx.Client) -> None:
    got = events(client, "/v1/completions", prompt="The sea is", max_tokens=5, ignore_eos=True)
    assert got[0]["object"] == "text_completion" and got[0]["choices"][0]["text"].startswith(" ")
    assert got[-1]["choices"][0]["finish_reason"] == "length"


def test_the_clients_request_id_is_carried(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HI}, headers={"X-Request-Id": "abc-1"})
    assert answer.json()["id"].startswith("chatcmpl-abc-1-")
    assert answer.headers["x-request-id"] == "abc-1"


def test_refusals(client: httpx.Client) -> None:
    limit = client.get("/v1/models").json()["data"][0]["max_model_len"]
    for body, status, phrase in (
        ({"messages": HI, "model": "gpt-4"}, 404, "The model `gpt-4` does not exist"),
        ({"messages": HI, "n": 2}, 400, "n must be 1"),
        ({"messages": [{"role": "user", "content": "a " * limit}]}, 400, f"maximum context length is {limit} tokens"),
        ({"messages": HI, "max_tokens": limit}, 400, f"31 tokens of prompt and {limit} of completion"),
    ):
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == status
        assert phrase in answer.json()["error"]["message"]
    assert client.post("/v1/chat/completions", content=b"{").status_code == 400
    assert client.post("/v1/completions", json={"prompt": ""}).status_code == 400
    assert client.post("/v1/completions", json={"prompt": [10**9]}).status_code == 400
    assert client.post("/v1/chat/completions", content=b" " * (9 << 20)).status_code == 413
    assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"
    refused = client.get("/v1/chat/completions")
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_long_prompt_is_read_in_parts(client: httpx.Client) -> None:
    value = chat(client, messages=[{"role": "user", "content": "word " * 700}], max_tokens=2, ignore_eos=True)
    assert value["usage"]["prompt_tokens"] > 700 and value["usage"]["completion_tokens"] == 2


def test_a_client_that_goes_away_frees_its_place(client: httpx.Client) -> None:
    before = metric(client, "request_success_total", finished_reason="abort")
    with client.stream("POST", "/v1/chat/completions", json={**LONG, "max_tokens": 1000, "stream": True}) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 60
    while metric(client, "num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(client, "num_requests_running") == 0
    assert metric(client, "kv_cache_blocks_used") == 0
    assert metric(client, "request_success_total", finished_reason="abort") == before + 1


def test_metrics_count_tokens(client: httpx.Client) -> None:
    before = metric(client, "generation_tokens_total"), metric(client, "time_to_first_token_seconds_count")
    used = chat(client)["usage"]["completion_tokens"]
    assert metric(client, "generation_tokens_total") == before[0] + used
    assert metric(client, "time_to_first_token_seconds_count") == before[1] + 1
    assert metric(client, "num_requests_waiting") == 0


def test_facts(engine: Any, client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert engine.facts["dtype"] == "float32" and engine.facts["kv_blocks"] * 16 > engine.facts["max_model_len"]
    assert client.get("/version").json()["version"] == engine.facts["versions"]["tokentrace"]
