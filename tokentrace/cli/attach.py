"""`tokentrace attach`: look into a running server, and leave it as it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _options
from tokentrace.cli._screen import Screen, end_as_ctrl_c_does, show
from tokentrace.errors import UsageError
from tokentrace.wording import duration, listed, plural

if TYPE_CHECKING:
    from rich.console import Console

    from tokentrace.attach import Attached, Found
    from tokentrace.attach.plan import Plan
    from tokentrace.client.settings import Endpoint
    from tokentrace.workflow import Settings

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "ms": 0.001}


@click.command("attach")
@click.argument("where", metavar="[URL] [PROMPT]", nargs=-1)
@click.option("--pid", type=click.IntRange(1), help="A process of the server, instead of its URL.")
@click.option("--for", "for_", metavar="TIME", help="Watch the requests of others for so long: 30s, 5m.")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Watch until N requests of others have ended.")
@click.option("--with-text", is_flag=True, help="Keep the text of others' requests too; default: counts and ids.")
@click.option("--deep", is_flag=True, help="Watch the modules and operators of others' requests too; slows them down.")
@click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help="Steps that are profiled.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")
@click.option("--method", default="auto", show_default=True, help="auto, agent, borrow, gdb or outside; see below.")
@_options.KEY
@click.option("--model", metavar="NAME", help="Model name on the server.")
@_options.PROFILE
@_options.CONFIG
@_options.SYSTEM
@_options.MAX_TOKENS
@click.option(
    "--temperature", type=click.FloatRange(0, 10), help="Default: 0, so that both requests make the same tokens."
)
@_options.TIMEOUT
@click.option("--once", is_flag=True, help="Send the prompt once instead of twice (light, then deep).")
@_options.DETAIL
@_options.OTLP
@_options.TRACE_FILE
@_options.RUNS_FOLDER
@_options.REPORT_JSON
@_options.REPLY_ONLY
@_options.NO_COLOR
def command(
    where: tuple[str, ...],
    pid: int | None,
    for_: str | None,
    requests: int | None,
    with_text: bool,
    deep: bool,
    steps: int,
    dry_run: bool,
    method: str,
    key: str | None,
    model: str | None,
    profile: str | None,
    config: str | None,
    system: str,
    max_tokens: int,
    temperature: float | None,
    timeout: float | None,
    once: bool,
    detail: bool,
    otlp: str | None,
    output: str | None,
    out: str | None,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Look into a running vLLM server (or `tokentrace serve`) without a restart, and leave it as it was.

    With a PROMPT one trace of it; with --for or --requests a trace of each request of others. Nothing has to be
    installed in the server: its processes get a small agent for the time, if they run as you and the system allows it.

    \b
    Methods: auto      the deepest that works, said aloud; else from outside
             agent     only an agent that waits in the server already
             borrow    put one in, on a thread that waits anyway (a millisecond)
             gdb       put one in with a debugger (stops the server for up to 2 s)
             outside   touch no process

    \b
    Examples:
      tokentrace attach http://localhost:8000 "Hi"
      tokentrace attach http://localhost:8000 --dry-run
      tokentrace attach http://localhost:8000 --for 30s
      tokentrace attach --pid 4711 --requests 5 --otlp http://localhost:4318
    """
    from rich.console import Console

    from tokentrace import attach, emit, workflow
    from tokentrace.attach.plan import plan
    from tokentrace.session import Ask

    url, prompt = _given(where, pid)
    watching = for_ is not None or requests is not None
    for_s = _seconds(for_) if for_ is not None else None
    if watching and prompt is not None:
        raise UsageError("a prompt and --for or --requests exclude each other", fix="leave one of them out")
    if not watching and prompt is None and not dry_run:
        raise UsageError(
            "nothing was asked for",
            fix='add a prompt ("Hi"), or --for 30s to watch the requests of others, or --dry-run',
        )
    if output is not None:
        if watching:
            raise UsageError("-o writes one trace, and watching makes many", fix="use --out DIR, or tokentrace export")
        emit.check_target(output)
    end_as_ctrl_c_does()
    console = Console(stderr=as_json, no_color=no_color or None, highlight=False)
    endpoint = _endpoint(url, pid, key, model, profile, config, timeout)
    found = attach.find(endpoint, pid=pid)
    expected = plan(found, method, watching=watching)
    if dry_run:
        _show_plan(expected, console, as_json=as_json)
        return
    if method == "gdb" and expected.depth == "injected":
        click.echo("warning: a debugger stops the whole server for up to 2 s in each of its processes", err=True)
    to = _reached(found, endpoint, key, model, profile, config, timeout)
    if to is None and not watching:
        raise UsageError("this process listens on no port, so a prompt cannot be sent", fix="watch it: --for 30s")
    settings = workflow.Settings(
        to,
        once=once,
        detail=detail,
        out=Path(out) if out else None,
        output=Path(output) if output else None,
        otlp=otlp,
    )
    with attach.open(found, method=method) as attached:
        if not quiet:
            _show_attached(attached, console)
        if watching:
            code = _watch(
                attached, settings, console, for_s, requests, with_text, deep, steps, expected, as_json=as_json
            )
        else:
            screen = Screen(console, show_text=not as_json, show_progress=not quiet)
            text = sys.stdin.read() if prompt == "-" else str(prompt)
            done = attach.ask(
                attached, Ask(text, system, max_tokens, temperature or 0.0, None), settings, screen, steps=steps
            )
            screen.end()
            code = 0
        left = attached.close()
    for sentence in left:
        click.echo(f"warning: {sentence}", err=True)
    if not watching:
        show(done, console, endpoint=to, as_json=as_json, quiet=quiet, detail=detail)
    sys.exit(code)


