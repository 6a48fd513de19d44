"""vLLM: the groups "http", "tokenizer", "engine" and "model", with the record shapes of the local engine's.

    http        request [rid, traceparent, method, path, status], parse [rid], write [rid, index, bytes]
    tokenizer   render [rid]: the two together, with the wait for the renderer's thread;
                template [rid, chars_in, chars_out], encode [rid, chars, count, ids], decode [rid, index, id, chars];
                with the option `text` also text_out of template and text of decode
    engine      submit [rid, tokens, sending_ns: when the call that hands it over began], output [rid, index, tokens,
                ended: the reply's finish reason where this process ended it, by a stop string]; more in `vllm_core`,
                prepare in `vllm_worker`
    model       see `vllm_worker`

`rid` is the engine's id of the request in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokentrace.agent.core import Emit
from tokentrace.agent.vllm_api import api
from tokentrace.agent.vllm_core import core
from tokentrace.agent.vllm_spine import SpineGroup, spine


class HttpGroup(SpineGroup):
    """The server's side of layer 8."""

    name = "http"

    def open(self) -> list[str]:
        """Ids of chosen requests whose handler has not ended."""
        return [arrival.rid for arrival in list(api.open.values()) if arrival.rid]


class TokenizerGroup(SpineGroup):
    """Layer 7. Texts are kept only with the option `text`."""

    name = "tokenizer"

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        spine.text = bool((options or {}).get("text"))
        super().enable(recorder, options)

    def disable(self) -> None:
        spine.text = False
        super().disable()


class EngineGroup(SpineGroup):
    """Layer 6."""

    name = "engine"

    def open(self) -> list[str]:
        """The steps that are under way, and the chosen requests that have not ended here."""
        return [*(f"step {index}" for index in core.under_way()), *(f"request {rid}" for rid in list(core.marked))]


class ModelGroup(SpineGroup):
    """The forward pass, the head and the sampling of layer 5."""

    name = "model"
