"""`tokentrace attach`: look into a running server, and leave it as it was."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _options, _streams
from tokentrace.cli._attach_shown import as_document, show_attached, show_gaps, show_plan
from tokentrace.cli._receive import receiving
from tokentrace.cli._screen import Screen, end_as_ctrl_c_does, show
from tokentrace.errors import AttachError, UsageError
from tokentrace.wording import listed, plural

if TYPE_CHECKING:
    from rich.console import Console

    from tokentrace.attach import Attached, Found
    from tokentrace.attach.plan import Plan
    from tokentrace.client.settings import Endpoint
    from tokentrace.session import Ask
    from tokentrace.workflow import Run, Settings

_WAIT = "wait until the server's log says that the application has started; or give its URL, if it is another one"
_UNKNOWN = "? is not known: a reply in one piece has no first token, one of a single token no time per token"
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "ms": 0.001}


@dataclass(frozen=True)
class _Asked:
    """The command line, one field an option."""

    where: tuple[str, ...]
    pid: int | None
    for_: str | None
    requests: int | None
    with_text: bool
    deep: bool
    steps: int | None
    dry_run: bool
    method: str
    receive: str | None
    key: str | None
    model: str | None
    profile: str | None
    config: str | None
    system: str
    max_tokens: int
    temperature: float | None
    timeout: float | None
    once: bool
    detail: bool
    otlp: str | None
    output: str | None
    out: str | None
    as_json: bool
    quiet: bool
    no_color: bool

    @property
    def watching(self) -> bool:
        return self.for_ is not None or self.requests is not None

    @cached_property
    def for_s(self) -> float | None:
        """Raises UsageError."""
        return _seconds(self.for_) if self.for_ is not None else None

    @cached_property
    def url_and_prompt(self) -> tuple[str | None, str | None]:
        """With --pid a single argument is a URL only if it looks like one. Raises UsageError."""
        where = self.where
        if len(where) > 2:
            raise UsageError(f"{len(where)} arguments were given", fix="put the prompt into quotes")
        if len(where) == 2:
            return where[0], where[1]
        if not where:
            return None, None
        if self.pid is not None and not re.match(r"https?://", where[0]):
            return None, where[0]
        return where[0], None


@click.command("attach")
@click.argument("where", metavar="[URL] [PROMPT]", nargs=-1)
@click.option("--pid", type=click.IntRange(1), help="A process of the server, instead of its URL.")
@click.option("--for", "for_", metavar="TIME", help="Watch the requests of others for so long: 30s, 5m.")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Watch until N requests of others have ended.")
@click.option("--with-text", is_flag=True, help="Keep text and token ids of others' requests; default: counts only.")
@click.option("--deep", is_flag=True, help="Watch the modules and operators of others' requests too; slows them down.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Steps that are profiled; default: 3.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")
@click.option("--method", metavar="auto|agent|borrow|gdb|outside", default="auto", show_default=True, help="See below.")
@_options.RECEIVE
@_options.KEY
@click.option("--model", metavar="NAME", help="Model name on the server.")
@_options.PROFILE
@_options.CONFIG
@_options.SYSTEM
@_options.MAX_TOKENS
@click.option(
    "--temperature", type=_options.Number(0, 10), help="Default: 0, so that both requests make the same tokens."
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
def command(**given: Any) -> None:
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
      tokentrace attach http://localhost:8000 "Hi" --receive
      tokentrace attach --pid 4711 --requests 5 --otlp http://localhost:4318
    """
    from tokentrace import attach
    from tokentrace.attach.plan import plan

    asked = _Asked(**given)
    _check(asked)
    end_as_ctrl_c_does()
    console = _streams.new_console(stderr=asked.as_json, no_color=asked.no_color)
    endpoint = _endpoint(asked)
    found = attach.find(endpoint, pid=asked.pid)
    expected = plan(found, asked.method, watching=asked.watching, told=asked.receive is not None, deep=asked.deep)
    if asked.dry_run:
        show_plan(expected, console, as_json=asked.as_json)
        return
    if asked.method == "gdb" and expected.depth == "injected":
        click.echo("warning: a debugger stops the whole server for up to 2 s in each of its processes", err=True)
    settings = _settings(asked, _reached(asked, found, endpoint))
    prompt = _prompt(asked)
    code, done, attached_as = 0, None, None
    with receiving(asked.receive) as settings.receiver, attach.open(found, method=asked.method) as attached:
        if not asked.quiet:
            show_attached(attached, console, settings.receiver)
        if prompt is None:
            code = _watch(asked, attached, settings, console, expected)
        else:
            attached_as = as_document(attached)
            del attached_as["notes"]  # a report has notes of its own
            done = _ask(asked, attached, prompt, settings, console)
        left = attached.close()
    for sentence in left:
        click.echo(f"warning: {sentence}", err=True)
    if done is not None:
        look = {"as_json": asked.as_json, "quiet": asked.quiet, "detail": asked.detail}
        show(done, console, endpoint=settings.endpoint, more=attached_as, **look)
    sys.exit(code)


