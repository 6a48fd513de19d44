"""A model that runs in the program itself: the agent is started here, in this process, and asked over its own socket.

The same groups of hooks record as in a server, so that the same probes read them: transformers' `generate`, and vLLM's
`LLM`, whose engine and workers may be children of this process. Nothing happens in a program that has loaded no
transformers when the block begins and has no vLLM.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.errors import ProbeUnavailable, TokentraceError
from tokentrace.layers import load
from tokentrace.probe import LayerState, Probe, ProbeContext, Raw
from tokentrace.registry import create
from tokentrace.tracing.stages import Stage

if TYPE_CHECKING:
    from tokentrace.agent.generate_run import Run

DEEP_FIX = "with tokentrace.trace(name, deep=True)"
_PATIENCE_S = 5.0
_GENERATE = "transformers.generation.utils"


class _Growing(AgentGroup):
    """Processes may join while the block runs, and what nobody can do now one of those may."""

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        self.want(group, options)


class InProcess:
    """`start` before the block, `stop` behind it; then `requests`, and `probes` to collect from."""

    def __init__(
        self, deep: bool, layers: frozenset[int] | None, stage_now: Callable[[], tuple[Stage | None, str]]
    ) -> None:
        """`stage_now` is asked in the thread and context that call a model's `generate`, when it begins."""
        self._deep, self._layers, self._stage_now = deep, layers, stage_now
        #: The stage of each `generate` that was heard to begin, by id, and how it is known where not by its context.
        self.stage_of: dict[str, tuple[Stage | None, str]] = {}
        #: The kind of error with which a `generate` ended, by id. Not its words, which may hold what it was given.
        self.failed_with: dict[str, str] = {}
        self._restore: dict[str, Any] = {}
        self._context = ProbeContext("trace", "once", deep, options={"with_text": True})
        self.agent: AgentGroup | None = None
        self._children: Any = None  # of vLLM
        self.probes: list[Probe] = []
        #: Layers whose probe could not be armed.
        self.unseen: dict[int, LayerState] = {}
        self.notes: list[str] = []
        self._late = False

    def start(self) -> None:
        """Never raises: the program inside the block must run whatever becomes of its trace."""
        self._late = _GENERATE not in sys.modules and not _may_use_vllm()
        try:
            if not self._late:
                self._start_agent()
        except (TokentraceError, OSError, ImportError) as error:
            self.notes.append(f"the model in this process is not watched: {error}")
        self._arm()

    def _start_agent(self) -> None:
        from tokentrace import agent
        from tokentrace.agent import generate_hooks
        from tokentrace.agent.generate_run import generation

        with_vllm = _may_use_vllm()
        running = agent.running()
        if running is not None:
            path = running.path
        elif with_vllm:
            from tokentrace.engines.vllm.offline import socket_template

            template = socket_template()
            agent.start(template)
            path = template.replace("{pid}", str(os.getpid()))
        else:
            # It stays for as long as the process lives, asleep while no trace is open.
            folder = tempfile.mkdtemp(prefix="tokentrace-")  # mode 0700
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = str(Path(folder) / "agent.sock")
            agent.start(path)
        if self._deep and "torch" in sys.modules:
            _first_profile()
        groups: Mapping[str, Any] = generate_hooks.GROUPS
        if with_vllm:
            from tokentrace.agent import together

            ops = generate_hooks.GROUPS["ops"]
            groups = {**together.with_vllm(groups), "ops": lambda: together.operators(ops)}
        self._restore = agent.replace_groups(groups)
        generation.on_model += (self._begins,)
        generation.on_done += (self._ended,)
        own = AgentClient.connect(path, timeout_s=_PATIENCE_S)
        self.agent = _Growing([own]) if with_vllm else AgentGroup([own])
        self.agent.begin_pass()
        if with_vllm:
            from tokentrace.engines.vllm.offline import Children

            self._children = Children(self.agent)
            self._children.start()
        self._context.agent = self.agent

    def _begins(self, model: Any) -> None:
        from tokentrace.agent.generate_run import generation

        self.stage_of[generation.latest()] = self._stage_now()

    def _ended(self, run: Run, start_ns: int, end_ns: int) -> None:
        if run.error:
            self.failed_with[run.rid] = run.error

    def _arm(self) -> None:
        for layer in load():
            if layer.number == 8 or (self._layers is not None and layer.number not in self._layers):
                continue
            if self.agent is None and layer.number != 1:
                continue  # only power can be seen without looking into a process
            if layer.cost == "deep" and not self._deep:
                self.unseen[layer.number] = LayerState(
                    layer.number, "unseen", "not probed, so that the times are true", DEEP_FIX
                )
                continue
            self._arm_one(layer.number, create(layer))

    def _arm_one(self, number: int, probe: Probe) -> None:
        try:
            probe.arm(self._context)
            self.probes.append(probe)
        except ProbeUnavailable as error:
            probe.disarm()
            self.unseen[number] = LayerState(number, "unseen", str(error), error.fix)
        except Exception as error:  # noqa: BLE001 - a layer that fails never fails the program
            probe.disarm()
            self.unseen[number] = LayerState(number, "unseen", f"its probe failed: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Put everything back and fetch what was recorded. Never raises."""
        for probe in self.probes:
            probe.disarm()
        if self._late and _GENERATE in sys.modules:
            self.notes.append(
                "transformers was loaded inside the block and is not watched: import it before the block begins"
            )
        self._hear_no_more()
        if self.agent is None:
            return
        if self._children is not None:
            self._children.stop()
            self.notes += self._children.notes
        with contextlib.suppress(TokentraceError):
            self.agent.end_pass()
        self.agent.records("engine")  # decoded now, before the connection goes
        self.agent.close()
        from tokentrace import agent

        agent.replace_groups(self._restore)

    def _hear_no_more(self) -> None:
        from tokentrace.agent.generate_run import generation

        generation.on_model = tuple(told for told in generation.on_model if told != self._begins)
        generation.on_done = tuple(told for told in generation.on_done if told != self._ended)

    def requests(self) -> list[tuple[str, int, int]]:
        """(id, start, end in ns) of each generation, with the tokenizing before and behind it."""
        if self.agent is None:
            return []
        found: dict[str, tuple[int, int]] = {}
        ran = {str(raw.data["rid"]) for raw in self.agent.records("engine") if raw.name == "finish"}
        for group in ("tokenizer", "engine"):
            for raw in self.agent.records(group):
                rids = [str(raw.data["rid"])] if "rid" in raw.data else list(raw.data.get("reqs") or ())
                for rid in rids:
                    if rid in ran:
                        start, end = found.get(rid, (raw.start_ns, raw.end_ns))
                        found[rid] = min(start, raw.start_ns), max(end, raw.end_ns)
        return [(rid, start, end) for rid, (start, end) in found.items()]

    def facts_of(self, rid: str) -> Mapping[str, Any]:
        """What is known of one generation: model, prompt, reply, tokens, finish_reason, thread (the system's id of one
        of ours, 0 unknown) and finished_ns."""
        assert self.agent is not None
        mine = [raw for group in ("tokenizer", "engine") for raw in self.agent.records(group) if _is_of(raw, rid)]
        last = next((raw for raw in mine if raw.name == "finish"), None)
        finish = last.data if last is not None else {}
        # What another process does for it, as vLLM's engine, runs in none of the program's own threads.
        ours = [raw for raw in mine if raw.process == str(os.getpid())]
        asked = next((raw for raw in ours if raw.name == "finish"), ours[0] if ours else None)
        texts = {name: [r.data for r in mine if r.name == name] for name in ("template", "encode", "decode")}
        given = [one["text_in"] for one in (*texts["template"], *texts["encode"]) if "text_in" in one]
        return {
            "model": finish.get("model") or finish.get("model_class") or "",
            "prompt": given[0] if given else "",
            "reply": "".join(one.get("text", "") for one in texts["decode"]),
            "prompt_tokens": finish.get("prompt"),
            "completion_tokens": finish.get("tokens"),
            "finish_reason": finish.get("reason") or "",
            "thread": asked.thread if asked is not None else 0,
            "finished_ns": last.end_ns if last is not None else 0,
        }


def _may_use_vllm() -> bool:
    """Whether this program may load vLLM, now or inside the block; its hooks wait for it then."""
    return "vllm" in sys.modules or find_spec("vllm") is not None


def _first_profile() -> None:
    """Kineto complains on standard error when the thread that first sets it up is not the one that loaded torch, which
    mostly is this one; the agent's thread never is."""
    from tokentrace.agent.core import GroupUnavailable
    from tokentrace.agent.profile import TorchProfiler

    with contextlib.suppress(GroupUnavailable):
        profiler = TorchProfiler()
        profiler.prepare()
        profiler.start()
        profiler.stop()


def _is_of(raw: Raw, rid: str) -> bool:
    return raw.data.get("rid") == rid
