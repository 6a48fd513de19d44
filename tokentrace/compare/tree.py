"""Several span trees made one (`analyze.tree` makes those of single passes).

Trees are aligned child list by child list, by the order of names, not by names alone: what came in between shifts
nothing, and one span between the same neighbours that only has another name is the same span renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from tokentrace.analyze.tree import Node

#: Longer lists of children are paired by name and order; aligning them would take time with the square of this.
_MAX_ALIGNED = 600


@dataclass(slots=True)
class Merged:
    """One place in several trees; `nodes[i]` is None where tree i has nothing there."""

    names: list[str]  # one, or of a renamed span several in the order they were met
    layer: int
    nodes: list[Node | None]
    children: list[Merged] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " → ".join(self.names)


def merge(trees: Sequence[Node]) -> Merged:
    """All trees as one. Raises ValueError without any."""
    if not trees:
        raise ValueError("there is no tree")
    first = trees[0]
    root = Merged([first.name], first.layer, list(trees))
    stack = [root]
    while stack:
        place = stack.pop()
        place.children = _children(place.nodes)
        stack += place.children
    return root


def _children(nodes: Sequence[Node | None]) -> list[Merged]:
    """The children of one place, in an order that keeps that of every tree as far as they agree."""
    found: list[Merged] = []
    for number, node in enumerate(nodes):
        mine = list(node.children.values()) if node is not None else []
        found = _align(found, mine, number, len(nodes)) if mine else found
    return found


def _align(known: list[Merged], mine: list[Node], number: int, count: int) -> list[Merged]:
    here = [(node.layer, node.name) for node in mine]
    there = [(place.layer, place.names[-1]) for place in known]
    if here == there:
        for place, node in zip(known, mine, strict=True):
            place.nodes[number] = node
        return known
    if max(len(here), len(there)) > _MAX_ALIGNED:
        return _by_name(known, mine, number, count)
    result: list[Merged] = []
    matcher = SequenceMatcher(None, there, here, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal" or (kind == "replace" and b - a == d - c and _alike(known[a:b], mine[c:d])):
            for place, node in zip(known[a:b], mine[c:d], strict=True):
                place.nodes[number] = node
                if node.name not in place.names:
                    place.names.append(node.name)
                result.append(place)
            continue
        result += known[a:b]
        result += [_new(node, number, count) for node in mine[c:d]]
    return result


def _alike(known: Sequence[Merged], mine: Sequence[Node]) -> bool:
    """Between the same neighbours, as many spans of the same layers with something in common below: spans renamed."""
    for place, node in zip(known, mine, strict=True):
        if place.layer != node.layer:
            return False
        below = {name for one in place.nodes if one is not None for name, _ in one.children}
        inside = {name for name, _ in node.children}
        if (below or inside) and not below & inside:
            return False
    return True


def _by_name(known: list[Merged], mine: list[Node], number: int, count: int) -> list[Merged]:
    waiting: dict[tuple[int, str], list[Merged]] = {}
    for place in reversed(known):
        waiting.setdefault((place.layer, place.names[-1]), []).append(place)
    for node in mine:
        places = waiting.get((node.layer, node.name))
        if places:
            places.pop().nodes[number] = node
        else:
            known.append(_new(node, number, count))
    return known


def _new(node: Node, number: int, count: int) -> Merged:
    nodes: list[Node | None] = [None] * count
    nodes[number] = node
    return Merged([node.name], node.layer, nodes)
