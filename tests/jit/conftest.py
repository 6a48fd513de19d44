"""What the readers of caches find in these tests does not depend on how fast the machine looks through a folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentrace.probes._cache_entries.MAX_SECONDS", 60.0)
