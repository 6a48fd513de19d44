"""Why a server is not looked into more deeply: reasons with what to do about each, told once where several share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokentrace.attach.found import Found, ServerProcess

#: So many reasons go into one sentence; a list of them has them all.
_MOST = 4


class Why(NamedTuple):
    """One reason, as a sentence, and what to do about it; "" where there is none."""

    reason: str
    fix: str


NOTHING = Why("", "")


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A process of the server that has no agent, and why."""

    process: ServerProcess
    why: Why


_ASKED_OUTSIDE = Why("--method outside was asked for", "attach without --method outside")


def why_not_deeper(found: Found, method: str, alone: Iterable[Why]) -> list[Why]:
    """Every reason: of the processes that were left alone, and what keeps the rest of the server out of sight."""
    whole = _ASKED_OUTSIDE if method == "outside" else Why(found.reason, found.fix)
    return [one for one in (*alone, whole) if one.reason or one.fix]


def by_fix(whys: Iterable[Why]) -> list[tuple[list[str], str]]:
    """(the reasons, what to do about all of them), in the order in which they were found."""
    found: dict[str, list[str]] = {}
    for one in whys:
        reasons = found.setdefault(one.fix, [])
        if one.reason and one.reason not in reasons:
            reasons.append(one.reason)
    return [(reasons, fix) for fix, reasons in found.items() if reasons or fix]


def in_one(whys: Sequence[Why]) -> Why:
    """All of them as one: of many the first ones, and how many more there are."""
    return Why(_joined(one.reason for one in whys), _joined(one.fix for one in whys))


def _joined(parts: Iterable[str]) -> str:
    each = [one for one in dict.fromkeys(parts) if one]
    more = [f"and {len(each) - _MOST} more"] if len(each) > _MOST else []
    return "; ".join([*each[:_MOST], *more])
