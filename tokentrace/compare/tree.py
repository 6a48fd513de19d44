"""The span tree of one pass with its repetitions laid on top of each other, and several such trees made one.

Steps of one phase become one branch; what each of them took stays apart, by slot ("decode", 3). The same goes for
siblings of one name outside of steps (a `write chunk` a token). Inside a step siblings of one name stay apart in their
order: the third `aten::mm` of a module is compared with the third.

Trees are aligned child list by child list, by the order of names, not by names alone: what came in between shifts
nothing, and one span between the same neighbours that only has another name is the same span renamed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from tokentrace.analyze import PassTimes
from tokentrace.compare.noise import Slot
from tokentrace.layers import MARKS
from tokentrace.model import Trace

#: What differs from request to request: UUIDs, long hexadecimal numbers, addresses, ids of requests.
_IDS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?:chatcmpl|cmpl|req|request)-[\w-]+|"
    r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{12,}\b",
    re.IGNORECASE,
)
_ONCE: Slot = ("", 0)
#: Steps without a phase (of training, of another engine): a name of their own, or they would be what runs once.
STEP = "step"
#: Longer lists of children are paired by name and order; aligning them would take time with the square of this.
_MAX_ALIGNED = 600


@dataclass(slots=True)
class Node:
    """One place in the tree. `own` is its own time, ns by slot."""

    name: str
    layer: int
    own: dict[Slot, int] = field(default_factory=dict)
    children: dict[tuple[str, int], Node] = field(default_factory=dict)


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


def same_name(name: str) -> str:
    """The name without what differs from request to request."""
    return _IDS.sub("#", name)


def below(trace: Trace) -> dict[int, list[int]]:
    """Rows of the children of the rows that have any, in row order. Most spans have none."""
    found: dict[int, list[int]] = {}
    for row, parent in enumerate(trace.parent):
        if parent >= 0:
            found.setdefault(parent, []).append(row)
    return found


def build(trace: Trace, one: PassTimes, children: Mapping[int, Sequence[int]]) -> Node:
    """The tree of a pass. Power, and spans that only say that a layer was not seen, are left out.

    `children` is `below(trace)`, which serves all passes."""
    own = one.own_by_row
    top = one.view.chat if one.view.chat >= 0 else one.view.row
    # The request's own span has the model's name in it, which may be another one on the other side.
    root = Node("chat" if top == one.view.chat else "pass", trace.layer[top])
    names = {code: same_name(name) for code, name in enumerate(trace.names)}
    steps: dict[tuple[str, str], int] = {}
    stack: list[tuple[int, Node, Slot, bool]] = [(one.view.row, root, _ONCE, False)]
    _note(root, _ONCE, own.get(top, 0))
    while stack:
        parent, node, slot, in_step = stack.pop()
        met: dict[str, int] = {}
        counts = Counter(() if in_step else (names[trace.name[row]] for row in children.get(parent, ())))
        for row in sorted(children.get(parent, ()), key=trace.start_ns.__getitem__):  # of one start, in row order
            name, layer = names[trace.name[row]], trace.layer[row]
            if layer == 1 or name in MARKS:
                continue
            if row == top:
                stack.append((row, root, slot, in_step))
                continue
            number = met.get(name, 0)
            met[name] = number + 1
            key, mine, inside = (name, number), slot, in_step
            if layer == 6 and name == "step":
                phase = str(trace.attributes(row).get("tokentrace.step.phase", ""))
                where = trace.process[row], phase
                mine = phase or STEP, steps.get(where, 0)
                steps[where] = mine[1] + 1
                key, inside = (f"{phase} step".strip(), 0), True
            elif not in_step:
                key = name, 0
                if slot == _ONCE and counts[name] > 1:
                    mine = name, number
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(key[0], layer)
            _note(child, mine, own.get(row, 0))
            if row in children:
                stack.append((row, child, mine, inside))
    return root


def _note(node: Node, slot: Slot, own_ns: int) -> None:
    if own_ns:
        node.own[slot] = node.own.get(slot, 0) + own_ns


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
