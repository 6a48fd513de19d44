"""`tokentrace doctor` as a command: what it prints, its exit codes, its JSON, and that it touches nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from doctor_support import CHAT, healthy
from support.http_servers import WAIT, Answer, html_answer, json_answer

import tokentrace
from tokentrace.doctor.checks_page import page
from tokentrace.doctor.page import explained
from tokentrace.doctor.registry import checks

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
ROOT = Path(tokentrace.__file__).parents[1]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    env = {k: os.environ[k] for k in kept if k in os.environ}
    return {**env, "HOME": str(home), "TOKENTRACE_DATA_DIR": str(home), **more}


def doctor(*arguments: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, "doctor", *arguments],
        capture_output=True, text=True, env=environment(home, **more), timeout=240, check=False, cwd=home,
    )  # fmt: skip
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def test_exit_codes_and_the_closing_sentence(tmp_path: Path) -> None:
    with healthy() as server:
        good = doctor("--url", server.url + "/v1", "--layers", "8-6", home=tmp_path)
        assert good.returncode == 0 and good.stdout.rstrip().splitlines()[-1].startswith("nothing wrong"), good.stdout
        server.on("POST", CHAT, html_answer())
        bad = doctor("--url", server.url + "/v1", "--layers", "8-6", home=tmp_path)
        assert bad.returncode == 1
        *_, sentence, fix = bad.stdout.rstrip().splitlines()
        assert sentence.startswith("layer 8 client request: a web page") and fix.startswith("  fix: ")
        quiet = doctor("--url", server.url + "/v1", "--layers", "8", "-q", home=tmp_path)
        assert quiet.stdout.splitlines() == [sentence, fix]
    for arguments in (["--layers", "9"], ["--pid", "999999999"], ["--explain", "TT999"], ["--timeout", "0"]):
        assert doctor(*arguments, home=tmp_path).returncode == 2
    assert doctor("--layers", "1", "--url", "https://host.example/v1", "--offline", home=tmp_path).returncode == 2


def test_output_is_ascii_when_no_terminal_reads_it(tmp_path: Path) -> None:
    """Text, JSON, report and errors; what a server or a user wrote comes escaped."""
    file = tmp_path / "report.json"
    with healthy("modèl-ü") as server:
        url = ("--url", server.url + "/v1")
        done = doctor(*url, "-v", "--layers", "8-6,0", home=tmp_path)
        assert done.stdout.isascii() and "\x1b" not in done.stdout and done.stderr == ""
        done = doctor(*url, "--json", "--report", str(file), "--layers", "8", home=tmp_path)
        assert done.stdout.isascii() and file.read_bytes().isascii()
        assert "modèl-ü" in str(orjson.loads(done.stdout)["checks"])
        server.on("POST", CHAT, json_answer({"error": {"message": "wants a key…"}}, 401))
        refused = doctor(*url, "--json", "--layers", "8", home=tmp_path)
        assert refused.stdout.isascii() and "OPENAI_API_KEY=..." in orjson.loads(refused.stdout)["verdict"]["fix"]
        told = doctor(*url, "--layers", "8", home=tmp_path)
        assert told.stdout.isascii() and "OPENAI_API_KEY=..." in told.stdout
    for arguments in (["--help"], ["--explain", "TT830"], ["--explain", "TT9"], ["--layers", "9"], ["--pid", "1"]):
        done = doctor(*arguments, "--offline", home=tmp_path)
        assert (done.stdout + done.stderr).isascii(), done


def test_every_explanation_is_ascii_where_it_has_to_be() -> None:
    for check in checks():
        assert explained(check, unicode=False).isascii(), check.id
        assert explained(check).startswith(check.id)


def test_json_and_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with healthy() as server:
        done = doctor("--url", server.url + "/v1", "--json", "--report", str(file), "--layers", "8-6,0", home=tmp_path)
    value = orjson.loads(done.stdout)
    assert value["schema"] == "tokentrace.doctor/1"
    assert set(value["verdict"]) == {"layer", "status", "cause", "fix", "check", "also"}
    known = {c.id for c in checks()}
    for check in value["checks"]:
        assert set(check) == {"id", "layer", "status", "detail", "evidence", "fix"}
        assert check["id"] in known and check["status"] in ("ok", "warn", "fail", "unknown", "skip")
        assert check["layer"] == int(check["id"][2]) and "\n" not in check["detail"]
    assert [row["layer"] for row in value["layers"]] == [8, 7, 6, 0]
    report = orjson.loads(file.read_bytes())
    assert report["checks"] and report["machine"]["python"] and report["machine"]["memory_bytes"] > 0
    assert doctor("--offline", "--layers", "8", "--report", "/dev/null/x", home=tmp_path).returncode == 2


def test_every_id_can_be_explained(tmp_path: Path) -> None:
    done = doctor("--explain", "tt801", home=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("TT801 settings (layer 8 client request)")
    assert "What to do:" in done.stdout


def test_the_docs_are_current() -> None:
    assert (ROOT / "docs" / "checks.md").read_text(encoding="utf-8") == page()


def test_every_fix_that_names_a_check_is_right() -> None:
    known = {c.id for c in checks()}
    for path in (ROOT / "tokentrace").rglob("*.py"):
        for name in re.findall(r"TT\d{3}", path.read_text(encoding="utf-8")):
            assert name in known, f"{path}: {name}"


def test_nothing_is_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".cache" / "tokentrace").mkdir(parents=True)
    (home / ".triton" / "cache").mkdir(parents=True)
    (home / ".triton" / "cache" / "kernel.json").write_text("{}")

    def state() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in home.rglob("*"))

    before = state()
    with healthy() as server:
        for arguments in (("--offline",), ("--url", server.url + "/v1")):
            done = doctor(*arguments, home=home, TOKENTRACE_DATA_DIR=str(home / "data"))
            assert done.returncode in (0, 1), done.stdout
    assert state() == before


#: Calls that change a file, by whatever name.
CHANGING = (
    "creat", "mkdir", "mkdirat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "utimensat", "link", "linkat",
    "symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "truncate", "ftruncate",
    "mknod", "mknodat", "rmdir", "setxattr", "fsetxattr",
)  # fmt: skip


def test_the_kernel_sees_no_file_changed(tmp_path: Path) -> None:
    """Every call of the doctor and of the programs it starts, with caches in HOME; devices may be opened."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("no strace, or no right to trace")
    calls = tmp_path / "calls"
    home = tmp_path / "home"
    for folder in (".cache/vllm/torch_compile_cache/a", ".triton/cache", ".nv/ComputeCache", ".cache/flashinfer"):
        (home / folder).mkdir(parents=True)
        (home / folder / "compiled").write_text("x")
    wanted = ",".join(("open", "openat", *CHANGING))
    done = subprocess.run(
        [strace, "-f", "-qq", "-o", str(calls), "-e", f"trace={wanted}", "-e", "signal=none", *COMMAND, "doctor",
         "--offline", "--json"],
        capture_output=True, text=True, timeout=300, check=False, cwd=home,
        env=environment(home, TMPDIR=str(home), TOKENTRACE_DATA_DIR=str(home / "data"), PYTHONDONTWRITEBYTECODE="1"),
    )  # fmt: skip
    assert orjson.loads(done.stdout)["schema"], done.stderr
    seen = [line.partition(" ")[2].strip() for line in calls.read_text().splitlines()]
    assert any("compiled" in line or str(home) in line for line in seen), "nothing was traced"
    changing = [line for line in seen if line.split("(")[0] in CHANGING]
    written = [line for line in seen if re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", line)
               and not re.search(r'"/(dev|proc)/', line)]  # fmt: skip
    assert not changing and not written, (changing, written)


