"""An agent that answers with what a test gives it, and the pass in which a probe asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokentrace.exchange import Exchange
from tokentrace.probe import Columns, ProbeContext, Raw


class Answering:
    """An agent that has recorded exactly this. It keeps what it was asked to do in `log`."""

    def __init__(
        self,
        recorded: Sequence[Columns] = (),
        raws: Sequence[Raw] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._columns, self._raws, self._facts = recorded, raws, facts or {}
        self.log: list[tuple[str, str]] = []

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        self.log.append(("enable", group))

    def disable(self, group: str) -> None:
        self.log.append(("disable", group))

    def records(self, group: str) -> Sequence[Raw]:
        return [raw for raw in self._raws if raw.group == group]

    def columns(self, group: str) -> Sequence[Columns]:
        return [c for c in self._columns if c.group == group]

    def facts(self) -> Mapping[str, Any]:
        return self._facts


def context(agent: Answering | None, *, end_ns: int = 0, start_ns: int = 0, request: str = "r1") -> ProbeContext:
    """A deep pass; with `end_ns` an exchange took place."""
    exchange = Exchange("http://x/v1", "m", 1, "00-0-0-01", start_ns=start_ns, end_ns=end_ns) if end_ns else None
    return ProbeContext("local", "deep", deep=True, agent=agent, exchange=exchange, request_id=request)
