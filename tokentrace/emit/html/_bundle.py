"""The page's own source, joined: each ES module becomes a function that gives what it exports.

So the assets stay modules that a browser or an editor can read one by one, names of one file never meet those of
another, and the page is one inline script, which a file opened from disk is allowed to have.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w/-]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const|let) +(\w+))", re.MULTILINE)
_ENTRY = "main"
#: In this order, as the cascade wants it.
_STYLES = ("palette", "base", "story", "timeline", "tables", "print")


def _read(*parts: str) -> str:
    return resources.files(__package__).joinpath("assets", *parts).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def script() -> str:
    """All modules, each after those it imports. Raises ValueError for an import that no module answers."""
    done: dict[str, str] = {}
    _join(_ENTRY, done, ())
    return '"use strict";\n' + "".join(done.values())


def _join(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in above:
        raise ValueError(f"modules import each other: {' > '.join((*above, name))}")
    source = _read("js", f"{name}.js")
    for _, wanted in _IMPORT.findall(source):
        _join(wanted, done, (*above, name))
    exported = [match[1] for match in _EXPORT.finditer(source)]
    body = _IMPORT.sub(lambda m: f"const {{{_renamed(m[1])}}} = {_variable(m[2])};\n", source)
    body = _EXPORT.sub("", body)
    if re.search(r"^(?:import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{name}.js has an import or export that cannot be joined")
    done[name] = (
        f"// {name}.js\nconst {_variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"
    )


def _renamed(names: str) -> str:
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name)


@lru_cache(maxsize=1)
def style() -> str:
    return "\n".join(_read("css", f"{name}.css") for name in _STYLES)


def page(parts: dict[str, str]) -> str:
    """The template with its parts. A part is put in as it is, and never looked at for further parts."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))
