"""`--cold-caches`: what is compiled goes into new folders, so the first request misses and the next start hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokentrace import workflow
from tokentrace.client.settings import Endpoint
from tokentrace.engines.local.cold import fresh_caches
from tokentrace.engines.local.compiled import cxx_compiler
from tokentrace.errors import UsageError
from tokentrace.session import Ask


def test_a_new_and_an_empty_folder_are_taken_a_used_one_is_not(tmp_path: Path) -> None:
    found = fresh_caches(tmp_path / "new" / "caches")
    assert {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} <= set(found)
    assert all(Path(path).is_dir() and not any(Path(path).iterdir()) for path in found.values())
    (tmp_path / "empty").mkdir()
    fresh_caches(tmp_path / "empty")
    with pytest.raises(UsageError, match="not empty"):
        fresh_caches(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be put into"):
        fresh_caches(tmp_path / "file")


def test_a_server_that_runs_keeps_its_caches(tmp_path: Path) -> None:
    settings = workflow.Settings(Endpoint("http://127.0.0.1:1/v1", model="m"), cold_caches=tmp_path / "c", save=False)
    with pytest.raises(UsageError, match="local engine"):
        workflow.run(Ask("Hi"), settings, workflow.Quiet())
    assert not (tmp_path / "c").exists()


def lookups(done: workflow.Run, outcome: str) -> list[str]:
    return [span.name for span in done.trace.spans if span.layer == 2 and span.name.endswith(outcome)]


@pytest.mark.model
@pytest.mark.skipif(cxx_compiler() is None, reason="no C++ compiler")
def test_cold_misses_and_the_same_caches_then_hit(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**more: Any) -> workflow.Run:
        settings = workflow.Settings(model=str(tiny_folder), compile=True, once=True, save=False, **more)
        return workflow.run(Ask("Hi", max_tokens=4), settings, workflow.Quiet())

    cold = run(cold_caches=tmp_path / "caches")
    assert cold.error is None and lookups(cold, " miss") and not lookups(cold, " hit")
    assert list((tmp_path / "caches" / "inductor").rglob("*.cpp"))
    for variable, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        monkeypatch.setenv(variable, str(tmp_path / "caches" / folder))
    warm = run()
    assert warm.error is None and lookups(warm, " hit") and not lookups(warm, " miss")
