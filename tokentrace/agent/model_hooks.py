"""The group "model" for transformers' continuous batching: the forward pass and the sampling.

    forward [index, in_shape, in_dtype, out_shape, out_dtype, device]
    sample  [index, shape, dtype, ids {rid: token id}]

Times are the host's: on a GPU they say when work was handed over, not when it ran. With asynchronous batching (GPU
only; not run here) the ids of a step arrive one step later and are left out.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tokentrace.agent.batching_steps import CB, Step, StepsGroup, steps
from tokentrace.agent.core import here
from tokentrace.agent.wrap import Hook


class ModelGroup(StepsGroup):
    """The forward pass and the sampling of layer 5. See the module's docstring."""

    needed = (f"{CB}.model_runner:ModelRunner.compute_batch",)

    def __init__(self) -> None:
        super().__init__()
        self._models: list[tuple[Any, Hook]] = []
        self._samples: deque[tuple[int, int, int, int, dict[str, Any]]] = deque(maxlen=8)

    def hooks(self) -> list[Hook]:
        return [
            Hook(self.needed[0], before=self._computes),
            Hook(f"{CB}.model_runner:ModelRunner._sample", self._sampled),
            Hook(f"{CB}.input_outputs:ContinuousBatchingIOs.prepare_batch_update", self._read_back),
        ]

    def disable(self) -> None:
        super().disable()
        models, self._models = self._models, []
        for _, hook in models:
            hook.restore()

    def _computes(self, args: Any, kwargs: Any) -> None:
        """The model is known only now: watch its call, on this one object."""
        model = args[1]
        if not self.on or any(known is model for known, _ in self._models):
            return
        hook = Hook(f"model:{call_attribute(model)}", self._forwarded, owner=model)
        self._models.append((model, hook))
        hook.install()
        if not self.on:  # switched off meanwhile by the other thread, which may have looked before we appended
            hook.restore()

    def _forwarded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = steps.current()
        if step is None or step.index < 0:
            return
        data = {"index": step.index, **forward_facts(args, kwargs, result, error)}
        self.emit("forward", start, end, here.thread, data)

    def _sampled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = steps.current()
        if step is None or step.index < 0:
            return
        scores = args[1]
        data = {"index": step.index, "shape": scores.shape, "dtype": dtype_name(scores.dtype), "ids": {}}
        self._samples.append((step.index, start, end, here.thread, data))

    def _read_back(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        """Here the engine brings the new tokens to the host; before, reading them would wait for the device."""
        step = steps.current()
        if step is None or step.asynchronous or result is None:
            return
        for index, *_, data in self._samples:
            if index == step.index:
                tokens = iter(result[1])
                data["ids"] = {one.state.request_id: int(next(tokens)) for one in result[0] if one.has_new_token}

    def step_ended(self, step: Step, start: int, end: int) -> None:
        while self._samples and self._samples[0][0] <= step.index:
            _, first, last, thread, data = self._samples.popleft()
            self.emit("sample", first, last, thread, data)


_dtype_names: dict[Any, str] = {}
_device_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """torch.float32 as "float32"."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


def device_name(device: Any) -> str:
    """torch.device as "cuda:0"."""
    name = _device_names.get(device)
    if name is None:
        name = _device_names[device] = str(device)
    return name


def describe(data: dict[str, Any], tensor: Any, prefix: str = "") -> None:
    """Shape (torch's own tuple) and dtype, under names that begin with the prefix."""
    data[prefix + "shape"], data[prefix + "dtype"] = tensor.shape, dtype_name(tensor.dtype)


def forward_facts(args: Any, kwargs: Any, result: Any, error: BaseException | None) -> dict[str, Any]:
    """What went into and came out of a Hugging Face model's own forward."""
    data: dict[str, Any] = {}
    ids = args[0] if args else kwargs.get("input_ids")
    if hasattr(ids, "shape"):
        describe(data, ids, "in_")
    logits = getattr(result, "logits", None)
    if logits is not None:
        describe(data, logits, "out_")
        data["device"] = device_name(logits.device)
    if error is not None:
        data["error"] = type(error).__name__
    return data


def call_attribute(module: Any) -> str:
    """Which attribute of a torch module its call goes through. A compiled module is watched from outside: a wrapper
    inside what torch.compile has traced would make it compile again."""
    return "forward" if getattr(module, "_compiled_call_impl", None) is None else "_compiled_call_impl"
