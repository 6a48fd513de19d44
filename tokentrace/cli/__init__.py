"""The command line, one module a command, imported when it is used."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from tokentrace.cli import _streams
from tokentrace.errors import TokentraceError, UsageError
from tokentrace.version import __version__

#: name -> (module, one line of help). The help stands here so that `tokentrace --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("tokentrace.cli.run", "trace one prompt through the eight layers"),
    "attach": ("tokentrace.cli.attach", "look into a running vLLM server, without a restart"),
    "list": ("tokentrace.cli.list_", "the saved runs"),
    "show": ("tokentrace.cli.show", "the report of a saved run"),
    "view": ("tokentrace.cli.view", "the page of a run: its way through the layers and a timeline, in the browser"),
    "diff": ("tokentrace.cli.diff", "what got slower between two runs, and whether it is more than noise"),
    "bench": ("tokentrace.cli.bench", "many requests: percentiles, and two endpoints compared"),
    "doctor": ("tokentrace.cli.doctor", "which layer is broken, and what to type"),
    "layers": ("tokentrace.cli.layers", "the eight layers, and what each one answers"),
    "serve": ("tokentrace.cli.serve", "run the local engine as an OpenAI-compatible server"),
    "import": ("tokentrace.cli.import_", "turn a GPU recording into the same eight-layer trace"),
    "export": ("tokentrace.cli.export", "send a saved trace on, or write it in another format"),
}


@contextlib.contextmanager
def _closed_pipe() -> Iterator[None]:
    """A reader that went away (| head) is 141, as the shell has it. click and rich make it 1, which is a bad result."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        with contextlib.suppress(OSError, ValueError):
            # What is still buffered would fail once more when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not ctx.resilient_parsing and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            fix = f"tokentrace {near[0]}" if near else "tokentrace --help lists them"
            raise UsageError(f"there is no command {name!r}", fix=fix)
        return super().resolve_command(ctx, args)

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        with _closed_pipe():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _closed_pipe():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                raise  # click ends the line that ^C stands on
            raise click.exceptions.Abort from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tokentrace")
def cli() -> None:
    """One prompt, one trace, eight layers, both ways.

    \b
    Examples:
      tokentrace run "Hi"
      tokentrace run "Hi" --url http://localhost:8000/v1
      tokentrace doctor --url http://localhost:8000/v1
      tokentrace layers
      tokentrace serve --port 8000
      tokentrace import trace.json.gz --json
    """


def main() -> None:
    """Entry point: prints one sentence and its fix for every error meant for the user, never a traceback."""
    _streams.prepare()
    try:
        _streams.check_arguments(sys.argv[1:])
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        from tokentrace.emit._signs import clean

        shown = io.StringIO()
        error.show(shown)
        click.echo(clean(shown.getvalue(), newlines=True), err=True, nl=False)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except TokentraceError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk behind standard output, a terminal that has gone: errors of files are told where they are written.
        if isinstance(error, FileNotFoundError) and not error.filename and not _streams.has_folder():
            show_error(UsageError("the folder you are in has been removed", fix="cd to another one"))
            sys.exit(UsageError.exit_code)
        what = f"{error.filename}: " if error.filename else ""
        show_error(TokentraceError(f"{what}{error.strerror or error}", fix="see whether the disk is full"))
        # 1 is an answer of some commands. Flushing standard output once more would only fail again.
        os._exit(2)


def show_error(error: TokentraceError) -> None:
    """The sentence, the fix, and what else is known, on standard error."""
    from tokentrace.emit._signs import clean  # what others wrote may hold control characters

    click.echo(clean(f"tokentrace: {error}"), err=True)
    if error.fix:
        click.echo(clean(f"  fix: {error.fix}"), err=True)
    for line in error.detail.splitlines():
        click.echo(clean(f"  | {line}"), err=True)
    if error.layer:
        from tokentrace.doctor import pointer

        if line := pointer(error):
            click.echo(f"  {line}", err=True)
