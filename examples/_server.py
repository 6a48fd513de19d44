"""The server that an example talks to: the one in OPENAI_BASE_URL, else the local engine, started for the while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def server() -> Iterator[tuple[str, str, str]]:
    """(base URL, key, model)."""
    url = os.environ.get("OPENAI_BASE_URL")
    if url:
        yield url, os.environ.get("OPENAI_API_KEY", ""), os.environ.get("OPENAI_MODEL", "")
        return
    from tokentrace.engines.local.process import LocalEngine

    with LocalEngine.start(agent=False) as engine:
        yield engine.base_url, "no key is needed", engine.model_name
