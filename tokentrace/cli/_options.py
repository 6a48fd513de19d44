"""Options that several commands have, said once."""

from __future__ import annotations

import math
from typing import Any

import click

from tokentrace.client.config_files import MAX_TIMEOUT_S

#: What servers hold a count of tokens in.
MOST_TOKENS = 2**31 - 1


class Number(click.FloatRange):
    """A number in a range. To click, nan lies in every one, as no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


KEY = click.option("--key", help="API key; better in OPENAI_API_KEY, where no process list shows it.")
MODEL = click.option("--model", metavar="NAME|PATH", help="Model name on the server, or a folder for the local engine.")
PROFILE = click.option("--profile", help="A profile of tokentrace.toml.")
CONFIG = click.option(
    "--config", metavar="FILE", help="A TOML or JSON file with base_url, api_key_env, model, timeout."
)
TIMEOUT = click.option("--timeout", type=Number(0.1, MAX_TIMEOUT_S), help="Seconds to wait for the server.")
SYSTEM = click.option("--system", default="", help="A system message before the prompt.")
MAX_TOKENS = click.option("--max-tokens", type=click.IntRange(1, MOST_TOKENS), default=64, show_default=True)
TEMPERATURE = click.option(
    "--temperature", type=Number(0, 10), help="Default: greedy here, the server's own elsewhere."
)
DETAIL = click.option("--detail", is_flag=True, help="Show steps, and keep every span in the trace.")
OTLP = click.option(
    "--otlp", is_flag=False, flag_value="", metavar="[ENDPOINT]", help="Send the trace to an OTLP receiver."
)
RECEIVE = click.option(
    "--receive", is_flag=False, flag_value="4317", metavar="[PORT]",
    help="Take the spans that the server itself makes of this request (vLLM with --otlp-traces-endpoint "
    "http://127.0.0.1:4317): listen on PORT of this machine for gRPC, default 4317, and on the next one for HTTP.",
)  # fmt: skip
TRACE_FILE = click.option(
    "-o", "output", metavar="FILE", help="Write the trace; .html, .jsonl, .jaeger.json or .perfetto.json."
)
RUNS_FOLDER = click.option("--out", metavar="DIR", help="Keep the run here instead of in the user's data folder.")
REPORT_JSON = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
REPLY_ONLY = click.option("-q", "quiet", is_flag=True, help="Only the reply.")
NO_COLOR = click.option("--no-color", is_flag=True, help="No colours.")
