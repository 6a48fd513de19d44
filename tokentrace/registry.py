"""Finds probes: the built-in ones named in layers.yaml and others by the entry point group tokentrace.probes."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from tokentrace.errors import LayerError, ProbeUnavailable
from tokentrace.layers import Layer, load
from tokentrace.probe import Probe

GROUP = "tokentrace.probes"


def create(layer: Layer) -> Probe:
    """The probe of a layer, imported on first use. An installed entry point of the layer's id wins over the
    built-in one, so that a third party enters by the same door. Raises ProbeUnavailable when it does not load.
    """
    target = _entry_point_target(layer)
    try:
        module_name, _, class_name = target.partition(":")
        probe = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError) as error:
        raise ProbeUnavailable(
            f"the probe {target} of layer {layer.number} does not load: {error}",
            fix="reinstall tokentrace, or the package that brings this probe",
        ) from error
    if not isinstance(probe, Probe) or probe.layer != layer.number:
        raise LayerError(f"{target} is no probe of layer {layer.number}", fix="mend its class or layers.yaml")
    return probe


def _entry_point_target(layer: Layer) -> str:
    found: list[EntryPoint] = [e for e in entry_points(group=GROUP) if e.name == layer.id]
    foreign = [e.value for e in found if not e.value.startswith("tokentrace.probes.")]
    return foreign[0] if foreign else layer.probe


def layers_in_order(numbers: frozenset[int] | None = None) -> list[Layer]:
    """Layers nearest the user first, all or those chosen."""
    return [layer for layer in load() if numbers is None or layer.number in numbers]
