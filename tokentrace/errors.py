"""Every error tokentrace raises on purpose.

    TokentraceError                 exit code 1
    ├── UsageError                  exit code 2: the input cannot be used as it is
    │   ├── ConfigError             a configuration file or variable is wrong
    │   └── LayerError              unknown layer, or a broken layers.yaml
    ├── ProbeUnavailable            a layer cannot be seen here; never ends a run by itself
    ├── EngineError                 exit code 2: the local engine did not start or died
    ├── AttachError                 exit code 2: a running server cannot be looked into
    ├── EndpointError               exit code 2: the server could not be used
    └── ExportError                 exit code 1: the trace did not arrive where it was sent

Each carries one sentence (`str(error)`) and, in `.fix`, what to type or change.
"""

from __future__ import annotations

from typing import ClassVar


class TokentraceError(Exception):
    """Base of all errors with a message meant for the user."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fix: str = "", layer: int = 0, detail: str = "") -> None:
        super().__init__(message)
        self.fix = fix
        #: The layer (8 to 1) that the fault lies in; 0 when it lies in none of them.
        self.layer = layer
        #: More evidence, several lines at most, for instance an engine's last log lines.
        self.detail = detail


class UsageError(TokentraceError):
    """The command's input is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file, profile or environment variable is wrong."""


class LayerError(UsageError):
    """A layer name is unknown, or layers.yaml is wrong."""


class ProbeUnavailable(TokentraceError):
    """A layer cannot be seen here. The message says why, `.fix` what would make it visible."""


class EngineError(TokentraceError):
    """The local engine could not start, or ended while it was needed."""

    exit_code = 2


class AttachError(TokentraceError):
    """A running server, or one of its processes, cannot be looked into."""

    exit_code = 2


class EndpointError(TokentraceError):
    """The endpoint could not be reached, refused the request, or answered with something else.

    `check` is the cause's stable id ("TT803"); `tokentrace.client.causes` lists them.
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str = "", layer: int = 0, detail: str = "", check: str = "") -> None:
        super().__init__(message, fix=fix, layer=layer, detail=detail)
        self.check = check


class ExportError(TokentraceError):
    """Spans were produced but not all of them arrived."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or the name of its type when it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