def _given(where: tuple[str, ...], pid: int | None) -> tuple[str | None, str | None]:
    """(URL, prompt). With --pid a single argument is a URL only if it looks like one."""
    if len(where) > 2:
        raise UsageError(f"{len(where)} arguments were given", fix="put the prompt into quotes")
    if len(where) == 2:
        return where[0], where[1]
    if not where:
        return None, None
    if pid is not None and not re.match(r"https?://", where[0]):
        return None, where[0]
    return where[0], None


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in _SECONDS or float(found[1]) == 0:
        raise UsageError(f"--for {text} is no time", fix="write it like 30s or 5m")
    return float(found[1]) * _SECONDS[found[2]]


def _endpoint(
    url: str | None,
    pid: int | None,
    key: str | None,
    model: str | None,
    profile: str | None,
    config: str | None,
    timeout: float | None,
) -> Endpoint | None:
    """What was given, or the settings' own server when neither a URL nor a process was. None with only a process."""
    from tokentrace.attach.finding import with_version
    from tokentrace.client.settings import resolve

    if url is None and pid is not None:
        return None
    endpoint = resolve(url, key, model, profile, config, timeout)
    if endpoint is None:
        raise UsageError("no server was named", fix="give its URL, such as http://localhost:8000, or --pid")
    for warning in endpoint.warnings:
        click.echo(f"warning: {warning}", err=True)
    return with_version(endpoint)


def _reached(
    found: Found,
    endpoint: Endpoint | None,
    key: str | None,
    model: str | None,
    profile: str | None,
    config: str | None,
    timeout: float | None,
) -> Endpoint | None:
    """Where a prompt goes: what was given, or what the process was found to listen on."""
    from tokentrace.client.settings import resolve

    if endpoint is not None:
        return replace(endpoint, base_url=found.base_url)
    if not found.base_url:
        return None
    return resolve(found.base_url, key, model, profile, config, timeout)


