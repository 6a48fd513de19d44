"""The parts of a model are found by its structure, recorded with their shapes, and put back exactly."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tokentrace.agent.core import GroupUnavailable
from tokentrace.agent.module_hooks import ModulesGroup, parts

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {"intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 64}
ATTENTION_AND_NORMS = {"input_layernorm", "post_attention_layernorm", "self_attn"}

# config class, its arguments, children of a layer that are watched, beside the stack
MODELS: dict[str, tuple[str, dict[str, Any], set[str], set[str]]] = {
    "llama": ("LlamaConfig", {**SMALL, **WIDE}, {*ATTENTION_AND_NORMS, "mlp"}, {"embed_tokens", "norm"}),
    "qwen3": ("Qwen3Config", {**SMALL, **WIDE, "head_dim": 8}, {*ATTENTION_AND_NORMS, "mlp"}, {"embed_tokens", "norm"}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        {"ln_1", "attn", "ln_2", "mlp"},
        {"embed_tokens", "norm", "module transformer.wpe"},
    ),
    "neox": (
        "GPTNeoXConfig",
        {**SMALL, "intermediate_size": 32, "max_position_embeddings": 64},
        {"input_layernorm", "post_attention_layernorm", "attention", "mlp"},
        {"embed_tokens", "norm"},
    ),
    "opt": (
        "OPTConfig",
        {**SMALL, "ffn_dim": 32, "max_position_embeddings": 64, "word_embed_proj_dim": 16},
        {"self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"},
        {"embed_tokens", "norm", "module model.decoder.embed_positions"},
    ),
    "mixtral": (
        "MixtralConfig",
        {**SMALL, **WIDE, "num_local_experts": 2, "num_experts_per_tok": 1},
        {*ATTENTION_AND_NORMS, "mlp"},
        {"embed_tokens", "norm"},
    ),
}


def make(kind: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, MODELS[kind][0])(**MODELS[kind][1])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(params=list(MODELS))
def kind(request: Any) -> str:
    return str(request.param)


def run(model: Any, tokens: int = 5) -> Any:
    with torch.inference_mode():
        return model(torch.arange(tokens)[None]).logits


def rows(group: ModulesGroup) -> list[dict[str, Any]]:
    (header, columns) = group.bulk()[0]
    arrays = {name: array(code, data) for name, (code, data) in columns.items()}
    lists = {"name": "names", "in_shape": "shapes", "out_shape": "shapes", "in_dtype": "dtypes", "dtype": "dtypes"}
    found = []
    for at in range(len(arrays["start_ns"])):
        row = {k: header[lists[k]][v[at]] if k in lists else v[at] for k, v in arrays.items()}
        found.append({**row, "path": header["paths"][arrays["name"][at]]})
    return found


def own_attributes(model: Any) -> list[set[str]]:
    return [set(vars(module)) for module in model.modules()]


def test_parts_are_found_by_structure_in_every_family(kind: str) -> None:
    model = make(kind)
    found = {name: (path, part) for name, path, part in parts(model)}
    _, _, children, beside = MODELS[kind]
    for layer in range(2):
        assert {n.split(".", 2)[2] for n in found if n.startswith(f"layers.{layer}.")} == children
    assert {n for n in found if not n.startswith("layers.")} == {*beside, "lm_head"}
    assert all(model.get_submodule(path) is part for path, part in found.values())
    assert found["embed_tokens"][1] is model.get_input_embeddings()
    assert found["lm_head"][1] is model.get_output_embeddings()


def test_a_forward_pass_is_recorded_and_unchanged(kind: str) -> None:
    model, group = make(kind), ModulesGroup()
    before, attributes = run(model), own_attributes(model)
    group.enable(lambda *record: None, {"model": model})
    during = run(model)
    group.disable()
    assert torch.equal(before, during) and torch.equal(before, run(model))
    assert own_attributes(model) == attributes
    assert all("forward" not in vars(module) for module in model.modules())
    seen = rows(group)
    assert {row["name"] for row in seen} == {name for name, _, _ in parts(model)}
    assert seen[0]["name"].startswith(("embed", "module")) and seen[-1]["name"] == "lm_head"
    by_name = {row["name"]: row for row in seen}
    embed, head = by_name["embed_tokens"], by_name["lm_head"]
    assert (embed["in_dtype"], embed["in_shape"]) == ("int64", "[1,5]")
    assert (embed["dtype"], embed["out_shape"]) == ("float32", "[1,5,16]")
    assert (head["in_shape"], head["out_shape"], head["dtype"]) == ("[1,5,16]", "[1,5,64]", "float32")
    assert all(row["in_shape"] and row["out_shape"] for row in seen)
    assert all(a["end_ns"] <= b["start_ns"] for a, b in pairwise(seen)), "they run one after the other"
    assert group.bulk() == [], "what was given is forgotten"


def test_what_is_recorded_keeps_no_tensor_alive() -> None:
    import gc

    model, group = make("llama"), ModulesGroup()
    group.enable(lambda *record: None, {"model": model})
    run(model)
    gc.collect()
    held = {id(o) for column in group._rows.columns for o in column} | {id(shape) for shape in group._shapes}
    assert held
    assert not any(id(o) in held for o in gc.get_objects() if isinstance(o, torch.Tensor))
    group.disable()


def test_the_garbage_collector_has_nothing_to_follow_in_what_is_recorded() -> None:
    import gc

    model, group = make("llama"), ModulesGroup()
    group.enable(lambda *record: None, {"model": model})
    run(model)
    group.disable()
    gc.collect()  # finds out that there is nothing to follow
    assert len(group._rows) > 10 and not any(gc.is_tracked(o) for column in group._rows.columns for o in column)


def test_an_error_of_the_model_passes_and_leaves_no_row() -> None:
    model, group = make("llama"), ModulesGroup()
    group.enable(lambda *record: None, {"model": model})
    with pytest.raises(IndexError), torch.inference_mode():
        model(torch.tensor([[10_000]]))
    group.disable()
    assert group.bulk() == []


def test_a_compiled_part_is_watched_from_outside_and_not_compiled_again() -> None:
    model, group = make("llama"), ModulesGroup()
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    for layer in model.model.layers:
        layer.mlp.compile(backend=backend, dynamic=True)
    expected = run(model)
    count, implementations = len(compiled), [layer.mlp._compiled_call_impl for layer in model.model.layers]
    assert count
    group.enable(lambda *record: None, {"model": model})
    assert torch.equal(run(model), expected)
    group.disable()
    assert len(compiled) == count, "the wrapper got into compiled code"
    assert [layer.mlp._compiled_call_impl for layer in model.model.layers] == implementations
    assert sum(row["name"].endswith(".mlp") for row in rows(group)) == 2


def test_nothing_inside_compiled_code_is_touched() -> None:
    model = make("llama")
    model.model.layers[0].compile(backend="eager")
    names = {name for name, _, _ in parts(model)}
    assert "layers.0" in names and not any(name.startswith("layers.0.") for name in names)
    assert "layers.1.mlp" in names
    model.model.compile(backend="eager")
    group = ModulesGroup()
    with pytest.raises(GroupUnavailable, match="no parts that can be watched"):
        group.enable(lambda *record: None, {"model": model})


def test_without_a_model_the_group_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tokentrace.engines.local.engine", raising=False)
    with pytest.raises(GroupUnavailable, match="no model is running"):
        ModulesGroup().enable(lambda *record: None)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()
