"""What a bench shows: how many worked, and the server's own means beside ours of the same thing; over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http_servers import Answer, Request, ScriptedServer, body_answer, chunk, hello, json_answer
from test_bench_http import bench, chats
from test_bench_pace import CHAT, asked, stream


def test_only_all_of_them_are_100_per_cent(tmp_path: Path) -> None:
    limited = json_answer({"error": {"message": "too many"}}, 429)
    with ScriptedServer() as server:
        server.on("POST", CHAT, hello(), limited, hello())
        page = tmp_path / "b.html"
        shown = bench(*asked(server, 220), "--concurrency", "4", "-o", str(page), data=tmp_path, code=1).stdout
    text = " ".join(shown.split())
    assert "219 of 220 requests worked (99.5 %, 95 % interval 97 % to 99.9 %)" in text
    assert "1 (0.5 %)" in page.read_text()


@pytest.mark.parametrize(("tokens", "here"), [(6, "here "), (60, "here at least ")])
def test_the_servers_own_figures_stand_beside_ours_of_the_same_thing(tokens: int, here: str, tmp_path: Path) -> None:
    """vLLM has both: from one token to the next, and of each request its decoding over its tokens without the first."""
    steps = [step for _ in range(6) for step in (0.1, chunk("a"))]

    with ScriptedServer() as server:

        def metrics(_: Request) -> Answer:
            count = len(chats(server))
            lines = []
            named = (("inter_token_latency", 0.011, 5), ("request_time_per_output_token", 0.013, 1),
                     ("time_to_first_token", 0.017, 1), ("e2e_request_latency", 0.019, 1))  # fmt: skip
            for name, seconds, of in named:
                lines += [f"# TYPE vllm:{name}_seconds histogram",
                          f'vllm:{name}_seconds_bucket{{le="+Inf"}} {count * of}',
                          f"vllm:{name}_seconds_sum {seconds * count * of}",
                          f"vllm:{name}_seconds_count {count * of}"]  # fmt: skip
            lines += ["# TYPE vllm:request_generation_tokens histogram",
                      'vllm:request_generation_tokens_bucket{le="1.0"} 0',
                      f'vllm:request_generation_tokens_bucket{{le="+Inf"}} {count}',
                      f"vllm:request_generation_tokens_sum {6 * count}",
                      f"vllm:request_generation_tokens_count {count}"]  # fmt: skip
            return body_answer("\n".join([*lines, ""]).encode(), "text/plain; version=0.0.4")

        server.on("POST", CHAT, stream(*steps, tokens=tokens)).on("GET", "/metrics", metrics)
        shown = " ".join(bench(*asked(server), data=tmp_path).stdout.split())
    means = shown.partition("its own means: ")[2]
    assert "gap between tokens 11.0 ms (here " in means and f"time a token 13.0 ms ({here}" in means
    assert "first token 17.0 ms (here " in means and "whole request 19.0 ms (here " in means
