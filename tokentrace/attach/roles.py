"""Which processes make up a server, and what each of them does: by titles, command lines and the process tree.

vLLM names its processes ("VLLM::EngineCore_DP0", "VLLM::Worker_TP1", "VLLM::ApiServer_0") where the package
setproctitle is there; else they are told by their place in the tree (server, its engine, the engine's workers).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokentrace.attach import versions
from tokentrace.attach.found import Role, ServerProcess
from tokentrace.host import proc

_TITLE = re.compile(r"VLLM::(\w+)")
_RANK = re.compile(r"_((?:DP|PP|TP|EP|DCP|PCP)\d+)")
_LOCAL = "tokentrace.engines.local"
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker", "_DPCoordinator")
#: Deeper trees than this are not a server's.
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Looked:
    """One process as it was when it was looked at."""

    pid: int
    parent: int
    uid: int
    arguments: tuple[str, ...]

    @property
    def title(self) -> str:
        return " ".join(self.arguments)


def look(pid: int) -> Looked | None:
    """None when it is gone or a kernel thread."""
    try:
        status = proc.status(pid)
        arguments = proc.command_line(pid)
    except OSError:
        return None
    return Looked(pid, status.parent, status.uid, tuple(arguments)) if arguments and not status.ended else None


def _module(arguments: Sequence[str]) -> str:
    """NAME of `python -m NAME`, else "". An option -m of another program (pytest -m vllm) says nothing."""
    before = ""
    for number, part in enumerate(arguments[1:], 1):
        if part == "-m":
            return arguments[number + 1] if number + 1 < len(arguments) else ""
        if not part.startswith("-") and before not in ("-X", "-W"):
            return ""  # a script; what follows is its own
        before = part
    return ""


def engine_of(one: Looked) -> str:
    """vllm or tokentrace when the process's own command line says so, else ""."""
    head = one.arguments[:6]
    names = [part.rpartition("/")[2] for part in head]
    if _TITLE.match(one.title):
        return "vllm"
    if _module(head).split(".")[0] == "vllm":
        return "vllm"
    if any(part.endswith(("/vllm/entrypoints/openai/api_server.py", "/vllm/entrypoints/cli/main.py")) for part in head):
        return "vllm"
    if "vllm" in names[:3] and "serve" in head:
        return "vllm"
    named = "tokentrace" in names[:3] or any("tokentrace.cli" in part for part in head)
    if named and "serve" in one.arguments:
        return "tokentrace"
    if any(_LOCAL in part for part in head):
        return "tokentrace"
    return ""


def engine_inside(pid: int) -> str:
    """vllm when the process has loaded vLLM's compiled code: a program that embeds it. "" when it cannot be seen."""
    with contextlib.suppress(OSError):
        if any("/vllm/" in one.path and one.path.endswith(".so") for one in proc.maps(pid)):
            return "vllm"
    return ""


def top_of(pid: int) -> tuple[Looked, str] | None:
    """The server's top process above `pid`, of the same user, and its engine; None when there is no server here."""
    one = look(pid)
    if one is None:
        return None
    best: tuple[Looked, str] | None = None
    for _ in range(_DEEPEST):
        engine = engine_of(one)
        if not engine and (best is None or not _is_front(best[0])):
            engine = engine_inside(one.pid)
        if engine and (best is None or best[1] == engine):
            best = (one, engine)
        parent = look(one.parent) if one.parent > 1 else None
        if parent is None or parent.uid != one.uid or (best is not None and not _goes_on(best[0], parent)):
            return best
        one = parent
    return best


def _goes_on(child: Looked, parent: Looked) -> bool:
    """Whether the parent may be part of the server: another part by name, or the maker of an engine or worker."""
    return bool(engine_of(parent)) or not _is_front(child)


def _is_front(one: Looked) -> bool:
    """Whether it is a server's first process by its own command line, not one that a server made."""
    return bool(engine_of(one)) and not _TITLE.match(one.title)


def members(top: Looked, engine: str, listening: Iterable[int]) -> list[ServerProcess]:
    """The server's processes from the top down, those that only help left out."""
    tree = _tree(top)
    listens = set(listening)
    titled = any(_TITLE.match(one.title) for one, _ in tree)
    roles: dict[int, Role] = {}
    for one, above in tree:
        role = _role(one, above, engine, roles, titled, listens)
        if role is not None:
            roles[one.pid] = role
    if any(_kind(one) == "api" for one, _ in tree if one.pid != top.pid):
        roles.pop(top.pid, None)  # it only watches the API servers it made
    if list(roles.values()) == ["api"]:
        roles[top.pid] = "single"
    ranks: dict[int, str] = {}
    for one, above in tree:  # parents first: a worker that does not say so is of the rank of its engine
        own, engine_s = _rank(one), ranks.get(above, "") if roles.get(one.pid) == "worker" else ""
        ranks[one.pid] = own if "dp" in own else f"{engine_s} {own}".strip()
    found = [_process(one, roles[one.pid], ranks[one.pid]) for one, _ in tree if one.pid in roles]
    order = {"api": 0, "single": 0, "engine": 1, "worker": 2}
    return sorted((one for one in found if one is not None), key=lambda one: (order[one.role], one.rank, one.pid))


def _role(one: Looked, above: int, engine: str, roles: dict[int, Role], titled: bool, listens: set[int]) -> Role | None:
    if not roles:
        # An engine core whose API server has ended is the first of what is left.
        return "single" if engine == "tokentrace" else _kind(one) or "api"
    if any(word in one.title for word in _HELPERS) or engine == "tokentrace":
        return None
    kind = _kind(one)
    if kind is not None or titled:
        return kind
    if one.pid in listens and engine_of(one):
        return "api"
    # No titles here: told by place. A helper such as a compiler is no Python that has loaded the engine.
    if above not in roles or not (engine_inside(one.pid) or "multiprocessing" in one.title):
        return None
    return {"api": "engine", "engine": "worker"}.get(roles[above])  # type: ignore[return-value]


def _kind(one: Looked) -> Role | None:
    title = _TITLE.match(one.title)
    name = title[1].lower() if title else ""
    for start, role in (("apiserver", "api"), ("enginecore", "engine"), ("worker", "worker")):
        if name.startswith(start):
            return role  # type: ignore[return-value]
    return None


def _rank(one: Looked) -> str:
    return " ".join(part.lower() for part in _RANK.findall(one.title.split()[0]))


def _process(one: Looked, role: Role, rank: str) -> ServerProcess | None:
    try:
        started = proc.started(one.pid)
    except OSError:
        return None
    executable = python = ""
    with contextlib.suppress(OSError):
        executable = proc.executable(one.pid)
        python = versions.python_of(one.pid, executable)
    return ServerProcess(one.pid, role, one.title, started, python, executable, rank)


def _tree(top: Looked) -> list[tuple[Looked, int]]:
    """The top process and its descendants of the same user, parents first, each with its parent's pid."""
    children: dict[int, list[Looked]] = {}
    for pid in proc.all_pids():
        one = look(pid)
        if one is not None and one.uid == top.uid:
            children.setdefault(one.parent, []).append(one)
    found, at = [(top, 0)], 0
    while at < len(found):
        here = found[at][0]
        found += [(one, here.pid) for one in children.get(here.pid, ())]
        at += 1
    return found
