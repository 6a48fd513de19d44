"""The report that a folded trace carries: what was worked out of every span before the spans were folded.

It lies in the trace's meta, which OTLP JSON lines keep beside the messages, where a receiver ignores it; so the file of
a run says what the run says. A file outside of the run's folder, where the whole trace lies beside the folded one, also
carries the trees of what was folded, which a comparison needs: some hundredths of its size. Other formats, and a trace
that went through a receiver, carry neither.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from tokentrace.analyze import Analysis, PassTimes, analyze
from tokentrace.analyze.tree import Node, Slot, below
from tokentrace.analyze.tree import build as tree_of
from tokentrace.model import Trace
from tokentrace.report import Report, build, lost_sentence

_KEY = "report"
#: In meta: {pass: its tree}. A file has it in a line of its own, the last.
TREES = "trees"
#: A packed tree that is larger stays away; one that unpacks to more is none of ours.
_MOST_PACKED, _MOST_BYTES = 4_000_000, 100_000_000


def carry(folded: Trace, report: Report) -> None:
    """Leave in a folded trace the report of the whole one."""
    folded.meta[_KEY] = {**report.to_json(), "files": []}


def carried(trace: Trace) -> Report | None:
    """The report that the trace carries; None where there is none, or one that this version cannot read."""
    told = trace.meta.get(_KEY)
    if not isinstance(told, dict):
        return None
    try:
        found = Report.from_json(told)
    except ValueError:
        return None
    if found.trace_id != trace.trace_id_hex:
        return None
    fold = trace.meta.get("fold")
    recorded = fold.get("recorded") if isinstance(fold, dict) else None
    found.spans = {"accepted": None, "rejected": None, "produced": len(trace), "recorded": recorded}
    if lost := trace.meta.get("lost"):
        found.notes.append(f"{lost_sentence(lost, trace)} What is told here is of the whole run.")
    return found


def report_of(trace: Trace) -> Report:
    """The report of a trace: the one that it carries, else what its spans tell."""
    return carried(trace) or build(trace)


def carry_trees(folded: Trace, whole: Trace, found: Analysis | None = None) -> None:
    """Leave in a folded trace the trees of the passes that lost spans. `found`: the analysis of the whole one."""
    lost = analyze(folded).folded
    found = found or analyze(whole)
    children = below(whole)
    packed = {name: _pack(tree_of(whole, found.passes[name], children)) for name in lost if name in found.passes}
    folded.meta[TREES] = {name: text for name, text in packed.items() if len(text) <= _MOST_PACKED}


def restore(trace: Trace, found: Analysis) -> None:
    """Give the passes of a folded trace the own times that it carries."""
    report = carried(trace) if found.folded else None
    for name, told in report.passes.items() if report is not None else ():
        one = found.passes.get(name)
        if one is not None and one.folded:
            places = {key.partition(".")[::2]: spent for key, spent in told.own_ns.items()}
            one.own = {(int(layer), way): spent for (layer, way), spent in places.items() if layer.isdecimal()}
            one.unattributed_ns = told.unattributed_ns


class Trees:
    """The trees of a trace's passes: as its spans are, or of a pass that was folded as the trace carries it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._children: dict[int, list[int]] | None = None

    def of(self, one: PassTimes) -> Node | None:
        """None where the spans were folded and no tree is carried."""
        if one.folded:
            return _carried_tree(self._trace, one.name)
        if self._children is None:
            self._children = below(self._trace)
        return tree_of(self._trace, one, self._children)


def _carried_tree(trace: Trace, name: str) -> Node | None:
    packed = trace.meta.get(TREES)
    text = packed.get(name) if isinstance(packed, dict) and carried(trace) is not None else None
    try:
        return _unpack(text) if isinstance(text, str) else None
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None


class _Packed(msgspec.Struct):
    """`nodes` parents first, each after all that lies below the sibling before it: (depth, name, which of its siblings
    of that name, layer, [slot, own ns, slot, own ns, …])."""

    names: list[str]
    slots: list[Slot]
    nodes: list[tuple[int, int, int, int, list[int]]]


def _pack(root: Node) -> str:
    names: dict[str, int] = {}
    slots: dict[Slot, int] = {}
    nodes = []
    stack = [(root, 0, 0)]
    while stack:
        node, depth, number = stack.pop()
        own: list[int] = []
        for slot, spent in node.own.items():
            own += (slots.setdefault(slot, len(slots)), spent)
        nodes.append((depth, names.setdefault(node.name, len(names)), number, node.layer, own))
        below_it = [(child, depth + 1, which) for (_, which), child in node.children.items()]
        stack += reversed(below_it)
    data = msgspec.json.encode(_Packed(list(names), list(slots), nodes))
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _unpack(text: str) -> Node:
    """Raises ValueError, zlib.error or msgspec.MsgspecError for what `_pack` did not make."""
    opened = zlib.decompressobj()
    data = opened.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    if opened.unconsumed_tail:
        raise ValueError("larger than any tree")
    packed = msgspec.json.decode(data, type=_Packed)
    path: list[Node] = []
    for depth, name, number, layer, own in packed.nodes:
        if (depth > len(path) or not depth) and (path or depth):
            raise ValueError("no tree")
        node = Node(_at(packed.names, name), layer)
        node.own = {_at(packed.slots, slot): spent for slot, spent in zip(own[::2], own[1::2], strict=True)}
        del path[depth:]
        if path:
            path[-1].children[node.name, number] = node
        path.append(node)
    if not path:
        raise ValueError("no tree")
    return path[0]


def _at(items: list[Any], index: int) -> Any:
    if not 0 <= index < len(items):
        raise ValueError("no tree")
    return items[index]
