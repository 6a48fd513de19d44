"""Caches with one file or folder for each key: HIP's comgr, CUDA's driver, DeepGEMM.

HIP       llvmcache-<SHA-256> for each step of a compilation (to bitcode, to an object, to a code object), beside
          llvmcache.timestamp; written to amdgpu-compiler-*.tmp.o first and renamed when it is whole
CUDA      <hex>/<hex>/<hash> for each module that the driver compiled from PTX, beside `index`
DeepGEMM  cache/kernel.<name>.<hash>/ with kernel.cu, written before the compiler starts, and kernel.cubin, written
          by it; the folder is made under tmp/ and renamed, which keeps both times
"""

from __future__ import annotations

import re

from tokentrace.probes._cache_entries import Bounds, Entries, Entry, is_folder, listing, shown, written_ns

_COMGR = re.compile(r"llvmcache-(.+)")
_HEX = re.compile(r"[0-9a-f]{1,2}")
_CUDA = re.compile(r"[0-9a-f]{6,64}")
#: No kernel is compiled in less.
_LEAST_NS = 10_000_000
_KERNEL = re.compile(r"kernel\..+\.[0-9a-f]{8,}")


def comgr(folder: str, told: str, bounds: Bounds) -> Entries:
    """Entries of AMD_COMGR_CACHE_DIR. Never raises."""
    found = Entries()
    for entry in listing(folder, found, bounds):
        match = _COMGR.fullmatch(entry.name)
        if match and (made := written_ns(entry)) is not None:
            found.entries.append(Entry(shown(match[1]), f"{told}/{entry.name}", made))
    return found


def cuda(folder: str, told: str, bounds: Bounds) -> Entries:
    """Entries of CUDA_CACHE_PATH. Never raises."""
    found = Entries()
    for first in _matching(folder, _HEX, found, bounds):
        for second in _matching(f"{folder}/{first}", _HEX, found, bounds):
            for entry in listing(f"{folder}/{first}/{second}", found, bounds):
                if _CUDA.fullmatch(entry.name) and (made := written_ns(entry)) is not None:
                    key = f"{first}/{second}/{entry.name}"
                    found.entries.append(Entry(key, f"{told}/{key}", made))
    return found


def deep_gemm(folder: str, told: str, bounds: Bounds) -> Entries:
    """Entries of DG_JIT_CACHE_DIR. Never raises."""
    found = Entries()
    for name in _matching(f"{folder}/cache", _KERNEL, found, bounds):
        times = {}
        for entry in listing(f"{folder}/cache/{name}", found, bounds):
            if entry.name in ("kernel.cu", "kernel.cubin") and (made := written_ns(entry)) is not None:
                times[entry.name] = made
        begin, end = times.get("kernel.cu"), times.get("kernel.cubin")
        if end is not None:
            # A cache that was copied without its times has both written at once, or the wrong way round.
            spent = end - begin if begin is not None and end - begin > _LEAST_NS else None
            path = f"{told}/cache/{name}/kernel.cubin"
            found.entries.append(Entry(shown(name.removeprefix("kernel.")), path, end, spent))
    return found


def _matching(folder: str, wanted: re.Pattern[str], found: Entries, bounds: Bounds) -> list[str]:
    """Names of the folders below that fit."""
    return [e.name for e in listing(folder, found, bounds) if is_folder(e) and wanted.fullmatch(e.name)]
