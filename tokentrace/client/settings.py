"""Where the request goes: base URL, key, model and limits, from flags, the environment, and configuration files.

Order of precedence, value by value: flags, environment (TOKENTRACE_* before OPENAI_*), then the file given with
--config, or a profile of tokentrace.toml (project folder upwards, then the user's configuration folder).

One exception protects keys. A key belongs with its URL: OPENAI_API_KEY does not replace the key that a profile brings
for its own URL, and a profile's key never goes to another host than the profile's. Both are said in `warnings`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokentrace.client import config_files, keys, urls
from tokentrace.client.config_files import MAX_TIMEOUT_S, Settings
from tokentrace.errors import ConfigError
from tokentrace.wording import listed, plural

DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server and how to speak to it. `repr` shows neither the key nor the headers' values.

    `model` may be empty: `chat` then asks the server for its only model. `timeout_s` limits the wait for the first
    byte and between two bytes. `source` says where each value came from; `warnings` are sentences for the user.
    """

    base_url: str
    api_key: str = field(default="", repr=False)
    model: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_retries: int = 0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    source: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), repr=False)
    query: str = field(default="", repr=False)
    #: Why the key was set aside or is doubtful; "" when there is nothing to say.
    key_problem: str = ""

    @classmethod
    def of(cls, url: str, **more: object) -> Endpoint:
        """An endpoint from a URL in any form. Raises ConfigError."""
        base = urls.normalise(url)
        return replace(cls(base.url, query=base.query, warnings=base.notes), **more)  # type: ignore[arg-type]

    @property
    def chat_url(self) -> str:
        return self.base_url + "/chat/completions"

    @property
    def parts(self) -> urls.BaseUrl:
        return urls.normalise(self.base_url)

    @property
    def host(self) -> str:
        return self.parts.host

    @property
    def port(self) -> int:
        return self.parts.port


def resolve(
    url: str | None = None,
    key: str | None = None,
    model: str | None = None,
    profile: str | None = None,
    config: str | Path | None = None,
    timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    max_retries: int | None = None,
) -> Endpoint | None:
    """The endpoint that flags, environment and files describe, or None when no base URL is set anywhere.

    Raises ConfigError: bad URL, malformed key, unreadable or malformed file (with line), unknown profile, unset
    ${VAR}, a named profile without a URL.
    """
    env = os.environ if environ is None else environ
    if url is not None and not url.strip():  # a variable of the shell that is empty; not a wish for this machine
        raise ConfigError("the base URL from --url is empty", fix="leave --url out, or give it an address", layer=8)
    named = profile or env.get("TOKENTRACE_PROFILE") or ""
    warnings: list[str] = []
    file = _file(named, config, env, Path(folder) if folder is not None else Path.cwd(), warnings)
    if file is not None:
        warnings += file.warnings
    source: dict[str, str] = {}

    def pick(name: str, flag: str | None, variables: tuple[str, ...], filed: str | None) -> str:
        if flag:
            source[name] = f"--{'url' if name == 'base_url' else name}"
            return flag
        for variable in variables:
            if env.get(variable):
                source[name] = variable
                if filed and profile and env[variable] != filed:
                    warnings.append(f"{variable} from the environment is used instead of {name} of {_of(file)}")
                return env[variable]
        if filed and file is not None:
            source[name] = file.where
            return filed
        return ""

    filed_url = file.base_url if file is not None else None
    raw = pick("base_url", url, ("TOKENTRACE_BASE_URL", "OPENAI_BASE_URL"), filed_url)
    if not raw:
        if profile and file is not None:
            raise ConfigError(f"{_of(file)} has no base_url", fix="add base_url to it, or give --url", layer=8)
        return None
    base = urls.normalise(raw, source["base_url"])
    warnings += base.notes
    chosen = pick("model", model, ("TOKENTRACE_MODEL", "OPENAI_MODEL"), file.model if file is not None else None)
    secret = _key(key, env, file, base, source, warnings)
    reading = keys.examine(secret, source.get("api_key", "")) if secret else keys.KeyReading("")
    if reading.malformed:
        warnings.append(f"the key from {source['api_key']} looks malformed: {reading.malformed}")
    return Endpoint(
        base_url=base.url,
        api_key=reading.key,
        model=chosen.strip(),
        timeout_s=_timeout(timeout_s, env, file, source),
        max_retries=_retries(max_retries, file, source),
        headers=dict(file.headers) if file is not None and _same_host(file, base) else {},
        source=source,
        warnings=tuple(dict.fromkeys(warnings)),
        query=base.query,
        key_problem=reading.malformed,
    )


