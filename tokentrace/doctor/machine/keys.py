"""Layer 2: caches that are kept and still miss, or that hang: keys that change with each start, builds for another
CUDA, locks whose holder is gone, engine files that pile up.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from tokentrace.doctor.check import Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import folders, torches
from tokentrace.doctor.machine.situation import in_the_servers_process
from tokentrace.doctor.machine.view import View
from tokentrace.host import proc
from tokentrace.probes._cache_entries import Bounds, loaded, ninja
from tokentrace.probes._caches import CacheFolder, entries_of
from tokentrace.wording import duration, listed, plural

#: So many folders of one model, all made within this time, are one per start.
_MANY_KEYS = 3
_RECENT_S = 7 * 86_400
_MOST_FILES = 4_000
_SECONDS = 0.25
#: A lock that is older belongs to no compilation that still runs, unless a compiler does.
_STALE_S = 600
#: Every file of a cache.
NEW_FILE = re.compile(r".+")
#: Of a cache's entries, those that took longest.
_SHOWN = 4
COMPILERS = ("nvcc", "cicc", "ptxas", "ninja", "cc1plus", "clang", "clang++", "hipcc")


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT208, TT207, TT206 and TT212 over the same folders."""
    if view.hidden:
        return [unknown(c, f"the server's caches cannot be looked at: {view.hidden}", view.fix)
                for c in ("TT208", "TT207", "TT206", "TT212")]  # fmt: skip
    if why := torches.without_torch(view):
        return [skip("TT208", why)]
    found = {f.compiler: f for f in folders.caches(view)}
    return [changing(found["vLLM"], view), toolkits(found["FlashInfer"], view), locks(found.values(), view),
            engines(found, view)]  # fmt: skip


def files(view: View, folder: str, wanted: re.Pattern[str], deep: int = 6) -> list[tuple[str, float]]:
    """(path as that process names it, modification time) of files whose name matches; a bounded walk."""
    return walk(view, folder, wanted, deep)[0]


def walk(
    view: View,
    folder: str,
    wanted: re.Pattern[str],
    deep: int = 6,
    most: int = _MOST_FILES,
    seconds: float | None = None,
) -> tuple[list[tuple[str, float]], bool]:
    """The same, and whether everything was seen."""
    until = time.monotonic() + (_SECONDS if seconds is None else seconds)
    waiting, seen = [(folder, 0)], 0
    found: list[tuple[str, float]] = []
    while waiting and seen < most and time.monotonic() < until:
        where, depth = waiting.pop()
        try:
            with entries_of(str(view.path(where))) as (_, entries):
                for entry in entries:
                    seen += 1
                    path = f"{where}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if depth < deep:
                            waiting.append((path, depth + 1))
                    elif wanted.fullmatch(entry.name):
                        found.append((path, entry.stat(follow_symlinks=False).st_mtime))
        except OSError as error:
            view.errors[where] = error.strerror or str(error)
    return sorted(found), not waiting


def changing(cache: CacheFolder, view: View) -> Result:
    """TT208: vLLM keeps one folder per key; a key that holds something of this start only is new each time.

    vLLM writes what went into a key to cache_key_factors.json (from 0.11.1 on).
    """
    base = f"{cache.path}/torch_compile_cache"
    recent = [p for p in files(view, base, re.compile(r"cache_key_factors\.json")) if time.time() - p[1] < _RECENT_S]
    by_key: dict[str, list[tuple[str, float]]] = {}
    for path, made in recent:
        by_key.setdefault(Path(path).relative_to(base).parts[0], []).append((path, made))
    lines = [f"{key}: {duration((time.time() - max(m for _, m in paths)) * 1e9)} old" for key, paths in by_key.items()]
    if len(by_key) <= _MANY_KEYS:
        return ok("TT208", f"vLLM has {plural(len(by_key), 'set', 'sets')} of compiled code of this week", *lines)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for paths in by_key.values():
        if factors := _factors(view, paths[0][0]):
            groups.setdefault((str(factors["code"]), str(factors["model"])), []).append(factors)
    same = max(groups.values(), key=len, default=[])
    changed = differing(same)
    if len(same) <= _MANY_KEYS or not changed:
        return ok("TT208", f"vLLM compiled {len(by_key)} different models or settings this week", *lines)
    name = changed[0].partition(".")[2] or changed[0]
    return warn(
        "TT208", f"vLLM compiled {len(same)} times this week for the same model and code, each time under a new key, "
        f"because {listed(changed)} changed", f"give {name} the same value at each start", *lines,
    )  # fmt: skip


