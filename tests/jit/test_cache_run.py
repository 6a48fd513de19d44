"""A whole run whose model builds and loads a module as FlashInfer does: the cold pass pays, the next start hits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ninja_modules import needs_ninja, write_module
from support.model_folders import write_tiny_model
from support.slow_engine import _FRAME

from tokentrace import workflow
from tokentrace.session import Ask

pytestmark = [pytest.mark.model, needs_ninja]
pytest.importorskip("torch")

#: At the first step, not when the model is loaded: as kernels are built when a shape is first seen.
_BUILDS = """
MODULE = "transformers.models.llama.modeling_llama"
def change(module):
    import ctypes, subprocess
    plain, built = module.LlamaMLP.forward, []
    def forward(self, x):
        if not built:
            built.append(1)
            subprocess.run(["ninja", "-C", FOLDER, "-f", FOLDER + "/build.ninja"], check=True, capture_output=True)
            ctypes.CDLL(LIBRARY)
        return plain(self, x)
    module.LlamaMLP.forward = forward
"""


def test_the_cold_pass_pays_for_a_module_and_the_next_start_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    model = write_tiny_model(tmp_path / "tiny")
    folder = write_module(tmp_path / "home", "batch_decode")
    changed = tmp_path / "site"
    changed.mkdir()
    names = f"FOLDER = {str(folder)!r}\nLIBRARY = {f'{folder}/batch_decode.so'!r}\n"
    (changed / "sitecustomize.py").write_text(f"{names}{_BUILDS}{_FRAME}")
    path = os.pathsep.join([str(changed), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "home"))

    def run() -> workflow.Run:
        done = workflow.run(Ask("Hi", max_tokens=3), workflow.Settings(model=str(model), save=False),
                            workflow.Quiet())  # fmt: skip
        assert done.error is None
        return done

    first, second = run(), run()
    (span,) = [span for span in first.trace.spans if span.name == "compile FlashInfer"]
    assert span.layer == 2 and span.attributes["tokentrace.jit.key"] == "batch_decode"
    assert first.report is not None
    told = [finding.sentence for finding in first.report.findings]
    assert any(one.startswith("FlashInfer compiled 1 module in the cold pass that its cache did not") for one in told)
    assert span.attributes["tokentrace.jit.compile_ms"] > 0
    assert not any("warm pass" in one and "FlashInfer" in one for one in told)

    assert second.report is not None
    assert not [span for span in second.trace.spans if span.name == "compile FlashInfer"]
    told = [finding.sentence for finding in second.report.findings]
    assert any("1 module of FlashInfer came from the cache in the cold pass, which saved" in one for one in told)
    assert not any("server started" in one for one in told), "it was loaded in the cold pass, not before"
