"""The agent as one string: its modules under a private package name, and the few lines that load them.

The agent in the target is this tokentrace's, whatever is installed there; nothing there is shadowed, because the
modules are renamed: `tokentrace.agent` becomes PACKAGE.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import marshal
import re
import zlib
from functools import lru_cache
from importlib.resources import files

PACKAGE = "_tokentrace_agent"
_NAME = re.compile(r"\btokentrace\.agent\b")
_FROM = re.compile(r"^(\s*)from tokentrace import agent\b", re.MULTILINE)


@lru_cache(maxsize=1)
def sources() -> dict[str, str]:
    """The agent's modules by the names they get in the target."""
    found = {}
    for file in files("tokentrace.agent").iterdir():
        if file.name.endswith(".py"):
            name = PACKAGE if file.name == "__init__.py" else f"{PACKAGE}.{file.name[:-3]}"
            found[name] = _renamed(file.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def code_hash() -> str:
    """SHA-256 of the sources, for the audit line."""
    digest = hashlib.sha256()
    for name, text in sources().items():
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
    return digest.hexdigest()


def string_for(socket_path: str, permit: str, deadline: float, *, compiled: bool) -> str:
    """The Python text to run in the target: it only starts a thread, which does the rest.

    `compiled` sends bytecode of this interpreter's version: loading it holds the interpreter's lock for far shorter
    times than compiling. The target refuses bytecode of another version.
    """
    magic = importlib.util.MAGIC_NUMBER.hex() if compiled else ""
    text = files("tokentrace.attach").joinpath("in_target.py").read_text(encoding="utf-8")
    call = f"arrive({PACKAGE!r}, {socket_path!r}, {permit!r}, {deadline!r}, {magic!r}, {_packed(compiled)!r})"
    return (
        "try:\n"
        f' __import__("_thread").start_new_thread(exec, ({text + call!r}, {{"__name__": "_tokentrace_boot"}}))\n'
        # A handler for Ctrl-C may run here when the main thread was borrowed: hand the interrupt on.
        'except KeyboardInterrupt:\n __import__("_thread").interrupt_main()\n'
        "except BaseException:\n pass\n"
    )


@lru_cache(maxsize=2)
def _packed(compiled: bool) -> str:
    modules: dict[str, str | bytes] = dict(sources())
    if compiled:
        for name, text in sources().items():
            modules[name] = marshal.dumps(compile(text, f"<{name}>", "exec", dont_inherit=True))
    return base64.b64encode(zlib.compress(marshal.dumps(modules, 2), 9)).decode()


def _renamed(text: str) -> str:
    return _NAME.sub(PACKAGE, _FROM.sub(rf"\1import {PACKAGE} as agent", text))
