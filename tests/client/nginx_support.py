"""A real nginx before a real server, where nginx is installed; and the bytes that it sent, for where it is not.

python tests/client/nginx_support.py      # with nginx installed: records tests/data/gateways/nginx.json anew
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.http_servers import (
    WAIT,
    Answer,
    Refusing,
    ScriptedServer,
    body_answer,
    html_answer,
    json_answer,
    models,
    read_request,
)
from support.loopback import Loopback

PROGRAM = shutil.which(os.environ.get("NGINX", "nginx")) or shutil.which("/usr/sbin/nginx")
RECORDED = Path(__file__).resolve().parents[1] / "data" / "gateways" / "nginx.json"
BODY = json.dumps({"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}).encode()

_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_buffering off;
  limit_req_zone all zone=all:1m rate=1r/m;
  server {{
    listen 127.0.0.1:{port};
    location /pass/ {{ proxy_pass http://127.0.0.1:{behind}/; }}
    location /dead/ {{ proxy_pass http://127.0.0.1:{dead}/; }}
    location /slow/ {{ proxy_pass http://127.0.0.1:{behind}/slow/; proxy_read_timeout 1s; }}
    location /login/ {{
      auth_basic "models"; auth_basic_user_file {folder}/users;
      proxy_pass http://127.0.0.1:{behind}/;
    }}
    location /key/ {{
      if ($http_authorization != "Bearer k-right-0123456789") {{ return 401; }}
      proxy_pass http://127.0.0.1:{behind}/;
    }}
    location /blocked/ {{ deny all; }}
    location /small/ {{ client_max_body_size 16; proxy_pass http://127.0.0.1:{behind}/; }}
    location /files/ {{ root {folder}; }}
    location /422/ {{ return 422; }}
    location /500/ {{ return 500; }}
    location /503/ {{ limit_req zone=all; proxy_pass http://127.0.0.1:{behind}/; }}
    location /429/ {{ limit_req zone=all; limit_req_status 429; proxy_pass http://127.0.0.1:{behind}/; }}
  }}
}}
"""
#: Where nginx answers itself, by name: location -> status.
OWN = {
    "/nowhere": 404, "/dead": 502, "/slow": 504, "/login": 401, "/key": 401, "/blocked": 403, "/small": 413,
    "/files": 405, "/422": 422, "/500": 500, "/503": 503, "/429": 429,
}  # fmt: skip
#: What servers behind it answer, as vLLM, FastAPI, Starlette and the OpenAI API write it: name -> answer.
PASSED = {
    "401 of vLLM": json_answer({"error": "Unauthorized"}, 401),
    "401 of the OpenAI API": json_answer(
        {"error": {"message": "Incorrect API key provided", "type": "x", "code": "invalid_api_key"}},
        401,
    ),
    "404 of FastAPI": json_answer({"detail": "Not Found"}, 404),
    "404 of vLLM": json_answer(
        {"error": {"message": "The model `beta` does not exist.", "type": "NotFoundError", "code": 404}},
        404,
    ),
    "422 of FastAPI": json_answer({"detail": [{"loc": ["body", "messages"], "msg": "Field required"}]}, 422),
    "500 of vLLM": json_answer(
        {"error": {"message": "list index out of range", "type": "InternalServerError", "code": 500}}, 500
    ),
    "500 of Starlette": body_answer(b"Internal Server Error", "text/plain; charset=utf-8", 500),
    "502 of the OpenAI form": json_answer({"error": {"message": "a worker failed", "code": 502}}, 502),
    "504 of the OpenAI form": json_answer({"error": {"message": "the worker was too slow", "type": "timeout"}}, 504),
}  # fmt: skip


def behind() -> ScriptedServer:
    """The server that nginx stands before. `PASSED` by its number under /N/."""
    server = ScriptedServer()
    server.on("GET", "/v1/models", models("alpha")).on(
        "POST", "/slow/v1/chat/completions", Answer(200, {}, [WAIT], before=30)
    )
    for number, answer in enumerate(PASSED.values()):
        server.on("POST", f"/{number}/v1/chat/completions", answer)
    server.on("GET", "/page/v1/models", html_answer("<!doctype html><h1>Nothing here</h1>", 404))
    return server


@contextlib.contextmanager
def nginx(folder: Path, server: ScriptedServer) -> Iterator[str]:
    """nginx before the server; its address. Raises RuntimeError when it does not start."""
    assert PROGRAM is not None
    (folder / "files" / "v1" / "chat").mkdir(parents=True)
    (folder / "files" / "v1" / "chat" / "completions").write_text("a file")
    (folder / "users").write_text("me:{PLAIN}secret\n")
    with Refusing() as dead:
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            text = _CONFIGURATION.format(folder=folder, port=port, behind=server.port, dead=dead.port)
            (folder / "nginx.conf").write_text(text)
            process = subprocess.Popen(
                [PROGRAM, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                if _listens(port, process):
                    yield f"http://127.0.0.1:{port}"
                    return
            finally:
                process.kill()
                process.wait()
        log = folder / "error.log"
        raise RuntimeError(log.read_text()[-2000:] if log.exists() else "it wrote no log")


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.02)
    return False


class Replay(Loopback):
    """Sends recorded answers, byte for byte: POST to /NAME/v1/chat/completions. Everything else gets a 404 of nginx."""

    def __init__(self, recorded: dict[str, str]) -> None:
        super().__init__()
        self._recorded = {name: text.encode("latin-1") for name, text in recorded.items()}

    def handle(self, connection: socket.socket) -> None:
        request = read_request(connection)
        if request is not None:
            name = request.path.split("/v1/")[0] if request.method == "POST" else ""
            connection.sendall(self._recorded.get(name, self._recorded["/nowhere"]))


def ask_raw(url: str, path: str) -> bytes:
    """The bytes of the answer to a chat request, as they come."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = (
        f"POST {path}/v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + BODY)
        found = b""
        while data := connection.recv(65_536):
            found += data
    return found


def record(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with behind() as server, nginx(folder, server) as url:
        ask_raw(url, "/503"), ask_raw(url, "/429")  # the first uses the limit up
        for path in OWN:
            found[path] = ask_raw(url, path).decode("latin-1")
        for number, name in enumerate(PASSED):
            found[f"/pass/{number}"] = ask_raw(url, f"/pass/{number}").decode("latin-1")
            assert name[:3] in found[f"/pass/{number}"][:20]
    return found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(json.dumps(record(Path(name)), indent=1) + "\n")
