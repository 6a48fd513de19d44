"""Where the local engine can be watched: the functions a request passes, in order, and what each is given.

Whoever records inside the engine replaces these attributes at run time and puts them back later. That works because
the engine looks every one of them up on its class (or module) at each call and never keeps a bound copy. Nothing is
recorded by the engine itself.

`rid` is the request's id everywhere, from the arrival of its headers (before the body is read) to the last chunk; the
same id is given to `ContinuousBatchingManager.add_request(request_id=rid)` and is the `id` field of the reply:
`chatcmpl-<32 hex>`, or `chatcmpl-<X-Request-Id>-<8 hex>` when the client sent an X-Request-Id (`cmpl-…` for
/v1/completions). Other paths have no rid: /tokenize calls `render` and `encode` with rid "", the rest none of these.

Threads: "http" and "tokenizer" functions, `submit`, `cancel` and `add_request` run on the main thread (the event
loop; a text of more than 100,000 characters is encoded on a worker thread), the other "engine" functions and "model"
ones on the generation thread, which is started after the agent. One step there is: prepare (in it schedule, and prefix
for a new request), batch (in it the model and sample), update (in it finish and free). When there is nothing to do,
prepare gives False ten times a second. `asynchronous` ones are coroutine functions: a wrapper must await them.
All are called with positional arguments.
"""

from __future__ import annotations

from typing import NamedTuple


class HookPoint(NamedTuple):
    """One function that can be wrapped: `getattr(import_module(module), owner)` is its class, "" means the module."""

    group: str
    name: str
    module: str
    owner: str
    function: str
    arguments: tuple[str, ...]  # in order, without self
    returns: str
    asynchronous: bool = False


_HERE = "tokentrace.engines.local"
_CB = "transformers.generation.continuous_batching"

HOOKPOINTS: tuple[HookPoint, ...] = (
    # --- the HTTP side; `scope` holds method, path and headers (a list of byte pairs, lower case names).
    # `handle` spans the whole request: its `send` sees {"type": "http.response.start", "status": …} first.
    HookPoint(
        "http", "request", f"{_HERE}.api", "Api", "handle", ("rid", "kind", "scope", "receive", "send"), "None", True
    ),
    HookPoint("http", "parse", f"{_HERE}.api", "Api", "parse", ("rid", "kind", "body"), "GenerationRequest"),
    # `index` counts the chunks of this reply from 0 (the role chunk); `data` is the bytes of one server-sent event,
    # or of the whole body when the reply is not streamed.
    HookPoint("http", "write", f"{_HERE}.api", "Api", "write", ("rid", "index", "data", "send"), "None", True),
    # --- the tokenizer, once down and once for each token up
    HookPoint("tokenizer", "template", f"{_HERE}.tokenizer", "Tokenizer", "render", ("rid", "messages"), "str"),
    HookPoint(
        "tokenizer", "encode", f"{_HERE}.tokenizer", "Tokenizer", "encode", ("rid", "text", "special"), "list[int]"
    ),
    # `index` counts the generated tokens from 0; the end-of-sequence token passes too and gives "".
    HookPoint("tokenizer", "decode", f"{_HERE}.tokenizer", "Detokenizer", "step", ("rid", "index", "token_id"), "str"),
    # --- hand-over to the scheduler; `ids` are the prompt's token ids
    HookPoint("engine", "submit", f"{_HERE}.engine", "Engine", "submit", ("rid", "ids", "sampling"), "Generation"),
    HookPoint("engine", "cancel", f"{_HERE}.engine", "Engine", "cancel", ("rid",), "None"),
    # --- inside transformers' continuous batching (private there; the supported range is in engine.py)
    HookPoint("engine", "add_request", f"{_CB}.continuous_api", "ContinuousBatchingManager", "add_request", (), "str"),
    HookPoint("engine", "waiting", f"{_CB}.scheduler", "Scheduler", "add_waiting_request", ("state",), "None"),
    HookPoint(
        "engine",
        "schedule",
        f"{_CB}.scheduler",
        "FIFOScheduler",
        "schedule_batch",
        ("token_budget", "cache_budget"),
        "(list[FutureRequestState] | None, bool, tokens, kv read)",
    ),
    HookPoint("engine", "prefix", f"{_CB}.cache", "PagedAttentionCache", "search_prefix_match", ("rid", "ids"), "int"),
    HookPoint(
        "engine", "prepare", f"{_CB}.continuous_api", "ContinuousBatchProcessor", "prepare_next_batch", (), "bool"
    ),
    HookPoint("engine", "update", f"{_CB}.continuous_api", "ContinuousBatchProcessor", "update_batch", (), "None"),
    HookPoint("engine", "finish", f"{_CB}.scheduler", "Scheduler", "finish_request", ("rid",), "None"),
    HookPoint("engine", "free", f"{_CB}.cache", "PagedAttentionCache", "free_blocks", ("rid",), "None"),
    # --- one forward pass and its sampling; the model is the first argument of compute_batch
    HookPoint("model", "batch", f"{_CB}.model_runner", "ModelRunner", "compute_batch", ("model", "batch_data"), "None"),
    HookPoint("model", "sample", f"{_CB}.model_runner", "ModelRunner", "_sample", ("scores", "output_ids"), "None"),
)

# Beside the functions: `tokentrace.engines.local.engine.current()` is the running Engine or None, with
# `.model` (the torch module), `.manager` (ContinuousBatchingManager; `.manager.batch_processor` has `.scheduler` and
# `.cache`) and `.facts()` (engine, versions, model, device, dtype, KV blocks, cache folders: plain JSON values).
