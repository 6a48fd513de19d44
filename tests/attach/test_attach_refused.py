"""What attach will not do, each time as one sentence with what to do instead."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from live_support import HERE, Program, tokentrace
from rich.console import Console

from tokentrace import attach
from tokentrace.attach import private
from tokentrace.attach.attached import METHODS
from tokentrace.attach.found import ServerProcess
from tokentrace.attach.obstacles import obstacle
from tokentrace.attach.plan import plan
from tokentrace.attach.session import without_agent
from tokentrace.cli._attach_shown import as_document, show_attached
from tokentrace.errors import AttachError, ProbeUnavailable, TokentraceError
from tokentrace.exchange import Exchange
from tokentrace.layers import by_number
from tokentrace.probe import Columns, ProbeContext, Raw
from tokentrace.registry import create

Start = Callable[..., Program]
ROOT = os.geteuid() == 0
SYSTEM_PYTHON = "/usr/bin/python3"
needs_root = pytest.mark.skipif(not ROOT or shutil.which("setpriv") is None, reason="needs root and setpriv")


def refused(process: ServerProcess, *words: str) -> None:
    """There is an obstacle, its sentence has these words, and every method that touches the process says so."""
    found = obstacle(process)
    assert found is not None and found.fix
    for word in words:
        assert word in found.reason
    server = attach.Found("", "vllm", "", (process,))
    with attach.open(server) as attached:
        assert attached.depth == "outside" and attached.reason == found.reason and attached.fix == found.fix
    with pytest.raises(AttachError) as error:
        attach.open(server, method="borrow")
    assert str(error.value) == found.reason


def test_a_process_that_has_ended(program: Start) -> None:
    running = program("sleeping")
    process = running.as_server
    running.end()
    refused(process, str(process.pid), "has ended")


def test_a_process_whose_parent_has_not_taken_notice_of_its_end() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(AttachError, match=f"process {pid} has ended"):
            attach.find(pid=pid)
    finally:
        os.waitpid(pid, 0)


def test_a_number_that_belongs_to_another_process_by_now(program: Start) -> None:
    refused(replace(program("sleeping").as_server, started=time.time() - 5000), "has ended")


def test_a_stopped_process(program: Start) -> None:
    running = program("sleeping")
    running.process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    found = obstacle(running.as_server)
    assert found is not None and "is stopped" in found.reason
    for method in METHODS:  # nothing could be asked of it, from outside neither
        with pytest.raises(AttachError, match=f"process {running.pid} .server. is stopped") as error:
            attach.open(running.found, method=method)
        assert error.value.fix == f"let it go on: kill -CONT {running.pid}"
        assert plan(running.found, method).refused == str(error.value)


def test_an_agent_in_a_process_that_was_stopped_meanwhile_leaves_when_it_goes_on(program: Start) -> None:
    running = program("sleeping")
    attached = attach.open(running.found, method="borrow")
    agent = Path(attached.inside[0].socket)
    running.process.send_signal(signal.SIGSTOP)
    os.waitpid(running.pid, os.WUNTRACED)
    (told,) = attached.close()
    assert f"kill -CONT {running.pid}" in told
    running.process.send_signal(signal.SIGCONT)
    while agent.exists():
        time.sleep(0.01)
    said = running.end()
    assert said["modules"] == [] and said["threads"] == 0


@pytest.mark.parametrize(("version", "word"), [("3.13t", "free-threaded"), ("3.9", "3.10 to 3.14"), ("", "no Python")])
def test_a_python_that_it_is_not_known_to_work_on(program: Start, version: str, word: str) -> None:
    refused(replace(program("sleeping").as_server, python=version), word)


def test_a_process_that_is_being_traced(program: Start) -> None:
    running = program("sleeping")
    code = (
        "import sys, time; from tokentrace.attach.ptrace import Stopped\n"
        "with Stopped(int(sys.argv[1])):\n print('traced', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(running.pid)], stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None and tracer.stdout.readline() == "traced\n"
        refused(running.as_server, f"traced by process {tracer.pid}")
        tracer.kill()
    tracer.wait()
    assert running.end()["rounds"] > 0


@needs_root
def test_another_user_s_process(program: Start, tmp_path: Path) -> None:
    running = program(
        "sleeping", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python=_for_everybody(tmp_path)
    )
    refused(running.as_server, "belongs to user", "you are root")


def _for_everybody(folder: Path) -> str:
    """A Python that other users may run, with the program where they can read it."""
    if not Path(SYSTEM_PYTHON).exists() or not os.access(HERE, os.X_OK) or not _world_readable(HERE):
        pytest.skip("no Python here that another user may run")
    return SYSTEM_PYTHON


def _world_readable(folder: Path) -> bool:
    return all(one.stat().st_mode & 0o005 == 0o005 for one in (folder, *folder.parents))


@needs_root
def test_a_process_with_more_rights_than_we_have(program: Start) -> None:
    running = program("sleeping")
    code = (
        "import sys; from tokentrace.host import proc; from tokentrace.attach.found import ServerProcess as S\n"
        "from tokentrace.attach.obstacles import obstacle; pid = int(sys.argv[1])\n"
        "o = obstacle(S(pid, 'api', 'x', proc.started(pid), '3.11', '')); print(o.reason); print(o.fix)"
    )
    before = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    done = subprocess.run(
        [*before, sys.executable, "-c", code, str(running.pid)], capture_output=True, text=True, check=True
    )
    assert "SYS_PTRACE is missing" in done.stdout
    assert len(done.stdout.splitlines()) == 2


@needs_root
def test_a_container_with_users_of_its_own(program: Start) -> None:
    if subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    refused(program("sleeping", "unshare", "-Ur").as_server, "users of its own")


@needs_root
def test_another_container_s_process_of_the_same_user_works(program: Start) -> None:
    """Another pid and mount namespace, seen from the host: the way to its socket leads through /proc/PID/root."""
    before = ["unshare", "-pmf", "--mount-proc"]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid and mount namespaces here")
    running = program("waiting", *before)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    inner = Program(running.process)
    process = replace(inner.as_server, pid=int(children[0]))
    from tokentrace.host import proc

    process = replace(
        process, started=proc.started(process.pid), executable=proc.executable(process.pid), python=_version()
    )
    with attach.open(attach.Found("", "vllm", "", (process,)), method="borrow") as attached:
        assert attached.inside[0].socket.startswith(f"/proc/{process.pid}/root/")
        assert attached.agents[0].facts()["pid"] != process.pid  # it has a number of its own there
        assert attached.close() == []
    os.kill(process.pid, signal.SIGTERM)


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_help_names_the_methods() -> None:
    assert f"--method {'|'.join(METHODS)}" in tokentrace("attach", "-h").stdout


def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as mine:  # bound, so that it is nobody else's, and nobody listens
        mine.bind(("127.0.0.1", 0))
        port = mine.getsockname()[1]
        done = tokentrace("attach", f"http://127.0.0.1:{port}", "Hi")
    assert done.returncode == 2
    assert f"nothing listens on port {port}" in done.stderr and "fix:" in done.stderr


def test_something_that_is_no_inference_server(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split("port ")[1].split()[0]
        done = tokentrace("attach", f"http://127.0.0.1:{port}", "--dry-run")
        by_pid = tokentrace("attach", "--pid", str(server.pid), "--dry-run")
        server.kill()
    assert done.returncode == by_pid.returncode == 2
    assert "is not a vLLM server" in done.stderr and str(server.pid) in done.stderr
    assert "belongs to no vLLM server" in by_pid.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("http://localhost:1", "Hi", "there"),
        ("http://localhost:1",),
        ("http://localhost:1", "Hi", "--for", "30s"),
        ("http://localhost:1", "--for", "soon"),
        ("http://localhost:1", "Hi", "--method", "magic"),
        ("--pid", "999999999", "Hi"),
        ("http://localhost:1", "--requests", "2", "-o", "x.jsonl"),
        ("http://localhost:1", "--for", "30s", "--steps", "5"),
        ("http://localhost:1", "Hi", "--deep"),
        ("http://localhost:1", "Hi", "--with-text"),
    ],
)
def test_a_command_that_makes_no_sense(arguments: tuple[str, ...]) -> None:
    done = tokentrace("attach", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("tokentrace: ") and "fix:" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_method_that_was_asked_for_works_in_every_process_or_is_refused(program: Start, runtime: Path) -> None:
    good, bad = program("waiting"), replace(program("sleeping").as_server, python="3.9")
    found = attach.Found("", "vllm", "", (replace(good.as_server, role="api"), replace(bad, role="engine")))
    with pytest.raises(AttachError, match=r"3\.10 to 3\.14") as error:
        attach.open(found, method="borrow")
    assert error.value.fix
    assert not (runtime / "tokentrace" / private.AUDIT).exists()  # the other one was not touched for it
    with attach.open(found) as attached:
        assert [one.process.pid for one in attached.inside] == [good.pid]
        told = without_agent(attached)
        document = as_document(attached)
    assert list(told) == ["engine"] and f"no agent in process {bad.pid} (engine core)" in told["engine"][0]
    assert (document["depth"], document["reason"]) == ("injected", attached.reason)
    assert document["processes"][0]["way"] not in ("", "waits") and document["processes"][1]["way"] == ""
    said = good.end()
    assert said["modules"] == [] and said["threads"] == 0


def test_each_process_that_is_left_alone_has_its_own_reason(program: Start) -> None:
    good, *bad = (program(mode) for mode in ("waiting", "sleeping", "sleeping", "sleeping"))
    engine = replace(bad[0].as_server, role="engine", python="3.9")
    # Of the second worker the number is another process's by now.
    workers = [replace(bad[1].as_server, role="worker", rank="tp0", python="3.13t"),
               replace(bad[2].as_server, role="worker", rank="tp1", started=1.0)]  # fmt: skip
    found = attach.Found("", "vllm", "", (replace(good.as_server, role="api"), engine, *workers))
    words = ("3.10 to 3.14", "free-threaded", "has ended")
    with pytest.raises(AttachError) as error:
        attach.open(found, method="borrow")
    assert [word for word in words if word not in str(error.value)] == [], str(error.value)
    assert error.value.fix.count("install tokentrace") == 1 and "look at the server's log" in error.value.fix
    console = Console(file=io.StringIO(), width=300)
    with attach.open(found) as attached:
        assert [one.process for one in attached.left_alone] == [engine, *workers]
        told, document = without_agent(attached), as_document(attached)
        show_attached(attached, console)
    assert [one["reason"] for one in document["processes"]] == ["", *(one.why.reason for one in attached.left_alone)]
    assert all(word in one.why.reason for one, word in zip(attached.left_alone, words, strict=True))
    assert list(told) == ["engine", "worker"] and "(engine core): " in told["engine"][0]
    assert "(worker tp0): " in told["worker"][0] and "(worker tp1): " in told["worker"][0]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    # What helps against two of them is said once.
    said = [line.strip().partition(":")[0] for line in shown.splitlines()]
    assert [one for one in said if one in ("not deeper", "fix")] == ["not deeper"] * 2 + ["fix", "not deeper", "fix"]


class OnlyTheApiServer:
    """An agent of a server's API process, which sees nothing of the engine."""

    def enable(self, group: str, options: object = None) -> None:
        return

    def disable(self, group: str) -> None:
        return

    def records(self, group: str) -> list[Raw]:
        data = {"rid": "a", "tokens": 3}
        return [Raw("engine", "submit", 10, 20, 1, "1", data)] if group == "engine" else []

    def columns(self, group: str) -> list[Columns]:
        return [Columns("jit", "1", {"watched": ["dynamo"]}, {})] if group == "jit" else []

    def facts(self) -> dict[str, object]:
        return {"engine": "vllm", "compile": False}


