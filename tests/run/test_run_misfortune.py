"""What a run keeps, and what it says first, when something goes wrong around it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from support.http_servers import DONE, ScriptedServer, chunk, sse

from tokentrace import emit, runs

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
GREETING = sse(chunk("Hel"), chunk("lo", finish="stop"), DONE)


def environment(data: Path, **more: str) -> dict[str, str]:
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(drop) or k == "TOKENTRACE_CACHE_DIR"}
    return {**clean, "TOKENTRACE_DATA_DIR": str(data), **more}


def tokentrace(data: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment(data, **more),
                          timeout=240, check=False)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def asked(server: ScriptedServer) -> int:
    return sum(request.path == "/v1/chat/completions" for request in server.requests)


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (["-o", "/nope/x.jsonl"], {}, "no folder /nope"),
        (["-o", "x.txt"], {}, "no suffix"),
        (["--out", "/dev/null/runs"], {}, "/dev/null/runs cannot be written"),
        (["--otlp", "http://[bad"], {}, "--otlp has no usable"),
        (["--otlp"], {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        (["--otlp"], {"OTEL_EXPORTER_OTLP_TIMEOUT": "abc"}, "OTEL_EXPORTER_OTLP_TIMEOUT"),
        (["--layers", ""], {}, "no layer was given"),
        (["--layers", "6-8x"], {}, "'6-8x'"),
    ],
)
def test_what_cannot_work_is_told_before_a_request_is_paid(
    arguments: list[str], environ: dict[str, str], says: str, tmp_path: Path
) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", *arguments, **environ)
    assert (done.returncode, asked(server)) == (2, 0), done.stderr
    assert says in done.stderr


def test_a_saved_report_finds_the_file_that_was_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path / "data", "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "-q", "-o",
                          "x.jsonl")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (saved,) = (tmp_path / "data" / "runs").glob("*/report.json")
    files = orjson.loads(saved.read_bytes())["files"]
    assert str(tmp_path / "x.jsonl") in files and all(Path(path).is_file() for path in files)


def test_a_bad_variable_that_nobody_asked_for_is_a_warning(tmp_path: Path) -> None:
    bad = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", **bad)
    assert done.returncode == 0
    assert "warning: the trace was not sent: OTEL_EXPORTER_OTLP_PROTOCOL" in done.stderr
    assert "Trace" in done.stdout


def test_a_run_that_cannot_be_kept_still_reports_and_writes_what_was_asked_for(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder of runs should be")
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        out = tmp_path / "x.jsonl"
        done = tokentrace(blocked, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "-o", str(out))
        assert done.returncode == 0, done.stderr
        assert "the run is not saved" in done.stderr
        assert emit.load(out).trace_id
        with full.open("w") as nowhere:
            piped = subprocess.run([*COMMAND, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "-q"],
                                   stdout=nowhere, stderr=subprocess.PIPE, text=True, env=environment(tmp_path),
                                   timeout=240, check=False)  # fmt: skip
    assert piped.returncode == 2
    assert "No space left" in piped.stderr and "Traceback" not in piped.stderr


def test_the_way_to_send_again_names_the_endpoint(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "--otlp",
                          "http://127.0.0.1:9/x")  # fmt: skip
    assert done.returncode == 1
    assert "--to otlp --endpoint http://127.0.0.1:9/x" in done.stderr
    assert "OTEL_EXPORTER" not in done.stderr, "the endpoint came from the command line"
    assert "did not arrive" in done.stdout and "refused" not in done.stdout


def test_a_run_kept_in_a_folder_called_runs_is_found_by_what_is_printed(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path / "data", "run", "Hi", "--url", f"{server.url}/v1", "--model", "m",
                          "--out", str(tmp_path / "runs"), "--otlp", "http://127.0.0.1:9")  # fmt: skip
    (look,) = (line for line in done.stdout.splitlines() if line.startswith("Look"))
    shown = tokentrace(tmp_path / "data", *shlex.split(look.split("tokentrace ", 1)[1]))
    assert shown.returncode == 0 and "Hello" in shown.stdout, shown.stderr
    (again,) = (part for part in done.stderr.split("then: tokentrace ")[1:])
    sent = tokentrace(tmp_path / "data", *shlex.split(again.splitlines()[0]))
    assert "no saved run" not in sent.stderr and "did not" in sent.stderr + sent.stdout, sent.stderr


def test_layers_left_out_say_by_whom(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = tokentrace(tmp_path, "run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "--layers", "8",
                          "--json")  # fmt: skip
    rows = {row["layer"]: row for row in orjson.loads(done.stdout)["layers"]}
    assert rows[8]["status"] == "seen"
    assert {(rows[n]["status"], rows[n]["reason"], rows[n]["fix"]) for n in range(1, 8)} == {
        ("unseen", "left out by --layers", f"add {n} to --layers") for n in range(1, 8)
    }


@pytest.mark.model
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_after_the_deep_reply_keeps_the_whole_run(how: signal.Signals, tmp_path: Path) -> None:
    """The deep reply has come; the profiler is being stopped and read, which takes seconds."""
    process = subprocess.Popen([*COMMAND, "run", "Hi"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment(tmp_path), text=True)  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("deep pass"):
            break
    time.sleep(1.5)
    process.send_signal(how)
    time.sleep(0.3)
    process.send_signal(how)
    out, err = process.communicate(timeout=240)
    saved = list((tmp_path / "runs").glob(f"*/{runs.TRACE}"))
    assert saved, err
    assert process.returncode in (0, 130), err
    kept = {span.name for span in emit.load(saved[0]).spans}
    assert {"pass cold", "pass warm"} <= kept
    assert "Traceback" not in err and "Trace" in out


@pytest.mark.model
def test_the_local_engine_is_not_started_for_what_it_cannot_do(tmp_path: Path) -> None:
    done = tokentrace(tmp_path, "run", "Hi", "--temperature", "5")
    assert done.returncode == 2 and "at most 2" in done.stderr
    done = tokentrace(tmp_path, "run", "Hi", TOKENTRACE_MODEL="gpt-4")
    assert done.returncode == 2 and "TOKENTRACE_MODEL is gpt-4" in done.stderr and "--url" in done.stderr
