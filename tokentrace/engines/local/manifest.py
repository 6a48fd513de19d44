"""Tells a whole cached model from a damaged one: a list of its files with size, time and SHA-256.

The check at each start is cheap: every size and modification time, and the hash of small files and of the weights'
header. When a time differs (a copied or restored cache, or one that somebody wrote into) every file is hashed in
full; if all is well the new times are noted, so that the next start is quick again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

NAME = "tokentrace-manifest.json"
SCHEMA = 1
#: Raised when the folder that `convert` writes changes, so that older caches are converted again.
CONVERTER_VERSION = 1
_SMALL_BYTES = 8 << 20
_HEAD_BYTES = 1 << 16


def write(folder: Path, about: dict[str, Any]) -> None:
    """Note the files in `folder`, which must be complete. `about` is kept beside them."""
    files = {file.name: _describe(file) for file in sorted(folder.iterdir()) if file.is_file() and file.name != NAME}
    _save(folder, {"schema": SCHEMA, **about, "files": files})


def check(folder: Path) -> str | None:
    """None when the folder is whole, else one phrase that says what is wrong. Never raises."""
    try:
        noted = json.loads((folder / NAME).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = noted["files"]
        if noted["schema"] != SCHEMA or not files:
            return "its manifest is of another version"
        in_doubt = False
        for name, facts in files.items():
            status = (folder / name).stat()
            if status.st_size != facts["size"]:
                return f"{name} has {status.st_size} bytes instead of {facts['size']}"
            in_doubt = in_doubt or status.st_mtime_ns != facts["mtime_ns"]
            if _quick_hash(folder / name, status.st_size) != facts["quick"]:
                return f"{name} has changed"
        if in_doubt:
            for name, facts in files.items():
                if _full_hash(folder / name) != facts["sha256"]:
                    return f"{name} has changed"
            with contextlib.suppress(OSError):  # a read-only cache is hashed each time, and still usable
                for name, facts in files.items():
                    facts["mtime_ns"] = (folder / name).stat().st_mtime_ns
                _save(folder, noted)
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read: {error}"
    return None


def _describe(file: Path) -> dict[str, Any]:
    status = file.stat()
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "quick": _quick_hash(file, status.st_size),
        "sha256": _full_hash(file),
    }


def _quick_hash(file: Path, size: int) -> str:
    """Of the whole file when it is small, else of its first 64 KiB (the header of the weights) and its last."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        if size <= _SMALL_BYTES:
            digest.update(opened.read())
        else:
            digest.update(opened.read(_HEAD_BYTES))
            opened.seek(-_HEAD_BYTES, os.SEEK_END)
            digest.update(opened.read())
    return digest.hexdigest()


def _full_hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _save(folder: Path, value: dict[str, Any]) -> None:
    temporary = folder / f".{NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)
