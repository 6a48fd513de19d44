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
    from datetime import tzinfo

    from tokentrace.importers import Imported
    from tokentrace.probe import Finding

#: An import that takes no longer shows no progress.
_QUIET_S = 1.0
_STEPS_SHOWN = 8


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--window", metavar="START-END", help="Only this stretch, in ms from the first event, such as 100-250.")
@click.option("--step", type=int, help="Only the step with this number.")
@click.option("--rank", type=int, help="Only this rank of a folder of ranks.")
@click.option("--zone", metavar="ZONE", help="Time zone of a power dump, such as Europe/Berlin or +02:00; default UTC.")
@click.option("-o", "--out", metavar="FILE", help="Write the trace; the suffix chooses the format.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures and findings as JSON.")
def command(
    files: tuple[str, ...],
    window: str | None,
    step: int | None,
    rank: int | None,
    zone: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Read GPU recordings: torch.profiler JSON (.json, .json.gz), nsys .sqlite, rocprofv3 JSON, a folder of ranks.

    Compile logs and power dumps (nvidia-smi, rocm-smi, amd-smi) beside a recording, or power dumps beside a saved run,
    are joined to it by time.

    \b
    Examples:
      tokentrace import trace.json.gz
      tokentrace import ranks/ --rank 3 --json
      tokentrace import trace.json.gz --window 100-250 -o cut.jsonl
      tokentrace import 20261130-101500 power.csv --zone Europe/Berlin
    """
    from tokentrace import importers
    from tokentrace.emit import save

    run = _saved_run(files)
    if run is not None:
        if window or step is not None or rank is not None:
            raise UsageError("--window, --step and --rank cut recordings, not a run", fix="leave them out")
        _power_of(run, files, _zone(zone), out, as_json)
        return
    line = _ProgressLine()
    try:
        imported = importers.load(
            list(files), window=_window(window), step=step, rank=rank, zone=_zone(zone), progress=line.tell
        )
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
            "findings": _findings(imported.findings),
            "lost": imported.lost,
            "spans": {"produced": len(imported.trace)},
            "files": written,
        }
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
        return
    _print(imported)
    for path in written:
        click.echo(f"trace: {path} ({len(imported.trace)} spans)")


def _saved_run(files: tuple[str, ...]) -> tuple[str, Path] | None:
    """(as given, its trace) of the first argument that is a run of tokentrace, None when there is none."""
    from tokentrace import runs

    for given in files:
        path = Path(given)
        if path.is_file() and not path.name.endswith((".jsonl", ".jsonl.gz")):
            continue
        if path.is_dir() and not (path / runs.TRACE).is_file():
            continue
        try:
            return given, runs.find(given)
        except UsageError:
            continue
    return None


def _power_of(
    run: tuple[str, Path], files: tuple[str, ...], zone: tzinfo | None, out: str | None, as_json: bool
) -> None:
    """Power dumps beside a saved run."""
    from tokentrace.emit import load, save
    from tokentrace.importers import power_dumps, power_of_run

    dumps = [Path(given) for given in files if given != run[0]]
    if not dumps:
        raise UsageError(f"{run[0]} is a run of tokentrace already", fix=f"tokentrace show {run[0]}")
    trace, findings = power_of_run.join_power(
        load(run[1]), [(path.name, power_dumps.read(path, zone)) for path in dumps]
    )
    if out:
        save(trace, Path(out))
    written = [out] if out else []
    if as_json:
        import orjson

        power = [span.attributes for span in trace.spans if span.layer == 1 and span.name == "power"]
        document = {"schema": "tokentrace.import.power/1", "trace_id": trace.trace_id_hex, "power": power,
                    "findings": _findings(findings), "files": written}  # fmt: skip
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    _print_findings(findings)
    for path in written:
        click.echo(f"trace: {path} ({len(trace)} spans)")


def _zone(text: str | None) -> tzinfo | None:
    if text is None:
        return None
    from datetime import timedelta, timezone
    from zoneinfo import ZoneInfo

    if match := re.fullmatch(r"([+-])(\d{1,2}):?(\d\d)", text.strip()):
        minutes = int(match[2]) * 60 + int(match[3])
        if minutes < 24 * 60:
            return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    try:
        return ZoneInfo(text.strip())
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(
            f"--zone {text!r} is no time zone that this machine knows", fix="for example --zone Europe/Berlin or +02:00"
        ) from error


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text.strip())
    if not match:
        raise UsageError(f"--window {text!r} is not START-END in milliseconds", fix="for example --window 100-250")
    start, end = (int(float(part) * 1_000_000) for part in match.groups())
    return start, end


def _findings(findings: list[Finding]) -> list[dict[str, Any]]:
    return [
        {"layer": f.layer, "status": f.status, "sentence": f.sentence, "evidence": f.evidence, "fix": f.fix}
        for f in findings
    ]


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
    for step in imported.steps[:_STEPS_SHOWN]:
        click.echo(f"  {_step(step)}")
    if len(imported.steps) > _STEPS_SHOWN:
        click.echo(f"  … {len(imported.steps) - _STEPS_SHOWN} more steps, see --json")
    if lost["events"] or lost["reason"]:
        click.echo(f"lost: {lost['events']} events, {lost['reason']}")
    _print_findings(imported.findings)


def _step(step: dict[str, Any]) -> str:
    """One line on a step: what it was, how busy the device was, and what it and the host waited for."""
    what = str(step.get("phase") or "")
    sizes = ", ".join(f"{key} {step[key]}" for key in ("batch", "tokens") if step.get(key))
    name = f"{step['lane']} " if step.get("lane") else ""
    name += f"step {step['index']}" + (f" ({', '.join(filter(None, (what, sizes)))})" if what or sizes else "")
    told = [f"{step['span_ns'] / 1e6:.3f} ms", f"busy {step['busy_ns'] / 1e6:.3f} ms", f"{step['kernels']} kernels"]
    if step["graph_kernels"]:
        told.append(f"{step['graph_kernels']} in graphs")
    if step["starved_ns"]:
        told.append(f"waiting for launches {step['starved_ns'] / 1e6:.3f} ms")
    if step["blocked_ns"]:
        told.append(f"host blocked {step['blocked_ns'] / 1e6:.3f} ms")
    return f"{name}: {', '.join(told)}"


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"[{finding.status}] layer {finding.layer}: {finding.sentence}")
        if finding.evidence:
            click.echo(f"    evidence: {finding.evidence}")
        if finding.fix:
            click.echo(f"    fix: {finding.fix}")
