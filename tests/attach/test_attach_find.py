"""From a URL or a process to the server behind it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psutil
import pytest
from live_support import HERE, tokentrace

from tokentrace import agent, attach, receive
from tokentrace.attach import sockets
from tokentrace.attach.found import Found, ServerProcess
from tokentrace.attach.own_spans import advice, endpoint_of
from tokentrace.attach.plan import plan
from tokentrace.errors import AttachError

TREES = {
    "one GPU": ([["VLLM::EngineCore", []]], [("api", ""), ("engine", "")]),
    "CPU": (
        [["VLLM::EngineCore", ["VLLM::Worker"]]],
        [("api", ""), ("engine", ""), ("worker", "")],
    ),
    "tensor-parallel": (
        [["VLLM::EngineCore", ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]]],
        [("api", ""), ("engine", ""), ("worker", "tp0"), ("worker", "tp1")],
    ),
    "data-parallel": (
        [
            ["VLLM::DPCoordinator", []],
            ["VLLM::EngineCore_DP0", ["VLLM::Worker_DP0_TP0"]],
            ["VLLM::EngineCore_DP1", ["VLLM::Worker_DP1_TP0"]],
        ],
        [("api", ""), ("engine", "dp0"), ("engine", "dp1"), ("worker", "dp0 tp0"), ("worker", "dp1 tp0")],
    ),
    "data-parallel, and workers that do not say so": (
        [["VLLM::EngineCore_DP0", ["VLLM::Worker"]], ["VLLM::EngineCore_DP1", ["VLLM::Worker_TP0"]]],
        [("api", ""), ("engine", "dp0"), ("engine", "dp1"), ("worker", "dp0"), ("worker", "dp1 tp0")],
    ),
    "several API servers": (
        [["VLLM::ApiServer_0", []], ["VLLM::ApiServer_1", []], ["VLLM::EngineCore", []]],
        [("api", ""), ("api", ""), ("engine", "")],
    ),
}


@contextmanager
def standing_in(tree: object, folder: Path, *arguments: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A process tree with vLLM's names and command line; gives its port and first process."""
    package = folder / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "stand_in.py").write_text((HERE / "stand_in.py").read_text())
    base = str(Path(sys.executable).resolve())
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.stand_in", json.dumps(tree), *arguments],
        cwd=folder,
        env={**os.environ, "STAND_IN_PYTHON": base},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    below = psutil.Process(process.pid).children(recursive=True)
    try:
        yield port, process
    finally:
        for one in [*below, psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("name", TREES)
def test_the_processes_of_a_server_and_what_each_one_does(name: str, tmp_path: Path) -> None:
    tree, expected = TREES[name]
    with standing_in(tree, tmp_path) as (port, process):
        found = attach.find(f"http://127.0.0.1:{port}")
        assert [(one.role, one.rank) for one in found.processes] == expected
        assert (found.engine, found.version, found.reason) == ("vllm", "0.32.0", "")
        assert found.base_url == f"http://127.0.0.1:{port}/v1"
        for one in found.processes:  # any of its processes leads to the same server
            assert attach.find(pid=one.pid).processes == found.processes
        if name != "several API servers":
            assert found.processes[0].pid == process.pid
        assert all(one.python == f"3.{sys.version_info.minor}" for one in found.processes)


def test_the_port_of_the_command_line_is_the_api_and_no_other(tmp_path: Path) -> None:
    """What the stand-in listens on answers as an API would, and is not where it was told to serve."""
    with socket.socket() as mine:  # bound, so that it is nobody else's, and nobody listens
        mine.bind(("127.0.0.1", 0))
        port = mine.getsockname()[1]
        with standing_in(TREES["CPU"][0], tmp_path, "--port", str(port)) as (_, process):
            found = attach.find(pid=process.pid)
            assert (found.base_url, found.not_ready) == ("", f"its API does not listen on port {port} yet")
            asked = tokentrace("attach", "--pid", str(process.pid), "Hi")
            shown = tokentrace("attach", "--pid", str(process.pid), "--dry-run")
            by_url = tokentrace("attach", f"http://127.0.0.1:{port}", "Hi")
            mine.listen()  # it is another process's all the same
            assert attach.find(pid=process.pid).base_url == ""
    assert asked.returncode == by_url.returncode == 2 and shown.returncode == 0
    assert f"a prompt cannot be sent: {found.not_ready}" in asked.stderr and "fix: wait" in asked.stderr
    assert f"it takes no requests: {found.not_ready}" in shown.stdout and "Ray" not in shown.stdout
    assert f"listens on port {port} of 127.0.0.1 yet: vLLM's process {process.pid}" in by_url.stderr


@pytest.mark.parametrize("flags", [(), ("--config=x.yaml",)])
def test_a_port_that_the_command_line_does_not_name_is_found_by_its_answer(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    with standing_in(TREES["CPU"][0], tmp_path, *flags) as (port, process):
        found = attach.find(pid=process.pid)
    assert (found.base_url, found.not_ready) == (f"http://127.0.0.1:{port}/v1", "")


def test_an_engine_core_without_its_api_server_is_none_and_its_ports_are_no_api() -> None:
    code = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(flush=True); "
        "time.sleep(600)"
    )
    command = ["VLLM::EngineCore", "-c", code]
    with subprocess.Popen(command, executable=str(Path(sys.executable).resolve()), stdout=subprocess.PIPE) as core:
        assert core.stdout is not None
        core.stdout.readline()
        found = attach.find(pid=core.pid)
        told = tokentrace("attach", "--pid", str(core.pid), "Hi")
        core.kill()
    assert ([one.role for one in found.processes], found.base_url) == (["engine"], "")
    assert f"no API server was found above process {core.pid}" in found.reason
    assert told.returncode == 2 and found.reason in told.stderr and "fix: look at the server's log" in told.stderr


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    with standing_in(TREES["CPU"][0], tmp_path) as (port, _):
        told = tokentrace("attach", f"http://127.0.0.1:{port}", "--dry-run", "--json")
        said = tokentrace("attach", f"http://127.0.0.1:{port}", "--dry-run", "--for", "5s")
        outside = tokentrace("attach", f"http://127.0.0.1:{port}", "--dry-run", "--json", "--method", "outside")
        assert not sockets.agent_sockets([one.pid for one in attach.find(f"http://127.0.0.1:{port}").processes])
    assert told.returncode == said.returncode == 0
    document = orjson.loads(told.stdout)
    assert document["schema"] == "tokentrace.attach/1"
    assert document["depth"] == "injected" and document["reason"] == ""
    assert [one["way"] for one in document["processes"]] == ["borrow"] * 3
    assert "vllm.v1.core.sched.scheduler:Scheduler.schedule" in document["wraps"]["engine"]
    assert any("Worker" in one for one in document["wraps"]["worker"])
    assert [one["number"] for one in document["layers"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(one["seen"] or one["what"] for one in document["layers"])
    assert "3 kernel launch: unseen" in said.stdout  # others are not slowed down by a profiler
    closed = orjson.loads(outside.stdout)
    assert closed["depth"] == "outside" and closed["wraps"] == {}
    assert [one["number"] for one in closed["layers"] if one["seen"]][:3] == [8, 7, 6]


@pytest.mark.parametrize(
    ("arguments", "endpoint", "port"),
    [
        (("--otlp-traces-endpoint", "http://127.0.0.1:5317"), "http://127.0.0.1:5317", 5317),
        (("--otlp_traces_endpoint=127.0.0.1:5317", "--port", "8000"), "127.0.0.1:5317", 5317),
        (("--otlp-traces-endpoint", "http://localhost:5318/v1/traces"), "http://localhost:5318/v1/traces", 5317),
        (("--otlp-traces-endpoint", "http://localhost"), "http://localhost", 4317),
        (("--otlp-traces-endpoint=x:1", "--otlp-traces-endpoint", "127.0.0.1:5317", "model"), "127.0.0.1:5317", 5317),
        ((), "", 0),
    ],
)
def test_where_the_server_sends_its_own_spans(
    arguments: tuple[str, ...], endpoint: str, port: int, tmp_path: Path
) -> None:
    with standing_in(TREES["one GPU"][0], tmp_path, *arguments) as (at, _), receive.open(0) as receiver:
        found = attach.find(f"http://127.0.0.1:{at}")
        assert endpoint_of(found) == endpoint
        told = list(advice(found, "outside", None))
        assert told == [] if not endpoint else f"--receive {port} takes them" in told[0]
        (told_too,) = advice(found, "injected", receiver)
        flag = f"--otlp-traces-endpoint http://127.0.0.1:{receiver.grpc_port}"
        assert (f"use --receive {port}" if endpoint else flag) in told_too


def test_nothing_is_said_of_spans_of_a_server_that_is_not_vllm() -> None:
    assert list(advice(Found("", "tokentrace", ""), "outside", None)) == []
    assert endpoint_of(Found("", "vllm", "")) is None  # on another machine


def test_watching_from_outside_is_refused_with_the_reason(tmp_path: Path) -> None:
    with standing_in(TREES["one GPU"][0], tmp_path) as (port, _):
        done = tokentrace("attach", f"http://127.0.0.1:{port}", "--for", "1s", "--method", "outside")
    assert done.returncode == 2 and "tokens" not in done.stdout
    assert (
        "or by the spans that it exports: --method outside" in done.stderr
        and "fix: attach without --method outside; or add --receive" in done.stderr
    )


def test_watching_as_json_says_of_each_process_why_it_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library by the name of CUDA's driver in each process: nobody is let into what drives a GPU without asking."""
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    with monkeypatch.context() as inside:
        inside.setenv("LD_PRELOAD", str(shutil.copy(libm, tmp_path / "libcuda.so.1")))
        server = standing_in(TREES["CPU"][0], tmp_path)
        port, _ = server.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(server)
        where = f"http://127.0.0.1:{port}"
        done = tokentrace("attach", where, "--for", "1s", "--receive", "0", "--json")
        planned = orjson.loads(tokentrace("attach", where, "--dry-run", "--json").stdout)
    assert done.returncode == 0, done.stderr
    document = orjson.loads(done.stdout)
    assert document["depth"] == "outside" and len(document["processes"]) == 3
    for one in document["processes"]:
        assert one["reason"].startswith(f"process {one['pid']} drives a GPU") and "--method borrow" in one["fix"]
        assert f"not deeper: {one['reason']}" in done.stderr and one["reason"] in document["reason"]
        assert one["reason"] in [other["reason"] for other in planned["processes"]]
    assert done.stderr.count("fix: ") == 1
    assert [one.keys() for one in document["processes"]] == [one.keys() for one in planned["processes"]]


def test_what_was_not_found_of_a_server_is_said_of_the_rest_too() -> None:
    command = ["VLLM::EngineCore", "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, executable=str(Path(sys.executable).resolve()), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as core:
        assert core.stdout is not None and core.stdout.readline() == b"\n"
        found = attach.find(pid=core.pid)
        with attach.open(found) as attached:
            assert attached.depth == "injected"
            assert "no API server was found" in attached.reason and attached.whys == plan(found).whys
        core.communicate(b"\n")


def test_an_unknown_version_is_said(tmp_path: Path) -> None:
    process = ServerProcess(os.getpid(), "api", "", 0.0)
    from tokentrace.cli._attach_shown import about

    assert "found by name" in about(Found("", "vllm", "", (process,)))[0]
    assert "0.32.0" in about(Found("", "vllm", "0.32.0", (process,)))[0]
    del tmp_path


def test_an_agent_that_waits_is_found_and_used(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, time; from tokentrace import agent; agent.start(sys.argv[1]); print(flush=True); time.sleep(600)"
    )
    path = runtime / "tokentrace-x" / "agent-1.sock"
    before = agent.running()  # another test may have left one here
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        waiting = sockets.agent_sockets([process.pid])
        assert waiting == {process.pid: str(path)}
        from tokentrace.host import proc

        server = ServerProcess(process.pid, "single", "", proc.started(process.pid), "3.11")
        found = Found("", "vllm", "", (server,), waiting)
        assert plan(found).depth == "agent"
        asked = f"an agent waits in process {process.pid}: it was taken, not --method borrow"
        for method in ("auto", "agent", "borrow"):
            with attach.open(found, method=method) as attached:
                assert attached.depth == "agent" and attached.inside[0].way == ""
                assert attached.notes == ([asked] if method == "borrow" else [])
                taken = plan(found)
                assert f"another tokentrace (process {os.getpid()}) is attached" in taken.refused
                assert taken.refused_fix and [one.way for one in taken.processes] == ["taken"]
                with pytest.raises(AttachError) as error:
                    attach.open(found)
                assert str(error.value) == taken.refused
                monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # of another session, whose lock says nothing
                assert "connected to the agent" in plan(found).refused
                monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
                assert attached.close() == []
            assert plan(found).refused == ""
        assert path.exists()  # one that waits stays
        process.kill()
    assert agent.running() is before


def test_where_a_port_is_listened_on() -> None:
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        here.listen()
        port = here.getsockname()[1]
        assert [one.address for one in sockets.on_port(port, ["127.0.0.1"])] == ["127.0.0.1"]
        assert sockets.on_port(port, ["127.0.0.2"]) == []
        listening = sockets.on_port(port, ["127.0.0.1"])[0]
        assert listening.uid == os.geteuid()
        assert os.getpid() in sockets.holders({listening.inode})


def test_where_a_port_of_ipv6_is_listened_on() -> None:
    try:
        six = socket.socket(socket.AF_INET6)
        six.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with six:
        six.listen()
        assert [one.address for one in sockets.on_port(six.getsockname()[1], ["::1"])] == ["::1"]


def test_a_host_is_here_or_elsewhere() -> None:
    assert sockets.local_addresses("127.0.0.1") == ["127.0.0.1"]
    assert sockets.local_addresses("localhost")
    assert sockets.local_addresses("192.0.2.1") is None  # TEST-NET-1, nobody's
    assert sockets.local_addresses("no-such-host.invalid") == []


@pytest.mark.model
def test_the_local_engine_is_found_and_traced_and_left_as_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = ""
        for line in server.stderr:
            if line.startswith("ready: "):
                url = line.split()[1]
                break
        assert url
        try:
            found = attach.find(url)
            assert (found.engine, [one.pid for one in found.processes]) == ("tokentrace", [server.pid])
            for _ in range(2):
                done = tokentrace(
                    "attach", url, "Hi", "--json", "--max-tokens", "4", "--out", str(tmp_path / "run"), timeout=200
                )
                assert done.returncode == 0, done.stderr
                report = orjson.loads(done.stdout)
                assert (report["depth"], report["method"]) == ("injected", "auto")
                (process,) = report["processes"]
                assert process["pid"] == server.pid and process["way"] not in ("", "waits")
                states = {row["layer"]: row for row in report["layers"]}
                assert all(states[number]["status"] == "seen" for number in (8, 7, 6, 5, 4, 3))
                assert all(row["status"] != "unseen" or row["reason"] for row in states.values())
                assert "depth: injected" in done.stderr
                assert sockets.agent_sockets([server.pid]) == {}
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=200)


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python -X dev -u -m vllm.entrypoints.openai.api_server", "vllm"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve m", "vllm"),
        ("python -m pytest -q -m vllm tests", ""),
        ("python /usr/bin/pytest -m vllm", ""),
        ("python bench.py -m vllm", ""),
        ("python -m tokentrace.cli serve", "tokentrace"),
    ],
)
def test_a_server_is_known_by_what_it_runs_and_not_by_a_word(command: str, engine: str) -> None:
    from tokentrace.attach.roles import Looked, engine_of

    assert engine_of(Looked(1, 0, 0, tuple(command.split()))) == engine
