"""A real vLLM server on the CPU, in a virtual environment of its own.

Its interpreter is named by TOKENTRACE_VLLM_PYTHON, else .venv-vllm in the project's folder is taken; without either
these tests are skipped. tokentrace has to be installed there too (`pip install -e .` with that interpreter).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm_server
from vllm_server import VllmServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def vllm_python() -> str:
    named = os.environ.get("TOKENTRACE_VLLM_PYTHON", "")
    if named:
        assert Path(named).exists(), f"TOKENTRACE_VLLM_PYTHON is {named}, which is not there"
        return named
    here = ROOT / ".venv-vllm" / "bin" / "python"
    if not here.exists():
        pytest.skip("no vLLM: set TOKENTRACE_VLLM_PYTHON to the interpreter of its environment")
    return str(here)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    from tokentrace.engines.local.model import ensure_model
    from tokentrace.errors import EngineError

    try:
        found: Any = ensure_model()
    except EngineError as error:
        if "could not fetch" in str(error):
            pytest.skip(f"no network: {error}")
        raise
    return Path(found.path)


@pytest.fixture(scope="module")
def start_vllm(vllm_python: str, model_folder: Path, tmp_path_factory: Any) -> Iterator[Callable[..., VllmServer]]:
    """start_vllm(*arguments, plugin=True, **environment) -> VllmServer; ends what it started."""
    started: list[VllmServer] = []

    def start(*arguments: str, plugin: bool = True, **environment: str) -> VllmServer:
        if not plugin:
            environment["TOKENTRACE_DISABLE"] = "1"
        folder = tmp_path_factory.mktemp("vllm")
        started.append(vllm_server.start(vllm_python, model_folder, folder, arguments, environment))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def server(start_vllm: Callable[..., VllmServer]) -> VllmServer:
    """One server for all tests of a module, with the plugin waiting in it."""
    return start_vllm()
