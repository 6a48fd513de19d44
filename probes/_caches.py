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
DeepGEMM    DG_JIT_CACHE_DIR            ~/.deep_gemm; vLLM sets it to         deep_gemm, README
                                        deep_gemm/ in its own folder          vllm, utils/deep_gemm.py
extensions  TORCH_EXTENSIONS_DIR        ~/.cache/torch_extensions             torch, utils/cpp_extension.py
Torch-TRT   TMPDIR                      /tmp/torch_tensorrt_engine_cache      torch_tensorrt, dynamo/_defaults.py
TRT-LLM     TLLM_LLMAPI_BUILD_CACHE_ROOT  /tmp/.cache/tensorrt_llm/llmapi     tensorrt_llm, llmapi/build_cache.py; on
                                                                              with TLLM_LLMAPI_BUILD_CACHE=1
ORT TensorRT  ORT_TENSORRT_CACHE_PATH   the folder it was started in          onnxruntime, TensorRT provider; on with
                                                                              ORT_TENSORRT_ENGINE_CACHE_ENABLE=1
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: File systems that the kernel makes up: nobody can make a file there, although root's rights say so.
PSEUDO = frozenset((
    "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "devpts", "bpf", "pstore", "configfs",
    "efivarfs", "mqueue", "fusectl", "binfmt_misc", "nsfs", "selinuxfs", "rpc_pipefs",
))  # fmt: skip
MAX_FILES = 20_000
MAX_SECONDS = 1.0

RELATIVE = "a relative path: it depends on the folder the server was started in"

Env = Mapping[str, str]


