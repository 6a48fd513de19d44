"""Layer 2: was anything compiled during the request that should have come from a cache?

Source: the agent's hooks on torch.compile (dynamo, aot_autograd, inductor, C++) and Triton. `compile X` is a phase of a
compilation, nested as the compilers nest; `cache X hit|miss|bypass` is a look-up, an instant. With nothing compiled the
layer is idle, says why, and still tells how the caches stand (`state.facts["caches"]`, see `_caches`). Caches that
tell hits and misses by their files only (FlashInfer, DeepGEMM, CUDA, HIP, MIOpen, torch extensions) are looked at
before and after the pass: `state.facts["cache_use"]`, see `_cache_entries`; their spans have `source` "files".

What vLLM's JIT monitor reports (Triton, CuTeDSL, TileLang) was compiled after its warm-up and held the requests up: it
has `after_warmup`, and layer 2 says so. Where only the report is known, `compile X` is an instant without a length.

Attributes: tokentrace.jit.compiler, .phase, .compile_id, .compile_ms, .key, .result, .cache, .saved_ms (what the hit
saved, as the compiler reckons it), .function, .reason (why it recompiled, failed or bypassed the cache), .cache_dir,
.after_warmup, .autotune_ms with .config and .candidates (of Triton's choice between them), .detail (what vLLM's monitor
tells with --jit-monitor-verbose).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokentrace.model import STATUS_ERROR, STATUS_UNSET, Attributes, Record
from tokentrace.probe import Columns, Finding, LayerState, ProbeContext, Raw
from tokentrace.probes._agent import FIX, AgentProbe, unseen_from_outside, without_agent
from tokentrace.probes._cache_entries import told
from tokentrace.probes._cache_entries.watch import CacheWatch
from tokentrace.probes._caches import VARIABLES, CacheFolder, cache_folders
from tokentrace.probes._request import window
from tokentrace.wording import duration, listed, plural, size

LAYER = 2
GROUP = "jit"
_FOLDER_OF = {"inductor": "inductor", "aot_autograd": "inductor", "cpp": "inductor", "triton": "triton"}
_REASONS = ("recompile_reason", "fail_reason", "cache_bypass_reason")


class JitProbe(AgentProbe):
    """See the module's docstring."""

    layer = LAYER

    def __init__(self) -> None:
        super().__init__()
        self._watch = CacheWatch()

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        if context.agent is None:
            return [unseen_from_outside(LAYER)]
        return [cache_finding(folder) for folder in _folders(self._watch, {})]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        agent = context.need_agent(FIX)
        self._enable(agent, GROUP, {"variables": VARIABLES})
        self._watch.begin(agent)

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        agent = context.need_agent(FIX)
        header = _header(agent.columns(GROUP))
        folders = _folders(self._watch, header.get("environment") or {})
        where = {folder.compiler: folder.path for folder in folders}
        first, last = window(context)
        raws = [raw for raw in agent.records(GROUP) if raw.start_ns < last and raw.end_ns >= first]
        records = [record for raw in raws if (record := _record(raw, where)) is not None]
        uses, compiled = self._watch.end(folders, last)
        records += compiled
        self._conclude(context, raws, header)
        if compiled and self.state.status == "idle":
            self.state.status, self.state.reason = "seen", ""
        self.state.facts["caches"] = [folder.as_dict() for folder in folders]
        self.state.facts.update(told.facts(uses, context.pass_name))
        done = told.line(uses)
        self.state.facts["tokentrace.jit.caches"] = f"{done}; {caches_text(folders)}" if done else caches_text(folders)
        self.state.facts["findings"] = [
            finding.sentence for finding in map(cache_finding, folders) if finding.status in ("warn", "fail")
        ]
        self.state.facts["findings"] += late_sentences(raws)
        missing = without_agent(context, "engine", "worker")
        if missing is not None and self.state.status == "idle":
            raise missing
        if missing is not None:
            self.state.reason = "; ".join(filter(None, [str(missing), self.state.reason]))
        return records

    def _conclude(self, context: ProbeContext, raws: list[Raw], header: Mapping[str, Any]) -> None:
        facts = self.state.facts
        outermost = [r for r in raws if r.name == "compile" and r.data.get("depth") == 0]
        untimed = [r for r in raws if r.name == "report" and r.data.get("depth") == 0 and not r.data.get("refused")]
        looked_up = [r for r in raws if r.name == "cache"]
        facts["compilations"] = len(outermost) + len(untimed)
        if untimed:
            facts["compilations_of_unknown_length"] = len(untimed)
        facts["compile_ns"] = sum(r.end_ns - r.start_ns for r in outermost)
        if tuned := [r for r in raws if r.name == "tune"]:
            facts["autotunings"], facts["autotune_ns"] = len(tuned), sum(r.end_ns - r.start_ns for r in tuned)
        for result in ("hit", "miss", "bypass", "disabled"):
            facts[f"cache_{result}"] = sum(r.data.get("result") == result for r in looked_up)
        saved = [int(r.data["saved_ns"]) for r in looked_up if r.data.get("saved_ns") is not None]
        if saved:
            facts["saved_ns"] = sum(saved)
        watched, missing, errors = (list(header.get(n) or ()) for n in ("watched", "missing", "errors"))
        facts.update(watched=watched, missing=missing, errors=errors)
        notes = []
        if not raws:
            self.state.status = "idle"
            if _compiles(context):
                notes.append("the model is compiled, and nothing was left to compile for this request")
            elif not header and _compiles(context) is None:
                notes.append("nothing was compiled; which hooks were in place was not reported")
            else:
                notes.append("eager: nothing to compile")
        notes += self._monitor(context, raws)
        if missing:
            notes.append(f"this version lacks {', '.join(missing)}, so what passes there is not seen")
        if errors:
            notes.append(f"{len(errors)} events could not be read ({errors[0]})")
        self.state.reason = "; ".join(notes)

    def _monitor(self, context: ProbeContext, raws: Sequence[Raw]) -> list[str]:
        """How vLLM's JIT monitor stands; empty where the engine has none, or the layer has more to tell."""
        monitor = context.agent.facts().get("jit_monitor") if context.agent is not None else None
        if not isinstance(monitor, Mapping):
            return []
        mode = f" ({monitor['mode']})" if monitor.get("mode") else ""
        self.state.facts["jit_monitor"] = f"{monitor.get('state')}{mode}"
        if monitor.get("state") == "active":
            return ["vLLM's JIT monitor is active and reported nothing"] if not raws else []
        unwatched = [str(one) for one in monitor.get("unwatched") or ()]
        if not unwatched:
            return []
        return [f"what {listed(unwatched)} may compile is not seen: vLLM's JIT monitor is not active"]


