"""What a process of vLLM says of itself: whether it compiles the model, and its place among several."""

from __future__ import annotations

import multiprocessing
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from tokentrace.agent.vllm_facts import _configured


class Mode(IntEnum):
    """As vLLM's CompilationMode: `-O0` is NONE, and does not make the model eager by name."""

    NONE = 0
    VLLM_COMPILE = 3


@pytest.mark.parametrize(
    ("eager", "mode", "compiles"),
    [(True, Mode.NONE, False), (False, Mode.VLLM_COMPILE, True), (False, Mode.NONE, False), (False, None, True)],
)
def test_a_model_is_compiled_unless_the_mode_is_none(eager: bool, mode: Any, compiles: bool) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=eager), compilation_config=SimpleNamespace(mode=mode)
    )
    assert _configured(config)["compile"] is compiles


def _worker_of_an_engine(told: Any) -> None:
    from tokentrace.agent.vllm_worker import rank

    told.put(rank())


def _engine(told: Any) -> None:
    worker = multiprocessing.get_context("spawn").Process(
        target=_worker_of_an_engine, args=(told,), name="VllmWorker-0"
    )
    worker.start()
    worker.join()
    _worker_of_an_engine(told)


@pytest.mark.parametrize(("name", "rank"), [("EngineCore_DP1", "dp1"), ("EngineCore", "")])
def test_engines_without_a_group_are_told_apart_by_their_process(name: str, rank: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    engine = spawn.Process(target=_engine, args=(told,), name=name)
    engine.start()
    assert [told.get(timeout=120), told.get(timeout=120)] == [rank, rank]
    engine.join()
