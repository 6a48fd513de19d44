"""What attaching would do, told before it is done: the depth, the processes, the functions, the layers.

Nothing is touched for it. Whether a function is really there is only known inside the process; one that is not
disables what it was for, and the report says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tokentrace.attach import debugger
from tokentrace.attach.attached import check_method, refusal
from tokentrace.attach.found import Depth, Found, Role, ServerProcess
from tokentrace.attach.inject import ways_for
from tokentrace.attach.obstacles import PLUGIN_FIX, no_agent, obstacle
from tokentrace.attach.why import NOTHING, Why, in_one, why_not_deeper
from tokentrace.layers import Layer, load
from tokentrace.probe import ProbeContext
from tokentrace.registry import create

SCHEMA = "tokentrace.attach/1"
_FROM_OUTSIDE = {
    8: "the client's side",
    7: "what the server's /tokenize says, if it has that",
    6: "what changes in the server's /metrics, if it has them",
}
_TOLD = "queue, prefill and decoding, by the server's own span of each request"
_FROM_INSIDE = {
    8: "both sides, each chunk",
    7: "template, encoding, and decoding token by token",
    6: "waiting, each step, its batch and KV blocks",
    5: "forward pass and sampling; its modules in the deep pass",
    4: "torch.profiler around single steps of the deep pass",
    3: "torch.profiler around single steps of the deep pass",
    2: "compiling and its caches, where something is compiled",
}


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """`way`: how the agent gets in: waits (it is there), borrow, remote_exec, gdb; "" not at all, as `why` says.
    taken: there is one, and attaching is refused, as the plan says."""

    process: ServerProcess
    way: str
    why: Why = NOTHING


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """`seen`: whether it is expected to be seen. `what`: what of it, or why not."""

    number: int
    title: str
    seen: bool
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`whys`: why it would not be deeper. `wraps`: role -> functions, as "module:Class.function". `refused`: why
    attaching is refused as things stand."""

    found: Found
    method: str
    depth: Depth
    whys: list[Why] = field(default_factory=list)
    processes: list[PlannedProcess] = field(default_factory=list)
    wraps: dict[str, list[str]] = field(default_factory=dict)
    layers: list[PlannedLayer] = field(default_factory=list)
    refused: str = ""
    refused_fix: str = ""

    def to_json(self) -> dict[str, Any]:
        found, why = self.found, in_one(self.whys)
        return {
            "schema": SCHEMA,
            "url": found.base_url,
            "engine": found.engine,
            "version": found.version,
            "not_ready": found.not_ready,
            "method": self.method,
            "depth": self.depth,
            "reason": why.reason,
            "fix": why.fix,
            "processes": [process_in_json(one.process, one.way, one.why) for one in self.processes],
            "wraps": self.wraps,
            "layers": [asdict(one) for one in self.layers],
            "refused": self.refused,
            "refused_fix": self.refused_fix,
        }


def process_in_json(process: ServerProcess, way: str, why: Why) -> dict[str, Any]:
    """One process of a server: the way in that was or would be taken, and why there is none."""
    return {**asdict(process), "way": way, "reason": why.reason, "fix": why.fix}


def plan(found: Found, method: str = "auto", *, watching: bool = False, told: bool = False, deep: bool = False) -> Plan:
    """What `attach.open` with this method would come to, for a prompt of ours or for `watching` others' requests.
    `told`: the server's own spans are received, by which others' requests can be watched from outside too.

    Raises UsageError: no such method.
    """
    check_method(method)
    processes = [_process(found, one, method) for one in found.processes]
    inside = [one for one in processes if one.way]
    depth: Depth = "outside"
    if inside:
        depth = "agent" if all(one.way == "waits" for one in inside) else "injected"
    whys = why_not_deeper(found, method, [one.why for one in processes])
    reason, fix = in_one(whys)
    wraps = _wraps(found, {one.process.role for one in inside})
    layers = [_layer(one, depth, reason, fix, watching, deep) for one in load()]
    if told and watching and depth == "outside":
        layers = [replace(one, seen=True, what=_TOLD, fix="") if one.number == 6 else one for one in layers]
    against_all = refusal(found, method)
    refused, refused_fix = (str(against_all), against_all.fix) if against_all is not None else ("", "")
    if against_all is not None:
        processes = [replace(one, way="taken") if one.way == "waits" else one for one in processes]
    return Plan(found, method, depth, whys, processes, wraps, layers, refused, refused_fix)


