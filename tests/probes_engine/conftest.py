"""The real local engine with its agent, and small servers that answer on /metrics and /tokenize."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from probe_requests import UrlServer

Route = Callable[[Any], "tuple[int, str]"]


@pytest.fixture
def web() -> Iterator[Callable[[dict[str, Route]], UrlServer]]:
    """Serves {path: function of the parsed body -> (status, text)}; every other path is 404."""
    made: list[ThreadingHTTPServer] = []

    def serve(routes: dict[str, Route]) -> UrlServer:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                route = routes.get(self.path)
                status, text = route(json.loads(body) if body else None) if route else (404, "not found")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        made.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return UrlServer(f"http://127.0.0.1:{server.server_address[1]}")

    yield serve
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def running() -> Iterator[Any]:
    """The built-in model in a real engine process with the agent in it."""
    from tokentrace.engines.local.engine import Options
    from tokentrace.engines.local.process import LocalEngine

    pytest.importorskip("torch")
    try:
        engine = LocalEngine.start(options=Options(max_model_len=512))
    except Exception as error:
        if "could not fetch" in str(error):
            pytest.skip(str(error))
        raise
    with engine:
        yield engine
