"""The span tree of one pass with its repetitions laid on top of each other.

Steps of one phase become one branch; what each of them took stays apart, by slot ("decode", 3). The same goes for
siblings of one name outside of steps (a `write chunk` a token). Inside a step siblings of one name stay apart in their
order: the third `aten::mm` of a module is compared with the third.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokentrace.analyze import PassTimes
from tokentrace.layers import MARKS
from tokentrace.model import Trace

#: A phase and a number in it; ("", 0) for what runs once.
Slot = tuple[str, int]
#: What differs from request to request: UUIDs, long hexadecimal numbers, addresses, ids of requests.
_IDS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?:chatcmpl|cmpl|req|request)-[\w-]+|"
    r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{12,}\b",
    re.IGNORECASE,
)
_ONCE: Slot = ("", 0)
#: Steps without a phase (of training, of another engine): a name of their own, or they would be what runs once.
STEP = "step"


@dataclass(slots=True)
class Node:
    """One place in the tree. `own` is its own time, ns by slot."""

    name: str
    layer: int
    own: dict[Slot, int] = field(default_factory=dict)
    children: dict[tuple[str, int], Node] = field(default_factory=dict)


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
