import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_trees import machine
from nvml_card import nvml, nvml_library

__all__ = ["machine", "nvml", "nvml_library"]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in a folder does not depend on how fast the machine looks through it."""
    for bound in ("keys._SECONDS", "compiled._SECONDS", "folders._SECONDS_EACH"):
        monkeypatch.setattr(f"tokentrace.doctor.machine.{bound}", 60.0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    places = [place for place in (tempfile.gettempdir(), "/tmp", "/var/tmp") if _open_to_all(Path(place))]
    if not places:
        pytest.skip("no folder for temporary files that every user may enter")
    folder = Path(tempfile.mkdtemp(prefix="tokentrace-test-", dir=places[0]))
    folder.chmod(0o755)
    yield folder
    for inside in [folder, *folder.rglob("*")]:
        if inside.is_dir() and not inside.is_symlink():
            inside.chmod(0o755)  # a test may have taken away the right to remove what is in it
    shutil.rmtree(folder)


def _open_to_all(place: Path) -> bool:
    return place.is_dir() and all(one.stat().st_mode & 0o001 for one in (place, *place.parents))


@pytest.fixture
def recordings() -> Path:
    folder = os.environ.get("TOKENTRACE_RECORDINGS", "")
    if not folder:
        pytest.skip("TOKENTRACE_RECORDINGS is not set")
    return Path(folder)
