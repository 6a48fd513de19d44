"""`tokentrace bench`: many requests of one prompt, percentiles, and two endpoints in turn."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _options, _streams
from tokentrace.errors import UsageError

if TYPE_CHECKING:
    from tokentrace.bench import Plan, Result, Target
    from tokentrace.bench.measured import Measured


@click.command("bench")
@click.argument("prompt")
@click.option(
    "-n", "--requests", "count", type=click.IntRange(1), default=20, show_default=True, help="To each endpoint."
)
@click.option("--concurrency", type=click.IntRange(1), help="Requests at a time; default 1, with --rate no limit.")
@click.option("--rate", type=_options.Number(min=0, min_open=True), help="Requests a second, whatever the server does.")
@click.option("--arrivals", type=click.Choice(["poisson", "even"]), help="Of --rate; default poisson.")
@click.option("--url", "urls", multiple=True, help="Base URL of an OpenAI-compatible server; twice compares two.")
@click.option("--profile", "profiles", multiple=True, help="A profile of tokentrace.toml; twice compares two.")
@_options.KEY
@_options.MODEL
@_options.CONFIG
@_options.SYSTEM
@_options.MAX_TOKENS
@_options.TEMPERATURE
@_options.TIMEOUT
@click.option(
    "--warmup", type=click.IntRange(0, 1000), default=1, show_default=True, help="Requests before, not counted."
)
@click.option("--vary", is_flag=True, help="A number before each prompt, so that no prefix cache knows it.")
@click.option("--seed", type=int, default=0, help="Of the arrivals and the intervals.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write one line a request.")
@click.option("-o", "--out", metavar="FILE", help="Write the result with plots as one .html file.")
@click.option("--no-save", is_flag=True, help="Do not keep the slowest request's trace.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "quiet", is_flag=True, help="Only the verdict; no progress.")
@_options.NO_COLOR
def command(
    prompt: str,
    count: int,
    concurrency: int | None,
    rate: float | None,
    arrivals: str | None,
    urls: tuple[str, ...],
    profiles: tuple[str, ...],
    key: str | None,
    model: str | None,
    config: str | None,
    system: str,
    max_tokens: int,
    temperature: float | None,
    timeout: float | None,
    warmup: int,
    vary: bool,
    seed: int,
    csv_file: str | None,
    out: str | None,
    no_save: bool,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Send PROMPT many times and show how long first tokens, gaps and whole replies take.

    What will be sent is said before it is. Two --profile or two --url take turns, and the comparison knows noise.
    Without any, the local engine answers.

    Exit code: 0 when every request worked, 1 when one failed, 2 when nothing could be sent, 130 after Ctrl-C.

    \b
    Examples:
      tokentrace bench "Hi" -n 100 --concurrency 4
      tokentrace bench "Hi" --rate 2 -n 60 --url http://localhost:8000/v1 -o bench.html
      tokentrace bench "Hi" --profile alpha --profile beta --json
    """
    from tokentrace.bench import Plan

    if out is not None and not out.lower().endswith((".html", ".htm")):
        raise UsageError(f"{out} does not end in .html", fix="the result is written as a page: -o bench.html")
    for path in (out, csv_file):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"the folder of {path} does not exist", fix="make it first; nothing was sent")
    if arrivals is not None and rate is None:
        raise UsageError(
            f"--arrivals {arrivals} says nothing without --rate", fix=f"for example --rate 2 --arrivals {arrivals}"
        )
    targets = _endpoints(urls, profiles, key, model, config, timeout)
    if targets is None and temperature is None:
        temperature = 0.0
    plan = Plan(
        prompt=_streams.standard_input() if prompt == "-" else prompt,
        count=count,
        concurrency=concurrency or (0 if rate is not None else 1),
        rate=rate,
        even=arrivals == "even",
        warmup=warmup,
        max_tokens=max_tokens,
        temperature=temperature,
        system=system,
        vary=vary,
        seed=seed,
    )
    plan.check()
    with _Screen(quiet) as screen, _served(targets, model, timeout, screen) as chosen:
        result = _bench(plan, chosen, screen, save=not no_save)
    if csv_file is not None:
        result.write_csv(Path(csv_file))
    if out is not None:
        from tokentrace.bench.page import write_result

        write_result(result, Path(out))
    _show(result, as_json=as_json, quiet=quiet, no_color=no_color)
    for path in filter(None, (csv_file, out)):
        click.echo(f"written: {path}", err=True)
    if result.interrupted:
        click.echo("interrupted; these are the figures until then", err=True)
        sys.exit(130)
    if result.failed:
        sys.exit(1)