def test_nothing_seen_of_a_process_without_agent_is_not_nothing() -> None:
    options = {"without_agent": {"engine": ("there is no agent in process 7 (engine core)", "do that")}}
    exchange = Exchange("", "m", 0, "", start_ns=1, end_ns=100, response_id="a")
    agent = OnlyTheApiServer()
    context = ProbeContext("attach", "once", True, "m", agent, None, exchange, "a", options)
    for number in (5, 4, 3, 2):
        probe = create(by_number(number))
        with pytest.raises(ProbeUnavailable, match="no agent in process 7") as error:
            probe.arm(context)
            list(probe.collect(context))
        assert error.value.fix == "do that"
    queue = create(by_number(6))
    queue.arm(context)
    assert (
        list(queue.collect(context)) and "its steps are not seen: there is no agent in process 7" in queue.state.reason
    )
    context.options = {}
    with pytest.raises(ProbeUnavailable, match="ran nothing"):
        list(create(by_number(5)).collect(context))


def test_from_outside_the_layers_inside_say_why_and_what_helps_there() -> None:
    outside = {"outside": ("--method outside was asked for", "attach without --method outside")}
    with pytest.raises(ProbeUnavailable, match="server's process: --method outside was asked for") as error:
        ProbeContext("attach", "once", True, options=outside).need_agent("tokentrace attach URL")
    assert error.value.fix == "attach without --method outside"


