"""The process of the local engine: loads the model, serves it, and ends quickly and cleanly when told to.

`serve` runs it in the foreground. `main` is the child that `LocalEngine` (process.py) starts: it reports its phases
as JSON lines through a pipe, and ends by itself when its parent has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokentrace.engines.local.compiled import before_torch
from tokentrace.engines.local.engine import Engine, Options
from tokentrace.engines.local.folder import ModelFolder
from tokentrace.errors import EngineError, first_line

logger = logging.getLogger("tokentrace.engine")

#: Given the phase (importing torch, importing transformers, loading weights, starting, ready, error) and its facts.
Report = Callable[[str, "dict[str, Any]"], None]

AGENT_SOCKET = "TOKENTRACE_AGENT_SOCKET"
SHUTDOWN_S = 0.8


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 lets the kernel choose. Raises EngineError when the port cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:  # the latter: no name of a host can look like this
        raise EngineError(f"{host} is no address of this machine: {error}", fix="use --host 127.0.0.1") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free, a used one not
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EngineError(
            f"port {port} on {host} cannot be used: {error.strerror}",
            fix="choose another port with --port, or let the system choose with --port 0",
        ) from error
    return listener


def base_url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def run(folder: ModelFolder, listener: socket.socket, options: Options, report: Report) -> None:
    """Load and serve until SIGINT or SIGTERM. Raises EngineError when the engine cannot start or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: os._exit(128 + received))  # while loading: nothing to tidy up
    # The folder is local; nothing below has a reason to ask the network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    unwatched = _start_agent(path) if (path := os.environ.get(AGENT_SOCKET)) else ""
    if options.compile:
        before_torch()
    beside = _Beside(folder)
    report("importing torch", {"agent_problem": unwatched})
    import torch

    assert torch is not None
    report("importing transformers", {})
    import transformers.models.auto.modeling_auto

    assert transformers is not None
    report("loading weights", {"model": folder.name})
    engine = Engine(folder, options)
    report("starting", {})
    tokenizer = beside.tokenizer()
    gc.collect()
    gc.freeze()  # the model's objects live as long as the process: later collections need not look at them
    engine.start()
    from tokentrace.engines.local.api import Api
    from tokentrace.version import __version__

    asyncio.run(_serve(Api(engine, tokenizer, __version__), listener, report))
    stopped = engine.stop(timeout_s=SHUTDOWN_S)
    if death := engine.death():
        raise EngineError(death, fix="look at the engine's log; a shorter context or another model may help")
    if not stopped:  # in the middle of a long step; nobody waits for its result
        logging.shutdown()
        os._exit(0)


def _start_agent(path: str) -> str:
    """Why it did not start, "" when it did. An engine that cannot be watched still answers; its log says more."""
    try:
        from tokentrace import agent

        agent.start(path)
    except Exception as error:
        logger.exception("the agent did not start; the inner layers will not be seen")
        return first_line(error)
    return ""


class _Beside:
    """Loads the tokenizer and the web server's packages on a second thread while the first imports torch."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self._error: EngineError | None = None
        self._tokenizer: Any = None
        self._thread = threading.Thread(target=self._load, name="tokenizer-loader", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        import jinja2
        import orjson
        import starlette.applications
        import starlette.routing
        import uvicorn

        assert all((jinja2, orjson, starlette, uvicorn))
        if (self._folder.path / "tokenizer.json").is_file():  # else transformers is needed, and is being imported
            self._make()

    def _make(self) -> None:
        from tokentrace.engines.local.tokenizer import Tokenizer

        try:
            self._tokenizer = Tokenizer(self._folder.path)
        except EngineError as error:
            self._error = error

    def tokenizer(self) -> Any:
        self._thread.join()
        if self._tokenizer is None and self._error is None:
            self._make()
        if self._error is not None:
            raise self._error
        return self._tokenizer


async def _serve(api: Any, listener: socket.socket, report: Report) -> None:
    import uvicorn

    class Server(uvicorn.Server):  # type: ignore[misc]
        """uvicorn without its signal handlers, which would raise the signal again after a clean end."""

        def capture_signals(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    server = Server(
        uvicorn.Config(
            api.routes(),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            timeout_graceful_shutdown=1,
        )
    )

    def stop() -> None:
        server.should_exit = True
        api.engine.end_requests()

    api.on_death = stop
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.001)
    if server.started:
        report("ready", {"facts": api.engine.facts()})
    await task


def serve(
    folder: ModelFolder,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    options: Options,
    ready: Callable[[str], None],
    progress: Callable[[str, float | None], None],
) -> None:
    """Run the engine in this process until Ctrl-C or SIGTERM. `ready` is given the base URL.

    Raises EngineError when the port is taken, or the engine cannot start or dies.
    """
    listener = listen(host, port)
    base_url = base_url_of(listener)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def report(phase: str, facts: dict[str, Any]) -> None:
        if phase == "ready":
            ready(base_url)
        else:
            progress(phase, None)

    run(folder, listener, options, report)


def main(argument: str) -> int:
    """The child's entry: `argument` is the JSON written by `LocalEngine.start`. Gives the exit code."""
    settings = json.loads(argument)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for quiet in ("httpx", "ContinuousBatchingLogger"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    threading.Thread(target=_follow_parent, args=(settings["life_fd"],), name="parent-watch", daemon=True).start()
    status = os.fdopen(settings["status_fd"], "w", encoding="utf-8")
    phases = ["starting Python"]

    def report(phase: str, facts: dict[str, Any]) -> None:
        if phase != "error":
            phases.append(phase)
            logger.info("%s", phase)
        with contextlib.suppress(OSError):  # the parent does not listen any more: it ends us, or has died
            status.write(json.dumps({"phase": phase, **facts}) + "\n")
            status.flush()

    def failed(error: EngineError) -> None:
        report("error", {"message": str(error), "fix": error.fix, "layer": error.layer})

    try:
        folder = ModelFolder(Path(settings["folder"]), settings["name"], settings["origin"])
        listener = socket.socket(fileno=settings["listen_fd"])
        run(folder, listener, Options(**settings["options"]), report)
        return 0
    except EngineError as error:
        logger.error("%s", error)
        failed(error)
        return error.exit_code
    except Exception as error:
        during = phases[-1]
        logger.exception("failed while %s", during)
        failed(
            EngineError(
                f"the local engine failed while {during}: {type(error).__name__}: {first_line(error)}",
                fix="look at the log lines below; another model can be tried with --model PATH",
            )
        )
        return 1


def settings_for(folder: ModelFolder, options: Options, **descriptors: int) -> str:
    """The argument for `main`."""
    described = {"folder": str(folder.path), "name": folder.name, "origin": folder.origin}
    return json.dumps({**described, "options": asdict(options), **descriptors})


def _follow_parent(descriptor: int) -> None:
    """The parent holds the other end of this pipe; when it closes, the parent has died, however that happened."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 64):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)
