"""The time of a token in a bench, where it cannot be told, and the server's own beside it; over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.http_servers import (
    DONE,
    Answer,
    ScriptedServer,
    chunk,
    sse,
    usage_chunk,
)
from test_bench_http import api, bench, result

CHAT = "/v1/chat/completions"


def stream(*steps: Any, tokens: int) -> Answer:
    return sse(*steps, chunk(finish="length"), usage_chunk(9, tokens), DONE)


def asked(server: ScriptedServer, count: int = 4) -> tuple[str, ...]:
    return ("Hi", "--url", api(server), "--model", "alpha", "-n", str(count))


def told(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests whose chunks did not come in one read, as those of a reader that was held up for long do."""
    rows = [row for row in found["requests"] if "in one read" not in row["pace_why"]]
    assert rows
    return rows


def test_silence_before_the_end_is_no_tokens_time(tmp_path: Path) -> None:
    steps = [step for _ in range(4) for step in (0.1, chunk("a"))]
    with ScriptedServer() as server:
        server.on("POST", CHAT, stream(*steps, 0.8, tokens=4))
        found = result(*asked(server), data=tmp_path)
    rows = told(found)
    assert all(row["exact"] for row in rows)
    for row in rows:
        # Of three tokens, or fewer where a slow reader found several in its first read.
        assert row["mean_between_ns"] <= row["total_ns"] - row["ttft_ns"] - 0.75e9
        assert row["tokens_per_s"] == pytest.approx(1e9 / row["mean_between_ns"])
    figures = found["targets"][0]["figures"]
    assert figures["mean_inter_token"]["bound"] == figures["tokens_per_s"]["bound"] == ""


def test_of_chunks_with_several_tokens_there_are_bounds_and_a_note(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", CHAT, stream(0.05, chunk("a b c"), 0.4, chunk(" d e f"), tokens=100))
        found = result(*asked(server), data=tmp_path)
        shown = " ".join(bench(*asked(server), data=tmp_path).stdout.split())
        both = result(*asked(server, 6), "--url", api(server), data=tmp_path)
    one = found["targets"][0]
    assert one["figures"]["mean_inter_token"]["bound"] == "at least"
    assert one["figures"]["tokens_per_s"]["bound"] == "at most"
    assert one["figures"]["inter_token"]["bound"] == one["figures"]["ttft"]["bound"] == ""
    assert all(row["exact"] is False and row["tokens_per_s"] > 0 for row in told(found))
    (note,) = (note for note in one["notes"] if "at least" in note)
    assert note.startswith("the time a token") and "the tokens a second at most, what is shown: chunks hold" in note
    assert any(sign in shown for sign in ("time a token ≥", "time a token >="))
    # Two bounds are not compared.
    rows = {row["metric"]: row for row in both["comparison"]}
    assert rows["mean_inter_token"]["beyond_noise"] is None and rows["mean_inter_token"]["difference"] is None
    assert rows["total"]["difference"] is not None


def test_what_came_in_one_read_has_no_gaps(tmp_path: Path) -> None:
    at_once = b"".join(chunk(text) for text in "abcdefgh")
    with ScriptedServer() as server:
        server.on("POST", CHAT, stream(0.05, at_once, 0.2, tokens=8))
        found = result(*asked(server), data=tmp_path)
        shown = bench(*asked(server), data=tmp_path).stdout
    one = found["targets"][0]
    assert one["figures"]["inter_token"]["count"] == one["figures"]["mean_inter_token"]["count"] == 0
    assert one["figures"]["ttft"]["count"] == 4
    (note,) = (note for note in one["notes"] if "one read" in note)
    assert note.startswith("gaps between tokens and the time a token cannot be told: all of the text came in one read")
    assert " 0 ns" not in shown and "gap between tokens " not in shown


def test_gaps_of_nothing_are_told(tmp_path: Path) -> None:
    pairs = [step for _ in range(4) for step in (0.15, chunk("a") + chunk("b"))]
    with ScriptedServer() as server:
        server.on("POST", CHAT, stream(*pairs, tokens=8))
        found = result(*asked(server), data=tmp_path)
    one = found["targets"][0]
    rows = told(found)
    assert one["figures"]["inter_token"]["count"] == len(rows) * 7
    (note,) = (note for note in one["notes"] if "came in one read with" in note)
    assert int(note.split()[0]) >= len(rows) * 4 and f"of {len(rows) * 7} gaps between tokens are 0" in note
    assert all(row["exact"] for row in rows)  # a chunk is a token all the same
