"""Where compilers keep what they compiled, and how those folders stand. Read only; used by the probe and by checks.

inductor    TORCHINDUCTOR_CACHE_DIR     <tmp>/torchinductor_<user>            torch, cache_dir_utils.py
triton      TRITON_CACHE_DIR            $TRITON_HOME|~ /.triton/cache         triton, knobs.py; under inductor the
                                        default is triton/ in inductor's own folder
vLLM        VLLM_CACHE_ROOT             $XDG_CACHE_HOME|~/.cache /vllm        vllm, envs.py
CUDA        CUDA_CACHE_PATH             ~/.nv/ComputeCache                    CUDA programming guide; off with
                                                                              CUDA_CACHE_DISABLE=1
HIP         AMD_COMGR_CACHE_DIR         $XDG_CACHE_HOME|~/.cache /comgr_cache comgr-env.h; off with AMD_COMGR_CACHE=0
                                                                              or an empty path
MIOpen      MIOPEN_CUSTOM_CACHE_DIR     ~/.cache/miopen                       MIOpen, "Kernel cache"; off with
                                                                              MIOPEN_DISABLE_CACHE=1
MIOpen db   MIOPEN_USER_DB_PATH         ~/.config/miopen                      MIOpen, "Find and immediate mode"
FlashInfer  FLASHINFER_WORKSPACE_BASE   ~/.cache/flashinfer                   flashinfer, jit/env.py
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_FILES = 20_000
MAX_SECONDS = 1.0

Env = Mapping[str, str]


@dataclass(slots=True)
class CacheFolder:
    """One compiler's cache. `source` is "environment" or "default". `files`, `bytes`, `newest_ns` (modification time,
    unix ns) are None where they could not be read; `complete` is False when the walk hit its bounds, and they are
    then lower bounds. `writable` says whether this user could write there (or create it). `disabled` says what turned
    the cache off, "" when it is on.
    """

    compiler: str
    variable: str
    source: str
    path: str
    exists: bool = False
    files: int | None = None
    bytes: int | None = None
    newest_ns: int | None = None
    complete: bool = True
    writable: bool | None = None
    filesystem: str = ""
    disabled: str = ""
    problem: str = ""

    def age_s(self, now_ns: int | None = None) -> float | None:
        """Seconds since the newest file was written; None when there is none."""
        if self.newest_ns is None:
            return None
        return max(0.0, ((now_ns or time.time_ns()) - self.newest_ns) / 1e9)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _home(env: Env) -> str:
    return env.get("HOME") or str(Path("~").expanduser())


def _cache_home(env: Env) -> str:
    return env.get("XDG_CACHE_HOME") or str(Path(_home(env), ".cache"))


def _inductor(env: Env) -> str:
    user = next((env[n] for n in ("LOGNAME", "USER", "LNAME", "USERNAME") if env.get(n)), "") or _user_name()
    folder = next((env[n] for n in ("TMPDIR", "TEMP", "TMP") if env.get(n)), "/tmp")
    return str(Path(folder, "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)))


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid_{os.getuid()}"


def _triton(env: Env) -> str:
    return str(Path(env.get("TRITON_HOME") or _home(env), ".triton", "cache"))


def _off(env: Env, variable: str, values: tuple[str, ...]) -> str:
    value = env.get(variable)
    return f"{variable}={value}" if value is not None and value.strip().lower() in values else ""


_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class _Rule:
    compiler: str
    variable: str
    default: Callable[[Env], str]
    below: str = ""  # the folder below the variable's value
    disabled: Callable[[Env], str] = lambda env: ""


_RULES = (
    _Rule("inductor", "TORCHINDUCTOR_CACHE_DIR", _inductor,
          disabled=lambda env: _off(env, "TORCHINDUCTOR_FORCE_DISABLE_CACHES", _YES)),
    _Rule("triton", "TRITON_CACHE_DIR", _triton),
    _Rule("vLLM", "VLLM_CACHE_ROOT", lambda env: str(Path(_cache_home(env), "vllm")),
          disabled=lambda env: _off(env, "VLLM_DISABLE_COMPILE_CACHE", _YES)),
    _Rule("CUDA", "CUDA_CACHE_PATH", lambda env: str(Path(_home(env), ".nv", "ComputeCache")),
          disabled=lambda env: _off(env, "CUDA_CACHE_DISABLE", _YES)),
    _Rule("HIP", "AMD_COMGR_CACHE_DIR", lambda env: str(Path(_cache_home(env), "comgr_cache")),
          disabled=lambda env: _off(env, "AMD_COMGR_CACHE", _NO) or _off(env, "AMD_COMGR_CACHE_DIR", ("",))),
    _Rule("MIOpen", "MIOPEN_CUSTOM_CACHE_DIR", lambda env: str(Path(_home(env), ".cache", "miopen")),
          disabled=lambda env: _off(env, "MIOPEN_DISABLE_CACHE", _YES)),
    _Rule("MIOpen db", "MIOPEN_USER_DB_PATH", lambda env: str(Path(_home(env), ".config", "miopen"))),
    _Rule("FlashInfer", "FLASHINFER_WORKSPACE_BASE", lambda env: str(Path(_home(env), ".cache", "flashinfer")),
          below=".cache/flashinfer"),
)  # fmt: skip

#: Every variable that decides where a cache lies or whether it is used. Values are paths and switches, never secrets.
VARIABLES = (
    *(rule.variable for rule in _RULES), "HOME", "XDG_CACHE_HOME", "TMPDIR", "TEMP", "TMP", "LOGNAME", "USER",
    "TRITON_HOME", "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "VLLM_DISABLE_COMPILE_CACHE", "CUDA_CACHE_DISABLE",
    "AMD_COMGR_CACHE", "MIOPEN_DISABLE_CACHE",
)  # fmt: skip


def cache_folders(
    env: Env,
    *,
    root: str = "/",
    mounts: str = "/proc/self/mountinfo",
    max_files: int = MAX_FILES,
    max_seconds: float = MAX_SECONDS,
) -> list[CacheFolder]:
    """The cache folders that a process with this environment uses. Never raises, writes nothing.

    `root` and `mounts` look into another process's file system: `/proc/<pid>/root` and `/proc/<pid>/mountinfo`; the
    paths told are those the process itself would use. Each walk stops at `max_files` entries or `max_seconds`.
    """
    table = _mount_table(mounts)
    found = []
    for rule in _RULES:
        value = env.get(rule.variable, "")
        given = str(Path(value, rule.below)) if value else ""
        path = given or rule.default(env)
        folder = CacheFolder(
            rule.compiler, rule.variable, "environment" if given else "default", path, disabled=rule.disabled(env)
        )
        if not Path(path).is_absolute():
            folder.problem = "a relative path: it depends on the folder the server was started in"
        else:
            folder.filesystem = _filesystem(path, table)
            _look(folder, Path(root, path.lstrip("/")) if root != "/" else Path(path), max_files, max_seconds)
        found.append(folder)
    return found


def _look(folder: CacheFolder, path: Path, max_files: int, max_seconds: float) -> None:
    try:
        folder.exists = path.is_dir()
        folder.writable = _writable(path)
        if not folder.exists:
            if path.exists():
                folder.problem = "it is not a folder"
            return
    except OSError as error:
        folder.problem = f"cannot be looked at: {error.strerror}"
        return
    deadline = time.monotonic() + max_seconds
    files, size, newest, seen = 0, 0, 0, 0
    waiting = [str(path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > max_files or time.monotonic() > deadline:
                        folder.complete = False
                        break
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    facts = entry.stat(follow_symlinks=False)
                    files += 1
                    size += facts.st_size
                    newest = max(newest, facts.st_mtime_ns)
        except FileNotFoundError:
            continue  # a compiler may clean up while we look
        except OSError as error:
            folder.complete = False
            folder.problem = folder.problem or f"not all of it can be read: {error.strerror}"
        if not folder.complete and (seen > max_files or time.monotonic() > deadline):
            break
    folder.files, folder.bytes, folder.newest_ns = files, size, newest or None


def _writable(path: Path) -> bool:
    """Could this user write there, creating the folder if need be?"""
    for place in (path, *path.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _mount_table(mounts: str) -> list[tuple[str, str]]:
    """(mount point, file system type) of each mount, as proc(5) describes mountinfo; [] when it cannot be read."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    table = []
    for line in lines:
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if separator and len(fields) >= 5 and kinds:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            table.append((point, kinds[0]))
    return table


def _filesystem(path: str, table: list[tuple[str, str]]) -> str:
    """Type of the file system that holds the path (ext4, overlay, nfs, tmpfs…), "" when unknown. Later mounts hide
    earlier ones at the same point."""
    best, kind = -1, ""
    for point, found in table:
        inside = point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), found
    return kind
