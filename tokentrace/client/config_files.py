"""Reads endpoint settings from tokentrace.toml or any TOML or JSON file, with file and line in every error.

    profile = "groq"                       # optional: the one used when none is named

    [profiles.groq]
    base_url = "https://api.groq.com/openai/v1"
    api_key_env = "GROQ_API_KEY"           # or api_key = "${GROQ_API_KEY}"
    model = "llama-3.3-70b-versatile"      # or default_model
    timeout = 60                           # seconds
    max_retries = 0
    headers = { "X-Team" = "perf" }

The same keys at the top level, outside of any profile, are settings without a name. `${VAR}` and `${VAR:-default}`
inside a text are replaced from the environment.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokentrace.errors import ConfigError

NAME = "tokentrace.toml"
_TEXTS = {"base_url": "base_url", "url": "base_url", "api_base": "base_url", "api_key": "api_key",
          "api_key_env": "api_key_env", "model": "model", "default_model": "model"}  # fmt: skip
#: Some 115 days. Clocks and system calls take no longer ones everywhere.
MAX_TIMEOUT_S = 10_000_000
_OTHERS = {"timeout": "timeout", "max_retries": "max_retries", "headers": "headers"}
_TOP = ("profiles", "profile", "default_profile")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")


@dataclass(slots=True)
class Settings:
    """What one profile (or a file's top level) says; None where it says nothing. `where` is for messages."""

    where: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    model: str | None = None
    timeout_s: float | None = None
    max_retries: int | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class File:
    """A parsed file. `default` is the profile it names for when none is asked for."""

    path: Path
    lines: list[str] = field(repr=False)
    data: dict[str, Any] = field(repr=False)
    default: str = ""

    @property
    def profiles(self) -> dict[str, Any]:
        found = self.data.get("profiles")
        return found if isinstance(found, dict) else {}


def read(path: Path) -> File:
    """Raises ConfigError with file and line when it cannot be read or is not TOML or JSON."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix="check its path and rights") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", fix="save the file as UTF-8") from None
    data = _json(path, text) if _is_json(path, text) else _toml(path, text)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: expected settings, found {_kind(data)}", fix="see tokentrace run --help")
    file = File(path, text.splitlines(), data)
    if "profiles" in data and not isinstance(data["profiles"], dict):
        raise _wrong(file, "profiles", "must hold tables like [profiles.groq]")
    for key in ("profile", "default_profile"):
        if key in data:
            if not isinstance(data[key], str):
                raise _wrong(file, key, "must be the name of a profile")
            file.default = data[key]
    return file


def settings(file: File, profile: str, env: Mapping[str, str]) -> Settings:
    """The settings of one profile over those of the file's top level; `profile` "" is the top level alone.

    Raises ConfigError: no such profile, wrong types, an unset ${VAR} or api_key_env that names no variable.
    """
    top = {k: v for k, v in file.data.items() if k not in _TOP and not isinstance(v, dict)} | (
        {"headers": file.data["headers"]} if isinstance(file.data.get("headers"), dict) else {}
    )
    section = ""
    values: dict[str, Any] = dict(top)
    if profile:
        chosen = file.profiles.get(profile)
        if not isinstance(chosen, dict):
            raise ConfigError(f"{file.path} has no profile {profile!r}", fix=_known(file, profile))
        section = f"profiles.{profile}"
        if {"api_key", "api_key_env", "base_url", "url", "api_base"} & set(chosen):
            # A key belongs to its URL: one without the other is not inherited.
            for key in ("api_key", "api_key_env", "base_url", "url", "api_base"):
                values.pop(key, None)
        values.update(chosen)
    where = f"profile {profile} in {file.path}" if profile else str(file.path)
    found = Settings(where)
    unknown = []
    for key, value in values.items():
        name = str(key).replace("-", "_").lower()
        if name in _TEXTS:
            if not isinstance(value, str):
                raise _wrong(file, key, f"must be a text, not {_kind(value)}", section)
            setattr(found, _TEXTS[name], _expand(file, key, value, env, section))
        elif name == "timeout":
            found.timeout_s = _timeout(file, key, value, env, section)
        elif name == "max_retries":
            if isinstance(value, str):
                value = _number(_expand(file, key, value, env, section))
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _wrong(file, key, "must be a whole number, 0 or more", section)
            found.max_retries = value
        elif name == "headers":
            found.headers = _headers(file, value, env, section)
        else:
            unknown.append(str(key))
    for key in unknown:
        near = get_close_matches(key.lower(), [*_TEXTS, *_OTHERS], 1)
        said = f"; did you mean {near[0]}?" if near else ""
        found.warnings.append(f"{_at(file, key, section)}: {key} is not known here{said}")
    if found.api_key is not None:
        if "${" not in _raw(values, "api_key"):
            found.warnings.append(
                f"{_at(file, 'api_key', section)}: a key in a file can be read and committed by accident; "
                "api_key_env names a variable instead"
            )
    elif found.api_key_env is not None and not env.get(found.api_key_env):
        where = _at(file, "api_key_env", section)
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,79}", found.api_key_env):  # perhaps the key itself: not shown
            raise ConfigError(f"{where}: api_key_env names no variable that is set", fix="name a variable", layer=8)
        raise ConfigError(
            f"{where}: the environment variable {found.api_key_env} is not set",
            fix=f"export {found.api_key_env}=… in this shell",
            layer=8,
        )
    return found


def find(cwd: Path) -> tuple[Path | None, list[str]]:
    """The nearest tokentrace.toml in the folder or above it, else the one in the user's configuration folder.

    A file above `cwd` that belongs to another user is passed over, with a warning: it could send the key elsewhere.
    """
    warnings: list[str] = []
    here = cwd.absolute()
    for folder in (here, *here.parents):
        path = folder / NAME
        if not path.is_file():
            continue
        if sys.platform != "win32" and path.stat().st_uid not in (os.getuid(), 0):
            warnings.append(f"{path} belongs to another user and was not used; --config {path} uses it")
            continue
        return path, warnings
    path = of_the_user()
    return (path if path.is_file() else None), warnings


def of_the_user() -> Path:
    """The file in the user's configuration folder, which need not be there."""
    from platformdirs import user_config_path

    return user_config_path("tokentrace") / NAME


def _is_json(path: Path, text: str) -> bool:
    return path.suffix.lower() == ".json" or (path.suffix.lower() != ".toml" and text.lstrip()[:1] == "{")


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})", fix="mend that line"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}:1: nested too deeply", fix="mend the file") from None


