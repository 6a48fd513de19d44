"""`tokentrace serve`: the local engine, in the foreground."""

from __future__ import annotations

import click


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 lets the system choose."
)
@click.option("--model", metavar="PATH", help="A local Hugging Face folder instead of the built-in small model.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the MLPs with torch.compile (needs a C++ compiler).")
def command(host: str, port: int, model: str | None, compiled: bool) -> None:
    """Run the local engine as an OpenAI-compatible server until Ctrl-C.

    It offers /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /metrics and /health.

    \b
    Examples:
      tokentrace serve
      tokentrace serve --model ./my-model --port 9000
      curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}]}'
    """
    from tokentrace.engines.local.engine import Options
    from tokentrace.engines.local.model import ensure_model
    from tokentrace.engines.local.server import serve

    def progress(phase: str, fraction: float | None) -> None:
        share = "" if fraction is None else f" {fraction:.0%}"
        click.echo(f"{phase}{share}", err=True)

    def ready(url: str) -> None:
        click.echo(f"ready: {url}", err=True)

    folder = ensure_model(model, progress)
    serve(folder, host, port, options=Options(compile=compiled), ready=ready, progress=progress)
