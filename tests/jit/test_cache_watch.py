"""Hits and misses of caches that tell nothing themselves: a real server with the agent, real builds, one pass each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ninja_modules import build, needs_ninja, write_module
from support.answering import context

from tokentrace.agent_client import AgentClient
from tokentrace.exchange import Exchange
from tokentrace.host import proc
from tokentrace.model import Record
from tokentrace.probes._cache_entries import loaded
from tokentrace.probes.jit import JitProbe

HERE = Path(__file__).parent
pytestmark = needs_ninja


class Serving:
    """A server and the way to its agent. One pass at a time."""

    def __init__(self, home: Path, sockets: Path, within: Sequence[str] = (), **variables: str) -> None:
        self.socket = sockets / "agent.sock"
        environment = {
            **os.environ,
            "HOME": str(home),
            "FLASHINFER_WORKSPACE_BASE": str(home),
            "CUDA_CACHE_PATH": str(home / "cuda"),
            "PYTHONPATH": str(HERE.parents[1]),
            **variables,
        }
        self.process = subprocess.Popen(
            [*within, sys.executable, str(HERE / "cache_server.py"), str(self.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer("ready")
        self.agent = AgentClient.connect(self.socket)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.agent.close()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def load(self, library: Path) -> None:
        self.ask(f"load {library}")

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._answer("done")

    def _answer(self, expected: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == expected + "\n"

    def begin(self) -> None:
        self.probe = JitProbe()
        self.context = context(self.agent)  # type: ignore[arg-type]
        self.context.pass_name = "cold"
        self.agent.begin_pass()
        self.probe.arm(self.context)
        self.start_ns = time.time_ns()

    def end(self) -> list[Record]:
        self.context.exchange = Exchange(
            "http://x/v1", "m", 1, "00-0-0-01", start_ns=self.start_ns, end_ns=time.time_ns()
        )
        self.probe.disarm()
        self.agent.end_pass()
        return list(self.probe.collect(self.context))

    def use(self, compiler: str) -> dict[str, Any]:
        found: dict[str, Any] = next(u for u in self.probe.state.facts["cache_use"] if u["compiler"] == compiler)
        return found

    @property
    def sentences(self) -> list[str]:
        facts = self.probe.state.facts
        return [one["sentence"] for one in [*facts["cache_findings"], *facts["cache_start_findings"]]]


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        yield Path(made)


def wait_for_the_clock(library: Path) -> None:
    """File systems write times of the last tick of the kernel's clock, up to 10 ms ago."""
    while time.time_ns() - library.stat().st_mtime_ns < 50_000_000:
        time.sleep(0.005)


def test_a_module_that_is_built_and_loaded_in_the_pass_is_a_miss_with_its_time(tmp_path: Path, sockets: Path) -> None:
    folder = write_module(tmp_path, "batch_decode")
    with Serving(tmp_path, sockets) as server:
        server.begin()
        server.load(build(folder))
        records = server.end()
        use = server.use("FlashInfer")
        assert (use["miss"], use["hit"], use["loaded"], use["foreign"], use["complete"]) == (1, 0, 0, 0, True)
        (record,) = records
        assert record.name == "compile FlashInfer" and record.process == str(server.process.pid)
        assert record.attributes["tokentrace.jit.key"] == "batch_decode"
        assert record.attributes["tokentrace.jit.result"] == "miss"
        assert record.end_ns == (folder / "batch_decode.so").stat().st_mtime_ns
        assert record.end_ns - record.start_ns == use["miss_ns"] > 0
        assert record.attributes["tokentrace.jit.compile_ms"] == use["miss_ns"] / 1e6
        assert server.probe.state.status == "seen"
        (sentence,) = server.sentences
        assert sentence.startswith("FlashInfer compiled 1 module in the cold pass that its cache did not have, ")
        assert "FlashInfer: 1 module compiled" in server.probe.state.facts["tokentrace.jit.caches"]


