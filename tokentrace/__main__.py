"""The program: the console script, and `python -m tokentrace`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. A Ctrl-C while its modules are loading ends the process at once, without a traceback."""
    # Left alone where the caller has it ignored (nohup) or handles it.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tokentrace import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
