"""Where vLLM does what, by version: the functions that are watched, as data.

Each purpose has the places it was found at, with the first version that has it there and the first one that has not
any more ("" none known). As read in vLLM's code of several releases between 0.10 and 0.32, not of each; only 0.32 was
run. A name that is wrong for a version costs its own hook and is told as missing.

Which processes do what differs with the set-up (a worker of its own, a worker inside the engine, everything in one), so
a process is never judged by its name: whatever is loaded here is watched, whatever is not is left alone.

Only classes, modules and live objects can be patched under a running server. Functions that it has kept hold of cannot
(`EngineCore.step_fn`, the renderer's `make_async` copies); for those there is another place to look, see `vllm_api`.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Name(NamedTuple):
    """One place. `since` and `before` are versions like "0.18"; "" is no limit. `group` has it to itself; "" is for all
    that share their hooks (`vllm_spine`)."""

    purpose: str
    target: str  # "module:Class.function"
    since: str = ""
    before: str = ""
    group: str = ""


_OPENAI = "vllm.entrypoints.openai"
_ENGINE = "vllm.v1.engine"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_WORKER = "vllm.v1.worker"

NAMES: tuple[Name, ...] = (
    # --- the process that speaks HTTP
    Name("http", "starlette.applications:Starlette.__call__"),
    Name("chat", f"{_OPENAI}.chat_completion.serving:OpenAIServingChat.create_chat_completion", "0.15"),
    Name("chat", f"{_OPENAI}.serving_chat:OpenAIServingChat.create_chat_completion", "", "0.15"),
    Name("completion", f"{_OPENAI}.completion.serving:OpenAIServingCompletion.create_completion", "0.15"),
    Name("completion", f"{_OPENAI}.serving_completion:OpenAIServingCompletion.create_completion", "", "0.15"),
    Name("render chat", "vllm.renderers.base:BaseRenderer.render_chat_async", "0.18"),
    Name("render text", "vllm.renderers.base:BaseRenderer.render_cmpl_async", "0.18"),
    Name("template", "vllm.renderers.hf:safe_apply_chat_template", "0.15"),
    Name("template", f"{_OPENAI}.serving_engine:apply_hf_chat_template", "", "0.15"),
    Name("tokenize", "vllm.renderers.base:BaseRenderer._tokenize_prompt", "0.18"),
    Name("process", f"{_ENGINE}.input_processor:InputProcessor.process_inputs", "0.12"),
    Name("process", f"{_ENGINE}.processor:Processor.process_inputs", "", "0.12"),
    Name("register", f"{_ENGINE}.output_processor:OutputProcessor.add_request"),
    Name("outputs", f"{_ENGINE}.output_processor:OutputProcessor.process_outputs"),
    Name("detokenize", f"{_ENGINE}.detokenizer:BaseIncrementalDetokenizer.update"),
    Name("submit", f"{_ENGINE}.core_client:AsyncMPClient.add_request_async"),
    Name("submit data-parallel", f"{_ENGINE}.core_client:DPAsyncMPClient.add_request_async"),
    Name("submit offline", f"{_ENGINE}.core_client:SyncMPClient.add_request"),
    Name("submit in process", f"{_ENGINE}.core_client:InprocClient.add_request"),
    # --- the process with the scheduler
    Name("receive", f"{_ENGINE}.core:EngineCore.preprocess_add_request"),
    Name("queue", f"{_SCHEDULER}.add_request"),
    Name("schedule", f"{_SCHEDULER}.schedule"),
    Name("update", f"{_SCHEDULER}.update_from_output"),
    Name("preempt", f"{_SCHEDULER}._preempt_request", "0.12"),
    Name("finish", f"{_SCHEDULER}._free_request"),
    Name("dispatch", "vllm.v1.executor.multiproc_executor:MultiprocExecutor.execute_model"),
    Name("dispatch in process", "vllm.v1.executor.uniproc_executor:UniProcExecutor.execute_model", "0.12"),
    Name("dispatch in process", "vllm.v1.executor.abstract:Executor.execute_model", "", "0.12"),
    # --- the processes with the model
    Name("execute", f"{_WORKER}.worker_base:WorkerWrapperBase.execute_model"),
    Name("sample step", f"{_WORKER}.gpu_worker:Worker.sample_tokens", "0.12"),
    Name("prepare", f"{_WORKER}.gpu_model_runner:GPUModelRunner._prepare_inputs"),
    Name("prepare (runner V2)", f"{_WORKER}.gpu.model_runner:GPUModelRunner.prepare_inputs", "0.12"),
    Name("forward", f"{_WORKER}.gpu_model_runner:GPUModelRunner._model_forward", "0.11"),
    Name("sample", "vllm.v1.sample.sampler:Sampler.forward"),
    Name("sample (runner V2)", f"{_WORKER}.gpu.sample.sampler:Sampler.__call__", "0.12"),
    # --- what is compiled after the warm-up, see `jit_monitor`. It is there by these versions; an earlier one knew of
    # Triton only, which has hooks of its own.
    Name("jit report", "vllm.utils.jit_monitor:_handle_jit_event", "0.25", group="jit"),
    Name("jit monitor", "vllm.utils.jit_monitor:activate", "0.25", group="jit"),
    Name("jit CuTeDSL", "vllm.utils.jit_monitor:_MonitoredCuteCompile.__call__", "0.29", group="jit"),
)
#: In a process with one of these a model may run.
MODEL_MODULES = (f"{_WORKER}.gpu_model_runner", f"{_WORKER}.gpu.model_runner")


def version() -> str:
    """vLLM's version in this process, "" when it does not say."""
    module = sys.modules.get("vllm.version") or sys.modules.get("vllm._version")
    found = getattr(module, "__version__", "")
    return found if isinstance(found, str) else ""


