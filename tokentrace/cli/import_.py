"""`tokentrace import`: recordings made by torch.profiler, Nsight Systems or rocprofv3."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import textwrap
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _streams
from tokentrace.cli._options import NO_COLOR
from tokentrace.errors import UsageError
from tokentrace.wording import plural, share

if TYPE_CHECKING:
    from datetime import tzinfo

    from tokentrace.importers import Imported
    from tokentrace.probe import Finding
    from tokentrace.report import Report

#: An import that takes no longer shows no progress.
_QUIET_S = 1.0
_STEPS_SHOWN = 8


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--window", metavar="START-END", help="Only this stretch, in ms from the first event, such as 100-250.")
@click.option("--step", type=int, help="Only the step with this number.")
@click.option("--rank", type=int, help="Only this rank of a folder of ranks.")
@click.option(
    "--zone", metavar="ZONE", help="Time zone of a power dump or Triton log (Europe/Berlin, +02:00); default UTC."
)
@click.option("-o", "--out", metavar="FILE", help="Write the trace; the suffix chooses the format.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures and the report as JSON.")
@click.option("-q", "quiet", is_flag=True, help="Print nothing but errors.")
@NO_COLOR
def command(
    files: tuple[str, ...],
    window: str | None,
    step: int | None,
    rank: int | None,
    zone: str | None,
    out: str | None,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Read GPU recordings: torch.profiler JSON (.json, .json.gz), nsys .sqlite, rocprofv3 JSON, a folder of ranks.

    Compile logs and power dumps (nvidia-smi, rocm-smi, amd-smi) beside a recording, or power dumps beside a saved run,
    are joined to it by time.

    \b
    Examples:
      tokentrace import trace.json.gz
      tokentrace import ranks/ --rank 3 --json
      tokentrace import trace.json.gz --window 100-250 -o cut.jsonl
      tokentrace import trace.json.gz power.csv compile.log -o page.html
      tokentrace import 20261130-101500 power.csv --zone Europe/Berlin
    """
    from tokentrace import importers
    from tokentrace.emit import save
    from tokentrace.importers.report import of_trace

    if out:
        _check_out(out, files)
    run = _saved_run(files)
    if run is not None:
        if window or step is not None or rank is not None:
            raise UsageError("--window, --step and --rank cut recordings, not a run", fix="leave them out")
        _power_of(run, files, _zone(zone), out, as_json, quiet)
        return
    line = _ProgressLine()
    collect = gc.get_threshold()
    gc.set_threshold(100_000, *collect[1:])  # spans hold no cycles: to look for some is a tenth of the time
    try:
        imported = importers.load(
            list(files), window=_window(window), step=step, rank=rank, zone=_zone(zone), progress=line.tell
        )
    finally:
        gc.set_threshold(*collect)
        line.end()
    report = of_trace(imported.trace, [out] if out else [])
    if out:
        save(imported.trace, Path(out), report=report)
    if as_json:
        _streams.print_json(_document(imported, report))
    elif not quiet:
        _print(imported, report, no_color)
        if out:
            click.echo(f"trace: {out} ({len(imported.trace)} spans)")


def _check_out(out: str, files: tuple[str, ...]) -> None:
    """Before the work: could it be written, and is it none of what is read? A folder's files are read, too."""
    from tokentrace.emit import check_target

    check_target(out)
    target = Path(out)
    for given in files:
        path = Path(given)
        if not path.exists():
            continue
        same = target.exists() and path.samefile(target)
        if same or (target.exists() and path.is_dir() and path.samefile(target.parent) and not _is_ours(target)):
            raise UsageError(f"{out} is one of the recordings: it would be overwritten", fix="name another file")


def _is_ours(path: Path) -> bool:
    """A name that only traces have, which a folder of recordings does not."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".jaeger.json", ".perfetto.json", ".html"))


def _document(imported: Imported, report: Report) -> dict[str, Any]:
    """The report's own fields, and beside them what only a recording has."""
    told = report.to_json()
    rows = {row["layer"]: row for row in told["layers"]}
    layers = [
        {**rows.get(s.layer, {}), "layer": s.layer, "status": s.status, "reason": s.reason, "fix": s.fix,
         "facts": _plain(s.facts)}
        for s in imported.layers
    ]  # fmt: skip
    return {
        **told,
        "schema": "tokentrace.import/1",
        "source": imported.source,
        "figures": imported.figures,
        "steps": imported.steps,
        "operators": imported.operators,
        "layers": layers,
        "lost": imported.lost,
    }


def _saved_run(files: tuple[str, ...]) -> tuple[str, Path] | None:
    """(as given, its trace) of the first argument that is a run of tokentrace, None when there is none."""
    from tokentrace import runs

    for given in files:
        path = Path(given)
        try:
            if path.is_file() and not path.name.endswith((".jsonl", ".jsonl.gz")):
                continue
            if path.is_dir() and not runs.is_place(path):
                continue
            return given, runs.find(given)
        except UsageError:
            continue
        except OSError as error:
            raise UsageError(
                f"{given} cannot be read: {error.strerror}", fix="check the path and its rights"
            ) from error
    return None


