"""Layers 7 and 6 from outside: progress, queue, cache, context, counts, special tokens, files."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from doctor_support import CHAT, Diagnosis, ScriptedServer, detail, healthy, ids, look, look_at_metrics, metrics
from support.http_servers import Answer, Request, json_answer, models, sse, usage_chunk

from tokentrace.doctor.check import Sample
from tokentrace.doctor.readings import engines, progress


def samples(*seen: tuple[float, str]) -> list[Sample]:
    return [Sample(int(at * 1e9), "load", {"engines": engines(text)}) for at, text in seen]


def vllm(running: int, waiting: int, tokens: int, label: str = "") -> str:
    return (
        f"vllm:num_requests_running{label} {running}\nvllm:num_requests_waiting{label} {waiting}\n"
        f"vllm:generation_tokens_total{label} {tokens}\n"
    )


@pytest.mark.parametrize(
    ("seen", "failed", "verdict"),
    [
        ([(0, vllm(0, 6, 100)), (5, vllm(0, 6, 100))], True, "stalled"),
        ([(0, vllm(0, 6, 100)), (0.5, vllm(0, 6, 100))], True, "unclear"),  # too soon to tell
        ([(0, vllm(8, 6, 100)), (5, vllm(8, 6, 600))], True, "busy"),
        ([(0, vllm(1, 0, 100)), (5, vllm(1, 0, 100))], True, "stalled"),  # ours runs and makes nothing
        ([(0, vllm(1, 0, 100)), (2, vllm(1, 0, 100))], True, "unclear"),  # it may be a long prefill
        ([(0, vllm(1, 0, 100)), (5, vllm(1, 0, 100))], False, "idle"),
        ([(0, vllm(0, 0, 100)), (1, vllm(0, 0, 101))], False, "working"),
        ([(0, vllm(0, 0, 100)), (1, vllm(0, 0, 100))], False, "idle"),
        ([(0, vllm(0, 6, 100)), (5, vllm(0, 6, 3))], True, "unclear"),  # started anew
        ([(0, vllm(0, 6, 100))], True, "unclear"),
        ([(0, "vllm:kv_cache_usage_perc 0\n"), (5, "vllm:kv_cache_usage_perc 0\n")], True, "unclear"),
        ([(0, vllm(0, 1, 1)), (2, vllm(2, 1, 1)), (4, vllm(0, 1, 1))], True, "unclear"),  # it admits now and then
    ],
)  # fmt: skip
def test_progress_tells_busy_from_stuck(seen: list[tuple[float, str]], failed: bool, verdict: str) -> None:
    assert progress(samples(*seen), failed).verdict == verdict


def test_tokens_of_our_own_are_no_work_of_the_engine() -> None:
    idle = samples((0, vllm(0, 0, 100)), (1.7, vllm(0, 0, 117)))
    found = progress(idle, own_tokens=17)
    assert (found.verdict, found.sentence) == ("idle", "is idle but for this request's own 17 tokens")
    assert "tokens/s" not in progress(idle, own_tokens=None).sentence, "how many are ours is not known"
    busy = progress(samples((0, vllm(1, 0, 100)), (2, vllm(1, 0, 157))), own_tokens=17)
    assert busy.verdict == "working" and busy.sentence.endswith("20 tokens/s for others")


def test_the_doctors_own_request_leaves_an_idle_engine_idle() -> None:
    """Counted as a server does: all tokens that its calls have made so far."""
    with healthy() as server:

        def answer(_: Request) -> Answer:
            asked = [r.json["max_tokens"] for r in server.requests if r.method == "POST" and r.path == CHAT]
            return metrics(vllm(0, 0, 100 + sum(asked)))

        server.on("GET", "/metrics", answer)
        found = look(server.url + "/v1")
    assert "TT610" in ids(found, "ok") and "at work" not in detail(found, "TT610"), detail(found, "TT610")
    assert "idle" in detail(found, "TT610")


def test_engines_behind_one_address_are_judged_together() -> None:
    both = vllm(0, 3, 10, '{engine="0"}') + vllm(4, 0, 10, '{engine="1"}')
    later = vllm(0, 3, 10, '{engine="0"}') + vllm(4, 0, 90, '{engine="1"}')
    found = progress(samples((0, both), (2, later)), True)
    assert found.verdict == "busy" and (found.waiting, found.running) == (3, 4)


def test_metrics_of_megabytes_are_bounded() -> None:
    assert engines("other 1\n" * 500_000) == []
    assert len(engines("".join(f'vllm:num_requests_running{{e="{n}"}} 1\n' for n in range(20_000)))) <= 5_000


def counting(server: ScriptedServer, before: str, after: str) -> Any:
    """/metrics that change with the call: however often they are asked for until then."""

    def answer(_: Request) -> Answer:
        return metrics(after if any(r.method == "POST" and r.path == CHAT for r in server.requests) else before)

    return answer


def test_preemptions_during_the_call() -> None:
    with healthy() as server:
        before, after = (f"vllm:num_preemptions_total {n}\nvllm:num_requests_running 0\n" for n in (4, 9))
        server.on("GET", "/metrics", counting(server, before, after))
        found = look(server.url + "/v1")
    assert "TT611" in ids(found, "warn") and "5 requests were preempted" in detail(found, "TT611")


def test_context_against_the_reply_that_is_meant() -> None:
    with healthy() as server:
        fine = look(server.url + "/v1", max_tokens=64)
        assert "4096 tokens" in detail(fine, "TT614") and "TT614" in ids(fine, "ok")
        large = look(server.url + "/v1", max_tokens=4090)
        assert "TT614" in ids(large, "warn") and "--max-tokens 4087 fits" in large.verdict.fix


def test_a_cache_that_does_not_hold_the_context() -> None:
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",num_gpu_blocks_override="None"} 1\n'
    found = look_at_metrics(text)
    assert "TT614" in ids(found, "warn") and "holds only 1600" in detail(found, "TT614")


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ('vllm:cache_config_info{enable_prefix_caching="False"} 1\n', "warn", "--enable-prefix-caching"),
        ('vllm:cache_config_info{enable_prefix_caching="True"} 1\n', "ok", "on"),
        ("", "unknown", "not told"),
    ],
)
def test_prefix_cache(text: str, status: str, said: str) -> None:
    found = look_at_metrics(text)
    assert "TT615" in ids(found, status)
    assert said in " ".join(r.detail + r.fix for r in found.examination.results if r.id == "TT615")


def test_cached_tokens_that_are_not_told_are_unknown() -> None:
    with healthy() as server:
        server.on("GET", "/metrics", counting(server, *(f"vllm:prefix_cache_hits_total {n}\n" for n in (5, 9))))
        found = look(server.url + "/v1")
    (result,) = (r for r in found.examination.results if r.id == "TT615")
    assert result.status == "unknown" and "--enable-prompt-tokens-details" in result.fix and " 0 " not in result.detail


def test_the_request_id_comes_back() -> None:
    def answer(request: Request) -> Answer:
        rid = f"chatcmpl-{request.headers['x-request-id']}-1a2b"
        piece = {"id": rid, "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
        return sse(b"data: " + json.dumps(piece).encode() + b"\n\n", usage_chunk(), b"data: [DONE]\n\n")

    with healthy() as server:
        assert "TT616" in ids(look(server.url + "/v1"), "unknown")
        server.on("POST", CHAT, answer)
        assert "TT616" in ids(look(server.url + "/v1"), "ok")


# Layer 7


def tokenizing(server: ScriptedServer, of_messages: list[int], text: str = "<s>") -> Diagnosis:
    def tokenize(request: Request) -> Answer:
        ids_ = of_messages if "messages" in request.json else list(range(50, 54))
        return json_answer({"count": len(ids_), "tokens": ids_, "max_model_len": 4096})

    server.on("POST", "/tokenize", tokenize)
    server.on("POST", "/detokenize", json_answer({"prompt": text}))
    return look(server.url + "/v1")


def test_template_tokens_are_no_mismatch() -> None:
    with healthy() as server:
        found = tokenizing(server, [1, 32, 33, 50, 51, 52, 53, 34, 35])
    assert "TT703" in ids(found, "ok") and "text 4 + template 5 = 9" in detail(found, "TT703")
    assert "TT702" in ids(found, "ok")


def test_another_count_is_told() -> None:
    with healthy() as server:
        found = tokenizing(server, [1, 32, 33])
    assert "TT703" in ids(found, "warn") and "counted 9" in detail(found, "TT703")


def test_a_special_token_twice() -> None:
    with healthy() as server:
        found = tokenizing(server, [1, 1, 32, 33, 50, 51, 52, 53, 34])
        assert "TT702" in ids(found, "warn") and "'<s>'" in detail(found, "TT702")
        assert "add_bos_token" in found.verdict.fix
        found = tokenizing(server, [70, 70, 32, 33, 50, 51, 52, 53, 34], "ha")
        assert "TT702" in ids(found, "ok")


def test_time_before_the_engine() -> None:
    def histograms(count: int, first: float) -> str:
        return "".join(
            f"vllm:{name}_sum {value * count}\nvllm:{name}_count {count}\n"
            for name, value in (
                ("time_to_first_token_seconds", first), ("request_queue_time_seconds", 0.002),
                ("request_prefill_time_seconds", 0.05), ("e2e_request_latency_seconds", 1.0),
            )
        )  # fmt: skip

    with healthy() as server:
        server.on("GET", "/metrics", counting(server, histograms(0, 0), histograms(2, 0.95)))
        found = look(server.url + "/v1")
    assert "TT705" in ids(found, "warn") and "0.90 s pass before" in detail(found, "TT705")


@pytest.mark.parametrize(("delays", "status"), [((0.8, 0.8), "warn"), ((0.8, 0.0), "ok")])
def test_a_tokenizer_is_slow_that_is_slow_twice(delays: tuple[float, ...], status: str) -> None:
    """A machine that was busy with something else just then is no slow tokenizer."""
    left = list(delays)

    def tokenize(request: Request) -> Answer:
        words = request.json.get("prompt", "").split()
        answer = json_answer({"tokens": list(range(len(words) + 1)), "count": len(words) + 1})
        answer.before = left.pop(0) if len(words) > 1_000 else 0.0
        return answer

    with healthy() as server:
        server.on("POST", "/tokenize", tokenize)
        found = look(server.url + "/v1")
    assert "TT705" in ids(found, status) and not left, detail(found, "TT705")


@pytest.mark.parametrize(
    ("files", "check", "status", "said"),
    [
        ({"tokenizer.json": "{}", "tokenizer_config.json": '{"chat_template": "x"}'}, "TT701", "ok", ""),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "{}"}, "TT701", "warn", "no chat template"),
        ({"tokenizer.json": "{}", "chat_template.jinja": "x"}, "TT701", "ok", ""),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "{broken"}, "TT701", "unknown", "JSON"),
        ({"tokenizer.json": "{}"}, "TT704", "ok", "tokenizer.json"),
        ({"tokenizer.model": "x"}, "TT704", "warn", "slow"),
        ({"tekken.json": "{}"}, "TT704", "warn", "mistral"),
        ({}, "TT704", "fail", "no tokenizer"),
    ],
)
def test_files_of_the_tokenizer(tmp_path: Path, files: dict[str, str], check: str, status: str, said: str) -> None:
    from tokentrace.doctor.check import Situation
    from tokentrace.doctor.registry import by_id

    for name, text in files.items():
        (tmp_path / name).write_text(text)
    look_at = by_id("TT704").run
    assert look_at is not None
    results = {r.id: r for r in look_at(Situation("machine", {}, 0.0, model_path=str(tmp_path)))}
    assert results[check].status == status and said in results[check].detail + results[check].fix


def test_a_model_list_that_is_wrong_does_no_harm() -> None:
    with healthy() as server:
        for answer in (
            json_answer({"data": None}),
            json_answer({"data": [1, {"id": None}]}),
            json_answer([]),
            models(),
        ):
            server.on("GET", "/v1/models", answer)
            assert look(server.url + "/v1", model="alpha").verdict.status != "fail"


def test_the_same_tokenizer_here_and_there(tmp_path: Path) -> None:
    """Real tokenizer files against a server that has the same ones, and against one that has others."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokentrace.doctor.tokenizer import _SAMPLE

    words = {word: number for number, word in enumerate(["[UNK]", *dict.fromkeys(_SAMPLE.split())])}
    ours = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    ours.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ours.save(str(tmp_path / "tokenizer.json"))
    same = ours.encode(_SAMPLE, add_special_tokens=False).ids
    other = [*same[:3], 99, *same[4:]]
    with healthy() as server:
        entry = {"id": "alpha", "root": str(tmp_path), "max_model_len": 4096}
        server.on("GET", "/v1/models", json_answer({"data": [entry]}))
        for theirs, status in ((same, "ok"), (other, "warn")):
            server.on("POST", "/tokenize", json_answer({"tokens": theirs, "count": len(theirs)}))
            found = look(server.url + "/v1")
            assert "TT706" in ids(found, status), found.examination.results
    assert "from position 3 on" in detail(found, "TT706")


_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404); self.send_header("content-length", "0"); self.end_headers()
    do_POST = do_GET
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_server_that_shall_trace_without_the_packages(tmp_path: Path) -> None:
    """A real process in an environment of its own that is nearly empty."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    script = tmp_path / "vllm_server.py"
    script.write_text(_SERVER)
    arguments = [
        str(tmp_path / "venv" / "bin" / "python"),
        str(script),
        "--otlp-traces-endpoint",
        "http://127.0.0.1:4317",
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        found = look(url)
        site = next((tmp_path / "venv" / "lib").glob("python3*")) / "site-packages" / "opentelemetry" / "sdk"
        site.mkdir(parents=True)
        with_packages = look(url)
    finally:
        process.kill()
        process.wait()
    assert "TT616" in ids(found, "warn") and "no OpenTelemetry SDK" in detail(found, "TT616")
    assert "TT616" not in ids(with_packages, "warn")
