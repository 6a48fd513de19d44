"""Starts the local engine as a process of its own, and knows at every moment whether it lives and why it died."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tokentrace.engines.local import server
from tokentrace.engines.local.compiled import need_compiler
from tokentrace.engines.local.engine import Options
from tokentrace.engines.local.folder import ModelFolder
from tokentrace.engines.local.model import ensure_model
from tokentrace.errors import EngineError

#: The child must import what this process imports, and nothing from the folder the user happens to stand in.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.append(sys.argv[2]); "
    "from tokentrace.engines.local.server import main; sys.exit(main(sys.argv[1]))"
)
_LOG_LINES, _LOG_WIDTH = 15, 300
_SOCKET = "agent.sock"
#: Torch's profiler tells this of every profile that runs on another thread than the one that loaded torch; it means
#: nothing, and whoever looks for why an engine ended must not take it for the reason.
_MEANS_NOTHING = "External init callback must run in same thread as registerClient"
#: sizeof(sockaddr_un.sun_path) where it is smallest (macOS, the BSDs); Linux has 108.
_LONGEST_SOCKET_PATH = 104


@dataclass(slots=True)
class LocalEngine:
    """A running local engine. Made by `LocalEngine.start`; a context manager that stops it."""

    base_url: str
    model_name: str
    agent_socket: Path | None
    log_path: Path
    facts: dict[str, Any]
    agent_problem: str  # why the agent that was asked for is not in it
    _process: subprocess.Popen[bytes]
    _status: int
    _life: int
    _run_folder: Path
    _phase: str = "starting"
    _partial: bytes = b""
    _reported: EngineError | None = None
    _stopped: bool = False

    @classmethod
    def start(
        cls,
        model: ModelFolder | str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        compile: bool = False,
        cuda_graphs: bool = False,
        agent: bool = True,
        options: Options | None = None,
        log_path: Path | None = None,
        progress: Callable[[str, float | None], None] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> LocalEngine:
        """Start the engine and wait until it answers.

        `model` as in `ensure_model`; `port` 0 lets the kernel choose; `agent` starts tokentrace's agent inside, on
        `.agent_socket`; `options` wins over `compile` and `cuda_graphs`; `env` is laid over this process's environment.
        Ctrl-C in the terminal does not reach the child: it runs in a session of its own and ends with `stop` or with
        this process.

        Raises EngineError: model not to be had, port taken, or the child died (its last log lines in `.detail`).
        """
        report = progress or (lambda sentence, fraction: None)
        run_folder: Path | None = None
        listener = server.listen(host, port)
        try:
            folder = model if isinstance(model, ModelFolder) else ensure_model(model, report)
            options = options or Options(compile=compile, cuda_graphs=cuda_graphs)
            if options.compile and _on_cpu(options.device):
                need_compiler()
            base_url = server.base_url_of(listener)
            run_folder = _make_run_folder()
            log = log_path or run_folder / "engine.log"
            agent_socket = run_folder / _SOCKET if agent else None
            environment = {**os.environ, **(env or {})}
            environment.pop(server.AGENT_SOCKET, None)
            if agent_socket is not None:
                environment[server.AGENT_SOCKET] = str(agent_socket)
            process, status, life = _spawn(folder, options, listener.fileno(), log, environment)
        except BaseException:
            if run_folder is not None:
                shutil.rmtree(run_folder, ignore_errors=True)
            raise
        finally:
            listener.close()  # the child has its own; when it dies, connections are refused at once
        engine = cls(base_url, folder.name, agent_socket, log, {}, "", process, status, life, run_folder)
        try:
            engine._wait_ready(report, timeout_s)
        except BaseException:
            engine.stop()
            raise
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def failure(self, wait_s: float = 0.5) -> EngineError | None:
        """Why the engine ended, or None when it lives.

        For use after a connection broke; a process takes a moment to die, so `wait_s` is waited for that. One that has
        said why it ends needs not have ended: on a busy machine that takes longer.
        """
        if self._stopped:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        if self.alive and self._reported is None:
            return None
        for message in self._messages(0.0):
            self._note(message)
        if self._reported is not None:
            error = self._reported
            return EngineError(str(error), fix=error.fix, layer=error.layer, detail=self.log_tail())
        return EngineError(
            f"the local engine {_how(self._process.returncode)} {self._while()}",
            fix=_fix(self._process.returncode),
            layer=6,
            detail=self.log_tail(),
        )

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """The last lines of the engine's log that tell something; "" when it wrote nothing."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - 64_000))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        told = [line for line in text.splitlines() if _MEANS_NOTHING not in line]
        return "\n".join(line[:_LOG_WIDTH] for line in told[-lines:])

    def stop(self, timeout_s: float = 3.0) -> None:
        """End the process and remove its run folder. Safe to call twice; never raises."""
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._status, self._life):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        shutil.rmtree(self._run_folder, ignore_errors=True)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_ready(self, report: Callable[[str, float | None], None], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._phase != "ready":
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineError(
                    f"the local engine was not ready after {timeout_s:.0f} s ({self._while()})",
                    fix="try again on a quieter machine, or with a smaller model",
                    detail=self.log_tail(),
                )
            messages = self._messages(min(left, 1.0))
            for message in messages:
                self._note(message)
                if self._phase not in ("ready", "error"):
                    report(self._phase, None)
            if self._reported is not None or (not messages and not self.alive):
                raise self.failure(5.0) or EngineError("the local engine did not start", detail=self.log_tail())

    def _note(self, message: dict[str, Any]) -> None:
        phase = str(message.get("phase"))
        if phase == "error":
            self._reported = EngineError(
                str(message.get("message")), fix=str(message.get("fix")), layer=int(message.get("layer") or 0)
            )
            return
        self._phase = phase
        self.agent_problem = str(message.get("agent_problem") or self.agent_problem)
        self.facts = message.get("facts") or self.facts

    def _messages(self, wait_s: float) -> list[dict[str, Any]]:
        """What the child reported since the last call; an empty list when nothing came within `wait_s`."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(wait_s * 1000):
            return []
        data = self._partial + os.read(self._status, 1 << 16)
        *lines, self._partial = data.split(b"\n")
        return [json.loads(line) for line in lines]

    def _while(self) -> str:
        return "while it served" if self._phase == "ready" else f"while {self._phase}"


def _make_run_folder() -> Path:
    """A new folder of mode 0700, in the folder for temporary files unless that is too deep for a socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="tokentrace-engine-"))
    if len(os.fsencode(folder / _SOCKET)) < _LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="tokentrace-engine-", dir="/tmp"))


def _spawn(
    folder: ModelFolder, options: Options, listen_fd: int, log: Path, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], int, int]:
    """The child, the end of the status pipe to read and the end of the life pipe to hold."""
    status_read, status_write = os.pipe()
    life_read, life_write = os.pipe()
    argument = server.settings_for(folder, options, listen_fd=listen_fd, status_fd=status_write, life_fd=life_read)
    root = str(Path(__file__).resolve().parents[3])
    try:
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, argument, root],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(listen_fd, status_write, life_read),
                start_new_session=True,
            )
    except OSError as error:
        for descriptor in (status_read, life_write):
            os.close(descriptor)
        raise EngineError(f"the local engine cannot be started: {error}", fix="see the message") from error
    finally:
        os.close(status_write)
        os.close(life_read)
    return process, status_read, life_write


def _on_cpu(device: str) -> bool:
    """Whether the model will run on the CPU, as far as can be seen without torch."""
    return device == "cpu" or (device == "auto" and not Path("/dev/nvidiactl").exists())


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _fix(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it may have run out of memory (`dmesg | tail`); free some, or use a smaller model"
    return "see its last log lines below"
