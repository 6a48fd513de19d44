"""A trace as a program gets it: the spans, what they say, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from tokentrace import model
from tokentrace.carried import TREES, carry, carry_trees
from tokentrace.errors import UsageError
from tokentrace.report import FindingRow, LayerRow, Report, build

if TYPE_CHECKING:
    from tokentrace.emit.otlp_send import Delivery


class _Spans(Sequence[model.Span]):
    """The rows of a trace as spans; 100,000 of them would take much memory at once."""

    def __init__(self, data: model.Trace) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, at: int) -> model.Span: ...

    @overload
    def __getitem__(self, at: slice) -> list[model.Span]: ...

    def __getitem__(self, at: int | slice) -> model.Span | list[model.Span]:
        rows = range(len(self._data))[at]
        return self._data.span(rows) if isinstance(rows, int) else [self._data.span(row) for row in rows]


class Trace:
    """One finished trace. `data` are its spans in columns (see `model.Trace`), `report` what they say.

    `data` is whole; what goes out is folded to at most 10,000 spans unless `detail` is asked for.
    """

    def __init__(self, data: model.Trace | None = None, report: Report | None = None) -> None:
        self._data = data
        self._report = report
        self._folded: model.Trace | None = None

    @property
    def data(self) -> model.Trace:
        """The spans in columns. Raises UsageError while the trace is still being recorded."""
        if self._data is None:
            raise UsageError("the trace is not finished yet", fix="use it after the end of the with block")
        return self._data

    @property
    def report(self) -> Report:
        """What the spans say; `report.to_json()` has the schema of `tokentrace run --json`."""
        if self._report is None:
            self._report = build(self.data)
        return self._report

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.data.trace_id_hex

    @property
    def spans(self) -> Sequence[model.Span]:
        """Every span, parents before their children; the first one is the root. Each is made when it is asked for."""
        return _Spans(self.data)

    @property
    def layers(self) -> list[LayerRow]:
        """The eight layers, from 8 to 1: status, forms, own times in ns."""
        return self.report.layers

    @property
    def findings(self) -> list[FindingRow]:
        """What was found, one sentence each, with its evidence and what to do."""
        return self.report.findings

    @property
    def reply(self) -> str:
        return self.report.reply

    @property
    def wall_ns(self) -> int:
        """Of the request that the report speaks of."""
        return self.report.wall_ns

    @property
    def ttft_ns(self) -> int | None:
        """Time to the first token; None where it is not known."""
        return self.report.ttft_ns

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self.data)

    def __repr__(self) -> str:
        if self._data is None:
            return "<tokentrace.Trace, being recorded>"
        return f"<tokentrace.Trace {self.trace_id}, {len(self)} spans>"

    def to_otlp(self, *, detail: bool = False) -> bytes:
        """One protobuf message, `ExportTraceServiceRequest`, as a receiver of OTLP takes it."""
        from tokentrace.emit.otlp_encode import encode

        # Messages of one type that stand one behind the other are one message with all their repeated fields:
        # https://protobuf.dev/programming-guides/encoding/#last-one-wins
        return b"".join(encode(self._out(detail)))

    def save(self, path: str | Path, *, detail: bool = False) -> Path:
        """Write a file; the suffix chooses the format, see `tokentrace.emit`. Raises UsageError, ExportError."""
        from tokentrace import emit

        out = self._out(detail)
        if out is not self.data and emit.format_of(path) == "otlp-file" and TREES not in out.meta:
            carry_trees(out, self.data)
        emit.save(out, path)
        return Path(path)

    def send(self, endpoint: str = "", *, detail: bool = False) -> Delivery:
        """Send it over OTLP, to `endpoint` or where the OTEL_EXPORTER_OTLP_* variables say. What became of it is in
        the result. Raises UsageError for a target that cannot be used."""
        from tokentrace.emit.otlp_send import send
        from tokentrace.emit.otlp_target import OtlpTarget

        return send(self._out(detail), OtlpTarget.from_env(endpoint))

    def _out(self, detail: bool) -> model.Trace:
        from tokentrace.fold import BUDGET, fold

        if detail:
            return self.data
        if self._folded is None:
            self._folded = fold(self.data, BUDGET)
            if self._folded is not self.data:
                carry(self._folded, self.report)
        return self._folded