def test_no_value_that_may_be_secret_is_in_any_output(tmp_path: Path) -> None:
    names = ("OPENAI_API_KEY", "TOKENTRACE_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY",
             "DB_PASSWORD", "SESSION_COOKIE", "OTEL_EXPORTER_OTLP_HEADERS", "MY_CREDENTIAL")  # fmt: skip
    secrets = {name: f"canary-{number}-canary" for number, name in enumerate(names)}
    secrets["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=Bearer%20canary-h-canary"
    secrets["HTTPS_PROXY"] = "http://me:canary-p-canary@127.0.0.1:9"
    secrets["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://me:canary-o-canary@127.0.0.1:9?key=canary-q-canary"
    file = tmp_path / "report.json"
    shown = doctor("--offline", "-v", "--layers", "8,6,5,2,1,0", "--report", str(file), home=tmp_path, **secrets)
    printed = doctor("--offline", "--json", "--layers", "8,6,0", home=tmp_path, **secrets)
    for text in (shown.stdout, shown.stderr, printed.stdout, file.read_text()):
        assert "canary" not in text
    assert "HTTPS_PROXY" in shown.stdout  # names are told


def test_the_docs_name_checks_that_exist() -> None:
    known = {c.id for c in checks()}
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert set(re.findall(r"TT\d{3}", text)) <= known


def test_no_writable_home_is_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "doctor", "--json"],
        capture_output=True, text=True, env=environment(Path("/dev/null")), timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    verdict = orjson.loads(done.stdout)["verdict"]
    assert (verdict["status"], verdict["layer"]) == ("fail", 2) and done.returncode == 1


def test_ctrl_c_leaves_what_was_seen(tmp_path: Path) -> None:
    with healthy() as server:
        server.on("POST", CHAT, Answer(200, {}, [WAIT]))
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--url", server.url + "/v1", "--layers", "8-6", "--timeout", "200"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), cwd=tmp_path,
        )  # fmt: skip
        end = time.monotonic() + 120
        while not any(r.method == "POST" for r in server.requests) and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert "8 client request" in out
    settings = next(line for line in out.splitlines() if "requests go to" in line or "8 client request" in line)
    assert "interrupted before" not in settings, out


