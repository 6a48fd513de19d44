"""Whether vLLM compiles the model, by its configuration."""

from __future__ import annotations

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