def _process(found: Found, process: ServerProcess, method: str) -> PlannedProcess:
    if method == "outside":
        return PlannedProcess(process, "")
    if process.pid in found.sockets:
        return PlannedProcess(process, "waits")
    if method == "agent":
        return PlannedProcess(process, "", no_agent(process))
    if method == "gdb" and not debugger.found():
        return PlannedProcess(process, "", debugger.MISSING)
    against = obstacle(process, only_hard=method != "auto")
    if against is not None:
        return PlannedProcess(process, "", against)
    return PlannedProcess(process, ways_for(process, method)[0])


def _wraps(found: Found, roles: set[Role]) -> dict[str, list[str]]:
    """The functions by role, for this version where it is known."""
    by_role: dict[str, list[str]] = {}
    if found.engine == "tokentrace" and roles:
        by_role["single"] = _local_targets()
    elif found.engine == "vllm" and roles:
        alone = not any(one.role == "worker" for one in found.processes)
        for target, does in _vllm_targets(found.version):
            role = "single" if "single" in roles else "engine" if does == "worker" and alone else does
            if role in roles:
                by_role.setdefault(role, []).append(target)
    return by_role


def _vllm_targets(version: str) -> list[tuple[str, str]]:
    """(function, the role that does it) of those that this version has by our table; of an unknown one all."""
    from tokentrace.agent import vllm_names

    now = vllm_names.parsed(version)
    found = []
    for name in vllm_names.NAMES:
        if now and now[:2] != (0, 0) and not vllm_names.fits(name, now):
            continue
        module = name.target.partition(":")[0]
        does = "api"
        if module.startswith(("vllm.v1.worker", "vllm.v1.sample")) or name.group == "jit":
            does = "worker"
        elif module == "vllm.v1.engine.core" or module.startswith(("vllm.v1.core", "vllm.v1.executor")):
            does = "engine"
        found.append((name.target, does))
    return found


def _local_targets() -> list[str]:
    from tokentrace.agent.batching_hooks import EngineGroup
    from tokentrace.agent.local_hooks import HttpGroup, TokenizerGroup
    from tokentrace.agent.model_hooks import ModelGroup

    return [hook.target for group in (HttpGroup, TokenizerGroup, EngineGroup, ModelGroup) for hook in group().hooks()]


def _layer(layer: Layer, depth: Depth, reason: str, fix: str, watching: bool, deep: bool) -> PlannedLayer:
    number, title = layer.number, layer.title
    if number == 1:
        return _power(layer, watching)
    if watching and depth == "outside":
        return PlannedLayer(number, title, False, "requests of others are seen from inside only", fix or PLUGIN_FIX)
    if watching and number in (4, 3) and not deep:
        return PlannedLayer(number, title, False, "left out, so that nobody is slowed down", "add --deep")
    if depth == "outside":
        if number in _FROM_OUTSIDE:
            return PlannedLayer(number, title, True, _FROM_OUTSIDE[number])
        return PlannedLayer(number, title, False, f"it lies inside the server: {reason}" if reason else "inside", fix)
    what = _FROM_INSIDE[number]
    return PlannedLayer(number, title, True, what.replace("the deep pass", "some requests") if watching else what)


def _power(layer: Layer, watching: bool) -> PlannedLayer:
    if watching:
        return PlannedLayer(layer.number, layer.title, False, "cannot be told apart for one request among others")
    findings = list(create(layer).check(ProbeContext(mode="attach", pass_name="check", deep=True)))
    good = next((one for one in findings if one.status == "ok"), None)
    if good is not None:
        return PlannedLayer(layer.number, layer.title, True, good.sentence)
    why = findings[-1] if findings else None
    return PlannedLayer(layer.number, layer.title, False, why.sentence if why else "", why.fix if why else "")
