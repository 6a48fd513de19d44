"""--compile: the MLPs come from inductor, the tokens stay the same, and the second process finds the code cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tokentrace.engines.local.compiled import cache_folders, cxx_compiler
from tokentrace.engines.local.process import LocalEngine

pytestmark = pytest.mark.model


def hi(engine: LocalEngine) -> str:
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    answer = httpx.post(engine.base_url + "/chat/completions", json=body, timeout=240)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.skipif(cxx_compiler() is None, reason="no C++ compiler")
def test_compiled_tokens_equal_eager_ones_and_code_is_cached(engine: Any, smol: Any, tmp_path: Path) -> None:
    eager = hi(engine)
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    with LocalEngine.start(smol, compile=True, agent=False, env=env) as compiled:
        assert compiled.facts["compile"] is True
        assert compiled.facts["cache_folders"] == {
            "inductor": env["TORCHINDUCTOR_CACHE_DIR"],
            "triton": env["TRITON_CACHE_DIR"],
        }
        cold, warm = hi(compiled), hi(compiled)
    assert (cold, warm) == (eager, eager)
    kernels = list((tmp_path / "inductor").rglob("*.cpp"))
    assert kernels, "inductor wrote C++"
    assert any("RecordFunction" in file.read_text() for file in kernels), "its kernels can be seen by the profiler"
    before = set(kernels)
    with LocalEngine.start(smol, compile=True, agent=False, env=env) as again:
        cached = hi(again)
    assert cached == eager
    assert set((tmp_path / "inductor").rglob("*.cpp")) == before, "nothing was compiled anew"


def test_cache_folders_follow_torchs_own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert cache_folders()["inductor"] == default_cache_dir()
