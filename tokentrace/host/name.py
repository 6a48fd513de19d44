"""What this machine is called in a trace."""

from __future__ import annotations

import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def this_host() -> dict[str, str]:
    """`host.id` (systemd's machine id, see machine-id(5); else the host name) and `host.name` of this machine."""
    name = socket.gethostname()
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return {"host.id": text, "host.name": name}
    return {"host.id": name, "host.name": name}
