"""`tokentrace import`: recordings made by torch.profiler, Nsight Systems or rocprofv3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from tokentrace.errors import UsageError


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

    imported = importers.load(list(files), window=_window(window), step=step, rank=rank)
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
                {"layer": s.layer, "status": s.status, "reason": s.reason, "fix": s.fix} for s in imported.layers
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


def _print(imported: Any) -> None:
    figures = imported.figures
    idle = figures["idle_share"]
    click.echo(
        f"{figures['kernels']} kernels, {figures['launches']} launches ({figures['graph_launches']} of graphs), "
        f"{figures['matched']} matched, {figures['orphan_kernels']} kernels without their launch"
    )
    shown = "unknown: no kernel in it" if idle is None else f"{idle:.1%}"
    click.echo(f"GPU busy {figures['busy_ns'] / 1e6:.3f} ms of {figures['span_ns'] / 1e6:.3f} ms; idle share {shown}")
    for kernel in figures["top_kernels"][:5]:
        click.echo(f"  {kernel['total_ns'] / 1e6:10.3f} ms  {kernel['count']:6d} x  {kernel['name'][:90]}")
    if imported.lost.get("events"):
        click.echo(f"lost: {imported.lost['events']} events, {imported.lost.get('reason', '')}")
    for finding in imported.findings:
        click.echo(f"[{finding.status}] layer {finding.layer}: {finding.sentence}")
        if finding.fix:
            click.echo(f"    fix: {finding.fix}")
