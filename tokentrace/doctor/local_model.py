"""Layer 6 without a server: can the local engine run here, and is its model there? Nothing is fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokentrace.doctor.check import Check, Mode, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.engines.local.folder import ModelFolder
from tokentrace.errors import EngineError, TokentraceError

_MACHINE: frozenset[Mode] = frozenset(("machine",))


@dataclass(frozen=True, slots=True)
class Found:
    """`folder` can be served at once. Where it is None: why, what to do, and whether no run could serve it either."""

    folder: ModelFolder | None
    why: str = ""
    fix: str = ""
    broken: bool = False


def find(named: str | None, environ: Mapping[str, str]) -> Found:
    """The local engine's model, said with the words of `tokentrace run`. Touches and fetches nothing."""
    from tokentrace.engines.local.model import ensure_model

    given = named or environ.get("TOKENTRACE_MODEL")
    if given:
        path = Path(given).expanduser()
        if path.suffix in (".gguf", ".whl") and path.is_file():
            fix = f'tokentrace run "Hi" --model {path}'
            return Found(None, f"{path} is not converted yet: {fix} does that", fix)
        try:
            # A folder, or nothing at all: looked at, never fetched. The variable has a sentence of its own.
            return Found(ensure_model(None if named is None and os.environ.get("TOKENTRACE_MODEL") == given else path))
        except EngineError as error:
            return Found(None, str(error), error.fix, broken=True)
    folder = cache(environ)
    damage = _damage(folder)
    if not damage:
        return Found(ModelFolder(folder, _name(), "cache"))
    if folder.is_dir():
        return Found(None, f'the cached model is damaged ({damage}): tokentrace run "Hi" makes it again',
                     'tokentrace run "Hi"')  # fmt: skip
    return Found(None, 'no model is here yet: tokentrace run "Hi" fetches it', 'tokentrace run "Hi"')


def cache(environ: Mapping[str, str]) -> Path:
    """The folder of the built-in model, whether it is there or not."""
    from tokentrace.engines.local import model

    configured = environ.get("TOKENTRACE_CACHE_DIR")
    base = Path(configured).expanduser() if configured else model.cache_dir()
    return base / "models" / model.FOLDER


def _name() -> str:
    from tokentrace.engines.local import model

    return model.NAME


def _damage(folder: Path) -> str:
    """Sizes against the manifest. (`manifest.check` would note new times in the cache, which a doctor must not.)"""
    from tokentrace.engines.local import manifest

    try:
        noted = json.loads((folder / manifest.NAME).read_text(encoding="utf-8"))
        files = noted["files"]
        if noted["schema"] != manifest.SCHEMA or not files:
            return "its manifest is of another version"
        for name, facts in files.items():
            if (folder / name).stat().st_size != facts["size"]:
                return f"{name} has another size than noted"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    return ""


def _engine(s: Situation) -> Iterable[Result]:
    from tokentrace.engines.local.loading import check_transformers

    found = s.local_model
    if found is not None and found.broken:
        yield fail("TT618", found.why, found.fix)
        return
    try:
        check_transformers()
    except TokentraceError as error:
        yield warn("TT618", f"the local engine cannot run here: {error}", error.fix)
        return
    if s.model_path:
        yield ok("TT618", f"the local engine's packages are installed, and its model lies in {s.model_path}")
        return
    yield unknown("TT618", found.why if found is not None else "no model was chosen", found.fix if found else "")


def _served(s: Situation) -> Iterable[Result]:
    facts = s.engine_facts
    if not facts:
        yield skip("TT619", "the local engine was not started")
        return
    told = [f"{key} {facts[key]}" for key in ("device", "dtype", "max_model_len", "threads") if facts.get(key)]
    yield ok("TT619", f"the local engine ran: {', '.join(told)}")


CHECKS = (
    Check(
        "TT618",
        "local engine",
        "The packages that the local engine needs are installed, and its model is in the cache, so that "
        '`tokentrace run "Hi"` answers without a network.',
        "the versions of the packages, and the sizes of the model's files against their list",
        "pip install 'tokentrace[local]'; `tokentrace run \"Hi\"` fetches the model once.",
        _engine,
        modes=_MACHINE,
    ),
    Check(
        "TT619",
        "local engine at work",
        "The local engine started for the live call.",
        "what the engine says of itself",
        "See TT608 when it did not.",
        _served,
        live=True,
        modes=_MACHINE,
    ),
)
