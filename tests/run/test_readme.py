"""The README's layer table says what layers.yaml says."""

from __future__ import annotations

from pathlib import Path

from tokentrace import layers

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_layer_table_is_that_of_layers_yaml() -> None:
    for layer in layers.load():
        module = layer.probe.partition(":")[0].removeprefix("tokentrace.").replace(".", "/")
        assert f"| {layer.number} | {layer.title} | {layer.question} | `{module}.py` |" in README