def test_a_failed_run_ends_with_the_doctors_sentence(tmp_path: Path) -> None:
    """One diagnosis: the same cause, layer and fix from both commands."""
    with healthy() as server:
        server.on("GET", "/health", Answer(200, {}, [b""], "length"))
        for answer, check in ((html_answer(), "TT850"), (Answer(200, {}, [WAIT], before=60), "TT606")):
            server.on("POST", CHAT, answer)
            where = ("--url", server.url + "/v1", "--timeout", "5")
            with subprocess.Popen(
                [*COMMAND, "run", "Hi", *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment(tmp_path), cwd=tmp_path,
            ) as run:  # fmt: skip
                looked = doctor(*where, "--layers", "8-6", "--json", home=tmp_path)  # at the same time: both wait
                _, said = run.communicate(timeout=240)
            assert run.returncode == 2 and f"({check})" in said, said
            verdict = orjson.loads(looked.stdout)["verdict"]
            assert verdict["check"] == check
            assert f"layer {verdict['layer']}" in said and verdict["fix"][:40] in said


def test_a_stuck_server_delays_nobody(tmp_path: Path) -> None:
    with healthy() as server:
        server.otherwise(Answer(200, {}, [WAIT], before=60))
        server.on("GET", "/v1/models", Answer(200, {}, [WAIT], before=60))
        server.on("POST", CHAT, Answer(200, {}, [WAIT], before=60))
        done = doctor("--url", server.url + "/v1", "--layers", "8-6,0", "--timeout", "5", "--json", home=tmp_path)
    assert orjson.loads(done.stdout)["seconds"] < 45  # every route would keep it waiting for 60 s
    assert orjson.loads(done.stdout)["verdict"]["status"] == "fail"


@pytest.mark.model
def test_the_local_engine_is_healthy(tmp_path: Path) -> None:
    """A control: a real engine gets no false alarm. The model's cache is the user's own, which nothing may touch."""
    from tokentrace.doctor import local_model

    folder = local_model.cache(os.environ)
    if not folder.exists():
        pytest.skip("the model is not in the cache")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    done = doctor("--json", "--timeout", "60", home=tmp_path, TOKENTRACE_CACHE_DIR=str(folder.parents[1]))
    value = orjson.loads(done.stdout)
    status = {c["id"]: c["status"] for c in value["checks"]}
    assert done.returncode == 0 and value["verdict"]["status"] in ("ok", "warn"), value["verdict"]
    assert value["verdict"]["layer"] not in (8, 7, 6), value["verdict"]
    for check in ("TT800", "TT703", "TT702", "TT706", "TT610", "TT612", "TT619", "TT870", "TT872"):
        assert status[check] == "ok", [c for c in value["checks"] if c["id"] == check]
    assert sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir()) == before


def test_the_static_checks_import_nothing_large(tmp_path: Path) -> None:
    """What makes the command slow is imports: torch is loaded by the trial's own process, numpy by nobody."""
    program = (
        "import sys; from tokentrace.doctor import Wishes, diagnose; found = diagnose(Wishes(offline=True));"
        "print(len(found.examination.results), *({'numpy', 'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=environment(tmp_path), timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split()[1:] == [] and int(done.stdout.split()[0]) > 30, (done.stdout, done.stderr)
