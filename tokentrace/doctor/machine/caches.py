"""Layer 2: can every cache of compiled code be written, does it outlive a restart, is there room, is it switched on?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokentrace.doctor.check import ENGINE_DOWN, Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import folders, surroundings, torches
from tokentrace.doctor.machine.situation import in_the_servers_process
from tokentrace.doctor.machine.view import View
from tokentrace.probes._caches import RELATIVE, CacheFolder
from tokentrace.wording import duration, listed, plural, size

_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: What happens to files on these; an overlay is a container's own layer.
_VOLATILE = {
    **dict.fromkeys(_MEMORY, "memory, lost at a reboot or with the container"),
    "overlay": "the container's own layer, lost when the container goes",
    "fuse.fuse-overlayfs": "the container's own layer, lost when the container goes",
    "aufs": "the container's own layer, lost when the container goes",
}
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs", "fuse.sshfs",
            "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.beegfs", "fuse.ceph")  # fmt: skip
#: Variables that leave the folder in use, so that it must still be writable: triton's knobs.py, and torch's
#: _inductor/config.py, where the graphs' cache is one part of inductor's.
_PASSED_OVER = (
    ("TRITON_ALWAYS_COMPILE", ("1", "true", "yes", "on", "y"), "triton"),
    ("TORCHINDUCTOR_FX_GRAPH_CACHE", ("0",), "inductor"),
)
#: The variables that several default folders lie below, the nearest first, each with a value that mostly works.
_ABOVE = {"XDG_CACHE_HOME": "/var/tmp/cache", "HOME": "/tmp"}
#: One compilation of a large model writes some hundred MB.
_LITTLE_BYTES = 2**30
_LITTLE_SHARE = 0.02


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT201, TT202, TT203, TT204 and TT210 from one look at the folders."""
    if view.hidden:
        return [
            unknown(check, f"the server's caches cannot be looked at: {view.hidden}", view.fix)
            for check in ("TT201", "TT202", "TT203", "TT204", "TT210")
        ]
    if why := torches.without_torch(view):
        return [skip("TT201", why)]
    found = folders.caches(view)
    container = surroundings.look(view).container
    return [writable(found, view), lasting(found, container), room(found), network(found),
            switched_off(found, view.environ)]  # fmt: skip


def table(found: Sequence[CacheFolder]) -> list[str]:
    """One line per cache: path, its source, size, age, file system."""
    return [f"{folders.named(f)}: {state(f)}" for f in found]


def state(folder: CacheFolder) -> str:
    """How a folder stands, in a few words."""
    if folder.disabled:
        return f"off ({folder.disabled})"
    if folder.problem:
        return folder.problem
    where = f" on {folder.filesystem}" if folder.filesystem else ""
    if not folder.exists:
        return f"not there yet{where}"
    if not folder.files and not folder.complete:
        return f"not looked through in time{where}"
    least = "" if folder.complete else "at least "
    age = folder.age_s()
    newest = f", newest {duration(age * 1e9)} old" if age is not None else ""
    return f"{least}{plural(folder.files or 0, 'file')}, {size(folder.bytes or 0)}{newest}{where}"


def in_use(folder: CacheFolder) -> bool:
    """Does it hold anything? A folder that could not be looked through in time is taken to."""
    return folder.exists and not folder.disabled and bool(folder.files or not folder.complete)