def _factors(view: View, path: str) -> dict[str, Any]:
    """What went into the key, as {"env.NAME": value, …}; {} when it cannot be read. Values are compared, never told."""
    try:
        raw = orjson.loads(view.text(path))
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(raw, dict):
        return {}
    flat: dict[str, Any] = {"code": raw.get("code_hash"), "compiler": raw.get("compiler_hash")}
    for group in ("env", "config"):
        values = raw.get(group)
        if isinstance(values, dict):
            flat.update((f"{group}.{name}", value) for name, value in values.items())
    # Where the settings are told as one hash only, another hash may be another model.
    flat["model"] = flat.get("config.model_config") or flat.get("config.model") or raw.get("config_hash")
    return flat


def differing(factors: list[dict[str, Any]]) -> list[str]:
    """Names whose values are not the same everywhere, sorted; hashes of code first."""
    names = sorted({name for one in factors for name in one})
    return [name for name in names if len({str(one.get(name)) for one in factors}) > 1]


def toolkits(cache: CacheFolder, view: View) -> Result:
    """TT207: FlashInfer writes the CUDA folder's name into build.ninja and builds anew when the name is another one."""
    found = files(view, cache.path, re.compile(r"build\.ninja"))
    if not found:
        return skip("TT207", "FlashInfer has built nothing here")
    built: dict[str, int] = {}
    for path, _ in found:
        match = re.search(r"^cuda_home = (\S+)", view.text(path, 20_000), re.MULTILINE)
        if match:
            built[match[1]] = built.get(match[1], 0) + 1
    now, real = _toolkit(view)
    lines = [f"{count} built with {home}" for home, count in built.items()]
    lines.append(
        f"today CUDA lies in {now or 'no folder that can be found'}{f', which is {real}' if real != now else ''}"
    )
    lines += modules(cache, view)
    other = [home for home in built if home not in (now, real)]
    if not built or not now:
        return unknown("TT207", "FlashInfer's builds cannot be compared with today's CUDA folder", "", *lines)
    if other:
        return warn("TT207", f"FlashInfer built with {other[0]}, and CUDA is now {now}: it builds everything again",
                    f"export CUDA_HOME={other[0]}" if view.exists(other[0]) else f"rm -r {_version_of(found, cache)}",
                    *lines)  # fmt: skip
    return ok("TT207", f"FlashInfer's builds are for today's CUDA folder {now}", *lines)


def modules(cache: CacheFolder, view: View) -> list[str]:
    """What FlashInfer's modules took to build by ninja's log, the longest first, and how many the server has loaded."""
    found = ninja.read(str(view.path(cache.path)), cache.path, Bounds(deadline=time.monotonic() + _SECONDS)).entries
    if not found:
        return []
    mapped = loaded.files(view.pid) if view.pid else None
    use = ""
    if mapped is not None:
        use = f", {sum(loaded.has(mapped, e.path, view.root) for e in found)} of them loaded by {view.whose}"
    took = sorted(((entry.took_ns, entry.key) for entry in found if entry.took_ns is not None), reverse=True)
    if not took:
        return [f"{plural(len(found), 'module')}{use}; how long they took to build is not told"]
    longest = listed([f"{key} {duration(ns)}" for ns, key in took[:_SHOWN]], _SHOWN)
    spent = ("at least " if len(took) < len(found) else "") + duration(sum(ns for ns, _ in took))
    return [f"{plural(len(found), 'module')}{use}, built in {spent}; longest: {longest}"]


def _toolkit(view: View) -> tuple[str, str]:
    """(folder, the same without symbolic links) in FlashInfer's order: CUDA_HOME, CUDA_PATH, PATH's nvcc, default."""
    home = view.environ.get("CUDA_HOME") or view.environ.get("CUDA_PATH") or ""
    if not home:
        folders_ = view.environ.get("PATH", os.defpath).split(":")
        nvcc = next((f for f in folders_ if f and view.exists(f"{f}/nvcc")), "")
        home = str(Path(nvcc).parent) if nvcc else "/usr/local/cuda"
    if not view.exists(home):
        return "", ""
    try:
        real = str(view.path(home).resolve())
    except OSError:
        real = home
    prefix = "" if view.root == "/" else view.root.rstrip("/")
    return home, real.removeprefix(prefix)


def _version_of(found: list[tuple[str, float]], cache: CacheFolder) -> str:
    first = Path(found[0][0]).relative_to(cache.path).parts[0]
    return f"{cache.path}/{first}"


