"""Starting the command line must not pay for torch: only the engine's own process imports it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "vllm", "pynvml", "amdsmi", "tokenizers", "starlette", "uvicorn", "jinja2")


def test_no_module_of_the_engine_imports_anything_heavy() -> None:
    code = f"""
import importlib, pkgutil, sys
import tokentrace.engines.local as package
for found in pkgutil.iter_modules(package.__path__):
    importlib.import_module(package.__name__ + "." + found.name)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
