"""What a bench shows: how many worked, over real sockets."""

from __future__ import annotations

from pathlib import Path

from support.http_servers import ScriptedServer, hello, json_answer
from test_bench_http import api, bench

CHAT = "/v1/chat/completions"


def asked(server: ScriptedServer, count: int = 4) -> tuple[str, ...]:
    return ("Hi", "--url", api(server), "--model", "alpha", "-n", str(count))


def test_only_all_of_them_are_100_per_cent(tmp_path: Path) -> None:
    limited = json_answer({"error": {"message": "too many"}}, 429)
    with ScriptedServer() as server:
        server.on("POST", CHAT, hello(), limited, hello())
        page = tmp_path / "b.html"
        shown = bench(*asked(server, 220), "--concurrency", "4", "-o", str(page), data=tmp_path, code=1).stdout
    text = " ".join(shown.split())
    assert "219 of 220 requests worked (99.5 %, 95 % interval 97 % to 99.9 %)" in text
    assert "1 (0.5 %)" in page.read_text()
