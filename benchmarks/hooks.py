"""What the agent's hooks cost one step of a vLLM engine when every one of its requests is traced lightly.

    python benchmarks/hooks.py [--rounds 15] [--requests 8] [--other FOLDER] [--json]

The hooks are those that are put into vLLM, the functions they wrap are small stand-ins that hand over what vLLM's do
(with real tensors), so that nearly all of the time is the hooks' own. For each of the three processes are printed: the
records that one decode step with --requests requests makes, the CPU time of the step without hooks, with hooks that are
dormant because no request is chosen, and with every request traced; then what making JSON of its records costs, which
happens on the agent's thread. With --other, another version of the folder tokentrace/agent takes turns with this one in
the same process, and the costs are also given as a ratio. CPU time of one thread, medians of the rounds, which run in
random order.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

STEPS = 200
GROUPS = ("http", "tokenizer", "engine", "model")
PURPOSES = {
    "api": ("http", "register", "outputs", "detokenize"),
    "engine": ("queue", "schedule", "dispatch", "update"),
    "worker": ("execute", "sample step", "prepare", "forward", "sample"),
}


class Plain:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# --- stand-ins, of the shape of vLLM's


class App:
    def __init__(self, processor: OutputProcessor, requests: list[Any]) -> None:
        self.processor, self.requests = processor, requests
        self.sends: list[Any] = []
        self.over = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.sends.append(send)
        self.processor.add_request(self.requests[len(self.sends) - 1])
        await self.over.wait()


class Detokenizer:
    def __init__(self) -> None:
        self.output_text = ""

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> None:
        self.output_text += " word"


class OutputProcessor:
    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        self.request_states[request.request_id] = Plain(detokenizer=Detokenizer())

    def process_outputs(self, engine_core_outputs: list[Any]) -> None:
        for output in engine_core_outputs:
            self.request_states[output.request_id].detokenizer.update(output.new_token_ids, False)


class CachedRequests:
    def __init__(self, ids: list[str]) -> None:
        self.req_ids = ids
        self.num_output_tokens = [9] * len(ids)

    def is_context_phase(self, request_id: str) -> bool:
        return False


class SchedulerOutput:
    def __init__(self, ids: list[str]) -> None:
        self.num_scheduled_tokens = dict.fromkeys(ids, 1)
        self.total_num_scheduled_tokens = len(ids)
        self.scheduled_new_reqs: list[Any] = []
        self.scheduled_cached_reqs = CachedRequests(ids)
        self.preempted_req_ids: set[str] = set()


class Pool:
    num_gpu_blocks = 1000

    def get_num_free_blocks(self) -> int:
        return 700


class Scheduler:
    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.kv_cache_manager = Plain(block_pool=Pool())
        self.vllm_config = Plain()

    def add_request(self, request: Any) -> None:
        """Into the queue."""

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.ids), 0

    def schedule(self) -> SchedulerOutput:
        return SchedulerOutput(self.ids)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None:
        """Tokens to their requests."""


class Executor:
    def execute_model(self, scheduler_output: Any) -> None:
        """To the workers."""


class Model(torch.nn.Module):  # type: ignore[misc]
    def compute_logits(self, hidden: Any) -> Any:
        return LOGITS


class Runner:
    def __init__(self, batch: int) -> None:
        self.model = Model()
        self.ids = torch.zeros(batch, dtype=torch.int32)

    def get_model(self) -> Any:
        return self.model

    def _prepare_inputs(self, scheduler_output: Any) -> None:
        """Tensors of the batch."""

    def _model_forward(self, input_ids: Any) -> Any:
        return HIDDEN


class Sampler:
    def forward(self, logits: Any) -> None:
        """Choose."""


class Worker:
    def __init__(self, batch: int) -> None:
        self.model_runner = Runner(batch)
        self.vllm_config = Plain()
        self.sampler = Sampler()

    def execute_model(self, scheduler_output: Any) -> None:
        runner = self.model_runner
        runner._prepare_inputs(scheduler_output)
        hidden = runner._model_forward(input_ids=runner.ids)
        runner.model.compute_logits(hidden)

    def sample_tokens(self) -> None:
        self.sampler.forward(LOGITS)


class Wrapper:
    """vLLM's WorkerWrapperBase."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def execute_model(self, scheduler_output: Any) -> None:
        self.worker.execute_model(scheduler_output)