def _power_of(
    run: tuple[str, Path], files: tuple[str, ...], zone: tzinfo | None, out: str | None, as_json: bool, quiet: bool
) -> None:
    """Power dumps beside a saved run."""
    from tokentrace.emit import load, save
    from tokentrace.importers import power_dumps, power_of_run
    from tokentrace.importers.report import keep_also, of_trace

    dumps = [Path(given) for given in files if given != run[0]]
    if not dumps:
        raise UsageError(f"{run[0]} is a run of tokentrace already", fix=f"tokentrace show {run[0]}")
    trace, findings = power_of_run.join_power(
        load(run[1]), [(path.name, power_dumps.read(path, zone)) for path in dumps]
    )
    keep_also(trace, findings)
    if out:
        save(trace, Path(out), report=of_trace(trace, [out]))
    written = [out] if out else []
    if as_json:
        power = [span.attributes for span in trace.spans if span.layer == 1 and span.name == "power"]
        document = {"schema": "tokentrace.import.power/1", "trace_id": trace.trace_id_hex, "power": power,
                    "findings": _findings(findings), "files": written}  # fmt: skip
        _streams.print_json(document)
        return
    if quiet:
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
    start, end = (int(Decimal(part) * 1_000_000) for part in match.groups())  # a float would miss nanoseconds
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
        return share(figures["span_ns"] - figures["busy_ns"], figures["span_ns"])
    if not figures["kernels"]:
        return "unknown: no kernel in it"
    if "lanes" not in figures and len(figures["devices"]) > 1:
        return "unknown: several devices"
    if figures["span_ns"] and figures["devices"] and figures["devices"][0]["idle_share"] is None:
        return "unknown: not all kernels are in the recording"
    return (
        "unknown: not every recording shows a device" if figures["span_ns"] else "unknown: the recording has no length"
    )


def _print(imported: Imported, report: Report, no_color: bool) -> None:

    from tokentrace.emit.terminal import print_report

    lost = imported.lost
    recorded = bool(imported.figures["span_ns"] or imported.figures["kernels"])  # not only what lies beside one
    if recorded:
        _print_figures(imported)
    if lost["events"] or lost["reason"]:
        click.echo(f"lost: {plural(lost['events'], 'event')}, {lost['reason']}")
    if recorded:
        click.echo()
        report = replace(report, findings=[], files=[])
        print_report(report, _streams.new_console(no_color=no_color))
        click.echo()
    _print_findings(imported.findings)


def _print_figures(imported: Imported) -> None:
    figures = imported.figures
    click.echo(
        f"{plural(figures['kernels'], 'kernel')}, {plural(figures['launches'], 'launch', 'launches')} "
        f"({figures['graph_launches']:,} of graphs), {figures['matched']:,} matched, "
        f"{plural(figures['orphan_kernels'], 'kernel')} without their launch"
    )
    busy, span = figures["busy_ns"] / 1e6, figures["span_ns"] / 1e6
    several = f" ({len(figures['lanes'])} recordings together)" if "lanes" in figures else ""
    click.echo(f"GPU busy {busy:,.3f} ms of {span:,.3f} ms{several}; idle share {_idle(figures)}")
    for kernel in figures["top_kernels"][:5]:
        click.echo(f"  {kernel['total_ns'] / 1e6:10.3f} ms  {kernel['count']:6d} x  {kernel['name'][:90]}")
    for step in imported.steps[:_STEPS_SHOWN]:
        click.echo(f"  {_step(step)}")
    if len(imported.steps) > _STEPS_SHOWN:
        click.echo(f"  … {len(imported.steps) - _STEPS_SHOWN} more steps, see --json")


def _step(step: dict[str, Any]) -> str:
    """One line on a step: what it was, how busy the device was, and what it and the host waited for."""
    what = str(step.get("phase") or "")
    sizes = ", ".join(f"{key} {step[key]}" for key in ("batch", "tokens") if step.get(key))
    name = f"{step['lane']} " if step.get("lane") else ""
    name += f"step {step['index']}" + (f" ({', '.join(filter(None, (what, sizes)))})" if what or sizes else "")
    told = [f"{step['span_ns'] / 1e6:,.3f} ms", f"busy {step['busy_ns'] / 1e6:.3f} ms",
            plural(step["kernels"], "kernel")]  # fmt: skip
    if step["graph_kernels"]:
        told.append(f"{step['graph_kernels']} in graphs")
    if step["starved_ns"]:
        told.append(f"waiting for launches {step['starved_ns'] / 1e6:.3f} ms")
    if step["blocked_ns"]:
        told.append(f"host blocked {step['blocked_ns'] / 1e6:.3f} ms")
    return f"{name}: {', '.join(told)}"


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        _echo(f"[{finding.status}] layer {finding.layer}: {finding.sentence}", "  ")
        if finding.evidence:
            _echo(f"    evidence: {finding.evidence}", "      ")
        if finding.fix:
            _echo(f"    fix: {finding.fix}", "      ")


def _echo(line: str, indent: str) -> None:
    """The line, wrapped at the width of the terminal or at COLUMNS; whole where neither is known, as in a pipe."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        width = max(20, shutil.get_terminal_size().columns)
        begin = line[: len(line) - len(line.lstrip())]
        line = textwrap.fill(line.lstrip(), width, initial_indent=begin, subsequent_indent=indent,
                             break_long_words=False, break_on_hyphens=False)  # fmt: skip
    click.echo(line)