def test_a_module_that_was_there_before_is_a_hit_and_says_what_that_saved(tmp_path: Path, sockets: Path) -> None:
    library = build(write_module(tmp_path, "prefill"))
    wait_for_the_clock(library)
    with Serving(tmp_path, sockets) as server:
        server.begin()
        server.load(library)
        assert server.end() == []
        use = server.use("FlashInfer")
        assert (use["miss"], use["hit"], use["loaded"]) == (0, 1, 0) and use["saved_ns"] > 0
        assert use["keys"] == [{"key": "prefill", "result": "hit", "took_ns": use["saved_ns"]}]
        assert server.sentences[0].startswith(
            "1 module of FlashInfer came from the cache in the cold pass, which saved"
        )


def test_what_the_start_found_is_told_apart_from_what_it_paid_for(tmp_path: Path, sockets: Path) -> None:
    before = build(write_module(tmp_path, "was_there"))
    wait_for_the_clock(before)
    unused = build(write_module(tmp_path, "unused"))
    wait_for_the_clock(unused)
    with Serving(tmp_path, sockets) as server:
        server.load(before)
        built = build(write_module(tmp_path, "built_by_the_start"))
        server.load(built)
        wait_for_the_clock(built)
        server.begin()
        server.end()
        use = server.use("FlashInfer")
        assert (use["held"], use["miss"], use["hit"], use["loaded"]) == (3, 0, 0, 2)
        assert (use["paid"], use["found"]) == (1, 1) and use["paid_ns"] > 0 and use["found_ns"] > 0
        assert any("compiled since the server started" in one for one in server.sentences)
        assert any("in the cache when the server started, which saved" in one for one in server.sentences)


def test_what_another_program_builds_meanwhile_is_not_the_servers(tmp_path: Path, sockets: Path) -> None:
    with Serving(tmp_path, sockets) as server:
        write_module(tmp_path, "first")
        server.begin()
        build(write_module(tmp_path, "a_neighbours"))
        (tmp_path / "cuda/6/b").mkdir(parents=True)
        (tmp_path / "cuda/6/b/e0943aa8a566c2").write_bytes(b"x")
        assert server.end() == []
        assert (server.use("FlashInfer")["miss"], server.use("FlashInfer")["foreign"]) == (0, 1)
        assert (server.use("CUDA")["miss"], server.use("CUDA")["foreign"]) == (0, 1)
        assert server.sentences == [] and server.probe.state.status == "idle"


def test_an_entry_without_a_time_is_an_instant_and_its_hits_are_unknown(tmp_path: Path, sockets: Path) -> None:
    """A library by the name of CUDA's driver stands for it: the entry is written by this test."""
    driver = build(write_module(tmp_path, "libcuda"))
    named = shutil.copy(driver, tmp_path / "libcuda.so.1")
    (tmp_path / "cuda/6/b").mkdir(parents=True)
    (tmp_path / "cuda/6/b/00aa43a8a566c2").write_bytes(b"x")
    os.utime(tmp_path / "cuda/6/b/00aa43a8a566c2", ns=(10**18, 10**18))
    with Serving(tmp_path, sockets) as server:
        server.load(Path(named))
        server.begin()
        (tmp_path / "cuda/6/b/e0943aa8a566c2").write_bytes(b"x")
        now = time.time_ns()  # a file written so early may have the time of the tick before the pass
        os.utime(tmp_path / "cuda/6/b/e0943aa8a566c2", ns=(now, now))
        (record,) = server.end()
        assert (record.name, record.start_ns) == ("cache CUDA miss", record.end_ns)
        assert record.attributes["tokentrace.jit.key"] == "6/b/e0943aa8a566c2"
        use = server.use("CUDA")
        assert (use["held"], use["miss"], use["untimed"], use["hit"]) == (2, 1, 1, None)
        assert "hits are not told" in use["note"]
        assert server.sentences == [
            "CUDA compiled 1 module in the cold pass that its cache did not have; how long is not told."
        ]