HIDDEN, LOGITS = torch.zeros(8, 576), torch.zeros(8, 49152)
TARGETS = {
    "http": "App.__call__", "register": "OutputProcessor.add_request", "outputs": "OutputProcessor.process_outputs",
    "detokenize": "Detokenizer.update", "queue": "Scheduler.add_request", "schedule": "Scheduler.schedule",
    "dispatch": "Executor.execute_model", "update": "Scheduler.update_from_output", "execute": "Wrapper.execute_model",
    "sample step": "Worker.sample_tokens", "prepare": "Runner._prepare_inputs", "forward": "Runner._model_forward",
    "sample": "Sampler.forward",
}  # fmt: skip


class Agent:
    """One version of the agent's package."""

    def __init__(self, package: str) -> None:
        self.core, self.spine = (importlib.import_module(f"{package}.{name}") for name in ("core", "vllm_spine"))
        self.recorder = self.core.Recorder()
        self.control = importlib.import_module(f"{package}.control")
        self.makers: dict[str, Any] = {}
        for part in self.spine._parts():
            self.makers.update(part.makers())

    def hand_over(self) -> None:
        """Take all records away and make bytes of them."""
        if hasattr(self.control, "messages"):
            while (records := self.recorder.take(200)).data:
                for header, blob in self.control.messages(records):
                    self.control.packed(header) + blob
        else:  # an older version: rows
            while rows := self.recorder.take(200):
                self.control.packed({"push": "records", "rows": rows})

    @contextmanager
    def watching(self, process: str, *, chosen: bool) -> Iterator[None]:
        """The hooks of one process. Without `chosen`, no request is."""
        spine = self.spine.spine
        hooks = [self.makers[purpose](f"{__name__}:{TARGETS[purpose]}") for purpose in PURPOSES[process]]
        spine.status = dict.fromkeys(PURPOSES[process], "on")
        spine.choose(None if chosen else self.spine.Selection({"trace_ids": ["none"]}))
        for group in GROUPS:
            spine.want(group, self.recorder.emitter(group))
        for hook in hooks:
            hook.install()
        try:
            yield
        finally:
            for hook in reversed(hooks):
                hook.restore()
            for group in GROUPS:
                spine.unwant(group)
            spine.choose(None)
            for part in self.spine._parts():
                part.forget()


def api_steps(ids: list[str], clear: Callable[[], Any]) -> int:
    """CPU ns of all steps of the process that speaks HTTP."""

    async def sent(message: Any) -> None:
        """Onto the wire."""

    async def run() -> int:
        processor = OutputProcessor()
        requests = [Plain(request_id=rid, trace_headers=None, prompt_token_ids=[1, 2, 3]) for rid in ids]
        app = App(processor, requests)
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        tasks = [asyncio.create_task(app(scope, None, sent)) for _ in ids]
        while len(app.sends) < len(ids):
            await asyncio.sleep(0)
        outputs = [Plain(request_id=rid, new_token_ids=[5], finish_reason=None) for rid in ids]
        chunk = {"type": "http.response.body", "body": b"x" * 200, "more_body": True}
        clear()
        before = time.thread_time_ns()
        for _ in range(STEPS):
            processor.process_outputs(outputs)
            for send in app.sends:
                await send(chunk)
        spent = time.thread_time_ns() - before
        app.over.set()
        await asyncio.gather(*tasks)
        return spent

    return asyncio.run(run())


def engine_steps(ids: list[str], clear: Callable[[], Any], *, marked: bool) -> int:
    scheduler, executor = Scheduler(ids), Executor()
    for rid in ids:
        scheduler.add_request(Plain(request_id=rid, trace_headers={"tokentrace": "1"} if marked else None))
    output = Plain(sampled_token_ids=[[5]] * len(ids), req_id_to_index={rid: at for at, rid in enumerate(ids)})
    scheduler.update_from_output(scheduler.schedule(), output)
    clear()
    before = time.thread_time_ns()
    for _ in range(STEPS):
        scheduled = scheduler.schedule()
        executor.execute_model(scheduled)
        scheduler.update_from_output(scheduled, output)
    return time.thread_time_ns() - before