def _header(of_processes: Sequence[Columns]) -> dict[str, Any]:
    """What the processes say of their hooks, as one."""
    header: dict[str, Any] = {}
    for columns in of_processes:
        for name, value in columns.header.items():
            if isinstance(value, list):
                header[name] = list(dict.fromkeys([*header.get(name, ()), *value]))
            else:
                header[name] = value
    return header


def _compiles(context: ProbeContext) -> bool | None:
    """Whether the engine compiles the model, None where it does not say."""
    fact = context.agent.facts().get("compile") if context.agent is not None else None
    return None if fact is None else bool(fact)


def _folders(watch: CacheWatch, environment: Mapping[str, str]) -> list[CacheFolder]:
    """The caches of the serving process: with its environment as the agent told it, else as this process has it."""
    if not environment:
        environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return cache_folders(environment, root=watch.root, mounts=watch.mounts)


def _record(raw: Raw, where: Mapping[str, str]) -> Record | None:
    data = raw.data
    compiler = str(data.get("compiler", ""))
    attributes: Attributes = {"tokentrace.jit.compiler": compiler}
    for name, source in (("phase", "phase"), ("compile_id", "compile_id"), ("key", "key"), ("cache", "cache"),
                         ("result", "result"), ("function", "co_name")):  # fmt: skip
        if data.get(source) not in (None, ""):
            attributes[f"tokentrace.jit.{name}"] = data[source]
    reason = next((str(data[n]) for n in _REASONS if data.get(n) not in (None, "", "None")), "")
    if reason:
        attributes["tokentrace.jit.reason"] = reason
    folder = where.get(_FOLDER_OF.get(compiler, ""))
    if folder:
        attributes["tokentrace.jit.cache_dir"] = folder
    if data.get("after_warmup"):
        attributes["tokentrace.jit.after_warmup"] = True
    for name in ("config", "candidates"):
        if data.get(name):
            attributes[f"tokentrace.jit.{name}"] = data[name]
    if data.get("detail"):
        attributes["tokentrace.jit.detail"] = data["detail"]
    status, message = STATUS_UNSET, ""
    if raw.name == "report":
        name = f"compile {data.get('phase') or compiler or 'unknown'}"
        attributes["tokentrace.jit.length"] = "unknown: vLLM's JIT monitor does not tell how long it took"
        if data.get("refused"):
            name = f"compile refused {data.get('phase') or compiler}"
            attributes["tokentrace.jit.length"] = "none: --jit-monitor-mode error ended the step instead"
            status, message = STATUS_ERROR, "vLLM was told to fail on a compilation after its warm-up"
    elif raw.name == "tune":
        name = f"compile autotune {data.get('phase') or 'unknown'}"
        attributes["tokentrace.jit.autotune_ms"] = (raw.end_ns - raw.start_ns) / 1e6
    elif raw.name == "compile":
        name = f"compile {data.get('phase') or compiler or 'unknown'}"
        attributes["tokentrace.jit.compile_ms"] = (raw.end_ns - raw.start_ns) / 1e6
        if data.get("unfinished"):
            attributes["tokentrace.jit.unfinished"] = True
        for stage, took in (data.get("stages_ns") or {}).items():
            attributes[f"tokentrace.jit.stage.{stage}_ms"] = took / 1e6
    elif raw.name == "cache":
        name = f"cache {data.get('cache') or compiler} {data.get('result') or 'unknown'}"
        if data.get("saved_ns") is not None:
            attributes["tokentrace.jit.saved_ms"] = data["saved_ns"] / 1e6
    else:
        return None
    return Record(name, LAYER, raw.start_ns, raw.end_ns, attributes, process=raw.process, thread=raw.thread,
                  join="time", status=status, status_message=message)  # fmt: skip