def test_the_kernel_tells_the_servers_pid_libraries_and_start(tmp_path: Path, sockets: Path) -> None:
    library = build(write_module(tmp_path, "m"))
    begun = time.time_ns()
    with Serving(tmp_path, sockets) as server:
        pid = server.agent.pid_here
        assert pid == server.process.pid
        # The kernel counts ticks of 10 ms.
        assert begun - 50_000_000 <= proc.started_ns(pid) <= time.time_ns()
        assert str(library) not in (loaded.files(pid) or ())
        server.load(library)
        assert str(library) in (loaded.files(pid) or ())
        assert proc.root_of(pid) == ("/", "/proc/self/mountinfo")
        assert proc.environment(pid, ["HOME", "UNSET"]) == {"HOME": str(tmp_path)}
    assert server.agent.pid_here == 0, "a closed connection tells no pid"
    assert loaded.files(pid) is None
    with pytest.raises(OSError):
        proc.environment(pid, ["HOME"])


def test_a_server_in_namespaces_of_its_own_is_looked_at_in_them(tmp_path: Path, sockets: Path) -> None:
    """As in a container: its folder is mounted for it alone, and it calls itself process 1."""
    within = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    inside = tmp_path / "seen_inside"
    inside.mkdir()
    kept = tmp_path / "kept"
    (kept / "home").mkdir(parents=True)
    script = f'mount --bind "{kept}" "{inside}" && mount -t proc proc /proc && exec "$@"'
    started = [*within, "sh", "-c", script, "sh"]
    if subprocess.run([*started, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces may be made here")
    outside = build(write_module(kept / "home", "prefill"))
    wait_for_the_clock(outside)
    with Serving(inside / "home", sockets, started) as server:
        assert server.agent.process == "1" and server.agent.pid_here > 1
        assert proc.root_of(server.agent.pid_here)[0] == f"/proc/{server.agent.pid_here}/root"
        server.begin()
        server.load(inside / "home" / outside.relative_to(kept / "home"))
        assert server.end() == []
        use = server.use("FlashInfer")
        assert (use["path"], use["hit"], use["loaded"]) == (str(inside / "home/.cache/flashinfer"), 1, 0)
    assert not any(inside.iterdir()), "the folder was mounted for us too, so that nothing was shown"


def test_without_a_pass_before_it_nothing_is_said(tmp_path: Path, sockets: Path) -> None:
    with Serving(tmp_path, sockets) as server:
        server.agent.begin_pass()
        probe = JitProbe()
        server.agent.enable("jit", {"variables": ["HOME"]})
        server.agent.disable("jit")
        server.agent.end_pass()
        assert list(probe.collect(context(server.agent))) == []  # type: ignore[arg-type]
        assert probe.state.facts["cache_use"] == []


@pytest.mark.model
def test_a_real_torch_extension_is_compiled_once_and_hits_after_that(tmp_path: Path, sockets: Path) -> None:
    pytest.importorskip("torch")
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int tiny() { return 7; }\n')
    extensions = tmp_path / "extensions"
    (extensions / "tiny").mkdir(parents=True)
    seen = []
    for _ in ("cold", "warm"):
        with Serving(tmp_path, sockets, TORCH_EXTENSIONS_DIR=str(extensions)) as server:
            server.begin()
            server.ask(f"extension {source} tiny")
            seen.append((server.end(), server.use("torch extensions")))
        wait_for_the_clock(extensions / "tiny/tiny.so")
    (cold_records, cold), (warm_records, warm) = seen
    assert [r.name for r in cold_records if "torch extensions" in r.name] == ["compile torch extensions"]
    assert (cold["miss"], cold["hit"]) == (1, 0) and cold["miss_ns"] > 0 and cold["keys"][0]["key"] == "tiny"
    assert [r for r in warm_records if "torch extensions" in r.name] == []
    assert (warm["miss"], warm["hit"], warm["saved_ns"]) == (0, 1, cold["miss_ns"])
