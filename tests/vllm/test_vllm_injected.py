"""Attaching to a real vLLM server that was started plainly and has never heard of tokentrace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from vllm_server import MODEL, Stream, VllmServer

from tokentrace import attach, workflow
from tokentrace.attach import sockets
from tokentrace.client.settings import Endpoint
from tokentrace.errors import AttachError
from tokentrace.host import proc
from tokentrace.model import Trace
from tokentrace.session import Ask

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
#: Attach and detach so often while a stream of somebody else runs.
REPEATS = int(os.environ.get("TOKENTRACE_ATTACH_REPEATS", "20"))
PROMPT, TOKENS = "Tell me about rivers.", 300


@pytest.fixture(scope="module")
def server(start_vllm: Callable[..., VllmServer]) -> VllmServer:
    return start_vllm(plugin=False)


@contextlib.contextmanager
def attached(server: VllmServer) -> Iterator[attach.Attached]:
    """With the agent in all three processes; it is seen to leave again."""
    found = attach.find(server.url)
    assert found.sockets == {}
    with attach.open(found, method="borrow") as inside:
        assert inside.depth == "injected" and inside.reason == "" and inside.notes == []
        assert [one.process.role for one in inside.inside] == ["api", "engine", "worker"]
        yield inside
        assert inside.close() == []


def our_prompt(server: VllmServer, once: bool = False) -> workflow.Run:
    settings = workflow.Settings(Endpoint(server.url, model=MODEL), once=once, save=False)
    with attached(server) as inside:
        return attach.ask(inside, Ask("Hi", max_tokens=10, temperature=0.0), settings, workflow.Quiet())


def functions(server: VllmServer) -> list[dict[str, int]]:
    """Of every process, which object each function is."""
    with attached(server) as inside:
        return [dict(one.functions()) for one in inside.agents]


def names(trace: Trace, pass_name: str) -> Counter[str]:
    return Counter(s.name for s in trace.spans if s.attributes.get("tokentrace.pass") == pass_name)


@pytest.fixture(scope="module")
def plain(server: VllmServer) -> str:
    """What another client gets while nobody is attached."""
    text = Stream(server.url, PROMPT, TOKENS).end()
    assert len(text) > 100
    return text


def test_one_prompt_while_another_client_streams(server: VllmServer, plain: str) -> None:
    our_prompt(server)  # a server's first request loads things
    before = functions(server)
    stream = Stream(server.url, PROMPT, TOKENS)
    assert stream.started.wait(60)
    run = our_prompt(server)
    assert stream.end() == plain
    assert run.error is None
    trace = run.trace
    assert trace.parent[0] == -1 and all(0 <= parent < row for row, parent in enumerate(trace.parent) if row)
    assert {str(one.pid) for one in attach.find(server.url).processes} <= {one for one in trace.process if one}
    by_layer = {row.layer: row for row in run.report.layers}
    assert all(by_layer[number].status == "seen" for number in (8, 7, 6, 5, 4, 3))
    assert all(row.status != "unseen" or row.reason for row in by_layer.values())
    assert run.report.tokens == {"input": 31, "output": 10}
    for name in ("warm", "deep"):
        found = names(trace, name)
        assert found["step"] == found["forward"] == found["sample"] == found["decode"] == 10
    assert trace.meta["engine"]["missing_hooks"] == []
    assert functions(server) == before
    assert server.answers()


def test_attaching_again_and_again_disturbs_no_stream(server: VllmServer, plain: str) -> None:
    processes = attach.find(server.url).processes
    our_prompt(server, once=True)
    functions(server)
    kept = [(len(proc.threads(one.pid)), len(sockets.socket_inodes(one.pid))) for one in processes]
    texts: list[str] = []
    stream = Stream(server.url, PROMPT, TOKENS)
    for _ in range(REPEATS):
        functions(server)
        if stream.pieces >= TOKENS - 1:
            texts.append(stream.end())
            stream = Stream(server.url, PROMPT, TOKENS)
    texts.append(stream.end())
    assert set(texts) == {plain}
    deadline = time.monotonic() + 60
    now = []
    while now != kept and time.monotonic() < deadline:  # a connection of the last stream may still be closing
        now = [(len(proc.threads(one.pid)), len(sockets.socket_inodes(one.pid))) for one in processes]
        time.sleep(0.2)
    assert [threads for threads, _ in now] <= [threads for threads, _ in kept]
    assert server.answers() and attach.find(server.url).sockets == {}


_begun: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_command_left() -> Iterator[None]:
    """One that a failed test left attached would refuse the tests after it."""
    yield
    for process in _begun:
        process.kill()
        process.wait()
    _begun.clear()


def tokentrace(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", *arguments]
    _begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return _begun[-1]


def test_the_command_traces_a_prompt_and_leaves(server: VllmServer, tmp_path: Path) -> None:
    one_of_them = str(attach.find(server.url).processes[-1].pid)
    for where in ((server.url, "Hi"), ("--pid", one_of_them, "Hi")):
        process = tokentrace("attach", *where, "--json", "--max-tokens", "5", "--out", str(tmp_path / where[0][-5:]))
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
        assert "depth: injected" in err and "API server" in err
        report = orjson.loads(out)
        assert report["tokens"]["output"] == 5
        assert attach.find(server.url).sockets == {}


def test_the_command_watches_the_requests_of_others(server: VllmServer, tmp_path: Path) -> None:
    process = tokentrace("attach", server.url, "--requests", "2", "--json", "--out", str(tmp_path))
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:  # others ask until it has seen enough
        Stream(server.url, "A secret: zanzibar", 8).end()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document = orjson.loads(out)
    assert document["schema"] == "tokentrace.attach/1" and document["depth"] == "injected"
    assert [row["reply_tokens"] for row in document["requests"]] == [8, 8]
    assert "zanzibar" not in out and all(b"zanzibar" not in one.read_bytes() for one in tmp_path.rglob("*.jsonl"))


def test_ctrl_c_while_watching_keeps_what_was_seen(server: VllmServer, tmp_path: Path) -> None:
    process = tokentrace("attach", server.url, "--for", "10m", "--out", str(tmp_path))
    deadline = time.monotonic() + 240
    while not list(tmp_path.rglob("report.json")):
        Stream(server.url, "Hi", 4).end()
        assert process.poll() is None and time.monotonic() < deadline
    streams = [Stream(server.url, "Hi", 7) for _ in range(12)]
    for stream in streams:
        stream.end()
    Stream(server.url, "Hi", 4).end()  # meanwhile the server has ended the others too
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "what had ended until then is saved" in err and "seen" in out
    reports = [orjson.loads(one.read_bytes()) for one in tmp_path.rglob("report.json")]
    assert sum(one["tokens"]["output"] == 7 for one in reports) == len(streams)
    assert attach.find(server.url).sockets == {}
    assert server.answers()


def test_a_second_tokentrace_is_refused(server: VllmServer) -> None:
    with attached(server), pytest.raises(AttachError, match=str(os.getpid())):
        attach.open(attach.find(server.url))
    assert server.answers()


def test_a_server_killed_while_attached_ends_in_a_sentence(server: VllmServer) -> None:
    """The last test of this module: the server does not come back."""
    found = attach.find(server.url)
    with attach.open(found, method="borrow") as inside:
        server.stop()
        assert inside.close() == []
    with pytest.raises(AttachError) as error:
        attach.open(found, method="borrow")
    assert "has ended" in str(error.value) and error.value.fix