def _file(
    named: str, config: str | Path | None, env: Mapping[str, str], cwd: Path, warnings: list[str]
) -> Settings | None:
    if config:
        file = config_files.read(Path(config).expanduser())
        profiles = list(file.profiles)
        if profiles and not (named or file.default) and not any(not isinstance(v, dict) for v in file.data.values()):
            raise ConfigError(
                f"{file.path} holds {plural(len(profiles), 'profile')}, and none was chosen",
                fix=f"--profile {profiles[0]}" + (f" (it also has {listed(profiles[1:])})" if profiles[1:] else ""),
                layer=8,
            )
    else:
        path, said = config_files.find(cwd)
        warnings += said
        if path is None:
            if named:
                raise ConfigError(
                    f"there is no profile {named!r}: no tokentrace.toml was found here, above, or in the user folder",
                    fix=f"write [profiles.{named}] with base_url into ./tokentrace.toml",
                    layer=8,
                )
            return None
        file = config_files.read(path)
        own = config_files.of_the_user()
        if named and named not in file.profiles and path != own and own.is_file():
            # A project's file hides the user's own profiles only where it has one of the same name.
            behind = config_files.read(own)
            if named in behind.profiles:
                file = behind
    return config_files.settings(file, named or file.default, env)


def _key(
    flag: str | None,
    env: Mapping[str, str],
    file: Settings | None,
    base: urls.BaseUrl,
    source: dict[str, str],
    warnings: list[str],
) -> str:
    if flag:
        source["api_key"] = "--key"
        return flag
    if env.get("TOKENTRACE_API_KEY"):
        source["api_key"] = "TOKENTRACE_API_KEY"
        return env["TOKENTRACE_API_KEY"]
    generic = env.get("OPENAI_API_KEY", "")
    if file is not None and (file.api_key or file.api_key_env):
        if not _same_host(file, base):
            warnings.append(f"the key of {_of(file)} was not sent, because the base URL is another host")
        elif not generic or source["base_url"] == file.where:
            if generic:
                warnings.append(f"OPENAI_API_KEY was not sent, because {_of(file)} brings its own key for its URL")
            source["api_key"] = file.api_key_env if file.api_key is None and file.api_key_env else file.where
            return file.api_key or env.get(file.api_key_env or "", "")
    if generic:
        source["api_key"] = "OPENAI_API_KEY"
    return generic


def _same_host(file: Settings, base: urls.BaseUrl) -> bool:
    if not file.base_url:
        return True
    own = urls.normalise(file.base_url, file.where)
    return (own.scheme, own.host, own.port) == (base.scheme, base.host, base.port)


def _timeout(flag: float | None, env: Mapping[str, str], file: Settings | None, source: dict[str, str]) -> float:
    if flag is not None:
        source["timeout"] = "--timeout"
        value = float(flag)
    elif env.get("TOKENTRACE_TIMEOUT"):
        source["timeout"] = "TOKENTRACE_TIMEOUT"
        try:
            value = float(env["TOKENTRACE_TIMEOUT"])
        except ValueError:
            value = math.nan
    elif file is not None and file.timeout_s is not None:
        source["timeout"] = file.where
        value = file.timeout_s
    else:
        return DEFAULT_TIMEOUT_S
    if not 0 < value <= MAX_TIMEOUT_S:
        raise ConfigError(
            f"the timeout from {source['timeout']} is not a number of seconds above 0 and up to {MAX_TIMEOUT_S:,}",
            fix="for instance 60",
            layer=8,
        )
    return value


def _retries(flag: int | None, file: Settings | None, source: dict[str, str]) -> int:
    if flag is not None:
        source["max_retries"] = "--max-retries"
        return max(0, flag)
    if file is not None and file.max_retries is not None:
        source["max_retries"] = file.where
        return file.max_retries
    return 0


def _of(file: Settings | None) -> str:
    return file.where if file is not None else "the file"
