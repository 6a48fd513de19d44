"""Layer 5: every way in which a GPU that is there cannot be used, and none that is imagined."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machine_trees import Machine, as_nobody, by_id, situation

from tokentrace.doctor.check import ENGINE_DOWN
from tokentrace.doctor.machine import builds, devices, hardware, surroundings, visible
from tokentrace.doctor.machine.view import View


def look(machine: Machine, **more: object) -> object:
    return by_id(devices.device(situation(), machine.view(**more)))["TT501"]


def test_a_machine_without_a_gpu_is_healthy_and_says_why_for_each_platform(machine: Machine) -> None:
    result = look(machine)
    assert result.status == "ok" and "no GPU" in result.detail
    assert [line.partition(":")[0] for line in result.evidence] == ["NVIDIA", "AMD", "Intel", "TPU"]


def test_healthy_cards_are_counted_and_named(machine: Machine) -> None:
    machine.nvidia("GPU-aaaa", "GPU-bbbb")
    result = look(machine)
    assert result.status == "ok" and "2 GPUs: NVIDIA A100 and NVIDIA A100" in result.detail


@pytest.mark.parametrize("held", ["", "nouveau"])
def test_a_card_without_its_driver(machine: Machine, held: str) -> None:
    machine.pci("0000:01:00.0", "0x10de", driver=held)
    result = look(machine)
    assert (result.status, "modprobe nvidia" in result.fix) == ("fail", True)
    assert "its driver is not loaded" in result.detail and held in result.detail
    assert result.explains == ENGINE_DOWN


def test_a_card_that_a_virtual_machine_has_is_nobodys_fault(machine: Machine) -> None:
    machine.pci("0000:01:00.0", "0x10de", driver="vfio-pci")
    assert look(machine).status == "ok"


def test_a_container_that_was_given_no_card_says_what_to_type(machine: Machine) -> None:
    machine.nvidia("GPU-aaaa", nodes=False)
    assert "nvidia-modprobe" in look(machine).fix
    machine.write("/.dockerenv")
    result = look(machine)
    assert result.status == "fail" and "--gpus all" in result.fix and "container" in result.detail


def test_nodes_that_this_user_may_not_open_are_named(public: Path) -> None:
    machine = Machine(public)
    machine.nvidia("GPU-aaaa")
    (machine.root / "dev/nvidia0").chmod(0)
    (machine.root / "dev/nvidiactl").chmod(0o666)
    (machine.root / "dev/nvidia-uvm").chmod(0o666)
    view = machine.view()
    nodes = as_nobody(lambda: {n.path: n.usable for n in hardware.look(view).nodes})
    assert nodes == {"/dev/nvidia0": False, "/dev/nvidiactl": True, "/dev/nvidia-uvm": True}
    result = as_nobody(lambda: [[r.status, r.detail] for r in devices.device(situation(), view)])
    assert result[0][0] == "fail" and "may not open /dev/nvidia0" in result[0][1]


def test_amd_without_kfd_or_render_nodes(machine: Machine) -> None:
    machine.amd(kfd=False)
    assert "no /dev/kfd" in look(machine).detail
    machine.write("/dev/kfd")
    assert look(machine).status == "ok" and "gfx942" in look(machine).detail
    for node in (machine.root / "dev/dri").iterdir():
        node.unlink()
    assert "/dev/dri/renderD" in look(machine).detail and look(machine).status == "fail"


def test_the_processors_own_display_adapter_is_no_missing_gpu(machine: Machine) -> None:
    machine.pci("0000:00:02.0", "0x8086", "0x030000", "i915")
    machine.pci("0000:0b:00.0", "0x1002", "0x030000", "amdgpu")
    assert look(machine).status == "ok"


def test_an_accelerator_of_another_vendor_without_a_driver(machine: Machine) -> None:
    machine.pci("0000:01:00.0", "0x1da3", "0x120000")
    assert look(machine).status == "warn" and "Habana" in look(machine).detail


def test_wsl_is_told_and_its_gpu_counts(machine: Machine) -> None:
    machine.write("/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x) #1 SMP")
    machine.write("/dev/dxg")
    result = look(machine)
    assert result.status == "ok" and any(line.startswith("WSL: /dev/dxg") for line in result.evidence)


@pytest.mark.parametrize(
    ("path", "text", "container"),
    [
        ("/.dockerenv", "", "Docker"),
        ("/run/.containerenv", "", "Podman"),
        ("/proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n", "kubepods"),
        ("/proc/self/mountinfo", "22 1 0:21 / / rw - overlay overlay rw\n", "a container"),
        ("/etc/hostname", "plain", ""),
    ],
)
def test_containers_are_recognized(machine: Machine, path: str, text: str, container: str) -> None:
    machine.write(path, text)
    assert surroundings.look(machine.view()).container == container


def test_virtual_machines_are_recognized(machine: Machine) -> None:
    assert surroundings.look(machine.view()).machine == ""
    machine.write("/proc/cpuinfo", "processor : 0\nflags\t\t: fpu vme hypervisor avx\n")
    assert surroundings.look(machine.view()).machine == "a virtual machine"
    machine.write("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
    assert surroundings.look(machine.view()).machine == "Amazon EC2"


CARDS = ["GPU-1111aaaa", "GPU-2222bbbb", "GPU-3333cccc"]


@pytest.mark.parametrize(
    ("value", "chosen", "said"),
    [
        ("", (), "empty"),
        ("-1", (), "hides every GPU"),
        ("NoDevFiles", (), "hides every GPU"),
        ("2,0", (2, 0), ""),
        ("0,7,1", (0,), "'7', which is no GPU here"),
        ("1,1", (), "twice"),
        ("GPU-2222", (1,), ""),
        ("GPU-9999", (), "no GPU here"),
        ("MIG-1c2d", None, ""),
        ("cuda:0", (), "no GPU here"),
    ],
)
def test_what_a_variable_leaves_of_three_cards(value: str, chosen: tuple[int, ...] | None, said: str) -> None:
    found = visible.select("CUDA_VISIBLE_DEVICES", value, CARDS)
    assert found.chosen == chosen and said in found.problem and bool(found.problem) == bool(said)
    assert bool(found.fix) == bool(said)


@given(st.text(max_size=60), st.integers(0, 9))
@example("²", 3)  # a digit to str.isdigit, not to int
def test_any_value_gives_cards_that_exist_once_each(value: str, count: int) -> None:
    found = visible.select("HIP_VISIBLE_DEVICES", value, [f"GPU-{i}{i}{i}{i}" for i in range(count)])
    chosen = found.chosen or ()
    assert len(set(chosen)) == len(chosen) and all(0 <= c < count for c in chosen)


def test_the_mapping_of_numbers_is_told(machine: Machine) -> None:
    machine.nvidia(*CARDS)
    result = by_id(devices.hidden(situation(), machine.view(environ={"CUDA_VISIBLE_DEVICES": "2,1"})))["TT502"]
    assert result.status == "ok" and "device 0 is GPU 2 and device 1 is GPU 1" in result.detail


def test_a_hidden_gpu_is_a_failure_and_a_half_hidden_one_a_warning(machine: Machine) -> None:
    machine.nvidia(*CARDS)
    for value, status in (("", "fail"), ("0,9", "warn")):
        result = by_id(devices.hidden(situation(), machine.view(environ={"CUDA_VISIBLE_DEVICES": value})))["TT502"]
        assert result.status == status and "CUDA_VISIBLE_DEVICES" in result.fix
    given_none = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert by_id(devices.hidden(situation(), machine.view(environ=given_none)))["TT502"].status == "warn"


def test_a_variable_on_a_machine_without_gpus_is_no_fault(machine: Machine) -> None:
    result = by_id(devices.hidden(situation(), machine.view(environ={"CUDA_VISIBLE_DEVICES": ""})))["TT502"]
    assert result.status == "ok"


SITE = "/venv/lib/python3.11/site-packages"


def torch_view(machine: Machine, **more: str) -> View:
    machine.write("/venv/bin/python")
    return machine.view(pid=7, command=("/venv/bin/python", "-m", "vllm"), environ={**machine.environ, **more})


def test_a_build_for_processors_on_a_gpu_machine(machine: Machine) -> None:
    machine.torch(SITE, "2.13.0+cpu")
    healthy = by_id(builds.build(situation(), torch_view(machine)))["TT503"]
    assert healthy.status == "ok" and "for processors only" in healthy.detail
    machine.nvidia("GPU-aaaa", version="570.10.01")
    result = by_id(builds.build(situation(), torch_view(machine)))["TT503"]
    assert result.status == "warn" and "for CUDA 12" in result.fix and "pip install" in result.fix


def test_a_build_for_the_other_vendor_fails(machine: Machine) -> None:
    machine.torch(SITE, "2.9.0+rocm6.4", hip="6.4.43483")
    machine.nvidia("GPU-aaaa")
    result = by_id(builds.build(situation(), torch_view(machine)))["TT503"]
    assert result.status == "fail" and "for ROCm 6.4" in result.detail


@pytest.mark.parametrize(
    ("cuda", "driver", "least"),
    [
        ("12.8", "550.54.15", ""), ("12.8", "470.82.01", "525.60.13"), ("13.0", "575.57.08", "580.65.06"),
        ("13.0", "580.65.06", ""), ("11.8", "450.80.02", ""), ("11.8", "440.33", "450.80.02"), ("99.1", "1.0", ""),
    ],
)  # fmt: skip
def test_the_least_driver_of_a_cuda(machine: Machine, cuda: str, driver: str, least: str) -> None:
    machine.torch(SITE, f"2.9.0+cu{cuda.replace('.', '')}", cuda=cuda)
    machine.nvidia("GPU-aaaa", version=driver if driver.count(".") else "1.0")
    result = by_id(builds.driver(situation(), torch_view(machine)))["TT504"]
    assert result.status == ("fail" if least else "ok") and least in result.detail
    assert not least or least in result.fix


def test_the_compatibility_library_makes_an_old_driver_undecided(machine: Machine) -> None:
    machine.torch(SITE, "2.9.0+cu130", cuda="13.0")
    machine.nvidia("GPU-aaaa", version="550.54.15")
    machine.write("/usr/local/cuda-13.0/compat/libcuda.so.1")
    result = by_id(builds.driver(situation(), torch_view(machine)))["TT504"]
    assert result.status == "unknown" and "/usr/local/cuda-13.0/compat" in result.detail


def test_two_torches_and_a_foreign_pythonpath(machine: Machine) -> None:
    machine.torch(SITE, "2.13.0")
    assert by_id(builds.others(situation(), torch_view(machine)))["TT508"].status == "ok"
    machine.torch("/home/me/.local/lib/python3.9/site-packages", "1.9.0")
    view = torch_view(machine, PYTHONPATH="/home/me/.local/lib/python3.9/site-packages")
    machine.write("/proc/self/maps", "7f00 r-xp 0 08:01 1  /usr/lib/libpython3.11.so.1.0\n")
    details = [r.detail for r in builds.others(situation(), view)]
    assert any("torch 1.9.0" in d and "hides torch 2.13.0" in d for d in details)
    assert any("belongs to another Python than 3.11" in d for d in details)


def test_no_torch_is_no_fault_for_an_endpoint(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    run = next(c.run for c in builds.CHECKS if c.id == "TT503")
    assert run is not None
    assert by_id(run(situation("endpoint")))["TT503"].status == "skip"
    missing = by_id(run(situation("machine")))["TT503"]
    assert missing.status == "warn" and "pip install" in missing.fix


def test_the_torch_that_is_loaded_comes_before_the_one_on_the_path(machine: Machine) -> None:
    machine.torch(SITE, "2.13.0")
    machine.torch("/opt/other", "2.8.0+cu128", cuda="12.8")
    machine.write("/proc/self/maps", "7f00 r-xp 0 08:01 1  /opt/other/torch/lib/libtorch_cpu.so\n")
    assert "torch 2.8.0+cu128" in by_id(builds.build(situation(), torch_view(machine)))["TT503"].detail


def test_a_real_report_of_an_environment_is_healthy(machine: Machine, recordings: Path) -> None:
    text = (recordings / "vllm-profiling/a100_vllm_collect_env.txt").read_text(errors="replace")
    facts = {a.strip(): b.strip() for a, _, b in (line.partition(":") for line in text.splitlines())}
    machine.torch(SITE, facts["PyTorch version"], cuda=facts["CUDA used to build PyTorch"])
    machine.nvidia("GPU-aaaa", version=facts["Nvidia driver version"], model="NVIDIA A100-PCIE-40GB")
    view = torch_view(machine)
    results = [*devices.device(situation(), view), *builds.build(situation(), view), *builds.driver(situation(), view)]
    assert [r.status for r in results] == ["ok"] * 3
    assert "575.57.08 is new enough for CUDA 12.6" in results[2].detail


def test_amds_render_node_without_permission_leaves_computing_alone(public: Path) -> None:
    machine = Machine(public)
    machine.amd()
    (machine.root / "dev/kfd").chmod(0o666)
    (machine.root / "dev/dri/renderD128").chmod(0)
    view = machine.view()
    results = as_nobody(lambda: [[r.status, r.detail, r.fix] for r in devices.device(situation(), view)])
    if as_nobody(lambda: [n.usable for n in hardware.look(view).nodes]) == [True, False]:
        assert results[0][0] == "warn" and "not open /dev/dri/renderD128" in results[0][1]
        assert "usermod -aG render" in results[0][2]
