"""Where a request goes: base URL, key, model; from flags, environment, a profile or a file.

Precedence: flags, then TOKENTRACE_* variables, then OPENAI_* variables, then the profile or file. A key is never part
of a message, a repr or a saved trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tokentrace.errors import ConfigError, EndpointError

FILE_NAME = "tokentrace.toml"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True)
class Endpoint:
    """The usual three settings and how patient to be. `warnings` are sentences for the user."""

    base_url: str
    api_key: str = field(default="", repr=False)
    model: str = ""
    timeout_s: float = 120.0
    max_retries: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def chat_url(self) -> str:
        return f"{self.base_url}/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def normalise(url: str) -> str:
    """The base URL without trailing slash and without `/chat/completions`.

    Raises EndpointError for what is no http(s) URL and for a doubled `/v1`.
    """
    text = url.strip().strip("\"'")
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise EndpointError(f"{url!r} is no http URL", fix="for example --url http://localhost:8000/v1", layer=8)
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    for tail in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(tail)
    base = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    if "/v1/v1" in path:
        raise EndpointError(f"the path of {base} is doubled", fix=f"--url {base.replace('/v1/v1', '/v1')}", layer=8)
    return base


def check_key(key: str, source: str) -> str:
    """The key as it is sent. Raises ConfigError, without the key, for one that cannot be right."""
    bare = key.strip()
    if not bare:
        return ""
    if bare != key or bare[0] in "\"'" or bare[-1] in "\"'":
        raise ConfigError(
            f"the key in {source} looks malformed: it has spaces, a newline or quotes around it",
            fix=f"set {source} again without them",
        )
    if bare.lower() in ("none", "null", "undefined"):
        raise ConfigError(f"the key in {source} looks malformed: it is the word {bare}", fix=f"set or unset {source}")
    if bare.lower().startswith("bearer "):
        raise ConfigError(
            f"the key in {source} begins with 'Bearer', which is added when it is sent",
            fix=f"set {source} to the key alone",
        )
    if any(ord(c) < 33 or ord(c) > 126 for c in bare):
        raise ConfigError(
            f"the key in {source} looks malformed: it holds a character no header may carry",
            fix=f"copy the key again into {source}",
        )
    return bare


def resolve(
    url: str | None = None,
    key: str | None = None,
    model: str | None = None,
    profile: str | None = None,
    config: str | None = None,
    timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Endpoint | None:
    """The endpoint to talk to, or None when no base URL is given anywhere (then the local engine serves).

    Raises ConfigError for an unreadable file, an unknown profile, an unset `${VAR}` or a malformed key, EndpointError
    for a base URL that cannot be one.
    """
    env = os.environ if environ is None else environ
    warnings: list[str] = []
    chosen = profile or env.get("TOKENTRACE_PROFILE") or ""
    stored = _stored(config, chosen, env, folder or Path.cwd(), warnings)

    def pick(flag: str | None, *names: str) -> tuple[str, str]:
        if flag:
            return flag, "the command line"
        for name in names:
            if env.get(name):
                return env[name], name
        return "", ""

    base, _ = pick(url, "TOKENTRACE_BASE_URL", *(() if stored.get("base_url") and chosen else ("OPENAI_BASE_URL",)))
    base = base or str(stored.get("base_url") or "")
    if not base:
        return None
    secret, source = pick(key, "TOKENTRACE_API_KEY")
    if not secret and stored.get("api_key"):
        secret, source = str(stored["api_key"]), str(stored["_source"])
    if not secret:
        secret, source = pick(None, "OPENAI_API_KEY")
    name, _ = pick(model, "TOKENTRACE_MODEL")
    name = name or str(stored.get("model") or stored.get("default_model") or env.get("OPENAI_MODEL") or "")
    return Endpoint(
        normalise(base),
        check_key(secret, source) if secret else "",
        name.strip(),
        timeout_s or _number(env.get("TOKENTRACE_TIMEOUT") or stored.get("timeout"), 120.0),
        int(_number(stored.get("max_retries"), 0)),
        warnings,
    )


def _number(value: Any, default: float) -> float:
    if value in (None, ""):
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e6:
        raise ConfigError(f"{value!r} is no number of seconds or tries", fix="mend timeout or max_retries")
    return number


def _stored(
    config: str | None, profile: str, env: Mapping[str, str], folder: Path, warnings: list[str]
) -> dict[str, Any]:
    files = [Path(config)] if config else _files(folder)
    for path in files:
        data = read_file(path)
        profiles = data.get("profiles") if isinstance(data.get("profiles"), dict) else {}
        assert isinstance(profiles, dict)
        if profile:
            if profile not in profiles:
                if not config and path is not files[-1]:
                    continue
                known = ", ".join(profiles) or "none"
                raise ConfigError(f"there is no profile {profile!r} in {path}", fix=f"profiles there: {known}")
            data = profiles[profile]
        elif not config and not data.get("base_url"):
            continue
        values = {k: _expand(v, env, path) if isinstance(v, str) else v for k, v in data.items() if k != "profiles"}
        values["_source"] = str(path)
        if values.get("api_key"):
            if not _VARIABLE.search(str(data.get("api_key"))):
                warnings.append(f'{path} holds a key itself; api_key_env = "NAME" keeps it out of the file')
        elif values.get("api_key_env"):
            variable = str(values["api_key_env"])
            if variable not in env:
                raise ConfigError(f"{path} takes the key from {variable}, which is not set", fix=f"export {variable}=…")
            values["api_key"], values["_source"] = env[variable], variable
        return values
    if profile:
        raise ConfigError(f"there is no {FILE_NAME} with a profile {profile!r}", fix="write one, or give --config FILE")
    return {}


def _files(folder: Path) -> list[Path]:
    import platformdirs

    here = [parent / FILE_NAME for parent in (folder, *folder.parents)]
    user = Path(platformdirs.user_config_dir("tokentrace")) / FILE_NAME
    return [path for path in (*here, user) if path.is_file()]


def read_file(path: Path) -> dict[str, Any]:
    """A TOML or JSON file as a table. Raises ConfigError with file and line."""
    import json

    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {reason}", fix="check the path and its permissions") from error
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}", fix="mend that line") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", fix="mend that line") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: expected a table of settings", fix='for example base_url = "http://…/v1"')
    return data


def _expand(text: str, env: Mapping[str, str], path: Path) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in env:
            raise ConfigError(f"{path} uses ${{{match[1]}}}, which is not set", fix=f"export {match[1]}=…")
        return env[match[1]]

    return _VARIABLE.sub(value, text)
