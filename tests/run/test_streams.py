"""Commands on streams, widths and arguments as a shell, cron or a daemon may hand them over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.http_servers import DONE, ScriptedServer, chunk, json_answer, sse

GREETING = sse(chunk("Héllo "), chunk("you", finish="stop"), DONE)
PROGRAM = [sys.executable, "-m", "tokentrace"]


def shell(line: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run by sh, with $TT for the program, in a data folder of its own."""
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(folder / "data"), "TT": " ".join(PROGRAM), **environ}
    return subprocess.run(["sh", "-c", line], capture_output=True, cwd=folder, env=env, timeout=300)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["layers", "list --json", "doctor --offline --json", "show nothing"])
def test_a_stream_that_the_shell_has_closed_leads_nowhere(command: str, closed: str, tmp_path: Path) -> None:
    plain = shell(f"$TT {command}", tmp_path)
    done = shell(f"$TT {command} {closed}", tmp_path)
    assert done.returncode == plain.returncode
    assert b"Traceback" not in done.stderr and b"Error" not in done.stderr.replace(plain.stderr, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_run_without_one_of_its_streams_is_saved_all_the_same(closed: str, tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = shell(f"$TT run Hi --url {server.url}/v1 --model m {closed}", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(shell("$TT list --json", tmp_path).stdout)["runs"]
    assert run["reply"]


def test_a_closed_input_is_an_empty_prompt(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        for command in ("run -", "bench - -n 1"):
            done = shell(f"$TT {command} --url {server.url}/v1 --model m <&-", tmp_path)
            assert done.returncode == 2 and b"empty" in done.stderr and b"Traceback" not in done.stderr
        assert not [r for r in server.requests if r.method == "POST"]


def test_bench_sends_what_echo_pipes_in_without_its_line_end(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = shell(f"echo Hi | $TT bench - -n 1 --url {server.url}/v1 --model m", tmp_path)
        assert done.returncode == 0, done.stderr
        sent = {json.loads(r.body)["messages"][-1]["content"] for r in server.requests if r.method == "POST"}
    assert sent == {"Hi"}


@pytest.mark.parametrize("columns", ["0", "2", "10", "39"])
def test_any_width_is_wide_enough(columns: str, tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        lines = [
            f"$TT run Hi --url {server.url}/v1 --model m",
            "$TT show --detail",
            "$TT show --tree",
            "$TT layers",
            "$TT list",
        ]
        for line in lines:
            done = shell(line, tmp_path, COLUMNS=columns)
            assert done.returncode == 0 and done.stdout.strip() and b"Traceback" not in done.stderr, (line, done.stderr)


@pytest.mark.parametrize(
    "line",
    ["run Hi --model 'a\udcff'", "bench 'a\udcff' -n 1", "run Hi --system '\udcff'", "run Hi -o '\udcff.html'"],
)  # fmt: skip
def test_an_argument_that_is_no_text_is_one_sentence(line: str, tmp_path: Path) -> None:
    done = shell(f"$TT {line}", tmp_path)
    assert done.returncode == 2 and b"is not valid UTF-8 text" in done.stderr and b"Traceback" not in done.stderr


def test_an_error_brings_no_control_characters_to_the_terminal(tmp_path: Path) -> None:
    for line in ("import '\x1b]0;pwn\x07a'", "run Hi --config '\x1b[31m\x9b31m'", "attach http://x --for '\x1b[31m'"):
        done = shell(f"$TT {line}", tmp_path)
        assert done.returncode == 2, line
        assert not {0x1B, 0x07} & set(done.stderr) and "\x9b" not in done.stderr.decode()
        assert b"\\x1b" in done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "utf-16"])
def test_json_is_utf_8_whatever_the_locale(encoding: str, tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = shell(f"$TT run Hi --url {server.url}/v1 --model m --json", tmp_path, PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout.decode("utf-8"))["reply"]
    assert json.loads(shell("$TT list --json", tmp_path, PYTHONIOENCODING=encoding).stdout.decode("utf-8"))["runs"]


def test_a_mistyped_command_is_told_the_one_that_is_near(tmp_path: Path) -> None:
    for typed, fix in (("rnu", "tokentrace run"), ("docter --json", "tokentrace doctor"), ("xyzzy", "--help")):
        done = shell(f"$TT {typed}", tmp_path)
        assert done.returncode == 2 and "there is no command" in done.stderr.decode() and fix in done.stderr.decode()


def test_list_tells_a_request_that_failed_from_one_that_was_answered(tmp_path: Path) -> None:
    with ScriptedServer().on(
        "POST", "/v1/chat/completions", json_answer({"error": {"message": "no such key"}}, 401)
    ) as server:
        assert shell(f"$TT run Hi --url {server.url}/v1 --model m", tmp_path).returncode == 2
    assert "(failed) " in shell("$TT list", tmp_path).stdout.decode()
    (run,) = json.loads(shell("$TT list --json", tmp_path).stdout)["runs"]
    assert "401" in run["error"]


@pytest.mark.parametrize("line", ["show --json --tree", "show --pass warm", "doctor --explain TT801 --json"])
def test_options_that_do_not_go_together_are_refused(line: str, tmp_path: Path) -> None:
    done = shell(f"$TT {line}", tmp_path)
    assert done.returncode == 2 and b"fix:" in done.stderr and not done.stdout


@pytest.mark.model
@pytest.mark.parametrize("host", ["a" * 64, "no such host"])
def test_serve_says_that_a_host_is_no_address(host: str, tmp_path: Path) -> None:
    done = shell(f"$TT serve --port 0 --host '{host}'", tmp_path)
    assert done.returncode != 0 and "no address of this machine" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_folder_that_has_been_removed_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell("cd gone && rmdir ../gone && $TT doctor --offline", tmp_path)
    assert done.returncode == 2 and "has been removed" in done.stderr.decode()
