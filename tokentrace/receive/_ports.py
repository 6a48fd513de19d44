"""Are the receiver's ports free, and if not, who has them?"""

from __future__ import annotations

import contextlib
import socket

import psutil

from tokentrace.errors import UsageError


def free_pair(port: int) -> None:
    """Raises UsageError when the port or the next one is taken on this machine."""
    if not 1 <= port < 65535:
        raise UsageError(f"--receive {port} is no port that has a next one", fix="give one from 1 to 65534")
    for one in (port, port + 1):
        if _taken(one):
            other = _other(port)
            raise UsageError(
                f"port {one} is taken{_by(one)}, so the server's spans cannot be received there",
                fix=f"if that is a collector, the server's spans go there already, with the trace id that tokentrace "
                f"sends: take --otlp http://localhost:{one} instead of --receive. Else give another port: --receive "
                f"{other}, and start the server with --otlp-traces-endpoint http://127.0.0.1:{other}",
            )


def _taken(port: int) -> bool:
    """Whether somebody listens there: by a connection, for one who listens on all addresses does not hinder binding
    everywhere; and by binding."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect((host, port))
            return True
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError as error:
            raise UsageError(f"port {port} needs rights that you lack", fix="give one above 1023") from error
        except OSError:
            return True
    return False


def _by(port: int) -> str:
    """The process that listens there, where it may be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f" by {psutil.Process(one.pid).name()} (process {one.pid})"
    return ""


def _other(port: int) -> str:
    """The first of a pair of ports that is free now, above the one asked for."""
    for candidate in range(port + 1000, min(port + 1100, 65534), 2):
        if not _taken(candidate) and not _taken(candidate + 1):
            return str(candidate)
    return "PORT"