def _check(asked: _Asked) -> None:
    """What can be known to be wrong before anything is looked at. Raises UsageError."""
    from tokentrace import emit
    from tokentrace.attach.attached import check_method

    check_method(asked.method)
    prompt = asked.url_and_prompt[1]
    if asked.watching:
        _ = asked.for_s
        if prompt is not None:
            raise UsageError("a prompt and --for or --requests exclude each other", fix="leave one of them out")
        if asked.output is not None:
            raise UsageError("-o writes one trace, and watching makes many", fix="use --out DIR, or tokentrace export")
    elif prompt is None and not asked.dry_run:
        raise UsageError(
            "nothing was asked for",
            fix='add a prompt ("Hi"), or --for 30s to watch the requests of others, or --dry-run',
        )
    if asked.watching and asked.steps is not None and not asked.deep:
        raise UsageError(
            "--steps says how many steps are profiled, and watching profiles none",
            fix="add --deep, or leave --steps out",
        )
    for option, given, anyway in (
        ("--with-text", asked.with_text, "the text of a prompt of yours is kept anyway"),
        ("--deep", asked.deep, "the second request of a prompt of yours is looked into deeply anyway"),
    ):
        if given and not asked.watching:
            raise UsageError(
                f"{option} is for watching requests of others; {anyway}", fix=f"leave {option} out, or add --for 30s"
            )
    if asked.output is not None:
        emit.check_target(asked.output)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in _SECONDS or float(found[1]) == 0:
        raise UsageError(f"--for {text} is no time", fix="write it like 30s or 5m")
    return float(found[1]) * _SECONDS[found[2]]


def _endpoint(asked: _Asked) -> Endpoint | None:
    """What was given, or the settings' own server when neither a URL nor a process was. None with only a process."""
    from tokentrace.attach.finding import with_version

    url = asked.url_and_prompt[0]
    if url is None and asked.pid is not None:
        return None
    endpoint = _resolved(asked, url)
    if endpoint is None:
        raise UsageError("no server was named", fix="give its URL, such as http://localhost:8000, or --pid")
    for warning in endpoint.warnings:
        click.echo(f"warning: {warning}", err=True)
    return with_version(endpoint)


def _resolved(asked: _Asked, url: str | None) -> Endpoint | None:
    from tokentrace.client.settings import resolve

    return resolve(url, asked.key, asked.model, asked.profile, asked.config, asked.timeout)


def _reached(asked: _Asked, found: Found, endpoint: Endpoint | None) -> Endpoint | None:
    """Where a prompt goes: what was given, or what the process was found to listen on.

    Raises UsageError when there is a prompt and nowhere to send it.
    """
    if endpoint is not None:
        return replace(endpoint, base_url=found.base_url)
    if found.base_url:
        return _resolved(asked, found.base_url)
    if not asked.watching:
        raise UsageError(
            f"a prompt cannot be sent: {found.not_ready or found.reason or 'this process listens on no port'}",
            fix=_WAIT if found.not_ready else found.fix or "watch it: --for 30s",
        )
    return None


def _settings(asked: _Asked, endpoint: Endpoint | None) -> Settings:
    from tokentrace import workflow

    return workflow.Settings(
        endpoint,
        once=asked.once,
        detail=asked.detail,
        out=Path(asked.out) if asked.out else None,
        output=Path(asked.output) if asked.output else None,
        otlp=asked.otlp,
    )


def _prompt(asked: _Asked) -> Ask | None:
    """What to send, None while others' requests are watched. "-" is read before anything is touched."""
    from tokentrace.session import Ask

    text = asked.url_and_prompt[1]
    if text is None:
        return None
    text = _streams.standard_input() if text == "-" else text
    return Ask(text, asked.system, asked.max_tokens, asked.temperature or 0.0, None)


def _ask(asked: _Asked, attached: Attached, prompt: Ask, settings: Settings, console: Console) -> Run:
    """One prompt of ours; the reply is shown as it streams."""
    from tokentrace import attach
    from tokentrace.attach.session import STEPS

    screen = Screen(console, show_text=not asked.as_json, show_progress=not asked.quiet)
    done = attach.ask(attached, prompt, settings, screen, steps=asked.steps or STEPS)
    screen.end()
    return done


