"""Makes `support` importable (pytest puts the folder of a conftest.py on the path), and keeps the surroundings out.

What a test finds must not depend on who runs it: settings of tokentrace and of others that it reads, colours, the mask
of new files, signals that are ignored. Examples of hypothesis are the same in each run, so that a run says the same as
the one before; `--hypothesis-profile=explore` looks for new ones.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

_READ = ("BASE_URL", "API_KEY", "MODEL", "TIMEOUT", "PROFILE", "ENABLE", "DISABLE", "SHARE", "AGENT_SOCKET")
_SETTINGS = {f"TOKENTRACE_{name}" for name in _READ} | {"TOKENTRACE_BESIDE_OF", "TRACEPARENT", "VLLM_API_KEY"}
_LOOKS = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}

for _name in [*os.environ]:
    if _name in _SETTINGS | _LOOKS or _name.startswith(("OPENAI_", "OTEL_")):
        del os.environ[_name]
if any(_name.lower() in ("http_proxy", "https_proxy", "all_proxy") for _name in os.environ):
    # The way to the package index may need it; the servers of the tests are on this machine.
    for _name in ("no_proxy", "NO_PROXY"):
        os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "localhost", "127.0.0.1", "::1"]))
# Programs that came with the tests' packages (ninja) are found without the environment being activated.
os.environ["PATH"] = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ.get("PATH")]))
os.umask(0o022)
# A shell starts what it runs in the background with Ctrl-C ignored, and so would be all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that saves runs has a folder of its own for them; whatever else is saved does not go to the user's.
_data = tempfile.mkdtemp(prefix="tokentrace-tests-")
os.environ["TOKENTRACE_DATA_DIR"] = _data
atexit.register(shutil.rmtree, _data, ignore_errors=True)

settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")
