"""Layer 2: the caches of compiled code on real folders, real mounts and with another user's rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from machine_trees import Machine, as_nobody, by_id, situation, snapshot

from tokentrace.doctor.check import ENGINE_DOWN, Result
from tokentrace.doctor.machine import caches, compiled, compilers, folders, keys, view
from tokentrace.doctor.machine.view import View

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "CUDA_CACHE_PATH",
             "AMD_COMGR_CACHE_DIR", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH", "FLASHINFER_WORKSPACE_BASE",
             "DG_JIT_CACHE_DIR", "TORCH_EXTENSIONS_DIR")  # fmt: skip


def look(environ: dict[str, str], **more: Any) -> dict[str, Result]:
    return by_id(caches.look(situation(environ=environ), View(environ, **more)))


def test_no_home_lists_every_bad_folder_at_once_with_its_variable(tmp_path: Path) -> None:
    result = look({"HOME": "/dev/null", "TMPDIR": str(tmp_path)})["TT201"]
    assert result.status == "fail" and result.explains == ENGINE_DOWN
    assert "HOME is /dev/null" in result.detail and "HOME" in result.fix
    text = "\n".join(result.evidence)
    for variable in set(VARIABLES) - {"TORCHINDUCTOR_CACHE_DIR"}:
        assert variable in text
    assert "inductor" not in result.detail  # its default lies in the folder for temporary files


def test_a_file_in_the_way_is_told_with_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = look({"HOME": str(tmp_path), "TRITON_CACHE_DIR": f"{tmp_path}/file/x"})["TT201"]
    assert result.status == "fail" and result.fix.startswith("export TRITON_CACHE_DIR=")
    assert result.evidence == (f"triton: {tmp_path}/file/x (TRITON_CACHE_DIR): {tmp_path}/file is no folder",)
    assert result.detail.endswith(f"cannot be used: triton ({tmp_path}/file is no folder)")  # the cause too


def test_the_variable_above_is_named_and_not_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = look({"HOME": str(tmp_path), "XDG_CACHE_HOME": f"{tmp_path}/file", "TMPDIR": str(tmp_path)})["TT201"]
    assert result.status == "fail" and f"XDG_CACHE_HOME is {tmp_path}/file" in result.detail
    assert "HOME is " not in result.detail.replace("XDG_CACHE_HOME", "") and "export XDG_CACHE_HOME=" in result.fix


def test_a_relative_home_is_named_once_and_not_each_folder_below_it(tmp_path: Path) -> None:
    result = look({"HOME": "rel/home", "TMPDIR": str(tmp_path)})["TT201"]
    assert result.status == "warn" and result.detail.startswith("HOME=rel/home is a relative path")
    assert result.fix == "set HOME to a path that begins with /"


@pytest.mark.parametrize("target", ["circle", "gone/x"])
def test_a_link_that_leads_nowhere_cannot_be_used(tmp_path: Path, target: str) -> None:
    link = tmp_path / "circle"
    link.symlink_to(tmp_path / target)
    with pytest.raises(OSError):
        link.mkdir(parents=True, exist_ok=True)  # what a compiler does
    for path in (link, link / "below"):
        result = look({"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(path)})["TT201"]
        assert result.status == "fail" and f"{link} is a link that leads nowhere" in result.detail
    (tmp_path / "real").mkdir()
    good = tmp_path / "good"
    good.symlink_to(tmp_path / "real")
    assert look({"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(good)})["TT201"].status == "ok"


def test_good_caches_are_told_with_size_and_age(tmp_path: Path) -> None:
    day = time.time() - 86_400
    for name in ("ind", "tri", "proc"):
        (tmp_path / name).mkdir()
    # On a disk, whatever the folder for temporary files lies on here.
    (tmp_path / "proc/mountinfo").write_text("22 1 0:21 / / rw - ext4 disk rw\n")
    (tmp_path / "ind/a.so").write_bytes(b"x" * 2_500)
    os.utime(tmp_path / "ind/a.so", (day, day))
    found = look({"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/ind",
                  "TRITON_CACHE_DIR": f"{tmp_path}/tri"}, proc=str(tmp_path / "proc"))  # fmt: skip
    assert {r.status for r in found.values() if r.id != "TT203"} == {"ok"}  # this disk may really be full
    lines = "\n".join(found["TT201"].evidence)
    assert "1 file, 2.50 kB, newest 1440 min old" in lines and "triton: " in lines and "0 files" in lines


def test_a_containers_own_layer_and_memory_are_lost_at_a_restart(machine: Machine) -> None:
    machine.write("/cache/tri/kernel.cubin", "x")
    machine.write("/proc/self/mountinfo", "22 1 0:21 / / rw - overlay overlay rw\n")
    machine.write("/.dockerenv")
    seen = machine.view(environ={"HOME": "/home/me", "TRITON_CACHE_DIR": "/cache/tri"})
    result = by_id(caches.look(situation(), seen))["TT202"]
    assert result.status == "warn" and "lost on restart" in result.detail and "-v " in result.fix
    assert "/cache/tri" in result.fix and len(result.evidence) == 1


def test_an_empty_cache_in_a_container_is_no_warning(machine: Machine) -> None:
    machine.write("/proc/self/mountinfo", "22 1 0:21 / / rw - overlay overlay rw\n")
    assert by_id(caches.look(situation(), machine.view()))["TT202"].status == "ok"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs at /dev/shm")
def test_a_cache_on_the_real_memory_file_system() -> None:
    folder = Path("/dev/shm", f"tokentrace-{os.getpid()}")
    folder.mkdir()
    try:
        (folder / "k").write_text("x")
        found = look({"HOME": str(folder), "TRITON_CACHE_DIR": str(folder)})
        assert found["TT202"].status == "warn" and "tmpfs" in found["TT202"].detail
        assert found["TT201"].status == "ok"
    finally:
        (folder / "k").unlink()
        folder.rmdir()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs at /dev/shm")
def test_an_empty_cache_in_memory_is_told_before_anything_is_lost() -> None:
    folder = Path("/dev/shm", f"tokentrace-empty-{os.getpid()}")
    for made in (False, True):
        if made:
            folder.mkdir()
        try:
            result = look({"HOME": "/nonexistent", "TRITON_CACHE_DIR": str(folder)})["TT202"]
        finally:
            if made:
                folder.rmdir()
        assert result.status == "warn" and "will compile lies on tmpfs" in result.detail, result
        assert "TRITON_CACHE_DIR" in result.fix or str(folder) in result.fix


def test_a_variable_that_leads_into_a_containers_own_layer_is_told_while_it_is_empty(machine: Machine) -> None:
    machine.write("/proc/self/mountinfo", "22 1 0:21 / / rw - overlay overlay rw\n")
    seen = machine.view(environ={"HOME": "/home/me", "TRITON_CACHE_DIR": "/cache/tri"})
    result = by_id(caches.look(situation(), seen))["TT202"]
    assert result.status == "warn" and "triton" in result.detail and len(result.evidence) == 1


def test_a_relative_folder_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    result = look({"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "VLLM_CACHE_ROOT": "cache/vllm"})["TT201"]
    assert result.status == "warn" and not result.explains
    assert "VLLM_CACHE_ROOT=cache/vllm is a relative path" in result.detail
    assert result.fix == "export VLLM_CACHE_ROOT=/var/tmp/vLLM"
    # Beside a folder that breaks the start it is one of them.
    both = look({"HOME": "/dev/null", "TMPDIR": str(tmp_path), "VLLM_CACHE_ROOT": "cache/vllm"})["TT201"]
    assert both.status == "fail" and "vLLM: cache/vllm (VLLM_CACHE_ROOT): a relative path" in "\n".join(both.evidence)


def test_vllm_reads_a_tilde_as_the_home_folder(tmp_path: Path) -> None:
    """vllm/envs.py expands VLLM_CACHE_ROOT; Triton takes a tilde as it stands."""
    result = look({"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "VLLM_CACHE_ROOT": "~/v"})["TT201"]
    assert result.status == "ok" and f"vLLM: {tmp_path}/v (VLLM_CACHE_ROOT)" in "\n".join(result.evidence)
    assert look({"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": "~/t"})["TT201"].status == "warn"


@pytest.mark.skipif(sys.platform != "linux", reason="file systems of Linux")
@pytest.mark.parametrize(("home", "kind"), [("/proc", "proc"), ("/sys", "sysfs")])
def test_a_home_in_a_file_system_that_the_kernel_makes_up(tmp_path: Path, home: str, kind: str) -> None:
    """Root's rights say that it may write there; nobody can."""
    result = look({"HOME": home, "TMPDIR": str(tmp_path)})["TT201"]
    assert result.status == "fail" and f"HOME is {home}" in result.detail and "export HOME=" in result.fix
    assert any(f"it lies on {kind}" in line or "mounted read-only" in line for line in result.evidence)
    one = look({"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": f"{home}/x"})
    assert one["TT201"].status == "fail" and "triton" in one["TT201"].detail
    assert one["TT203"].status == "ok"  # no room at all is no full disk there


