"""What a bench sends, in which order, and what it tells of it, over real sockets."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.http_servers import (
    DONE,
    Answer,
    Request,
    ScriptedServer,
    chunk,
    hello,
    json_answer,
    models,
    sse,
    usage_chunk,
)

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()", "bench"]
KEY = "sk-test-4711-secret"


def environment(data: Path) -> dict[str, str]:
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)} | {"TOKENTRACE_DATA_DIR": str(data)}


def bench(*arguments: str, data: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environment(data), timeout=240, check=False
    )
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert KEY not in done.stderr + done.stdout
    return done


def result(*arguments: str, data: Path, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(bench(*arguments, "--json", data=data, code=code).stdout)
    assert found["schema"] == "tokentrace.bench/1"
    return found


def reply(first_s: float = 0.03, gap_s: float = 0.01, tokens: int = 5) -> Answer:
    steps: list[Any] = [chunk(role="assistant"), first_s, chunk("a")]
    for _ in range(tokens - 2):
        steps += [gap_s, chunk("b")]
    return sse(*steps, gap_s, chunk("c", finish="stop"), usage_chunk(9, tokens), DONE)


def api(server: ScriptedServer) -> str:
    return f"{server.url}/v1"


def chats(server: ScriptedServer) -> list[Request]:
    return [r for r in server.requests if r.method == "POST"]


def test_sends_what_it_said_and_counts_no_warmup(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", reply(first_s=0.5), reply(gap_s=0.05))
        done = bench("Hi", "--url", api(server), "--model", "alpha", "-n", "6", "--max-tokens", "7", "--key", KEY,
                     "--json", data=tmp_path)  # fmt: skip
    found = orjson.loads(done.stdout)
    assert len(chats(server)) == 7
    assert {r.json["max_tokens"] for r in chats(server)} == {7}
    assert "7 requests (1 of them to warm up, not counted)" in done.stderr and "49 in all" in done.stderr
    one = found["targets"][0]
    assert one["requests"] == one["ok"] == 6 and one["output_tokens"] == 30
    assert one["warmup"] == {"requests": 1, "ok": 1, "first_total_ns": one["warmup"]["first_total_ns"]}
    figures = one["figures"]
    assert figures["ttft"]["count"] == 6 and figures["ttft"]["min"] >= 30e6
    assert one["warmup"]["first_total_ns"] > 500e6
    assert figures["inter_token"]["count"] == 24 and figures["inter_token"]["requests"] == 6
    assert figures["mean_inter_token"]["min"] >= 25e6  # four gaps of 50 ms, the first read late
    assert figures["total"]["p99"]["value"] is None and "it takes 100" in figures["total"]["p99"]["why"]
    # The kept trace is the slowest request, and can be shown.
    slowest = max(found["requests"], key=lambda r: r["total_ns"])
    show = [*COMMAND[:-1], "show", one["slowest"], "--json"]
    shown = subprocess.run(show, capture_output=True, env=environment(tmp_path), timeout=240, check=True)
    assert orjson.loads(shown.stdout)["wall_ns"] == slowest["total_ns"]


def test_two_endpoints_take_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def answering(name: str, first_s: float) -> Any:
        def answer(_: Request) -> Answer:
            order.append(name)
            return reply(first_s)

        return answer

    with ScriptedServer() as a, ScriptedServer() as b:
        a.on("POST", "/v1/chat/completions", answering("a", 0.02))
        b.on("POST", "/v1/chat/completions", answering("b", 0.2))
        found = result("Hi", "--url", api(a), "--url", api(b), "--model", "alpha", "-n", "12", "--concurrency", "2",
                       data=tmp_path)  # fmt: skip
    assert order[:2] == ["a", "b"]  # warm-up
    assert order[2:] == ["a", "a", "b", "b"] * 6
    rows = {row["metric"]: row for row in found["comparison"]}
    assert rows["ttft"]["beyond_noise"] is True and rows["ttft"]["rounds"] == 6
    assert rows["ttft"]["difference"] > 100e6 and rows["ttft"]["low"] > 0
    assert "first token" in found["verdict"] and "longer" in found["verdict"]
    names = [target["name"] for target in found["targets"]]
    assert names == [f"127.0.0.1:{a.port}", f"127.0.0.1:{b.port}"]


def test_never_more_at_a_time_than_asked_for(tmp_path: Path) -> None:
    lock, now, most, came = threading.Lock(), [0], [0], [0]
    full = threading.Event()

    def answer(_: Request) -> Answer:
        with lock:
            came[0] += 1
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] >= 3:
                full.set()
            warmup = came[0] == 1
        if not warmup:
            full.wait(60)  # as many as may be there at a time
            time.sleep(0.05)  # one too many would come meanwhile
        with lock:
            now[0] -= 1
        return hello()

    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", answer)
        bench("Hi", "--url", api(server), "--model", "alpha", "-n", "12", "--concurrency", "3", data=tmp_path)
    assert most[0] == 3


def test_an_open_loop_counts_from_when_a_request_was_due(tmp_path: Path) -> None:
    # One at a time, each 0.1 s, but due every 0.02 s: request number n waits n times 0.08 s that a closed loop hides.
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", reply(first_s=0.1, gap_s=0.0))
        found = result("Hi", "--url", api(server), "--model", "alpha", "-n", "8", "--rate", "50", "--arrivals", "even",
                       "--concurrency", "1", data=tmp_path)  # fmt: skip
    rows = sorted(found["requests"], key=lambda r: r["number"])
    for number, row in enumerate(rows):
        assert row["delay_ns"] >= number * 0.08e9 - 5e6
        assert row["ttft_ns"] >= row["delay_ns"] + 0.1e9
        assert row["total_ns"] >= row["ttft_ns"] > row["wait_ns"]
    assert "coordinated omission" in found["sent"] and found["loop"]["kind"] == "open"
    assert found["targets"][0]["figures"]["delay"]["max"] > 0.5e9


def test_requests_a_second_of_an_open_loop_count_the_time_between_them(tmp_path: Path) -> None:
    # Due every 0.25 s, so the last of five is sent a second after the first: five in less than that cannot be.
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", reply(first_s=0.0, gap_s=0.0))
        found = result("Hi", "--url", api(server), "--model", "alpha", "-n", "5", "--rate", "4", "--arrivals", "even",
                       data=tmp_path)  # fmt: skip
    one = found["targets"][0]
    starts = [row["start_ns"] for row in found["requests"]]
    assert one["wall_ns"] >= max(starts) - min(starts) > 0
    assert one["wall_ns"] >= 0.95e9 and one["requests_per_s"] <= 5 / 0.95


def test_failures_are_grouped_by_their_cause_and_not_sent_again(tmp_path: Path) -> None:
    limited = json_answer({"error": {"message": "too many"}}, 429, retry_after="0")
    cut = sse(chunk(role="assistant"), chunk("a"))
    config = tmp_path / "one.toml"
    with ScriptedServer() as server:
        config.write_text(f'base_url = "{server.url}/v1"\nmodel = "alpha"\nmax_retries = 3\n')
        server.on("POST", "/v1/chat/completions", hello(), hello(), limited, cut, limited, hello())
        found = result("Hi", "--config", str(config), "-n", "5", data=tmp_path, code=1)
    assert len(chats(server)) == 6  # with a warm-up, and no retry although the file asks for them
    one = found["targets"][0]
    assert one["ok"] == 2 and one["success"]["share"] == 0.4 and one["success"]["low"] < 0.4 < one["success"]["high"]
    assert [(g["check"], g["count"]) for g in one["errors"]] == [("TT845", 2), ("TT861", 1)]
    assert all(g["fix"] and g["title"] for g in one["errors"])
    assert one["figures"]["ttft"]["count"] == 2  # a failed reply is no quick one


def test_one_failure_of_many_is_exit_code_1_and_quiet_says_how_many_worked(tmp_path: Path) -> None:
    limited = json_answer({"error": {"message": "too many"}}, 429, retry_after="0")
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", hello(), hello(), limited, hello())
        done = bench("Hi", "--url", api(server), "--model", "alpha", "-n", "4", "-q", data=tmp_path, code=1)
    assert done.stdout.strip().endswith("3 of 4 requests worked.")
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", hello(), hello(), hello(), limited, hello())
        both = ("--url", api(server), "--url", api(server))
        done = bench("Hi", *both, "--model", "alpha", "-n", "4", "-q", data=tmp_path, code=1)
    assert "3 of 4 requests worked" in done.stdout and "4 of 4 requests worked" in done.stdout


def test_a_failing_warmup_ends_it_with_the_reason(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        refused = json_answer({"error": {"message": "Incorrect API key"}}, 401)
        server.on("POST", "/v1/chat/completions", refused).on("GET", "/v1/models", models("alpha"))
        done = bench("Hi", "--url", api(server), "--model", "alpha", "-n", "50", "--key", KEY, data=tmp_path, code=2)
        assert len(chats(server)) == 1
        assert "key" in done.stderr and "fix:" in done.stderr
        gave_up = result(
            "Hi", "--url", api(server), "--model", "alpha", "-n", "50", "--warmup", "0", data=tmp_path, code=1
        )
    assert gave_up["targets"][0]["requests"] == 10 and "the rest was not sent" in gave_up["notes"][0]


def test_ctrl_c_gives_the_figures_until_then(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", reply(0.05))
        command = [
            *COMMAND,
            "Hi",
            "--url",
            api(server),
            "--model",
            "alpha",
            "-n",
            "400",
            "--concurrency",
            "2",
            "--json",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path))
        end = time.monotonic() + 120
        while len(chats(server)) < 9 and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 130, stderr
    found = orjson.loads(stdout)
    assert found["interrupted"] and 5 <= found["targets"][0]["ok"] < 400
    assert found["targets"][0]["errors"] == []  # what was ended by us is no failure
    assert b"Traceback" not in stderr


def test_files_hold_every_request_and_no_markup_of_the_server(tmp_path: Path) -> None:
    page, table = tmp_path / "b.html", tmp_path / "b.csv"
    bad = sse(chunk("x"), b'data: {"error": {"message": "<script>alert(1)</script>=1+1"}}\n\n')
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", hello(), hello(), bad, hello())
        bench("Hi", "--url", api(server), "--model", "alpha", "-n", "6", "-o", str(page), "--csv", str(table),
              "--key", KEY, data=tmp_path, code=1)  # fmt: skip
    text = page.read_text()
    assert "<script" not in text and "&lt;script" in text
    assert "default-src 'none'" in text
    assert "<svg" in text and KEY not in text and "src=" not in text
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 6 and [row["ok"] for row in rows].count("False") == 1
    assert all(int(row["total_ns"]) > 0 for row in rows)


def test_the_page_of_two_endpoints_says_first_that_some_failed(tmp_path: Path) -> None:
    page, limited = tmp_path / "b.html", json_answer({"error": {"message": "too many"}}, 429)
    with ScriptedServer() as a, ScriptedServer() as b:
        a.on("POST", "/v1/chat/completions", hello())
        b.on("POST", "/v1/chat/completions", hello(), hello(), limited, hello())
        bench("Hi", "--url", api(a), "--url", api(b), "--model", "alpha", "-n", "5", "-o", str(page),
              data=tmp_path, code=1)  # fmt: skip
    first = page.read_text().partition("<h1>")[2].partition("</h1>")[0]
    assert "5 of 5 worked" in first and "4 of 5 worked" in first and "first token" in first


def test_without_a_model_the_servers_only_one_is_used_and_asked_for_once(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", hello()).on("GET", "/v1/models", models("only"))
        found = result("Hi", "--url", api(server), "-n", "4", data=tmp_path)
    assert {r.json["model"] for r in chats(server)} == {"only"}
    assert server.paths().count("/v1/models") == 1
    assert found["targets"][0]["ok"] == 4


@pytest.mark.parametrize(
    "arguments",
    [("", ), ("Hi", "--rate", "0"), ("Hi", "--arrivals", "even"), ("Hi", "-o", "x.txt"),
     ("Hi", "--url", "http://a", "--url", "http://b", "--url", "http://c"),
     ("Hi", "--csv", "/nowhere/at/all/x.csv", "--url", "http://127.0.0.1:9")],
)  # fmt: skip
def test_what_cannot_be_done_is_told_before_anything_is_sent(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = bench(*arguments, data=tmp_path, code=2)
    assert "sending" not in done.stderr


def test_a_number_before_the_prompt_defeats_prefix_caches(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", hello())
        bench("Hi", "--url", api(server), "--model", "alpha", "-n", "4", "--vary", data=tmp_path)
    sent = [r.json["messages"][-1]["content"] for r in chats(server)]
    assert len(set(sent)) == 5 and all(text.endswith("Hi") for text in sent)