def _bench(plan: Plan, targets: list[Target], screen: _Screen, *, save: bool) -> Result:
    from tokentrace.bench import bench

    return bench(plan, targets, screen, save=save)


def _endpoints(
    urls: tuple[str, ...],
    profiles: tuple[str, ...],
    key: str | None,
    model: str | None,
    config: str | None,
    timeout: float | None,
) -> list[Target] | None:
    """The endpoints to send to, None for the local engine."""
    from tokentrace.bench import Target
    from tokentrace.bench.session import names
    from tokentrace.client.settings import resolve

    if len(urls) + len(profiles) > 2:
        raise UsageError("at most two endpoints can be compared", fix="give --profile or --url once or twice")
    if urls and profiles and len(urls) + len(profiles) == 2 and key:
        raise UsageError("one --key for two endpoints is not sent", fix="put the keys into profiles")
    wanted: list[tuple[str | None, str | None]] = [(None, profile) for profile in profiles]
    wanted += [(url, None) for url in urls]
    found = []
    for url, profile in wanted or [(None, None)]:
        endpoint = resolve(url, key, model, profile, config, timeout, max_retries=0)
        if endpoint is None:
            return None
        for warning in endpoint.warnings:
            click.echo(f"warning: {warning}", err=True)
        found.append((profile or f"{endpoint.host}:{endpoint.port}", endpoint))
    labels = names([name for name, _ in found])
    return [Target(name, endpoint) for name, (_, endpoint) in zip(labels, found, strict=True)]


@contextlib.contextmanager
def _served(
    targets: list[Target] | None, model: str | None, timeout: float | None, screen: _Screen
) -> Iterator[list[Target]]:
    """The targets given, or the local engine for as long as this lasts."""
    if targets is not None:
        yield targets
        return
    from tokentrace.bench import Target
    from tokentrace.client.settings import Endpoint
    from tokentrace.engines.local.process import LocalEngine

    with LocalEngine.start(model, agent=False, progress=screen.progress) as engine:
        endpoint = Endpoint(engine.base_url, model=engine.model_name)
        if timeout is not None:
            endpoint = replace(endpoint, timeout_s=timeout)
        yield [Target("local engine", endpoint)]


def _show(result: Result, *, as_json: bool, quiet: bool, no_color: bool) -> None:
    if as_json:
        _streams.print_json(result.to_json())
    elif quiet:
        from tokentrace.bench.session import told

        click.echo(told(result))
    else:
        from tokentrace.bench.terminal import print_result
        from tokentrace.emit.terminal import make_console, shows_unicode

        console = make_console(color=False if no_color else None)
        print_result(result, console, unicode=shows_unicode(console))


class _Screen:
    """What will be sent as a line, then a bar, both on standard error; the bar only on a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: Any = None
        self._task: Any = None
        self._failed = 0
        self._told = ""

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        """While the local engine starts."""
        if not self._quiet and sentence != self._told:
            self._told = sentence
            click.echo(sentence, err=True)

    def announce(self, sentence: str) -> None:
        # Also with -q: what may be billed is said.
        click.echo(sentence, err=True)

    def begin(self, what: str, count: int) -> None:
        self._end()
        if not self._terminal:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=_streams.new_console(stderr=True), transient=True)
        self._bar.start()
        self._failed = 0
        self._task = self._bar.add_task(what, total=count)

    def one(self, measured: Measured) -> None:
        """Called from the sending threads; rich's progress has a lock of its own."""
        bar = self._bar
        if bar is None:
            return
        self._failed += not measured.ok
        told = f"requests, {self._failed} failed" if self._failed else None
        bar.update(self._task, advance=1, **({"description": told} if told else {}))

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
