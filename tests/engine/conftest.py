"""Models for the engine's tests: a tiny random one made here, and the real built-in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.model_folders import write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smol() -> Any:
    """The built-in model's folder; fetched and converted on first use."""
    from tokentrace.engines.local.model import ensure_model
    from tokentrace.errors import EngineError

    try:
        return ensure_model()
    except EngineError as error:
        if "could not fetch" in str(error):
            pytest.skip(f"no network: {error}")
        raise


@pytest.fixture(scope="session")
def engine(smol: Any) -> Iterator[Any]:
    """One running engine for all tests that do not end it."""
    from tokentrace.engines.local.process import LocalEngine

    with LocalEngine.start(smol, agent=False) as running:
        yield running
