"""The engine inside one process: sampling, preemption, and the death of its generation loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.model_folders import all_tokens, small_engine

from tokentrace.engines.local.hookpoints import HOOKPOINTS
from tokentrace.engines.local.sampling import Sampling, make_processor

pytestmark = pytest.mark.model


@pytest.fixture
def made(tiny_folder: Path) -> Iterator[Any]:
    with small_engine(tiny_folder) as engine:
        yield engine


def missing_hookpoints() -> list[str]:
    """The functions of hookpoints.py that the installed transformers lacks."""
    missing = []
    for point in HOOKPOINTS:
        module = import_module(point.module)
        owner = getattr(module, point.owner, None) if point.owner else module
        if not callable(getattr(owner, point.function, None)):
            missing.append(f"{point.module}.{point.owner}.{point.function}")
    return missing


def test_the_hookpoints_exist() -> None:
    assert missing_hookpoints() == []


def test_more_requests_than_the_cache_holds_are_all_served_right(made: Any) -> None:
    """The cache holds little more than one full request; the scheduler must put others back and resume them."""
    from transformers.generation.continuous_batching.offloading_manager import OffloadingManager

    preempted: list[bool] = []
    original = OffloadingManager.offload_requests

    def watched(self: Any) -> Any:
        preempted.append(True)
        return original(self)

    OffloadingManager.offload_requests = watched
    try:
        prompts = {f"r{n}": [n + 1, n + 2, n + 3, n + 4] for n in range(4)}
        greedy = Sampling(max_tokens=110, ignore_eos=True)
        chance = Sampling(max_tokens=110, ignore_eos=True, temperature=1.0, seed=5)

        async def run(sampling: Sampling) -> None:
            alone = {rid: await all_tokens(made, "a" + rid, ids, sampling) for rid, ids in prompts.items()}
            together = await asyncio.gather(*(all_tokens(made, rid, ids, sampling) for rid, ids in prompts.items()))
            assert dict(zip(prompts, together, strict=True)) == alone

        asyncio.run(run(greedy))
        assert preempted, "the cache was never full: this test shows nothing"
        asyncio.run(run(chance))
    finally:
        OffloadingManager.offload_requests = original


def test_a_request_may_fill_the_whole_context(made: Any) -> None:
    async def run() -> int:
        return len(await all_tokens(made, "full", [1, 2, 3], Sampling(max_tokens=125, ignore_eos=True)))

    assert asyncio.run(run()) == 125


def test_the_death_of_the_loop_reaches_every_request_and_ends_the_server(made: Any, monkeypatch: Any) -> None:
    from tokentrace.engines.local.api import Api
    from tokentrace.engines.local.tokenizer import Tokenizer

    ended: list[bool] = []
    api = Api(made, Tokenizer(made.folder.path), "0")
    api.on_death = lambda: ended.append(True)

    calls = 0
    forward = made.model.forward

    def breaks(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise MemoryError("no room")
        return forward(*args, **kwargs)

    monkeypatch.setattr(made.model, "forward", breaks)

    async def run() -> None:
        transport = httpx.ASGITransport(app=api.routes())
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            body = {"prompt": [1, 2, 3], "max_tokens": 50, "ignore_eos": True}
            answer = await client.post("/v1/completions", json={**body, "stream": True})
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            assert answer.status_code == 200 and "no room" in events[-1]["error"]["message"]
            assert any(event.get("choices") for event in events), "what came before is not lost"
            later = await client.post("/v1/completions", json=body)
            assert later.status_code == 503 and "MemoryError" in later.json()["error"]["message"]
            assert (await client.get("/health")).status_code == 503

    asyncio.run(run())
    assert ended


def future(**fields: Any) -> Any:
    state = SimpleNamespace(
        logit_processor_kwargs={"sampling": Sampling(max_tokens=1, **fields)}, initial_tokens=[1], generated_tokens=[]
    )
    return SimpleNamespace(state=state)


def test_draws_follow_the_distribution() -> None:
    import torch

    torch.manual_seed(3)
    processor, rows = make_processor(), 4000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])

    def frequencies(**fields: Any) -> Any:
        processor.prepare_tensor_args([future(**fields)] * rows)
        drawn = processor(logits.repeat(rows, 1), None).argmax(-1)
        return torch.bincount(drawn, minlength=5) / rows

    for temperature in (0.5, 1.0, 2.0):
        expected = (logits / temperature).softmax(-1)
        bound = 5 * (expected * (1 - expected) / rows).sqrt() + 1e-3  # five standard errors
        assert ((frequencies(temperature=temperature) - expected).abs() < bound).all()
    assert (frequencies(temperature=1.0, top_k=2)[2:] == 0).all()
    nucleus = frequencies(temperature=1.0, top_p=0.8)  # 0.64 + 0.24 reach 0.8: two tokens
    assert (nucleus[2:] == 0).all() and (nucleus[:2] > 0).all()


def test_greedy_rows_pass_untouched_beside_others() -> None:
    import torch

    processor = make_processor()
    processor.prepare_tensor_args([future(temperature=0.0), future(temperature=1.0), future(temperature=0.0)])
    logits = torch.randn(3, 11)
    out = processor(logits, None)
    assert (out[[0, 2]] == logits[[0, 2]]).all() and not (out[1] == logits[1]).all()
    processor.prepare_tensor_args([future(temperature=0.0)])
    assert processor(logits[:1], None).data_ptr() == logits.data_ptr()
