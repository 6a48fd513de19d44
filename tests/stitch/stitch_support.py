"""Checks of stitched trees."""

from __future__ import annotations

from typing import Any

from tokentrace.model import Trace
from tokentrace.stitch import PassRecords


def check_tree(trace: Trace) -> None:
    """One root, parents first, children inside their parents, ids unique, links to spans that are there."""
    assert trace.parent[0] == -1
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        assert 0 <= parent < row
        assert trace.start_ns[parent] <= trace.start_ns[row] <= trace.end_ns[row] <= trace.end_ns[parent]
    assert len(set(trace.span_id)) == len(trace) and 0 not in trace.span_id
    assert all(link.span_id in set(trace.span_id) for links in trace.links.values() for link in links)


def names_above(trace: Trace, name: str) -> list[str]:
    row = next(r for r in range(len(trace)) if trace.names[trace.name[r]] == name)
    found = []
    while row >= 0:
        found.append(trace.names[trace.name[row]])
        row = trace.parent[row]
    return found


def fields(one: PassRecords) -> dict[str, Any]:
    """What `PassRecords` was made of, to make another like it."""
    return {name: getattr(one, name) for name in one.__slots__}
