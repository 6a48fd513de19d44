"""What the client itself costs, measured while it runs: its processor time, and how late its threads are.

A thread that only sleeps and looks at the clock is late by what the operating system and Python's lock make everyone
else late by as well. So its lateness bounds what this client adds to the time of a chunk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

_EVERY_S = 0.005
_MOST = 200_000
#: A client this busy shapes the figures.
BUSY = 0.7


@dataclass(slots=True)
class OwnCost:
    """`cpu_share`: of one core. `late_*_ns`: how late a thread of this client ran; None: too short to tell."""

    cpu_share: float | None
    cpu_ns_a_chunk: float | None
    late_median_ns: float | None
    late_p99_ns: float | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def warning(self, typical_ns: float | None) -> str:
        """Why the figures may be the client's rather than the server's; "" when they are not."""
        if self.cpu_share is not None and self.cpu_share > BUSY:
            return f"this client used {self.cpu_share:.0%} of a core: it may be the bottleneck; lower the load"
        if typical_ns and self.late_p99_ns is not None and self.late_p99_ns > typical_ns / 2:
            return (
                f"threads of this client ran up to {self.late_p99_ns / 1e6:.1f} ms late (p99), which is in the "
                "figures; use a quieter machine"
            )
        return ""


class Watch:
    """Measures while it is open."""

    def __init__(self) -> None:
        self._late: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True, name="bench-clock")
        self._began = (0, 0)
        self._cpu_ns = self._wall_ns = 0  # spent while it was open

    def __enter__(self) -> Watch:
        self._began = _clocks()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._cpu_ns, self._wall_ns = (now - then for now, then in zip(_clocks(), self._began, strict=True))

    def _tick(self) -> None:
        while not self._end.is_set() and len(self._late) < _MOST:
            due = time.monotonic_ns() + int(_EVERY_S * 1e9)
            time.sleep(_EVERY_S)
            self._late.append(max(0, time.monotonic_ns() - due))

    def cost(self, cpu_ns: Sequence[int], chunks: int) -> OwnCost:
        """After the end. `cpu_ns`: processor time of each request, `chunks` of all of them."""
        late = np.array(self._late, np.float64)
        enough = len(late) >= 20
        return OwnCost(
            self._cpu_ns / self._wall_ns if self._wall_ns else None,
            sum(cpu_ns) / chunks if chunks else None,
            float(np.median(late)) if enough else None,
            float(np.quantile(late, 0.99)) if enough else None,
        )


def _clocks() -> tuple[int, int]:
    """Processor time of this process and wall time, ns."""
    return time.process_time_ns(), time.monotonic_ns()