@dataclass(slots=True)
class CacheFolder:
    """One compiler's cache. `source` is "environment" or "default". `files`, `bytes`, `newest_ns` (modification time,
    unix ns) are None where they could not be read; `complete` is False when the walk hit its bounds, and they are
    then lower bounds. `writable` says whether this user could write there (or create it). `disabled` says what turned
    the cache off, "" when it is on. `free_bytes` are what an ordinary user may still write there; quotas are not seen.
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
    why_not: str = ""  # why it is not writable
    owner: int | None = None  # user id of the folder, or of the one it would be made in
    free_bytes: int | None = None
    free_share: float | None = None  # of the file system's bytes or inodes, whichever is scarcer
    read_only: bool = False  # the mount
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
    return str(Path(_temporary(env), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)))


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid_{os.getuid()}"


def _temporary(env: Env) -> str:
    return next((env[n] for n in ("TMPDIR", "TEMP", "TMP") if env.get(n)), "/tmp")


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
    used: Callable[[Env], bool] = lambda env: True  # caches that are off unless asked for are told only then
    expands: bool = False  # ~ at the beginning of the variable's value


_RULES = (
    _Rule("inductor", "TORCHINDUCTOR_CACHE_DIR", _inductor,
          disabled=lambda env: _off(env, "TORCHINDUCTOR_FORCE_DISABLE_CACHES", _YES)),
    _Rule("triton", "TRITON_CACHE_DIR", _triton),
    _Rule("vLLM", "VLLM_CACHE_ROOT", lambda env: str(Path(_cache_home(env), "vllm")),
          disabled=lambda env: _off(env, "VLLM_DISABLE_COMPILE_CACHE", _YES), expands=True),
    _Rule("CUDA", "CUDA_CACHE_PATH", lambda env: str(Path(_home(env), ".nv", "ComputeCache")),
          disabled=lambda env: _off(env, "CUDA_CACHE_DISABLE", _YES)),
    _Rule("HIP", "AMD_COMGR_CACHE_DIR", lambda env: str(Path(_cache_home(env), "comgr_cache")),
          disabled=lambda env: _off(env, "AMD_COMGR_CACHE", _NO) or _off(env, "AMD_COMGR_CACHE_DIR", ("",))),
    _Rule("MIOpen", "MIOPEN_CUSTOM_CACHE_DIR", lambda env: str(Path(_home(env), ".cache", "miopen")),
          disabled=lambda env: _off(env, "MIOPEN_DISABLE_CACHE", _YES)),
    _Rule("MIOpen db", "MIOPEN_USER_DB_PATH", lambda env: str(Path(_home(env), ".config", "miopen"))),
    _Rule("FlashInfer", "FLASHINFER_WORKSPACE_BASE", lambda env: str(Path(_home(env), ".cache", "flashinfer")),
          below=".cache/flashinfer"),
    _Rule("DeepGEMM", "DG_JIT_CACHE_DIR", lambda env: str(Path(_home(env), ".deep_gemm"))),
    _Rule("torch extensions", "TORCH_EXTENSIONS_DIR", lambda env: str(Path(_cache_home(env), "torch_extensions"))),
    _Rule("Torch-TensorRT", "TMPDIR", lambda env: str(Path(_temporary(env), "torch_tensorrt_engine_cache")),
          below="torch_tensorrt_engine_cache"),
    _Rule("TensorRT-LLM", "TLLM_LLMAPI_BUILD_CACHE_ROOT", lambda env: "/tmp/.cache/tensorrt_llm/llmapi",
          used=lambda env: env.get("TLLM_LLMAPI_BUILD_CACHE") == "1"),
    _Rule("ONNX Runtime TensorRT", "ORT_TENSORRT_CACHE_PATH", lambda env: ".",
          used=lambda env: env.get("ORT_TENSORRT_ENGINE_CACHE_ENABLE") == "1"),
)  # fmt: skip

#: Every variable that decides where a cache lies or whether it is used. Values are paths and switches, never secrets.
VARIABLES = (
    *(rule.variable for rule in _RULES), "HOME", "XDG_CACHE_HOME", "TEMP", "TMP", "LOGNAME", "USER",
    "TRITON_HOME", "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "VLLM_DISABLE_COMPILE_CACHE", "CUDA_CACHE_DISABLE",
    "AMD_COMGR_CACHE", "MIOPEN_DISABLE_CACHE", "TLLM_LLMAPI_BUILD_CACHE", "ORT_TENSORRT_ENGINE_CACHE_ENABLE",
)  # fmt: skip


def cache_folders(
    env: Env,
    *,
    root: str = "/",
    mounts: str = "/proc/self/mountinfo",
    max_files: int = MAX_FILES,
    max_seconds: float = MAX_SECONDS,
    user: User | None = None,
) -> list[CacheFolder]:
    """The cache folders that a process with this environment uses. Never raises, writes nothing.

    `root` and `mounts` look into another process's file system: `/proc/<pid>/root` and `/proc/<pid>/mountinfo`; the
    paths told are those the process itself would use; `user` is that process's. Each walk stops at `max_files` entries
    or `max_seconds`.
    """
    table = _mount_table(mounts)
    found = []
    for rule in _RULES:
        if not rule.used(env):
            continue
        value = env.get(rule.variable, "")
        if rule.expands and value.startswith("~/"):
            value = str(Path(_home(env), value[2:]))
        given = str(Path(value, rule.below)) if value else ""
        path = given or rule.default(env)
        folder = CacheFolder(
            rule.compiler, rule.variable, "environment" if given else "default", path, disabled=rule.disabled(env)
        )
        if not Path(path).is_absolute():
            folder.problem = RELATIVE
        else:
            folder.filesystem, folder.read_only = _filesystem(path, table)
            _look(folder, user, Path(root, path.lstrip("/")) if root != "/" else Path(path), max_files, max_seconds)
        found.append(folder)
    return found


def _look(folder: CacheFolder, user: User | None, path: Path, max_files: int, max_seconds: float) -> None:
    try:
        folder.exists = path.is_dir()
        _can_write(folder, path, user)
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
            with entries_of(waiting.pop()) as (where, entries):
                for entry in entries:
                    seen += 1
                    if seen > max_files or time.monotonic() > deadline:
                        folder.complete = False
                        break
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{where}/{entry.name}")
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


@contextmanager
def entries_of(folder: str) -> Iterator[tuple[str, Iterator[os.DirEntry[str]]]]:
    """The folder's path and its entries, read without touching its access time where that is allowed.

    `entry.path` is of no use, join the path and `entry.name`. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        descriptor = os.open(folder, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        descriptor = os.open(folder, flags)  # only the owner may ask for the other
    try:
        with os.scandir(descriptor) as entries:
            yield folder, entries
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class User:
    """Whose rights count, where it is not this process's own."""

    uid: int
    groups: frozenset[int]

    def may_write(self, facts: os.stat_result) -> bool:
        """By owner, group and mode; access control lists are not read."""
        if self.uid == 0:
            return True
        shift = 6 if facts.st_uid == self.uid else 3 if facts.st_gid in self.groups else 0
        return facts.st_mode >> shift & 0o3 == 0o3


def _can_write(folder: CacheFolder, path: Path, user: User | None) -> None:
    """Could the user write there, creating the folder if need be? Asks the nearest folder that exists."""
    place = next((p for p in (path, *path.parents) if p.exists() or _nowhere(p, path, folder)), None)
    if place is None:
        folder.writable, folder.why_not = False, "nothing of that path exists"
        return
    if not place.exists():
        folder.writable, folder.why_not = False, f"{place} is a link that leads nowhere, where no folder can be made"
        return
    facts = place.stat()
    folder.owner = facts.st_uid
    room = os.statvfs(place)
    folder.read_only = folder.read_only or bool(room.f_flag & os.ST_RDONLY)
    folder.free_bytes = room.f_bavail * room.f_frsize if room.f_blocks else None
    shares = [room.f_bavail / room.f_blocks] if room.f_blocks else []
    folder.free_share = min([*shares, room.f_favail / room.f_files] if room.f_files else shares, default=None)
    name = folder.path if place == path else _told(folder.path, path, place)
    if not place.is_dir():
        folder.writable, folder.why_not = False, f"{name} is no folder"
    elif folder.filesystem in PSEUDO:
        folder.writable, folder.why_not = False, f"it lies on {folder.filesystem}, where no file can be made"
    elif folder.read_only:
        folder.writable, folder.why_not = False, "it lies on a file system that is mounted read-only"
    elif user is None:
        folder.writable = os.access(place, os.W_OK | os.X_OK)
    else:
        folder.writable = user.may_write(facts)
    if not folder.writable and not folder.why_not:
        who = "this user" if user is None else f"user {user.uid}"
        folder.why_not = (
            f"{name} belongs to user {facts.st_uid} (mode {facts.st_mode & 0o7777:04o}), {who} may not write"
        )


def _nowhere(place: Path, path: Path, folder: CacheFolder) -> bool:
    """A link to what is not there, or in a circle. In another root links are followed from the wrong place."""
    return str(path) == folder.path and place.is_symlink()


def _told(told: str, path: Path, place: Path) -> str:
    """`place`, an ancestor of `path`, as the process that names it `told` would name it."""
    parents = Path(told).parents
    return str(parents[min(len(path.parts) - len(place.parts), len(parents)) - 1])


def _mount_table(mounts: str) -> list[tuple[str, str, bool]]:
    """(mount point, file system type, read only) of each mount, as proc(5) describes mountinfo; [] when unreadable."""
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
            read_only = len(fields) > 5 and "ro" in fields[5].split(",")
            table.append((point, kinds[0], read_only))
    return table


def filesystem_of(path: Path) -> str:
    """Type of this process's file system that holds the path, "" when unknown."""
    return _filesystem(str(path), _mount_table("/proc/self/mountinfo"))[0]


def _filesystem(path: str, table: list[tuple[str, str, bool]]) -> tuple[str, bool]:
    """Type of the file system that holds the path (ext4, overlay, nfs, tmpfs…), "" when unknown, and whether it is
    mounted read-only. Later mounts hide earlier ones at the same point."""
    best, kind = -1, ("", False)
    for point, found, read_only in table:
        inside = point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), (found, read_only)
    return kind
