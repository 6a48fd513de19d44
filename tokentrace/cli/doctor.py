"""`tokentrace doctor`: which layer is broken, and what to type."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tokentrace.cli import _options
from tokentrace.client.config_files import MAX_TIMEOUT_S
from tokentrace.errors import UsageError


@click.command("doctor")
@click.option("--url", help="Base URL of an OpenAI-compatible server; default: OPENAI_BASE_URL, else this machine.")
@_options.KEY
@_options.MODEL
@_options.PROFILE
@_options.CONFIG
@click.option("--pid", type=click.IntRange(1), help="A process of a server on this machine.")
@click.option("--layers", help="Only these layers, such as 8-6,2 or client,jit; 0 is the trace's plumbing.")
@click.option(
    "--timeout", type=_options.Number(0.5, MAX_TIMEOUT_S), default=30.0, show_default=True, help="Seconds for it all."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, _options.MOST_TOKENS),
    default=64,
    show_default=True,
    help="Replies you mean to ask for.",
)
@click.option("--offline", is_flag=True, help="Send nothing: settings and this machine only.")
@click.option("--explain", metavar="ID", help="What a check means, looks at and wants, such as TT801.")
@click.option("--report", metavar="FILE", help="Write it as JSON with this machine's facts, for a bug report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Every check with its evidence.")
@click.option("-q", "quiet", is_flag=True, help="Only the closing sentence.")
@_options.NO_COLOR
def command(
    url: str | None,
    key: str | None,
    model: str | None,
    profile: str | None,
    config: str | None,
    pid: int | None,
    layers: str | None,
    timeout: float,
    max_tokens: int,
    offline: bool,
    explain: str | None,
    report: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Look at every layer from the outside in, and say which one is broken and what to type.

    Without a URL: this machine and the local engine. A real request of one token is sent (and, when it is answered,
    one of 16 tokens that shows the streaming), unless --offline. Nothing is written, except by --report.

    \b
    Examples:
      tokentrace doctor
      tokentrace doctor --url http://localhost:8000/v1
      tokentrace doctor --profile groq --json
      tokentrace doctor --layers 2,1 --offline -v
      tokentrace doctor --explain TT801

    Exit code: 0 nothing wrong (with --offline: in what was looked at), 1 a layer fails, 2 it could not be checked.
    """
    from tokentrace import doctor
    from tokentrace.doctor.document import document, dumps, machine_facts, write
    from tokentrace.doctor.page import Page, explained
    from tokentrace.doctor.registry import by_id
    from tokentrace.emit.terminal import make_console, shows_unicode

    if explain is not None:
        if as_json:
            raise UsageError("--explain has no JSON", fix=f"tokentrace doctor --explain {explain}")
        click.echo(explained(by_id(explain), shows_unicode(make_console(sys.stdout))))
        return
    wishes = doctor.Wishes(
        url, key, model, profile, config, pid, timeout, max_tokens, offline, _layers(layers) if layers else None
    )
    progress = _Progress(not (quiet or as_json))
    found = doctor.diagnose(wishes, progress)
    progress.end()
    done, verdict = found.examination, found.verdict
    value = document(done, verdict, found.scrub)
    if report is not None:
        write(value, Path(report), (("machine", machine_facts()),))
    if as_json:
        click.echo(dumps(value))
    else:
        console = make_console(sys.stdout, color=False if no_color else None)
        page = Page(console, shows_unicode(console), found.scrub)
        if quiet:
            page.verdict(verdict)
        else:
            page.show(done, verdict, lambda check: by_id(check).title, verbose)
    if done.interrupted:
        seen = not quiet and any(r.status in ("ok", "warn", "fail") for r in done.results)
        click.echo(f"interrupted{'; what was seen until then is above' if seen else ''}", err=True)
    sys.stdout.flush()
    sys.exit(130 if done.interrupted else verdict.exit_code)


def _layers(text: str) -> frozenset[int]:
    """As everywhere, and 0 or plumbing. Raises LayerError."""
    from tokentrace.layers import parse_selection

    parts = [p for p in text.replace(" ", ",").split(",") if p]
    plumbing = [p for p in parts if p.lower() in ("0", "l0", "plumbing", "otlp")]
    others = [p for p in parts if p not in plumbing]
    found = parse_selection(",".join(others)) if others or not plumbing else frozenset()
    return found | (frozenset((0,)) if plumbing else frozenset())


class _Progress:
    """One line of standard error on a terminal; nothing elsewhere, where the answer comes soon enough."""

    def __init__(self, wanted: bool) -> None:
        self._shown = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __call__(self, sentence: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[2K{sentence} ...")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
