"""Layers as one row where not every measurement tells them apart, so that unseen is never taken for no time."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrace.compare.sample import NOBODY, Amount, Amounts, Sample

#: Key of layers 5 to 3 together, where a side does not tell them apart.
MODEL = "model"
#: Key of all that lies behind the client, where a side saw the server from outside only.
SERVER = "server"
_BEHIND_CLIENT = (7, 6, 5, 4, 3, 2)
_IN_MODEL = (5, 4, 3)


def group(samples: Sequence[Sample]) -> None:
    """Give all samples layers that each of them knows. Their levels have been worked out before."""
    if not _group_server(samples):
        _group_model(samples)


def _group_server(samples: Sequence[Sample]) -> bool:
    """All behind the client as one row where a side saw none of it: what it took there is not known, and not nothing.

    False: every side saw as much as the others.
    """
    known = [any(layer in s.levels.get("layers", {}) for layer in _BEHIND_CLIENT) for s in samples]
    if all(known) or not any(known) or any(s.kind == "import" or "layers" not in s.levels for s in samples):
        return False
    for sample in samples:
        layers = sample.levels["layers"]
        layers[SERVER] = _taken_out(layers, (*_BEHIND_CLIENT, NOBODY), NOBODY)
        if "spans" in sample.levels:
            sample.levels["spans"] = {k: a for k, a in sample.levels["spans"].items() if a.layer == 8}
        sample.levels.pop("steps", None)
        sample.missing["steps"] = "a side saw the server from outside only"
    return True


def _group_model(samples: Sequence[Sample]) -> None:
    """Layers 5 to 3 as one where not every sample tells them apart: light passes see them from outside only."""
    known = [{layer for layer in _IN_MODEL if layer in s.levels.get("layers", {})} for s in samples]
    if all(one == known[0] for one in known) and (4 in known[0] or 3 in known[0] or not known[0]):
        return
    for sample in samples:
        layers = sample.levels.get("layers")
        if layers is None:
            continue
        grouped = _taken_out(layers, _IN_MODEL, 5)
        if grouped.slots:
            layers[MODEL] = grouped


def _taken_out(layers: Amounts, which: Sequence[int], layer: int) -> Amount:
    """Their sum, as one of `layer`."""
    found = Amount("", layer)
    for key in which:
        for slot, spent in (layers.pop(key).slots if key in layers else {}).items():
            found.slots[slot] = found.slots.get(slot, 0) + spent
    return found
