"""Whose figures those of /metrics are, and what a reply of one token does to them."""

from __future__ import annotations

from typing import Any

import pytest

from tokentrace.exchange import Chunk, Exchange
from tokentrace.probe import ProbeContext
from tokentrace.probes import _metrics
from tokentrace.probes.queue import QueueProbe

V = '{model_name="m",engine="0"}'
OF = "tokentrace.metrics."


class Server:
    """What a vLLM counts of the requests it has ended, as text."""

    def __init__(self, *, sizes: bool = True) -> None:
        self.ended: list[tuple[int, int, float]] = []
        self.between: list[float] = []
        self.sizes = sizes

    def end(self, prompt: int, reply: int, decode_s: float) -> Server:
        self.ended.append((prompt, reply, decode_s))
        self.between += [decode_s / (reply - 1)] * (reply - 1) if reply > 1 else []
        return self

    def text(self) -> str:
        def histogram(name: str, values: list[float]) -> list[str]:
            return [f"vllm:{name}_sum{V} {sum(values)}", f"vllm:{name}_count{V} {len(values)}"]

        replies = [float(reply) for _, reply, _ in self.ended]
        lines = [f"vllm:prompt_tokens_total{V} {sum(prompt for prompt, _, _ in self.ended)}",
                 f"vllm:generation_tokens_total{V} {sum(replies)}"]  # fmt: skip
        lines += histogram("e2e_request_latency_seconds", [decode + 0.04 for _, _, decode in self.ended])
        lines += histogram("request_decode_time_seconds", [decode for _, _, decode in self.ended])
        lines += histogram("inter_token_latency_seconds", self.between)
        lines += histogram("request_time_per_output_token_seconds",
                           [decode / (reply - 1) if reply > 1 else 0 for _, reply, decode in self.ended])  # fmt: skip
        if self.sizes:
            lines += histogram("request_prompt_tokens", [float(prompt) for prompt, _, _ in self.ended])
            lines += histogram("request_generation_tokens", replies)
            for bound in ("1.0", "2.0", "5.0", "+Inf"):
                count = sum(reply <= float(bound) for reply in replies)
                lines.append(f'vllm:request_generation_tokens_bucket{{model_name="m",engine="0",le="{bound}"}} {count}')
        return "\n".join(lines) + "\n"


def told(web: Any, server: Server, meanwhile: list[tuple[int, int, float]], exchange: Exchange) -> dict[str, Any]:
    server.end(5, 1, 0).end(9, 20, 1.0)  # of before
    readings = iter([server.text()])
    for one in meanwhile:
        server.end(*one)
    after = server.text()
    context = ProbeContext("url", "once", False, server=web({"/metrics": lambda body: (200, next(readings, after))}))
    probe = QueueProbe()
    probe.arm(context)
    context.exchange = exchange
    (record,) = probe.collect(context)
    return {name.removeprefix(OF): value for name, value in record.attributes.items()}


def reply(prompt: int, tokens: int) -> Exchange:
    found = Exchange("http://x", "m", 1, "", {}, start_ns=100, end_ns=200, complete=True, streamed=True,
                     usage={"prompt_tokens": prompt, "completion_tokens": tokens})  # fmt: skip
    found.chunks = [Chunk(150 + n, "content", "x") for n in range(tokens)]
    return found


def failed() -> Exchange:
    return Exchange("http://x", "m", 1, "", {}, start_ns=100, end_ns=200, complete=False)


def test_what_ended_while_ours_failed_is_not_called_ours(web: Any) -> None:
    facts = told(web, Server(), [(37, 1, 0.0)], failed())
    assert not facts["alone"] and "1 request ended in between; ours brought no whole reply" in facts["note"]
    several = told(web, Server(), [(37, 1, 0.0)] * 3, failed())
    assert "ours among them" not in several["note"] and "not known" in several["note"]


@pytest.mark.parametrize("sizes", [True, False], ids=["sizes told", "counters only"])
def test_another_request_than_ours_is_known_by_its_size(web: Any, sizes: bool) -> None:
    facts = told(web, Server(sizes=sizes), [(37, 1, 0.0)], reply(31, 17))
    assert (
        not facts["alone"] and "was not ours: " in facts["note"] and facts["note"].count("37" if sizes else "17") == 1
    )
    ours = told(web, Server(sizes=sizes), [(31, 17, 0.8)], reply(31, 17))
    assert ours["alone"] and "the times are its own, and so are the counts" in ours["note"]


def test_one_token_requests_of_others_are_not_in_the_time_per_token(web: Any) -> None:
    facts = told(web, Server(), [*[(8, 1, 0.0)] * 10, (31, 11, 0.384)], reply(31, 11))
    assert facts["time_per_output_token_s"] == pytest.approx(0.0384)
    assert facts["decode_s"] == pytest.approx(0.384)
    assert facts["inter_token_latency_s"] == pytest.approx(0.0384)
    assert "over the 1 of more than one token" in facts["note"]


def test_where_their_number_is_not_told_the_diluted_mean_is_left_out(web: Any) -> None:
    facts = told(web, Server(sizes=False), [*[(8, 1, 0.0)] * 10, (31, 11, 0.384)], reply(31, 11))
    assert "time_per_output_token_s" not in facts and facts["inter_token_latency_s"] == pytest.approx(0.0384)


@pytest.mark.parametrize("sizes", [True, False], ids=["sizes told", "counters only"])
def test_a_reply_of_one_token_has_no_decoding_and_no_time_per_token(web: Any, sizes: bool) -> None:
    facts = told(web, Server(sizes=sizes), [(31, 1, 0.0)], reply(31, 1))
    assert facts["alone"] and facts["e2e_s"] == pytest.approx(0.04)
    assert not {"decode_s", "time_per_output_token_s", "inter_token_latency_s"} & set(facts)


def test_two_times_of_a_token_have_two_names(web: Any) -> None:
    facts = told(web, Server(), [(31, 101, 1.0), (31, 2, 0.1)], reply(31, 101))
    assert facts["inter_token_latency_s"] == pytest.approx(1.1 / 101), "of each token"
    assert facts["time_per_output_token_s"] == pytest.approx((0.01 + 0.1) / 2), "of each request"


def test_names_of_other_versions_and_engines_go_where_they_belong() -> None:
    def named(histogram: str) -> set[str]:
        (engine,) = _metrics.parse(f"{histogram}_sum 2\n{histogram}_count 20\nvllm:num_requests_running 1\n")
        return set(engine.sums)

    assert named("vllm:time_per_output_token_seconds") == {"inter_token_latency"}, "as vLLM renamed it"
    assert named("sglang:inter_token_latency_seconds") == {"inter_token_latency"}
    assert named("vllm:request_time_per_output_token_seconds") == {"time_per_output_token"}
    assert named("tgi_request_mean_time_per_token_duration") == {"inference_per_token"}
    assert named("sglang:time_per_output_token_seconds") == set(), "it had two meanings"