def _watch(asked: _Asked, attached: Attached, settings: Settings, console: Console, expected: Plan) -> int:
    """Requests of others, as a table or one JSON document. Gives the exit code; what was seen is kept on Ctrl-C.

    Raises AttachError from outside, where nothing of them is seen unless the server's own spans are received.
    """
    from tokentrace.attach.joined import Left
    from tokentrace.attach.session import STEPS
    from tokentrace.attach.table import has_unknown
    from tokentrace.attach.table import show as show_rows
    from tokentrace.attach.told import watch_told
    from tokentrace.attach.watch import Row, watch
    from tokentrace.interrupts import held

    receiver = settings.receiver
    why = f": {attached.reason}" if attached.reason else ""
    if not attached.agents and receiver is None:
        raise AttachError(
            f"requests of others are seen from inside the server, or by the spans that it exports{why}",
            fix=f"{attached.fix}; or add --receive, where it exports them to this machine",
        )
    inside = ["--deep"] * asked.deep + ["--with-text"] * asked.with_text
    if not attached.agents and inside:
        raise AttachError(
            f"the server's own spans of a request have nothing for {inside[0]}, which looks inside the server{why}",
            fix=attached.fix or f"leave {inside[0]} out",
        )
    if attached.agents and receiver is not None and not asked.quiet:
        console.print(
            "each request is shown when the server's own span of it has come, or "
            f"{receiver.patience_s:g} s after its end\n",
            markup=False,
            soft_wrap=True,
        )
    rows: list[Row] = []
    errors: list[str] = []
    gaps: Counter[str] = Counter()  # what was not seen and why -> in how many requests
    left = Left()

    def source(idle: Any) -> Any:
        bounds: dict[str, Any] = {"for_s": asked.for_s, "requests": asked.requests, "idle": idle}
        bounds |= {"stop": lambda: ctrl_c.came, "left": left}
        if receiver is not None and not attached.agents:
            return watch_told(attached, settings, receiver, **bounds)
        more: dict[str, Any] = {"with_text": asked.with_text, "deep": asked.deep, "steps": asked.steps or STEPS}
        return watch(attached, settings, receiver=receiver, **more, **bounds)

    told = False

    def tell() -> None:
        nonlocal told
        if ctrl_c.came and left.ended and not told:
            told = True
            ended = plural(left.ended, "more request")
            click.echo(f"saving {ended} that ended; Ctrl-C again leaves them out", err=True)

    def runs(idle: Any) -> Any:
        def noted(count: int) -> None:
            tell()
            idle(count)

        for row, run in ends.enter_context(contextlib.closing(source(noted))):
            rows.append(row)
            gaps.update((run.trace.meta.get("engine") or {}).get("notes") or ())
            if run.export_error is not None:
                errors.append(str(run.export_error))
            yield row, run
            ctrl_c.count += run.interrupted  # while it was being saved, which is not cut short
            if ctrl_c.count > 1:
                return

    # The first Ctrl-C ends the watching, and what has ended is saved; the second ends that.
    with contextlib.suppress(KeyboardInterrupt), held() as ctrl_c, contextlib.ExitStack() as ends:
        if asked.as_json:
            for _ in runs(lambda count: None):
                pass
        else:
            show_rows(runs, console)
    if asked.as_json:
        document = {
            **expected.to_json(),
            **as_document(attached),
            "gaps": gaps,
            "requests": [asdict(row) for row in rows],
            "under_way": left.under_way,
            "not_saved": left.ended,
        }
        _streams.print_json(document)
    else:
        saved = [row.run for row in rows if row.run]
        more = f", {left.ended} more had ended and are not saved" if left.ended else ""
        more += f", {left.under_way} more had not ended" if left.under_way else ""
        if has_unknown(rows):
            console.print(_UNKNOWN, markup=False, soft_wrap=True)
        show_gaps(gaps, console)
        console.print(f"\n{plural(len(rows), 'request')} seen{more}", markup=False)
        if saved:
            console.print(f"look at one: tokentrace show {saved[-1]}", markup=False)
    lost = {one.agent.lost: one.agent.lost_fix for one in attached.inside if one.agent.lost}
    if lost:
        seen = "; what had come of the requests under way is kept" if any(row.ended == "cut" for row in rows) else ""
        click.echo(f"tokentrace: {listed(list(lost))}{seen}", err=True)
        click.echo(f"  fix: {'; '.join(dict.fromkeys(lost.values()))}", err=True)
    for error in dict.fromkeys(errors):
        click.echo(f"tokentrace: {error}", err=True)
    if ctrl_c.came:
        click.echo(f"interrupted; {'not all of ' * bool(left.ended)}what had ended until then is saved", err=True)
        return 130
    return 1 if lost or errors else 0