def test_a_private_folder_that_is_not_private(runtime: Path, tmp_path: Path) -> None:
    folder = runtime / "tokentrace"
    folder.symlink_to(tmp_path)
    with pytest.raises(AttachError, match="is a link"):
        private.own_folder()
    folder.unlink()
    folder.mkdir(mode=0o755)
    with pytest.raises(AttachError, match="open to other users"):
        private.own_folder()
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(TokentraceError):
        private.own_folder()
    folder.unlink()
    assert private.own_folder() == folder


def test_the_folder_without_a_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="tt-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        folder = private.own_folder()
        assert folder == Path(short) / f"tokentrace-{os.geteuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700


#: Installs a seccomp filter (seccomp(2)) and becomes the program that follows. "all" allows everything; "code" denies
#: anonymous memory that may be executed, as a strict sandbox does.
FILTER = """
import ctypes, os, struct, sys
LOAD, EQUAL, BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, DENY = 0x7FFF0000, 0x00050001
rules = [(RETURN, 0, 0, ALLOW)] if sys.argv[1] == "all" else [
    (LOAD, 0, 0, 0), (EQUAL, 0, 5, 9),  # mmap
    (LOAD, 0, 0, 16 + 16), (BITS, 0, 3, 4),  # PROT_EXEC
    (LOAD, 0, 0, 16 + 24), (BITS, 0, 1, 32),  # MAP_ANONYMOUS
    (RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("kind", ["all", "code"])
def test_a_process_behind_a_filter_of_system_calls(program: Start, kind: str) -> None:
    running = program("waiting", sys.executable, "-c", FILTER, kind)
    assert "Seccomp:\t2" in Path(f"/proc/{running.pid}/status").read_text()
    if kind == "all":
        with attach.open(running.found, method="borrow") as attached:
            assert attached.depth == "injected"
    else:
        with pytest.raises(AttachError, match="not given memory to execute") as error:
            attach.open(running.found, method="borrow")
        assert error.value.fix
    assert running.end()["rounds"] > 0


def test_what_killed_processes_left_is_removed_and_nothing_else() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = private.own_folder()
    here, gone = os.getpid(), ended.pid
    old, new, mine, lock = (
        folder / name
        for name in (f"agent-{gone}-0a.permit", f"agent-{gone}-0b.permit", f"agent-{here}-0c.permit",
                     f"attach-{gone}.lock")
    )  # fmt: skip
    for one in (old, new, mine, lock):
        one.touch()
    held = folder / f"agent-{gone}-0e.permit"
    dead, live = folder / f"agent-{gone}-0d.sock", folder / f"agent-{gone}.sock"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(dead))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(live))
        listening.listen()
        with private.permit(held), private.only_one(here):
            left = {one.name for one in folder.iterdir()}
    assert left == {held.name, live.name, f"attach-{here}.lock"}