def _speaker(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _say_depth(say: Callable[[str], None], one: Attached | Plan) -> None:
    """What was found, how deep that lets us look, and why not deeper."""
    for sentence in about(one.found):
        say(sentence)
    say(f"depth: {one.depth}")
    if one.reason:
        say(f"  not deeper: {one.reason}")
    if one.fix:
        say(f"  fix: {one.fix}")


def _show_attached(attached: Attached, console: Console) -> None:
    """How deep we got and why, and where."""
    say = _speaker(console)
    _say_depth(say, attached)
    for one in attached.inside:
        how = f"agent put in ({one.way})" if one.way else "agent was waiting"
        held = f", one thread held for {duration(one.held_ns)}" if one.held_ns else ""
        say(f"  {_named(one.process)}: {how}{held}")
    for note in attached.notes:
        say(f"  note: {note}")
    say("")


def about(found: Found) -> list[str]:
    """One line on what was found."""
    engine = {"vllm": "vLLM", "tokentrace": "the local engine"}.get(found.engine, "an unknown engine")
    version = found.version or "version unknown: only functions that are found by name are watched"
    if not found.processes:
        version = found.version or "version unknown"
    where = f" at {found.base_url}" if found.base_url else ""
    count = f", {plural(len(found.processes), 'process', 'processes')}" if found.processes else ""
    return [f"{engine} ({version}){where}{count}"]


def _named(process: Any) -> str:
    role = {"api": "API server", "engine": "engine core", "worker": "worker", "single": "server"}[process.role]
    rank = f" {process.rank}" if process.rank else ""
    return f"{role}{rank} (process {process.pid}, Python {process.python or 'unknown'})"


def _show_plan(plan: Plan, console: Console, *, as_json: bool) -> None:
    if as_json:
        import orjson

        click.echo(orjson.dumps(plan.to_json(), option=orjson.OPT_INDENT_2).decode())
        return

    say = _speaker(console)
    _say_depth(say, plan)
    say("processes:" if plan.processes else "processes: none that can be looked into")
    for one in plan.processes:
        way = {"waits": "an agent waits there", "": "left alone"}.get(one.way, f"an agent would be put in ({one.way})")
        say(f"  {_named(one.process)}: {way}{': ' + one.reason if one.reason else ''}")
    if plan.wraps:
        say("would wrap, and put back at the end:")
        for role, targets in plan.wraps.items():
            say(f"  {role}: {plural(len(targets), 'function')}")
            for target in targets:
                say(f"    {target}")
    else:
        say("would wrap: nothing")
    say("layers:")
    for layer in plan.layers:
        say(f"  {layer.number} {layer.title}: {'seen' if layer.seen else 'unseen'}: {layer.what}")
        if layer.fix and not layer.seen:
            say(f"      to see it: {layer.fix}")


def _watch(
    attached: Attached,
    settings: Settings,
    console: Console,
    for_s: float | None,
    requests: int | None,
    with_text: bool,
    deep: bool,
    steps: int,
    plan: Plan,
    *,
    as_json: bool,
) -> int:
    """Requests of others, as a table or one JSON document. Gives the exit code; what was seen is kept on Ctrl-C."""
    from dataclasses import asdict

    from tokentrace.attach.watch import Row, show, watch

    rows: list[Row] = []
    errors: list[str] = []
    interrupted = False

    def runs(idle: Any) -> Any:
        nonlocal interrupted
        try:
            for row, run in watch(
                attached,
                settings,
                for_s=for_s,
                requests=requests,
                with_text=with_text,
                deep=deep,
                steps=steps,
                idle=idle,
            ):
                rows.append(row)
                if run.export_error is not None:
                    errors.append(str(run.export_error))
                yield row, run
        except KeyboardInterrupt:
            interrupted = True

    if as_json:
        import orjson

        for _ in runs(lambda under_way: None):
            pass
        document = {**plan.to_json(), "depth": attached.depth, "requests": [asdict(row) for row in rows]}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        show(runs, console)
        saved = [row.run for row in rows if row.run]
        console.print(f"\n{plural(len(rows), 'request')} seen", markup=False)
        if saved:
            console.print(f"look at one: tokentrace show {saved[-1]}", markup=False)
    lost = [one.agent.lost for one in attached.inside if one.agent.lost]
    if lost:
        click.echo(f"tokentrace: {listed(list(dict.fromkeys(lost)))}", err=True)
    for error in dict.fromkeys(errors):
        click.echo(f"tokentrace: {error}", err=True)
    if interrupted:
        click.echo("interrupted; what was seen until then is saved", err=True)
        return 130
    return 1 if lost or errors else 0