_COMPILERS = {"triton": "Triton", "cutedsl": "CuTeDSL", "tilelang": "TileLang"}
_WARM = "send it such a request after each start, or extend its warm-up to this shape"


def late_sentences(raws: Sequence[Raw]) -> list[str]:
    """What was compiled or tuned after vLLM's warm-up was over, or refused then; without a full stop."""
    warm = [raw for raw in raws if raw.data.get("after_warmup")]
    tuned = [raw for raw in warm if raw.name == "tune"]
    late = [raw for raw in warm if raw.name in ("compile", "report") and not any(_lies_in(raw, one) for one in tuned)]
    made, refused = ([raw for raw in late if bool(raw.data.get("refused")) is one] for one in (False, True))
    found = []
    if tuned:
        spent = sum(raw.end_ns - raw.start_ns for raw in tuned)
        found.append(f"{plural(len(tuned), 'kernel')} {'were' if len(tuned) > 1 else 'was'} tuned after vLLM's warm-up "
                     f"was over, a spike in latency, which took {duration(spent)} with the compiling of the "
                     f"configurations ({_named(tuned)}): {_WARM}")  # fmt: skip
    if made:
        spent = sum(raw.end_ns - raw.start_ns for raw in made if raw.data.get("depth") == 0)
        untimed = any(raw.name == "report" for raw in made)
        took = f", which took {'at least ' * untimed}{duration(spent)}" if spent else ", for an unknown time"
        verb = "were" if len(made) > 1 else "was"
        found.append(f"{plural(len(made), 'kernel')} {verb} compiled after vLLM's warm-up was over, a spike in latency"
                     f"{took} ({_named(made)}): {_WARM}")  # fmt: skip
    if refused:
        found.append(f"--jit-monitor-mode error ended {plural(len(refused), 'step')} because of a compilation after "
                     f"vLLM's warm-up ({_named(refused)}): {_WARM}")  # fmt: skip
    return found


def _lies_in(raw: Raw, other: Raw) -> bool:
    if (raw.process, raw.thread) != (other.process, other.thread):
        return False
    return other.start_ns <= raw.start_ns and raw.end_ns <= other.end_ns


def _named(raws: Sequence[Raw]) -> str:
    names = [f"{raw.data.get('phase') or 'unknown'} by {_COMPILERS.get(str(raw.data.get('compiler')), 'unknown')}"
             for raw in raws]  # fmt: skip
    return listed(list(dict.fromkeys(names)))


def caches_text(folders: Sequence[CacheFolder]) -> str:
    """How the compilers' caches stand, on one line: those that hold something, with size, age and place."""
    held = []
    for folder in folders:
        if folder.exists and folder.files:
            age = folder.age_s()
            changed = f", written {duration(int(age * 1e9))} ago" if age is not None else ""
            about = "" if folder.complete else "at least "
            held.append(
                f"{folder.compiler} {about}{size(folder.bytes or 0)} in {plural(folder.files, 'file')}{changed} "
                f"({folder.path})"
            )
    if held:
        return "; ".join(held)
    return f"no compile cache holds anything yet (looked for {listed([f.compiler for f in folders])})"


_VOLATILE = {
    "tmpfs": "which a restart of the machine empties",
    "ramfs": "which a restart of the machine empties",
    "overlay": "which goes when this container goes",
}


def cache_finding(folder: CacheFolder) -> Finding:
    """One sentence on a cache folder: does it keep what is compiled until the next start?"""
    where = f"{folder.path} ({folder.variable if folder.source == 'environment' else 'default'})"
    evidence = f"{folder.files} files, {folder.bytes} bytes" if folder.exists else ""
    if folder.disabled:
        return Finding(LAYER, f"the {folder.compiler} cache is off: {folder.disabled}", evidence,
                       f"unset {folder.disabled.partition('=')[0]}", "warn")  # fmt: skip
    if folder.problem:
        return Finding(LAYER, f"the {folder.compiler} cache {where}: {folder.problem}", evidence,
                       f"set {folder.variable} to a folder of your own", "warn")  # fmt: skip
    if folder.exists and folder.writable is False:
        return Finding(LAYER, f"the {folder.compiler} cache {where} cannot be written, so every start compiles again",
                       evidence, f"set {folder.variable} to a folder that this user can write", "warn")  # fmt: skip
    if not folder.exists:
        return Finding(LAYER, f"the {folder.compiler} cache {where} does not exist yet: nothing was compiled into it")
    if folder.filesystem in _VOLATILE and folder.files:
        return Finding(LAYER, f"the {folder.compiler} cache {where} lies on {folder.filesystem}, "
                       f"{_VOLATILE[folder.filesystem]}", evidence, f"set {folder.variable} to a lasting volume",
                       "warn")  # fmt: skip
    return Finding(LAYER, f"the {folder.compiler} cache {where} can be used", evidence)