def worker_steps(ids: list[str], clear: Callable[[], Any], mark: Any) -> int:
    worker = Worker(len(ids))
    wrapper = Wrapper(worker)
    scheduled = SchedulerOutput(ids)
    if mark is not None:
        scheduled.tokentrace = mark  # type: ignore[attr-defined]
    wrapper.execute_model(scheduled)
    worker.sample_tokens()
    clear()
    before = time.thread_time_ns()
    for _ in range(STEPS):
        wrapper.execute_model(scheduled)
        worker.sample_tokens()
    return time.thread_time_ns() - before


def run(process: str, ids: list[str], clear: Callable[[], Any], *, chosen: bool) -> int:
    if process == "api":
        return api_steps(ids, clear)
    if process == "engine":
        return engine_steps(ids, clear, marked=chosen)
    return worker_steps(ids, clear, (1, 7) if chosen else None)


@contextmanager
def other_agent(folder: Path) -> Iterator[str]:
    """A copy of another version under a name of its own; gives the name."""
    name = "another_agent"
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / name).mkdir()
        for file in folder.glob("*.py"):
            text = file.read_text(encoding="utf-8").replace("tokentrace.agent", name)
            text = text.replace("from tokentrace import agent", f"import {name} as agent")
            (Path(place) / name / file.name).write_text(text, encoding="utf-8")
        sys.path.insert(0, place)
        try:
            yield name
        finally:
            sys.path.remove(place)


def measure(agents: dict[str, Agent], rounds: int, requests: int) -> dict[str, Any]:
    ids = [f"chatcmpl-{number:032x}" for number in range(requests)]
    cells = [(process, "bare", "") for process in PURPOSES]
    cells += [(process, how, name) for process in PURPOSES for how in ("dormant", "traced") for name in agents]
    spent: dict[tuple[str, str, str], list[float]] = {cell: [] for cell in cells}
    packing: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], float] = {}
    for number in range(-1, rounds):
        random.shuffle(cells)
        for cell in cells:
            process, how, name = cell
            gc.collect()
            if how == "bare":
                found = run(process, ids, lambda: None, chosen=False)
            else:
                agent = agents[name]
                with agent.watching(process, chosen=how == "traced"):
                    found = run(process, ids, agent.recorder.clear, chosen=how == "traced")
                if how == "traced":
                    counts[process, name] = len(agent.recorder) / STEPS
                    before = time.thread_time_ns()
                    agent.hand_over()
                    packing.setdefault((process, name), []).append((time.thread_time_ns() - before) / STEPS / 1000)
                agent.recorder.clear()
            if number >= 0:
                spent[cell].append(found / STEPS / 1000)
    median = statistics.median
    told: dict[str, Any] = {}
    for process in PURPOSES:
        bare = median(spent[process, "bare", ""])
        told[process] = {"bare_us": bare}
        for name in agents:
            told[process][name] = {
                "records": counts[process, name],
                "dormant_us": median(spent[process, "dormant", name]) - bare,
                "traced_us": median(spent[process, "traced", name]) - bare,
                "packing_us": median(packing[process, name]),
            }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--other", type=Path, help="another version of the folder tokentrace/agent")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    asked = parser.parse_args()
    agents = {"this": Agent("tokentrace.agent")}
    if asked.other:
        with other_agent(asked.other) as name:
            agents["other"] = Agent(name)
    told = measure(agents, asked.rounds, asked.requests)
    if asked.json:
        print(json.dumps(told))
        return
    print(f"One decode step with {asked.requests} requests, us of CPU (median of {asked.rounds} rounds)\n")
    print("process   agent   records   hooks, dormant   hooks, traced   making JSON")
    for process, row in told.items():
        for name in agents:
            one = row[name]
            print(f"{process:9} {name:7} {one['records']:7.1f}   {one['dormant_us']:14.1f}   {one['traced_us']:13.1f}"
                  f"   {one['packing_us']:11.1f}")  # fmt: skip
    if asked.other:
        for what in ("traced_us", "packing_us"):
            this, other = (sum(row[name][what] for row in told.values()) for name in ("this", "other"))
            print(f"\nall processes, {what.removesuffix('_us')}: this / other = {this / other:.2f}", end="")
        print()


if __name__ == "__main__":
    main()