def _toml(path: Path, text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"^(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        line = match[2] if match and match[2] else str(max(1, len(text.splitlines())))
        said = match[1] if match else str(error)
        raise ConfigError(f"{path}:{line}: not TOML: {said}", fix="mend that line") from None
    except RecursionError:
        raise ConfigError(f"{path}:1: nested too deeply", fix="mend the file") from None


def _expand(file: File, key: str, text: str, env: Mapping[str, str], section: str) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        found = env.get(name)
        if found:
            return found
        if default is not None:
            return default
        raise ConfigError(
            f"{_at(file, key, section)}: {key} needs the environment variable {name}, which is not set",
            fix=f"export {name}=… in this shell, or write ${{{name}:-default}}",
            layer=8,
        )

    return _VARIABLE.sub(value, text)


def _timeout(file: File, key: str, value: Any, env: Mapping[str, str], section: str) -> float:
    if isinstance(value, str):
        value = _number(_expand(file, key, value, env, section))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_TIMEOUT_S:
        raise _wrong(file, key, f"must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:,}", section)
    return float(value)


def _headers(file: File, value: Any, env: Mapping[str, str], section: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _wrong(file, "headers", "must be a table of texts", section)
    headers = {str(k): _expand(file, str(k), v, env, section).strip() for k, v in value.items()}
    for name, text in headers.items():
        if not sendable(name, text):
            raise _wrong(file, name, "cannot be sent as a header", section)
    return headers


def sendable(name: str, value: str) -> bool:
    """Can this be a header of a request (RFC 9110, section 5)?"""
    named = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) is not None
    return named and value == value.strip() and re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value) is not None


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _known(file: File, profile: str) -> str:
    names = list(file.profiles)
    if not names:
        return f"add a table [profiles.{profile}] to it"
    near = get_close_matches(profile, names, 1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(names[:20])}"


def _raw(values: Mapping[str, Any], key: str) -> str:
    return next((str(v) for k, v in values.items() if str(k).replace("-", "_").lower() == key), "")


def _wrong(file: File, key: str, problem: str, section: str = "") -> ConfigError:
    return ConfigError(f"{_at(file, key, section)}: {key} {problem}", fix="mend that line", layer=8)


def _at(file: File, key: str, section: str = "") -> str:
    return f"{file.path}:{_line(file, key, section)}"


def _line(file: File, key: str, section: str) -> int:
    """The line a key stands on, for messages: the first one after its section's beginning; 1 when it is not found."""
    start = 0
    if section:
        name = section.rpartition(".")[2]
        quoted = rf"[\"']?{re.escape(name)}[\"']?"
        header = re.compile(rf"^\s*(\[(.*\.)?\s*{quoted}\s*\]|{quoted}\s*[:=]\s*\{{)")
        start = next((i for i, line in enumerate(file.lines) if header.match(line)), 0)
    own = rf"[\"']?{re.escape(key)}[\"']?"
    pattern = re.compile(rf"(^|[\s{{,]){own}\s*[=:]|^\s*\[(.*\.)?\s*{own}\s*\]")
    for first in (start, 0):
        for index, line in enumerate(file.lines[first:], first):
            if pattern.search(line):
                return index + 1
    return 1


def _kind(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)
