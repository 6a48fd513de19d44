"""A server that answers a chat, for the client's tests."""

from __future__ import annotations

import pytest
from client_support import CHAT
from support.http_servers import ScriptedServer, hello


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer().on("POST", CHAT, hello())
