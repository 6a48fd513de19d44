"""Where base URL, key and model come from, who wins, and what a broken file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokentrace.client import config_files
from tokentrace.client.settings import DEFAULT_TIMEOUT_S, Endpoint, resolve
from tokentrace.errors import ConfigError

PROFILES = """\
# two profiles
profile = "prefill"

[profiles.prefill]
base_url = "http://prefill.example/v1"
api_key_env = "PREFILL_KEY"
model = "big"
timeout = 30

[profiles.decode]
base_url = "http://decode.example/v1"
api_key = "${DECODE_KEY}"
default_model = "small"
max_retries = 2
headers = { "X-Team" = "perf" }
"""


@pytest.fixture(autouse=True)
def no_user_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "project" / "tokentrace.toml").write_text(PROFILES)
    return folder


def found(endpoint: Endpoint | None) -> Endpoint:
    assert endpoint is not None
    return endpoint


def test_nothing_set_means_the_local_engine(tmp_path: Path) -> None:
    assert resolve(environ={}, folder=tmp_path) is None
    assert resolve(environ={"OPENAI_API_KEY": "sk-1"}, model="x", folder=tmp_path) is None


def test_an_empty_url_is_no_wish_for_the_local_engine(tmp_path: Path) -> None:
    for empty in ("", " "):
        with pytest.raises(ConfigError, match="from --url is empty"):
            resolve(empty, environ={}, folder=tmp_path)


def test_environment(tmp_path: Path) -> None:
    env = {"OPENAI_BASE_URL": "http://o/v1", "OPENAI_API_KEY": "sk-o", "OPENAI_MODEL": "m-o"}
    e = found(resolve(environ=env, folder=tmp_path))
    assert (e.base_url, e.api_key, e.model, e.timeout_s) == ("http://o/v1", "sk-o", "m-o", DEFAULT_TIMEOUT_S)
    assert e.source == {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY", "model": "OPENAI_MODEL"}
    env |= {"TOKENTRACE_BASE_URL": "http://t/v1", "TOKENTRACE_API_KEY": "sk-t", "TOKENTRACE_MODEL": "m-t",
            "TOKENTRACE_TIMEOUT": "7"}  # fmt: skip
    e = found(resolve(environ=env, folder=tmp_path))
    assert (e.base_url, e.api_key, e.model, e.timeout_s) == ("http://t/v1", "sk-t", "m-t", 7.0)


def test_flags_win_over_all(project: Path) -> None:
    env = {"OPENAI_BASE_URL": "http://o/v1", "TOKENTRACE_API_KEY": "sk-t", "PREFILL_KEY": "sk-p"}
    e = found(resolve("http://f/v1", "sk-f", "m-f", timeout_s=3, environ=env, folder=project))
    assert (e.base_url, e.api_key, e.model, e.timeout_s) == ("http://f/v1", "sk-f", "m-f", 3)
    assert e.source["base_url"] == "--url" and e.source["api_key"] == "--key"


def test_default_and_named_profile(project: Path) -> None:
    env = {"PREFILL_KEY": "sk-p", "DECODE_KEY": "sk-d"}
    e = found(resolve(environ=env, folder=project))
    assert (e.base_url, e.api_key, e.model, e.timeout_s) == ("http://prefill.example/v1", "sk-p", "big", 30)
    assert e.source["api_key"] == "PREFILL_KEY"
    for chosen in ({"profile": "decode"}, {"environ": env | {"TOKENTRACE_PROFILE": "decode"}}):
        e = found(resolve(**{"environ": env, "folder": project} | chosen))  # type: ignore[arg-type]
        assert (e.base_url, e.api_key, e.model, e.max_retries) == ("http://decode.example/v1", "sk-d", "small", 2)
        assert e.headers == {"X-Team": "perf"}
        assert not e.warnings  # ${…} is not a key in a file


def test_environment_wins_over_a_profile_and_says_so(project: Path) -> None:
    env = {"DECODE_KEY": "sk-d", "OPENAI_BASE_URL": "http://o/v1", "OPENAI_API_KEY": "sk-o"}
    e = found(resolve(profile="decode", environ=env, folder=project))
    assert (e.base_url, e.api_key, e.model) == ("http://o/v1", "sk-o", "small")
    assert any("OPENAI_BASE_URL" in w for w in e.warnings)
    assert e.headers == {}  # they may hold a key of the profile's host


def test_a_key_stays_with_its_url(project: Path) -> None:
    env = {"DECODE_KEY": "sk-d", "OPENAI_API_KEY": "sk-o"}
    e = found(resolve(profile="decode", environ=env, folder=project))
    assert e.api_key == "sk-d"
    assert any("OPENAI_API_KEY was not sent" in w for w in e.warnings)
    e = found(resolve("http://elsewhere/v1", profile="decode", environ={"DECODE_KEY": "sk-d"}, folder=project))
    assert e.api_key == ""
    assert any("another host" in w for w in e.warnings)
    e = found(resolve("http://decode.example/v2", profile="decode", environ={"DECODE_KEY": "sk-d"}, folder=project))
    assert e.api_key == "sk-d"


def test_user_folder_is_the_last_resort(tmp_path: Path, project: Path) -> None:
    folder = tmp_path / "config" / "tokentrace"
    folder.mkdir(parents=True)
    (folder / "tokentrace.toml").write_text('base_url = "http://user/v1"\n')
    assert found(resolve(environ={}, folder=tmp_path)).base_url == "http://user/v1"
    assert found(resolve(environ={"PREFILL_KEY": "k"}, folder=project)).base_url == "http://prefill.example/v1"


@pytest.mark.parametrize("name", ["settings.json", "auth"])
def test_json_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"base_url": "http://${HOST}:${PORT:-8000}/v1", "api_key": "sk-file",
                                "default_model": "m", "timeout": "12.5", "max_retries": 1}))  # fmt: skip
    e = found(resolve(config=path, environ={"HOST": "h"}, folder=tmp_path))
    assert (e.base_url, e.api_key, e.model, e.timeout_s, e.max_retries) == ("http://h:8000/v1", "sk-file", "m", 12.5, 1)
    assert len(e.warnings) == 1 and "api_key_env" in e.warnings[0] and "sk-file" not in e.warnings[0]


def test_the_key_is_in_no_repr(project: Path) -> None:
    e = found(resolve("http://h/v1", "sk-very-secret", environ={"PREFILL_KEY": "sk-other"}, folder=project))
    assert "secret" not in repr(e) and "secret" not in str(e)


def test_a_key_in_a_file_is_in_no_repr_and_no_message(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text('base_url = "http://h/v1"\napi_key = "sk-secret"\nheaders = { "X-Api-Key" = " sk-secret " }\n')
    file = config_files.read(path)
    said = config_files.settings(file, "", {})
    assert said.api_key == said.headers["X-Api-Key"] == "sk-secret"
    assert "secret" not in repr(file) + repr(said)
    for key in ("sk-secret", "gsk_secret"):
        path.write_text(f'base_url = "http://h/v1"\napi_key_env = "{key}"\n')
        with pytest.raises(ConfigError, match=r"some\.toml:2: api_key_env") as caught:
            resolve(config=path, environ={}, folder=tmp_path)
        assert "secret" not in str(caught.value) + caught.value.fix


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('base_url = "http://h/v1"\nmodel = \n', 2, "TOML"),
        ('base_url = "http://h/v1"\n\ntimeout = "soon"\n', 3, "timeout"),
        ('base_url = "http://h/v1"\ntimeout = -1\n', 2, "timeout"),
        ('base_url = "http://h/v1"\ntimeout = true\n', 2, "timeout"),
        ('base_url = "http://h/v1"\nmax_retries = 1.5\n', 2, "max_retries"),
        ('base_url = 5\n', 1, "base_url"),
        ('base_url = "http://h/v1"\nmodel = "${MODEL}"\n', 2, "MODEL"),
        ('base_url = "http://h/v1"\n[headers]\nX-A = 5\n', 2, "headers"),
        ('base_url = "http://h/v1"\n[headers]\nX-A = "a\\nb"\n', 3, "header"),
        ('base_url = "http://h/v1"\napi_key_env = "NOT_SET"\n', 2, "NOT_SET"),
        ('profiles = 3\n', 1, "profiles"),
        ('base_url = "http://h/v1"\nprofile = 3\n', 2, "profile"),
        ("base_url = 'http://h/v1'\nbase_url = 'http://i/v1'\n", 2, "TOML"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_told_with_file_and_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(config=path, environ={}, folder=tmp_path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert word in str(caught.value)
    assert caught.value.fix and caught.value.exit_code == 2


def test_the_line_is_the_profile_s_own(project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(profile="decode", environ={}, folder=project)
    assert "tokentrace.toml:12: " in str(caught.value) and "DECODE_KEY" in str(caught.value)


def test_json_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{\n  "base_url": "http://h/v1",\n  "model": oops\n}')
    with pytest.raises(ConfigError, match=r"some\.json:3: not JSON"):
        resolve(config=path, environ={}, folder=tmp_path)
    path.write_text("[1, 2]")
    with pytest.raises(ConfigError, match="a list"):
        resolve(config=path, environ={}, folder=tmp_path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        resolve(config=tmp_path / "absent.toml", environ={}, folder=tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve(config=tmp_path, environ={}, folder=tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'model = "a"\nbase_url = "http://\xe4/v1"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml:2: not UTF-8"):
        resolve(config=path, environ={}, folder=tmp_path)


def test_unknown_profile(project: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(profile="decod", environ={}, folder=project)
    assert caught.value.fix == "did you mean decode?"
    with pytest.raises(ConfigError, match=r"no tokentrace\.toml"):
        resolve(profile="groq", environ={}, folder=tmp_path)


def test_profile_without_url(tmp_path: Path) -> None:
    (tmp_path / "tokentrace.toml").write_text('[profiles.a]\nmodel = "m"\n')
    with pytest.raises(ConfigError, match="has no base_url"):
        resolve(profile="a", environ={}, folder=tmp_path)


def test_unknown_names_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "tokentrace.toml").write_text('[profiles.a]\nbaseurl = "http://x"\nbase_url = "http://h/v1"\n')
    e = found(resolve(profile="a", environ={}, folder=tmp_path))
    assert any("baseurl is not known here; did you mean base_url?" in w for w in e.warnings)


def test_bad_timeout_in_the_environment(tmp_path: Path) -> None:
    for value in ("soon", "0", "-3", "nan", "inf"):
        with pytest.raises(ConfigError, match="TOKENTRACE_TIMEOUT"):
            resolve("http://h/v1", environ={"TOKENTRACE_TIMEOUT": value}, folder=tmp_path)


def test_malformed_key_names_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key from OPENAI_API_KEY looks malformed"):
        resolve("http://h/v1", environ={"OPENAI_API_KEY": "'sk-1'"}, folder=tmp_path)
    e = found(resolve("http://h/v1", environ={"OPENAI_API_KEY": "None"}, folder=tmp_path))
    assert e.api_key == "" and "looks malformed" in e.warnings[0] and e.key_problem


def test_a_file_of_profiles_with_none_chosen_is_not_silently_ignored(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[profiles.a]\nbase_url = "http://a/v1"\n[profiles.b]\nbase_url = "http://b/v1"\n')
    with pytest.raises(ConfigError) as refused:
        resolve(config=tmp_path / "t.toml", environ={}, folder=tmp_path)
    assert "2 profiles, and none was chosen" in str(refused.value)
    assert refused.value.fix == "--profile a (it also has b)"
    assert found(resolve("http://f/v1", config=tmp_path / "t.toml", profile="b", environ={})).base_url == "http://f/v1"


def test_a_profile_of_the_users_own_file_is_found_behind_the_projects(tmp_path: Path, project: Path) -> None:
    own = tmp_path / "config" / "tokentrace"
    own.mkdir(parents=True)
    mine = '[profiles.mine]\nbase_url = "http://mine/v1"\n[profiles.decode]\nbase_url = "http://hidden/v1"\n'
    (own / "tokentrace.toml").write_text(mine)
    assert found(resolve(profile="mine", environ={}, folder=project)).base_url == "http://mine/v1"
    env = {"DECODE_KEY": "k"}
    assert found(resolve(profile="decode", environ=env, folder=project)).base_url == "http://decode.example/v1"
    with pytest.raises(ConfigError, match=r"project/tokentrace\.toml has no profile 'other'"):
        resolve(profile="other", environ={}, folder=project)
