"""The hooks on the real engine inside one process: functions restored, preemption, and the cost of being there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokentrace.agent.batching_hooks import EngineGroup
from tokentrace.agent.batching_steps import steps
from tokentrace.agent.core import Recorder
from tokentrace.agent.local_hooks import HttpGroup, TokenizerGroup
from tokentrace.agent.model_hooks import ModelGroup
from tokentrace.agent.module_hooks import ModulesGroup

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A two-layer random Llama whose cache holds little more than one full request."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    from tokentrace.engines.local.engine import Engine, Options
    from tokentrace.engines.local.folder import inspect

    folder: Path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=63, bos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(models.BPE({chr(32 + n): n for n in range(64)}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    made = Engine(inspect(folder), Options(max_model_len=128))
    made.start()
    yield made
    made.stop()


async def generate(engine: Any, rid: str, ids: list[int], count: int) -> list[int]:
    from tokentrace.engines.local.sampling import Sampling

    out: list[int] = []
    async for new in engine.submit(rid, ids, Sampling(max_tokens=count, ignore_eos=True)).tokens():
        out += new
    # The last token is out before its step has ended.
    while steps.under_way():
        await asyncio.sleep(0.001)
    return out


def functions() -> dict[tuple[str, str], Any]:
    """Every function that the local engine's hook points name, as its owner holds it."""
    from importlib import import_module

    from tokentrace.engines.local.hookpoints import HOOKPOINTS

    found = {}
    for point in HOOKPOINTS:
        owner = getattr(import_module(point.module), point.owner)
        found[point.owner, point.function] = vars(owner).get(point.function, "inherited")
    return found


def groups() -> list[Any]:
    return [HttpGroup(), TokenizerGroup(), EngineGroup(), ModelGroup(), ModulesGroup()]


def rows(recorder: Recorder) -> list[tuple[str, int, int, dict[str, Any]]]:
    return [(name, start, end, data) for _, name, start, end, _, data in zip(*recorder.take(100_000), strict=True)]


def test_all_functions_are_identical_again_after_each_of_many_rounds(engine: Any) -> None:
    before = functions()
    own = [set(vars(module)) for module in engine.model.modules()]
    for round in range(20):
        recorder, on = Recorder(), groups()
        for group in on:
            group.enable(recorder.emitter("g"), {"text": True})
            assert group.facts().get("missing", []) == []
        assert functions() != before
        asyncio.run(generate(engine, f"round{round}", [1, 2, 3], 3))
        for group in on if round % 2 else reversed(on):
            group.disable()
        after = functions()
        assert all(after[key] is before[key] for key in before)
        assert [set(vars(module)) for module in engine.model.modules()] == own
        assert len([row for row in rows(recorder) if row[0] == "step"]) == 3
    assert steps._users == 0


def test_the_tokens_are_the_same_with_and_without_hooks(engine: Any) -> None:
    expected = asyncio.run(generate(engine, "plain", [5, 6, 7], 40))
    recorder, on = Recorder(), groups()
    for group in on:
        group.enable(recorder.emitter("g"))
    watched = asyncio.run(generate(engine, "watched", [5, 6, 7], 40))
    for group in on:
        group.disable()
    assert watched == expected
    ids = [data["ids"]["watched"] for name, _, _, data in rows(recorder) if name == "step"]
    assert ids == expected


def test_preempted_requests_are_named_and_not_called_finished(engine: Any) -> None:
    recorder, group = Recorder(), EngineGroup()
    group.enable(recorder.emitter("engine"))
    prompts = {f"p{n}": [n + 1, n + 2, n + 3, n + 4] for n in range(4)}

    async def run() -> None:
        await asyncio.gather(*(generate(engine, rid, ids, 110) for rid, ids in prompts.items()))

    asyncio.run(run())
    group.disable()
    seen = rows(recorder)
    preempted = {rid for name, _, _, data in seen if name == "step" for rid in data["preempted"]}
    assert preempted, "the cache was never full: this test shows nothing"
    ends = [data for name, _, _, data in seen if name == "finish"]
    assert sorted((end["rid"], end["reason"], end["tokens"]) for end in ends) == [
        (rid, "length", 110) for rid in prompts
    ]
    waits = [data["rid"] for name, _, _, data in seen if name == "wait"]
    assert sorted(waits) == sorted(prompts), "each request waited once, before its first step"
    assert all(0 < data["kv_used"] <= data["kv_total"] for name, _, _, data in seen if name == "step")
    assert group._seen == set() and group._handover == {}


def test_switching_off_in_the_middle_leaves_no_step_object_behind(engine: Any) -> None:
    async def run() -> None:
        task = asyncio.create_task(generate(engine, "middle", [1, 2], 60))
        for _ in range(15):
            recorder, on = Recorder(), [EngineGroup(), ModelGroup(), ModulesGroup()]
            for group in on:
                group.enable(recorder.emitter("g"))
            await asyncio.sleep(0.003)
            for group in on:
                group.disable()
            for name, start, end, data in rows(recorder):
                assert start <= end and (name != "step" or "phase" in data)
        assert len(await task) == 60

    asyncio.run(run())
    asyncio.run(generate(engine, "after", [1], 2))
    assert steps.on_done == () and steps.on_prepared == () and steps.under_way() == []
