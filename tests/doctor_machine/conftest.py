import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_trees import machine
from nvml_card import nvml, nvml_library

__all__ = ["machine", "nvml", "nvml_library"]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="tokentrace-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def recordings() -> Path:
    folder = os.environ.get("TOKENTRACE_RECORDINGS", "")
    if not folder:
        pytest.skip("TOKENTRACE_RECORDINGS is not set")
    return Path(folder)