def mount(kind: str, options: str, folder: Path) -> None:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", kind, "-o", options, kind, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount")


def test_a_read_only_mount_and_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    mount("tmpfs", "size=1m", small)
    try:
        (small / "big").write_bytes(b"x" * 2**20)
        found = look({"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(small)})
        assert found["TT203"].status == "warn" and "triton" in found["TT203"].detail and "df -h" in found["TT203"].fix
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        result = look({"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(small)})["TT201"]
        # What is in it can still be used.
        assert result.status == "warn" and "mounted read-only" in result.evidence[0]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_network_file_system_is_told_only_when_it_is_used(machine: Machine) -> None:
    machine.write("/proc/self/mountinfo", "22 1 0:21 / / rw - ext4 a rw\n23 22 0:22 / /nfs rw - nfs4 server:/x rw\n")
    environ = {"HOME": "/home/me", "FLASHINFER_WORKSPACE_BASE": "/nfs"}
    assert by_id(caches.look(situation(), machine.view(environ=environ)))["TT204"].status == "ok"
    machine.write("/nfs/.cache/flashinfer/0.4/90/cached_ops/a/a.so", "x")
    result = by_id(caches.look(situation(), machine.view(environ=environ)))["TT204"]
    assert result.status == "warn" and "nfs4" in result.detail and "FLASHINFER_WORKSPACE_BASE" in result.fix


def test_switched_off_caches_name_their_switch(tmp_path: Path) -> None:
    result = look({"HOME": str(tmp_path), "CUDA_CACHE_DISABLE": "1"})["TT210"]
    assert (result.status, result.fix) == ("warn", "unset CUDA_CACHE_DISABLE")
    for variable, value, name in (("TRITON_ALWAYS_COMPILE", "1", "triton"),
                                  ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0", "inductor")):  # fmt: skip
        result = look({"HOME": str(tmp_path), variable: value})["TT210"]
        assert (result.status, result.fix) == ("warn", f"unset {variable}") and name in result.detail
        assert look({"HOME": str(tmp_path), variable: "1" if value == "0" else "0"})["TT210"].status == "ok"


def test_another_users_folder_cannot_be_written(public: Path) -> None:
    (public / "triton").mkdir(mode=0o755)
    environ = {"HOME": "/tmp", "TRITON_CACHE_DIR": str(public / "triton")}
    if os.getuid() == 0:
        found = as_nobody(lambda: [list(r.evidence) for r in [look(environ)["TT201"]]])
        assert "triton: " in "".join(found[0]) and "belongs to user 0 (mode 0755)" in "".join(found[0])


def test_a_servers_user_counts_not_ours(machine: Machine) -> None:
    """This test may run as root, who may write everywhere; the server's user may not."""
    machine.write("/cache/a", "x")
    machine.write("/proc/self/status", "Uid:\t4711\t4711\t4711\t4711\nGid:\t4711\t4711\t4711\t4711\nGroups:\t4711 \n")
    machine.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nsrv:x:4711:4711::/srv/home:/bin/sh\n")
    machine.torch("/venv/lib/python3.11/site-packages", "2.13.0")
    machine.write("/venv/bin/python")
    environ = {"TRITON_CACHE_DIR": "/cache", "PATH": "/bin", "A": "b"}
    seen = machine.view(pid=9, environ=environ, command=("/venv/bin/python", "-m", "vllm"))
    assert folders.environment(seen)["HOME"] == "/srv/home"
    result = by_id(caches.look(situation(), seen))["TT201"]
    assert result.status == "fail" and "user 4711 may not write" in "\n".join(result.evidence)


def test_a_server_without_torch_has_no_such_caches(machine: Machine) -> None:
    """llama.cpp, or a proxy before the real server, with a home that nobody can write."""
    seen = machine.view(pid=9, environ={"HOME": "/nonexistent", "PATH": "/bin"}, command=("/usr/bin/llama-server",))
    results = [*caches.look(situation(), seen), *keys.look(situation(), seen)]
    assert {r.status for r in results} == {"skip"} and "uses no torch" in results[0].detail


def test_a_server_that_may_not_be_looked_into_is_unknown_not_ok() -> None:
    hidden = View({}, pid=3, hidden="process 3 may not be looked into: Permission denied", fix="as root")
    found = by_id([*caches.look(situation(), hidden), *keys.look(situation(), hidden)])
    assert {r.status for r in found.values()} == {"unknown"} and all("may not be" in r.detail for r in found.values())


def test_looking_changes_nothing_not_even_access_times(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in (".triton/cache/a/b.json", ".cache/vllm/torch_compile_cache/k/rank_0_0/b/cache_key_factors.json",
                 ".cache/flashinfer/0.4/90a/cached_ops/x/build.ninja", ".deep_gemm/x.lock",
                 ".nv/ComputeCache/i"):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("{}")
    for path in home.rglob("*"):
        os.utime(path, (10**9, 10**9 + 5))  # access times older than changes are the ones that reading renews
    time.sleep(0.05)  # a tick of the file system's clock, so that what is read later is told from this change
    before = snapshot(tmp_path)
    environ = {"HOME": str(home), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    seen = View(environ)
    list(caches.look(situation(), seen))
    list(keys.look(situation(), seen))
    list(compilers.look(situation(), seen))
    sampler = compiled._open(situation(environ=environ))
    assert sampler is not None and sampler.read() == sampler.read()
    assert snapshot(tmp_path) == before


def test_a_missing_compiler_matters_where_triton_runs(machine: Machine) -> None:
    machine.torch("/venv/lib/python3.11/site-packages", "2.9.0+cu128", cuda="12.8")
    machine.write("/venv/bin/python")
    more = {"pid": 5, "command": ("/venv/bin/python",), "environ": {"PATH": "/usr/bin", "HOME": "/h"}}
    harmless = by_id(compilers.look(situation(), machine.view(**more)))["TT205"]
    assert harmless.status == "ok" and "no C compiler" in harmless.detail
    machine.nvidia("GPU-aaaa")
    result = by_id(compilers.look(situation(), machine.view(**more)))["TT205"]
    assert result.status == "warn" and "apt-get install" in result.fix
    machine.write("/usr/bin/gcc")
    assert by_id(compilers.look(situation(), machine.view(**more)))["TT205"].status == "ok"
    machine.write("/venv/lib/python3.11/site-packages/flashinfer_python-0.4.0.dist-info/METADATA")
    assert "no nvcc" in by_id(compilers.look(situation(), machine.view(**more)))["TT205"].detail


def test_the_real_process_and_its_real_environment(tmp_path: Path) -> None:
    environ = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "tri"), "SECRET_KEY": "sk-canary"}
    program = "import time; print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        seen = view.of_process(child.pid)
        assert not seen.hidden and seen.root == "/" and seen.environ["TRITON_CACHE_DIR"] == str(tmp_path / "tri")
        assert seen.command[0] == sys.executable
        found = {f.compiler: f for f in folders.caches(seen)}
        assert found["triton"].path == str(tmp_path / "tri") and found["triton"].writable is True
        results = [*caches.look(situation(), seen), *keys.look(situation(), seen)]
        assert "sk-canary" not in repr(results)
    finally:
        child.kill()
        child.wait()
    gone = view.of_process(child.pid)
    assert "is not there" in gone.hidden


def test_another_users_process_may_not_be_looked_into(public: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to have a process of another user")
    hidden = as_nobody(lambda: view.of_process(os.getppid()).hidden)
    assert "may not be looked into" in hidden


def test_a_worker_that_wrote_its_title_has_its_parents_variables(tmp_path: Path) -> None:
    """As vLLM's workers look: the beginning of their variables is gone, the rest is there."""
    for pid, parent, raw in (
        (20, 1, b"TRITON_CACHE_DIR=/t\0A=b\0"),
        (21, 20, b"\0\0\0\0A=b\0C=d\0"),
        (22, 21, b"orker\0A=b\0"),
    ):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"vllm\0serve\0m\0" if pid == 20 else b"VLLM::Worker\0")
        (folder / "environ").write_bytes(raw)
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
        (folder / "root").symlink_to("/")
    seen = view.of_process(22, str(tmp_path / "proc"))
    assert seen.environ == {"TRITON_CACHE_DIR": "/t", "A": "b"} and not seen.hidden
    assert "with the variables of its parent 20" in seen.whose and seen.command == ("vllm", "serve", "m")


def test_a_server_whose_temporary_files_are_its_own_is_looked_at_among_them(tmp_path: Path) -> None:
    """As systemd's PrivateTmp makes it: the root folder is ours, and something else is mounted below it."""
    (tmp_path / "seen").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/compiled").write_text("x")
    script = f'mount --bind "{tmp_path}/kept" "{tmp_path}/seen" && echo && read end'
    for within in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        with subprocess.Popen(
            [*within, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as server:
            assert server.stdout is not None
            made = server.stdout.readline() == b"\n"
            seen = view.of_process(server.pid)
            names = seen.names(tmp_path / "seen")
            server.kill()
        if made:
            break
    else:
        pytest.skip("no mount namespaces may be made here")
    assert not seen.hidden and seen.root == f"/proc/{server.pid}/root"
    assert names == ["compiled"] and view.here().names(tmp_path / "seen") == []


def test_a_title_over_the_environment_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "proc/9"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"VLLM::EngineCore\0")
    (folder / "environ").write_bytes(b"EngineCore\0\0\0\0")
    (folder / "root").symlink_to("/")
    seen = view.of_process(9, str(tmp_path / "proc"))
    assert "written its title" in seen.hidden and seen.command == ("VLLM::EngineCore",)


def test_what_a_neighbour_compiled_is_not_the_servers(tmp_path: Path) -> None:
    """Two real processes: one that has a library of torch's name loaded, one that has not."""
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    library = shutil.copy(libm, tmp_path / "libtorch_cpu.so")
    wait = "import sys; print(1, flush=True); sys.stdin.read()"
    for code, own in ((wait, False), (f"import ctypes; ctypes.CDLL({str(library)!r}); {wait}", True)):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None and server.stdout.readline() == "1\n"
            used = compiled.using(view.of_process(server.pid))
            server.communicate("")
        assert used is not None and used("inductor") is own and not used("CUDA")
