"""Slows down one layer of the real local engine, from outside: the product has no switch for that.

The engine is a process of its own, so the change travels in its environment: `sitecustomize` from a folder on
PYTHONPATH, which Python imports before anything else, changes one module right after it is loaded.

    with LocalEngine.start(env=slow(folder, "tokenizer")) as engine: ...
"""

from __future__ import annotations

import os
from pathlib import Path

_FRAME = """
import importlib.abc, importlib.machinery, sys, time

class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            change(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, _Finder())
"""

CHANGES = {
    # half a second or, on a busy machine, longer in each call that turns text into ids; how long is written down
    "tokenizer": """
MODULE = "tokentrace.engines.local.tokenizer"
def change(module):
    plain = module.Tokenizer.encode
    def encode(self, *given):
        began = time.perf_counter_ns()
        time.sleep(0.5)
        with open(SLEPT, "a") as file:
            print(time.perf_counter_ns() - began, file=file)
        return plain(self, *given)
    module.Tokenizer.encode = encode
""",
    # 40 ms in the MLP of the eighth layer, each time
    "module": """
MODULE = "transformers.models.llama.modeling_llama"
def change(module):
    begin, plain = module.LlamaDecoderLayer.__init__, module.LlamaMLP.forward
    def init(self, config, layer_idx):
        begin(self, config, layer_idx)
        self.mlp.is_slow = layer_idx == 7
    def forward(self, x):
        if getattr(self, "is_slow", False):
            time.sleep(0.04)
        return plain(self, x)
    module.LlamaDecoderLayer.__init__, module.LlamaMLP.forward = init, forward
""",
    # the scheduler may put 16 tokens into a step instead of 512
    "batch": """
MODULE = "tokentrace.engines.local.engine"
def change(module):
    module._MAX_BATCH_TOKENS["cpu"] = 16
""",
}

SLEPT = "slept_ns"


def slept_ns(folder: Path) -> list[int]:
    """How long each sleep in this engine's tokenizer really was, in order."""
    return [int(line) for line in (folder / SLEPT).read_text().split()]


def slow(folder: Path, what: str) -> dict[str, str]:
    """Environment for an engine that is slow in this one place."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"SLEPT = {str(folder / SLEPT)!r}\n{CHANGES[what]}{_FRAME}")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
