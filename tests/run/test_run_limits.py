"""Numbers that no request can hold are refused with the range they must lie in, by every command that takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tokentrace.cli import cli
from tokentrace.errors import ConfigError

NOBODY = "http://127.0.0.1:9/v1"


def told(data: Path, *arguments: str, **environment: str) -> Result:
    """Nothing is asked: the value is refused before."""
    clean = {"OPENAI_BASE_URL": None, "TOKENTRACE_DATA_DIR": str(data), **environment}
    return CliRunner().invoke(cli, arguments, env=clean)


@pytest.mark.parametrize("command", [("run", "Hi"), ("bench", "Hi"), ("doctor",), ("attach", NOBODY, "Hi")])
@pytest.mark.parametrize("value", ["inf", "1e308", "1e10", "nan", "-1"])
def test_a_timeout_without_end_is_refused_with_the_longest_one(
    command: tuple[str, ...], value: str, tmp_path: Path
) -> None:
    url = () if command[0] == "attach" else ("--url", NOBODY)
    done = told(tmp_path, *command, *url, "--timeout", value)
    assert done.exit_code == 2 and "--timeout" in done.stderr
    assert ("nan is not a" if value == "nan" else "10000000") in done.stderr


def test_a_timeout_of_the_environment_is_refused_with_the_longest_one(tmp_path: Path) -> None:
    error = told(tmp_path, "run", "Hi", "--url", NOBODY, TOKENTRACE_TIMEOUT="inf").exception
    assert isinstance(error, ConfigError) and "10,000,000" in str(error) and "TOKENTRACE_TIMEOUT" in str(error)


@pytest.mark.parametrize("command", [("run", "Hi"), ("bench", "Hi"), ("attach", NOBODY, "Hi")])
@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "nan"), ("--temperature", "inf"), ("--max-tokens", "9" * 24), ("--max-tokens", "0")],
)
def test_a_number_that_no_request_can_hold_is_refused(
    command: tuple[str, ...], option: str, value: str, tmp_path: Path
) -> None:
    url = () if command[0] == "attach" else ("--url", NOBODY)
    done = told(tmp_path, *command, *url, option, value)
    assert done.exit_code == 2 and option in done.stderr and not list(tmp_path.iterdir())
