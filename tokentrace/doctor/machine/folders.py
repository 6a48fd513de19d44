"""The caches of compiled code that the serving process uses, with that process's environment, rights and mounts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokentrace.doctor.machine.view import View
from tokentrace.probes._caches import CacheFolder, User, cache_folders

#: All walks together have to fit into the time of a static check.
_SECONDS_EACH = 0.1

#: Compilers that raise when their folder cannot be written; the others just compile again.
RAISING = frozenset(("inductor", "triton", "vLLM", "FlashInfer", "DeepGEMM", "torch extensions", "TensorRT-LLM"))


def caches(view: View) -> list[CacheFolder]:
    """Bounded walks, nothing is written. Of a process that may not be looked into: this process's."""
    return cache_folders(
        environment(view), root=view.root, mounts=view.mounts, max_seconds=_SECONDS_EACH, user=_user(view)
    )


def environment(view: View) -> Mapping[str, str]:
    """The view's environment, with the home folder that its user has where HOME is not set."""
    if view.environ.get("HOME") or not view.pid:
        return view.environ
    user = _user(view)
    for line in view.text("/etc/passwd").splitlines():
        fields = line.split(":")
        if user is not None and len(fields) > 5 and fields[2] == str(user.uid):
            return {**view.environ, "HOME": fields[5]}
    return {**view.environ, "HOME": "/"}  # where a container's unknown user lands


def _user(view: View) -> User | None:
    """Another process's user; None for this process, whose rights the kernel tells itself."""
    if not view.pid or view.hidden:
        return None
    status = view.own("status")
    uid = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    gid = re.search(r"^Gid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    more = re.search(r"^Groups:\s+([\d ]*)$", status, re.MULTILINE)
    if not uid or not gid:
        return None
    return User(int(uid[1]), frozenset({int(gid[1]), *(int(g) for g in (more[1].split() if more else ()))}))


def named(folder: CacheFolder) -> str:
    """inductor: /tmp/torchinductor_me (TORCHINDUCTOR_CACHE_DIR, default)."""
    return (
        f"{folder.compiler}: {folder.path} ({folder.variable}{'' if folder.source == 'environment' else ', default'})"
    )
