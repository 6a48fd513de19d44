"""What vLLM loads in each of its processes when tokentrace is installed beside it (`vllm.general_plugins`).

It opens the agent's socket in a private folder and does nothing else: not one function of vLLM is touched before
somebody attaches. Whatever goes wrong here, vLLM starts.

    TOKENTRACE_DISABLE=1    do not even open the socket
    TOKENTRACE_ENABLE=1     trace every request that comes with a sampled traceparent, without anybody attaching
    TOKENTRACE_SHARE=0.01   with it: of the other requests this share

Traces of TOKENTRACE_ENABLE are made and sent by a process of its own beside the server (the OTEL_EXPORTER_OTLP_*
variables say where to), which the first process of the server starts and which ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_registered = 0
#: Set by the process that started the one beside the server, for those that it makes.
_BESIDE = "TOKENTRACE_BESIDE_OF"


def register() -> None:
    """The entry point. May be called several times in one process; never raises."""
    global _registered
    if _registered == os.getpid() or _on("TOKENTRACE_DISABLE"):
        return
    _registered = os.getpid()
    try:
        from tokentrace import agent

        if agent.running() is not None:
            return  # the program that runs vLLM traces itself
        folder = private_folder()
        _sweep(folder)
        agent.start(str(folder / "agent-{pid}.sock"))
        if _on("TOKENTRACE_ENABLE"):
            _start_beside()
    except Exception as error:  # noqa: BLE001 - the server must start whatever becomes of us
        logging.getLogger("tokentrace").warning("tokentrace is not available in this process: %s", error)


def private_folder() -> Path:
    """Where agents wait: $XDG_RUNTIME_DIR/tokentrace, else tokentrace-UID in the folder for temporary files. The
    agent checks, before it listens there, that it is ours alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir() and len(runtime) < 55:  # a socket's path may have 107 bytes
        return Path(runtime) / "tokentrace"
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) < 45 else "/tmp") / f"tokentrace-{os.geteuid()}"


def _on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def _sweep(folder: Path) -> None:
    """Remove the sockets that killed processes left."""
    with contextlib.suppress(OSError):
        for path in folder.glob("agent-*.sock"):
            pid = path.stem.split("-")[1]
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                path.unlink(missing_ok=True)


def _start_beside() -> None:
    """Once a server: in the process that loads this first."""
    if os.environ.get(_BESIDE):
        return
    os.environ[_BESIDE] = str(os.getpid())
    command = [sys.executable, "-m", "tokentrace.attach.beside", str(os.getpid())]
    # Its own session: a Ctrl-C in the server's terminal is for the server, and ends us with it.
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
