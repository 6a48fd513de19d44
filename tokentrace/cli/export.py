"""`tokentrace export`: a saved trace to a collector or into another format."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokentrace.errors import ExportError, UsageError

if TYPE_CHECKING:
    from tokentrace.model import Trace


@click.command("export")
@click.argument("trace", metavar="TRACE")
@click.option("--to", "target", required=True, type=click.Choice(["otlp", "otlp-file", "jaeger", "perfetto", "html"]))
@click.option("--endpoint", help="OTLP endpoint; default: the OTEL_EXPORTER_OTLP_* variables.")
@click.option("-o", "--out", metavar="FILE", help="File to write (not for --to otlp).")
def command(trace: str, target: str, endpoint: str | None, out: str | None) -> None:
    """Send TRACE (a saved run, or a .jsonl file) to an OTLP receiver, or write it for Jaeger, Perfetto or a browser.

    \b
    Examples:
      tokentrace export run.jsonl --to otlp --endpoint http://localhost:4318
      tokentrace export run.jsonl --to jaeger -o run.jaeger.json
    """
    from tokentrace import emit, runs

    source = runs.find(trace)
    name = source.name.lower().removesuffix(".gz")
    if name.endswith((".json", ".sqlite", ".db")) and not name.endswith((".jaeger.json", ".perfetto.json")):
        # .json and .trace.json are names of viewers' files to `save`, and of most recordings to everybody else.
        recording = shlex.quote(str(source))
        raise UsageError(
            f"{source} is no trace that tokentrace saved whole",
            fix=f"give a run or a .jsonl file; of a GPU recording: tokentrace import {recording} -o FILE",
        )
    loaded = emit.load(source)
    if target == "otlp":
        from tokentrace.emit.otlp_send import send
        from tokentrace.emit.otlp_target import OtlpTarget

        receiver = OtlpTarget.from_env(endpoint or "", option="--endpoint")
        for remark in receiver.remarks:
            click.echo(f"warning: {remark}", err=True)
        delivery = send(loaded, receiver)
        click.echo(f"produced {delivery.produced}, accepted {delivery.accepted}, did not arrive {delivery.rejected}")
        if not delivery.ok:
            raise ExportError(delivery.message, fix=delivery.fix)
        return
    suffix = {"otlp-file": ".jsonl", "jaeger": ".jaeger.json", "perfetto": ".perfetto.json", "html": ".html"}[target]
    stem = source.name.removesuffix(".gz").removesuffix(".jsonl")
    path = Path(out) if out else source.with_name(stem + suffix)
    if not out and target == "otlp-file":
        path = Path.cwd() / f"{source.parent.name if source.name == runs.TRACE else stem}.jsonl"
    if path.resolve() == source.resolve():
        raise UsageError(f"{path} is the trace itself", fix="give another file with -o")
    if target == "otlp-file":
        _carry(loaded, source)
    emit.save(loaded, path, format=target, report=runs.report_of(source) if target == "html" else None)
    click.echo(f"{path} ({len(loaded)} spans)")


def _carry(folded: Trace, source: Path) -> None:
    """What the run's folder knows of a folded trace goes with the file that leaves it."""
    from tokentrace import emit, runs
    from tokentrace.carried import carry, carry_trees

    detail = runs.detail_of(source)
    if detail is None:
        return
    with contextlib.suppress(UsageError):  # a damaged one: then the file knows no more than the folded trace
        whole = emit.load(detail)
        if not whole.meta.get("lost"):
            carry(folded, runs.report_of(source))
            carry_trees(folded, whole)
