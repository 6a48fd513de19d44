"""`tokentrace import`: recordings made by torch.profiler, Nsight Systems or rocprofv3."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.errors import UsageError

if TYPE_CHECKING:
    from tokentrace.importers import Imported

#: An import that takes no longer shows no progress.
_QUIET_S = 1.0


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--window", metavar="START-END", help="Only this stretch, in ms from the first event, such as 100-250.")
@click.option("--step", type=int, help="Only the step with this number.")
@click.option("--rank", type=int, help="Only this rank of a folder of ranks.")
@click.option("-o", "--out", metavar="FILE", help="Write the trace; the suffix chooses the format.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures and findings as JSON.")
def command(
    files: tuple[str, ...], window: str | None, step: int | None, rank: int | None, out: str | None, as_json: bool
) -> None:
    """Read GPU recordings: torch.profiler JSON (.json, .json.gz), nsys .sqlite, rocprofv3 JSON, a folder of ranks.

    \b
    Examples:
      tokentrace import trace.json.gz
      tokentrace import ranks/ --rank 3 --json
      tokentrace import trace.json.gz --window 100-250 -o cut.jsonl
    """
    from tokentrace import importers
    from tokentrace.emit import save

    line = _ProgressLine()
    try:
        imported = importers.load(list(files), window=_window(window), step=step, rank=rank, progress=line.tell)
    finally:
        line.end()
    written: list[str] = []
    if out:
        save(imported.trace, Path(out))
        written.append(out)
    if as_json:
        import orjson

        document = {
            "schema": "tokentrace.import/1",
            "trace_id": imported.trace.trace_id_hex,
            "source": imported.source,
            "figures": imported.figures,
            "steps": imported.steps,
            "operators": imported.operators,
            "layers": [
                {"layer": s.layer, "status": s.status, "reason": s.reason, "fix": s.fix, "facts": _plain(s.facts)}
                for s in imported.layers
            ],
            "findings": [
                {"layer": f.layer, "status": f.status, "sentence": f.sentence, "evidence": f.evidence, "fix": f.fix}
                for f in imported.findings
            ],
            "lost": imported.lost,
            "spans": {"produced": len(imported.trace)},
            "files": written,
        }
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
        return
    _print(imported)
    for path in written:
        click.echo(f"trace: {path} ({len(imported.trace)} spans)")


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text.strip())
    if not match:
        raise UsageError(f"--window {text!r} is not START-END in milliseconds", fix="for example --window 100-250")
    start, end = (int(float(part) * 1_000_000) for part in match.groups())
    return start, end


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if isinstance(value, (bool, int, float, str))}


class _ProgressLine:
    """The bytes read so far on one line of standard error, on a terminal, when reading takes long."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._due = time.monotonic() + _QUIET_S
        self._shown = False

    def tell(self, size: int) -> None:
        if self._terminal and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.1
            self._shown = True
            self._write(f"{size / 1e6:,.0f} MB read …")

    def end(self) -> None:
        if self._shown:
            self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def _idle(figures: dict[str, Any]) -> str:
    if figures["idle_share"] is not None:
        return f"{figures['idle_share']:.1%}"
    if not figures["kernels"]:
        return "unknown: no kernel in it"
    if len(figures["devices"]) > 1:
        return "unknown: several devices"
    return (
        "unknown: not every recording shows a device" if figures["span_ns"] else "unknown: the recording has no length"
    )


def _print(imported: Imported) -> None:
    figures, lost = imported.figures, imported.lost
    click.echo(
        f"{figures['kernels']} kernels, {figures['launches']} launches ({figures['graph_launches']} of graphs), "
        f"{figures['matched']} matched, {figures['orphan_kernels']} kernels without their launch"
    )
    busy, span = figures["busy_ns"] / 1e6, figures["span_ns"] / 1e6
    click.echo(f"GPU busy {busy:.3f} ms of {span:.3f} ms; idle share {_idle(figures)}")
    for kernel in figures["top_kernels"][:5]:
        click.echo(f"  {kernel['total_ns'] / 1e6:10.3f} ms  {kernel['count']:6d} x  {kernel['name'][:90]}")
    if lost["events"] or lost["reason"]:
        click.echo(f"lost: {lost['events']} events, {lost['reason']}")
    for finding in imported.findings:
        click.echo(f"[{finding.status}] layer {finding.layer}: {finding.sentence}")
        if finding.evidence:
            click.echo(f"    evidence: {finding.evidence}")
        if finding.fix:
            click.echo(f"    fix: {finding.fix}")