def locks(caches: Iterable[CacheFolder], view: View) -> Result:
    """TT206: lock files in the caches, who holds them, and builds that wait for a lock nobody will release.

    `*.lock` files are locked with flock and stay when they are free: they matter only while someone holds them.
    torch's extension builder instead creates a file `lock` and waits for it to go.
    """
    held, stale, seen = [], [], 0
    holders = _holders(view)
    compiling = any(proc.running(COMPILERS))
    for cache in caches:
        if not cache.exists:
            continue
        for path, made in files(view, cache.path, re.compile(r".*\.lock|lock")):
            seen += 1
            try:
                facts = view.path(path).stat()
            except OSError:
                continue
            pid = holders.get((facts.st_dev, facts.st_ino))
            old = time.time() - made
            if pid is not None:
                held.append(f"{path} is held by process {pid} for up to {duration(old * 1e9)}")
            elif Path(path).name == "lock" and old > _STALE_S and not compiling:
                stale.append(f"{path} is {duration(old * 1e9)} old, nobody holds it and no compiler runs")
    if stale:
        path = stale[0].split(" is ")[0]
        return warn("TT206", f"{plural(len(stale), 'build')} waits for a lock that a killed run left behind",
                    f"rm {path}", *stale, *held)  # fmt: skip
    if held and not compiling:
        return Result("TT206", "unknown", f"{plural(len(held), 'lock')} of the caches is held and no compiler runs: a "
                      "start that hangs waits for it", "look at the process that holds it", tuple(held))  # fmt: skip
    return ok("TT206", f"no lock in the caches stands in the way ({seen} seen)", *held)


def _holders(view: View) -> dict[tuple[int, int], int]:
    """(device, inode) -> pid, from /proc/locks."""
    found = {}
    for line in view.text("/proc/locks").splitlines():
        match = re.search(r"\s(\d+)\s+([0-9a-f]+):([0-9a-f]+):(\d+)\s", line)
        if match:
            found[os.makedev(int(match[2], 16), int(match[3], 16)), int(match[4])] = int(match[1])
    return found


def engines(caches: Mapping[str, CacheFolder], view: View) -> Result:
    """TT212: TensorRT engine files; several that differ only in a number were never found again."""
    where = [caches[n].path for n in ("ONNX Runtime TensorRT", "TensorRT-LLM", "Torch-TensorRT") if n in caches]
    found = [f for folder in where if folder.startswith("/")
             for f in files(view, folder, re.compile(r".*\.(engine|plan|profile)|engine\.bin"))]  # fmt: skip
    if not found:
        return skip("TT212", "there are no TensorRT engine files here")
    version = torches.loaded_version(view, "tensorrt", torches.folders_of(view)) or "not found"
    lines = [f"{path}, {duration((time.time() - made) * 1e9)} old" for path, made in found[:12]]
    lines.append(f"TensorRT here: {version}")
    groups: dict[str, int] = {}
    for path, _ in found:
        if path.endswith((".engine", ".plan")):
            stem = re.sub(r"\d+", "#", path)
            groups[stem] = groups.get(stem, 0) + 1
    rising = [stem for stem, count in groups.items() if count >= 3]
    if rising:
        return warn("TT212", f"{groups[rising[0]]} TensorRT engines differ only in a number of their name: each start "
                    "made a new one", "give the model a fixed name, or trt_engine_cache_prefix", *lines)  # fmt: skip
    return ok(
        "TT212", f"{plural(len(found), 'TensorRT engine file')}; they serve only the TensorRT that made them", *lines
    )


CHECKS = (
    Check(
        "TT208", "caches: keys",
        "vLLM keeps compiled code under a key of code, settings and environment; a value that is new at each start, "
        "such as an address, makes the key new and everything compiles again.",
        "vLLM's torch_compile_cache: folders of the last seven days and their cache_key_factors.json, compared",
        "Give the value that changes the same value at each start.",
        in_the_servers_process("TT208", look),
    ),
    Check(
        "TT207", "FlashInfer's builds",
        "FlashInfer writes CUDA's folder into each build file; the same CUDA under another name builds all again.",
        "cuda_home in build.ninja files against CUDA_HOME, CUDA_PATH and nvcc; .ninja_log for what the builds took",
        "Set CUDA_HOME to the same folder at each start.",
    ),
    Check(
        "TT206", "caches: locks",
        "A run that was killed while compiling may leave a lock behind, and the next one waits for ever.",
        "lock files in the caches, /proc/locks, and whether any compiler runs",
        "Remove the lock that is named.",
    ),
    Check(
        "TT212", "TensorRT's engines",
        "An engine file serves one model, one card and one TensorRT; under a new name at each start it never hits.",
        "engine files with their age, the installed TensorRT",
        "Give the model or the cache a fixed name.",
    ),
)  # fmt: skip