def writable(found: Sequence[CacheFolder], view: View) -> Result:
    """TT201: every folder that cannot be used, at once."""
    bad = [f for f in found if not f.disabled and (f.writable is False or f.problem)]
    if not bad:
        return ok("TT201", f"{plural(len(found), 'cache')} of compiled code can be written", *table(found))
    lines = [f"{folders.named(f)}: {f.problem or f.why_not}" for f in bad]
    above = {name: [f for f in bad if _above(f, view.environ) == name] for name in _ABOVE}
    if all(f.problem == RELATIVE for f in bad):
        return _relative(bad, above, view.environ, lines)
    below = [f for name in _ABOVE for f in above[name]]
    detail = f"{plural(len(bad), 'cache')} of compiled code cannot be used: {_each(bad, below)}"
    fixes = [f"export {f.variable}={_example(f)}" for f in bad if f not in below]
    for name, those in above.items():
        if not those:
            continue
        detail += f" ({name} is {view.environ[name]}, which {view.whose} cannot write)"
        one = f"export {those[0].variable}={_example(those[0])}"
        both = f"set {name} to a folder that can be written: export {name}={_ABOVE[name]}"
        fixes.insert(0, one if len(those) == 1 else both)
    breaks = [f for f in bad if f.compiler in folders.RAISING and not f.files and f.problem != RELATIVE]
    return Result("TT201", "fail" if breaks else "warn", detail, "; ".join(dict.fromkeys(fixes)), tuple(lines),
                  ENGINE_DOWN if breaks else ())  # fmt: skip


def _above(folder: CacheFolder, environ: Mapping[str, str]) -> str:
    """The variable whose folder a default one lies in, "" when none of _ABOVE decides it."""
    if folder.source != "default":
        return ""
    return next((n for n in _ABOVE if environ.get(n) and folder.path.startswith(environ[n].rstrip("/") + "/")), "")


def _each(bad: Sequence[CacheFolder], below: Sequence[CacheFolder]) -> str:
    """Their compilers, with the reasons; for those below one variable it is told of all at once elsewhere."""
    reasons = {f.problem or f.why_not for f in bad if f not in below}
    if len(reasons) < 2 and not below:
        return listed([f.compiler for f in bad], len(bad)) + "".join(f" ({reason})" for reason in reasons)
    named = [f.compiler if f in below else f"{f.compiler} ({f.problem or f.why_not})" for f in bad]
    return listed(named, len(bad))


def _example(folder: CacheFolder) -> str:
    return f"/var/tmp/{folder.compiler.replace(' ', '-')}"


def _relative(
    found: Sequence[CacheFolder], above: Mapping[str, list[CacheFolder]], environ: Mapping[str, str],
    lines: Sequence[str],
) -> Result:  # fmt: skip
    """Nothing breaks by it, and what was compiled is found again only from the same folder."""
    bases = [name for name, those in above.items() if those]
    own = [f for f in found if not any(f in above[name] for name in bases)]
    variables = [*(f"{name}={environ[name]}" for name in bases), *(f"{f.variable}={f.path}" for f in own)]
    fixes = [*(f"set {name} to a path that begins with /" for name in bases),
             *(f"export {f.variable}={_example(f)}" for f in own)]  # fmt: skip
    many = len(variables) > 1
    return warn("TT201", f"{listed(variables)} {'are relative paths' if many else 'is a relative path'}: the cache "
                "lies wherever the server is started, and a start in another folder compiles again",
                "; ".join(fixes), *lines)  # fmt: skip


def lasting(found: Sequence[CacheFolder], container: str) -> Result:
    """TT202: caches whose content is gone after the next restart."""
    lost = [f for f in found if at_risk(f)]
    if not lost:
        return ok("TT202", "nothing that was compiled lies where a restart would lose it")
    lines = [f"{folders.named(f)}: {state(f)}: {_VOLATILE[f.filesystem]}" for f in lost]
    names = listed([f.compiler for f in lost])
    where = listed(sorted({f.filesystem for f in lost}))
    verb = "compiled" if any(in_use(f) for f in lost) else "will compile"
    detail = f"what {names} {verb} lies on {where} and is lost on restart, so each start compiles again"
    first = lost[0]
    fix = f"set {first.variable} to a folder on a disk that stays"
    if container:
        fix = f"mount a volume there, for instance -v tokentrace-cache:{first.path}"
    return warn("TT202", detail, fix, *lines)


def at_risk(folder: CacheFolder) -> bool:
    """Would a restart lose what is in it, or what will be?

    An empty folder counts in memory, and wherever a variable of its own chose it. In a container's own layer a default
    one that is empty does not: there every folder lies, whether a compiler will ever use it or not.
    """
    if folder.filesystem not in _VOLATILE or folder.disabled:
        return False
    chosen = folder.source == "environment" and folder.variable != "TMPDIR"
    return in_use(folder) or chosen or (folder.exists and folder.filesystem in _MEMORY)


