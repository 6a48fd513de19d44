"""How the next token is chosen, request by request, inside one batch.

transformers' continuous batching samples a whole batch in one way (all greedy, or all at random). Here the batch is
always decided by argmax, and a logits processor prepares the scores of those requests that want chance so that argmax
draws from their distribution: dividing each probability by an exponential random number and taking the largest is
the same as drawing from it (the exponential race, which torch.multinomial itself uses). Greedy requests pass
untouched, so they cost nothing and always give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one request asked for. `temperature` 0 means greedy; `top_k` 0 and `top_p` 1 mean no cut."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False


def make_processor() -> Any:
    """A ContinuousBatchingLogitsProcessor that reads `sampling` from each request. Imports torch and transformers."""
    import torch
    from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

    class PerRequestSampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
        supported_kwargs = {"sampling": Sampling}  # noqa: RUF012 - the base class declares it so
        ignored_kwargs = ()

        def __init__(self) -> None:
            self._rows: list[tuple[int, Any]] = []  # (row of the scores, request state) of those that want chance

        def fill_defaults(self, int32_tensor: Any) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Any:
            """Called on the generation thread just before the forward pass, in the order of the scores' rows."""
            states = [future.state for future in requests_with_new_token]
            self._rows = [
                (row, state)
                for row, state in enumerate(states)
                if state.logit_processor_kwargs["sampling"].temperature > 0
            ]
            return torch.zeros(len(states), dtype=torch.int32)

        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            if not self._rows:
                return scores
            scores = scores.clone()
            for row, state in self._rows:
                scores[row] = race(scores[row], state.logit_processor_kwargs["sampling"], state)
            return scores

    def race(logits: Any, sampling: Sampling, state: Any) -> Any:
        logits = logits / sampling.temperature
        if 0 < sampling.top_k < logits.numel():
            threshold = logits.topk(sampling.top_k).values[-1]
            logits = logits.masked_fill(logits < threshold, -torch.inf)
        probabilities = logits.softmax(-1)
        if sampling.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            before = ordered.cumsum(0) - ordered
            probabilities[order[before >= sampling.top_p]] = 0  # the first one always stays: nothing lies before it
        noise = torch.empty_like(probabilities).exponential_(generator=_generator(sampling, state, logits.device))
        return probabilities / noise

    def _generator(sampling: Sampling, state: Any, device: Any) -> Any:
        """A seeded request draws the same numbers whatever shares its batch, also when it was preempted and resumed."""
        if sampling.seed is None:
            return None
        drawn = len(state.initial_tokens) + len(state.generated_tokens)
        return torch.Generator(device).manual_seed((sampling.seed * 1_000_003 + drawn) % 2**63)

    return PerRequestSampling()
