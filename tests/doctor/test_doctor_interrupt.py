"""Ctrl-C says that more is above only where it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doctor_support import CHAT, Answer, healthy
from support.http_servers import WAIT

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


@pytest.mark.parametrize(("arguments", "above"), [(("--layers", "8"), True), (("--layers", "8", "-q"), False)])
def test_what_is_above(arguments: tuple[str, ...], above: bool, tmp_path: Path) -> None:
    with healthy() as server:
        server.on("POST", CHAT, Answer(200, {}, [WAIT]))
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--url", server.url + "/v1", "--timeout", "200", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path)},
        )  # fmt: skip
        end = time.monotonic() + 120
        while not any(r.method == "POST" for r in server.requests) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert ("is above" in err) == above
    assert not above or "requests go to" in out or "8 client request" in out