def room(found: Sequence[CacheFolder]) -> Result:
    """TT203: disks that are nearly full. A quota is seen only where the file system reports it as its size."""
    tight = [f for f in found if not f.disabled and f.free_bytes is not None and f.free_share is not None
             and not f.read_only and (f.free_bytes < _LITTLE_BYTES or f.free_share < _LITTLE_SHARE)]  # fmt: skip
    known = [f.free_bytes for f in found if f.free_bytes is not None]
    if not known:
        return unknown("TT203", "the free room of no cache's disk can be read")
    if not tight:
        return ok("TT203", f"there are {size(min(known))} free or more where the caches lie")
    lines = [f"{folders.named(f)}: {size(f.free_bytes or 0)} free ({f.free_share or 0:.1%} of bytes or inodes)"
             for f in tight]  # fmt: skip
    return warn("TT203", f"the disk of {listed([f.compiler for f in tight])} is nearly full, compiling may fail",
                f"df -h {tight[0].path}; df -i {tight[0].path}; then free some room", *lines)  # fmt: skip


def network(found: Sequence[CacheFolder]) -> Result:
    """TT204: caches on a network file system, where locks and file times are not to be relied on."""
    far = [f for f in found if f.filesystem in _NETWORK and in_use(f)]
    if not far:
        return ok("TT204", "no cache in use lies on a network file system")
    first = far[0]
    return warn("TT204", f"the cache of {listed([f.compiler for f in far])} lies on {first.filesystem}: file locks may "
                "hang and file times drift, so things compile again", f"set {first.variable} to a local disk",
                *table(far))  # fmt: skip


def switched_off(found: Sequence[CacheFolder], environ: Mapping[str, str]) -> Result:
    """TT210: caches that a variable switches off, or has passed over although they are still written."""
    off = [(f.compiler, f.disabled) for f in found if f.disabled]
    for variable, values, compiler in _PASSED_OVER:
        value = environ.get(variable, "")
        if value.strip().lower() in values and compiler not in [name for name, _ in off]:
            off.append((compiler, f"{variable}={value}"))
    if not off:
        return ok("TT210", "no variable switches a cache off")
    names = [told.partition("=")[0] for _, told in off]
    detail = f"the cache of {listed([name for name, _ in off])} is switched off, so each start compiles again"
    return warn("TT210", detail, f"unset {' '.join(names)}", *(told for _, told in off))


CHECKS = (
    Check(
        "TT201", "caches: writable",
        "inductor, Triton, vLLM, FlashInfer and DeepGEMM stop when they cannot write; CUDA, HIP and MIOpen compile "
        "again each time.",
        "each cache's folder and the variable that decides it, for the serving process's environment, user and "
        "mounts; size, age and file system",
        "Set HOME, or each named variable, to a folder that can be written.",
        in_the_servers_process("TT201", look),
    ),
    Check(
        "TT202", "caches: lasting",
        "A container's own layer and memory file systems are empty after a restart; each start then compiles for "
        "minutes.",
        "the file system under each cache that holds anything, lies in memory or was chosen by a variable",
        "Mount a volume at the folder, or set its variable to a disk that stays.",
    ),
    Check(
        "TT203", "caches: room",
        "A full disk ends a compilation half-way and leaves broken files.",
        "free bytes and inodes of each cache's file system; quotas are not seen",
        "Free some room, or move the cache.",
    ),
    Check(
        "TT204", "caches: network",
        "Compilers lock files and compare their times; over a network locks may hang and times drift.",
        "the file system under each cache",
        "Set the cache's variable to a local disk.",
    ),
    Check(
        "TT210", "caches: switched on",
        "Variables for debugging, such as TORCHINDUCTOR_FORCE_DISABLE_CACHES, make each start compile all again.",
        "the variables of the serving process",
        "Unset the variable.",
    ),
)  # fmt: skip
