"""Starts vLLM's OpenAI server and talks to it like any client would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = "smollm2"
READY_S = 600.0


@dataclass
class VllmServer:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    url: str = ""
    #: pids of the server's processes: API server, engine, worker
    pids: list[int] = field(default_factory=list)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def answers(self) -> bool:
        try:
            return complete(self.url, "Hi", 3)["choices"][0]["message"]["content"] != ""
        except OSError:
            return False

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def start(python: str, model: Path, folder: Path, arguments: Sequence[str], environment: dict[str, str]) -> VllmServer:
    for _ in range(3):  # somebody else may take the port meanwhile: vLLM cannot choose a free one itself
        server = _started(python, model, folder, arguments, environment)
        if server is not None:
            return server
    raise AssertionError("every port was taken")


def _started(
    python: str, model: Path, folder: Path, arguments: Sequence[str], environment: dict[str, str]
) -> VllmServer | None:
    """None when its port was taken."""
    port = _free_port()
    log = folder / "server.log"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", MODEL,
               # In bfloat16 the same greedy request gives other words when it shares its steps with others.
               "--dtype", "float32", "--max-model-len", "1024", "--host", "127.0.0.1", "--port", str(port),
               "--enforce-eager", *arguments]  # fmt: skip
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENTRACE_", "OTEL_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**plain, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **environment},
        )  # fmt: skip
    server = VllmServer(process, port, log, f"http://127.0.0.1:{port}/v1")
    deadline = time.monotonic() + READY_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            server.stop()
            if "address already in use" in server.last_lines().lower():
                return None
            raise AssertionError(f"the server did not start:\n{server.last_lines()}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
            break
        except OSError:
            time.sleep(0.25)
    server.pids = _tree(process.pid)
    return server


def complete(url: str, prompt: str, tokens: int, headers: dict[str, str] | None = None) -> Any:
    """One reply in one piece."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
    with _post(url, body, headers or {}) as reply:
        return json.load(reply)


#: Of a stream that is to run for as long as a test needs it: it is asked for again whenever it ends, however fast the
#: machine is. The test ends it with `leave`.
UNTIL_LEFT = 900


class Stream:
    """Another client's streaming request, read on a thread of its own."""

    def __init__(self, url: str, prompt: str, tokens: int) -> None:
        self.text, self.pieces, self.error = "", 0, ""
        self._left, self._again = False, tokens == UNTIL_LEFT
        self._body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
                      "temperature": 0, "stream": True, "ignore_eos": True}  # fmt: skip
        self._url = url
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._read_once()
            while self._again and not self._left:
                self._read_once()
        except OSError as error:
            self.error = str(error)
        self.started.set()

    def _read_once(self) -> None:
        with _post(self._url, self._body, {}) as reply:
            for line in reply:
                if self._left:
                    return
                if line.startswith(b"data: {"):
                    delta = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                    self.text += delta
                    self.pieces += bool(delta)
                    if self.pieces:
                        self.started.set()

    def came(self, pieces: int, within_s: float = 120.0) -> bool:
        """Wait until so many pieces are there."""
        deadline = time.monotonic() + within_s
        while self.pieces < pieces and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.pieces >= pieces

    def end(self, timeout: float = 240.0) -> str:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the stream did not end"
        return self.text

    def leave(self) -> str:
        """Hang up before the reply is whole."""
        assert self._thread.is_alive(), f"the stream ended before the test did: {self.error}"
        self._left = True
        return self.end()


def _post(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    return urllib.request.urlopen(request, timeout=240)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_pair() -> int:
    """A port that is free now, and the next one too."""
    while True:
        port = _free_port()
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", port + 1))
            return port


def _tree(pid: int) -> list[int]:
    import psutil

    return [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