def parsed(text: str) -> tuple[int, ...]:
    """ "0.18.1rc2+cpu" as (0, 18, 1); empty for what is no version ("dev")."""
    numbers: list[int] = []
    for part in text.partition("+")[0].split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def candidates(purpose: str, running: str) -> list[Name]:
    """The places of one purpose, those of this version first. Of a version that is not known all are tried."""
    names = [name for name in NAMES if name.purpose == purpose]
    now = parsed(running)
    if not now or now[:2] == (0, 0):  # a development build
        return names
    return sorted(names, key=lambda name: not fits(name, now))


def fits(name: Name, now: tuple[int, ...]) -> bool:
    return parsed(name.since) <= now and (not name.before or now < parsed(name.before))


def purposes(group: str = "") -> list[str]:
    return list(dict.fromkeys(name.purpose for name in NAMES if name.group == group))


def identities() -> dict[str, int]:
    """The functions of this process that are known here, and which object each of them is right now."""
    found = {}
    for name in NAMES:
        module, _, path = name.target.partition(":")
        *steps, last = path.split(".")
        owner: Any = sys.modules.get(module)
        for step in steps:
            owner = getattr(owner, step, None)
        raw = getattr(owner, "__dict__", {}).get(last)
        if raw is not None:
            found[name.target] = id(raw)
    return found


def find(purpose: str, running: str) -> tuple[str, str]:
    """(target, "") of one purpose in this process; ("", "not loaded") when nothing of it is in this process, and
    ("", "missing: …") when its module is here and the function is not."""
    loaded: list[str] = []
    for name in candidates(purpose, running):
        module, _, path = name.target.partition(":")
        owner: Any = sys.modules.get(module)
        if owner is None or getattr(getattr(owner, "__spec__", None), "_initializing", False):
            continue
        for step in path.split("."):
            owner = getattr(owner, step, None)
        if callable(owner):
            return name.target, ""
        loaded.append(name.target)
    return "", f"missing: {', '.join(loaded)}" if loaded else "not loaded"
